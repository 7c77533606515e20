use std::collections::BTreeMap;

use steadfs_base::InodeNo;
use steadfs_rt::sim;
use steadfs_vfs::{Attr, Cx, FileSystem, SetAttr, SetXattr};

use super::*;
use crate::test_world::{ROOT, World};

mod clusters;

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
    limited_as(&["quota,project"], options)
}

fn limited_as(make: &[&str], options: &str) -> World {
    let make = [&["-t", "ext4", "-I", "256", "-O"], make].concat();
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

/// A quota file of small blocks takes several new ones for an entry; the volume is full after any of them.
#[test]
fn a_quota_file_that_cannot_grow_stops_nothing() {
    let options = ["-t", "ext4", "-b", "1024", "-m", "0", "-O", "quota"];
    let world = World::make(&options, "8M");
    let large = world.file(ROOT, b"large").unwrap().ino;
    let mut at = 0;
    while let Ok(n) = FileSystem::write(&*world.fs, &world.cx, large, at, &vec![1; 64 << 10], false)
    {
        at += n as u64;
    }
    world.fs.sync_volume(&world.cx).unwrap();
    let mut refused = 0;
    for spare in 1..14_u32 {
        let end = world.fs.by_number(large, IoTag::default()).unwrap();
        let end = end.core.read().size / 1024 * 1024;
        let cut = SetAttr {
            size: Some(end - 1024),
            ..SetAttr::default()
        };
        world.fs.setattr(&world.cx, large, &cut).unwrap();
        world.fs.sync_volume(&world.cx).unwrap();
        let user = caller(5000 + spare * 70, 9000 + spare * 70);
        let name = format!("file{spare}");
        match world.fs.mknod(&user, ROOT, name.as_bytes(), 0o100_644, 0) {
            Ok(made) => world.forget(made.ino),
            Err(FsError::NoSpace) => refused += 1,
            Err(error) => panic!("{spare}: {error}"),
        }
        world.fs.check_writable().unwrap();
    }
    assert!(refused > 0, "the volume was never full");
    world.fs.sync_volume(&world.cx).unwrap();
    assert_eq!(counted(&world), walked(&world));
    world.close();
}

#[test]
fn what_is_restored_counts_for_owners_without_an_entry() {
    use steadfs_vfs::restore::RestoreVolume;
    use steadfs_vfs::{FileKind, FsxAttr, RecordedFile};

    let world = limited("usrquota");
    let model = world.file(ROOT, b"model").unwrap();
    let ino = InodeNo(model.ino.0 + 1);
    let file = RecordedFile {
        generation: 7,
        attr: Attr {
            uid: 4242,
            gid: 4243,
            nlink: 1,
            ..model
        },
        flags: FsxAttr {
            project: 4244,
            ..world.fs.flags(&world.cx, model.ino).unwrap()
        },
        target: None,
        xattrs: BTreeMap::new(),
        contents: Vec::new(),
    };
    assert_eq!(file.attr.kind, FileKind::Regular);
    world.fs.make_inode(ino, &file).unwrap();
    let inode = world.fs.by_number(ino, IoTag::default()).unwrap();
    // Delayed for the owner that it has before.
    FileSystem::write(&*world.fs, &world.cx, ino, 0, &[1; 9000], false).unwrap();
    world.fs.set_attributes(ino, &file).unwrap();
    world.fs.insert_entry(ROOT, b"restored", ino).unwrap();
    drop(inode);
    world.fs.sync_volume(&world.cx).unwrap();
    let quota = world.fs.quota.get().unwrap();
    for (file, owner) in quota.files().zip([4242, 4243, 4244]) {
        let dquot = file.dquot(&world.fs, owner).unwrap().expect("an entry");
        let account = dquot.account.lock();
        assert_eq!((account.entry.inodes, account.delayed), (1, 0));
    }
    let root = quota.files().next().unwrap().dquot(&world.fs, 0).unwrap();
    assert_eq!(root.expect("an entry").account.lock().delayed, 0);
    assert_eq!(counted(&world), walked(&world));
    world.close();
}

/// Small values may need an inode each, where the block is full; large ones may fit into the block.
#[test]
fn values_of_attributes_keep_a_hard_limit() {
    let make = [
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "quota,ea_inode",
        "-I",
        "256",
    ];
    let options = crate::MountOptions::parse("usrquota").unwrap();
    let world = World::open_with(crate::disk::test_images::Image::make(&make, "64M"), options);
    let limit = |line: &str| world.fs.set_quota_control("quota/user", line).unwrap();
    let user = caller(1000, 1000);
    let set = |ino, name: String, len: usize| {
        let name = format!("user.{name}");
        FileSystem::setxattr(
            &*world.fs,
            &user,
            ino,
            name.as_bytes(),
            &vec![b'v'; len],
            SetXattr::Any,
        )
    };
    let made = |name: &[u8]| world.fs.mknod(&user, ROOT, name, 0o100_644, 0).unwrap().ino;
    let (one, other) = (made(b"one"), made(b"other"));
    // Two inodes, and one block.
    limit("1000 0 4 0 2");
    set(one, "fits".to_owned(), 2500).unwrap();
    limit("1000 0 40 0 100");
    let mut error = None;
    for n in 0..40 {
        error = error.or(set(other, format!("value{n}"), 1900).err());
    }
    assert_eq!(error, Some(FsError::Quota));
    let used = counted(&world)[0][&1000];
    assert!((30 << 10..=40 << 10).contains(&used.0), "{used:?}");
    world.fs.sync_volume(&world.cx).unwrap();
    assert_eq!(counted(&world), walked(&world));
    world.close();
}

#[test]
fn inherited_lists_keep_a_hard_limit() {
    let make = ["-t", "ext4", "-b", "4096", "-O", "quota", "-I", "128"];
    let options = crate::MountOptions::parse("usrquota,acl").unwrap();
    let world = World::open_with(crate::disk::test_images::Image::make(&make, "64M"), options);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    // Of two named users; the form of Linux's system attributes.
    let entries: [(u16, u16, u32); 6] = [
        (1, 7, u32::MAX),
        (2, 6, 11),
        (2, 6, 12),
        (4, 5, u32::MAX),
        (16, 7, u32::MAX),
        (32, 5, u32::MAX),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        list.extend(
            [
                &tag.to_le_bytes()[..],
                &perm.to_le_bytes(),
                &id.to_le_bytes(),
            ]
            .concat(),
        );
    }
    let name = b"system.posix_acl_default";
    FileSystem::setxattr(&*world.fs, &world.cx, dir, name, &list, SetXattr::Any).unwrap();
    let limit = "1000 0 8 0 0";
    world.fs.set_quota_control("quota/user", limit).unwrap();
    let make = |name: &[u8]| world.fs.mknod(&caller(1000, 1000), dir, name, 0o100_666, 0);
    make(b"a").unwrap();
    make(b"b").unwrap();
    assert!(is_refused(make(b"c")));
    assert_eq!(counted(&world)[0][&1000], (8 << 10, 2));
    world.close();
}

#[test]
fn limits_change_while_a_file_is_written() {
    for seed in 0..6 {
        sim::run(sim::Config::new(seed), || {
            let world = limited("usrquota");
            let user = caller(1000, 1000);
            let file = world.fs.mknod(&user, ROOT, b"file", 0o100_644, 0);
            let (fs, file) = (Arc::clone(&world.fs), file.unwrap().ino);
            let writer = steadfs_rt::spawn("writer", move || {
                for at in 0..60 {
                    let at = at * 4096 % (150 << 10);
                    FileSystem::write(&*fs, &user, file, at, &[1; 4096], false).unwrap();
                    steadfs_rt::sleep(std::time::Duration::from_millis(1));
                }
            });
            for list in ["noquota", "usrquota", "grpquota,usrquota", "usrquota"] {
                FileSystem::remount(&*world.fs, &world.cx, list).unwrap();
                steadfs_rt::sleep(std::time::Duration::from_millis(7));
            }
            writer.join();
            world.fs.sync_volume(&world.cx).unwrap();
            for file in world.fs.quota.get().unwrap().files() {
                for owner in [0, 1000] {
                    let dquot = file.dquot(&world.fs, owner).unwrap();
                    assert_eq!(dquot.map_or(0, |dquot| dquot.account.lock().delayed), 0);
                }
            }
            assert_eq!(counted(&world), walked(&world));
            world.fs.unmount().unwrap();
        });
    }
}

#[test]
fn a_quota_file_has_a_largest_size() {
    let world = limited("usrquota");
    let quota = world.fs.quota.get().unwrap();
    let file = quota.files().next().unwrap();
    let size = std::mem::replace(&mut file.inode.core.write().size, 1 << 40);
    let refused = blocks::map_all(&world.fs, &file.inode).unwrap_err();
    assert!(
        refused.to_string().contains("268435456 at most"),
        "{refused}"
    );
    file.inode.core.write().size = size;
    world.close();
}
