//! Makes files on a volume, for the copies into one.

use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, SetAttr, SetTime, SetXattr};

use super::copying::{CopyOptions, Existing, Log};
use super::printable;
use super::walk::{Held, child, resolve};
use super::{At, Result, refused};
use crate::owners::{OwnerRules, Ruled};

/// A file to make that is not a directory.
pub(super) struct Node<'a> {
    pub kind: FileKind,
    /// For devices: their numbers, in the volume's encoding.
    pub rdev: u32,
    /// For symbolic links: the target.
    pub target: &'a [u8],
}

/// The attributes that a copy keeps of its original.
pub(super) struct Kept {
    pub kind: FileKind,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    /// Access and modification; `None` for a source without times of its own, such as a pipe.
    pub times: Option<(Timestamp, Timestamp)>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Kept {
    fn change(&mut self, rules: &OwnerRules, path: &[u8]) {
        let file = Ruled {
            kind: self.kind,
            perm: &mut self.perm,
            uid: &mut self.uid,
            gid: &mut self.gid,
            xattrs: &mut self.xattrs,
        };
        rules.apply(path, file);
    }
}

/// The target of a copy on a volume. An empty `name` is the root itself.
#[derive(Clone, Copy)]
pub(super) struct CopyTarget<'a> {
    pub into: InodeNo,
    pub name: &'a [u8],
    pub path: &'a [u8],
    /// The target that the user named: links are followed only there.
    pub top: bool,
    /// The inode of a source on the same volume, which the copy must not overwrite.
    pub source: Option<InodeNo>,
}

/// Makes files on `fs`.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    pub fs: &'a dyn FileSystem,
    pub cx: &'a Cx,
    pub options: CopyOptions,
    /// Owners and labels that files get in place of their own.
    pub rules: Option<&'a OwnerRules>,
}

impl<'a> Maker<'a> {
    /// Makes a directory, or uses the existing one. Returns whether it was made.
    pub fn dir(&self, spot: &CopyTarget<'_>) -> Result<(Held<'a>, bool)> {
        let (fs, cx) = (self.fs, self.cx);
        if spot.name.is_empty() {
            return Ok((Held::root(fs, cx).on_volume(spot.path)?, false));
        }
        match fs.mkdir(cx, spot.into, spot.name, 0o700) {
            Ok(attr) => Ok((Held::counted(fs, attr), true)),
            Err(FsError::Exists) => {
                let there = child(fs, cx, spot.into, spot.name).on_volume(spot.path)?;
                match there.attr().kind {
                    FileKind::Directory => Ok((there, false)),
                    _ => refused(spot.path, "is no directory: not replaced by one"),
                }
            }
            Err(error) => Err(error).on_volume(spot.path),
        }
    }

    fn found(&self, spot: &CopyTarget<'_>) -> Result<Option<Held<'a>>> {
        match child(self.fs, self.cx, spot.into, spot.name) {
            Ok(held) => Ok(Some(held)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error).on_volume(spot.path),
        }
    }

    /// Whether the copy is skipped because the target exists.
    pub fn is_skipped(&self, spot: &CopyTarget<'_>) -> Result<bool> {
        Ok(self.options.existing == Existing::Skip && self.found(spot)?.is_some())
    }

    /// Removes an existing target, if the options allow it, for a link, a special file or a further hard link.
    fn clear(&self, spot: &CopyTarget<'_>) -> Result<()> {
        if spot.name.is_empty() {
            return refused(spot.path, "is a directory: not replaced");
        }
        if matches!(self.options.existing, Existing::Refuse | Existing::Skip) {
            return Ok(());
        }
        let Some(found) = self.found(spot)? else {
            return Ok(());
        };
        if found.attr().kind == FileKind::Directory {
            return refused(spot.path, "is a directory: not replaced");
        }
        spare_source(&found, spot)?;
        let removed = self.fs.unlink(self.cx, spot.into, spot.name);
        removed.on_volume(spot.path)
    }

    /// Adds a hard link to a file that was copied before.
    pub fn link(&self, first: InodeNo, spot: &CopyTarget<'_>) -> Result<()> {
        if self.found(spot)?.is_some_and(|found| found.ino() == first) {
            return Ok(());
        }
        self.clear(spot)?;
        let attr = self.fs.link(self.cx, first, spot.into, spot.name);
        drop(Held::counted(self.fs, attr.on_volume(spot.path)?));
        Ok(())
    }

    /// Makes a link or special file, accessible to its owner only.
    pub fn special(&self, node: &Node<'_>, spot: &CopyTarget<'_>) -> Result<Held<'a>> {
        self.clear(spot)?;
        self.make(node, spot)
    }

    fn make(&self, node: &Node<'_>, spot: &CopyTarget<'_>) -> Result<Held<'a>> {
        let (fs, cx, dir, name) = (self.fs, self.cx, spot.into, spot.name);
        let attr: Attr = match node.kind {
            FileKind::Symlink => fs.symlink(cx, dir, name, node.target),
            kind => fs.mknod(cx, dir, name, kind.mode_bits() | 0o600, node.rdev),
        }
        .on_volume(spot.path)?;
        Ok(Held::counted(fs, attr))
    }

    fn create(&self, spot: &CopyTarget<'_>) -> Result<Held<'a>> {
        let node = Node {
            kind: FileKind::Regular,
            rdev: 0,
            target: &[],
        };
        self.make(&node, spot)
    }

    /// Makes a regular file, or uses the existing one. Returns whether it was made.
    fn open(&self, spot: &CopyTarget<'_>) -> Result<(Held<'a>, bool)> {
        if spot.name.is_empty() {
            return refused(spot.path, "is a directory: not replaced by a file");
        }
        let options = &self.options;
        let found = match options.existing {
            Existing::Refuse | Existing::Skip => None,
            _ => self.found(spot)?,
        };
        let Some(mut found) = found else {
            return Ok((self.create(spot)?, true));
        };
        // A copy that keeps hard links must not write into a file with other names.
        let is_file = found.attr().kind == FileKind::Regular;
        let alone = options.preserve && is_file && found.attr().nlink > 1;
        if options.existing == Existing::Replace || alone {
            self.clear(spot)?;
            return Ok((self.create(spot)?, true));
        }
        if found.attr().kind == FileKind::Symlink && spot.top {
            found = match resolve(self.fs, self.cx, spot.path, true) {
                Err(FsError::NotFound) => {
                    let why = "not written through a symbolic link that leads nowhere";
                    return refused(spot.path, why);
                }
                found => found.on_volume(spot.path)?,
            };
        }
        match found.attr().kind {
            FileKind::Regular => {}
            FileKind::Directory => {
                return refused(spot.path, "is a directory: not replaced by a file");
            }
            _ => {
                let why =
                    "is a link or special file: not written to; --remove-destination replaces it";
                return refused(spot.path, why);
            }
        }
        spare_source(&found, spot)?;
        let opened = self.fs.open(self.cx, found.ino(), true);
        opened.on_volume(spot.path)?;
        let empty = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        let emptied = self.fs.setattr(self.cx, found.ino(), &empty);
        emptied.on_volume(spot.path)?;
        Ok((found, false))
    }

    /// Sets owner and permissions, then extended attributes, then times: each changes those after it. A failure is
    /// reported, and the copy stays.
    pub fn keep(&self, ino: InodeNo, mut kept: Kept, path: &[u8], log: &mut Log<'_>) {
        if let Some(rules) = self.rules {
            kept.change(rules, path);
        }
        let (fs, cx) = (self.fs, self.cx);
        let owners = self.options.owners;
        let stranger = !owners && (kept.uid, kept.gid) != (0, 0);
        let perm = super::kept_perm(kept.kind, kept.perm, stranger);
        let set = SetAttr {
            perm: (kept.kind != FileKind::Symlink).then_some(perm),
            uid: Some(if owners { kept.uid } else { 0 }),
            gid: Some(if owners { kept.gid } else { 0 }),
            ..SetAttr::default()
        };
        if let Err(error) = fs.setattr(cx, ino, &set) {
            log.not_kept(path, "owner and mode", &error);
        }
        for (name, value) in kept.xattrs {
            if let Err(error) = fs.setxattr(cx, ino, &name, &value, SetXattr::Any) {
                log.not_kept(path, &format!("attribute {}", printable(&name)), &error);
            }
        }
        let Some((mut atime, mut mtime)) = kept.times else {
            return;
        };
        if let Some(latest) = self.options.latest {
            // Reading the tree, as the last copy did, changes the times of access.
            mtime = mtime.min(latest);
            atime = mtime;
        }
        let set = SetAttr {
            atime: Some(SetTime::At(atime)),
            mtime: Some(SetTime::At(mtime)),
            ..SetAttr::default()
        };
        if let Err(error) = fs.setattr(cx, ino, &set) {
            log.not_kept(path, "time", &error);
        }
    }
}

fn spare_source(found: &Held<'_>, spot: &CopyTarget<'_>) -> Result<()> {
    match spot.source == Some(found.ino()) {
        true => refused(spot.path, "source and target are the same file"),
        false => Ok(()),
    }
}

/// A regular file on a volume that is being written. It is created, or the existing one truncated, after the first read,
/// so that an unreadable source destroys no file.
pub(super) struct Output<'a, 's> {
    maker: Maker<'a>,
    spot: CopyTarget<'s>,
    /// The file, and whether it was made for this copy.
    open: Option<(Held<'a>, bool)>,
    end: u64,
}

impl<'a, 's> Output<'a, 's> {
    pub fn new(maker: Maker<'a>, spot: CopyTarget<'s>) -> Self {
        Self {
            maker,
            spot,
            open: None,
            end: 0,
        }
    }

    fn ino(&mut self) -> Result<InodeNo> {
        if let Some((held, _)) = &self.open {
            return Ok(held.ino());
        }
        let opened = self.maker.open(&self.spot)?;
        Ok(self.open.insert(opened).0.ino())
    }

    /// Writes all of `bytes`. A short write (a full volume, the largest file size) is continued, and the next call fails.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let ino = self.ino()?;
        let Maker { fs, cx, .. } = self.maker;
        let mut done = 0;
        while done < bytes.len() {
            let offset = at.saturating_add(done as u64);
            let written = match fs.write(cx, ino, offset, &bytes[done..], false) {
                Ok(0) => Err(FsError::NoSpace),
                written => written,
            };
            done += written.on_volume(self.spot.path)?;
        }
        self.end = self.end.max(at.saturating_add(bytes.len() as u64));
        Ok(())
    }

    /// Ends the file at `size`, if its data did not reach so far. Returns its inode number.
    pub fn finish(&mut self, size: u64) -> Result<InodeNo> {
        let ino = self.ino()?;
        if self.end < size {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            let set = self.maker.fs.setattr(self.maker.cx, ino, &set);
            set.on_volume(self.spot.path)?;
        }
        Ok(ino)
    }

    /// Whether the file gets its original's attributes.
    pub fn keeps(&self) -> bool {
        let made = self.open.as_ref().is_some_and(|(_, made)| *made);
        made || self.maker.options.preserve
    }

    /// Returns the file.
    pub fn into_held(self) -> Option<Held<'a>> {
        self.open.map(|(held, _)| held)
    }

    /// Removes a file that was created for a failed copy. A file that existed before stays, with its current content.
    pub fn discard(self) {
        if let Some((_, true)) = self.open {
            let Maker { fs, cx, .. } = self.maker;
            // The copy's own error is the one to report.
            let _ = fs.unlink(cx, self.spot.into, self.spot.name);
        }
    }
}
