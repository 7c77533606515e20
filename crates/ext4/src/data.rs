//! File content: read, write, write-back.
//!
//! **Rule.** A write reserves space, is copied into the cache and acknowledged; blocks are allocated at write-back
//! ([`writeout`], delayed allocation). Data is on the device before a handle maps its blocks, so no commit waits for
//! data.

mod beside_log;
mod fallocate;
mod inline;
mod no_delalloc;
mod read;
mod seek;
mod sync;
mod truncate;
mod writeout;

use steadfs_base::{Corruption, FileBlock, IoTag};
use steadfs_cache::{CacheWrite, DirtyFile, WritebackReason, Written};
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, Result};

use crate::disk::inode::INLINE_DATA;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::io_error;
use crate::map::has_extents;
use crate::mballoc::{RESERVE_PER_BLOCK_EXTENT, RESERVE_PER_BLOCK_INDIRECT, table_groups};
use crate::place::BlockPlace;

impl Ext4 {
    /// Fails unless the inode is a regular file whose content can be read: an encrypted one has its key.
    pub(crate) fn check_readable(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        Self::regular(inode)?;
        if inode.is_encrypted() && inode.core.read().has(INLINE_DATA) {
            let what = Corruption::new("an encrypted file has its content in the inode");
            return Err(what.in_inode(inode.ino()).into());
        }
        self.content_key(inode, tag).map(drop)
    }

    fn regular(inode: &Inode) -> Result<()> {
        match inode.kind() {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(FsError::IsDir),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    /// Fails unless the inode is a regular file whose content can be changed: an encrypted one has its key, and it is no
    /// verity file, which never changes.
    pub(crate) fn check_content(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        self.check_readable(inode, tag)?;
        Self::check_unsealed(inode)
    }

    /// Fails for a verity file, and for one that becomes a verity file. The latter changes under `inode.lock` only.
    pub(crate) fn check_unsealed(inode: &Inode) -> Result<()> {
        if inode.has(InodeFlags::VERITY) {
            return Err(FsError::NotPermitted);
        }
        match inode.marks.becomes_verity() {
            true => Err(FsError::TextBusy),
            false => Ok(()),
        }
    }

    /// Writes `data` at `offset` into the cache, up to the largest file size.
    pub fn write_file(
        &self,
        cx: &Cx,
        inode: &Inode,
        offset: u64,
        data: &[u8],
        kill_priv: bool,
    ) -> Result<usize> {
        self.check_writable()?;
        self.check_content(inode, cx.tag)?;
        if data.is_empty() {
            return Ok(0);
        }
        self.throttle(cx, inode)?;
        let file = DirtyFile(inode.ino().0.into());
        let written = {
            let _alone = inode.lock.write();
            let room = self.check_may_write(inode, offset)?;
            let data = &data[..usize::try_from(room).map_or(data.len(), |n| n.min(data.len()))];
            if kill_priv {
                // Before any content: new content keeps no old rights, whatever fails.
                self.kill_priv(cx, inode)?;
            }
            if self.write_inline(cx, inode, offset, data)? {
                return Ok(data.len());
            }
            self.move_content_out(cx, inode)?;
            let end = offset + data.len() as u64;
            let size = inode.size();
            if offset > size {
                self.zero_tail(cx, inode, size, offset)?;
            }
            let (bytes, result) = self.write_pages(cx, inode, offset, data, u64::MAX);
            if bytes == 0 {
                result?;
            }
            let overwrites = {
                let mut core = inode.core.write();
                if self.stamp_write(inode, &mut core) {
                    inode.mark_core_dirty();
                }
                end <= core.size
            };
            let bs = self.geo.block_size;
            let blocks = bs.file_block(offset).0..bs.blocks_for(offset + bytes as u64);
            self.writeback.record_write(file, blocks, overwrites);
            bytes
        };
        // The bytes were taken: an error is for the next fsync.
        let _ = self.throttle(cx, inode);
        Ok(written)
    }

    /// Writes back what is dirty until a writer of the file may dirty more. The caller holds no lock.
    pub(crate) fn throttle(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        let own = DirtyFile(inode.ino().0.into());
        let why = WritebackReason::Throttle;
        self.writeback.throttle(cx, own, |file| match file == own {
            true => self.write_out(inode, why, cx.tag),
            false => self.write_out_files(&[file.0], why, cx.tag),
        })
    }

    /// The number of bytes from `offset` on that may be written: at least one.
    fn check_may_write(&self, inode: &Inode, offset: u64) -> Result<u64> {
        Self::check_unsealed(inode)?;
        let core = inode.core.read();
        let appends = core.flags.contains(InodeFlags::APPEND);
        if core.flags.contains(InodeFlags::IMMUTABLE) || (appends && offset < inode.size()) {
            return Err(FsError::NotPermitted);
        }
        let most = self.geo.max_file_size(has_extents(&core));
        let room = most.saturating_sub(offset);
        if room == 0 {
            return Err(FsError::FileTooBig);
        }
        Ok(room)
    }

    /// Zeroes the part of the last block beyond the old end of the file, up to `offset`: its content on the device is
    /// undefined.
    pub(crate) fn zero_tail(&self, cx: &Cx, inode: &Inode, size: u64, offset: u64) -> Result<()> {
        let bs = self.geo.block_size;
        if bs.offset_in_block(size) == 0 {
            return Ok(());
        }
        let end = offset.min(bs.blocks_for(size) << bs.bits());
        let block = bs.file_block(size);
        if inode.pages.get(block).is_none() {
            let mapped = self.map(inode.ino(), &inode.core.read(), block, cx.tag)?;
            if !matches!(mapped.place, BlockPlace::Written(_)) {
                return Ok(());
            }
        }
        let zeros = vec![0; (end - size) as usize];
        self.write_pages(cx, inode, size, &zeros, size).1
    }

    /// Reserves space and copies into the cache; returns the number of bytes, and the error if not all. The file grows
    /// to `limit` at most: zeros beyond that are not part of it.
    pub(crate) fn write_pages(
        &self,
        cx: &Cx,
        inode: &Inode,
        offset: u64,
        data: &[u8],
        limit: u64,
    ) -> (usize, Result<()>) {
        if let Err(error) = self.hold_key(inode, cx.tag) {
            return (0, Err(error));
        }
        let bs = self.geo.block_size;
        let blocks = bs.file_block(offset).0..bs.blocks_for(offset + data.len() as u64);
        let per_block = self.reserve_per_block(inode);
        // For every block, even if some have a reservation: the flusher may collect those blocks and release their
        // reservation at any time before the new content is counted.
        let wanted = (blocks.end - blocks.start) * per_block;
        match self.reserve(cx, inode, &blocks, wanted) {
            Ok(true) => {}
            Ok(false) => return self.write_without_delalloc(cx, inode, offset, data, limit),
            Err(error) => return (0, Err(error)),
        }
        let write = CacheWrite {
            offset,
            data,
            tag: cx.tag,
        };
        let written = self.write_cached(inode, write, true, limit);
        self.release_delayed(inode, wanted / per_block - written.reserved);
        (written.bytes, written.error.map_or(Ok(()), Err))
    }

    /// Copies into the cache, with a reservation for each block if `reserved`, and grows the file up to `limit`.
    fn write_cached(
        &self,
        inode: &Inode,
        write: CacheWrite<'_>,
        reserved: bool,
        limit: u64,
    ) -> Written<FsError> {
        let before = inode.size();
        let fill = |block, buf: &mut [u8]| self.fill_block(write.tag, inode, block, before, buf);
        let reached = |end: u64| inode.set_size(before.max(limit.min(end)));
        inode
            .pages
            .write_growing(write, |_| reserved, fill, reached)
    }

    /// Blocks reserved for a dirty block of the file.
    pub(crate) fn reserve_per_block(&self, inode: &Inode) -> u64 {
        if has_extents(&inode.core.read()) {
            RESERVE_PER_BLOCK_EXTENT
        } else {
            RESERVE_PER_BLOCK_INDIRECT
        }
    }

    /// Reserves `wanted` blocks. False: the worst case does not fit, and blocks must be allocated now, so that the
    /// write fails on a full volume and not a later fsync. (Always false with `nodelalloc`.)
    fn reserve(
        &self,
        cx: &Cx,
        inode: &Inode,
        blocks: &std::ops::Range<u64>,
        wanted: u64,
    ) -> Result<bool> {
        if !self.delays(inode) || !self.reserve_space(cx, inode, blocks, wanted)? {
            return Ok(false);
        }
        let count = blocks.end - blocks.start;
        let mut delayed = self.delay(cx, inode, count);
        if delayed == Ok(false) && self.has_delayed(inode)? {
            self.make_room(cx)?;
            delayed = self.delay(cx, inode, count);
        }
        if delayed != Ok(true) {
            self.alloc.with_totals(|t| t.release_reserved(wanted));
        }
        delayed
    }

    /// Whether a file's blocks may be allocated later. Not if its tables reach a part of the volume only, as that may have
    /// no free block although the volume has.
    fn delays(&self, inode: &Inode) -> bool {
        let reaches_all =
            || self.geo.group_count <= table_groups(&self.geo) || has_extents(&inode.core.read());
        self.options.read().delalloc && reaches_all()
    }

    /// Ends the reservation of delayed blocks that were not written, or that are dropped.
    pub(crate) fn release_delayed(&self, inode: &Inode, blocks: u64) {
        let reserved = blocks * self.reserve_per_block(inode);
        self.alloc.with_totals(|t| t.release_reserved(reserved));
        self.end_delay(inode, blocks);
    }

    /// Reserves free space for the worst case.
    fn reserve_space(
        &self,
        cx: &Cx,
        inode: &Inode,
        blocks: &std::ops::Range<u64>,
        wanted: u64,
    ) -> Result<bool> {
        let keep = self.root_reserved_clusters(cx);
        let reserve = || self.alloc.with_totals(|t| t.reserve(wanted, keep));
        if reserve() {
            return Ok(true);
        }
        // Write-back replaces reservations of other files by the exact number of blocks. Not needed for mapped blocks.
        if !self.is_mapped(cx, inode, blocks)? && self.alloc.totals().is_uncertain() {
            self.make_room(cx)?;
            return Ok(reserve());
        }
        Ok(false)
    }

    /// Writes back all dirty data and commits, so that reservations become exact and freed blocks can be allocated.
    pub(crate) fn make_room(&self, cx: &Cx) -> Result<()> {
        // A file's error stays with that file, for its next fsync.
        if let Err(error) =
            self.write_out_files(&self.writeback.dirty_files(), WritebackReason::Sync, cx.tag)
        {
            tracing::debug!(%error, "write-back for space failed");
        }
        if self.alloc.totals().pending > 0 {
            self.commit_running(cx.tag)?;
        }
        Ok(())
    }

    /// Whether every block of a range has its content on the device.
    fn is_mapped(&self, cx: &Cx, inode: &Inode, blocks: &std::ops::Range<u64>) -> Result<bool> {
        let core = inode.core.read();
        let mut at = blocks.start;
        while at < blocks.end {
            let mapped = self.map(inode.ino(), &core, FileBlock(at), cx.tag)?;
            if !matches!(mapped.place, BlockPlace::Written(_)) {
                return Ok(false);
            }
            at += mapped.len;
        }
        Ok(true)
    }

    /// Reserved blocks (`s_r_blocks_count`) that this caller may not use.
    pub(crate) fn root_reserved_blocks(&self, cx: &Cx) -> u64 {
        let (resuid, resgid) = {
            let options = self.options.read();
            (options.common.resuid, options.common.resgid)
        };
        let ((uid, gid), reserved) = {
            let sb = self.sb.lock();
            (sb.reserved_owner(), sb.reserved_blocks())
        };
        let (uid, gid) = (resuid.unwrap_or(uid), resgid.unwrap_or(gid));
        // The group last: it may be a question to the host.
        let privileged =
            reserved == 0 || cx.uid == 0 || cx.uid == uid || (gid != 0 && cx.is_in_group(gid));
        if privileged { 0 } else { reserved }
    }

    /// [`Ext4::root_reserved_blocks`] in clusters.
    pub(crate) fn root_reserved_clusters(&self, cx: &Cx) -> u64 {
        let per = u64::from(self.geo.blocks_per_cluster());
        self.root_reserved_blocks(cx).div_ceil(per)
    }

    /// Reads a block that is not in the cache for a partial write. `size` is the file's size before the write.
    fn fill_block(
        &self,
        tag: IoTag,
        inode: &Inode,
        block: FileBlock,
        size: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let bs = self.geo.block_size;
        let mapped = self.map(inode.ino(), &inode.core.read(), block, tag)?;
        let BlockPlace::Written(at) = mapped.place else {
            return Ok(());
        };
        let mut data = self
            .queue
            .read(bs.offset_of(at), bs.bytes(), tag)
            .map_err(io_error)?;
        if let Some(key) = self.content_key(inode, tag)? {
            key.decrypt(block.0 << bs.bits(), data.make_mut());
        }
        // Beyond the end of the file the content on the device is undefined.
        let start = block.0 << bs.bits();
        let valid = size.saturating_sub(start).min(bs.bytes_u64()) as usize;
        out[..valid].copy_from_slice(&data[..valid]);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
