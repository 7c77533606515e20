//! Arguments of the commands that work on volumes without a mount.

use std::ffi::OsString;
use std::path::PathBuf;

use steadfs::VolumeKey;

use super::key::volume_key;
use super::{Sandbox, Select, sandbox};

/// How to open an image without mounting it.
#[derive(Debug, Default, clap::Args)]
pub struct Open {
    /// Options for opening the volume (or each of them), such as offset=1M or partition=2; separated by commas.
    #[arg(short = 'o', long = "options", value_name = "LIST")]
    pub options: Vec<String>,
    /// Parse volumes in a process without rights over the host, the default, or with the caller's rights (off); also
    /// STEADFS_SANDBOX=off.
    #[arg(long, value_name = "on|off", value_parser = sandbox)]
    pub sandbox: Option<Sandbox>,
    /// A master key of encrypted files: a file with its bytes (-: standard input), for policies of version 1 with the
    /// descriptor in front; can be repeated.
    #[arg(long = "key-file", value_name = "[DESCRIPTOR=]FILE", value_parser = volume_key)]
    pub keys: Vec<VolumeKey>,
}

/// Check a volume; nothing is changed.
///
/// Exit codes are e2fsck's: 0 for a clean volume, 4 for errors found, 8 if it could not be checked, 16 for wrong usage.
#[derive(Debug, clap::Args)]
pub struct Check {
    /// Image file or block device.
    pub volume: PathBuf,
    /// Print a JSON document (docs/json.md).
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: Open,
}

/// Show a volume's superblock: features, journal, usage.
#[derive(Debug, clap::Args)]
pub struct Inspect {
    /// Image file or block device.
    pub volume: PathBuf,
    /// Print JSON (docs/json.md).
    #[arg(long)]
    pub json: bool,
    /// List the partitions of a disk, with the volumes in them.
    #[arg(long)]
    pub partitions: bool,
    #[command(flatten)]
    pub open: Open,
}

/// Show or set what users, groups and projects may use (volumes with the feature quota).
///
/// Lists usage, limits and the time left for a soft limit that is exceeded, as repquota(8) does. Limits hold while the volume
/// is mounted with usrquota, grpquota or prjquota.
#[derive(Debug, clap::Args)]
pub struct Quota {
    /// The mount point, or an image file or block device that is not mounted.
    pub volume: PathBuf,
    /// Users; also what limits are set for without -g and -P.
    #[arg(short, long)]
    pub user: bool,
    /// Groups.
    #[arg(short, long)]
    pub group: bool,
    /// Projects.
    #[arg(short = 'P', long)]
    pub project: bool,
    /// Set the limits of a number of a user, group or project: of space (KiB, or with K, M, G, T), of inodes; 0: none.
    #[arg(long, num_args = 5, value_names = ["ID", "SOFT", "HARD", "INODES_SOFT", "INODES_HARD"])]
    pub limits: Vec<String>,
    /// Set for how many seconds soft limits may be exceeded: of space, of inodes.
    #[arg(long, num_args = 2, value_names = ["SPACE", "INODES"], value_parser = super::number::<u32>)]
    pub grace: Vec<u32>,
    #[command(flatten)]
    pub open: Open,
}

/// List files on a volume.
///
/// Like ls(1), one name per line; owners are numbers, times are UTC.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Ls {
    /// IMAGE or IMAGE:/PATH.
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    pub places: Vec<OsString>,
    /// Type, permissions, links, owner, group, size and time of each file.
    #[arg(short)]
    pub long: bool,
    /// As -l: owners are always numbers.
    #[arg(short, long = "numeric-uid-gid")]
    pub numeric: bool,
    /// One name per line, as always.
    #[arg(short = '1')]
    pub one: bool,
    /// Sizes of -l with K, M, G; powers of 1024.
    #[arg(short, long = "human-readable")]
    pub human: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Also names that begin with a dot.
    #[arg(short, long)]
    pub all: bool,
    /// As -a, but not the entries . and ..
    #[arg(short = 'A', long)]
    pub almost_all: bool,
    /// Directories themselves, not their entries.
    #[arg(short, long)]
    pub directory: bool,
    /// Also the entries of subdirectories.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Inode numbers.
    #[arg(short, long)]
    pub inode: bool,
    /// Print a JSON document with all attributes (docs/json.md).
    #[arg(long, conflicts_with_all = ["long", "numeric", "one", "human", "inode"])]
    pub json: bool,
    #[command(flatten)]
    pub open: Open,
}

/// Write files' contents to standard output.
#[derive(Debug, clap::Args)]
pub struct Cat {
    /// IMAGE:/PATH.
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<OsString>,
    #[command(flatten)]
    pub open: Open,
}

/// Copy files into a volume, out of it, or from one to another.
///
/// Sources, targets and options are those of cp(1), except that new files always keep types, permissions, times, extended
/// attributes, holes and hard links: those in a directory that is copied, and those among files that are named. They also
/// keep owners; out of a volume only if root runs it, else set-ID bits are dropped. A path on a volume is IMAGE:/PATH, its
/// root IMAGE: (write ./a:/b for a host path with a colon); - is standard input or output. A file that cannot be copied is
/// reported, and the copy continues; the exit code is 1 then. An interrupted copy closes the volume; the files copied so
/// far are there.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub struct Cp {
    /// Sources, and last the target unless -t is given.
    #[arg(required = true, value_name = "PATH")]
    pub places: Vec<OsString>,
    /// Copy directories recursively; special files are created, not read.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// The same as -r -d -p.
    #[arg(short, long)]
    pub archive: bool,
    /// Set owner, mode, times and attributes also on existing files.
    #[arg(short, long)]
    pub preserve: bool,
    /// Copy links as links (the default with -r).
    #[arg(short = 'P', long, overrides_with_all = ["dereference", "dereference_named", "links"])]
    pub no_dereference: bool,
    /// Follow symbolic links.
    #[arg(short = 'L', long, overrides_with_all = ["no_dereference", "dereference_named", "links"])]
    pub dereference: bool,
    /// Follow symbolic links on the command line, but copy links below them as links.
    #[arg(short = 'H', overrides_with_all = ["no_dereference", "dereference", "links"])]
    pub dereference_named: bool,
    /// The same as -P: hard links are kept without it.
    #[arg(short = 'd', overrides_with_all = ["no_dereference", "dereference", "dereference_named"])]
    pub links: bool,
    /// Replace an existing file that cannot be opened, and overwrite an image by a file.
    #[arg(short, long)]
    pub force: bool,
    /// Do not overwrite existing files.
    #[arg(short, long, overrides_with = "interactive")]
    pub no_clobber: bool,
    /// Ask before an existing file is overwritten.
    #[arg(short, long, overrides_with = "no_clobber")]
    pub interactive: bool,
    /// Remove existing files first.
    #[arg(long)]
    pub remove_destination: bool,
    /// Copy into this directory.
    #[arg(
        short,
        long,
        value_name = "DIRECTORY",
        conflicts_with = "no_target_directory"
    )]
    pub target_directory: Option<OsString>,
    /// The target is the copy itself, even if it is a directory.
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// Print each copied file.
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub to_host: ToHost,
    #[command(flatten)]
    pub open: Open,
}

/// Options of copies to the host.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ToHost {
    /// To the host: no set-ID bits, no device nodes (each is reported), no attributes below security. and trusted.; for
    /// root's copies of untrusted volumes.
    #[arg(long)]
    pub no_privileges: bool,
    /// To the host: also copy more data than 16 times the size of the image or device, which compressed files or files
    /// that share blocks can have.
    #[arg(long)]
    pub unlimited: bool,
}

/// Copy a whole volume, or a part of it, to a directory.
///
/// A symbolic link that is named is followed. A file that cannot be copied is reported, and the copy continues; the exit code is 1 then.
#[derive(Debug, clap::Args)]
pub struct Extract {
    /// IMAGE or IMAGE:/PATH.
    #[arg(value_name = "IMAGE[:/PATH]")]
    pub place: OsString,
    /// The directory to fill; it is created if it does not exist.
    pub directory: PathBuf,
    /// Replace existing files.
    #[arg(short, long)]
    pub force: bool,
    #[command(flatten)]
    pub select: Select,
    #[command(flatten)]
    pub to_host: ToHost,
    #[command(flatten)]
    pub open: Open,
}

/// Show all attributes of files on a volume, or statistics of a mounted volume.
///
/// For a mount: its queue with waits and boosts, by operation and by group, and its commits, reclaim, checkpoints and GC.
#[derive(Debug, clap::Args)]
pub struct Stat {
    /// IMAGE:/PATH, or a mount point.
    #[arg(required = true, value_name = "IMAGE:/PATH|MOUNTPOINT")]
    pub places: Vec<OsString>,
    /// Print a JSON document (docs/json.md); for a mount, with times of the queue in nanoseconds.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: Open,
}
