//! The trace of a run.

/// The running hash of all choices.
pub(crate) struct Trace(u64);

impl Trace {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
