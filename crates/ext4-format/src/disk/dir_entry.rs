//! Linear directory blocks: entries one after the other that fill the block, on volumes with
//! metadata checksums up to a tail of 12 bytes.
//!
//! An entry is `inode, rec_len, name_len, file_type, name`; `rec_len` leads to the next one and is a
//! multiple of 4. An entry with inode 0 is free space. Without the `filetype` feature the byte of
//! the type is the high byte of a 16-bit name length, and always 0.
//!
//! Everything that walks a block validates each entry before it is used.

mod search;

use steadfs_base::limits::NAME_MAX;
use steadfs_vfs::FileKind;

use super::features::Incompat;
use super::hash::NameHash;
use super::num::{get16, get32, high32, idx, low8, low16, low32, put16, put32, wide};
use super::{ChecksumSeed, DiskError, Geometry, Ino, Result, Structure};

pub use search::{
    Found, Room, Search, insert_at, locate, locate_by, locate_inline, remove_found, search,
    search_by, search_inline,
};

/// Bytes of the hash behind the name of an entry, where [`DirLayout::has_hashes`] (`ext4_dir_entry_hash`).
const HASH_SIZE: usize = 8;
/// Bytes of an entry before its name.
pub const HEADER_SIZE: usize = 8;
/// Bytes of the checksum tail (`ext4_dir_entry_tail`).
pub const TAIL_SIZE: usize = 12;
/// Type byte of the tail, which no entry has (`EXT4_FT_DIR_CSUM`).
pub const TAIL_FILE_TYPE: u8 = 0xDE;

/// Bytes an entry with a name of `name_len` bytes needs where it has no hash: [`DirLayout::entry_size`].
pub const fn entry_size(name_len: usize) -> usize {
    (HEADER_SIZE + name_len + 3) & !3
}

/// The facts of a volume and a directory that the directory's blocks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirLayout {
    /// Bytes in a block.
    pub block_size: usize,
    /// Whether blocks end with a checksum tail.
    pub has_tail: bool,
    /// Whether entries have a type.
    pub has_file_type: bool,
    /// Largest inode number.
    pub inodes_count: u32,
    /// Whether entries other than `.` and `..` end with the hash of their name: in encrypted, case-insensitive directories
    /// (`ext4_hash_in_dirent`).
    pub has_hashes: bool,
}

impl DirLayout {
    /// The layout on this volume.
    pub fn of(geo: &Geometry) -> Self {
        Self {
            block_size: geo.block_size.bytes(),
            has_tail: geo.seed.enabled(),
            has_file_type: geo.has_incompat(Incompat::FILETYPE),
            inodes_count: geo.inodes_count,
            has_hashes: false,
        }
    }

    /// Bytes an entry with a name of `name_len` bytes needs.
    pub const fn entry_size(&self, name_len: usize) -> usize {
        entry_size(name_len) + if self.has_hashes { HASH_SIZE } else { 0 }
    }

    /// Bytes of a block that entries fill.
    pub const fn entries_end(&self) -> usize {
        if self.has_tail {
            self.block_size - TAIL_SIZE
        } else {
            self.block_size
        }
    }

    /// From `rec_len` as stored to bytes. 64 KiB blocks need 65536, which is stored as 65535 (by
    /// some writers as 0). Any other length that is not a multiple of 4 is invalid, and the walk finds that.
    pub const fn decode_rec_len(&self, stored: u16) -> usize {
        if self.block_size == 65536 && (stored == u16::MAX || stored == 0) {
            65536
        } else {
            idx(super::num::join16(0, stored))
        }
    }

    /// From bytes to `rec_len` as stored.
    pub fn encode_rec_len(&self, bytes: usize) -> u16 {
        assert!(
            bytes <= self.block_size && bytes.is_multiple_of(4),
            "length of an entry that cannot be stored"
        );
        u16::try_from(bytes).unwrap_or(u16::MAX)
    }
}

/// A validated entry of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEntry<'a> {
    /// Where in the block it starts.
    pub offset: usize,
    /// Bytes to the next one.
    pub rec_len: usize,
    /// The inode; `None` for free space.
    pub ino: Option<Ino>,
    /// Type byte (0 without the `filetype` feature).
    pub file_type: u8,
    /// The name; free space may have the remains of one.
    pub name: &'a [u8],
}

impl RawEntry<'_> {
    /// The kind by its type byte.
    pub const fn kind(&self) -> Option<FileKind> {
        FileKind::from_entry_type(self.file_type)
    }

    /// Whether it is in use and has this name. Compares the ends first, where most names differ.
    #[inline(always)]
    pub fn is_named(&self, name: &[u8]) -> bool {
        self.ino.is_some()
            && self.name.len() == name.len()
            && self.name.last_chunk::<8>() == name.last_chunk::<8>()
            && self.name == name
    }

    /// Bytes that another entry could use.
    pub const fn spare(&self, layout: &DirLayout) -> usize {
        match self.ino {
            None => self.rec_len,
            // `.` has no hash.
            Some(_) => self
                .rec_len
                .saturating_sub(layout.entry_size(self.name.len())),
        }
    }

    /// The hash behind the name, in the block that has the entry; zeros where there is none.
    pub fn stored_hash(&self, block: &[u8]) -> NameHash {
        let at = self.offset + entry_size(self.name.len());
        let is_there =
            at + HASH_SIZE <= self.offset + self.rec_len && at + HASH_SIZE <= block.len();
        let word = |at| if is_there { get32(block, at) } else { 0 };
        NameHash {
            major: word(at),
            minor: word(at + 4),
        }
    }
}

fn bad(offset: usize, rule: &'static str) -> DiskError {
    DiskError::entry(Structure::DirBlock, low32(wide(offset)), rule)
}

/// Decodes and validates the entry at `offset`, of entries that end at `end`.
#[inline(always)]
fn entry_at<'a>(
    layout: &DirLayout,
    block: &'a [u8],
    offset: usize,
    end: usize,
) -> Result<RawEntry<'a>> {
    match parse_fast(layout, block, offset, end) {
        Some(entry) => Ok(entry),
        None => parse_checked(layout, block, offset, end),
    }
}

/// The entry, if its header alone shows that it is in use and valid. That is the case for almost every entry, and a
/// search of a large directory reads hundreds of them.
#[inline(always)]
fn parse_fast<'a>(
    layout: &DirLayout,
    block: &'a [u8],
    offset: usize,
    end: usize,
) -> Option<RawEntry<'a>> {
    let rest = &block[offset..end];
    let head = u64::from_le_bytes(*rest.first_chunk::<HEADER_SIZE>()?);
    let (ino, lengths) = (low32(head), high32(head));
    let rec_len = usize::from(low16(lengths));
    let [_, _, name_len, file_type] = lengths.to_le_bytes();
    let name_end = HEADER_SIZE + usize::from(name_len);
    // Encoded lengths are no multiples of 4 or too short, and take the other path (see `decode_rec_len`).
    let good = layout.has_file_type
        && !layout.has_hashes
        && ino.wrapping_sub(1) < layout.inodes_count
        && name_len > 0
        && rec_len.is_multiple_of(4)
        && rec_len >= name_end
        && rec_len <= rest.len();
    good.then(|| RawEntry {
        offset,
        rec_len,
        ino: Some(Ino(ino)),
        file_type,
        name: &rest[HEADER_SIZE..name_end],
    })
}

/// The entry, or what is wrong with it.
#[cold]
fn parse_checked<'a>(
    layout: &DirLayout,
    block: &'a [u8],
    offset: usize,
    end: usize,
) -> Result<RawEntry<'a>> {
    // Offsets are multiples of 4 and below `end`, but a header needs 8 bytes.
    if end - offset < HEADER_SIZE {
        return Err(bad(offset, "leaves no room for an entry"));
    }
    let rec_len = layout.decode_rec_len(get16(block, offset + 4));
    let ino = get32(block, offset);
    let (name_len, file_type) = if layout.has_file_type {
        (usize::from(block[offset + 6]), block[offset + 7])
    } else {
        (usize::from(get16(block, offset + 6)), 0)
    };
    if rec_len < HEADER_SIZE || !rec_len.is_multiple_of(4) {
        return Err(bad(offset, "has an impossible length"));
    }
    if rec_len > end - offset {
        return Err(bad(offset, "goes beyond the block"));
    }
    if ino == 0 {
        // The remains of a name in free space may be longer than the space.
        let shown = name_len.min(rec_len - HEADER_SIZE);
        return Ok(RawEntry {
            offset,
            rec_len,
            ino: None,
            file_type,
            name: &block[offset + HEADER_SIZE..offset + HEADER_SIZE + shown],
        });
    }
    if name_len == 0 || name_len > NAME_MAX {
        return Err(bad(offset, "has an impossible name length"));
    }
    let name = &block[offset + HEADER_SIZE..end.min(offset + HEADER_SIZE + name_len)];
    let needed = match name {
        b"." | b".." => entry_size(name_len),
        _ => layout.entry_size(name_len),
    };
    if needed > rec_len {
        return Err(bad(offset, "is too short for its name"));
    }
    if ino > layout.inodes_count {
        return Err(bad(offset, "names an inode that does not exist"));
    }
    Ok(RawEntry {
        offset,
        rec_len,
        ino: Some(Ino(ino)),
        file_type,
        name,
    })
}

/// The entries of a block, free space included; stops after the first error.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    layout: DirLayout,
    block: &'a [u8],
    offset: usize,
    end: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<RawEntry<'a>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.end {
            return None;
        }
        let entry = entry_at(&self.layout, self.block, self.offset, self.end);
        self.offset = match &entry {
            Ok(entry) => entry.offset + entry.rec_len,
            Err(_) => self.end,
        };
        Some(entry)
    }
}

/// Walks the entries of a whole linear block.
pub fn entries<'a>(layout: &DirLayout, block: &'a [u8]) -> Entries<'a> {
    assert_eq!(block.len(), layout.block_size);
    entries_in(layout, block, 0, layout.entries_end())
}

/// Walks the entries that fill `start..end` of `block`: inline directories, and the
/// first two entries of an index root. Offsets are relative to `block`'s start.
pub fn entries_in<'a>(
    layout: &DirLayout,
    block: &'a [u8],
    start: usize,
    end: usize,
) -> Entries<'a> {
    assert!(start <= end && end <= block.len());
    Entries {
        layout: *layout,
        block,
        offset: start,
        end,
    }
}

/// Finds `name` in a block.
pub fn find<'a>(layout: &DirLayout, block: &'a [u8], name: &[u8]) -> Result<Option<RawEntry<'a>>> {
    for entry in entries(layout, block) {
        let entry = entry?;
        if entry.is_named(name) {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Whether a linear block has no names besides `.` and `..`.
pub fn is_empty(layout: &DirLayout, block: &[u8]) -> Result<bool> {
    for entry in entries(layout, block) {
        let entry = entry?;
        if entry.ino.is_some() && entry.name != b"." && entry.name != b".." {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A name to be inserted.
#[derive(Clone, Copy, Debug)]
pub struct NewEntry<'a> {
    /// The inode.
    pub ino: Ino,
    /// Its kind (not stored without the `filetype` feature).
    pub kind: FileKind,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
    /// Its hash, where [`DirLayout::has_hashes`].
    pub hash: Option<NameHash>,
}

fn write_entry(
    layout: &DirLayout,
    block: &mut [u8],
    offset: usize,
    rec_len: usize,
    entry: &NewEntry<'_>,
) {
    let len = entry.name.len();
    assert!((1..=NAME_MAX).contains(&len) && entry_size(len) <= rec_len && entry.ino.0 != 0);
    put32(block, offset, entry.ino.0);
    put16(block, offset + 4, layout.encode_rec_len(rec_len));
    block[offset + 6] = low8(low32(wide(len)));
    block[offset + 7] = if layout.has_file_type {
        entry.kind.entry_type()
    } else {
        0
    };
    let name_at = offset + HEADER_SIZE;
    block[name_at..name_at + len].copy_from_slice(entry.name);
    // The padding of the name, so that no old content remains there.
    let end = offset + entry_size(len);
    block[name_at + len..end].fill(0);
    if let Some(hash) = entry.hash {
        assert!(layout.has_hashes && layout.entry_size(len) <= rec_len);
        put32(block, end, hash.major);
        put32(block, end + 4, hash.minor);
    }
}

fn write_free(layout: &DirLayout, block: &mut [u8], offset: usize, rec_len: usize) {
    put32(block, offset, 0);
    put16(block, offset + 4, layout.encode_rec_len(rec_len));
    put16(block, offset + 6, 0);
}

/// Makes a block without entries. Seal it afterwards.
pub fn init_empty(layout: &DirLayout, block: &mut [u8]) {
    assert_eq!(block.len(), layout.block_size);
    init_free(layout, &mut block[..layout.entries_end()]);
    init_tail(layout, block);
}

/// Makes one piece of free space of these bytes, whose number is a multiple of 4 and not below [`HEADER_SIZE`].
pub fn init_free(layout: &DirLayout, bytes: &mut [u8]) {
    bytes.fill(0);
    write_free(layout, bytes, 0, bytes.len());
}

/// Makes the first block of a directory: `.` and `..`. Seal it afterwards.
pub fn init_first(layout: &DirLayout, block: &mut [u8], own: Ino, parent: Ino) {
    assert_eq!(block.len(), layout.block_size);
    block.fill(0);
    let dot = NewEntry {
        ino: own,
        kind: FileKind::Directory,
        name: b".",
        hash: None,
    };
    let dotdot = NewEntry {
        ino: parent,
        kind: FileKind::Directory,
        name: b"..",
        hash: None,
    };
    let first = entry_size(1);
    write_entry(layout, block, 0, first, &dot);
    write_entry(layout, block, first, layout.entries_end() - first, &dotdot);
    init_tail(layout, block);
}

/// Inserts an entry and returns its offset; `None` if there is no room. The caller has made sure that the name does not
/// exist. Seal the block afterwards.
pub fn insert(layout: &DirLayout, block: &mut [u8], entry: &NewEntry<'_>) -> Result<Option<usize>> {
    let needed = layout.entry_size(entry.name.len());
    for old in entries(layout, block) {
        let old = old?;
        if old.spare(layout) >= needed {
            let room = Room::in_entry(layout, &old);
            insert_at(layout, block, &room, entry);
            return Ok(Some(room.place()));
        }
    }
    Ok(None)
}

/// Removes the entry at `offset`, which [`find`] or the walk returned: its space goes to the entry
/// before it, or stays as free space at the block's start. The name's bytes are wiped. Seal the
/// block afterwards.
pub fn remove(layout: &DirLayout, block: &mut [u8], offset: usize) -> Result<()> {
    let mut before = None;
    let mut target = None;
    for entry in entries(layout, block) {
        let entry = entry?;
        if entry.offset == offset {
            target = Some(entry.rec_len);
            break;
        }
        before = Some((entry.offset, entry.rec_len));
    }
    let Some(rec_len) = target else {
        return Err(bad(offset, "is not there"));
    };
    take_out(layout, block, offset, rec_len, before);
    Ok(())
}

fn take_out(
    layout: &DirLayout,
    block: &mut [u8],
    offset: usize,
    rec_len: usize,
    before: Option<(usize, usize)>,
) {
    block[offset..offset + rec_len].fill(0);
    match before {
        Some((at, len)) => put16(block, at + 4, layout.encode_rec_len(len + rec_len)),
        None => write_free(layout, block, offset, rec_len),
    }
}

/// Points the entry at `offset` (returned by [`find`]) to another inode. Seal the block afterwards.
pub fn set_target(layout: &DirLayout, block: &mut [u8], offset: usize, ino: Ino, kind: FileKind) {
    assert!(ino.0 != 0 && offset + HEADER_SIZE <= layout.entries_end());
    put32(block, offset, ino.0);
    if layout.has_file_type {
        block[offset + 7] = kind.entry_type();
    }
}

/// Fills a block with entries one after the other: for splitting blocks and writing new ones.
#[derive(Debug)]
pub struct Packer<'a> {
    layout: DirLayout,
    block: &'a mut [u8],
    /// Offset and size of the last entry.
    last: Option<(usize, usize)>,
}

impl<'a> Packer<'a> {
    /// Starts with an empty block (whatever was in it is gone).
    pub fn new(layout: &DirLayout, block: &'a mut [u8]) -> Self {
        init_empty(layout, block);
        Self {
            layout: *layout,
            block,
            last: None,
        }
    }

    fn next(&self) -> usize {
        self.last.map_or(0, |(offset, size)| offset + size)
    }

    /// Appends an entry, with its hash where [`DirLayout::has_hashes`]; false where it does not fit.
    pub fn push(&mut self, ino: Ino, file_type: u8, name: &[u8], hash: Option<NameHash>) -> bool {
        let needed = match hash {
            Some(_) => self.layout.entry_size(name.len()),
            None => entry_size(name.len()),
        };
        let (at, size) = (self.next(), needed);
        if size > self.layout.entries_end() - at {
            return false;
        }
        let entry = NewEntry {
            ino,
            kind: FileKind::Regular,
            name,
            hash,
        };
        write_entry(&self.layout, self.block, at, size, &entry);
        // The type byte is kept, even an unknown one.
        self.block[at + 7] = file_type;
        self.last = Some((at, size));
        true
    }

    /// Gives what is left of the block to the last entry. Seal the block afterwards.
    pub fn finish(self) {
        if let Some((offset, _)) = self.last {
            let rec_len = self
                .layout
                .encode_rec_len(self.layout.entries_end() - offset);
            put16(self.block, offset + 4, rec_len);
        }
    }
}

fn init_tail(layout: &DirLayout, block: &mut [u8]) {
    if layout.has_tail {
        let at = layout.entries_end();
        block[at..].fill(0);
        put16(block, at + 4, low16(low32(wide(TAIL_SIZE))));
        block[at + 7] = TAIL_FILE_TYPE;
    }
}

/// Whether the block ends with a well-formed tail (true also where it needs none).
pub fn has_valid_tail(layout: &DirLayout, block: &[u8]) -> bool {
    if !layout.has_tail {
        return true;
    }
    let tail = &block[layout.entries_end()..];
    get32(tail, 0) == 0
        && usize::from(get16(tail, 4)) == TAIL_SIZE
        && tail[6] == 0
        && tail[7] == TAIL_FILE_TYPE
}

/// Verifies a linear block's checksum. `seed` is the directory's.
pub fn verify(layout: &DirLayout, seed: ChecksumSeed, block: &[u8]) -> Result<()> {
    assert_eq!(block.len(), layout.block_size);
    if !seed.enabled() {
        return Ok(());
    }
    let at = layout.entries_end();
    if !has_valid_tail(layout, block) {
        return Err(bad(at, "is not the checksum tail"));
    }
    seed.over(&block[..at])
        .compare(Structure::DirBlock, get32(block, at + 8), u32::MAX)
}

/// Writes a linear block's tail and checksum. `seed` is the directory's.
pub fn seal(layout: &DirLayout, seed: ChecksumSeed, block: &mut [u8]) {
    assert_eq!(block.len(), layout.block_size);
    let at = layout.entries_end();
    if let Some(sum) = seed.over(&block[..at]).value() {
        init_tail(layout, block);
        put32(block, at + 8, sum);
    }
}

#[cfg(test)]
mod tests;
