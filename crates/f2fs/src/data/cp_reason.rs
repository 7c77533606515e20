//! What an fsync must do once the data is written: pure rules, the kernel's with one of our own.

use steadfs_vfs::FileKind;

/// Why an fsync takes a checkpoint instead of a node chain (`enum cp_reason_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpReason {
    /// Not a regular file: recovery knows only those.
    NotRegular,
    /// Clusters are not recovered.
    Compressed,
    /// Several names, or none: recovery makes one.
    HardLinks,
    /// The parent that the inode names is not its directory any more.
    LostParent,
    /// No room to recover more.
    NoRollForwardSpace,
    /// The directory is not in a checkpoint: no name could be made in it.
    NewParent,
    /// `fastboot`.
    Fastboot,
    /// `active_logs=2`: there is no log for the chain.
    NoWarmNodeLog,
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

impl CpReason {
    /// All, in the order in which they are looked at.
    pub const ALL: [Self; 12] = [
        Self::NotRegular,
        Self::Compressed,
        Self::HardLinks,
        Self::LostParent,
        Self::NoRollForwardSpace,
        Self::NewParent,
        Self::Fastboot,
        Self::NoWarmNodeLog,
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
            Self::NoRollForwardSpace => "no space roll forward",
            Self::NewParent => "node needs checkpoint",
            Self::Fastboot => "fastboot mode",
            Self::NoWarmNodeLog => "log type is 2",
            Self::RenamedInto => "dir needs recovery",
            Self::ParentAttributes => "dir's xattr updated",
            Self::NodesFreed => "nodes freed",
            Self::BrokenChain => "broken node chain",
        }
    }
}

/// What is known of a file when its fsync decides.
#[derive(Clone, Copy, Debug)]
pub struct FsyncFacts {
    /// Its type.
    pub kind: FileKind,
    /// Stored in clusters.
    pub compressed: bool,
    /// Number of names.
    pub links: u32,
    /// The inode's parent is not known.
    pub lost_parent: bool,
    /// Recovery would have room for what it finds.
    pub roll_forward_space: bool,
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

impl FsyncFacts {
    /// Why only a checkpoint can make the file durable, if so.
    pub fn cp_reason(&self) -> Option<CpReason> {
        let holds = |reason: &CpReason| match reason {
            CpReason::NotRegular => self.kind != FileKind::Regular,
            CpReason::Compressed => self.compressed,
            CpReason::HardLinks => self.links != 1,
            CpReason::LostParent => self.lost_parent,
            CpReason::NoRollForwardSpace => !self.roll_forward_space,
            CpReason::NewParent => !self.parent_checkpointed,
            CpReason::Fastboot => self.fastboot,
            CpReason::NoWarmNodeLog => self.active_logs == 2,
            CpReason::RenamedInto => self.strict && self.new && self.renamed_into_parent,
            CpReason::ParentAttributes => self.parent_attributes,
            CpReason::NodesFreed => self.nodes_freed,
            CpReason::BrokenChain => self.broken_chain,
        };
        CpReason::ALL.into_iter().find(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_alone() {
        let plain = FsyncFacts {
            kind: FileKind::Regular,
            compressed: false,
            links: 1,
            lost_parent: false,
            roll_forward_space: true,
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
        assert_eq!(plain.cp_reason(), None);
        let renamed = FsyncFacts {
            new: true,
            renamed_into_parent: true,
            ..plain
        };
        assert_eq!(renamed.cp_reason(), None, "posix");
        let directory = FileKind::Directory;
        let cases = [
            (
                FsyncFacts {
                    kind: directory,
                    ..plain
                },
                CpReason::NotRegular,
            ),
            (
                FsyncFacts {
                    compressed: true,
                    ..plain
                },
                CpReason::Compressed,
            ),
            (FsyncFacts { links: 2, ..plain }, CpReason::HardLinks),
            (FsyncFacts { links: 0, ..plain }, CpReason::HardLinks),
            (
                FsyncFacts {
                    lost_parent: true,
                    ..plain
                },
                CpReason::LostParent,
            ),
            (
                FsyncFacts {
                    roll_forward_space: false,
                    ..plain
                },
                CpReason::NoRollForwardSpace,
            ),
            (
                FsyncFacts {
                    parent_checkpointed: false,
                    ..plain
                },
                CpReason::NewParent,
            ),
            (
                FsyncFacts {
                    fastboot: true,
                    ..plain
                },
                CpReason::Fastboot,
            ),
            (
                FsyncFacts {
                    active_logs: 2,
                    ..plain
                },
                CpReason::NoWarmNodeLog,
            ),
            (
                FsyncFacts {
                    strict: true,
                    ..renamed
                },
                CpReason::RenamedInto,
            ),
            (
                FsyncFacts {
                    parent_attributes: true,
                    ..plain
                },
                CpReason::ParentAttributes,
            ),
            (
                FsyncFacts {
                    nodes_freed: true,
                    ..plain
                },
                CpReason::NodesFreed,
            ),
            (
                FsyncFacts {
                    broken_chain: true,
                    ..plain
                },
                CpReason::BrokenChain,
            ),
        ];
        for (facts, reason) in cases {
            assert_eq!(facts.cp_reason(), Some(reason));
        }
    }
}
