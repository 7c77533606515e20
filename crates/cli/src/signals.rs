//! Signals to a server unmount its volume.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use steadfs::{MountError, MountHandle, SyncError, Unmount};

use crate::failure::code;

/// Interval in which a covered mount is checked again.
const LOOK: Duration = Duration::from_millis(200);
/// Checks after which the volume is synced again: 10 s, in which the kernel ends a write-back that it has begun.
const LOOKS_WITH_SYNC: u32 = 50;

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

/// A signal unmounts the volume if it is still mounted. A volume in use is detached at once and closed when its last
/// user has closed it; a volume that another mount covers stays until that mount is removed, because the kernel
/// unmounts only the topmost one. A second signal ends the program: data written before the first is durable.
///
/// `sync` makes everything durable that the server has.
///
/// # Errors
/// The system refuses a thread.
pub fn end(
    mut signals: Signals,
    handle: MountHandle,
    sync: impl Fn() -> Result<(), String> + Send + 'static,
) -> std::io::Result<()> {
    let work = move || {
        let mut is_requested = false;
        loop {
            match (signals.wait().count(), is_requested) {
                (0, _) => {}
                (_, true) => give_up(),
                (_, false) => is_requested = unmount(&mut signals, &handle, &sync),
            }
        }
    };
    steadfs_rt::try_spawn("signals", work).map(drop)
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
fn unmount(
    signals: &mut Signals,
    handle: &MountHandle,
    sync: &dyn Fn() -> Result<(), String>,
) -> bool {
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
                    tracing::error!(%error, "cannot unmount yet; all data is written, and a second signal ends the server");
                    is_told = true;
                }
                let mut looks = 0;
                while matches!(handle.check(), Err(MountError::Covered { .. })) {
                    if signals.pending().next().is_some() {
                        give_up();
                    }
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
