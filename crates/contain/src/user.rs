//! A user for one process only.
//!
//! The number is free by convention: systemd's list of ranges (systemd.io/UIDS-GIDS) leaves 1 878 982 657 to
//! 2 147 483 647 unused. It contains the pid, so two servers are different users. In a user namespace that does not map
//! the number the process stays what it is.

use rustix::fs::{Gid, Uid};
use rustix::thread::{Pid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::words;

/// The first number of the range; a pid has 22 bits at most.
const FIRST: u32 = 1_879_048_192;

/// Leaves the network for one without interfaces, for the calling thread and those that it starts. A user without
/// privileges needs a user namespace for that.
pub fn enter_own_network() -> Result<(), String> {
    let entered = match rustix::process::geteuid().is_root() {
        true => steadfs_rt::unshare_network(),
        false => steadfs_rt::unshare_user_and_network(),
    };
    entered.map_err(words)
}

/// Gives up root, if it is root, for the calling thread and those that it starts.
pub fn become_own() -> Result<(), String> {
    // Root in a user namespace, too; not the user that a namespace does not map.
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // Resource limits that root is free of, and the next user is not: buffers that io_uring pins, and leaving SCHED_IDLE.
    raise_limits();
    let number = FIRST + Pid::as_raw(Some(rustix::process::getpid())).unsigned_abs();
    let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
    set_thread_groups(&[]).map_err(words)?;
    set_thread_res_gid(gid, gid, gid).map_err(words)?;
    set_thread_res_uid(uid, uid, uid).map_err(words)
}

fn raise_limits() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let any = Rlimit {
        current: None,
        maximum: None,
    };
    // RLIMIT_NICE 20 is nice 0.
    let normal = Rlimit {
        current: Some(20),
        maximum: Some(20),
    };
    for (resource, limit) in [(Resource::Memlock, any), (Resource::Nice, normal)] {
        // Refused to a root without CAP_SYS_RESOURCE: then the user's limits hold.
        let _ = setrlimit(resource, limit);
    }
}
