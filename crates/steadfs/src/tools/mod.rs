//! Work on a volume without mounting it: finding, listing, copying in and out.
//!
//! Everything here goes through [`FileSystem`](steadfs_vfs::FileSystem), so it serves every format.
//! Volumes may be hostile: names are checked, loops found, and nothing is written on the host
//! outside the folder that was given.

mod copy_between;
mod copy_in;
mod copy_out;
mod folders;
mod host;
mod list;
mod maker;
mod walk;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use steadfs_vfs::{Cx, FileKind, FsError};

pub use copy_between::copy_between;
pub use copy_in::copy_in;
pub use copy_out::{CopyOut, copy_out, write_content};
pub use list::{ListOptions, Listed, Listing, Listings, device_numbers, list, mode_string, utc};
pub use maker::CopyIn;
pub use steadfs_vfs::names::{harmless, harmless_json, printable};
pub use walk::{Entry, Held, child, read_dir, resolve, resolve_parent};

/// Why a tool stopped, with the place.
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
    #[error("{}: {source}", printable(.path.as_os_str().as_bytes()))]
    Host {
        /// Path on the host.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A tree goes deeper than any is followed.
    #[error("{}: more than {} folders lie in one another", shortened(.path), walk::DEEPEST)]
    TooDeep {
        /// Path on the volume.
        path: Vec<u8>,
    },
    /// Whoever watches wanted it to stop.
    #[error("stopped; what was copied before the last file is there")]
    Stopped,
}

/// Result of a tool.
pub type Result<T, E = ToolError> = std::result::Result<T, E>;

/// What a copy did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files of all kinds copied, folders included; a further hard link counts as one.
    pub files: u64,
    /// Bytes of file content copied, holes not counted.
    pub bytes: u64,
    /// What could not be kept, one sentence each.
    pub warnings: Vec<String>,
}

impl Report {
    fn warn(&mut self, path: &[u8], what: &str) {
        self.warnings.push(format!("{}: {what}", printable(path)));
    }
}

/// Hears how a copy gets on, and may stop it.
pub trait Progress {
    /// Copying of the file at `path` (on the volume) begins.
    fn file(&mut self, path: &[u8]);
    /// So many more bytes are copied.
    fn bytes(&mut self, count: u64);
    /// Whether it shall stop: asked between files and between pieces of a file.
    fn stopped(&self) -> bool {
        false
    }
}

fn go_on(progress: &dyn Progress) -> Result<()> {
    match progress.stopped() {
        true => Err(ToolError::Stopped),
        false => Ok(()),
    }
}

/// Hears nothing.
pub struct Quiet;

impl Progress for Quiet {
    fn file(&mut self, _: &[u8]) {}
    fn bytes(&mut self, _: u64) {}
}

/// The caller of tools: the volume's owner, who may do everything.
pub fn owner_cx() -> Cx {
    Cx {
        fsetid: true,
        admin: true,
        ..Cx::default()
    }
}

/// Bytes moved by one read or write.
const CHUNK: usize = 1 << 20;

/// The beginning of a path that is too long to be read.
fn shortened(path: &[u8]) -> String {
    const SHOWN: usize = 64;
    match path.get(..SHOWN) {
        Some(beginning) => printable(beginning) + "...",
        None => printable(path),
    }
}

fn show(path: &[u8]) -> String {
    printable(path)
}

/// The permissions that a copy keeps. With another owner (`stranger`) it lends nobody his rights, so it is no set-ID
/// program any more; of folders the bit is about the group of new files.
fn kept_perm(kind: FileKind, perm: u32, stranger: bool) -> u32 {
    match stranger && kind != FileKind::Directory {
        true => perm & !0o6000,
        false => perm,
    }
}

/// A path of the host.
fn host_path(bytes: &[u8]) -> &Path {
    Path::new(os(bytes))
}

fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Whether a path on a volume is the root itself.
fn is_root_path(path: &[u8]) -> bool {
    path.split(|&b| b == b'/')
        .all(|name| name.is_empty() || name == b".")
}

/// `dir/name` on a volume.
fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    push(&mut path, name);
    path
}

/// Makes `path/name` of `path`.
fn push(path: &mut Vec<u8>, name: &[u8]) {
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// The paths of what is copied, and of the copy. They are kept once, whatever the depth: one for each folder would take
/// the square of it.
struct Paths {
    source: Vec<u8>,
    target: Vec<u8>,
}

/// How long the paths are in a folder.
#[derive(Clone, Copy)]
struct Lengths {
    source: usize,
    target: usize,
}

impl Paths {
    fn lengths(&self) -> Lengths {
        Lengths {
            source: self.source.len(),
            target: self.target.len(),
        }
    }

    /// Goes back to the folder where the paths had these lengths.
    fn back_to(&mut self, folder: Lengths) {
        self.source.truncate(folder.source);
        self.target.truncate(folder.target);
    }

    fn push(&mut self, name: &[u8]) {
        push(&mut self.source, name);
        push(&mut self.target, name);
    }
}

trait At<T> {
    /// Says where on the volume the error came up.
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
    /// Says where on the host the error came up.
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
