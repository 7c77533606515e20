//! Reading of file content.

use std::ops::Range;

use steadfs_base::{FileBlock, IoTag};
use steadfs_cache::{FileReader, Part, Source};
use steadfs_vfs::{Cx, FileKind, FsError, ReadData, Result};

use super::{BLOCK, Place};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;

impl F2fs {
    /// Refuses what is not a regular file whose content can be shown.
    pub(super) fn readable(inode: &Inode) -> Result<()> {
        match inode.kind() {
            FileKind::Regular if inode.is_encrypted() => Err(FsError::NoKey),
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(FsError::IsDir),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    /// Reads up to `len` bytes from `offset`.
    pub(crate) fn read_file(
        &self,
        cx: &Cx,
        inode: &Inode,
        offset: u64,
        len: usize,
    ) -> Result<ReadData> {
        Self::readable(inode)?;
        let _shared = inode.lock.read();
        let end = inode.size().min(offset.saturating_add(len as u64));
        let read = if offset >= end {
            ReadData::new()
        } else if inode.has_inline_data() {
            self.inline_content(inode, offset..end, cx.tag)?
        } else {
            self.read_blocks(inode, offset..end, cx.tag)?
        };
        self.touch_atime(inode, cx.tag);
        Ok(read)
    }

    /// Bytes of content that lies in blocks.
    pub(super) fn read_blocks(
        &self,
        inode: &Inode,
        range: Range<u64>,
        tag: IoTag,
    ) -> Result<ReadData> {
        let reader = FileReader {
            queue: &self.queue,
            pages: &inode.pages,
            stream: &inode.stream,
            tag,
        };
        let reading = reader.begin(range.clone(), |block, most| {
            let (source, count) = self.source(inode, block, most, tag)?;
            let source = match source {
                Some(source) => source,
                None => {
                    let cluster = self.read_cluster(inode, block.0, tag)?;
                    Source::Content(cluster.part(block.0, count))
                }
            };
            Ok::<_, FsError>((source, count))
        })?;
        reader.ahead(range, inode.size(), |block, most| {
            let (source, count) = self.source(inode, block, most, tag)?;
            Ok::<_, FsError>((source.unwrap_or(Source::Nowhere), count))
        });
        let mut out = ReadData::new();
        let push = |part| match part {
            Part::Zeros(n) => out.push_zeros(n),
            Part::Bytes(buf, wanted) => out.push(buf.into_shared(), wanted),
        };
        reading.finish(push).map_err(io_error)?;
        Ok(out)
    }

    /// Where a block that is not in memory comes from, and for how many up to `most` that is so; `None` for those of
    /// a compressed cluster.
    fn source(
        &self,
        inode: &Inode,
        block: FileBlock,
        most: u64,
        tag: IoTag,
    ) -> Result<(Option<Source>, u64)> {
        let mapped = self.map(inode, block.0, most, tag)?;
        let source = match mapped.place {
            Place::Hole | Place::Promised => Some(Source::Nowhere),
            Place::At(first) => Some(Source::Device(u64::from(first.0) * BLOCK)),
            Place::Compressed => None,
        };
        Ok((source, mapped.len))
    }
}
