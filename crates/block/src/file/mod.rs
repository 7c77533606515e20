//! A device on an image file or a block device of the host.

mod claim;
mod engine;
mod ioctl;
mod open;
mod pool;
mod ring;
mod transfer;

#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfs_rt::{Mutex, Rank};

pub use open::{Engine, OpenError, OpenOptions};

use crate::{Bio, Device, Done, Geometry, Op};
use engine::{NoMore, Runner};
use pool::Pool;
use transfer::{Kind, Target};

/// Most threads that run requests nobody waits for, one each at a time.
const LANES: usize = 8;
/// The same where each thread runs many at a time: one does the transfers, one a flush beside them.
const RING_LANES: usize = 3;

/// An image file or a block device, claimed for as long as this lives.
///
/// Requests given to [`Device::run`] are done by the calling task, a single one by a system call of
/// its own, several through a ring of the task's own where io_uring may be used. Those given to
/// [`Device::start`] are done by a pool of threads which is woken as seldom as possible.
pub struct FileDevice {
    path: PathBuf,
    /// Holds a block device with O_EXCL.
    exclusive: Mutex<Option<OwnedFd>>,
    target: Arc<Target>,
    runner: Arc<Runner>,
    pool: Pool,
    /// Why there are no rings.
    threads_because: Option<String>,
}

impl FileDevice {
    /// Opens `path` and claims it. The window from `offset`, at most `sizelimit` bytes long and in
    /// whole sectors of 512 bytes, is the device; the claim covers the whole file.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let (target, exclusive) = open::open_target(path, &options)?;
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
        Ok(Self {
            path: path.to_owned(),
            exclusive: Mutex::new(Rank::Leaf, exclusive),
            pool: Pool::new(Arc::clone(&runner), lanes),
            target,
            runner,
            threads_because,
        })
    }

    /// Whether this is a block device and no image file.
    pub fn is_block_device(&self) -> bool {
        self.target.kind == Kind::BlockDevice
    }

    /// Gives up the O_EXCL claim of a block device, because the kernel is about to claim it for a
    /// mount that is served from here. What follows flock(2) is still kept away.
    pub fn yield_claim(&self) {
        drop(self.exclusive.lock().take());
    }

    /// How the device is reached, in words.
    pub fn describe(&self) -> String {
        let target = &self.target;
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
        let engine = match &self.threads_because {
            Some(reason) => format!("threads because {reason}"),
            None => "io_uring".to_owned(),
        };
        format!("{kind} {path}, {size} bytes from byte {from}, {cache}, {engine}")
    }

    fn run_here(&self, job: (Bio, Done)) {
        self.runner.run(vec![job], &mut NoMore);
    }
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
        &self.target.geometry
    }

    fn start(&self, bio: Bio, done: Done) {
        match self.target.geometry.check(&bio) {
            Ok(()) => self.pool.push([(bio, done)]),
            Err(error) => done(bio, Err(error)),
        }
    }

    fn run(&self, mut batch: Vec<(Bio, Done)>) {
        let refused = |job: &mut (Bio, Done)| self.target.geometry.check(&job.0).is_err();
        for (bio, done) in batch.extract_if(.., refused) {
            let result = self.target.geometry.check(&bio);
            done(bio, result);
        }
        if self.runner.has_rings() {
            self.runner.run(batch, &mut NoMore);
            return;
        }
        // What goes into the page cache does not wait for the device: no work for others.
        let cached = |job: &mut (Bio, Done)| job.0.op == Op::Write && job.0.is_plain();
        if !self.target.is_direct() {
            for job in batch.extract_if(.., cached) {
                self.run_here(job);
            }
        }
        let mut batch = batch.into_iter();
        let Some(first) = batch.next() else {
            return;
        };
        let others = batch.len();
        self.pool.push(batch);
        self.run_here(first);
        // The pool's threads take of the rest what they reach before this task does.
        for _ in 0..others {
            let Some(job) = self.pool.take() else {
                break;
            };
            self.run_here(job);
        }
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        while !until() {
            let Some(job) = self.pool.take() else {
                break;
            };
            self.run_here(job);
        }
    }

    fn background_depth(&self) -> usize {
        if self.runner.has_rings() {
            self.runner.width()
        } else {
            self.pool.max_lanes()
        }
    }
}
