//! Layouts, byte for byte.

use steadfs_base::{BlockSize, DevBlock, Tid, Timestamp};

use super::{
    Checksum, CommitRecord, DescriptorBuilder, Format, build_commit, build_revoke, parse_revoke,
    parse_tags,
};

fn format(wide: bool, checksum: Checksum) -> Format {
    Format::new(BlockSize::new(1024).unwrap(), wide, checksum, [7; 16])
}

const ALL: [(bool, Checksum, usize, u32); 8] = [
    (false, Checksum::None, 8, 124),
    (true, Checksum::None, 12, 83),
    (false, Checksum::V1, 8, 124),
    (true, Checksum::V1, 12, 83),
    (false, Checksum::V2, 10, 99),
    (true, Checksum::V2, 14, 70),
    (false, Checksum::V3, 16, 62),
    (true, Checksum::V3, 16, 62),
];

#[test]
fn tags_have_the_sizes_the_kernel_gives_them() {
    for (wide, checksum, len, per_block) in ALL {
        let format = format(wide, checksum);
        assert_eq!(format.tag_len(), len);
        assert_eq!(format.tags_per_descriptor(), per_block);
    }
}

#[test]
fn descriptors_come_back_as_they_were_built() {
    for (wide, checksum, _, per_block) in ALL {
        let format = format(wide, checksum);
        for count in [1, 2, per_block - 1, per_block] {
            let mut block = vec![0; 1024];
            let mut builder = DescriptorBuilder::new(&format, Tid(5), &mut block);
            let high = if wide { 1 << 40 } else { 0 };
            for n in 0..count {
                builder.push(DevBlock(high + u64::from(n)), n % 3 == 0, 0x1234_5678 + n);
            }
            builder.finish();
            assert!(format.is_sealed(&block));
            let tags = parse_tags(&format, &block);
            assert_eq!(tags.len(), count as usize);
            for (n, tag) in tags.iter().enumerate() {
                assert_eq!(tag.block, DevBlock(high + n as u64));
                assert_eq!(tag.escaped, n % 3 == 0);
                assert!(tag.sum.matches(0x1234_5678 + n as u32));
                let sealed = format.sealed();
                assert_eq!(tag.sum.matches(0x1234_5679 + n as u32), !sealed);
            }
            block[1000] ^= 1;
            assert_eq!(format.is_sealed(&block), !format.sealed());
        }
    }
}

#[test]
fn a_narrow_descriptor_is_these_bytes() {
    let format = format(false, Checksum::None);
    let mut block = vec![0; 1024];
    let mut builder = DescriptorBuilder::new(&format, Tid(0x0102_0304), &mut block);
    builder.push(DevBlock(0x11), true, 0);
    builder.push(DevBlock(0x22), false, 0);
    builder.finish();
    let mut expected = vec![0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 1, 1, 2, 3, 4];
    expected.extend([0, 0, 0, 0x11, 0, 0, 0, 1]);
    expected.extend([7; 16]);
    expected.extend([0, 0, 0, 0x22, 0, 0, 0, 2 | 8]);
    assert_eq!(block[..expected.len()], expected);
    assert!(block[expected.len()..].iter().all(|&b| b == 0));
}

#[test]
fn revoke_blocks_come_back_and_lying_ones_are_refused() {
    for (wide, checksum, ..) in ALL {
        let format = format(wide, checksum);
        let count = u64::from(format.revokes_per_block());
        let revoked: Vec<_> = (0..count).map(|n| DevBlock(n + 9)).collect();
        let mut block = vec![0; 1024];
        build_revoke(&format, Tid(1), &revoked, &mut block);
        assert!(format.is_sealed(&block));
        assert_eq!(parse_revoke(&format, &block), Some(revoked));
        for lie in [0, 15, 1025, u32::MAX] {
            block[12..16].copy_from_slice(&lie.to_be_bytes());
            assert_eq!(parse_revoke(&format, &block), None);
        }
    }
}

#[test]
fn commit_records_prove_what_they_can() {
    let time = Timestamp { secs: 3, nanos: 4 };
    for (wide, checksum, ..) in ALL {
        let format = format(wide, checksum);
        let mut block = vec![0; 1024];
        build_commit(&format, Tid(9), time, 77, &mut block);
        let record = CommitRecord::parse(&format, &block, 77);
        assert!(record.valid);
        assert_eq!(record.time, 3_000_000_004);
        let other_sum = CommitRecord::parse(&format, &block, 78).valid;
        assert_eq!(other_sum, checksum != Checksum::V1);
        // Torn behind the record: as good as whole.
        block[512..].fill(0xEE);
        assert!(CommitRecord::parse(&format, &block, 77).valid);
        block[50] ^= 1;
        assert_eq!(
            CommitRecord::parse(&format, &block, 77).valid,
            !format.sealed()
        );
    }
}
