//! write(2) into the cache. Space is reserved here, so that a full volume is reported here.

use std::ops::Range;

use steadfs_base::{FileBlock, IoTag};
use steadfs_cache::{CacheWrite, DirtyFile, WritebackReason};
use steadfs_vfs::{Cx, FsError, InodeFlags, Result};

use super::{BLOCK, MapTarget};
use crate::disk::inode::{Advise, Inline};
use crate::disk::node::PER_NODE;
use crate::fs::{F2fs, io_error};
use crate::inode::{Inode, ReservedNodes};
use crate::quota::QuotaHold;
use crate::space::Need;

/// The largest file size: what its nodes can map. The blocks that the inode maps itself are not counted, as in
/// Linux, which neither reads nor writes beyond this size; their number differs between inodes.
pub(super) const LARGEST_SIZE: u64 = {
    let per = PER_NODE as u64;
    per * (2 + 2 * per + per * per) * BLOCK
};

/// Runs of file blocks, in order; one block is reserved for each.
struct ReservedRuns(Vec<Range<u64>>);

impl ReservedRuns {
    fn blocks(&self) -> u64 {
        self.0.iter().map(|run| run.end - run.start).sum()
    }

    fn contains(&self, block: u64) -> bool {
        let after = self.0.partition_point(|run| run.end <= block);
        self.0.get(after).is_some_and(|run| run.contains(&block))
    }
}

impl F2fs {
    /// Writes `data` at `offset` into the cache.
    pub(crate) fn write_file(
        &self,
        cx: &Cx,
        inode: &Inode,
        offset: u64,
        data: &[u8],
        kill_priv: bool,
    ) -> Result<usize> {
        self.check_writable()?;
        self.check_readable(inode, cx.tag)?;
        let end = offset
            .checked_add(data.len() as u64)
            .ok_or(FsError::FileTooBig)?;
        if data.is_empty() {
            return Ok(0);
        }
        self.throttle(cx, inode)?;
        let whole = self.with_space(cx, || {
            let _exclusive = inode.lock.write();
            let data = self.writable_part(inode, offset, data)?;
            let end = offset + data.len() as u64;
            self.check_pinned_write(inode, offset..end, cx.tag)?;
            if kill_priv {
                self.kill_priv(cx, inode)?;
            }
            self.write_locked(cx, inode, offset, data)
        });
        let written = match whole {
            Err(FsError::NoSpace | FsError::Quota) => {
                self.write_what_fits(cx, inode, offset, data)?
            }
            whole => whole?,
        };
        let staged = self.atomic_writes.of(inode);
        let inode = staged.as_ref().map_or(inode, |write| write.staging());
        let file = DirtyFile(inode.nid().0.into());
        let blocks = offset / BLOCK..(offset + written as u64).div_ceil(BLOCK);
        let overwrites = end <= inode.core.read().size;
        self.writeback.record_write(file, blocks, overwrites);
        // The bytes were taken: an error is for the next fsync.
        let _ = self.throttle(cx, inode);
        Ok(written)
    }

    /// Writes back what is dirty until a writer of the file may dirty more. The caller holds no lock.
    pub(crate) fn throttle(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        let staged = self.atomic_writes.of(inode);
        let inode = staged.as_ref().map_or(inode, |write| write.staging());
        let own = DirtyFile(inode.nid().0.into());
        let why = WritebackReason::Throttle;
        self.writeback.throttle(cx, own, |file| match file == own {
            true => self.write_out(inode, why, cx.tag),
            false => self.write_out_files(&[file.0], why, cx.tag),
        })
    }

    /// Writes with `inode.lock` held for writing.
    fn write_locked(&self, cx: &Cx, inode: &Inode, offset: u64, data: &[u8]) -> Result<usize> {
        if let Some(write) = self.atomic_writes.of(inode) {
            return self.write_staged(cx, inode, &write, offset, data);
        }
        if self.fits_inline(inode, offset + data.len() as u64) {
            self.write_inline(inode, offset, data, cx.tag)?;
            return Ok(data.len());
        }
        self.begin_to_leave_inline(cx, inode)?;
        self.write_blocks(cx, inode, offset, data)
    }

    /// On a nearly full volume, or near a limit: writes block by block, up to the first that cannot be reserved.
    fn write_what_fits(&self, cx: &Cx, inode: &Inode, offset: u64, data: &[u8]) -> Result<usize> {
        let _exclusive = inode.lock.write();
        let data = self.writable_part(inode, offset, data)?;
        let end = offset + data.len() as u64;
        self.check_pinned_write(inode, offset..end, cx.tag)?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let n = ((BLOCK - at % BLOCK) as usize).min(data.len() - done);
            match self.write_locked(cx, inode, at, &data[done..done + n]) {
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Fails if the inode does not allow changes of its content.
    pub(crate) fn check_may_change(&self, inode: &Inode) -> Result<()> {
        let core = inode.core.read();
        if core.flags.contains(InodeFlags::IMMUTABLE) || core.advise.contains(Advise::VERITY) {
            return Err(FsError::NotPermitted);
        }
        match inode.marks.becomes_verity() {
            true => Err(FsError::TextBusy),
            false => Ok(()),
        }
    }

    /// Fails if the space that the file's clusters would need when they are written was released.
    pub(crate) fn check_not_released(inode: &Inode) -> Result<()> {
        match inode.core.read().inline.contains(Inline::COMPRESS_RELEASED) {
            true => Err(FsError::NotPermitted),
            false => Ok(()),
        }
    }

    /// The part of `data` that may be written at `offset`: up to the largest size, at least one byte.
    fn writable_part<'d>(&self, inode: &Inode, offset: u64, data: &'d [u8]) -> Result<&'d [u8]> {
        self.check_may_change(inode)?;
        Self::check_not_released(inode)?;
        let appends = inode.core.read().flags.contains(InodeFlags::APPEND);
        if appends && offset < inode.size() {
            return Err(FsError::NotPermitted);
        }
        match LARGEST_SIZE.saturating_sub(offset) {
            0 => Err(FsError::FileTooBig),
            room => {
                let room = usize::try_from(room).unwrap_or(usize::MAX);
                Ok(&data[..data.len().min(room)])
            }
        }
    }

    /// Writes to a file with content in blocks, and updates size and times. Returns the bytes written.
    fn write_blocks(&self, cx: &Cx, inode: &Inode, offset: u64, data: &[u8]) -> Result<usize> {
        let size = inode.size();
        if offset > size {
            self.zero_tail(cx, inode, size, offset)?;
        }
        let (bytes, result) = self.write_pages(cx, inode, offset, data, u64::MAX);
        if bytes == 0 {
            result?;
        }
        self.stamp_content(inode, cx.tag)?;
        Ok(bytes)
    }

    /// Zeroes the part of the last block beyond the old end of the file, up to `offset`: the device may hold old
    /// content there.
    pub(crate) fn zero_tail(&self, cx: &Cx, inode: &Inode, size: u64, offset: u64) -> Result<()> {
        if size.is_multiple_of(BLOCK) {
            return Ok(());
        }
        let end = offset.min(size.next_multiple_of(BLOCK));
        self.zero_bytes(cx, inode, size..end)
    }

    /// Zeroes bytes within one block through the cache, unless the block is not allocated and reads as zeros
    /// anyway.
    pub(super) fn zero_bytes(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let block = range.start / BLOCK;
        if inode.pages.get(FileBlock(block)).is_none() {
            let mapped = self.map(inode, block, 1, cx.tag)?;
            if matches!(mapped.target, MapTarget::Hole | MapTarget::Reserved) {
                return Ok(());
            }
        }
        let zeros = vec![0; (range.end - range.start) as usize];
        self.write_pages(cx, inode, range.start, &zeros, inode.size())
            .1
    }

    /// Reserves space and copies into the cache. Returns the number of bytes, and the error that ended it. The file
    /// grows over them up to `limit`: zeros beyond its end are not part of it.
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
        let blocks = offset / BLOCK..(offset + data.len() as u64).div_ceil(BLOCK);
        let (written, result) = match self.reserve(cx, inode, blocks) {
            Err(error) => (0, Err(error)),
            Ok((reserved, nodes, held)) => {
                let size = inode.size();
                let fill = |block, out: &mut [u8]| self.fill_block(cx.tag, inode, block, size, out);
                let needs = |block: FileBlock| reserved.contains(block.0);
                let reached = |end: u64| inode.set_size(size.max(limit.min(end)));
                let write = CacheWrite {
                    offset,
                    data,
                    tag: cx.tag,
                };
                // Counted before write-back can map a page.
                self.delay(inode, reserved.blocks());
                drop(held);
                let written = inode.pages.write_growing(write, needs, fill, reached);
                let unused = reserved.blocks() - written.reserved;
                if written.reserved > 0 {
                    nodes.keep();
                }
                self.end_delay(inode, unused);
                self.space.release(Need {
                    blocks: unused,
                    nodes: 0,
                });
                (written.bytes, written.error.map_or(Ok(()), Err))
            }
        };
        (written, result)
    }

    /// Reserves one block for each block of the range that will be allocated, and the nodes to map them.
    /// Under limits of quota they are held until they are counted.
    fn reserve<'f>(
        &'f self,
        cx: &Cx,
        inode: &'f Inode,
        blocks: Range<u64>,
    ) -> Result<(ReservedRuns, ReservedNodes<'f>, QuotaHold)> {
        let reserved = self.runs_to_reserve(inode, &blocks, cx.tag)?;
        let held = self.hold_data(cx, inode, &reserved.0)?;
        let privileged = self.may_use_reserved(cx);
        let nodes = self.reserve_nodes(inode, reserved.0.iter().cloned(), privileged, cx.tag)?;
        let need = Need {
            blocks: reserved.blocks(),
            nodes: 0,
        };
        self.space.reserve(need, privileged)?;
        Ok((reserved, nodes, held))
    }

    /// Runs an operation that may need space. Holding no lock, it first frees segments if they are short. On
    /// `NoSpace` it writes all delayed data (reservations are exact then), frees segments, and retries as long as
    /// blocks are about to be freed. `attempt` can be repeated after a failure.
    pub(crate) fn with_space<T>(
        &self,
        cx: &Cx,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        self.balance(cx.tag)?;
        match attempt() {
            Err(FsError::NoSpace) => {}
            other => return other,
        }
        // A file's write error is kept with the file and reported by its fsync.
        let dirty = self.writeback.dirty_files();
        if let Err(error) = self.write_out_files(&dirty, WritebackReason::Sync, cx.tag) {
            tracing::debug!(%error, "write-back for space failed");
        }
        self.make_free_space(cx.tag)?;
        self.retry_without_space(cx, attempt)
    }

    /// Blocks of a range that write-back will allocate: they are holes, or must not be overwritten in place.
    fn runs_to_reserve(
        &self,
        inode: &Inode,
        blocks: &Range<u64>,
        tag: IoTag,
    ) -> Result<ReservedRuns> {
        // With checkpoint=disable nothing that the last checkpoint refers to is overwritten, but for pinned files.
        let cp_disabled = self.is_cp_disabled() && !inode.is_pinned();
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let mapped = self.map(inode, at, blocks.end - at, tag)?;
            let next = at + mapped.len.min(blocks.end - at);
            if mapped.target == MapTarget::Hole || cp_disabled {
                match runs.last_mut() {
                    Some(last) if last.end == at => last.end = next,
                    _ => runs.push(at..next),
                }
            }
            at = next;
        }
        Ok(ReservedRuns(runs))
    }

    /// Reads a block that is not in the cache for a partial write; the file ends at `size` before it.
    fn fill_block(
        &self,
        tag: IoTag,
        inode: &Inode,
        block: FileBlock,
        size: u64,
        out: &mut [u8],
    ) -> Result<()> {
        // Beyond the end of the file the device may hold old content.
        let valid = size.saturating_sub(block.0 * BLOCK).min(BLOCK) as usize;
        let cluster = self.cluster_blocks(&inode.core.read());
        // Write-back moves blocks of a cluster that are not in memory, too.
        let _flush = cluster.is_some().then(|| inode.lock_flush());
        match self.map(inode, block.0, 1, tag)?.target {
            MapTarget::Hole | MapTarget::Reserved => {}
            MapTarget::Block(at) => {
                let mut data = self
                    .queue
                    .read(u64::from(at.0) * BLOCK, BLOCK as usize, tag)
                    .map_err(io_error)?;
                if let Some(key) = self.content_key(inode, tag)? {
                    key.decrypt(block.0 * BLOCK, data.make_mut());
                }
                out[..valid].copy_from_slice(&data[..valid]);
            }
            MapTarget::Compressed => {
                let within = block.0 % cluster.unwrap_or(1);
                if let Some(content) = self.read_cluster(inode, block.0 - within, tag)? {
                    let start = (within * BLOCK) as usize;
                    out[..valid].copy_from_slice(&content[start..start + valid]);
                }
            }
        }
        Ok(())
    }

    /// Updates the times of a content change, in memory.
    pub(crate) fn stamp_content(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        let change = self.change()?;
        let mut core = inode.core.write();
        if self.stamp_write(inode, &mut core) {
            self.mark_dirty(&change, inode, tag)?;
        }
        Ok(())
    }
}
