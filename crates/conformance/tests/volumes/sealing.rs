//! Making verity files: the digest is that of `fsverity`, what fails changes nothing, and a power cut leaves the plain file
//! or the verity file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use steadfs_base::InodeNo;
use steadfs_block::{Bio, Op};
use steadfs_conformance::{Kind, Setup, World, fsverity, verity_world};
use steadfs_rt::{sim, spawn};
use steadfs_vfs::verity::VerityOptions;
use steadfs_vfs::{Cx, FallocMode, FsError, InodeFlags};

on!((ext4_1k ext4_4k ext4_no_journal ext4_large_inodes ext4_64k f2fs_all f2fs_small_xattrs f2fs_lfs)
    a_file_that_becomes_a_verity_file_has_the_digest_of_fsverity);

on!((ext4_1k ext4_4k ext4_large_inodes f2fs_all f2fs_lfs)
    content_keeps_its_times_and_is_hashed_with_zeros_behind_its_end,
    other_objects_and_other_parameters_are_refused,
    a_full_volume_leaves_the_plain_file,
    a_device_error_leaves_the_plain_file,
    a_killed_caller_leaves_the_plain_file,
    nothing_changes_the_content_meanwhile,
    an_unlinked_file_becomes_a_verity_file_and_is_freed,
);

on!((ext4_1k ext4_4k ext4_orphan_file ext4_large_inodes f2fs_all f2fs_four_logs f2fs_not_inline f2fs_lfs)
    a_power_cut_leaves_the_plain_file_or_the_verity_file);

on!((ext4_4k f2fs_all) a_freeze_meanwhile_leaves_the_plain_file);

on!((f2fs_all f2fs_four_logs)
    compressed_files_become_verity_files,
    no_file_is_compressed_meanwhile,
);

on!((ext2 ext4_indirect f2fs) a_volume_or_file_without_the_means_is_refused);

fn content(size: usize) -> Vec<u8> {
    let byte = |i| (i * 13 + i / 509 + i / 65_521 * 7) as u8;
    (0..size).map(byte).collect()
}

fn enable(world: &World, file: InodeNo, options: &VerityOptions) -> Result<(), FsError> {
    world.fs.enable_verity(&world.cx, file, options)
}

/// Options with blocks that the volume allows.
fn usual(kind: &Kind) -> VerityOptions {
    let all = VerityOptions::default();
    VerityOptions {
        block_size: all.block_size.min(kind.block as u32),
        ..all
    }
}

/// The digest of `fsverity digest` with these options.
fn digest_of(content: &[u8], options: &VerityOptions) -> Vec<u8> {
    let salt: String = options.salt.iter().map(|b| format!("{b:02x}")).collect();
    let args = [
        format!("--hash-alg=sha{}", options.algorithm * 256),
        format!("--block-size={}", options.block_size),
        format!("--salt={salt}"),
    ];
    let used = if salt.is_empty() { 2 } else { 3 };
    let args: Vec<&str> = args[..used].iter().map(String::as_str).collect();
    fsverity(&args, content).0
}

#[track_caller]
fn check_sealed(world: &World, name: &[u8], content: &[u8], options: &VerityOptions) {
    let file = world.lookup(world.root, name).unwrap();
    assert_eq!(file.size, content.len() as u64);
    world.fs.open(&world.cx, file.ino, false).unwrap();
    assert!(world.read(file.ino, 0, content.len() + 1) == content);
    let digest = world.fs.verity_digest(&world.cx, file.ino).unwrap();
    assert_eq!(digest.bytes, digest_of(content, options));
    let flags = world.fs.flags(&world.cx, file.ino).unwrap().flags;
    assert!(flags.contains(InodeFlags::VERITY));
    let write = world.write(file.ino, 0, b"x");
    assert_eq!(write, Err(FsError::NotPermitted));
}

/// The file is plain: what it was, and what can be written.
#[track_caller]
fn check_plain(world: &World, name: &[u8], content: &[u8]) {
    let file = world.lookup(world.root, name).unwrap();
    assert_eq!(file.size, content.len() as u64);
    assert!(world.read(file.ino, 0, content.len() + 1) == content);
    let digest = world.fs.verity_digest(&world.cx, file.ino);
    assert_eq!(digest.err(), Some(FsError::NoData));
    world.write(file.ino, 0, &content[..1]).unwrap();
    let size = content.len() as u64;
    world.resize(file.ino, size + 100_000).unwrap();
    let zeros = world.read(file.ino, size, 100_000);
    assert!(
        zeros.iter().all(|&byte| byte == 0),
        "no tree is in the file"
    );
    world.resize(file.ino, size).unwrap();
}

fn a_file_that_becomes_a_verity_file_has_the_digest_of_fsverity(kind: &'static Kind) {
    let world = verity_world(
        kind,
        &Setup {
            mib: 64,
            ..Setup::default()
        },
    );
    let with = |algorithm, block_size, salt: &[u8]| VerityOptions {
        algorithm,
        block_size,
        salt: salt.to_vec(),
    };
    let usual = usual(kind);
    let block = usual.block_size;
    let mut cases = vec![
        // Three levels with blocks of 1 KiB, and tree blocks that share blocks of the volume.
        (with(1, 1024, &[]), 1_100_000),
        (with(2, 1024, &[9; 32]), 300_000),
        (with(2, block, &[1, 2, 3]), 70_000),
        (with(1, block, &[7; 31]), 600_001),
    ];
    let sizes = [
        0,
        1,
        4095,
        4096,
        4097,
        65_536,
        128 * 4096,
        128 * 4096 + 1,
        900_000,
    ];
    cases.extend(sizes.map(|size| (usual.clone(), size)));
    let mut made = Vec::new();
    for (n, (options, size)) in cases.into_iter().enumerate() {
        let name = format!("file{n}").into_bytes();
        let content = content(size);
        let file = world.written(&name, b"").unwrap();
        if size > 0 {
            world.write(file, 0, &content).unwrap();
        }
        enable(&world, file, &options).unwrap();
        check_sealed(&world, &name, &content, &options);
        assert_eq!(enable(&world, file, &options), Err(FsError::Exists));
        made.push((name, content, options));
    }
    let world = world.reopen();
    for (name, content, options) in &made {
        check_sealed(&world, name, content, options);
    }
    let free = world.free();
    for (name, ..) in &made {
        world.fs.unlink(&world.cx, world.root, name).unwrap();
    }
    world.sync();
    assert!(world.free().0 > free.0 + 900_000 / kind.block);
    world.close();
}

fn content_keeps_its_times_and_is_hashed_with_zeros_behind_its_end(kind: &'static Kind) {
    let world = verity_world(kind, &Setup::default());
    let options = usual(kind);
    // Cut in a block, with blocks reserved beyond the end, and with holes.
    let mut wanted = content(300_000);
    let file = world.written(b"file", &wanted).unwrap();
    world.fsync(file).unwrap();
    world.resize(file, 123_457).unwrap();
    wanted.truncate(123_457);
    let beyond = FallocMode::Allocate { keep_size: true };
    let fs = &world.fs;
    fs.fallocate(&world.cx, file, beyond, 0, 500_000).unwrap();
    let sparse = world.written(b"sparse", b"begin").unwrap();
    world.write(sparse, 200_000, b"end").unwrap();
    let mut holes = b"begin".to_vec();
    holes.resize(200_000, 0);
    holes.extend(b"end");
    let before = [file, sparse].map(|ino| world.attr(ino));
    for ino in [file, sparse] {
        enable(&world, ino, &options).unwrap();
    }
    for (ino, before) in [file, sparse].into_iter().zip(before) {
        let after = world.attr(ino);
        assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
    }
    check_sealed(&world, b"file", &wanted, &options);
    check_sealed(&world, b"sparse", &holes, &options);
    // The kernel hashes whole blocks of the device.
    let block = kind.block as usize;
    let last = wanted.len() / block * block;
    let mut stored = wanted[last..].to_vec();
    stored.resize(block, 0);
    let bytes = world.device.bytes();
    assert!(bytes.chunks(block).any(|there| there == stored));
    let world = world.reopen();
    check_sealed(&world, b"file", &wanted, &options);
    check_sealed(&world, b"sparse", &holes, &options);
    world.close();
}

fn other_objects_and_other_parameters_are_refused(kind: &'static Kind) {
    let world = verity_world(kind, &Setup::default());
    let options = usual(kind);
    let errno =
        |file, options: &VerityOptions| enable(&world, file, options).map_err(|e| e.errno());
    let dir = world.mkdir(world.root, b"dir").unwrap().ino;
    assert_eq!(errno(dir, &options), Err(21));
    let fifo = world.fs.mknod(&world.cx, world.root, b"fifo", 0o010_600, 0);
    assert_eq!(errno(fifo.unwrap().ino, &options), Err(22));
    let file = world.written(b"file", &content(5000)).unwrap();
    for flag in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        let plain = world.fs.flags(&world.cx, file).unwrap().flags;
        let set = |flags| world.fs.set_flags(&world.cx, file, flags).unwrap();
        set(InodeFlags(plain.0 | flag.0));
        assert_eq!(errno(file, &options), Err(1));
        set(plain);
    }
    for (algorithm, block_size) in [(3, 1024), (1, 512), (1, 3000), (1, 2 * kind.block as u32)] {
        let options = VerityOptions {
            algorithm,
            block_size,
            ..options.clone()
        };
        assert_eq!(errno(file, &options), Err(22));
    }
    check_plain(&world, b"file", &content(5000));
    world.fs.remount(&world.cx, "ro").unwrap();
    assert_eq!(errno(file, &options), Err(30));
    world.close();
}

fn a_volume_or_file_without_the_means_is_refused(kind: &'static Kind) {
    let world = World::make(kind);
    let file = world.written(b"file", &content(5000)).unwrap();
    let refused = enable(&world, file, &usual(kind)).unwrap_err();
    assert_eq!(refused.errno(), 95);
    assert!(refused.to_string().contains("feature verity"), "{refused}");
    world.close();
    if kind.is_ext() {
        let world = verity_world(kind, &Setup::default());
        let file = world.written(b"file", &content(5000)).unwrap();
        let refused = enable(&world, file, &usual(kind)).unwrap_err();
        assert_eq!(refused.errno(), 95);
        assert!(refused.to_string().contains("extents"), "{refused}");
        check_plain(&world, b"file", &content(5000));
        world.close();
    }
}

fn a_full_volume_leaves_the_plain_file(kind: &'static Kind) {
    let setup = Setup {
        mib: 64,
        ..Setup::default()
    };
    let world = verity_world(kind, &setup);
    let wanted = content(8 << 20);
    let file = world.written(b"file", &wanted).unwrap();
    let filler = world.written(b"filler", b"").unwrap();
    let mut at = 0;
    while let Ok(written) = world.write(filler, at, &[7; 8192]) {
        at += written as u64;
    }
    world.sync();
    let free = world.free();
    // A tree of 256 KiB with a salt that no test has used.
    let options = VerityOptions {
        salt: vec![5; 8],
        block_size: 1024,
        ..usual(kind)
    };
    assert_eq!(enable(&world, file, &options), Err(FsError::NoSpace));
    world.sync();
    assert_eq!(world.free(), free);
    world.fs.unlink(&world.cx, world.root, b"filler").unwrap();
    world.sync();
    check_plain(&world, b"file", &wanted);
    enable(&world, file, &options).unwrap();
    check_sealed(&world, b"file", &wanted, &options);
    world.close();
}

fn a_device_error_leaves_the_plain_file(kind: &'static Kind) {
    let wanted = content(3 << 20);
    let options = usual(kind);
    let mut failures = 0;
    // Reads of content, then writes of the tree; metadata is written by the last step only.
    for nth in [1, 2, 4, 8, 16, 32] {
        let world = verity_world(kind, &Setup::default());
        let file = world.written(b"file", &wanted).unwrap();
        world.sync();
        let world = World::open(kind, world.close(), &Setup::default());
        let file_again = world.lookup(world.root, b"file").unwrap().ino;
        assert_eq!(file, file_again);
        // Metadata is in memory.
        world.read(file, 0, 4096);
        let free = world.free();
        let mut count = 0;
        let failed = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&failed);
        world.device.faults.fail(move |bio: &Bio| {
            let large = bio.op == Op::Read && bio.len >= 64 << 10;
            count += u32::from(large);
            let is_it = large && count == nth;
            fails.fetch_or(is_it, Ordering::AcqRel);
            is_it
        });
        let enabled = enable(&world, file, &options);
        world.device.faults.fail(|_| false);
        if !failed.load(Ordering::Acquire) {
            enabled.unwrap();
            break;
        }
        if enabled.is_err() {
            assert!(matches!(enabled, Err(FsError::Io(_))), "{enabled:?}");
            world.sync();
            assert_eq!(world.free(), free);
            check_plain(&world, b"file", &wanted);
            failures += 1;
        }
        enable(&world, file, &options).ok();
        check_sealed(&world, b"file", &wanted, &options);
        world.fs.unmount().unwrap();
    }
    assert!(failures > 0);
    failing_writes(kind, &wanted, &options);
}

/// No write succeeds until the call has failed.
fn failing_writes(kind: &'static Kind, wanted: &[u8], options: &VerityOptions) {
    let world = verity_world(kind, &Setup::default());
    let file = world.written(b"file", wanted).unwrap();
    world.sync();
    let free = world.free();
    // Blocks of the tree are written together, metadata in requests of a block.
    let salted = VerityOptions {
        block_size: 1024,
        ..options.clone()
    };
    world
        .device
        .faults
        .fail(|bio| bio.op == Op::Write && bio.len >= 64 << 10);
    let enabled = enable(&world, file, &salted);
    assert!(matches!(enabled, Err(FsError::Io(_))), "{enabled:?}");
    world.device.faults.fail(|_| false);
    // The error of write-back is reported once.
    let _: Result<(), FsError> = world.fsync(file);
    world.sync();
    assert_eq!(world.free(), free);
    check_plain(&world, b"file", wanted);
    enable(&world, file, options).unwrap();
    check_sealed(&world, b"file", wanted, options);
    world.fs.unmount().unwrap();
    steadfs_conformance::judge(kind, &world.device.faults.memory);
}

/// A caller that is killed when it is asked for the `n`th time.
#[derive(Debug)]
struct Dies(AtomicU64);

impl steadfs_vfs::CallerState for Dies {
    fn is_killed(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 0
    }

    fn is_in_group(&self, _: u32) -> bool {
        false
    }
}

fn a_killed_caller_leaves_the_plain_file(kind: &'static Kind) {
    let world = verity_world(kind, &Setup::default());
    let wanted = content(4 << 20);
    let file = world.written(b"file", &wanted).unwrap();
    world.sync();
    let free = world.free();
    for asked in 0..3 {
        let cx = Cx {
            caller_state: Some(Arc::new(Dies(AtomicU64::new(asked)))),
            ..world.cx.clone()
        };
        let ended = world.fs.enable_verity(&cx, file, &usual(kind));
        assert_eq!(ended, Err(FsError::Interrupted));
        world.sync();
        assert_eq!(world.free(), free);
        check_plain(&world, b"file", &wanted);
    }
    world.close();
}

fn nothing_changes_the_content_meanwhile(kind: &'static Kind) {
    // In simulated time: other tasks run whenever the device is waited for.
    let run = sim::run(sim::Config::new(3), move || {
        let world = Arc::new(verity_world(kind, &Setup::default()));
        let wanted = content(6 << 20);
        let file = world.written(b"file", &wanted).unwrap();
        world.sync();
        let done = Arc::new(AtomicBool::new(false));
        let other = {
            let (world, done) = (Arc::clone(&world), Arc::clone(&done));
            spawn("writer", move || {
                let (mut refused, mut tries) = (0, 0);
                while !done.load(Ordering::Acquire) {
                    let size = 6 << 20;
                    let results = [
                        world.write(file, 5, b"y").map(drop),
                        world.resize(file, size).map(drop),
                        world.fs.open(&world.cx, file, true),
                        enable(&world, file, &VerityOptions::default()),
                    ];
                    let busy = results
                        .iter()
                        .filter(|result| matches!(result, Err(FsError::TextBusy | FsError::Busy)));
                    refused += busy.count();
                    tries += 1;
                    world.fs.fsync(&world.cx, file, false).unwrap();
                    steadfs_rt::sleep(std::time::Duration::from_micros(50));
                    if refused > 0 {
                        break;
                    }
                }
                (refused, tries)
            })
        };
        let options = usual(kind);
        let enabled = enable(&world, file, &options);
        done.store(true, Ordering::Release);
        let (refused, tries) = other.join();
        // The other task may have been first.
        assert!(matches!(
            enabled,
            Ok(()) | Err(FsError::Busy | FsError::Exists)
        ));
        let now = world.content(b"file");
        let digest = world.fs.verity_digest(&world.cx, file).unwrap();
        assert_eq!(digest.bytes, digest_of(&now, &options));
        world.fs.unmount().unwrap();
        (refused, tries)
    });
    let (refused, tries) = run.value;
    assert!(tries > 0 && refused > 0, "{refused} of {tries}");
}

/// Tree blocks that cannot be freed while the volume is frozen are not content afterwards.
fn a_freeze_meanwhile_leaves_the_plain_file(kind: &'static Kind) {
    // The device takes no time: the schedule of the seed decides whether the freeze comes in between.
    let refused = (1..=60).any(|seed| {
        let run = sim::run(sim::Config::new(seed), move || {
            let world = Arc::new(verity_world(kind, &Setup::default()));
            let wanted = content(6 << 20);
            let file = world.written(b"file", &wanted).unwrap();
            world.sync();
            let other = Arc::clone(&world);
            let freezer = spawn("freezer", move || {
                steadfs_rt::sleep(std::time::Duration::from_micros(200));
                other.freeze("1").unwrap();
                steadfs_rt::sleep(std::time::Duration::from_millis(300));
                other.freeze("0").unwrap();
            });
            let options = usual(kind);
            let enabled = enable(&world, file, &options);
            freezer.join();
            match &enabled {
                Ok(()) => check_sealed(&world, b"file", &wanted, &options),
                Err(error) => {
                    assert_eq!(*error, FsError::Busy);
                    check_plain(&world, b"file", &wanted);
                }
            }
            world.fs.remount(&world.cx, "ro").unwrap();
            world.fs.unmount().unwrap();
            enabled.is_err()
        });
        run.value
    });
    assert!(refused, "no freeze came in between");
}

/// Its tree has nodes reserved, which a file that is converted gives back.
fn no_file_is_compressed_meanwhile(kind: &'static Kind) {
    let run = sim::run(sim::Config::new(5), move || {
        let world = Arc::new(verity_world(kind, &Setup::default()));
        let file = world.file(world.root, b"file").unwrap().ino;
        world.resize(file, 12 << 20).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let other = {
            let (world, done) = (Arc::clone(&world), Arc::clone(&done));
            spawn("chattr", move || {
                let mut refused = 0;
                while !done.load(Ordering::Acquire) && refused == 0 {
                    for flags in [InodeFlags::COMPRESSED, InodeFlags(0)] {
                        let set = world.fs.set_flags(&world.cx, file, flags);
                        refused += u32::from(set == Err(FsError::TextBusy));
                    }
                    steadfs_rt::sleep(std::time::Duration::from_micros(50));
                }
                refused
            })
        };
        let options = usual(kind);
        enable(&world, file, &options).unwrap();
        done.store(true, Ordering::Release);
        let refused = other.join();
        check_sealed(&world, b"file", &vec![0; 12 << 20], &options);
        world.fs.unmount().unwrap();
        refused
    });
    assert!(run.value > 0);
}

fn an_unlinked_file_becomes_a_verity_file_and_is_freed(kind: &'static Kind) {
    let world = verity_world(kind, &Setup::default());
    world.sync();
    let free = world.free();
    let attr = world.fs.tmpfile(&world.cx, world.root, 0o600).unwrap();
    let wanted = content(700_000);
    world.write(attr.ino, 0, &wanted).unwrap();
    let options = usual(kind);
    enable(&world, attr.ino, &options).unwrap();
    let digest = world.fs.verity_digest(&world.cx, attr.ino).unwrap();
    assert_eq!(digest.bytes, digest_of(&wanted, &options));
    world.judge_now();
    world
        .fs
        .link(&world.cx, attr.ino, world.root, b"file")
        .unwrap();
    world.forget(attr.ino);
    world.forget(attr.ino);
    check_sealed(&world, b"file", &wanted, &options);
    world.fs.unlink(&world.cx, world.root, b"file").unwrap();
    world.sync();
    assert_eq!(world.free(), free);
    world.close();
}

/// After each write of the call, the volume that a power cut would leave.
fn a_power_cut_leaves_the_plain_file_or_the_verity_file(kind: &'static Kind) {
    let setup = Setup {
        cache: 4 << 20,
        ..Setup::default()
    };
    let world = verity_world(kind, &setup);
    let wanted = content((4 << 20) + 77);
    let file = world.written(b"file", &wanted).unwrap();
    world.sync();
    let options = VerityOptions {
        block_size: 1024,
        ..usual(kind)
    };
    let before = world.device.copy();
    let writes = {
        let start = world.device.writes();
        enable(&world, file, &options).unwrap();
        world.device.writes() - start
    };
    world.close();
    assert!(writes > 2, "{writes}");
    let (mut plain, mut sealed) = (0, 0);
    let step = (writes / 6).max(1) as usize;
    for nth in (0..=writes).step_by(step) {
        let world = World::open(kind, Arc::new(before.copy()), &setup);
        let file = world.lookup(world.root, b"file").unwrap().ino;
        let start = world.device.writes();
        let cut = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&cut);
        // Writes after the cut are lost, and their callers meet an error.
        world
            .device
            .faults
            .fail(move |bio| bio.op == Op::Write && count.fetch_add(1, Ordering::AcqRel) >= nth);
        let enabled = enable(&world, file, &options);
        assert!(world.device.writes() > start || nth == 0);
        let there = world.cut_power();
        let found = there.lookup(there.root, b"file").unwrap().ino;
        match there.fs.verity_digest(&there.cx, found) {
            Ok(_) => {
                check_sealed(&there, b"file", &wanted, &options);
                sealed += 1;
            }
            Err(error) => {
                assert_eq!((error, enabled.is_ok()), (FsError::NoData, false));
                check_plain(&there, b"file", &wanted);
                plain += 1;
            }
        }
        there.close();
        // The volume whose writes failed: whatever it says.
        let _: Result<(), FsError> = world.fs.unmount();
    }
    assert!(
        plain > 0,
        "{plain} plain, {sealed} sealed of {writes} writes"
    );
}

fn compressed_files_become_verity_files(kind: &'static Kind) {
    let world = verity_world(kind, &Setup::default());
    let options = usual(kind);
    let sizes = [5000, 70_000, 1_000_003];
    let names = sizes.map(|size| format!("file{size}").into_bytes());
    let text = |size: usize| (0..size).map(|i| (i / 3000) as u8).collect::<Vec<_>>();
    for (name, size) in names.iter().zip(sizes) {
        let file = world.file(world.root, name).unwrap().ino;
        let compressed = InodeFlags::COMPRESSED;
        world.fs.set_flags(&world.cx, file, compressed).unwrap();
        world.write(file, 0, &text(size + 9000)).unwrap();
        world.fsync(file).unwrap();
        world.resize(file, size as u64).unwrap();
        enable(&world, file, &options).unwrap();
        check_sealed(&world, name, &text(size), &options);
    }
    let world = world.reopen();
    for (name, size) in names.iter().zip(sizes) {
        check_sealed(&world, name, &text(size), &options);
    }
    world.close();
}
