//! Whether a caller may administer the machine.
//!
//! The kernel sends a caller's uid and gid but not its capabilities. A container's root is often uid 0 of the host,
//! too, but without CAP_SYS_ADMIN, or with it in its own user namespace only. Where the kernel's file systems require
//! that capability, such a caller is refused. Its capabilities are read from /proc; the caller waits for the reply, so
//! the entry in /proc is its own. Few requests need this, and none of them is frequent.

use std::fs::{read_link, read_to_string};

use crate::wire::InHeader;

/// CAP_SYS_ADMIN as a bit of a capability set, linux/capability.h.
const SYS_ADMIN: u64 = 1 << 21;

/// Whether the caller is root with CAP_SYS_ADMIN in this server's user namespace.
pub(crate) fn is_admin(caller: &InHeader) -> bool {
    caller.uid == 0 && has_capability(caller.pid) && shares_namespace(caller.pid)
}

/// Whether the caller has the rights of the mount's owner: it has the uid that the server runs as, or it is an
/// administrator. Mounts of root belong to the administrator.
pub(crate) fn is_owner(caller: &InHeader) -> bool {
    let (own, _) = steadfs_rt::kernel_ids();
    (own != 0 && caller.uid == own) || is_admin(caller)
}

/// False for a process that is not visible from here (its pid is 0 then).
fn has_capability(pid: u32) -> bool {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    effective(&status).is_some_and(|set| set & SYS_ADMIN != 0)
}

/// The effective capabilities in a process's status.
fn effective(status: &str) -> Option<u64> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

/// A server that does not run as root may not read the namespaces of root's processes; it takes them for its own.
fn shares_namespace(pid: u32) -> bool {
    let own = read_link("/proc/self/ns/user").ok();
    match read_link(format!("/proc/{pid}/ns/user")) {
        Ok(callers) => own == Some(callers),
        // A kernel without user namespaces.
        Err(_) if own.is_none() => true,
        Err(_) => steadfs_rt::kernel_ids().0 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_a_status() {
        let status = "Name:\tsh\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000200000\n";
        assert_eq!(effective(status), Some(SYS_ADMIN));
        for none in ["", "CapEff:", "CapEff:\tall", "CapPrm:\t1"] {
            assert_eq!(effective(none), None, "{none:?}");
        }
    }

    #[test]
    fn other_users_and_invisible_processes_are_not_administrators() {
        let caller = |uid, pid| InHeader {
            uid,
            pid,
            ..InHeader::default()
        };
        assert!(!is_admin(&caller(1000, std::process::id())));
        assert!(!is_admin(&caller(0, 0)));
        assert!(!is_admin(&caller(0, u32::MAX)));
    }
}
