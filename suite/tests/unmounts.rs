//! What `steadfs sync` and `steadfs umount` promise where it is hard to keep: everything is durable, the image is
//! closed, or it is told what is not so.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use steadfs_suite::command::until;
use steadfs_suite::{Image, LoopDevice, Scratch, SteadMount, steadfs};

const MIB: u64 = 1 << 20;

fn image(scratch: &Scratch, name: &str) -> Image {
    Image::mke2fs(scratch, name, 64 * MIB, &["-t", "ext4"])
}

/// What mapped files hold before and, in their first block, no more when they are changed.
static BEFORE: [u8; 65_536] = [b'A'; 65_536];

fn is_changed(path: &Path) -> bool {
    fs::read(path).unwrap()[..4096] != BEFORE[..4096]
}

/// A program that has changed the first block of a file through a shared mapping, and keeps it mapped.
struct Mapper(Child);

impl Mapper {
    fn new(path: &Path) -> Self {
        fs::write(path, BEFORE).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
        let mut command = Command::new("fio");
        command.args(["--name=map", "--ioengine=mmap", "--rw=write", "--bs=4k"]);
        command.args(["--thread", "--fallocate=none", "--size=64k"]);
        command.args(["--thinktime=600s", "--thinktime_blocks=1"]);
        command.arg(format!("--filename={}", path.display()));
        command.stdout(Stdio::null());
        let mapper = Self(command.spawn().unwrap());
        // Whoever opens and closes the file has the kernel hand over its pages.
        until("the file is changed", || mapper.has_changed(path));
        mapper
    }

    fn has_changed(&self, path: &Path) -> bool {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", self.0.id())).unwrap_or_default();
        let of_file = maps.split_once(path.to_str().unwrap());
        let pages = of_file.and_then(|(_, rest)| rest.split_once("Private_Dirty:"));
        pages.is_some_and(|(_, rest)| rest.trim_start().starts_with("4 kB"))
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sync_covers_what_is_mapped() {
    let scratch = Scratch::new();
    let image = image(&scratch, "mapped.img");
    let device = LoopDevice::attach(image.path(), false);
    for volume in [image.path(), device.path()] {
        // A loop device keeps its image from being mounted.
        let volume = match volume == image.path() {
            true => scratch.join("copy.img"),
            false => volume.to_owned(),
        };
        if !volume.exists() {
            fs::copy(image.path(), &volume).unwrap();
        }
        let mount = SteadMount::new(&scratch, &volume, "");
        let mapper = Mapper::new(&mount.join("file"));
        steadfs(["sync".as_ref(), mount.root().as_os_str()]).expect(0);
        mount.kill();
        drop(mapper);
        let mount = SteadMount::new(&scratch, &volume, "");
        assert!(is_changed(&mount.join("file")));
        mount.unmount();
    }
}
