//! Feature bits: their names in f2fs-tools, and what a mount supports of each.

use std::borrow::Cow;

pub use steadfs_format_base::MountMode;

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// The feature word of the superblock (`feature`).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Features(pub u32);

        impl Features {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            const NAMES: &'static [(u32, &'static str)] = &[$(($value, $text)),*];
        }
    };
}

features! {
    /// Some files and names are encrypted (`F2FS_FEATURE_ENCRYPT`).
    ENCRYPT = 0x1, "encrypt";
    /// On a zoned device (`BLKZONED`).
    ZONED = 0x2, "blkzoned";
    /// Never used on disk (`ATOMIC_WRITE`).
    ATOMIC_WRITE = 0x4, "atomic_write";
    /// Inodes have fields beyond the fixed ones (`EXTRA_ATTR`).
    EXTRA_ATTR = 0x8, "extra_attr";
    /// Inodes have a project id (`PRJQUOTA`).
    PROJECT_QUOTA = 0x10, "project_quota";
    /// Inodes have a checksum (`INODE_CHKSUM`).
    INODE_CHECKSUM = 0x20, "inode_checksum";
    /// The size of the inline xattr area is stored in the inode (`FLEXIBLE_INLINE_XATTR`).
    FLEXIBLE_INLINE_XATTR = 0x40, "flexible_inline_xattr";
    /// Quota files are hidden inodes (`QUOTA_INO`).
    QUOTA_INO = 0x80, "quota_ino";
    /// Inodes have a birth time (`INODE_CRTIME`).
    INODE_CRTIME = 0x100, "inode_crtime";
    /// There is a lost+found directory (`LOST_FOUND`).
    LOST_FOUND = 0x200, "lost_found";
    /// Some files have verity hashes (`VERITY`).
    VERITY = 0x400, "verity";
    /// The superblock has a checksum (`SB_CHKSUM`).
    SB_CHECKSUM = 0x800, "sb_checksum";
    /// Some directories are case-insensitive (`CASEFOLD`).
    CASEFOLD = 0x1000, "casefold";
    /// Some files are compressed (`COMPRESSION`).
    COMPRESSION = 0x2000, "compression";
    /// Created read-only, without space for writing (`RO`).
    READ_ONLY = 0x4000, "ro";
    /// Some files map whole devices (`DEVICE_ALIAS`).
    DEVICE_ALIAS = 0x8000, "device_alias";
    /// Several segments share a summary block (`PACKED_SSA`).
    PACKED_SSA = 0x1_0000, "packed_ssa";
}

impl Features {
    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The bits without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Names of all set bits, lowest first; a bit without a name is `FEATURE_` and its value.
    pub fn names(self) -> Vec<Cow<'static, str>> {
        (0..u32::BITS)
            .filter(|bit| self.0 & (1 << bit) != 0)
            .map(
                |bit| match Self::NAMES.iter().find(|(value, _)| *value == 1 << bit) {
                    Some((_, name)) => Cow::Borrowed(*name),
                    None => Cow::Owned(format!("FEATURE_{bit}")),
                },
            )
            .collect()
    }

    /// The bit with this name. As in mkfs.f2fs, `quota` is an alias of `quota_ino`.
    pub fn by_name(name: &str) -> Option<Self> {
        let name = if name == "quota" { "quota_ino" } else { name };
        Self::NAMES
            .iter()
            .find(|(_, text)| *text == name)
            .map(|(value, _)| Self(*value))
    }
}

/// Features of volumes that can be mounted read-write.
pub const WRITE: Features = Features(
    Features::ENCRYPT.0
        | Features::EXTRA_ATTR.0
        | Features::PROJECT_QUOTA.0
        | Features::INODE_CHECKSUM.0
        | Features::FLEXIBLE_INLINE_XATTR.0
        | Features::QUOTA_INO.0
        | Features::INODE_CRTIME.0
        | Features::LOST_FOUND.0
        | Features::VERITY.0
        | Features::SB_CHECKSUM.0
        | Features::COMPRESSION.0
        | Features::CASEFOLD.0,
);

/// Features of volumes that can only be mounted read-only.
pub const READ: Features = Features::READ_ONLY;

const _: () = assert!(WRITE.0 & READ.0 == 0, "a feature is in one of the two sets");

/// How a volume with these features can be mounted.
pub fn mount_mode(features: Features) -> MountMode {
    let refused = features.without(WRITE.union(READ));
    MountMode::of(refused.names(), features.without(WRITE).names())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_features_are_refused() {
        assert_eq!(mount_mode(Features::default()), MountMode::ReadWrite);
        assert_eq!(mount_mode(WRITE), MountMode::ReadWrite);
        assert_eq!(
            mount_mode(Features::EXTRA_ATTR.union(Features::READ_ONLY)),
            MountMode::ReadOnly {
                because: vec!["ro".into()]
            }
        );
        assert_eq!(
            mount_mode(
                Features::CASEFOLD
                    .union(Features::ZONED)
                    .union(Features(1 << 20))
            ),
            MountMode::Refused {
                features: vec!["blkzoned".into(), "FEATURE_20".into()]
            }
        );
        assert_eq!(Features::by_name("quota"), Some(Features::QUOTA_INO));
        assert_eq!(Features::by_name("nothing"), None);
    }
}
