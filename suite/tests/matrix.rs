//! Volumes of every kind: we read what others wrote, others read what we wrote.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{FallocateFlags, fallocate};
use steadfs::{Options, Volume};
use steadfs_suite::generate::{Numbers, torture};
use steadfs_suite::matrix::{Circle, KINDS, Kind};
use steadfs_suite::{Compare, Image, KernelMount, Scratch, SteadMount, Tree, run};

/// Runs `work` for each kind, two at a time; reports all failures.
fn each(wanted: impl Fn(&Kind) -> bool, work: impl Fn(&Kind) + Sync) {
    let only = std::env::var("KIND").ok();
    let chosen = |kind: &&Kind| wanted(kind) && only.as_ref().is_none_or(|name| name == kind.name);
    let kinds: Vec<&Kind> = KINDS.iter().filter(chosen).collect();
    let next = Mutex::new(kinds.iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let kind = next.lock().unwrap().next();
                    let Some(kind) = kind else { return };
                    let attempt = std::panic::AssertUnwindSafe(|| work(kind));
                    if std::panic::catch_unwind(attempt).is_err() {
                        eprintln!("^ {}", kind.name);
                        failed.lock().unwrap().push(kind.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(
        failed.is_empty(),
        "{} of {} kinds: {failed:?}",
        failed.len(),
        kinds.len()
    );
}

/// The tree that the library reads.
fn read_by_library(image: &Path) -> Tree {
    let options = Options::parse("ro").unwrap();
    let volume = Volume::open_with(image, &options).unwrap();
    let tree = Tree::of_volume(&*volume.fs());
    volume.close().unwrap();
    tree
}

/// The tree on our mount.
fn read_by_mount(scratch: &Scratch, image: &Path) -> Tree {
    let mount = SteadMount::new(scratch, image, "ro");
    let tree = Tree::of(mount.root());
    mount.unmount();
    tree
}

/// The tree on the kernel's mount.
fn read_by_kernel(scratch: &Scratch, image: &Path) -> Tree {
    let mount = KernelMount::new(scratch, image, "ro");
    let tree = Tree::of(mount.root());
    mount.unmount();
    tree
}

/// A torture tree on the host, made once for each set of parameters.
fn host_tree(kind: &Kind) -> PathBuf {
    static MADE: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let how = kind.torture();
    let mut made = MADE.lock().unwrap();
    let count = made.len();
    made.entry(format!("{how:?}"))
        .or_insert_with(|| {
            let top = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tree{count}"));
            if top.exists() {
                std::fs::remove_dir_all(&top).unwrap();
            }
            std::fs::create_dir_all(&top).unwrap();
            torture(&top, how);
            top
        })
        .clone()
}

#[test]
fn we_read_what_mke2fs_wrote() {
    each(
        |_| true,
        |kind| {
            let scratch = Scratch::new();
            let from = host_tree(kind);
            let image = kind.make(&scratch, kind.size(), Some(&from));
            if kind.args.contains("quota") {
                // mke2fs does not update the counts after copying.
                run("e2fsck", ["-fy".as_ref(), image.path().as_os_str()]).expect(1);
            }
            image.check_clean();
            let ours = read_by_library(image.path());
            let compare = Compare {
                dir_nlink: true,
                ..Compare::COPY
            };
            let source = expected(&Tree::of(&from), kind);
            let mut below = ours.clone();
            below.nodes.remove(&b""[..]);
            if kind.args.contains("inline_data") {
                // mke2fs sets a wrong size for a file that ends in a hole.
                below.nodes.remove(&b"sparse/punched"[..]);
            }
            source.assert_same(
                &below,
                compare,
                &format!("{}: source and library", kind.name),
            );
            let mounted = read_by_mount(&scratch, image.path());
            ours.assert_same(
                &mounted,
                Compare::ALL,
                &format!("{}: library and mount", kind.name),
            );
            // The kernel does not find some names in small inline directories of mke2fs 1.47.0.
            if kind.kernel && !kind.args.contains("inline_data") {
                let kernel = read_by_kernel(&scratch, image.path());
                kernel.assert_same(
                    &ours,
                    Compare::ALL,
                    &format!("{}: kernel and library", kind.name),
                );
            }
        },
    );
}

/// What `mke2fs -d` copies of a tree: whole seconds of 32 bits, and each name of a symbolic link as a link of its own;
/// the top directory has `lost+found`, too.
fn expected(tree: &Tree, kind: &Kind) -> Tree {
    let mut tree = tree.clone();
    tree.nodes.remove(&b""[..]);
    if kind.args.contains("inline_data") {
        tree.nodes.remove(&b"sparse/punched"[..]);
    }
    for node in tree.nodes.values_mut() {
        #[expect(clippy::cast_possible_truncation, reason = "that is what mke2fs does")]
        let secs = node.mtime.0 as i32;
        node.mtime = (secs.into(), 0);
        if node.target.is_some() {
            node.nlink = 1;
            node.same_as = None;
        }
        if kind.args.contains("^ext_attr") {
            node.xattrs.clear();
        }
    }
    tree
}

#[test]
fn we_read_what_the_kernel_wrote() {
    each(
        |kind| kind.kernel,
        |kind| {
            let scratch = Scratch::new();
            let image = kind.make(&scratch, kind.size(), None);
            let mount = KernelMount::new(&scratch, image.path(), "noatime");
            torture(mount.root(), kind.torture());
            mount.unmount();
            let kernel = read_by_kernel(&scratch, image.path());
            let ours = read_by_library(image.path());
            kernel.assert_same(
                &ours,
                Compare::ALL,
                &format!("{}: kernel and library", kind.name),
            );
            let mounted = read_by_mount(&scratch, image.path());
            ours.assert_same(
                &mounted,
                Compare::ALL,
                &format!("{}: library and mount", kind.name),
            );
        },
    );
}

fn write_by_mount(scratch: &Scratch, image: &Image, kind: &Kind) -> Tree {
    let mount = SteadMount::new(scratch, image.path(), "noatime");
    torture(mount.root(), kind.torture());
    let written = Tree::of(mount.root());
    mount.unmount();
    image.check_clean();
    written
}

#[test]
fn others_read_what_we_wrote() {
    let ours = |kind: &Kind| kind.circle == Circle::ReadWrite;
    each(ours, |kind| {
        let scratch = Scratch::new();
        let image = kind.make(&scratch, kind.size(), None);
        let written = write_by_mount(&scratch, &image, kind);
        if kind.kernel {
            let kernel = read_by_kernel(&scratch, image.path());
            written.assert_same(&kernel, Compare::ALL, &format!("{}: kernel", kind.name));
        } else {
            let library = read_by_library(image.path());
            written.assert_same(&library, Compare::ALL, &format!("{}: library", kind.name));
        }
    });
}

/// As e2fsdroid makes them: files with the same content share its blocks.
#[test]
fn a_block_shared_by_two_files_is_read_in_both() {
    let scratch = Scratch::new();
    let from = scratch.folder("from");
    for name in ["one", "other"] {
        std::fs::write(from.join(name), vec![7; 40_000]).unwrap();
    }
    let args = [
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "^extent,^64bit",
        "-d",
        from.to_str().unwrap(),
    ];
    let image = Image::mke2fs(&scratch, "shared.img", 64 << 20, &args);
    let block = |file: &str, n: u32| {
        let output = image.debugfs(&format!("bmap {file} {n}")).out;
        output.trim().lines().last().unwrap().trim().to_owned()
    };
    let mut commands = "feature shared_blocks\n".to_owned();
    for n in 0..10 {
        let (one, other) = (block("one", n), block("other", n));
        commands += &format!("sif other block[{n}] {one}\nfreeb {other}\n");
    }
    image.debugfs(&commands);
    // debugfs does not update these counts.
    let path = image.path().as_os_str();
    steadfs_suite::run("e2fsck", ["-fy".as_ref(), path]).expect(1);
    image.check_clean();
    assert_eq!(block("one", 3), block("other", 3));
    steadfs_suite::steadfs(["check".as_ref(), path]).expect(0);
    let kernel = read_by_kernel(&scratch, image.path());
    let ours = read_by_library(image.path());
    kernel.assert_same(&ours, Compare::ALL, "kernel and library");
    assert!(ours.nodes.contains_key(&b"other"[..]));
    assert_eq!(std::fs::read(from.join("other")).unwrap(), [7; 40_000]);
}

#[test]
fn read_only_kinds_of_volumes_are_not_written() {
    let only_read = |kind: &Kind| kind.circle == Circle::ReadOnly;
    each(only_read, |kind| {
        let scratch = Scratch::new();
        let image = kind.make(&scratch, kind.size(), None);
        let before = std::fs::read(image.path()).unwrap();
        let mount = SteadMount::new(&scratch, image.path(), "rw");
        let output = mount.log();
        let feature = kind.name.split('-').next().unwrap();
        let is_named = output.contains("read-only") && output.contains(feature);
        assert!(is_named, "{}: {output}", kind.name);
        let error = std::fs::write(mount.join("new"), b"").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        mount.unmount();
        assert!(
            std::fs::read(image.path()).unwrap() == before,
            "{}: changed",
            kind.name
        );
    });
}

/// Changes some files at random, and their expected content in the same way.
fn change_files(top: &Path, numbers: &mut Numbers, files: &mut BTreeMap<String, Vec<u8>>) {
    for _ in 0..60 {
        let name = format!("file{}", numbers.below(10));
        let content = files.entry(name.clone()).or_default();
        let (at, len) = (numbers.below(300_000), 1 + numbers.below(40_000));
        let (from, to) = (at as usize, (at + len) as usize);
        let mut open = std::fs::OpenOptions::new();
        let file = open
            .write(true)
            .create(true)
            .truncate(false)
            .open(top.join(&name))
            .unwrap();
        match numbers.below(8) {
            0..=3 => {
                let bytes = numbers.bytes(to - from);
                file.write_all_at(&bytes, at).unwrap();
                content.resize(content.len().max(to), 0);
                content[from..to].copy_from_slice(&bytes);
            }
            4 | 5 => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, mode, at, len).unwrap();
                let size = content.len();
                content[from.min(size)..to.min(size)].fill(0);
            }
            6 => {
                file.set_len(at).unwrap();
                content.resize(from, 0);
            }
            _ => {
                std::fs::remove_file(top.join(&name)).unwrap();
                files.remove(&name);
            }
        }
    }
}

/// Each writes, punches and truncates files in whose clusters the other has blocks.
#[test]
fn files_on_clusters_are_changed_in_turn_with_the_kernel() {
    for args in [
        "-t ext4 -b 1024 -O bigalloc -C 16384",
        "-t ext4 -b 4096 -O bigalloc -C 65536",
    ] {
        let scratch = Scratch::new();
        let args: Vec<&str> = args.split(' ').collect();
        let image = Image::mke2fs(&scratch, "turns.img", 128 << 20, &args);
        let mut numbers = Numbers::new(3);
        let mut files = BTreeMap::new();
        for _ in 0..3 {
            let mount = KernelMount::new(&scratch, image.path(), "");
            change_files(mount.root(), &mut numbers, &mut files);
            mount.unmount();
            let mount = SteadMount::new(&scratch, image.path(), "");
            change_files(mount.root(), &mut numbers, &mut files);
            mount.unmount();
            image.check_clean();
        }
        let mount = KernelMount::new(&scratch, image.path(), "ro");
        for (name, content) in &files {
            assert!(
                std::fs::read(mount.join(name)).unwrap() == *content,
                "{name}"
            );
        }
        let kernel = Tree::of(mount.root());
        mount.unmount();
        let ours = read_by_mount(&scratch, image.path());
        kernel.assert_same(&ours, Compare::ALL, "kernel and mount");
    }
}

/// Names of 255 bytes in blocks of 1 KiB, so that two levels of nodes are too few: half of them made by the kernel, half
/// by us.
#[test]
fn a_directory_with_three_levels_of_index_nodes_grows_in_turn() {
    let scratch = Scratch::new();
    let options = ["-t", "ext4", "-b", "1024", "-O", "large_dir"];
    let image = Image::mke2fs(&scratch, "large.img", 160 << 20, &options);
    let name = |n: u32| format!("{n:0255}");
    let by_kernel = |range: std::ops::Range<u32>| {
        let mount = KernelMount::new(&scratch, image.path(), "");
        let dir = mount.join("dir");
        if range.start == 0 {
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(mount.join("file"), b"").unwrap();
        }
        for n in range {
            std::fs::hard_link(mount.join("file"), dir.join(name(n))).unwrap();
        }
        mount.unmount();
    };
    let by_us = |range: std::ops::Range<u32>| {
        let volume = Volume::open_with(image.path(), &Options::parse("rw").unwrap()).unwrap();
        let (fs, cx) = (volume.fs(), steadfs_vfs::Cx::default());
        let find = |name| fs.lookup(&cx, fs.root(), name).unwrap().ino;
        let (dir, file) = (find(b"dir"), find(b"file"));
        for n in range {
            fs.link(&cx, file, dir, name(n).as_bytes()).unwrap();
        }
        drop(fs);
        volume.close().unwrap();
        image.check_clean();
    };
    let levels = || {
        let shown = image.debugfs("htree_dump /dir").out;
        let level = shown
            .lines()
            .find_map(|line| line.trim().strip_prefix("Indirect levels: "));
        level.unwrap().parse::<u32>().unwrap()
    };
    by_kernel(0..20_000);
    by_us(20_000..45_000);
    assert_eq!(levels(), 2);
    by_kernel(45_000..50_000);
    by_us(50_000..55_000);
    let mount = KernelMount::new(&scratch, image.path(), "ro");
    for n in 0..55_000 {
        let found = std::fs::symlink_metadata(mount.join("dir").join(name(n)));
        assert!(found.is_ok(), "{n}");
    }
    assert_eq!(
        std::fs::read_dir(mount.join("dir")).unwrap().count(),
        55_000
    );
    mount.unmount();
}
