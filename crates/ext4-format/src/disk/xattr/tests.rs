use super::super::test_images::{Image, geometry};
use super::*;
use proptest::prelude::*;

#[test]
fn names_split_and_join() {
    for (full, index, rest) in [
        (&b"user.comment"[..], 1, &b"comment"[..]),
        (b"system.posix_acl_access", 2, b""),
        (b"system.posix_acl_default", 3, b""),
        (b"trusted.overlay.opaque", 4, b"overlay.opaque"),
        (b"security.selinux", 6, b"selinux"),
        (b"system.data", 7, b"data"),
    ] {
        assert_eq!(split_name(full), Some((index, rest)));
        assert_eq!(full_name(index, rest).as_deref(), Some(full));
    }
    assert_eq!(split_name(b"user."), None);
    assert_eq!(split_name(b"unknown.name"), None);
    assert_eq!(full_name(INDEX_ENCRYPTION, b"c"), None);
}

fn block_at(geo: &Geometry, bytes: &[u8], at: DevBlock) -> Vec<u8> {
    let start = usize::try_from(geo.block_size.offset_of(at)).unwrap();
    bytes[start..start + geo.block_size.bytes()].to_vec()
}

/// A file with attributes set by debugfs, in the inode and in a block.
#[test]
fn reads_what_debugfs_wrote_and_writes_the_same() {
    use super::super::group_desc::GroupDesc;
    use super::super::{GroupNo, Inode};
    for options in [&["-t", "ext4"][..], &["-t", "ext4", "-O", "^metadata_csum"]] {
        let image = Image::make(options, "8M");
        std::fs::write(image.beside("value"), vec![b'v'; 300]).unwrap();
        let value = image.beside("value").display().to_string();
        image.debugfs(&format!("write {value} f"));
        image.debugfs("ea_set f user.small tiny");
        image.debugfs(&format!("ea_set -f {value} f user.large"));
        image.debugfs(&format!("ea_set -f {value} f trusted.more"));
        image.debugfs("ea_set f user.schön ümläute");
        let geo = image.superblock().geometry().clone();
        let bytes = image.bytes();
        let stat = image.debugfs("stat f");
        let ino = Ino(stat.split_whitespace().nth(1).unwrap().parse().unwrap());
        let (n, offset) = geo.desc_slot(GroupNo(0));
        let descs = block_at(&geo, &bytes, geo.desc_block_at(n));
        let desc = GroupDesc::decode(&geo, &descs[offset..offset + usize::from(geo.desc_size)]);
        let (block, offset) = geo.inode_slot(desc.inode_table, ino.0 - 1);
        let slot = &block_at(&geo, &bytes, block)[offset..offset + usize::from(geo.inode_size)];
        let inode = Inode::parse(&geo, ino, slot).unwrap();

        let inside = InodeAttrs::parse(&inode.xattr_area).unwrap();
        let at = inode.file_acl.unwrap();
        let content = block_at(&geo, &bytes, at);
        let outside = BlockAttrs::parse(&geo, at, &content).unwrap();
        let all: Vec<_> = inside.iter().chain(outside.iter()).collect();
        assert_eq!(all.len(), 4);
        assert!(inside.iter().all(|attr| attr.has_valid_hash(true)));
        assert!(outside.iter().all(|attr| attr.has_valid_hash(false)));
        assert!(outside.has_valid_hash());
        assert_eq!(outside.refcount, 1);
        let small = all.iter().find(|attr| attr.name == b"small").unwrap();
        assert_eq!((small.index, small.value), (1, Value::Here(b"tiny")));

        let mut list: AttrList = outside.iter().collect();
        let mut again = vec![0; geo.block_size.bytes()];
        list.write_block(&geo, at, 1, &mut again);
        let same = BlockAttrs::parse(&geo, at, &again).unwrap();
        assert!(same.has_valid_hash() && same.hash != 0);
        assert!(list.same_as(&same.iter().collect()));
        set_refcount(&geo, at, &mut again, 5);
        assert_eq!(BlockAttrs::parse(&geo, at, &again).unwrap().refcount, 5);
        let elsewhere = BlockAttrs::parse(&geo, at.plus(1), &again);
        assert_eq!(elsewhere.is_err(), geo.seed.enabled());
    }
}

#[test]
fn lists_change_and_fit_or_do_not() {
    let geo = geometry(&["-b", "1024"]);
    let mut list = AttrList::default();
    assert!(list.fits_inode(0) && list.to_inode_area(0).is_empty());
    assert_eq!(list.set(1, b"one", b"1"), None);
    assert_eq!(
        list.set(1, b"one", b"22"),
        Some(OwnedValue::Here(b"1".to_vec()))
    );
    assert_eq!(list.set(1, b"empty", b""), None);
    // Magic, two entries of 20 and 24 bytes, terminator, one value of 4.
    let exact = 4 + 20 + 24 + 4 + 4;
    assert!(list.fits_inode(exact) && !list.fits_inode(exact - 1));
    let area = list.to_inode_area(exact);
    let read = InodeAttrs::parse(&area).unwrap();
    assert_eq!(
        read.get(1, b"one").map(|a| a.value),
        Some(Value::Here(b"22"))
    );
    assert_eq!(
        read.get(1, b"empty").map(|a| a.value),
        Some(Value::Here(b""))
    );
    assert!(list.same_as(&read.iter().collect()));
    // Header, entry of 20 bytes, terminator: 968 bytes of value remain.
    let mut large = AttrList::default();
    large.set(1, b"one", &[1; 968]);
    assert!(large.fits_block(&geo));
    large.set(1, b"one", &[1; 969]);
    assert!(!large.fits_block(&geo));
    assert!(list.remove(1, b"one").is_some() && list.remove(1, b"one").is_none());
}

#[test]
fn damage_is_found() {
    let geo = geometry(&["-b", "1024", "-O", "^metadata_csum"]);
    let mut list = AttrList::default();
    list.set(1, b"name", b"value");
    let mut good = vec![0; 1024];
    list.write_block(&geo, DevBlock(9), 1, &mut good);
    let edits: &[(usize, u8)] = &[
        (3, 0),                 // magic
        (8, 2),                 // h_blocks
        (BLOCK_HEADER + 2, 3),  // value among the entries
        (BLOCK_HEADER + 10, 1), // size beyond the block
        (BLOCK_HEADER + 11, 0xFF),
    ];
    for &(at, byte) in edits {
        let mut block = good.clone();
        block[at] = byte;
        if at == BLOCK_HEADER + 2 {
            block[at + 1] = 0;
        }
        assert!(
            BlockAttrs::parse(&geo, DevBlock(9), &block).is_err(),
            "{at}"
        );
    }
    // A wrong hash is not an invalid structure.
    let mut block = good.clone();
    block[BLOCK_HEADER + 12] ^= 1;
    let attrs = BlockAttrs::parse(&geo, DevBlock(9), &block).unwrap();
    assert!(!attrs.has_valid_hash() && !attrs.iter().all(|a| a.has_valid_hash(false)));
}

proptest! {
    #[test]
    fn any_bytes_parse_or_fail(mut area in proptest::collection::vec(any::<u8>(), 8..200), zeros in any::<bool>()) {
        put32(&mut area, 0, MAGIC);
        if zeros {
            // Small lengths and offsets reach more code.
            for byte in area[4..].iter_mut().step_by(3) {
                *byte = 0;
            }
        }
        if let Ok(attrs) = InodeAttrs::parse(&area) {
            let list: AttrList = attrs.iter().collect();
            prop_assert_eq!(attrs.iter().count(), list.iter().count());
            attrs.iter().for_each(|attr| { attr.has_valid_hash(true); });
        }
    }

    #[test]
    fn what_is_written_is_read(attrs in proptest::collection::btree_map(
        (prop_oneof![Just(1u8), Just(4), Just(6)], proptest::collection::vec(1u8.., 1..30)),
        proptest::collection::vec(any::<u8>(), 0..60), 0..12))
    {
        use std::sync::OnceLock;
        static GEO: OnceLock<Geometry> = OnceLock::new();
        let geo = GEO.get_or_init(|| geometry(&["-b", "1024"]));
        let mut list = AttrList::default();
        for ((index, name), value) in &attrs {
            list.set(*index, name, value);
        }
        prop_assume!(list.fits_block(geo));
        let mut block = vec![0; 1024];
        list.write_block(geo, DevBlock(77), 1, &mut block);
        let read = BlockAttrs::parse(geo, DevBlock(77), &block).unwrap();
        prop_assert!(read.iter().all(|a| a.has_valid_hash(false)) && read.has_valid_hash());
        prop_assert_eq!(read.hash, list.block_hash());
        prop_assert!(list.same_as(&read.iter().collect()));
        for ((index, name), value) in &attrs {
            prop_assert_eq!(read.get(*index, name).unwrap().value, Value::Here(&value[..]));
        }
    }
}
