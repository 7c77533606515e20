//! Names against inodes: link counts, connectivity, parents.

use steadfs_vfs::FileKind;
use steadfs_vfs::names::dirs_in_cycles;

use super::tables::{Dir, InodeState};
use super::{Checker, Issue};
use crate::disk::Ino;
use crate::disk::features::RoCompat;
use crate::disk::inode::LINK_MAX;

impl Checker<'_> {
    pub(super) fn check_links(&mut self) {
        self.count_subdirs();
        if self.dir_index(Ino::ROOT).is_none() {
            self.issue(Issue::NoRoot);
        }
        for i in 0..self.dirs.len() {
            self.check_dir_links(i);
        }
        self.check_loops();
        for group in self.geo.groups() {
            let count = self.inodes.group(group).map_or(0, <[_]>::len) as u32;
            for index in 0..count {
                self.check_inode_links(self.geo.inode_at(group, index));
            }
        }
    }

    fn count_subdirs(&mut self) {
        for i in 0..self.dirs.len() {
            let dir = &self.dirs[i];
            if let Some(parent) = dir.dotdot
                && dir.ino != Ino::ROOT
                && let Some(p) = self.dir_index(parent)
            {
                self.dirs[p].subdirs += 1;
            }
        }
    }

    fn check_dir_links(&mut self, i: usize) {
        let dir = &self.dirs[i];
        let (ino, dotdot) = (dir.ino, dir.dotdot);
        let parent = if ino == Ino::ROOT {
            Some(Ino::ROOT)
        } else {
            dir.parent
        };
        let Some(parent) = parent else {
            return self.issue(Issue::Unattached { ino });
        };
        if let Some(stored) = dotdot
            && stored != parent
        {
            self.issue(Issue::WrongParent {
                dir: ino,
                stored,
                parent,
            });
        }
        let many_links = self.geo.has_ro_compat(RoCompat::DIR_NLINK);
        let state = self.inodes.get(&self.geo, ino);
        let mut counted = 2 + self.dirs[i].subdirs;
        // A directory that once had too many links stays at 1.
        if many_links
            && (counted > LINK_MAX.into() || (state.links == 1 && state.has(InodeState::INDEXED)))
        {
            counted = 1;
        }
        let stored = state.links.into();
        if stored != counted {
            self.issue(Issue::LinkCount {
                ino,
                stored,
                counted,
            });
        }
    }

    /// Finds directories that are named, but not from the root down.
    fn check_loops(&mut self) {
        let of = |dir: &Dir| (dir.ino, dir.parent);
        let found = dirs_in_cycles(&self.dirs, Ino::ROOT, of, |dir| self.dir_index(dir));
        for ino in found
            .into_iter()
            .map(|i| self.dirs[i].ino)
            .collect::<Vec<_>>()
        {
            self.issue(Issue::DirLoop { ino });
        }
    }

    /// An attribute inode has one link, for all references, and no name. An orphan has neither.
    fn check_value_links(&mut self, ino: Ino, state: InodeState) {
        let stored = state.links.into();
        if !state.has(InodeState::ATTR_VALUE) {
            if stored > 0 {
                self.issue(Issue::Unattached { ino });
            }
        } else if stored != 1 + state.names {
            let counted = 1 + state.names;
            self.issue(Issue::LinkCount {
                ino,
                stored,
                counted,
            });
        }
    }

    fn check_inode_links(&mut self, ino: Ino) {
        let state = self.inodes.get(&self.geo, ino);
        let is_value = state.has(InodeState::EA_INODE) && state.has(InodeState::USED);
        if state.has(InodeState::ATTR_VALUE) && !is_value {
            return self.issue(Issue::XattrInode { value: ino });
        }
        let is_dir = state.kind == FileKind::Directory.entry_type();
        if !state.has(InodeState::USED) || state.has(InodeState::HIDDEN) || is_dir {
            return;
        }
        if is_value {
            return self.check_value_links(ino, state);
        }
        // An orphan without links has no name; one with links is being truncated.
        if state.names == 0 && state.links > 0 {
            self.issue(Issue::Unattached { ino });
        } else if state.names != u32::from(state.links) {
            self.issue(Issue::LinkCount {
                ino,
                stored: state.links.into(),
                counted: state.names,
            });
        }
    }
}
