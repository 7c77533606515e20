//! Options that change results of calls.

use steadfs_vfs::CallerState;

use super::*;

fn world(mkfs: &[&str], list: &str) -> World {
    let options = MountOptions::parse(list).unwrap();
    World::open_with(Image::make(mkfs, "16M"), options)
}

fn user(uid: u32, gid: u32, groups: &[u32]) -> Cx {
    Cx {
        uid,
        gid,
        groups: groups.to_vec(),
        ..Cx::default()
    }
}

/// A caller whose groups the request does not contain: the kernel sends them only with some that make an inode.
#[derive(Debug)]
struct InGroup(u32);

impl CallerState for InGroup {
    fn is_killed(&self) -> bool {
        false
    }

    fn is_in_group(&self, gid: u32) -> bool {
        gid == self.0
    }
}

/// Appends to a file until the volume is full for this caller; returns the number of bytes, all durable.
fn fill(world: &World, cx: &Cx, name: &[u8]) -> u64 {
    let ino = FileSystem::mknod(&*world.fs, cx, ROOT, name, 0o100_644, 0)
        .unwrap()
        .ino;
    let (data, mut size) = (vec![7; 64 << 10], 0);
    loop {
        match FileSystem::write(&*world.fs, cx, ino, size, &data, false) {
            Ok(written) => size += written as u64,
            Err(error) => break assert_eq!(error, FsError::NoSpace),
        }
    }
    FileSystem::fsync(&*world.fs, cx, ino, false).unwrap();
    size
}

/// Makes directories, then a large attribute, until no block is left for this caller's metadata; returns how many
/// directories were made.
fn fill_with_metadata(world: &World, cx: &Cx, name: &str) -> usize {
    let make = |n: usize| {
        let name = format!("{name}{n}");
        FileSystem::mkdir(&*world.fs, cx, ROOT, name.as_bytes(), 0o755)
    };
    let failed = (0..40).find_map(|n| Some((n, make(n).err()?)));
    let (made, error) = failed.expect("the volume has few blocks left for users");
    assert_eq!(error, FsError::NoSpace);
    let set = |cx| {
        let value = &[7; 900];
        let how = SetXattr::Any;
        FileSystem::setxattr(&*world.fs, cx, ROOT, b"user.large", value, how)
    };
    assert_eq!(set(cx), Err(FsError::NoSpace));
    set(&world.cx).unwrap();
    made
}

#[test]
fn only_privileged_users_get_reserved_blocks() {
    let mkfs = &["-t", "ext4", "-b", "1024", "-m", "20", "-N", "64"];
    for list in ["", "nodelalloc", "resuid=77", "resgid=88", "resgid=99"] {
        let world = world(mkfs, list);
        let reserved = world.fs.sb.lock().reserved_blocks();
        assert!(reserved > 3000, "{reserved}");
        let before = world.fs.statfs(&world.cx).unwrap();
        assert_eq!(before.blocks_available, before.blocks_free - reserved);
        assert!(fill(&world, &user(1000, 1000, &[]), b"user") > 0);
        let full = world.fs.statfs(&world.cx).unwrap();
        assert_eq!(full.blocks_available, 0);
        assert!(
            (reserved..reserved + 8).contains(&full.blocks_free),
            "{list}: {} free, {reserved} reserved",
            full.blocks_free
        );
        // Other users get at most a block or two.
        assert!(fill(&world, &user(1001, 1001, &[]), b"other") < 8 << 10);
        assert!(fill_with_metadata(&world, &user(1000, 1000, &[]), "dir") < 8);
        let left = world.fs.statfs(&world.cx).unwrap().blocks_free;
        assert!(left + 1 >= reserved, "{list}: {left} free");
        world.mkdir(ROOT, b"by root").unwrap();
        let named = match list {
            "resuid=77" => user(77, 1000, &[]),
            "resgid=88" => user(1000, 1000, &[88]),
            "resgid=99" => Cx {
                caller_state: Some(Arc::new(InGroup(99))),
                ..user(1000, 1000, &[])
            },
            _ => user(0, 0, &[]),
        };
        let most = reserved << 10;
        let got = fill(&world, &named, b"named");
        assert!(got > most - (64 << 10), "{list}: {got} of {most}");
        assert!(world.fs.statfs(&world.cx).unwrap().blocks_free < 8);
        world.close();
    }
}

#[test]
fn max_dir_size_kb_limits_directories() {
    for index in ["dir_index", "^dir_index"] {
        let mkfs = &["-t", "ext4", "-b", "1024", "-O", index, "-N", "1024"];
        let world = world(mkfs, "max_dir_size_kb=8");
        let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
        let make = |n: u32| world.file(dir, format!("{n:0>100}").as_bytes());
        let made = (0..).take_while(|&n| make(n).is_ok()).count() as u32;
        assert!((30..80).contains(&made), "{made}");
        assert!(matches!(make(made), Err(FsError::NoRoom(_))));
        let size = FileSystem::getattr(&*world.fs, &world.cx, dir)
            .unwrap()
            .size;
        assert_eq!(size, 8 << 10);
        // Other directories can grow, and this one accepts a name that replaces another.
        world.file(ROOT, b"elsewhere").unwrap();
        let first = format!("{:0>100}", 0);
        FileSystem::unlink(&*world.fs, &world.cx, dir, first.as_bytes()).unwrap();
        make(0).unwrap();
        world.close();
    }
}

#[test]
fn max_dir_size_kb_allows_a_first_block_and_does_not_limit_symlinks() {
    let world = world(&["-t", "ext4", "-b", "4096"], "max_dir_size_kb=3");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let size = || {
        let attr = FileSystem::getattr(&*world.fs, &world.cx, dir);
        attr.unwrap().size
    };
    let link = |n: u32| {
        let name = format!("{n:0>200}");
        FileSystem::symlink(&*world.fs, &world.cx, dir, name.as_bytes(), &[b'x'; 100])
    };
    let made = (0..).take_while(|&n| link(n).is_ok()).count() as u32;
    assert!((10..20).contains(&made), "{made}");
    assert!(matches!(link(made), Err(FsError::NoRoom(_))));
    assert_eq!(size(), 4096);
    world
        .fs
        .change_options(&world.cx, "max_dir_size_kb=4")
        .unwrap();
    assert!(matches!(link(made), Err(FsError::NoRoom(_))));
    world
        .fs
        .change_options(&world.cx, "max_dir_size_kb=9")
        .unwrap();
    link(made).unwrap();
    assert!(size() > 4096);
    world.close();
}

#[test]
fn minixdf_counts_the_volumes_own_blocks() {
    let blocks = |list| {
        let world = world(&["-t", "ext4", "-b", "1024"], list);
        let usage = world.fs.statfs(&world.cx).unwrap();
        world.close();
        (usage.blocks, usage.blocks_free)
    };
    let (all, free) = blocks("minixdf");
    assert_eq!(all, 16 << 10);
    let (useful, as_free) = blocks("bsddf");
    assert_eq!(as_free, free);
    assert!(useful < all - 1000 && useful >= free, "{useful}");
}

#[test]
fn with_grpid_new_files_have_their_directorys_group() {
    for (list, group) in [("grpid", 123), ("nogrpid", 1000)] {
        let world = world(&["-t", "ext4"], list);
        let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
        let own = SetAttr {
            gid: Some(123),
            ..SetAttr::default()
        };
        world.fs.setattr(&world.cx, dir, &own).unwrap();
        let caller = user(1000, 1000, &[]);
        let file = world.fs.mknod(&caller, dir, b"file", 0o100_644, 0).unwrap();
        let sub = world.fs.mkdir(&caller, dir, b"sub", 0o755).unwrap();
        assert_eq!((file.gid, sub.gid), (group, group), "{list}");
        for ino in [file.ino, sub.ino] {
            world.forget(ino);
        }
        world.close();
    }
}
