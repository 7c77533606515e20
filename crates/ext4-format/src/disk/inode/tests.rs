use super::super::group_desc::GroupDesc;
use super::super::test_images::Image;
use super::*;
use proptest::prelude::*;

fn slots<'a>(geo: &'a Geometry, bytes: &'a [u8]) -> impl Iterator<Item = (Ino, &'a [u8])> {
    geo.groups().flat_map(move |group| {
        let (n, offset) = geo.desc_slot(group);
        let at = usize::try_from(geo.block_size.offset_of(geo.desc_block_at(n))).unwrap() + offset;
        let desc = GroupDesc::decode(geo, &bytes[at..at + usize::from(geo.desc_size)]);
        (0..desc.inodes_in_use_limit(geo)).map(move |index| {
            let (block, offset) = geo.inode_slot(desc.inode_table, index);
            let at = usize::try_from(geo.block_size.offset_of(block)).unwrap() + offset;
            (
                geo.inode_at(group, index),
                &bytes[at..at + usize::from(geo.inode_size)],
            )
        })
    })
}

fn populated(options: &[&str]) -> Image {
    let image = Image::make(options, "16M");
    std::fs::write(image.beside("file"), b"hello").unwrap();
    let file = image.beside("file");
    for command in [
        &format!("write {} file", file.display())[..],
        "mkdir dir",
        "symlink link target",
        "mknod device c 5 300",
        "mknod small b 8 1",
        "set_inode_field file mtime @5000000000",
        "set_inode_field file uid 100000",
        "set_inode_field dir gid 200000",
    ] {
        image.debugfs(command);
    }
    image
}

#[test]
fn every_inode_reads_and_writes_back_unchanged() {
    for options in [
        &["-t", "ext4"][..],
        &["-t", "ext4", "-I", "128"],
        &["-t", "ext4", "-I", "1024", "-O", "project"],
        &["-t", "ext4", "-O", "^metadata_csum,^64bit"],
        &["-t", "ext3"],
        &["-t", "ext2", "-I", "128"],
    ] {
        let image = populated(options);
        let bytes = image.bytes();
        let geo = image.superblock().geometry().clone();
        let mut used = 0;
        for (ino, slot) in slots(&geo, &bytes) {
            if get16(slot, 0) == 0 {
                continue;
            }
            used += 1;
            let inode =
                Inode::parse(&geo, ino, slot).unwrap_or_else(|e| panic!("{options:?}: {e}"));
            let mut again = slot.to_vec();
            inode.encode_into(&geo, ino, &mut again).unwrap();
            assert!(
                again == slot,
                "{options:?} inode {ino} changes when written back"
            );
            let fresh_ok = Inode::decode(&geo, &again).unwrap() == inode;
            assert!(fresh_ok);
        }
        assert!(used >= 7, "{options:?}: {used} inodes in use");
    }
}

#[test]
fn fields_are_what_debugfs_set() {
    let image = populated(&["-t", "ext4", "-b", "4096"]);
    let bytes = image.bytes();
    let geo = image.superblock().geometry().clone();
    let named = |name: &str| {
        let stat = image.debugfs(&format!("stat {name}"));
        let number = stat.split_whitespace().nth(1).unwrap().parse().unwrap();
        let (_, slot) = slots(&geo, &bytes)
            .find(|(ino, _)| *ino == Ino(number))
            .unwrap();
        Inode::parse(&geo, Ino(number), slot).unwrap()
    };
    let file = named("file");
    assert_eq!(file.kind(), Some(FileKind::Regular));
    assert_eq!(
        (file.size, file.uid, file.links, file.blocks),
        (5, 100_000, 1, 8)
    );
    assert_eq!(file.mtime.secs, 5_000_000_000);
    assert!(file.has(InodeFlags::EXTENTS) && file.btime.is_some());
    let dir = named("dir");
    assert_eq!(
        (dir.kind(), dir.links, dir.gid),
        (Some(FileKind::Directory), 2, 200_000)
    );
    let link = named("link");
    assert!(link.is_fast_symlink(&geo));
    assert_eq!(link.fast_symlink_target(), b"target");
    assert_eq!(named("small").rdev(), 0x801);
    assert_eq!(named("device").rdev(), 0x10_052C);
}

#[test]
fn device_numbers_both_forms() {
    let mut inode = Inode::default();
    for rdev in [0x801, 0x10_052C, 0, 0xFFFF, 0xFFFF_FFFF] {
        inode.set_rdev(rdev);
        assert_eq!(inode.rdev(), rdev);
    }
}

fn geo256() -> &'static Geometry {
    use std::sync::OnceLock;
    static GEO: OnceLock<Geometry> = OnceLock::new();
    GEO.get_or_init(|| super::super::test_images::geometry(&[]))
}

#[test]
fn block_counts_up_to_the_limit() {
    let geo = geo256();
    let mut slot = vec![0; 256];
    for blocks in [
        0,
        1 << 31,
        (1 << 32) + 8,
        (1 << 48) - 1,
        1 << 48,
        ((1 << 48) - 1) << 1,
    ] {
        let inode = Inode {
            blocks,
            extra_isize: 32,
            ..Inode::default()
        };
        inode.encode_into(geo, Ino(12), &mut slot).unwrap();
        assert_eq!(Inode::decode(geo, &slot).unwrap().blocks, blocks);
    }
    let before = slot.clone();
    let too_many = Inode {
        blocks: 1 << 52,
        ..Inode::default()
    };
    assert!(too_many.encode_into(geo, Ino(12), &mut slot).is_err());
    assert!(slot == before, "a refused inode leaves the slot alone");
    let ext2 = Image::make(&["-t", "ext2"], "4M")
        .superblock()
        .geometry()
        .clone();
    let inode = Inode {
        blocks: 1 << 32,
        ..Inode::default()
    };
    let mut slot = vec![0; usize::from(ext2.inode_size)];
    assert!(inode.encode_into(&ext2, Ino(12), &mut slot).is_err());
}

#[test]
fn wrong_fields_are_refused() {
    let geo = geo256();
    let good = Inode {
        mode: 0o100_644,
        links: 1,
        extra_isize: 32,
        ..Inode::default()
    };
    let parse = |edit: &dyn Fn(&mut Inode)| {
        let mut inode = good.clone();
        edit(&mut inode);
        let mut slot = vec![0; 256];
        inode.encode_into(geo, Ino(12), &mut slot).unwrap();
        Inode::parse(geo, Ino(12), &slot)
    };
    parse(&|_| {}).unwrap();
    parse(&|inode| inode.mode = 0o644).unwrap_err();
    parse(&|inode| inode.size = 1 << 62).unwrap_err();
    parse(&|inode| inode.file_acl = Some(DevBlock(1 << 40))).unwrap_err();
    let mut slot = vec![0; 256];
    good.encode_into(geo, Ino(12), &mut slot).unwrap();
    Inode::parse(geo, Ino(13), &slot).unwrap_err();
    put16(&mut slot, 0x80, 130);
    assert!(Inode::decode(geo, &slot).is_err());
    put16(&mut slot, 0x80, 30);
    assert!(Inode::decode(geo, &slot).is_err());
}

proptest! {
    #[test]
    fn any_bytes_parse_or_fail(mut slot in proptest::collection::vec(any::<u8>(), 256), extra in 0u16..140) {
        let geo = geo256();
        put16(&mut slot, 0x80, extra);
        prop_assert!(Inode::parse(geo, Ino(15), &slot).is_err());
        if let Ok(inode) = Inode::decode(geo, &slot) {
            inode.validate(geo).ok();
            inode.is_fast_symlink(geo);
            inode.fast_symlink_target();
            // A decoded inode can be encoded, and decodes to the same again.
            let mut again = slot.clone();
            if inode.encode_into(geo, Ino(15), &mut again).is_ok() {
                Inode::verify_checksum(geo, Ino(15), &again).unwrap();
                prop_assert_eq!(Inode::decode(geo, &again).unwrap(), inode);
            }
        }
    }
}
