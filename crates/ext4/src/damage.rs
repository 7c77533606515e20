//! What happens when the volume turns out to be damaged: noted in the superblock, and `errors=` obeyed.

use std::panic::Location;
use std::sync::atomic::Ordering;

use steadfs_base::{DevBlock, IoTag};
use steadfs_rt::wall_clock;
use steadfs_vfs::{FsError, Result};

use crate::disk::Ino;
use crate::disk::superblock::{self, ErrorRecord, STATE_ERROR};
use crate::fs::Ext4;
use crate::options::OnError;

/// `EXT4_ERR_EFSBADCRC` and `EXT4_ERR_EFSCORRUPTED`: the codes that the kernel records for wrong
/// checksums and for other damage.
const BAD_CHECKSUM: u8 = 4;
const CORRUPTED: u8 = 5;
/// `EXT4_ERR_EIO`.
const IO_ERROR: u8 = 2;

/// Marks a superblock because a change was left half done.
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
    /// Passes a call's result on; damage that it met, or passed over, is noted first. The caller holds no lock.
    #[track_caller]
    #[inline]
    pub(crate) fn judge<T>(&self, result: Result<T>) -> Result<T> {
        for what in self.alloc.take_damage() {
            self.damaged(&what, Location::caller());
        }
        if let Err(FsError::Corrupt(what)) = &result {
            self.damaged(what, Location::caller());
        }
        result
    }

    fn damaged(&self, what: &str, found: &Location<'_>) {
        // Each finding once: a program that tries again would fill the log.
        if self.findings.record(what) {
            tracing::error!(what, "the volume is damaged");
        }
        if self.check_writable().is_err() {
            return;
        }
        let asked = self.options.read().errors;
        let read_only = match asked {
            Some(asked) => asked == OnError::RemountReadOnly,
            // A program cannot stop the machine: the strongest it can do is to stop writing.
            None => self.sb.lock().on_error() != superblock::OnError::Continue,
        };
        // Whoever unmounts commits nothing more where something could not be written.
        let last = read_only || self.unmounted.load(Ordering::Acquire);
        if let Err(error) = self.record_damage(what, found, last) {
            tracing::error!(%error, "noting the damage failed");
        }
        if read_only {
            self.stop_all(what);
        }
    }

    /// Writes the error record; made durable if nothing will be committed afterwards.
    fn record_damage(&self, what: &str, found: &Location<'_>, last: bool) -> Result<()> {
        let file = found.file().rsplit('/').next().unwrap_or_default();
        let wrong_sum = what.contains("checksum");
        let record = ErrorRecord {
            time: wall_clock(),
            inode: number_after(what, "inode").and_then(|n| u32::try_from(n).ok().map(Ino)),
            block: number_after(what, "block").map(DevBlock),
            function: &format!("steadfs {file}"),
            line: found.line(),
            code: if wrong_sum { BAD_CHECKSUM } else { CORRUPTED },
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

/// The number behind a word: messages about corruption name the place as "inode 12" and "block 345"; a "file block 5" is
/// none of the device's.
fn number_after(what: &str, word: &str) -> Option<u64> {
    let mut words = what.split([' ', ':', ',', '(', ')']);
    let mut before = "";
    loop {
        let one = words.next()?;
        if one == word && before != "file" {
            return words.next()?.parse().ok();
        }
        before = one;
    }
}

#[cfg(test)]
mod tests;
