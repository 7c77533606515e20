//! Reproducible volumes: the same tree, UUID and time make the same bytes.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use steadfs_suite::command::finish;
use steadfs_suite::stead::program;
use steadfs_suite::tree::set_xattr;
use steadfs_suite::{Scratch, steadfs, succeed};

use super::{MIB, UUID, clean};

const EPOCH: u32 = 1_600_000_000;

/// The same tree, created in one order or the other, with holes or with zeros.
pub(super) fn tree(top: &Path, backwards: bool) {
    fs::create_dir_all(top.join("d/e")).unwrap();
    let mut numbers: Vec<u32> = (0..300).collect();
    if backwards {
        numbers.reverse();
    }
    for n in numbers {
        let len = usize::try_from(n * n % 40_000).unwrap();
        fs::write(top.join(format!("d/file{n}")), vec![n as u8; len]).unwrap();
    }
    let sparse = fs::File::create(top.join("sparse")).unwrap();
    sparse.set_len(3 * MIB + 17).unwrap();
    sparse.write_all_at(&[1; 5000], MIB + 4096).unwrap();
    if backwards {
        sparse.write_all_at(&[0; 65_536], 2 * MIB).unwrap();
    }
    fs::write(top.join("large"), vec![3; 12 * MIB as usize]).unwrap();
    symlink("d/file1", top.join("link")).unwrap();
    fs::hard_link(top.join("d/file2"), top.join("hard")).unwrap();
    let mut names = ["user.a", "user.b", "trusted.c"];
    if backwards {
        names.reverse();
    }
    for name in names {
        set_xattr(&top.join("large"), name, b"value");
    }
}

fn make(image: &Path, words: &[&str], from: Option<&Path>) {
    let mut command = Command::new(program());
    command
        .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
        .args(["format", "-q", "-U", UUID])
        .args(words);
    if let Some(from) = from {
        command.arg("-d").arg(from);
    }
    command.arg(image).arg("96M");
    finish(command, Duration::from_secs(300)).expect(0);
}

#[test]
fn the_same_tree_makes_the_same_bytes() {
    let scratch = Scratch::new();
    let trees = [false, true].map(|backwards| {
        let top = scratch.folder(if backwards { "second" } else { "first" });
        tree(&top, backwards);
        top
    });
    for words in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext3"],
        &["-t", "ext4", "-O", "orphan_file,metadata_csum_seed"],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-E",
            "hash_seed=11111111-2222-3333-4444-555555555555",
        ],
        &["-t", "f2fs"],
        &[
            "-t",
            "f2fs",
            "-O",
            "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr",
        ],
    ] {
        let images = trees.clone().map(|top| {
            let image = top.with_extension("img");
            let _ = fs::remove_file(&image);
            // The second one is made at least a second later.
            std::thread::sleep(Duration::from_millis(1100));
            make(&image, words, Some(&top));
            image
        });
        let [one, other] = images.clone().map(|image| fs::read(image).unwrap());
        let differ = one.iter().zip(&other).position(|(a, b)| a != b);
        assert_eq!((differ, one.len()), (None, other.len()), "{words:?}");
        let image = images[0].to_str().unwrap();
        let file = steadfs(["stat", &format!("{image}:/d/file7")])
            .expect(0)
            .out;
        assert!(file.contains("2020-09-13 12:26:40"), "{file}");
        if words[1] == "f2fs" {
            succeed("fsck.f2fs", ["--dry-run", image]);
            continue;
        }
        clean(image);
        let date = ["-u", "-d", "@1600000000", "+%a %b %e %T %Y"];
        let date = succeed("date", date).out;
        let output = succeed("env", ["TZ=UTC", "dumpe2fs", "-h", image]).out;
        let label = "Filesystem created:";
        let made = output.lines().find_map(|line| line.strip_prefix(label));
        assert_eq!(made.unwrap().trim(), date.trim());
    }
}

#[test]
fn an_empty_volume_is_determined_by_uuid_and_time() {
    let scratch = Scratch::new();
    for kind in ["ext4", "f2fs"] {
        let [one, other] = ["a", "b"].map(|name| {
            let image = scratch.join(&format!("{kind}-{name}"));
            make(&image, &["-t", kind], None);
            fs::read(image).unwrap()
        });
        assert!(one == other, "{kind}");
    }
    let image = scratch.join("none");
    let mut command = Command::new(program());
    command.env("SOURCE_DATE_EPOCH", "yesterday");
    command.arg("format").arg(&image).arg("64M");
    let output = finish(command, Duration::from_secs(60));
    assert_eq!(output.code(), 1);
    assert!(
        output.err.contains("SOURCE_DATE_EPOCH=yesterday"),
        "{}",
        output.err
    );
    assert!(!image.exists());
}

/// Removes the directory that a new ext volume has, which is one block of the archive.
fn without_lost_and_found(archive: &Path) {
    let mut bytes = fs::read(archive).unwrap();
    let mut blocks = bytes.chunks(512);
    if let Some(at) = blocks.position(|block| block.starts_with(b"./lost+found/\0")) {
        bytes.drain(512 * at..512 * (at + 1));
        fs::write(archive, bytes).unwrap();
    }
}

/// A tar archive of the tree makes the bytes that the tree makes, in any order of its members, from a file or a pipe, and
/// written by GNU tar or by `steadfs tar`.
#[test]
fn an_archive_makes_the_bytes_of_its_tree() {
    let scratch = Scratch::new();
    for (name, backwards) in [("first", false), ("second", true)] {
        tree(&scratch.folder(name), backwards);
    }
    let made = |command: String| {
        let mut shell = Command::new("bash");
        shell.env("SOURCE_DATE_EPOCH", EPOCH.to_string());
        shell.env("S", program()).current_dir(scratch.path());
        shell.args(["-o", "pipefail", "-ec", &command]);
        finish(shell, Duration::from_secs(300)).expect(0);
    };
    let tar = "tar --format=pax --xattrs --xattrs-include=* -c";
    made(format!(
        "set -f; {tar} -C first --sort=name -f sorted.tar .
         {tar} -S -C second -f other.tar ./sparse ./link ./large ./hard ."
    ));
    for words in ["-t ext4 -O orphan_file", "-t ext2 -b 1024", "-t f2fs"] {
        let format = format!("$S format -q -U {UUID} {words}");
        made(format!(
            "rm -f *.img; {format} -d first tree.img 96M
             {format} -d sorted.tar sorted.img 96M
             cat other.tar | {format} -d - other.img 96M
             $S tar tree.img -f ours.tar"
        ));
        without_lost_and_found(&scratch.join("ours.tar"));
        made(format!("{format} -d ours.tar ours.img 96M"));
        let sum = |name: &str| {
            let sum = succeed("sha256sum", [scratch.join(name)]).out;
            sum.split(' ').next().unwrap_or_default().to_owned()
        };
        let first = sum("tree.img");
        for name in ["sorted.img", "other.img", "ours.img"] {
            assert_eq!(first, sum(name), "{words}: {name}");
        }
    }
}
