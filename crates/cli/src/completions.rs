//! `steadfs completions`.

use std::io::{self, ErrorKind, Write};

use clap::CommandFactory;

use crate::args;
use crate::failure::Failure;

pub fn run(args: &args::Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    let mut command = args::Args::command();
    clap_complete::generate(args.shell, &mut command, "steadfs", &mut script);
    match io::stdout().write_all(&script) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::plain(error)),
        _ => Ok(()),
    }
}
