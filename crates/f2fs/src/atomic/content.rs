//! The content of a file that is written atomically: staged blocks over those of the file.

use std::ops::Range;

use steadfs_base::{FileBlock, IoTag};
use steadfs_vfs::{Cx, ReadData, Result};

use super::AtomicWrite;
use crate::data::{BLOCK, MapTarget};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::space::Need;

impl F2fs {
    /// Whether the staging file has this block, and the number of blocks, up to `most`, for which that is so, too.
    fn is_staged(&self, staging: &Inode, block: u64, most: u64, tag: IoTag) -> Result<(bool, u64)> {
        // The cache before the map: a block leaves the cache only after it is mapped.
        let next = staging.pages.next_cached(FileBlock(block)).map(|n| n.0);
        if next == Some(block) {
            return Ok((true, 1));
        }
        let most = next.map_or(most, |next| most.min(next - block));
        let mapped = self.map(staging, block, most, tag)?;
        Ok((mapped.target != MapTarget::Hole, mapped.len.min(most)))
    }

    /// Reads a range within the size that callers see. The caller holds `inode.lock`.
    pub(crate) fn read_staged(
        &self,
        inode: &Inode,
        write: &AtomicWrite,
        range: Range<u64>,
        tag: IoTag,
    ) -> Result<ReadData> {
        let staging = &*write.staging;
        let _shared = staging.lock.read();
        let mut out = ReadData::new();
        let mut at = range.start;
        while at < range.end {
            let blocks = at / BLOCK..range.end.div_ceil(BLOCK);
            let (staged, len) =
                self.is_staged(staging, blocks.start, blocks.end - blocks.start, tag)?;
            let end = range.end.min((blocks.start + len) * BLOCK);
            if staged {
                out.append(self.read_blocks(staging, at..end, None, tag)?);
            } else {
                let kept = at..end.min(write.base()).max(at);
                let zeros = end - kept.end;
                if !kept.is_empty() {
                    out.append(self.read_blocks(inode, kept, None, tag)?);
                }
                out.push_zeros(usize::try_from(zeros).unwrap_or(usize::MAX));
            }
            at = end;
        }
        Ok(out)
    }

    /// Writes to the staging file. The caller holds `inode.lock` for writing. Returns the bytes written.
    pub(crate) fn write_staged(
        &self,
        cx: &Cx,
        inode: &Inode,
        write: &AtomicWrite,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let staging = &*write.staging;
        let _exclusive = staging.lock.write();
        let (size, end) = (inode.size(), offset + data.len() as u64);
        self.reserve_commit(cx, inode, offset / BLOCK..end.div_ceil(BLOCK))?;
        if offset > size {
            self.extend_staged(cx, inode, write, size, offset)?;
        }
        // Blocks that are written in part.
        for edge in [offset, end] {
            if !edge.is_multiple_of(BLOCK) {
                self.stage_block(cx, inode, write, edge / BLOCK)?;
            }
        }
        let (bytes, result) = self.write_pages(cx, staging, offset, data, u64::MAX);
        if bytes == 0 {
            result?;
        }
        inode.set_size(staging.size());
        self.stamp_content(inode, cx.tag)?;
        Ok(bytes)
    }

    /// Reserves the nodes that a commit of these blocks will make.
    pub(crate) fn reserve_commit(&self, cx: &Cx, inode: &Inode, blocks: Range<u64>) -> Result<()> {
        let new = self.unreserved_nodes(inode, blocks.clone(), cx.tag)?.len();
        if new == 0 {
            return Ok(());
        }
        let need = Need {
            blocks: 0,
            nodes: new as u64,
        };
        let _held = self.hold_space(cx, inode, need)?;
        let privileged = self.may_use_reserved(cx);
        self.reserve_nodes(inode, Some(blocks), privileged, cx.tag)?
            .keep();
        // They are counted as delayed.
        self.delay(inode, 0);
        Ok(())
    }

    /// Copies a block of the file to the staging file, unless that has it or callers see zeros there.
    fn stage_block(&self, cx: &Cx, inode: &Inode, write: &AtomicWrite, block: u64) -> Result<()> {
        let staging = &*write.staging;
        let kept = block * BLOCK..write.base().min((block + 1) * BLOCK);
        if kept.is_empty() || self.is_staged(staging, block, 1, cx.tag)?.0 {
            return Ok(());
        }
        self.reserve_commit(cx, inode, block..block + 1)?;
        let content = self
            .read_blocks(inode, kept.clone(), None, cx.tag)?
            .to_vec();
        self.write_pages(cx, staging, kept.start, &content, staging.size())
            .1
    }

    /// Before the size grows from `size` to `end`: the rest of the last block must read as zeros.
    fn extend_staged(
        &self,
        cx: &Cx,
        inode: &Inode,
        write: &AtomicWrite,
        size: u64,
        end: u64,
    ) -> Result<()> {
        if size.is_multiple_of(BLOCK) {
            return Ok(());
        }
        self.stage_block(cx, inode, write, size / BLOCK)?;
        self.zero_tail(cx, &write.staging, size, end)
    }

    /// Changes the size that callers see. The caller holds `inode.lock` for writing.
    pub(crate) fn truncate_staged(
        &self,
        cx: &Cx,
        inode: &Inode,
        write: &AtomicWrite,
        size: u64,
    ) -> Result<()> {
        let staging = &*write.staging;
        let _exclusive = staging.lock.write();
        let old = inode.size();
        if size < old {
            if !size.is_multiple_of(BLOCK) {
                self.stage_block(cx, inode, write, size / BLOCK)?;
            }
            self.shrink(cx, staging, size)?;
            write.limit_base(size);
        } else {
            self.extend_staged(cx, inode, write, old, size)?;
            staging.set_size(size);
        }
        inode.set_size(size);
        self.stamp_content(inode, cx.tag)
    }
}
