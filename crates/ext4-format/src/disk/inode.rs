//! Inodes: the 128 bytes of every volume, and if the inode size allows it the extra fields
//! (nanoseconds, birth time, project) and small extended attributes.

use steadfs_base::endian::{Le16, Le32};
use steadfs_base::{DevBlock, Timestamp};
use steadfs_vfs::{FileKind, InodeFlags};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::features::{Incompat, RoCompat};
use super::num::{get16, get32, high16, high32, join16, join32, low16, low32, mid16, put16};
use super::{ChecksumSeed, DiskError, Geometry, Ino, Result, Structure, time, xattr};

/// Bytes of `i_block`.
pub const I_BLOCK_SIZE: usize = 60;
/// Most links of an inode that is not a directory with `dir_nlink` (`EXT4_LINK_MAX`).
pub const LINK_MAX: u16 = 65000;

/// Journal the file's data too (`EXT4_JOURNAL_DATA_FL`).
pub const JOURNAL_DATA: InodeFlags = InodeFlags(0x4000);
/// `i_blocks` counts file-system blocks (`EXT4_HUGE_FILE_FL`); [`Inode`] does not show it.
pub const HUGE_FILE: InodeFlags = InodeFlags(0x4_0000);
/// The inode is the value of a large extended attribute (`EXT4_EA_INODE_FL`).
pub const EA_INODE: InodeFlags = InodeFlags(0x20_0000);
/// Content is in the inode (`EXT4_INLINE_DATA_FL`).
pub const INLINE_DATA: InodeFlags = InodeFlags(0x1000_0000);

/// Whether the slot holds an inode with links: one in use.
pub fn has_links(slot: &[u8]) -> bool {
    get16(slot, 0x1A) != 0
}

/// The part every inode has; fields as in "Index Nodes" of the kernel's documentation, without `i_`.
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the documentation's")]
pub struct RawInode {
    pub mode: Le16,
    pub uid: Le16,
    pub size_lo: Le32,
    pub atime: Le32,
    pub ctime: Le32,
    pub mtime: Le32,
    pub dtime: Le32,
    pub gid: Le16,
    pub links_count: Le16,
    pub blocks_lo: Le32,
    pub flags: Le32,
    pub version: Le32,
    pub block: [u8; I_BLOCK_SIZE],
    pub generation: Le32,
    pub file_acl_lo: Le32,
    pub size_high: Le32,
    pub obso_faddr: Le32,
    pub blocks_high: Le16,
    pub file_acl_high: Le16,
    pub uid_high: Le16,
    pub gid_high: Le16,
    pub checksum_lo: Le16,
    pub reserved: Le16,
}

/// The extra fields; an inode has the first `i_extra_isize` bytes of them.
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the documentation's")]
pub struct RawInodeExtra {
    pub extra_isize: Le16,
    pub checksum_hi: Le16,
    pub ctime_extra: Le32,
    pub mtime_extra: Le32,
    pub atime_extra: Le32,
    pub crtime: Le32,
    pub crtime_extra: Le32,
    pub version_hi: Le32,
    pub projid: Le32,
}

pub(super) const BASE: usize = size_of::<RawInode>();
pub(super) const EXTRA: usize = size_of::<RawInodeExtra>();
const CHECKSUM_LO_AT: usize = 0x7C;
const CHECKSUM_HI_AT: usize = 0x82;

/// An inode as plain numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Type and permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Birth, where the inode has room for it.
    pub btime: Option<Timestamp>,
    /// When the inode was freed, in seconds; while it is on the orphan list the next one's number.
    pub dtime: u32,
    /// Number of names. A directory with more than 65 000 has 1.
    pub links: u16,
    /// Space used in units of 512 bytes, whatever the stored unit.
    pub blocks: u64,
    /// Flags without `HUGE_FILE`, which only concerns the stored form of `blocks`.
    pub flags: InodeFlags,
    /// Incremented by each change on mounts with `iversion`; 64 bits where there is room.
    pub version: u64,
    /// Differs each time the inode number is reused; part of the checksum of everything the inode owns.
    pub generation: u32,
    /// Block map, extent root, device number or short link target.
    pub block: [u8; I_BLOCK_SIZE],
    /// Block of extended attributes.
    pub file_acl: Option<DevBlock>,
    /// Bytes of extra fields.
    pub extra_isize: u16,
    /// Project id (0 where the inode has no room).
    pub project: u32,
    /// The area after the extra fields: in-inode attributes with their magic, or empty when there
    /// are none. See [`xattr`].
    pub xattr_area: Box<[u8]>,
}

impl Default for Inode {
    /// All zero: what a never used slot holds.
    fn default() -> Self {
        Self {
            mode: 0,
            uid: 0,
            gid: 0,
            size: 0,
            atime: Timestamp::default(),
            ctime: Timestamp::default(),
            mtime: Timestamp::default(),
            btime: None,
            dtime: 0,
            links: 0,
            blocks: 0,
            flags: InodeFlags::default(),
            version: 0,
            generation: 0,
            block: [0; I_BLOCK_SIZE],
            file_acl: None,
            extra_isize: 0,
            project: 0,
            xattr_area: Box::default(),
        }
    }
}

impl Inode {
    /// Decodes, verifies and validates an inode that is in use. `slot` has `inode_size` bytes.
    pub fn parse(geo: &Geometry, ino: Ino, slot: &[u8]) -> Result<Self> {
        Self::verify_checksum(geo, ino, slot).map_err(|e| e.in_inode(ino))?;
        let inode = Self::decode(geo, slot).map_err(|e| e.in_inode(ino))?;
        inode.validate(geo).map_err(|e| e.in_inode(ino))?;
        Ok(inode)
    }

    /// Decodes and validates only what decoding needs (`i_extra_isize`).
    pub fn decode(geo: &Geometry, slot: &[u8]) -> Result<Self> {
        assert_eq!(slot.len(), usize::from(geo.inode_size));
        let (raw, rest) = RawInode::ref_from_prefix(slot).expect("an inode has at least 128 bytes");
        let (extra, extra_isize) = read_extra(rest)?;
        let has = |end: usize| usize::from(extra_isize) >= end;
        let mode = raw.mode.get();
        let kind = FileKind::from_mode(mode.into());
        let wide_size = kind == Some(FileKind::Regular)
            || (kind == Some(FileKind::Directory) && geo.has_incompat(Incompat::LARGE_DIR));
        let size_high = if wide_size { raw.size_high.get() } else { 0 };
        let acl_high = if geo.has_64bit() {
            raw.file_acl_high.get()
        } else {
            0
        };
        let acl = join32(acl_high.into(), raw.file_acl_lo.get());
        let flags = InodeFlags(raw.flags.get());
        let stamp = |secs: Le32, extra: Le32, end: usize| {
            time::decode(secs.get(), has(end).then(|| extra.get()))
        };
        let area = &rest[usize::from(extra_isize).min(rest.len())..];
        Ok(Self {
            mode,
            uid: join16(raw.uid_high.get(), raw.uid.get()),
            gid: join16(raw.gid_high.get(), raw.gid.get()),
            size: join32(size_high, raw.size_lo.get()),
            ctime: stamp(raw.ctime, extra.ctime_extra, 8),
            mtime: stamp(raw.mtime, extra.mtime_extra, 12),
            atime: stamp(raw.atime, extra.atime_extra, 16),
            btime: has(20).then(|| stamp(extra.crtime, extra.crtime_extra, 24)),
            dtime: raw.dtime.get(),
            links: raw.links_count.get(),
            blocks: decode_blocks(geo, raw, flags),
            flags: InodeFlags(flags.0 & !HUGE_FILE.0),
            version: join32(
                if has(28) { extra.version_hi.get() } else { 0 },
                raw.version.get(),
            ),
            generation: raw.generation.get(),
            block: raw.block,
            file_acl: (acl != 0).then_some(DevBlock(acl)),
            extra_isize,
            project: if has(32) { extra.projid.get() } else { 0 },
            // Without extra fields there is no place where attributes could start.
            xattr_area: if extra_isize > 0 && xattr::has_magic(area) {
                area.into()
            } else {
                Box::default()
            },
        })
    }

    /// Whether the fields make sense for an inode that is in use.
    pub fn validate(&self, geo: &Geometry) -> Result<()> {
        let Some(kind) = self.kind() else {
            return Err(bad("i_mode", self.mode, "no type"));
        };
        let mapped = self.has(InodeFlags::EXTENTS);
        if self.has(INLINE_DATA) && (mapped || !geo.has_incompat(Incompat::INLINE_DATA)) {
            let rule = "inline data where there can be none";
            return Err(bad("i_flags", self.flags.0, rule));
        }
        if let Some(acl) = self.file_acl
            && !geo.is_data_range(acl, 1)
        {
            return Err(bad("i_file_acl", acl.0, "outside the volume"));
        }
        let limit = match kind {
            FileKind::Regular | FileKind::Directory => {
                geo.max_file_size(self.flags.contains(InodeFlags::EXTENTS))
            }
            FileKind::Symlink => geo.block_size.bytes_u64(),
            _ => u64::MAX,
        };
        if self.size > limit {
            return Err(bad("i_size", self.size, "more than such a file can have"));
        }
        Ok(())
    }

    /// Compares the stored checksum with the slot's content, where the volume has checksums.
    pub fn verify_checksum(geo: &Geometry, ino: Ino, slot: &[u8]) -> Result<()> {
        let (computed, high) = compute(geo, ino, slot);
        let low = get16(slot, CHECKSUM_LO_AT);
        if high {
            let stored = join16(get16(slot, CHECKSUM_HI_AT), low);
            computed.compare(Structure::Inode, stored, u32::MAX)
        } else {
            computed.compare(Structure::Inode, low.into(), 0xFFFF)
        }
    }

    /// Writes the inode into its slot and seals it.
    ///
    /// Bytes without a field here (author-reserved words, extra fields newer than this program) stay:
    /// fill the slot of a new inode with zeros first. The whole area after the extra fields is
    /// written: attributes, then zeros.
    ///
    /// # Errors
    /// `blocks` or the attributes do not fit; the slot is then unchanged.
    pub fn encode_into(&self, geo: &Geometry, ino: Ino, slot: &mut [u8]) -> Result<()> {
        assert_eq!(slot.len(), usize::from(geo.inode_size));
        let (blocks, huge) = encode_blocks(geo, self.blocks)?;
        let room = slot.len() - BASE;
        let extra_isize = usize::from(self.extra_isize);
        if extra_isize > room || !self.extra_isize.is_multiple_of(4) {
            return Err(bad("i_extra_isize", self.extra_isize, "beyond the inode"));
        }
        if self.xattr_area.len() > self.xattr_room(geo) {
            let len = super::num::wide(self.xattr_area.len());
            return Err(bad("in-inode attributes", len, "beyond the inode"));
        }
        let (base, rest) = slot.split_at_mut(BASE);
        let raw = RawInode::mut_from_bytes(base).expect("the base part has its size");
        self.encode_base(geo, raw, blocks, huge);
        if room > 0 {
            self.encode_extra(rest);
        }
        seal(geo, ino, slot);
        Ok(())
    }

    fn encode_base(&self, geo: &Geometry, raw: &mut RawInode, blocks: u64, huge: bool) {
        let has = |end: u16| self.extra_isize >= end;
        raw.mode.set(self.mode);
        raw.uid.set(low16(self.uid));
        raw.uid_high.set(high16(self.uid));
        raw.gid.set(low16(self.gid));
        raw.gid_high.set(high16(self.gid));
        raw.size_lo.set(low32(self.size));
        raw.size_high.set(high32(self.size));
        raw.atime.set(time::encode(self.atime, has(16)).0);
        raw.ctime.set(time::encode(self.ctime, has(8)).0);
        raw.mtime.set(time::encode(self.mtime, has(12)).0);
        raw.dtime.set(self.dtime);
        raw.links_count.set(self.links);
        raw.blocks_lo.set(low32(blocks));
        raw.blocks_high.set(mid16(blocks));
        let huge_bit = if huge { HUGE_FILE.0 } else { 0 };
        raw.flags.set(self.flags.0 & !HUGE_FILE.0 | huge_bit);
        raw.version.set(low32(self.version));
        raw.block = self.block;
        raw.generation.set(self.generation);
        let acl = self.file_acl.map_or(0, |block| block.0);
        raw.file_acl_lo.set(low32(acl));
        if geo.has_64bit() {
            raw.file_acl_high.set(mid16(acl));
        }
    }

    fn encode_extra(&self, rest: &mut [u8]) {
        let mut extra = RawInodeExtra::new_zeroed();
        let room = rest.len().min(EXTRA);
        extra.as_mut_bytes()[..room].copy_from_slice(&rest[..room]);
        extra.extra_isize.set(self.extra_isize);
        extra.ctime_extra.set(time::encode(self.ctime, true).1);
        extra.mtime_extra.set(time::encode(self.mtime, true).1);
        extra.atime_extra.set(time::encode(self.atime, true).1);
        let (secs, more) = time::encode(self.btime.unwrap_or_default(), true);
        extra.crtime.set(secs);
        extra.crtime_extra.set(more);
        extra.version_hi.set(high32(self.version));
        extra.projid.set(self.project);
        let end = usize::from(self.extra_isize);
        if end == 0 {
            // Only the size field itself; no field follows it.
            rest[..2].fill(0);
            return;
        }
        let len = end.min(EXTRA);
        rest[..len].copy_from_slice(&extra.as_bytes()[..len]);
        let area = &mut rest[end..];
        let area_start = self.xattr_area.len().min(area.len());
        area[..area_start].copy_from_slice(&self.xattr_area[..area_start]);
        area[area_start..].fill(0);
    }

    /// The type, if the mode has one.
    pub const fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(widen_mode(self.mode))
    }

    /// Whether a flag is set.
    pub const fn has(&self, flag: InodeFlags) -> bool {
        self.flags.contains(flag)
    }

    /// Seed of the checksums of everything this inode owns.
    pub fn seed(&self, geo: &Geometry, ino: Ino) -> ChecksumSeed {
        geo.seed.of_inode(ino, self.generation)
    }

    /// Units of 512 bytes of an attribute block, which `blocks` includes: a cluster.
    fn acl_blocks(&self, geo: &Geometry) -> u64 {
        if self.file_acl.is_some() {
            (geo.block_size.bytes_u64() / 512) << geo.cluster_bits
        } else {
            0
        }
    }

    /// Whether the inode can have attributes: in its own area, or in a block.
    pub fn may_have_attrs(&self) -> bool {
        !self.xattr_area.is_empty() || self.file_acl.is_some()
    }

    /// Whether a symbolic link's target is in `block`: it uses no block besides the attributes'. With `ea_inode` its
    /// size decides, as blocks of attribute inodes are counted, too. (Links marked with extents or inline data never
    /// have it there.)
    pub fn is_fast_symlink(&self, geo: &Geometry) -> bool {
        self.kind() == Some(FileKind::Symlink)
            && !self.has(INLINE_DATA)
            && !self.has(InodeFlags::EXTENTS)
            && (geo.has_incompat(Incompat::EA_INODE) || self.blocks == self.acl_blocks(geo))
            && self.size < super::num::wide(I_BLOCK_SIZE)
    }

    /// The target of a fast symbolic link, up to its size.
    pub fn fast_symlink_target(&self) -> &[u8] {
        let len = usize::try_from(self.size).unwrap_or(usize::MAX);
        &self.block[..len.min(I_BLOCK_SIZE)]
    }

    /// Device number of a device node in Linux's 32-bit `makedev` encoding: the old 16-bit form in
    /// the first word of `block`, or the new one in the second.
    pub fn rdev(&self) -> u32 {
        match get32(&self.block, 0) {
            0 => get32(&self.block, 4),
            // Major and minor of 8 bits each have the same positions in the new encoding.
            old => old & 0xFFFF,
        }
    }

    /// Stores a device number; the old form where major and minor fit 8 bits, as the kernel does.
    pub fn set_rdev(&mut self, rdev: u32) {
        self.block = [0; I_BLOCK_SIZE];
        let at = if rdev <= 0xFFFF { 0 } else { 4 };
        super::num::put32(&mut self.block, at, rdev);
    }

    /// Bytes after the extra fields: room for in-inode attributes, magic included.
    pub fn xattr_room(&self, geo: &Geometry) -> usize {
        let room = usize::from(geo.inode_size) - BASE;
        if self.extra_isize == 0 {
            return 0;
        }
        room.saturating_sub(self.extra_isize.into())
    }

    /// Whether nanoseconds and years after 2038 of every stamp can be stored.
    pub const fn has_wide_times(&self) -> bool {
        self.extra_isize >= 24
    }

    /// Whether there is a place for the project.
    pub const fn has_project(&self) -> bool {
        self.extra_isize >= 32
    }
}

const fn widen_mode(mode: u16) -> u32 {
    join16(0, mode)
}

fn bad(field: &'static str, value: impl Into<u64>, rule: &'static str) -> DiskError {
    DiskError::field(Structure::Inode, field, value, rule)
}

/// The extra fields, zero where the inode has none, and how many bytes of them it has.
fn read_extra(rest: &[u8]) -> Result<(RawInodeExtra, u16)> {
    let mut extra = RawInodeExtra::new_zeroed();
    if rest.is_empty() {
        return Ok((extra, 0));
    }
    let len = rest.len().min(EXTRA);
    extra.as_mut_bytes()[..len].copy_from_slice(&rest[..len]);
    let extra_isize = extra.extra_isize.get();
    if usize::from(extra_isize) > rest.len() || !extra_isize.is_multiple_of(4) {
        return Err(bad("i_extra_isize", extra_isize, "beyond the inode"));
    }
    Ok((extra, extra_isize))
}

fn decode_blocks(geo: &Geometry, raw: &RawInode, flags: InodeFlags) -> u64 {
    let low = u64::from(raw.blocks_lo.get());
    if !geo.has_ro_compat(RoCompat::HUGE_FILE) {
        return low;
    }
    let count = join32(raw.blocks_high.get().into(), raw.blocks_lo.get());
    if flags.contains(HUGE_FILE) {
        // 48 bits of blocks of at most 2^16 bytes: no overflow.
        count << (geo.block_size.bits() - 9)
    } else {
        count
    }
}

/// The 48-bit count to store and whether it counts file-system blocks.
fn encode_blocks(geo: &Geometry, blocks: u64) -> Result<(u64, bool)> {
    const LIMIT: u64 = 1 << 48;
    if blocks <= u32::MAX.into() {
        return Ok((blocks, false));
    }
    let rule = "more than the field holds";
    if !geo.has_ro_compat(RoCompat::HUGE_FILE) {
        return Err(bad("i_blocks", blocks, rule));
    }
    if blocks < LIMIT {
        return Ok((blocks, false));
    }
    let in_blocks = blocks >> (geo.block_size.bits() - 9);
    if in_blocks >= LIMIT {
        return Err(bad("i_blocks", blocks, rule));
    }
    Ok((in_blocks, true))
}

/// The checksum over a slot with its checksum fields taken as zero, and whether the slot has the
/// high field.
fn compute(geo: &Geometry, ino: Ino, slot: &[u8]) -> (ChecksumSeed, bool) {
    assert_eq!(slot.len(), usize::from(geo.inode_size));
    if !geo.seed.enabled() {
        return (ChecksumSeed::NONE, false);
    }
    let generation = get32(slot, 0x64);
    let seed = geo
        .seed
        .of_inode(ino, generation)
        .over(&slot[..CHECKSUM_LO_AT])
        .over(&[0, 0])
        .over(&slot[CHECKSUM_LO_AT + 2..BASE]);
    if slot.len() == BASE {
        return (seed, false);
    }
    if get16(slot, BASE) < 4 {
        return (seed.over(&slot[BASE..]), false);
    }
    let seed = seed
        .over(&slot[BASE..CHECKSUM_HI_AT])
        .over(&[0, 0])
        .over(&slot[CHECKSUM_HI_AT + 2..]);
    (seed, true)
}

/// Sets the checksum of a slot whose bytes were changed in place.
pub fn seal(geo: &Geometry, ino: Ino, slot: &mut [u8]) {
    let (seed, high) = compute(geo, ino, slot);
    if let Some(sum) = seed.value() {
        put16(slot, CHECKSUM_LO_AT, low16(sum));
        if high {
            put16(slot, CHECKSUM_HI_AT, high16(sum));
        }
    }
}

#[cfg(test)]
mod tests;
