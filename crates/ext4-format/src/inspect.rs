//! Inspection of a volume without opening it, as dumpe2fs does: superblock, journal and group descriptors.
//!
//! Nothing is replayed, and only what decoding needs is validated, so that a corrupt volume can be inspected.

use serde::Serialize;
use steadfs_base::IoTag;
use steadfs_block::Queue;
use steadfs_jbd2_format::JournalInfo;
use steadfs_vfs::Result;

use crate::disk::features::{Incompat, RoCompat};
use crate::disk::group_desc::{BLOCK_UNINIT, INODE_UNINIT, INODE_ZEROED};
use crate::disk::superblock::{
    FLAG_SIGNED_HASH, FLAG_UNSIGNED_HASH, JournalPlace, OnError, STATE_CLEAN, STATE_ERROR,
    STATE_ORPHANS, SUPERBLOCK_OFFSET,
};
use crate::disk::{GroupDesc, GroupNo, Superblock};
use crate::io_error;
use crate::superblock::{SuperblockChoice, choose, superblock_bytes};

pub use protection::{MountProtection, ProtectionState};

mod protection;
mod text;

#[cfg(test)]
mod tests;

/// Bytes of descriptors read at a time.
const DESC_READ_BYTES: u64 = 1 << 20;
/// `s_flags`: a volume for tests of experimental code.
const FLAG_TEST: u32 = 4;

/// What superblock, journal and group descriptors record. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// First byte of the superblock that was read, if that is not the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_at: Option<u64>,
    /// Label.
    pub label: String,
    /// UUID in its usual form.
    pub uuid: String,
    /// Directory it was last mounted on.
    pub last_mounted: String,
    /// Revision: 0 or 1.
    pub revision: u32,
    /// Names of the features.
    pub features: Vec<String>,
    /// Names of the superblock's flags.
    pub flags: Vec<&'static str>,
    /// Default mount options in the superblock (`s_default_mount_opts`).
    pub default_mount_options: Vec<String>,
    /// Default mount options as text (`s_mount_opts`).
    pub mount_options: String,
    /// VolumeState of the volume: clean, errors, orphans.
    pub state: VolumeState,
    /// Numbers of blocks and inodes, and how they are grouped.
    pub geometry: Layout,
    /// Times and counters.
    pub history: History,
    /// Place and state of the journal.
    pub journal: Journal,
    /// How names of directories are hashed.
    pub hash: Hash,
    /// User and group that may use the reserved blocks.
    pub reserved_for: (u32, u32),
    /// Orphan file's inode.
    pub orphan_file: Option<u32>,
    /// Multiple-mount protection, on volumes that have it.
    pub mmp: Option<MountProtection>,
    /// Inodes of user, group and project quota.
    pub quota_inodes: [Option<u32>; 3],
    /// The superblock's checksum, on volumes with metadata checksums.
    pub checksum: Option<StoredChecksum>,
    /// Free and used space by group.
    pub usage: Usage,
}

/// VolumeState of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeState {
    /// It was unmounted cleanly. The log may still hold transactions.
    pub clean: bool,
    /// The log holds transactions to replay.
    pub needs_recovery: bool,
    /// Errors were found.
    pub has_errors: bool,
    /// Removal of orphans was under way.
    pub orphans: bool,
    /// Head of the list of orphans.
    pub first_orphan: Option<u32>,
    /// What to do about errors: continue, remount-ro or panic.
    pub on_error: &'static str,
    /// Errors recorded since the last check.
    pub error_count: u32,
    /// The first of them.
    pub first_error: Option<ErrorFacts>,
    /// The last of them.
    pub last_error: Option<ErrorFacts>,
}

/// An error recorded in the superblock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorFacts {
    /// When it occurred.
    pub time: i64,
    /// Function that recorded it.
    pub function: String,
    /// Source line in that function's file.
    pub line: u32,
    /// Inode concerned.
    pub inode: Option<u32>,
    /// Block concerned.
    pub block: Option<u64>,
    /// Error code by name, where it has one.
    pub code: Option<String>,
}

/// Numbers of blocks and inodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are those of dumpe2fs")]
pub struct Layout {
    pub block_size: u32,
    pub cluster_size: u32,
    pub blocks: u64,
    pub reserved_blocks: u64,
    pub free_blocks: u64,
    pub overhead_clusters: u32,
    pub first_block: u64,
    pub inodes: u32,
    pub free_inodes: u32,
    pub first_inode: u32,
    pub inode_size: u16,
    pub required_extra_isize: u16,
    pub desired_extra_isize: u16,
    pub groups: u32,
    pub blocks_per_group: u32,
    pub clusters_per_group: u32,
    pub inodes_per_group: u32,
    pub inode_blocks_per_group: u32,
    pub descriptor_size: u16,
    pub reserved_gdt_blocks: u16,
    pub first_meta_bg: u32,
    pub flex_group_size: u32,
    pub raid_stride: u16,
    pub raid_stripe_width: u32,
}

/// Times and counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct History {
    /// When it was made.
    pub created: i64,
    /// When it was last mounted; 0: never.
    pub mounted: i64,
    /// When its superblock was last written.
    pub written: i64,
    /// When it was last checked.
    pub checked: i64,
    /// Mounts since the last check.
    pub mount_count: u16,
    /// Mounts after which a check is due, if limited.
    pub max_mount_count: Option<u16>,
    /// Seconds after which a check is due, if limited.
    pub check_interval: Option<u32>,
    /// Kilobytes written to it so far.
    pub kbytes_written: u64,
}

/// Where the journal is, and its superblock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Journal {
    /// There is none.
    None,
    /// In an inode.
    Internal {
        /// The inode.
        inode: u32,
        /// Whether the superblock has a copy of the inode's map.
        has_backup: bool,
        /// Its superblock.
        #[serde(flatten)]
        log: Log,
    },
    /// In an inode, but it cannot be read.
    Unreadable {
        /// The inode.
        inode: u32,
        /// Error of the attempt.
        why: String,
    },
    /// On another device.
    External {
        /// Its UUID.
        uuid: String,
    },
}

/// Fields of a journal's superblock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Log {
    /// Names of its features.
    pub features: Vec<String>,
    /// Bytes in a block.
    pub block_size: u32,
    /// All blocks of the journal.
    pub blocks: u32,
    /// Blocks of the fast-commit area.
    pub fast_commit_blocks: u32,
    /// First block of the log.
    pub first: u32,
    /// Number of the first transaction in the log, or of the next one.
    pub sequence: u32,
    /// Where the first transaction starts; 0: the log is empty.
    pub start: u32,
    /// Error number with which it was aborted.
    pub aborted: Option<u32>,
    /// Whether its checksum is right (true where it has none).
    pub checksum_is_right: bool,
}

/// How names are hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hash {
    /// Name of the hash.
    pub version: String,
    /// Its seed, as a UUID.
    pub seed: String,
}

/// A checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredChecksum {
    /// As stored.
    pub stored: u32,
    /// Whether it equals the computed checksum.
    pub is_right: bool,
}

/// Sums over the group descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Free clusters.
    pub free_clusters: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Inodes that were never used.
    pub unused_inodes: u64,
    /// Groups whose block bitmap was never written.
    pub block_uninit: u32,
    /// Groups whose inode bitmap was never written.
    pub inode_uninit: u32,
    /// Groups whose inode table is known to be zeroed where it is not in use.
    pub inode_zeroed: u32,
    /// Groups by share of clusters in use, in tenths; the last tenth includes full groups. The share includes the
    /// group's own metadata.
    pub by_tenths: [u32; 10],
    /// Groups without a free cluster.
    pub full: u32,
    /// Groups whose descriptor failed verification (checksum, or a place outside the volume); not counted in the other
    /// fields.
    pub damaged: u32,
    /// Error that ended the reading of descriptors.
    pub unreadable: Option<String>,
}

/// Inspects the volume on a device.
///
/// # Errors
/// The superblock cannot be read, has no magic number, or its numbers contradict each other. Everything else that is
/// wrong is reported in the result.
pub fn inspect(queue: &Queue, choice: &SuperblockChoice) -> Result<Inspection> {
    let (sb, at) = read(queue, choice)?;
    let journal = journal(queue, &sb);
    let mut usage = Usage::default();
    if let Err(error) = group_usage(queue, &sb, |_, desc| usage.add(&sb, desc)) {
        usage.unreadable = Some(error.to_string());
    }
    let raw = sb.raw();
    Ok(Inspection {
        copy_at: (at != SUPERBLOCK_OFFSET).then_some(at),
        label: sb.volume_name().into_owned(),
        uuid: text::uuid(&raw.uuid),
        last_mounted: text::field(&raw.last_mounted),
        revision: raw.rev_level.get(),
        features: sb.features().names().into_iter().map(Into::into).collect(),
        flags: flags(raw.flags.get()),
        default_mount_options: text::mount_options(sb.default_mount_opts()),
        mount_options: sb.mount_opts().into_owned(),
        state: state(&sb),
        geometry: layout(&sb),
        history: history(&sb),
        journal,
        hash: Hash {
            version: text::hash(raw.def_hash_version),
            seed: text::uuid(&seed_bytes(&sb)),
        },
        reserved_for: sb.reserved_owner(),
        orphan_file: sb.orphan_file().map(|ino| ino.0),
        mmp: sb
            .mmp_block()
            .map(|block| MountProtection::read(queue, &sb, block)),
        quota_inodes: sb.quota_inodes().map(|ino| ino.map(|ino| ino.0)),
        checksum: sb.geometry().seed.enabled().then(|| StoredChecksum {
            stored: raw.checksum.get(),
            is_right: sb.verify_checksum().is_ok(),
        }),
        usage,
    })
}

/// Reads the superblock, even with a wrong checksum; a copy if `sb=` selects one or the first one has no magic number.
/// Returns it with its first byte.
fn read(queue: &Queue, choice: &SuperblockChoice) -> Result<(Superblock, u64)> {
    if choice.sb.is_none() {
        let bytes = superblock_bytes(queue, SUPERBLOCK_OFFSET)?;
        if let Ok(sb) = Superblock::parse_lenient(&bytes) {
            return Ok((sb, SUPERBLOCK_OFFSET));
        }
    }
    let chosen = choose(queue, choice)?;
    Ok((chosen.sb, chosen.at))
}

/// Calls `visit` with each group's descriptor, `None` where it fails verification. Memory does not grow with
/// the number of groups.
pub fn group_usage(
    queue: &Queue,
    sb: &Superblock,
    mut visit: impl FnMut(GroupNo, Option<GroupDesc>),
) -> Result<()> {
    let geo = sb.geometry();
    let size = geo.block_size;
    let step = (DESC_READ_BYTES >> size.bits()).max(1) as u32;
    let mut block = 0;
    while block < geo.desc_blocks() {
        // Adjacent descriptor blocks in one read; with meta_bg they are not adjacent.
        let first = geo.desc_block_at(block);
        let count = (1..step.min(geo.desc_blocks() - block))
            .take_while(|&n| geo.desc_block_at(block + n).0 == first.0 + u64::from(n))
            .last()
            .map_or(1, |n| n + 1);
        let len = size.bytes() * count as usize;
        let table = queue
            .read(size.offset_of(first), len, IoTag::default())
            .map_err(io_error)?;
        let per_block = geo.descs_per_block();
        let from = block * per_block;
        let upto = (from + count * per_block).min(geo.group_count);
        for group in (from..upto).map(GroupNo) {
            let (at, offset) = geo.desc_slot(group);
            let start = (at - block) as usize * size.bytes() + offset;
            let slot = &table[start..start + usize::from(geo.desc_size)];
            visit(group, GroupDesc::parse(geo, group, slot).ok());
        }
        block += count;
    }
    Ok(())
}

impl Usage {
    fn add(&mut self, sb: &Superblock, desc: Option<GroupDesc>) {
        let geo = sb.geometry();
        let Some(desc) = desc else {
            self.damaged += 1;
            return;
        };
        self.free_clusters += u64::from(desc.free_clusters);
        self.free_inodes += u64::from(desc.free_inodes);
        self.directories += u64::from(desc.used_dirs);
        if geo.has_group_checksums() {
            self.unused_inodes += u64::from(desc.itable_unused);
            self.block_uninit += u32::from(desc.flags & BLOCK_UNINIT != 0);
            self.inode_uninit += u32::from(desc.flags & INODE_UNINIT != 0);
        }
        self.inode_zeroed += u32::from(desc.flags & INODE_ZEROED != 0);
        self.full += u32::from(desc.free_clusters == 0);
        let all = u64::from(geo.clusters_per_group);
        let used = all.saturating_sub(desc.free_clusters.into());
        let tenth = (used * 10 / all).min(9) as usize;
        self.by_tenths[tenth] += 1;
    }
}

fn seed_bytes(sb: &Superblock) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, word) in bytes.chunks_exact_mut(4).zip(&sb.raw().hash_seed) {
        to.copy_from_slice(&word.get().to_le_bytes());
    }
    bytes
}

fn flags(bits: u32) -> Vec<&'static str> {
    [
        (FLAG_SIGNED_HASH, "signed_directory_hash"),
        (FLAG_UNSIGNED_HASH, "unsigned_directory_hash"),
        (FLAG_TEST, "test_filesystem"),
    ]
    .into_iter()
    .filter(|(bit, _)| bits & bit != 0)
    .map(|(_, name)| name)
    .collect()
}

fn state(sb: &Superblock) -> VolumeState {
    let raw = sb.raw();
    let fact = |time: i64, function: &[u8], line: u32, ino: u32, block: u64, code: u8| {
        (time != 0).then(|| ErrorFacts {
            time,
            function: text::field(function),
            line,
            inode: (ino != 0).then_some(ino),
            block: (block != 0).then_some(block),
            code: (code != 0).then(|| text::error_code(code)),
        })
    };
    VolumeState {
        clean: sb.state() & STATE_CLEAN != 0,
        needs_recovery: sb.features().incompat.contains(Incompat::NEEDS_RECOVERY),
        has_errors: sb.state() & STATE_ERROR != 0,
        orphans: sb.state() & STATE_ORPHANS != 0
            || sb.features().ro_compat.contains(RoCompat::ORPHAN_PRESENT),
        first_orphan: sb.last_orphan().map(|ino| ino.0),
        on_error: match sb.on_error() {
            OnError::Continue => "continue",
            OnError::ReadOnly => "remount-ro",
            OnError::Panic => "panic",
        },
        error_count: sb.error_count(),
        first_error: fact(
            text::time(raw.first_error_time, raw.first_error_time_hi),
            &raw.first_error_func,
            raw.first_error_line.get(),
            raw.first_error_ino.get(),
            raw.first_error_block.get(),
            raw.first_error_errcode,
        ),
        last_error: fact(
            text::time(raw.last_error_time, raw.last_error_time_hi),
            &raw.last_error_func,
            raw.last_error_line.get(),
            raw.last_error_ino.get(),
            raw.last_error_block.get(),
            raw.last_error_errcode,
        ),
    }
}

fn layout(sb: &Superblock) -> Layout {
    let (geo, raw) = (sb.geometry(), sb.raw());
    let block_size = 1 << geo.block_size.bits();
    Layout {
        block_size,
        cluster_size: block_size << geo.cluster_bits,
        blocks: geo.blocks_count,
        reserved_blocks: sb.reserved_blocks(),
        free_blocks: sb.free_blocks(),
        overhead_clusters: raw.overhead_clusters.get(),
        first_block: geo.first_data_block.0,
        inodes: geo.inodes_count,
        free_inodes: sb.free_inodes(),
        first_inode: geo.first_ino.0,
        inode_size: geo.inode_size,
        required_extra_isize: raw.min_extra_isize.get(),
        desired_extra_isize: raw.want_extra_isize.get(),
        groups: geo.group_count,
        blocks_per_group: geo.blocks_per_group,
        clusters_per_group: geo.clusters_per_group,
        inodes_per_group: geo.inodes_per_group,
        inode_blocks_per_group: geo.itable_blocks(),
        descriptor_size: geo.desc_size,
        reserved_gdt_blocks: geo.reserved_gdt_blocks,
        first_meta_bg: geo.first_meta_bg,
        flex_group_size: 1u32.checked_shl(geo.flex_bits.into()).unwrap_or(0),
        raid_stride: raw.raid_stride.get(),
        raid_stripe_width: raw.raid_stripe_width.get(),
    }
}

fn history(sb: &Superblock) -> History {
    let raw = sb.raw();
    let [created, written, mounted] = sb.times();
    History {
        created: created.secs,
        mounted: mounted.secs,
        written: written.secs,
        checked: text::time(raw.lastcheck, raw.lastcheck_hi),
        mount_count: raw.mnt_count.get(),
        max_mount_count: match raw.max_mnt_count.get() {
            0 => None,
            count => (count < 1 << 15).then_some(count),
        },
        check_interval: match raw.checkinterval.get() {
            0 => None,
            secs => Some(secs),
        },
        kbytes_written: raw.kbytes_written.get(),
    }
}

fn journal(queue: &Queue, sb: &Superblock) -> Journal {
    let inode = match sb.journal() {
        JournalPlace::None => return Journal::None,
        JournalPlace::External(uuid) => {
            return Journal::External {
                uuid: text::uuid(&uuid),
            };
        }
        JournalPlace::Inode(ino) => ino,
    };
    match log(queue, sb, inode) {
        Ok(log) => Journal::Internal {
            inode: inode.0,
            has_backup: sb.journal_backup().is_some(),
            log,
        },
        Err(error) => Journal::Unreadable {
            inode: inode.0,
            why: error.to_string(),
        },
    }
}

fn log(queue: &Queue, sb: &Superblock, inode: crate::disk::Ino) -> Result<Log> {
    let map = crate::journal_inode::map(queue, sb, inode)?;
    let size = sb.geometry().block_size;
    // JournalMap refuses a map without blocks.
    let (at, _) = map.locate(0);
    let block = queue
        .read(size.offset_of(at), size.bytes(), IoTag::default())
        .map_err(io_error)?;
    let facts = JournalInfo::parse(&block).map_err(crate::journal_format_error)?;
    Ok(Log {
        features: facts.features,
        block_size: facts.block_size,
        blocks: facts.blocks,
        fast_commit_blocks: facts.fast_commit_blocks,
        first: facts.first,
        sequence: facts.sequence,
        start: facts.start,
        aborted: facts.aborted,
        checksum_is_right: facts.checksum_is_right,
    })
}
