//! Detection of ext4's fast commits.

use steadfs_base::Tid;
use steadfs_base::endian::{Le16, Le32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// First tag of a fast commit (`ext4_fc_tl` and `ext4_fc_head`).
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    /// `fc_tag`.
    tag: Le16,
    /// `fc_len`.
    len: Le16,
    /// `fc_features`.
    features: Le32,
    /// `fc_tid`.
    tid: Le32,
}

const _: () = assert!(size_of::<RawHead>() == 12);
/// `EXT4_FC_TAG_HEAD`.
const HEAD: u16 = 9;

/// Whether `block`, the first of the fast-commit area, begins fast commits that follow the transactions
/// before `next`: they have the number of the next transaction.
pub fn starts_fast_commit(block: &[u8], next: Tid) -> bool {
    RawHead::read_from_prefix(block).is_ok_and(|(head, _)| {
        head.tag.get() == HEAD && usize::from(head.len.get()) >= 8 && head.tid.get() == next.0
    })
}
