//! What is durable, and when: fsync, fsync clustering, synchronous mounts, and the size of files that grow meanwhile.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_conformance::{Kind, Setup, World, judge};
use steadfs_rt::{sim, sleep};
use steadfs_vfs::{FallocMode, InodeFlags, SetAttr, SetXattr};

on_every!(everything_is_durable_at_once_on_a_synchronous_mount);

// Those whose content is defined after a power cut.
on!((
    ext3 ext4_1k ext4_4k ext4_indirect ext4_unindexed ext4_orphan_file ext4_small_inodes ext4_large_inodes
    f2fs f2fs_all f2fs_two_logs f2fs_four_logs f2fs_not_inline f2fs_xattr_nodes f2fs_small_xattrs f2fs_lfs
)
    files_written_before_share_flushes_and_all_survive,
    a_file_synced_at_once_has_no_cluster,
    with_fsync_cluster_files_0_an_fsync_writes_its_own_file_only,
    the_stored_size_excludes_what_was_added_during_write_back,
);

fn everything_is_durable_at_once_on_a_synchronous_mount(kind: &'static Kind) {
    let setup = Setup {
        mount: "sync",
        ..Setup::default()
    };
    let world = World::with(kind, &setup);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let made = fs.mknod(cx, root, b"f", 0o100_644, 0).unwrap();
    let file = made.ino;
    let look = || {
        world.after_power_cut(false, |there| {
            let attr = there.lookup(there.root, b"f").unwrap();
            let user = there.fs.getxattr(&there.cx, attr.ino, b"user.a").ok();
            (attr, user)
        })
    };
    assert_eq!(look().0.size, 0);
    world.write(file, 0, &[1; 5000]).unwrap();
    assert_eq!(look().0.size, 5000);
    let perm = Some(0o600);
    let all = SetAttr::default();
    world.set(file, SetAttr { perm, ..all }).unwrap();
    assert_eq!(look().0.perm, 0o600);
    fs.setxattr(cx, file, b"user.a", b"value", SetXattr::Any)
        .unwrap();
    assert_eq!(look().1, Some(b"value".to_vec()));
    fs.removexattr(cx, file, b"user.a").unwrap();
    assert_eq!(look().1, None);
    if kind.has_fallocate() {
        let mode = FallocMode::Allocate { keep_size: false };
        fs.fallocate(cx, file, mode, 0, 20_000).unwrap();
    } else {
        world.resize(file, 20_000).unwrap();
    }
    assert_eq!(look().0.size, 20_000);
    let flags = fs.flags(cx, file).unwrap().flags;
    fs.set_flags(cx, file, flags.union(InodeFlags::NODUMP))
        .unwrap();
    assert!(look().0.flags.contains(InodeFlags::NODUMP));
    world.forget(file);
    world.close();
}

/// Files of the root directory, written and not synced.
fn written(world: &World, from: usize, count: usize) -> Vec<InodeNo> {
    let new = |n| {
        let name = format!("file{n}");
        world.written(name.as_bytes(), &[n as u8; 5000]).unwrap()
    };
    (from..from + count).map(new).collect()
}

/// Numbers that grow with each commit or checkpoint that an fsync needed.
fn commits(world: &World) -> u64 {
    let text = match world.kind.is_ext() {
        true => world.control("jbd2/info"),
        false => world.control("f2fs/cp_foreground_calls"),
    };
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn files_written_before_share_flushes_and_all_survive(kind: &'static Kind) {
    // In simulated time, because the age of dirty data matters.
    sim::run(sim::Config::new(1), move || share_flushes(kind));
}

fn share_flushes(kind: &'static Kind) {
    let world = World::make(kind);
    let files = written(&world, 0, 100);
    sleep(Duration::from_millis(10));
    let before = (world.device.flushes(), commits(&world));
    for &ino in &files {
        world.fsync(ino).unwrap();
    }
    let flushes = world.device.flushes() - before.0;
    let commits = commits(&world) - before.1;
    if kind.is_ext() {
        // Commits make durable what was written along.
        assert!(flushes == 0 && commits < 20, "{flushes}, {commits} commits");
    } else {
        assert!(flushes < 30, "{flushes} flushes");
        assert!(commits == 0 || kind.syncs_by_checkpoint(), "{commits}");
    }
    // A file that was not synced is lost by a power cut, or empty; all others are there.
    written(&world, 100, 1);
    if !kind.is_ext() {
        // Also before a mount rolls forward.
        judge(kind, &world.device.durable());
    }
    world.after_power_cut(false, |there| {
        for n in 0..100 {
            let name = format!("file{n}");
            assert_eq!(there.content(name.as_bytes()), [n as u8; 5000], "{name}");
        }
        let lost = there.lookup(there.root, b"file100");
        assert!(lost.is_err() || lost.is_ok_and(|attr| attr.size == 0));
    });
    world.close();
}

fn a_file_synced_at_once_has_no_cluster(kind: &'static Kind) {
    sim::run(sim::Config::new(1), move || synced_at_once(kind));
}

fn synced_at_once(kind: &'static Kind) {
    let world = World::make(kind);
    written(&world, 0, 1);
    for n in 1..6 {
        let ino = written(&world, n, 1)[0];
        world.fsync(ino).unwrap();
    }
    world.after_power_cut(false, |there| {
        let waiting = there.lookup(there.root, b"file0");
        assert!(waiting.is_err() || waiting.is_ok_and(|attr| attr.size == 0));
        for n in 1..6 {
            assert_eq!(there.content(format!("file{n}").as_bytes()), [n; 5000]);
        }
    });
    world.close();
}

fn with_fsync_cluster_files_0_an_fsync_writes_its_own_file_only(kind: &'static Kind) {
    sim::run(sim::Config::new(1), move || without_clusters(kind));
}

fn without_clusters(kind: &'static Kind) {
    let world = World::make(kind);
    let path = match kind.is_ext() {
        true => "ext4/fsync_cluster_files",
        false => "f2fs/fsync_cluster_files",
    };
    assert_eq!(world.control(path), "64\n");
    let control = world.fs.control().unwrap();
    assert!(control.tunables().contains(&path));
    assert!(control.write(path, b"1025").is_err());
    control.write(path, b"0").unwrap();
    assert_eq!(world.control(path), "0\n");
    let files = written(&world, 0, 8);
    sleep(Duration::from_millis(10));
    let synced = 3;
    for &ino in &files[..synced] {
        world.fsync(ino).unwrap();
    }
    world.after_power_cut(false, |there| {
        for n in 0..files.len() {
            let name = format!("file{n}");
            if n < synced {
                assert_eq!(there.content(name.as_bytes()), [n as u8; 5000], "{name}");
            } else {
                let lost = there.lookup(there.root, name.as_bytes());
                assert!(lost.is_err() || lost.is_ok_and(|attr| attr.size == 0));
            }
        }
    });
    world.close();
}

/// The last block of the file is dirty again while it is written, and the blocks that are written next are after it.
fn the_stored_size_excludes_what_was_added_during_write_back(kind: &'static Kind) {
    for synced in [false, true] {
        sim::run(sim::Config::new(1), move || grows_meanwhile(kind, synced));
    }
}

fn grows_meanwhile(kind: &'static Kind, synced: bool) {
    const FIRST: [u8; 5000] = [1; 5000];
    const MORE: [u8; 9000] = [2; 9000];
    let whole = [FIRST.as_slice(), &MORE].concat();
    let world = World::make(kind);
    let file = world.file(world.root, b"file").unwrap().ino;
    world.fsync(file).unwrap();
    world.write(file, 0, &FIRST).unwrap();
    let (fs, cx) = (Arc::clone(&world.fs), world.cx.clone());
    world.device.before_next_write(move || {
        let written = fs.write(&cx, file, FIRST.len() as u64, &MORE, true);
        assert_eq!(written, Ok(MORE.len()));
    });
    let found = || {
        let there = world.cut_power();
        let found = there.read(file, 0, 1 << 20);
        assert_eq!(found.len() as u64, there.attr(file).size);
        assert!(whole.starts_with(&found), "{} bytes", found.len());
        there.fs.unmount().unwrap();
        found.len()
    };
    let mut least = 0;
    if synced {
        world.fsync(file).unwrap();
        least = FIRST.len();
    }
    // The flusher writes the data by its age, and then metadata follows.
    for _ in 0..40 {
        let len = found();
        assert!(len >= least, "{len} bytes");
        least = len;
        sleep(Duration::from_secs(4));
    }
    assert_eq!(least, whole.len());
    world.close();
}
