//! The bit fields and numbers of an inode that are one byte each.

macro_rules! bits {
    ($(#[$doc:meta])* $set:ident { $($(#[$bit_doc:meta])* $name:ident = $value:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $set(pub u8);

        impl $set {
            $($(#[$bit_doc])* pub const $name: Self = Self($value);)*

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
        }
    };
}

bits! {
    /// What is stored in the inode (`i_inline`).
    Inline {
        /// Extended attributes (`F2FS_INLINE_XATTR`).
        XATTR = 0x01;
        /// The inode has space for content (`F2FS_INLINE_DATA`).
        DATA = 0x02;
        /// Directory entries (`F2FS_INLINE_DENTRY`).
        DENTRIES = 0x04;
        /// The inode has content (`F2FS_DATA_EXIST`).
        DATA_EXISTS = 0x08;
        /// `.` and `..` are missing (`F2FS_INLINE_DOTS`).
        DOTS = 0x10;
        /// Extra fields (`F2FS_EXTRA_ATTR`).
        EXTRA = 0x20;
        /// The file's blocks must not move (`F2FS_PIN_FILE`).
        PINNED = 0x40;
        /// Blocks saved by compression were released (`F2FS_COMPRESS_RELEASED`).
        COMPRESS_RELEASED = 0x80;
    }
}

bits! {
    /// Hints about a file (`i_advise`).
    Advise {
        /// Its data is cold (`FADVISE_COLD_BIT`).
        COLD = 0x01;
        /// `i_pino` is not its directory any more (`FADVISE_LOST_PINO_BIT`).
        LOST_PARENT = 0x02;
        /// It is encrypted (`FADVISE_ENCRYPT_BIT`).
        ENCRYPTED = 0x04;
        /// The name stored in the inode is encrypted (`FADVISE_ENC_NAME_BIT`).
        ENCRYPTED_NAME = 0x08;
        /// Blocks beyond its end are intended (`FADVISE_KEEP_SIZE_BIT`).
        KEEP_SIZE = 0x10;
        /// Its data is hot (`FADVISE_HOT_BIT`).
        HOT = 0x20;
        /// It has verity data beyond its end (`FADVISE_VERITY_BIT`).
        VERITY = 0x40;
        /// Truncated below its stored size (`FADVISE_TRUNC_BIT`).
        TRUNCATED = 0x80;
    }
}

/// Compression algorithms (`i_compress_algorithm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressAlgorithm {
    /// LZO1X.
    Lzo,
    /// LZ4 (fast or high-compression).
    Lz4,
    /// Zstandard.
    Zstd,
    /// LZO with run-length encoding.
    LzoRle,
}

impl CompressAlgorithm {
    /// The algorithm with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Lzo,
            1 => Self::Lz4,
            2 => Self::Zstd,
            3 => Self::LzoRle,
            _ => return None,
        })
    }

    /// Its number in `i_compress_algorithm`.
    pub const fn number(self) -> u8 {
        match self {
            Self::Lzo => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
            Self::LzoRle => 3,
        }
    }
}
