//! Write-back of many files at once: their blocks lie side by side, so their writes merge, and one
//! handle names them all.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag, Urgency};
use steadfs_cache::{DirtyEpoch, WritebackReason};
use steadfs_vfs::Result;

use crate::data::flush_waiters::SmallFileBatch;
use crate::disk::Ino;
use crate::fs::Ext4;
use crate::inode::Inode;

/// Files whose data is in wb_run together.
const BATCH_FILES_MAX: usize = 256;
/// Dirty bytes of a file up to which it goes with others, and of all that go together.
const SMALL_FILE_BYTES_MAX: u64 = 128 << 10;
const BATCH_BYTES_MAX: u64 = 8 << 20;

impl Ext4 {
    /// Writes the dirty data of many files and waits, as [`Ext4::write_out`] does for one. The first
    /// error of all; the others are written all the same.
    pub fn write_out_files(&self, files: &[u64], why: WritebackReason, tag: IoTag) -> Result<()> {
        let epoch = self.writeback.end_epoch();
        let mut result = Ok(());
        let mut group: Vec<Arc<Inode>> = Vec::new();
        let mut bytes = 0;
        for &ino in files {
            let inode = u32::try_from(ino).ok().map(Ino);
            let Some(inode) = inode.and_then(|ino| self.inodes.get(ino)) else {
                continue;
            };
            let dirty = inode.pages.dirty_bytes();
            if dirty > SMALL_FILE_BYTES_MAX {
                result = result.and(self.write_out_of(&inode, epoch, why, tag));
                continue;
            }
            if group.len() == BATCH_FILES_MAX || bytes + dirty > BATCH_BYTES_MAX {
                result = result.and(self.write_group(std::mem::take(&mut group), epoch, why, tag));
                bytes = 0;
            }
            bytes += dirty;
            group.push(inode);
        }
        result.and(self.write_group(group, epoch, why, tag))
    }

    fn write_group(
        &self,
        mut group: Vec<Arc<Inode>>,
        epoch: DirtyEpoch,
        why: WritebackReason,
        tag: IoTag,
    ) -> Result<()> {
        if group.is_empty() {
            return Ok(());
        }
        // The order of their locks.
        group.sort_unstable_by_key(|inode| inode.ino());
        let mut result = self.check_writable();
        if result.is_ok() {
            result = self.write_small(&group, why, tag);
        }
        // What somebody else was writing, what had grown, what was in wb_run when this began.
        for inode in &group {
            let left = match why {
                WritebackReason::Sync => true,
                WritebackReason::Background | WritebackReason::Throttle => {
                    inode.pages.dirty_bytes() > 0
                }
                // The fsync that is expected does that.
                WritebackReason::Early => false,
            };
            if left && !inode.pages.is_empty() {
                result = result.and(self.write_out_of(inode, epoch, why, tag));
            }
        }
        result
    }

    /// Writes what can be written of a group without waiting for anybody else's write-back.
    pub(super) fn write_small(
        &self,
        group: &[Arc<Inode>],
        why: WritebackReason,
        tag: IoTag,
    ) -> Result<()> {
        let tag = match why {
            WritebackReason::Sync => tag.with_urgency(Urgency::Waited),
            WritebackReason::Background | WritebackReason::Throttle | WritebackReason::Early => {
                tag.with_urgency(Urgency::Background)
            }
        };
        // What is little and not late goes together from this task, which waits for it anyway.
        let plug = (why == WritebackReason::Early).then(|| self.queue.plug());
        let limit = SMALL_FILE_BYTES_MAX as usize >> self.geo.block_size.bits();
        let mut result = Ok(());
        let mut locks = Vec::with_capacity(group.len());
        let mut wb_runs = Vec::with_capacity(group.len());
        let mut device_runs = DeviceRuns::default();
        let batch = SmallFileBatch::new();
        for inode in group {
            let tag = batch.raised(&self.queue, tag);
            let Some(lock) = inode.try_lock_flush() else {
                continue;
            };
            let collected = inode
                .pages
                .collect_with(limit, || (0..u64::MAX, inode.size()));
            if collected.0.is_empty() {
                continue;
            }
            let mut wb_run = self.allocate_run(inode, collected, None, tag);
            if !wb_run
                .device_runs()
                .all(|(at, len)| device_runs.add(at, len))
            {
                // A damaged volume: two files have one block. Their writes must not meet.
                result = result.and(self.finish_runs(std::mem::take(&mut wb_runs)));
                device_runs = DeviceRuns::default();
                wb_run.device_runs().for_each(|(at, len)| {
                    device_runs.add(at, len);
                });
            }
            self.submit_run(plug.as_ref(), &mut wb_run, tag);
            batch.add(&self.queue, wb_run.ios());
            inode.flush_waiters.set_batch(&self.queue, Some(&batch));
            locks.push((inode, lock));
            wb_runs.push(wb_run);
        }
        let result = result.and(self.finish_runs(wb_runs));
        for (inode, lock) in locks {
            inode.flush_waiters.set_batch(&self.queue, None);
            drop(lock);
        }
        result
    }
}

/// Blocks of the device that are being written, as ends by starts.
#[derive(Default)]
struct DeviceRuns(BTreeMap<u64, u64>);

impl DeviceRuns {
    /// Adds a run; false if some of it is there already.
    fn add(&mut self, at: DevBlock, len: u64) -> bool {
        let end = at.0 + len;
        let before = self.0.range(..end).next_back();
        let free = before.is_none_or(|(_, &last)| last <= at.0);
        if free {
            self.0.insert(at.0, end);
        }
        free
    }
}
