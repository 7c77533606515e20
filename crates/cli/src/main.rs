//! The steadfs command line: arguments and printing. The library does the work.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_macros)]

mod args;
mod args_f2fs;
mod beside;
#[cfg(test)]
#[path = "tests/book.rs"]
mod book;
mod broker;
mod changes;
mod check;
mod closing;
mod completion_script;
mod completions;
mod consent;
mod control_file;
mod copy;
mod daemon;
mod du;
mod edit;
mod failure;
mod fatal;
mod files;
mod fill;
mod find;
mod fit;
mod format;
mod format_f2fs;
mod fsck;
mod helper;
mod inspect;
mod json;
mod key;
mod kind;
mod lab;
mod list;
mod log;
#[cfg(test)]
#[allow(dead_code, reason = "the manual has the rest of it")]
mod man_text;
mod mount;
mod mount_options;
mod output;
mod owners;
mod partition;
mod place;
mod progress;
mod quota;
mod reference;
mod relation;
mod remount;
mod report;
mod resize;
mod sandbox;
mod script;
mod server;
mod service;
mod signals;
mod size;
mod source;
mod stat;
mod stderr;
mod stop;
mod tar;
mod top;
mod tree;
mod trees;
mod tune;
mod umount;
mod unknown;
mod verity;
mod volume;
mod worker;

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use args::{Args, Command};
use args_f2fs::FormatF2fs;
use failure::{Failure, code};
use stderr::say;
use steadfs::tools::printable_text;

/// musl's own allocator has one lock for all threads: with it a mount takes three times as long to create files.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    fatal::end_on_panic();
    let words: Vec<_> = std::env::args_os().collect();
    let done = match helper::called_as(&words) {
        Some(role) => helper::run(role, &words),
        None if helper::called_by_mount_fuse(&words) => helper::run(helper::Role::Mount, &words),
        None if fsck::is_called(&words) => fsck::run(&words),
        None if worker::is_called(&words) => worker::run(&words),
        None if args_f2fs::is_f2fs(&words) => match FormatF2fs::try_parse_from(&words[1..]) {
            Ok(args) => format_f2fs::run(&args),
            Err(error) => return not_understood(&error, &words),
        },
        None => match Args::try_parse_from(&words) {
            Ok(args) => run(args.command),
            Err(error) => return not_understood(&error, &words),
        },
    };
    let done = done.and_then(|()| match fsck::is_called(&words) {
        true => output::check_stored(check::OPERATIONAL),
        false => output::check_stored(1),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                say(format_args!(
                    "steadfs: {}",
                    printable_text(&failure.message)
                ));
            }
            failure.exit()
        }
    }
}

/// Prints an argument error, or the requested help. The exit code of a wrong call must differ from the codes of
/// mounting and checking.
fn not_understood(error: &clap::Error, words: &[OsString]) -> ExitCode {
    let command = words.get(1).and_then(|word| word.to_str());
    match (error.get(ContextKind::InvalidArg), command) {
        (_, Some(command)) if error.kind() == ErrorKind::InvalidSubcommand => {
            let word = error.get(ContextKind::InvalidSubcommand);
            let word = word.map_or_else(|| command.to_owned(), ToString::to_string);
            say(format_args!(
                "steadfs: {}",
                unknown::message(&word, command)
            ));
        }
        (Some(arg), Some(command)) if is_negative(arg) => {
            say(format_args!(
                "steadfs: {arg}: steadfs {command} does not accept a negative number here"
            ));
        }
        // clap's message would suggest to pass it as a value.
        (Some(arg), Some("format"))
            if error.kind() == ErrorKind::UnknownArgument && args_f2fs::is_f2fs(words) =>
        {
            say(format_args!(
                "steadfs: {arg}: mkfs.f2fs has no such option (steadfs format -t f2fs --help lists its options)"
            ));
        }
        (Some(arg), Some(command))
            if error.kind() == ErrorKind::UnknownArgument && !arg.to_string().starts_with('-') =>
        {
            say(format_args!(
                "steadfs: {}: one operand too many for steadfs {command} (see steadfs {command} --help)",
                printable_text(&arg.to_string())
            ));
        }
        (Some(arg), Some(command)) if error.kind() == ErrorKind::UnknownArgument => {
            say(format_args!(
                "steadfs: {arg}: steadfs {command} has no such option (steadfs {command} --help lists its options){}",
                option_hint(command)
            ))
        }
        (Some(arg), _) if error.kind() == ErrorKind::ValueValidation => {
            say(format_args!(
                "steadfs: {}",
                printable_text(&wrong_value(arg, error))
            ));
        }
        _ => {
            let printed = error.print();
            if !error.use_stderr() {
                return end_of_help(printed);
            }
            // If standard error fails, there is no place for a message.
        }
    }
    ExitCode::from(match command {
        Some("mount" | "service" | "umount" | "remount" | "sync" | "tune") => code::USAGE,
        Some("check") => check::USAGE,
        _ => code::WORDS,
    })
}

/// The end of a call for help or the version. A closed pipe has seen enough of it.
fn end_of_help(printed: io::Result<()>) -> ExitCode {
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(format_args!("steadfs: standard output: {error}"));
            ExitCode::from(code::FAILED)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Whether an argument that begins with a minus, of which clap reports the first letter, is a negative number.
fn is_negative(arg: &ContextValue) -> bool {
    let arg = arg.to_string();
    arg.strip_prefix('-')
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The error in an option's value.
fn wrong_value(arg: &ContextValue, error: &clap::Error) -> String {
    // clap names it `--option <NAME>`.
    let arg = arg.to_string();
    let option = arg.split_once(" <").map_or(&*arg, |(option, _)| option);
    let value = error.get(ContextKind::InvalidValue);
    let value = value.map(ToString::to_string).unwrap_or_default();
    let why = error.source().map(ToString::to_string).unwrap_or_default();
    format!("{option} {value}: {why}")
}

/// Where options are found that a command does not have.
fn option_hint(command: &str) -> &'static str {
    match command {
        "mount" => {
            "; what mount(8) does itself it does with `mount -t steadfs`, where mount.steadfs is installed"
        }
        "format" => "; what mke2fs and mkfs.f2fs make can be mounted, too",
        _ => "",
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Format(args) => format::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Resize(args) => resize::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::List(args) => list::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Remount(args) => remount::run(&args),
        Command::Upgrade(args) => remount::upgrade(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Quota(args) => quota::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Verity(args) => verity::run(&args),
        Command::Sync(args) => umount::sync(&args.mountpoint),
        Command::Ls(args) => files::ls(&args),
        Command::Cat(args) => files::cat(&args),
        Command::Cp(args) => copy::cp(&args),
        Command::Extract(args) => copy::extract(&args),
        Command::Tar(args) => tar::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Find(args) => find::run(&args),
        Command::Du(args) => du::run(&args),
        Command::Tree(args) => tree::run(&args),
        Command::Mkdir(args) => edit::mkdir(&args),
        Command::Rmdir(args) => edit::rmdir(&args),
        Command::Rm(args) => edit::rm(&args),
        Command::Mv(args) => edit::mv(&args),
        Command::Ln(args) => edit::ln(&args),
        Command::Chmod(args) => edit::chmod(&args),
        Command::Chown(args) => edit::chown(&args),
        Command::Touch(args) => edit::touch(&args),
        Command::Truncate(args) => edit::truncate(&args),
        Command::Edit(args) => script::run(&args),
        Command::Service => service::run(),
        Command::Completions(args) => completions::run(&args),
        Command::Lab(args) => lab::run(&args),
    }
}
