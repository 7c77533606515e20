//! Work on a volume without mounting it: path resolution, listing, copies in and out.
//!
//! Everything uses [`FileSystem`](steadfs_vfs::FileSystem), so it works for every format. Volumes can be hostile: names are
//! checked, cycles are detected, and on the host nothing is written outside the given directory.

#[cfg(target_os = "linux")]
mod ahead;
#[cfg(target_os = "linux")]
mod amount;
#[cfg(target_os = "linux")]
mod copy_between;
#[cfg(target_os = "linux")]
mod copy_in;
#[cfg(target_os = "linux")]
mod copy_out;
mod copying;
mod du;
pub mod edit;
pub mod find;
#[cfg(target_os = "linux")]
mod first_copies;
#[cfg(target_os = "linux")]
mod folders;
mod glob;
#[cfg(target_os = "linux")]
mod host;
mod last_name;
mod list;
#[cfg(target_os = "linux")]
mod maker;
mod names_of;
#[cfg(target_os = "linux")]
mod output;
mod replacing;
mod select;
#[cfg(target_os = "linux")]
mod stream;
#[cfg(target_os = "linux")]
mod tar_out;
mod tree;
#[cfg(target_os = "linux")]
mod tree_in;
mod walk;
mod walker;
#[cfg(target_os = "linux")]
mod written;

use std::io;
use std::path::{Path, PathBuf};

use steadfs_vfs::acl::Acl;
use steadfs_vfs::{Cx, FileKind, FsError};

use crate::os_names::bytes_of;

#[cfg(target_os = "linux")]
pub use amount::{amount_on_host, amount_on_volume};
#[cfg(target_os = "linux")]
pub use copy_between::{copy_between, copy_between_linked};
#[cfg(target_os = "linux")]
pub(crate) use copy_in::copy_in_by;
#[cfg(target_os = "linux")]
pub use copy_in::{copy_in, copy_in_linked, copy_stream_in};
#[cfg(target_os = "linux")]
pub use copy_out::{copy_out, copy_out_linked, write_content};
pub use copying::{CopyOptions, Existing, Follow, Progress, Quiet, Report};
pub use du::{DuOptions, Unit, Usage};
#[cfg(target_os = "linux")]
pub use first_copies::{FirstCopies, FirstCopiesOut};
pub use glob::{glob, is_pattern, matches};
#[cfg(target_os = "linux")]
pub(crate) use host::is_readable;
pub(crate) use last_name::LastName;
pub use list::{ListOptions, Listed, Listing, Listings, device_numbers, list, mode_string, utc};
pub use names_of::Accounts;
pub use select::Selection;
pub use steadfs_vfs::names::{printable, printable_json, printable_text};
#[cfg(target_os = "linux")]
pub use stream::StreamWriter;
#[cfg(target_os = "linux")]
pub use tar_out::tar_out;
pub use tree::{Branch, Branches, TreeCount, TreeOptions, tree};
#[cfg(target_os = "linux")]
pub(crate) use tree_in::tree_in;
pub(crate) use walk::DEPTH_MAX;
pub use walk::{Entry, Held, child, read_dir, resolve, resolve_parent};
pub(crate) use walker::Entries;
pub use walker::{Unreadable, Visited, Visitor, visit};

/// The error of a tool, with the path.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// A call on the volume failed.
    #[error("{}: {source}", show(.path))]
    Volume {
        /// Path on the volume.
        path: Vec<u8>,
        /// The reason.
        source: FsError,
    },
    /// A call on the host failed.
    #[error("{}: {source}", printable(bytes_of(.path)))]
    Host {
        /// Path on the host.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A tree is too deep.
    #[error("{}: more than {} folders lie in one another", shortened(.path), walk::DEPTH_MAX)]
    TooDeep {
        /// Path on the volume.
        path: Vec<u8>,
    },
    /// A file is not copied, or one that exists not written.
    #[error("{}: {why}", show(.path))]
    Refused {
        /// Path on the volume or host.
        path: Vec<u8>,
        /// The reason.
        why: &'static str,
    },
    /// A file was copied, but not all of its attributes.
    #[error("{}: {what} was not kept: {why}", show(.path))]
    NotKept {
        /// Path of the copy.
        path: Vec<u8>,
        /// The attribute.
        what: String,
        /// The reason.
        why: String,
    },
    /// The files have more data than [`CopyOptions::data_max`].
    #[error(
        "the copy ends: the files have more than {0} bytes of data, far more than the volume has; --unlimited copies them"
    )]
    TooMuch(u64),
    /// A change of a file failed.
    #[error("{}: {what}: {source}", show(.path))]
    Change {
        /// Path on the volume.
        path: Vec<u8>,
        /// The change, as "cannot remove".
        what: &'static str,
        /// The reason.
        source: FsError,
    },
    /// An argument does not fit the volume.
    #[error("{0}")]
    Wrong(String),
    /// A signal, or another caller of [`Progress::stopped`], stopped the copy.
    #[error("stopped; what was done before the last file is there")]
    Stopped,
}

impl ToolError {
    /// The kind of this error in [`io`].
    pub fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Host { source, .. } => source.kind(),
            Self::Volume { source, .. } | Self::Change { source, .. } => source.io_kind(),
            Self::TooDeep { .. } | Self::Wrong(_) => io::ErrorKind::InvalidInput,
            Self::Stopped => io::ErrorKind::Interrupted,
            Self::Refused { .. } | Self::NotKept { .. } | Self::TooMuch(_) => io::ErrorKind::Other,
        }
    }

    /// Whether every later file would fail in the same way.
    fn ends_all(&self) -> bool {
        match self {
            Self::Stopped | Self::TooMuch(_) => true,
            Self::Volume { source, .. } | Self::Change { source, .. } => source.is_stop(),
            _ => false,
        }
    }
}

/// Why a file is not replaced by itself.
const SAME_FILE: &str = "source and target are the same file";

fn refused<T>(path: &[u8], why: &'static str) -> Result<T> {
    let path = path.to_vec();
    Err(ToolError::Refused { path, why })
}

/// Result of a tool.
pub type Result<T, E = ToolError> = std::result::Result<T, E>;

/// A file of the host, by device and inode number.
pub type HostFile = (u64, u64);

/// The caller of tools: the volume's owner, with all privileges.
pub fn owner_cx() -> Cx {
    Cx {
        fsetid: true,
        admin: true,
        ..Cx::default()
    }
}

/// The attributes that are access control lists.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Bytes moved by one read or write.
const CHUNK: usize = 1 << 20;

/// The beginning of a path that is too long for a message.
fn shortened(path: &[u8]) -> String {
    const SHOWN: usize = 64;
    match path.get(..SHOWN) {
        Some(beginning) => printable(beginning) + "...",
        None => printable(path),
    }
}

/// A path in a message. What no call of the kernel would take is shortened: an archive can have names of 16 MiB.
fn show(path: &[u8]) -> String {
    match path.len() > steadfs_base::limits::SYMLINK_MAX {
        true => shortened(path),
        false => printable(path),
    }
}

/// The permissions that a copy keeps. With another owner (`stranger`) it loses the set-ID bits, so that it does not run
/// with that owner's rights; a directory keeps them, where set-group-ID is about the group of new files.
fn kept_perm(kind: FileKind, perm: u32, stranger: bool) -> u32 {
    match stranger && kind != FileKind::Directory {
        true => perm & !0o6000,
        false => perm,
    }
}

/// The permissions of a copy until its access list is set, which sets them, too, and for good if it cannot be: they admit no
/// caller to more than the list, of which `None` is known if it cannot be read.
fn perm_without_list(perm: u32, list: Option<&[u8]>) -> u32 {
    let list = list.and_then(|list| Acl::from_xattr(list).ok());
    match list {
        Some(list) if list.is_empty() => perm,
        Some(list) => perm & (!0o777 | list.narrowest_mode()),
        None => perm & !0o077,
    }
}

/// A path of the host.
#[cfg(target_os = "linux")]
fn host_path(bytes: &[u8]) -> &Path {
    Path::new(os(bytes))
}

#[cfg(target_os = "linux")]
fn os(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// Whether a path on a volume is the root itself.
fn is_root_path(path: &[u8]) -> bool {
    path.split(|&b| b == b'/')
        .all(|name| name.is_empty() || name == b".")
}

/// `dir/name` on a volume.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    push(&mut path, name);
    path
}

/// Appends `/name` to `path`.
fn push(path: &mut Vec<u8>, name: &[u8]) {
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

trait At<T> {
    /// Adds the path on the volume to an error.
    fn on_volume(self, path: &[u8]) -> Result<T>;
}

impl<T> At<T> for steadfs_vfs::Result<T> {
    fn on_volume(self, path: &[u8]) -> Result<T> {
        self.map_err(|source| ToolError::Volume {
            path: path.to_vec(),
            source,
        })
    }
}

trait AtHost<T> {
    /// Adds the path on the host to an error.
    fn on_host(self, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> AtHost<T> for std::result::Result<T, E> {
    fn on_host(self, path: &Path) -> Result<T> {
        self.map_err(|source| ToolError::Host {
            path: path.to_owned(),
            source: source.into(),
        })
    }
}
