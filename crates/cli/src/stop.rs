//! Ends long work cleanly: a signal is recorded, the work stops at its next step, and the volume is closed. So an
//! interrupted copy leaves a consistent volume, with or without a journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, code};

/// The first signal, if one has arrived.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Records signals from now on. A second one ends the program at once.
    pub fn on_signals() -> Result<Self, Failure> {
        let stop = Self::default();
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = usize::try_from(signal).unwrap_or_default();
            flag::register_conditional_default(signal, Arc::clone(&again))
                .and_then(|_| flag::register(signal, Arc::clone(&again)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&stop.0), number))
                .map_err(|error| Failure::new(code::SYSTEM, error))?;
        }
        Ok(stop)
    }

    /// Whether the work shall stop.
    pub fn is_asked(&self) -> bool {
        self.signal() != 0
    }

    fn signal(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// The failure of interrupted work.
    pub fn failure(&self, message: impl std::fmt::Display) -> Failure {
        match i32::try_from(self.signal()) {
            Ok(signal) if signal != 0 => Failure::by_signal(signal, message),
            _ => Failure::plain(message),
        }
    }
}
