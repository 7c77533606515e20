//! The ioctls of a volume.
//!
//! The kernel checks permissions for the flag ioctls whose numbers it knows, and translates those of 32-bit programs
//! into them. An untranslated number that arrives here was checked by no code, so it is refused. Commands for
//! administrators are checked here.
//!
//! Numbers and structures: linux/fs.h (FS_IOC_*, FITRIM), linux/fsverity.h, linux/ext4.h (shutdown).

mod verity;

use std::time::Duration;

use rustix::io::Errno;
use steadfs_vfs::{Cx, FileSystem, FsError, InodeFlags, IoctlAnswer, ShutdownMode};
use zerocopy::FromBytes;

use crate::admin::{is_admin, is_owner};
use crate::call::{Call, Outcome};
use crate::close_result::CloseResultFile;
use crate::host::{self, Answer, Question};
use crate::mount::Synced;
use crate::reply::ReplyBuf;
use crate::sys::{self, REMOUNT_SIZE, STOPPED};
use crate::wire;

const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
const GETVERSION: u32 = 0x8008_7601;
const GETVERSION_32: u32 = 0x8004_7601;
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;
const FITRIM: u32 = 0xc018_5879;
/// The control file of the keys.
const KEYS_FILE: &str = "keys";
/// How a command begins that is about the directory that it comes with.
const POLICY: &str = "policy ";
const ENABLE_VERITY: u32 = 0x4080_6685;
const MEASURE_VERITY: u32 = 0xc004_6686;
pub(crate) const SHUTDOWN: u32 = 0x8004_587d;
// The type of a command differs from libc to libc; the kernel takes 32 bits.
const REMOUNT: u32 = sys::REMOUNT as u32;
const TUNE: u32 = sys::TUNE as u32;
const SYNC: u32 = sys::SYNC as u32;
const UPGRADE: u32 = sys::UPGRADE as u32;
const KEYS: u32 = sys::KEYS as u32;
const VERITY: u32 = sys::VERITY as u32;

/// How often the kernel is asked to write what mappings of a file have, each time for as long as a call may wait for it.
const WRITE_ATTEMPTS_MAX: u32 = 30;
const WRITE_ATTEMPTS_PAUSE: Duration = Duration::from_millis(100);

/// `FS_XFLAG_*` with the inode flags of the same meaning.
const XFLAGS: [(u32, InodeFlags); 6] = [
    (0x0008, InodeFlags::IMMUTABLE),
    (0x0010, InodeFlags::APPEND),
    (0x0020, InodeFlags::SYNC),
    (0x0040, InodeFlags::NOATIME),
    (0x0080, InodeFlags::NODUMP),
    (0x0200, InodeFlags::PROJINHERIT),
];

/// Whether an IOCTL request, given its structure, only reads or changes an inode's attributes.
pub(crate) fn is_short(op: &[u8]) -> bool {
    let Ok((arg, _)) = wire::IoctlIn::read_from_prefix(op) else {
        return true;
    };
    [
        GETFLAGS,
        SETFLAGS,
        FSGETXATTR,
        FSSETXATTR,
        GETVERSION,
        GETVERSION_32,
    ]
    .contains(&arg.cmd)
}

/// Whether an ioctl changes flags or the project of an inode.
pub(crate) fn changes_flags(command: u32) -> bool {
    [SETFLAGS, FSSETXATTR].contains(&command)
}

/// Whether an ioctl may change a file in a way that no record describes: it makes it a verity file, or is one of the file
/// system. What was recorded of the file before can then not be repeated.
pub(crate) fn changes_more(fs: &dyn FileSystem, command: u32) -> bool {
    [ENABLE_VERITY, VERITY].contains(&command) || fs.ioctl_changes_files(command)
}

/// Serves an ioctl.
pub(crate) fn serve(
    call: &Call<'_>,
    arg: &wire::IoctlIn,
    data: &[u8],
    out: &mut ReplyBuf,
) -> Outcome {
    // The result comes first; most results are 0.
    let head = out.bytes.len();
    out.put(&wire::IoctlOut::default());
    let fs = &*call.volume.fs;
    match arg.cmd {
        GETFLAGS => {
            let flags = fs.flags(&call.cx, call.ino)?.flags.0;
            reply(out, arg, &flags.to_ne_bytes())
        }
        SETFLAGS => {
            let (flags, _) = u32::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
            set_flags(call, fs.flags(&call.cx, call.ino)?.flags, InodeFlags(flags))
        }
        FSGETXATTR => get_fsxattr(call, arg, out),
        FSSETXATTR => set_fsxattr(call, data),
        GETVERSION | GETVERSION_32 => {
            let generation = fs.generation(&call.cx, call.ino)?;
            reply(out, arg, &generation.to_ne_bytes())
        }
        ENABLE_VERITY => verity::enable(call, data),
        MEASURE_VERITY => verity::measure(call, arg, data, out),
        FITRIM => trim(call, arg, data, out),
        SHUTDOWN => shutdown(call, arg),
        REMOUNT => administer(call, arg, data, out, |list| remount(call, list)),
        TUNE => administer(call, arg, data, out, |list| fs.tune(list)),
        VERITY => answer(arg, data, out, |line| verity::command(call, line)),
        KEYS => administer(call, arg, data, out, |command| change_keys(call, command)),
        UPGRADE => administer(call, arg, data, out, |server| upgrade(call, server)),
        SYNC => {
            if call.header.uid != steadfs_rt::kernel_ids().0 && call.header.uid != 0 {
                return Err(Errno::PERM.into());
            }
            answer(arg, data, out, |_| {
                fs.sync_all(&call.cx)?;
                let close_result = call.volume.close_result.as_ref();
                let fd = close_result.and_then(CloseResultFile::fd);
                Ok(Synced::answer(call.volume.config.image, fd))
            })
        }
        cmd => {
            let cx = Cx {
                admin: is_admin(call.header),
                ..call.cx_of(arg.fh)
            };
            let answer = fs.ioctl(&cx, call.ino, cmd, data);
            let is_stale = |answer: &Option<IoctlAnswer>| answer.as_ref().is_some_and(|a| a.stale);
            // One that failed may have dropped content as well.
            if answer.as_ref().map_or(fs.tracks_files(), is_stale) {
                let _ = call.volume.content_dropped(call.ino);
            } else if fs.ioctl_changes_files(cmd) {
                call.volume.attributes_changed(call.ino);
            }
            let answer = answer?.ok_or(Errno::NOTTY)?;
            out.bytes[head..head + 4].copy_from_slice(&answer.result.to_ne_bytes());
            reply(out, arg, &answer.output)
        }
    }
}

/// Appends to the caller's buffer, at most as much as the caller announced.
fn reply(out: &mut ReplyBuf, arg: &wire::IoctlIn, bytes: &[u8]) -> Outcome {
    if bytes.len() > arg.out_size as usize {
        return Err(Errno::INVAL.into());
    }
    out.bytes.extend_from_slice(bytes);
    Ok(())
}

fn get_fsxattr(call: &Call<'_>, arg: &wire::IoctlIn, out: &mut ReplyBuf) -> Outcome {
    let fsx = call.volume.fs.flags(&call.cx, call.ino)?;
    let xflags = XFLAGS
        .iter()
        .filter(|(_, flag)| fsx.flags.contains(*flag))
        .fold(0, |set, (xflag, _)| set | xflag);
    let value = wire::Fsxattr {
        xflags,
        nextents: fsx.extents,
        projid: fsx.project,
        ..wire::Fsxattr::default()
    };
    reply(out, arg, zerocopy::IntoBytes::as_bytes(&value))
}

/// Has the kernel write what shared mappings of a file have changed: once the file is protected it would be refused, and
/// dropped.
fn write_mapped(call: &Call<'_>) -> Outcome {
    for _ in 0..WRITE_ATTEMPTS_MAX {
        if call.volume.content_dropped(call.ino) {
            return Ok(());
        }
        call.cx.check_killed()?;
        steadfs_rt::sleep(WRITE_ATTEMPTS_PAUSE);
    }
    Err(Errno::AGAIN.into())
}

fn set_flags(call: &Call<'_>, old: InodeFlags, new: InodeFlags) -> Outcome {
    let protects = |flag| new.contains(flag) && !old.contains(flag);
    if protects(InodeFlags::IMMUTABLE) || protects(InodeFlags::APPEND) {
        write_mapped(call)?;
    }
    call.volume.fs.set_flags(&call.cx, call.ino, new)?;
    call.volume.attributes_changed(call.ino);
    Ok(())
}

fn set_fsxattr(call: &Call<'_>, data: &[u8]) -> Outcome {
    let fs = &*call.volume.fs;
    let (new, _) = wire::Fsxattr::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
    let known = XFLAGS.iter().fold(0, |set, (xflag, _)| set | xflag);
    if new.xflags & !known != 0 || new.extsize != 0 || new.cowextsize != 0 {
        return Err(Errno::OPNOTSUPP.into());
    }
    let old = fs.flags(&call.cx, call.ino)?;
    let mut flags = old.flags.0;
    for (xflag, flag) in XFLAGS {
        if new.xflags & xflag != 0 {
            flags |= flag.0;
        } else {
            flags &= !flag.0;
        }
    }
    if flags != old.flags.0 {
        set_flags(call, old.flags, InodeFlags(flags))?;
    }
    if new.projid != old.project {
        fs.set_project(&call.cx, call.ino, new.projid)?;
    }
    call.volume.attributes_changed(call.ino);
    Ok(())
}

fn trim(call: &Call<'_>, arg: &wire::IoctlIn, data: &[u8], out: &mut ReplyBuf) -> Outcome {
    only_admin(call)?;
    let (mut range, _) = wire::FstrimRange::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
    range.len = call
        .volume
        .fs
        .trim(&call.cx, range.start, range.len, range.minlen)?;
    reply(out, arg, zerocopy::IntoBytes::as_bytes(&range))
}

/// The command number declares its argument as output only, so the kernel does not send the argument's content; it is
/// read from the memory of the calling process.
fn shutdown(call: &Call<'_>, arg: &wire::IoctlIn) -> Outcome {
    only_admin(call)?;
    let mode = match shutdown_mode(call.header.pid, arg.arg)? {
        0 => ShutdownMode::Sync,
        1 => ShutdownMode::FlushLog,
        2 => ShutdownMode::NoFlush,
        3 => ShutdownMode::MetaFlush,
        4 => ShutdownMode::NeedCheck,
        _ => return Err(Errno::INVAL.into()),
    };
    call.volume.fs.shutdown(&call.cx, mode)?;
    if let Some(recorder) = call.volume.recorder() {
        recorder.give_up("it is shut down");
    }
    Ok(())
}

/// Serves REMOUNT, TUNE and SYNC. The kernel does not notify the server of a remount, and nothing can be written to a
/// read-only mount, not even a control file. Nor could write(2) return the reason of a failure.
fn answer(
    arg: &wire::IoctlIn,
    data: &[u8],
    out: &mut ReplyBuf,
    work: impl FnOnce(&str) -> steadfs_vfs::Result<String>,
) -> Outcome {
    let list = data.split(|&b| b == 0).next().unwrap_or_default();
    let list = std::str::from_utf8(list).map_err(|_| Errno::INVAL)?;
    let (errno, text) = match work(list) {
        Ok(text) => (0, text),
        Err(FsError::Stopped(cause)) => (STOPPED.raw_os_error(), cause),
        Err(error) => (error.errno(), error.to_string()),
    };
    let mut answer = vec![0; REMOUNT_SIZE];
    answer[..4].copy_from_slice(&errno.to_ne_bytes());
    let len = text.len().min(REMOUNT_SIZE - 5);
    answer[4..4 + len].copy_from_slice(&text.as_bytes()[..len]);
    reply(out, arg, &answer)
}

fn remount(call: &Call<'_>, list: &str) -> steadfs_vfs::Result<String> {
    call.volume.will_remount(list);
    call.volume.fs.remount(&call.cx, list)?;
    call.volume.is_remounted();
    Ok(call.volume.fs.options())
}

fn upgrade(call: &Call<'_>, server: &str) -> steadfs_vfs::Result<String> {
    let fs = &*call.volume.fs;
    // The kernel may have changed pages of encrypted files that the new server, without keys, could not take.
    if server.is_empty()
        && fs.has_encryption()
        && !fs.read_control(KEYS_FILE)?.trim_ascii().is_empty()
    {
        let why = "keys are not passed on: remove them (steadfs key remove), and add them again afterwards";
        return Err(FsError::BadOption(why.to_owned()));
    }
    host::upgrade(server).map_err(FsError::BadOption)
}

fn change_keys(call: &Call<'_>, command: &str) -> steadfs_vfs::Result<String> {
    let fs = &*call.volume.fs;
    if !fs.has_encryption() {
        let why = "the volume has no encrypted files (feature encrypt)";
        return Err(FsError::BadOption(why.to_owned()));
    }
    if command.trim_start().starts_with("add") && call.volume.recorder().is_some() {
        // A server that continues the mount has no keys: it could not restore what was written with them.
        let why = "a mount with takeover=on takes no keys: mount with takeover=off";
        return Err(FsError::BadOption(why.to_owned()));
    }
    match command.strip_prefix(POLICY) {
        Some(policy) => {
            let command = format!("{POLICY}{} {policy}", call.ino.0);
            fs.write_control(KEYS_FILE, command.as_bytes())?;
            call.volume.attributes_changed(call.ino);
        }
        None if command.is_empty() => {}
        None => fs.write_control(KEYS_FILE, command.as_bytes())?,
    }
    let keys = fs.read_control(KEYS_FILE)?;
    Ok(String::from_utf8_lossy(&keys).into_owned())
}

fn shutdown_mode(pid: u32, address: u64) -> Result<u32, Errno> {
    match host::ask(Question::ShutdownMode { pid, address }) {
        Answer::Word(word) => Ok(word),
        _ => Err(Errno::FAULT),
    }
}

fn only_admin(call: &Call<'_>) -> Result<(), Errno> {
    match is_admin(call.header) {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// Serves a command of the mount's owner. Root gets a reason where no rights are known.
fn administer(
    call: &Call<'_>,
    arg: &wire::IoctlIn,
    data: &[u8],
    out: &mut ReplyBuf,
    work: impl FnOnce(&str) -> steadfs_vfs::Result<String>,
) -> Outcome {
    if is_owner(call.header) {
        return answer(arg, data, out, work);
    }
    let why = host::no_administration().filter(|_| call.header.uid == 0);
    let why = why.ok_or(Errno::PERM)?;
    answer(arg, data, out, |_| Err(FsError::BadOption(why.to_owned())))
}
