//! The control files of quota ([`crate::disk::quota::admin`]).

use steadfs_base::IoTag;
use steadfs_vfs::{FsError, Result};

use super::blocks::FileBlocks;
use super::{QuotaFile, limits};
use crate::disk::quota::account::Account;
use crate::disk::quota::admin::{self, Change, FILES};
use crate::disk::quota::{Entry, tree};
use crate::fs::Ext4;

impl Ext4 {
    /// The control files of the kinds that the volume counts.
    pub(crate) fn quota_controls(&self) -> Vec<&'static str> {
        let files = self.sb.lock().quota_inodes();
        let has = |n: &usize| files[*n].is_some();
        (0..FILES.len()).filter(has).map(|n| FILES[n]).collect()
    }

    /// The content of a control file; `None`: it is none of these.
    pub(crate) fn quota_control(&self, path: &str) -> Result<Option<String>> {
        let Some(kind) = admin::kind_of(path) else {
            return Ok(None);
        };
        self.open_quota()?;
        let quota = self.quota.get();
        let file = quota.and_then(|quota| quota.files[kind.index()].as_ref());
        file.map(|file| file.lines(self)).transpose()
    }

    /// Changes limits or times; whether the path is one of these files.
    pub(crate) fn set_quota_control(&self, path: &str, text: &str) -> Result<bool> {
        let Some(kind) = admin::kind_of(path) else {
            return Ok(false);
        };
        let change = Change::parse(text)?;
        let _open = self.open_to_changes();
        self.check_writable()?;
        let quota = self.quota.get();
        let file = quota.and_then(|quota| quota.files[kind.index()].as_ref());
        let file = file.ok_or(FsError::NotFound)?;
        match change {
            Change::Grace(block, inode) => file.set_grace(self, (block, inode))?,
            Change::Limits(id, limits) => file.set_limits(self, id, limits)?,
        }
        Ok(true)
    }
}

impl QuotaFile {
    fn lines(&self, fs: &Ext4) -> Result<String> {
        // Beside a change of the tree nothing is listed.
        let _core = self.inode.core.read();
        let info = self.layout.lock().info;
        let mut found = Vec::new();
        let each = |_, entry: Entry| found.push(Account::new(entry));
        let walked = tree::walk(&mut FileBlocks::new(fs, self), &info, each);
        walked.map_err(|error| self.error(error))?;
        for account in &mut found {
            let cached = self.cached.lock().get(&account.entry.id).cloned();
            account.delayed = cached.map_or(0, |dquot| dquot.account.lock().delayed);
        }
        Ok(admin::show(&info, found))
    }

    fn set_limits(&self, fs: &Ext4, id: u32, limits: [u64; 4]) -> Result<()> {
        let mut owners = [None; 3];
        owners[self.kind.index()] = Some(id);
        let tag = IoTag::default();
        let _pins = fs.prepare_owners(owners, tag)?;
        let dquot = self.dquot(fs, id)?;
        let dquot = dquot.ok_or_else(|| self.corruption("has no entry for an owner"))?;
        let info = self.layout.lock().info;
        let enforced = fs.enforces(self.kind);
        fs.txns().run(1, tag, |handle| {
            let mut account = dquot.account.lock();
            let mut new = *account;
            new.set_limits(limits);
            new.update_timers(&info, enforced, limits::now_secs());
            dquot.store(handle, &new.entry)?;
            *account = new;
            Ok(())
        })
    }

    fn set_grace(&self, fs: &Ext4, (block, inode): (u32, u32)) -> Result<()> {
        fs.txns().run(1, IoTag::default(), |handle| {
            let _core = self.inode.core.write();
            let mut info = self.layout.lock().info;
            (info.block_grace, info.inode_grace) = (block, inode);
            let mut blocks = FileBlocks::new(fs, self);
            blocks.write_info(&info)?;
            blocks.store(handle)?;
            self.layout.lock().info = info;
            Ok(())
        })
    }
}
