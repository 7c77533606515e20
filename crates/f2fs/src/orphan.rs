//! Orphans: unlinked inodes that are open, or whose blocks are being freed. Each checkpoint lists them, and the next
//! mount frees them.

use std::collections::BTreeSet;

use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

use crate::cp_lock::Change;
use crate::disk::{Layout, Nid, orphan};

pub struct Orphans {
    /// Orphans that fit into a pack.
    max: usize,
    state: Mutex<OrphanList>,
}

#[derive(Default)]
struct OrphanList {
    listed: BTreeSet<Nid>,
    /// Changed since the last snapshot.
    changed: bool,
}

impl Orphans {
    pub fn new(layout: &Layout, listed: Vec<Nid>) -> Self {
        let state = OrphanList {
            listed: listed.into_iter().collect(),
            changed: false,
        };
        Self {
            max: orphan::max(layout),
            state: Mutex::new(Rank::Orphan, state),
        }
    }

    /// Replaces the list by that of another checkpoint.
    pub fn reload(&self, listed: Vec<Nid>) {
        let listed = listed.into_iter().collect();
        let changed = false;
        *self.state.lock() = OrphanList { listed, changed };
    }

    /// Adds an inode.
    ///
    /// # Errors
    /// `NoSpace`: no more orphans fit into a pack.
    pub fn add(&self, _: &Change<'_>, ino: Nid) -> Result<()> {
        let mut state = self.state.lock();
        if state.listed.len() >= self.max && !state.listed.contains(&ino) {
            return Err(FsError::NoSpace);
        }
        state.changed |= state.listed.insert(ino);
        Ok(())
    }

    /// Checks, before an operation begins that may add an orphan, that there is space for one.
    ///
    /// # Errors
    /// As [`Orphans::add`].
    pub fn check_room(&self) -> Result<()> {
        if self.state.lock().listed.len() < self.max {
            Ok(())
        } else {
            Err(FsError::NoSpace)
        }
    }

    /// Removes an inode: it was freed, or has a name again.
    pub fn remove(&self, _: &Change<'_>, ino: Nid) {
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
