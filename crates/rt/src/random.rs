//! Randomness that is not for secrets.

use std::hash::{BuildHasher, Hasher};

/// A random number.
pub fn random_u64() -> u64 {
    // RandomState is seeded by the host for each call; one finished hash of it is one number.
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}
