use std::sync::Arc;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::{Fault, FaultDevice, MemDevice, Op};
use steadfs_rt::{JoinHandle, sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, RenameFlags, SetAttr};

use super::BLOCK;
use crate::test_world::{ROOT, World};
use crate::{CacheSizes, F2fs, MountOptions};

/// An operation while an fsync waits for a lock.
type Meanwhile = fn(&World, InodeNo);

fn link(world: &World, file: InodeNo) {
    world.fs.link(&world.cx, file, ROOT, b"second").unwrap();
    world.forget(file);
}

fn unlink(world: &World, _: InodeNo) {
    world.fs.unlink(&world.cx, ROOT, b"file").unwrap();
}

fn rename(world: &World, _: InodeNo) {
    let (fs, cx) = (&world.fs, &world.cx);
    let flags = RenameFlags::default();
    fs.rename(cx, (ROOT, b"file"), (ROOT, b"moved"), flags)
        .unwrap();
}

fn set_perm(world: &World, file: InodeNo) {
    let private = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    world.fs.setattr(&world.cx, file, &private).unwrap();
}

fn close(world: &World) {
    world.fs.close().unwrap();
    world.judge_device();
}

/// Holds a file's flush lock for 10 ms, as a write-back does.
fn take_turn(world: &Arc<World>, file: InodeNo) -> JoinHandle<()> {
    let inode = world.fs.by_number(file, world.cx.tag).unwrap();
    let turn = spawn("turn", move || {
        let _flush = inode.lock_flush();
        sleep(Duration::from_millis(10));
    });
    sleep(Duration::from_millis(1));
    turn
}

/// An fsync that decided on a chain and then waited for its turn writes the nodes as they are then. If recovery
/// could not use them, it takes a checkpoint.
#[test]
fn an_fsync_decides_again_when_it_writes_the_chain() {
    let cases: [(&str, Meanwhile, &[&str]); 4] = [
        ("link", link, &["file", "second"]),
        ("unlink", unlink, &[]),
        ("rename", rename, &["moved"]),
        ("chmod", set_perm, &["file"]),
    ];
    for (what, meanwhile, names) in cases {
        for known in [true, false] {
            sim::run(sim::Config::new(1), move || {
                let world = Arc::new(World::make("", 64));
                let file = world.fs.mknod(&world.cx, ROOT, b"file", 0o100_644, 0);
                let file = file.unwrap().ino;
                if known {
                    world.fs.sync_all(&world.cx).unwrap();
                    set_perm(&world, file);
                }
                let turn = take_turn(&world, file);
                let fsync = spawn("fsync", {
                    let world = Arc::clone(&world);
                    move || world.fs.fsync(&world.cx, file, false).unwrap()
                });
                sleep(Duration::from_millis(1));
                meanwhile(&world, file);
                turn.join();
                fsync.join();
                let crashed = World::of(Arc::new(MemDevice::from_bytes(&world.bytes())), "");
                let found = crashed.names(ROOT);
                let wanted: Vec<_> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
                assert_eq!(found, wanted, "{what}, known: {known}");
                crashed.close();
                close(&world);
            });
        }
    }
}

/// Nodes stored by an fsync beside a truncate map no block beyond the end, also when the file grows again.
#[test]
fn an_fsync_beside_a_truncate_stores_no_truncated_block() {
    const SIZE: u64 = 4 << 20;
    let of_size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    for seed in 0..40 {
        sim::run(sim::Config::new(seed), move || {
            let world = Arc::new(World::make("", 64));
            let file = world.file(ROOT, b"file").unwrap().ino;
            let data = vec![7; SIZE as usize];
            world.fs.write(&world.cx, file, 0, &data, false).unwrap();
            world.fs.sync_all(&world.cx).unwrap();
            set_perm(&world, file);
            let turn = take_turn(&world, file);
            let truncate = spawn("truncate", {
                let world = Arc::clone(&world);
                move || assert!(world.fs.setattr(&world.cx, file, &of_size(100)).is_ok())
            });
            sleep(Duration::from_millis(1));
            let fsync = spawn("fsync", {
                let world = Arc::clone(&world);
                move || world.fs.fsync(&world.cx, file, false).unwrap()
            });
            turn.join();
            fsync.join();
            let crashed = World::of(Arc::new(MemDevice::from_bytes(&world.bytes())), "");
            let size = crashed.lookup(ROOT, b"file").unwrap().size;
            let grown = crashed.fs.setattr(&crashed.cx, file, &of_size(SIZE));
            assert_eq!(grown.unwrap().size, SIZE);
            let found = crashed.fs.read(&crashed.cx, file, 0, SIZE as usize);
            let found = found.unwrap().to_vec();
            let (kept, new) = found.split_at(size as usize);
            assert!(kept.iter().all(|byte| *byte == 7), "seed {seed}");
            assert!(new.iter().all(|byte| *byte == 0), "seed {seed}: {size}");
            crashed.close();
            truncate.join();
            close(&world);
        });
    }
}

/// A name that two files had in turn belongs to the later one after a power cut, whichever has the higher inode
/// number.
#[test]
fn a_name_is_that_of_the_file_synced_last() {
    sim::run(sim::Config::new(1), || {
        let device = FaultDevice::new(World::make("", 64).close());
        let options = MountOptions::parse("").unwrap();
        let sizes = CacheSizes::of(16 << 20);
        let fs = F2fs::open(Arc::clone(&device) as _, options, sizes)
            .unwrap()
            .0;
        let cx = Cx::default();
        let make = |name: &[u8], data: &[u8]| {
            let file = fs.mknod(&cx, ROOT, name, 0o100_644, 0).unwrap().ino;
            fs.write(&cx, file, 0, data, false).unwrap();
            fs.fsync(&cx, file, false).unwrap();
            fs.put(file, 1).unwrap();
            file
        };
        make(b"spare", b"");
        fs.sync_all(&cx).unwrap();
        fs.unlink(&cx, ROOT, b"spare").unwrap();
        // A file created while a checkpoint is in flight cannot get the inode number that this frees.
        device.set(|bio| match bio.preflush {
            true => Fault::Delay(Duration::from_millis(3)),
            false => Fault::None,
        });
        let sync = spawn("sync", {
            let fs = Arc::clone(&fs);
            move || fs.sync_all(&Cx::default()).unwrap()
        });
        sleep(Duration::from_millis(1));
        let first = make(b"name", b"first");
        sync.join();
        fs.unlink(&cx, ROOT, b"name").unwrap();
        let second = make(b"name", b"second");
        assert!(second < first);
        for options in ["", "ro"] {
            let crashed = World::of(Arc::new(device.memory.copy()), options);
            let found = crashed.lookup(ROOT, b"name").unwrap().ino;
            let data = crashed.fs.read(&crashed.cx, found, 0, 100).unwrap();
            assert_eq!(data.to_vec(), b"second", "{options:?}");
            crashed.fs.close().unwrap();
            crashed.judge_device();
        }
        fs.close().unwrap();
    });
}

/// A volume on a device without FLUSHes, and the device.
fn on_a_device() -> (Arc<FaultDevice>, Arc<F2fs>) {
    let device = FaultDevice::new(World::make("", 64).close());
    let options = MountOptions::parse("nobarrier").unwrap();
    let sizes = CacheSizes::of(16 << 20);
    let opened = F2fs::open(Arc::clone(&device) as _, options, sizes);
    (device, opened.unwrap().0)
}

/// From now on a checkpoint stays in flight for a while.
fn delay_checkpoints(device: &FaultDevice, fs: &F2fs) {
    let main = u64::from(fs.layout.main_start) * BLOCK;
    device.set(move |bio| match bio.op == Op::Write && bio.offset < main {
        true => Fault::Delay(Duration::from_millis(20)),
        false => Fault::None,
    });
}

fn fsync_beside(fs: &Arc<F2fs>, file: InodeNo) -> JoinHandle<()> {
    let fs = Arc::clone(fs);
    let fsync = spawn("fsync", move || {
        fs.fsync(&Cx::default(), file, false).unwrap();
    });
    sleep(Duration::from_millis(1));
    fsync
}

/// What another task's fsync of the file has written is found only behind the checkpoint in flight.
#[test]
fn an_fsync_of_a_clean_file_waits_for_the_checkpoint_that_its_chain_follows() {
    sim::run(sim::Config::new(1), || {
        let (device, fs) = on_a_device();
        let cx = Cx::default();
        let make = |name: &[u8]| fs.mknod(&cx, ROOT, name, 0o100_644, 0).unwrap().ino;
        let file = make(b"file");
        fs.sync_all(&cx).unwrap();
        make(b"other");
        delay_checkpoints(&device, &fs);
        let sync = spawn("sync", {
            let fs = Arc::clone(&fs);
            move || fs.sync_all(&Cx::default()).unwrap()
        });
        sleep(Duration::from_millis(1));
        let private = SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        };
        fs.setattr(&cx, file, &private).unwrap();
        let first = fsync_beside(&fs, file);
        fs.fsync(&cx, file, false).unwrap();
        let crashed = World::of(Arc::new(device.memory.copy()), "");
        assert_eq!(crashed.lookup(ROOT, b"file").unwrap().perm, 0o600);
        crashed.close();
        sync.join();
        first.join();
        fs.close().unwrap();
    });
}

/// A rename that a checkpoint in flight does not have needs another checkpoint.
#[test]
fn an_fsync_covers_a_second_rename_during_the_first_ones_checkpoint() {
    sim::run(sim::Config::new(1), || {
        let (device, fs) = on_a_device();
        let cx = Cx::default();
        let file = fs.mknod(&cx, ROOT, b"file", 0o100_644, 0).unwrap().ino;
        fs.sync_all(&cx).unwrap();
        let rename = |from: &[u8], to: &[u8]| {
            let flags = RenameFlags::default();
            fs.rename(&cx, (ROOT, from), (ROOT, to), flags).unwrap();
        };
        rename(b"file", b"once");
        delay_checkpoints(&device, &fs);
        let first = fsync_beside(&fs, file);
        rename(b"once", b"twice");
        first.join();
        fs.fsync(&cx, file, false).unwrap();
        let crashed = World::of(Arc::new(device.memory.copy()), "");
        assert_eq!(crashed.names(ROOT), [b"twice".to_vec()]);
        crashed.close();
        fs.close().unwrap();
    });
}
