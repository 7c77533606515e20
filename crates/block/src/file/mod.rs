//! A device on an image file or a block device of the host.

mod awake;
mod claim;
mod engine;
mod guard;
mod holders;
mod ioctl;
mod jobs;
mod open;
mod pool;
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

pub use open::{Engine, OpenError, OpenOptions};
pub use sync_device::SyncFileDevice;

use crate::{Bio, Device, Done, Geometry, Op};
use engine::Runner;
use guard::Guard;
use jobs::NoMore;
use pool::Pool;
use transfer::{Kind, Target};

/// Most threads that run requests nobody waits for, one each at a time.
const LANES: usize = 8;
/// The same where each thread runs many at a time: one does the transfers, one a flush beside them.
const RING_LANES: usize = 3;

/// An image file or a block device, claimed for as long as this lives.
///
/// Requests given to [`Device::run`] are done by the calling task, a single one by a system call of
/// its own, several through a ring of the task's own where io_uring may be used; a single read, too, where
/// the task had better stay awake. Those given to
/// [`Device::start`] are done by a pool of threads which is woken as seldom as possible.
pub struct FileDevice {
    path: PathBuf,
    options: OpenOptions,
    /// Whether the kernel claims the block device, for a mount that is served from here.
    yielded: AtomicBool,
    first: Opened,
    /// The same file opened for writing, after it had been opened for reading only.
    writable: OnceLock<Opened>,
}

/// An open file and those who do its requests.
struct Opened {
    /// Holds a block device with O_EXCL.
    exclusive: Mutex<Option<OwnedFd>>,
    target: Arc<Target>,
    runner: Arc<Runner>,
    pool: Pool,
    /// Why there are no rings.
    threads_because: Option<String>,
    /// Of an image opened for writing.
    guard: Option<Guard>,
}

impl Opened {
    fn open(path: &Path, options: &OpenOptions, claim: bool) -> Result<Self, OpenError> {
        let (target, exclusive) = open::open_target(path, options, claim)?;
        let target = Arc::new(target);
        let (runner, threads_because) = choose_engine(&target, options.engine);
        if options.engine == Engine::Uring
            && let Some(reason) = threads_because
        {
            return Err(OpenError::NoUring {
                path: path.to_owned(),
                reason,
            });
        }
        let runner = Arc::new(runner);
        let lanes = if runner.has_rings() {
            RING_LANES
        } else {
            LANES
        };
        let guard = (target.kind == Kind::Image && !options.read_only)
            .then(|| guard(&target, path))
            .flatten();
        Ok(Self {
            exclusive: Mutex::new(Rank::Leaf, exclusive),
            pool: Pool::new(Arc::clone(&runner), lanes),
            target,
            runner,
            threads_because,
            guard,
        })
    }

    /// The job as it is to be done: where somebody else may come to write, with a look at that before its end.
    fn guarded(&self, job: (Bio, Done)) -> (Bio, Done) {
        match &self.guard {
            Some(guard) => guard.confirm(job),
            None => job,
        }
    }

    fn run_here(&self, job: (Bio, Done)) {
        self.runner.run(vec![job], &mut NoMore);
    }
}

impl FileDevice {
    /// Opens `path` and claims it. The window from `offset`, at most `sizelimit` bytes long and in
    /// whole sectors of 512 bytes, is the device; the claim covers the whole file.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        Ok(Self {
            path: path.to_owned(),
            first: Opened::open(path, &options, true)?,
            options,
            yielded: AtomicBool::new(false),
            writable: OnceLock::new(),
        })
    }

    /// What requests go to now.
    fn opened(&self) -> &Opened {
        self.writable.get().unwrap_or(&self.first)
    }

    /// Whether this is a block device and no image file.
    pub fn is_block_device(&self) -> bool {
        self.first.target.kind == Kind::BlockDevice
    }

    /// The sectors, in bytes, below which the kernel mounts no blocks of the device; of an image file 512. What is
    /// asked for in smaller pieces is done all the same.
    pub fn sector_size(&self) -> u32 {
        self.first.target.sector
    }

    /// The image file, whatever its names: numbers of device and inode.
    pub fn image_id(&self) -> Option<(u64, u64)> {
        let found = rustix::fs::fstat(&self.first.target.fd).ok()?;
        (!self.is_block_device()).then_some((found.st_dev, found.st_ino))
    }

    /// Gives up the O_EXCL claim of a block device, because the kernel is about to claim it for a
    /// mount that is served from here. What follows flock(2) is still kept away.
    pub fn yield_claim(&self) {
        self.yielded.store(true, Ordering::Release);
        drop(self.opened().exclusive.lock().take());
    }

    /// How the device is reached, in words.
    pub fn describe(&self) -> String {
        let opened = self.opened();
        let target = &opened.target;
        let kind = match target.kind {
            Kind::Image => "image file",
            Kind::BlockDevice => "block device",
        };
        let path = self.path.display();
        let (from, size) = (target.start, target.geometry.size);
        let cache = match target.buffered_because() {
            Some(reason) => format!("buffered I/O because {reason}"),
            None => format!("direct I/O in units of {} bytes", target.direct_unit),
        };
        let engine = match &opened.threads_because {
            Some(reason) => format!("threads because {reason}"),
            None => "io_uring".to_owned(),
        };
        format!("{kind} {path}, {size} bytes from byte {from}, {cache}, {engine}")
    }

    /// Opens the same file for writing. The lock for reading goes first: it would be in the way of
    /// the one for writing, also from the same process.
    fn reopen(&self) -> Result<Opened, String> {
        let options = OpenOptions {
            read_only: false,
            create: None,
            ..self.options.clone()
        };
        claim::unlock(&self.first.target.fd);
        let claim = !self.yielded.load(Ordering::Acquire);
        let opened = Opened::open(&self.path, &options, claim)
            .map_err(|error| error.to_string())
            .and_then(|opened| {
                let (old, new) = (&self.first.target, &opened.target);
                if !open::same_file(&old.fd, &new.fd) || old.geometry.size != new.geometry.size {
                    return Err(format!("{}: is another file now", self.path.display()));
                }
                Ok(opened)
            });
        opened.map_err(|why| match claim::lock(&self.first.target.fd, true) {
            Ok(()) => why,
            Err(holder) => format!("{why}; it is used for writing by {holder}"),
        })
    }
}

/// A look-out for the image `target`, if the host gives what it takes.
fn guard(target: &Arc<Target>, path: &Path) -> Option<Guard> {
    let guard = Guard::start(target);
    guard
        .inspect_err(|error| {
            let path = path.display();
            tracing::warn!(%error, "nobody looks out for loop devices that come to show {path}");
        })
        .ok()
}

/// The wanted engine, or threads and why.
fn choose_engine(target: &Arc<Target>, wanted: Engine) -> (Runner, Option<String>) {
    let reason = match wanted {
        Engine::Threads => "they were asked for".to_owned(),
        // Through the page cache most transfers need no device, and writes would be handed to
        // kernel threads.
        Engine::Auto if !target.is_direct() => "I/O is buffered".to_owned(),
        Engine::Auto | Engine::Uring => match Runner::by_rings(Arc::clone(target)) {
            Ok(runner) => return (runner, None),
            Err(reason) => reason,
        },
    };
    (Runner::by_calls(Arc::clone(target)), Some(reason))
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
            this.runner.run(batch, &mut NoMore);
            return;
        }
        // What goes into the page cache does not wait for the device: no work for others.
        let cached = |job: &mut (Bio, Done)| job.0.op == Op::Write && job.0.is_plain();
        if !this.target.is_direct() {
            for job in batch.extract_if(.., cached) {
                this.run_here(job);
            }
        }
        let mut batch = batch.into_iter();
        let Some(first) = batch.next() else {
            return;
        };
        let others = batch.len();
        this.pool.push(batch);
        this.run_here(first);
        // The pool's threads take of the rest what they reach before this task does.
        for _ in 0..others {
            let Some(job) = this.pool.take() else {
                break;
            };
            this.run_here(job);
        }
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        let this = self.opened();
        while !until() {
            let Some(job) = this.pool.take() else {
                break;
            };
            this.run_here(job);
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
        // Of two that came at the same time the second found the file locked.
        self.writable
            .set(opened)
            .unwrap_or_else(|_| unreachable!("locked by one"));
        Ok(())
    }
}
