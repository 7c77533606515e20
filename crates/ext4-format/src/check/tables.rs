//! Tables of the checker: which blocks are in use, and a few bytes for each inode and directory in use. Memory is
//! allocated by group, at the first block or inode found in it.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use steadfs_base::{DevBlock, FileBlock};
use steadfs_vfs::InodeFlags;

use crate::disk::casefold::fold;
use crate::disk::{ChecksumSeed, Geometry, GroupNo, Ino, Inode, bitmap};

/// Memory that the tables may still take, all together.
#[derive(Clone)]
pub(super) struct Budget(Rc<Cell<Option<u64>>>);

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        Self(Rc::new(Cell::new(Some(bytes))))
    }

    /// Takes some; if there is too little, the check is to end.
    fn take(&self, bytes: usize) -> bool {
        let left = self.0.get().and_then(|left| left.checked_sub(bytes as u64));
        self.0.set(left);
        left.is_some()
    }

    /// Whether a table did not get what it needs.
    pub(super) fn is_exceeded(&self) -> bool {
        self.0.get().is_none()
    }
}

/// Blocks (clusters with `bigalloc`) found in use.
pub(super) struct UsedBlocks {
    groups: Vec<Option<Box<[u8]>>>,
    bytes: usize,
    budget: Budget,
}

/// Blocks that were marked already.
pub(super) struct Twice {
    pub(super) first: DevBlock,
    pub(super) count: u32,
}

impl UsedBlocks {
    pub(super) fn new(geo: &Geometry, budget: Budget) -> Self {
        Self {
            groups: vec![None; geo.group_count as usize],
            bytes: geo.block_bitmap_bytes(),
            budget,
        }
    }

    /// The bitmap of a group, where anything in it is in use.
    pub(super) fn group(&self, group: GroupNo) -> Option<&[u8]> {
        self.groups[group.0 as usize].as_deref()
    }

    /// Calls `each` with the start and end of every run of a range that is not in use. The range is within the volume's
    /// groups.
    pub(super) fn each_free(
        &self,
        geo: &Geometry,
        range: Range<DevBlock>,
        each: &mut dyn FnMut(DevBlock, DevBlock),
    ) {
        let mut at = range.start;
        while at < range.end {
            let (group, index) = geo.group_of_block(at);
            let here = (range.end.0 - at.0).min(u64::from(geo.blocks_per_group - index)) as u32;
            let bits = geo.cluster_bits;
            let clusters = index >> bits..((index + here - 1) >> bits) + 1;
            match self.group(group) {
                None => each(at, at.plus(here.into())),
                Some(map) => {
                    for free in bitmap::zero_runs(map, clusters) {
                        let first = (free.start << bits).max(index) - index;
                        let end = (free.end << bits).min(index + here) - index;
                        each(at.plus(first.into()), at.plus(end.into()));
                    }
                }
            }
            at = at.plus(here.into());
        }
    }

    /// Marks the blocks (the clusters they are in) and returns those marked before. The range
    /// is within the volume's groups.
    pub(super) fn mark_used(&mut self, geo: &Geometry, start: DevBlock, len: u64) -> Option<Twice> {
        let mut twice: Option<Twice> = None;
        let mut at = start;
        let end = start.0 + len;
        while at.0 < end {
            let (group, index) = geo.group_of_block(at);
            let here = (end - at.0).min(u64::from(geo.blocks_per_group - index)) as u32;
            let bits = index >> geo.cluster_bits..((index + here - 1) >> geo.cluster_bits) + 1;
            let map = &mut self.groups[group.0 as usize];
            if map.is_none() && self.budget.take(self.bytes) {
                *map = Some(vec![0; self.bytes].into_boxed_slice());
            }
            // Without memory the check ends soon, and its result is not used.
            let Some(map) = map else { return twice };
            if let Some(first) = bitmap::find_next_set(map, bits.clone()) {
                let count = bitmap::count_ones(map, first..bits.end);
                let first = geo
                    .first_block_of(group)
                    .plus(u64::from(first) << geo.cluster_bits);
                match &mut twice {
                    Some(twice) => twice.count += count,
                    None => twice = Some(Twice { first, count }),
                }
            }
            bitmap::set_range(map, bits);
            at = at.plus(here.into());
        }
        twice
    }
}

/// What the checker knows of an inode.
#[derive(Clone, Copy, Default)]
pub(super) struct InodeState {
    /// Type byte as in directory entries; 0 where it has none.
    pub(super) kind: u8,
    flags: u8,
    /// Links as stored.
    pub(super) links: u16,
    /// Names found.
    pub(super) names: u32,
}

impl InodeState {
    /// In use.
    pub(super) const USED: u8 = 1;
    /// The value of an attribute.
    pub(super) const ATTR_VALUE: u8 = 2;
    /// Has no name by design: journal, quota, orphan file, ….
    pub(super) const HIDDEN: u8 = 4;
    /// `EXT4_EA_INODE_FL`.
    pub(super) const EA_INODE: u8 = 8;
    /// A hash index was seen: its link count may stay at 1.
    pub(super) const INDEXED: u8 = 16;
    /// It has the encryption flag.
    pub(super) const ENCRYPTED: u8 = 32;

    pub(super) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8) {
        self.flags |= flag;
    }
}

/// States of all inodes.
pub(super) struct InodeTable {
    groups: Vec<Option<Box<[InodeState]>>>,
    per_group: usize,
    budget: Budget,
    /// In place of all inodes for which there is no memory.
    spare: InodeState,
}

impl InodeTable {
    pub(super) fn new(geo: &Geometry, budget: Budget) -> Self {
        Self {
            groups: vec![None; geo.group_count as usize],
            per_group: geo.inodes_per_group as usize,
            budget,
            spare: InodeState::default(),
        }
    }

    /// State of an inode of the volume.
    pub(super) fn get(&self, geo: &Geometry, ino: Ino) -> InodeState {
        let (group, index) = geo.group_of_inode(ino);
        self.groups[group.0 as usize]
            .as_ref()
            .map_or_else(InodeState::default, |states| states[index as usize])
    }

    /// State of an inode of the volume, to be changed.
    pub(super) fn get_mut(&mut self, geo: &Geometry, ino: Ino) -> &mut InodeState {
        let (group, index) = geo.group_of_inode(ino);
        let states = &mut self.groups[group.0 as usize];
        let bytes = self.per_group * size_of::<InodeState>();
        if states.is_none() && self.budget.take(bytes) {
            *states = Some(vec![InodeState::default(); self.per_group].into_boxed_slice());
        }
        match states {
            Some(states) => &mut states[index as usize],
            None => &mut self.spare,
        }
    }

    /// All states of a group, where one is known.
    pub(super) fn group(&self, group: GroupNo) -> Option<&[InodeState]> {
        self.groups[group.0 as usize].as_deref()
    }
}

/// A run of file blocks on a run of device blocks.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) block: FileBlock,
    pub(super) len: u32,
    pub(super) start: DevBlock,
}

/// A directory in use.
#[derive(Clone)]
pub(super) struct Dir {
    pub(super) ino: Ino,
    /// Where its name is; `None` until found.
    pub(super) parent: Option<Ino>,
    /// Target of `..`; `None` where there is no `..`.
    pub(super) dotdot: Option<Ino>,
    /// Directories whose `..` names this one.
    pub(super) subdirs: u32,
    /// Its blocks in the list of all directories' blocks.
    pub(super) runs: std::ops::Range<usize>,
    /// Size in blocks.
    pub(super) blocks: u64,
    pub(super) seed: ChecksumSeed,
    pub(super) form: DirForm,
    /// Names are ciphertext.
    pub(super) encrypted: bool,
    pub(super) comparison: Comparison,
}

/// How the names of a directory are compared and hashed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// By their bytes.
    Bytes,
    /// By their folded forms.
    Folded,
    /// By plain names that are not on the volume; their hashes are behind the stored ones.
    Encrypted,
    /// By their forms in an unknown encoding: not checked.
    Unknown,
}

impl Comparison {
    /// That of a directory.
    pub(super) fn of(geo: &Geometry, dir: &Inode) -> Self {
        match dir.has(InodeFlags::CASEFOLD) {
            false => Self::Bytes,
            true if dir.has(InodeFlags::ENCRYPTED) => Self::Encrypted,
            true if geo.encoding.is_none() => Self::Unknown,
            true => Self::Folded,
        }
    }

    /// The bytes that are compared and hashed.
    pub(super) fn key(self, name: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Folded => fold(name).map_or(Cow::Borrowed(name), Cow::Owned),
            Self::Bytes | Self::Encrypted | Self::Unknown => Cow::Borrowed(name),
        }
    }
}

/// How a directory keeps its entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DirForm {
    /// Linear blocks.
    Linear,
    /// Linear blocks with an index.
    Indexed,
    /// In the inode.
    Inline,
}
