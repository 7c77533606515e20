//! The cache of blocks: metadata buffers, dirty file data, write-back and reclaim.
