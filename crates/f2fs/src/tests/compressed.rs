//! Compressed files that are written, changed, cut, moved and synced at random, compared with a model.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_cache::{WritebackFs, WritebackReason};
use steadfs_rt::Random;
use steadfs_vfs::{FallocMode, FileSystem, FsError, InodeFlags, SetAttr};

use crate::checkpoint::Reason;
use crate::disk::{BLOCK_SIZE, BlockAddr};
use crate::space::Need;
use crate::test_world::{ALL, ROOT, World};

const GARBAGE_COLLECT: u32 = 0x4004_f506;
const GET_BLOCKS: u32 = 0x8008_f511;
const RELEASE: u32 = 0x8008_f512;
const RESERVE: u32 = 0x8008_f513;
const GET_OPTION: u32 = 0x8002_f515;
const SET_OPTION: u32 = 0x4002_f516;
const DECOMPRESS: u32 = 0xf517;
const COMPRESS: u32 = 0xf518;

fn number(world: &World, file: InodeNo, command: u32) -> Result<u64, FsError> {
    let answer = world.fs.ioctl(&world.cx, file, command, &[])?;
    let bytes = answer.expect("known").output;
    Ok(u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
}

fn saved(world: &World, file: InodeNo) -> u64 {
    number(world, file, GET_BLOCKS).unwrap()
}

/// A directory in which everything is compressed.
fn compressed_dir(world: &World) -> InodeNo {
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let flags = world.fs.flags(&world.cx, dir).unwrap().flags;
    let flags = flags.union(InodeFlags::COMPRESSED);
    world.fs.set_flags(&world.cx, dir, flags).unwrap();
    dir
}

/// Numbers in words, from the text's byte `start` on.
fn text(start: usize, len: usize) -> Vec<u8> {
    let words: String = (0..977).map(|n| format!("word {n} ")).collect();
    let mut text = words.as_bytes().repeat((start + len) / words.len() + 1);
    text.truncate(start + len);
    text.split_off(start)
}

fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    let words = (0..len / 8 + 1).map(|_| random.next_u64().to_ne_bytes());
    let mut noise = words.collect::<Vec<_>>().concat();
    noise.truncate(len);
    noise
}

/// Text that compresses, noise, zeros, or some of each.
fn content(random: &mut Random, len: usize) -> Vec<u8> {
    let start = random.below(1000);
    match random.below(5) {
        0 => vec![0; len],
        1 => noise(random, len),
        2 => {
            let mut mixed = text(start, len);
            let len = random.below(len.min(6000) + 1);
            let at = random.below(mixed.len() - len + 1);
            mixed[at..at + len].copy_from_slice(&noise(random, len));
            mixed
        }
        _ => text(start, len),
    }
}

struct Modelled {
    ino: InodeNo,
    bytes: Vec<u8>,
}

impl Modelled {
    fn check(&self, world: &World) {
        let attr = world.fs.getattr(&world.cx, self.ino).unwrap();
        assert_eq!(attr.size, self.bytes.len() as u64);
        let got = world
            .fs
            .read(&world.cx, self.ino, 0, self.bytes.len())
            .unwrap();
        let got = got.to_vec();
        let wrong = got.iter().zip(&self.bytes).position(|(a, b)| a != b);
        assert_eq!((got.len(), wrong), (self.bytes.len(), None));
    }

    fn write(&mut self, world: &World, at: usize, data: &[u8]) {
        let written = world.fs.write(&world.cx, self.ino, at as u64, data, false);
        assert_eq!(written, Ok(data.len()));
        let end = self.bytes.len().max(at + data.len());
        self.bytes.resize(end, 0);
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    fn resize(&mut self, world: &World, size: usize) {
        let set = SetAttr {
            size: Some(size as u64),
            ..SetAttr::default()
        };
        world.fs.setattr(&world.cx, self.ino, &set).unwrap();
        self.bytes.resize(size, 0);
    }
}

fn step(world: &World, random: &mut Random, file: &mut Modelled) {
    const MOST: usize = 300_000;
    let (fs, cx) = (&world.fs, &world.cx);
    let len = file.bytes.len();
    match random.below(20) {
        0..=8 => {
            let most = [1, 100, 4096, 5000, 16_384, 40_000, 100_000][random.below(7)];
            let size = 1 + random.below(most);
            let data = content(random, size);
            let mut at = random.below((len + 20_000).min(MOST));
            if random.below(2) == 0 {
                at = at / BLOCK_SIZE * BLOCK_SIZE;
            }
            file.write(world, at, &data);
        }
        9 => {
            let size = 1 + random.below(60_000);
            let data = content(random, size);
            file.write(world, if len > MOST { 0 } else { len }, &data);
        }
        10 | 11 => file.resize(world, random.below(len + 1)),
        12 => file.resize(world, len + random.below(50_000)),
        13 => fs.fsync(cx, file.ino, random.below(2) == 0).unwrap(),
        14 => fs.sync_all(cx).unwrap(),
        15 => {
            let end = random.below(MOST);
            let mode = FallocMode::Allocate { keep_size: true };
            fs.fallocate(cx, file.ino, mode, 0, end as u64 + 1).unwrap();
        }
        16 => {
            let _ = fs.ioctl(cx, file.ino, GARBAGE_COLLECT, &1_u32.to_ne_bytes());
        }
        17 => {
            let inode = fs.by_number(file.ino, cx.tag).unwrap();
            let end = random.below(80) as u64;
            fs.write_out_upto(&inode, end, cx.tag).unwrap();
        }
        18 => {
            let punch = fs.fallocate(cx, file.ino, FallocMode::PunchHole, 0, 4096);
            assert!(matches!(punch, Err(FsError::NotSupported(_))));
        }
        _ => world.judge_now(),
    }
    file.check(world);
}

#[test]
fn random_changes_match_the_model() {
    let mut packed = 0;
    for (n, options) in [
        "compress_algorithm=lz4",
        "compress_algorithm=lz4,compress_log_size=3,compress_chksum",
        "compress_algorithm=zstd:3,compress_chksum,mode=lfs",
        "compress_algorithm=zstd,compress_log_size=3",
        "compress_algorithm=lzo,compress_chksum",
        "compress_algorithm=lzo-rle,compress_log_size=3",
        "compress_log_size=5",
        "compress_mode=user",
    ]
    .iter()
    .enumerate()
    {
        let mut random = Random::new(n as u64 + 1);
        let mut world = World::make_with(ALL, 64, options);
        let dir = compressed_dir(&world);
        let mut files: Vec<Modelled> = [&b"one"[..], b"two"]
            .map(|name| Modelled {
                ino: world.file(dir, name).unwrap().ino,
                bytes: Vec::new(),
            })
            .into();
        for _ in 0..4 {
            for _ in 0..40 {
                let file = random.below(2);
                step(&world, &mut random, &mut files[file]);
            }
            packed += saved(&world, files[0].ino);
            world = world.reopen();
            files.iter().for_each(|file| file.check(&world));
        }
        world.close();
    }
    assert!(packed > 0);
}

/// A file of whole clusters of text.
fn text_file(world: &World, dir: InodeNo, clusters: usize) -> Modelled {
    let mut file = Modelled {
        ino: world.file(dir, b"text").unwrap().ino,
        bytes: Vec::new(),
    };
    file.write(world, 0, &text(0, clusters * 4 * BLOCK_SIZE));
    file
}

#[test]
fn saved_blocks_are_released_and_reserved() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&world.fs, &world.cx);
    let dir = compressed_dir(&world);
    let mut file = text_file(&world, dir, 50);
    assert_eq!(
        number(&world, dir, GET_BLOCKS).unwrap_err(),
        FsError::Invalid("the file is not compressed")
    );
    fs.fsync(cx, file.ino, false).unwrap();
    let blocks = |world: &World| world.fs.getattr(&world.cx, file.ino).unwrap().blocks / 8;
    let (before, kept) = (blocks(&world), saved(&world, file.ino));
    assert!(before >= 200 && kept >= 50, "{before} {kept}");
    assert!(matches!(number(&world, file.ino, RESERVE), Ok(0)));
    let free = fs.usage().blocks_free;
    assert_eq!(number(&world, file.ino, RELEASE), Ok(kept));
    assert_eq!(
        (saved(&world, file.ino), blocks(&world)),
        (0, before - kept)
    );
    assert_eq!(fs.usage().blocks_free, free + kept);
    let world = world.reopen();
    file.check(&world);
    let (fs, cx) = (&world.fs, &world.cx);
    assert!(matches!(
        number(&world, file.ino, RELEASE),
        Err(FsError::Invalid(_))
    ));
    assert_eq!(
        fs.write(cx, file.ino, 0, b"x", false),
        Err(FsError::NotPermitted)
    );
    let cut = |size| {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        fs.setattr(cx, file.ino, &set).map(drop)
    };
    assert!(matches!(cut(5000), Err(FsError::Invalid(_))));
    assert_eq!(cut(40 * 16_384), Ok(()));
    file.bytes.truncate(40 * 16_384);
    file.check(&world);
    world.judge_now();
    let again = number(&world, file.ino, RESERVE).unwrap();
    assert!(again > 0 && again == saved(&world, file.ino));
    file.write(&world, 7000, b"changed");
    let world = world.reopen();
    file.check(&world);
    // Released again, then emptied: it can be written as a new file.
    number(&world, file.ino, RELEASE).unwrap();
    file.resize(&world, 0);
    file.write(&world, 0, b"new");
    world.reopen().close();
}

#[test]
fn files_are_compressed_by_hand() {
    let world = World::make_with(ALL, 64, "compress_mode=user,compress_algorithm=zstd");
    let (fs, cx) = (&world.fs, &world.cx);
    let dir = compressed_dir(&world);
    let file = text_file(&world, dir, 20);
    let option = |ino| fs.ioctl(cx, ino, GET_OPTION, &[]).unwrap().unwrap().output;
    assert_eq!(option(file.ino), [2, 2]);
    fs.sync_all(cx).unwrap();
    assert_eq!(saved(&world, file.ino), 0);
    assert!(fs.ioctl(cx, file.ino, COMPRESS, &[]).is_ok());
    let kept = saved(&world, file.ino);
    assert!(kept >= 20, "{kept}");
    file.check(&world);
    world.judge_now();
    assert!(fs.ioctl(cx, file.ino, DECOMPRESS, &[]).is_ok());
    assert_eq!(saved(&world, file.ino), 0);
    file.check(&world);
    let set = |ino, option: [u8; 2]| fs.ioctl(cx, ino, SET_OPTION, &option).map(drop);
    assert_eq!(set(file.ino, [1, 2]), Err(FsError::FileTooBig));
    let empty = world.file(dir, b"empty").unwrap().ino;
    assert!(matches!(set(empty, [4, 2]), Err(FsError::Invalid(_))));
    assert!(matches!(set(empty, [1, 9]), Err(FsError::Invalid(_))));
    assert_eq!(set(empty, [0, 4]), Ok(()));
    assert_eq!(option(empty), [0, 4]);
    world.close();
    let world = World::make(ALL, 64);
    let dir = compressed_dir(&world);
    let file = text_file(&world, dir, 1);
    let refused = world.fs.ioctl(&world.cx, file.ino, COMPRESS, &[]);
    assert!(matches!(refused, Err(FsError::NotSupported(_))));
    world.close();
}

#[test]
fn names_and_directories_decide_what_is_compressed() {
    let options = "compress_extension=txt,nocompress_extension=jpg";
    let world = World::make_with(ALL, 64, options);
    let (fs, cx) = (&world.fs, &world.cx);
    let dir = compressed_dir(&world);
    let is = |ino| {
        let flags = fs.flags(cx, ino).unwrap().flags;
        flags.contains(InodeFlags::COMPRESSED)
    };
    let made = |dir, name: &[u8]| world.file(dir, name).unwrap().ino;
    assert!(is(made(ROOT, b"a.txt")) && is(made(ROOT, b"b.TXT")));
    assert!(!is(made(ROOT, b"a.txt.gz")) && !is(made(ROOT, b".txt")));
    assert!(is(made(dir, b"plain")) && !is(made(dir, b"picture.jpg")));
    let sub = world.mkdir(dir, b"sub").unwrap().ino;
    assert!(is(sub) && is(made(sub, b"file")));
    let unset = |ino, flag| fs.set_flags(cx, ino, flag);
    let (on, off) = (InodeFlags::COMPRESSED, InodeFlags::NOT_COMPRESSED);
    unset(sub, off).unwrap();
    let not = made(sub, b"not");
    assert!(!is(not) && fs.flags(cx, not).unwrap().flags.contains(off));
    assert!(matches!(
        unset(not, on.union(off)),
        Err(FsError::Invalid(_))
    ));
    // Only while a file is empty.
    unset(not, on).unwrap();
    fs.write(cx, not, 0, b"content", false).unwrap();
    assert!(matches!(
        unset(not, InodeFlags(0)),
        Err(FsError::Invalid(_))
    ));
    let small = made(ROOT, b"small");
    fs.write(cx, small, 0, b"inline", false).unwrap();
    assert!(matches!(unset(small, on), Err(FsError::Invalid(_))));
    world.reopen().close();
    let world = World::make("extra_attr", 64);
    let file = world.file(ROOT, b"file").unwrap().ino;
    let refused = world.fs.set_flags(&world.cx, file, on);
    assert!(matches!(refused, Err(FsError::NotSupported(_))));
    world.close();
}

/// Where nothing fits any more, what was acknowledged can still be written, also in clusters that become plain again.
#[test]
fn a_full_volume_keeps_what_it_acknowledged() {
    let world = World::make(ALL, 64);
    let dir = compressed_dir(&world);
    let mut file = text_file(&world, dir, 100);
    world.fs.sync_all(&world.cx).unwrap();
    let filler = world.file(ROOT, b"filler").unwrap().ino;
    let mut at = 0;
    loop {
        let block = vec![at as u8; 1 << 20];
        match world.fs.write(&world.cx, filler, at, &block, false) {
            Ok(written) => at += written as u64,
            Err(FsError::NoSpace) => break,
            Err(other) => panic!("{other}"),
        }
    }
    let mut random = Random::new(5);
    for cluster in 0..100 {
        let noise: Vec<u8> = (0..20_000).map(|_| random.below(256) as u8).collect();
        let at = cluster * 16_384 + random.below(9000);
        let room = noise.len().min(file.bytes.len() - at);
        file.write(&world, at, &noise[..room]);
        if cluster % 9 == 0 {
            world.fs.fsync(&world.cx, file.ino, false).unwrap();
        }
    }
    world.fs.checkpoint(Reason::Sync, world.cx.tag).unwrap();
    file.check(&world);
    let world = world.reopen();
    file.check(&world);
    world.close();
}

/// They are compressed first, and encrypted then.
#[test]
fn clusters_of_encrypted_files_are_rewritten_with_their_key() {
    let world = World::make_with(ALL, 64, "compress_mode=user");
    let (fs, cx) = (&*world.fs, &world.cx);
    let name = "ab".repeat(8);
    let control = |command: String| FileSystem::write_control(fs, "keys", command.as_bytes());
    control(format!("add {name} {}", "5c".repeat(64))).unwrap();
    let dir = compressed_dir(&world);
    control(format!("policy {} {name} 1 4 0 0", dir.0)).unwrap();
    let file = text_file(&world, dir, 5);
    fs.sync_all(cx).unwrap();
    for (command, saves) in [(COMPRESS, true), (DECOMPRESS, false)] {
        fs.ioctl(cx, file.ino, command, &[]).unwrap();
        file.check(&world);
        assert_eq!(saved(&world, file.ino) > 0, saves);
    }
    control(format!("remove {name}")).unwrap();
    for command in [COMPRESS, DECOMPRESS] {
        let refused = fs.ioctl(cx, file.ino, command, &[]);
        assert_eq!(refused.map(drop), Err(FsError::NoKey));
    }
    world.close();
}

/// The first batch of write-back ends in a cluster whose last blocks are a hole: the batch behind it is written, too.
#[test]
fn a_hole_at_the_end_of_a_batch_ends_no_write_back() {
    for by_fsync in [true, false] {
        let world = World::make_with(ALL, 128, "compress_log_size=2");
        let dir = compressed_dir(&world);
        let mut file = Modelled {
            ino: world.file(dir, b"file").unwrap().ino,
            bytes: Vec::new(),
        };
        let batch = world.fs.turn(WritebackReason::Sync).0.next_multiple_of(4);
        file.write(&world, 0, &text(0, (batch - 2) * BLOCK_SIZE));
        file.write(&world, batch * BLOCK_SIZE, &text(7, 40 * BLOCK_SIZE));
        let inode = world.fs.by_number(file.ino, world.cx.tag).unwrap();
        let all = (batch - 2 + 40) * BLOCK_SIZE;
        assert_eq!(inode.pages.dirty_bytes(), all as u64, "not written yet");
        drop(inode);
        let again = match by_fsync {
            true => {
                world.fs.fsync(&world.cx, file.ino, false).unwrap();
                let device = MemDevice::from_bytes(&world.bytes());
                World::of(Arc::new(device), "")
            }
            false => World::of(world.close(), ""),
        };
        file.check(&again);
        again.close();
    }
}

/// Slots of a released file that are reserved need no space.
#[test]
fn slots_that_are_reserved_are_not_reserved_again() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&world.fs, &world.cx);
    let dir = compressed_dir(&world);
    let file = text_file(&world, dir, 10);
    fs.fsync(cx, file.ino, false).unwrap();
    let released = number(&world, file.ino, RELEASE).unwrap();
    let inode = fs.by_number(file.ino, cx.tag).unwrap();
    let need = Need {
        blocks: 1,
        nodes: 0,
    };
    fs.space.reserve(need, true).unwrap();
    {
        let change = fs.change().unwrap();
        let mut core = inode.core.write();
        let slot = (fs.make_slot(&change, &inode, &mut core, 7, cx.tag)).unwrap();
        let set = fs.set_slot(&change, &inode, &mut core, &slot, BlockAddr::NEW, cx.tag);
        assert_eq!(set, Ok(BlockAddr::NULL));
    }
    let before = fs.space.counts();
    assert_eq!(number(&world, file.ino, RESERVE), Ok(released - 1));
    let after = fs.space.counts();
    assert_eq!(after.reserved, before.reserved);
    assert_eq!(after.valid_blocks, before.valid_blocks + released - 1);
    assert_eq!(saved(&world, file.ino), released);
    drop(inode);
    world.reopen().close();
}

/// A released file grows only if that writes to none of its clusters.
#[test]
fn a_released_file_does_not_grow_over_a_compressed_tail() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&world.fs, &world.cx);
    let dir = compressed_dir(&world);
    let grow = |ino| {
        let set = SetAttr {
            size: Some(3 * 16_384),
            ..SetAttr::default()
        };
        fs.setattr(cx, ino, &set).map(drop)
    };
    // The last block is compressed, full, or in a plain cluster.
    for (name, size, grown) in [
        (&b"within"[..], 2 * 16_384 - 100, Err(FsError::NotPermitted)),
        (b"full", 2 * 16_384, Ok(())),
        (b"plain", 16_384 + 5000, Ok(())),
    ] {
        let mut file = Modelled {
            ino: world.file(dir, name).unwrap().ino,
            bytes: Vec::new(),
        };
        file.write(&world, 0, &text(0, size));
        fs.sync_all(cx).unwrap();
        assert!(number(&world, file.ino, RELEASE).unwrap() > 0);
        assert_eq!(grow(file.ino), grown, "{size}");
        if grown.is_ok() {
            file.bytes.resize(3 * 16_384, 0);
        }
        file.check(&world);
        fs.fsync(cx, file.ino, false).unwrap();
        let inode = fs.by_number(file.ino, cx.tag).unwrap();
        assert_eq!(inode.pages.dirty_bytes(), 0);
    }
    world.reopen().close();
}

/// What cannot be read cannot be changed in part, but the clusters behind it are written, also those that the file grows
/// by, in the same batch and in later ones.
#[test]
fn a_cluster_that_cannot_be_read_keeps_no_other_from_the_device() {
    let world = World::make(ALL, 128);
    let dir = compressed_dir(&world);
    let mut file = text_file(&world, dir, 2);
    world.fs.sync_all(&world.cx).unwrap();
    let inode = world.fs.by_number(file.ino, world.cx.tag).unwrap();
    let packed = world.fs.slot(&inode, 1, world.cx.tag).unwrap();
    let batch = world.fs.turn(WritebackReason::Sync).0;
    drop(inode);
    let device = world.close();
    let at = packed.0 as usize * BLOCK_SIZE;
    device.write(at as u64, &[0; BLOCK_SIZE]);
    let world = World::of(device, "");
    file.write(&world, BLOCK_SIZE, &[b'x'; BLOCK_SIZE]);
    file.write(&world, 16_384 + BLOCK_SIZE, &[b'y'; BLOCK_SIZE]);
    file.write(&world, 2 * 16_384, &text(9, (batch + 40) * BLOCK_SIZE));
    let synced = world.fs.fsync(&world.cx, file.ino, false);
    assert!(matches!(synced, Err(FsError::Corrupt(_))), "{synced:?}");
    let inode = world.fs.by_number(file.ino, world.cx.tag).unwrap();
    assert_eq!(inode.pages.dirty_bytes(), BLOCK_SIZE as u64);
    world.fs.checkpoint(Reason::Sync, world.cx.tag).unwrap();
    let again = World::of(Arc::new(MemDevice::from_bytes(&world.bytes())), "ro");
    let size = again.fs.getattr(&again.cx, file.ino).unwrap().size as usize;
    assert_eq!(size, file.bytes.len());
    let read = again.fs.read(&again.cx, file.ino, 16_384, size).unwrap();
    assert!(read.to_vec() == file.bytes[16_384..]);
}
