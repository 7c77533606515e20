//! Options of a new volume. Names and defaults are those of mke2fs.

use std::path::PathBuf;

use steadfs_base::{BlockSize, Timestamp, parse_uuid, parse_uuid_option, size};
use steadfs_rt::{random_u64, wall_clock};
use steadfs_vfs::options::bytes;

use super::{FormatError, NamedJournal, quota};
use crate::disk::mmp::UPDATE_INTERVAL_MAX;
use crate::disk::superblock::OnError;

/// The smallest unit that every device can address.
const SECTOR: u64 = 512;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Sizes that clusters can have.
const CLUSTER_BYTES: std::ops::RangeInclusive<u32> = 2048..=1 << 29;

/// The kind of volume (`-t`): which features it starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// No journal, block maps.
    Ext2,
    /// A journal, block maps.
    Ext3,
    /// Journal, extents, checksums, flexible groups.
    #[default]
    Ext4,
}

/// What the volume is for (`-T`): block size and number of inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// 1 KiB blocks, an inode for 8 KiB.
    Floppy,
    /// 1 KiB blocks, an inode for 4 KiB.
    Small,
    /// 4 KiB blocks, an inode for 16 KiB.
    Default,
    /// An inode for 32 KiB.
    Big,
    /// An inode for 64 KiB.
    Huge,
    /// An inode for 4 KiB.
    News,
    /// An inode for 1 MiB.
    LargeFile,
    /// An inode for 4 MiB.
    LargeFile4,
}

/// A place or an amount of space: blocks, whose size is chosen later, or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlocksOrBytes {
    /// A number of blocks.
    Blocks(u64),
    /// A number of bytes.
    Bytes(u64),
}

impl BlocksOrBytes {
    /// The whole blocks in it.
    pub(super) const fn whole_blocks(self, block_size: u32) -> u64 {
        match self {
            Self::Blocks(blocks) => blocks,
            Self::Bytes(bytes) => bytes / block_size as u64,
        }
    }

    /// The blocks that contain it.
    pub(super) const fn blocks(self, block_size: u32) -> u64 {
        match self {
            Self::Blocks(blocks) => blocks,
            Self::Bytes(bytes) => bytes.div_ceil(block_size as u64),
        }
    }
}

/// How a volume is made. The default is an ext4 volume as `mke2fs -t ext4` of e2fsprogs 1.47 makes
/// it; what is `None` follows from the size.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatOptions {
    /// Kind of volume (`-t`).
    pub kind: Kind,
    /// What it is for (`-T`); later ones win. Empty: by size.
    pub usage: Vec<Usage>,
    /// Bytes in a block (`-b`), a power of two from 1024 to 65536.
    pub block_size: Option<u32>,
    /// Smallest block size (`-b` with a minus) if the volume's size decides.
    pub least_block_size: Option<u32>,
    /// Bytes in a sector of the device: no block is smaller. The queue's unit if `None`.
    pub sector_size: Option<u32>,
    /// Bytes in a cluster (`-C`) with the feature bigalloc, a power of two; 16 blocks if `None`.
    pub cluster_size: Option<u32>,
    /// Blocks in a group (`-g`), a multiple of 8; clusters with bigalloc.
    pub blocks_per_group: Option<u32>,
    /// Groups in a flex group (`-G`), a power of two.
    pub flex_group_size: Option<u32>,
    /// Number of inodes (`-N`).
    pub inodes: Option<u64>,
    /// Bytes of the volume for each inode (`-i`), 1024 to 67108864.
    pub inode_ratio: Option<u32>,
    /// Bytes in an inode (`-I`), a power of two from 128 to the block size.
    pub inode_size: Option<u16>,
    /// Label (`-L`), at most 16 bytes.
    pub label: String,
    /// Directory it counts as last mounted on (`-M`), at most 64 bytes.
    pub last_mounted: String,
    /// UUID (`-U`); random if `None`.
    pub uuid: Option<[u8; 16]>,
    /// Seed of directory hashes (`-E hash_seed=`). If `None`, it follows from the UUID where that and the time are
    /// given, and is random otherwise.
    pub hash_seed: Option<[u8; 16]>,
    /// Changes to the kind's features (`-O`): names separated by commas; `^` before a name removes it, `none` removes
    /// all.
    pub features: String,
    /// A journal is wanted (`-j`), whatever the kind.
    pub journal: bool,
    /// The file or block device of an external journal (`-J device=`), which the caller opens.
    pub journal_device: Option<PathBuf>,
    /// What the volume names of it; implies one.
    pub external_journal: Option<NamedJournal>,
    /// Size of the journal in MiB (`-J size=`); implies one.
    pub journal_size: Option<u32>,
    /// Size of the journal's fast-commit area in KiB (`-J fast_commit_size=`).
    pub fast_commit_size: Option<u32>,
    /// Where the journal is placed, or near it (`-J location=`); bytes are rounded down to blocks.
    pub journal_location: Option<BlocksOrBytes>,
    /// Percent of the blocks that only root may use (`-m`), 0 to 50.
    pub reserved_percent: f64,
    /// What is done about errors (`-e`).
    pub errors: OnError,
    /// Blocks of a RAID chunk (`-E stride=`).
    pub stride: u32,
    /// Blocks of a RAID stripe (`-E stripe_width=`).
    pub stripe_width: u32,
    /// The size to which the volume can grow while mounted (`-E resize=`); bytes are rounded down to blocks.
    pub resize: Option<BlocksOrBytes>,
    /// Superblock copies with `sparse_super2` (`-E num_backup_sb=`), 0 to 2.
    pub backup_superblocks: u8,
    /// Seconds between updates of multiple-mount protection (`-E mmp_update_interval=`), at most 300; 0 stands for 5.
    pub mmp_update_interval: u16,
    /// The device's name in the block of multiple-mount protection; set by the program that opens the device.
    pub device_name: Vec<u8>,
    /// Leave zeroing of unused inode tables to the kernel (`-E lazy_itable_init=`).
    pub lazy_itable_init: bool,
    /// Do not zero the journal (`-E lazy_journal_init=`).
    pub lazy_journal_init: bool,
    /// The device is known to hold zeros (`-E assume_storage_prezeroed=`).
    pub prezeroed: bool,
    /// Put all bitmaps and inode tables at the volume's start (`-E packed_meta_blocks=`).
    pub packed_meta_blocks: bool,
    /// User and group of the root directory (`-E root_owner=`); 0 and 0 if `None`.
    pub root_owner: Option<(u32, u32)>,
    /// Permissions of the root directory (`-E root_perms=`); 755 if `None`.
    pub root_perms: Option<u16>,
    /// User and group that make the volume: what `-E root_owner` without a value means.
    pub caller: (u32, u32),
    /// Discard the device first (`-E discard`, `-E nodiscard`).
    pub discard: bool,
    /// The byte of the device where the volume begins (`-E offset=`), a multiple of 512; used by the program that opens
    /// the device.
    pub offset: u64,
    /// Size of the orphan file; as fits the volume if `None`.
    pub orphan_file: Option<BlocksOrBytes>,
    /// Whose usage is counted with the feature quota: of users, groups, projects (`-E quotatype=`); `None`: of users and
    /// groups, and of projects if the volume has them.
    pub quota_types: Option<[bool; 3]>,
    /// Directories can compare names without case, as UTF-8 of Unicode 12.1 (`-E encoding=utf8`); implies `casefold`.
    pub casefold: bool,
    /// Whether these directories refuse names that are not UTF-8 (`-E encoding_flags=strict`); no if `None`.
    pub strict_names: Option<bool>,
    /// When it is made; now if `None`. Whole seconds are stored.
    pub time: Option<Timestamp>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            kind: Kind::Ext4,
            usage: Vec::new(),
            block_size: None,
            least_block_size: None,
            sector_size: None,
            cluster_size: None,
            blocks_per_group: None,
            flex_group_size: None,
            inodes: None,
            inode_ratio: None,
            inode_size: None,
            label: String::new(),
            last_mounted: String::new(),
            uuid: None,
            hash_seed: None,
            features: String::new(),
            journal: false,
            journal_device: None,
            external_journal: None,
            journal_size: None,
            fast_commit_size: None,
            journal_location: None,
            reserved_percent: 5.0,
            errors: OnError::Continue,
            stride: 0,
            stripe_width: 0,
            resize: None,
            backup_superblocks: 2,
            mmp_update_interval: 0,
            device_name: Vec::new(),
            lazy_itable_init: true,
            lazy_journal_init: false,
            prezeroed: false,
            packed_meta_blocks: false,
            root_owner: None,
            root_perms: None,
            caller: (0, 0),
            discard: true,
            offset: 0,
            orphan_file: None,
            quota_types: None,
            casefold: false,
            strict_names: None,
            time: None,
        }
    }
}

impl FormatOptions {
    /// A volume of this kind, everything else as it is by default.
    pub fn of(kind: Kind) -> Self {
        Self {
            kind,
            ..Self::default()
        }
    }

    /// Takes a kind as `-t` has it.
    pub fn set_kind(&mut self, name: &str) -> Result<(), FormatError> {
        self.kind = match name {
            "ext2" => Kind::Ext2,
            "ext3" => Kind::Ext3,
            "ext4" => Kind::Ext4,
            _ => {
                return Err(FormatError::option(
                    "-t",
                    format!("{name} is not ext2, ext3, ext4 or f2fs"),
                ));
            }
        };
        Ok(())
    }

    /// Takes a block size as `-b` has it: with a minus it is the least, and the volume's size decides.
    pub fn set_block_size(&mut self, text: &str) -> Result<(), FormatError> {
        let least = text.strip_prefix('-');
        let size = bytes(least.unwrap_or(text));
        let size =
            size.map_err(|why| FormatError::option("block size", format!("{text}: {why}")))?;
        let size = u32::try_from(size).ok();
        let size = size.filter(|size| BlockSize::new(*size).is_some());
        if size.is_none() {
            let why = format!("{text} is not a power of two from 1024 to 65536");
            return Err(FormatError::option("block size", why));
        }
        match least {
            Some(_) => self.least_block_size = size,
            None => self.block_size = size,
        }
        Ok(())
    }

    /// Takes a cluster size as `-C` has it.
    pub fn set_cluster_size(&mut self, text: &str) -> Result<(), FormatError> {
        let size = bytes(text)
            .map_err(|why| FormatError::option("cluster size", format!("{text}: {why}")))?;
        let size = u32::try_from(size).ok();
        let valid = |size: &u32| size.is_power_of_two() && CLUSTER_BYTES.contains(size);
        self.cluster_size = size.filter(valid);
        if self.cluster_size.is_none() {
            let (least, most) = (CLUSTER_BYTES.start(), CLUSTER_BYTES.end());
            let why = format!("{text} is not a power of two from {least} to {most}");
            return Err(FormatError::option("cluster size", why));
        }
        Ok(())
    }

    /// Takes a list of usages as `-T` has it.
    pub fn set_usage(&mut self, list: &str) -> Result<(), FormatError> {
        for name in list.split(',') {
            self.usage.push(match name {
                "floppy" => Usage::Floppy,
                "small" => Usage::Small,
                "default" => Usage::Default,
                "big" => Usage::Big,
                "huge" => Usage::Huge,
                "news" => Usage::News,
                "largefile" => Usage::LargeFile,
                "largefile4" => Usage::LargeFile4,
                _ => {
                    let why = format!(
                        "{name} is not floppy, small, default, big, huge, news, largefile or \
                         largefile4"
                    );
                    return Err(FormatError::option("-T", why));
                }
            });
        }
        Ok(())
    }

    /// Takes a list of journal options as `-J` has it: `size=SIZE` (a bare number counts MiB), `fast_commit_size=SIZE` (KiB),
    /// `location=BLOCK` or `location=SIZE`, or `device=PATH`.
    pub fn set_journal(&mut self, list: &str) -> Result<(), FormatError> {
        self.journal = true;
        for (name, value) in settings(list) {
            let option = format!("-J {name}");
            match name {
                "size" => self.journal_size = Some(units_of(MIB, &option, value)?),
                "fast_commit_size" => self.fast_commit_size = Some(units_of(KIB, &option, value)?),
                "location" => self.journal_location = Some(blocks_or_bytes(&option, value)?),
                "device" => self.journal_device = Some(device(&option, value)?),
                "v1_superblock" => return Err(FormatError::Unsupported(option)),
                _ => {
                    return Err(FormatError::option(
                        option,
                        "there is no such journal option",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Takes a list of extended options as `-E` has it.
    pub fn set_extended(&mut self, list: &str) -> Result<(), FormatError> {
        for (name, value) in settings(list) {
            let option = format!("-E {name}");
            match name {
                "stride" => self.stride = number(&option, value)?,
                "stripe-width" | "stripe_width" => self.stripe_width = number(&option, value)?,
                "resize" => self.resize = Some(blocks_or_bytes(&option, value)?),
                "num_backup_sb" => self.backup_superblocks = number(&option, value)?,
                "hash_seed" => {
                    let text = value.unwrap_or_default();
                    let seed = parse_uuid(text).ok_or_else(|| {
                        FormatError::option(&option, format!("'{text}' is not a UUID"))
                    })?;
                    self.hash_seed = Some(seed);
                }
                "lazy_itable_init" => self.lazy_itable_init = switch(&option, value)?,
                "lazy_journal_init" => self.lazy_journal_init = switch(&option, value)?,
                "assume_storage_prezeroed" => self.prezeroed = switch(&option, value)?,
                "packed_meta_blocks" => self.packed_meta_blocks = switch(&option, value)?,
                "discard" => self.discard = true,
                "nodiscard" => self.discard = false,
                "offset" => {
                    let offset = bytes(value.unwrap_or_default());
                    self.offset = offset.map_err(|why| FormatError::option(&option, why))?;
                    if !self.offset.is_multiple_of(SECTOR) {
                        let why = format!("needs a multiple of {SECTOR} bytes");
                        return Err(FormatError::option(option, why));
                    }
                }
                "root_owner" => {
                    self.root_owner = Some(match value {
                        None => self.caller,
                        Some(_) => owner(&option, value)?,
                    });
                }
                "root_perms" => self.root_perms = Some(permissions(&option, value)?),
                "encoding" => {
                    self.casefold = true;
                    encoding(&option, value)?;
                }
                "encoding_flags" => self.strict_names = Some(is_strict(&option, value)?),
                "orphan_file_size" => self.orphan_file = Some(blocks_or_bytes(&option, value)?),
                "mmp_update_interval" => {
                    self.mmp_update_interval = number(&option, value)?;
                    if self.mmp_update_interval > UPDATE_INTERVAL_MAX {
                        let why = format!("is longer than {UPDATE_INTERVAL_MAX} seconds");
                        return Err(FormatError::option(option, why));
                    }
                }
                "quotatype" => {
                    let kinds = quota::parse(value.unwrap_or_default());
                    let kinds = kinds.map_err(|why| FormatError::option(&option, why))?;
                    self.quota_types = Some(kinds);
                }
                "desc-size" | "desc_size" | "no_copy_xattrs" | "test_fs" | "android_sparse" => {
                    return Err(FormatError::Unsupported(option));
                }
                _ => {
                    return Err(FormatError::option(
                        option,
                        "there is no such extended option",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Takes a UUID as `-U` has it ([`parse_uuid_option`]).
    pub fn set_uuid(&mut self, text: &str) -> Result<(), FormatError> {
        let chosen = parse_uuid_option(text, wall_clock(), random_u64());
        self.uuid = chosen.map_err(|why| FormatError::option("-U", why))?;
        Ok(())
    }

    /// Takes what to do about errors as `-e` has it.
    pub fn set_errors(&mut self, text: &str) -> Result<(), FormatError> {
        self.errors = match text {
            "continue" => OnError::Continue,
            "remount-ro" => OnError::ReadOnly,
            "panic" => OnError::Panic,
            _ => {
                let why = format!("{text} is not continue, remount-ro or panic");
                return Err(FormatError::option("-e", why));
            }
        };
        Ok(())
    }
}

/// Names with their values, if any.
fn settings(list: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    list.split(',')
        .filter(|word| !word.is_empty())
        .map(|word| match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        })
}

/// The path of a journal's device.
fn device(option: &str, value: Option<&str>) -> Result<PathBuf, FormatError> {
    match value.unwrap_or_default() {
        "" => Err(FormatError::option(option, "needs a path (=PATH)")),
        name if name.starts_with("UUID=") || name.starts_with("LABEL=") => {
            let why = "devices are not searched here; blkid(8) finds the path";
            Err(FormatError::option(option, why))
        }
        path => Ok(PathBuf::from(path)),
    }
}

fn number<T: TryFrom<u64>>(option: &str, value: Option<&str>) -> Result<T, FormatError> {
    let fail = |why: String| FormatError::option(option, why);
    let text = value.ok_or_else(|| fail("needs a number (=NUMBER)".to_owned()))?;
    let number: u64 = text
        .parse()
        .map_err(|_| fail(format!("'{text}' is not a whole number")))?;
    T::try_from(number).map_err(|_| fail(format!("{text} is too large")))
}

/// A number of blocks, or with a unit a size, as mke2fs takes it.
fn blocks_or_bytes(option: &str, value: Option<&str>) -> Result<BlocksOrBytes, FormatError> {
    let text = value.unwrap_or_default();
    let size = size::parse(text, 1).map_err(|why| wrong_size(option, text, &why))?;
    Ok(match size::is_bare(text) {
        true => BlocksOrBytes::Blocks(size),
        false => BlocksOrBytes::Bytes(size),
    })
}

/// A size in units of `unit` bytes, which a bare number counts.
fn units_of(unit: u64, option: &str, value: Option<&str>) -> Result<u32, FormatError> {
    let text = value.unwrap_or_default();
    let size = size::parse(text, unit).map_err(|why| wrong_size(option, text, &why))?;
    if !size.is_multiple_of(unit) {
        let why = format!("{text}: needs a multiple of {unit} bytes");
        return Err(FormatError::option(option, why));
    }
    let count = u32::try_from(size / unit);
    count.map_err(|_| FormatError::option(option, format!("{text} is too large")))
}

fn wrong_size(option: &str, text: &str, why: &size::SizeError) -> FormatError {
    FormatError::option(
        option,
        match text {
            "" => why.to_string(),
            text => format!("{text}: {why}"),
        },
    )
}

/// Names of the only encoding that file systems have.
const ENCODINGS: [&str; 2] = ["utf8", "utf8-12.1"];

fn encoding(option: &str, value: Option<&str>) -> Result<(), FormatError> {
    let text = value.unwrap_or_default();
    match ENCODINGS.contains(&text) {
        true => Ok(()),
        false => {
            let why = format!("'{text}' is not utf8 or utf8-12.1");
            Err(FormatError::option(option, why))
        }
    }
}

fn is_strict(option: &str, value: Option<&str>) -> Result<bool, FormatError> {
    match value.unwrap_or_default() {
        "strict" => Ok(true),
        "nostrict" => Ok(false),
        text => {
            let why = format!("'{text}' is not strict or nostrict");
            Err(FormatError::option(option, why))
        }
    }
}

/// On without a value, else 0 or 1.
fn switch(option: &str, value: Option<&str>) -> Result<bool, FormatError> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(text) => Err(FormatError::option(
            option,
            format!("'{text}' is not 0 or 1"),
        )),
    }
}

fn permissions(option: &str, value: Option<&str>) -> Result<u16, FormatError> {
    let text = value.unwrap_or_default();
    let perms = u16::from_str_radix(text, 8).ok();
    perms.filter(|&perms| perms <= 0o7777).ok_or_else(|| {
        let why = format!("'{text}' is not an octal number such as 755");
        FormatError::option(option, why)
    })
}

fn owner(option: &str, value: Option<&str>) -> Result<(u32, u32), FormatError> {
    let text = value.unwrap_or_default();
    let parse = || {
        let (uid, gid) = text.split_once(':')?;
        Some((uid.parse().ok()?, gid.parse().ok()?))
    };
    parse().ok_or_else(|| FormatError::option(option, format!("'{text}' is not UID:GID")))
}
