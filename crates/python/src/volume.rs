//! An open volume.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use steadfs::{
    KEYS_FILE, Options, SetAttr, SetTime, StagedVolume, Timestamp, VolumeDevice, VolumeKey,
};

use crate::copy::{Way, copy};
use crate::error::{busy, of_io, of_volume, only_readable};
use crate::file::{Access, File};
use crate::handle::Handle;
use crate::listing::{Listing, Walk};
use crate::stat::{Stat, Time, stat};

/// The volume that a Python object has open.
pub enum Opened {
    /// Changes are written as they are made.
    Direct(Box<steadfs::Volume>),
    /// All changes are written together when it is closed.
    Staged(Box<StagedVolume>),
}

impl Opened {
    fn volume(&self) -> &steadfs::Volume {
        match self {
            Self::Direct(volume) => volume,
            Self::Staged(staged) => staged.volume(),
        }
    }
}

/// An open volume, with paths in bytes: `steadfs.Volume` is the one for users.
#[pyclass(frozen, module = "steadfs._steadfs")]
pub struct Volume {
    handle: Handle<Opened>,
    image: PathBuf,
}

/// A path on the volume.
pub fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn bytes<'py>(py: Python<'py>, text: &OsStr) -> Bound<'py, PyBytes> {
    PyBytes::new(py, text.as_bytes())
}

/// How a volume is opened.
struct HowOpened {
    write: bool,
    staged: bool,
    salvage: bool,
}

/// The options of a list as `-o` takes it, with the partition apart, whose name may have commas.
pub fn options_of(
    image: &Path,
    list: &str,
    partition: Option<String>,
    write: bool,
) -> PyResult<Options> {
    let invalid = |error: steadfs::FsError| PyValueError::new_err(error.to_string());
    let parsed = match write {
        true => Options::parse_for(list, image),
        false => Options::parse_to_read(list),
    };
    let mut options = parsed.map_err(invalid)?;
    if write && options.read_only() {
        let why = "the option ro contradicts the mode r+: open the volume with the mode r";
        return Err(PyValueError::new_err(why));
    }
    if partition.is_some() {
        if options.partition.is_some() || options.offset > 0 || options.size_limit.is_some() {
            let why =
                "partition= and an option that says where the volume is contradict each other";
            return Err(PyValueError::new_err(why));
        }
        options.partition = partition;
    }
    options.set_brief();
    Ok(options)
}

fn open(image: &Path, mut options: Options, how: &HowOpened) -> PyResult<Opened> {
    if how.salvage {
        options.set_salvage();
    }
    let opened = match how.staged {
        false => steadfs::Volume::open_with(image, &options)
            .map(|volume| Opened::Direct(Box::new(volume))),
        true => VolumeDevice::open_staged(image, &options)
            .and_then(VolumeDevice::staged_volume)
            .map(|staged| Opened::Staged(Box::new(staged))),
    };
    let opened = opened.map_err(|error| of_volume(&error))?;
    match opened.volume().report().read_only_because.first() {
        Some(why) if how.write => Err(only_readable(image, why)),
        _ => Ok(opened),
    }
}

impl Volume {
    /// Calls `work` with the volume, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&steadfs::Volume) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        let opened = self.handle.get()?;
        py.detach(|| work(opened.volume())).map_err(of_io)
    }
}

fn set_time(time: Option<Time>) -> Option<SetTime> {
    time.map(|(secs, nanos)| SetTime::At(Timestamp { secs, nanos }))
}

#[pymethods]
impl Volume {
    #[new]
    #[pyo3(signature = (image, write, staged, salvage, partition, options))]
    fn open(
        py: Python<'_>,
        image: PathBuf,
        write: bool,
        staged: bool,
        salvage: bool,
        partition: Option<String>,
        options: &str,
    ) -> PyResult<Self> {
        let how = HowOpened {
            write,
            staged,
            salvage,
        };
        let opened = py.detach(|| {
            let options = options_of(&image, options, partition, write)?;
            open(&image, options, &how)
        })?;
        Ok(Self {
            handle: Handle::new("volume", opened),
            image,
        })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Whether this process is a forked child of the one that opened it.
    #[getter]
    fn of_parent(&self) -> bool {
        self.handle.is_of_parent()
    }

    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        Ok(self.handle.get()?.volume().kind().name())
    }

    #[getter]
    fn block_size(&self) -> PyResult<u32> {
        Ok(self.handle.get()?.volume().block_size())
    }

    /// What the user should know about how it was opened.
    #[getter]
    fn warnings(&self) -> PyResult<Vec<String>> {
        let opened = self.handle.get()?;
        let report = opened.volume().report();
        let check = report.check_because.map(str::to_owned);
        let passed = report.defaults_passed_over.iter().cloned();
        Ok(report
            .warnings
            .iter()
            .cloned()
            .chain(passed)
            .chain(check)
            .collect())
    }

    /// Blocks of the journal that were replayed, and files that roll-forward recovered.
    #[getter]
    fn recovered(&self) -> PyResult<(u64, u64)> {
        let opened = self.handle.get()?;
        let report = opened.volume().report();
        Ok((report.replayed_blocks, report.recovered_files))
    }

    /// Writes everything and closes the volume.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(opened) = self.handle.take()? else {
            return Ok(());
        };
        if let Opened::Direct(volume) = &*opened {
            return py
                .detach(|| volume.close())
                .map_err(|error| of_volume(&error));
        }
        match Arc::try_unwrap(opened) {
            Ok(Opened::Staged(staged)) => py
                .detach(|| staged.apply())
                .map_err(|error| of_volume(&error)),
            Ok(Opened::Direct(_)) => Ok(()),
            Err(opened) => {
                self.handle.put_back(opened);
                Err(busy(
                    &self.image,
                    "another thread is in a call on the volume",
                ))
            }
        }
    }

    /// Closes a staged volume without its changes.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(opened) = self.handle.take()? {
            py.detach(|| drop(opened));
        }
        Ok(())
    }

    /// Adds the key of encrypted files: a file with its bytes, and its descriptor for policies of version 1.
    fn add_key(&self, py: Python<'_>, file: PathBuf, descriptor: Option<[u8; 8]>) -> PyResult<()> {
        self.with(py, |volume| {
            let key = VolumeKey::read(&file, descriptor)?;
            let command = key.command();
            Ok(volume.fs().write_control(KEYS_FILE, command.as_bytes())?)
        })
    }

    fn open_file(
        &self,
        py: Python<'_>,
        path: &[u8],
        mode: &str,
        permissions: u32,
    ) -> PyResult<File> {
        let access = Access::parse(mode)?;
        let opened = self.handle.get()?;
        py.detach(|| File::open(opened.volume(), path, access, permissions))
    }

    fn stat(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<Stat> {
        let path = path_of(path);
        self.with(py, |volume| match follow {
            true => volume.metadata(path).map(|found| stat(&found)),
            false => volume.symlink_metadata(path).map(|found| stat(&found)),
        })
    }

    fn list_dir(&self, py: Python<'_>, path: &[u8]) -> PyResult<Listing> {
        let listed = self.with(py, |volume| volume.read_dir(path_of(path)))?;
        Ok(Listing::new(listed))
    }

    fn walk(&self, py: Python<'_>, path: &[u8], attributes: bool) -> PyResult<Walk> {
        let walk = self.with(py, |volume| volume.walk(path_of(path)))?;
        Ok(Walk::new(walk, attributes))
    }

    fn read_link<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.with(py, |volume| volume.read_link(path_of(path)))?;
        Ok(bytes(py, target.as_os_str()))
    }

    fn create_dir(&self, py: Python<'_>, path: &[u8], permissions: u32) -> PyResult<()> {
        self.with(py, |volume| {
            volume.create_dir_with(path_of(path), permissions)
        })
    }

    fn create_node(&self, py: Python<'_>, path: &[u8], mode: u32, rdev: u32) -> PyResult<()> {
        self.with(py, |volume| volume.create_node(path_of(path), mode, rdev))
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], link: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.symlink(path_of(target), path_of(link)))
    }

    fn hard_link(&self, py: Python<'_>, file: &[u8], name: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.hard_link(path_of(file), path_of(name)))
    }

    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.rename(path_of(from), path_of(to)))
    }

    fn remove_file(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.remove_file(path_of(path)))
    }

    fn remove_dir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.remove_dir(path_of(path)))
    }

    fn remove_tree(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.remove_dir_all(path_of(path)))
    }

    fn set_owner(
        &self,
        py: Python<'_>,
        path: &[u8],
        owner: (Option<u32>, Option<u32>),
        follow: bool,
    ) -> PyResult<()> {
        let set = SetAttr {
            uid: owner.0,
            gid: owner.1,
            ..SetAttr::default()
        };
        self.with(py, |volume| {
            volume.set_attributes(path_of(path), follow, &set)
        })
    }

    fn set_permissions(&self, py: Python<'_>, path: &[u8], permissions: u32) -> PyResult<()> {
        self.with(py, |volume| {
            volume.set_permissions(path_of(path), permissions)
        })
    }

    /// Sets the times of access and content: `None` leaves one.
    fn set_times(
        &self,
        py: Python<'_>,
        path: &[u8],
        times: (Option<Time>, Option<Time>),
        follow: bool,
    ) -> PyResult<()> {
        let set = SetAttr {
            atime: set_time(times.0),
            mtime: set_time(times.1),
            ..SetAttr::default()
        };
        self.with(py, |volume| {
            volume.set_attributes(path_of(path), follow, &set)
        })
    }

    fn xattrs<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        follow: bool,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let found = self.with(py, |volume| match follow {
            true => volume.xattrs(path_of(path)),
            false => volume.symlink_xattrs(path_of(path)),
        })?;
        let pair = |(name, value): (_, Vec<u8>)| {
            let name: std::ffi::OsString = name;
            (bytes(py, &name), PyBytes::new(py, &value))
        };
        Ok(found.into_iter().map(pair).collect())
    }

    fn set_xattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        name: &[u8],
        value: Option<&[u8]>,
    ) -> PyResult<()> {
        let name = OsStr::from_bytes(name);
        self.with(py, |volume| volume.set_xattr(path_of(path), name, value))
    }

    /// Copies from the host (`in`) or to it. Returns the number of files.
    #[pyo3(signature = (from_path, to_path, inwards, max_bytes))]
    fn copy(
        &self,
        py: Python<'_>,
        from_path: PathBuf,
        to_path: PathBuf,
        inwards: bool,
        max_bytes: Option<u64>,
    ) -> PyResult<u64> {
        let opened = self.handle.get()?;
        let way = if inwards { Way::In } else { Way::Out };
        py.detach(|| copy(opened.volume(), (&from_path, &to_path), way, max_bytes))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, steadfs::Volume::sync)
    }

    /// Block size, blocks, free and available ones, inodes and free ones, longest name.
    fn usage(&self, py: Python<'_>) -> PyResult<(u32, u64, u64, u64, u64, u64, u32)> {
        let found = self.with(py, steadfs::Volume::usage)?;
        Ok((
            found.block_size,
            found.blocks,
            found.blocks_free,
            found.blocks_available,
            found.files,
            found.files_free,
            found.name_max,
        ))
    }
}
