//! Volumes of another size: the same files on them, and the state after an interruption at any write.

use std::sync::Arc;

use steadfs_base::{InodeNo, IoTag};
use steadfs_block::{Bio, Device, Done, Geometry, MemDevice, Op, Queue, QueueOptions};
use steadfs_rt::{Mutex, Random, Rank};
use steadfs_vfs::test_support::Tree;
use steadfs_vfs::{FileSystem, InodeFlags};

use crate::check::{self, Issue};
use crate::resize::{ResizeError, ResizeOptions, ResizeReport, resize};
use crate::test_world::{ALL, ROOT, World, fsck};

const MIB: u64 = 1 << 20;

/// A device with more zeros at its end, or less content.
fn with_size(device: &MemDevice, mib: u64) -> Arc<MemDevice> {
    let other = MemDevice::new(mib * MIB);
    let mut piece = vec![0; 1 << 20];
    for at in (0..device.geometry().size.min(mib * MIB)).step_by(1 << 20) {
        device.read(at, &mut piece);
        other.write(at, &piece);
    }
    Arc::new(other)
}

fn resize_on(
    device: Arc<dyn Device>,
    content: &MemDevice,
    size: Option<u64>,
) -> Result<ResizeReport, ResizeError> {
    let queue = Queue::new(device, QueueOptions::default());
    let options = ResizeOptions {
        size,
        keep_tables: false,
    };
    resize(&queue, content, options)
}

fn resized(device: &Arc<MemDevice>, mib: u64) -> Result<ResizeReport, ResizeError> {
    resize_on(Arc::clone(device) as _, device, Some(mib * MIB))
}

fn write(world: &World, file: InodeNo, at: u64, len: usize, random: &mut Random) {
    let bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
    world.fs.write(&world.cx, file, at, &bytes, false).unwrap();
}

/// Files of all kinds of maps, on blocks in no order.
fn fill(world: &World, files: u64, blocks: u64) {
    let mut random = Random::new(7);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let compressed = world.mkdir(dir, b"compressed").unwrap().ino;
    let flags = world.fs.flags(&world.cx, compressed).unwrap().flags;
    let flags = flags.union(InodeFlags::COMPRESSED);
    let compresses = world.fs.set_flags(&world.cx, compressed, flags).is_ok();
    for n in 0..files {
        let file = world.file(dir, format!("file {n}").as_bytes()).unwrap();
        // Inline, of some blocks, sparse.
        let at = if n % 5 == 0 { n << 15 } else { 0 };
        write(world, file.ino, at, random.below(9000), &mut random);
    }
    let large = world.file(ROOT, b"large").unwrap().ino;
    for _ in 0..blocks {
        let block = random.below(6000) as u64;
        write(world, large, block << 12, 4096, &mut random);
    }
    if compresses {
        let file = world.file(compressed, b"text").unwrap().ino;
        let text = b"words and words ".repeat(1 << 15);
        world.fs.write(&world.cx, file, 0, &text, false).unwrap();
    }
    world.fs.sync_all(&world.cx).unwrap();
    for n in (0..files).step_by(3) {
        let name = format!("file {n}");
        world.fs.unlink(&world.cx, dir, name.as_bytes()).unwrap();
    }
}

/// The files of a volume, which is judged and unmounted.
fn tree_of(device: &Arc<MemDevice>) -> Tree {
    let world = World::of(Arc::clone(device), "");
    let tree = world.tree();
    world.close();
    tree
}

#[test]
fn volumes_that_grow_and_shrink_keep_their_files() {
    let quota = format!("{ALL},quota,project_quota");
    for (features, sizes) in [("", &[1500, 128][..]), (&*quota, &[160, 2100, 128, 300])] {
        let world = World::make(features, 128);
        fill(&world, 400, 3000);
        let before = world.tree();
        let mut device = world.close();
        for &mib in sizes {
            device = with_size(&device, device.geometry().size.max(mib * MIB) / MIB);
            let report = resized(&device, mib).unwrap();
            assert_eq!(report.blocks, mib * 256);
            device = with_size(&device, mib);
            fsck(&device);
            assert!(tree_of(&device) == before, "{features}: {mib}");
        }
        // What moved is used as any other volume.
        let world = World::of(device, "");
        let dir = world.mkdir(ROOT, b"another").unwrap().ino;
        let file = world.file(dir, b"file").unwrap().ino;
        write(&world, file, 0, 5 << 20, &mut Random::new(1));
        world.close();
    }
}

/// A write or a FLUSH.
enum Event {
    Write(u64, Vec<u8>),
    Flush,
}

/// A device that records what is written.
struct Recorder {
    device: Arc<MemDevice>,
    events: Mutex<Vec<Event>>,
}

impl Device for Recorder {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        let event = match bio.op {
            Op::Write => {
                let bytes: Vec<u8> = bio.bufs.iter().flat_map(|buf| buf.to_vec()).collect();
                Some(Event::Write(bio.offset, bytes))
            }
            Op::WriteZeroes => Some(Event::Write(bio.offset, vec![0; bio.len as usize])),
            Op::Flush => Some(Event::Flush),
            Op::Read | Op::Discard => None,
        };
        self.events.lock().extend(event);
        self.device.start(bio, done);
    }
}

/// What a power cut after `count` events leaves: all that was flushed, and of the writes since those that survive.
fn cut(before: &MemDevice, events: &[Event], mut survives: impl FnMut() -> bool) -> Arc<MemDevice> {
    let device = before.copy();
    let flushed = events
        .iter()
        .rposition(|event| matches!(event, Event::Flush));
    for (n, event) in events.iter().enumerate() {
        let Event::Write(at, bytes) = event else {
            continue;
        };
        let durable = flushed.is_some_and(|flush| n < flush);
        if *at >= 8192 {
            if durable || survives() {
                device.write(*at, bytes);
            }
            continue;
        }
        // Of a superblock each sector by itself: nothing has it twice that could replace a torn one.
        for (at, sector) in (*at..).step_by(512).zip(bytes.chunks(512)) {
            if durable || survives() {
                device.write(at, sector);
            }
        }
    }
    Arc::new(device)
}

/// Asserts that fsck.f2fs finds no volume, which it would repair.
fn assert_refused_by_fsck(device: &MemDevice) {
    let file = tempfile::NamedTempFile::new().unwrap();
    device.save(file.path()).unwrap();
    let before = std::fs::read(file.path()).unwrap();
    let mut fsck = steadfs_f2fs_format::test_support::tool("fsck.f2fs");
    let out = fsck.arg("-f").arg("-y").arg(file.path()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success(), "{text}");
    assert!(std::fs::read(file.path()).unwrap() == before, "{text}");
}

/// Asserts that the volume is the old or the new one, or says how to finish it, and that it can be finished.
fn judge_cut(device: &Arc<MemDevice>, mib: u64, tree: &Tree, seen: &mut [u32; 3]) {
    let queue = Queue::new(Arc::clone(device) as _, QueueOptions::default());
    match crate::read_superblock(&queue) {
        Ok(_) => {
            seen[0] += 1;
            let report = check::check(&**device, &check::Options::default());
            let is_copy = |issue: &Issue| {
                matches!(issue, Issue::Superblock { .. } | Issue::SuperblocksDiffer)
            };
            assert!(report.issues.iter().all(is_copy), "{:?}", report.issues);
            let mounted = World::of(device.copy().into(), "ro");
            assert!(&mounted.tree() == tree);
        }
        Err(error) => {
            seen[1] += 1;
            let error = error.to_string();
            assert!(error.contains("`steadfs resize` finishes it"), "{error}");
            let report = check::check(&**device, &check::Options::default());
            assert!(report.refused.is_some());
            if seen[1] == 1 {
                assert_refused_by_fsck(device);
            }
            let copy = |at: u64| queue.read(at, 4096, IoTag::default()).unwrap();
            // Of the states of a kind that are like each other, some.
            if copy(0)[..] != copy(4096)[..] && seen[2] < 4 {
                seen[2] += 1;
                interrupt_again(device, mib);
            }
            let report = resize_on(Arc::clone(device) as _, device, None).unwrap();
            assert!(report.finished && report.blocks == mib * 256);
        }
    }
    resized(device, mib).unwrap();
    let report = check::check(&**device, &check::Options::default());
    assert!(report.is_clean(), "{:?}", report.issues);
    assert!(&World::of(Arc::clone(device), "ro").tree() == tree);
}

/// Finishes a resize of which a power cut has torn a superblock, and cuts the power again at each write of the superblocks: it
/// can be finished, or is.
fn interrupt_again(device: &Arc<MemDevice>, mib: u64) {
    let recorder = Arc::new(Recorder {
        device: Arc::new(device.copy()),
        events: Mutex::new(Rank::Leaf, Vec::new()),
    });
    let copy = Arc::clone(&recorder.device);
    resize_on(Arc::clone(&recorder) as _, &copy, None).unwrap();
    let events = std::mem::take(&mut *recorder.events.lock());
    let first = events.iter().position(is_superblock).unwrap();
    let mut random = Random::new(5);
    for n in (first..=events.len()).flat_map(|n| [n; 2]) {
        let cut = cut(device, &events[..n], || random.below(2) == 0);
        let report = resize_on(Arc::clone(&cut) as _, &cut, Some(mib * MIB)).unwrap();
        assert!(report.is_unchanged() && report.blocks == mib * 256);
    }
}

fn is_superblock(event: &Event) -> bool {
    matches!(event, Event::Write(at, _) if *at < 8192)
}

/// Resizes, and judges what an interruption after each write leaves; of the many writes to free blocks only some.
fn interrupt(before: &Arc<MemDevice>, mib: u64, tree: &Tree) {
    let recorder = Arc::new(Recorder {
        device: Arc::new(before.copy()),
        events: Mutex::new(Rank::Leaf, Vec::new()),
    });
    let device = Arc::clone(&recorder.device);
    let report = resize_on(Arc::clone(&recorder) as _, &device, Some(mib * MIB)).unwrap();
    assert!(report.moved > 0);
    let events = std::mem::take(&mut *recorder.events.lock());
    let marks = events.iter().position(is_superblock).unwrap();
    let (mut random, mut seen) = (Random::new(3), [0; 3]);
    let early = (0..marks).step_by(marks / 12 + 1);
    let late = marks..=events.len();
    for n in early.chain(late) {
        for share in 0..3 {
            let device = cut(before, &events[..n], || random.below(2) < share);
            judge_cut(&device, mib, tree, &mut seen);
        }
    }
    assert!(seen[0] > 30 && seen[1] > 15 && seen[2] > 0, "{seen:?}");
}

#[test]
fn an_interrupted_resize_is_undone_or_finished() {
    let world = World::make("extra_attr,inode_checksum,sb_checksum", 64);
    fill(&world, 60, 800);
    let tree = world.tree();
    interrupt(&with_size(&world.close(), 1100), 1100, &tree);
    // Of this one the data lies in the middle.
    let world = World::make_with("", 300, "alloc_mode=default");
    fill(&world, 60, 4000);
    let tree = world.tree();
    interrupt(&world.close(), 100, &tree);
}

#[test]
fn what_is_refused_stays_as_it_was() {
    let world = World::make_with("", 128, "alloc_mode=default");
    fill(&world, 60, 4000);
    let pinned = world.lookup(ROOT, b"large").unwrap().ino;
    world.pin_where_it_lies(pinned);
    let refused = |device: &Arc<MemDevice>, mib: u64, why: &str| {
        let before = device.to_bytes();
        let error = resized(device, mib).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        before == device.to_bytes()
    };
    let used = Arc::new(MemDevice::from_bytes(&world.bytes()));
    assert!(refused(&used, 120, "was not unmounted: mount it once"));
    let device = world.close();
    assert!(refused(&device, 200, "does not fit the device"));
    assert!(refused(&device, 20, "the new size is too small"));
    assert!(refused(&device, 56, "blocks in use"));
    // Other blocks may have been copied to free places before.
    refused(&device, 75, "the pinned file large (inode");
    fsck(&device);
    // A superblock that lost its second copy gets it back, also where nothing else is to do.
    device.write(4096, &[0; 4096]);
    assert!(resized(&device, 128).unwrap().is_unchanged());
    fsck(&device);
    // The root's inode is damaged.
    let layout = crate::read_superblock(&Queue::new(device.clone(), QueueOptions::default()));
    let main = u64::from(layout.unwrap().layout().main_start) << 12;
    device.write(main, &[0; 512 * 4096]);
    assert!(refused(&device, 100, "repair it with fsck.f2fs first"));
}
