//! Arguments of `edit`, and of the commands in its script.

use std::ffi::OsString;
use std::path::PathBuf;

use super::edit::{self, Asks};
use super::offline::{Cp, Open};

/// Carry out a script of changes on a volume: all of them, or none.
///
/// Each line of the script is a command: mkdir, rmdir, rm, mv, ln, chmod, chown, touch, truncate and cp as steadfs has them,
/// with paths on the volume (without IMAGE:), and put, which is cp from the host. Nothing is asked: -i is refused. Words are
/// quoted as in a shell; # begins a comment. Unquoted ; & | < > ( ) $, backquotes and {a,b} are errors.
///
/// At the first line that fails, and after a signal, the volume is as before. So it is after a crash at any time before the
/// end, and after the end it has all changes: they become one transaction of the journal, or one checkpoint of f2fs. Until
/// then they are in memory, a quarter of which they may take. A volume that was not unmounted is recovered first.
#[derive(Debug, clap::Args)]
pub struct Edit {
    /// Image file or block device.
    pub image: PathBuf,
    /// The script; standard input if it is - or not given.
    pub script: Option<PathBuf>,
    /// Edit a copy of the image file, which then replaces it: for volumes without a journal, and for more changes than
    /// memory or the journal hold.
    #[arg(long)]
    pub copy: bool,
    /// Carry out the script and change nothing.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub open: Open,
}

/// A line of a script.
#[derive(Debug, clap::Parser)]
#[command(
    no_binary_name = true,
    disable_help_flag = true,
    disable_help_subcommand = true
)]
pub struct Step {
    #[command(subcommand)]
    pub change: Change,
}

/// A command of a script.
#[derive(Debug, clap::Subcommand)]
pub enum Change {
    Mkdir(edit::Mkdir),
    Rmdir(edit::Rmdir),
    Rm(edit::Rm),
    Mv(edit::Mv),
    Ln(edit::Ln),
    Chmod(edit::Chmod),
    Chown(edit::Chown),
    Touch(edit::Touch),
    Truncate(edit::Truncate),
    /// Copies on the volume.
    Cp(Cp),
    /// Copies from the host.
    Put(Cp),
}

impl Change {
    /// How to open the volume, which is not said in a script.
    pub fn open(&self) -> &Open {
        match self {
            Self::Mkdir(args) => &args.open,
            Self::Rmdir(args) => &args.open,
            Self::Rm(args) => &args.open,
            Self::Mv(args) => &args.open,
            Self::Ln(args) => &args.open,
            Self::Chmod(args) => &args.open,
            Self::Chown(args) => &args.open,
            Self::Touch(args) => &args.open,
            Self::Truncate(args) => &args.open,
            Self::Cp(args) | Self::Put(args) => &args.open,
        }
    }

    /// Whether a question would be asked, for which a script has no answer.
    pub fn asks(&self) -> bool {
        match self {
            Self::Rm(args) => args.asks() != Asks::Never,
            Self::Mv(args) => args.interactive,
            Self::Ln(args) => args.interactive,
            Self::Cp(args) | Self::Put(args) => args.interactive,
            Self::Mkdir(_) | Self::Rmdir(_) | Self::Chmod(_) | Self::Chown(_) => false,
            Self::Touch(_) | Self::Truncate(_) => false,
        }
    }

    /// All operands, of which each is a path, but for the texts of symbolic links and the files of the host.
    pub fn places(&self) -> Vec<OsString> {
        match self {
            Self::Mkdir(args) => args.places.clone(),
            Self::Rmdir(args) => args.places.clone(),
            Self::Rm(args) => args.places.clone(),
            Self::Mv(args) => args.places.clone(),
            Self::Ln(args) => args.places.clone(),
            Self::Chmod(args) => args.operands(),
            Self::Chown(args) => args.operands(),
            Self::Touch(args) => args.places.clone(),
            Self::Truncate(args) => args.places.clone(),
            Self::Cp(args) | Self::Put(args) => args.places.clone(),
        }
    }
}
