//! Synchronous execution of one bio on an open file.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    FallocateFlags, FlockOperation, Mode, OFlags, fallocate, fcntl_getfl, fcntl_setfl, fdatasync,
    flock, open,
};
use rustix::io::{Errno, ReadWriteFlags};

use super::ioctl;
use crate::buf::ALIGN_BYTES;
use crate::{Bio, Buf, Geometry, IoError, Op};

/// Most iovecs in one system call (Linux `UIO_MAXIOV`).
pub(super) const MAX_PIECES: usize = 1024;
/// Length in bytes of writes of zeros, if the file system cannot zero a range.
const ZEROES_BYTES: usize = 256 << 10;

/// Kind of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TargetKind {
    Image,
    BlockDevice,
}

/// Longest read that goes through the host's page cache where that is wanted, in bytes.
const CACHED_READ_BYTES: u64 = 128 << 10;

/// Smallest sector size of devices in bytes.
const SECTOR_BYTES: u32 = 512;

/// An open file, and the window of it that is the device.
pub(super) struct Target {
    pub(super) fd: OwnedFd,
    /// The same file, whose reads go through the host's page cache, for small ones.
    cached: Option<OwnedFd>,
    pub(super) kind: TargetKind,
    pub(super) geometry: Geometry,
    /// First byte of the window.
    pub(super) start: u64,
    /// Logical sector size of the block device, in bytes.
    pub(super) sector: u32,
    /// Unit of file offsets and lengths that direct I/O takes.
    pub(super) direct_unit: u64,
    direct: AtomicBool,
    /// Why I/O is buffered.
    buffered_because: OnceLock<String>,
    /// Why writes are refused from now on.
    ended: OnceLock<String>,
    unsupported: Unsupported,
}

/// Operations that the file has refused as not supported, so that they are not tried again.
#[derive(Default)]
struct Unsupported {
    dsync: AtomicBool,
    discard: AtomicBool,
    zero_range: AtomicBool,
    punch: AtomicBool,
}

/// Why a transfer failed.
pub(super) enum TransferError {
    /// The system call failed.
    Errno(Errno),
    /// The file has been truncated.
    Ended,
}

impl From<Errno> for TransferError {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl TransferError {
    pub(super) fn cause(&self) -> String {
        match self {
            Self::Errno(errno @ Errno::NOSPC) => {
                let error = std::io::Error::from(*errno);
                format!("what stores it is full: {error}")
            }
            Self::Errno(errno) => std::io::Error::from(*errno).to_string(),
            Self::Ended => "the image file has been truncated".to_owned(),
        }
    }
}

/// Sector size of a block device; the smallest one for a file.
fn sector(fd: &OwnedFd, kind: TargetKind) -> u32 {
    let size = match kind {
        TargetKind::Image => None,
        TargetKind::BlockDevice => rustix::fs::ioctl_blksszget(fd).ok(),
    };
    size.unwrap_or(SECTOR_BYTES)
}

/// Whether direct I/O is used.
pub(super) enum DirectIo {
    /// Yes, with offsets and lengths in this unit.
    Yes(u64),
    /// No, and the reason.
    No(String),
}

impl Target {
    /// A window of `geometry.size` bytes at `start`. The descriptor's O_DIRECT flag agrees with
    /// `direct`.
    pub(super) fn new(
        fd: OwnedFd,
        kind: TargetKind,
        geometry: Geometry,
        start: u64,
        direct: DirectIo,
    ) -> Self {
        let buffered_because = OnceLock::new();
        let unit = match direct {
            DirectIo::Yes(unit) => Some(unit),
            DirectIo::No(reason) => {
                let _ = buffered_because.set(reason);
                None
            }
        };
        Self {
            kind,
            sector: sector(&fd, kind),
            fd,
            cached: None,
            geometry,
            start,
            direct_unit: unit.unwrap_or(1),
            direct: AtomicBool::new(unit.is_some()),
            buffered_because,
            ended: OnceLock::new(),
            unsupported: Unsupported::default(),
        }
    }

    /// Reads small pieces through the host's page cache, if the file can be opened once more.
    pub(super) fn cache_small_reads(&mut self) {
        if self.is_direct() {
            let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            self.cached = open(path, flags, Mode::empty()).ok();
        }
    }

    pub(super) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Acquire)
    }

    pub(super) fn buffered_because(&self) -> Option<&str> {
        self.buffered_because.get().map(String::as_str)
    }

    /// Makes every later request fail that would change the file or make something durable.
    pub(super) fn end_writes(&self, because: &str) {
        if self.ended.set(because.to_owned()).is_ok() {
            tracing::error!(
                because,
                "the image is in use by the kernel: writes are refused from now on"
            );
        }
    }

    /// Why writes are refused, if they are.
    pub(super) fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// Refuses a bio outside the window, or a change of a file whose writes are refused.
    pub(super) fn check(&self, bio: &Bio) -> Result<(), IoError> {
        self.geometry.check(bio)?;
        match self.ended() {
            Some(because) if bio.op != Op::Read => Err(IoError::of(bio, because)),
            _ => Ok(()),
        }
    }

    /// Whether the file takes `bio` unchanged: always if buffered, otherwise if every piece is in whole
    /// units.
    pub(super) fn takes_as_is(&self, bio: &Bio) -> bool {
        if !self.is_direct() {
            return true;
        }
        let unit = self.direct_unit;
        (self.start + bio.offset).is_multiple_of(unit)
            && bio
                .bufs
                .iter()
                .all(|buf| (buf.len() as u64).is_multiple_of(unit))
    }

    /// Executes `bio`, which the geometry has accepted.
    pub(super) fn run(&self, bio: &mut Bio) -> Result<(), IoError> {
        let at = self.start + bio.offset;
        let result = match bio.op {
            Op::Read => self.read(at, bio),
            Op::Write => self.write(at, bio),
            Op::Flush => retry(|| fdatasync(&self.fd)).map_err(TransferError::from),
            Op::Discard => self.discard(at, bio.len),
            Op::WriteZeroes => self.write_zeroes(at, bio.len),
        };
        result.map_err(|error| IoError::of(bio, error.cause()))
    }

    fn read(&self, at: u64, bio: &mut Bio) -> Result<(), TransferError> {
        if let Some(cached) = &self.cached
            && bio.len <= CACHED_READ_BYTES
        {
            return read_pieces(cached, at, &mut bio.bufs);
        }
        if self.takes_as_is(bio) {
            return read_pieces(&self.fd, at, &mut bio.bufs);
        }
        // Read whole units around the range.
        let unit = self.direct_unit;
        let from = at / unit * unit;
        let upto = (at + bio.len).next_multiple_of(unit);
        let mut around = Buf::zeroed((upto - from) as usize);
        let needed = (at + bio.len - from) as usize;
        let bytes = around.make_mut();
        let mut got = 0;
        while got < needed {
            // A read that ended inside a unit has reached the end of the file.
            let aligned = got / unit as usize * unit as usize;
            let n = retry(|| {
                rustix::io::pread(&self.fd, &mut bytes[aligned..], from + aligned as u64)
            })?;
            if aligned + n <= got {
                return Err(TransferError::Ended);
            }
            got = aligned + n;
        }
        let mut rest = &bytes[(at - from) as usize..needed];
        for buf in &mut bio.bufs {
            let (head, tail) = rest.split_at(buf.len());
            buf.make_mut().copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    /// Up to a sector of what follows the window in the file.
    pub(super) fn tail(&self) -> Result<Vec<u8>, Errno> {
        let end = self.start + self.geometry.size;
        let from = end / self.direct_unit * self.direct_unit;
        let skip = (end - from) as usize;
        let len = (skip + SECTOR_BYTES as usize).next_multiple_of(self.direct_unit as usize);
        let mut around = Buf::zeroed(len);
        let got = retry(|| rustix::io::pread(&self.fd, around.make_mut(), from))?;
        let tail = around.get(skip..got).unwrap_or_default();
        Ok(tail[..tail.len().min(SECTOR_BYTES as usize - 1)].to_vec())
    }

    fn write(&self, at: u64, bio: &Bio) -> Result<(), TransferError> {
        if bio.preflush {
            retry(|| fdatasync(&self.fd))?;
        }
        if !self.takes_as_is(bio) {
            let unit = self.direct_unit;
            if at.is_multiple_of(unit) && bio.len.is_multiple_of(unit) {
                let joined = Buf::concatenated(&bio.bufs);
                return self.write_pieces(at, &[joined], bio.fua);
            }
            self.fall_back_to_buffered()?;
        }
        self.write_pieces(at, &bio.bufs, bio.fua)
    }

    /// The volume writes smaller pieces than direct I/O supports. From now on all I/O uses the page cache,
    /// which merges pieces. The kernel keeps it coherent with the direct transfers that are still in
    /// flight, and an fdatasync covers both.
    fn fall_back_to_buffered(&self) -> Result<(), TransferError> {
        let flags = fcntl_getfl(&self.fd)?;
        fcntl_setfl(&self.fd, flags - OFlags::DIRECT)?;
        self.direct.store(false, Ordering::Release);
        let _ = self.buffered_because.set(format!(
            "the volume writes smaller pieces than the unit of direct I/O here, {} bytes",
            self.direct_unit
        ));
        Ok(())
    }

    fn write_pieces(&self, mut at: u64, bufs: &[Buf], durable: bool) -> Result<(), TransferError> {
        for runs in Buf::runs(bufs).chunks(MAX_PIECES) {
            let mut slices: Vec<_> = runs.iter().map(|run| IoSlice::new(run)).collect();
            let mut rest = &mut slices[..];
            while !rest.is_empty() {
                let n = self.write_some(rest, at, durable)?;
                at += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
        }
        Ok(())
    }

    fn write_some(
        &self,
        slices: &[IoSlice<'_>],
        at: u64,
        durable: bool,
    ) -> Result<usize, TransferError> {
        let n = if !durable {
            retry(|| rustix::io::pwritev(&self.fd, slices, at))?
        } else {
            self.write_durable(slices, at)?
        };
        if n == 0 {
            return Err(TransferError::Ended);
        }
        Ok(n)
    }

    fn write_durable(&self, slices: &[IoSlice<'_>], at: u64) -> Result<usize, TransferError> {
        if !self.unsupported.dsync.load(Ordering::Relaxed) {
            let flags = ReadWriteFlags::DSYNC;
            match retry(|| rustix::io::pwritev2(&self.fd, slices, at, flags)) {
                // Kernels before 4.7 and some file systems do not support the flag.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.unsupported.dsync.store(true, Ordering::Relaxed);
                }
                other => return Ok(other?),
            }
        }
        let n = retry(|| rustix::io::pwritev(&self.fd, slices, at))?;
        retry(|| fdatasync(&self.fd))?;
        Ok(n)
    }

    /// A discard may do nothing: the range then reads as before. (But with `discard_zeroes`, which is set
    /// if holes can be punched in the image, it must read as zeros.)
    fn discard(&self, at: u64, len: u64) -> Result<(), TransferError> {
        if len == 0 || self.unsupported.discard.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.kind == TargetKind::Image {
            if self.geometry.discard_zeroes {
                self.punch(at, len)?;
            }
            return Ok(());
        }
        match retry(|| ioctl::discard(self.fd.as_fd(), at, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => {
                self.unsupported.discard.store(true, Ordering::Relaxed);
                Ok(())
            }
            other => Ok(other?),
        }
    }

    fn punch(&self, at: u64, len: u64) -> Result<(), Errno> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry(|| fallocate(&self.fd, mode, at, len))
    }

    fn write_zeroes(&self, at: u64, len: u64) -> Result<(), TransferError> {
        if len == 0 {
            return Ok(());
        }
        let zero_range = || {
            let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            retry(|| fallocate(&self.fd, mode, at, len))
        };
        if try_supported(&self.unsupported.zero_range, zero_range)?
            || try_supported(&self.unsupported.punch, || self.punch(at, len))?
        {
            return Ok(());
        }
        let mut at = at - self.start;
        let end = at + len;
        while at < end {
            let piece = (end - at).min(ZEROES_BYTES as u64);
            let bio = Bio::write(at, vec![Buf::zeroed(piece as usize)]);
            self.write(self.start + at, &bio)?;
            at += piece;
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // A forked child process that has not executed its program yet holds the lock, too.
        let _ = flock(&self.fd, FlockOperation::Unlock);
    }
}

/// Calls `f` unless it was refused before; false if it is refused. A block device returns EINVAL for a
/// range that is not in whole sectors, which does not mean that it refuses every range.
fn try_supported(
    refused: &AtomicBool,
    f: impl FnOnce() -> Result<(), Errno>,
) -> Result<bool, TransferError> {
    if refused.load(Ordering::Relaxed) {
        return Ok(false);
    }
    match f() {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            refused.store(true, Ordering::Relaxed);
            Ok(false)
        }
        Err(Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn read_pieces(fd: &OwnedFd, mut at: u64, bufs: &mut [Buf]) -> Result<(), TransferError> {
    if let [buf] = bufs {
        let mut rest = buf.make_mut();
        while !rest.is_empty() {
            let n = retry(|| rustix::io::pread(fd, &mut *rest, at))?;
            if n == 0 {
                return Err(TransferError::Ended);
            }
            at += n as u64;
            rest = &mut rest[n..];
        }
        return Ok(());
    }
    for bufs in bufs.chunks_mut(MAX_PIECES) {
        let mut slices: Vec<_> = bufs
            .iter_mut()
            .map(|buf| IoSliceMut::new(buf.make_mut()))
            .collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let n = retry(|| rustix::io::preadv(fd, rest, at))?;
            if n == 0 {
                return Err(TransferError::Ended);
            }
            at += n as u64;
            IoSliceMut::advance_slices(&mut rest, n);
        }
    }
    Ok(())
}

/// Repeats `f` while it fails with EINTR.
pub(super) fn retry<T>(mut f: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match f() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

const _: () = assert!(
    ALIGN_BYTES >= 4096,
    "direct I/O takes buffers of this alignment"
);
