//! Content of regular files in the inode (`inline_data`). It changes with the inode, in the journal. Where it outgrows the
//! inode, or ranges are allocated, it moves to a block first.

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::{Bio, Buf};
use steadfs_vfs::{Cx, InodeFlags, Result};

use crate::credits;
use crate::disk;
use crate::disk::inode::{I_BLOCK_SIZE, INLINE_DATA};
use crate::disk::xattr::INDEX_SYSTEM;
use crate::extent;
use crate::fast_commit::refusal;
use crate::fs::Ext4;
use crate::inline;
use crate::inode::Inode;
use crate::io_error;
use crate::map::has_extents;
use crate::mballoc::Run;
use crate::quota::QuotaHold;
use crate::txn::Handle;
use crate::xattr::Change;

impl Ext4 {
    /// Writes to a file whose content is in the inode, or to a file without content, as far as the inode has room for
    /// the result; false where it has not: then nothing has changed. The caller holds `inode.lock` for writing.
    pub(crate) fn write_inline(
        &self,
        cx: &Cx,
        inode: &Inode,
        offset: u64,
        data: &[u8],
    ) -> Result<bool> {
        let end = offset.saturating_add(data.len() as u64);
        let Some(mut content) = self.inline_content(inode, end)? else {
            return Ok(false);
        };
        // Within the content, which is not longer than an inode.
        let at = offset as usize;
        content[at..at + data.len()].copy_from_slice(data);
        self.store_inline(cx, inode, &content, |core| {
            self.stamp_write(inode, core);
        })
    }

    /// Changes the size of a file whose content is in the inode, and whose new one is; else as [`Ext4::write_inline`].
    pub(crate) fn resize_inline(&self, cx: &Cx, inode: &Inode, size: u64) -> Result<bool> {
        if !inode.has(INLINE_DATA) {
            return Ok(false);
        }
        let Some(mut content) = self.inline_content(inode, size)? else {
            return Ok(false);
        };
        content.truncate(size as usize);
        self.store_inline(cx, inode, &content, |core| {
            let now = self.now(core);
            (core.mtime, core.ctime) = (now, now);
        })
    }

    /// The content that is or may be in the inode, at least `len` bytes; what was never stored is zeros. `None` for a
    /// file with a map, and for more than an inode has room for.
    fn inline_content(&self, inode: &Inode, len: u64) -> Result<Option<Vec<u8>>> {
        let core = inode.core.read();
        if !inline::is_allowed(&self.geo, &core) || len > self.geo.inode_size.into() {
            return Ok(None);
        }
        let mut content = match core.has(INLINE_DATA) {
            true => inline::parts(&core)?.concat(),
            // What was dirty or in flight has ended with the truncation to that size.
            false if inode.size() == 0 && is_unmapped(&core) => Vec::new(),
            false => return Ok(None),
        };
        let size = usize::try_from(inode.size()).unwrap_or(usize::MAX);
        content.truncate(size);
        // A larger size is corrupt for inline content.
        if size > content.len() && size > usize::from(self.geo.inode_size) {
            return Ok(None);
        }
        content.resize(size.max(len as usize), 0);
        Ok(Some(content))
    }

    /// Stores content, with its size, in the inode; false where it has no room.
    fn store_inline(
        &self,
        cx: &Cx,
        inode: &Inode,
        content: &[u8],
        stamp: impl FnOnce(&mut disk::Inode),
    ) -> Result<bool> {
        let mut fits = inode.core.read().clone();
        if !inline::store(&self.geo, &mut fits, content)? {
            return Ok(false);
        }
        let _one = inode.lock_flush();
        self.change_fields(cx, inode, 0, |handle, core| {
            let _: bool = inline::store(&self.geo, core, content)?;
            core.size = content.len() as u64;
            stamp(core);
            inode.record_tid(handle, true);
            self.note_attrs(handle)
        })?;
        inode.set_size(content.len() as u64);
        Ok(true)
    }

    /// Moves a file's content from the inode to a block. The caller holds `inode.lock` for writing.
    pub(crate) fn move_content_out(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        if !inode.has(INLINE_DATA) {
            return Ok(());
        }
        self.with_space(cx, || {
            let _one = inode.lock_flush();
            let mut content = inline::parts(&inode.core.read())?.concat();
            content.truncate(usize::try_from(inode.size()).unwrap_or(usize::MAX));
            let moved = match content.is_empty() {
                true => None,
                false => Some(self.write_moved(cx, inode, &content)?),
            };
            let run = moved.as_ref().map(|(run, _)| *run);
            let mapped = self.map_moved(inode, run);
            if let (Err(error), Some(run)) = (&mapped, run) {
                self.release_unmapped(run, error);
            }
            mapped
        })
    }

    /// Writes the content to a new block, which nothing maps yet, and which is held under limits of quota until it is counted.
    fn write_moved(&self, cx: &Cx, inode: &Inode, content: &[u8]) -> Result<(Run, QuotaHold)> {
        let bs = self.geo.block_size;
        let mut moved = inode.core.read().clone();
        self.init_map(&mut moved);
        let goal = self.goal_after(inode.ino(), &moved, FileBlock(0));
        let keep = self.root_reserved_clusters(cx);
        let held = self.hold_first_block(cx, inode)?;
        let run = self.alloc.allocate_spare(self, goal, 1, keep)?;
        let run = Run { len: 1, ..run };
        let file = Some((inode.ino(), FileBlock(0)));
        self.alloc.hold(&self.geo, run, file, false)?;
        let mut block = Buf::zeroed(bs.bytes());
        block.make_mut()[..content.len()].copy_from_slice(content);
        let bio = Bio::write(bs.offset_of(run.start), vec![block]);
        let written = self.queue.submit(bio, cx.tag).wait();
        inode.mark_unflushed(self.queue.next_flush());
        if let Err(error) = written {
            self.record_data_error(&error);
            self.alloc.release(self, run);
            return Err(io_error(error));
        }
        Ok((run, held))
    }

    /// Maps the new block, if there is content, instead of the inline content.
    fn map_moved(&self, inode: &Inode, run: Option<Run>) -> Result<()> {
        let tag = IoTag::default();
        let _pins = self.pin_to_change_attrs(inode, tag)?;
        let credits = credits::ATTRIBUTES + self.map_credits(&inode.core.read(), 1);
        self.txns().run(credits, tag, |handle| {
            handle.refuse_fast_commits(refusal::XATTR);
            let mut core = inode.core.write();
            let mut changed = core.clone();
            self.forget_inline(handle, inode, &mut changed)?;
            if let Some(run) = run {
                let first = FileBlock(0);
                self.map_allocation(handle, inode.ino(), &mut changed, first, run, false)?;
            }
            *core = changed;
            self.store_inode(handle, inode, &core)?;
            inode.record_tid(handle, true);
            Ok(())
        })
    }

    /// Replaces inline content by an empty map. The caller stores the inode.
    pub(crate) fn forget_inline(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
    ) -> Result<()> {
        let change = Change {
            index: INDEX_SYSTEM,
            name: inline::NAME,
            value: None,
        };
        self.change_attr(handle, inode, core, &change)?;
        core.flags = InodeFlags(core.flags.0 & !INLINE_DATA.0 & !InodeFlags::INDEX.0);
        core.block = [0; I_BLOCK_SIZE];
        self.init_map(core);
        Ok(())
    }
}

/// Whether a file has no blocks for its content.
fn is_unmapped(core: &disk::Inode) -> bool {
    let mut fresh = core.clone();
    match has_extents(core) {
        true => extent::init_root(&mut fresh),
        false => fresh.block = [0; I_BLOCK_SIZE],
    }
    core.size == 0 && core.block == fresh.block
}
