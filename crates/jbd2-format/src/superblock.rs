//! The journal's superblock: its first block.

use steadfs_base::checksum::crc32c;
use steadfs_base::endian::Be32;
use steadfs_base::{BlockSize, Tid};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;
use crate::{Checksum, Format, Header, MAGIC, block_type};

/// Compatible feature CHECKSUM (`JBD2_FEATURE_COMPAT_CHECKSUM`).
pub(crate) const COMPAT_CHECKSUM: u32 = 1;
/// Incompatible features (`JBD2_FEATURE_INCOMPAT_…`).
pub(crate) const REVOKE: u32 = 1;
pub(crate) const WIDE: u32 = 2;
pub(crate) const ASYNC_COMMIT: u32 = 4;
pub(crate) const CSUM_V2: u32 = 8;
pub(crate) const CSUM_V3: u32 = 16;
pub(crate) const FAST_COMMIT: u32 = 32;
const KNOWN_INCOMPAT: u32 = REVOKE | WIDE | ASYNC_COMMIT | CSUM_V2 | CSUM_V3 | FAST_COMMIT;

/// `s_checksum_type` of CRC-32C (`JBD2_CRC32C_CHKSUM`).
const CRC32C_TYPE: u8 = 4;
/// Blocks of the fast-commit area if `s_num_fc_blks` is 0.
pub(crate) const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// Unused block between the log and the fast-commit area.
const FAST_COMMIT_GAP: u32 = 1;
/// Smallest supported log in blocks (mke2fs makes no journal of less than 1024 blocks).
const MIN_LOG_BLOCKS: u32 = 32;

/// Smallest log beside a fast-commit area, the superblock included (`JBD2_MIN_JOURNAL_BLOCKS`).
const MIN_LOG_BLOCKS_BESIDE_AREA: u32 = 1024;

/// `journal_superblock_s`, 1024 bytes at the start of the journal's block 0.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawSuperblock {
    /// `s_header`.
    pub header: Header,
    /// `s_blocksize`, in bytes.
    pub block_size: Be32,
    /// `s_maxlen`: blocks in the journal, this one and the fast-commit area included.
    pub max_len: Be32,
    /// `s_first`: first block of the log.
    pub first: Be32,
    /// `s_sequence`: number of the first transaction in the log, or of the next one.
    pub sequence: Be32,
    /// `s_start`: where the first transaction starts; 0: the log is empty.
    pub start: Be32,
    /// `s_errno`: the error the journal was aborted with, negative; 0: none.
    pub errno: Be32,
    /// `s_feature_compat`; this and all that follows only in version 2.
    pub compat: Be32,
    /// `s_feature_incompat`.
    pub incompat: Be32,
    /// `s_feature_ro_compat`.
    pub ro_compat: Be32,
    /// `s_uuid`.
    pub uuid: [u8; 16],
    /// `s_nr_users`: file systems that share the journal.
    pub users: Be32,
    /// `s_dynsuper`.
    pub dynsuper: Be32,
    /// `s_max_transaction`.
    pub max_transaction: Be32,
    /// `s_max_trans_data`.
    pub max_transaction_data: Be32,
    /// `s_checksum_type`.
    pub checksum_type: u8,
    padding_a: [u8; 3],
    /// `s_num_fc_blks`.
    pub fast_commit_blocks: Be32,
    /// `s_head`: where the log ends, kept by some versions in a clean journal.
    pub head: Be32,
    padding_b: [u8; 160],
    /// `s_checksum`: CRC-32C of the 1024 bytes, this word as zeros.
    pub checksum: Be32,
    /// `s_users`: UUIDs of the file systems that share the journal.
    pub user_ids: [u8; 768],
}

const _: () = assert!(size_of::<RawSuperblock>() == 1024);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, checksum_type) == 0x50);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, fast_commit_blocks) == 0x54);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, checksum) == 0xFC);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, user_ids) == 0x100);

impl RawSuperblock {
    fn sum(&self) -> u32 {
        let mut copy = self.clone();
        copy.checksum = Be32::new(0);
        crc32c(!0, copy.as_bytes())
    }

    /// Sets the checksum, if the features require one.
    pub fn seal(&mut self) {
        if self.incompat.get() & (CSUM_V2 | CSUM_V3) != 0 && self.is_v2() {
            self.checksum_type = CRC32C_TYPE;
            self.checksum = Be32::new(self.sum());
        }
    }

    /// Whether fast commits may lie behind the log.
    pub fn has_fast_commits(&self) -> bool {
        self.incompat.get() & FAST_COMMIT != 0
    }

    /// Sets whether fast commits may lie behind the log.
    pub fn mark_fast_commits(&mut self, on: bool) {
        let others = self.incompat.get() & !FAST_COMMIT;
        self.incompat = Be32::new(others | if on { FAST_COMMIT } else { 0 });
    }

    fn is_v2(&self) -> bool {
        self.header.block_type.get() == block_type::SUPERBLOCK_V2
    }
}

/// Makes an external journal the one of the volume with this UUID, in the journal's superblock.
///
/// # Errors
/// It is none that can be, or another volume has it.
pub fn add_user(block: &mut [u8], volume: [u8; 16]) -> Result<(), String> {
    let (raw, _) = RawSuperblock::read_from_prefix(block).map_err(|_| "it is too short")?;
    let mut raw: RawSuperblock = raw;
    if raw.header.magic.get() != crate::MAGIC || !raw.is_v2() {
        return Err("its log has no superblock".to_owned());
    }
    if raw.users.get() != 0 && raw.user_ids[..16] != volume {
        return Err("another volume has this journal".to_owned());
    }
    raw.users = Be32::new(1);
    raw.user_ids[..16].copy_from_slice(&volume);
    raw.seal();
    block[..size_of_val(&raw)].copy_from_slice(raw.as_bytes());
    Ok(())
}

/// A verified superblock.
#[derive(Clone)]
pub struct Superblock {
    /// As stored, for writing it back.
    pub raw: RawSuperblock,
    /// First block of the log.
    pub first: u32,
    /// The block after the log's last one.
    pub last: u32,
    /// First block of the fast-commit area, if there is one.
    pub fast_commit: Option<u32>,
    /// Layout of the other blocks.
    pub format: Format,
    /// A commit record may be written before its transaction's blocks are.
    pub async_commit: bool,
}

impl Superblock {
    /// Verifies the journal's block 0. `len` is the number of blocks of the journal's inode.
    pub fn parse(block: &[u8], block_size: BlockSize, len: u32) -> Result<Self, FormatError> {
        let (mut raw, _) = RawSuperblock::read_from_prefix(block)
            .map_err(|_| corrupt("superblock is shorter than 1024 bytes"))?;
        if raw.header.magic.get() != MAGIC {
            return Err(corrupt("superblock has no journal magic"));
        }
        match raw.header.block_type.get() {
            block_type::SUPERBLOCK_V2 => check_features(&raw)?,
            block_type::SUPERBLOCK_V1 => {
                raw.compat = Be32::new(0);
                raw.incompat = Be32::new(0);
                raw.ro_compat = Be32::new(0);
            }
            other => {
                return Err(corrupt(format!(
                    "block 0 has type {other}, not a superblock's"
                )));
            }
        }
        let format = format_of(&raw, block_size);
        if usize::try_from(raw.block_size.get()) != Ok(block_size.bytes()) {
            let found = raw.block_size.get();
            return Err(corrupt(format!(
                "blocks of {found} bytes in a volume with blocks of {} bytes",
                block_size.bytes()
            )));
        }
        let incompat = raw.incompat.get();
        let (last, fast_commit) = log_end(&raw, len)?;
        let first = raw.first.get();
        if first == 0 || last.saturating_sub(first) < MIN_LOG_BLOCKS {
            return Err(corrupt(format!(
                "log from block {first} to {last} is too short"
            )));
        }
        let start = raw.start.get();
        if start != 0 && !(first..last).contains(&start) {
            return Err(corrupt(format!("start {start} is outside the log")));
        }
        Ok(Self {
            raw,
            first,
            last,
            fast_commit,
            format,
            async_commit: incompat & ASYNC_COMMIT != 0,
        })
    }

    /// Sets the features that our transactions need: revokes, 64-bit block numbers and the given checksum
    /// version. Only while the log is empty.
    pub fn set_features(&mut self, wide: bool, checksum: Option<Checksum>) {
        let raw = &mut self.raw;
        assert_eq!(
            raw.start.get(),
            0,
            "features change only while the log is empty"
        );
        if !raw.is_v2() {
            // Version 1 has no features; the content of these fields is undefined.
            raw.header.block_type = Be32::new(block_type::SUPERBLOCK_V2);
            let features = std::mem::offset_of!(RawSuperblock, compat);
            raw.as_mut_bytes()[features..].fill(0);
            raw.users = Be32::new(1);
        }
        let mut incompat = raw.incompat.get() | REVOKE;
        if wide {
            incompat |= WIDE;
        }
        let mut compat = raw.compat.get();
        if let Some(checksum) = checksum {
            incompat &= !(CSUM_V2 | CSUM_V3 | ASYNC_COMMIT);
            compat &= !COMPAT_CHECKSUM;
            match checksum {
                Checksum::None => {}
                Checksum::V1 => compat |= COMPAT_CHECKSUM,
                Checksum::V2 => incompat |= CSUM_V2,
                Checksum::V3 => incompat |= CSUM_V3,
            }
            raw.checksum_type = 0;
            raw.checksum = Be32::new(0);
        }
        raw.incompat = Be32::new(incompat);
        raw.compat = Be32::new(compat);
        self.format = format_of(raw, self.format.block_size);
    }

    /// Ends the log before the fast-commit area, if enough of it is left. Only while the log is empty.
    pub fn use_fast_commits(&mut self) {
        assert_eq!(
            self.raw.start.get(),
            0,
            "the log's end changes only while it is empty"
        );
        let mut raw = self.raw.clone();
        raw.mark_fast_commits(true);
        if let Ok((last, area)) = log_end(&raw, raw.max_len.get())
            && last >= MIN_LOG_BLOCKS_BESIDE_AREA
        {
            (self.raw, self.last, self.fast_commit) = (raw, last, area);
        }
    }

    /// The first transaction in the log, or the next one.
    pub fn sequence(&self) -> Tid {
        Tid(self.raw.sequence.get())
    }

    /// The recorded abort, as a positive error number.
    pub fn recorded_errno(&self) -> Option<u32> {
        match self.raw.errno.get() {
            0 => None,
            errno => Some(errno.cast_signed().unsigned_abs()),
        }
    }
}

fn format_of(raw: &RawSuperblock, block_size: BlockSize) -> Format {
    let incompat = raw.incompat.get();
    let checksum = if incompat & CSUM_V3 != 0 {
        Checksum::V3
    } else if incompat & CSUM_V2 != 0 {
        Checksum::V2
    } else if raw.compat.get() & COMPAT_CHECKSUM != 0 {
        Checksum::V1
    } else {
        Checksum::None
    };
    Format::new(block_size, incompat & WIDE != 0, checksum, raw.uuid)
}

/// The block after the log's last one, and where the fast-commit area starts.
fn log_end(raw: &RawSuperblock, len: u32) -> Result<(u32, Option<u32>), FormatError> {
    let max_len = raw.max_len.get();
    if max_len > len {
        return Err(corrupt(format!(
            "superblock claims {max_len} blocks, the journal has {len}"
        )));
    }
    if raw.incompat.get() & FAST_COMMIT == 0 {
        return Ok((max_len, None));
    }
    let blocks = match raw.fast_commit_blocks.get() {
        0 => DEFAULT_FAST_COMMIT_BLOCKS,
        blocks => blocks,
    };
    let last = max_len
        .checked_sub(blocks)
        .ok_or_else(|| corrupt(format!("{blocks} fast-commit blocks in {max_len}")))?;
    Ok((last, Some(last + FAST_COMMIT_GAP)))
}

fn check_features(raw: &RawSuperblock) -> Result<(), FormatError> {
    let unknown = raw.incompat.get() & !KNOWN_INCOMPAT;
    if unknown != 0 {
        let what = format!("journal with unknown incompatible features {unknown:#x}");
        return Err(FormatError::Unsupported(what));
    }
    if raw.ro_compat.get() != 0 {
        let what = format!(
            "journal with unknown read-only-compatible features {:#x}",
            raw.ro_compat.get()
        );
        return Err(FormatError::Unsupported(what));
    }
    if raw.users.get() > 1 {
        let what = format!("external journal shared by {} volumes", raw.users.get());
        return Err(FormatError::Unsupported(what));
    }
    let versions = [CSUM_V2, CSUM_V3].map(|bit| raw.incompat.get() & bit != 0);
    let v1 = raw.compat.get() & COMPAT_CHECKSUM != 0;
    match (versions, v1) {
        ([true, true], _) => Err(corrupt("features CSUM_V2 and CSUM_V3 exclude each other")),
        ([true, _] | [_, true], true) => Err(corrupt(
            "features CHECKSUM and CSUM_V2 or CSUM_V3 exclude each other",
        )),
        ([true, _] | [_, true], false) => {
            if raw.checksum_type != CRC32C_TYPE {
                let what = format!("journal checksum type {}", raw.checksum_type);
                return Err(FormatError::Unsupported(what));
            }
            if raw.checksum.get() != raw.sum() {
                return Err(corrupt("superblock checksum is wrong"));
            }
            Ok(())
        }
        ([false, false], _) => Ok(()),
    }
}

fn corrupt(what: impl Into<String>) -> FormatError {
    FormatError::Corrupt(what.into())
}
