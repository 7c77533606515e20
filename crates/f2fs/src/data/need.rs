//! What an fsync must do once the data is written: pure rules, the kernel's with one of our own.

use steadfs_vfs::FileKind;

/// Why an fsync takes a checkpoint instead of a node chain (`enum cp_reason_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Not a regular file: recovery knows only those.
    NotRegular,
    /// Clusters are not recovered.
    Compressed,
    /// Several names, or none: recovery makes one.
    HardLinks,
    /// The parent that the inode names is not its directory any more.
    LostParent,
    /// No room to recover more.
    NoRoom,
    /// The directory is not in a checkpoint: no name could be made in it.
    NewParent,
    /// `fastboot`.
    Fastboot,
    /// `active_logs=2`: there is no log for the chain.
    TwoLogs,
    /// `fsync_mode=strict`, and a directory that something was renamed into.
    RenamedInto,
    /// The directory's attributes changed.
    ParentAttributes,
    /// Nodes of the file were freed, which a chain cannot say. (The kernel recovers them as they were,
    /// with what they mapped.)
    NodesFreed,
    /// The chain cannot be followed to this file's nodes: a node before them could not be written.
    BrokenChain,
}

impl Reason {
    /// All, in the order in which they are looked at.
    pub const ALL: [Self; 12] = [
        Self::NotRegular,
        Self::Compressed,
        Self::HardLinks,
        Self::LostParent,
        Self::NoRoom,
        Self::NewParent,
        Self::Fastboot,
        Self::TwoLogs,
        Self::RenamedInto,
        Self::ParentAttributes,
        Self::NodesFreed,
        Self::BrokenChain,
    ];

    /// The reason in words, as the kernel's traces have it where it has one.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotRegular => "non regular file",
            Self::Compressed => "compressed file",
            Self::HardLinks => "hardlink",
            Self::LostParent => "wrong pino",
            Self::NoRoom => "no space roll forward",
            Self::NewParent => "node needs checkpoint",
            Self::Fastboot => "fastboot mode",
            Self::TwoLogs => "log type is 2",
            Self::RenamedInto => "dir needs recovery",
            Self::ParentAttributes => "dir's xattr updated",
            Self::NodesFreed => "nodes freed",
            Self::BrokenChain => "broken node chain",
        }
    }
}

/// What is known of a file when its fsync decides.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Its type.
    pub kind: FileKind,
    /// Stored in clusters.
    pub compressed: bool,
    /// Number of names.
    pub links: u32,
    /// The inode's parent is not known.
    pub lost_parent: bool,
    /// Recovery would have room for what it finds.
    pub room: bool,
    /// The parent is in the last checkpoint.
    pub parent_checkpointed: bool,
    /// `fastboot`.
    pub fastboot: bool,
    /// `active_logs=`.
    pub active_logs: u8,
    /// `fsync_mode=strict`.
    pub strict: bool,
    /// The inode is in no checkpoint.
    pub new: bool,
    /// Something was renamed into the parent since the last checkpoint.
    pub renamed_into_parent: bool,
    /// The parent's attributes were changed since then.
    pub parent_attributes: bool,
    /// Nodes of this inode were freed since then.
    pub nodes_freed: bool,
    /// A node of the chain before this file's could not be written.
    pub broken_chain: bool,
}

impl Facts {
    /// Why only a checkpoint can make the file durable, if so.
    pub fn reason(&self) -> Option<Reason> {
        let holds = |reason: &Reason| match reason {
            Reason::NotRegular => self.kind != FileKind::Regular,
            Reason::Compressed => self.compressed,
            Reason::HardLinks => self.links != 1,
            Reason::LostParent => self.lost_parent,
            Reason::NoRoom => !self.room,
            Reason::NewParent => !self.parent_checkpointed,
            Reason::Fastboot => self.fastboot,
            Reason::TwoLogs => self.active_logs == 2,
            Reason::RenamedInto => self.strict && self.new && self.renamed_into_parent,
            Reason::ParentAttributes => self.parent_attributes,
            Reason::NodesFreed => self.nodes_freed,
            Reason::BrokenChain => self.broken_chain,
        };
        Reason::ALL.into_iter().find(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_alone() {
        let calm = Facts {
            kind: FileKind::Regular,
            compressed: false,
            links: 1,
            lost_parent: false,
            room: true,
            parent_checkpointed: true,
            fastboot: false,
            active_logs: 6,
            strict: false,
            new: false,
            renamed_into_parent: false,
            parent_attributes: false,
            nodes_freed: false,
            broken_chain: false,
        };
        assert_eq!(calm.reason(), None);
        let renamed = Facts {
            new: true,
            renamed_into_parent: true,
            ..calm
        };
        assert_eq!(renamed.reason(), None, "posix");
        let directory = FileKind::Directory;
        let cases = [
            (
                Facts {
                    kind: directory,
                    ..calm
                },
                Reason::NotRegular,
            ),
            (
                Facts {
                    compressed: true,
                    ..calm
                },
                Reason::Compressed,
            ),
            (Facts { links: 2, ..calm }, Reason::HardLinks),
            (Facts { links: 0, ..calm }, Reason::HardLinks),
            (
                Facts {
                    lost_parent: true,
                    ..calm
                },
                Reason::LostParent,
            ),
            (
                Facts {
                    room: false,
                    ..calm
                },
                Reason::NoRoom,
            ),
            (
                Facts {
                    parent_checkpointed: false,
                    ..calm
                },
                Reason::NewParent,
            ),
            (
                Facts {
                    fastboot: true,
                    ..calm
                },
                Reason::Fastboot,
            ),
            (
                Facts {
                    active_logs: 2,
                    ..calm
                },
                Reason::TwoLogs,
            ),
            (
                Facts {
                    strict: true,
                    ..renamed
                },
                Reason::RenamedInto,
            ),
            (
                Facts {
                    parent_attributes: true,
                    ..calm
                },
                Reason::ParentAttributes,
            ),
            (
                Facts {
                    nodes_freed: true,
                    ..calm
                },
                Reason::NodesFreed,
            ),
            (
                Facts {
                    broken_chain: true,
                    ..calm
                },
                Reason::BrokenChain,
            ),
        ];
        for (facts, reason) in cases {
            assert_eq!(facts.reason(), Some(reason));
        }
    }
}
