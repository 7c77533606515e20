//! NAT and SIT journals: the newest entries, stored in unused space of summary blocks (`struct f2fs_journal`). They
//! override the entries in the tables.

use steadfs_base::endian::{Le16, Le32};
use zerocopy::{FromBytes, IntoBytes};

use super::num::idx16;
use super::raw::{RawNatJournalEntry, RawSitEntry, RawSitJournalEntry};
use super::{DiskError, Layout, NatEntry, Nid, Result, SegNo, SitEntry, Structure};

/// Bytes of a journal (`SUM_JOURNAL_SIZE`).
pub const SIZE: usize = 507;
/// Entries of a NAT journal (`NAT_JOURNAL_ENTRIES`).
pub const NAT_ENTRIES: usize = (SIZE - 2) / size_of::<RawNatJournalEntry>();
/// Entries of a SIT journal (`SIT_JOURNAL_ENTRIES`).
pub const SIT_ENTRIES: usize = (SIZE - 2) / size_of::<RawSitJournalEntry>();

const _: () = assert!(NAT_ENTRIES == 38 && SIT_ENTRIES == 6);

fn entries(bytes: &[u8; SIZE], what: Structure, limit: usize, size: usize) -> Result<&[u8]> {
    let (count, rest) = Le16::ref_from_prefix(bytes).expect("a journal begins with its count");
    let count = count.get();
    if idx16(count) > limit {
        return Err(DiskError::field(
            what,
            "journal count",
            count,
            "more than fit",
        ));
    }
    Ok(&rest[..idx16(count) * size])
}

/// Decodes a NAT journal; invalid ids are an error.
pub fn parse_nat(layout: &Layout, bytes: &[u8; SIZE]) -> Result<Vec<(Nid, NatEntry)>> {
    const ENTRY: usize = size_of::<RawNatJournalEntry>();
    let list = entries(bytes, Structure::Nat, NAT_ENTRIES, ENTRY)?;
    list.chunks_exact(ENTRY)
        .map(|chunk| {
            let raw = RawNatJournalEntry::ref_from_bytes(chunk).expect("a chunk of its size");
            let nid = Nid(raw.nid.get());
            if nid.0 == 0 || nid.0 >= layout.max_nid {
                let rule = "not a valid node id";
                return Err(DiskError::field(Structure::Nat, "journal nid", nid.0, rule));
            }
            Ok((nid, NatEntry::decode(&raw.ne)))
        })
        .collect()
}

/// Encodes a NAT journal of at most [`NAT_ENTRIES`] entries.
pub fn encode_nat(list: &[(Nid, NatEntry)]) -> [u8; SIZE] {
    let chunks = list.iter().map(|(nid, entry)| RawNatJournalEntry {
        nid: Le32::new(nid.0),
        ne: entry.encode(),
    });
    encode(list.len(), NAT_ENTRIES, chunks)
}

/// Decodes a SIT journal; segments that do not exist are an error.
pub fn parse_sit(layout: &Layout, bytes: &[u8; SIZE]) -> Result<Vec<(SegNo, SitEntry)>> {
    const ENTRY: usize = size_of::<RawSitJournalEntry>();
    let list = entries(bytes, Structure::Sit, SIT_ENTRIES, ENTRY)?;
    list.chunks_exact(ENTRY)
        .map(|chunk| {
            let raw = RawSitJournalEntry::ref_from_bytes(chunk).expect("a chunk of its size");
            let segment = SegNo(raw.segno.get());
            if segment.0 >= layout.main_segments {
                let rule = "not a segment";
                return Err(DiskError::field(
                    Structure::Sit,
                    "journal segno",
                    segment.0,
                    rule,
                ));
            }
            Ok((segment, SitEntry::decode(&raw.se, segment)?))
        })
        .collect()
}

/// The raw entries of a SIT journal, for the checker.
pub fn raw_sit(bytes: &[u8; SIZE]) -> Result<Vec<(SegNo, RawSitEntry)>> {
    const ENTRY: usize = size_of::<RawSitJournalEntry>();
    let list = entries(bytes, Structure::Sit, SIT_ENTRIES, ENTRY)?;
    let raw = |chunk| RawSitJournalEntry::ref_from_bytes(chunk).expect("a chunk of its size");
    Ok(list
        .chunks_exact(ENTRY)
        .map(raw)
        .map(|entry| (SegNo(entry.segno.get()), entry.se.clone()))
        .collect())
}

/// Encodes a SIT journal of at most [`SIT_ENTRIES`] entries.
pub fn encode_sit(list: &[(SegNo, SitEntry)]) -> [u8; SIZE] {
    let chunks = list.iter().map(|(segment, entry)| RawSitJournalEntry {
        segno: Le32::new(segment.0),
        se: entry.encode(),
    });
    encode(list.len(), SIT_ENTRIES, chunks)
}

fn encode<T: IntoBytes + zerocopy::Immutable>(
    count: usize,
    limit: usize,
    chunks: impl Iterator<Item = T>,
) -> [u8; SIZE] {
    assert!(count <= limit, "the entries fit in the journal");
    let mut out = [0; SIZE];
    let count = u16::try_from(count).expect("the limit is small");
    out[..2].copy_from_slice(&count.to_le_bytes());
    for (chunk, room) in chunks.zip(out[2..].chunks_exact_mut(size_of::<T>())) {
        room.copy_from_slice(chunk.as_bytes());
    }
    out
}
