//! The options of a volume and their values.

use std::path::PathBuf;

use steadfs_vfs::options::{CommonOptions, OnError};

use crate::disk::inode::{CompressAlgorithm, Compression};
use crate::segment::rules::GcRules;

/// `background_gc=`: cleaning while the volume is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundGc {
    /// It reads and marks dirty; write-back writes.
    #[default]
    On,
    /// Only where space is needed at once.
    Off,
    /// Each round writes what it moved itself.
    Sync,
}

/// `mode=`: where blocks go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// To free segments, into the holes of used ones, or in place.
    #[default]
    Adaptive,
    /// Always to free segments, one behind the other.
    Lfs,
}

/// `alloc_mode=`: which free segment is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocMode {
    /// The next one behind the last.
    Default,
    /// The first one of the volume.
    Reuse,
}

/// `fsync_mode=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsyncMode {
    /// A file's own changes.
    #[default]
    Posix,
    /// The names it depends on, too.
    Strict,
    /// As `posix`, without a FLUSH.
    NoBarrier,
}

/// `lookup_mode=`: where names of case-insensitive directories are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupMode {
    /// Where their hashes lead to.
    #[default]
    Perf,
    /// Also everywhere else in the directory.
    Compat,
    /// As `compat`, unless the superblock says that no kernel with other rules of folding has written the volume.
    Auto,
}

/// `discard_unit=`: smallest piece that is discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardUnit {
    /// Blocks.
    #[default]
    Block,
    /// Whole segments.
    Segment,
    /// Whole sections.
    Section,
}

/// How much of the volume may be unusable while checkpoints are switched off (`checkpoint=disable:`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// A number of blocks.
    Blocks(u32),
    /// Percent of the blocks users may fill.
    Percent(u8),
}

impl Unusable {
    /// The limit in blocks, of `user_blocks` that users may fill; rounded as in the kernel.
    pub const fn blocks(self, user_blocks: u64) -> u64 {
        match self {
            Self::Blocks(blocks) => blocks as u64,
            Self::Percent(100) => user_blocks,
            Self::Percent(percent) => user_blocks / 100 * percent as u64,
        }
    }
}

/// `compress_mode=`: who decides when clusters are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressMode {
    /// Write-back.
    #[default]
    Fs,
    /// Programs, by ioctls.
    User,
}

/// Compression of new files (`compress_*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressOptions {
    /// `compress_algorithm=`.
    pub algorithm: CompressAlgorithm,
    /// Its level, 0 for none. It is stored in inodes, for the kernel; the encoders here have one level.
    pub level: u8,
    /// `compress_log_size=`: log2 of the blocks in a cluster.
    pub log_cluster: u8,
    /// `compress_chksum`: clusters get a checksum.
    pub checksum: bool,
    /// `compress_mode=`.
    pub mode: CompressMode,
    /// `compress_extension=`: endings of names of new files that are compressed.
    pub extensions: Vec<String>,
    /// `nocompress_extension=`: endings of names that are not, whatever else says so.
    pub not_extensions: Vec<String>,
}

impl Default for CompressOptions {
    fn default() -> Self {
        Self {
            algorithm: CompressAlgorithm::Lz4,
            level: 0,
            log_cluster: 2,
            checksum: false,
            mode: CompressMode::default(),
            extensions: Vec::new(),
            not_extensions: Vec::new(),
        }
    }
}

impl CompressOptions {
    /// The parameters of a file that begins to be compressed.
    pub fn of_new_file(&self) -> Compression {
        Compression::new(self.algorithm, self.level, self.log_cluster, self.checksum)
    }
}

/// Options of an f2fs volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What ext4 has, too.
    pub common: CommonOptions,
    /// `norecovery`, `disable_roll_forward`: what fsync wrote after the checkpoint is not looked for.
    pub no_recovery: bool,
    /// `errors=`.
    pub errors: OnError,
    /// `background_gc=`.
    pub background_gc: BackgroundGc,
    /// `gc_policy=`: the kernel by whose rules segments are cleaned and filled.
    pub gc_policy: &'static dyn GcRules,
    /// `atgc`: background GC selects victims by age, and moves data to data of the same age.
    pub atgc: bool,
    /// `gc_merge`: tasks that need space wait for the GC task.
    pub gc_merge: bool,
    /// `discard`, `nodiscard`: freed blocks are discarded. `None`: if the device can.
    pub discard: Option<bool>,
    /// `discard_unit=`.
    pub discard_unit: DiscardUnit,
    /// `active_logs=`: 2, 4 or 6.
    pub active_logs: u8,
    /// Not `disable_ext_identify`: the superblock's list of file extensions says what is hot and cold.
    pub ext_identify: bool,
    /// `inline_xattr`: new inodes have room for attributes.
    pub inline_xattr: bool,
    /// `inline_xattr_size=`: words of that room, where inodes can say it. `None`: 50.
    pub inline_xattr_size: Option<u16>,
    /// `lookup_mode=`.
    pub lookup_mode: LookupMode,
    /// `inline_data`: small files lie in their inodes.
    pub inline_data: bool,
    /// `inline_dentry`: so do small directories.
    pub inline_dentry: bool,
    /// `barrier`: not `nobarrier`, with which no FLUSH is sent.
    pub barrier: bool,
    /// `fastboot`: each fsync is a checkpoint, so that the next mount is quick.
    pub fastboot: bool,
    /// `atomic_write`: files can be written atomically, for which each open and close of a file is a message.
    pub atomic_write: bool,
    /// `data_flush`: background checkpoints write file data before.
    pub data_flush: bool,
    /// `reserve_root=`: blocks for the superuser, and for `resuid` and `resgid`.
    pub reserve_root: u32,
    /// `mode=`.
    pub mode: Mode,
    /// `alloc_mode=`. `None`: `reuse` up to 16 GiB, else `default`.
    pub alloc_mode: Option<AllocMode>,
    /// `fsync_mode=`.
    pub fsync_mode: FsyncMode,
    /// `checkpoint_merge`: those who need a checkpoint at one time share it.
    pub checkpoint_merge: bool,
    /// `checkpoint=disable`: none is written, and a power cut or an unmount brings back the last one; with how
    /// much of the volume may be unusable meanwhile.
    pub checkpoint_off: Option<Unusable>,
    /// `compress_*`.
    pub compress: CompressOptions,
    /// `device=`: the second and the further devices of the volume, in the order of the superblock's list.
    pub devices: Vec<PathBuf>,
    /// All devices of the volume are joined in the one that it is opened on; no option of a list.
    pub is_joined: bool,
}
