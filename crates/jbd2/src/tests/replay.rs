//! Replay of logs in which one thing is wrong or at its limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::endian::Be32;
use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_block::{Buf, FaultDevice, MemDevice, Op};
use steadfs_jbd2_format::{Header, RawSuperblock, block_type, build_commit};
use steadfs_rt::wall_clock;
use zerocopy::{FromBytes, IntoBytes};

use super::support::{Layout, set};
use crate::io::{max_run, read_log, submit_writes};
use crate::log_writer::encoded_len;
use crate::{
    Checksum, Journal, JournalConfig, JournalError, Recover, Recovered, log_fast_commits, recover,
};

const TAG: IoTag = IoTag::background();
const SIZE: usize = 1024;
/// `h_commit_sec` in a commit record, and the end of its nanoseconds.
const TIME: std::ops::Range<usize> = 48..60;

/// A log of three transactions: blocks 300 and 301 are changed, then freed, then 300 is changed again and 302 added.
fn log(checksum: Checksum) -> (Layout, Arc<Journal>, Vec<u8>) {
    let layout = Layout::new(SIZE as u32, 400, 100);
    let device = layout.device();
    let config = JournalConfig {
        checksum: Some(checksum),
        ..JournalConfig::default()
    };
    let journal = layout.open(Arc::clone(&device) as _, config);
    set(&journal, 300, 1);
    let tid = set(&journal, 301, 1);
    journal.commit(tid, TAG).unwrap();
    let mut handle = journal.begin(2).unwrap();
    handle.forget(DevBlock(300)).unwrap();
    handle.forget(DevBlock(301)).unwrap();
    drop(handle);
    let tid = set(&journal, 310, 2);
    journal.commit(tid, TAG).unwrap();
    set(&journal, 300, 3);
    let tid = set(&journal, 302, 3);
    journal.commit(tid, TAG).unwrap();
    (layout, journal, device.to_bytes())
}

fn recovered(layout: &Layout, image: &[u8]) -> Result<(Recovered, Vec<u8>), JournalError> {
    let device = Arc::new(MemDevice::from_bytes(image));
    let queue = layout.queue(Arc::clone(&device) as _);
    let how = Recover::ToDevice;
    let found = recover(&queue, layout.block_size, &layout.map(), how, TAG)?;
    Ok((found, device.to_bytes()))
}

/// Number of committed transactions, or the message.
fn outcome(layout: &Layout, image: &[u8]) -> Result<u32, String> {
    let found = recovered(layout, image).map_err(|error| error.to_string())?;
    Ok(found.0.summary.transactions)
}

/// Byte of the block of this type in transaction `tid`.
fn at(image: &[u8], tid: u32, kind: u32) -> usize {
    let mut blocks = (10..110).map(|block| block * SIZE);
    let found = blocks.find(|&at| {
        let header = Header::of(&image[at..at + SIZE]);
        header.is_some_and(|h| (h.sequence.get(), h.block_type.get()) == (tid, kind))
    });
    found.expect("the transaction has such a block")
}

fn change_superblock(image: &mut [u8], change: impl FnOnce(&mut RawSuperblock)) {
    let bytes = &mut image[10 * SIZE..][..1024];
    let mut raw = RawSuperblock::read_from_bytes(bytes).unwrap();
    change(&mut raw);
    raw.seal();
    bytes.copy_from_slice(raw.as_bytes());
}

#[test]
fn a_revoke_counts_for_older_copies_only() {
    for checksum in [Checksum::None, Checksum::V1, Checksum::V2, Checksum::V3] {
        let (layout, _, image) = log(checksum);
        let (found, after) = recovered(&layout, &image).unwrap();
        let summary = found.summary;
        assert_eq!((summary.transactions, summary.revoked), (3, 2));
        assert_eq!((summary.blocks, summary.range), (3, Some((Tid(1), Tid(3)))));
        let values = [300, 301, 302, 310].map(|block| layout.block(&after, block)[9]);
        assert_eq!(values, [3, 0, 3, 2], "{checksum:?}");
    }
    // A log whose first transaction has no commit record.
    let (layout, _, mut image) = log(Checksum::None);
    let record = at(&image, 1, block_type::COMMIT);
    image[record..record + SIZE].fill(0);
    let summary = recovered(&layout, &image).unwrap().0.summary;
    assert_eq!((summary.transactions, summary.range), (0, None));
}

#[test]
fn corruption_of_a_committed_transaction_is_reported_with_its_place() {
    let wrong = |what: &str| Err(format!("transaction {what} is wrong"));
    let in_descriptor = wrong("2: checksum of a descriptor or revoke block");
    for checksum in [Checksum::V2, Checksum::V3] {
        let (layout, _, image) = log(checksum);
        let with_flip = |at: usize| {
            let mut image = image.clone();
            image[at] ^= 1;
            outcome(&layout, &image).map_err(|message| {
                let start = message.find("transaction").unwrap_or(0);
                message[start..].to_owned()
            })
        };
        let descriptor = at(&image, 2, block_type::DESCRIPTOR);
        assert_eq!(with_flip(descriptor + 500), in_descriptor);
        // Any byte of the first tag: its block's checksum is not what is reported.
        for byte in 12..16 {
            assert_eq!(with_flip(descriptor + byte), in_descriptor, "{byte}");
        }
        let sum = if checksum == Checksum::V3 { 24 } else { 16 };
        assert_eq!(with_flip(descriptor + sum), in_descriptor);
        assert_eq!(
            with_flip(at(&image, 2, block_type::REVOKE) + 500),
            in_descriptor
        );
        let copy = wrong("2: checksum of the copy of block 310");
        assert_eq!(with_flip(descriptor + SIZE + 9), copy);
        let record = wrong("3: checksum of the commit record");
        assert_eq!(with_flip(at(&image, 3, block_type::COMMIT) + 16), record);
    }
    let (layout, _, mut image) = log(Checksum::V1);
    let descriptor = at(&image, 2, block_type::DESCRIPTOR);
    image[descriptor + SIZE + 9] ^= 1;
    let message = outcome(&layout, &image).unwrap_err();
    assert!(
        message.contains("transaction 2: checksum of the commit record"),
        "{message}"
    );
}

/// A transaction that fails its checksums is left from an older journal if its commit time is older than that of the
/// transaction before it.
#[test]
fn an_invalid_transaction_ends_the_log_if_it_is_older_than_the_one_before() {
    let (layout, journal, image) = log(Checksum::V3);
    let record = at(&image, 3, block_type::COMMIT);
    let before = at(&image, 2, block_type::COMMIT);
    let with_record = |time: steadfs_base::Timestamp| {
        let mut image = image.clone();
        let block = &mut image[record..record + SIZE];
        block.fill(0);
        build_commit(&journal.format, Tid(3), time, 0, block);
        image
    };
    let now = wall_clock();
    let old = with_record(steadfs_base::Timestamp { secs: 7, ..now });
    // The clock may have been set back: a valid transaction counts.
    assert_eq!(outcome(&layout, &old), Ok(3));
    let mut invalid = old.clone();
    invalid[record + 16] ^= 1;
    assert_eq!(outcome(&layout, &invalid), Ok(2));
    // Not the record is invalid, but the descriptor.
    let mut invalid = old;
    invalid[at(&image, 3, block_type::DESCRIPTOR) + 500] ^= 1;
    assert_eq!(outcome(&layout, &invalid), Ok(2));
    // Of the same time: corruption.
    let mut invalid = image.clone();
    invalid.copy_within(before + TIME.start..before + TIME.end, record + TIME.start);
    invalid[record + 16] ^= 1;
    assert!(outcome(&layout, &invalid).is_err());
    let later = steadfs_base::Timestamp {
        secs: now.secs + 1000,
        ..now
    };
    let mut invalid = with_record(later);
    invalid[record + 16] ^= 1;
    assert!(outcome(&layout, &invalid).is_err());
}

#[test]
fn with_asynchronous_commits_a_corrupt_last_transaction_ends_the_log() {
    let (layout, _, mut image) = log(Checksum::V3);
    let copy_of = |tid| at(&image, tid, block_type::DESCRIPTOR) + SIZE + 9;
    let (second, last) = (copy_of(2), copy_of(3));
    image[last] ^= 1;
    assert!(outcome(&layout, &image).is_err());
    change_superblock(&mut image, |raw| {
        raw.incompat = Be32::new(raw.incompat.get() | 4);
    });
    assert_eq!(outcome(&layout, &image), Ok(2));
    image[last] ^= 1;
    image[second] ^= 1;
    let message = outcome(&layout, &image).unwrap_err();
    assert!(message.contains("transaction 2"), "{message}");
}

#[test]
fn a_journal_may_end_where_the_device_ends() {
    let layout = Layout::new(SIZE as u32, 110, 100);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    let tid = set(&journal, 5, 1);
    journal.commit(tid, TAG).unwrap();
    assert_eq!(layout.block(&layout.recovered(&device), 5)[9], 1);
}

#[test]
fn fast_commits_that_change_as_many_blocks_as_the_log_holds_are_logged() {
    let layout = Layout::new(SIZE as u32, 400, 100);
    let journal = layout.open(layout.device(), JournalConfig::default());
    // Of 99 log blocks one is never used, and one is the commit record.
    let fits = (1..99).filter(|&n| encoded_len(&journal.format, n, 0) <= 97);
    let most = fits.max().unwrap();
    for blocks in [most, most + 1] {
        let device = layout.device();
        let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
        let tid = set(&journal, 399, 1);
        journal.commit(tid, TAG).unwrap();
        let changed: BTreeMap<_, _> = (0..blocks as u64)
            .map(|n| (DevBlock(200 + n), Buf::copy_of(&[n as u8; SIZE])))
            .collect();
        let queue = layout.queue(Arc::clone(&device) as _);
        let (size, map) = (layout.block_size, layout.map());
        let logged = log_fast_commits(&queue, size, &map, &changed, || (), TAG);
        let after = layout.recovered(&device);
        assert_eq!(layout.block(&after, 399)[9], 1);
        let last = layout.block(&after, 200 + most as u64 - 1);
        if blocks == most {
            assert_eq!(logged, Ok(()));
            assert!(last.iter().all(|&byte| byte == most as u8 - 1));
        } else {
            assert!(matches!(logged, Err(JournalError::Unsupported(_))));
            assert!(last.iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn contiguous_blocks_share_a_request() {
    let layout = Layout {
        journal: vec![(DevBlock(10), 50), (DevBlock(100), 50)],
        ..Layout::new(SIZE as u32, 2000, 0)
    };
    let device = FaultDevice::new(layout.device());
    let (sender, sizes) = std::sync::mpsc::channel();
    device.fail(move |bio| {
        let _ = sender.send((bio.op, bio.offset / SIZE as u64, bio.len / SIZE as u64));
        false
    });
    let queue = layout.queue(Arc::clone(&device) as _);
    let reads = |blocks: &[u32]| {
        let bufs = read_log(&queue, layout.block_size, &layout.map(), blocks, TAG).unwrap();
        assert_eq!(bufs.len(), blocks.len());
        let mut reads: Vec<_> = sizes.try_iter().collect();
        reads.sort_unstable_by_key(|&(_, at, _)| at);
        reads
    };
    assert_eq!(reads(&[2, 3, 4, 5]), [(Op::Read, 12, 4)]);
    assert_eq!(
        reads(&[2, 3, 5, 7]),
        [(Op::Read, 12, 2), (Op::Read, 15, 1), (Op::Read, 17, 1)]
    );
    assert_eq!(reads(&[4, 3]), [(Op::Read, 13, 1), (Op::Read, 14, 1)]);
    // The second extent begins with block 50 of the journal.
    assert_eq!(
        reads(&[48, 49, 50, 51]),
        [(Op::Read, 58, 2), (Op::Read, 100, 2)]
    );

    let limit = max_run(&queue, layout.block_size);
    assert_eq!(limit, 512);
    let blocks = (0..600).map(|n| (DevBlock(1000 + n), Buf::zeroed(SIZE)));
    let ios = submit_writes(&queue, layout.block_size, blocks, TAG);
    ios.iter().for_each(|io| io.wait().unwrap());
    let writes: Vec<_> = sizes.try_iter().collect();
    assert_eq!(writes, [(Op::Write, 1000, 512), (Op::Write, 1512, 88)]);
    let large = Layout::new(16 << 10, 400, 100);
    assert_eq!(max_run(&large.queue(large.device()), large.block_size), 64);
}
