use super::super::test_images::geometry;
use super::*;
use proptest::prelude::*;

fn layout(block_size: usize, has_tail: bool) -> DirLayout {
    DirLayout {
        block_size,
        has_tail,
        has_file_type: true,
        inodes_count: 1000,
        has_hashes: false,
    }
}

const INFO: RootInfo = RootInfo {
    hash: HashKind::HalfMd4,
    indirect_levels: 0,
};

#[test]
fn limits_are_the_kernels() {
    // (block size - 32) / 8 and (block size - 8) / 8, one less each with a tail.
    for (size, tail, root, node) in [
        (4096, false, 508, 511),
        (4096, true, 507, 510),
        (1024, true, 123, 126),
    ] {
        let layout = layout(size, tail);
        assert_eq!(limit_for(&layout, ROOT_ENTRIES_AT), root);
        assert_eq!(limit_for(&layout, NODE_ENTRIES_AT), node);
    }
}

/// The seed of the checksums of the directories that these tests make.
fn dir_seed(geo: &Geometry) -> ChecksumSeed {
    geo.seed.of_inode(Ino(12), 1)
}

/// A root of 1 KiB with the blocks 1, 2, 4 and 3, for hashes from 0, 100, 200 and 300.
fn grown_root(geo: &Geometry) -> Vec<u8> {
    let layout = DirLayout::of(geo);
    let mut block = vec![9; 1024];
    let mut root = DxNodeMut::init_root(&layout, &mut block, (Ino(12), Ino(2)), INFO, 1);
    for (at, hash, block) in [(1, 100, 2), (2, 300, 3), (2, 200, 4)] {
        root.insert(at, DxEntry { hash, block });
    }
    root.seal(dir_seed(geo));
    block
}

#[test]
fn a_root_is_made_grown_and_searched() {
    let geo = geometry(&["-b", "1024"]);
    let layout = DirLayout::of(&geo);
    let block = grown_root(&geo);
    assert_eq!(root_info(&geo, &block).unwrap(), INFO);
    let without_tail = DirLayout {
        has_tail: false,
        ..layout
    };
    let dots = root_dots(&without_tail, &block).unwrap();
    assert_eq!(dots, (Ino(12), Ino(2)));
    let node = DxNode::parse_root(&layout, dir_seed(&geo), &block).unwrap();
    let blocks: Vec<_> = node.children().map(|e| e.block).collect();
    assert_eq!(blocks, [1, 2, 4, 3]);
    for (hash, block) in [(0, 1), (99, 1), (100, 2), (199, 2), (200, 4), (u32::MAX, 3)] {
        assert_eq!(node.child_for(hash).1.block, block, "{hash}");
    }
    // To a reader that knows no index the block holds . and .. only.
    assert!(dir_entry::is_empty(&without_tail, &block).unwrap());
    assert!(DxNode::parse_root(&layout, geo.seed, &block).is_err());
}

#[test]
fn a_root_is_split_into_nodes() {
    let geo = geometry(&["-b", "1024"]);
    let (layout, seed) = (DirLayout::of(&geo), dir_seed(&geo));
    let mut block = grown_root(&geo);
    let (mut low, mut high) = (vec![0; 1024], vec![0; 1024]);
    let from = DxNode::parse_root(&layout, seed, &block).unwrap();
    DxNodeMut::init_node(&layout, &mut low, 0).copy_from(&from, 0..2);
    let mut node = DxNodeMut::init_node(&layout, &mut high, 0);
    node.copy_from(&from, 2..4);
    node.seal(seed);
    let high = DxNode::parse_node(&layout, seed, &high).unwrap();
    let entries: Vec<_> = high.children().map(|e| (e.hash, e.block)).collect();
    assert_eq!(entries, [(0, 4), (300, 3)]);
    let mut root = DxNodeMut::edit_root(&layout, &mut block).unwrap();
    root.truncate(2);
    root.set_block(1, 9);
    root.set_levels(1);
    root.set_parent(Ino(7));
    root.seal(seed);
    let root = DxNode::parse_root(&layout, seed, &block).unwrap();
    assert_eq!(root.entry(1).block, 9);
    assert_eq!(root_info(&geo, &block).unwrap().indirect_levels, 1);
}

#[test]
fn damage_is_named() {
    let geo = geometry(&["-b", "1024", "-O", "^metadata_csum"]);
    let layout = DirLayout::of(&geo);
    let none = ChecksumSeed::NONE;
    let mut good = vec![0; 1024];
    let mut root = DxNodeMut::init_root(&layout, &mut good, (Ino(12), Ino(2)), INFO, 1);
    root.insert(
        1,
        DxEntry {
            hash: 100,
            block: 2,
        },
    );
    root.insert(
        2,
        DxEntry {
            hash: 200,
            block: 3,
        },
    );
    for (at, byte, text) in [
        (28, 9, "hash_version"),
        (29, 4, "info_length"),
        (30, 2, "indirect_levels"),
        (31, 1, "unused_flags"),
    ] {
        let mut block = good.clone();
        block[at] = byte;
        assert!(
            root_info(&geo, &block)
                .unwrap_err()
                .to_string()
                .contains(text)
        );
    }
    for (at, byte, text) in [
        (32, 3, "limit"),
        (34, 0, "count"),
        (34, 200, "count"),
        (40, 255, "out of order"),
    ] {
        let mut block = good.clone();
        block[at] = byte;
        let error = DxNode::parse_root(&layout, none, &block).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    assert!(DxNode::parse_node(&layout, none, &good).is_err());
}

proptest! {
    #[test]
    fn any_bytes_parse_or_fail(mut block in proptest::collection::vec(any::<u8>(), 1024), count in 0u16..130, probe: u32, has_tail: bool) {
        let layout = layout(1024, has_tail);
        for start in [ROOT_ENTRIES_AT, NODE_ENTRIES_AT] {
            put32(&mut block, 0, 0);
            put16(&mut block, 4, 1024);
            let limit = limit_for(&layout, start);
            put16(&mut block, start, limit);
            put16(&mut block, start + 2, count);
            let parse = |seed| {
                if start == ROOT_ENTRIES_AT {
                    DxNode::parse_root(&layout, seed, &block)
                } else {
                    DxNode::parse_node(&layout, seed, &block)
                }
            };
            if has_tail {
                parse(ChecksumSeed::new(3)).ok();
            }
            if let Ok(node) = parse(ChecksumSeed::NONE) {
                node.child_for(probe);
                prop_assert_eq!(node.children().count(), usize::from(count));
            }
        }
        root_dots(&layout, &block).ok();
    }
}

/// Linux and e2fsck give such nodes different limits.
#[test]
fn nodes_of_names_with_hashes_have_one_of_two_limits() {
    for has_tail in [false, true] {
        let plain = layout(1024, has_tail);
        let hashed = DirLayout {
            has_hashes: true,
            ..plain
        };
        let seed = ChecksumSeed::default();
        let made = |layout: &DirLayout| {
            let mut block = vec![0; 1024];
            DxNodeMut::init_node(layout, &mut block, 5).seal(seed);
            block
        };
        let (linux, e2fsck) = (made(&hashed), made(&plain));
        let limit = |layout: &DirLayout, block: &[u8]| {
            DxNode::parse_node(layout, seed, block).map(|node| node.capacity())
        };
        let most = limit(&plain, &e2fsck).unwrap();
        assert_eq!(limit(&hashed, &e2fsck), Ok(most));
        assert_eq!(limit(&hashed, &linux), Ok(most - 1));
        assert!(limit(&plain, &linux).is_err());
    }
}
