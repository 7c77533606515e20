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
