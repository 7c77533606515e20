//! The roll-forward overlay of a volume that is only read: what fsync wrote after the checkpoint, seen by all reads.
//!
//! **Rule.** Reads hold the overlay shared while it is in use. A remount `rw` holds it exclusively while it makes the
//! content part of the volume, and retires it: no read sees half of both.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_rt::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::disk::{BlockAddr, Nid};

/// The overlay: what fsync wrote after the checkpoint.
#[derive(Default)]
pub struct Recovered {
    /// Nodes by inode and node offset.
    nodes: BTreeMap<(Nid, u32), Nid>,
    /// Addresses of these nodes.
    places: BTreeMap<Nid, BlockAddr>,
    /// Names by directory, as users see them.
    names: BTreeMap<Nid, BTreeMap<Vec<u8>, Nid>>,
    /// Recovered inodes.
    files: u64,
}

/// The empty overlay: nothing was recovered, or it is part of the volume now.
static NOTHING: Recovered = Recovered {
    nodes: BTreeMap::new(),
    places: BTreeMap::new(),
    names: BTreeMap::new(),
    files: 0,
};

impl Recovered {
    /// The content for this number of inodes, still without their nodes and names.
    pub fn of_files(files: u64) -> Self {
        Self {
            files,
            ..Self::default()
        }
    }

    /// Adds a node: the one of inode `ino` at this offset of its tree.
    pub fn add_node(&mut self, ino: Nid, offset: u32, nid: Nid, addr: BlockAddr) {
        assert!(self.files > 0, "a recovered node belongs to a file");
        self.nodes.insert((ino, offset), nid);
        self.places.insert(nid, addr);
    }

    /// Adds the name of an inode.
    pub fn add_name(&mut self, dir: Nid, name: Vec<u8>, ino: Nid) {
        assert!(!name.is_empty(), "a name has at least one byte");
        self.names.entry(dir).or_default().insert(name, ino);
    }

    /// Number of recovered inodes.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Number of recovered nodes.
    pub fn nodes(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Whether a node of this inode was recovered.
    pub fn has(&self, ino: Nid) -> bool {
        !self.nodes.is_empty()
            && self
                .nodes
                .range((ino, 0)..=(ino, u32::MAX))
                .next()
                .is_some()
    }

    /// The node of an inode at this offset of its tree.
    pub fn leaf(&self, ino: Nid, offset: u32) -> Option<Nid> {
        let nid = self.nodes.get(&(ino, offset)).copied();
        debug_assert!(
            nid.is_none_or(|nid| self.places.contains_key(&nid)),
            "each recovered node has an address"
        );
        nid
    }

    /// The address of a node.
    pub fn place(&self, nid: Nid) -> Option<BlockAddr> {
        self.places.get(&nid).copied()
    }

    /// The inode of a recovered name.
    pub fn name(&self, dir: Nid, name: &[u8]) -> Option<Nid> {
        self.names.get(&dir)?.get(name).copied()
    }

    /// Recovered names in a directory.
    pub fn names(&self, dir: Nid) -> impl Iterator<Item = (&[u8], Nid)> {
        self.names
            .get(&dir)
            .into_iter()
            .flatten()
            .map(|(name, ino)| (name.as_slice(), *ino))
    }
}

/// The overlay of a volume; empty where nothing was recovered or the volume is written.
pub struct Overlay {
    recovered: Recovered,
    /// Cleared once the content is part of the volume.
    in_use: AtomicBool,
    lock: RwLock<()>,
}

impl Overlay {
    pub fn new(recovered: Recovered) -> Self {
        assert!(
            recovered.files() > 0 || recovered.nodes() == 0,
            "each recovered node belongs to a file"
        );
        Self {
            in_use: AtomicBool::new(recovered.files() > 0),
            recovered,
            lock: RwLock::with_key(Rank::Mount, 2, ()),
        }
    }

    pub fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// The content, empty if the overlay is not in use.
    pub fn recovered(&self) -> &Recovered {
        match self.is_in_use() {
            true => &self.recovered,
            false => &NOTHING,
        }
    }

    /// Taken by each read; `None` if the overlay is not in use.
    pub fn read(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.is_in_use().then(|| self.lock.read())
    }

    /// Excludes reads while the content becomes part of the volume.
    pub fn write(&self) -> RwLockWriteGuard<'_, ()> {
        self.lock.write()
    }

    /// The content is part of the volume. The caller holds the overlay exclusively.
    pub fn retire(&self, _: &RwLockWriteGuard<'_, ()>) {
        assert!(self.is_in_use(), "only content that reads see is retired");
        self.in_use.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_names_are_found_by_their_keys() {
        let mut found = Recovered::of_files(2);
        let (a, b) = (Nid(10), Nid(20));
        found.add_node(a, 0, a, BlockAddr(1000));
        found.add_node(a, 7, Nid(11), BlockAddr(1001));
        found.add_node(b, u32::MAX, Nid(21), BlockAddr(1002));
        // A later node replaces an earlier one.
        found.add_node(a, 7, Nid(11), BlockAddr(1003));
        found.add_name(Nid(3), b"a".to_vec(), a);
        found.add_name(Nid(3), b"b".to_vec(), b);
        assert_eq!((found.files(), found.nodes()), (2, 3));
        assert_eq!(
            [9, 10, 11, 20, 21].map(|ino| found.has(Nid(ino))),
            [false, true, false, true, false]
        );
        assert_eq!(
            [0, 6, 7].map(|offset| found.leaf(a, offset)),
            [Some(a), None, Some(Nid(11))]
        );
        assert_eq!(
            [10, 11, 12].map(|nid| found.place(Nid(nid))),
            [Some(BlockAddr(1000)), Some(BlockAddr(1003)), None]
        );
        assert_eq!(found.name(Nid(3), b"b"), Some(b));
        assert_eq!(
            (found.name(Nid(3), b"c"), found.name(Nid(4), b"b")),
            (None, None)
        );
        let names: Vec<_> = found.names(Nid(3)).collect();
        assert_eq!(names, [(&b"a"[..], a), (&b"b"[..], b)]);
        assert_eq!(found.names(Nid(4)).count(), 0);
    }

    #[test]
    fn a_retired_overlay_is_empty() {
        let mut found = Recovered::of_files(1);
        found.add_node(Nid(10), 0, Nid(10), BlockAddr(1000));
        let overlay = Overlay::new(found);
        assert!(overlay.is_in_use() && overlay.read().is_some());
        assert!(overlay.recovered().has(Nid(10)));
        overlay.retire(&overlay.write());
        assert!(!overlay.is_in_use() && overlay.read().is_none());
        assert!(!overlay.recovered().has(Nid(10)));
        assert!(!Overlay::new(Recovered::default()).is_in_use());
    }
}
