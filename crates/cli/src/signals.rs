//! Signals to a server: the mount is to end.

use std::sync::Weak;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use steadfs::tools::owner_cx;
use steadfs::{MountError, MountHandle, SyncError, Unmount};
use steadfs_vfs::FileSystem;

use crate::failure::code;

/// How long until a mount that is covered is looked at again.
const LOOK: Duration = Duration::from_millis(200);

/// Hears the signals that end the program from now on.
///
/// # Errors
/// The host refuses that.
pub fn heard() -> std::io::Result<Signals> {
    Signals::new(ending())
}

/// The signals that end the program: the end of the terminal does, unless that is not to be heeded (nohup).
fn ending() -> Vec<i32> {
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

/// A signal unmounts what is still open; if the volume is in use, it leaves the tree at once and is closed when its last user has
/// left; if another mount covers it, it stays until that is gone, for the kernel takes only that away.
/// A second signal ends the program: what was written before the first is safe.
///
/// # Errors
/// The host refuses a thread.
pub fn end(
    mut signals: Signals,
    handle: MountHandle,
    fs: Weak<dyn FileSystem>,
) -> std::io::Result<()> {
    let work = move || {
        let mut asked = false;
        loop {
            match (signals.wait().count(), asked) {
                (0, _) => {}
                (_, true) => give_up(),
                (_, false) => asked = unmount(&mut signals, &handle, &fs),
            }
        }
    };
    steadfs_rt::try_spawn("signals", work).map(drop)
}

fn give_up() -> ! {
    std::process::exit(i32::from(code::MOUNT))
}

/// Whether the mount is out of the tree.
fn unmount(signals: &mut Signals, handle: &MountHandle, fs: &Weak<dyn FileSystem>) -> bool {
    let mut is_told = false;
    loop {
        write_all(handle, fs);
        let done = handle
            .unmount(Unmount::IfIdle)
            .or_else(|error| match error {
                MountError::Covered { .. } => Err(error),
                _ => handle.unmount(Unmount::Detach),
            });
        match done {
            // Somebody was quicker, or it is seen elsewhere only.
            Ok(()) | Err(MountError::NotMounted(_)) => return true,
            Err(error @ MountError::Covered { .. }) => {
                if !is_told {
                    tracing::error!(%error, "cannot unmount yet; all is written, and a second signal ends the server");
                    is_told = true;
                }
                while matches!(handle.check(), Err(MountError::Covered { .. })) {
                    if signals.pending().next().is_some() {
                        give_up();
                    }
                    steadfs_rt::sleep(LOOK);
                }
            }
            Err(error) => {
                tracing::error!(%error, "unmounting");
                return false;
            }
        }
    }
}

fn write_all(handle: &MountHandle, fs: &Weak<dyn FileSystem>) {
    // First what only the kernel has. For one volume it does that where the mount can be reached.
    match handle.sync() {
        Err(SyncError::Covered(_)) => rustix::fs::sync(),
        Err(error) => tracing::debug!(%error, "asking the kernel for what it has"),
        Ok(_) => {}
    }
    if let Some(fs) = fs.upgrade()
        && let Err(error) = fs.sync_all(&owner_cx())
    {
        tracing::error!(%error, "writing all before the end");
    }
}
