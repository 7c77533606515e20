//! `format --fit`: images as small as what fills them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::statvfs;
use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::until;
use steadfs_suite::stead::program;
use steadfs_suite::tree::{Compare, Tree};
use steadfs_suite::{KernelMount, Outcome, Scratch, run, steadfs, succeed};

use super::reproducible::tree;
use super::{MIB, UUID, clean};

fn format(words: &[&str], image: &str) -> Outcome {
    steadfs(["format", "-q"].iter().chain(words).chain(&[image]))
}

fn number(image: &str, field: &str) -> u64 {
    let shown = succeed("dumpe2fs", ["-h", image]).out;
    let line = shown.lines().find_map(|line| line.strip_prefix(field));
    line.unwrap().trim().parse().unwrap()
}

/// What is left besides the image itself.
fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// The kernel reads all of it, mke2fs fills a volume of the same size and none that is 1 % smaller.
#[test]
fn a_fitted_ext_volume_is_the_smallest_that_holds_the_tree() {
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    tree(&source, false);
    let (from, image) = (source.to_str().unwrap(), scratch.join("image"));
    let shown = image.to_str().unwrap();
    let clusters = &["-O", "bigalloc", "-C", "8192"][..];
    for (kind, block, more) in [
        ("ext4", "4096", &[][..]),
        ("ext2", "1024", &[]),
        ("ext4", "1024", clusters),
    ] {
        let words = [&["-t", kind, "-b", block, "-d", from, "--fit"], more].concat();
        format(&words, shown).expect(0);
        clean(shown);
        let blocks = number(shown, "Block count:");
        let block: u64 = block.parse().unwrap();
        assert_eq!(fs::metadata(&image).unwrap().len(), blocks * block);
        let inodes = number(shown, "Inode count:").to_string();
        let theirs = |blocks: u64| {
            let judged = scratch.join("judged");
            let _ = fs::remove_file(&judged);
            let (block, blocks) = (block.to_string(), blocks.to_string());
            let words = ["-q", "-t", kind, "-b", &block, "-N", &inodes, "-d", from];
            let place = [judged.to_str().unwrap(), &blocks];
            run("mke2fs", words.iter().chain(more).chain(&place)).code()
        };
        assert_eq!(theirs(blocks), 0, "{kind}");
        assert_ne!(theirs(blocks * 99 / 100), 0, "{kind}");
        let mount = KernelMount::new(&scratch, &image, "ro");
        Tree::of(&source).assert_same(&Tree::of(mount.root()), Compare::COPY, kind);
        mount.unmount();
    }
}

#[test]
fn free_space_is_what_users_see() {
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    tree(&source, false);
    let (from, image) = (source.to_str().unwrap(), scratch.join("image"));
    let shown = image.to_str().unwrap();
    for (free, least) in [("--fit=3M", 3 * MIB), ("--fit=30%", 0)] {
        format(&["-d", from, free], shown).expect(0);
        clean(shown);
        let size = fs::metadata(&image).unwrap().len();
        let least = |size: u64| {
            least.max(if free.ends_with('%') {
                size * 3 / 10
            } else {
                0
            })
        };
        let wanted = least(size);
        let mount = KernelMount::new(&scratch, &image, "ro");
        let found = statvfs(mount.root()).unwrap();
        mount.unmount();
        let left = found.f_bavail * found.f_frsize;
        assert!(
            (wanted..wanted + wanted / 50).contains(&left),
            "{free}: {left}"
        );
        assert!(
            found.f_ffree >= wanted >> 14,
            "{free}: {} inodes",
            found.f_ffree
        );
        // The kernel may have no f2fs.
        format(&["-f", "-t", "f2fs", "-d", from, free], shown).expect(0);
        succeed("fsck.f2fs", ["--dry-run", shown]);
        let inspected = steadfs(["inspect", "--json", shown]).expect(0).out;
        let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
        let valid = &inspected["checkpoint"]["valid"];
        let count = |name: &str| valid[name].as_u64().unwrap();
        let left = (count("user_block_count") - count("valid_block_count")) * 4096;
        let wanted = least(fs::metadata(&image).unwrap().len());
        assert!((wanted..wanted + 4 * MIB).contains(&left), "{free}: {left}");
    }
}

/// Also with the same size from a directory, and from a stream of it.
#[test]
fn a_fitted_volume_is_reproducible() {
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    tree(&source, true);
    symlink("none", source.join("loose")).unwrap();
    let archive = scratch.join("tar");
    let top = source.to_str().unwrap();
    let words = ["--xattrs", "--xattrs-include=*", "-C", top, "-cf"];
    succeed("tar", words.iter().chain(&[archive.to_str().unwrap(), "."]));
    for kind in ["ext4", "f2fs"] {
        let make = |from: &Path, stream: bool, sandbox: &str| {
            let image = scratch.join("image");
            let mut command = Command::new(program());
            command
                .env("SOURCE_DATE_EPOCH", "1600000000")
                .args(["format", "-qf", "-t", kind, "-U", UUID, "--fit", "-d"])
                .arg(if stream { Path::new("-") } else { from })
                .args([image.as_os_str(), sandbox.as_ref()]);
            if stream {
                command.stdin(fs::File::open(from).unwrap());
            }
            let output = command.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            fs::read(image).unwrap()
        };
        let ours = make(&source, false, "--sandbox=on");
        assert!(ours == make(&archive, true, "--sandbox=off"), "{kind}");
    }
}

#[test]
fn what_cannot_be_fitted_leaves_the_target_alone() {
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    fs::write(source.join("large"), vec![7; 40 << 20]).unwrap();
    for n in 0..200 {
        fs::write(source.join(format!("{n}")), "").unwrap();
    }
    let folder = scratch.folder("images");
    let (from, image) = (source.to_str().unwrap(), folder.join("image"));
    let shown = image.to_str().unwrap();
    let refused = |words: &[&str], why: &str| {
        let output = format(words, shown);
        assert!(
            output.code() == 1 && output.err.contains(why),
            "{}",
            output.err
        );
        assert!(names(&folder).is_empty(), "{:?}", names(&folder));
    };
    refused(&["--fit"], "about the content of -d");
    refused(
        &["--fit", "-d", from, "-N", "16"],
        "16 inodes (-N) are too few",
    );
    refused(&["--fit=91%", "-d", from], "percentage from 0 to 90");
    refused(
        &["--fit", "-d", scratch.path().to_str().unwrap()],
        "which it is made of",
    );
    let output = format(&["-t", "f2fs", "--fit", "-d", from, shown], "64M");
    assert!(output.err.contains("give none"), "{}", output.err);
    let output = format(&["--fit", "-d", from], "/dev/null");
    assert!(output.err.contains("is a device"), "{}", output.err);
    // A member that would lie outside of the tree.
    let archive = scratch.join("tar");
    let words = [
        "--transform=s,^,../,",
        "-C",
        from,
        "-Pcf",
        archive.to_str().unwrap(),
    ];
    succeed("tar", words.iter().chain(&["large"]));
    refused(
        &["--fit", "-d", archive.to_str().unwrap()],
        "nothing was made",
    );
    // A host without space.
    succeed(
        "mount",
        [
            "-t",
            "tmpfs",
            "-o",
            "size=20M",
            "none",
            folder.to_str().unwrap(),
        ],
    );
    refused(&["--fit", "-d", from], "No space left on device");
    succeed("umount", [folder.to_str().unwrap()]);
}

#[test]
fn a_signal_leaves_the_old_file() {
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    fs::write(source.join("large"), vec![7; 40 << 20]).unwrap();
    let folder = scratch.folder("images");
    let (from, image) = (source.to_str().unwrap(), folder.join("image"));
    let shown = image.to_str().unwrap();
    fs::write(&image, "old").unwrap();
    let mut command = Command::new(program());
    command.args(["format", "-q", "--fit", "-d", from, shown]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    until("the image is begun", || names(&folder).len() > 1);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(names(&folder), ["image"]);
    assert_eq!(fs::read(&image).unwrap(), b"old");
}
