//! Blocks of groups on disk: marking them used and freeing them, in handles.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use steadfs_base::{Corruption, DevBlock, IoTag, Tid};
use steadfs_block::Bio;
use steadfs_cache::{MetaBuf, MetaMut};
use steadfs_rt::MutexGuard;
use steadfs_vfs::{FsError, Result};

use super::{Allocator, Group, Run};
use crate::disk::group_desc::{self, BLOCK_UNINIT, GroupDesc};
use crate::disk::{GroupNo, bitmap};
use crate::fs::Ext4;
use crate::pins::Pins;
use crate::txn::Handle;
use crate::verified::BLOCK_BITMAP;

impl Allocator {
    /// Locks a group with its `busy` bitmap loaded.
    pub(super) fn loaded(&self, fs: &Ext4, no: GroupNo) -> Result<MutexGuard<'_, Group>> {
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
            // The group's own metadata is never free, even if the bitmap has it as free.
            self.zones.mark(geo.first_block_of(no), blocks, &mut busy);
            group.free = bitmap::count_zeros(&busy, 0..blocks);
            group.busy = Some(busy);
        }
        Ok(group)
    }

    /// Whether a block is free, so that no file or metadata has it. One whose group cannot be read is not.
    pub(crate) fn is_free(&self, fs: &Ext4, block: DevBlock) -> bool {
        let geo = fs.geo();
        if block < geo.first_data_block || block.0 >= geo.blocks_count {
            return false;
        }
        let (no, at) = geo.group_of_block(block);
        let group = self.loaded(fs, no);
        group.is_ok_and(|group| {
            let busy = group.busy.as_ref().expect("loaded");
            bitmap::find_zero_run(busy, at..at + 1, 1).is_some()
        })
    }

    /// Marks allocated blocks as used on disk in the caller's handle: bitmap, descriptor, counts. The caller maps the
    /// blocks in the same handle. Two credits.
    pub fn mark_used(&self, fs: &Ext4, handle: &mut Handle<'_>, run: Run) -> Result<()> {
        let geo = fs.geo();
        let (no, first) = geo.group_of_block(run.start);
        assert!(
            run.len > 0 && first + run.len <= geo.blocks_in(no),
            "an allocation is within one group"
        );
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

    /// Undoes [`Allocator::mark_used`] in the same handle: the blocks are allocated in memory only, as before. Two
    /// credits, the same as those of marking.
    pub fn unmark_used(&self, fs: &Ext4, handle: &mut Handle<'_>, run: Run) -> Result<()> {
        let (no, first) = fs.geo().group_of_block(run.start);
        let mut group = self.loaded(fs, no)?;
        let table = desc_block(fs, no)?;
        let buf = self.writable_bitmap(fs, no, &mut group, handle)?;
        let mut bits = handle.write(&buf)?;
        debug_assert!(
            bitmap::all_set(&bits, first..first + run.len),
            "only blocks marked used are unmarked"
        );
        bitmap::clear_range(&mut bits, first..first + run.len);
        group.desc.free_clusters += run.len;
        finish_bitmap(fs, no, &mut group, handle, bits, &table)
    }

    /// Frees allocated blocks that were not marked used.
    pub fn release(&self, fs: &Ext4, run: Run) {
        self.make_free(fs, run, true);
    }

    pub(super) fn make_free(&self, fs: &Ext4, run: Run, count: bool) {
        let (no, first) = fs.geo().group_of_block(run.start);
        let mut group = self.group(no);
        if let Some(busy) = &mut group.busy {
            debug_assert!(
                bitmap::all_set(busy, first..first + run.len),
                "only busy blocks are freed"
            );
            bitmap::clear_range(busy, first..first + run.len);
        }
        group.free += run.len;
        assert!(
            group.free <= fs.geo().blocks_in(no),
            "a group has no more free blocks than blocks"
        );
        group.longest = fs.geo().blocks_per_group;
        if count {
            self.totals.lock().free += u64::from(run.len);
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

    /// Frees blocks in the caller's handle. They can be allocated again once its transaction is durable. Two credits
    /// for each group that the run touches.
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
        let (group_of_run, first) = fs.geo().group_of_block(run.start);
        assert!(run.len > 0 && group_of_run == no, "the run is in the group");
        let mut group = self.loaded(fs, no)?;
        let table = desc_block(fs, no)?;
        let buf = self.writable_bitmap(fs, no, &mut group, handle)?;
        if !bitmap::all_set(&buf.data(), first..first + run.len) {
            return Err(Corruption::new("freed although it is free")
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

    /// Transaction `tid` is durable: blocks freed by it and by older transactions become free.
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
            // Subtracted last, so that a task short of space sees the blocks as free or as pending.
            let mut totals = self.totals.lock();
            assert!(
                totals.pending >= run.len.into(),
                "committed blocks were pending"
            );
            totals.pending -= u64::from(run.len);
        }
    }

    /// Discards a free run. A refusal by the device is only logged.
    pub(super) fn discard_run(&self, fs: &Ext4, run: Run) {
        let size = fs.geo().block_size;
        let bio = Bio::discard(size.offset_of(run.start), u64::from(run.len) << size.bits());
        if let Err(error) = fs.queue().submit(bio, IoTag::background()).wait() {
            tracing::debug!(%error, "discard refused");
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
