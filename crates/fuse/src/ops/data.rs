//! Operations on file data: read, write, copy, sync.

use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use steadfs_rt::now;
use steadfs_vfs::names::in_pieces;
use steadfs_vfs::{FsError, Seek, is_control_inode};

use crate::admin::is_owner;
use crate::call::{Call, Outcome};
use crate::reply::ReplyBuf;
use crate::request::Op;
use crate::wire;

/// Longest read that is answered. The kernel asks for at most the size that INIT and the option `max_read` state.
const READ_BYTES_MAX: usize = 16 << 20;

impl Call<'_> {
    /// Makes a file or the volume durable, and records the time that this took.
    pub(super) fn sync(&self, op: &Op<'_>) -> Outcome {
        let fs = &*self.volume.fs;
        let began = now();
        let synced = match *op {
            Op::Fsync { datasync } => fs.fsync(&self.cx, self.ino, datasync),
            _ => fs.sync_all(&self.cx),
        };
        if !is_control_inode(self.ino) {
            self.volume.config.stats.count_fsync(began.elapsed());
        }
        Ok(synced?)
    }

    pub(super) fn read(&self, arg: &wire::ReadIn, out: &mut ReplyBuf) -> Outcome {
        let len = (arg.size as usize).min(READ_BYTES_MAX);
        // O_DIRECT is not enough: a mapping through such a descriptor reads into the page cache.
        if arg.read_flags & wire::BYPASS_CACHE == 0 {
            self.volume.will_be_cached(self.ino);
        }
        let fs = &self.volume.fs;
        out.data = fs.read(&self.cx, self.ino, arg.offset, len)?;
        // Cut by the limit: the kernel would take the short reply for the end of the file.
        let is_cut = out.data.len() == len && len < arg.size as usize;
        if out.data.len() > len || is_cut {
            return Err(Errno::IO.into());
        }
        if !is_control_inode(self.ino) {
            self.volume.config.stats.count_read(out.data.len());
        }
        Ok(())
    }

    pub(super) fn seek(&self, arg: &wire::LseekIn, out: &mut ReplyBuf) -> Outcome {
        let what = match arg.whence {
            3 => Seek::Data,
            4 => Seek::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        let offset = self.volume.fs.seek(&self.cx, self.ino, arg.offset, what)?;
        out.put(&wire::LseekOut { offset });
        Ok(())
    }

    pub(super) fn write(&self, arg: &wire::WriteIn, data: &[u8], out: &mut ReplyBuf) -> Outcome {
        // The files' mode allows uid 0 to write, which may be a container's root.
        if is_control_inode(self.ino) {
            if !is_owner(self.header) {
                return Err(Errno::PERM.into());
            }
            self.volume.may_become_writable();
        }
        let bypass = arg.write_flags & wire::BYPASS_CACHE != 0;
        self.volume.will_be_written(self.ino, bypass);
        let kill_priv = arg.write_flags & wire::WRITE_KILL_SUIDGID != 0;
        // After a buffered write the kernel fetches the mode again.
        let direct = arg.flags & OFlags::DIRECT.bits() != 0;
        let kills = self.may_kill(self.ino, kill_priv && direct)?;
        let mapped = arg.write_flags & wire::WRITE_CACHE != 0;
        let (n, written) = self.put(arg.offset, data, direct || mapped, kill_priv);
        if n > 0 {
            self.killed(self.ino, kills);
        }
        if !is_control_inode(self.ino) {
            self.volume.config.stats.count_written(n);
        }
        if direct && n > 0 {
            let bytes = arg.offset..arg.offset.saturating_add(n as u64);
            self.volume.pages_changed(self.ino, bytes);
        }
        written?;
        let size = u32::try_from(n).map_err(|_| Errno::IO)?;
        out.put(&wire::WriteOut { size, padding: 0 });
        Ok(())
    }

    /// Writes until an error, or with `whole` until all is written; returns the number of bytes written and the error
    /// that ended it. The kernel turns a short direct write into EIO, whatever stopped it, because it has several
    /// pieces of one call in flight. It takes a short write of mapped pages for a complete one: msync(2) only reports
    /// errors.
    fn put(
        &self,
        offset: u64,
        data: &[u8],
        whole: bool,
        kill_priv: bool,
    ) -> (usize, Result<(), FsError>) {
        let fs = &*self.volume.fs;
        let mut done = 0;
        loop {
            let at = offset.saturating_add(done as u64);
            match fs.write(&self.cx, self.ino, at, &data[done..], kill_priv) {
                Ok(n) if whole && n > 0 && done + n < data.len() => done += n,
                Ok(n) => return (done + n, Ok(())),
                Err(error) => return (done, Err(error)),
            }
        }
    }

    pub(super) fn copy_range(
        &self,
        arg: &wire::CopyFileRangeIn,
        wide: bool,
        out: &mut ReplyBuf,
    ) -> Outcome {
        // A copy may be short, and its caller continues. So one request takes a bounded time.
        const COPY_BYTES_MAX: u64 = 16 << 20;
        const PIECE_BYTES: u64 = 1 << 20;
        const COPY_TIME_MAX: Duration = Duration::from_millis(50);
        if arg.flags != 0 {
            return Err(Errno::INVAL.into());
        }
        let to = self.volume.translate.ids.ino(arg.nodeid_out);
        let kills = self.may_kill(to, !self.cx.fsetid)?;
        let (began, served) = (now(), out.served.clone());
        let bytes_max = match self.volume.recorder() {
            // A record has at most as much as a request.
            Some(_) => PIECE_BYTES,
            None => COPY_BYTES_MAX,
        };
        let copied = in_pieces(arg.len.min(bytes_max), PIECE_BYTES, |done, n| {
            if done > 0 && (served.is_interrupted() || began.elapsed() > COPY_TIME_MAX) {
                return Ok(0);
            }
            self.cx.check_killed()?;
            let from = (self.ino, arg.off_in.saturating_add(done));
            let to = (to, arg.off_out.saturating_add(done));
            self.volume.fs.copy_range(&self.cx, from, to, n)
        });
        if copied.is_err() {
            let bytes = arg.off_out..arg.off_out.saturating_add(arg.len);
            self.may_have_changed(to, Some(bytes));
        }
        let copied = copied?;
        self.killed(to, kills);
        // The kernel does not expect that the time of the last access changes.
        self.volume.attributes_changed(self.ino);
        if wide {
            out.put(&wire::CopyFileRangeOut {
                bytes_copied: copied,
            });
        } else {
            let size = u32::try_from(copied).map_err(|_| Errno::IO)?;
            out.put(&wire::WriteOut { size, padding: 0 });
        }
        Ok(())
    }
}
