//! What the queue asks of a device.

use crate::{Bio, IoError};

/// Called once when a bio has ended, from any task or from the device's own context. It takes only
/// locks of a late rank and never waits. The bio comes back for its buffers.
pub type Done = Box<dyn FnOnce(Bio, Result<(), IoError>) + Send>;

/// A device's fixed properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes.
    pub size: u64,
    /// Unit of offsets and lengths, in bytes (512 or 4096).
    pub logical_block: u32,
    /// Whether writing is refused.
    pub read_only: bool,
    /// Whether discard does something; the unit in bytes.
    pub discard_granularity: Option<u64>,
    /// Whether the device can make one write durable by itself (otherwise FUA costs a flush).
    pub fua: bool,
    /// Largest transfer of one request, in bytes.
    pub max_transfer: u32,
}

/// A block device, real or modelled.
pub trait Device: Send + Sync {
    /// Fixed properties.
    fn geometry(&self) -> &Geometry;

    /// Starts `bio`; `done` is called exactly once, possibly before this returns. Does not wait for
    /// the device.
    fn start(&self, bio: Bio, done: Done);

    /// Lends the calling task to the device: a task that has nothing to do but wait runs started
    /// requests or collects completions itself, which saves waking another one. Returns when `until`
    /// is true or when there is nothing that this task could do; the caller then sleeps.
    fn help(&self, until: &dyn Fn() -> bool) {
        let _ = until;
    }
}
