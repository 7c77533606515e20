//! The findings of the checker.

use steadfs_base::DevBlock;
use steadfs_format_base::check::Name;
use steadfs_format_base::quota::usage::Difference;
use thiserror::Error;

use crate::disk::{DiskError, GroupNo, Ino, Structure};

/// One thing that is wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Issue {
    /// The superblock breaks a rule, or its checksum is wrong.
    #[error("{0}")]
    Superblock(DiskError),
    /// The log could not be replayed; the volume was checked without it.
    #[error("the journal cannot be replayed: {why}")]
    Unreplayed {
        /// Error of the replay.
        why: String,
    },
    /// More than half of the volume is reserved.
    #[error("superblock: {reserved} blocks are reserved of {blocks}")]
    ReservedBlocks {
        /// Reserved blocks.
        reserved: u64,
        /// Blocks of the volume.
        blocks: u64,
    },
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
        block: DevBlock,
    },
    /// A group descriptor breaks a rule, or its checksum is wrong.
    #[error("{0}")]
    GroupDesc(DiskError),
    /// The block of multiple-mount protection has a wrong magic number or checksum.
    #[error("{0}")]
    MountProtection(DiskError),
    /// The block of multiple-mount protection is on other metadata.
    #[error("multiple-mount protection: block {block} overlaps other metadata")]
    MountProtectionOverlap {
        /// The block.
        block: DevBlock,
    },
    /// A program of e2fsprogs writes the volume or was killed while it did, or the sequence number is unknown.
    #[error(
        "multiple-mount protection: sequence {sequence:#x} of e2fsck or an unknown program on {writer}; if none runs, \
         tune2fs -f -E clear_mmp clears it"
    )]
    MountProtectionSequence {
        /// As stored.
        sequence: u32,
        /// The node that wrote it, and when.
        writer: String,
    },
    /// A group's bitmap or inode table is on other metadata.
    #[error("group {group}: {what} at block {block} overlaps other metadata")]
    MetadataOverlap {
        /// Group of the descriptor.
        group: GroupNo,
        /// Part of the metadata.
        what: &'static str,
        /// First block of the part.
        block: DevBlock,
    },
    /// A bitmap's checksum is wrong.
    #[error("{0}")]
    BitmapChecksum(DiskError),
    /// A group's block bitmap differs from the blocks that inodes and metadata use.
    #[error(
        "group {group}: block bitmap is wrong from block {first} on: {used_but_free} used blocks \
         marked free, {free_but_used} free ones marked used"
    )]
    BlockBitmapDiffers {
        /// The group.
        group: GroupNo,
        /// First block (cluster's first block) that differs.
        first: DevBlock,
        /// Blocks (clusters) in use that the bitmap has as free.
        used_but_free: u32,
        /// Unused blocks (clusters) that the bitmap has as in use.
        free_but_used: u32,
    },
    /// A group's inode bitmap differs from its inode table.
    #[error(
        "group {group}: inode bitmap is wrong from inode {first} on: {used_but_free} used inodes \
         marked free, {free_but_used} free ones marked used"
    )]
    InodeBitmapDiffers {
        /// The group.
        group: GroupNo,
        /// First inode that differs.
        first: Ino,
        /// Inodes in use that the bitmap has as free.
        used_but_free: u32,
        /// Free inodes that the bitmap has as in use.
        free_but_used: u32,
    },
    /// The bits after a bitmap's last block or inode are not set.
    #[error("group {group}: {what} has clear bits beyond its end")]
    BitmapPadding {
        /// The group.
        group: GroupNo,
        /// The bitmap.
        what: Structure,
    },
    /// A group's count of free blocks is wrong.
    #[error("group {group}: {stored} free blocks stored, {counted} counted")]
    GroupFreeBlocks {
        /// The group.
        group: GroupNo,
        /// As stored (clusters with `bigalloc`).
        stored: u32,
        /// As counted.
        counted: u32,
    },
    /// A group's count of free inodes is wrong.
    #[error("group {group}: {stored} free inodes stored, {counted} counted")]
    GroupFreeInodes {
        /// The group.
        group: GroupNo,
        /// As stored.
        stored: u32,
        /// As counted.
        counted: u32,
    },
    /// A group's count of directories is wrong.
    #[error("group {group}: {stored} directories stored, {counted} counted")]
    GroupDirs {
        /// The group.
        group: GroupNo,
        /// As stored.
        stored: u32,
        /// As counted.
        counted: u32,
    },
    /// The superblock's count of free blocks is wrong.
    #[error("superblock: {stored} free blocks stored, {counted} counted")]
    FreeBlocks {
        /// As stored.
        stored: u64,
        /// As counted.
        counted: u64,
    },
    /// The superblock's count of free inodes is wrong.
    #[error("superblock: {stored} free inodes stored, {counted} counted")]
    FreeInodes {
        /// As stored.
        stored: u32,
        /// As counted.
        counted: u32,
    },
    /// An inode breaks a rule, or its checksum is wrong.
    #[error("{0}")]
    Inode(DiskError),
    /// An inode has a flag that its kind or the volume does not allow.
    #[error("inode {ino}: flag {flag:#x} is set, {why}")]
    InodeFlag {
        /// The inode.
        ino: Ino,
        /// The flag's bit.
        flag: u32,
        /// Why it cannot be.
        why: &'static str,
    },
    /// An inode's field must be zero.
    #[error("inode {ino}: {field} is {value}, not zero")]
    FieldNotZero {
        /// The inode.
        ino: Ino,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A deleted inode has no time of deletion.
    #[error("inode {ino} is deleted but has no deletion time")]
    NoDeletionTime {
        /// The inode.
        ino: Ino,
    },
    /// A deleted inode's time of deletion is as small as an inode number: it was on the orphan list and is no longer
    /// linked.
    #[error("inode {ino} is deleted at {dtime}, which looks like a link of the orphan list")]
    LostOrphan {
        /// The inode.
        ino: Ino,
        /// The time.
        dtime: u32,
    },
    /// An inode in use has a time of deletion.
    #[error("inode {ino} is in use but has deletion time {dtime}")]
    DeletionTime {
        /// The inode.
        ino: Ino,
        /// The time.
        dtime: u32,
    },
    /// A file's size ends before its last written block.
    #[error("inode {ino}: size is {size}, but file block {last} has data")]
    SizeTooSmall {
        /// The inode.
        ino: Ino,
        /// Size in bytes.
        size: u64,
        /// Last written file block.
        last: u64,
    },
    /// A directory's size differs from the size of its blocks.
    #[error("directory {ino}: size is {size}, its blocks make {expected}")]
    DirSize {
        /// The directory.
        ino: Ino,
        /// Size in bytes.
        size: u64,
        /// Size of its blocks in bytes.
        expected: u64,
    },
    /// `i_blocks` is wrong.
    #[error("inode {ino}: i_blocks is {stored}, {counted} counted")]
    BlockCount {
        /// The inode.
        ino: Ino,
        /// As stored, in units of 512 bytes.
        stored: u64,
        /// As counted.
        counted: u64,
    },
    /// A node of an extent tree breaks a rule, or its checksum is wrong.
    #[error("{0}")]
    ExtentNode(DiskError),
    /// A directory or symbolic link has an unwritten extent.
    #[error("inode {ino}: file block {block} of a directory or link is unwritten")]
    Unwritten {
        /// The inode.
        ino: Ino,
        /// First file block of the extent.
        block: u64,
    },
    /// With `bigalloc` a block has another place in its cluster than in the file, or a cluster of the file has blocks in
    /// two clusters.
    #[error(
        "inode {ino}: file block {block} is in device block {at}, not where its cluster has it"
    )]
    Misaligned {
        /// The inode.
        ino: Ino,
        /// The file block.
        block: u64,
        /// Its device block.
        at: u64,
    },
    /// The map is an extent tree but the inode lacks the extents flag.
    #[error("inode {ino} has an extent tree but not the flag")]
    NoExtentsFlag {
        /// The inode.
        ino: Ino,
    },
    /// An indirect map names a block outside the volume.
    #[error("inode {ino}: file block {file_block} is mapped to block {block}, outside the volume")]
    MapBlock {
        /// The inode.
        ino: Ino,
        /// File block (the first one below, where it is a block of block numbers).
        file_block: u64,
        /// What it is mapped to.
        block: u32,
    },
    /// Blocks are in use a second time.
    #[error("inode {ino} uses {count} blocks that are in use already, first {block}")]
    BlockUsedTwice {
        /// The second user.
        ino: Ino,
        /// First such block.
        block: DevBlock,
        /// How many in this run.
        count: u32,
    },
    /// A symbolic link's target does not match its size.
    #[error("symbolic link {ino}: {why}")]
    Symlink {
        /// The inode.
        ino: Ino,
        /// What is wrong.
        why: &'static str,
    },
    /// Extended attributes break a rule, or their checksum is wrong.
    #[error("{0}")]
    Xattr(DiskError),
    /// An attribute's hash is wrong.
    #[error("inode {ino}: attribute {name} has a wrong hash")]
    XattrHash {
        /// The first inode that has it.
        ino: Ino,
        /// Name without prefix.
        name: Name,
    },
    /// Values of attributes overlap.
    #[error("inode {ino}: values of attributes overlap")]
    XattrOverlap {
        /// The first inode that has them.
        ino: Ino,
    },
    /// An attribute block's count of users is wrong.
    #[error("attribute block {block}: {stored} users stored, {counted} counted")]
    XattrRefcount {
        /// The block.
        block: DevBlock,
        /// As stored.
        stored: u32,
        /// As counted.
        counted: u32,
    },
    /// The value of an attribute is an inode that is not an attribute inode.
    #[error("the value of an attribute is inode {value}, which is no such inode")]
    XattrInode {
        /// The inode it names.
        value: Ino,
    },
    /// An attribute inode does not have as many bytes as its entry states.
    #[error("inode {ino}: its attribute of {size} bytes is inode {value}, which has {actual}")]
    XattrInodeSize {
        /// The first inode that has the attribute.
        ino: Ino,
        /// The attribute inode.
        value: Ino,
        /// Bytes, by the attribute's entry.
        size: u32,
        /// Size of the attribute inode.
        actual: u64,
    },
    /// An attribute inode's count of references is wrong.
    #[error("attribute inode {value}: {stored} references stored, {counted} counted")]
    XattrInodeReferences {
        /// The attribute inode.
        value: Ino,
        /// As stored.
        stored: u64,
        /// As counted.
        counted: u64,
    },
    /// The content of an attribute inode does not have the stored hash.
    #[error("attribute inode {value}: its content does not fit its hash")]
    XattrInodeContent {
        /// The attribute inode.
        value: Ino,
    },
    /// An encrypted inode has no valid encryption context.
    #[error("inode {ino}: {why}")]
    Encryption {
        /// The inode.
        ino: Ino,
        /// What is wrong.
        why: &'static str,
    },
    /// An entry of an encrypted directory is not a valid encrypted name.
    #[error("encrypted directory {dir}: {name} {why}")]
    EncryptedName {
        /// The directory.
        dir: Ino,
        /// The name as it is stored.
        name: Name,
        /// What is wrong.
        why: &'static str,
    },
    /// The superblock names a quota inode that cannot be one.
    #[error("superblock: {field} is {ino}, {why}")]
    QuotaInode {
        /// The field.
        field: &'static str,
        /// The inode.
        ino: Ino,
        /// What is wrong.
        why: &'static str,
    },
    /// A quota file cannot be read as one.
    #[error("quota file {ino} {why}")]
    QuotaFile {
        /// The inode.
        ino: Ino,
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
    /// A directory has a hole.
    #[error("directory {dir}: block {block} is a hole")]
    DirHole {
        /// The directory.
        dir: Ino,
        /// First file block of the hole.
        block: u64,
    },
    /// A directory block breaks a rule, or its checksum is wrong.
    #[error("{0}")]
    DirBlock(DiskError),
    /// A directory does not start with `.` and `..`.
    #[error("directory {dir}: {why}")]
    DirDots {
        /// The directory.
        dir: Ino,
        /// What is wrong.
        why: &'static str,
    },
    /// A name has a character that names may not have.
    #[error("directory {dir}: name {name} is not a name")]
    BadName {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// A name of a case-insensitive directory is not UTF-8, but the volume's encoding is strict.
    #[error("directory {dir}: name {name} is not UTF-8, as the encoding of the volume requires")]
    NotEncoded {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// A name leads to an inode that is not in use, or that has no names.
    #[error("directory {dir}: {name} names inode {ino}, {why}")]
    BadTarget {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
        /// The inode.
        ino: Ino,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The type in a directory entry is not the inode's.
    #[error("directory {dir}: {name} has type {stored}, its inode {expected}")]
    EntryType {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
        /// The entry's.
        stored: u8,
        /// The inode's.
        expected: u8,
    },
    /// Two entries of a directory have one name.
    #[error("directory {dir}: {name} is there twice")]
    DuplicateName {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// A directory has a second name.
    #[error("directory {dir}: {name} is another name of directory {ino}")]
    SecondName {
        /// Where the second name is.
        dir: Ino,
        /// The second name.
        name: Name,
        /// The directory with two names.
        ino: Ino,
    },
    /// `..` does not name the directory that has this one's name.
    #[error("directory {dir}: .. is {stored}, its name is in {parent}")]
    WrongParent {
        /// The directory.
        dir: Ino,
        /// Target of `..`.
        stored: Ino,
        /// Where its name is.
        parent: Ino,
    },
    /// A directory's index breaks a rule, or a checksum is wrong.
    #[error("{0}")]
    Htree(DiskError),
    /// The index names a block that the directory does not have.
    #[error("directory {dir}: its index names block {block}, beyond its end")]
    HtreeChild {
        /// The directory.
        dir: Ino,
        /// The block.
        block: u32,
    },
    /// The index names a block twice.
    #[error("directory {dir}: its index names block {block} twice")]
    HtreeBlockTwice {
        /// The directory.
        dir: Ino,
        /// The block.
        block: u32,
    },
    /// The index does not name a block.
    #[error("directory {dir}: its index does not name block {block}")]
    HtreeBlockUnnamed {
        /// The directory.
        dir: Ino,
        /// The block.
        block: u32,
    },
    /// A name is in a leaf where its hash does not belong.
    #[error("directory {dir}: {name} with hash {hash:#x} is in block {block}, which is not its")]
    HtreeHash {
        /// The directory.
        dir: Ino,
        /// The block.
        block: u32,
        /// The name.
        name: Name,
        /// Its hash.
        hash: u32,
    },
    /// An inode's count of links is wrong.
    #[error("inode {ino}: {stored} links stored, {counted} counted")]
    LinkCount {
        /// The inode.
        ino: Ino,
        /// As stored.
        stored: u32,
        /// As counted.
        counted: u32,
    },
    /// An inode in use has no name and is no orphan.
    #[error("inode {ino} is in use but has no name")]
    Unattached {
        /// The inode.
        ino: Ino,
    },
    /// A directory is its own ancestor.
    #[error("directory {ino} is its own ancestor")]
    DirLoop {
        /// One directory of the loop.
        ino: Ino,
    },
    /// There is no root directory.
    #[error("inode 2 is not a directory: there is no root")]
    NoRoot,
    /// The orphan list is broken.
    #[error("orphan list: inode {ino} {why}")]
    OrphanList {
        /// The inode at which it breaks.
        ino: Ino,
        /// What is wrong.
        why: &'static str,
    },
    /// A block of the orphan file breaks a rule, or its checksum is wrong.
    #[error("{0}")]
    OrphanFile(DiskError),
    /// The orphan file has entries, but `orphan_present` is not set.
    #[error("the orphan file has entries, but orphan_present is not set")]
    OrphansNotAnnounced,
    /// A reserved inode is in use although the volume lacks its feature.
    #[error("reserved inode {ino} is in use, but the volume has no such feature")]
    ReservedInUse {
        /// The inode.
        ino: Ino,
    },
    /// The journal cannot be used.
    #[error("journal: {why}")]
    Journal {
        /// What is wrong.
        why: &'static str,
    },
    /// The log holds transactions, but `needs_recovery` is not set.
    #[error("the journal is not empty, but needs_recovery is not set")]
    JournalNotEmpty,
    /// A feature is set without the feature that it depends on.
    #[error("the feature {feature} is set without {needs}")]
    FeatureAlone {
        /// The feature.
        feature: &'static str,
        /// The one it needs.
        needs: &'static str,
    },
    /// `needs_recovery` is set, but there is no journal.
    #[error("needs_recovery is set, but there is no journal")]
    RecoveryWithoutJournal,
    /// The resize inode does not list the reserved descriptor blocks.
    #[error("resize inode: {why}")]
    ResizeInode {
        /// What is wrong.
        why: &'static str,
    },
}
