//! Tasks: straight-line code that blocks.

/// Waits for a task's end.
#[must_use]
pub struct JoinHandle<T> {
    inner: std::thread::JoinHandle<T>,
}

impl<T> JoinHandle<T> {
    /// Waits for the task and returns its value. A panic of the task goes on in the caller.
    pub fn join(self) -> T {
        match self.inner.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.inner.is_finished()
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
    let inner = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(f)
        .expect("the host can start a thread");
    JoinHandle { inner }
}

/// Lets other tasks run.
#[expect(clippy::disallowed_methods, reason = "rt wraps the host")]
pub fn yield_now() {
    std::thread::yield_now();
}
