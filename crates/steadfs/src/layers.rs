//! The devices of a volume: what was opened, and what is stacked over it.
//!
//! **Problem.** A volume can be in a partition or in a container format. Their tables are trusted as little as the volume.
//!
//! **Rule.** The base is opened by a process with its rights. The layers over it are found at the first use of the volume's
//! device, after the process has given them up. An image file without layers is used as it is.

use std::sync::{Arc, OnceLock};

use steadfs_block::{Device, FileDevice, Queue, QueueOptions, Reopen};
use steadfs_stack::MappedDevice;

use crate::Options;
use crate::image::Partition;
use crate::probe::partition_on;

/// The lowest device, which was opened.
pub(crate) enum Base {
    /// An image file or a block device.
    File(Arc<FileDevice>),
}

impl Base {
    pub(crate) fn file(device: FileDevice) -> Self {
        Self::File(Arc::new(device))
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        match self {
            Self::File(file) => Arc::clone(file) as _,
        }
    }

    /// See [`FileDevice::reopen_by`].
    pub(crate) fn reopen_by(&self, reopen: Reopen) {
        match self {
            Self::File(file) => file.reopen_by(reopen),
        }
    }

    /// Starts the threads, which hold the rights that the process has now.
    pub(crate) fn start_threads(&self) {
        match self {
            Self::File(file) => file.start_threads(),
        }
    }

    /// Numbers of device and inode of the image file.
    pub(crate) fn image_id(&self) -> Option<(u64, u64)> {
        match self {
            Self::File(file) => file.image_id(),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::File(file) => file.describe(),
        }
    }
}

/// A base and the devices over it.
pub(crate) struct Layers {
    base: Base,
    top: OnceLock<Top>,
}

/// The device that the volume is on.
#[derive(Clone)]
struct Top {
    device: Arc<dyn Device>,
    /// What is over the base, from the top down.
    names: Vec<String>,
}

impl Layers {
    pub(crate) fn over(base: Base) -> Self {
        Self {
            base,
            top: OnceLock::new(),
        }
    }

    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// The device that the volume is on.
    ///
    /// # Errors
    /// Why there is none: what follows the name of the image in a message.
    pub(crate) fn top(&self, options: &Options) -> Result<Arc<dyn Device>, String> {
        if let Some(top) = self.top.get() {
            return Ok(Arc::clone(&top.device));
        }
        let found = self.find(options)?;
        Ok(Arc::clone(&self.top.get_or_init(|| found).device))
    }

    /// Finds the layers that the content of the base and the options say.
    fn find(&self, options: &Options) -> Result<Top, String> {
        let mut top = Top {
            device: self.base.device(),
            names: Vec::new(),
        };
        if let Some(which) = &options.partition {
            let part = partition_of(&top.device, which)?;
            let window = MappedDevice::window(top.device, part.start, part.bytes)?;
            top.device = Arc::new(window);
            top.names.insert(0, format!("partition {}", part.number));
        }
        Ok(top)
    }

    /// What the volume is on, from the top down.
    pub(crate) fn describe(&self) -> String {
        let names = self.top.get().map(|top| &top.names[..]);
        let base = self.base.describe();
        let all = names.unwrap_or_default().iter().chain([&base]);
        all.cloned().collect::<Vec<_>>().join(" of ")
    }

    /// The block device that the volume is on, if nothing is between them.
    pub(crate) fn block_device(&self) -> Option<&FileDevice> {
        let is_bare = self.top.get().is_none_or(|top| top.names.is_empty());
        match &self.base {
            Base::File(file) if is_bare && file.is_block_device() => Some(file),
            Base::File(_) => None,
        }
    }

    /// Gives up the claims on all that was opened.
    pub(crate) fn give_up_claims(&self) {
        match &self.base {
            Base::File(file) => file.give_up_claims(),
        }
    }
}

/// The partition of a disk that a user calls `which`.
///
/// # Errors
/// Why there is none: what follows the name of the disk in a message.
pub(crate) fn partition_of(disk: &Arc<dyn Device>, which: &str) -> Result<Partition, String> {
    let queue = Queue::new(Arc::clone(disk), QueueOptions::default());
    let found = partition_on(&queue, which)?;
    if found.start >= disk.geometry().size {
        return Err(format!(
            "partition {which:?} begins behind the end of this file"
        ));
    }
    Ok(found)
}
