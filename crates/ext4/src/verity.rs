//! Verity files: the places of the hash tree and the descriptor, and their validation.
//!
//! Both are in the file's own blocks beyond its end: the tree from the next multiple of 64 KiB on, then, from the start
//! of a block, the descriptor, whose size in bytes is the last word of the file's last block
//! (Documentation/filesystems/ext4/verity.rst of Linux). Only files mapped by extents have them.

mod enable;

use std::ops::Range;
use std::sync::Arc;

use steadfs_base::{Corruption, InodeNo, IoTag};
use steadfs_vfs::verity::{DESCRIPTOR_MAX, FileDigest, Verity, tree_start};
use steadfs_vfs::{Cx, FsError, InodeFlags, ReadData, Result};

use crate::disk::features::RoCompat;
use crate::extent;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::map::has_extents;

/// Bytes of the descriptor's size at the end.
const SIZE_FIELD: u64 = 4;

impl Ext4 {
    /// Whether some file of the volume may refuse to be opened.
    pub(crate) fn has_closed_files(&self) -> bool {
        self.has_encryption() || self.geo.has_ro_compat(RoCompat::VERITY)
    }

    /// See [`steadfs_vfs::FileSystem::open`].
    pub(crate) fn check_open(&self, cx: &Cx, ino: InodeNo, write: bool) -> Result<()> {
        let inode = self.by_number(ino, cx.tag)?;
        match write {
            true => self.check_content(&inode, cx.tag)?,
            false => self.check_readable(&inode, cx.tag)?,
        }
        if !inode.has(InodeFlags::VERITY) {
            return Ok(());
        }
        self.verity(&inode, cx.tag).map(drop)
    }

    /// See [`steadfs_vfs::FileSystem::verity_digest`].
    pub(crate) fn measure(&self, cx: &Cx, ino: InodeNo) -> Result<FileDigest> {
        if !self.geo.has_ro_compat(RoCompat::VERITY) {
            return Err(FsError::NotSupported("verity on this volume"));
        }
        let inode = self.by_number(ino, cx.tag)?;
        if !inode.has(InodeFlags::VERITY) {
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
        let read = |bytes, size| self.read_mapped(inode, bytes, size, tag);
        let verity = self.verity(inode, tag)?;
        let data = verity.read(range, Self::tree_start(inode)?, read);
        data.map_err(|error| error.of_file(inode.ino()))
    }

    fn verity(&self, inode: &Inode, tag: IoTag) -> Result<Arc<Verity>> {
        let generation = inode.core.read().generation;
        self.verities.get(inode.ino().into(), generation, || {
            let descriptor = self.verity_descriptor(inode, tag)?;
            Verity::parse(&descriptor, inode.size())
        })
    }

    fn tree_start(inode: &Inode) -> Result<u64> {
        tree_start(inode.size()).ok_or_else(|| Self::bad_verity(inode, "the file is too large"))
    }

    fn bad_verity(inode: &Inode, what: &str) -> FsError {
        let ino = inode.ino();
        Corruption::new(format!("verity descriptor: {what}"))
            .in_inode(ino)
            .into()
    }

    fn verity_descriptor(&self, inode: &Inode, tag: IoTag) -> Result<Vec<u8>> {
        let bad = |what| Err(Self::bad_verity(inode, what));
        let bs = self.geo.block_size;
        let end = {
            let core = inode.core.read();
            if !has_extents(&core) {
                return bad("the file is not mapped by extents");
            }
            extent::end(self, inode.ino(), &core, tag)?.0 << bs.bits()
        };
        let tree = Self::tree_start(inode)?;
        let Some(size_at) = end.checked_sub(SIZE_FIELD).filter(|at| *at >= tree) else {
            return bad("there is none beyond the end of the file");
        };
        let size = self.read_mapped(inode, size_at..end, None, tag)?.to_vec();
        let size = size
            .iter()
            .rev()
            .fold(0, |size: u64, &byte| size << 8 | u64::from(byte));
        let Some(start) = size_at
            .checked_sub(size)
            .map(|at| at - bs.offset_in_block(at) as u64)
        else {
            return bad("its size is impossible");
        };
        if start < tree {
            return bad("it is not after the hashes");
        }
        if size > DESCRIPTOR_MAX as u64 {
            return Err(FsError::Invalid("the verity descriptor is too long"));
        }
        Ok(self
            .read_mapped(inode, start..start + size, None, tag)?
            .to_vec())
    }
}
