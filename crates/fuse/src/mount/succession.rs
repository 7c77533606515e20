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
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_vfs::{FileSystem, FsError, LookupCounts};

use super::serve::{Served, record_to, session, stand_by, start_readers};
use super::{MountOptions, Transport};
use crate::error::MountError;
use crate::notify::{Notifier, resend};
use crate::record::{Beginning, Record};
use crate::session::Negotiated;
use crate::transport::MountThreads;

/// What a server leaves to its successor beside the device and the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Legacy {
    /// The kernel's minor protocol version.
    pub minor: u32,
    /// The kernel sends requests again that a server had taken.
    pub resends: bool,
    /// The mount has been read-only since it was made.
    pub only_read: bool,
    /// Its calls are recorded.
    pub recorded: bool,
    /// The mount options in effect.
    pub options: String,
    /// See [`FileSystem::hand_over`]; `None`: the server has ended without handing over.
    pub lookups: Option<LookupCounts>,
}

/// How long a server that takes no requests waits until the kernel has dropped pages that it was notified of.
const NOTIFY_WAIT_MAX: Duration = Duration::from_millis(100);
/// Words behind the protocol version.
const RESENDS: &str = "resends";
const ONLY_READ: &str = "only-read";
const RECORDED: &str = "recorded";
const ENDED: &str = "ended";

impl Legacy {
    /// Everything but the lookup counts, as text.
    pub(crate) fn head(&self) -> String {
        let mut head = self.minor.to_string();
        for (word, is) in [
            (RESENDS, self.resends),
            (ONLY_READ, self.only_read),
            (RECORDED, self.recorded),
            (ENDED, self.lookups.is_none()),
        ] {
            if is {
                head.push(' ');
                head.push_str(word);
            }
        }
        format!("{head}\n{}\n", self.options)
    }

    /// Writes it into an empty file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write(&self, file: &File) -> io::Result<()> {
        let mut text = BufWriter::new(file);
        text.write_all(self.head().as_bytes())?;
        for (ino, count) in self.lookups.iter().flatten() {
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
        let (first, options) = (head()?, head()?);
        let mut words = first.split(' ');
        let minor = words.next().and_then(|minor| minor.parse().ok());
        let words: Vec<&str> = words.collect();
        let known = [RESENDS, ONLY_READ, RECORDED, ENDED];
        if words.iter().any(|word| !known.contains(word)) {
            // Of another version, which knows what follows from it.
            return Err(invalid());
        }
        let mut lookups = LookupCounts::new();
        for line in lines {
            let line = line?;
            let (ino, count) = line.split_once(' ').ok_or_else(invalid)?;
            let number = |text: &str| text.parse::<u64>().map_err(|_| invalid());
            lookups.push((InodeNo(number(ino)?), number(count)?));
        }
        Ok(Self {
            minor: minor.ok_or_else(invalid)?,
            resends: words.contains(&RESENDS),
            only_read: words.contains(&ONLY_READ),
            recorded: words.contains(&RECORDED),
            options,
            lookups: (!words.contains(&ENDED)).then_some(lookups),
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
        if session.volume.writers.denies_any() {
            // Its thread would be waited for, without a way to end it.
            return Err(FsError::InUse(
                "a file is being made a verity file; try again later".to_owned(),
            ));
        }
        self.mount_threads.park();
        let options = session.volume.fs.options();
        // The kernel may wait for a read that is taken by a thread only.
        let handed_over = match session.volume.settle_notifications(NOTIFY_WAIT_MAX) {
            true => session.hand_over(),
            false => Err(FsError::InUse(
                "a page that is being read was written directly; try again".to_owned(),
            )),
        };
        match handed_over {
            Ok(lookups) => {
                self.mount_threads.unpark(|| ());
                Ok(Legacy {
                    minor: self.negotiated.minor,
                    resends: self.negotiated.resends,
                    only_read: session.volume.only_read(),
                    recorded: session.volume.recorder().is_some(),
                    options,
                    lookups: Some(lookups),
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

/// What a predecessor has left to the server that continues its mount.
pub struct Inheritance<'a> {
    /// The connection.
    pub device: OwnedFd,
    /// Its legacy.
    pub legacy: &'a Legacy,
    /// The file for the records of calls, if they are to be recorded.
    pub record_file: Option<OwnedFd>,
    /// What it has recorded, if it has ended without handing over: the volume was restored to that.
    pub record: Option<&'a Record>,
}

/// Serves `fs` on the connection of another server, which has handed over or ended, with the options of the mount.
/// `usable` is called before the first request is taken: from then on what the predecessor has left is out of date.
///
/// # Errors
/// [`MountError::Threads`]; [`MountError::Device`]: the kernel does not send the requests again that the other server had
/// taken; [`MountError::Record`].
pub fn serve_on(
    fs: Arc<dyn FileSystem>,
    inheritance: Inheritance<'_>,
    options: &MountOptions,
    usable: impl FnOnce(),
) -> Result<Served, MountError> {
    let Inheritance {
        device,
        legacy,
        record_file,
        record,
    } = inheritance;
    let mount_threads = MountThreads::new(Arc::new(session(fs, options, false)));
    if let Some(file) = record_file {
        let beginning = match (record, &legacy.lookups) {
            (Some(record), _) => Beginning::Restored(record),
            (None, counts) => Beginning::Durable(counts.as_deref().unwrap_or_default()),
        };
        record_to(&mount_threads.session, file, &beginning)?;
    }
    let (minor, resends) = (legacy.minor, legacy.resends);
    mount_threads.session.succeed(minor, resends);
    mount_threads.session.volume.writers.inherit();
    let device = Arc::new(device);
    if legacy.lookups.is_none() {
        // Before any request is taken here.
        resend(&device).map_err(|error| MountError::Device(error.to_string()))?;
    }
    let notifier = Notifier::succeeding(device.clone());
    mount_threads.session.volume.set_notifier(notifier);
    let negotiated = Negotiated {
        minor,
        uring: false,
        resends,
    };
    stand_by(&mount_threads.session, negotiated, legacy.only_read);
    usable();
    if let Some(record) = record {
        // The kernel has parts of their listings, whose names may have other places now.
        mount_threads
            .session
            .volume
            .listings_dropped(&record.state().dirs());
    }
    let readers = steadfs_rt::cpu::allowed_cpus().clamp(1, 8);
    let pool = start_readers(&mount_threads, &device, options, readers)?;
    Ok(Served {
        negotiated,
        mount_threads,
        pool,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legacy_is_read_as_it_was_written_and_one_of_another_version_is_not() {
        let legacy = Legacy {
            minor: 45,
            resends: true,
            only_read: false,
            recorded: true,
            options: "rw,noatime".to_owned(),
            lookups: Some(vec![(InodeNo(2), 7)]),
        };
        let file = tempfile::tempfile().unwrap();
        legacy.write(&file).unwrap();
        assert_eq!(Legacy::read(&file).unwrap(), legacy);
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(b"45 resends folded\nrw\n").unwrap();
        let error = Legacy::read(&file).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
