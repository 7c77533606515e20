//! Inline data: content that is stored in the inode.
//!
//! **Problem.** Content that outgrows the inode must be on the device before an inode without it is: it may have been
//! made durable. **Rule.** It moves to the cache like new data, and the node keeps it, flags and size included, for
//! checkpoints and fsyncs ([`Inode::leaves_inline`]). Write-back maps the block that has it and clears the inline area in
//! one change. The first block is always among the first that write-back maps.

use std::ops::Range;

use steadfs_base::IoTag;
use steadfs_vfs::{Cx, ReadData, Result};

use crate::cp_lock::Change;
use crate::disk;
use crate::disk::inode::Inline;
use crate::fs::F2fs;
use crate::inode::Inode;

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
        if inode.leaves_inline() {
            return false;
        }
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

    /// Moves inline content to a block on the device. The caller holds `inode.lock` for writing.
    ///
    /// # Errors
    /// As [`F2fs::write_out_locked`].
    pub(crate) fn leave_inline(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        self.begin_to_leave_inline(cx, inode)?;
        match inode.has_inline_data() {
            true => self.write_out_upto(inode, 1, cx.tag),
            false => Ok(()),
        }
    }

    /// Moves inline content to the cache. The caller holds `inode.lock` for writing.
    pub(crate) fn begin_to_leave_inline(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        if !inode.is_content_inline() {
            return Ok(());
        }
        let exists = inode.core.read().inline.contains(Inline::DATA_EXISTS);
        let size = inode.size();
        if size == 0 || !exists {
            return self.clear_inline(inode, cx.tag);
        }
        let content = self.inline_content(inode, 0..size, cx.tag)?.to_vec();
        inode.set_leaves_inline(true);
        let (_, moved) = self.write_pages(cx, inode, 0, &content, 0);
        if moved.is_err() {
            self.return_to_inline(inode);
        }
        moved
    }

    /// Drops content that has moved to the cache: that of the node is valid again, as far as the caller keeps it. The
    /// caller holds `inode.lock` for writing.
    pub(crate) fn return_to_inline(&self, inode: &Inode) {
        if inode.leaves_inline() {
            // Waits for a write-back in flight, which may map the content.
            drop(inode.lock_flush());
        }
        if inode.leaves_inline() {
            self.drop_pages(inode, 0..u64::MAX);
            self.release_nodes(inode, 0);
            inode.set_leaves_inline(false);
        }
    }

    /// Write-back has written content that has moved to the cache, the first block among it, and is about to map it.
    pub(crate) fn end_leaving_inline(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
    ) -> Result<()> {
        self.drop_inline(change, inode, core, IoTag::default())?;
        inode.set_leaves_inline(false);
        Ok(())
    }

    /// Clears the inline content: the file is a hole.
    pub(crate) fn clear_inline(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        let change = self.change()?;
        let mut core = inode.core.write();
        self.drop_inline(&change, inode, &mut core, tag)
    }

    fn drop_inline(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        tag: IoTag,
    ) -> Result<()> {
        self.mark_dirty(change, inode, tag)?;
        let area = core.inline_range(&self.layout);
        let node = self.inode_node(inode.nid(), tag)?;
        let clear = |block: &mut [u8]| {
            block[area].fill(0);
            Ok(())
        };
        self.nodes.change_packed(change, &node, clear)?;
        core.inline = core.inline.without(FLAGS);
        Ok(())
    }
}
