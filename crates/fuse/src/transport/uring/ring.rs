//! The rings of service threads, which a contained server makes before it is contained.
//!
//! **Problem.** A filter of system calls does not see what is done through a ring, and a ring can open files and make
//! sockets. **Rule.** A contained process makes its rings before it is contained ([`prepare_rings`]), each restricted to the
//! commands of FUSE, and none afterwards. So an attacker in the process can send commands to the
//! descriptors that the process has, and do nothing else through a ring.
//!
//! **Numbers.** A ring takes 7 KiB of the kernel's memory, 8 KiB of the process's, and 16 µs (Linux 6.18). There are
//! [`SPARE_RINGS`] more than the process starts with, and at most a quarter as many as it may have descriptors. With fewer
//! than [`QUEUE_RINGS_MIN`] for each of the kernel's queues io_uring is not used: one request that waits would keep all
//! others of its CPU in the kernel.

use std::sync::OnceLock;

use io_uring::register::Restriction;
use io_uring::{Builder, IoUring, cqueue, opcode, squeue};
use rustix::process::{Resource, getrlimit, setrlimit};
use steadfs_rt::{Mutex, Rank};

use super::{ENTRIES_MAX, queue_count, threads_of_each};

pub(super) type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Entries of a ring: one is in use, and the kernel rounds up.
const RING_ENTRIES: u32 = 2;
/// Rings of a contained process beyond those that it starts with.
const SPARE_RINGS: usize = 128;
/// Smallest number of rings for each queue.
pub(super) const QUEUE_RINGS_MIN: usize = 2;

/// The rings that a process made before it was contained.
struct PreparedRings {
    /// Those that no thread has taken.
    free: Mutex<Vec<Ring>>,
    count: usize,
    /// Why there are fewer than wanted.
    refusal: Option<String>,
}

static PREPARED: OnceLock<PreparedRings> = OnceLock::new();

/// Makes the rings with which this process serves about `threads` requests at a time from now on, and no others.
///
/// # Panics
/// If they were made before.
pub fn prepare_rings(threads: usize) {
    let descriptors = raise_descriptors();
    let queues = queue_count().unwrap_or(1);
    let at_start = threads_of_each(queues, threads).map_or(0, |each| each * usize::from(queues));
    let most = usize::try_from(descriptors / 4).unwrap_or(usize::MAX);
    let wanted = (at_start + SPARE_RINGS).min(most);
    let mut free = Vec::new();
    let mut refusal = None;
    while free.len() < wanted && refusal.is_none() {
        match restricted() {
            Ok(ring) => free.push(ring),
            Err(error) => refusal = Some(error.to_string()),
        }
    }
    let prepared = PreparedRings {
        count: free.len(),
        free: Mutex::new(Rank::Leaf, free),
        refusal,
    };
    assert!(PREPARED.set(prepared).is_ok(), "rings are prepared once");
}

/// Uses the hard limit of descriptors; returns it.
fn raise_descriptors() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    let soft = limit.current;
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => soft.unwrap_or(u64::MAX),
    }
}

fn builder() -> Builder<squeue::Entry128, cqueue::Entry> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    builder
}

/// A ring that takes commands of drivers only, disabled until its thread has it (Linux 5.10).
fn restricted() -> std::io::Result<Ring> {
    let ring: Ring = builder().setup_r_disabled().build(RING_ENTRIES)?;
    let mut restrictions = [Restriction::sqe_op(opcode::UringCmd80::CODE)];
    ring.submitter().register_restrictions(&mut restrictions)?;
    Ok(ring)
}

/// A ring of the calling thread.
pub(super) fn make_ring() -> std::io::Result<Ring> {
    let Some(prepared) = PREPARED.get() else {
        return builder().build(RING_ENTRIES);
    };
    let free = prepared.free.lock().pop();
    let ring = free.ok_or_else(|| {
        let all_used = || "all prepared rings are in use".to_owned();
        std::io::Error::other(prepared.refusal.clone().unwrap_or_else(all_used))
    })?;
    // The calling thread becomes the only one that may submit.
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

/// Why io_uring cannot be used with the flags that are needed here; `None` if it can.
pub fn refusal() -> Option<String> {
    match PREPARED.get() {
        Some(prepared) => prepared.refusal_for(queue_count().unwrap_or(1)),
        None => make_ring().err().map(|error| error.to_string()),
    }
}

impl PreparedRings {
    /// Why these rings cannot serve that many queues.
    fn refusal_for(&self, queues: u16) -> Option<String> {
        let few = || {
            format!(
                "{} rings are too few for {queues} CPUs (see ulimit -n)",
                self.count
            )
        };
        let wanted = QUEUE_RINGS_MIN * usize::from(queues);
        (self.count < wanted).then(|| self.refusal.clone().unwrap_or_else(few))
    }
}

/// Number of rings that a process has which cannot make any.
pub(super) fn prepared_rings() -> Option<usize> {
    PREPARED.get().map(|prepared| prepared.count)
}

/// Largest number of entries of all queues.
pub(super) fn entries_max() -> usize {
    prepared_rings().map_or(ENTRIES_MAX, |rings| rings.min(ENTRIES_MAX))
}

#[cfg(test)]
#[expect(unsafe_code, reason = "entries point to memory")]
mod tests {
    use std::os::fd::AsRawFd;

    use io_uring::types;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_queue_is_not_served_by_a_single_ring() {
        let rings = |count, refusal: Option<&str>| PreparedRings {
            free: Mutex::new(Rank::Leaf, Vec::new()),
            count,
            refusal: refusal.map(str::to_owned),
        };
        assert_eq!(rings(256, None).refusal_for(128), None);
        let few = rings(255, None).refusal_for(128).unwrap();
        assert!(few.contains("255 rings") && few.contains("ulimit"), "{few}");
        let refused = rings(0, Some("no memory")).refusal_for(1);
        assert_eq!(refused.as_deref(), Some("no memory"));
    }

    #[test]
    fn a_restricted_ring_takes_commands_and_nothing_else() {
        let Ok(mut ring) = restricted() else {
            return; // The kernel has no io_uring, or not these flags.
        };
        ring.submitter().register_enable_rings().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let (fd, cwd) = (types::Fd(null.as_raw_fd()), types::Fd(libc::AT_FDCWD));
        let path = c"/etc/passwd".as_ptr();
        let socket = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0);
        let attempts: [(squeue::Entry128, bool); 6] = [
            (opcode::OpenAt::new(cwd, path).build().into(), true),
            (socket.build().into(), true),
            (
                opcode::Connect::new(fd, path.cast(), 1).build().into(),
                true,
            ),
            (opcode::UnlinkAt::new(cwd, path).build().into(), true),
            (opcode::Nop::new().build().into(), true),
            (opcode::UringCmd80::new(fd, 0).build(), false),
        ];
        for (n, (entry, is_refused)) in attempts.into_iter().enumerate() {
            // SAFETY: the path is static; refused entries are not executed, and the command has no memory.
            unsafe { ring.submission().push(&entry) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            let result = ring.completion().next().unwrap().result();
            let refused = result == -Errno::ACCESS.raw_os_error();
            assert_eq!(refused, is_refused, "attempt {n}: {result}");
        }
        assert!(ring.submitter().register_files(&[0]).is_err());
    }
}
