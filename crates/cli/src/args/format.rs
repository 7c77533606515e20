//! Arguments of `format`.

use std::path::PathBuf;

use super::{Owners, Sandbox, number, percent, sandbox, size};

/// Format an ext2, ext3, ext4 or f2fs volume; existing content is lost.
///
/// Options and defaults are mke2fs's. With `-t f2fs` they are those of mkfs.f2fs (see steadfs format -t f2fs --help):
/// -i, -m, -r, -t 0, -T, -g, -o, -s, -z and others then have mkfs.f2fs's meaning. SOURCE_DATE_EPOCH sets all times in
/// the volume: with it and -U the same tree gives the same bytes.
#[derive(Debug, clap::Args)]
#[command(version, args_override_self = true)]
pub struct Format {
    /// Image file or block device.
    pub volume: PathBuf,
    /// Size of the volume; an image file is created or extended. A bare number counts blocks of -b bytes, or KiB
    /// without -b (f2fs: sectors), as in mke2fs; others have a unit (see SIZES in steadfs(1)): 64M, 64MiB, 64MB, 0.5G, 131072s.
    pub size: Option<String>,
    /// Kind of volume: ext2, ext3, ext4 (the default) or f2fs.
    #[arg(short = 't', long = "type", value_name = "KIND")]
    pub kind: Vec<String>,
    /// Usage type: floppy, small, default, big, huge, news, largefile or largefile4.
    #[arg(short = 'T', long, value_name = "LIST")]
    pub usage: Option<String>,
    /// Bytes in a block: a power of two from 1024 to 65536. With a minus, as in -4096: a
    /// minimum; the volume's size decides.
    #[arg(short, long, value_name = "BYTES", allow_hyphen_values = true)]
    pub block_size: Option<String>,
    /// Bytes in a cluster with -O bigalloc: a power of two from 2048 to 512M; default 16 blocks.
    #[arg(short = 'C', long, value_name = "BYTES")]
    pub cluster_size: Option<String>,
    /// Number of inodes.
    #[arg(short = 'N', long, value_name = "NUMBER", value_parser = number::<u64>)]
    pub inodes: Option<u64>,
    /// Bytes of the volume for each inode.
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = size::<u32>)]
    pub inode_ratio: Option<u32>,
    /// Bytes in an inode.
    #[arg(short = 'I', long, value_name = "BYTES", value_parser = size::<u16>)]
    pub inode_size: Option<u16>,
    /// Blocks in a group, with -O bigalloc clusters: a multiple of 8.
    #[arg(short = 'g', long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub blocks_per_group: Option<u32>,
    /// Groups whose bitmaps and inode tables are stored together: a power of two; default 16.
    #[arg(short = 'G', long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub flex_group_size: Option<u32>,
    /// Last mount point to record in the superblock.
    #[arg(short = 'M', long, value_name = "DIR")]
    pub last_mounted: Option<String>,
    /// Revision of the format: 1. Revision 0 is not supported.
    #[arg(short, long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub revision: Option<u32>,
    /// Use O_DIRECT, as mke2fs -D; it is the default if the device supports it.
    #[arg(short = 'D', long)]
    pub direct: bool,
    /// Percentage of blocks reserved for root; default 5.
    #[arg(short = 'm', long, value_name = "PERCENT", value_parser = percent)]
    pub reserved: Option<f64>,
    /// Label: at most 16 bytes, f2fs (there also -l) 511 units of UTF-16.
    #[arg(short = 'L', long)]
    pub label: Option<String>,
    /// UUID, or random, time, clear.
    #[arg(short = 'U', long)]
    pub uuid: Option<String>,
    /// Features, separated by commas; ^ removes one. journal_dev: make an external journal instead of a volume.
    #[arg(short = 'O', long, value_name = "LIST")]
    pub features: Vec<String>,
    /// Create a journal for any kind; the same as -O has_journal.
    #[arg(short = 'j', long)]
    pub with_journal: bool,
    /// Journal options, such as size=64 (MiB) or size=1G, or device=PATH for an external journal.
    #[arg(short = 'J', long, value_name = "LIST")]
    pub journal: Vec<String>,
    /// mke2fs's extended options, such as offset=BYTES (start of the volume on the device) or root_owner[=UID:GID];
    /// f2fs: additional file name extensions of hot data.
    #[arg(short = 'E', long, value_name = "LIST")]
    pub extended: Vec<String>,
    /// Behavior on errors: continue, remount-ro or panic; f2fs: additional file name extensions of cold data.
    #[arg(short = 'e', long)]
    pub errors: Option<String>,
    /// Fill the volume with the content of this directory, or with this tar archive (not compressed; - is standard input);
    /// mkfs.f2fs's debug level -d is not supported. The archive's ./ is the root; a stream's data are kept in TMPDIR, or
    /// /var/tmp, meanwhile.
    #[arg(short = 'd', long, value_name = "DIR|ARCHIVE|-")]
    pub from_dir: Option<PathBuf>,
    /// Make the image as small as what -d fills it with needs, with FREE of it free for users: a size, or a percentage
    /// of the image as in 10%; default none, then root's reserve is used up, too. The image gets its name once it is
    /// complete. The number of inodes follows from the files and FREE, unless -N or -i is given.
    #[arg(long, value_name = "FREE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub fit: Option<String>,
    /// Overwrite existing content: do not ask at a terminal, and replace an existing f2fs volume.
    #[arg(short, long, short_alias = 'F')]
    pub force: bool,
    /// Dry run: print sizes and the locations of superblock backups.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print features, UUID and the locations of superblock backups, too.
    #[arg(short, long)]
    pub verbose: bool,
    /// Print nothing.
    #[arg(short, long)]
    pub quiet: bool,
    /// Creator operating system, as mke2fs -o: Linux.
    #[arg(short = 'o', long, value_name = "OS")]
    pub creator_os: Option<String>,
    /// mke2fs's old name of -E nodiscard.
    #[arg(short = 'K', hide = true)]
    pub keep: bool,
    /// mke2fs's old name of -E.
    #[arg(short = 'R', hide = true)]
    pub raid: Vec<String>,
    /// Parse what the device holds, and fill the volume, in a process without rights over the host, the default, or with
    /// the caller's rights (off); also STEADFS_SANDBOX=off.
    #[arg(long, value_name = "on|off", value_parser = sandbox)]
    pub sandbox: Option<Sandbox>,
    #[command(flatten)]
    pub owners: Owners,
    #[command(flatten)]
    pub refused: RefusedFormat,
    #[command(flatten)]
    pub f2fs: F2fsFormat,
}

/// Options of mke2fs that are refused with a reason.
#[derive(Debug, clap::Args)]
pub struct RefusedFormat {
    #[arg(short = 'c', hide = true)]
    pub bad_blocks: bool,
    #[arg(short = 'l', hide = true)]
    pub bad_block_list: Option<String>,
    #[arg(short = 'S', hide = true)]
    pub superblocks_only: bool,
    #[arg(short = 's', hide = true)]
    pub sparse: Option<String>,
    #[arg(short = 'z', hide = true)]
    pub undo_file: Option<PathBuf>,
}

/// Options of f2fs volumes.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "f2fs only (mkfs.f2fs's letters after -t f2fs in parentheses)")]
pub struct F2fsFormat {
    /// Segments of 2 MiB per section, the unit of GC; default 1 (-s).
    #[arg(long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub segments_per_section: Option<u32>,
    /// Sections per zone; default 1 (-z).
    #[arg(long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub sections_per_zone: Option<u32>,
    /// Percentage of the main area reserved for GC; 0 or none: the optimum (-o).
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub overprovision: Option<f64>,
    /// Larger node bitmap, stored after the checkpoint's checksum (-i).
    #[arg(long)]
    pub extended_node_bitmap: bool,
    /// Owner of the root directory, such as 1000:100; default: the calling user and group (-R).
    #[arg(long, value_name = "USER:GROUP")]
    pub root_owner: Option<String>,
    /// Bytes per sector: 512, 1024, 2048 or 4096; default: the device's (-w).
    #[arg(long, value_name = "BYTES", value_parser = size::<u32>)]
    pub sector_size: Option<u32>,
    /// Do not discard the device's old content (-t 0).
    #[arg(long)]
    pub nodiscard: bool,
}
