use super::super::Ino;
use super::super::test_images::geometry;
use super::*;
use proptest::prelude::*;
use std::sync::OnceLock;

fn geo() -> &'static Geometry {
    static GEO: OnceLock<Geometry> = OnceLock::new();
    GEO.get_or_init(|| geometry(&["-b", "1024"]))
}

fn seed() -> ChecksumSeed {
    geo().seed.of_inode(Ino(12), 34)
}

fn extent(block: u64, len: u32, start: u64) -> Extent {
    Extent {
        block: FileBlock(block),
        len,
        start: DevBlock(start),
        unwritten: false,
    }
}

fn expect(depth: u16, blocks: Range<u64>) -> Expect {
    Expect {
        depth,
        blocks: FileBlock(blocks.start)..FileBlock(blocks.end),
    }
}

#[test]
fn lengths_on_both_sides_of_the_mark() {
    let mut bytes = [0; 12];
    for (len, unwritten) in [(1, false), (32768, false), (1, true), (32767, true)] {
        let extent = Extent {
            unwritten,
            ..extent(7, len, 1 << 40)
        };
        extent.encode(&mut bytes);
        assert_eq!(Extent::decode(&bytes), extent);
    }
    // 0x8000 means 32768 written blocks, 0x8001 one unwritten.
    assert_eq!(get16(&bytes, 4), 0xFFFF);
    assert!(extent(0, 10, 100).can_merge(&extent(10, 5, 110)));
    assert!(!extent(0, 10, 100).can_merge(&extent(10, 5, 111)));
    assert!(!extent(0, 32768, 100).can_merge(&extent(32768, 1, 100 + 32768)));
}

#[test]
fn a_root_is_built_searched_and_shrunk() {
    let mut i_block = [0xAA; 60];
    let mut root = ExtentNodeMut::init_root(&mut i_block);
    root.insert_extent(0, &extent(10, 5, 1000));
    root.insert_extent(1, &extent(20, 5, 2000));
    root.insert_extent(0, &extent(0, 5, 500));
    root.insert_extent(3, &extent(30, 5, 3000));
    assert!(root.node().is_full());
    let node = ExtentNode::parse_root(geo(), &i_block).unwrap();
    assert_eq!(node.len(), 4);
    let find = |block| node.find(FileBlock(block)).map(|(i, _)| i);
    assert_eq!(find(0), Some(0));
    assert_eq!(find(5), None);
    assert_eq!(find(14), Some(1));
    assert_eq!(find(34), Some(3));
    assert_eq!(find(35), None);
    assert_eq!(node.extent(2).device_block(FileBlock(23)), DevBlock(2003));
    let mut root = ExtentNodeMut::edit(&mut i_block).unwrap();
    root.remove(1..3);
    let left: Vec<_> = root.node().extents().map(|e| e.block.0).collect();
    assert_eq!(left, [0, 30]);
}

#[test]
fn a_block_is_sealed_and_knows_its_parent() {
    let mut block = vec![0; 1024];
    let mut leaf = ExtentNodeMut::init_block(geo(), &mut block, 0);
    let count = leaf.node().capacity();
    assert_eq!(count, 84);
    for i in 0..count {
        let at = u64::from(i);
        leaf.insert_extent(i, &extent(100 + at * 2, 1, 1000 + at));
    }
    leaf.seal(seed());
    let whole = expect(0, 100..1000);
    ExtentNode::parse_block(geo(), seed(), &block, &whole).unwrap();
    let fails = |expect: &Expect, seed| {
        ExtentNode::parse_block(geo(), seed, &block, expect)
            .unwrap_err()
            .to_string()
    };
    assert!(fails(&expect(1, 100..1000), seed()).contains("eh_depth"));
    assert!(fails(&expect(0, 99..1000), seed()).contains("its parent says"));
    assert!(fails(&expect(0, 100..266), seed()).contains("parent's range"));
    assert!(fails(&whole, geo().seed).contains("checksum"));

    let mut upper = vec![0; 1024];
    let mut node = ExtentNodeMut::init_block(geo(), &mut upper, 1);
    for (i, block) in [(0, 100), (1, 500)] {
        let child = DevBlock(50 + block);
        node.insert_index(
            i,
            &ExtentIndex {
                block: FileBlock(block),
                child,
            },
        );
    }
    node.seal(seed());
    let own = FileBlock(100)..FileBlock(1000);
    let node = ExtentNode::parse_block(geo(), seed(), &upper, &expect(1, 100..1000)).unwrap();
    assert_eq!(node.child_for(FileBlock(499)).0, 0);
    assert_eq!(node.child_for(FileBlock(500)).1.child, DevBlock(550));
    assert_eq!(node.child_for(FileBlock(3)).0, 0);
    assert_eq!(node.expect_child(0, &own), expect(0, 100..500));
    assert_eq!(node.expect_child(1, &own), expect(0, 500..1000));
}

#[test]
fn halves_move_to_a_new_node() {
    let (mut old, mut new) = (vec![0; 1024], vec![0; 1024]);
    let mut from = ExtentNodeMut::init_block(geo(), &mut old, 0);
    for i in 0..6u16 {
        from.insert_extent(i, &extent(u64::from(i) * 10, 1, 100));
    }
    let mut to = ExtentNodeMut::init_block(geo(), &mut new, 0);
    to.append(&from.node(), 3..6);
    from.remove(3..6);
    let starts = |node: ExtentNode<'_>| node.extents().map(|e| e.block.0).collect::<Vec<_>>();
    assert_eq!(starts(from.node()), [0, 10, 20]);
    assert_eq!(starts(to.node()), [30, 40, 50]);
}

/// A full node is split in two, neither of which may be empty.
#[test]
fn a_node_block_with_little_room_is_refused() {
    let parse = |max| {
        let mut block = vec![0; 1024];
        let mut leaf = ExtentNodeMut::init_block(geo(), &mut block, 0);
        leaf.insert_extent(0, &extent(0, 1, 100));
        put16(&mut block, 4, max);
        ExtentNode::parse_block(geo(), ChecksumSeed::NONE, &block, &expect(0, 0..100)).map(drop)
    };
    let fit = block_entries(geo());
    for max in [fit, fit - 1, fit - 2] {
        parse(max).unwrap();
    }
    for max in [1, 2, fit - 3] {
        let why = parse(max).unwrap_err().to_string();
        assert!(why.contains("eh_max"), "{max}: {why}");
    }
}

#[test]
fn damage_is_named() {
    let make = |extents: &[Extent]| {
        let mut bytes = [0; 60];
        let mut root = ExtentNodeMut::init_root(&mut bytes);
        for (i, extent) in (0u16..).zip(extents) {
            root.insert_extent(i, extent);
        }
        bytes
    };
    let why = |bytes: &[u8]| {
        ExtentNode::parse_root(geo(), bytes)
            .unwrap_err()
            .to_string()
    };
    assert!(why(&make(&[extent(10, 5, 100), extent(14, 5, 200)])).contains("overlaps"));
    assert!(why(&make(&[extent(10, 5, 100), extent(5, 1, 200)])).contains("out of order"));
    assert!(why(&make(&[extent(10, 5, 1)])).contains("outside the volume"));
    assert!(why(&make(&[extent(10, 5, 4092)])).contains("outside the volume"));
    let mut bytes = make(&[extent(0, 1, 100)]);
    put16(&mut bytes, 16, 0);
    assert!(why(&bytes).contains("is empty"));
    for (at, value, text) in [
        (0, 1, "magic"),
        (2, 5, "more than eh_max"),
        (4, 0, "eh_max"),
        (4, 5, "eh_max"),
        (6, 6, "eh_depth"),
    ] {
        let mut bytes = make(&[extent(0, 1, 100)]);
        put16(&mut bytes, at, value);
        assert!(why(&bytes).contains(text), "{text}");
    }
    let mut empty = make(&[]);
    ExtentNode::parse_root(geo(), &empty).unwrap();
    put16(&mut empty, 6, 1);
    assert!(why(&empty).contains("upper node"));
}

proptest! {
    #[test]
    fn any_bytes_parse_or_fail(
        mut bytes in proptest::collection::vec(any::<u8>(), 1024),
        head in any::<[u8; 3]>(),
        probe: u32,
    ) {
        put16(&mut bytes, 0, MAGIC);
        put16(&mut bytes, 2, u16::from(head[0]));
        put16(&mut bytes, 4, u16::from(head[1]));
        put16(&mut bytes, 6, u16::from(head[2] % 3));
        for slice in [&bytes[..], &bytes[..60]] {
            if let Ok(node) = ExtentNode::view(slice) {
                let probe = FileBlock(probe.into());
                node.verify_checksum(seed()).ok();
                if node.depth() == 0 {
                    node.find(probe);
                    prop_assert_eq!(node.extents().count(), usize::from(node.len()));
                } else {
                    node.child_for(probe);
                }
                ExtentNode::parse_root(geo(), slice).ok();
            }
        }
        for depth in 0..2 {
            ExtentNode::parse_block(geo(), ChecksumSeed::NONE, &bytes, &expect(depth, 0..1 << 32)).ok();
        }
    }

    #[test]
    fn position_is_where_insertion_belongs(mut starts in proptest::collection::btree_set(0u64..200, 0..80), probe in 0u64..200) {
        let mut block = vec![0; 1024];
        let mut leaf = ExtentNodeMut::init_block(geo(), &mut block, 0);
        starts.remove(&probe);
        for (i, &start) in (0u16..).zip(&starts) {
            leaf.insert_extent(i, &extent(start, 1, 100));
        }
        let at = leaf.node().position(FileBlock(probe));
        leaf.insert_extent(at, &extent(probe, 1, 100));
        starts.insert(probe);
        let found: Vec<_> = leaf.node().extents().map(|e| e.block.0).collect();
        prop_assert_eq!(found, starts.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(leaf.node().find(FileBlock(probe)).map(|(i, _)| i), Some(at));
    }
}
