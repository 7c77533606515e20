//! Content in the inode (`inline_data`): its first bytes in `i_block`, the rest in the value of the attribute
//! `system.data`, which is always in the inode itself. Files: [`crate::data`]. Directories: [`crate::dir`].

use std::ops::Range;
use std::sync::Arc;

use steadfs_vfs::{InodeFlags, ReadData, Result};

use crate::disk;
use crate::disk::Geometry;
use crate::disk::features::Incompat;
use crate::disk::inode::{I_BLOCK_SIZE, INLINE_DATA};
use crate::disk::xattr::{AttrList, INDEX_SYSTEM, InodeAttrs, Value};

/// The attribute with what `i_block` has no room for.
pub(crate) const NAME: &[u8] = b"data";

/// The parts of an inode that hold its content, in order.
pub(crate) fn parts(core: &disk::Inode) -> Result<[&[u8]; 2]> {
    let attrs = InodeAttrs::parse(&core.xattr_area)?;
    let more = match attrs.get(INDEX_SYSTEM, NAME).map(|attr| attr.value) {
        Some(Value::Here(value)) => value,
        _ => &[],
    };
    Ok([&core.block, more])
}

/// Reads a range of a file with inline data.
pub(crate) fn read(core: &disk::Inode, size: u64, range: Range<u64>) -> Result<ReadData> {
    let content = parts(core)?.concat();
    // What was never stored reads as zeros.
    let stored = (content.len() as u64).min(size);
    let (from, to) = (range.start.min(stored), range.end.min(stored));
    let mut out = ReadData::new();
    let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(content);
    out.push(owner, from as usize..to as usize);
    out.push_zeros((range.end - range.start - (to - from)) as usize);
    Ok(out)
}

/// Whether new content of an inode can be in the inode: that of encrypted ones never is.
pub(crate) fn is_allowed(geo: &Geometry, core: &disk::Inode) -> bool {
    geo.has_incompat(Incompat::INLINE_DATA) && !core.has(InodeFlags::ENCRYPTED)
}

/// Stores content in the inode instead of a map, which must be empty. False where the inode has no room: then nothing
/// has changed.
pub(crate) fn store(geo: &Geometry, core: &mut disk::Inode, content: &[u8]) -> Result<bool> {
    let (head, rest) = content.split_at(content.len().min(I_BLOCK_SIZE));
    let room = core.xattr_room(geo);
    let mut list: AttrList = InodeAttrs::parse(&core.xattr_area)?.iter().collect();
    list.set(INDEX_SYSTEM, NAME, rest);
    if !list.fits_inode(room) {
        return Ok(false);
    }
    core.block = [0; I_BLOCK_SIZE];
    core.block[..head.len()].copy_from_slice(head);
    core.xattr_area = list.to_inode_area(room);
    core.flags = InodeFlags(core.flags.0 & !InodeFlags::EXTENTS.0).union(INLINE_DATA);
    Ok(true)
}

#[cfg(test)]
mod tests;
