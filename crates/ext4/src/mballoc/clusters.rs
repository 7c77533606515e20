//! Clusters (`bigalloc`): allocation in units of several blocks.
//!
//! **Problem.** A file block has the same place in its device cluster as in its cluster of the file (as in Linux and
//! e2fsck), so the blocks of a file's cluster share one device cluster, and only the first of them allocates. But blocks
//! are allocated in memory before they are mapped: several pieces of a file may have parts of one cluster, and each of
//! them may be mapped or given up by itself.
//!
//! **Rule.** For each allocated cluster the number of blocks that are not mapped yet is counted, with the file's cluster
//! that it is for, so that other blocks of that use it. The first of them that is mapped marks the cluster as used on
//! disk. It is free again if the last one is given up and none was mapped. Once no block waits, only the file's map knows
//! the cluster; what frees mapped blocks holds the file's flush lock, as does everything that allocates for it.
//!
//! **Unmapped blocks** of a cluster that stays in use do not become free, but the same file may map them again. Until the
//! transaction that unmapped them is durable, a crash restores their old content to the file, so they are remembered until
//! then, and nothing is written to them before ([`Allocator::unmapped_by`]).

use steadfs_base::{Corruption, DevBlock, FileBlock, FixedMap, Tid};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::Result;

use super::{Allocator, Run};
use crate::disk::{Geometry, Ino};

/// Allocated clusters with blocks that are not mapped yet. Empty without `bigalloc`.
pub(super) struct HeldClusters(Mutex<Held>);

#[derive(Default)]
struct Held {
    clusters: FixedMap<u64, HeldCluster>,
    /// Device clusters by file and cluster of the file.
    files: FixedMap<(Ino, u64), u64>,
    /// Blocks of clusters in use that transactions which are not durable yet have unmapped: start, number.
    unmapped: Vec<(Tid, DevBlock, u64)>,
}

struct HeldCluster {
    /// The file and its cluster; `None` for a block of metadata.
    file: Option<(Ino, u64)>,
    /// Blocks that are neither mapped nor given up.
    waiting: u32,
    /// It is used on disk.
    used: bool,
}

impl Default for HeldClusters {
    fn default() -> Self {
        Self(Mutex::new(Rank::Leaf, Held::default()))
    }
}

/// The clusters of a run, each with the number of the run's blocks in it.
fn parts(geo: &Geometry, run: Run) -> impl Iterator<Item = (u64, u32)> + use<> {
    let bits = geo.cluster_bits;
    let (start, end) = (run.start.0, run.start.0 + u64::from(run.len));
    let clusters = start >> bits..(end + (1 << bits) - 1) >> bits;
    clusters.map(move |cluster| {
        let blocks = (cluster << bits).max(start)..((cluster + 1) << bits).min(end);
        (cluster, (blocks.end - blocks.start) as u32)
    })
}

impl Allocator {
    /// Counts the blocks of a run as allocated and not mapped: for the file's blocks from `at` on, or for metadata. `used`:
    /// the file has mapped other blocks of these clusters.
    ///
    /// # Errors
    /// A cluster is another file's: the volume is corrupt. Nothing is counted.
    pub(crate) fn hold(
        &self,
        geo: &Geometry,
        run: Run,
        file: Option<(Ino, FileBlock)>,
        used: bool,
    ) -> Result<()> {
        if geo.cluster_bits == 0 {
            return Ok(());
        }
        let first = run.start.0 >> geo.cluster_bits;
        let of =
            |cluster| file.map(|(ino, at)| (ino, (at.0 >> geo.cluster_bits) + cluster - first));
        let mut held = self.held.0.lock();
        let mut both = parts(geo, run);
        let taken = both.find(|&(cluster, blocks)| {
            held.clusters.get(&cluster).is_some_and(|entry| {
                entry.file != of(cluster) || entry.waiting + blocks > geo.blocks_per_cluster()
            })
        });
        if let Some((cluster, _)) = taken {
            return Err(Corruption::new("is in a cluster that is used twice")
                .in_block(DevBlock(cluster << geo.cluster_bits))
                .into());
        }
        for (cluster, blocks) in parts(geo, run) {
            let file = of(cluster);
            let entry = held.clusters.entry(cluster).or_insert(HeldCluster {
                file,
                waiting: 0,
                used,
            });
            entry.waiting += blocks;
            if let Some(file) = file {
                held.files.insert(file, cluster);
            }
        }
        Ok(())
    }

    /// The first block of the cluster that waits for the file's cluster.
    pub(crate) fn held_for(&self, geo: &Geometry, ino: Ino, cluster: u64) -> Option<DevBlock> {
        let held = self.held.0.lock();
        let found = held.files.get(&(ino, cluster)).copied();
        found.map(|cluster| DevBlock(cluster << geo.cluster_bits))
    }

    /// The whole clusters among those of a run that are not used on disk yet.
    pub(super) fn unused_clusters(&self, geo: &Geometry, run: Run) -> Option<Run> {
        if geo.cluster_bits == 0 {
            return Some(run);
        }
        let held = self.held.0.lock();
        let unused = |&cluster: &u64| held.clusters.get(&cluster).is_none_or(|c| !c.used);
        let mut clusters = parts(geo, run).map(|(cluster, _)| cluster).filter(unused);
        let first = clusters.next()?;
        let last = clusters.last().unwrap_or(first);
        Some(Run {
            start: DevBlock(first << geo.cluster_bits),
            len: ((last - first + 1) << geo.cluster_bits) as u32,
        })
    }

    /// The blocks of a run are mapped, and their clusters used on disk.
    pub(super) fn hold_ends(&self, geo: &Geometry, run: Run) {
        if geo.cluster_bits == 0 {
            return;
        }
        let mut held = self.held.0.lock();
        for (cluster, blocks) in parts(geo, run) {
            let Some(entry) = held.clusters.get_mut(&cluster) else {
                // Blocks that a fast commit names are not counted.
                continue;
            };
            entry.used = true;
            held.give_up(cluster, blocks);
        }
    }

    /// The blocks of a run are no longer mapped, but allocated in memory; the clusters `unused` are no longer used on disk.
    pub(super) fn hold_again(
        &self,
        geo: &Geometry,
        run: Run,
        file: Option<(Ino, FileBlock)>,
        unused: Option<Run>,
    ) -> Result<()> {
        if geo.cluster_bits == 0 {
            return Ok(());
        }
        self.hold(geo, run, file, true)?;
        let mut held = self.held.0.lock();
        for (cluster, _) in unused.into_iter().flat_map(|unused| parts(geo, unused)) {
            if let Some(entry) = held.clusters.get_mut(&cluster) {
                entry.used = false;
            }
        }
        Ok(())
    }

    /// Gives up blocks that were not mapped. Returns the clusters that nothing uses any more.
    pub(super) fn end_hold(&self, geo: &Geometry, run: Run) -> Vec<Run> {
        let mut held = self.held.0.lock();
        let mut free: Vec<Run> = Vec::new();
        for (cluster, blocks) in parts(geo, run) {
            if held.give_up(cluster, blocks) {
                continue;
            }
            let start = DevBlock(cluster << geo.cluster_bits);
            let len = geo.blocks_per_cluster();
            match free.last_mut() {
                Some(last) if last.start.plus(last.len.into()) == start => last.len += len,
                _ => free.push(Run { start, len }),
            }
        }
        free
    }

    /// Transaction `tid` unmaps blocks of clusters that stay in use.
    pub(crate) fn note_unmapped(&self, tid: Tid, start: DevBlock, len: u64) {
        self.held.0.lock().unmapped.push((tid, start, len));
    }

    /// The newest transaction that is not durable and has unmapped some of these blocks.
    pub(crate) fn unmapped_by(&self, start: DevBlock, len: u64) -> Option<Tid> {
        let held = self.held.0.lock();
        let overlaps =
            |first: DevBlock, count| first < start.plus(len) && start < first.plus(count);
        let newer = |a: Tid, b: Tid| if a.at_least(b) { a } else { b };
        let mut found = held
            .unmapped
            .iter()
            .filter(|(_, first, count)| overlaps(*first, *count));
        let first = found.next()?.0;
        Some(found.fold(first, |newest, (tid, ..)| newer(newest, *tid)))
    }

    /// Transaction `tid` is durable, and those before it.
    pub(super) fn forget_unmapped(&self, tid: Tid) {
        let mut held = self.held.0.lock();
        held.unmapped.retain(|(by, ..)| !tid.at_least(*by));
    }

    /// Clusters with blocks that are not mapped yet.
    #[cfg(test)]
    pub(crate) fn held_clusters(&self) -> usize {
        self.held.0.lock().clusters.len()
    }
}

impl Held {
    /// Blocks of a cluster wait no longer. Returns whether something still uses the cluster.
    fn give_up(&mut self, cluster: u64, blocks: u32) -> bool {
        let Some(entry) = self.clusters.get_mut(&cluster) else {
            // It was allocated as a whole and for no file.
            return false;
        };
        assert!(entry.waiting >= blocks, "a block is given up once");
        entry.waiting -= blocks;
        if entry.waiting > 0 {
            return true;
        }
        let (file, used) = (entry.file, entry.used);
        self.clusters.remove(&cluster);
        if let Some(file) = file
            && self.files.get(&file) == Some(&cluster)
        {
            self.files.remove(&file);
        }
        used
    }
}
