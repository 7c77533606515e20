//! The superblock that a volume was opened by, as last read from or written to the device.
//!
//! If the device has another one at a remount, another program has changed the volume.

use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_rt::{Mutex, Rank};

use crate::disk::superblock::SUPERBLOCK_OFFSET;

/// Position and bytes of a superblock.
pub(crate) struct SuperOrigin {
    /// Its first byte on the device.
    at: AtomicU64,
    bytes: Mutex<Vec<u8>>,
}

impl SuperOrigin {
    pub(crate) fn new(at: u64, bytes: Vec<u8>) -> Self {
        Self {
            at: AtomicU64::new(at),
            bytes: Mutex::new(Rank::Leaf, bytes),
        }
    }

    /// Its first byte on the device.
    pub(crate) fn at(&self) -> u64 {
        self.at.load(Ordering::Acquire)
    }

    /// The first superblock is valid from now on, even if the volume was opened by a copy.
    pub(crate) fn use_first(&self) {
        self.at.store(SUPERBLOCK_OFFSET, Ordering::Release);
    }

    /// Whether the device still had these bytes.
    pub(crate) fn is(&self, bytes: &[u8]) -> bool {
        *self.bytes.lock() == bytes
    }

    /// The device has these bytes now.
    pub(crate) fn set(&self, bytes: Vec<u8>) {
        *self.bytes.lock() = bytes;
    }
}
