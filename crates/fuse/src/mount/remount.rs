//! Changing the options of a running mount: the server's and the kernel's.
//!
//! Problem: the kernel knows which files are open for writing and enforces a read-only mount, but does not notify a
//! FUSE server of a remount. Rule: both are changed here, in the order in which a refusal of either leaves the mount as
//! it was. For read-only the kernel comes first, for writable the server.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::ioctl::Opcode;
use rustix::mount::{MountFlags as RawFlags, mount_remount};
use steadfs_vfs::FsError;

use super::MountHandle;
use super::table::proc_fd_path;
use crate::error::MountError;
use crate::sys::{self, REMOUNT_SIZE};

/// How often a server is asked whether it has been replaced. The question waits for the successor, once the hand-over has
/// begun.
const UPGRADE_POLL: Duration = Duration::from_millis(5);

/// Mount flags that follow from mount options and can change, with the options' names.
const FOLLOWING: [(RawFlags, &str); 4] = [
    (RawFlags::RDONLY, "ro"),
    (RawFlags::NOATIME, "noatime"),
    (RawFlags::NODIRATIME, "nodiratime"),
    (RawFlags::SYNCHRONOUS, "sync"),
];
/// Mount flags that a remount keeps.
const STAYING: [(RawFlags, &str); 6] = [
    (RawFlags::NOSUID, "nosuid"),
    (RawFlags::NODEV, "nodev"),
    (RawFlags::NOEXEC, "noexec"),
    (RawFlags::RELATIME, "relatime"),
    (RawFlags::DIRSYNC, "dirsync"),
    (RawFlags::NOSYMFOLLOW, "nosymfollow"),
];
/// Flags of which a mount has one. The kernel lists none for the last.
const ATIME: RawFlags = RawFlags::NOATIME
    .union(RawFlags::RELATIME)
    .union(RawFlags::STRICTATIME);

impl MountHandle {
    /// Changes mount options of the running mount, as far as its file system allows it.
    ///
    /// # Errors
    /// [`MountError::InUse`] if the volume has files open for writing and cannot become read-only, otherwise
    /// [`MountError::Remount`] with the server's or the kernel's reason.
    pub fn remount(&self, list: &str) -> Result<(), MountError> {
        let old = self.kernel_flags()?;
        let wanted = list.rsplit(',').find_map(|word| match word.trim() {
            "ro" => Some(true),
            "rw" => Some(false),
            _ => None,
        });
        if wanted == Some(true) && !self.via_fusermount {
            self.set_kernel_flags(old, old | RawFlags::RDONLY)?;
        }
        if wanted == Some(false) && self.via_fusermount && old.contains(RawFlags::RDONLY) {
            return Err(self.refused("only root can make a read-only mount writable".to_owned()));
        }
        match self.send_command::<{ sys::REMOUNT }>(list) {
            Ok(options) if !self.via_fusermount => {
                let words: Vec<&str> = options.split(',').collect();
                let new = FOLLOWING.into_iter().fold(old, |flags, (flag, word)| {
                    if words.contains(&word) {
                        flags | flag
                    } else {
                        flags - flag
                    }
                });
                self.set_kernel_flags(self.kernel_flags()?, with_one_atime(new))
            }
            Ok(_) => Ok(()),
            Err(error) => {
                if !self.via_fusermount {
                    self.set_kernel_flags(self.kernel_flags()?, old)?;
                }
                Err(error)
            }
        }
    }

    /// Changes settings of the running mount, given in lines `NAME=VALUE`: all or none. Returns all settings after the
    /// change, in such lines.
    ///
    /// # Errors
    /// [`MountError::Remount`] with the server's reason.
    pub fn tune(&self, list: &str) -> Result<String, MountError> {
        self.send_command::<{ sys::TUNE }>(list)
    }

    /// Changes the keys of encrypted files, by what is written to their control file; nothing changes none. Returns the
    /// file's content. The command is not kept.
    ///
    /// # Errors
    /// [`MountError::Remount`] with the server's reason.
    pub fn change_keys(&self, command: &str) -> Result<String, MountError> {
        self.send_command::<{ sys::KEYS }>(command)
    }

    /// Sends a command about a directory of the mount to the server, which is written to the control file of the keys.
    ///
    /// # Errors
    /// [`MountError::Remount`] with the reason.
    pub fn change_dir_keys(dir: &Path, command: &str) -> Result<(), MountError> {
        let refused = |cause: String| MountError::Remount {
            path: dir.to_owned(),
            cause,
        };
        let folder = File::open(dir).map_err(|error| refused(error.to_string()))?;
        send::<{ sys::KEYS }>(&folder, command)
            .map_err(refused)?
            .map_err(|refusal| refused(refusal.reason()))?;
        Ok(())
    }

    /// Makes a file of a mount a verity file, by a line of options
    /// ([`VerityOptions::to_line`](steadfs_vfs::verity::VerityOptions::to_line)); an empty line returns the digest of one.
    ///
    /// # Errors
    /// [`MountError::Remount`] with the reason.
    pub fn verity(file: &Path, line: &str) -> Result<String, MountError> {
        let refused = |cause: String| MountError::Remount {
            path: file.to_owned(),
            cause,
        };
        let opened = File::open(file).map_err(|error| refused(error.to_string()))?;
        send::<{ sys::VERITY }>(&opened, line)
            .map_err(refused)?
            .map_err(|refusal| refused(refusal.reason()))
    }

    /// Replaces the server by a new process of the program as it is installed now. Programs see a pause.
    ///
    /// # Errors
    /// [`MountError::Remount`] with the reason; the mount is served as before, unless the reason says that it has ended.
    pub fn upgrade(&self) -> Result<(), MountError> {
        let mut answer = self.send_command::<{ sys::UPGRADE }>("")?;
        while answer != "done" {
            steadfs_rt::sleep(UPGRADE_POLL);
            answer = self.send_command::<{ sys::UPGRADE }>(&answer)?;
        }
        Ok(())
    }

    fn refused(&self, cause: String) -> MountError {
        MountError::Remount {
            path: self.mountpoint().to_owned(),
            cause,
        }
    }

    /// Sends a command; returns the resulting options or settings.
    fn send_command<const COMMAND: Opcode>(&self, list: &str) -> Result<String, MountError> {
        let failed = |error: std::io::Error| self.refused(error.to_string());
        let folder = File::open(proc_fd_path(&self.open_root()?)).map_err(failed)?;
        let answer = send::<COMMAND>(&folder, list).map_err(|cause| self.refused(cause))?;
        answer.map_err(|refusal| match refusal.errno {
            Errno::BUSY => MountError::InUse(self.mountpoint().to_owned()),
            _ => self.refused(refusal.reason()),
        })
    }

    fn set_kernel_flags(&self, old: RawFlags, new: RawFlags) -> Result<(), MountError> {
        if old == new {
            return Ok(());
        }
        let root = self.open_root()?;
        mount_remount(proc_fd_path(&root), new, "").map_err(|errno| match errno {
            Errno::BUSY => MountError::InUse(self.mountpoint().to_owned()),
            errno => self.refused(errno.to_string()),
        })
    }

    /// Sets the flags of this mount point only; those of the volume stay.
    ///
    /// # Errors
    /// [`MountError::Covered`] and the like, or [`MountError::Remount`] with the kernel's reason.
    pub fn set_own_flags(&self, flags: RawFlags) -> Result<(), MountError> {
        let root = self.open_root()?;
        let done = mount_remount(proc_fd_path(&root), flags | RawFlags::BIND, "");
        done.map_err(|errno| self.refused(errno.to_string()))
    }

    /// The mount's flags as the kernel lists them.
    fn kernel_flags(&self) -> Result<RawFlags, MountError> {
        Ok(flags_of(&self.now()?.options))
    }
}

/// Why a server refused a command.
pub(super) struct Refusal {
    pub errno: Errno,
    pub cause: String,
}

impl Refusal {
    fn reason(self) -> String {
        match self.errno {
            sys::STOPPED => FsError::Stopped(self.cause).to_string(),
            _ => self.cause,
        }
    }
}

/// [`ioctl_server`]; the text is why the server did not answer.
fn send<const COMMAND: Opcode>(
    folder: &File,
    list: &str,
) -> Result<Result<String, Refusal>, String> {
    ioctl_server::<COMMAND>(folder, list).map_err(|error| {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::PERM) => "only the user that mounted it, or root, may do that".to_owned(),
            Some(Errno::NOTTY) => "is on no mounted steadfs volume".to_owned(),
            _ => error.to_string(),
        }
    })
}

/// Sends one of our own commands to the server of an open folder. Returns the server's answer, or the error that kept
/// it from answering.
pub(super) fn ioctl_server<const COMMAND: Opcode>(
    folder: &File,
    list: &str,
) -> io::Result<Result<String, Refusal>> {
    let mut argument = [0; REMOUNT_SIZE];
    let place = argument.get_mut(..list.len());
    let Some(place) = place.filter(|place| place.len() < REMOUNT_SIZE) else {
        return Err(io::Error::other("the list is too long"));
    };
    place.copy_from_slice(list.as_bytes());
    sys::server_ioctl::<COMMAND>(folder, &mut argument)?;
    let (errno, text) = argument.split_at(4);
    let text = text.split(|&b| b == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text).into_owned();
    Ok(
        match i32::from_ne_bytes([errno[0], errno[1], errno[2], errno[3]]) {
            0 => Ok(text),
            errno => Err(Refusal {
                errno: Errno::from_raw_os_error(errno),
                cause: text,
            }),
        },
    )
}

/// The flags among the options of a mount point and of its volume.
fn flags_of(options: &[String]) -> RawFlags {
    let flags = FOLLOWING.into_iter().chain(STAYING);
    let flags = flags
        .filter(|(_, word)| options.iter().any(|option| option == word))
        .fold(RawFlags::empty(), |set, (flag, _)| set | flag);
    match flags.intersects(ATIME) {
        true => flags,
        false => flags | RawFlags::STRICTATIME,
    }
}

/// Flags with one of those that a mount has one of: `noatime` excludes the others, and `relatime` is the default.
fn with_one_atime(flags: RawFlags) -> RawFlags {
    match flags {
        _ if flags.contains(RawFlags::NOATIME) => flags.difference(ATIME) | RawFlags::NOATIME,
        _ if flags.intersects(ATIME) => flags,
        _ => flags | RawFlags::RELATIME,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_from_the_kernels_list() {
        let flags = |list: &str| flags_of(&list.split(',').map(String::from).collect::<Vec<_>>());
        assert_eq!(
            flags("rw,noatime,ro,sync,user_id=0"),
            RawFlags::NOATIME | RawFlags::RDONLY | RawFlags::SYNCHRONOUS
        );
        assert_eq!(
            flags("rw,nosymfollow,relatime,rw"),
            RawFlags::NOSYMFOLLOW | RawFlags::RELATIME
        );
        assert_eq!(flags("rw,rw"), RawFlags::STRICTATIME);
    }

    #[test]
    fn a_mount_has_one_flag_about_access_times() {
        let (noatime, strict) = (RawFlags::NOATIME, RawFlags::STRICTATIME);
        for (flags, one) in [
            (noatime | strict, noatime),
            (noatime | RawFlags::RELATIME, noatime),
            (strict, strict),
            (RawFlags::empty(), RawFlags::RELATIME),
        ] {
            assert_eq!(with_one_atime(flags), one);
            let more = RawFlags::NODIRATIME | RawFlags::NODEV;
            assert_eq!(with_one_atime(flags | more), one | more);
        }
    }
}
