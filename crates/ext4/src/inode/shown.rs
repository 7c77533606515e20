//! An inode's attributes, as the caller of the file system sees them.

use std::sync::atomic::Ordering;

use steadfs_base::IoTag;
use steadfs_vfs::{Attr, FileKind, InodeFlags};

use super::Inode;
use crate::disk;
use crate::disk::inode::INLINE_DATA;
use crate::fs::Ext4;

impl Inode {
    /// Cached blocks without a device block. The caller holds `core`, so that none is mapped meanwhile. Blocks whose
    /// map cannot be read are not counted; their write-back reports the error.
    fn delayed(&self, fs: &Ext4, core: &disk::Inode) -> u64 {
        if self.kind != FileKind::Regular || self.pages.is_empty() {
            return 0;
        }
        let reserved = self.pages.reserved_blocks();
        fs.holes(self.ino, core, &reserved, IoTag::default())
            .unwrap_or(0)
    }

    /// Length of an encrypted link's target as it is shown; `None` if it cannot be read, and for all other inodes.
    fn shown_target(&self, fs: &Ext4) -> Option<u64> {
        let encrypted = self.kind == FileKind::Symlink && self.has(InodeFlags::ENCRYPTED);
        let target = encrypted.then(|| fs.link_target(self, IoTag::default()).ok());
        target.flatten().map(|target| target.len() as u64)
    }

    /// Attributes for the caller of the file system.
    pub fn attr(&self, fs: &Ext4) -> Attr {
        let shown_target = self.shown_target(fs);
        let core = self.core.read();
        self.times_seen.store(true, Ordering::Release);
        let size = match self.kind {
            FileKind::Regular => self.size(),
            _ => shown_target.unwrap_or(core.size),
        };
        // Data not yet allocated is counted, so that `du` and archivers that detect holes by st_blocks work.
        let delayed = self.delayed(fs, &core) * (fs.geo().block_size.bytes_u64() / 512);
        // Inline content is counted as in the kernel.
        let inline = match self.kind {
            FileKind::Regular if core.has(INLINE_DATA) => size.div_ceil(512),
            _ => 0,
        };
        let blocks = core.blocks.saturating_add(delayed + inline);
        Attr {
            ino: self.ino.into(),
            generation: core.generation,
            kind: self.kind,
            perm: u32::from(core.mode) & 0o7777,
            nlink: core.links.into(),
            uid: core.uid,
            gid: core.gid,
            rdev: match self.kind {
                FileKind::CharDevice | FileKind::BlockDevice => core.rdev(),
                // The words hold the block map.
                _ => 0,
            },
            size,
            blocks,
            block_size: fs.geo().block_size.bytes() as u32,
            atime: core.atime,
            mtime: core.mtime,
            ctime: core.ctime,
            btime: core.btime,
            flags: core.flags,
        }
    }
}
