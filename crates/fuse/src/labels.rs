//! Whether a volume has SELinux labels; if not, `security.selinux` is answered ENOTSUP.
//!
//! Problem: `ls -l` requests the label of every file and FUSE caches no extended attributes, so half of the requests
//! for a directory are for labels. Rule: a program that gets ENOTSUP requests no further label on that volume
//! (coreutils remember the device number). The answer is ENOTSUP if the kernel has no SELinux, the root directory has
//! no label (a program that labels a volume labels it first), and no label was set or found since the mount. Otherwise
//! a file without a label is a file without that attribute: ENODATA.

use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_vfs::{Cx, FileSystem, FsError, Result};

const LABEL: &[u8] = b"security.selinux";

/// Whether labels exist on a volume.
pub(crate) struct Labels {
    /// There are labels, or there may be.
    used: AtomicBool,
}

impl Labels {
    /// Checks the root directory, unless the kernel has SELinux: SELinux concludes from an error whether the volume
    /// supports labels.
    pub fn of(fs: &dyn FileSystem) -> Self {
        let label = || fs.getxattr(&Cx::default(), fs.root(), LABEL);
        let used = kernel_has_selinux() || !matches!(label(), Err(FsError::NoData));
        Self {
            used: AtomicBool::new(used),
        }
    }

    /// The answer to GETXATTR of `name`, if `found` is the volume's result.
    pub fn answer(&self, name: &[u8], found: Result<Vec<u8>>) -> Result<Vec<u8>> {
        if name != LABEL {
            return found;
        }
        match found {
            Err(FsError::NoData) if !self.used.load(Ordering::Relaxed) => {
                Err(FsError::NotSupported("no labels"))
            }
            Ok(_) => {
                self.seen(name);
                found
            }
            Err(_) => found,
        }
    }

    /// Records that a file has the attribute `name`, or is about to get it.
    pub fn seen(&self, name: &[u8]) {
        if name == LABEL {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether the kernel has SELinux and it is not switched off: only then its file system is registered (whatever of
/// `/sys` a container sees).
fn kernel_has_selinux() -> bool {
    std::fs::read_to_string("/proc/filesystems").map_or(true, |list| {
        list.lines().any(|line| line.ends_with("\tselinuxfs"))
    })
}
