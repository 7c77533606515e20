//! Write-back of compressed files, cluster by cluster, as Linux does it.
//!
//! | cluster | is written as |
//! |---|---|
//! | plain or new, all of its blocks dirty and within the file | compressed form, if that saves a block |
//! | plain or new, else | its dirty blocks |
//! | compressed | read first; its dirty blocks replace theirs; compressed again, or all of its blocks |
//!
//! A compressed form has a slot for each of its blocks after the mark in the first slot; the other slots are reserved
//! (`NEW_ADDR`), so that the cluster can be written plain again on a full volume. Nothing is overwritten in place. All slots
//! of a cluster change in one [`Change`], after the device has written its blocks.

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::{Bio, Buf, IoHandle};
use steadfs_cache::{CollectedBlock, Settlement, WriteError, WritebackFs};
use steadfs_vfs::{FsError, Result};

use super::encode::encode;
use crate::cp_lock::Change;
use crate::data::BLOCK;
use crate::data::placement::Occasion;
use crate::disk::{self, BLOCK_SIZE, BlockAddr, DiskError, LogType, Structure};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::node::Slot;
use crate::options::CompressMode;
use crate::segment::{Purpose, Run};

/// A slot of a cluster as it will be.
struct NewSlot {
    /// Its number in the cluster.
    at: u16,
    /// The address of its block, once that is allocated, or a special value.
    addr: BlockAddr,
    /// The content of its block.
    data: Option<Buf>,
}

impl NewSlot {
    fn special(at: u16, addr: BlockAddr) -> Self {
        let data = None;
        Self { at, addr, data }
    }

    fn block(at: u16, data: Buf) -> Self {
        Self {
            at,
            addr: BlockAddr::NULL,
            data: Some(data),
        }
    }
}

/// A cluster on its way to the device.
pub(super) struct ClusterWrite<'c> {
    first: u64,
    slots: Vec<NewSlot>,
    /// The dirty blocks that it writes.
    collected: &'c [CollectedBlock],
    ios: Vec<IoHandle>,
    /// What was allocated for it.
    runs: Vec<Run>,
    /// Reservations used by mapping it.
    used: u64,
    result: Result<()>,
}

/// Slots of blocks from their content; those from `end` on, which are beyond the end of the file, become holes.
fn plain_slots(content: &[u8], end: u16) -> Vec<NewSlot> {
    let blocks = (0..).zip(content.chunks(BLOCK_SIZE));
    let slot = |(at, block)| match at < end {
        true => NewSlot::block(at, Buf::copy_of(block)),
        false => NewSlot::special(at, BlockAddr::NULL),
    };
    blocks.map(slot).collect()
}

/// Slots of a cluster of `size` blocks from its compressed form.
fn packed_slots(packed: Vec<Buf>, size: u16) -> Vec<NewSlot> {
    let mut slots = vec![NewSlot::special(0, BlockAddr::COMPRESSED)];
    slots.extend((1..).zip(packed).map(|(at, data)| NewSlot::block(at, data)));
    let used = slots.len() as u16;
    slots.extend((used..size).map(|at| NewSlot::special(at, BlockAddr::NEW)));
    slots
}

/// Blocks that a cluster with these slots saves (`i_compr_blocks`).
pub(crate) fn saved_in(slots: &[BlockAddr]) -> u64 {
    let saved = slots.iter().filter(|addr| !addr.is_block()).count() as u64;
    match slots.first() {
        Some(&BlockAddr::COMPRESSED) => saved,
        _ => 0,
    }
}

impl F2fs {
    /// Writes collected blocks of a compressed file, which had this size then, and completes them. The caller holds the
    /// flush lock.
    ///
    /// # Errors
    /// The first of all. What was not written is dirty again.
    pub(crate) fn write_clusters(
        &self,
        inode: &Inode,
        (collected, size): (&[CollectedBlock], u64),
        occasion: Occasion,
        tag: IoTag,
    ) -> Result<()> {
        let per = self.cluster_blocks(&inode.core.read()).unwrap_or(1);
        let log = self.cluster_log(inode, occasion);
        let mut stopped = None;
        let mut writes = Vec::new();
        for group in collected.chunk_by(|a, b| a.block.0 / per == b.block.0 / per) {
            let mut write = ClusterWrite {
                first: group[0].block.0 / per * per,
                slots: Vec::new(),
                collected: group,
                ios: Vec::new(),
                runs: Vec::new(),
                used: 0,
                result: stopped.clone().map_or(Ok(()), Err),
            };
            if write.result.is_ok() {
                let slots = self.plan_cluster(inode, &write, (per, size), tag);
                write.result = slots.and_then(|slots| {
                    write.slots = slots;
                    self.start_cluster(inode, &mut write, log, tag)
                });
                // Other errors are those of this cluster, such as one that cannot be read.
                let ends = |error: &FsError| {
                    WritebackFs::is_retried(self, error) || self.check_writable().is_err()
                };
                stopped = write.result.clone().err().filter(ends);
                for io in &write.ios {
                    let range = group[0].block.0..group[group.len() - 1].block.0 + 1;
                    inode.pages.mark_submitted(range, io);
                }
            }
            writes.push(write);
        }
        writes
            .iter_mut()
            .for_each(|write| self.wait_cluster(inode, write));
        self.map_clusters(inode, &mut writes, size);
        inode.record_written(true, self.queue.next_flush());
        let mut result = Ok(());
        for write in writes {
            result = result.and(write.result.clone());
            self.complete_cluster(inode, write);
        }
        result
    }

    /// The log for blocks of a compressed file: as in Linux, what is compressed counts as cold.
    fn cluster_log(&self, inode: &Inode, occasion: Occasion) -> LogType {
        let compresses = self.options.read().compress.mode == CompressMode::Fs;
        let occasion = match compresses {
            true => Occasion::Moved,
            false => occasion,
        };
        self.data_log(&self.file_hints(inode), occasion)
    }

    /// What the slots of a cluster become when its collected blocks are written to a file of this size.
    fn plan_cluster(
        &self,
        inode: &Inode,
        write: &ClusterWrite<'_>,
        (per, size): (u64, u64),
        tag: IoTag,
    ) -> Result<Vec<NewSlot>> {
        let (first, group) = (write.first, write.collected);
        let is_whole = group.len() as u64 == per;
        let stored = match is_whole {
            true => None,
            false => self.read_cluster(inode, first, tag)?,
        };
        let within = |block: FileBlock| (block.0 - first) as u16;
        if stored.is_none() && !is_whole {
            let slots = group.iter();
            return Ok(slots
                .map(|block| NewSlot::block(within(block.block), block.data.clone()))
                .collect());
        }
        let mut content = stored.unwrap_or_else(|| vec![0; (per * BLOCK) as usize]);
        for block in group {
            let at = usize::from(within(block.block)) * BLOCK_SIZE;
            content[at..at + BLOCK_SIZE].copy_from_slice(&block.data);
        }
        let end = size.max(inode.core.read().size).div_ceil(BLOCK);
        let inside = size.div_ceil(BLOCK) >= first + per;
        let by_itself = self.options.read().compress.mode == CompressMode::Fs;
        let packed = match inside && by_itself {
            true => self.encode_cluster(inode, &content),
            false => None,
        };
        Ok(match packed {
            Some(packed) => packed_slots(packed, per as u16),
            // Dirty blocks beyond the end are about to be discarded, and keep their places until then.
            None if is_whole => plain_slots(&content, per as u16),
            None => plain_slots(&content, end.saturating_sub(first).min(per) as u16),
        })
    }

    fn encode_cluster(&self, inode: &Inode, content: &[u8]) -> Option<Vec<Buf>> {
        let how = inode.core.read().compression?;
        encode(&how, content)
    }

    /// The content of a cluster that is stored compressed; `None` for another. The caller holds the flush lock.
    pub(crate) fn read_cluster(
        &self,
        inode: &Inode,
        first: u64,
        tag: IoTag,
    ) -> Result<Option<Vec<u8>>> {
        let stored = self.stored_in(inode, &(first * BLOCK..first * BLOCK + 1), tag)?;
        if stored.clusters.is_empty() {
            return Ok(None);
        }
        // Write-back goes on without the master key.
        let held = inode.held_key.lock().clone();
        let key = match held {
            None => self.content_key(inode, tag)?,
            held => held,
        };
        let plain = stored
            .begin(&self.queue, tag)
            .finish(inode, key.as_deref())?;
        Ok(plain.clusters.into_values().next())
    }

    /// Allocates the blocks of a cluster and starts to write them.
    fn start_cluster(
        &self,
        inode: &Inode,
        write: &mut ClusterWrite<'_>,
        log: LogType,
        tag: IoTag,
    ) -> Result<()> {
        let most = self.blocks_to_write(tag);
        let first = write.first;
        let data = write.slots.iter_mut().filter(|slot| slot.data.is_some());
        let mut data: Vec<&mut NewSlot> = data.collect();
        let mut rest = &mut data[..];
        while !rest.is_empty() {
            let want = rest.len().min(most) as u32;
            let run = self.segments().allocate(log, want, Purpose::User)?;
            write.runs.push(run);
            let (now, after) = rest.split_at_mut(run.len as usize);
            for (slot, addr) in now.iter_mut().zip(run.blocks()) {
                slot.addr = addr;
            }
            // What is compressed is encrypted after that.
            let stored = |slot: &&mut NewSlot| {
                let block = FileBlock(first + u64::from(slot.at));
                Some(self.stored_form(inode, block, slot.data.as_ref()?))
            };
            let bufs = now.iter().filter_map(stored).collect();
            let bio = Bio::write(u64::from(run.start.0) * BLOCK, bufs);
            write.ios.push(self.queue.submit(bio, tag));
            rest = after;
        }
        Ok(())
    }

    fn wait_cluster(&self, inode: &Inode, write: &mut ClusterWrite<'_>) {
        for io in write.ios.drain(..) {
            if let Err(error) = io.wait() {
                WritebackFs::data_failed(self, inode, &error);
                write.result = write.result.clone().and(Err(io_error(error)));
            }
        }
    }

    /// Maps the clusters that are written. The file does not grow over blocks that are not.
    fn map_clusters(&self, inode: &Inode, writes: &mut [ClusterWrite<'_>], size: u64) {
        let change = match self.change() {
            Ok(change) => change,
            Err(error) => {
                for write in writes {
                    write.result = write.result.clone().and(Err(error.clone()));
                }
                return;
            }
        };
        let mut core = inode.core.write();
        let mut failed = None;
        for write in writes {
            let mut reached = write.slots.iter().rev();
            let last = reached.find(|slot| !matches!(slot.addr, BlockAddr::NULL));
            let end = last.map_or(0, |slot| (write.first + u64::from(slot.at) + 1) * BLOCK);
            let end = end.min(size);
            if let (Some(error), true) = (&failed, end > core.size) {
                write.result = write.result.clone().and(Err(FsError::clone(error)));
            }
            if write.result.is_ok() {
                write.result = self.map_cluster(&change, inode, &mut core, write);
            }
            match &write.result {
                Ok(()) => core.size = core.size.max(end),
                Err(error) if reaches(write.collected, core.size) => {
                    failed = failed.or_else(|| Some(error.clone()));
                }
                Err(_) => {}
            }
        }
    }

    fn map_cluster(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        write: &mut ClusterWrite<'_>,
    ) -> Result<()> {
        let tag = IoTag::default();
        let base = self.make_slot(change, inode, core, write.first, tag)?;
        let per = self.cluster_blocks(core).unwrap_or(1) as u16;
        let content = base.content()?;
        let now = |at| base.addr(&self.layout, core, &content, at);
        let old: Vec<BlockAddr> = (0..per).map(now).collect();
        drop(content);
        let fresh = |slot: &&NewSlot| core.counts(slot.addr) && !core.counts(old[idx(slot)]);
        let fresh = write.slots.iter().filter(fresh).count() as u64;
        if fresh > reserved(write.collected) {
            let rule = "is in a cluster with a block without a reservation";
            let error = DiskError::field(Structure::Inode, "file block", write.first, rule);
            return Err(error.in_node(inode.nid()).into());
        }
        self.mark_dirty(change, inode, tag)?;
        let mut new = old.clone();
        for slot in &write.slots {
            new[idx(&slot)] = slot.addr;
        }
        let set = write
            .slots
            .iter()
            .try_for_each(|slot| self.set_cluster_slot(change, inode, core, &base, slot));
        write.runs.clear();
        // Half a cluster cannot be read.
        self.abort_on_error(set)?;
        if let Some(how) = &mut core.compression {
            let saved = how.saved_blocks.saturating_add(saved_in(&new));
            how.saved_blocks = saved.saturating_sub(saved_in(&old));
        }
        write.used = fresh;
        self.charge_mapped(inode, core, fresh);
        Ok(())
    }

    fn set_cluster_slot(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        base: &Slot,
        new: &NewSlot,
    ) -> Result<()> {
        let slot = Slot {
            slot: base.slot + new.at,
            left: base.left - new.at,
            ..base.clone()
        };
        self.set_slot(change, inode, core, &slot, new.addr, IoTag::default())?;
        if new.addr.is_block() {
            self.segments().set_valid(new.addr, slot.owner());
        }
        Ok(())
    }

    /// Blocks of a mapped cluster are clean, others are dirty again with their reservations.
    fn complete_cluster(&self, inode: &Inode, write: ClusterWrite<'_>) {
        for run in write.runs {
            self.segments().release(run);
        }
        let mut blocks = write.collected.iter();
        let holds_tail = |from: u64| blocks.any(|block| block.block.0 == from / BLOCK);
        if write.result.is_ok() && inode.stale_tail().is_some_and(holds_tail) {
            inode.clear_stale_tail();
        }
        let mut kept = 0;
        for run in write.collected.chunk_by(|a, b| a.block.0 + 1 == b.block.0) {
            let range = run[0].block.0..run[0].block.0 + run.len() as u64;
            kept += match &write.result {
                Ok(()) => inode.pages.complete(range, Ok(()), true),
                Err(error) if WritebackFs::is_retried(self, error) => {
                    inode.pages.redirty(range, true)
                }
                Err(error) => {
                    let error = WriteError::from(error.clone());
                    inode.pages.complete(range, Err(&error), true)
                }
            };
        }
        let (held, used) = (reserved(write.collected), write.used);
        WritebackFs::settle(self, inode, Settlement { held, used, kept });
    }

    /// Replaces a cluster by the same content in another form, as far as `compress` and the content allow: compressed,
    /// or plain. Whether it was replaced. The caller holds `inode.lock` for writing and the flush lock.
    ///
    /// # Errors
    /// `NoSpace` if the logs are full, `NoKey` without the key of an encrypted file. Nothing is changed then.
    pub(super) fn rewrite_cluster(
        &self,
        inode: &Inode,
        first: u64,
        content: &[u8],
        compress: bool,
        tag: IoTag,
    ) -> Result<bool> {
        self.hold_key(inode, tag)?;
        let per = (content.len() / BLOCK_SIZE) as u16;
        let slots = match compress {
            true => match self.encode_cluster(inode, content) {
                Some(packed) => packed_slots(packed, per),
                None => return Ok(false),
            },
            false => plain_slots(content, per),
        };
        let mut write = ClusterWrite {
            first,
            slots,
            collected: &[],
            ios: Vec::new(),
            runs: Vec::new(),
            used: 0,
            result: Ok(()),
        };
        let log = self.cluster_log(inode, Occasion::Sync);
        write.result = self.start_cluster(inode, &mut write, log, tag);
        self.wait_cluster(inode, &mut write);
        let size = inode.core.read().size;
        self.map_clusters(inode, std::slice::from_mut(&mut write), size);
        inode.record_written(true, self.queue.next_flush());
        for run in write.runs {
            self.segments().release(run);
        }
        write.result.map(|()| true)
    }

    /// Before a file is cut at `size`: writes the cluster there plain, if it is compressed and a part of it stays. The
    /// caller holds `inode.lock` for writing and the flush lock.
    ///
    /// # Errors
    /// As [`F2fs::rewrite_cluster`].
    pub(crate) fn unpack_at(&self, inode: &Inode, size: u64, tag: IoTag) -> Result<()> {
        let Some(per) = self.cluster_blocks(&inode.core.read()) else {
            return Ok(());
        };
        if size.is_multiple_of(per * BLOCK) {
            return Ok(());
        }
        let first = size / BLOCK / per * per;
        match self.read_cluster(inode, first, tag)? {
            Some(content) => self
                .rewrite_cluster(inode, first, &content, false, tag)
                .map(drop),
            None => Ok(()),
        }
    }
}

fn idx(slot: &&NewSlot) -> usize {
    slot.at.into()
}

/// Whether some of the blocks are at or beyond the end of a file of `size` bytes.
fn reaches(blocks: &[CollectedBlock], size: u64) -> bool {
    blocks
        .last()
        .is_some_and(|last| last.block.0 >= size / BLOCK)
}

fn reserved(blocks: &[CollectedBlock]) -> u64 {
    blocks.iter().filter(|block| block.reserved).count() as u64
}
