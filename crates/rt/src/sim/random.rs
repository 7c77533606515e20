//! The seed's numbers.

/// SplitMix64 (Steele, Lea, Flood 2014): one word of state, full period.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `bound`, which is small and not zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        debug_assert!(bound > 0);
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// True in `per_1024` of 1024 cases.
    pub(crate) fn chance(&mut self, per_1024: u16) -> bool {
        per_1024 > 0 && self.next() >> 54 < u64::from(per_1024)
    }
}

/// The hash of everything that was decided.
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
