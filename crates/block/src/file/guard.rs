//! Detection of loop devices that are set up on an image in use.
//!
//! **Problem.** A lock does not prevent the kernel from writing to an image file through a loop device.
//!
//! **Rule.** After each open(2) of the image, loop devices are checked for a while. Once a writable loop device shows
//! the image, all writes from here are refused: the kernel finds what is durable by then. During that while nothing
//! is acknowledged as durable without one more check. So everything that was acknowledged was durable before the loop
//! device was set up and is seen by the kernel's mount; everything else may be overwritten. A process that may not watch
//! the image, because another one opened it (a service), checks after each request that makes data durable.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use steadfs_rt::{JoinHandle, Mutex, Rank};

use super::claim::LoopDevice;
use super::transfer::{Target, retry};
use crate::{Bio, Done, IoError};

/// First pause between two checks of the loop devices.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Number of checks with the first pause, enough for the time in which a mount(8) sets up its loop device. After them
/// each pause is twice as long as the previous one.
const SHORT_PAUSES: u32 = 200;
/// Longest pause: a process that has had the image open for twice as long does not set up a loop device.
const MAX_PAUSE: Duration = Duration::from_millis(4096);

/// An inotify(7) with an event for every open of the file.
pub(super) fn watch_opens(file: &OwnedFd) -> Result<OwnedFd, std::io::Error> {
    let opens = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    inotify::add_watch(&opens, path, inotify::WatchFlags::OPEN)?;
    Ok(opens)
}

/// Watches for loop devices from its start until it is dropped. Before the start every request that makes data durable
/// is followed by a check.
pub(super) struct ImageGuard {
    watch: Arc<LoopWatch>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ImageGuard {
    /// Prepares to watch: writes to `target`, an image whose opens are those of [`watch_opens`], are refused once a loop
    /// device shows it.
    ///
    /// Without `opens`, every request that makes data durable is followed by a check.
    pub(super) fn prepare(
        target: &Arc<Target>,
        opens: Option<OwnedFd>,
    ) -> Result<Self, std::io::Error> {
        let watch = Arc::new(LoopWatch {
            target: Arc::clone(target),
            opens,
            // A loop device may have been set up since the image was claimed.
            checking: AtomicBool::new(true),
            end: eventfd(0, EventfdFlags::CLOEXEC)?,
            known: Mutex::new(Rank::Leaf, BTreeSet::new()),
        });
        Ok(Self {
            watch,
            thread: Mutex::new(Rank::Leaf, None),
        })
    }

    /// Starts the thread that watches.
    pub(super) fn start(&self) -> Result<(), std::io::Error> {
        let run = Arc::clone(&self.watch);
        let thread = steadfs_rt::try_spawn("image-guard", move || run.run())?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Makes a request that makes data durable succeed only if no loop device shows the image after it.
    pub(super) fn confirm(&self, (bio, done): (Bio, Done)) -> (Bio, Done) {
        if bio.is_plain() {
            return (bio, done);
        }
        let watch = Arc::clone(&self.watch);
        let confirmed: Done = Box::new(move |bio, result| {
            let result = result.and_then(|()| watch.still_ours(&bio));
            done(bio, result);
        });
        (bio, confirmed)
    }
}

impl Drop for ImageGuard {
    fn drop(&mut self) {
        // A write to an eventfd succeeds unless its counter is at 2^64 - 2.
        let sent = retry(|| rustix::io::write(&self.watch.end, &1_u64.to_ne_bytes()));
        debug_assert!(sent.is_ok(), "{sent:?}");
        if let Some(thread) = self.thread.lock().take() {
            thread.join();
        }
    }
}

struct LoopWatch {
    target: Arc<Target>,
    /// inotify: an event for every open of the image. `None` where this process may not watch it.
    opens: Option<OwnedFd>,
    /// Whether the image was opened recently. Set before the event of an open is read from `opens`.
    checking: AtomicBool,
    end: OwnedFd,
    /// Loop devices, by setup, that show other files.
    known: Mutex<BTreeSet<(String, String, String)>>,
}

/// Why a wait ended.
enum WakeCause {
    Opened,
    Time,
    End,
}

impl LoopWatch {
    fn run(&self) {
        let mut checks = 0;
        loop {
            if self.check().is_some() {
                return;
            }
            checks += 1;
            let pause = match self.opens {
                Some(_) => pause_after(checks),
                None => Some(MAX_PAUSE),
            };
            self.checking.store(pause.is_some(), Ordering::SeqCst);
            match self.wait(pause) {
                Ok(WakeCause::Opened) => {
                    self.checking.store(true, Ordering::SeqCst);
                    // Limits the rate of checks if the image is opened repeatedly.
                    steadfs_rt::sleep(FIRST_PAUSE);
                    self.forget_opens();
                    checks = 0;
                }
                Ok(WakeCause::Time) => {}
                Ok(WakeCause::End) => return,
                Err(errno) => {
                    tracing::warn!(%errno, "the image is not watched for loop devices any more");
                    return;
                }
            }
        }
    }

    /// Checks the loop devices. If one shows the image, refuses writes from now on and returns the reason.
    fn check(&self) -> Option<String> {
        let name = self.shown_by()?;
        let why = format!("the kernel has the image as loop device {name}");
        self.target.end_writes(&why);
        Some(why)
    }

    /// Fails for `bio`, which made data durable, if a loop device may have overwritten that.
    fn still_ours(&self, bio: &Bio) -> Result<(), IoError> {
        if let Some(because) = self.target.ended() {
            return Err(IoError::of(bio, because));
        }
        // In this order: if the event of an open has been read already, `checking` is set.
        let opened = self.is_opened();
        if !opened && !self.checking.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.check()
            .map_or(Ok(()), |why| Err(IoError::of(bio, why)))
    }

    /// A writable loop device that shows the image.
    fn shown_by(&self) -> Option<String> {
        let mut known = self.known.lock();
        let mut devices = LoopDevice::all();
        let shows = |device: &LoopDevice| {
            let set_up = device.setup_id();
            if known.contains(&set_up) {
                return false;
            }
            if device.shows(&self.target.fd) {
                return device.takes_writes();
            }
            known.insert(set_up);
            false
        };
        devices.find(shows).map(|device| device.name)
    }

    /// Whether an event of an open is pending. True if that cannot be determined.
    fn is_opened(&self) -> bool {
        let Some(opens) = &self.opens else {
            return true;
        };
        let mut fds = [PollFd::new(opens, PollFlags::IN)];
        retry(|| poll(&mut fds, Some(&Timespec::default()))).map_or(true, |ready| ready > 0)
    }

    fn wait(&self, pause: Option<Duration>) -> Result<WakeCause, Errno> {
        let opens = self.opens.as_ref().unwrap_or(&self.end);
        let mut fds =
            [opens.as_fd(), self.end.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout = pause.map(|pause| Timespec {
            tv_sec: pause.as_secs().cast_signed(),
            tv_nsec: pause.subsec_nanos().into(),
        });
        retry(|| poll(&mut fds, timeout.as_ref()))?;
        let [opened, end] = fds.map(|fd| !fd.revents().is_empty());
        Ok(match (end, opened) {
            (true, _) => WakeCause::End,
            (false, true) => WakeCause::Opened,
            (false, false) => WakeCause::Time,
        })
    }

    /// Reads all pending events of opens; their content is not used.
    fn forget_opens(&self) {
        let mut events = [0; 4096];
        while let Some(opens) = &self.opens
            && retry(|| rustix::io::read(opens, &mut events)).is_ok_and(|len| len > 0)
        {}
    }
}

/// The pause after `checks` checks since an open; `None`: until the next open.
fn pause_after(checks: u32) -> Option<Duration> {
    let doublings = checks.saturating_sub(SHORT_PAUSES);
    let pause = FIRST_PAUSE.saturating_mul(1_u32.checked_shl(doublings)?);
    (pause <= MAX_PAUSE).then_some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_short_at_first_and_end() {
        assert_eq!(pause_after(1), Some(FIRST_PAUSE));
        assert_eq!(pause_after(SHORT_PAUSES), Some(FIRST_PAUSE));
        assert_eq!(pause_after(SHORT_PAUSES + 1), Some(2 * FIRST_PAUSE));
        assert_eq!(pause_after(SHORT_PAUSES + 12), Some(MAX_PAUSE));
        for later in [
            SHORT_PAUSES + 13,
            SHORT_PAUSES + 31,
            SHORT_PAUSES + 32,
            u32::MAX,
        ] {
            assert_eq!(pause_after(later), None);
        }
    }
}
