//! Small-file batching: new blocks of many files are allocated side by side, so their writes merge, and one transaction
//! maps them all.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::DevBlock;
use steadfs_vfs::Result;

use super::flush_waiters::SmallFileBatch;
use super::{Engine, Intent, WritebackFile, WritebackFs};
use crate::{DirtyEpoch, FlushGuard, WritebackReason};

/// Files whose data is in flight together, at most.
const FILES: usize = 256;

impl<S: WritebackFs> Engine<'_, S> {
    /// Writes the dirty data of many files and waits, as [`Engine::write_out`] does for one. The others are written after
    /// an error, too.
    ///
    /// # Errors
    /// The first of all.
    pub fn write_out_files(&self, files: &[u64], intent: Intent<S::Hint>) -> Result<()> {
        let epoch = self.0.writeback().end_epoch();
        let limits = self.0.limits();
        let mut result = Ok(());
        let mut group: Vec<Arc<S::File>> = Vec::new();
        let mut bytes = 0;
        for &number in files {
            let Some(file) = self.0.file(number) else {
                continue;
            };
            let dirty = file.pages().dirty_bytes();
            if dirty > limits.small_file_bytes {
                result = result.and(self.write_out(&file, epoch, intent));
                continue;
            }
            if group.len() == FILES || bytes + dirty > limits.small_batch_bytes {
                result = result.and(self.write_group(std::mem::take(&mut group), epoch, intent));
                bytes = 0;
            }
            bytes += dirty;
            group.push(file);
        }
        result.and(self.write_group(group, epoch, intent))
    }

    fn write_group(
        &self,
        mut group: Vec<Arc<S::File>>,
        epoch: DirtyEpoch,
        intent: Intent<S::Hint>,
    ) -> Result<()> {
        if group.is_empty() {
            return Ok(());
        }
        let reason = intent.reason;
        if reason == WritebackReason::Early {
            group.retain(|file| self.0.may_write_early(file));
        }
        // The order of their locks.
        group.sort_unstable_by_key(|file| file.number().0);
        self.0.check_writable()?;
        self.0.before_turn(intent.with_urgency().tag)?;
        let first = self.write_small_files(&group, intent);
        let mut result = Ok(());
        // What another task was writing, what had grown, what was in flight when this began, what found no space.
        for file in &group {
            let left = match reason {
                WritebackReason::Sync => true,
                WritebackReason::Background | WritebackReason::Throttle => {
                    file.pages().dirty_bytes() > 0
                }
                // The fsync that is expected writes it.
                WritebackReason::Early => false,
            };
            if left && !file.pages().is_empty() {
                result = result.and(self.write_out(file, epoch, intent));
            }
        }
        match first {
            // Those were tried again.
            Err(error) if self.0.is_retried(&error) => result,
            first => first.and(result),
        }
    }

    /// Writes what can be written of a group without waiting for another task's write-back. The files are in the order of
    /// their locks.
    ///
    /// # Errors
    /// The first of all.
    pub fn write_small_files(&self, group: &[Arc<S::File>], intent: Intent<S::Hint>) -> Result<()> {
        let intent = intent.with_urgency();
        let queue = self.0.queue();
        // Early write-back is submitted in one piece by this task, which waits for it anyway.
        let plug = (intent.reason == WritebackReason::Early).then(|| queue.plug());
        let limit = self.0.limits().small_file_bytes;
        let mut result = Ok(());
        let mut locks = Vec::with_capacity(group.len());
        let mut runs = Vec::with_capacity(group.len());
        let mut in_flight = DeviceRuns::default();
        let batch = SmallFileBatch::new();
        for file in group {
            let intent = Intent {
                tag: batch.effective(queue, intent.tag),
                ..intent
            };
            let Some(lock) = FlushGuard::try_lock(&**file) else {
                continue;
            };
            let pages = file.pages();
            let limit = usize::try_from(limit >> pages.block_size().bits()).unwrap_or(usize::MAX);
            if self.0.encoded_end(file, 0).is_some() {
                // Its blocks become others, which do not merge; the pass over what is left writes them.
                continue;
            }
            let collected = pages.collect_with(limit, || (0..u64::MAX, file.size()));
            if collected.0.is_empty() {
                continue;
            }
            let mut run = self.allocate_run(file, collected, None, &intent);
            if !run.device_runs().all(|(at, len)| in_flight.add(at, len)) {
                // A damaged volume: two files have one block. Their writes must not meet.
                result = result.and(self.finish_runs(std::mem::take(&mut runs)));
                in_flight = DeviceRuns::default();
                run.device_runs().for_each(|(at, len)| {
                    in_flight.add(at, len);
                });
            }
            self.submit_run(plug.as_ref(), &mut run, intent.tag);
            batch.add(queue, run.ios());
            file.flush().waiters().set_batch(queue, Some(&batch));
            locks.push((file, lock));
            runs.push(run);
        }
        let result = result.and(self.finish_runs(runs));
        for (file, lock) in locks {
            file.flush().waiters().set_batch(queue, None);
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
