//! File-system operations as data.

use steadfs_base::Timestamp;
use steadfs_vfs::{FallocMode, FileKind, RenameFlags, SetXattr};

use crate::TreePath;

/// The operand of an operation: a path, or an open file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The file that has this path when the operation runs.
    Path(TreePath),
    /// The file that [`Op::Open`] or [`Op::Tmpfile`] of the same task opened under this number.
    Handle(u32),
}

impl From<TreePath> for Target {
    fn from(path: TreePath) -> Self {
        Self::Path(path)
    }
}

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Span {
    /// The range of `len` bytes from `offset`.
    pub const fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    /// The byte after the last one.
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// How [`Op::Rename`] treats a file at the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RenameHow {
    /// Replace it.
    #[default]
    Replace,
    /// Fail.
    NoReplace,
    /// Swap the two.
    Exchange,
    /// Replace it and leave a whiteout at the old name.
    Whiteout,
}

impl RenameHow {
    /// The flags of the `FileSystem` trait.
    pub const fn flags(self) -> RenameFlags {
        RenameFlags {
            no_replace: matches!(self, Self::NoReplace),
            exchange: matches!(self, Self::Exchange),
            whiteout: matches!(self, Self::Whiteout),
        }
    }
}

/// One operation of one task. Content is given by a *fill* number, see [`pattern`](crate::pattern).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes a regular file.
    Create {
        /// Its name.
        path: TreePath,
        /// Permission bits.
        perm: u32,
    },
    /// Makes a device node, pipe or socket.
    Mknod {
        /// Its name.
        path: TreePath,
        /// Type of the node.
        kind: FileKind,
        /// Permission bits.
        perm: u32,
        /// Device number.
        rdev: u32,
    },
    /// Makes a directory.
    Mkdir {
        /// Its name.
        path: TreePath,
        /// Permission bits.
        perm: u32,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Its name.
        path: TreePath,
        /// The link's target.
        target: Vec<u8>,
    },
    /// Makes a hard link.
    Link {
        /// The existing file.
        from: Target,
        /// The new name.
        path: TreePath,
    },
    /// Removes a name that is not a directory's.
    Unlink {
        /// The name.
        path: TreePath,
    },
    /// Removes a directory.
    Rmdir {
        /// Its name.
        path: TreePath,
    },
    /// Moves a name.
    Rename {
        /// Old name.
        from: TreePath,
        /// New name.
        to: TreePath,
        /// How a file at the new name is treated.
        how: RenameHow,
    },
    /// Opens a file or directory under a handle number.
    Open {
        /// The handle number; a file that was open under it is closed.
        handle: u32,
        /// What to open.
        path: TreePath,
    },
    /// Creates an unnamed file and opens it.
    Tmpfile {
        /// The handle number; a file that was open under it is closed.
        handle: u32,
        /// Directory of the file, as O_TMPFILE takes it.
        dir: TreePath,
        /// Permission bits.
        perm: u32,
    },
    /// Closes a handle.
    Close {
        /// The handle number.
        handle: u32,
    },
    /// Writes bytes of a fill.
    Write {
        /// The file.
        file: Target,
        /// Range to write.
        span: Span,
        /// Fill number.
        fill: u32,
    },
    /// Copies between files.
    Copy {
        /// Source file.
        from: Target,
        /// Bytes of the source.
        span: Span,
        /// Destination file.
        to: Target,
        /// First byte of the destination.
        offset: u64,
    },
    /// Sets the size.
    Truncate {
        /// The file.
        file: Target,
        /// Its new size.
        size: u64,
    },
    /// Allocates, punches, zeroes, collapses or inserts a range.
    Fallocate {
        /// The file.
        file: Target,
        /// Mode of fallocate(2).
        mode: FallocMode,
        /// Range.
        span: Span,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// The file.
        file: Target,
        /// Full name.
        name: Vec<u8>,
        /// Length of the value.
        len: u64,
        /// Fill of the value.
        fill: u32,
        /// Whether the attribute may or must exist.
        how: SetXattr,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The file.
        file: Target,
        /// Full name.
        name: Vec<u8>,
    },
    /// Sets the permission bits.
    Chmod {
        /// The file.
        file: Target,
        /// Permission bits.
        perm: u32,
    },
    /// Sets the owner.
    Chown {
        /// The file.
        file: Target,
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
    /// Sets the times.
    Utimens {
        /// The file.
        file: Target,
        /// Access time.
        atime: Timestamp,
        /// Modification time.
        mtime: Timestamp,
    },
    /// Makes a file or directory durable.
    Fsync {
        /// The file or directory.
        file: Target,
    },
    /// Makes a file's data durable.
    Fdatasync {
        /// The file or directory.
        file: Target,
    },
    /// Makes the volume durable.
    Sync,
    /// Sleeps in virtual time: timers run.
    Sleep {
        /// Duration in milliseconds.
        millis: u64,
    },
    /// Reads; the result is compared with the model's.
    Read {
        /// The file.
        file: Target,
        /// Range to read.
        span: Span,
    },
    /// Reads the attributes; those that the model predicts are compared.
    Stat {
        /// The file.
        file: Target,
    },
    /// Lists a directory; the names are compared.
    List {
        /// The directory.
        dir: Target,
    },
    /// Reads an extended attribute; the value is compared.
    GetXattr {
        /// The file.
        file: Target,
        /// Full name.
        name: Vec<u8>,
    },
    /// Reads a symbolic link; the target is compared.
    Readlink {
        /// The link.
        path: TreePath,
    },
}

impl Op {
    /// Whether it makes anything durable.
    pub const fn is_sync(&self) -> bool {
        matches!(
            self,
            Self::Fsync { .. } | Self::Fdatasync { .. } | Self::Sync
        )
    }

    /// All paths in the operation.
    pub fn paths(&self) -> Vec<&TreePath> {
        let of = path_of;
        match self {
            Self::Create { path, .. }
            | Self::Mknod { path, .. }
            | Self::Mkdir { path, .. }
            | Self::Symlink { path, .. }
            | Self::Unlink { path }
            | Self::Rmdir { path }
            | Self::Open { path, .. }
            | Self::Readlink { path } => vec![path],
            Self::Tmpfile { dir, .. } => vec![dir],
            Self::Link { from, path } => of(from).into_iter().chain([path]).collect(),
            Self::Rename { from, to, .. } => vec![from, to],
            Self::Copy { from, to, .. } => of(from).into_iter().chain(of(to)).collect(),
            Self::Close { .. } | Self::Sync | Self::Sleep { .. } => Vec::new(),
            Self::Write { file, .. }
            | Self::Truncate { file, .. }
            | Self::Fallocate { file, .. }
            | Self::SetXattr { file, .. }
            | Self::RemoveXattr { file, .. }
            | Self::Chmod { file, .. }
            | Self::Chown { file, .. }
            | Self::Utimens { file, .. }
            | Self::Fsync { file }
            | Self::Fdatasync { file }
            | Self::Read { file, .. }
            | Self::Stat { file }
            | Self::List { dir: file }
            | Self::GetXattr { file, .. } => of(file).into_iter().collect(),
        }
    }

    /// All paths in the operation, mutable.
    pub fn paths_mut(&mut self) -> Vec<&mut TreePath> {
        let of = path_of_mut;
        match self {
            Self::Create { path, .. }
            | Self::Mknod { path, .. }
            | Self::Mkdir { path, .. }
            | Self::Symlink { path, .. }
            | Self::Unlink { path }
            | Self::Rmdir { path }
            | Self::Open { path, .. }
            | Self::Readlink { path } => vec![path],
            Self::Tmpfile { dir, .. } => vec![dir],
            Self::Link { from, path } => of(from).into_iter().chain([path]).collect(),
            Self::Rename { from, to, .. } => vec![from, to],
            Self::Copy { from, to, .. } => of(from).into_iter().chain(of(to)).collect(),
            Self::Close { .. } | Self::Sync | Self::Sleep { .. } => Vec::new(),
            Self::Write { file, .. }
            | Self::Truncate { file, .. }
            | Self::Fallocate { file, .. }
            | Self::SetXattr { file, .. }
            | Self::RemoveXattr { file, .. }
            | Self::Chmod { file, .. }
            | Self::Chown { file, .. }
            | Self::Utimens { file, .. }
            | Self::Fsync { file }
            | Self::Fdatasync { file }
            | Self::Read { file, .. }
            | Self::Stat { file }
            | Self::List { dir: file }
            | Self::GetXattr { file, .. } => of(file).into_iter().collect(),
        }
    }
}

fn path_of_mut(target: &mut Target) -> Option<&mut TreePath> {
    match target {
        Target::Path(path) => Some(path),
        Target::Handle(_) => None,
    }
}

fn path_of(target: &Target) -> Option<&TreePath> {
    match target {
        Target::Path(path) => Some(path),
        Target::Handle(_) => None,
    }
}

/// A program: a setup, run by one task and synced, then tasks that run concurrently.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Program {
    /// Run first, by one task, and synced; crashes are explored only after it.
    pub setup: Vec<Op>,
    /// Tasks that run concurrently.
    pub tasks: Vec<Vec<Op>>,
}

impl Program {
    /// A program of one task without a setup.
    pub fn single(ops: Vec<Op>) -> Self {
        Self {
            setup: Vec::new(),
            tasks: vec![ops],
        }
    }

    /// Number of operations of all tasks, without the setup.
    pub fn len(&self) -> usize {
        self.tasks.iter().map(Vec::len).sum()
    }

    /// Whether no task does anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
