//! Whether a volume has SELinux labels, so that programs are told once that it has none.
//!
//! `ls -l` asks for the label of every file, and nothing keeps the answers: of a directory of FUSE that is half
//! of its requests. A program that hears ENOTSUP asks for no further label on that volume (coreutils keep the
//! device's number). It is told so where labels mean nothing, and there are none to be seen: the kernel has no
//! SELinux, the root directory has no label (what labels a volume labels that first), and since the mount none
//! was set or found. Everywhere else a file without a label is a file without that attribute, ENODATA.

use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_vfs::{Cx, FileSystem, FsError, Result};

const LABEL: &[u8] = b"security.selinux";

/// What is known of a volume's labels.
pub(crate) struct Labels {
    /// There are labels, or may be.
    used: AtomicBool,
}

impl Labels {
    /// Looks at the root directory, unless the kernel has SELinux: that learns from an error whether a volume
    /// can have labels.
    pub fn of(fs: &dyn FileSystem) -> Self {
        let label = || fs.getxattr(&Cx::default(), fs.root(), LABEL);
        let used = kernel_has_selinux() || !matches!(label(), Err(FsError::NoData));
        Self {
            used: AtomicBool::new(used),
        }
    }

    /// The answer to who asks for the attribute `name`, when this is what the volume says.
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

    /// A file has the attribute `name`, or is about to get it.
    pub fn seen(&self, name: &[u8]) {
        if name == LABEL {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether SELinux is in the kernel and was not switched off: only then it has its file system (whatever of
/// `/sys` a container sees).
fn kernel_has_selinux() -> bool {
    std::fs::read_to_string("/proc/filesystems").map_or(true, |list| {
        list.lines().any(|line| line.ends_with("\tselinuxfs"))
    })
}
