//! Attributes of a file, as tuples that `steadfs.Stat` is made of.

use steadfs::{Attr, Metadata, Timestamp};

/// Seconds and nanoseconds.
pub type Time = (i64, u32);
/// Mode, inode number, links, user, group, size.
type Main = (u32, u64, u32, u32, u32, u64);
/// Units of 512 bytes, preferred I/O size, device number, flags.
type Rest = (u64, u32, u32, u32);
/// Of access, content, inode; of birth.
type Times = (Time, Time, Time, Option<Time>);
pub type Stat = (Main, Rest, Times);

const fn time(time: Timestamp) -> Time {
    (time.secs, time.nanos)
}

/// The attributes of a file.
pub fn stat(found: &Metadata) -> Stat {
    let attr: &Attr = found.attr();
    let mode = attr.kind.mode_bits() | attr.perm;
    (
        (mode, attr.ino.0, attr.nlink, attr.uid, attr.gid, attr.size),
        (attr.blocks, attr.block_size, attr.rdev, attr.flags.0),
        (
            time(attr.atime),
            time(attr.mtime),
            time(attr.ctime),
            attr.btime.map(time),
        ),
    )
}
