use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn layout(block_size: usize, has_tail: bool) -> DirLayout {
    DirLayout {
        block_size,
        has_tail,
        has_file_type: true,
        inodes_count: 1000,
        has_hashes: false,
    }
}

fn new(ino: u32, name: &[u8]) -> NewEntry<'_> {
    NewEntry {
        ino: Ino(ino),
        kind: FileKind::Regular,
        name,
        hash: None,
    }
}

fn names(layout: &DirLayout, block: &[u8]) -> Vec<(u32, Vec<u8>)> {
    entries(layout, block)
        .map(Result::unwrap)
        .filter_map(|e| Some((e.ino?.0, e.name.to_vec())))
        .collect()
}

#[test]
fn lengths_up_to_64_kib() {
    let big = layout(65536, false);
    assert_eq!(big.encode_rec_len(65536), 0xFFFF);
    assert_eq!(big.decode_rec_len(0xFFFF), 65536);
    assert_eq!(big.decode_rec_len(0), 65536);
    assert_eq!(big.decode_rec_len(big.encode_rec_len(65532)), 65532);
    let small = layout(4096, false);
    assert_eq!(small.decode_rec_len(0), 0);
    for layout in [big, small, layout(1024, true), layout(65536, true)] {
        let mut block = vec![7; layout.block_size];
        init_empty(&layout, &mut block);
        assert!(is_empty(&layout, &block).unwrap());
        assert_eq!(insert(&layout, &mut block, &new(5, b"x")), Ok(Some(0)));
        assert!(!is_empty(&layout, &block).unwrap());
        init_first(&layout, &mut block, Ino(11), Ino(2));
        assert!(is_empty(&layout, &block).unwrap());
        assert_eq!(
            names(&layout, &block),
            [(11, b".".to_vec()), (2, b"..".to_vec())]
        );
    }
}

#[test]
fn checksums_need_their_tail() {
    let layout = layout(1024, true);
    let seed = ChecksumSeed::new(77);
    let mut block = vec![0; 1024];
    init_first(&layout, &mut block, Ino(11), Ino(2));
    seal(&layout, seed, &mut block);
    verify(&layout, seed, &block).unwrap();
    assert!(verify(&layout, ChecksumSeed::new(78), &block).is_err());
    insert(&layout, &mut block, &new(5, b"x")).unwrap();
    assert!(verify(&layout, seed, &block).is_err());
    seal(&layout, seed, &mut block);
    verify(&layout, seed, &block).unwrap();
    block[1024 - 5] = 0;
    assert!(
        verify(&layout, seed, &block)
            .unwrap_err()
            .to_string()
            .contains("tail")
    );
}

#[test]
fn no_file_type_no_type() {
    let layout = DirLayout {
        has_file_type: false,
        ..layout(1024, false)
    };
    let mut block = vec![0; 1024];
    init_first(&layout, &mut block, Ino(11), Ino(2));
    assert_eq!(find(&layout, &block, b"..").unwrap().unwrap().kind(), None);
    assert_eq!(block[7], 0);
}

#[test]
fn damage_is_found() {
    let layout = layout(1024, true);
    let mut good = vec![0; 1024];
    init_first(&layout, &mut good, Ino(11), Ino(2));
    let edits: &[(usize, u16)] = &[
        (4, 0),     // no length
        (4, 10),    // not a multiple of 4
        (4, 8),     // too short for the name
        (16, 1004), // into the tail
        (6, 0),     // no name
        (0, 10000), // no such inode
        (4, 1008),  // leaves 4 bytes, no entry fits
    ];
    for &(at, value) in edits {
        let mut block = good.clone();
        put16(&mut block, at, value);
        if (at, value) == (6, 0) {
            block[7] = 2;
        }
        let found = entries(&layout, &block).any(|e| e.is_err());
        assert_eq!(
            found,
            (at, value) != (4, 996) || cfg!(any()),
            "{at} {value}"
        );
    }
    let mut block = good.clone();
    put16(&mut block, 16, 1000 - 4 - 4);
    assert!(entries(&layout, &block).any(|e| e.is_err()));
    assert!(remove(&layout, &mut block, 4).is_err());
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u8>),
    Remove(usize),
    Retarget(usize, u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        proptest::collection::vec(1u8.., 1..60).prop_map(Op::Insert),
        proptest::collection::vec(1u8.., 200..=255).prop_map(Op::Insert),
        any::<usize>().prop_map(Op::Remove),
        (any::<usize>(), 1u32..1000).prop_map(|(at, ino)| Op::Retarget(at, ino)),
    ]
}

proptest! {
    #[test]
    fn behaves_as_a_map(ops in proptest::collection::vec(op(), 1..60), has_tail: bool) {
        let layout = layout(1024, has_tail);
        let seed = if has_tail { ChecksumSeed::new(1) } else { ChecksumSeed::NONE };
        let mut block = vec![0; 1024];
        init_empty(&layout, &mut block);
        let mut model: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for (i, op) in (1u32..).zip(ops) {
            match op {
                Op::Insert(name) => {
                    if model.contains_key(&name) {
                        continue;
                    }
                    let needed = entry_size(name.len());
                    let fits = entries(&layout, &block).any(|e| e.unwrap().spare(&layout) >= needed);
                    let placed = insert(&layout, &mut block, &new(i, &name)).unwrap();
                    prop_assert_eq!(placed.is_some(), fits);
                    if placed.is_some() {
                        model.insert(name, i);
                    }
                }
                Op::Remove(at) if !model.is_empty() => {
                    let name = model.keys().nth(at % model.len()).unwrap().clone();
                    let offset = find(&layout, &block, &name).unwrap().unwrap().offset;
                    remove(&layout, &mut block, offset).unwrap();
                    model.remove(&name);
                }
                Op::Retarget(at, ino) if !model.is_empty() => {
                    let name = model.keys().nth(at % model.len()).unwrap().clone();
                    let offset = find(&layout, &block, &name).unwrap().unwrap().offset;
                    set_target(&layout, &mut block, offset, Ino(ino), FileKind::Socket);
                    model.insert(name, ino);
                }
                Op::Remove(_) | Op::Retarget(..) => {}
            }
            seal(&layout, seed, &mut block);
            verify(&layout, seed, &block).unwrap();
            let found: BTreeMap<_, _> =
                names(&layout, &block).into_iter().map(|(ino, name)| (name, ino)).collect();
            prop_assert_eq!(&found, &model);
            let covered: usize = entries(&layout, &block).map(|e| e.unwrap().rec_len).sum();
            prop_assert_eq!(covered, layout.entries_end());
        }
        // Packed one after the other everything still fits, and nothing is lost.
        let mut packed = vec![0; 1024];
        let mut packer = Packer::new(&layout, &mut packed);
        for (name, ino) in &model {
            prop_assert!(packer.push(Ino(*ino), 1, name, None));
        }
        packer.finish();
        prop_assert_eq!(names(&layout, &packed).len(), model.len());
    }

    #[test]
    fn any_bytes_walk_or_fail(mut block in proptest::collection::vec(any::<u8>(), 1024), has_tail: bool, lens in proptest::collection::vec(0u16..64, 40)) {
        let layout = layout(1024, has_tail);
        prop_assert!(entries(&layout, &block).count() <= 128);
        // Plausible lengths reach more code.
        let mut at = 0;
        for len in lens {
            if at + 8 > 1024 { break; }
            put32(&mut block, at, u32::from(len) * 17);
            put16(&mut block, at + 4, len * 4);
            block[at + 6] = low8(u32::from(len));
            at += usize::from(len) * 4;
        }
        entries(&layout, &block).for_each(drop);
        find(&layout, &block, b"name").ok();
        insert(&layout, &mut block, &new(1, b"name")).ok();
    }
}

/// Entry headers near the limits of validity, followed by remains of names.
fn any_head() -> impl Strategy<Value = [u8; 40]> {
    let ino = prop_oneof![0..4_u32, 998..1003_u32, any::<u32>()];
    let rec_len = prop_oneof![0..44_u16, any::<u16>()];
    let name_len = prop_oneof![0..34_u8, any::<u8>()];
    let name = prop::array::uniform32(any::<u8>());
    (ino, rec_len, name_len, 0..3_u8, name).prop_map(|(ino, rec_len, name_len, kind, name)| {
        let mut head = [0; 40];
        head[..4].copy_from_slice(&ino.to_le_bytes());
        head[4..6].copy_from_slice(&rec_len.to_le_bytes());
        head[6..8].copy_from_slice(&[name_len, kind]);
        head[8..].copy_from_slice(&name);
        head
    })
}

proptest! {
    #[test]
    fn a_quick_look_sees_what_a_close_one_does(
        head in any_head(),
        has_file_type in any::<bool>(),
        block_size in prop::sample::select(vec![1024, 65536]),
    ) {
        let layout = DirLayout {
            has_file_type,
            ..layout(block_size, false)
        };
        let mut block = vec![0; 4];
        block.extend(head);
        let close = parse_checked(&layout, &block, 4, block.len());
        match parse_fast(&layout, &block, 4, block.len()) {
            Some(entry) => prop_assert_eq!(Ok(entry), close),
            None => prop_assert!(
                !has_file_type || close.is_err() || close.is_ok_and(|entry| entry.ino.is_none())
            ),
        }
    }
}

#[test]
fn names_are_told_apart_at_either_end() {
    let layout = layout(1024, true);
    let mut block = vec![0; 1024];
    init_empty(&layout, &mut block);
    let names: [&[u8]; 6] = [
        b"a",
        b"ab",
        b"file-0000001",
        b"file-0000002",
        b"Xile-0000001",
        b"ile-0000001",
    ];
    for (name, ino) in names.iter().zip(5..) {
        assert_eq!(locate(&layout, &block, name), Ok(None));
        insert(&layout, &mut block, &new(ino, name)).unwrap();
    }
    for (name, ino) in names.iter().zip(5..) {
        assert_eq!(
            locate(&layout, &block, name).unwrap().unwrap().ino,
            Ino(ino)
        );
        assert_eq!(
            find(&layout, &block, name).unwrap().unwrap().ino,
            Some(Ino(ino))
        );
    }
}

#[test]
fn a_name_that_is_not_there_is_not_there_whatever_its_length() {
    let layout = layout(1024, true);
    let mut block = vec![0; 1024];
    init_empty(&layout, &mut block);
    let name = |len: usize| (b'a'..=b'z').cycle().take(len).collect::<Vec<u8>>();
    let lens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 31, 32, 33, 100, 254, 255];
    for (len, ino) in lens.into_iter().zip(5..) {
        assert_eq!(locate(&layout, &block, &name(len)), Ok(None));
        insert(&layout, &mut block, &new(ino, &name(len))).unwrap();
        let found = locate(&layout, &block, &name(len)).unwrap().unwrap();
        assert_eq!(found.ino, Ino(ino));
        assert_eq!(locate(&layout, &block, &name(len)[1..]), Ok(None));
    }
}

#[test]
fn room_is_looked_for_first_where_the_last_entry_went() {
    let layout = layout(1024, true);
    let mut block = vec![0; 1024];
    init_empty(&layout, &mut block);
    let mut places = vec![];
    for (name, ino) in [b"file-1", b"file-2", b"file-3"].into_iter().zip(5..) {
        places.push(
            insert(&layout, &mut block, &new(ino, name))
                .unwrap()
                .unwrap(),
        );
    }
    remove(&layout, &mut block, places[1]).unwrap();
    let place = |name: &[u8], last: usize| match search(&layout, &block, name, last).unwrap() {
        Search::Room(room) => room.place(),
        other => panic!("{other:?}"),
    };
    assert_eq!(place(b"file-4", 0), places[1]);
    assert!(place(b"file-4", places[2]) > places[2]);
    // Where there is no room for it after the last, it goes elsewhere.
    assert_eq!(place(b"file-4", places[0]), places[1]);
    let long = [b'x'; 255];
    assert_eq!(place(&long, places[0]), place(b"file-4", places[2]));
}

proptest! {
    #[test]
    fn what_is_not_walked_is_told_as_a_walk_would(
        names in prop::collection::vec(prop::collection::vec(b'a'..=b'c', 1..9), 0..40),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        asked in prop::collection::vec(b'a'..=b'c', 1..9),
    ) {
        let layout = layout(1024, true);
        let mut block = vec![0; 1024];
        init_empty(&layout, &mut block);
        let mut last = 0;
        for (name, ino) in names.iter().zip(5..) {
            if let Search::Room(room) = search(&layout, &block, name, last).unwrap() {
                insert_at(&layout, &mut block, &room, &new(ino, name));
                last = room.place();
            }
        }
        for index in gone.iter().filter(|_| !names.is_empty()) {
            let name = &names[index.index(names.len())];
            if let Some(found) = locate(&layout, &block, name).unwrap() {
                remove_found(&layout, &mut block, &found);
            }
        }
        for name in names.iter().chain([&asked]) {
            let walked = find(&layout, &block, name).unwrap().map(|entry| entry.offset);
            let located = locate(&layout, &block, name).unwrap().map(|found| found.offset);
            prop_assert_eq!(located, walked);
            let is_found = matches!(search(&layout, &block, name, 0).unwrap(), Search::Found(_));
            prop_assert_eq!(is_found, walked.is_some());
        }
    }
}

/// Encrypted, case-insensitive directories.
#[test]
fn entries_end_with_the_hashes_of_their_names() {
    let layout = DirLayout {
        has_hashes: true,
        ..layout(1024, true)
    };
    let mut block = vec![0; 1024];
    init_first(&layout, &mut block, Ino(12), Ino(2));
    let hash = |n: u32| NameHash {
        major: n * 2,
        minor: !n,
    };
    let name = |n: u32| vec![b'a'; 16 + idx(n % 5)];
    let mut count = 0;
    loop {
        let (name, hash) = (name(count), Some(hash(count)));
        let entry = NewEntry {
            hash,
            ..new(count + 13, &name)
        };
        match insert(&layout, &mut block, &entry).unwrap() {
            Some(_) => count += 1,
            None => break,
        }
    }
    // Each fifth one needs 32 bytes, the others 36; 20 are those of `..`.
    assert_eq!(count, 27);
    let gone = entries(&layout, &block).nth(7).unwrap().unwrap().offset;
    remove(&layout, &mut block, gone).unwrap();
    let mut seen = 0;
    for entry in entries(&layout, &block).map(Result::unwrap).skip(2) {
        let n = entry.ino.unwrap().0 - 13;
        assert_eq!(
            (entry.stored_hash(&block), entry.name),
            (hash(n), &*name(n))
        );
        seen += 1;
    }
    assert_eq!(seen, 26);
    let mut packed = vec![0; 1024];
    let mut packer = Packer::new(&layout, &mut packed);
    for entry in entries(&layout, &block).map(Result::unwrap).skip(2) {
        let hash = Some(entry.stored_hash(&block));
        assert!(packer.push(entry.ino.unwrap(), entry.file_type, entry.name, hash));
    }
    packer.finish();
    let hashes = |block: &[u8], skip| -> Vec<NameHash> {
        let all = entries(&layout, block).map(Result::unwrap).skip(skip);
        all.map(|entry| entry.stored_hash(block)).collect()
    };
    assert_eq!(hashes(&packed, 0), hashes(&block, 2));
    // Without room for its hash.
    let offset = entries(&layout, &block).nth(2).unwrap().unwrap().offset;
    let short = layout.encode_rec_len(entry_size(name(0).len()));
    put16(&mut block, offset + 4, short);
    assert!(entries(&layout, &block).nth(2).unwrap().is_err());
    let without = DirLayout {
        has_hashes: false,
        ..layout
    };
    assert!(entries(&without, &block).nth(2).unwrap().is_ok());
}
