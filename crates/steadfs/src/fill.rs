//! Filling a new volume from a directory or an archive.
//!
//! **Reproducible volumes.** The same tree, UUID and time give the same bytes. Problem: the order of write-back, and with
//! it block addresses and the content of the log, depends on thread timing. Rule: a reproducible volume is filled in a
//! simulation (`steadfs_rt::sim`): the same file-system code runs as coroutines on one thread, with a constant clock
//! and random numbers seeded by the UUID. Its device is the file, accessed by plain system calls.

#[cfg(feature = "sim")]
mod reproducible;
#[cfg(not(feature = "sim"))]
#[path = "fill/not_reproducible.rs"]
mod reproducible;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfs_base::Timestamp;
use steadfs_vfs::{FileKind, FileSystem, FsError, SetAttr, SetXattr, StatFs};

use crate::owners::OwnerRules;
use crate::probe::failed;
use crate::tar::TarTree;
use crate::tools::{
    CopyOptions, Existing, Progress, Report, ToolError, amount_on_host, child, copy_in_by,
    owner_cx, tree_in,
};
use crate::{Error, Options, Volume};

#[cfg(feature = "sim")]
pub use reproducible::ReproducibleDevice;

/// What a new volume is filled with.
#[derive(Debug)]
pub enum FillSource {
    /// The content of a directory of the host.
    Directory(PathBuf),
    /// The tree of a tar archive.
    Archive(TarTree),
}

impl FillSource {
    /// About how many bytes of data it has; `None` if counting takes long.
    pub fn amount(&self) -> Option<u64> {
        match self {
            Self::Directory(top) => amount_on_host(top),
            Self::Archive(tree) => Some(tree.amount()),
        }
    }
}

/// How a new volume is filled.
#[derive(Clone, Debug, Default)]
pub struct Fill {
    /// Where the volume begins on the device.
    pub offset: u64,
    /// Owner of the root directory; by default that of the source.
    pub root_owner: Option<(u32, u32)>,
    /// Permissions of the root directory; by default those of the source.
    pub root_perm: Option<u32>,
    /// Owners and labels that files get in place of their own.
    pub rules: Option<Arc<OwnerRules>>,
    /// The inputs of a reproducible volume besides the tree; `None`: the volume gets the current time.
    pub origin: Option<Origin>,
    /// Whether the usage of the volume is measured, for which it is synced.
    pub measure: bool,
}

/// What filling a volume did.
#[derive(Clone, Debug)]
pub struct Filled {
    /// What was copied and what was not.
    pub report: Report,
    /// The usage of the volume afterwards, if [`Fill::measure`] asks for it.
    pub space: Option<StatFs>,
}

/// The inputs that determine the bytes of a reproducible volume, besides the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The time of creation, and the latest modification time of a file. Access times, which reading the tree changes, are
    /// not copied.
    pub time: Timestamp,
    /// Seed of the inode generations.
    pub uuid: [u8; 16],
}

/// Why a volume was not filled.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// The volume could not be opened or closed.
    #[error("{0}")]
    Volume(#[from] Error),
    /// A copy failed.
    #[error("{0}")]
    Copy(#[from] ToolError),
    /// The simulation failed.
    #[error("{}: {why}", path.display())]
    Simulation {
        /// The volume.
        path: PathBuf,
        /// What happened.
        why: String,
    },
}

impl From<FillError> for io::Error {
    fn from(error: FillError) -> Self {
        match error {
            FillError::Volume(error) => error.into(),
            FillError::Copy(error) => error.into(),
            FillError::Simulation { .. } => Self::other(error),
        }
    }
}

/// Copies what `from` has into the new volume at `path`. Returns `progress`, which the work may use on another
/// stack.
///
/// # Errors
/// Those of opening, of a copy that ends, and of closing. The report counts what could not be copied.
pub fn fill<P: Progress + 'static>(
    path: &Path,
    from: &Arc<FillSource>,
    how: &Fill,
    mut progress: P,
) -> (Option<P>, Result<Filled, FillError>) {
    let Some(origin) = how.origin else {
        let mut options = Options::default();
        options.offset = how.offset;
        options.set_brief();
        let done = Volume::open_with(path, &options)
            .map_err(FillError::from)
            .and_then(|volume| into(&volume, from, how, &mut progress));
        return (Some(progress), done);
    };
    reproducible::fill(path, from, (how, origin), progress)
}

fn into(
    volume: &Volume,
    from: &FillSource,
    how: &Fill,
    progress: &mut dyn Progress,
) -> Result<Filled, FillError> {
    let done = fill_open(&*volume.fs(), volume.path(), from, how, progress);
    let closed = volume.close();
    let filled = done?;
    closed?;
    Ok(filled)
}

/// Copies what `from` has into the new volume `fs`, which is open and is in the image at `path`.
///
/// # Errors
/// Those of a copy that ends. The report counts what could not be copied.
pub fn fill_open(
    fs: &dyn FileSystem,
    path: &Path,
    from: &FillSource,
    how: &Fill,
    progress: &mut dyn Progress,
) -> Result<Filled, FillError> {
    let image = path.metadata().ok();
    let copy = CopyOptions {
        existing: Existing::Overwrite,
        latest: how.origin.map(|origin| origin.time),
        image: image.map(|image| (image.dev(), image.ino())),
        ..CopyOptions::default()
    };
    let (cx, how_to) = (owner_cx(), (copy, how.rules.as_deref()));
    let report = match from {
        FillSource::Directory(from) => copy_in_by(fs, &cx, from, b"/", how_to, progress)?,
        FillSource::Archive(tree) => tree_in(fs, &cx, tree, how_to, progress)?,
    };
    label_lost_found(fs, how)
        .and_then(|()| set_root(fs, how))
        .map_err(|error| failed(path, error))?;
    let space = how.measure.then(|| {
        fs.sync_all(&cx)?;
        fs.statfs(&cx)
    });
    let space = space.transpose().map_err(|error| failed(path, error))?;
    Ok(Filled { report, space })
}

/// Gives the directory `lost+found` that formatting made its label. As with e2fsdroid it keeps its owner and mode.
fn label_lost_found(fs: &dyn FileSystem, how: &Fill) -> steadfs_vfs::Result<()> {
    const NAME: &[u8] = b"lost+found";
    let rules = how.rules.as_deref();
    let label = rules.and_then(|rules| rules.label_at(NAME, FileKind::Directory));
    let Some((attribute, label)) = label else {
        return Ok(());
    };
    let cx = owner_cx();
    match child(fs, &cx, fs.root(), NAME) {
        Ok(found) if found.attr().kind == FileKind::Directory => {
            fs.setxattr(&cx, found.ino(), attribute, label, SetXattr::Any)
        }
        Ok(_) | Err(FsError::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Sets the requested owner and permissions of the root directory, which the copy took from the source.
fn set_root(fs: &dyn FileSystem, how: &Fill) -> steadfs_vfs::Result<()> {
    if how.root_owner.is_none() && how.root_perm.is_none() {
        return Ok(());
    }
    let set = SetAttr {
        uid: how.root_owner.map(|(user, _)| user),
        gid: how.root_owner.map(|(_, group)| group),
        perm: how.root_perm,
        ..SetAttr::default()
    };
    fs.setattr(&owner_cx(), fs.root(), &set).map(drop)
}
