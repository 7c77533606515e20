//! Making a file a verity file.
//!
//! **Problem.** The tree of a large file is written over many checkpoints, and f2fs has no record of files that are to be
//! truncated after a crash. **Rule.** A crash leaves the plain file with its old content and no block of a tree, or the
//! verity file. So tree and descriptor are written to a file without a name, as atomic writes do ([`crate::atomic`]), which
//! the next mount frees. When they are on the device, one `Change` moves their blocks to the file and sets the flag and the
//! attribute: each checkpoint and each node chain has all of it or nothing. Until then the file does not change, so an error
//! frees the staging file, and that is all.
//!
//! Between two steps the file is not locked, and a change that would wait for a step is refused with ETXTBSY
//! ([`InodeMarks::becomes_verity`](steadfs_vfs::InodeMarks::becomes_verity)). Blocks of an encrypted file's tree are
//! encrypted with the file's key before they are staged. The nodes that will map them are reserved at the start, so the
//! last step needs space for an attribute node at most.

use std::ops::Range;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_vfs::verity::{DESCRIPTOR_SIZE, TreeBuilder, Verity, VerityOptions};
use steadfs_vfs::{Cx, FsError, InodeFlags, ReadData, Result};

use super::{DescriptorLocation, VERITY_XATTR, tree_of};
use crate::data::BLOCK;
use crate::disk::inode::Advise;
use crate::disk::xattr::{XattrChange, index};
use crate::disk::{BLOCK_SIZE, Features};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::xattr::need_of;

/// A file whose tree is being built; unless it is finished, the file is as before when this is dropped.
struct Sealing<'f> {
    fs: &'f F2fs,
    cx: &'f Cx,
    inode: Arc<Inode>,
    /// Has the tree, where the file will have it.
    staging: Arc<Inode>,
    size: u64,
    /// Where the tree begins, and the descriptor.
    tree: u64,
    descriptor: u64,
}

impl F2fs {
    /// See [`steadfs_vfs::FileSystem::enable_verity`].
    pub(crate) fn make_verity(&self, cx: &Cx, ino: InodeNo, options: &VerityOptions) -> Result<()> {
        if !self.layout.has(Features::VERITY) {
            return Err(FsError::NotSupported(
                "verity on this volume (it lacks the feature verity)",
            ));
        }
        let inode = self.by_number(ino, cx.tag)?;
        self.check_readable(&inode, cx.tag)?;
        let sealing = Sealing::begin(self, cx, &inode, options)?;
        let sealed = sealing.build(options).and_then(|()| sealing.finish());
        drop(sealing);
        sealed?;
        let _same = self.remount.hold_open();
        if self.is_frozen() {
            // A freeze has written everything.
            return Ok(());
        }
        // As after an fsync that nodes alone cannot serve.
        self.sync_by_checkpoint(&inode, cx.tag)
    }

    /// Fails for a file that cannot become a verity file. The caller holds `inode.lock` for writing.
    fn check_may_seal(&self, inode: &Inode) -> Result<()> {
        if inode.marks.is_dead() {
            return Err(FsError::Stale);
        }
        if inode.marks.becomes_verity() {
            return Err(FsError::Busy);
        }
        if inode.is_verity() {
            return Err(FsError::Exists);
        }
        self.check_may_change(inode)?;
        if inode.core.read().has(InodeFlags::APPEND) {
            return Err(FsError::NotPermitted);
        }
        Self::check_not_released(inode)?;
        match self.atomic_writes.of(inode) {
            Some(_) => Err(FsError::NotSupported(
                "verity of a file during an atomic write",
            )),
            None => Ok(()),
        }
    }

    /// Fails if the tree would begin within the last cluster of a compressed file.
    fn check_last_cluster(&self, inode: &Inode, size: u64, tree: u64) -> Result<()> {
        let cluster = self.cluster_blocks(&inode.core.read()).unwrap_or(1);
        match size.div_ceil(BLOCK).next_multiple_of(cluster) > tree / BLOCK {
            true => Err(FsError::NotSupported(
                "verity of a compressed file whose last cluster is larger than 64 KiB",
            )),
            false => Ok(()),
        }
    }
}

impl<'f> Sealing<'f> {
    /// Excludes changes, brings the file to the device, and makes the staging file.
    fn begin(
        fs: &'f F2fs,
        cx: &'f Cx,
        inode: &Arc<Inode>,
        options: &VerityOptions,
    ) -> Result<Self> {
        let _open = fs.open_to_changes()?;
        fs.prepare(cx)?;
        fs.with_space(cx, || {
            let _exclusive = inode.lock.write();
            fs.check_may_seal(inode)?;
            let size = inode.size();
            let tree = tree_of(inode)?;
            let builder = TreeBuilder::new(options, size, BLOCK_SIZE)?;
            let descriptor = tree.checked_add(builder.tree_len());
            let descriptor = descriptor.ok_or(FsError::FileTooBig)?;
            let end = descriptor.saturating_add(BLOCK);
            if end / BLOCK >= inode.core.read().fanout(&fs.layout).max_blocks() {
                return Err(FsError::FileTooBig);
            }
            fs.leave_inline(cx, inode)?;
            fs.check_last_cluster(inode, size, tree)?;
            // What is hashed as zeros must be zeros on the device, for the kernel hashes the whole block.
            fs.zero_tail(cx, inode, size, u64::MAX)?;
            fs.write_out_locked(inode, cx.tag)?;
            let staging = fs
                .reserve_commit(cx, inode, tree / BLOCK..end.div_ceil(BLOCK))
                .and_then(|()| fs.make_staging_file(cx, inode));
            if staging.is_err() {
                fs.release_nodes(inode, 0);
            }
            inode.marks.set_becomes_verity(staging.is_ok());
            Ok(Self {
                fs,
                cx,
                inode: Arc::clone(inode),
                staging: staging?,
                size,
                tree,
                descriptor,
            })
        })
    }

    /// Hashes the content and writes tree and descriptor.
    fn build(&self, options: &VerityOptions) -> Result<()> {
        let mut builder = TreeBuilder::new(options, self.size, BLOCK_SIZE)?;
        let mut write = |at, bytes: &[u8]| self.write(at, bytes);
        let descriptor = builder.build(|range| self.read(range), &mut write)?;
        // What a reader would refuse is not made.
        Verity::parse(&descriptor, self.size)?;
        builder.append(builder.tree_len(), &descriptor, &mut write)?;
        builder.finish(&mut write)
    }

    fn read(&self, range: Range<u64>) -> Result<ReadData> {
        self.cx.check_killed()?;
        let (fs, inode) = (self.fs, &self.inode);
        let _shared = inode.lock.read();
        fs.read_blocks(inode, range, Some(self.size), self.cx.tag)
    }

    /// Writes a block of the tree or behind it.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let (fs, cx, staging) = (self.fs, self.cx, &self.staging);
        let _open = fs.open_to_changes()?;
        fs.check_writable()?;
        fs.throttle(cx, staging)?;
        let offset = self.tree + at;
        let mut block = bytes.to_vec();
        if let Some(key) = fs.content_key(&self.inode, cx.tag)? {
            key.encrypt(offset, &mut block);
        }
        fs.with_space(cx, || {
            let _exclusive = staging.lock.write();
            fs.write_pages(cx, staging, offset, &block, u64::MAX).1
        })
    }

    /// Makes the file a verity file, in one change.
    fn finish(&self) -> Result<()> {
        let _open = self.fs.open_to_changes()?;
        self.fs.prepare(self.cx)?;
        self.fs.with_space(self.cx, || self.move_tree())
    }

    fn move_tree(&self) -> Result<()> {
        let (fs, cx, inode, staging) = (self.fs, self.cx, &*self.inode, &*self.staging);
        let tag = cx.tag;
        let _exclusive = inode.lock.write();
        let _alone = staging.lock.write();
        fs.write_out_locked(staging, tag)?;
        let location = DescriptorLocation {
            start: self.descriptor,
            size: DESCRIPTOR_SIZE as u32,
        };
        let location = location.encode();
        let attribute = XattrChange {
            index: index::VERITY,
            name: VERITY_XATTR,
            value: Some(&location),
        };
        let attrs = fs.plan_attrs(inode, &[attribute], tag)?;
        // It stays in memory.
        let _attribute_node = fs.xattr_node(inode, &inode.core.read(), tag)?;
        let need = attrs.as_ref().map(|attrs| need_of(inode, attrs));
        let need = need.unwrap_or_default();
        let _held = fs.hold_space(cx, inode, need)?;
        let mut reservation = fs.space.reservation(need, fs.may_use_reserved(cx))?;
        let end = (self.descriptor + DESCRIPTOR_SIZE as u64).div_ceil(BLOCK);
        let moves = fs.plan_appended(inode, staging, self.tree / BLOCK..end, tag)?;
        fs.nat.build_free_nids(tag)?;
        fs.move_staged((inode, staging), &moves, tag, |change, core| {
            if let Some(attrs) = &attrs {
                fs.put_attrs(change, inode, core, &mut reservation, attrs, tag)?;
            }
            // Without the second one recovery and fsck.f2fs would derive the file's end from its last block.
            core.advise = core.advise.union(Advise::VERITY).union(Advise::KEEP_SIZE);
            Ok(())
        })
    }
}

impl Drop for Sealing<'_> {
    fn drop(&mut self) {
        let inode = &self.inode;
        {
            let _exclusive = inode.lock.write();
            self.fs.release_nodes(inode, 0);
            inode.marks.set_becomes_verity(false);
        }
        let _same = self.fs.remount.hold_open();
        self.fs.free_staging(&self.staging, self.cx.tag);
    }
}
