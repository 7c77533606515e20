//! The bytes of an archive: a file, or a stream whose data are kept in a file without a name.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::read::{Result, TarError, broken};
use super::{BLOCK, padding};
use crate::tools::is_readable;

/// Bytes that are read at once.
const BUFFER: usize = 1 << 18;

/// Most bytes that are read after the end of the archive in a stream.
const REST_MAX: u64 = 16 << 20;

/// What `stopped` ends.
type Stopped<'s> = &'s dyn Fn() -> bool;

/// The archive's file, whose reads end when the work is to stop: a signal must not have to wait for the sender of a stream.
struct Source<'s> {
    file: File,
    is_stream: bool,
    stopped: Stopped<'s>,
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if (self.stopped)() {
                // The kind Interrupted would be tried again.
                return Err(io::Error::other("stopped"));
            }
            if !self.is_stream || is_readable(self.file.as_fd())? {
                return self.file.read(buffer);
            }
        }
    }
}

impl Seek for Source<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// An archive that is being read, and then the data of its members.
pub(crate) struct Tape<'s> {
    input: BufReader<Source<'s>>,
    /// What was read ahead.
    first: Vec<u8>,
    at: u64,
    /// For a file that can be read at any place: its size.
    len: Option<u64>,
    /// For a stream: the file that keeps its data.
    spool: Option<BufWriter<File>>,
    spooled: u64,
}

impl<'s> Tape<'s> {
    /// On an open file, from its current position on. Reads of it fail once `stopped` says so.
    pub fn new(mut file: File, stopped: Stopped<'s>) -> Result<Self> {
        let found = file.metadata()?;
        let (len, at) = match found.is_file() {
            true => (Some(found.len()), file.stream_position()?),
            false => (None, 0),
        };
        let source = Source {
            file,
            is_stream: len.is_none(),
            stopped,
        };
        Ok(Self {
            input: BufReader::with_capacity(BUFFER, source),
            first: Vec::new(),
            at,
            len,
            spool: None,
            spooled: 0,
        })
    }

    /// Bytes read so far.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The first block, or what there is of it; it is read again.
    pub fn peek(&mut self) -> Result<&[u8]> {
        let mut first = self.input.by_ref().take(BLOCK as u64);
        first.read_to_end(&mut self.first)?;
        Ok(&self.first)
    }

    /// A value, or an error at this place.
    pub fn broken_if_none<T>(&self, value: Option<T>, why: &str) -> Result<T> {
        value.ok_or_else(|| broken(self.at, why))
    }

    /// The next block; `None` at the end of the file.
    pub fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut filled = self.first.len();
        block[..filled].copy_from_slice(&self.first);
        self.first.clear();
        while filled < BLOCK {
            match self.input.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(self.short()),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.at += BLOCK as u64;
        Ok(Some(block))
    }

    /// The next block, which must be there.
    pub fn full_block(&mut self) -> Result<[u8; BLOCK]> {
        match self.block()? {
            Some(block) => Ok(block),
            None => Err(self.short()),
        }
    }

    fn short(&self) -> TarError {
        broken(self.at, "the archive ends within a member: it is cut short")
    }

    /// The next `size` bytes, and passes over their padding.
    pub fn data(&mut self, size: u64) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        self.input.by_ref().take(size).read_to_end(&mut data)?;
        if (data.len() as u64) < size {
            return Err(self.short());
        }
        self.at += size;
        self.pass(padding(size) as u64)?;
        Ok(data)
    }

    /// Passes over `count` bytes.
    fn pass(&mut self, count: u64) -> Result<()> {
        let passed = io::copy(&mut self.input.by_ref().take(count), &mut io::sink())?;
        self.at += passed;
        match passed == count {
            true => Ok(()),
            false => Err(self.short()),
        }
    }

    /// Keeps the data of a member, and passes over them. Returns their place in the file of [`Tape::into_data`].
    pub fn keep(&mut self, size: u64) -> Result<u64> {
        let padded = size.checked_add(padding(size) as u64);
        let padded = self.broken_if_none(padded, "its size is too large")?;
        if let Some(len) = self.len {
            let place = self.at;
            let step = i64::try_from(padded).ok();
            let step = step.filter(|_| self.at.checked_add(padded).is_some_and(|end| end <= len));
            let Some(step) = step else {
                return Err(self.short());
            };
            self.input.seek_relative(step)?;
            self.at += padded;
            return Ok(place);
        }
        let place = self.spooled;
        let mut left = size;
        while left > 0 {
            let n = self.spool_some(left)?;
            left -= n;
        }
        self.pass(padding(size) as u64)?;
        Ok(place)
    }

    fn spool_some(&mut self, left: u64) -> Result<u64> {
        use io::BufRead;
        let spool = match &mut self.spool {
            Some(spool) => spool,
            None => self
                .spool
                .insert(BufWriter::with_capacity(BUFFER, unnamed()?)),
        };
        let bytes = self.input.fill_buf()?;
        let n = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if n == 0 {
            return Err(self.short());
        }
        spool
            .write_all(&bytes[..n])
            .map_err(|error| not_kept(&error))?;
        self.input.consume(n);
        self.at += n as u64;
        self.spooled += n as u64;
        Ok(n as u64)
    }

    /// Passes over the data of a member.
    pub fn skip(&mut self, size: u64) -> Result<()> {
        let padded = size.checked_add(padding(size) as u64);
        let padded = self.broken_if_none(padded, "its size is too large")?;
        self.pass(padded)
    }

    /// The file that has the data of all members. The rest of a stream's last record is read, so that its sender does not
    /// fail.
    pub fn into_data(mut self) -> Result<File> {
        if self.len.is_none() {
            io::copy(&mut self.input.by_ref().take(REST_MAX), &mut io::sink())?;
        }
        match self.spool {
            Some(spool) => {
                let file = spool.into_inner();
                file.map_err(|error| not_kept(&error.into_error()))
            }
            None => Ok(self.input.into_inner().file),
        }
    }
}

/// Where the data of a stream are kept.
fn spool_dir() -> PathBuf {
    let dir = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
    dir.map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// The data of a stream could not be kept there.
fn not_kept(error: &io::Error) -> TarError {
    let dir = spool_dir();
    let dir = dir.display();
    TarError::Other(format!(
        "{dir}: cannot keep the stream: {error} (TMPDIR names another directory)"
    ))
}

/// A file without a name in that directory.
fn unnamed() -> Result<File> {
    let dir = spool_dir();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(Path::new(&dir), flags, Mode::RUSR | Mode::WUSR);
    Ok(File::from(file.map_err(|error| not_kept(&error.into()))?))
}

/// Reads all of `buffer` at `at`.
pub(crate) fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<()> {
    file.read_exact_at(buffer, at)
}
