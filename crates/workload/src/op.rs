//! File-system operations as data.

use steadfs_base::Timestamp;
use steadfs_vfs::{FallocMode, FileKind, RenameFlags, SetXattr};

use crate::TreePath;

/// What an operation works on: a name, or something opened before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Whatever has this name now.
    Path(TreePath),
    /// What [`Op::Open`] or [`Op::Tmpfile`] of the same task opened under this number.
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

/// How [`Op::Rename`] treats what is at the new name.
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
    /// The same in the words of the file-system trait.
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
        /// Which of them.
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
        /// What it says.
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
        /// What happens to the file at the new name.
        how: RenameHow,
    },
    /// Opens a file or directory under a number.
    Open {
        /// The number; what it meant before is closed.
        handle: u32,
        /// What to open.
        path: TreePath,
    },
    /// Makes a file without a name and opens it.
    Tmpfile {
        /// The number; what it meant before is closed.
        handle: u32,
        /// Directory near which it is made.
        dir: TreePath,
        /// Permission bits.
        perm: u32,
    },
    /// Closes what is open under a number.
    Close {
        /// The number.
        handle: u32,
    },
    /// Writes a fill.
    Write {
        /// The file.
        file: Target,
        /// Where.
        span: Span,
        /// With which fill.
        fill: u32,
    },
    /// Copies between files.
    Copy {
        /// Source.
        from: Target,
        /// Bytes of the source.
        span: Span,
        /// Destination.
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
    /// Allocates, punches, zeroes, collapses or inserts.
    Fallocate {
        /// The file.
        file: Target,
        /// Which of them.
        mode: FallocMode,
        /// Where.
        span: Span,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// Of what.
        file: Target,
        /// Full name.
        name: Vec<u8>,
        /// Length of the value.
        len: u64,
        /// Fill of the value.
        fill: u32,
        /// Whether it may or must exist.
        how: SetXattr,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// Of what.
        file: Target,
        /// Full name.
        name: Vec<u8>,
    },
    /// Sets the permission bits.
    Chmod {
        /// Of what.
        file: Target,
        /// Permission bits.
        perm: u32,
    },
    /// Sets the owner.
    Chown {
        /// Of what.
        file: Target,
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// Sets the times.
    Utimens {
        /// Of what.
        file: Target,
        /// Last access.
        atime: Timestamp,
        /// Last change of content.
        mtime: Timestamp,
    },
    /// Makes a file or directory durable.
    Fsync {
        /// Which.
        file: Target,
    },
    /// Makes a file's data durable.
    Fdatasync {
        /// Which.
        file: Target,
    },
    /// Makes the volume durable.
    Sync,
    /// Does nothing for a while: timers run.
    Sleep {
        /// How long.
        millis: u64,
    },
    /// Reads; the result is compared with what it should be.
    Read {
        /// The file.
        file: Target,
        /// Where.
        span: Span,
    },
    /// Reads the attributes; those that can be predicted are compared.
    Stat {
        /// Of what.
        file: Target,
    },
    /// Lists a directory; the names are compared.
    List {
        /// Which.
        dir: Target,
    },
    /// Reads an extended attribute; the value is compared.
    GetXattr {
        /// Of what.
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

    /// Every path the operation names.
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

    /// The same, for changing.
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

/// What runs: a start made by one task and synced, then tasks side by side.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Program {
    /// Done first, by one task, and made durable; crashes are explored only after it.
    pub setup: Vec<Op>,
    /// Tasks that run side by side.
    pub tasks: Vec<Vec<Op>>,
}

impl Program {
    /// A program of one task without a start.
    pub fn single(ops: Vec<Op>) -> Self {
        Self {
            setup: Vec::new(),
            tasks: vec![ops],
        }
    }

    /// Operations in all tasks, the start not counted.
    pub fn len(&self) -> usize {
        self.tasks.iter().map(Vec::len).sum()
    }

    /// Whether no task does anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
