//! Replies: the buffer that a handler fills, and the translation of attributes to the wire format.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use steadfs_base::InodeNo;
use steadfs_vfs::{Attr, FileKind, InodeFlags, ReadData, StatFs, is_control_inode, reported_ino};
use zerocopy::{Immutable, IntoBytes};

use crate::interrupt::ServedRequest;
use crate::record::Ticket;
use crate::wire;

/// The kind of a request's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The content of the reply buffer.
    Done,
    /// An error.
    Error(Errno),
    /// None (FORGET, INTERRUPT).
    Silent,
}

/// The reply that a handler fills: structures and names in `bytes`, followed by file data in `data`. Belongs to a
/// service thread, which reuses it for each request.
#[derive(Default)]
pub struct ReplyBuf {
    /// Structures, names, attribute values.
    pub bytes: Vec<u8>,
    /// File content, not copied.
    pub data: ReadData,
    /// Names collected by one READDIRPLUS.
    pub(crate) names: Vec<u8>,
    /// Entries collected by one READDIRPLUS.
    pub(crate) entries: Vec<PlusEntry>,
    /// The records of the request, until it is answered.
    pub(crate) ticket: Option<Ticket>,
    /// The request in service.
    pub(crate) served: Arc<ServedRequest>,
}

/// A directory entry whose name is in [`ReplyBuf::names`].
#[derive(Clone, Copy)]
pub(crate) struct PlusEntry {
    pub ino: InodeNo,
    pub next: u64,
    pub kind: u32,
    pub name_end: usize,
}

impl ReplyBuf {
    /// Removes the last reply.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.data = ReadData::new();
        self.ticket = None;
    }

    /// Appends a structure.
    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.bytes.extend_from_slice(value.as_bytes());
    }

    /// Bytes of the reply without its header.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.data.len()
    }

    /// Whether the reply consists of a header only.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Translation between inode numbers and the kernel's node ids: the root is always node 1, and inode 1 (if a format
/// shows one) gets the root's number.
#[derive(Clone, Copy, Debug)]
pub struct NodeIds {
    root: u64,
}

impl NodeIds {
    /// The translation for a volume with this root.
    pub const fn new(root: InodeNo) -> Self {
        Self { root: root.0 }
    }

    const fn swap(self, number: u64) -> u64 {
        if number == self.root {
            wire::ROOT_ID
        } else if number == wire::ROOT_ID {
            self.root
        } else {
            number
        }
    }

    /// The node id of an inode.
    pub const fn node(self, ino: InodeNo) -> u64 {
        self.swap(ino.0)
    }

    /// The inode of a node id.
    pub const fn ino(self, node: u64) -> InodeNo {
        InodeNo(self.swap(node))
    }
}

/// The reply to every open of a file: no file handle, and the page cache stays valid.
pub const OPEN_OUT: wire::OpenOut = wire::OpenOut {
    fh: 0,
    open_flags: wire::FOPEN_KEEP_CACHE,
    backing_id: 0,
};

/// How long the kernel may cache what a reply contains.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Names.
    pub entry: Duration,
    /// Negative entries.
    pub negative: Duration,
    /// Attributes.
    pub attr: Duration,
}

/// Translates attributes and names for one volume.
#[derive(Clone, Copy, Debug)]
pub struct Translate {
    /// Node ids.
    pub ids: NodeIds,
    /// Timeouts.
    pub timeouts: Timeouts,
}

impl Translate {
    /// The same for names that the kernel must look up each time.
    pub fn unkept(&self) -> Self {
        let timeouts = Timeouts {
            entry: Duration::ZERO,
            negative: Duration::ZERO,
            ..self.timeouts
        };
        Self { timeouts, ..*self }
    }

    /// Names and attributes of control files are not cached, nor the lengths of encrypted links, which depend on keys.
    fn lasting(&self, attr: &Attr, timeout: Duration) -> Duration {
        let is_link = attr.kind == FileKind::Symlink;
        if is_control_inode(attr.ino) || is_link && attr.flags.contains(InodeFlags::ENCRYPTED) {
            Duration::ZERO
        } else {
            timeout
        }
    }

    /// A directory entry that exists.
    pub fn entry(&self, attr: &Attr) -> wire::EntryOut {
        let entry = self.lasting(attr, self.timeouts.entry);
        let valid = self.lasting(attr, self.timeouts.attr);
        wire::EntryOut {
            nodeid: self.ids.node(attr.ino),
            generation: u64::from(attr.generation),
            entry_valid: entry.as_secs(),
            entry_valid_nsec: entry.subsec_nanos(),
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            attr: wire_attr(attr),
        }
    }

    /// A negative entry: node 0, which the kernel caches.
    pub fn no_entry(&self) -> wire::EntryOut {
        wire::EntryOut {
            entry_valid: self.timeouts.negative.as_secs(),
            entry_valid_nsec: self.timeouts.negative.subsec_nanos(),
            ..wire::EntryOut::default()
        }
    }

    /// The reply to GETATTR and SETATTR.
    pub fn attr_out(&self, attr: &Attr) -> wire::AttrOut {
        let valid = self.lasting(attr, self.timeouts.attr);
        wire::AttrOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            dummy: 0,
            attr: wire_attr(attr),
        }
    }

    /// The reply to STATX.
    pub fn statx_out(&self, attr: &Attr) -> wire::StatxOut {
        let valid = self.lasting(attr, self.timeouts.attr);
        wire::StatxOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            stat: statx(attr),
            ..wire::StatxOut::default()
        }
    }
}

fn wire_attr(attr: &Attr) -> wire::WireAttr {
    wire::WireAttr {
        ino: reported_ino(attr.ino).0,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs,
        mtime: attr.mtime.secs,
        ctime: attr.ctime.secs,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.kind.mode_bits() | attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.block_size,
        flags: 0,
    }
}

/// STATX_BASIC_STATS of linux/stat.h.
const STATX_BASIC: u32 = 0x7ff;
/// STATX_BTIME of linux/stat.h.
const STATX_BTIME: u32 = 0x800;

fn sx_time(t: steadfs_base::Timestamp) -> wire::SxTime {
    wire::SxTime {
        tv_sec: t.secs,
        tv_nsec: t.nanos,
        reserved: 0,
    }
}

fn statx(attr: &Attr) -> wire::Statx {
    // STATX_ATTR_* bits have the values of their FS_*_FL counterparts.
    let shown = InodeFlags::COMPRESSED
        .union(InodeFlags::IMMUTABLE)
        .union(InodeFlags::APPEND)
        .union(InodeFlags::NODUMP)
        .union(InodeFlags::ENCRYPTED)
        .union(InodeFlags::VERITY);
    let (major, minor) = split_rdev(attr.rdev);
    wire::Statx {
        mask: STATX_BASIC | attr.btime.map_or(0, |_| STATX_BTIME),
        blksize: attr.block_size,
        attributes: u64::from(attr.flags.0 & shown.0),
        attributes_mask: u64::from(shown.0),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // Type and permission bits take 16 bits.
        mode: (attr.kind.mode_bits() | attr.perm) as u16,
        ino: reported_ino(attr.ino).0,
        size: attr.size,
        blocks: attr.blocks,
        atime: sx_time(attr.atime),
        btime: attr.btime.map(sx_time).unwrap_or_default(),
        ctime: sx_time(attr.ctime),
        mtime: sx_time(attr.mtime),
        rdev_major: major,
        rdev_minor: minor,
        ..wire::Statx::default()
    }
}

/// Major and minor number of Linux's 32-bit device number (12 and 20 bits, the minor in two parts).
const fn split_rdev(rdev: u32) -> (u32, u32) {
    (
        (rdev >> 8) & 0xfff,
        (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00),
    )
}

/// The reply to STATFS.
pub fn statfs_out(st: &StatFs) -> wire::StatfsOut {
    wire::StatfsOut {
        blocks: st.blocks,
        bfree: st.blocks_free,
        bavail: st.blocks_available,
        files: st.files,
        ffree: st.files_free,
        bsize: st.block_size,
        namelen: st.name_max,
        frsize: st.block_size,
        ..wire::StatfsOut::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_translated_to_node_1_and_back() {
        let ids = NodeIds::new(InodeNo(2));
        assert_eq!(ids.node(InodeNo(2)), 1);
        assert_eq!(ids.ino(1), InodeNo(2));
        assert_eq!(ids.node(InodeNo(1)), 2);
        for number in [0, 1, 2, 3, u64::MAX] {
            assert_eq!(ids.ino(ids.node(InodeNo(number))), InodeNo(number));
        }
    }

    #[test]
    fn device_numbers_are_split_as_in_linux() {
        // makedev(0xabc, 0x12345) = 0x123abc45 in the 32-bit encoding.
        assert_eq!(split_rdev(0x123a_bc45), (0xabc, 0x12345));
        assert_eq!(split_rdev(0x0801), (8, 1));
    }
}
