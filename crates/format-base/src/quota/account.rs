//! An owner's entry in memory: what is counted, what is delayed, and what limits leave.

use std::sync::atomic::{AtomicU8, Ordering};

use steadfs_vfs::StatFs;

use super::usage::Usage;
use super::{Entry, Info, Kind, LIMIT_UNIT, Limit};

/// Kinds whose limits are enforced, a bit for each.
#[derive(Default)]
pub struct Enforced(AtomicU8);

impl Enforced {
    /// Enforces the limits of these kinds only.
    pub fn set(&self, kinds: [bool; 3]) {
        let bits = Kind::ALL.map(|kind| u8::from(kinds[kind.index()]) << kind.index());
        self.0.store(bits.into_iter().sum(), Ordering::Relaxed);
    }

    /// Whether the limits of any kind are enforced.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Whether the limits of a kind are enforced.
    pub fn has(&self, kind: Kind) -> bool {
        self.0.load(Ordering::Relaxed) >> kind.index() & 1 != 0
    }
}

/// Result of holding what a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Holding {
    /// It is held.
    Held,
    /// It would be more than the limit with what other calls hold, which may have been counted by now.
    Later,
    /// It is more than the limit.
    Refused,
}

fn fits(need: Usage, room: Usage) -> bool {
    let fits = |need, room| need == 0 || need <= room;
    fits(need.bytes, room.bytes) && fits(need.inodes, room.inodes)
}

/// The entry of an owner, and delayed data, which is not in the entry yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// As the quota file has it, or will have it.
    pub entry: Entry,
    /// Bytes of delayed data.
    pub delayed: u64,
    /// What calls hold that have not counted it yet ([`super::hold`]).
    held: Usage,
}

impl Account {
    /// Without delayed data.
    pub fn new(entry: Entry) -> Self {
        Self {
            entry,
            delayed: 0,
            held: Usage::default(),
        }
    }

    /// Replaces `before` by `now` in the counts. Returns whether the counts had `before`; if not, the quota file is
    /// corrupt, and what cannot be counted becomes 0.
    #[must_use]
    pub fn replace(&mut self, before: Usage, now: Usage) -> bool {
        let replaced =
            |count: u64, before: u64, now: u64| count.checked_add(now)?.checked_sub(before);
        let bytes = replaced(self.entry.bytes, before.bytes, now.bytes);
        let inodes = replaced(self.entry.inodes, before.inodes, now.inodes);
        (self.entry.bytes, self.entry.inodes) = (bytes.unwrap_or(0), inodes.unwrap_or(0));
        bytes.is_some() && inodes.is_some()
    }

    /// Begins, at second `now`, or ends the time in which a soft limit may be exceeded. It begins only while limits are
    /// enforced.
    pub fn update_timers(&mut self, info: &Info, enforced: bool, now: u64) {
        let entry = &mut self.entry;
        let soft_bytes = entry.block_limit.in_bytes().soft;
        let timers = [
            (
                &mut entry.block_limit.until,
                entry.bytes,
                soft_bytes,
                info.block_grace,
            ),
            (
                &mut entry.inode_limit.until,
                entry.inodes,
                entry.inode_limit.soft,
                info.inode_grace,
            ),
        ];
        for (until, used, soft, grace) in timers {
            if soft == 0 || used <= soft {
                *until = 0;
            } else if *until == 0 && enforced {
                *until = now.saturating_add(grace.into());
            }
        }
    }

    /// Bytes in use, delayed data included.
    pub fn bytes(&self) -> u64 {
        self.entry.bytes.saturating_add(self.delayed)
    }

    /// Holds what a call needs if the owner may use it at second `now`.
    pub fn try_hold(&mut self, need: Usage, now: u64) -> Holding {
        if !fits(need, self.room(now)) {
            let alone = Self {
                held: Usage::default(),
                ..*self
            };
            return match fits(need, alone.room(now)) {
                true => Holding::Later,
                false => Holding::Refused,
            };
        }
        self.held.bytes = self.held.bytes.saturating_add(need.bytes);
        self.held.inodes = self.held.inodes.saturating_add(need.inodes);
        Holding::Held
    }

    /// Ends what [`Account::try_hold`] began.
    pub fn release(&mut self, held: Usage) {
        self.held.bytes = self.held.bytes.saturating_sub(held.bytes);
        self.held.inodes = self.held.inodes.saturating_sub(held.inodes);
    }

    /// What the owner may use in addition at second `now`.
    pub fn room(&self, now: u64) -> Usage {
        let bytes = self.entry.block_limit.in_bytes().most(now);
        let inodes = self.entry.inode_limit.most(now);
        Usage {
            bytes: bytes.saturating_sub(self.bytes().saturating_add(self.held.bytes)),
            inodes: inodes.saturating_sub(self.entry.inodes.saturating_add(self.held.inodes)),
        }
    }
}

impl Account {
    /// Limits what statfs shows of the volume to what the owner may use by its soft limits, or hard ones that are lower.
    pub fn limit_usage(&self, shown: &mut StatFs) {
        let unit = u64::from(shown.block_size).max(1);
        if let Some(limit) = self.entry.block_limit.in_bytes().least() {
            let free = limit.saturating_sub(self.bytes()) / unit;
            shown.blocks = shown.blocks.min(limit / unit);
            shown.blocks_free = shown.blocks_free.min(free);
            shown.blocks_available = shown.blocks_available.min(free);
        }
        if let Some(limit) = self.entry.inode_limit.least() {
            shown.files = shown.files.min(limit);
            let free = limit.saturating_sub(self.entry.inodes);
            shown.files_free = shown.files_free.min(free);
        }
    }
}

impl Limit {
    /// The lower one of the limits that are set.
    fn least(self) -> Option<u64> {
        [self.soft, self.hard]
            .into_iter()
            .filter(|&limit| limit != 0)
            .min()
    }

    /// A limit of space in bytes.
    fn in_bytes(self) -> Self {
        Self {
            hard: self.hard.saturating_mul(LIMIT_UNIT),
            soft: self.soft.saturating_mul(LIMIT_UNIT),
            ..self
        }
    }

    /// The most that may be used in all at second `now`.
    fn most(self, now: u64) -> u64 {
        let hard = if self.hard == 0 { u64::MAX } else { self.hard };
        let is_over = self.soft != 0 && self.until != 0 && now >= self.until;
        match is_over {
            true => hard.min(self.soft),
            false => hard,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limits_hold_after_their_time() {
        let mut account = Account::new(Entry {
            block_limit: Limit {
                hard: 10,
                soft: 5,
                until: 0,
            },
            ..Entry::default()
        });
        let usage = |bytes| Usage { bytes, inodes: 0 };
        let info = Info {
            block_grace: 60,
            ..Info::default()
        };
        assert!(account.replace(usage(0), usage(6 << 10)));
        account.update_timers(&info, false, 1000);
        assert_eq!(account.room(5000).bytes, 4 << 10);
        account.update_timers(&info, true, 1000);
        assert_eq!(account.try_hold(usage(1 << 10), 1059), Holding::Held);
        assert_eq!(account.try_hold(usage(4 << 10), 1059), Holding::Later);
        assert_eq!(account.try_hold(usage(5 << 10), 1059), Holding::Refused);
        assert_eq!(account.room(1059).bytes, 3 << 10);
        assert_eq!(account.room(1060).bytes, 0);
        let nothing = account.try_hold(usage(0), 1060);
        assert_eq!(nothing, Holding::Held, "what needs nothing is not refused");
        account.release(usage(1 << 10));
        assert_eq!(account.room(1059).bytes, 4 << 10);
        assert!(account.replace(usage(2 << 10), usage(0)));
        account.update_timers(&info, true, 2000);
        assert_eq!(account.room(2000).bytes, 6 << 10);
        assert!(!account.replace(usage(5 << 10), usage(0)), "{account:?}");
    }

    #[test]
    fn statfs_shows_what_limits_leave() {
        let mut account = Account::new(Entry {
            inodes: 5,
            bytes: 10 << 10,
            ..Entry::default()
        });
        let volume = StatFs {
            block_size: 4096,
            blocks: 100,
            blocks_free: 50,
            blocks_available: 40,
            files: 1000,
            files_free: 900,
            ..StatFs::default()
        };
        let mut shown = volume.clone();
        account.limit_usage(&mut shown);
        assert_eq!(shown, volume);
        account.set_limits([0, 100, 4, 3]);
        account.limit_usage(&mut shown);
        let limited = StatFs {
            blocks: 25,
            blocks_free: 22,
            blocks_available: 22,
            files: 3,
            files_free: 0,
            ..volume
        };
        assert_eq!(shown, limited);
    }
}
