//! Differences between formats that the model must know.

use steadfs_base::Timestamp;

/// Capabilities of the volume under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Block size in bytes.
    pub block_size: u32,
    /// Files are mapped by extents: fallocate can allocate and zero ranges.
    pub extents: bool,
    /// fallocate can punch and zero ranges of all files, not only of those that were made without a name.
    pub punch_ranges: bool,
    /// fallocate can collapse and insert ranges.
    pub shift_ranges: bool,
    /// Times have nanoseconds and years after 2038; otherwise they are rounded down to seconds and clamped to 32 bits.
    pub wide_times: bool,
    /// Values of attributes may be longer than a block, and equal ones may share their space (`ea_inode`).
    pub long_values: bool,
    /// Blocks that are allocated together (`bigalloc`).
    pub cluster_blocks: u32,
    /// The states that a crash may leave.
    pub recovery: Recovery,
}

/// Which states a file system may show after a power cut (see [`oracle`](crate::oracle)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// All operations up to some moment and none after it: a journal.
    Prefix,
    /// The same, but a file that was made durable after that moment is as it was then, without earlier changes of other
    /// files: checkpoints and roll-forward.
    RollForward {
        /// An fsync of a new file takes a checkpoint if a name was renamed into its directory before
        /// (`fsync_mode=strict`).
        strict: bool,
    },
}

impl Format {
    /// Blocks of 4 KiB, all ranges and times, a journal; values of attributes end with a block.
    pub const PLAIN: Self = Self {
        block_size: 4096,
        extents: true,
        punch_ranges: true,
        shift_ranges: true,
        wide_times: true,
        long_values: false,
        cluster_blocks: 1,
        recovery: Recovery::Prefix,
    };

    /// The time as the volume stores it.
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
