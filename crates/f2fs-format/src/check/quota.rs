//! Quota files: recorded usage per user, group and project, compared with the sum over all inodes.
//!
//! The files have the kernel's format "vfsv1": blocks of 1024 bytes; from the second block on a tree of four levels
//! with 256 references per block, one level per byte of the id; then blocks of entries.

use std::collections::BTreeMap;

use super::{Checker, Issue};
use crate::disk::checkpoint::CpFlags;
use crate::disk::inode::{Inline, WORDS};
use crate::disk::num::get32;
use crate::disk::{BLOCK_SIZE, Inode, Nid};

const QUOTA_BLOCK: usize = 1024;
/// Levels of references above the blocks of entries.
const LEVELS: u32 = 4;
/// Magic numbers of user, group and project quota files.
const MAGICS: [u32; 3] = [0xD9C0_1F11, 0xD9C0_1927, 0xD9C0_3F14];
const HEADER: usize = 16;
const ENTRY: usize = 72;
const KINDS: [&str; 3] = ["user", "group", "project"];

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
        for (kind, ino) in files.into_iter().enumerate() {
            let Some(ino) = ino else {
                continue;
            };
            let Some(content) = self.quota_content(ino) else {
                continue;
            };
            let mut counted = std::mem::take(&mut self.usages[kind]);
            match entries(&content, MAGICS[kind]) {
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

    fn compare_usage(&mut self, kind: usize, id: u32, stored: Usage, counted: Usage) {
        if stored != counted {
            self.issue(Issue::QuotaUsage {
                kind: KINDS[kind],
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

/// The entries of a quota file; each block is read once.
fn entries(content: &[u8], magic: u32) -> Result<BTreeMap<u32, Usage>, &'static str> {
    let (blocks, _) = content.as_chunks::<QUOTA_BLOCK>();
    let head = blocks.first().ok_or("is empty")?;
    if get32(head, 0) != magic || get32(head, 4) != 1 {
        return Err("does not have the magic number of its kind");
    }
    let mut seen = vec![false; blocks.len()];
    let mut found = BTreeMap::new();
    let mut open = vec![(1, 0)];
    while let Some((number, level)) = open.pop() {
        let block: &[u8; QUOTA_BLOCK] = blocks
            .get(number)
            .ok_or("refers to a block beyond its end")?;
        if level == LEVELS {
            // Several references lead to one block of entries.
            if !std::mem::replace(&mut seen[number], true) {
                take_entries(block, &mut found)?;
            }
            continue;
        }
        if std::mem::replace(&mut seen[number], true) {
            return Err("uses a block of references twice");
        }
        let references = block.as_chunks::<4>().0.iter().map(|word| get32(word, 0));
        open.extend(
            references
                .filter(|n| *n != 0)
                .map(|n| (n as usize, level + 1)),
        );
    }
    Ok(found)
}

fn take_entries(
    block: &[u8; QUOTA_BLOCK],
    found: &mut BTreeMap<u32, Usage>,
) -> Result<(), &'static str> {
    let wide = |entry: &[u8], at: usize| {
        u64::from(get32(entry, at)) | u64::from(get32(entry, at + 4)) << 32
    };
    for entry in block[HEADER..].chunks_exact(ENTRY) {
        if entry.iter().all(|&byte| byte == 0) {
            continue;
        }
        let usage = Usage {
            inodes: wide(entry, 24),
            bytes: wide(entry, 48),
        };
        if found.insert(get32(entry, 0), usage).is_some() {
            return Err("has two entries for one owner");
        }
    }
    Ok(())
}
