//! Orphans after crashes, unmounts and corruption.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_rt::{sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, SetAttr};

use crate::check;
use crate::disk::test_images::Image;
use crate::disk::{Ino, orphan_file};
use crate::test_world::{ROOT, World};

const KINDS: [&[&str]; 3] = [
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file"],
    // One block of 254 slots: further orphans are added to the list.
    &[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "orphan_file,^metadata_csum",
        "-E",
        "orphan_file_size=32K",
    ],
];

/// Open files without names.
fn orphans(world: &World, count: usize) -> Vec<InodeNo> {
    (0..count)
        .map(|_| world.fs.tmpfile(&world.cx, ROOT, 0o600).unwrap().ino)
        .collect()
}

#[test]
fn many_orphans_are_added_and_removed() {
    let world = World::make(&[KINDS[2], &["-N", "16384"]].concat(), "64M");
    let mut held = orphans(&world, 9000);
    for ino in held.drain(..).rev() {
        world.forget(ino);
    }
    held = orphans(&world, 9000);
    for ino in held {
        world.forget(ino);
    }
    world.close();
}

#[test]
fn a_truncation_records_an_orphan() {
    let world = World::make(KINDS[0], "64M");
    let file = world.fs.tmpfile(&world.cx, ROOT, 0o600).unwrap().ino;
    let inode = world.fs.by_number(file, world.cx.tag).unwrap();
    let cx = Cx::default();
    for n in 0..2000u64 {
        world
            .fs
            .write_file(&cx, &inode, n * 4096, b"x", false)
            .unwrap();
    }
    world.fs.sync_volume(&cx).unwrap();
    let none = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    world.fs.setattr(&cx, file, &none).unwrap();
    let left = world.cut_power();
    let world = world.recover(left);
    assert!(world.lookup(ROOT, b"lost+found").is_ok());
    world.close();
}

/// An image whose list of orphans is this, as 32-bit words: head and then each inode's `i_dtime`.
fn listed(head: u32, links: &[(u32, u32)]) -> Image {
    let options = ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"];
    let image = World::make(&options, "16M").close();
    image.debugfs("write /dev/null file");
    image.debugfs("write /dev/null other");
    for (ino, next) in links {
        image.debugfs(&format!("sif <{ino}> links_count 0"));
        image.debugfs(&format!("sif <{ino}> dtime {next}"));
    }
    image.debugfs("unlink file");
    image.debugfs("unlink other");
    image.debugfs(&format!("ssv last_orphan {head}"));
    image
}

#[test]
fn corrupt_lists_do_not_prevent_a_mount() {
    // A valid list, loops, a free inode, the root, the journal, an invalid number.
    for (head, links, clean) in [
        (12, &[(12, 13), (13, 0)][..], true),
        (12, &[(12, 13), (13, 12)], false),
        (12, &[(12, 12), (13, 0)], false),
        (12, &[(12, 500), (13, 0)], false),
        (2, &[], false),
        (12, &[(12, 8), (13, 0)], false),
        (4_000_000_000, &[], false),
    ] {
        let image = listed(head, links);
        let world = World::open(image);
        assert_eq!(world.fs.sb.lock().last_orphan(), None);
        assert_eq!(
            world.fs.sb.lock().error_count() > 0,
            !clean,
            "{head} {links:?}"
        );
        assert_eq!(world.names(ROOT), [b"lost+found"]);
        if clean {
            world.close();
        } else {
            world.fs.close().unwrap();
        }
    }
}

/// The valid entries of a corrupt orphan file are freed; the others stay recorded.
#[test]
fn a_corrupt_orphan_file_keeps_its_invalid_entries() {
    let options = ["-t", "ext4", "-b", "1024", "-O", "orphan_file"];
    for nonsense in [500, 2, 8, 12] {
        let world = World::make(&options, "16M");
        let free = world.fs.alloc.totals().free_inodes;
        let image = world.close();
        for name in ["file", "other"] {
            image.debugfs(&format!("write /dev/null {name}"));
            image.debugfs(&format!("sif {name} links_count 0"));
            image.debugfs(&format!("unlink {name}"));
        }
        image.debugfs("feature orphan_present");
        let first = image.superblock().geometry().first_ino.0;
        let mut bytes = image.bytes();
        let world = World::open(image);
        let (at, seed) = {
            let state = world.fs.orphans.state.lock();
            let file = state.file.as_ref().unwrap();
            (file.blocks[0], file.seed)
        };
        let block = &mut bytes[at.0 as usize * 1024..][..1024];
        // lost+found and the orphan file itself come first.
        let named = [nonsense, first + 2, first + 2, first + 3];
        for (slot, ino) in named.iter().enumerate() {
            orphan_file::set_slot(block, slot as u32, Some(Ino(*ino)));
        }
        orphan_file::seal(world.fs.geo(), seed, at, block);
        drop(world);

        let world = World::open(Image::of(&bytes));
        let orphans = world.fs.orphans.all();
        assert_eq!(orphans, [], "valid entries are freed");
        assert_eq!(world.fs.alloc.totals().free_inodes, free);
        assert!(world.fs.sb.lock().error_count() > 0);
        world.fs.close().unwrap();
        let report = check::check(&world.device().to_bytes(), &check::Options::default());
        let unannounced = report.issues.contains(&check::Issue::OrphansNotAnnounced);
        assert!(!report.is_clean() && !unannounced, "{:?}", report.issues);
    }
}

/// A file that loses its name during a truncation in several transactions.
#[test]
fn a_name_lost_during_a_truncation_records_an_orphan() {
    for seed in 0..10 {
        let config = sim::Config {
            preempt: 512,
            allow_daemons: true,
            ..sim::Config::new(seed)
        };
        sim::run(config, name_lost_during_a_truncation);
    }
}

fn name_lost_during_a_truncation() {
    let world = World::make(&["-t", "ext4", "-b", "1024", "-J", "size=1"], "16M");
    let file = FileSystem::mknod(&*world.fs, &world.cx, ROOT, b"file", 0o100_600, 0).unwrap();
    let inode = world.fs.by_number(file.ino, world.cx.tag).unwrap();
    for n in 0..600u64 {
        let written = world
            .fs
            .write_file(&world.cx, &inode, n * 2048, b"x", false);
        written.unwrap();
    }
    world.fs.sync_volume(&world.cx).unwrap();
    drop(inode);
    let fs = Arc::clone(&world.fs);
    let cut = spawn("cut", move || {
        let none = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        fs.setattr(&Cx::default(), file.ino, &none).unwrap();
    });
    let fs = Arc::clone(&world.fs);
    // A transaction that is locked for its commit gives no further credits: the operation continues in the next one.
    let sync = spawn("sync", move || {
        for _ in 0..20 {
            fs.sync_volume(&Cx::default()).unwrap();
        }
    });
    // Recorded although it has a name: it is being truncated.
    while world.fs.orphans.is_empty()
        && world.fs.by_number(file.ino, world.cx.tag).unwrap().size() > 0
    {
        sleep(Duration::from_nanos(100));
    }
    FileSystem::unlink(&*world.fs, &world.cx, ROOT, b"file").unwrap();
    cut.join();
    sync.join();
    let left = world.cut_power();
    let world = world.recover(left);
    world.close();
}

/// The blocks of a large directory are revoked while others fill the transaction.
#[test]
fn a_large_directory_is_freed_while_transactions_are_full() {
    for seed in 0..6 {
        for kind in ["ext4", "ext3"] {
            let config = sim::Config {
                preempt: 512,
                allow_daemons: true,
                ..sim::Config::new(seed)
            };
            sim::run(config, || large_directory_goes(kind));
        }
    }
}

fn large_directory_goes(kind: &str) {
    let world = World::make(&["-t", kind, "-b", "1024", "-J", "size=1"], "32M");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let name = |n: u32| format!("{n:0250}");
    for n in 0..900 {
        world.file(dir, name(n).as_bytes()).unwrap();
    }
    for n in 0..900 {
        world.fs.unlink(&world.cx, dir, name(n).as_bytes()).unwrap();
    }
    let over = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..30)
        .map(|task| {
            let (fs, over) = (Arc::clone(&world.fs), Arc::clone(&over));
            spawn("other", move || {
                while !over.load(Ordering::Acquire) {
                    let handle = fs.txns().begin(8 + task % 7).unwrap();
                    sleep(Duration::from_nanos(100));
                    drop(handle);
                }
            })
        })
        .collect();
    sleep(Duration::from_micros(1));
    world.fs.rmdir(&world.cx, ROOT, b"dir").unwrap();
    over.store(true, Ordering::Release);
    others.into_iter().for_each(steadfs_rt::JoinHandle::join);
    world.close();
}
