//! The FUSE protocol: requests from the kernel, replies to it.
//!
//! A thin transport of our own. [`transport`] receives a request, [`request`] decodes it, `admission` gives it a slot,
//! [`session`] enters the volume, `ops` calls the [`FileSystem`](steadfs_vfs::FileSystem) and [`reply`] translates the
//! result, all on one thread.
//!
//! What INIT and the first replies settle, to keep the number of requests low:
//!
//! * OPEN, OPENDIR and FLUSH (and with them RELEASE) are answered ENOSYS once, and the kernel stops sending them: files
//!   have no state between open and close, and the page cache and the directory cache stay valid. Only a volume with
//!   files whose open may fail (encrypted or verity files) receives every OPEN.
//! * Names, negative entries and attributes are valid for a day: the mount owns the volume. `spellings` has the exception.
//! * INTERRUPT ends requests of callers that are being killed, and copies (`interrupt`).
//! * Writes go through to the server at once (no write-back cache in the kernel); the next stat fetches a write's size
//!   and times. What the kernel does not fetch again by itself after a call that changed it is invalidated (`notify`).
//! * A volume without SELinux labels answers ENOTSUP (`labels`), so `ls -l` requests the label of the first file only.
//! * FSYNC and FSYNCDIR are never answered ENOSYS: the kernel would report success for every later call.

mod admin;
mod admission;
mod broker;
mod call;
mod close_result;
mod datagram;
mod error;
mod host;
mod interrupt;
mod ioctl;
mod labels;
mod mount;
mod named_file;
mod notify;
mod open_files;
mod ops;
mod owner;
mod record;
pub mod reply;
pub mod request;
mod service;
pub mod session;
mod spellings;
mod standby;
mod stats;
mod sys;
pub mod transport;
mod waiting;
pub mod wire;
mod writers;

pub use broker::{
    Broker, BrokerClient, Commands, Ended, HandOverError, Reopen, TakenOver, VolumeFacts,
    VolumeFiles, broker_sockets, serve_commands,
};
pub use close_result::{CloseResult, CloseResultFd, PendingCloseResult};
pub use error::MountError;
pub use mount::{
    BlockDevice, FileId, Inheritance, KernelMount, Legacy, MountEntry, MountFlags, MountHandle,
    MountOptions, Mounted, Mounter, Served, SyncError, Synced, Transport, Unmount, is_server_gone,
    mount, mount_by, prepare_rings, serve, serve_on, uring_hint,
};
pub use named_file::NamedFile;
pub use owner::{Classifier, Owners, host_groups};
pub use record::Record;
pub use service::{Service, ServiceClient, ServiceError};
pub use stats::Stats;
