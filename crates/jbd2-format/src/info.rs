//! The journal's superblock for mkfs and for inspection, without an open journal.

use steadfs_base::checksum::crc32c;
use steadfs_base::endian::Be32;
use steadfs_base::{BlockSize, Tid};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::superblock::{
    ASYNC_COMMIT, COMPAT_CHECKSUM, CSUM_V2, CSUM_V3, DEFAULT_FAST_COMMIT_BLOCKS, FAST_COMMIT,
    REVOKE, WIDE,
};
use crate::FormatError;
use crate::{Header, MAGIC, RawSuperblock, block_type};

/// Parameters of a new journal.
#[derive(Clone, Copy, Debug)]
pub struct NewJournal {
    /// Bytes in a block.
    pub block_size: BlockSize,
    /// Blocks in the journal, including the superblock and the fast-commit area.
    pub blocks: u32,
    /// Blocks of them for the fast-commit area, if the kernel uses one.
    pub fast_commit_blocks: u32,
    /// The volume's UUID; an external journal's own one.
    pub uuid: [u8; 16],
    /// First block of the log: 1, or behind the superblocks of an external journal.
    pub first: u32,
    /// Volumes that have it: 1; none has a new external one.
    pub users: u32,
}

impl NewJournal {
    /// The first 1024 bytes of the journal's block 0: an empty log without features (they are set when the
    /// journal is opened). The rest of the block is zeros.
    pub fn superblock(&self) -> [u8; 1024] {
        let mut raw = RawSuperblock::new_zeroed();
        raw.header = Header::new(block_type::SUPERBLOCK_V2, Tid(0));
        raw.block_size = Be32::new(1 << self.block_size.bits());
        raw.max_len = Be32::new(self.blocks);
        raw.first = Be32::new(self.first);
        raw.sequence = Be32::new(1);
        raw.users = Be32::new(self.users);
        raw.uuid = self.uuid;
        raw.fast_commit_blocks = Be32::new(self.fast_commit_blocks);
        let mut out = [0; 1024];
        out.copy_from_slice(raw.as_bytes());
        out
    }
}

/// The fields of a journal's superblock, for display. Only its magic is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalInfo {
    /// Whether it is a version 2 superblock, the one with features.
    pub version2: bool,
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks in the journal.
    pub blocks: u32,
    /// First block of the log.
    pub first: u32,
    /// Number of the first transaction in the log, or of the next one.
    pub sequence: u32,
    /// Block at which the first transaction starts; 0: the log is empty.
    pub start: u32,
    /// The error number, positive, of an abort.
    pub aborted: Option<u32>,
    /// Names of the features, as e2fsprogs prints them.
    pub features: Vec<String>,
    /// Blocks of the fast-commit area.
    pub fast_commit_blocks: u32,
    /// The journal's UUID.
    pub uuid: [u8; 16],
    /// Number of volumes that share it.
    pub users: u32,
    /// `s_checksum_type` and `s_checksum`.
    pub checksum: (u8, u32),
    /// The checksum is correct, or there is none.
    pub checksum_is_right: bool,
}

impl JournalInfo {
    /// Decodes the start of a journal's block 0, at least 1024 bytes.
    pub fn parse(block: &[u8]) -> Result<Self, FormatError> {
        let corrupt = |what: &str| FormatError::Corrupt(what.to_owned());
        let (raw, _) = RawSuperblock::read_from_prefix(block)
            .map_err(|_| corrupt("superblock is shorter than 1024 bytes"))?;
        if raw.header.magic.get() != MAGIC {
            return Err(corrupt("superblock has no journal magic"));
        }
        let version2 = raw.header.block_type.get() == block_type::SUPERBLOCK_V2;
        let (compat, incompat, ro_compat) = if version2 {
            (raw.compat.get(), raw.incompat.get(), raw.ro_compat.get())
        } else {
            (0, 0, 0)
        };
        let has_sum = incompat & (CSUM_V2 | CSUM_V3) != 0;
        let mut zeroed = raw.clone();
        zeroed.checksum = Be32::new(0);
        Ok(Self {
            version2,
            block_size: raw.block_size.get(),
            blocks: raw.max_len.get(),
            first: raw.first.get(),
            sequence: raw.sequence.get(),
            start: raw.start.get(),
            aborted: match raw.errno.get() {
                0 => None,
                errno => Some(errno.cast_signed().unsigned_abs()),
            },
            features: names(compat, incompat, ro_compat),
            fast_commit_blocks: match raw.fast_commit_blocks.get() {
                0 if incompat & FAST_COMMIT != 0 => DEFAULT_FAST_COMMIT_BLOCKS,
                blocks => blocks,
            },
            uuid: raw.uuid,
            users: raw.users.get(),
            checksum: (raw.checksum_type, raw.checksum.get()),
            checksum_is_right: !has_sum || crc32c(!0, zeroed.as_bytes()) == raw.checksum.get(),
        })
    }
}

/// Names as in e2fsprogs, also for bits without a name.
fn names(compat: u32, incompat: u32, ro_compat: u32) -> Vec<String> {
    const INCOMPAT: [(u32, &str); 6] = [
        (REVOKE, "journal_incompat_revoke"),
        (WIDE, "journal_64bit"),
        (ASYNC_COMMIT, "journal_async_commit"),
        (CSUM_V2, "journal_checksum_v2"),
        (CSUM_V3, "journal_checksum_v3"),
        (FAST_COMMIT, "fast_commit"),
    ];
    let of = |word: u32, letter: char, known: &[(u32, &str)]| -> Vec<String> {
        (0..u32::BITS)
            .filter(|bit| word & (1 << bit) != 0)
            .map(
                |bit| match known.iter().find(|(value, _)| *value == 1 << bit) {
                    Some((_, name)) => (*name).to_owned(),
                    None => format!("FEATURE_{letter}{bit}"),
                },
            )
            .collect()
    };
    let mut all = of(compat, 'C', &[(COMPAT_CHECKSUM, "journal_checksum")]);
    all.extend(of(incompat, 'I', &INCOMPAT));
    all.extend(of(ro_compat, 'R', &[]));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Superblock;

    #[test]
    fn a_new_superblock_is_an_empty_log() {
        let new = NewJournal {
            block_size: BlockSize::new(2048).unwrap(),
            blocks: 1024,
            fast_commit_blocks: 0,
            uuid: [7; 16],
            first: 1,
            users: 1,
        };
        let bytes = new.superblock();
        let parsed = Superblock::parse(&bytes, new.block_size, 1024).unwrap();
        assert_eq!((parsed.first, parsed.last), (1, 1024));
        assert_eq!(parsed.sequence(), Tid(1));
        let info = JournalInfo::parse(&bytes).unwrap();
        assert_eq!((info.blocks, info.start, info.users), (1024, 0, 1));
        assert!(info.version2 && info.features.is_empty() && info.checksum_is_right);
        assert!(JournalInfo::parse(&[0; 1024]).is_err());
        assert!(JournalInfo::parse(&bytes[..1023]).is_err());
    }
}
