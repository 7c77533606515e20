//! Journals with false content, with corruption, or with features that are not replayed.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::endian::Be32;
use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_block::{Buf, Device, FaultDevice, MemDevice, Op};
use steadfs_cache::MetaCache;
use steadfs_rt::Random;
use zerocopy::{FromBytes, IntoBytes};

use super::crash_device::CrashDevice;
use super::model::{Model, find_state};
use super::support::{Layout, set};
use crate::{
    Checksum, Journal, JournalConfig, JournalError, Recover, Recovered, log_fast_commits, recover,
};
use steadfs_jbd2_format::{FastCommitBuilder, RawSuperblock};

const TAG: IoTag = IoTag::background();
const JOURNAL: u64 = 200;

fn try_recover(
    layout: &Layout,
    image: &[u8],
    how: Recover,
) -> (Result<Recovered, JournalError>, Vec<u8>) {
    let device = Arc::new(MemDevice::from_bytes(image));
    let queue = layout.queue(Arc::clone(&device) as _);
    let result = recover(&queue, layout.block_size, &layout.map(), how, TAG);
    (result, device.to_bytes())
}

fn superblock(layout: &Layout, image: &[u8]) -> RawSuperblock {
    let at = layout.block_size.offset_of(layout.journal[0].0) as usize;
    RawSuperblock::read_from_bytes(&image[at..at + 1024]).unwrap()
}

fn with_superblock(
    layout: &Layout,
    image: &[u8],
    change: impl FnOnce(&mut RawSuperblock),
) -> Vec<u8> {
    let mut raw = superblock(layout, image);
    change(&mut raw);
    raw.seal();
    let at = layout.block_size.offset_of(layout.journal[0].0) as usize;
    let mut image = image.to_vec();
    image[at..at + 1024].copy_from_slice(raw.as_bytes());
    image
}

/// A volume after some work, as a crash leaves it, and its oracle.
fn worked(checksum: Checksum, seed: u64) -> (Layout, Vec<u8>, Model) {
    let layout = Layout::new(1024, 1200, JOURNAL);
    let device = Arc::new(CrashDevice::new(layout.device().to_bytes(), seed));
    let config = JournalConfig {
        checksum: Some(checksum),
        ..JournalConfig::default()
    };
    let journal = layout.open(Arc::clone(&device) as _, config);
    let model = Model::new(&journal);
    let mut random = Random::new(seed);
    for _ in 0..30 {
        let tid = model.operation(&journal, &mut random).unwrap();
        model.commit(&journal, &device, tid).unwrap();
    }
    (layout, device.media(), model)
}

#[test]
fn corruption_is_reported_or_harmless_with_checksums() {
    for checksum in [Checksum::V2, Checksum::V3] {
        let (layout, image, model) = worked(checksum, 3);
        let states = model.states();
        let (mut reported, mut harmless) = (0, 0);
        let mut random = Random::new(9);
        for _ in 0..3000 {
            let mut damaged = image.clone();
            let at = 10 * 1024 + random.below(JOURNAL as usize * 1024);
            damaged[at] ^= 1 << random.below(8);
            let (result, after) = try_recover(&layout, &damaged, Recover::ToDevice);
            match result {
                Ok(_) => {
                    harmless += 1;
                    // The tail is older than the first state: any state from there on is allowed.
                    let shown = find_state(&after, 1024, &states, Some(0));
                    assert!(shown.is_ok(), "byte {at}: {shown:?}");
                }
                Err(error) => {
                    reported += 1;
                    assert!(matches!(
                        error,
                        JournalError::Corrupt(_) | JournalError::Unsupported(_)
                    ));
                    assert_eq!(
                        after, damaged,
                        "nothing is written if corruption is reported"
                    );
                }
            }
        }
        assert!(reported > 500 && harmless > 100, "{reported} {harmless}");
    }
}

/// `JBD2_FEATURE_INCOMPAT_ASYNC_COMMIT`.
const ASYNC_COMMIT: u32 = 4;

#[test]
fn with_asynchronous_commits_only_the_last_transaction_may_lack_blocks() {
    let (layout, image, _) = worked(Checksum::V3, 5);
    let with_async = |image: &[u8]| {
        with_superblock(&layout, image, |raw| {
            raw.incompat = Be32::new(raw.incompat.get() | ASYNC_COMMIT);
        })
    };
    let all = try_recover(&layout, &image, Recover::IntoMemory).0.unwrap();
    let (mut dropped, mut reported) = (0, 0);
    let mut random = Random::new(9);
    for _ in 0..3000 {
        let mut damaged = image.clone();
        let at = 11 * 1024 + random.below((JOURNAL as usize - 1) * 1024);
        damaged[at] ^= 1 << random.below(8);
        let strict = try_recover(&layout, &damaged, Recover::IntoMemory).0;
        let lenient = try_recover(&layout, &with_async(&damaged), Recover::IntoMemory).0;
        match (strict, lenient) {
            (Err(_), Ok(found)) => {
                assert_eq!(found.summary.transactions + 1, all.summary.transactions);
                dropped += 1;
            }
            (Err(_), Err(_)) => reported += 1,
            (Ok(strict), lenient) => assert_eq!(lenient.unwrap().summary, strict.summary),
        }
    }
    assert!(
        dropped > 0 && reported > dropped,
        "{dropped} dropped, {reported} reported"
    );
}

#[test]
fn replay_of_random_corruption_ends() {
    for checksum in [Checksum::None, Checksum::V1, Checksum::V3] {
        let (layout, image, _) = worked(checksum, 4);
        let mut random = Random::new(5);
        let (mut fine, mut refused) = (0, 0);
        for _ in 0..1500 {
            let mut damaged = image.clone();
            for _ in 0..1 + random.below(40) {
                let at = 10 * 1024 + random.below(JOURNAL as usize * 1024);
                // Small numbers in the first bytes of blocks change types, counts and flags.
                let at = if random.chance(512) {
                    at & !1023 | at & 31
                } else {
                    at
                };
                damaged[at] = random.next_u64() as u8 >> random.below(8);
            }
            let damaged = with_superblock(&layout, &damaged, |raw| {
                *raw = superblock(&layout, &image);
                if random.chance(300) {
                    raw.start = Be32::new(random.below(210) as u32);
                }
                if random.chance(100) {
                    raw.max_len = Be32::new(random.below(300) as u32);
                }
                if random.chance(100) {
                    raw.first = Be32::new(random.below(100) as u32);
                }
                if random.chance(100) {
                    raw.sequence = Be32::new(random.below(40) as u32);
                }
                if random.chance(100) {
                    raw.incompat = Be32::new(random.below(64) as u32);
                }
            });
            for how in [Recover::IntoMemory, Recover::ToDevice] {
                match try_recover(&layout, &damaged, how).0 {
                    Ok(_) => fine += 1,
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(fine > 100 && refused > 100, "{fine} {refused}");
    }
}

#[test]
fn revoke_blocks_that_claim_everything_cost_no_memory() {
    // A log full of revokes of blocks without a copy: all are read, none is kept in memory.
    let layout = Layout::new(1024, 1200, JOURNAL);
    let mut image = layout.device().to_bytes();
    for n in 1..JOURNAL as usize {
        let at = (10 + n) * 1024;
        let mut block = vec![0xFF; 1024];
        let words = [0xC03B_3998_u32, 5, 1, 1024];
        for (slot, word) in block.chunks_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_be_bytes());
        }
        if n == JOURNAL as usize - 1 {
            block[4..8].copy_from_slice(&2_u32.to_be_bytes());
        }
        image[at..at + 1024].copy_from_slice(&block);
    }
    let image = with_superblock(&layout, &image, |raw| raw.start = Be32::new(1));
    let (result, _) = try_recover(&layout, &image, Recover::ToDevice);
    let summary = result.unwrap().summary;
    assert_eq!(
        (summary.transactions, summary.blocks, summary.revoked),
        (1, 0, 0)
    );
}

#[test]
fn impossible_home_locations_are_reported() {
    for home in [1200, u64::from(u32::MAX), 15] {
        let layout = Layout::new(1024, 1200, JOURNAL);
        let device = layout.device();
        let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
        let tid = set(&journal, 700, 1);
        journal.commit(tid, TAG).unwrap();
        let mut image = device.to_bytes();
        // The first tag's block number, after the descriptor's header.
        let at = 11 * 1024 + 12;
        assert_eq!(image[at..at + 4], 700_u32.to_be_bytes());
        image[at..at + 4].copy_from_slice(&(home as u32).to_be_bytes());
        let (result, after) = try_recover(&layout, &image, Recover::ToDevice);
        assert!(matches!(result, Err(JournalError::Corrupt(_))), "{home}");
        assert_eq!(after, image);
    }
}

#[test]
fn features_that_are_not_replayed_are_named() {
    let layout = Layout::new(1024, 1200, JOURNAL);
    let image = layout.device().to_bytes();
    type Change = fn(&mut RawSuperblock);
    let cases: [(Change, &str); 6] = [
        (|raw| raw.incompat = Be32::new(64), "features 0x40"),
        (|raw| raw.ro_compat = Be32::new(1), "features 0x1"),
        (
            |raw| raw.users = Be32::new(2),
            "external journal shared by 2",
        ),
        (|raw| raw.incompat = Be32::new(24), "CSUM_V2 and CSUM_V3"),
        (
            |raw| (raw.incompat, raw.compat) = (Be32::new(8), Be32::new(1)),
            "exclude each other",
        ),
        (|raw| raw.block_size = Be32::new(4096), "4096 bytes"),
    ];
    for (change, name) in cases {
        let image = with_superblock(&layout, &image, change);
        let (result, _) = try_recover(&layout, &image, Recover::ToDevice);
        let error = result.unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    let mut bad_sum = with_superblock(&layout, &image, |raw| raw.incompat = Be32::new(16));
    bad_sum[10 * 1024 + 0xFC] ^= 1;
    let (result, _) = try_recover(&layout, &bad_sum, Recover::ToDevice);
    assert!(matches!(result, Err(JournalError::Corrupt(what)) if what.contains("checksum")));
    // A device that ends before the journal does.
    let (result, _) = try_recover(&layout, &image[..100 * 1024], Recover::ToDevice);
    assert!(matches!(result, Err(JournalError::Corrupt(what)) if what.contains("device")));
}

/// A log that went around, on a journal with a fast-commit area at this byte, and its last transaction.
fn with_area() -> (Layout, Vec<u8>, u64, Tid) {
    area_of(JournalConfig::default())
}

/// The same of a journal opened with this configuration.
fn area_of(config: JournalConfig) -> (Layout, Vec<u8>, u64, Tid) {
    let layout = Layout::new(1024, 1200, JOURNAL);
    let image = layout.device().to_bytes();
    let image = with_superblock(&layout, &image, |raw| {
        raw.incompat = Be32::new(32);
        raw.fast_commit_blocks = Be32::new(100);
    });
    let device = Arc::new(MemDevice::from_bytes(&image));
    let area = (10 + JOURNAL - 100 + 1) * 1024;
    device.write(area, &[0xEE; 99 * 1024]);
    let journal = layout.open(Arc::clone(&device) as _, config);
    let mut last = Tid(0);
    for n in 0..120 {
        last = set(&journal, 700 + n, 1);
        journal.commit(last, TAG).unwrap();
    }
    assert!(journal.stats().tail_moves > 2, "the log went around");
    let image = device.to_bytes();
    // Only a head is removed before the log is used.
    let (first, others) = image[area as usize..][..99 * 1024].split_at(1024);
    assert!(first.iter().all(|&byte| byte == 0));
    assert!(others.iter().all(|&byte| byte == 0xEE));
    (layout, image, area, last)
}

/// The same with one fast commit of transaction `tid`.
fn with_fast_commit(image: &[u8], area: u64, tid: Tid) -> Vec<u8> {
    let mut fast = FastCommitBuilder::new(tid, 1024);
    let fast = fast.del_range(12, 0, 1).tail().finish();
    let mut image = image.to_vec();
    image[area as usize..][..fast.len()].copy_from_slice(&fast);
    image
}

#[test]
fn fast_commits_count_if_they_follow_the_last_transaction() {
    let (layout, image, area, last) = with_area();
    let old = with_fast_commit(&image, area, last);
    for how in [Recover::IntoMemory, Recover::ToDevice] {
        let (found, _) = try_recover(&layout, &old, how);
        assert!(
            found.unwrap().fast_commits.is_empty(),
            "of an old transaction"
        );
        let new = with_fast_commit(&image, area, last.next());
        let (found, after) = try_recover(&layout, &new, how);
        let found = found.unwrap();
        assert_eq!(found.fast_commits.commits.len(), 1);
        assert!(!found.overlay.is_empty());
        assert!(after == new, "nothing is written before they are replayed");
    }
}

#[test]
fn logged_fast_commits_are_all_there_or_not_at_all_after_any_write() {
    let (layout, image, area, last) = with_area();
    let image = with_fast_commit(&image, area, last.next());
    let blocks: BTreeMap<DevBlock, Buf> = (0..20)
        .map(|n| (DevBlock(900 + 3 * n), Buf::copy_of(&[0xAB; 1024])))
        .collect();
    let log = |device: Arc<dyn Device>| {
        let queue = layout.queue(device);
        log_fast_commits(
            &queue,
            layout.block_size,
            &layout.map(),
            &blocks,
            || (),
            TAG,
        )
    };
    let (mut before, mut after) = (0, 0);
    for writes in 0.. {
        let device = FaultDevice::new(Arc::new(MemDevice::from_bytes(&image)));
        let mut left = writes;
        device.fail(move |bio| {
            let fails = bio.op != Op::Read && left == 0;
            left -= usize::from(bio.op != Op::Read && left > 0);
            fails
        });
        let logged = log(Arc::clone(&device) as _);
        let cut = device.memory.to_bytes();
        let (found, _) = try_recover(&layout, &cut, Recover::IntoMemory);
        let found = found.unwrap();
        let is_logged = found.overlay.blocks().any(|block| block == DevBlock(957));
        assert_eq!(found.fast_commits.is_empty(), is_logged);
        if is_logged {
            after += 1;
            let (found, home) = try_recover(&layout, &cut, Recover::ToDevice);
            assert_eq!(found.unwrap().summary.transactions, 1);
            for (&at, block) in &blocks {
                assert!(layout.block(&home, at.0) == &block[..]);
            }
        } else {
            before += 1;
            // The older transactions are still there, in the log or at home.
            let memory = Arc::new(MemDevice::from_bytes(&cut));
            log(Arc::clone(&memory) as _).unwrap();
            let home = layout.recovered(&memory);
            assert_eq!(layout.block(&home, 700 + 119)[9], 1);
        }
        if logged.is_ok() {
            break;
        }
    }
    assert!(before > 3 && after > 0, "{before} before, {after} after");
    let many = (0..150).map(|n| (DevBlock(300 + n), Buf::zeroed(1024)));
    let queue = layout.queue(Arc::new(MemDevice::from_bytes(&image)));
    let (size, map) = (layout.block_size, layout.map());
    let refused = log_fast_commits(&queue, size, &map, &many.collect(), || (), TAG).unwrap_err();
    assert!(matches!(refused, JournalError::Unsupported(what) if what.contains("150 blocks")));
}

/// Only a journal with 64-bit block numbers can log blocks behind the first 2^32.
#[test]
fn logged_fast_commits_are_within_the_block_numbers_of_the_journal() {
    const LAST: u64 = u32::MAX as u64;
    for (wide, block, fits) in [
        (false, LAST - 1, true),
        (false, LAST, true),
        (false, LAST + 1, false),
        (true, LAST, true),
        (true, LAST + 1, true),
    ] {
        let (layout, image, area, last) = area_of(JournalConfig {
            wide,
            ..JournalConfig::default()
        });
        let large = Layout {
            blocks: LAST + 10,
            ..layout
        };
        let device = Arc::new(MemDevice::new(large.blocks * 1024));
        device.write(0, &with_fast_commit(&image, area, last.next()));
        let (size, map) = (large.block_size, large.map());
        let queue = large.queue(Arc::clone(&device) as _);
        let changed = BTreeMap::from([(DevBlock(block), Buf::copy_of(&[0xAB; 1024]))]);
        let logged = log_fast_commits(&queue, size, &map, &changed, || (), TAG);
        assert_eq!(logged.is_ok(), fits, "{wide}, {block}: {logged:?}");
        let found = large.recover(Arc::clone(&device) as _);
        assert_eq!(found.fast_commits.is_empty(), fits);
        let home = queue.read(block * 1024, 1024, TAG).unwrap();
        assert_eq!(home[..] == [0xAB; 1024], fits, "{wide}, {block}");
    }
}

#[test]
fn a_version_1_superblock_becomes_one_with_features() {
    let layout = Layout::new(1024, 1200, JOURNAL);
    let image = layout.device().to_bytes();
    let image = with_superblock(&layout, &image, |raw| {
        raw.header.block_type = Be32::new(3);
        raw.incompat = Be32::new(0xFFFF);
        raw.user_ids = [9; 768];
    });
    let device = Arc::new(MemDevice::from_bytes(&image));
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    let tid = set(&journal, 700, 1);
    journal.commit(tid, TAG).unwrap();
    let after = layout.recovered(&device);
    assert_eq!(layout.block(&after, 700)[9], 1);
    let raw = superblock(&layout, &after);
    assert_eq!((raw.header.block_type.get(), raw.incompat.get()), (4, 1));
}

#[test]
fn recovery_can_be_repeated_after_a_device_error() {
    let (layout, image, model) = worked(Checksum::V3, 6);
    let mut failures = 0;
    for requests in 0.. {
        let device = FaultDevice::new(Arc::new(MemDevice::from_bytes(&image)));
        let mut left = requests;
        device.fail(move |_| {
            left -= 1;
            left < 0
        });
        let queue = layout.queue(Arc::clone(&device) as _);
        let (map, how) = (layout.map(), Recover::ToDevice);
        let first = recover(&queue, layout.block_size, &map, how, TAG);
        device.fail(|_| false);
        if first.is_err() {
            failures += 1;
            // With a new queue: one whose FLUSH has failed fails every later one.
            let queue = layout.queue(Arc::clone(&device) as _);
            recover(&queue, layout.block_size, &map, how, TAG).unwrap();
        }
        let after = device.memory.to_bytes();
        let newest = model.states().keys().next_back().copied();
        assert_eq!(
            find_state(&after, 1024, &model.states(), newest),
            Ok(newest)
        );
        if first.is_ok() {
            break;
        }
    }
    assert!(failures > 4, "{failures}");
}

#[test]
fn a_cache_over_an_unrecovered_journal_cannot_open_it() {
    let (layout, image, _) = worked(Checksum::None, 7);
    let device = Arc::new(MemDevice::from_bytes(&image));
    let cache = MetaCache::new(layout.queue(device), layout.block_size, 1 << 20);
    let opened = Journal::open(Arc::new(cache), layout.map(), JournalConfig::default());
    assert!(matches!(opened, Err(JournalError::NeedsRecovery)));
    assert!(layout.map().contains(DevBlock(10)));
}
