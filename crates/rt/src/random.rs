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
