//! Inodes: one block each. Fixed fields, extra fields with `extra_attr`, then words that hold the addresses of the
//! first blocks or inline content, with the inline xattr area at their end; five node ids; the footer.

use std::ops::Range;

use steadfs_base::Timestamp;
use steadfs_base::endian::{Le32, Le64};
use steadfs_vfs::{FileKind, InodeFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub use super::raw::{RawInode, RawInodeExtra};

use super::dentry::DentryLayout;
use super::node::{Fanout, Footer, PER_NODE};
use super::num::{as_signed64, as_unsigned64, get32, idx, idx16, low16, put32, short};
use super::{BLOCK_SIZE, BlockAddr, DiskError, Features, Layout, Nid, Result, Structure};

mod checksummed;
mod raw_bits;

pub use checksummed::{seal, verify_checksum};
pub use raw_bits::{Advise, CompressAlgorithm, Inline};

/// Bytes of the fixed fields; extra fields or addresses follow.
pub const FIXED: usize = size_of::<RawInode>();
/// Bytes of all known extra fields (`F2FS_TOTAL_EXTRA_ATTR_SIZE`).
pub const EXTRA: usize = size_of::<RawInodeExtra>();
/// Words after the fixed fields (`DEF_ADDRS_PER_INODE`).
pub const WORDS: u16 = 923;
/// Words of the inline xattr area in inodes that do not store its size (`DEFAULT_INLINE_XATTR_ADDRS`).
pub const DEFAULT_XATTR_WORDS: u16 = 50;
/// The longest name stored in an inode.
pub const NAME_MAX: usize = 255;

const NIDS_AT: usize = FIXED + 4 * 923;
/// Words of inline content that are not used: the first (`DEF_INLINE_RESERVED_SIZE`).
const INLINE_RESERVED: u16 = 1;
/// Valid values of `i_inline_xattr_size`.
pub const XATTR_WORDS: std::ops::RangeInclusive<u16> = 6..=WORDS - 9 - INLINE_RESERVED - 10;

const _: () = assert!(NIDS_AT + 20 == super::node::FOOTER_AT && EXTRA == 36);

/// The largest extent of a file (`struct f2fs_extent`): a cache of the block map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// First block of the file.
    pub file_block: u32,
    /// Its device block.
    pub addr: BlockAddr,
    /// Number of blocks; 0 for none.
    pub len: u32,
}

/// The compression parameters of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compression {
    /// Blocks saved.
    pub saved_blocks: u64,
    /// The stored algorithm number.
    pub algorithm: u8,
    /// log2 of the blocks per cluster: 2 to 8.
    pub log_cluster: u8,
    /// Bit 0: clusters have a checksum; bits 8 to 15: level.
    pub flags: u16,
}

impl Compression {
    /// Bit of `flags`: clusters have a checksum.
    pub const CHECKSUM: u16 = 1;
    /// Sizes of clusters, as log2 of their blocks.
    pub const LOG_CLUSTERS: std::ops::RangeInclusive<u8> = 2..=8;

    /// The parameters of a file that compression begins for.
    pub fn new(algorithm: CompressAlgorithm, level: u8, log_cluster: u8, checksum: bool) -> Self {
        Self {
            saved_blocks: 0,
            algorithm: algorithm.number(),
            log_cluster,
            flags: (u16::from(level) << 8) | (u16::from(checksum) * Self::CHECKSUM),
        }
    }
}

/// The decoded fields of an inode, without addresses, content and node ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inode {
    /// Type and permission bits.
    pub mode: u16,
    /// Hints (`i_advise`).
    pub advise: Advise,
    /// What is stored in the inode (`i_inline`).
    pub inline: Inline,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of the file: data, nodes and the inode.
    pub blocks: u64,
    /// Access time.
    pub atime: Timestamp,
    /// Time of the last inode change.
    pub ctime: Timestamp,
    /// Time of the last content change.
    pub mtime: Timestamp,
    /// Birth time, if the inode has the field.
    pub btime: Option<Timestamp>,
    /// Differs between two uses of one inode number.
    pub generation: u32,
    /// Levels of a directory's hash table. For a pinned file: how often GC met its blocks.
    pub depth: u32,
    /// The xattr node, or 0.
    pub xattr_nid: Nid,
    /// `i_flags`.
    pub flags: InodeFlags,
    /// The directory that it was created in or moved to (`i_pino`).
    pub parent: Nid,
    /// Its name in that directory, at most 255 bytes.
    pub name: Vec<u8>,
    /// The hash of an encrypted name in a case-insensitive directory, which cannot be computed from it; else 0.
    pub name_hash: u32,
    /// `i_dir_level`: log2 of the buckets on the first level.
    pub dir_level: u8,
    /// The cached extent.
    pub extent: Extent,
    /// Bytes of extra fields; 0 without `extra_attr`.
    pub extra_isize: u16,
    /// Words of the inline xattr area, if the inode stores it (`i_inline_xattr_size`).
    pub xattr_words: u16,
    /// Project id.
    pub project: u32,
    /// Compression parameters, if the inode has the fields.
    pub compression: Option<Compression>,
}

fn bad(field: &'static str, value: impl Into<u64>, rule: &'static str) -> DiskError {
    DiskError::field(Structure::Inode, field, value, rule)
}

impl Inode {
    /// Decodes, verifies and validates an inode and its footer.
    pub fn parse(layout: &Layout, nid: Nid, block: &[u8]) -> Result<Self> {
        Footer::parse(block).check(nid, nid)?;
        verify_checksum(layout, block).map_err(|e| e.in_node(nid))?;
        let inode = Self::decode(layout, block).map_err(|e| e.in_node(nid))?;
        inode.validate(layout, nid).map_err(|e| e.in_node(nid))?;
        Ok(inode)
    }

    /// Decodes an inode. Validates only what decoding needs (`i_extra_isize`, `i_namelen`).
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
            return Err(bad("i_namelen", len, "longer than a name can be"));
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
            name_hash: match Advise(raw.advise).contains(Advise::ENCRYPTED_NAME) {
                true => hash_after(&raw.name, idx(len)),
                false => 0,
            },
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

    /// Validates the fields of an inode that is in use.
    pub fn validate(&self, layout: &Layout, nid: Nid) -> Result<()> {
        let Some(kind) = self.kind() else {
            return Err(bad("i_mode", self.mode, "no file type"));
        };
        if self.blocks == 0 {
            return Err(bad("i_blocks", self.blocks, "less than the inode itself"));
        }
        if self.xattr_nid == nid || (self.xattr_nid.0 != 0 && !layout.is_nid(self.xattr_nid)) {
            return Err(bad("i_xattr_nid", self.xattr_nid.0, "not a valid node id"));
        }
        // Inodes of sload.f2fs 1.15 have no inline xattr area although the flag is set; that is harmless.
        let words = self.xattr_words;
        if words != 0 && !XATTR_WORDS.contains(&words) {
            return Err(bad(
                "i_inline_xattr_size",
                words,
                "not a valid size of the inline xattr area",
            ));
        }
        let data = self.inline.contains(Inline::DATA);
        if data && !matches!(kind, FileKind::Regular | FileKind::Symlink) {
            return Err(bad(
                "i_inline",
                self.inline.0,
                "inline data in an inode that cannot have it",
            ));
        }
        if data && kind == FileKind::Regular && self.advise.contains(Advise::ENCRYPTED) {
            let rule = "inline data in an encrypted file";
            return Err(bad("i_inline", self.inline.0, rule));
        }
        if data && self.is_compressed(layout) {
            let rule = "inline data in a compressed file";
            return Err(bad("i_inline", self.inline.0, rule));
        }
        if self.inline.contains(Inline::DENTRIES) && kind != FileKind::Directory {
            return Err(bad(
                "i_inline",
                self.inline.0,
                "inline directory entries in an inode that is not a directory",
            ));
        }
        if kind == FileKind::Directory && self.depth > super::hash::MAX_DEPTH {
            return Err(bad(
                "i_current_depth",
                self.depth,
                "more levels than a hash table can have",
            ));
        }
        self.validate_compression(layout)?;
        let limit = if data {
            super::num::wide(self.inline_range(layout).len())
        } else {
            self.fanout(layout).max_blocks() * super::num::wide(BLOCK_SIZE)
        };
        if self.size > limit && kind != FileKind::Directory {
            return Err(bad(
                "i_size",
                self.size,
                "more than a file with this map can have",
            ));
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
                if !Compression::LOG_CLUSTERS.contains(&how.log_cluster) {
                    return Err(bad("i_log_cluster_size", how.log_cluster, "not 2 to 8"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Writes the fields into an inode's block; addresses, content, node ids and footer stay. The block of a new
    /// inode must be zeros. Call [`seal`] after setting the footer.
    ///
    /// # Errors
    /// The name is longer than the field.
    pub fn encode_into(&self, layout: &Layout, block: &mut [u8]) -> Result<()> {
        assert_eq!(block.len(), BLOCK_SIZE);
        if self.name.len() > NAME_MAX {
            let len = super::num::wide(self.name.len());
            return Err(bad("i_namelen", len, "longer than a name can be"));
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
        if let Some((hash, _)) = raw.name[self.name.len()..].split_first_chunk_mut() {
            *hash = self.name_hash.to_le_bytes();
        }
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

    /// The flags that ioctls report: those in `i_flags`, and those derived from hints and inline bits.
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

    /// Whether a slot with this value counts in the file's blocks: all but holes, and but the marks of compressed
    /// clusters after F2FS_IOC_RELEASE_COMPRESS_BLOCKS.
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

    /// Whether the inode has the fields for compression.
    pub fn has_compression(&self, layout: &Layout) -> bool {
        layout.has(Features::COMPRESSION) && self.extra_isize >= 36
    }

    /// Whether the inode has the field for a project id.
    pub fn has_project(&self, layout: &Layout) -> bool {
        layout.has(Features::PROJECT_QUOTA) && self.extra_isize >= 8
    }

    /// The file type, if the mode is valid.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode.into())
    }

    /// Whether its content may be in compressed clusters: a regular file with the flag and the fields.
    pub fn is_compressed(&self, layout: &Layout) -> bool {
        layout.has(Features::COMPRESSION)
            && self.flags.contains(InodeFlags::COMPRESSED)
            && self.compression.is_some()
            && self.kind() == Some(FileKind::Regular)
    }

    fn stores_xattr_words(&self, layout: &Layout) -> bool {
        layout.has(Features::FLEXIBLE_INLINE_XATTR) && self.inline.contains(Inline::EXTRA)
    }

    /// Words of the inline xattr area.
    pub fn xattr_space(&self, layout: &Layout) -> u16 {
        if self.stores_xattr_words(layout) {
            self.xattr_words
        } else if self.inline.contains(Inline::XATTR) || self.inline.contains(Inline::DENTRIES) {
            DEFAULT_XATTR_WORDS
        } else {
            0
        }
    }

    /// Words after the extra fields.
    fn words(&self) -> u16 {
        WORDS.saturating_sub(self.extra_isize / 4)
    }

    /// Words for addresses or inline content.
    fn content_words(&self, layout: &Layout) -> u16 {
        self.words().saturating_sub(self.xattr_space(layout))
    }

    /// Number of blocks that each of its nodes maps.
    pub fn fanout(&self, layout: &Layout) -> Fanout {
        let whole = |count: u32| match self.compression {
            // The shift is at most 8 in a validated inode; another one must not panic here.
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

    /// The bytes of the inode's block with inline content or inline directory entries.
    pub fn inline_range(&self, layout: &Layout) -> Range<usize> {
        let start = FIXED + idx16(self.extra_isize) + 4 * idx16(INLINE_RESERVED);
        let words = self.content_words(layout).saturating_sub(INLINE_RESERVED);
        start..start + 4 * idx16(words)
    }

    /// The layout of inline directory entries.
    pub fn inline_dentries(&self, layout: &Layout) -> DentryLayout {
        DentryLayout::of(self.inline_range(layout).len())
    }

    /// The bytes of the inode's block with the inline xattr area; may be empty.
    pub fn xattr_range(&self, layout: &Layout) -> Range<usize> {
        if !self.inline.contains(Inline::XATTR) {
            return NIDS_AT..NIDS_AT;
        }
        NIDS_AT - 4 * idx16(self.xattr_space(layout))..NIDS_AT
    }

    /// The address in a slot of the inode.
    pub fn addr(&self, layout: &Layout, block: &[u8], slot: u16) -> BlockAddr {
        BlockAddr(get32(block, self.addr_at(layout, slot)))
    }

    /// Stores an address in the inode.
    pub fn set_addr(&self, layout: &Layout, block: &mut [u8], slot: u16, addr: BlockAddr) {
        put32(block, self.addr_at(layout, slot), addr.0);
    }

    fn addr_at(&self, layout: &Layout, slot: u16) -> usize {
        assert!(
            slot < self.content_words(layout),
            "the slot is within the inode"
        );
        FIXED + idx16(self.extra_isize) + 4 * idx16(slot)
    }

    /// The device number of a device node in Linux's 32-bit `makedev` encoding: stored in the old 16-bit form in
    /// the first address, or in the new form in the second.
    pub fn rdev(&self, layout: &Layout, block: &[u8]) -> u32 {
        match self.addr(layout, block, 0).0 {
            0 => self.addr(layout, block, 1).0,
            // Major and minor numbers of 8 bits are the same in the new encoding.
            old => old & 0xFFFF,
        }
    }

    /// Stores a device number; as in the kernel, in the old form if major and minor fit 8 bits.
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

/// What follows a name of this length; 0 where it has no room.
fn hash_after(name: &[u8; NAME_MAX], len: usize) -> u32 {
    let hash = name[len..].first_chunk();
    hash.map_or(0, |hash| u32::from_le_bytes(*hash))
}

fn put_stamp(secs: &mut Le64, nanos: &mut Le32, time: Timestamp) {
    secs.set(as_unsigned64(time.secs));
    nanos.set(time.nanos);
}

/// The extra fields; zeros if the inode has none.
fn read_extra(layout: &Layout, inline: Inline, rest: &[u8]) -> Result<RawInodeExtra> {
    let mut extra = RawInodeExtra::new_zeroed();
    if !inline.contains(Inline::EXTRA) {
        return Ok(extra);
    }
    if !layout.has(Features::EXTRA_ATTR) {
        return Err(bad(
            "i_inline",
            inline.0,
            "set on a volume without extra_attr",
        ));
    }
    let size = u16::from_le_bytes([rest[0], rest[1]]);
    // Newer kernels may have more fields than are known here; addresses follow them.
    if size < 4 || !size.is_multiple_of(4) || idx16(size) > EXTRA {
        return Err(bad(
            "i_extra_isize",
            size,
            "not a valid size of the extra fields",
        ));
    }
    extra.as_mut_bytes()[..idx16(size)].copy_from_slice(&rest[..idx16(size)]);
    Ok(extra)
}

/// Bytes of extra fields in new inodes of a volume, as mkfs.f2fs and the kernel choose them.
pub fn extra_isize_for(layout: &Layout) -> u16 {
    if layout.has(Features::EXTRA_ATTR) {
        low16(short(EXTRA))
    } else {
        0
    }
}

#[cfg(test)]
mod tests;
