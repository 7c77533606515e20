//! Inodes: a block each. Fixed fields, extra fields where the volume has them, then words that are
//! addresses of the first blocks, or the content itself, with room for attributes at the end; five
//! node ids; the footer.

use std::ops::Range;

use steadfs_base::Timestamp;
use steadfs_base::endian::{Le32, Le64};
use steadfs_vfs::{FileKind, InodeFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub use super::raw::{RawInode, RawInodeExtra};

use super::dentry::DentryLayout;
use super::node::{Fanout, Footer, PER_NODE};
use super::num::{as_signed64, as_unsigned64, get32, idx, idx16, low16, put32, short};
use super::{BLOCK_SIZE, BlockAddr, DiskError, Features, Layout, Nid, Result, Structure, checksum};

mod raw_bits;

pub use raw_bits::{Advise, CompressAlgorithm, Inline};

/// Bytes of the fixed fields: where extra fields or addresses begin.
pub const FIXED: usize = size_of::<RawInode>();
/// Bytes of all extra fields known (`F2FS_TOTAL_EXTRA_ATTR_SIZE`).
pub const EXTRA: usize = size_of::<RawInodeExtra>();
/// Words behind the fixed fields (`DEF_ADDRS_PER_INODE`).
pub const WORDS: u16 = 923;
/// Words for attributes in inodes that do not say (`DEFAULT_INLINE_XATTR_ADDRS`).
pub const DEFAULT_XATTR_WORDS: u16 = 50;
/// Longest name in an inode.
pub const NAME_MAX: usize = 255;

const NIDS_AT: usize = FIXED + 4 * 923;
const CHECKSUM_AT: usize = FIXED + 8;
const GENERATION_AT: usize = 68;
/// Words of content that are never used: the first (`DEF_INLINE_RESERVED_SIZE`).
const INLINE_RESERVED: u16 = 1;
/// The fewest and the most words for attributes that an inode may name.
pub const XATTR_WORDS: std::ops::RangeInclusive<u16> = 6..=WORDS - 9 - INLINE_RESERVED - 10;

const _: () = assert!(NIDS_AT + 20 == super::node::FOOTER_AT && EXTRA == 36);

/// The largest piece of a file that lies in one piece (`struct f2fs_extent`): a cache, not the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// First block of the file.
    pub file_block: u32,
    /// Where it lies.
    pub addr: BlockAddr,
    /// Blocks; 0 for none.
    pub len: u32,
}

/// How a compressed file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Blocks saved.
    pub saved_blocks: u64,
    /// By which algorithm, as stored.
    pub algorithm: u8,
    /// Blocks in a cluster, as a power of two: 2 to 8.
    pub log_cluster: u8,
    /// Bit 0: clusters have a checksum; bits 8 to 15: level.
    pub flags: u16,
}

/// An inode as plain numbers, without what lies behind its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inode {
    /// Type and permission bits.
    pub mode: u16,
    /// Hints (`i_advise`).
    pub advise: Advise,
    /// What lies in the inode (`i_inline`).
    pub inline: Inline,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of the file: data, nodes and the inode itself.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Birth, where the inode has room for it.
    pub btime: Option<Timestamp>,
    /// Differs between two lives of one inode number.
    pub generation: u32,
    /// Levels of a directory's hash table; of a pinned file how often cleaning met it.
    pub depth: u32,
    /// The node of attributes, or 0.
    pub xattr_nid: Nid,
    /// Flags (`i_flags`), as users see them.
    pub flags: InodeFlags,
    /// The directory it was made in (`i_pino`).
    pub parent: Nid,
    /// The name it was made with, at most 255 bytes.
    pub name: Vec<u8>,
    /// Levels that the directory's hash table begins with.
    pub dir_level: u8,
    /// Cached extent.
    pub extent: Extent,
    /// Bytes of extra fields; 0 on volumes without them.
    pub extra_isize: u16,
    /// Words for attributes where inodes say it themselves (`i_inline_xattr_size`).
    pub xattr_words: u16,
    /// Project.
    pub project: u32,
    /// How it is compressed, where the inode has room to say it.
    pub compression: Option<Compression>,
}

fn bad(field: &'static str, value: impl Into<u64>, rule: &'static str) -> DiskError {
    DiskError::field(Structure::Inode, field, value, rule)
}

impl Inode {
    /// Decodes, verifies and validates an inode, its footer included.
    pub fn parse(layout: &Layout, nid: Nid, block: &[u8]) -> Result<Self> {
        Footer::parse(block).check(nid, nid)?;
        verify_checksum(layout, block).map_err(|e| e.in_node(nid))?;
        let inode = Self::decode(layout, block).map_err(|e| e.in_node(nid))?;
        inode.validate(layout, nid).map_err(|e| e.in_node(nid))?;
        Ok(inode)
    }

    /// Decodes without judging more than what decoding itself needs (`i_extra_isize`, `i_namelen`).
    pub fn decode(layout: &Layout, block: &[u8]) -> Result<Self> {
        assert_eq!(block.len(), BLOCK_SIZE);
        let (raw, rest) = RawInode::ref_from_prefix(block).expect("a block holds an inode");
        let inline = Inline(raw.inline);
        let extra = read_extra(layout, inline, rest)?;
        let extra_isize = extra.extra_isize.get();
        let has = |feature, end| layout.has(feature) && extra_isize >= end;
        let stamp = |secs: Le64, nanos: Le32| Timestamp {
            secs: as_signed64(secs.get()),
            nanos: nanos.get().min(999_999_999),
        };
        let len = raw.namelen.get();
        if idx(len) > NAME_MAX {
            return Err(bad("i_namelen", len, "more than a name has"));
        }
        Ok(Self {
            mode: raw.mode.get(),
            advise: Advise(raw.advise),
            inline,
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            links: raw.links.get(),
            size: raw.size.get(),
            blocks: raw.blocks.get(),
            atime: stamp(raw.atime, raw.atime_nsec),
            ctime: stamp(raw.ctime, raw.ctime_nsec),
            mtime: stamp(raw.mtime, raw.mtime_nsec),
            btime: has(Features::INODE_CRTIME, 24).then(|| stamp(extra.crtime, extra.crtime_nsec)),
            generation: raw.generation.get(),
            depth: raw.current_depth.get(),
            xattr_nid: Nid(raw.xattr_nid.get()),
            flags: InodeFlags(raw.flags.get()),
            parent: Nid(raw.pino.get()),
            name: raw.name[..idx(len)].to_vec(),
            dir_level: raw.dir_level,
            extent: Extent {
                file_block: raw.ext_fofs.get(),
                addr: BlockAddr(raw.ext_blk_addr.get()),
                len: raw.ext_len.get(),
            },
            extra_isize,
            xattr_words: if has(Features::FLEXIBLE_INLINE_XATTR, 4) {
                extra.inline_xattr_size.get()
            } else {
                0
            },
            project: if has(Features::PROJECT_QUOTA, 8) {
                extra.projid.get()
            } else {
                0
            },
            compression: has(Features::COMPRESSION, 36).then(|| Compression {
                saved_blocks: extra.compr_blocks.get(),
                algorithm: extra.compress_algorithm,
                log_cluster: extra.log_cluster_size,
                flags: extra.compress_flag.get(),
            }),
        })
    }

    /// Whether the fields make sense for an inode that is in use.
    pub fn validate(&self, layout: &Layout, nid: Nid) -> Result<()> {
        let Some(kind) = self.kind() else {
            return Err(bad("i_mode", self.mode, "no type"));
        };
        if self.blocks == 0 {
            return Err(bad("i_blocks", self.blocks, "not even the inode"));
        }
        if self.xattr_nid == nid || (self.xattr_nid.0 != 0 && !layout.is_nid(self.xattr_nid)) {
            return Err(bad("i_xattr_nid", self.xattr_nid.0, "not a possible node"));
        }
        // Inodes of sload.f2fs 1.15 have no room though they say that attributes lie there: harmless.
        let words = self.xattr_words;
        if words != 0 && !XATTR_WORDS.contains(&words) {
            return Err(bad("i_inline_xattr_size", words, "not a possible room"));
        }
        let data = self.inline.contains(Inline::DATA);
        if data && !matches!(kind, FileKind::Regular | FileKind::Symlink) {
            return Err(bad("i_inline", self.inline.0, "content in such an inode"));
        }
        if self.inline.contains(Inline::DENTRIES) && kind != FileKind::Directory {
            return Err(bad("i_inline", self.inline.0, "entries in no directory"));
        }
        if kind == FileKind::Directory && self.depth > super::hash::MAX_DEPTH {
            return Err(bad(
                "i_current_depth",
                self.depth,
                "more levels than there can be",
            ));
        }
        self.validate_compression(layout)?;
        let limit = if data {
            super::num::wide(self.inline_range(layout).len())
        } else {
            self.fanout(layout).max_blocks() * super::num::wide(BLOCK_SIZE)
        };
        if self.size > limit && kind != FileKind::Directory {
            return Err(bad("i_size", self.size, "more than such a file can have"));
        }
        Ok(())
    }

    fn validate_compression(&self, layout: &Layout) -> Result<()> {
        if !self.flags.contains(InodeFlags::COMPRESSED) || !layout.has(Features::COMPRESSION) {
            return Ok(());
        }
        match self.compression {
            Some(how) if self.kind() == Some(FileKind::Regular) => {
                if CompressAlgorithm::from_number(how.algorithm).is_none() {
                    return Err(bad("i_compress_algorithm", how.algorithm, "unknown"));
                }
                if !(2..=8).contains(&how.log_cluster) {
                    return Err(bad("i_log_cluster_size", how.log_cluster, "not 2 to 8"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Writes the fields into an inode's block; addresses, content, node ids and footer stay. Fill the
    /// block of a new inode with zeros first, and [`seal`] when it has its place in the log.
    ///
    /// # Errors
    /// The name is longer than the field.
    pub fn encode_into(&self, layout: &Layout, block: &mut [u8]) -> Result<()> {
        assert_eq!(block.len(), BLOCK_SIZE);
        if self.name.len() > NAME_MAX {
            let len = super::num::wide(self.name.len());
            return Err(bad("i_namelen", len, "more than a name has"));
        }
        let (raw, rest) = RawInode::mut_from_prefix(block).expect("a block holds an inode");
        raw.mode.set(self.mode);
        raw.advise = self.advise.0;
        raw.inline = self.inline.0;
        raw.uid.set(self.uid);
        raw.gid.set(self.gid);
        raw.links.set(self.links);
        raw.size.set(self.size);
        raw.blocks.set(self.blocks);
        put_stamp(&mut raw.atime, &mut raw.atime_nsec, self.atime);
        put_stamp(&mut raw.ctime, &mut raw.ctime_nsec, self.ctime);
        put_stamp(&mut raw.mtime, &mut raw.mtime_nsec, self.mtime);
        raw.generation.set(self.generation);
        raw.current_depth.set(self.depth);
        raw.xattr_nid.set(self.xattr_nid.0);
        raw.flags.set(self.flags.0);
        raw.pino.set(self.parent.0);
        raw.namelen.set(short(self.name.len()));
        raw.name.fill(0);
        raw.name[..self.name.len()].copy_from_slice(&self.name);
        raw.dir_level = self.dir_level;
        raw.ext_fofs.set(self.extent.file_block);
        raw.ext_blk_addr.set(self.extent.addr.0);
        raw.ext_len.set(self.extent.len);
        if self.inline.contains(Inline::EXTRA) {
            self.encode_extra(layout, rest);
        }
        Ok(())
    }

    fn encode_extra(&self, layout: &Layout, rest: &mut [u8]) {
        let len = idx16(self.extra_isize).min(EXTRA);
        let mut extra = RawInodeExtra::new_zeroed();
        extra.as_mut_bytes()[..len].copy_from_slice(&rest[..len]);
        extra.extra_isize.set(self.extra_isize);
        if layout.has(Features::FLEXIBLE_INLINE_XATTR) {
            extra.inline_xattr_size.set(self.xattr_words);
        }
        if layout.has(Features::PROJECT_QUOTA) {
            extra.projid.set(self.project);
        }
        if let (Some(btime), true) = (self.btime, layout.has(Features::INODE_CRTIME)) {
            put_stamp(&mut extra.crtime, &mut extra.crtime_nsec, btime);
        }
        if let (Some(how), true) = (self.compression, layout.has(Features::COMPRESSION)) {
            extra.compr_blocks.set(how.saved_blocks);
            extra.compress_algorithm = how.algorithm;
            extra.log_cluster_size = how.log_cluster;
            extra.compress_flag.set(how.flags);
        }
        rest[..len].copy_from_slice(&extra.as_bytes()[..len]);
    }

    /// Flags as users see them: those stored, and those that are hints or bits elsewhere.
    pub fn visible_flags(&self) -> InodeFlags {
        let mut flags = self.flags;
        if self.advise.contains(Advise::ENCRYPTED) {
            flags = flags.union(InodeFlags::ENCRYPTED);
        }
        if self.advise.contains(Advise::VERITY) {
            flags = flags.union(InodeFlags::VERITY);
        }
        if self.inline.contains(Inline::DATA) || self.inline.contains(Inline::DENTRIES) {
            flags = flags.union(InodeFlags::INLINE_DATA);
        }
        if self.inline.contains(Inline::PINNED) {
            flags = flags.union(InodeFlags::NOCOW);
        }
        flags
    }

    /// Whether a slot with this value counts as one of the file's blocks: all do but holes, and the marks of
    /// compressed clusters once the blocks that compression saved were given back.
    pub fn counts(&self, addr: BlockAddr) -> bool {
        match addr {
            BlockAddr::NULL => false,
            BlockAddr::COMPRESSED => !self.inline.contains(Inline::COMPRESS_RELEASED),
            _ => true,
        }
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: InodeFlags) -> bool {
        self.flags.contains(flag)
    }

    /// Whether there is room for a project.
    pub fn has_project(&self, layout: &Layout) -> bool {
        layout.has(Features::PROJECT_QUOTA) && self.extra_isize >= 8
    }

    /// The type, if the mode has one.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode.into())
    }

    /// Whether its content may lie in compressed clusters: regular, flagged, and with room to say how.
    pub fn is_compressed(&self, layout: &Layout) -> bool {
        layout.has(Features::COMPRESSION)
            && self.flags.contains(InodeFlags::COMPRESSED)
            && self.compression.is_some()
            && self.kind() == Some(FileKind::Regular)
    }

    fn stores_xattr_words(&self, layout: &Layout) -> bool {
        layout.has(Features::FLEXIBLE_INLINE_XATTR) && self.inline.contains(Inline::EXTRA)
    }

    /// Words kept for attributes at the end of the words.
    pub fn xattr_space(&self, layout: &Layout) -> u16 {
        if self.stores_xattr_words(layout) {
            self.xattr_words
        } else if self.inline.contains(Inline::XATTR) || self.inline.contains(Inline::DENTRIES) {
            DEFAULT_XATTR_WORDS
        } else {
            0
        }
    }

    /// Words behind the extra fields.
    fn words(&self) -> u16 {
        WORDS.saturating_sub(self.extra_isize / 4)
    }

    /// Words that are addresses (or content).
    fn content_words(&self, layout: &Layout) -> u16 {
        self.words().saturating_sub(self.xattr_space(layout))
    }

    /// How many blocks each of its nodes maps.
    pub fn fanout(&self, layout: &Layout) -> Fanout {
        let whole = |count: u32| match self.compression {
            // A shift of at most 8 was checked; a wild one must not panic before that.
            Some(how) if self.is_compressed(layout) => {
                count >> how.log_cluster.min(31) << how.log_cluster.min(31)
            }
            _ => count,
        };
        Fanout {
            inode: whole(self.content_words(layout).into()),
            direct: whole(PER_NODE).max(1),
        }
    }

    /// Bytes of the inode's block that hold content or entries, where the inode holds them itself.
    pub fn inline_range(&self, layout: &Layout) -> Range<usize> {
        let start = FIXED + idx16(self.extra_isize) + 4 * idx16(INLINE_RESERVED);
        let words = self.content_words(layout).saturating_sub(INLINE_RESERVED);
        start..start + 4 * idx16(words)
    }

    /// Layout of entries in the inode.
    pub fn inline_dentries(&self, layout: &Layout) -> DentryLayout {
        DentryLayout::of(self.inline_range(layout).len())
    }

    /// Bytes of the inode's block that hold attributes; empty where there is no room.
    pub fn xattr_range(&self, layout: &Layout) -> Range<usize> {
        if !self.inline.contains(Inline::XATTR) {
            return NIDS_AT..NIDS_AT;
        }
        NIDS_AT - 4 * idx16(self.xattr_space(layout))..NIDS_AT
    }

    /// The address of the file's block in `slot` of the inode.
    pub fn addr(&self, layout: &Layout, block: &[u8], slot: u16) -> BlockAddr {
        BlockAddr(get32(block, self.addr_at(layout, slot)))
    }

    /// Stores an address in the inode.
    pub fn set_addr(&self, layout: &Layout, block: &mut [u8], slot: u16, addr: BlockAddr) {
        put32(block, self.addr_at(layout, slot), addr.0);
    }

    fn addr_at(&self, layout: &Layout, slot: u16) -> usize {
        assert!(slot < self.content_words(layout), "a slot of the inode");
        FIXED + idx16(self.extra_isize) + 4 * idx16(slot)
    }

    /// The device number of a device node, in Linux's 32-bit `makedev` encoding: the old 16-bit form
    /// in the first address, or the new one in the second.
    pub fn rdev(&self, layout: &Layout, block: &[u8]) -> u32 {
        match self.addr(layout, block, 0).0 {
            0 => self.addr(layout, block, 1).0,
            // Major and minor of 8 bits each lie the same way in the new encoding.
            old => old & 0xFFFF,
        }
    }

    /// Stores a device number; the old form where major and minor fit 8 bits, as the kernel does.
    pub fn set_rdev(&self, layout: &Layout, block: &mut [u8], rdev: u32) {
        let (old, new) = if rdev <= 0xFFFF { (rdev, 0) } else { (0, rdev) };
        self.set_addr(layout, block, 0, BlockAddr(old));
        self.set_addr(layout, block, 1, BlockAddr(new));
    }
}

/// One of the five node ids (0 and 1 direct, 2 and 3 indirect, 4 double indirect).
pub fn nid_at(block: &[u8], slot: u16) -> Nid {
    assert!(block.len() == BLOCK_SIZE && slot < 5);
    Nid(get32(block, NIDS_AT + 4 * idx16(slot)))
}

/// Stores one of the five node ids.
pub fn set_nid_at(block: &mut [u8], slot: u16, nid: Nid) {
    assert!(block.len() == BLOCK_SIZE && slot < 5);
    put32(block, NIDS_AT + 4 * idx16(slot), nid.0);
}

fn put_stamp(secs: &mut Le64, nanos: &mut Le32, time: Timestamp) {
    secs.set(as_unsigned64(time.secs));
    nanos.set(time.nanos);
}

/// The extra fields, zero where the inode has none.
fn read_extra(layout: &Layout, inline: Inline, rest: &[u8]) -> Result<RawInodeExtra> {
    let mut extra = RawInodeExtra::new_zeroed();
    if !inline.contains(Inline::EXTRA) {
        return Ok(extra);
    }
    if !layout.has(Features::EXTRA_ATTR) {
        return Err(bad(
            "i_inline",
            inline.0,
            "extra fields on a volume without",
        ));
    }
    let size = u16::from_le_bytes([rest[0], rest[1]]);
    // More than is known: newer programs put fields behind, and addresses behind those.
    if size < 4 || !size.is_multiple_of(4) || idx16(size) > EXTRA {
        return Err(bad("i_extra_isize", size, "not the extra fields' size"));
    }
    extra.as_mut_bytes()[..idx16(size)].copy_from_slice(&rest[..idx16(size)]);
    Ok(extra)
}

/// Whether this inode's block has a checksum.
fn has_checksum(layout: &Layout, block: &[u8]) -> bool {
    layout.has(Features::INODE_CHECKSUM)
        && Inline(block[3]).contains(Inline::EXTRA)
        && u16::from_le_bytes([block[FIXED], block[FIXED + 1]]) >= 12
}

fn compute(layout: &Layout, block: &[u8]) -> u32 {
    let nid = Footer::parse(block).ino;
    let generation = get32(block, GENERATION_AT);
    let seed = checksum::seed_of_inode(layout.checksum_seed, nid, generation);
    let sum = checksum::over(seed, &block[..CHECKSUM_AT]);
    let sum = checksum::over(sum, &[0; 4]);
    checksum::over(sum, &block[CHECKSUM_AT + 4..])
}

/// Compares an inode's stored checksum with its block, where it has one.
pub fn verify_checksum(layout: &Layout, block: &[u8]) -> Result<()> {
    assert_eq!(block.len(), BLOCK_SIZE);
    if !has_checksum(layout, block) {
        return Ok(());
    }
    let (stored, computed) = (get32(block, CHECKSUM_AT), compute(layout, block));
    if stored != computed {
        return Err(DiskError::checksum(Structure::Inode, stored, computed));
    }
    Ok(())
}

/// Sets an inode's checksum, where it has one. The checksum covers the footer: seal last.
pub fn seal(layout: &Layout, block: &mut [u8]) {
    assert_eq!(block.len(), BLOCK_SIZE);
    if has_checksum(layout, block) {
        let sum = compute(layout, block);
        put32(block, CHECKSUM_AT, sum);
    }
}

/// The bytes of extra fields that new inodes of a volume have: as mkfs.f2fs and the kernel choose them.
pub fn extra_isize_for(layout: &Layout) -> u16 {
    if layout.has(Features::EXTRA_ATTR) {
        low16(short(EXTRA))
    } else {
        0
    }
}

#[cfg(test)]
mod tests;
