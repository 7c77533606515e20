//! Tasks: straight-line code that blocks.

use crate::sim::task::SimJoin;
use crate::sim::world;

/// Waits for a task's end. Dropped without [`JoinHandle::join`], it lets the task run on.
#[must_use]
pub struct JoinHandle<T> {
    inner: Inner<T>,
}

enum Inner<T> {
    Thread(std::thread::JoinHandle<T>),
    Sim(SimJoin<T>),
}

impl<T> JoinHandle<T> {
    /// Waits for the task and returns its value. A panic of the task goes on in the caller (in
    /// simulation it fails the run).
    pub fn join(self) -> T {
        match self.inner {
            Inner::Thread(thread) => match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            },
            Inner::Sim(task) => task.join(),
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        match &self.inner {
            Inner::Thread(thread) => thread.is_finished(),
            Inner::Sim(task) => task.is_finished(),
        }
    }
}

/// Starts a task. `name` (15 bytes are shown by the host) says what it does.
///
/// # Panics
/// If the host refuses another thread.
#[expect(clippy::disallowed_types, reason = "rt makes the threads")]
pub fn spawn<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    if world::simulated() {
        let inner = Inner::Sim(SimJoin::spawn(name, f));
        return JoinHandle { inner };
    }
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(f)
        .expect("the host can start a thread");
    JoinHandle {
        inner: Inner::Thread(thread),
    }
}

/// Lets other tasks run.
#[expect(clippy::disallowed_methods, reason = "rt wraps the host")]
pub fn yield_now() {
    if world::simulated() {
        world::yield_now();
    } else {
        std::thread::yield_now();
    }
}

/// The running task's name, for messages.
pub fn task_name() -> String {
    if world::simulated() {
        return world::task_name();
    }
    let thread = std::thread::current();
    thread.name().unwrap_or("unnamed").to_owned()
}
