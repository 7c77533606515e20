//! Changes since the last snapshot that a node chain cannot express, so that an fsync needs a checkpoint.

use std::collections::BTreeSet;

use steadfs_rt::{Mutex, Rank};

use crate::disk::Nid;

/// The changes; each snapshot clears them.
pub struct SinceCp {
    changes: Mutex<Changes>,
}

#[derive(Default)]
struct Changes {
    /// Inodes that need a checkpoint: nodes of them were freed or written without a mark, their nodes map another number of
    /// blocks, or they have a name that moved.
    inodes: BTreeSet<Nid>,
    /// Names removed from inodes that have other names, by directory and hash.
    moved_names: BTreeSet<(Nid, u32)>,
    /// Directories whose attributes changed.
    attributes: BTreeSet<Nid>,
    /// Directories into which something was moved, and directories that were moved.
    renamed_into: BTreeSet<Nid>,
    /// Inodes that are not directories and have got another name or directory.
    renamed: BTreeSet<Nid>,
    /// Inodes with a node chain, which follows the last snapshot's checkpoint.
    chained: BTreeSet<Nid>,
}

/// Changes of one directory.
#[derive(Clone, Copy)]
pub struct DirectoryChanges {
    /// Files created in it may have inherited attributes that the checkpoint does not have.
    pub attributes: bool,
    /// Something was moved into it, or it was moved (`fsync_mode=strict`).
    pub renamed_into: bool,
}

impl SinceCp {
    pub fn new() -> Self {
        Self {
            changes: Mutex::new(Rank::Leaf, Changes::default()),
        }
    }

    /// A snapshot has all changes. The caller holds `cp_lock` exclusively.
    pub fn clear(&self) {
        *self.changes.lock() = Changes::default();
    }

    /// Nodes of an inode were freed.
    pub fn free_nodes_of(&self, ino: Nid) {
        self.changes.lock().inodes.insert(ino);
    }

    /// A node of an inode was written, and is in no chain: only a checkpoint makes it durable.
    pub fn place_node_of(&self, ino: Nid) {
        self.changes.lock().inodes.insert(ino);
    }

    /// A chain of an inode has blocks. Within the change that allocates them.
    pub fn add_chain(&self, ino: Nid) {
        self.changes.lock().chained.insert(ino);
    }

    /// Whether an inode has a chain.
    pub fn has_chain(&self, ino: Nid) -> bool {
        self.changes.lock().chained.contains(&ino)
    }

    /// An inode has got another name or directory.
    pub fn rename(&self, ino: Nid) {
        self.changes.lock().renamed.insert(ino);
    }

    /// Whether an inode has got another name or directory.
    pub fn is_renamed(&self, ino: Nid) -> bool {
        self.changes.lock().renamed.contains(&ino)
    }

    /// The number of blocks that each node of an inode maps has changed.
    pub fn change_map_of(&self, ino: Nid) {
        self.changes.lock().inodes.insert(ino);
    }

    /// An inode with another name has lost the name with this hash.
    pub fn move_name(&self, dir: Nid, hash: u32) {
        self.changes.lock().moved_names.insert((dir, hash));
    }

    /// A new file has a name with this hash. If the name has moved, roll-forward would let the file replace the inode
    /// that had it, whose other name it does not know: the file needs a checkpoint.
    pub fn create_name(&self, dir: Nid, hash: u32, ino: Nid) {
        let mut changes = self.changes.lock();
        if changes.moved_names.contains(&(dir, hash)) {
            changes.inodes.insert(ino);
        }
    }

    /// The attributes of a directory changed.
    pub fn change_attributes(&self, dir: Nid) {
        self.changes.lock().attributes.insert(dir);
    }

    /// Something was moved into a directory, or the directory was moved.
    pub fn rename_into(&self, dir: Nid) {
        self.changes.lock().renamed_into.insert(dir);
    }

    /// Whether an fsync of this inode needs a checkpoint.
    pub fn needs_checkpoint(&self, ino: Nid) -> bool {
        self.changes.lock().inodes.contains(&ino)
    }

    /// The changes of a directory.
    pub fn of_directory(&self, dir: Nid) -> DirectoryChanges {
        let changes = self.changes.lock();
        DirectoryChanges {
            attributes: changes.attributes.contains(&dir),
            renamed_into: changes.renamed_into.contains(&dir),
        }
    }
}
