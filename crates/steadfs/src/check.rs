//! Checking a volume without changing it.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Device, Queue, QueueOptions};
use steadfs_ext4::MountReport;
use steadfs_ext4::check::{self, BlockSource, Report};
use steadfs_vfs::FsError;

use crate::Options;
use crate::volume::{Error, Kind, failed, kind_on, open_device};

/// What a check found, and what was replayed (in memory) to see the volume as a mount would.
#[derive(Debug)]
pub struct Checked {
    /// Issues, counts, and what was not looked at.
    pub report: Report,
    /// What the journal held.
    pub replayed: MountReport,
}

struct QueueSource<'a> {
    queue: Arc<Queue>,
    heard: RefCell<&'a mut dyn FnMut(u64)>,
}

impl BlockSource for QueueSource<'_> {
    fn size_bytes(&self) -> u64 {
        self.queue.geometry().size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let unit = u64::from(self.queue.geometry().logical_block);
        let start = offset / unit * unit;
        let within = (offset - start) as usize;
        let len = (within + buf.len()).next_multiple_of(unit as usize);
        let data = self
            .queue
            .read(start, len, IoTag::default())
            .map_err(io::Error::other)?;
        buf.copy_from_slice(&data[within..within + buf.len()]);
        (self.heard.borrow_mut())(buf.len() as u64);
        Ok(())
    }
}

/// Checks the volume on an image file or block device; nothing is written, not even the journal
/// replayed: what is in it is laid over the volume in memory. `heard` is told of the bytes read.
pub fn check(path: &Path, options: &Options, heard: &mut dyn FnMut(u64)) -> Result<Checked, Error> {
    let mut options = options.clone();
    options.set_read_only(true);
    let device: Arc<dyn Device> = Arc::new(open_device(path, &options)?);
    let queue = Queue::new(Arc::clone(&device), QueueOptions::default());
    if kind_on(&queue).map_err(|error| failed(path, error))? == Kind::F2fs {
        let what = "checking f2fs volumes; fsck.f2fs does";
        return Err(failed(path, FsError::NotSupported(what)));
    }
    let (queue, replayed) = steadfs_ext4::replayed_view(device).map_err(|error| Error::Volume {
        path: path.to_owned(),
        error,
    })?;
    let how = check::Options {
        // After a replay the superblock's counts are those of the last mount.
        after_crash: replayed.replayed_transactions > 0,
        ..check::Options::default()
    };
    let source = QueueSource {
        queue,
        heard: RefCell::new(heard),
    };
    let report = check::check(&source, &how);
    Ok(Checked { report, replayed })
}
