//! Every directory: its blocks, its entries, and what they name.

use std::collections::BTreeMap;
use std::hash::Hasher;

use steadfs_base::{DevBlock, FixedHasher};
use steadfs_format_base::check::Name;
use steadfs_vfs::FileKind;

use super::htree::{Index, IndexRole};
use super::inodes::inline_rest;
use super::tables::{Comparison, Dir, DirForm, InodeState};
use super::{Checker, Issue};
use crate::disk::casefold::fold;
use crate::disk::dir_entry::{self, DirLayout, RawEntry};
use crate::disk::features::Incompat;
use crate::disk::hash::{HashKind, NameHash};
use crate::disk::num::get32;
use crate::disk::{Ino, Inode};

/// Most names of one directory that are searched for duplicates.
const COMPARED_NAMES_MAX: usize = 1 << 26;
/// Most names of one directory that are reported as equal.
const DUPLICATES_MAX: usize = 1 << 16;

/// A name that may be in its directory twice.
struct FoundName {
    name: Vec<u8>,
    is_double: bool,
}

/// Buffers that all directories share.
#[derive(Default)]
struct Scratch {
    block: Vec<u8>,
    index: Index,
    hashes: Vec<u64>,
}

/// Where in a directory an entry is.
#[derive(Clone, Copy)]
struct Position {
    /// Number of the directory in the list.
    dir: usize,
    block: u32,
    /// Number of the entry in its block.
    entry: usize,
    /// The byte where the type is, also on volumes without types.
    type_byte: u8,
    /// The byte after the name.
    next_byte: u8,
    /// What is stored behind the name as its hash.
    stored_hash: NameHash,
}

const UNTERMINATED: &str = "its . or .. is not followed by a zero byte";

fn hash_of(name: &[u8]) -> u64 {
    let mut hasher = FixedHasher::default();
    hasher.write(name);
    hasher.finish()
}

impl Checker<'_> {
    pub(super) fn check_dirs(&mut self) {
        let mut scratch = Scratch::default();
        for i in 0..self.dirs.len() {
            if !self.has_memory() {
                return;
            }
            scratch.hashes.clear();
            if self.dirs[i].form == DirForm::Inline {
                self.check_inline_dir(i, &mut scratch);
            } else {
                self.check_block_dir(i, &mut scratch);
            }
            self.check_duplicates(i, &mut scratch);
        }
    }

    /// Reads a block of a directory. Blocks in holes and beyond the end cannot be read.
    pub(super) fn read_dir_block(&mut self, dir: &Dir, block: u64, buf: &mut Vec<u8>) -> bool {
        let runs = &self.dir_runs[dir.runs.clone()];
        let i = runs.partition_point(|run| run.block.0 <= block);
        let Some(run) = i.checked_sub(1).map(|i| runs[i]) else {
            return false;
        };
        let distance = block - run.block.0;
        distance < run.len.into() && self.read_block(run.start.plus(distance), buf)
    }

    /// Reports the first hole. Returns whether there is none and the runs are as long as the directory.
    fn check_holes(&mut self, dir: usize) -> bool {
        let Dir { ino, blocks, .. } = self.dirs[dir];
        let mut next = 0;
        let mut hole = None;
        for run in &self.dir_runs[self.dirs[dir].runs.clone()] {
            if run.block.0 != next && hole.is_none() {
                hole = Some(next);
            }
            next = run.block.0 + u64::from(run.len);
        }
        if let Some(block) = hole {
            self.issue(Issue::DirHole { dir: ino, block });
        }
        hole.is_none() && next == blocks
    }

    fn check_block_dir(&mut self, i: usize, scratch: &mut Scratch) {
        let whole = self.check_holes(i);
        scratch.index.blocks.clear();
        scratch.index.hash = None;
        if self.dirs[i].form == DirForm::Indexed && whole {
            let dir = self.dirs[i].clone();
            self.load_index(&dir, &mut scratch.index);
        }
        if self.dirs[i].runs.is_empty() {
            let (dir, why) = (self.dirs[i].ino, "it has no block");
            self.issue(Issue::DirDots { dir, why });
        }
        for r in self.dirs[i].runs.clone() {
            let run = self.dir_runs[r];
            for n in 0..run.len {
                let at = run.start.plus(n.into());
                // File block numbers have at most 32 bits in every map.
                let block = run.block.0 as u32 + n;
                let mut buf = std::mem::take(&mut scratch.block);
                if self.read_block(at, &mut buf) {
                    self.check_dir_block(i, block, at, &buf, scratch);
                }
                scratch.block = buf;
            }
        }
    }

    fn check_dir_block(
        &mut self,
        dir: usize,
        block: u32,
        at: DevBlock,
        bytes: &[u8],
        scratch: &mut Scratch,
    ) {
        let indexed = self.dirs[dir].form == DirForm::Indexed;
        let named = scratch.index.blocks.get(block as usize).copied();
        let mut layout = self.layout_of(&self.dirs[dir]);
        match named {
            // Its own checksum was verified with the index; entries cover the whole block.
            Some(IndexRole::Node) => layout.has_tail = false,
            // An index that cannot be used: any block may be a node of it.
            None if indexed => layout.has_tail &= dir_entry::has_valid_tail(&layout, bytes),
            _ => {
                let seed = self.dirs[dir].seed;
                if let Err(error) = dir_entry::verify(&layout, seed, bytes) {
                    let error = error.in_inode(self.dirs[dir].ino).in_block(at);
                    self.issue(Issue::DirBlock(error));
                    layout.has_tail = dir_entry::has_valid_tail(&layout, bytes);
                }
            }
        }
        let mut count = 0;
        for (entry_no, entry) in dir_entry::entries(&layout, bytes).enumerate() {
            match entry {
                Ok(entry) => {
                    let position = Position {
                        dir,
                        block,
                        entry: entry_no,
                        type_byte: bytes[entry.offset + 7],
                        next_byte: bytes
                            .get(entry.offset + dir_entry::HEADER_SIZE + entry.name.len())
                            .copied()
                            .unwrap_or(0),
                        stored_hash: entry.stored_hash(bytes),
                    };
                    self.check_entry(position, &entry, named, scratch);
                }
                Err(error) => {
                    let error = error.in_inode(self.dirs[dir].ino).in_block(at);
                    self.issue(Issue::DirBlock(error));
                }
            }
            count += 1;
        }
        if block == 0 && count < 2 {
            let (dir, why) = (self.dirs[dir].ino, "it has no ..");
            self.issue(Issue::DirDots { dir, why });
        }
    }

    /// How the blocks of a directory are laid out.
    pub(super) fn layout_of(&self, dir: &Dir) -> DirLayout {
        DirLayout {
            has_hashes: dir.comparison == Comparison::Encrypted,
            ..self.layout
        }
    }

    fn check_entry(
        &mut self,
        position: Position,
        entry: &RawEntry<'_>,
        named: Option<IndexRole>,
        scratch: &mut Scratch,
    ) {
        if position.block == 0 && position.entry < 2 {
            return self.check_dot(position, entry);
        }
        let Some(target) = entry.ino else {
            return;
        };
        let dir = self.dirs[position.dir].ino;
        self.report.stats.names += 1;
        let key = self.dirs[position.dir].comparison.key(entry.name);
        if let Some(IndexRole::Leaf(hashes)) = named
            && let Some(hash) = scratch.index.hash.and_then(|params| match params.kind {
                // Of an encrypted name, by a key.
                HashKind::SipHash => Some(position.stored_hash),
                _ => params.hash(&key),
            })
            && !hashes.contains(hash.major)
        {
            self.issue(Issue::HtreeHash {
                dir,
                block: position.block,
                name: Name::of(entry.name),
                hash: hash.major,
            });
        }
        if scratch.hashes.len() < COMPARED_NAMES_MAX {
            scratch.hashes.push(hash_of(&key));
        }
        self.check_name(position.dir, entry.name, target, position.type_byte);
    }

    /// The first two entries of a directory in blocks.
    fn check_dot(&mut self, position: Position, entry: &RawEntry<'_>) {
        let dir = self.dirs[position.dir].ino;
        let why = match (position.entry, entry.ino) {
            (0, Some(ino)) if entry.name == b"." => {
                if ino != dir {
                    "its . is another directory"
                } else if entry.rec_len != dir_entry::entry_size(1) {
                    "its . is not followed by .."
                } else if position.next_byte != 0 {
                    UNTERMINATED
                } else {
                    return self.check_type(position.dir, b".", dir, position.type_byte);
                }
            }
            (1, Some(ino)) if entry.name == b".." => {
                self.dirs[position.dir].dotdot = Some(ino);
                if position.next_byte != 0 {
                    UNTERMINATED
                } else if self.inodes.get(&self.geo, ino).kind == FileKind::Directory.entry_type() {
                    return self.check_type(position.dir, b"..", ino, position.type_byte);
                } else {
                    "its .. is no directory"
                }
            }
            (0, _) => "it does not start with .",
            _ => "it has no .. after .",
        };
        self.issue(Issue::DirDots { dir, why });
    }

    /// A name besides the first two.
    fn check_name(&mut self, i: usize, name: &[u8], target: Ino, type_byte: u8) {
        let dir = self.dirs[i].ino;
        if name == b"." || name == b".." {
            let why = "it has a second . or ..";
            return self.issue(Issue::DirDots { dir, why });
        }
        if !self.dirs[i].encrypted && name.iter().any(|&byte| byte == b'/' || byte == 0) {
            let name = Name::of(name);
            self.issue(Issue::BadName { dir, name });
        }
        if self.dirs[i].comparison == Comparison::Folded
            && self.geo.encoding.is_some_and(|encoding| encoding.is_strict)
            && fold(name).is_none()
        {
            let name = Name::of(name);
            self.issue(Issue::NotEncoded { dir, name });
        }
        let state = self.inodes.get(&self.geo, target);
        let why = if !self.geo.is_nameable(target) || state.has(InodeState::HIDDEN) {
            Some("which has no names")
        } else if target == Ino::ROOT {
            Some("the root")
        } else if !state.has(InodeState::USED) {
            Some("which is free")
        } else if state.links == 0 {
            Some("which is deleted")
        } else {
            None
        };
        if let Some(why) = why {
            return self.issue(Issue::BadTarget {
                dir,
                name: Name::of(name),
                ino: target,
                why,
            });
        }
        self.check_type(i, name, target, type_byte);
        if self.dirs[i].encrypted && self.geo.has_incompat(Incompat::ENCRYPT) {
            self.check_encrypted_entry(i, name, target);
        }
        let names = &mut self.inodes.get_mut(&self.geo, target).names;
        *names = names.saturating_add(1);
        if state.kind == FileKind::Directory.entry_type() {
            self.name_dir(dir, name, target);
        }
    }

    /// Compares an entry's type with its inode's. A missing type is valid: readers take it from the inode.
    fn check_type(&mut self, i: usize, name: &[u8], target: Ino, stored: u8) {
        let expected = if self.layout.has_file_type {
            self.inodes.get(&self.geo, target).kind
        } else {
            0
        };
        if stored != 0 && stored != expected {
            self.issue(Issue::EntryType {
                dir: self.dirs[i].ino,
                name: Name::of(name),
                stored,
                expected,
            });
        }
    }

    /// Number of a directory in the list, which is in the order of inodes.
    pub(super) fn dir_index(&self, ino: Ino) -> Option<usize> {
        self.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()
    }

    fn name_dir(&mut self, parent: Ino, name: &[u8], target: Ino) {
        // A directory whose inode could not be decoded is in use but not in the list.
        let Some(i) = self.dir_index(target) else {
            return;
        };
        if self.dirs[i].parent.is_some() {
            self.issue(Issue::SecondName {
                dir: parent,
                name: Name::of(name),
                ino: target,
            });
        } else {
            self.dirs[i].parent = Some(parent);
        }
    }

    /// A directory in its inode: the parent's number, then entries in two pieces.
    fn check_inline_dir(&mut self, i: usize, scratch: &mut Scratch) {
        let ino = self.dirs[i].ino;
        let mut slot = std::mem::take(&mut scratch.block);
        if self.read_slot(ino, &mut slot)
            && let Ok(inode) = Inode::decode(&self.geo, &slot)
        {
            let parent = Ino(get32(&inode.block, 0));
            if self.geo.is_inode(parent) {
                self.dirs[i].dotdot = Some(parent);
            } else {
                let why = "its .. is no directory";
                self.issue(Issue::DirDots { dir: ino, why });
            }
            self.check_inline_entries(i, &inode.block[4..], scratch);
            self.check_inline_entries(i, inline_rest(&inode).unwrap_or(&[]), scratch);
        }
        scratch.block = slot;
    }

    fn check_inline_entries(&mut self, i: usize, bytes: &[u8], scratch: &mut Scratch) {
        let layout = DirLayout {
            has_tail: false,
            ..self.layout
        };
        for entry in dir_entry::entries_in(&layout, bytes, 0, bytes.len()) {
            match entry {
                Ok(entry) => {
                    if let Some(target) = entry.ino {
                        self.report.stats.names += 1;
                        let key = self.dirs[i].comparison.key(entry.name);
                        scratch.hashes.push(hash_of(&key));
                        self.check_name(i, entry.name, target, bytes[entry.offset + 7]);
                    }
                }
                Err(error) => {
                    let error = error.in_inode(self.dirs[i].ino);
                    self.issue(Issue::DirBlock(error));
                }
            }
        }
    }

    /// Finds duplicate names: first equal hashes, then the names with those hashes.
    fn check_duplicates(&mut self, i: usize, scratch: &mut Scratch) {
        let hashes = &mut scratch.hashes;
        if hashes.len() >= COMPARED_NAMES_MAX {
            let ino = self.dirs[i].ino;
            let what = format!("equal names in directory {ino}, which has too many");
            self.report.skipped.push(what.into());
            return;
        }
        hashes.sort_unstable();
        let mut twice: Vec<u64> = hashes
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .map(|pair| pair[0])
            .collect();
        if twice.is_empty() {
            return;
        }
        twice.dedup();
        if twice.len() > DUPLICATES_MAX {
            twice.truncate(DUPLICATES_MAX);
            let ino = self.dirs[i].ino;
            let what = format!("the other equal names in directory {ino}, which has too many");
            self.report.skipped.push(what.into());
        }
        let names = self.names_with(i, &twice, &mut scratch.block);
        for found in names.into_values().filter(|found| found.is_double) {
            let (dir, name) = (self.dirs[i].ino, Name::of(&found.name));
            self.issue(Issue::DuplicateName { dir, name });
        }
    }

    /// The names in a directory whose hashes are among `wanted` (sorted), by the bytes that are compared.
    fn names_with(
        &mut self,
        i: usize,
        wanted: &[u64],
        buf: &mut Vec<u8>,
    ) -> BTreeMap<Vec<u8>, FoundName> {
        let mut names: BTreeMap<Vec<u8>, FoundName> = BTreeMap::new();
        let comparison = self.dirs[i].comparison;
        let mut keep = |layout: &DirLayout, bytes: &[u8]| {
            for entry in dir_entry::entries_in(layout, bytes, 0, bytes.len()) {
                let Ok(entry) = entry else { break };
                let key = comparison.key(entry.name);
                if entry.ino.is_some() && wanted.binary_search(&hash_of(&key)).is_ok() {
                    match names.get_mut(&*key) {
                        Some(found) => found.is_double = true,
                        None => {
                            let found = FoundName {
                                name: entry.name.to_vec(),
                                is_double: false,
                            };
                            names.insert(key.to_vec(), found);
                        }
                    }
                }
            }
        };
        // A tail looks like one more free entry.
        let layout = DirLayout {
            has_tail: false,
            ..self.layout
        };
        if self.dirs[i].form == DirForm::Inline {
            if self.read_slot(self.dirs[i].ino, buf)
                && let Ok(inode) = Inode::decode(&self.geo, buf)
            {
                keep(&layout, &inode.block[4..]);
                keep(&layout, inline_rest(&inode).unwrap_or(&[]));
            }
            return names;
        }
        for r in self.dirs[i].runs.clone() {
            let run = self.dir_runs[r];
            for n in 0..run.len {
                if self.read_block(run.start.plus(n.into()), buf) {
                    keep(&layout, buf);
                }
            }
        }
        names
    }
}
