//! The devices of a volume: what was opened, and what is stacked over it.
//!
//! **Problem.** A volume can be in a partition or in a container format. Their tables are trusted as little as the volume.
//!
//! **Rule.** The base is opened by a process with its rights. The layers over it are found at the first use of the volume's
//! device, after the process has given them up. An image file without layers is used as it is.

mod overlay;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use steadfs_block::{Device, FileDevice, Queue, QueueOptions};
#[cfg(feature = "mount")]
use steadfs_block::{FileId, Reopen};
use steadfs_ext4::JournalArea;
use steadfs_f2fs::read_superblock;
use steadfs_stack::{DeviceBytes, JoinedDevice, MappedDevice, SparseImage, is_sparse};
use steadfs_vfs::FsError;

use crate::Options;
use crate::image::Partition;
use crate::nbd::NbdDevice;
use crate::probe::partition_on;
pub(crate) use overlay::OpenedOverlay;

/// Why an image that cannot be written cannot, and what to do.
const SPARSE_IS_READ: &str = "an Android sparse image cannot be written; simg2img makes a raw image of it, and \
     -o overlay=FILE keeps the changes in another file";
const LOGICAL_IS_READ: &str = "a partition of an Android super image cannot be written; -o overlay=FILE keeps the changes in \
     another file";

/// The lowest device, which was opened.
pub(crate) enum Base {
    /// An image file or a block device.
    File(Arc<FileDevice>),
    /// An export of an NBD server.
    Nbd(Arc<NbdDevice>),
}

impl Base {
    pub(crate) fn file(device: FileDevice) -> Self {
        Self::File(Arc::new(device))
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        match self {
            Self::File(file) => Arc::clone(file) as _,
            Self::Nbd(export) => Arc::clone(export) as _,
        }
    }

    /// See [`FileDevice::reopen_by`].
    #[cfg(feature = "mount")]
    pub(crate) fn reopen_by(&self, reopen: Reopen) {
        match self {
            Self::File(file) => file.reopen_by(reopen),
            // Its connections can write.
            Self::Nbd(_) => {}
        }
    }

    /// Starts the threads, which hold the rights that the process has now.
    pub(crate) fn start_threads(&self) {
        match self {
            Self::File(file) => file.start_threads(),
            Self::Nbd(export) => {
                if let Err(error) = export.start_threads() {
                    // All requests fail.
                    tracing::error!(%error, "cannot start the threads of the connections");
                }
            }
        }
    }

    /// Numbers of device and inode of the image file.
    pub(crate) fn image_id(&self) -> Option<(u64, u64)> {
        match self {
            Self::File(file) => file.image_id(),
            Self::Nbd(_) => None,
        }
    }

    /// What follows the last sector of an image file.
    fn tail(&self) -> Result<Vec<u8>, LayerError> {
        match self {
            Self::File(file) => file.tail().map_err(|error| {
                LayerError::Refused(FsError::Io(format!("its end cannot be read: {error}")))
            }),
            Self::Nbd(_) => Ok(Vec::new()),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::File(file) => file.describe(),
            Self::Nbd(export) => export.describe(),
        }
    }
}

/// Why a volume has no device.
pub(crate) enum LayerError {
    /// The content of a layer is wrong: what follows the name of the image in a message.
    Unusable(String),
    /// A layer is not to be used so, or cannot be read.
    Refused(FsError),
}

impl From<String> for LayerError {
    fn from(why: String) -> Self {
        Self::Unusable(why)
    }
}

/// What was opened beside the base.
#[derive(Default)]
pub(crate) struct Over {
    /// The device of an external journal.
    pub(crate) journal: Option<FileDevice>,
    /// The second and the further devices of a volume on several.
    pub(crate) devices: Vec<FileDevice>,
    pub(crate) overlay: Option<OpenedOverlay>,
}

/// A base and the devices over it.
pub(crate) struct Layers {
    base: Base,
    journal: Option<Arc<FileDevice>>,
    devices: Vec<Arc<FileDevice>>,
    overlay: Option<OpenedOverlay>,
    top: OnceLock<Top>,
}

/// The device that the volume is on.
struct Top {
    device: Arc<dyn Device>,
    /// What is over the base, from the top down.
    names: Vec<String>,
    /// Where an external journal is on it.
    journal: Option<JournalArea>,
    /// It is all devices of a volume on several.
    is_joined: bool,
    /// Why it cannot be written.
    is_read: Option<&'static str>,
}

impl Top {
    fn add(&mut self, device: impl Device + 'static, name: String) {
        self.device = Arc::new(device);
        self.names.insert(0, name);
    }

    fn queue(&self) -> Queue {
        Queue::new(Arc::clone(&self.device), QueueOptions::default())
    }

    /// The content of a sparse image in place of its file.
    fn open_sparse(&mut self, base: &Base, path: &Path) -> Result<(), LayerError> {
        let head = self.queue().read(0, 512, steadfs_base::IoTag::default());
        // An error of the device is reported by what needs the content.
        if !head.is_ok_and(|head| is_sparse(&head)) {
            return Ok(());
        }
        let tail = base.tail()?;
        let bytes = DeviceBytes::new(Arc::clone(&self.device), tail.clone());
        let wrong = |why: String| format!("is an Android sparse image that cannot be read: {why}");
        let image = SparseImage::parse(&bytes).map_err(wrong)?;
        if is_numbered(path) && (image.begins_open || image.ends_open) {
            let why = "is one of the files of an Android sparse image that was split; simg2img makes one raw image of all of \
                       them";
            return Err(LayerError::Unusable(why.to_owned()));
        }
        let below = Arc::clone(&self.device);
        let device = MappedDevice::new(below, image.map, tail).map_err(wrong)?;
        self.add(device, "Android sparse image".to_owned());
        self.is_read = Some(SPARSE_IS_READ);
        Ok(())
    }

    /// The journal behind the volume.
    fn join(&mut self, journal: &Arc<FileDevice>) -> Result<(), LayerError> {
        let joined = JoinedDevice::with_journal(Arc::clone(&self.device), Arc::clone(journal) as _);
        let joined = joined.map_err(|why| {
            LayerError::Refused(FsError::BadOption(format!(
                "option journal_path: the journal {why}"
            )))
        })?;
        self.journal = Some(JournalArea {
            at: joined.last_at(),
            volume_bytes: self.device.geometry().size,
        });
        let name = format!("journal {}", journal.describe());
        self.add(joined, name);
        Ok(())
    }

    /// The further devices of an f2fs volume behind the first one.
    fn join_all(
        &mut self,
        others: &[Arc<FileDevice>],
        paths: &[PathBuf],
    ) -> Result<(), LayerError> {
        let refused = |why| LayerError::Refused(FsError::BadOption(why));
        // What is no f2fs volume is refused by what opens it.
        let Ok(superblock) = read_superblock(&self.queue()) else {
            return Ok(());
        };
        let bytes = superblock.device_bytes();
        if bytes.len() != others.len() + 1 {
            let (given, all) = (others.len(), bytes.len().max(1));
            return Err(refused(format!(
                "option device: {given} devices are named beside the first; the volume is on {all}"
            )));
        }
        // Devices have no names of their own, but a path of the superblock is not that of another one.
        let stored: Vec<PathBuf> = (superblock.devices().iter())
            .map(|(path, _)| PathBuf::from(&**path))
            .collect();
        for (number, path) in (1..).zip(paths) {
            let place = stored.iter().position(|stored| stored == path);
            if let Some(place) = place.filter(|place| *place != number) {
                let (path, place, number) = (path.display(), place + 1, number + 1);
                return Err(refused(format!(
                    "option device: {path} is number {place} of the volume's devices, and is named as number {number}"
                )));
            }
        }
        let first = Arc::clone(&self.device);
        let others_as_devices = others.iter().map(|device| Arc::clone(device) as _);
        let devices = [first].into_iter().chain(others_as_devices).zip(bytes);
        let joined = JoinedDevice::of_several(devices.collect()).map_err(|(number, why)| {
            let name = number.checked_sub(1).and_then(|n| others.get(n));
            let name = name.map_or("the first device".to_owned(), |device| device.describe());
            refused(format!("option device: {name} {why}"))
        })?;
        let names: Vec<String> = others.iter().map(|device| device.describe()).collect();
        self.is_joined = true;
        self.add(joined, format!("devices {}", names.join(", ")));
        Ok(())
    }

    /// A partition in place of the disk.
    fn open_partition(&mut self, which: &str) -> Result<(), LayerError> {
        let first = self.names.is_empty().then_some(0);
        for part in way_to(&self.device, which, first)? {
            if part.map.is_some() {
                self.is_read.get_or_insert(LOGICAL_IS_READ);
            }
            let device = over(&self.device, &part, which)?;
            self.add(device, format!("partition {}", part.number));
        }
        Ok(())
    }
}

/// Whether a file's name ends as those of the parts of a split image do: `.0`, `_sparsechunk.1`.
fn is_numbered(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let front = name.trim_end_matches(|c: char| c.is_ascii_digit());
    front.len() < name.len() && (front.ends_with('.') || front.ends_with("sparsechunk"))
}

impl Layers {
    pub(crate) fn over(base: Base, over: Over) -> Self {
        Self {
            base,
            journal: over.journal.map(Arc::new),
            devices: over.devices.into_iter().map(Arc::new).collect(),
            overlay: over.overlay,
            top: OnceLock::new(),
        }
    }

    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// The device that the volume is on.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn top(
        &self,
        options: &Options,
        path: &Path,
    ) -> Result<Arc<dyn Device>, LayerError> {
        if let Some(top) = self.top.get() {
            return Ok(Arc::clone(&top.device));
        }
        let found = self.find(options, path)?;
        Ok(Arc::clone(&self.top.get_or_init(|| found).device))
    }

    /// Finds the layers that the content of the base and the options say.
    fn find(&self, options: &Options, path: &Path) -> Result<Top, LayerError> {
        let mut top = Top {
            device: self.base.device(),
            names: Vec::new(),
            journal: None,
            is_joined: false,
            is_read: None,
        };
        top.open_sparse(&self.base, path)?;
        if let Some(which) = &options.partition {
            top.open_partition(which)?;
        }
        if let Some(journal) = &self.journal {
            top.join(journal)?;
        }
        if !self.devices.is_empty() {
            top.join_all(&self.devices, &options.f2fs.devices)?;
        }
        match &self.overlay {
            None => {}
            Some(overlay) => {
                let device = overlay.over(&top.device)?;
                top.add(device, overlay.name());
                top.is_read = None;
            }
        }
        match top.is_read {
            Some(why) if !options.read_only() => {
                Err(LayerError::Refused(FsError::OnlyReadable(why.to_owned())))
            }
            _ => Ok(top),
        }
    }

    /// Where an external journal is on the device that has been used.
    pub(crate) fn journal_area(&self) -> Option<JournalArea> {
        self.top.get().and_then(|top| top.journal)
    }

    /// Whether the device that has been used is all devices of a volume on several.
    pub(crate) fn is_joined(&self) -> bool {
        self.top.get().is_some_and(|top| top.is_joined)
    }

    /// The devices beside the base.
    fn others(&self) -> impl Iterator<Item = &Arc<FileDevice>> {
        self.journal.iter().chain(&self.devices)
    }

    /// The files that were opened, in the order of [`Options::files`].
    ///
    /// # Errors
    /// One cannot be examined.
    #[cfg(feature = "mount")]
    pub(crate) fn file_ids(&self) -> std::io::Result<Vec<FileId>> {
        let base = match &self.base {
            Base::File(file) => Some(file.file_id()),
            Base::Nbd(_) => None,
        };
        let others = self.others().map(|device| device.file_id());
        let overlay = self.overlay.iter().filter_map(OpenedOverlay::file_id);
        base.into_iter().chain(others).chain(overlay).collect()
    }

    /// Whether anything is over the base that has been used.
    pub(crate) fn is_layered(&self) -> bool {
        self.top.get().is_some_and(|top| !top.names.is_empty())
    }

    /// Whether changes are in the memory of this process only.
    #[cfg(feature = "mount")]
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.overlay, Some(OpenedOverlay::Memory(_)))
    }

    /// What the volume is on, from the top down.
    pub(crate) fn describe(&self) -> String {
        let names = self.top.get().map(|top| &top.names[..]);
        let base = self.base.describe();
        let all = names.unwrap_or_default().iter().chain([&base]);
        all.cloned().collect::<Vec<_>>().join(" over ")
    }

    /// The block device that the volume is on, if nothing is between them.
    #[cfg(feature = "mount")]
    pub(crate) fn block_device(&self) -> Option<&FileDevice> {
        match &self.base {
            Base::File(file) if !self.is_layered() && file.is_block_device() => Some(file),
            Base::File(_) | Base::Nbd(_) => None,
        }
    }

    /// Starts the threads, which hold the rights that the process has now.
    pub(crate) fn start_threads(&self) {
        self.base.start_threads();
        for device in self.others() {
            device.start_threads();
        }
    }

    /// Gives up the claims on all that was opened.
    pub(crate) fn give_up_claims(&self) {
        match &self.base {
            Base::File(file) => file.give_up_claims(),
            // The server fences other clients, or does not.
            Base::Nbd(_) => {}
        }
        for device in self.others() {
            device.give_up_claims();
        }
        if let Some(overlay) = &self.overlay {
            overlay.give_up_claims();
        }
    }
}

/// The partition of a disk that a user calls `which`, as the last one: in `A@B` it is partition B of partition A. Each is
/// found in the one before. `first` is the disk's first byte in its file, if it has one.
///
/// # Errors
/// Why there is none: what follows the name of the disk in a message.
pub(crate) fn way_to(
    disk: &Arc<dyn Device>,
    which: &str,
    first: Option<u64>,
) -> Result<Vec<Partition>, String> {
    let error = match partition_of(disk, which, first) {
        Ok(found) => return Ok(vec![found]),
        Err(error) => error,
    };
    // A name in the table may have an `@`, too.
    let Some((name, inner)) = which.split_once('@') else {
        return Err(error);
    };
    let outer = partition_of(disk, name, first)?;
    let device: Arc<dyn Device> = Arc::new(over(disk, &outer, name)?);
    let first = first.filter(|_| outer.map.is_none());
    let first = first.map(|first| first.saturating_add(outer.start));
    let inner = way_to(&device, inner, first);
    let mut way = vec![outer];
    way.extend(inner.map_err(|why| format!("partition {name:?} {why}"))?);
    Ok(way)
}

/// The device of a partition.
fn over(disk: &Arc<dyn Device>, part: &Partition, which: &str) -> Result<MappedDevice, String> {
    let below = Arc::clone(disk);
    let device = match &part.map {
        None => MappedDevice::window(below, part.start, part.bytes),
        Some(map) => MappedDevice::new(below, map.clone(), Vec::new()).map(MappedDevice::read_only),
    };
    device.map_err(|why| format!("partition {which:?}: {why}"))
}

fn partition_of(
    disk: &Arc<dyn Device>,
    which: &str,
    first: Option<u64>,
) -> Result<Partition, String> {
    let queue = Queue::new(Arc::clone(disk), QueueOptions::default());
    let found = partition_on(&queue, which, first)?;
    if found.map.is_none() && found.start >= disk.geometry().size {
        return Err(format!(
            "partition {which:?} begins behind the end of this file"
        ));
    }
    Ok(found)
}
