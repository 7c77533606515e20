//! Feature bits: their names as e2fsprogs prints them, and what a mount may do with each.

use std::borrow::Cow;

pub use steadfs_format_base::MountMode;

/// The three feature words of a superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Unknown bits here are ignored.
    pub compat: Compat,
    /// A volume with an unknown bit here cannot be used at all.
    pub incompat: Incompat,
    /// A volume with an unknown bit here can only be read.
    pub ro_compat: RoCompat,
}

macro_rules! feature_set {
    ($(#[$doc:meta])* $set:ident, $letter:literal, { $($(#[$bit_doc:meta])* $name:ident = $value:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $set(pub u32);

        impl $set {
            $($(#[$bit_doc])* pub const $name: Self = Self($value);)*

            const NAMES: &'static [(u32, &'static str)] = &[$(($value, $text)),*];

            /// Whether every bit of `other` is set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The bits of either.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits that `other` does not have.
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Names of all bits set, lowest first; a bit without a name is `FEATURE_` with a
            /// letter and its number, as e2fsprogs prints it.
            pub fn names(self) -> impl Iterator<Item = Cow<'static, str>> {
                (0..u32::BITS)
                    .filter(move |bit| self.0 & (1 << bit) != 0)
                    .map(|bit| {
                        match Self::NAMES.iter().find(|(value, _)| *value == 1 << bit) {
                            Some((_, name)) => Cow::Borrowed(*name),
                            None => Cow::Owned(format!(concat!("FEATURE_", $letter, "{}"), bit)),
                        }
                    })
            }

            /// The bit with this name, among those that have one.
            pub fn by_name(name: &str) -> Option<Self> {
                Self::NAMES
                    .iter()
                    .find(|(_, text)| *text == name)
                    .map(|(value, _)| Self(*value))
            }
        }
    };
}

feature_set! {
    /// `s_feature_compat`.
    Compat, "C", {
        /// Preallocate blocks for directories (never used by Linux).
        DIR_PREALLOC = 0x1, "dir_prealloc";
        /// AFS server inodes (unused).
        IMAGIC_INODES = 0x2, "imagic_inodes";
        /// There is a journal.
        HAS_JOURNAL = 0x4, "has_journal";
        /// Extended attributes.
        EXT_ATTR = 0x8, "ext_attr";
        /// Blocks are reserved for a growing descriptor table.
        RESIZE_INODE = 0x10, "resize_inode";
        /// Directories may have a hash index.
        DIR_INDEX = 0x20, "dir_index";
        /// Old form of uninitialised groups (unused).
        LAZY_BG = 0x40, "lazy_bg";
        /// Snapshot exclusion bitmap (unused).
        EXCLUDE_BITMAP = 0x100, "snapshot_bitmap";
        /// Superblock copies in at most two named groups.
        SPARSE_SUPER2 = 0x200, "sparse_super2";
        /// The journal may hold fast commits.
        FAST_COMMIT = 0x400, "fast_commit";
        /// Inode numbers never change.
        STABLE_INODES = 0x800, "stable_inodes";
        /// There is an orphan file.
        ORPHAN_FILE = 0x1000, "orphan_file";
    }
}

feature_set! {
    /// `s_feature_incompat`.
    Incompat, "I", {
        /// Compressed files (never in Linux).
        COMPRESSION = 0x1, "compression";
        /// Directory entries have a file type.
        FILETYPE = 0x2, "filetype";
        /// The journal has something to replay.
        NEEDS_RECOVERY = 0x4, "needs_recovery";
        /// The device is an external journal, not a volume.
        JOURNAL_DEV = 0x8, "journal_dev";
        /// Descriptors are spread over metagroups.
        META_BG = 0x10, "meta_bg";
        /// Some files are mapped by extents.
        EXTENTS = 0x40, "extent";
        /// Block numbers and group descriptors of 64 bits.
        BIT64 = 0x80, "64bit";
        /// Multiple-mount protection.
        MMP = 0x100, "mmp";
        /// Bitmaps and inode tables may be outside their group.
        FLEX_BG = 0x200, "flex_bg";
        /// Attribute values may be inodes.
        EA_INODE = 0x400, "ea_inode";
        /// Data in directory entries (Lustre).
        DIRDATA = 0x1000, "dirdata";
        /// The checksum seed is stored, not derived from the UUID.
        CSUM_SEED = 0x2000, "metadata_csum_seed";
        /// Directories larger than 2 GiB or with a three-level index.
        LARGE_DIR = 0x4000, "large_dir";
        /// Small files and directories are stored in the inode.
        INLINE_DATA = 0x8000, "inline_data";
        /// Some files and names are encrypted.
        ENCRYPT = 0x1_0000, "encrypt";
        /// Some directories are case-insensitive.
        CASEFOLD = 0x2_0000, "casefold";
    }
}

feature_set! {
    /// `s_feature_ro_compat`.
    RoCompat, "R", {
        /// Superblock copies only in groups 0, 1 and powers of 3, 5, 7.
        SPARSE_SUPER = 0x1, "sparse_super";
        /// Some file has reached 2 GiB.
        LARGE_FILE = 0x2, "large_file";
        /// Unused.
        BTREE_DIR = 0x4, "btree_dir";
        /// `i_blocks` has 48 bits and may count file-system blocks.
        HUGE_FILE = 0x8, "huge_file";
        /// Groups may be uninitialised; descriptors have a CRC-16.
        GDT_CSUM = 0x10, "uninit_bg";
        /// Directories may have more than 65 000 links.
        DIR_NLINK = 0x20, "dir_nlink";
        /// Inodes have fields beyond 128 bytes.
        EXTRA_ISIZE = 0x40, "extra_isize";
        /// The volume has snapshots (never in Linux).
        HAS_SNAPSHOT = 0x80, "snapshot";
        /// Quota files are hidden inodes.
        QUOTA = 0x100, "quota";
        /// Allocation in clusters of several blocks.
        BIGALLOC = 0x200, "bigalloc";
        /// All metadata has CRC-32C checksums.
        METADATA_CSUM = 0x400, "metadata_csum";
        /// Replicas (unused).
        REPLICA = 0x800, "replica";
        /// The volume may not be written.
        READONLY = 0x1000, "read-only";
        /// Project ids and quota.
        PROJECT = 0x2000, "project";
        /// Several files share blocks.
        SHARED_BLOCKS = 0x4000, "shared_blocks";
        /// Some files have verity hashes.
        VERITY = 0x8000, "verity";
        /// The orphan file may have entries.
        ORPHAN_PRESENT = 0x1_0000, "orphan_present";
    }
}

impl Features {
    /// Names of all features set, in the order in which dumpe2fs prints them.
    pub fn names(self) -> Vec<Cow<'static, str>> {
        self.compat
            .names()
            .chain(self.incompat.names())
            .chain(self.ro_compat.names())
            .collect()
    }
}

/// Incompatible features of volumes that can be mounted, for writing too; any other prevents even reading.
pub const WRITE_INCOMPAT: Incompat = Incompat(
    Incompat::FILETYPE.0
        | Incompat::NEEDS_RECOVERY.0
        | Incompat::EXTENTS.0
        | Incompat::BIT64.0
        | Incompat::MMP.0
        | Incompat::FLEX_BG.0
        | Incompat::EA_INODE.0
        | Incompat::META_BG.0
        | Incompat::CSUM_SEED.0
        | Incompat::LARGE_DIR.0
        | Incompat::INLINE_DATA.0
        | Incompat::ENCRYPT.0
        | Incompat::CASEFOLD.0,
);

/// Read-only-compatible features of volumes that can be mounted for writing; any other, known or
/// not, allows reading only.
pub const WRITE_RO_COMPAT: RoCompat = RoCompat(
    RoCompat::SPARSE_SUPER.0
        | RoCompat::LARGE_FILE.0
        | RoCompat::HUGE_FILE.0
        | RoCompat::GDT_CSUM.0
        | RoCompat::DIR_NLINK.0
        | RoCompat::EXTRA_ISIZE.0
        | RoCompat::QUOTA.0
        | RoCompat::BIGALLOC.0
        | RoCompat::METADATA_CSUM.0
        | RoCompat::PROJECT.0
        | RoCompat::VERITY.0
        | RoCompat::ORPHAN_PRESENT.0,
);

/// What the features allow.
pub fn mount_mode(features: Features) -> MountMode {
    let refused = features.incompat.without(WRITE_INCOMPAT);
    let read = features.ro_compat.without(WRITE_RO_COMPAT);
    MountMode::of(refused.names().collect(), read.names().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_by_feature() {
        let mut features = Features::default();
        assert_eq!(mount_mode(features), MountMode::ReadWrite);
        features.compat = Compat(u32::MAX);
        assert_eq!(mount_mode(features), MountMode::ReadWrite);
        features.ro_compat = RoCompat::READONLY.union(RoCompat(1 << 30));
        assert_eq!(
            mount_mode(features),
            MountMode::ReadOnly {
                because: vec!["read-only".into(), "FEATURE_R30".into()]
            }
        );
        features.incompat = Incompat::JOURNAL_DEV.union(Incompat(1 << 21));
        assert_eq!(
            mount_mode(features),
            MountMode::Refused {
                features: vec!["journal_dev".into(), "FEATURE_I21".into()]
            }
        );
    }

    #[test]
    fn names_and_bits_agree() {
        assert_eq!(Compat::by_name("dir_index"), Some(Compat::DIR_INDEX));
        assert_eq!(Incompat::by_name("64bit"), Some(Incompat::BIT64));
        assert_eq!(RoCompat::by_name("no_such"), None);
    }
}
