//! A folder for one test, which leaves nothing mounted.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{run, until};

/// A folder of one test. When it is dropped, also by a panic, everything mounted in it is unmounted, loop devices over
/// its files are detached, and it is removed.
pub struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    /// A new empty folder.
    ///
    /// # Panics
    /// If the tests do not run as root.
    #[track_caller]
    #[allow(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests mount: run them as root"
        );
        let dir = tempfile::Builder::new()
            .prefix("steadfs-suite-")
            .tempdir()
            .expect("a temporary folder can be made");
        Self { dir }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The path of `name` in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new empty folder in it.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path).expect("a folder can be made");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut mounts = mounts_below(self.path());
        mounts.reverse();
        for mount in mounts {
            if run("umount", [&mount]).code() != 0 {
                // The mount of a dead server can only be detached.
                let _ = run("umount", ["-l".as_ref(), mount.as_os_str()]);
            }
        }
        for device in loops_below(self.path()) {
            let _ = run("losetup", ["-d", &device]);
        }
    }
}

/// Runs umount(8); retries if a process that another test has just forked still has a file open.
#[track_caller]
pub fn unmount_when_idle(root: &Path) {
    until("the mount is not in use", || {
        let output = run("umount", [root]);
        assert!(
            output.code() == 0 || output.err.contains("busy"),
            "{}",
            output.err
        );
        output.code() == 0
    });
}

/// Arguments of unshare(1) that precede those of a command and give it a mount namespace of its own. Mounts of other
/// tests, except the one on `$KEEP_MOUNT`, are unmounted there at once: unmounting a volume waits for all namespaces.
pub const IN_NAMESPACE: [&str; 5] = [
    "--mount",
    "sh",
    "-c",
    "awk -v keep=\"$KEEP_MOUNT\" '$3 ~ /steadfs/ && $2 != keep { print $2 }' /proc/mounts | xargs -r umount -il; \
     exec \"$@\"",
    "sh",
];

/// Mount points below `dir`, oldest first.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(|point| PathBuf::from(point.replace("\\040", " ")))
        .filter(|point| point.starts_with(dir))
        .collect()
}

fn loops_below(dir: &Path) -> Vec<String> {
    let list = run(
        "losetup",
        ["--list", "--noheadings", "--output", "NAME,BACK-FILE"],
    );
    list.out
        .lines()
        .filter_map(|line| line.trim().split_once(char::is_whitespace))
        .filter(|(_, file)| Path::new(file.trim()).starts_with(dir))
        .map(|(device, _)| device.to_owned())
        .collect()
}
