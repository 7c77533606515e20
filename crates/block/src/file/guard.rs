//! A look-out for loop devices that come to show an image in use.
//!
//! Nothing keeps the kernel from writing to an image file through a loop device: it heeds no lock. So whoever opens the
//! image is followed for a while. Once a loop device that takes writes shows it, nothing more is written from here:
//! what is durable by then the kernel finds. And for that while nothing is acknowledged as durable before one more
//! look: what was durable before a loop device came is found by whoever mounts it, and all else is overwritten.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Stat, fstat, inotify};
use rustix::io::Errno;
use steadfs_rt::{JoinHandle, Mutex, Rank};

use super::claim::LoopDevice;
use super::transfer::{Target, retry};
use crate::{Bio, Done, IoError};

/// First pause before another look at the loop devices.
const FIRST: Duration = Duration::from_millis(1);
/// So many looks are that far apart, in the time in which a mount(8) sets up its loop device; after them each pause is
/// twice as long as the one before.
const CLOSE: u32 = 200;
/// Longest of these pauses: somebody who has had the image open for twice as long does not set up a loop device.
const LAST: Duration = Duration::from_millis(4096);

/// The look-out, until it is dropped.
pub(super) struct Guard {
    lookout: Arc<Lookout>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Has the writes of `target`, an image, end when a loop device shows it.
    pub(super) fn start(target: &Arc<Target>) -> Result<Self, std::io::Error> {
        let image = fstat(&target.fd)?;
        let opens = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let path = format!("/proc/self/fd/{}", target.fd.as_raw_fd());
        inotify::add_watch(&opens, path, inotify::WatchFlags::OPEN)?;
        let lookout = Arc::new(Lookout {
            target: Arc::clone(target),
            image,
            opens,
            // A loop device may have come since the image was claimed.
            looking: AtomicBool::new(true),
            end: eventfd(0, EventfdFlags::CLOEXEC)?,
            known: Mutex::new(Rank::Leaf, BTreeSet::new()),
        });
        let run = Arc::clone(&lookout);
        let thread = steadfs_rt::try_spawn("image-guard", move || run.run())?;
        Ok(Self {
            lookout,
            thread: Some(thread),
        })
    }

    /// Has a request that makes something durable succeed only if the image is still ours behind it.
    pub(super) fn confirm(&self, (bio, done): (Bio, Done)) -> (Bio, Done) {
        if bio.is_plain() {
            return (bio, done);
        }
        let lookout = Arc::clone(&self.lookout);
        let confirmed: Done = Box::new(move |bio, result| {
            let result = result.and_then(|()| lookout.still_ours(&bio));
            done(bio, result);
        });
        (bio, confirmed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // An eventfd takes this unless it has been told 2^64 - 2 times.
        let told = retry(|| rustix::io::write(&self.lookout.end, &1_u64.to_ne_bytes()));
        debug_assert!(told.is_ok(), "{told:?}");
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

struct Lookout {
    target: Arc<Target>,
    image: Stat,
    /// Tells of every open of the image.
    opens: OwnedFd,
    /// Whether somebody opened it a while ago. Set before the news of an open is taken from `opens`.
    looking: AtomicBool,
    end: OwnedFd,
    /// Loop devices, as set up once, that show something else.
    known: Mutex<BTreeSet<(String, String, String)>>,
}

/// Why a look-out looks up.
enum Cause {
    Opened,
    Time,
    End,
}

impl Lookout {
    fn run(&self) {
        let mut looks = 0;
        loop {
            if self.look().is_some() {
                return;
            }
            looks += 1;
            let pause = pause_after(looks);
            self.looking.store(pause.is_some(), Ordering::SeqCst);
            match self.wait(pause) {
                Ok(Cause::Opened) => {
                    self.looking.store(true, Ordering::SeqCst);
                    // Whoever opens it over and over is not looked at all the time.
                    steadfs_rt::sleep(FIRST);
                    self.forget_opens();
                    looks = 0;
                }
                Ok(Cause::Time) => {}
                Ok(Cause::End) => return,
                Err(errno) => {
                    tracing::warn!(%errno, "an image is watched no longer");
                    return;
                }
            }
        }
    }

    /// Ends the writes of an image that a loop device shows, and says why.
    fn look(&self) -> Option<String> {
        let name = self.shown_by()?;
        let why = format!("the loop device {name} shows it to the kernel");
        self.target.end_writes(&why);
        Some(why)
    }

    /// Refuses what `bio` made durable if somebody else may have overwritten it.
    fn still_ours(&self, bio: &Bio) -> Result<(), IoError> {
        if let Some(because) = self.target.ended() {
            return Err(IoError::of(bio, because));
        }
        // In this order: an open whose news is taken already is one that is being looked at.
        let opened = self.is_opened();
        if !opened && !self.looking.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.look().map_or(Ok(()), |why| Err(IoError::of(bio, why)))
    }

    /// A loop device that shows the image and takes writes.
    fn shown_by(&self) -> Option<String> {
        let mut known = self.known.lock();
        let mut devices = LoopDevice::all();
        let shows = |device: &LoopDevice| {
            let set_up = device.set_up();
            if known.contains(&set_up) {
                return false;
            }
            if device.shows(&self.image) {
                return device.takes_writes();
            }
            known.insert(set_up);
            false
        };
        devices.find(shows).map(|device| device.name)
    }

    /// Whether there is news of an open. What cannot be asked may be one.
    fn is_opened(&self) -> bool {
        let mut fds = [PollFd::new(&self.opens, PollFlags::IN)];
        retry(|| poll(&mut fds, Some(&Timespec::default()))).map_or(true, |news| news > 0)
    }

    fn wait(&self, pause: Option<Duration>) -> Result<Cause, Errno> {
        let mut fds = [self.opens.as_fd(), self.end.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout = pause.map(|pause| Timespec {
            tv_sec: pause.as_secs().cast_signed(),
            tv_nsec: pause.subsec_nanos().into(),
        });
        retry(|| poll(&mut fds, timeout.as_ref()))?;
        let [opened, end] = fds.map(|fd| !fd.revents().is_empty());
        Ok(match (end, opened) {
            (true, _) => Cause::End,
            (false, true) => Cause::Opened,
            (false, false) => Cause::Time,
        })
    }

    /// Takes the news of opens: that there were some says enough.
    fn forget_opens(&self) {
        let mut news = [0; 4096];
        while retry(|| rustix::io::read(&self.opens, &mut news)).is_ok_and(|len| len > 0) {}
    }
}

/// How long to wait after so many looks since an open; none: until the next open.
fn pause_after(looks: u32) -> Option<Duration> {
    let doublings = looks.saturating_sub(CLOSE);
    let pause = FIRST.saturating_mul(1_u32.checked_shl(doublings)?);
    (pause <= LAST).then_some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_close_at_first_and_end() {
        assert_eq!(pause_after(1), Some(FIRST));
        assert_eq!(pause_after(CLOSE), Some(FIRST));
        assert_eq!(pause_after(CLOSE + 1), Some(2 * FIRST));
        assert_eq!(pause_after(CLOSE + 12), Some(LAST));
        for later in [CLOSE + 13, CLOSE + 31, CLOSE + 32, u32::MAX] {
            assert_eq!(pause_after(later), None);
        }
    }
}
