//! The order in which locks are taken.

/// A lock's place in the order: a task that holds a lock only waits for locks of a later rank.
/// Several locks of one rank have keys and are taken in the order of those (collect, sort, dedup,
/// take).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rank {
    /// Options, freeze and unmount of a volume.
    Mount,
    /// Renames between directories (one at a time on a volume).
    Rename,
    /// Cleaning of f2fs: one at a time.
    Gc,
    /// An inode's content and names, by inode number.
    Inode,
    /// Write-back of one inode: one flusher at a time.
    Writeback,
    /// A checkpoint of f2fs: one at a time.
    Checkpoint,
    /// Open handles of a journal, or modifying operations of f2fs.
    TxnHandle,
    /// The orphan list.
    Orphan,
    /// One inode's block map, preallocation and attributes.
    ExtentTree,
    /// An inode's attributes in memory.
    InodeState,
    /// A node of f2fs: its content, and its first read. One at a time. In ext4, blocks kept for growing
    /// files while they change hands.
    Node,
    /// A block group's or segment's allocation state.
    Group,
    /// Reclaim of a journal's log space: one task at a time.
    JournalReclaim,
    /// The superblock in memory.
    Super,
    /// A metadata buffer's content.
    MetaBuf,
    /// The journal's superblock.
    JournalSuper,
    /// Blocks that a journal protects until they are written home.
    JournalLists,
    /// The journal's state.
    JournalState,
    /// The inodes in memory, by number.
    InodeTable,
    /// One file's tree of cached blocks.
    MappingTree,
    /// Lists of dirty inodes and dirty totals.
    Dirty,
    /// Tables of objects by number, and their recency lists.
    Table,
    /// The request queue.
    QueueState,
    /// Inside a device.
    DeviceInner,
    /// Short leaf locks that take nothing below them.
    Leaf,
}
