//! Counters of a mount.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire;

/// How many requests of each kind came, since the mount.
#[derive(Debug)]
pub struct Stats {
    requests: [AtomicU64; wire::OPCODES],
    errors: AtomicU64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            requests: [const { AtomicU64::new(0) }; wire::OPCODES],
            errors: AtomicU64::new(0),
        }
    }
}

impl Stats {
    pub(crate) fn count(&self, opcode: u32) {
        // Slot 0 is no operation's: unknown ones are counted there.
        let slot = self
            .requests
            .get(opcode as usize)
            .unwrap_or(&self.requests[0]);
        slot.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Operations that came at least once, by the kernel's name for them, with how often.
    pub fn requests(&self) -> Vec<(&'static str, u64)> {
        (0_u32..)
            .zip(&self.requests)
            .map(|(opcode, n)| (wire::op_name(opcode), n.load(Ordering::Relaxed)))
            .filter(|&(_, n)| n > 0)
            .collect()
    }

    /// How often the operation with the kernel's name `name` came.
    pub fn of(&self, name: &str) -> u64 {
        self.requests()
            .iter()
            .filter(|(op, _)| *op == name)
            .map(|(_, n)| n)
            .sum()
    }

    /// All requests together.
    pub fn total(&self) -> u64 {
        self.requests
            .iter()
            .map(|n| n.load(Ordering::Relaxed))
            .sum()
    }

    /// Requests answered with an error (a name that does not exist is none).
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }
}
