//! Passing the result of closing a volume to the process that unmounts it.
//!
//! Problem: the kernel discards the result of DESTROY, and a server that was not started from a shell has no terminal
//! to report to. Rule: the server keeps a memfd, writes the result of closing the volume there, and reports the memfd's
//! number in its answer to the SYNC ioctl. A process that is about to unmount opens the memfd through /proc first and
//! reads it when the volume is closed; its descriptor keeps the memfd alive after the server has exited. A contained server
//! cannot be seen in /proc by its user, so its broker makes the memfd and keeps it open.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use steadfs_vfs::FsError;

use crate::host;
use crate::named_file::NamedFile;

/// First byte of the memfd: the volume was closed cleanly, or closing failed and the cause follows.
const CLEAN: u8 = b'+';
const FAILED: u8 = b'-';
/// Longest result that is read, in bytes.
const RESULT_BYTES_MAX: usize = 4096;
/// How long to wait for the result once the volume is closed: the server only has to write it to the memfd.
const RESULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The memfd that a server writes the result to.
#[derive(Debug)]
pub(crate) struct CloseResultFile {
    file: File,
    /// The process that other processes find it in, and its descriptor there.
    process: i32,
    descriptor: i32,
}

impl CloseResultFile {
    /// `None` if the memfd cannot be created: the result is then not reported.
    pub(crate) fn new() -> Option<Self> {
        match host::close_result() {
            Ok((file, process, descriptor)) => Some(Self {
                file: file.into(),
                process,
                descriptor,
            }),
            Err(error) => {
                tracing::debug!(%error, "cannot create a memfd: umount will not report how the volume was closed");
                None
            }
        }
    }

    /// How another process finds it.
    pub(crate) fn fd(&self) -> Option<CloseResultFd> {
        Some(CloseResultFd {
            process: self.process,
            descriptor: self.descriptor,
            inode: self.file.metadata().ok()?.ino(),
        })
    }

    /// Records the result of closing the volume.
    pub(crate) fn record(&self, result: &Result<(), FsError>) {
        let bytes = match result {
            Ok(()) => vec![CLEAN],
            Err(error) => [&[FAILED], error.to_string().as_bytes()].concat(),
        };
        // A single write: a reader finds either nothing or all of it.
        if let Err(error) = (&self.file).write_all(&bytes) {
            tracing::error!(%error, "cannot record the result of closing the volume");
        }
    }
}

/// A server's [`CloseResultFile`], for other processes: its number in /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseResultFd {
    process: i32,
    descriptor: i32,
    /// The memfd's inode: after the server has exited, another process may have its pid and descriptor number.
    inode: u64,
}

impl CloseResultFd {
    /// As the answer to the SYNC ioctl has it.
    pub(crate) fn show(self) -> String {
        format!("{} {} {}", self.process, self.descriptor, self.inode)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ');
        Some(Self {
            process: numbers.next()?.parse().ok()?,
            descriptor: numbers.next()?.parse().ok()?,
            inode: numbers.next()?.parse().ok()?,
        })
    }

    /// The process that has it open: the server, or the one that mounts for it, which ends after it.
    pub fn process(self) -> i32 {
        self.process
    }

    /// Opens the memfd; to be called while the volume is mounted. `None` if it cannot be opened, for example from
    /// another PID namespace.
    pub fn open(self) -> Option<PendingCloseResult> {
        let file = self.find()?.open().ok()?;
        Some(PendingCloseResult { fd: self, file })
    }

    /// The memfd, if it is there and open. The server may have named anything: nothing else is opened.
    fn find(self) -> Option<NamedFile> {
        let found = NamedFile::find(&self.path()).ok()?;
        let is_it = found.id().inode == self.inode && found.links() == 0;
        is_it.then_some(found)
    }

    fn path(self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", self.process, self.descriptor))
    }
}

/// An open [`CloseResultFd`], which the server will write the result to.
#[derive(Debug)]
pub struct PendingCloseResult {
    fd: CloseResultFd,
    file: File,
}

/// How a server has closed its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseResult {
    /// Everything is written.
    Clean,
    /// Closing failed with this cause: recent writes may be lost.
    Failed(String),
    /// The server has not recorded a result: it was killed, or hangs.
    Unknown,
}

impl PendingCloseResult {
    /// Waits for the result; to be called once the server has closed the volume or is closing it.
    pub fn wait(&self) -> CloseResult {
        let begun = steadfs_rt::now();
        loop {
            // First whether it has exited, then the result: a result recorded just before the exit counts.
            let is_gone = self.is_gone();
            if let Some(result) = self.recorded() {
                return result;
            }
            if is_gone || begun.elapsed() > RESULT_TIMEOUT {
                return CloseResult::Unknown;
            }
            steadfs_rt::sleep(Duration::from_millis(1));
        }
    }

    fn recorded(&self) -> Option<CloseResult> {
        let mut bytes = vec![0; RESULT_BYTES_MAX];
        let len = self.file.read_at(&mut bytes, 0).ok()?;
        let (first, cause) = bytes[..len].split_first()?;
        Some(match *first {
            CLEAN => CloseResult::Clean,
            _ => CloseResult::Failed(String::from_utf8_lossy(cause).into_owned()),
        })
    }

    /// Whether the server has exited.
    fn is_gone(&self) -> bool {
        self.fd.find().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    use rustix::fs::{CWD, FileType, OFlags};

    fn open(file: &CloseResultFile) -> PendingCloseResult {
        let fd = file.fd().expect("an open memfd has an inode number");
        let fd = CloseResultFd::parse(&fd.show()).expect("what was shown");
        fd.open().expect("our own descriptor")
    }

    #[test]
    fn the_result_can_be_read_after_the_server_has_exited() {
        let file = CloseResultFile::new().expect("memory");
        let pending = open(&file);
        assert_eq!(pending.recorded(), None);
        file.record(&Err(FsError::Stopped("no device".to_owned())));
        drop(file);
        let cause = FsError::Stopped("no device".to_owned()).to_string();
        assert_eq!(pending.wait(), CloseResult::Failed(cause));
        let file = CloseResultFile::new().expect("memory");
        let pending = open(&file);
        file.record(&Ok(()));
        assert_eq!(pending.wait(), CloseResult::Clean);
    }

    #[test]
    fn a_fifo_that_a_server_names_is_not_opened() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0).expect("a FIFO");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let fifo = File::from(rustix::fs::open(&path, flags, mode).expect("no wait"));
        std::fs::remove_file(&path).expect("a name less");
        let named = CloseResultFd {
            process: std::process::id().cast_signed(),
            descriptor: fifo.as_raw_fd(),
            inode: fifo.metadata().expect("an inode").ino(),
        };
        assert!(named.open().is_none(), "an open(2) waits for a writer");
    }

    #[test]
    fn the_wait_ends_when_the_server_exits_without_a_result() {
        let file = CloseResultFile::new().expect("memory");
        let pending = open(&file);
        let fd = pending.fd;
        drop(file);
        assert_eq!(pending.wait(), CloseResult::Unknown);
        assert!(fd.open().is_none());
        assert_eq!(CloseResultFd::parse("1 2"), None);
    }
}
