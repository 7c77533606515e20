//! Checking a volume without changing it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{BlockSource, Buf, Queue};
use steadfs_ext4::MountReport;
use steadfs_ext4::check as ext4;
use steadfs_f2fs::check as f2fs;

use crate::Options;
use crate::probe::{Kind, failed, kind_within};
use crate::volume::{Error, VolumeDevice};

/// The result of a check of a volume of either kind.
#[derive(Debug)]
pub enum Checked {
    /// ext2, ext3 or ext4.
    Ext4 {
        /// Issues, counts, and what was not checked.
        report: ext4::Report,
        /// The result of the journal's replay in memory, which shows the volume as a mount would.
        replayed: MountReport,
    },
    /// f2fs.
    F2fs {
        /// Issues, counts, and what was not checked.
        report: f2fs::Report,
    },
}

impl Checked {
    /// Whether no issue was found.
    pub fn is_clean(&self) -> bool {
        match self {
            Self::Ext4 { report, .. } => report.is_clean(),
            Self::F2fs { report } => report.is_clean(),
        }
    }

    /// The kept issues, one line each.
    pub fn issues(&self) -> Vec<String> {
        match self {
            Self::Ext4 { report, .. } => report.issues.iter().map(ToString::to_string).collect(),
            Self::F2fs { report } => report.issues.iter().map(ToString::to_string).collect(),
        }
    }

    /// The number of issues beyond those kept.
    pub fn more(&self) -> u64 {
        match self {
            Self::Ext4 { report, .. } => report.more,
            Self::F2fs { report } => report.more,
        }
    }

    /// The names of the volume's features that were not checked.
    pub fn skipped(&self) -> &[Cow<'static, str>] {
        match self {
            Self::Ext4 { report, .. } => &report.skipped,
            Self::F2fs { report } => &report.skipped,
        }
    }
}

/// Size of a read window. A checker's next read is mostly close to the last one. Small, because most directories are; what is
/// read in sequence is read ahead by the kernel.
const WINDOW_BYTES: u64 = 16 << 10;
/// Number of cached windows.
const WINDOWS_MAX: usize = 256;

/// A device read in windows.
pub(crate) struct QueueSource<'a> {
    queue: Arc<Queue>,
    on_read: RefCell<&'a mut dyn FnMut(u64)>,
    /// Direct-mapped: a window is at its number modulo [`WINDOWS_MAX`].
    windows: RefCell<Vec<Option<(u64, Buf)>>>,
}

impl<'a> QueueSource<'a> {
    pub(crate) fn new(queue: Arc<Queue>, on_read: &'a mut dyn FnMut(u64)) -> Self {
        Self {
            queue,
            on_read: RefCell::new(on_read),
            windows: RefCell::new(vec![None; WINDOWS_MAX]),
        }
    }

    fn fetch(&self, start: u64, len: u64) -> io::Result<Buf> {
        let read = self.queue.read(start, len as usize, IoTag::default());
        let data = read.map_err(io::Error::other)?;
        (self.on_read.borrow_mut())(len);
        Ok(data)
    }

    /// Fills `buf` from its window. Returns false if it is not within one window, or the window cannot be read.
    fn read_window(&self, offset: u64, buf: &mut [u8]) -> bool {
        let number = offset / WINDOW_BYTES;
        let start = number * WINDOW_BYTES;
        let within = (offset - start) as usize;
        let end = self.size_bytes().min(start + WINDOW_BYTES);
        if offset + buf.len() as u64 > end {
            return false;
        }
        let mut windows = self.windows.borrow_mut();
        let window = &mut windows[(number % WINDOWS_MAX as u64) as usize];
        if window.as_ref().is_none_or(|(kept, _)| *kept != number) {
            match self.fetch(start, end - start) {
                Ok(data) => *window = Some((number, data)),
                Err(_) => return false,
            }
        }
        let Some((_, data)) = window else {
            return false;
        };
        buf.copy_from_slice(&data[within..within + buf.len()]);
        true
    }
}

impl BlockSource for QueueSource<'_> {
    fn size_bytes(&self) -> u64 {
        self.queue.geometry().size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.read_window(offset, buf) {
            return Ok(());
        }
        // Larger than a window, across two, or in a window that cannot be read.
        let unit = u64::from(self.queue.geometry().logical_block);
        let start = offset / unit * unit;
        let within = (offset - start) as usize;
        let len = (within + buf.len()).next_multiple_of(unit as usize);
        let data = self.fetch(start, len as u64)?;
        buf.copy_from_slice(&data[within..within + buf.len()]);
        Ok(())
    }
}

/// Checks the volume on an image file or block device; see [`VolumeDevice::check`].
pub fn check(
    path: impl AsRef<Path>,
    options: &Options,
    on_read: &mut dyn FnMut(u64),
) -> Result<Checked, Error> {
    VolumeDevice::open_salvage(path.as_ref(), options)?.check(on_read)
}

impl VolumeDevice {
    /// Checks the volume. Nothing is written: the journal of an ext4 volume is replayed into an overlay in memory, and an
    /// f2fs volume is checked as of its checkpoint. `on_read` is called with the number of bytes of each read.
    pub fn check(&self, on_read: &mut dyn FnMut(u64)) -> Result<Checked, Error> {
        let (path, options) = (self.path(), self.options());
        let queue = self.queue()?;
        let refused = |why: String| Error::Unchecked {
            path: path.to_owned(),
            why,
        };
        if kind_within(&queue, options).map_err(|error| self.failed(error))? == Kind::F2fs {
            let source = QueueSource::new(Arc::new(queue), on_read);
            let how = f2fs::Options {
                is_joined: self.options_on_device()?.f2fs.is_joined,
                ..f2fs::Options::default()
            };
            let report = f2fs::check(&source, &how);
            return match &report.refused {
                Some(why) => Err(refused(why.to_string())),
                None => Ok(Checked::F2fs { report }),
            };
        }
        let on_device = self.options_on_device()?.ext4;
        let view = steadfs_ext4::replayed_view(self.device()?, &on_device);
        let view = view.map_err(|error| failed(path, error))?;
        let default = ext4::Options::default();
        let how = ext4::Options {
            // After a replay the superblock has the counts of the last mount; a backup's are older.
            after_crash: view.report.has_replayed() || view.super_at != default.super_at,
            super_at: view.super_at,
            unreplayed: view.unreplayed.map(|error| error.to_string()),
            mended: view.mended,
            ..default
        };
        let source = QueueSource::new(view.queue, on_read);
        let report = ext4::check(&source, &how);
        match &report.refused {
            Some(why) => Err(refused(why.to_string())),
            None => Ok(Checked::Ext4 {
                report,
                replayed: view.report,
            }),
        }
    }
}
