//! The cache of blocks: metadata buffers, dirty file data, write-back timing and reclaim.
//!
//! The unit is one file-system block. Content is copy-on-write ([`steadfs_block::Buf`]): a commit or
//! a write in flight holds a clone, a later change makes its own copy. So nobody waits for a
//! block to become stable, and nothing needs freezing.
//!
//! This room allocates no disk space and knows no format.

mod along;
mod early;
mod flushing;
mod mapping;
mod meta;
mod reading;
mod sizes;
mod stream;
mod writeback;

pub use along::Along;
pub use flushing::Flushing;
pub use mapping::{CacheWrite, Mapping, Taken, Written};
pub use meta::{MetaBuf, MetaCache, MetaMut, MetaStats};
pub use reading::{FileReader, Part, READ_BYTES_MAX, Reading, Source};
pub use sizes::CacheSizes;
pub use stream::Stream;
pub use writeback::{
    Backing, DirtyEpoch, DirtyFile, HeldFlusher, Why, Writeback, WritebackOptions,
};
