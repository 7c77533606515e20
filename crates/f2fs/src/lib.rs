//! f2fs on its real on-disk format.

pub mod disk;
