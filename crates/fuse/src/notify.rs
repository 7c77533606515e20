//! Messages to the kernel that answer no request.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::wire::{InvalInodeOut, NOTIFY_INVAL_INODE, OutHeader};

/// Where they go: the device that the mount was made with, whatever way requests come.
pub(crate) struct Notifier(Arc<OwnedFd>);

impl Notifier {
    pub(crate) fn new(device: Arc<OwnedFd>) -> Self {
        Self(device)
    }

    /// Lets the kernel ask again for the attributes of an inode. Its pages stay, so that this waits for
    /// no request that is being served.
    pub(crate) fn attributes_changed(&self, node: u64) {
        let body = InvalInodeOut {
            ino: node,
            off: -1,
            len: 0,
        };
        let head = OutHeader {
            len: (size_of::<OutHeader>() + size_of::<InvalInodeOut>()) as u32,
            error: NOTIFY_INVAL_INODE,
            // No request has this number.
            unique: 0,
        };
        let pieces = [IoSlice::new(head.as_bytes()), IoSlice::new(body.as_bytes())];
        match rustix::io::writev(&self.0, &pieces) {
            // The kernel has no such inode (any more), or no such mount.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(error) => tracing::warn!(node, %error, "the kernel shows old attributes"),
        }
    }
}
