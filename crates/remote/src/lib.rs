//! A file system in another process: [`Client`] implements [`FileSystem`](steadfs_vfs::FileSystem) by calls that
//! [`Server`] answers.
//!
//! **Problem.** The process that parses a volume must have no rights over the host, and the process that copies its files
//! to the host needs them.
//!
//! **Rule.** The server parses and may be under an attacker's control; the client trusts no reply. A reply has a maximum
//! length ([`frame::LEN_MAX`]), each value in it is checked as it is decoded, and a reply that is wrong or missing
//! ends the connection: every later call fails with [`FsError::Stopped`](steadfs_vfs::FsError). Names, link targets and
//! attributes mean what they mean on any hostile volume; the callers check them.
//!
//! **Protocol.** A frame with the call, a frame with the reply, in the order of the calls. The client waits for each reply
//! except those of `make` and `give` (`later`), and of entries that it will look up (`ahead`): its stream receives while it
//! cannot send, as the server does not.
//! Integers are little-endian, byte strings have their length before them. Both ends are the same program, so there are no
//! versions.

#![forbid(unsafe_code)]

mod ahead;
mod client;
mod codec;
mod connection;
mod frame;
mod later;
mod listing;
mod preview;
mod server;

#[cfg(test)]
mod tests;

pub use client::{Client, ConnectError};
pub use server::Server;

/// What a server found when it opened the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// Corrupt or missing metadata that was skipped.
    pub warnings: Vec<String>,
    /// Why the volume can only be read although it was opened for writing.
    pub read_only_because: Option<String>,
    /// The parts of the containment that are not in effect.
    pub missing: Vec<String>,
}

/// The calls, by their byte in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Call {
    Root,
    Lookup,
    Forget,
    Getattr,
    Setattr,
    Readlink,
    Mknod,
    Mkdir,
    Symlink,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Open,
    Read,
    Write,
    Seek,
    Readdir,
    Getxattr,
    Listxattr,
    Setxattr,
    Statfs,
    Flags,
    SyncAll,
    ReadControl,
    WriteControl,
    EnableVerity,
    VerityDigest,
    Make,
    Give,
    Expect,
    Close,
}

impl Call {
    const ALL: [Self; 32] = [
        Self::Root,
        Self::Lookup,
        Self::Forget,
        Self::Getattr,
        Self::Setattr,
        Self::Readlink,
        Self::Mknod,
        Self::Mkdir,
        Self::Symlink,
        Self::Link,
        Self::Unlink,
        Self::Rmdir,
        Self::Rename,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Seek,
        Self::Readdir,
        Self::Getxattr,
        Self::Listxattr,
        Self::Setxattr,
        Self::Statfs,
        Self::Flags,
        Self::SyncAll,
        Self::ReadControl,
        Self::WriteControl,
        Self::EnableVerity,
        Self::VerityDigest,
        Self::Make,
        Self::Give,
        Self::Expect,
        Self::Close,
    ];

    /// Whether the call can change a file or its attributes.
    fn changes(self) -> bool {
        !matches!(
            self,
            Self::Root
                | Self::Lookup
                | Self::Forget
                | Self::Getattr
                | Self::Readlink
                | Self::Read
                | Self::Seek
                | Self::Readdir
                | Self::Getxattr
                | Self::Listxattr
                | Self::Statfs
                | Self::Flags
                | Self::ReadControl
                | Self::VerityDigest
                | Self::Expect
        )
    }

    fn of_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|call| *call as u8 == byte)
    }
}
