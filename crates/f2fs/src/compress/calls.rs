//! The ioctls of compressed files: how much compression saves, giving that space back and taking it again, the parameters,
//! and compressing by hand (`compress_mode=user`).

use std::ops::Range;

use steadfs_base::IoTag;
use steadfs_vfs::{Cx, FsError, InodeFlags, Result};

use super::write::saved_in;
use crate::cp_lock::Change;
use crate::data::BLOCK;
use crate::disk::inode::{CompressAlgorithm, Compression, Inline};
use crate::disk::{self, BlockAddr, Features};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::node::{Slot, SlotLookup};
use crate::options::CompressMode;
use crate::space::Need;

/// A compressed cluster: the slot of its mark, and its addresses.
struct Packed {
    slot: Slot,
    addrs: Vec<BlockAddr>,
}

impl Packed {
    /// Blocks that it lacks in a released file: its mark, and slots that are not reserved. (Those of a file that the kernel
    /// released or reserved in part are.)
    fn released(&self) -> u64 {
        let lacks = |addr: &&BlockAddr| **addr == BlockAddr::NULL;
        1 + self.addrs.iter().filter(lacks).count() as u64
    }
}

const NOT_COMPRESSED: FsError = FsError::Invalid("the file is not compressed");

impl F2fs {
    fn check_compression(&self) -> Result<()> {
        match self.layout.has(Features::COMPRESSION) {
            true => Ok(()),
            false => Err(FsError::NotSupported("compression on this volume")),
        }
    }

    /// The parameters of a compressed file.
    ///
    /// # Errors
    /// `NotSupported` on a volume without compression, `Invalid` for another file.
    pub(crate) fn compression_of(&self, inode: &Inode) -> Result<Compression> {
        self.check_compression()?;
        let core = inode.core.read();
        let compressed = core.is_compressed(&self.layout);
        core.compression
            .filter(|_| compressed)
            .ok_or(NOT_COMPRESSED)
    }

    fn check_may_recompress(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        self.check_writable()?;
        match cx.uid == 0 || cx.uid == inode.core.read().uid {
            true => self.check_may_change(inode),
            false => Err(FsError::Access),
        }
    }

    /// Gives back the space that compression saves; from then on the file cannot be written (`F2FS_IOC_RELEASE_COMPRESS_BLOCKS`).
    /// Returns the number of blocks.
    ///
    /// # Errors
    /// `Invalid` for a file that is not compressed or has been released, `NotPermitted` where nothing is saved.
    pub(crate) fn release_saved(&self, cx: &Cx, inode: &Inode) -> Result<u64> {
        self.compression_of(inode)?;
        self.with_space(cx, || {
            let _exclusive = inode.lock.write();
            self.check_may_recompress(cx, inode)?;
            if Self::check_not_released(inode).is_err() {
                return Err(FsError::Invalid("the saved blocks are released"));
            }
            self.write_out_locked(inode, cx.tag)?;
            let _flush = inode.lock_flush();
            if self.compression_of(inode)?.saved_blocks == 0 {
                return Err(FsError::NotPermitted);
            }
            let clusters = self.packed_clusters(inode, cx.tag)?;
            let change = self.change()?;
            let mut core = inode.core.write();
            self.mark_dirty(&change, inode, cx.tag)?;
            let done = self.fill_clusters(
                &change,
                inode,
                &mut core,
                &clusters,
                BlockAddr::NULL,
                cx.tag,
            );
            let released = self.abort_on_error(done)?;
            let marks = clusters.len() as u64;
            self.space.free_blocks(marks);
            core.blocks = core.blocks.saturating_sub(marks).max(1);
            core.inline = core.inline.union(Inline::COMPRESS_RELEASED);
            core.ctime = self.now();
            Self::set_saved(&mut core, 0);
            self.charge(inode, &core);
            Ok(released)
        })
    }

    /// Takes the space again that [`F2fs::release_saved`] gave back. Returns the number of blocks, 0 if nothing was released.
    ///
    /// # Errors
    /// `Invalid` for a file that is not compressed or was not released; `NoSpace`.
    pub(crate) fn reserve_saved(&self, cx: &Cx, inode: &Inode) -> Result<u64> {
        self.with_space(cx, || {
            let _exclusive = inode.lock.write();
            let how = self.compression_of(inode)?;
            self.check_may_recompress(cx, inode)?;
            if how.saved_blocks > 0 {
                return Ok(0);
            }
            if Self::check_not_released(inode).is_ok() {
                return Err(FsError::Invalid("no saved blocks are released"));
            }
            let _flush = inode.lock_flush();
            let clusters = self.packed_clusters(inode, cx.tag)?;
            let saved = clusters.iter().map(|cluster| saved_in(&cluster.addrs));
            let saved = saved.sum();
            let blocks = clusters.iter().map(Packed::released).sum();
            let need = Need { blocks, nodes: 0 };
            let _held = self.hold_space(cx, inode, need)?;
            let mut reservation = self.space.reservation(need, self.may_use_reserved(cx))?;
            let change = self.change()?;
            let mut core = inode.core.write();
            self.mark_dirty(&change, inode, cx.tag)?;
            let done =
                self.fill_clusters(&change, inode, &mut core, &clusters, BlockAddr::NEW, cx.tag);
            self.abort_on_error(done)?;
            clusters.iter().for_each(|_| self.space.use_block());
            reservation.used(need);
            core.blocks += clusters.len() as u64;
            core.inline = core.inline.without(Inline::COMPRESS_RELEASED);
            core.ctime = self.now();
            Self::set_saved(&mut core, saved);
            self.charge(inode, &core);
            Ok(blocks)
        })
    }

    fn set_saved(core: &mut disk::Inode, blocks: u64) {
        if let Some(how) = &mut core.compression {
            how.saved_blocks = blocks;
        }
    }

    /// Stores a special value in the slots of compressed clusters that have no block. Returns the number of blocks that the
    /// clusters save, their marks included.
    fn fill_clusters(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        clusters: &[Packed],
        with: BlockAddr,
        tag: IoTag,
    ) -> Result<u64> {
        let mut saved = 0;
        for Packed { slot, addrs } in clusters {
            saved += saved_in(addrs);
            for (at, _) in (1..).zip(&addrs[1..]).filter(|(_, addr)| !addr.is_block()) {
                let slot = Slot {
                    slot: slot.slot + at,
                    left: slot.left - at,
                    ..slot.clone()
                };
                self.set_slot(change, inode, core, &slot, with, tag)?;
            }
        }
        Ok(saved)
    }

    /// All compressed clusters of a file.
    fn packed_clusters(&self, inode: &Inode, tag: IoTag) -> Result<Vec<Packed>> {
        let mut packed = Vec::new();
        self.each_cluster(inode, tag, |_, slot, addrs| {
            if addrs[0] == BlockAddr::COMPRESSED {
                packed.push(Packed { slot, addrs });
            }
        })?;
        Ok(packed)
    }

    /// Calls `visit` with the first block, the slot and the addresses of each cluster of a file that has a node. The caller
    /// holds `inode.lock` for writing.
    fn each_cluster(
        &self,
        inode: &Inode,
        tag: IoTag,
        mut visit: impl FnMut(u64, Slot, Vec<BlockAddr>),
    ) -> Result<()> {
        let core = inode.core.read();
        let per = self.cluster_blocks(&core).ok_or(NOT_COMPRESSED)?;
        let end = core.size.div_ceil(BLOCK);
        let mut at = 0;
        while at < end {
            match self.find_slot(inode, &core, at, tag)? {
                SlotLookup::Missing(len) => at += len.max(1).next_multiple_of(per),
                SlotLookup::Slot(slot) => {
                    let content = slot.content()?;
                    let addrs =
                        (0..per as u16).map(|n| slot.addr(&self.layout, &core, &content, n));
                    let addrs = addrs.collect();
                    visit(at, slot, addrs);
                    at += per;
                }
            }
        }
        Ok(())
    }

    /// Changes algorithm and cluster size of a file without blocks (`F2FS_IOC_SET_COMPRESS_OPTION`).
    ///
    /// # Errors
    /// `Invalid` for values that do not exist and for a file that is not compressed; `FileTooBig` for one with blocks.
    pub(crate) fn set_compression(&self, cx: &Cx, inode: &Inode, option: &[u8]) -> Result<()> {
        let &[algorithm, log_cluster] = option else {
            return Err(FsError::Invalid("the argument is too short"));
        };
        let _exclusive = inode.lock.write();
        self.compression_of(inode)?;
        self.check_may_recompress(cx, inode)?;
        let known = CompressAlgorithm::from_number(algorithm);
        let known = known.filter(|_| Compression::LOG_CLUSTERS.contains(&log_cluster));
        let algorithm = known.ok_or(FsError::Invalid("no such algorithm or cluster size"))?;
        if !inode.pages.is_empty() {
            return Err(FsError::Busy);
        }
        if self.has_blocks(inode) {
            return Err(FsError::FileTooBig);
        }
        let level = u8::from(algorithm == CompressAlgorithm::Zstd);
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, inode, cx.tag)?;
        let sums = core
            .compression
            .is_some_and(|how| how.flags & Compression::CHECKSUM != 0);
        core.compression = Some(Compression::new(algorithm, level, log_cluster, sums));
        core.ctime = self.now();
        self.since_cp.change_map_of(inode.nid());
        Ok(())
    }

    /// Writes all clusters of a file compressed, as far as that saves blocks, or all plain (`F2FS_IOC_COMPRESS_FILE`,
    /// `F2FS_IOC_DECOMPRESS_FILE`).
    ///
    /// # Errors
    /// `NotSupported` unless `compress_mode=user`; `Invalid` for a file that is not compressed or was released; `NoKey`
    /// for an encrypted one without its key.
    pub(crate) fn recompress(&self, cx: &Cx, inode: &Inode, compress: bool) -> Result<()> {
        self.check_compression()?;
        if self.options.read().compress.mode != CompressMode::User {
            return Err(FsError::NotSupported(
                "compressing by hand without compress_mode=user",
            ));
        }
        self.with_space(cx, || {
            let _exclusive = inode.lock.write();
            self.check_readable(inode, cx.tag)?;
            self.compression_of(inode)?;
            self.check_may_recompress(cx, inode)?;
            if Self::check_not_released(inode).is_err() {
                return Err(FsError::Invalid("the saved blocks are released"));
            }
            self.write_out_locked(inode, cx.tag)?;
            for cluster in self.clusters_to_change(inode, compress, cx.tag)? {
                cx.check_killed()?;
                let bytes = cluster.start * BLOCK..cluster.end * BLOCK;
                let content = self.read_blocks(inode, bytes, None, cx.tag)?.to_vec();
                let _flush = inode.lock_flush();
                self.rewrite_cluster(inode, cluster.start, &content, compress, cx.tag)?;
            }
            Ok(())
        })
    }

    /// The clusters that compressing or decompressing a file changes: to be compressed are those within the file in which
    /// every block has its place.
    fn clusters_to_change(
        &self,
        inode: &Inode,
        compress: bool,
        tag: IoTag,
    ) -> Result<Vec<Range<u64>>> {
        let end = inode.size().div_ceil(BLOCK);
        let mut clusters = Vec::new();
        self.each_cluster(inode, tag, |first, _, addrs| {
            let cluster = first..first + addrs.len() as u64;
            let packed = addrs[0] == BlockAddr::COMPRESSED;
            let full = !addrs.contains(&BlockAddr::NULL) && cluster.end <= end;
            let stored = addrs.iter().any(|addr| addr.is_block());
            let wanted = match compress {
                true => !packed && full && stored,
                false => packed,
            };
            if wanted {
                clusters.push(cluster);
            }
        })?;
        Ok(clusters)
    }

    /// Before a file is pinned: it is compressed no more, which needs that it has no blocks.
    pub(crate) fn end_compression(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        if self.cluster_blocks(&inode.core.read()).is_none() {
            return Ok(());
        }
        if self.has_blocks(inode) {
            return Err(FsError::NotSupported("pinning a compressed file"));
        }
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, inode, tag)?;
        core.flags = InodeFlags(core.flags.0 & !InodeFlags::COMPRESSED.0);
        self.convert(inode, &mut core);
        Ok(())
    }
}
