//! Volumes that available tools cannot make: with compressed clusters, and with encrypted or case-insensitive
//! directories, made from plain ones by changing inodes.

use std::fs;
use std::sync::Arc;

use steadfs_block::MemDevice;
use steadfs_vfs::nokey::show;
use steadfs_vfs::{Cx, FileSystem, FsError, InodeFlags, Seek};

use super::{mount_bytes, names};
use crate::disk::inode::{self, Advise, Compression};
use crate::disk::{BLOCK_SIZE, BlockAddr, Inode, Nid, checksum, dentry, hash};
use crate::test_world::{ALL, ROOT, World};
use steadfs_f2fs_format::test_support::{Image, LOAD_FEATURES, Opened};

const CLUSTER: usize = 4 * BLOCK_SIZE;

/// Text that compresses.
fn text() -> Vec<u8> {
    let mut out: Vec<u8> = (0..1000)
        .flat_map(|i| format!("line number {i} of a file that repeats itself\n").into_bytes())
        .collect();
    out.truncate(CLUSTER);
    out
}

/// An image with a file of 3.5 clusters, and a directory; its bytes and their ids.
fn image() -> (Vec<u8>, Nid, Nid) {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("folder")).unwrap();
    fs::write(tree.join("file"), vec![b'p'; 7 * CLUSTER / 2]).unwrap();
    for i in 0..400 {
        fs::write(tree.join(format!("folder/a name of 20 byte{i:03}")), []).unwrap();
    }
    let image = Image::make(&["-O", LOAD_FEATURES], 128);
    image.load(&tree, &[]);
    let bytes = fs::read(image.path()).unwrap();
    let fs = mount_bytes(&bytes).unwrap();
    let cx = Cx::default();
    let [file, folder] = [&b"file"[..], b"folder"].map(|name| {
        let found = fs.lookup(&cx, fs.root(), name).unwrap();
        Nid::from_vfs(found.ino).unwrap()
    });
    (bytes, file, folder)
}

/// Changes an inode in an image.
fn change(bytes: &mut [u8], nid: Nid, work: impl FnOnce(&mut Inode, &mut [u8])) {
    let opened = Opened::of(bytes.to_vec());
    let layout = opened.layout();
    let at = opened.nat(nid).addr.0 as usize * BLOCK_SIZE;
    let block = &mut bytes[at..at + BLOCK_SIZE];
    let mut core = Inode::parse(layout, nid, block).unwrap();
    work(&mut core, block);
    core.encode_into(layout, block).unwrap();
    inode::seal(layout, block);
}

/// Compresses the second cluster of the file: `stored` are its blocks, `sum` the stored checksum.
fn compress(bytes: &mut [u8], nid: Nid, algorithm: u8, stored: &[u8], sum: u32) {
    let opened = Opened::of(bytes.to_vec());
    let layout = opened.layout().clone();
    let mut home = BlockAddr::NULL;
    change(bytes, nid, |core, block| {
        core.flags = core.flags.union(InodeFlags::COMPRESSED);
        core.compression = Some(Compression {
            saved_blocks: 2,
            algorithm,
            log_cluster: 2,
            flags: 1,
        });
        home = core.addr(&layout, block, 5);
        core.set_addr(&layout, block, 4, BlockAddr::COMPRESSED);
        for slot in [6, 7] {
            core.set_addr(&layout, block, slot, BlockAddr::NULL);
        }
    });
    let at = home.0 as usize * BLOCK_SIZE;
    let cluster = &mut bytes[at..at + BLOCK_SIZE];
    cluster.fill(0);
    cluster[..4].copy_from_slice(&(stored.len() as u32).to_le_bytes());
    cluster[4..8].copy_from_slice(&sum.to_le_bytes());
    cluster[24..24 + stored.len()].copy_from_slice(stored);
}

/// The data block that `lzop -1 -F` (1.04) makes of [`text`], without the headers before it.
const LZO: &[u8] = include_bytes!("text.lzo");

#[test]
fn compressed_clusters_read_back() {
    let (plain, file, _) = image();
    let lz4 = lz4_flex::block::compress(&text());
    let zstd =
        ruzstd::encoding::compress_to_vec(&text()[..], ruzstd::encoding::CompressionLevel::Fastest);
    let cx = Cx::default();
    for (algorithm, stored) in [(1, &lz4[..]), (2, &zstd), (0, LZO), (3, LZO)] {
        let mut bytes = plain.clone();
        compress(&mut bytes, file, algorithm, stored, checksum::of(stored));
        let fs = mount_bytes(&bytes).unwrap();
        let mut wanted = vec![b'p'; 7 * CLUSTER / 2];
        wanted[CLUSTER..2 * CLUSTER].copy_from_slice(&text());
        let got = fs.read(&cx, file.into(), 0, wanted.len()).unwrap().to_vec();
        assert!(got == wanted, "algorithm {algorithm}");
        let got = fs.read(&cx, file.into(), 20_000, 3000).unwrap().to_vec();
        assert!(got == wanted[20_000..23_000], "algorithm {algorithm}");
        let hole = fs.seek(&cx, file.into(), 0, Seek::Hole).unwrap();
        assert_eq!(hole, wanted.len() as u64);
        // A wrong checksum, and corruption with a right one.
        let mut wrong = plain.clone();
        compress(&mut wrong, file, algorithm, stored, 7);
        let fs = mount_bytes(&wrong).unwrap();
        let read = |fs: &crate::F2fs, at| fs.read(&cx, file.into(), at, 100);
        assert!(matches!(read(&fs, 17_000), Err(FsError::Corrupt(_))));
        assert_eq!(read(&fs, 0).unwrap().len(), 100);
        for cut in [0, 1, stored.len() / 2, stored.len() - 1] {
            let mut wrong = plain.clone();
            let stored = &stored[..cut];
            compress(&mut wrong, file, algorithm, stored, checksum::of(stored));
            let fs = mount_bytes(&wrong).unwrap();
            assert!(
                matches!(read(&fs, 17_000), Err(FsError::Corrupt(_))),
                "{cut}"
            );
        }
    }
}

const CLUSTERS: usize = 200;
/// The first cluster that is not compressed.
const PLAIN: usize = 150;

/// A volume with a file of [`CLUSTERS`] clusters, of which the first [`PLAIN`] are compressed and stored in consecutive
/// blocks; the file, and its content.
fn clusters_in_a_row() -> (Vec<u8>, Nid, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mut wanted = vec![b'p'; CLUSTERS * CLUSTER];
    fs::write(tree.join("file"), &wanted).unwrap();
    let image = Image::make(&["-O", LOAD_FEATURES], 128);
    image.load(&tree, &[]);
    let mut bytes = fs::read(image.path()).unwrap();
    let file = {
        let fs = mount_bytes(&bytes).unwrap();
        let found = fs.lookup(&Cx::default(), fs.root(), b"file").unwrap();
        Nid::from_vfs(found.ino).unwrap()
    };
    let home = map_compressed(&mut bytes, file);
    for cluster in 0..PLAIN {
        let mut plain = text();
        plain[..8].copy_from_slice(&(cluster as u64).to_le_bytes());
        let stored = lz4_flex::block::compress(&plain);
        wanted[cluster * CLUSTER..][..CLUSTER].copy_from_slice(&plain);
        let at = (home.0 as usize + cluster) * BLOCK_SIZE;
        let block = &mut bytes[at..at + BLOCK_SIZE];
        block.fill(0);
        block[..4].copy_from_slice(&(stored.len() as u32).to_le_bytes());
        block[4..8].copy_from_slice(&checksum::of(&stored).to_le_bytes());
        block[24..24 + stored.len()].copy_from_slice(&stored);
    }
    (bytes, file, wanted)
}

/// Maps the first [`PLAIN`] clusters of a file as compressed, each with one of the file's first blocks. The first one.
fn map_compressed(bytes: &mut [u8], file: Nid) -> BlockAddr {
    let layout = Opened::of(bytes.to_vec()).layout().clone();
    let mut home = BlockAddr::NULL;
    change(bytes, file, |core, block| {
        core.flags = core.flags.union(InodeFlags::COMPRESSED);
        core.compression = Some(Compression {
            saved_blocks: 2 * PLAIN as u64,
            algorithm: 1,
            log_cluster: 2,
            flags: 1,
        });
        home = core.addr(&layout, block, 0);
        for cluster in 0..PLAIN as u32 {
            let first = 4 * cluster as u16;
            core.set_addr(&layout, block, first, BlockAddr::COMPRESSED);
            core.set_addr(&layout, block, first + 1, BlockAddr(home.0 + cluster));
            for slot in [first + 2, first + 3] {
                core.set_addr(&layout, block, slot, BlockAddr::NULL);
            }
        }
    });
    home
}

/// Reads of the device, and pieces of read-ahead that were used.
fn reads_of(fs: &crate::F2fs) -> (u64, u64) {
    let stats = fs.queue.stats();
    let of_reads = |ops: &&steadfs_block::OpStats| ops.op == steadfs_block::Op::Read;
    let reads = stats.ops.iter().filter(of_reads);
    let count = reads.map(|ops| ops.count).sum();
    (count, stats.read_ahead.used)
}

/// Clusters whose stored blocks are consecutive are one read of the device, also in read-ahead of a stream;
/// incompressible clusters between them are plain.
#[test]
fn compressed_clusters_are_read_in_runs() {
    const STEP: usize = 128 << 10;
    let (bytes, file, wanted) = clusters_in_a_row();
    let fs = mount_bytes(&bytes).unwrap();
    let read = |at: usize, len| {
        let read = fs.read(&Cx::default(), file.into(), at as u64, len);
        read.unwrap().to_vec()
    };
    assert!(read(0, wanted.len()) == wanted);
    let (before, _) = reads_of(&fs);
    for at in (0..wanted.len()).step_by(STEP) {
        let end = wanted.len().min(at + STEP);
        assert!(read(at, STEP) == wanted[at..end], "at {at}");
    }
    let (after, used) = reads_of(&fs);
    let steps = wanted.len().div_ceil(STEP) as u64;
    // One of each kind at the border.
    assert!(
        after - before <= steps + 1,
        "{} reads in {steps} steps",
        after - before
    );
    assert!(used >= steps / 2, "{used} of {steps} were read ahead");
    // Within a cluster, and across the border.
    for at in [5, 7 * CLUSTER + 3, PLAIN * CLUSTER - 10] {
        assert!(read(at, 100) == wanted[at..at + 100], "at {at}");
    }
}

#[test]
fn encrypted_names_show_without_their_key() {
    let (mut bytes, file, folder) = image();
    for nid in [file, folder] {
        change(&mut bytes, nid, |core, _| {
            core.advise = core.advise.union(Advise::ENCRYPTED);
        });
    }
    let fs = mount_bytes(&bytes).unwrap();
    let cx = Cx::default();
    let listed = names(&fs, folder.into());
    assert_eq!(listed.len(), 402);
    for i in 0..400 {
        let name = format!("a name of 20 byte{i:03}").into_bytes();
        let shown = show([hash::of_name(&name), 0], &name).unwrap();
        let entry = listed.iter().find(|(listed, ..)| *listed == shown).unwrap();
        assert_eq!(fs.lookup(&cx, folder.into(), &shown).unwrap().ino, entry.1);
        let plain = fs.lookup(&cx, folder.into(), &name);
        assert_eq!(plain.unwrap_err(), FsError::NotFound);
    }
    assert_eq!(fs.read(&cx, file.into(), 0, 10).err(), Some(FsError::NoKey));
    let attr = fs.getattr(&cx, file.into()).unwrap();
    assert!(attr.flags.contains(InodeFlags::ENCRYPTED));
}

#[test]
fn the_casefold_flag_without_the_feature_is_corruption() {
    let (mut bytes, _, folder) = image();
    change(&mut bytes, folder, |core, _| {
        core.flags = core.flags.union(InodeFlags::CASEFOLD);
    });
    let fs = mount_bytes(&bytes).unwrap();
    let found = fs.attach(&Cx::default(), folder.into());
    assert!(matches!(found, Err(FsError::Corrupt(_))), "{found:?}");
}

#[test]
fn one_of_two_packs_is_enough() {
    let (mut bytes, file, _) = image();
    let layout = Opened::of(bytes.clone()).layout().clone();
    let cx = Cx::default();
    // sload.f2fs leaves the same checkpoint in both.
    for pack in [0, 1] {
        let at = layout.pack_start(pack).0 as usize * BLOCK_SIZE;
        bytes[at + 8] ^= 1;
        let opened = mount_bytes(&bytes);
        if pack == 0 {
            assert!(opened.unwrap().read(&cx, file.into(), 0, 10).is_ok());
        } else {
            let said = opened.err().unwrap().to_string();
            assert!(said.contains("checkpoint has checksum"), "{said}");
        }
    }
}

/// The content of a device on which `change` has changed an inode.
fn with_changed(
    device: &MemDevice,
    nid: Nid,
    work: impl FnOnce(&mut Inode, &mut [u8]),
) -> Arc<MemDevice> {
    let mut bytes = device.to_bytes();
    change(&mut bytes, nid, work);
    Arc::new(MemDevice::from_bytes(&bytes))
}

/// `i_dir_level` leads behind what the inode maps, or what a file can have; all names have the same hash.
#[test]
fn an_inline_directory_of_a_high_level_becomes_blocks() {
    let world = World::make("", 64);
    let layout = world.fs.layout.clone();
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let nid = Nid::from_vfs(dir).unwrap();
    let inode = world.fs.by_number(dir, world.cx.tag).unwrap();
    let slots = inode.core.read().inline_dentries(&layout).slots;
    for n in 2..slots {
        world.file(dir, format!("{n:03}").as_bytes()).unwrap();
    }
    assert!(inode.has_inline_dentries());
    drop(inode);
    let device = world.close();
    for (level, hash, made) in [(9, 511, Ok(())), (29, u32::MAX, Err(FsError::FileTooBig))] {
        let device = with_changed(&device, nid, |core, block| {
            core.dir_level = level;
            let entries = core.inline_dentries(&layout);
            let area = &mut block[core.inline_range(&layout)];
            let before = area.to_vec();
            for entry in dentry::entries(&entries, &before, 0) {
                let entry = entry.unwrap();
                dentry::remove(&entries, area, entry.slot, entry.name.len());
                dentry::insert(&entries, area, &dentry::Entry { hash, ..entry });
            }
        });
        let again = World::of(device, "");
        assert_eq!(again.file(dir, b"new").map(drop), made, "{level}");
        let more = usize::from(made.is_ok());
        assert_eq!(names(&again.fs, dir).len(), slots + more, "{level}");
        again.fs.close().unwrap();
    }
}

#[test]
fn inline_data_in_a_compressed_file_is_corruption() {
    let world = World::make(ALL, 64);
    let file = world.file(ROOT, b"file").unwrap().ino;
    world.fs.write(&world.cx, file, 0, b"abc", false).unwrap();
    let nid = Nid::from_vfs(file).unwrap();
    let device = with_changed(&world.close(), nid, |core, _| {
        assert!(core.inline.contains(inode::Inline::DATA));
        core.flags = core.flags.union(InodeFlags::COMPRESSED);
        core.compression = Some(Compression {
            saved_blocks: 0,
            algorithm: 1,
            log_cluster: 2,
            flags: 0,
        });
    });
    let again = World::of(device, "");
    let found = again.lookup(ROOT, b"file");
    assert!(matches!(found, Err(FsError::Corrupt(_))), "{found:?}");
    again.fs.close().unwrap();
}
