//! The blocks of a directory that may hold a name: two or four of each level.

use steadfs_base::{DevBlock, FileBlock, IoTag};
use steadfs_block::Buf;
use steadfs_vfs::Result;

use crate::data::OwnSlots;
use crate::disk::{BlockAddr, hash};
use crate::fs::F2fs;
use crate::inode::Inode;

/// The blocks of the buckets of a hash, level by level. The caller holds the directory's lock.
pub(super) struct Buckets<'d> {
    fs: &'d F2fs,
    dir: &'d Inode,
    tag: IoTag,
    /// The blocks, and the content of those that were changed since the last checkpoint.
    blocks: Vec<(u64, Option<Buf>)>,
    /// The number of blocks that were given.
    given: usize,
    own: Option<OwnSlots>,
    /// Whether the blocks of all levels were asked for.
    read: bool,
}

impl<'d> Buckets<'d> {
    pub(super) fn new(fs: &'d F2fs, dir: &'d Inode, hash: u32, tag: IoTag) -> Self {
        let end = fs.dir_blocks(dir);
        let (depth, dir_level) = {
            let core = dir.core.read();
            (core.depth, core.dir_level)
        };
        // The changed blocks of all levels before the first address: a checkpoint that writes a block between the two
        // gives it a new address. A clean block keeps its address under the directory's lock.
        let blocks = (0..depth.min(hash::MAX_DEPTH))
            .take_while(|level| hash::level_start(*level, dir_level) < end)
            .flat_map(|level| hash::bucket(level, dir_level, hash))
            .map(|block| (block, dir.pages.get(FileBlock(block))))
            .collect();
        Self {
            fs,
            dir,
            tag,
            blocks,
            given: 0,
            own: None,
            read: false,
        }
    }

    /// The next block and its content, `None` for a hole; `None` after the last one.
    pub(super) fn next_block(&mut self) -> Result<Option<(u64, Option<Buf>)>> {
        let Some((block, changed)) = self.blocks.get_mut(self.given) else {
            return Ok(None);
        };
        self.given += 1;
        let block = *block;
        let content = match changed.take() {
            Some(changed) => Some(changed),
            None => self.stored(block)?,
        };
        Ok(Some((block, content)))
    }

    /// A block without changes.
    fn stored(&mut self, block: u64) -> Result<Option<Buf>> {
        let Some(addr) = self.addr(block)? else {
            return Ok(None);
        };
        if let Some(buf) = self.fs.meta.peek(DevBlock(addr.0.into())) {
            return Ok(Some(buf.data()));
        }
        if !std::mem::replace(&mut self.read, true) {
            self.read_all(addr);
        }
        Ok(Some(self.fs.main_block(addr, self.tag)?.data()))
    }

    fn addr(&mut self, block: u64) -> Result<Option<BlockAddr>> {
        if block >= self.fs.dir_blocks(self.dir) {
            return Ok(None);
        }
        let mapped = self.fs.map_one(self.dir, block, &mut self.own, self.tag)?;
        F2fs::dir_block_addr(self.dir, mapped)
    }

    /// Reads the block at `addr` and those that may be asked for next. Errors are not reported here: the read of a
    /// block meets them again.
    fn read_all(&mut self, addr: BlockAddr) {
        let mut blocks = vec![DevBlock(addr.0.into())];
        for n in self.given..self.blocks.len() {
            let (block, changed) = &self.blocks[n];
            let (block, changed) = (*block, changed.is_some());
            if !changed && let Ok(Some(addr)) = self.addr(block) {
                blocks.push(DevBlock(addr.0.into()));
            }
        }
        blocks.sort_unstable();
        self.fs.meta.prefetch_blocks(&blocks, self.tag);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfs_vfs::{Cx, FileSystem};

    use super::*;
    use crate::format::{FormatOptions, image};
    use crate::test_world::ROOT;
    use crate::{CacheSizes, F2fs, MountOptions};

    /// Enough names for buckets on three levels.
    const NAMES: usize = 1200;

    #[test]
    fn a_checkpoint_during_a_search_does_not_change_what_it_reads() {
        let device = image(64 << 20, &FormatOptions::default()).unwrap();
        let opened = Arc::clone(&device) as _;
        let fs = F2fs::open(opened, MountOptions::default(), CacheSizes::of(8 << 20)).unwrap();
        let (fs, cx) = (fs.0, Cx::default());
        let dir = fs.mkdir(&cx, ROOT, b"dir", 0o755).unwrap().ino;
        let name = |n: usize| format!("a name of three slots, {n:04}");
        let make = |n| fs.mknod(&cx, dir, name(n).as_bytes(), 0o100_644, 0);
        for n in 0..NAMES {
            make(n).unwrap();
        }
        fs.checkpoint_unmerged(cx.tag).unwrap();
        // Some blocks are changed, others are not.
        for n in NAMES - 8..NAMES {
            fs.unlink(&cx, dir, name(n).as_bytes()).unwrap();
            make(n).unwrap();
        }
        let inode = fs.by_number(dir, cx.tag).unwrap();
        let mut mixed = 0;
        for n in NAMES - 8..NAMES {
            let hash = hash::of_name(name(n).as_bytes());
            let mut buckets = Buckets::new(&fs, &inode, hash, cx.tag);
            let changed: Vec<bool> = buckets.blocks.iter().map(|(_, b)| b.is_some()).collect();
            let mut first = vec![buckets.next_block().unwrap().unwrap()];
            fs.checkpoint_unmerged(cx.tag).unwrap();
            first.extend(std::iter::from_fn(|| buckets.next_block().unwrap()));
            assert_eq!(first.len(), changed.len());
            mixed += usize::from(!changed[0] && changed.contains(&true));
            for (block, content) in first {
                let stored = fs.dir_block(&inode, block, cx.tag).unwrap();
                assert_eq!(content.as_deref(), stored.as_deref(), "{block}");
            }
            fs.unlink(&cx, dir, name(n).as_bytes()).unwrap();
            make(n).unwrap();
        }
        assert!(mixed > 0, "no search met both kinds");
    }
}
