//! Names: what the calls that work on directories have in common.
//!
//! **Order of locks.** A call takes the `lock` of each directory whose names it changes, in the order
//! of inode numbers; an inode that is not a directory is protected by its `core` alone, since what
//! names do to it is its link count. Then the gate, then one `core` at a time.
//!
//! **Order of steps.** Everything is looked for, and space for all of it promised, before the first
//! change. What fails after that is the device or damage.

mod create;
mod link;
mod new_inode;
mod read;
mod rename;

pub(crate) use new_inode::{Extensions, flags_for};

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{InodeNo, IoTag};
use steadfs_rt::now;
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, Result, names};

use crate::checkpoint::Reason;
use crate::dentry::{DentrySearch, FreeDentry};
use crate::disk::superblock::StopReason;
use crate::disk::{self, Nid, hash};
use crate::fs::F2fs;
use crate::inode::Inode;

/// Names an inode can have (`F2FS_LINK_MAX`).
const LINK_MAX: u32 = u32::MAX;
/// How long a shortage waits for what is about to be freed.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(1);

impl F2fs {
    /// The directory with this number.
    pub(crate) fn directory(&self, ino: InodeNo, tag: IoTag) -> Result<Arc<Inode>> {
        let inode = self.by_number(ino, tag)?;
        if inode.kind() == FileKind::Directory {
            Ok(inode)
        } else {
            Err(FsError::NotDir)
        }
    }

    /// Begins an operation that changes nodes: nothing is locked yet.
    pub(crate) fn prepare(&self, cx: &Cx) -> Result<()> {
        self.check_writable()?;
        self.nat.build_free_nids(cx.tag)
    }

    /// Runs an operation, and again if space ran out while there is about to be more.
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

    /// Finds where `name` goes in a directory. One whose inode is full gets blocks first.
    fn find_free_dentry(&self, cx: &Cx, dir: &Inode, name: &[u8]) -> Result<FreeDentry> {
        loop {
            match self.search(dir, name, cx.tag)? {
                DentrySearch::Found(_) => return Err(FsError::Exists),
                DentrySearch::Free(free_dentry) => return Ok(free_dentry),
                DentrySearch::InlineFull => {
                    self.entries_to_blocks(dir, self.may_use_reserved(cx), cx.tag)?;
                }
            }
        }
    }

    /// Notes a change of a directory's names: its times.
    fn touch_dir(&self, core: &mut disk::Inode) {
        let now = self.now();
        core.mtime = now;
        core.ctime = now;
    }

    /// Notes that a name of this hash was given up whose inode has, or gets, another.
    fn record_moved_name(&self, dir: &Inode, hash: u32) {
        self.names_since_cp.lock().moved.insert((dir.nid(), hash));
    }

    /// Sees that a new file of a name that another one gave up is not recovered over that one.
    fn check_recovered_name(&self, dir: &Inode, name: &[u8], ino: Nid) {
        let key = (dir.nid(), hash::of_name(name));
        let moved = self.names_since_cp.lock().moved.contains(&key);
        if moved {
            self.truncated_since_cp.lock().insert(ino);
        }
    }

    /// Passes on the result of a step that others have come before: the volume stops where it failed,
    /// for what is in memory says two things.
    pub(crate) fn abort_on_error<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.abort(
                StopReason::UPDATE_INODE,
                &format!("a change of names failed half-way: {error}"),
            );
        }
        result
    }
}

/// Refuses to add names to a directory that is gone, must not change, or whose names are stored in a form
/// that cannot be made here.
fn check_may_add(core: &disk::Inode) -> Result<()> {
    names::check_may_add(core.links, core.flags)?;
    if core.advise.contains(disk::inode::Advise::ENCRYPTED) {
        return Err(FsError::NoKey);
    }
    if core.has(InodeFlags::CASEFOLD) {
        return Err(FsError::NotSupported("new names where case is ignored"));
    }
    Ok(())
}

/// [`names::check_may_remove`] of an inode's fields.
fn check_may_remove(core: &disk::Inode) -> Result<()> {
    names::check_may_remove(core.links, core.flags)
}

/// Refuses one name more than an inode can have.
fn check_link_max(core: &disk::Inode) -> Result<()> {
    if core.links == LINK_MAX {
        return Err(FsError::TooManyLinks);
    }
    Ok(())
}

/// Refuses to bring an inode under a directory whose project its files belong to, if it is another's.
fn check_project(dir: &Inode, inode: &Inode) -> Result<()> {
    let project = {
        let core = dir.core.read();
        core.has(InodeFlags::PROJINHERIT).then_some(core.project)
    };
    if project.is_some_and(|project| project != inode.core.read().project) {
        return Err(FsError::CrossDevice);
    }
    Ok(())
}

/// One `..` less names a directory; 2 is the least.
fn drop_subdir_link(core: &mut disk::Inode) {
    if core.links > 2 {
        core.links -= 1;
    }
}

#[cfg(test)]
mod tests;
