//! Mounting an open volume.

use std::path::Path;
use std::sync::Arc;

use steadfs_fuse::{MountFlags, MountOptions, Mounted, Transport};
use steadfs_vfs::options::items;
use steadfs_vfs::{Control, ControlLayer, FsError, PreparedOptions, WithControl};

use crate::probe::Kind;
use crate::volume::{Error, Volume};
use crate::{FuseTransport, Io, Options};

/// The options that a mount adds to its volume's: those of its queue, and those that are fixed while it is mounted.
struct MountLayer {
    io: Arc<Io>,
    options: Options,
    kind: Kind,
}

impl ControlLayer for MountLayer {
    fn prepare(&self, list: &str) -> Result<PreparedOptions, FsError> {
        ControlLayer::prepare(&*self.io, &self.options.for_volume(list, self.kind)?)
    }

    fn options(&self) -> String {
        let lists = [self.options.show_fixed(), ControlLayer::options(&*self.io)];
        lists
            .into_iter()
            .filter(|list| !list.is_empty())
            .collect::<Vec<_>>()
            .join(",")
    }

    fn control(&self) -> &dyn Control {
        self.io.control()
    }
}

/// Mounts an open volume on a directory. When [`Mounted::wait`] returns the volume is closed.
pub fn mount(volume: &Volume, mountpoint: &Path, options: &Options) -> Result<Mounted, Error> {
    let (user, group) = steadfs_rt::kernel_ids();
    let root = user == 0;
    let allow_other = options.allow_other.unwrap_or(root);
    let mut fixed = options.clone();
    fixed.allow_other = Some(allow_other);
    let layer = MountLayer {
        io: Arc::clone(volume.io()),
        options: fixed,
        kind: volume.kind(),
    };
    let mut fs = WithControl::new(volume.fs())
        .owned_by(user, group)
        .with_layer(Arc::new(layer));
    if !options.control {
        fs = fs.hidden();
    }
    let flags = options.flags;
    let read_only = options.read_only() || !volume.report().read_only_because.is_empty();
    let mount = MountOptions {
        source: volume.path().display().to_string(),
        // A mount by root of a block device is of type fuseblk: then sync(2) and umount(2) reach the volume.
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
            sync: options.ext4.common.sync,
            dirsync: options.ext4.common.dirsync,
        },
        allow_other,
        // The superblock may have switched them off.
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
