//! What a server has acknowledged, outside of it.
//!
//! **Problem.** A server that is killed takes with it what no fsync has made durable, and its mount, if programs are not to
//! miss what they have written. **Rule.** Before a call is answered, the state of all that it changed is in a file that
//! the broker holds, too: a memfd, which a kill of the server leaves as it is. A successor brings the volume to that state
//! ([`FileSystem::restore`]) and goes on.
//!
//! * **States, not operations** (`item`). Whatever part of them is durable already, the last one is right.
//! * **What a call is about to change is recorded before, too**, except where the call can be repeated on top of itself.
//!   So a call that a kill interrupts has no effect, although a commit may have made it durable: the kernel sends it again
//!   (NOTIFY_RESEND), and it is carried out as if for the first time.
//! * **A reply is recorded with its states.** A call that was carried out, and not answered, is answered from the record.
//! * The kernel holds a directory's lock over changes of its names, and an inode's lock over its other changes: so conflicting
//!   calls have an order, which that of their records is (`log`).
//! * What no item describes (making a verity file, ioctls of one file system) is made durable before it is answered
//!   ([`Log::barrier`]). So is what was recorded before it, which could not be repeated on a file that takes no changes then.
//!
//! What it costs stands in README.

mod calls;
mod counts;
mod item;
mod layout;
mod log;
mod read;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use steadfs_base::{FixedMap, InodeNo};
use steadfs_rt::{JoinHandle, Mutex, Rank};
use steadfs_vfs::{Cx, FileSystem, LookupCounts, RecordedState};

use counts::Counts;
pub(crate) use item::is_repeatable;
use layout::Layout;
pub(crate) use layout::new_file;
use log::Log;
pub(crate) use log::Ticket;
use read::Found;

use crate::error::MountError;
use crate::host;

/// The records of a server that was killed.
#[derive(Debug)]
pub struct Record(Found);

impl Record {
    /// Reads the file of a mount whose server has ended without handing over.
    ///
    /// # Errors
    /// Those of the file.
    pub fn read(file: &OwnedFd) -> std::io::Result<Self> {
        Ok(Self(Found::read(file.as_fd(), Layout::MOUNT)?))
    }

    /// What the server has acknowledged and may not have made durable.
    pub fn state(&self) -> &RecordedState {
        &self.0.state
    }

    /// The inodes that the kernel knows.
    pub fn counts(&self) -> &LookupCounts {
        &self.0.counts
    }
}

/// What a recorder begins with.
pub(crate) enum Beginning<'a> {
    /// Everything is durable, and the kernel has these inodes.
    Durable(&'a [(InodeNo, u64)]),
    /// The volume was restored to this record.
    Restored(&'a Record),
}

/// Records the calls of a mount.
pub(crate) struct Recorder {
    log: Arc<Log>,
    counts: Counts,
    /// Replies to requests that another server has carried out, by their number.
    answers: Mutex<FixedMap<u64, Vec<u8>>>,
    /// Frees segments of the log.
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Recorder {
    /// Begins to record calls of `fs` in the file of the mount.
    ///
    /// # Errors
    /// [`MountError::Record`]: memory or threads are short.
    pub(crate) fn begin(
        fs: &Arc<dyn FileSystem>,
        file: OwnedFd,
        beginning: &Beginning<'_>,
    ) -> Result<Self, MountError> {
        let failed = |error: std::io::Error| MountError::Record(error.to_string());
        let started = Self::start(file, Layout::MOUNT, beginning);
        let recorder = started.map_err(|errno| failed(errno.into()))?;
        let (log, fs) = (Arc::clone(&recorder.log), Arc::downgrade(fs));
        let task = steadfs_rt::try_spawn("record-sync", move || {
            log.free_segments(|| match fs.upgrade() {
                Some(fs) => fs.sync_all(&Cx::default()),
                None => Ok(()),
            });
        });
        *recorder.task.lock() = Some(task.map_err(failed)?);
        Ok(recorder)
    }

    fn start(file: OwnedFd, layout: Layout, beginning: &Beginning<'_>) -> Result<Self, Errno> {
        let file = Arc::new(file);
        let found;
        let (found, counts) = match beginning {
            Beginning::Durable(counts) => {
                found = Found::used(file.as_fd(), layout)?;
                (&found, Counts::begin(Arc::clone(&file), layout, counts)?)
            }
            Beginning::Restored(record) => (&record.0, Counts::resume(Arc::clone(&file), layout)?),
        };
        let answers = found.answers.iter();
        let answers = answers.map(|one| (one.unique, one.reply.clone())).collect();
        let on_failure = Box::new(|why: &str| {
            host::set_standby("");
            tracing::error!(
                why,
                "no successor could continue this mount if its server ended"
            );
        });
        Ok(Self {
            log: Log::begin(file, layout, found, on_failure)?,
            counts,
            answers: Mutex::new(Rank::Leaf, answers),
            task: Mutex::new(Rank::Leaf, None),
        })
    }

    /// Whether a successor could continue the mount.
    pub(crate) fn is_recording(&self) -> bool {
        !self.log.is_over()
    }

    /// A reply adds to an inode's lookup count.
    pub(crate) fn counted(&self, ino: InodeNo) {
        if let Err(errno) = self.counts.add(ino, 1) {
            self.log.fail_because(&errno.to_string());
        }
    }

    /// Lookups of an inode are about to be dropped.
    pub(crate) fn forgotten(&self, ino: InodeNo, count: u64) {
        if let Err(errno) = self.counts.subtract(ino, count) {
            self.log.fail_because(&errno.to_string());
        }
    }

    /// Nothing is recorded any more, for this reason: no successor continues the mount.
    pub(crate) fn give_up(&self, why: &str) {
        self.log.fail_because(why);
    }

    /// Ends recording, and its task. No call is in service.
    pub(crate) fn end(&self) {
        self.log.end();
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.join();
        }
    }
}
