//! How much memory a volume's caches get.

/// Memory for a volume's caches, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// Clean metadata.
    pub metadata: u64,
    /// File data that is not written yet: at half of it writers are held up.
    pub dirty_data: u64,
    /// File data that was read ahead and not asked for yet.
    pub read_ahead: u64,
}

impl CacheSizes {
    /// Splits a budget in halves. What is read ahead is kept for moments: it comes on top.
    pub fn of(total: u64) -> Self {
        Self {
            metadata: total / 2,
            dirty_data: total / 2,
            read_ahead: (total / 8).min(24 << 20),
        }
    }
}
