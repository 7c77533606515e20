//! Recorded corruption, and minimal corrupt volumes for former bugs.

use steadfs_base::{DevBlock, InodeNo};
use steadfs_vfs::{
    Cx, FallocMode, FileSystem, InodeFlags, RenameFlags, SetAttr, SetXattr, ShutdownMode,
};

use super::*;
use crate::CacheSizes;
use crate::disk::superblock::SUPERBLOCK_OFFSET;
use crate::disk::test_images::Image;
use crate::disk::{CorruptKind, DiskError, Structure};
use crate::options::MountOptions;
use crate::test_world::{ROOT, World};

#[test]
fn an_error_of_a_structure_keeps_its_position_and_kind() {
    let magic = CorruptKind::Magic {
        what: Structure::ExtentNode,
        found: 1,
    };
    let error = DiskError::from(magic)
        .in_inode(Ino(12))
        .in_block(DevBlock(345));
    let error = FsError::from(error);
    let corruption = error.corruption().unwrap();
    assert_eq!(corruption.inode, Some(InodeNo(12)));
    assert_eq!(corruption.block, Some(DevBlock(345)));
    assert_eq!(corruption.kind, CorruptionKind::Magic);
    let text = "volume is corrupt: inode 12: block 345: extent node has magic 0x1";
    assert_eq!(error.to_string(), text);
}

#[test]
fn corruption_is_recorded_with_its_place() {
    let options = ["-t", "ext4", "-e", "continue"];
    let world = World::make(&options, "16M").reopen();
    let dir = world.mkdir(ROOT, b"dir").unwrap();
    let image = world.close();
    // A byte of the directory's only block.
    let bytes = image.bytes();
    let name = bytes.windows(3).position(|w| w == b"dir").unwrap();
    let world = World::open(image);
    let inode = world.fs.by_number(dir.ino, IoTag::default()).unwrap();
    let core = inode.core.read().clone();
    let ino = inode.ino();
    let at = world
        .fs
        .map_block(&core, ino, steadfs_base::FileBlock(0), IoTag::default());
    let block = at.unwrap().unwrap();
    drop(inode);
    assert!(name > 0);
    let image = world.close();
    let mut bytes = image.bytes();
    bytes[(block.0 << world_block_bits()) as usize + 40] ^= 1;
    std::fs::write(image.path(), &bytes).unwrap();
    let world = World::open_with(image, MountOptions::default());
    for _ in 0..2 {
        let found = FileSystem::lookup(&*world.fs, &world.cx, dir.ino, b"x");
        assert!(matches!(found, Err(FsError::Corrupt(_))), "{found:?}");
    }
    world.fs.close().unwrap();
    let mut raw = vec![0; 1024];
    world.device().read(SUPERBLOCK_OFFSET, &mut raw);
    let sb = superblock::Superblock::parse(&raw).unwrap();
    assert_ne!(sb.state() & STATE_ERROR, 0);
    let raw = sb.raw();
    assert_eq!(raw.error_count.get(), 2);
    for (number, place) in [
        (raw.first_error_ino.get(), raw.first_error_block.get()),
        (raw.last_error_ino.get(), raw.last_error_block.get()),
    ] {
        assert_eq!((u64::from(number), place), (dir.ino.0, block.0));
    }
    assert_eq!(raw.first_error_errcode, BAD_CHECKSUM);
    assert!(raw.first_error_time.get() > 0);
    assert!(raw.first_error_line.get() > 0);
    assert!(raw.first_error_func.starts_with(b"steadfs ops.rs\0"));
}

fn world_block_bits() -> u32 {
    10
}

#[test]
fn an_aborted_journal_is_recorded_by_the_next_mount() {
    let world = World::make(&["-t", "ext4", "-O", "orphan_file"], "16M");
    world.file(ROOT, b"file").unwrap();
    world.fs.sync_volume(&world.cx).unwrap();
    world.fs.txns().journal().unwrap().abort("test");
    assert!(world.fs.close().is_err());
    let device = world.cut_power_now();
    let world = world.recover(device);
    assert_ne!(world.fs.sb.lock().state() & STATE_ERROR, 0);
    let journal = world.fs.txns().journal().unwrap();
    assert_eq!(journal.recorded_errno(), None);
    assert!(world.lookup(ROOT, b"file").is_ok());
    world.fs.close().unwrap();
    let mut raw = vec![0; 1024];
    world.device().read(SUPERBLOCK_OFFSET, &mut raw);
    let sb = superblock::Superblock::parse(&raw).unwrap();
    assert_ne!(sb.state() & STATE_ERROR, 0, "e2fsck must check it");
}

/// Error numbers of all calls that change a volume with a `file`, a `dir` and an open file `held`.
fn changes(world: &World, held: InodeNo) -> Vec<(&'static str, Option<i32>)> {
    let (fs, cx): (&dyn FileSystem, _) = (&*world.fs, &world.cx);
    let no_flags = RenameFlags::default();
    let size = SetAttr {
        size: Some(1),
        ..SetAttr::default()
    };
    let perm = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    let value = (b"user.b".as_slice(), b"1".as_slice());
    let allocate = |mode| fs.fallocate(cx, held, mode, 0, 4096);
    let keep_size = true;
    let all = [
        ("write", fs.write(cx, held, 0, b"x", false).map(drop)),
        ("allocate", allocate(FallocMode::Allocate { keep_size })),
        ("punch", allocate(FallocMode::PunchHole)),
        ("zero", allocate(FallocMode::ZeroRange { keep_size })),
        (
            "copy",
            fs.copy_range(cx, (held, 0), (held, 9000), 9).map(drop),
        ),
        ("truncate", fs.setattr(cx, held, &size).map(drop)),
        ("chmod", fs.setattr(cx, held, &perm).map(drop)),
        ("mknod", fs.mknod(cx, ROOT, b"new", 0o100_644, 0).map(drop)),
        ("mkdir", fs.mkdir(cx, ROOT, b"new", 0o755).map(drop)),
        ("symlink", fs.symlink(cx, ROOT, b"new", b"to").map(drop)),
        ("link", fs.link(cx, held, ROOT, b"new").map(drop)),
        ("tmpfile", fs.tmpfile(cx, ROOT, 0o600).map(drop)),
        ("unlink", fs.unlink(cx, ROOT, b"file")),
        ("rmdir", fs.rmdir(cx, ROOT, b"dir")),
        (
            "rename",
            fs.rename(cx, (ROOT, b"file"), (ROOT, b"new"), no_flags),
        ),
        (
            "setxattr",
            fs.setxattr(cx, held, value.0, value.1, SetXattr::Any),
        ),
        ("removexattr", fs.removexattr(cx, held, b"user.a")),
        ("flags", fs.set_flags(cx, held, InodeFlags::NOATIME)),
    ];
    all.map(|(call, result)| (call, result.err().map(|error| error.errno())))
        .into()
}

/// As in the kernel: EROFS once an error made the volume read-only, EIO after a shutdown.
#[test]
fn changes_of_a_stopped_volume_fail_with_its_error() {
    const EIO: i32 = 5;
    const EROFS: i32 = 30;
    type Stop = fn(&Ext4);
    let stops: [(Stop, i32); 3] = [
        (
            |fs| drop(fs.report_corruption::<()>(Err(Corruption::new("test").into()))),
            EROFS,
        ),
        (|fs| fs.abort("the device failed"), EROFS),
        (
            |fs| fs.shutdown(&Cx::default(), ShutdownMode::NoFlush).unwrap(),
            EIO,
        ),
    ];
    for kind in ["ext2", "ext4"] {
        for (stop, errno) in stops {
            let options = MountOptions::parse("errors=remount-ro").unwrap();
            let world = World::open_with(Image::make(&["-t", kind], "8M"), options);
            world.file(ROOT, b"file").unwrap();
            world.mkdir(ROOT, b"dir").unwrap();
            let held = world
                .fs
                .mknod(&world.cx, ROOT, b"held", 0o100_644, 0)
                .unwrap();
            let held = held.ino;
            FileSystem::setxattr(&*world.fs, &world.cx, held, b"user.a", b"1", SetXattr::Any)
                .unwrap();
            FileSystem::write(&*world.fs, &world.cx, held, 0, b"dirty", false).unwrap();
            stop(&world.fs);
            for (call, said) in changes(&world, held) {
                assert_eq!(said, Some(errno), "{kind}: {call}");
            }
            // Data written before is not durable.
            let synced = world
                .fs
                .fsync(&world.cx, held, false)
                .map_err(|e| e.errno());
            assert_eq!(synced, Err(EIO), "{kind}");
            let read = world.fs.read(&world.cx, held, 0, 100).unwrap();
            assert_eq!(read.to_vec(), b"dirty", "{kind}");
        }
    }
}

/// A volume of 1 KiB blocks without checksums, so that any byte of it may be changed, with a file of 300 blocks; and
/// changed by debugfs.
fn crafted(kind: &str, commands: &[&str]) -> Image {
    let options = ["-t", kind, "-b", "1024", "-O", "^metadata_csum,^uninit_bg"];
    let image = Image::make(&options, "8M");
    let content = image.beside("content");
    std::fs::write(&content, vec![7; 300 << 10]).unwrap();
    image.debugfs(&format!("write {} file", content.display()));
    for command in commands {
        image.debugfs(command);
    }
    image
}

/// Changes the image's bytes.
fn edit(image: &Image, change: impl FnOnce(&mut [u8])) {
    let mut bytes = image.bytes();
    change(&mut bytes);
    std::fs::write(image.path(), bytes).unwrap();
}

fn opened(image: &Image) -> Result<()> {
    let device = image.device();
    let sizes = CacheSizes::of(8 << 20);
    let opened = Ext4::open(device, MountOptions::default(), sizes);
    opened.map(|(fs, _)| fs.close().unwrap())
}

fn refused(image: &Image, why: &str) {
    match opened(image) {
        Err(FsError::Corrupt(corruption)) => {
            let text = corruption.to_string();
            assert!(text.contains(why), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

fn is_corrupt<T>(result: &Result<T>) -> bool {
    matches!(result, Err(FsError::Corrupt(_)))
}

#[test]
fn a_block_that_a_file_maps_twice_is_written_once() {
    let world = World::open(crafted(
        "ext2",
        &["sif file block[1] 2000", "sif file block[3] 2000"],
    ));
    let file = world.lookup(ROOT, b"file").unwrap().ino;
    world
        .fs
        .write(&world.cx, file, 0, &[1; 8 << 10], false)
        .unwrap();
    assert!(is_corrupt(&world.fs.fsync(&world.cx, file, false)));
    let _ = world.fs.close();
}

#[test]
fn block_numbers_at_the_limit_are_truncated_without_overflow() {
    let image = crafted("ext2", &[]);
    let indirect: u64 = image.debugfs("bmap file 12").trim().parse().unwrap();
    // The indirect block is before what it maps.
    edit(&image, |bytes| {
        bytes[(indirect as usize - 1) << 10..][..1024].fill(0xFF);
    });
    let world = World::open(image);
    let file = world.lookup(ROOT, b"file").unwrap().ino;
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    assert!(is_corrupt(&FileSystem::setattr(
        &*world.fs, &world.cx, file, &set
    )));
    let _ = world.fs.close();
}

#[test]
fn errors_remount_ro_mounts_despite_corrupt_orphans() {
    let image = crafted("ext4", &["ssv errors 2", "ssv last_orphan 2"]);
    let world = World::open(image);
    let made = world.file(ROOT, b"new");
    assert!(matches!(made, Err(FsError::TurnedReadOnly(_))), "{made:?}");
    assert!(world.lookup(ROOT, b"file").is_ok());
}

#[test]
fn a_volume_without_a_root_directory_is_refused() {
    for (change, why) in [
        ("sif <2> mode 0100644", "is not a directory"),
        ("sif <2> links_count 0", "not in use"),
        ("sif <2> size 0", "is empty"),
    ] {
        refused(&crafted("ext4", &[change]), why);
    }
}

#[test]
fn metadata_on_other_metadata_is_refused() {
    for change in [
        "set_bg 0 block_bitmap 2",
        "set_bg 0 inode_bitmap 4",
        "set_bg 0 inode_table 1",
    ] {
        refused(&crafted("ext2", &[change]), "group");
    }
    let image = crafted("ext3", &[]);
    let table = {
        let said = image.dumpe2fs();
        let (_, said) = said.split_once("Inode table at ").unwrap();
        said.split('-').next().unwrap().parse::<u32>().unwrap()
    };
    image.debugfs(&format!("sif <8> block[1] {table}"));
    refused(&image, "journal overlaps other metadata");
    // Before its replay, which would find no log and clear `needs_recovery`.
    image.debugfs("feature needs_recovery");
    refused(&image, "journal overlaps the group's metadata");
}

#[test]
fn an_inode_in_use_is_never_allocated() {
    let image = crafted("ext2", &["freei file"]);
    let world = World::open(image);
    let made = world.file(ROOT, b"new");
    assert!(is_corrupt(&made), "{made:?}");
    let file = world.lookup(ROOT, b"file").unwrap();
    assert_eq!(file.size, 300 << 10);
    let read = world.fs.read(&world.cx, file.ino, 0, 1 << 20).unwrap();
    assert_eq!(read.to_vec(), vec![7; 300 << 10]);
    let _ = world.fs.close();
}

#[test]
fn a_lookup_does_not_free_a_file_without_links() {
    let image = crafted("ext4", &["sif file links_count 0"]);
    let world = World::open(image);
    let found = world.fs.lookup(&world.cx, ROOT, b"file");
    assert!(is_corrupt(&found.map(drop)));
    let _ = world.fs.close();
    let image = Image::of(&world.device().to_bytes());
    assert!(image.debugfs("testi file").contains("marked in use"));
}

#[test]
fn names_that_resolve_to_other_files_are_not_listed() {
    for name in [&b"fi/e"[..], b"fi\0e", b".."] {
        let image = crafted("ext4", &[]);
        edit(&image, |bytes| {
            let at = bytes.windows(4).rposition(|w| w == b"file").unwrap();
            bytes[at..at + name.len()].copy_from_slice(name);
            bytes[at - 2] = name.len() as u8;
        });
        let world = World::open(image);
        let mut seen = Vec::new();
        let read = world.fs.readdir(&world.cx, ROOT, 0, &mut |entry| {
            seen.push(entry.name.to_vec());
            true
        });
        assert!(is_corrupt(&read), "{name:?}");
        assert!(!seen.contains(&name.to_vec()) || name == b"..");
        let _ = world.fs.close();
    }
}

#[test]
fn corrupt_links_are_reported() {
    let image = crafted("ext4", &["symlink link target", "sif link size 0"]);
    let world = World::open(image);
    let link = world.lookup(ROOT, b"link").unwrap().ino;
    assert!(is_corrupt(&world.fs.readlink(&world.cx, link)));
    let _ = world.fs.close();
}

#[test]
fn impossible_inline_data_is_reported() {
    for flags in ["0x10000000", "0x10080000"] {
        let world = World::open(crafted("ext4", &[&format!("sif file flags {flags}")]));
        assert!(
            is_corrupt(&world.lookup(ROOT, b"file").map(drop)),
            "{flags}"
        );
        let _ = world.fs.close();
    }
}

/// A panic inside an operation, of a library's caller or of this code: the volume stops, and nothing of the operation
/// is committed.
#[test]
fn a_panic_within_a_change_stops_the_volume() {
    let world = World::make(&["-t", "ext4"], "16M");
    world.mkdir(ROOT, b"dir").unwrap();
    world.fs.sync_volume(&world.cx).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut handle = world.fs.txns.begin(1).unwrap();
        world
            .fs
            .update_super(&mut handle, |sb| sb.set_free_blocks(1))
            .unwrap();
        // As a panic, without its message.
        std::panic::resume_unwind(Box::new("quietly"));
    }));
    assert!(caught.is_err());
    let refused = world.mkdir(ROOT, b"other");
    assert!(refused.is_err_and(|error| error.is_stop()));
    assert!(world.fs.sync_volume(&world.cx).is_err());
    assert!(world.fs.close().is_err());
    let device = world.cut_power_now();
    let world = world.recover(device);
    assert_eq!(world.names(ROOT), [&b"dir"[..], b"lost+found"]);
    assert!(world.fs.close().is_ok());
}
