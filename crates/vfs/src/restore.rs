//! Restoring a recorded state, whatever the format.
//!
//! **Problem.** The volume has any crash-consistent part of the recorded changes. A recorded name may lead to an inode
//! that was freed since, a number may belong to another inode, a directory may be where its later parent is below it.
//! The restoration itself may be interrupted: by the end of the server, after which it is repeated, or by a power cut,
//! after which a plain mount must find a consistent volume with every file that has a name at the end.
//!
//! **Rule.** Every step leaves a consistent volume, in which every inode that has a name at the end has one. Renames of all
//! kinds are one step each, which leaves the old or the new name ([`names`]). Inodes that are gone are freed before their
//! numbers are given to new ones. Contents and attributes follow the names.

use std::collections::BTreeSet;

use steadfs_base::{Corruption, InodeNo};

use crate::recorded::{RecordedChange, RecordedFile, RecordedInode, RecordedState};
use crate::{Cx, FileKind, FileSystem, FsError, InodeFlags, RenameFlags, Result, SetAttr};

mod names;

use names::Names;

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

impl FoundInode {
    fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
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
    /// Moves a name over that of an inode of the same kind, an empty directory or no directory, or exchanges two names.
    /// Sets times as [`FileSystem::rename`]: of the directories, too.
    fn rename_entry(
        &self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()>;
    /// The directory that a directory's `..` leads to.
    fn parent_of(&self, dir: InodeNo) -> Result<InodeNo>;
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
    /// Called before the contents of a file are restored: attributes are set that contents depend on.
    ///
    /// # Errors
    /// The record contradicts the volume; an error of the volume.
    fn before_contents(&self, _ino: InodeNo, _file: &RecordedFile) -> Result<()> {
        Ok(())
    }
    /// Whether the contents of a file may be changed. Otherwise all that was recorded of them is on the volume: it was made
    /// durable with what forbids changes, which came after the last recorded one.
    fn takes_contents(&self, ino: InodeNo) -> Result<bool> {
        let flags = self.flags(&context(), ino)?.flags;
        Ok(!flags.contains(InodeFlags::VERITY))
    }
    /// The value of an extended attribute as calls have recorded it, whatever the mount options switch off.
    ///
    /// # Errors
    /// `NoData`: it has none.
    fn recorded_xattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>>;
    /// Changes an extended attribute to a value that calls have recorded, whatever the mount options switch off: of a value
    /// that the format computes, the part that can be set.
    ///
    /// # Errors
    /// `NoSpace`, `TooBig`: it does not fit beside the others.
    fn restore_xattr(&self, cx: &Cx, ino: InodeNo, name: &[u8], value: Option<&[u8]>)
    -> Result<()>;
    /// Sets all attributes but the size and the link count, and the flags and project. Adopts an inode without names
    /// ([`crate::inode_marks::InodeMarks::adopt_orphan`]).
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

struct Restoration<'a, V: ?Sized> {
    volume: &'a V,
    state: &'a RecordedState,
    cx: Cx,
}

/// Brings the volume to the recorded state: see [`FileSystem::restore`].
///
/// # Errors
/// The record contradicts itself or the volume; or an error of the volume.
pub fn restore<V: RestoreVolume + ?Sized>(volume: &V, state: &RecordedState) -> Result<()> {
    if state.inodes.is_empty() && state.names.is_empty() {
        return Ok(());
    }
    check_names_are_exact(volume, state)?;
    let all = Restoration {
        volume,
        state,
        cx: context(),
    };
    Names::new(volume, state).restore(|| all.make_missing())?;
    for (ino, file) in state.files() {
        all.check_links(ino, file)?;
        all.fill(ino, file)?;
    }
    volume.sync_all(&all.cx)?;
    for (ino, _) in state.files() {
        volume.forget(ino, 1);
    }
    Ok(())
}

/// Refuses records of case-insensitive and encrypted directories: they have names as callers gave them, not as the volume has
/// them, and the keys are gone.
fn check_names_are_exact<V: RestoreVolume + ?Sized>(
    volume: &V,
    state: &RecordedState,
) -> Result<()> {
    for dir in state.dirs() {
        let mut flags = match state.inodes.get(&dir) {
            Some(RecordedInode::InUse(file)) => file.flags.flags,
            _ => InodeFlags::default(),
        };
        if volume.find_inode(dir)?.is_some() {
            flags = flags.union(volume.flags(&context(), dir)?.flags);
        }
        for (flag, what) in [
            (
                InodeFlags::CASEFOLD,
                "restoring names in casefolded directories",
            ),
            (
                InodeFlags::ENCRYPTED,
                "restoring names in encrypted directories",
            ),
        ] {
            if flags.contains(flag) {
                return Err(FsError::NotSupported(what));
            }
        }
    }
    Ok(())
}

fn context() -> Cx {
    Cx {
        fsetid: true,
        admin: true,
        ..Cx::default()
    }
}

fn end_state(state: &RecordedState, ino: InodeNo, found: &FoundInode) -> EndState {
    match state.inodes.get(&ino) {
        None if state.unlinked.contains(&ino) => EndState::Unlinked,
        None => EndState::Unrecorded,
        Some(RecordedInode::Free) => EndState::Dies,
        Some(RecordedInode::InUse(file)) if !is_same(file, found) => EndState::Dies,
        Some(RecordedInode::InUse(file)) if file.attr.nlink == 0 => EndState::Unlinked,
        Some(RecordedInode::InUse(_)) => EndState::Named,
    }
}

impl<V: RestoreVolume + ?Sized> Restoration<'_, V> {
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

    fn check_links(&self, ino: InodeNo, file: &RecordedFile) -> Result<()> {
        let found = self.volume.find_inode(ino)?;
        let links = found.map_or(0, |found| found.links);
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
        self.volume.before_contents(ino, file)?;
        let takes_contents = self.volume.takes_contents(ino)?;
        for change in file.contents.iter().filter(|_| takes_contents) {
            self.change(ino, change)?;
        }
        if file.attr.kind == FileKind::Regular
            && takes_contents
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

    /// Removes attributes and makes values shorter before it sets others, so that all fit. Each is replaced in one step: a
    /// power cut leaves the old or the new value.
    fn restore_xattrs(&self, ino: InodeNo, file: &RecordedFile) -> Result<()> {
        let mut changes = Vec::new();
        for (name, want) in &file.xattrs {
            let there = self.xattr(ino, name)?;
            if there != *want {
                let want = want.as_deref();
                let (old, new) = (
                    there.map_or(0, |old| old.len()),
                    want.map_or(0, <[u8]>::len),
                );
                changes.push((want.is_some(), new as i64 - old as i64, name, want));
            }
        }
        changes.sort_unstable();
        let changes = changes
            .into_iter()
            .map(|(_, _, name, want)| (&name[..], want));
        let changes: Vec<_> = changes.collect();
        let set = |&(name, want)| self.volume.restore_xattr(&self.cx, ino, name, want);
        match changes.iter().try_for_each(set) {
            Err(FsError::NoSpace | FsError::NoRoom(_) | FsError::TooBig) => {
                self.place_xattrs(ino, changes)
            }
            done => done,
        }
    }

    /// The same for values that fit in another order only: all are removed first, and the largest is set first.
    fn place_xattrs(&self, ino: InodeNo, mut changes: Vec<(&[u8], Option<&[u8]>)>) -> Result<()> {
        for (name, _) in &changes {
            if self.xattr(ino, name)?.is_some() {
                self.volume.restore_xattr(&self.cx, ino, name, None)?;
            }
        }
        changes.retain(|(_, want)| want.is_some());
        changes.sort_by_key(|(_, want)| std::cmp::Reverse(want.map_or(0, <[u8]>::len)));
        let set = |(name, want)| self.volume.restore_xattr(&self.cx, ino, name, want);
        changes.into_iter().try_for_each(set)
    }

    fn xattr(&self, ino: InodeNo, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.volume.recorded_xattr(ino, name) {
            Ok(value) => Ok(Some(value)),
            Err(FsError::NoData) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_same(file: &RecordedFile, found: &FoundInode) -> bool {
    file.generation == found.generation && file.attr.kind == found.kind
}

/// The error of a record that does not fit the volume.
fn contradiction(what: impl Into<String>, ino: InodeNo) -> FsError {
    let what = format!(
        "cannot restore the state of a killed server: {}",
        what.into()
    );
    Corruption::new(what).in_inode(ino).into()
}
