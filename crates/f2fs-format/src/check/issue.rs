//! Everything the checker can find.

use std::fmt;

use steadfs_base::limits::NAME_MAX;
use thiserror::Error;

use crate::disk::summary::Summary;
use crate::disk::{BlockAddr, DiskError, LogType, Nid, SegNo};

/// A name as it can be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// At most as much as a name has.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(bytes[..bytes.len().min(NAME_MAX)].to_vec())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One thing that is wrong with a volume.
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
    #[error("the volume has {blocks} blocks, its device {device_blocks}")]
    DeviceTooSmall {
        /// Blocks of the volume.
        blocks: u64,
        /// Blocks of the device.
        device_blocks: u64,
    },
    /// A block cannot be read.
    #[error("block {block} cannot be read")]
    Unreadable {
        /// The block.
        block: BlockAddr,
    },
    /// Neither checkpoint pack is valid: nothing else was checked.
    #[error("no checkpoint is valid: {first}; {second}")]
    NoCheckpoint {
        /// What is wrong with the first pack.
        first: DiskError,
        /// What is wrong with the second one.
        second: DiskError,
    },
    /// A number of the checkpoint cannot be.
    #[error("checkpoint: {field} is {stored}, {rule}")]
    Checkpoint {
        /// The field, as the format's documentation names it.
        field: &'static str,
        /// Its value.
        stored: u64,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// The last block of the checkpoint pack is no copy of the first.
    #[error("checkpoint pack {}: its last block is no copy of the first", .pack + 1)]
    PackEnds {
        /// Which of the two: 0 or 1.
        pack: u32,
    },
    /// Summaries or journals in the checkpoint pack cannot be used: nothing else was checked.
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
    /// A list of orphans breaks a rule.
    #[error("{0}")]
    OrphanBlock(DiskError),
    /// An inode on the list of orphans that is none.
    #[error("orphan {ino} {why}")]
    Orphan {
        /// The inode.
        ino: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// An open log contradicts its segment.
    #[error("{} log: segment {segment} {why}", .log.name())]
    Log {
        /// Which log.
        log: LogType,
        /// Its segment.
        segment: SegNo,
        /// What is wrong.
        why: &'static str,
    },
    /// An entry of the node address table breaks a rule.
    #[error("{0}")]
    Nat(DiskError),
    /// `nat_bits` contradicts a block of the node address table.
    #[error("nat_bits: block {block} of the node address table {why}")]
    NatBits {
        /// The block, counted in one copy.
        block: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// An entry of the segment table breaks a rule.
    #[error("{0}")]
    Sit(DiskError),
    /// A segment's map of valid blocks is not what files and directories use.
    #[error(
        "segment {segment}: map of valid blocks is wrong from block {first} on: {used_but_free} used \
         blocks marked free, {free_but_used} free ones marked used"
    )]
    SitDiffers {
        /// The segment.
        segment: SegNo,
        /// First block that differs.
        first: BlockAddr,
        /// Blocks in use that the map has as free.
        used_but_free: u32,
        /// Blocks nobody uses that the map has as in use.
        free_but_used: u32,
    },
    /// A segment holds data where its entry says nodes, or the other way round.
    #[error("segment {segment} has type \"{}\", and holds {holds} at block {block}", .stored.name())]
    SegmentType {
        /// The segment.
        segment: SegNo,
        /// What its entry says.
        stored: LogType,
        /// What it holds.
        holds: &'static str,
        /// Where.
        block: BlockAddr,
    },
    /// A segment's summary block says that it holds data where it holds nodes, or the other way round.
    #[error("segment {segment}: its summary is not one of {holds}")]
    SummaryType {
        /// The segment.
        segment: SegNo,
        /// What it holds.
        holds: &'static str,
    },
    /// Entries of a segment's summary do not name who uses the blocks.
    #[error(
        "segment {segment}: {wrong} summary entries are wrong; block {first} belongs to node {}, slot {} \
         (version {}), the entry says node {}, slot {} (version {})",
        .owner.nid, .owner.slot, .owner.version, .stored.nid, .stored.slot, .stored.version
    )]
    Summary {
        /// The segment.
        segment: SegNo,
        /// Entries that are wrong.
        wrong: u32,
        /// The first block of them that was found.
        first: BlockAddr,
        /// Who uses it.
        owner: Summary,
        /// Who the entry says does.
        stored: Summary,
    },
    /// A node's footer, or an inode's fields, break a rule.
    #[error("{0}")]
    Node(DiskError),
    /// A node says that it was written after a checkpoint that is still to come.
    #[error("node {nid} was written after checkpoint {version}, but this is {checkpoint}")]
    NodeVersion {
        /// The node.
        nid: Nid,
        /// The checkpoint it names (its low half).
        version: u32,
        /// The volume's (its low half).
        checkpoint: u32,
    },
    /// An inode's tree names a node that does not exist.
    #[error("inode {ino}: node {nid} at place {offset} of its tree does not exist")]
    NodeMissing {
        /// The inode.
        ino: Nid,
        /// The node.
        nid: Nid,
        /// Its place ("node offset").
        offset: u32,
    },
    /// The node address table says that a node belongs to another inode than the one that names it.
    #[error("inode {ino}: node {nid} belongs to inode {stored} by the node address table")]
    NodeOwner {
        /// The inode.
        ino: Nid,
        /// The node.
        nid: Nid,
        /// The inode in the table.
        stored: Nid,
    },
    /// A node is in two places.
    #[error("inode {ino}: node {nid} is in use in another place too")]
    NodeTwice {
        /// The inode.
        ino: Nid,
        /// The node.
        nid: Nid,
    },
    /// No inode has this node in its tree.
    #[error("node {nid} of inode {ino} is in no tree")]
    NodeUnreached {
        /// The node.
        nid: Nid,
        /// The inode that the node address table names.
        ino: Nid,
    },
    /// A block has two owners.
    #[error("inode {ino}: block {block}, in node {nid}, is in use elsewhere too")]
    BlockUsedTwice {
        /// The inode.
        ino: Nid,
        /// The node that maps it, or the node in it.
        nid: Nid,
        /// The block.
        block: BlockAddr,
    },
    /// A node maps a block outside the main area.
    #[error("inode {ino}: slot {slot} of node {nid} leads to block {addr}, outside the main area")]
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
    /// The number of blocks of an inode is wrong.
    #[error("inode {ino} has {stored} blocks, counted {counted}")]
    BlockCount {
        /// The inode.
        ino: Nid,
        /// `i_blocks`.
        stored: u64,
        /// Counted.
        counted: u64,
    },
    /// A cluster of a compressed file, or a mark of one where there is none, breaks a rule.
    #[error("inode {ino}: the cluster with block {block} {why}")]
    Cluster {
        /// The inode.
        ino: Nid,
        /// Block of the file.
        block: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// The number of blocks that compression saves is wrong.
    #[error("inode {ino}: compression saves {stored} blocks, counted {counted}")]
    SavedBlocks {
        /// The inode.
        ino: Nid,
        /// `i_compr_blocks`.
        stored: u64,
        /// Counted.
        counted: u64,
    },
    /// The extent that an inode caches is not how its blocks lie.
    #[error(
        "inode {ino}: blocks {file_block} to {last} do not lie at {addr} in one piece, as it says"
    )]
    Extent {
        /// The inode.
        ino: Nid,
        /// First block of the file.
        file_block: u32,
        /// Last block of the file.
        last: u64,
        /// Where they lie.
        addr: BlockAddr,
    },
    /// What lies in the inode breaks a rule.
    #[error("inode {ino}: its inline content {why}")]
    Inline {
        /// The inode.
        ino: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// An inode has what the volume's features exclude, or what such an inode cannot have.
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
    /// Attributes break a rule.
    #[error("{0}")]
    Xattr(DiskError),
    /// An attribute list is there, but not as it must be.
    #[error("inode {ino}: attributes: {why}")]
    XattrList {
        /// The inode.
        ino: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// An entry of a directory breaks a rule.
    #[error("{error} (block {block} of the directory)")]
    Dentry {
        /// Block of the directory's file; 0 in the inode.
        block: u64,
        /// What is wrong.
        error: DiskError,
    },
    /// Slots that a name takes are marked free.
    #[error("directory {dir}: the slots of {name} are not all marked in use")]
    DirSlots {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
    },
    /// A name is not where its hash leads.
    #[error("directory {dir}: {name} is in block {block} and cannot be found there")]
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
    /// `.` or `..` is missing, twice there or wrong.
    #[error("directory {dir}: {why}")]
    DirDots {
        /// The directory.
        dir: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// A name that no file can have.
    #[error("directory {dir}: {name} cannot be a name")]
    BadName {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
    },
    /// A name is there twice.
    #[error("directory {dir}: {name} is there twice")]
    DuplicateName {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
    },
    /// A name leads to what cannot have a name.
    #[error("directory {dir}: {name} is {ino}, {why}")]
    BadTarget {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
        /// The inode named.
        ino: Nid,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A name's type byte is not the inode's type.
    #[error("directory {dir}: {name} has type {stored}, inode {ino} has {kind}")]
    EntryType {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Name,
        /// The inode named.
        ino: Nid,
        /// Type in the entry.
        stored: u8,
        /// Type of the inode.
        kind: u8,
    },
    /// A directory has a second name.
    #[error("directory {dir}: {name} is a second name of directory {ino}")]
    SecondName {
        /// The directory with the name.
        dir: Nid,
        /// The name.
        name: Name,
        /// The directory named.
        ino: Nid,
    },
    /// A directory's `..`, or the parent in its inode, is not where its name is.
    #[error("directory {dir}: {what} is {stored}, its name is in {parent}")]
    WrongParent {
        /// The directory.
        dir: Nid,
        /// Which of the two.
        what: &'static str,
        /// The directory it leads to.
        stored: Nid,
        /// The directory with its name.
        parent: Nid,
    },
    /// The number of links of an inode is wrong.
    #[error("inode {ino} has {stored} links, counted {counted}")]
    LinkCount {
        /// The inode.
        ino: Nid,
        /// As stored.
        stored: u32,
        /// Counted.
        counted: u64,
    },
    /// An inode in use has no name, and is no orphan.
    #[error("inode {ino} has no name")]
    Unattached {
        /// The inode.
        ino: Nid,
    },
    /// Directories that are in each other.
    #[error("directory {ino} is inside itself")]
    DirLoop {
        /// One of them.
        ino: Nid,
    },
    /// There is no root directory.
    #[error("there is no root directory")]
    NoRoot,
    /// A quota file that the superblock names is none.
    #[error("quota file {ino} {why}")]
    QuotaFile {
        /// The inode.
        ino: Nid,
        /// What is wrong.
        why: &'static str,
    },
    /// A quota file does not count what somebody has.
    #[error(
        "quota of {kind} {id}: {} bytes and {} inodes, counted {} and {}",
        .stored.0, .stored.1, .counted.0, .counted.1
    )]
    QuotaUsage {
        /// User, group or project.
        kind: &'static str,
        /// Its id.
        id: u32,
        /// Bytes and inodes in the file.
        stored: (u64, u64),
        /// Bytes and inodes counted.
        counted: (u64, u64),
    },
    /// What fsync wrote after the checkpoint cannot be recovered.
    #[error("written by fsync after the checkpoint: {0}")]
    Fsynced(DiskError),
    /// What fsync wrote after the checkpoint lies where the checkpoint has something else.
    #[error(
        "written by fsync after the checkpoint: inode {ino} lies over block {block} of the checkpoint"
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
