use std::collections::BTreeMap;

use steadfs_base::InodeNo;
use steadfs_block::{FaultDevice, Op};
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FallocMode, FileKind, FileSystem, InodeFlags, SetAttr, SetXattr};

use super::*;
use crate::checkpoint::Reason;
use crate::disk::quota::{Entry, tree};
use crate::test_world::{ROOT, World, fsck};
use crate::{CacheSizes, MountOptions};

/// All features of volumes that count, with projects.
const FEATURES: &str = "extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,lost_found,\
                        project_quota,quota";

/// Usage by kind and owner.
type Usages = [BTreeMap<u32, Usage>; 3];

/// The usage of all files below the root, which are counted by walking the tree.
fn walked(world: &World) -> Usages {
    let mut usages = Usages::default();
    let mut open = vec![ROOT];
    let mut seen = std::collections::BTreeSet::new();
    while let Some(ino) = open.pop() {
        if !seen.insert(ino) {
            continue;
        }
        let inode = world.fs.by_number(ino, IoTag::default()).unwrap();
        let core = inode.core.read().clone();
        for (usage, owner) in usages.iter_mut().zip(owners_of(&core)) {
            let used: &mut Usage = usage.entry(owner).or_default();
            used.bytes += (core.blocks - 1) * BLOCK;
            used.inodes += 1;
        }
        if inode.kind() == FileKind::Directory {
            let named = |name: &[u8]| name != b"." && name != b"..";
            let entries = world.list(ino, 100).into_iter();
            open.extend(entries.filter(|(name, _)| named(name)).map(|(_, ino)| ino));
        }
    }
    let quota = world.fs.quota.opened.get().expect("opened");
    for (usage, file) in usages.iter_mut().zip(&quota.files) {
        if file.is_none() {
            usage.clear();
        }
    }
    usages
}

/// The usage that the quota files have.
fn counted(world: &World) -> Usages {
    let fs = &world.fs;
    let quota = fs.quota.opened.get().expect("opened");
    let mut usages = Usages::default();
    for file in quota.files() {
        let info = *file.info.lock();
        let usage = &mut usages[file.kind.index()];
        let each = |_, entry: Entry| {
            if entry.inodes > 0 || entry.bytes > 0 {
                let Entry {
                    id, bytes, inodes, ..
                } = entry;
                usage.insert(id, Usage { bytes, inodes });
            }
        };
        let core = file.inode.core.read();
        tree::walk(&mut file.blocks(fs, &core, IoTag::default()), &info, each).unwrap();
    }
    usages
}

fn caller(uid: u32, gid: u32) -> Cx {
    Cx {
        uid,
        gid,
        ..Cx::default()
    }
}

/// A random number below `limit`.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// A change of a file that has a name.
fn change_file(
    world: &World,
    random: &mut Random,
    (dir, name, ino): (InodeNo, &[u8], InodeNo),
) -> Result<()> {
    let fs = &*world.fs;
    let owner = random.below(5) as u32 * 0x0102_0304;
    match random.below(12) {
        0..4 => {
            let at = random.below(6_000_000);
            let data = vec![7; random.below(40_000) as usize];
            fs.write(&world.cx, ino, at, &data, false).map(drop)
        }
        4 => {
            let set = SetAttr {
                size: Some(random.below(200_000)),
                ..SetAttr::default()
            };
            fs.setattr(&world.cx, ino, &set).map(drop)
        }
        5 | 6 => {
            let set = SetAttr {
                uid: Some(owner),
                gid: Some(random.below(9) as u32),
                ..SetAttr::default()
            };
            fs.setattr(&world.cx, ino, &set).map(drop)
        }
        7 => {
            let project = random.below(4) as u32 * 1000;
            fs.set_project(&world.cx, ino, project)
        }
        8 => {
            let value = vec![b'v'; random.below(3000) as usize];
            fs.setxattr(&world.cx, ino, b"user.a", &value, SetXattr::Any)
        }
        9 => {
            let mode = FallocMode::Allocate { keep_size: true };
            let at = random.below(4_000_000);
            fs.fallocate(&world.cx, ino, mode, at, 1 + random.below(100_000))
        }
        10 => fs.fsync(&world.cx, ino, false),
        _ => fs.unlink(&world.cx, dir, name),
    }
}

/// One random change; what a change that fails leaves behind is counted, too.
fn change(world: &World, random: &mut Random, dirs: &mut Vec<InodeNo>) {
    let fs = &*world.fs;
    let owner = random.below(5) as u32 * 0x0102_0304;
    let cx = caller(owner, owner / 2);
    let dir = dirs[random.below(dirs.len() as u64) as usize];
    let name = "n".repeat(1 + random.below(12) as usize * 20);
    let name = name.as_bytes();
    let found = world.lookup(dir, name).map(|attr| attr.ino);
    let _ = match (found, random.below(6)) {
        (Ok(ino), _) => change_file(world, random, (dir, name, ino)),
        (Err(_), 0..3) => fs
            .mknod(&cx, dir, name, 0o100_644, 0)
            .map(|attr| world.forget(attr.ino)),
        (Err(_), 3) => fs.mkdir(&cx, dir, name, 0o755).map(|attr| {
            world.forget(attr.ino);
            dirs.push(attr.ino);
        }),
        (Err(_), _) => {
            let target = vec![b't'; 20 + random.below(4000) as usize];
            let made = fs.symlink(&cx, dir, name, &target);
            made.map(|attr| world.forget(attr.ino))
        }
    };
}

fn random_changes(features: &str, options: &str, steps: u64) {
    let mut world = World::make_with(features, 100, options);
    let mut random = Random(steps);
    for round in 0..3 {
        // Numbers of directories in an earlier round may be of something else by now.
        let mut dirs = vec![ROOT];
        for _ in 0..steps {
            change(&world, &mut random, &mut dirs);
        }
        world.fs.sync_all(&world.cx).unwrap();
        assert_eq!(counted(&world), walked(&world), "round {round}");
        assert!(counted(&world)[0].len() >= 4);
        assert!(!world.fs.quota.is_wrong());
        world.judge_now();
        world = world.reopen();
        world.fs.sync_all(&world.cx).unwrap();
        assert_eq!(counted(&world), walked(&world), "after round {round}");
    }
    world.close();
}

#[test]
fn counts_agree_with_the_files_after_random_changes() {
    random_changes(FEATURES, "", 400);
    random_changes(
        "quota",
        "noinline_data,noinline_dentry,usrquota,grpquota",
        300,
    );
    random_changes(FEATURES, "mode=lfs,prjquota", 300);
}

/// What was synced after the checkpoint is counted by the mount that recovers it.
#[test]
fn recovered_files_are_counted() {
    let world = World::make_with(FEATURES, 64, "");
    let user = caller(1000, 100);
    let old = world
        .fs
        .mknod(&user, ROOT, b"old", 0o100_644, 0)
        .unwrap()
        .ino;
    world.fs.write(&user, old, 0, &[1; 100_000], false).unwrap();
    let orphan = world
        .fs
        .mknod(&user, ROOT, b"gone", 0o100_644, 0)
        .unwrap()
        .ino;
    world
        .fs
        .write(&user, orphan, 0, &[1; 50_000], false)
        .unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    world.fs.unlink(&world.cx, ROOT, b"gone").unwrap();
    world.fs.checkpoint(Reason::Sync, IoTag::default()).unwrap();
    let own = &counted(&world)[0][&1000];
    assert_eq!((own.bytes, own.inodes), (25 * BLOCK + 13 * BLOCK, 2));
    // After the checkpoint, so that only roll-forward brings it.
    let other = caller(0x1234_5678, 5);
    let new = world
        .fs
        .mknod(&other, ROOT, b"new", 0o100_644, 0)
        .unwrap()
        .ino;
    world.fs.write(&other, new, 0, &[2; 30_000], false).unwrap();
    world.fs.fsync(&other, new, false).unwrap();
    world
        .fs
        .write(&user, old, 5 << 20, &[3; 5000], false)
        .unwrap();
    world.fs.fsync(&user, old, false).unwrap();
    let cut = steadfs_block::MemDevice::from_bytes(&world.bytes());
    let again = World::of(Arc::new(cut), "usrquota");
    assert_eq!(counted(&again), walked(&again));
    let usage = counted(&again);
    assert_eq!(usage[0][&0x1234_5678].bytes, 8 * BLOCK);
    assert_eq!(usage[0][&1000].inodes, 1);
    again.judge_now();
    again.close();
}

/// What a caller cannot use more of.
fn is_refused<T>(result: steadfs_vfs::Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(FsError::Quota) => true,
        Err(error) => panic!("{error}"),
    }
}

fn limited(options: &str) -> World {
    let world = World::make_with(FEATURES, 64, options);
    let set = |file, line| assert!(world.fs.set_quota_control(file, line).unwrap());
    set("quota/user", "1000 100 200 5 8");
    set("quota/project", "7 0 80 0 0");
    world
}

/// Writes until the first error; returns the bytes written.
fn fill(world: &World, cx: &Cx, ino: InodeNo) -> u64 {
    let mut at = 0;
    loop {
        match world.fs.write(cx, ino, at, &[1; 10_000], false) {
            Ok(written) => at += written as u64,
            Err(error) => {
                assert_eq!(error, FsError::Quota);
                return at;
            }
        }
    }
}

fn make(world: &World, cx: &Cx, name: &str) -> steadfs_vfs::Result<InodeNo> {
    let made = world.fs.mknod(cx, ROOT, name.as_bytes(), 0o100_644, 0);
    made.map(|attr| attr.ino)
}

#[test]
fn hard_limits_hold_for_users_and_not_for_root() {
    let world = limited("usrquota");
    let (fs, user) = (&*world.fs, caller(1000, 1000));
    let file = make(&world, &user, "file").unwrap();
    assert_eq!(fill(&world, &user, file), 200 << 10);
    // What is there can be overwritten.
    fs.write(&user, file, 0, &[2; 8192], false).unwrap();
    fs.sync_all(&world.cx).unwrap();
    assert_eq!(counted(&world)[0][&1000].bytes, 200 << 10);
    let allocate = FallocMode::Allocate { keep_size: true };
    assert!(is_refused(fs.fallocate(
        &user,
        file,
        allocate,
        1 << 20,
        4096
    )));
    let value = [b'v'; 3000];
    assert!(is_refused(fs.setxattr(
        &user,
        file,
        b"user.a",
        &value,
        SetXattr::Any
    )));
    for n in 1..8 {
        make(&world, &user, &format!("f{n}")).unwrap();
    }
    assert!(is_refused(make(&world, &user, "one more")));
    let root = make(&world, &world.cx, "root's").unwrap();
    let give = SetAttr {
        uid: Some(1000),
        ..SetAttr::default()
    };
    assert!(is_refused(fs.setattr(&caller(5, 5), root, &give)));
    fs.setattr(&world.cx, root, &give).unwrap();
    fs.write(&world.cx, root, 0, &[3; 50_000], false).unwrap();
    fs.sync_all(&world.cx).unwrap();
    assert_eq!(counted(&world), walked(&world));
    world.close();
}

/// Writers of several files, and makers of files in several directories, share what a limit leaves.
#[test]
fn tasks_beside_each_other_keep_hard_limits() {
    for seed in 0..10 {
        sim::run(sim::Config::new(seed), || {
            let world = limited("usrquota");
            let user = caller(1000, 1000);
            let tasks = (0..4).map(|n| {
                let fs = Arc::clone(&world.fs);
                let dir = fs.mkdir(&world.cx, ROOT, format!("{n}").as_bytes(), 0o777);
                let dir = dir.unwrap().ino;
                let user = user.clone();
                steadfs_rt::spawn("task", move || {
                    let mut made = Vec::new();
                    let make = |name: String| fs.mknod(&user, dir, name.as_bytes(), 0o100_644, 0);
                    while let Ok(attr) = make(format!("file{}", made.len())) {
                        made.push(attr.ino);
                    }
                    let mut at = 0;
                    while let Some(&file) = made.first()
                        && let Ok(n) = fs.write(&user, file, at, &[1; 30_000], false)
                    {
                        at += n as u64;
                    }
                    made.len() as u64
                })
            });
            let tasks: Vec<_> = tasks.collect();
            let made: u64 = tasks.into_iter().map(steadfs_rt::JoinHandle::join).sum();
            assert!((5..=8).contains(&made), "{made}");
            world.fs.sync_volume(&world.cx).unwrap();
            let used = counted(&world)[0][&1000];
            assert_eq!(used.inodes, made);
            assert!(
                (160 << 10..=200 << 10).contains(&used.bytes),
                "{}",
                used.bytes
            );
            world.fs.unmount().unwrap();
        });
    }
}

#[test]
fn limits_hold_only_where_options_say_so() {
    let world = limited("grpquota");
    let (fs, user) = (&*world.fs, caller(1000, 1000));
    let file = make(&world, &user, "file").unwrap();
    fs.write(&user, file, 0, &[1; 500_000], false).unwrap();
    fs.remount(&world.cx, "usrquota").unwrap();
    assert!(is_refused(
        fs.write(&user, file, 600_000, &[1; 9000], false)
    ));
    fs.remount(&world.cx, "noquota").unwrap();
    fs.write(&user, file, 600_000, &[1; 9000], false).unwrap();
    world.close();
}

#[test]
fn files_of_a_project_share_its_limit() {
    let world = limited("prjquota");
    let (fs, user, other) = (&*world.fs, caller(1000, 1000), caller(2, 2));
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    fs.set_project(&world.cx, dir, 7).unwrap();
    let flags = fs.flags(&world.cx, dir).unwrap().flags;
    let inherits = InodeFlags::PROJINHERIT.union(flags);
    fs.set_flags(&world.cx, dir, inherits).unwrap();
    let first = fs.mknod(&user, dir, b"a", 0o100_666, 0).unwrap().ino;
    let second = fs.mknod(&other, dir, b"b", 0o100_666, 0).unwrap().ino;
    assert_eq!(fill(&world, &user, first), 80 << 10);
    assert_eq!(fill(&world, &other, second), 0);
    let shown = fs.statfs_at(&world.cx, dir).unwrap();
    assert_eq!((shown.blocks, shown.blocks_available), (20, 0));
    let whole = fs.statfs_at(&world.cx, ROOT).unwrap();
    assert_eq!(whole, fs.statfs(&world.cx).unwrap());
    fs.unlink(&user, dir, b"a").unwrap();
    world.forget(first);
    assert_eq!(fill(&world, &other, second), 80 << 10);
    world.close();
}

#[test]
fn a_soft_limit_becomes_a_hard_one() {
    let run = || {
        let world = limited("usrquota");
        let (fs, user) = (&*world.fs, caller(1000, 1000));
        assert!(fs.set_quota_control("quota/user", "grace 60 60").unwrap());
        let file = make(&world, &user, "file").unwrap();
        let write = |at| fs.write(&user, file, at, &[1; 120_000], false);
        write(0).unwrap();
        fs.sync_all(&world.cx).unwrap();
        let shown = fs.quota_control("quota/user").unwrap().unwrap();
        assert!(shown.starts_with("grace 60 60\n"), "{shown}");
        let line = shown.lines().find(|line| line.starts_with("1000 "));
        let line = line.unwrap();
        assert!(
            line.starts_with("1000 120 100 200 ") && !line.contains(" 200 0 "),
            "{line}"
        );
        fs.write(&user, file, 130_000, &[1; 4096], false).unwrap();
        steadfs_rt::sleep(std::time::Duration::from_secs(61));
        assert!(is_refused(
            fs.write(&user, file, 300_000, &[1; 4096], false)
        ));
        // Below the limit the time begins anew.
        let cut = SetAttr {
            size: Some(4096),
            ..SetAttr::default()
        };
        fs.setattr(&user, file, &cut).unwrap();
        write(0).unwrap();
        let device = world.close();
        // Limits and times are in the file.
        let again = World::of(device, "ro");
        let shown = again.fs.quota_control("quota/user").unwrap().unwrap();
        assert!(shown.starts_with("grace 60 60\n"), "{shown}");
        assert!(shown.contains("\n1000 120 100 200 "), "{shown}");
        again.close();
    };
    sim::run(sim::Config::new(1), run);
}

/// Handles and write-back of neighbours find an inode by its number as soon as its node is there. They may not make a second
/// inode of it, for which its blocks would count as charged.
#[test]
fn an_inode_that_is_looked_up_while_it_is_made_is_counted() {
    let run = || {
        let world = World::make_with(FEATURES, 64, "usrquota");
        let looking = Arc::clone(&world.fs);
        let first = world.file(ROOT, b"first").unwrap().ino.0;
        let looker = steadfs_rt::spawn("looker", move || {
            for _ in 0..40 {
                for nid in first..first + 10 {
                    match looking.by_number(InodeNo(nid), IoTag::default()) {
                        Ok(_) | Err(FsError::Stale) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        for n in 0..8 {
            let name = format!("file{n}");
            let made = world
                .fs
                .mknod(&caller(7, 7), ROOT, name.as_bytes(), 0o100_644, 0);
            made.unwrap();
        }
        looker.join();
        world.fs.sync_all(&world.cx).unwrap();
        assert_eq!(counted(&world), walked(&world));
        world.fs.unmount().unwrap();
    };
    (0..30).for_each(|seed| {
        sim::run(sim::Config::new(seed), run);
    });
}

/// A quota file that contradicts its format stops no change: it is recorded, and marked for fsck.f2fs.
#[test]
fn wrong_quota_files_are_recorded() {
    let world = World::make_with(FEATURES, 64, "");
    let nid = world.fs.superblock.quota_inodes()[0].unwrap();
    let inode = world.fs.inode(nid, IoTag::default()).unwrap();
    let at = world.fs.slot(&inode, 0, IoTag::default()).unwrap();
    let device = world.close();
    let magic = u64::from(at.0) * BLOCK;
    device.write(magic, &[0; 4]);
    let world = World::of(device, "usrquota");
    assert!(world.fs.quota.is_wrong() && world.fs.quota.opened.get().is_none());
    make(&world, &caller(7, 7), "file").unwrap();
    world.fs.checkpoint(Reason::Sync, IoTag::default()).unwrap();
    let flags = world.fs.checkpoints.last().flags;
    assert!(flags.contains(CpFlags::QUOTA_FSCK));
    assert!(world.fs.quota_control("quota/user").is_err());
    let control = world.fs.control().unwrap();
    let bits = control.read("f2fs/stat/sb_status").unwrap();
    let bits = u32::from_str_radix(String::from_utf8(bits).unwrap().trim_end(), 16);
    assert_eq!(bits.unwrap() & 0x1000, 0x1000, "quota_need_repair");
    world.fs.close().unwrap();
}

#[test]
fn limits_that_cannot_be_stored_do_not_stop_the_volume() {
    let device = FaultDevice::new(World::make_with(FEATURES, 64, "").close());
    let options = MountOptions::parse("usrquota").unwrap();
    let (fs, _) = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(8 << 20)).unwrap();
    let nid = fs.superblock.quota_inodes()[0].unwrap();
    let inode = fs.inode(nid, IoTag::default()).unwrap();
    let bad = u64::from(fs.slot(&inode, 0, IoTag::default()).unwrap().0) * BLOCK;
    fs.forget_clean();
    device.fail(move |bio| bio.op == Op::Read && (bio.offset..bio.offset + bio.len).contains(&bad));
    let set = fs.set_quota_control("quota/user", "grace 100 100");
    assert!(set.is_err(), "{set:?}");
    device.fail(|_| false);
    fs.mknod(&caller(7, 7), ROOT, b"file", 0o100_644, 0)
        .unwrap();
    fs.close().unwrap();
}

/// The owner of an inode has no entry.
#[test]
fn missing_entries_are_recorded() {
    let world = World::make_with("quota", 64, "");
    let user = caller(1000, 1000);
    make(&world, &user, "file").unwrap();
    let nid = world.fs.superblock.quota_inodes()[1].unwrap();
    let inode = world.fs.inode(nid, IoTag::default()).unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    let at = world.fs.slot(&inode, 0, IoTag::default()).unwrap();
    let device = world.close();
    // The root of the tree refers to nothing.
    device.write(u64::from(at.0) * BLOCK + 1024, &[0; 1024]);
    let world = World::of(device, "");
    make(&world, &user, "file two").unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    assert!(world.fs.quota.is_wrong());
    assert_eq!(counted(&world)[0], walked(&world)[0]);
    world.fs.close().unwrap();
}

/// A volume with many owners: the quota file grows over what its inode maps.
#[test]
fn many_owners_are_counted() {
    let world = World::make_with("quota", 100, "");
    for n in 0..700_u32 {
        let owner = n.wrapping_mul(0x9e37_79b9);
        make(&world, &caller(owner, 0), &n.to_string()).unwrap();
    }
    world.fs.forget_clean();
    let world = world.reopen();
    assert_eq!(counted(&world)[0].len(), 701 - 1);
    let device = world.close();
    fsck(&device);
}

/// Blocks of quota files that GC moves stay current.
#[test]
fn gc_moves_quota_files() {
    const GARBAGE_COLLECT_RANGE: u32 = 0x4018_f50b;
    let world = World::make_with("quota", 64, "background_gc=off");
    let fs = &*world.fs;
    for n in 0..40 {
        make(&world, &caller(n * 1000, 0), &n.to_string()).unwrap();
    }
    fs.sync_all(&world.cx).unwrap();
    let nid = fs.superblock.quota_inodes()[0].unwrap();
    let inode = fs.inode(nid, IoTag::default()).unwrap();
    let place = || fs.slot(&inode, 0, IoTag::default()).unwrap();
    let before = place();
    // Only the block of one owner changes, until the log has left the segment.
    let file = make(&world, &caller(1000, 0), "file").unwrap();
    for n in 0..500_u64 {
        let data = [1; 5000];
        fs.write(&world.cx, file, n * 4096, &data, false).unwrap();
        fs.sync_all(&world.cx).unwrap();
    }
    assert_eq!(place(), before);
    let range = [1, u64::from(before.0), 1];
    let words: Vec<u8> = range.iter().flat_map(|word| word.to_ne_bytes()).collect();
    fs.ioctl(&world.cx, ROOT, GARBAGE_COLLECT_RANGE, &words)
        .unwrap();
    fs.sync_all(&world.cx).unwrap();
    assert_ne!(place(), before);
    make(&world, &caller(77, 77), "another").unwrap();
    let world = world.reopen();
    assert_eq!(counted(&world), walked(&world));
    world.close();
}
