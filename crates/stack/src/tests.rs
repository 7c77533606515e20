//! Devices over a device in memory.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, Device, Done, Geometry, MemDevice, Queue, QueueOptions, wait_all};

use crate::{
    DeviceBytes, JoinedDevice, Map, MappedDevice, Source, SparseImage, is_sparse, is_super,
    logical_partitions,
};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 3 % 251) as u8).collect()
}

fn queue(device: Arc<dyn Device>) -> Queue {
    Queue::new(device, QueueOptions::default())
}

#[test]
fn segments_are_read_at_any_place() {
    let bytes = pattern(10_000);
    let below = Arc::new(MemDevice::from_bytes(&bytes[..9728]));
    let tail = bytes[9728..].to_vec();
    let mut map = Map::default();
    let mut expected = Vec::new();
    // Odd places, fills that begin anywhere, and the tail.
    for (at, len) in [(7, 1001), (0, 512), (4000, 5000), (9700, 300), (9999, 1)] {
        map.push(len, Source::Below(at)).unwrap();
        expected.extend_from_slice(&bytes[at as usize..(at + len) as usize]);
        map.push(len / 3, Source::Fill([1, 2, 3, 4])).unwrap();
        expected.extend((0..len / 3).map(|i| 1 + (i % 4) as u8));
    }
    let device = MappedDevice::new(below, map, tail).unwrap();
    assert!(device.geometry().read_only);
    let size = device.geometry().size;
    assert_eq!(size, expected.len() as u64 / 512 * 512);
    let queue = queue(Arc::new(device));
    for at in (0..size).step_by(512) {
        for len in [512, 1024, 4096, size - at] {
            if at + len <= size {
                let read = queue.read(at, len as usize, IoTag::default()).unwrap();
                assert!(
                    *read == expected[at as usize..(at + len) as usize],
                    "{at} {len}"
                );
            }
        }
    }
    let ios: Vec<_> = (0..size / 512)
        .map(|n| queue.submit(Bio::read(n * 512, 512), IoTag::default()))
        .collect();
    wait_all(&ios).unwrap();
    let write = Bio::write(0, vec![Buf::zeroed(512)]);
    assert!(queue.submit(write, IoTag::default()).wait().is_err());
}

#[test]
fn a_window_is_read_and_written() {
    let below = Arc::new(MemDevice::from_bytes(&pattern(64 << 10)));
    let window = MappedDevice::window(Arc::clone(&below) as _, 4096, 8192).unwrap();
    assert_eq!(window.geometry().size, 8192);
    let queue = queue(Arc::new(window));
    let mut expected = below.to_bytes();
    let tag = IoTag::default();
    let bio = Bio::write(512, vec![Buf::copy_of(&[9; 1024])]);
    queue.submit(bio, tag).wait().unwrap();
    queue
        .submit(Bio::write_zeroes(4096, 4096), tag)
        .wait()
        .unwrap();
    expected[4608..5632].fill(9);
    expected[8192..12288].fill(0);
    assert!(below.to_bytes() == expected);
    assert!(*queue.read(0, 8192, tag).unwrap() == expected[4096..12288]);
    let error = queue.read(8192, 512, tag).unwrap_err();
    assert_eq!(error.offset, 8192, "{error}");
}

/// A device with larger logical blocks.
struct LargeBlocks(Arc<MemDevice>, Geometry);

impl Device for LargeBlocks {
    fn geometry(&self) -> &Geometry {
        &self.1
    }

    fn start(&self, bio: Bio, done: Done) {
        self.0.start(bio, done);
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        self.0.help(until);
    }
}

/// What lies across blocks can be read, but a write of it would have to read them first.
#[test]
fn a_window_that_is_not_of_whole_blocks_is_read_only() {
    let bytes = pattern(64 << 10);
    let memory = Arc::new(MemDevice::from_bytes(&bytes));
    let geometry = Geometry {
        logical_block: 4096,
        ..memory.geometry().clone()
    };
    let below: Arc<dyn Device> = Arc::new(LargeBlocks(Arc::clone(&memory), geometry));
    for (start, len, read_only) in [
        (63 * 512, 8192, true),
        (4096, 8704, true),
        (4096, 8192, false),
    ] {
        let window = MappedDevice::window(Arc::clone(&below), start, len).unwrap();
        assert_eq!(window.geometry().read_only, read_only, "{start} {len}");
        let queue = queue(Arc::new(window));
        let read = queue.read(0, 4096, IoTag::default()).unwrap();
        assert!(*read == bytes[start as usize..start as usize + 4096]);
        let write = Bio::write(0, vec![Buf::zeroed(4096)]);
        let written = queue.submit(write, IoTag::default()).wait();
        assert_eq!(written.is_err(), read_only);
    }
    let mut expected = bytes;
    expected[4096..8192].fill(0);
    assert!(memory.to_bytes() == expected);
}

#[test]
fn what_is_not_there_is_no_part() {
    let below = || Arc::new(MemDevice::new(4096)) as Arc<dyn Device>;
    assert!(MappedDevice::window(below(), 4096, 512).is_err());
    assert!(MappedDevice::window(below(), u64::MAX, u64::MAX).is_err());
    let cut = MappedDevice::window(below(), 1024, u64::MAX).unwrap();
    assert_eq!(cut.geometry().size, 3072);
    let mut map = Map::default();
    map.push(10, Source::Below(4090)).unwrap();
    assert!(MappedDevice::new(below(), map.clone(), Vec::new()).is_err());
    assert!(MappedDevice::new(below(), map, vec![0; 4]).is_ok());
}

/// A chunk of a sparse image: type, blocks, and what follows the header.
type Chunk<'a> = (u16, u32, &'a [u8]);

const RAW: u16 = 0xcac1;
const FILL: u16 = 0xcac2;
const OPEN: u16 = 0xcac3;
const CRC: u16 = 0xcac4;

fn sparse(block: u32, blocks: u32, chunks: &[Chunk<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [
        0xed26_ff3a,
        1,
        28 | 12 << 16,
        block,
        blocks,
        chunks.len() as u32,
        0,
    ] {
        bytes.extend(u32::to_le_bytes(word));
    }
    for (kind, count, data) in chunks {
        bytes.extend(u32::from(*kind).to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend((12 + data.len() as u32).to_le_bytes());
        bytes.extend_from_slice(data);
    }
    bytes
}

/// A device on a file of these bytes, and what follows its last sector.
fn file(bytes: &[u8]) -> (Arc<dyn Device>, Vec<u8>) {
    let (sectors, tail) = bytes.split_at(bytes.len() / 512 * 512);
    (Arc::new(MemDevice::from_bytes(sectors)), tail.to_vec())
}

#[test]
fn a_sparse_image_reads_as_what_it_was_made_of() {
    let (a, b) = (pattern(3 * 1024), pattern(1024));
    let chunks: [Chunk<'_>; 7] = [
        (RAW, 3, &a),
        (CRC, 0, &[1, 2, 3, 4]),
        (OPEN, 5, &[]),
        (FILL, 2, &[5, 6, 7, 8]),
        (OPEN, 0, &[]),
        (RAW, 1, &b),
        (FILL, 1, &[0; 4]),
    ];
    let bytes = sparse(1024, 12, &chunks);
    assert!(is_sparse(&bytes));
    let image = SparseImage::parse(&bytes).unwrap();
    assert!(!image.begins_open && !image.ends_open);
    let (below, tail) = file(&bytes);
    // Read as a device is, it is the same.
    let seen = DeviceBytes::new(Arc::clone(&below), tail.clone());
    assert_eq!(SparseImage::parse(&seen).as_ref(), Ok(&image));
    let device = MappedDevice::new(below, image.map, tail).unwrap();
    let mut expected = a.clone();
    expected.extend(vec![0; 5 * 1024]);
    expected.extend([5, 6, 7, 8].repeat(512));
    expected.extend(b);
    expected.extend(vec![0; 1024]);
    let queue = queue(Arc::new(device));
    assert!(*queue.read(0, 12 * 1024, IoTag::default()).unwrap() == expected);
    for at in (0..12 * 1024).step_by(512) {
        let read = queue.read(at, 512, IoTag::default()).unwrap();
        assert!(*read == expected[at as usize..at as usize + 512], "{at}");
    }
    let part = sparse(
        1024,
        9,
        &[(OPEN, 5, &[]), (RAW, 1, &a[..1024]), (OPEN, 3, &[])],
    );
    let part = SparseImage::parse(&part).unwrap();
    assert!(part.begins_open && part.ends_open);
}

#[test]
fn wrong_sparse_images_are_errors() {
    let data = pattern(2048);
    let good = sparse(1024, 3, &[(RAW, 2, &data), (FILL, 1, &[1, 2, 3, 4])]);
    SparseImage::parse(&good).unwrap();
    let fails = |bytes: &[u8], why: &str| {
        let said = SparseImage::parse(&bytes.to_vec()).unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
    };
    for len in 4..good.len() {
        let said = SparseImage::parse(&good[..len].to_vec()).unwrap_err();
        assert!(
            said.contains("cut off") || said.contains("behind the end"),
            "{len}: {said}"
        );
    }
    let with = |at: usize, value: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    fails(&with(4, 2), "it has version 2.0");
    fails(&with(8, 27 | 12 << 16), "headers that are too short");
    fails(&with(8, 28 | 11 << 16), "headers that are too short");
    fails(&with(12, 0), "blocks of 0 bytes");
    fails(&with(12, 1022), "blocks of 1022 bytes");
    fails(
        &with(16, 4),
        "chunks for 3072 bytes, and 4096 in its header",
    );
    fails(&with(16, 2), "its chunk 1 is behind the size in the header");
    fails(&with(20, u32::MAX), "4294967295 chunks, more than");
    fails(&with(20, 3), "its chunk 2 is cut off");
    fails(&with(28, 0xcac9), "its chunk 0 has the unknown type 0xcac9");
    fails(
        &with(32, 1),
        "its chunk 0 has 2060 bytes where 1036 are needed",
    );
    fails(
        &with(36, 12),
        "its chunk 0 has 12 bytes where 2060 are needed",
    );
    let most = sparse(
        u32::MAX - 3,
        u32::MAX,
        &[(OPEN, u32::MAX, &[]), (OPEN, u32::MAX, &[])],
    );
    fails(&most, "its chunk 1 is behind the size in the header");
}

/// Bytes at random, and one by one: there is an answer.
#[test]
fn sparse_and_super_images_of_random_bytes_have_an_answer() {
    let data = pattern(1024);
    let sparse = sparse(
        512,
        9,
        &[(RAW, 2, &data), (OPEN, 5, &[]), (FILL, 2, &[1; 4])],
    );
    let whole = super_image(&[("a", 0, 2)], &EXTENTS);
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..2000 {
        let mut bytes = sparse.clone();
        for _ in 0..1 + next() % 4 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        if let Ok(image) = SparseImage::parse(&bytes) {
            let (below, tail) = file(&bytes);
            let device = MappedDevice::new(below, image.map, tail).unwrap();
            assert!(device.geometry().size <= 1 << 40);
        }
    }
    for _ in 0..300 {
        let mut bytes = whole.clone();
        let at = [4096, 12288, 12288 + 256, 16384][next() as usize % 4];
        bytes[at + next() as usize % 512] = next() as u8;
        let _ = logical_partitions(&bytes);
    }
}

/// Extents: sectors, type, first sector, device.
type Extent = (u64, u32, u64, u32);
const EXTENTS: [Extent; 4] = [(4, 0, 100, 0), (2, 1, 0, 0), (6, 0, 90, 0), (3, 0, 120, 0)];
const SLOT: usize = 4096;
const SUPER_BYTES: usize = 80 << 10;

fn seal(bytes: &mut [u8], at: usize) {
    let sum = Sha256::digest(&*bytes);
    bytes[at..at + 32].copy_from_slice(&sum);
}

/// The metadata of a super partition, as metadata_format.h describes it: partitions are names with an attribute and extents.
fn metadata(partitions: &[(&str, u32, u32)], extents: &[Extent]) -> Vec<u8> {
    let mut tables = Vec::new();
    let mut first = 0;
    for (name, attributes, count) in partitions {
        let mut entry = [0; 52];
        entry[..name.len()].copy_from_slice(name.as_bytes());
        for (at, word) in [(36, *attributes), (40, first), (44, *count)] {
            entry[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        first += count;
        tables.extend(entry);
    }
    let after_partitions = tables.len();
    for (sectors, kind, at, device) in extents {
        tables.extend(sectors.to_le_bytes());
        tables.extend(kind.to_le_bytes());
        tables.extend(at.to_le_bytes());
        tables.extend(device.to_le_bytes());
    }
    let after_extents = tables.len();
    tables.extend([0; 48 + 64]);
    let mut header = vec![0; 256];
    let word = |header: &mut [u8], at: usize, word: usize| {
        header[at..at + 4].copy_from_slice(&(word as u32).to_le_bytes());
    };
    word(&mut header, 0, 0x414c_5030);
    word(&mut header, 4, 10 | 2 << 16);
    word(&mut header, 8, 256);
    word(&mut header, 44, tables.len());
    header[48..80].copy_from_slice(&Sha256::digest(&tables));
    let places = [
        (0, partitions.len(), 52),
        (after_partitions, extents.len(), 24),
        (after_extents, 1, 48),
        (after_extents + 48, 1, 64),
    ];
    for (table, (offset, count, entry)) in places.into_iter().enumerate() {
        word(&mut header, 80 + 12 * table, offset);
        word(&mut header, 84 + 12 * table, count);
        word(&mut header, 88 + 12 * table, entry);
    }
    seal(&mut header, 12);
    header.extend(tables);
    header
}

/// A super partition with two slots and their copies.
fn super_image(partitions: &[(&str, u32, u32)], extents: &[Extent]) -> Vec<u8> {
    let mut bytes = pattern(SUPER_BYTES);
    bytes[..4096].fill(0);
    let mut geometry = vec![0; 52];
    for (at, word) in [
        (0, 0x616c_4467),
        (4, 52),
        (40, SLOT as u32),
        (44, 2),
        (48, 4096),
    ] {
        geometry[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
    }
    seal(&mut geometry, 8);
    let metadata = metadata(partitions, extents);
    for at in [4096, 8192] {
        bytes[at..at + 52].copy_from_slice(&geometry);
    }
    for slot in 0..4 {
        let at = 12288 + slot * SLOT;
        bytes[at..at + metadata.len()].copy_from_slice(&metadata);
    }
    bytes
}

#[test]
fn logical_partitions_are_found_in_each_copy() {
    let parts = [("system_a", 1, 3), ("vendor", 2, 1), ("empty", 0, 0)];
    let whole = super_image(&parts, &EXTENTS);
    assert!(is_super(&whole));
    let found = logical_partitions(&whole).unwrap();
    let names: Vec<_> = found
        .iter()
        .map(|part| (&part.name[..], part.map.size() / 512))
        .collect();
    assert_eq!(names, [("system_a", 12), ("vendor_a", 3), ("empty", 0)]);
    let pieces: Vec<_> = found[0].map.pieces(0, u64::MAX).collect();
    let below = |sector: u64| Source::Below(sector * 512);
    assert_eq!(
        pieces,
        [(2048, below(100)), (1024, Source::ZERO), (3072, below(90))]
    );
    // The first geometry and all metadata but the last copy of the second slot are gone: its suffix is _b.
    let mut damaged = whole.clone();
    damaged[4096 + 9] ^= 1;
    for slot in 0..3 {
        damaged[12288 + slot * SLOT + 256] ^= 1;
    }
    let other = logical_partitions(&damaged).unwrap();
    assert_eq!(other[1].name, "vendor_b");
    assert_eq!(other[0], found[0]);
    damaged[12288 + 3 * SLOT + 100] ^= 1;
    let why = logical_partitions(&damaged).unwrap_err();
    assert_eq!(why, "has metadata with a wrong checksum of the tables");
    damaged[8192 + 9] ^= 1;
    let why = logical_partitions(&damaged).unwrap_err();
    assert_eq!(why, "has a geometry with a wrong checksum");
}

#[test]
fn wrong_super_images_are_errors() {
    let fails = |partitions: &[(&str, u32, u32)], extents: &[Extent], why: &str| {
        let said = logical_partitions(&super_image(partitions, extents)).unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
    };
    fails(
        &[("a", 0, 5)],
        &EXTENTS,
        "partition \"a\" that has extents of another one",
    );
    fails(
        &[("a", 0, u32::MAX)],
        &EXTENTS,
        "has extents of another one",
    );
    fails(&[("a", 0, 1), ("a", 0, 1)], &EXTENTS, "is there twice");
    fails(&[("a/b", 0, 1)], &EXTENTS, "whose name is not one");
    fails(&[("", 0, 1)], &EXTENTS, "whose name is not one");
    fails(
        &[("a", 0, 1)],
        &[(4, 0, 100, 1)],
        "is on more than one device",
    );
    fails(&[("a", 0, 1)], &[(4, 7, 100, 0)], "the unknown type 7");
    fails(
        &[("a", 0, 1)],
        &[(u64::MAX / 512, 0, 512, 0)],
        "behind the end of any device",
    );
    fails(
        &[("a", 0, 1)],
        &[(u64::MAX, 1, 0, 0)],
        "behind the end of any device",
    );
    // Tables that do not fit, with right checksums.
    let good = super_image(&[("a", 0, 1)], &EXTENTS);
    for (at, value, why) in [
        (4, 11, "unknown version 11.0"),
        (8, 127, "header of 127"),
        (44, 4000, "tables of 4000"),
        (80, u32::MAX, "does not fit"),
        (84, u32::MAX, "does not fit"),
        (88, 51, "does not fit"),
        (96, 0x1000_0000, "does not fit"),
    ] {
        let mut bytes = good.clone();
        for slot in 0..4 {
            let header = &mut bytes[12288 + slot * SLOT..][..256];
            header[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
            header[12..44].fill(0);
            seal(header, 12);
        }
        let said = logical_partitions(&bytes).unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
    }
}

/// Writes what it is asked to into a list, with its name.
struct Noted {
    name: &'static str,
    memory: MemDevice,
    list: Arc<steadfs_rt::Mutex<Vec<String>>>,
}

impl Device for Noted {
    fn geometry(&self) -> &steadfs_block::Geometry {
        self.memory.geometry()
    }

    fn start(&self, bio: Bio, done: steadfs_block::Done) {
        let marks = [(bio.preflush, "+flush"), (bio.fua, "+fua")];
        let marks: String = marks
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, mark)| *mark)
            .collect();
        let what = format!("{} {:?}{marks} {}", self.name, bio.op, bio.offset);
        self.list.lock().push(what);
        self.memory.start(bio, done);
    }
}

#[test]
fn a_flush_before_a_write_to_a_joined_device_makes_the_other_one_durable() {
    let list = Arc::new(steadfs_rt::Mutex::new(steadfs_rt::Rank::Leaf, Vec::new()));
    let noted = |name, bytes| {
        Arc::new(Noted {
            name,
            memory: MemDevice::new(bytes),
            list: Arc::clone(&list),
        })
    };
    let (volume, journal) = (noted("volume", 100 << 10), noted("journal", 16 << 10));
    let joined =
        JoinedDevice::with_journal(Arc::clone(&volume) as _, Arc::clone(&journal) as _).unwrap();
    let at = joined.last_at();
    assert_eq!((at, joined.geometry().size), (128 << 10, 144 << 10));
    let queue = queue(Arc::new(joined));
    let block = || vec![Buf::copy_of(&[7; 4096])];
    let tag = IoTag::default();
    for bio in [
        Bio::write(4096, block()),
        Bio::write(at + 8192, block()),
        Bio::write(at + 4096, block()).preflush_and_fua(),
        Bio::write(8192, block()).preflush_and_fua(),
        Bio::flush(),
    ] {
        queue.submit(bio, tag).wait().unwrap();
    }
    let seen = std::mem::take(&mut *list.lock());
    assert_eq!(
        seen,
        [
            "volume Write 4096",
            "journal Write 8192",
            "volume Flush 0",
            "journal Write+flush+fua 4096",
            "journal Flush 0",
            "volume Write+flush+fua 8192",
            "volume Flush 0",
            "journal Flush 0",
        ]
    );
    assert_eq!(queue.read(at + 4096, 4096, tag).unwrap()[..], [7; 4096]);
    assert_eq!(journal.memory.to_bytes()[8192], 7);
    let all = queue.read(96 << 10, 48 << 10, tag).unwrap();
    let parts = [
        &volume.memory.to_bytes()[96 << 10..],
        &[0; 28 << 10],
        &journal.memory.to_bytes(),
    ];
    assert!(all[..] == parts.concat(), "a read across the border");
    assert!(queue.read(104 << 10, 4096, tag).unwrap()[..] == [0; 4096]);
    for bio in [
        Bio::discard(at, 4096),
        Bio::read(at + (16 << 10), 4096),
        Bio::write(96 << 10, vec![Buf::copy_of(&[7; 8192])]),
        Bio::write(at - 4096, block()),
    ] {
        assert!(queue.submit(bio, tag).wait().is_err());
    }
}

#[test]
fn what_is_on_several_devices_is_cut_where_they_end() {
    let list = Arc::new(steadfs_rt::Mutex::new(steadfs_rt::Rank::Leaf, Vec::new()));
    let noted = |name| {
        Arc::new(Noted {
            name,
            memory: MemDevice::new(17 << 10),
            list: Arc::clone(&list),
        })
    };
    let all = [noted("a"), noted("b"), noted("c")];
    let parts = all.iter().map(|one| (Arc::clone(one) as _, 16 << 10));
    let joined = JoinedDevice::of_several(parts.collect()).unwrap();
    assert_eq!(
        (joined.last_at(), joined.geometry().size),
        (32 << 10, 48 << 10)
    );
    let queue = queue(Arc::new(joined));
    let tag = IoTag::default();
    let bytes: Vec<u8> = (0..24 << 10_u32).map(|n| (n % 251) as u8).collect();
    let pieces = || bytes.chunks(10 << 10).map(Buf::copy_of).collect::<Vec<_>>();
    for bio in [
        Bio::write(12 << 10, pieces()).with_fua(),
        Bio::write(12 << 10, pieces()).preflush_and_fua(),
        Bio::write(40 << 10, vec![Buf::copy_of(&[9; 4096])]).preflush_and_fua(),
        Bio::flush(),
    ] {
        queue.submit(bio, tag).wait().unwrap();
    }
    let seen = std::mem::take(&mut *list.lock());
    let cut = ["a Write+fua 12288", "b Write+fua 0", "c Write+fua 0"];
    let flush = ["a Flush 0", "b Flush 0", "c Flush 0"];
    let last = ["a Flush 0", "b Flush 0", "c Write+flush+fua 8192"];
    assert_eq!(seen, [&cut[..], &flush, &cut, &last, &flush].concat());
    assert!(queue.read(12 << 10, 24 << 10, tag).unwrap()[..] == bytes[..]);
    assert_eq!(all[2].memory.to_bytes()[8192], 9);
    queue
        .submit(Bio::discard(8 << 10, 32 << 10), tag)
        .wait()
        .unwrap();
    assert!(queue.read(12 << 10, 24 << 10, tag).unwrap()[..] == [0; 24 << 10]);
    assert!(queue.submit(Bio::read(44 << 10, 8192), tag).wait().is_err());
    let too_small = vec![(Arc::clone(&all[0]) as _, 18 << 10)];
    let refused = JoinedDevice::of_several(too_small).map(drop).unwrap_err();
    assert_eq!(
        refused,
        (0, "has 17408 bytes, the volume needs 18432".to_owned())
    );
}
