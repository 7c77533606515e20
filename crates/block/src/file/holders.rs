//! The processes that hold locks of a file, and whether they could write it.
//!
//! proc_locks(5) lists all locks, but without a process for locks of an open file description (F_OFD_SETLK). These, and
//! the access mode of each open file, are in the `fdinfo` of the descriptors that this process may read. If a lock's
//! holder is not found, the result is "unknown", and the lock is respected.

use std::fs;

use rustix::fs::{Stat, major, minor};
use steadfs_rt::contained_user;

/// A descriptor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) process: i32,
    pub(super) number: i32,
}

/// A process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockHolder {
    pub(super) process: i32,
    /// Whether the descriptor with the lock is open for writing, as far as known.
    writes: bool,
    /// Whether its lock excludes readers, too.
    pub(super) is_exclusive: bool,
}

impl LockHolder {
    /// The holders of locks of a file, except the descriptor `own`; `None` if some holders are not found.
    pub(super) fn all(file: &Stat, own: Descriptor) -> Option<Vec<Self>> {
        let id = format!(
            "{:02x}:{:02x}:{}",
            major(file.st_dev),
            minor(file.st_dev),
            file.st_ino
        );
        let table = fs::read_to_string("/proc/locks").ok()?;
        let (listed, of_descriptions) = listed(&table, &id);
        let (mut holders, mut found, mut of_own) = (Vec::new(), 0, 0);
        for process in fs::read_dir("/proc").ok()?.flatten() {
            let Ok(number) = process.file_name().to_string_lossy().parse::<i32>() else {
                continue;
            };
            let infos = fs::read_dir(process.path().join("fdinfo"));
            for info in infos.into_iter().flatten().flatten() {
                let text = fs::read_to_string(info.path()).unwrap_or_default();
                let Some(held) = held(&text, &id) else {
                    continue;
                };
                let descriptor = info.file_name().to_string_lossy().parse::<i32>();
                let is_own = number == own.process && descriptor == Ok(own.number);
                if is_own {
                    of_own += held.of_description;
                    continue;
                }
                found += held.of_description;
                holders.push(Self {
                    process: number,
                    writes: held.writes,
                    is_exclusive: held.is_exclusive,
                });
            }
        }
        for (process, is_exclusive) in listed {
            let is_known = holders.iter().any(|holder| holder.process == process);
            if !is_known && process != own.process {
                holders.push(Self {
                    process,
                    writes: false,
                    is_exclusive,
                });
            }
        }
        (found + of_own >= of_descriptions).then_some(holders)
    }

    /// Whether the process could write the file, or root has started it to serve the file. True if that is not known.
    pub(super) fn may_write(&self, file: &Stat) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process));
        let user = rustix::process::geteuid().as_raw();
        let trusted = [
            0,
            user,
            file.st_uid,
            contained_user(self.process.unsigned_abs()),
        ];
        self.writes || status.map_or(true, |status| could_write(&status, file, &trusted))
    }
}

/// From the lines of proc_locks(5) about a file: the processes that hold locks and whether the locks are exclusive, and
/// the number of locks of open file descriptions.
fn listed(table: &str, id: &str) -> (Vec<(i32, bool)>, usize) {
    let (mut processes, mut descriptions) = (Vec::new(), 0);
    for line in table.lines() {
        let mut words = line.split_ascii_whitespace().skip(1);
        let kind = words.next();
        // "->" marks a waiting lock.
        let is_exclusive = words.nth(1) == Some("WRITE");
        let holder = words.next().and_then(|word| word.parse::<i32>().ok());
        if words.next() != Some(id) || kind == Some("->") {
            continue;
        }
        match holder {
            Some(process) if process > 0 => processes.push((process, is_exclusive)),
            _ => descriptions += 1,
        }
    }
    (processes, descriptions)
}

/// A descriptor with locks of the file.
#[derive(Debug, PartialEq, Eq)]
struct HeldLock {
    writes: bool,
    is_exclusive: bool,
    /// Locks of its open file description.
    of_description: usize,
}

/// What a descriptor's proc_pid_fdinfo(5) shows of its locks; `None` if it holds none of the file.
fn held(info: &str, id: &str) -> Option<HeldLock> {
    const ACCESS: u32 = 0o3;
    let locks = info.lines().filter_map(|line| line.strip_prefix("lock:"));
    let locks: Vec<&str> = locks
        .filter(|line| line.split_ascii_whitespace().any(|word| word == id))
        .collect();
    if locks.is_empty() {
        return None;
    }
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    Some(HeldLock {
        writes: flags.is_none_or(|flags| flags & ACCESS != 0),
        is_exclusive: locks.iter().any(|line| line.contains(" WRITE ")),
        of_description: locks.iter().filter(|line| line.contains("OFDLCK")).count(),
    })
}

/// Whether a process with this proc_pid_status(5) could write a file, by the mode of the file; true also for `trusted` users,
/// whose locks are always respected.
fn could_write(status: &str, file: &Stat, trusted: &[u32]) -> bool {
    const GROUP_WRITE: u32 = 0o020;
    const OTHER_WRITE: u32 = 0o002;
    let numbers = |name: &str| -> Option<Vec<u32>> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace()
            .map(|word| word.parse().ok())
            .collect()
    };
    let (Some(users), Some(groups)) = (numbers("Uid:"), numbers("Gid:")) else {
        return true;
    };
    let more = numbers("Groups:").unwrap_or_default();
    let in_group = groups
        .iter()
        .chain(&more)
        .any(|group| *group == file.st_gid);
    users.iter().any(|user| trusted.contains(user))
        || file.st_mode & OTHER_WRITE != 0
        || (file.st_mode & GROUP_WRITE != 0 && in_group)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "1: FLOCK  ADVISORY  WRITE 708 fe:00:12 0 EOF\n\
        2: OFDLCK ADVISORY  READ  -1 fe:00:12 4611686018427387904 4611686018427387904\n\
        2: -> FLOCK  ADVISORY  WRITE 709 fe:00:12 0 EOF\n\
        3: POSIX  ADVISORY  WRITE 710 fe:00:13 0 EOF\n";

    #[test]
    fn holders_are_read_from_the_table_of_locks() {
        assert_eq!(listed(TABLE, "fe:00:12"), (vec![(708, true)], 1));
        assert_eq!(listed(TABLE, "fe:00:13"), (vec![(710, true)], 0));
        assert_eq!(listed(TABLE, "fe:00:14"), (vec![], 0));
    }

    #[test]
    fn a_descriptors_locks_and_rights_are_read() {
        let info =
            "pos:\t0\nflags:\t0100002\nlock:\t1: FLOCK  ADVISORY  WRITE 708 fe:00:12 0 EOF\n";
        let held_by = |info| held(info, "fe:00:12").unwrap();
        let expected = |writes, is_exclusive, of_description| HeldLock {
            writes,
            is_exclusive,
            of_description,
        };
        assert_eq!(held_by(info), expected(true, true, 0));
        assert_eq!(held(info, "fe:00:1"), None);
        let info = "flags:\t02100000\nlock:\t1: OFDLCK ADVISORY  READ -1 fe:00:12 5 5\n";
        assert_eq!(held_by(info), expected(false, false, 1));
    }

    #[test]
    fn only_a_lock_of_a_user_without_write_access_is_ignored() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut file = rustix::fs::fstat(path.as_file()).unwrap();
        (file.st_uid, file.st_gid, file.st_mode) = (5, 50, 0o100_644);
        let status = |uid: u32| {
            format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t50\t50\t50\t50\nGroups:\t7 8\n")
        };
        assert!(!could_write(&status(1000), &file, &[0]));
        for trusted in [0, 5, 9] {
            assert!(
                could_write(&status(trusted), &file, &[0, 9, file.st_uid]),
                "{trusted}"
            );
        }
        file.st_mode = 0o100_664;
        assert!(could_write(&status(1000), &file, &[0]));
        (file.st_gid, file.st_mode) = (51, 0o100_664);
        assert!(!could_write(&status(1000), &file, &[0]));
        file.st_mode = 0o100_646;
        assert!(could_write(&status(1000), &file, &[0]));
        assert!(could_write("", &file, &[0]), "unknown");
    }
}
