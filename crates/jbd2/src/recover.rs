//! Replay of the log after a crash, in jbd2's three passes: scan, revoke, replay.
//!
//! Rule: nothing is written before the whole log has been read and verified, and the superblock marks
//! the log empty only after every replayed block is durable. So a crash during recovery leaves the log
//! unchanged, and the next recovery does the same again.

use std::collections::BTreeMap;

use steadfs_base::checksum::crc32_be;
use steadfs_base::endian::Be32;
use steadfs_base::{BlockSize, DevBlock, IoTag, Tid};
use steadfs_block::{Bio, Buf, Queue};
use zerocopy::IntoBytes;

use crate::io::{max_run, read_log, submit_writes, wait_all};
use crate::overlay::{Overlay, Redirect};
use crate::space::LogRing;
use crate::{JournalError, JournalMap};
use steadfs_jbd2_format::{
    Checksum, CommitRecord, FastCommitScan, FastCommits, Format, Header, MAGIC, Superblock, TagSum,
    block_type, parse_revoke, parse_tags,
};

/// Where blocks are replayed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recover {
    /// To their home locations; the log is marked empty.
    ToDevice,
    /// Nothing is written: the result is an overlay with the locations of the newest copies.
    IntoMemory,
}

/// Counts of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoverySummary {
    /// Committed transactions in the log.
    pub transactions: u32,
    /// Blocks replayed; several copies of a block count once.
    pub blocks: u64,
    /// Copies not replayed because they were revoked.
    pub revoked: u64,
    /// The oldest and the newest transaction.
    pub range: Option<(Tid, Tid)>,
    /// The error the journal was aborted with before (a positive error number).
    pub recorded_errno: Option<u32>,
}

/// The result of a recovery.
#[derive(Debug)]
pub struct Recovered {
    /// Counts.
    pub summary: RecoverySummary,
    /// With [`Recover::IntoMemory`], or with fast commits: the blocks that must be read from the log.
    pub overlay: Overlay,
    /// The fast commits after the log's last transaction. If there are any, nothing was written: the file system
    /// computes the blocks that they change, and [`log_fast_commits`](crate::log_fast_commits) adds them to the log.
    pub fast_commits: FastCommits,
}

/// Replays the journal at `map` of the volume behind `queue`. Does nothing for a clean journal. Must run
/// before anything of the volume is cached or written.
///
/// # Errors
/// [`JournalError::Corrupt`] if a committed transaction fails its checksums or a block's home location is
/// not on the device, or if an acknowledged fast commit is invalid; [`JournalError::Unsupported`] for features
/// that are not replayed. Nothing was written then. [`JournalError::Io`] if the device fails; recovery can be
/// tried again.
pub fn recover(
    queue: &Queue,
    block_size: BlockSize,
    map: &JournalMap,
    how: Recover,
    tag: IoTag,
) -> Result<Recovered, JournalError> {
    let (mut block0, superblock) = load_superblock(queue, block_size, map, tag)?;
    let mut summary = RecoverySummary {
        recorded_errno: superblock.recorded_errno(),
        ..RecoverySummary::default()
    };
    if superblock.raw.start.get() == 0 {
        return Ok(Recovered {
            summary,
            overlay: Overlay::default(),
            fast_commits: FastCommits::default(),
        });
    }
    let log = LoadedLog::load(queue, block_size, map, &superblock, &mut summary, tag)?;
    let LoadedLog { found, newest } = log;
    let mut reader = LogReader::new(queue, block_size, map, tag);
    let fast_commits = scan_fast_commits(&mut reader, &superblock, found.end)?;
    summary.transactions = found.end.0.wrapping_sub(superblock.sequence().0);
    summary.blocks = newest.len() as u64;
    if summary.transactions > 0 {
        let last = Tid(found.end.0.wrapping_sub(1));
        summary.range = Some((superblock.sequence(), last));
    }
    tracing::debug!(
        ?summary,
        ?how,
        fast_commits = fast_commits.commits.len(),
        "journal replay"
    );
    let overlay = if how == Recover::IntoMemory || !fast_commits.is_empty() {
        let redirects = newest.into_iter().map(|(home, copy)| {
            let (at, _) = map.locate(copy.at);
            let escaped = copy.escaped;
            (home, Redirect { at, escaped })
        });
        Overlay::new(redirects.collect())
    } else {
        replay(queue, block_size, map, &newest, tag)?;
        // The number of the incomplete transaction is skipped, so its blocks in the log stay invalid.
        let empty = LogStart {
            block: 0,
            sequence: found.end.next(),
        };
        mark_start(queue, block_size, map, &superblock, empty, &mut block0, tag)?;
        Overlay::default()
    };
    Ok(Recovered {
        summary,
        overlay,
        fast_commits,
    })
}

/// The committed transactions of a log, verified.
pub(crate) struct LoadedLog {
    pub(crate) found: ScanResult,
    /// The newest copy of each block that was not revoked since.
    newest: BTreeMap<DevBlock, LoggedCopy>,
}

impl LoadedLog {
    /// Reads the log, which is not empty.
    pub(crate) fn load(
        queue: &Queue,
        block_size: BlockSize,
        map: &JournalMap,
        superblock: &Superblock,
        summary: &mut RecoverySummary,
        tag: IoTag,
    ) -> Result<Self, JournalError> {
        let mut reader = LogReader::new(queue, block_size, map, tag);
        let found = scan(&mut reader, superblock)?;
        let newest = newest_copies(&mut reader, &superblock.format, &found, summary)?;
        check_home_locations(queue, block_size, map, newest.keys())?;
        Ok(Self { found, newest })
    }

    /// Writes the newest copies to their home locations and waits.
    pub(crate) fn replay(
        &self,
        queue: &Queue,
        block_size: BlockSize,
        map: &JournalMap,
        tag: IoTag,
    ) -> Result<(), JournalError> {
        replay(queue, block_size, map, &self.newest, tag)
    }
}

/// Reads the fast commits of the transaction that follows the log, which has the number `next`.
fn scan_fast_commits(
    reader: &mut LogReader<'_>,
    superblock: &Superblock,
    next: Tid,
) -> Result<FastCommits, JournalError> {
    let Some(first) = superblock.fast_commit else {
        return Ok(FastCommits::default());
    };
    let mut scan = FastCommitScan::new(next);
    for at in first..superblock.raw.max_len.get() {
        if !scan.block(&reader.read(at)?)? {
            break;
        }
    }
    let found = scan.finish();
    if found.is_torn {
        tracing::warn!(
            finished = found.commits.len(),
            "the last fast commit was not finished and is not replayed"
        );
    }
    Ok(found)
}

/// Reads and verifies the journal's block 0.
pub(crate) fn load_superblock(
    queue: &Queue,
    block_size: BlockSize,
    map: &JournalMap,
    tag: IoTag,
) -> Result<(Buf, Superblock), JournalError> {
    let device_blocks = queue.geometry().size / block_size.bytes_u64();
    if map.device_end().0 > device_blocks {
        return Err(JournalError::Corrupt(format!(
            "the journal ends at block {}, the device at {device_blocks}",
            map.device_end()
        )));
    }
    let (at, _) = map.locate(0);
    let block = queue.read(block_size.offset_of(at), block_size.bytes(), tag)?;
    let superblock = Superblock::parse(&block, block_size, map.len())?;
    Ok((block, superblock))
}

/// Reads the log with a read-ahead window, because the scan is sequential.
struct LogReader<'a> {
    queue: &'a Queue,
    block_size: BlockSize,
    map: &'a JournalMap,
    tag: IoTag,
    window: u32,
    start: u32,
    bufs: Vec<Buf>,
}

impl<'a> LogReader<'a> {
    fn new(queue: &'a Queue, block_size: BlockSize, map: &'a JournalMap, tag: IoTag) -> Self {
        Self {
            queue,
            block_size,
            map,
            tag,
            window: max_run(queue, block_size) as u32,
            start: 0,
            bufs: Vec::new(),
        }
    }

    fn read(&mut self, at: u32) -> Result<Buf, JournalError> {
        let within = at.checked_sub(self.start).map(|n| n as usize);
        if let Some(buf) = within.and_then(|n| self.bufs.get(n)) {
            return Ok(buf.clone());
        }
        let end = at.saturating_add(self.window).min(self.map.len());
        let blocks: Vec<u32> = (at..end).collect();
        assert!(!blocks.is_empty(), "the scan stays inside the log");
        self.bufs = read_log(self.queue, self.block_size, self.map, &blocks, self.tag)?;
        self.start = at;
        Ok(self.bufs[0].clone())
    }
}

/// A logged block.
#[derive(Clone, Copy, Debug)]
struct LoggedCopy {
    home: DevBlock,
    /// Index of its transaction, counted from the first in the log.
    age: u32,
    /// Its block in the log.
    at: u32,
    escaped: bool,
}

/// Result of the scan.
pub(crate) struct ScanResult {
    /// In the order of the log.
    copies: Vec<LoggedCopy>,
    /// Revoke blocks: index of the transaction, and block in the log.
    revokes: Vec<(u32, u32)>,
    /// The first transaction that is not committed.
    pub(crate) end: Tid,
    /// The block after the last committed transaction.
    pub(crate) head: u32,
}

/// The transaction that the scan is in.
struct PendingTransaction {
    copies: Vec<LoggedCopy>,
    revokes: Vec<u32>,
    /// A descriptor or revoke block has a wrong checksum: corruption, or left from an older journal.
    bad_checksum: bool,
    /// The first logged block that does not match the checksum in its tag.
    corrupt_copy: Option<DevBlock>,
    /// CRC-32 over descriptors and blocks so far (checksum version 1).
    sum: u32,
}

impl PendingTransaction {
    fn new() -> Self {
        Self {
            copies: Vec::new(),
            revokes: Vec::new(),
            bad_checksum: false,
            corrupt_copy: None,
            sum: !0,
        }
    }
}

/// Scans the log from the oldest transaction on and collects what is committed.
fn scan(reader: &mut LogReader<'_>, superblock: &Superblock) -> Result<ScanResult, JournalError> {
    let ring = LogRing::new(superblock.first, superblock.last);
    let first = superblock.sequence();
    let mut scan = LogScan {
        reader,
        superblock,
        walk: LogWalk {
            at: superblock.raw.start.get(),
            left: ring.capacity() + 1,
            ring,
        },
        next: first,
        found: ScanResult {
            copies: Vec::new(),
            revokes: Vec::new(),
            end: first,
            head: superblock.raw.start.get(),
        },
        pending: PendingTransaction::new(),
        last_time: 0,
        failed: None,
    };
    while scan.block()? {}
    if let Some(error) = scan.failed {
        tracing::warn!(
            %error,
            "the last transaction is incomplete (asynchronous commit) and is not replayed"
        );
    }
    Ok(scan.found)
}

struct LogScan<'a, 'r> {
    reader: &'a mut LogReader<'r>,
    superblock: &'a Superblock,
    walk: LogWalk,
    /// The transaction that the scan is in.
    next: Tid,
    pending: PendingTransaction,
    /// Commit time of the last transaction.
    last_time: u64,
    /// The first transaction that failed its checksums, with asynchronous commits.
    failed: Option<JournalError>,
    found: ScanResult,
}

impl LogScan<'_, '_> {
    /// Scans the next descriptor, revoke block or commit record; false at the end of the log.
    fn block(&mut self) -> Result<bool, JournalError> {
        let Some(at) = self.walk.step() else {
            return Ok(false);
        };
        let block = self.reader.read(at)?;
        let header = Header::of(&block).filter(|h| h.sequence.get() == self.next.0);
        match header.map(|h| h.block_type.get()) {
            Some(block_type::DESCRIPTOR) => self.descriptor(&block),
            Some(block_type::REVOKE) => {
                self.pending.bad_checksum |= !self.superblock.format.is_sealed(&block);
                self.pending.revokes.push(at);
                Ok(true)
            }
            Some(block_type::COMMIT) => self.commit(&block),
            _ => Ok(false),
        }
    }

    fn descriptor(&mut self, block: &[u8]) -> Result<bool, JournalError> {
        let format = &self.superblock.format;
        self.pending.bad_checksum |= !format.is_sealed(block);
        let v1 = format.checksum == Checksum::V1;
        if v1 {
            self.pending.sum = crc32_be(self.pending.sum, block);
        }
        for tag in parse_tags(format, block) {
            let Some(at) = self.walk.step() else {
                return Ok(false);
            };
            if v1 {
                self.pending.sum = crc32_be(self.pending.sum, &self.reader.read(at)?);
            } else if tag.sum != TagSum::None && !self.pending.bad_checksum {
                let data = self.reader.read(at)?;
                if !tag.sum.matches(format.data_sum(self.next, &data)) {
                    self.pending.corrupt_copy.get_or_insert(tag.block);
                }
            }
            self.pending.copies.push(LoggedCopy {
                home: tag.block,
                age: self.age(),
                at,
                escaped: tag.escaped,
            });
        }
        Ok(true)
    }

    fn commit(&mut self, block: &[u8]) -> Result<bool, JournalError> {
        let record = CommitRecord::parse(&self.superblock.format, block, self.pending.sum);
        if (self.pending.bad_checksum || !record.valid) && record.time < self.last_time {
            // Not of this journal: left from an older one that used the same numbers.
            return Ok(false);
        }
        let bad = corruption_in(&self.pending, &record, self.next);
        match (bad, self.failed.take()) {
            (None, None) => {
                let age = self.age();
                self.found.copies.append(&mut self.pending.copies);
                let revokes = self.pending.revokes.iter().map(|&at| (age, at));
                self.found.revokes.extend(revokes);
                self.found.end = self.next.next();
                self.found.head = self.walk.at;
            }
            // With asynchronous commits the last record may be written before its blocks are. A
            // transaction after it proves that they were written, so they are corrupt.
            (Some(bad), None) if self.superblock.async_commit => self.failed = Some(bad),
            (Some(bad), None) | (_, Some(bad)) => return Err(bad),
        }
        self.last_time = record.time;
        self.pending = PendingTransaction::new();
        self.next = self.next.next();
        Ok(true)
    }

    /// Index of the transaction that the scan is in, counted from the first in the log.
    fn age(&self) -> u32 {
        self.next.0.wrapping_sub(self.superblock.sequence().0)
    }
}

/// The corruption in a transaction that has a commit record.
fn corruption_in(
    pending: &PendingTransaction,
    record: &CommitRecord,
    tid: Tid,
) -> Option<JournalError> {
    let what = if let Some(block) = pending.corrupt_copy {
        format!("checksum of the copy of block {block}")
    } else if pending.bad_checksum {
        "checksum of a descriptor or revoke block".to_owned()
    } else if !record.valid {
        "checksum of the commit record".to_owned()
    } else {
        return None;
    };
    Some(JournalError::Corrupt(format!(
        "transaction {tid}: {what} is wrong"
    )))
}

/// Steps through the log, at most once around.
struct LogWalk {
    ring: LogRing,
    at: u32,
    left: u32,
}

impl LogWalk {
    fn step(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let at = self.at;
        self.at = self.ring.after(at, 1);
        Some(at)
    }
}

/// The newest copy of each block that was not revoked since.
fn newest_copies(
    reader: &mut LogReader<'_>,
    format: &Format,
    found: &ScanResult,
    summary: &mut RecoverySummary,
) -> Result<BTreeMap<DevBlock, LoggedCopy>, JournalError> {
    // Only blocks with a copy are recorded: so the length of the log bounds the memory, not the content of
    // revoke blocks.
    let mut revoked: BTreeMap<DevBlock, Option<u32>> = BTreeMap::new();
    for copy in &found.copies {
        revoked.insert(copy.home, None);
    }
    for &(age, at) in &found.revokes {
        let blocks = parse_revoke(format, &reader.read(at)?).ok_or_else(|| {
            JournalError::Corrupt(format!(
                "revoke block at {at} of the journal has a wrong length"
            ))
        })?;
        for block in blocks {
            if let Some(newest) = revoked.get_mut(&block) {
                *newest = (*newest).max(Some(age));
            }
        }
    }
    let mut newest = BTreeMap::new();
    for copy in &found.copies {
        if revoked[&copy.home].is_some_and(|age| age >= copy.age) {
            summary.revoked += 1;
        } else {
            newest.insert(copy.home, *copy);
        }
    }
    Ok(newest)
}

/// Fails unless every home location is on the device and outside the journal.
pub(crate) fn check_home_locations<'a>(
    queue: &Queue,
    block_size: BlockSize,
    map: &JournalMap,
    homes: impl Iterator<Item = &'a DevBlock>,
) -> Result<(), JournalError> {
    let end = DevBlock(queue.geometry().size / block_size.bytes_u64());
    for &home in homes {
        if !map.may_be_home(home, end) {
            return Err(JournalError::Corrupt(format!(
                "home location {home} of a logged block is inside the journal or past the end of the volume"
            )));
        }
    }
    Ok(())
}

/// Writes the newest copies to their home locations and waits.
fn replay(
    queue: &Queue,
    block_size: BlockSize,
    map: &JournalMap,
    newest: &BTreeMap<DevBlock, LoggedCopy>,
    tag: IoTag,
) -> Result<(), JournalError> {
    let copies: Vec<&LoggedCopy> = newest.values().collect();
    for batch in copies.chunks(4 * max_run(queue, block_size)) {
        let mut by_location: Vec<&LoggedCopy> = batch.to_vec();
        by_location.sort_unstable_by_key(|copy| copy.at);
        let locations: Vec<u32> = by_location.iter().map(|copy| copy.at).collect();
        let bufs = read_log(queue, block_size, map, &locations, tag)?;
        let mut blocks: Vec<(DevBlock, Buf)> = Vec::with_capacity(batch.len());
        for (copy, mut buf) in by_location.iter().zip(bufs) {
            if copy.escaped {
                buf.make_mut()[..4].copy_from_slice(&MAGIC.to_be_bytes());
            }
            blocks.push((copy.home, buf));
        }
        blocks.sort_unstable_by_key(|(home, _)| *home);
        wait_all(&submit_writes(queue, block_size, blocks, tag))?;
    }
    Ok(())
}

/// Where a log starts: the block (0: it is empty) and the number of the transaction there.
#[derive(Clone, Copy)]
pub(crate) struct LogStart {
    pub(crate) block: u32,
    pub(crate) sequence: Tid,
}

/// Makes all blocks durable that were written before, then sets the start of the log in the superblock.
pub(crate) fn mark_start(
    queue: &Queue,
    block_size: BlockSize,
    map: &JournalMap,
    superblock: &Superblock,
    start: LogStart,
    block0: &mut Buf,
    tag: IoTag,
) -> Result<(), JournalError> {
    let mut raw = superblock.raw.clone();
    assert_ne!(raw.start.get(), 0, "only a log with content is replayed");
    raw.start = Be32::new(start.block);
    raw.sequence = Be32::new(start.sequence.0);
    raw.seal();
    block0.make_mut()[..size_of_val(&raw)].copy_from_slice(raw.as_bytes());
    let (at, _) = map.locate(0);
    let bio = Bio::write(block_size.offset_of(at), vec![block0.clone()]).preflush_and_fua();
    Ok(queue.submit(bio, tag).wait()?)
}
