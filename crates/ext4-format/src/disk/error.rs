//! What is wrong with a structure, and where it is.

steadfs_format_base::structures! {
    mkfs: "mke2fs", code: |_: &CorruptKind| None;
    /// Superblock.
    Superblock = "superblock",
    /// Group descriptor.
    GroupDesc = "group descriptor",
    /// Block bitmap of a group.
    BlockBitmap = "block bitmap",
    /// Inode bitmap of a group.
    InodeBitmap = "inode bitmap",
    /// Inode.
    Inode = "inode",
    /// Extent-tree node (in an inode or a block).
    ExtentNode = "extent node",
    /// Block of block numbers of an indirect map.
    IndirectMap = "indirect block",
    /// Linear directory block.
    DirBlock = "directory block",
    /// Node of a directory's hash index.
    HtreeNode = "directory index",
    /// Extended attributes in an inode.
    InodeXattr = "in-inode attributes",
    /// Extended-attribute block.
    XattrBlock = "attribute block",
    /// Access control list.
    Acl = "access control list",
    /// Block of the orphan file.
    OrphanFile = "orphan file",
    /// Block of multiple-mount protection.
    Mmp = "multiple-mount protection",
}
