//! Inline data: content that is stored in the inode.

use std::ops::Range;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf};
use steadfs_vfs::{Cx, ReadData, Result};

use crate::data::BLOCK;
use crate::data::placement::Occasion;
use crate::disk::BLOCK_SIZE;
use crate::disk::inode::Inline;
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::segment::{Purpose, Run};
use crate::space::Need;

const FLAGS: Inline = Inline::DATA.union(Inline::DATA_EXISTS);

impl F2fs {
    /// Reads inline content; the range ends at or before the size, which was validated when the inode was read.
    pub(crate) fn inline_content(
        &self,
        inode: &Inode,
        range: Range<u64>,
        tag: IoTag,
    ) -> Result<ReadData> {
        let area = inode.core.read().inline_range(&self.layout);
        let at = |offset: u64| {
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            area.start.saturating_add(offset).min(area.end)
        };
        let mut out = ReadData::new();
        out.push(
            self.inode_block(inode, tag)?.into_shared(),
            at(range.start)..at(range.end),
        );
        Ok(out)
    }

    /// Whether the content is inline and can stay so with this size.
    pub(crate) fn fits_inline(&self, inode: &Inode, size: u64) -> bool {
        let core = inode.core.read();
        core.inline.contains(Inline::DATA) && size <= core.inline_range(&self.layout).len() as u64
    }

    /// Writes to inline content that stays inline. The caller holds `inode.lock` for writing.
    pub(crate) fn write_inline(
        &self,
        inode: &Inode,
        offset: u64,
        data: &[u8],
        tag: IoTag,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        self.change_inline(inode, inode.size().max(end), tag, |content| {
            content[offset as usize..end as usize].copy_from_slice(data);
        })?;
        self.stamp_content(inode, tag)
    }

    /// Changes the size of inline content that stays inline. The caller holds `inode.lock` for writing.
    pub(crate) fn resize_inline(&self, inode: &Inode, size: u64, tag: IoTag) -> Result<()> {
        self.change_inline(inode, size, tag, |_| {})?;
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, inode, tag)?;
        let now = self.now();
        (core.mtime, core.ctime) = (now, now);
        Ok(())
    }

    /// Sets the size, zeroes everything beyond the old and the new size, and lets `edit` change the content.
    fn change_inline(
        &self,
        inode: &Inode,
        size: u64,
        tag: IoTag,
        edit: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, inode, tag)?;
        let area = core.inline_range(&self.layout);
        let node = self.inode_node(inode.nid(), tag)?;
        let mut block = self.nodes.change(&change, &node)?;
        let content = &mut block[area];
        let kept = core.size.min(size) as usize;
        content[kept..].fill(0);
        edit(&mut content[..size as usize]);
        drop(block);
        core.inline = core.inline.union(Inline::DATA_EXISTS);
        core.size = size;
        inode.set_size(size);
        Ok(())
    }

    /// Moves inline content to a block. The caller holds `inode.lock` for writing.
    pub(crate) fn leave_inline(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        if !inode.has_inline_data() {
            return Ok(());
        }
        let exists = inode.core.read().inline.contains(Inline::DATA_EXISTS);
        let size = inode.size();
        if size == 0 || !exists {
            return self.clear_inline(inode, None, cx.tag);
        }
        let content = self.inline_content(inode, 0..size, cx.tag)?.to_vec();
        let mut block = vec![0; BLOCK_SIZE];
        block[..content.len()].copy_from_slice(&content);
        let one = Need {
            blocks: 1,
            nodes: 0,
        };
        self.space.reserve(one, self.may_use_reserved(cx))?;
        let placed = self.write_moved(inode, block, cx.tag);
        let result = placed.and_then(|run| {
            let cleared = self.clear_inline(inode, Some(run), cx.tag);
            if cleared.is_err() {
                self.segments().release(run);
            }
            cleared
        });
        if result.is_err() {
            self.space.release(one);
        }
        result
    }

    /// Writes a newly allocated block and waits for it.
    fn write_moved(&self, inode: &Inode, block: Vec<u8>, tag: IoTag) -> Result<Run> {
        let log = self.data_log(&self.file_hints(inode), Occasion::Sync);
        let run = self.segments().allocate(log, 1, Purpose::User)?;
        let bio = Bio::write(u64::from(run.start.0) * BLOCK, vec![Buf::copy_of(&block)]);
        let written = self.queue.submit(bio, tag).wait();
        inode.record_written(true, self.queue.next_flush());
        if written.is_err() {
            self.segments().release(run);
        }
        written.map_err(io_error)?;
        Ok(run)
    }

    /// Clears the inline content; the file's first block is mapped to `run`, or is a hole.
    fn clear_inline(&self, inode: &Inode, run: Option<Run>, tag: IoTag) -> Result<()> {
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, inode, tag)?;
        let area = core.inline_range(&self.layout);
        let node = self.inode_node(inode.nid(), tag)?;
        let clear = |block: &mut [u8]| {
            block[area].fill(0);
            Ok(())
        };
        self.nodes.change_packed(&change, &node, clear)?;
        core.inline = core.inline.without(FLAGS);
        let Some(run) = run else {
            return Ok(());
        };
        let slot = self.make_slot(&change, inode, &mut core, 0, tag)?;
        self.set_slot(&change, inode, &mut core, &slot, run.start, tag)?;
        self.segments().set_valid(run.start, slot.owner());
        Ok(())
    }
}
