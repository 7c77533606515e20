//! Replacing the server of a mount.
//!
//! **Problem.** A mount lives as long as its connection, and a server may have to be replaced: by a newer version, or
//! because it has ended. **Rule.** The server answers every request that it has taken, and takes no more; then it hands
//! the volume over ([`FileSystem::hand_over`]), and its successor reads the next request from the same connection. Until
//! then requests wait in the kernel: programs see a pause. Files that are open, and everything that the kernel caches,
//! stay valid, since the kernel knows files by their inode numbers only.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_vfs::{FileSystem, FsError, LookupCounts};

use super::serve::{Served, session, start_readers};
use super::{MountOptions, Transport};
use crate::error::MountError;
use crate::notify::Notifier;
use crate::session::Negotiated;
use crate::transport::MountThreads;

/// What a server leaves to its successor beside the device and the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Legacy {
    /// The kernel's minor protocol version.
    pub minor: u32,
    /// The mount options in effect.
    pub options: String,
    /// See [`FileSystem::hand_over`].
    pub lookups: LookupCounts,
}

impl Legacy {
    /// Writes it into an empty file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write(&self, file: &File) -> io::Result<()> {
        let mut text = BufWriter::new(file);
        writeln!(text, "{}\n{}", self.minor, self.options)?;
        for (ino, count) in &self.lookups {
            writeln!(text, "{} {count}", ino.0)?;
        }
        text.flush()
    }

    /// Reads what [`Legacy::write`] has written.
    ///
    /// # Errors
    /// Those of the file; `InvalidData`: it is no legacy.
    pub fn read(file: &File) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        (&*file).seek(SeekFrom::Start(0))?;
        let mut lines = BufReader::new(file).lines();
        let mut head = || lines.next().ok_or_else(invalid)?;
        let (minor, options) = (head()?, head()?);
        let mut lookups = LookupCounts::new();
        for line in lines {
            let line = line?;
            let (ino, count) = line.split_once(' ').ok_or_else(invalid)?;
            let number = |text: &str| text.parse::<u64>().map_err(|_| invalid());
            lookups.push((InodeNo(number(ino)?), number(count)?));
        }
        Ok(Self {
            minor: minor.parse().map_err(|_| invalid())?,
            options,
            lookups,
        })
    }
}

impl Served {
    /// Ends the service for a successor, once all requests in service are answered. Not to be called by a service
    /// thread.
    ///
    /// # Errors
    /// As [`FileSystem::hand_over`]: the mount is served as before. `NotSupported`: its requests come through io_uring,
    /// whose queues belong to this process.
    pub fn hand_over(&self) -> Result<Legacy, FsError> {
        if self.transport() == Transport::Uring {
            return Err(FsError::NotSupported(
                "replacing a server whose requests come through io_uring",
            ));
        }
        let session = &self.mount_threads.session;
        self.mount_threads.park();
        let options = session.volume.fs.options();
        match session.hand_over() {
            Ok(lookups) => {
                self.mount_threads.unpark(|| ());
                Ok(Legacy {
                    minor: self.negotiated.minor,
                    options,
                    lookups,
                })
            }
            Err(error) => {
                // Without a thread the connection ends, as if the server had ended.
                let again = self.mount_threads.unpark(|| self.pool.start_readers());
                again.map_err(FsError::no_thread)?;
                Err(error)
            }
        }
    }
}

/// Serves `fs` on a connection that another server has handed over, with the options of the mount.
///
/// # Errors
/// [`MountError::Threads`].
pub fn serve_on(
    fs: Arc<dyn FileSystem>,
    device: OwnedFd,
    options: &MountOptions,
    minor: u32,
) -> Result<Served, MountError> {
    let mount_threads = MountThreads::new(Arc::new(session(fs, options, false)));
    mount_threads.session.succeed(minor);
    let device = Arc::new(device);
    let notifier = Notifier::succeeding(device.clone());
    mount_threads.session.volume.set_notifier(notifier);
    let readers = steadfs_rt::cpu::allowed_cpus().clamp(1, 8);
    let pool = start_readers(&mount_threads, &device, options, readers)?;
    Ok(Served {
        negotiated: Negotiated {
            minor,
            uring: false,
        },
        mount_threads,
        pool,
    })
}
