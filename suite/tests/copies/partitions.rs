//! Volumes in the partitions of a disk image, by `IMAGE@PARTITION` and `-o partition=`.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use steadfs_suite::{Scratch, run, steadfs};

use super::{MIB, cp, refused};

/// Partitions of the disk: first byte and length. The rest is filled with a pattern.
const PARTS: [(u64, u64); 2] = [(MIB, 32 * MIB), (40 * MIB, 64 * MIB)];
const SIZE: u64 = 108 * MIB;

fn pattern(at: u64) -> u8 {
    (at / 512 % 251) as u8
}

/// The ranges that no partition has.
fn gaps() -> [(u64, u64); 3] {
    let end = |part: usize| PARTS[part].0 + PARTS[part].1;
    [(512, PARTS[0].0), (end(0), PARTS[1].0), (end(1), SIZE)]
}

fn make_disk(path: &Path) {
    let mut file = File::create(path).unwrap();
    let mut table = [0; 512];
    for (part, (start, bytes)) in PARTS.into_iter().enumerate() {
        let entry = &mut table[446 + 16 * part..462 + 16 * part];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&u32::try_from(start / 512).unwrap().to_le_bytes());
        entry[12..16].copy_from_slice(&u32::try_from(bytes / 512).unwrap().to_le_bytes());
    }
    table[510..].copy_from_slice(b"\x55\xaa");
    file.write_all(&table).unwrap();
    file.set_len(SIZE).unwrap();
    for (from, to) in gaps() {
        let bytes: Vec<u8> = (from..to).map(pattern).collect();
        file.write_all_at(&bytes, from).unwrap();
    }
}

/// Copies a partition into a file of its own.
fn cut_out(disk: &Path, part: usize, to: &Path) {
    let (start, bytes) = PARTS[part];
    let mut content = vec![0; bytes as usize];
    let file = File::open(disk).unwrap();
    file.read_exact_at(&mut content, start).unwrap();
    fs::write(to, content).unwrap();
}

/// `inspect --partitions` lists the partitions of [`make_disk`] and the labels that they were given.
fn is_listed(name: &str) {
    let listed = steadfs(["inspect", "--partitions", name]).expect(0).out;
    assert!(listed.contains("partition 2: "), "{listed}");
    let json = steadfs(["inspect", "--partitions", "--json", name])
        .expect(0)
        .out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["scheme"], "MBR");
    for (part, (start, bytes)) in PARTS.into_iter().enumerate() {
        let shown = &json["partitions"][part];
        assert_eq!(
            (shown["start"].as_u64(), shown["size"].as_u64()),
            (Some(start), Some(bytes))
        );
        assert_eq!(shown["label"], ["boot", "data"][part]);
        assert_eq!(shown["is_volume"], true);
    }
}

#[test]
fn partitions_of_a_disk_are_volumes_in_every_command() {
    let scratch = Scratch::new();
    let (disk, file) = (scratch.join("disk.img"), scratch.join("file"));
    make_disk(&disk);
    fs::write(&file, b"content").unwrap();
    let (disk_path, name) = (disk.as_path(), disk.to_str().unwrap());
    let of = |part: &str| format!("{name}@{part}");
    steadfs(["format", "-q", "-L", "boot", &of("1")]).expect(0);
    steadfs(["format", "-q", "-t", "f2fs", "-l", "data", &of("2")]).expect(0);
    refused(&["format", "-q", "--force", &of("1"), "33M"], "do not fit");

    let file = file.to_str().unwrap();
    cp(&[file, &of("1:/a")]);
    cp(&[&of("boot:/a"), &of("data:/b")]);
    cp(&[&of("2:/b"), &of("data:/c")]);
    for read in [
        &["cat", &of("2:/c")][..],
        &["cat", "-o", "partition=2", &format!("{name}:/b")],
    ] {
        assert_eq!(steadfs(read).expect(0).out, "content", "{read:?}");
    }
    let out = scratch.join("out");
    steadfs(["extract", &of("data"), out.to_str().unwrap()]).expect(0);
    assert_eq!(fs::read(out.join("c")).unwrap(), b"content");

    let mountpoint = scratch.join("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let at = mountpoint.to_str().unwrap();
    steadfs(["mount", &of("boot"), at]).expect(0);
    fs::write(mountpoint.join("d"), b"mounted").unwrap();
    steadfs(["umount", at]).expect(0);
    steadfs(["mount", "-o", "ro,partition=1", name, at]).expect(0);
    assert_eq!(fs::read(mountpoint.join("d")).unwrap(), b"mounted");
    steadfs(["umount", at]).expect(0);

    for part in ["1", "2"] {
        steadfs(["check", &of(part)]).expect(0);
        let label = ["boot", "data"][usize::from(part == "2")];
        let shown = steadfs(["inspect", &of(part)]).expect(0).out;
        assert!(shown.contains(label), "{shown}");
    }
    is_listed(name);
    let piece = scratch.join("piece");
    cut_out(disk_path, 0, &piece);
    run("e2fsck", ["-fn", piece.to_str().unwrap()]).expect(0);
    cut_out(disk_path, 1, &piece);
    run("fsck.f2fs", [piece.to_str().unwrap()]).expect(0);
    let file = File::open(disk_path).unwrap();
    for (from, to) in gaps() {
        let mut bytes = vec![0; (to - from) as usize];
        file.read_exact_at(&mut bytes, from).unwrap();
        assert!(
            bytes
                .iter()
                .zip(from..to)
                .all(|(byte, at)| *byte == pattern(at)),
            "{from}"
        );
    }
}

/// A disk in a partition of a disk, as a virtual machine's.
#[test]
fn partitions_of_a_partition_are_volumes() {
    let scratch = Scratch::new();
    let (inner, disk) = (scratch.join("inner"), scratch.join("disk.img"));
    make_disk(&inner);
    let start = 2 * MIB;
    let mut table = [0; 512];
    table[446 + 4] = 0x83;
    table[446 + 8..446 + 12].copy_from_slice(&u32::try_from(start / 512).unwrap().to_le_bytes());
    table[446 + 12..446 + 16].copy_from_slice(&u32::try_from(SIZE / 512).unwrap().to_le_bytes());
    table[510..].copy_from_slice(b"\x55\xaa");
    let file = File::create(&disk).unwrap();
    file.write_all_at(&table, 0).unwrap();
    file.write_all_at(&fs::read(&inner).unwrap(), start)
        .unwrap();
    file.set_len(start + SIZE + MIB).unwrap();
    let name = disk.to_str().unwrap();
    let of = |part: &str| format!("{name}@1@{part}");
    steadfs(["format", "-q", "-L", "boot", &of("1")]).expect(0);
    steadfs(["format", "-q", "-t", "f2fs", "-l", "data", &of("2")]).expect(0);
    let source = scratch.join("file");
    fs::write(&source, b"content").unwrap();
    cp(&[source.to_str().unwrap(), &of("boot:/a")]);
    cp(&[&of("boot:/a"), &of("data:/b")]);
    assert_eq!(steadfs(["cat", &of("2:/b")]).expect(0).out, "content");
    let none = steadfs(["ls", &of("3")]);
    assert_eq!(none.code(), 1);
    for text in [
        "partition \"1\" has no partition \"3\": it is a disk",
        // In the file.
        &format!("partition 2: -o offset={}, ", start + PARTS[1].0),
    ] {
        assert!(none.err.contains(text), "{}", none.err);
    }
    let mut bytes = vec![0; SIZE as usize];
    let disk = File::open(&disk).unwrap();
    disk.read_exact_at(&mut bytes, start).unwrap();
    fs::write(&inner, bytes).unwrap();
    let piece = scratch.join("piece");
    cut_out(&inner, 0, &piece);
    run("e2fsck", ["-fn", piece.to_str().unwrap()]).expect(0);
    cut_out(&inner, 1, &piece);
    run("fsck.f2fs", [piece.to_str().unwrap()]).expect(0);
}

#[test]
fn what_names_no_partition_is_refused_with_the_list() {
    let scratch = Scratch::new();
    let disk = scratch.join("disk.img");
    make_disk(&disk);
    let name = disk.to_str().unwrap();
    let of = |part: &str| format!("{name}@{part}");
    steadfs(["format", "-q", "-L", "same", &of("1")]).expect(0);
    steadfs(["format", "-q", "-L", "same", &of("2")]).expect(0);
    for part in ["3", "0", "nothing"] {
        let output = steadfs(["ls", &of(part)]);
        assert_eq!(output.code(), 1, "{}", output.err);
        let list = "partition 2: -o offset=41943040, 64 MiB, Linux: ext4 \"same\"";
        assert!(output.err.contains(list), "{}", output.err);
    }
    refused(&["ls", &of("same")], "several partitions \"same\" (1, 2)");
    let with = ["ls", "-o", "offset=1M", &of("1")];
    refused(&with, "offset= and sizelimit= contradict");
    refused(
        &["ls", "-o", "partition=2", &of("1")],
        "another partition is named",
    );
    // A file of that very name goes first.
    fs::write(of("2"), b"").unwrap();
    refused(&["ls", &of("2")], "is empty");
    let whole = scratch.join("whole.img");
    steadfs(["format", "-q", whole.to_str().unwrap(), "8M"]).expect(0);
    refused(
        &["ls", &format!("{}@1", whole.display())],
        "no partition table",
    );
}
