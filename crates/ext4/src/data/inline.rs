//! Content of regular files in the inode (`inline_data`), which moves to a block before it is changed.
//!
//! Nothing new is stored in inodes. Directories: [`crate::dir`].

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::{Bio, Buf};
use steadfs_vfs::{Cx, InodeFlags, Result};

use crate::credits;
use crate::dir::{INLINE_NAME, inline_parts};
use crate::disk;
use crate::disk::inode::{I_BLOCK_SIZE, INLINE_DATA};
use crate::disk::xattr::INDEX_SYSTEM;
use crate::fast_commit::refusal;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::io_error;
use crate::mballoc::Run;
use crate::txn::Handle;
use crate::xattr::Change;

impl Ext4 {
    /// Moves a file's content from the inode to a block. The caller holds `inode.lock` for writing.
    pub(crate) fn move_content_out(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        if !inode.has(INLINE_DATA) {
            return Ok(());
        }
        self.with_space(cx, || {
            let _one = inode.lock_flush();
            let mut content = inline_parts(&inode.core.read())?.concat();
            content.truncate(usize::try_from(inode.size()).unwrap_or(usize::MAX));
            let run = match content.is_empty() {
                true => None,
                false => Some(self.write_moved(cx, inode, &content)?),
            };
            let mapped = self.map_moved(inode, run);
            if let (Err(error), Some(run)) = (&mapped, run) {
                self.release_unmapped(run, error);
            }
            mapped
        })
    }

    /// Writes the content to a new block, which nothing maps yet.
    fn write_moved(&self, cx: &Cx, inode: &Inode, content: &[u8]) -> Result<Run> {
        let bs = self.geo.block_size;
        let goal = self.alloc.goal_for(&self.geo, inode.ino());
        let keep = self.root_reserved_clusters(cx);
        self.quota_blocks(cx, inode, 1)?;
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
        Ok(run)
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
            name: INLINE_NAME,
            value: None,
        };
        self.change_attr(handle, inode, core, &change)?;
        core.flags = InodeFlags(core.flags.0 & !INLINE_DATA.0 & !InodeFlags::INDEX.0);
        core.block = [0; I_BLOCK_SIZE];
        self.init_map(core);
        Ok(())
    }
}
