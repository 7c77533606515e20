//! New volumes judged by mke2fs's own image, e2fsck, dumpe2fs, the kernel, and our own parsers.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use steadfs_base::{DevBlock, parse_uuid};
use steadfs_block::{FileDevice, OpenOptions};
use tempfile::TempDir;

use super::*;
use crate::disk::superblock::SUPERBLOCK_OFFSET;
use crate::disk::{GroupDesc, GroupNo, Ino, Mmp, Superblock};

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";
const SEED: &str = "fedcba98-7654-3210-fedc-ba9876543210";
const TIME: i64 = 1_700_000_000;

/// Options of mke2fs as ours.
fn options(args: &str) -> FormatOptions {
    let mut opts = FormatOptions {
        uuid: parse_uuid(UUID),
        hash_seed: parse_uuid(SEED),
        time: Some(steadfs_base::Timestamp {
            secs: TIME,
            nanos: 0,
        }),
        kind: Kind::Ext2,
        ..FormatOptions::default()
    };
    let mut words = args.split_whitespace();
    while let Some(word) = words.next() {
        if word == "-j" {
            opts.journal = true;
            continue;
        }
        let value = words.next().unwrap();
        match word {
            "-t" => opts.set_kind(value).unwrap(),
            "-T" => opts.set_usage(value).unwrap(),
            "-b" => opts.set_block_size(value).unwrap(),
            "-C" => opts.set_cluster_size(value).unwrap(),
            "-g" => opts.blocks_per_group = Some(value.parse().unwrap()),
            "-G" => opts.flex_group_size = Some(value.parse().unwrap()),
            "-N" => opts.inodes = Some(value.parse().unwrap()),
            "-i" => opts.inode_ratio = Some(value.parse().unwrap()),
            "-I" => opts.inode_size = Some(value.parse().unwrap()),
            "-L" => opts.label = value.to_owned(),
            "-M" => opts.last_mounted = value.to_owned(),
            "-m" => opts.reserved_percent = value.parse().unwrap(),
            "-e" => opts.set_errors(value).unwrap(),
            "-O" => opts.features = value.to_owned(),
            "-J" => opts.set_journal(value).unwrap(),
            "-E" => opts.set_extended(value).unwrap(),
            _ => panic!("{word} is no option of these tests"),
        }
    }
    opts
}

fn judge(program: &str, args: &[&str]) -> std::process::Output {
    crate::disk::test_images::judge(program)
        .args(args)
        .env("E2FSPROGS_FAKE_TIME", TIME.to_string())
        .env("TZ", "UTC")
        .output()
        .unwrap()
}

/// mke2fs with `args`; its message if it refuses.
fn theirs(path: &Path, args: &str, size: u64) -> Result<(), String> {
    File::create(path).unwrap().set_len(size).unwrap();
    let mut all = vec!["-q", "-F", "-U", UUID];
    let mut extended = format!("hash_seed={SEED}");
    let mut words = args.split_whitespace();
    while let Some(word) = words.next() {
        if word == "-E" {
            extended = format!("{extended},{}", words.next().unwrap());
        } else {
            all.push(word);
        }
    }
    let blocks = format!("{}k", size / 1024);
    all.extend(["-E", &extended, path.to_str().unwrap(), &blocks]);
    let output = judge("mke2fs", &all);
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn ours(path: &Path, args: &str, size: u64) -> Result<FormatReport, FormatError> {
    let open = OpenOptions {
        create: Some(size),
        direct: false,
        ..OpenOptions::default()
    };
    let device = FileDevice::open(path, open).unwrap();
    let queue = Queue::new(Arc::new(device), QueueOptions::default());
    format(&queue, size, &options(args))
}

/// The ranges in which either file may have non-zero bytes.
fn data_of(file: &File, size: u64) -> Vec<std::ops::Range<u64>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < size {
        let Ok(start) = seek(file.as_fd(), SeekFrom::Data(at)) else {
            break;
        };
        let end = seek(file.as_fd(), SeekFrom::Hole(start)).unwrap();
        found.push(start..end.min(size));
        at = end;
    }
    found
}

/// Byte ranges in which both programs are right although they differ: kilobytes written, the checksum over
/// it, and in a journal's extent root the entries after the last, where mke2fs leaves old ones.
fn not_compared(file: &File, sb: &Superblock) -> Vec<std::ops::Range<u64>> {
    let geo = sb.geometry();
    let bits = geo.block_size.bits();
    let (map, _) = sb.journal_backup().unwrap_or_default();
    let deep = map[0] & 0xFFFF == u32::from(crate::disk::extent::MAGIC) && map[1] >> 16 > 0;
    let unused = 12 + 12 * u64::from(map[0] >> 16)..60;
    let mut ranges = Vec::new();
    for group in geo.groups().filter(|&group| geo.has_super(group)) {
        let place = if group == GroupNo(0) {
            SUPERBLOCK_OFFSET
        } else {
            geo.first_block_of(group).0 << bits
        };
        ranges.push(place + 0x178..place + 0x180);
        ranges.push(place + 0x3FC..place + 0x400);
        if deep {
            let map = place + 0x10C;
            ranges.push(map + unused.start..map + unused.end);
        }
    }
    if deep {
        let mut desc = vec![0; usize::from(geo.desc_size)];
        let at = geo.desc_block_at(0).0 << bits;
        file.read_exact_at(&mut desc, at).unwrap();
        let table = GroupDesc::decode(geo, &desc).inode_table;
        let (block, offset) = geo.inode_slot(table, Ino::JOURNAL.0 - 1);
        let inode = (block.0 << bits) + offset as u64;
        ranges.push(inode + 0x28 + unused.start..inode + 0x28 + unused.end);
        ranges.push(inode + 0x7C..inode + 0x7E);
        ranges.push(inode + 0x82..inode + 0x84);
    }
    ranges
}

/// The first few offsets at which two images differ.
fn differences(a: &Path, b: &Path, size: u64) -> Vec<String> {
    let files = [File::open(a).unwrap(), File::open(b).unwrap()];
    let mut head = [0; 1024];
    files[0]
        .read_exact_at(&mut head, SUPERBLOCK_OFFSET)
        .unwrap();
    let sb = Superblock::parse(&head).unwrap();
    let skipped = not_compared(&files[0], &sb);
    let mut pieces: Vec<_> = files.iter().flat_map(|file| data_of(file, size)).collect();
    pieces.sort_by_key(|piece| piece.start);
    let mut found = Vec::new();
    let mut content = [vec![0; 1 << 20], vec![0; 1 << 20]];
    for piece in pieces {
        let mut at = piece.start / 4096 * 4096;
        while at < piece.end {
            let len = (piece.end - at).min(1 << 20) as usize;
            for (bytes, file) in content.iter_mut().zip(&files) {
                let bytes = &mut bytes[..len];
                file.read_exact_at(bytes, at).unwrap();
                for range in &skipped {
                    for byte in range.start.max(at)..range.end.min(at + len as u64) {
                        bytes[(byte - at) as usize] = 0;
                    }
                }
            }
            let equal = content[0][..len] == content[1][..len];
            for i in (0..len)
                .filter(|_| !equal)
                .filter(|&i| content[0][i] != content[1][i])
            {
                let byte = at + i as u64;
                let block = byte >> sb.geometry().block_size.bits();
                let offset = sb.geometry().block_size.offset_in_block(byte);
                found.push(format!(
                    "block {block} offset {offset:#x}: {:#x} {:#x}",
                    content[0][i], content[1][i]
                ));
                if found.len() > 20 {
                    return found;
                }
            }
            at += len as u64;
        }
    }
    found
}

/// dumpe2fs's lines without those about what was written.
fn dump(path: &Path) -> String {
    let output = judge("dumpe2fs", &[path.to_str().unwrap()]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter(|line| !line.starts_with("Lifetime writes") && !line.starts_with("Checksum: "))
        .collect::<Vec<_>>()
        .join("\n")
}

fn check(args: &str, size: u64) {
    let dir = TempDir::new().unwrap();
    let (a, b) = (dir.path().join("theirs"), dir.path().join("ours"));
    let expected = theirs(&a, args, size);
    let got = ours(&b, args, size);
    match (&expected, &got) {
        (Ok(()), Ok(_)) => {}
        (Err(_), Err(FormatError::Io(_) | FormatError::Wrong(_))) => panic!("{args}: {got:?}"),
        (Err(_), Err(_)) => return,
        _ => panic!("{args} {size}: mke2fs {expected:?}, we {got:?}"),
    }
    let (dump_a, dump_b) = (dump(&a), dump(&b));
    for (line_a, line_b) in dump_a.lines().zip(dump_b.lines()) {
        assert_eq!(line_a, line_b, "{args} {size}");
    }
    assert_eq!(dump_a, dump_b, "{args} {size}");
    // With inline data mke2fs leaves the rests of a conversion in lost+found.
    if !args.contains("inline_data") {
        let none = Vec::<String>::new();
        assert_eq!(differences(&a, &b, size), none, "{args} {size}");
    }
    check_parsed(&b);
    let fsck = judge("e2fsck", &["-fn", b.to_str().unwrap()]);
    assert!(
        fsck.status.success(),
        "{args} {size}: {}",
        String::from_utf8_lossy(&fsck.stdout)
    );
}

/// Our parsers accept every structure and find the counts right.
fn check_parsed(path: &Path) {
    let file = File::open(path).unwrap();
    let mut head = [0; 1024];
    file.read_exact_at(&mut head, SUPERBLOCK_OFFSET).unwrap();
    let sb = Superblock::parse(&head).unwrap();
    let geo = sb.geometry();
    // Reading larger inode tables takes too long without the flags that mark them unused.
    if geo.inodes_count < 1 << 20 {
        let report = crate::check::check(&file, &crate::check::Options::default());
        assert!(report.is_clean(), "{:?}", report.issues);
    }
    let read = |block: u64| {
        let mut bytes = vec![0; geo.block_size.bytes()];
        file.read_exact_at(&mut bytes, block << geo.block_size.bits())
            .unwrap();
        bytes
    };
    let mut free = 0;
    for group in geo.groups() {
        let (n, offset) = geo.desc_slot(group);
        let table = read(geo.desc_block_at(n).0);
        let slot = &table[offset..offset + usize::from(geo.desc_size)];
        let desc = GroupDesc::parse(geo, group, slot).unwrap();
        let mut bits = read(desc.block_bitmap.0);
        if desc.block_uninit(geo) {
            crate::disk::group_desc::init_block_bitmap(geo, group, &desc, &mut bits);
        } else {
            desc.verify_block_bitmap(geo, &bits).unwrap();
        }
        let zeros = crate::disk::bitmap::count_zeros(&bits, 0..geo.clusters_in(group));
        assert_eq!(zeros, desc.free_clusters);
        if !desc.inode_uninit(geo) {
            desc.verify_inode_bitmap(geo, &read(desc.inode_bitmap.0))
                .unwrap();
        }
        free += u64::from(zeros);
    }
    assert_eq!(free << geo.cluster_bits, sb.free_blocks());
    for ino in [Ino::ROOT, geo.first_ino] {
        let (group, index) = geo.group_of_inode(ino);
        let (n, offset) = geo.desc_slot(group);
        let table = read(geo.desc_block_at(n).0);
        let desc = GroupDesc::decode(geo, &table[offset..offset + usize::from(geo.desc_size)]);
        let (block, offset) = geo.inode_slot(desc.inode_table, index);
        let slot = &read(block.0)[offset..offset + usize::from(geo.inode_size)];
        let inode = crate::disk::Inode::parse(geo, ino, slot).unwrap();
        assert_eq!(inode.mode >> 12, 4);
    }
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[test]
fn default_volumes_equal_those_of_mke2fs() {
    for size in [4 * MIB, 64 * MIB, 511 * MIB, GIB, 10 * GIB] {
        for kind in ["ext4", "ext3", "ext2"] {
            check(&format!("-t {kind}"), size);
        }
    }
}

#[test]
fn the_comparison_sees_one_bit() {
    let dir = TempDir::new().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    ours(&a, "-t ext4", 64 * MIB).unwrap();
    ours(&b, "-t ext4 -e panic", 64 * MIB).unwrap();
    let found = differences(&a, &b, 64 * MIB);
    // The field and nothing else: its checksum is among what is not compared.
    assert!(
        found.len() > 1 && found[0].contains("offset 0x3c: "),
        "{found:?}"
    );
}

/// The block has the time of day and the names of machine and device; all else is as mke2fs makes it.
#[test]
fn mount_protection_is_made_as_by_mke2fs() {
    let mut blocks = Vec::new();
    for (args, size) in [
        ("-t ext4 -O mmp", 16 * MIB),
        ("-t ext4 -b 4096 -O mmp -E mmp_update_interval=20", 64 * MIB),
        (
            "-t ext4 -b 1024 -O mmp,^metadata_csum,orphan_file",
            64 * MIB,
        ),
        ("-t ext2 -O mmp -E mmp_update_interval=1", 16 * MIB),
        ("-t ext3 -E mmp_update_interval=7", 16 * MIB),
    ] {
        let dir = TempDir::new().unwrap();
        let (a, b) = (dir.path().join("theirs"), dir.path().join("ours"));
        theirs(&a, args, size).unwrap();
        ours(&b, args, size).unwrap();
        let both = [&a, &b].map(|path| {
            let mut bytes = std::fs::read(path).unwrap();
            let sb = Superblock::parse(&bytes[1024..2048]).unwrap();
            let Some(block) = sb.mmp_block() else {
                return (bytes, None);
            };
            let geo = sb.geometry();
            let at = geo.block_size.offset_of(block) as usize;
            let block = &mut bytes[at..at + geo.block_size.bytes()];
            let mut mmp = Mmp::parse(geo.seed, DevBlock(0), block).unwrap();
            let writer = (mmp.node_name().into_owned(), mmp.device_name().into_owned());
            mmp.set_time(0);
            mmp.set_names(b"", b"");
            block[..crate::disk::mmp::MMP_SIZE].fill(0);
            mmp.seal_into(geo.seed, block);
            (bytes, Some(writer))
        });
        for ((bytes, _), path) in both.iter().zip([&a, &b]) {
            std::fs::write(path, bytes).unwrap();
        }
        assert_eq!(differences(&a, &b, size), Vec::<String>::new(), "{args}");
        let fsck = judge("e2fsck", &["-fn", b.to_str().unwrap()]);
        assert!(fsck.status.success(), "{args}: {fsck:?}");
        blocks.push(both.map(|(_, writer)| writer));
    }
    assert!(blocks[..4].iter().all(|both| both[0].is_some()));
    let nameless = |both: &[Option<(String, String)>; 2]| both[1] == Some(Default::default());
    assert!(
        blocks[..4].iter().all(nameless),
        "the time is given: {blocks:?}"
    );
    assert_eq!(blocks[4], [None, None]);
    // Without a given time the block has the names, as mke2fs writes them.
    let opts = FormatOptions {
        features: "mmp".to_owned(),
        device_name: b"disk.img".to_vec(),
        ..FormatOptions::default()
    };
    let device = image(16 * MIB, &opts).unwrap();
    let bytes = device.to_bytes();
    let sb = Superblock::parse(&bytes[1024..2048]).unwrap();
    let block = sb.mmp_block().unwrap();
    let at = sb.geometry().block_size.offset_of(block) as usize;
    let mmp = Mmp::parse(sb.geometry().seed, block, &bytes[at..]).unwrap();
    let (node, device) = blocks[0][0].clone().unwrap();
    assert_eq!(
        (mmp.node_name(), mmp.device_name()),
        (node.into(), "disk.img".into())
    );
    assert!(!device.is_empty() && mmp.time() > TIME);
}

/// Everything that changes the layout, alone and together.
const MATRIX: &[(&str, u64)] = &[
    ("-t ext2", 200 << 10),
    ("-t ext2 -b 1024", MIB),
    ("-t ext2 -b 2048", 3 * MIB),
    ("-t ext2 -b 4096 -I 128", 20 * MIB),
    ("-t ext2 -I 128 -O ^resize_inode", 100 * MIB),
    ("-t ext2 -O none", 30 * MIB),
    ("-t ext2 -O ^sparse_super,^resize_inode", 300 * MIB),
    ("-t ext2 -O ^large_file", 600 * MIB),
    ("-t ext2 -j", 40 * MIB),
    ("-t ext2 -J size=4", 600 * MIB),
    ("-t ext2 -b 8192", 50 * MIB),
    ("-t ext2 -b 65536", 200 * MIB),
    ("-t ext2 -N 5000", 700 * MIB),
    ("-t ext2 -E stride=4,stripe_width=16", 400 * MIB),
    ("-t ext3 -b 1024", 700 * MIB),
    ("-t ext3 -b 2048 -I 512", 400 * MIB),
    ("-t ext3 -m 0 -L journalled", 3 * GIB),
    ("-t ext3 -J size=16 -I 128", 200 * MIB),
    ("-t ext3 -b 16384", 800 * MIB),
    ("-t ext3 -O sparse_super2", 300 * MIB),
    ("-t ext4", 2 * MIB + 1024),
    ("-t ext4 -b 1024", 16 * MIB),
    ("-t ext4 -b 2048", 130 * MIB),
    ("-t ext4 -b 1024 -I 1024", 200 * MIB),
    ("-t ext4 -b 4096 -I 128", 64 * MIB),
    ("-t ext4 -I 4096 -b 4096", 500 * MIB),
    ("-t ext4 -b 8192", 300 * MIB),
    ("-t ext4 -b 16384", 4 * GIB),
    ("-t ext4 -b 32768", 700 * MIB),
    ("-t ext4 -b 65536", 2 * GIB),
    ("-t ext4 -O ^has_journal", 900 * MIB),
    ("-t ext4 -O ^metadata_csum", 600 * MIB),
    ("-t ext4 -O ^metadata_csum,uninit_bg", 600 * MIB),
    ("-t ext4 -O ^64bit", 40 * GIB),
    ("-t ext4 -O ^64bit,^flex_bg", 5 * GIB),
    ("-t ext4 -O ^flex_bg -b 1024", 90 * MIB),
    ("-t ext4 -O ^extent,^64bit", 300 * MIB),
    ("-t ext4 -O ^resize_inode", 2 * GIB),
    ("-t ext4 -O sparse_super2", 3 * GIB),
    ("-t ext4 -O sparse_super2 -E num_backup_sb=1", 3 * GIB),
    ("-t ext4 -O sparse_super2 -E num_backup_sb=0", 300 * MIB),
    ("-t ext4 -O metadata_csum_seed", 80 * MIB),
    ("-t ext4 -O orphan_file", 700 * MIB),
    ("-t ext4 -O orphan_file -b 1024", 70 * MIB),
    ("-t ext4 -O orphan_file,^extent,^64bit", 2 * GIB),
    ("-t ext4 -O orphan_file -E orphan_file_size=5", GIB),
    ("-t ext4 -O orphan_file -E orphan_file_size=1M", 700 * MIB),
    ("-t ext4 -O orphan_file -E orphan_file_size=40k", GIB),
    ("-t ext4 -b -4096", 16 * MIB),
    ("-t ext4 -b -1k", 64 * MIB),
    ("-t ext4 -b -2048 -T big", 64 * MIB),
    ("-t ext4 -b 4K", 64 * MIB),
    ("-t ext4 -O fast_commit", 3 * GIB),
    ("-t ext4 -O fast_commit -J size=8,fast_commit_size=512", GIB),
    ("-t ext4 -O encrypt,verity,project,large_dir", 70 * MIB),
    ("-t ext2 -O encrypt,casefold", 30 * MIB),
    ("-t ext4 -O casefold -E encoding_flags=strict", 70 * MIB),
    ("-t ext4 -E encoding=utf8-12.1,encoding_flags=nostrict", GIB),
    ("-t ext4 -E encoding=utf8 -b 1024 -O project", 40 * MIB),
    ("-t ext4 -E encoding_flags=strict", 40 * MIB),
    ("-t ext4 -O project -I 128", 40 * MIB),
    ("-t ext3 -O large_dir,^dir_index", 40 * MIB),
    ("-t ext4 -O stable_inodes,^dir_index,^ext_attr", 70 * MIB),
    ("-t ext4 -O ^filetype,^dir_nlink,^huge_file", 70 * MIB),
    ("-t ext4 -O none,extent", 70 * MIB),
    (
        "-t ext4 -O ^extra_isize,^sparse_super,^resize_inode",
        900 * MIB,
    ),
    ("-t ext4 -O bigalloc", 64 * MIB),
    ("-t ext4 -O bigalloc -b 4096", 3 * GIB),
    ("-t ext4 -O bigalloc -b 4096 -C 8192", 600 * MIB),
    (
        "-t ext4 -O bigalloc,^resize_inode -b 1024 -C 4096",
        300 * MIB,
    ),
    (
        "-t ext4 -O bigalloc,orphan_file -b 1024 -C 16384",
        200 * MIB,
    ),
    (
        "-t ext4 -O bigalloc,^flex_bg,orphan_file -b 1024 -C 4096",
        90 * MIB,
    ),
    (
        "-t ext4 -O bigalloc,^metadata_csum,^64bit -C 65536",
        5 * GIB,
    ),
    ("-t ext4 -O bigalloc -C 1M", 40 * GIB),
    ("-t ext4 -O bigalloc -b 4096 -C 4096", 200 * MIB),
    (
        "-t ext4 -O bigalloc,fast_commit -E packed_meta_blocks=1",
        GIB,
    ),
    ("-t ext4 -O bigalloc -b 65536", 2 * GIB),
    ("-t ext4 -O bigalloc -b 1024 -g 8192 -C 8192", 100 * MIB),
    ("-t ext4 -O quota", 64 * MIB),
    ("-t ext4 -O quota,project,orphan_file -b 2048", 64 * MIB),
    (
        "-t ext4 -O quota -b 1024 -E root_owner=1000:70000",
        64 * MIB,
    ),
    (
        "-t ext4 -O quota,^extent,^64bit -E quotatype=prjquota",
        64 * MIB,
    ),
    ("-t ext4 -O quota,bigalloc,orphan_file -b 4096", 200 * MIB),
    ("-t ext4 -E quotatype=usrquota:prjquota", 64 * MIB),
    ("-t ext4 -O inline_data", 64 * MIB),
    ("-t ext4 -O inline_data -b 4096", 64 * MIB),
    ("-t ext4 -O inline_data -b 65536", 2 * GIB),
    ("-t ext4 -O inline_data -I 128", 64 * MIB),
    ("-t ext3 -O inline_data,^resize_inode", 64 * MIB),
    ("-t ext4 -O meta_bg", 64 * MIB),
    ("-t ext4 -O meta_bg,^resize_inode", 64 * MIB),
    ("-t ext4 -O meta_bg,^resize_inode -b 1024", 700 * MIB),
    (
        "-t ext4 -O meta_bg,^resize_inode,^flex_bg -b 1024",
        700 * MIB,
    ),
    (
        "-t ext4 -O meta_bg,^resize_inode,sparse_super2 -b 1024",
        200 * MIB,
    ),
    ("-t ext4 -O meta_bg,^resize_inode,bigalloc", 5 * GIB),
    (
        "-t ext4 -O meta_bg,^resize_inode,bigalloc -b 1024 -g 256 -C 4096",
        600 * MIB,
    ),
    ("-t ext2 -O meta_bg,^resize_inode -b 1024 -g 256", 100 * MIB),
    (
        "-t ext4 -O meta_bg,^resize_inode -E packed_meta_blocks=1",
        5 * GIB,
    ),
    (
        "-t ext4 -O meta_bg,^resize_inode -b 1024 -g 256 -i 65536",
        (343 * 256 + 57) * 1024,
    ),
    (
        "-t ext4 -O meta_bg,^resize_inode -b 1024 -g 256 -i 65536",
        (343 * 256 + 83) * 1024,
    ),
    // The table of descriptors would take more than three quarters of a group.
    ("-t ext4 -b 1024 -g 256", 3 * GIB),
    ("-t ext4 -b 1024 -g 256 -O ^resize_inode", 3 * GIB),
    ("-t ext4 -G 4", 6 * GIB),
    ("-t ext4 -G 1", 2 * GIB),
    ("-t ext4 -G 64 -b 1024", 600 * MIB),
    ("-t ext4 -g 8192", 500 * MIB),
    ("-t ext4 -g 1024 -b 1024", 50 * MIB),
    ("-t ext4 -i 1024 -b 1024", 100 * MIB),
    ("-t ext4 -i 65536", 3 * GIB),
    ("-t ext4 -i 1048576 -I 256", 100 * MIB),
    ("-t ext4 -N 100000", 500 * MIB),
    ("-t ext4 -N 12", 100 * MIB),
    ("-t ext4 -T news", 600 * MIB),
    ("-t ext4 -T largefile4", 2 * GIB),
    ("-t ext4 -T small", GIB),
    ("-t ext4 -T floppy,big", 100 * MIB),
    ("-t ext4 -m 12.5", 333 * MIB),
    ("-t ext4 -m 50 -e remount-ro -L a-label-16-bytes", 64 * MIB),
    ("-t ext4 -M /some/where -e panic", 64 * MIB),
    ("-t ext4 -E resize=20000000", 2 * GIB),
    ("-t ext4 -E resize=200000 -b 1024", 64 * MIB),
    ("-t ext4 -E resize=80G", 2 * GIB),
    ("-t ext4 -E stride=16,stripe-width=64", 4 * GIB),
    ("-t ext4 -E stride=16 -O ^flex_bg", 4 * GIB),
    ("-t ext4 -E packed_meta_blocks=1", 5 * GIB),
    ("-t ext4 -E packed_meta_blocks -b 1024", 90 * MIB),
    ("-t ext4 -E root_owner=1000:100000", 64 * MIB),
    ("-t ext4 -E nodiscard", 200 * MIB),
    ("-t ext4 -E nodiscard,lazy_itable_init=0", 200 * MIB),
    (
        "-t ext4 -E lazy_itable_init=0,lazy_journal_init=1",
        200 * MIB,
    ),
    ("-t ext4 -E assume_storage_prezeroed=1,nodiscard", 200 * MIB),
    ("-t ext3 -E nodiscard", 200 * MIB),
    ("-t ext4 -J size=512", 4 * GIB),
    ("-t ext4 -J size=64,location=50000", 4 * GIB),
    ("-t ext4 -J size=64,location=200M", 4 * GIB),
    ("-t ext4 -J size=100 -b 1024", 900 * MIB),
    ("-t ext4 -O ^flex_bg -J size=40 -b 1024", 300 * MIB),
];

#[test]
fn a_matrix_of_options_equals_mke2fs() {
    for (args, size) in MATRIX {
        check(args, *size);
    }
}

#[test]
fn a_tebibyte_is_formatted_at_once() {
    for args in [
        "-t ext4",
        // Without checksums e2fsck reads every table of inodes: as few as an ext3 volume may have.
        "-t ext3 -T largefile4",
        "-t ext4 -O ^has_journal -T largefile4",
    ] {
        check(args, 1 << 40);
    }
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("image");
    let start = steadfs_rt::now();
    ours(&path, "-t ext4", 1 << 40).unwrap();
    let took = start.elapsed();
    // At most a second on an idle machine; hours if each group were written.
    assert!(took.as_secs() < 120, "took {took:?}");
    let used = std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512;
    assert!(used < 64 * MIB, "{used} bytes are allocated");
    println!("{took:?}, {used} bytes");
}

/// More discards than are in flight at once.
#[test]
fn a_device_that_fails_discards_is_formatted() {
    let device = steadfs_block::FaultDevice::new(Arc::new(steadfs_block::MemDevice::new(80 << 30)));
    device.fail(|bio| bio.op == steadfs_block::Op::Discard);
    let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
    format(&queue, 80 << 30, &FormatOptions::default()).unwrap();
    assert!(
        (1..=32).contains(&device.failures()),
        "it is not asked again"
    );
}
