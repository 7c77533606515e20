//! A device on an image file of a host that is not Linux: plain reads and writes by the standard library.
//!
//! Each request is a system call of the task that starts it. The file is locked as the host locks files: one writer, or any
//! number of readers, among programs that use such locks. Block devices are refused, because their sizes and sectors are
//! found differently on each host.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::file_at::{read_exact_at, write_all_at};
use crate::{Bio, Buf, Device, Done, Engine, Geometry, IoError, Op, OpenError, OpenOptions};

/// Smallest unit of a device's offsets and lengths, in bytes.
const SECTOR_BYTES: u64 = 512;
/// Largest transfer of one request, in bytes.
const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// An image file, locked for as long as this lives.
pub struct FileDevice {
    path: PathBuf,
    options: OpenOptions,
    opened: OpenedFile,
}

/// The same: no thread is involved here.
pub type SyncFileDevice = FileDevice;

struct OpenedFile {
    file: File,
    geometry: Geometry,
}

fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |cause| OpenError::Io { path, what, cause }
}

/// A file that was opened and locked.
pub struct ClaimedFile(File);

impl ClaimedFile {
    /// Opens a file as the options say, and locks it; one that is created has no bytes yet.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open(path: &Path, options: &OpenOptions, _claim: bool) -> Result<Self, OpenError> {
        if options.engine == Engine::Uring {
            return Err(OpenError::NoUring {
                path: path.to_owned(),
                reason: "this host has none".to_owned(),
            });
        }
        let file = File::options()
            .read(true)
            .write(!options.read_only)
            .create(options.create.is_some() && !options.read_only)
            .truncate(false)
            .open(path)
            .map_err(failed(path, "cannot be opened"))?;
        lock(path, &file, options)?;
        Ok(Self(file))
    }

    /// Another handle of the file.
    ///
    /// # Errors
    /// The process has too many files open.
    pub fn file(&self) -> io::Result<File> {
        self.0.try_clone()
    }

    /// The first bytes of the file, as many as fit, and its length.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn head(&self, bytes: &mut [u8]) -> io::Result<(usize, u64)> {
        let len = self.0.metadata()?.len();
        let got = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len());
        read_exact_at(&self.0, &mut bytes[..got], 0)?;
        Ok((got, len))
    }
}

impl OpenedFile {
    fn on(path: &Path, options: &OpenOptions, claimed: ClaimedFile) -> Result<Self, OpenError> {
        let ClaimedFile(file) = claimed;
        let examined = file
            .metadata()
            .map_err(failed(path, "cannot be examined"))?;
        if !examined.is_file() {
            let what = match examined.is_dir() {
                true => "a directory",
                false => "a device or pipe",
            };
            return Err(OpenError::WrongKind {
                path: path.to_owned(),
                what,
            });
        }
        let mut size = examined.len();
        if let Some(wanted) = options.create.filter(|wanted| *wanted > size) {
            file.set_len(wanted)
                .map_err(failed(path, "cannot be extended"))?;
            size = wanted;
        }
        let end = options
            .sizelimit
            .map_or(size, |limit| size.min(options.offset.saturating_add(limit)));
        let len = end.saturating_sub(options.offset) / SECTOR_BYTES * SECTOR_BYTES;
        if len == 0 {
            return Err(OpenError::Empty {
                path: path.to_owned(),
                size,
                offset: options.offset,
            });
        }
        let geometry = Geometry {
            size: len,
            logical_block: SECTOR_BYTES as u32,
            read_only: options.read_only,
            discard_granularity: None,
            discard_zeroes: false,
            fua: false,
            max_transfer: MAX_TRANSFER_BYTES,
        };
        Ok(Self { file, geometry })
    }

    fn run(&self, bio: &mut Bio, start: u64) -> io::Result<()> {
        if bio.op == Op::Flush || bio.preflush {
            self.file.sync_data()?;
        }
        let mut at = start + bio.offset;
        match bio.op {
            Op::Read => {
                for buf in &mut bio.bufs {
                    let bytes = buf.make_mut();
                    read_exact_at(&self.file, bytes, at)?;
                    at += bytes.len() as u64;
                }
            }
            Op::Write => {
                for buf in &bio.bufs {
                    write_all_at(&self.file, buf, at)?;
                    at += buf.len() as u64;
                }
            }
            Op::WriteZeroes => {
                let end = at + bio.len;
                let zeros = Buf::zeroed(bio.len.min(u64::from(MAX_TRANSFER_BYTES)) as usize);
                while at < end {
                    let piece = (end - at).min(zeros.len() as u64);
                    write_all_at(&self.file, &zeros[..piece as usize], at)?;
                    at += piece;
                }
            }
            Op::Flush | Op::Discard => {}
        }
        match bio.fua {
            true => self.file.sync_data(),
            false => Ok(()),
        }
    }
}

/// Locks the file, unless the caller has locked it for another part of it.
fn lock(path: &Path, file: &File, options: &OpenOptions) -> Result<(), OpenError> {
    let locked = match (options.beside, options.read_only) {
        (true, _) => return Ok(()),
        (false, true) => file.try_lock_shared(),
        (false, false) => file.try_lock(),
    };
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenError::Busy {
            path: path.to_owned(),
            holder: "another program".to_owned(),
        }),
        Err(TryLockError::Error(cause)) => Err(failed(path, "cannot be locked")(cause)),
    }
}

impl FileDevice {
    /// Opens `path` and locks it. The window from `offset`, at most `sizelimit` bytes long and in whole sectors of 512 bytes,
    /// is the device; the lock covers the whole file.
    ///
    /// # Errors
    /// It is no image file, another program uses it, or the host refuses it.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, OpenError> {
        let claimed = ClaimedFile::open(path.as_ref(), &options, true)?;
        Self::on_claimed(path, options, claimed)
    }

    /// As [`FileDevice::open`], on a file that is open and locked.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn on_claimed(
        path: impl AsRef<Path>,
        options: OpenOptions,
        claimed: ClaimedFile,
    ) -> Result<Self, OpenError> {
        let path = path.as_ref();
        Ok(Self {
            path: path.to_owned(),
            opened: OpenedFile::on(path, &options, claimed)?,
            options,
        })
    }

    /// The same: there are no threads.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_idle(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, OpenError> {
        Self::open(path, options)
    }

    /// Does nothing: there are no threads.
    pub fn start_threads(&self) {}

    /// Logical sector size in bytes.
    pub fn sector_size(&self) -> u32 {
        SECTOR_BYTES as u32
    }

    /// Identity of the image file, which is not known here.
    pub fn image_id(&self) -> Option<(u64, u64)> {
        None
    }

    /// The bytes of the file behind the last whole sector, which are no part of the device: less than a sector.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn tail(&self) -> io::Result<Vec<u8>> {
        let opened = &self.opened;
        let end = self.options.offset + opened.geometry.size;
        let left = opened.file.metadata()?.len().saturating_sub(end);
        let mut bytes = vec![0; left.min(SECTOR_BYTES - 1) as usize];
        read_exact_at(&opened.file, &mut bytes, end)?;
        Ok(bytes)
    }

    /// Gives up the lock: the device is not used any more.
    pub fn give_up_claims(&self) {
        if let Err(error) = self.opened.file.unlock() {
            tracing::debug!(%error, "the image stays locked until it is closed");
        }
    }

    /// A description of the device.
    pub fn describe(&self) -> String {
        let (path, size) = (self.path.display(), self.opened.geometry.size);
        let from = self.options.offset;
        format!("image file {path}, {size} bytes from byte {from}, through the host's cache")
    }
}

impl Device for FileDevice {
    fn geometry(&self) -> &Geometry {
        &self.opened.geometry
    }

    fn start(&self, mut bio: Bio, done: Done) {
        let opened = &self.opened;
        let result = opened.geometry.check(&bio).and_then(|()| {
            let ran = opened.run(&mut bio, self.options.offset);
            ran.map_err(|error| IoError::of(&bio, error.to_string()))
        });
        done(bio, result);
    }

    fn make_writable(&self) -> Result<(), String> {
        if !self.geometry().read_only {
            return Ok(());
        }
        // The path may be another file by now, and what was read of this one would be written there.
        Err("it was opened for reading; open it again for writing".to_owned())
    }
}
