//! What a new volume is to be like.

use steadfs_base::parse_uuid_option;
use steadfs_rt::{random_u64, wall_clock};

use super::FormatError;
use crate::disk::features::{Features, WRITE};

/// Extensions of names whose data rarely changes: media, archives, programs.
const COLD: [&str; 36] = [
    "mp", "wm", "og", "jp", "avi", "m4v", "m4p", "mkv", "mov", "webm", "wav", "m4a", "3gp", "opus",
    "flac", "gif", "png", "svg", "webp", "jar", "deb", "iso", "gz", "xz", "zst", "pdf", "pyc",
    "ttc", "ttf", "exe", "apk", "cnt", "exo", "odex", "vdex", "so",
];
/// Extensions of names whose data often changes: databases and disks of virtual machines.
const HOT: [&str; 4] = ["db", "vmdk", "vdi", "qcow2"];

/// Features that need the inodes' extra fields.
const NEED_EXTRA: [Features; 5] = [
    Features::PROJECT_QUOTA,
    Features::INODE_CHECKSUM,
    Features::FLEXIBLE_INLINE_XATTR,
    Features::INODE_CRTIME,
    Features::COMPRESSION,
];

/// What a new volume is to be like; the default is what mkfs.f2fs makes when it is told nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatOptions {
    /// Label: at most 511 units of UTF-16 (`-l`).
    pub label: String,
    /// UUID; a random one if `None` (`-U`).
    pub uuid: Option<[u8; 16]>,
    /// Features (`-O`); see [`FormatOptions::set_features`].
    pub features: Features,
    /// Segments of 2 MiB in a section, the unit of cleaning (`-s`).
    pub segments_per_section: u32,
    /// Sections in a zone; logs start in zones of their own (`-z`).
    pub sections_per_zone: u32,
    /// Percent of the main area that users do not get; what leaves most to them if `None` (`-o`).
    pub overprovision: Option<f64>,
    /// Extensions of names whose data is cold, besides the usual ones (`-e`).
    pub cold_extensions: Vec<String>,
    /// Extensions of names whose data is hot, besides the usual ones (`-E`).
    pub hot_extensions: Vec<String>,
    /// Room for more nodes than the checkpoint's block alone allows (`-i`).
    pub large_nat_bitmap: bool,
    /// Discard the device's old content first (`-t`).
    pub discard: bool,
    /// Owner and group of the root directory and of `lost+found` (`-R`).
    pub root_owner: (u32, u32),
    /// Bytes in a sector, 512 to 4096; the device's if `None` (`-w`).
    pub sector_size: Option<u32>,
    /// Times of the first inodes, in seconds; now if `None` (`-T`).
    pub time: Option<i64>,
    /// Version of the first checkpoint, odd. If `None`, it is random, so that nodes of an older volume on the same device
    /// are not taken for new ones, or follows from the UUID where that and the time are given.
    pub checkpoint_version: Option<u32>,
    /// Which program made the volume, for the superblock.
    pub program: String,
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
            large_nat_bitmap: false,
            discard: true,
            root_owner: (0, 0),
            sector_size: None,
            time: None,
            checkpoint_version: None,
            program: concat!("steadfs ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

impl FormatOptions {
    /// Adds features: names as mkfs.f2fs has them, separated by commas.
    ///
    /// # Errors
    /// A name that is unknown, or a feature that volumes made here cannot have.
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

    /// Adds extensions of names whose data is cold, separated by commas.
    pub fn add_cold(&mut self, list: &str) {
        self.cold_extensions.extend(words(list).map(str::to_owned));
    }

    /// Adds extensions of names whose data is hot, separated by commas.
    pub fn add_hot(&mut self, list: &str) {
        self.hot_extensions.extend(words(list).map(str::to_owned));
    }

    /// Sets the UUID from its text, or from mke2fs's words ([`parse_uuid_option`]).
    ///
    /// # Errors
    /// It is none of these.
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
            let why = format!("{text} is not of the form 1000:100");
            FormatError::option("root's owner", why)
        })?;
        Ok(())
    }

    /// Whether the features fit together.
    pub(super) fn check_features(&self) -> Result<(), FormatError> {
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

    /// Both lists of extensions as the volume gets them: cold, hot.
    pub(super) fn extensions(&self) -> Result<[Vec<&str>; 2], FormatError> {
        let lists = [
            merged(&COLD, &self.cold_extensions)?,
            merged(&HOT, &self.hot_extensions)?,
        ];
        let count = lists[0].len() + lists[1].len();
        let most = crate::disk::superblock::MAX_EXTENSIONS;
        if count > most as usize {
            let usual = COLD.len() + HOT.len();
            let why = format!("{count} with the {usual} usual ones, a volume has at most {most}");
            return Err(FormatError::option("extensions", why));
        }
        Ok(lists)
    }
}

/// The usual ones and those added, each once.
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
