//! Ending a system call that another thread waits in, and ending a process in which none can go on.
//!
//! **Problem.** A thread that waits in read(2) on a device of the kernel's returns only with data or at a signal.
//! **Rule.** Another thread sends it SIGURG, whose handler does nothing and which does not restart the call. Only a
//! thread that is about to wait gets the signal, so no other call of its sees EINTR. A signal that arrives just before
//! the call has no effect, so the caller sends signals until the thread has noticed.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::thread::gettid;

/// A thread whose waits can be ended.
pub struct Interruptible {
    thread: libc::c_int,
    waiting: AtomicBool,
}

impl Interruptible {
    /// The calling thread.
    pub fn current() -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(ignore_signal);
        Self {
            thread: gettid().as_raw_nonzero().get(),
            waiting: AtomicBool::new(false),
        }
    }

    /// Makes a system call, which fails with EINTR if it is interrupted. On the thread of [`Interruptible::current`].
    #[inline]
    pub fn wait<T>(&self, call: impl FnOnce() -> T) -> T {
        self.waiting.store(true, Ordering::Release);
        let result = call();
        self.waiting.store(false, Ordering::Release);
        result
    }

    /// Interrupts the thread if it is waiting.
    ///
    /// # Errors
    /// The thread has exited.
    #[expect(unsafe_code, reason = "a system call that no safe wrapper offers")]
    pub fn interrupt(&self) -> io::Result<()> {
        if !self.waiting.load(Ordering::Acquire) {
            return Ok(());
        }
        let process = rustix::process::getpid().as_raw_nonzero().get();
        // SAFETY: the signal's handler does nothing, and the call accesses no memory.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, self.thread, libc::SIGURG) };
        match sent {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

extern "C" fn nothing(_: libc::c_int) {}

/// Makes SIGURG end a wait, and do nothing else.
#[expect(
    unsafe_code,
    reason = "no safe wrapper installs a handler without SA_RESTART"
)]
fn ignore_signal() {
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: all zeros is a valid `sigaction`: no flags, an empty mask; the handler does nothing.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut())
    };
    debug_assert_eq!(installed, 0, "SIGURG can be caught");
}

/// Has the kernel end this process after about this time, by SIGALRM, even if no thread of it can go on.
#[expect(unsafe_code, reason = "a system call that no safe wrapper offers")]
pub fn end_process_after(time: Duration) {
    let seconds = libc::c_uint::try_from(time.as_secs()).unwrap_or(libc::c_uint::MAX);
    // SAFETY: the call takes an integer and accesses no memory of this process.
    unsafe { libc::alarm(seconds.max(1)) };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::io::Errno;

    use super::*;
    use crate::{Event, sleep, spawn};

    #[test]
    fn a_wait_ends_at_an_interrupt() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let started: Arc<Event<Arc<Interruptible>>> = Arc::default();
        let theirs = Arc::clone(&started);
        let thread = spawn("waits", move || {
            let this = Arc::new(Interruptible::current());
            theirs.set(Arc::clone(&this));
            let mut byte = [0];
            this.wait(|| rustix::io::read(&reader, &mut byte[..]).map(drop))
        });
        let other = started.wait();
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        let interrupts = spawn("interrupts", move || {
            while !seen.load(Ordering::Acquire) {
                let _ = other.interrupt();
                sleep(Duration::from_millis(1));
            }
            other.interrupt()
        });
        assert_eq!(thread.join(), Err(Errno::INTR));
        done.store(true, Ordering::Release);
        assert!(interrupts.join().is_ok(), "it does not wait any more");
    }
}
