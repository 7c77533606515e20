//! Small files arrive with their open.
//!
//! **Problem.** A call is a round trip between two processes, 10 to 100 µs, and a copy needs seven for a file: look-up,
//! open, extended attributes, and at least four for the data and the end of it. **Rule.** The reply to an open for reading
//! has the extended attributes' names, and of a file of at most [`SIZE_MAX`] bytes all data. The client answers the calls
//! that follow from that, until it opens another file or changes anything.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileSystem, FsError, ReadData, Result, Seek};

use crate::codec::{Decoder, Encoder, Malformed};

/// Largest file whose data arrives with its open, in bytes.
const SIZE_MAX: u64 = 64 << 10;

/// The content of a small file.
pub struct Preview {
    pub ino: InodeNo,
    size: u64,
    /// Names of extended attributes.
    pub names: Vec<Vec<u8>>,
    /// Runs of data by their offsets, ascending, between them holes.
    runs: Vec<(u64, ReadData)>,
}

/// Reads a file for its preview. An error is not reported: the client meets it again in the call that it makes itself.
pub fn read(fs: &dyn FileSystem, cx: &Cx, ino: InodeNo) -> Result<Option<Preview>> {
    let size = fs.getattr(cx, ino)?.size;
    if size > SIZE_MAX {
        return Ok(None);
    }
    let names = fs.listxattr(cx, ino)?;
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
    Ok(Some(Preview {
        ino,
        size,
        names,
        runs,
    }))
}

impl Preview {
    pub fn encode(&self, to: &mut Encoder) {
        to.long(self.size);
        to.list(&self.names, |to, name| to.bytes(name));
        to.list(&self.runs, |to, (start, data)| {
            to.long(*start);
            to.word(u32::try_from(data.len()).unwrap_or(u32::MAX));
            to.data(data);
        });
    }

    pub fn decode(
        ino: InodeNo,
        from: &mut Decoder<'_>,
        frame: &Arc<Vec<u8>>,
    ) -> std::result::Result<Self, Malformed> {
        let size = from.long()?;
        let names = from.list(|from| from.bytes().map(<[u8]>::to_vec))?;
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
            .then_some(Self {
                ino,
                size,
                names,
                runs,
            })
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
    fn preview() -> Preview {
        let data = |byte| {
            let mut data = ReadData::new();
            data.push(Arc::new(vec![byte; 4]), 0..4);
            data
        };
        let sent = Preview {
            ino: InodeNo(5),
            size: 20,
            names: vec![b"user.a".to_vec()],
            runs: vec![(4, data(1)), (12, data(2))],
        };
        let mut to = Encoder::default();
        sent.encode(&mut to);
        let frame = Arc::new(to.0);
        Preview::decode(InodeNo(5), &mut Decoder::new(&frame), &frame).unwrap()
    }

    #[test]
    fn data_and_holes_are_found() {
        let preview = preview();
        assert_eq!(preview.names, [b"user.a"]);
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
        let preview = preview();
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
