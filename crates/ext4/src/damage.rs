//! What happens when the volume turns out to be damaged: noted in the superblock, and `errors=` obeyed.

use std::sync::atomic::Ordering;

use steadfs_base::{DevBlock, IoTag};
use steadfs_rt::wall_clock;
use steadfs_vfs::{FsError, Result};

use crate::disk::Ino;
use crate::disk::superblock::{self, ErrorRecord, STATE_ERROR};
use crate::fs::Ext4;
use crate::options::OnError;

/// `EXT4_ERR_EFSCORRUPTED`: the code that the kernel records for damaged structures.
const CORRUPTED: u8 = 5;

impl Ext4 {
    /// Passes a call's result on; damage that it met is noted first. The caller holds no lock.
    pub(crate) fn judge<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(FsError::Corrupt(what)) = &result {
            self.damaged(what);
        }
        result
    }

    fn damaged(&self, what: &str) {
        tracing::error!(what, "the volume is damaged");
        if self.check_writable().is_err() {
            return;
        }
        let asked = self.options.read().errors;
        let read_only = match asked {
            Some(asked) => asked == OnError::RemountReadOnly,
            // A program cannot stop the machine: the strongest it can do is to stop writing.
            None => self.sb.lock().on_error() != superblock::OnError::Continue,
        };
        if let Err(error) = self.record_damage(read_only) {
            tracing::error!(%error, "noting the damage failed");
        }
        if read_only {
            self.read_only.store(true, Ordering::Release);
            if let Some(journal) = self.txns.journal() {
                journal.shutdown(what);
            }
        }
    }

    /// Writes the error record; made durable if nothing will be committed afterwards.
    fn record_damage(&self, last: bool) -> Result<()> {
        let record = ErrorRecord {
            time: wall_clock(),
            inode: None::<Ino>,
            block: None::<DevBlock>,
            function: "steadfs",
            line: 0,
            code: CORRUPTED,
        };
        let mut handle = self.txns.begin(1)?;
        self.update_super(&mut handle, |sb| {
            sb.record_error(&record);
            sb.set_state(sb.state() | STATE_ERROR);
        })?;
        drop(handle);
        if last {
            self.commit_running(IoTag::default())?;
            if let Some(meta) = self.txns.direct() {
                meta.write_dirty(IoTag::default())
                    .map_err(crate::fs::io_error)?;
            }
        }
        Ok(())
    }
}
