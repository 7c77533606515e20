//! Units, I/O tags, endian types, checksums, UUIDs, sizes in text and limits for all crates.
//!
//! Nothing here does I/O, takes a lock or reads a clock.

#![forbid(unsafe_code)]

pub mod checksum;
mod corruption;
mod fixed_map;
pub mod io_tag;
mod json;
pub mod limits;
pub mod size;
pub mod units;
mod uuid;
mod zeros;

pub use corruption::{Corruption, CorruptionKind};
pub use fixed_map::{FixedHasher, FixedMap, FixedSet};
pub use io_tag::{GroupId, IoPrio, IoTag, OwnerId, PrioClass, Urgency};
pub use json::json_text;
pub use units::{BlockSize, DevBlock, FileBlock, InodeNo, Tid, Timestamp};
pub use uuid::{parse_uuid, parse_uuid_option, time_uuid, uuid_seed, uuid_text};
pub use zeros::is_zero;

/// Integers of on-disk structures, whose byte order is part of their type.
pub mod endian {
    use zerocopy::byteorder::{BigEndian, LittleEndian, U16, U32, U64};
    /// Little-endian 16-bit word.
    pub type Le16 = U16<LittleEndian>;
    /// Little-endian 32-bit word.
    pub type Le32 = U32<LittleEndian>;
    /// Little-endian 64-bit word.
    pub type Le64 = U64<LittleEndian>;
    /// Big-endian 16-bit word.
    pub type Be16 = U16<BigEndian>;
    /// Big-endian 32-bit word.
    pub type Be32 = U32<BigEndian>;
    /// Big-endian 64-bit word.
    pub type Be64 = U64<BigEndian>;
}
