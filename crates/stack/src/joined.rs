//! A volume and the device of its journal as one device.
//!
//! **Rule.** The journal's bytes follow those of the volume, from a multiple of [`JOINED_UNIT`] on, so that a file system
//! addresses both by block numbers of one device. A FLUSH makes both durable, and so does the FLUSH before a write
//! (PREFLUSH): a commit record in the journal is written after the data in the volume is durable.

use std::sync::Arc;

use steadfs_block::{Bio, Device, Done, Geometry, IoError, Op};

use crate::mapped::moved_back;

/// The journal begins at a multiple of this: the largest block of a file system, in bytes.
pub const JOINED_UNIT: u64 = 64 << 10;

/// See the module.
pub struct JoinedDevice {
    volume: Arc<dyn Device>,
    journal: Arc<dyn Device>,
    journal_at: u64,
    geometry: Geometry,
    /// The geometry after both have become writable.
    writable: Geometry,
}

impl JoinedDevice {
    /// Joins them; the journal is behind the volume.
    ///
    /// # Errors
    /// They are too large for one device, or their sectors do not fit together.
    pub fn new(volume: Arc<dyn Device>, journal: Arc<dyn Device>) -> Result<Self, String> {
        let (first, second) = (volume.geometry(), journal.geometry());
        let journal_at = first.size.checked_next_multiple_of(JOINED_UNIT);
        let sizes = journal_at.and_then(|at| Some((at, at.checked_add(second.size)?)));
        let (journal_at, size) = sizes.ok_or("is too large beside its volume")?;
        let writable = Geometry {
            size,
            logical_block: first.logical_block.max(second.logical_block),
            read_only: false,
            discard_granularity: first.discard_granularity,
            discard_zeroes: first.discard_zeroes,
            fua: first.fua && second.fua,
            max_transfer: first.max_transfer.min(second.max_transfer),
        };
        if !JOINED_UNIT.is_multiple_of(writable.logical_block.into()) {
            return Err(format!("has sectors of {} bytes", writable.logical_block));
        }
        let geometry = Geometry {
            read_only: true,
            ..writable.clone()
        };
        Ok(Self {
            volume,
            journal,
            journal_at,
            geometry,
            writable,
        })
    }

    /// Where the journal begins, in bytes.
    pub fn journal_at(&self) -> u64 {
        self.journal_at
    }

    fn is_in_journal(&self, bio: &Bio) -> bool {
        bio.offset >= self.journal_at
    }

    /// Refuses what is in neither of them.
    fn check(&self, bio: &Bio) -> Result<(), IoError> {
        self.geometry().check(bio)?;
        let is_between = !self.is_in_journal(bio) && bio.end() > self.volume.geometry().size;
        match bio.op {
            Op::Flush => Ok(()),
            _ if is_between => Err(IoError::of(bio, "between the volume and its journal")),
            Op::Discard if self.is_in_journal(bio) => {
                Err(IoError::of(bio, "a discard in the journal"))
            }
            _ => Ok(()),
        }
    }

    /// Starts a request on the device that it is for.
    fn pass_on(&self, mut bio: Bio, done: Done) {
        if self.is_in_journal(&bio) {
            let offset = bio.offset;
            bio.offset -= self.journal_at;
            self.journal.start(bio, moved_back(offset, done));
        } else {
            self.volume.start(bio, done);
        }
    }

    /// Makes one of them durable before a request for the other one starts, which makes that durable.
    fn after_flush(
        first: &Arc<dyn Device>,
        second: Arc<dyn Device>,
        at: u64,
        bio: Bio,
        done: Done,
    ) {
        let flushed: Done = Box::new(move |_, result| match result {
            Ok(()) => {
                let (offset, mut bio) = (bio.offset, bio);
                bio.offset = bio.offset.saturating_sub(at);
                second.start(bio, moved_back(offset, done));
            }
            Err(error) => {
                let error = IoError::of(&bio, error.cause);
                done(bio, Err(error));
            }
        });
        first.start(Bio::flush(), flushed);
    }
}

impl Device for JoinedDevice {
    fn geometry(&self) -> &Geometry {
        match self.volume.geometry().read_only || self.journal.geometry().read_only {
            true => &self.geometry,
            false => &self.writable,
        }
    }

    fn start(&self, bio: Bio, done: Done) {
        if let Err(error) = self.check(&bio) {
            return done(bio, Err(error));
        }
        let (volume, journal) = (&self.volume, &self.journal);
        match bio.op {
            Op::Flush => Self::after_flush(volume, Arc::clone(journal), 0, bio, done),
            _ if bio.preflush && self.is_in_journal(&bio) => {
                Self::after_flush(volume, Arc::clone(journal), self.journal_at, bio, done);
            }
            _ if bio.preflush => Self::after_flush(journal, Arc::clone(volume), 0, bio, done),
            _ => self.pass_on(bio, done),
        }
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        self.volume.help(until);
        self.journal.help(until);
    }

    fn background_depth(&self) -> usize {
        let (volume, journal) = (&self.volume, &self.journal);
        volume.background_depth().min(journal.background_depth())
    }

    fn depth(&self) -> usize {
        self.volume.depth().min(self.journal.depth())
    }

    fn make_writable(&self) -> Result<(), String> {
        // The journal first: a volume that can be written without it would not be.
        self.journal.make_writable()?;
        self.volume.make_writable()
    }
}
