//! The kernel's side of a mount: made, detached, and tuned once it is served.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use steadfs_rt::{Mutex, Rank};

use super::gone::is_server_gone;
use super::serve::Mounter;
use super::table::MountEntry;
use super::{MountHandle, MountOptions, Unmount, helper, uses_fusermount};
use crate::error::MountError;
use crate::sys;

/// Mounts on a directory, as root with mount(2), as another user through fusermount3.
pub struct KernelMount {
    mountpoint: PathBuf,
    /// Of the mount, once there is one.
    handle: Mutex<Option<MountHandle>>,
}

impl KernelMount {
    /// Nothing is mounted yet.
    ///
    /// # Errors
    /// [`MountError::Mountpoint`]: it is no directory, or out of reach.
    pub fn new(mountpoint: &Path) -> Result<Self, MountError> {
        Ok(Self {
            mountpoint: check_mountpoint(mountpoint)?,
            handle: Mutex::new(Rank::Leaf, None),
        })
    }
}

impl Mounter for KernelMount {
    fn mount(&self, options: &MountOptions) -> Result<OwnedFd, MountError> {
        let mountpoint = &self.mountpoint;
        // Checks that mounts can be listed: a mount that is not found in the list could not be unmounted either.
        all_mounts(mountpoint)?;
        let spare = spare_descriptors(mountpoint)?;
        let device = if uses_fusermount() {
            helper::mount(mountpoint, options)?
        } else {
            mount_as_root(mountpoint, options)?
        };
        drop(spare);
        let handle = MountHandle::of(new_entry(mountpoint, options)?);
        *self.handle.lock() = Some(handle);
        Ok(device)
    }

    fn spare(&self) -> Result<Vec<File>, MountError> {
        spare_descriptors(&self.mountpoint).map(Vec::from)
    }

    fn detach(&self) -> bool {
        // Without the lock: the unmount may wait for threads that ask for the handle.
        let handle = self.handle.lock().take();
        if let Some(handle) = handle
            && let Err(error) = handle.unmount(Unmount::Detach)
        {
            tracing::error!(%error, "cannot detach a mount that failed");
        }
        true
    }

    fn is_usable(&self, options: &MountOptions) {
        if let Some(handle) = self.handle() {
            set_read_ahead(&handle.entry.device, options.read_ahead_kib);
        }
    }

    fn handle(&self) -> Option<MountHandle> {
        self.handle.lock().clone()
    }
}

/// The directory's absolute path without symbolic links, as mount(2) and /proc/mounts have it.
fn check_mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    let fail = |cause: String| MountError::Mountpoint {
        path: path.to_owned(),
        cause,
    };
    let real = path.canonicalize().map_err(|e| fail(e.to_string()))?;
    match real.metadata() {
        Ok(found) if found.is_dir() => Ok(real),
        Ok(_) => Err(fail("not a directory".to_owned())),
        Err(error) if is_server_gone(&error) => Err(fail(
            "the server of the volume mounted there is gone; unmount it first".to_owned(),
        )),
        Err(error) => Err(fail(error.to_string())),
    }
}

fn mount_as_root(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let fail = |cause: String| MountError::Mount {
        path: mountpoint.to_owned(),
        cause,
    };
    let device = sys::open_device().map_err(|e| MountError::Device(e.to_string()))?;
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,{}",
        device.as_raw_fd(),
        options.for_fuse()
    );
    let (source, kind) = options.shown();
    let data = CString::new(data).map_err(|e| fail(e.to_string()))?;
    rustix::mount::mount(source, mountpoint, kind, options.flags.raw(), &*data).map_err(
        |errno| {
            let hint = match errno {
                Errno::BUSY if options.block_device.is_some() => {
                    " (the device is mounted or opened exclusively by another program)"
                }
                Errno::PERM => " (mounting requires CAP_SYS_ADMIN here)",
                Errno::NODEV => " (the kernel does not support this type of FUSE mount)",
                _ => "",
            };
            fail(format!("{errno}{hint}"))
        },
    )?;
    Ok(device)
}

/// Descriptors held while others are opened, so that enough are left to find the mount and unmount it if that fails.
fn spare_descriptors(mountpoint: &Path) -> Result<[File; 3], MountError> {
    let none_left = |error| MountError::Mount {
        path: mountpoint.to_owned(),
        cause: format!("cannot open /dev/null: {error} (see ulimit -n)"),
    };
    let open = || File::open("/dev/null").map_err(none_left);
    Ok([open()?, open()?, open()?])
}

/// All mounts; an error names `mountpoint`.
fn all_mounts(mountpoint: &Path) -> Result<Vec<MountEntry>, MountError> {
    MountEntry::all().map_err(|error| MountError::Mount {
        path: mountpoint.to_owned(),
        cause: format!("cannot read /proc/self/mountinfo: {error}"),
    })
}

/// The mount that was just made. Makes no call that needs its server, which does not serve yet.
fn new_entry(mountpoint: &Path, options: &MountOptions) -> Result<MountEntry, MountError> {
    let (source, kind) = options.shown();
    let mut newest = all_mounts(mountpoint)?.into_iter().rev();
    let found = newest.find(|entry| {
        entry.mountpoint == mountpoint && entry.source == source && entry.kind == kind
    });
    found.ok_or_else(|| MountError::Mount {
        path: mountpoint.to_owned(),
        cause: "it is not in /proc/self/mountinfo; another program may have unmounted it"
            .to_owned(),
    })
}

/// Raises the mount's read-ahead; INIT cannot raise it beyond the kernel's default.
fn set_read_ahead(device: &str, kib: u32) {
    for suffix in ["", "-fuseblk"] {
        let file = format!("/sys/class/bdi/{device}{suffix}/read_ahead_kb");
        if let Err(error) = std::fs::write(&file, kib.to_string()) {
            tracing::debug!(file, %error, "cannot set the read-ahead window");
        }
    }
}
