//! The first copies of files with several names, to which further names become hard links.
//!
//! **Rule.** They belong to a pair of places, not to one copy: the operands of one command keep the hard links among them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use steadfs_base::InodeNo;
use steadfs_vfs::FileSystem;

use super::HostFile;
use super::walk::Held;

/// Of copies to the volume `fs`. `K` identifies the originals: [`HostFile`] on the host, [`InodeNo`] on one volume.
pub struct FirstCopies<'f, K> {
    fs: &'f dyn FileSystem,
    /// The lookup of each inode is counted.
    copies: BTreeMap<K, InodeNo>,
}

impl<'f, K: Ord> FirstCopies<'f, K> {
    /// No copies yet.
    pub fn to(fs: &'f dyn FileSystem) -> Self {
        let copies = BTreeMap::new();
        Self { fs, copies }
    }

    pub(super) fn of(&self, original: &K) -> Option<InodeNo> {
        self.copies.get(original).copied()
    }

    /// Adds a copy on the same volume.
    pub(super) fn add(&mut self, original: K, copy: Held<'_>) {
        let before = self.copies.insert(original, copy.into_counted().ino);
        before.into_iter().for_each(|ino| self.fs.forget(ino, 1));
    }
}

impl<K> Drop for FirstCopies<'_, K> {
    fn drop(&mut self) {
        for ino in self.copies.values() {
            self.fs.forget(*ino, 1);
        }
    }
}

/// Of copies from one volume to the host.
#[derive(Default)]
pub struct FirstCopiesOut(pub(super) BTreeMap<InodeNo, FirstOut>);

/// The first copy of a file with several names.
pub(super) struct FirstOut {
    pub path: PathBuf,
    /// The file made there. If its directory belongs to another user by now, that user can replace the file.
    pub made: HostFile,
}
