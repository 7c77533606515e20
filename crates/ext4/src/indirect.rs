//! Indirect maps of ext2 and ext3 files: blocks of block numbers (tables).

use std::ops::{Range, RangeInclusive};

use steadfs_base::{Corruption, DevBlock, FileBlock, IoTag};
use steadfs_block::Buf;
use steadfs_vfs::{FsError, Result};

use crate::disk::indirect::{DIRECT, Path, bases, per_block};
use crate::disk::{self, Ino};
use crate::fs::Ext4;
use crate::mballoc::Run;
use crate::pins::Pins;
use crate::place::{BlockPlace, FreeStep, HoleCount, Mapped, Unmapped};
use crate::txn::Handle;

/// Blocks that mapping a run of `len` blocks changes at worst: every table it touches on three levels
/// may be new, with bitmap and descriptor.
pub fn insert_credits(per_block: u32, len: u32) -> u32 {
    (len / per_block + 2) * 3 + 3 * 3 + 1
}

/// Blocks that unmapping a run changes at worst: three levels of tables freed, each with bitmap and
/// descriptor, and a run of data.
pub const REMOVE_CREDITS: u32 = 3 * 4 + 4;

fn get(bytes: &[u8], index: u32) -> u32 {
    let at = index as usize * 4;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put(bytes: &mut [u8], index: u32, value: u32) {
    let at = index as usize * 4;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn checked(fs: &Ext4, ino: Ino, number: u32) -> Result<DevBlock> {
    let block = DevBlock(number.into());
    if fs.alloc.may_own(fs.geo(), block, 1) || ino == Ino::RESIZE {
        return Ok(block);
    }
    Err(
        Corruption::new("mapped, but outside the volume or part of its own metadata")
            .in_inode(ino)
            .in_block(block)
            .into(),
    )
}

/// The block at `number`, or none for a hole.
fn child(fs: &Ext4, ino: Ino, number: u32) -> Result<Option<DevBlock>> {
    if number == 0 {
        Ok(None)
    } else {
        checked(fs, ino, number).map(Some)
    }
}

/// The end of the path to a block.
enum End {
    /// A zero entry: this number of blocks from the block on are holes.
    Hole(u64),
    /// The block's own entry: its index in the table (or in the inode, without one), and the number of entries after
    /// it.
    Number {
        table: Option<Buf>,
        index: u32,
        more: u32,
    },
}

fn find(fs: &Ext4, ino: Ino, core: &disk::Inode, block: FileBlock, tag: IoTag) -> Result<End> {
    let per = per_block(fs.geo());
    let Some(path) = Path::to(block, per) else {
        return Ok(End::Hole(u64::MAX >> 16));
    };
    let (&index, above) = path.indices().split_last().expect("a path has an index");
    let mut table: Option<Buf> = None;
    for (level, &index) in above.iter().enumerate() {
        let number = get(table.as_deref().unwrap_or(&core.block), index);
        let Some(next) = child(fs, ino, number)? else {
            // No table: the hole extends over everything that this entry could map.
            let span = u64::from(per).pow((path.depth() - level) as u32);
            let from_base = block.0 - bases(per)[path.depth() - 1];
            return Ok(End::Hole(span - from_base % span));
        };
        table = Some(fs.block(next, tag)?.data());
    }
    let more = path.to_boundary;
    Ok(End::Number { table, index, more })
}

/// The mapping at `block` and its length.
pub fn lookup(
    fs: &Ext4,
    ino: Ino,
    core: &disk::Inode,
    block: FileBlock,
    tag: IoTag,
) -> Result<Mapped> {
    let (table, index, more) = match find(fs, ino, core, block, tag)? {
        End::Number { table, index, more } => (table, index, more),
        End::Hole(len) => {
            let place = BlockPlace::Hole;
            return Ok(Mapped { place, len });
        }
    };
    let bytes = table.as_deref().unwrap_or(&core.block);
    let first = get(bytes, index);
    let follows = |n: u32| {
        let number = get(bytes, index + n);
        if first == 0 {
            number == 0
        } else {
            first.checked_add(n) == Some(number)
        }
    };
    let len = (1..=more).take_while(|&n| follows(n)).count() as u64 + 1;
    let place = match child(fs, ino, first)? {
        Some(at) => BlockPlace::Written(at),
        None => BlockPlace::Hole,
    };
    Ok(Mapped { place, len })
}

/// Counts holes among the first of `blocks` (at least one, sorted): those whose entries are in one table.
pub fn holes(
    fs: &Ext4,
    ino: Ino,
    core: &disk::Inode,
    blocks: &[FileBlock],
    tag: IoTag,
) -> Result<HoleCount> {
    let (mut counted, first) = (HoleCount::default(), blocks[0]);
    match find(fs, ino, core, first, tag)? {
        End::Hole(len) => {
            let place = BlockPlace::Hole;
            counted.add(blocks, Mapped { place, len });
        }
        End::Number { table, index, more } => {
            let bytes = table.as_deref().unwrap_or(&core.block);
            let ahead = blocks.iter().map_while(|block| {
                let ahead = u32::try_from(block.0 - first.0).ok()?;
                (ahead <= more).then_some(ahead)
            });
            for n in ahead {
                counted.of += 1;
                counted.holes += u64::from(get(bytes, index + n) == 0);
            }
        }
    }
    Ok(counted)
}

/// Maps the first blocks of a run of used blocks, those of one table; returns their number.
pub fn insert_some(
    fs: &Ext4,
    handle: &mut Handle<'_>,
    ino: Ino,
    core: &mut disk::Inode,
    at: FileBlock,
    run: Run,
) -> Result<u32> {
    let path = Path::to(at, per_block(fs.geo())).ok_or(FsError::FileTooBig)?;
    let n = (path.to_boundary + 1).min(run.len);
    let first = u32::try_from(run.start.0).map_err(|_| FsError::FileTooBig)?;
    let put_run = |bytes: &mut [u8], index: u32| {
        for i in 0..n {
            put(bytes, index + i, first + i);
        }
    };
    let (&last, above) = path.indices().split_last().expect("a path has an index");
    handle.step(|handle| {
        match last_table(fs, handle, ino, core, above)? {
            None => put_run(&mut core.block, last),
            Some(table) => {
                let buf = fs.block(table, IoTag::default())?;
                put_run(&mut handle.write(&buf)?, last);
            }
        }
        Ok(n)
    })
}

/// The last table on a path; missing tables are created. `None`: the inode itself. On error no empty table is left.
fn last_table(
    fs: &Ext4,
    handle: &mut Handle<'_>,
    ino: Ino,
    core: &mut disk::Inode,
    above: &[u32],
) -> Result<Option<DevBlock>> {
    let mut tables: Vec<DevBlock> = Vec::new();
    let before = handle.savepoint();
    for &index in above {
        let table = tables.last().copied();
        let number = match table {
            None => get(&core.block, index),
            Some(at) => get(&fs.block(at, IoTag::default())?.data(), index),
        };
        let next = match child(fs, ino, number)? {
            Some(next) => next,
            None => {
                let new = match new_table(fs, handle, ino, core, table) {
                    Ok(new) => new,
                    Err(error) => {
                        drop_empty_tables(fs, handle, core, above, &tables)?;
                        handle.consistent_since(before);
                        return Err(error);
                    }
                };
                let number = u32::try_from(new.0).map_err(|_| FsError::FileTooBig)?;
                match table {
                    None => put(&mut core.block, index, number),
                    Some(at) => {
                        let buf = fs.block(at, IoTag::default())?;
                        put(&mut handle.write(&buf)?, index, number);
                    }
                }
                new
            }
        };
        tables.push(next);
    }
    Ok(tables.pop())
}

fn new_table(
    fs: &Ext4,
    handle: &mut Handle<'_>,
    ino: Ino,
    core: &mut disk::Inode,
    near: Option<DevBlock>,
) -> Result<DevBlock> {
    let near = near.unwrap_or_else(|| fs.alloc.goal_for(fs.geo(), ino));
    let goal = fs.goal_near(core, near);
    let new = fs.alloc.alloc_meta_block(fs, handle, goal)?;
    handle.write(&fs.meta().get_new(new))?.fill(0);
    core.blocks += fs.geo().block_size.bytes_u64() / 512;
    Ok(new)
}

/// Unmaps a range from its end on, step by step, and calls `free` for every run, until the range is done or the
/// transaction is full; returns the end of what is left.
pub fn remove(
    fs: &Ext4,
    handle: &mut Handle<'_>,
    ino: Ino,
    core: &mut disk::Inode,
    range: Range<FileBlock>,
    step: FreeStep,
    free: &mut dyn FnMut(&Ext4, &mut Handle<'_>, Unmapped) -> Result<()>,
) -> Result<FileBlock> {
    let per = per_block(fs.geo());
    let reach = bases(per)[3];
    let mut end = range.end.0.min(reach);
    while end > range.start.0 {
        if !handle.extend(REMOVE_CREDITS + step.credits) {
            return Ok(FileBlock(end));
        }
        end = remove_last(fs, handle, ino, core, range.start.0..end, step.blocks, free)?;
    }
    Ok(range.start)
}

/// Frees the last adjacent blocks of a range that one table maps, at most `most`, or skips the hole at its end; returns
/// the new end.
fn remove_last(
    fs: &Ext4,
    handle: &mut Handle<'_>,
    ino: Ino,
    core: &mut disk::Inode,
    range: Range<u64>,
    most: u64,
    free: &mut dyn FnMut(&Ext4, &mut Handle<'_>, Unmapped) -> Result<()>,
) -> Result<u64> {
    let per = per_block(fs.geo());
    let Range { start, end } = range;
    let path = Path::to(FileBlock(end - 1), per).ok_or_else(|| {
        Corruption::new("beyond the largest file")
            .in_inode(ino)
            .at_file_block(FileBlock(end))
    })?;
    // The tables on the path, and the end of the path if one is missing.
    let mut tables: Vec<DevBlock> = Vec::new();
    let mut pins = Pins::default();
    let (&last, above) = path.indices().split_last().expect("a path has an index");
    for (level, &index) in above.iter().enumerate() {
        let number = match tables.last() {
            None => get(&core.block, index),
            Some(&at) => get(&fs.block(at, IoTag::default())?.data(), index),
        };
        match child(fs, ino, number)? {
            Some(next) => {
                pins.keep(fs.block(next, IoTag::default())?);
                tables.push(next);
            }
            None => {
                let span = u64::from(per).pow((path.depth() - level) as u32);
                let base = bases(per)[path.depth() - 1];
                let hole = base + (end - 1 - base) / span * span;
                return Ok(hole.max(start));
            }
        }
    }
    let low = last.saturating_sub((end - 1 - start).min(u64::from(last)) as u32);
    let (first, run) = last_run(fs, ino, core, tables.last().copied(), low..=last, most)?;
    let passed = last - first + 1;
    if let Some(run) = run {
        fs.alloc.pin_to_free(fs, &mut pins, run, passed.into())?;
    }
    for &table in &tables {
        fs.alloc.pin_to_free(fs, &mut pins, table, 1)?;
    }
    handle.step(|handle| {
        if let Some(run) = run {
            match tables.last() {
                None => (first..=last).for_each(|i| put(&mut core.block, i, 0)),
                Some(&at) => {
                    let buf = fs.block(at, IoTag::default())?;
                    let mut bytes = handle.write(&buf)?;
                    (first..=last).for_each(|i| put(&mut bytes, i, 0));
                }
            }
            free(fs, handle, Unmapped::each(run, passed.into()))?;
        }
        drop_empty_tables(fs, handle, core, above, &tables)
    })?;
    Ok(end - u64::from(passed))
}

/// The run that ends a part of a table: its first index, and its first device block unless it is a
/// hole. A run of blocks has at most `most`.
fn last_run(
    fs: &Ext4,
    ino: Ino,
    core: &disk::Inode,
    table: Option<DevBlock>,
    part: RangeInclusive<u32>,
    most: u64,
) -> Result<(u32, Option<DevBlock>)> {
    let (low, last) = part.into_inner();
    let data = match table {
        None => None,
        Some(at) => Some(fs.block(at, IoTag::default())?.data()),
    };
    let bytes: &[u8] = data.as_deref().unwrap_or(&core.block);
    let end = get(bytes, last);
    let mut first = last;
    while first > low {
        let (before, taken) = (get(bytes, first - 1), last - first + 1);
        let joins = if end == 0 {
            before == 0
        } else {
            before != 0 && before.checked_add(taken) == Some(end) && u64::from(taken) < most
        };
        if !joins {
            break;
        }
        first -= 1;
    }
    for index in first..=last {
        child(fs, ino, get(bytes, index))?;
    }
    Ok((first, child(fs, ino, get(bytes, first))?))
}

/// Frees tables without entries, from the lowest up.
fn drop_empty_tables(
    fs: &Ext4,
    handle: &mut Handle<'_>,
    core: &mut disk::Inode,
    above: &[u32],
    tables: &[DevBlock],
) -> Result<()> {
    for (level, &table) in tables.iter().enumerate().rev() {
        let buf = fs.block(table, IoTag::default())?;
        if buf.data().iter().any(|&b| b != 0) {
            return Ok(());
        }
        drop(buf);
        let index = above[level];
        match level.checked_sub(1).map(|l| tables[l]) {
            None => put(&mut core.block, index, 0),
            Some(parent) => {
                let buf = fs.block(parent, IoTag::default())?;
                put(&mut handle.write(&buf)?, index, 0);
            }
        }
        handle.forget(table)?;
        fs.alloc.free_blocks(fs, handle, table, 1)?;
        core.blocks = core
            .blocks
            .saturating_sub(fs.geo().block_size.bytes_u64() / 512);
    }
    Ok(())
}

const _: () = assert!(DIRECT == 12, "twelve words of i_block name data");

#[cfg(test)]
mod tests {
    use steadfs_base::InodeNo;

    use super::*;
    use crate::test_world::{ROOT, World};

    /// The empty rest of a small directory's map is not walked block by block.
    #[test]
    fn holes_of_a_directory_are_skipped_in_one_step() {
        let world = World::make(&["-t", "ext2", "-b", "4096"], "16M");
        let InodeNo(ino) = world.mkdir(ROOT, b"dir").unwrap().ino;
        let fs = &world.fs;
        let inode = fs.inode(Ino(ino as u32), IoTag::default()).unwrap();
        let mut core = inode.core.read().clone();
        let mut handle = fs.txns().begin(REMOVE_CREDITS).unwrap();
        let reach = bases(per_block(fs.geo()));
        let mut left = reach[3];
        let mut steps = 0;
        while left > 1 {
            let most = FreeStep::METADATA.blocks;
            let mut free = |_: &Ext4, _: &mut Handle<'_>, _: Unmapped| unreachable!();
            let range = 1..left;
            let ino = inode.ino();
            left = remove_last(fs, &mut handle, ino, &mut core, range, most, &mut free).unwrap();
            steps += 1;
        }
        assert_eq!(steps, 4, "one for each path from the inode");
        handle.consistent();
        drop((handle, inode));
        world.close();
    }
}
