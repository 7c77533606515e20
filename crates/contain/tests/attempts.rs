//! What an attacker who runs code in a contained process would try, and that none of it succeeds.
//!
//! The process must have one thread when it enters, so this is a program without the test harness: it runs itself once
//! for each attempt. Each attempt is also made without containment, where it must not fail in the same way.
#![expect(
    unsafe_code,
    reason = "an attacker makes system calls that no safe wrapper offers"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "rt, which starts threads, is above this crate"
)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

use libc::c_long;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use steadfs_contain::{Containment, Profile};

/// What stops an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    /// SIGSYS.
    Killed,
    /// The call fails with one of EPERM, EACCES and ENOSYS.
    Refused,
}
use Stopped::{Killed, Refused};

/// A call by its number. Returns the error number of a failed one.
fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> Result<(), i32> {
    let mut all = [0_usize; 6];
    all[..N].copy_from_slice(&arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: the attempts pass null, numbers, or pointers to strings and buffers that outlive the call. Those that
    // would change memory fail before it.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        _ => Ok(()),
    }
}

fn path(text: &'static std::ffi::CStr) -> usize {
    text.as_ptr().addr()
}

const CWD: usize = libc::AT_FDCWD as usize;

fn open(name: &'static std::ffi::CStr, flags: i32) -> Result<(), i32> {
    call(libc::SYS_openat, [CWD, path(name), flags as usize, 0o600])
}

fn socket(family: i32, kind: i32) -> Result<(), i32> {
    call(libc::SYS_socket, [family as usize, kind as usize, 0])
}

type Attempt = (&'static str, Stopped, fn() -> Result<(), i32>);

/// Harmless variants: uncontained they change nothing on the host.
const ATTEMPTS: &[Attempt] = &[
    ("open /etc/shadow", Refused, || {
        open(c"/etc/shadow", libc::O_RDONLY)
    }),
    ("open /etc/passwd", Refused, || {
        open(c"/etc/passwd", libc::O_RDONLY)
    }),
    ("create a file", Refused, || {
        open(c"/tmp", libc::O_TMPFILE | libc::O_WRONLY)
    }),
    ("list /", Refused, || open(c"/", libc::O_DIRECTORY)),
    ("stat a file", Refused, || {
        let mut stat = [0_u8; 256];
        let at = stat.as_mut_ptr().addr();
        call(libc::SYS_newfstatat, [CWD, path(c"/etc/passwd"), at, 0])
    }),
    ("chmod by path", Refused, || {
        call(libc::SYS_fchmodat, [CWD, path(c"/no-such-file"), 0o777])
    }),
    ("chown by path", Refused, || {
        call(libc::SYS_fchownat, [CWD, path(c"/no-such-file"), 0, 0, 0])
    }),
    ("set an attribute by path", Refused, || {
        let (name, value) = (path(c"user.x"), path(c"x"));
        call(
            libc::SYS_setxattr,
            [path(c"/no-such-file"), name, value, 1, 0],
        )
    }),
    ("unlink", Refused, || {
        call(libc::SYS_unlinkat, [CWD, path(c"/no-such-file"), 0])
    }),
    ("rename", Refused, || {
        let names = (path(c"/no-such-file"), path(c"/none"));
        call(libc::SYS_renameat2, [CWD, names.0, CWD, names.1, 0])
    }),
    ("hard link", Refused, || {
        let names = (path(c"/no-such-file"), path(c"/none"));
        call(libc::SYS_linkat, [CWD, names.0, CWD, names.1, 0])
    }),
    ("execve", Killed, || {
        let nothing: [usize; 1] = [0];
        let at = nothing.as_ptr().addr();
        call(libc::SYS_execve, [path(c"/no-such-program"), at, at])
    }),
    ("execveat", Killed, || {
        let nothing: [usize; 1] = [0];
        let at = nothing.as_ptr().addr();
        call(libc::SYS_execveat, [CWD, path(c"/none"), at, at, 0])
    }),
    // Fork with an invalid flag combination, so that uncontained it fails with EINVAL and makes no process.
    ("fork", Refused, || {
        call(libc::SYS_clone, [libc::CLONE_SIGHAND as usize])
    }),
    ("executable memory", Refused, || {
        let (prot, flags) = (libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        call(
            libc::SYS_mmap,
            [0, 4096, prot as usize, flags as usize, usize::MAX, 0],
        )
    }),
    ("TCP socket", Refused, || {
        socket(libc::AF_INET, libc::SOCK_STREAM)
    }),
    ("UDP socket", Refused, || {
        socket(libc::AF_INET, libc::SOCK_DGRAM)
    }),
    ("Unix socket", Refused, || {
        socket(libc::AF_UNIX, libc::SOCK_STREAM)
    }),
    ("netlink socket", Refused, || {
        socket(libc::AF_NETLINK, libc::SOCK_RAW)
    }),
    ("connect", Refused, || call(libc::SYS_connect, [0, 0, 0])),
    ("io_uring", Refused, || {
        call(libc::SYS_io_uring_setup, [0, 0])
    }),
    (ENTER_RING, Killed, || {
        call(libc::SYS_io_uring_enter, [usize::MAX, 0, 0, 0, 0, 0])
    }),
    // IORING_REGISTER_PERSONALITY: with the rights of another task.
    (REGISTER_WITH_RING, Killed, || {
        call(libc::SYS_io_uring_register, [usize::MAX, 9, 0, 0])
    }),
    ("ptrace", Killed, || {
        call(libc::SYS_ptrace, [libc::PTRACE_PEEKUSER as usize, 1, 0, 0])
    }),
    ("read another process's memory", Killed, || {
        call(libc::SYS_process_vm_readv, [usize::MAX, 0, 0, 0, 0, 0])
    }),
    ("mount", Killed, || {
        let (target, kind) = (path(c"/no-such-folder"), path(c"tmpfs"));
        call(libc::SYS_mount, [0, target, kind, 0, 0])
    }),
    ("umount", Killed, || {
        call(libc::SYS_umount2, [path(c"/no-such-folder"), 0])
    }),
    ("chroot", Killed, || {
        call(libc::SYS_chroot, [path(c"/none")])
    }),
    ("unshare", Killed, || call(libc::SYS_unshare, [0])),
    ("setns", Killed, || call(libc::SYS_setns, [usize::MAX, 0])),
    ("bpf", Killed, || call(libc::SYS_bpf, [usize::MAX, 0, 0])),
    ("performance counters", Killed, || {
        call(libc::SYS_perf_event_open, [0, 0, usize::MAX, usize::MAX, 0])
    }),
    ("take a descriptor of another process", Killed, || {
        call(libc::SYS_pidfd_getfd, [usize::MAX, 0, 0])
    }),
    ("keyctl", Killed, || call(libc::SYS_keyctl, [usize::MAX])),
    ("userfaultfd", Killed, || {
        call(libc::SYS_userfaultfd, [usize::MAX])
    }),
    ("load a module", Killed, || {
        call(libc::SYS_finit_module, [usize::MAX, path(c""), 0])
    }),
    ("open by handle", Killed, || {
        call(libc::SYS_open_by_handle_at, [usize::MAX, 0, 0])
    }),
    ("signal the parent", Refused, || {
        call(
            libc::SYS_kill,
            [std::os::unix::process::parent_id() as usize, 0],
        )
    }),
    ("signal a thread of the parent", Refused, || {
        let parent = std::os::unix::process::parent_id() as usize;
        call(libc::SYS_tgkill, [parent, parent, 0])
    }),
    ("the I/O priority of the parent", Refused, || {
        let parent = std::os::unix::process::parent_id() as usize;
        call(libc::SYS_ioprio_set, [1, parent, 0])
    }),
    // With classes that do not exist: the kernel changes nothing.
    ("the I/O priority of the user's processes", Refused, || {
        call(libc::SYS_ioprio_set, [3, 0, 7 << 13])
    }),
    ("the I/O priority of the process group", Refused, || {
        call(libc::SYS_ioprio_set, [2, 0, 7 << 13])
    }),
    // Without a parameter, which the kernel refuses.
    ("the scheduling policy of the parent", Refused, || {
        let parent = std::os::unix::process::parent_id() as usize;
        let idle = libc::SCHED_IDLE as usize;
        call(libc::SYS_sched_setscheduler, [parent, idle, 0])
    }),
    ("become root", Refused, || {
        let me = rustix::process::getuid().as_raw() as usize;
        call(libc::SYS_setresuid, [me, me, me])
    }),
    ("raise a limit", Refused, || {
        let limit = [0_u64; 2];
        let core = libc::RLIMIT_CORE as usize;
        call(libc::SYS_prlimit64, [0, core, limit.as_ptr().addr(), 0])
    }),
    ("type on the terminal", Refused, || {
        call(libc::SYS_ioctl, [0, libc::TIOCSTI as usize, path(c"x")])
    }),
    ("be dumpable again", Refused, || {
        call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1])
    }),
    ("another filter", Refused, || {
        call(libc::SYS_seccomp, [usize::MAX, 0, 0])
    }),
];

/// Exit code of an attempt that succeeded, and of one that failed is 2 plus its error number.
const SUCCEEDED: i32 = 1;
const FAILED: i32 = 2;

/// The containment of an attempt, by a word; `free` is none.
fn profile(word: &str) -> Option<Profile> {
    match word {
        "descriptors" => Some(Profile::Descriptors),
        "reading" => Some(Profile::DescriptorsAndReading),
        "serving" => Some(Profile::Serving),
        _ => None,
    }
}

fn attempt(name: &str, profile: Option<Profile>) -> i32 {
    let (.., run) = ATTEMPTS
        .iter()
        .find(|(known, ..)| *known == name)
        .expect("a known attempt");
    if let Some(profile) = profile {
        let containment = match profile {
            Profile::Serving => Containment::new(profile).as_own_user(),
            _ => Containment::new(profile),
        };
        let contained = containment.enter().expect("this process has one thread");
        let mut missing = contained.missing;
        // Where users may not make user namespaces; the other parts must hold.
        missing.retain(|part| profile != Profile::Serving || !part.starts_with("network"));
        assert_eq!(missing, Vec::<String>::new());
    }
    match run() {
        Ok(()) => SUCCEEDED,
        Err(number) => FAILED + number,
    }
}

/// Runs this program with these words, as another user if `user` is one.
fn again(words: &[&str], user: Option<u32>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(words);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command
}

fn stopped(status: ExitStatus) -> Option<Stopped> {
    let refusals = [libc::EPERM, libc::EACCES, libc::ENOSYS].map(|number| FAILED + number);
    match (status.signal(), status.code()) {
        (Some(libc::SIGSYS), _) => Some(Killed),
        (None, Some(code)) if refusals.contains(&code) => Some(Refused),
        _ => None,
    }
}

/// What the profiles for reading and serving allow: attributes of files are visible.
const STAT: &str = "stat a file";
/// What the profile for serving allows: use of the rings that were made and restricted before.
const ENTER_RING: &str = "enter an io_uring";
const REGISTER_WITH_RING: &str = "register with an io_uring";

/// What stops an attempt with this containment.
fn expected(name: &str, stopped: Stopped, how: &str) -> Option<Stopped> {
    match (how, name) {
        ("reading" | "serving", STAT) | ("serving", ENTER_RING) => None,
        ("serving", REGISTER_WITH_RING) => Some(Refused),
        _ => Some(stopped),
    }
}

fn attempts_are_stopped(user: Option<u32>) {
    let run = |name: &str, how: &str| {
        let status = again(&["attempt", name, how], user).status();
        status.expect("this program starts")
    };
    for (name, stops, _) in ATTEMPTS {
        for how in ["descriptors", "reading", "serving"] {
            let status = run(name, how);
            let wanted = expected(name, *stops, how);
            assert_eq!(stopped(status), wanted, "{how}: {name}: {status}");
        }
        // Without privileges the kernel itself refuses some.
        if user.is_none() && rustix::process::geteuid().is_root() {
            let status = run(name, "free");
            assert_ne!(
                stopped(status),
                Some(*stops),
                "{name} without containment: {status}"
            );
        }
    }
}

/// What the program needs still works: descriptors, memory, threads, an abort.
fn work() {
    let mut file = File::open("/proc/self/status").expect("a file of this process");
    let contained = Containment::new(Profile::Descriptors).enter();
    assert_eq!(contained.expect("one thread").missing, Vec::<String>::new());
    let mut text = String::new();
    file.read_to_string(&mut text)
        .expect("an open file can be read");
    let sum = std::thread::spawn(|| vec![1_u8; 64 << 20].len()).join();
    assert_eq!(sum.expect("the thread ends"), 64 << 20);
    std::io::stdout()
        .write_all(text.as_bytes())
        .expect("standard output is open");
    std::process::abort();
}

fn rights_are_gone() {
    let mut child = again(&["work"], None)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut status = String::new();
    let mut out = child.stdout.take().expect("a pipe");
    out.read_to_string(&mut status).expect("text");
    let ended = child.wait().expect("ends");
    assert_eq!(ended.signal(), Some(libc::SIGABRT), "{ended}");
    assert!(!ended.core_dumped());
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).unwrap_or_default().to_owned()
    };
    assert_eq!(value("NoNewPrivs:"), "1");
    assert_eq!(value("Seccomp:"), "2");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(value(set), "0000000000000000", "{set}");
    }
    if rustix::process::geteuid().is_root() {
        assert_eq!(value("CapBnd:"), "0000000000000000");
    }
}

/// Only what is named can be read, and nothing written.
fn read() {
    let folder = tempfile::tempdir().expect("a folder");
    let (named, other) = (folder.path().join("named"), folder.path().join("other"));
    for file in [&named, &other] {
        fs::write(file, "x").expect("a file");
    }
    let contained = Containment::new(Profile::DescriptorsAndReading)
        .readable(&named)
        .readable("/no-such-file")
        .enter();
    assert_eq!(contained.expect("one thread").missing, Vec::<String>::new());
    assert_eq!(fs::read(&named).expect("the named file can be read"), b"x");
    let refused = [libc::EPERM, libc::EACCES].map(Some);
    let number = |error: std::io::Error| error.raw_os_error();
    for error in [
        fs::read(&other).map(drop),
        fs::read_dir(folder.path()).map(drop),
        fs::write(&named, "y"),
        fs::write(folder.path().join("new"), "y"),
        fs::remove_file(&named),
    ] {
        assert!(refused.contains(&number(error.expect_err("refused"))));
    }
}

/// On a kernel without Landlock the part is named, and the others hold.
fn without_landlock() {
    let call = vec![(libc::SYS_landlock_create_ruleset, Vec::new())];
    let filter = SeccompFilter::new(
        call.into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.unsigned_abs()),
        std::env::consts::ARCH
            .try_into()
            .expect("a known architecture"),
    );
    let program: BpfProgram = filter.and_then(TryInto::try_into).expect("a filter");
    seccompiler::apply_filter(&program).expect("filters can be installed");
    let contained = Containment::new(Profile::Descriptors).enter();
    let missing = contained.expect("one thread").missing;
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert!(missing[0].starts_with("Landlock: "), "{missing:?}");
    assert_eq!(open(c"/etc/passwd", libc::O_RDONLY), Err(libc::EPERM));
}

fn threads_are_counted() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || receiver.recv());
    let refused = Containment::new(Profile::Descriptors).enter();
    assert!(refused.is_err(), "{refused:?}");
    drop(sender);
    assert!(other.join().expect("the thread ends").is_err());
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["attempt", name, how] => std::process::exit(attempt(name, profile(how))),
        ["without Landlock"] => return without_landlock(),
        ["work"] => return work(),
        ["read"] => return read(),
        _ => {}
    }
    threads_are_counted();
    rights_are_gone();
    for part in ["read", "without Landlock"] {
        let status = again(&[part], None).status().expect("starts");
        assert!(status.success(), "{part}: {status}");
    }
    attempts_are_stopped(None);
    if rustix::process::geteuid().is_root() {
        const NOBODY: u32 = 65534;
        attempts_are_stopped(Some(NOBODY));
    }
    println!("{} attempts were stopped", ATTEMPTS.len());
}
