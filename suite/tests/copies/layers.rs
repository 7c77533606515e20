//! Volumes that are not a file of their own: in Android sparse and super images, and below overlays.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use steadfs_suite::{Image, Scratch, f2fs, steadfs, succeed};

use super::{MIB, cp, refused};

const SECTOR: usize = 512;

/// A tree with small files, links, and one file over many chunks.
fn tree(scratch: &Scratch) -> PathBuf {
    let top = scratch.folder("tree");
    fs::create_dir_all(top.join("a/b")).unwrap();
    for n in 0..40 {
        fs::write(top.join(format!("a/{n}")), format!("file {n}\n")).unwrap();
    }
    std::os::unix::fs::symlink("a/1", top.join("link")).unwrap();
    let mut state = 1_u64;
    let mut bytes = vec![0; 3 << 20];
    for (at, block) in bytes.chunks_mut(4096).enumerate() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        // Every third block is zeros, so that the image has many chunks.
        if at % 3 != 0 {
            block.fill((state >> 56) as u8 | 1);
            block[..8].copy_from_slice(&state.to_le_bytes());
        }
    }
    fs::write(top.join("a/b/large"), bytes).unwrap();
    top
}

fn volume(scratch: &Scratch, kind: &str, tree: &Path) -> Image {
    if kind == "ext4" {
        let args = ["-t", "ext4", "-L", "sys", "-d", text(tree)];
        return Image::mke2fs(scratch, "ext4.raw", 24 * MIB, &args);
    }
    let image = f2fs::mkfs(scratch, "f2fs.raw", 64 * MIB, "-l ven");
    let to = format!("{}:/", text(image.path()));
    cp(&["-a", text(&tree.join("a")), text(&tree.join("link")), &to]);
    image
}

/// The same image in the sparse format, made by its reference implementation.
fn to_sparse(raw: &Path, name: &str) -> PathBuf {
    let sparse = raw.with_file_name(name);
    succeed("img2simg", [raw, &sparse]);
    assert!(
        fs::read(&sparse)
            .unwrap()
            .starts_with(&[0x3a, 0xff, 0x26, 0xed])
    );
    sparse
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn out(args: &[&str]) -> String {
    steadfs(args).expect(0).out
}

/// Everything that is read of `other` is what is read of `raw`.
#[track_caller]
fn same_volume(scratch: &Scratch, raw: &str, other: &str, tree: &Path) {
    let same = |args: &[&str], path: &str| {
        let of = |image: &str| {
            let place = format!("{image}{path}");
            let said = out(&[args, &[&place]].concat());
            said.replace(image, "IMAGE")
        };
        assert_eq!(of(other), of(raw));
    };
    same(&["ls", "-laR"], "");
    same(&["inspect", "--json"], "");
    for path in [":/a/7", ":/a/b/large", ":/link"] {
        same(&["stat"], path);
    }
    steadfs(["check", other]).expect(0);
    let to = scratch.join("extracted");
    steadfs(["extract", other, text(&to)]).expect(0);
    let _ = fs::remove_dir(to.join("lost+found"));
    succeed("diff", ["-r", "--no-dereference", text(tree), text(&to)]);
    fs::remove_dir_all(&to).unwrap();
}

#[test]
fn sparse_images_are_read_as_their_raw_images() {
    let scratch = Scratch::new();
    let tree = tree(&scratch);
    for kind in ["ext4", "f2fs"] {
        let raw = volume(&scratch, kind, &tree);
        let sparse = to_sparse(raw.path(), &format!("{kind}.simg"));
        same_volume(&scratch, text(raw.path()), text(&sparse), &tree);
        // The judge's raw image of what was read.
        let back = scratch.join("back.raw");
        succeed("simg2img", [&*sparse, &*back]);
        match kind {
            "ext4" => Image::at(back.clone()).check_clean(),
            _ => drop(f2fs::check_clean(&back, "simg2img")),
        }
        same_volume(&scratch, text(&back), text(&sparse), &tree);

        refused(
            &[
                "cp",
                text(&tree.join("link")),
                &format!("{}:/x", text(&sparse)),
            ],
            "an Android sparse image cannot be written; simg2img makes a raw image",
        );
        let mnt = scratch.folder("mnt");
        let mounted = steadfs(["mount", text(&sparse), text(&mnt)]).expect(0);
        assert!(
            mounted
                .err
                .contains("mounted read-only: an Android sparse image"),
            "{}",
            mounted.err
        );
        assert!(fs::write(mnt.join("x"), "x").is_err());
        let large = "a/b/large";
        assert!(fs::read(mnt.join(large)).unwrap() == fs::read(tree.join(large)).unwrap());
        assert!(steadfs(["remount", "-o", "rw", text(&mnt)]).code() != 0);
        steadfs(["umount", text(&mnt)]).expect(0);
    }
}

#[test]
fn damaged_and_split_sparse_images_are_refused_with_the_reason() {
    let scratch = Scratch::new();
    let raw = Image::mke2fs(&scratch, "raw", 8 * MIB, &["-t", "ext4"]);
    let sparse = to_sparse(raw.path(), "simg");
    let whole = fs::read(&sparse).unwrap();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        let path = scratch.join("damaged");
        fs::write(&path, bytes).unwrap();
        path
    };
    for (path, why) in [
        (
            with(&|bytes| bytes.truncate(1 << 14)),
            "cannot be read: its chunk",
        ),
        (with(&|bytes| bytes[20] += 1), "is cut off: the file ends"),
    ] {
        for command in ["ls", "inspect"] {
            refused(&[command, text(&path)], why);
        }
        let checked = steadfs(["check", text(&path)]);
        assert_eq!(checked.code(), 8, "{}", checked.err);
        assert!(
            checked
                .err
                .contains("Android sparse image that cannot be read"),
            "{}",
            checked.err
        );
    }
    let parts = scratch.join("part");
    succeed("simg2simg", [text(&sparse), text(&parts), "20000"]);
    for number in 0..2 {
        let part = format!("{}.{number}", text(&parts));
        let why = "one of the files of an Android sparse image that was split";
        refused(&["ls", &part], why);
    }
    // The name alone is no reason.
    let whole = format!("{}.9", text(&parts));
    fs::copy(&sparse, &whole).unwrap();
    steadfs(["ls", &whole]).expect(0);
}

/// SHA-256 by coreutils.
fn sha256(bytes: &[u8]) -> Vec<u8> {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let mut line = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut line)
        .unwrap();
    child.wait().unwrap();
    let digit = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
    (0..32).map(|i| digit(2 * i)).collect()
}

/// A partition: its name, and its extents as first sector (`None`: zeros) and sectors.
type Logical<'a> = (&'a str, Vec<(Option<u64>, u64)>);

/// Writes the metadata of a super partition at the start of a file, as metadata_format.h of AOSP describes them.
fn write_super(file: &File, partitions: &[Logical<'_>]) {
    let (mut parts, mut extents, mut first) = (Vec::new(), Vec::new(), 0_u32);
    for (name, own) in partitions {
        let mut entry = name.as_bytes().to_vec();
        entry.resize(36, 0);
        for word in [1, first, own.len() as u32, 0] {
            entry.extend(u32::to_le_bytes(word));
        }
        parts.extend(entry);
        first += own.len() as u32;
        for (at, sectors) in own {
            extents.extend(sectors.to_le_bytes());
            extents.extend(u32::from(at.is_none()).to_le_bytes());
            extents.extend(at.unwrap_or(0).to_le_bytes());
            extents.extend(0_u32.to_le_bytes());
        }
    }
    let tables = [parts, extents, vec![0; 48], vec![0; 64]];
    let all = tables.concat();
    let mut header = [0x414c_5030_u32, 10, 128].map(u32::to_le_bytes).concat();
    header.resize(44, 0);
    header.extend((all.len() as u32).to_le_bytes());
    header.extend(sha256(&all));
    let mut offset = 0;
    for (table, entry) in tables.iter().zip([52, 24, 48, 64]) {
        for word in [offset, table.len() / entry, entry] {
            header.extend((word as u32).to_le_bytes());
        }
        offset += table.len();
    }
    let sum = sha256(&header);
    header[12..44].copy_from_slice(&sum);
    let mut geometry = [0x616c_4467_u32, 52].map(u32::to_le_bytes).concat();
    geometry.extend([0; 32]);
    geometry.extend([65536_u32, 1, 4096].map(u32::to_le_bytes).concat());
    let sum = sha256(&geometry);
    geometry[8..40].copy_from_slice(&sum);
    for at in [4096, 8192] {
        file.write_all_at(&geometry, at).unwrap();
    }
    for at in [12288, 12288 + 65536] {
        file.write_all_at(&[&header[..], &all].concat(), at)
            .unwrap();
    }
}

/// A super image with an ext4 volume in three extents, in another order than on the disk, and an f2fs volume.
fn make_super(scratch: &Scratch, ext4: &Image, f2fs: &Image) -> PathBuf {
    let path = scratch.join("super.img");
    let file = File::create(&path).unwrap();
    file.set_len(120 * MIB).unwrap();
    let (ext4, f2fs) = (
        fs::read(ext4.path()).unwrap(),
        fs::read(f2fs.path()).unwrap(),
    );
    let sectors = |bytes: u64| bytes / SECTOR as u64;
    let (a, b) = ext4.split_at(5 << 20);
    file.write_all_at(b, MIB).unwrap();
    file.write_all_at(a, 30 * MIB).unwrap();
    file.write_all_at(&f2fs, 40 * MIB).unwrap();
    let system = vec![
        (Some(sectors(30 * MIB)), sectors(MIB)),
        (Some(sectors(31 * MIB)), sectors(4 * MIB)),
        (Some(sectors(MIB)), sectors(b.len() as u64)),
        (None, sectors(MIB)),
    ];
    let vendor = vec![(Some(sectors(40 * MIB)), sectors(64 * MIB))];
    let parts = [
        ("system_a", system),
        ("system_b", Vec::new()),
        ("vendor_a", vendor),
    ];
    write_super(&file, &parts);
    path
}

#[test]
fn logical_partitions_of_a_super_image_are_volumes() {
    let scratch = Scratch::new();
    let tree = tree(&scratch);
    let (ext4, f2fs) = (
        volume(&scratch, "ext4", &tree),
        volume(&scratch, "f2fs", &tree),
    );
    let raw = make_super(&scratch, &ext4, &f2fs);
    let sparse = to_sparse(&raw, "super.simg");
    for image in [text(&raw), text(&sparse)] {
        let of = |part: &str| format!("{image}@{part}");
        let listed = steadfs(["ls", image]);
        assert_eq!(listed.code(), 1);
        for line in [
            "is a disk with partitions (Android super): say which one with IMAGE@NUMBER or IMAGE@NAME",
            "partition 1: 25 MiB, logical, \"system_a\": ext4 \"sys\"",
            "partition 2: 0 bytes, logical, \"system_b\"",
            "partition 3: 64 MiB, logical, \"vendor_a\": f2fs \"ven\"",
        ] {
            assert!(listed.err.contains(line), "{line}: {}", listed.err);
        }
        same_volume(&scratch, text(ext4.path()), &of("system_a"), &tree);
        same_volume(&scratch, text(f2fs.path()), &of("vendor"), &tree);
        for part in ["system", "sys", "1"] {
            assert_eq!(out(&["cat", &format!("{}:/a/3", of(part))]), "file 3\n");
        }
        assert_eq!(
            out(&["cat", "-o", "partition=system_a", &format!("{image}:/link")]),
            "file 1\n"
        );
        refused(
            &["cp", text(&tree.join("a/1")), &format!("{}:/x", of("1"))],
            "cannot be written",
        );
        refused(
            &["format", "-q", "--force", &of("1")],
            "cannot be formatted",
        );
        let none = steadfs(["ls", &of("product")]);
        assert!(
            none.err.contains("has no partition \"product\""),
            "{}",
            none.err
        );
        let mnt = scratch.folder("mnt");
        steadfs(["mount", "-o", "ro", &of("system"), text(&mnt)]).expect(0);
        assert_eq!(fs::read(mnt.join("a/9")).unwrap(), b"file 9\n");
        steadfs(["umount", text(&mnt)]).expect(0);
        let overlay = scratch.join("overlay");
        cp(&[
            "-o",
            &format!("overlay={}", text(&overlay)),
            text(&tree.join("a/1")),
            &format!("{}:/new", of("1")),
        ]);
        let list = format!("partition=system_a,overlay={}", text(&overlay));
        assert_eq!(
            out(&["cat", "-o", &list, &format!("{image}:/new")]),
            "file 1\n"
        );
        fs::remove_file(&overlay).unwrap();
    }
}

/// As on the flash memory of a telephone: the super image is a partition of a disk.
#[test]
fn a_super_partition_of_a_disk_has_logical_partitions() {
    let scratch = Scratch::new();
    let tree = tree(&scratch);
    let (ext4, f2fs) = (
        volume(&scratch, "ext4", &tree),
        volume(&scratch, "f2fs", &tree),
    );
    let inner = fs::read(make_super(&scratch, &ext4, &f2fs)).unwrap();
    let disk = scratch.join("disk.img");
    let file = File::create(&disk).unwrap();
    file.set_len(130 * MIB).unwrap();
    let table = "label: gpt\nstart=4096, size=245760, name=super\n";
    let mut sfdisk = Command::new("sfdisk")
        .args(["-q", text(&disk)])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = sfdisk.stdin.take().unwrap();
    input.write_all(table.as_bytes()).unwrap();
    drop(input);
    assert!(sfdisk.wait().unwrap().success());
    file.write_all_at(&inner, 2 * MIB).unwrap();
    let sparse = to_sparse(&disk, "disk.simg");
    for image in [text(&disk), text(&sparse)] {
        let of = |part: &str| format!("{image}@super@{part}");
        same_volume(&scratch, text(ext4.path()), &of("system_a"), &tree);
        same_volume(&scratch, text(f2fs.path()), &of("vendor"), &tree);
        let listed = steadfs(["inspect", "--partitions", &format!("{image}@1")]);
        assert!(listed.expect(0).out.contains("\"vendor_a\""));
        let list = "partition=super@sys";
        let read = out(&["cat", "-o", list, &format!("{image}:/a/3")]);
        assert_eq!(read, "file 3\n");
        let file = text(&tree.join("a/1")).to_owned();
        refused(
            &["cp", &file, &format!("{}:/x", of("1"))],
            "cannot be written",
        );
        refused(
            &["format", "-q", "--force", &of("1")],
            "cannot be formatted",
        );
        let none = steadfs(["ls", &of("none")]);
        let why = "partition \"super\" has no partition \"none\": it is a disk";
        assert!(none.err.contains(why), "{}", none.err);
    }
}

#[test]
fn a_cut_off_super_image_is_an_error() {
    let scratch = Scratch::new();
    let path = scratch.join("super.img");
    let file = File::create(&path).unwrap();
    file.set_len(MIB).unwrap();
    write_super(&file, &[("system", vec![(Some(1024), 2048)])]);
    refused(&["ls", &format!("{}@1", text(&path))], "behind the end");
}
