//! Determines the kind of volume on a device, or its other content.
//!
//! Rule: only magic numbers decide, never the text of an error, so a corrupt volume is still recognised as one.

use std::cell::RefCell;
use std::io;
use std::path::Path;

use steadfs_base::IoTag;
use steadfs_block::{BlockSource, Queue};
use steadfs_ext4::disk::Superblock as ExtSuperblock;
use steadfs_ext4::{choose, find_copies};
use steadfs_f2fs::disk::Superblock as F2fsSuperblock;
use steadfs_vfs::FsError;
use steadfs_vfs::names::printable;

use crate::Options;
use crate::image::{self, Found, Held, Partition, Table};
use crate::volume::{Error, VolumeDevice};

/// The kind of file system on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No journal, no extents.
    Ext2,
    /// A journal, no extents.
    Ext3,
    /// Any feature that came later.
    Ext4,
    /// The flash-friendly file system.
    F2fs,
}

impl Kind {
    /// The name that mount(8) knows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::F2fs => "f2fs",
        }
    }
}

/// Why no volume was opened.
pub(crate) enum Unopened {
    /// There is no volume.
    NoVolume(Found),
    /// There is a volume, and opening it failed.
    Refused(FsError),
}

impl From<FsError> for Unopened {
    fn from(error: FsError) -> Self {
        Self::Refused(error)
    }
}

/// The error for a device without a volume, or for a volume that cannot be opened.
pub(crate) fn failed(path: &Path, error: impl Into<Unopened>) -> Error {
    let path = path.to_owned();
    match error.into() {
        Unopened::NoVolume(found) => Error::NoVolume { path, found },
        Unopened::Refused(error) => Error::Volume { path, error },
    }
}

/// Determines the kind of file system on an image file or block device.
pub fn probe(path: impl AsRef<Path>, options: &Options) -> Result<Kind, Error> {
    let mut options = options.clone();
    options.set_read_only(true);
    VolumeDevice::open(path.as_ref(), &options)?.kind()
}

/// Offset of ext4's superblock and of f2fs's first one in the volume.
const SUPERBLOCK: usize = 1024;
/// Offset of f2fs's second superblock.
const SECOND: usize = 4096 + SUPERBLOCK;
/// Bytes that contain all of them.
const HEAD: usize = 8192;
/// Size of the smallest volume: a smaller device has no superblock.
const SMALLEST: u64 = 2048;

/// Magic numbers at a volume's start.
struct Marks {
    head: Vec<u8>,
}

impl Marks {
    fn at(src: &dyn BlockSource, at: u64) -> io::Result<Self> {
        let left = src.size_bytes().saturating_sub(at);
        let mut head = vec![0; HEAD.min(usize::try_from(left).unwrap_or(HEAD))];
        src.read(at, &mut head)?;
        head.resize(HEAD, 0);
        Ok(Self { head })
    }

    fn ext(&self) -> bool {
        ExtSuperblock::has_magic(&self.head[SUPERBLOCK..])
    }

    fn f2fs(&self) -> [bool; 2] {
        [SUPERBLOCK, SECOND].map(|at| F2fsSuperblock::has_magic(&self.head[at..]))
    }

    /// The kind and the label of the volume that begins here, for a list.
    fn describe(&self) -> Option<Held> {
        if self.ext() {
            let sb = ExtSuperblock::parse_lenient(&self.head[SUPERBLOCK..]).ok()?;
            return Some(held(kind_of(&sb), &sb.volume_name()));
        }
        let label = F2fsSuperblock::parse_lenient(&self.head[SUPERBLOCK..]).ok();
        let label = label.map(|sb| sb.label()).unwrap_or_default();
        self.f2fs()[0].then(|| held(Kind::F2fs, &label))
    }
}

fn held(kind: Kind, label: &str) -> Held {
    Held {
        kind: kind.name(),
        label: printable(label.as_bytes()).to_string(),
    }
}

/// Determines the kind of file system on a device. ext4's magic number has precedence over f2fs's, whose second superblock
/// mke2fs can leave in place, and over the magic numbers of other formats, which it can leave, too.
pub(crate) fn kind_on(queue: &Queue, options: &Options) -> Result<Kind, Unopened> {
    let ext = &options.ext4.superblock_choice();
    if ext.sb.is_some() {
        return Ok(kind_of(&choose(queue, ext)?.sb));
    }
    let src = AnyBytes {
        queue,
        last: RefCell::new(None),
    };
    if queue.geometry().size < SMALLEST {
        return Err(Unopened::NoVolume(recognise(&src, options)));
    }
    let Ok(marks) = Marks::at(&src, 0) else {
        // An ext4 volume may have a backup of the unreadable superblock; otherwise `choose` returns the error.
        return Ok(kind_of(&choose(queue, ext)?.sb));
    };
    if marks.ext() {
        return match choose(queue, ext) {
            Ok(chosen) => Ok(kind_of(&chosen.sb)),
            // The magic number has only two bytes, which can also be part of another format.
            Err(error) => Err(match recognise(&src, options) {
                found @ Found::Named(_) => Unopened::NoVolume(found),
                _ => error.into(),
            }),
        };
    }
    let [first, second] = marks.f2fs();
    if first {
        return Ok(Kind::F2fs);
    }
    let found = recognise(&src, options);
    if found.is_known() {
        return Err(Unopened::NoVolume(found));
    }
    if second {
        return Ok(Kind::F2fs);
    }
    let mut read = |at: u64, buf: &mut [u8]| src.read(at, buf).is_ok();
    if find_copies(src.size_bytes(), None, &mut read, 1).is_empty() {
        return Err(Unopened::NoVolume(found));
    }
    Ok(kind_of(&choose(queue, ext)?.sb))
}

/// As [`kind_on`]; fails if `sizelimit=` cuts off the volume.
pub(crate) fn kind_within(queue: &Queue, options: &Options) -> Result<Kind, Unopened> {
    let kind = kind_on(queue, options)?;
    let Some(limit) = options.size_limit else {
        return Ok(kind);
    };
    let size = match kind {
        Kind::F2fs => {
            let superblock = steadfs_f2fs::read_superblock(queue)?;
            let block_size = steadfs_f2fs::disk::BLOCK_SIZE as u64;
            let first = superblock.device_bytes().first().copied();
            first.or_else(|| superblock.layout().block_count.checked_mul(block_size))
        }
        Kind::Ext2 | Kind::Ext3 | Kind::Ext4 => {
            let chosen = choose(queue, &options.ext4.superblock_choice())?;
            let geo = chosen.sb.geometry();
            geo.blocks_count.checked_mul(geo.block_size.bytes_u64())
        }
    };
    match size {
        Some(size) if size > limit => Err(Unopened::Refused(FsError::BadOption(format!(
            "option sizelimit={limit}: the volume has {size} bytes"
        )))),
        _ => Ok(kind),
    }
}

/// The partition table of a disk, whose first byte is at `base` of its file; `None` if it has none.
pub(crate) fn table_on(queue: &Queue, base: u64) -> Option<Table> {
    let src = AnyBytes {
        queue,
        last: RefCell::new(None),
    };
    let table = image::table(&src, &holds)?;
    Some(Table { base, ..table })
}

/// The partition of a disk that a user calls `which`. `first` is the disk's first byte in its file, if it has one.
///
/// # Errors
/// Why there is none: what follows the name of the disk in a message.
pub(crate) fn partition_on(
    queue: &Queue,
    which: &str,
    first: Option<u64>,
) -> Result<Partition, String> {
    let src = AnyBytes {
        queue,
        last: RefCell::new(None),
    };
    let Some(mut table) = image::table(&src, &holds) else {
        return Err(format!(
            "has no partition {which:?}: it has no partition table"
        ));
    };
    table.has_places &= first.is_some();
    table.base = first.unwrap_or_default();
    table.choose(which).cloned()
}

/// The volume that begins at a byte.
fn holds(src: &dyn BlockSource, at: u64) -> Option<Held> {
    Marks::at(src, at).ok()?.describe()
}

fn recognise(src: &AnyBytes<'_>, options: &Options) -> Found {
    let mut found = image::recognise(src, &holds);
    if let Found::Partitioned(table) = &mut found {
        table.base = options.offset;
    }
    found
}

fn kind_of(sb: &ExtSuperblock) -> Kind {
    use steadfs_ext4::disk::features::{Compat, Incompat, RoCompat};
    let features = sb.features();
    let ext3_incompat = Incompat::FILETYPE
        .union(Incompat::NEEDS_RECOVERY)
        .union(Incompat::META_BG);
    let ext3_ro = RoCompat::SPARSE_SUPER.union(RoCompat::LARGE_FILE);
    let later = features.incompat.without(ext3_incompat).0 != 0
        || features.ro_compat.without(ext3_ro).0 != 0;
    if later {
        Kind::Ext4
    } else if features.compat.contains(Compat::HAS_JOURNAL) {
        Kind::Ext3
    } else {
        Kind::Ext2
    }
}

/// Reads a queue's device at any offset, whatever its block size. The last piece is cached: probes read few places
/// repeatedly.
struct AnyBytes<'a> {
    queue: &'a Queue,
    last: RefCell<Option<(u64, Vec<u8>)>>,
}

impl AnyBytes<'_> {
    const PIECE: u64 = 64 << 10;
}

impl BlockSource for AnyBytes<'_> {
    fn size_bytes(&self) -> u64 {
        self.queue.geometry().size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end > self.size_bytes() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        let mut last = self.last.borrow_mut();
        let mut at = offset;
        while at < end {
            let start = at / Self::PIECE * Self::PIECE;
            let stop = (start + Self::PIECE).min(self.size_bytes());
            if last.as_ref().is_none_or(|(kept, _)| *kept != start) {
                let piece = self
                    .queue
                    .read(start, (stop - start) as usize, IoTag::default());
                *last = Some((start, piece.map_err(io::Error::other)?.to_vec()));
            }
            if let Some((_, piece)) = &*last {
                let upto = stop.min(end);
                let from = &piece[(at - start) as usize..(upto - start) as usize];
                buf[(at - offset) as usize..(upto - offset) as usize].copy_from_slice(from);
                at = upto;
            }
        }
        Ok(())
    }
}
