//! Whether a caller administers the machine.
//!
//! The kernel tells a server whose request it is, and no capabilities. A container's root is often user 0 of the
//! host, too, but without CAP_SYS_ADMIN, or with it in a user namespace of its own only; where the kernel's file
//! systems ask for that capability, such a caller is refused. What he has is in /proc; he waits for the answer, so
//! his entry there is his own. Few calls ask, none of them often.

use std::fs::{read_link, read_to_string};

use crate::wire::InHeader;

/// CAP_SYS_ADMIN as a bit of a set of capabilities, linux/capability.h.
const SYS_ADMIN: u64 = 1 << 21;

/// Whether the caller is root with CAP_SYS_ADMIN in this server's user namespace.
pub(crate) fn is_admin(caller: &InHeader) -> bool {
    caller.uid == 0 && has_capability(caller.pid) && shares_namespace(caller.pid)
}

/// Whether the caller may do what the mount's owner may: he is the user that it is served as, or administers the
/// machine. Root's mounts are the administrator's.
pub(crate) fn is_owner(caller: &InHeader) -> bool {
    let (own, _) = steadfs_rt::kernel_ids();
    (own != 0 && caller.uid == own) || is_admin(caller)
}

/// A process that cannot be seen from here (it has no number then) has none.
fn has_capability(pid: u32) -> bool {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    effective(&status).is_some_and(|set| set & SYS_ADMIN != 0)
}

/// The effective capabilities that a process's status tells.
fn effective(status: &str) -> Option<u64> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

/// A server that is not root's may not look at the namespaces of root's processes: for it they are its own.
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
    fn others_and_who_cannot_be_seen_are_no_administrators() {
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
