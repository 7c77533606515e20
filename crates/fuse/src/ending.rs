//! How a volume was closed, for who waits for that from outside.
//!
//! The kernel takes no result of a mount's end, and a server that nobody started by hand has nobody to tell it to. So
//! the server keeps a file in memory in which the result will stand, and says at each sync from outside where that is
//! found. Whoever is about to unmount opens it meanwhile, and reads it when the volume is closed; the file outlives the
//! server for as long as he has it open.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use steadfs_vfs::FsError;

/// The first byte of a good end, and of a bad one, of which the cause follows.
const GOOD: u8 = b'+';
const BAD: u8 = b'-';
/// Longest cause that is read.
const LONGEST: usize = 4096;
/// How long the result is waited for once the volume is closed: the server has to write it down only.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a server will leave the result.
#[derive(Debug)]
pub(crate) struct Ending {
    file: File,
}

impl Ending {
    /// A place for it, if the host gives one.
    pub(crate) fn new() -> Option<Self> {
        match memfd_create("steadfs-ending", MemfdFlags::CLOEXEC) {
            Ok(file) => Some(Self { file: file.into() }),
            Err(error) => {
                tracing::debug!(%error, "nobody outside will hear how the volume is closed");
                None
            }
        }
    }

    /// How others find it.
    pub(crate) fn place(&self) -> Option<EndingPlace> {
        Some(EndingPlace {
            process: rustix::process::getpid().as_raw_nonzero().get(),
            descriptor: self.file.as_raw_fd(),
            inode: self.file.metadata().ok()?.ino(),
        })
    }

    /// The volume is closed.
    pub(crate) fn tell(&self, result: &Result<(), FsError>) {
        let words = match result {
            Ok(()) => vec![GOOD],
            Err(error) => [&[BAD], error.to_string().as_bytes()].concat(),
        };
        // One write: who reads sees nothing or all of it.
        if let Err(error) = (&self.file).write_all(&words) {
            tracing::error!(%error, "telling how the volume was closed");
        }
    }
}

/// Where the result of closing a volume will stand: a descriptor of its server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndingPlace {
    process: i32,
    descriptor: i32,
    /// The file's: the server may have gone, and its numbers be others'.
    inode: u64,
}

impl EndingPlace {
    /// As the server writes it.
    pub(crate) fn show(self) -> String {
        format!("{} {} {}", self.process, self.descriptor, self.inode)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        Some(Self {
            process: words.next()?.parse().ok()?,
            descriptor: words.next()?.parse().ok()?,
            inode: words.next()?.parse().ok()?,
        })
    }

    /// Opens it; to be called while the volume is mounted. `None`: it cannot be had from here, as from another
    /// namespace of processes.
    pub fn open(self) -> Option<AwaitedEnding> {
        let file = File::open(self.path()).ok()?;
        self.is(&file)
            .then_some(AwaitedEnding { place: self, file })
    }

    fn path(self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", self.process, self.descriptor))
    }

    fn is(self, file: &File) -> bool {
        file.metadata()
            .is_ok_and(|found| found.ino() == self.inode && found.nlink() == 0)
    }
}

/// The result of closing a volume, as soon as it is there.
#[derive(Debug)]
pub struct AwaitedEnding {
    place: EndingPlace,
    file: File,
}

/// How a server has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything is written, and the volume is closed.
    Good,
    /// Not everything could be written; the cause.
    Bad(String),
    /// The server has not told: it was killed, or hangs.
    Unknown,
}

impl AwaitedEnding {
    /// To be called when the server has let the volume go, or is about to.
    pub fn wait(&self) -> Ended {
        let begun = steadfs_rt::now();
        loop {
            // In this order: what it told before it went counts.
            let is_gone = self.is_gone();
            if let Some(told) = self.told() {
                return told;
            }
            if is_gone || begun.elapsed() > PATIENCE {
                return Ended::Unknown;
            }
            steadfs_rt::sleep(Duration::from_millis(1));
        }
    }

    fn told(&self) -> Option<Ended> {
        let mut words = vec![0; LONGEST];
        let len = self.file.read_at(&mut words, 0).ok()?;
        let (first, cause) = words[..len].split_first()?;
        Some(match *first {
            GOOD => Ended::Good,
            _ => Ended::Bad(String::from_utf8_lossy(cause).into_owned()),
        })
    }

    /// Whether the server has ended.
    fn is_gone(&self) -> bool {
        !File::open(self.place.path()).is_ok_and(|file| self.place.is(&file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awaited(ending: &Ending) -> AwaitedEnding {
        let place = ending.place().expect("a file has a number");
        let place = EndingPlace::parse(&place.show()).expect("what was shown");
        place.open().expect("our own")
    }

    #[test]
    fn the_result_is_heard_also_when_the_server_has_gone() {
        let ending = Ending::new().expect("memory");
        let heard = awaited(&ending);
        assert_eq!(heard.told(), None);
        ending.tell(&Err(FsError::Stopped("no device".to_owned())));
        drop(ending);
        let cause = FsError::Stopped("no device".to_owned()).to_string();
        assert_eq!(heard.wait(), Ended::Bad(cause));
        let ending = Ending::new().expect("memory");
        let heard = awaited(&ending);
        ending.tell(&Ok(()));
        assert_eq!(heard.wait(), Ended::Good);
    }

    #[test]
    fn who_goes_without_a_word_is_not_waited_for() {
        let ending = Ending::new().expect("memory");
        let heard = awaited(&ending);
        let place = heard.place;
        drop(ending);
        assert_eq!(heard.wait(), Ended::Unknown);
        assert!(place.open().is_none());
        assert_eq!(EndingPlace::parse("1 2"), None);
    }
}
