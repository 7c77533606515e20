//! Permissions: random calls of four users are answered, and leave the same files behind, as on the kernel's ext4.
//!
//! Each case is a sequence of calls in a folder of its own on two volumes: one that the kernel mounts, and one that
//! steadfs serves. Answers are compared after each call; owners, modes, access control lists, other attributes, links
//! and contents of the whole folder several times, and of all folders after both volumes were mounted again. A case
//! with a difference is reduced to the calls that show it.
//!
//! `STEADFS_PERMISSION_OPERATIONS=n` sets the number of calls on each format, `STEADFS_PERMISSION_SEED=n` the first
//! case.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use steadfs_suite::{Compare, Image, KernelMount, Scratch, SteadMount, Tree, run, succeed};

#[path = "permissions/acl.rs"]
mod acl;
#[path = "permissions/actor.rs"]
mod actor;
#[path = "permissions/ops.rs"]
mod ops;

use actor::Actor;
use ops::{Op, USERS};

/// Calls of a case.
const CASE: usize = 400;
/// Calls after which the trees are compared.
const COMPARED: usize = 100;
/// Calls on each format, unless the environment asks for more.
const OPERATIONS: usize = 6000;
/// Most differences that are reduced and reported.
const REPORTED: usize = 12;
const MIB: u64 = 1 << 20;

/// The process of a user.
#[test]
fn in_the_process_of_a_user() {
    actor::serve();
}

fn asked(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |number| number.parse().unwrap())
}

/// The rules of systemd's sysctl.d, which nearly every system has; a kernel starts without them.
fn protect_links() {
    for (name, value) in [
        ("hardlinks", "1"),
        ("symlinks", "1"),
        ("fifos", "1"),
        ("regular", "2"),
    ] {
        fs::write(format!("/proc/sys/fs/protected_{name}"), value).unwrap();
    }
}

/// A chown of nothing, by a caller that may not chown the file: ext4 refuses it if the file has set-ID bits. FUSE sends
/// the same request before such a caller writes to the file, which is permitted; a server cannot refuse one of them.
fn is_unknown_to_servers(call: &str, kernel: &str, ours: &str) -> bool {
    let of_nothing = call.contains("chown ") && call.contains(" - -");
    of_nothing && kernel.starts_with("Operation not permitted") && ours.starts_with("ok")
}

/// A call, or a comparison after it, that shows a difference.
struct Difference {
    /// Number of the call.
    at: usize,
    /// Equal for differences of the same kind.
    kind: String,
    /// What differs.
    text: String,
}

/// Two volumes and the processes of the users.
struct Pair<'a> {
    roots: [&'a Path; 2],
    actors: Vec<Actor>,
    folders: usize,
    /// Calls of each name that succeeded and failed.
    answers: BTreeMap<String, [usize; 2]>,
}

impl<'a> Pair<'a> {
    fn new(roots: [&'a Path; 2]) -> Self {
        let start = |user| Actor::start("in_the_process_of_a_user", user, roots);
        Self {
            roots,
            actors: (0..USERS.len()).map(start).collect(),
            folders: 0,
            answers: BTreeMap::new(),
        }
    }

    /// Makes the calls in a new folder of both volumes; compares the trees every `compared` calls and after the last.
    fn run(&mut self, ops: &[Op], compared: usize) -> Option<Difference> {
        let case = format!("case{}", self.folders);
        self.folders += 1;
        for root in self.roots {
            fs::create_dir(root.join(&case)).unwrap();
        }
        // Descriptors of the case before.
        for actor in &mut self.actors {
            actor.call(".", "hold nowhere r");
        }
        for (at, op) in ops.iter().enumerate() {
            let [kernel, ours] = self.actors[op.user].call(&case, &op.call);
            let counts = self.answers.entry(op.verb()).or_default();
            counts[usize::from(!kernel.starts_with("ok"))] += 1;
            if kernel != ours && !is_unknown_to_servers(&op.call, &kernel, &ours) {
                let kind = format!("{} {kernel} {ours}", op.verb());
                let text = format!("the kernel answers {kernel:?}, steadfs {ours:?}");
                return Some(Difference { at, kind, text });
            }
            if (at + 1) % compared == 0 || at + 1 == ops.len() {
                let lines = differences(self.roots.map(|root| root.join(&case)));
                if let Some(first) = lines.first() {
                    let words = first.split_whitespace().skip(1);
                    let kind = words.take(2).collect::<Vec<_>>().join(" ");
                    let text = format!("kernel | steadfs\n{}", lines.join("\n"));
                    return Some(Difference { at, kind, text });
                }
            }
        }
        None
    }

    /// Removes calls as long as the rest shows a difference of the same kind.
    fn reduce(&mut self, mut ops: Vec<Op>, kind: &str) -> (Vec<Op>, String) {
        let mut shown = String::new();
        let mut chunk = ops.len();
        while chunk > 0 {
            let mut end = ops.len();
            while end > 0 {
                let start = end.saturating_sub(chunk);
                let mut fewer = ops.clone();
                fewer.drain(start..end);
                match self.run(&fewer, 1) {
                    Some(difference) if difference.kind == kind => {
                        fewer.truncate(difference.at + 1);
                        ops = fewer;
                        shown = difference.text;
                        end = start.min(ops.len());
                    }
                    _ => end = start,
                }
            }
            chunk /= 2;
        }
        (ops, shown)
    }
}

/// Lines about files that differ. Times are not compared: the calls are made one after the other.
fn differences(places: [PathBuf; 2]) -> Vec<String> {
    let [kernel, ours] = places.map(|place| {
        let mut tree = Tree::of(&place);
        tree.nodes.values_mut().for_each(|node| node.mtime = (0, 0));
        tree
    });
    let compare = Compare {
        dir_nlink: true,
        ..Compare::COPY
    };
    kernel.differences(&ours, compare)
}

fn compare(format: &str) {
    protect_links();
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let kernel_image = Image::mke2fs(&scratch, "kernel.img", 512 * MIB, &["-t", "ext4"]);
    let image = match format {
        "ext4" => Image::mke2fs(&scratch, "ours.img", 512 * MIB, &["-t", "ext4"]),
        _ => Image::empty(&scratch, "ours.img", 512 * MIB),
    };
    if format == "f2fs" {
        succeed("mkfs.f2fs", ["-q", "-f", image.path().to_str().unwrap()]);
    }
    let mount = || {
        let kernel = KernelMount::new(&scratch, kernel_image.path(), "");
        (
            kernel,
            SteadMount::new(&scratch, image.path(), "allow_other"),
        )
    };
    let (kernel, ours) = mount();
    let (findings, folders) = cases([kernel.root(), ours.root()]);
    kernel.unmount();
    ours.unmount();
    assert!(findings.is_empty(), "{format}:\n{findings}");
    let (kernel, ours) = mount();
    for case in (0..folders).map(|number| format!("case{number}")) {
        let lines = differences([kernel.join(&case), ours.join(&case)]);
        assert!(lines.is_empty(), "mounted again: {case}: {lines:#?}");
    }
    kernel.unmount();
    ours.unmount();
    if format == "f2fs" {
        run(
            "fsck.f2fs",
            ["--dry-run".as_ref(), image.path().as_os_str()],
        )
        .expect(0);
    }
}

/// Runs all cases; returns a text of reduced cases with differences, and the number of their folders.
fn cases(roots: [&Path; 2]) -> (String, usize) {
    let operations = asked("STEADFS_PERMISSION_OPERATIONS", OPERATIONS);
    let first = asked("STEADFS_PERMISSION_SEED", 1);
    let mut pair = Pair::new(roots);
    let mut found: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for seed in first..first + operations.div_ceil(CASE) {
        let ops = ops::case(seed as u64, CASE);
        let Some(difference) = pair.run(&ops, COMPARED) else {
            continue;
        };
        if let Some((count, _)) = found.get_mut(&difference.kind) {
            *count += 1;
            continue;
        }
        if found.len() == REPORTED {
            break;
        }
        let (ops, text) = pair.reduce(ops[..=difference.at].to_vec(), &difference.kind);
        let mut report = format!("seed {seed}: {}\n{text}\n", difference.text);
        for op in ops {
            writeln!(report, "    {op}").unwrap();
        }
        found.insert(difference.kind, (1, report));
    }
    println!("calls that succeed and fail: {:?}", pair.answers);
    // A tree without open doors, or without closed ones, would show nothing.
    for (call, counts) in &pair.answers {
        let both = counts.iter().all(|&count| count > 0);
        assert!(both || call == "umask", "{call}: {counts:?}");
    }
    let texts = found
        .values()
        .map(|(count, text)| format!("{count} times, first with {text}"));
    (texts.collect::<Vec<_>>().join("\n"), pair.folders)
}

#[test]
fn ext4_answers_four_users_as_the_kernel_does() {
    compare("ext4");
}

#[test]
fn f2fs_answers_four_users_as_the_kernels_ext4_does() {
    compare("f2fs");
}
