//! Questions about the host's processes and cgroups.
//!
//! **Problem.** Some answers depend on the caller's process, which the server reads in /proc and in the cgroup file
//! systems. A contained server has no path. **Rule.** Whatever a server asks while it serves is a [`Question`]. A server
//! with paths answers itself ([`Question::answer`]); a contained one sends the question to its broker, which answers
//! these questions and no others.

use std::fs::{File, read_dir, read_link, read_to_string};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use rustix::fs::{MemfdFlags, memfd_create};
use steadfs_rt::cpu::{ThreadRequest, help_thread};

use crate::ioctl::SHUTDOWN;
use crate::sys;
use steadfs_rt::groups::{Hierarchy, Weight};

/// CAP_SYS_ADMIN as a bit of a capability set, linux/capability.h.
const SYS_ADMIN: u64 = 1 << 21;
/// SIGKILL as a bit of a signal set.
const SIGKILL: u64 = 1 << 8;

/// ioctl(2) of 32-bit programs on x86 and ARM.
const IOCTL_32_BIT: i64 = 54;

/// A question about the host. A pid is that of a thread in the server's PID namespace; 0 is no visible process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether a process has CAP_SYS_ADMIN in the user namespace of the mount.
    IsAdmin(u32),
    /// Whether a thread is being killed.
    IsDying(u32),
    /// The process of a thread.
    ProcessOf(u32),
    /// Whether all threads of a process, which was visible before, have ended or are about to.
    HasEnded(u32),
    /// The argument of an FS_IOC_SHUTDOWN that a thread is calling with this address. The kernel does not send it, since
    /// the command's number declares an argument that is written.
    ShutdownMode { pid: u32, address: u64 },
    /// Whether a thread has this supplementary group, which the kernel sends only with requests that make an inode.
    IsInGroup { pid: u32, gid: u32 },
    /// The cgroup of a process, as a path below the hierarchy's root.
    GroupOf(u32),
    /// The command name of a thread, for the list of waiting requests.
    CommandOf(u32),
    /// The weight of a cgroup.
    WeightOf(String),
    /// Whether a thread of the server got what it may not take itself.
    Thread(i32, ThreadRequest),
}

/// An answer; [`Answer::Unknown`] where the host does not show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Unknown,
    Is(bool),
    Word(u32),
    /// The path of a cgroup, or the name of a command.
    Group(String),
    Weight(Weight),
}

/// Answers questions for this process.
pub(crate) trait Host: Send + Sync {
    fn ask(&self, question: Question) -> Answer;

    /// Opens the FUSE device.
    fn fuse_device(&self) -> io::Result<OwnedFd>;

    /// Makes the file for the result of closing the volume, and returns the process that keeps it open, and its descriptor
    /// there.
    fn close_result(&self) -> io::Result<(OwnedFd, i32, i32)>;

    /// What a successor needs if this server ends without handing over; empty: it has none.
    fn set_standby(&self, text: &str);

    /// The file for the records of the mount's calls, which outlives this process.
    fn record_file(&self) -> io::Result<OwnedFd>;

    /// Asks for a successor of this server; returns this server's number.
    fn upgrade(&self) -> Result<u32, String>;

    /// Whether the server with this number has its successor; an error is why it will not have one.
    fn has_successor(&self, server: u32) -> Result<bool, String>;

    /// If this host knows no caller's rights, the reason for a caller that wants to administer the mount.
    fn no_administration(&self) -> Option<&'static str> {
        None
    }
}

/// Why a server without a broker cannot be replaced.
const NO_BROKER: &str =
    "the server of this mount has no broker that could start another one (sandbox=off)";

/// A file for the result of closing a volume.
pub(crate) fn new_close_result() -> io::Result<OwnedFd> {
    Ok(memfd_create("steadfs-close-result", MemfdFlags::CLOEXEC)?)
}

/// The process reads the host's files itself.
struct OwnFiles;

impl Host for OwnFiles {
    fn ask(&self, question: Question) -> Answer {
        static HIERARCHY: OnceLock<Option<Hierarchy>> = OnceLock::new();
        question.answer(HIERARCHY.get_or_init(Hierarchy::find).as_ref())
    }

    fn fuse_device(&self) -> io::Result<OwnedFd> {
        sys::open_device()
    }

    fn close_result(&self) -> io::Result<(OwnedFd, i32, i32)> {
        let file = new_close_result()?;
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let descriptor = file.as_raw_fd();
        Ok((file, process, descriptor))
    }

    fn set_standby(&self, _: &str) {}

    fn record_file(&self) -> io::Result<OwnedFd> {
        Err(io::Error::other(NO_BROKER))
    }

    fn upgrade(&self) -> Result<u32, String> {
        Err(NO_BROKER.to_owned())
    }

    fn has_successor(&self, _: u32) -> Result<bool, String> {
        Err(NO_BROKER.to_owned())
    }
}

static HOST: OnceLock<Arc<dyn Host>> = OnceLock::new();

/// Sends the questions of this process to `host` from now on. Call it before anything is mounted or asked.
pub(crate) fn set_host(host: Arc<dyn Host>) {
    assert!(HOST.set(host).is_ok(), "a process has one broker");
}

fn host() -> &'static dyn Host {
    HOST.get().map_or(&OwnFiles, |host| &**host)
}

/// Asks the process's host.
pub(crate) fn ask(question: Question) -> Answer {
    host().ask(question)
}

/// Opens the FUSE device.
pub(crate) fn fuse_device() -> io::Result<OwnedFd> {
    host().fuse_device()
}

/// The file for the result of closing the volume, the process that keeps it open, and its descriptor there.
pub(crate) fn close_result() -> io::Result<(OwnedFd, i32, i32)> {
    host().close_result()
}

/// See [`Host::set_standby`].
pub(crate) fn set_standby(text: &str) {
    host().set_standby(text);
}

/// See [`Host::record_file`].
pub(crate) fn record_file() -> io::Result<OwnedFd> {
    host().record_file()
}

/// See [`Host::upgrade`] for an empty text, [`Host::has_successor`] for a number; the answer is `done`, or a number that
/// is to be asked about again.
pub(crate) fn upgrade(server: &str) -> Result<String, String> {
    if server.is_empty() {
        return host().upgrade().map(|server| server.to_string());
    }
    let number = server
        .parse()
        .map_err(|_| "not the number of a server".to_owned())?;
    Ok(match host().has_successor(number)? {
        true => "done".to_owned(),
        false => server.to_owned(),
    })
}

/// See [`Host::no_administration`].
pub(crate) fn no_administration() -> Option<&'static str> {
    host().no_administration()
}

/// Asks a question whose answer is yes or no; unknown is no.
pub(crate) fn is(question: Question) -> bool {
    ask(question) == Answer::Is(true)
}

impl Question {
    /// The answer from the host's files; `hierarchy` is that of the cgroups.
    pub(crate) fn answer(&self, hierarchy: Option<&Hierarchy>) -> Answer {
        match self {
            Self::IsAdmin(pid) => Answer::Is(has_capability(*pid) && shares_namespace(*pid)),
            Self::IsDying(pid) => Answer::Is(is_being_killed(*pid)),
            Self::ProcessOf(pid) => match process_of(*pid) {
                Some(process) => Answer::Word(process),
                None => Answer::Unknown,
            },
            Self::HasEnded(process) => Answer::Is(has_ended(*process)),
            Self::IsInGroup { pid, gid } => Answer::Is(is_in_group(*pid, *gid)),
            Self::ShutdownMode { pid, address } => match shutdown_mode(*pid, *address) {
                Ok(word) => Answer::Word(word),
                Err(error) => {
                    tracing::warn!(pid, %error, "cannot read the shutdown mode from the caller's memory");
                    Answer::Unknown
                }
            },
            Self::GroupOf(pid) => match hierarchy.and_then(|found| found.group_of(*pid)) {
                Some(group) => Answer::Group(group),
                None => Answer::Unknown,
            },
            Self::CommandOf(pid) => match command_of(*pid) {
                Some(name) => Answer::Group(name),
                None => Answer::Unknown,
            },
            Self::WeightOf(group) => match hierarchy {
                Some(found) => Answer::Weight(found.weight(group)),
                None => Answer::Unknown,
            },
            Self::Thread(tid, request) => {
                Answer::Is(is_of_child(*tid) && help_thread(*tid, *request))
            }
        }
    }
}

/// Whether a thread is of a process that this one has started.
fn is_of_child(tid: i32) -> bool {
    // Asked up to a thousand times a second: one short read. The name has at most 64 bytes, and may contain any.
    let mut stat = [0; 128];
    let read = File::open(format!("/proc/{tid}/stat")).and_then(|file| file.read_at(&mut stat, 0));
    let parent = read.ok().and_then(|len| parent_in(&stat[..len]));
    parent == Some(std::process::id())
}

/// The parent in proc(5)'s `stat`: "tid (name) state parent …".
fn parent_in(stat: &[u8]) -> Option<u32> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// False for a process that is not visible from here.
fn has_capability(pid: u32) -> bool {
    set_of(pid, "CapEff:").is_some_and(|set| set & SYS_ADMIN != 0)
}

/// Every thread of a process that a signal terminates has SIGKILL pending.
fn is_being_killed(pid: u32) -> bool {
    pid != 0 && set_of(pid, "SigPnd:").is_some_and(|set| set & SIGKILL != 0)
}

fn process_of(pid: u32) -> Option<u32> {
    line_in(&status_of(pid), "Tgid:")?.trim().parse().ok()
}

/// A name without control characters, such as the end of a message.
fn command_of(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    let shown = |c: char| if c.is_control() { '?' } else { c };
    Some(name.trim_end_matches('\n').chars().map(shown).collect())
}

/// A thread that ends has the flag PF_EXITING, from before it closes its files.
fn has_ended(process: u32) -> bool {
    let threads = match read_dir(format!("/proc/{process}/task")) {
        Ok(threads) => threads,
        Err(error) => return is_gone(&error),
    };
    let mut exiting = false;
    for thread in threads {
        let stat = thread.and_then(|thread| std::fs::read(thread.path().join("stat")));
        match stat {
            Ok(stat) if is_exiting(&stat) => exiting = true,
            Err(error) if is_gone(&error) => {}
            // What cannot be read for another reason, such as too many open files, may be running.
            Ok(_) | Err(_) => return false,
        }
    }
    let again = std::fs::metadata(format!("/proc/{process}"));
    exiting || again.is_err_and(|error| is_gone(&error))
}

/// Whether procfs says that there is no such process or thread.
fn is_gone(error: &io::Error) -> bool {
    let no_process = Some(rustix::io::Errno::SRCH.raw_os_error());
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == no_process
}

/// Whether proc(5)'s `stat` has PF_EXITING among the thread's flags, its ninth field.
fn is_exiting(stat: &[u8]) -> bool {
    const PF_EXITING: u32 = 4;
    let end = stat.iter().rposition(|byte| *byte == b')').unwrap_or(0);
    let fields = String::from_utf8_lossy(&stat[end..]);
    let flags = fields.split_ascii_whitespace().nth(7);
    let flags: Option<u32> = flags.and_then(|flags| flags.parse().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

/// False for a thread that is not visible from here.
fn is_in_group(pid: u32, gid: u32) -> bool {
    lists_group(&status_of(pid), gid)
}

fn lists_group(status: &str, gid: u32) -> bool {
    let groups = line_in(status, "Groups:").unwrap_or_default();
    let mut groups = groups.split_ascii_whitespace();
    groups.any(|group| group.parse() == Ok(gid))
}

/// A thread's proc_pid_status(5); empty if it is not visible from here.
fn status_of(pid: u32) -> String {
    read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

fn line_in<'a>(status: &'a str, label: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(label))
}

/// A line with a set of bits in a thread's status.
fn set_of(pid: u32, label: &str) -> Option<u64> {
    set_in(&status_of(pid), label)
}

fn set_in(status: &str, label: &str) -> Option<u64> {
    u64::from_str_radix(line_in(status, label)?.trim(), 16).ok()
}

/// A process that does not run as root may not read the namespaces of root's processes; it takes them for its own.
fn shares_namespace(pid: u32) -> bool {
    let own = read_link("/proc/self/ns/user").ok();
    match read_link(format!("/proc/{pid}/ns/user")) {
        Ok(callers) => own == Some(callers),
        // A kernel without user namespaces.
        Err(_) if own.is_none() => true,
        Err(_) => steadfs_rt::kernel_ids().0 != 0,
    }
}

/// A server cannot use this to read anything else: the thread must be in this call.
fn shutdown_mode(pid: u32, address: u64) -> io::Result<u32> {
    let call = read_to_string(format!("/proc/{pid}/syscall"))?;
    if !is_shutdown(&call, address) {
        return Err(io::Error::other("the thread makes another call"));
    }
    let mut word = [0; 4];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut word, address)?;
    Ok(u32::from_ne_bytes(word))
}

/// Whether a thread's `/proc/PID/syscall`, the number of the call and its arguments, is this ioctl(2).
fn is_shutdown(call: &str, address: u64) -> bool {
    let mut words = call.split_ascii_whitespace();
    let number: Option<i64> = words.next().and_then(|word| word.parse().ok());
    let mut arguments =
        words.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let (_fd, command, argument) = (arguments.next(), arguments.next(), arguments.next());
    matches!(number, Some(libc::SYS_ioctl | IOCTL_32_BIT))
        && command == Some(Some(SHUTDOWN.into()))
        && argument == Some(Some(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_from_a_status() {
        let status = "Name:\tsh\nSigPnd:\t0000000000000100\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000200000\n";
        assert_eq!(set_in(status, "CapEff:"), Some(SYS_ADMIN));
        assert_eq!(set_in(status, "SigPnd:"), Some(SIGKILL));
        for none in ["", "CapEff:", "CapEff:\tall", "CapPrm:\t1"] {
            assert_eq!(set_in(none, "CapEff:"), None, "{none:?}");
        }
    }

    #[test]
    fn the_parent_is_read_behind_any_name() {
        for (stat, parent) in [
            ("12 (sh) S 7 12 12 0", Some(7)),
            ("12 (x) S 9 (y) S 9) R 7 12", Some(7)),
            ("12 (sh", None),
            ("12 (sh) S", None),
            ("12 (sh) S x 12", None),
        ] {
            assert_eq!(parent_in(stat.as_bytes()), parent, "{stat}");
        }
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let tid = child.id().cast_signed();
        assert!(is_of_child(tid));
        child.kill().unwrap();
        child.wait().unwrap();
        for other in [tid, -1, std::process::id().cast_signed()] {
            assert!(!is_of_child(other), "{other}");
        }
    }

    #[test]
    fn supplementary_groups_are_read_from_a_status() {
        let status = "Gid:\t5\t5\t5\t5\nGroups:\t4 2000 65534 \n";
        for (gid, is) in [
            (4, true),
            (2000, true),
            (65_534, true),
            (5, false),
            (200, false),
        ] {
            assert_eq!(lists_group(status, gid), is, "{gid}");
        }
        assert!(!lists_group("Groups:\t \n", 0));
        assert!(!lists_group("", 0));
        let stranger = Question::IsInGroup {
            pid: u32::MAX,
            gid: 0,
        };
        assert_eq!(stranger.answer(None), Answer::Is(false));
    }

    #[test]
    fn invisible_processes_have_no_rights_and_no_group() {
        for pid in [0, u32::MAX] {
            assert_eq!(Question::IsAdmin(pid).answer(None), Answer::Is(false));
            assert_eq!(Question::IsDying(pid).answer(None), Answer::Is(false));
            assert_eq!(Question::GroupOf(pid).answer(None), Answer::Unknown);
            let word = Question::ShutdownMode { pid, address: 0 };
            assert_eq!(word.answer(None), Answer::Unknown);
        }
        let own = Question::IsDying(std::process::id());
        assert_eq!(own.answer(None), Answer::Is(false));
    }

    #[test]
    fn only_the_argument_of_a_shutdown_is_read() {
        let command = SHUTDOWN;
        let by = |number, command| {
            format!("{number} 0x3 {command:#x} 0x7ffd10 0x0 0x0 0x0 0x7ffe 0x7fff\n")
        };
        assert!(is_shutdown(&by(IOCTL_32_BIT, command), 0x7f_fd10));
        assert!(!is_shutdown(&by(libc::SYS_ioctl + 1, command), 0x7f_fd10));
        let call = |command| by(libc::SYS_ioctl, command);
        assert!(is_shutdown(&call(command), 0x7f_fd10));
        assert!(!is_shutdown(&call(command), 0x7f_fd14));
        assert!(!is_shutdown(&call(command + 1), 0x7f_fd10));
        for other in ["running\n", "", "-1 0x0 0x0\n", "0 0x3 0x7ffd10 0x7ffd10\n"] {
            assert!(!is_shutdown(other, 0x7f_fd10), "{other:?}");
        }
        let word = 0x1234_5678_u32;
        let address = &raw const word as u64;
        let pid = std::process::id();
        let question = Question::ShutdownMode { pid, address };
        assert_eq!(question.answer(None), Answer::Unknown);
    }
}
