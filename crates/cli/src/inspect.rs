//! `steadfs inspect`.

use steadfs::tools::{printable_json, printable_text};
use steadfs::{Options, VolumeDevice};

use crate::args;
use crate::failure::Failure;
use crate::output::print;
use crate::partition;
use crate::sandbox;

pub fn run(args: &args::Inspect) -> Result<(), Failure> {
    let (volume, list) = partition::resolve(
        &args.volume,
        &args.open.options.join(","),
        args.open.sandbox,
    )?;
    let mut options = Options::parse_to_read(&list).map_err(Failure::plain)?;
    let contained = sandbox::is_on(args.open.sandbox)?;
    if contained {
        sandbox::adapt(&mut options)?;
    }
    let device = VolumeDevice::open_salvage(&volume, &options).map_err(Failure::plain)?;
    if contained {
        sandbox::report_missing(&sandbox::enter(false)?);
    }
    let inspection = device.inspect().map_err(Failure::plain)?;
    if args.json {
        let json = serde_json::to_string_pretty(&inspection).map_err(Failure::plain)?;
        print(|out| writeln!(out, "{}", printable_json(&json)))
    } else {
        print(|out| writeln!(out, "{}", printable_text(&inspection.to_string())))
    }
}
