//! rename(2) with all its flags.

use std::sync::Arc;

use steadfs_base::{InodeNo, IoTag};
use steadfs_cache::WritebackReason;
use steadfs_vfs::names::{NameIn, check_may_lose_name, check_rename, with_names_locked};
use steadfs_vfs::{Cx, FileKind, FsError, NewInode, RenameFlags, Result};

use super::{check_link_max, check_may_remove, check_project, drop_subdir_link};
use crate::cp_lock::Change;
use crate::dentry::{FoundDentry, FreeDentry, StoredName};
use crate::disk::inode::Advise;
use crate::disk::{DiskError, Nid, Structure};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::space::{Need, Reservation};

/// Levels of parent directories visited before the tree is taken for a cycle.
const DIR_DEPTH_MAX: u32 = 1 << 20;

/// One name of a rename and its directory.
type RenameSide<'a> = NameIn<'a, Inode>;

/// What the old and the new name refer to.
struct RenamePair {
    old: (FoundDentry, Arc<Inode>),
    new: Option<(FoundDentry, Arc<Inode>)>,
}

impl RenamePair {
    fn moved(&self) -> &Inode {
        &self.old.1
    }

    fn replaced(&self) -> Option<&Inode> {
        self.new.as_ref().map(|(_, inode)| &**inode)
    }
}

/// Where an inode moves, as its own node will have it.
struct NewPlace<'a> {
    inode: &'a Inode,
    dir: &'a Inode,
    name: StoredName<'a>,
    /// The `..` of a directory that gets another parent.
    up: Option<FoundDentry>,
}

/// The result of one attempt.
enum RenameOutcome {
    /// Renamed; the inode that lost its name.
    Renamed(Option<Arc<Inode>>),
    /// This file's data must be written first, without locks.
    WriteDataFirst(Arc<Inode>),
}

/// Whether a file's data must be written before the file replaces another: a program that replaces a file by a new
/// version expects one of the two after a crash, not an empty file.
fn must_write_data_first(pair: &RenamePair, flags: RenameFlags) -> bool {
    let file = pair.moved().kind() == FileKind::Regular;
    file && !flags.exchange
        && !flags.no_replace
        && pair.new.is_some()
        && pair.moved().pages.unwritten() > 0
}

fn is_dir(inode: &Inode) -> bool {
    inode.kind() == FileKind::Directory
}

/// Whether a move changes the number of subdirectories of its two directories.
fn counts(from: RenameSide<'_>, to: RenameSide<'_>, moved: &Inode) -> bool {
    is_dir(moved) && from.dir.nid() != to.dir.nid()
}

impl F2fs {
    /// See [`steadfs_vfs::FileSystem::rename`].
    pub(crate) fn move_names(
        &self,
        cx: &Cx,
        (from_dir, from): (InodeNo, &[u8]),
        (to_dir, to): (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        check_rename(from, to, flags)?;
        self.check_writable()?;
        let from_dir = self.directory(from_dir, cx.tag)?;
        let to_dir = self.directory(to_dir, cx.tag)?;
        let from = RenameSide::new(&from_dir, from);
        let to = RenameSide::new(&to_dir, to);
        // While it is held no directory moves to another parent, so the ancestors of a directory do not change.
        let _order = (from_dir.nid() != to_dir.nid()).then(|| self.rename.lock());
        let replaced = self.with_space(cx, || self.rename_once(cx, from, to, flags))?;
        if let Some(inode) = replaced {
            self.evict_if_unlinked(&inode, cx.tag);
        }
        Ok(())
    }

    /// One attempt, which may fail with `NoSpace`. Returns the inode that lost its name.
    fn rename_once(
        &self,
        cx: &Cx,
        from: RenameSide<'_>,
        to: RenameSide<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Arc<Inode>>> {
        let mut data_written = false;
        loop {
            self.prepare(cx)?;
            let act = |pair: RenamePair| {
                if !data_written && must_write_data_first(&pair, flags) {
                    return Ok(RenameOutcome::WriteDataFirst(pair.old.1));
                }
                self.rename_locked(cx, from, to, pair, flags)
                    .map(RenameOutcome::Renamed)
            };
            match self.with_pair(cx, from, to, act)? {
                RenameOutcome::Renamed(replaced) => return Ok(replaced),
                RenameOutcome::WriteDataFirst(inode) => {
                    // A write error is kept with the file, for its next fsync.
                    if let Err(error) = self.write_out(&inode, WritebackReason::Sync, cx.tag) {
                        tracing::debug!(ino = %inode.nid(), %error, "cannot write file data before a rename");
                    }
                    data_written = true;
                }
            }
        }
    }

    /// Calls `act` while the inodes are locked that a rename changes.
    fn with_pair<T>(
        &self,
        cx: &Cx,
        from: RenameSide<'_>,
        to: RenameSide<'_>,
        act: impl FnOnce(RenamePair) -> Result<T>,
    ) -> Result<T> {
        let look = || {
            let pair = self.look_at(cx, from, to)?;
            let both = [Some(&pair.old), pair.new.as_ref()];
            let named = both.into_iter().flatten().map(|(_, inode)| inode);
            let named = named
                .filter(|inode| is_dir(inode))
                .map(Arc::clone)
                .collect();
            Ok((pair, named))
        };
        with_names_locked([from.dir, to.dir], look, act)
    }

    /// A rename over a name, or an exchange, that has no conditions but those of
    /// [`steadfs_vfs::restore::RestoreVolume::rename_entry`].
    pub(super) fn rename_recorded(
        &self,
        cx: &Cx,
        from: RenameSide<'_>,
        to: RenameSide<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.prepare(cx)?;
        self.with_pair(cx, from, to, |pair| match flags.exchange {
            true => self.exchange(cx, from, to, &pair),
            false => self.move_name(cx, from, to, pair, false).map(drop),
        })
    }

    fn rename_locked(
        &self,
        cx: &Cx,
        from: RenameSide<'_>,
        to: RenameSide<'_>,
        pair: RenamePair,
        flags: RenameFlags,
    ) -> Result<Option<Arc<Inode>>> {
        if pair
            .replaced()
            .is_some_and(|new| new.nid() == pair.moved().nid())
        {
            // POSIX: if both names are links of one inode, rename does nothing.
            return if flags.no_replace {
                Err(FsError::Exists)
            } else {
                Ok(None)
            };
        }
        self.check_rename(cx, from, to, &pair, flags)?;
        if flags.exchange {
            self.exchange(cx, from, to, &pair)?;
            return Ok(None);
        }
        self.move_name(cx, from, to, pair, flags.whiteout)
    }

    fn look_at(&self, cx: &Cx, from: RenameSide<'_>, to: RenameSide<'_>) -> Result<RenamePair> {
        let find = |side: RenameSide<'_>| -> Result<_> {
            match self.find_entry(side.dir, side.name, cx.tag)? {
                Some(entry) => Ok(Some((
                    entry,
                    self.inode_of_entry(side.dir, entry.ino, cx.tag)?,
                ))),
                None => Ok(None),
            }
        };
        Ok(RenamePair {
            old: find(from)?.ok_or(FsError::NotFound)?,
            new: find(to)?,
        })
    }

    /// Finds the entry of an existing name again, which has moved from the inode to a block.
    fn found_dentry(&self, side: RenameSide<'_>, tag: IoTag) -> Result<FoundDentry> {
        self.find_entry(side.dir, side.name, tag)?.ok_or_else(|| {
            let error = DiskError::entry(
                Structure::Dentries,
                0,
                "has no entry for a name that was found before",
            );
            error.in_node(side.dir.nid()).into()
        })
    }

    fn check_rename(
        &self,
        cx: &Cx,
        from: RenameSide<'_>,
        to: RenameSide<'_>,
        pair: &RenamePair,
        flags: RenameFlags,
    ) -> Result<()> {
        check_may_remove(&from.dir.core.read())?;
        check_may_lose_name(pair.moved().core.read().flags)?;
        match pair.replaced() {
            Some(_) if flags.no_replace => return Err(FsError::Exists),
            Some(new) => {
                check_may_remove(&to.dir.core.read())?;
                check_may_lose_name(new.core.read().flags)?;
            }
            None if flags.exchange => return Err(FsError::NotFound),
            None => {}
        }
        // Without the key an encrypted name can only be removed.
        self.check_may_add(to.dir, cx.tag)?;
        if flags.exchange || flags.whiteout || from.dir.is_encrypted() {
            self.check_may_add(from.dir, cx.tag)?;
        }
        check_project(to.dir, pair.moved())?;
        let moves = from.dir.nid() != to.dir.nid();
        if moves {
            self.check_policy(to.dir, pair.moved(), cx.tag)?;
        }
        if moves && is_dir(pair.moved()) && self.is_inside(cx, to.dir, pair.moved().nid())? {
            return Err(FsError::Invalid("a directory cannot be moved into itself"));
        }
        if let Some(new) = pair.replaced() {
            if flags.exchange {
                check_project(from.dir, new)?;
                if moves {
                    self.check_policy(from.dir, new, cx.tag)?;
                }
            }
            if moves && is_dir(new) && self.is_inside(cx, from.dir, new.nid())? {
                return Err(if flags.exchange {
                    FsError::Invalid("a directory cannot be moved into itself")
                } else {
                    FsError::NotEmpty
                });
            }
            if !flags.exchange {
                self.check_replace(cx, pair.moved(), new)?;
            }
        }
        let new_dir = pair.replaced().is_some_and(is_dir);
        if moves && is_dir(pair.moved()) && !new_dir {
            check_link_max(&to.dir.core.read())?;
        }
        if moves && flags.exchange && !is_dir(pair.moved()) && new_dir {
            check_link_max(&from.dir.core.read())?;
        }
        Ok(())
    }

    /// Whether the inode that has the new name may be replaced.
    fn check_replace(&self, cx: &Cx, old: &Inode, new: &Inode) -> Result<()> {
        match (is_dir(old), is_dir(new)) {
            (true, false) => Err(FsError::NotDir),
            (false, true) => Err(FsError::IsDir),
            (false, false) => Ok(()),
            (true, true) if self.is_empty_dir(new, cx.tag)? => Ok(()),
            (true, true) => Err(FsError::NotEmpty),
        }
    }

    /// The parent of a directory, as its `..` entry has it.
    pub(super) fn parent(&self, dir: &Inode, tag: IoTag) -> Result<Nid> {
        match self.find_entry(dir, b"..", tag)? {
            Some(entry) => Ok(entry.ino),
            // Directories without a `..` entry (`F2FS_INLINE_DOTS`): `i_pino` is the parent.
            None => Ok(dir.core.read().parent),
        }
    }

    /// Whether `dir` is `above` or one of its descendants.
    fn is_inside(&self, cx: &Cx, dir: &Inode, above: Nid) -> Result<bool> {
        let bad = |nid: Nid, rule| -> FsError {
            let error = DiskError::entry(Structure::Dentries, 1, rule);
            error.in_node(nid).into()
        };
        let mut at = dir.nid();
        for _ in 0..DIR_DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == Nid::ROOT {
                return Ok(false);
            }
            let inode = self.inode(at, cx.tag)?;
            if !is_dir(&inode) {
                return Err(bad(at, "is referred to by .. and is not a directory"));
            }
            at = self.parent(&inode, cx.tag)?;
        }
        Err(bad(dir.nid(), "the chain of .. entries is a cycle"))
    }

    /// Moves the old name to the new one, which may replace another inode's: returns that.
    fn move_name(
        &self,
        cx: &Cx,
        from: RenameSide<'_>,
        to: RenameSide<'_>,
        mut pair: RenamePair,
        whiteout: bool,
    ) -> Result<Option<Arc<Inode>>> {
        let free_dentry = match pair.new {
            Some(_) => None,
            None => Some(self.find_free_dentry(cx, to.dir, to.name)?),
        };
        if pair.old.0.block.is_none() && !from.dir.has_inline_dentries() {
            // The search for free slots has moved the entries to blocks.
            pair.old.0 = self.found_dentry(from, cx.tag)?;
        }
        let spec = NewInode::plain(FileKind::CharDevice, 0, 0);
        let plan = match whiteout {
            true => {
                let name = self.stored_name(from.dir, from.name, cx.tag)?;
                Some(self.plan_inode(cx, from.dir, &spec, &name)?)
            }
            false => None,
        };
        let _room = self.orphans.room()?;
        let growth = free_dentry.map_or(Need::default(), |free_dentry| free_dentry.need);
        let place = self.new_place(from, to, pair.moved(), cx.tag)?;
        let mut pins = self.pin_to_rename((from, to), &pair, free_dentry.as_ref(), cx.tag)?;
        self.pin_up(&mut pins, &place, cx.tag)?;
        match &plan {
            Some(plan) => pins.add(self.prepare_new(cx, plan, (to.dir, growth))?),
            None => pins.hold(self.hold_space(cx, to.dir, growth)?),
        }
        let need = growth + plan.as_ref().map_or(Need::default(), |plan| plan.need);
        let mut reservation = self.space.reservation(need, self.may_use_reserved(cx))?;
        let change = self.change()?;
        let whiteout = match plan {
            Some(plan) => Some(self.create_inode(cx, &change, &mut reservation, plan)?),
            None => None,
        };
        let moved = RenamedInode {
            fs: self,
            cx,
            change: &change,
            from,
            to,
            pair: &pair,
            place,
        };
        let renamed = moved.run(&mut reservation, free_dentry.as_ref(), whiteout.as_deref());
        self.abort_on_error(renamed)?;
        Ok(pair.new.map(|(_, inode)| inode))
    }

    /// Reads the entries that a rename changes, before the first change: all inodes, and the blocks of both names.
    fn pin_to_rename(
        &self,
        (from, to): (RenameSide<'_>, RenameSide<'_>),
        pair: &RenamePair,
        free_dentry: Option<&FreeDentry>,
        tag: IoTag,
    ) -> Result<Pins> {
        let mut pins = self.pin_inodes(&[from.dir, to.dir, pair.moved()], tag)?;
        self.pin_dir_block(&mut pins, from.dir, pair.old.0.block, tag)?;
        if let Some(free_dentry) = free_dentry {
            self.pin_dir_block(&mut pins, to.dir, free_dentry.block, tag)?;
        }
        if let Some((entry, new)) = &pair.new {
            self.pin_dir_block(&mut pins, to.dir, entry.block, tag)?;
            pins.add(self.pin_inodes(&[new], tag)?);
        }
        Ok(pins)
    }

    /// What an inode gets by a move. Searches and reads, which can fail, are done here.
    fn new_place<'a>(
        &self,
        from: RenameSide<'_>,
        to: RenameSide<'a>,
        inode: &'a Inode,
        tag: IoTag,
    ) -> Result<NewPlace<'a>> {
        let up = match counts(from, to, inode) {
            true => self.find_entry(inode, b"..", tag)?,
            false => None,
        };
        Ok(NewPlace {
            inode,
            dir: to.dir,
            name: self.stored_name(to.dir, to.name, tag)?,
            up,
        })
    }

    fn pin_up(&self, pins: &mut Pins, place: &NewPlace<'_>, tag: IoTag) -> Result<()> {
        match &place.up {
            Some(up) => self.pin_dir_block(pins, place.inode, up.block, tag),
            None => Ok(()),
        }
    }

    /// Updates the moved inode: ctime, parent and name, and a directory's `..`.
    fn move_inode(&self, change: &Change<'_>, place: &NewPlace<'_>, tag: IoTag) -> Result<()> {
        let NewPlace { inode, dir, .. } = *place;
        let mut core = inode.core.write();
        self.mark_dirty(change, inode, tag)?;
        if let Some(up) = &place.up {
            let parent = (dir.nid(), FileKind::Directory);
            self.retarget(change, inode, &core, up, parent, tag)?;
        }
        core.parent = dir.nid();
        place.name.put(&mut core);
        if !is_dir(inode) {
            // Roll-forward could restore only the new name, so the next fsync needs a checkpoint.
            core.advise = core.advise.union(Advise::LOST_PARENT);
            self.since_cp.rename(inode.nid());
        }
        core.ctime = self.now();
        drop(core);
        self.since_cp.rename_into(dir.nid());
        if is_dir(inode) {
            self.since_cp.rename_into(inode.nid());
        }
        Ok(())
    }

    /// Exchanges the inodes of two names (`RENAME_EXCHANGE`).
    fn exchange(
        &self,
        cx: &Cx,
        from: RenameSide<'_>,
        to: RenameSide<'_>,
        pair: &RenamePair,
    ) -> Result<()> {
        let (new_entry, new) = pair
            .new
            .as_ref()
            .expect("an exchange has checked that both names exist");
        let (old_entry, old) = &pair.old;
        let places = [
            self.new_place(from, to, old, cx.tag)?,
            self.new_place(to, from, new, cx.tag)?,
        ];
        let mut pins = self.pin_to_rename((from, to), pair, None, cx.tag)?;
        for place in &places {
            self.pin_up(&mut pins, place, cx.tag)?;
        }
        let change = self.change()?;
        let swap = || {
            for (side, entry, goes, comes) in
                [(from, old_entry, old, new), (to, new_entry, new, old)]
            {
                let mut core = side.dir.core.write();
                let target = (comes.nid(), comes.kind());
                self.retarget(&change, side.dir, &core, entry, target, cx.tag)?;
                self.touch_dir(&mut core);
                match (is_dir(goes), is_dir(comes)) {
                    (true, false) => drop_subdir_link(&mut core),
                    (false, true) => core.links += 1,
                    _ => {}
                }
                drop(core);
                self.record_moved_name(side.dir, entry.hash);
            }
            let mut moves = places.iter();
            moves.try_for_each(|place| self.move_inode(&change, place, cx.tag))
        };
        self.abort_on_error(swap())
    }
}

/// A rename whose conditions have all been checked.
struct RenamedInode<'a> {
    fs: &'a F2fs,
    cx: &'a Cx,
    change: &'a Change<'a>,
    from: RenameSide<'a>,
    to: RenameSide<'a>,
    pair: &'a RenamePair,
    place: NewPlace<'a>,
}

impl RenamedInode<'_> {
    fn run(
        &self,
        reservation: &mut Reservation<'_>,
        free_dentry: Option<&FreeDentry>,
        whiteout: Option<&Inode>,
    ) -> Result<()> {
        let (fs, tag) = (self.fs, self.cx.tag);
        self.insert_new_name(reservation, free_dentry)?;
        steadfs_rt::fault_point("rename");
        self.remove_old_name(whiteout)?;
        fs.move_inode(self.change, &self.place, tag)?;
        fs.record_moved_name(self.from.dir, self.pair.old.0.hash);
        match self.pair.replaced() {
            Some(new) if is_dir(new) => fs.drop_all_links(self.change, new, tag),
            Some(new) => {
                if fs.drop_link(self.change, new, tag)? > 0 {
                    let entry = self.pair.new.as_ref().map(|(entry, _)| entry.hash);
                    entry
                        .into_iter()
                        .for_each(|hash| fs.record_moved_name(self.to.dir, hash));
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn insert_new_name(
        &self,
        reservation: &mut Reservation<'_>,
        free_dentry: Option<&FreeDentry>,
    ) -> Result<()> {
        let (fs, to, old) = (self.fs, self.to, self.pair.moved());
        let Some((entry, _)) = &self.pair.new else {
            let free_dentry = free_dentry.expect("a new name has free slots");
            let counts = counts(self.from, to, old);
            let slot = (to.dir, free_dentry, &*self.place.name.bytes);
            return fs.add_name(self.cx, self.change, reservation, slot, old, counts);
        };
        let mut core = to.dir.core.write();
        let target = (old.nid(), old.kind());
        fs.retarget(self.change, to.dir, &core, entry, target, self.cx.tag)?;
        // A directory replaces a directory: the new parent gains one `..` link and loses one.
        fs.touch_dir(&mut core);
        Ok(())
    }

    fn remove_old_name(&self, whiteout: Option<&Inode>) -> Result<()> {
        let (fs, from, tag) = (self.fs, self.from, self.cx.tag);
        let entry = &self.pair.old.0;
        // Within one directory the `..` link count is unchanged, unless a directory was replaced.
        let old = self.pair.moved();
        let subdir = is_dir(old) && (counts(from, self.to, old) || self.pair.new.is_some());
        let Some(whiteout) = whiteout else {
            return fs.remove_dentry_and_link(self.change, from.dir, entry, subdir, tag);
        };
        let mut core = from.dir.core.write();
        let target = (whiteout.nid(), whiteout.kind());
        fs.retarget(self.change, from.dir, &core, entry, target, tag)?;
        fs.touch_dir(&mut core);
        if subdir {
            drop_subdir_link(&mut core);
        }
        Ok(())
    }
}
