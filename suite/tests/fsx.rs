//! One file written, mapped, truncated, punched and copied at random; fsx compares each read.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

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

/// Runs fsx once for each seed, all at the same time, each with its own file; then the judges check the volume.
fn exercise(kind: &[&str], options: &str, seeds: &[u32], operations: u32) {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "fsx.img", 128 << 20, kind);
    let mount = SteadMount::new(&scratch, image.path(), options);
    exercise_mount(&scratch, &image, mount, seeds, operations);
    image.check_clean();
}

/// The same on a mount; returns its status at the end, if it is f2fs.
fn exercise_mount(
    scratch: &Scratch,
    image: &Image,
    mount: SteadMount,
    seeds: &[u32],
    operations: u32,
) -> String {
    let config = scratch.join("fsx.toml");
    fs::write(&config, CONFIG).unwrap();
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
                let output = finish(command, Duration::from_secs(3600)).expect(0);
                assert!(output.out.contains("A-OK"), "{}{}", output.out, output.err);
            });
        }
    });
    // The kernel's page cache and the volume must agree.
    let read = |mount: &SteadMount| -> Vec<Vec<u8>> {
        let file = |seed| fs::read(mount.join(&format!("file{seed}"))).unwrap();
        seeds.iter().map(file).collect()
    };
    let before = read(&mount);
    assert!(before.iter().any(|bytes| !bytes.is_empty()));
    let status = fs::read_to_string(mount.join(".steadfs/f2fs/status")).unwrap_or_default();
    mount.unmount();
    let mount = SteadMount::new(scratch, image.path(), "ro");
    assert!(
        before == read(&mount),
        "mounted again, the files are others"
    );
    mount.unmount();
    status
}

#[test]
fn fsx_finds_no_difference_with_io_uring() {
    exercise(&["-t", "ext4"], "fuse_transport=uring", &[1], 12_000);
}

#[test]
fn fsx_finds_no_difference_with_dev_fuse() {
    exercise(&["-t", "ext4"], "fuse_transport=dev", &[3], 10_000);
}

#[test]
fn fsx_finds_no_difference_with_any_block_map() {
    exercise(&["-t", "ext2", "-b", "1024"], "", &[4], 10_000);
    exercise(
        &["-t", "ext4", "-b", "65536"],
        "io_engine=threads",
        &[5],
        10_000,
    );
    let clusters = ["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384"];
    exercise(&clusters, "", &[9], 4_000);
}

#[test]
fn fsx_finds_no_difference_on_f2fs() {
    for (args, options, seeds) in [
        ("-q", "", &[6, 7][..]),
        ("-i", "mode=lfs,background_gc=sync", &[8]),
    ] {
        let scratch = Scratch::new();
        let image = f2fs(&scratch, 256, args);
        let mount = SteadMount::new(&scratch, image.path(), options);
        exercise_mount(&scratch, &image, mount, seeds, operations());
        check_f2fs(&image);
    }
}

fn f2fs(scratch: &Scratch, mib: u64, args: &str) -> Image {
    let image = Image::empty(scratch, "fsx.img", mib << 20);
    let path = image.path().to_str().unwrap();
    succeed("mkfs.f2fs", ["-q", "-f", args, path]);
    image
}

fn check_f2fs(image: &Image) {
    run("fsck.f2fs", ["--dry-run", image.path().to_str().unwrap()]).expect(0);
}

/// With background GC without pauses, on a volume whose segments are partly valid, so that all writes go there (SSR).
#[test]
fn fsx_finds_no_difference_on_a_fragmented_f2fs() {
    let scratch = Scratch::new();
    let image = f2fs(&scratch, 128, "-q");
    let mount = SteadMount::new(&scratch, image.path(), "");
    let control = |name: &str, value: &str| {
        fs::write(mount.join(&format!(".steadfs/f2fs/{name}")), value).unwrap();
    };
    control("ipu_policy", "0");
    fragment(&mount);
    control("gc_urgent_sleep_time", "1");
    control("gc_urgent", "1");
    let cleaned = || {
        let status = fs::read_to_string(mount.join(".steadfs/f2fs/status"));
        counted(&status.unwrap(), "GC victims: ") > 0
    };
    let end = Instant::now() + Duration::from_secs(60);
    while !cleaned() {
        assert!(Instant::now() < end, "no section is cleaned");
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = exercise_mount(&scratch, &image, mount, &[9], operations() / 17);
    let in_holes = counted(&status, "SSR: ");
    assert!(in_holes > 100, "{in_holes} blocks\n{status}");
    check_f2fs(&image);
}

/// The number at the start of the line with these words.
fn counted(status: &str, words: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(words));
    let line = line.unwrap_or_else(|| panic!("no line begins with {words:?}: {status}"));
    let end = line.find(|c: char| !c.is_ascii_digit());
    line[..end.unwrap_or(line.len())].parse().unwrap()
}

/// Fills a volume with small files, except for the space that fsx needs, and removes two of three.
fn fragment(mount: &SteadMount) {
    let path = |n: u64| mount.join(&format!("fragmented/{n}"));
    fs::create_dir(mount.join("fragmented")).unwrap();
    let is_full = || {
        let stat = rustix::fs::statvfs(mount.join("fragmented")).unwrap();
        stat.f_bavail < 1024
    };
    let count = (0..).find(|n| {
        fs::write(path(*n), [*n as u8; 20_000]).unwrap();
        is_full()
    });
    let sync = || {
        fs::File::open(mount.join("fragmented"))
            .unwrap()
            .sync_all()
            .unwrap()
    };
    sync();
    for n in (0..count.unwrap()).filter(|n| n % 3 > 0) {
        fs::remove_file(path(n)).unwrap();
    }
    sync();
}

/// Operations for each file on f2fs; `STEADFS_FSX_OPERATIONS` changes it.
fn operations() -> u32 {
    let output = std::env::var("STEADFS_FSX_OPERATIONS").ok();
    output.and_then(|n| n.parse().ok()).unwrap_or(20_000)
}
