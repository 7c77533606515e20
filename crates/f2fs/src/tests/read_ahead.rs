//! Nodes and directory blocks are read in batches: the number of reads of cold walks and look-ups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::{DeviceModel, FaultDevice, MemDevice, ModelDevice, Op};
use steadfs_rt::{now, sim};
use steadfs_vfs::{Cx, FileKind, FileSystem, FsError, RenameFlags, SetAttr};

use super::names;
use crate::format::{FormatOptions, image};
use crate::test_world::ROOT;
use crate::{CacheSizes, F2fs, MountOptions};

const FILES: usize = 3000;

fn open(device: &Arc<FaultDevice>, options: &str) -> Arc<F2fs> {
    let options = MountOptions::parse(options).unwrap();
    let device = Arc::clone(device) as _;
    F2fs::open(device, options, CacheSizes::of(64 << 20))
        .unwrap()
        .0
}

/// A volume with a directory of empty files and a tree of small directories.
fn filled() -> Arc<MemDevice> {
    let device = image(128 << 20, &FormatOptions::default()).unwrap();
    let fs = open(&FaultDevice::new(Arc::clone(&device)), "");
    let cx = Cx::default();
    let flat = fs.mkdir(&cx, ROOT, b"flat", 0o755).unwrap().ino;
    for n in 0..FILES {
        let name = format!("a file with the number {n}");
        let made = fs.mknod(&cx, flat, name.as_bytes(), 0o100_644, 0).unwrap();
        fs.put(made.ino, 1).unwrap();
    }
    let tree = fs.mkdir(&cx, ROOT, b"tree", 0o755).unwrap().ino;
    for n in 0..FILES / 10 {
        let dir = fs
            .mkdir(&cx, tree, format!("{n}").as_bytes(), 0o755)
            .unwrap();
        for n in 0..10 {
            let name = format!("{n:0>100}");
            fs.mknod(&cx, dir.ino, name.as_bytes(), 0o100_644, 0)
                .unwrap();
        }
    }
    fs.close().unwrap();
    device
}

/// Reads of a device, counted.
fn counted(device: &Arc<MemDevice>) -> (Arc<FaultDevice>, Arc<AtomicU64>) {
    let device = FaultDevice::new(Arc::clone(device));
    let reads = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&reads);
    device.fail(move |bio| {
        count.fetch_add(u64::from(bio.op == Op::Read), Ordering::Relaxed);
        false
    });
    (device, reads)
}

/// Entries below a directory, with the attributes of each.
fn walk(fs: &F2fs, dir: InodeNo) -> usize {
    let cx = Cx::default();
    let mut count = 0;
    for (name, ino, _) in names(fs, dir).into_iter().skip(2) {
        let attr = fs.lookup(&cx, dir, &name).unwrap();
        assert_eq!(attr.ino, ino);
        count += 1;
        if attr.kind == FileKind::Directory {
            count += walk(fs, ino);
        }
        fs.put(ino, 1).unwrap();
    }
    count
}

#[test]
fn a_cold_listing_reads_neighbourhoods() {
    let device = filled();
    let (device, reads) = counted(&device);
    for (options, dir, entries) in [
        ("ro", &b"flat"[..], FILES),
        ("", b"flat", FILES),
        ("", b"tree", FILES + FILES / 10),
    ] {
        let fs = open(&device, options);
        let dir = fs.lookup(&Cx::default(), ROOT, dir).unwrap().ino;
        let before = reads.load(Ordering::Relaxed);
        assert_eq!(walk(&fs, dir), entries);
        let reads = reads.load(Ordering::Relaxed) - before;
        assert!(
            reads < entries as u64 / 10,
            "{options}: {reads} for {entries}"
        );
        assert!(reads > 0, "nothing was in memory");
        fs.close().unwrap();
    }
}

/// A look-up in a large directory waits for a few reads, one after the other, not for a read of each level.
#[test]
fn a_cold_look_up_reads_its_buckets_at_once() {
    sim::run(sim::Config::new(3), || {
        let model = DeviceModel {
            bytes_per_second: 1 << 30,
            latency: Duration::from_millis(1),
            flush: Duration::ZERO,
            depth: 32,
        };
        let device = Arc::new(ModelDevice::new(filled() as _, model));
        let options = MountOptions::parse("ro").unwrap();
        let fs = F2fs::open(device, options, CacheSizes::of(64 << 20))
            .unwrap()
            .0;
        let cx = Cx::default();
        let flat = fs.lookup(&cx, ROOT, b"flat").unwrap().ino;
        let depth = fs.by_number(flat, cx.tag).unwrap().core.read().depth;
        assert!(depth >= 4, "{depth} levels");
        for n in [0, FILES / 2, FILES - 1] {
            fs.forget_clean();
            fs.by_number(flat, cx.tag).unwrap();
            let began = now();
            let name = format!("a file with the number {n}");
            fs.lookup(&cx, flat, name.as_bytes()).unwrap();
            // The buckets, the block of the NAT, the inode.
            let took = began.elapsed();
            assert!(took < Duration::from_millis(4), "{took:?}");
        }
        fs.close().unwrap();
    });
}

/// What was read ahead is current: nodes changed and written between the read-ahead and their use.
#[test]
fn nodes_read_ahead_are_current() {
    let device = filled();
    let fs = open(&FaultDevice::new(device), "");
    let cx = Cx::default();
    let flat = fs.lookup(&cx, ROOT, b"flat").unwrap().ino;
    let all = names(&fs, flat);
    for (n, (name, ..)) in all.iter().enumerate().skip(2) {
        let ino = fs.lookup(&cx, flat, name).unwrap().ino;
        let set = SetAttr {
            perm: Some(n as u32 & 0o777),
            ..SetAttr::default()
        };
        fs.setattr(&cx, ino, &set).unwrap();
        fs.put(ino, 1).unwrap();
        if n % 500 == 0 {
            fs.sync_all(&cx).unwrap();
            fs.forget_clean();
        }
    }
    fs.forget_clean();
    for (n, (name, ..)) in all.iter().enumerate().skip(2) {
        let attr = fs.lookup(&cx, flat, name).unwrap();
        assert_eq!(attr.perm, n as u32 & 0o777);
        fs.put(attr.ino, 1).unwrap();
    }
    fs.close().unwrap();
}

/// The slots that a look-up found for a missing name are used by the next creation only if nothing changed meanwhile.
#[test]
fn a_name_not_found_is_created_in_the_slots_that_were_found() {
    let device = filled();
    let fs = open(&FaultDevice::new(Arc::clone(&device)), "");
    let cx = Cx::default();
    let flat = fs.lookup(&cx, ROOT, b"flat").unwrap().ino;
    let missing = |name: &[u8]| fs.lookup(&cx, flat, name).unwrap_err();
    for n in 0..200 {
        let [one, two] = ["one", "two"].map(|kind| format!("{kind} {n}").into_bytes());
        assert_eq!(missing(&one), FsError::NotFound);
        // Another name takes the slots first.
        fs.mknod(&cx, flat, &two, 0o100_644, 0).unwrap();
        fs.mknod(&cx, flat, &one, 0o100_644, 0).unwrap();
        assert_eq!(missing(b"absent"), FsError::NotFound);
        fs.unlink(&cx, flat, &two).unwrap();
        let moved = fs.rename(&cx, (flat, &one), (flat, b"absent"), RenameFlags::default());
        moved.unwrap();
        assert_eq!(missing(&one), FsError::NotFound);
        fs.unlink(&cx, flat, b"absent").unwrap();
    }
    assert_eq!(names(&fs, flat).len(), FILES + 2);
    fs.close().unwrap();
    crate::test_world::fsck(&device);
}
