//! What volumes of different formats can do and keep.

use steadfs_base::Timestamp;

/// What the volume under test can do, where volumes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Block size in bytes.
    pub block_size: u32,
    /// Files are mapped by extents: fallocate can allocate and zero ranges.
    pub extents: bool,
    /// fallocate can collapse and insert ranges.
    pub shift_ranges: bool,
    /// Times have nanoseconds and years after 2038; otherwise they are rounded down to seconds and
    /// kept within 32 bits.
    pub wide_times: bool,
    /// What is promised of it after a power cut.
    pub recovery: Recovery,
}

/// What a file system promises to show after a power cut (see [`oracle`](crate::oracle)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Operations are there up to some moment, and none after it: a journal.
    Prefix,
    /// The same, but files that were made durable after that moment are as they were then, without what
    /// was done to others before: checkpoints and roll-forward.
    RollForward {
        /// A new file is made durable alone only if nothing was renamed into its directory before
        /// (`fsync_mode=strict`).
        strict: bool,
    },
}

impl Format {
    /// What is kept of a time.
    pub fn stored(self, time: Timestamp) -> Timestamp {
        if self.wide_times {
            return time;
        }
        Timestamp {
            secs: time.secs.clamp(i32::MIN.into(), i32::MAX.into()),
            nanos: 0,
        }
    }
}
