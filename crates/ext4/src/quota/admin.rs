//! The control files `quota/user`, `quota/group` and `quota/project`: usage and limits, read and set.
//!
//! A file has the line `grace BLOCK_SECONDS INODE_SECONDS`, and a line for each owner with usage or limits: its id; then of
//! space, in KiB: used (rounded up), soft limit, hard limit; the second until which the soft limit may be exceeded, or 0; then
//! the same four numbers of inodes. Written are such a grace line, or the id with four limits: soft and hard of space, soft and
//! hard of inodes.

use std::fmt::Write;

use steadfs_base::IoTag;
use steadfs_vfs::{FsError, Result};

use super::blocks::FileBlocks;
use super::{QuotaFile, limits};
use crate::disk::quota::{Entry, LIMIT_UNIT, Limit, tree};
use crate::fs::Ext4;

/// The control files, by kind.
const FILES: [&str; 3] = ["quota/user", "quota/group", "quota/project"];

/// The word of the line with the times.
const GRACE: &str = "grace";

/// A change of a quota file.
enum Change {
    /// Seconds for which a soft limit may be exceeded: of space, of inodes.
    Grace(u32, u32),
    /// An owner's limits of space and of inodes, soft and hard.
    Limits(u32, [u64; 4]),
}

impl Change {
    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let (&first, rest) = words.split_first()?;
        let numbers: Option<Vec<u64>> = rest.iter().map(|word| word.parse().ok()).collect();
        match (first, numbers?.as_slice()) {
            (GRACE, &[block, inode]) => Some(Self::Grace(
                u32::try_from(block).ok()?,
                u32::try_from(inode).ok()?,
            )),
            (id, &[a, b, c, d]) => Some(Self::Limits(id.parse().ok()?, [a, b, c, d])),
            _ => None,
        }
    }
}

impl Ext4 {
    /// The control files of the kinds that the volume counts.
    pub(crate) fn quota_controls(&self) -> Vec<&'static str> {
        let files = self.sb.lock().quota_inodes();
        let has = |n: &usize| files[*n].is_some();
        (0..FILES.len()).filter(has).map(|n| FILES[n]).collect()
    }

    /// The content of a control file; `None`: it is none of these.
    pub(crate) fn quota_control(&self, path: &str) -> Result<Option<String>> {
        let Some(n) = FILES.iter().position(|file| *file == path) else {
            return Ok(None);
        };
        self.open_quota()?;
        let file = self.quota.get().and_then(|quota| quota.files[n].as_ref());
        file.map(|file| file.lines(self)).transpose()
    }

    /// Changes limits or times; whether the path is one of these files.
    pub(crate) fn set_quota_control(&self, path: &str, text: &str) -> Result<bool> {
        let Some(n) = FILES.iter().position(|file| *file == path) else {
            return Ok(false);
        };
        let change = Change::parse(text).ok_or_else(|| {
            let forms = "ID SOFT_KIB HARD_KIB SOFT_INODES HARD_INODES, or grace SECONDS SECONDS";
            FsError::BadOption(format!("{text:?}: write {forms}"))
        })?;
        let _open = self.open_to_changes();
        self.check_writable()?;
        let file = self.quota.get().and_then(|quota| quota.files[n].as_ref());
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
        let mut text = format!("{GRACE} {} {}\n", info.block_grace, info.inode_grace);
        let mut found = Vec::new();
        let each = |_, entry: Entry| found.push(entry);
        let walked = tree::walk(&mut FileBlocks::reading(fs, self), &info, each);
        walked.map_err(|error| self.error(error))?;
        for mut entry in found {
            // What is delayed counts, too.
            let cached = self.cached.lock().get(&entry.id).cloned();
            let delayed = cached.map_or(0, |dquot| dquot.state.lock().delayed);
            entry.bytes = entry.bytes.saturating_add(delayed);
            if entry.is_idle() {
                continue;
            }
            let part = |used: u64, limit: &Limit| {
                let Limit { soft, hard, until } = limit;
                format!("{used} {soft} {hard} {until}")
            };
            let space = part(entry.bytes.div_ceil(LIMIT_UNIT), &entry.block_limit);
            let inodes = part(entry.inodes, &entry.inode_limit);
            let _ = writeln!(text, "{} {space} {inodes}", entry.id);
        }
        Ok(text)
    }

    fn set_limits(
        &self,
        fs: &Ext4,
        id: u32,
        [block_soft, block_hard, inode_soft, inode_hard]: [u64; 4],
    ) -> Result<()> {
        let mut owners = [None; 3];
        owners[self.kind.index()] = Some(id);
        let tag = IoTag::default();
        fs.prepare_owners(owners, tag)?;
        let dquot = self.dquot(fs, id)?;
        let dquot = dquot.ok_or_else(|| self.corruption("has no entry for an owner"))?;
        let info = self.layout.lock().info;
        let enforced = fs.enforces(self.kind);
        fs.txns().run(1, tag, |handle| {
            let mut state = dquot.state.lock();
            let mut entry = state.entry;
            (entry.block_limit.soft, entry.block_limit.hard) = (block_soft, block_hard);
            (entry.inode_limit.soft, entry.inode_limit.hard) = (inode_soft, inode_hard);
            limits::update_timers(&mut entry, &info, enforced);
            dquot.store(handle, &entry)?;
            state.entry = entry;
            Ok(())
        })
    }

    fn set_grace(&self, fs: &Ext4, (block, inode): (u32, u32)) -> Result<()> {
        fs.txns().run(1, IoTag::default(), |handle| {
            let _core = self.inode.core.write();
            let mut info = self.layout.lock().info;
            (info.block_grace, info.inode_grace) = (block, inode);
            FileBlocks::writing(fs, self, handle).write_info(&info)?;
            self.layout.lock().info = info;
            Ok(())
        })
    }
}
