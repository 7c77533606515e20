//! Content and extended attributes of files.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_base::limits::{XATTR_NAME_MAX, XATTR_SIZE_MAX};
use steadfs_vfs::{FallocMode, FileKind, FsError, Result, SetXattr};

use super::{Node, State};
use crate::Span;
use crate::model::format::Format;

impl State {
    fn regular(&self, ino: InodeNo) -> Result<&Arc<Node>> {
        let node = self.node(ino)?;
        match node.kind {
            FileKind::Regular => Ok(node),
            FileKind::Directory => Err(FsError::IsDir),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    /// The bytes of a regular file from `offset`, at most `len`, clipped at its end.
    pub fn read(&self, ino: InodeNo, offset: u64, len: usize) -> Result<Vec<u8>> {
        let node = self.regular(ino)?;
        let n = node.size.saturating_sub(offset).min(len as u64);
        let mut out = vec![0; usize::try_from(n).expect("at most a usize")];
        node.content.read(offset, &mut out);
        Ok(out)
    }

    /// Writes to a regular file.
    pub fn write(&mut self, ino: InodeNo, offset: u64, bytes: &[u8]) -> Result<()> {
        self.regular(ino)?;
        let end = offset
            .checked_add(bytes.len() as u64)
            .ok_or(FsError::FileTooBig)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let node = self.touch(ino)?;
        node.content.write(offset, bytes);
        node.size = node.size.max(end);
        node.mtime = None;
        Ok(())
    }

    /// Sets the size of a regular file.
    pub fn truncate(&mut self, ino: InodeNo, size: u64) -> Result<()> {
        if self.regular(ino)?.size == size {
            // Whether the times change is not specified.
            self.touch(ino)?.mtime = None;
            return Ok(());
        }
        let node = self.change(ino)?;
        node.content.zero(size, u64::MAX);
        node.size = size;
        node.mtime = None;
        Ok(())
    }

    /// fallocate(2).
    pub fn fallocate(
        &mut self,
        ino: InodeNo,
        mode: FallocMode,
        span: Span,
        format: Format,
    ) -> Result<()> {
        let node = self.regular(ino)?;
        let size = node.size;
        let format = Format {
            // Linux compresses no file that it makes without a name.
            punch_ranges: format.punch_ranges || node.was_unnamed,
            ..format
        };
        check_fallocate(mode, span, size, format)?;
        self.touch(ino)?.mtime = None;
        self.alter(ino, |node| apply_fallocate(node, mode, span))?;
        Ok(())
    }

    /// The value of an extended attribute.
    pub fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.node(ino)?
            .xattrs
            .get(name)
            .cloned()
            .ok_or(FsError::NoData)
    }

    /// Only regular files and directories have user attributes.
    fn check_user_xattr(&self, ino: InodeNo, name: &[u8]) -> Result<()> {
        let kind = self.node(ino)?.kind;
        let may = matches!(kind, FileKind::Regular | FileKind::Directory);
        if name.starts_with(b"user.") && !may {
            return Err(FsError::NotPermitted);
        }
        Ok(())
    }

    /// Sets an extended attribute.
    pub fn setxattr(
        &mut self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        self.check_user_xattr(ino, name)?;
        let node = self.node(ino)?;
        if name.len() > XATTR_NAME_MAX {
            return Err(FsError::Range);
        }
        if value.len() > XATTR_SIZE_MAX {
            return Err(FsError::TooBig);
        }
        match (how, node.xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return Err(FsError::Exists),
            (SetXattr::Replace, false) => return Err(FsError::NoData),
            _ => {}
        }
        self.alter(ino, |node| {
            node.xattrs.insert(name.to_vec(), value.to_vec());
        })?;
        Ok(())
    }

    /// Removes an extended attribute.
    pub fn removexattr(&mut self, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.check_user_xattr(ino, name)?;
        self.getxattr(ino, name)?;
        self.change(ino)?.xattrs.remove(name);
        Ok(())
    }
}

fn check_fallocate(mode: FallocMode, span: Span, size: u64, format: Format) -> Result<()> {
    if span.len == 0 {
        return Err(FsError::Invalid("fallocate of no bytes"));
    }
    if span
        .offset
        .checked_add(span.len)
        .is_none_or(|end| end > i64::MAX as u64)
    {
        return Err(FsError::FileTooBig);
    }
    let block = u64::from(format.block_size);
    let aligned = span.offset.is_multiple_of(block) && span.len.is_multiple_of(block);
    match mode {
        FallocMode::Allocate { .. } | FallocMode::ZeroRange { .. } if !format.extents => {
            Err(FsError::NotSupported("fallocate of this mode"))
        }
        FallocMode::PunchHole | FallocMode::ZeroRange { .. } if !format.punch_ranges => {
            Err(FsError::NotSupported("fallocate of this mode"))
        }
        FallocMode::CollapseRange | FallocMode::InsertRange if !format.shift_ranges => {
            Err(FsError::NotSupported("fallocate of this mode"))
        }
        FallocMode::CollapseRange if !aligned || span.end() >= size => {
            Err(FsError::Invalid("collapse range"))
        }
        FallocMode::InsertRange if !aligned || span.offset >= size => {
            Err(FsError::Invalid("insert range"))
        }
        _ => Ok(()),
    }
}

fn apply_fallocate(node: &mut Node, mode: FallocMode, span: Span) {
    let size = node.size;
    match mode {
        FallocMode::Allocate { keep_size } => {
            node.content.allocate(span.offset, span.end());
            if !keep_size {
                node.size = size.max(span.end());
            }
        }
        FallocMode::PunchHole => node.content.zero(span.offset, span.end()),
        FallocMode::ZeroRange { keep_size } => {
            node.content.zero(span.offset, span.end());
            node.content.allocate(span.offset, span.end());
            if !keep_size {
                node.size = size.max(span.end());
            }
        }
        FallocMode::CollapseRange => {
            node.content.shift(span.end(), span.offset);
            node.size -= span.len;
        }
        FallocMode::InsertRange => {
            node.content.shift(span.offset, span.end());
            node.size += span.len;
        }
    }
}
