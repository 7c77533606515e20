//! File content: where its blocks lie, reading, finding data and holes.

use std::ops::Range;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, IoHandle};
use steadfs_vfs::{Cx, FileKind, FsError, ReadData, Result, Seek};

use crate::disk::node::{self, NodePath, PER_NODE};
use crate::disk::{BLOCK_SIZE, BlockAddr, DiskError, Structure, inode};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;

pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;
/// Longest single read, in bytes.
pub(crate) const MAX_READ: u64 = 1 << 20;

/// Where blocks of a file lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: they read as zeros.
    Hole,
    /// Nowhere yet, but space for them is taken (fallocate): they read as zeros.
    Promised,
    /// One behind the other from here.
    At(BlockAddr),
    /// In a compressed cluster.
    Compressed,
}

/// Where blocks of a file lie, and how many of them lie so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Where.
    pub place: Place,
    /// Blocks, at least one.
    pub len: u64,
}

/// The node that maps a block.
enum Leaf {
    /// The inode itself: its block.
    Inode(Buf),
    /// A direct node.
    Node(Buf),
    /// None: so many blocks from the one asked for are a hole.
    Missing(u64),
}

/// A piece of a read, in file order.
enum Piece {
    Zeros(usize),
    Whole(Buf),
    /// Blocks on their way from the device.
    Device(IoHandle),
}

impl F2fs {
    /// Where a block of a file lies, and up to `limit` blocks behind it.
    pub(crate) fn map(&self, inode: &Inode, block: u64, limit: u64, tag: IoTag) -> Result<Mapped> {
        let Some(path) = inode.fanout.path(block) else {
            return Ok(Mapped {
                place: Place::Hole,
                len: limit.max(1),
            });
        };
        let leaf = match self.leaf(inode, &path, tag)? {
            Leaf::Missing(len) => {
                return Ok(Mapped {
                    place: Place::Hole,
                    len: len.min(limit).max(1),
                });
            }
            leaf => leaf,
        };
        let addr = |slot: u16| self.addr_in(inode, &leaf, slot);
        let slot = path.slots[path.depth];
        let whole = if path.depth == 0 {
            inode.fanout.inode
        } else {
            inode.fanout.direct
        };
        let left = u64::from(whole - u32::from(slot)).min(limit.max(1));
        self.run(inode, block, slot, left as u16, addr)
    }

    /// The address in a file's slot as it is stored, special values included.
    pub(crate) fn slot(&self, inode: &Inode, block: u64, tag: IoTag) -> Result<BlockAddr> {
        let Some(path) = inode.fanout.path(block) else {
            return Ok(BlockAddr::NULL);
        };
        let slot = path.slots[path.depth];
        let leaf = self.leaf(inode, &path, tag)?;
        Ok(self.addr_in(inode, &leaf, slot))
    }

    fn addr_in(&self, inode: &Inode, leaf: &Leaf, slot: u16) -> BlockAddr {
        match leaf {
            Leaf::Missing(_) => BlockAddr::NULL,
            Leaf::Inode(block) => inode.core.addr(&self.layout, block, slot),
            Leaf::Node(node) => node::addr(node, slot),
        }
    }

    /// The run of blocks that begins in this slot: `left` slots may be looked at.
    fn run(
        &self,
        inode: &Inode,
        block: u64,
        slot: u16,
        left: u16,
        addr: impl Fn(u16) -> BlockAddr,
    ) -> Result<Mapped> {
        let mut left = left;
        if let Some(size) = self.cluster_blocks(inode) {
            // No cluster lies in two nodes, so its first slot is in this one.
            let within = (block % size) as u16;
            left = left.min(size as u16 - within);
            if addr(slot - within) == BlockAddr::COMPRESSED {
                return Ok(Mapped {
                    place: Place::Compressed,
                    len: left.into(),
                });
            }
        }
        let first = addr(slot);
        if first == BlockAddr::NULL || first == BlockAddr::NEW {
            let same = |n: &u16| addr(slot + n) == first;
            return Ok(Mapped {
                place: if first == BlockAddr::NULL {
                    Place::Hole
                } else {
                    Place::Promised
                },
                len: (1..left).take_while(same).count() as u64 + 1,
            });
        }
        let continues = |n: &u16| Some(addr(slot + n).0) == first.0.checked_add((*n).into());
        let len = (1..left).take_while(continues).count() as u64 + 1;
        let last = BlockAddr(first.0.saturating_add(len as u32 - 1));
        if !self.layout.is_main(first) || !self.layout.is_main(last) {
            let rule = "outside the main area";
            let error = DiskError::field(Structure::Inode, "block address", first.0, rule);
            return Err(error.in_node(inode.nid()).into());
        }
        Ok(Mapped {
            place: Place::At(first),
            len,
        })
    }

    /// The node at the end of a path.
    fn leaf(&self, inode: &Inode, path: &NodePath, tag: IoTag) -> Result<Leaf> {
        if path.depth == 0 {
            return Ok(Leaf::Inode(self.inode_block(inode, tag)?));
        }
        let ino = inode.nid();
        if let Some((addr, nid)) = self.recovered.leaf(ino, path.offsets[path.depth]) {
            return Ok(Leaf::Node(self.node_at(addr, nid, ino, tag)?.data));
        }
        let mut nid = inode::nid_at(&self.inode_block(inode, tag)?, path.slots[0]);
        for level in 1..=path.depth {
            if nid.some().is_none() {
                return Ok(Leaf::Missing(self.missing(inode, path, level)));
            }
            // Of a file taken over from behind the checkpoint ids may lead nowhere: what they would
            // lead to was found by its place.
            if self.recovered.has(ino) && !self.nat.entry(nid, tag)?.is_used() {
                return Ok(Leaf::Missing(self.missing(inode, path, level)));
            }
            let node = self.expect_node(nid, ino, path.offsets[level], tag)?;
            if level == path.depth {
                return Ok(Leaf::Node(node.data));
            }
            nid = node::child(&node.data, path.slots[level]);
        }
        unreachable!("the loop returns at the last level")
    }

    /// Blocks from the path's to the end of what the missing node at `level` would map.
    fn missing(&self, inode: &Inode, path: &NodePath, level: usize) -> u64 {
        let direct = u64::from(inode.fanout.direct);
        let (mut size, mut at) = (1, 0);
        if !self.recovered.has(inode.nid()) {
            for slot in &path.slots[level..path.depth] {
                size *= u64::from(PER_NODE);
                at = at * u64::from(PER_NODE) + u64::from(*slot);
            }
        }
        size * direct - at * direct - u64::from(path.slots[path.depth])
    }

    /// Refuses what is not a regular file whose content can be shown.
    fn readable(inode: &Inode) -> Result<()> {
        match inode.kind() {
            FileKind::Regular if inode.is_encrypted() => Err(FsError::NoKey),
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(FsError::IsDir),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    /// Reads up to `len` bytes from `offset`.
    pub(crate) fn read_file(
        &self,
        cx: &Cx,
        inode: &Inode,
        offset: u64,
        len: usize,
    ) -> Result<ReadData> {
        Self::readable(inode)?;
        let size = inode.size();
        if offset >= size || len == 0 {
            return Ok(ReadData::new());
        }
        let end = size.min(offset.saturating_add(len as u64));
        if inode.has_inline_data() {
            return self.inline_content(inode, offset..end, cx.tag);
        }
        self.read_blocks(inode, offset..end, cx.tag)
    }

    /// Bytes of content that lies in blocks.
    fn read_blocks(&self, inode: &Inode, range: Range<u64>, tag: IoTag) -> Result<ReadData> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let pieces = self.gather(inode, blocks, tag)?;
        // Cut what lies before the offset and behind the end off the whole blocks.
        let mut out = ReadData::new();
        let mut skip = (range.start % BLOCK) as usize;
        let mut left = (range.end - range.start) as usize;
        let mut push = |data: Option<Buf>, whole: usize| {
            let from = skip.min(whole);
            let to = (from + left).min(whole);
            skip -= from;
            left -= to - from;
            match data {
                Some(buf) => out.push(buf.into_shared(), from..to),
                None => out.push_zeros(to - from),
            }
        };
        for piece in pieces {
            match piece {
                Piece::Zeros(n) => push(None, n),
                Piece::Whole(buf) => {
                    let len = buf.len();
                    push(Some(buf), len);
                }
                Piece::Device(io) => {
                    for buf in io.into_bio().map_err(io_error)?.bufs {
                        let len = buf.len();
                        push(Some(buf), len);
                    }
                }
            }
        }
        Ok(out)
    }

    /// Where each block of a range comes from; device reads are under way when this returns.
    fn gather(&self, inode: &Inode, blocks: Range<u64>, tag: IoTag) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let limit = (blocks.end - at).min(MAX_READ / BLOCK);
            let mapped = self.map(inode, at, limit, tag)?;
            let bytes = (mapped.len * BLOCK) as usize;
            match mapped.place {
                Place::Hole | Place::Promised => pieces.push(Piece::Zeros(bytes)),
                Place::At(first) => {
                    let bio = Bio::read(u64::from(first.0) * BLOCK, bytes);
                    pieces.push(Piece::Device(self.queue.submit(bio, tag)));
                }
                Place::Compressed => {
                    let plain = self.read_cluster(inode, at, tag)?;
                    pieces.push(Piece::Whole(plain.part(at, mapped.len)));
                }
            }
            at += mapped.len;
        }
        Ok(pieces)
    }

    /// The next data or hole at or after `offset`. As in the kernel, what is only promised is neither.
    pub(crate) fn seek_file(&self, cx: &Cx, inode: &Inode, offset: u64, what: Seek) -> Result<u64> {
        Self::readable(inode)?;
        let size = inode.size();
        if offset >= size {
            return Err(FsError::NoSuchOffset);
        }
        if inode.has_inline_data() {
            return Ok(if what == Seek::Data { offset } else { size });
        }
        let end = size.div_ceil(BLOCK);
        let mut at = offset / BLOCK;
        while at < end {
            let mapped = self.map(inode, at, end - at, cx.tag)?;
            let found = match mapped.place {
                Place::Hole => what == Seek::Hole,
                Place::Promised => false,
                Place::At(_) | Place::Compressed => what == Seek::Data,
            };
            if found {
                return Ok((at * BLOCK).max(offset));
            }
            at += mapped.len;
        }
        match what {
            Seek::Data => Err(FsError::NoSuchOffset),
            // The end of the file is a hole.
            Seek::Hole => Ok(size),
        }
    }

    /// A symbolic link's target.
    pub(crate) fn link_target(&self, inode: &Inode, tag: IoTag) -> Result<Vec<u8>> {
        if inode.kind() != FileKind::Symlink {
            return Err(FsError::Invalid("not a symbolic link"));
        }
        let bad = |rule: &'static str| -> FsError {
            let error = DiskError::field(Structure::Inode, "i_size", inode.size(), rule);
            error.in_node(inode.nid()).into()
        };
        let size = inode.size();
        if size == 0 || size > BLOCK {
            return Err(bad("not a link's length"));
        }
        let content = if inode.has_inline_data() {
            self.inline_content(inode, 0..size, tag)?.to_vec()
        } else {
            self.read_blocks(inode, 0..size, tag)?.to_vec()
        };
        if inode.is_encrypted() {
            return steadfs_vfs::nokey::symlink_target(&content);
        }
        if content.contains(&0) {
            return Err(bad("more than the link's target"));
        }
        Ok(content)
    }
}
