//! A device on an image file or a block device of the host.

mod claim;
mod ioctl;
mod open;
mod pool;
mod transfer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use open::{Engine, OpenError, OpenOptions};

use crate::{Bio, Device, Done, Geometry};
use pool::Pool;
use transfer::{Kind, Target};

/// Most threads that run requests nobody waits for, one each at a time.
const LANES: usize = 8;

/// An image file or a block device, claimed for as long as this lives.
///
/// Requests given to [`Device::run`] are done by the calling task; those given to
/// [`Device::start`] by a pool of threads which is woken as seldom as possible.
pub struct FileDevice {
    path: PathBuf,
    target: Arc<Target>,
    pool: Pool,
}

impl FileDevice {
    /// Opens `path` and claims it. The window from `offset`, at most `sizelimit` bytes long and in
    /// whole sectors of 512 bytes, is the device; the claim covers the whole file.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        if options.engine == Engine::Uring {
            return Err(OpenError::NoUring {
                path: path.to_owned(),
                reason: "this version does its I/O with threads only".to_owned(),
            });
        }
        let target = Arc::new(open::open_target(path, &options)?);
        Ok(Self {
            path: path.to_owned(),
            pool: Pool::new(Arc::clone(&target), LANES),
            target,
        })
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
        format!("{kind} {path}, {size} bytes from byte {from}, {cache}, threads")
    }

    fn run_one(&self, mut bio: Bio, done: Done) {
        let result = self.target.run(&mut bio);
        done(bio, result);
    }
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
        let mut batch = batch.into_iter();
        let Some((bio, done)) = batch.next() else {
            return;
        };
        let others = batch.len();
        if others > 0 {
            self.pool.push(batch);
        }
        self.run_one(bio, done);
        // The pool's threads take of the rest what they reach before this task does.
        for _ in 0..others {
            let Some((bio, done)) = self.pool.take() else {
                break;
            };
            self.run_one(bio, done);
        }
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        while !until() {
            let Some((bio, done)) = self.pool.take() else {
                break;
            };
            self.run_one(bio, done);
        }
    }

    fn background_depth(&self) -> usize {
        self.pool.max_lanes()
    }
}
