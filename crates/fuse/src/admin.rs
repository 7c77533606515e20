//! Whether a caller may administer the machine.
//!
//! The kernel sends a caller's uid and gid but not its capabilities. A container's root is often uid 0 of the host,
//! too, but without CAP_SYS_ADMIN, or with it in its own user namespace only. Where the kernel's file systems require
//! that capability, such a caller is refused. Its capabilities are read from /proc ([`crate::host`]); the caller waits
//! for the reply, so the entry in /proc is its own. Few requests need this, and none of them is frequent.

use crate::host::{self, Question};
use crate::wire::InHeader;

/// Whether the caller is root with CAP_SYS_ADMIN in this server's user namespace.
pub(crate) fn is_admin(caller: &InHeader) -> bool {
    caller.uid == 0 && host::is(Question::IsAdmin(caller.pid))
}

/// Whether the caller has the rights of the mount's owner: it has the uid of the user that mounted, or it is an
/// administrator. Mounts of root belong to the administrator.
pub(crate) fn is_owner(caller: &InHeader) -> bool {
    let (own, _) = steadfs_rt::kernel_ids();
    (own != 0 && caller.uid == own) || is_admin(caller)
}

#[cfg(test)]
mod tests {
    use super::*;

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
