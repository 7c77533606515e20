//! Blocks of groups on disk: marking them used and freeing them, in handles.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use steadfs_base::{Corruption, DevBlock, FileBlock, IoTag, Tid, Urgency};
use steadfs_block::Bio;
use steadfs_cache::{MetaBuf, MetaMut};
use steadfs_rt::MutexGuard;
use steadfs_vfs::{FsError, Result};

use super::{Allocator, Group, Run};
use crate::disk::group_desc::{self, BLOCK_UNINIT, GroupDesc};
use crate::disk::{Geometry, GroupNo, Ino, bitmap};
use crate::fs::Ext4;
use crate::pins::Pins;
use crate::txn::Handle;
use crate::verified::BLOCK_BITMAP;

/// Groups that are tried when bitmaps are unloaded.
const UNLOADED_AT_ONCE: u32 = 64;

/// Most freed runs of one transaction that are discarded at once.
const RUNS_AT_ONCE: usize = 64;

impl Allocator {
    /// Locks a group with its `busy` bitmap loaded.
    pub(super) fn loaded(&self, fs: &Ext4, no: GroupNo) -> Result<MutexGuard<'_, Group>> {
        let is_over =
            self.loaded.load(Ordering::Relaxed) >= self.loaded_max.load(Ordering::Relaxed);
        if is_over && self.group(no).busy.is_none() {
            self.unload_some();
        }
        let mut group = self.group(no);
        if group.busy.is_none() {
            let geo = fs.geo();
            let mut busy: Box<[u8]> = if group.desc.block_uninit(geo) {
                let mut bits = vec![0; geo.block_size.bytes()];
                group_desc::init_block_bitmap(geo, no, &group.desc, &mut bits);
                bits.into()
            } else {
                let buf = block_bitmap(fs, no, &group.desc)?;
                (*buf.data()).into()
            };
            let clusters = geo.clusters_in(no);
            let free = bitmap::count_zeros(&busy, 0..clusters);
            if free != group.desc.free_clusters {
                let said = group.desc.free_clusters;
                let unit = if geo.cluster_bits > 0 {
                    "clusters"
                } else {
                    "blocks"
                };
                let what = format!("bitmap has {free} free {unit}, descriptor {said}");
                return Err(Corruption::new(what).in_group(no.0).into());
            }
            // A last cluster that is cut short is not allocated, either.
            let whole = geo.blocks_in(no) >> geo.cluster_bits;
            bitmap::set_range(&mut busy, whole..geo.block_size.bytes() as u32 * 8);
            // The group's own metadata is never free, even if the bitmap has it as free.
            let (first, blocks) = (geo.first_block_of(no), geo.blocks_in(no));
            self.zones.mark(first, blocks, geo.cluster_bits, &mut busy);
            group.free = bitmap::count_zeros(&busy, 0..clusters);
            group.busy = Some(busy);
            self.loaded.fetch_add(1, Ordering::Relaxed);
        }
        Ok(group)
    }

    /// Drops the next bitmaps that say the same as those on the device: a busy cluster is one that has less than its
    /// descriptor says. They are loaded again when they are needed.
    fn unload_some(&self) {
        let count = self.groups.len() as u32;
        let tried = UNLOADED_AT_ONCE.min(count);
        let first = self.next_unloaded.fetch_add(tried, Ordering::Relaxed);
        for n in 0..tried {
            // One that is locked is in use, and perhaps being read.
            let group = self.groups[(first.wrapping_add(n) % count) as usize].try_lock();
            if let Some(mut group) = group
                && group.free == group.desc.free_clusters
                && group.busy.take().is_some()
            {
                self.loaded.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether a block is free, so that no file or metadata has it. One whose group cannot be read is not.
    pub(crate) fn is_free(&self, fs: &Ext4, block: DevBlock) -> bool {
        let geo = fs.geo();
        if block < geo.first_data_block || block.0 >= geo.blocks_count {
            return false;
        }
        let (no, at) = geo.group_of_block(block);
        let at = at >> geo.cluster_bits;
        let group = self.loaded(fs, no);
        group.is_ok_and(|group| {
            let busy = group.busy.as_ref().expect("loaded");
            bitmap::find_zero_run(busy, at..at + 1, 1).is_some()
        })
    }

    /// Marks the clusters of allocated blocks that are not used on disk yet as used, in the caller's handle: bitmap,
    /// descriptor, counts. The caller maps the blocks in the same handle. Returns the number of clusters. Two credits.
    pub fn mark_used(&self, fs: &Ext4, handle: &mut Handle<'_>, run: Run) -> Result<u32> {
        let geo = fs.geo();
        let Some(unused) = self.unused_clusters(geo, run) else {
            self.hold_ends(geo, run);
            return Ok(0);
        };
        let (no, bits) = clusters_of(geo, unused);
        assert!(
            !bits.is_empty() && bits.end <= geo.clusters_in(no),
            "an allocation is within one group"
        );
        let mut group = self.loaded(fs, no)?;
        let table = desc_block(fs, no)?;
        let buf = self.writable_bitmap(fs, no, &mut group, handle)?;
        if !bitmap::all_zero(&buf.data(), bits.clone()) {
            return Err(Corruption::new("in use and free at once")
                .in_block(unused.start)
                .into());
        }
        let count = bits.len() as u32;
        let mut bitmap = handle.write(&buf)?;
        bitmap::set_range(&mut bitmap, bits);
        group.desc.free_clusters -= count;
        finish_bitmap(fs, no, &mut group, handle, bitmap, &table)?;
        drop(group);
        self.hold_ends(geo, run);
        Ok(count)
    }

    /// Undoes [`Allocator::mark_used`] in the same handle: the blocks, those of `file` from its block on or metadata, are
    /// allocated in memory only, as before. `unused` are the whole clusters that it has marked. Returns their number. Two
    /// credits, the same as those of marking.
    pub fn unmark_used(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        run: Run,
        file: Option<(Ino, FileBlock)>,
        unused: Option<Run>,
    ) -> Result<u32> {
        let geo = fs.geo();
        self.hold_again(geo, run, file, unused)?;
        let Some(unused) = unused else {
            return Ok(0);
        };
        let (no, bits) = clusters_of(geo, unused);
        let mut group = self.loaded(fs, no)?;
        let table = desc_block(fs, no)?;
        let buf = self.writable_bitmap(fs, no, &mut group, handle)?;
        let mut bitmap = handle.write(&buf)?;
        debug_assert!(
            bitmap::all_set(&bitmap, bits.clone()),
            "only blocks marked used are unmarked"
        );
        let count = bits.len() as u32;
        bitmap::clear_range(&mut bitmap, bits);
        group.desc.free_clusters += count;
        finish_bitmap(fs, no, &mut group, handle, bitmap, &table)?;
        Ok(count)
    }

    /// Frees allocated blocks that were not marked used.
    pub fn release(&self, fs: &Ext4, run: Run) {
        if fs.geo().cluster_bits == 0 {
            self.make_free(fs, run, true);
            return;
        }
        for clusters in self.end_hold(fs.geo(), run) {
            self.make_free(fs, clusters, true);
        }
    }

    /// Frees whole clusters in memory; `count`: also in the totals.
    pub(super) fn make_free(&self, fs: &Ext4, run: Run, count: bool) {
        let geo = fs.geo();
        let (no, bits) = clusters_of(geo, run);
        let freed = bits.len() as u32;
        let mut group = self.group(no);
        if let Some(busy) = &mut group.busy {
            debug_assert!(
                bitmap::all_set(busy, bits.clone()),
                "only busy blocks are freed"
            );
            bitmap::clear_range(busy, bits);
        }
        group.free += freed;
        assert!(
            group.free <= geo.clusters_in(no),
            "a group has no more free blocks than blocks"
        );
        group.longest = geo.clusters_per_group;
        if count {
            self.totals.lock().free += u64::from(freed);
        }
    }

    /// Pins the bitmaps and descriptors that freeing these blocks changes.
    pub fn pin_to_free(&self, fs: &Ext4, pins: &mut Pins, start: DevBlock, len: u64) -> Result<()> {
        let geo = fs.geo();
        if !self.may_own(geo, start, len) {
            return Err(no_files_block(start));
        }
        let mut at = start;
        let end = start.plus(len);
        while at < end {
            let (no, first) = geo.group_of_block(at);
            let group = self.loaded(fs, no)?;
            if !group.desc.block_uninit(geo) {
                pins.keep(block_bitmap(fs, no, &group.desc)?);
            }
            pins.keep(desc_block(fs, no)?);
            drop(group);
            at = at.plus(u64::from(geo.blocks_in(no) - first));
        }
        Ok(())
    }

    /// Frees the clusters of blocks in the caller's handle. They can be allocated again once its transaction is durable.
    /// Two credits for each group that the run touches.
    pub fn free_blocks(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        start: DevBlock,
        len: u64,
    ) -> Result<()> {
        let geo = fs.geo();
        if !self.may_own(geo, start, len) {
            return Err(no_files_block(start));
        }
        let (start, len) = geo.whole_clusters(start, len);
        let mut at = start;
        // A last cluster of the volume that is cut short is freed up to its last block.
        let end = start.plus(len).min(DevBlock(geo.blocks_count));
        while at < end {
            let (no, first) = geo.group_of_block(at);
            let len = u64::from(geo.blocks_in(no) - first).min(end.0 - at.0) as u32;
            self.free_in_group(fs, handle, no, Run { start: at, len })?;
            at = at.plus(len.into());
        }
        Ok(())
    }

    fn free_in_group(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        no: GroupNo,
        run: Run,
    ) -> Result<()> {
        let (group_of_run, bits) = clusters_of(fs.geo(), run);
        assert!(run.len > 0 && group_of_run == no, "the run is in the group");
        let mut group = self.loaded(fs, no)?;
        let table = desc_block(fs, no)?;
        let buf = self.writable_bitmap(fs, no, &mut group, handle)?;
        if !bitmap::all_set(&buf.data(), bits.clone()) {
            return Err(Corruption::new("freed although it is free")
                .in_block(run.start)
                .into());
        }
        let count = bits.len() as u32;
        let mut bitmap = handle.write(&buf)?;
        bitmap::clear_range(&mut bitmap, bits);
        group.desc.free_clusters += count;
        finish_bitmap(fs, no, &mut group, handle, bitmap, &table)?;
        drop(group);
        if handle.is_journaled() {
            self.totals.lock().pending += u64::from(count);
            self.pending.lock().push((handle.tid(), run));
        } else {
            self.make_free(fs, run, true);
        }
        Ok(())
    }

    /// Transaction `tid` is durable: blocks freed by it and by older transactions become free.
    pub fn committed(&self, fs: &Ext4, tid: Tid) {
        if fs.geo().cluster_bits > 0 {
            self.forget_unmapped(tid);
        }
        let mut done = Vec::new();
        self.pending.lock().retain(|&(freed, run)| {
            let durable = tid.at_least(freed);
            if durable {
                done.push(run);
            }
            !durable
        });
        done.sort_unstable_by_key(|run| run.start);
        for done in done.chunks(RUNS_AT_ONCE) {
            if self.discard.load(Ordering::Relaxed) {
                // Tasks wait for the commit, and later ones for its end.
                let tag = IoTag::background().with_urgency(Urgency::Journal);
                discard_runs(fs, done, tag);
            }
            for &run in done {
                self.make_free(fs, run, true);
                // Subtracted last, so that a task short of space sees the blocks as free or as pending.
                let clusters = u64::from(fs.geo().clusters_for(run.len));
                let mut totals = self.totals.lock();
                assert!(totals.pending >= clusters, "committed blocks were pending");
                totals.pending -= clusters;
            }
        }
    }

    /// The block bitmap's buffer for writing, initialised if it was never written.
    pub(super) fn writable_bitmap(
        &self,
        fs: &Ext4,
        no: GroupNo,
        group: &mut Group,
        handle: &mut Handle<'_>,
    ) -> Result<Arc<MetaBuf>> {
        let geo = fs.geo();
        if !group.desc.block_uninit(geo) {
            return block_bitmap(fs, no, &group.desc);
        }
        let buf = fs.meta().get_new(group.desc.block_bitmap);
        let mut bits = handle.write(&buf)?;
        group_desc::init_block_bitmap(geo, no, &group.desc, &mut bits);
        drop(bits);
        buf.set_verified(BLOCK_BITMAP);
        group.desc.flags &= !BLOCK_UNINIT;
        Ok(buf)
    }
}

/// Discards free runs, in the order of their blocks; those that follow each other at once. A refusal by the device is only
/// logged.
pub(super) fn discard_runs(fs: &Ext4, runs: &[Run], tag: IoTag) {
    let size = fs.geo().block_size;
    let follows = |first: &Run, next: &Run| first.start.plus(first.len.into()) == next.start;
    let ios: Vec<_> = runs
        .chunk_by(follows)
        .map(|runs| {
            let len: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
            let bio = Bio::discard(size.offset_of(runs[0].start), len << size.bits());
            fs.queue().submit(bio, tag)
        })
        .collect();
    for io in ios {
        if let Err(error) = io.wait() {
            tracing::debug!(%error, "discard refused");
        }
    }
}

/// A group's block bitmap, verified.
pub(super) fn block_bitmap(fs: &Ext4, no: GroupNo, desc: &GroupDesc) -> Result<Arc<MetaBuf>> {
    let buf = fs.block(desc.block_bitmap, IoTag::default())?;
    let check = |bits: &[u8]| {
        desc.verify_block_bitmap(fs.geo(), bits)
            .map_err(|e| e.in_group(no))
    };
    buf.verify_once(BLOCK_BITMAP, check)?;
    Ok(buf)
}

/// Seals a changed block bitmap into its descriptor and writes that.
pub(super) fn finish_bitmap(
    fs: &Ext4,
    no: GroupNo,
    group: &mut Group,
    handle: &mut Handle<'_>,
    bits: MetaMut<'_>,
    table: &Arc<MetaBuf>,
) -> Result<()> {
    group.desc.seal_block_bitmap(fs.geo(), &bits);
    drop(bits);
    write_desc(fs, no, &group.desc, handle, table)
}

/// The block of the descriptor table that holds the group's descriptor.
pub(super) fn desc_block(fs: &Ext4, no: GroupNo) -> Result<Arc<MetaBuf>> {
    let (n, _) = fs.geo().desc_slot(no);
    fs.block(fs.geo().desc_block_at(n), IoTag::default())
}

/// The group of a run of whole clusters, and their bits in its bitmap.
fn clusters_of(geo: &Geometry, run: Run) -> (GroupNo, Range<u32>) {
    let (no, first) = geo.group_of_block(run.start);
    debug_assert!(
        first.is_multiple_of(geo.blocks_per_cluster()),
        "clusters are allocated and freed as wholes"
    );
    let first = first >> geo.cluster_bits;
    (no, first..first + geo.clusters_for(run.len))
}

fn no_files_block(start: DevBlock) -> FsError {
    Corruption::new("freed, but belongs to the volume's own metadata")
        .in_block(start)
        .into()
}

/// Writes a descriptor into its block of the table.
pub(super) fn write_desc(
    fs: &Ext4,
    no: GroupNo,
    desc: &GroupDesc,
    handle: &mut Handle<'_>,
    table: &Arc<MetaBuf>,
) -> Result<()> {
    let geo = fs.geo();
    let (_, at) = geo.desc_slot(no);
    let mut table = handle.write(table)?;
    desc.encode_into(geo, no, &mut table[at..at + usize::from(geo.desc_size)]);
    Ok(())
}
