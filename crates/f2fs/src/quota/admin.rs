//! The control files of quota ([`crate::disk::quota::admin`]).

use steadfs_base::IoTag;
use steadfs_vfs::{FsError, Result};

use super::file::QuotaFile;
use super::{Quota, limits};
use crate::disk::quota::account::Account;
use crate::disk::quota::admin::{self, Change, FILES};
use crate::disk::quota::{Blocks, Entry, Kind, tree};
use crate::fs::F2fs;

impl F2fs {
    /// The control files of the kinds that the volume counts.
    pub(crate) fn quota_controls(&self) -> Vec<&'static str> {
        let files = self.superblock.quota_inodes();
        let has = |n: &usize| files[*n].is_some();
        (0..FILES.len()).filter(has).map(|n| FILES[n]).collect()
    }

    /// The content of a control file; `None`: it is none of these.
    pub(crate) fn quota_control(&self, path: &str) -> Result<Option<String>> {
        let Some(kind) = admin::kind_of(path) else {
            return Ok(None);
        };
        if let Some(quota) = self.quota.opened.get() {
            return quota.lines(self, kind);
        }
        self.check_counted()?;
        // A volume that is only read may get other files by recovery, so they are not kept open.
        Quota::open(self)?.lines(self, kind)
    }

    /// Changes limits or times; whether the path is one of these files.
    pub(crate) fn set_quota_control(&self, path: &str, text: &str) -> Result<bool> {
        let Some(kind) = admin::kind_of(path) else {
            return Ok(false);
        };
        let change = Change::parse(text)?;
        let _open = self.open_to_changes()?;
        self.check_writable()?;
        self.check_counted()?;
        let quota = self.quota.opened.get();
        let file = quota.and_then(|quota| quota.files[kind.index()].as_ref());
        let file = file.ok_or(FsError::NotFound)?;
        match change {
            Change::Grace(block, inode) => file.set_grace(self, (block, inode))?,
            Change::Limits(id, limits) => file.set_limits(self, id, limits)?,
        }
        Ok(true)
    }

    /// Fails if the volume has quota files that cannot be used.
    fn check_counted(&self) -> Result<()> {
        match self.is_quota_out_of_date() {
            true => Err(FsError::NotSupported(
                "quota files that are out of date: run fsck.f2fs",
            )),
            false => Ok(()),
        }
    }
}

impl Quota {
    fn lines(&self, fs: &F2fs, kind: Kind) -> Result<Option<String>> {
        let file = self.files[kind.index()].as_ref();
        file.map(|file| file.lines(fs)).transpose()
    }
}

impl QuotaFile {
    fn lines(&self, fs: &F2fs) -> Result<String> {
        let mut found = Vec::new();
        let core = self.inode.core.write();
        let info = *self.info.lock();
        let each = |_, entry: Entry| found.push(Account::new(entry));
        let walked = tree::walk(&mut self.blocks(fs, &core, IoTag::default()), &info, each);
        drop(core);
        walked.map_err(|error| self.error(error))?;
        for account in &mut found {
            // The file has what the last checkpoint's snapshot had.
            let cached = self.cached.lock().get(&account.entry.id).cloned();
            if let Some(dquot) = cached {
                *account = *dquot.account.lock();
            }
        }
        Ok(admin::show(&info, found))
    }

    fn set_limits(&self, fs: &F2fs, id: u32, limits: [u64; 4]) -> Result<()> {
        let tag = IoTag::default();
        if self.dquot(fs, id, tag)?.is_none() {
            self.make_entry(fs, id, tag)?;
        }
        let missing = || self.corruption("has no entry for an owner");
        let dquot = self.dquot(fs, id, tag)?.ok_or_else(missing)?;
        let info = *self.info.lock();
        let change = fs.change()?;
        self.touch(fs, &change, &dquot, tag)?;
        {
            let mut account = dquot.account.lock();
            account.set_limits(limits);
            account.update_timers(&info, fs.enforces(self.kind), limits::now_secs());
        }
        self.changed(&dquot);
        Ok(())
    }

    fn set_grace(&self, fs: &F2fs, (block, inode): (u32, u32)) -> Result<()> {
        let change = fs.change()?;
        let mut core = self.inode.core.write();
        let mut info = *self.info.lock();
        (info.block_grace, info.inode_grace) = (block, inode);
        let mut blocks = self.blocks(fs, &core, IoTag::default());
        blocks.write(0, &info.to_block(self.kind))?;
        let changed = blocks.into_changed();
        self.put(fs, &change, &mut core, (&info, changed), IoTag::default())?;
        *self.info.lock() = info;
        Ok(())
    }
}
