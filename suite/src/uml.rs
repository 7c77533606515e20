//! The kernel's f2fs as judge, on hosts whose kernel has none: a User-Mode Linux that boots in about three seconds,
//! accesses the host's files, and has the image as its disk.
//!
//! Work that a shell cannot do runs the calling test's own program again, inside: see [`inside`].

use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::command::{Outcome, finish, judge};
use crate::fsyncs;
use crate::generate::{Torture, torture};
use crate::scratch::Scratch;
use crate::tree::Tree;

/// Mount point of the volume inside.
pub const TOP: &str = "/mnt/volume";
/// Modules of Debian's package.
const MODULES: &str = "/usr/lib/uml/modules";
/// Longest time from boot to end, in seconds.
const LIMIT: u64 = 900;
/// Variable with the work of the program inside: a verb and a path.
const WORK: &str = "STEADFS_UML_WORK";

/// Boots, runs `script` with the images as /dev/ubda, /dev/ubdb and so on, and powers off without any unmount or sync
/// beyond the script's. Returns the script's output.
///
/// # Panics
/// If User-Mode Linux is not installed, if it exceeds the limit, or if a command of the script fails.
#[track_caller]
pub fn boot(scratch: &Scratch, images: &[&Path], script: &str) -> String {
    assert!(
        Path::new(MODULES).is_dir(),
        "{MODULES} is missing: run scripts/install-judges"
    );
    boot_kernel("linux.uml", scratch, images, script)
}

/// As [`boot`], with the kernel that `scripts/judge-kernel` builds: f2fs with compression, casefold, encryption and
/// verity.
///
/// # Panics
/// As [`boot`].
#[track_caller]
pub fn boot_with_all_of_f2fs(scratch: &Scratch, images: &[&Path], script: &str) -> String {
    boot_kernel("linux-f2fs.uml", scratch, images, script)
}

#[track_caller]
fn boot_kernel(kernel: &str, scratch: &Scratch, images: &[&Path], script: &str) -> String {
    let dir = scratch.folder("uml");
    let init = dir.join("init");
    let (output, status) = (dir.join("output"), dir.join("status"));
    // Output of an earlier boot must not be taken for this one's.
    for file in [&output, &status] {
        let _ = fs::remove_file(file);
    }
    let (said_at, status_at) = (output.display(), status.display());
    let text = format!(
        "#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs none /mnt
mkdir -p /mnt/root/lib {TOP}
ln -s {MODULES} /mnt/root/lib/modules
exec > {said_at} 2>&1
grep -qw f2fs /proc/filesystems || modprobe -d /mnt/root f2fs
(set -e
{script}
)
echo $? > {status_at}
sync {said_at} {status_at}
echo o > /proc/sysrq-trigger
sleep {LIMIT}
"
    );
    fs::write(&init, text).expect("a script can be written");
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).expect("its mode can be set");
    // timeout(1) kills the whole process group, with the processes that run the guest.
    let mut command = Command::new(judge("timeout"));
    command
        .args(["--signal=KILL", &LIMIT.to_string()])
        .arg(judge(kernel))
        .args([
            "mem=512M",
            "root=none",
            "rootfstype=hostfs",
            "rootflags=/",
            "rw",
        ])
        .args(["con=null", "con0=fd:0,fd:1", "quiet"])
        .arg(format!("uml_dir={}/", dir.display()))
        .args(
            (0..)
                .zip(images)
                .map(|(n, image)| format!("ubd{n}={}", image.display())),
        )
        .arg(format!("init={}", init.display()));
    let booted = finish_without_xstate(command, Duration::from_secs(LIMIT + 10));
    let text = fs::read_to_string(&output).unwrap_or_default();
    let ended = fs::read_to_string(&status).unwrap_or_default();
    assert_eq!(ended.trim(), "0", "{text}\n{}\n{script}", booted.out);
    text
}

/// A kernel argument that becomes a variable of init's environment: glibc's SSE functions only.
const WITHOUT_AVX: &str = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,\
                           -AVX_Fast_Unaligned_Load";
/// Number of ptrace(2) on x86-64, the only architecture of User-Mode Linux here.
const PTRACE: i64 = 101;
/// Its request for a register set.
const GETREGSET: u64 = 0x4204;

/// Runs the kernel to its end, as [`finish`] does, on any CPU. Linux 6.1 has a fixed buffer for a process's extended
/// registers, which is too small for AMX: no process of the guest starts. If it cannot read them as a register set, it
/// uses the older call for the floating-point registers; so a seccomp filter refuses the register set (filters belong
/// to a thread and are inherited by its children). Each page fault of the guest then loses the upper halves of the
/// vector registers, so the guest's C library must not use them; Rust's own code for this architecture does not either.
fn finish_without_xstate(mut command: Command, limit: Duration) -> Outcome {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let is_too_large = cpus.contains(" amx_tile");
    std::thread::scope(|scope| {
        let booted = scope.spawn(|| {
            if is_too_large {
                command.arg(WITHOUT_AVX);
                refuse_getregset().expect("a seccomp filter can be set");
            }
            finish(command, limit)
        });
        booted.join().expect("the kernel was started")
    })
}

fn refuse_getregset() -> Result<(), seccompiler::Error> {
    let getregset = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, GETREGSET)?;
    let rules = [(PTRACE, vec![SeccompRule::new(vec![getregset])?])];
    let filter = SeccompFilter::new(
        rules.into(),
        SeccompAction::Allow,
        SeccompAction::Errno(Errno::INVAL.raw_os_error().unsigned_abs()),
        TargetArch::x86_64,
    )?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
}

/// A line of a script: the calling test's program makes a torture tree below [`TOP`].
pub fn make_torture() -> String {
    call("torture", Path::new(TOP))
}

/// A line of a script: the calling test's program writes a list of the tree below [`TOP`].
pub fn write_tree(to: &Path) -> String {
    call("tree", to)
}

/// A line of a script: the calling test's program makes files below [`TOP`] and changes them durably ([`fsyncs`]), and
/// writes the names and states of those that must survive to `to`.
pub fn make_durable(to: &Path) -> String {
    call("durable", to)
}

fn call(word: &str, path: &Path) -> String {
    let program = std::env::current_exe().expect("a test has a path");
    format!(
        "{WORK}='{word} {}' {} --ignored --exact inside_the_judge --nocapture",
        path.display(),
        program.display()
    )
}

/// The work of the program that a script calls; a test named `inside_the_judge`, ignored elsewhere, calls this.
///
/// # Panics
/// If no script has called it, or if the work fails.
pub fn inside(how: Torture) {
    let work = std::env::var(WORK).expect("only scripts of the judge run this");
    let (word, path) = work.split_once(' ').expect("a word and a path");
    match word {
        "torture" => torture(Path::new(path), how),
        "tree" => write_lines(&lines(&Tree::of(Path::new(TOP))), Path::new(path)),
        "durable" => {
            fsyncs::prepare(Path::new(TOP));
            let files = fsyncs::change(Path::new(TOP));
            let tree = Tree::of(Path::new(TOP));
            write_lines(&durable_lines(&tree, &files), Path::new(path));
        }
        other => panic!("unknown work {other}"),
    }
}

fn write_lines(lines: &[String], to: &Path) {
    fs::write(to, lines.join("\n")).expect("the list can be written");
    let file = fs::File::open(to).expect("it is there");
    file.sync_all().expect("it can be made durable");
}

/// The lines of some of a tree's files.
///
/// # Panics
/// If one is missing.
pub fn durable_lines(tree: &Tree, files: &[PathBuf]) -> Vec<String> {
    let mut some = Tree::default();
    for file in files {
        let path = file.as_os_str().as_bytes().to_vec();
        let node = tree.nodes.get(&path).expect("a file that was made durable");
        some.nodes.insert(path, node.clone());
    }
    lines(&some)
}

/// A tree as text, a line for each file; sizes of directories are not compared.
pub fn lines(tree: &Tree) -> Vec<String> {
    tree.nodes
        .iter()
        .map(|(path, node)| {
            let mut node = node.clone();
            if node.is_dir() {
                node.size = 0;
            }
            let mut line = path.escape_ascii().to_string();
            write!(line, " {node:?}").expect("a string takes all");
            line
        })
        .collect()
}

/// The same without what a recovery changes: times of directories.
pub fn without_folder_times(lines: &[String]) -> Vec<String> {
    let folder = |line: &str| line.contains(" Node { mode: 16");
    let cut = |line: &String| match (folder(line), line.split_once(" mtime:")) {
        (true, Some((before, behind))) => {
            let xattrs = behind.split_once("xattrs:").map_or("", |(_, rest)| rest);
            format!("{before}{xattrs}")
        }
        _ => line.clone(),
    };
    lines.iter().map(cut).collect()
}

/// Fails the test unless both lists are equal; prints the first lines that differ.
///
/// # Panics
/// If they differ.
#[track_caller]
pub fn assert_same(ours: &[String], judges: &[String], what: &str) {
    let differing: Vec<&String> = ours
        .iter()
        .filter(|line| !judges.contains(line))
        .chain(judges.iter().filter(|line| !ours.contains(line)))
        .take(6)
        .collect();
    assert!(
        differing.is_empty() && ours.len() == judges.len(),
        "{what}: {differing:#?}"
    );
}
