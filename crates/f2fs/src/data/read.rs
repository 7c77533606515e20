//! Reading file content.

use std::ops::Range;

use steadfs_base::{FileBlock, IoTag};
use steadfs_cache::{BlockSource, FileRead, FileReader};
use steadfs_fscrypt::FileKey;
use steadfs_vfs::{Cx, FileKind, FsError, ReadData, Result};

use super::{BLOCK, MapTarget};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;

impl F2fs {
    /// Fails for anything but a regular file whose content can be read: an encrypted one has its key.
    pub(crate) fn check_readable(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        match inode.kind() {
            FileKind::Regular => self.content_key(inode, tag).map(drop),
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
        self.check_readable(inode, cx.tag)?;
        let _shared = inode.lock.read();
        let end = inode.size().min(offset.saturating_add(len as u64));
        let read = if offset >= end {
            ReadData::new()
        } else if let Some(write) = self.atomic_writes.of(inode) {
            self.read_staged(inode, &write, offset..end, cx.tag)?
        } else if inode.is_verity() {
            self.read_verified(inode, offset..end, cx.tag)?
        } else if inode.is_content_inline() {
            self.inline_content(inode, offset..end, cx.tag)?
        } else {
            self.read_blocks(inode, offset..end, Some(inode.size()), cx.tag)?
        };
        self.touch_atime(inode, cx.tag);
        Ok(read)
    }

    /// Reads content from blocks. With `size`, the file's size, a sequential stream is read ahead. Without it the
    /// range may be beyond the end of the file, where verity files have their hash tree.
    pub(crate) fn read_blocks(
        &self,
        inode: &Inode,
        range: Range<u64>,
        size: Option<u64>,
        tag: IoTag,
    ) -> Result<ReadData> {
        let reader = FileReader::new(&self.queue, &inode.pages, &inode.read_ahead, tag);
        let key = self.content_key(inode, tag)?;
        let compressed = self.cluster_blocks(&inode.core.read()).is_some();
        let reading = match (compressed, size) {
            (true, _) => self.begin_compressed(&reader, inode, (range, size), key.as_deref())?,
            (false, None) => reader.begin(range, self.block_sources(inode, tag))?,
            (false, Some(size)) => {
                let reading = reader.begin(range.clone(), self.block_sources(inode, tag))?;
                reader.read_ahead(range, size, self.block_sources(inode, tag));
                reading
            }
        };
        let data = match key {
            Some(key) => reading.into_decoded(|at, block| key.decrypt(at, block.make_mut())),
            None => reading.into_data(),
        };
        data.map_err(io_error)
    }

    /// Begins to read a file with compressed clusters: all stored blocks are read together, then decompressed.
    fn begin_compressed(
        &self,
        reader: &FileReader<'_>,
        inode: &Inode,
        (range, size): (Range<u64>, Option<u64>),
        key: Option<&FileKey>,
    ) -> Result<FileRead> {
        let tag = reader.tag;
        // Write-back moves blocks of a cluster that are not in memory, too. Nothing begins to be dirty meanwhile.
        let _flush = (!inode.pages.is_empty()).then(|| inode.lock_flush());
        let stored = self.stored_in(inode, &range, tag)?;
        let under_way = stored.begin(&self.queue, tag);
        if let Some(size) = size {
            reader.read_ahead_with(range.clone(), size, |piece, begin| {
                let runs = self.stored_in(inode, &piece, tag)?.into_runs();
                if !runs.into_iter().all(|(at, len)| begin(at, len)) {
                    return Ok(());
                }
                let blocks = reader.blocks_of(&piece);
                let mut at = blocks.start;
                while at < blocks.end {
                    let (source, count) =
                        self.source(inode, FileBlock(at), blocks.end - at, tag)?;
                    if let Some(BlockSource::Device(start)) = source
                        && !begin(start, (count * BLOCK) as usize)
                    {
                        break;
                    }
                    at += count;
                }
                Ok::<_, FsError>(())
            });
        }
        let plain = under_way.finish(inode, key)?;
        reader.begin(range, |block, most| {
            let (source, count) = self.source(inode, block, most, tag)?;
            match source {
                Some(source) => Ok((source, count)),
                None => plain.part(inode, block.0, count),
            }
        })
    }

    /// The block map of a file without compressed clusters.
    fn block_sources<'a>(
        &'a self,
        inode: &'a Inode,
        tag: IoTag,
    ) -> impl FnMut(FileBlock, u64) -> Result<(BlockSource, u64)> + 'a {
        move |block, most| {
            let (source, count) = self.source(inode, block, most, tag)?;
            Ok((source.unwrap_or(BlockSource::Hole), count))
        }
    }

    /// The source of a block that is not in memory, and the number of blocks, up to `most`, that have the same one.
    /// `None` for blocks of a compressed cluster.
    fn source(
        &self,
        inode: &Inode,
        block: FileBlock,
        most: u64,
        tag: IoTag,
    ) -> Result<(Option<BlockSource>, u64)> {
        let mapped = self.map(inode, block.0, most, tag)?;
        let source = match mapped.target {
            MapTarget::Hole | MapTarget::Reserved => Some(BlockSource::Hole),
            MapTarget::Block(first) => Some(BlockSource::Device(u64::from(first.0) * BLOCK)),
            MapTarget::Compressed => None,
        };
        Ok((source, mapped.len))
    }
}
