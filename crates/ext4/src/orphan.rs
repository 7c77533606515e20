//! Orphans: inodes that the next mount must process after a crash, because they are unlinked but open, or are being
//! truncated in several transactions.
//!
//! They are recorded on disk in one of two forms: a list through the inodes' `i_dtime`, with its head in the
//! superblock; or, with the `orphan_file` feature, slots in the blocks of a file, which avoids changes of the
//! superblock and of adjacent list entries. Orphans that find no free slot are added to the list.

mod record;
mod recovery;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::DevBlock;
use steadfs_rt::{Mutex, Rank};

use crate::disk::{ChecksumSeed, Ino};

/// Blocks that adding or removing an orphan changes at worst: superblock, the inode and its
/// neighbour in the list; or a block of the orphan file.
pub const CREDITS: u32 = 3;

/// The orphans of a volume.
pub struct Orphans {
    state: Mutex<OrphanState>,
    cleaning: AtomicBool,
    /// Orphans of the last mount are kept for e2fsck.
    kept: AtomicBool,
}

#[derive(Default)]
struct OrphanState {
    /// The list's head.
    head: Option<Ino>,
    places: BTreeMap<Ino, OrphanPlace>,
    /// The orphan file, if there is one.
    file: Option<OrphanFile>,
}

#[derive(Clone, Copy)]
enum OrphanPlace {
    /// In the list, between these.
    List {
        newer: Option<Ino>,
        older: Option<Ino>,
    },
    /// In the orphan file.
    Slot(Slot),
}

/// A slot of the orphan file.
#[derive(Clone, Copy)]
struct Slot {
    /// Index of the block in the file.
    block: usize,
    /// Index of the word in the block.
    slot: u32,
}

/// The orphan file's blocks and free slots.
struct OrphanFile {
    seed: ChecksumSeed,
    blocks: Vec<DevBlock>,
    /// Slots that were freed.
    free: Vec<Slot>,
    /// Slots from this one on have not been used since the mount.
    next: Slot,
    /// Part of it cannot be read: orphans in it can be removed, new ones are added to the list.
    closed: bool,
}

impl Orphans {
    /// None yet.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Orphan, OrphanState::default()),
            cleaning: AtomicBool::new(false),
            kept: AtomicBool::new(false),
        }
    }

    /// Whether no orphan of this mount is recorded.
    pub fn is_empty(&self) -> bool {
        self.state.lock().places.is_empty()
    }

    /// Whether no orphan of this or an earlier mount is recorded.
    pub fn none_on_record(&self) -> bool {
        self.is_empty() && !self.kept.load(Ordering::Acquire)
    }

    /// Whether the orphans of the last mount are being processed: their inodes are in use without links.
    pub fn cleaning(&self) -> bool {
        self.cleaning.load(Ordering::Acquire)
    }

    /// All recorded orphans.
    fn all(&self) -> Vec<Ino> {
        self.state.lock().places.keys().copied().collect()
    }
}

impl Default for Orphans {
    fn default() -> Self {
        Self::new()
    }
}

impl OrphanState {
    /// Inserts an inode between two list entries.
    fn link(&mut self, ino: Ino, newer: Option<Ino>, older: Option<Ino>) {
        self.places.insert(ino, OrphanPlace::List { newer, older });
        if let Some(OrphanPlace::List { newer: n, .. }) =
            older.and_then(|o| self.places.get_mut(&o))
        {
            *n = Some(ino);
        }
    }

    /// Makes two list entries adjacent.
    fn relink(&mut self, newer: Option<Ino>, older: Option<Ino>) {
        if let Some(OrphanPlace::List { older: o, .. }) =
            newer.and_then(|n| self.places.get_mut(&n))
        {
            *o = older;
        }
        if let Some(OrphanPlace::List { newer: n, .. }) =
            older.and_then(|o| self.places.get_mut(&o))
        {
            *n = newer;
        }
    }
}

#[cfg(test)]
mod tests;
