//! Comparison with e2fsprogs: our replay of journals written by debugfs gives what e2fsck's gives, and e2fsck's
//! replay of our journals gives what ours gives.
#![expect(clippy::unwrap_used, reason = "a test stops where something fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use steadfs_base::{BlockSize, DevBlock, IoTag};
use steadfs_block::{MemDevice, Queue, QueueOptions};
use steadfs_cache::MetaCache;
use steadfs_jbd2::{
    Checksum, Journal, JournalConfig, JournalMap, Recover, RecoverySummary, recover,
};
use steadfs_rt::Random;

const MIB: usize = 1 << 20;
/// First block of a range that is free in the images made here.
const FREE: u64 = 5000;

struct Image {
    dir: tempfile::TempDir,
    block_size: BlockSize,
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    let code = output.status.code().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    // Exit code 1 of e2fsck means that something was repaired; a replay counts as that.
    let fine = code == 0 || (program == "e2fsck" && code == 1);
    assert!(fine, "{program} {arguments:?}: {code}\n{stdout}\n{stderr}");
    stdout + &stderr
}

impl Image {
    fn new(block_size: u32, wide: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = Self {
            dir,
            block_size: BlockSize::new(block_size).unwrap(),
        };
        fs::File::create(image.path())
            .unwrap()
            .set_len(48 * MIB as u64)
            .unwrap();
        let features = if wide { "64bit" } else { "^64bit" };
        let block_size = block_size.to_string();
        let megabytes = if block_size == "1024" {
            "size=1"
        } else {
            "size=4"
        };
        let path = image.path();
        let path = path.to_str().unwrap();
        run(
            "mke2fs",
            &[
                "-q",
                "-F",
                "-t",
                "ext4",
                "-O",
                features,
                "-b",
                &block_size,
                "-J",
                megabytes,
                path,
            ],
        );
        image
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn debugfs(&self, commands: &str) -> String {
        let script = self.dir.path().join("script");
        fs::write(&script, commands).unwrap();
        let path = self.path();
        run(
            "debugfs",
            &["-w", "-f", script.to_str().unwrap(), path.to_str().unwrap()],
        )
    }

    /// The journal's extents, as debugfs prints them.
    fn map(&self) -> JournalMap {
        let out = self.debugfs("blocks <8>\n");
        let numbers = out.split_whitespace().filter_map(|word| word.parse().ok());
        JournalMap::new(numbers.map(|block| (DevBlock(block), 1))).unwrap()
    }

    fn device(&self) -> Arc<MemDevice> {
        Arc::new(MemDevice::from_bytes(&fs::read(self.path()).unwrap()))
    }

    /// Replays a copy with e2fsck; everything but the two superblocks, and the journal's.
    fn replayed_by_e2fsck(&self) -> (Vec<u8>, Vec<u8>) {
        let copy = self.dir.path().join("copy");
        fs::copy(self.path(), &copy).unwrap();
        let out = run(
            "e2fsck",
            &["-fy", "-E", "journal_only", copy.to_str().unwrap()],
        );
        assert!(out.contains("recovering journal"), "{out}");
        self.split(fs::read(copy).unwrap())
    }

    /// Replays a copy with ours.
    fn replayed_by_us(&self) -> (RecoverySummary, (Vec<u8>, Vec<u8>)) {
        let device = self.device();
        let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
        let (how, tag) = (Recover::ToDevice, IoTag::default());
        let done = recover(&queue, self.block_size, &self.map(), how, tag).unwrap();
        (done.summary, self.split(device.to_bytes()))
    }

    fn split(&self, mut image: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
        let (journal, _) = self.map().locate(0);
        let at = self.block_size.offset_of(journal) as usize;
        let superblock = image[at..at + 1024].to_vec();
        image[at..at + 1024].fill(0);
        // The file system's own superblock: the time of the check and the recovery flag.
        image[1024..2048].fill(0);
        (image, superblock)
    }

    fn assert_equal_replay(&self) -> RecoverySummary {
        let (theirs, their_superblock) = self.replayed_by_e2fsck();
        let (summary, (ours, our_superblock)) = self.replayed_by_us();
        let size = self.block_size.bytes();
        for (block, (theirs, ours)) in theirs.chunks(size).zip(ours.chunks(size)).enumerate() {
            assert!(theirs == ours, "block {block} differs, {summary:?}");
        }
        // Sequence and start.
        assert_eq!(their_superblock[0x18..0x20], our_superblock[0x18..0x20]);
        summary
    }
}

/// A file of `blocks` random blocks, some of which begin like a journal block.
fn content(path: &Path, random: &mut Random, blocks: usize, size: usize) {
    let mut bytes = vec![0; blocks * size];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_be_bytes());
    }
    for block in bytes.chunks_mut(size) {
        if random.chance(300) {
            block[..4].copy_from_slice(&0xC03B_3998_u32.to_be_bytes());
        }
    }
    fs::write(path, bytes).unwrap();
}

fn list(blocks: &BTreeSet<u64>) -> String {
    let words: Vec<String> = blocks.iter().map(u64::to_string).collect();
    words.join(",")
}

#[test]
fn journals_that_debugfs_wrote_are_replayed_as_e2fsck_does() {
    for (seed, checksum) in ["", "-c", "-c -v 2", "-c -v 3"].iter().enumerate() {
        for (wide, block_size) in [(false, 1024), (true, 1024), (true, 4096)] {
            let image = Image::new(block_size, wide);
            let mut random = Random::new(seed as u64);
            let mut script = String::new();
            for n in 0..12 {
                let count = 1 + random.below(30);
                let blocks: BTreeSet<u64> =
                    (0..count).map(|_| FREE + random.below(60) as u64).collect();
                let file = image.dir.path().join(format!("content{n}"));
                content(&file, &mut random, blocks.len(), block_size as usize);
                let revoked: BTreeSet<u64> = (0..random.below(8))
                    .map(|_| FREE + random.below(60) as u64)
                    .filter(|block| !blocks.contains(block))
                    .collect();
                let revoke = if revoked.is_empty() {
                    String::new()
                } else {
                    format!("-r {}", list(&revoked))
                };
                let uncommitted = if n == 11 { "-c" } else { "" };
                let file = file.display();
                let blocks = list(&blocks);
                // Opened once per transaction: with several in one session, debugfs 1.47 overwrites the
                // commit record of the previous one.
                script +=
                    &format!("jo {checksum}\njw {uncommitted} -b {blocks} {revoke} {file}\njc\n");
            }
            image.debugfs(&script);
            let summary = image.assert_equal_replay();
            assert_eq!(summary.transactions, 11);
            assert!(summary.revoked > 0 && summary.blocks > 20, "{summary:?}");
        }
    }
}

/// Random transactions on the free blocks; the log is left as a crash would leave it.
fn fill(journal: &Journal, cache: &MetaCache, random: &mut Random, transactions: usize) {
    let tag = IoTag::default();
    for _ in 0..transactions {
        let mut handle = journal.begin(60).unwrap();
        for _ in 0..1 + random.below(50) {
            let block = DevBlock(FREE + random.below(150) as u64);
            if random.chance(150) {
                handle.forget(block).unwrap();
                continue;
            }
            let buf = cache.get(block, tag).unwrap();
            let mut bytes = handle.write(&buf).unwrap();
            let at = random.below(bytes.len() / 8) * 8;
            bytes[at..at + 8].copy_from_slice(&random.next_u64().to_be_bytes());
            if random.chance(200) {
                bytes[..4].copy_from_slice(&0xC03B_3998_u32.to_be_bytes());
            }
        }
        let tid = handle.tid();
        drop(handle);
        if random.chance(900) {
            journal.commit(tid, tag).unwrap();
        }
    }
    journal.commit_all(tag).unwrap();
}

#[test]
fn journals_that_we_wrote_are_replayed_by_e2fsck_as_by_us() {
    let mut revoked = 0;
    for (seed, checksum) in [Checksum::None, Checksum::V1, Checksum::V2, Checksum::V3]
        .into_iter()
        .enumerate()
    {
        for (wide, block_size) in [(false, 1024), (true, 1024), (true, 4096)] {
            // The longer run goes around the log several times.
            for transactions in [7, 150] {
                let image = Image::new(block_size, wide);
                image.debugfs("feature needs_recovery\n");
                let map = image.map();
                let device = image.device();
                let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
                let cache = MetaCache::new(Arc::new(queue), image.block_size, MIB);
                let cache = Arc::new(cache);
                let config = JournalConfig {
                    wide,
                    checksum: Some(checksum),
                    ..JournalConfig::default()
                };
                let journal = Journal::open(Arc::clone(&cache), map, config).unwrap();
                let mut random = Random::new(seed as u64);
                fill(&journal, &cache, &mut random, transactions);
                let (free, capacity) = journal.log_space();
                assert!(free < capacity);
                fs::write(image.path(), device.to_bytes()).unwrap();
                let summary = image.assert_equal_replay();
                assert!(summary.transactions > 2, "{summary:?}");
                revoked += summary.revoked;
                assert_eq!(transactions > 100, journal.stats().tail_moves > 0);
            }
        }
    }
    assert!(revoked > 100, "only {revoked} copies were revoked");
}
