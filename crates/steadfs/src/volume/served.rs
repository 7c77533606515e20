//! Volumes that a mount serves: what the server and its broker need of the device.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use steadfs_base::InodeNo;
use steadfs_block::{ClaimedFile, FileDevice, FileId};
use steadfs_ext4::ProtectionMode;
use steadfs_fuse::{BlockDevice, BrokerClient, MountError, VolumeFiles};
use steadfs_vfs::FsError;

use super::{Error, Options, Volume, VolumeDevice, open_options};
use crate::layers::Base;
use crate::nbd;

/// Opens the image or device at `path` for writing, for a server that has it open for reading: the broker's part of a
/// remount for writing. With `claim` a block device is claimed with O_EXCL.
///
/// # Errors
/// Why it cannot be written.
pub fn reopen_for_writing(
    path: &Path,
    options: &Options,
    claim: bool,
) -> Result<Vec<OwnedFd>, String> {
    if options.overlay.is_some() {
        return Err(format!("{}: is below an overlay", path.display()));
    }
    if nbd::is_uri(path) {
        return Err(format!("{}: is no file", path.display()));
    }
    if let Some((option, other)) = options.device_beside() {
        let why = "is open for reading only; unmount, and mount without ro";
        let other = other.display();
        return Err(format!("{}: {option}={other} {why}", path.display()));
    }
    let opened = ClaimedFile::for_writing(path, &open_options(options), claim);
    let opened = opened.map_err(|error| error.to_string())?;
    Ok(opened.into_descriptors())
}

/// The files of a mount's volume, for its broker: a successor must have the files that the first server has opened,
/// whatever their paths lead to meanwhile.
pub struct ServedFiles {
    paths: Vec<PathBuf>,
    /// Descriptors without rights, which keep the files' numbers from being used for others. Empty before the first
    /// server has opened the files.
    pins: Vec<OwnedFd>,
}

impl ServedFiles {
    /// Those of a volume at `path` with these options.
    #[must_use]
    pub fn new(path: &Path, options: &Options) -> Self {
        Self {
            paths: options.files(path).map(Path::to_owned).collect(),
            pins: Vec::new(),
        }
    }

    fn pin(&self) -> Result<Vec<OwnedFd>, String> {
        let how = OFlags::PATH | OFlags::CLOEXEC;
        let pin = |path: &PathBuf| {
            let pin = rustix::fs::open(path, how, Mode::empty());
            pin.map_err(|error| format!("{}: cannot be found: {error}", path.display()))
        };
        self.paths.iter().map(pin).collect()
    }
}

impl VolumeFiles for ServedFiles {
    fn confirm(&mut self, opened: &str) -> Result<(), String> {
        if self.pins.is_empty() {
            self.pins = self.pin()?;
        }
        self.check()?;
        let ids: Result<Vec<_>, _> = self.pins.iter().map(FileId::of).collect();
        let ids = ids.map_err(|error| error.to_string())?;
        match list(&ids) == opened {
            true => Ok(()),
            false => Err("a file was replaced while it was opened; try again".to_owned()),
        }
    }

    fn check(&self) -> Result<(), String> {
        for (path, pin) in self.paths.iter().zip(&self.pins) {
            let why = match (FileId::at(path), FileId::of(pin)) {
                (Ok(now), Ok(then)) if now == then => continue,
                (Err(error), _) | (_, Err(error)) => error.to_string(),
                _ => "another file has this name now".to_owned(),
            };
            return Err(format!(
                "{}: a new server would not open the file that is mounted: {why}",
                path.display()
            ));
        }
        Ok(())
    }
}

/// The text of [`VolumeFiles::confirm`].
fn list(ids: &[FileId]) -> String {
    let ids: Vec<_> = ids.iter().map(FileId::to_string).collect();
    ids.join(" ")
}

impl VolumeDevice {
    /// Reports to `broker` which files were opened.
    ///
    /// # Errors
    /// They are not those of the mount.
    pub fn confirmed_by(self, broker: &BrokerClient) -> Result<Self, Error> {
        let refused = |why: String| Error::Mount(MountError::Broker(why));
        let ids = self.layers.file_ids();
        let ids = ids.map_err(|error| refused(error.to_string()))?;
        broker.confirm_files(&list(&ids)).map_err(refused)?;
        Ok(self)
    }

    /// As [`VolumeDevice::open`], for a server that continues a mount. `claimed`: the mount claims the block device.
    pub fn open_again(path: &Path, options: &Options, claimed: bool) -> Result<Self, Error> {
        Self::open_as(path, options, (!claimed, false))
    }

    /// As [`VolumeDevice::open`], on a file that the broker's mounter has opened, for writing unless the options are read-only.
    /// Of a block device there is a second descriptor, opened with O_EXCL. `path` stands for the file in messages.
    pub fn opened_by(path: &Path, options: &Options, broker: &BrokerClient) -> Result<Self, Error> {
        let how = open_options(options);
        let refused = |why: String| Error::Mount(MountError::Broker(why));
        let mut files = broker.reopen(false).map_err(refused)?.into_iter();
        let file = files.next();
        let file = file.ok_or_else(|| refused("it sent no device".to_owned()))?;
        let claimed = ClaimedFile::claim_opened(path, &how, file, files.next())?;
        let base = Base::file(FileDevice::on_claimed(path, how, claimed)?);
        Self::over(base, path, options, true)
    }

    /// A remount for writing asks `broker` to open the device, because this process is about to lose the right to do it.
    #[must_use]
    pub fn reopened_by(self, broker: &Arc<BrokerClient>) -> Self {
        let broker = Arc::clone(broker);
        self.layers.base().reopen_by(Box::new(move |claim| {
            let opened = ClaimedFile::from_descriptors(broker.reopen(claim)?);
            opened.ok_or_else(|| "the broker did not open the device".to_owned())
        }));
        self
    }

    /// Opens the volume with the options that were in effect when another server handed it over with these lookup counts.
    pub fn volume_again(
        mut self,
        options: &Options,
        lookups: &[(InodeNo, u64)],
    ) -> Result<Volume, Error> {
        if self.options.read_only() && !options.read_only() {
            // A remount has made it writable.
            let device = self.device()?;
            device.make_writable().map_err(|why| Error::Volume {
                path: self.path.clone(),
                error: FsError::Io(why),
            })?;
        }
        self.options = options.clone();
        self.options.ext4.protection.mode = ProtectionMode::Continue;
        self.volume_handed_over(lookups)
    }
}

impl Volume {
    /// Of a block device: drops our exclusive claim for the kernel's, and returns what mount(2) needs.
    pub(crate) fn yield_block_device(&self) -> Option<BlockDevice> {
        let device = self.layers.as_ref()?.block_device()?;
        device.yield_claim();
        Some(BlockDevice {
            path: self.path.clone(),
            // The kernel requires at least the device's sector size, and does not expose the number.
            block_size: self.block_size.max(device.sector_size()),
        })
    }

    /// Why no other process can continue with this volume, if none can.
    pub fn is_bound_because(&self) -> Option<&'static str> {
        let layers = self.layers.as_ref()?;
        layers.is_in_memory().then_some(
            "with overlay=memory all changes end with the server; unmount and mount again",
        )
    }
}
