//! Limits: what owners may use, while options have them enforced.
//!
//! **Rule.** A call that needs more is checked before it changes anything, so what is counted when an inode is stored is never
//! refused. Delayed data counts as used from the write on (`delayed`). Near a limit, where the worst case does not fit, all
//! delayed data is written and blocks are allocated in the call, as on a full volume.
//!
//! Root is exempt, as a caller with CAP_SYS_RESOURCE is in Linux: FUSE passes no capabilities on. Blocks of the map may
//! exceed a limit where data is delayed, as in Linux.

use std::sync::Arc;

use steadfs_base::{InodeNo, IoTag};
use steadfs_rt::wall_clock;
use steadfs_vfs::{Cx, FsError, InodeFlags, Result, StatFs};

use super::{Dquot, Quota, QuotaFile, owners_of};
use crate::disk::quota::Kind;
use crate::disk::quota::usage::Usage;
use crate::fs::Ext4;
use crate::inode::Inode;

pub(super) fn now_secs() -> u64 {
    u64::try_from(wall_clock().secs).unwrap_or(0)
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
            quota.enforced.set(self.options.read().common.limits());
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
    fn room_of(&self, cx: &Cx, owners: [Option<u32>; 3]) -> Result<Option<Usage>> {
        let Some(quota) = self.enforcing().filter(|_| cx.uid != 0) else {
            return Ok(None);
        };
        let mut least = None;
        for file in quota.enforced_files() {
            if let Some(owner) = owners[file.kind.index()]
                && let Some(dquot) = file.dquot(self, owner)?
            {
                let room = dquot.account.lock().room(now_secs());
                let so_far: Usage = least.unwrap_or(room);
                least = Some(Usage {
                    bytes: so_far.bytes.min(room.bytes),
                    inodes: so_far.inodes.min(room.inodes),
                });
            }
        }
        Ok(least)
    }

    /// Limits what statfs shows of the volume at a directory that passes its project on to what the project may use,
    /// while limits of projects are enforced.
    pub(crate) fn limit_usage(&self, shown: &mut StatFs, ino: InodeNo, tag: IoTag) -> Result<()> {
        let quota = self.quota.get();
        let mut files = quota.into_iter().flat_map(Quota::enforced_files);
        let Some(file) = files.find(|file| file.kind == Kind::Project) else {
            return Ok(());
        };
        let inode = self.by_number(ino, tag)?;
        let project = {
            let core = inode.core.read();
            core.has(InodeFlags::PROJINHERIT).then_some(core.project)
        };
        if let Some(project) = project
            && let Some(dquot) = file.dquot(self, project)?
        {
            dquot.account.lock().limit_usage(shown);
        }
        Ok(())
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

    /// The number of blocks that may be allocated for a file now, at most `wanted`. They count as used while what is
    /// returned with it exists: until they are mapped, and counted.
    ///
    /// # Errors
    /// As [`Ext4::quota_blocks`].
    pub(crate) fn hold_blocks(
        &self,
        cx: &Cx,
        inode: &Inode,
        wanted: u64,
    ) -> Result<(u64, QuotaHold)> {
        loop {
            let blocks = self.quota_blocks(cx, inode, wanted)?;
            let Some(quota) = self.enforcing().filter(|_| cx.uid != 0) else {
                return Ok((blocks, QuotaHold::default()));
            };
            let clusters = blocks.div_ceil(self.geo.blocks_per_cluster().into());
            let owners = owners_of(&inode.core.read());
            if let Some(held) = self.try_hold(quota, owners, self.delayed_bytes(clusters))? {
                return Ok((blocks, held));
            }
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
        if cx.uid == 0 {
            self.each_delayed(quota, owners, |delayed| *delayed += bytes)?;
            return Ok(true);
        }
        let held = self.try_hold(quota, owners, bytes)?;
        Ok(held.map(QuotaHold::keep).is_some())
    }

    /// Counts bytes as delayed for owners, unless a limit does not allow it. Checked and counted under one lock: no two
    /// writers get the last of a limit.
    fn try_hold(&self, quota: &Quota, owners: [u32; 3], bytes: u64) -> Result<Option<QuotaHold>> {
        let mut held = QuotaHold::default();
        for file in quota.enforced_files() {
            if let Some(dquot) = file.dquot(self, owners[file.kind.index()])? {
                if !dquot.account.lock().try_delay(bytes, now_secs()) {
                    return Ok(None);
                }
                held.parts.push((dquot, bytes));
            }
        }
        Ok(Some(held))
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
                each(&mut dquot.account.lock().delayed);
            }
        }
        Ok(())
    }
}

/// Bytes that count as delayed for their owners while this exists.
#[derive(Default)]
#[must_use]
pub(crate) struct QuotaHold {
    parts: Vec<(Arc<Dquot>, u64)>,
}

impl QuotaHold {
    /// They stay delayed.
    fn keep(mut self) {
        self.parts.clear();
    }
}

impl Drop for QuotaHold {
    fn drop(&mut self) {
        for (dquot, bytes) in &self.parts {
            let mut account = dquot.account.lock();
            account.delayed = account.delayed.saturating_sub(*bytes);
        }
    }
}

impl Dquot {
    /// Whether its state is not in the quota file.
    pub(super) fn has_delayed(&self) -> bool {
        self.account.lock().delayed > 0
    }
}
