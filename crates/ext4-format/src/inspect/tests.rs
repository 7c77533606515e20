//! Inspections compared with the output of dumpe2fs.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::DevBlock;
use steadfs_block::{FileDevice, MemDevice, OpenOptions, QueueOptions};

use super::*;
use crate::disk::Mmp;
use crate::disk::mmp::{SEQ_CLEAN, SEQ_FSCK};
use crate::disk::test_images::Image;

fn look(image: &Image) -> Inspection {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = FileDevice::open(image.path(), options).unwrap();
    inspect(
        &Queue::new(Arc::new(device), QueueOptions::default()),
        &SuperblockChoice::default(),
    )
    .unwrap()
}

/// dumpe2fs's names and values.
fn lines(dump: &str) -> BTreeMap<String, String> {
    dump.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

fn or_none(list: String) -> String {
    if list.is_empty() {
        "(none)".to_owned()
    } else {
        list
    }
}

/// The same from an inspection: names, features and states, which dumpe2fs always prints.
fn expected_texts(found: &Inspection) -> Vec<(&'static str, String)> {
    let label = match found.label.as_str() {
        "" => "<none>",
        label => label,
    };
    let state = match (found.state.clean, found.state.has_errors) {
        (true, false) => "clean",
        (true, true) => "clean with errors",
        (false, false) => "not clean",
        (false, true) => "not clean with errors",
    };
    let on_error = match found.state.on_error {
        "continue" => "Continue",
        "remount-ro" => "Remount read-only",
        _ => "Panic",
    };
    let mount_options = found.default_mount_options.join(" ");
    vec![
        ("Filesystem volume name", label.to_owned()),
        ("Filesystem UUID", found.uuid.clone()),
        ("Filesystem features", or_none(found.features.join(" "))),
        ("Filesystem flags", or_none(found.flags.join(" "))),
        ("Default mount options", or_none(mount_options)),
        ("Filesystem state", state.to_owned()),
        ("Errors behavior", on_error.to_owned()),
        ("Default directory hash", found.hash.version.clone()),
        ("Directory Hash Seed", found.hash.seed.clone()),
    ]
}

/// The numbers that dumpe2fs always prints.
fn expected_numbers(found: &Inspection) -> Vec<(&'static str, String)> {
    let geo = &found.geometry;
    let inode_blocks = geo.inode_blocks_per_group.to_string();
    vec![
        ("Inode count", geo.inodes.to_string()),
        ("Block count", geo.blocks.to_string()),
        ("Reserved block count", geo.reserved_blocks.to_string()),
        ("Free blocks", geo.free_blocks.to_string()),
        ("Free inodes", geo.free_inodes.to_string()),
        ("First block", geo.first_block.to_string()),
        ("Block size", geo.block_size.to_string()),
        ("Blocks per group", geo.blocks_per_group.to_string()),
        ("Inodes per group", geo.inodes_per_group.to_string()),
        ("Inode blocks per group", inode_blocks),
        ("First inode", geo.first_inode.to_string()),
        ("Inode size", geo.inode_size.to_string()),
        ("Mount count", found.history.mount_count.to_string()),
    ]
}

/// What dumpe2fs prints of this volume.
fn expected(found: &Inspection) -> Vec<(&'static str, String)> {
    let geo = &found.geometry;
    let mut lines = expected_texts(found);
    lines.extend(expected_numbers(found));
    if geo.overhead_clusters > 0 {
        lines.push(("Overhead clusters", geo.overhead_clusters.to_string()));
    }
    if geo.flex_group_size > 1 {
        lines.push(("Flex block group size", geo.flex_group_size.to_string()));
    }
    if let Some(sum) = &found.checksum {
        assert!(sum.is_right);
        lines.push(("Checksum", format!("{:#010x}", sum.stored)));
    }
    if let Some(protection) = &found.mmp {
        let state = protection.state.as_ref().unwrap();
        assert_eq!((state.usage, &protection.error), ("clean", &None));
        lines.extend([
            ("MMP block number", protection.block.to_string()),
            (
                "MMP update interval",
                protection.update_interval.to_string(),
            ),
            ("    mmp_check_interval", state.check_interval.to_string()),
            ("    mmp_sequence", format!("{:#x}", state.sequence)),
            ("    mmp_update_time", state.updated.to_string()),
            ("    mmp_node_name", state.node.clone()),
            ("    mmp_device_name", state.device.clone()),
        ]);
    }
    if let Journal::Internal { inode, log, .. } = &found.journal {
        assert!(log.checksum_is_right && log.aborted.is_none());
        lines.extend([
            ("Journal inode", inode.to_string()),
            ("Journal features", or_none(log.features.join(" "))),
            ("Total journal blocks", log.blocks.to_string()),
            ("Journal sequence", format!("{:#010x}", log.sequence)),
            ("Journal start", log.start.to_string()),
        ]);
    }
    lines
}

fn compare(image: &Image) -> Inspection {
    let found = look(image);
    let dump = image.dumpe2fs();
    let theirs = lines(dump.split("\n\n\n").next().unwrap());
    for (name, ours) in expected(&found) {
        assert_eq!(theirs.get(name), Some(&ours), "{name}\n{dump}");
    }
    // The groups' lines: free counts, directories, flags.
    let count = |flag: &str| dump.matches(flag).count() as u32;
    assert_eq!(found.usage.block_uninit, count("BLOCK_UNINIT"));
    assert_eq!(found.usage.inode_uninit, count("INODE_UNINIT"));
    let sum = |what: &str| -> u64 {
        dump.split([',', '\n'])
            .filter_map(|part| part.trim().strip_suffix(what)?.trim().parse::<u64>().ok())
            .sum()
    };
    assert_eq!(found.usage.directories, sum("directories"));
    assert_eq!(found.usage.unused_inodes, sum("unused inodes"));
    assert_eq!(
        found.usage.free_clusters,
        sum("free blocks") + sum("free clusters")
    );
    assert_eq!(
        found.usage.free_inodes,
        u64::from(found.geometry.free_inodes)
    );
    assert_eq!(
        found.usage.by_tenths.iter().sum::<u32>(),
        found.geometry.groups
    );
    assert_eq!((found.usage.damaged, &found.usage.unreadable), (0, &None));
    found
}

#[test]
fn what_dumpe2fs_says_is_what_is_found() {
    for (options, size) in [
        (&["-t", "ext2"][..], "8M"),
        (&["-t", "ext2", "-O", "none", "-m", "0"], "8M"),
        (&["-t", "ext3", "-L", "label", "-e", "panic"], "64M"),
        (&["-t", "ext4"], "64M"),
        (&["-t", "ext4", "-b", "4096", "-e", "remount-ro"], "700M"),
        (
            &["-t", "ext4", "-b", "1024", "-O", "^resize_inode,meta_bg"],
            "200M",
        ),
        (
            &["-t", "ext4", "-O", "bigalloc,quota,orphan_file,mmp"],
            "100M",
        ),
        (&["-t", "ext4", "-b", "65536", "-F"], "300M"),
    ] {
        compare(&Image::make(options, size));
    }
}

#[test]
fn volumes_with_a_history() {
    let image = Image::make(&["-t", "ext4", "-E", "stride=4,stripe_width=8"], "64M");
    image.debugfs("mkdir /a");
    image.debugfs("set_super_value mnt_count 7");
    image.debugfs("set_super_value max_mnt_count 20");
    image.debugfs("set_super_value checkinterval 86400");
    image.debugfs("set_super_value state 0");
    image.debugfs("set_super_value default_mount_opts 0x16c");
    image.debugfs("set_super_value error_count 3");
    image.debugfs("set_super_value first_error_time 1700000000");
    image.debugfs("set_super_value first_error_func ext4_lookup");
    image.debugfs("set_super_value first_error_line 42");
    image.debugfs("set_super_value first_error_ino 12");
    image.debugfs("set_super_value last_error_time 1700000001");
    image.debugfs("set_super_value last_error_block 77");
    let found = compare(&image);
    assert_eq!(found.history.max_mount_count, Some(20));
    assert_eq!(found.history.check_interval, Some(86_400));
    assert_eq!(
        (found.geometry.raid_stride, found.geometry.raid_stripe_width),
        (4, 8)
    );
    assert_eq!(found.state.error_count, 3);
    let first = found.state.first_error.as_ref().unwrap();
    assert_eq!(
        first.to_string(),
        "2023-11-14 22:13:20 UTC in ext4_lookup:42, inode 12"
    );
    let last = found.state.last_error.as_ref().unwrap();
    assert_eq!((last.block, &last.code), (Some(77), &None));
    let mut bytes = image.bytes();
    bytes[1024 + 0x27B] = 5;
    let last = look_at(&bytes).unwrap().state.last_error.unwrap();
    assert_eq!(last.code.as_deref(), Some("EFSCORRUPTED"));
    let text = found.to_string();
    for part in [
        "not clean; on errors: continue",
        "Errors noted:         3",
        "check after 20",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["geometry"]["block_size"], 1024);
    assert_eq!(json["journal"]["internal"]["blocks"], 4096);
}

#[test]
fn a_journal_with_something_in_it() {
    let image = Image::make(&["-t", "ext4"], "64M");
    let commands = image.beside("commands");
    std::fs::write(&commands, "jo\njw -b 5000 /etc/passwd\njc\n").unwrap();
    let (commands, path) = (commands.to_str().unwrap().to_owned(), image.path());
    crate::disk::test_images::run("debugfs", &["-w", "-f", &commands, path.to_str().unwrap()]);
    let found = compare(&image);
    assert!(found.state.needs_recovery);
    let Journal::Internal {
        log, has_backup, ..
    } = &found.journal
    else {
        panic!("{found:?}");
    };
    assert!(log.start > 0 && *has_backup);
    let text = found.to_string();
    assert!(
        text.contains("journal needs replay") && text.contains("starts at block 1"),
        "{text}"
    );
}

fn look_at(bytes: &[u8]) -> Result<Inspection> {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    inspect(
        &Queue::new(device, QueueOptions::default()),
        &SuperblockChoice::default(),
    )
}

#[test]
fn mount_protection_is_shown() {
    let options = ["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=20"];
    let image = Image::make(&options, "16M");
    let found = compare(&image).mmp.unwrap();
    let at = found.block as usize * 1024;
    let mut bytes = image.bytes();
    let mut mmp = Mmp::parse_lenient(DevBlock(0), &bytes[at..]).unwrap();
    let seed = image.superblock().geometry().seed;
    for (seq, words) in [
        (
            SEQ_CLEAN,
            "clean, last written by node n, device d, at 2023-11-14 22:13:20 UTC",
        ),
        (SEQ_FSCK, "in use by a program of e2fsprogs on node n"),
        (7, "updated every 20 s, in use (or not unmounted) by node n"),
        (SEQ_CLEAN + 1, "unknown sequence 0xff4d4d51 of node n"),
    ] {
        mmp.set_seq(seq);
        mmp.set_names(b"n", b"d");
        mmp.set_time(1_700_000_000);
        mmp.seal_into(seed, &mut bytes[at..]);
        let text = look_at(&bytes).unwrap().to_string();
        assert!(text.contains(words), "{text}");
    }
    let json = serde_json::to_value(look_at(&bytes).unwrap()).unwrap();
    assert_eq!(
        (&json["mmp"]["node"], &json["mmp"]["usage"]),
        (&"n".into(), &"unknown".into())
    );
    bytes[at + 20] ^= 1;
    let text = look_at(&bytes).unwrap().to_string();
    assert!(text.contains("unusable: volume is corrupt"), "{text}");
}

#[test]
fn damage_is_told() {
    let image = Image::make(&["-t", "ext4"], "64M");
    let good = image.bytes();
    let mut bad = good.clone();
    bad[1024 + 0x34] ^= 1;
    let found = look_at(&bad).unwrap();
    assert!(!found.checksum.as_ref().unwrap().is_right);
    assert!(found.to_string().contains("WRONG"));

    let mut bad = good.clone();
    // Group 2's descriptor, and block 0 of the journal.
    bad[2048 + 2 * 64] ^= 1;
    let journal = bad
        .windows(8)
        .step_by(1024)
        .position(|at| at == [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4])
        .unwrap();
    bad[journal * 1024] = 0;
    let found = look_at(&bad).unwrap();
    assert_eq!(found.usage.damaged, 1);
    assert!(
        matches!(found.journal, Journal::Unreadable { inode: 8, .. }),
        "{found:?}"
    );
    assert!(found.to_string().contains("unreadable"));

    assert!(look_at(&good[..2048]).is_ok_and(|found| found.usage.unreadable.is_some()));
    assert!(look_at(&good[..1024]).is_err());
    assert!(look_at(&vec![0; 1 << 20]).is_err());
}
