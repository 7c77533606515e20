//! What has happened to names since the last checkpoint's snapshot, as far as it decides whether an fsync
//! can do without a checkpoint.

use std::collections::BTreeSet;

use crate::disk::Nid;

/// Cleared by each snapshot.
#[derive(Default)]
pub struct NamesSinceCp {
    /// Names that were given up while their inodes live on, by directory and hash. Roll-forward would
    /// make a new file of such a name over the old one, whose other name it does not know; so a new file
    /// of such a name needs a checkpoint (is among `cut`).
    pub moved: BTreeSet<(Nid, u32)>,
    /// Directories whose attributes have changed: what is made in them depends on that.
    pub attributes: BTreeSet<Nid>,
    /// Directories that something was moved into, and directories that were moved
    /// (`fsync_mode=strict`).
    pub renamed_into: BTreeSet<Nid>,
}
