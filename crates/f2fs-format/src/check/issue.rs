//! All kinds of findings of the checker.

use steadfs_format_base::check::Name;
use steadfs_format_base::quota::usage::Difference;
use thiserror::Error;

use crate::disk::summary::Summary;
use crate::disk::{BlockAddr, DiskError, LogType, Nid, SegNo};

/// A finding: one inconsistency of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Issue {
    /// A copy of the superblock breaks a rule, or its checksum is wrong.
    #[error("superblock {}: {error}", .copy + 1)]
    Superblock {
        /// Which of the two: 0 or 1.
        copy: u32,
        /// What is wrong.
        error: DiskError,
    },
    /// Both copies of the superblock verify, and describe different volumes.
    #[error("the two superblocks describe different volumes")]
    SuperblocksDiffer,
    /// The device ends before the volume.
    #[error("the volume has {blocks} blocks, the device only {device_blocks}")]
    DeviceTooSmall {
        /// Blocks of the volume.
        blocks: u64,
        /// Blocks of the device.
        device_blocks: u64,
    },
    /// A block cannot be read.
    #[error("cannot read block {block}")]
    Unreadable {
        /// The block.
        block: BlockAddr,
    },
    /// Neither checkpoint pack is valid; nothing else was checked.
    #[error("no checkpoint is valid: {first}; {second}")]
    NoCheckpoint {
        /// What is wrong with the first pack.
        first: DiskError,
        /// What is wrong with the second one.
        second: DiskError,
    },
    /// A field of the checkpoint is inconsistent.
    #[error("checkpoint: {field} is {stored}, {rule}")]
    Checkpoint {
        /// The field, as the format's documentation names it.
        field: &'static str,
        /// Its value.
        stored: u64,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// The last block of the checkpoint pack is not a copy of the first.
    #[error("checkpoint pack {}: its last block is not a copy of the first", .pack + 1)]
    PackEnds {
        /// Which of the two: 0 or 1.
        pack: u32,
    },
    /// The summaries or journals in the checkpoint pack cannot be decoded; nothing else was checked.
    #[error("checkpoint pack: {0}")]
    Pack(DiskError),
    /// A journal has two entries for one node or segment.
    #[error("journal of the {table}: two entries for {number}")]
    JournalTwice {
        /// Which table it belongs to.
        table: &'static str,
        /// The node or segment.
        number: u32,
    },
    /// An orphan block breaks a rule.
    #[error("{0}")]
    OrphanBlock(DiskError),
    /// An entry of the orphan list is not an orphan.
    #[error("orphan {ino} {why}")]
    Orphan {
        /// The inode.
        ino: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// A curseg contradicts its segment.
    #[error("{} log: segment {segment} {why}", .log.name())]
    Log {
        /// Which log.
        log: LogType,
        /// The segment.
        segment: SegNo,
        /// What is wrong.
        why: &'static str,
    },
    /// A NAT entry breaks a rule.
    #[error("{0}")]
    Nat(DiskError),
    /// `nat_bits` contradicts a NAT block.
    #[error("nat_bits: NAT block {block} {why}")]
    NatBits {
        /// Number of the block within one copy.
        block: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// A SIT entry breaks a rule.
    #[error("{0}")]
    Sit(DiskError),
    /// A segment's valid map differs from the blocks that files and directories use.
    #[error(
        "segment {segment}: map of valid blocks is wrong from block {first} on: {used_but_free} used \
         blocks marked free, {free_but_used} free ones marked used"
    )]
    SitDiffers {
        /// The segment.
        segment: SegNo,
        /// First block that differs.
        first: BlockAddr,
        /// Blocks in use that the map has as invalid.
        used_but_free: u32,
        /// Blocks not in use that the map has as valid.
        free_but_used: u32,
    },
    /// A segment has data although its type is for nodes, or the reverse.
    #[error("segment {segment} has type \"{}\", but has {holds} at block {block}", .stored.name())]
    SegmentType {
        /// The segment.
        segment: SegNo,
        /// The type in the SIT.
        stored: LogType,
        /// The kind of block found.
        holds: &'static str,
        /// The block.
        block: BlockAddr,
    },
    /// A segment's summary block is of type data and the segment has nodes, or the reverse.
    #[error("segment {segment}: its summary block is not of type {holds}")]
    SummaryType {
        /// The segment.
        segment: SegNo,
        /// The kind of block found.
        holds: &'static str,
    },
    /// Summary entries of a segment do not have the owners of its blocks.
    #[error(
        "segment {segment}: {wrong} summary entries are wrong; block {first} belongs to node {}, slot {} \
         (version {}), the entry says node {}, slot {} (version {})",
        .owner.nid, .owner.slot, .owner.version, .stored.nid, .stored.slot, .stored.version
    )]
    Summary {
        /// The segment.
        segment: SegNo,
        /// Number of wrong entries.
        wrong: u32,
        /// The first block with a wrong entry.
        first: BlockAddr,
        /// Its owner.
        owner: Summary,
        /// The owner in the entry.
        stored: Summary,
    },
    /// A node's footer or an inode's field breaks a rule.
    #[error("{0}")]
    Node(DiskError),
    /// A node was written after a checkpoint that does not exist yet.
    #[error("node {nid} was written after checkpoint {version}, but this is {checkpoint}")]
    NodeVersion {
        /// The node.
        nid: Nid,
        /// The checkpoint version in the node (low half).
        version: u32,
        /// The checkpoint version of the volume (low half).
        checkpoint: u32,
    },
    /// A node in an inode's tree does not exist.
    #[error("inode {ino}: node {nid} with offset {offset} does not exist")]
    NodeMissing {
        /// The inode.
        ino: Nid,
        /// The node.
        nid: Nid,
        /// Its node offset.
        offset: u32,
    },
    /// According to the NAT, a node in an inode's tree belongs to another inode.
    #[error("inode {ino}: node {nid} belongs to inode {stored} according to the NAT")]
    NodeOwner {
        /// The inode.
        ino: Nid,
        /// The node.
        nid: Nid,
        /// The inode in the NAT.
        stored: Nid,
    },
    /// A node is used twice.
    #[error("inode {ino}: node {nid} is used elsewhere, too")]
    NodeTwice {
        /// The inode.
        ino: Nid,
        /// The node.
        nid: Nid,
    },
    /// A node is in no inode's tree.
    #[error("node {nid} of inode {ino} is not in the inode's tree")]
    NodeUnreached {
        /// The node.
        nid: Nid,
        /// The inode in the NAT.
        ino: Nid,
    },
    /// A block is used twice.
    #[error("inode {ino}: block {block}, in node {nid}, is used elsewhere, too")]
    BlockUsedTwice {
        /// The inode.
        ino: Nid,
        /// The node that maps it, or the node that it holds.
        nid: Nid,
        /// The block.
        block: BlockAddr,
    },
    /// A node maps a block outside the main area.
    #[error("inode {ino}: slot {slot} of node {nid} maps block {addr} outside the main area")]
    BadAddress {
        /// The inode.
        ino: Nid,
        /// The node.
        nid: Nid,
        /// The slot.
        slot: u16,
        /// The block.
        addr: BlockAddr,
    },
    /// The block count of an inode is wrong.
    #[error("inode {ino} has {stored} blocks, counted {counted}")]
    BlockCount {
        /// The inode.
        ino: Nid,
        /// `i_blocks`.
        stored: u64,
        /// Counted.
        counted: u64,
    },
    /// A compressed cluster, or the mark of one, breaks a rule.
    #[error("inode {ino}: the cluster with block {block} {why}")]
    Cluster {
        /// The inode.
        ino: Nid,
        /// Block of the file.
        block: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// The number of blocks saved by compression is wrong.
    #[error("inode {ino}: compression saves {stored} blocks, counted {counted}")]
    SavedBlocks {
        /// The inode.
        ino: Nid,
        /// `i_compr_blocks`.
        stored: u64,
        /// Counted.
        counted: u64,
    },
    /// The cached extent of an inode contradicts its block map.
    #[error(
        "inode {ino}: the cached extent has blocks {file_block} to {last} at {addr}, the map has not"
    )]
    Extent {
        /// The inode.
        ino: Nid,
        /// First block of the file.
        file_block: u32,
        /// Last block of the file.
        last: u64,
        /// First block on the device.
        addr: BlockAddr,
    },
    /// Inline content breaks a rule.
    #[error("inode {ino}: its inline content {why}")]
    Inline {
        /// The inode.
        ino: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// An inode has a property that the features or its type do not allow.
    #[error("inode {ino} {why}")]
    InodeFlag {
        /// The inode.
        ino: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// A symbolic link's target breaks a rule.
    #[error("symbolic link {ino} {why}")]
    Symlink {
        /// The inode.
        ino: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// Extended attributes break a rule.
    #[error("{0}")]
    Xattr(DiskError),
    /// An attribute list is missing or incomplete.
    #[error("inode {ino}: attributes: {why}")]
    XattrList {
        /// The inode.
        ino: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// A directory entry breaks a rule.
    #[error("{error} (block {block} of the directory)")]
    Dentry {
        /// Block number in the directory's file; 0 for inline entries.
        block: u64,
        /// What is wrong.
        error: DiskError,
    },
    /// Slots of a name are marked as free.
    #[error("directory {dir}: the slots of {name} are not all marked in use")]
    DirSlots {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
    },
    /// A name is not in the bucket of its hash.
    #[error("directory {dir}: {name} is in block {block} which is not a bucket of its hash")]
    DirPlace {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
        /// Block of the directory's file.
        block: u64,
    },
    /// A name's hash is wrong.
    #[error("directory {dir}: {name} has hash {stored:#x}, computed {computed:#x}")]
    DirHash {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
        /// As stored.
        stored: u32,
        /// As computed.
        computed: u32,
    },
    /// `.` or `..` is missing, duplicate or wrong.
    #[error("directory {dir}: {why}")]
    DirDots {
        /// The directory.
        dir: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// An invalid name.
    #[error("directory {dir}: {name} is not a valid name")]
    BadName {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
    },
    /// A duplicate name.
    #[error("directory {dir}: {name} occurs twice")]
    DuplicateName {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
    },
    /// A name refers to an inode that cannot have a name.
    #[error("directory {dir}: {name} refers to {ino}, {why}")]
    BadTarget {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
        /// The inode that it refers to.
        ino: Nid,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The type in a directory entry is not the type of the inode.
    #[error("directory {dir}: {name} has type {stored}, inode {ino} has {kind}")]
    EntryType {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
        /// The inode that it refers to.
        ino: Nid,
        /// Type in the entry.
        stored: u8,
        /// Type of the inode.
        kind: u8,
    },
    /// A directory has more than one name.
    #[error("directory {dir}: {name} is a second name of directory {ino}")]
    SecondName {
        /// The directory with the name.
        dir: Nid,
        /// The name.
        name: Name,
        /// The directory that it refers to.
        ino: Nid,
    },
    /// A directory's `..`, or the parent in its inode, is not the directory that has its name.
    #[error("directory {dir}: {what} is {stored}, its name is in {parent}")]
    WrongParent {
        /// The directory.
        dir: Nid,
        /// `..`, or the parent in the inode.
        what: &'static str,
        /// The directory that it refers to.
        stored: Nid,
        /// The directory with its name.
        parent: Nid,
    },
    /// The link count of an inode is wrong.
    #[error("inode {ino} has {stored} links, counted {counted}")]
    LinkCount {
        /// The inode.
        ino: Nid,
        /// As stored.
        stored: u32,
        /// Counted.
        counted: u64,
    },
    /// An inode in use has no name and is not an orphan.
    #[error("inode {ino} has no name")]
    Unattached {
        /// The inode.
        ino: Nid,
    },
    /// A cycle of directories.
    #[error("directory {ino} is its own ancestor")]
    DirLoop {
        /// One of them.
        ino: Nid,
    },
    /// There is no root directory.
    #[error("there is no root directory")]
    NoRoot,
    /// A quota file in the superblock is not valid.
    #[error("quota file {ino} {why}")]
    QuotaFile {
        /// The inode.
        ino: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// A quota file's usage of an owner is wrong.
    #[error("quota of {kind} {difference}")]
    QuotaUsage {
        /// User, group or project.
        kind: &'static str,
        /// The owner, and what the file has.
        difference: Difference,
    },
    /// Nodes written by fsync after the checkpoint cannot be recovered.
    #[error("written by fsync after the checkpoint: {0}")]
    Fsynced(DiskError),
    /// Nodes written by fsync after the checkpoint use a block of another owner in the checkpoint.
    #[error(
        "written by fsync after the checkpoint: inode {ino} uses block {block}, which has another owner in the checkpoint"
    )]
    FsyncedOver {
        /// The inode.
        ino: Nid,
        /// The block.
        block: BlockAddr,
    },
    /// The checkpoint's number of valid blocks is wrong.
    #[error("checkpoint: {stored} valid blocks, counted {counted}")]
    ValidBlocks {
        /// `valid_block_count`.
        stored: u64,
        /// Counted.
        counted: u64,
    },
    /// The checkpoint's number of nodes is wrong.
    #[error("checkpoint: {stored} nodes, counted {counted}")]
    ValidNodes {
        /// `valid_node_count`.
        stored: u32,
        /// Counted.
        counted: u32,
    },
    /// The checkpoint's number of inodes is wrong.
    #[error("checkpoint: {stored} inodes, counted {counted}")]
    ValidInodes {
        /// `valid_inode_count`.
        stored: u32,
        /// Counted.
        counted: u32,
    },
    /// The checkpoint's number of free segments is wrong.
    #[error("checkpoint: {stored} free segments, counted {counted}")]
    FreeSegments {
        /// `free_segment_count`.
        stored: u32,
        /// Counted.
        counted: u32,
    },
}
