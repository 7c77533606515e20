//! Records of ranges: mapped and unmapped file blocks.

use std::collections::BTreeMap;
use std::ops::Range;

use steadfs_base::{Corruption, DevBlock, FileBlock, IoTag};
use steadfs_jbd2::{FastCommitChange, FastCommitRecord};
use steadfs_vfs::{FileKind, FsError, Result};

use super::{Replay, at};
use crate::disk::extent::FILE_END;
use crate::disk::{self, Extent, Ino};
use crate::extent::Tree;
use crate::fs::Ext4;
use crate::indirect;
use crate::map::has_extents;
use crate::mballoc::{Run, pieces};
use crate::place::{self, BlockPlace, FreeStep};
use crate::txn::Handle;

/// A change of a file's map.
#[derive(Clone, Debug)]
pub(super) enum FileRange {
    Map(Extent),
    Unmap(Range<FileBlock>),
}

impl FileRange {
    /// The range of a record of ranges.
    pub(super) fn of(change: &FastCommitChange) -> Result<Self> {
        let range = match change {
            FastCommitChange::AddRange { extent, .. } => Self::Map(Extent::decode(extent)),
            FastCommitChange::DelRange { first, count, .. } => {
                let first = FileBlock((*first).into());
                Self::Unmap(first..first.plus((*count).into()))
            }
            other => unreachable!("{} is not a record of ranges", other.name()),
        };
        let (len, end) = match &range {
            Self::Map(extent) => (extent.len, extent.end()),
            Self::Unmap(blocks) => (1, blocks.end),
        };
        if len == 0 || end > FILE_END {
            let what = format!("a range of {len} blocks that ends at file block {end}");
            return Err(Corruption::new(what).into());
        }
        Ok(range)
    }
}

/// Blocks that are in use on disk, but no longer mapped: first block and number.
#[derive(Default)]
pub(super) struct Unmapped(BTreeMap<u64, u64>);

impl Unmapped {
    fn insert(&mut self, start: DevBlock, len: u64) -> Result<()> {
        if self.overlap(start, len).is_some() {
            return Err(Corruption::new("mapped twice").in_block(start).into());
        }
        self.0.insert(start.0, len);
        Ok(())
    }

    /// The last run that overlaps these blocks.
    fn overlap(&self, start: DevBlock, len: u64) -> Option<(u64, u64)> {
        let (&first, &count) = self.0.range(..start.0 + len).next_back()?;
        (first + count > start.0).then_some((first, count))
    }

    /// Takes the blocks among these that are in the set.
    fn take(&mut self, start: DevBlock, len: u64) -> Vec<(DevBlock, u64)> {
        let mut taken = Vec::new();
        let end = start.0 + len;
        while let Some((first, count)) = self.overlap(start, len) {
            self.0.remove(&first);
            let (from, to) = (first.max(start.0), (first + count).min(end));
            if first < from {
                self.0.insert(first, from - first);
            }
            if to < first + count {
                self.0.insert(to, first + count - to);
            }
            taken.push((DevBlock(from), to - from));
        }
        taken
    }

    /// All of them.
    pub(super) fn runs(self) -> impl Iterator<Item = (DevBlock, u64)> {
        self.0
            .into_iter()
            .map(|(start, len)| (DevBlock(start), len))
    }
}

impl Replay<'_> {
    /// Allocates the blocks of an add-range record in memory.
    pub(super) fn allocate_range(&mut self, record: &FastCommitRecord) -> Result<()> {
        if !matches!(record.change, FastCommitChange::AddRange { .. }) {
            return Ok(());
        }
        let FileRange::Map(extent) = FileRange::of(&record.change)? else {
            return Ok(());
        };
        let (start, len) = (extent.start, u64::from(extent.len));
        if !self.fs.alloc.may_own(self.fs.geo(), start, len) {
            let what = format!("maps {len} blocks that no file may own");
            return Err(Corruption::new(what).in_block(start).into());
        }
        self.fs.alloc.allocate_given(self.fs, start, len)
    }

    /// Changes an inode's map. An inode that does not exist was removed by the end of the fast commit.
    pub(super) fn apply_ranges(
        &mut self,
        ino: Ino,
        ranges: Vec<(FileRange, FastCommitRecord)>,
    ) -> Result<()> {
        let Some(inode) = self.current(ino)? else {
            return Ok(());
        };
        if !matches!(inode.kind(), FileKind::Regular | FileKind::Symlink) {
            let what = "only a file has ranges";
            let error = Corruption::new(what).in_inode(ino).into();
            return Err(ranges.first().map_or(FsError::Stale, |(_, r)| at(r, error)));
        }
        self.change(|replay, handle| {
            let mut core = inode.core.write();
            if inode.kind() == FileKind::Symlink
                && core.is_fast_symlink(replay.fs.geo())
                && core.size > 0
            {
                let what = "a short link has no map";
                let error = Corruption::new(what).in_inode(ino).into();
                return Err(ranges.first().map_or(FsError::Stale, |(_, r)| at(r, error)));
            }
            for (range, record) in &ranges {
                let changed = match range {
                    FileRange::Map(extent) => replay.map(handle, ino, &mut core, extent),
                    FileRange::Unmap(blocks) => {
                        replay.unmap(handle, ino, &mut core, blocks.clone())
                    }
                };
                changed.map_err(|error| at(record, error))?;
            }
            replay.fs.store_inode(handle, &inode, &core)
        })
    }

    /// Maps an extent; what was mapped there before is unmapped.
    fn map(
        &mut self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: &mut disk::Inode,
        extent: &Extent,
    ) -> Result<()> {
        if extent.unwritten && !has_extents(core) {
            let what = "unwritten blocks in a file without extents";
            return Err(Corruption::new(what).in_inode(ino).into());
        }
        let fs = self.fs;
        let mut from = extent.block;
        while from < extent.end() {
            let mapped = fs.map(ino, core, from, IoTag::default())?;
            let blocks = from..from.plus(mapped.len.min(extent.end().0 - from.0));
            let wanted = extent.device_block(from);
            match mapped.place {
                BlockPlace::Written(at) | BlockPlace::Unwritten(at) if at == wanted => {
                    let unwritten = matches!(mapped.place, BlockPlace::Unwritten(_));
                    if unwritten != extent.unwritten {
                        let mut tree = Tree::new(fs, ino, core);
                        tree.convert(handle, blocks.clone(), extent.unwritten)?;
                    }
                }
                place => {
                    if place != BlockPlace::Hole {
                        self.unmap(handle, ino, core, blocks.clone())?;
                    }
                    let len = blocks.end.0 - from.0;
                    self.map_hole(handle, ino, core, from, (wanted, len), extent.unwritten)?;
                }
            }
            from = blocks.end;
        }
        Ok(())
    }

    /// Maps blocks, which are allocated or were unmapped before, in a hole.
    fn map_hole(
        &mut self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: &mut disk::Inode,
        at: FileBlock,
        (start, len): (DevBlock, u64),
        unwritten: bool,
    ) -> Result<()> {
        let fs = self.fs;
        for (start, len) in self.unmapped.take(start, len) {
            fs.alloc.free_blocks(fs, handle, start, len)?;
            fs.alloc.allocate_given(fs, start, len)?;
        }
        let mut at = at;
        let mut run_start = start;
        for (_, _, len) in pieces(fs.geo(), start, len) {
            let run = Run {
                start: run_start,
                len,
            };
            fs.map_allocation(handle, ino, core, at, run, unwritten)?;
            at = at.plus(len.into());
            run_start = run_start.plus(len.into());
        }
        Ok(())
    }

    /// Unmaps blocks. They are freed at the end, as other records may map them again.
    fn unmap(
        &mut self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: &mut disk::Inode,
        blocks: Range<FileBlock>,
    ) -> Result<()> {
        let fs = self.fs;
        let unmapped = &mut self.unmapped;
        let mut count = 0;
        let mut keep = |_: &Ext4, _: &mut Handle<'_>, run: place::Unmapped| {
            let (start, len) = run.blocks;
            count += len;
            unmapped.insert(start, len)
        };
        if has_extents(core) {
            let mut tree = Tree::new(fs, ino, core);
            tree.remove(handle, blocks, FreeStep::DATA, &mut keep)?;
        } else {
            indirect::remove(fs, handle, ino, core, blocks, FreeStep::DATA, &mut keep)?;
        }
        let units = fs.geo().block_size.bytes_u64() / 512;
        core.blocks = core.blocks.saturating_sub(count * units);
        Ok(())
    }
}
