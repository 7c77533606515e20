//! Roll-forward after a power cut: the overlay of a mount that reads, and the volume of a mount that writes, have what
//! fsync wrote.

use std::sync::Arc;

use steadfs_base::{InodeNo, IoTag};
use steadfs_block::MemDevice;
use steadfs_vfs::{FileSystem, FsError, InodeFlags, SetAttr, SetXattr};

use super::{mount_bytes, names};
use crate::disk::inode::{self, Inline};
use crate::disk::node::Footer;
use crate::disk::{self, BLOCK_SIZE, BlockAddr, LogType, Nid, SEGMENT_BLOCKS};
use crate::format::{FormatOptions, image};
use crate::test_world::{ALL, ROOT, World, fsck};
use crate::{CacheSizes, F2fs, MountOptions};

/// The volume that a power cut leaves, mounted to be written.
fn crashed(bytes: &[u8]) -> World {
    World::of(Arc::new(MemDevice::from_bytes(bytes)), "")
}

/// Both ways of recovery find this number of files, and all files are as they are now.
#[track_caller]
fn recovers_all(world: &World, files: u64) -> World {
    let (bytes, wanted) = (world.bytes(), world.tree());
    let reader = World::of(Arc::new(MemDevice::from_bytes(&bytes)), "ro");
    assert_eq!(reader.fs.recovered().files(), files);
    let found = reader.tree();
    for (path, seen) in &wanted {
        // Directories are those of the checkpoint, but for names that are added.
        if seen.attr.kind == steadfs_vfs::FileKind::Regular {
            let path_shown = String::from_utf8_lossy(path);
            assert_eq!(found.get(path), Some(seen), "{path_shown}");
        }
    }
    let writer = crashed(&bytes);
    let found = writer.tree();
    assert!(found.keys().eq(wanted.keys()), "{:?}", found.keys());
    for (path, seen) in &wanted {
        let (path, found) = (String::from_utf8_lossy(path), &found[path]);
        assert_eq!(found.attributes, seen.attributes, "{path}");
        let fields = |attr: &steadfs_vfs::Attr| (attr.ino, attr.size, attr.perm, attr.nlink);
        assert_eq!(fields(&found.attr), fields(&seen.attr), "{path}");
    }
    writer.fs.segments().check();
    writer.judge_device();
    writer
}

fn fsync(world: &World, file: InodeNo) {
    let written = world.fs.checkpoints.written();
    world.fs.fsync(&world.cx, file, false).unwrap();
    assert_eq!(world.fs.checkpoints.written(), written, "by a node chain");
}

fn chmod(world: &World, file: InodeNo, perm: u32) {
    let set = SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    world.fs.setattr(&world.cx, file, &set).unwrap();
}

fn write(world: &World, file: InodeNo, at: u64, data: &[u8]) {
    world.fs.write(&world.cx, file, at, data, false).unwrap();
}

/// The nodes of the log are free again after the recovery, which is durable then.
#[test]
fn no_block_stays_protected() {
    let world = World::make("", 64);
    let file = world.file(ROOT, b"file").unwrap().ino;
    world.fs.sync_all(&world.cx).unwrap();
    let free = world.fs.segments().counts().free;
    let first = node_addr(&world.fs, file);
    // More than a segment of nodes.
    for n in 0..SEGMENT_BLOCKS + 50 {
        chmod(&world, file, 0o400 | (n & 0o77));
        fsync(&world, file);
    }
    let last = node_addr(&world.fs, file);
    assert!(last.0 >= first.0 + SEGMENT_BLOCKS, "{first} to {last}");
    let counts = recovers_all(&world, 1).fs.segments().counts();
    assert_eq!((counts.prefree, counts.free), (0, free));
}

/// Attributes in a node of their own: of a file that had none, of one that had others, and of a new one.
#[test]
fn attributes_in_their_own_node_are_recovered() {
    for features in ["", ALL] {
        let world = World::make(features, 64);
        let make = |name: &[u8]| world.file(ROOT, name).unwrap().ino;
        let set = |file, name: &[u8], fill| {
            let how = SetXattr::Any;
            (world.fs.setxattr(&world.cx, file, name, &[fill; 3000], how)).unwrap();
        };
        let (without, with) = (make(b"without"), make(b"with"));
        set(with, b"user.old", 1);
        world.fs.sync_all(&world.cx).unwrap();
        let new = make(b"new");
        set(without, b"user.a", 2);
        set(with, b"user.old", 3);
        set(new, b"user.b", 4);
        write(&world, new, 0, &[7; 9000]);
        for file in [without, with, new] {
            fsync(&world, file);
        }
        recovers_all(&world, 3);
    }
}

/// A new file has the name of a file that the checkpoint has.
#[test]
fn a_new_file_replaces_what_had_its_name() {
    let world = World::make("", 64);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    for name in [&b"a"[..], b"b"] {
        let file = world.file(dir, name).unwrap().ino;
        write(&world, file, 0, &[1; 9000]);
    }
    // One that stays in use.
    let opened = world.fs.lookup(&world.cx, dir, b"b").unwrap().ino;
    world.fs.sync_all(&world.cx).unwrap();
    for name in [&b"a"[..], b"b"] {
        world.fs.unlink(&world.cx, dir, name).unwrap();
        let file = world.file(dir, name).unwrap().ino;
        assert_ne!(file, opened);
        write(&world, file, 0, name);
        fsync(&world, file);
    }
    recovers_all(&world, 2);
}

/// The same for a directory, which has to be empty. (Here such an fsync is a checkpoint, on Linux it need not be.) And
/// for a file that has another name.
#[test]
fn a_new_file_replaces_an_empty_directory_or_a_link() {
    let world = World::make("", 64);
    world.mkdir(ROOT, b"empty").unwrap();
    let full = world.mkdir(ROOT, b"full").unwrap().ino;
    world.file(full, b"entry").unwrap();
    let link = world.file(ROOT, b"link").unwrap().ino;
    write(&world, link, 0, &[5; 5000]);
    world.fs.link(&world.cx, link, ROOT, b"other").unwrap();
    world.forget(link);
    world.fs.sync_all(&world.cx).unwrap();
    let links = world.lookup(ROOT, b"full").unwrap().nlink + 2;
    assert_eq!(world.fs.getattr(&world.cx, ROOT).unwrap().nlink, links);
    let new = world.file(ROOT, b"new").unwrap().ino;
    write(&world, new, 0, b"content");
    fsync(&world, new);
    for (name, lost) in [(&b"empty"[..], 1), (b"link", 0)] {
        let again = crashed(&with_inode(&world, new, |core| core.name = name.to_vec()));
        assert_eq!(again.lookup(ROOT, name).unwrap().ino, new);
        let root = again.fs.getattr(&again.cx, ROOT).unwrap();
        assert_eq!(root.nlink, links - lost);
        let other = again.lookup(ROOT, b"other").unwrap();
        assert_eq!(other.nlink, 1 + lost);
        assert_eq!(again.fs.orphans.all(), []);
        again.judge_device();
    }
    let full = with_inode(&world, new, |core| core.name = b"full".to_vec());
    refused(full, "replace a directory with entries");
}

/// Changes the inode of a file in its last node.
fn with_inode(world: &World, file: InodeNo, change: impl FnOnce(&mut disk::Inode)) -> Vec<u8> {
    let (layout, mut bytes) = (&world.fs.layout, world.bytes());
    edit(&mut bytes, node_addr(&world.fs, file), |block| {
        let nid = Nid::from_vfs(file).unwrap();
        let mut core = disk::Inode::parse(layout, nid, block).unwrap();
        change(&mut core);
        core.encode_into(layout, block).unwrap();
        inode::seal(layout, block);
    });
    bytes
}

/// A mount for writing finds this corruption, and writes nothing.
#[track_caller]
fn refused(bytes: Vec<u8>, rule: &str) {
    let device = Arc::new(MemDevice::from_bytes(&bytes));
    let options = MountOptions::parse("").unwrap();
    let opened = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(64 << 20));
    let error = opened.err().expect("the volume is corrupt");
    assert!(matches!(error, FsError::Corrupt(_)), "{error:?}");
    assert!(error.to_string().contains(rule), "{error}");
    assert!(device.to_bytes() == bytes, "something was written");
}

/// Only regular files are recovered, and only into directories.
#[test]
fn a_log_that_contradicts_the_checkpoint_is_refused() {
    let (world, file, _) = one_in_the_log();
    let new = world.file(ROOT, b"new").unwrap().ino;
    fsync(&world, new);
    let other_kind = |core: &mut disk::Inode| {
        core.mode = 0o040_755;
        core.inline = core.inline.without(Inline::DATA);
    };
    let parent = Nid::from_vfs(file).unwrap();
    let no_directory = |core: &mut disk::Inode| core.parent = parent;
    let no_name = |core: &mut disk::Inode| core.name.clear();
    let changed = with_inode(&world, file, other_kind);
    refused(changed, "recovered for an inode that is no regular file");
    let rule = "not a directory in which a name can be created";
    refused(with_inode(&world, new, no_directory), rule);
    refused(with_inode(&world, new, no_name), rule);
    assert_eq!(
        crashed(&world.bytes()).lookup(ROOT, b"new").unwrap().ino,
        new
    );
}

/// The address of an inode's node, the last one that was written.
fn node_addr(fs: &F2fs, file: InodeNo) -> BlockAddr {
    let nid = Nid::from_vfs(file).unwrap();
    fs.nat.entry(nid, IoTag::default()).unwrap().addr
}

/// Changes a node in an image.
fn edit(bytes: &mut [u8], at: BlockAddr, change: impl FnOnce(&mut [u8])) {
    let at = at.0 as usize * BLOCK_SIZE;
    change(&mut bytes[at..at + BLOCK_SIZE]);
}

/// The kernel may move content of a file into its inode.
#[test]
fn a_file_may_become_inline_and_back() {
    let world = World::make("", 64);
    let layout = world.fs.layout.clone();
    let files: Vec<InodeNo> = [&b"small"[..], b"large", b"grown"]
        .into_iter()
        .map(|name| world.file(ROOT, name).unwrap().ino)
        .collect();
    let [small, large, grown] = files[..] else {
        unreachable!("three were made");
    };
    write(&world, small, 0, &[1; 5000]);
    write(&world, large, 4000 * BLOCK_SIZE as u64, &[1; 5000]);
    write(&world, grown, 0, &[1; 100]);
    world.fs.sync_all(&world.cx).unwrap();
    let valid = world.fs.space.counts();
    for file in [small, large] {
        chmod(&world, file, 0o600);
        fsync(&world, file);
    }
    write(&world, grown, 0, &[2; 9000]);
    fsync(&world, grown);
    let mut bytes = world.bytes();
    for file in [small, large] {
        edit(&mut bytes, node_addr(&world.fs, file), |block| {
            let nid = Nid::from_vfs(file).unwrap();
            let mut core = disk::Inode::parse(&layout, nid, block).unwrap();
            core.inline = core.inline.union(Inline::DATA).union(Inline::DATA_EXISTS);
            (core.size, core.blocks) = (3, 1);
            let area = core.inline_range(&layout);
            block[area.clone()].fill(0);
            block[area][..3].copy_from_slice(b"abc");
            core.encode_into(&layout, block).unwrap();
            inode::seal(&layout, block);
        });
    }
    let again = crashed(&bytes);
    for (file, wanted) in [(small, &b"abc"[..]), (large, b"abc"), (grown, &[2; 9000])] {
        let read = again.fs.read(&again.cx, file, 0, 10_000).unwrap();
        assert_eq!(read.to_vec(), wanted);
    }
    // The blocks of the two files are free, and the third has three in place of its inode's area.
    let counts = again.fs.space.counts();
    assert!(counts.valid_blocks < valid.valid_blocks);
    again.close();
}

/// Copies a node to another place of the log.
fn copy_node(bytes: &mut [u8], from: BlockAddr, to: BlockAddr, next: BlockAddr) {
    let from = from.0 as usize * BLOCK_SIZE;
    let mut block = bytes[from..from + BLOCK_SIZE].to_vec();
    let footer = Footer {
        next,
        ..Footer::parse(&block)
    };
    footer.encode_into(&mut block);
    edit(bytes, to, |node| node.copy_from_slice(&block));
}

/// A volume with one file that was changed and synced since the checkpoint, and the address of that node.
fn one_in_the_log() -> (World, InodeNo, BlockAddr) {
    let world = World::make("", 64);
    let file = world.file(ROOT, b"file").unwrap().ino;
    world.fs.sync_all(&world.cx).unwrap();
    chmod(&world, file, 0o700);
    fsync(&world, file);
    let addr = node_addr(&world.fs, file);
    (world, file, addr)
}

/// A chain that leads back to itself ends there.
#[test]
fn a_circular_chain_ends() {
    let (world, file, first) = one_in_the_log();
    let mut bytes = world.bytes();
    for (to, next) in [(first, first), (first.plus(1), first)] {
        copy_node(&mut bytes, first, to, next);
        copy_node(&mut bytes, first, first, to);
        for options in ["ro", ""] {
            let again = World::of(Arc::new(MemDevice::from_bytes(&bytes)), options);
            assert!(again.fs.recovery.has_recovered());
            let found = again.fs.getattr(&again.cx, file).unwrap();
            assert_eq!(found.perm, 0o700, "{options}");
            again.fs.close().unwrap();
        }
    }
}

/// A position of the node log that is none ends recovery, also where a node lies at the block that it would mean.
#[test]
fn a_log_without_a_position_has_no_chain() {
    let (world, _, first) = one_in_the_log();
    let layout = world.fs.layout.clone();
    let last = world.fs.checkpoints.last();
    let at = last.log(LogType::WarmNode);
    assert_eq!(layout.block_in(at.segment, at.offset.into()), first);
    let mut bytes = world.bytes();
    // The block behind the segment.
    let behind = layout.block_in(at.segment, 0).plus(SEGMENT_BLOCKS);
    copy_node(&mut bytes, first, behind, BlockAddr::NULL);
    let pack = (0..2).find(|pack| {
        let at = layout.pack_start(*pack).0 as usize * BLOCK_SIZE;
        let found = disk::Checkpoint::parse(&layout, &bytes[at..at + BLOCK_SIZE]);
        found.is_ok_and(|found| found.version == last.version)
    });
    let recovered = |offset: u32| {
        let mut changed = last.clone();
        changed.logs[LogType::WarmNode.index()].offset = offset as u16;
        let head = changed.encode(&layout).unwrap();
        let mut bytes = bytes.clone();
        let start = layout.pack_start(pack.unwrap());
        for n in [0, changed.pack_blocks - 1] {
            edit(&mut bytes, start.plus(n), |block| {
                block.copy_from_slice(&head[..BLOCK_SIZE]);
            });
        }
        let fs = mount_bytes(&bytes).unwrap();
        fs.recovered().files()
    };
    let offsets = [at.offset.into(), SEGMENT_BLOCKS, SEGMENT_BLOCKS + 7];
    assert_eq!(offsets.map(recovered), [1, 0, 0]);
}

/// A dentry mark of a file whose name the checkpoint has.
#[test]
fn a_name_that_is_there_is_not_added_again() {
    let (world, file, first) = one_in_the_log();
    let mut bytes = world.bytes();
    edit(&mut bytes, first, |block| {
        let footer = Footer {
            dentry: true,
            ..Footer::parse(block)
        };
        footer.encode_into(block);
        inode::seal(&world.fs.layout, block);
    });
    let device = Arc::new(MemDevice::from_bytes(&bytes));
    for options in ["ro", ""] {
        let parsed = MountOptions::parse(options).unwrap();
        let sizes = CacheSizes::of(64 << 20);
        let (fs, report) = F2fs::open(Arc::clone(&device) as _, parsed, sizes).unwrap();
        assert_eq!(report.recovered_files, 1);
        let all = names(&fs, ROOT);
        let listed = all.iter().filter(|(name, ..)| name == b"file");
        assert_eq!(listed.map(|(_, ino, _)| *ino).collect::<Vec<_>>(), [file]);
        assert_eq!(fs.recovered().names(Nid::ROOT).count(), 0);
        fs.close().unwrap();
    }
    fsck(&device);
}

/// Without an fsync mark, or of another inode, nothing is recovered; and a file that is neither in the checkpoint nor has
/// a dentry mark is ignored.
#[test]
fn nodes_without_their_marks_are_ignored() {
    let (world, file, first) = one_in_the_log();
    let new = world.file(ROOT, b"new").unwrap().ino;
    fsync(&world, new);
    let second = node_addr(&world.fs, new);
    let layout = world.fs.layout.clone();
    let with = |addr, change: fn(&mut Footer)| {
        let mut bytes = world.bytes();
        edit(&mut bytes, addr, |block| {
            let mut footer = Footer::parse(block);
            change(&mut footer);
            footer.encode_into(block);
            inode::seal(&layout, block);
        });
        let again = crashed(&bytes);
        let perm = again.fs.getattr(&again.cx, file).unwrap().perm;
        let found = again.lookup(ROOT, b"new").map(|attr| attr.ino);
        again.close();
        (perm == 0o700, found)
    };
    let nothing = |_: &mut Footer| {};
    assert_eq!(with(first, nothing), (true, Ok(new)));
    assert_eq!(with(first, |footer| footer.fsync = false), (false, Ok(new)));
    let lost = Err(FsError::NotFound);
    assert_eq!(
        with(second, |footer| footer.fsync = false),
        (true, lost.clone())
    );
    assert_eq!(with(second, |footer| footer.dentry = false), (true, lost));
}

/// The kernel needs no checkpoint to make a compressed file without blocks a plain one, whose nodes map more blocks.
#[test]
fn a_file_that_is_compressed_in_the_checkpoint_may_be_plain_in_the_log() {
    let world = World::make(ALL, 64);
    let layout = world.fs.layout.clone();
    let file = world.file(ROOT, b"file").unwrap().ino;
    // Not inline.
    write(&world, file, 0, &[1; 5000]);
    let cut = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    world.fs.setattr(&world.cx, file, &cut).unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    let before = node_addr(&world.fs, file);
    // In the inode and in direct nodes, which come before it in the log.
    for (block, fill) in [(0, 3), (900, 4), (1930, 5), (3000, 6)] {
        write(&world, file, block * BLOCK_SIZE as u64, &[fill; 70_000]);
    }
    fsync(&world, file);
    let wanted = world.fs.read(&world.cx, file, 0, 16 << 20).unwrap();
    let mut bytes = world.bytes();
    edit(&mut bytes, before, |block| {
        let nid = Nid::from_vfs(file).unwrap();
        let mut core = disk::Inode::parse(&layout, nid, block).unwrap();
        let plain = core.fanout(&layout);
        assert!(core.size == 0 && !core.inline.contains(Inline::DATA));
        core.flags = core.flags.union(InodeFlags::COMPRESSED);
        core.compression = Some(inode::Compression::default());
        if let Some(how) = &mut core.compression {
            (how.algorithm, how.log_cluster) = (1, 2);
        }
        assert_ne!(core.fanout(&layout), plain);
        core.encode_into(&layout, block).unwrap();
        inode::seal(&layout, block);
    });
    for options in ["ro", ""] {
        let device = Arc::new(MemDevice::from_bytes(&bytes));
        let again = World::of(device, options);
        let read = again.fs.read(&again.cx, file, 0, 16 << 20).unwrap();
        assert!(read.to_vec() == wanted.to_vec(), "{options}");
        if options.is_empty() {
            again.fs.segments().check();
            again.close();
        }
    }
}

/// A name that replaces another spelling of it in a case-insensitive directory: in the inode, and in blocks.
#[test]
fn a_new_file_has_the_spelling_that_it_was_created_with() {
    let mut format = FormatOptions::default();
    format.set_encoding("utf8").unwrap();
    let world = World::of(image(64 << 20, &format).unwrap(), "");
    let mut dirs = Vec::new();
    for (name, others) in [(&b"small"[..], 0), (b"large", 300)] {
        let dir = world.mkdir(ROOT, name).unwrap().ino;
        let flags = InodeFlags::CASEFOLD;
        world.fs.set_flags(&world.cx, dir, flags).unwrap();
        for n in 0..others {
            world.file(dir, format!("other {n}").as_bytes()).unwrap();
        }
        world.file(dir, b"name").unwrap();
        dirs.push(dir);
    }
    world.fs.sync_all(&world.cx).unwrap();
    for dir in &dirs {
        world.fs.unlink(&world.cx, *dir, b"name").unwrap();
        let file = world.file(*dir, b"Name").unwrap().ino;
        write(&world, file, 0, b"content");
        fsync(&world, file);
    }
    let writer = recovers_all(&world, 2);
    for dir in dirs {
        assert!(writer.names(dir).contains(&b"Name".to_vec()));
        assert!(!writer.names(dir).contains(&b"name".to_vec()));
        assert!(writer.lookup(dir, b"nAME").is_ok());
    }
}

/// A compressed cluster whose saved blocks are released has no reservation for what the log has in its place.
#[test]
fn nothing_in_the_log_replaces_a_compressed_cluster() {
    const RELEASE: u32 = 0x8008_f512;
    let world = World::make_with(ALL, 64, "compress_extension=txt");
    let (fs, cx, layout) = (&world.fs, &world.cx, world.fs.layout.clone());
    let [packed, plain] = [&b"a.txt"[..], b"plain"].map(|name| world.file(ROOT, name).unwrap().ino);
    write(&world, packed, 0, &[b'a'; 4 * BLOCK_SIZE]);
    fs.fsync(cx, packed, false).unwrap();
    fs.ioctl(cx, packed, RELEASE, &[]).unwrap();
    fs.sync_all(cx).unwrap();
    chmod(&world, plain, 0o700);
    fsync(&world, plain);
    let nid = Nid::from_vfs(packed).unwrap();
    let from = node_addr(fs, packed).0 as usize * BLOCK_SIZE;
    let block = fs.slot(&fs.by_number(packed, cx.tag).unwrap(), 1, cx.tag);
    for addr in [BlockAddr::NEW, BlockAddr::NULL, block.unwrap()] {
        let mut bytes = world.bytes();
        let mut node = bytes[from..from + BLOCK_SIZE].to_vec();
        let core = disk::Inode::parse(&layout, nid, &node).unwrap();
        assert_eq!(core.addr(&layout, &node, 0), BlockAddr::COMPRESSED);
        core.set_addr(&layout, &mut node, 0, addr);
        edit(&mut bytes, node_addr(fs, plain), |to| {
            let footer = Footer {
                nid,
                ino: nid,
                ..Footer::parse(to)
            };
            to.copy_from_slice(&node);
            footer.encode_into(to);
            inode::seal(&layout, to);
        });
        refused(bytes, "in place of a compressed cluster");
    }
}
