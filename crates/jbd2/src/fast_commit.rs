//! Fast commits become a transaction of the log, which is then replayed like any other.
//!
//! **Problem.** The changes of fast commits are applied to several blocks, after a crash all of them or none. Applied in
//! place, half of them would be there after a second crash, and the fast commits do not fit what they find then.
//!
//! **Rule.** The log is replayed first and shortened to nothing: it starts at its own end, with the number of the
//! transaction that the fast commits belong to, and they stay valid. Then the changed blocks are logged as that
//! transaction. Its commit record makes the fast commits invalid, as they belong to no later transaction.

use std::collections::BTreeMap;

use steadfs_base::{BlockSize, DevBlock, IoTag};
use steadfs_block::{Buf, Queue};

use crate::log_writer::encoded_len;
use crate::one_transaction::write_transaction;
use crate::recover::{
    LoadedLog, LogStart, RecoverySummary, check_home_locations, load_superblock, mark_start,
};
use crate::space::LogRing;
use crate::{JournalError, JournalMap};

/// Logs the blocks that the fast commits change, as the transaction that the fast commits belong to. A later
/// [`recover`](crate::recover()) replays it. The log has content, and
/// [`Recovered::fast_commits`](crate::Recovered::fast_commits) were found behind it. `at_home` is called when the log's
/// own blocks are at home and before any of its blocks is overwritten: nothing may read from it afterwards.
///
/// # Errors
/// Those of [`recover`](crate::recover()); [`JournalError::Unsupported`] if the log is too small for the blocks. In all
/// cases the log and the fast commits are valid as before.
pub fn log_fast_commits(
    queue: &Queue,
    block_size: BlockSize,
    map: &JournalMap,
    changed: &BTreeMap<DevBlock, Buf>,
    at_home: impl FnOnce(),
    tag: IoTag,
) -> Result<(), JournalError> {
    let (mut block0, superblock) = load_superblock(queue, block_size, map, tag)?;
    let format = &superblock.format;
    let mut summary = RecoverySummary::default();
    let log = LoadedLog::load(queue, block_size, map, &superblock, &mut summary, tag)?;
    check_home_locations(queue, block_size, map, changed.keys())?;
    let too_far = changed.keys().any(|block| block.0 > u32::MAX.into());
    let ring = LogRing::new(superblock.first, superblock.last);
    let len = encoded_len(format, changed.len(), 0) + 1;
    if len > ring.capacity() as usize || (too_far && !format.wide) {
        return Err(JournalError::Unsupported(format!(
            "fast commits that change {} blocks, which the journal cannot hold",
            changed.len()
        )));
    }
    log.replay(queue, block_size, map, tag)?;
    let (head, tid) = (log.found.head, log.found.end);
    let start = LogStart {
        block: head,
        sequence: tid,
    };
    mark_start(queue, block_size, map, &superblock, start, &mut block0, tag)?;
    at_home();
    write_transaction(queue, format, map, (&ring, head), tid, changed, tag)
}
