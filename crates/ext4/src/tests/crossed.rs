//! Corrupt volumes on which a block belongs to two structures: tree nodes that are free, or data, or another map's
//! table. Operations on them never panic, hang or leave a change half done.

use std::sync::Arc;

use steadfs_base::{InodeNo, IoTag};
use steadfs_block::{FaultDevice, MemDevice};
use steadfs_rt::Random;
use steadfs_vfs::{Cx, FallocMode, FileSystem, RenameFlags, SetAttr, SetXattr};

use crate::disk::{Ino, bitmap};
use crate::map::has_extents;
use crate::test_world::{ROOT, World};
use crate::{CacheSizes, Ext4, MountOptions};

const BLOCK: usize = 1024;
/// A limit of requests above what any call needs on a volume of 8 MiB.
const MOST: u64 = 1 << 16;

/// The seeds of the sweep; others by `STEADFS_CROSSED=from:cases`.
fn cases() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("STEADFS_CROSSED") else {
        return 0..150;
    };
    let (from, count) = text.split_once(':').unwrap();
    let from: u64 = from.parse().unwrap();
    from..from + count.parse::<u64>().unwrap()
}

/// A metadata block of a map.
struct Role {
    block: u32,
    /// Words of it that are block numbers.
    words: Vec<usize>,
}

struct Base {
    bytes: Vec<u8>,
    roles: Vec<Role>,
    /// Where the block bitmap is.
    bitmap: u32,
    /// Blocks of the inode table in which no inode is in use.
    spare: Vec<u32>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Base {
    /// Files with both kinds of maps, deep maps, a large directory, attributes.
    fn make(journal: bool) -> Self {
        let kind = if journal { "ext3" } else { "ext2" };
        let options = ["-t", kind, "-b", "1024", "-O", "dir_index", "-N", "512"];
        let world = World::make(&options, "8M");
        let mut files = vec![fragmented(&world, b"tables")];
        let image = world.close();
        image.debugfs("feature extents");
        let world = World::open(image);
        files.push(fragmented(&world, b"nodes"));
        files.push(fragmented(&world, b"more nodes"));
        let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
        for n in 0..150 {
            let name = format!("a rather long name of a file {n:04}");
            world.file(dir, name.as_bytes()).unwrap();
        }
        let how = SetXattr::Any;
        for ino in [dir, files[1]] {
            let value = &[b'v'; 500];
            world
                .fs
                .setxattr(&world.cx, ino, b"user.x", value, how)
                .unwrap();
        }
        let places: Vec<(usize, bool)> = files
            .iter()
            .chain([&dir])
            .map(|ino| place_of(&world.fs, *ino))
            .collect();
        let bytes = world.close().bytes();
        let table = word(&bytes, 2 * BLOCK + 8);
        let inode_size = usize::from(u16::from_le_bytes([bytes[BLOCK + 88], bytes[BLOCK + 89]]));
        let end = table + (512 * inode_size / BLOCK) as u32;
        let mut base = Self {
            roles: Vec::new(),
            bitmap: word(&bytes, 2 * BLOCK),
            spare: (end - 20..end).collect(),
            bytes,
        };
        for (at, extents) in places {
            base.collect(at, extents);
        }
        base
    }

    /// The blocks of the map that starts in the 60 bytes at this offset of an inode, its own words included.
    fn collect(&mut self, at: usize, extents: bool) {
        let own = (at / BLOCK) as u32;
        let within = at % BLOCK;
        if extents {
            self.collect_nodes(own, within);
        } else {
            let words = (12..15).map(|n| within + n * 4).collect();
            self.roles.push(Role { block: own, words });
            for (level, n) in (12..15).enumerate() {
                self.collect_tables(word(&self.bytes, at + n * 4), level);
            }
        }
        let acl = word(&self.bytes, at - 40 + 104);
        if acl != 0 {
            self.roles.push(Role {
                block: acl,
                words: Vec::new(),
            });
        }
    }

    fn collect_nodes(&mut self, block: u32, within: usize) {
        let at = block as usize * BLOCK + within;
        let entries = usize::from(self.bytes[at + 2]);
        let depth = self.bytes[at + 6];
        let entry = |n: usize| within + 12 + n * 12 + if depth == 0 { 8 } else { 4 };
        let words: Vec<usize> = (0..entries).map(entry).collect();
        for at in &words {
            let child = word(&self.bytes, block as usize * BLOCK + at);
            match depth {
                0 => self.roles.push(Role {
                    block: child,
                    words: Vec::new(),
                }),
                _ => self.collect_nodes(child, 0),
            }
        }
        self.roles.push(Role { block, words });
    }

    fn collect_tables(&mut self, block: u32, level: usize) {
        if block == 0 {
            return;
        }
        let numbers = (0..BLOCK).step_by(4);
        let number = |at: usize| word(&self.bytes, block as usize * BLOCK + at);
        let words: Vec<usize> = numbers.filter(|at| number(*at) != 0).collect();
        let below: Vec<u32> = words.iter().map(|at| number(*at)).collect();
        if level > 0 {
            below
                .into_iter()
                .for_each(|n| self.collect_tables(n, level - 1));
        }
        self.roles.push(Role { block, words });
    }

    /// The base with a few blocks that belong to two structures.
    fn cross(&self, random: &mut Random) -> MemDevice {
        let mut bytes = self.bytes.clone();
        let nodes: Vec<&Role> = self.roles.iter().filter(|r| !r.words.is_empty()).collect();
        for _ in 0..1 + random.below(4) {
            // Most blocks are data, which is less interesting.
            let one = nodes[random.below(nodes.len())];
            let other = match random.chance(800) {
                true => nodes[random.below(nodes.len())],
                false => &self.roles[random.below(self.roles.len())],
            };
            let to = other.block as usize * BLOCK;
            match random.below(5) {
                // Mapped by another block, too.
                0 | 1 if !one.words.is_empty() => {
                    let at = one.words[random.below(one.words.len())];
                    let at = one.block as usize * BLOCK + at;
                    bytes[at..at + 4].copy_from_slice(&other.block.to_le_bytes());
                }
                // A copy of another block.
                2 if !one.words.is_empty() && one.block > 300 && other.block > 300 => {
                    let at = one.block as usize * BLOCK;
                    bytes.copy_within(to..to + BLOCK, at);
                }
                // Moved into the inode table.
                3 => self.put_into_table(&mut bytes, one, random),
                // Free in the bitmap.
                _ => {
                    let at = self.bitmap as usize * BLOCK;
                    let bit = other.block - 1;
                    if bitmap::clear(&mut bytes[at..at + BLOCK], bit) {
                        self.count_free(&mut bytes, 1);
                    }
                }
            }
        }
        MemDevice::from_bytes(&bytes)
    }

    /// Moves one of the blocks that a block maps into the inode table.
    fn put_into_table(&self, bytes: &mut [u8], parent: &Role, random: &mut Random) {
        if parent.words.is_empty() {
            return;
        }
        let at = parent.words[random.below(parent.words.len())];
        let at = parent.block as usize * BLOCK + at;
        let from = word(bytes, at) as usize * BLOCK;
        let to = self.spare[random.below(self.spare.len())];
        if from + BLOCK <= bytes.len() {
            bytes.copy_within(from..from + BLOCK, to as usize * BLOCK);
            bytes[at..at + 4].copy_from_slice(&to.to_le_bytes());
        }
    }

    /// Counts of free blocks in the group's descriptor and the superblock.
    fn count_free(&self, bytes: &mut [u8], more: u16) {
        let at = 2 * BLOCK + 12;
        let free = u16::from_le_bytes([bytes[at], bytes[at + 1]]) + more;
        bytes[at..at + 2].copy_from_slice(&free.to_le_bytes());
    }
}

/// A file of single blocks with holes between them, so that its map is deep.
fn fragmented(world: &World, name: &[u8]) -> InodeNo {
    let ino = world.file(ROOT, name).unwrap().ino;
    for block in (0..1600u64).step_by(2).chain([70_000]) {
        let at = block * BLOCK as u64;
        world
            .fs
            .write(&world.cx, ino, at, &[block as u8; BLOCK], false)
            .unwrap();
    }
    world.fs.sync_all(&world.cx).unwrap();
    ino
}

/// Offset on the device of an inode's map, and whether it is of extents.
fn place_of(fs: &Ext4, ino: InodeNo) -> (usize, bool) {
    let ino = Ino(ino.0 as u32);
    let inode = fs.inode(ino, IoTag::default()).unwrap();
    let extents = has_extents(&inode.core.read());
    let (group, index) = fs.geo().group_of_inode(ino);
    let (block, at) = fs
        .geo()
        .inode_slot(fs.alloc.inode_table(group).unwrap(), index);
    (block.0 as usize * BLOCK + at + 40, extents)
}

/// Starts the count of a call's requests, after checking the count of the call before.
fn next_call(device: &FaultDevice) {
    assert_eq!(device.failures(), 0, "a call does not end");
    device.fail_after(MOST);
}

/// Performs the operations of users, with any result.
fn use_it(fs: &Ext4, device: &FaultDevice, random: &mut Random) {
    let cx = Cx::default();
    let names = [&b"tables"[..], b"nodes", b"more nodes", b"dir"];
    let mut found: Vec<(InodeNo, &[u8])> = Vec::new();
    for name in names {
        if let Ok(attr) = fs.lookup(&cx, ROOT, name) {
            found.push((attr.ino, name));
        }
    }
    for n in 0..40 {
        let Some(&(ino, name)) = found.get(random.below(found.len().max(1))) else {
            break;
        };
        let block = random.below(1700) as u64;
        let at = block * BLOCK as u64 + random.below(BLOCK) as u64;
        let len = 1 + random.below(9000);
        let fresh = format!("new {n} with a name that fills a directory soon");
        next_call(device);
        let _ = match random.below(14) {
            0..4 => fs.write(&cx, ino, at, &vec![n as u8; len], false).map(drop),
            4 => fs.fsync(&cx, ino, false),
            5 => {
                let size = Some(if random.chance(512) { at } else { at / 8 });
                let set = SetAttr {
                    size,
                    ..SetAttr::default()
                };
                fs.setattr(&cx, ino, &set).map(drop)
            }
            6 => fs.fallocate(&cx, ino, FallocMode::PunchHole, at, len as u64),
            7 => fs.fallocate(
                &cx,
                ino,
                FallocMode::Allocate { keep_size: true },
                at,
                len as u64 * 4,
            ),
            8 => fs.fallocate(
                &cx,
                ino,
                FallocMode::ZeroRange { keep_size: true },
                at,
                len as u64,
            ),
            9 if random.chance(512) => fs
                .mknod(&cx, ROOT, fresh.as_bytes(), 0o100_644, 0)
                .map(drop),
            9 => fs.mknod(&cx, ino, fresh.as_bytes(), 0o100_644, 0).map(drop),
            10 => fs.setxattr(&cx, ino, b"user.y", &vec![7; len % 900], SetXattr::Any),
            11 => fs.read(&cx, ino, at, len).map(drop),
            12 => {
                let to = (ROOT, fresh.as_bytes());
                let renamed = fs.rename(&cx, (ROOT, name), to, RenameFlags::default());
                fs.rename(&cx, to, (ROOT, name), RenameFlags::default())
                    .and(renamed)
            }
            _ if random.chance(100) => fs.unlink(&cx, ROOT, name),
            _ => fs.sync_all(&cx),
        };
    }
    next_call(device);
    for (ino, _) in found {
        fs.forget(ino, 1);
    }
    next_call(device);
}

fn run(base: &Base, seed: u64) -> bool {
    let mut random = Random::new(seed);
    let device = FaultDevice::new(Arc::new(base.cross(&mut random)));
    next_call(&device);
    let options = MountOptions::parse("errors=continue").unwrap();
    let opened = Ext4::open(Arc::clone(&device) as _, options, CacheSizes::of(8 << 20));
    let Ok((fs, _)) = opened else {
        return false;
    };
    use_it(&fs, &device, &mut random);
    let _ = fs.close();
    next_call(&device);
    true
}

#[test]
fn blocks_in_two_structures_never_panic_or_hang() {
    let bases = [true, false].map(Base::make);
    let mut mounted = 0;
    for seed in cases() {
        let what = format!("STEADFS_CROSSED={seed}:1");
        let guard = PrintCaseOnPanic(what);
        mounted += u64::from(run(&bases[seed as usize % 2], seed));
        drop(guard);
    }
    let all = cases().end - cases().start;
    assert!(mounted * 2 >= all, "only {mounted} of {all} were mounted");
}

/// Prints the case if it panics.
struct PrintCaseOnPanic(String);

impl Drop for PrintCaseOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}
