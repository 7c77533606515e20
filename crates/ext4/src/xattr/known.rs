//! Values of attributes in inodes that are known by their hash, so that an equal value is stored once.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use steadfs_rt::{Mutex, Rank};

use crate::disk::Ino;
use crate::inode::Inode;

/// Values that can be found by their hash.
const KNOWN_VALUES_MAX: usize = 8192;
/// Inodes with one hash that are compared with a new value.
const COMPARED_MAX: usize = 8;

/// The values of a volume that are known, and those to be freed.
pub(crate) struct Values {
    known: Mutex<KnownValues>,
    /// Orphans: nothing refers to them.
    pub(super) unreferenced: Mutex<Vec<Arc<Inode>>>,
}

#[derive(Default)]
struct KnownValues {
    by_hash: BTreeSet<(u32, Ino)>,
    /// In the order in which they became known; some were forgotten since.
    order: VecDeque<(u32, Ino)>,
}

impl Values {
    /// None is known.
    pub(crate) fn new() -> Self {
        Self {
            known: Mutex::new(Rank::Leaf, KnownValues::default()),
            unreferenced: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }

    pub(super) fn learn(&self, hash: u32, ino: Ino) {
        let mut known = self.known.lock();
        if !known.by_hash.insert((hash, ino)) {
            return;
        }
        known.order.push_back((hash, ino));
        if known.order.len() > KNOWN_VALUES_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.by_hash.remove(&oldest);
        }
    }

    pub(super) fn forget(&self, hash: u32, ino: Ino) {
        self.known.lock().by_hash.remove(&(hash, ino));
    }

    /// Inodes whose value may have this hash.
    pub(super) fn with_hash(&self, hash: u32) -> Vec<Ino> {
        let known = self.known.lock();
        let equal = known.by_hash.range((hash, Ino(0))..=(hash, Ino(u32::MAX)));
        equal.map(|&(_, ino)| ino).take(COMPARED_MAX).collect()
    }
}
