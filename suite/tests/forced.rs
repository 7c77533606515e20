//! Forced unmounts while the server does not answer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use steadfs_suite::command::wait;
use steadfs_suite::stead::program;
use steadfs_suite::{Image, LoopDevice, Scratch, SteadMount, steadfs};

/// A call that waits for the server's reply.
fn blocked_call(path: &Path) -> Child {
    let mut command = Command::new("stat");
    command
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it is answered");
    child
}

/// Calls `force` for the mount point while the server is stopped. (With io_uring the kernel needs the server's threads
/// to abort its requests: a stopped server must be killed, too.)
fn force_away(scratch: &Scratch, volume: &Path, force: impl Fn(&Path)) {
    let mount = SteadMount::new(scratch, volume, "fuse_transport=dev");
    fs::write(mount.join("kept"), [7; 300_000]).unwrap();
    mount.stop();
    let mut asks = blocked_call(&mount.join("unknown"));
    force(mount.root());
    let ended = wait(&mut asks, Duration::from_secs(20)).expect("the call fails");
    assert!(!ended.success());
    assert!(
        fs::read_dir(mount.root()).unwrap().next().is_none(),
        "it is still mounted"
    );
    // What was acknowledged is on the volume after the server has continued.
    mount.proceed();
    assert_eq!(mount.wait(), 0);
    let mount = SteadMount::new(scratch, volume, "");
    assert!(fs::read(mount.join("kept")).unwrap() == [7; 300_000]);
    mount.unmount();
}

#[test]
fn the_mount_of_a_hanging_server_can_be_forced_away() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "hangs.img", 64 << 20, &["-t", "ext4"]);
    force_away(&scratch, image.path(), |root| {
        steadfs(["umount".as_ref(), "--force".as_ref(), root.as_os_str()]).expect(0);
    });
    image.check_clean();
    // As umount(8) calls it.
    let helper = scratch.join("umount.fuseblk.steadfs");
    symlink(program(), &helper).unwrap();
    let device = LoopDevice::attach(image.path(), false);
    force_away(&scratch, device.path(), |root| {
        let mut command = Command::new(&helper);
        assert!(command.arg(root).arg("-f").status().unwrap().success());
    });
    drop(device);
    image.check_clean();
}
