//! The suite's own tools, tried on the kernel's file system: a judge must be able to fail.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::FileExt;

use steadfs_suite::generate::torture;
use steadfs_suite::matrix::{Circle, KINDS};
use steadfs_suite::scratch::mounts_below;
use steadfs_suite::tree::{content_hash, set_xattr};
use steadfs_suite::{Compare, Image, KernelMount, Scratch, Tree, judge, run};

#[test]
fn every_judge_is_installed() {
    for name in [
        "mke2fs",
        "e2fsck",
        "debugfs",
        "dumpe2fs",
        "tune2fs",
        "fuse2fs",
        "fusermount3",
        "losetup",
        "fio",
        "fs_mark",
        "sqlite3",
        "git",
        "getfacl",
        "setfattr",
        "fakeroot",
        "fsverity",
        "pjdfstest",
        "fsx",
    ] {
        judge(name);
    }
}

#[test]
fn a_torture_tree_survives_the_kernel() {
    let scratch = Scratch::new();
    let kind = KINDS.iter().find(|k| k.name == "ext4-4k").unwrap();
    let image = kind.make(&scratch, kind.size(), None);
    let mount = KernelMount::new(&scratch, image.path(), "noatime");
    torture(mount.root(), kind.torture());
    let before = Tree::of(mount.root());
    assert!(before.len() > 1800, "{}", before.len());
    mount.unmount();
    image.check_clean();
    let mount = KernelMount::new(&scratch, image.path(), "ro,noatime");
    before.assert_same(&Tree::of(mount.root()), Compare::ALL, "mounted again");
    mount.unmount();
    assert!(!image.needs_recovery());
}

#[test]
fn differences_between_trees_are_found() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "a.img", 16 << 20, &["-t", "ext4"]);
    let mount = KernelMount::new(&scratch, image.path(), "noatime");
    let file = mount.join("f");
    fs::write(&file, vec![1; 20_000]).unwrap();
    fs::hard_link(&file, mount.join("g")).unwrap();
    fs::create_dir(mount.join("d")).unwrap();
    let before = Tree::of(mount.root());
    let compare = Compare::COPY;
    before.assert_same(&Tree::of(mount.root()), Compare::ALL, "unchanged");
    let content = before.nodes[&b"f"[..]].content;
    assert_eq!(content, Some(content_hash(&[1; 20_000])));
    assert_ne!(
        content,
        Some(content_hash(&[[1; 10_000], [2; 10_000]].concat()))
    );
    assert_ne!(content, Some(content_hash(&[1; 20_001])));

    let open = fs::File::options().write(true).open(&file).unwrap();
    let seen = |what: &str| {
        let lines = before.differences(&Tree::of(mount.root()), compare);
        assert!(lines.iter().any(|l| l.contains(what)), "{what}: {lines:?}");
    };
    let keep_time = fs::metadata(&file).unwrap().modified().unwrap();
    open.write_all_at(&[2], 19_999).unwrap();
    open.set_modified(keep_time).unwrap();
    let lines = before.differences(&Tree::of(mount.root()), compare);
    assert_eq!(lines.len(), 2, "only the content of both names: {lines:?}");
    seen("content");
    open.set_len(20_001).unwrap();
    seen("size");
    seen("mtime");
    set_xattr(&file, "user.x", b"1");
    seen("attribute user.x");
    fs::remove_file(mount.join("g")).unwrap();
    seen("/g: missing on the right");
    seen("nlink");
    seen("same file as");
    fs::write(mount.join("d/new"), b"").unwrap();
    seen("/d/new: missing on the left");
    std::os::unix::fs::chown(mount.join("d"), Some(1), None).unwrap();
    seen("/d: owner");
}

#[test]
fn holes_are_compared_on_request() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.folder("a"), scratch.folder("b"));
    let sparse = fs::File::create(a.join("f")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    fs::write(b.join("f"), vec![0; 1 << 20]).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH;
    sparse.set_modified(time).unwrap();
    fs::File::open(b.join("f"))
        .unwrap()
        .set_modified(time)
        .unwrap();
    let plain = Compare {
        dir_mtime: false,
        ..Compare::COPY
    };
    let (a, b) = (Tree::of(&a), Tree::of(&b));
    a.assert_same(&b, plain, "zeros are zeros");
    let with_holes = Compare {
        holes: true,
        ..plain
    };
    assert_eq!(a.differences(&b, with_holes).len(), 1);
}

#[test]
fn e2fsck_finds_corruption() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "a.img", 16 << 20, &["-t", "ext4"]);
    image.check_clean();
    image.debugfs("set_inode_field <2> links_count 9\n");
    let judged = std::panic::catch_unwind(|| image.check_clean());
    assert!(judged.is_err(), "a wrong link count was not found");
}

#[test]
fn nothing_stays_mounted_after_a_panic() {
    let seen = std::sync::Mutex::new(None);
    let result = std::panic::catch_unwind(|| {
        let scratch = Scratch::new();
        let image = Image::mke2fs(&scratch, "a.img", 16 << 20, &["-t", "ext4"]);
        *seen.lock().unwrap() = Some((scratch.path().to_owned(), image.path().to_owned()));
        let mount = KernelMount::new(&scratch, image.path(), "");
        assert_eq!(mounts_below(scratch.path()), [mount.root()]);
        panic!("on purpose");
    });
    assert!(result.is_err());
    let (dir, image) = seen.lock().unwrap().clone().unwrap();
    assert!(mounts_below(&dir).is_empty());
    assert!(!dir.exists());
    let loops = run("losetup", ["-j".as_ref(), image.as_os_str()]);
    assert_eq!(loops.out, "");
}

#[test]
fn the_matrix_is_made_and_judged_by_e2fsprogs_and_the_kernel() {
    assert!(KINDS.len() >= 40);
    assert!(KINDS.iter().any(|kind| kind.circle == Circle::ReadOnly));
    let scratch = Scratch::new();
    for kind in KINDS {
        let image = kind.make(&scratch, 32 << 20, None);
        image.check_clean();
        if kind.kernel {
            KernelMount::new(&scratch, image.path(), "").unmount();
        }
        fs::remove_file(image.path()).unwrap();
    }
}
