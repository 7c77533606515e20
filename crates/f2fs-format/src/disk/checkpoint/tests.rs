//! Against images of f2fs-tools.

use super::super::summary::{CompactSummaries, SummaryBlock};
use super::super::{Nid, nat, sit};
use super::*;
use crate::test_support::{ALL_FEATURES, Image, LOAD_FEATURES};

#[test]
fn packs_of_mkfs_round_trip() {
    for (options, mib) in [
        (&["-O", ALL_FEATURES][..], 64),
        (&["-i"], 256),
        (&["-s", "4"], 1000),
        // Large enough that the SIT bitmap needs payload blocks.
        (&[], 6 << 20),
    ] {
        let image = Image::make(options, mib);
        // Only metadata is read; the rest of the sparse image is not.
        let bytes = if mib > 2000 {
            use std::io::Read;
            let mut bytes = vec![0; 64 << 20];
            std::fs::File::open(image.path())
                .unwrap()
                .read_exact(&mut bytes)
                .unwrap();
            bytes
        } else {
            std::fs::read(image.path()).unwrap()
        };
        let superblock = super::super::Superblock::parse(&bytes[1024..4096]).unwrap();
        let layout = superblock.layout();
        assert_eq!(layout.cp_payload > 0, mib > 2000);
        let start = idx(layout.pack_start(0).0) * BLOCK_SIZE;
        let first = &bytes[start..start + (1 + idx(layout.cp_payload)) * BLOCK_SIZE];
        let mut checkpoint = Checkpoint::parse(layout, first).unwrap();
        let sum = checkpoint.checksum;
        assert!(checkpoint.encode(layout).unwrap() == first, "{options:?}");
        assert_eq!(checkpoint.checksum, sum);
        assert_eq!(
            checkpoint.flags.contains(CpFlags::LARGE_NAT_BITMAP),
            options.contains(&"-i")
        );
        let last = start + idx(checkpoint.pack_blocks - 1) * BLOCK_SIZE;
        let head = verify_block(&bytes[last..last + BLOCK_SIZE]).unwrap();
        assert_eq!(head.version, checkpoint.version);
    }
}

#[test]
fn nat_bits_name_used_blocks() {
    let image = Image::make(&[], 64);
    let opened = image.open();
    let layout = opened.layout();
    assert!(opened.checkpoint.flags.contains(CpFlags::NAT_BITS));
    let at = NatBits::address(layout, opened.pack, opened.checkpoint.pack_blocks).unwrap();
    let blocks = opened.blocks(at, layout.nat_bits_blocks());
    let bits = NatBits::parse(layout, &opened.checkpoint, blocks).unwrap();
    assert!(!bits.is_empty(0) && bits.is_empty(1) && !bits.is_full(0));
    assert_eq!(bits.encode(layout, &opened.checkpoint), blocks);
    let mut other = opened.checkpoint.clone();
    other.version += 1;
    assert_eq!(NatBits::parse(layout, &other, blocks), None);
}

#[test]
fn tables_and_summaries_agree() {
    let image = Image::make(&["-O", LOAD_FEATURES], 256);
    image.load(std::path::Path::new("src"), &[]);
    let opened = image.open();
    let layout = opened.layout();
    let cp = &opened.checkpoint;
    // Valid blocks according to the SIT.
    let mut valid = 0;
    let mut nodes = 0;
    for segment in (0..layout.main_segments).map(SegNo) {
        let (block, slot) = layout.sit_slot(segment);
        let block = opened.blocks(layout.sit_block(block, cp.sit_second(block)), 1);
        let entry = sit::get(block, slot, segment).unwrap();
        let mut copy = block.to_vec();
        sit::put(&mut copy, slot, &entry);
        assert!(copy == block, "{segment}");
        valid += u64::from(entry.valid);
        if entry.kind.is_node() {
            nodes += u32::from(entry.valid);
        }
    }
    assert_eq!(opened.nids().len(), idx(cp.valid_nodes));
    if !cp.flags.contains(CpFlags::COMPACT_SUMMARIES) {
        // sload.f2fs keeps its counts in the SIT when it writes normal summaries.
        assert_eq!((valid, nodes), (cp.valid_blocks, cp.valid_nodes));
    }
    for nid in opened.nids() {
        let entry = opened.nat(nid);
        let (segment, offset) = layout.segment_of(entry.addr).unwrap();
        if LogType::ALL
            .iter()
            .any(|log| cp.log(*log).segment == segment)
        {
            continue;
        }
        let summary = SummaryBlock::parse(opened.blocks(layout.summary_block(segment), 1)).unwrap();
        assert_eq!(summary.entries[idx(offset)].nid, nid);
    }
    let (block, slot) = layout.nat_slot(Nid::ROOT);
    let mut copy = opened
        .blocks(layout.nat_block(block, cp.nat_second(block)), 1)
        .to_vec();
    let before = copy.clone();
    let entry = nat::get(&copy, slot);
    nat::put(&mut copy, slot, entry);
    assert!(copy == before);
}

#[test]
fn summaries_in_the_pack() {
    let image = Image::make(&[], 64);
    let fresh = image.open();
    assert!(fresh.checkpoint.flags.contains(CpFlags::COMPACT_SUMMARIES));
    let packed =
        CompactSummaries::parse(fresh.summaries(), fresh.checkpoint.compacted_counts()).unwrap();
    assert_eq!(packed.encode(), fresh.summaries()[..packed.encode().len()]);
    let at = fresh.checkpoint.summary_in_pack(LogType::HotNode).unwrap();
    let block = fresh.blocks(fresh.layout().pack_start(fresh.pack).plus(at), 1);
    let nodes = SummaryBlock::parse(block).unwrap();
    assert_eq!(nodes.entries[0].nid, Nid::ROOT);
    assert_eq!(nodes.encode(), block);
}

#[test]
fn corruption_is_refused() {
    let image = Image::make(&["-i"], 64);
    let opened = image.open();
    let layout = opened.layout();
    let good = opened.blocks(layout.pack_start(opened.pack), 1).to_vec();
    for bit in (0..BLOCK_SIZE * 8).step_by(97) {
        let mut block = good.clone();
        block[bit / 8] ^= 1 << (bit % 8);
        assert!(Checkpoint::parse(layout, &block).is_err(), "bit {bit}");
    }
    // With a correct checksum: never a panic.
    for at in 0..BITMAPS_AT {
        for value in [0, 1, 0xFF] {
            let mut block = good.clone();
            block[at] = value;
            let sum = compute(&block, BITMAPS_AT);
            put32(&mut block, BITMAPS_AT, sum);
            if let Ok(cp) = Checkpoint::parse(layout, &block) {
                cp.orphan_blocks(layout);
                for log in LogType::ALL {
                    cp.summary_in_pack(log);
                }
            }
        }
    }
}
