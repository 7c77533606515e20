//! A failed assertion (panic) aborts the volume.
//!
//! The program ends at the panic, before the stack is unwound (`cli/src/fatal.rs`). A library in another program cannot
//! end the process: there the stack is unwound, and half-changed state is dropped. Rule: types and tasks that must not
//! end in the middle of a change hold an [`OnUnwind`], which aborts the volume.

use std::thread::panicking;

/// The cause that an aborted volume reports after a panic.
pub const PANICKED: &str = "internal error: an assertion failed";

/// Detects a panic that begins after the value was made.
///
/// A destructor may itself run because of an earlier panic, and a change that it begins and ends during that unwinding
/// is complete. So the state is compared with that at the begin.
#[derive(Debug)]
pub struct Unwinding {
    panicking_before: bool,
}

impl Unwinding {
    /// Watches for panics from now on.
    #[inline]
    pub fn watch() -> Self {
        Self {
            panicking_before: panicking(),
        }
    }

    /// Whether a panic has begun since [`Unwinding::watch`].
    #[inline]
    pub fn has_begun(&self) -> bool {
        !self.panicking_before && panicking()
    }
}

/// Calls a function if a panic drops it.
#[must_use]
pub struct OnUnwind<F: FnMut()> {
    call: F,
    unwinding: Unwinding,
}

impl<F: FnMut()> OnUnwind<F> {
    /// A guard that calls `call`.
    pub fn new(call: F) -> Self {
        Self {
            call,
            unwinding: Unwinding::watch(),
        }
    }
}

impl<F: FnMut()> Drop for OnUnwind<F> {
    fn drop(&mut self) {
        if self.unwinding.has_begun() {
            (self.call)();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;

    #[test]
    fn only_a_panic_calls_the_function() {
        let calls = Cell::new(0);
        let guard = || OnUnwind::new(|| calls.set(calls.get() + 1));
        drop(guard());
        assert_eq!(calls.get(), 0);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _guard = guard();
            resume_unwind(Box::new("quietly"));
        }));
        assert!(caught.is_err() && calls.get() == 1);
    }

    #[test]
    fn a_guard_made_during_unwinding_is_not_called() {
        struct Late<'a>(&'a Cell<u32>);
        impl Drop for Late<'_> {
            fn drop(&mut self) {
                drop(OnUnwind::new(|| self.0.set(1)));
            }
        }
        let calls = Cell::new(0);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _late = Late(&calls);
            resume_unwind(Box::new("quietly"));
        }));
        assert!(caught.is_err());
        assert_eq!(calls.get(), 0);
    }
}
