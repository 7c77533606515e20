//! Crafted fast commits behind a real log: valid ones are applied and judged by e2fsck, all others are errors.

mod written;

use std::sync::Arc;

use steadfs_base::{InodeNo, IoTag, Tid};
use steadfs_block::{FaultDevice, MemDevice, Op, Queue, QueueOptions};
use steadfs_jbd2::{JournalMap, Recover};
use steadfs_jbd2_format::FastCommitBuilder;
use steadfs_rt::Random;
use steadfs_vfs::{FileSystem, FsError};

use crate::disk::Ino;
use crate::disk::test_images::Image;
use crate::options::MountOptions;
use crate::remount::tests::ReadOnlyUntilAsked;
use crate::replay::replayed_view;
use crate::source::journal_map;
use crate::superblock::read_superblock;
use crate::test_world::{ROOT, World};
use crate::{CacheSizes, Ext4, MountReport};

const BLOCK: usize = 1024;
const CREATE: u16 = 3;
const LINK: u16 = 4;
const UNLINK: u16 = 5;
/// `JBD2_FEATURE_INCOMPAT_FAST_COMMIT`.
const FEATURE: u32 = 32;
/// Offsets in the journal's superblock.
const MAX_LEN: usize = 0x10;
const START: usize = 0x1C;
const INCOMPAT: usize = 0x28;
const FAST_COMMIT_BLOCKS: usize = 0x54;
const REGULAR: u16 = 0o100_644;
const DIRECTORY: u16 = 0o040_755;

/// A volume after a power cut: its log has transactions, and fast commits can be put behind it.
struct Cut {
    image: Image,
    device: MemDevice,
    map: JournalMap,
    /// The transaction that fast commits belong to.
    tid: Tid,
    /// The file `old`, of 8 written blocks, its first block, and a free run of 40 blocks.
    old: u32,
    old_start: u32,
    free: u32,
    /// A number that is not in use.
    new: u32,
}

fn queue(device: &MemDevice) -> Arc<Queue> {
    Arc::new(Queue::new(Arc::new(device.copy()), QueueOptions::default()))
}

/// A big-endian word of the journal's superblock.
fn word(block: &[u8], at: usize) -> u32 {
    let bytes = block[at..at + 4].try_into().unwrap();
    u32::from_be_bytes(bytes)
}

/// Sets the journal's feature while its log is empty, as Linux does at the first commit.
fn set_feature(image: &Image) {
    let device = image.device();
    let queue = queue(&device);
    let sb = read_superblock(&queue).unwrap();
    let (at, _) = journal_map(&queue, &sb, None).unwrap().locate(0);
    let mut block = vec![0; BLOCK];
    device.read(at.0 * BLOCK as u64, &mut block);
    assert_eq!(word(&block, START), 0, "the log is empty");
    let features = word(&block, INCOMPAT);
    assert_eq!(features & 0x18, 0, "the superblock has no checksum");
    block[INCOMPAT..INCOMPAT + 4].copy_from_slice(&(features | FEATURE).to_be_bytes());
    device.write(at.0 * BLOCK as u64, &block);
    device.save(&image.path()).unwrap();
}

fn cut() -> Cut {
    let options = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "fast_commit",
        "-J",
        "size=4",
    ];
    let image = Image::make(&options, "32M");
    set_feature(&image);
    let world = World::open(image);
    let dir = world.mkdir(ROOT, b"dir").unwrap();
    world.file(dir.ino, b"inside").unwrap();
    let gone = world.file(ROOT, b"gone").unwrap().ino;
    let old = world.file(ROOT, b"old").unwrap().ino;
    world
        .fs
        .write(&world.cx, old, 0, &[7; 8 * BLOCK], false)
        .unwrap();
    let free = world.file(ROOT, b"free").unwrap().ino;
    world
        .fs
        .write(&world.cx, free, 0, &[8; 40 * BLOCK], false)
        .unwrap();
    world.fs.sync_volume(&world.cx).unwrap();
    let start = |ino| start_of(&world.fs, ino);
    let (old_start, free_start) = (start(old), start(free));
    world.fs.unlink(&world.cx, ROOT, b"free").unwrap();
    let device = world.cut_power();
    drop(world.fs);
    let queue = queue(&device);
    let sb = read_superblock(&queue).unwrap();
    let map = journal_map(&queue, &sb, None).unwrap();
    let size = sb.geometry().block_size;
    let how = Recover::IntoMemory;
    let found = steadfs_jbd2::recover(&queue, size, &map, how, IoTag::default()).unwrap();
    let (_, last) = found.summary.range.expect("the log has transactions");
    assert!(found.fast_commits.is_empty());
    Cut {
        image: world.image,
        device: device.copy(),
        map,
        tid: last.next(),
        old: old.0 as u32,
        old_start,
        free: free_start,
        new: gone.0 as u32 + 40,
    }
}

/// The first block of a file of one extent.
fn start_of(fs: &Ext4, ino: InodeNo) -> u32 {
    let inode = fs.by_number(ino, IoTag::default()).unwrap();
    let core = inode.core.read();
    let at = fs.map_block(
        &core,
        inode.ino(),
        steadfs_base::FileBlock(0),
        IoTag::default(),
    );
    at.unwrap().expect("the block is written").0 as u32
}

impl Cut {
    /// Fast commits of the right transaction.
    fn area(&self) -> FastCommitBuilder {
        FastCommitBuilder::new(self.tid, BLOCK)
    }

    /// The volume with these fast commits behind its log.
    fn with(&self, area: &FastCommitBuilder) -> Arc<MemDevice> {
        let device = self.device.copy();
        let (at, _) = self.map.locate(0);
        let mut block = vec![0; BLOCK];
        device.read(at.0 * BLOCK as u64, &mut block);
        let first = word(&block, MAX_LEN) - word(&block, FAST_COMMIT_BLOCKS) + 1;
        for (n, block) in (0..).zip(area.finish().chunks(BLOCK)) {
            let (at, _) = self.map.locate(first + n);
            device.write(at.0 * BLOCK as u64, block);
        }
        Arc::new(device)
    }

    /// Replays into memory and to the device, which must agree; e2fsck judges the result.
    fn replay(&self, area: &FastCommitBuilder) -> World {
        let device = self.with(area);
        let before = device.to_bytes();
        let in_memory = view(&device).unwrap();
        assert!(
            device.to_bytes() == before,
            "a device that is only read is written"
        );
        let (fs, report) = mount(&device, "").unwrap();
        assert!(report.replayed_fast_commits > 0);
        fs.close().unwrap();
        assert_eq!(in_memory, report.replayed_fast_commits);
        self.image.fill(&device.to_bytes());
        let world = World::open(Image::of(&self.image.bytes()));
        world.reopen()
    }

    /// The error of a mount; the same in memory, and nothing is written.
    fn error(&self, area: &FastCommitBuilder) -> String {
        let device = self.with(area);
        let before = device.to_bytes();
        let error = mount(&device, "").err().expect("it is refused").to_string();
        assert!(
            device.to_bytes() == before,
            "a volume that is refused is written"
        );
        let in_memory = view(&device).unwrap_err().to_string();
        assert_eq!(in_memory, error);
        let (fs, report) = mount(&device, "ro,salvage").unwrap();
        assert!(!report.warnings.is_empty());
        fs.close().unwrap();
        error
    }
}

fn mount(device: &Arc<MemDevice>, options: &str) -> Result<(Arc<Ext4>, MountReport), FsError> {
    let mut options = options.to_owned();
    let salvage = options.ends_with(",salvage");
    options.truncate(options.len() - if salvage { ",salvage".len() } else { 0 });
    let mut options = MountOptions::parse(&options).unwrap();
    options.common.salvage = salvage;
    Ext4::open(Arc::clone(device) as _, options, CacheSizes::of(8 << 20))
}

fn view(device: &Arc<MemDevice>) -> Result<u64, FsError> {
    let view = replayed_view(Arc::clone(device) as _, &MountOptions::default())?;
    Ok(view.report.replayed_fast_commits)
}

/// An inode record of 160 bytes.
fn inode(mode: u16, links: u16, size: u32, generation: u32) -> Vec<u8> {
    let mut raw = vec![0; 160];
    raw[..2].copy_from_slice(&mode.to_le_bytes());
    raw[4..8].copy_from_slice(&size.to_le_bytes());
    raw[26..28].copy_from_slice(&links.to_le_bytes());
    // Mapped by extents.
    raw[32..36].copy_from_slice(&0x8_0000u32.to_le_bytes());
    raw[100..104].copy_from_slice(&generation.to_le_bytes());
    raw[128..130].copy_from_slice(&32u16.to_le_bytes());
    raw
}

/// The record of a file with its present fields.
fn present(cut: &Cut, ino: u32) -> Vec<u8> {
    let queue = queue(&cut.device);
    let over = replayed_view(Arc::clone(queue.device()), &MountOptions::default()).unwrap();
    let sb = read_superblock(&over.queue).unwrap();
    let source = crate::source::Source {
        queue: over.queue,
        overlay: None,
        super_bytes: Vec::new(),
        unreplayed: None,
        super_at: 1024,
        sb,
    };
    let (options, sizes) = (MountOptions::parse("ro").unwrap(), CacheSizes::of(1 << 20));
    let fs = Ext4::assemble(source, options, sizes, false, &mut MountReport::default()).unwrap();
    let (buf, at) = fs.inode_slot(Ino(ino), IoTag::default()).unwrap();
    buf.data()[at..at + 160].to_vec()
}

#[test]
fn names_files_and_directories_are_made() {
    let cut = cut();
    let new = cut.new;
    let mut area = cut.area();
    area.inode(new, &inode(REGULAR, 2, 3 * 1024, 5));
    area.add_range(new, 0, 3, cut.free);
    area.name(CREATE, 2, new, b"new")
        .name(LINK, 2, new, b"second");
    area.inode(new, &inode(REGULAR, 2, 3 * 1024, 5)).tail();
    area.inode(new + 1, &inode(DIRECTORY, 2, 1024, 6));
    area.name(CREATE, 2, new + 1, b"made")
        .name(LINK, new + 1, cut.old, b"link");
    area.name(UNLINK, 2, cut.old, b"old").tail();
    let world = cut.replay(&area);
    let file = world.lookup(ROOT, b"new").unwrap();
    assert_eq!((file.nlink, file.size, file.blocks), (2, 3072, 6));
    assert_eq!(world.lookup(ROOT, b"second").unwrap().ino, file.ino);
    let made = world.lookup(ROOT, b"made").unwrap();
    assert_eq!(world.names(made.ino), [b"link".to_vec()]);
    let old = world.lookup(made.ino, b"link").unwrap();
    assert_eq!((old.ino.0, old.nlink), (cut.old.into(), 1));
    assert_eq!(world.lookup(ROOT, b"old").unwrap_err(), FsError::NotFound);
    // `lost+found`, `dir` and `made`.
    assert_eq!(world.fs.getattr(&world.cx, ROOT).unwrap().nlink, 5);
    world.close();
}

#[test]
fn ranges_replace_each_other() {
    let cut = cut();
    let (old, free) = (cut.old, cut.free);
    let mut raw = present(&cut, old);
    raw[4..8].copy_from_slice(&(20u32 * 1024).to_le_bytes());
    let mut area = cut.area();
    // The end goes, the middle moves, and what was the end belongs to another place.
    area.del_range(old, 4, 4);
    area.add_range(old, 2, 1, free);
    area.add_range(old, 15, 5, free + 1);
    area.add_range(old, 4, 2, cut.old_start + 6);
    area.inode(old, &raw).tail();
    let world = cut.replay(&area);
    let attr = world.lookup(ROOT, b"old").unwrap();
    // Five extents need a block for the tree.
    assert_eq!((attr.size, attr.blocks), (20 * 1024, 2 * (11 + 1)));
    let inode = world.fs.by_number(attr.ino, world.cx.tag).unwrap();
    let core = inode.core.read();
    let map = |n| {
        let block = steadfs_base::FileBlock(n);
        let at = world
            .fs
            .map_block(&core, inode.ino(), block, world.cx.tag)
            .unwrap();
        at.map(|at| at.0 as u32)
    };
    let start = cut.old_start;
    let first: Vec<_> = (0..7).map(map).collect();
    let wanted = [start, start + 1, free, start + 3, start + 6, start + 7];
    assert_eq!(first[..6], wanted.map(Some));
    assert_eq!(
        (first[6], map(14), map(15), map(19)),
        (None, None, Some(free + 1), Some(free + 5))
    );
    drop(core);
    world.close();
}

#[test]
fn many_extents_and_names_need_blocks_of_their_own() {
    let cut = cut();
    let new = cut.new;
    let mut area = cut.area();
    area.inode(new, &inode(REGULAR, 1, 200 * 1024, 5));
    for n in 0..40u32 {
        area.add_range(new, n * 5, 1, cut.free + n);
    }
    area.name(CREATE, 2, new, b"new");
    for n in 0..300 {
        let name = format!("{n}{}", "x".repeat(n % 60));
        area.name(LINK, 2, new, name.as_bytes());
    }
    area.inode(new, &inode(REGULAR, 301, 200 * 1024, 5)).tail();
    let world = cut.replay(&area);
    // The others: `lost+found`, `dir`, `gone`, `old`.
    assert_eq!(world.names(ROOT).len(), 301 + 4);
    let attr = world.lookup(ROOT, b"new").unwrap();
    assert!(
        attr.blocks > 80,
        "an extent tree has blocks: {}",
        attr.blocks
    );
    world.close();
}

#[test]
fn what_lost_its_name_is_freed_and_its_number_used_again() {
    let cut = cut();
    let free_before = {
        let (fs, _) = mount(&Arc::new(cut.device.copy()), "").unwrap();
        let free = fs.alloc.totals().free;
        fs.close().unwrap();
        free
    };
    let mut area = cut.area();
    area.name(UNLINK, 2, cut.old, b"old");
    let world = cut.replay(area.tail());
    assert_eq!(world.fs.alloc.totals().free, free_before + 8);
    world.close();
    // The number goes to another file, which has the blocks of the first only by its own range.
    let mut area = cut.area();
    area.name(UNLINK, 2, cut.old, b"old");
    area.inode(cut.old, &inode(REGULAR, 1, 1024, 99));
    area.add_range(cut.old, 0, 1, cut.free);
    area.name(CREATE, 2, cut.old, b"other").tail();
    let world = cut.replay(&area);
    assert_eq!(world.lookup(ROOT, b"other").unwrap().blocks, 2);
    assert_eq!(world.fs.alloc.totals().free, free_before + 7);
    world.close();
    // Unnamed files: made and linked later, and made and lost.
    let mut area = cut.area();
    area.name(LINK, 2, cut.new, b"linked");
    area.add_range(cut.new, 0, 2, cut.free);
    area.inode(cut.new, &inode(REGULAR, 1, 2048, 3));
    area.add_range(cut.new + 1, 0, 2, cut.free + 2);
    area.inode(cut.new + 1, &inode(REGULAR, 0, 2048, 4)).tail();
    let world = cut.replay(&area);
    assert_eq!(world.lookup(ROOT, b"linked").unwrap().blocks, 4);
    assert_eq!(world.fs.alloc.totals().free, free_before - 2);
    world.close();
}

/// A wrong record after a valid one.
type Wrong<'a> = (&'a str, &'a dyn Fn(&mut FastCommitBuilder));

#[test]
fn records_that_contradict_the_volume_are_errors_with_their_position() {
    let cut = cut();
    let (old, new, free) = (cut.old, cut.new, cut.free);
    let file = |links| inode(REGULAR, links, 1024, 5);
    let directory = inode(DIRECTORY, 2, 1024, 6);
    let mut typeless = file(1);
    typeless[..2].fill(0);
    let mut with_attributes = file(1);
    with_attributes[104..108].copy_from_slice(&free.to_le_bytes());
    let mut vast = file(1);
    vast[108..112].fill(0xFF);
    let mut other_type = present(&cut, old);
    other_type[..2].copy_from_slice(&0o060_644u16.to_le_bytes());
    let mut other_form = present(&cut, old);
    other_form[34] = 0;
    let last = u32::MAX;
    let wrong: [Wrong<'_>; 27] = [
        ("inode 0", &|a| _ = a.del_range(0, 0, 1)),
        ("inode 8", &|a| _ = a.add_range(8, 0, 1, free)),
        ("not a file's", &|a| _ = a.del_range(last, 0, 1)),
        ("not a file's", &|a| _ = a.inode(last, &file(1))),
        ("not a file's", &|a| _ = a.name(LINK, last, old, b"x")),
        ("range of 0 blocks", &|a| _ = a.add_range(old, 0, 0, free)),
        ("ends at file block", &|a| {
            _ = a.add_range(old, last, 2, free)
        }),
        ("ends at file block", &|a| _ = a.del_range(old, last, 2)),
        ("no file may own", &|a| _ = a.add_range(old, 9, 1, 1)),
        ("no file may own", &|a| _ = a.add_range(old, 9, 1, last)),
        ("no file may own", &|a| _ = a.add_range(old, 9, 0x8000, 10)),
        ("in use", &|a| _ = a.add_range(old, 9, 1, cut.old_start)),
        ("only a file has ranges", &|a| {
            _ = a.add_range(2, 9, 1, free)
        }),
        ("no type", &|a| _ = a.inode(new, &typeless)),
        ("i_size", &|a| _ = a.inode(new, &vast)),
        ("attribute block", &|a| _ = a.inode(new, &with_attributes)),
        ("bytes", &|a| _ = a.inode(new, &[1; 400])),
        ("type changes", &|a| _ = a.inode(old, &other_type)),
        ("form of its content", &|a| _ = a.inode(old, &other_form)),
        ("it has names", &|a| {
            _ = a.inode(old, &inode(REGULAR, 1, 0, 77))
        }),
        ("no inode record", &|a| _ = a.name(CREATE, 2, new, b"x")),
        ("belongs to inode", &|a| {
            _ = a.inode(new, &file(1)).name(CREATE, 2, new, b"old")
        }),
        ("zero byte", &|a| _ = a.name(LINK, 2, old, b"a/b")),
        ("a name of inode", &|a| _ = a.name(LINK, 2, old, b"..")),
        ("a name of inode", &|a| _ = a.name(UNLINK, 2, 2, b"x")),
        ("has no name", &|a| _ = a.inode(new, &directory)),
        ("second name", &|a| {
            a.inode(new, &directory)
                .name(CREATE, 2, new, b"x")
                .name(CREATE, 2, new, b"y");
        }),
    ];
    for (words, add) in wrong {
        let mut area = cut.area();
        area.name(LINK, 2, old, b"valid");
        add(&mut area);
        let error = cut.error(area.tail());
        assert!(error.contains(words), "{words}: {error}");
        if words != "has no name" {
            assert!(error.contains("fast-commit block 0, byte "), "{error}");
        }
    }
}

#[test]
fn a_volume_that_is_only_read_is_refused_with_a_way_out() {
    let image = Image::make(&["-t", "ext4", "-b", "1024", "-O", "fast_commit"], "16M");
    image.debugfs("feature FEATURE_R30");
    let device = image.device();
    let mut area = FastCommitBuilder::new(Tid(9), BLOCK);
    area.del_range(12, 0, 1).tail();
    let mut scan = steadfs_jbd2_format::FastCommitScan::new(Tid(9));
    scan.block(&area.finish()[..BLOCK]).unwrap();
    let size = image.superblock().geometry().block_size;
    let refused = super::changed_blocks(device, size, None, &scan.finish())
        .unwrap_err()
        .to_string();
    for words in ["FEATURE_R30", "not supported", "e2fsck", "ro,noload"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
}

#[test]
fn random_records_never_make_the_replay_panic() {
    let cut = cut();
    let mut random = Random::new(11);
    let (mut refused, mut replayed) = (0, 0);
    for _ in 0..150 {
        let mut area = cut.area();
        for _ in 0..1 + random.below(12) {
            let inodes = [2, 11, 12, 13, cut.old, cut.old, cut.new, cut.new + 1];
            let mut ino = || inodes[random.below(inodes.len())];
            let (one, other) = (ino(), ino());
            let name: &[u8] = [&b"old"[..], b"dir", b"x", b"inside"][random.below(4)];
            let block = cut.free + random.below(6) as u32;
            match random.below(7) {
                0 => area.add_range(
                    one,
                    random.below(9) as u32,
                    1 + random.below(4) as u16,
                    block,
                ),
                1 => area.del_range(one, random.below(9) as u32, random.below(9) as u32),
                2 => area.name(CREATE, other, one, name),
                3 => area.name(LINK, other, one, name),
                4 => area.name(UNLINK, other, one, name),
                5 => area.inode(one, &inode(REGULAR, 1, 9000, 5)),
                _ => area.inode(one, &inode(DIRECTORY, 2, 1024, 6)),
            };
        }
        let device = cut.with(area.tail());
        match mount(&device, "") {
            Ok((fs, _)) => {
                fs.close().unwrap();
                replayed += 1;
            }
            Err(error) => {
                assert!(matches!(error, FsError::Corrupt(_)), "{error}");
                refused += 1;
            }
        }
    }
    assert!(
        refused > 20 && replayed > 5,
        "{refused} refused, {replayed} replayed"
    );
}

/// A second power cut at any write of the replay loses nothing.
#[test]
fn a_power_cut_in_the_replay_changes_nothing() {
    let cut = cut();
    let mut area = cut.area();
    area.inode(cut.new, &inode(REGULAR, 1, 1024, 5));
    area.add_range(cut.new, 0, 1, cut.free);
    area.name(CREATE, 2, cut.new, b"new").tail();
    for writes in 0.. {
        let device = FaultDevice::new(cut.with(&area));
        let mut left = writes;
        device.fail(move |bio| {
            let fails = bio.op != Op::Read && left == 0;
            left -= usize::from(bio.op != Op::Read && left > 0);
            fails
        });
        let options = MountOptions::parse("").unwrap();
        let opened = Ext4::open(Arc::clone(&device) as _, options, CacheSizes::of(8 << 20));
        let (fs, _) = mount(&Arc::new(device.memory.copy()), "").unwrap();
        let cx = steadfs_vfs::Cx::default();
        let new = fs.lookup(&cx, ROOT, b"new").unwrap();
        assert_eq!((new.size, new.blocks), (1024, 2), "after {writes} writes");
        fs.close().unwrap();
        if let Ok((fs, _)) = opened {
            fs.close().unwrap_err();
            assert!(writes > 8, "the replay makes more than {writes} writes");
            break;
        }
    }
}

#[test]
fn a_remount_writes_what_was_replayed_in_memory() {
    let cut = cut();
    let mut area = cut.area();
    area.inode(cut.new, &inode(DIRECTORY, 2, 1024, 6));
    area.name(CREATE, 2, cut.new, b"made").tail();
    let memory = cut.with(&area);
    let before = memory.to_bytes();
    let device = ReadOnlyUntilAsked::new(&memory, true);
    let options = MountOptions::parse("ro").unwrap();
    let (fs, _) = Ext4::open(device as _, options, CacheSizes::of(8 << 20)).unwrap();
    let cx = steadfs_vfs::Cx::default();
    let made = fs.lookup(&cx, ROOT, b"made").unwrap().ino;
    assert!(
        memory.to_bytes() == before,
        "a device that is only read is written"
    );
    fs.remount(&cx, "rw").unwrap();
    let inside = fs.mknod(&cx, made, b"inside", 0o100_644, 0).unwrap();
    fs.forget(inside.ino, 1);
    fs.close().unwrap();
    cut.image.fill(&memory.to_bytes());
    let world = World::open(Image::of(&cut.image.bytes())).reopen();
    assert_eq!(world.names(made), [b"inside".to_vec()]);
    world.close();
}
