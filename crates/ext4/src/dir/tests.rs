//! Random names against maps in memory, over all hash functions and block sizes; listings while the directory changes;
//! large directories. e2fsck judges every image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_rt::Random;
use steadfs_vfs::{CallerState, Cx, DirEntry, FsError, RenameFlags};

use crate::disk::Ino;
use crate::disk::test_images::Image;
use crate::test_world::{ROOT, World, check};

/// Names that differ in length and in their upper halves of bytes.
fn name(random: &mut Random, pool: usize) -> Vec<u8> {
    let n = random.below(pool);
    let mut name = format!("{n:05}").into_bytes();
    let len = match n % 10 {
        0 => 255,
        1..4 => 5 + n % 90,
        _ => 5 + n % 12,
    };
    while name.len() < len {
        name.push(0x80 | (n + name.len()) as u8);
    }
    name
}

type Model = BTreeMap<(InodeNo, Vec<u8>), InodeNo>;

fn step(world: &World, random: &mut Random, dirs: &[InodeNo], model: &mut Model, pool: usize) {
    let dir = dirs[random.below(dirs.len())];
    let at = (dir, name(random, pool));
    let (fs, cx) = (&world.fs, &world.cx);
    match random.below(10) {
        0..5 => {
            let made = if random.below(8) == 0 {
                world.mkdir(dir, &at.1)
            } else {
                world.file(dir, &at.1)
            };
            match made {
                Ok(attr) => assert!(model.insert(at, attr.ino).is_none()),
                Err(error) => {
                    assert_eq!(error, FsError::Exists);
                    assert!(model.contains_key(&at));
                }
            }
        }
        5..8 => {
            let result = match fs.unlink(cx, dir, &at.1) {
                Err(FsError::IsDir) => fs.rmdir(cx, dir, &at.1),
                other => other,
            };
            match result {
                Ok(()) => assert!(model.remove(&at).is_some()),
                Err(error) => {
                    assert_eq!(error, FsError::NotFound);
                    assert!(!model.contains_key(&at));
                }
            }
        }
        8 => {
            let to = (dirs[random.below(dirs.len())], name(random, pool));
            let flags = RenameFlags {
                exchange: random.below(3) == 0,
                ..RenameFlags::default()
            };
            match fs.rename(cx, (dir, &at.1), (to.0, &to.1), flags) {
                Ok(()) => {
                    let moved = model.remove(&at).unwrap();
                    let replaced = model.insert(to, moved);
                    if flags.exchange {
                        model.insert(at, replaced.unwrap_or(moved));
                    }
                }
                Err(FsError::NotFound) => assert!(
                    !model.contains_key(&at) || (flags.exchange && !model.contains_key(&to))
                ),
                Err(error) => assert!(matches!(error, FsError::IsDir | FsError::NotDir), "{error}"),
            }
        }
        _ => {
            let found = world.lookup(dir, &at.1).map(|attr| attr.ino);
            assert_eq!(found, model.get(&at).copied().ok_or(FsError::NotFound));
        }
    }
}

fn compare(world: &World, dirs: &[InodeNo], model: &Model, batch: usize) {
    for &dir in dirs {
        let mut listed = world.list(dir, batch);
        assert_eq!(listed[0], (b".".to_vec(), dir));
        assert_eq!(listed[1], (b"..".to_vec(), ROOT));
        listed.drain(..2);
        let count = listed.len();
        let listed: BTreeMap<_, _> = listed.into_iter().collect();
        assert_eq!(count, listed.len(), "a name was listed twice");
        let wanted: BTreeMap<_, _> = model
            .range((dir, Vec::new())..(InodeNo(dir.0 + 1), Vec::new()))
            .map(|((_, name), ino)| (name.clone(), *ino))
            .collect();
        assert_eq!(listed, wanted);
    }
}

fn torture(image: Image, steps: usize, pool: usize, seed: u64) {
    let mut random = Random::new(seed);
    let mut world = World::open(image);
    let dirs = [b"a", b"b"].map(|name| world.mkdir(ROOT, name).unwrap().ino);
    let mut model = Model::new();
    for n in 0..steps {
        step(&world, &mut random, &dirs, &mut model, pool);
        if n % (steps / 4) == steps / 8 {
            compare(&world, &dirs, &model, 1 + random.below(200));
            world = world.reopen();
        }
    }
    compare(&world, &dirs, &model, 1000);
    world.close();
}

#[test]
fn random_names_with_every_hash() {
    for (seed, hash) in ["legacy", "half_md4", "tea"].into_iter().enumerate() {
        for (flags, block_size) in [("1", "1024"), ("2", "4096")] {
            let options = ["-t", "ext4", "-b", block_size, "-N", "8192"];
            let image = Image::make(&options, "32M");
            image.debugfs(&format!("ssv def_hash_version {hash}"));
            // Signed or unsigned bytes.
            image.debugfs(&format!("ssv flags {flags}"));
            check(&image);
            torture(image, 12_000, 2500, seed as u64);
        }
    }
}

#[test]
fn random_names_without_index_checksums_or_journal() {
    for (seed, options) in [
        &["-t", "ext2", "-b", "1024"][..],
        &[
            "-t",
            "ext2",
            "-b",
            "1024",
            "-O",
            "^dir_index,^filetype",
            "-I",
            "128",
        ],
        &["-t", "ext3", "-b", "2048"],
        &["-t", "ext4", "-b", "1024", "-O", "^dir_index"],
        &[
            "-t",
            "ext4",
            "-b",
            "16384",
            "-O",
            "^metadata_csum,orphan_file",
        ],
        &["-t", "ext4", "-b", "65536", "-N", "8192"],
    ]
    .into_iter()
    .enumerate()
    {
        torture(Image::make(options, "64M"), 4000, 900, 100 + seed as u64);
    }
}

/// A listing in small batches while names are added and removed: names that exist all the time are listed once.
fn list_while_changing(image: Image, seed: u64) {
    let mut random = Random::new(seed);
    let world = World::open(image);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let mut there: BTreeSet<Vec<u8>> = BTreeSet::new();
    for _ in 0..random.below(1500) {
        let name = name(&mut random, 3000);
        if world.file(dir, &name).is_ok() {
            there.insert(name);
        }
    }
    let mut stayed = there.clone();
    let mut listed = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let (from, batch) = (cookie, 1 + random.below(40));
        let mut got = 0;
        let mut emit = |entry: DirEntry<'_>| {
            if got == batch {
                return false;
            }
            got += 1;
            *listed.entry(entry.name.to_vec()).or_insert(0) += 1;
            cookie = entry.next;
            true
        };
        world.fs.readdir(&world.cx, dir, from, &mut emit).unwrap();
        if got < batch {
            break;
        }
        for _ in 0..random.below(60) {
            let name = name(&mut random, 3000);
            if there.remove(&name) {
                world.fs.unlink(&world.cx, dir, &name).unwrap();
                stayed.remove(&name);
            } else {
                world.file(dir, &name).unwrap();
                there.insert(name);
            }
        }
    }
    for name in stayed {
        assert_eq!(listed.get(&name), Some(&1), "{name:?}");
    }
    world.close();
}

#[test]
fn cookies_stay_valid() {
    for seed in 0..6 {
        let hash = ["half_md4", "tea", "legacy"][seed % 3];
        let image = Image::make(&["-t", "ext4", "-b", "1024", "-N", "4096"], "16M");
        image.debugfs(&format!("ssv def_hash_version {hash}"));
        list_while_changing(image, seed as u64);
    }
    let linear = ["-t", "ext4", "-b", "1024", "-N", "4096", "-O", "^dir_index"];
    list_while_changing(Image::make(&linear, "16M"), 77);
}

/// A caller with a fatal signal.
#[derive(Debug)]
struct Killed;

impl CallerState for Killed {
    fn is_killed(&self) -> bool {
        true
    }

    fn is_in_group(&self, _: u32) -> bool {
        false
    }
}

#[test]
fn a_hundred_thousand_names() {
    let world = World::make(&["-t", "ext4", "-b", "1024", "-N", "200"], "64M");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let target = world.file(ROOT, b"target").unwrap().ino;
    // Hard links, as inodes are not tested here; one file has at most 65 000 names.
    let second = world.file(ROOT, b"second").unwrap().ino;
    for n in 0..100_000 {
        let ino = if n < 60_000 { target } else { second };
        let name = format!("some-name-{n}");
        world.fs.link(&world.cx, ino, dir, name.as_bytes()).unwrap();
        world.forget(ino);
    }
    let levels = {
        let inode = world.fs.by_number(dir, world.cx.tag).unwrap();
        let core = inode.core.read();
        let dir = super::Dir::new(&world.fs, inode.ino(), &core, world.cx.tag);
        dir.descend(&core, 0).unwrap().depth()
    };
    assert_eq!(levels, 2, "root, nodes, leaves");
    assert_eq!(world.list(dir, 500).len(), 100_002);
    let world = world.reopen();
    for n in (0..100_000).step_by(997) {
        let name = format!("some-name-{n}");
        let ino = if n < 60_000 { target } else { second };
        assert_eq!(world.lookup(dir, name.as_bytes()).unwrap().ino, ino);
    }
    for n in 0..100_000 {
        let name = format!("some-name-{n}");
        world.fs.unlink(&world.cx, dir, name.as_bytes()).unwrap();
    }
    let killed = Cx {
        caller_state: Some(Arc::new(Killed)),
        ..Cx::default()
    };
    // Thousands of leaves are empty.
    let listed = world.fs.readdir(&killed, dir, 2, &mut |_| true);
    assert_eq!(listed, Err(FsError::Interrupted));
    world.fs.rmdir(&world.cx, ROOT, b"dir").unwrap();
    world.close();
}

#[test]
fn a_full_index_is_reported() {
    // Names of 255 bytes: three to a leaf of 1 KiB, so that the index of two levels overflows.
    let world = World::make(&["-t", "ext4", "-b", "1024", "-N", "64"], "64M");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let target = world.file(ROOT, b"target").unwrap().ino;
    let mut made = 0;
    let refused = loop {
        let name = format!("{made:0255}");
        match world.fs.link(&world.cx, target, dir, name.as_bytes()) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, FsError::NoRoom(_)), "{refused}");
    assert!(made > 15_000, "{made}");
    let errors = steadfs_vfs::FileSystem::control(&*world.fs)
        .unwrap()
        .read("errors")
        .unwrap();
    let errors = String::from_utf8(errors).unwrap();
    let of_directory = format!(": directory {}: its index", dir.0);
    let reports = |line: &str| line.starts_with("full") && line.contains(&of_directory);
    assert!(
        errors.lines().any(reports) && errors.contains("tune2fs -O large_dir"),
        "{errors}"
    );
    let world = world.reopen();
    assert_eq!(world.list(dir, 1000).len(), made + 2);
    world.close();
}

#[test]
fn a_damaged_index_is_an_error() {
    let world = World::make(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], "16M");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    for n in 0..500 {
        world.file(dir, format!("{n}").as_bytes()).unwrap();
    }
    let root = {
        let inode = world.fs.by_number(dir, world.cx.tag).unwrap();
        let core = inode.core.read();
        let at = steadfs_base::FileBlock(0);
        let ino = Ino::from_vfs(dir).unwrap();
        world
            .fs
            .map_block(&core, ino, at, world.cx.tag)
            .unwrap()
            .unwrap()
    };
    let image = world.close();
    let mut bytes = image.bytes();
    // The second child's block number: beyond the directory.
    let at = root.0 as usize * 1024 + 32 + 8 + 4;
    bytes[at..at + 4].copy_from_slice(&9999u32.to_le_bytes());
    std::fs::write(image.path(), bytes).unwrap();
    let world = World::open(image);
    let mut damaged = 0;
    for n in 0..500 {
        match world.lookup(dir, format!("{n}").as_bytes()) {
            Ok(_) => {}
            Err(FsError::Corrupt(_)) => damaged += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(damaged > 0 && damaged < 500);
    let mut emit = |_: DirEntry<'_>| true;
    let listed = world.fs.readdir(&world.cx, dir, 0, &mut emit);
    assert!(matches!(listed, Err(FsError::Corrupt(_))));
}

/// A listing goes on where the index says that the next leaf begins.
#[test]
fn an_index_that_leads_back_is_an_error() {
    let world = World::make(&["-t", "ext2", "-b", "1024", "-O", "dir_index"], "16M");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    for n in 0..600 {
        world.file(dir, format!("{n:0200}").as_bytes()).unwrap();
    }
    let ino = Ino::from_vfs(dir).unwrap();
    let inode = world.fs.by_number(dir, world.cx.tag).unwrap();
    let core = inode.core.read().clone();
    drop(inode);
    let block = |world: &World, n| {
        let names = super::Dir::new(&world.fs, ino, &core, world.cx.tag);
        names.block(&core, n).unwrap().block().0 as usize * 1024
    };
    let root = block(&world, 0);
    let image = world.close();
    let mut bytes = image.bytes();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(bytes[root + 30], 1, "the index has two levels");
    let world = World::open(image);
    let node = block(&world, word(&bytes, root + 44));
    let leaf = block(&world, word(&bytes, node + 12));
    let image = world.close();
    // The names before this node go on in its first leaf, which has none.
    bytes[root + 40] |= 1;
    bytes[leaf..leaf + 8].copy_from_slice(&[0, 0, 0, 0, 0, 4, 0, 0]);
    let entries = word(&bytes, node + 8) >> 16;
    for n in 1..entries {
        let at = node + 8 + 8 * n as usize;
        bytes[at..at + 4].copy_from_slice(&(2 * n).to_le_bytes());
    }
    std::fs::write(image.path(), bytes).unwrap();
    let world = World::open(image);
    let listed = world.fs.readdir(&world.cx, dir, 0, &mut |_| true);
    let error = listed.unwrap_err();
    assert!(error.to_string().contains("is not in order"), "{error}");
}

/// An index of one empty leaf, again and again, in a directory of 4 GiB as its inode says.
#[test]
fn an_index_that_repeats_a_leaf_is_an_error() {
    let world = World::make(&["-t", "ext2", "-b", "1024", "-O", "dir_index"], "16M");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    for n in 0..100 {
        world.file(dir, format!("{n}").as_bytes()).unwrap();
    }
    let ino = Ino::from_vfs(dir).unwrap();
    let (root, leaf, inode_at, hash) = {
        let (fs, tag) = (&world.fs, world.cx.tag);
        let inode = fs.by_number(dir, tag).unwrap();
        let core = inode.core.read();
        let names = super::Dir::new(fs, ino, &core, tag);
        let kind = names.hash_kind(&core).unwrap();
        let block = |n| names.block(&core, n).unwrap().block().0 as usize * 1024;
        let (slots, at) = fs.inode_slot(ino, tag).unwrap();
        let inode_at = slots.block().0 as usize * 1024 + at;
        let hash = names.hash(kind, b"none").unwrap().major;
        (block(0), block(1), inode_at, hash)
    };
    let image = world.close();
    let mut bytes = image.bytes();
    let mut put = |at: usize, new: &[u8]| bytes[at..at + new.len()].copy_from_slice(new);
    put(inode_at + 4, &0xFFFF_FC00_u32.to_le_bytes());
    put(leaf, &[0, 0, 0, 0, 0, 4, 0, 0]);
    const ENTRIES: u16 = 120;
    put(root + 34, &ENTRIES.to_le_bytes());
    for n in 0..usize::from(ENTRIES) {
        if n > 0 {
            put(root + 32 + n * 8, &(hash | 1).to_le_bytes());
        }
        put(root + 36 + n * 8, &1_u32.to_le_bytes());
    }
    std::fs::write(image.path(), bytes).unwrap();
    let world = World::open(image);
    let found = world.lookup(dir, b"none").map(drop);
    let listed = world.fs.readdir(&world.cx, dir, 0, &mut |_| true);
    for result in [found, listed] {
        let error = result.unwrap_err();
        assert!(matches!(&error, FsError::Corrupt(_)), "{error}");
        assert!(error.to_string().contains("is in it twice"), "{error}");
    }
}

/// Names are looked up, renamed and removed in the order of a directory without an index, which is that of readdir.
#[test]
fn linear_searches_begin_where_the_last_one_ended() {
    const NAMES: usize = 2000;
    let world = World::make(
        &["-t", "ext2", "-b", "1024", "-N", "64", "-O", "^dir_index"],
        "16M",
    );
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let target = world.file(ROOT, b"target").unwrap().ino;
    for n in 0..NAMES {
        let name = format!("some-name-{n}");
        world
            .fs
            .link(&world.cx, target, dir, name.as_bytes())
            .unwrap();
        world.forget(target);
    }
    let world = world.reopen();
    let names: Vec<Vec<u8>> = world
        .list(dir, 500)
        .into_iter()
        .skip(2)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names.len(), NAMES);
    let inode = world.fs.by_number(dir, world.cx.tag).unwrap();
    let blocks = inode.core.read().size / 1024;
    assert!(blocks > 40);
    // Blocks that a search for the name visits now.
    let visits = |name: &[u8]| {
        let core = inode.core.read();
        let names =
            super::Dir::new(&world.fs, inode.ino(), &core, world.cx.tag).after_last_search(&inode);
        names.find(&core, name).unwrap();
        u64::from(names.visits.get())
    };
    for round in 0..2 {
        let visited: u64 = names.iter().map(|name| visits(name)).sum();
        assert!(visited <= NAMES as u64 + blocks, "round {round}: {visited}");
    }
    assert_eq!(visits(b"no such name"), blocks);
    // The calls begin there, and leave the place for the next one.
    assert_eq!(visits(&names[0]), 2, "from the last block to the first");
    world.lookup(dir, &names[NAMES / 2]).unwrap();
    assert_eq!(visits(&names[NAMES / 2 + 1]), 1);
    let (fs, cx, last) = (&world.fs, &world.cx, &names[NAMES - 2]);
    fs.rename(
        cx,
        (dir, last),
        (dir, b"some-name-new"),
        RenameFlags::default(),
    )
    .unwrap();
    assert_eq!(visits(&names[NAMES - 1]), 1);
    fs.unlink(cx, dir, &names[0]).unwrap();
    assert_eq!(visits(&names[1]), 1);
    drop(inode);
    world.close();
}
