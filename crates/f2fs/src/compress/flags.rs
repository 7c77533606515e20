//! The flags that say what is compressed (`chattr +c`, `+m`): on directories for what is created in them, on regular
//! files while they have no blocks, because the flag decides how many blocks a node maps.

use steadfs_base::IoTag;
use steadfs_vfs::{FileKind, FsError, InodeFlags, Result};

use crate::data::{BLOCK, MapTarget};
use crate::disk::inode::Inline;
use crate::disk::{self, Features};
use crate::fs::F2fs;
use crate::inode::Inode;

impl F2fs {
    /// Fails for flags of compression that contradict each other, or that the volume does not know.
    pub(crate) fn check_compress_flags(&self, flags: InodeFlags) -> Result<()> {
        let (on, off) = (InodeFlags::COMPRESSED, InodeFlags::NOT_COMPRESSED);
        let either = flags.contains(on) || flags.contains(off);
        if either && !self.layout.has(Features::COMPRESSION) {
            return Err(FsError::NotSupported("compression on this volume"));
        }
        if flags.contains(on.union(off)) {
            return Err(FsError::Invalid("a file is compressed or it is not"));
        }
        Ok(())
    }

    /// Fails where the flag `FS_COMPR_FL` cannot change to `on`. Inline content of an empty file is dropped. The caller
    /// holds `inode.lock` for writing.
    pub(crate) fn check_may_convert(&self, inode: &Inode, on: bool, tag: IoTag) -> Result<()> {
        if inode.kind() != FileKind::Regular {
            return Ok(());
        }
        self.check_not_atomic(inode)?;
        if inode.marks.becomes_verity() {
            return Err(FsError::TextBusy);
        }
        if on && !inode.core.read().has_compression(&self.layout) {
            return Err(FsError::NotSupported(
                "compression of a file without the fields for it",
            ));
        }
        if on && inode.is_pinned() {
            return Err(FsError::Invalid("a pinned file is not compressed"));
        }
        if self.has_blocks(inode) || (inode.is_content_inline() && inode.size() > 0) {
            return Err(FsError::Invalid(
                "whether a file is compressed can only change while it is empty",
            ));
        }
        if inode.is_content_inline() {
            self.clear_inline(inode, tag)?;
        }
        self.release_nodes(inode, 0);
        Ok(())
    }

    /// Fails if a new size would change clusters whose space was released: by cutting one, or by writing zeros behind an end
    /// of the file that is within a block of one.
    pub(crate) fn check_released_size(&self, inode: &Inode, size: u64, tag: IoTag) -> Result<()> {
        let per = {
            let core = inode.core.read();
            if !core.inline.contains(Inline::COMPRESS_RELEASED) {
                return Ok(());
            }
            self.cluster_blocks(&core).unwrap_or(1) * BLOCK
        };
        if !size.is_multiple_of(per) {
            return Err(FsError::Invalid(
                "a released file can only be truncated at a multiple of the cluster size",
            ));
        }
        let old = inode.size();
        if size <= old || old.is_multiple_of(BLOCK) {
            return Ok(());
        }
        match self.map(inode, old / BLOCK, 1, tag)?.target {
            MapTarget::Compressed => Err(FsError::NotPermitted),
            _ => Ok(()),
        }
    }

    /// Whether a file has blocks, or data that will have some.
    pub(crate) fn has_blocks(&self, inode: &Inode) -> bool {
        let core = inode.core.read();
        let own = 1 + u64::from(core.xattr_nid.some().is_some());
        core.blocks > own || !inode.pages.is_empty()
    }

    /// The flag `FS_COMPR_FL` has changed.
    pub(crate) fn convert(&self, inode: &Inode, core: &mut disk::Inode) {
        if core.has(InodeFlags::COMPRESSED) && core.has_compression(&self.layout) {
            core.compression = Some(self.options.read().compress.of_new_file());
        }
        core.inline = core.inline.without(Inline::COMPRESS_RELEASED);
        if inode.kind() == FileKind::Regular {
            self.since_cp.change_map_of(inode.nid());
        }
    }
}
