//! References that end: values without references become orphans and are freed.

use steadfs_base::IoTag;
use steadfs_vfs::Result;

use super::values::Owner;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::orphan;
use crate::pins::Pins;
use crate::txn::Handle;

/// References that are dropped in one handle when their owner is freed.
const DROPPED_AT_ONCE: usize = 4;
/// Credits for that: the owner and its attribute block, and for each value its inode and its orphan entry.
const DROP_CREDITS: u32 = 2 + DROPPED_AT_ONCE as u32 * (1 + orphan::CREDITS);

impl Ext4 {
    /// Makes orphans of the values that nothing refers to since a point of this handle. The caller holds no fields of
    /// an inode, and calls [`Ext4::free_values`] when it holds no lock.
    pub(crate) fn orphan_values(&self, handle: &mut Handle<'_>) -> Result<()> {
        let before = handle.savepoint();
        for value in handle.take_unreferenced() {
            self.orphans.add(self, handle, &value)?;
            self.values.unreferenced.lock().push(value);
        }
        handle.consistent_since(before);
        Ok(())
    }

    /// Frees the values that nothing refers to. What cannot be freed stays an orphan. The caller holds no lock.
    pub(crate) fn free_values(&self) {
        if !self.has_value_inodes() {
            return;
        }
        let unreferenced = std::mem::take(&mut *self.values.unreferenced.lock());
        for value in unreferenced {
            if let Err(error) = self.report_corruption(self.evict_one(&value)) {
                tracing::warn!(ino = %value.ino(), %error, "freeing an attribute's value failed");
            }
        }
    }

    /// Drops all references of an inode that is being freed, in as many transactions as needed: its attributes have
    /// fewer entries from step to step. Values that are corrupt are reported and left alone.
    pub(crate) fn drop_values(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        if !self.has_value_inodes() || !inode.core.read().may_have_attrs() {
            return Ok(());
        }
        loop {
            if !handle.extend(DROP_CREDITS) {
                handle.restart(DROP_CREDITS)?;
            }
            let mut pins = Pins::default();
            self.orphans.pin_to_add(self, &mut pins)?;
            let more = self.drop_some_values(handle, inode)?;
            self.orphan_values(handle)?;
            handle.consistent();
            if !more {
                return Ok(());
            }
        }
    }

    /// Returns whether there may be more.
    fn drop_some_values(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<bool> {
        let mut core = inode.core.write();
        // From here on no other inode uses the block.
        if self.leave_shared_block(handle, &mut core)? {
            self.store_inode(handle, inode, &core)?;
        }
        let owner = Owner::of(inode.ino(), &core);
        let (mut inside, mut outside) = self.attr_lists(inode.ino(), &core)?;
        let mut taken = inside.take_values(DROPPED_AT_ONCE);
        let in_block = outside.take_values(DROPPED_AT_ONCE - taken.len());
        let rewrite = !in_block.is_empty();
        taken.extend(in_block);
        if taken.is_empty() {
            return Ok(false);
        }
        let more = taken.len() == DROPPED_AT_ONCE;
        let references = self.droppable(owner, &taken)?;
        let mut pins = Pins::default();
        for reference in &references {
            let ino = reference.inode.ino();
            pins.keep(self.inode_slot(ino, IoTag::default())?.0);
        }
        for reference in references {
            core.blocks = core.blocks.saturating_sub(self.units_of(&reference));
            self.drop_reference(handle, reference)?;
        }
        if rewrite {
            self.rewrite_block(handle, &core, &mut outside)?;
        }
        core.xattr_area = inside.to_inode_area(core.xattr_room(self.geo()));
        self.store_inode(handle, inode, &core)?;
        Ok(more)
    }
}
