//! Mounting an open volume.

use std::path::Path;
use std::sync::Arc;

use steadfs_fuse::{MountFlags, MountOptions, Mounted, Transport};
use steadfs_vfs::{FileSystem, WithControl};

use crate::volume::{Error, Volume};
use crate::{FuseTransport, Options};

/// Mounts an open volume on a directory. When [`Mounted::wait`] returns the volume is closed.
pub fn mount(volume: &Volume, mountpoint: &Path, options: &Options) -> Result<Mounted, Error> {
    let fs: Arc<dyn FileSystem> = if options.control {
        Arc::new(WithControl::new(volume.fs()))
    } else {
        volume.fs()
    };
    let root = rustix::process::geteuid().is_root();
    let flags = options.flags;
    let source = options
        .fsname
        .clone()
        .unwrap_or_else(|| volume.path().display().to_string());
    let mount = MountOptions {
        source,
        flags: MountFlags {
            read_only: options.ext4.read_only,
            nosuid: flags.nosuid,
            nodev: flags.nodev,
            noexec: flags.noexec,
            noatime: flags.noatime,
            nodiratime: flags.nodiratime,
            sync: options.ext4.sync,
            dirsync: options.ext4.dirsync,
        },
        allow_other: options.allow_other.unwrap_or(root),
        posix_acl: options.ext4.acl.unwrap_or(true),
        transport: match options.fuse_transport {
            FuseTransport::Auto => Transport::Auto,
            FuseTransport::Uring => Transport::Uring,
            FuseTransport::Dev => Transport::Dev,
        },
        ..MountOptions::default()
    };
    Ok(steadfs_fuse::mount(fs, mountpoint, mount)?)
}
