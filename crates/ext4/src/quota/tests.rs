use std::collections::BTreeMap;

use steadfs_base::InodeNo;
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileSystem, SetAttr, SetXattr};

use super::*;
use crate::test_world::{ROOT, World};

/// Usage by kind and owner.
type Usages = [BTreeMap<u32, (u64, u64)>; 3];

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
            let (bytes, inodes) = usage.entry(owner).or_default();
            *bytes += core.blocks * 512;
            *inodes += 1 + world.fs.value_references(inode.ino(), &core);
        }
        if inode.kind() == steadfs_vfs::FileKind::Directory {
            let entries = world.list(ino, 100);
            let named = |name: &[u8]| name != b"." && name != b"..";
            open.extend(
                entries
                    .into_iter()
                    .filter(|(name, _)| named(name))
                    .map(|(_, ino)| ino),
            );
        }
    }
    for (usage, file) in usages
        .iter_mut()
        .zip(&world.fs.quota.get().expect("opened").files)
    {
        if file.is_none() {
            usage.clear();
        }
    }
    usages
}

/// The usage that the quota files have.
fn counted(world: &World) -> Usages {
    let quota = world.fs.quota.get().expect("opened");
    let mut usages = Usages::default();
    for file in quota.files() {
        let info = file.bound(&world.fs);
        let usage = &mut usages[file.kind.index()];
        let each = |_, entry: Entry| {
            if entry.inodes > 0 || entry.bytes > 0 {
                usage.insert(entry.id, (entry.bytes, entry.inodes));
            }
        };
        tree::walk(&mut FileBlocks::new(&world.fs, file), &info, each).unwrap();
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

/// One random change; what a change that fails leaves behind is counted, too.
fn change(world: &World, random: &mut Random, dirs: &mut Vec<InodeNo>) {
    let fs = &*world.fs;
    let owner = random.below(5) as u32 * 0x0102_0304;
    let cx = caller(owner, owner / 2);
    let dir = dirs[random.below(dirs.len() as u64) as usize];
    let name = "n".repeat(1 + random.below(12) as usize * 20);
    let found = world.lookup(dir, name.as_bytes()).map(|attr| attr.ino);
    let _ = match (found, random.below(10)) {
        (Err(_), 0..4) => world
            .fs
            .mknod(&cx, dir, name.as_bytes(), 0o100_644, 0)
            .map(|attr| world.forget(attr.ino)),
        (Err(_), 4..6) => world
            .fs
            .mkdir(&cx, dir, name.as_bytes(), 0o755)
            .map(|attr| {
                world.forget(attr.ino);
                dirs.push(attr.ino);
            }),
        (Err(_), 6) => {
            let target = vec![b't'; 20 + random.below(200) as usize];
            let made = world.fs.symlink(&cx, dir, name.as_bytes(), &target);
            made.map(|attr| world.forget(attr.ino))
        }
        (Ok(ino), 0..4) => {
            let at = random.below(300_000);
            let data = vec![7; random.below(40_000) as usize];
            FileSystem::write(fs, &cx, ino, at, &data, false).map(drop)
        }
        (Ok(ino), 4) => {
            let set = SetAttr {
                size: Some(random.below(200_000)),
                ..SetAttr::default()
            };
            world.fs.setattr(&cx, ino, &set).map(drop)
        }
        (Ok(ino), 5 | 6) => {
            let set = SetAttr {
                uid: Some(owner),
                gid: Some(random.below(9) as u32),
                ..SetAttr::default()
            };
            world.fs.setattr(&world.cx, ino, &set).map(drop)
        }
        (Ok(ino), 7) => world
            .fs
            .set_project(&world.cx, ino, random.below(4) as u32 * 1000),
        (Ok(ino), 8) => {
            let value = vec![b'v'; random.below(9000) as usize];
            FileSystem::setxattr(fs, &world.cx, ino, b"user.a", &value, SetXattr::Any)
        }
        (Ok(_), _) => world.fs.unlink(&world.cx, dir, name.as_bytes()),
        (Err(_), _) => Ok(()),
    };
}

fn random_changes(options: &[&str], size: &str, steps: u64) {
    let mut world = World::make(options, size);
    let mut random = Random(steps);
    for round in 0..2 {
        // Numbers of directories in an earlier round may be of something else by now.
        let mut dirs = vec![ROOT];
        for _ in 0..steps {
            change(&world, &mut random, &mut dirs);
        }
        world.fs.sync_volume(&world.cx).unwrap();
        assert_eq!(counted(&world), walked(&world), "round {round}");
        assert!(counted(&world)[0].len() >= 4);
        world = match round {
            1 if world.fs.txns.is_journaled() => {
                let cut = world.cut_power_now();
                world.recover(cut)
            }
            _ => world.reopen(),
        };
        world.fs.sync_volume(&world.cx).unwrap();
        assert_eq!(counted(&world), walked(&world), "after round {round}");
    }
    world.close();
}

#[test]
fn counts_agree_with_the_files_after_random_changes() {
    let volumes: [&[&str]; 5] = [
        &["-t", "ext4", "-O", "quota,project,fast_commit", "-I", "256"],
        &["-t", "ext4", "-b", "1024", "-O", "quota"],
        &["-t", "ext4", "-b", "65536", "-O", "quota,orphan_file"],
        &[
            "-t",
            "ext4",
            "-O",
            "quota,project,^has_journal,^extent,^64bit",
            "-I",
            "256",
        ],
        &[
            "-t",
            "ext4",
            "-O",
            "quota,project,ea_inode,inline_data,bigalloc",
            "-C",
            "16384",
        ],
    ];
    for options in volumes {
        random_changes(options, "64M", 300);
    }
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
    let make = ["-t", "ext4", "-O", "quota,project", "-I", "256"];
    let options = crate::MountOptions::parse(options).unwrap();
    let world = World::open_with(crate::disk::test_images::Image::make(&make, "64M"), options);
    world
        .fs
        .set_quota_control("quota/user", "1000 100 200 5 8")
        .unwrap();
    world
        .fs
        .set_quota_control("quota/project", "7 0 80 0 0")
        .unwrap();
    world
}

/// Writes blocks until the first error; returns the bytes written.
fn fill(world: &World, cx: &Cx, ino: InodeNo) -> u64 {
    let mut at = 0;
    loop {
        match FileSystem::write(&*world.fs, cx, ino, at, &[1; 10_000], false) {
            Ok(written) => at += written as u64,
            Err(error) => {
                assert_eq!(error, FsError::Quota);
                return at;
            }
        }
    }
}

#[test]
fn hard_limits_hold_for_users_and_not_for_root() {
    for options in ["usrquota", "usrquota,nodelalloc"] {
        let world = limited(options);
        let user = caller(1000, 1000);
        let file = world
            .fs
            .mknod(&user, ROOT, b"file", 0o100_644, 0)
            .unwrap()
            .ino;
        assert_eq!(fill(&world, &user, file), 200 << 10, "{options}");
        // What is there can be overwritten.
        FileSystem::write(&*world.fs, &user, file, 0, &[2; 8192], false).unwrap();
        world.fs.sync_volume(&world.cx).unwrap();
        assert_eq!(counted(&world)[0][&1000].0, 200 << 10);
        let allocate = steadfs_vfs::FallocMode::Allocate { keep_size: true };
        let inode = world.fs.by_number(file, IoTag::default()).unwrap();
        assert!(is_refused(world.fs.fallocate_file(
            &user,
            &inode,
            allocate,
            1 << 20,
            4096
        )));
        assert!(is_refused(world.fs.mkdir(&user, ROOT, b"dir", 0o755)));
        for n in 1..8 {
            let name = format!("f{n}");
            let made = world.fs.mknod(&user, ROOT, name.as_bytes(), 0o100_644, 0);
            made.unwrap();
        }
        assert!(is_refused(world.fs.mknod(
            &user,
            ROOT,
            b"one more",
            0o100_644,
            0
        )));
        let root = world
            .fs
            .mknod(&world.cx, ROOT, b"root's", 0o100_644, 0)
            .unwrap()
            .ino;
        let give = SetAttr {
            uid: Some(1000),
            ..SetAttr::default()
        };
        assert!(is_refused(world.fs.setattr(&caller(5, 5), root, &give)));
        world.fs.setattr(&world.cx, root, &give).unwrap();
        FileSystem::write(&*world.fs, &world.cx, root, 0, &[3; 50_000], false).unwrap();
        world.close();
    }
}

/// Writers of several files share what a limit leaves.
#[test]
fn writers_beside_each_other_keep_a_hard_limit() {
    let run = |options: &'static str| {
        move || {
            let world = limited(options);
            let made = (0..4).map(|n| {
                let name = format!("file{n}");
                let made = world
                    .fs
                    .mknod(&caller(1000, 1000), ROOT, name.as_bytes(), 0o100_644, 0);
                made.unwrap().ino
            });
            let files: Vec<InodeNo> = made.collect();
            let writers = files.iter().map(|&file| {
                let fs = Arc::clone(&world.fs);
                steadfs_rt::spawn("writer", move || {
                    let (cx, mut at) = (caller(1000, 1000), 0);
                    while let Ok(n) = FileSystem::write(&*fs, &cx, file, at, &[1; 30_000], false) {
                        at += n as u64;
                    }
                })
            });
            let writers: Vec<_> = writers.collect();
            writers.into_iter().for_each(steadfs_rt::JoinHandle::join);
            world.fs.sync_volume(&world.cx).unwrap();
            let used = counted(&world)[0][&1000].0;
            assert!((190 << 10..=200 << 10).contains(&used), "{options}: {used}");
            world.fs.unmount().unwrap();
        }
    };
    for seed in 0..10 {
        for options in ["usrquota", "usrquota,nodelalloc"] {
            sim::run(sim::Config::new(seed), run(options));
        }
    }
}

/// Makers of files in several directories share what a limit leaves.
#[test]
fn makers_beside_each_other_keep_a_hard_limit() {
    for seed in 0..10 {
        sim::run(sim::Config::new(seed), || {
            let world = limited("usrquota");
            let makers = (0..4).map(|n| {
                let fs = Arc::clone(&world.fs);
                let dir = fs.mkdir(&world.cx, ROOT, format!("{n}").as_bytes(), 0o777);
                let dir = dir.unwrap().ino;
                steadfs_rt::spawn("maker", move || {
                    let made = (0..20).map(|n| {
                        let name = format!("file{n}");
                        fs.mknod(&caller(1000, 1000), dir, name.as_bytes(), 0o100_644, 0)
                    });
                    made.take_while(Result::is_ok).count()
                })
            });
            let makers: Vec<_> = makers.collect();
            let made: usize = makers.into_iter().map(steadfs_rt::JoinHandle::join).sum();
            assert!((5..=8).contains(&made), "{made}");
            assert_eq!(counted(&world)[0][&1000].1, made as u64);
            world.fs.unmount().unwrap();
        });
    }
}

#[test]
fn limits_hold_only_where_options_say_so() {
    let world = limited("grpquota");
    let user = caller(1000, 1000);
    let file = world
        .fs
        .mknod(&user, ROOT, b"file", 0o100_644, 0)
        .unwrap()
        .ino;
    FileSystem::write(&*world.fs, &user, file, 0, &[1; 500_000], false).unwrap();
    FileSystem::remount(&*world.fs, &world.cx, "usrquota").unwrap();
    assert!(is_refused(FileSystem::write(
        &*world.fs, &user, file, 600_000, &[1; 9000], false
    )));
    FileSystem::remount(&*world.fs, &world.cx, "noquota").unwrap();
    FileSystem::write(&*world.fs, &user, file, 600_000, &[1; 9000], false).unwrap();
    world.close();
}

#[test]
fn files_of_a_project_share_its_limit() {
    let world = limited("prjquota");
    let user = caller(1000, 1000);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    world.fs.set_project(&world.cx, dir, 7).unwrap();
    let inherits = steadfs_vfs::InodeFlags::PROJINHERIT;
    world
        .fs
        .set_flags(
            &world.cx,
            dir,
            inherits.union(world.fs.flags(&world.cx, dir).unwrap().flags),
        )
        .unwrap();
    let first = world.fs.mknod(&user, dir, b"a", 0o100_666, 0).unwrap().ino;
    let second = world
        .fs
        .mknod(&caller(2, 2), dir, b"b", 0o100_666, 0)
        .unwrap()
        .ino;
    let own = world.fs.geo().block_size.bytes_u64();
    let filled = fill(&world, &user, first);
    assert_eq!(
        filled,
        (80 << 10) - own,
        "the directory's block counts, too"
    );
    assert_eq!(fill(&world, &caller(2, 2), second), 0);
    world.fs.unlink(&user, dir, b"a").unwrap();
    world.fs.forget(first, 1);
    assert_eq!(fill(&world, &caller(2, 2), second), filled);
    world.close();
}

#[test]
fn a_soft_limit_becomes_a_hard_one() {
    let run = || {
        let world = limited("usrquota");
        world
            .fs
            .set_quota_control("quota/user", "grace 60 60")
            .unwrap();
        let user = caller(1000, 1000);
        let file = world
            .fs
            .mknod(&user, ROOT, b"file", 0o100_644, 0)
            .unwrap()
            .ino;
        let write = |at| FileSystem::write(&*world.fs, &user, file, at, &[1; 120_000], false);
        write(0).unwrap();
        world.fs.sync_volume(&world.cx).unwrap();
        let shown = world.fs.quota_control("quota/user").unwrap().unwrap();
        assert!(shown.starts_with("grace 60 60\n"), "{shown}");
        let line = shown
            .lines()
            .find(|line| line.starts_with("1000 "))
            .unwrap();
        assert!(
            line.starts_with("1000 118 100 200 ") && !line.contains(" 200 0 "),
            "{line}"
        );
        FileSystem::write(&*world.fs, &user, file, 200_000, &[1; 4096], false).unwrap();
        steadfs_rt::sleep(std::time::Duration::from_secs(61));
        assert!(is_refused(FileSystem::write(
            &*world.fs, &user, file, 300_000, &[1; 4096], false
        )));
        // Below the limit the time begins anew.
        let cut = SetAttr {
            size: Some(4096),
            ..SetAttr::default()
        };
        world.fs.setattr(&user, file, &cut).unwrap();
        write(0).unwrap();
        world.close();
    };
    sim::run(sim::Config::new(1), run);
}
