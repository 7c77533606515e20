//! The cache of blocks: metadata buffers, dirty file data, write-back timing and reclaim.
//!
//! The unit is one file-system block. Content is copy-on-write ([`steadfs_block::Buf`]): a commit or
//! a write in flight holds a clone, a later change makes its own copy. So nobody waits for a
//! block to become stable, and nothing needs freezing.
//!
//! This room allocates no disk space and knows no format.

mod clustering;
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

pub use clustering::FsyncClustering;
pub use engine::{
    Engine, FlushLock, FlushWaiter, Intent, MapAction, MapRequest, MappedPiece, Piece, Settlement,
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
