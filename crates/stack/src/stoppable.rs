//! A device on which work can be stopped.
//!
//! **Problem.** To check or to make a volume is many requests from many places, which have no way to end early. **Rule.** The
//! device asks before it starts requests; from the first time that the answer is yes they fail, and the work with them.

use std::sync::Arc;

use steadfs_block::{Bio, Device, Done, Geometry, IoError};

/// Whether work is to stop. Once it is, it stays so. It is called by any thread, without a lock.
pub type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

/// A device whose requests fail when the work on it is to stop.
pub struct StoppableDevice {
    below: Arc<dyn Device>,
    stop: Stop,
}

impl StoppableDevice {
    /// Over another device.
    pub fn new(below: Arc<dyn Device>, stop: Stop) -> Self {
        Self { below, stop }
    }
}

impl Device for StoppableDevice {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        if !(self.stop)() {
            return self.below.start(bio, done);
        }
        let error = IoError::of(&bio, "the work on the device was stopped");
        done(bio, Err(error));
    }

    fn run(&self, batch: Vec<(Bio, Done)>) {
        if !(self.stop)() {
            return self.below.run(batch);
        }
        for (bio, done) in batch {
            self.start(bio, done);
        }
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        self.below.help(until);
    }

    fn background_depth(&self) -> usize {
        self.below.background_depth()
    }

    fn depth(&self) -> usize {
        self.below.depth()
    }

    fn make_writable(&self) -> Result<(), String> {
        self.below.make_writable()
    }
}
