//! The interface between the queue and a device.

use crate::{Bio, IoError, Op};

/// Called once when a bio has ended, from any task or from the device's own context. It takes only
/// locks of a late rank and never waits. It gets the bio back for its buffers.
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
    /// Unit of discards in bytes, if the device supports them.
    pub discard_granularity: Option<u64>,
    /// Whether every successfully discarded range reads as zeros. Never without a
    /// `discard_granularity`.
    pub discard_zeroes: bool,
    /// Whether the device can make a single write durable (otherwise FUA costs a FLUSH).
    pub fua: bool,
    /// Largest transfer of one request, in bytes.
    pub max_transfer: u32,
}

impl Geometry {
    /// Refuses a bio that this device cannot serve: outside its range, not in whole logical blocks, a
    /// change of a read-only device, or a length that is not the total of the buffers.
    pub fn check(&self, bio: &Bio) -> Result<(), IoError> {
        if bio.op == Op::Flush {
            return Ok(());
        }
        let unit = u64::from(self.logical_block);
        let end = bio.offset.checked_add(bio.len);
        if end.is_none_or(|end| end > self.size) {
            return Err(IoError::of(bio, "past the end of the device"));
        }
        if !bio.offset.is_multiple_of(unit) || !bio.len.is_multiple_of(unit) {
            let cause = format!("not in whole blocks of {unit} bytes");
            return Err(IoError::of(bio, cause));
        }
        if self.read_only && bio.op != Op::Read {
            return Err(IoError::of(bio, "the device is read-only"));
        }
        if matches!(bio.op, Op::Read | Op::Write) {
            let sum: u64 = bio.bufs.iter().map(|b| b.len() as u64).sum();
            if sum != bio.len {
                let cause = format!("the buffers hold {sum} bytes");
                return Err(IoError::of(bio, cause));
            }
        }
        Ok(())
    }
}

/// A block device, real or modelled.
pub trait Device: Send + Sync {
    /// Fixed properties.
    fn geometry(&self) -> &Geometry;

    /// Starts `bio`; `done` is called exactly once, possibly before this returns. Does not wait for
    /// the device.
    fn start(&self, bio: Bio, done: Done);

    /// Starts every bio of `batch` for a task that only waits for them: a device that needs CPU time
    /// uses this task's, which saves a wake-up of another one. May wait until the batch has ended; the
    /// device ends by itself what has not ended on return.
    fn run(&self, batch: Vec<(Bio, Done)>) {
        for (bio, done) in batch {
            self.start(bio, done);
        }
    }

    /// Lets the calling task run started requests that no other task has taken yet. Returns when
    /// `until` is true or when there is nothing that this task could do; the caller then sleeps.
    fn help(&self, until: &dyn Fn() -> bool) {
        let _ = until;
    }

    /// How many background requests (without a waiter) the device serves at a time. More would only
    /// wait inside the device, where the scheduler cannot order them any more.
    fn background_depth(&self) -> usize {
        usize::MAX
    }

    /// How many requests the device takes at a time. The others wait in the queue.
    fn depth(&self) -> usize {
        usize::MAX
    }

    /// Makes a device that was opened read-only writable, and its geometry with it.
    ///
    /// # Errors
    /// Why it stays read-only.
    fn make_writable(&self) -> Result<(), String> {
        if self.geometry().read_only {
            return Err("the device is read-only".to_owned());
        }
        Ok(())
    }
}
