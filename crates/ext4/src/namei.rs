//! Operations on names: what all of them share.
//!
//! **Order of locks.** A call takes the `lock` of each directory whose names it changes, in the order
//! of inode numbers; an inode that is not a directory is protected by its `core` alone, as names
//! only change its link count. Then a handle, then one `core` at a time.
//!
//! **Order of steps.** The blocks to change are pinned ([`crate::pins`]). Then the target directory gets room for the
//! new name: it may grow in several transactions, and is consistent after each. All the rest happens in one handle.

mod create;
mod link;
mod read;
mod rename;
mod restore;

use std::sync::Arc;

use steadfs_base::{Corruption, InodeNo, IoTag};
use steadfs_jbd2::NameChange;
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, Result, names};

use crate::credits;
use crate::dir::{Dir, Search, Slot, Wanted};
use crate::disk::inode::LINK_MAX;
use crate::disk::quota::usage::Usage;
use crate::disk::{self, Ino};
use crate::fast_commit::refusal;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::quota::owners_of;
use crate::txn::Handle;

/// Most steps by which a directory grows for one name: each index level once, and the leaf; more are needed only for
/// long names with equal hashes.
const GROWTH_STEPS_MAX: u32 = 16;

/// A name that is to be added, and room for it.
pub(crate) struct NewName<'n> {
    name: Wanted<'n>,
    slot: Slot,
}

impl Ext4 {
    /// The inode with a number given by the caller of the file system. It may come from a file handle: a number that no
    /// file has is not corruption.
    pub(crate) fn by_number(&self, ino: InodeNo, tag: IoTag) -> Result<Arc<Inode>> {
        let ino = Ino::from_vfs(ino).filter(|ino| self.is_nameable(*ino));
        let inode = self.inode(ino.ok_or(FsError::Stale)?, tag)?;
        match self.is_value(&inode) {
            true => Err(FsError::Stale),
            false => Ok(inode),
        }
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
        let bad =
            |what| Corruption::new(format!("an entry names {what} {ino}")).in_inode(dir.ino());
        match self.inode(ino, tag) {
            Err(FsError::Stale) => Err(bad("free inode").into()),
            Ok(inode) if self.is_value(&inode) => Err(bad("attribute inode").into()),
            found => found,
        }
    }

    /// Finds room for `name` in a directory, and grows it if there is none. `rest` credits are left in the handle,
    /// which may have been restarted. Nothing has been changed in it yet, and the directory's slot in the inode table
    /// is pinned.
    pub(crate) fn room_for_name<'n>(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        dir: &Inode,
        name: &'n [u8],
        rest: u32,
    ) -> Result<NewName<'n>> {
        let name = {
            let core = dir.core.read();
            Dir::new(self, dir.ino(), &core, cx.tag).new_name(&core, name)?
        };
        for _ in 0..GROWTH_STEPS_MAX {
            let (needed, owners, units) = {
                let core = dir.core.read();
                let names = Dir::new(self, dir.ino(), &core, cx.tag);
                match names.search(&core, &name)? {
                    Search::Found => return Err(FsError::Exists),
                    Search::Room(slot) => return Ok(NewName { name, slot }),
                    Search::Full => {}
                }
                let units = match names.grows_in_inode(&core, &name)? {
                    true => 0,
                    false => self.geo().cluster_units(),
                };
                (credits::grow(self, &core), owners_of(&core), units)
            };
            let need = Usage {
                bytes: units * 512,
                inodes: 0,
            };
            let _held = self.hold_quota(cx, owners.map(Some), need)?;
            if !handle.extend(rest + needed) {
                handle.restart(rest + needed)?;
            }
            handle.refuse_fast_commits(refusal::GROWTH);
            let mut core = dir.core.write();
            Dir::new(self, dir.ino(), &core, cx.tag).grow(handle, dir, &mut core, &name)?;
            handle.consistent();
        }
        Err(Corruption::new("a split leaf has no room for the name")
            .in_inode(dir.ino())
            .into())
    }

    /// Records for fast commits that an inode got or lost a name.
    fn record_name(
        &self,
        handle: &mut Handle<'_>,
        change: NameChange,
        name: (&Inode, &[u8]),
        inode: &Inode,
    ) {
        match inode.kind() {
            // Records have names as they are in directories, and a replay compares their bytes.
            _ if has_encoded_names(&name.0.core.read()) => {
                handle.refuse_fast_commits(refusal::ENCODED);
            }
            FileKind::Regular if handle.is_tracked() => {
                let ino = inode.ino();
                self.fast_commits.named(handle, change, name, ino);
            }
            FileKind::Regular => {}
            FileKind::Directory => handle.refuse_fast_commits(refusal::DIRECTORY),
            _ => handle.refuse_fast_commits(refusal::KIND),
        }
    }

    /// Fails for a directory that is removed or immutable, or whose names are encrypted if its key is not there.
    fn check_may_add(&self, dir: &Inode, tag: IoTag) -> Result<()> {
        let core = dir.core.read();
        names::check_may_add(core.links.into(), core.flags)?;
        self.check_has_key(dir, &core, tag)
    }

    /// Sets a directory's times after a change of its names.
    fn touch_dir(&self, core: &mut disk::Inode) {
        let now = self.now(core);
        core.mtime = now;
        core.ctime = now;
    }
}

/// Whether a name in a directory may differ from the one that a caller gives: encrypted, case-insensitive.
fn has_encoded_names(core: &disk::Inode) -> bool {
    core.has(InodeFlags::ENCRYPTED) || core.has(InodeFlags::CASEFOLD)
}

/// [`names::check_project`] of a directory and an inode that gets a name there.
fn check_project(dir: &Inode, inode: &Inode) -> Result<()> {
    let (flags, project) = {
        let core = dir.core.read();
        (core.flags, core.project)
    };
    names::check_project(flags, project, inode.core.read().project)
}

/// [`names::check_may_remove`] of an inode's fields.
fn check_may_remove(core: &disk::Inode) -> Result<()> {
    names::check_may_remove(core.links.into(), core.flags)
}

/// Refuses one more subdirectory if the link count is exhausted. With `dir_nlink` an indexed directory that once had
/// more than [`LINK_MAX`] links keeps a count of 1.
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

/// Removes a subdirectory's `..` from the count. A count of 1 stays; otherwise 2 is the minimum.
fn lose_subdir(core: &mut disk::Inode) {
    if core.links > 2 {
        core.links -= 1;
    }
}

#[cfg(test)]
mod tests;
