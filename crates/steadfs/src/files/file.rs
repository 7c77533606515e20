//! An open file.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use steadfs_base::InodeNo;
use steadfs_vfs::{FallocMode, FsError, Segment, SetAttr};

use super::error::At;
use super::{Calls, Metadata};

/// What an open file may be used for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Access {
    pub read: bool,
    pub write: bool,
    pub append: bool,
}

/// An open file of a volume, as [`std::fs::File`]. It keeps its content as long as it is open, also without a name. After
/// [`Volume::close`](crate::Volume::close) its calls fail.
///
/// What is written is durable after [`File::sync_all`], [`Volume::sync`](crate::Volume::sync) or
/// [`Volume::close`](crate::Volume::close), as with fsync(2), sync(2) and an unmount.
pub struct File {
    calls: Calls,
    ino: InodeNo,
    path: PathBuf,
    access: Access,
    position: u64,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("ino", &self.ino)
            .field("access", &self.access)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.calls.fs.forget(self.ino, 1);
    }
}

impl File {
    /// Takes over a lookup count of the file.
    pub(super) fn new(calls: Calls, ino: InodeNo, path: PathBuf, access: Access) -> Self {
        Self {
            calls,
            ino,
            path,
            access,
            position: 0,
        }
    }

    fn may(&self, allowed: bool, why: &'static str) -> io::Result<()> {
        let open = self.calls.in_use.check();
        let wrong = Err(FsError::Invalid(why));
        let checked = if allowed { open } else { open.and(wrong) };
        checked.at(&self.path)
    }

    /// Reads at `offset`; shorter than the buffer only at the end of the file.
    ///
    /// # Errors
    /// The file is not open for reading; the device failed; the volume is corrupt.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.may(self.access.read, "the file is not open for reading")?;
        let (fs, cx) = (&self.calls.fs, &self.calls.cx);
        let data = fs.read(cx, self.ino, offset, buf.len()).at(&self.path)?;
        let mut done = 0;
        for segment in data.segments() {
            match segment {
                Segment::Bytes(owner, range) => {
                    let part = &(**owner).as_ref()[range.clone()];
                    buf[done..done + part.len()].copy_from_slice(part);
                    done += part.len();
                }
                Segment::Zeros(len) => {
                    buf[done..done + len].fill(0);
                    done += len;
                }
            }
        }
        Ok(done)
    }

    /// Writes all of `bytes` at `offset`, whatever the file was opened for besides writing.
    ///
    /// # Errors
    /// The file is not open for writing; there is no space; the file would be too large.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.may(self.writes(), "the file is not open for writing")?;
        let (fs, cx) = (&self.calls.fs, &self.calls.cx);
        let mut done = 0;
        while done < bytes.len() {
            let at = offset.checked_add(done as u64).ok_or(FsError::FileTooBig);
            let written = at.and_then(|at| fs.write(cx, self.ino, at, &bytes[done..], false));
            done += written.at(&self.path)?;
        }
        Ok(())
    }

    fn writes(&self) -> bool {
        self.access.write || self.access.append
    }

    /// Attributes of the file.
    ///
    /// # Errors
    /// The volume is closed.
    pub fn metadata(&self) -> io::Result<Metadata> {
        let open = self.calls.in_use.check();
        let attr = open.and_then(|()| self.calls.fs.getattr(&self.calls.cx, self.ino));
        attr.map(Metadata::of).at(&self.path)
    }

    /// Truncates the file, or extends it by a hole.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn set_len(&self, size: u64) -> io::Result<()> {
        self.may(self.writes(), "the file is not open for writing")?;
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let set = self.calls.fs.setattr(&self.calls.cx, self.ino, &set);
        set.map(drop).at(&self.path)
    }

    /// Allocates, frees or zeroes a range of bytes, as fallocate(2).
    ///
    /// # Errors
    /// As [`File::write_at`]; the format has no such operation.
    pub fn allocate(&self, mode: FallocMode, offset: u64, len: u64) -> io::Result<()> {
        self.may(self.writes(), "the file is not open for writing")?;
        let (fs, cx) = (&self.calls.fs, &self.calls.cx);
        fs.fallocate(cx, self.ino, mode, offset, len).at(&self.path)
    }

    /// The next data at or after `offset` (`Seek::Data`), or the next hole (`Seek::Hole`; the end of the file is one). `None`: there
    /// is none before the end of the file.
    ///
    /// # Errors
    /// The volume is closed, or cannot be read.
    pub fn seek_to(&self, what: steadfs_vfs::Seek, offset: u64) -> io::Result<Option<u64>> {
        self.calls.in_use.check().at(&self.path)?;
        let (fs, cx) = (&self.calls.fs, &self.calls.cx);
        match fs.seek(cx, self.ino, offset, what) {
            Err(FsError::NoData | FsError::NoSuchOffset) => Ok(None),
            found => found.map(Some).at(&self.path),
        }
    }

    /// Makes the file durable, as fsync(2).
    ///
    /// # Errors
    /// Something could not be written, now or since the last call.
    pub fn sync_all(&self) -> io::Result<()> {
        let synced = self.calls.fs.fsync(&self.calls.cx, self.ino, false);
        synced.at(&self.path)
    }

    /// Makes the content durable, as fdatasync(2).
    ///
    /// # Errors
    /// As [`File::sync_all`].
    pub fn sync_data(&self) -> io::Result<()> {
        let synced = self.calls.fs.fsync(&self.calls.cx, self.ino, true);
        synced.at(&self.path)
    }

    /// Writes all of `bytes` at the end of the file, and returns where they begin. Of two calls at the same time, on any open
    /// file, one writes behind the other.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn append(&self, bytes: &[u8]) -> io::Result<u64> {
        let _end_stays = self.calls.in_use.appends.lock();
        let end = self.metadata()?.len();
        self.write_at(bytes, end)?;
        Ok(end)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let done = self.read_at(buf, self.position)?;
        self.position += done as u64;
        Ok(done)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let at = match self.access.append {
            true => self.append(bytes)?,
            false => {
                self.write_at(bytes, self.position)?;
                self.position
            }
        };
        self.position = at + bytes.len() as u64;
        Ok(bytes.len())
    }

    /// Does nothing: nothing is held back in the file. [`File::sync_all`] makes it durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.len().checked_add_signed(by),
        };
        let before_start = FsError::Invalid("seek to before the start of the file");
        self.position = position.ok_or(before_start).at(&self.path)?;
        Ok(self.position)
    }
}
