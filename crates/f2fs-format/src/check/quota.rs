//! Quota files: recorded usage per user, group and project, compared with the sum over all inodes.

use std::collections::BTreeMap;

use steadfs_format_base::quota::{Blocks, Content, Entry, Info, Kind, tree};

use super::{Checker, Issue};
use crate::disk::checkpoint::CpFlags;
use crate::disk::inode::{Inline, WORDS};
use crate::disk::{BLOCK_SIZE, Inode, Nid};

/// The usage of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    bytes: u64,
    inodes: u64,
}

/// Usage by kind (user, group, project) and id.
pub(super) type Usages = [BTreeMap<u32, Usage>; 3];

impl Checker<'_> {
    /// Adds an inode to the usage of its owners. The inode's own block is not charged.
    pub(super) fn add_usage(&mut self, inode: &Inode) {
        let ids = [inode.uid, inode.gid, inode.project];
        for (usages, id) in self.usages.iter_mut().zip(ids) {
            let usage = usages.entry(id).or_default();
            let blocks = inode.blocks.saturating_sub(1);
            usage.bytes = usage
                .bytes
                .saturating_add(blocks.saturating_mul(BLOCK_SIZE as u64));
            usage.inodes += 1;
        }
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
            let mut counted = std::mem::take(&mut self.usages[kind.index()]);
            match entries(content, kind) {
                Ok(stored) => {
                    for (id, stored) in stored {
                        let found = counted.remove(&id).unwrap_or_default();
                        self.compare_usage(kind, id, stored, found);
                    }
                    for (id, found) in counted {
                        self.compare_usage(kind, id, Usage::default(), found);
                    }
                }
                Err(why) => self.issue(Issue::QuotaFile { ino, why }),
            }
        }
    }

    fn compare_usage(&mut self, kind: Kind, id: u32, stored: Usage, counted: Usage) {
        if stored != counted {
            self.issue(Issue::QuotaUsage {
                kind: kind.name(),
                id,
                stored: (stored.bytes, stored.inodes),
                counted: (counted.bytes, counted.inodes),
            });
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

/// The entries of a quota file.
fn entries(content: Vec<u8>, kind: Kind) -> Result<BTreeMap<u32, Usage>, &'static str> {
    let mut content = Content(content);
    let head = content.read(0).map_err(|_| "is empty")?;
    let info = Info::of(kind, &head)?;
    let mut found = BTreeMap::new();
    let each = |_, entry: Entry| {
        let usage = Usage {
            inodes: entry.inodes,
            bytes: entry.bytes,
        };
        found.insert(entry.id, usage);
    };
    tree::walk(&mut content, &info, each)?;
    Ok(found)
}
