//! What the superblock records about corruption and aborts (Linux since 6.1).

use steadfs_vfs::FsError;

use super::super::{CorruptKind, Structure};

/// A kind of corruption: its bit in `s_errors` (`enum f2fs_error`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorFlag(pub(super) u16);

impl ErrorFlag {
    /// A cluster of a compressed file.
    pub const CLUSTER: Self = Self(0);
    /// An invalid block address.
    pub const BLOCK_ADDRESS: Self = Self(2);
    /// Directory entries.
    pub const DIRENT: Self = Self(3);
    /// An inode.
    pub const INODE: Self = Self(4);
    /// A summary.
    pub const SUMMARY: Self = Self(5);
    /// A node's footer.
    pub const FOOTER: Self = Self(6);
    /// A SIT entry.
    pub const SIT: Self = Self(12);
    /// Extended attributes.
    pub const XATTR: Self = Self(14);
    /// The position of a verity descriptor.
    pub const VERITY_XATTR: Self = Self(15);
    /// A NAT entry.
    pub const NAT: Self = Self(16);
}

/// Names of the bits of `s_errors`, as fsck.f2fs prints them.
pub(super) const ERRORS: &[&str] = &[
    "corrupted_cluster",
    "fail_decompression",
    "invalid_blkaddr",
    "corrupted_dirent",
    "corrupted_inode",
    "inconsistent_summary",
    "inconsistent_footer",
    "inconsistent_sum_type",
    "corrupted_journal",
    "inconsistent_node_count",
    "inconsistent_block_count",
    "invalid_curseg",
    "inconsistent_sit",
    "corrupted_verity_xattr",
    "corrupted_xattr",
    "invalid_node_reference",
    "inconsistent_nat",
];

impl ErrorFlag {
    /// The flag for a kind of corruption; `None` if Linux has no bit for it.
    pub const fn of(kind: &CorruptKind) -> Option<Self> {
        let what = match kind {
            CorruptKind::Address { .. } => return Some(Self::BLOCK_ADDRESS),
            CorruptKind::Unsupported { .. } => return None,
            CorruptKind::Magic { what, .. }
            | CorruptKind::Checksum { what, .. }
            | CorruptKind::Field { what, .. }
            | CorruptKind::Entry { what, .. } => *what,
        };
        match what {
            Structure::Cluster => Some(Self::CLUSTER),
            Structure::Dentries => Some(Self::DIRENT),
            Structure::Summary => Some(Self::SUMMARY),
            Structure::Xattrs | Structure::Acl => Some(Self::XATTR),
            Structure::Verity => Some(Self::VERITY_XATTR),
            Structure::Nat => Some(Self::NAT),
            Structure::Sit => Some(Self::SIT),
            Structure::Inode => Some(Self::INODE),
            Structure::Node => Some(Self::FOOTER),
            // Without a valid one there is no mount that could record it.
            Structure::Superblock | Structure::Checkpoint | Structure::OrphanBlock => None,
        }
    }

    /// The bit's number.
    pub const fn bit(self) -> u16 {
        self.0
    }

    /// The flag for an error.
    pub fn of_error(error: &FsError) -> Option<Self> {
        match error {
            FsError::Corrupt(corruption) => corruption.code.map(Self),
            _ => None,
        }
    }
}

/// Why a volume was aborted: the index in `s_stop_reason` (`enum stop_cp_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopReason(pub(super) u16);

impl StopReason {
    /// A requested shutdown.
    pub const SHUTDOWN: Self = Self(0);
    /// A write failed.
    pub const WRITE_FAIL: Self = Self(3);
    /// An operation failed after its first change.
    pub const UPDATE_INODE: Self = Self(5);
    /// A FLUSH failed.
    pub const FLUSH_FAIL: Self = Self(6);
}

/// Names of the indexes in `s_stop_reason`, as fsck.f2fs prints them.
pub(super) const STOPS: &[&str] = &[
    "shutdown",
    "fault_inject",
    "meta_page",
    "write_fail",
    "corrupted_summary",
    "update_inode",
    "flush_fail",
    "no_segment",
    "corrupted_free_bitmap",
];
