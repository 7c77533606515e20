//! An open volume on an image file or block device.

mod error;
mod partitions;
#[cfg(feature = "mount")]
mod served;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::{
    Device, Engine, FileDevice, ModelDevice, OpenError, OpenOptions, Queue, QueueOptions,
};
use steadfs_ext4::{CacheSizes, Ext4};
use steadfs_f2fs::F2fs;
use steadfs_stack::{Stop, StoppableDevice};
use steadfs_vfs::{FileSystem, FsError, RecordedState};

pub use error::Error;
#[cfg(feature = "mount")]
pub use served::{ServedFiles, reopen_for_writing};

use crate::files::InUse;
use crate::image::Found;
use crate::layers::{Base, LayerError, Layers, OpenedOverlay, Over};
use crate::memory::{default_cache_size, overlay_memory};
use crate::nbd;
use crate::nodes::protection_of;
use crate::probe::{Kind, Unopened, failed, kind_on, kind_within};
use crate::{Io, IoEngine, Options, Overlay};

/// The result of opening a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Journal blocks replayed: written to their home location, or kept in an overlay on a read-only device.
    pub replayed_blocks: u64,
    /// Transactions replayed.
    pub replayed_transactions: u64,
    /// Fast commits replayed.
    pub replayed_fast_commits: u64,
    /// f2fs: files recovered by roll-forward, which fsync wrote after the last checkpoint.
    pub recovered_files: u64,
    /// Orphan inodes: freed or truncated, or skipped on a read-only volume.
    pub orphans: u64,
    /// Why the volume is read-only although it was opened for writing, or could not be written.
    pub read_only_because: Vec<String>,
    /// Options of the superblock that are not applied, with the reason.
    pub defaults_passed_over: Vec<String>,
    /// Why the volume should be checked although it can be written.
    pub check_because: Option<&'static str>,
    /// Corrupt or missing metadata that was skipped.
    pub warnings: Vec<String>,
}

impl From<steadfs_ext4::MountReport> for OpenReport {
    fn from(report: steadfs_ext4::MountReport) -> Self {
        Self {
            replayed_blocks: report.replayed_blocks,
            replayed_transactions: report.replayed_transactions,
            replayed_fast_commits: report.replayed_fast_commits,
            orphans: report.orphans,
            read_only_because: report.read_only_because,
            defaults_passed_over: report.defaults_passed_over,
            check_because: report.check_because,
            warnings: report.warnings,
            ..Self::default()
        }
    }
}

impl From<steadfs_f2fs::MountReport> for OpenReport {
    fn from(report: steadfs_f2fs::MountReport) -> Self {
        Self {
            recovered_files: report.recovered_files,
            orphans: report.orphans,
            read_only_because: report.read_only_because,
            warnings: report.warnings,
            ..Self::default()
        }
    }
}

/// An open volume.
pub struct Volume {
    fs: Arc<dyn FileSystem>,
    kind: Kind,
    report: OpenReport,
    path: PathBuf,
    /// `None` for a device of the caller's.
    layers: Option<Layers>,
    block_size: u32,
    options: Options,
    io: Arc<Io>,
    in_use: Arc<InUse>,
    /// Closes the volume of a library's caller.
    ending: Option<Ending>,
}

/// Closes a volume when it is dropped.
struct Ending(Arc<dyn FileSystem>, Arc<InUse>);

impl Drop for Ending {
    fn drop(&mut self) {
        if self.1.is_served() {
            return;
        }
        self.1.end();
        // After Volume::close, which reports errors, this fails at once.
        if let Err(error) = self.0.unmount() {
            tracing::debug!("the volume is not closed again: {error}");
        }
    }
}

fn open_options(options: &Options) -> OpenOptions {
    OpenOptions {
        read_only: options.read_only() || options.overlay.is_some(),
        direct: !options.buffered,
        // What only reads and ends needs most of what it reads once, and in small pieces.
        cached_small_reads: options.ext4.common.salvage,
        offset: options.offset,
        sizelimit: options.size_limit,
        engine: match options.io_engine {
            IoEngine::Auto => Engine::Auto,
            IoEngine::Uring => Engine::Uring,
            IoEngine::Threads => Engine::Threads,
        },
        claim: true,
        beside: false,
        create: None,
    }
}

/// Opens what `overlay=` names.
fn open_overlay(options: &Options) -> Result<Option<OpenedOverlay>, OpenError> {
    let overlay = options.overlay.as_ref();
    let how = || OpenOptions {
        read_only: options.read_only(),
        ..open_options(options)
    };
    overlay
        .map(|overlay| OpenedOverlay::open(overlay, how()))
        .transpose()
}

/// Opens a device beside the one that the volume begins on.
fn open_beside(path: &Path, options: &Options, claim: bool) -> Result<FileDevice, OpenError> {
    let how = OpenOptions {
        offset: 0,
        sizelimit: None,
        claim,
        ..open_options(options)
    };
    FileDevice::open_idle(path, how)
}

/// An open image file or block device, of whose content nothing is interpreted yet: between this and the next step a
/// process can give up the rights that it does not need any more. No thread is started before that step.
pub struct VolumeDevice {
    layers: Layers,
    path: PathBuf,
    options: Options,
    cache_size: u64,
    /// Most bytes of changes in memory, where they are to be kept there.
    staged_max: Option<u64>,
    /// Ends work on the device.
    stop: Option<Stop>,
}

impl VolumeDevice {
    /// Opens the image or device and claims it.
    pub fn open(path: &Path, options: &Options) -> Result<Self, Error> {
        Self::open_as(path, options, (true, false))
    }

    fn open_as(
        path: &Path,
        options: &Options,
        (claim, beside): (bool, bool),
    ) -> Result<Self, Error> {
        let how = OpenOptions {
            claim,
            beside,
            ..open_options(options)
        };
        let shared = match &options.overlay {
            Some(Overlay::File(_)) => Some("overlay"),
            _ => options.device_beside().map(|(option, _)| option),
        };
        if let Some(option) = shared.filter(|_| beside) {
            let why = format!("option {option}: the other volume of this copy uses it");
            return Err(failed(path, FsError::BadOption(why)));
        }
        let base = match nbd::is_uri(path) {
            true => Base::Nbd(Arc::new(nbd::open(path, &how)?)),
            false => Base::file(FileDevice::open_idle(path, how)?),
        };
        Self::over(base, path, options, claim)
    }

    fn over(base: Base, path: &Path, options: &Options, claim: bool) -> Result<Self, Error> {
        let over = Over {
            journal: (options.ext4.journal_path.as_ref())
                .map(|path| open_beside(path, options, claim))
                .transpose()?,
            devices: (options.f2fs.devices.iter())
                .map(|path| open_beside(path, options, claim))
                .collect::<Result<_, _>>()?,
            overlay: open_overlay(options)?,
        };
        Ok(Self {
            layers: Layers::over(base, over),
            path: path.to_owned(),
            options: options.clone(),
            // It depends on the host's memory, which is read from /proc.
            cache_size: options.cache_size.unwrap_or_else(default_cache_size),
            staged_max: None,
            stop: None,
        })
    }

    /// As [`VolumeDevice::open`], for [`VolumeDevice::staged_volume`]. Changes may take a quarter of the memory.
    pub fn open_staged(path: &Path, options: &Options) -> Result<Self, Error> {
        let opened = Self::open(path, options)?;
        Ok(Self {
            staged_max: Some(overlay_memory()),
            ..opened
        })
    }

    /// Most bytes of changes in memory.
    pub(crate) fn staged_max(&self) -> u64 {
        self.staged_max.unwrap_or_else(overlay_memory)
    }

    pub(crate) fn into_layers(self) -> Layers {
        self.layers
    }

    /// The error for this device without a volume, or with one that cannot be opened.
    pub(crate) fn failed(&self, error: impl Into<Unopened>) -> Error {
        without_places(failed(&self.path, error), &self.layers)
    }

    /// As [`VolumeDevice::open`], to read what can be read of a corrupt volume.
    pub fn open_salvage(path: &Path, options: &Options) -> Result<Self, Error> {
        let mut options = options.clone();
        options.set_salvage();
        Self::open(path, &options)
    }

    /// As [`VolumeDevice::open_salvage`], for a volume on a disk that the caller has claimed for another volume on it.
    pub fn open_salvage_beside(path: &Path, options: &Options) -> Result<Self, Error> {
        let mut options = options.clone();
        options.set_salvage();
        Self::open_as(path, &options, (false, true))
    }

    /// The image or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// All requests fail from when `stop` returns true. A check reports the first of them, and is not to be trusted then.
    #[must_use]
    pub fn stopped_by(self, stop: Stop) -> Self {
        let stop = Some(stop);
        Self { stop, ..self }
    }

    /// The device that the volume is on. The first call parses what its layers are, so the process has given up its rights
    /// before.
    pub(crate) fn device(&self) -> Result<Arc<dyn Device>, Error> {
        let top = self.layers.top(&self.options, &self.path);
        let top = top.map_err(|error| match error {
            LayerError::Unusable(why) => self.no_partition(why),
            LayerError::Refused(error) => failed(&self.path, error),
        })?;
        Ok(match &self.stop {
            Some(stop) => Arc::new(StoppableDevice::new(top, Arc::clone(stop))),
            None => top,
        })
    }

    /// The options, with what follows from the volume's device.
    pub(crate) fn options_on_device(&self) -> Result<Options, Error> {
        self.device()?;
        let mut options = self.options.clone();
        options.ext4.external_journal = self.layers.journal_area();
        options.f2fs.is_joined = self.layers.is_joined();
        Ok(options)
    }

    pub(crate) fn queue(&self) -> Result<Queue, Error> {
        Ok(Queue::new(self.device()?, QueueOptions::default()))
    }

    /// The bytes of the device, or of the part of it that the options choose.
    pub fn size(&self) -> Result<u64, Error> {
        Ok(self.device()?.geometry().size)
    }

    /// The kind of file system.
    pub fn kind(&self) -> Result<Kind, Error> {
        let found = kind_on(&self.queue()?, &self.options);
        found.map_err(|error| self.failed(error))
    }

    /// Opens the volume.
    pub fn volume(self) -> Result<Volume, Error> {
        self.volume_handed_over(&[])
    }

    /// Starts what serves the device. Returns it and the sizes of the volume's caches.
    pub(crate) fn start(&self) -> Result<(Arc<dyn Device>, CacheSizes), Error> {
        self.layers.start_threads();
        let mut shared = self.device()?;
        if let Some(model) = self.options.device_model {
            let slow = ModelDevice::start(shared, model).map_err(|error| Error::Volume {
                path: self.path.clone(),
                error: FsError::no_thread(error),
            })?;
            shared = Arc::new(slow);
        }
        Ok((shared, CacheSizes::of(self.cache_size)))
    }

    fn volume_handed_over(self, lookups: &[(InodeNo, u64)]) -> Result<Volume, Error> {
        let (shared, sizes) = self.start()?;
        let options = self.options_on_device()?;
        let volume = Volume::handed_over(shared, &self.path, sizes, &options, lookups)
            .map_err(|error| without_places(error, &self.layers))?;
        Ok(volume.with_layers(self.layers))
    }
}

/// Partitions in a layer have no first byte in the file that `offset=` could name.
fn without_places(mut error: Error, layers: &Layers) -> Error {
    if let Error::NoVolume {
        found: Found::Partitioned(table),
        ..
    } = &mut error
    {
        table.has_places &= !layers.is_layered();
    }
    error
}

type Opened = (Kind, Arc<dyn FileSystem>, OpenReport, u32, Arc<Queue>);

/// Opens the volume on a device.
fn open_on(
    device: Arc<dyn Device>,
    sizes: CacheSizes,
    options: &Options,
    lookups: &[(InodeNo, u64)],
) -> Result<Opened, Unopened> {
    let queue = Queue::new(Arc::clone(&device), QueueOptions::default());
    let kind = kind_within(&queue, options)?;
    options.fits(kind)?;
    if kind == Kind::F2fs {
        let (fs, report) = F2fs::open_handed_over(device, options.f2fs.clone(), sizes, lookups)?;
        let block_size = steadfs_f2fs::disk::BLOCK_SIZE as u32;
        let queue = Arc::clone(fs.queue());
        return Ok((kind, fs, report.into(), block_size, queue));
    }
    let (fs, report) = Ext4::open_handed_over(device, options.ext4.clone(), sizes, lookups)?;
    let block_size = fs.geo().block_size.bytes() as u32;
    let queue = Arc::clone(fs.queue());
    Ok((kind, fs, report.into(), block_size, queue))
}

impl Volume {
    /// Opens the volume on an image file or block device for reading and writing, with recovery if it is needed.
    /// [`Volume::close`] reports the errors of what is written at the end; a volume that is dropped is closed without.
    /// [`Volume::options`] opens it otherwise.
    ///
    /// # Errors
    /// There is no volume, or another program uses it; it cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path.as_ref(), &Options::default())
    }

    /// The same with options, such as `ro`, `noload` or `partition=`.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_with(path: &Path, options: &Options) -> Result<Self, Error> {
        let opened = VolumeDevice::open(path, options)?.volume()?;
        Ok(opened.ending_with_its_owner())
    }

    fn ending_with_its_owner(mut self) -> Self {
        self.ending = Some(Ending(self.fs(), self.in_use()));
        self
    }

    pub(crate) fn in_use(&self) -> Arc<InUse> {
        Arc::clone(&self.in_use)
    }

    /// Opens the volume on a device of the caller's, such as a modelled one. `name` stands for it in messages and in
    /// the table of mounts; of the options those about files and devices mean nothing here.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn on(
        device: Arc<dyn Device>,
        name: &Path,
        sizes: CacheSizes,
        options: &Options,
    ) -> Result<Self, Error> {
        let opened = Self::handed_over(device, name, sizes, options, &[])?;
        Ok(opened.ending_with_its_owner())
    }

    /// The volume, with what claims its image.
    pub(crate) fn with_layers(self, layers: Layers) -> Self {
        Self {
            layers: Some(layers),
            ..self
        }
    }

    fn handed_over(
        device: Arc<dyn Device>,
        name: &Path,
        sizes: CacheSizes,
        options: &Options,
        lookups: &[(InodeNo, u64)],
    ) -> Result<Self, Error> {
        let mut options = options.clone();
        options.ext4.protection = protection_of(name, &options);
        let (kind, fs, report, block_size, queue) =
            open_on(device, sizes, &options, lookups).map_err(|error| failed(name, error))?;
        Ok(Self {
            fs,
            kind,
            report,
            path: name.to_owned(),
            layers: None,
            block_size,
            io: Arc::new(Io::new(queue, options.io.clone())),
            options,
            in_use: Arc::default(),
            ending: None,
        })
    }

    /// The kind of file system.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The options with which it was opened. A remount may have changed some of them since.
    pub fn opened_with(&self) -> &Options {
        &self.options
    }

    /// The volume's calls.
    pub fn fs(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs)
    }

    /// The volume's queue and its options.
    pub fn io(&self) -> &Arc<Io> {
        &self.io
    }

    /// The result of opening.
    pub fn report(&self) -> &OpenReport {
        &self.report
    }

    /// Describes the device and its I/O engine.
    pub fn describe_device(&self) -> String {
        let layers = self.layers.as_ref();
        layers.map_or_else(|| "a device of the caller's".to_owned(), Layers::describe)
    }

    /// Numbers of device and inode of the image file that the volume is in, if it is in one.
    pub(crate) fn image_id(&self) -> Option<(u64, u64)> {
        self.layers.as_ref()?.base().image_id()
    }

    /// The image or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The volume's block size in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Brings the volume to the state that a killed server had acknowledged ([`FileSystem::restore`]).
    ///
    /// # Errors
    /// [`Error::Volume`].
    pub fn restore(&self, state: &RecordedState) -> Result<(), Error> {
        let restored = self.fs.restore(state);
        restored.map_err(|error| Error::Volume {
            path: self.path.clone(),
            error,
        })
    }

    /// Gives up the claim on the image or device of a volume that is closed, before this process has ended.
    pub fn give_up_device(&self) {
        if let Some(layers) = &self.layers {
            layers.give_up_claims();
        }
    }

    /// Writes everything, marks the volume clean and gives up the device. An error means that data was lost. Later calls
    /// fail.
    pub fn close(&self) -> Result<(), Error> {
        self.in_use.end();
        let closed = self.fs.unmount();
        if self.ending.is_some() {
            // No server has it, which would need the claim until its mount has ended.
            self.give_up_device();
        }
        closed.map_err(|error| Error::Volume {
            path: self.path.clone(),
            error,
        })
    }
}
