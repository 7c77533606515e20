//! Corruption, aborts and failed writes in `.steadfs/errors` and in the superblocks.

use std::sync::Arc;

use steadfs_base::Corruption;
use steadfs_block::{FaultDevice, MemDevice, Op};
use steadfs_vfs::{Cx, FileSystem, FsError, ShutdownMode};

use crate::CacheSizes;
use crate::disk::superblock::COPIES;
use crate::disk::{BLOCK_SIZE, Nid, Superblock};
use crate::fs::F2fs;
use crate::options::MountOptions;
use crate::test_world::{ALL, ROOT, World};

fn errors(fs: &F2fs) -> String {
    fs.show_errors()
}

/// Both superblocks, which are whole and say the same.
fn superblock(bytes: &[u8]) -> Superblock {
    let copies = COPIES.map(|at| Superblock::parse(&bytes[at as usize..]).unwrap());
    assert_eq!(copies[0].recorded_errors(), copies[1].recorded_errors());
    assert_eq!(copies[0].recorded_stops(), copies[1].recorded_stops());
    let [first, _] = copies;
    first
}

#[test]
fn damage_is_noted_and_told_again_by_later_mounts() {
    for features in ["", ALL] {
        let world = World::make(features, 64);
        let ino = world.file(ROOT, b"file").unwrap().ino;
        world.fs.sync_all(&world.cx).unwrap();
        let nid = Nid::from_vfs(ino).unwrap();
        let at = world.fs.nat.entry(nid, world.cx.tag).unwrap().addr;
        assert_eq!(errors(&world.fs), "none\n");
        let device = world.close();
        assert!(superblock(&device.to_bytes()).recorded_errors().is_empty());
        // The footer's node id.
        let place = u64::from(at.0) * BLOCK_SIZE as u64 + 4072;
        let mut good = [0; 4];
        device.read(place, &mut good);
        device.write(place, &[9; 4]);
        let world = World::of(Arc::clone(&device), "");
        assert!(matches!(
            world.lookup(ROOT, b"file"),
            Err(FsError::Corrupt(_))
        ));
        assert!(world.lookup(ROOT, b"file").is_err());
        let said = errors(&world.fs);
        assert!(said.starts_with("corruption (2 times): "), "{said}");
        assert!(
            said.ends_with("errors noted in the superblock: inconsistent_footer\n"),
            "{said}"
        );
        assert_eq!(
            superblock(&world.bytes()).recorded_errors(),
            ["inconsistent_footer"]
        );
        assert!(superblock(&world.bytes()).has_errors());
        // The volume can be written meanwhile, and says so when the damage is gone.
        world.file(ROOT, b"another").unwrap();
        world.fs.close().unwrap();
        device.write(place, &good);
        let world = World::of(device, "");
        world.lookup(ROOT, b"file").unwrap();
        assert_eq!(
            errors(&world.fs),
            "errors noted in the superblock: inconsistent_footer\n"
        );
        world.close();
    }
}

#[test]
fn what_is_only_read_is_not_written() {
    let world = World::make("", 64);
    let nid = Nid::from_vfs(world.file(ROOT, b"file").unwrap().ino).unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    let at = world.fs.nat.entry(nid, world.cx.tag).unwrap().addr;
    let device = world.close();
    device.write(u64::from(at.0) * BLOCK_SIZE as u64 + 4072, &[9; 4]);
    let before = device.to_bytes();
    let world = World::of(Arc::clone(&device), "ro");
    assert!(world.lookup(ROOT, b"file").is_err());
    assert!(errors(&world.fs).contains("corruption: "));
    world.fs.close().unwrap();
    assert!(device.to_bytes() == before);
}

#[test]
fn a_shutdown_is_counted_and_is_no_error() {
    let world = World::make("sb_checksum", 64);
    world.file(ROOT, b"file").unwrap();
    world
        .fs
        .shutdown(&world.cx, ShutdownMode::FlushLog)
        .unwrap();
    assert!(world.file(ROOT, b"later").is_err());
    let said = errors(&world.fs);
    assert_eq!(
        said,
        "stopped: shut down on request\nstops noted in the superblock: shutdown (1)\n"
    );
    assert!(world.fs.close().is_err());
    world.judge_device();
    let noted = superblock(&world.bytes());
    assert_eq!(noted.recorded_stops(), [("shutdown".to_owned(), 1)]);
    assert!(!noted.has_errors());
    let world = world.open_again();
    world.lookup(ROOT, b"file").unwrap();
    world.close();
}

fn volume(bytes: &[u8]) -> Arc<FaultDevice> {
    FaultDevice::new(Arc::new(MemDevice::from_bytes(bytes)))
}

fn mount(device: &Arc<FaultDevice>) -> Arc<F2fs> {
    let options = MountOptions::parse("").unwrap();
    let sizes = CacheSizes::of(64 << 20);
    let device = Arc::clone(device);
    F2fs::open(device as _, options, sizes).unwrap().0
}

/// Writes fail from now on, in the superblocks or behind them.
fn writes_fail(device: &FaultDevice, in_superblocks: bool) {
    device.fail(move |bio| {
        let superblock = bio.offset < 2 * BLOCK_SIZE as u64;
        bio.op == Op::Write && superblock == in_superblocks
    });
}

#[test]
fn data_that_cannot_be_written_and_a_stop_are_told() {
    let cx = Cx::default();
    let bytes = World::make("", 64).close().to_bytes();
    let device = volume(&bytes);
    let fs = mount(&device);
    let file = fs.mknod(&cx, ROOT, b"file", 0o100_644, 0).unwrap();
    fs.write(&cx, file.ino, 0, &[7; 9000], false).unwrap();
    writes_fail(&device, false);
    fs.fsync(&cx, file.ino, false).unwrap_err();
    let said = errors(&fs);
    let begin = format!("data of inode {} is not written yet: ", file.ino.0);
    assert!(said.starts_with(&begin), "{said}");
    device.fail_writes(false);
    fs.fsync(&cx, file.ino, false).unwrap();
    assert_eq!(errors(&fs), "none\n");
    fs.mkdir(&cx, ROOT, b"dir", 0o755).unwrap();
    writes_fail(&device, false);
    fs.sync_all(&cx).unwrap_err();
    let said = errors(&fs);
    assert!(said.starts_with("stopped: a checkpoint failed: "), "{said}");
    assert!(
        said.ends_with("stops noted in the superblock: write_fail (1)\n"),
        "{said}"
    );
    assert!(fs.close().is_err());
    let noted = superblock(&device.memory.to_bytes());
    assert_eq!(noted.recorded_stops(), [("write_fail".to_owned(), 1)]);
    assert!(noted.has_errors());
}

/// A volume with a file, and where the device has its inode.
fn with_a_file() -> (Vec<u8>, u64) {
    let world = World::make("", 64);
    let nid = Nid::from_vfs(world.file(ROOT, b"file").unwrap().ino).unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    let at = world.fs.nat.entry(nid, world.cx.tag).unwrap().addr;
    let place = u64::from(at.0) * BLOCK_SIZE as u64;
    (world.close().to_bytes(), place)
}

#[test]
fn a_note_that_cannot_be_written_is_told_and_tried_again() {
    for seed in 0..8 {
        steadfs_rt::sim::run(
            steadfs_rt::sim::Config::new(seed),
            note_while_superblocks_fail,
        );
    }
}

fn note_while_superblocks_fail() {
    let (mut bytes, place) = with_a_file();
    bytes[place as usize + 4072..][..4].fill(9);
    let device = volume(&bytes);
    let (fs, cx) = (mount(&device), Cx::default());
    writes_fail(&device, true);
    fs.lookup(&cx, ROOT, b"file").unwrap_err();
    let told = "the superblock could not be written: ";
    assert!(errors(&fs).contains(told), "{}", errors(&fs));
    device.fail_writes(false);
    // Not by each call that fails: a dying device would get two writes for every one.
    fs.lookup(&cx, ROOT, b"file").unwrap_err();
    assert!(errors(&fs).contains(told));
    steadfs_rt::sleep(crate::error_log::SUPERBLOCK_RETRY);
    fs.lookup(&cx, ROOT, b"file").unwrap_err();
    // The flusher looks at that time, too: if it is at it, the call has left it to it.
    let begin = steadfs_rt::now();
    while errors(&fs).contains(told) {
        assert!(
            begin.elapsed() < crate::error_log::SUPERBLOCK_RETRY,
            "{}",
            errors(&fs)
        );
        steadfs_rt::sleep(std::time::Duration::from_millis(1));
    }
    let noted = superblock(&device.memory.to_bytes());
    assert_eq!(noted.recorded_errors(), ["inconsistent_footer"]);
    fs.close().unwrap();
}

#[test]
fn an_unmount_that_cannot_note_damage_fails() {
    let (mut bytes, place) = with_a_file();
    bytes[place as usize + 4072..][..4].fill(9);
    let device = volume(&bytes);
    let fs = mount(&device);
    writes_fail(&device, true);
    fs.lookup(&Cx::default(), ROOT, b"file").unwrap_err();
    assert!(matches!(fs.close(), Err(FsError::Io(_))));
}

#[test]
fn every_structure_has_its_kind_of_damage() {
    use crate::disk::superblock::ErrorFlag;
    use crate::disk::{BlockAddr, DiskError, Structure};
    let of = |error: DiskError| ErrorFlag::of_error(&FsError::from(error));
    let kinds = [
        (Structure::Superblock, None),
        (Structure::Checkpoint, None),
        (Structure::OrphanBlock, None),
        (Structure::Nat, Some(ErrorFlag::NAT)),
        (Structure::Sit, Some(ErrorFlag::SIT)),
        (Structure::Summary, Some(ErrorFlag::SUMMARY)),
        (Structure::Node, Some(ErrorFlag::FOOTER)),
        (Structure::Inode, Some(ErrorFlag::INODE)),
        (Structure::Dentries, Some(ErrorFlag::DIRENT)),
        (Structure::Xattrs, Some(ErrorFlag::XATTR)),
        (Structure::Acl, Some(ErrorFlag::XATTR)),
        (Structure::Cluster, Some(ErrorFlag::CLUSTER)),
        (Structure::Verity, Some(ErrorFlag::VERITY_XATTR)),
    ];
    for (what, note) in kinds {
        // Whatever the words are.
        let rule = "names a node, an inode and a directory block";
        let errors = [
            DiskError::magic(what, 1),
            DiskError::checksum(what, 1, 2),
            DiskError::field(what, "block address", 1u32, rule),
            DiskError::entry(what, 1, rule).in_node(Nid(5)),
        ];
        for error in errors {
            assert_eq!(of(error.clone()), note, "{error}");
        }
        let address = DiskError::address(what, BlockAddr(7), rule).in_block(BlockAddr(8));
        assert_eq!(of(address), Some(ErrorFlag::BLOCK_ADDRESS));
    }
    assert_eq!(
        ErrorFlag::of_error(&Corruption::new("inode 4").into()),
        None
    );
}

/// A thaw writes nothing, so it succeeds; later calls report the failure, and nothing that was durable is lost.
#[test]
fn after_a_thaw_a_device_that_fails_stops_the_volume() {
    for seed in 0..8 {
        steadfs_rt::sim::run(steadfs_rt::sim::Config::new(seed), || {
            let cx = Cx::default();
            let device = FaultDevice::new(World::make("", 64).close());
            let fs = mount(&device);
            fs.mkdir(&cx, ROOT, b"before", 0o755).unwrap();
            let gone = fs.mknod(&cx, ROOT, b"gone", 0o100_644, 0).unwrap();
            fs.unlink(&cx, ROOT, b"gone").unwrap();
            let control = fs.control().unwrap();
            control.write("f2fs/freeze", b"1").unwrap();
            fs.forget(gone.ino, 1);
            writes_fail(&device, false);
            control.write("f2fs/freeze", b"0").unwrap();
            let made = fs.mkdir(&cx, ROOT, b"after", 0o755);
            let durable = made.and_then(|made| fs.fsync(&cx, made.ino, false));
            durable.unwrap_err();
            let said = errors(&fs);
            assert!(said.starts_with("stopped: a checkpoint failed: "), "{said}");
            let refused = fs.mkdir(&cx, ROOT, b"later", 0o755);
            assert!(matches!(refused, Err(FsError::Stopped(_))), "{refused:?}");
            assert!(control.write("f2fs/freeze", b"1").is_err());
            assert!(fs.close().is_err());
            device.fail_writes(false);
            let fs = mount(&device);
            fs.lookup(&cx, ROOT, b"before").unwrap();
            fs.close().unwrap();
        });
    }
}

/// While a volume is frozen not even damage is noted on its device.
#[test]
fn damage_met_while_frozen_is_noted_after_the_thaw() {
    let (mut bytes, place) = with_a_file();
    bytes[place as usize + 4072..][..4].fill(9);
    let device = volume(&bytes);
    let fs = mount(&device);
    let control = fs.control().unwrap();
    control.write("f2fs/freeze", b"1").unwrap();
    let before = device.memory.to_bytes();
    fs.lookup(&Cx::default(), ROOT, b"file").unwrap_err();
    assert!(errors(&fs).contains("corruption: "), "{}", errors(&fs));
    assert!(
        device.memory.to_bytes() == before,
        "a frozen volume was written"
    );
    control.write("f2fs/freeze", b"0").unwrap();
    fs.lookup(&Cx::default(), ROOT, b"file").unwrap_err();
    let noted = superblock(&device.memory.to_bytes());
    assert_eq!(noted.recorded_errors(), ["inconsistent_footer"]);
    fs.close().unwrap();
}

/// A library's caller whose code, or ours, panics inside an operation: the volume stops, and no checkpoint has anything
/// of it.
#[test]
fn a_panic_within_a_change_stops_the_volume() {
    let world = World::make("", 64);
    world.mkdir(ROOT, b"dir").unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    let before = world.bytes();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let inode = world.fs.inode(Nid::ROOT, world.cx.tag).unwrap();
        let change = world.fs.change().unwrap();
        world.fs.mark_dirty(&change, &inode, world.cx.tag).unwrap();
        // As a panic, without its message.
        std::panic::resume_unwind(Box::new("quietly"));
    }));
    assert!(caught.is_err());
    assert!(world.mkdir(ROOT, b"other").is_err());
    let stopped = |result: steadfs_vfs::Result<()>| {
        let cause = result.unwrap_err().to_string();
        assert!(cause.contains("internal error"), "{cause}");
    };
    stopped(world.fs.request_checkpoint(world.cx.tag));
    stopped(world.fs.sync_all(&world.cx));
    stopped(world.fs.unmount());
    assert!(world.bytes() == before);
    let world = world.open_again();
    world.mkdir(ROOT, b"other").unwrap();
    world.close();
}
