//! Counters of a mount.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire;

/// Requests by operation since the mount.
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
        // Slot 0 belongs to no operation: it counts unknown ones.
        let slot = self
            .requests
            .get(opcode as usize)
            .unwrap_or(&self.requests[0]);
        slot.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Operations with at least one request, by their names in the kernel, and the number of requests.
    pub fn requests(&self) -> Vec<(&'static str, u64)> {
        (0_u32..)
            .zip(&self.requests)
            .map(|(opcode, n)| (wire::op_name(opcode), n.load(Ordering::Relaxed)))
            .filter(|&(_, n)| n > 0)
            .collect()
    }

    /// Number of requests of the operation with the kernel's name `name`.
    pub fn of(&self, name: &str) -> u64 {
        self.requests()
            .iter()
            .filter(|(op, _)| *op == name)
            .map(|(_, n)| n)
            .sum()
    }

    /// Number of all requests.
    pub fn total(&self) -> u64 {
        self.requests
            .iter()
            .map(|n| n.load(Ordering::Relaxed))
            .sum()
    }

    /// Requests answered with an error (a negative entry is none).
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }
}
