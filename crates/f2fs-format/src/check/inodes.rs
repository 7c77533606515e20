//! Inodes: their fields, inline content and extended attributes.

use steadfs_vfs::{FileKind, InodeFlags};

use super::tables::{Dir, Slot};
use super::tree::Walk;
use super::{Checker, Issue};
use crate::disk::inode::{self, Advise, FIXED, Inline, WORDS};
use crate::disk::{Features, Inode, Nid};

/// The longest target of a symbolic link.
const LINK_MAX: u64 = 4096;

impl Checker<'_> {
    /// Checks every inode in use with its node tree.
    pub(super) fn check_inodes(&mut self) {
        let mut from = Nid(0);
        while let Some((nid, slot)) = self.nat.next_used(&self.layout, from) {
            from = Nid(nid.0 + 1);
            if slot.ino == nid {
                let mut block = std::mem::take(&mut self.buffers[0]);
                self.check_inode(nid, slot, &mut block);
                self.buffers[0] = block;
            }
        }
    }

    fn check_inode(&mut self, ino: Nid, slot: Slot, block: &mut Vec<u8>) {
        if slot.has(Slot::REACHED) {
            // It is a node in another inode's tree, which was reported.
            return;
        }
        let layout = &self.layout;
        if let Some(slot) = self.nat.get_mut(layout, ino) {
            slot.set(Slot::REACHED);
        }
        self.record_node_block(ino, ino, slot.addr);
        if self.read_footer(ino, ino, slot.addr, 0, block).is_none() {
            return;
        }
        if let Err(error) = inode::verify_checksum(&self.layout, block) {
            self.issue(Issue::Node(error.in_node(ino).in_block(slot.addr)));
        }
        let inode = match Inode::decode(&self.layout, block) {
            Ok(inode) => inode,
            Err(error) => return self.issue(Issue::Node(error.in_node(ino))),
        };
        if let Err(error) = inode.validate(&self.layout, ino) {
            self.issue(Issue::Node(error.in_node(ino)));
        }
        let Some(kind) = inode.kind() else {
            return;
        };
        let layout = &self.layout;
        if let Some(slot) = self.nat.get_mut(layout, ino) {
            slot.kind = kind.entry_type();
            slot.links = inode.links;
        }
        self.count_inode(kind, &inode);
        if self.layout.has(Features::QUOTA_INO) && !slot.has(Slot::HIDDEN) {
            self.add_usage(&inode);
        }
        self.check_flags(ino, kind, &inode);
        if inode.xattr_words > WORDS {
            // Reported with the fields: the positions of everything else are unknown.
            return;
        }
        self.check_content(ino, kind, &inode, block, slot.version);
    }

    fn count_inode(&mut self, kind: FileKind, inode: &Inode) {
        let stats = &mut self.report.stats;
        let inline = inode.inline.contains(Inline::DATA);
        match kind {
            FileKind::Regular => {
                stats.files += 1;
                stats.inline_files += u32::from(inline);
                stats.compressed_files += u32::from(inode.is_compressed(&self.layout));
            }
            FileKind::Directory => {
                stats.dirs += 1;
                stats.inline_dirs += u32::from(inode.inline.contains(Inline::DENTRIES));
            }
            FileKind::Symlink => {
                stats.symlinks += 1;
                stats.inline_files += u32::from(inline);
            }
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                stats.specials += 1;
            }
        }
    }

    /// Checks flags and hints that require a feature or another type of inode.
    fn check_flags(&mut self, ino: Nid, kind: FileKind, inode: &Inode) {
        let has = |feature| self.layout.has(feature);
        let casefold = inode.flags.contains(InodeFlags::CASEFOLD);
        let compressed = inode.flags.contains(InodeFlags::COMPRESSED);
        let inline = inode.inline.contains(Inline::DATA);
        let rules = [
            (
                inode.advise.contains(Advise::ENCRYPTED) && !has(Features::ENCRYPT),
                "is encrypted on a volume without the feature encrypt",
            ),
            (
                inode.advise.contains(Advise::VERITY)
                    && (!has(Features::VERITY) || kind != FileKind::Regular),
                "has the verity flag, which it cannot have",
            ),
            (
                casefold && (!has(Features::CASEFOLD) || kind != FileKind::Directory),
                "has the casefold flag, which it cannot have",
            ),
            (
                compressed && !has(Features::COMPRESSION),
                "is compressed on a volume without the feature compression",
            ),
            (
                compressed && inline && kind == FileKind::Regular,
                "is compressed and has inline data",
            ),
            (
                inline && inode.inline.contains(Inline::DENTRIES),
                "has both inline data and inline directory entries",
            ),
        ];
        let wrong = rules.into_iter().filter(|(is, _)| *is);
        for (_, why) in wrong.collect::<Vec<_>>() {
            self.issue(Issue::InodeFlag { ino, why });
        }
    }

    /// Checks extended attributes, inline content and blocks.
    fn check_content(
        &mut self,
        ino: Nid,
        kind: FileKind,
        inode: &Inode,
        block: &[u8],
        version: u8,
    ) {
        let compressed = inode.is_compressed(&self.layout);
        let fanout = inode.fanout(&self.layout);
        let mut walk = Walk::new(ino, kind, inode, fanout, compressed);
        walk.blocks += self.check_xattrs(ino, inode, block);
        let first = self.dir_blocks.len();
        let mapped = matches!(
            kind,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        );
        if mapped {
            if inode.inline.contains(Inline::DATA) || inode.inline.contains(Inline::DENTRIES) {
                self.check_inline(ino, inode, block);
            } else {
                self.walk_tree(&mut walk, inode, block, version);
            }
            if !walk.extent_holds() {
                self.issue(Issue::Extent {
                    ino,
                    file_block: inode.extent.file_block,
                    last: u64::from(inode.extent.file_block) + u64::from(inode.extent.len) - 1,
                    addr: inode.extent.addr,
                });
            }
        }
        if inode.blocks != walk.blocks {
            let (stored, counted) = (inode.blocks, walk.blocks);
            self.issue(Issue::BlockCount {
                ino,
                stored,
                counted,
            });
        }
        let stored = inode.compression.map_or(0, |how| how.saved_blocks);
        if compressed && stored != walk.saved {
            let counted = walk.saved;
            self.issue(Issue::SavedBlocks {
                ino,
                stored,
                counted,
            });
        }
        match kind {
            FileKind::Directory => self.dirs.push(Dir {
                ino,
                blocks: first..self.dir_blocks.len(),
                parent: None,
                stored_parent: inode.parent,
                dotdot: None,
                subdirs: 0,
            }),
            FileKind::Symlink => self.check_symlink(ino, inode, block),
            _ => {}
        }
    }

    /// Checks inline content: the word before it is 0, and DATA_EXIST is set if there is content.
    fn check_inline(&mut self, ino: Nid, inode: &Inode, block: &[u8]) {
        let reserved = FIXED + usize::from(inode.extra_isize);
        if block[reserved..reserved + 4] != [0; 4] {
            let why = "has a nonzero word before it";
            self.issue(Issue::Inline { ino, why });
        }
        let content = &block[inode.inline_range(&self.layout)];
        let announced =
            inode.inline.contains(Inline::DATA_EXISTS) || inode.inline.contains(Inline::DENTRIES);
        if !announced && content.iter().any(|&byte| byte != 0) {
            let why = "exists although DATA_EXIST is not set";
            self.issue(Issue::Inline { ino, why });
        }
    }

    fn check_symlink(&mut self, ino: Nid, inode: &Inode, block: &[u8]) {
        if inode.size == 0 || inode.size > LINK_MAX {
            let why = "has a target of invalid length";
            return self.issue(Issue::Symlink { ino, why });
        }
        if inode.advise.contains(Advise::ENCRYPTED) {
            return;
        }
        let len = inode.size as usize;
        let mut read = Vec::new();
        let target = if inode.inline.contains(Inline::DATA) {
            let range = inode.inline_range(&self.layout);
            &block[range.start..(range.start + len).min(range.end)]
        } else {
            let addr = inode.addr(&self.layout, block, 0);
            if !self.layout.is_main(addr) {
                let why = "has no target";
                return self.issue(Issue::Symlink { ino, why });
            }
            if !self.read_block(addr, &mut read) {
                return;
            }
            &read[..len]
        };
        if target.contains(&0) {
            let why = "has a zero byte in its target";
            self.issue(Issue::Symlink { ino, why });
        }
    }
}
