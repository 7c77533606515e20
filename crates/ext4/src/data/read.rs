//! Reading of file content.

use std::ops::Range;

use steadfs_base::{FileBlock, IoTag};
use steadfs_cache::{BlockSource, FileReader};
use steadfs_vfs::{Cx, InodeFlags, ReadData, Result, relatime_needs_update};

use crate::disk;
use crate::disk::inode::INLINE_DATA;
use crate::fs::Ext4;
use crate::inline;
use crate::inode::Inode;
use crate::io_error;
use crate::options::Atime;
use crate::place::BlockPlace;

impl Ext4 {
    /// Reads up to `len` bytes from `offset`.
    pub fn read_file(&self, cx: &Cx, inode: &Inode, offset: u64, len: usize) -> Result<ReadData> {
        let out = self.read_without_atime(cx, inode, offset, len)?;
        // Also at the end of the file, where nothing is read (`filemap_read`).
        if len > 0 {
            self.touch_atime(inode);
        }
        Ok(out)
    }

    /// Reads without updating the access time.
    pub(crate) fn read_without_atime(
        &self,
        cx: &Cx,
        inode: &Inode,
        offset: u64,
        len: usize,
    ) -> Result<ReadData> {
        self.check_readable(inode, cx.tag)?;
        let _shared = inode.lock.read();
        let size = inode.size();
        if offset >= size || len == 0 {
            return Ok(ReadData::new());
        }
        let range = offset..size.min(offset.saturating_add(len as u64));
        if inode.has(InodeFlags::VERITY) {
            return self.read_verified(inode, range, cx.tag);
        }
        self.read_mapped(inode, range, Some(size), cx.tag)
    }

    /// Reads bytes of a file through its map. With `size`, a sequential stream gets read-ahead; without, the range may
    /// be beyond the end of the file, where verity files have their hashes.
    pub(crate) fn read_mapped(
        &self,
        inode: &Inode,
        range: Range<u64>,
        size: Option<u64>,
        tag: IoTag,
    ) -> Result<ReadData> {
        let reader = FileReader::new(&self.queue, &inode.pages, &inode.read_ahead, tag);
        let reading = {
            let core = inode.core.read();
            if core.has(INLINE_DATA) {
                return inline::read(&core, inode.size(), range);
            }
            let map = |block, _| self.source(inode, &core, block, tag);
            let reading = reader.begin(range.clone(), map)?;
            if let Some(size) = size {
                reader.read_ahead(range, size, map);
            }
            reading
        };
        let data = match self.content_key(inode, tag)? {
            Some(key) => reading.into_decoded(|at, block| key.decrypt(at, block.make_mut())),
            None => reading.into_data(),
        };
        data.map_err(io_error)
    }

    /// The source of an uncached block, and the number of blocks mapped like it.
    fn source(
        &self,
        inode: &Inode,
        core: &disk::Inode,
        block: FileBlock,
        tag: IoTag,
    ) -> Result<(BlockSource, u64)> {
        let mapped = self.map(inode.ino(), core, block, tag)?;
        let source = match mapped.place {
            BlockPlace::Written(start) => BlockSource::Device(self.geo.block_size.offset_of(start)),
            BlockPlace::Hole | BlockPlace::Unwritten(_) => BlockSource::Hole,
        };
        Ok((source, mapped.len))
    }

    /// Updates the access time as relatime does: once a day, or if the file changed since.
    pub(crate) fn touch_atime(&self, inode: &Inode) {
        let wanted = self.options.read().common.atime == Atime::Relative;
        if !wanted || self.check_writable().is_err() {
            return;
        }
        let (now, due) = {
            let core = inode.core.read();
            let now = self.now(&core);
            let due = relatime_needs_update(now, core.atime, core.mtime, core.ctime);
            (now, due && !core.flags.contains(InodeFlags::NOATIME))
        };
        if due {
            inode.core.write().atime = now;
            inode.mark_core_dirty();
        }
    }
}
