//! Making volumes step by step.

#[cfg(target_os = "linux")]
use std::io;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::Arc;

use steadfs_base::Timestamp;
use steadfs_ext4::format::{FormatOptions, FormatReport};
use steadfs_f2fs::format as f2fs;
use steadfs_vfs::FsError;

#[cfg(target_os = "linux")]
use crate::files::FirstProblem;
use crate::format::{format_f2fs_within, format_within};
use crate::image::Window;
use crate::probe::failed;
use crate::{Error, Kind, VolumeDevice};
#[cfg(target_os = "linux")]
use crate::{Fill, FillSource, Filled, Origin, fill};

/// A volume that is to be made: [`Format::ext4`] and its like begin one, [`Format::make`] makes it.
///
/// What has no setting here is set in [`FormatOptions`] or [`F2fsFormatOptions`](crate::F2fsFormatOptions), from which a
/// `Format` can be made.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let (image, other) = (dir.path().join("disk.img"), dir.path().join("phone.img"));
/// # let source = dir.path().join("etc");
/// # std::fs::create_dir(&source)?;
/// # std::fs::write(source.join("hostname"), "box\n")?;
/// use steadfs::{Format, FormatOptions, Volume};
///
/// Format::ext4()
///     .size(64 << 20)
///     .label("root")
///     .block_size(1024)
///     .features("^has_journal")
///     .make(&image)?;
///
/// // Filled with what a directory has.
/// let made = Format::f2fs().size(64 << 20).label("data").make(&other)?;
/// made.fill(&source)?;
/// assert_eq!(Volume::open(&other)?.read_to_string("/hostname")?, "box\n");
///
/// let options = FormatOptions {
///     reserved_percent: 1.0,
///     ..FormatOptions::default()
/// };
/// Format::from(options).size(32 << 20).make(&image)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Format {
    how: How,
    size: Option<u64>,
    partition: Option<String>,
    features: Vec<String>,
    root_owner: Option<(u32, u32)>,
    /// What the kind of volume does not have, with the reason.
    unfit: Option<&'static str>,
}

#[derive(Clone, Debug)]
enum How {
    Ext(Box<FormatOptions>),
    F2fs(Box<f2fs::FormatOptions>),
}

impl From<FormatOptions> for Format {
    fn from(options: FormatOptions) -> Self {
        Self::of(How::Ext(Box::new(options)))
    }
}

impl From<f2fs::FormatOptions> for Format {
    fn from(options: f2fs::FormatOptions) -> Self {
        Self::of(How::F2fs(Box::new(options)))
    }
}

/// A volume that was made.
#[derive(Debug)]
pub struct Formatted {
    path: PathBuf,
    /// How the format's settings fill it.
    #[cfg(target_os = "linux")]
    fill: Fill,
    /// Why it cannot be filled here.
    #[cfg(target_os = "linux")]
    unfillable: Option<&'static str>,
    report: Report,
}

#[derive(Debug)]
enum Report {
    Ext(FormatReport),
    F2fs(f2fs::FormatReport),
}

impl Format {
    fn of(how: How) -> Self {
        let root_owner = match &how {
            How::Ext(options) => options.root_owner,
            How::F2fs(_) => None,
        };
        Self {
            how,
            size: None,
            partition: None,
            features: Vec::new(),
            root_owner,
            unfit: None,
        }
    }

    fn ext(kind: steadfs_ext4::format::Kind) -> Self {
        Self::from(FormatOptions {
            kind,
            ..FormatOptions::default()
        })
    }

    /// An ext4 volume, as mke2fs makes it.
    pub fn ext4() -> Self {
        Self::ext(steadfs_ext4::format::Kind::Ext4)
    }

    /// An ext3 volume.
    pub fn ext3() -> Self {
        Self::ext(steadfs_ext4::format::Kind::Ext3)
    }

    /// An ext2 volume, which has no journal.
    pub fn ext2() -> Self {
        Self::ext(steadfs_ext4::format::Kind::Ext2)
    }

    /// An f2fs volume, as mkfs.f2fs makes it.
    pub fn f2fs() -> Self {
        Self::from(f2fs::FormatOptions::default())
    }

    /// A volume of this kind.
    pub fn kind(kind: Kind) -> Self {
        match kind {
            Kind::Ext2 => Self::ext2(),
            Kind::Ext3 => Self::ext3(),
            Kind::Ext4 => Self::ext4(),
            Kind::F2fs => Self::f2fs(),
        }
    }

    /// Its size in bytes. An image file is created or extended to it. By default the volume is as large as the device.
    pub fn size(&mut self, bytes: u64) -> &mut Self {
        self.size = Some(bytes);
        self
    }

    /// Its label: at most 16 bytes, on f2fs 511 units of UTF-16.
    pub fn label(&mut self, label: impl Into<String>) -> &mut Self {
        match &mut self.how {
            How::Ext(options) => options.label = label.into(),
            How::F2fs(options) => options.label = label.into(),
        }
        self
    }

    /// Its UUID; by default a random one.
    pub fn uuid(&mut self, uuid: [u8; 16]) -> &mut Self {
        match &mut self.how {
            How::Ext(options) => options.uuid = Some(uuid),
            How::F2fs(options) => options.uuid = Some(uuid),
        }
        self
    }

    /// The time of its creation; by default the current one.
    pub fn time(&mut self, time: Timestamp) -> &mut Self {
        match &mut self.how {
            How::Ext(options) => options.time = Some(time),
            How::F2fs(options) => options.time = Some(time.secs),
        }
        self
    }

    /// User and group that own the root directory; by default root.
    pub fn root_owner(&mut self, user: u32, group: u32) -> &mut Self {
        self.root_owner = Some((user, group));
        match &mut self.how {
            How::Ext(options) => options.root_owner = Some((user, group)),
            How::F2fs(options) => options.root_owner = (user, group),
        }
        self
    }

    /// Its block size in bytes, a power of two from 1024 to 65536; by default the size of the volume decides. f2fs has 4096.
    pub fn block_size(&mut self, bytes: u32) -> &mut Self {
        match &mut self.how {
            How::Ext(options) => options.block_size = Some(bytes),
            How::F2fs(_) if bytes == steadfs_f2fs::disk::BLOCK_SIZE as u32 => {}
            How::F2fs(_) => self.unfit = Some("the block size of f2fs is 4096"),
        }
        self
    }

    /// Adds features by the names of mke2fs or mkfs.f2fs, separated by commas; on ext volumes `^` before a name removes it.
    pub fn features(&mut self, list: &str) -> &mut Self {
        self.features.push(list.to_owned());
        self
    }

    /// It is made in this partition of a disk: its number or its name in the table. Nothing outside the partition is touched.
    pub fn partition(&mut self, which: impl Into<String>) -> &mut Self {
        self.partition = Some(which.into());
        self
    }

    /// Makes the volume on an image file, a block device, or with the feature `nbd` an export of an NBD server. Its content is
    /// lost.
    ///
    /// # Errors
    /// Another program uses the device; it is too small or cannot be written; settings that make no sense together.
    pub fn make(&self, path: impl AsRef<Path>) -> Result<Formatted, Error> {
        let path = path.as_ref();
        let refused = |why: String| failed(path, FsError::BadOption(why));
        if let Some(why) = self.unfit {
            return Err(refused(why.to_owned()));
        }
        let part = self.window(path)?;
        let report = match &self.how {
            How::Ext(options) => {
                let mut options = (**options).clone();
                let given = std::mem::take(&mut options.features);
                let all = [given].into_iter().chain(self.features.clone());
                let all: Vec<_> = all.filter(|list| !list.is_empty()).collect();
                options.features = all.join(",");
                let report = format_within(path, part, self.size, &options)?;
                Report::Ext(report)
            }
            How::F2fs(options) => {
                let mut options = (**options).clone();
                for list in &self.features {
                    let set = options.set_features(list);
                    set.map_err(|error| refused(error.to_string()))?;
                }
                let report = format_f2fs_within(path, part, self.size, &options)?;
                Report::F2fs(report)
            }
        };
        Ok(Formatted {
            path: path.to_owned(),
            #[cfg(target_os = "linux")]
            fill: self.fill(part, &report),
            #[cfg(target_os = "linux")]
            unfillable: match &self.how {
                How::Ext(options) if options.journal_device.is_some() => Some(
                    "a volume whose journal is on another device is filled after it was opened with that",
                ),
                How::F2fs(options) if !options.other_devices.is_empty() => {
                    Some("a volume on several devices is filled after it was opened with them")
                }
                _ => None,
            },
            report,
        })
    }

    /// How the volume is filled: with the root and the time that were asked for.
    #[cfg(target_os = "linux")]
    fn fill(&self, part: Option<Window>, report: &Report) -> Fill {
        let (offset, time, uuid, root_perm) = match (&self.how, report) {
            (How::Ext(options), Report::Ext(report)) => {
                let perm = options.root_perms.map(u32::from);
                (options.offset, options.time, report.uuid, perm)
            }
            (How::F2fs(options), Report::F2fs(report)) => {
                let time = options.time.map(|secs| Timestamp { secs, nanos: 0 });
                (0, time, report.uuid, None)
            }
            (How::Ext(_), Report::F2fs(_)) | (How::F2fs(_), Report::Ext(_)) => {
                unreachable!("a report is of the kind that was made")
            }
        };
        Fill {
            offset: part.map_or(offset, |part| part.start),
            root_owner: self.root_owner,
            root_perm,
            origin: time.map(|time| Origin { time, uuid }),
            ..Fill::default()
        }
    }

    /// The part of the disk.
    fn window(&self, path: &Path) -> Result<Option<Window>, Error> {
        let Some(which) = &self.partition else {
            return Ok(None);
        };
        let window = VolumeDevice::open_disk(path)?.partition_window(which)?;
        let why = "a partition of an Android super or sparse image cannot be written";
        window
            .map(Some)
            .ok_or_else(|| failed(path, FsError::OnlyReadable(why.to_owned())))
    }
}

impl Formatted {
    /// What was made of an ext volume; `None`: it is an f2fs volume.
    pub fn ext(&self) -> Option<&FormatReport> {
        match &self.report {
            Report::Ext(report) => Some(report),
            Report::F2fs(_) => None,
        }
    }

    /// What was made of an f2fs volume; `None`: it is an ext volume.
    pub fn f2fs(&self) -> Option<&f2fs::FormatReport> {
        match &self.report {
            Report::Ext(_) => None,
            Report::F2fs(report) => Some(report),
        }
    }

    /// Copies what a directory of the host has into the volume, with owners, modes, times, links and attributes. The root has
    /// the owner that was set, or the directory's. With a time set the volume is reproducible, which needs the feature `sim`.
    ///
    /// # Errors
    /// The volume cannot be opened, has no room, or cannot be closed; the first file that could not be copied.
    #[cfg(target_os = "linux")]
    pub fn fill(&self, from: impl AsRef<Path>) -> io::Result<Filled> {
        let from = Arc::new(FillSource::Directory(from.as_ref().to_owned()));
        if let Some(why) = self.unfillable {
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let (problems, filled) = fill(&self.path, &from, &self.fill, FirstProblem::default());
        let filled = filled?;
        problems.unwrap_or_default().into_result()?;
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Volume;

    #[test]
    fn settings_become_those_of_the_formats() {
        let mut ext = Format::ext3();
        ext.size(8 << 20)
            .label("a")
            .uuid([7; 16])
            .root_owner(1, 2)
            .block_size(2048)
            .features("sparse_super2")
            .features("^resize_inode");
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let made = ext.make(&image).unwrap();
        assert!(made.ext().is_some() && made.f2fs().is_none());
        let volume = Volume::open(&image).unwrap();
        assert_eq!((volume.kind(), volume.block_size()), (Kind::Ext3, 2048));
        let shown = Volume::options().inspect(&image);
        drop(volume);
        let shown = shown.or_else(|_| Volume::options().inspect(&image));
        let shown = shown.unwrap().to_string();
        for part in ["07070707-0707-", "sparse_super2"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("resize_inode"), "{shown}");
    }

    #[test]
    fn what_a_kind_does_not_have_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let error = Format::f2fs().size(64 << 20).block_size(1024).make(&image);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("block size of f2fs"), "{error}");
        let error = Format::f2fs()
            .size(64 << 20)
            .features("nofeature")
            .make(&image);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("nofeature"), "{error}");
        assert!(!image.exists());
    }

    #[test]
    fn a_partition_is_made_and_filled_in_place() {
        const START: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk");
        let source = dir.path().join("source");
        std::fs::create_dir(&source).unwrap();
        std::fs::write(source.join("file"), "content").unwrap();
        // An MBR with one partition from sector 2048, 16384 sectors long.
        let mut disk = vec![0xAA; 10 << 20];
        disk[446..510].fill(0);
        disk[450] = 0x83;
        disk[454..458].copy_from_slice(&2048_u32.to_le_bytes());
        disk[458..462].copy_from_slice(&16384_u32.to_le_bytes());
        disk[510..512].copy_from_slice(&[0x55, 0xAA]);
        std::fs::write(&image, &disk).unwrap();
        let made = Format::ext4().partition("1").make(&image).unwrap();
        made.fill(&source).unwrap();
        let volume = Volume::options().partition("1").open(&image).unwrap();
        assert_eq!(volume.read("/file").unwrap(), b"content");
        volume.close().unwrap();
        let after = std::fs::read(&image).unwrap();
        let (begin, end) = (START as usize, (START + 16384 * 512) as usize);
        assert!(after[..begin] == disk[..begin] && after[end..] == disk[end..]);
    }
}
