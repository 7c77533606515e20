//! Content of a volume that failed verification: what is wrong and where, as values.
//!
//! The text exists only for display. What is recorded on disk, which exit code follows and what is said about it are
//! decided by the values, never by the text.

use std::borrow::Cow;
use std::fmt;

use crate::{DevBlock, FileBlock, InodeNo};

/// What kind of verification failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CorruptionKind {
    /// A value, or two values together, that the format or the geometry of the volume does not allow.
    #[default]
    Structure,
    /// A magic number is another one.
    Magic,
    /// A stored checksum is not the computed one.
    Checksum,
}

/// One contradiction in the content of a volume. Parts of its position that are not known are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corruption {
    /// What kind of verification failed.
    pub kind: CorruptionKind,
    /// The format's own number for it, where it has one (f2fs: the bit of `s_errors`, `enum f2fs_error`).
    pub code: Option<u16>,
    /// Block group (ext4).
    pub group: Option<u32>,
    /// Inode that the structure belongs to.
    pub inode: Option<InodeNo>,
    /// Node that the structure belongs to (f2fs), which may be an inode.
    pub node: Option<u32>,
    /// Block of that inode's content.
    pub file_block: Option<FileBlock>,
    /// Block of the volume.
    pub block: Option<DevBlock>,
    /// The rule that is broken, without its position; for display only.
    pub what: Cow<'static, str>,
    /// A way out for the user, if there is one; for display only.
    pub hint: Option<String>,
}

impl Corruption {
    /// A contradiction of kind [`CorruptionKind::Structure`] at a position that is not known yet. `what` is the rule
    /// that is broken, without its position.
    pub fn new(what: impl Into<Cow<'static, str>>) -> Self {
        Self {
            what: what.into(),
            ..Self::default()
        }
    }

    /// The same of another kind.
    #[must_use]
    pub fn of_kind(mut self, kind: CorruptionKind) -> Self {
        self.kind = kind;
        self
    }

    /// The same with the format's own number for it.
    #[must_use]
    pub fn with_code(mut self, code: u16) -> Self {
        self.code = Some(code);
        self
    }

    /// The same in a block group, unless one is known.
    #[must_use]
    pub fn in_group(mut self, group: u32) -> Self {
        self.group.get_or_insert(group);
        self
    }

    /// The same in an inode, unless one is known.
    #[must_use]
    pub fn in_inode(mut self, inode: impl Into<InodeNo>) -> Self {
        self.inode.get_or_insert(inode.into());
        self
    }

    /// The same at a block of its inode's content, unless one is known.
    #[must_use]
    pub fn at_file_block(mut self, block: FileBlock) -> Self {
        self.file_block.get_or_insert(block);
        self
    }

    /// The same in a block of the volume, unless one is known.
    #[must_use]
    pub fn in_block(mut self, block: DevBlock) -> Self {
        self.block.get_or_insert(block);
        self
    }

    /// The same with a way out for the user, shown in parentheses.
    #[must_use]
    pub fn with_hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }
}

impl fmt::Display for Corruption {
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
        if let Some(block) = self.file_block {
            write!(f, "file block {block}: ")?;
        }
        if let Some(block) = self.block {
            write!(f, "block {block}: ")?;
        }
        f.write_str(&self.what)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_position_and_the_values_keep_it() {
        let corruption = Corruption::new("is mapped to metadata")
            .in_inode(InodeNo(12))
            .at_file_block(FileBlock(5))
            .in_block(DevBlock(134))
            .in_inode(InodeNo(13))
            .with_hint("see e2fsck");
        let text = "inode 12: file block 5: block 134: is mapped to metadata (see e2fsck)";
        assert_eq!(corruption.to_string(), text);
        assert_eq!(corruption.block, Some(DevBlock(134)));
        assert_eq!(corruption.kind, CorruptionKind::Structure);
    }
}
