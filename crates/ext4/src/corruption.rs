//! Reaction to corruption: it is recorded in the superblock and in `.steadfs/errors`, and `errors=` is applied.

use std::panic::Location;

use steadfs_base::{Corruption, CorruptionKind, IoTag};
use steadfs_rt::wall_clock;
use steadfs_vfs::{FsError, Result};

use crate::disk::Ino;
use crate::disk::superblock::{self, ErrorRecord, STATE_ERROR};
use crate::fs::Ext4;
use crate::options::OnError;

/// `EXT4_ERR_EFSBADCRC` and `EXT4_ERR_EFSCORRUPTED`: the codes that the kernel records for wrong
/// checksums and for other corruption.
const BAD_CHECKSUM: u8 = 4;
const CORRUPTED: u8 = 5;
/// `EXT4_ERR_EIO`.
const IO_ERROR: u8 = 2;

/// Records a half-done change in a superblock.
#[track_caller]
pub(crate) fn record_half_done(sb: &mut superblock::Superblock) {
    sb.record_error(&ErrorRecord {
        time: wall_clock(),
        inode: None,
        block: None,
        function: "steadfs txn.rs",
        line: Location::caller().line(),
        code: IO_ERROR,
    });
    sb.set_state(sb.state() | STATE_ERROR);
}

impl Ext4 {
    /// Returns a call's result, after recording the corruption that the call failed with or skipped. The caller holds
    /// no lock.
    #[track_caller]
    #[inline]
    pub(crate) fn report_corruption<T>(&self, result: Result<T>) -> Result<T> {
        for corruption in self.alloc.take_corruption() {
            self.handle_corruption(&corruption, Location::caller());
        }
        if let Err(FsError::Corrupt(corruption)) = &result {
            self.handle_corruption(corruption, Location::caller());
        }
        result
    }

    fn handle_corruption(&self, corruption: &Corruption, found: &Location<'_>) {
        self.errors.record_corruption(corruption);
        if self.check_writable().is_err() {
            return;
        }
        let asked = self.options.read().errors;
        let read_only = match asked {
            Some(asked) => asked == OnError::RemountReadOnly,
            // A program cannot panic the machine: `panic` makes the volume read-only, too.
            None => self.sb.lock().on_error() != superblock::OnError::Continue,
        };
        // After a failed write an unmount commits nothing more.
        let last = read_only || self.stop_state.is_unmounting();
        if let Err(error) = self.write_error_record(corruption, found, last) {
            tracing::error!(%error, "recording the corruption in the superblock failed");
        }
        if read_only {
            self.shut_down(&corruption.to_string());
        }
    }

    /// Writes the error record; made durable if nothing will be committed afterwards.
    fn write_error_record(
        &self,
        corruption: &Corruption,
        found: &Location<'_>,
        last: bool,
    ) -> Result<()> {
        let file = found.file().rsplit('/').next().unwrap_or_default();
        let record = ErrorRecord {
            time: wall_clock(),
            inode: corruption.inode.and_then(Ino::from_vfs),
            block: corruption.block,
            function: &format!("steadfs {file}"),
            line: found.line(),
            code: match corruption.kind {
                CorruptionKind::Checksum => BAD_CHECKSUM,
                CorruptionKind::Magic | CorruptionKind::Structure => CORRUPTED,
            },
        };
        self.txns.run(1, IoTag::default(), |handle| {
            self.update_super(handle, |sb| {
                sb.record_error(&record);
                sb.set_state(sb.state() | STATE_ERROR);
            })
        })?;
        if last {
            self.commit_running(IoTag::default())?;
            if let Some(meta) = self.txns.direct() {
                meta.write_dirty(IoTag::default())
                    .map_err(crate::io_error)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
