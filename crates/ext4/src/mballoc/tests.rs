//! Where blocks and inodes are allocated, and the counts that follow.

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::{FileBlock, InodeNo, IoTag};

use super::*;
use crate::disk::Ino;
use crate::fs::Ext4;
use crate::pins::Pins;
use crate::test_world::{ROOT, World};
use crate::txn::Handle;

mod tables;
mod volume;

/// Blocks in a group of these volumes.
const GROUP: u32 = 1024;
/// The number of groups.
const GROUPS: u32 = 16;

/// A volume of 16 groups. Those without a superblock copy have data blocks only: 2, 4, 6, 8 and from 10 on (where the
/// journal is not, in the middle).
fn world(options: &[&str]) -> World {
    let mut all = vec!["-t", "ext4", "-b", "1024", "-g", "1024", "-m", "0"];
    all.extend(options);
    World::make(&all, "16M")
}

fn unjournaled() -> World {
    world(&["-O", "^has_journal"])
}

/// A block of a group.
fn block(group: u32, n: u32) -> DevBlock {
    DevBlock(1 + u64::from(group * GROUP + n))
}

fn run(group: u32, n: u32, len: u32) -> Run {
    Run {
        start: block(group, n),
        len,
    }
}

/// Allocates all blocks but these.
fn fill_but(fs: &Ext4, holes: &[Run]) {
    let geo = fs.geo();
    let start = geo.first_data_block;
    let len = geo.block_range().end - start.0;
    fs.alloc.allocate_given(fs, start, len).unwrap();
    assert_eq!(fs.alloc.totals().free, 0);
    for hole in holes {
        fs.alloc.release(fs, *hole);
    }
}

#[test]
fn blocks_are_allocated_near_the_goal_and_contiguous() {
    let world = unjournaled();
    let (fs, alloc) = (&*world.fs, &world.fs.alloc);
    let holes = [run(2, 100, 40), run(2, 300, 8), run(4, 10, 64)];
    fill_but(fs, &holes);
    assert_eq!(alloc.totals().free, 112);
    let long = run(6, 0, GROUP);
    let find = |goal: DevBlock, want: u32| {
        let before = alloc.totals().free;
        let found = alloc.allocate(fs, goal, want).unwrap();
        assert_eq!(alloc.totals().free, before - u64::from(found.len));
        alloc.release(fs, found);
        assert_eq!(alloc.totals().free, before);
        found
    };
    // At the goal, if 16 blocks or the whole length are free there.
    assert_eq!(find(block(2, 100), 40), run(2, 100, 40));
    assert_eq!(find(block(2, 110), 9), run(2, 110, 9));
    assert_eq!(find(block(2, 124), 64), run(2, 124, 16));
    assert_eq!(find(block(2, 132), 8), run(2, 132, 8));
    // Else where the whole length is contiguous: behind the goal, before it in its group, in a later group, in an
    // earlier one.
    assert_eq!(find(block(2, 135), 8), run(2, 300, 8));
    assert_eq!(find(block(2, 301), 8), run(2, 100, 8));
    assert_eq!(find(block(2, 125), 64), run(4, 10, 64));
    assert_eq!(find(block(12, 0), 41), run(4, 10, 41));
    // Else where an eighth of it is.
    assert_eq!(find(block(2, 301), 65), run(2, 100, 40));
    assert_eq!(find(block(2, 200), 64 * 8), run(4, 10, 64));
    // Else anywhere.
    assert_eq!(find(block(2, 200), 65 * 8), run(2, 300, 8));
    assert_eq!(find(block(3, 5), 65 * 8), run(4, 10, 64));
    // Blocks that become free are found again, up to a whole group.
    alloc.release(fs, long);
    assert_eq!(find(block(2, 301), 65), run(6, 0, 65));
    assert_eq!(find(block(2, 301), 5000), long);
    // Goals outside the volume are the first data block.
    assert_eq!(find(DevBlock(u64::MAX), 8), run(2, 100, 8));
    assert_eq!(find(DevBlock(0), 8), run(2, 100, 8));
}

#[test]
fn a_volume_without_a_free_block_is_full() {
    let world = unjournaled();
    let (fs, alloc) = (&*world.fs, &world.fs.alloc);
    fill_but(fs, &[run(9, 77, 1)]);
    let last = alloc.allocate(fs, block(4, 0), 3).unwrap();
    assert_eq!(last, run(9, 77, 1));
    assert_eq!(alloc.allocate(fs, block(4, 0), 1), Err(FsError::NoSpace));
    alloc.release(fs, last);
    assert_eq!(alloc.allocate(fs, block(9, 77), 1), Ok(last));
}

#[test]
fn spare_blocks_are_allocated_down_to_those_kept() {
    let world = unjournaled();
    let (fs, alloc) = (&*world.fs, &world.fs.alloc);
    fill_but(fs, &[run(2, 0, 100)]);
    let spare = |want, keep| alloc.allocate_spare(fs, block(2, 0), want, keep);
    assert_eq!(spare(20, 90), Ok(run(2, 0, 10)));
    assert_eq!(spare(1, 90), Err(FsError::NoSpace));
    assert_eq!(spare(20, 60), Ok(run(2, 10, 20)));
    assert_eq!(alloc.totals().free, 70);
    assert!(alloc.with_totals(|t| t.reserve(6, 0)));
    // 6 reserved blocks, and as many for their tree.
    assert_eq!(spare(100, 50), Ok(run(2, 30, 8)));
}

#[test]
fn long_allocations_are_aligned_where_they_fit() {
    let world = unjournaled();
    let (fs, alloc) = (&*world.fs, &world.fs.alloc);
    // Device blocks of a group begin at 1 + 1024 n, so bit 15 of a group is the first at a multiple of 16.
    fill_but(fs, &[run(2, 16, 32), run(2, 100, 43), run(4, 1, 30)]);
    let find = |goal: DevBlock, want: u32| {
        let found = alloc.allocate(fs, goal, want).unwrap();
        alloc.release(fs, found);
        found
    };
    assert_eq!(find(block(2, 60), 20), run(2, 100, 20));
    alloc.set_stripe(fs.geo(), 16);
    // The first hole has 17 blocks from a multiple of 16 on, the second 32.
    assert_eq!(find(block(2, 60), 32), run(2, 111, 32));
    assert_eq!(find(block(2, 10), 18), run(2, 111, 18));
    assert_eq!(find(block(2, 10), 17), run(2, 31, 17));
    // Before the goal, and in another group.
    assert_eq!(find(block(2, 200), 17), run(2, 31, 17));
    assert_eq!(find(block(3, 0), 16), run(4, 15, 16));
    // Shorter than a stripe.
    assert_eq!(find(block(2, 60), 15), run(2, 100, 15));
    // Nowhere aligned.
    assert_eq!(find(block(2, 60), 33), run(2, 100, 33));
    assert_eq!(find(block(3, 0), 30), run(2, 111, 30));
    alloc.set_stripe(fs.geo(), 1);
    assert_eq!(find(block(2, 60), 32), run(2, 100, 32));
}

/// Marks a run used in a handle of its own.
fn mark(fs: &Ext4, run: Run) -> Result<()> {
    let mark = |handle: &mut Handle<'_>| fs.alloc.mark_used(fs, handle, run).map(drop);
    fs.txns().run(8, IoTag::default(), mark)
}

fn free_blocks(fs: &Ext4, start: DevBlock, len: u64) -> Result<()> {
    let free = |handle: &mut Handle<'_>| fs.alloc.free_blocks(fs, handle, start, len);
    fs.txns().run(8, IoTag::default(), free)
}

#[test]
fn blocks_are_marked_used_and_freed_once() {
    for world in [world(&[]), unjournaled()] {
        let (fs, alloc) = (&*world.fs, &world.fs.alloc);
        let journaled = fs.txns().is_journaled();
        let free_in = |no| alloc.group(GroupNo(no)).desc.free_clusters;
        let before = alloc.totals().free;
        let (low, high) = (run(12, 1000, 24), run(13, 0, 30));
        for part in [low, high] {
            let len = part.len.into();
            alloc.allocate_given(fs, part.start, len).unwrap();
            mark(fs, part).unwrap();
        }
        assert_eq!((free_in(12), free_in(13)), (1000, 994));
        let again = mark(fs, run(12, 999, 2));
        assert!(matches!(again, Err(FsError::Corrupt(_))), "{again:?}");
        // Marked, and unmarked in the same handle.
        let other = alloc.allocate(fs, block(12, 0), 5).unwrap();
        let undone = fs.txns().run(8, IoTag::default(), |handle| {
            alloc.mark_used(fs, handle, other)?;
            assert_eq!(free_in(12), 995);
            alloc.unmark_used(fs, handle, other, None, Some(other))
        });
        undone.unwrap();
        alloc.release(fs, other);
        // Freed over the border of two groups.
        let mut pins = Pins::default();
        alloc.pin_to_free(fs, &mut pins, low.start, 54).unwrap();
        free_blocks(fs, low.start, 54).unwrap();
        assert_eq!((free_in(12), free_in(13)), (1024, 1024));
        assert_eq!(alloc.totals().pending, if journaled { 54 } else { 0 });
        let twice = free_blocks(fs, low.start, 1);
        assert!(matches!(twice, Err(FsError::Corrupt(_))), "{twice:?}");
        // Not free before the transaction is durable.
        let taken = alloc.allocate(fs, low.start, 24).unwrap();
        assert_eq!(taken == low, !journaled);
        alloc.release(fs, taken);
        fs.sync_volume(&world.cx).unwrap();
        assert_eq!(alloc.allocate(fs, low.start, 24), Ok(low));
        alloc.release(fs, low);
        assert_eq!((alloc.totals().free, alloc.totals().pending), (before, 0));
        world.close();
    }
}

#[test]
fn blocks_of_the_volume_itself_are_not_freed() {
    let world = world(&[]);
    let fs = &*world.fs;
    let own = fs.geo().first_block_of(GroupNo(3));
    assert!(!fs.alloc.may_own(fs.geo(), own, 1), "a superblock copy");
    for (start, len) in [
        (own, 1),
        (own.plus(1), u64::MAX),
        (DevBlock(own.0 - 5), 6),
        (DevBlock(0), 1),
        (block(GROUPS, 0), 1),
    ] {
        let mut pins = Pins::default();
        for refused in [
            fs.alloc.pin_to_free(fs, &mut pins, start, len),
            free_blocks(fs, start, len),
        ] {
            assert!(matches!(refused, Err(FsError::Corrupt(_))), "{refused:?}");
        }
    }
    world.close();
}

#[test]
fn given_blocks_are_counted_once() {
    let world = unjournaled();
    let (fs, alloc) = (&*world.fs, &world.fs.alloc);
    let before = alloc.totals().free;
    alloc.allocate_given(fs, block(10, 1000), 20).unwrap();
    alloc.allocate_given(fs, block(10, 1010), 50).unwrap();
    assert_eq!(alloc.totals().free, before - 60);
    let free_in = |no| alloc.group(GroupNo(no)).free;
    assert_eq!((free_in(10), free_in(11)), (1000, 988));
    assert_eq!(alloc.allocate(fs, block(11, 0), 20), Ok(run(11, 36, 20)));
    let parts = |start, len| pieces(fs.geo(), start, len).collect::<Vec<_>>();
    let long = [
        (GroupNo(10), 1000, 24),
        (GroupNo(11), 0, GROUP),
        (GroupNo(12), 0, 7),
    ];
    assert_eq!(parts(block(10, 1000), 24 + u64::from(GROUP) + 7), long);
    assert_eq!(parts(block(10, 1000), 24), [(GroupNo(10), 1000, 24)]);
    assert_eq!(parts(block(10, 1000), 0), []);
}

#[test]
fn free_runs_of_the_least_length_in_the_range_are_trimmed() {
    let world = unjournaled();
    let (fs, alloc) = (&*world.fs, &world.fs.alloc);
    fill_but(fs, &[run(12, 0, 100), run(12, 200, 50), run(13, 3, 10)]);
    let trim = |from: DevBlock, to: DevBlock, min| {
        let trimmed = alloc.trim(fs, &world.cx, from.0..to.0, min).unwrap();
        assert_eq!(alloc.totals().free, 160, "trimmed blocks are free");
        trimmed
    };
    let (start, end) = (DevBlock(0), DevBlock(u64::MAX));
    let discards = alloc.trimmed();
    assert_eq!(trim(start, end, 0), 160);
    // At most half of the free blocks at a time: 80, 20, 50, 10.
    assert_eq!(alloc.trimmed(), discards + 4);
    for (min, blocks) in [(10, 160), (11, 150), (50, 150), (51, 100), (101, 0)] {
        assert_eq!(trim(start, end, min), blocks, "at least {min}");
    }
    assert_eq!(trim(block(12, 40), block(12, 210), 1), 70);
    assert_eq!(trim(block(12, 40), block(12, 210), 11), 60);
    assert_eq!(trim(block(12, 100), block(12, 200), 1), 0);
    assert_eq!(trim(block(12, 99), block(12, 201), 1), 2);
    assert_eq!(trim(block(13, 0), end, 1), 10);
    assert_eq!(trim(start, block(13, 5), 1), 152);
    assert_eq!(trim(block(14, 0), end, 1), 0);
}

#[test]
fn trimmed_blocks_have_no_content() {
    let world = unjournaled();
    let (fs, at) = (&*world.fs, |n| block(12, n).0 * 1024);
    for n in [99, 100, 102, 103] {
        world.device().write(at(n), &[7; 1024]);
    }
    fill_but(fs, &[run(12, 100, 3)]);
    let all = fs.alloc.trim(fs, &world.cx, 0..u64::MAX, 1);
    assert_eq!(all, Ok(3));
    let first = |n| {
        let mut byte = [0];
        world.device().read(at(n), &mut byte);
        byte[0]
    };
    assert_eq!([99, 100, 102, 103].map(first), [7, 0, 0, 7]);
}

#[test]
fn growing_files_preallocate_as_much_as_they_have() {
    let world = unjournaled();
    let (fs, alloc) = (&*world.fs, &world.fs.alloc);
    // The file's length, the blocks requested, those preallocated.
    let cases = [
        (0, 1, 3),
        (0, 3, 1),
        (0, 4, 0),
        (4, 1, 3),
        (100, 1, 99),
        (100, 30, 70),
        (100, 100, 0),
        // More than a 64th of the free space.
        (300, 1, 0),
    ];
    for (n, (at, want, kept)) in (0..).zip(cases) {
        let file = (Ino(100 + n), FileBlock(at));
        let free = alloc.totals().free;
        let run = alloc.allocate_growing(fs, file, block(12, 0), want);
        assert_eq!(run.unwrap().len, want);
        assert_eq!(alloc.preallocated_blocks(), kept, "{at}, {want}");
        assert_eq!(alloc.totals().free, free - u64::from(want));
        alloc.drop_prealloc(fs, file.0);
        assert_eq!(alloc.preallocated_blocks(), 0);
    }
    for (free, kept) in [(256, 3), (255, 0)] {
        let world = unjournaled();
        let (fs, alloc) = (&*world.fs, &world.fs.alloc);
        fill_but(fs, &[run(12, 0, free)]);
        let file = (Ino(100), FileBlock(0));
        alloc.allocate_growing(fs, file, block(12, 0), 1).unwrap();
        assert_eq!(alloc.preallocated_blocks(), kept, "{free} are free");
    }
}

#[test]
fn preallocated_blocks_continue_their_file_until_it_is_idle() {
    let world = unjournaled();
    let (fs, alloc) = (&*world.fs, &world.fs.alloc);
    let grow = |ino, at, want| {
        let file = (Ino(ino), FileBlock(at));
        alloc
            .allocate_growing(fs, file, block(12, 0), want)
            .unwrap()
    };
    let first = grow(100, 20, 1);
    assert_eq!(grow(101, 20, 1).start, first.start.plus(20));
    let free = alloc.totals().free;
    let next = Run {
        start: first.start.plus(1),
        len: 5,
    };
    assert_eq!(grow(100, 21, 5), next);
    assert_eq!(alloc.totals().free, free - 5);
    assert_eq!(alloc.preallocated_blocks(), 14 + 19);
    for _ in 0..6 {
        alloc.age_preallocs(fs);
    }
    grow(101, 21, 1);
    for _ in 0..6 {
        alloc.age_preallocs(fs);
    }
    assert_eq!(alloc.preallocated_blocks(), 14 + 18);
    alloc.age_preallocs(fs);
    assert_eq!(alloc.preallocated_blocks(), 18, "of the file used last");
    // The blocks of the other file are free.
    assert_eq!(alloc.allocate(fs, first.start.plus(6), 14).unwrap().len, 14);
    // Not the file's next block: what it has ends.
    grow(101, 4, 1);
    assert_eq!(alloc.preallocated_blocks(), 3);
}

fn group_of(fs: &Ext4, ino: InodeNo) -> u32 {
    fs.geo().group_of_inode(Ino(ino.0 as u32)).0.0
}

#[test]
fn top_directories_spread_over_groups_with_space() {
    let world = world(&["-O", "^has_journal", "-N", "512"]);
    let fs = &*world.fs;
    let before = fs.alloc.totals();
    let start = block(8, 0);
    let len = u64::from(8 * GROUP - 1);
    fs.alloc.allocate_given(fs, start, len).unwrap();
    let mut made = Vec::new();
    let mut groups = BTreeMap::<u32, u32>::new();
    for n in 0..21_u8 {
        let attr = world.mkdir(ROOT, &[b'a' + n]).unwrap();
        made.push(group_of(fs, attr.ino));
        *groups.entry(group_of(fs, attr.ino)).or_default() += 1;
    }
    let first = BTreeSet::from_iter(&made[..8]);
    assert_eq!(first.len(), 7, "one group after the other: {made:?}");
    // Group 0 has the metadata.
    assert!(groups.keys().all(|no| (1..8).contains(no)), "{groups:?}");
    assert!(
        groups.len() == 7 && groups.values().all(|n| *n <= 4),
        "{groups:?}"
    );
    let after = fs.alloc.totals();
    assert_eq!(after.dirs, before.dirs + 21);
    assert_eq!(after.free_inodes, before.free_inodes - 21);
    for (no, made) in groups {
        let desc = &fs.alloc.group(GroupNo(no)).desc;
        assert_eq!((desc.used_dirs, desc.free_inodes), (made, 32 - made));
    }
}

#[test]
fn inodes_are_near_their_directory() {
    let world = world(&["-O", "^has_journal", "-N", "512"]);
    let (fs, alloc) = (&*world.fs, &world.fs.alloc);
    let before = alloc.totals();
    let top = world.mkdir(ROOT, b"top").unwrap().ino;
    let home = group_of(fs, top);
    let below = world.mkdir(top, b"below").unwrap().ino;
    let file = world.file(top, b"file").unwrap().ino;
    assert_eq!([below, file].map(|ino| group_of(fs, ino)), [home; 2]);
    // A group with less than a quarter of the average free blocks gets no more directories.
    let quarter = || alloc.totals().free / u64::from(GROUPS) / 4;
    let free = || u64::from(alloc.group(GroupNo(home)).free);
    while free() > quarter() {
        let most = (free() - quarter()) as u32;
        alloc.allocate(fs, block(home, 0), most).unwrap();
    }
    assert_eq!(free(), quarter());
    let still = world.mkdir(top, b"still").unwrap().ino;
    assert_eq!(group_of(fs, still), home);
    assert!(free() < quarter(), "the directory has a block");
    let next = world.mkdir(top, b"next").unwrap().ino;
    assert_eq!(group_of(fs, next), home + 1);
    // Files stay until its last inode is used.
    let mut files = Vec::new();
    while alloc.group(GroupNo(home)).desc.free_inodes > 0 {
        let name = format!("f{}", files.len());
        files.push(world.file(top, name.as_bytes()).unwrap().ino);
    }
    assert_eq!(files.len(), 32 - 4);
    assert!(files.iter().all(|ino| group_of(fs, *ino) == home));
    let last = world.file(top, b"last").unwrap().ino;
    assert_eq!(group_of(fs, last), home + 1);
    // A freed number is used again.
    assert!(alloc.is_inode_used(fs, Ino(files[5].0 as u32)).unwrap());
    fs.unlink(&world.cx, top, b"f5").unwrap();
    fs.rmdir(&world.cx, top, b"next").unwrap();
    assert!(!alloc.is_inode_used(fs, Ino(files[5].0 as u32)).unwrap());
    assert_eq!(world.file(top, b"again").unwrap().ino, files[5]);
    let after = alloc.totals();
    assert_eq!(after.dirs, before.dirs + 3);
    assert_eq!(after.free_inodes, before.free_inodes - 33);
}

/// A trim looks at every group.
#[test]
fn bitmaps_are_unloaded_but_for_those_with_changes() {
    let world = World::make(&["-t", "ext4", "-b", "1024", "-g", "1024"], "40M");
    let alloc = &world.fs.alloc;
    alloc.loaded_max.store(4, Ordering::Relaxed);
    let file = world.file(ROOT, b"file").unwrap().ino;
    let fs: &dyn steadfs_vfs::FileSystem = &*world.fs;
    fs.write(&world.cx, file, 0, &[7; 3 << 20], false).unwrap();
    fs.sync_all(&world.cx).unwrap();
    fs.unlink(&world.cx, ROOT, b"file").unwrap();
    // Freed, and not yet committed: these blocks are not free.
    let pending = alloc.totals().pending;
    assert!(pending >= 3 << 10, "{pending}");
    let before = alloc.loaded.load(Ordering::Relaxed);
    let trimmed = fs.trim(&world.cx, 0, u64::MAX, 0).unwrap();
    assert!(trimmed > 20 << 20, "{trimmed}");
    let after = alloc.loaded.load(Ordering::Relaxed);
    let loaded = || {
        let groups = alloc.groups.iter();
        groups.filter(|group| group.lock().busy.is_some()).count()
    };
    assert_eq!(loaded(), after as usize);
    assert!(
        after <= before + 5,
        "{after} of {} groups",
        alloc.groups.len()
    );
    fs.sync_all(&world.cx).unwrap();
    assert_eq!(alloc.totals().pending, 0);
    world.close();
}
