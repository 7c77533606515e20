//! Blocks: who may use which.
//!
//! **Two steps.** A block is *claimed* in memory first; the data is written; and only then does a
//! handle *use* the claim, which sets its bit in the on-disk bitmap together with the extent that
//! names it. So no committed metadata ever names a block whose data is not written, and a crash (or a
//! failed write) between the steps leaks nothing: the claim was memory only.
//!
//! **Freed blocks** are clear on disk with the transaction that frees them, but stay busy in memory
//! until that transaction is durable: before, a crash would bring the old owner back, and whatever
//! had been written to the block meanwhile would be his content.
//!
//! So a group's `busy` bitmap is: on disk in use, or claimed, or freed and not yet committed.

mod corrupt;
mod inodes;
mod load;
mod prealloc;
mod search;
mod totals;
mod trim;
mod zones;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use steadfs_base::{Corruption, DevBlock, IoTag, Tid};
use steadfs_block::Bio;
use steadfs_cache::{MetaBuf, MetaMut};
use steadfs_jbd2::JournalMap;
use steadfs_rt::{Mutex, MutexGuard};
use steadfs_vfs::{FsError, Result};

use crate::disk::group_desc::{self, BLOCK_UNINIT, GroupDesc};
use crate::disk::{Geometry, GroupNo, bitmap};
use crate::fs::Ext4;
use crate::pins::Pins;
use crate::txn::Handle;
use crate::verified::BLOCK_BITMAP;

use corrupt::CorruptGroups;
pub(crate) use load::Descriptors;
use prealloc::PreallocTable;
pub use totals::{RESERVE_PER_BLOCK_EXTENT, RESERVE_PER_BLOCK_INDIRECT, Totals};
use zones::Zones;

/// A run of blocks that lies in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub start: DevBlock,
    /// Blocks, at least one.
    pub len: u32,
}

impl Run {
    /// What is behind the first `n` blocks.
    pub fn behind(self, n: u32) -> Self {
        Self {
            start: self.start.plus(n.into()),
            len: self.len - n,
        }
    }
}

/// A group's allocation state.
struct Group {
    /// The descriptor as handles have changed it.
    desc: GroupDesc,
    /// On disk in use, claimed, or freed and not committed; loaded on first use.
    busy: Option<Box<[u8]>>,
    /// Clear bits of `busy` (before loading: the descriptor's count).
    free: u32,
    /// No run of free blocks is longer than this.
    longest: u32,
    /// It was found damaged, and that was told.
    is_corrupt: bool,
}

/// All groups of a volume.
pub struct Allocator {
    groups: Vec<Mutex<Group>>,
    inode_tables: Vec<DevBlock>,
    zones: Zones,
    totals: Mutex<Totals>,
    /// Freed with a transaction that is not durable yet.
    pending: Mutex<Vec<(Tid, Run)>>,
    /// Claimed for files that grow.
    prealloc: PreallocTable,
    /// Where the last new directory at the top of the tree went.
    next_top_dir: AtomicU32,
    /// Counts up when blocks are free again that were being discarded.
    trimmed: AtomicU64,
    /// Callers who found too little room and are about to look again.
    shortages: AtomicU32,
    discard: AtomicBool,
    /// Blocks to whose multiples long claims are aligned; 1: to none.
    stripe: AtomicU32,
    corrupt_groups: CorruptGroups,
}

impl Allocator {
    /// Keeps the journal's blocks from files as well.
    pub fn add_journal(&mut self, journal: &JournalMap) -> Result<()> {
        let mut runs = journal.runs();
        if runs.all(|(start, len)| self.zones.add(start, len)) {
            return Ok(());
        }
        Err(Corruption::new("the journal overlaps other metadata").into())
    }

    /// Whether a run of blocks may belong to a file: inside the volume and apart from the journal and
    /// every group's own metadata.
    pub fn may_own(&self, geo: &Geometry, start: DevBlock, len: u64) -> bool {
        geo.is_data_range(start, len) && !self.zones.overlaps(start, len)
    }

    /// Whether freed blocks are discarded.
    pub fn set_discard(&self, discard: bool) {
        self.discard.store(discard, Ordering::Relaxed);
    }

    /// Aligns long claims to multiples of so many blocks; 1: to none.
    pub fn set_stripe(&self, blocks: u32) {
        assert!(blocks > 0, "a stripe has a length");
        self.stripe.store(blocks, Ordering::Relaxed);
    }

    /// Blocks of the volume's own metadata.
    pub fn own_blocks(&self) -> u64 {
        self.zones.total()
    }

    /// Counts of the whole volume.
    pub fn totals(&self) -> Totals {
        self.totals.lock().clone()
    }

    /// Changes the counts.
    pub(crate) fn with_totals<R>(&self, f: impl FnOnce(&mut Totals) -> R) -> R {
        f(&mut self.totals.lock())
    }

    fn group(&self, group: GroupNo) -> MutexGuard<'_, Group> {
        self.groups[group.0 as usize].lock()
    }

    /// Locks a group with its `busy` bitmap loaded.
    fn loaded(&self, fs: &Ext4, no: GroupNo) -> Result<MutexGuard<'_, Group>> {
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
            let blocks = geo.blocks_in(no);
            let free = bitmap::count_zeros(&busy, 0..blocks);
            if free != group.desc.free_clusters {
                let said = group.desc.free_clusters;
                let what = format!("bitmap has {free} free blocks, descriptor {said}");
                return Err(Corruption::new(what).in_group(no.0).into());
            }
            bitmap::set_range(&mut busy, blocks..geo.block_size.bytes() as u32 * 8);
            // Whatever the bitmap says, the group's own metadata is nobody's to take.
            self.zones.mark(geo.first_block_of(no), blocks, &mut busy);
            group.free = bitmap::count_zeros(&busy, 0..blocks);
            group.busy = Some(busy);
        }
        Ok(group)
    }

    /// Makes a claim durable with the caller's handle: bitmap, descriptor, counts. The caller inserts
    /// what names the blocks in the same handle. Two credits.
    pub fn mark_used(&self, fs: &Ext4, handle: &mut Handle<'_>, run: Run) -> Result<()> {
        let geo = fs.geo();
        let (no, first) = geo.group_of_block(run.start);
        let mut group = self.loaded(fs, no)?;
        let table = desc_block(fs, no)?;
        let buf = self.writable_bitmap(fs, no, &mut group, handle)?;
        if !bitmap::all_zero(&buf.data(), first..first + run.len) {
            return Err(Corruption::new("in use and free at once")
                .in_block(run.start)
                .into());
        }
        let mut bits = handle.write(&buf)?;
        bitmap::set_range(&mut bits, first..first + run.len);
        group.desc.free_clusters -= run.len;
        finish_bitmap(fs, no, &mut group, handle, bits, &table)
    }

    /// Takes [`Allocator::mark_used`] back in the same handle: the blocks are claimed as before. Two
    /// credits, those that using it had.
    pub fn unmark_used(&self, fs: &Ext4, handle: &mut Handle<'_>, run: Run) -> Result<()> {
        let (no, first) = fs.geo().group_of_block(run.start);
        let mut group = self.loaded(fs, no)?;
        let table = desc_block(fs, no)?;
        let buf = self.writable_bitmap(fs, no, &mut group, handle)?;
        let mut bits = handle.write(&buf)?;
        debug_assert!(bitmap::all_set(&bits, first..first + run.len), "used");
        bitmap::clear_range(&mut bits, first..first + run.len);
        group.desc.free_clusters += run.len;
        finish_bitmap(fs, no, &mut group, handle, bits, &table)
    }

    /// Gives back a claim that was not used.
    pub fn release(&self, fs: &Ext4, run: Run) {
        self.make_free(fs, run, true);
    }

    fn make_free(&self, fs: &Ext4, run: Run, count: bool) {
        let (no, first) = fs.geo().group_of_block(run.start);
        let mut group = self.group(no);
        if let Some(busy) = &mut group.busy {
            debug_assert!(bitmap::all_set(busy, first..first + run.len), "freed once");
            bitmap::clear_range(busy, first..first + run.len);
        }
        group.free += run.len;
        group.longest = fs.geo().blocks_per_group;
        if count {
            self.totals.lock().free += u64::from(run.len);
        }
    }

    /// Reads what freeing these blocks will need, before the first change.
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

    /// Frees blocks with the caller's handle. They can be used again once that is durable. Two credits
    /// for each group the run touches.
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
        let mut at = start;
        let end = start.plus(len);
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
        let (_, first) = fs.geo().group_of_block(run.start);
        let mut group = self.loaded(fs, no)?;
        let table = desc_block(fs, no)?;
        let buf = self.writable_bitmap(fs, no, &mut group, handle)?;
        if !bitmap::all_set(&buf.data(), first..first + run.len) {
            return Err(Corruption::new("freed, but is free")
                .in_block(run.start)
                .into());
        }
        let mut bits = handle.write(&buf)?;
        bitmap::clear_range(&mut bits, first..first + run.len);
        group.desc.free_clusters += run.len;
        finish_bitmap(fs, no, &mut group, handle, bits, &table)?;
        drop(group);
        if handle.is_journaled() {
            self.totals.lock().pending += u64::from(run.len);
            self.pending.lock().push((handle.tid(), run));
        } else {
            self.make_free(fs, run, true);
        }
        Ok(())
    }

    /// Transaction `tid` is durable: what it and older ones freed can be used.
    pub fn committed(&self, fs: &Ext4, tid: Tid) {
        let mut done = Vec::new();
        self.pending.lock().retain(|&(freed, run)| {
            let durable = tid.at_least(freed);
            if durable {
                done.push(run);
            }
            !durable
        });
        for run in done {
            if self.discard.load(Ordering::Relaxed) {
                self.discard_run(fs, run);
            }
            self.make_free(fs, run, true);
            // After that: who is short of room sees it there or here.
            self.totals.lock().pending -= u64::from(run.len);
        }
    }

    /// Tells the device that a free run's content is not needed. A device that refuses loses nothing.
    fn discard_run(&self, fs: &Ext4, run: Run) {
        let size = fs.geo().block_size;
        let bio = Bio::discard(size.offset_of(run.start), u64::from(run.len) << size.bits());
        if let Err(error) = fs.queue().submit(bio, IoTag::background()).wait() {
            tracing::debug!(%error, "discard refused");
        }
    }

    /// The block bitmap's buffer, made fit for writing if it never was written.
    fn writable_bitmap(
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

    /// A goal for a new file's first block: its inode's group, or for parallel writers a group of the
    /// same flex group.
    pub fn goal_for(&self, geo: &Geometry, ino: crate::disk::Ino) -> DevBlock {
        let (group, _) = geo.group_of_inode(ino);
        geo.first_block_of(group)
    }

    /// The next place for a directory at the top of the tree.
    fn next_top_group(&self, geo: &Geometry) -> GroupNo {
        GroupNo(self.next_top_dir.fetch_add(1, Ordering::Relaxed) % geo.group_count)
    }
}

/// A group's block bitmap, verified.
fn block_bitmap(fs: &Ext4, no: GroupNo, desc: &GroupDesc) -> Result<Arc<MetaBuf>> {
    let buf = fs.block(desc.block_bitmap, IoTag::default())?;
    let check = |bits: &[u8]| {
        desc.verify_block_bitmap(fs.geo(), bits)
            .map_err(|e| e.in_group(no))
    };
    buf.verify_once(BLOCK_BITMAP, check)?;
    Ok(buf)
}

/// Seals a changed block bitmap into its descriptor and writes that.
fn finish_bitmap(
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

/// The block of the descriptor table that holds a group's.
fn desc_block(fs: &Ext4, no: GroupNo) -> Result<Arc<MetaBuf>> {
    let (n, _) = fs.geo().desc_slot(no);
    fs.block(fs.geo().desc_block_at(n), IoTag::default())
}

fn no_files_block(start: DevBlock) -> FsError {
    Corruption::new("freed, but belongs to the volume's own metadata")
        .in_block(start)
        .into()
}

/// Writes a descriptor into its block of the table.
fn write_desc(
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
