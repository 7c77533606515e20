//! Signals to a server unmount its volume.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use steadfs::{MountError, MountHandle, Mounter, SyncError, Unmount};
use steadfs_rt::{Instant, Mutex, Rank};

use crate::failure::code;

/// Interval in which a covered mount is checked again.
const LOOK: Duration = Duration::from_millis(200);
/// Checks after which the volume is synced again: 10 s, in which the kernel ends a write-back that it has begun.
const LOOKS_WITH_SYNC: u32 = 50;
/// Signals that come within this time after the first one belong to its event: systemd sends SIGHUP after SIGTERM
/// (`SendSIGHUP=`), and sudo relays a signal that its child has received from the terminal as well.
const SAME_EVENT: Duration = Duration::from_secs(1);

/// Catches the terminating signals from now on.
///
/// # Errors
/// The system refuses it.
pub fn catch_signals() -> std::io::Result<Signals> {
    Signals::new(terminating_signals())
}

/// Takes the terminating signals without any effect from now on.
///
/// # Errors
/// The system refuses it.
pub fn ignore() -> std::io::Result<()> {
    for signal in terminating_signals() {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// Takes the terminating signals from now on: each is a byte to read from the pipe. Unlike [`catch_signals`], it needs no
/// socket, whose calls the unit of a service refuses.
///
/// # Errors
/// The system refuses it.
pub fn pipe() -> std::io::Result<std::io::PipeReader> {
    let (reader, writer) = std::io::pipe()?;
    for signal in terminating_signals() {
        signal_hook::low_level::pipe::register(signal, OwnedFd::from(writer.try_clone()?))?;
    }
    Ok(reader)
}

/// The terminating signals: SIGHUP is one unless it is ignored (nohup).
fn terminating_signals() -> Vec<i32> {
    let mut list = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        list.push(SIGHUP);
    }
    list
}

/// Whether this program was started with a signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set >> (signal - 1) & 1 == 1)
}

/// The terminating signals of a process that mounts: a thread of its own takes them, so that each has its effect while
/// another thread waits for a server or a device.
///
/// Before the mount is made a signal ends the process as it usually does: nothing is mounted then, and a replay that is
/// cut is repeated. One that comes while the mount is made waits until it is usable. Then a signal unmounts the volume
/// if it is still mounted. A volume in use is detached at once and closed when its last user has closed it; a volume
/// that another mount covers stays until that mount is removed, because the kernel unmounts only the topmost one.
///
/// A second signal ends the program, and what is not written then is lost. It must be another event: it has no effect
/// within a second of the first one ([`SAME_EVENT`]), nor at any time if it is SIGHUP, because the shell and the kernel
/// both send one when a terminal is closed. If the mount is not usable yet it is detached before: its server may hang.
#[derive(Clone)]
pub struct Ending(Arc<Mutex<State>>);

struct State {
    stage: Stage,
    /// When the stage was entered in which a signal has asked for the end.
    asked: Option<Instant>,
    /// What has made the mount, or is about to.
    mounter: Option<Arc<dyn Mounter + Send + Sync>>,
    /// The task that unmounts.
    task: Option<Sender<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is mounted.
    Starting,
    /// The mount is being made.
    Mounting,
    /// The volume is served.
    Usable,
    /// A signal has asked for the end.
    Asked,
}

/// What a signal does.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    /// It ends the process, which has mounted nothing.
    Interrupt,
    /// It waits for the mount, or has asked the task that unmounts.
    Asked,
    /// The end has been asked for already.
    None,
    /// It ends the process.
    GiveUp,
}

impl Ending {
    /// Takes the terminating signals from now on.
    ///
    /// # Errors
    /// The system refuses them or a thread.
    pub fn begin() -> std::io::Result<Self> {
        let mut signals = catch_signals()?;
        let this = Self::new();
        let ending = this.clone();
        let work = move || {
            loop {
                let Some(signal) = signals.wait().last() else {
                    continue;
                };
                ending.take(signal);
            }
        };
        steadfs_rt::try_spawn("signals", work).map(drop)?;
        Ok(this)
    }

    fn new() -> Self {
        let state = State {
            stage: Stage::Starting,
            asked: None,
            mounter: None,
            task: None,
        };
        Self(Arc::new(Mutex::new(Rank::Leaf, state)))
    }

    /// `mounter` is about to make the mount.
    pub fn mounts(&self, mounter: Arc<dyn Mounter + Send + Sync>) {
        let mut state = self.0.lock();
        state.mounter = Some(mounter);
        if state.stage == Stage::Starting {
            state.stage = Stage::Mounting;
        }
    }

    /// The mount is usable; `sync` makes everything durable that the server has.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn usable(
        &self,
        handle: MountHandle,
        sync: impl Fn() -> Result<(), String> + Send + 'static,
    ) -> std::io::Result<()> {
        let (task, requests) = channel();
        let this = self.clone();
        steadfs_rt::try_spawn("unmount", move || {
            while requests.recv().is_ok() {
                if !unmount(&handle, &sync) {
                    this.0.lock().stage = Stage::Usable;
                }
            }
        })
        .map(drop)?;
        self.serve_by(task);
        Ok(())
    }

    /// A signal that came while the mount was made is for this task, as all later ones.
    fn serve_by(&self, task: Sender<()>) {
        let mut state = self.0.lock();
        match state.stage {
            Stage::Asked => request(&task),
            _ => state.stage = Stage::Usable,
        }
        state.task = Some(task);
    }

    fn take(&self, signal: i32) {
        // Locked until the end of the process: no mount is made meanwhile.
        let mut state = self.0.lock();
        match state.signalled(signal, steadfs_rt::now()) {
            Effect::None => {}
            Effect::Asked => {
                drop(state);
                tracing::warn!(
                    "a signal: everything is written, then the volume is unmounted; another SIGTERM or SIGINT ends this at \
                     once, and what is not written then is lost"
                );
            }
            Effect::Interrupt => {
                tracing::warn!("a signal: nothing was mounted");
                let ended = signal_hook::low_level::emulate_default_handler(signal);
                tracing::debug!(?ended, "the signal has no effect");
                give_up();
            }
            Effect::GiveUp => {
                tracing::error!("a second signal: what is not written is lost");
                let unusable = state.unusable();
                drop(state);
                if let Some(mounter) = unusable {
                    mounter.detach();
                }
                give_up();
            }
        }
    }
}

impl State {
    fn signalled(&mut self, signal: i32, now: Instant) -> Effect {
        match self.stage {
            Stage::Starting => return Effect::Interrupt,
            Stage::Asked if signal == SIGHUP || self.is_same_event(now) => return Effect::None,
            Stage::Asked => return Effect::GiveUp,
            Stage::Mounting => {}
            Stage::Usable => self.task.iter().for_each(request),
        }
        self.stage = Stage::Asked;
        self.asked = Some(now);
        Effect::Asked
    }

    /// What has made a mount that is not usable yet, which the end of this process would leave without a server.
    fn unusable(&mut self) -> Option<Arc<dyn Mounter + Send + Sync>> {
        self.mounter.take_if(|_| self.task.is_none())
    }

    fn is_same_event(&self, now: Instant) -> bool {
        self.asked.is_some_and(|asked| now - asked < SAME_EVENT)
    }
}

fn request(task: &Sender<()>) {
    // The task lives as long as the process.
    let _ = task.send(());
}

/// A signal makes everything durable by `sync`, and the volume is served on: for a process that cannot unmount.
///
/// # Errors
/// The system refuses a thread.
pub fn sync_only(
    mut signalled: std::io::PipeReader,
    sync: impl Fn() -> Result<(), String> + Send + 'static,
) -> std::io::Result<()> {
    let work = move || {
        while signalled.read(&mut [0]).is_ok_and(|len| len > 0) {
            match sync() {
                Ok(()) => tracing::warn!("a signal: everything is written; unmount the volume"),
                Err(error) => tracing::error!(%error, "cannot write everything at a signal"),
            }
        }
    };
    steadfs_rt::try_spawn("signals", work).map(drop)
}

fn give_up() -> ! {
    std::process::exit(i32::from(code::MOUNT))
}

/// Whether the mount is detached.
fn unmount(handle: &MountHandle, sync: &dyn Fn() -> Result<(), String>) -> bool {
    let mut is_told = false;
    loop {
        write_all(handle, sync);
        let done = handle
            .unmount(Unmount::IfIdle)
            .or_else(|error| match error {
                MountError::Covered { .. } => Err(error),
                _ => handle.unmount(Unmount::Detach),
            });
        match done {
            // Another process unmounted it, or it is visible in another namespace only.
            Ok(()) | Err(MountError::NotMounted(_)) => return true,
            Err(error @ MountError::Covered { .. }) => {
                if !is_told {
                    tracing::error!(%error, "cannot unmount yet; all data is written, and a second SIGTERM or SIGINT ends the server");
                    is_told = true;
                }
                let mut looks = 0;
                while matches!(handle.check(), Err(MountError::Covered { .. })) {
                    steadfs_rt::sleep(LOOK);
                    // sync(2) does not wait for pages of shared mappings: the kernel may write them back only now.
                    if looks < LOOKS_WITH_SYNC {
                        looks += 1;
                        if let Err(error) = sync() {
                            tracing::debug!(%error, "cannot write all data before the end");
                        }
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, "unmounting");
                return false;
            }
        }
    }
}

fn write_all(handle: &MountHandle, sync: &dyn Fn() -> Result<(), String>) {
    // First the kernel's dirty data.
    match handle.sync() {
        Err(SyncError::Covered(_)) => sync_covered(handle),
        Err(error) => tracing::debug!(%error, "cannot sync the kernel's dirty data"),
        Ok(_) => {}
    }
    if let Err(error) = sync() {
        tracing::error!(%error, "cannot write all data before the end");
    }
}

/// Without the privilege to reach one covered mount, only sync(2) writes back its pages, with those of all volumes.
fn sync_covered(handle: &MountHandle) {
    if let Err(error) = handle.sync_covered() {
        tracing::debug!(%error, "cannot sync the covered mount alone");
        rustix::fs::sync();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use steadfs::KernelMount;

    use super::*;

    /// Has mounted nothing.
    fn mounter() -> Arc<KernelMount> {
        Arc::new(KernelMount::new(Path::new("/")).unwrap())
    }

    fn signalled(ending: &Ending, signal: i32) -> Effect {
        ending.0.lock().signalled(signal, steadfs_rt::now())
    }

    /// The signal comes later than those of the first one's event.
    fn signalled_later(ending: &Ending, signal: i32) -> Effect {
        let later = steadfs_rt::now() + SAME_EVENT;
        ending.0.lock().signalled(signal, later)
    }

    #[test]
    fn a_signal_before_the_mount_ends_the_process() {
        let ending = Ending::new();
        assert_eq!(signalled(&ending, SIGTERM), Effect::Interrupt);
    }

    #[test]
    fn a_signal_while_the_mount_is_made_waits_and_a_second_one_does_not() {
        for is_usable in [false, true] {
            let ending = Ending::new();
            ending.mounts(mounter());
            assert_eq!(signalled(&ending, SIGTERM), Effect::Asked);
            let (task, requests) = channel();
            if is_usable {
                ending.serve_by(task);
                assert!(requests.try_recv().is_ok());
            }
            assert_eq!(signalled_later(&ending, SIGTERM), Effect::GiveUp);
            let detached = ending.0.lock().unusable();
            assert_eq!(detached.is_none(), is_usable);
        }
    }

    #[test]
    fn a_second_signal_does_not_wait_for_the_task_that_unmounts() {
        let ending = Ending::new();
        ending.mounts(mounter());
        let (task, requests) = channel();
        ending.serve_by(task);
        assert!(requests.try_recv().is_err());
        assert_eq!(signalled(&ending, SIGTERM), Effect::Asked);
        assert!(requests.try_recv().is_ok());
        assert_eq!(signalled_later(&ending, SIGINT), Effect::GiveUp);
    }

    #[test]
    fn signals_of_one_event_ask_once_and_end_nothing() {
        let ending = Ending::new();
        ending.mounts(mounter());
        let (task, requests) = channel();
        ending.serve_by(task);
        assert_eq!(signalled(&ending, SIGTERM), Effect::Asked);
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            assert_eq!(signalled(&ending, signal), Effect::None);
        }
        assert_eq!(signalled_later(&ending, SIGHUP), Effect::None);
        assert!(requests.try_recv().is_ok());
        assert!(requests.try_recv().is_err(), "the task was asked twice");
    }
}
