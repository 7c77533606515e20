//! The block cache: metadata buffers, dirty file data, the timing of write-back, and eviction.
//!
//! The unit is one file-system block. Content is copy-on-write ([`steadfs_block::Buf`]): a commit or a write in flight
//! holds a clone, and a later change makes its own copy. So no task waits for stable pages, and no buffer is frozen.
//!
//! This crate allocates no disk space and knows no format.

#![forbid(unsafe_code)]

mod clustering;
mod commit_batch;
mod early;
mod engine;
mod flush_guard;
mod mapping;
mod meta;
mod read_ahead;
mod reading;
mod sizes;
mod write_error;
mod writeback;

pub use clustering::{ClusterMark, FsyncClustering, parse_cluster_files};
pub use commit_batch::{BatchedCommit, CommitBatch, wait_for_callers};
pub use engine::{
    Engine, FileInFlight, FlushLock, Intent, MapAction, MapRequest, MappedPiece, Piece, Settlement,
    WritebackFile, WritebackFs, WritebackLimits, WritebackRun,
};
pub use flush_guard::FlushGuard;
pub use mapping::{CacheWrite, CollectedBlock, Mapping, Written};
pub use meta::{MetaBuf, MetaCache, MetaMut, MetaStats};
pub use read_ahead::ReadAheadWindow;
pub use reading::{BlockSource, FileRead, FileReader, READ_BYTES_MAX, ReadPart};
pub use sizes::CacheSizes;
pub use write_error::WriteError;
pub use writeback::{
    Backing, DirtyEpoch, DirtyFile, ParkedFlusher, Writeback, WritebackOptions, WritebackReason,
};
