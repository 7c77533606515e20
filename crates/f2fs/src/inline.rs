//! Content that lies in the inode.

use std::ops::Range;

use steadfs_base::IoTag;
use steadfs_vfs::{ReadData, Result};

use crate::fs::F2fs;
use crate::inode::Inode;

impl F2fs {
    /// Bytes of an inode's content that lies in it; the range ends at the size or before. (That the
    /// size fits was checked when the inode was read.)
    pub(crate) fn inline_content(
        &self,
        inode: &Inode,
        range: Range<u64>,
        tag: IoTag,
    ) -> Result<ReadData> {
        let area = inode.core.read().inline_range(&self.layout);
        let at = |offset: u64| {
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            area.start.saturating_add(offset).min(area.end)
        };
        let mut out = ReadData::new();
        out.push(
            self.inode_block(inode, tag)?.into_shared(),
            at(range.start)..at(range.end),
        );
        Ok(out)
    }
}
