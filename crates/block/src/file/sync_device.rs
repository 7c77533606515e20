//! A file or block device without its own threads.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::open::{ClaimedFile, target_on};
use super::transfer::Target;
use crate::{Bio, Device, Done, Geometry, OpenError, OpenOptions};

/// An image file or a block device, claimed as by [`FileDevice`](super::FileDevice), whose requests are synchronous
/// system calls of the task that starts them. No other thread is involved, so a simulation can use it.
pub struct SyncFileDevice {
    target: Target,
    /// Holds a block device with O_EXCL.
    _exclusive: Option<OwnedFd>,
}

impl SyncFileDevice {
    /// Opens and claims `path`. The engine option has no effect.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, OpenError> {
        let ClaimedFile { fd, second } = ClaimedFile::open(path, options, true)?;
        Ok(Self {
            target: target_on(path, options, fd, None)?,
            _exclusive: second,
        })
    }
}

impl Device for SyncFileDevice {
    fn geometry(&self) -> &Geometry {
        &self.target.geometry
    }

    fn start(&self, mut bio: Bio, done: Done) {
        let result = self.target.check(&bio);
        let result = result.and_then(|()| self.target.run(&mut bio));
        done(bio, result);
    }
}
