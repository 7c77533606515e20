//! Handles of submitted requests, and waiting for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use steadfs_base::IoTag;
use steadfs_rt::{Condvar, Mutex, Rank};

use super::inner::Inner;
use super::request::ReqId;
use crate::{Bio, Device, Done, IoError};

/// Completion of a submitted bio, shared by the queue and the handles.
pub(super) struct IoCompletion {
    /// The request that carries it, once known.
    request: AtomicU64,
    done: AtomicBool,
    /// Handles that are not dropped.
    handles: AtomicUsize,
    state: Mutex<IoState>,
    ended: Condvar,
}

struct IoState {
    result: Option<Result<(), IoError>>,
    bio: Option<Bio>,
    /// For a read-ahead that a read has joined: the tag of a retry if it fails.
    retry_tag: Option<IoTag>,
    /// Tasks that sleep until the end.
    sleeping: usize,
    /// The request, for one of the sleeping tasks to run.
    offer: Option<(Bio, Done)>,
}

impl IoCompletion {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            request: AtomicU64::new(u64::MAX),
            done: AtomicBool::new(false),
            handles: AtomicUsize::new(1),
            state: Mutex::new(
                Rank::Leaf,
                IoState {
                    result: None,
                    bio: None,
                    retry_tag: None,
                    sleeping: 0,
                    offer: None,
                },
            ),
            ended: Condvar::new(),
        })
    }

    /// The request that carries it. Set under the queue's lock before a handle is given out.
    pub(super) fn request(&self) -> ReqId {
        ReqId::from_word(self.request.load(Ordering::Relaxed))
    }

    pub(super) fn set_request(&self, id: ReqId) {
        self.request.store(id.to_word(), Ordering::Relaxed);
    }

    /// Whether a task can still wait for it.
    pub(super) fn has_handle(&self) -> bool {
        self.handles.load(Ordering::Acquire) > 0
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// A read with this tag joins a read-ahead; false if that has failed already.
    pub(super) fn join(&self, tag: IoTag) -> bool {
        let mut state = self.state.lock();
        state.retry_tag = Some(tag);
        !matches!(state.result, Some(Err(_)))
    }

    /// Ends it. A failed read-ahead that a read has joined does not end: returns the tag for the retry.
    pub(super) fn end(&self, bio: Bio, result: Result<(), IoError>) -> Option<IoTag> {
        let mut state = self.state.lock();
        assert!(state.result.is_none(), "a request ends once");
        if result.is_err()
            && let Some(tag) = state.retry_tag.take()
        {
            return Some(tag);
        }
        state.bio = Some(bio);
        state.result = Some(result);
        self.done.store(true, Ordering::Release);
        if state.sleeping > 0 {
            self.ended.notify_all();
        }
        None
    }

    /// Offers the request to a task that sleeps until its end, if there is one, because it will be woken anyway.
    pub(super) fn offer(&self, job: (Bio, Done)) -> Result<(), (Bio, Done)> {
        let mut state = self.state.lock();
        if state.sleeping == 0 || state.offer.is_some() {
            return Err(job);
        }
        state.offer = Some(job);
        self.ended.notify_one();
        Ok(())
    }

    /// Sleeps until the end; runs the request if it is offered.
    pub(super) fn sleep(&self, device: &dyn Device) {
        let mut state = self.state.lock();
        while state.result.is_none() {
            if let Some(job) = state.offer.take() {
                drop(state);
                device.run(vec![job]);
                state = self.state.lock();
                continue;
            }
            state.sleeping += 1;
            self.ended.wait(&mut state);
            state.sleeping -= 1;
        }
    }
}

/// A submitted request. Dropping the last handle does not cancel it.
pub struct IoHandle {
    io: Arc<IoCompletion>,
    // Not in `IoCompletion`, so that an ended completion does not keep the device open.
    queue: Arc<Inner>,
}

impl IoHandle {
    pub(super) fn new(io: Arc<IoCompletion>, queue: Arc<Inner>) -> Self {
        Self { io, queue }
    }

    pub(super) fn io(&self) -> &IoCompletion {
        &self.io
    }

    /// Whether the request has ended.
    pub fn is_done(&self) -> bool {
        if !self.io.is_done() {
            self.queue.start_held(self.io.request());
        }
        self.io.is_done()
    }

    /// Waits until the request has ended.
    pub fn wait(&self) -> Result<(), IoError> {
        if !self.io.is_done() {
            self.queue.wait(&self.io);
        }
        let state = self.io.state.lock();
        state.result.clone().expect("the request has ended")
    }

    /// Waits until the request has ended and takes the bio back (once, for a read's buffers).
    pub fn into_bio(self) -> Result<Bio, IoError> {
        self.wait()?;
        let bio = self.io.state.lock().bio.take();
        Ok(bio.expect("the bio is taken once"))
    }
}

impl Clone for IoHandle {
    fn clone(&self) -> Self {
        self.io.handles.fetch_add(1, Ordering::Relaxed);
        Self {
            io: Arc::clone(&self.io),
            queue: Arc::clone(&self.queue),
        }
    }
}

impl Drop for IoHandle {
    fn drop(&mut self) {
        let last = self.io.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        if last && !self.io.is_done() {
            self.queue.abandoned(self.io.request());
        }
    }
}

/// Waits for all of `handles`; returns the first error in their order. It waits for the last one first: most
/// others have ended by then, so the task is woken once and not once per request.
pub fn wait_all(handles: &[IoHandle]) -> Result<(), IoError> {
    let mut result = Ok(());
    for handle in handles.iter().rev() {
        result = handle.wait().and(result);
    }
    result
}
