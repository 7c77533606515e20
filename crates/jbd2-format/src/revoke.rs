//! Revoke blocks: home locations whose copies in this and older transactions must not be replayed.

use steadfs_base::endian::Be32;
use steadfs_base::{DevBlock, Tid};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Format, Header, block_type};

/// `jbd2_journal_revoke_header_s`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRevoke {
    header: Header,
    /// `r_count`: bytes used in the block, this header included.
    count: Be32,
}

pub(crate) const REVOKE_HEADER_LEN: usize = 16;
const _: () = assert!(size_of::<RawRevoke>() == REVOKE_HEADER_LEN);

/// The blocks that a revoke block lists; `None` if its count is invalid.
pub fn parse_revoke(format: &Format, block: &[u8]) -> Option<Vec<DevBlock>> {
    let (raw, _) = RawRevoke::read_from_prefix(block).ok()?;
    let used = usize::try_from(raw.count.get()).ok()?;
    if used > block.len() - format.tail_len() {
        return None;
    }
    let entries = block.get(REVOKE_HEADER_LEN..used)?;
    let blocks = entries.chunks_exact(format.revoke_len()).map(|entry| {
        let number = entry
            .iter()
            .fold(0, |number, &byte| number << 8 | u64::from(byte));
        DevBlock(number)
    });
    Some(blocks.collect())
}

/// Fills `block`, all zeros, with a revoke block of `tid`. `revoked` has at most
/// [`Format::revokes_per_block`] entries.
pub fn build_revoke(format: &Format, tid: Tid, revoked: &[DevBlock], block: &mut [u8]) {
    let used = REVOKE_HEADER_LEN + revoked.len() * format.revoke_len();
    assert!(
        !revoked.is_empty() && used <= block.len() - format.tail_len(),
        "the entries fit one revoke block"
    );
    let raw = RawRevoke {
        header: Header::new(block_type::REVOKE, tid),
        count: Be32::new(u32::try_from(used).expect("a block is shorter than 4 GiB")),
    };
    block[..REVOKE_HEADER_LEN].copy_from_slice(raw.as_bytes());
    let entries = block[REVOKE_HEADER_LEN..used].chunks_exact_mut(format.revoke_len());
    for (entry, home) in entries.zip(revoked) {
        let bytes = home.0.to_be_bytes();
        assert!(
            format.wide || home.0 >> 32 == 0,
            "the number fits the entry"
        );
        entry.copy_from_slice(&bytes[bytes.len() - format.revoke_len()..]);
    }
    format.seal(block);
}
