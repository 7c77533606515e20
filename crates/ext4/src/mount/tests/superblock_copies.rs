//! Volumes whose first superblock, journal, descriptors or end is corrupt or missing.

use std::sync::Arc;

use steadfs_block::{MemDevice, Queue, QueueOptions};
use steadfs_cache::CacheSizes;
use steadfs_vfs::{Cx, FileSystem, FsError, Result};

use crate::disk::test_images::{Image, judge};
use crate::fs::Ext4;
use crate::options::MountOptions;
use crate::replay::replayed_view;
use crate::report::MountReport;
use crate::test_world::ROOT;
use crate::{check, inspect};

fn queue(image: &Image) -> Queue {
    Queue::new(image.device(), QueueOptions::default())
}

/// A volume with a file in its root, and a file that is in another group.
fn volume(options: &[&str], size: &str) -> Image {
    let image = Image::make(options, size);
    let content = image.beside("content");
    std::fs::write(&content, [7; 3000]).unwrap();
    image.debugfs(&format!("write {} file", content.display()));
    image
}

fn without_first(image: &Image) {
    let mut bytes = image.bytes();
    bytes[1024..2048].fill(0);
    image.fill(&bytes);
}

fn options(list: &str, salvage: bool) -> MountOptions {
    let mut options = MountOptions::parse(list).unwrap();
    options.common.salvage = salvage;
    options
}

fn open(device: &Arc<MemDevice>, options: MountOptions) -> Result<(Arc<Ext4>, MountReport)> {
    Ext4::open(Arc::clone(device) as _, options, CacheSizes::of(8 << 20))
}

fn content(fs: &Ext4) -> Result<Vec<u8>> {
    let cx = Cx::default();
    let ino = fs.lookup(&cx, ROOT, b"file")?.ino;
    Ok(fs.read(&cx, ino, 0, 9999)?.to_vec())
}

fn e2fsck(image: &Image) -> (i32, String) {
    let done = judge("e2fsck")
        .arg("-fn")
        .arg(image.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    (done.status.code().unwrap_or(-1), said)
}

#[test]
fn a_mount_uses_the_copy_that_sb_names() {
    let image = volume(&["-t", "ext4", "-b", "1024"], "16M");
    without_first(&image);
    let device = image.device();
    let said = open(&device, options("ro", false))
        .err()
        .unwrap()
        .to_string();
    assert!(
        said.contains("sb=8193") && said.contains("e2fsck -b 8193 -B 1024"),
        "{said}"
    );
    let before = device.to_bytes();
    let (fs, report) = open(&device, options("ro,sb=8193", false)).unwrap();
    assert_eq!(content(&fs).unwrap(), [7; 3000]);
    assert!(report.warnings[0].contains("block 8193"), "{report:?}");
    fs.close().unwrap();
    assert!(
        device.to_bytes() == before,
        "a mount for reading writes nothing"
    );
    for wrong in ["sb=8194", "sb=0", "sb=99999999"] {
        let said = open(&device, options(&format!("ro,{wrong}"), false))
            .err()
            .unwrap();
        assert!(matches!(said, FsError::BadOption(_)), "{wrong}: {said}");
        assert!(
            said.to_string().contains("copies that verify: sb=8193"),
            "{wrong}: {said}"
        );
    }
}

#[test]
fn a_volume_written_by_a_copy_has_its_first_superblock_again() {
    for kind in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext2", "-b", "1024"],
    ] {
        let image = volume(kind, "16M");
        without_first(&image);
        let device = image.device();
        let (fs, _) = open(&device, options("sb=8193", false)).unwrap();
        let cx = Cx::default();
        let made = fs.mknod(&cx, ROOT, b"new", 0o100_644, 0).unwrap();
        fs.by_number(made.ino, cx.tag).unwrap().drop_lookups(1);
        fs.close().unwrap();
        drop(fs);
        device.save(&image.path()).unwrap();
        let (code, said) = e2fsck(&image);
        assert_eq!(code, 0, "{kind:?}: {said}");
        assert_eq!(
            image.superblock().state() & 1,
            0,
            "nobody has looked at it yet"
        );
        let (fs, _) = open(&device, options("ro", false)).unwrap();
        assert_eq!(content(&fs).unwrap(), [7; 3000]);
    }
}

#[test]
fn a_remount_writes_by_the_copy_as_a_mount_does() {
    let image = volume(&["-t", "ext4", "-b", "1024"], "16M");
    without_first(&image);
    let device = image.device();
    let (fs, _) = open(&device, options("ro,sb=8193", false)).unwrap();
    for list in ["rw", "ro", "rw"] {
        fs.change_options(&Cx::default(), list).unwrap();
    }
    fs.close().unwrap();
    device.save(&image.path()).unwrap();
    let (code, said) = e2fsck(&image);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn programs_that_read_find_a_copy_themselves() {
    let image = volume(&["-t", "ext4", "-b", "1024"], "16M");
    without_first(&image);
    let device = image.device();
    let (fs, report) = open(&device, options("ro", true)).unwrap();
    assert_eq!(content(&fs).unwrap(), [7; 3000]);
    assert!(report.warnings[0].contains("sb=8193"), "{report:?}");
    let seen = inspect::inspect(&queue(&image), &options("ro", true).superblock_choice()).unwrap();
    assert_eq!(seen.copy_at, Some(8193 << 10));
    let view = replayed_view(image.device(), &options("ro", true)).unwrap();
    let how = check::Options {
        super_at: view.super_at,
        after_crash: true,
        ..check::Options::default()
    };
    let report = check::check(&image.bytes(), &how);
    let only_the_first = matches!(report.issues[..], [check::Issue::Superblock(_)]);
    assert!(only_the_first, "{:?}", report.issues);
    assert!(report.stats.files > 0);
}

/// The log is replayed although the copy does not have `needs_recovery`.
#[test]
fn the_log_is_replayed_if_a_copy_is_used() {
    let image = volume(&["-t", "ext4", "-b", "1024"], "16M");
    let commands = image.beside("commands");
    let block = image.beside("block");
    std::fs::write(&block, [9; 1024]).unwrap();
    let at = image.debugfs("blocks file");
    let at = at.split_whitespace().next().unwrap().to_owned();
    let text = format!("jo\njw -b {at} {}\njc\n", block.display());
    std::fs::write(&commands, text).unwrap();
    let script = commands.to_str().unwrap();
    crate::disk::test_images::run(
        "debugfs",
        &["-w", "-f", script, image.path().to_str().unwrap()],
    );
    without_first(&image);
    let device = image.device();
    let (fs, report) = open(&device, options("ro,sb=8193", false)).unwrap();
    assert_eq!(report.replayed_blocks, 1);
    assert_eq!(content(&fs).unwrap()[..1024], [9; 1024]);
}

#[test]
fn a_journal_that_cannot_be_replayed_is_left_out_by_programs_that_read() {
    let image = volume(&["-t", "ext4", "-b", "1024"], "16M");
    image.debugfs("feature needs_recovery");
    let journal = image.debugfs("blocks <8>");
    let journal: usize = journal.split_whitespace().next().unwrap().parse().unwrap();
    let mut bytes = image.bytes();
    bytes[journal << 10..(journal + 1) << 10].fill(0x5a);
    image.fill(&bytes);
    let device = Arc::new(MemDevice::from_bytes(&bytes));
    let said = open(&device, options("ro", false))
        .err()
        .unwrap()
        .to_string();
    assert!(said.contains("noload"), "{said}");
    let (fs, report) = open(&device, options("ro", true)).unwrap();
    assert_eq!(content(&fs).unwrap(), [7; 3000]);
    assert!(report.warnings[0].contains("journal"), "{report:?}");
    let view = replayed_view(image.device(), &options("ro", true)).unwrap();
    assert!(view.unreplayed.is_some());
}

#[test]
fn descriptors_come_from_copies_and_other_groups_stay_readable() {
    let image = volume(
        &["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "1024"],
        "16M",
    );
    let geo = image.superblock().geometry().clone();
    let table = geo.block_size.offset_of(geo.desc_block_at(0)) as usize;
    let mut bytes = image.bytes();
    bytes[table..table + 1024].fill(0);
    image.fill(&bytes);
    let device = image.device();
    assert!(open(&device, options("ro", false)).is_err());
    let (fs, report) = open(&device, options("ro", true)).unwrap();
    assert_eq!(content(&fs).unwrap(), [7; 3000]);
    assert!(report.warnings[0].contains("group 0"), "{report:?}");
    let said = fs.change_options(&Cx::default(), "rw").unwrap_err();
    assert!(said.to_string().contains("e2fsck"), "{said}");
    let issues = check::check(&image.bytes(), &check::Options::default()).issues;
    let of_groups = |issue: &check::Issue| matches!(issue, check::Issue::GroupDesc(_));
    let unreachable = |issue: &check::Issue| matches!(issue, check::Issue::NoRoot);
    assert!(
        issues.iter().any(of_groups) && !issues.iter().any(unreachable),
        "{issues:?}"
    );
    // Without copies either, but for the first group's descriptor.
    let mut bytes = image.bytes();
    let copies: Vec<_> = geo.desc_copies(0).collect();
    for copy in copies {
        let at = geo.block_size.offset_of(copy) as usize;
        let end = at + usize::from(geo.desc_size);
        bytes[end..at + 1024].fill(0);
    }
    let device = Arc::new(MemDevice::from_bytes(&bytes));
    let (fs, _) = open(&device, options("ro", true)).unwrap();
    assert_eq!(content(&fs).unwrap(), [7; 3000]);
}

#[test]
fn a_dump_without_its_end_is_read_by_programs_and_not_mounted() {
    let image = volume(&["-t", "ext4", "-b", "1024"], "16M");
    let mut bytes = image.bytes();
    bytes.truncate(9 << 20);
    let device = Arc::new(MemDevice::from_bytes(&bytes));
    for list in ["ro", "rw"] {
        assert!(open(&device, options(list, false)).is_err(), "{list}");
    }
    let (fs, report) = open(&device, options("ro", true)).unwrap();
    assert_eq!(content(&fs).unwrap(), [7; 3000]);
    assert!(report.warnings[0].contains("the device only"), "{report:?}");
}
