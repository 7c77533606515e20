//! Containment: a process gives up its rights over the host before it parses a volume.
//!
//! **Problem.** A volume can be made by an attacker. The parsers are memory-safe, but the dependencies, the compiler and
//! the kernel interface can have defects, and a command that root runs has every right on the host.
//!
//! **Rule.** A process opens the descriptors that it needs, calls [`Containment::enter`] and only then reads the first
//! byte of the volume. Afterwards it can use these descriptors, memory, time and threads, and what the caller has named;
//! nothing else. The parts are independent of each other, so that an attempt mostly meets more than one:
//!
//! | part | effect |
//! |---|---|
//! | `no_new_privs` | an exec(2) gains no rights |
//! | capabilities | none in any set: root is a user without privileges |
//! | Landlock | no path can be opened, made or removed, no TCP port used, no process outside signalled, beyond what is named |
//! | seccomp filter | system calls by an allow-list, see [`Profile`]; calls that only an attacker makes end the process |
//! | user and network | a server reaches no network, and root's is a user of its own ([`Containment::as_own_user`]) |
//! | `RLIMIT_CORE`, dumpable | no core dump, no ptrace(2) by other processes of the user |
//!
//! **Threads.** Landlock and capabilities belong to a thread and are inherited by the threads that it starts. So the
//! process must have one thread when it enters; this is checked.
//!
//! A part that the kernel lacks, or refuses, is reported in [`Contained::missing`]; the other parts hold.

#![forbid(unsafe_code)]

mod calls;
mod filter;
mod paths;
mod user;

use std::path::PathBuf;

use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The system calls that a contained process needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Reads and writes open descriptors. No call takes a path.
    Descriptors,
    /// The same; also opens files for reading and reads their attributes and directories. Landlock bounds which files can
    /// be opened; attributes of all files stay visible.
    DescriptorsAndReading,
    /// The same, and the calls of a server of FUSE: messages on sockets that are open, io_uring, priorities of threads.
    Serving,
}

/// Why a process was not contained.
#[derive(Debug, thiserror::Error)]
pub enum ContainError {
    /// Other threads would keep their rights.
    #[error("the process has {0} threads already")]
    Threads(usize),
}

/// What was contained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the kernel may lack a part"]
pub struct Contained {
    /// The parts that are not in effect, with the reason.
    pub missing: Vec<String>,
}

/// What a contained process keeps.
#[derive(Clone, Debug)]
pub struct Containment {
    profile: Profile,
    readable: Vec<PathBuf>,
    own_user: bool,
    ends_with_parent: bool,
}

impl Containment {
    /// Keeps the open descriptors and the calls of `profile`.
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            readable: Vec::new(),
            own_user: false,
            ends_with_parent: false,
        }
    }

    /// The process is killed when its parent ends. It belongs here because a new user clears that.
    #[must_use]
    pub fn ends_with_parent(mut self) -> Self {
        self.ends_with_parent = true;
        self
    }

    /// The process enters a network of its own; root's becomes a user of its own.
    #[must_use]
    pub fn as_own_user(mut self) -> Self {
        self.own_user = true;
        self
    }

    /// Keeps the right to read the file at `path`, or all files beneath the directory. A path that does not exist is
    /// ignored. Not for [`Profile::Descriptors`].
    #[must_use]
    pub fn readable(mut self, path: impl Into<PathBuf>) -> Self {
        assert!(
            self.profile != Profile::Descriptors,
            "this profile opens no file"
        );
        self.readable.push(path.into());
        self
    }

    /// Gives up all other rights, for the rest of the process's life.
    ///
    /// # Errors
    /// Nothing was given up.
    pub fn enter(&self) -> Result<Contained, ContainError> {
        // Without /proc the number of threads is not known.
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads != 1 {
            return Err(ContainError::Threads(threads));
        }
        // Before another user loses the right to do it.
        let bounding_set = drop_bounding_set();
        let (own_network, own_user) = match self.own_user {
            true => (user::enter_own_network(), user::become_own()),
            false => (Ok(()), Ok(())),
        };
        let with_parent = match self.ends_with_parent {
            true => rustix::process::set_parent_process_death_signal(Some(Signal::KILL)),
            false => Ok(()),
        };
        let steps: [(&str, Result<(), String>); 8] = [
            ("network of its own", own_network),
            ("user of its own", own_user),
            ("end with its parent", with_parent.map_err(words)),
            (
                "no_new_privs",
                rustix::thread::set_no_new_privs(true).map_err(words),
            ),
            ("no core dumps", no_dumps()),
            ("Landlock", paths::restrict(&self.readable)),
            (
                "no capabilities",
                bounding_set.and_then(|()| drop_capabilities()),
            ),
            // Last: the steps before it make calls that it refuses.
            ("seccomp filter", filter::install(self.profile)),
        ];
        let missing = steps
            .into_iter()
            .filter_map(|(part, done)| Some(format!("{part}: {}", done.err()?)));
        Ok(Contained {
            missing: missing.collect(),
        })
    }
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// No core file, which could hold content of the volume, and no ptrace(2) by other processes of the user.
fn no_dumps() -> Result<(), String> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, none).map_err(words)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(words)
}

/// Bounds what an exec(2) could gain. Without CAP_SETPCAP, no_new_privs and the filter do that alone.
fn drop_bounding_set() -> Result<(), String> {
    let held = rustix::thread::capabilities(None).map_err(words)?;
    if !held.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for capability in CapabilitySet::all().iter() {
        if rustix::thread::capability_is_in_bounding_set(capability).unwrap_or(false) {
            rustix::thread::remove_capability_from_bounding_set(capability).map_err(words)?;
        }
    }
    Ok(())
}

fn drop_capabilities() -> Result<(), String> {
    // A service that was started without any may not make the calls.
    let held = rustix::thread::capabilities(None).map_err(words)?;
    let has_none = [held.effective, held.permitted, held.inheritable]
        .iter()
        .all(CapabilitySet::is_empty);
    if has_none {
        return Ok(());
    }
    rustix::thread::clear_ambient_capability_set().map_err(words)?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).map_err(words)
}
