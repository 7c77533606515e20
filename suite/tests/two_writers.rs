//! Others that would write to an image in use: the kernel through a loop device, which takes no lock, and other commands.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use steadfs_suite::command::until;
use steadfs_suite::{Image, KernelMount, LoopDevice, Scratch, SteadMount};

const MIB: u64 = 1 << 20;

/// Makes a file durable, or returns the refusal.
fn durable(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(path.as_os_str().as_encoded_bytes())?;
    file.sync_all()
}

/// Makes files in `dir` durable until the first refusal; returns their names.
fn durable_until_refused(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    until("a file is not made durable", || {
        let name = format!("file {}", names.len());
        let refused = durable(&dir.join(&name)).is_err();
        if !refused {
            names.push(name);
        }
        refused
    });
    names
}

fn all_there(root: &Path, names: &[String]) {
    for name in names {
        let content = fs::read(root.join(name)).unwrap();
        assert!(content.ends_with(name.as_bytes()), "{name}");
    }
}

/// The kernel finds what was acknowledged, and what it writes then stays intact.
#[test]
fn nothing_is_acknowledged_that_the_kernel_overwrites() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "ext4.img", 64 * MIB, &["-t", "ext4"]);
    let mount = SteadMount::new(&scratch, image.path(), "");
    durable(&mount.join("before")).unwrap();
    let kernel = KernelMount::new(&scratch, image.path(), "");
    let mut names = durable_until_refused(mount.root());
    names.push("before".to_owned());
    all_there(kernel.root(), &names);
    all_there(mount.root(), &names);
    durable(&kernel.join("of the kernel")).unwrap();
    names.push("of the kernel".to_owned());

    let dir = mount.root().to_owned();
    let output = steadfs_suite::steadfs(["umount".as_ref(), dir.as_os_str()]);
    assert_eq!(output.code(), 32, "{}", output.err);
    let (code, words) = mount.wait_with_log();
    assert_eq!(code, 32, "{words}");
    assert!(words.contains("/dev/loop"), "{words}");
    all_there(kernel.root(), &names);
    kernel.unmount();
    image.check_clean();
    let mount = SteadMount::new(&scratch, image.path(), "");
    all_there(mount.root(), &names);
    mount.unmount();
}

#[test]
fn an_f2fs_volume_stops_when_a_loop_device_writes() {
    let scratch = Scratch::new();
    let image = steadfs_suite::f2fs::mkfs(&scratch, "f2fs.img", 64 * MIB, "");
    let mount = SteadMount::new(&scratch, image.path(), "");
    durable(&mount.join("before")).unwrap();
    let device = LoopDevice::attach(image.path(), false);
    let mut names = durable_until_refused(mount.root());
    names.push("before".to_owned());
    all_there(mount.root(), &names);
    mount.signal(rustix::process::Signal::TERM);
    let (code, words) = mount.wait_with_log();
    assert_eq!(code, 32, "{words}");
    assert!(words.contains("/dev/loop"), "{words}");
    drop(device);
    let mount = SteadMount::new(&scratch, image.path(), "");
    all_there(mount.root(), &names);
    mount.unmount();
}

/// A contained server is a user that could not write the image; its lock holds all the same.
#[test]
fn nothing_writes_below_a_mount_that_only_reads() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "ext4.img", 8 * MIB, &["-t", "ext4"]);
    let overlay = scratch.join("changes");
    let root = format!("{}:/", image.path().display());
    for options in ["ro", &format!("overlay={}", overlay.display())] {
        let mount = SteadMount::new(&scratch, image.path(), options);
        let before = fs::read(image.path()).unwrap();
        let output = steadfs_suite::steadfs(["cp", "/etc/hostname", &root]);
        assert_eq!(output.code(), 1, "{options}: {}", output.err);
        assert!(output.err.contains("in use"), "{options}: {}", output.err);
        // Readers share it.
        steadfs_suite::steadfs(["ls", &root]).expect(0);
        mount.unmount();
        assert!(before == fs::read(image.path()).unwrap(), "{options}");
    }
}
