//! What is wrong with a structure, and where it is.

use std::fmt;

use steadfs_base::{Corruption, CorruptionKind, DevBlock};
use steadfs_vfs::FsError;
use steadfs_vfs::acl::AclError;
use thiserror::Error;

use super::{GroupNo, Ino};

/// Result of decoding or verifying a structure.
pub type Result<T, E = DiskError> = std::result::Result<T, E>;

/// A structure that contradicts the format. Converts to [`FsError::Corrupt`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}{kind}")]
pub struct DiskError {
    /// What is wrong.
    pub kind: CorruptKind,
    /// Where, as far as known.
    pub place: Place,
}

/// The kind of structure an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Superblock.
    Superblock,
    /// Group descriptor.
    GroupDesc,
    /// Block bitmap of a group.
    BlockBitmap,
    /// Inode bitmap of a group.
    InodeBitmap,
    /// Inode.
    Inode,
    /// Extent-tree node (in an inode or a block).
    ExtentNode,
    /// Block of block numbers of an indirect map.
    IndirectMap,
    /// Linear directory block.
    DirBlock,
    /// Node of a directory's hash index.
    HtreeNode,
    /// Extended attributes in an inode.
    InodeXattr,
    /// Extended-attribute block.
    XattrBlock,
    /// Access control list.
    Acl,
    /// Block of the orphan file.
    OrphanFile,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superblock => "superblock",
            Self::GroupDesc => "group descriptor",
            Self::BlockBitmap => "block bitmap",
            Self::InodeBitmap => "inode bitmap",
            Self::Inode => "inode",
            Self::ExtentNode => "extent node",
            Self::IndirectMap => "indirect block",
            Self::DirBlock => "directory block",
            Self::HtreeNode => "directory index",
            Self::InodeXattr => "in-inode attributes",
            Self::XattrBlock => "attribute block",
            Self::Acl => "access control list",
            Self::OrphanFile => "orphan file",
        })
    }
}

/// What is wrong with a structure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CorruptKind {
    /// The magic number is another one.
    #[error("{what} has magic {found:#x}")]
    Magic {
        /// Which structure.
        what: Structure,
        /// The number found.
        found: u32,
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
    /// A field has a value the format or the volume's geometry does not allow.
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
    /// An entry (extent, directory entry, attribute, …) breaks a rule.
    #[error("{what}: entry {index} {rule}")]
    Entry {
        /// Which structure.
        what: Structure,
        /// Number of the entry, or its offset in bytes in directory blocks.
        index: u32,
        /// The rule it breaks.
        rule: &'static str,
    },
}

/// Where a damaged structure is; parts that are not known are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The group it describes.
    pub group: Option<GroupNo>,
    /// The inode it belongs to.
    pub inode: Option<Ino>,
    /// The block it is in.
    pub block: Option<DevBlock>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = self.group {
            write!(f, "group {group}: ")?;
        }
        if let Some(inode) = self.inode {
            write!(f, "inode {inode}: ")?;
        }
        if let Some(block) = self.block {
            write!(f, "block {block}: ")?;
        }
        Ok(())
    }
}

impl DiskError {
    pub(crate) fn magic(what: Structure, found: u32) -> Self {
        CorruptKind::Magic { what, found }.into()
    }

    pub(crate) fn field(
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

    pub(crate) fn entry(what: Structure, index: u32, rule: &'static str) -> Self {
        CorruptKind::Entry { what, index, rule }.into()
    }

    /// The same, known to be in `inode`.
    #[must_use]
    pub fn in_inode(mut self, inode: Ino) -> Self {
        self.place.inode.get_or_insert(inode);
        self
    }

    /// The same, known to be in `block`.
    #[must_use]
    pub fn in_block(mut self, block: DevBlock) -> Self {
        self.place.block.get_or_insert(block);
        self
    }

    /// The same, known to be in `group`.
    #[must_use]
    pub fn in_group(mut self, group: GroupNo) -> Self {
        self.place.group.get_or_insert(group);
        self
    }
}

impl CorruptKind {
    /// What kind of verification failed.
    pub const fn class(&self) -> CorruptionKind {
        match self {
            Self::Magic { .. } => CorruptionKind::Magic,
            Self::Checksum { .. } => CorruptionKind::Checksum,
            Self::Field { .. } | Self::Entry { .. } => CorruptionKind::Structure,
        }
    }
}

impl From<CorruptKind> for DiskError {
    fn from(kind: CorruptKind) -> Self {
        Self {
            kind,
            place: Place::default(),
        }
    }
}

impl From<DiskError> for FsError {
    fn from(error: DiskError) -> Self {
        let DiskError { kind, place } = error;
        let corruption = Corruption {
            group: place.group.map(|group| group.0),
            inode: place.inode.map(Into::into),
            block: place.block,
            ..Corruption::new(kind.to_string())
        };
        corruption.of_kind(kind.class()).into()
    }
}

impl From<AclError> for DiskError {
    fn from(error: AclError) -> Self {
        Self::entry(Structure::Acl, error.index, error.rule)
    }
}
