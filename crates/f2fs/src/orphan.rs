//! Orphans: unlinked inodes that are open, or whose blocks are being freed. Each checkpoint lists them, and the next
//! mount frees them.

use std::collections::BTreeSet;

use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

use crate::cp_lock::Change;
use crate::disk::{Layout, Nid, orphan};
use crate::inode::Inode;

pub struct Orphans {
    /// Orphans that fit into a pack.
    max: usize,
    state: Mutex<OrphanList>,
}

/// Room for an orphan that an operation may add. While it exists, no other operation gets it.
#[must_use = "the room is given back when this is dropped"]
pub struct OrphanRoom<'o>(&'o Orphans);

impl Drop for OrphanRoom<'_> {
    fn drop(&mut self) {
        self.0.state.lock().reserved -= 1;
    }
}

#[derive(Default)]
struct OrphanList {
    listed: BTreeSet<Nid>,
    /// Operations that may add one, or have just done so.
    reserved: usize,
    /// Changed since the last snapshot.
    changed: bool,
}

impl Orphans {
    pub fn new(layout: &Layout, listed: Vec<Nid>) -> Self {
        let state = OrphanList {
            listed: listed.into_iter().collect(),
            ..OrphanList::default()
        };
        Self {
            max: orphan::max(layout),
            state: Mutex::new(Rank::Orphan, state),
        }
    }

    /// Replaces the list by that of another checkpoint.
    pub fn reload(&self, listed: Vec<Nid>) {
        let mut state = self.state.lock();
        state.listed = listed.into_iter().collect();
        state.changed = false;
    }

    /// Adds an inode, which stays in memory from then on.
    ///
    /// # Errors
    /// `NoSpace`: no more orphans fit into a pack.
    pub fn add(&self, _: &Change<'_>, inode: &Inode) -> Result<()> {
        let mut state = self.state.lock();
        if state.listed.len() >= self.max && !state.listed.contains(&inode.nid()) {
            return Err(FsError::NoSpace);
        }
        state.changed |= state.listed.insert(inode.nid());
        inode.marks.set_orphan(true);
        Ok(())
    }

    /// Room for an orphan, before an operation begins that may add one. The caller keeps it until the operation has
    /// ended.
    ///
    /// # Errors
    /// `NoSpace`: there may be no more orphans than fit into a pack.
    pub fn room(&self) -> Result<OrphanRoom<'_>> {
        let mut state = self.state.lock();
        if state.listed.len() + state.reserved >= self.max {
            return Err(FsError::NoSpace);
        }
        state.reserved += 1;
        Ok(OrphanRoom(self))
    }

    /// Removes an inode: it was freed, or has a name again.
    pub fn remove(&self, change: &Change<'_>, inode: &Inode) {
        self.remove_number(change, inode.nid());
        inode.marks.set_orphan(false);
    }

    /// Removes the number of an inode that does not exist.
    pub fn remove_number(&self, _: &Change<'_>, ino: Nid) {
        let mut state = self.state.lock();
        state.changed |= state.listed.remove(&ino);
    }

    pub fn all(&self) -> Vec<Nid> {
        self.state.lock().listed.iter().copied().collect()
    }

    /// Whether the list changed since the last snapshot.
    pub fn has_changed(&self) -> bool {
        self.state.lock().changed
    }

    /// The list for a checkpoint. The caller holds `cp_lock` exclusively.
    pub fn snapshot(&self) -> Vec<Nid> {
        let mut state = self.state.lock();
        state.changed = false;
        state.listed.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two operations that have both found room for one orphan would abort the volume.
    #[test]
    fn room_is_reserved_once() {
        let orphans = Orphans {
            max: 2,
            state: Mutex::new(Rank::Orphan, OrphanList::default()),
        };
        orphans.reload(vec![Nid(5)]);
        let room = orphans.room().unwrap();
        assert_eq!(orphans.room().err(), Some(FsError::NoSpace));
        drop(room);
        drop(orphans.room().unwrap());
        orphans.reload(vec![Nid(5), Nid(6)]);
        assert_eq!(orphans.room().err(), Some(FsError::NoSpace));
    }
}
