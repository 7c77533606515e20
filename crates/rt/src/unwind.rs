//! What a failed assertion (panic) does to a volume.
//!
//! The program ends at the panic, before anything is unwound (`cli/src/fatal.rs`). A library in a foreign process
//! cannot do that: there the stack is unwound, and whatever was half changed is dropped. So the types and tasks that
//! must not end half-way hold an [`OnUnwind`], which stops the volume instead.

use std::thread::panicking;

/// Why a volume stopped whose code panicked.
pub const PANICKED: &str = "internal error: an assertion failed";

/// Whether a panic has begun since this was made.
///
/// A destructor may itself run because of a panic, a foreign one for example, and what it begins and ends within the
/// unwinding is whole: so it is compared with the beginning.
#[derive(Debug)]
pub struct Unwinding {
    at_birth: bool,
}

impl Unwinding {
    /// From now on.
    #[inline]
    pub fn watch() -> Self {
        Self {
            at_birth: panicking(),
        }
    }

    /// Whether the panic has begun since.
    #[inline]
    pub fn has_begun(&self) -> bool {
        !self.at_birth && panicking()
    }
}

/// Calls a function when it is dropped by a panic.
#[must_use]
pub struct OnUnwind<F: FnMut()> {
    call: F,
    unwinding: Unwinding,
}

impl<F: FnMut()> OnUnwind<F> {
    /// Calls `call` if a panic drops the result.
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
