//! Commands that parse a hostile volume: the rights of the process that parses, and what hostile content does to the host.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};
use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::{PATIENCE, finish, until};
use steadfs_suite::stead::program;
use steadfs_suite::{Image, Outcome, Scratch, steadfs, succeed};

#[path = "contained/hostile_content.rs"]
mod hostile_content;

/// Debian's unprivileged user and group.
const NOBODY: u32 = 65_534;

/// A folder that an unprivileged user can use, too, with the program in it.
struct Place {
    scratch: Scratch,
    program: PathBuf,
}

impl Place {
    fn new() -> Self {
        let scratch = Scratch::new();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let own = scratch.join("steadfs");
        succeed("cp", [program(), &own]);
        Self {
            scratch,
            program: own,
        }
    }

    fn join(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// A volume that holds the content of `folder`, readable by all.
    fn volume(&self, name: &str, kind: &str, folder: &str) -> PathBuf {
        let path = self.join(name);
        let from = self.join(folder);
        let words = ["format", "-qf", "-t", kind];
        let places = [
            "-d".as_ref(),
            from.as_os_str(),
            path.as_os_str(),
            "64M".as_ref(),
        ];
        let words = words.map(str::as_ref).into_iter().chain(places);
        steadfs(words).expect(0);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    }

    fn command(&self, user: u32, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(self.scratch.path());
        if user != 0 {
            command.uid(user).gid(user);
        }
        command
    }

    #[track_caller]
    fn run(&self, user: u32, words: &[&str]) -> Outcome {
        finish(self.command(user, words), PATIENCE)
    }
}

/// The processes whose parent is `parent`.
fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = parent.to_string();
    ids.filter(|id| value(*id, "PPid:").as_deref() == Some(parent.as_str()))
        .collect()
}

/// A line of proc_pid_status(5).
fn value(process: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

#[track_caller]
fn assert_contained(process: u32) {
    let is = |name: &str| value(process, name).unwrap();
    assert_eq!(is("Seccomp:"), "2");
    assert_eq!(is("NoNewPrivs:"), "1");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(is(set), "0000000000000000", "{set}");
    }
}

/// A command that is blocked, because nothing reads its standard output.
struct Blocked {
    child: Child,
}

impl Blocked {
    /// A pipe that is full, so that the first line of output blocks.
    fn with_full_pipe(mut command: Command) -> (Self, rustix::fd::OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        let child = command.stdin(Stdio::null()).stdout(writer).spawn().unwrap();
        (Self { child }, reader)
    }

    fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

fn tree(place: &Place) {
    let folder = place.scratch.folder("tree");
    fs::write(folder.join("file"), vec![7; 1 << 20]).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The process that parses has no rights, and no descriptor but the image, its socket and a pipe for messages.
#[test]
fn workers_have_no_rights() {
    let place = Place::new();
    tree(&place);
    for kind in ["ext4", "f2fs"] {
        let image = place.volume("a.img", kind, "tree");
        let words = ["cat", "a.img:/file"];
        for user in [0, NOBODY] {
            let (command, _reader) = Blocked::with_full_pipe(place.command(user, &words));
            let mut workers = Vec::new();
            until("a contained worker", || {
                workers = children(command.id());
                workers.len() == 1 && value(workers[0], "Seccomp:").as_deref() == Some("2")
            });
            let worker = workers[0];
            assert_contained(worker);
            assert_eq!(value(command.id(), "Seccomp:").as_deref(), Some("0"));
            let open = fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
            for entry in open {
                let target = fs::read_link(entry.unwrap().path()).unwrap();
                let text = target.to_str().unwrap();
                let allowed = text.starts_with("socket:")
                    || text.starts_with("pipe:")
                    || target == Path::new("/dev/null")
                    || target == image;
                assert!(allowed, "{text}");
            }
            // The worker is killed with the command.
            drop(command);
            until("the worker's end", || {
                value(worker, "State:").is_none_or(|state| state.starts_with('Z'))
            });
        }
        // Without the sandbox there is no worker.
        let words = ["cat", "--sandbox=off", "a.img:/file"];
        let (command, _reader) = Blocked::with_full_pipe(place.command(0, &words));
        until("a command that waits", || {
            let state = value(command.id(), "State:");
            let name = fs::read_to_string(format!("/proc/{}/comm", command.id()));
            name.is_ok_and(|name| name.trim() == "steadfs")
                && state.is_some_and(|state| state.starts_with('S'))
        });
        assert_eq!(children(command.id()), Vec::<u32>::new());
        assert_eq!(value(command.id(), "Seccomp:").as_deref(), Some("0"));
    }
}

/// `check` and `inspect` contain themselves.
#[test]
fn reports_are_made_without_rights() {
    let place = Place::new();
    tree(&place);
    for kind in ["ext4", "f2fs"] {
        place.volume("a.img", kind, "tree");
        for word in ["check", "inspect"] {
            for user in [0, NOBODY] {
                let (command, _reader) =
                    Blocked::with_full_pipe(place.command(user, &[word, "a.img"]));
                until("a contained command", || {
                    value(command.id(), "Seccomp:").as_deref() == Some("2")
                });
                assert_contained(command.id());
            }
        }
    }
}

/// A command whose worker is killed in the middle ends with an error, and leaves no partial file.
#[test]
fn a_killed_worker_ends_the_command() {
    let place = Place::new();
    let folder = place.scratch.folder("tree");
    fs::write(folder.join("file"), vec![7; 32 << 20]).unwrap();
    place.volume("a.img", "ext4", "tree");
    // A pipe as target: the copy blocks in the middle of the file.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = place.command(0, &["cp", "a.img:/file", "-"]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(command);
    reader.read_exact(&mut [0; 100]).unwrap();
    let worker = children(child.id())[0];
    let worker = Pid::from_raw(worker.cast_signed()).unwrap();
    kill_process(worker, Signal::KILL).unwrap();
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    let mut messages = String::new();
    let mut pipe = child.stderr.take().unwrap();
    pipe.read_to_string(&mut messages).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{messages}");
    assert!(messages.contains("was ended by signal 9"), "{messages}");
}

/// An image can be given by a descriptor, which the worker does not have.
#[test]
fn images_are_given_by_descriptors() {
    let place = Place::new();
    tree(&place);
    let image = place.volume("a.img", "ext4", "tree");
    for user in [0, NOBODY] {
        for path in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
            for word in ["ls", "inspect"] {
                let mut command = place.command(user, &[word, path]);
                command.stdin(File::open(&image).unwrap());
                let output = command.output().unwrap();
                assert!(output.status.success(), "{word} {path}: {output:?}");
                assert!(!output.stdout.is_empty(), "{word} {path}");
            }
        }
    }
}

#[test]
fn the_sandbox_is_switched_by_option_and_environment() {
    let place = Place::new();
    tree(&place);
    place.volume("a.img", "ext4", "tree");
    let engine = ["ls", "-o", "io_engine=uring", "a.img"];
    let refused = place.run(0, &engine).expect(1);
    assert!(refused.err.contains("--sandbox=off"), "{}", refused.err);
    let mut off = place.command(0, &engine);
    off.env("STEADFS_SANDBOX", "off");
    assert!(finish(off, PATIENCE).expect(0).out.contains("file"));
    let mut on = place.command(0, &["ls", "--sandbox=on", "-o", "io_engine=uring", "a.img"]);
    on.env("STEADFS_SANDBOX", "off");
    finish(on, PATIENCE).expect(1);
    let mut wrong = place.command(0, &["ls", "a.img"]);
    wrong.env("STEADFS_SANDBOX", "maybe");
    let wrong = finish(wrong, PATIENCE).expect(1);
    assert!(wrong.err.contains("needs on or off"), "{}", wrong.err);
    let wrong = place.run(0, &["ls", "--sandbox=maybe", "a.img"]).expect(2);
    assert!(wrong.err.contains("needs on or off"), "{}", wrong.err);
}
