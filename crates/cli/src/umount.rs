//! `steadfs umount` and `sync`, and code shared by all commands about a mounted volume.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use steadfs::tools::printable_text;
use steadfs::{
    CloseResult, CloseResultFd, MountEntry, MountError, MountHandle, PendingCloseResult, SyncError,
    Synced, Unmount,
};
use steadfs_vfs::SHUT_DOWN;

use crate::args;
use crate::closing::Closing;
use crate::failure::{Failure, code};
use crate::stderr::say;

/// A mounted volume as the kernel lists it.
pub type Mount = MountEntry;

/// Its types: of an image, and of a block device mounted as such, for which umount(2) returns when it is closed.
const IMAGE: &str = "fuse.steadfs";
const BLOCK: &str = "fuseblk.steadfs";

pub fn run(args: &args::Umount) -> Result<(), Failure> {
    let mount = find(&args.mountpoint)?;
    if args.force {
        // A call to the server could block forever.
        return unmount(&mount, Unmount::Abort);
    }
    if args.lazy {
        return unmount(&mount, Unmount::Detach);
    }
    let before = sync_volume(&mount)?;
    if matches!(before, VolumeState::Closed(_))
        && let Some(done) = by_owner(&mount, args.or_read_only)
    {
        return done;
    }
    let (image, close_result) = match &before {
        VolumeState::Durable(synced) => (synced.image, synced.close_result),
        _ => (None, None),
    };
    let server = close_result.map(CloseResultFd::process);
    let close_result = close_result.and_then(CloseResultFd::open);
    let closing = Closing::of(&mount, image, server);
    match MountHandle::of(mount.clone()).unmount(Unmount::IfIdle) {
        Err(error @ MountError::Busy(_)) if args.or_read_only => {
            return make_read_only(&mount, &error);
        }
        done => done.map_err(|error| Failure::new(code::MOUNT, error))?,
    }
    let has_ended = matches!(before, VolumeState::Gone);
    let closed = closing
        .wait(has_ended)
        .and_then(|is_closed| match close_result {
            Some(result) if is_closed => check_close_result(&mount, &result),
            _ => Ok(()),
        });
    let place = mount.mountpoint.display();
    match before {
        VolumeState::Durable(_) => closed,
        VolumeState::Gone => {
            say(format_args!(
                "steadfs: {place}: unmounted; its server had ended before: writes that were not synced may be lost, and \
                 the next mount recovers the volume"
            ));
            closed
        }
        // The user requested this and knows the consequence.
        VolumeState::Stopped(cause) if cause == SHUT_DOWN => closed,
        VolumeState::Stopped(cause) => Err(Failure::new(
            code::MOUNT,
            format!("{place}: unmounted, but not everything could be written: {cause}"),
        )),
        VolumeState::Closed(why) => Err(Failure::new(
            code::MOUNT,
            format!("{place}: unmounted, but the server's result is unknown: {why}"),
        )),
    }
}

/// umount(8)'s `-r`: a mount that is in use becomes read-only. Any other failure stays one: what could not be written is
/// lost, and behind the mount that was removed there may be another one.
fn make_read_only(mount: &Mount, busy: &MountError) -> Result<(), Failure> {
    match MountHandle::of(mount.clone()).remount("ro") {
        Ok(()) => {
            let why = printable_text(&busy.to_string());
            say(format_args!("steadfs: {why}; it is read-only now"));
            Ok(())
        }
        Err(error) => Err(Failure::new(
            code::MOUNT,
            format!("{busy}; nor can it become read-only: {error}"),
        )),
    }
}

/// Other tasks may have written after the sync, and closing writes, too.
fn check_close_result(mount: &Mount, result: &PendingCloseResult) -> Result<(), Failure> {
    let why = match result.wait() {
        CloseResult::Clean => return Ok(()),
        CloseResult::Failed(cause) => format!("cannot close the volume cleanly: {cause}"),
        CloseResult::Unknown => {
            "the server exited without reporting a result; recent writes may be lost".to_owned()
        }
    };
    let place = mount.mountpoint.display();
    Err(Failure::new(
        code::MOUNT,
        format!("{place}: unmounted, but {why}"),
    ))
}

fn unmount(mount: &Mount, how: Unmount) -> Result<(), Failure> {
    MountHandle::of(mount.clone())
        .unmount(how)
        .map_err(|e| Failure::new(code::MOUNT, e))
}

/// The state of a volume before it is unmounted.
enum VolumeState {
    Durable(Synced),
    /// The volume has stopped; the first cause.
    Stopped(String),
    /// The server has exited.
    Gone,
    /// Only its user may call the server; the kernel's error.
    Closed(String),
}

/// Syncs the volume. An error is reported while the mount still exists, so that the user can react.
fn sync_volume(mount: &Mount) -> Result<VolumeState, Failure> {
    let handle = MountHandle::of(mount.clone());
    let first = match handle.sync() {
        Ok(synced) => {
            if let Some(cause) = &synced.lost {
                say(format_args!(
                    "steadfs: {}: {cause}; what the volume has is written, but what programs wrote through shared \
                     mappings may be lost",
                    mount.mountpoint.display()
                ));
            }
            return Ok(VolumeState::Durable(synced));
        }
        Err(SyncError::Gone) => return Ok(VolumeState::Gone),
        Err(SyncError::Closed(why)) => return Ok(VolumeState::Closed(why)),
        Err(error @ (SyncError::NotAllowed | SyncError::Covered(_))) => {
            return Err(failure(mount, &error));
        }
        Err(error) => error,
    };
    // The error that stopped the volume may have just occurred: then the next command reports it.
    match (first, handle.sync()) {
        (SyncError::Stopped(cause), _) | (_, Err(SyncError::Stopped(cause))) => {
            Ok(VolumeState::Stopped(cause))
        }
        (first, _) => Err(still_mounted(mount, &first)),
    }
}

/// Root may not enter a mount of another user. So a process of that user does the work, if one can be started.
fn by_owner(mount: &Mount, or_read_only: bool) -> Option<Result<(), Failure>> {
    let number = |name: &str| {
        let mut items = mount.options.iter();
        items.find_map(|item| item.strip_prefix(name)?.parse::<u32>().ok())
    };
    let (user, group) = (number("user_id=")?, number("group_id=")?);
    if user == 0 || steadfs_rt::kernel_ids().0 != 0 {
        return None;
    }
    let mut command = Command::new("/proc/self/exe");
    match or_read_only {
        true => command.arg0("umount.steadfs").arg("-r"),
        false => command.args(["umount", "--"]),
    };
    command.arg(&mount.mountpoint);
    let ended = command.uid(user).gid(group).status().ok()?;
    Some(match ended.code().map(u8::try_from) {
        Some(Ok(0)) => Ok(()),
        // It has printed the error.
        Some(Ok(code)) => Err(Failure::new(code, "")),
        _ => Err(at(&mount.mountpoint, &io::Error::other(ended.to_string()))),
    })
}

/// Why the mount is kept, with a hint for the cause.
fn still_mounted(mount: &Mount, error: &SyncError) -> Failure {
    let errno = match error {
        SyncError::Failed { errno, .. } => errno.map(Errno::from_raw_os_error),
        _ => None,
    };
    let remedy = match errno {
        Some(Errno::UCLEAN) => {
            "the volume is corrupt (see .steadfs/errors): copy what is needed, give up what is not \
                                written with --lazy, and check it with e2fsck or fsck.f2fs"
        }
        Some(Errno::NOSPC | Errno::DQUOT) => {
            "free space and try again, or give up what is not written with --lazy"
        }
        _ => "repair the device and try again, or give up what is not written with --lazy",
    };
    let Failure { code, message, .. } = failure(mount, error);
    let hint = format!("not everything could be written, and it stays mounted: {remedy}");
    Failure::new(code, format!("{message}; {hint}"))
}

/// How long the write requests of shared mappings take from the kernel to the server, on a busy machine.
const WRITE_BACK_WAIT: Duration = Duration::from_millis(300);

/// Syncs everything on the mount.
pub fn sync(mountpoint: &Path) -> Result<(), Failure> {
    let mount = find(mountpoint)?;
    if mount.kind == BLOCK {
        // The kernel calls the server, for any caller.
        let folder = File::open(&mount.mountpoint).map_err(|e| at(&mount.mountpoint, &e))?;
        return rustix::fs::syncfs(&folder).map_err(|e| at(&mount.mountpoint, &e.into()));
    }
    let handle = MountHandle::of(mount.clone());
    let sync = || handle.sync().map_err(|error| failure(&mount, &error));
    let begun = sync()?;
    // That has begun the write-back of shared mappings, for which syncfs(2) does not wait on a FUSE mount since Linux 6.18.
    steadfs_rt::sleep(WRITE_BACK_WAIT);
    match begun.lost.or(sync()?.lost) {
        None => Ok(()),
        Some(cause) => Err(at(&mount.mountpoint, &io::Error::other(cause))),
    }
}

fn failure(mount: &Mount, error: &SyncError) -> Failure {
    let code = match error {
        SyncError::Closed(_) | SyncError::NotAllowed => code::USAGE,
        SyncError::Covered(_)
        | SyncError::Gone
        | SyncError::Stopped(_)
        | SyncError::Failed { .. } => code::MOUNT,
    };
    Failure::new(code, format!("{}: {error}", mount.mountpoint.display()))
}

pub fn at(path: &Path, error: &io::Error) -> Failure {
    Failure::new(code::MOUNT, format!("{}: {error}", path.display()))
}

/// All mounts of steadfs volumes, the newest last.
pub fn mounts() -> Result<Vec<Mount>, Failure> {
    let mut all = MountEntry::all().map_err(|e| Failure::new(code::SYSTEM, e))?;
    all.retain(|mount| mount.kind == IMAGE || mount.kind == BLOCK);
    Ok(all)
}

/// The mount at a path, or of an image.
pub fn find(path: &Path) -> Result<Mount, Failure> {
    look_up(path)?.ok_or_else(|| {
        Failure::new(
            code::MOUNT,
            format!("{}: no steadfs volume is mounted there", path.display()),
        )
    })
}

/// The same, if there is one. An action on a path applies to the topmost mount there, so a mount that is covered by
/// another one is refused.
pub fn look_up(path: &Path) -> Result<Option<Mount>, Failure> {
    let mounts = mounts()?;
    let known_as = |wanted: &Path| {
        let all = |is: &dyn Fn(&Mount) -> bool| -> Vec<Mount> {
            let newest = mounts.iter().rev();
            newest.filter(|mount| is(mount)).cloned().collect()
        };
        let at = all(&|mount| mount.mountpoint == wanted);
        match at.is_empty() {
            true => all(&|mount| mount.source == wanted),
            false => at,
        }
    };
    // First the path as given: resolving it would call the server, which may not answer.
    let mut found = known_as(path);
    if found.is_empty()
        && let Ok(real) = path.canonicalize()
    {
        found = known_as(&real);
    }
    let mut refused = None;
    for mount in found {
        match MountHandle::of(mount.clone()).check() {
            Ok(()) => return Ok(Some(mount)),
            // In the meantime.
            Err(MountError::NotMounted(_)) => {}
            Err(error) => {
                let what = format!("{}: {error}", mount.source.display());
                refused.get_or_insert(Failure::new(code::MOUNT, what));
            }
        }
    }
    refused.map_or(Ok(None), Err)
}
