//! Frees unlinked inodes when their last reference is dropped.

use steadfs_base::{InodeNo, IoTag};
use steadfs_vfs::{FileKind, FsError, Result};

use crate::cp_lock::Change;
use crate::disk::{self, BlockAddr, Nid};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::segment::BlockKind;
use crate::space::Need;

/// Direct nodes freed in one `Change`, with their blocks, so that a checkpoint does not wait long.
const DIRECT_NODES_PER_STEP: u32 = 4;

impl F2fs {
    /// A structure no longer refers to a block of the main area. Returns whether the block was valid and of this kind:
    /// if not, the structure was corrupt, which is recorded, and no block becomes free. The caller holds no node's
    /// lock.
    pub(crate) fn invalidate(&self, _: &Change<'_>, addr: BlockAddr, content: BlockKind) -> bool {
        let (Some(block), Some(segments)) = (addr.block(), self.segments.get()) else {
            return false;
        };
        self.meta.forget(block);
        match segments.invalidate(addr, content) {
            Ok(unusable) => {
                if unusable {
                    self.space.add_unusable(1);
                }
                true
            }
            Err(error) => {
                self.record_corruption(&error.into());
                false
            }
        }
    }

    /// Drops lookup counts. The last one of an unlinked inode frees it; if the volume is frozen, the thaw does. The
    /// caller holds `remount_lock` shared.
    pub(crate) fn put(&self, ino: InodeNo, count: u64) -> Result<()> {
        let Some(nid) = Nid::from_vfs(ino) else {
            return Ok(());
        };
        let Some(inode) = self.inodes.drop_evicted_lookups(nid, count) else {
            return Ok(());
        };
        if !inode.drop_lookups(count) || inode.core.read().links > 0 {
            return Ok(());
        }
        if self.is_frozen() {
            self.remount.defer(inode);
            return Ok(());
        }
        match self.check_writable() {
            Ok(()) => self.evict_unlinked(&inode),
            Err(_) => Ok(()),
        }
    }

    /// Frees an unlinked inode whose last reference was dropped.
    fn evict_unlinked(&self, inode: &Inode) -> Result<()> {
        let evicted = self.evict(inode, IoTag::background());
        self.freeing.released();
        evicted
    }

    /// Frees the inodes whose last reference was dropped while the volume was frozen.
    pub(crate) fn evict_deferred(&self) {
        let Ok(_open) = self.open_to_changes() else {
            return;
        };
        for inode in self.remount.take_deferred() {
            if self.check_writable().is_ok()
                && let Err(error) = self.report_corruption(self.evict_unlinked(&inode))
            {
                tracing::warn!(ino = %inode.nid(), %error, "freeing an unlinked inode failed");
            }
        }
    }

    /// Frees an inode that has no name and no lookups. The caller holds no lock. If it fails, the inode stays an orphan
    /// for the next mount.
    pub(crate) fn evict_if_unlinked(&self, inode: &Inode, tag: IoTag) {
        if inode.core.read().links > 0 {
            return;
        }
        if inode.is_looked_up() {
            return self.freeing.expect_release();
        }
        if let Err(error) = self.evict(inode, tag) {
            tracing::warn!(ino = %inode.nid(), %error, "freeing an unlinked inode failed");
        }
    }

    /// Frees the orphans of the last mount; returns their number. One that cannot be freed stays an orphan for the next
    /// mount; one that the volume was handed over with stays until it is not in use any more.
    pub(crate) fn free_orphans(&self, tag: IoTag) -> u64 {
        let mut freed = 0;
        for nid in self.orphans.all() {
            if self.is_hidden(nid) {
                tracing::warn!(ino = %nid, "a quota file is listed as an orphan, and stays");
                self.forget_orphan(nid);
                continue;
            }
            let result = self.inode(nid, tag).and_then(|inode| {
                if inode.is_looked_up() {
                    inode.marks.adopt_orphan();
                    self.freeing.expect_release();
                    return Ok(0);
                }
                self.evict(&inode, tag).map(|()| 1)
            });
            match result {
                Ok(count) => freed += count,
                Err(FsError::Stale) => self.forget_orphan(nid),
                Err(error) => tracing::warn!(ino = %nid, %error, "an orphan cannot be freed"),
            }
        }
        freed
    }

    /// Removes an orphan whose inode does not exist.
    fn forget_orphan(&self, nid: Nid) {
        if let Ok(change) = self.change() {
            self.orphans.remove_number(&change, nid);
        }
    }

    /// Frees an unlinked inode and everything it has. It is an orphan, and no caller refers to it.
    pub(crate) fn evict(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        let _in_progress = self.freeing.begin();
        let _alone = inode.lock.write();
        // Another task has freed it, or a caller has looked it up again: its last `forget` frees it then.
        if inode.marks.is_dead() || inode.is_looked_up() {
            return Ok(());
        }
        self.drop_staged_of_dead(inode, tag);
        let _one = inode.lock_flush();
        let blocks = self.discard_pages(inode)?;
        self.end_delay(inode, blocks);
        self.space.release(Need { blocks, nodes: 0 });
        self.release_nodes(inode, 0);
        let mapped = has_map(inode.kind(), &inode.core.read());
        while mapped && !self.truncate_step(inode, tag)? {}
        // Once it is no orphan it must be freed, so its node is read first.
        let _pins = self.pin_inodes(&[inode], tag)?;
        let change = self.change()?;
        {
            let mut core = inode.core.write();
            self.free_xattr_node(&change, inode, &mut core, tag)?;
        }
        self.orphans.remove(&change, inode);
        self.free_inode(&change, inode, tag)
    }

    /// Drops an inode's dirty blocks; returns the blocks reserved for them. Waits for blocks that a checkpoint is
    /// writing.
    fn discard_pages(&self, inode: &Inode) -> Result<u64> {
        loop {
            inode.pages.wait_for_writes(0..u64::MAX);
            let _change = self.change()?;
            if let Some(blocks) = inode.pages.try_discard(0..u64::MAX) {
                return Ok(blocks);
            }
        }
    }

    /// Frees some of an inode's blocks; returns whether all are free.
    fn truncate_step(&self, inode: &Inode, tag: IoTag) -> Result<bool> {
        let change = self.change()?;
        let mut core = inode.core.write();
        let freed_from =
            self.truncate_nodes(&change, inode, &mut core, 0, DIRECT_NODES_PER_STEP, tag)?;
        self.charge(inode, &core);
        Ok(freed_from == 0)
    }
}

/// Whether an inode has block addresses, not inline content.
fn has_map(kind: FileKind, core: &disk::Inode) -> bool {
    let inline = match kind {
        FileKind::Regular | FileKind::Symlink => disk::inode::Inline::DATA,
        FileKind::Directory => disk::inode::Inline::DENTRIES,
        _ => return false,
    };
    !core.inline.contains(inline)
}
