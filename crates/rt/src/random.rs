//! Random numbers, and random bytes for cryptography.

use std::hash::{BuildHasher, Hasher};

use crate::sim::world;

/// A random number, not for cryptography; in simulation the next number of the run's seed.
pub fn random_u64() -> u64 {
    if world::simulated() {
        return world::random();
    }
    // The standard library seeds each RandomState from the host; the hash of no input is the number.
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// Fills a buffer with random bytes of the host, fit for cryptography; in simulation with numbers of the run's seed.
pub fn random_bytes(bytes: &mut [u8]) {
    if world::simulated() {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&world::random().to_ne_bytes()[..part.len()]);
        }
        return;
    }
    fill_by_host(bytes);
}

#[cfg(target_os = "linux")]
fn fill_by_host(bytes: &mut [u8]) {
    use rustix::io::Errno;
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut done = 0;
    while done < bytes.len() {
        match getrandom(&mut bytes[done..], GetRandomFlags::empty()) {
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(error) => panic!("the host has no random bytes: {error}"),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn fill_by_host(bytes: &mut [u8]) {
    if let Err(error) = getrandom::fill(bytes) {
        panic!("the host has no random bytes: {error}");
    }
}

/// A seeded generator: SplitMix64 (Steele, Lea, Flood 2014), with one word of state and full period. For choices in
/// tests and simulation.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
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

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "no number is below zero");
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// True with a probability of `per_1024` / 1024.
    pub fn chance(&mut self, per_1024: u16) -> bool {
        per_1024 > 0 && self.next_u64() >> 54 < u64::from(per_1024)
    }
}
