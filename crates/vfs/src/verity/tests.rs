use super::*;

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Parameters of a file, and its digest as `fsverity digest` (1.5) computes it.
type Case = (u8, u8, &'static [u8], usize, &'static str);

const CASES: &[Case] = &[
    (
        1,
        12,
        &[],
        0,
        "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95",
    ),
    (
        1,
        12,
        &[],
        1,
        "b803429503d95915829b29fdbc8bbad142f3abfd11b1cadf5526582e685c0551",
    ),
    (
        1,
        12,
        &[],
        4096,
        "2b41866549a2f4f4a80ebbb30aa8d8436ce675229143bf493d8dc6fce99081a0",
    ),
    (
        1,
        12,
        &[],
        4097,
        "2492558cab5973a8b471d3a517cf3fc8ae04bffa6083e7d443e7839b65d94651",
    ),
    (
        1,
        12,
        &[],
        524_288,
        "6feaceaea1f345a5da49693b409602e6b1878a9484241670db45aef27aaec575",
    ),
    (
        1,
        12,
        &[1, 2, 3, 4],
        524_289,
        "a4291e8a01a9ae682ede22c3006388a3a5048ee294649496fdc3ca07c8f9a42d",
    ),
    (
        1,
        10,
        &[0xff; 32],
        3_000_000,
        "31a693ceb9ebc3ca4cde0e4fecb6ee36d35edd478482ebc9333ae5a9827359bf",
    ),
    (
        2,
        12,
        &[],
        700_000,
        "50833684bcc1f219056db676eec43f692f6334e8b843aef4a9f442161d19492530c3c3706451273b12cb1be67f1c70ffe1f37503f25432f16522ba3ace08345c",
    ),
    (
        2,
        10,
        &[0xaa; 9],
        50_000,
        "b20015a4df0397a014c0022c2de1c632b128fa0c50ba89044815d818de0cfcf1908e12e1e08a1336a653f65e414c99222cf53cbd63f4236c1765e56681bb4641",
    ),
];

/// A descriptor with its root hash, and the tree, made from the leaves up.
fn seal(case: &Case, data: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let &(algorithm, log_block, salt, size, _) = case;
    let block = 1 << log_block;
    let mut salted = Hasher::of(algorithm).unwrap();
    if !salt.is_empty() {
        salted.update(salt);
        salted.update_zeros(salted.input_size() - salt.len());
    }
    let hash = |bytes: &[u8]| {
        let mut hasher = salted.clone();
        hasher.update(bytes);
        hasher.update_zeros(block - bytes.len());
        hasher.finish()
    };
    let mut hashes: Vec<Vec<u8>> = data.chunks(block).map(hash).collect();
    let mut tree = Vec::new();
    while hashes.len() > 1 {
        let mut level = hashes.concat();
        level.resize(level.len().next_multiple_of(block), 0);
        hashes = level.chunks(block).map(hash).collect();
        tree = [level, tree].concat();
    }
    let mut descriptor = vec![0; DESCRIPTOR_SIZE];
    descriptor[..4].copy_from_slice(&[1, algorithm, log_block, salt.len() as u8]);
    descriptor[at::DATA_SIZE].copy_from_slice(&(size as u64).to_le_bytes());
    if let Some(root) = hashes.first() {
        descriptor[at::ROOT..at::ROOT + root.len()].copy_from_slice(root);
    }
    descriptor[at::SALT..at::SALT + salt.len()].copy_from_slice(salt);
    (descriptor, tree)
}

/// Two kinds of pieces, borders within blocks.
fn pieces(data: &[u8]) -> ReadData {
    let mut out = ReadData::new();
    for piece in data.chunks(1500) {
        match piece.iter().all(|&byte| byte == 0) {
            true => out.push_zeros(piece.len()),
            false => out.push(Arc::new(piece.to_vec()), 0..piece.len()),
        }
    }
    out
}

fn check(verity: &Verity, data: &[u8], tree: &[u8], range: Range<u64>) -> Result<()> {
    let whole = verity.whole_blocks(range);
    let part = &data[whole.start as usize..whole.end as usize];
    verity.check(whole.start, &pieces(part), |bytes| {
        Ok(tree[bytes.start as usize..bytes.end as usize].to_vec())
    })
}

#[test]
fn digests_and_trees_are_those_of_fsverity() {
    for case in CASES {
        let data = content(case.3);
        let (descriptor, tree) = seal(case, &data);
        let size = data.len() as u64;
        let verity = Verity::parse(&descriptor, size).unwrap();
        let shown: String = verity
            .digest()
            .bytes
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(
            (shown.as_str(), verity.digest().algorithm),
            (case.4, case.0.into())
        );
        for range in [
            0..size,
            size / 2..size / 2 + 1,
            size.saturating_sub(1)..size,
        ] {
            check(&verity, &data, &tree, range.clone()).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        }
    }
}

#[test]
fn a_changed_bit_is_found_wherever_it_is() {
    for case in &CASES[1..] {
        let data = content(case.3);
        let (descriptor, tree) = seal(case, &data);
        let size = data.len() as u64;
        let fresh = |descriptor: &[u8]| Verity::parse(descriptor, size).unwrap();
        let refused =
            |result: Result<()>| assert!(matches!(result, Err(FsError::Io(_))), "{case:?}");
        for at in [0, data.len() / 2, data.len() - 1] {
            let mut wrong = data.clone();
            wrong[at] ^= 1;
            refused(check(
                &fresh(&descriptor),
                &wrong,
                &tree,
                at as u64..at as u64 + 1,
            ));
            // The other blocks are what they were.
            let block = 1 << case.1;
            if size > 2 * block {
                let other = (at as u64 + size / 3) % size / block * block;
                check(&fresh(&descriptor), &wrong, &tree, other..other + 1).unwrap();
            }
        }
        let step = (tree.len() / 9).max(1);
        for at in (0..tree.len()).step_by(step) {
            let mut wrong = tree.clone();
            wrong[at] ^= 0x80;
            refused(check(&fresh(&descriptor), &data, &wrong, 0..size));
        }
        let mut wrong = descriptor.clone();
        wrong[at::ROOT] ^= 1;
        refused(check(&fresh(&wrong), &data, &tree, 0..1));
    }
}

#[test]
fn zeros_count_as_the_bytes_that_they_are() {
    let case = (1, 12, &[][..], 20_000, "");
    let data = vec![0; 20_000];
    let (descriptor, tree) = seal(&case, &data);
    let verity = Verity::parse(&descriptor, 20_000).unwrap();
    check(&verity, &data, &tree, 3000..9000).unwrap();
    assert!(check(&verity, &content(20_000), &tree, 3000..9000).is_err());
}

#[test]
fn impossible_descriptors_are_refused() {
    let case = &CASES[5];
    let (good, _) = seal(case, &content(case.3));
    let size = case.3 as u64;
    let refused = |descriptor: &[u8]| {
        let error = Verity::parse(descriptor, size).err();
        assert!(matches!(error, Some(FsError::Invalid(_))), "{error:?}");
    };
    refused(&good[..DESCRIPTOR_SIZE - 1]);
    for (at, value) in [
        (at::VERSION, 2),
        (at::ALGORITHM, 0),
        (at::ALGORITHM, 3),
        (at::LOG_BLOCK, 9),
        (at::LOG_BLOCK, 17),
        (at::LOG_BLOCK, 255),
        (at::SALT_SIZE, 33),
        (at::SIGNATURE_SIZE.start, 1),
        (at::DATA_SIZE.start, 7),
        (at::DATA_SIZE.end - 1, 0x80),
        (at::RESERVED.start, 1),
        (at::RESERVED.end - 1, 1),
    ] {
        let mut wrong = good.clone();
        wrong[at] = value;
        refused(&wrong);
    }
    // A signature is no part of the digest.
    let mut signed = good.clone();
    signed[at::SIGNATURE_SIZE.start] = 5;
    signed.extend_from_slice(b"12345");
    let digest = |descriptor: &[u8]| Verity::parse(descriptor, size).unwrap().digest().clone();
    assert_eq!(digest(&signed), digest(&good));
}

#[test]
fn the_largest_file_has_a_tree_of_bounded_height() {
    let starts = levels(u64::MAX, 10, 64);
    assert!(starts.len() <= 14, "{}", starts.len());
    assert_eq!(starts.last(), Some(&0));
}

#[test]
fn files_read_last_are_kept_and_told_apart() {
    let case = &CASES[3];
    let (descriptor, _) = seal(case, &content(case.3));
    let files = VerityFiles::default();
    let load = || Verity::parse(&descriptor, case.3 as u64);
    let never = || -> Result<Verity> { panic!("it was kept") };
    let ino = steadfs_base::InodeNo;
    files.get(ino(1), 7, load).unwrap();
    files.get(ino(1), 7, never).unwrap();
    // The number's next life.
    let failed = files.get(ino(1), 8, || Err(FsError::NotFound));
    assert_eq!(failed.err(), Some(FsError::NotFound));
    for n in 2..40 {
        files.get(ino(n), 7, load).unwrap();
    }
    files.get(ino(39), 7, never).unwrap();
    assert!(files.get(ino(1), 7, || Err(FsError::NotFound)).is_err());
}

/// Tree and descriptor of a builder whose volume has blocks of this size, and the blocks that it passed on.
fn build(case: &Case, data: &[u8], volume_block: usize) -> (Vec<u8>, Vec<u8>, usize) {
    let &(algorithm, log_block, salt, size, _) = case;
    let options = VerityOptions {
        algorithm: algorithm.into(),
        block_size: 1 << log_block,
        salt: salt.to_vec(),
    };
    let mut builder = TreeBuilder::new(&options, size as u64, volume_block).unwrap();
    let (mut tree, mut writes) = (Vec::new(), 0);
    let mut write = |at: u64, bytes: &[u8]| {
        assert!((at as usize).is_multiple_of(volume_block) && bytes.len() == volume_block);
        let end = at as usize + bytes.len();
        tree.resize(end.max(tree.len()), 0);
        tree[at as usize..end].copy_from_slice(bytes);
        writes += 1;
        Ok(())
    };
    let read = |range: Range<u64>| Ok(pieces(&data[range.start as usize..range.end as usize]));
    let descriptor = builder.build(read, &mut write).unwrap();
    builder.finish(&mut write).unwrap();
    let len = builder.tree_len() as usize;
    assert!(tree[len..].iter().all(|&byte| byte == 0));
    tree.truncate(len);
    (descriptor, tree, writes)
}

#[test]
fn a_builder_makes_the_tree_and_passes_each_block_on_once() {
    for case in CASES {
        for zeros in [false, true] {
            let mut data = content(case.3);
            if zeros {
                data[case.3 / 3..].fill(0);
            }
            let (descriptor, tree) = seal(case, &data);
            for volume_block in [4096, 65_536] {
                let built = build(case, &data, volume_block);
                assert!(built.0 == descriptor && built.1 == tree, "{case:?}");
                assert_eq!(built.2, tree.len().div_ceil(volume_block));
            }
        }
    }
}

#[test]
fn a_tree_that_no_kernel_could_verify_is_not_built() {
    let plain = VerityOptions::default();
    let refused = |options: VerityOptions| {
        let built = TreeBuilder::new(&options, 10_000, 4096);
        assert_eq!(built.err().map(|error| error.errno()), Some(22));
    };
    for algorithm in [0, 3, 257] {
        refused(VerityOptions {
            algorithm,
            ..plain.clone()
        });
    }
    for block_size in [0, 512, 3000, 8192, 1 << 17] {
        refused(VerityOptions {
            block_size,
            ..plain.clone()
        });
    }
    refused(VerityOptions {
        salt: vec![0; SALT_MAX + 1],
        ..plain
    });
}

#[test]
fn content_that_becomes_shorter_is_an_error() {
    let mut builder = TreeBuilder::new(&VerityOptions::default(), 10_000, 4096).unwrap();
    let built = builder.build(|_| Ok(pieces(&[1; 9999])), &mut |_, _| Ok(()));
    assert!(matches!(built, Err(FsError::Io(_))));
}

#[test]
fn options_are_a_line_of_text() {
    let all = VerityOptions {
        algorithm: 2,
        block_size: 1024,
        salt: vec![0xab, 1],
    };
    assert_eq!(all.to_line(), "2 1024 ab01");
    for options in [all, VerityOptions::default()] {
        assert_eq!(VerityOptions::parse(&options.to_line()), Ok(options));
    }
    for line in ["", "1", "1 x", "1 4096 abc", "1 4096 xy"] {
        assert!(VerityOptions::parse(line).is_err(), "{line}");
    }
    assert!(VerityOptions::parse_salt(&"00".repeat(33)).is_none());
}
