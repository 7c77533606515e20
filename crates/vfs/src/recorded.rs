//! State that a server acknowledged and that its volume may lack.
//!
//! **Problem.** A server that is killed takes with it what no fsync has made durable. **Rule.** What each call has
//! acknowledged is recorded as the *state* that the call left behind, outside the server. A successor mounts the volume
//! as after a power cut and brings every recorded object to its last recorded state ([`FileSystem::restore`]). Since
//! records are states and not operations, it does not matter which of them the volume has already, and a restoration
//! that was interrupted is repeated.
//!
//! [`FileSystem::restore`]: crate::FileSystem::restore

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::InodeNo;

use crate::LookupCounts;
use crate::types::{Attr, FallocMode, FsxAttr};

/// The last recorded state of all objects that were changed since a time at which everything was durable.
#[derive(Clone, Debug, Default)]
pub struct RecordedState {
    /// Inodes that were made, changed or freed.
    pub inodes: BTreeMap<InodeNo, RecordedInode>,
    /// Names, by directory, that were made, moved or removed.
    pub names: BTreeMap<(InodeNo, Vec<u8>), RecordedName>,
    /// Unlinked inodes that are in use, changed or not: they stay until they are forgotten.
    pub unlinked: Vec<InodeNo>,
}

impl RecordedState {
    /// The inodes in use.
    pub fn files(&self) -> impl Iterator<Item = (InodeNo, &RecordedFile)> {
        self.inodes.iter().filter_map(|(&ino, inode)| match inode {
            RecordedInode::Free => None,
            RecordedInode::InUse(file) => Some((ino, &**file)),
        })
    }

    /// The directories of recorded names.
    pub fn dirs(&self) -> BTreeSet<InodeNo> {
        self.names.keys().map(|(dir, _)| *dir).collect()
    }

    /// Adds one lookup of each recorded inode in use, with which the volume is opened for
    /// [`FileSystem::restore`](crate::FileSystem::restore): an inode that has a name at the end may be an orphan on the
    /// volume, which the mount would free. The restoration drops these lookups.
    pub fn hold(&self, counts: &mut LookupCounts) {
        let mut all: BTreeMap<InodeNo, u64> = counts.drain(..).collect();
        for (ino, _) in self.files() {
            *all.entry(ino).or_default() += 1;
        }
        counts.extend(all);
    }
}

/// The last recorded state of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedName {
    /// The inode that it leads to. `None`: there is no such name.
    pub to: Option<InodeNo>,
    /// Names are made in this order, so that they get the places that they had: a program may be reading the directory.
    pub order: u64,
}

/// The last recorded state of an inode number.
#[derive(Clone, Debug)]
pub enum RecordedInode {
    /// No inode has this number.
    Free,
    /// An inode has it.
    InUse(Box<RecordedFile>),
}

/// The last recorded state of an inode in use.
#[derive(Clone, Debug)]
pub struct RecordedFile {
    /// An inode on the volume with this number and another generation is another inode, which was freed.
    pub generation: u32,
    /// All attributes. The link count is that of all names, recorded or not.
    pub attr: Attr,
    /// Flags and project.
    pub flags: FsxAttr,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Extended attributes that were changed, by full name; all of them, if the inode was made. `None`: removed.
    pub xattrs: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Changes of the contents, in their order.
    pub contents: Vec<RecordedChange>,
}

/// A change of a regular file's contents.
#[derive(Clone, Debug)]
pub enum RecordedChange {
    /// These bytes were written at this offset.
    Bytes(u64, Vec<u8>),
    /// The file was cut or extended to this size.
    Size(u64),
    /// A range of bytes, offset and length, was allocated, punched or zeroed.
    Range(FallocMode, u64, u64),
}
