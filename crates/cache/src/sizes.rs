//! The memory budget of a volume's caches.

/// Memory for a volume's caches, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// Clean metadata.
    pub metadata: u64,
    /// Dirty file data; writers are throttled above half of it.
    pub dirty_data: u64,
    /// File data that was read ahead and not yet requested.
    pub read_ahead: u64,
}

impl CacheSizes {
    /// Splits a budget into halves. Read-ahead is short-lived and comes on top: an eighth, at most 24 MiB.
    pub fn of(total: u64) -> Self {
        Self {
            metadata: total / 2,
            dirty_data: total / 2,
            read_ahead: (total / 8).min(24 << 20),
        }
    }
}
