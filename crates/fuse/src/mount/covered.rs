//! The kernel's dirty pages of a mount that another mount covers.
//!
//! Problem: the kernel syncs one volume only through an open file of it, and no path leads to a covered mount. sync(2)
//! reaches it, but waits for every volume of the host, also for one whose server or device does not answer. Rule: a
//! thread with a mount namespace of its own removes what covers the mount there, and syncs this volume only. The host's
//! mounts stay as they are.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::mount::{MountPropagationFlags, UnmountFlags};

use super::MountHandle;
use super::table::{Hidden, MountEntry, proc_fd_path};

/// Most mounts that are removed from above one.
const COVERS_MAX: usize = 64;

impl MountHandle {
    /// Writes back all dirty pages that the kernel holds of this mount, though others cover it.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN; the mount is gone; the host refuses a thread; an error of syncfs(2).
    pub fn sync_covered(&self) -> io::Result<()> {
        let here = self.now().map_err(io::Error::other)?;
        let sync = move || {
            steadfs_rt::unshare_mounts()?;
            sync_in_own_namespace(&here)
        };
        steadfs_rt::try_spawn("sync_covered", sync)?.join()
    }
}

/// Requires a mount namespace that no other thread uses.
fn sync_in_own_namespace(of_host: &MountEntry) -> io::Result<()> {
    // No unmount propagates to the host.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let all = MountEntry::all()?;
    let entry = all.iter().find(|entry| entry.is_copy_of(of_host));
    let entry = entry.ok_or(io::ErrorKind::NotFound)?;
    for _ in 0..COVERS_MAX {
        match entry.open() {
            Ok(root) => {
                let folder = File::open(proc_fd_path(&root))?;
                return Ok(rustix::fs::syncfs(folder)?);
            }
            Err(Hidden::By(Some(over))) => detach(&over.mountpoint)?,
            Err(Hidden::By(None)) => break,
            Err(Hidden::Path(errno)) => return Err(errno.into()),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn detach(mountpoint: &Path) -> io::Result<()> {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    Ok(rustix::mount::unmount(mountpoint, flags)?)
}
