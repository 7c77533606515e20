//! The superblock: 1024 bytes at offset 1024 of the volume, with copies in some groups.
//!
//! [`Superblock`] keeps the raw fields for editing; everything that does not change during a mount
//! is in its [`Geometry`], validated once.

use std::mem::offset_of;

use std::borrow::Cow;

use steadfs_base::checksum::{crc32c, crc32c_filler};
use steadfs_base::endian::Le32;
use steadfs_base::{DevBlock, InodeNo, Timestamp};
use zerocopy::{FromBytes, IntoBytes};

use super::num::{high32, join32, low8, low16, low32};
use super::{
    Compat, CorruptKind, DiskError, Features, Geometry, GroupNo, Incompat, Ino, Result, RoCompat,
    Structure, geometry,
};

pub use super::raw_superblock::{
    FLAG_SIGNED_HASH, FLAG_UNSIGNED_HASH, RawSuperblock, SUPERBLOCK_OFFSET,
};

/// Bytes of a superblock on disk.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xEF53;

/// `s_state`: cleanly unmounted.
pub const STATE_CLEAN: u16 = 1;
/// `s_state`: errors were found.
pub const STATE_ERROR: u16 = 2;
/// `s_state`: orphans are being removed.
pub const STATE_ORPHANS: u16 = 4;

/// Where the journal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalPlace {
    /// There is none.
    None,
    /// In this inode.
    Inode(Ino),
    /// On another device: its UUID.
    External([u8; 16]),
}

/// What to do when corruption is found (`s_errors`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Record it and continue.
    Continue,
    /// Remount read-only.
    ReadOnly,
    /// Panic.
    Panic,
}

/// An error to record in the superblock.
#[derive(Clone, Copy, Debug)]
pub struct ErrorRecord<'a> {
    /// When it was found.
    pub time: Timestamp,
    /// The inode concerned, if any.
    pub inode: Option<Ino>,
    /// The block concerned, if any.
    pub block: Option<DevBlock>,
    /// Function that found it; cut to 32 bytes.
    pub function: &'a str,
    /// Source line.
    pub line: u32,
    /// `EXT4_ERR_*` code: 1 unknown, 2 EIO, 3 ENOMEM, 4 EFSBADCRC, 5 EFSCORRUPTED, …
    pub code: u8,
}

/// A validated superblock. Setters change the copy in memory; [`Superblock::seal_into`] writes it.
#[derive(Clone, Debug)]
pub struct Superblock {
    raw: RawSuperblock,
    geometry: Geometry,
}

impl Superblock {
    /// Decodes and validates the 1024 bytes of a superblock (more bytes are ignored).
    ///
    /// Checks magic, revision, checksum and every size, count and number that other code computes
    /// with. Features are *not* judged here: see [`mount_mode`](super::features::mount_mode).
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let raw = Self::read_raw(bytes)?;
        verify(&raw)?;
        Self::from_raw(raw)
    }

    /// As [`Superblock::parse`], but a wrong checksum is not an error: for the checker and for
    /// inspecting corrupt volumes. [`Superblock::verify_checksum`] verifies it.
    pub fn parse_lenient(bytes: &[u8]) -> Result<Self> {
        Self::from_raw(Self::read_raw(bytes)?)
    }

    /// Creates a superblock from the fields that mkfs has filled in, with the same validation except for the checksum,
    /// which sealing sets.
    pub fn from_raw(raw: RawSuperblock) -> Result<Self> {
        let geometry = Geometry::of(&raw)?;
        Ok(Self { raw, geometry })
    }

    pub(super) fn read_raw(bytes: &[u8]) -> Result<RawSuperblock> {
        let (raw, _) = RawSuperblock::read_from_prefix(bytes).map_err(|_| {
            DiskError::field(
                Structure::Superblock,
                "length",
                super::num::wide(bytes.len()),
                "shorter than 1024 bytes",
            )
        })?;
        if raw.magic.get() != MAGIC {
            return Err(DiskError::magic(
                Structure::Superblock,
                raw.magic.get().into(),
            ));
        }
        Ok(raw)
    }

    /// Whether bytes (as for [`Superblock::parse`]) have the magic number of a superblock.
    pub fn has_magic(bytes: &[u8]) -> bool {
        Self::read_raw(bytes).is_ok()
    }

    /// The feature words, without validation of anything else; `None` without the magic number.
    pub fn raw_features(bytes: &[u8]) -> Option<Features> {
        Self::read_raw(bytes).ok().map(|raw| raw.features())
    }

    /// Converts a copy to be written as the first superblock. The state of the volume is unknown, so it does not count
    /// as cleanly unmounted.
    #[must_use]
    pub fn of_copy(mut self) -> Self {
        self.raw.block_group_nr.set(0);
        let unclean = self.state() & !STATE_CLEAN;
        self.set_state(unclean);
        self
    }

    /// Whether the bytes are the superblock of an external journal device.
    pub fn is_external_journal(bytes: &[u8]) -> bool {
        let raw = Self::read_raw(bytes);
        raw.is_ok_and(|raw| raw.features().incompat.contains(Incompat::JOURNAL_DEV))
    }

    /// Compares the stored checksum with the fields, where the volume has metadata checksums.
    pub fn verify_checksum(&self) -> Result<()> {
        verify(&self.raw)
    }

    /// Writes the superblock with its checksum to `out`, which holds the one written before.
    ///
    /// **Torn writes.** A device may write one of the two sectors and lose the other. What changes during a mount
    /// is in the first 512 bytes, the checksum in the second: a superblock torn there has a wrong
    /// checksum, and without a superblock the journal that would repair it is not found. So the old checksum is kept if
    /// possible: the last four bytes of `s_last_mounted`, after its text, are set so that the checksum stays the same,
    /// and only the first sector changes.
    ///
    /// # Panics
    /// If `out` is not 1024 bytes long.
    pub fn seal_into(&self, out: &mut [u8]) {
        assert_eq!(out.len(), SUPERBLOCK_SIZE, "a superblock has 1024 bytes");
        let mut raw = self.raw.clone();
        if self.geometry.seed.enabled() && !keep_checksum(&mut raw, out) {
            raw.checksum.set(compute(&raw));
        }
        out.copy_from_slice(raw.as_bytes());
    }

    /// The same superblock as the copy in `group` has it (`s_block_group_nr` differs), sealed.
    ///
    /// # Panics
    /// If `out` is not 1024 bytes long.
    pub fn seal_copy_into(&self, group: GroupNo, out: &mut [u8]) {
        let mut copy = self.clone();
        copy.raw
            .block_group_nr
            .set(low16(group.0.min(u16::MAX.into())));
        copy.seal_into(out);
    }

    /// What does not change during a mount.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// All fields as stored.
    pub const fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// The current features ([`Geometry`] has those at the time of parsing).
    pub fn features(&self) -> Features {
        self.raw.features()
    }

    /// Free blocks (blocks also with `bigalloc`, where group descriptors count clusters).
    pub fn free_blocks(&self) -> u64 {
        let high = if self.geometry.has_64bit() {
            self.raw.free_blocks_count_hi.get()
        } else {
            0
        };
        join32(high, self.raw.free_blocks_count_lo.get())
    }

    /// Sets the count of free blocks.
    pub fn set_free_blocks(&mut self, count: u64) {
        self.raw.free_blocks_count_lo.set(low32(count));
        if self.geometry.has_64bit() {
            self.raw.free_blocks_count_hi.set(high32(count));
        }
    }

    /// Blocks reserved for `def_resuid`; never more than there are.
    pub fn reserved_blocks(&self) -> u64 {
        let high = if self.geometry.has_64bit() {
            self.raw.r_blocks_count_hi.get()
        } else {
            0
        };
        join32(high, self.raw.r_blocks_count_lo.get()).min(self.geometry.blocks_count)
    }

    /// User and group that may use the reserved blocks.
    pub fn reserved_owner(&self) -> (u32, u32) {
        (
            self.raw.def_resuid.get().into(),
            self.raw.def_resgid.get().into(),
        )
    }

    /// Blocks of the volume's own metadata, if the superblock has the number.
    pub fn overhead(&self) -> Option<u64> {
        let clusters = u64::from(self.raw.overhead_clusters.get());
        (clusters > 0).then(|| clusters << self.geometry.cluster_bits)
    }

    /// Free inodes.
    pub fn free_inodes(&self) -> u32 {
        self.raw.free_inodes_count.get()
    }

    /// Sets the count of free inodes.
    pub fn set_free_inodes(&mut self, count: u32) {
        self.raw.free_inodes_count.set(count);
    }

    /// `STATE_*` bits.
    pub fn state(&self) -> u16 {
        self.raw.state.get()
    }

    /// Sets the `STATE_*` bits.
    pub fn set_state(&mut self, state: u16) {
        self.raw.state.set(state);
    }

    /// What to do when damage is found; an unknown value means "continue", as in the kernel.
    pub fn on_error(&self) -> OnError {
        match self.raw.errors.get() {
            2 => OnError::ReadOnly,
            3 => OnError::Panic,
            _ => OnError::Continue,
        }
    }

    /// Head of the list of orphans.
    pub fn last_orphan(&self) -> Option<Ino> {
        Ino(self.raw.last_orphan.get()).some()
    }

    /// Sets the head of the list of orphans.
    pub fn set_last_orphan(&mut self, head: Option<Ino>) {
        self.raw.last_orphan.set(head.map_or(0, |ino| ino.0));
    }

    /// The orphan file, on volumes that have one.
    pub fn orphan_file(&self) -> Option<Ino> {
        if self.features().compat.contains(Compat::ORPHAN_FILE) {
            Ino(self.raw.orphan_file_inum.get()).some()
        } else {
            None
        }
    }

    /// Where the journal is.
    pub fn journal(&self) -> JournalPlace {
        if !self.features().compat.contains(Compat::HAS_JOURNAL) {
            return JournalPlace::None;
        }
        match Ino(self.raw.journal_inum.get()).some() {
            Some(ino) => JournalPlace::Inode(ino),
            None => JournalPlace::External(self.raw.journal_uuid),
        }
    }

    /// The copy of the journal inode's `i_block` and size (`s_jnl_blocks`), where there is one.
    pub fn journal_backup(&self) -> Option<([u32; 15], u64)> {
        if self.raw.jnl_backup_type != 1 {
            return None;
        }
        let mut map = [0; 15];
        for (to, from) in map.iter_mut().zip(&self.raw.jnl_blocks) {
            *to = from.get();
        }
        let size = join32(self.raw.jnl_blocks[15].get(), self.raw.jnl_blocks[16].get());
        Some((map, size))
    }

    /// Names the journal's inode and keeps the copy of its map and size (`s_journal_inum`,
    /// `s_jnl_blocks`): for mkfs.
    pub fn set_journal_inode(&mut self, ino: Ino, map: &[u8; 60], size: u64) {
        self.raw.journal_inum.set(ino.0);
        self.raw.jnl_backup_type = 1;
        let words = map.chunks_exact(4).map(|word| super::num::get32(word, 0));
        for (field, word) in self.raw.jnl_blocks.iter_mut().zip(words) {
            field.set(word);
        }
        self.raw.jnl_blocks[15].set(high32(size));
        self.raw.jnl_blocks[16].set(low32(size));
    }

    /// Sets the number of clusters of the volume's own metadata (`s_overhead_clusters`, which has 32 bits; 0 means
    /// unknown).
    pub fn set_overhead(&mut self, clusters: u64) {
        let known = u32::try_from(clusters).unwrap_or(0);
        self.raw.overhead_clusters.set(known);
    }

    /// Records a mount (`s_mtime`, `s_mnt_count`) and its directory (`s_last_mounted`), if it has one. The path is cut
    /// off before the four bytes of [`Superblock::seal_into`], without which a torn write would not be survived.
    pub fn note_mount(&mut self, now: Timestamp, at: Option<&[u8]>) {
        (self.raw.mtime, self.raw.mtime_hi) = split_time(now);
        let count = self.raw.mnt_count.get().saturating_add(1);
        self.raw.mnt_count.set(count);
        if let Some(at) = at {
            let room = self.raw.last_mounted.len() - FILLER - 1;
            fill_text(&mut self.raw.last_mounted, &at[..at.len().min(room)]);
        }
    }

    /// Sets `s_wtime`: when the superblock was last written.
    pub fn set_write_time(&mut self, now: Timestamp) {
        (self.raw.wtime, self.raw.wtime_hi) = split_time(now);
    }

    /// Adds to `s_kbytes_written`.
    pub fn add_kbytes_written(&mut self, kbytes: u64) {
        let sum = self.raw.kbytes_written.get().saturating_add(kbytes);
        self.raw.kbytes_written.set(sum);
    }

    /// Sets or clears `needs_recovery`.
    pub fn set_needs_recovery(&mut self, on: bool) {
        self.set_incompat(Incompat::NEEDS_RECOVERY, on);
    }

    /// Sets or clears `orphan_present`.
    pub fn set_orphan_present(&mut self, on: bool) {
        self.set_ro_compat(RoCompat::ORPHAN_PRESENT, on);
    }

    /// Sets `large_file`: some file reaches 2 GiB.
    pub fn set_large_file(&mut self) {
        self.get_features();
        self.set_ro_compat(RoCompat::LARGE_FILE, true);
    }

    /// Sets `ext_attr`: some inode has extended attributes.
    pub fn set_ext_attr(&mut self) {
        self.get_features();
        let old = Compat(self.raw.feature_compat.get());
        self.raw.feature_compat.set(old.union(Compat::EXT_ATTR).0);
    }

    /// Raises revision 0, which should have no features, to 1, as Linux does before it sets a feature.
    fn get_features(&mut self) {
        if self.raw.rev_level.get() > 0 {
            return;
        }
        self.raw.rev_level.set(1);
        self.raw.first_ino.set(geometry::GOOD_OLD_FIRST_INO);
        self.raw.inode_size.set(geometry::GOOD_OLD_INODE_SIZE);
    }

    fn set_incompat(&mut self, bits: Incompat, on: bool) {
        let old = Incompat(self.raw.feature_incompat.get());
        let new = if on {
            old.union(bits)
        } else {
            old.without(bits)
        };
        self.raw.feature_incompat.set(new.0);
    }

    fn set_ro_compat(&mut self, bits: RoCompat, on: bool) {
        let old = RoCompat(self.raw.feature_ro_compat.get());
        let new = if on {
            old.union(bits)
        } else {
            old.without(bits)
        };
        self.raw.feature_ro_compat.set(new.0);
    }

    /// Records an error: sets the error state, increments the count, keeps the first and the last.
    pub fn record_error(&mut self, error: &ErrorRecord<'_>) {
        let (time, time_hi) = split_time(error.time);
        let ino = error.inode.map_or(0, |ino| ino.0);
        let block = error.block.map_or(0, |block| block.0);
        let raw = &mut self.raw;
        raw.state.set(raw.state.get() | STATE_ERROR);
        (raw.last_error_time, raw.last_error_time_hi) = (time, time_hi);
        raw.last_error_ino.set(ino);
        raw.last_error_block.set(block);
        raw.last_error_line.set(error.line);
        raw.last_error_errcode = error.code;
        fill_text(&mut raw.last_error_func, error.function.as_bytes());
        if raw.error_count.get() == 0 {
            (raw.first_error_time, raw.first_error_time_hi) = (time, time_hi);
            raw.first_error_ino.set(ino);
            raw.first_error_block.set(block);
            raw.first_error_line.set(error.line);
            raw.first_error_errcode = error.code;
            fill_text(&mut raw.first_error_func, error.function.as_bytes());
        }
        raw.error_count.set(raw.error_count.get().saturating_add(1));
    }

    /// Errors recorded so far.
    pub fn error_count(&self) -> u32 {
        self.raw.error_count.get()
    }

    /// Default mount options of the volume (`s_default_mount_opts`, `EXT4_DEFM_*` bits).
    pub fn default_mount_opts(&self) -> u32 {
        self.raw.default_mount_opts.get()
    }

    /// Mount options stored as text (`s_mount_opts`).
    pub fn mount_opts(&self) -> Cow<'_, str> {
        text(&self.raw.mount_opts)
    }

    /// The label.
    pub fn volume_name(&self) -> Cow<'_, str> {
        text(&self.raw.volume_name)
    }

    /// Names the block of multiple-mount protection.
    pub fn set_mmp_block(&mut self, block: DevBlock) {
        self.raw.mmp_block.set(block.0);
    }

    /// Quota inodes that exist: user, group, project.
    pub fn quota_inodes(&self) -> [Option<Ino>; 3] {
        if !self.features().ro_compat.contains(RoCompat::QUOTA) {
            return [None; 3];
        }
        let project = if self.features().ro_compat.contains(RoCompat::PROJECT) {
            self.raw.prj_quota_inum.get()
        } else {
            0
        };
        [
            Ino(self.raw.usr_quota_inum.get()).some(),
            Ino(self.raw.grp_quota_inum.get()).some(),
            Ino(project).some(),
        ]
    }

    /// The inodes of the volume's own files outside the reserved numbers. (Never the root, even if the superblock names
    /// it.)
    pub fn own_files(&self) -> Vec<Ino> {
        let journal = match self.journal() {
            JournalPlace::Inode(ino) => Some(ino),
            JournalPlace::None | JournalPlace::External(_) => None,
        };
        let all = self
            .quota_inodes()
            .into_iter()
            .chain([journal, self.orphan_file()]);
        all.flatten()
            .filter(|ino| ino.0 >= self.geometry().first_ino.0)
            .collect()
    }

    /// Encoding of casefolded names (`s_encoding`, `s_encoding_flags`), on volumes that have them.
    pub fn encoding(&self) -> Option<(u16, u16)> {
        (self.features().incompat.contains(Incompat::CASEFOLD))
            .then(|| (self.raw.encoding.get(), self.raw.encoding_flags.get()))
    }

    /// Times of creation, last write and last mount.
    pub fn times(&self) -> [Timestamp; 3] {
        [
            join_time(self.raw.mkfs_time, self.raw.mkfs_time_hi),
            join_time(self.raw.wtime, self.raw.wtime_hi),
            join_time(self.raw.mtime, self.raw.mtime_hi),
        ]
    }

    /// A volume identity for statfs(2), folded from the UUID.
    pub fn fsid(&self) -> u64 {
        let (low, high) = self.raw.uuid.split_at(8);
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
        word(low) ^ word(high)
    }

    /// The root directory's number.
    pub const fn root(&self) -> InodeNo {
        InodeNo(2)
    }
}

/// Bytes at the end of `s_last_mounted` that keep the checksum the same.
const FILLER: usize = 4;

fn compute(raw: &RawSuperblock) -> u32 {
    crc32c(!0, &raw.as_bytes()[..SUPERBLOCK_SIZE - 4])
}

/// Gives `raw` the checksum of `old` and the filler bytes that match it, if nothing else in the second sector differs
/// and there is room.
fn keep_checksum(raw: &mut RawSuperblock, old: &[u8]) -> bool {
    const SECTOR: usize = 512;
    const SUM: usize = SUPERBLOCK_SIZE - 4;
    /// Where the field after `s_last_mounted` begins.
    const FILLER_END: usize = offset_of!(RawSuperblock, algorithm_usage_bitmap);
    const AT: usize = FILLER_END - FILLER;
    const TEXT_END: usize = AT - offset_of!(RawSuperblock, last_mounted);
    let text = &raw.last_mounted[..TEXT_END];
    let room = text.last() == Some(&0);
    let same = raw.as_bytes()[SECTOR..SUM] == old[SECTOR..SUM];
    let sum = super::num::get32(old, SUM);
    if !room || !same || crc32c(!0, &old[..SUM]) != sum {
        return false;
    }
    raw.checksum.set(sum);
    let bytes = raw.as_bytes();
    let after = bytes[FILLER_END..].first_chunk::<{ SUM - FILLER_END }>();
    let after = after.expect("the sum ends the superblock");
    let filler = crc32c_filler(!0, &bytes[..AT], after, sum);
    raw.last_mounted[TEXT_END..].copy_from_slice(&filler);
    debug_assert_eq!(compute(raw), sum, "the filler matches the checksum");
    true
}

pub(super) fn verify(raw: &RawSuperblock) -> Result<()> {
    if !raw.features().ro_compat.contains(RoCompat::METADATA_CSUM) {
        return Ok(());
    }
    let computed = compute(raw);
    if computed == raw.checksum.get() {
        return Ok(());
    }
    Err(CorruptKind::Checksum {
        what: Structure::Superblock,
        stored: raw.checksum.get(),
        computed,
    }
    .into())
}

/// A superblock time: 40 bits of seconds, unsigned.
fn split_time(time: Timestamp) -> (Le32, u8) {
    let secs = u64::try_from(time.secs).unwrap_or(0).min((1 << 40) - 1);
    (Le32::new(low32(secs)), low8(high32(secs)))
}

fn join_time(low: Le32, high: u8) -> Timestamp {
    Timestamp {
        secs: i64::from(low.get()) | i64::from(high) << 32,
        nanos: 0,
    }
}

/// Copies as much of `text` as fits and fills the rest with zeros.
pub(super) fn fill_text(field: &mut [u8], text: &[u8]) {
    let len = text.len().min(field.len());
    field.fill(0);
    field[..len].copy_from_slice(&text[..len]);
}

pub(super) fn text(field: &[u8]) -> Cow<'_, str> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end])
}

#[cfg(test)]
mod tests;
