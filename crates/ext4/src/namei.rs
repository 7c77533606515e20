//! Names: what the calls that work on directories have in common.
//!
//! **Order of locks.** A call takes the `lock` of each directory whose names it changes, in the order
//! of inode numbers; an inode that is not a directory is protected by its `core` alone, since what
//! names do to it is its link count. Then a handle, then one `core` at a time.
//!
//! **Order of steps.** What the call will need is read ([`crate::pins`]). Then the target directory gets room for
//! the new name: it may grow in several transactions, and is whole after each. All the rest happens in one handle.

mod create;
mod link;
mod read;
mod rename;

use std::sync::Arc;

use steadfs_base::{Corruption, InodeNo, IoTag};
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, Result, names};

use crate::credits;
use crate::dir::{Dir, Search, Slot};
use crate::disk::inode::LINK_MAX;
use crate::disk::{self, Ino};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::txn::Handle;

/// Steps by which a directory grows for one name: each index level once, and the leaf; more only
/// where names of great length meet equal hashes.
const MOST_STEPS: u32 = 16;

impl Ext4 {
    /// The inode with this number, as the caller of the file system names it. That may be any number, out of a file
    /// handle: one that no file has is no damage.
    pub(crate) fn by_number(&self, ino: InodeNo, tag: IoTag) -> Result<Arc<Inode>> {
        let ino = Ino::from_vfs(ino).filter(|ino| self.is_nameable(*ino));
        self.inode(ino.ok_or(FsError::Stale)?, tag)
    }

    /// The directory with this number.
    pub(crate) fn directory(&self, ino: InodeNo, tag: IoTag) -> Result<Arc<Inode>> {
        let inode = self.by_number(ino, tag)?;
        if inode.kind() == FileKind::Directory {
            Ok(inode)
        } else {
            Err(FsError::NotDir)
        }
    }

    /// The inode that a directory's entry names.
    fn named(&self, dir: &Inode, ino: Ino, tag: IoTag) -> Result<Arc<Inode>> {
        self.inode(ino, tag).map_err(|error| match error {
            FsError::Stale => Corruption::new(format!("an entry names free inode {ino}"))
                .in_inode(dir.ino())
                .into(),
            other => other,
        })
    }

    /// Finds where `name` goes in a directory, and makes room if there is none. `rest` credits are left
    /// in the handle, which may be another one than before. Nothing has been changed in it yet, and the directory's
    /// slot in the inode table is kept in memory.
    fn room_for_name(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        dir: &Inode,
        name: &[u8],
        rest: u32,
    ) -> Result<Slot> {
        for _ in 0..MOST_STEPS {
            let needed = {
                let core = dir.core.read();
                match Dir::new(self, dir.ino(), &core, cx.tag).search(&core, name)? {
                    Search::Found => return Err(FsError::Exists),
                    Search::Room(slot) => return Ok(slot),
                    Search::Full => credits::grow(self, &core),
                }
            };
            if !handle.extend(rest + needed) {
                handle.restart(rest + needed)?;
            }
            let mut core = dir.core.write();
            Dir::new(self, dir.ino(), &core, cx.tag).grow(handle, dir, &mut core, name)?;
            handle.consistent();
        }
        Err(Corruption::new("a split leaf has no room for the name")
            .in_inode(dir.ino())
            .into())
    }

    /// Notes a change of a directory's names: its times.
    fn touch_dir(&self, core: &mut disk::Inode) {
        let now = self.now(core);
        core.mtime = now;
        core.ctime = now;
    }
}

/// [`names::check_may_add`] of an inode's fields.
fn check_may_add(core: &disk::Inode) -> Result<()> {
    names::check_may_add(core.links.into(), core.flags)
}

/// [`names::check_may_remove`] of an inode's fields.
fn check_may_remove(core: &disk::Inode) -> Result<()> {
    names::check_may_remove(core.links.into(), core.flags)
}

/// Whether a directory can have one more subdirectory. With `dir_nlink` an indexed directory with more
/// than [`LINK_MAX`] has a count of 1, "many", for good.
fn check_may_have_subdir(fs: &Ext4, core: &disk::Inode) -> Result<()> {
    let unlimited = has_dir_nlink(fs) && core.has(InodeFlags::INDEX);
    if core.links >= LINK_MAX && !unlimited {
        Err(FsError::TooManyLinks)
    } else {
        Ok(())
    }
}

fn has_dir_nlink(fs: &Ext4) -> bool {
    fs.geo()
        .has_ro_compat(crate::disk::features::RoCompat::DIR_NLINK)
}

/// Counts a new subdirectory's `..`.
fn gain_subdir(core: &mut disk::Inode) {
    if core.links == 1 || core.links >= LINK_MAX {
        core.links = 1;
    } else {
        core.links += 1;
    }
}

/// Counts a subdirectory's `..` that is gone. A count of 1 stays, and 2 is the least otherwise.
fn lose_subdir(core: &mut disk::Inode) {
    if core.links > 2 {
        core.links -= 1;
    }
}

#[cfg(test)]
mod tests;
