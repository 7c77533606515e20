//! Small-file batching: the dirty data of many files is written by one run. Newly allocated blocks are consecutive,
//! so their writes merge.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::Plug;
use steadfs_cache::{DirtyEpoch, WritebackReason};
use steadfs_vfs::{FileKind, FsError, Result};

use super::BLOCK;
use super::placement::{self, Occasion};
use super::writeout::urgency;
use crate::disk::{BlockAddr, Nid};
use crate::fs::F2fs;
use crate::inode::Inode;

/// Files whose data is in flight at the same time.
const FILES_PER_BATCH: usize = 256;
/// The largest amount of dirty data that makes a file small, and the most of one batch.
const DIRTY_BYTES_SMALL_FILE: u64 = 1 << 20;
const DIRTY_BYTES_PER_BATCH: u64 = 4 << 20;

impl F2fs {
    /// Writes the dirty data of many files and waits, as [`F2fs::write_out`] does for one file. A failure does not
    /// keep the other files from being written; the first error is returned. The caller holds no lock.
    pub(crate) fn write_out_files(
        &self,
        files: &[u64],
        why: WritebackReason,
        tag: IoTag,
    ) -> Result<()> {
        let epoch = self.writeback.end_epoch();
        let mut result = Ok(());
        let mut batch: Vec<Arc<Inode>> = Vec::new();
        let mut bytes = 0;
        for &ino in files {
            let nid = u32::try_from(ino).ok().map(Nid);
            let Some(inode) = nid.and_then(|nid| self.inodes.find(nid).ok()) else {
                continue;
            };
            if inode.kind() != FileKind::Regular {
                continue;
            }
            let dirty = inode.pages.dirty_bytes();
            if dirty > DIRTY_BYTES_SMALL_FILE {
                result = result.and(self.write_out_epoch(&inode, epoch, why, tag));
                continue;
            }
            if batch.len() == FILES_PER_BATCH || bytes + dirty > DIRTY_BYTES_PER_BATCH {
                result =
                    result.and(self.write_file_batch(std::mem::take(&mut batch), epoch, why, tag));
                bytes = 0;
            }
            bytes += dirty;
            batch.push(inode);
        }
        result.and(self.write_file_batch(batch, epoch, why, tag))
    }

    fn write_file_batch(
        &self,
        mut batch: Vec<Arc<Inode>>,
        epoch: DirtyEpoch,
        why: WritebackReason,
        tag: IoTag,
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        if why == WritebackReason::Early {
            // Only files written in place: newly allocated blocks would add a node to the fsync that is expected.
            let volume = self.placement_state();
            batch.retain(|inode| {
                placement::ipu(&volume, &self.file_hints(inode), Occasion::Background)
            });
        }
        // Flush locks are taken in this order.
        batch.sort_unstable_by_key(|inode| inode.nid());
        self.check_writable()?;
        self.balance(tag)?;
        let occasion = match why {
            WritebackReason::Sync => Occasion::Sync,
            WritebackReason::Background | WritebackReason::Throttle | WritebackReason::Early => {
                Occasion::Background
            }
        };
        // Early write-back is small and not urgent: this task submits it through a plug, because it waits for it
        // anyway.
        let plug = (why == WritebackReason::Early).then(|| self.queue.plug());
        let first = self.write_small_files(plug.as_ref(), &batch, occasion, tag);
        let mut result = Ok(());
        // What is left: files under write-back by other tasks, files that had grown, blocks that were in flight
        // when this began, blocks that met full logs.
        for inode in &batch {
            let left = match why {
                WritebackReason::Sync => true,
                WritebackReason::Background | WritebackReason::Throttle => {
                    inode.pages.dirty_bytes() > 0
                }
                // The fsync that is expected writes the rest.
                WritebackReason::Early => false,
            };
            if left && !inode.pages.is_empty() {
                result = result.and(self.write_out_epoch(inode, epoch, why, tag));
            }
        }
        match first {
            // Those blocks were retried above.
            Err(FsError::NoSpace) => result,
            first => first.and(result),
        }
    }

    /// Writes what can be written without waiting for the write-back of another task.
    pub(super) fn write_small_files(
        &self,
        plug: Option<&Plug<'_>>,
        batch: &[Arc<Inode>],
        occasion: Occasion,
        tag: IoTag,
    ) -> Result<()> {
        let tag = tag.with_urgency(urgency(occasion));
        let limit = (DIRTY_BYTES_SMALL_FILE / BLOCK) as usize;
        let volume = self.placement_state();
        let mut result = Ok(());
        let mut locks = Vec::with_capacity(batch.len());
        let mut runs = Vec::with_capacity(batch.len());
        let mut overwritten = OverwrittenRanges::default();
        for inode in batch {
            let Some(lock) = inode.try_lock_flush() else {
                continue;
            };
            let file = self.file_hints(inode);
            let all = || (0..u64::MAX, inode.size());
            let collected = inode.pages.collect_with(limit, all);
            if collected.0.is_empty() {
                continue;
            }
            let mut wb_run = self.allocate_run(inode, (&volume, &file), collected, occasion, tag);
            if !wb_run.ipu().all(|(at, len)| overwritten.add(at, len)) {
                // The volume is corrupt: two files map one block. Their writes must not be in flight together.
                result = result.and(self.finish_runs(std::mem::take(&mut runs)));
                overwritten = OverwrittenRanges::default();
                wb_run.ipu().for_each(|(at, len)| {
                    overwritten.add(at, len);
                });
            }
            self.submit_run(plug, &mut wb_run, tag);
            locks.push(lock);
            runs.push(wb_run);
        }
        result.and(self.finish_runs(runs))
    }
}

/// Device blocks that are being overwritten in place: end by start.
#[derive(Default)]
struct OverwrittenRanges(BTreeMap<u32, u32>);

impl OverwrittenRanges {
    /// Adds a run. Returns false if a part of it is present already.
    fn add(&mut self, at: BlockAddr, len: u32) -> bool {
        let end = at.0.saturating_add(len);
        let before = self.0.range(..end).next_back();
        let free = before.is_none_or(|(_, &last)| last <= at.0);
        if free {
            self.0.insert(at.0, end);
        }
        free
    }
}
