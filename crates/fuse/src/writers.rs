//! Files that are open for writing (the kernel's `i_writecount`).
//!
//! **Problem.** A file that becomes a verity file must not be open for writing, and not be opened for that meanwhile: a program
//! would find out by errors of its writes, or by those of a mapping that it has changed. **Rule.** On a volume that can have
//! verity files every OPEN and RELEASE arrives. The handles of files that are open for writing are counted here, which
//! distinguishes them from those that a former server of the mount gave: what it has opened is not known.
//!
//! The kernel sends RELEASE after close(2) has returned, so a file that seems to be open is looked at again for a short time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

/// How often, and for how long, RELEASE requests under way are waited for.
const POLL: Duration = Duration::from_millis(1);
const POLLS: u32 = 200;

/// A file.
#[derive(Default)]
struct Writers {
    handles: BTreeSet<u64>,
    denied: bool,
}

/// The files of a mount that are open for writing.
pub(crate) struct FileWriters {
    files: Mutex<BTreeMap<InodeNo, Writers>>,
    /// A former server has opened files.
    inherited: AtomicBool,
}

impl Default for FileWriters {
    fn default() -> Self {
        Self {
            files: Mutex::new(Rank::Leaf, BTreeMap::new()),
            inherited: AtomicBool::new(false),
        }
    }
}

/// While it exists, the file is not opened for writing.
pub(crate) struct Denied<'w> {
    writers: &'w FileWriters,
    ino: InodeNo,
}

impl FileWriters {
    /// The mount is continued: a former server has opened files.
    pub(crate) fn inherit(&self) {
        self.inherited.store(true, Ordering::Release);
    }

    /// A file is opened for writing, with this handle.
    ///
    /// # Errors
    /// `TextBusy`: that is denied.
    pub(crate) fn add(&self, ino: InodeNo, handle: u64) -> Result<()> {
        let mut files = self.files.lock();
        let file = files.entry(ino).or_default();
        if file.denied {
            return Err(FsError::TextBusy);
        }
        file.handles.insert(handle);
        Ok(())
    }

    /// A handle is released.
    pub(crate) fn remove(&self, ino: InodeNo, handle: u64) {
        let mut files = self.files.lock();
        if let Some(file) = files.get_mut(&ino) {
            file.handles.remove(&handle);
            if file.handles.is_empty() && !file.denied {
                files.remove(&ino);
            }
        }
    }

    /// Denies opening a file for writing.
    ///
    /// # Errors
    /// `TextBusy`: it is open for writing, or a caller has denied it already. `InUse`: that is not known.
    pub(crate) fn deny(&self, ino: InodeNo) -> Result<Denied<'_>> {
        if self.inherited.load(Ordering::Acquire) {
            let why = "the server was replaced, so it is not known which files are open for writing: unmount and mount again";
            return Err(FsError::InUse(why.to_owned()));
        }
        for _ in 0..POLLS {
            if let Some(denied) = self.try_deny(ino) {
                return Ok(denied);
            }
            steadfs_rt::sleep(POLL);
        }
        Err(FsError::TextBusy)
    }

    /// Whether a file is denied to writers at the moment.
    pub(crate) fn denies_any(&self) -> bool {
        self.files.lock().values().any(|file| file.denied)
    }

    fn try_deny(&self, ino: InodeNo) -> Option<Denied<'_>> {
        let mut files = self.files.lock();
        let file = files.entry(ino).or_default();
        if file.denied || !file.handles.is_empty() {
            return None;
        }
        file.denied = true;
        Some(Denied { writers: self, ino })
    }
}

impl Drop for Denied<'_> {
    fn drop(&mut self) {
        self.writers.files.lock().remove(&self.ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_denied_to_writers_or_open_for_them() {
        let writers = FileWriters::default();
        let (one, other) = (InodeNo(5), InodeNo(6));
        writers.add(one, 1).unwrap();
        writers.add(one, 2).unwrap();
        assert_eq!(writers.deny(one).err(), Some(FsError::TextBusy));
        let denied = writers.deny(other).unwrap();
        assert_eq!(writers.add(other, 3), Err(FsError::TextBusy));
        assert_eq!(writers.deny(other).err(), Some(FsError::TextBusy));
        drop(denied);
        writers.add(other, 3).unwrap();
        writers.remove(one, 1);
        writers.remove(one, 7);
        assert!(writers.try_deny(one).is_none());
        writers.remove(one, 2);
        drop(writers.deny(one).unwrap());
        writers.remove(other, 3);
        assert!(writers.files.lock().is_empty());
    }

    #[test]
    fn a_release_under_way_is_waited_for() {
        let writers = FileWriters::default();
        writers.add(InodeNo(5), 1).unwrap();
        std::thread::scope(|scope| {
            let denying = scope.spawn(|| writers.deny(InodeNo(5)).is_ok());
            steadfs_rt::sleep(10 * POLL);
            writers.remove(InodeNo(5), 1);
            assert!(denying.join().unwrap());
        });
    }

    #[test]
    fn files_that_a_former_server_opened_are_not_known() {
        let writers = FileWriters::default();
        writers.inherit();
        assert!(matches!(writers.deny(InodeNo(5)), Err(FsError::InUse(_))));
    }
}
