//! Mounting an open volume.

use std::path::Path;
use std::sync::Arc;

use steadfs_fuse::{MountFlags, MountOptions, Mounted, Transport};
use steadfs_vfs::WithControl;
use steadfs_vfs::options::items;

use crate::volume::{Error, Volume};
use crate::{FuseTransport, Options};

/// Mounts an open volume on a directory. When [`Mounted::wait`] returns the volume is closed.
pub fn mount(volume: &Volume, mountpoint: &Path, options: &Options) -> Result<Mounted, Error> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut fs = WithControl::new(volume.fs())
        .owned_by(user.as_raw(), group.as_raw())
        .with_layer(Arc::clone(volume.io()) as _);
    if !options.control {
        fs = fs.hidden();
    }
    let root = user.is_root();
    let flags = options.flags;
    let read_only = options.read_only() || !volume.report().read_only_because.is_empty();
    let mount = MountOptions {
        source: volume.path().display().to_string(),
        // Root mounts a block device as one: then sync(2) and umount(2) reach the volume.
        block_device: if root {
            volume.yield_block_device()
        } else {
            None
        },
        image: volume.image(),
        flags: MountFlags {
            read_only,
            nosuid: flags.nosuid,
            nodev: flags.nodev,
            noexec: flags.noexec,
            noatime: flags.noatime,
            nodiratime: flags.nodiratime,
            sync: options.ext4.sync,
            dirsync: options.ext4.dirsync,
        },
        allow_other: options.allow_other.unwrap_or(root),
        // The volume may have said so itself.
        posix_acl: items(&volume.fs().options()).all(|(name, _)| name != "noacl"),
        transport: match options.fuse_transport {
            FuseTransport::Auto => Transport::Auto,
            FuseTransport::Uring => Transport::Uring,
            FuseTransport::Dev => Transport::Dev,
        },
        classifier: Arc::clone(volume.io().owners()) as _,
        ..MountOptions::default()
    };
    Ok(steadfs_fuse::mount(Arc::new(fs), mountpoint, mount)?)
}
