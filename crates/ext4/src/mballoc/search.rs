//! Search for free blocks: near the goal, contiguous, and without loading groups that cannot have them.

use std::sync::atomic::Ordering;

use steadfs_base::DevBlock;
use steadfs_vfs::{FsError, Result};

use super::{Allocator, Group, Run};
use crate::disk::{Geometry, GroupNo, bitmap};
use crate::fs::Ext4;
use crate::txn::Handle;

/// Fewer blocks than this before those of other files do not continue a file.
const CONTINUE_BLOCKS_MIN: u32 = 16;

/// Where blocks are best, and in which groups they may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// The best block.
    pub(crate) near: DevBlock,
    /// Only groups before this one have blocks that may be allocated.
    groups_end: u32,
}

impl From<DevBlock> for Goal {
    fn from(near: DevBlock) -> Self {
        let groups_end = u32::MAX;
        Self { near, groups_end }
    }
}

impl Goal {
    /// Near a block, for a file that is mapped by tables: they have numbers of 32 bits.
    pub(crate) fn for_tables(geo: &Geometry, near: DevBlock) -> Self {
        let groups_end = table_groups(geo);
        Self { near, groups_end }
    }

    /// The goal with another best block.
    pub(crate) fn at(self, near: DevBlock) -> Self {
        Self { near, ..self }
    }
}

/// The number of groups, from the first on, all of whose blocks have numbers of 32 bits.
pub(crate) fn table_groups(geo: &Geometry) -> u32 {
    const TABLE_BLOCKS_END: u64 = 1 << 32;
    let per_group = u64::from(geo.clusters_per_group) << geo.cluster_bits;
    let groups = (TABLE_BLOCKS_END - geo.first_data_block.0) / per_group;
    u32::try_from(groups).unwrap_or(u32::MAX)
}

/// A request for clusters.
#[derive(Clone, Copy)]
pub(super) struct AllocRequest {
    len: u32,
    /// Allocate only unreserved clusters, and leave this number of them. `None`: reserved ones, too.
    keep: Option<u64>,
}

impl AllocRequest {
    /// A request for the clusters of `blocks` blocks, of reserved ones, too.
    pub(super) fn of(geo: &Geometry, blocks: u32) -> Self {
        Self {
            len: geo.clusters_for(blocks),
            keep: None,
        }
    }

    /// The request limited to `found` clusters.
    fn at_most(self, found: u32) -> Self {
        Self {
            len: self.len.min(found),
            ..self
        }
    }
}

impl Allocator {
    /// Allocates the clusters of up to `want` blocks in one run of whole clusters, in this order: at the goal, in its
    /// group, in a group that has the whole length contiguous, in any group with an eighth of it, anywhere.
    pub(crate) fn allocate(&self, fs: &Ext4, goal: impl Into<Goal>, want: u32) -> Result<Run> {
        self.allocate_request(fs, goal.into(), AllocRequest::of(fs.geo(), want))
    }

    /// Allocates unreserved clusters only, and leaves `keep` of them.
    pub(crate) fn allocate_spare(
        &self,
        fs: &Ext4,
        goal: impl Into<Goal>,
        want: u32,
        keep: u64,
    ) -> Result<Run> {
        if self.with_totals(|t| t.spare(keep)) == 0 {
            return Err(FsError::NoSpace);
        }
        let want = AllocRequest {
            keep: Some(keep),
            ..AllocRequest::of(fs.geo(), want)
        };
        self.allocate_request(fs, goal.into(), want)
    }

    fn allocate_request(&self, fs: &Ext4, goal: Goal, want: AllocRequest) -> Result<Run> {
        let found = self.search(fs, goal, want);
        match found {
            Err(FsError::NoSpace) => self.search_after_drop(fs, goal, want),
            found => found,
        }
    }

    /// Searches the blocks that are not busy; preallocated blocks are busy.
    pub(super) fn search(&self, fs: &Ext4, goal: Goal, want: AllocRequest) -> Result<Run> {
        assert!(want.len > 0, "an allocation has at least one block");
        let geo = fs.geo();
        let count = geo.group_count.min(goal.groups_end);
        let (home, at) = home_of(geo, goal.near, count);
        let want = AllocRequest {
            len: want.len.min(geo.clusters_per_group),
            ..want
        };
        let mut first_error = None;
        let found = self.allocate_at(fs, home, at, want);
        if let Some(run) = self.skip_corrupt(home, found, &mut first_error)? {
            return Ok(run);
        }
        let others =
            |n: u32| GroupNo(((u64::from(home.0) + u64::from(n)) % u64::from(count)) as u32);
        let stripe = self.stripe.load(Ordering::Relaxed);
        if stripe > 1 && want.len >= stripe {
            for n in 0..count {
                let from = if n == 0 { at } else { 0 };
                let found = self.allocate_aligned(fs, others(n), from, want, stripe);
                if let Some(run) = self.skip_corrupt(others(n), found, &mut first_error)? {
                    return Ok(run);
                }
            }
        }
        for need in [want.len, want.len.div_ceil(8), 1] {
            for n in 0..count {
                let from = if n == 0 { at } else { 0 };
                let found = self.allocate_run(fs, others(n), from, need, want);
                if let Some(run) = self.skip_corrupt(others(n), found, &mut first_error)? {
                    return Ok(run);
                }
            }
            if need == 1 {
                break;
            }
        }
        Err(first_error.unwrap_or(FsError::NoSpace))
    }

    /// Allocates one cluster for metadata: from the reservation if the handle uses one, else an unreserved one. So
    /// acknowledged data always finds its blocks, even if a full volume is changed otherwise, and root finds those that
    /// are reserved for it.
    pub(crate) fn allocate_meta(
        &self,
        fs: &Ext4,
        handle: &Handle<'_>,
        goal: impl Into<Goal>,
    ) -> Result<Run> {
        match handle.uses_reservation() {
            true => self.allocate(fs, goal, 1),
            false => self.allocate_spare(fs, goal, 1, handle.kept_for_root()),
        }
    }

    /// Allocates one block for metadata and marks it used, with its cluster. Two credits.
    pub(crate) fn alloc_meta_block(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        goal: impl Into<Goal>,
    ) -> Result<DevBlock> {
        let run = Run {
            len: 1,
            ..self.allocate_meta(fs, handle, goal)?
        };
        self.hold(fs.geo(), run, None, false)?;
        if let Err(error) = self.mark_used(fs, handle, run) {
            self.release(fs, run);
            return Err(error);
        }
        Ok(run.start)
    }

    /// Allocates the run that starts exactly at `at`, if it is long enough to continue the file there.
    fn allocate_at(
        &self,
        fs: &Ext4,
        no: GroupNo,
        at: u32,
        want: AllocRequest,
    ) -> Result<Option<Run>> {
        let mut group = self.loaded(fs, no)?;
        let busy = group.busy.as_ref().expect("loaded");
        let clusters = fs.geo().clusters_in(no);
        let end = bitmap::find_next_set(busy, at..(at + want.len).min(clusters));
        let end = end.unwrap_or((at + want.len).min(clusters));
        // Few blocks before other files' blocks would fragment the file.
        let least = fs.geo().clusters_for(CONTINUE_BLOCKS_MIN);
        if end - at < want.len.min(least) {
            return Ok(None);
        }
        Ok(self.take(fs, no, &mut group, at, want.at_most(end - at)))
    }

    /// Allocates from the first run of at least `need` clusters from `from` on (or else before it).
    fn allocate_run(
        &self,
        fs: &Ext4,
        no: GroupNo,
        from: u32,
        need: u32,
        want: AllocRequest,
    ) -> Result<Option<Run>> {
        {
            let group = self.group(no);
            if group.free < need || group.longest < need {
                return Ok(None);
            }
        }
        let mut group = self.loaded(fs, no)?;
        let clusters = fs.geo().clusters_in(no);
        let busy = group.busy.as_ref().expect("loaded");
        let found = bitmap::find_zero_run(busy, from..clusters, need)
            .or_else(|| bitmap::find_zero_run(busy, 0..clusters, need));
        let Some(found) = found else {
            group.longest = need - 1;
            return Ok(None);
        };
        let found_len = want.at_most(found.end - found.start);
        Ok(self.take(fs, no, &mut group, found.start, found_len))
    }

    /// Allocates a run of `want` clusters from `from` on (or else before it) that begins at a multiple of `stripe`.
    fn allocate_aligned(
        &self,
        fs: &Ext4,
        no: GroupNo,
        from: u32,
        want: AllocRequest,
        stripe: u32,
    ) -> Result<Option<Run>> {
        {
            let group = self.group(no);
            if group.free < want.len || group.longest < want.len {
                return Ok(None);
            }
        }
        let mut group = self.loaded(fs, no)?;
        let geo = fs.geo();
        let base = geo.first_block_of(no).0 >> geo.cluster_bits;
        let clusters = geo.clusters_in(no);
        let busy = group.busy.as_ref().expect("loaded");
        for mut at in [from, 0] {
            while let Some(free) = bitmap::find_zero_run(busy, at..clusters, want.len) {
                let start = base + u64::from(free.start);
                let skip = start.next_multiple_of(stripe.into()) - start;
                if skip + u64::from(want.len) <= u64::from(free.end - free.start) {
                    let start = free.start + skip as u32;
                    return Ok(self.take(fs, no, &mut group, start, want));
                }
                at = free.end;
            }
        }
        Ok(None)
    }

    /// Allocates from a free run; `None` if no block may be taken.
    fn take(
        &self,
        fs: &Ext4,
        no: GroupNo,
        group: &mut Group,
        at: u32,
        want: AllocRequest,
    ) -> Option<Run> {
        let len = self.with_totals(|t| {
            let spare = want.keep.map_or(u64::MAX, |keep| t.spare(keep));
            let len = spare.min(want.len.into());
            t.free -= len;
            len as u32
        });
        if len == 0 {
            return None;
        }
        assert!(
            len <= want.len && len <= group.free,
            "only free blocks are allocated"
        );
        let busy = group.busy.as_mut().expect("a run was found in it");
        bitmap::set_range(busy, at..at + len);
        group.free -= len;
        Some(Run {
            start: fs
                .geo()
                .first_block_of(no)
                .plus(u64::from(at) << fs.geo().cluster_bits),
            len: len << fs.geo().cluster_bits,
        })
    }
}

/// The group of the best block, and its cluster there. A block outside the first `count` groups stands for the first one
/// of some group among them.
fn home_of(geo: &Geometry, near: DevBlock, count: u32) -> (GroupNo, u32) {
    if !geo.block_range().contains(&near.0) {
        return (GroupNo(0), 0);
    }
    let (home, at) = geo.group_of_block(near);
    match home.0 < count {
        true => (home, at >> geo.cluster_bits),
        false => (GroupNo(home.0 % count), 0),
    }
}

#[cfg(test)]
mod tests {
    use steadfs_base::{FileBlock, IoTag};

    use crate::disk::test_images::Image;
    use crate::options::MountOptions;
    use crate::test_world::{ROOT, World};

    /// First block of a file of 64 blocks that is written after small ones.
    fn start(mkfs: &[&str], list: &str) -> u64 {
        let mut options = vec!["-t", "ext4", "-b", "1024", "-O", "^has_journal"];
        options.extend(mkfs);
        let image = Image::make(&options, "16M");
        let world = World::open_with(image, MountOptions::parse(list).unwrap());
        let mut inode = None;
        for (name, len) in [(b"a", 3000), (b"b", 2000), (b"c", 65_536)] {
            let file = world.file(ROOT, name).unwrap();
            let file = world.fs.by_number(file.ino, IoTag::default()).unwrap();
            let data = vec![1; len];
            world
                .fs
                .write_file(&world.cx, &file, 0, &data, false)
                .unwrap();
            world.fs.fsync_inode(&world.cx, &file, false).unwrap();
            inode = Some(file);
        }
        let inode = inode.unwrap();
        let core = inode.core.read().clone();
        let (ino, tag) = (inode.ino(), IoTag::default());
        let blocks: Vec<_> = (0..64)
            .map(|n| {
                world
                    .fs
                    .map_block(&core, ino, FileBlock(n), tag)
                    .unwrap()
                    .unwrap()
            })
            .collect();
        assert!(blocks.windows(2).all(|pair| pair[0].plus(1) == pair[1]));
        world.close();
        blocks[0].0
    }

    #[test]
    fn long_files_begin_at_a_stripe() {
        assert_eq!(start(&[], "stripe=16") % 16, 0);
        assert_ne!(start(&[], "") % 16, 0, "by chance everything is aligned");
        let raid = ["-E", "stride=8,stripe_width=32"];
        assert_eq!(start(&raid, "") % 32, 0);
        assert_ne!(start(&raid, "stripe=0") % 32, 0);
    }
}
