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
    pub fn allocate(&self, fs: &Ext4, goal: DevBlock, want: u32) -> Result<Run> {
        self.allocate_request(fs, goal, AllocRequest::of(fs.geo(), want))
    }

    /// Allocates unreserved clusters only, and leaves `keep` of them.
    pub fn allocate_spare(&self, fs: &Ext4, goal: DevBlock, want: u32, keep: u64) -> Result<Run> {
        if self.with_totals(|t| t.spare(keep)) == 0 {
            return Err(FsError::NoSpace);
        }
        let want = AllocRequest {
            keep: Some(keep),
            ..AllocRequest::of(fs.geo(), want)
        };
        self.allocate_request(fs, goal, want)
    }

    fn allocate_request(&self, fs: &Ext4, goal: DevBlock, want: AllocRequest) -> Result<Run> {
        let found = self.search(fs, goal, want);
        match found {
            Err(FsError::NoSpace) => self.search_after_drop(fs, goal, want),
            found => found,
        }
    }

    /// Searches the blocks that are not busy; preallocated blocks are busy.
    pub(super) fn search(&self, fs: &Ext4, goal: DevBlock, want: AllocRequest) -> Result<Run> {
        assert!(want.len > 0, "an allocation has at least one block");
        let geo = fs.geo();
        let goal = if geo.block_range().contains(&goal.0) {
            goal
        } else {
            geo.first_data_block
        };
        let (home, at) = geo.group_of_block(goal);
        let at = at >> geo.cluster_bits;
        let want = AllocRequest {
            len: want.len.min(geo.clusters_per_group),
            ..want
        };
        let mut first_error = None;
        let found = self.allocate_at(fs, home, at, want);
        if let Some(run) = self.skip_corrupt(home, found, &mut first_error)? {
            return Ok(run);
        }
        let others = |n: u32| {
            GroupNo(((u64::from(home.0) + u64::from(n)) % u64::from(geo.group_count)) as u32)
        };
        let stripe = self.stripe.load(Ordering::Relaxed);
        if stripe > 1 && want.len >= stripe {
            for n in 0..geo.group_count {
                let from = if n == 0 { at } else { 0 };
                let found = self.allocate_aligned(fs, others(n), from, want, stripe);
                if let Some(run) = self.skip_corrupt(others(n), found, &mut first_error)? {
                    return Ok(run);
                }
            }
        }
        for need in [want.len, want.len.div_ceil(8), 1] {
            for n in 0..geo.group_count {
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
    pub fn allocate_meta(&self, fs: &Ext4, handle: &Handle<'_>, goal: DevBlock) -> Result<Run> {
        match handle.uses_reservation() {
            true => self.allocate(fs, goal, 1),
            false => self.allocate_spare(fs, goal, 1, handle.kept_for_root()),
        }
    }

    /// Allocates one block for metadata and marks it used, with its cluster. Two credits.
    pub fn alloc_meta_block(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        goal: DevBlock,
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
