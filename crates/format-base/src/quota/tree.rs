//! The tree of a quota file: finding, adding and removing entries.
//!
//! Blocks that hold nothing are in a list, and blocks of entries that have room in another, which is linked both ways. Both
//! begin in the [`Info`], which the caller stores after a change.

use std::collections::BTreeSet;

use super::{BLOCK_SIZE, Block, Blocks, ENTRY_SIZE, Entry, Info, QuotaError, get32, put32};

/// The root of the tree.
pub const ROOT: u32 = 1;
/// Most blocks by which a new entry makes a file longer: references below the root, and entries.
pub const GROWTH_MAX: u32 = LEVELS as u32;
/// Most blocks that a new or removed entry changes, beside the first one: a path of the tree with its entries, and the next
/// ones in both lists.
pub const CHANGED_MAX: u32 = LEVELS as u32 + 1 + 2;

/// Levels of references above the entries.
const LEVELS: usize = 4;
/// Bytes before the entries of a block: the next and the previous block of a list, and the number of entries.
const HEADER_SIZE: usize = 16;
const ENTRIES: u16 = ((BLOCK_SIZE - HEADER_SIZE) / ENTRY_SIZE) as u16;

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of its block.
    pub block: u32,
    /// The offset of its first byte in the block.
    pub at: usize,
}

type Result<T, E> = std::result::Result<T, QuotaError<E>>;

/// The entry of `id`, if the file has one.
///
/// # Errors
/// The path to it contradicts the format, or cannot be read.
pub fn find<B: Blocks>(
    blocks: &mut B,
    info: &Info,
    id: u32,
) -> Result<Option<(Place, Entry)>, B::Error> {
    let mut n = ROOT;
    for level in 0..LEVELS {
        let block = read(blocks, n)?;
        match child(info, &block, reference(id, level))? {
            Some(child) => n = child,
            None => return Ok(None),
        }
    }
    let block = read(blocks, n)?;
    let found = entries(&block).find(|(_, entry)| entry.id == id);
    match found {
        Some((at, entry)) => Ok(Some((Place { block: n, at }, entry))),
        None => Err(QuotaError::Malformed(
            "refers to an entry that is not there",
        )),
    }
}

/// Adds an entry whose id has none. At most [`GROWTH_MAX`] blocks are new; `info` changes.
///
/// # Errors
/// What is changed contradicts the format, or a block cannot be read or written: the file is then changed in part.
pub fn insert<B: Blocks>(
    blocks: &mut B,
    info: &mut Info,
    entry: &Entry,
) -> Result<Place, B::Error> {
    let mut path = [(ROOT, [0; BLOCK_SIZE]); LEVELS];
    // The blocks of references down to the first that must refer to something new.
    let mut first_new = LEVELS;
    let mut n = ROOT;
    for (level, step) in path.iter_mut().enumerate() {
        *step = (n, read(blocks, n)?);
        match child(info, &step.1, reference(entry.id, level))? {
            Some(_) if level + 1 == LEVELS => {
                return Err(QuotaError::Malformed(
                    "refers to an entry that is not there",
                ));
            }
            Some(child) => n = child,
            None => {
                first_new = level;
                break;
            }
        }
    }
    for below in &mut path[first_new + 1..] {
        *below = (take_block(blocks, info)?, [0; BLOCK_SIZE]);
    }
    let place = put_entry(blocks, info, entry)?;
    let mut refers_to = place.block;
    for (level, (n, block)) in path.iter_mut().enumerate().skip(first_new).rev() {
        put32(block, reference(entry.id, level), refers_to);
        write(blocks, *n, block)?;
        refers_to = *n;
    }
    Ok(place)
}

/// Removes the entry of `id`. `info` changes.
///
/// # Errors
/// As for [`insert`], or there is no such entry.
pub fn remove<B: Blocks>(blocks: &mut B, info: &mut Info, id: u32) -> Result<(), B::Error> {
    let Some((place, _)) = find(blocks, info, id)? else {
        return Err(QuotaError::Malformed(
            "refers to an entry that is not there",
        ));
    };
    let mut path = [(ROOT, [0; BLOCK_SIZE]); LEVELS];
    let mut n = ROOT;
    for (level, step) in path.iter_mut().enumerate() {
        *step = (n, read(blocks, n)?);
        n = get32(&step.1, reference(id, level));
    }
    drop_entry(blocks, info, place)?;
    for (level, (n, block)) in path.iter_mut().enumerate().rev() {
        put32(block, reference(id, level), 0);
        if *n == ROOT || block.iter().any(|&byte| byte != 0) {
            return write(blocks, *n, block);
        }
        give_block(blocks, info, *n)?;
    }
    Ok(())
}

/// Calls `each` with all entries, in the order of their ids.
///
/// # Errors
/// The tree contradicts the format, or cannot be read.
pub fn walk<B: Blocks>(
    blocks: &mut B,
    info: &Info,
    mut each: impl FnMut(Place, Entry),
) -> Result<(), B::Error> {
    let mut references = BTreeSet::new();
    let mut ids = BTreeSet::new();
    // Blocks to visit: the number, the levels above, the id so far.
    let mut open = vec![(ROOT, 0, 0u32)];
    while let Some((n, level, prefix)) = open.pop() {
        let block = read(blocks, n)?;
        if level == LEVELS {
            let found = entries(&block).find(|(_, entry)| entry.id == prefix);
            let Some((at, entry)) = found else {
                return Err(QuotaError::Malformed(
                    "refers to an entry that is not there",
                ));
            };
            if !ids.insert(entry.id) {
                return Err(QuotaError::Malformed("has two entries for one owner"));
            }
            each(Place { block: n, at }, entry);
            continue;
        }
        if !references.insert(n) {
            return Err(QuotaError::Malformed("uses a block of references twice"));
        }
        for byte in (0..=u8::MAX).rev() {
            if let Some(child) = child(info, &block, usize::from(byte) * 4)? {
                open.push((child, level + 1, prefix << 8 | u32::from(byte)));
            }
        }
    }
    Ok(())
}

/// The offset of the reference to `id` in a block of a level.
fn reference(id: u32, level: usize) -> usize {
    usize::from(id.to_be_bytes()[level]) * 4
}

/// The block to which a reference leads.
fn child<E>(info: &Info, block: &Block, at: usize) -> Result<Option<u32>, E> {
    match get32(block, at) {
        0 => Ok(None),
        n if info.is_below_root(n) => Ok(Some(n)),
        _ => Err(QuotaError::Malformed("refers to a block beyond its end")),
    }
}

/// The entries in use of a block, with their offsets.
fn entries(block: &Block) -> impl Iterator<Item = (usize, Entry)> {
    (0..usize::from(ENTRIES)).filter_map(|n| {
        let at = HEADER_SIZE + n * ENTRY_SIZE;
        let bytes = block[at..].first_chunk();
        Some((at, Entry::parse(bytes.expect("within the block"))?))
    })
}

/// Puts an entry into a block that has room.
fn put_entry<B: Blocks>(blocks: &mut B, info: &mut Info, entry: &Entry) -> Result<Place, B::Error> {
    let (n, mut block) = match info.free_entry {
        0 => {
            let n = take_block(blocks, info)?;
            info.free_entry = n;
            (n, [0; BLOCK_SIZE])
        }
        n => (n, read(blocks, n)?),
    };
    let used: BTreeSet<usize> = entries(&block).map(|(at, _)| at).collect();
    let offsets = (0..usize::from(ENTRIES)).map(|n| HEADER_SIZE + n * ENTRY_SIZE);
    let at = offsets.into_iter().find(|at| !used.contains(at));
    let at = at.ok_or(QuotaError::Malformed(
        "has a full block in its list of others",
    ))?;
    block[at..at + ENTRY_SIZE].copy_from_slice(&entry.to_bytes());
    let count = used.len() as u16 + 1;
    put_count(&mut block, count);
    if count == ENTRIES {
        leave_list(blocks, info, n, &mut block)?;
    }
    write(blocks, n, &block)?;
    Ok(Place { block: n, at })
}

/// Removes an entry from its block, which is given up with its last entry.
fn drop_entry<B: Blocks>(blocks: &mut B, info: &mut Info, place: Place) -> Result<(), B::Error> {
    let n = place.block;
    let mut block = read(blocks, n)?;
    let was_full = entries(&block).count() == usize::from(ENTRIES);
    block[place.at..place.at + ENTRY_SIZE].fill(0);
    let left = entries(&block).count();
    put_count(&mut block, left as u16);
    if left == 0 {
        leave_list(blocks, info, n, &mut block)?;
        return give_block(blocks, info, n);
    }
    if was_full {
        put32(&mut block, 0, info.free_entry);
        put32(&mut block, 4, 0);
        link(blocks, info, info.free_entry, 4, n)?;
        info.free_entry = n;
    }
    write(blocks, n, &block)
}

fn put_count(block: &mut Block, count: u16) {
    block[8..10].copy_from_slice(&count.to_le_bytes());
}

/// Takes a block out of the list of blocks that have room.
fn leave_list<B: Blocks>(
    blocks: &mut B,
    info: &mut Info,
    n: u32,
    block: &mut Block,
) -> Result<(), B::Error> {
    let (next, before) = (get32(block, 0), get32(block, 4));
    link(blocks, info, next, 4, before)?;
    match before {
        0 if info.free_entry == n => info.free_entry = next,
        0 => {}
        before => link(blocks, info, before, 0, next)?,
    }
    put32(block, 0, 0);
    put32(block, 4, 0);
    Ok(())
}

/// Sets the word at `at` of a block of a list to `other`. Block 0 is the end of the list.
fn link<B: Blocks>(
    blocks: &mut B,
    info: &Info,
    n: u32,
    at: usize,
    other: u32,
) -> Result<(), B::Error> {
    if n == 0 {
        return Ok(());
    }
    if !info.is_below_root(n) {
        return Err(QuotaError::Malformed(
            "has a list of blocks that are not its own",
        ));
    }
    let mut block = read(blocks, n)?;
    put32(&mut block, at, other);
    write(blocks, n, &block)
}

/// A block that holds nothing. The caller writes it.
fn take_block<B: Blocks>(blocks: &mut B, info: &mut Info) -> Result<u32, B::Error> {
    if info.free_block == 0 {
        let n = info.blocks;
        info.blocks = n
            .checked_add(1)
            .ok_or(QuotaError::Malformed("has no more numbers for blocks"))?;
        return Ok(n);
    }
    let n = info.free_block;
    let next = get32(&read(blocks, n)?, 0);
    if next != 0 && !info.is_below_root(next) {
        return Err(QuotaError::Malformed(
            "has a list of blocks that are not its own",
        ));
    }
    info.free_block = next;
    Ok(n)
}

/// A block holds nothing any more.
fn give_block<B: Blocks>(blocks: &mut B, info: &mut Info, n: u32) -> Result<(), B::Error> {
    let mut block = [0; BLOCK_SIZE];
    put32(&mut block, 0, info.free_block);
    write(blocks, n, &block)?;
    info.free_block = n;
    Ok(())
}

fn read<B: Blocks>(blocks: &mut B, n: u32) -> Result<Block, B::Error> {
    blocks.read(n).map_err(QuotaError::Blocks)
}

fn write<B: Blocks>(blocks: &mut B, n: u32, block: &Block) -> Result<(), B::Error> {
    blocks.write(n, block).map_err(QuotaError::Blocks)
}
