//! Directories: their entries, in blocks and inline.

use super::dentries::{Comparison, Context, EntryBlock, fingerprint};
use super::tables::Slot;
use super::{Checker, Issue};
use crate::disk::dentry::DentryLayout;
use crate::disk::inode::{Advise, Inline, WORDS};
use crate::disk::{BLOCK_SIZE, Inode, Nid};

impl Checker<'_> {
    /// Checks every directory, by inode number.
    pub(super) fn check_dirs(&mut self) {
        let root = self.nat.get(&self.layout, Nid::ROOT);
        if self.dir_index(Nid::ROOT).is_none() || root.is_none_or(|slot| slot.has(Slot::ORPHAN)) {
            self.issue(Issue::NoRoot);
        }
        let mut block = Vec::new();
        for i in 0..self.dirs.len() {
            let ino = self.dirs[i].ino;
            let slot = self.nat.get(&self.layout, ino).unwrap_or_default();
            // A directory that was removed while it was open: its entries have no meaning.
            if slot.has(Slot::ORPHAN) || !self.read_block(slot.addr, &mut block) {
                continue;
            }
            // It was decoded before without an error.
            if let Ok(inode) = Inode::decode(&self.layout, &block)
                && inode.xattr_words <= WORDS
            {
                self.check_dir(i, &inode, &block);
            }
        }
    }

    fn check_dir(&mut self, i: usize, inode: &Inode, block: &[u8]) {
        let comparison = Comparison::of(&self.layout, inode);
        let mut cx = Context::new(
            i,
            self.dirs[i].ino,
            inode.advise.contains(Advise::ENCRYPTED),
            comparison,
        );
        if inode.inline.contains(Inline::DENTRIES) {
            let layout = inode.inline_dentries(&self.layout);
            let area = &block[inode.inline_range(&self.layout)];
            self.check_entries(&mut cx, &layout, area, None);
        } else {
            self.check_dir_blocks(&mut cx, inode);
        }
        self.check_dots(&cx);
        if comparison != Comparison::Unknown {
            self.check_duplicates(&mut cx, inode, block);
        }
    }

    fn check_dir_blocks(&mut self, cx: &mut Context, inode: &Inode) {
        let blocks = inode.size.div_ceil(BLOCK_SIZE as u64);
        let mut block = Vec::new();
        for n in self.dirs[cx.dir].blocks.clone() {
            let at = self.dir_blocks[n];
            if self.read_block(at.addr, &mut block) {
                let file_block = at.file_block.into();
                let position = EntryBlock::new(file_block, inode.dir_level, inode.depth, blocks);
                self.check_entries(cx, &DentryLayout::BLOCK, &block, Some(position));
            }
        }
    }

    /// Finds duplicate names, by comparing the names with equal fingerprints.
    fn check_duplicates(&mut self, cx: &mut Context, inode: &Inode, block: &[u8]) {
        let suspects = cx.equal_fingerprints();
        if suspects.is_empty() {
            return;
        }
        let mut names = std::collections::BTreeSet::new();
        let mut look = |checker: &mut Self, layout: &DentryLayout, area: &[u8]| {
            for entry in crate::disk::dentry::entries(layout, area, 0).flatten() {
                let suspect = suspects.binary_search(&fingerprint(cx.comparison, &entry));
                let key = || cx.comparison.key(entry.name).into_owned();
                if suspect.is_ok() && !names.insert(key()) {
                    let (dir, name) = (checker.dirs[cx.dir].ino, super::Name::of(entry.name));
                    checker.issue(Issue::DuplicateName { dir, name });
                }
            }
        };
        if inode.inline.contains(Inline::DENTRIES) {
            let layout = inode.inline_dentries(&self.layout);
            let area = &block[inode.inline_range(&self.layout)];
            return look(self, &layout, area);
        }
        let mut block = Vec::new();
        for n in self.dirs[cx.dir].blocks.clone() {
            if self.read_block(self.dir_blocks[n].addr, &mut block) {
                look(self, &DentryLayout::BLOCK, &block);
            }
        }
    }

    pub(super) fn dir_index(&self, ino: Nid) -> Option<usize> {
        self.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()
    }
}
