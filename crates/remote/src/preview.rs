//! What a file has arrives with its open, or with the look-up that was expected.
//!
//! **Problem.** A call is a round trip between two processes, 10 to 100 µs, and a copy needs seven for a file: look-up,
//! open, extended attributes, and at least four for the data and the end of it. **Rule.** The reply to an open for reading
//! has the extended attributes, and of a file of at most [`SIZE_MAX`] bytes all data; the reply to `expect` has the targets
//! of links and the entries of small directories, too. The client answers the calls that follow from that, until the next
//! file or any change.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, ReadData, Result, Seek};

use crate::codec::{Decoder, Encoder, Malformed};
use crate::listing::{self, Listed};

/// Largest file whose data arrives with its open, in bytes.
const SIZE_MAX: u64 = 64 << 10;
/// Most bytes of values of extended attributes of one file.
const VALUES_MAX: usize = 4 << 10;
/// Most bytes of a directory's entries.
const ENTRIES_MAX: usize = 32 << 10;

/// The name of an extended attribute, and its value unless that is too long or cannot be read.
pub type Xattr = (Vec<u8>, Option<Vec<u8>>);

/// What is known of a file before it is asked for.
pub struct Preview {
    pub ino: InodeNo,
    pub xattrs: Vec<Xattr>,
    pub content: Content,
}

/// The content of a file.
pub enum Content {
    /// It is asked for by single calls.
    Unknown,
    Data(Data),
    /// The target of a symbolic link.
    Target(Vec<u8>),
    /// All entries of a directory.
    Entries(Vec<Listed>),
}

/// The data of a small file.
pub struct Data {
    size: u64,
    /// Runs by their offsets, ascending, between them holes.
    runs: Vec<(u64, ReadData)>,
}

/// Bytes of the kinds of content in a message.
mod kind {
    pub const UNKNOWN: u8 = 0;
    pub const DATA: u8 = 1;
    pub const TARGET: u8 = 2;
    pub const ENTRIES: u8 = 3;
}

/// Reads a regular file that is open. An error is not reported: the client meets it again in the call that it makes itself.
pub fn of_open(fs: &dyn FileSystem, cx: &Cx, ino: InodeNo) -> Result<Option<Preview>> {
    let data = Data::of(fs, cx, ino, fs.getattr(cx, ino)?.size)?;
    let xattrs = xattrs(fs, cx, ino)?;
    Ok(data.map(|data| Preview {
        ino,
        xattrs,
        content: Content::Data(data),
    }))
}

/// Reads a file that was looked up. What cannot be read is left out, as in [`of_open`].
pub fn of_found(fs: &dyn FileSystem, cx: &Cx, attr: &Attr) -> Result<Option<Preview>> {
    let ino = attr.ino;
    let content = match attr.kind {
        FileKind::Regular => {
            fs.open(cx, ino, false)?;
            return of_open(fs, cx, ino);
        }
        FileKind::Symlink => Content::Target(fs.readlink(cx, ino)?),
        FileKind::Directory => match listing::all(fs, cx, ino, ENTRIES_MAX)? {
            Some(entries) => Content::Entries(entries),
            None => Content::Unknown,
        },
        _ => Content::Unknown,
    };
    let xattrs = xattrs(fs, cx, ino)?;
    Ok(Some(Preview {
        ino,
        xattrs,
        content,
    }))
}

fn xattrs(fs: &dyn FileSystem, cx: &Cx, ino: InodeNo) -> Result<Vec<Xattr>> {
    let mut left = VALUES_MAX;
    let names = fs.listxattr(cx, ino)?.into_iter();
    let with_value = |name: Vec<u8>| {
        let value = fs.getxattr(cx, ino, &name).ok();
        let value = value.filter(|value| value.len() <= left);
        left -= value.as_ref().map_or(0, Vec::len);
        (name, value)
    };
    Ok(names.map(with_value).collect())
}

impl Preview {
    pub fn encode(&self, to: &mut Encoder) {
        to.list(&self.xattrs, |to, (name, value)| {
            to.bytes(name);
            to.option(value.as_ref(), |to, value| to.bytes(value));
        });
        match &self.content {
            Content::Unknown => to.byte(kind::UNKNOWN),
            Content::Data(data) => {
                to.byte(kind::DATA);
                data.encode(to);
            }
            Content::Target(target) => {
                to.byte(kind::TARGET);
                to.bytes(target);
            }
            Content::Entries(entries) => {
                to.byte(kind::ENTRIES);
                to.list(entries, |to, entry| listing::encode(to, &entry.as_entry()));
            }
        }
    }

    pub fn decode(
        ino: InodeNo,
        from: &mut Decoder<'_>,
        frame: &Arc<Vec<u8>>,
    ) -> std::result::Result<Self, Malformed> {
        let bytes = |from: &mut Decoder<'_>| from.bytes().map(<[u8]>::to_vec);
        let xattrs = from.list(|from| Ok((bytes(from)?, from.option(bytes)?)))?;
        let content = match from.byte()? {
            kind::UNKNOWN => Content::Unknown,
            kind::DATA => Content::Data(Data::decode(from, frame)?),
            kind::TARGET => Content::Target(bytes(from)?),
            kind::ENTRIES => Content::Entries(from.list(listing::decode)?),
            _ => return Err(Malformed),
        };
        Ok(Self {
            ino,
            xattrs,
            content,
        })
    }

    /// The data, if the file has some and it is here.
    pub fn data(&self) -> Option<&Data> {
        match &self.content {
            Content::Data(data) => Some(data),
            _ => None,
        }
    }
}

impl Data {
    fn of(fs: &dyn FileSystem, cx: &Cx, ino: InodeNo, size: u64) -> Result<Option<Self>> {
        if size > SIZE_MAX {
            return Ok(None);
        }
        let (mut runs, mut at) = (Vec::new(), 0);
        while at < size {
            let start = match fs.seek(cx, ino, at, Seek::Data) {
                Err(FsError::NoSuchOffset) => break,
                start => start?,
            };
            let end = fs.seek(cx, ino, start, Seek::Hole)?;
            let len = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
            let data = fs.read(cx, ino, start, len)?;
            // A file that contradicts itself is read by single calls, which report that.
            if start < at || end <= start || end > size || data.len() != len {
                return Ok(None);
            }
            runs.push((start, data));
            at = end;
        }
        Ok(Some(Self { size, runs }))
    }

    fn encode(&self, to: &mut Encoder) {
        to.long(self.size);
        to.list(&self.runs, |to, (start, data)| {
            to.long(*start);
            to.word(u32::try_from(data.len()).unwrap_or(u32::MAX));
            to.data(data);
        });
    }

    fn decode(
        from: &mut Decoder<'_>,
        frame: &Arc<Vec<u8>>,
    ) -> std::result::Result<Self, Malformed> {
        let size = from.long()?;
        let runs = from.list(|from| {
            let (start, len) = (from.long()?, from.len()?);
            let data = from.data(frame, len)?;
            (data.len() == len)
                .then_some((start, data))
                .ok_or(Malformed)
        })?;
        let mut at = 0;
        for (start, data) in &runs {
            if *start < at || data.is_empty() || *start > SIZE_MAX {
                return Err(Malformed);
            }
            at = start + data.len() as u64;
        }
        (at <= size && size <= SIZE_MAX)
            .then_some(Self { size, runs })
            .ok_or(Malformed)
    }

    /// The first run that ends after `offset`, as a range.
    fn run_after(&self, offset: u64) -> Option<(u64, u64)> {
        let ranges = self.runs.iter();
        let mut ranges = ranges.map(|(start, data)| (*start, start + data.len() as u64));
        ranges.find(|(_, end)| *end > offset)
    }

    /// As [`FileSystem::seek`].
    pub fn seek(&self, offset: u64, what: Seek) -> Result<u64> {
        if offset >= self.size {
            return Err(FsError::NoSuchOffset);
        }
        let run = self.run_after(offset);
        match (what, run) {
            (Seek::Data, Some((start, _))) => Ok(start.max(offset)),
            (Seek::Data, None) => Err(FsError::NoSuchOffset),
            (Seek::Hole, Some((start, end))) if start <= offset => Ok(end),
            (Seek::Hole, _) => Ok(offset),
        }
    }

    /// As [`FileSystem::read`].
    pub fn read(&self, offset: u64, len: usize) -> ReadData {
        let end = self.size.min(offset.saturating_add(len as u64));
        let mut out = ReadData::new();
        let mut at = offset;
        for (start, data) in &self.runs {
            let stop = start + data.len() as u64;
            if stop <= at || *start >= end {
                continue;
            }
            out.push_zeros(usize::try_from(start.saturating_sub(at)).unwrap_or(0));
            at = at.max(*start);
            let until = stop.min(end);
            // At most SIZE_MAX.
            let range = (at - start) as usize..(until - start) as usize;
            for segment in data.slice(range).segments() {
                match segment {
                    steadfs_vfs::Segment::Bytes(owner, range) => {
                        out.push(Arc::clone(owner), range.clone());
                    }
                    steadfs_vfs::Segment::Zeros(len) => out.push_zeros(*len),
                }
            }
            at = until;
        }
        out.push_zeros(usize::try_from(end.saturating_sub(at)).unwrap_or(0));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of 20 bytes with data at 4 to 8 and 12 to 16, as the client receives it.
    fn received() -> Data {
        let data = |byte| {
            let mut data = ReadData::new();
            data.push(Arc::new(vec![byte; 4]), 0..4);
            data
        };
        let sent = Preview {
            ino: InodeNo(5),
            xattrs: vec![
                (b"user.a".to_vec(), Some(b"1".to_vec())),
                (b"user.b".to_vec(), None),
            ],
            content: Content::Data(Data {
                size: 20,
                runs: vec![(4, data(1)), (12, data(2))],
            }),
        };
        let mut to = Encoder::default();
        sent.encode(&mut to);
        let frame = Arc::new(to.0);
        let mut from = Decoder::new(&frame);
        let preview = Preview::decode(InodeNo(5), &mut from, &frame).unwrap();
        assert_eq!(from.end(), Ok(()));
        assert_eq!(preview.xattrs, sent.xattrs);
        let Content::Data(data) = preview.content else {
            panic!("no data");
        };
        data
    }

    #[test]
    fn data_and_holes_are_found() {
        let preview = received();
        let expected = [
            (0, Ok(4), Ok(0)),
            (4, Ok(4), Ok(8)),
            (6, Ok(6), Ok(8)),
            (8, Ok(12), Ok(8)),
            (15, Ok(15), Ok(16)),
            (16, Err(FsError::NoSuchOffset), Ok(16)),
            (20, Err(FsError::NoSuchOffset), Err(FsError::NoSuchOffset)),
        ];
        for (offset, data, hole) in expected {
            assert_eq!(preview.seek(offset, Seek::Data), data, "{offset}");
            assert_eq!(preview.seek(offset, Seek::Hole), hole, "{offset}");
        }
    }

    #[test]
    fn every_range_is_read() {
        let preview = received();
        let all = [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 2, 2, 0, 0, 0, 0];
        for from in 0..25_usize {
            for len in 0..25 {
                let end = all.len().min(from + len);
                let expected = all.get(from..end).unwrap_or_default();
                let read = preview.read(from as u64, len);
                assert_eq!(read.to_vec(), expected, "{from} {len}");
            }
        }
    }
}
