//! The block map of the journal's inode, read from the device before the volume is open: no transaction contains
//! that inode, so it is the same before and after replay.

use std::collections::BTreeSet;

use steadfs_base::{BlockSize, Corruption, DevBlock, FileBlock, IoTag};
use steadfs_block::{Buf, Queue};
use steadfs_jbd2_format::JournalMap;
use steadfs_vfs::{InodeFlags, Result};

use crate::disk::desc_from_copies;
use crate::disk::extent::{Expect, ExtentNode, FILE_END};
use crate::disk::indirect::{Path, per_block};
use crate::disk::{self, ChecksumSeed, Geometry, GroupDesc, Ino, Superblock};
use crate::io_error;
use crate::journal_format_error;

/// The journal's runs of device blocks so far.
#[derive(Default)]
struct Runs {
    list: Vec<(DevBlock, u64)>,
    /// Blocks in `list`: the number of the journal's next block. Counted on the way, as there may be as many runs as
    /// blocks.
    blocks: u64,
}

impl Runs {
    fn push(&mut self, start: DevBlock, len: u64) {
        self.blocks = self.blocks.saturating_add(len);
        match self.list.last_mut() {
            Some((before, blocks)) if before.plus(*blocks) == start => *blocks += len,
            _ => self.list.push((start, len)),
        }
    }
}

struct Reader<'a> {
    queue: &'a Queue,
    geo: &'a Geometry,
}

/// Maps the journal by its inode.
pub fn map(queue: &Queue, sb: &Superblock, ino: Ino) -> Result<JournalMap> {
    let geo = sb.geometry();
    let reader = Reader { queue, geo };
    let (group, index) = geo.group_of_inode(ino);
    let (n, at) = geo.desc_slot(group);
    let table = reader.block(geo.desc_block_at(n))?;
    let stored = GroupDesc::parse(geo, group, &table[at..at + usize::from(geo.desc_size)]);
    let desc = stored.or_else(|error| {
        let read = |at| reader.block(at).ok().map(|block| block.to_vec());
        desc_from_copies(geo, group, read).ok_or(error)
    })?;
    let (block, at) = geo.inode_slot(desc.inode_table, index);
    let slots = reader.block(block)?;
    let core = disk::Inode::parse(geo, ino, &slots[at..at + usize::from(geo.inode_size)])?;
    reader.journal(ino, &core, core.seed(geo, ino))
}

/// Maps the journal by the copy of its inode's map in the superblock (`s_jnl_blocks`). mkfs writes that copy and no
/// mount changes the map; the checksums of its tree nodes are not verified.
pub fn map_of_backup(queue: &Queue, sb: &Superblock, ino: Ino) -> Option<Result<JournalMap>> {
    let (words, size) = sb.journal_backup()?;
    let geo = sb.geometry();
    let mut core = disk::Inode {
        size,
        ..disk::Inode::default()
    };
    for (bytes, word) in core.block.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    if ExtentNode::parse_root(geo, &core.block).is_ok() {
        core.flags = InodeFlags::EXTENTS;
    }
    Some(Reader { queue, geo }.journal(ino, &core, ChecksumSeed::NONE))
}

/// Refuses a journal that overlaps a group's own metadata: replay would read blocks that are no log, and later
/// commits would destroy that metadata. Descriptors that fail verification are skipped, as replay may repair them:
/// at most as many descriptor blocks as the log has blocks.
pub fn check_apart(queue: &Queue, sb: &Superblock, map: &JournalMap) -> Result<()> {
    let geo = sb.geometry();
    let reader = Reader { queue, geo };
    let mut table: Option<(u32, Buf)> = None;
    let mut bad_blocks = BTreeSet::new();
    for group in geo.groups() {
        let (n, at) = geo.desc_slot(group);
        if table.as_ref().is_none_or(|(have, _)| *have != n) {
            table = Some((n, reader.block(geo.desc_block_at(n))?));
        }
        let bytes = &table.as_ref().expect("just set").1;
        let slot = &bytes[at..at + usize::from(geo.desc_size)];
        let Ok(desc) = GroupDesc::parse(geo, group, slot) else {
            bad_blocks.insert(n);
            if bad_blocks.len() as u64 > u64::from(map.len()) {
                let what = "more group descriptors are damaged than the journal can repair";
                return Err(Corruption::new(what).into());
            }
            continue;
        };
        for (start, len) in desc.own_blocks(geo, group) {
            if map.overlaps(start, len) {
                let what = "the journal overlaps the group's metadata";
                return Err(Corruption::new(what)
                    .in_group(group.0)
                    .in_block(start)
                    .into());
            }
        }
    }
    Ok(())
}

impl Reader<'_> {
    fn block(&self, block: DevBlock) -> Result<Buf> {
        let size: BlockSize = self.geo.block_size;
        self.queue
            .read(size.offset_of(block), size.bytes(), IoTag::default())
            .map_err(io_error)
    }

    /// The journal's blocks as the inode maps them.
    fn journal(&self, ino: Ino, core: &disk::Inode, seed: ChecksumSeed) -> Result<JournalMap> {
        let blocks = core.size >> self.geo.block_size.bits();
        let mut runs = Runs::default();
        if core.flags.contains(InodeFlags::EXTENTS) {
            let root = ExtentNode::parse_root(self.geo, &core.block);
            let root = root.map_err(|error| error.in_inode(ino))?;
            self.extents(&root, FileBlock(0)..FILE_END, seed, &mut runs)?;
        } else {
            self.indirect(core, blocks, &mut runs)?;
        }
        let mapped = runs.blocks;
        if mapped < blocks {
            let what = format!("the journal has {mapped} of {blocks} blocks");
            return Err(Corruption::new(what).in_inode(ino).into());
        }
        JournalMap::new(runs.list).map_err(journal_format_error)
    }

    /// Adds the extents below a node. The recursion ends, as the depth decreases at each level.
    fn extents(
        &self,
        node: &ExtentNode<'_>,
        blocks: std::ops::Range<FileBlock>,
        seed: ChecksumSeed,
        runs: &mut Runs,
    ) -> Result<()> {
        if node.depth() == 0 {
            for extent in node.extents() {
                let expected = runs.blocks;
                if extent.block.0 != expected || extent.unwritten {
                    let what = "the journal's extents have a gap or an unwritten block";
                    return Err(Corruption::new(what)
                        .at_file_block(FileBlock(expected))
                        .into());
                }
                runs.push(extent.start, extent.len.into());
            }
            return Ok(());
        }
        for (i, index) in node.indexes().enumerate() {
            let expect: Expect = node.expect_child(i as u16, &blocks);
            let bytes = self.block(index.child)?;
            let child = ExtentNode::parse_block(self.geo, seed, &bytes, &expect)?;
            self.extents(&child, expect.blocks, seed, runs)?;
        }
        Ok(())
    }

    fn indirect(&self, core: &disk::Inode, blocks: u64, runs: &mut Runs) -> Result<()> {
        let word = |bytes: &[u8], i: u32| {
            let at = i as usize * 4;
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let per = per_block(self.geo);
        // The lowest tables seen. A table that occurs twice maps blocks twice, and tables that name each other
        // would make a map of any size.
        let mut tables = BTreeSet::new();
        let mut at = 0;
        while at < blocks {
            let first = at;
            let gone = || {
                Corruption::new("a block of the journal is not mapped")
                    .at_file_block(FileBlock(first))
            };
            let path = Path::to(FileBlock(at), per).ok_or_else(gone)?;
            let (&last, above) = path.indices().split_last().ok_or_else(gone)?;
            let mut table: Option<(DevBlock, Buf)> = None;
            for &index in above {
                let bytes = table.as_ref().map_or(&core.block[..], |(_, bytes)| bytes);
                let next = DevBlock(word(bytes, index).into());
                if !self.geo.is_data_range(next, 1) {
                    return Err(gone().into());
                }
                table = Some((next, self.block(next)?));
            }
            if let Some((table, _)) = &table
                && !tables.insert(*table)
            {
                let what = "an indirect block is twice in the journal's map";
                return Err(Corruption::new(what).in_block(*table).into());
            }
            let bytes = table.as_ref().map_or(&core.block[..], |(_, bytes)| bytes);
            for i in last..=last + path.to_boundary {
                let block = DevBlock(word(bytes, i).into());
                if at == blocks {
                    break;
                }
                if !self.geo.is_data_range(block, 1) {
                    return Err(gone().into());
                }
                runs.push(block, 1);
                at += 1;
            }
        }
        Ok(())
    }
}
