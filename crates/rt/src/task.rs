//! Tasks: straight-line code that blocks.

use crate::cpu;
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

    /// Waits for the task and returns its value, or `None` if it panicked: for an orderly end of what has stopped
    /// because of that panic. (In simulation the panic has failed the run.)
    pub fn join_panicked(self) -> Option<T> {
        match self.inner {
            Inner::Thread(thread) => thread.join().ok(),
            Inner::Sim(task) => Some(task.join()),
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

/// Starts a task, in tests and simulations. `name` (15 bytes are shown by the host) says what it does.
///
/// # Panics
/// If the host refuses another thread: see [`check_thread_limit`].
pub fn spawn<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    try_spawn(name, f).expect("the host can start a thread")
}

/// Starts a task.
///
/// # Errors
/// If the host refuses another thread. `f` is dropped then.
#[expect(clippy::disallowed_types, reason = "rt makes the threads")]
pub fn try_spawn<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let inner = if world::simulated() {
        if world::with(|world| world.is_full()) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        Inner::Sim(SimJoin::spawn(name, f))
    } else {
        let thread = std::thread::Builder::new().name(name.to_owned());
        Inner::Thread(thread.spawn(|| {
            cpu::shorten_slice();
            f()
        })?)
    };
    Ok(JoinHandle { inner })
}

/// Whether the host lets this process have so many threads more, by trying: for who is about to start what cannot
/// do without.
///
/// # Errors
/// If it refuses one of them.
#[expect(clippy::disallowed_types, reason = "rt makes the threads")]
pub fn check_thread_limit(count: usize) -> std::io::Result<()> {
    if world::simulated() {
        // None is left to itself there, so that one tells as much as many.
        return (0..count.min(1)).try_for_each(|_| try_spawn("try", || ()).map(JoinHandle::join));
    }
    let (stay, go) = std::sync::mpsc::channel::<()>();
    let go = std::sync::Arc::new(std::sync::Mutex::new(go));
    let mut started = Vec::new();
    let mut result = Ok(());
    for _ in 0..count {
        let go = std::sync::Arc::clone(&go);
        // Each waits for the end of the channel, in turn.
        match try_spawn("try", move || drop(go.lock().map(|go| go.recv()))) {
            Ok(task) => started.push(task),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    drop(stay);
    for task in started {
        task.join();
    }
    result
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
