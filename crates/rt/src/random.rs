//! Randomness that is not for secrets.

use std::hash::{BuildHasher, Hasher};

use crate::sim::world;

/// A random number; in simulation the next of the seed's.
pub fn random_u64() -> u64 {
    if world::simulated() {
        return world::random();
    }
    // RandomState is seeded by the host for each call; one finished hash of it is one number.
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// Numbers that follow from a seed: SplitMix64 (Steele, Lea, Flood 2014), one word of state, full
/// period. For choices in tests and simulation.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "there is no number below zero");
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// True in `per_1024` of 1024 cases.
    pub fn chance(&mut self, per_1024: u16) -> bool {
        per_1024 > 0 && self.next_u64() >> 54 < u64::from(per_1024)
    }
}
