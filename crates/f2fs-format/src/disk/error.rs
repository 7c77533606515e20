//! Errors of structures that contradict the format: what is wrong, and where.

use super::superblock::ErrorFlag;

steadfs_format_base::structures! {
    mkfs: "mkfs.f2fs", code: |kind: &CorruptKind| ErrorFlag::of(kind).map(ErrorFlag::bit);
    /// Superblock.
    Superblock = "superblock",
    /// Checkpoint pack.
    Checkpoint = "checkpoint",
    /// List of orphans in a checkpoint pack.
    OrphanBlock = "orphan block",
    /// Entry of the node address table, or its journal.
    Nat = "node address table",
    /// Entry of the segment information table, or its journal.
    Sit = "segment table",
    /// Summary of a segment.
    Summary = "summary block",
    /// Node of any kind: its footer.
    Node = "node",
    /// Inode.
    Inode = "inode",
    /// Directory entries in a block or in an inode.
    Dentries = "directory block",
    /// Extended attributes.
    Xattrs = "attributes",
    /// Access control list.
    Acl = "access control list",
    /// Cluster of a compressed file.
    Cluster = "compressed cluster",
    /// The position of a verity descriptor (`struct fsverity_descriptor_location`).
    Verity = "position of the verity descriptor",
}
