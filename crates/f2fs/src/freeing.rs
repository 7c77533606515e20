//! PendingFrees what nobody has any more: inodes without names whose last user lets them go.

use steadfs_base::{InodeNo, IoTag};
use steadfs_vfs::{FileKind, FsError, Result};

use crate::disk::{self, Nid};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::space::Need;

/// Direct nodes freed at once, with what they name: the gate is not held longer.
const DIRECT_NODES_PER_STEP: u32 = 4;

impl F2fs {
    /// Gives back lookup counts; the last one of an unlinked inode frees it, or the thaw if the volume is
    /// frozen. The caller keeps it as it is in that.
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
            self.deferred_evictions.lock().push(inode);
            return Ok(());
        }
        match self.check_writable() {
            Ok(()) => self.evict_unlinked(&inode),
            Err(_) => Ok(()),
        }
    }

    /// Frees an inode without names that its last caller has let go.
    fn evict_unlinked(&self, inode: &Inode) -> Result<()> {
        let evicted = self.evict(inode, IoTag::background());
        self.freeing.released();
        evicted
    }

    /// Frees what was let go while the volume was frozen.
    pub(crate) fn evict_deferred(&self) {
        let Ok(_open) = self.open_to_changes() else {
            return;
        };
        let left = std::mem::take(&mut *self.deferred_evictions.lock());
        for inode in left {
            if self.check_writable().is_ok()
                && let Err(error) = self.report_corruption(self.evict_unlinked(&inode))
            {
                tracing::warn!(ino = %inode.nid(), %error, "freeing an unlinked inode failed");
            }
        }
    }

    /// Frees an inode that has no name and that no caller knows. The caller holds no lock. Should it
    /// fail, the inode stays an orphan, for the next mount.
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

    /// Frees the orphans of the last mount; how many. One that cannot be freed stays among them, for
    /// the next one.
    pub(crate) fn free_orphans(&self, tag: IoTag) -> u64 {
        let mut freed = 0;
        for nid in self.orphans.all() {
            let result = self
                .inode(nid, tag)
                .and_then(|inode| self.evict(&inode, tag));
            match result {
                Ok(()) => freed += 1,
                Err(FsError::Stale) => self.forget_orphan(nid),
                Err(error) => tracing::warn!(ino = %nid, %error, "an orphan cannot be freed"),
            }
        }
        freed
    }

    /// Takes an inode off the list that is not there.
    fn forget_orphan(&self, nid: Nid) {
        if let Ok(change) = self.change() {
            self.orphans.remove(&change, nid);
        }
    }

    /// Frees everything an inode without names has, and the inode. It is among the orphans; nobody
    /// refers to it any more.
    pub(crate) fn evict(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        let _in_progress = self.freeing.begin();
        let _alone = inode.lock.write();
        // Freed by somebody else, or known to a caller again: then his last `forget` frees it.
        if inode.is_dead() || inode.is_looked_up() {
            return Ok(());
        }
        let _one = inode.lock_flush();
        let blocks = self.discard_pages(inode)?;
        self.space.release(Need { blocks, nodes: 0 });
        self.release_nodes(inode, 0);
        let mapped = has_map(inode.kind(), &inode.core.read());
        while mapped && !self.truncate_step(inode, tag)? {}
        // An inode that is no orphan any more is freed: its node is at hand.
        let _pins = self.pin_inodes(&[inode], tag)?;
        let change = self.change()?;
        {
            let mut core = inode.core.write();
            self.free_xattr_node(&change, inode, &mut core, tag)?;
        }
        self.orphans.remove(&change, inode.nid());
        inode.set_orphan(false);
        self.free_inode(&change, inode, tag)
    }

    /// Drops an inode's blocks in memory; how many promises they held. A checkpoint may be writing some,
    /// which is waited for.
    fn discard_pages(&self, inode: &Inode) -> Result<u64> {
        loop {
            inode.pages.wait_for_writes(0..u64::MAX);
            let _change = self.change()?;
            if let Some(blocks) = inode.pages.try_discard(0..u64::MAX) {
                return Ok(blocks);
            }
        }
    }

    /// Frees some of an inode's blocks; whether none is left.
    fn truncate_step(&self, inode: &Inode, tag: IoTag) -> Result<bool> {
        let change = self.change()?;
        let mut core = inode.core.write();
        let freed_from =
            self.truncate_nodes(&change, inode, &mut core, 0, DIRECT_NODES_PER_STEP, tag)?;
        Ok(freed_from == 0)
    }
}

/// Whether an inode's words are addresses of blocks.
fn has_map(kind: FileKind, core: &disk::Inode) -> bool {
    let inline = match kind {
        FileKind::Regular | FileKind::Symlink => disk::inode::Inline::DATA,
        FileKind::Directory => disk::inode::Inline::DENTRIES,
        _ => return false,
    };
    !core.inline.contains(inline)
}
