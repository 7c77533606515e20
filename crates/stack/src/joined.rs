//! A volume and the device of its journal as one device.
//!
//! **Rule.** The journal's bytes follow those of the volume, from a multiple of [`JOINED_UNIT`] on, so that a file system
//! addresses both by block numbers of one device. A FLUSH makes both durable, and so does the FLUSH before a write
//! (PREFLUSH): a commit record in the journal is written after the data in the volume is durable.

use std::sync::Arc;

use steadfs_block::{Bio, Device, Done, Geometry, IoError, Op};

use crate::mapped::moved_back;
use crate::split::Split;

/// The journal begins at a multiple of this: the largest block of a file system, in bytes.
pub const JOINED_UNIT: u64 = 64 << 10;

/// A request for one of them.
enum Step {
    Volume(Bio, Done),
    Journal(Bio, Done),
}

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

    /// Refuses changes that are not within one of them.
    fn check(&self, bio: &Bio) -> Result<(), IoError> {
        self.geometry().check(bio)?;
        let is_outside = !self.is_in_journal(bio) && bio.end() > self.volume.geometry().size;
        match bio.op {
            Op::Flush | Op::Read => Ok(()),
            _ if is_outside => Err(IoError::of(bio, "between the volume and its journal")),
            Op::Discard if self.is_in_journal(bio) => {
                Err(IoError::of(bio, "a discard in the journal"))
            }
            _ => Ok(()),
        }
    }

    /// The requests for both that a request without a FLUSH before it becomes. It may have ended on return, if there are none.
    fn expand(&self, mut bio: Bio, done: Done) -> Vec<Step> {
        if self.is_in_journal(&bio) {
            let offset = bio.offset;
            bio.offset -= self.journal_at;
            return vec![Step::Journal(bio, moved_back(offset, done))];
        }
        let end = self.volume.geometry().size;
        if bio.end() <= end {
            return vec![Step::Volume(bio, done)];
        }
        let (offset, stop) = (bio.offset, bio.end());
        let split = Split::new(bio, done);
        let mut steps = Vec::new();
        let in_volume = end.saturating_sub(offset);
        if in_volume > 0 {
            let (bio, done) = split.read(offset, in_volume, 0, in_volume, 0);
            steps.push(Step::Volume(bio, done));
        }
        let gap = stop.min(self.journal_at) - offset - in_volume;
        split.fill(in_volume, gap, |to, _| to.fill(0));
        if stop > self.journal_at {
            let (len, at) = (stop - self.journal_at, self.journal_at - offset);
            let (bio, done) = split.read(0, len, 0, len, at);
            steps.push(Step::Journal(bio, done));
        }
        split.finish(Ok(()));
        steps
    }

    /// Starts requests; with `run` on the caller's time, where no FLUSH of the other device is before them.
    fn run_or_start(&self, batch: Vec<(Bio, Done)>, run: bool) {
        let (mut of_volume, mut of_journal) = (Vec::new(), Vec::new());
        let (volume, journal) = (&self.volume, &self.journal);
        for (bio, done) in batch {
            if let Err(error) = self.check(&bio) {
                done(bio, Err(error));
                continue;
            }
            match bio.op {
                Op::Flush => Self::after_flush(volume, Arc::clone(journal), 0, bio, done),
                _ if bio.preflush && self.is_in_journal(&bio) => {
                    Self::after_flush(volume, Arc::clone(journal), self.journal_at, bio, done);
                }
                _ if bio.preflush => Self::after_flush(journal, Arc::clone(volume), 0, bio, done),
                _ => {
                    for step in self.expand(bio, done) {
                        match step {
                            Step::Volume(bio, done) => of_volume.push((bio, done)),
                            Step::Journal(bio, done) => of_journal.push((bio, done)),
                        }
                    }
                }
            }
        }
        for (device, batch) in [(volume, of_volume), (journal, of_journal)] {
            match run {
                true if !batch.is_empty() => device.run(batch),
                _ => batch
                    .into_iter()
                    .for_each(|(bio, done)| device.start(bio, done)),
            }
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
        self.run_or_start(vec![(bio, done)], false);
    }

    fn run(&self, batch: Vec<(Bio, Done)>) {
        self.run_or_start(batch, true);
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
        // One that becomes writable alone would stay locked for writing by a mount that only reads.
        match self.journal.geometry().read_only || self.volume.geometry().read_only {
            true => Err("its journal on another device is open for reading only; unmount, and mount without ro".to_owned()),
            false => Ok(()),
        }
    }
}
