//! A device on an image file or a block device of the host.

mod busy_poll;
mod claim;
mod engine;
mod guard;
mod holders;
mod id;
mod ioctl;
mod jobs;
mod open;
mod pool;
#[cfg(feature = "io-uring")]
mod ring;
#[cfg(not(feature = "io-uring"))]
#[path = "without_ring.rs"]
mod ring;
mod sync_device;
mod transfer;

#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use steadfs_rt::{Mutex, Rank};

pub use id::FileId;
pub use open::ClaimedFile;
pub use ring::prepare_rings;
pub use sync_device::SyncFileDevice;

use crate::{Bio, Device, Done, Engine, Geometry, Op, OpenError, OpenOptions};
use engine::RequestRunner;
use guard::ImageGuard;
use jobs::NoMoreJobs;
use pool::Pool;
use transfer::{Target, TargetKind};

/// Most threads for background requests, if each runs one at a time.
const MAX_LANES: usize = 8;
/// The same if each thread runs many at a time: one for transfers, one for a FLUSH beside them, one spare.
const MAX_RING_LANES: usize = 3;

/// An image file or a block device, claimed for as long as this lives.
///
/// Requests of [`Device::run`] are executed by the calling task: a single one by a system call, several
/// through a ring of the task if io_uring can be used. A single small read uses a ring, too, if the task
/// busy-polls. Requests of [`Device::start`] are executed by a pool of threads, with as few wake-ups as
/// possible.
pub struct FileDevice {
    path: PathBuf,
    options: OpenOptions,
    /// Whether the kernel claims the block device, for a mount served by this process.
    yielded: AtomicBool,
    first: OpenedFile,
    /// The same file opened for writing, after it had been opened for reading only.
    writable: OnceLock<OpenedFile>,
    /// Opens it for writing, if this process cannot.
    reopen: OnceLock<Reopen>,
}

/// Opens a device's file for writing and claims it ([`ClaimedFile::for_writing`]), with or without O_EXCL. An error is the
/// reason.
pub type Reopen = Box<dyn Fn(bool) -> Result<ClaimedFile, String> + Send + Sync>;

/// An open file and the threads that execute its requests.
struct OpenedFile {
    /// The descriptor that claims a block device with O_EXCL.
    exclusive: Mutex<Option<OwnedFd>>,
    target: Arc<Target>,
    runner: Arc<RequestRunner>,
    pool: Pool,
    /// Why rings are not used.
    no_rings_reason: Option<String>,
    /// For an image opened for writing.
    guard: Option<ImageGuard>,
}

impl OpenedFile {
    /// The device on a claimed file. `known` as in [`open::target_on`].
    fn on(
        path: &Path,
        options: &OpenOptions,
        claimed: ClaimedFile,
        known: Option<&Geometry>,
    ) -> Result<Self, OpenError> {
        let ClaimedFile { fd, second } = claimed;
        let target = Arc::new(open::target_on(path, options, fd, known)?);
        let (runner, no_rings_reason) = choose_engine(&target, options.engine);
        if options.engine == Engine::Uring
            && let Some(reason) = no_rings_reason
        {
            return Err(OpenError::NoUring {
                path: path.to_owned(),
                reason,
            });
        }
        let runner = Arc::new(runner);
        let lanes = if runner.has_rings() {
            MAX_RING_LANES
        } else {
            MAX_LANES
        };
        let is_guarded = target.kind == TargetKind::Image && !options.read_only;
        let (exclusive, opens) = match target.kind {
            TargetKind::BlockDevice => (second, None),
            TargetKind::Image => (None, second),
        };
        let guard = is_guarded.then(|| ImageGuard::prepare(&target, opens));
        let guard = guard
            .transpose()
            .inspect_err(|error| unwatched(path, error));
        Ok(Self {
            exclusive: Mutex::new(Rank::Leaf, exclusive),
            pool: Pool::new(Arc::clone(&runner), lanes),
            target,
            runner,
            no_rings_reason,
            guard: guard.ok().flatten(),
        })
    }

    /// Starts the watch for loop devices.
    fn start_guard(&self, path: &Path) {
        if let Some(Err(error)) = self.guard.as_ref().map(ImageGuard::start) {
            unwatched(path, &error);
        }
    }

    /// The job, for an image with a check for loop devices before its end.
    fn guarded(&self, job: (Bio, Done)) -> (Bio, Done) {
        match &self.guard {
            Some(guard) => guard.confirm(job),
            None => job,
        }
    }

    fn run_on_caller(&self, job: (Bio, Done)) {
        self.runner.run(vec![job], &mut NoMoreJobs);
    }
}

impl FileDevice {
    /// Opens `path` and claims it. The window from `offset`, at most `sizelimit` bytes long and in
    /// whole sectors of 512 bytes, is the device; the claim covers the whole file.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, OpenError> {
        let device = Self::open_idle(path, options)?;
        device.start_threads();
        Ok(device)
    }

    /// As [`FileDevice::open`], but starts no thread before [`FileDevice::start_threads`] or the first request: the caller can
    /// give up rights in between, which then holds for all threads.
    pub fn open_idle(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, OpenError> {
        let claimed = ClaimedFile::open(path.as_ref(), &options, options.claim)?;
        Self::on_claimed(path, options, claimed)
    }

    /// As [`FileDevice::open_idle`], on a file that is open and claimed. `path` stands for it in messages.
    pub fn on_claimed(
        path: impl AsRef<Path>,
        options: OpenOptions,
        claimed: ClaimedFile,
    ) -> Result<Self, OpenError> {
        let path = path.as_ref();
        Ok(Self {
            path: path.to_owned(),
            first: OpenedFile::on(path, &options, claimed, None)?,
            options,
            yielded: AtomicBool::new(false),
            writable: OnceLock::new(),
            reopen: OnceLock::new(),
        })
    }

    /// From now on [`Device::make_writable`] opens the file by `reopen`, because this process is about to lose the right
    /// to do it.
    pub fn reopen_by(&self, reopen: Reopen) {
        let is_first = self.reopen.set(reopen).is_ok();
        assert!(is_first, "a process loses the right once");
    }

    /// Starts the threads of a device that was opened idle.
    pub fn start_threads(&self) {
        self.first.start_guard(&self.path);
    }

    /// The file that requests use now.
    fn opened(&self) -> &OpenedFile {
        self.writable.get().unwrap_or(&self.first)
    }

    /// Whether this is a block device, not an image file.
    pub fn is_block_device(&self) -> bool {
        self.first.target.kind == TargetKind::BlockDevice
    }

    /// Logical sector size in bytes, 512 for an image file. The kernel mounts no volume with smaller blocks. Smaller
    /// requests are possible here.
    pub fn sector_size(&self) -> u32 {
        self.first.target.sector
    }

    /// Identity of the image file: numbers of device and inode.
    pub fn image_id(&self) -> Option<(u64, u64)> {
        let found = rustix::fs::fstat(&self.first.target.fd).ok()?;
        (!self.is_block_device()).then_some((found.st_dev, found.st_ino))
    }

    /// Which file this is.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn file_id(&self) -> std::io::Result<FileId> {
        FileId::of(&self.first.target.fd)
    }

    /// The bytes of an image file behind the last whole sector of the device, which are no part of it: less than a sector.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn tail(&self) -> std::io::Result<Vec<u8>> {
        self.first.target.tail().map_err(std::io::Error::from)
    }

    /// Gives up the O_EXCL claim of a block device, because the kernel will claim it for a mount served
    /// by this process. The flock(2) stays held.
    pub fn yield_claim(&self) {
        self.yielded.store(true, Ordering::Release);
        drop(self.opened().exclusive.lock().take());
    }

    /// Gives up all claims: the device is not used any more. A ring may keep the file open for a while after the process
    /// has ended, and its locks with it.
    pub fn give_up_claims(&self) {
        self.yield_claim();
        claim::unlock(&self.opened().target.fd);
    }

    /// A description of the device and its I/O engine.
    pub fn describe(&self) -> String {
        let opened = self.opened();
        let target = &opened.target;
        let kind = match target.kind {
            TargetKind::Image => "image file",
            TargetKind::BlockDevice => "block device",
        };
        let path = self.path.display();
        let (from, size) = (target.start, target.geometry.size);
        let cache = match target.buffered_because() {
            Some(reason) => format!("buffered I/O because {reason}"),
            None => format!("direct I/O in units of {} bytes", target.direct_unit),
        };
        let engine = match &opened.no_rings_reason {
            Some(reason) => format!("threads because {reason}"),
            None => "io_uring".to_owned(),
        };
        format!("{kind} {path}, {size} bytes from byte {from}, {cache}, {engine}")
    }

    /// Opens the same file for writing. The read lock is released first, because it would conflict with the
    /// write lock, even in the same process.
    fn reopen(&self) -> Result<OpenedFile, String> {
        let options = OpenOptions {
            read_only: false,
            create: None,
            ..self.options.clone()
        };
        let old = &self.first.target;
        claim::unlock(&old.fd);
        let claim = !self.yielded.load(Ordering::Acquire);
        let claimed = match self.reopen.get() {
            Some(reopen) => reopen(claim),
            None => ClaimedFile::open(&self.path, &options, claim).map_err(|e| e.to_string()),
        };
        let opened = claimed.and_then(|claimed| {
            let another = || format!("{}: is another file now", self.path.display());
            if !open::same_file(&old.fd, &claimed.fd) {
                return Err(another());
            }
            let opened = OpenedFile::on(&self.path, &options, claimed, Some(&old.geometry))
                .map_err(|error| error.to_string())?;
            match opened.target.geometry.size == old.geometry.size {
                true => Ok(opened),
                false => Err(another()),
            }
        });
        if let Ok(opened) = &opened {
            opened.start_guard(&self.path);
        }
        opened.map_err(|why| match claim::lock(&self.first.target.fd, true) {
            Ok(()) => why,
            Err(holder) => format!("{why}; it is used for writing by {holder}"),
        })
    }
}

/// Logs that an image is not watched for loop devices.
fn unwatched(path: &Path, error: &std::io::Error) {
    let path = path.display();
    tracing::warn!(%error, "cannot watch for loop devices on {path}: do not set one up while it is mounted");
}

/// The engine to use; for threads also the reason.
fn choose_engine(target: &Arc<Target>, wanted: Engine) -> (RequestRunner, Option<String>) {
    let reason = match wanted {
        Engine::Threads => "they were selected".to_owned(),
        // Buffered transfers mostly need no device, and io_uring would move writes to kernel threads.
        Engine::Auto if !target.is_direct() => "I/O is buffered".to_owned(),
        Engine::Auto | Engine::Uring => match RequestRunner::by_rings(Arc::clone(target)) {
            Ok(runner) => return (runner, None),
            Err(reason) => reason,
        },
    };
    (RequestRunner::by_calls(Arc::clone(target)), Some(reason))
}

impl Device for FileDevice {
    fn geometry(&self) -> &Geometry {
        &self.opened().target.geometry
    }

    fn start(&self, bio: Bio, done: Done) {
        let opened = self.opened();
        match opened.target.check(&bio) {
            Ok(()) => opened.pool.push([opened.guarded((bio, done))]),
            Err(error) => done(bio, Err(error)),
        }
    }

    fn run(&self, mut batch: Vec<(Bio, Done)>) {
        let this = self.opened();
        let refused = |job: &mut (Bio, Done)| this.target.check(&job.0).is_err();
        for (bio, done) in batch.extract_if(.., refused) {
            let result = this.target.check(&bio);
            done(bio, result);
        }
        let mut batch: Vec<_> = batch.into_iter().map(|job| this.guarded(job)).collect();
        if this.runner.has_rings() {
            this.runner.run(batch, &mut NoMoreJobs);
            return;
        }
        // Writes to the page cache do not wait for the device: other threads would not help.
        let cached = |job: &mut (Bio, Done)| job.0.op == Op::Write && job.0.is_plain();
        if !this.target.is_direct() {
            for job in batch.extract_if(.., cached) {
                this.run_on_caller(job);
            }
        }
        let mut batch = batch.into_iter();
        let Some(first) = batch.next() else {
            return;
        };
        let others = batch.len();
        this.pool.push(batch);
        this.run_on_caller(first);
        // The pool's threads and this task share the rest.
        for _ in 0..others {
            let Some(job) = this.pool.take() else {
                break;
            };
            this.run_on_caller(job);
        }
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        let this = self.opened();
        while !until() {
            let Some(job) = this.pool.take() else {
                break;
            };
            this.run_on_caller(job);
        }
    }

    fn background_depth(&self) -> usize {
        let this = self.opened();
        if this.runner.has_rings() {
            this.runner.width()
        } else {
            this.pool.max_lanes()
        }
    }

    fn make_writable(&self) -> Result<(), String> {
        if !self.geometry().read_only {
            return Ok(());
        }
        let opened = self.reopen()?;
        // A second concurrent caller found the file locked.
        self.writable
            .set(opened)
            .unwrap_or_else(|_| unreachable!("the write lock has one holder"));
        Ok(())
    }
}
