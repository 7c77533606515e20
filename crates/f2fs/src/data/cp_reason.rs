//! Whether an fsync can write a node chain or needs a checkpoint: the kernel's rules, and one of ours
//! (`NodesFreed`).

use steadfs_vfs::FileKind;

/// Why an fsync takes a checkpoint instead of a node chain (`enum cp_reason_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpReason {
    /// Not a regular file: roll-forward recovers only those.
    NotRegular,
    /// Roll-forward does not recover compressed clusters.
    Compressed,
    /// More or fewer links than one: roll-forward recovers one name.
    HardLinks,
    /// `i_pino` is not the file's directory any more.
    LostParent,
    /// Roll-forward would not have enough free blocks.
    NoRollForwardSpace,
    /// The parent is in no checkpoint: roll-forward could not add a name to it.
    NewParent,
    /// The option `fastboot`.
    Fastboot,
    /// `active_logs=2`: there is no warm node log for the chain.
    NoWarmNodeLog,
    /// `fsync_mode=strict`, and an inode was renamed into the parent.
    RenamedInto,
    /// The parent's extended attributes changed.
    ParentAttributes,
    /// Nodes of the file were freed, which a chain cannot express. (The kernel recovers them with the blocks they
    /// mapped.)
    NodesFreed,
    /// A node before this file's nodes in the log could not be written, so recovery would not reach them.
    BrokenChain,
}

impl CpReason {
    /// All reasons, in the order in which they are checked.
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

    /// The reason as the kernel's tracepoints name it, or a name in their style.
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

/// The state of a file and the volume that decides.
#[derive(Clone, Copy, Debug)]
pub struct FsyncFacts {
    pub kind: FileKind,
    pub compressed: bool,
    pub links: u32,
    /// `i_pino` is not known to be the file's directory.
    pub lost_parent: bool,
    /// Roll-forward would have enough free blocks.
    pub roll_forward_space: bool,
    /// The parent is in the last checkpoint.
    pub parent_checkpointed: bool,
    /// The option `fastboot`.
    pub fastboot: bool,
    /// The option `active_logs`.
    pub active_logs: u8,
    /// The option `fsync_mode=strict`.
    pub strict: bool,
    /// The inode is in no checkpoint.
    pub new: bool,
    /// An inode was renamed into the parent since the last checkpoint.
    pub renamed_into_parent: bool,
    /// The parent's extended attributes changed since the last checkpoint.
    pub parent_attributes: bool,
    /// Nodes of this inode were freed since the last checkpoint.
    pub nodes_freed: bool,
    /// A node before this file's in the log could not be written.
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

    /// A file that its node chain makes durable.
    const PLAIN: FsyncFacts = FsyncFacts {
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

    /// A change of the facts, and the reason that follows.
    type Case = (fn(&mut FsyncFacts), CpReason);

    const CASES: [Case; 13] = [
        (|f| f.kind = FileKind::Directory, CpReason::NotRegular),
        (|f| f.compressed = true, CpReason::Compressed),
        (|f| f.links = 2, CpReason::HardLinks),
        (|f| f.links = 0, CpReason::HardLinks),
        (|f| f.lost_parent = true, CpReason::LostParent),
        (
            |f| f.roll_forward_space = false,
            CpReason::NoRollForwardSpace,
        ),
        (|f| f.parent_checkpointed = false, CpReason::NewParent),
        (|f| f.fastboot = true, CpReason::Fastboot),
        (|f| f.active_logs = 2, CpReason::NoWarmNodeLog),
        (
            |f| (f.strict, f.new, f.renamed_into_parent) = (true, true, true),
            CpReason::RenamedInto,
        ),
        (|f| f.parent_attributes = true, CpReason::ParentAttributes),
        (|f| f.nodes_freed = true, CpReason::NodesFreed),
        (|f| f.broken_chain = true, CpReason::BrokenChain),
    ];

    #[test]
    fn each_reason_alone() {
        for (change, reason) in CASES {
            let mut facts = PLAIN;
            change(&mut facts);
            assert_eq!(facts.cp_reason(), Some(reason));
        }
    }

    #[test]
    fn a_plain_file_needs_no_checkpoint() {
        assert_eq!(PLAIN.cp_reason(), None);
        let renamed = FsyncFacts {
            new: true,
            renamed_into_parent: true,
            ..PLAIN
        };
        assert_eq!(renamed.cp_reason(), None, "posix");
    }
}
