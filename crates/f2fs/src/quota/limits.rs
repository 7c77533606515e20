//! Limits: what owners may use, while options have them enforced.
//!
//! **Rule.** A call that needs more holds it before it changes anything ([`Hold`]), so what is counted later is never refused.
//! Delayed data counts as used from the write on, with the nodes that will map it.
//!
//! Root is exempt, as a caller with CAP_SYS_RESOURCE is in Linux: FUSE passes no capabilities on.

use steadfs_base::{FileBlock, InodeNo, IoTag};
use steadfs_rt::{now, sleep, wall_clock};
use steadfs_vfs::{Cx, FsError, InodeFlags, Result, StatFs};

use super::file::{Dquot, QuotaFile};
use super::{Quota, owners_of};
use crate::data::BLOCK;
use crate::disk::quota::Kind;
use crate::disk::quota::account::{Account, Holding};
use crate::disk::quota::hold::{HOLD_POLL, HOLD_WAIT_MAX, Hold, Owner};
use crate::disk::quota::usage::Usage;
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::space::Need;

pub(super) fn now_secs() -> u64 {
    u64::try_from(wall_clock().secs).unwrap_or(0)
}

impl Quota {
    /// The files of the kinds whose limits are enforced.
    fn enforced_files(&self) -> impl Iterator<Item = &QuotaFile> {
        self.files().filter(|file| self.enforced.has(file.kind))
    }
}

/// What blocks and nodes, without inodes, use.
fn bytes_of(need: Need) -> u64 {
    (need.blocks + need.nodes).saturating_mul(BLOCK)
}

impl F2fs {
    /// Enforces limits as the options say.
    pub(crate) fn enforce_limits(&self) {
        if let Some(quota) = self.quota.opened.get() {
            quota.enforced.set(self.options.read().common.limits());
        }
    }

    /// Whether the limits of a kind are enforced.
    pub(super) fn enforces(&self, kind: Kind) -> bool {
        let quota = self.quota.opened.get();
        quota.is_some_and(|quota| quota.enforced.has(kind))
    }

    /// The quota, if a limit may hold for the caller.
    fn limiting(&self, cx: &Cx) -> Option<&Quota> {
        let quota = self.quota.opened.get()?;
        (quota.enforced.any() && cx.uid != 0).then_some(quota)
    }

    /// Holds that much more for these owners.
    ///
    /// # Errors
    /// [`FsError::Quota`]: they may not use it.
    fn hold_quota(&self, cx: &Cx, needs: &[([u32; 3], Usage)]) -> Result<QuotaHold> {
        let needs: Vec<_> = needs
            .iter()
            .map(|(owners, need)| (owners.map(Some), *need))
            .collect();
        self.hold_for(cx, &needs)
    }

    /// The same for some kinds of owners.
    fn hold_for(&self, cx: &Cx, needs: &[([Option<u32>; 3], Usage)]) -> Result<QuotaHold> {
        let Some(quota) = self.limiting(cx) else {
            return Ok(QuotaHold::default());
        };
        let until = now() + HOLD_WAIT_MAX;
        loop {
            let (held, holding) = self.hold_once(quota, needs, cx.tag)?;
            match holding {
                Holding::Held => return Ok(held),
                Holding::Later if !until.since(now()).is_zero() => {
                    drop(held);
                    sleep(HOLD_POLL);
                }
                Holding::Later | Holding::Refused => return Err(FsError::Quota),
            }
        }
    }

    fn hold_once(
        &self,
        quota: &Quota,
        needs: &[([Option<u32>; 3], Usage)],
        tag: IoTag,
    ) -> Result<(QuotaHold, Holding)> {
        let mut held = QuotaHold::default();
        for file in quota.enforced_files() {
            for (owners, need) in needs {
                if let Some(owner) = owners[file.kind.index()]
                    && let Some(dquot) = file.known(self, owner, tag)?
                {
                    let holding = held.add(dquot, *need, now_secs());
                    if holding != Holding::Held {
                        return Ok((held, holding));
                    }
                }
            }
        }
        Ok((held, Holding::Held))
    }

    /// Holds these blocks and nodes for the owners of an inode.
    ///
    /// # Errors
    /// As [`F2fs::hold_quota`].
    pub(crate) fn hold_space(&self, cx: &Cx, inode: &Inode, need: Need) -> Result<QuotaHold> {
        if self.limiting(cx).is_none() {
            return Ok(QuotaHold::default());
        }
        let owners = owners_of(&inode.core.read());
        let bytes = bytes_of(need);
        self.hold_quota(cx, &[(owners, Usage { bytes, inodes: 0 })])
    }

    /// Holds what mapping these runs of blocks needs, with the nodes that this makes, for the file's owners.
    ///
    /// # Errors
    /// As [`F2fs::hold_quota`].
    pub(crate) fn hold_data(
        &self,
        cx: &Cx,
        inode: &Inode,
        runs: &[std::ops::Range<u64>],
    ) -> Result<QuotaHold> {
        if self.limiting(cx).is_none() {
            return Ok(QuotaHold::default());
        }
        let mut need = Need::default();
        for run in runs {
            need.blocks += run.end - run.start;
            need.nodes += self.unreserved_nodes(inode, run.clone(), cx.tag)?.len() as u64;
        }
        match self.hold_space(cx, inode, need) {
            Err(FsError::Quota) => {}
            held => return held,
        }
        // Delayed blocks are not mapped, and count already.
        let blocks = runs.iter().cloned().flatten();
        let is_delayed = |block: &u64| inode.pages.get(FileBlock(*block)).is_some();
        need.blocks -= blocks.filter(is_delayed).count() as u64;
        self.hold_space(cx, inode, need)
    }

    /// Holds what a new inode and its name need: `new` has the owners of the inode and what it needs, itself
    /// included; the name may let the directory grow.
    ///
    /// # Errors
    /// As [`F2fs::hold_quota`].
    pub(crate) fn hold_new(
        &self,
        cx: &Cx,
        new: ([u32; 3], Need),
        (dir, growth): (&Inode, Need),
    ) -> Result<QuotaHold> {
        if self.limiting(cx).is_none() {
            return Ok(QuotaHold::default());
        }
        let dir = owners_of(&dir.core.read());
        let bytes = bytes_of(new.1) - BLOCK;
        let growth = bytes_of(growth);
        let more = |bytes, inodes| Usage { bytes, inodes };
        self.hold_quota(cx, &[(new.0, more(bytes, 1)), (dir, more(growth, 0))])
    }

    /// Makes entries for an inode's new owners, pins them, and holds what the inode uses; what it delays counts, too.
    ///
    /// # Errors
    /// As [`F2fs::hold_quota`].
    pub(crate) fn hold_for_new_owners(
        &self,
        cx: &Cx,
        inode: &Inode,
        new: [u32; 3],
    ) -> Result<Pins> {
        let Some(cell) = self.counting(inode) else {
            return Ok(Pins::default());
        };
        let mut pins = self.prepare_owners(new, cx.tag)?;
        if self.limiting(cx).is_none() {
            return Ok(pins);
        }
        let (old, mut used) = {
            let charged = cell.lock();
            (charged.owners, charged.used)
        };
        used.bytes = used.bytes.saturating_add(cell.lock().delayed);
        let mut gained = new.map(Some);
        for n in 0..gained.len() {
            gained[n] = gained[n].filter(|&owner| owner != old[n]);
        }
        let held = self.hold_for(cx, &[(gained, used)])?;
        pins.hold(held);
        Ok(pins)
    }

    /// Limits what statfs shows of the volume at a directory that passes its project on to what the project may use,
    /// while limits of projects are enforced.
    pub(crate) fn limit_usage(&self, shown: &mut StatFs, ino: InodeNo, tag: IoTag) -> Result<()> {
        let quota = self.quota.opened.get();
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
            && let Some(dquot) = file.dquot(self, project, tag)?
        {
            dquot.account.lock().limit_usage(shown);
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
