//! The state of the superblock after mounts.

use steadfs_block::MemDevice;

use super::*;
use crate::disk::test_images::{Image, judge};
use crate::test_world::{ROOT, World};

mod hostile;
mod superblock_copies;

/// Mounts for writing, creates a file of this name and unmounts; why the mount advises a check.
fn used(image: &Image, name: &[u8]) -> Option<&'static str> {
    let device = image.device();
    let sizes = CacheSizes::of(8 << 20);
    let (fs, report) =
        Ext4::open(Arc::clone(&device) as _, MountOptions::default(), sizes).unwrap();
    let cx = Cx::default();
    let attr = fs.mknod(&cx, ROOT, name, 0o100_644, 0).unwrap();
    fs.by_number(attr.ino, cx.tag).unwrap().drop_lookups(1);
    fs.close().unwrap();
    device.save(&image.path()).unwrap();
    report.check_because
}

/// Runs e2fsck as at boot; returns whether it repaired something.
fn preened(image: &Image) -> bool {
    let mut e2fsck = judge("e2fsck");
    let done = e2fsck.arg("-p").arg(image.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(matches!(done.status.code(), Some(0 | 1)), "{said}");
    done.status.code() == Some(1)
}

#[test]
fn a_volume_that_was_not_clean_stays_so_until_it_is_checked() {
    for kind in [&["-t", "ext2"][..], &["-t", "ext4"]] {
        let image = Image::make(kind, "16M");
        let content = image.beside("content");
        std::fs::write(&content, [7; 3000]).unwrap();
        image.debugfs(&format!("write {} file", content.display()));
        // A block of the file is free, and only this flag requires a check.
        let block = image.debugfs("blocks file");
        let block = block.split_whitespace().next().unwrap().to_owned();
        image.debugfs(&format!("freeb {block}"));
        image.debugfs("set_super_value state 0");
        assert_eq!(
            used(&image, b"a"),
            Some("was not cleanly unmounted"),
            "{kind:?}"
        );
        assert!(
            preened(&image),
            "{kind:?}: e2fsck was told that all is well"
        );
        assert_eq!(used(&image, b"b"), None);
    }
}

#[test]
fn a_volume_marked_with_errors_is_reported() {
    let image = Image::make(&["-t", "ext4"], "16M");
    image.debugfs("set_super_value state 3");
    assert_eq!(used(&image, b"c"), Some("is marked as having errors"));
    assert_eq!(used(&image, b"d"), Some("is marked as having errors"));
}

/// A volume whose first block bitmap (or inode bitmap) is corrupt.
fn with_bad_bitmap(size: &str, of: &str) -> Arc<MemDevice> {
    let image = Image::make(&["-t", "ext4", "-b", "1024", "-e", "continue"], size);
    let blocks = image.debugfs("stats");
    let of = &format!("{of} bitmap at ");
    let at = &blocks[blocks.find(of.as_str()).unwrap() + of.len()..];
    let at: usize = at[..at.find(',').unwrap()].parse().unwrap();
    let mut bytes = image.bytes();
    bytes[at << 10..(at + 1) << 10].fill(0x5a);
    image.fill(&bytes);
    image.device()
}

/// Mounts a volume whose only block bitmap is corrupt, and writes a file for which no block can be allocated.
fn dirtied(options: &str) -> (Arc<MemDevice>, Arc<Ext4>) {
    written(with_bad_bitmap("8M", "block"), options)
}

/// Mounts a volume and writes a file.
fn written(device: Arc<MemDevice>, options: &str) -> (Arc<MemDevice>, Arc<Ext4>) {
    let options = MountOptions::parse(options).unwrap();
    let sizes = CacheSizes::of(8 << 20);
    let (fs, _) = Ext4::open(Arc::clone(&device) as _, options, sizes).unwrap();
    let cx = Cx::default();
    let attr = fs.mknod(&cx, ROOT, b"file", 0o100_644, 0).unwrap();
    let inode = fs.by_number(attr.ino, cx.tag).unwrap();
    fs.write_file(&cx, &inode, 0, &[1; 3000], false).unwrap();
    (device, fs)
}

/// Whether the superblock on the device has the error flag.
fn has_error_flag(device: &MemDevice) -> bool {
    let device = Arc::new(device.copy());
    let options = MountOptions::parse("ro").unwrap();
    let (fs, _) = Ext4::open(device, options, CacheSizes::of(8 << 20)).unwrap();
    let state = fs.sb.lock().state();
    state & STATE_ERROR != 0
}

#[test]
fn corruption_found_by_a_sync_is_recorded() {
    let (device, fs) = dirtied("");
    let synced = steadfs_vfs::FileSystem::sync_all(&*fs, &Cx::default());
    assert!(matches!(synced, Err(FsError::Corrupt(_))), "{synced:?}");
    assert!(fs.check_writable().is_ok());
    assert!(fs.close().is_err());
    assert!(has_error_flag(&device));
}

#[test]
fn corruption_found_by_an_unmount_is_recorded() {
    let (device, fs) = dirtied("");
    assert!(fs.close().is_err());
    assert!(has_error_flag(&device));
}

#[test]
fn corruption_found_by_a_sync_makes_the_volume_read_only_by_option() {
    let (device, fs) = dirtied("errors=remount-ro");
    let synced = steadfs_vfs::FileSystem::sync_all(&*fs, &Cx::default());
    assert!(matches!(synced, Err(FsError::Corrupt(_))), "{synced:?}");
    assert!(fs.check_writable().is_err());
    let _ = fs.close();
    assert!(has_error_flag(&device));
}

#[test]
fn a_clean_volume_is_clean_again() {
    let image = World::make(&["-t", "ext2"], "8M").close();
    assert_eq!(used(&image, b"e"), None);
    assert_eq!(used(&image, b"f"), None);
}

#[test]
fn a_corrupt_group_is_skipped_and_reported() {
    for of in ["block", "inode"] {
        let (device, fs) = written(with_bad_bitmap("32M", of), "");
        assert!(!has_error_flag(&device), "{of}: nothing was stored yet");
        steadfs_vfs::FileSystem::sync_all(&*fs, &Cx::default()).unwrap();
        let noted = fs.sb.lock().error_count();
        assert_eq!(noted, 1, "{of}: once for each group");
        fs.close().unwrap();
        assert!(has_error_flag(&device), "{of}");
    }
}

#[test]
fn a_mount_applies_the_superblocks_default_options() {
    let image = Image::make(&["-t", "ext4"], "16M");
    image.debugfs("set_super_value default_mount_opts 0x40c");
    image.debugfs("set_super_value mount_opts commit=33,bogus");
    let opened = |list: &str| {
        let options = MountOptions::parse(list).unwrap();
        let (fs, report) = Ext4::open(image.device(), options, CacheSizes::of(8 << 20)).unwrap();
        let shown = steadfs_vfs::FileSystem::options(&*fs);
        fs.close().unwrap();
        (shown, report.defaults_passed_over)
    };
    let (shown, passed) = opened("");
    assert!(
        shown.contains(",discard,") && shown.contains(",commit=33"),
        "{shown}"
    );
    assert_eq!(passed, ["option bogus: unknown"]);
    let (shown, _) = opened("nodiscard,commit=9");
    assert!(
        !shown.contains("discard") && shown.contains(",commit=9"),
        "{shown}"
    );
}
