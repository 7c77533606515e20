//! The commit record: the block that commits a transaction.

use steadfs_base::checksum::crc32c;
use steadfs_base::endian::{Be32, Be64};
use steadfs_base::{Tid, Timestamp};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Checksum, Format, Header, block_type};

/// `commit_header`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCommit {
    header: Header,
    /// `h_chksum_type`: 1 (CRC-32) with checksum version 1, else 0.
    sum_type: u8,
    /// `h_chksum_size`: 4 with checksum version 1, else 0.
    sum_size: u8,
    padding: [u8; 2],
    /// `h_chksum`: the first word is used.
    sums: [Be32; 8],
    /// `h_commit_sec`.
    seconds: Be64,
    /// `h_commit_nsec`.
    nanoseconds: Be32,
}

const _: () = assert!(size_of::<RawCommit>() == 60);
/// Offset of the CRC-32C in the record.
const SUM_AT: usize = 16;
const CRC32: u8 = 1;
const CRC32_SIZE: u8 = 4;

/// A commit record, read from the log.
#[derive(Clone, Copy, Debug)]
pub struct CommitRecord {
    /// Nanoseconds since the epoch; only compared.
    pub time: u64,
    /// The checksum agrees with `transaction_sum` (version 1) or with the record (2 and 3).
    pub valid: bool,
}

impl CommitRecord {
    /// Reads the record in `block`. `transaction_sum` is the CRC-32 over the transaction's
    /// descriptors and logged blocks; only checksum version 1 uses it.
    pub fn parse(format: &Format, block: &[u8], transaction_sum: u32) -> Self {
        let (raw, _) = RawCommit::read_from_prefix(block).expect("a block is longer than a record");
        let time = raw
            .seconds
            .get()
            .wrapping_mul(1_000_000_000)
            .wrapping_add(u64::from(raw.nanoseconds.get()));
        let found = raw.sums[0].get();
        let valid = match format.checksum {
            Checksum::None => true,
            Checksum::V1 => {
                let unused = raw.sum_type == 0 && raw.sum_size == 0 && found == 0;
                let matches =
                    raw.sum_type == CRC32 && raw.sum_size == CRC32_SIZE && found == transaction_sum;
                unused || matches
            }
            Checksum::V2 | Checksum::V3 => {
                // The sum covers the whole block, but only the record's sector matters: a block that is
                // torn after it is committed, too.
                let (record, rest) = block.split_at(size_of::<RawCommit>());
                found == record_sum(format, record, rest)
                    || found == record_sum(format, record, &vec![0; rest.len()])
            }
        };
        Self { time, valid }
    }
}

/// CRC-32C of the record, with zeros in place of the checksum.
fn record_sum(format: &Format, record: &[u8], rest: &[u8]) -> u32 {
    let before = crc32c(format.seed, &record[..SUM_AT]);
    let record = crc32c(crc32c(before, &[0; 4]), &record[SUM_AT + 4..]);
    crc32c(record, rest)
}

/// Fills `block`, all zeros, with the commit record of `tid`.
pub fn build_commit(
    format: &Format,
    tid: Tid,
    time: Timestamp,
    transaction_sum: u32,
    block: &mut [u8],
) {
    let mut raw = RawCommit {
        header: Header::new(block_type::COMMIT, tid),
        sum_type: 0,
        sum_size: 0,
        padding: [0; 2],
        sums: [Be32::new(0); 8],
        seconds: Be64::new(u64::try_from(time.secs).unwrap_or(0)),
        nanoseconds: Be32::new(time.nanos),
    };
    if format.checksum == Checksum::V1 {
        raw.sum_type = CRC32;
        raw.sum_size = CRC32_SIZE;
        raw.sums[0] = Be32::new(transaction_sum);
    }
    block[..size_of::<RawCommit>()].copy_from_slice(raw.as_bytes());
    if format.sealed() {
        let (record, rest) = block.split_at(size_of::<RawCommit>());
        let sum = record_sum(format, record, rest);
        block[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_be_bytes());
    }
}
