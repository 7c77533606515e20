//! New volumes compared with those of mkfs.f2fs, and checked by fsck.f2fs and by our checker.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use steadfs_block::{FileDevice, OpenOptions};
use tempfile::TempDir;

use super::*;
use crate::check::{self, check};
use crate::disk::superblock::{RawSuperblock, SUPERBLOCK_OFFSET};

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";
const TIME: &str = "1700000000";
/// The version that mkfs.f2fs -r gives the first checkpoint: the first number of the C library's generator.
const FIRST_RANDOM: u32 = 1_804_289_383;
const MIB: u64 = 1 << 20;

/// Translates options of mkfs.f2fs.
fn options(args: &[&str]) -> Result<FormatOptions, FormatError> {
    let mut opts = FormatOptions {
        time: Some(TIME.parse().unwrap()),
        checkpoint_version: Some(FIRST_RANDOM),
        ..FormatOptions::default()
    };
    opts.set_uuid(UUID)?;
    let mut words = args.iter();
    while let Some(&word) = words.next() {
        if word == "-i" {
            opts.large_nat_bitmap = true;
            continue;
        }
        let value = *words.next().unwrap();
        match word {
            "-l" => opts.label = value.to_owned(),
            "-O" => opts.set_features(value)?,
            "-C" => opts.set_encoding(value)?,
            "-s" => opts.segments_per_section = value.parse().unwrap(),
            "-z" => opts.sections_per_zone = value.parse().unwrap(),
            "-o" => opts.overprovision = Some(value.parse().unwrap()),
            "-e" => opts.add_cold(value),
            "-E" => opts.add_hot(value),
            "-t" => opts.discard = value == "1",
            "-R" => opts.set_root_owner(value)?,
            _ => panic!("{word} is no option of these tests"),
        }
    }
    Ok(opts)
}

fn run_tool(program: &str, args: &[&str]) -> (bool, String) {
    let output = crate::test_support::tool(program)
        .args(args)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// Runs mkfs.f2fs with `args` on a file of `size` bytes, of which it may use `used`. Returns its output on failure.
fn theirs(path: &Path, args: &[&str], size: u64, used: u64) -> Result<(), String> {
    File::create(path).unwrap().set_len(size).unwrap();
    let sectors = (used / 512).to_string();
    let mut all = vec!["-f", "-r", "-T", TIME, "-U", UUID];
    all.extend_from_slice(args);
    all.push(path.to_str().unwrap());
    all.push(&sectors);
    match run_tool("mkfs.f2fs", &all) {
        (true, _) => Ok(()),
        (false, said) => Err(said),
    }
}

fn ours(path: &Path, args: &[&str], size: u64) -> Result<FormatReport, FormatError> {
    let open = OpenOptions {
        create: Some(size),
        direct: false,
        ..OpenOptions::default()
    };
    let device = FileDevice::open(path, open).unwrap();
    let queue = Queue::new(Arc::new(device), QueueOptions::default());
    format(&queue, size, &options(args)?)
}

/// The ranges of a file that may have bytes other than 0.
fn data_of(file: &File) -> Vec<Range<u64>> {
    let size = file.metadata().unwrap().len();
    let mut found = Vec::new();
    let mut at = 0;
    while at < size {
        let Ok(start) = seek(file.as_fd(), SeekFrom::Data(at)) else {
            break;
        };
        let end = seek(file.as_fd(), SeekFrom::Hole(start)).unwrap();
        found.push(start..end.min(size));
        at = end;
    }
    found
}

/// A block in comparable form: without the names of the programs, and, for a superblock, without the size if the
/// two programs were given different ones; without its checksum then.
fn block_of(file: &File, at: u64, sizes_differ: bool) -> Vec<u8> {
    let mut block = vec![0; BLOCK_SIZE];
    let len = file.read_at(&mut block, at).unwrap();
    block.truncate(len);
    if at <= BLOCK_SIZE as u64 {
        let field = |at: usize, len: usize| SUPERBLOCK_OFFSET + at..SUPERBLOCK_OFFSET + at + len;
        block[field(std::mem::offset_of!(RawSuperblock, version), 512)].fill(0);
        block[field(std::mem::offset_of!(RawSuperblock, crc), 4)].fill(0);
        if sizes_differ {
            block[field(std::mem::offset_of!(RawSuperblock, block_count), 8)].fill(0);
        }
    }
    block
}

fn compare(ours: &Path, theirs: &Path, sizes_differ: bool, what: &str) {
    let (ours, theirs) = (File::open(ours).unwrap(), File::open(theirs).unwrap());
    let mut places = [data_of(&ours), data_of(&theirs)].concat();
    places.sort_by_key(|range| range.start);
    let mut next = 0;
    for range in places {
        let mut at = next.max(range.start / BLOCK_SIZE as u64 * BLOCK_SIZE as u64);
        while at < range.end {
            let (our, their) = (
                block_of(&ours, at, sizes_differ),
                block_of(&theirs, at, sizes_differ),
            );
            if our != their {
                let byte = our.iter().zip(&their).position(|(a, b)| a != b);
                let block = at / BLOCK_SIZE as u64;
                panic!("{what}: block {block} differs at byte {byte:?}");
            }
            at += BLOCK_SIZE as u64;
        }
        next = at.max(next);
    }
}

/// fsck.f2fs and our checker find nothing.
fn accept(path: &Path, what: &str) {
    let (ok, said) = run_tool("fsck.f2fs", &["--dry-run", path.to_str().unwrap()]);
    let fine = |line: &str| !line.contains("[Fail]") && !line.contains("ASSERT");
    assert!(ok && said.lines().all(fine), "{what}: {said}");
    assert!(said.contains("[Ok..]"), "{what}: {said}");
    let report = check(&File::open(path).unwrap(), &check::Options::default());
    assert!(report.is_clean(), "{what}: {report:?}");
    let extra = u64::from(what.contains("lost_found"));
    assert_eq!(report.stats.names, extra, "{what}");
}

/// Bytes up to the end of the main area; mkfs.f2fs counts wrongly beyond it.
fn end_of_main(path: &Path) -> u64 {
    let mut bytes = vec![0; BLOCK_SIZE];
    File::open(path)
        .unwrap()
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    let superblock = crate::disk::Superblock::parse(&bytes[SUPERBLOCK_OFFSET..]).unwrap();
    let layout = superblock.layout();
    u64::from(layout.main_start + layout.main_blocks()) * BLOCK_SIZE as u64
}

/// Runs both programs with the same options and size: they write the same bytes, or both refuse.
fn case(dir: &TempDir, args: &[&str], size: u64) -> bool {
    let what = format!("{args:?} {size}");
    let (our_path, their_path) = (dir.path().join("ours"), dir.path().join("theirs"));
    let _ = std::fs::remove_file(&our_path);
    let our = ours(&our_path, args, size);
    let used = match &our {
        Ok(_) => end_of_main(&our_path),
        Err(_) => size,
    };
    // If the device ends with the main area, both get the same size.
    let differ = size - used >= 2 * MIB;
    let used = if differ { used } else { size };
    let their = theirs(&their_path, args, size, used);
    match (&our, &their) {
        (Ok(_), Ok(())) => {
            compare(&our_path, &their_path, differ, &what);
            accept(&our_path, &what);
        }
        (Err(_), Err(_)) => {}
        (Ok(_), Err(said)) => panic!("{what}: refused by mkfs.f2fs only: {said}"),
        (Err(error), Ok(())) => panic!("{what}: refused by us only: {error}"),
    }
    our.is_ok()
}

#[test]
fn equal_to_mkfs_at_every_small_size() {
    let dir = tempfile::tempdir().unwrap();
    let made: Vec<u64> = (16..=64).filter(|mib| case(&dir, &[], mib * MIB)).collect();
    assert_eq!(made.first(), Some(&52), "{made:?}");
    for size in [
        64 * MIB - 1,
        64 * MIB + 512,
        99 * MIB + 4095,
        131 * MIB + 1536,
    ] {
        assert!(case(&dir, &[], size), "{size}");
    }
}

#[test]
fn equal_to_mkfs_at_large_sizes() {
    let dir = tempfile::tempdir().unwrap();
    for mib in [
        100, 200, 300, 519, 520, 521, 522, 523, 600, 1000, 1024, 1777, 4096, 10_007, 65_536,
    ] {
        assert!(case(&dir, &[], mib * MIB), "{mib}");
        assert!(case(&dir, &["-i"], mib * MIB), "{mib}");
    }
}

const ALL: &str = "extra_attr,project_quota,inode_checksum,flexible_inline_xattr,inode_crtime,\
                   lost_found,verity,encrypt,compression,sb_checksum";

#[test]
fn equal_to_mkfs_with_options() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["-O", ALL][..],
        &["-O", ALL, "-i", "-R", "1000:100", "-l", "Böden"],
        &["-C", "utf8"],
        &["-C", "utf8:strict", "-O", ALL],
        &["-O", "lost_found"],
        &["-O", "verity,encrypt", "-O", "sb_checksum"],
        &["-O", "extra_attr"],
        &["-O", "extra_attr,flexible_inline_xattr"],
        &["-O", "extra_attr,inode_checksum"],
        &["-O", "extra_attr,project_quota"],
        &["-O", "extra_attr,project_quota,lost_found"],
        &["-O", "quota"],
        &["-O", "quota,lost_found"],
        &["-O", "extra_attr,project_quota,quota,lost_found"],
        &["-O", "extra_attr,inode_crtime"],
        &["-O", "extra_attr,compression,inode_checksum"],
        &["-R", "7:8"],
        &["-t", "0"],
        &["-t", "1"],
        &["-e", "aa,bb,mp", "-E", "dd,db"],
        &["-o", "10"],
        &["-o", "33.3"],
        &["-o", "90"],
    ] {
        assert!(case(&dir, args, 128 * MIB), "{args:?}");
        assert!(case(&dir, args, 1000 * MIB), "{args:?}");
    }
}

#[test]
fn equal_to_mkfs_with_sections_and_zones() {
    let dir = tempfile::tempdir().unwrap();
    let mut made = 0;
    for (section, zone) in [
        (1, 2),
        (1, 3),
        (1, 7),
        (1, 16),
        (1, 40),
        (1, 60),
        (2, 1),
        (3, 1),
        (4, 2),
        (5, 1),
        (8, 1),
        (8, 4),
        (16, 1),
        (17, 3),
        (64, 1),
        (128, 2),
    ] {
        let (section, zone): (u64, u64) = (section, zone);
        for mib in [64, 256, 1024, 1500, 8192] {
            let (section, zone) = (section.to_string(), zone.to_string());
            made += u32::from(case(&dir, &["-s", &section, "-z", &zone], mib * MIB));
        }
    }
    assert!(made > 35, "{made}");
}

#[test]
fn refused_with_a_reason() {
    let refused = |args: &[&str], size: u64| match options(args).and_then(|o| image(size, &o)) {
        Ok(_) => panic!("{args:?} is accepted"),
        Err(error) => error.to_string(),
    };
    for (args, size, words) in [
        (&[][..], 1 << 20, "too small"),
        (&[], 40 << 20, "garbage collection"),
        (&["-O", "casefold"], 64 << 20, "casefold needs an encoding"),
        (&["-C", "utf9"], 64 << 20, "utf9 is not utf8"),
        (&["-O", "ro"], 64 << 20, "the feature ro"),
        (&["-O", "blkzoned"], 64 << 20, "the feature blkzoned"),
        (&["-O", "nonsense"], 64 << 20, "nonsense is unknown"),
        (&["-O", "compression"], 64 << 20, "needs extra_attr"),
        (&["-s", "0"], 64 << 20, "sections"),
        (&["-z", "4294967295"], 64 << 20, "sections"),
        (&["-s", "100"], 256 << 20, "too small"),
        (&["-o", "200"], 64 << 20, "percentage"),
        (&["-o", "NaN"], 64 << 20, "percentage"),
        (&["-o", "100"], 64 << 20, "nothing to users"),
        (&["-e", "toolong8"], 64 << 20, "1 to 7 bytes"),
        (&["-R", "root"], 64 << 20, "1000:100"),
    ] {
        let said = refused(args, size);
        assert!(said.contains(words), "{args:?}: {said}");
    }
    let long = "x".repeat(512);
    assert!(refused(&["-l", &long], 64 << 20).contains("511"));
    let many: Vec<String> = (100..130).map(|n| n.to_string()).collect();
    assert!(refused(&["-e", &many.join(",")], 64 << 20).contains("at most 64"));
    let mut opts = options(&[]).unwrap();
    assert!(opts.set_uuid("0123").is_err());
    opts.sector_size = Some(1000);
    assert!(image(64 << 20, &opts).is_err());
    opts.sector_size = Some(4096);
    assert!(image(64 << 20, &opts).is_ok());
    let queue = Queue::new(Arc::new(MemDevice::new(64 << 20)), QueueOptions::default());
    let error = format(&queue, 65 << 20, &FormatOptions::default()).unwrap_err();
    assert!(error.to_string().contains("does not fit"), "{error}");
}

#[test]
fn old_content_is_gone() {
    // A device full of old bytes, without discard: no old content is taken for metadata.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ours");
    let noise: Vec<u8> = (0..64 * MIB).map(|i| (i * 7 / 5) as u8 | 1).collect();
    std::fs::write(&path, noise).unwrap();
    let args = ["-t", "0", "-O", "lost_found"];
    ours(&path, &args, 64 * MIB).unwrap();
    accept(&path, "lost_found");
}

#[test]
fn defaults_are_random() {
    let report = |_| {
        let queue = Queue::new(Arc::new(MemDevice::new(64 << 20)), QueueOptions::default());
        format(&queue, 64 << 20, &FormatOptions::default()).unwrap()
    };
    let [a, b] = [0, 1].map(report);
    assert_ne!(a.uuid, b.uuid);
    assert_eq!(a.uuid[6] >> 4, 4);
    assert_eq!((a.main_segments, a.sections), (24, 24));
    assert_eq!((a.user_blocks, a.reserved_segments), (8 * 512, 13));
}

/// Linux compares the sum of the devices' segments with the volume's.
#[test]
fn devices_have_the_segments_of_the_volume() {
    let device = |mib| DevicePart {
        path: format!("/dev/{mib}"),
        bytes: mib * MIB,
    };
    for (segments, zones) in [(1, 1), (4, 1), (2, 3)] {
        let options = FormatOptions {
            segments_per_section: segments,
            sections_per_zone: zones,
            devices: [202, 204, 407].map(device).into(),
            ..FormatOptions::default()
        };
        let made = image((202 + 204 + 406) * MIB, &options).unwrap();
        let mut bytes = vec![0; BLOCK_SIZE];
        made.read(0, &mut bytes);
        let superblock = crate::disk::Superblock::parse(&bytes[SUPERBLOCK_OFFSET..]).unwrap();
        let devices = superblock.devices();
        let all: u32 = devices.iter().map(|(_, segments)| segments).sum();
        assert_eq!(all, superblock.raw().segment_count.get(), "{devices:?}");
    }
}
