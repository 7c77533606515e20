//! Mounting an open volume.

mod builder;
mod layer;

use std::path::Path;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_fuse::{
    BlockDevice, FileId, Inheritance, KernelMount, MountFlags, MountOptions, Mounted, Mounter,
    Served, Stats, Transport, VolumeFacts,
};
use steadfs_vfs::options::items;
use steadfs_vfs::{FileSystem, RecordedState, WithControl};

use crate::volume::{Error, Volume};
use crate::{FuseTransport, IoEngine, Options};
use layer::MountLayer;

pub use builder::Mounting;

/// Mounts an open volume on a directory. When [`Mounted::wait`] returns the volume is closed.
pub fn mount(volume: &Volume, mountpoint: &Path, options: &Options) -> Result<Mounted, Error> {
    let mut options = options.clone();
    let place = std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.to_owned());
    let place = place.into_os_string().into_encoded_bytes();
    options.ext4.mounted_on.get_or_insert(place);
    mount_by(volume, &KernelMount::new(mountpoint)?, &options)
}

/// The same where `kernel` mounts, by which another thread can remove the mount before it is usable.
///
/// # Errors
/// [`Error::Mount`]: there is no mount.
pub fn mount_by(
    volume: &Volume,
    kernel: &KernelMount,
    options: &Options,
) -> Result<Mounted, Error> {
    let mut options = options.clone();
    // This process serves, as it is.
    options.sandbox = false;
    let (fs, how) = prepare(volume, &options, Some(&[]), steadfs_rt::kernel_ids());
    let mounted = steadfs_fuse::mount_by(fs, kernel, &how)?;
    volume.in_use().leave_to_server();
    Ok(mounted)
}

/// Serves an open volume on a mount that `mounter` makes. When [`Served::wait`] returns the volume is closed.
///
/// # Errors
/// [`Error::Mount`]: there is no mount.
pub fn serve(volume: &Volume, mounter: &dyn Mounter, options: &Options) -> Result<Served, Error> {
    if options.takeover && volume.report().read_only_because.is_empty() && !options.read_only() {
        // Whether it could be.
        volume.restore(&RecordedState::default())?;
    }
    let (fs, how) = prepare(volume, options, Some(&[]), mounter.owner());
    let served = steadfs_fuse::serve(fs, mounter, &how)?;
    volume.in_use().leave_to_server();
    Ok(served)
}

/// Serves a volume that another server has left. See `steadfs_fuse::serve_on` for `usable`.
///
/// # Errors
/// [`Error::Mount`]: memory or threads are short.
pub fn serve_on(
    volume: &Volume,
    inheritance: Inheritance<'_>,
    options: &Options,
    usable: impl FnOnce(),
) -> Result<Served, Error> {
    let owner = steadfs_rt::kernel_ids();
    let recorded = inheritance.record.map(|record| &record.counts()[..]);
    let lookups = inheritance.legacy.lookups.as_deref().or(recorded);
    let (fs, how) = prepare(volume, options, lookups, owner);
    let served = steadfs_fuse::serve_on(fs, inheritance, &how, usable)?;
    volume.in_use().leave_to_server();
    Ok(served)
}

/// Makes the rings of a server that is about to be contained, for the kernel's requests and for the device: it cannot make
/// any afterwards.
pub fn prepare_rings(options: &Options) {
    steadfs_fuse::prepare_rings(transport(options));
    if options.io_engine != IoEngine::Threads {
        steadfs_block::prepare_rings();
    }
}

fn transport(options: &Options) -> Transport {
    if options.takeover {
        // Another process can take the requests of this one only.
        return Transport::Dev;
    }
    match options.fuse_transport {
        FuseTransport::Auto => Transport::Auto,
        FuseTransport::Uring => Transport::Uring,
        FuseTransport::Dev => Transport::Dev,
    }
}

/// How a broker mounts the volume at `path` for its server.
pub fn mount_options(path: &Path, options: &Options, facts: VolumeFacts) -> MountOptions {
    mount_options_for(steadfs_rt::kernel_ids().0 == 0, path, options, facts)
}

/// The same where root mounts, or another user.
fn mount_options_for(
    root: bool,
    path: &Path,
    options: &Options,
    facts: VolumeFacts,
) -> MountOptions {
    let flags = options.flags;
    MountOptions {
        source: path.display().to_string(),
        block_device: facts.block_size.map(|block_size| BlockDevice {
            path: path.to_owned(),
            block_size,
        }),
        flags: MountFlags {
            read_only: options.read_only() || facts.read_only,
            nosuid: flags.nosuid,
            nodev: flags.nodev,
            noexec: flags.noexec,
            noatime: flags.noatime,
            nodiratime: flags.nodiratime,
            sync: options.ext4.common.sync,
            dirsync: options.ext4.common.dirsync,
        },
        allow_other: options.allow_other(root),
        fakeroot: options.fakeroot,
        ..MountOptions::default()
    }
}

/// The volume with its control files, and how to mount it for this user and group.
fn prepare(
    volume: &Volume,
    options: &Options,
    lookups: Option<&[(InodeNo, u64)]>,
    (user, group): (u32, u32),
) -> (Arc<dyn FileSystem>, MountOptions) {
    let root = user == 0;
    let mut fixed = options.clone();
    fixed.allow_other = Some(options.allow_other(root));
    let stats = Arc::new(Stats::default());
    let layer = MountLayer {
        io: Arc::clone(volume.io()),
        options: fixed,
        kind: volume.kind(),
        path: volume.path().to_owned(),
        stats: Arc::clone(&stats),
    };
    let mut fs = WithControl::new(volume.fs())
        .owned_by(user, group)
        .with_layer(Arc::new(layer))
        .succeeding(lookups);
    if !options.control {
        fs = fs.hidden();
    }
    let block_device = match root {
        // A mount by root of a block device is of type fuseblk: then sync(2) and umount(2) reach the volume.
        true => volume.yield_block_device(),
        false => None,
    };
    let facts = VolumeFacts {
        read_only: !volume.report().read_only_because.is_empty(),
        block_size: block_device.map(|block| block.block_size),
    };
    let how = MountOptions {
        image: volume
            .image_id()
            .map(|(device, inode)| FileId { device, inode }),
        // The superblock may have switched them off.
        posix_acl: items(&volume.fs().options()).all(|(name, _)| name != "noacl"),
        transport: transport(options),
        takeover: options.takeover,
        classifier: Arc::clone(volume.io().owners()) as _,
        stats,
        ..mount_options_for(root, volume.path(), options, facts)
    };
    (Arc::new(fs), how)
}
