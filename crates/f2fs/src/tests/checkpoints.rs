//! Checkpoints of changes made directly, judged by fsck.f2fs and by a read-only mount.

use std::sync::Arc;

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::{Buf, MemDevice};
use steadfs_vfs::{Cx, FileSystem, FsError};

use super::mount_device;
use crate::F2fs;
use crate::checkpoint::Reason;
use crate::disk::dentry::{self, DentryLayout, Entry};
use crate::disk::{self, BLOCK_SIZE, BlockAddr, Nid, hash};
use crate::format::{FormatOptions, image};
use crate::inode::Inode;
use crate::node::SlotLookup;
use crate::node::chain::{Barrier, Chain, ChainPlan, ChainUse};
use crate::segment::Purpose;
use crate::space::Need;
use crate::test_world::{ROOT, World, fsck};

/// Mounts a volume for direct changes.
pub(super) fn writable(device: &Arc<MemDevice>) -> Arc<F2fs> {
    let fs = mount_device(device).unwrap();
    fs.read_segments(IoTag::default()).unwrap();
    assert!(fs.stop_state.become_writable());
    fs
}

/// Creates a file of `blocks` blocks in the root directory, each step as one operation.
pub(super) fn make_file(fs: &F2fs, name: &[u8], blocks: u64) -> Arc<Inode> {
    let tag = IoTag::default();
    let need = |blocks, nodes| Need { blocks, nodes };
    fs.space.reserve(need(0, 1), false).unwrap();
    let change = fs.change().unwrap();
    let core = |_, _: &mut [u8]| disk::Inode {
        mode: 0o100_644,
        links: 1,
        blocks: 1,
        size: blocks * BLOCK_SIZE as u64,
        parent: Nid::ROOT,
        name: name.to_vec(),
        ..disk::Inode::default()
    };
    let inode = fs.new_inode(&change, (None, 0), core, tag).unwrap();
    let root = fs.inode(Nid::ROOT, tag).unwrap();
    let mut root_core = root.core.write();
    fs.mark_dirty(&change, &root, tag).unwrap();
    let SlotLookup::Slot(slot) = fs.find_slot(&root, &root_core, 0, tag).unwrap() else {
        panic!("the root directory has a block");
    };
    drop(fs.nodes.change(&change, &slot.node).unwrap());
    root_core.mtime.secs += 1;
    let at = fs.addr_in(&root_core, &slot).unwrap();
    let fill = || fs.main_block(at, tag).map(|buf| buf.data());
    let insert = |bytes: &mut [u8]| {
        let layout = DentryLayout::BLOCK;
        let slot = dentry::find_free_slots(&layout, bytes, dentry::slots_for(name.len())).unwrap();
        let entry = Entry {
            slot,
            hash: hash::of_name(name),
            ino: inode.nid(),
            file_type: 1,
            name,
        };
        dentry::insert(&layout, bytes, &entry);
    };
    root.pages.edit(FileBlock(0), tag, fill, insert).unwrap();
    drop(root_core);
    drop(change);
    fs.space.reserve(need(blocks, 0), false).unwrap();
    fs.reserve_nodes(&inode, Some(0..blocks), false, tag)
        .unwrap()
        .keep();
    for block in 0..blocks {
        write_block(fs, &inode, block);
    }
    inode
}

fn content(inode: &Inode, block: u64) -> Buf {
    Buf::copy_of(&[(u64::from(inode.nid().0) * 7 + block) as u8; BLOCK_SIZE])
}

/// Writes a block's data and maps it.
pub(super) fn write_block(fs: &F2fs, inode: &Inode, block: u64) {
    let tag = IoTag::default();
    let run = fs
        .segments()
        .allocate(disk::LogType::WarmData, 1, Purpose::User)
        .unwrap();
    let at = u64::from(run.start.0) * BLOCK_SIZE as u64;
    fs.queue
        .write(at, vec![content(inode, block)], tag)
        .unwrap();
    let change = fs.change().unwrap();
    let mut core = inode.core.write();
    let slot = fs.make_slot(&change, inode, &mut core, block, tag).unwrap();
    fs.segments().set_valid(run.start, slot.owner());
    fs.set_slot(&change, inode, &mut core, &slot, run.start, tag)
        .unwrap();
}

pub(super) fn check_file(fs: &F2fs, name: &[u8], blocks: u64) {
    let cx = Cx::default();
    let attr = fs.lookup(&cx, fs.root(), name).unwrap();
    assert_eq!(attr.size, blocks * BLOCK_SIZE as u64);
    let inode = fs.by_number(attr.ino, IoTag::default()).unwrap();
    for block in 0..blocks {
        let data = fs.read(&cx, attr.ino, block * BLOCK_SIZE as u64, BLOCK_SIZE);
        assert_eq!(data.unwrap().to_vec()[..], content(&inode, block)[..]);
    }
}

#[test]
fn files_reach_the_device_with_each_checkpoint() {
    let device = image(200 << 20, &FormatOptions::default()).unwrap();
    let fs = writable(&device);
    let tag = IoTag::default();
    assert!(!fs.has_changed());
    fs.checkpoint(Reason::Sync, tag).unwrap();
    assert_eq!(fs.checkpoints.written(), 0, "nothing changed");
    let mut files = Vec::new();
    for round in 0..6u64 {
        for n in 0..round * 6 {
            let name = format!("file {round} {n}");
            // Some files have direct nodes.
            let blocks = if n == 3 { 950 + round } else { n % 3 };
            make_file(&fs, name.as_bytes(), blocks);
            files.push((name, blocks));
        }
        fs.checkpoint(Reason::Sync, tag).unwrap();
        fs.segments().check();
        let image = Arc::new(device.copy());
        fsck(&image);
        let reader = mount_device(&image).unwrap();
        for (name, blocks) in &files {
            check_file(&reader, name.as_bytes(), *blocks);
        }
    }
    assert_eq!(fs.checkpoints.written(), 5);
    for (name, blocks) in &files {
        check_file(&fs, name.as_bytes(), *blocks);
    }
    // An unmount's checkpoint has the node summaries, and another mount continues from there.
    fs.checkpoint(Reason::Unmount, tag).unwrap();
    fsck(&device);
    let fs = writable(&device);
    make_file(&fs, b"after", 2000);
    let inode = fs
        .lookup(&Cx::default(), fs.root(), b"file 3 3")
        .unwrap()
        .ino;
    let inode = fs.by_number(inode, tag).unwrap();
    for block in (0..950).step_by(7) {
        write_block_again(&fs, &inode, block);
    }
    fs.checkpoint(Reason::Unmount, tag).unwrap();
    fsck(&device);
    let reader = mount_device(&device).unwrap();
    check_file(&reader, b"after", 2000);
    check_file(&reader, b"file 3 3", 953);
}

fn write_block_again(fs: &F2fs, inode: &Inode, block: u64) {
    let before = fs.space.counts();
    let old = fs.slot(inode, block, IoTag::default()).unwrap();
    write_block(fs, inode, block);
    assert!(!fs.segments().is_valid(old) && old != BlockAddr::NULL);
    assert_eq!(fs.space.counts(), before);
}

/// A file's chain, if the file is dirty.
pub(super) fn chain_of<'f>(fs: &'f F2fs, inode: &'f Inode, barrier: Barrier) -> Option<Chain<'f>> {
    let by = ChainUse {
        barrier,
        caller: None,
        tag: IoTag::default(),
    };
    match fs.place_chain(inode, by).unwrap() {
        ChainPlan::Chain(chain) => Some(chain),
        ChainPlan::Clean => None,
        ChainPlan::NeedsCheckpoint(reason) => panic!("{}", reason.name()),
    }
}

#[test]
fn roll_forward_recovers_complete_chains_only() {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let fs = writable(&device);
    let tag = IoTag::default();
    let old = make_file(&fs, b"old", 1000);
    fs.checkpoint(Reason::Sync, tag).unwrap();
    let sync = |inode: &Inode, how| {
        let chain = chain_of(&fs, inode, how).expect("something changed");
        fs.write_chains(chain, Vec::new(), how, tag).unwrap();
    };
    // A new file, whose name recovery creates, and blocks of an old one in two nodes.
    let new = make_file(&fs, b"new", 930);
    sync(&new, Barrier::Ordered);
    assert!(chain_of(&fs, &new, Barrier::Flush).is_none());
    // After the dentry mark a chain without the inode is enough.
    write_block(&fs, &new, 925);
    let last = fs.slot(&new, 925, tag).unwrap();
    sync(&new, Barrier::Ordered);
    let copy = Arc::new(device.copy());
    let reader = mount_device(&copy).unwrap();
    check_file(&reader, b"new", 930);
    let ino = reader
        .lookup(&Cx::default(), reader.root(), b"new")
        .unwrap();
    let ino = reader.by_number(ino.ino, tag).unwrap();
    assert_eq!(reader.slot(&ino, 925, tag).unwrap(), last);
    write_block(&fs, &old, 5);
    write_block(&fs, &old, 990);
    let found = |blocks: u64| {
        let copy = Arc::new(device.copy());
        fsck(&copy);
        let reader = mount_device(&copy).unwrap();
        check_file(&reader, b"old", 1000);
        check_file(&reader, b"new", 930);
        let inode = reader
            .lookup(&Cx::default(), reader.root(), b"old")
            .unwrap()
            .ino;
        let inode = reader.by_number(inode, tag).unwrap();
        (0..1000)
            .filter(|n| reader.slot(&inode, *n, tag) == fs.slot(&old, *n, tag))
            .count() as u64
            == blocks
    };
    assert!(found(998), "not synced yet");
    sync(&old, Barrier::Flush);
    assert!(found(1000));
    assert!(chain_of(&fs, &old, Barrier::Flush).is_none());
    // A chain without its mark is ignored, and does not end the chain for later ones.
    write_block(&fs, &old, 7);
    let chain = chain_of(&fs, &old, Barrier::None).unwrap();
    write_block(&fs, &new, 3);
    assert!(found(999));
    fs.write_chains(chain, Vec::new(), Barrier::None, tag)
        .unwrap();
    sync(&new, Barrier::Ordered);
    assert!(found(1000));
    // After a checkpoint no chain is needed.
    fs.checkpoint(Reason::Sync, tag).unwrap();
    assert!(found(1000));
    assert_eq!(fs.writeback.dirty_bytes(), 0);
}

#[test]
fn truncation_frees_everything_in_bounded_steps() {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let fs = writable(&device);
    let tag = IoTag::default();
    let inode = make_file(&fs, b"sparse", 3);
    let before = fs.space.counts();
    let fanout = inode.core.read().fanout(&fs.layout);
    let (own, direct) = (u64::from(fanout.inode), u64::from(fanout.direct));
    let per = u64::from(disk::node::PER_NODE);
    let behind_indirect = own + (2 + 2 * per) * direct;
    let marks = [
        own - 1,
        own,
        own + direct + 9,
        own + 2 * direct + 5,
        own + (2 + per) * direct + 8,
        behind_indirect,
        behind_indirect + per * direct,
        behind_indirect + (per + 7) * direct,
        fanout.max_blocks() - 1,
    ];
    for block in marks {
        fs.space
            .reserve(
                Need {
                    blocks: 1,
                    nodes: 0,
                },
                false,
            )
            .unwrap();
        fs.reserve_nodes(&inode, Some(block..block + 1), false, tag)
            .unwrap()
            .keep();
        write_block(&fs, &inode, block);
    }
    let full = fs.space.counts();
    assert_eq!(full.reserved, 0);
    let cut = |from: u64, limit: u32| {
        let change = fs.change().unwrap();
        let mut core = inode.core.write();
        fs.truncate_nodes(&change, &inode, &mut core, from, limit, tag)
            .unwrap()
            == from
    };
    assert!(!cut(behind_indirect + 1, 2), "two nodes of three");
    assert!(cut(behind_indirect + 1, 2));
    let named = |block| fs.slot(&inode, block, tag).unwrap() != BlockAddr::NULL;
    assert_eq!(marks.map(named).iter().filter(|x| **x).count(), 6);
    fs.checkpoint(Reason::Sync, tag).unwrap();
    assert_eq!(fs.space.counts().freed_nodes, 0);
    let copy = Arc::new(device.copy());
    fsck(&copy);
    assert!(cut(own + direct, 100));
    assert_eq!(marks.map(named).iter().filter(|x| **x).count(), 2);
    assert!(cut(3, 100));
    fs.checkpoint(Reason::Unmount, tag).unwrap();
    let after = fs.space.counts();
    assert_eq!((after.before, after.taken), (after.valid_blocks, 0));
    let since = crate::space::Counts {
        before: before.before,
        taken: before.taken,
        ..after
    };
    assert_eq!(since, before);
    fs.segments().check();
    fsck(&device);
}

#[test]
fn a_writable_mount_applies_roll_forward() {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let fs = writable(&device);
    let tag = IoTag::default();
    let old = make_file(&fs, b"old", 1000);
    fs.checkpoint(Reason::Sync, tag).unwrap();
    let new = make_file(&fs, b"new", 930);
    for (block, file) in [(5, &old), (990, &old)] {
        write_block(&fs, file, block);
    }
    for file in [&new, &old] {
        let chain = chain_of(&fs, file, Barrier::Ordered).unwrap();
        fs.write_chains(chain, Vec::new(), Barrier::Ordered, tag)
            .unwrap();
    }
    // Without an fsync it is lost.
    write_block(&fs, &old, 6);
    let wanted: Vec<_> = (0..1000).map(|n| fs.slot(&old, n, tag).unwrap()).collect();
    let copy = Arc::new(device.copy());
    for (round, files) in [2, 0].into_iter().enumerate() {
        let options = crate::MountOptions::parse("").unwrap();
        let sizes = crate::CacheSizes::of(64 << 20);
        let opened = F2fs::open(Arc::clone(&copy) as _, options, sizes);
        let (fs, report) = opened.unwrap();
        assert_eq!(report.recovered_files, files, "round {round}");
        check_file(&fs, b"old", 1000);
        check_file(&fs, b"new", 930);
        let found = fs.lookup(&Cx::default(), fs.root(), b"old").unwrap().ino;
        let found = fs.by_number(found, tag).unwrap();
        let same = (0..1000).filter(|n| fs.slot(&found, *n, tag) == Ok(wanted[*n as usize]));
        assert_eq!(same.count(), 999);
        fs.segments().check();
        // A crash right after recovery, then an unmount.
        fsck(&copy.copy());
        if round == 1 {
            fs.unmount().unwrap();
            fsck(&copy);
        } else {
            fs.join_tasks();
        }
    }
}

/// The kernel may write a block twice after a checkpoint, for two files: the later file has it.
#[test]
fn roll_forward_leaves_a_block_mapped_twice_to_the_later_file() {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let fs = writable(&device);
    let tag = IoTag::default();
    let [first, second] = [&b"first"[..], b"second"].map(|name| make_file(&fs, name, 1));
    fs.checkpoint(Reason::Sync, tag).unwrap();
    for file in [&first, &second] {
        write_block(&fs, file, 0);
        let chain = chain_of(&fs, file, Barrier::Ordered).unwrap();
        fs.write_chains(chain, Vec::new(), Barrier::Ordered, tag)
            .unwrap();
    }
    // The second file's node in the chain maps the first file's block, too.
    let twice = fs.slot(&first, 0, tag).unwrap();
    let node = fs.nat.entry(second.nid(), tag).unwrap().addr;
    let at = u64::from(node.0) * BLOCK_SIZE as u64;
    let mut block = fs.queue.read(at, BLOCK_SIZE, tag).unwrap();
    let bytes = block.make_mut();
    second.core.write().set_addr(&fs.layout, bytes, 0, twice);
    disk::inode::seal(&fs.layout, bytes);
    let copy = Arc::new(device.copy());
    copy.write(at, &block);
    let options = crate::MountOptions::parse("").unwrap();
    let sizes = crate::CacheSizes::of(64 << 20);
    let (fs, report) = F2fs::open(Arc::clone(&copy) as _, options, sizes).unwrap();
    assert_eq!(report.recovered_files, 2);
    let slots = [first, second].map(|file| {
        let inode = fs.inode(file.nid(), tag).unwrap();
        fs.slot(&inode, 0, tag).unwrap()
    });
    assert_eq!(slots, [disk::BlockAddr::NULL, twice]);
    fs.segments().check();
    fsck(&copy.copy());
    fs.join_tasks();
}

/// A checkpoint that has space for some dirty blocks only: the caller gets the error, and nothing of the volume is
/// lost, neither by a power cut then nor when there is space again.
#[test]
fn a_checkpoint_without_space_loses_nothing() {
    // In simulated time: no background task interferes.
    steadfs_rt::sim::run(steadfs_rt::sim::Config::new(2), checkpoint_without_space);
}

fn checkpoint_without_space() {
    let world = World::make("", 64);
    let make = |name: String| world.file(ROOT, name.as_bytes()).unwrap().ino;
    for n in 0..50 {
        make(format!("old{n}"));
    }
    world.fs.sync_all(&world.cx).unwrap();
    let synced: Vec<_> = (0..5).map(|n| make(format!("synced{n}"))).collect();
    for ino in synced {
        world
            .fs
            .write(&world.cx, ino, 0, &[5; 5000], false)
            .unwrap();
        world.fs.fsync(&world.cx, ino, false).unwrap();
    }
    let written = world.fs.checkpoints.written();
    // More than the warm node curseg can hold in its segment.
    for n in 0..900 {
        make(format!("new{n}"));
    }
    assert_eq!(
        world.fs.checkpoints.written(),
        written,
        "no background checkpoint"
    );
    let segments = world.fs.segments();
    let held: Vec<_> = std::iter::from_fn(|| segments.allocate_free_run(0..u32::MAX, 1)).collect();
    assert!(!held.is_empty());
    for _ in 0..3 {
        let result = world.fs.checkpoint(Reason::Sync, world.cx.tag);
        assert_eq!(result, Err(FsError::NoSpace));
        assert_eq!(world.fs.abort_cause(), None);
        segments.check();
    }
    let crashed = World::of(Arc::new(MemDevice::from_bytes(&world.bytes())), "");
    for name in ["old0", "old49", "synced0", "synced4"] {
        crashed.lookup(ROOT, name.as_bytes()).unwrap();
    }
    assert_eq!(crashed.lookup(ROOT, b"synced3").unwrap().size, 5000);
    assert_eq!(crashed.lookup(ROOT, b"new0"), Err(FsError::NotFound));
    crashed.close();
    for run in held {
        segments.release(run);
    }
    world.fs.checkpoint(Reason::Sync, world.cx.tag).unwrap();
    segments.check();
    world.lookup(ROOT, b"new899").unwrap();
    world.judge_now();
    world.reopen().close();
}
