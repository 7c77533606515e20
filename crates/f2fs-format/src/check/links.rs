//! Names and inodes: link counts, parents, cycles of directories, quota files.

use steadfs_vfs::names::dirs_in_cycles;

use super::tables::{Dir, Slot};
use super::{Checker, Issue};
use crate::disk::Nid;

impl Checker<'_> {
    /// Compares every inode with the names found.
    pub(super) fn check_links(&mut self) {
        let mut from = Nid(0);
        while let Some((nid, slot)) = self.nat.next_used(&self.layout, from) {
            from = Nid(nid.0 + 1);
            // An unreadable inode was reported.
            if slot.ino == nid && slot.kind != 0 && !slot.has(Slot::HIDDEN) {
                self.check_inode_links(nid, slot);
            }
        }
        self.check_loops();
    }

    fn check_inode_links(&mut self, ino: Nid, slot: Slot) {
        if slot.has(Slot::ORPHAN) {
            if slot.links > 0 {
                let why = "has links";
                self.issue(Issue::Orphan { ino, why });
            }
            return;
        }
        if let Some(i) = self.dir_index(ino) {
            return self.check_dir_links(i, slot);
        }
        if slot.names == 0 {
            self.issue(Issue::Unattached { ino });
        } else if slot.names != slot.links {
            self.issue(Issue::LinkCount {
                ino,
                stored: slot.links,
                counted: slot.names.into(),
            });
        }
    }

    fn check_dir_links(&mut self, i: usize, slot: Slot) {
        let dir = &self.dirs[i];
        let (ino, dotdot, stored_parent) = (dir.ino, dir.dotdot, dir.stored_parent);
        let counted = 2 + dir.subdirs;
        let parent = if ino == Nid::ROOT {
            Some(Nid::ROOT)
        } else {
            dir.parent
        };
        let Some(parent) = parent else {
            return self.issue(Issue::Unattached { ino });
        };
        let mut parents = vec![("\"..\"", dotdot.unwrap_or(parent))];
        if ino != Nid::ROOT {
            parents.push(("the parent in its inode", stored_parent));
        }
        for (what, stored) in parents.into_iter().filter(|(_, stored)| *stored != parent) {
            self.issue(Issue::WrongParent {
                dir: ino,
                what,
                stored,
                parent,
            });
        }
        let stored = slot.links;
        if u64::from(stored) != counted {
            self.issue(Issue::LinkCount {
                ino,
                stored,
                counted,
            });
        }
    }

    /// Finds directories that have a name but cannot be reached from the root.
    fn check_loops(&mut self) {
        let of = |dir: &Dir| (dir.ino, dir.parent);
        let found = dirs_in_cycles(&self.dirs, Nid::ROOT, of, |dir| self.dir_index(dir));
        for ino in found
            .into_iter()
            .map(|i| self.dirs[i].ino)
            .collect::<Vec<_>>()
        {
            self.issue(Issue::DirLoop { ino });
        }
    }

    /// Checks that quota files are regular files with one link and no name.
    pub(super) fn check_quota_files(&mut self, files: [Option<Nid>; 3]) {
        for ino in files.into_iter().flatten() {
            let Some(slot) = self.nat.get(&self.layout, ino) else {
                continue;
            };
            let regular = steadfs_vfs::FileKind::Regular.entry_type();
            if slot.has(Slot::HIDDEN) && slot.kind != 0 && slot.kind != regular {
                let why = "is not a regular file";
                self.issue(Issue::QuotaFile { ino, why });
            } else if slot.has(Slot::HIDDEN) && slot.kind != 0 && slot.links != 1 {
                let why = "does not have one link";
                self.issue(Issue::QuotaFile { ino, why });
            }
        }
    }
}
