//! Quota files: recorded usage per user, group and project, compared with the sum over all inodes.

use steadfs_format_base::quota::Kind;
use steadfs_format_base::quota::usage::Usage;

use super::{Checker, Issue};
use crate::disk::checkpoint::CpFlags;
use crate::disk::inode::{Inline, WORDS};
use crate::disk::{BLOCK_SIZE, Inode, Nid};

impl Checker<'_> {
    /// Adds an inode to the usage of its owners. The inode's own block is not charged.
    pub(super) fn add_usage(&mut self, inode: &Inode) {
        let blocks = inode.blocks.saturating_sub(1);
        let used = Usage {
            bytes: blocks.saturating_mul(BLOCK_SIZE as u64),
            inodes: 1,
        };
        let owners = [inode.uid, inode.gid, inode.project];
        self.usages.add(owners, used);
    }

    /// Compares the recorded usage, unless the checkpoint has marked it as out of date.
    pub(super) fn check_quota_usage(&mut self, files: [Option<Nid>; 3]) {
        if self.checkpoint.flags.contains(CpFlags::QUOTA_FSCK) {
            self.report
                .skipped
                .push("quota usage, which the checkpoint has marked as out of date".into());
            return;
        }
        for (kind, ino) in Kind::ALL.into_iter().zip(files) {
            let Some(ino) = ino else {
                continue;
            };
            let Some(content) = self.quota_content(ino) else {
                continue;
            };
            match self.usages.compare(kind, content) {
                Ok(differences) => {
                    for difference in differences {
                        let kind = kind.name();
                        self.issue(Issue::QuotaUsage { kind, difference });
                    }
                }
                Err(why) => self.issue(Issue::QuotaFile { ino, why }),
            }
        }
    }

    /// The content of a quota file; `None` if it cannot be read, which was reported, or if it is larger than its
    /// inode maps: such a number of owners is not checked.
    fn quota_content(&mut self, ino: Nid) -> Option<Vec<u8>> {
        let slot = self.nat.get(&self.layout, ino)?;
        let mut block = Vec::new();
        if slot.kind == 0 || !self.read_block(slot.addr, &mut block) {
            return None;
        }
        let inode = Inode::decode(&self.layout, &block).ok()?;
        let inline = inode.inline.contains(Inline::DATA);
        let blocks = inode.size.div_ceil(BLOCK_SIZE as u64);
        if inode.xattr_words > WORDS || inline {
            return None;
        }
        if blocks > inode.fanout(&self.layout).inode.into() {
            self.report
                .skipped
                .push("usage in a quota file larger than its inode maps (quota_ino)".into());
            return None;
        }
        let mut content = Vec::new();
        let mut buf = Vec::new();
        for file_block in 0..blocks as u16 {
            let addr = inode.addr(&self.layout, &block, file_block);
            if !self.layout.is_main(addr) {
                content.resize(content.len() + BLOCK_SIZE, 0);
            } else if self.read_block(addr, &mut buf) {
                content.extend_from_slice(&buf);
            } else {
                return None;
            }
        }
        Some(content)
    }
}
