//! rename, with all flags of renameat2(2).

use std::sync::Arc;

use steadfs_base::{Corruption, InodeNo, IoTag};
use steadfs_cache::WritebackReason;
use steadfs_jbd2::NameChange;
use steadfs_vfs::names::{NameIn, check_may_lose_name, check_rename, with_names_locked};
use steadfs_vfs::{Cx, FileKind, FsError, NewInode, RenameFlags, Result};

use super::create::Failed;
use super::{
    NewName, check_may_have_subdir, check_may_remove, check_project, gain_subdir, lose_subdir,
};
use crate::credits;
use crate::dir::{Dir, Dots, Entry};
use crate::disk::Ino;
use crate::fast_commit::refusal;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::txn::Handle;

/// Most levels of directories that are followed upwards; more are a loop.
const ANCESTORS_MAX: u32 = 1 << 20;

/// One name of a rename and its directory.
type Side<'a> = NameIn<'a, Inode>;

/// The inodes of both names.
struct Pair {
    old: Arc<Inode>,
    new: Option<Arc<Inode>>,
}

/// What a rename changes in directories, found before its first change. It is valid until then.
struct Places {
    from: Entry,
    to: Option<Entry>,
    /// Of the inode at the old name, if it is a directory and gets another parent.
    old_dots: Option<Dots>,
    /// Of the inode at the new name.
    new_dots: Option<Dots>,
    pins: Pins,
}

/// Where the moved inode's new name goes.
enum Target<'n> {
    /// A name that is there, of the inode that is replaced.
    Name(Entry),
    Room(NewName<'n>),
}

/// Result of one attempt to rename.
enum RenameOutcome {
    /// Renamed, with the inode that lost its name.
    Renamed(Option<Arc<Inode>>),
    /// This file's data must be written first, without locks.
    WriteFirst(Arc<Inode>),
}

fn is_dir(inode: &Inode) -> bool {
    inode.kind() == FileKind::Directory
}

/// Whether a move changes the number of subdirectories of its two directories.
fn counts(from: Side<'_>, to: Side<'_>, moved: &Inode) -> bool {
    is_dir(moved) && from.dir.ino() != to.dir.ino()
}

impl Ext4 {
    /// See [`steadfs_vfs::FileSystem::rename`].
    pub fn rename(
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
        let (from, to) = (Side::new(&from_dir, from), Side::new(&to_dir, to));
        // While it is held no directory moves to another parent, so the check for ancestors stays valid.
        let _order = (from_dir.ino() != to_dir.ino()).then(|| self.rename.lock());
        let replaced = self.with_space(cx, || self.rename_once(cx, from, to, flags))?;
        if let Some(inode) = replaced {
            self.free_unnamed(&inode);
        }
        Ok(())
    }

    /// One attempt, which may fail for lack of space; returns the inode that lost its name.
    fn rename_once(
        &self,
        cx: &Cx,
        from: Side<'_>,
        to: Side<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Arc<Inode>>> {
        let mut settled = false;
        loop {
            let act = |pair: Pair| {
                if !settled && self.must_write_first(&pair, flags) {
                    return Ok(RenameOutcome::WriteFirst(pair.old));
                }
                self.rename_locked(cx, from, to, pair, flags)
                    .map(RenameOutcome::Renamed)
            };
            match self.with_pair(cx, from, to, act) {
                Ok(RenameOutcome::Renamed(replaced)) => return Ok(replaced),
                Ok(RenameOutcome::WriteFirst(inode)) => {
                    // The error stays with the file for its next fsync.
                    if let Err(error) = self.write_out(&inode, WritebackReason::Sync, cx.tag) {
                        tracing::debug!(ino = %inode.ino(), %error, "write-out before a rename");
                    }
                    settled = true;
                }
                Err(failed) => return Err(self.clean_up_failed(failed)),
            }
        }
    }

    /// Calls `act` while the inodes are locked that a rename changes.
    fn with_pair<T>(
        &self,
        cx: &Cx,
        from: Side<'_>,
        to: Side<'_>,
        act: impl FnOnce(Pair) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let look = || {
            let pair = self.look_at(cx, from, to)?;
            let both = [Some(&pair.old), pair.new.as_ref()];
            let named = both.into_iter().flatten().filter(|inode| is_dir(inode));
            let named = named.map(Arc::clone).collect();
            Ok((pair, named))
        };
        with_names_locked([from.dir, to.dir], look, act)
    }

    /// A rename over a name, or an exchange, that has no conditions but those of
    /// [`steadfs_vfs::restore::RestoreVolume::rename_entry`].
    pub(super) fn rename_recorded(
        &self,
        cx: &Cx,
        from: Side<'_>,
        to: Side<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let renamed = self.with_pair(cx, from, to, |pair| match flags.exchange {
            true => self.exchange(cx, from, to, &pair),
            false => self.move_name(cx, from, to, &pair, false),
        });
        renamed.map_err(|failed| self.clean_up_failed(failed))
    }

    /// Whether the data of a file must be written before the file replaces another (`auto_da_alloc`): programs that
    /// replace a file by rename expect the old or the new content after a crash, not an empty file.
    fn must_write_first(&self, pair: &Pair, flags: RenameFlags) -> bool {
        !flags.exchange
            && !flags.no_replace
            && pair.new.is_some()
            && pair.old.pages.unwritten() > 0
            && self.options.read().auto_da_alloc
    }

    fn rename_locked(
        &self,
        cx: &Cx,
        from: Side<'_>,
        to: Side<'_>,
        pair: Pair,
        flags: RenameFlags,
    ) -> Result<Option<Arc<Inode>>, Failed> {
        if pair
            .new
            .as_ref()
            .is_some_and(|new| new.ino() == pair.old.ino())
        {
            // Two names of one inode: POSIX requires that nothing is done.
            return if flags.no_replace {
                Err(FsError::Exists.into())
            } else {
                Ok(None)
            };
        }
        self.check_rename(cx, from, to, &pair, flags)?;
        if flags.exchange {
            self.exchange(cx, from, to, &pair)?;
            return Ok(None);
        }
        self.move_name(cx, from, to, &pair, flags.whiteout)?;
        Ok(pair.new)
    }

    fn look_at(&self, cx: &Cx, from: Side<'_>, to: Side<'_>) -> Result<Pair> {
        let find = |side: Side<'_>| -> Result<Option<Arc<Inode>>> {
            match self.entry(cx, side)? {
                Some(entry) => self.named(side.dir, entry.ino(), cx.tag).map(Some),
                None => Ok(None),
            }
        };
        Ok(Pair {
            old: find(from)?.ok_or(FsError::NotFound)?,
            new: find(to)?,
        })
    }

    fn entry(&self, cx: &Cx, side: Side<'_>) -> Result<Option<Entry>> {
        let core = side.dir.core.read();
        let blocks = Dir::new(self, side.dir.ino(), &core, cx.tag).after_last_search(side.dir);
        let entry = blocks.find(&core, side.name)?;
        if let Some(entry) = &entry {
            blocks.check_target(entry.ino())?;
        }
        Ok(entry)
    }

    fn present(&self, cx: &Cx, side: Side<'_>) -> Result<Entry> {
        self.entry(cx, side)?.ok_or_else(|| {
            Corruption::new("directory lost a name")
                .in_inode(side.dir.ino())
                .into()
        })
    }

    fn check_rename(
        &self,
        cx: &Cx,
        from: Side<'_>,
        to: Side<'_>,
        pair: &Pair,
        flags: RenameFlags,
    ) -> Result<()> {
        check_may_remove(&from.dir.core.read())?;
        check_may_lose_name(pair.old.core.read().flags)?;
        // Without the key no name of an encrypted directory can be given, as in Linux.
        for side in [&from, &to] {
            self.check_has_key(side.dir, &side.dir.core.read(), cx.tag)?;
        }
        if from.dir.ino() != to.dir.ino() {
            self.check_policy(to.dir, &pair.old, cx.tag)?;
        }
        check_project(to.dir, &pair.old)?;
        match &pair.new {
            Some(_) if flags.no_replace => return Err(FsError::Exists),
            Some(new) => {
                check_may_remove(&to.dir.core.read())?;
                check_may_lose_name(new.core.read().flags)?;
            }
            None if flags.exchange => return Err(FsError::NotFound),
            None => self.check_may_add(to.dir, cx.tag)?,
        }
        let moves = from.dir.ino() != to.dir.ino();
        if moves && is_dir(&pair.old) && self.is_inside(cx, to.dir, pair.old.ino())? {
            return Err(FsError::Invalid("a directory cannot be moved into itself"));
        }
        if let Some(new) = &pair.new {
            if flags.exchange {
                check_project(from.dir, new)?;
                if moves {
                    self.check_policy(from.dir, new, cx.tag)?;
                }
            }
            if moves && is_dir(new) && self.is_inside(cx, from.dir, new.ino())? {
                return Err(if flags.exchange {
                    FsError::Invalid("a directory cannot be moved into itself")
                } else {
                    FsError::NotEmpty
                });
            }
            if !flags.exchange {
                self.check_replace(cx, pair, new)?;
            }
        }
        if moves && is_dir(&pair.old) && !pair.new.as_deref().is_some_and(is_dir) {
            check_may_have_subdir(self, &to.dir.core.read())?;
        }
        if moves && flags.exchange && !is_dir(&pair.old) && pair.new.as_deref().is_some_and(is_dir)
        {
            check_may_have_subdir(self, &from.dir.core.read())?;
        }
        Ok(())
    }

    /// Refuses to replace the inode at the new name if that is not allowed.
    fn check_replace(&self, cx: &Cx, pair: &Pair, new: &Inode) -> Result<()> {
        match (is_dir(&pair.old), is_dir(new)) {
            (true, false) => return Err(FsError::NotDir),
            (false, true) => return Err(FsError::IsDir),
            (false, false) => return Ok(()),
            (true, true) => {}
        }
        let core = new.core.read();
        if Dir::new(self, new.ino(), &core, cx.tag).is_empty(&core)? {
            Ok(())
        } else {
            Err(FsError::NotEmpty)
        }
    }

    /// Whether `dir` is `above` or a descendant of it.
    fn is_inside(&self, cx: &Cx, dir: &Inode, above: Ino) -> Result<bool> {
        let mut at = dir.ino();
        for _ in 0..ANCESTORS_MAX {
            if at == above {
                return Ok(true);
            }
            if at == Ino::ROOT {
                return Ok(false);
            }
            let inode = self.inode(at, cx.tag)?;
            if !is_dir(&inode) {
                return Err(Corruption::new("named by .. but not a directory")
                    .in_inode(at)
                    .into());
            }
            at = self.parent(&inode, cx.tag)?;
        }
        Err(Corruption::new(".. entries form a loop")
            .in_inode(dir.ino())
            .into())
    }

    /// The directory that a directory's `..` leads to.
    pub(super) fn parent(&self, dir: &Inode, tag: IoTag) -> Result<Ino> {
        let core = dir.core.read();
        Dir::new(self, dir.ino(), &core, tag).parent(&core)
    }

    /// Moves the old name to the new one, which may replace another inode's.
    fn move_name(
        &self,
        cx: &Cx,
        from: Side<'_>,
        to: Side<'_>,
        pair: &Pair,
        whiteout: bool,
    ) -> Result<(), Failed> {
        let mut places = self.places(cx, from, to, pair)?;
        let spec = NewInode::plain(FileKind::CharDevice, 0, 0);
        if whiteout {
            places.pins.add(self.prepare_new(cx, from.dir, &spec)?);
        }
        self.run_for(cx, credits::RENAME, |handle| {
            if whiteout || is_dir(&pair.old) {
                handle.refuse_fast_commits(refusal::DIRECTORY);
            }
            handle.track();
            let in_one = from.dir.ino() == to.dir.ino();
            let target = match places.to.take() {
                Some(entry) => Target::Name(entry),
                None => {
                    let room = self.room_for_name(cx, handle, to.dir, to.name, credits::RENAME)?;
                    if in_one {
                        // Growth may have moved it.
                        places.from = self.present(cx, from)?;
                    }
                    Target::Room(room)
                }
            };
            let stand_in = if whiteout {
                Some(self.new_inode(cx, handle, from.dir, &spec, 1)?)
            } else {
                None
            };
            match &target {
                Target::Name(entry) => self.replace_name(cx, handle, to, entry, &pair.old)?,
                Target::Room(room) => {
                    let counts = counts(from, to, &pair.old);
                    self.add_name(cx, handle, to.dir, room, &pair.old, counts)?;
                    if in_one {
                        places.from = self.after_insertion(cx, from.dir, &places.from)?;
                    }
                }
            }
            // Within one directory the number of `..` stays the same, unless a replaced directory's `..` is removed.
            let subdir = is_dir(&pair.old) && (counts(from, to, &pair.old) || pair.new.is_some());
            self.drop_old_name(cx, handle, from, &places.from, subdir, stand_in.as_deref())?;
            self.move_inode(cx, handle, to, &pair.old, places.old_dots.as_ref())?;
            if let Some(new) = &pair.new {
                self.record_name(handle, NameChange::Unlink, (to.dir, to.name), new);
            }
            self.record_name(handle, NameChange::Link, (to.dir, to.name), &pair.old);
            self.record_name(handle, NameChange::Unlink, (from.dir, from.name), &pair.old);
            match &pair.new {
                Some(new) if is_dir(new) => self.lose_all_names(handle, new)?,
                Some(new) => self.lose_name(handle, new)?,
                None => {}
            }
            Ok(())
        })
    }

    /// Finds and pins the blocks that a rename changes: all inodes, the blocks of both names and of every `..` that
    /// changes, and the orphan record.
    fn places(&self, cx: &Cx, from: Side<'_>, to: Side<'_>, pair: &Pair) -> Result<Places> {
        let mut numbers = vec![from.dir.ino(), to.dir.ino(), pair.old.ino()];
        numbers.extend(pair.new.iter().map(|inode| inode.ino()));
        let mut pins = self.pin_inodes(&numbers, cx.tag)?;
        if pair.new.is_some() {
            self.orphans.pin_to_add(self, &mut pins)?;
        }
        let dots = |inode: &Inode| {
            let moves = counts(from, to, inode);
            moves.then(|| self.dots_of(cx, inode)).transpose()
        };
        let places = Places {
            from: self.present(cx, from)?,
            to: pair
                .new
                .as_ref()
                .map(|_| self.present(cx, to))
                .transpose()?,
            old_dots: dots(&pair.old)?,
            new_dots: pair.new.as_deref().map(dots).transpose()?.flatten(),
            pins,
        };
        Ok(places)
    }

    /// Where the number of a directory's parent is.
    pub(super) fn dots_of(&self, cx: &Cx, dir: &Inode) -> Result<Dots> {
        let core = dir.core.read();
        Dir::new(self, dir.ino(), &core, cx.tag).dots(&core)
    }

    /// [`Dir::after_insertion`] of a locked directory.
    pub(super) fn after_insertion(&self, cx: &Cx, dir: &Inode, entry: &Entry) -> Result<Entry> {
        let core = dir.core.read();
        Dir::new(self, dir.ino(), &core, cx.tag).after_insertion(&core, entry)
    }

    /// Lets the new name, which is there, name the inode that moves.
    fn replace_name(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        to: Side<'_>,
        entry: &Entry,
        moved: &Inode,
    ) -> Result<()> {
        let mut core = to.dir.core.write();
        let blocks = Dir::new(self, to.dir.ino(), &core, cx.tag);
        blocks.retarget(handle, &mut core, entry, moved.ino(), moved.kind())?;
        // A directory that replaces a directory: one `..` is added and one removed.
        self.touch_dir(&mut core);
        self.store_inode(handle, to.dir, &core)
    }

    fn drop_old_name(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        from: Side<'_>,
        entry: &Entry,
        subdir: bool,
        stand_in: Option<&Inode>,
    ) -> Result<()> {
        steadfs_rt::fault_point("rename");
        let Some(stand_in) = stand_in else {
            return self.take_name(cx, handle, from.dir, entry, subdir);
        };
        let mut core = from.dir.core.write();
        let blocks = Dir::new(self, from.dir.ino(), &core, cx.tag);
        blocks.retarget(handle, &mut core, entry, stand_in.ino(), stand_in.kind())?;
        self.touch_dir(&mut core);
        if subdir {
            lose_subdir(&mut core);
        }
        self.store_inode(handle, from.dir, &core)
    }

    /// Changes the moved inode: its time, and the `..` of a directory that gets another parent.
    fn move_inode(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        to: Side<'_>,
        inode: &Inode,
        dots: Option<&Dots>,
    ) -> Result<()> {
        let mut core = inode.core.write();
        if let Some(dots) = dots {
            let blocks = Dir::new(self, inode.ino(), &core, cx.tag);
            blocks.set_parent(handle, &mut core, dots, to.dir.ino())?;
        }
        core.ctime = self.now(&core);
        self.store_inode(handle, inode, &core)
    }

    /// Exchanges the inodes of two names.
    fn exchange(&self, cx: &Cx, from: Side<'_>, to: Side<'_>, pair: &Pair) -> Result<(), Failed> {
        let new = pair.new.as_ref().expect("checked: both names are there");
        let places = self.places(cx, from, to, pair)?;
        let to_entry = places.to.as_ref().expect("it is there");
        let ends = [
            (from, &places.from, &pair.old, new),
            (to, to_entry, new, &pair.old),
        ];
        self.run_for(cx, credits::RENAME, |handle| {
            for (side, entry, goes, comes) in ends {
                let mut core = side.dir.core.write();
                let blocks = Dir::new(self, side.dir.ino(), &core, cx.tag);
                blocks.retarget(handle, &mut core, entry, comes.ino(), comes.kind())?;
                self.touch_dir(&mut core);
                match (is_dir(goes), is_dir(comes)) {
                    (true, false) => lose_subdir(&mut core),
                    (false, true) => gain_subdir(&mut core),
                    _ => {}
                }
                self.store_inode(handle, side.dir, &core)?;
            }
            self.move_inode(cx, handle, to, &pair.old, places.old_dots.as_ref())?;
            self.move_inode(cx, handle, from, new, places.new_dots.as_ref())?;
            Ok(())
        })
    }
}
