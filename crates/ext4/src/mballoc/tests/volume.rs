//! Counts and descriptors of a volume, given inodes, discards of freed blocks.

use steadfs_vfs::FileKind;

use super::*;
use crate::disk::group_desc::INODE_ZEROED;
use crate::options::MountOptions;

#[test]
fn a_new_volume_counts_what_it_has() {
    let world = world(&["-O", "^has_journal,^resize_inode", "-N", "512"]);
    let (fs, alloc) = (&*world.fs, &world.fs.alloc);
    let totals = alloc.totals();
    // 11 inodes are in use, those of the root directory and lost+found among them.
    assert_eq!((totals.free_inodes, totals.dirs), (512 - 11, 2));
    let all = fs.geo().block_range();
    let own = all
        .clone()
        .filter(|at| !alloc.may_own(fs.geo(), DevBlock(*at), 1));
    assert_eq!(own.count() as u64, alloc.own_blocks());
    // The root directory has a block, lost+found has 12.
    let blocks = all.end - all.start;
    assert_eq!(totals.free, blocks - alloc.own_blocks() - 13);
    assert_eq!((totals.pending, totals.reserved), (0, 0));
}

#[test]
fn freed_blocks_are_discarded_if_that_is_enabled() {
    for (discard, byte) in [(true, 0), (false, 7)] {
        let world = world(&[]);
        let fs = &*world.fs;
        fs.alloc.set_discard(discard);
        let part = run(12, 100, 2);
        fs.alloc.allocate_given(fs, part.start, 2).unwrap();
        mark(fs, part).unwrap();
        world.device().write(part.start.0 * 1024, &[7; 2048]);
        free_blocks(fs, part.start, 2).unwrap();
        let at = |n| {
            let mut found = [1];
            world.device().read((part.start.0 + n) * 1024, &mut found);
            found[0]
        };
        assert_eq!([at(0), at(1)], [7, 7], "before the commit");
        fs.sync_volume(&world.cx).unwrap();
        assert_eq!([at(0), at(1)], [byte; 2]);
        world.close();
    }
}

/// Inode `index` of group 12, in a volume with 32 inodes, 8 blocks, in each group.
fn inode(index: u32) -> Ino {
    Ino(12 * 32 + 1 + index)
}

fn allocate_inode(fs: &Ext4, ino: Ino) -> Result<()> {
    let kind = FileKind::Regular;
    fs.txns().run(16, IoTag::default(), |handle| {
        fs.alloc.allocate_given_inode(fs, handle, ino, kind)
    })
}

#[test]
fn slots_before_a_given_inode_are_cleared_unless_mkfs_has_done_it() {
    for (lazy, clears) in [("lazy_itable_init=1", true), ("lazy_itable_init=0", false)] {
        let world = world(&["-O", "^has_journal", "-N", "512", "-E", lazy]);
        let (fs, alloc) = (&*world.fs, &world.fs.alloc);
        let zeroed = alloc.group(GroupNo(12)).desc.flags & INODE_ZEROED != 0;
        assert_eq!(zeroed, !clears);
        let table = alloc.inode_table(GroupNo(12)).unwrap().0 * 1024;
        if clears {
            world.device().write(table, &[7; 8 << 10]);
        }
        let to_clear = |index| alloc.slots_to_clear(fs, inode(index));
        let cleared = |of: [u32; 4]| if clears { of } else { [1; 4] };
        assert_eq!([0, 1, 4, 9].map(to_clear), cleared([1, 2, 2, 4]));
        let used = alloc.totals().free_inodes;
        allocate_inode(fs, inode(9)).unwrap();
        assert_eq!(alloc.totals().free_inodes, used - 1);
        assert!(alloc.is_inode_used(fs, inode(9)).unwrap());
        for index in 0..9 {
            let (slots, at) = fs.inode_slot(inode(index), IoTag::default()).unwrap();
            assert_eq!(slots.data()[at..at + 256], [0; 256], "slot {index}");
            assert!(!alloc.is_inode_used(fs, inode(index)).unwrap());
        }
        // Those of the next one begin behind it.
        assert_eq!([10, 11, 14, 19].map(to_clear), cleared([1, 2, 2, 4]));
    }
}

#[test]
fn new_inodes_are_made_without_reading_blocks_that_were_never_used() {
    let lazy = [
        "-O",
        "^has_journal",
        "-N",
        "512",
        "-E",
        "lazy_itable_init=1",
    ];
    let world = world(&lazy);
    let fs = &*world.fs;
    let table = fs.alloc.inode_table(GroupNo(12)).unwrap().0;
    world.device().write(table * 1024, &[7; 8 << 10]);
    let new_inode = || {
        let made = fs.txns().run(16, IoTag::default(), |handle| {
            let mut pins = Pins::default();
            let kind = FileKind::Regular;
            fs.alloc
                .new_inode_in(fs, handle, GroupNo(12), kind, &mut pins)
        });
        made.unwrap().unwrap()
    };
    for index in 0..5 {
        assert_eq!(new_inode(), inode(index));
    }
    // Both blocks are zeros, and nothing was read ahead.
    for index in 0..8 {
        let (slots, at) = fs.inode_slot(inode(index), IoTag::default()).unwrap();
        assert_eq!(slots.data()[at..at + 256], [0; 256], "slot {index}");
    }
    assert!(!fs.meta().is_cached(DevBlock(table + 2)));
    // A descriptor that has too few inodes in use does not hide the others.
    allocate_inode(fs, inode(13)).unwrap();
    fs.meta().forget(DevBlock(table + 3));
    world.device().write((table + 3) * 1024, &[9; 1024]);
    fs.alloc.group(GroupNo(12)).desc.itable_unused = 32;
    for index in 5..13 {
        assert_eq!(new_inode(), inode(index));
    }
    let (slots, at) = fs.inode_slot(inode(13), IoTag::default()).unwrap();
    assert_eq!(slots.data()[at..at + 256], [9; 256]);
}

#[test]
fn a_given_inode_must_be_free() {
    let world = world(&["-O", "^has_journal", "-N", "512"]);
    let fs = &*world.fs;
    allocate_inode(fs, inode(2)).unwrap();
    let again = allocate_inode(fs, inode(2));
    assert!(matches!(again, Err(FsError::Corrupt(_))), "{again:?}");
    // Free in the bitmap, but with links in its slot.
    allocate_inode(fs, inode(5)).unwrap();
    let (slots, at) = fs.inode_slot(inode(3), IoTag::default()).unwrap();
    let linked = fs.txns().run(1, IoTag::default(), |handle| {
        handle.write(&slots)?[at + 26] = 1;
        Ok::<_, FsError>(())
    });
    linked.unwrap();
    let linked = allocate_inode(fs, inode(3));
    assert!(matches!(linked, Err(FsError::Corrupt(_))), "{linked:?}");
}

#[test]
fn corrupt_descriptors_of_two_blocks_are_read_from_copies() {
    // 40 groups have their descriptors in three blocks.
    let options = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-g",
        "512",
        "-O",
        "^has_journal",
    ];
    let image = crate::disk::test_images::Image::make(&options, "20M");
    let device = image.device();
    let tables = |list: &str| {
        let options = MountOptions::parse(list).unwrap();
        let sizes = crate::CacheSizes::of(8 << 20);
        let (fs, _) = Ext4::open(device.clone(), options, sizes)?;
        let tables = (0..40).map(|no| fs.alloc.inode_table(GroupNo(no)));
        tables.collect::<Result<Vec<_>>>()
    };
    let whole = tables("rw").unwrap();
    assert_eq!(tables("ro").as_ref(), Ok(&whole));
    for no in [3, 20, 39] {
        let at = 2048 + no * 64 + 8;
        let mut byte = [0];
        device.read(at, &mut byte);
        device.write(at, &[byte[0] ^ 0x10]);
    }
    assert_eq!(tables("ro"), Ok(whole));
    assert!(matches!(tables("rw"), Err(FsError::Corrupt(_))));
}
