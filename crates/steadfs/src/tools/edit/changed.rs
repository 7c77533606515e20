//! What an editor reports of its changes, and asks before them.

use steadfs_vfs::FileKind;

/// A change that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed<'c> {
    /// A directory was made.
    Made(&'c [u8]),
    /// An empty directory is about to be removed by rmdir(1).
    Removing(&'c [u8]),
    /// A name was removed.
    Removed {
        /// The name.
        path: &'c [u8],
        /// Whether it was that of a directory.
        is_dir: bool,
    },
    /// A file was moved.
    Moved {
        /// Its name before.
        from: &'c [u8],
        /// Its name now.
        to: &'c [u8],
    },
    /// A link was made.
    Linked {
        /// The link.
        path: &'c [u8],
        /// The file with another name, or the text of a symbolic link.
        operand: &'c [u8],
        /// Whether it is a symbolic link.
        symbolic: bool,
    },
    /// Permissions were set, perhaps to what they were.
    Mode {
        /// The file.
        path: &'c [u8],
        /// What it is.
        kind: FileKind,
        /// Its permissions before.
        from: u32,
        /// Its permissions now.
        to: u32,
    },
    /// A symbolic link, which has no permissions, was left as it is.
    PassedOver(&'c [u8]),
    /// Owners were set, perhaps to what they were.
    Owners {
        /// The file.
        path: &'c [u8],
        /// User and group before.
        from: (u32, u32),
        /// The user that was set.
        uid: Option<u32>,
        /// The group that was set.
        gid: Option<u32>,
    },
}

/// A change that a user wants to be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<'q> {
    /// Remove a file that is no directory?
    Remove {
        /// The file.
        path: &'q [u8],
        /// What it is.
        kind: FileKind,
        /// Whether it has no content.
        is_empty: bool,
    },
    /// Remove what is in a directory?
    Descend(&'q [u8]),
    /// Remove an empty directory?
    RemoveDirectory(&'q [u8]),
    /// Replace a file that exists?
    Overwrite(&'q [u8]),
}
