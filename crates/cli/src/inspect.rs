//! `steadfs inspect`.

use steadfs::Options;
use steadfs::tools::{printable_json, printable_text};

use crate::args;
use crate::failure::Failure;
use crate::output::print;

pub fn run(args: &args::Inspect) -> Result<(), Failure> {
    let list = args.open.options.join(",");
    let options = Options::parse_to_read(&list).map_err(Failure::plain)?;
    let inspection = steadfs::inspect(&args.volume, &options).map_err(Failure::plain)?;
    if args.json {
        let json = serde_json::to_string_pretty(&inspection).map_err(Failure::plain)?;
        print(|out| writeln!(out, "{}", printable_json(&json)))
    } else {
        print(|out| writeln!(out, "{}", printable_text(&inspection.to_string())))
    }
}
