//! The block of multiple-mount protection (`struct mmp_struct`), by which nodes that share a device find out whether another
//! one has the volume in use.
//!
//! A node that writes the volume counts the sequence number up at an interval; a node that wants to write it reads the block
//! twice and refuses if the number has changed. [`SEQ_CLEAN`] stands for a volume that is not in use.
//!
//! **Torn writes.** The fields are in the first 512 bytes, and the checksum ends the second 512 bytes. A block that was torn
//! between them has a wrong checksum and refuses every mount. So [`Mmp::seal_into`] keeps the checksum: four unused bytes at
//! the end of the first sector are set so that it stays the same, and only that sector changes.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};
use std::mem::offset_of;

use steadfs_base::DevBlock;
use steadfs_base::checksum::crc32c_filler;
use steadfs_base::endian::{Le16, Le32, Le64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::num::{get32, wide};
use super::superblock::{fill_text, text};
use super::time::Date;
use super::{ChecksumSeed, DiskError, Incompat, Result, Structure, Superblock};

/// `mmp_magic`.
pub const MAGIC: u32 = 0x004D_4D50;
/// `mmp_seq`: no node has the volume in use.
pub const SEQ_CLEAN: u32 = 0xFF4D_4D50;
/// `mmp_seq`: e2fsck, debugfs or tune2fs writes the volume.
pub const SEQ_FSCK: u32 = 0xE24D_4D50;
/// Largest `mmp_seq` of a mounted volume.
pub const SEQ_MAX: u32 = 0xE24D_4D4F;
/// Bytes of the structure; its block may be larger.
pub const MMP_SIZE: usize = 1024;
/// Seconds between updates, where the superblock has no number.
pub const UPDATE_INTERVAL: u16 = 5;
/// Largest `s_mmp_update_interval` that e2fsprogs sets, in seconds.
pub const UPDATE_INTERVAL_MAX: u16 = 300;
/// Shortest check interval, in seconds.
pub const CHECK_INTERVAL_MIN: u16 = 5;
/// Longest check interval that a node measures, in seconds.
pub const CHECK_INTERVAL_MAX: u16 = 300;

/// Bytes of `mmp_nodename` and of `mmp_bdevname`.
const NODE_SIZE: usize = 64;
const DEVICE_SIZE: usize = 32;
const SECTOR: usize = 512;
/// Where the four bytes are that keep the checksum.
const FILLER_AT: usize = SECTOR - 4;
/// Where the checksum is.
const SUM_AT: usize = offset_of!(RawMmp, checksum);

/// The block as it is on disk.
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawMmp {
    pub(super) magic: Le32,
    pub(super) seq: Le32,
    pub(super) time: Le64,
    pub(super) node_name: [u8; NODE_SIZE],
    pub(super) device_name: [u8; DEVICE_SIZE],
    pub(super) check_interval: Le16,
    pub(super) padding: [u8; 906],
    pub(super) checksum: Le32,
}

/// The user of the volume, by `mmp_seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// No node.
    Clean,
    /// A program of e2fsprogs that writes it.
    Fsck,
    /// A node has it mounted, or has ended without unmounting it.
    Mounted,
    /// No known program writes this sequence number.
    Unknown,
}

/// A validated block.
#[derive(Clone, Debug)]
pub struct Mmp {
    raw: Box<RawMmp>,
}

impl Mmp {
    /// A block of a volume that is not in use.
    pub fn new() -> Self {
        let mut raw = RawMmp::new_zeroed();
        raw.magic.set(MAGIC);
        raw.seq.set(SEQ_CLEAN);
        raw.check_interval.set(CHECK_INTERVAL_MIN);
        Self { raw: Box::new(raw) }
    }

    /// Decodes and verifies the block at `at`; `seed` is the volume's.
    pub fn parse(seed: ChecksumSeed, at: DevBlock, block: &[u8]) -> Result<Self> {
        let mmp = Self::parse_lenient(at, block)?;
        mmp.verify_checksum(seed).map_err(|e| e.in_block(at))?;
        Ok(mmp)
    }

    /// As [`Mmp::parse`], but a wrong checksum is no error.
    pub fn parse_lenient(at: DevBlock, block: &[u8]) -> Result<Self> {
        let (raw, _) = RawMmp::read_from_prefix(block).map_err(|_| {
            let length = wide(block.len());
            DiskError::field(Structure::Mmp, "length", length, "shorter than 1024 bytes")
        })?;
        match raw.magic.get() {
            MAGIC => Ok(Self { raw: Box::new(raw) }),
            other => Err(DiskError::magic(Structure::Mmp, other).in_block(at)),
        }
    }

    /// Compares the stored checksum with the fields.
    pub fn verify_checksum(&self, seed: ChecksumSeed) -> Result<()> {
        let sum = seed.over(&self.raw.as_bytes()[..SUM_AT]);
        sum.compare(Structure::Mmp, self.raw.checksum.get(), u32::MAX)
    }

    /// Writes the block with its checksum to `out`, which holds the one written before.
    ///
    /// # Panics
    /// If `out` is shorter than [`MMP_SIZE`].
    pub fn seal_into(&self, seed: ChecksumSeed, out: &mut [u8]) {
        let out = &mut out[..MMP_SIZE];
        let mut raw = self.raw.clone();
        if seed.enabled() && !keep_checksum(seed, &mut raw, out) {
            let sum = seed.over(&raw.as_bytes()[..SUM_AT]);
            raw.checksum.set(sum.value().unwrap_or(0));
        }
        out.copy_from_slice(raw.as_bytes());
    }

    /// `mmp_seq`.
    pub fn seq(&self) -> u32 {
        self.raw.seq.get()
    }

    /// Sets `mmp_seq`.
    pub fn set_seq(&mut self, seq: u32) {
        self.raw.seq.set(seq);
    }

    /// What the sequence number stands for.
    pub fn usage(&self) -> Usage {
        match self.seq() {
            SEQ_CLEAN => Usage::Clean,
            SEQ_FSCK => Usage::Fsck,
            ..=SEQ_MAX => Usage::Mounted,
            _ => Usage::Unknown,
        }
    }

    /// When the block was written last, in seconds since 1970.
    pub fn time(&self) -> i64 {
        i64::try_from(self.raw.time.get()).unwrap_or(i64::MAX)
    }

    /// Sets the time; one before 1970 becomes 0.
    pub fn set_time(&mut self, secs: i64) {
        self.raw.time.set(u64::try_from(secs).unwrap_or(0));
    }

    /// The name of the node that wrote the block.
    pub fn node_name(&self) -> Cow<'_, str> {
        text(&self.raw.node_name)
    }

    /// The device, as that node names it.
    pub fn device_name(&self) -> Cow<'_, str> {
        text(&self.raw.device_name)
    }

    /// Sets both names; what is longer than the field is cut.
    pub fn set_names(&mut self, node: &[u8], device: &[u8]) {
        fill_text(&mut self.raw.node_name, node);
        fill_text(&mut self.raw.device_name, device);
    }

    /// The node that wrote the block, for messages.
    pub fn writer(&self) -> Writer<'_> {
        Writer {
            node: self.node_name(),
            device: self.device_name(),
            time: self.time(),
        }
    }

    /// Whether both were written by the same node with the same sequence number.
    pub fn is_same_write(&self, other: &Self) -> bool {
        self.seq() == other.seq() && self.raw.node_name == other.raw.node_name
    }

    /// Whether both name the same node and device.
    pub fn has_names_of(&self, other: &Self) -> bool {
        self.raw.node_name == other.raw.node_name && self.raw.device_name == other.raw.device_name
    }

    /// Seconds after which a node that waits considers the writer gone (`mmp_check_interval`).
    pub fn check_interval(&self) -> u16 {
        self.raw.check_interval.get()
    }

    /// Sets `mmp_check_interval`, in seconds.
    pub fn set_check_interval(&mut self, secs: u16) {
        self.raw.check_interval.set(secs);
    }
}

/// The node that wrote a block, displayed as a phrase.
#[derive(Clone, Debug)]
pub struct Writer<'a> {
    /// Its name.
    pub node: Cow<'a, str>,
    /// Its name of the device.
    pub device: Cow<'a, str>,
    /// When it wrote, in seconds since 1970.
    pub time: i64,
}

impl Display for Writer<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (node, device, time) = (&self.node, &self.device, Date(self.time));
        write!(f, "node {node}, device {device}, at {time}")
    }
}

impl Default for Mmp {
    fn default() -> Self {
        Self::new()
    }
}

impl Superblock {
    /// The block of multiple-mount protection, on volumes that have one.
    pub fn mmp_block(&self) -> Option<DevBlock> {
        (self.features().incompat.contains(Incompat::MMP))
            .then(|| DevBlock(self.raw().mmp_block.get()))
    }

    /// Seconds between two updates of that block by a node that has the volume mounted.
    pub fn mmp_update_interval(&self) -> u16 {
        match self.raw().mmp_update_interval.get() {
            0 => UPDATE_INTERVAL,
            secs => secs,
        }
    }
}

/// Gives `raw` the checksum of `old` and the bytes that match it, if nothing else in the second sector differs.
fn keep_checksum(seed: ChecksumSeed, raw: &mut RawMmp, old: &[u8]) -> bool {
    let sum = get32(old, SUM_AT);
    let same = raw.as_bytes()[SECTOR..SUM_AT] == old[SECTOR..SUM_AT];
    let valid = seed.over(&old[..SUM_AT]).value() == Some(sum);
    let (Some(seed), true, true) = (seed.value(), same, valid) else {
        return false;
    };
    let bytes = raw.as_mut_bytes();
    let after = bytes[SECTOR..].first_chunk::<{ SUM_AT - SECTOR }>();
    let after = after.expect("the sum ends the structure");
    let filler = crc32c_filler(seed, &bytes[..FILLER_AT], after, sum);
    bytes[FILLER_AT..SECTOR].copy_from_slice(&filler);
    raw.checksum.set(sum);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: DevBlock = DevBlock(9);

    #[test]
    fn only_the_first_sector_changes() {
        let seed = ChecksumSeed::new(7);
        let mut block = vec![0; 4096];
        block[2000] = 1;
        let mut mmp = Mmp::new();
        mmp.seal_into(seed, &mut block);
        let before = block.clone();
        for seq in 0..20 {
            mmp.set_seq(seq);
            mmp.set_time(1_800_000_000 + i64::from(seq));
            mmp.set_names(b"node", &[b'x'; 40]);
            mmp.seal_into(seed, &mut block);
            let read = Mmp::parse(seed, AT, &block).unwrap();
            assert_eq!((read.seq(), read.node_name()), (seq, "node".into()));
            assert_eq!(read.device_name().len(), DEVICE_SIZE);
            assert!(read.is_same_write(&mmp) && read.has_names_of(&mmp));
            assert_ne!(before[..SECTOR], block[..SECTOR]);
            assert_eq!(before[SECTOR..], block[SECTOR..]);
        }
        // What another program wrote is kept valid, too.
        block[600] = 1;
        assert!(Mmp::parse(seed, AT, &block).is_err());
        assert!(Mmp::parse(ChecksumSeed::NONE, AT, &block).is_ok());
        mmp.seal_into(seed, &mut block);
        assert!(Mmp::parse(seed, AT, &block).is_ok());
    }

    #[test]
    fn sequence_numbers_and_magic() {
        let mut mmp = Mmp::new();
        for (seq, usage) in [
            (SEQ_CLEAN, Usage::Clean),
            (SEQ_FSCK, Usage::Fsck),
            (0, Usage::Mounted),
            (SEQ_MAX, Usage::Mounted),
            (SEQ_FSCK + 1, Usage::Unknown),
            (u32::MAX, Usage::Unknown),
        ] {
            mmp.set_seq(seq);
            assert_eq!(mmp.usage(), usage, "{seq:#x}");
        }
        let mut block = vec![0; MMP_SIZE];
        mmp.seal_into(ChecksumSeed::NONE, &mut block);
        block[0] ^= 1;
        assert!(Mmp::parse_lenient(AT, &block).is_err());
        assert!(Mmp::parse_lenient(AT, &block[..512]).is_err());
    }
}
