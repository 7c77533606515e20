//! The user of this process.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, setrlimit};

/// The user number that a contained server of this process id gets if root starts it.
///
/// It is free by convention: systemd's list of ranges (systemd.io/UIDS-GIDS) leaves 1 878 982 657 to 2 147 483 647 unused, and
/// a process id has 22 bits at most. So two servers are different users, and only root can make a process with its own number.
pub fn contained_user(process: u32) -> u32 {
    const FIRST: u32 = 1_879_048_192;
    FIRST + process
}

/// Effective user and group id in the kernel. fakeroot(1) and pseudo(1) replace the C library's geteuid(2) but grant no
/// privilege, so decisions about mounts and callers need this pair; owners of copied files follow the C library.
pub fn kernel_ids() -> (u32, u32) {
    // The ids of the process never change.
    static IDS: OnceLock<(u32, u32)> = OnceLock::new();
    *IDS.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        effective_ids(&status).unwrap_or_else(|| {
            let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
            (user.as_raw(), group.as_raw())
        })
    })
}

/// The effective ids in `/proc/PID/status`: the second number of the lines `Uid:` and `Gid:`.
fn effective_ids(status: &str) -> Option<(u32, u32)> {
    let effective = |label: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(label))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Some((effective("Uid:")?, effective("Gid:")?))
}

/// Makes sure that the system writes no memory of this process to a core file: it holds a key. A contained process cannot
/// change that any more, and did it before.
pub fn forbid_core_dumps() {
    // core(5): with this limit nothing is dumped, also not to a program. The process stays dumpable: else its user could not
    // open its descriptors, by which `steadfs umount` learns how closing ended.
    let nothing = Some(1);
    let limit = Rlimit {
        current: nothing,
        maximum: nothing,
    };
    let _ = setrlimit(Resource::Core, limit);
}

#[cfg(test)]
mod tests {
    use super::effective_ids;

    #[test]
    fn effective_ids_are_the_second_of_each_line() {
        let status = "Name:\tsh\nUid:\t1000\t0\t1000\t1000\nGid:\t100\t7\t100\t100\nGroups:\t100\n";
        assert_eq!(effective_ids(status), Some((0, 7)));
        assert_eq!(effective_ids("Uid:\t1\nGid:\t1\t1"), None);
    }
}
