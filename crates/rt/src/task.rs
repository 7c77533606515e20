//! Tasks: threads, or coroutines of a simulation.

use crate::cpu;
use crate::sim::task::SimJoin;
use crate::sim::world;

/// The handle of a started task. If it is dropped without [`JoinHandle::join`], the task continues detached.
#[must_use]
pub struct JoinHandle<T> {
    inner: Inner<T>,
}

enum Inner<T> {
    Thread(std::thread::JoinHandle<T>),
    Sim(SimJoin<T>),
}

impl<T> JoinHandle<T> {
    /// Waits for the task's end and returns its value. A panic of the task is resumed in the caller (in simulation it
    /// fails the run).
    pub fn join(self) -> T {
        match self.inner {
            Inner::Thread(thread) => match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            },
            Inner::Sim(task) => task.join(),
        }
    }

    /// Waits for the task's end and returns its value, or `None` if the task panicked: for the unmount of a volume that
    /// was aborted because of that panic. (In simulation the panic has failed the run.)
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

/// Starts a task in tests and simulations. The host shows the first 15 bytes of `name`.
///
/// # Panics
/// If the host refuses the thread: product code uses [`try_spawn`].
pub fn spawn<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    try_spawn(name, f).expect("the host can start a thread")
}

/// Starts a task. The host shows the first 15 bytes of `name`.
///
/// # Errors
/// The host refuses the thread; `f` is dropped.
#[expect(clippy::disallowed_types, reason = "rt starts the threads")]
pub fn try_spawn<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let inner = if world::simulated() {
        if world::with(|world| world.is_refusing_tasks()) {
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

/// Checks that the host allows this process `count` more threads, by starting and ending them: for a caller that is
/// about to start threads and cannot handle a refusal half-way.
///
/// # Errors
/// The host refuses one of the threads.
#[expect(clippy::disallowed_types, reason = "rt starts the threads")]
pub fn check_thread_limit(count: usize) -> std::io::Result<()> {
    if world::simulated() {
        // A simulation refuses all tasks or none: one attempt is enough.
        return (0..count.min(1)).try_for_each(|_| try_spawn("try", || ()).map(JoinHandle::join));
    }
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let receiver = std::sync::Arc::new(std::sync::Mutex::new(receiver));
    let mut started = Vec::new();
    let mut result = Ok(());
    for _ in 0..count {
        if let Err(error) = check_thread_memory() {
            result = Err(error);
            break;
        }
        let receiver = std::sync::Arc::clone(&receiver);
        // Each thread waits until the sender is dropped.
        match try_spawn("try", move || {
            drop(receiver.lock().map(|channel| channel.recv()))
        }) {
            Ok(task) => started.push(task),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    drop(sender);
    for task in started {
        task.join();
    }
    result
}

/// Checks that there is memory for one more thread. The standard library panics in a thread that has its stack and gets no
/// memory for its signal stack, so this is asked before.
fn check_thread_memory() -> std::io::Result<()> {
    // A stack has 2 MiB. The rest is for the signal stacks of threads that have been started and have not begun.
    const NEEDED: usize = 3 << 20;
    let mut room: Vec<u8> = Vec::new();
    let reserved = room.try_reserve_exact(NEEDED);
    std::hint::black_box(&room);
    reserved.map_err(|_| std::io::ErrorKind::OutOfMemory.into())
}

/// Yields the CPU to other tasks.
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
