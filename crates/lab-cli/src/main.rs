//! The `steadfs-lab` program: parses arguments, runs the laboratory, prints reports. `steadfs lab` executes it.

#![forbid(unsafe_code)]

mod args;
mod failure;
mod lab;
#[cfg(test)]
#[allow(dead_code, reason = "the manual has the rest of it")]
mod man_text;

use std::process::ExitCode;

use clap::Parser;
use steadfs::tools::printable_text;

use args::Args;

fn main() -> ExitCode {
    abort_on_panic();
    match lab::run(&Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("steadfs-lab: {}", printable_text(&failure.message));
            }
            failure.exit()
        }
    }
}

/// A panic in a simulation fails that run, which reports it. Elsewhere (`--real`) it ends the process: other threads
/// would wait forever for the one that panicked.
fn abort_on_panic() {
    let print_message = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print_message(info);
        if !steadfs_rt::sim::active() {
            std::process::abort();
        }
    }));
}
