//! The order in which locks are taken.

/// A lock's position in the lock order: a task that holds a lock waits only for locks of later ranks. Locks of one rank
/// that a task takes together have keys and are taken in key order (collect, sort, remove duplicates, take).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rank {
    /// The log of calls outside the server: what it records is read under this lock.
    Record,
    /// Remount, freeze and unmount of a volume.
    Mount,
    /// Renames between directories: one at a time on a volume.
    Rename,
    /// GC of f2fs: one at a time.
    Gc,
    /// The content and the directory entries of an inode; the key is the inode number.
    Inode,
    /// The flush lock of one inode: one write-back at a time.
    Writeback,
    /// A checkpoint of f2fs: one at a time.
    Checkpoint,
    /// Open handles of a journal, or operations that change an f2fs volume (`cp_lock`).
    TxnHandle,
    /// The orphan list.
    Orphan,
    /// The block map, preallocation and attributes of one inode.
    ExtentTree,
    /// In f2fs the block map and attributes of the file that stages an atomic write: after those of the file written.
    StagedTree,
    /// The attributes of one inode in memory.
    InodeState,
    /// A node of f2fs: its content and its first read; a task takes one at a time. In ext4, preallocated blocks while
    /// they change their owner.
    Node,
    /// A block group's or segment's allocation state.
    Group,
    /// Reclaim of log space: one task at a time.
    JournalReclaim,
    /// The superblock in memory.
    Super,
    /// The cached entries of a quota file.
    QuotaTable,
    /// The usage of one user, group or project.
    Quota,
    /// The content of a metadata buffer.
    MetaBuf,
    /// The journal's superblock.
    JournalSuper,
    /// Committed blocks that are not yet written back to their home location.
    JournalLists,
    /// The state of the journal: running and committing transaction, log space.
    JournalState,
    /// The table of inodes in memory.
    InodeTable,
    /// The tree of cached blocks of one file.
    MappingTree,
    /// The lists of dirty inodes, and the amounts of dirty data.
    Dirty,
    /// Tables of objects by number, and their LRU lists.
    Table,
    /// The request queue.
    QueueState,
    /// The state of a device.
    DeviceInner,
    /// Leaf locks: of the volume's locks none is taken below them.
    Leaf,
    /// The connection to the process that answers questions about the host: asked under any lock.
    Host,
}
