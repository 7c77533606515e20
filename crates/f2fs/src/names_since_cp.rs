//! Changes of names since the last snapshot, which decide whether an fsync needs a checkpoint.

use std::collections::BTreeSet;

use crate::disk::Nid;

/// Cleared by each snapshot.
#[derive(Default)]
pub struct NamesSinceCp {
    /// Names removed from inodes that have other names, by directory and hash. Roll-forward would let a new file of
    /// such a name replace the old one, whose other name it does not know; so a new file of such a name needs a
    /// checkpoint (it is added to `truncated_since_cp`).
    pub moved: BTreeSet<(Nid, u32)>,
    /// Directories whose attributes changed: files created in them inherit these.
    pub attributes: BTreeSet<Nid>,
    /// Directories into which something was moved, and directories that were moved (`fsync_mode=strict`).
    pub renamed_into: BTreeSet<Nid>,
}
