//! Triggers of a background checkpoint, one by one: none is written at the limit, one is written beyond it.

use steadfs_base::{InodeNo, IoTag};
use steadfs_cache::WritebackReason;
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileSystem, SetAttr, ShutdownMode};

use super::background::{looked, open};
use crate::F2fs;
use crate::disk::{Nid, SEGMENT_BLOCKS};
use crate::format::{FormatOptions, image};
use crate::space::Need;

const LARGE: u64 = 64 << 20;
const SMALL: u64 = 8 << 20;

/// Whether a background check writes a checkpoint although nothing is old.
fn due(fs: &F2fs) -> bool {
    looked(fs, 3600) == 1
}

fn simulated(test: fn()) {
    sim::run(sim::Config::new(1), test);
}

fn tag() -> IoTag {
    IoTag::default()
}

#[test]
fn dirty_nat_entries() {
    simulated(|| {
        let fs = open("background_gc=off", LARGE);
        let limit = u64::from(fs.layout().max_nid) * 10 / 100;
        let touch = |nid: u32| {
            let entry = fs.nat.entry(Nid(nid), tag()).unwrap();
            fs.nat.set(&fs.change().unwrap(), Nid(nid), entry);
        };
        let mut nid = 10;
        while (fs.nat.dirty_count() as u64) < limit {
            touch(nid);
            nid += 1;
        }
        assert!(!fs.needs_background_checkpoint(), "{limit}");
        touch(nid);
        assert!(fs.needs_background_checkpoint(), "{limit}");
        // Entries of nodes that do not exist must not be written by a checkpoint.
        fs.shutdown(&Cx::default(), ShutdownMode::NoFlush).unwrap();
        fs.close().unwrap_err();
    });
}

/// Leaves some prefree segments; returns their number.
fn leave_prefree(fs: &F2fs) -> u32 {
    let cx = Cx::default();
    let file = fs
        .mknod(&cx, fs.root(), b"large", 0o100_644, 0)
        .unwrap()
        .ino;
    let segment = vec![7; SEGMENT_BLOCKS as usize * 4096];
    for n in 0..5 {
        fs.write(&cx, file, n * segment.len() as u64, &segment, false)
            .unwrap();
    }
    fs.sync_all(&cx).unwrap();
    assert!(!due(fs));
    fs.unlink(&cx, fs.root(), b"large").unwrap();
    fs.forget(file, 1);
    fs.segments().counts().prefree
}

#[test]
fn prefree_segments() {
    simulated(|| {
        let fs = open("background_gc=off,nodiscard", LARGE);
        let control = fs.control().unwrap();
        let limit = |n: u32| {
            let path = "f2fs/reclaim_segments";
            control.write(path, n.to_string().as_bytes()).unwrap();
        };
        let held = leave_prefree(&fs);
        assert!(held >= 4, "{held}");
        limit(held);
        assert!(!due(&fs), "{held}");
        limit(held - 1);
        assert!(due(&fs), "{held}");
        assert_eq!(fs.segments().counts().prefree, 0);
        fs.close().unwrap();
    });
}

#[test]
fn a_twentieth_of_the_segments_may_be_prefree() {
    for (mib, limit) in [(64, 1), (1024, 25)] {
        let device = image(mib << 20, &FormatOptions::default()).unwrap();
        let fs = super::mount_device(&device).unwrap();
        assert_eq!(fs.prefree_limit(), limit, "{mib} MiB");
        assert_eq!(u64::from(limit), u64::from(fs.layout().main_segments) / 20);
        fs.close().unwrap();
    }
}

/// Roll-forward does not know what was freed, so all blocks of before and since must fit.
#[test]
fn space_for_roll_forward() {
    simulated(|| {
        let fs = open("background_gc=off,nodiscard", LARGE);
        let counts = || fs.space.counts();
        file(&fs, "file");
        // A block that is created and freed again.
        let block = || {
            let need = Need {
                blocks: 1,
                nodes: 0,
            };
            fs.space.reserve(need, false).unwrap();
            fs.space.use_block();
            fs.space.free_blocks(1);
        };
        while counts().before + counts().taken < counts().user_blocks {
            block();
        }
        assert!(!due(&fs));
        block();
        assert!(due(&fs));
        assert!(fs.space.has_space_for_roll_forward());
        fs.close().unwrap();
    });
}

/// Calls `act` until the count of one kind is beyond its limit: a checkpoint is due then, and not before.
fn bring(options: &str, busy: bool, count: fn(&F2fs) -> u64, prepare: fn(&F2fs) -> Act) {
    let fs = open(&format!("background_gc=off,{options}"), SMALL);
    // No other background check.
    fs.writeback.stop();
    let most = fs.node_limit() as u64;
    let most = if busy { most + most / 2 } else { most };
    let act = prepare(&fs);
    fs.sync_all(&Cx::default()).unwrap();
    for n in 0.. {
        let change = busy.then(|| fs.change().unwrap());
        let (counted, has) = (count(&fs), fs.needs_background_checkpoint());
        drop(change);
        assert_eq!(has, counted >= most, "{counted} of {most}");
        if has {
            assert!(n > most / 20, "{n}");
            break;
        }
        act(&fs, n);
    }
    // No operation is in progress now.
    assert!(due(&fs));
    fs.close().unwrap();
}

/// Makes one more change, the nth.
type Act = Box<dyn Fn(&F2fs, u64)>;

fn file(fs: &F2fs, name: &str) -> InodeNo {
    let made = fs.mknod(&Cx::default(), fs.root(), name.as_bytes(), 0o100_644, 0);
    made.unwrap().ino
}

/// Writes a block that a node of its own maps.
fn one_node_each(fs: &F2fs) -> Act {
    let sparse = file(fs, "sparse");
    Box::new(move |fs, n| {
        let (cx, node) = (Cx::default(), 1018 * 4096);
        fs.write(&cx, sparse, (n + 1) * node, b"x", false).unwrap();
        let dirty = fs.writeback.dirty_files();
        fs.write_out_files(&dirty, WritebackReason::Sync, tag())
            .unwrap();
    })
}

/// Adds a long name of one file to one directory.
fn one_name_each(fs: &F2fs) -> Act {
    let linked = file(fs, "linked");
    Box::new(move |fs, n| {
        let name = format!("{n:0250}");
        fs.link(&Cx::default(), linked, fs.root(), name.as_bytes())
            .unwrap();
    })
}

/// Changes attributes of existing files.
fn one_inode_each(fs: &F2fs) -> Act {
    let limit = fs.node_limit() as u64 * 2;
    let files: Vec<InodeNo> = (0..limit).map(|n| file(fs, &n.to_string())).collect();
    Box::new(move |fs, n| {
        let set = SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        };
        fs.setattr(&Cx::default(), files[n as usize], &set).unwrap();
    })
}

/// Each limit by itself; it is 1.5 times higher while an operation is in progress.
#[test]
fn dirty_nodes_directory_blocks_and_inodes() {
    simulated(|| {
        for busy in [false, true] {
            bring("", busy, |fs| fs.nodes.dirty_count() as u64, one_node_each);
            bring(
                "",
                busy,
                |fs| fs.inodes.dirty_count() as u64,
                one_inode_each,
            );
            let dentries = |fs: &F2fs| {
                let others = fs.inodes.dirty_others();
                others.iter().map(|inode| inode.pages.unwritten()).sum()
            };
            bring("noinline_dentry", busy, dentries, one_name_each);
        }
    });
}
