//! Signals during long calls, which run without the interpreter's lock.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use steadfs::Stop;
use steadfs_rt::{Instant, Mutex, Rank, now};

/// Between two looks for signals: each takes the interpreter's lock.
const INTERVAL: Duration = Duration::from_millis(20);

/// What a signal handler raised during a call.
#[derive(Clone)]
pub struct Signals(Arc<Mutex<State>>);

struct State {
    raised: Option<PyErr>,
    next: Instant,
}

impl Default for Signals {
    fn default() -> Self {
        let next = now();
        let state = State { raised: None, next };
        Self(Arc::new(Mutex::new(Rank::Leaf, state)))
    }
}

impl Signals {
    /// Lets the handlers of signals that have come run; returns whether one has raised.
    pub fn have_raised(&self) -> bool {
        let now = now();
        {
            let mut state = self.0.lock();
            if state.raised.is_some() || now < state.next {
                return state.raised.is_some();
            }
            state.next = now + INTERVAL;
        }
        // A handler may use volumes, so no lock is held.
        let raised = Python::attach(|py| py.check_signals()).err();
        let is_raised = raised.is_some();
        if is_raised {
            self.0.lock().raised = raised;
        }
        is_raised
    }

    /// Stops work on a device when a handler has raised.
    pub fn stop(&self) -> Stop {
        let signals = self.clone();
        Arc::new(move || signals.have_raised())
    }

    /// The exception of a handler, else what the call returned.
    pub fn or<T>(&self, done: PyResult<T>) -> PyResult<T> {
        match self.0.lock().raised.take() {
            Some(raised) => Err(raised),
            None => done,
        }
    }
}
