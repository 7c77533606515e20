//! Limits: what owners may use, while options have them enforced.
//!
//! **Rule.** A call that needs more is checked before it changes anything, so what is counted when an inode is stored is never
//! refused. Delayed data counts as used from the write on (`delayed`). Near a limit, where the worst case does not fit, all
//! delayed data is written and blocks are allocated in the call, as on a full volume.
//!
//! Root is exempt, as a caller with CAP_SYS_RESOURCE is in Linux: FUSE passes no capabilities on. Blocks of the map may
//! exceed a limit where data is delayed, as in Linux.

use std::sync::atomic::{AtomicU8, Ordering};

use steadfs_rt::wall_clock;
use steadfs_vfs::{Cx, FsError, Result};

use super::{Dquot, DquotState, Quota, QuotaFile, Used, owners_of};
use crate::disk::quota::{Entry, Info, Kind, LIMIT_UNIT, Limit};
use crate::fs::Ext4;
use crate::inode::Inode;

/// Kinds whose limits are enforced, a bit for each.
#[derive(Default)]
pub(super) struct Enforced(AtomicU8);

impl Enforced {
    fn set(&self, kinds: [bool; 3]) {
        let bits = Kind::ALL.map(|kind| u8::from(kinds[kind.index()]) << kind.index());
        self.0.store(bits.into_iter().sum(), Ordering::Relaxed);
    }

    fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    pub(super) fn has(&self, kind: Kind) -> bool {
        self.0.load(Ordering::Relaxed) >> kind.index() & 1 != 0
    }
}

/// Begins or ends the time in which a soft limit may be exceeded.
pub(super) fn update_timers(entry: &mut Entry, info: &Info, enforced: bool) {
    let bytes = entry.bytes;
    let of_space = scaled(&entry.block_limit);
    let timers = [
        (
            &mut entry.block_limit.until,
            bytes,
            of_space.soft,
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
            *until = now_secs().saturating_add(grace.into());
        }
    }
}

/// Limits of space in bytes.
fn scaled(limit: &Limit) -> Limit {
    Limit {
        hard: limit.hard.saturating_mul(LIMIT_UNIT),
        soft: limit.soft.saturating_mul(LIMIT_UNIT),
        until: limit.until,
    }
}

fn now_secs() -> u64 {
    u64::try_from(wall_clock().secs).unwrap_or(0)
}

/// The most that may be used in all.
fn most(limit: &Limit) -> u64 {
    let hard = if limit.hard == 0 {
        u64::MAX
    } else {
        limit.hard
    };
    let is_over = limit.soft != 0 && limit.until != 0 && now_secs() >= limit.until;
    match is_over {
        true => hard.min(limit.soft),
        false => hard,
    }
}

impl DquotState {
    /// What the owner may use in addition.
    fn room(&self) -> Used {
        let bytes = most(&scaled(&self.entry.block_limit));
        let used = self.entry.bytes.saturating_add(self.delayed);
        Used {
            bytes: bytes.saturating_sub(used),
            inodes: most(&self.entry.inode_limit).saturating_sub(self.entry.inodes),
        }
    }
}

impl Quota {
    /// The files of the kinds whose limits are enforced.
    fn enforced_files(&self) -> impl Iterator<Item = &QuotaFile> {
        self.files().filter(|file| self.enforced.has(file.kind))
    }
}

impl Ext4 {
    /// Enforces limits as the options say.
    pub(crate) fn enforce_limits(&self) {
        if let Some(quota) = self.quota.get() {
            quota.enforced.set(self.options.read().limits());
        }
    }

    /// Whether the limits of a kind are enforced.
    pub(super) fn enforces(&self, kind: Kind) -> bool {
        self.enforcing()
            .is_some_and(|quota| quota.enforced.has(kind))
    }

    fn enforcing(&self) -> Option<&Quota> {
        self.quota.get().filter(|quota| quota.enforced.any())
    }

    /// The least room of these owners; `None`: no limit holds for the caller.
    fn room_of(&self, cx: &Cx, owners: [Option<u32>; 3]) -> Result<Option<Used>> {
        let Some(quota) = self.enforcing().filter(|_| cx.uid != 0) else {
            return Ok(None);
        };
        let mut least = None;
        for file in quota.enforced_files() {
            if let Some(owner) = owners[file.kind.index()]
                && let Some(dquot) = file.dquot(self, owner)?
            {
                let room = dquot.state.lock().room();
                let so_far: Used = least.unwrap_or(room);
                least = Some(Used {
                    bytes: so_far.bytes.min(room.bytes),
                    inodes: so_far.inodes.min(room.inodes),
                });
            }
        }
        Ok(least)
    }

    /// Fails if these owners may not use as many bytes and inodes more.
    pub(crate) fn check_quota(
        &self,
        cx: &Cx,
        owners: [Option<u32>; 3],
        bytes: u64,
        inodes: u64,
    ) -> Result<()> {
        match self.room_of(cx, owners)? {
            Some(room) if room.bytes < bytes || room.inodes < inodes => Err(FsError::Quota),
            _ => Ok(()),
        }
    }

    /// The number of blocks that may be allocated for a file now, at most `wanted`.
    ///
    /// # Errors
    /// [`FsError::Quota`]: none may.
    pub(crate) fn quota_blocks(&self, cx: &Cx, inode: &Inode, wanted: u64) -> Result<u64> {
        if self.enforcing().is_none() {
            return Ok(wanted);
        }
        let owners = owners_of(&inode.core.read()).map(Some);
        let Some(room) = self.room_of(cx, owners)? else {
            return Ok(wanted);
        };
        // The first cluster may be one that the file has already.
        let per = self.geo.block_size.bits() + self.geo.cluster_bits;
        match (room.bytes >> per) << self.geo.cluster_bits {
            0 => Err(FsError::Quota),
            blocks => Ok(blocks.min(wanted)),
        }
    }

    /// Fails if an inode's new owners may not have it. What it delays is written before, for the old ones.
    pub(crate) fn check_new_owners(
        &self,
        cx: &Cx,
        inode: &Inode,
        new: [Option<u32>; 3],
    ) -> Result<()> {
        if self.enforcing().is_none() {
            return Ok(());
        }
        let old = owners_of(&inode.core.read());
        let mut gained = [None; 3];
        for n in 0..gained.len() {
            gained[n] = new[n].filter(|&new| new != old[n]);
        }
        if gained == [None; 3] {
            return Ok(());
        }
        self.write_out(inode, steadfs_cache::WritebackReason::Sync, cx.tag)?;
        let used = inode.charged().used;
        self.check_quota(cx, gained, used.bytes, used.inodes)
    }

    /// Counts delayed blocks of a file, unless a limit does not allow the worst case.
    pub(crate) fn delay(&self, cx: &Cx, inode: &Inode, blocks: u64) -> Result<bool> {
        let Some(quota) = self.enforcing() else {
            return Ok(true);
        };
        let bytes = self.delayed_bytes(blocks);
        let owners = owners_of(&inode.core.read());
        if let Some(room) = self.room_of(cx, owners.map(Some))?
            && room.bytes < bytes
        {
            return Ok(false);
        }
        self.each_delayed(quota, owners, |delayed| *delayed += bytes)?;
        Ok(true)
    }

    /// Blocks of a file are not delayed any more.
    pub(crate) fn end_delay(&self, inode: &Inode, blocks: u64) {
        let Some(quota) = self.enforcing().filter(|_| blocks > 0) else {
            return;
        };
        let bytes = self.delayed_bytes(blocks);
        let owners = owners_of(&inode.core.read());
        let end = |delayed: &mut u64| *delayed = delayed.saturating_sub(bytes);
        if let Err(error) = self.each_delayed(quota, owners, end) {
            tracing::warn!(%error, "reading a quota entry failed");
        }
    }

    /// Whether delayed data counts for an owner of the file.
    pub(crate) fn has_delayed(&self, inode: &Inode) -> Result<bool> {
        let mut any = false;
        if let Some(quota) = self.enforcing() {
            let owners = owners_of(&inode.core.read());
            self.each_delayed(quota, owners, |delayed| any |= *delayed > 0)?;
        }
        Ok(any)
    }

    /// The most that delayed blocks need: a cluster each.
    fn delayed_bytes(&self, blocks: u64) -> u64 {
        blocks << (self.geo.block_size.bits() + self.geo.cluster_bits)
    }

    fn each_delayed(
        &self,
        quota: &Quota,
        owners: [u32; 3],
        mut each: impl FnMut(&mut u64),
    ) -> Result<()> {
        for file in quota.enforced_files() {
            if let Some(dquot) = file.dquot(self, owners[file.kind.index()])? {
                each(&mut dquot.state.lock().delayed);
            }
        }
        Ok(())
    }
}

impl Dquot {
    /// Whether its state is not in the quota file.
    pub(super) fn has_delayed(&self) -> bool {
        self.state.lock().delayed > 0
    }
}
