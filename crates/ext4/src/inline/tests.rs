use std::collections::BTreeMap;

use steadfs_base::InodeNo;
use steadfs_rt::Random;
use steadfs_vfs::{FallocMode, FileSystem, FsError, RenameFlags, SetAttr, SetXattr};

use super::*;
use crate::disk::test_images::Image;
use crate::test_world::{ROOT, World};

fn make(inode_size: &str, features: &str) -> World {
    let options = ["-t", "ext4", "-b", "1024", "-I", inode_size, "-O", features];
    World::open(Image::make(&options, "16M"))
}

fn is_inline(world: &World, ino: InodeNo) -> bool {
    let inode = world.fs.by_number(ino, world.cx.tag).unwrap();
    inode.has(INLINE_DATA)
}

fn set_size(world: &World, ino: InodeNo, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    world.fs.setattr(&world.cx, ino, &set).unwrap();
}

fn write(world: &World, ino: InodeNo, at: usize, data: &[u8]) {
    let written = FileSystem::write(&*world.fs, &world.cx, ino, at as u64, data, false);
    assert_eq!(written, Ok(data.len()));
}

fn content(world: &World, ino: InodeNo) -> Vec<u8> {
    let len = world.fs.getattr(&world.cx, ino).unwrap().size as usize;
    let read = FileSystem::read(&*world.fs, &world.cx, ino, 0, len).unwrap();
    read.to_vec()
}

/// Some change of a file, and of the bytes that it must have then.
fn change_file(world: &World, random: &mut Random, ino: InodeNo, bytes: &mut Vec<u8>) {
    let (fs, cx) = (&*world.fs, &world.cx);
    let most = [20, 40, 70, 70, 170, 3000][random.below(6)];
    match random.below(14) {
        0..5 => {
            let data = vec![b'a' + random.below(26) as u8; 1 + random.below(most)];
            let at = match random.below(3) {
                0 => bytes.len(),
                _ => random.below(bytes.len() + 40),
            };
            write(world, ino, at, &data);
            bytes.resize(bytes.len().max(at + data.len()), 0);
            bytes[at..at + data.len()].copy_from_slice(&data);
        }
        5..8 => {
            let size = random.below(most);
            set_size(world, ino, size as u64);
            bytes.resize(size, 0);
        }
        8 | 9 => {
            set_size(world, ino, 0);
            bytes.clear();
        }
        10 => {
            let value = vec![b'v'; random.below(120)];
            let set = FileSystem::setxattr(fs, cx, ino, b"user.a", &value, SetXattr::Any);
            set.unwrap();
        }
        11 => match FileSystem::removexattr(fs, cx, ino, b"user.a") {
            Ok(()) | Err(FsError::NoData) => {}
            Err(error) => panic!("{error}"),
        },
        _ if random.below(4) > 0 => FileSystem::fsync(fs, cx, ino, random.below(2) == 0).unwrap(),
        _ => {
            let (from, len) = (random.below(100), 1 + random.below(100));
            FileSystem::fallocate(fs, cx, ino, FallocMode::PunchHole, from as u64, len as u64)
                .unwrap();
            let end = bytes.len().min(from + len);
            bytes[from.min(end)..end].fill(0);
        }
    }
}

#[test]
fn files_match_their_model() {
    for (n, (size, features)) in [
        ("256", "inline_data"),
        ("512", "inline_data,^metadata_csum,^64bit"),
        ("1024", "inline_data,quota,ea_inode"),
        ("256", "inline_data,bigalloc,^has_journal"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut random = Random::new(n as u64);
        let mut world = make(size, features);
        let mut files: Vec<(InodeNo, Vec<u8>)> = (0..4)
            .map(|n| (world.file(ROOT, &[b'a' + n]).unwrap().ino, Vec::new()))
            .collect();
        let mut inline = [0; 2];
        for _ in 0..4 {
            for _ in 0..60 {
                let (ino, bytes) = &mut files[random.below(4)];
                change_file(&world, &mut random, *ino, bytes);
                assert_eq!(content(&world, *ino), *bytes);
                inline[usize::from(is_inline(&world, *ino))] += 1;
            }
            world = world.reopen();
            for (ino, bytes) in &files {
                assert_eq!(content(&world, *ino), *bytes);
            }
        }
        world.close();
        assert!(inline.iter().all(|seen| *seen > 20), "{inline:?}");
    }
}

#[test]
fn what_fits_stays_in_the_inode() {
    // 256 bytes: 160 of old and new fields, 4 of magic, 20 of the attribute's entry, 4 of the list's end.
    const MOST: usize = I_BLOCK_SIZE + 68;
    let world = make("256", "inline_data");
    let ino = world.file(ROOT, b"file").unwrap().ino;
    let blocks = || world.fs.statfs(&world.cx).unwrap().blocks_free;
    let free = blocks();
    write(&world, ino, 0, &[b'x'; MOST]);
    assert!(is_inline(&world, ino) && blocks() == free);
    assert_eq!(world.fs.getattr(&world.cx, ino).unwrap().blocks, 1);
    write(&world, ino, MOST, b"y");
    assert!(!is_inline(&world, ino) && blocks() < free);
    // As in Linux, a file with a map keeps it; here, one without blocks can change.
    set_size(&world, ino, 10);
    assert!(!is_inline(&world, ino));
    set_size(&world, ino, 0);
    write(&world, ino, 0, b"z");
    assert!(is_inline(&world, ino));
    world.close();
}

#[test]
fn an_fsync_makes_inline_content_durable() {
    for (datasync, features) in [
        (false, "inline_data"),
        (true, "inline_data"),
        (true, "inline_data,fast_commit"),
    ] {
        let world = make("256", features);
        let ino = world.file(ROOT, b"file").unwrap().ino;
        FileSystem::fsync(&*world.fs, &world.cx, ino, false).unwrap();
        write(&world, ino, 0, b"some words");
        FileSystem::fsync(&*world.fs, &world.cx, ino, datasync).unwrap();
        let device = world.cut_power_now();
        let world = world.recover(device);
        assert_eq!(content(&world, ino), b"some words");
        world.close();
    }
}

/// Some change of the names of a directory.
fn change_names(
    world: &World,
    random: &mut Random,
    dir: InodeNo,
    names: &mut BTreeMap<Vec<u8>, InodeNo>,
) {
    let (fs, cx) = (&*world.fs, &world.cx);
    let name = |n: usize| format!("{}{n}", "n".repeat(n * 3)).into_bytes();
    let (one, two) = (name(random.below(12)), name(random.below(12)));
    let known = names.get(&one).copied();
    match (random.below(8), known) {
        (0..4, None) => {
            let made = match random.below(3) {
                0 => world.mkdir(dir, &one),
                _ => world.file(dir, &one),
            };
            names.insert(one, made.unwrap().ino);
        }
        (0..4, Some(_)) => assert_eq!(world.file(dir, &one), Err(FsError::Exists)),
        (4 | 5, Some(ino)) => {
            let removed = match FileSystem::rmdir(fs, cx, dir, &one) {
                Err(FsError::NotDir) => FileSystem::unlink(fs, cx, dir, &one),
                removed => removed,
            };
            removed.unwrap();
            names.remove(&one);
            let gone = world.fs.by_number(ino, cx.tag);
            assert!(gone.is_err() || !world.names(dir).contains(&one));
        }
        (_, Some(ino)) if one != two && !names.contains_key(&two) => {
            let flags = RenameFlags::default();
            FileSystem::rename(fs, cx, (dir, &one), (dir, &two), flags).unwrap();
            names.remove(&one);
            names.insert(two, ino);
        }
        (_, None) => assert_eq!(world.lookup(dir, &one), Err(FsError::NotFound)),
        (_, Some(_)) => {}
    }
}

#[test]
fn directories_match_their_model() {
    for (n, (size, features)) in [
        ("256", "inline_data"),
        ("512", "inline_data,^metadata_csum,^filetype"),
        ("1024", "inline_data,casefold"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut random = Random::new(n as u64 + 7);
        let mut world = make(size, features);
        let mut inline = 0;
        for round in 0..6 {
            let dir = world
                .mkdir(ROOT, format!("d{round}").as_bytes())
                .unwrap()
                .ino;
            assert!(is_inline(&world, dir));
            let mut names = BTreeMap::new();
            for _ in 0..30 {
                change_names(&world, &mut random, dir, &mut names);
                inline += usize::from(is_inline(&world, dir) && !names.is_empty());
            }
            world = world.reopen();
            let found = world.names(dir);
            assert_eq!(found, names.keys().cloned().collect::<Vec<_>>());
            for (name, ino) in &names {
                assert_eq!(world.lookup(dir, name).unwrap().ino, *ino);
            }
        }
        world.close();
        assert!(inline > 30, "{inline}");
    }
}

#[test]
fn a_listing_goes_on_when_the_names_move_to_a_block() {
    let world = make("256", "inline_data");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    for n in 0..5 {
        world.file(dir, format!("name-{n}").as_bytes()).unwrap();
    }
    assert!(is_inline(&world, dir));
    let mut seen = Vec::new();
    let mut cookie = 0;
    loop {
        let mut next = None;
        let mut emit = |entry: steadfs_vfs::DirEntry<'_>| {
            seen.push(entry.name.to_vec());
            next = Some(entry.next);
            false
        };
        FileSystem::readdir(&*world.fs, &world.cx, dir, cookie, &mut emit).unwrap();
        let Some(after) = next else { break };
        cookie = after;
        if seen.len() == 4 {
            world.file(dir, &[b'l'; 200]).unwrap();
            assert!(!is_inline(&world, dir));
        }
    }
    seen.retain(|name| name.starts_with(b"name"));
    seen.sort();
    assert_eq!(seen.len(), 5);
    seen.dedup();
    assert_eq!(seen.len(), 5);
    world.close();
}
