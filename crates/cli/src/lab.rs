//! `steadfs lab`: executes `steadfs-lab`, as git(1) executes git-COMMAND.
//!
//! The laboratory is a program of its own, so that a shipped steadfs holds no experiments. The program beside the
//! running one comes first: it is of the same build. exec(2) keeps the process id, so signals, terminal and exit
//! status need no forwarding.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args;
use crate::failure::{Failure, code};

const PROGRAM: &str = "steadfs-lab";

pub fn run(args: &args::Lab) -> Result<(), Failure> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(beside);
    let program = beside
        .as_deref()
        .map_or(OsStr::new(PROGRAM), Path::as_os_str);
    let error = Command::new(program).args(&args.args).exec();
    Err(Failure::new(code::SYSTEM, message(program, &error)))
}

/// The laboratory in the directory of the program `own`, if there is one.
fn beside(own: &Path) -> Option<PathBuf> {
    let program = own.with_file_name(PROGRAM);
    program.is_file().then_some(program)
}

fn message(program: &OsStr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "steadfs lab needs the program {PROGRAM}, which is neither beside steadfs nor in PATH (it is part of the \
             steadfs sources: make install)"
        ),
        _ => format!("cannot execute {}: {error}", program.display()),
    }
}
