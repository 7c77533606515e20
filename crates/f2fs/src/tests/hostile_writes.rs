//! Corrupt volumes that are written: an error, never a panic or a hang, and never more damage to intact files than the
//! corruption itself allows. Each call has a limit of device requests, so an endless loop is found.

use std::sync::Arc;

use steadfs_block::{FaultDevice, MemDevice};
use steadfs_rt::Random;
use steadfs_vfs::{Cx, FallocMode, FileKind, FileSystem, RenameFlags, SetAttr, SetXattr};

use crate::disk::{BLOCK_SIZE, Inode, inode, node};
use crate::test_world::{ROOT, World};
use crate::{CacheSizes, F2fs, MountOptions};
use steadfs_f2fs_format::test_support::Opened;

/// Corrupt volumes in one test; `STEADFS_HOSTILE_WRITES` sets another number.
fn cases() -> u64 {
    let cases = std::env::var("STEADFS_HOSTILE_WRITES").ok();
    cases.and_then(|n| n.parse().ok()).unwrap_or(20)
}

/// More requests than any call needs on a volume of 64 MiB, with all GC and write-back before it.
const MOST: u64 = 1 << 17;

/// Resets the limit for the next call; asserts that the last one stayed below it.
fn next_call(device: &FaultDevice) {
    assert_eq!(device.failures(), 0, "a call exceeds its request limit");
    device.fail_after(MOST);
}

/// A small volume with directories, deep files, links, attributes and orphans, as after a crash.
fn base(features: &str, options: &str) -> Vec<u8> {
    let world = World::make_with(features, 64, options);
    let (fs, cx) = (&world.fs, &world.cx);
    for d in 0..3 {
        let dir = world
            .mkdir(ROOT, format!("dir {d}").as_bytes())
            .unwrap()
            .ino;
        for n in 0..120 {
            let file = world
                .file(dir, format!("file {n:04} {d}").as_bytes())
                .unwrap()
                .ino;
            let len = [10, 5000, 60_000][n % 3];
            fs.write(cx, file, 0, &vec![n as u8; len], false).unwrap();
            if n % 10 == 0 {
                let how = SetXattr::Any;
                fs.setxattr(cx, file, b"user.x", &[1; 900], how).unwrap();
            }
        }
    }
    let deep = world.file(ROOT, b"deep").unwrap().ino;
    for block in [0u64, 900, 2000, 4000, 1 << 20] {
        fs.write(cx, deep, block * 4096, &[9; 4096], false).unwrap();
    }
    for n in 0..20 {
        let give = SetAttr {
            uid: Some(n * n),
            gid: Some(1 << n),
            ..SetAttr::default()
        };
        let name = format!("dir {}", n % 3);
        let dir = world.lookup(ROOT, name.as_bytes()).unwrap().ino;
        let name = format!("file {n:04} {}", n % 3);
        let file = world.lookup(dir, name.as_bytes()).unwrap().ino;
        fs.setattr(cx, file, &give).unwrap();
    }
    fs.sync_all(cx).unwrap();
    let open = fs.mknod(cx, ROOT, b"open", 0o100_644, 0).unwrap();
    fs.write(cx, open.ino, 0, &[3; 9000], false).unwrap();
    fs.unlink(cx, ROOT, b"open").unwrap();
    fs.sync_all(cx).unwrap();
    // What fsync wrote after the checkpoint.
    fs.write(cx, deep, 4096, &[7; 70_000], false).unwrap();
    fs.fsync(cx, deep, false).unwrap();
    world.bytes()
}

/// Another size, and other owners.
fn resized_and_given(size: u64, n: u32) -> SetAttr {
    SetAttr {
        size: Some(size),
        uid: Some(n),
        gid: Some(1 << (n % 20)),
        ..SetAttr::default()
    }
}

/// Random calls of users, ignoring errors.
fn use_it(fs: &F2fs, device: &FaultDevice, random: &mut Random) {
    let cx = Cx::default();
    let mut found = vec![(fs.root(), FileKind::Directory, Vec::new(), fs.root())];
    let mut at = 0;
    while at < found.len() && found.len() < 200 {
        let (dir, kind, ..) = found[at];
        at += 1;
        if kind != FileKind::Directory {
            continue;
        }
        let mut names = Vec::new();
        let _ = fs.readdir(&cx, dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < 60
        });
        for name in names.into_iter().skip(2) {
            if let Ok(attr) = fs.lookup(&cx, dir, &name) {
                found.push((attr.ino, attr.kind, name, dir));
            }
        }
    }
    for n in 0..40 {
        let (ino, kind, name, dir) = &found[random.below(found.len())];
        let other = &found[random.below(found.len())];
        let data = vec![n as u8; 1 + random.below(30_000)];
        let offset = [0, 4090, 3_700_000, 1 << 32][random.below(4)];
        let fresh = format!("new {n}");
        next_call(device);
        let _ = match n % 12 {
            0 => fs.write(&cx, *ino, offset, &data, false).map(drop),
            1 => fs.fsync(&cx, *ino, false),
            2 if *kind == FileKind::Directory => fs.rmdir(&cx, *dir, name),
            2 => fs.unlink(&cx, *dir, name),
            3 => {
                let to = (other.3, fresh.as_bytes());
                fs.rename(&cx, (*dir, name), to, RenameFlags::default())
            }
            4 => fs.mkdir(&cx, *dir, fresh.as_bytes(), 0o755).map(drop),
            5 => fs
                .mknod(&cx, *ino, fresh.as_bytes(), 0o100_644, 0)
                .map(drop),
            6 => {
                let set = resized_and_given(offset / 2, n);
                fs.setattr(&cx, *ino, &set).map(drop)
            }
            7 => fs.setxattr(
                &cx,
                *ino,
                b"user.y",
                &data[..data.len().min(2000)],
                SetXattr::Any,
            ),
            8 => fs.fallocate(&cx, *ino, FallocMode::PunchHole, offset, 100_000),
            9 => fs.link(&cx, *ino, other.3, fresh.as_bytes()).map(drop),
            10 => fs
                .symlink(&cx, *dir, fresh.as_bytes(), &[b'x'; 3000])
                .map(drop),
            _ => fs.sync_all(&cx),
        };
    }
    next_call(device);
    let request = 0x4004_f506;
    let _ = fs.ioctl(&cx, fs.root(), request, &1u32.to_ne_bytes());
    for (ino, ..) in found.iter().skip(1) {
        fs.forget(*ino, 1);
    }
}

fn run(device: Arc<MemDevice>, random: &mut Random) -> bool {
    let device = FaultDevice::new(device);
    next_call(&device);
    let options = MountOptions::parse("background_gc=off").unwrap();
    let opened = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(8 << 20));
    next_call(&device);
    let Ok((fs, _)) = opened else {
        return false;
    };
    use_it(&fs, &device, random);
    next_call(&device);
    let ended = fs.unmount();
    drop(fs);
    next_call(&device);
    // A volume that was unmounted without an error can be mounted again.
    if ended.is_ok() {
        let options = MountOptions::parse("background_gc=off").unwrap();
        let again = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(8 << 20));
        next_call(&device);
        let (fs, _) = again.expect("a volume that was unmounted can be mounted again");
        let _ = fs.unmount();
        next_call(&device);
    }
    true
}

/// Features of the base volume.
const FEATURES: &str = "extra_attr,inode_checksum,inode_crtime";
const WITH_QUOTA: &str = "extra_attr,inode_checksum,project_quota,quota";

/// The base volume with corrupt blocks of one kind, `times` times.
fn sweep(places: impl Fn(&Opened) -> Vec<u32>, seal: bool, seed: u64) {
    sweep_with(FEATURES, places, seal, seed);
}

fn sweep_with(features: &str, places: impl Fn(&Opened) -> Vec<u32>, seal: bool, seed: u64) {
    let options = if seed.is_multiple_of(2) {
        ""
    } else {
        "mode=lfs"
    };
    let opened = Opened::of(base(features, options));
    let layout = opened.layout().clone();
    let places = places(&opened);
    let nids = opened.nids();
    let mut random = Random::new(seed);
    let mut mounted = 0;
    let good = MemDevice::from_bytes(&opened.bytes);
    for _ in 0..cases() {
        let bad = good.copy();
        for _ in 0..1 + random.below(4) {
            let at = u64::from(places[random.below(places.len())]) * BLOCK_SIZE as u64;
            let block = &mut [0; BLOCK_SIZE];
            bad.read(at, block);
            for _ in 0..1 + random.below(8) {
                let value = match random.below(6) {
                    0 => [0xff; 4],
                    1 => [0; 4],
                    2 => nids[random.below(nids.len())].0.to_le_bytes(),
                    3 => (layout.main_start + random.below(8000) as u32).to_le_bytes(),
                    4 => [random.below(256) as u8; 4],
                    _ => [random.below(256) as u8, 0, 0, 0],
                };
                let word = match random.below(3) {
                    0 => random.below(128) * 4,
                    1 => 4052 + random.below(10) * 4,
                    _ => random.below(1023) * 4,
                };
                block[word..word + 4].copy_from_slice(&value);
            }
            if seal && node::Footer::parse(block).offset == 0 {
                inode::seal(&layout, block);
            }
            bad.write(at, block);
        }
        mounted += u32::from(run(Arc::new(bad), &mut random));
    }
    assert!(mounted > 0, "each corrupt volume was refused");
}

#[test]
fn writes_survive_corrupt_nodes() {
    sweep(
        |opened| {
            opened
                .nids()
                .iter()
                .map(|nid| opened.nat(*nid).addr.0)
                .collect()
        },
        true,
        1,
    );
}

#[test]
fn writes_survive_corrupt_tables() {
    // The blocks in use of both copies of both tables, and the SSA.
    let places = |opened: &Opened| {
        let layout = opened.layout();
        let mut all: Vec<u32> = (layout.nat_start..layout.nat_start + 4).collect();
        all.extend(layout.nat_start + 512..layout.nat_start + 516);
        all.extend(layout.sit_start..layout.nat_start);
        all.extend(layout.ssa_start..layout.ssa_start + layout.main_segments);
        all
    };
    sweep(places, false, 2);
    sweep(places, false, 3);
}

/// Journals with impossible counts, summaries, orphans: the blocks between the first and last block of a pack.
#[test]
fn writes_survive_corrupt_packs() {
    let places = |opened: &Opened| {
        let start = opened.layout().pack_start(opened.pack).0;
        (start + 1..start + opened.checkpoint.pack_blocks - 1).collect()
    };
    sweep(places, false, 4);
    sweep(places, false, 5);
}

/// Quota files: their blocks, and their inodes.
#[test]
fn writes_survive_corrupt_quota_files() {
    let places = |opened: &Opened| {
        let layout = opened.layout();
        let files = opened.superblock.quota_inodes().into_iter().flatten();
        let mut all = Vec::new();
        for nid in files {
            let block = opened.node(nid);
            let core = Inode::parse(layout, nid, block).unwrap();
            all.push(opened.nat(nid).addr.0);
            let blocks = core.size.div_ceil(BLOCK_SIZE as u64) as u16;
            all.extend((0..blocks).map(|slot| core.addr(layout, block, slot).0));
        }
        all
    };
    sweep_with(WITH_QUOTA, places, true, 6);
    sweep_with(WITH_QUOTA, places, false, 7);
}
