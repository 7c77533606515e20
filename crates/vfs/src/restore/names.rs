//! Names and inodes of a restoration.
//!
//! **Problem.** Wrong names block the places of right ones, in chains and circles; an inode whose only name is wrong must
//! not be without a name at any time; a directory must not be moved below itself.
//!
//! **Rule.** A wrong and a missing name of one inode are a *move*. Moves are made first, each in one step, which replaces
//! what is at the new name if that is not moved itself. What a move needs comes before it: that the inode at its new
//! name moves away, that the new parent gets its own place, that what is in a replaced directory moves out. Of moves that
//! wait for each other in a circle, the last exchanges the two inodes. Then the other wrong names are removed, inodes
//! that are gone are freed, new ones are made, and the names that are still missing are added by the same rule.
//!
//! Where no exchange opens a circle, an inode is moved *aside*, to a name in the root directory; so is what leaves a
//! removed directory for one that cannot be made before inodes are freed.

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::InodeNo;

use super::{EndState, FoundInode, RestoreVolume, contradiction, end_state};
use crate::recorded::{RecordedInode, RecordedName, RecordedState};
use crate::{FileKind, FsError, RenameFlags, Result};

/// A name aside is this with the inode's number.
const ASIDE: &[u8] = b".steadfs-restore-";

/// Most levels of directories that are followed upwards; more are a loop.
const ANCESTORS_MAX: u32 = 1 << 20;

/// A name in a directory.
type Name = (InodeNo, Vec<u8>);

/// What has to be done before a name can be given to its inode.
enum Obstacle {
    None,
    /// This missing name comes first.
    Missing(Name),
    /// The inode or the directory is not there.
    Absent,
}

pub(super) struct Names<'a, V: ?Sized> {
    volume: &'a V,
    state: &'a RecordedState,
    /// Inodes on the volume that are to be freed.
    dying: BTreeSet<InodeNo>,
    /// Directories on the volume that are to have no names, since they are freed or unlinked.
    emptied: BTreeSet<InodeNo>,
    /// Names on the volume that are to be removed, with the inodes that they lead to.
    wrong: BTreeMap<Name, InodeNo>,
    /// Names to be added.
    missing: BTreeMap<Name, InodeNo>,
    /// The moves: missing names by wrong ones, and wrong ones by missing ones.
    target: BTreeMap<Name, Name>,
    source: BTreeMap<Name, Name>,
    /// A missing name of each inode that has one: of a directory the only one.
    home: BTreeMap<InodeNo, Name>,
}

impl<'a, V: RestoreVolume + ?Sized> Names<'a, V> {
    pub(super) fn new(volume: &'a V, state: &'a RecordedState) -> Self {
        Self {
            volume,
            state,
            dying: BTreeSet::new(),
            emptied: BTreeSet::new(),
            wrong: BTreeMap::new(),
            missing: BTreeMap::new(),
            target: BTreeMap::new(),
            source: BTreeMap::new(),
            home: BTreeMap::new(),
        }
    }

    /// Gives all names to the inodes that are to have them. `make` makes the inodes that are missing.
    pub(super) fn restore(&mut self, make: impl FnOnce() -> Result<()>) -> Result<()> {
        self.volume.keep_numbers(&self.find_dying()?);
        self.compare_names()?;
        self.find_aside()?;
        self.pair_moves()?;
        match self.make_dirs() {
            Ok(()) | Err(FsError::NoSpace) => {}
            Err(error) => return Err(error),
        }
        let moves: Vec<Name> = self.source.keys().cloned().collect();
        for to in moves {
            match self.place(to) {
                Ok(_) | Err(FsError::NoSpace | FsError::NoRoom(_) | FsError::TooManyLinks) => {}
                Err(error) => return Err(error),
            }
        }
        self.remove_wrong()?;
        self.free_dying()?;
        make()?;
        self.dying.clear();
        self.emptied.clear();
        let mut left: Vec<Name> = self.missing.keys().cloned().collect();
        left.sort_by_key(|name| self.state.names.get(name).map(|name| name.order));
        for to in left {
            if let Some(&ino) = self.missing.get(&to)
                && !self.place(to)?
            {
                return Err(contradiction("has a name that cannot be restored", ino));
            }
        }
        Ok(())
    }

    fn end_state(&self, ino: InodeNo, found: &FoundInode) -> EndState {
        end_state(self.state, ino, found)
    }

    fn found(&self, ino: InodeNo) -> Result<FoundInode> {
        let found = self.volume.find_inode(ino)?;
        found.ok_or_else(|| contradiction("has a name, but is free", ino))
    }

    /// Finds the inodes to be freed; returns those to be made.
    fn find_dying(&mut self) -> Result<Vec<InodeNo>> {
        let mut missing = Vec::new();
        for (&ino, inode) in &self.state.inodes {
            let found = self.volume.find_inode(ino)?;
            let end = found.map(|found| self.end_state(ino, &found));
            if end == Some(EndState::Dies) {
                self.dying.insert(ino);
            }
            let is_dir = found.is_some_and(|found| found.is_dir());
            if is_dir && matches!(end, Some(EndState::Dies | EndState::Unlinked)) {
                self.emptied.insert(ino);
            }
            if matches!(end, None | Some(EndState::Dies))
                && matches!(inode, RecordedInode::InUse(_))
            {
                missing.push(ino);
            }
        }
        Ok(missing)
    }

    /// Finds names that lead elsewhere than recorded, and all names in directories that are removed.
    fn compare_names(&mut self) -> Result<()> {
        for ((dir, name), &RecordedName { to: want, .. }) in &self.state.names {
            let there = match self.volume.find_inode(*dir)? {
                Some(_) if self.dying.contains(dir) => None,
                Some(found) if !found.is_dir() => {
                    return Err(contradiction("has names, but is no directory", *dir));
                }
                Some(_) => self.volume.find_entry(*dir, name)?,
                None => None,
            };
            if there == want && !there.is_some_and(|ino| self.dying.contains(&ino)) {
                continue;
            }
            let name = (*dir, name.clone());
            if let Some(ino) = there {
                self.wrong.insert(name.clone(), ino);
            }
            if let Some(ino) = want {
                self.missing.insert(name.clone(), ino);
                self.home.insert(ino, name);
            }
        }
        for &dir in &self.emptied {
            for (name, ino) in self.volume.list_entries(dir)? {
                self.wrong.insert((dir, name), ino);
            }
        }
        Ok(())
    }

    /// Finds the inodes that an interrupted restoration has moved aside.
    fn find_aside(&mut self) -> Result<()> {
        let root = self.volume.root();
        for (name, ino) in self.volume.list_entries(root)? {
            if name != aside_name(ino) || self.state.names.contains_key(&(root, name.clone())) {
                continue;
            }
            if self.end_state(ino, &self.found(ino)?) != EndState::Unrecorded {
                self.wrong.insert((root, name), ino);
            }
        }
        Ok(())
    }

    /// Finds the moves: those out of directories that are emptied last, since an inode may have other wrong names.
    fn pair_moves(&mut self) -> Result<()> {
        let mut missing: BTreeMap<InodeNo, Vec<&Name>> = BTreeMap::new();
        for (to, ino) in &self.missing {
            missing.entry(*ino).or_default().push(to);
        }
        let emptied = |from: &Name| self.emptied.contains(&from.0);
        let stay = self.wrong.iter().filter(|(from, _)| !emptied(from));
        let leave = self.wrong.iter().filter(|(from, _)| emptied(from));
        for (from, &ino) in stay.chain(leave) {
            if self.end_state(ino, &self.found(ino)?) == EndState::Named
                && let Some(to) = missing.get_mut(&ino).and_then(Vec::pop)
            {
                self.target.insert(from.clone(), to.clone());
                self.source.insert(to.clone(), from.clone());
            }
        }
        Ok(())
    }

    /// Makes new directories, to which something may move, where that is possible before inodes are freed.
    fn make_dirs(&self) -> Result<()> {
        for (ino, file) in self.state.files() {
            let free = file.attr.kind == FileKind::Directory
                && self.volume.find_inode(ino)?.is_none()
                && self.volume.number_owner(ino)?.is_none();
            if !free {
                continue;
            }
            if let Err(error) = self.volume.make_inode(ino, file) {
                if self.volume.find_inode(ino)?.is_some() {
                    self.volume.free_inode(ino)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives a missing name to its inode, and all that must come first. Returns whether that was possible.
    fn place(&mut self, to: Name) -> Result<bool> {
        let mut path = vec![to];
        while let Some(last) = path.last() {
            let Some(&ino) = self.missing.get(last) else {
                path.pop();
                continue;
            };
            match self.obstacle(last, ino)? {
                Obstacle::None => {
                    let last = path.pop().expect("it has a last one");
                    self.put(last, ino)?;
                }
                Obstacle::Absent => return Ok(false),
                Obstacle::Missing(first) => match path.iter().position(|other| *other == first) {
                    None => path.push(first),
                    Some(at) => {
                        self.open_circle(&last.clone(), &first)?;
                        path.truncate(at + 1);
                    }
                },
            }
        }
        Ok(true)
    }

    fn obstacle(&self, to: &Name, ino: InodeNo) -> Result<Obstacle> {
        let (dir, found) = (self.volume.find_inode(to.0)?, self.volume.find_inode(ino)?);
        let (Some(dir), Some(found)) = (dir, found) else {
            return Ok(Obstacle::Absent);
        };
        if self.dying.contains(&ino) || self.emptied.contains(&to.0) {
            return Ok(Obstacle::Absent);
        }
        if dir.links == 0 {
            let home = self.home.get(&to.0);
            return Ok(home.map_or(Obstacle::Absent, |home| Obstacle::Missing(home.clone())));
        }
        let first = match self.source.get(to) {
            Some(from) if found.is_dir() && from.0 != to.0 => self.first_between(to.0, ino)?,
            None if found.is_dir() && found.links > 0 => {
                return Err(contradiction("is a directory with two names", ino));
            }
            _ => None,
        };
        let first = first.or_else(|| self.target.get(to).cloned());
        let first = first.or_else(|| {
            let replaced = self.wrong.get(to)?;
            self.moves_out(*replaced)
        });
        Ok(first.map_or(Obstacle::None, Obstacle::Missing))
    }

    /// Whether a directory is below another: then the missing name of the first one between that moves.
    fn first_between(&self, dir: InodeNo, above: InodeNo) -> Result<Option<Name>> {
        let (root, mut at, mut first) = (self.volume.root(), dir, None);
        for _ in 0..ANCESTORS_MAX {
            if at == above {
                return match first {
                    Some(_) => Ok(first),
                    None => Err(contradiction("is a directory below itself", above)),
                };
            }
            if at == root {
                return Ok(None);
            }
            let moves = self
                .home
                .get(&at)
                .filter(|to| self.source.contains_key(*to));
            first = first.or_else(|| moves.cloned());
            at = self.volume.parent_of(at)?;
        }
        Err(contradiction("is in a loop of directories", dir))
    }

    /// The new name of an inode in a directory that is removed, or below.
    fn moves_out(&self, dir: InodeNo) -> Option<Name> {
        let (mut dirs, mut seen) = (vec![dir], BTreeSet::new());
        while let Some(dir) = dirs.pop() {
            // Directories of a corrupt volume may form a loop.
            if !seen.insert(dir) {
                continue;
            }
            for (name, ino) in self.inside(dir) {
                match self.target.get(name) {
                    Some(to) => return Some(to.clone()),
                    None => dirs.push(*ino),
                }
            }
        }
        None
    }

    /// The wrong names in a directory.
    fn inside(&self, dir: InodeNo) -> impl Iterator<Item = (&Name, &InodeNo)> {
        let all = self.wrong.range((dir, Vec::new())..);
        all.take_while(move |(name, _)| name.0 == dir)
    }

    /// Gives a missing name to its inode. What is there is replaced.
    fn put(&mut self, to: Name, ino: InodeNo) -> Result<()> {
        let from = self.source.get(&to).cloned();
        if let Some(&replaced) = self.wrong.get(&to) {
            let alike = self.found(ino)?.is_dir() == self.found(replaced)?.is_dir();
            let from = from.as_ref().filter(|from| alike && !self.is_aside(from));
            let Some(from) = from else {
                self.remove_with_contents(to.clone())?;
                return self.put(to, ino);
            };
            let inside = self.inside(replaced).map(|(name, _)| name.clone());
            for name in inside.collect::<Vec<_>>() {
                self.remove_with_contents(name)?;
            }
            self.loses_name(replaced)?;
            self.rename(from, &to, RenameFlags::default())?;
        } else {
            match &from {
                Some(from) => self.move_away(from, &to)?,
                None => self.volume.insert_entry(to.0, &to.1, ino)?,
            }
        }
        self.wrong.remove(&to);
        self.is_placed(&to);
        Ok(())
    }

    /// Moves a name to where there is none. If it was that of a file that is an orphan now, since a rename was made over
    /// it that was not acknowledged, the file gets a name before it could be lost.
    fn move_away(&mut self, from: &Name, to: &Name) -> Result<()> {
        let orphan = match self.missing.get(from) {
            Some(&ino) if !self.dying.contains(&ino) && !self.is_aside(from) => {
                let found = self.volume.find_inode(ino)?;
                found
                    .filter(|found| found.links == 0 && !found.is_dir())
                    .map(|_| ino)
            }
            _ => None,
        };
        let Some(orphan) = orphan else {
            return self.move_name(from, to);
        };
        self.volume.insert_entry(to.0, &to.1, orphan)?;
        self.exchange(from, to)?;
        self.is_placed(from);
        Ok(())
    }

    fn exchange(&self, from: &Name, to: &Name) -> Result<()> {
        let flags = RenameFlags {
            exchange: true,
            ..RenameFlags::default()
        };
        self.rename(from, to, flags)
    }

    fn rename(&self, from: &Name, to: &Name, flags: RenameFlags) -> Result<()> {
        self.volume
            .rename_entry((from.0, &from.1), (to.0, &to.1), flags)
    }

    fn move_name(&self, from: &Name, to: &Name) -> Result<()> {
        self.volume.move_entry((from.0, &from.1), (to.0, &to.1))
    }

    fn is_placed(&mut self, to: &Name) {
        self.missing.remove(to);
        if let Some(from) = self.source.remove(to) {
            self.target.remove(&from);
            self.wrong.remove(&from);
        }
    }

    /// The inode of the name `last` waits for that of `first`, which waits for it.
    fn open_circle(&mut self, last: &Name, first: &Name) -> Result<()> {
        if let Some(from) = self.source.get(last).cloned()
            && self.target.get(last) == Some(first)
            && self.can_exchange(&from, last)?
        {
            self.exchange(&from, last)?;
            let other = self.wrong.remove(last);
            self.target.remove(last);
            self.is_placed(last);
            if from == *first {
                self.source.remove(first);
                self.missing.remove(first);
            } else {
                self.moved(first, from, other.expect("a move leads from a wrong name"));
            }
            return Ok(());
        }
        match self.source.get(first) {
            Some(from) if !self.is_aside(from) => self.move_aside(first),
            _ => self.move_aside(last),
        }
    }

    /// Whether what is at two names can be exchanged. That the first inode may be at the second name is known.
    fn can_exchange(&self, from: &Name, to: &Name) -> Result<bool> {
        let other = self.wrong[to];
        let is_dir = self.found(other)?.is_dir();
        if self.is_aside(from) || self.is_aside(to) {
            return Ok(false);
        }
        let mut at = from.0;
        for _ in 0..ANCESTORS_MAX {
            if !is_dir || at == self.volume.root() {
                return Ok(true);
            }
            if at == other {
                return Ok(false);
            }
            at = self.volume.parent_of(at)?;
        }
        Ok(false)
    }

    /// The inode of a missing name is at the wrong name `from` now.
    fn moved(&mut self, to: &Name, from: Name, ino: InodeNo) {
        self.wrong.insert(from.clone(), ino);
        self.target.insert(from.clone(), to.clone());
        self.source.insert(to.clone(), from);
    }

    fn is_aside(&self, name: &Name) -> bool {
        name.0 == self.volume.root()
            && self
                .wrong
                .get(name)
                .is_some_and(|ino| name.1 == aside_name(*ino))
    }

    /// Moves the inode of a missing name out of the way.
    fn move_aside(&mut self, to: &Name) -> Result<()> {
        let ino = self.missing[to];
        let from = self.source.get(to).filter(|from| !self.is_aside(from));
        let Some(from) = from.cloned() else {
            return Err(contradiction("waits for its own name", ino));
        };
        let aside = (self.volume.root(), aside_name(ino));
        self.move_name(&from, &aside)?;
        self.wrong.remove(&from);
        self.target.remove(&from);
        self.moved(to, aside, ino);
        Ok(())
    }

    /// Removes the wrong names that are not moved, and all names in directories that are emptied.
    fn remove_wrong(&mut self) -> Result<()> {
        let names = self
            .wrong
            .keys()
            .filter(|name| !self.target.contains_key(*name) || self.emptied.contains(&name.0));
        for name in names.cloned().collect::<Vec<_>>() {
            self.remove_with_contents(name)?;
        }
        Ok(())
    }

    /// Removes a wrong name, and those in the directory that loses its last name with it first.
    fn remove_with_contents(&mut self, name: Name) -> Result<()> {
        let most = self.wrong.len();
        let mut path = vec![name];
        while let Some(last) = path.last() {
            let Some(&ino) = self.wrong.get(last) else {
                path.pop();
                continue;
            };
            let inside = match self.target.contains_key(last) {
                true => None,
                false => self.inside(ino).next(),
            };
            match inside.map(|(name, _)| name.clone()) {
                Some(inside) if path.len() <= most => path.push(inside),
                Some(_) => return Err(contradiction("is a directory in itself", ino)),
                None => {
                    let name = path.pop().expect("it has a last one");
                    self.remove(&name, ino)?;
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, name: &Name, ino: InodeNo) -> Result<()> {
        if let Some(to) = self.target.get(name).cloned() {
            return self.move_aside(&to);
        }
        self.loses_name(ino)?;
        self.volume.remove_entry(name.0, &name.1)?;
        self.wrong.remove(name);
        Ok(())
    }

    /// Checks that an inode may lose a name without a new one.
    fn loses_name(&mut self, ino: InodeNo) -> Result<()> {
        let found = self.found(ino)?;
        let is_dir = found.is_dir();
        if !is_dir && found.links > 1 {
            return Ok(());
        }
        match self.end_state(ino, &found) {
            EndState::Named => Err(contradiction("has links, but no name", ino)),
            EndState::Unrecorded if is_dir && !self.volume.list_entries(ino)?.is_empty() => Err(
                contradiction("is a directory to be removed, with names", ino),
            ),
            EndState::Unrecorded => {
                // Made by a call that was not acknowledged.
                self.dying.insert(ino);
                Ok(())
            }
            EndState::Dies | EndState::Unlinked => Ok(()),
        }
    }

    /// Frees the inodes that are gone. Their numbers and blocks can be used again when that is durable.
    fn free_dying(&self) -> Result<()> {
        for &ino in &self.dying {
            match self.volume.find_inode(ino)? {
                Some(found) if found.links > 0 => {
                    return Err(contradiction(
                        "is freed, but has a name that is not recorded",
                        ino,
                    ));
                }
                Some(_) => self.volume.free_inode(ino)?,
                None => {}
            }
        }
        match self.dying.is_empty() {
            true => Ok(()),
            false => self.volume.sync_all(&super::context()),
        }
    }
}

fn aside_name(ino: InodeNo) -> Vec<u8> {
    [ASIDE, ino.0.to_string().as_bytes()].concat()
}
