//! The block with attributes of an inode, which several inodes may share.

use std::sync::Arc;

use steadfs_base::{Corruption, DevBlock, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_vfs::{FsError, Result};

use super::Change;
use super::values::{Owner, Reference};
use crate::disk;
use crate::disk::xattr::{self, AttrList, BlockAttrs};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::mballoc::Run;
use crate::pins::Pins;
use crate::txn::Handle;
use crate::verified;

/// A change of an inode's attribute block.
#[derive(Default)]
pub(super) struct BlockChange {
    /// The list in the block changes.
    changes: bool,
    /// No other inode uses the block.
    pub(super) in_place: bool,
    /// The block that replaces it.
    pub(super) new: Option<DevBlock>,
    /// References of a shared block that the new block has, too.
    kept: Vec<Reference>,
}

impl Ext4 {
    /// A verified block of attributes.
    pub(super) fn attr_block(&self, at: DevBlock, tag: IoTag) -> Result<Arc<MetaBuf>> {
        if !self.alloc.may_own(self.geo(), at, 1) {
            return Err(
                Corruption::new("attribute block is part of the volume's own metadata")
                    .in_block(at)
                    .into(),
            );
        }
        let buf = self.block(at, tag)?;
        buf.verify_once(verified::XATTR, |block| {
            BlockAttrs::parse(self.geo(), at, block).map(|_| ())
        })?;
        Ok(buf)
    }

    pub(super) fn block_list(&self, core: &disk::Inode) -> Result<AttrList> {
        let Some(at) = core.file_acl else {
            return Ok(AttrList::default());
        };
        let buf = self.attr_block(at, IoTag::default())?;
        Ok(BlockAttrs::parse(self.geo(), at, &buf.data())?
            .iter()
            .collect())
    }

    /// Prepares what [`Ext4::apply_block`] does: a block that is not shared changes in place, else there is a new one;
    /// none for an empty list.
    pub(super) fn plan_block(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &disk::Inode,
        list: &AttrList,
        change: &Change<'_>,
    ) -> Result<BlockChange> {
        let mut planned = BlockChange {
            changes: true,
            ..BlockChange::default()
        };
        if list.is_empty() {
            return Ok(planned);
        }
        if let Some(at) = core.file_acl {
            let buf = self.attr_block(at, IoTag::default())?;
            if BlockAttrs::parse(self.geo(), at, &buf.data())?.refcount <= 1 {
                planned.in_place = true;
                return Ok(planned);
            }
            let mut kept = list.clone();
            kept.remove(change.index, change.name);
            planned.kept = self.references(Owner::of(inode.ino(), core), &kept)?;
        }
        let goal = self.alloc.goal_for(self.geo(), inode.ino());
        planned.new = Some(self.alloc.alloc_meta_block(self, handle, goal)?);
        Ok(planned)
    }

    /// Frees the block that was allocated for a change that failed with `error`.
    pub(super) fn cancel_block<T>(
        &self,
        handle: &mut Handle<'_>,
        new: Option<DevBlock>,
        error: FsError,
    ) -> Result<T> {
        if let Some(start) = new {
            let run = Run { start, len: 1 };
            let (start, len) = self.geo().whole_clusters(start, 1);
            let whole = Run {
                start,
                len: len as u32,
            };
            self.alloc
                .unmark_used(self, handle, run, None, Some(whole))?;
            self.alloc.release(self, run);
        }
        Err(error)
    }

    /// Stores `list` in the inode's block.
    pub(super) fn apply_block(
        &self,
        handle: &mut Handle<'_>,
        core: &mut disk::Inode,
        owner: Owner,
        planned: BlockChange,
        list: &mut AttrList,
    ) -> Result<()> {
        if planned.in_place {
            return self.rewrite_block(handle, core, list);
        }
        if !planned.changes {
            return Ok(());
        }
        for reference in &planned.kept {
            self.add_reference(handle, reference)?;
        }
        if let Some(at) = planned.new {
            let buf = self.meta().get_new(at);
            list.write_block(self.geo(), at, 1, &mut handle.write(&buf)?);
            buf.set_verified(verified::XATTR);
        }
        self.release_block(handle, owner, core)?;
        if planned.new.is_some() {
            core.file_acl = planned.new;
            core.blocks += self.geo().cluster_units();
        }
        Ok(())
    }

    /// Stores `list` in the inode's block, which no other inode uses.
    pub(super) fn rewrite_block(
        &self,
        handle: &mut Handle<'_>,
        core: &disk::Inode,
        list: &mut AttrList,
    ) -> Result<()> {
        let at = core.file_acl.expect("the inode has a block");
        let buf = self.attr_block(at, IoTag::default())?;
        list.write_block(self.geo(), at, 1, &mut handle.write(&buf)?);
        Ok(())
    }

    /// Decrements the reference count of the inode's block if other inodes use it, too, and returns whether they do.
    pub(super) fn leave_shared_block(
        &self,
        handle: &mut Handle<'_>,
        core: &mut disk::Inode,
    ) -> Result<bool> {
        let Some(at) = core.file_acl else {
            return Ok(false);
        };
        let buf = self.attr_block(at, IoTag::default())?;
        if BlockAttrs::parse(self.geo(), at, &buf.data())?.refcount <= 1 {
            return Ok(false);
        }
        let mut block = handle.write(&buf)?;
        // Another inode may have left it meanwhile.
        let refcount = BlockAttrs::parse(self.geo(), at, &block)?.refcount;
        if refcount <= 1 {
            return Ok(false);
        }
        xattr::set_refcount(self.geo(), at, &mut block, refcount - 1);
        self.forget_block(core);
        Ok(true)
    }

    /// Releases the inode's block: decrements its reference count, or frees it with its references.
    pub(super) fn release_block(
        &self,
        handle: &mut Handle<'_>,
        owner: Owner,
        core: &mut disk::Inode,
    ) -> Result<()> {
        if self.leave_shared_block(handle, core)? {
            return Ok(());
        }
        let Some(at) = core.file_acl else {
            return Ok(());
        };
        if self.has_value_inodes() {
            self.drop_references(handle, owner, &self.block_list(core)?)?;
        }
        let mut pins = Pins::default();
        self.alloc.pin_to_free(self, &mut pins, at, 1)?;
        handle.forget(at)?;
        self.alloc.free_blocks(self, handle, at, 1)?;
        self.forget_block(core);
        Ok(())
    }

    fn forget_block(&self, core: &mut disk::Inode) {
        core.file_acl = None;
        core.blocks = core.blocks.saturating_sub(self.geo().cluster_units());
    }
}
