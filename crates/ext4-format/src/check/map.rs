//! The map of an inode, by extents or indirect blocks: marks every block it uses.

use std::ops::Range;

use steadfs_base::{DevBlock, FileBlock};
use steadfs_vfs::InodeFlags;

use steadfs_format_base::quota::Kind;

use super::tables::Run;
use super::{Checker, Issue};
use crate::disk::extent::{self, ExtentNode, FILE_END, ROOT_ENTRIES};
use crate::disk::num::get32;
use crate::disk::{ChecksumSeed, DiskError, Extent, Ino, Inode, Structure, indirect};

/// The list that collects the runs of a map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Collect {
    /// None.
    Nothing,
    /// [`Checker::dir_runs`].
    Dir,
    /// [`Checker::journal_runs`].
    Journal,
    /// [`Checker::orphan_runs`].
    Orphans,
    /// [`Checker::value_runs`].
    Value,
    /// Those of a quota file.
    Quota(Kind),
}

/// State and result of walking a map.
pub(super) struct Walk {
    pub(super) ino: Ino,
    seed: ChecksumSeed,
    collect: Collect,
    /// Unwritten blocks are not allowed.
    all_written: bool,
    /// Blocks used, metadata included (whole clusters with `bigalloc`).
    pub(super) blocks: u64,
    /// Last written file block.
    pub(super) last_written: Option<u64>,
    /// The file block after the last mapped one.
    pub(super) end: u64,
    /// First file block, and the device block of file block 0.
    pub(super) first: Option<(u64, DevBlock)>,
    /// No issue was found in it.
    pub(super) intact: bool,
    last_cluster: Option<u64>,
    /// The file's cluster that the last extent ends in.
    last_of_file: Option<u64>,
    /// Blocks of an indirect map to be marked as one run.
    pending: Option<Extent>,
}

impl Walk {
    pub(super) fn new(ino: Ino, seed: ChecksumSeed, collect: Collect, all_written: bool) -> Self {
        Self {
            ino,
            seed,
            collect,
            all_written,
            blocks: 0,
            last_written: None,
            end: 0,
            first: None,
            intact: true,
            last_cluster: None,
            last_of_file: None,
            pending: None,
        }
    }
}

impl Checker<'_> {
    /// Walks the map of an inode that has one.
    pub(super) fn walk_map(&mut self, inode: &Inode, walk: &mut Walk) {
        if inode.has(InodeFlags::EXTENTS) {
            self.walk_extents(inode, walk);
        } else {
            self.walk_indirect(inode, walk);
        }
    }

    fn walk_extents(&mut self, inode: &Inode, walk: &mut Walk) {
        let whole = FileBlock(0)..FILE_END;
        match ExtentNode::parse_root(&self.geo, &inode.block) {
            Ok(root) => self.walk_node(walk, &root, &whole, ROOT_ENTRIES),
            Err(error) => {
                walk.intact = false;
                self.issue(Issue::ExtentNode(error.in_inode(walk.ino)));
            }
        }
    }

    fn walk_node(
        &mut self,
        walk: &mut Walk,
        node: &ExtentNode<'_>,
        own: &Range<FileBlock>,
        most: u16,
    ) {
        // At most two entries may be unused: the checksum tail and slack for a later format.
        if node.capacity() + 2 < most {
            let rule = "less than fit";
            let max = node.capacity();
            let error = DiskError::field(Structure::ExtentNode, "eh_max", max, rule);
            self.issue(Issue::ExtentNode(error.in_inode(walk.ino)));
        }
        if node.depth() == 0 {
            for extent in node.extents() {
                self.mark_extent(walk, &extent);
            }
            return;
        }
        for (i, index) in (0..).zip(node.indexes()) {
            let expect = node.expect_child(i, own);
            if !self.mark_meta(walk, index.child) {
                continue;
            }
            let level = usize::from(node.depth());
            let mut buf = std::mem::take(&mut self.levels[level]);
            if self.read_block(index.child, &mut buf) {
                match ExtentNode::parse_block(&self.geo, walk.seed, &buf, &expect) {
                    Ok(child) => {
                        let most = extent::block_entries(&self.geo);
                        self.walk_node(walk, &child, &expect.blocks, most);
                    }
                    Err(error) => {
                        walk.intact = false;
                        let error = error.in_inode(walk.ino).in_block(index.child);
                        self.issue(Issue::ExtentNode(error));
                    }
                }
            }
            self.levels[level] = buf;
        }
    }

    /// Marks a block of the map itself; false if it was in use already, so that no block is visited twice.
    pub(super) fn mark_meta(&mut self, walk: &mut Walk, block: DevBlock) -> bool {
        walk.blocks += u64::from(self.geo.blocks_per_cluster());
        let Some(twice) = self.used.mark_used(&self.geo, block, 1) else {
            return true;
        };
        walk.intact = false;
        self.issue(Issue::BlockUsedTwice {
            ino: walk.ino,
            block: twice.first,
            count: twice.count,
        });
        false
    }

    fn mark_extent(&mut self, walk: &mut Walk, extent: &Extent) {
        let mut start = extent.start;
        let mut len = u64::from(extent.len);
        let bits = self.geo.cluster_bits;
        if bits > 0 {
            let continues = walk.last_of_file == Some(extent.block.0 >> bits);
            self.check_place(walk, extent);
            // Extents of one cluster of the file may be in one of the volume, which counts once.
            let cluster = start.0 >> bits;
            let last = (start.0 + len - 1) >> bits;
            if walk.last_cluster.replace(last) == Some(cluster) && continues {
                let skipped = (((cluster + 1) << bits) - start.0).min(len);
                start = start.plus(skipped);
                len -= skipped;
            }
            if len > 0 {
                walk.blocks += (last + 1 - (start.0 >> bits)) << bits;
            }
        } else {
            walk.blocks += len;
        }
        self.collect(walk, extent, start..start.plus(len));
        if len > 0
            && let Some(twice) = self.used.mark_used(&self.geo, start, len)
            && !self.shared_blocks
        {
            walk.intact = false;
            self.issue(Issue::BlockUsedTwice {
                ino: walk.ino,
                block: twice.first,
                count: twice.count,
            });
        }
        self.note_extent(walk, extent);
    }

    /// Keeps the runs of an extent that are read later, but for those of `marked` that were kept before: however often maps
    /// have a block, it is read once.
    fn collect(&mut self, walk: &Walk, extent: &Extent, marked: Range<DevBlock>) {
        let runs = match walk.collect {
            Collect::Nothing => return,
            Collect::Dir => &mut self.dir_runs,
            Collect::Journal => &mut self.journal_runs,
            Collect::Orphans => &mut self.orphan_runs,
            Collect::Value => &mut self.value_runs,
            Collect::Quota(kind) => &mut self.counted.runs[kind.index()],
        };
        let mut push = |start: DevBlock, end: DevBlock| {
            if start < end {
                let at = (start.0 - extent.start.0) as u32;
                runs.push(Run {
                    block: FileBlock(extent.block.0 + u64::from(at)),
                    len: (end.0 - start.0) as u32,
                    start,
                });
            }
        };
        if self.shared_blocks {
            return push(extent.start, extent.start.plus(extent.len.into()));
        }
        push(extent.start, marked.start);
        self.collected
            .each_free(&self.geo, marked.clone(), &mut push);
        if !marked.is_empty() {
            let len = marked.end.0 - marked.start.0;
            self.collected.mark_used(&self.geo, marked.start, len);
        }
    }

    /// Checks where an extent is in its clusters.
    fn check_place(&mut self, walk: &mut Walk, extent: &Extent) {
        let bits = self.geo.cluster_bits;
        let (block, at) = (extent.block.0, extent.start.0);
        let last = extent.end().0.saturating_sub(1) >> bits;
        let continues = walk.last_of_file.replace(last) == Some(block >> bits);
        let apart = (block ^ at) & ((1 << bits) - 1) != 0;
        if apart || (continues && walk.last_cluster != Some(at >> bits)) {
            walk.intact = false;
            let ino = walk.ino;
            self.issue(Issue::Misaligned { ino, block, at });
        }
    }

    fn note_extent(&mut self, walk: &mut Walk, extent: &Extent) {
        let first = extent.block.0;
        walk.end = walk.end.max(extent.end().0);
        if walk.first.is_none() {
            walk.first = Some((first, extent.start));
        }
        if !extent.unwritten {
            walk.last_written = walk.last_written.max(Some(extent.end().0 - 1));
        } else if walk.all_written {
            walk.intact = false;
            let (ino, block) = (walk.ino, first);
            self.issue(Issue::Unwritten { ino, block });
        }
    }

    fn walk_indirect(&mut self, inode: &Inode, walk: &mut Walk) {
        let per_block = indirect::per_block(&self.geo);
        for word in 0..indirect::DIRECT {
            let block = get32(&inode.block, word as usize * 4);
            self.map_data(walk, word.into(), block);
        }
        let bases = indirect::bases(per_block);
        for (word, depth) in [
            (indirect::INDIRECT, 1),
            (indirect::DOUBLE, 2),
            (indirect::TRIPLE, 3),
        ] {
            let block = get32(&inode.block, word as usize * 4);
            self.walk_map_block(walk, bases[depth - 1], block, depth);
        }
        self.flush_pending(walk);
    }

    /// Walks a block of block numbers, `depth` levels above data, that maps from `base` on.
    fn walk_map_block(&mut self, walk: &mut Walk, base: u64, block: u32, depth: usize) {
        if block == 0 || !self.is_mappable(walk, base, block) {
            return;
        }
        let at = DevBlock(block.into());
        if !self.mark_meta(walk, at) {
            return;
        }
        let mut buf = std::mem::take(&mut self.levels[depth]);
        if self.read_block(at, &mut buf) {
            let per_block = u64::from(indirect::per_block(&self.geo));
            let step = per_block.pow(depth as u32 - 1);
            for (i, word) in (0..).zip(buf.chunks_exact(4)) {
                let child = get32(word, 0);
                if child == 0 {
                    continue;
                }
                if depth == 1 {
                    self.map_data(walk, base + i, child);
                } else {
                    self.walk_map_block(walk, base + i * step, child, depth - 1);
                }
            }
        }
        self.levels[depth] = buf;
    }

    fn is_mappable(&mut self, walk: &mut Walk, file_block: u64, block: u32) -> bool {
        let fine = self.geo.is_data_range(DevBlock(block.into()), 1);
        if !fine {
            walk.intact = false;
            self.issue(Issue::MapBlock {
                ino: walk.ino,
                file_block,
                block,
            });
        }
        fine
    }

    fn map_data(&mut self, walk: &mut Walk, file_block: u64, block: u32) {
        if block == 0 || !self.is_mappable(walk, file_block, block) {
            return;
        }
        let one = Extent {
            block: FileBlock(file_block),
            len: 1,
            start: DevBlock(block.into()),
            unwritten: false,
        };
        if let Some(pending) = &mut walk.pending
            && pending.can_merge(&one)
        {
            pending.len += 1;
            return;
        }
        self.flush_pending(walk);
        walk.pending = Some(one);
    }

    fn flush_pending(&mut self, walk: &mut Walk) {
        if let Some(run) = walk.pending.take() {
            self.mark_extent(walk, &run);
        }
    }
}
