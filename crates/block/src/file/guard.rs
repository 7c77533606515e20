//! A look-out for loop devices that come to show an image in use.
//!
//! Nothing keeps the kernel from writing to an image file through a loop device: it heeds no lock. So whoever opens the
//! image is followed for a while. Once a loop device that takes writes shows it, nothing more is written from here:
//! what is durable by then the kernel finds, and nobody is told that something is durable which the kernel's file
//! system then overwrites.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Stat, fstat, inotify};
use rustix::io::Errno;
use steadfs_rt::JoinHandle;

use super::claim::LoopDevice;
use super::transfer::{Target, retry};

/// First pause before another look at the loop devices; each is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(1);
/// Longest of these pauses: somebody who has had the image open for twice as long does not set up a loop device.
const LAST: Duration = Duration::from_millis(4096);

/// The look-out, until it is dropped.
pub(super) struct Guard {
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Has the writes of `target`, an image, end when a loop device shows it.
    pub(super) fn start(target: &Arc<Target>) -> Result<Self, std::io::Error> {
        let image = fstat(&target.fd)?;
        let opens = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let path = format!("/proc/self/fd/{}", target.fd.as_raw_fd());
        inotify::add_watch(&opens, path, inotify::WatchFlags::OPEN)?;
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let lookout = Lookout {
            image,
            opens,
            end: Arc::clone(&end),
            known: BTreeSet::new(),
        };
        let target = Arc::clone(target);
        let thread = steadfs_rt::try_spawn("image-guard", move || lookout.run(&target))?;
        Ok(Self {
            end,
            thread: Some(thread),
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // An eventfd takes this unless it has been told 2^64 - 2 times.
        let told = retry(|| rustix::io::write(&self.end, &1_u64.to_ne_bytes()));
        debug_assert!(told.is_ok(), "{told:?}");
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

struct Lookout {
    image: Stat,
    /// Tells of every open of the image.
    opens: OwnedFd,
    end: Arc<OwnedFd>,
    /// Loop devices, as set up once, that show something else.
    known: BTreeSet<(String, String, String)>,
}

/// Why a look-out looks up.
enum Cause {
    Opened,
    Time,
    End,
}

impl Lookout {
    fn run(mut self, target: &Target) {
        // A loop device may have come since the image was claimed.
        let mut pause = Some(FIRST);
        loop {
            if let Some(name) = self.shown_by() {
                target.end_writes(format!("the loop device {name} shows it to the kernel"));
                return;
            }
            pause = match self.wait(pause) {
                Ok(Cause::Opened) => {
                    // Whoever opens it over and over is not looked at all the time.
                    steadfs_rt::sleep(FIRST);
                    self.forget_opens();
                    Some(FIRST)
                }
                Ok(Cause::Time) => pause.map(|pause| pause * 2).filter(|&next| next <= LAST),
                Ok(Cause::End) => return,
                Err(errno) => {
                    tracing::warn!(%errno, "an image is watched no longer");
                    return;
                }
            };
        }
    }

    /// A loop device that shows the image and takes writes.
    fn shown_by(&mut self) -> Option<String> {
        let mut devices = LoopDevice::all();
        let shows = |device: &LoopDevice| {
            let set_up = device.set_up();
            if self.known.contains(&set_up) {
                return false;
            }
            if device.shows(&self.image) {
                return device.takes_writes();
            }
            self.known.insert(set_up);
            false
        };
        devices.find(shows).map(|device| device.name)
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
