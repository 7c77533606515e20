//! The request queue: where waiting I/O stays until the device may have it.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_rt::{Condvar, Mutex, Rank};

use crate::{Bio, Buf, Device, Geometry, IoError};

/// How a queue works.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// How many requests the device has at a time.
    pub depth: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth: 32 }
    }
}

/// A device with its request queue. Clones of handles may be waited for by any number of tasks.
pub struct Queue {
    device: Arc<dyn Device>,
}

struct Io {
    state: Mutex<IoState>,
    ended: Condvar,
}

struct IoState {
    result: Option<Result<(), IoError>>,
    bio: Option<Bio>,
}

/// A submitted request.
#[derive(Clone)]
pub struct IoHandle {
    io: Arc<Io>,
    // Not in `Io`: a completion that has woken its waiter keeps no device open.
    device: Arc<dyn Device>,
}

impl Queue {
    /// A queue in front of `device`.
    pub fn new(device: Arc<dyn Device>, options: QueueOptions) -> Self {
        assert!(
            options.depth > 0,
            "a queue lets at least one request through"
        );
        Self { device }
    }

    /// The device's fixed properties.
    pub fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    /// Queues a request. It may wait for the device here, in the queue, where it can be boosted.
    pub fn submit(&self, bio: Bio, tag: IoTag) -> IoHandle {
        let _ = tag;
        let io = Arc::new(Io {
            state: Mutex::new(
                Rank::Leaf,
                IoState {
                    result: None,
                    bio: None,
                },
            ),
            ended: Condvar::new(),
        });
        let ended = Arc::clone(&io);
        let done = move |bio, result| {
            let mut state = ended.state.lock();
            state.bio = Some(bio);
            state.result = Some(result);
            ended.ended.notify_all();
        };
        self.device.start(bio, Box::new(done));
        IoHandle {
            io,
            device: Arc::clone(&self.device),
        }
    }

    /// Queues a FLUSH: when it ends well, every write that had completed is durable.
    pub fn flush(&self, tag: IoTag) -> IoHandle {
        self.submit(Bio::flush(), tag)
    }

    /// Raises a request that is still queued to `tag`; never lowers, does nothing once dispatched.
    pub fn boost(&self, io: &IoHandle, tag: IoTag) {
        let _ = (io, tag);
    }

    /// Reads `len` bytes at byte `offset` and waits.
    pub fn read(&self, offset: u64, len: usize, tag: IoTag) -> Result<Buf, IoError> {
        let mut bio = self.submit(Bio::read(offset, len), tag).into_bio()?;
        Ok(bio.bufs.pop().expect("a read has one buffer"))
    }

    /// Writes and waits.
    pub fn write(&self, offset: u64, bufs: Vec<Buf>, tag: IoTag) -> Result<(), IoError> {
        self.submit(Bio::write(offset, bufs), tag).wait()
    }
}

impl IoHandle {
    /// Whether the request has ended.
    pub fn is_done(&self) -> bool {
        self.io.state.lock().result.is_some()
    }

    /// Waits until the request has ended.
    pub fn wait(&self) -> Result<(), IoError> {
        self.device.help(&|| self.is_done());
        let mut state = self.io.state.lock();
        loop {
            if let Some(result) = &state.result {
                return result.clone();
            }
            self.io.ended.wait(&mut state);
        }
    }

    /// Waits until the request has ended and takes the bio back (once, for a read's buffers).
    pub fn into_bio(self) -> Result<Bio, IoError> {
        self.wait()?;
        Ok(self
            .io
            .state
            .lock()
            .bio
            .take()
            .expect("the bio is taken once"))
    }
}
