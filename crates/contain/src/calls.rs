//! The system calls of a contained process, as lists.
//!
//! A call that is on no list fails with EPERM, because libraries try calls and fall back. The calls in [`HOSTILE`] end the
//! process: no code of this program or of its libraries makes them, so one of them means that an attacker runs code here,
//! who must not get a second attempt. The kernel logs that (audit, `sig=31`).

use libc::c_long;

/// What an argument of a call must be for the call to be allowed.
#[derive(Clone, Copy)]
pub enum Must {
    /// One of these.
    BeOneOf(&'static [u64]),
    /// This, in the bits of the mask.
    Have { mask: u64, bits: u64 },
    /// The pid of this process.
    BeThisProcess,
}

/// An argument of a call by its number, with the width that the kernel reads.
#[derive(Clone, Copy)]
pub enum Argument {
    /// 32 bits.
    Int(u8),
    /// 64 bits: a pointer or a long.
    Long(u8),
}
use Argument::{Int, Long};

/// A call that is allowed if each of these arguments is as required. A call with several entries is allowed by each of
/// them.
pub struct Conditional(pub c_long, pub &'static [(Argument, Must)]);

/// Calls on memory, time, threads and open descriptors.
pub const FREE: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    // Answered with ENOSYS by another filter; the C library then calls clone.
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fsync,
    // The file of an overlay gets its length when its base is known.
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mincore,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_sync_file_range,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Memory that can be executed.
const EXECUTABLE: Must = Must::Have {
    mask: libc::PROT_EXEC as u64,
    bits: 0,
};

/// The calling thread, where a number names a thread.
const ITSELF: Must = Must::BeOneOf(&[0]);

/// Linux <linux/ioprio.h>: `IOPRIO_WHO_PROCESS`, a thread.
const WHO_PROCESS: u64 = 1;

/// Linux <linux/fs.h>: `_IO(0x12, 119)`.
const BLKDISCARD: u64 = 0x1277;
/// Linux <asm-generic/ioctls.h>: whether it is a terminal.
const TCGETS: u64 = 0x5401;
/// Linux <asm-generic/ioctls.h>: the size of a terminal.
const TIOCGWINSZ: u64 = 0x5413;

/// Calls that are allowed with some arguments only.
pub const BOUND: &[Conditional] = &[
    // Threads, not processes and not namespaces.
    Conditional(
        libc::SYS_clone,
        &[(
            Long(0),
            Must::Have {
                mask: (libc::CLONE_THREAD | libc::CLONE_VM) as u64 | NAMESPACES,
                bits: (libc::CLONE_THREAD | libc::CLONE_VM) as u64,
            },
        )],
    ),
    Conditional(libc::SYS_mmap, &[(Long(2), EXECUTABLE)]),
    Conditional(libc::SYS_mprotect, &[(Long(2), EXECUTABLE)]),
    Conditional(
        libc::SYS_fcntl,
        &[(
            Int(1),
            Must::BeOneOf(&[
                libc::F_GETFD as u64,
                libc::F_SETFD as u64,
                libc::F_GETFL as u64,
                libc::F_SETFL as u64,
                libc::F_DUPFD_CLOEXEC as u64,
                libc::F_OFD_SETLK as u64,
                libc::F_OFD_GETLK as u64,
            ]),
        )],
    ),
    // Of terminals only questions: TIOCSTI would type commands.
    Conditional(
        libc::SYS_ioctl,
        &[(Int(1), Must::BeOneOf(&[TCGETS, TIOCGWINSZ, BLKDISCARD]))],
    ),
    Conditional(
        libc::SYS_prctl,
        &[(
            Int(0),
            Must::BeOneOf(&[
                libc::PR_SET_NAME as u64,
                libc::PR_GET_NAME as u64,
                libc::PR_SET_TIMERSLACK as u64,
                libc::PR_SET_VMA as u64,
            ]),
        )],
    ),
    // Reads a limit, sets none.
    Conditional(libc::SYS_prlimit64, &[(Long(2), ITSELF)]),
    Conditional(libc::SYS_sched_setaffinity, &[(Int(0), ITSELF)]),
    Conditional(libc::SYS_sched_setattr, &[(Int(0), ITSELF)]),
    Conditional(libc::SYS_sched_setscheduler, &[(Int(0), ITSELF)]),
    // With another first argument 0 is all processes of the user, or of the process group.
    Conditional(
        libc::SYS_ioprio_set,
        &[(Int(0), Must::BeOneOf(&[WHO_PROCESS])), (Int(1), ITSELF)],
    ),
    // abort(3).
    Conditional(libc::SYS_tgkill, &[(Int(0), Must::BeThisProcess)]),
];

/// CLONE_NEW* of clone(2).
const NAMESPACES: u64 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS) as u64;

/// Calls of [`Profile::DescriptorsAndReading`](crate::Profile).
pub const READING: &[c_long] = &[
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// Flags of an opening for reading; the file must exist.
const TO_READ: Must = Must::Have {
    mask: (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY)
        as u64,
    bits: libc::O_RDONLY as u64,
};

/// Opening of a file for reading: by the call of glibc, and by that of musl.
pub const BOUND_READING: &[Conditional] = &[
    Conditional(libc::SYS_openat, &[(Int(2), TO_READ)]),
    #[cfg(target_arch = "x86_64")]
    Conditional(libc::SYS_open, &[(Int(1), TO_READ)]),
];

/// Calls of [`Profile::Serving`](crate::Profile), besides those for reading: messages to the broker, and rings of
/// io_uring that were made and restricted before.
pub const SERVING: &[c_long] = &[
    libc::SYS_io_uring_enter,
    libc::SYS_ioprio_get,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
];

/// Linux <linux/fuse.h>: FUSE_DEV_IOC_CLONE, `_IOR(229, 0, uint32_t)`.
const FUSE_DEV_IOC_CLONE: u64 = 0x8004_e500;

/// Linux <linux/fs.h>: `_IO(0x12, 104)`.
const BLKSSZGET: u64 = 0x1268;
/// Codes of io_uring_register(2), linux/io_uring.h: files of a ring, and the end of its making.
const RING_FILES: u64 = 2;
const NO_RING_FILES: u64 = 3;
const ENABLE_RING: u64 = 12;

/// Besides what is in [`BOUND`]: another descriptor of the connection to the kernel, and the sector size of a device
/// that was opened again; the usual policy for any thread, as a thread that is SCHED_IDLE may wait for a CPU and cannot
/// change that itself. A ring gets no new rights: it was restricted before it was enabled.
pub const BOUND_SERVING: &[Conditional] = &[
    Conditional(
        libc::SYS_ioctl,
        &[(Int(1), Must::BeOneOf(&[BLKSSZGET, FUSE_DEV_IOC_CLONE]))],
    ),
    Conditional(
        libc::SYS_io_uring_register,
        &[(
            Int(1),
            Must::BeOneOf(&[RING_FILES, NO_RING_FILES, ENABLE_RING]),
        )],
    ),
    Conditional(
        libc::SYS_sched_setscheduler,
        &[(Int(1), Must::BeOneOf(&[libc::SCHED_OTHER as u64]))],
    ),
];

/// Calls that the C library replaces by older ones if they do not exist. Their arguments are in memory, where a filter
/// cannot see them.
pub const ABSENT: &[c_long] = &[libc::SYS_clone3];

/// Calls that only an attacker makes here.
pub const HOSTILE: &[c_long] = &[
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
];
