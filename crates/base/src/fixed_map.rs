//! Hash maps with a fixed hash function.
//!
//! The standard library seeds its hash function at random, so the order of iteration differs from run to run, and a
//! simulation would not be a function of its seed.

use std::hash::{BuildHasherDefault, Hasher};

/// Multiplicative hashing (Fibonacci hashing: the factor is 2^64 divided by the golden ratio). For numbers that the
/// program chooses, not for keys that an attacker can choose.
#[derive(Default, Clone, Copy, Debug)]
pub struct FixedHasher(u64);

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl FixedHasher {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(26) ^ word).wrapping_mul(GOLDEN);
    }
}

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }
}

/// A hash map with a fixed hasher.
#[expect(
    clippy::disallowed_types,
    reason = "the one place that fixes the hasher"
)]
pub type FixedMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FixedHasher>>;
/// A hash set with a fixed hasher.
#[expect(
    clippy::disallowed_types,
    reason = "the one place that fixes the hasher"
)]
pub type FixedSet<K> = std::collections::HashSet<K, BuildHasherDefault<FixedHasher>>;
