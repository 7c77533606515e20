//! Opening, probing, inspecting and checking volumes with options, as [`std::fs::OpenOptions`] opens files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfs_block::Device;
use steadfs_cache::CacheSizes;

use crate::inspect::inspect;
use crate::memory::default_cache_size;
use crate::probe::failed;
use crate::{Checked, Error, Inspection, IoEngine, Kind, Options, Overlay, Volume};
use crate::{check, probe};

/// How a volume is to be opened: [`Volume::options`] begins one. Values that contradict each other or make no sense are an error
/// of the call that uses them, which names them all.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// use steadfs::{Format, Kind, Overlay, Volume};
///
/// Format::ext4().size(64 << 20).make(&image)?;
/// assert_eq!(Volume::options().probe(&image)?, Kind::Ext4);
///
/// // The image stays as it is; changes are in memory, and gone at the end.
/// let volume = Volume::options()
///     .overlay(Overlay::Memory)
///     .cache_size(16 << 20)
///     .list("noatime")
///     .open(&image)?;
/// volume.write("/greeting", "hello\n")?;
/// drop(volume);
///
/// let volume = Volume::options().read_only(true).open(&image)?;
/// assert!(!volume.try_exists("/greeting")?);
/// drop(volume);
///
/// assert!(Volume::options().check(&image)?.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenVolume {
    /// Options as `-o` takes them.
    list: Vec<String>,
    /// What may have a comma.
    partition: Option<String>,
    overlay: Option<Overlay>,
    journal: Option<PathBuf>,
    devices: Vec<PathBuf>,
    salvage: bool,
}

impl OpenVolume {
    /// Reading and writing, with recovery if it is needed.
    pub fn new() -> Self {
        Self::default()
    }

    /// The volume is only read. A log that needs replay is replayed in memory.
    pub fn read_only(&mut self, read_only: bool) -> &mut Self {
        self.list(if read_only { "ro" } else { "rw" })
    }

    /// The volume is only read, and metadata that reading can do without may be corrupt or missing
    /// ([`OpenReport::warnings`](crate::OpenReport::warnings)).
    pub fn salvage(&mut self, salvage: bool) -> &mut Self {
        self.salvage = salvage;
        self
    }

    /// The volume is on this partition of a disk image (GPT, MBR or Android super): its number, its name in the table, or
    /// the label of the volume in it.
    pub fn partition(&mut self, which: impl Into<String>) -> &mut Self {
        self.partition = Some(which.into());
        self
    }

    /// The volume begins at this byte, a multiple of 512.
    pub fn offset(&mut self, bytes: u64) -> &mut Self {
        self.list(&format!("offset={bytes}"))
    }

    /// The volume's part of the device has this many bytes, a multiple of 512.
    pub fn size_limit(&mut self, bytes: u64) -> &mut Self {
        self.list(&format!("sizelimit={bytes}"))
    }

    /// The image or device is only read, and all changes go there.
    pub fn overlay(&mut self, overlay: Overlay) -> &mut Self {
        self.overlay = Some(overlay);
        self
    }

    /// The image or device of the volume's external journal.
    pub fn journal(&mut self, path: impl Into<PathBuf>) -> &mut Self {
        self.journal = Some(path.into());
        self
    }

    /// Another device of an f2fs volume that is on several: one call for each but the first, in the order that
    /// `steadfs inspect` shows.
    pub fn device(&mut self, path: impl Into<PathBuf>) -> &mut Self {
        self.devices.push(path.into());
        self
    }

    /// Bytes of memory for clean metadata and dirty data, at least [`MIN_CACHE_SIZE`](crate::MIN_CACHE_SIZE). By default a
    /// sixteenth of the memory of the host or cgroup, 32 to 256 MiB.
    pub fn cache_size(&mut self, bytes: u64) -> &mut Self {
        self.list(&format!("cache_size={bytes}"))
    }

    /// How the image or device is read and written.
    pub fn io_engine(&mut self, engine: IoEngine) -> &mut Self {
        self.list(match engine {
            IoEngine::Auto => "io_engine=auto",
            IoEngine::Uring => "io_engine=uring",
            IoEngine::Threads => "io_engine=threads",
        })
    }

    /// Whether I/O goes through the host's page cache, instead of around it.
    pub fn buffered(&mut self, buffered: bool) -> &mut Self {
        self.list(if buffered { "buffered" } else { "direct" })
    }

    /// Adds options as `steadfs mount -o` takes them: `commit=30,noatime`. Later ones override earlier ones; a partition, an
    /// overlay or a journal that a call of its own has set overrides what lists say.
    pub fn list(&mut self, options: &str) -> &mut Self {
        self.list.push(options.to_owned());
        self
    }

    /// The options, for functions that take them.
    ///
    /// # Errors
    /// [`FsError::BadOption`](crate::FsError::BadOption) naming all that are unknown, make no sense, or contradict others.
    pub fn to_options(&self) -> Result<Options, crate::FsError> {
        self.options_with(|_| ())
    }

    fn options_with(&self, last: impl FnOnce(&mut Options)) -> Result<Options, crate::FsError> {
        Options::built(&self.list.join(","), |options| {
            if self.salvage {
                options.set_salvage();
            }
            if let Some(partition) = &self.partition {
                options.partition = Some(partition.clone());
            }
            if let Some(overlay) = &self.overlay {
                options.overlay = Some(overlay.clone());
            }
            if let Some(journal) = &self.journal {
                options.ext4.journal_path = Some(journal.clone());
            }
            if !self.devices.is_empty() {
                options.f2fs.devices.clone_from(&self.devices);
            }
            last(options);
        })
    }

    /// The options for a call that only reads: those that need `ro` are valid.
    fn options_to_read(&self, path: &Path) -> Result<Options, Error> {
        let options = self.options_with(|options| {
            options.ext4.common.read_only = true;
            options.f2fs.common.read_only = true;
        });
        options.map_err(|error| failed(path, error))
    }

    fn options_for(&self, path: &Path) -> Result<Options, Error> {
        self.to_options().map_err(|error| failed(path, error))
    }

    /// Opens the volume on an image file, a block device, or with the feature `nbd` an export of an NBD server.
    ///
    /// # Errors
    /// As [`Volume::open`]; wrong options.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Volume, Error> {
        let path = path.as_ref();
        Volume::open_with(path, &self.options_for(path)?)
    }

    /// Opens the volume on a device of the caller's. `name` stands for it in messages; options about files and devices have no
    /// effect.
    ///
    /// # Errors
    /// As [`OpenVolume::open`].
    pub fn open_on(
        &self,
        device: Arc<dyn Device>,
        name: impl AsRef<Path>,
    ) -> Result<Volume, Error> {
        let name = name.as_ref();
        let options = self.options_for(name)?;
        let cache = options.cache_size.unwrap_or_else(default_cache_size);
        Volume::on(device, name, CacheSizes::of(cache), &options)
    }

    /// Finds the kind of volume by magic numbers. Nothing is written.
    ///
    /// # Errors
    /// [`Error::NoVolume`] with what there is instead; the device cannot be read; wrong options.
    pub fn probe(&self, path: impl AsRef<Path>) -> Result<Kind, Error> {
        let path = path.as_ref();
        probe(path, &self.options_to_read(path)?)
    }

    /// Describes a volume without opening it. Nothing is replayed or written.
    ///
    /// # Errors
    /// As [`OpenVolume::probe`]; its superblock cannot be read.
    pub fn inspect(&self, path: impl AsRef<Path>) -> Result<Inspection, Error> {
        let path = path.as_ref();
        inspect(path, &self.options_to_read(path)?)
    }

    /// Checks a volume as `e2fsck -fn` or `fsck.f2fs --dry-run` does. Nothing is written.
    ///
    /// # Errors
    /// As [`OpenVolume::probe`]; [`Error::Unchecked`]: the volume uses what the checker does not know.
    pub fn check(&self, path: impl AsRef<Path>) -> Result<Checked, Error> {
        self.check_with(path, &mut |_| {})
    }

    /// As [`OpenVolume::check`]. `on_read` is called with the number of bytes of each read.
    ///
    /// # Errors
    /// As [`OpenVolume::check`].
    pub fn check_with(
        &self,
        path: impl AsRef<Path>,
        on_read: &mut dyn FnMut(u64),
    ) -> Result<Checked, Error> {
        let path = path.as_ref();
        check(path, &self.options_to_read(path)?, on_read)
    }
}

impl Volume {
    /// Begins to open a volume otherwise than [`Volume::open`] does.
    pub fn options() -> OpenVolume {
        OpenVolume::new()
    }
}

#[cfg(test)]
mod tests {
    use steadfs_block::MemDevice;

    use super::*;
    use crate::Format;

    #[test]
    fn all_that_is_wrong_is_one_error() {
        let error = Volume::options()
            .partition("a,b")
            .offset(512)
            .cache_size(1)
            .list("nofial")
            .to_options()
            .unwrap_err()
            .to_string();
        for wrong in ["cache_size", "nofial", "partition"] {
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn values_with_commas_are_not_split() {
        let options = Volume::options().partition("a,ro").to_options().unwrap();
        assert_eq!(options.partition.as_deref(), Some("a,ro"));
        assert!(!options.read_only());
        let file = Overlay::File("x,ro".into());
        let options = Volume::options().overlay(file.clone()).to_options();
        assert_eq!(options.unwrap().overlay, Some(file));
    }

    #[test]
    fn each_setting_has_its_option() {
        let options = Volume::options()
            .read_only(true)
            .offset(1024)
            .size_limit(4096)
            .cache_size(8 << 20)
            .io_engine(IoEngine::Threads)
            .buffered(true)
            .list("noatime")
            .to_options()
            .unwrap();
        let list = "ro,offset=1K,sizelimit=4K,cache_size=8M,io_engine=threads,buffered,noatime";
        assert_eq!(options, Options::parse(list).unwrap());
        let mut salvage = Options::default();
        salvage.set_salvage();
        assert_eq!(Volume::options().salvage(true).to_options(), Ok(salvage));
    }

    #[test]
    fn a_device_of_the_callers_is_opened_with_options() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        Format::ext4().size(8 << 20).make(&image).unwrap();
        let bytes = std::fs::read(&image).unwrap();
        let device = MemDevice::from_bytes(&bytes);
        let volume = Volume::options()
            .read_only(true)
            .open_on(Arc::new(device), "memory")
            .unwrap();
        assert!(volume.write("/a", "b").is_err());
        assert!(volume.opened_with().read_only());
    }
}
