//! Open of an image file or block device.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, Stat, StatxFlags, fallocate,
    fcntl_getfl, fcntl_setfl, fstat, ftruncate, open, seek, stat, statx,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::claim;
use super::guard::watch_opens;
use super::id::FileId;
use super::transfer::{DirectIo, Target, TargetKind, retry};
use crate::buf::ALIGN_BYTES;
use crate::open_options::{OpenError, OpenOptions};
use crate::{Buf, Geometry};

/// Smallest unit of a device's offsets and lengths, in bytes.
const SECTOR_BYTES: u64 = 512;
/// Largest transfer of one request, in bytes.
const MAX_TRANSFER_BYTES: u32 = 1 << 20;

impl OpenError {
    fn io(path: &Path, what: &'static str) -> impl FnOnce(Errno) -> Self {
        let path = path.to_owned();
        move |errno| Self::Io {
            path,
            what,
            cause: errno.into(),
        }
    }
}

impl TargetKind {
    /// The kind of a file that can be a device.
    pub(super) fn of(stat: &Stat) -> Option<Self> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Some(Self::Image),
            FileType::BlockDevice => Some(Self::BlockDevice),
            _ => None,
        }
    }
}

/// A file that was opened and claimed. Its descriptors can be passed to another process.
pub struct ClaimedFile {
    pub(super) fd: OwnedFd,
    pub(super) second: Option<OwnedFd>,
}

impl ClaimedFile {
    /// Opens the image or block device for writing and claims it, for a process that has it open for reading only. Without
    /// `claim` a block device is not claimed with O_EXCL, because the kernel's mount of ours claims it.
    ///
    /// # Errors
    /// As [`FileDevice::open`](super::FileDevice::open).
    pub fn for_writing(path: &Path, options: &OpenOptions, claim: bool) -> Result<Self, OpenError> {
        let options = OpenOptions {
            read_only: false,
            create: None,
            ..options.clone()
        };
        Self::open(path, &options, claim)
    }

    /// Opens a file as the options say, and claims it; one that is created has no bytes yet. With `claim` a block device is
    /// claimed with O_EXCL.
    ///
    /// # Errors
    /// As [`FileDevice::open`](super::FileDevice::open).
    pub fn open(path: &Path, options: &OpenOptions, claim: bool) -> Result<Self, OpenError> {
        let (fd, exclusive) = retry_busy(|| try_claim(path, options, claim))?;
        Self::guarded(path, options, fd, exclusive)
    }

    /// Claims a file that another process has opened for this one: for writing unless the options are read-only.
    /// `exclusive` is the same block device opened with O_EXCL, which claims it.
    ///
    /// # Errors
    /// As [`FileDevice::open`](super::FileDevice::open).
    pub fn claim_opened(
        path: &Path,
        options: &OpenOptions,
        fd: OwnedFd,
        exclusive: Option<OwnedFd>,
    ) -> Result<Self, OpenError> {
        if let Some(exclusive) = &exclusive
            && !same_file(&fd, exclusive)
        {
            let changed = OpenError::io(path, "has been replaced while it was opened");
            return Err(changed(Errno::STALE));
        }
        let file = fstat(&fd).map_err(OpenError::io(path, "cannot be examined"))?;
        check_protection(path, options, &file)?;
        retry_busy(|| lock_opened(path, options, &fd))?;
        check_name(path, &fd)?;
        // A reader does not keep the claim, so that several can read.
        let exclusive = exclusive.filter(|_| !options.read_only);
        Self::guarded(path, options, fd, exclusive)
    }

    fn guarded(
        path: &Path,
        options: &OpenOptions,
        fd: OwnedFd,
        exclusive: Option<OwnedFd>,
    ) -> Result<Self, OpenError> {
        let file = fstat(&fd).map_err(OpenError::io(path, "cannot be examined"))?;
        let is_guarded = TargetKind::of(&file) == Some(TargetKind::Image) && !options.read_only;
        let second = match is_guarded {
            true => watch_opens(&fd)
                .inspect_err(|error| tracing::debug!(%error, "cannot watch opens of the image"))
                .ok(),
            false => exclusive,
        };
        Ok(Self { fd, second })
    }

    /// Another descriptor of the file. The locks stay until each of them is closed.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn file(&self) -> std::io::Result<std::fs::File> {
        Ok(self.fd.try_clone()?.into())
    }

    /// Which file this is.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn file_id(&self) -> std::io::Result<FileId> {
        FileId::of(&self.fd)
    }

    /// The first bytes of an image file, as many as fit, and its length.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn head(&self, bytes: &mut [u8]) -> std::io::Result<(usize, u64)> {
        let got = retry(|| rustix::io::pread(&self.fd, &mut *bytes, 0))?;
        let len = u64::try_from(fstat(&self.fd)?.st_size).unwrap_or_default();
        Ok((got, len))
    }

    /// The file, and where there is one the second descriptor: for a block device opened for writing, the one that claims
    /// it with O_EXCL, so that the claim can be given up before the device is closed; for an image opened for writing, the
    /// inotify(7) of its opens.
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        [Some(self.fd), self.second].into_iter().flatten().collect()
    }

    /// The opposite of [`ClaimedFile::into_descriptors`]; `None` for another number of descriptors.
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        let (fd, second) = (descriptors.next()?, descriptors.next());
        descriptors.next().is_none().then_some(Self { fd, second })
    }
}

/// Whether two descriptors have the same file.
pub(super) fn same_file(a: &OwnedFd, b: &OwnedFd) -> bool {
    matches!((fstat(a), fstat(b)), (Ok(a), Ok(b)) if is_same(&a, &b))
}

fn is_same(a: &Stat, b: &Stat) -> bool {
    let key = |file: &Stat| (file.st_dev, file.st_ino, file.st_rdev);
    key(a) == key(b)
}

/// The device on an open file. `known` is what was found when the same file was opened before: a process without paths
/// cannot find it again.
pub(super) fn target_on(
    path: &Path,
    options: &OpenOptions,
    fd: OwnedFd,
    known: Option<&Geometry>,
) -> Result<Target, OpenError> {
    let file = fstat(&fd).map_err(OpenError::io(path, "cannot be examined"))?;
    let kind = kind_of(path, &file)?;
    let size = file_size(path, &fd, kind, options)?;
    let end = match options.sizelimit {
        Some(limit) => size.min(options.offset.saturating_add(limit)),
        None => size,
    };
    // A partial last sector cannot be part of a volume.
    let len = end.saturating_sub(options.offset) / SECTOR_BYTES * SECTOR_BYTES;
    if len == 0 {
        return Err(OpenError::Empty {
            path: path.to_owned(),
            size,
            offset: options.offset,
        });
    }
    if kind == TargetKind::Image && !options.read_only {
        check_limit(path, options.offset + len)?;
    }
    let direct = if options.direct {
        probe_direct(&fd, kind, options.offset, size)
            .map_err(OpenError::io(path, "cannot leave direct I/O again"))?
    } else {
        DirectIo::No("it was selected".to_owned())
    };
    let punches = kind == TargetKind::Image && !options.read_only && punches(&fd, &file, size);
    let (granularity, fua) = match (kind, known) {
        (TargetKind::BlockDevice, Some(known)) => (known.discard_granularity, known.fua),
        (TargetKind::BlockDevice, None) => (
            discard_granularity(&file),
            queue_number(&file, "fua") == Some(1),
        ),
        (TargetKind::Image, _) => {
            let granularity = u64::try_from(file.st_blksize).ok().filter(|&n| n > 0);
            (granularity.filter(|_| punches), false)
        }
    };
    let geometry = Geometry {
        size: len,
        logical_block: SECTOR_BYTES as u32,
        read_only: options.read_only,
        discard_granularity: granularity,
        discard_zeroes: punches,
        fua,
        max_transfer: MAX_TRANSFER_BYTES,
    };
    let mut target = Target::new(fd, kind, geometry, options.offset, direct);
    if options.cached_small_reads {
        target.cache_small_reads();
    }
    Ok(target)
}

/// Claims a file. A descriptor can outlive its owner for a short time in a forked child process that has not executed its
/// program yet, so a claim is retried for 100 ms.
fn retry_busy<T>(claim: impl Fn() -> Result<T, OpenError>) -> Result<T, OpenError> {
    let mut retries = 20;
    loop {
        match claim() {
            Err(OpenError::Busy { .. }) if retries > 0 => {
                retries -= 1;
                steadfs_rt::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// The file, and for a block device opened for writing the descriptor that claims it with O_EXCL.
type Opened = (OwnedFd, Option<OwnedFd>);

fn try_claim(path: &Path, options: &OpenOptions, claim: bool) -> Result<Opened, OpenError> {
    let busy = |holder| OpenError::Busy {
        path: path.to_owned(),
        holder,
    };
    let before = match stat(path) {
        Ok(file) => Some(file),
        Err(Errno::NOENT) if options.create.is_some() && !options.read_only => None,
        Err(errno) => return Err(OpenError::io(path, "not found")(errno)),
    };
    let on_device = before
        .as_ref()
        .is_some_and(|file| TargetKind::of(file) == Some(TargetKind::BlockDevice));
    if let Some(file) = &before {
        check_protection(path, options, file)?;
    }
    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    if before.is_none() {
        flags |= OFlags::CREATE;
    }
    let on_device = on_device && claim;
    if on_device {
        flags |= OFlags::EXCL;
    }
    let attempt = |flags| retry(|| open(path, flags, Mode::from_raw_mode(0o666)));
    let mut fd = match attempt(flags) {
        Ok(fd) => fd,
        Err(Errno::BUSY) => {
            return Err(busy(
                before.map_or_else(String::new, |f| claim::claimant(&f)),
            ));
        }
        Err(errno) => return Err(OpenError::io(path, "cannot be opened")(errno)),
    };
    let mut exclusive = None;
    if on_device {
        let shared = attempt(flags - OFlags::EXCL);
        let claiming = std::mem::replace(
            &mut fd,
            shared.map_err(OpenError::io(path, "cannot be opened"))?,
        );
        // No other program claims it at present. A reader does not keep the claim, so that several can read.
        exclusive = (!options.read_only).then_some(claiming);
    }
    lock_opened(path, options, &fd)?;
    // `steadfs edit --copy` replaces a file that it has locked, and unlocks the old one.
    match stat(path) {
        Ok(now)
            if is_same(
                &fstat(&fd).map_err(OpenError::io(path, "cannot be examined"))?,
                &now,
            ) =>
        {
            Ok((fd, exclusive))
        }
        _ => Err(busy("a program that replaces it".to_owned())),
    }
}

/// Refuses a file that is no device, and a write-protected one that is to be written.
fn check_protection(path: &Path, options: &OpenOptions, file: &Stat) -> Result<(), OpenError> {
    let on_device = kind_of(path, file)? == TargetKind::BlockDevice;
    if on_device && !options.read_only && write_protected(file) {
        return Err(OpenError::io(path, "is write-protected")(Errno::ROFS));
    }
    Ok(())
}

/// Refuses an image without a name: a program that had locked it has replaced or removed it between its open and our lock, and
/// what is written to it would be lost.
fn check_name(path: &Path, fd: &OwnedFd) -> Result<(), OpenError> {
    let file = fstat(fd).map_err(OpenError::io(path, "cannot be examined"))?;
    match TargetKind::of(&file) {
        Some(TargetKind::Image) if file.st_nlink == 0 => {
            let what = "has been replaced or removed while it was opened";
            Err(OpenError::io(path, what)(Errno::STALE))
        }
        _ => Ok(()),
    }
}

/// Takes the locks of an open file, and refuses one that the kernel uses through a loop device.
fn lock_opened(path: &Path, options: &OpenOptions, fd: &OwnedFd) -> Result<(), OpenError> {
    let busy = |holder| OpenError::Busy {
        path: path.to_owned(),
        holder,
    };
    let file = fstat(fd).map_err(OpenError::io(path, "cannot be examined"))?;
    let kind = kind_of(path, &file)?;
    if options.beside && options.read_only {
        return Ok(());
    }
    claim::lock(fd, options.read_only).map_err(busy)?;
    match kind {
        TargetKind::Image => claim::check_loop_devices(fd, options.read_only),
        TargetKind::BlockDevice => claim::check_backing_image(&file, options.read_only),
    }
    .map_err(busy)
}

fn kind_of(path: &Path, file: &Stat) -> Result<TargetKind, OpenError> {
    TargetKind::of(file).ok_or_else(|| OpenError::WrongKind {
        path: path.to_owned(),
        what: match FileType::from_raw_mode(file.st_mode) {
            FileType::Directory => "a directory",
            FileType::CharacterDevice => "a character device",
            FileType::Fifo => "a pipe",
            FileType::Socket => "a socket",
            _ => "something else",
        },
    })
}

fn file_size(
    path: &Path,
    fd: &OwnedFd,
    kind: TargetKind,
    options: &OpenOptions,
) -> Result<u64, OpenError> {
    let measure = || seek(fd, SeekFrom::End(0)).map_err(OpenError::io(path, "has no size"));
    let size = measure()?;
    match options.create {
        Some(wanted) if wanted > size && kind == TargetKind::Image && !options.read_only => {
            check_limit(path, wanted)?;
            retry(|| ftruncate(fd, wanted)).map_err(OpenError::io(path, "cannot be lengthened"))?;
            measure()
        }
        _ => Ok(size),
    }
}

/// Refuses an image that is larger than this process's limit of file sizes: a write beyond the limit ends the process
/// by a signal (SIGXFSZ) and loses all data that is not on the device yet.
fn check_limit(path: &Path, end: u64) -> Result<(), OpenError> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < end => Err(OpenError::Limited {
            path: path.to_owned(),
            end,
            limit,
        }),
        _ => Ok(()),
    }
}

/// Switches the descriptor to direct I/O, if the file supports it in suitable units.
fn probe_direct(fd: &OwnedFd, kind: TargetKind, offset: u64, size: u64) -> Result<DirectIo, Errno> {
    let unit = match direct_unit(fd, kind) {
        Ok(unit) => unit,
        Err(reason) => return Ok(DirectIo::No(reason)),
    };
    if !offset.is_multiple_of(unit) {
        return Ok(DirectIo::No(format!(
            "offset {offset} is not a multiple of {unit} bytes, the unit of direct I/O here"
        )));
    }
    let switch = |on: bool| -> Result<(), Errno> {
        let flags = fcntl_getfl(fd)? - OFlags::DIRECT;
        fcntl_setfl(fd, if on { flags | OFlags::DIRECT } else { flags })
    };
    if let Err(errno) = switch(true) {
        return Ok(DirectIo::No(refusal(errno)));
    }
    // Some file systems accept the flag and refuse transfers.
    let mut probe = Buf::zeroed(unit as usize);
    let at = offset.min(size.saturating_sub(1)) / unit * unit;
    match retry(|| rustix::io::pread(fd, probe.make_mut(), at)) {
        Err(errno @ (Errno::INVAL | Errno::OPNOTSUPP)) => {
            switch(false)?;
            Ok(DirectIo::No(refusal(errno)))
        }
        // Any other error is reported when the content is read.
        _ => Ok(DirectIo::Yes(unit)),
    }
}

fn refusal(errno: Errno) -> String {
    format!(
        "the file refuses direct I/O ({})",
        std::io::Error::from(errno)
    )
}

/// The unit of offsets and lengths for direct I/O, or why none is suitable.
fn direct_unit(fd: &OwnedFd, kind: TargetKind) -> Result<u64, String> {
    let mut unit = SECTOR_BYTES;
    let mut memory = SECTOR_BYTES;
    if kind == TargetKind::BlockDevice
        && let Ok(sector) = rustix::fs::ioctl_blksszget(fd)
    {
        unit = u64::from(sector);
    }
    let wanted = StatxFlags::DIOALIGN;
    if let Ok(x) = statx(fd, "", AtFlags::EMPTY_PATH, wanted)
        && x.stx_mask & wanted.bits() != 0
    {
        if x.stx_dio_offset_align == 0 {
            return Err("the file does not support direct I/O".to_owned());
        }
        unit = u64::from(x.stx_dio_offset_align);
        memory = u64::from(x.stx_dio_mem_align);
    }
    if memory > ALIGN_BYTES as u64
        || !unit.is_power_of_two()
        || !memory.is_power_of_two()
        || unit > u64::from(MAX_TRANSFER_BYTES)
    {
        return Err(format!(
            "direct I/O needs memory in units of {memory} bytes and offsets in units of {unit}"
        ));
    }
    // Buffers are aligned to their length up to a page, so buffers of whole units are aligned in memory, too.
    Ok(unit.max(memory).max(SECTOR_BYTES))
}

/// Whether holes can be punched in an image file: tested past its end, where a hole changes nothing.
fn punches(fd: &OwnedFd, file: &Stat, size: u64) -> bool {
    let unit = u64::try_from(file.st_blksize)
        .unwrap_or(SECTOR_BYTES)
        .max(SECTOR_BYTES);
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    size.checked_next_multiple_of(unit)
        .is_some_and(|end| retry(|| fallocate(fd, mode, end, unit)).is_ok())
}

/// Of a block device that can discard.
fn discard_granularity(file: &Stat) -> Option<u64> {
    let granularity = queue_number(file, "discard_granularity")?;
    let most = queue_number(file, "discard_max_bytes")?;
    (granularity > 0 && most > 0).then_some(granularity)
}

/// Whether a block device is write-protected. Recent kernels open it for writing anyway, and only refuse the
/// writes.
fn write_protected(file: &Stat) -> bool {
    device_number(file, &["ro"]) == Some(1)
}

/// A number from a block device's `queue` directory in sysfs; for a partition, its disk's.
fn queue_number(file: &Stat, name: &str) -> Option<u64> {
    device_number(
        file,
        &[&format!("queue/{name}"), &format!("../queue/{name}")],
    )
}

/// A number from the first existing one of these sysfs files of a block device.
fn device_number(file: &Stat, names: &[&str]) -> Option<u64> {
    let (major, minor) = (
        rustix::fs::major(file.st_rdev),
        rustix::fs::minor(file.st_rdev),
    );
    let base = format!("/sys/dev/block/{major}:{minor}");
    let mut texts = names.iter();
    let text = texts.find_map(|name| std::fs::read_to_string(format!("{base}/{name}")).ok())?;
    text.trim().parse().ok()
}
