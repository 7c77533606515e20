//! Arguments of `tar`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::Select;
use super::offline::Open;

/// Write a tar archive of a whole volume, or of a part of it.
///
/// The archive is in pax format: names and sizes of any length, times in nanoseconds, hard links, devices, holes, extended
/// attributes and access control lists. GNU tar restores all of it with --xattrs --xattrs-include='*' --acls. Owners are
/// numbers; times of access are left out, and names sorted, so that one tree makes one archive. Of a directory the archive
/// has the content, with the directory itself as ./. Sockets are reported and left out. A file that cannot be read to its
/// end is filled with zeros, as by GNU tar, and reported; the exit code is 1 then.
#[derive(Debug, clap::Args)]
pub struct Tar {
    /// IMAGE or IMAGE:/PATH.
    #[arg(value_name = "IMAGE[:/PATH]")]
    pub place: OsString,
    /// Write the archive to this file; else, and for -, to standard output.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Owners as numbers, which they always are.
    #[arg(long)]
    pub numeric_owner: bool,
    /// Also write more data than 16 times the size of the image or device, which compressed files or files that share
    /// blocks can have.
    #[arg(long)]
    pub unlimited: bool,
    #[command(flatten)]
    pub select: Select,
    #[command(flatten)]
    pub open: Open,
}
