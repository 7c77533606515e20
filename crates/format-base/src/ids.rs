//! Inode numbers of 32 bits.

use steadfs_base::InodeNo;

/// The number of an inode; `None` if no volume can have it (0, or more than 32 bits).
pub fn inode_number(ino: InodeNo) -> Option<u32> {
    u32::try_from(ino.0).ok().filter(|number| *number != 0)
}

/// Gives a type of 32-bit inode numbers its conversions. 0 means "none".
#[macro_export]
macro_rules! inode_numbers {
    ($name:ident) => {
        impl $name {
            /// The number, unless it is 0.
            pub const fn some(self) -> Option<Self> {
                if self.0 == 0 { None } else { Some(self) }
            }

            /// Converts an inode number; `None` if no volume can have it (0, or more than 32 bits).
            pub fn from_vfs(ino: ::steadfs_base::InodeNo) -> Option<Self> {
                $crate::ids::inode_number(ino).map(Self)
            }
        }

        impl From<$name> for ::steadfs_base::InodeNo {
            fn from(ino: $name) -> Self {
                Self(u64::from(ino.0))
            }
        }

        impl From<$name> for u32 {
            fn from(ino: $name) -> Self {
                ino.0
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_a_volume_can_have_are_converted() {
        for (number, expected) in [
            (0, None),
            (1, Some(1)),
            (u64::from(u32::MAX), Some(u32::MAX)),
            (1 << 32, None),
        ] {
            assert_eq!(inode_number(InodeNo(number)), expected, "{number}");
        }
    }
}
