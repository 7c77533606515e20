//! Fast commits that a mounted volume writes: replayed here and by e2fsck, which must agree.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::{Device, DeviceModel, FaultDevice, MemDevice, ModelDevice};
use steadfs_jbd2::FastCommitStats;
use steadfs_rt::{Mutex, sim, spawn};
use steadfs_vfs::{Cx, FallocMode, FileSystem, RenameFlags, SetAttr, SetXattr};

use crate::disk::test_images::{Image, judge};
use crate::options::MountOptions;
use crate::test_world::{ROOT, World};
use crate::{CacheSizes, Ext4};

const OPTIONS: [&str; 8] = [
    "-t",
    "ext4",
    "-b",
    "1024",
    "-O",
    "fast_commit",
    "-J",
    "size=4",
];
const SIZE: &str = "32M";
const KEEP: RenameFlags = RenameFlags {
    no_replace: false,
    exchange: false,
    whiteout: false,
};

/// A volume with two files of 5000 bytes, all of it committed.
struct Volume {
    world: World,
    one: InodeNo,
    two: InodeNo,
}

fn volume() -> Volume {
    let world = World::make(&OPTIONS, SIZE);
    world.fs.writeback.stop();
    let file = |name: &[u8]| {
        let ino = world.file(ROOT, name).unwrap().ino;
        world
            .fs
            .write(&world.cx, ino, 0, &[1; 5000], false)
            .unwrap();
        ino
    };
    let (one, two) = (file(b"one"), file(b"two"));
    world.mkdir(ROOT, b"dir").unwrap();
    world.fs.sync_volume(&world.cx).unwrap();
    Volume { world, one, two }
}

impl Volume {
    fn stats(&self) -> FastCommitStats {
        stats(&self.world.fs)
    }

    fn commits(&self) -> u64 {
        self.world.fs.txns.journal().unwrap().stats().transactions
    }

    fn write(&self, ino: InodeNo, at: u64, len: usize) {
        let (fs, cx) = (&self.world.fs, &self.world.cx);
        assert_eq!(fs.write(cx, ino, at, &vec![2; len], false), Ok(len));
    }

    fn fsync(&self, ino: InodeNo) {
        self.world.fs.fsync(&self.world.cx, ino, false).unwrap();
    }

    /// The fsync writes a fast commit and nothing else.
    fn fsync_fast(&self, ino: InodeNo, what: &str) {
        let (fast, commits) = (self.stats().commits, self.commits());
        self.fsync(ino);
        let refused = self.stats().refused;
        assert_eq!(self.stats().commits, fast + 1, "{what}: {refused:?}");
        assert_eq!(self.commits(), commits, "{what}");
    }

    /// After a power cut now, this replay and e2fsck's show what the volume shows.
    fn judge(&self, what: &str) {
        let now = tree(&self.world.fs);
        let device = self.world.cut_power_now();
        let checked = Arc::new(repaired(&device, what));
        let (fs, report) = open(&device);
        assert!(report > 0, "{what}: fast commits were replayed");
        assert_eq!(tree(&fs), now, "{what}: replayed");
        fs.close().unwrap();
        clean(&device, what);
        let (fs, report) = open(&checked);
        assert_eq!(report, 0, "{what}: e2fsck replayed the fast commits");
        assert_eq!(tree(&fs), now, "{what}: replayed by e2fsck");
        fs.close().unwrap();
    }
}

fn stats(fs: &Ext4) -> FastCommitStats {
    fs.txns.journal().unwrap().fast_commit_stats()
}

/// The volume, and the number of fast commits that were replayed.
fn open(device: &Arc<MemDevice>) -> (Arc<Ext4>, u64) {
    let device = Arc::clone(device) as _;
    let options = MountOptions::default();
    let (fs, report) = Ext4::open(device, options, CacheSizes::of(8 << 20)).unwrap();
    (fs, report.replayed_fast_commits)
}

/// Runs e2fsck on a copy of the volume; returns the copy.
fn repaired(device: &MemDevice, what: &str) -> MemDevice {
    let image = Image::of(&device.to_bytes());
    let output = judge("e2fsck")
        .arg("-fy")
        .arg(image.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{what}: {said}\n{errors}"
    );
    // A replay leaves nothing to repair but counts.
    for bad in ["lost+found", "Clear", "multiply", "i_size", "Invalid"] {
        let found = said.lines().chain(errors.lines());
        let found = found.filter(|line| line.contains(bad)).count();
        assert_eq!(found, 0, "{what}: {said}\n{errors}");
    }
    MemDevice::from_bytes(&image.bytes())
}

/// e2fsck finds nothing.
fn clean(device: &MemDevice, what: &str) {
    let image = Image::of(&device.to_bytes());
    let output = judge("e2fsck")
        .arg("-fn")
        .arg(image.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{what}: {said}");
}

/// Names of the root directory and of `dir`, with mode, links, size, modification time and content.
type Tree = BTreeMap<Vec<u8>, (u32, u32, u64, i64, Vec<u8>)>;

fn tree(fs: &Arc<Ext4>) -> Tree {
    let cx = Cx::default();
    let dir = fs.lookup(&cx, ROOT, b"dir").unwrap().ino;
    fs.forget(dir, 1);
    let mut tree = Tree::new();
    for (parent, path) in [(ROOT, &b"/"[..]), (dir, b"/dir/")] {
        for name in steadfs_vfs::test_support::names(&**fs, &cx, parent) {
            let attr = fs.lookup(&cx, parent, &name).unwrap();
            if attr.kind == steadfs_vfs::FileKind::Regular {
                let content = fs.read(&cx, attr.ino, 0, 1 << 20).unwrap().to_vec();
                let seen = (attr.perm, attr.nlink, attr.size, attr.mtime.secs, content);
                tree.insert([path, &name].concat(), seen);
            }
            fs.forget(attr.ino, 1);
        }
    }
    tree
}

#[test]
fn an_fsync_of_data_is_a_fast_commit() {
    let volume = volume();
    volume.write(volume.one, 5000, 3000);
    volume.fsync_fast(volume.one, "append");
    volume.judge("append");
    volume.write(volume.one, 20_000, 3000);
    volume.fsync_fast(volume.one, "append behind a hole");
    volume.judge("append behind a hole");
    // Data of a file that is not synced is mapped by write-back: it belongs to the next fast commit.
    volume.write(volume.two, 100_000, 9000);
    let two = volume.world.fs.by_number(volume.two, volume.world.cx.tag);
    let why = steadfs_cache::WritebackReason::Background;
    let tag = volume.world.cx.tag;
    volume.world.fs.write_out(&two.unwrap(), why, tag).unwrap();
    volume.write(volume.one, 9000, 1000);
    volume.fsync_fast(volume.one, "a hole is filled");
    volume.judge("a hole is filled");
    let (fs, cx) = (&volume.world.fs, &volume.world.cx);
    let keep_size = FallocMode::Allocate { keep_size: false };
    fs.fallocate(cx, volume.two, keep_size, 150_000, 30_000)
        .unwrap();
    volume.fsync_fast(volume.two, "fallocate");
    volume.write(volume.two, 155_000, 10_000);
    volume.fsync_fast(volume.two, "preallocated blocks are written");
    volume.judge("preallocated blocks are written");
    volume.world.close();
}

#[test]
fn names_and_attributes_are_in_fast_commits() {
    let volume = volume();
    let (fs, cx) = (&volume.world.fs, &volume.world.cx);
    let dir = volume.world.lookup(ROOT, b"dir").unwrap().ino;
    let new = volume.world.file(dir, b"new").unwrap().ino;
    volume.write(new, 0, 3000);
    volume.fsync_fast(new, "create");
    volume.judge("create");
    fs.link(cx, new, ROOT, b"more").unwrap();
    fs.forget(new, 1);
    fs.rename(cx, (ROOT, b"two"), (dir, b"moved"), KEEP)
        .unwrap();
    volume.fsync_fast(ROOT, "link and rename");
    volume.judge("link and rename");
    fs.unlink(cx, dir, b"new").unwrap();
    let set = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(cx, volume.one, &set).unwrap();
    volume.fsync_fast(volume.one, "unlink and chmod");
    volume.judge("unlink and chmod");
    // Many names, and an inode with two new ones in one fast commit.
    for n in 0..20 {
        volume.world.file(dir, format!("{n}").as_bytes()).unwrap();
    }
    let last = volume.world.file(dir, b"last").unwrap().ino;
    fs.link(cx, last, ROOT, b"last too").unwrap();
    fs.forget(last, 1);
    volume.fsync_fast(last, "many names");
    volume.judge("many names");
    volume.world.close();
}

/// An operation that fast commits do not describe.
type Refused<'a> = (&'a str, &'a dyn Fn(&Volume));

#[test]
fn what_is_not_described_is_committed_as_a_whole() {
    let refused: [Refused<'_>; 8] = [
        ("a directory that grows", &|v| {
            for n in 0..10 {
                let name = format!("{n}{}", "x".repeat(200));
                v.world.file(ROOT, name.as_bytes()).unwrap();
            }
        }),
        ("extended attributes", &|v| {
            let (fs, cx) = (&v.world.fs, &v.world.cx);
            let how = SetXattr::Any;
            fs.setxattr(cx, v.one, b"user.a", b"b", how).unwrap();
        }),
        ("unlink", &|v| {
            v.world.fs.unlink(&v.world.cx, ROOT, b"two").unwrap();
        }),
        ("mkdir", &|v| {
            v.world.mkdir(ROOT, b"made").unwrap();
        }),
        ("rmdir", &|v| {
            v.world.fs.rmdir(&v.world.cx, ROOT, b"dir").unwrap()
        }),
        ("truncate", &|v| {
            let set = SetAttr {
                size: Some(100),
                ..SetAttr::default()
            };
            v.world.fs.setattr(&v.world.cx, v.two, &set).unwrap();
        }),
        ("symlink", &|v| {
            let made = v.world.fs.symlink(&v.world.cx, ROOT, b"link", b"one");
            v.world.fs.forget(made.unwrap().ino, 1);
        }),
        ("rename of a directory", &|v| {
            let (fs, cx) = (&v.world.fs, &v.world.cx);
            fs.rename(cx, (ROOT, b"dir"), (ROOT, b"elsewhere"), KEEP)
                .unwrap();
        }),
    ];
    for (what, change) in refused {
        let volume = volume();
        volume.write(volume.one, 5000, 100);
        volume.fsync_fast(volume.one, what);
        change(&volume);
        volume.write(volume.one, 6000, 100);
        let (fast, commits) = (volume.stats(), volume.commits());
        volume.fsync(volume.one);
        assert_eq!(volume.stats().commits, fast.commits, "{what}");
        assert_eq!(volume.commits(), commits + 1, "{what}");
        let count = |stats: FastCommitStats| stats.refused.values().sum::<u64>();
        assert_eq!(count(volume.stats()), count(fast) + 1, "{what}");
        // The next transaction has fast commits again.
        volume.write(volume.one, 7000, 100);
        volume.fsync_fast(volume.one, what);
        volume.world.close();
    }
}

#[test]
fn a_full_area_is_used_again_after_a_commit() {
    let volume = volume();
    let mut at = 5000;
    for _ in 0..200 {
        volume.write(volume.one, at, 100);
        volume.fsync(volume.one);
        at += 100;
    }
    let stats = volume.stats();
    let full = stats.refused.get("area full").copied().unwrap_or(0);
    assert!(full > 1 && stats.commits > 100, "{stats:?}");
    assert_eq!(stats.commits + full, 200, "{stats:?}");
    volume.judge("many");
    volume.world.close();
}

#[test]
fn an_option_turns_fast_commits_off_and_on() {
    let image = Image::make(&OPTIONS, SIZE);
    let options = MountOptions::parse("nofast_commit").unwrap();
    let world = World::open_with(image, options);
    let one = world.file(ROOT, b"one").unwrap().ino;
    let synced = || {
        world.fs.write(&world.cx, one, 0, &[1; 100], false).unwrap();
        world
            .fs
            .setattr(
                &world.cx,
                one,
                &SetAttr {
                    perm: Some(0o600),
                    ..SetAttr::default()
                },
            )
            .unwrap();
        world.fs.fsync(&world.cx, one, false).unwrap();
        stats(&world.fs).commits
    };
    assert_eq!(synced(), 0);
    world.fs.remount(&world.cx, "fast_commit").unwrap();
    assert_eq!(synced(), 1);
    world.fs.remount(&world.cx, "nofast_commit").unwrap();
    assert_eq!(synced(), 1);
    world.close();
}

/// Requests that change the device: their number and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Written {
    requests: u64,
    bytes: u64,
}

/// What one append and fsync writes.
fn written_by_an_append(mount: &str) -> Written {
    let image = Image::make(&OPTIONS, SIZE);
    let device = FaultDevice::new(image.device());
    let options = MountOptions::parse(mount).unwrap();
    let opened = Ext4::open(
        Arc::clone(&device) as Arc<dyn Device>,
        options,
        CacheSizes::of(8 << 20),
    );
    let (fs, _) = opened.unwrap();
    fs.writeback.stop();
    let cx = Cx::default();
    let file = fs.mknod(&cx, ROOT, b"file", 0o100_644, 0).unwrap().ino;
    let append = |at: u64| {
        fs.write(&cx, file, at * 1024, &[1; 1024], false).unwrap();
        fs.fsync(&cx, file, false).unwrap();
    };
    append(0);
    let count = Arc::new(Mutex::new(steadfs_rt::Rank::Host, Written::default()));
    let counted = Arc::clone(&count);
    device.set(move |bio| {
        if bio.op == steadfs_block::Op::Write {
            let mut count = counted.lock();
            count.requests += 1;
            count.bytes += bio.bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
        }
        steadfs_block::Fault::None
    });
    append(1);
    let written = *count.lock();
    fs.forget(file, 1);
    fs.close().unwrap();
    written
}

#[test]
fn an_append_writes_its_data_and_one_block() {
    let fast = written_by_an_append("");
    let whole = written_by_an_append("nofast_commit");
    assert_eq!((fast.requests, fast.bytes), (2, 2048));
    // Descriptor, inode, bitmap and descriptor of the group; the commit record.
    assert_eq!((whole.requests, whole.bytes), (3, 6144));
}

/// The log has a commit after the fast commits: they are of no use any more, to e2fsck neither.
#[test]
fn a_commit_makes_earlier_fast_commits_invalid() {
    let volume = volume();
    volume.write(volume.one, 5000, 100);
    volume.fsync_fast(volume.one, "append");
    volume
        .world
        .fs
        .unlink(&volume.world.cx, ROOT, b"two")
        .unwrap();
    volume.fsync(ROOT);
    let now = tree(&volume.world.fs);
    let device = volume.world.cut_power_now();
    let checked = Arc::new(repaired(&device, "after a commit"));
    for device in [device, checked] {
        let (fs, replayed) = open(&device);
        assert_eq!((&tree(&fs), replayed), (&now, 0));
        fs.close().unwrap();
        clean(&device, "after a commit");
    }
    volume.world.close();
}

#[test]
fn concurrent_fsyncs_share_fast_commits() {
    const TASKS: u64 = 8;
    const FSYNCS: u64 = 8;
    let image = Image::make(&OPTIONS, SIZE);
    let store = image.device();
    let run = move || {
        let store = Arc::new(store.copy());
        let model = DeviceModel {
            bytes_per_second: u64::MAX,
            latency: Duration::from_millis(1),
            flush: Duration::from_millis(1),
            depth: 16,
        };
        let device = Arc::new(ModelDevice::new(store, model));
        let options = MountOptions::default();
        let (fs, _) = Ext4::open(device, options, CacheSizes::of(8 << 20)).unwrap();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let fs = Arc::clone(&fs);
                spawn("fsync", move || {
                    let (cx, name) = (Cx::default(), format!("{task}"));
                    let made = fs.mknod(&cx, ROOT, name.as_bytes(), 0o100_644, 0);
                    let ino = made.unwrap().ino;
                    for at in 0..FSYNCS {
                        fs.write(&cx, ino, at * 500, &[1; 500], false).unwrap();
                        fs.fsync(&cx, ino, false).unwrap();
                    }
                    fs.forget(ino, 1);
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join());
        let stats = stats(&fs);
        fs.close().unwrap();
        stats
    };
    for seed in 1..4 {
        let stats = sim::run(sim::Config::new(seed), run.clone()).value;
        let most = TASKS * FSYNCS / 3;
        assert!((FSYNCS..most).contains(&stats.commits), "{stats:?}");
    }
}
