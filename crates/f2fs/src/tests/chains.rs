//! Node chains of fsync: their marks on the device, and errors while they are planned and written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::IoTag;
use steadfs_block::{Bio, FaultDevice, MemDevice, Op};
use steadfs_vfs::{Cx, FileSystem, FsError, RenameFlags};

use super::checkpoints::{chain_of, check_file, make_file, writable, write_block};
use super::{mount_device, read_only};
use crate::checkpoint::Reason;
use crate::data::cp_reason::CpReason;
use crate::disk::node::Footer;
use crate::disk::{BLOCK_SIZE, BlockAddr, LogType, NatEntry, Nid};
use crate::format::{FormatOptions, image};
use crate::inode::Inode;
use crate::node::SlotLookup;
use crate::node::chain::{Barrier, ChainPlan, ChainUse};
use crate::segment::{Purpose, Run};
use crate::space::Need;
use crate::test_world::fsck;
use crate::{CacheSizes, F2fs};

fn volume() -> (Arc<MemDevice>, Arc<F2fs>) {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let fs = writable(&device);
    (device, fs)
}

/// A volume on a device that can fail.
pub(super) fn with_faults() -> (Arc<FaultDevice>, Arc<F2fs>) {
    let memory = image(64 << 20, &FormatOptions::default()).unwrap();
    let device = FaultDevice::new(memory);
    let sizes = CacheSizes::of(64 << 20);
    let (fs, _) = F2fs::open(Arc::clone(&device) as _, read_only(), sizes).unwrap();
    fs.read_segments(tag()).unwrap();
    assert!(fs.stop_state.become_writable());
    (device, fs)
}

fn tag() -> IoTag {
    IoTag::default()
}

fn sync(fs: &F2fs, inode: &Inode, how: Barrier) -> Result<(), FsError> {
    let chain = chain_of(fs, inode, how).expect("the file is dirty");
    fs.write_chains(chain, Vec::new(), how, tag())
}

/// A change of the inode alone.
fn touch(fs: &F2fs, inode: &Inode) {
    let change = fs.change().unwrap();
    let mut core = inode.core.write();
    fs.mark_dirty(&change, inode, tag()).unwrap();
    core.mtime.secs += 1;
}

/// The node that has the address of a file block.
fn node_of(fs: &F2fs, inode: &Inode, block: u64) -> Nid {
    let core = inode.core.read();
    match fs.find_slot(inode, &core, block, tag()).unwrap() {
        SlotLookup::Slot(slot) => slot.node.nid(),
        _ => panic!("block {block} has a slot"),
    }
}

/// The fsync mark and the dentry mark of a node on the device.
fn marks(fs: &F2fs, nid: Nid) -> (bool, bool) {
    let at = u64::from(fs.nat.entry(nid, tag()).unwrap().addr.0) * BLOCK_SIZE as u64;
    let block = fs.queue.read(at, BLOCK_SIZE, tag()).unwrap();
    let footer = Footer::parse(&block);
    assert_eq!(footer.nid, nid);
    (footer.fsync, footer.dentry)
}

/// Only the last node of a chain has the fsync mark, and only the first chain of a file that no checkpoint has creates
/// its name.
#[test]
fn the_last_node_of_a_chain_is_marked_and_names_a_new_file_once() {
    let (device, fs) = volume();
    let first = make_file(&fs, b"first", 930);
    let direct = node_of(&fs, &first, 929);
    let both = || [direct, first.nid()].map(|nid| marks(&fs, nid));
    sync(&fs, &first, Barrier::Flush).unwrap();
    assert_eq!(both(), [(false, false), (true, true)]);
    write_block(&fs, &first, 929);
    sync(&fs, &first, Barrier::Flush).unwrap();
    assert_eq!(both(), [(false, false), (true, false)]);
    fs.checkpoint(Reason::Sync, tag()).unwrap();
    // The checkpoint has the name.
    touch(&fs, &first);
    sync(&fs, &first, Barrier::Flush).unwrap();
    assert_eq!(both(), [(false, false), (true, false)]);
    // A file that is new after this checkpoint.
    let second = make_file(&fs, b"second", 1);
    sync(&fs, &second, Barrier::Ordered).unwrap();
    assert_eq!(marks(&fs, second.nid()), (true, true));
    let found = mount_device(&Arc::new(device.copy())).unwrap();
    check_file(&found, b"first", 930);
    check_file(&found, b"second", 1);
}

/// Also one of which only a checkpoint could make changes durable.
#[test]
fn a_clean_file_needs_no_checkpoint() {
    let (_, fs) = volume();
    let file = make_file(&fs, b"file", 1);
    fs.checkpoint(Reason::Sync, tag()).unwrap();
    {
        let change = fs.change().unwrap();
        let mut core = file.core.write();
        fs.mark_dirty(&change, &file, tag()).unwrap();
        core.links = 2;
    }
    let plan = |inode| {
        let by = ChainUse {
            barrier: Barrier::Flush,
            caller: None,
            tag: tag(),
        };
        fs.place_chain(inode, by).unwrap()
    };
    let needs = plan(&file);
    assert!(matches!(
        needs,
        ChainPlan::NeedsCheckpoint(CpReason::HardLinks)
    ));
    fs.checkpoint(Reason::Sync, tag()).unwrap();
    assert!(matches!(plan(&file), ChainPlan::Clean));
}

/// Whether an inode is in the last checkpoint, by its NAT entry there.
#[test]
fn only_inodes_of_the_checkpoint_need_no_name() {
    let (_, fs) = volume();
    let file = make_file(&fs, b"file", 930);
    let direct = node_of(&fs, &file, 929);
    let has = |nid| fs.is_in_checkpoint(nid, tag());
    assert_eq!(has(Nid::ROOT), Ok(true));
    assert_eq!(has(file.nid()), Ok(false), "created since");
    fs.checkpoint(Reason::Sync, tag()).unwrap();
    assert_eq!(has(file.nid()), Ok(true));
    assert_eq!(has(direct), Ok(false), "a node that is no inode");
    assert_eq!(has(Nid(fs.layout.max_nid - 1)), Ok(false), "a free id");
    // Not an id that the NAT can have: a corrupt parent's, say.
    assert_eq!(has(Nid(u32::MAX)), Ok(false));
    let old = fs.nat.entry(file.nid(), tag()).unwrap();
    let gone = NatEntry {
        addr: BlockAddr::NULL,
        ..old
    };
    fs.nat.set(&fs.change().unwrap(), file.nid(), gone);
    assert_eq!(has(file.nid()), Ok(true), "removed since");
}

/// A NAT that cannot be read is no reason to take an inode for a new one.
#[test]
fn an_unreadable_nat_fails_the_fsync() {
    let (device, fs) = with_faults();
    let file = make_file(&fs, b"file", 1);
    fs.checkpoint(Reason::Sync, tag()).unwrap();
    touch(&fs, &file);
    fs.meta.drop_unused();
    device.fail(|bio: &Bio| bio.op == Op::Read);
    // Its entry is in the journal of the checkpoint, that of this one in the NAT.
    let other = fs.is_in_checkpoint(Nid(fs.layout.max_nid - 1), tag());
    assert!(matches!(other, Err(FsError::Io(_))), "{other:?}");
}

/// The parent is looked at only to spare later checkpoints.
#[test]
fn an_unreadable_parent_fails_no_fsync() {
    let (device, fs) = with_faults();
    let cx = Cx::default();
    let dir = fs.mkdir(&cx, fs.root(), b"dir", 0o755).unwrap().ino;
    let make = |name: &[u8]| fs.mknod(&cx, dir, name, 0o100_644, 0).unwrap().ino;
    for n in 0..200 {
        make(format!("{n:0>200}").as_bytes());
    }
    let file = make(b"old");
    fs.rename(&cx, (dir, b"old"), (dir, b"new"), RenameFlags::default())
        .unwrap();
    fs.sync_all(&cx).unwrap();
    let inode = fs.by_number(dir, tag()).unwrap();
    let blocks: Vec<_> = (0..8)
        .map(|n| u64::from(fs.slot(&inode, n, tag()).unwrap().0) * BLOCK_SIZE as u64)
        .collect();
    drop(inode);
    fs.forget_clean();
    device.fail(move |bio| bio.op == Op::Read && blocks.contains(&bio.offset));
    fs.write(&cx, file, 0, b"content", false).unwrap();
    fs.fsync(&cx, file, false).unwrap();
    assert!(device.failures() > 0, "the parent was not looked at");
}

/// Leaves `left` blocks that nodes of files can be written to. Returns what was allocated.
fn use_up_nodes(fs: &F2fs, left: u32) -> Vec<Run> {
    let segments = fs.segments();
    let mut used: Vec<Run> =
        std::iter::from_fn(|| segments.allocate_free_run(0..u32::MAX, 1)).collect();
    // The last block of a segment is used only if there is another segment.
    let end = crate::disk::SEGMENT_BLOCKS - 1 - left;
    loop {
        let open = segments.curseg_rows()[LogType::WarmNode.index()].open;
        let count = end.saturating_sub(open.offset.into());
        if count == 0 {
            return used;
        }
        let run = segments.allocate(LogType::WarmNode, count, Purpose::Reserved);
        used.push(run.unwrap());
    }
}

/// Nodes that had a block are written without a mark, those of the next fsync name the file, and a file that is clustered
/// with an fsync never fails it.
#[test]
fn an_fsync_without_space_can_be_repeated() {
    let (device, fs) = volume();
    let old = make_file(&fs, b"old", 1);
    // One for the checkpoint, whose node log begins behind what is used up.
    let used = use_up_nodes(&fs, 3);
    fs.checkpoint(Reason::Sync, tag()).unwrap();
    let new = make_file(&fs, b"new", 0);
    let need = Need {
        blocks: 1,
        nodes: 0,
    };
    fs.space.reserve(need, false).unwrap();
    fs.reserve_nodes(&new, Some(929..930), false, tag())
        .unwrap()
        .keep();
    write_block(&fs, &new, 929);
    let direct = node_of(&fs, &new, 929);
    touch(&fs, &old);
    let first = chain_of(&fs, &old, Barrier::Flush).unwrap();
    let clustered = chain_of(&fs, &new, Barrier::Flush).unwrap();
    let written = fs.write_chains(first, vec![clustered], Barrier::Flush, tag());
    assert_eq!(written, Ok(()), "the other file has not called fsync");
    assert_eq!(marks(&fs, old.nid()), (true, false));
    assert_eq!(marks(&fs, direct), (false, false));
    assert_eq!(fs.nat.entry(new.nid(), tag()).unwrap().addr, BlockAddr::NEW);
    assert_eq!(sync(&fs, &new, Barrier::Flush), Err(FsError::NoSpace));
    assert_eq!(fs.abort_cause(), None);
    for run in used {
        fs.segments().release(run);
    }
    sync(&fs, &new, Barrier::Flush).unwrap();
    assert_eq!(marks(&fs, new.nid()), (true, true));
    let copy = Arc::new(device.copy());
    fsck(&copy);
    let reader = mount_device(&copy).unwrap();
    check_file(&reader, b"new", 0);
    let found = reader.inode(new.nid(), tag()).unwrap();
    assert_eq!(reader.slot(&found, 929, tag()), fs.slot(&new, 929, tag()));
}

/// Number of FLUSHes and of writes with FUA that a chain costs.
#[test]
fn a_chain_is_flushed_as_its_barrier_says() {
    let (device, fs) = with_faults();
    let file = make_file(&fs, b"file", 1);
    fs.checkpoint(Reason::Sync, tag()).unwrap();
    for (how, wanted) in [
        (Barrier::None, (0, 0)),
        (Barrier::Flush, (1, 0)),
        (Barrier::Ordered, (0, 1)),
    ] {
        let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let counted = Arc::clone(&counts);
        device.fail(move |bio| {
            counted[0].fetch_add((bio.op == Op::Flush).into(), Ordering::Relaxed);
            counted[1].fetch_add((bio.fua && bio.preflush).into(), Ordering::Relaxed);
            false
        });
        touch(&fs, &file);
        sync(&fs, &file, how).unwrap();
        let [flushes, fua] = [0, 1].map(|n: usize| counts[n].load(Ordering::Relaxed));
        assert_eq!((flushes, fua), wanted, "{how:?}");
    }
}

/// The NAT refers to a node that was not written: nothing may be acknowledged any more.
#[test]
fn a_failed_node_write_aborts_the_volume() {
    for how in [Barrier::Flush, Barrier::Ordered] {
        let (device, fs) = with_faults();
        let file = make_file(&fs, b"file", 1);
        let chain = chain_of(&fs, &file, how).unwrap();
        device.fail_writes(true);
        let written = fs.write_chains(chain, Vec::new(), how, tag());
        assert!(
            matches!(written, Err(FsError::Io(_))),
            "{how:?}: {written:?}"
        );
        let cause = fs.abort_cause().expect("the volume has aborted");
        assert!(
            cause.starts_with("a node could not be written: "),
            "{cause}"
        );
        device.fail_writes(false);
        assert_eq!(
            fs.checkpoint(Reason::Sync, tag()),
            Err(FsError::Stopped(cause))
        );
    }
}
