//! Options of mkfs.

use std::path::PathBuf;

use steadfs_base::parse_uuid_option;
use steadfs_rt::{random_u64, wall_clock};

use super::FormatError;
use super::plan::SEGMENT_BYTES;
use crate::disk::casefold::Encoding;
use crate::disk::features::{Features, WRITE};

/// File name extensions of cold data, which rarely changes: media, archives, programs.
const COLD: [&str; 36] = [
    "mp", "wm", "og", "jp", "avi", "m4v", "m4p", "mkv", "mov", "webm", "wav", "m4a", "3gp", "opus",
    "flac", "gif", "png", "svg", "webp", "jar", "deb", "iso", "gz", "xz", "zst", "pdf", "pyc",
    "ttc", "ttf", "exe", "apk", "cnt", "exo", "odex", "vdex", "so",
];
/// File name extensions of hot data, which often changes: databases and disk images of virtual machines.
const HOT: [&str; 4] = ["db", "vmdk", "vdi", "qcow2"];

/// Features that require `extra_attr`.
const NEED_EXTRA: [Features; 5] = [
    Features::PROJECT_QUOTA,
    Features::INODE_CHECKSUM,
    Features::FLEXIBLE_INLINE_XATTR,
    Features::INODE_CRTIME,
    Features::COMPRESSION,
];

/// Options of a new volume; the defaults are those of mkfs.f2fs.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatOptions {
    /// Label: at most 511 units of UTF-16 (`-l`).
    pub label: String,
    /// UUID; a random one if `None` (`-U`).
    pub uuid: Option<[u8; 16]>,
    /// Features (`-O`); see [`FormatOptions::set_features`].
    pub features: Features,
    /// Segments of 2 MiB per section, the unit of GC (`-s`).
    pub segments_per_section: u32,
    /// Sections per zone; logs start in different zones (`-z`).
    pub sections_per_zone: u32,
    /// Overprovision in percent; if `None`, the one that leaves the most space to users (`-o`).
    pub overprovision: Option<f64>,
    /// File name extensions of cold data, in addition to the default ones (`-e`).
    pub cold_extensions: Vec<String>,
    /// File name extensions of hot data, in addition to the default ones (`-E`).
    pub hot_extensions: Vec<String>,
    /// Encoding of names in case-insensitive directories (`-C`).
    pub encoding: Option<Encoding>,
    /// Use checkpoint payload blocks for a larger NAT bitmap, so that more nodes are possible (`-i`).
    pub large_nat_bitmap: bool,
    /// Discard the device's old content first (`-t`).
    pub discard: bool,
    /// Owner and group of the root directory and of `lost+found` (`-R`).
    pub root_owner: (u32, u32),
    /// Sector size in bytes, 512 to 4096; the device's if `None` (`-w`).
    pub sector_size: Option<u32>,
    /// Timestamps of the first inodes in seconds; the current time if `None` (`-T`).
    pub time: Option<i64>,
    /// Version of the first checkpoint, odd. If `None` it is random, so that nodes of an older volume on the same
    /// device are not recovered; if UUID and time are given it is derived from the UUID.
    pub checkpoint_version: Option<u32>,
    /// The program recorded in the superblock.
    pub program: String,
    /// Further devices of the volume, at most 7 (`-c`). [`format()`](super::format()) does not open them: it takes them as
    /// [`FormatOptions::devices`].
    pub other_devices: Vec<PathBuf>,
    /// All devices of a volume on several, which are joined in the one that is formatted; empty for one.
    pub devices: Vec<DevicePart>,
}

/// A device of a volume on several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePart {
    /// Its path as the superblock stores it, at most 63 bytes.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
}

impl DevicePart {
    /// The most devices of a volume (`MAX_DEVICES`).
    pub const MAX: usize = 8;

    /// How many bytes of it belong to the volume: whole segments.
    pub fn used(&self) -> u64 {
        self.bytes / SEGMENT_BYTES * SEGMENT_BYTES
    }

    /// Whether the superblock has room for its path, and the volume uses a part of it.
    pub(super) fn check(&self) -> Result<(), FormatError> {
        let path = &self.path;
        if path.is_empty() || path.len() >= 64 || path.contains('\0') {
            let why = format!("{path:?} does not have 1 to 63 bytes");
            return Err(FormatError::option("-c", why));
        }
        if self.used() == 0 {
            let why = format!("{path} has {} bytes, a segment 2 MiB", self.bytes);
            return Err(FormatError::option("-c", why));
        }
        Ok(())
    }
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            label: String::new(),
            uuid: None,
            features: Features::default(),
            segments_per_section: 1,
            sections_per_zone: 1,
            overprovision: None,
            cold_extensions: Vec::new(),
            hot_extensions: Vec::new(),
            encoding: None,
            large_nat_bitmap: false,
            discard: true,
            root_owner: (0, 0),
            sector_size: None,
            time: None,
            checkpoint_version: None,
            program: concat!("steadfs ", env!("CARGO_PKG_VERSION")).to_owned(),
            other_devices: Vec::new(),
            devices: Vec::new(),
        }
    }
}

impl FormatOptions {
    /// The names of the features that a list of `-O` may have.
    pub fn feature_names() -> Vec<String> {
        let names = WRITE.names().into_iter();
        names.map(|name| name.to_string()).collect()
    }

    /// Adds features: names as in mkfs.f2fs, separated by commas.
    ///
    /// # Errors
    /// An unknown feature, or one that is not supported here.
    pub fn set_features(&mut self, list: &str) -> Result<(), FormatError> {
        for name in words(list) {
            let Some(feature) = Features::by_name(name) else {
                return Err(FormatError::option("feature", format!("{name} is unknown")));
            };
            if !WRITE.contains(feature) {
                return Err(FormatError::Unsupported(format!("the feature {name}")));
            }
            self.features = self.features.union(feature);
        }
        Ok(())
    }

    /// Adds file name extensions of cold data, separated by commas.
    pub fn add_cold(&mut self, list: &str) {
        self.cold_extensions.extend(words(list).map(str::to_owned));
    }

    /// Adds file name extensions of hot data, separated by commas.
    pub fn add_hot(&mut self, list: &str) {
        self.hot_extensions.extend(words(list).map(str::to_owned));
    }

    /// Sets the UUID from its text or from one of mke2fs's keywords ([`parse_uuid_option`]).
    ///
    /// # Errors
    /// The text is neither.
    pub fn set_uuid(&mut self, text: &str) -> Result<(), FormatError> {
        let chosen = parse_uuid_option(text, wall_clock(), random_u64());
        self.uuid = chosen.map_err(|why| FormatError::option("UUID", why))?;
        Ok(())
    }

    /// Sets the root directory's owner from `USER:GROUP`, both as numbers.
    ///
    /// # Errors
    /// The text is not of that form.
    pub fn set_root_owner(&mut self, text: &str) -> Result<(), FormatError> {
        let owner = text
            .split_once(':')
            .and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
        self.root_owner = owner.ok_or_else(|| {
            let why = format!("{text} is not of the form UID:GID, such as 1000:100");
            FormatError::option("root's owner", why)
        })?;
        Ok(())
    }

    /// Adds the feature `casefold` with this encoding: `utf8`, or `utf8:strict`.
    ///
    /// # Errors
    /// There is no such encoding.
    pub fn set_encoding(&mut self, text: &str) -> Result<(), FormatError> {
        let is_strict = match text {
            "utf8" => false,
            "utf8:strict" => true,
            _ => {
                let why = format!("{text} is not utf8 or utf8:strict");
                return Err(FormatError::option("encoding", why));
            }
        };
        self.encoding = Some(Encoding {
            is_strict,
            hash_only: false,
        });
        self.features = self.features.union(Features::CASEFOLD);
        Ok(())
    }

    /// Checks that the features are compatible.
    pub(super) fn check_features(&self) -> Result<(), FormatError> {
        if self.features.contains(Features::CASEFOLD) && self.encoding.is_none() {
            let why = "casefold needs an encoding: -C utf8";
            return Err(FormatError::option("feature", why));
        }
        if self.features.contains(Features::EXTRA_ATTR) {
            return Ok(());
        }
        let lonely = NEED_EXTRA.into_iter().find(|&f| self.features.contains(f));
        match lonely {
            None => Ok(()),
            Some(feature) => {
                let why = format!("{} needs extra_attr", feature.names().join(","));
                Err(FormatError::option("feature", why))
            }
        }
    }

    /// The lists of extensions in the superblock: cold, hot.
    pub(super) fn extensions(&self) -> Result<[Vec<&str>; 2], FormatError> {
        let lists = [
            merged(&COLD, &self.cold_extensions)?,
            merged(&HOT, &self.hot_extensions)?,
        ];
        let count = lists[0].len() + lists[1].len();
        let most = crate::disk::superblock::MAX_EXTENSIONS;
        if count > most as usize {
            let usual = COLD.len() + HOT.len();
            let why = format!("{count} with the {usual} default ones; a volume has at most {most}");
            return Err(FormatError::option("extensions", why));
        }
        Ok(lists)
    }
}

/// The default and the added extensions, each once.
fn merged<'a>(usual: &[&'a str], added: &'a [String]) -> Result<Vec<&'a str>, FormatError> {
    let mut list = usual.to_vec();
    for extension in added {
        if extension.is_empty() || extension.len() >= 8 {
            let why = format!("{extension:?} does not have 1 to 7 bytes");
            return Err(FormatError::option("extension", why));
        }
        if !list.contains(&extension.as_str()) {
            list.push(extension);
        }
    }
    Ok(list)
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split([',', ' ']).filter(|word| !word.is_empty())
}
