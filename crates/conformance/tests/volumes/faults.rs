//! Devices that fail: errors are reported once, files never grow over what was not written, and nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_block::{Bio, Fault, Op};
use steadfs_conformance::{Kind, Setup, World};
use steadfs_rt::sim;
use steadfs_vfs::FsError;

// Those whose content is defined after a power cut.
on!((
    ext3 ext4_1k ext4_4k ext4_indirect ext4_unindexed ext4_orphan_file ext4_small_inodes ext4_large_inodes
    f2fs f2fs_all f2fs_two_logs f2fs_four_logs f2fs_not_inline f2fs_xattr_nodes f2fs_small_xattrs f2fs_lfs
) a_failed_write_is_reported_once_and_repeated_by_the_next_fsync);

on!((ext3 ext4_4k f2fs_all f2fs_lfs) a_file_never_grows_over_a_write_that_failed);
on!((ext3 ext4_4k f2fs_all f2fs_lfs) a_file_never_grows_over_a_write_of_the_flusher_that_failed);

fn a_failed_write_is_reported_once_and_repeated_by_the_next_fsync(kind: &'static Kind) {
    for fault in [Fault::Fail, Fault::Misreport] {
        // In simulated time, so that no task writes in the background.
        sim::run(sim::Config::new(1), move || reported_once(kind, fault));
    }
}

fn reported_once(kind: &'static Kind, fault: Fault) {
    let world = World::make(kind);
    let file = world.written(b"file", &[1; 9000]).unwrap();
    let other = world.written(b"other", &[2; 9000]).unwrap();
    world.fsync(file).unwrap();
    world.sync();
    world.write(file, 5000, &[3; 20_000]).unwrap();
    let is_write = |bio: &Bio| bio.op == Op::Write;
    world.device.faults.next(u32::MAX, is_write, fault);
    let failed = world.fsync(file);
    assert!(matches!(failed, Err(FsError::Io(_))), "{failed:?}");
    assert_ne!(world.errors(), "none\n");
    world.device.faults.next(0, is_write, fault);
    // The data is still there, and other files are not affected.
    let whole = [&[1; 5000][..], &[3; 20_000]].concat();
    assert!(world.read(file, 0, 30_000) == whole);
    world.write(other, 0, &[4; 100]).unwrap();
    world.fsync(other).unwrap();
    world.fsync(file).unwrap();
    world.after_power_cut(false, |there| {
        assert!(there.content(b"file") == whole);
        assert_eq!(
            there.content(b"other")[..101],
            [&[4; 100][..], &[2]].concat()
        );
    });
    assert_eq!(world.errors(), "none\n");
    world.close();
}

fn a_file_never_grows_over_a_write_that_failed(kind: &'static Kind) {
    // Much less is written than starts the flusher: the fsync meets the error.
    each_large_write_fails(kind, 256 << 20);
}

fn a_file_never_grows_over_a_write_of_the_flusher_that_failed(kind: &'static Kind) {
    each_large_write_fails(kind, 64 << 20);
}

fn each_large_write_fails(kind: &'static Kind, cache: u64) {
    let mut failures = 0;
    for before in 0.. {
        // The seed decides which task runs first.
        let config = sim::Config::new(u64::from(before) + 1);
        let grew = sim::run(config, move || grows_around(kind, before, cache));
        if grew.value {
            break;
        }
        failures += 1;
    }
    assert!(failures > 4, "{failures} large writes");
}

/// A file is written whose large write number `before` fails. Returns whether there is no such write.
fn grows_around(kind: &'static Kind, before: u32, cache: u64) -> bool {
    const SIZE: usize = (14 << 20) + 5000;
    let setup = Setup {
        mib: 128,
        cache,
        ..Setup::default()
    };
    let flusher_writes = SIZE as u64 > cache / 8;
    let world = World::with(kind, &setup);
    let content: Vec<u8> = (0..SIZE).map(|i| (i / 1000) as u8 | 1).collect();
    let file = world.written(b"file", b"").unwrap();
    let other = world.written(b"other", b"x").unwrap();
    world.sync();
    let failed = Arc::new(AtomicBool::new(false));
    let mut count = 0;
    let fails = Arc::clone(&failed);
    world.device.faults.fail(move |bio| {
        let large = bio.op == Op::Write && bio.len >= 256 << 10;
        count += u32::from(large);
        let is_it = large && count == before + 1;
        fails.fetch_or(is_it, Ordering::AcqRel);
        is_it
    });
    world.write(file, 0, &content).unwrap();
    let failed_earlier = failed.load(Ordering::Acquire);
    assert!(flusher_writes || !failed_earlier, "only fsync writes");
    let written = world.fsync(file);
    // Metadata becomes durable without the data that failed.
    world.checkpoint();
    world.write(other, 0, b"y").unwrap();
    world.fsync(other).unwrap();
    world.after_power_cut(false, |there| {
        let found = there.content(b"file");
        assert!(content.starts_with(&found), "{} bytes", found.len());
        let whole = found.len() == SIZE;
        match (failed_earlier, flusher_writes) {
            // fsync reports the flusher's error. It has written what failed; ext4 commits nothing then.
            (true, _) => assert!(written.is_err() && (whole || kind.is_ext())),
            (false, false) => assert_eq!(whole, written.is_ok()),
            // The flusher or fsync failed while both wrote.
            (false, true) => assert!(whole || written.is_err()),
        }
    });
    if let Err(error) = &written {
        assert!(matches!(error, FsError::Io(_)), "{error}");
        world.fsync(file).unwrap();
        world.after_power_cut(false, |there| {
            assert!(there.content(b"file") == content);
        });
    }
    world.close();
    written.is_ok()
}
