//! The staged blocks of a resize: the content of the new areas, in free segments of the main area or behind it.
//!
//! **Problem.** The new tables lie where the old ones are, so there is a time at which neither the old nor the new volume is
//! complete.
//!
//! **Rule.** This is a redo log. All content is written to segments that neither size uses, each with its home and its
//! checksum, and made durable. Then both superblocks are marked ([`Resizing`]), and only then is anything written home;
//! the superblocks of the new size are the last: first with the mark, so that what a power cut leaves of the very last
//! writes mixes no sizes. Of the two copies one is whole at any time. Writing home can be repeated: nothing that is written
//! home is read.
//!
//! A staged segment has two blocks with a header and entries, then the blocks. Blocks of zeros have no content:
//!
//! ```text
//! magic │ id │ next segment │ number of entries │ checksum │ entries: home, blocks of zeros or 0, checksum │ blocks …
//! ```

use steadfs_base::is_zero;

use super::disk::Disk;
use super::{ResizeError, Result};
use crate::disk::num::{get32, join32, put32};
use crate::disk::superblock::{Resizing, SUPERBLOCK_OFFSET};
use crate::disk::{BLOCK_SIZE, BlockAddr, SEGMENT_BLOCKS, Superblock, checksum};

const MAGIC: [u8; 8] = *b"SFSTAGED";
/// Blocks of header and entries.
const HEAD_BLOCKS: u32 = 2;
const HEAD_BYTES: usize = HEAD_BLOCKS as usize * BLOCK_SIZE;
/// Bytes of the header.
const HEADER_BYTES: usize = 32;
/// Offset of the header's checksum, which covers header and entries.
const SUM_AT: usize = 24;
const ENTRY_BYTES: usize = 12;
/// Entries of a segment, and blocks with content.
const ENTRIES_MAX: usize = (HEAD_BYTES - HEADER_BYTES) / ENTRY_BYTES;
const CONTENTS_MAX: u32 = SEGMENT_BLOCKS - HEAD_BLOCKS;
/// Blocks written home that are compared by one read.
pub(super) const COMPARED_MAX: usize = 64;
/// Blocks that hold the superblocks.
const SUPERBLOCKS: u32 = 2;

/// Where content belongs.
#[derive(Clone, Copy)]
struct Entry {
    home: u32,
    /// Number of blocks of zeros; 0 for one block with content.
    zeros: u32,
    sum: u32,
}

/// Writes staged blocks.
pub(super) struct Staging {
    id: u64,
    /// Segments that can be used, by their first blocks; the next one is the last.
    free: Vec<BlockAddr>,
    first: BlockAddr,
    at: BlockAddr,
    entries: Vec<Entry>,
    contents: u32,
}

fn no_room() -> ResizeError {
    ResizeError::refused(
        "too few segments of 2 MiB are free for a copy of the new tables: remove files, or grow the volume further",
    )
}

impl Staging {
    /// `free` is the list of segments that neither the old nor the new volume uses.
    pub(super) fn new(id: u64, mut free: Vec<BlockAddr>) -> Result<Self> {
        let first = free.pop().ok_or_else(no_room)?;
        Ok(Self {
            id,
            free,
            first,
            at: first,
            entries: Vec::new(),
            contents: 0,
        })
    }

    /// Stages consecutive blocks, except for those that their homes have already.
    pub(super) fn put_run(
        &mut self,
        disk: &mut Disk<'_>,
        home: BlockAddr,
        blocks: &[Vec<u8>],
    ) -> Result<()> {
        let present = disk.read(home, blocks.len() as u32)?;
        let pairs = present.chunks_exact(BLOCK_SIZE).zip(blocks);
        for (n, (_, block)) in (0..).zip(pairs).filter(|(_, (old, new))| old != new) {
            self.put(disk, home.plus(n), block)?;
        }
        Ok(())
    }

    /// Stages a block.
    pub(super) fn put(&mut self, disk: &mut Disk<'_>, home: BlockAddr, block: &[u8]) -> Result<()> {
        if is_zero(block) {
            return self.put_zeros(disk, home, 1);
        }
        self.make_room(disk)?;
        let at = self.at.plus(HEAD_BLOCKS + self.contents);
        disk.put(at, block)?;
        self.contents += 1;
        self.entries.push(Entry {
            home: home.0,
            zeros: 0,
            sum: checksum::of(block),
        });
        Ok(())
    }

    /// Stages blocks of zeros.
    pub(super) fn put_zeros(
        &mut self,
        disk: &mut Disk<'_>,
        home: BlockAddr,
        count: u32,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        if let Some(last) = self.entries.last_mut()
            && last.zeros > 0
            && last.home + last.zeros == home.0
        {
            last.zeros += count;
            return Ok(());
        }
        self.make_room(disk)?;
        self.entries.push(Entry {
            home: home.0,
            zeros: count,
            sum: 0,
        });
        Ok(())
    }

    fn make_room(&mut self, disk: &mut Disk<'_>) -> Result<()> {
        if self.entries.len() < ENTRIES_MAX && self.contents < CONTENTS_MAX {
            return Ok(());
        }
        let next = self.free.pop().ok_or_else(no_room)?;
        self.write_head(disk, next)?;
        self.at = next;
        Ok(())
    }

    fn write_head(&mut self, disk: &mut Disk<'_>, next: BlockAddr) -> Result<()> {
        let mut head = vec![0; HEAD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[8..16].copy_from_slice(&self.id.to_le_bytes());
        put32(&mut head, 16, next.0);
        put32(&mut head, 20, self.entries.len() as u32);
        for (n, entry) in self.entries.drain(..).enumerate() {
            let at = HEADER_BYTES + n * ENTRY_BYTES;
            put32(&mut head, at, entry.home);
            put32(&mut head, at + 4, entry.zeros);
            put32(&mut head, at + 8, entry.sum);
        }
        let sum = checksum::of(&head);
        put32(&mut head, SUM_AT, sum);
        for (n, block) in head.chunks(BLOCK_SIZE).enumerate() {
            disk.put(self.at.plus(n as u32), block)?;
        }
        self.contents = 0;
        Ok(())
    }

    /// Ends the list and makes it durable. The result is for the superblocks.
    pub(super) fn finish(mut self, disk: &mut Disk<'_>) -> Result<Resizing> {
        self.write_head(disk, BlockAddr::NULL)?;
        disk.flush()?;
        Ok(Resizing {
            id: self.id,
            staged: self.first,
        })
    }
}

/// A staged segment that was read back.
struct Segment {
    next: BlockAddr,
    entries: Vec<Entry>,
    blocks: steadfs_block::Buf,
}

fn unusable(at: BlockAddr) -> ResizeError {
    ResizeError::Unusable(format!(
        "the interrupted resize cannot be finished: its copy of the new tables is damaged at block {at}; \
         restore the volume from a backup"
    ))
}

impl Segment {
    fn read(disk: &Disk<'_>, mark: Resizing, at: BlockAddr) -> Result<Self> {
        let end = u64::from(at.0) + u64::from(SEGMENT_BLOCKS);
        if at.0 < SUPERBLOCKS || end > disk.blocks() {
            return Err(unusable(at));
        }
        let mut head = disk.read(at, HEAD_BLOCKS)?.to_vec();
        let sum = get32(&head, SUM_AT);
        put32(&mut head, SUM_AT, 0);
        let id = join32(get32(&head, 12), get32(&head, 8));
        let count = get32(&head, 20) as usize;
        if !head.starts_with(&MAGIC)
            || id != mark.id
            || sum != checksum::of(&head)
            || count > ENTRIES_MAX
        {
            return Err(unusable(at));
        }
        let entry = |n: usize| {
            let at = HEADER_BYTES + n * ENTRY_BYTES;
            Entry {
                home: get32(&head, at),
                zeros: get32(&head, at + 4),
                sum: get32(&head, at + 8),
            }
        };
        let entries: Vec<Entry> = (0..count).map(entry).collect();
        let contents = entries.iter().filter(|entry| entry.zeros == 0).count();
        if contents > CONTENTS_MAX as usize {
            return Err(unusable(at));
        }
        let found = Self {
            next: BlockAddr(get32(&head, 16)),
            blocks: match contents {
                0 => steadfs_block::Buf::zeroed(0),
                _ => disk.read(at.plus(HEAD_BLOCKS), contents as u32)?,
            },
            entries,
        };
        let good = |(entry, block): (&Entry, Option<&[u8]>)| {
            let end = u64::from(entry.home) + u64::from(entry.zeros.max(1));
            end <= disk.blocks() && block.is_none_or(|block| checksum::of(block) == entry.sum)
        };
        let is_good = found.homes().all(good);
        is_good.then_some(found).ok_or_else(|| unusable(at))
    }

    /// The entries with their content; `None` for zeros.
    fn homes(&self) -> impl Iterator<Item = (&Entry, Option<&[u8]>)> {
        let mut blocks = self.blocks.chunks_exact(BLOCK_SIZE);
        self.entries.iter().map(move |entry| {
            let block = if entry.zeros == 0 {
                blocks.next()
            } else {
                None
            };
            (entry, block)
        })
    }
}

/// Calls `visit` with every staged segment.
fn each(
    disk: &mut Disk<'_>,
    mark: Resizing,
    mut visit: impl FnMut(&mut Disk<'_>, &Segment) -> Result<()>,
) -> Result<()> {
    let mut at = mark.staged;
    loop {
        let segment = Segment::read(disk, mark, at)?;
        visit(disk, &segment)?;
        match segment.next {
            BlockAddr::NULL => return Ok(()),
            // Segments are used from the last one down.
            next if next >= at => return Err(unusable(next)),
            next => at = next,
        }
    }
}

/// Reads all staged blocks back.
///
/// # Errors
/// [`ResizeError::Unusable`]: they are not what was staged.
pub(super) fn verify(disk: &mut Disk<'_>, mark: Resizing) -> Result<()> {
    each(disk, mark, |_, _| Ok(()))
}

/// Writes all staged blocks home, the superblocks last, after every one of them has been verified. `second_is_torn`: the
/// first copy of the superblock must not be written before the second one has the mark.
pub(super) fn write_home(disk: &mut Disk<'_>, mark: Resizing, second_is_torn: bool) -> Result<()> {
    verify(disk, mark)?;
    let mut superblocks = [None, None];
    each(disk, mark, |disk, segment| {
        for (entry, block) in segment.homes() {
            match block {
                Some(block) if entry.home < SUPERBLOCKS => {
                    superblocks[entry.home as usize] = Some(block.to_vec());
                }
                Some(block) => disk.put(BlockAddr(entry.home), block)?,
                None => disk.zero(entry.home, entry.zeros)?,
            }
        }
        Ok(())
    })?;
    disk.flush()?;
    let [Some(first), Some(second)] = superblocks else {
        return Err(unusable(mark.staged));
    };
    let new = Superblock::parse(&first[SUPERBLOCK_OFFSET..])?;
    let marked = mark.encode(&new);
    let order = if second_is_torn { [1, 0] } else { [0, 1] };
    for copy in order {
        disk.put_superblock(copy, &marked)?;
    }
    for (copy, block) in [(0, first), (1, second)] {
        disk.put(BlockAddr(copy), &block)?;
        disk.flush()?;
    }
    Ok(())
}
