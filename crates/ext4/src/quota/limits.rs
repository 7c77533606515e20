//! Limits: what owners may use, while options have them enforced.
//!
//! **Rule.** A call that needs more holds it before it changes anything ([`Hold`]), so what is counted when an inode is stored is
//! never refused. Delayed data counts as used from the write on (`delayed`). Near a limit, where the worst case does not fit, all
//! delayed data is written and blocks are allocated in the call, as on a full volume.
//!
//! Root is exempt, as a caller with CAP_SYS_RESOURCE is in Linux: FUSE passes no capabilities on. Blocks of the map may
//! exceed a limit where data is delayed, as in Linux.

use steadfs_base::{FileBlock, InodeNo, IoTag};
use steadfs_rt::{now, sleep, wall_clock};
use steadfs_vfs::{Cx, FsError, InodeFlags, Result, StatFs};

use super::{Dquot, Quota, QuotaFile, owners_of};
use crate::clusters::NewClusters;
use crate::disk::quota::Kind;
use crate::disk::quota::account::{Account, Holding};
use crate::disk::quota::hold::{HOLD_POLL, HOLD_WAIT_MAX, Hold, Owner};
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

    /// Holds as many bytes and inodes more for these owners.
    ///
    /// # Errors
    /// [`FsError::Quota`]: they may not use that.
    pub(crate) fn hold_quota(
        &self,
        cx: &Cx,
        owners: [Option<u32>; 3],
        need: Usage,
    ) -> Result<QuotaHold> {
        match self.enforcing().filter(|_| cx.uid != 0) {
            Some(quota) => self.try_hold(quota, owners, need)?.ok_or(FsError::Quota),
            None => Ok(QuotaHold::default()),
        }
    }

    /// The number of blocks from `at` on, where a file has a hole, that may be allocated for it now, at most `wanted`. They
    /// count as used while what is returned with it exists: until they are mapped, and counted. The caller holds the
    /// inode's flush lock, or it alone has the inode.
    ///
    /// # Errors
    /// [`FsError::Quota`]: none may.
    pub(crate) fn hold_blocks(
        &self,
        cx: &Cx,
        inode: &Inode,
        at: FileBlock,
        wanted: u64,
    ) -> Result<(u64, QuotaHold)> {
        let Some(quota) = self.enforcing().filter(|_| cx.uid != 0) else {
            return Ok((wanted, QuotaHold::default()));
        };
        let (wanted, before) = {
            let core = inode.core.read();
            match self.new_clusters(inode.ino(), &core, at, wanted)? {
                NewClusters::None(len) => return Ok((len, QuotaHold::default())),
                NewClusters::For { len, before } => (len, before),
            }
        };
        let per = u64::from(self.geo.blocks_per_cluster());
        loop {
            let owners = owners_of(&inode.core.read()).map(Some);
            let room = self.room_of(cx, owners)?.map(|room| room.bytes);
            let room = room.map_or(u64::MAX, |bytes| bytes / self.delayed_bytes(1));
            // With no room, too: what others hold may be counted by now.
            let clusters = (before + wanted).div_ceil(per).min(room.max(1));
            let need = Usage {
                bytes: self.delayed_bytes(clusters),
                inodes: 0,
            };
            match self.try_hold(quota, owners, need)? {
                Some(held) => return Ok(((clusters * per - before).min(wanted), held)),
                None if room == 0 => return Err(FsError::Quota),
                None => {}
            }
        }
    }

    /// Holds the first block of a file that maps none.
    ///
    /// # Errors
    /// [`FsError::Quota`]: its owners may not have it.
    pub(crate) fn hold_first_block(&self, cx: &Cx, inode: &Inode) -> Result<QuotaHold> {
        let owners = owners_of(&inode.core.read()).map(Some);
        let need = Usage {
            bytes: self.delayed_bytes(1),
            inodes: 0,
        };
        self.hold_quota(cx, owners, need)
    }

    /// Holds what an inode uses for its new owners. What it delays is written before, for the old ones.
    ///
    /// # Errors
    /// [`FsError::Quota`]: they may not have it.
    pub(crate) fn hold_for_new_owners(
        &self,
        cx: &Cx,
        inode: &Inode,
        new: [Option<u32>; 3],
    ) -> Result<QuotaHold> {
        if self.enforcing().is_none() {
            return Ok(QuotaHold::default());
        }
        let old = owners_of(&inode.core.read());
        let mut gained = [None; 3];
        for n in 0..gained.len() {
            gained[n] = new[n].filter(|&new| new != old[n]);
        }
        if gained == [None; 3] {
            return Ok(QuotaHold::default());
        }
        self.write_out(inode, steadfs_cache::WritebackReason::Sync, cx.tag)?;
        self.hold_quota(cx, gained, inode.charged().used)
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
        let need = Usage { bytes, inodes: 0 };
        let held = self.try_hold(quota, owners.map(Some), need)?;
        Ok(held.map(QuotaHold::delay).is_some())
    }

    /// Holds this much for owners, unless a limit does not allow it.
    fn try_hold(
        &self,
        quota: &Quota,
        owners: [Option<u32>; 3],
        need: Usage,
    ) -> Result<Option<QuotaHold>> {
        let until = now() + HOLD_WAIT_MAX;
        loop {
            let (held, holding) = self.hold_once(quota, owners, need)?;
            match holding {
                Holding::Held => return Ok(Some(held)),
                Holding::Later if !until.since(now()).is_zero() => {
                    drop(held);
                    sleep(HOLD_POLL);
                }
                Holding::Later | Holding::Refused => return Ok(None),
            }
        }
    }

    fn hold_once(
        &self,
        quota: &Quota,
        owners: [Option<u32>; 3],
        need: Usage,
    ) -> Result<(QuotaHold, Holding)> {
        let mut held = QuotaHold::default();
        for file in quota.enforced_files() {
            if let Some(owner) = owners[file.kind.index()]
                && let Some(dquot) = file.dquot(self, owner)?
            {
                let holding = held.add(dquot, need, now_secs());
                if holding != Holding::Held {
                    return Ok((held, holding));
                }
            }
        }
        Ok((held, Holding::Held))
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

/// What counts as used for owners while this exists.
pub(crate) type QuotaHold = Hold<Dquot>;

impl Owner for Dquot {
    fn with_account<R>(&self, act: impl FnOnce(&mut Account) -> R) -> R {
        act(&mut self.account.lock())
    }
}

impl Dquot {
    /// Whether its state is not in the quota file.
    pub(super) fn has_delayed(&self) -> bool {
        self.account.lock().delayed > 0
    }
}
