//! Room behind files that grow.
//!
//! Problem: of several files that are appended to and synced by turns each gets the next free block, and
//! all of them lie in pieces of one block. Rule: whoever continues a file in small steps claims more than
//! he needs, up to what the file has already, and the rest is kept for the file's next blocks.
//!
//! What is kept is claimed like everything else, in memory only, so a crash knows nothing of it. It counts
//! as free in [`Totals`](super::Totals), promises included, and whoever finds no other block gets it all
//! back ([`Allocator::claim_from_all`]). The kernel tells us of no close; a file's room goes with its last
//! reference, its truncation, some time without use, or when too many others have some.

use std::sync::atomic::{AtomicUsize, Ordering};

use steadfs_base::{DevBlock, FileBlock, FixedMap};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::Result;

use super::search::Want;
use super::{Allocator, Run};
use crate::disk::Ino;
use crate::fs::Ext4;

/// Most bytes kept for a file.
const MOST: u64 = 8 << 20;
/// Fewest blocks that a growing file claims at a time.
const LEAST: u64 = 4;
/// Most files that have room.
const FILES: usize = 512;
/// Periods of the flusher after which unused room goes: a minute, unless the period was changed.
const PATIENCE: u64 = 12;
/// Room is only made where there is so many times as much free space.
const PLENTY: u64 = 64;

/// What is kept for which file.
pub(super) struct Ahead {
    /// Held while room is made or given back, so that whoever finds no free block and then takes this
    /// has only to look again.
    moving: Mutex<()>,
    files: Mutex<Files>,
    /// How many files have room: for a look without the lock.
    count: AtomicUsize,
}

#[derive(Default)]
struct Files {
    rooms: FixedMap<Ino, Room>,
    /// Counts up with each use.
    clock: u64,
    /// Counts the flusher's periods.
    period: u64,
}

/// Room for a file from one block on.
struct Room {
    at: FileBlock,
    run: Run,
    used: u64,
    period: u64,
}

impl Ahead {
    pub(super) fn new() -> Self {
        Self {
            moving: Mutex::new(Rank::Node, ()),
            files: Mutex::new(Rank::Leaf, Files::default()),
            count: AtomicUsize::new(0),
        }
    }

    fn change<R>(&self, f: impl FnOnce(&mut Files) -> R) -> R {
        let mut files = self.files.lock();
        let result = f(&mut files);
        self.count.store(files.rooms.len(), Ordering::Release);
        result
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Takes up to `want` blocks of a file's room out, for its block `at`. Room that is for other blocks is
    /// of no use any more and comes second.
    fn take(&self, ino: Ino, at: FileBlock, want: u32) -> (Option<Run>, Option<Run>) {
        if self.is_empty() {
            return (None, None);
        }
        self.change(|files| {
            let Some(mut room) = files.rooms.remove(&ino) else {
                return (None, None);
            };
            if room.at != at {
                return (None, Some(room.run));
            }
            let (first, rest) = room.run.split(want);
            if let Some(rest) = rest {
                files.clock += 1;
                room.at = at.plus(first.len.into());
                room.run = rest;
                room.used = files.clock;
                room.period = files.period;
                files.rooms.insert(ino, room);
            }
            (Some(first), None)
        })
    }

    /// Keeps a run for a file from its block `at` on. Returns what has to go for it.
    fn keep(&self, ino: Ino, at: FileBlock, run: Run) -> [Option<Run>; 2] {
        self.change(|files| {
            files.clock += 1;
            let room = Room {
                at,
                run,
                used: files.clock,
                period: files.period,
            };
            let before = files.rooms.insert(ino, room);
            let mut oldest = None;
            if files.rooms.len() > FILES {
                let found = files.rooms.iter().min_by_key(|(_, room)| room.used);
                let found = found.map(|(&ino, _)| ino);
                oldest = found.and_then(|ino| files.rooms.remove(&ino));
            }
            [before, oldest].map(|room| room.map(|room| room.run))
        })
    }
}

impl Run {
    /// The first `len` blocks, at least one, and the others.
    fn split(self, len: u32) -> (Self, Option<Self>) {
        let len = len.clamp(1, self.len);
        let first = Self { len, ..self };
        let rest = Self {
            start: self.start.plus(len.into()),
            len: self.len - len,
        };
        (first, (rest.len > 0).then_some(rest))
    }
}

impl Allocator {
    /// Claims up to `want` blocks for a file that grows from its block `at` on, as [`Allocator::claim`] does,
    /// out of the room it has or with some more for what comes next.
    pub fn claim_growing(
        &self,
        fs: &Ext4,
        (ino, at): (Ino, FileBlock),
        goal: DevBlock,
        want: u32,
    ) -> Result<Run> {
        let moving = self.ahead.moving.lock();
        let (mine, useless) = self.ahead.take(ino, at, want);
        self.give_back(fs, useless);
        if let Some(run) = mine {
            self.with_totals(|t| t.free -= u64::from(run.len));
            return Ok(run);
        }
        let most = MOST >> fs.geo().block_size.bits();
        let window = at.0.clamp(LEAST, most.max(LEAST)) as u32;
        let plenty = self.with_totals(|t| t.spare(0)) / PLENTY >= window.into();
        if window <= want || !plenty {
            drop(moving);
            return self.claim(fs, goal, want);
        }
        let Ok(found) = self.search(fs, goal, Want::of(window)) else {
            drop(moving);
            return self.claim(fs, goal, want);
        };
        let (run, rest) = found.split(want);
        if let Some(rest) = rest {
            self.with_totals(|t| t.free += u64::from(rest.len));
            for run in self.ahead.keep(ino, at.plus(run.len.into()), rest) {
                self.give_back(fs, run);
            }
        }
        Ok(run)
    }

    /// A file needs its room no longer.
    pub fn forget_growing(&self, fs: &Ext4, ino: Ino) {
        if !self.ahead.is_empty() {
            let _moving = self.ahead.moving.lock();
            let room = self.ahead.change(|files| files.rooms.remove(&ino));
            self.give_back(fs, room.map(|room| room.run));
        }
    }

    /// A period of the flusher is over: who has not grown for long needs no room.
    pub fn age_growing(&self, fs: &Ext4) {
        if self.ahead.is_empty() {
            return;
        }
        let _moving = self.ahead.moving.lock();
        let mut gone = Vec::new();
        self.ahead.change(|files| {
            files.period += 1;
            let now = files.period;
            files.rooms.retain(|_, room| {
                let stays = now - room.period <= PATIENCE;
                if !stays {
                    gone.push(room.run);
                }
                stays
            });
        });
        for run in gone {
            self.give_back(fs, Some(run));
        }
    }

    /// Claims when no block was found: gives all files' room back and looks again.
    pub(super) fn claim_from_all(&self, fs: &Ext4, goal: DevBlock, want: Want) -> Result<Run> {
        let _moving = self.ahead.moving.lock();
        self.give_all_back(fs);
        self.search(fs, goal, want)
    }

    /// Gives all files' room back, for a look at what is free.
    pub(super) fn end_growing(&self, fs: &Ext4) {
        let _moving = self.ahead.moving.lock();
        self.give_all_back(fs);
    }

    fn give_all_back(&self, fs: &Ext4) {
        let rooms = self.ahead.change(|files| std::mem::take(&mut files.rooms));
        for (_, room) in rooms {
            self.give_back(fs, Some(room.run));
        }
    }

    fn give_back(&self, fs: &Ext4, run: Option<Run>) {
        if let Some(run) = run {
            // It never stopped counting as free.
            self.make_free(fs, run, false);
        }
    }

    /// Blocks that are kept for files.
    #[cfg(test)]
    pub(crate) fn kept_ahead(&self) -> u64 {
        let sum = |files: &mut Files| files.rooms.values().map(|r| u64::from(r.run.len)).sum();
        self.ahead.change(sum)
    }
}

#[cfg(test)]
mod tests;
