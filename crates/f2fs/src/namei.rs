//! Names: what the directory operations have in common.
//!
//! **Lock order.** A call takes the `lock` of each directory whose names it changes, by inode number. An inode that
//! is not a directory is protected by its `core` alone, because names change only its link count. Then `cp_lock` (a
//! `Change`), then one `core` at a time.
//!
//! **Order of steps.** Before the first change, everything is looked up and all space is reserved. After that, only
//! a device failure or corruption can make the call fail.

mod create;
pub(crate) mod extensions;
mod link;
mod new_inode;
mod read;
mod rename;
mod restore;

pub(crate) use new_inode::flags_for;

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{InodeNo, IoTag};
use steadfs_rt::now;
use steadfs_vfs::{Cx, FileKind, FsError, Result, names};

use crate::checkpoint::Reason;
use crate::dentry::{DentrySearch, FreeDentry};
use crate::disk::superblock::StopReason;
use crate::disk::{self, Nid};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::space::Need;

/// The maximum link count (`F2FS_LINK_MAX`).
const LINK_MAX: u32 = u32::MAX;
/// How long an operation without space waits for blocks that are being freed.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(1);

impl F2fs {
    /// The directory with this inode number. `NotDir` for another file type.
    pub(crate) fn directory(&self, ino: InodeNo, tag: IoTag) -> Result<Arc<Inode>> {
        let inode = self.by_number(ino, tag)?;
        if inode.kind() == FileKind::Directory {
            Ok(inode)
        } else {
            Err(FsError::NotDir)
        }
    }

    /// Starts an operation that creates nodes. The caller holds no lock.
    pub(crate) fn prepare(&self, cx: &Cx) -> Result<()> {
        self.check_writable()?;
        self.nat.build_free_nids(cx.tag)
    }

    /// Runs an operation, and retries it on `NoSpace` as long as blocks or node ids are about to be freed.
    pub(crate) fn retry_without_space<T>(
        &self,
        cx: &Cx,
        mut run: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut result = run();
        let until = now() + SPACE_WAIT_MAX;
        while matches!(result, Err(FsError::NoSpace)) && !until.since(now()).is_zero() {
            if self.space.has_prefree_nids() {
                self.checkpoint(Reason::Sync, cx.tag)?;
            } else if !self.freeing.wait() {
                break;
            }
            result = run();
        }
        result
    }

    /// Finds free slots for `name`. A full inline directory is converted to blocks first.
    fn find_free_dentry(&self, cx: &Cx, dir: &Inode, name: &[u8]) -> Result<FreeDentry> {
        self.check_new_name_in(dir, name)?;
        loop {
            match self.search(dir, name, cx.tag)? {
                DentrySearch::Found(_) => return Err(FsError::Exists),
                DentrySearch::Free(free_dentry) => return Ok(free_dentry),
                DentrySearch::InlineFull => {
                    let one = Need {
                        blocks: 1,
                        nodes: 0,
                    };
                    let _held = self.hold_space(cx, dir, one)?;
                    self.entries_to_blocks(dir, self.may_use_reserved(cx), cx.tag)?;
                }
            }
        }
    }

    /// Updates the times of a directory whose names change.
    fn touch_dir(&self, core: &mut disk::Inode) {
        let now = self.now();
        core.mtime = now;
        core.ctime = now;
    }

    /// Records that an inode with another name has lost this one (by its hash).
    fn record_moved_name(&self, dir: &Inode, hash: u32) {
        self.since_cp.move_name(dir.nid(), hash);
    }

    /// If the name with this hash belonged to another inode since the last checkpoint, an fsync of the new file needs a checkpoint:
    /// roll-forward would replace the name of that inode.
    fn check_recovered_name(&self, dir: &Inode, hash: u32, ino: Nid) {
        self.since_cp.create_name(dir.nid(), hash, ino);
    }

    /// Fails for a directory that is removed or immutable, or whose names are encrypted if its key is not there.
    fn check_may_add(&self, dir: &Inode, tag: IoTag) -> Result<()> {
        {
            let core = dir.core.read();
            names::check_may_add(core.links, core.flags)?;
        }
        match dir.is_encrypted() && self.names_key(dir, tag)?.is_none() {
            true => Err(FsError::NoKey),
            false => Ok(()),
        }
    }

    /// Returns the result of a step that follows the first change of an operation. On an error the volume is
    /// aborted, because the state in memory is inconsistent.
    pub(crate) fn abort_on_error<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.abort(
                StopReason::UPDATE_INODE,
                &format!("a directory operation failed after its first change: {error}"),
            );
        }
        result
    }
}

/// As [`names::check_may_remove`].
fn check_may_remove(core: &disk::Inode) -> Result<()> {
    names::check_may_remove(core.links, core.flags)
}

/// Fails if the inode has the maximum link count.
fn check_link_max(core: &disk::Inode) -> Result<()> {
    if core.links == LINK_MAX {
        return Err(FsError::TooManyLinks);
    }
    Ok(())
}

/// [`names::check_project`] of a directory and an inode that gets a name there.
fn check_project(dir: &Inode, inode: &Inode) -> Result<()> {
    let (flags, project) = {
        let core = dir.core.read();
        (core.flags, core.project)
    };
    names::check_project(flags, project, inode.core.read().project)
}

/// Removes the link of a subdirectory's `..`; a directory has at least 2 links.
fn drop_subdir_link(core: &mut disk::Inode) {
    if core.links > 2 {
        core.links -= 1;
    }
}

#[cfg(test)]
mod tests;
