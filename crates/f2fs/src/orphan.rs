//! Orphans: inodes without a name that are still open, or whose blocks are being freed. Each checkpoint
//! lists them, so that the next mount ends what was begun.

use std::collections::BTreeSet;

use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

use crate::cp_lock::Change;
use crate::disk::{Layout, Nid, SEGMENT_BLOCKS, orphan};

/// Blocks of a pack that are not for orphans: its first and last, and summaries of six logs.
const OTHER_BLOCKS: u32 = 2 + 6;

/// The orphans of a volume.
pub struct Orphans {
    /// How many a pack has room for.
    max: usize,
    state: Mutex<OrphanList>,
}

#[derive(Default)]
struct OrphanList {
    listed: BTreeSet<Nid>,
    /// Not as the last checkpoint's snapshot has it.
    changed: bool,
}

impl Orphans {
    /// As the checkpoint has them.
    pub fn new(layout: &Layout, listed: Vec<Nid>) -> Self {
        let room = SEGMENT_BLOCKS - OTHER_BLOCKS - layout.cp_payload;
        let state = OrphanList {
            listed: listed.into_iter().collect(),
            changed: false,
        };
        Self {
            max: room as usize * orphan::PER_BLOCK,
            state: Mutex::new(Rank::Orphan, state),
        }
    }

    /// Another checkpoint is the volume's state.
    pub fn reload(&self, listed: Vec<Nid>) {
        let listed = listed.into_iter().collect();
        let changed = false;
        *self.state.lock() = OrphanList { listed, changed };
    }

    /// Puts an inode on the list.
    ///
    /// # Errors
    /// `NoSpace`: a pack has no room for more.
    pub fn add(&self, _: &Change<'_>, ino: Nid) -> Result<()> {
        let mut state = self.state.lock();
        if state.listed.len() >= self.max && !state.listed.contains(&ino) {
            return Err(FsError::NoSpace);
        }
        state.changed |= state.listed.insert(ino);
        Ok(())
    }

    /// Whether there is room for another one, before an operation begins that may need it.
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

    /// Takes an inode off the list: it is gone, or has a name again.
    pub fn remove(&self, _: &Change<'_>, ino: Nid) {
        let mut state = self.state.lock();
        state.changed |= state.listed.remove(&ino);
    }

    /// Those on the list.
    pub fn all(&self) -> Vec<Nid> {
        self.state.lock().listed.iter().copied().collect()
    }

    /// Whether the list is not as the last checkpoint's snapshot has it.
    pub fn has_changed(&self) -> bool {
        self.state.lock().changed
    }

    /// The list for a checkpoint; nothing may change meanwhile.
    pub fn snapshot(&self) -> Vec<Nid> {
        let mut state = self.state.lock();
        state.changed = false;
        state.listed.iter().copied().collect()
    }
}
