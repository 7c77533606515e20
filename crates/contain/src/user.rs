//! A user for one process only.
//!
//! Its number ([`steadfs_rt::contained_user`]) is of no other process. In a user namespace that does not map the number the
//! process stays what it is.

use rustix::fs::{Gid, Uid};
use rustix::thread::{Pid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::words;

/// Leaves the network for one without interfaces, for the calling thread and those that it starts. A user without
/// privileges needs a user namespace for that. A service that may not make one was started in such a network.
pub fn enter_own_network() -> Result<(), String> {
    let entered = match rustix::process::geteuid().is_root() {
        true => steadfs_rt::unshare_network(),
        false => steadfs_rt::unshare_user_and_network(),
    };
    entered.map_err(words).or_else(|why| {
        let interfaces = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
        match is_only_loopback(&interfaces) {
            true => Ok(()),
            false => Err(why),
        }
    })
}

/// Gives up root, if it is root, for the calling thread and those that it starts.
pub fn become_own() -> Result<(), String> {
    // Root in a user namespace, too; not the user that a namespace does not map.
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // Resource limits that root is free of, and the next user is not: buffers that io_uring pins, and leaving SCHED_IDLE.
    raise_limits();
    let process = Pid::as_raw(Some(rustix::process::getpid())).unsigned_abs();
    let number = steadfs_rt::contained_user(process);
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

/// Whether proc_pid_net(5)'s `dev` lists the loopback interface and no other. It begins with two lines of headings.
fn is_only_loopback(interfaces: &str) -> bool {
    let mut names = interfaces
        .lines()
        .skip(2)
        .map(|line| line.split(':').next());
    names.next().flatten().map(str::trim) == Some("lo") && names.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::is_only_loopback;

    #[test]
    fn networks_without_interfaces_are_recognized() {
        let headings = "Inter-|   Receive\n face |bytes    packets\n";
        for (lines, wanted) in [
            ("    lo:       0       0\n", true),
            ("", false),
            ("  eth0: 1 2\n", false),
            ("    lo: 0 0\n  eth0: 1 2\n", false),
            ("  eth0: 1 2\n    lo: 0 0\n", false),
        ] {
            assert_eq!(
                is_only_loopback(&format!("{headings}{lines}")),
                wanted,
                "{lines}"
            );
        }
        assert!(!is_only_loopback(""));
    }
}
