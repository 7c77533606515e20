//! Making a file a verity file.
//!
//! **Problem.** The tree of a large file is written in many transactions. **Rule.** A crash leaves the plain file with its
//! old content and no block beyond its end, or the verity file. So the file is on the orphan list from before the first
//! block beyond its end is mapped: the next mount truncates it to its size. The last transaction takes it from the list
//! and sets the flag, when the tree is on the device. Any error truncates the file in the same way, at once.
//!
//! Between two steps the file is not locked, and a change that would wait for a step is refused with ETXTBSY
//! ([`InodeMarks::becomes_verity`](steadfs_vfs::InodeMarks::becomes_verity)). Tree and descriptor are written through the
//! cache, as content beyond the end of the file: space, quota, write-back and encryption are those of content.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{InodeNo, IoTag};
use steadfs_cache::WritebackReason;
use steadfs_rt::sleep;
use steadfs_vfs::verity::{DESCRIPTOR_SIZE, TreeBuilder, Verity, VerityOptions, tree_start};
use steadfs_vfs::{Cx, FsError, InodeFlags, ReadData, Result};

use super::SIZE_FIELD;
use crate::disk;
use crate::disk::features::RoCompat;
use crate::disk::inode::JOURNAL_DATA;
use crate::extent;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::map::has_extents;
use crate::orphan;

/// Credits of the first and the last handle: the inode, and its place on the orphan list.
const CREDITS: u32 = orphan::CREDITS + 2;

/// How often a failed call looks whether the volume is frozen still.
const FROZEN_POLL: Duration = Duration::from_millis(20);

/// A file whose tree is being built; unless it is finished, the file is as before when this is dropped.
struct Sealing<'f> {
    fs: &'f Ext4,
    cx: &'f Cx,
    inode: Arc<Inode>,
    size: u64,
    /// Where the tree begins.
    tree: u64,
    finished: bool,
}

impl Ext4 {
    /// See [`steadfs_vfs::FileSystem::enable_verity`].
    pub(crate) fn make_verity(&self, cx: &Cx, ino: InodeNo, options: &VerityOptions) -> Result<()> {
        if !self.geo.has_ro_compat(RoCompat::VERITY) {
            return Err(FsError::NotSupported(
                "verity on this volume (it lacks the feature verity)",
            ));
        }
        let inode = self.by_number(ino, cx.tag)?;
        self.check_readable(&inode, cx.tag)?;
        let mut sealing = Sealing::begin(self, cx, &inode, options)?;
        sealing.build(options)?;
        sealing.finish()?;
        drop(sealing);
        self.fsync_inode(cx, &inode, false)
    }
}

impl<'f> Sealing<'f> {
    /// Excludes changes, and brings the file to the device.
    fn begin(
        fs: &'f Ext4,
        cx: &'f Cx,
        inode: &Arc<Inode>,
        options: &VerityOptions,
    ) -> Result<Self> {
        let _open = fs.open_to_changes();
        fs.check_writable()?;
        let _alone = inode.lock.write();
        check_may_seal(inode)?;
        let size = inode.size();
        let builder = TreeBuilder::new(options, size, fs.geo.block_size.bytes())?;
        let tree = tree_start(size).ok_or(FsError::FileTooBig)?;
        let bytes = builder.tree_len() + 2 * fs.geo.block_size.bytes_u64();
        let end = tree.checked_add(bytes).ok_or(FsError::FileTooBig)?;
        if end > fs.geo.max_file_size(true) {
            return Err(FsError::FileTooBig);
        }
        fs.move_content_out(cx, inode)?;
        if !has_extents(&inode.core.read()) {
            return Err(FsError::NotSupported(
                "verity of a file that is not mapped by extents",
            ));
        }
        // What is hashed as zeros must be zeros on the device, for the kernel hashes the whole block.
        fs.zero_tail(cx, inode, size, u64::MAX)?;
        fs.write_out(inode, WritebackReason::Sync, cx.tag)?;
        let sealing = Self {
            fs,
            cx,
            inode: Arc::clone(inode),
            size,
            tree,
            finished: false,
        };
        // The descriptor is found at the end of the last block.
        let end = extent::end(fs, inode.ino(), &inode.core.read(), cx.tag)?;
        if end.0 > fs.geo.block_size.blocks_for(size) {
            sealing.free_beyond_end()?;
        }
        let mut pins = fs.pin_inodes(&[inode.ino()], cx.tag)?;
        fs.orphans.pin_to_add(fs, &mut pins)?;
        fs.txns.run(CREDITS, cx.tag, |handle| {
            fs.store_now(handle, inode)?;
            inode.record_tid(handle, true);
            fs.orphans.add(fs, handle, inode)
        })?;
        inode.marks.set_becomes_verity(true);
        Ok(sealing)
    }

    /// Frees blocks beyond the end of the file, without a change of its times in memory.
    fn free_beyond_end(&self) -> Result<()> {
        let times = {
            let core = self.inode.core.read();
            (core.mtime, core.ctime)
        };
        let freed = self.fs.truncate(self.cx, &self.inode, self.size);
        let mut core = self.inode.core.write();
        (core.mtime, core.ctime) = times;
        freed
    }

    /// Hashes the content and writes tree and descriptor.
    fn build(&self, options: &VerityOptions) -> Result<()> {
        let block = self.fs.geo.block_size.bytes();
        let mut builder = TreeBuilder::new(options, self.size, block)?;
        let mut write = |at, bytes: &[u8]| self.write(at, bytes);
        let descriptor = builder.build(|range| self.read(range), &mut write)?;
        // What a reader would refuse is not made.
        Verity::parse(&descriptor, self.size)?;
        let block = block as u64;
        let at = builder.tree_len().next_multiple_of(block);
        builder.append(at, &descriptor, &mut write)?;
        let size_at =
            (at + DESCRIPTOR_SIZE as u64 + SIZE_FIELD).next_multiple_of(block) - SIZE_FIELD;
        let size = (DESCRIPTOR_SIZE as u32).to_le_bytes();
        builder.append(size_at, &size, &mut write)?;
        builder.finish(&mut write)
    }

    fn read(&self, range: Range<u64>) -> Result<ReadData> {
        self.cx.check_killed()?;
        let len = (range.end - range.start) as usize;
        let (fs, inode) = (self.fs, &self.inode);
        fs.read_without_atime(self.cx, inode, range.start, len)
    }

    /// Writes a block of the tree or behind it.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let (fs, cx, inode) = (self.fs, self.cx, &self.inode);
        let _open = fs.open_to_changes();
        fs.check_writable()?;
        fs.throttle(cx, inode)?;
        let _alone = inode.lock.write();
        let offset = self.tree + at;
        fs.write_pages(cx, inode, offset, bytes, self.size).1
    }

    /// Makes the file a verity file, in one transaction.
    fn finish(&mut self) -> Result<()> {
        let (fs, cx, inode) = (self.fs, self.cx, &self.inode);
        let _open = fs.open_to_changes();
        fs.check_writable()?;
        let _alone = inode.lock.write();
        fs.write_out(inode, WritebackReason::Sync, cx.tag)?;
        // After this nothing fails: the file cannot become plain again.
        if let Some(error) = inode.pages.take_error() {
            return Err(error.into());
        }
        fs.alloc.drop_prealloc(fs, inode.ino());
        self.leave_orphans(|core| core.flags = InodeFlags(core.flags.0 | InodeFlags::VERITY.0))?;
        inode.marks.set_becomes_verity(false);
        self.finished = true;
        Ok(())
    }

    /// Takes the file from the orphan list, unless it has lost its last name, in the transaction of another change.
    fn leave_orphans(&self, change: impl FnOnce(&mut disk::Inode)) -> Result<()> {
        let (fs, inode) = (self.fs, &self.inode);
        let tag = IoTag::default();
        let mut pins = fs.pin_inodes(&[inode.ino()], tag)?;
        fs.orphans.pin_to_remove(fs, &mut pins, inode.ino())?;
        fs.txns.run(CREDITS, tag, |handle| {
            change(&mut inode.core.write());
            fs.store_now(handle, inode)?;
            inode.record_tid(handle, true);
            fs.orphans.remove_named(fs, handle, inode)
        })
    }

    /// Frees what was written beyond the end of the file. Where that fails the file stays as it is, and takes no changes: a
    /// longer one would have the tree as content.
    fn undo(&self) -> Result<()> {
        let fs = self.fs;
        // Nothing is freed on a frozen volume.
        while fs.remount_state.is_frozen() && !fs.stop_state.is_stopped() && !self.cx.is_killed() {
            sleep(FROZEN_POLL);
        }
        let _open = fs.open_to_changes();
        let _alone = self.inode.lock.write();
        fs.check_writable()?;
        self.free_beyond_end()?;
        self.leave_orphans(|_| ())?;
        self.inode.marks.set_becomes_verity(false);
        Ok(())
    }
}

impl Drop for Sealing<'_> {
    fn drop(&mut self) {
        if self.finished || !self.inode.marks.becomes_verity() {
            return;
        }
        if let Err(error) = self.undo() {
            // The file stays on the orphan list, so the next mount truncates it.
            let ino = self.inode.ino();
            tracing::warn!(%ino, %error, "cannot free the unfinished hash tree of a file");
        }
    }
}

/// Fails for a file that cannot become a verity file.
fn check_may_seal(inode: &Inode) -> Result<()> {
    if inode.marks.is_dead() {
        return Err(FsError::Stale);
    }
    if inode.marks.becomes_verity() {
        return Err(FsError::Busy);
    }
    let core = inode.core.read();
    if core.has(InodeFlags::VERITY) {
        return Err(FsError::Exists);
    }
    if core.has(InodeFlags::IMMUTABLE) || core.has(InodeFlags::APPEND) {
        return Err(FsError::NotPermitted);
    }
    if core.has(JOURNAL_DATA) {
        return Err(FsError::NotSupported(
            "verity of a file whose data is journaled (chattr -j)",
        ));
    }
    Ok(())
}
