//! The server's memory stays below `cache_size` plus 64 MiB under any load.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use steadfs_suite::generate::Numbers;
use steadfs_suite::{Image, Scratch, SteadMount};

const MIB: u64 = 1 << 20;
/// What a server may use beside its caches.
const BESIDES: u64 = 64 * MIB;

/// Peak memory of a process, in bytes.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// One large file, written sequentially.
fn stream(top: &Path) {
    let mut file = File::create(top.join("stream")).unwrap();
    let piece = vec![7; 1 << 20];
    for _ in 0..300 {
        file.write_all(&piece).unwrap();
    }
}

/// A sparse file with many blocks, each of which is an extent.
fn scattered(top: &Path) {
    let file = File::create(top.join("scattered")).unwrap();
    let mut numbers = Numbers::new(1);
    for _ in 0..20_000 {
        file.write_all_at(&[1; 4096], numbers.below(1 << 20) << 12)
            .unwrap();
    }
}

/// More small files in one directory than inodes fit the memory.
fn many_files(top: &Path) {
    let dir = top.join("many");
    fs::create_dir(&dir).unwrap();
    for n in 0..45_000 {
        fs::write(dir.join(format!("file {n}")), [3; 100]).unwrap();
    }
}

/// A wide tree of empty files, and a deep one.
fn tree(top: &Path) {
    for n in 0..200 {
        let dir = top.join(format!("tree/{}/{n}", n % 14));
        fs::create_dir_all(&dir).unwrap();
        for n in 0..200 {
            let mode = Mode::from_raw_mode(0o644);
            mknodat(
                CWD,
                dir.join(format!("{n}")),
                FileType::RegularFile,
                mode,
                0,
            )
            .unwrap();
        }
    }
    let mut deep = top.join("deep");
    for _ in 0..800 {
        fs::create_dir(&deep).unwrap();
        deep.push("d");
    }
}

/// Looks up everything, so that the kernel refers to every inode.
fn walk(dir: &Path, read: bool) -> usize {
    let mut seen = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        seen += 1;
        if meta.is_dir() {
            seen += walk(&entry.path(), read);
        } else if read && meta.len() < 1000 {
            fs::read(entry.path()).unwrap();
        }
    }
    seen
}

/// The name of a load, and the load.
type Step = (&'static str, fn(&Path));

fn heavy_load(cache: u64) {
    let scratch = Scratch::new();
    let image = Image::mke2fs(
        &scratch,
        "a.img",
        3 << 30,
        &["-t", "ext4", "-N", "200000", "-J", "size=64"],
    );
    let options = format!("cache_size={}M", cache / MIB);
    let mount = SteadMount::new(&scratch, image.path(), &options);
    let steps: [Step; 7] = [
        ("a stream", stream),
        ("a scattered file", scattered),
        ("many files", many_files),
        ("a tree", tree),
        ("a walk", |top| assert!(walk(top, false) > 80_000)),
        ("reading all", |top| assert!(walk(top, true) > 80_000)),
        ("removing", |top| {
            fs::remove_dir_all(top.join("many")).unwrap();
        }),
    ];
    for (name, step) in steps {
        step(mount.root());
        let peak = peak(mount.pid());
        println!(
            "cache of {} MiB: {} MiB after {name}",
            cache / MIB,
            peak / MIB
        );
        assert!(
            peak < cache + BESIDES,
            "{} MiB after {name}, with a cache of {} MiB",
            peak / MIB,
            cache / MIB
        );
    }
    mount.unmount();
    image.check_clean();
}

#[test]
fn a_small_cache_bounds_the_servers_memory() {
    heavy_load(16 * MIB);
}

#[test]
fn a_larger_cache_bounds_the_servers_memory() {
    heavy_load(64 * MIB);
}
