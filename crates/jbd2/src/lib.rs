//! The jbd2 journal: transactions, log space, commit, reclaim, revoke and replay.
//!
//! **Problem.** An operation changes several metadata blocks. After a crash either all of its changes
//! or none must be visible, and an acknowledged fsync must survive.
//!
//! **Rule.** Metadata changes only through a [`Handle`] (write-ahead logging). Handles of the same few
//! seconds share a transaction. It is written to the log and is committed once its commit record is
//! durable. Only then are its blocks written to their home locations, and only when they are durable
//! there does the log tail move past the transaction.
//!
//! **Data is written first.** A file system writes file data and waits for it *before* it begins the
//! handle that maps the blocks: blocks are allocated in memory, written, and only then entered in the
//! extent tree. So no block that a committed transaction refers to shows an earlier owner's content,
//! and a commit has no ordered-data step as the kernel's has. The exception is a lone fsync, which has
//! data and log blocks written at the same time and undoes its change if the data fails (`beside.rs`).
//!
//! Paths through the crate: [`Journal::begin`] (`journal.rs`, `transaction.rs`) returns a [`Handle`]
//! (`handle.rs`); [`Journal::commit`] (`commit.rs`, `log_writer.rs`) makes it durable;
//! `reclaim.rs` and `lists.rs` free log space; [`recover()`] (`recover.rs`) replays the log, and
//! [`log_fast_commits`] (`fast_commit.rs`) makes a transaction of the fast commits behind it, which `fast_write.rs`
//! writes. `space.rs` and
//! `policy.rs` are pure arithmetic. The format is the crate `steadfs-jbd2-format`.

#![forbid(unsafe_code)]

mod beside;
mod callers;
mod commit;
mod config;
mod error;
mod fast_commit;
mod fast_write;
mod handle;
mod io;
mod journal;
mod lists;
mod log_writer;
mod one_transaction;
mod overlay;
mod policy;
mod reclaim;
mod recover;
mod sb;
mod scratch;
mod space;
mod stats;
mod tasks;
mod transaction;
mod worker;

pub use commit::Durable;
pub use config::{JournalConfig, JournalTuning};
pub use error::JournalError;
pub use fast_commit::log_fast_commits;
pub use fast_write::{FastCommitRefusal, FastCommitStats};
pub use handle::Handle;
pub use journal::Journal;
pub use one_transaction::OneTransaction;
pub use overlay::{Overlay, OverlayDevice};
pub use policy::ReclaimPolicy;
pub use recover::{Recover, Recovered, RecoverySummary, recover};
pub use scratch::ScratchDevice;
pub use stats::{JournalStats, WaitStats};
pub use steadfs_jbd2_format::{
    Checksum, FastCommitChange, FastCommitRecord, FastCommits, JournalMap, NameChange,
};

#[cfg(test)]
mod tests;
