//! The overlay of a volume's device: `-o overlay=`.
//!
//! **Rule.** The file is opened and claimed while the process has its rights. Its length follows from the base's, which is
//! known when the layers below are, so it gets that, and its header is read, when the rights are gone.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

#[cfg(feature = "mount")]
use steadfs_block::FileId;
use steadfs_block::{ClaimedFile, Device, FileDevice, OpenError, OpenOptions};
use steadfs_rt::{Mutex, Rank};
use steadfs_stack::{Head, Layout, OverlayDevice, check_head, identity};
use steadfs_vfs::FsError;

use super::LayerError;
use crate::memory::overlay_memory;
use crate::options::Overlay;

/// Bytes of a file that are examined before it is used.
const HEAD_BYTES: usize = 4096;

/// An overlay of which nothing is interpreted yet.
pub(crate) enum OpenedOverlay {
    /// In memory, with at most this number of bytes.
    Memory(u64),
    /// In a file.
    File(Box<OverlayFile>),
}

/// The file of an overlay.
pub(crate) struct OverlayFile {
    path: PathBuf,
    options: OpenOptions,
    /// First bytes of the file, and its length.
    head: Vec<u8>,
    len: u64,
    opened: Mutex<Option<Opened>>,
    device: OnceLock<Arc<FileDevice>>,
}

/// A file that no request has been made to.
enum Opened {
    /// To be written: it may still get its length.
    Claimed(ClaimedFile),
    /// To be read: a process without rights, which only reads, cannot examine a file.
    Device(Box<FileDevice>),
}

impl OpenedOverlay {
    /// Opens the overlay that the options of a volume name; `how` as for the base, with the volume's own access.
    pub(crate) fn open(overlay: &Overlay, how: OpenOptions) -> Result<Self, OpenError> {
        let Overlay::File(path) = overlay else {
            return Ok(Self::Memory(overlay_memory()));
        };
        let options = OpenOptions {
            offset: 0,
            sizelimit: None,
            create: Some(0),
            claim: true,
            ..how
        };
        let claimed = ClaimedFile::open(path, &options, true)?;
        let mut head = vec![0; HEAD_BYTES];
        let (got, len) = claimed.head(&mut head).map_err(|cause| OpenError::Io {
            path: path.clone(),
            what: "cannot be read",
            cause,
        })?;
        head.truncate(got);
        let opened = match options.read_only {
            true => {
                let device = FileDevice::on_claimed(path, options.clone(), claimed)?;
                Opened::Device(Box::new(device))
            }
            false => Opened::Claimed(claimed),
        };
        Ok(Self::File(Box::new(OverlayFile {
            path: path.clone(),
            options,
            head,
            len,
            opened: Mutex::new(Rank::Leaf, Some(opened)),
            device: OnceLock::new(),
        })))
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Memory(bytes) => format!("overlay in memory ({} MiB)", bytes >> 20),
            Self::File(file) => format!("overlay {}", file.path.display()),
        }
    }

    /// The overlay over a base.
    pub(crate) fn over(&self, base: &Arc<dyn Device>) -> Result<OverlayDevice, LayerError> {
        match self {
            Self::Memory(bytes) => Ok(OverlayDevice::in_memory(Arc::clone(base), *bytes)?),
            Self::File(file) => file.over(base),
        }
    }

    /// Which file it is in, if it has one.
    #[cfg(feature = "mount")]
    pub(crate) fn file_id(&self) -> Option<std::io::Result<FileId>> {
        let Self::File(file) = self else { return None };
        match &*file.opened.lock() {
            Some(Opened::Claimed(claimed)) => Some(claimed.file_id()),
            Some(Opened::Device(device)) => Some(device.file_id()),
            None => file.device.get().map(|device| device.file_id()),
        }
    }

    pub(crate) fn give_up_claims(&self) {
        if let Self::File(file) = self
            && let Some(device) = file.device.get()
        {
            device.give_up_claims();
        }
    }
}

impl OverlayFile {
    fn over(&self, base: &Arc<dyn Device>) -> Result<OverlayDevice, LayerError> {
        let of_file = |why: String| format!("its overlay {} {why}", self.path.display());
        let failed = |error: &dyn std::fmt::Display| {
            let why = format!("cannot be used: {error}");
            LayerError::Refused(FsError::Io(of_file(why)))
        };
        let size = base.geometry().size;
        let layout = Layout::of(size)
            .ok_or_else(|| of_file(format!("cannot have a base of {size} bytes")))?;
        let id =
            identity(base).map_err(|error| LayerError::Refused(FsError::Io(error.to_string())))?;
        let head = check_head(&self.head, self.len, &layout, &id).map_err(of_file)?;
        if head == Head::New && self.options.read_only {
            let why = "is new, and the volume is to be read only";
            return Err(of_file(why.to_owned()).into());
        }
        let opened = self.opened.lock().take();
        let device = match opened {
            None => return Err(of_file("was refused before".to_owned()).into()),
            Some(Opened::Device(device)) => Ok(*device),
            Some(Opened::Claimed(claimed)) => {
                let options = OpenOptions {
                    create: Some(layout.file_bytes()),
                    ..self.options.clone()
                };
                FileDevice::on_claimed(&self.path, options, claimed)
            }
        };
        let device = Arc::new(device.map_err(|error| failed(&error))?);
        device.start_threads();
        let upper = Arc::clone(self.device.get_or_init(|| device)) as Arc<dyn Device>;
        let opened = OverlayDevice::open(Arc::clone(base), upper, head, &id);
        opened.map_err(|why| of_file(why).into())
    }
}
