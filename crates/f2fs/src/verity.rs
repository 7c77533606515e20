//! fs-verity: where f2fs stores the hash tree and the descriptor, and which are refused.
//!
//! Both are stored in the file's own blocks beyond its end, invisible to readers; the tree starts at the next
//! multiple of 64 KiB. A hidden extended attribute has the position and size of the descriptor (`struct
//! fsverity_descriptor_location`).

mod enable;

use std::ops::Range;
use std::sync::Arc;

use steadfs_base::{InodeNo, IoTag};
use steadfs_vfs::verity::{DESCRIPTOR_MAX, FileDigest, Verity, tree_start};
use steadfs_vfs::{Cx, FsError, ReadData, Result};

use crate::disk::inode::Advise;
use crate::disk::xattr::index;
use crate::disk::{DiskError, Features, Structure};
use crate::fs::F2fs;
use crate::inode::Inode;

const VERITY_XATTR: &[u8] = b"v";

impl Inode {
    /// Whether the content is verified against a hash tree.
    pub(crate) fn is_verity(&self) -> bool {
        self.core.read().advise.contains(Advise::VERITY)
    }
}

impl F2fs {
    /// Whether open can fail for some files of the volume.
    pub(crate) fn has_closed_files(&self) -> bool {
        self.has_encryption() || self.layout.has(Features::VERITY)
    }

    /// See [`steadfs_vfs::FileSystem::open`].
    pub(crate) fn check_may_open(&self, cx: &Cx, ino: InodeNo, write: bool) -> Result<()> {
        let inode = self.by_number(ino, cx.tag)?;
        self.check_readable(&inode, cx.tag)?;
        if write && inode.marks.becomes_verity() {
            return Err(FsError::TextBusy);
        }
        if !inode.is_verity() {
            return Ok(());
        }
        if write {
            return Err(FsError::NotPermitted);
        }
        self.verity(&inode, cx.tag).map(drop)
    }

    /// See [`steadfs_vfs::FileSystem::verity_digest`].
    pub(crate) fn measure(&self, cx: &Cx, ino: InodeNo) -> Result<FileDigest> {
        if !self.layout.has(Features::VERITY) {
            return Err(FsError::NotSupported("verity on this volume"));
        }
        let inode = self.by_number(ino, cx.tag)?;
        if !inode.is_verity() {
            return Err(FsError::NoData);
        }
        Ok(self.verity(&inode, cx.tag)?.digest().clone())
    }

    /// Reads and verifies bytes of a verity file. The caller holds `inode.lock`.
    pub(crate) fn read_verified(
        &self,
        inode: &Inode,
        range: Range<u64>,
        tag: IoTag,
    ) -> Result<ReadData> {
        let verity = self.verity(inode, tag)?;
        let data = verity.read(range, tree_of(inode)?, |bytes, size| {
            self.read_blocks(inode, bytes, size, tag)
        });
        data.map_err(|error| error.of_file(inode.nid()))
    }

    fn verity(&self, inode: &Inode, tag: IoTag) -> Result<Arc<Verity>> {
        let generation = inode.core.read().generation;
        self.verities.get(inode.nid().into(), generation, || {
            let descriptor = self.verity_descriptor(inode, tag)?;
            Verity::parse(&descriptor, inode.size())
        })
    }

    fn verity_descriptor(&self, inode: &Inode, tag: IoTag) -> Result<Vec<u8>> {
        let value = self.attr_value(inode, index::VERITY, VERITY_XATTR, tag)?;
        let value = value.ok_or_else(|| bad(inode, "is missing"))?;
        let DescriptorLocation { start, size } = DescriptorLocation::parse(&value)
            .ok_or_else(|| bad(inode, "has an unknown version or size"))?;
        if start < tree_of(inode)? || start.checked_add(size.into()).is_none() {
            return Err(bad(inode, "is not beyond the file's end"));
        }
        if size as usize > DESCRIPTOR_MAX {
            return Err(FsError::Invalid("the verity descriptor is too long"));
        }
        let range = start..start + u64::from(size);
        Ok(self.read_blocks(inode, range, None, tag)?.to_vec())
    }
}

struct DescriptorLocation {
    start: u64,
    size: u32,
}

impl DescriptorLocation {
    /// The attribute's value.
    fn encode(&self) -> Vec<u8> {
        let words = [1, self.size].map(u32::to_le_bytes).concat();
        [words, self.start.to_le_bytes().to_vec()].concat()
    }

    /// Parses the attribute's value: a version, which is 1, the size, the position.
    fn parse(value: &[u8]) -> Option<Self> {
        let (version, rest) = value.split_first_chunk()?;
        let (size, start) = rest.split_first_chunk()?;
        let known = u32::from_le_bytes(*version) == 1;
        known.then_some(Self {
            start: u64::from_le_bytes(start.try_into().ok()?),
            size: u32::from_le_bytes(*size),
        })
    }
}

fn tree_of(inode: &Inode) -> Result<u64> {
    tree_start(inode.size()).ok_or_else(|| bad(inode, "is of a file that is too large"))
}

fn bad(inode: &Inode, rule: &'static str) -> FsError {
    let error = DiskError::entry(Structure::Verity, 0, rule);
    error.in_node(inode.nid()).into()
}
