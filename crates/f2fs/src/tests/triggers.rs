//! What brings a checkpoint in the background at once, one by one: as much as may be brings none, one more does.

use steadfs_base::{InodeNo, IoTag};
use steadfs_cache::WritebackReason;
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileSystem, SetAttr, ShutdownMode};

use super::background::{looked, open};
use crate::F2fs;
use crate::disk::{Nid, SEGMENT_BLOCKS};
use crate::space::Need;

const LARGE: u64 = 64 << 20;
const SMALL: u64 = 8 << 20;

/// Whether one is written now although nothing is old.
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
fn a_tenth_of_all_node_addresses() {
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
        // Entries of nodes that are none: nothing for a checkpoint.
        fs.shutdown(&Cx::default(), ShutdownMode::NoFlush).unwrap();
        fs.close().unwrap_err();
    });
}

/// Leaves segments that only wait for a checkpoint to be free; how many.
fn hold_some(fs: &F2fs) -> u32 {
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
fn segments_that_wait_to_be_free() {
    simulated(|| {
        let fs = open("background_gc=off,nodiscard", LARGE);
        let control = fs.control().unwrap();
        let limit = |n: u32| {
            let path = "f2fs/reclaim_segments";
            control.write(path, n.to_string().as_bytes()).unwrap();
        };
        let held = hold_some(&fs);
        assert!(held >= 4, "{held}");
        limit(held);
        assert!(!due(&fs), "{held}");
        limit(held - 1);
        assert!(due(&fs), "{held}");
        assert_eq!(fs.segments().counts().prefree, 0);
        fs.close().unwrap();
    });
}

/// Roll-forward recovery knows nothing of what was freed, so all that was there and all that came must fit.
#[test]
fn no_room_to_recover_what_was_written() {
    simulated(|| {
        let fs = open("background_gc=off,nodiscard", LARGE);
        let counts = || fs.space.counts();
        file(&fs, "file");
        // A block that comes, and goes again.
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

/// Does something `act` until there are so many of one kind that a checkpoint is due; it is due then, and was not
/// before.
fn bring(options: &str, busy: bool, count: fn(&F2fs) -> u64, prepare: fn(&F2fs) -> Act) {
    let fs = open(&format!("background_gc=off,{options}"), SMALL);
    // Nobody else looks.
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
    // Nothing is under way now.
    assert!(due(&fs));
    fs.close().unwrap();
}

/// Changes something more, the nth time.
type Act = Box<dyn Fn(&F2fs, u64)>;

fn file(fs: &F2fs, name: &str) -> InodeNo {
    let made = fs.mknod(&Cx::default(), fs.root(), name.as_bytes(), 0o100_644, 0);
    made.unwrap().ino
}

/// A block in a place that a node of its own names.
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

/// Long names of one file, in one directory.
fn one_name_each(fs: &F2fs) -> Act {
    let linked = file(fs, "linked");
    Box::new(move |fs, n| {
        let name = format!("{n:0250}");
        fs.link(&Cx::default(), linked, fs.root(), name.as_bytes())
            .unwrap();
    })
}

/// Other attributes of files that are there already.
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

/// Each for itself; half as many more while an operation is under way.
#[test]
fn many_nodes_or_blocks_of_directories_or_inodes() {
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
