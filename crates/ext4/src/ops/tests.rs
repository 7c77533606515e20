use steadfs_block::MemDevice;
use steadfs_rt::{sim, spawn};

use super::*;
use crate::CacheSizes;
use crate::disk::test_images::Image;
use crate::options::MountOptions;
use crate::test_world::{ROOT, World};

mod options;

fn open(bytes: &[u8], list: &str) -> Arc<Ext4> {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let options = MountOptions::parse(list).unwrap();
    let sizes = CacheSizes::of(8 << 20);
    Ext4::open(device, options, sizes).unwrap().0
}

/// Transactions that four tasks need for 20 files each, every one durable before the next.
fn transactions(bytes: &[u8], list: &str, tasks: u64, seed: u64) -> u64 {
    let (bytes, list) = (bytes.to_vec(), list.to_owned());
    let run = move || {
        let fs = open(&bytes, &list);
        let tasks: Vec<_> = (0..tasks)
            .map(|caller| {
                let fs = Arc::clone(&fs);
                spawn("maker", move || {
                    let cx = Cx {
                        caller,
                        ..Cx::default()
                    };
                    for n in 0..20 {
                        let name = format!("{caller}-{n}");
                        let name = name.as_bytes();
                        FileSystem::mknod(&*fs, &cx, ROOT, name, 0o100_644, 0).unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.join();
        }
        let stats = fs.txns.journal().unwrap().stats();
        fs.close().unwrap();
        stats.transactions
    };
    sim::run(sim::Config::new(seed), run).value
}

#[test]
fn synchronous_changes_of_several_callers_share_commits() {
    let bytes = Image::make(&["-t", "ext4"], "16M").bytes();
    // The number that share a commit depends on the schedule: the sum over several.
    let over_seeds = |list: &str| -> u64 { (0..8).map(|s| transactions(&bytes, list, 4, s)).sum() };
    let together = over_seeds("dirsync,min_batch_time=2000");
    let apart = over_seeds("dirsync,max_batch_time=0");
    assert!(
        together * 5 <= apart * 3,
        "{together} and {apart} transactions"
    );
    // A single task does not wait for others: as many commits, and no longer.
    let alone = transactions(&bytes, "dirsync,min_batch_time=2000", 1, 7);
    assert!((20..=22).contains(&alone), "{alone}");
}

#[test]
fn a_replaced_file_is_not_empty_after_a_crash() {
    let bytes = Image::make(&["-t", "ext4"], "16M").bytes();
    let length = |list: &'static str| {
        let bytes = bytes.clone();
        let run = move || {
            let device = Arc::new(MemDevice::from_bytes(&bytes));
            let options = MountOptions::parse(list).unwrap();
            let shared = Arc::clone(&device) as _;
            let (fs, _) = Ext4::open(shared, options, CacheSizes::of(8 << 20)).unwrap();
            let cx = Cx::default();
            let file = FileSystem::mknod(&*fs, &cx, ROOT, b"f", 0o100_644, 0).unwrap();
            FileSystem::write(&*fs, &cx, file.ino, 0, &[1; 9000], false).unwrap();
            FileSystem::fsync(&*fs, &cx, file.ino, false).unwrap();
            let empty = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            FileSystem::setattr(&*fs, &cx, file.ino, &empty).unwrap();
            FileSystem::write(&*fs, &cx, file.ino, 0, &[2; 7000], false).unwrap();
            // Longer than the period of the flusher and the interval of commits, shorter than the
            // age at which data is written.
            steadfs_rt::sleep(std::time::Duration::from_secs(15));
            let after = open(&device.to_bytes(), "");
            let attr = FileSystem::lookup(&*after, &cx, ROOT, b"f").unwrap();
            after.close().unwrap();
            fs.close().unwrap();
            attr.size
        };
        sim::run(sim::Config::new(3), run).value
    };
    assert_eq!(length(""), 7000);
    assert_eq!(length("noauto_da_alloc"), 0);
}

#[test]
fn the_journals_checksums_are_as_asked() {
    use crate::disk::features::RoCompat;
    for (mkfs, list, wanted) in [
        ("metadata_csum", "", "V3"),
        ("metadata_csum", "nojournal_checksum", "None"),
        ("^metadata_csum", "journal_checksum", "V1"),
        ("^metadata_csum", "", "None"),
    ] {
        let image = Image::make(&["-t", "ext4", "-O", mkfs], "16M");
        let world = World::open_with(image, MountOptions::parse(list).unwrap());
        world.mkdir(ROOT, b"dir").unwrap();
        let device = world.cut_power();
        let sums = world.fs.geo().has_ro_compat(RoCompat::METADATA_CSUM);
        assert_eq!(sums, mkfs == "metadata_csum");
        let found = world.fs.txns.journal().unwrap().checksum();
        assert_eq!(format!("{found:?}"), wanted, "{mkfs} {list}");
        // The log is replayed by this implementation and by e2fsck.
        device.save(&world.image.path()).unwrap();
        let judge = crate::disk::test_images::judge("e2fsck")
            .arg("-fy")
            .arg(world.image.path())
            .output()
            .unwrap();
        // 1: the free counts, which are not logged.
        assert!(matches!(judge.status.code(), Some(0 | 1)), "{judge:?}");
        let said = String::from_utf8_lossy(&judge.stdout);
        assert!(said.contains("recovering journal"), "{said}");
        let world = world.recover(device);
        assert!(world.lookup(ROOT, b"dir").is_ok());
        world.close();
    }
}
