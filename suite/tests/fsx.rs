//! One file written, mapped, cut, punched and copied at random, each read compared by fsx.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::Command;
use std::time::Duration;

use steadfs_suite::command::finish;
use steadfs_suite::{Image, Scratch, SteadMount, judge, run, succeed};

const CONFIG: &str = "
flen = 1048576
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 3
fsync = 0.5
fdatasync = 0.5
posix_fallocate = 3
punch_hole = 3
sendfile = 2
posix_fadvise = 1
copy_file_range = 3
";

/// Runs fsx once for each seed, all at the same time, each with a file of its own; then the judges
/// look at the volume.
fn exercise(kind: &[&str], options: &str, seeds: &[u32], operations: u32) {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "fsx.img", 128 << 20, kind);
    exercise_image(&scratch, &image, options, seeds, operations);
    image.check_clean();
}

fn exercise_image(scratch: &Scratch, image: &Image, options: &str, seeds: &[u32], operations: u32) {
    let config = scratch.join("fsx.toml");
    fs::write(&config, CONFIG).unwrap();
    let mount = SteadMount::new(scratch, image.path(), options);
    std::thread::scope(|scope| {
        for seed in seeds {
            let mut command = Command::new(judge("fsx"));
            command
                .args(["-q", "-S", &seed.to_string(), "-N", &operations.to_string()])
                .arg("-f")
                .arg(&config)
                .arg("-P")
                .arg(scratch.path())
                .arg(mount.join(&format!("file{seed}")));
            scope.spawn(|| {
                let said = finish(command, Duration::from_secs(3600)).expect(0);
                assert!(said.out.contains("A-OK"), "{}{}", said.out, said.err);
            });
        }
    });
    // What the cache of the kernel held must be what the volume holds.
    let read = |mount: &SteadMount| -> Vec<Vec<u8>> {
        let file = |seed| fs::read(mount.join(&format!("file{seed}"))).unwrap();
        seeds.iter().map(file).collect()
    };
    let before = read(&mount);
    assert!(before.iter().any(|bytes| !bytes.is_empty()));
    mount.unmount();
    let mount = SteadMount::new(scratch, image.path(), "ro");
    assert!(
        before == read(&mount),
        "mounted again, the files are others"
    );
    mount.unmount();
}

#[test]
fn a_file_is_what_was_written_through_the_ring() {
    exercise(&["-t", "ext4"], "fuse_transport=uring", &[1, 2], 40_000);
}

#[test]
fn a_file_is_what_was_written_through_the_device() {
    exercise(&["-t", "ext4"], "fuse_transport=dev", &[3], 20_000);
}

#[test]
fn a_file_is_what_was_written_whatever_maps_its_blocks() {
    exercise(&["-t", "ext2", "-b", "1024"], "", &[4], 10_000);
    exercise(
        &["-t", "ext4", "-b", "65536"],
        "io_engine=threads",
        &[5],
        10_000,
    );
}

#[test]
fn a_file_is_what_was_written_on_f2fs() {
    for (args, options, seeds) in [
        ("-q", "", &[6, 7][..]),
        ("-i", "mode=lfs,background_gc=sync", &[8]),
    ] {
        let scratch = Scratch::new();
        let image = Image::empty(&scratch, "fsx.img", 256 << 20);
        let path = image.path().to_str().unwrap();
        succeed("mkfs.f2fs", ["-q", "-f", args, path]);
        exercise_image(&scratch, &image, options, seeds, operations());
        run("fsck.f2fs", ["--dry-run", path]).expect(0);
    }
}

/// On f2fs, of each file: `STEADFS_FSX_OPERATIONS` says how many.
fn operations() -> u32 {
    let said = std::env::var("STEADFS_FSX_OPERATIONS").ok();
    said.and_then(|n| n.parse().ok()).unwrap_or(34_000)
}
