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
fn tree(top: &Path, backwards: bool) {
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
