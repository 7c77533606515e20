//! Free slots of a directory for a new name.

use crate::space::Need;

/// Free slots for a new name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeDentry {
    pub(crate) hash: u32,
    /// `None`: in the inode.
    pub(crate) block: Option<u64>,
    pub(super) slot: usize,
    /// The block is a hole.
    pub(super) is_hole: bool,
    /// Levels of the directory after the insertion.
    pub(super) depth: u32,
    /// Space that the insertion needs.
    pub(crate) need: Need,
}

/// A name that a directory does not have, and free slots for it.
pub(crate) struct AbsentName {
    pub(super) name: Box<[u8]>,
    pub(super) free: FreeDentry,
}
