//! Writes the manual pages of `steadfs lab` (`steadfs-lab.1` and one page per command) to a directory. `make install`
//! installs them. usage: lab-manual DIR

#[allow(dead_code, reason = "the program reads the arguments")]
#[path = "../src/args.rs"]
mod args;

use std::io;

use clap::CommandFactory;

fn main() -> io::Result<()> {
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("usage: lab-manual DIR");
        std::process::exit(1);
    };
    std::fs::create_dir_all(&dir)?;
    clap_mangen::generate_to(args::Args::command(), dir)
}
