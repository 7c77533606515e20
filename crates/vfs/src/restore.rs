//! Restoring a recorded state, whatever the format.
//!
//! **Problem.** The volume has any crash-consistent part of the recorded changes. A recorded name may lead to an inode
//! that was freed since, a number may belong to another inode, a directory may be where its later parent is below it.
//! The restoration itself may be interrupted: by the end of the server, after which it is repeated, or by a power cut,
//! after which a plain mount must find a consistent volume with every file that has a name at the end.
//!
//! **Rule.** Every step leaves a consistent volume. First all names that lead elsewhere than recorded are removed; an
//! inode that would lose its last name, but has one at the end, is moved *aside*, to a name in the root directory. After
//! that every name is a final one or aside, so directories are moved to their places from the root downwards, and no
//! order of moves can form a loop. A file, or a directory that stays in its parent, is moved to a final name at once if
//! that is free: a power cut then leaves no name aside. Inodes that are gone are freed before their numbers are given to
//! new ones. Contents
//! and attributes follow the names.

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::{Corruption, InodeNo};

use crate::recorded::{RecordedChange, RecordedFile, RecordedInode, RecordedState};
use crate::{Cx, FileKind, FileSystem, FsError, InodeFlags, Result, SetAttr, SetXattr};

/// A name aside is this with the inode's number.
const ASIDE: &[u8] = b".steadfs-restore-";

/// An inode on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundInode {
    /// Its generation.
    pub generation: u32,
    /// Its type.
    pub kind: FileKind,
    /// Its link count; 0: an orphan.
    pub links: u32,
}

/// What a volume provides for a restoration. Nothing is checked but what keeps the volume consistent: neither
/// permissions nor flags nor whether a directory is empty. Times of directories stay. After each call, and after a crash
/// in it, the volume is consistent.
pub trait RestoreVolume: FileSystem {
    /// The inode of this number; `None`: it is free.
    fn find_inode(&self, ino: InodeNo) -> Result<Option<FoundInode>>;
    /// The inode that a name leads to.
    fn find_entry(&self, dir: InodeNo, name: &[u8]) -> Result<Option<InodeNo>>;
    /// All names of a directory but the dots, without a change of its access time.
    fn list_entries(&self, dir: InodeNo) -> Result<Vec<(Vec<u8>, InodeNo)>>;
    /// Adds a name of an inode, which is no orphan afterwards.
    fn insert_entry(&self, dir: InodeNo, name: &[u8], ino: InodeNo) -> Result<()>;
    /// Removes a name; without names the inode becomes an orphan, and is not freed.
    fn remove_entry(&self, dir: InodeNo, name: &[u8]) -> Result<()>;
    /// Moves a name to where there is none.
    fn move_entry(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8])) -> Result<()>;
    /// Keeps these numbers for inodes that [`RestoreVolume::make_inode`] will make.
    fn keep_numbers(&self, _missing: &[InodeNo]) {}
    /// The inode that uses this number, which no inode has, for something else that it frees when it gets its recorded
    /// contents and attributes.
    fn number_owner(&self, _ino: InodeNo) -> Result<Option<InodeNo>> {
        Ok(None)
    }
    /// Frees an orphan, in use or not. The number keeps its lookup count.
    fn free_inode(&self, ino: InodeNo) -> Result<()>;
    /// Makes an inode of this number as an orphan without content, but with a link's target.
    fn make_inode(&self, ino: InodeNo, file: &RecordedFile) -> Result<()>;
    /// Adopts an orphan that is in use ([`crate::inode_marks::InodeMarks::adopt_orphan`]).
    fn adopt_orphan(&self, ino: InodeNo) -> Result<()>;
    /// Sets all attributes but the size and the link count, and the flags and project.
    fn set_attributes(&self, ino: InodeNo, file: &RecordedFile) -> Result<()>;
}

/// What becomes of an inode on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndState {
    /// Nothing is recorded of it.
    Unrecorded,
    /// It is freed.
    Dies,
    /// It is in use without a name.
    Unlinked,
    /// It has names.
    Named,
}

/// A name in a directory.
type Name = (InodeNo, Vec<u8>);

struct Restoration<'a, V: ?Sized> {
    volume: &'a V,
    state: &'a RecordedState,
    cx: Cx,
    /// Inodes on the volume that are to be freed.
    dying: BTreeSet<InodeNo>,
    /// Names on the volume that are to be removed, with the inodes that they lead to.
    wrong: BTreeMap<Name, InodeNo>,
    /// Names to be added, by directory.
    missing: BTreeMap<InodeNo, BTreeMap<Vec<u8>, InodeNo>>,
    /// For inodes with missing names, one of them that is free in a directory that stays.
    free: BTreeMap<InodeNo, Name>,
    /// Inodes aside, with their names in the root directory.
    aside: BTreeMap<InodeNo, Vec<u8>>,
}

/// Brings the volume to the recorded state: see [`FileSystem::restore`].
///
/// # Errors
/// The record contradicts itself or the volume; or an error of the volume.
pub fn restore<V: RestoreVolume + ?Sized>(volume: &V, state: &RecordedState) -> Result<()> {
    if state.inodes.is_empty() && state.names.is_empty() {
        return Ok(());
    }
    let cx = Cx {
        fsetid: true,
        admin: true,
        ..Cx::default()
    };
    let mut all = Restoration {
        volume,
        state,
        cx,
        dying: BTreeSet::new(),
        wrong: BTreeMap::new(),
        missing: BTreeMap::new(),
        free: BTreeMap::new(),
        aside: BTreeMap::new(),
    };
    volume.keep_numbers(&all.find_dying()?);
    all.compare_names()?;
    all.find_aside()?;
    all.remove_wrong()?;
    all.free_dying()?;
    all.make_missing()?;
    all.insert_missing()?;
    for (ino, file) in state.files() {
        all.check_links(ino, file)?;
        all.fill(ino, file)?;
        if file.attr.nlink == 0 {
            volume.adopt_orphan(ino)?;
        }
    }
    volume.sync_all(&all.cx)?;
    for (ino, _) in state.files() {
        volume.forget(ino, 1);
    }
    Ok(())
}

impl<V: RestoreVolume + ?Sized> Restoration<'_, V> {
    fn end_state(&self, ino: InodeNo, found: &FoundInode) -> EndState {
        match self.state.inodes.get(&ino) {
            None if self.state.unlinked.contains(&ino) => EndState::Unlinked,
            None => EndState::Unrecorded,
            Some(RecordedInode::Free) => EndState::Dies,
            Some(RecordedInode::InUse(file)) if !is_same(file, found) => EndState::Dies,
            Some(RecordedInode::InUse(file)) if file.attr.nlink == 0 => EndState::Unlinked,
            Some(RecordedInode::InUse(_)) => EndState::Named,
        }
    }

    fn found(&self, ino: InodeNo) -> Result<FoundInode> {
        let found = self.volume.find_inode(ino)?;
        found.ok_or_else(|| contradiction("has a name, but is free", ino))
    }

    /// Finds the inodes to be freed; returns those to be made.
    fn find_dying(&mut self) -> Result<Vec<InodeNo>> {
        let mut missing = Vec::new();
        for (&ino, inode) in &self.state.inodes {
            let found = self.volume.find_inode(ino)?;
            let dies = found.is_some_and(|found| self.end_state(ino, &found) == EndState::Dies);
            if dies {
                self.dying.insert(ino);
            }
            if (dies || found.is_none()) && matches!(inode, RecordedInode::InUse(_)) {
                missing.push(ino);
            }
        }
        Ok(missing)
    }

    /// Finds names that lead elsewhere than recorded, and all names in directories that are removed.
    fn compare_names(&mut self) -> Result<()> {
        for ((dir, name), &want) in &self.state.names {
            let found = self.volume.find_inode(*dir)?;
            let stays = found.is_some_and(|found| found.links > 0) && !self.dying.contains(dir);
            let there = match found {
                Some(_) if self.dying.contains(dir) => None,
                Some(found) if found.kind != FileKind::Directory => {
                    return Err(contradiction("has names, but is no directory", *dir));
                }
                Some(_) => self.volume.find_entry(*dir, name)?,
                None => None,
            };
            if there == want && !there.is_some_and(|ino| self.dying.contains(&ino)) {
                continue;
            }
            if let Some(ino) = there {
                self.wrong.insert((*dir, name.clone()), ino);
            }
            if let Some(ino) = want {
                let names = self.missing.entry(*dir).or_default();
                names.insert(name.clone(), ino);
                if stays && there.is_none() {
                    self.free.insert(ino, (*dir, name.clone()));
                }
            }
        }
        let mut removed: Vec<InodeNo> = self.dying.iter().copied().collect();
        let unlinked = self.state.files().filter(|(_, file)| file.attr.nlink == 0);
        removed.extend(unlinked.map(|(ino, _)| ino));
        for dir in removed {
            let found = self.volume.find_inode(dir)?;
            if found.is_some_and(|found| found.kind == FileKind::Directory) {
                for (name, ino) in self.volume.list_entries(dir)? {
                    self.wrong.insert((dir, name), ino);
                }
            }
        }
        Ok(())
    }

    /// Finds the inodes that an interrupted restoration has moved aside.
    fn find_aside(&mut self) -> Result<()> {
        let root = self.volume.root();
        for (name, ino) in self.volume.list_entries(root)? {
            if name != aside_name(ino) || self.state.names.contains_key(&(root, name.clone())) {
                continue;
            }
            let found = self.found(ino)?;
            match self.end_state(ino, &found) {
                EndState::Unrecorded => {}
                EndState::Named => {
                    self.aside.insert(ino, name);
                }
                EndState::Dies | EndState::Unlinked => {
                    self.wrong.insert((root, name), ino);
                }
            }
        }
        Ok(())
    }

    /// Removes the wrong names: those in a directory that is removed before its own.
    fn remove_wrong(&mut self) -> Result<()> {
        let count = self.wrong.len();
        while let Some(first) = self.wrong.keys().next() {
            let mut path = vec![first.clone()];
            while let Some(last) = path.last() {
                let ino = self.wrong[last];
                let inside = self.wrong.range((ino, Vec::new())..).next();
                let inside = inside.map(|(name, _)| name).filter(|name| name.0 == ino);
                match inside {
                    Some(inside) if path.len() <= count => path.push(inside.clone()),
                    Some(_) => return Err(contradiction("is a directory in itself", ino)),
                    None => {
                        let name = path.pop().expect("it has a last one");
                        self.wrong.remove(&name);
                        self.remove(&name, ino)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, (dir, name): &Name, ino: InodeNo) -> Result<()> {
        let found = self.found(ino)?;
        let is_dir = found.kind == FileKind::Directory;
        let end = self.end_state(ino, &found);
        if end == EndState::Named && (is_dir || found.links == 1) {
            let free = self.free.remove(&ino);
            // No move within a directory forms a loop.
            if let Some((to_dir, to)) = free.filter(|(to_dir, _)| !is_dir || to_dir == dir) {
                self.volume.move_entry((*dir, name), (to_dir, &to))?;
                if let Some(names) = self.missing.get_mut(&to_dir) {
                    names.remove(&to);
                }
                return Ok(());
            }
            let aside = aside_name(ino);
            let root = self.volume.root();
            self.volume.move_entry((*dir, name), (root, &aside))?;
            self.aside.insert(ino, aside);
            return Ok(());
        }
        if end == EndState::Unrecorded {
            // Made by a call that was not acknowledged.
            if is_dir && !self.volume.list_entries(ino)?.is_empty() {
                return Err(contradiction(
                    "is a directory to be removed, with names",
                    ino,
                ));
            }
            if is_dir || found.links == 1 {
                self.dying.insert(ino);
            }
        }
        self.volume.remove_entry(*dir, name)
    }

    /// Frees the inodes that are gone. Their numbers and blocks can be used again when that is durable.
    fn free_dying(&self) -> Result<()> {
        for &ino in &self.dying {
            match self.volume.find_inode(ino)? {
                Some(found) if found.links > 0 => {
                    return Err(contradiction(
                        "is freed, but has a name that is not recorded",
                        ino,
                    ));
                }
                Some(_) => self.volume.free_inode(ino)?,
                None => {}
            }
        }
        match self.dying.is_empty() {
            true => Ok(()),
            false => self.volume.sync_all(&self.cx),
        }
    }

    fn make_missing(&self) -> Result<()> {
        let mut owners = BTreeSet::new();
        for (ino, _) in self.state.files() {
            if self.volume.find_inode(ino)?.is_none() {
                owners.extend(self.volume.number_owner(ino)?);
            }
        }
        for &owner in &owners {
            match self.state.inodes.get(&owner) {
                Some(RecordedInode::InUse(file)) => self.fill(owner, file)?,
                _ => return Err(contradiction("has the number of another inode", owner)),
            }
        }
        if !owners.is_empty() {
            self.volume.sync_all(&self.cx)?;
        }
        for (ino, file) in self.state.files() {
            if self.volume.find_inode(ino)?.is_none() {
                self.volume.make_inode(ino, file)?;
            }
        }
        Ok(())
    }

    /// Adds names, first those in directories that have a name themselves.
    fn insert_missing(&mut self) -> Result<()> {
        let mut ready = Vec::new();
        for &dir in self.missing.keys() {
            if self.found(dir)?.links > 0 {
                ready.push(dir);
            }
        }
        while let Some(dir) = ready.pop() {
            for (name, ino) in self.missing.remove(&dir).unwrap_or_default() {
                let found = self.found(ino)?;
                let is_dir = found.kind == FileKind::Directory;
                let aside = self.aside.remove(&ino);
                match aside {
                    Some(aside) => {
                        let root = self.volume.root();
                        self.volume.move_entry((root, &aside), (dir, &name))?;
                    }
                    None if is_dir && found.links > 0 => {
                        return Err(contradiction("is a directory with two names", ino));
                    }
                    None => self.volume.insert_entry(dir, &name, ino)?,
                }
                if is_dir && self.missing.contains_key(&ino) && found.links == 0 {
                    ready.push(ino);
                }
            }
        }
        match (self.missing.keys().next(), self.aside.keys().next()) {
            (Some(&dir), _) => Err(contradiction("has names, but no name itself", dir)),
            (None, Some(&ino)) => Err(contradiction("has links, but no name", ino)),
            (None, None) => Ok(()),
        }
    }

    fn check_links(&self, ino: InodeNo, file: &RecordedFile) -> Result<()> {
        let links = self.found(ino)?.links;
        // A directory with too many subdirectories has one link.
        let uncounted =
            file.attr.kind == FileKind::Directory && (links == 1 || file.attr.nlink == 1);
        if links != file.attr.nlink && !uncounted {
            let what = format!("has {links} links instead of {}", file.attr.nlink);
            return Err(contradiction(what, ino));
        }
        Ok(())
    }

    /// Restores contents, extended attributes and attributes.
    fn fill(&self, ino: InodeNo, file: &RecordedFile) -> Result<()> {
        self.allow_changes(ino)?;
        for change in &file.contents {
            self.change(ino, change)?;
        }
        if file.attr.kind == FileKind::Regular
            && self.volume.getattr(&self.cx, ino)?.size != file.attr.size
        {
            self.resize(ino, file.attr.size)?;
        }
        self.restore_xattrs(ino, file)?;
        self.volume.set_attributes(ino, file)
    }

    /// Clears flags that forbid changes. [`RestoreVolume::set_attributes`] sets them again.
    fn allow_changes(&self, ino: InodeNo) -> Result<()> {
        const FORBID: u32 = InodeFlags::IMMUTABLE.0 | InodeFlags::APPEND.0;
        let flags = self.volume.flags(&self.cx, ino)?.flags.0;
        match flags & FORBID {
            0 => Ok(()),
            _ => self
                .volume
                .set_flags(&self.cx, ino, InodeFlags(flags & !FORBID)),
        }
    }

    fn change(&self, ino: InodeNo, change: &RecordedChange) -> Result<()> {
        match change {
            RecordedChange::Bytes(offset, bytes) => {
                let (mut offset, mut bytes) = (*offset, &bytes[..]);
                while !bytes.is_empty() {
                    let written = self.volume.write(&self.cx, ino, offset, bytes, false)?;
                    if written == 0 {
                        return Err(FsError::NoSpace);
                    }
                    offset += written as u64;
                    bytes = &bytes[written..];
                }
                Ok(())
            }
            RecordedChange::Size(size) => self.resize(ino, *size),
            RecordedChange::Range(mode, offset, len) => {
                self.volume.fallocate(&self.cx, ino, *mode, *offset, *len)
            }
        }
    }

    fn resize(&self, ino: InodeNo, size: u64) -> Result<()> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.volume.setattr(&self.cx, ino, &set).map(|_| ())
    }

    /// Removes attributes before it sets others, the largest first, so that they fit.
    fn restore_xattrs(&self, ino: InodeNo, file: &RecordedFile) -> Result<()> {
        let mut sets = Vec::new();
        for (name, want) in &file.xattrs {
            let there = match self.volume.getxattr(&self.cx, ino, name) {
                Ok(value) => Some(value),
                Err(FsError::NoData) => None,
                Err(error) => return Err(error),
            };
            if there == *want {
                continue;
            }
            if there.is_some() {
                self.volume.removexattr(&self.cx, ino, name)?;
            }
            sets.extend(want.as_ref().map(|value| (name, value)));
        }
        sets.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
        for (name, value) in sets {
            let (volume, cx) = (self.volume, &self.cx);
            volume.setxattr(cx, ino, name, value, SetXattr::Any)?;
        }
        Ok(())
    }
}

fn is_same(file: &RecordedFile, found: &FoundInode) -> bool {
    file.generation == found.generation && file.attr.kind == found.kind
}

fn aside_name(ino: InodeNo) -> Vec<u8> {
    [ASIDE, ino.0.to_string().as_bytes()].concat()
}

/// The error of a record that does not fit the volume.
fn contradiction(what: impl Into<String>, ino: InodeNo) -> FsError {
    let what = format!(
        "cannot restore the state of a killed server: {}",
        what.into()
    );
    Corruption::new(what).in_inode(ino).into()
}
