//! The FUSE protocol: kernel requests in, replies out.
//!
//! A thin transport of our own. A request's way: [`transport`] receives it, [`request`] decodes it,
//! `admission` gives it a slot, [`session`] lets it into the volume, `ops` calls the [`FileSystem`](steadfs_vfs::FileSystem),
//! [`reply`] translates the result; all on one thread.
//!
//! What is settled with the kernel, so that it asks as little as possible:
//!
//! * OPEN, OPENDIR, FLUSH (and with them RELEASE) are answered ENOSYS once and never come again:
//!   files have no state between open and close, the page cache and directory cache stay valid. Only a volume with
//!   files that may refuse to be opened (encrypted ones, verity) is asked for every OPEN.
//! * Names, missing names and attributes are valid for a day: the mount owns the volume.
//! * INTERRUPT ends the requests of callers that are being killed, and copies (`interrupt`).
//! * Writes go through to us at once (no write-back cache in the kernel); a write's size and times
//!   are asked for again at the next stat. What the kernel does
//!   not ask for again after a call that changed it (`notify`), it is told to.
//! * A volume without SELinux labels says so (`labels`), and `ls -l` asks for no file's.
//! * FSYNC and FSYNCDIR are never answered ENOSYS: the kernel would call every later one done.

mod admin;
mod admission;
mod call;
mod close_result;
mod error;
mod interrupt;
mod ioctl;
mod labels;
mod mount;
mod notify;
mod ops;
mod owner;
pub mod reply;
pub mod request;
pub mod session;
mod stats;
mod sys;
pub mod transport;
pub mod wire;

pub use close_result::{CloseResult, CloseResultFd, PendingCloseResult};
pub use error::MountError;
pub use mount::{
    BlockDevice, FileId, MountEntry, MountFlags, MountHandle, MountOptions, Mounted, SyncError,
    Synced, Transport, Unmount, mount, uring_hint,
};
pub use owner::{Classifier, Groups, Owners};
pub use stats::Stats;
