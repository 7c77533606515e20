//! `steadfs completions`.

use clap::CommandFactory;

use crate::args;
use crate::failure::Failure;
use crate::output::print;

pub fn run(args: &args::Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    let mut command = args::Args::command();
    clap_complete::generate(args.shell, &mut command, "steadfs", &mut script);
    print(|out| out.write_all(&script))
}
