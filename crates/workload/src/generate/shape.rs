//! What random programs look like.

/// Parameters of random programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of concurrent tasks. Each has names of its own.
    pub tasks: usize,
    /// Minimum number of operations per task.
    pub ops: usize,
    /// Several tasks work in the same directories; otherwise each in its own.
    pub shared: bool,
    /// Percentage of operations that make something durable.
    pub sync_percent: u64,
    /// Percentage of operations preceded by a sleep that lets timers expire.
    pub sleep_percent: u64,
    /// Largest offset written, in bytes.
    pub max_file: u64,
    /// Largest sum of a task's file sizes, in bytes.
    pub space: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            tasks: 1,
            ops: 24,
            shared: false,
            sync_percent: 15,
            sleep_percent: 0,
            max_file: 128 << 10,
            space: 512 << 10,
        }
    }
}
