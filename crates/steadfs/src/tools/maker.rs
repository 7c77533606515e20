//! Makes files on a volume, for the copies into one.
//!
//! A file whose name is not in use yet, and whose inode number is not needed, is made by one call
//! ([`FileSystem::make`]), which the volume may answer later.

use std::collections::BTreeSet;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::acl::Acl;
use steadfs_vfs::{
    Attr, Cx, FileKind, FileSystem, FsError, Given, InodeFlags, NewFile, SetAttr, SetTime,
};

use super::copying::{CopyOptions, Existing, Log};
use super::output::Output;
use super::replacing::make_over;
use super::walk::{Held, child, leads_to, resolve};
use super::{At, LISTS, Result, SAME_FILE, refused};
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
    /// A source on the same volume, which the copy must not overwrite.
    pub source: Option<SourceFile<'a>>,
    /// Nothing has the name, and the copy's inode number is not needed.
    pub later: bool,
}

/// The source of a copy within one volume.
#[derive(Clone, Copy)]
pub(super) struct SourceFile<'a> {
    pub ino: InodeNo,
    /// The path of a symbolic link that is copied itself: the copy must not overwrite the file that it leads to, either.
    pub link: Option<&'a [u8]>,
}

/// What is known of the entries of a directory when it begins to be filled.
enum There {
    Nothing,
    These(BTreeSet<Vec<u8>>),
    /// Too many to keep.
    Unknown,
    /// The directory ignores case: several names are one. These files were made by the copy.
    Folded(BTreeSet<InodeNo>),
}

/// A directory of a volume that is being filled.
pub(super) struct Dir<'a> {
    pub held: Held<'a>,
    /// Whether it was made for the copy.
    pub made: bool,
    there: There,
}

impl Dir<'_> {
    /// Whether nothing had the name before the copy, which makes each name once.
    pub fn is_free(&self, name: &[u8]) -> bool {
        match &self.there {
            There::Nothing => true,
            There::These(names) => !names.contains(name),
            There::Unknown | There::Folded(_) => false,
        }
    }
}

/// Names of an existing directory that are kept, to find out which are free.
const NAMES_MAX: usize = 4096;

/// The value of an access list without entries. As in Linux, to set it removes the attribute.
const EMPTY_LIST: [u8; 4] = 2_u32.to_le_bytes();

/// The caller of copies: what it makes gets its original's access lists, and none of its directory's.
pub(super) fn copying(cx: &Cx) -> Cx {
    Cx {
        no_default_acl: true,
        ..cx.clone()
    }
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
    /// Makes a directory, or uses the existing one.
    pub fn dir(&self, spot: &CopyTarget<'_>) -> Result<Dir<'a>> {
        let (fs, cx) = (self.fs, self.cx);
        if spot.name.is_empty() {
            return Ok(self.existing(Held::root(fs, cx).on_volume(spot.path)?));
        }
        match fs.mkdir(cx, spot.into, spot.name, 0o700) {
            Ok(attr) => Ok(Dir {
                there: match attr.flags.contains(InodeFlags::CASEFOLD) {
                    true => There::Folded(BTreeSet::new()),
                    false => There::Nothing,
                },
                held: Held::counted(fs, attr),
                made: true,
            }),
            Err(FsError::Exists) => {
                let there = child(fs, cx, spot.into, spot.name).on_volume(spot.path)?;
                match there.attr().kind {
                    FileKind::Directory => Ok(self.existing(there)),
                    _ => refused(spot.path, "is no directory: not replaced by one"),
                }
            }
            Err(error) => Err(error).on_volume(spot.path),
        }
    }

    fn existing(&self, held: Held<'a>) -> Dir<'a> {
        let there = match held.attr().flags.contains(InodeFlags::CASEFOLD) {
            true => There::Folded(BTreeSet::new()),
            false => self.names(&held).map_or(There::Unknown, There::These),
        };
        Dir {
            held,
            made: false,
            there,
        }
    }

    /// Copies an entry of a directory by `copy`. In a directory that ignores case it must not destroy another entry of the
    /// same copy.
    pub fn apart<T>(
        &self,
        into: &mut Dir<'_>,
        spot: &CopyTarget<'_>,
        copy: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let There::Folded(made) = &mut into.there else {
            return copy();
        };
        let before = self.found(spot)?;
        if before
            .as_ref()
            .is_some_and(|found| made.contains(&found.ino()))
        {
            let why =
                "has the name of another copied file, as its directory ignores case: not copied";
            return refused(spot.path, why);
        }
        let copied = copy()?;
        let spared = self.options.existing == Existing::Skip && before.is_some();
        if !spared && let Some(found) = self.found(spot)? {
            made.insert(found.ino());
        }
        Ok(copied)
    }

    /// The names in a directory; `None` if they are not known or too many.
    fn names(&self, dir: &Held<'_>) -> Option<BTreeSet<Vec<u8>>> {
        let mut names = BTreeSet::new();
        let read = self.fs.readdir(self.cx, dir.ino(), 0, &mut |entry| {
            names.insert(entry.name.to_vec());
            names.len() <= NAMES_MAX
        });
        // An error is reported by the calls on the entries.
        (read.is_ok() && names.len() <= NAMES_MAX).then_some(names)
    }

    fn found(&self, spot: &CopyTarget<'_>) -> Result<Option<Held<'a>>> {
        match child(self.fs, self.cx, spot.into, spot.name) {
            Ok(held) => Ok(Some(held)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error).on_volume(spot.path),
        }
    }

    /// Whether the copy is skipped because the target exists.
    pub fn is_skipped(&self, spot: &CopyTarget<'_>, log: &mut Log<'_>) -> Result<bool> {
        log.check_stopped()?;
        let skips = self.options.existing == Existing::Skip;
        let looks = (skips || self.options.ask) && !spot.later;
        Ok(looks && self.found(spot)?.is_some() && (skips || !log.confirm(spot.path)))
    }

    /// Whether a target exists that a link, a special file or a further hard link replaces, if the options allow it.
    fn replaces(&self, spot: &CopyTarget<'_>) -> Result<bool> {
        if spot.name.is_empty() {
            return refused(spot.path, "is a directory: not replaced");
        }
        if matches!(self.options.existing, Existing::Refuse | Existing::Skip) {
            return Ok(false);
        }
        let Some(found) = self.found(spot)? else {
            return Ok(false);
        };
        if found.attr().kind == FileKind::Directory {
            return refused(spot.path, "is a directory: not replaced");
        }
        self.spare_source(&found, spot)?;
        Ok(true)
    }

    /// Refuses to replace or overwrite the source itself, as cp(1).
    fn spare_source(&self, found: &Held<'_>, spot: &CopyTarget<'_>) -> Result<()> {
        let Some(source) = spot.source else {
            return Ok(());
        };
        let leads_there = |link| leads_to(self.fs, self.cx, link, found.attr());
        let same = source.ino == found.ino() || source.link.is_some_and(leads_there);
        match same {
            true => refused(spot.path, SAME_FILE),
            false => Ok(()),
        }
    }

    /// Removes an existing target, if the options allow it, for a new file.
    fn clear(&self, spot: &CopyTarget<'_>) -> Result<()> {
        if self.replaces(spot)? {
            let removed = self.fs.unlink(self.cx, spot.into, spot.name);
            removed.on_volume(spot.path)?;
        }
        Ok(())
    }

    /// Makes a file by `make`, in the place of an existing one if the options allow it.
    fn put(
        &self,
        spot: &CopyTarget<'_>,
        make: impl Fn(&[u8]) -> steadfs_vfs::Result<Attr>,
    ) -> Result<Held<'a>> {
        let attr = match self.replaces(spot)? {
            true => make_over(self.fs, self.cx, (spot.into, spot.name), make),
            false => make(spot.name),
        };
        Ok(Held::counted(self.fs, attr.on_volume(spot.path)?))
    }

    /// Whether a copy is what the name itself refers to, with no other name: the target that the user named may be a link to
    /// the file that was written, or one of its names.
    pub fn is_only_name(&self, spot: &CopyTarget<'_>, made: &Held<'_>) -> Result<bool> {
        let is_it = |found: Held<'_>| found.ino() == made.ino() && found.attr().nlink == 1;
        Ok(!spot.top || self.found(spot)?.is_some_and(is_it))
    }

    /// Adds a hard link to a file that was copied before.
    pub fn link(&self, first: InodeNo, spot: &CopyTarget<'_>) -> Result<()> {
        if self.found(spot)?.is_some_and(|found| found.ino() == first) {
            return Ok(());
        }
        let link = |name: &[u8]| self.fs.link(self.cx, first, spot.into, name);
        self.put(spot, link).map(drop)
    }

    /// Makes a link or special file. Returns it if its inode number can be needed.
    pub fn special(
        &self,
        node: &Node<'_>,
        spot: &CopyTarget<'_>,
        kept: Kept,
        log: &mut Log<'_>,
    ) -> Result<Option<Held<'a>>> {
        if spot.later {
            let given = self.given(kept, spot.path);
            let new = NewFile {
                kind: node.kind,
                rdev: node.rdev,
                target: node.target,
                runs: &[],
                size: 0,
                given: &given,
            };
            self.make_all(&new, spot, log)?;
            return Ok(None);
        }
        let made = self.put(spot, |name| self.make(node, spot.into, name))?;
        self.keep(made.ino(), kept, spot.path, log);
        Ok(Some(made))
    }

    /// Makes a file with all that it has.
    pub fn make_all(
        &self,
        new: &NewFile<'_>,
        spot: &CopyTarget<'_>,
        log: &mut Log<'_>,
    ) -> Result<()> {
        let made = self.fs.make(self.cx, spot.into, spot.name, new);
        log.made(self.fs, spot.path, new.given, made)
    }

    fn make(&self, node: &Node<'_>, dir: InodeNo, name: &[u8]) -> steadfs_vfs::Result<Attr> {
        let (fs, cx) = (self.fs, self.cx);
        match node.kind {
            FileKind::Symlink => fs.symlink(cx, dir, name, node.target),
            kind => fs.mknod(cx, dir, name, kind.mode_bits() | 0o600, node.rdev),
        }
    }

    fn create(&self, spot: &CopyTarget<'_>) -> Result<Held<'a>> {
        let node = Node {
            kind: FileKind::Regular,
            rdev: 0,
            target: &[],
        };
        let attr = self.make(&node, spot.into, spot.name);
        Ok(Held::counted(self.fs, attr.on_volume(spot.path)?))
    }

    /// Makes a regular file, or uses the existing one. Returns whether it was made.
    pub fn open(&self, spot: &CopyTarget<'_>) -> Result<(Held<'a>, bool)> {
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
        self.spare_source(&found, spot)?;
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

    /// Gives a directory its attributes, after it is filled.
    pub fn keep_of_dir(&self, dir: &Dir<'_>, kept: Kept, path: &[u8], log: &mut Log<'_>) {
        match dir.made {
            true => self.keep(dir.held.ino(), kept, path, log),
            false => self.keep_exactly(dir.held.ino(), kept, path, log),
        }
    }

    /// As [`Maker::keep`], where the file was there before: it loses the access lists that it had.
    pub fn keep_exactly(&self, ino: InodeNo, kept: Kept, path: &[u8], log: &mut Log<'_>) {
        let names = self.fs.listxattr(self.cx, ino);
        // What cannot be listed may be there.
        let had = |list: &[u8]| {
            names
                .as_ref()
                .is_ok_and(|names| names.iter().any(|name| name == list))
        };
        let mut given = self.given(kept, path);
        if had(LISTS[1]) {
            let none = (LISTS[1].to_vec(), EMPTY_LIST.to_vec());
            given.xattrs.insert(0, none);
        }
        if let Some(perm) = given.owner.perm.filter(|_| had(LISTS[0])) {
            // Until it is removed or replaced, the group's bits are its mask.
            given.owner.perm = Some(perm & !0o070);
            if !given.xattrs.iter().any(|(name, _)| name == LISTS[0]) {
                let only_bits = Acl::of_mode(perm).to_xattr();
                given.xattrs.push((LISTS[0].to_vec(), only_bits));
            }
        }
        self.give(ino, &given, path, log);
    }

    /// Gives a file its attributes. A failure is reported, and the copy stays.
    pub fn keep(&self, ino: InodeNo, kept: Kept, path: &[u8], log: &mut Log<'_>) {
        self.give(ino, &self.given(kept, path), path, log);
    }

    fn give(&self, ino: InodeNo, given: &Given, path: &[u8], log: &mut Log<'_>) {
        let done = self.fs.give(self.cx, ino, given);
        log.given(self.fs, path, given, done);
    }

    /// What a file gets of its original's attributes.
    pub fn given(&self, mut kept: Kept, path: &[u8]) -> Given {
        if let Some(rules) = self.rules {
            kept.change(rules, path);
        }
        let owners = self.options.owners;
        let stranger = !owners && (kept.uid, kept.gid) != (0, 0);
        let perm = super::kept_perm(kept.kind, kept.perm, stranger);
        let list = kept.xattrs.iter().find(|(name, _)| name == LISTS[0]);
        let perm = list.map_or(perm, |(_, list)| super::perm_without_list(perm, Some(list)));
        let owner = SetAttr {
            perm: (kept.kind != FileKind::Symlink).then_some(perm),
            uid: Some(if owners { kept.uid } else { 0 }),
            gid: Some(if owners { kept.gid } else { 0 }),
            ..SetAttr::default()
        };
        let times = kept.times.map(|(mut atime, mut mtime)| {
            if let Some(latest) = self.options.latest {
                // Reading the tree, as the last copy did, changes the times of access.
                mtime = mtime.min(latest);
                atime = mtime;
            }
            SetAttr {
                atime: Some(SetTime::At(atime)),
                mtime: Some(SetTime::At(mtime)),
                ..SetAttr::default()
            }
        });
        Given {
            owner,
            xattrs: kept.xattrs,
            times,
        }
    }

    /// Copies what `read` writes to a regular file, which gets the attributes `kept`. On an error a new file is removed.
    /// Returns the file if its inode number can be needed.
    pub fn regular(
        &self,
        spot: CopyTarget<'_>,
        log: &mut Log<'_>,
        read: impl FnOnce(&mut Output<'_, '_>, &mut Log<'_>) -> Result<u64>,
        kept: impl FnOnce(&mut Log<'_>) -> Kept,
    ) -> Result<Option<Held<'a>>> {
        let mut output = Output::new(*self, spot);
        let written = read(&mut output, log).and_then(|size| output.finish(size));
        match written {
            Ok(()) => {
                let kept = output.keeps().then(|| kept(log));
                output.end(kept, log)
            }
            Err(error) => {
                output.discard();
                Err(error)
            }
        }
    }
}
