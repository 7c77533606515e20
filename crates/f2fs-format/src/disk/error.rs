//! Errors of structures that contradict the format: what is wrong, and where.

use std::fmt;

use steadfs_base::{Corruption, CorruptionKind, DevBlock};
use steadfs_vfs::FsError;
use thiserror::Error;

use super::superblock::ErrorFlag;
use super::{BlockAddr, Nid};

/// The result of decoding or verifying a structure.
pub type Result<T, E = DiskError> = std::result::Result<T, E>;

/// A structure that contradicts the format. Converts to [`FsError::Corrupt`], with the bit of `s_errors` where Linux
/// has one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{location}{kind}")]
pub struct DiskError {
    /// What is wrong.
    pub kind: CorruptKind,
    /// Where, if known.
    pub location: DiskLocation,
}

/// The kind of structure an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Superblock.
    Superblock,
    /// Checkpoint pack.
    Checkpoint,
    /// List of orphans in a checkpoint pack.
    OrphanBlock,
    /// Entry of the node address table, or its journal.
    Nat,
    /// Entry of the segment information table, or its journal.
    Sit,
    /// Summary of a segment.
    Summary,
    /// Node of any kind: its footer.
    Node,
    /// Inode.
    Inode,
    /// Directory entries in a block or in an inode.
    Dentries,
    /// Extended attributes.
    Xattrs,
    /// Access control list.
    Acl,
    /// Cluster of a compressed file.
    Cluster,
    /// The position of a verity descriptor (`struct fsverity_descriptor_location`).
    Verity,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superblock => "superblock",
            Self::Checkpoint => "checkpoint",
            Self::OrphanBlock => "orphan block",
            Self::Nat => "node address table",
            Self::Sit => "segment table",
            Self::Summary => "summary block",
            Self::Node => "node",
            Self::Inode => "inode",
            Self::Dentries => "directory block",
            Self::Xattrs => "attributes",
            Self::Acl => "access control list",
            Self::Cluster => "compressed cluster",
            Self::Verity => "position of the verity descriptor",
        })
    }
}

/// What is wrong with a structure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CorruptKind {
    /// A wrong magic number.
    #[error("{what} has magic {found:#x}")]
    Magic {
        /// Which structure.
        what: Structure,
        /// The number found.
        found: u32,
    },
    /// Not corrupt, but of a form that is not supported.
    #[error("not supported: {what}")]
    Unsupported {
        /// Names of features, or other requirements.
        what: String,
    },
    /// The stored checksum is not the computed one.
    #[error("{what} has checksum {stored:#x}, computed {computed:#x}")]
    Checksum {
        /// Which structure.
        what: Structure,
        /// As stored.
        stored: u32,
        /// As computed.
        computed: u32,
    },
    /// A field has a value that the format or the volume's geometry does not allow.
    #[error("{what}: {field} is {value}, {rule}")]
    Field {
        /// Which structure.
        what: Structure,
        /// The field, as the format's documentation names it.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// An invalid block address.
    #[error("{what}: block address is {addr}, {rule}")]
    Address {
        /// Which structure has it.
        what: Structure,
        /// The address.
        addr: BlockAddr,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// An entry of a table, directory or list breaks a rule.
    #[error("{what}: entry {index} {rule}")]
    Entry {
        /// Which structure.
        what: Structure,
        /// Number of the entry.
        index: u32,
        /// The rule it breaks.
        rule: &'static str,
    },
}

/// The location of a corrupt structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLocation {
    /// The node or inode that it belongs to.
    pub node: Option<Nid>,
    /// The block that holds it.
    pub block: Option<BlockAddr>,
}

impl fmt::Display for DiskLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(node) = self.node {
            write!(f, "node {node}: ")?;
        }
        if let Some(block) = self.block {
            write!(f, "block {block}: ")?;
        }
        Ok(())
    }
}

impl DiskError {
    /// An error for the wrong magic number `found`.
    pub fn magic(what: Structure, found: u32) -> Self {
        CorruptKind::Magic { what, found }.into()
    }

    /// An error for a field with an invalid value.
    pub fn field(
        what: Structure,
        field: &'static str,
        value: impl Into<u64>,
        rule: &'static str,
    ) -> Self {
        CorruptKind::Field {
            what,
            field,
            value: value.into(),
            rule,
        }
        .into()
    }

    /// An error for an invalid block address.
    pub fn address(what: Structure, addr: BlockAddr, rule: &'static str) -> Self {
        CorruptKind::Address { what, addr, rule }.into()
    }

    /// An error for the entry `index`.
    pub fn entry(what: Structure, index: u32, rule: &'static str) -> Self {
        CorruptKind::Entry { what, index, rule }.into()
    }

    /// An error for a wrong checksum.
    pub fn checksum(what: Structure, stored: u32, computed: u32) -> Self {
        CorruptKind::Checksum {
            what,
            stored,
            computed,
        }
        .into()
    }

    /// Adds the node, unless one is known already.
    #[must_use]
    pub fn in_node(mut self, node: Nid) -> Self {
        self.location.node.get_or_insert(node);
        self
    }

    /// Adds the block, unless one is known already.
    #[must_use]
    pub fn in_block(mut self, block: BlockAddr) -> Self {
        self.location.block.get_or_insert(block);
        self
    }
}

impl CorruptKind {
    /// What kind of verification failed.
    pub const fn class(&self) -> CorruptionKind {
        match self {
            Self::Magic { .. } => CorruptionKind::Magic,
            Self::Checksum { .. } => CorruptionKind::Checksum,
            _ => CorruptionKind::Structure,
        }
    }
}

impl From<CorruptKind> for DiskError {
    fn from(kind: CorruptKind) -> Self {
        Self {
            kind,
            location: DiskLocation::default(),
        }
    }
}

impl From<DiskError> for FsError {
    fn from(error: DiskError) -> Self {
        if matches!(error.kind, CorruptKind::Unsupported { .. }) {
            return Self::BadOption(error.to_string());
        }
        let DiskError { kind, location } = error;
        let corruption = Corruption {
            code: ErrorFlag::of(&kind).map(ErrorFlag::bit),
            node: location.node.map(|nid| nid.0),
            block: location.block.map(|addr| DevBlock(addr.0.into())),
            ..Corruption::new(kind.to_string())
        };
        corruption.of_kind(kind.class()).into()
    }
}
