//! A volume whose changes become durable together, or not at all.
//!
//! **Problem.** Several calls on a volume are to be one change, whatever ends the process: an error, a signal, a power cut.
//!
//! **Rule.** The volume is opened on a device that keeps all writes in memory ([`StagedDevice`]), so until
//! [`StagedVolume::apply`] the device below is only read. What makes the writes one change of that device is the format's own
//! means:
//!
//! - ext3 and ext4: one transaction of the journal, see [`steadfs_ext4::apply()`]. Without a journal it is refused.
//! - f2fs: one checkpoint. Checkpoints are disabled while the volume is changed, so no block of the last one is overwritten,
//!   and then enabled, which writes the next one. The writes are repeated on the device in their order: what a power cut
//!   leaves of them is what it could have left of a volume that was written directly, and that has one checkpoint with all
//!   changes and others with none.

use std::path::Path;
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Device, IoError, IoHandle, Queue, QueueOptions};
use steadfs_ext4::{Appliable, CacheSizes, NodeLock, ProtectionMode, read_superblock};
use steadfs_stack::{StagedDevice, StagedOrder};
use steadfs_vfs::FsError;

use crate::layers::Layers;
use crate::nodes::protection_of;
use crate::probe::{failed, kind_within};
use crate::tools::owner_cx;
use crate::volume::{Error, Volume};
use crate::{Kind, Options, VolumeDevice};

/// Options of f2fs while it is changed.
const HELD: &str = "barrier,checkpoint=disable:100%";
/// Options of f2fs that make the changes a checkpoint.
const DONE: &str = "checkpoint=enable";
/// Requests that are in flight at once.
const WRITES_MAX: usize = 256;

/// An open volume with changes in memory.
pub struct StagedVolume {
    volume: Volume,
    base: Arc<dyn Device>,
    staged: Arc<StagedDevice>,
    /// Where an external journal begins on the base.
    external_journal: Option<steadfs_ext4::JournalArea>,
    lock: Option<BaseLock>,
    /// All changes are dropped.
    is_trial: bool,
    /// Claims the image.
    _layers: Option<Layers>,
}

/// The lock of this node on the base (multiple-mount protection), until it is dropped.
struct BaseLock(NodeLock);

impl BaseLock {
    /// Takes the lock before anything is read that depends on it; `None` if the volume has none, or is not to be written.
    fn take(base: &Arc<dyn Device>, name: &Path, options: &Options) -> Result<Option<Self>, Error> {
        if base.geometry().read_only || options.read_only() {
            return Ok(None);
        }
        let queue = Arc::new(Queue::new(Arc::clone(base), QueueOptions::default()));
        let sb = read_superblock(&queue);
        let taken = sb.and_then(|sb| NodeLock::take(&queue, &sb, &protection_of(name, options)));
        let taken = taken.map_err(|error| failed(name, error))?;
        Ok(taken.map(Self))
    }
}

impl Drop for BaseLock {
    fn drop(&mut self) {
        if let Err(error) = self.0.release() {
            tracing::error!(%error, "releasing the lock of this node failed");
        }
    }
}

impl VolumeDevice {
    /// Opens the volume so that its changes stay in memory until they are applied. A volume that was not unmounted is
    /// recovered on its device first, as by a mount.
    ///
    /// # Errors
    /// As [`VolumeDevice::volume`], or changes of this volume cannot be applied together.
    pub fn staged_volume(self) -> Result<StagedVolume, Error> {
        let (base, sizes) = self.start()?;
        let bytes_max = self.staged_max();
        let options = self.options_on_device()?;
        let staged = StagedVolume::on(base, self.path(), sizes, &options, bytes_max)?;
        Ok(StagedVolume {
            _layers: Some(self.into_layers()),
            ..staged
        })
    }
}

impl VolumeDevice {
    /// Opens the volume to try changes, which are in memory and dropped at the end, as is what recovers a volume that was not
    /// unmounted. What [`VolumeDevice::staged_volume`] refuses for lack of space or memory is refused here, too.
    ///
    /// # Errors
    /// As [`VolumeDevice::staged_volume`].
    pub fn trial_volume(self) -> Result<StagedVolume, Error> {
        let (base, sizes) = self.start()?;
        let bytes_max = self.staged_max();
        let options = self.options_on_device()?;
        let queue = Queue::new(Arc::clone(&base), QueueOptions::default());
        let kind = kind_within(&queue, &options).map_err(|error| self.failed(error))?;
        if kind != Kind::F2fs {
            let appliable = steadfs_ext4::appliable(&base, options.ext4.external_journal);
            let appliable = appliable.map_err(with_way_out);
            appliable.map_err(|error| self.failed(error))?;
        }
        let opened = StagedVolume::open(base, self.path(), sizes, &options, (kind, bytes_max))?;
        Ok(StagedVolume {
            is_trial: true,
            _layers: Some(self.into_layers()),
            ..opened
        })
    }
}

impl StagedVolume {
    /// As [`VolumeDevice::staged_volume`], on a device of the caller's, with changes in at most `bytes_max` bytes of
    /// memory.
    ///
    /// # Errors
    /// The same.
    pub fn on(
        base: Arc<dyn Device>,
        name: &Path,
        sizes: CacheSizes,
        options: &Options,
        bytes_max: u64,
    ) -> Result<Self, Error> {
        let queue = Queue::new(Arc::clone(&base), QueueOptions::default());
        let kind = kind_within(&queue, options).map_err(|error| failed(name, error))?;
        let lock = match kind {
            Kind::F2fs => None,
            _ => BaseLock::take(&base, name, options)?,
        };
        let mut options = options.clone();
        if lock.is_some() {
            options.ext4.protection.mode = ProtectionMode::Held;
        }
        if kind != Kind::F2fs {
            recover(&base, name, sizes, &options)?;
        }
        let opened = Self::open(base, name, sizes, &options, (kind, bytes_max));
        opened.map(|opened| Self { lock, ..opened })
    }

    fn open(
        base: Arc<dyn Device>,
        name: &Path,
        sizes: CacheSizes,
        options: &Options,
        (kind, bytes_max): (Kind, u64),
    ) -> Result<Self, Error> {
        let order = match kind {
            Kind::F2fs => StagedOrder::Kept,
            Kind::Ext2 | Kind::Ext3 | Kind::Ext4 => StagedOrder::Dropped,
        };
        let staged = Arc::new(StagedDevice::new(Arc::clone(&base), order, bytes_max));
        let volume = Volume::on(Arc::clone(&staged) as _, name, sizes, options)?;
        if kind == Kind::F2fs && volume.report().read_only_because.is_empty() {
            let held = volume.fs().remount(&owner_cx(), HELD);
            held.map_err(|error| failed(name, error))?;
        }
        Ok(Self {
            volume,
            base,
            staged,
            external_journal: options.ext4.external_journal,
            lock: None,
            is_trial: false,
            _layers: None,
        })
    }

    /// The volume with the changes that were made.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Makes all changes durable. The volume is clean then. Of a trial the changes are dropped.
    ///
    /// # Errors
    /// Something could not be written. The message says so where it is not known whether the changes are there; otherwise
    /// there are none.
    pub fn apply(self) -> Result<(), Error> {
        let volume = &self.volume;
        let wrong = |error| Error::Volume {
            path: volume.path().to_owned(),
            error,
        };
        if volume.kind() == Kind::F2fs {
            let enabled = volume.fs().remount(&owner_cx(), DONE);
            enabled.map_err(wrong)?;
        }
        volume.close()?;
        if self.is_trial {
            return Ok(());
        }
        if let Some(BaseLock(lock)) = &self.lock {
            lock.check().map_err(wrong)?;
        }
        let applied = match volume.kind() {
            Kind::F2fs => self.repeat(),
            Kind::Ext2 | Kind::Ext3 | Kind::Ext4 => {
                let edited = Arc::clone(&self.staged) as Arc<dyn Device>;
                let changed = self.staged.changed();
                steadfs_ext4::apply(&self.base, &edited, &changed, self.external_journal)
            }
        };
        applied.map_err(with_way_out).map_err(wrong)
    }

    /// Repeats all writes in order.
    fn repeat(&self) -> Result<(), FsError> {
        let queue = Queue::new(Arc::clone(&self.base), QueueOptions::default());
        let tag = IoTag::default();
        for group in self.staged.in_order() {
            let written = group.chunks(WRITES_MAX).try_for_each(|part| {
                let writes: Vec<IoHandle> = {
                    let _plug = queue.plug();
                    let submit = |(at, buf): &(u64, _)| {
                        queue.submit(Bio::write(*at, vec![Clone::clone(buf)]), tag)
                    };
                    part.iter().map(submit).collect()
                };
                steadfs_block::wait_all(&writes)
            });
            let durable = written.and_then(|()| queue.flush(tag).wait());
            durable.map_err(|error: IoError| {
                let why = format!("{error}; whether the changes are there, the next mount shows");
                FsError::Io(why)
            })?;
        }
        Ok(())
    }
}

/// Replays the journal of a volume that was not unmounted.
fn recover(
    base: &Arc<dyn Device>,
    name: &Path,
    sizes: CacheSizes,
    options: &Options,
) -> Result<(), Error> {
    let is_ready = || {
        let state =
            steadfs_ext4::appliable(base, options.ext4.external_journal).map_err(with_way_out);
        let state = state.map_err(|error| failed(name, error))?;
        Ok::<_, Error>(state == Appliable::Now)
    };
    if is_ready()? || base.geometry().read_only || options.read_only() {
        return Ok(());
    }
    Volume::on(Arc::clone(base), name, sizes, options)?.close()?;
    match is_ready()? {
        true => Ok(()),
        false => Err(failed(name, FsError::Busy)),
    }
}

/// Adds to a refusal how the changes can be made all the same.
fn with_way_out(error: FsError) -> FsError {
    match error {
        FsError::BadOption(why) => FsError::BadOption(format!(
            "{why}; steadfs edit --copy changes a copy of the image file, which then replaces it"
        )),
        error => error,
    }
}
