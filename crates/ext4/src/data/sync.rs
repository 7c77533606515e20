//! fsync, fdatasync and sync.

use steadfs_base::{IoTag, Tid, Urgency};
use steadfs_cache::{DirtyFile, WritebackReason};
use steadfs_jbd2::Journal;
use steadfs_rt::inherit;
use steadfs_vfs::{Cx, FileKind, FsError, Result};

use crate::fs::Ext4;
use crate::inode::Inode;
use crate::io_error;
use crate::txn::journal_error;

impl Ext4 {
    /// fsync and fdatasync. The calling thread writes, commits and flushes; no other thread is woken, unless a commit
    /// or a write of the same data is already in progress.
    pub fn fsync_inode(&self, cx: &Cx, inode: &Inode, datasync: bool) -> Result<()> {
        let synced = self.make_durable(cx, inode, datasync);
        synced.map_err(FsError::not_durable)
    }

    fn make_durable(&self, cx: &Cx, inode: &Inode, datasync: bool) -> Result<()> {
        if let Some(cause) = self.stop_state.cause() {
            return Err(FsError::Stopped(cause));
        }
        let tag = cx.tag.with_urgency(Urgency::Waited);
        // Priority inheritance: tasks that hold a lock this task waits for issue I/O at its tag.
        let _task_tag = inherit::set_task_tag(tag);
        if inode.kind() == FileKind::Regular {
            self.writeback.record_fsync(DirtyFile(inode.ino().0.into()));
            self.write_cluster(inode, tag);
            // A fast commit is written after the data, but is shorter than the log blocks beside it.
            let journal = self.txns.journal();
            let beside = match journal.is_some_and(|journal| journal.has_fast_commits()) {
                true => Ok(false),
                false => self.sync_beside_log(inode, datasync, tag),
            };
            let synced = match beside {
                Ok(false) => self
                    .write_out(inode, WritebackReason::Sync, tag)
                    .map(|()| false),
                synced => synced,
            };
            // An error of a background write is reported here once, even if the data has been written since.
            let earlier = inode.pages.take_error();
            let is_durable = synced?;
            if let Some(error) = earlier {
                return Err(error.into());
            }
            if is_durable {
                return Ok(());
            }
        }
        match self.check_writable() {
            Ok(()) => self.store_if_dirty(inode)?,
            // The volume stopped by another task's error, and the inode was not stored.
            Err(error) if error.is_stop() => return Err(error),
            Err(_) => {}
        }
        match (self.txns.journal(), self.txns.direct()) {
            (Some(journal), _) => {
                let reread = inode.is_reread();
                // The names are a directory's data, whatever blocks they are in.
                let datasync = datasync && inode.kind() == FileKind::Regular;
                match inode.tid_for_sync(datasync) {
                    // Changes from before may be in any transaction.
                    _ if reread => self.make_all_durable(journal, tag)?,
                    Some(tid) if self.fast_commit(journal, tid, tag)? => {}
                    Some(tid) => drop(journal.commit(tid, tag).map_err(journal_error)?),
                    None => {}
                }
                if reread {
                    inode.all_is_durable();
                }
                // The commit's FLUSH, or another task's, may have covered the data.
                match self.queue.has_flushed(inode.unflushed()) {
                    true => Ok(()),
                    false => self.flush_device(tag),
                }
            }
            (None, Some(meta)) => {
                // The metadata blocks of this file are not tracked: all dirty ones are written.
                meta.write_dirty(tag).map_err(io_error)?;
                self.flush_device(tag)
            }
            // Mounted read-only: nothing was written.
            (None, None) => Ok(()),
        }
    }

    /// Makes the changes of all transactions durable.
    fn make_all_durable(&self, journal: &Journal, tag: IoTag) -> Result<()> {
        match journal.running_tid() {
            Some(tid) if self.fast_commit(journal, tid, tag)? => Ok(()),
            _ => self.commit_running(tag),
        }
    }

    /// Makes the changes of a transaction, and all older ones, durable by a fast commit; false if that is not possible.
    fn fast_commit(&self, journal: &Journal, tid: Tid, tag: IoTag) -> Result<bool> {
        let changes = |tid| self.fast_commit_changes(tid);
        let durable = journal.fast_commit(tid, tag, &changes);
        Ok(durable.map_err(journal_error)?.is_some())
    }

    /// Makes all completed writes durable. If the FLUSH fails, it is unknown which of the writes since the last
    /// successful FLUSH the device still has, and the cache has marked them clean: the volume stops, so that no later
    /// fsync acknowledges data that may be lost.
    fn flush_device(&self, tag: IoTag) -> Result<()> {
        if !self.options.read().barrier {
            return Ok(());
        }
        self.queue.flush(tag).wait().map_err(|error| {
            self.abort(&error.to_string());
            io_error(error)
        })
    }

    /// Stores an inode that was changed in memory only.
    pub(crate) fn store_if_dirty(&self, inode: &Inode) -> Result<()> {
        if !inode.is_core_dirty() || inode.marks.is_dead() {
            return Ok(());
        }
        let _pins = self.pin_inodes(&[inode.ino()], IoTag::default())?;
        let tag = IoTag::default();
        self.txns.run(1, tag, |handle| {
            handle.track();
            self.store_now(handle, inode)
        })
    }

    /// Commits the running transaction and waits, also for one that is being committed.
    pub(crate) fn commit_running(&self, tag: IoTag) -> Result<()> {
        let Some(journal) = self.txns.journal() else {
            return Ok(());
        };
        journal.commit_all(tag).map_err(journal_error)?;
        Ok(())
    }

    /// Writes all data and metadata and makes it durable.
    pub fn sync_volume(&self, cx: &Cx) -> Result<()> {
        if let Some(cause) = self.stop_state.cause() {
            return Err(FsError::Stopped(cause));
        }
        let tag = cx.tag.with_urgency(Urgency::Waited);
        let dirty = self.writeback.dirty_files();
        let mut result = self.write_out_files(&dirty, WritebackReason::Sync, tag);
        if self.check_writable().is_ok() {
            for inode in self.inodes.dirty() {
                result = result.and(self.store_if_dirty(&inode));
            }
        }
        match self.txns.direct() {
            None => result = result.and(self.commit_running(tag)),
            Some(meta) => result = result.and(meta.write_dirty(tag).map_err(io_error)),
        }
        result = result.and(self.flush_device(tag));
        // The volume stopped by another task's error, and the inode was not stored.
        match self.stop_state.cause() {
            Some(cause) => result.and(Err(FsError::Stopped(cause))),
            None => result,
        }
        .map_err(FsError::not_durable)
    }
}
