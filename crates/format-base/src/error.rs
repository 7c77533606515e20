//! Errors of structures that contradict the format: what is wrong, and where.

use std::fmt::{self, Debug, Display};

use steadfs_base::{Corruption, CorruptionKind, DevBlock, InodeNo};
use steadfs_vfs::FsError;
use steadfs_vfs::acl::AclError;
use thiserror::Error;

/// The kinds of structures of a format. `Display` names one in messages.
pub trait Structure: Copy + Debug + Display + Eq + Send + Sync + 'static {
    /// An access control list.
    const ACL: Self;

    /// The program that makes volumes of this format.
    const MKFS: &'static str;

    /// The format's own number for an error, where it has one ([`Corruption::code`]).
    fn code(kind: &CorruptKind<Self>) -> Option<u16>;
}

/// Defines the type `Structure` of a format's kinds of structures with their names, and the types of its errors:
/// `DiskError`, `CorruptKind`, `Result`.
#[macro_export]
macro_rules! structures {
    (mkfs: $mkfs:literal, code: $code:expr; $($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// A structure that contradicts the format.
        pub type DiskError = $crate::DiskError<Structure>;

        /// What is wrong with a structure.
        pub type CorruptKind = $crate::CorruptKind<Structure>;

        /// The result of decoding or verifying a structure.
        pub type Result<T, E = DiskError> = ::std::result::Result<T, E>;

        /// The kind of structure an error is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Structure {
            $($(#[$doc])* $kind,)*
        }

        impl ::std::fmt::Display for Structure {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(match self {
                    $(Self::$kind => $name,)*
                })
            }
        }

        impl $crate::Structure for Structure {
            const ACL: Self = Self::Acl;
            const MKFS: &'static str = $mkfs;

            fn code(kind: &CorruptKind) -> Option<u16> {
                $code(kind)
            }
        }
    };
}

/// A structure that contradicts the format. Converts to [`FsError::Corrupt`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}{kind}")]
pub struct DiskError<S: Structure> {
    /// What is wrong.
    pub kind: CorruptKind<S>,
    /// Where, as far as known.
    pub place: Place,
}

/// What is wrong with a structure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CorruptKind<S: Structure> {
    /// A wrong magic number.
    #[error("{what} has magic {found:#x}")]
    Magic {
        /// Which structure.
        what: S,
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
        what: S,
        /// As stored.
        stored: u32,
        /// As computed.
        computed: u32,
    },
    /// A field has a value that the format or the volume's geometry does not allow.
    #[error("{what}: {field} is {value}, {rule}")]
    Field {
        /// Which structure.
        what: S,
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
        what: S,
        /// The address.
        addr: DevBlock,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// An entry (extent, directory entry, attribute, …) of a structure breaks a rule.
    #[error("{what}: entry {index} {rule}")]
    Entry {
        /// Which structure.
        what: S,
        /// Number of the entry, or its offset in bytes in directory blocks of ext4.
        index: u32,
        /// The rule it breaks.
        rule: &'static str,
    },
}

/// The position of a corrupt structure; parts that are not known, or that the format does not have, are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The block group that it describes (ext4).
    pub group: Option<u32>,
    /// The inode that it belongs to.
    pub inode: Option<InodeNo>,
    /// The node that it belongs to (f2fs), which may be an inode.
    pub node: Option<u32>,
    /// The block that holds it.
    pub block: Option<DevBlock>,
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = self.group {
            write!(f, "group {group}: ")?;
        }
        if let Some(inode) = self.inode {
            write!(f, "inode {inode}: ")?;
        }
        if let Some(node) = self.node {
            write!(f, "node {node}: ")?;
        }
        if let Some(block) = self.block {
            write!(f, "block {block}: ")?;
        }
        Ok(())
    }
}

impl<S: Structure> DiskError<S> {
    /// An error for the wrong magic number `found`.
    pub fn magic(what: S, found: u32) -> Self {
        CorruptKind::Magic { what, found }.into()
    }

    /// An error for a wrong checksum.
    pub fn checksum(what: S, stored: u32, computed: u32) -> Self {
        CorruptKind::Checksum {
            what,
            stored,
            computed,
        }
        .into()
    }

    /// An error for a field with an invalid value.
    pub fn field(what: S, field: &'static str, value: impl Into<u64>, rule: &'static str) -> Self {
        CorruptKind::Field {
            what,
            field,
            value: value.into(),
            rule,
        }
        .into()
    }

    /// An error for an invalid block address.
    pub fn address(what: S, addr: impl Into<DevBlock>, rule: &'static str) -> Self {
        let addr = addr.into();
        CorruptKind::Address { what, addr, rule }.into()
    }

    /// An error for the entry `index`.
    pub fn entry(what: S, index: u32, rule: &'static str) -> Self {
        CorruptKind::Entry { what, index, rule }.into()
    }

    /// Adds the group, unless one is known already.
    #[must_use]
    pub fn in_group(mut self, group: impl Into<u32>) -> Self {
        self.place.group.get_or_insert(group.into());
        self
    }

    /// Adds the inode, unless one is known already.
    #[must_use]
    pub fn in_inode(mut self, inode: impl Into<InodeNo>) -> Self {
        self.place.inode.get_or_insert(inode.into());
        self
    }

    /// Adds the node, unless one is known already.
    #[must_use]
    pub fn in_node(mut self, node: impl Into<u32>) -> Self {
        self.place.node.get_or_insert(node.into());
        self
    }

    /// Adds the block, unless one is known already.
    #[must_use]
    pub fn in_block(mut self, block: impl Into<DevBlock>) -> Self {
        self.place.block.get_or_insert(block.into());
        self
    }
}

impl<S: Structure> CorruptKind<S> {
    /// What kind of verification failed.
    pub const fn class(&self) -> CorruptionKind {
        match self {
            Self::Magic { .. } => CorruptionKind::Magic,
            Self::Checksum { .. } => CorruptionKind::Checksum,
            Self::Unsupported { .. }
            | Self::Field { .. }
            | Self::Address { .. }
            | Self::Entry { .. } => CorruptionKind::Structure,
        }
    }
}

impl<S: Structure> From<CorruptKind<S>> for DiskError<S> {
    fn from(kind: CorruptKind<S>) -> Self {
        Self {
            kind,
            place: Place::default(),
        }
    }
}

impl<S: Structure> From<DiskError<S>> for FsError {
    fn from(error: DiskError<S>) -> Self {
        if matches!(error.kind, CorruptKind::Unsupported { .. }) {
            return Self::BadOption(error.to_string());
        }
        let DiskError { kind, place } = error;
        let corruption = Corruption {
            code: S::code(&kind),
            group: place.group,
            inode: place.inode,
            node: place.node,
            block: place.block,
            ..Corruption::new(kind.to_string())
        };
        corruption.of_kind(kind.class()).into()
    }
}

impl<S: Structure> From<AclError> for DiskError<S> {
    fn from(error: AclError) -> Self {
        Self::entry(S::ACL, error.index, error.rule)
    }
}
