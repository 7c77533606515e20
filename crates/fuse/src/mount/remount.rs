//! Changing a running mount's options: the server's and the kernel's.
//!
//! The kernel knows which files are open for writing and keeps a read-only mount from being written,
//! but does not tell a FUSE server of its remounts. So both are told here, in the order in which a
//! refusal of either leaves the mount as it was: first the kernel that it is read-only, first the
//! server that it is writable.

use std::fs::File;
use std::io;

use rustix::io::Errno;
use rustix::ioctl::Opcode;
use rustix::mount::{MountFlags as RawFlags, mount_remount};
use steadfs_vfs::FsError;

use super::MountHandle;
use super::table::by_number;
use crate::error::MountError;
use crate::sys::{self, REMOUNT_SIZE};

/// The flags that follow from mount options and can change, with their words.
const FOLLOWING: [(RawFlags, &str); 4] = [
    (RawFlags::RDONLY, "ro"),
    (RawFlags::NOATIME, "noatime"),
    (RawFlags::NODIRATIME, "nodiratime"),
    (RawFlags::SYNCHRONOUS, "sync"),
];
/// The flags that stay.
const STAYING: [(RawFlags, &str); 5] = [
    (RawFlags::NOSUID, "nosuid"),
    (RawFlags::NODEV, "nodev"),
    (RawFlags::NOEXEC, "noexec"),
    (RawFlags::RELATIME, "relatime"),
    (RawFlags::DIRSYNC, "dirsync"),
];

impl MountHandle {
    /// Changes mount options of the running mount, as far as its file system allows it.
    ///
    /// # Errors
    /// [`MountError::Busy`] where a volume in use cannot become read-only, [`MountError::Remount`]
    /// with the server's or the kernel's reason.
    pub fn remount(&self, list: &str) -> Result<(), MountError> {
        let old = self.kernel_flags()?;
        let wanted = list.rsplit(',').find_map(|word| match word.trim() {
            "ro" => Some(true),
            "rw" => Some(false),
            _ => None,
        });
        if wanted == Some(true) && !self.helped {
            self.set_kernel_flags(old, old | RawFlags::RDONLY)?;
        }
        if wanted == Some(false) && self.helped && old.contains(RawFlags::RDONLY) {
            return Err(self.refused("only root can make a mount writable that is not".to_owned()));
        }
        match self.tell_server::<{ sys::REMOUNT }>(list) {
            Ok(options) if !self.helped => {
                let words: Vec<&str> = options.split(',').collect();
                let new = FOLLOWING.into_iter().fold(old, |flags, (flag, word)| {
                    if words.contains(&word) {
                        flags | flag
                    } else {
                        flags - flag
                    }
                });
                self.set_kernel_flags(self.kernel_flags()?, new)
            }
            Ok(_) => Ok(()),
            Err(error) => {
                if !self.helped {
                    self.set_kernel_flags(self.kernel_flags()?, old)?;
                }
                Err(error)
            }
        }
    }

    /// Changes settings of the running mount, given in lines `NAME=VALUE`: all or none. Returns all
    /// settings as they are then, in such lines.
    ///
    /// # Errors
    /// [`MountError::Remount`] with the server's reason.
    pub fn tune(&self, list: &str) -> Result<String, MountError> {
        self.tell_server::<{ sys::TUNE }>(list)
    }

    fn refused(&self, cause: String) -> MountError {
        MountError::Remount {
            path: self.mountpoint().to_owned(),
            cause,
        }
    }

    /// Returns the options, or settings, as they are then.
    fn tell_server<const COMMAND: Opcode>(&self, list: &str) -> Result<String, MountError> {
        let failed = |error: std::io::Error| self.refused(error.to_string());
        let folder = File::open(by_number(&self.open_root()?)).map_err(failed)?;
        let answer = ask_server::<COMMAND>(&folder, list).map_err(|error| {
            if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) {
                return self.refused("only who mounted it may do that".to_owned());
            }
            failed(error)
        })?;
        answer.map_err(|refusal| match refusal.errno {
            Errno::BUSY => MountError::InUse(self.mountpoint().to_owned()),
            sys::STOPPED => self.refused(FsError::Stopped(refusal.cause).to_string()),
            _ => self.refused(refusal.cause),
        })
    }

    fn set_kernel_flags(&self, old: RawFlags, new: RawFlags) -> Result<(), MountError> {
        if old == new {
            return Ok(());
        }
        let root = self.open_root()?;
        mount_remount(by_number(&root), new, "").map_err(|errno| match errno {
            Errno::BUSY => MountError::InUse(self.mountpoint().to_owned()),
            errno => self.refused(errno.to_string()),
        })
    }

    /// Sets the flags of this mount point alone; the volume's own stay.
    ///
    /// # Errors
    /// [`MountError::Covered`] and the like, or [`MountError::Remount`] with the kernel's reason.
    pub fn set_own_flags(&self, flags: RawFlags) -> Result<(), MountError> {
        let root = self.open_root()?;
        let done = mount_remount(by_number(&root), flags | RawFlags::BIND, "");
        done.map_err(|errno| self.refused(errno.to_string()))
    }

    /// The mount's flags as the kernel lists them.
    fn kernel_flags(&self) -> Result<RawFlags, MountError> {
        Ok(flags_of(&self.now()?.options))
    }
}

/// Why a server did not do what it was asked for.
pub(super) struct Refusal {
    pub errno: Errno,
    pub cause: String,
}

/// Sends one of our own commands to the server of an open folder: its answer, or what kept it from answering.
pub(super) fn ask_server<const COMMAND: Opcode>(
    folder: &File,
    list: &str,
) -> io::Result<Result<String, Refusal>> {
    let mut argument = [0; REMOUNT_SIZE];
    let place = argument.get_mut(..list.len());
    let Some(place) = place.filter(|place| place.len() < REMOUNT_SIZE) else {
        return Err(io::Error::other("the list is too long"));
    };
    place.copy_from_slice(list.as_bytes());
    sys::ask::<COMMAND>(folder, &mut argument)?;
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

/// The flags that stand among the options of a mount point and of its volume.
fn flags_of(options: &[String]) -> RawFlags {
    let flags = FOLLOWING.into_iter().chain(STAYING);
    flags
        .filter(|(_, word)| options.iter().any(|option| option == word))
        .fold(RawFlags::empty(), |set, (flag, _)| set | flag)
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
        assert_eq!(flags("rw,rw"), RawFlags::empty());
    }
}
