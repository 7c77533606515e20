//! Making files on a volume: what the copiers into one share.

use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, SetAttr, SetTime, SetXattr};

use super::printable;
use super::walk::{Held, child};
use super::{At, Report, Result};

/// How copies into a volume are made.
#[derive(Clone, Copy, Debug)]
pub struct CopyIn {
    /// Keep owners; else everything belongs to the volume's root user.
    pub owners: bool,
    /// Replace files that are there; else they are an error.
    pub overwrite: bool,
    /// The copy follows from names, contents and attributes of the tree alone: times of writing are at most this one
    /// and are those of access, too, and blocks of zeros become holes. `None`: times and holes are the originals'.
    pub latest: Option<Timestamp>,
}

/// A file to be made that is no folder.
pub(super) struct Node<'a> {
    pub kind: FileKind,
    /// For devices: their numbers, in the volume's encoding.
    pub rdev: u32,
    /// For symbolic links: where to.
    pub target: &'a [u8],
}

/// What a copy keeps of its original.
pub(super) struct Kept {
    pub kind: FileKind,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Makes files on `fs`.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    pub fs: &'a dyn FileSystem,
    pub cx: &'a Cx,
    pub how: CopyIn,
}

impl<'a> Maker<'a> {
    /// Makes a folder, or takes the one that is there; an empty name is the root.
    pub fn dir(&self, into: InodeNo, name: &[u8]) -> steadfs_vfs::Result<Held<'a>> {
        let (fs, cx) = (self.fs, self.cx);
        if name.is_empty() {
            return Held::root(fs, cx);
        }
        match fs.mkdir(cx, into, name, 0o700) {
            Ok(attr) => Ok(Held::counted(fs, attr)),
            Err(FsError::Exists) => {
                let there = child(fs, cx, into, name)?;
                match there.attr().kind {
                    FileKind::Directory => Ok(there),
                    _ => Err(FsError::Exists),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Takes away what is there, if that is asked for.
    pub fn make_room(&self, into: InodeNo, name: &[u8]) -> steadfs_vfs::Result<()> {
        if name.is_empty() {
            return Err(FsError::IsDir);
        }
        if !self.how.overwrite {
            return Ok(());
        }
        match self.fs.unlink(self.cx, into, name) {
            Ok(()) | Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives a file that was copied before a further name.
    pub fn link(&self, first: InodeNo, into: InodeNo, name: &[u8]) -> steadfs_vfs::Result<()> {
        let attr = self.fs.link(self.cx, first, into, name)?;
        drop(Held::counted(self.fs, attr));
        Ok(())
    }

    /// Makes a file, empty and for its owner only.
    pub fn file(
        &self,
        node: &Node<'_>,
        into: InodeNo,
        name: &[u8],
    ) -> steadfs_vfs::Result<Held<'a>> {
        let (fs, cx) = (self.fs, self.cx);
        let attr: Attr = if node.kind == FileKind::Symlink {
            fs.symlink(cx, into, name, node.target)?
        } else {
            let mode = node.kind.mode_bits() | 0o600;
            fs.mknod(cx, into, name, mode, node.rdev)?
        };
        Ok(Held::counted(fs, attr))
    }

    /// Writes all of `bytes`. A call may take a part of them: up to where the volume is full, or a file as large as
    /// it can be, and only the next call says so.
    pub fn write(&self, ino: InodeNo, at: u64, bytes: &[u8]) -> steadfs_vfs::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let offset = at.saturating_add(done as u64);
            match self.fs.write(self.cx, ino, offset, &bytes[done..], false)? {
                0 => return Err(FsError::NoSpace),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Lets a file end at `size`, if its data did not reach so far.
    pub fn end_at(&self, ino: InodeNo, size: u64) -> steadfs_vfs::Result<()> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.setattr(self.cx, ino, &set).map(drop)
    }

    /// Sets owner and permissions, then extended attributes, then times: each would undo a later one.
    pub fn keep(&self, ino: InodeNo, kept: Kept, path: &[u8], report: &mut Report) -> Result<()> {
        let (fs, cx) = (self.fs, self.cx);
        let owners = self.how.owners;
        let stranger = !owners && (kept.uid, kept.gid) != (0, 0);
        let perm = super::kept_perm(kept.kind, kept.perm, stranger);
        let set = SetAttr {
            perm: (kept.kind != FileKind::Symlink).then_some(perm),
            uid: Some(if owners { kept.uid } else { 0 }),
            gid: Some(if owners { kept.gid } else { 0 }),
            ..SetAttr::default()
        };
        fs.setattr(cx, ino, &set).on_volume(path)?;
        for (name, value) in kept.xattrs {
            match fs.setxattr(cx, ino, &name, &value, SetXattr::Any) {
                Ok(()) => {}
                Err(error @ (FsError::NotSupported(_) | FsError::NoSpace | FsError::TooBig)) => {
                    let shown = printable(&name);
                    report.warn(path, &format!("attribute {shown} was not kept: {error}"));
                }
                Err(error) => return Err(error).on_volume(path),
            }
        }
        let set = SetAttr {
            atime: Some(SetTime::At(kept.atime)),
            mtime: Some(SetTime::At(kept.mtime)),
            ..SetAttr::default()
        };
        fs.setattr(cx, ino, &set).on_volume(path)?;
        Ok(())
    }
}
