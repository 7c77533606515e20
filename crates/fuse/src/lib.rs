//! The FUSE protocol: kernel requests in, replies out.
