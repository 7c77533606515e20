//! Write-back: dirty blocks get their place, reach the device, and only then their names.
//!
//! A block is written over its old place where the rules of [`placement`](super::placement) say so;
//! otherwise one is *claimed* at the end of a log, and the node that names it changes when it is
//! written. So nothing that a checkpoint or an fsync's chain refers to is ever missing on the device.

use std::ops::Range;

use steadfs_base::{IoTag, Urgency};
use steadfs_block::{Bio, IoError, Plug};
use steadfs_cache::{CollectedBlock, DirtyEpoch, DirtyFile, WritebackReason};
use steadfs_rt::inherit;
use steadfs_vfs::{FileKind, FsError, Result};

use super::flight::{Flight, Named, Piece, size_after};
use super::placement::{self, File, Occasion, Volume};
use super::{BLOCK, Place};
use crate::cp_lock::Change;
use crate::disk::{self, BlockAddr, DiskError, LogType, Structure};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::options::{GcPolicy, Mode};
use crate::segment::{BlockKind, Demand, Purpose, Run};

/// Blocks of one file that are in flight together, and how many where free sections are short.
const BATCH: usize = (8 << 20) / BLOCK as usize;
const SMALL_BATCH: usize = (2 << 20) / BLOCK as usize;
/// How often write-back makes room in the logs before it gives up, unless it gets on.
const TRIES: u32 = 4;

impl F2fs {
    /// Writes the file's dirty data and waits: all that was dirty when this began. An error leaves what
    /// failed dirty. (Of directories and links nothing is written here: a checkpoint does.) The caller
    /// holds no lock: room is made where the logs have none.
    pub(crate) fn write_out(&self, inode: &Inode, why: WritebackReason, tag: IoTag) -> Result<()> {
        self.write_out_of(inode, self.writeback.end_epoch(), why, tag)
    }

    /// The same for what was dirty in `epoch`.
    pub(super) fn write_out_of(
        &self,
        inode: &Inode,
        epoch: DirtyEpoch,
        why: WritebackReason,
        tag: IoTag,
    ) -> Result<()> {
        let file = DirtyFile(inode.nid().0.into());
        // Who was held up goes on as soon as he may.
        let throttled = why == WritebackReason::Throttle;
        // While he waits for the flusher's turns he must not make them urgent.
        let tag_of_his = tag.with_urgency(Urgency::Background);
        let _acting = throttled.then(|| inherit::set_task_tag(tag_of_his));
        let enough = || throttled && !self.writeback.must_throttle(file);
        self.write_until(enough, inode, epoch, occasion(why), tag)
    }

    /// The same where the rules need to know more of the occasion.
    pub(super) fn write_out_as(&self, inode: &Inode, occasion: Occasion, tag: IoTag) -> Result<()> {
        let epoch = self.writeback.end_epoch();
        self.write_until(|| false, inode, epoch, occasion, tag)
    }

    fn write_until(
        &self,
        enough: impl Fn() -> bool,
        inode: &Inode,
        epoch: DirtyEpoch,
        occasion: Occasion,
        tag: IoTag,
    ) -> Result<()> {
        let tag = tag.with_urgency(urgency(occasion));
        let mut tries = 0;
        let mut from = 0;
        let end = inode.pages.dirty_end(epoch);
        let mut first_error = Ok(());
        while from < end && self.has_data_to_write(inode)? && !enough() {
            self.balance(tag)?;
            match self.write_some(inode, from..end, epoch, occasion, tag) {
                Ok(None) => return first_error,
                Ok(Some(next)) => (from, tries) = (next, 0),
                // The promise stands, but the logs are full of what a checkpoint or cleaning frees.
                Err((_, FsError::NoSpace)) if tries < TRIES => {
                    tries += 1;
                    self.make_free_space(tag)?;
                }
                Err((next, error)) => {
                    from = next;
                    first_error = first_error.and(Err(error));
                }
            }
        }
        first_error
    }

    /// Writes the file's dirty data as [`F2fs::write_out`] does, for a caller who holds the inode's lock.
    /// `NoSpace` where the logs have no room: he lets go, makes some and tries again.
    pub(super) fn write_out_held(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        self.write_out_upto(inode, u64::MAX, tag)
    }

    /// [`F2fs::write_out_held`] for what is dirty before a block, at least.
    pub(super) fn write_out_upto(&self, inode: &Inode, end: u64, tag: IoTag) -> Result<()> {
        let tag = tag.with_urgency(Urgency::Waited);
        let mut from = 0;
        let all = DirtyEpoch::ALL;
        while from < end && self.has_data_to_write(inode)? {
            match self.write_some(inode, from..u64::MAX, all, Occasion::Sync, tag) {
                Ok(None) => return Ok(()),
                Ok(Some(next)) => from = next,
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn has_data_to_write(&self, inode: &Inode) -> Result<bool> {
        if inode.kind() != FileKind::Regular || inode.pages.is_empty() {
            return Ok(false);
        }
        // After a power cut, real or asked for, nothing reaches the device.
        self.check_writable()?;
        Ok(true)
    }

    /// Writes some of what was dirty in `epoch` in a range; the block to go on from, `None` at the end. (Onwards
    /// only: a block dirtied again behind it is the next call's.)
    fn write_some(
        &self,
        inode: &Inode,
        range: Range<u64>,
        epoch: DirtyEpoch,
        occasion: Occasion,
        tag: IoTag,
    ) -> Result<Option<u64>, (u64, FsError)> {
        if occasion != Occasion::Background {
            // What the flusher has under way is waited for now.
            inode.pages.boost(range.clone(), &self.queue, tag);
        }
        let file = self.file_facts(inode);
        let volume = self.placement_facts();
        let limit = if volume.short { SMALL_BATCH } else { BATCH };
        let limit = limit.min(self.gc.blocks_at_once());
        let _one = inode.lock_flush();
        let stored = inode.core.read().size;
        let taken = inode
            .pages
            .collect_forward(range, limit, epoch, stored, || inode.size());
        let Some(last) = taken.0.last() else {
            return Ok(None);
        };
        let next = last.block.0 + 1;
        let mut flight = self.place_taken(inode, (&volume, &file), taken, occasion, tag);
        self.launch(None, &mut flight, tag);
        let done = self.finish_flights(vec![flight]);
        done.map(|()| Some(next)).map_err(|error| (next, error))
    }

    /// What placement needs to know of a file that is about to be written.
    pub(crate) fn file_facts(&self, inode: &Inode) -> File {
        let core = inode.core.read();
        File {
            advise: core.advise,
            inline: core.inline,
            few_dirty: inode.pages.dirty_bytes() <= placement::FEW * BLOCK,
        }
    }

    /// The state of the volume as far as placement depends on it.
    pub(super) fn placement_facts(&self) -> Volume {
        let (lfs, by_use) = {
            let options = self.options.read();
            (
                options.mode == Mode::Lfs,
                options.gc_policy == GcPolicy::Linux618,
            )
        };
        let counts = self.space.counts();
        let used = counts.valid_blocks.saturating_mul(100) / counts.user_blocks.max(1);
        let segments = self.segments();
        let per_section = self.layout.segments_per_section;
        let free = segments.free_sections();
        Volume {
            policy: self.ipu_policy(),
            lfs,
            by_use,
            short: segments
                .policy()
                .needs_ssr(free, Demand::default(), per_section),
            used_percent: u32::try_from(used).unwrap_or(u32::MAX),
            min_util: self.ipu_util(),
        }
    }

    /// The log that new blocks of a file come from.
    pub(crate) fn data_log(&self, file: &File, occasion: Occasion) -> LogType {
        let (logs, by_use) = {
            let options = self.options.read();
            (options.active_logs, options.gc_policy == GcPolicy::Linux618)
        };
        placement::data_log(logs, by_use, file, occasion)
    }

    /// Gives blocks their place that were taken at a size of the file.
    pub(super) fn place_taken<'a>(
        &self,
        inode: &'a Inode,
        (volume, file): (&Volume, &File),
        (taken, size): (Vec<CollectedBlock>, u64),
        occasion: Occasion,
        tag: IoTag,
    ) -> Flight<'a> {
        let ipu = placement::ipu(volume, file, occasion);
        let log = self.data_log(file, occasion);
        let mut pieces = Vec::new();
        let mut placed = Ok(());
        let mut rest = &taken[..];
        while let Some(first) = rest.first() {
            let n = rest
                .iter()
                .zip(first.block.0..)
                .take_while(|(t, n)| t.block.0 == *n)
                .count();
            let (run, after) = rest.split_at(n);
            rest = after;
            if let Err(error) = self.place(inode, run, (ipu, log), tag, &mut pieces) {
                placed = placed.and(Err(error));
            }
        }
        placed = placed.and(drop_shared(inode, &mut pieces));
        Flight {
            inode,
            size,
            taken,
            pieces,
            ios: Vec::new(),
            placed,
        }
    }

    /// Finds or claims a place for each block of a run. What gets none is not among the pieces.
    fn place(
        &self,
        inode: &Inode,
        run: &[CollectedBlock],
        (ipu, log): (bool, LogType),
        tag: IoTag,
        pieces: &mut Vec<Piece>,
    ) -> Result<()> {
        let mut done = 0;
        while done < run.len() {
            let at = run[done].block.0;
            let left = (run.len() - done) as u64;
            // Looked up in any case: what names the blocks is in memory when the gate is held.
            let mapped = self.map(inode, at, left, tag)?;
            let over = match mapped.place {
                Place::At(start) if ipu => {
                    let len = u32::try_from(mapped.len).unwrap_or(u32::MAX);
                    u64::from(self.segments().may_overwrite(start, len))
                }
                _ => 0,
            };
            let (start, n, claimed) = match mapped.place {
                Place::At(start) if over > 0 => {
                    self.check_own(inode, start, over)?;
                    (start, over, false)
                }
                Place::Compressed => return Err(FsError::NotSupported("writing compressed files")),
                _ => {
                    let want = u32::try_from(mapped.len).unwrap_or(u32::MAX);
                    let run = self.segments().allocate(log, want, Purpose::User)?;
                    (run.start, run.len.into(), true)
                }
            };
            let reserved =
                |blocks: &[CollectedBlock]| blocks.iter().filter(|t| t.reserved).count() as u64;
            let reserved = reserved(&run[done..done + n as usize]);
            done += n as usize;
            // Blocks of a file that move to a log lie one behind the other there, too.
            if let Some(last) = pieces.last_mut()
                && last.claimed == claimed
                && last.blocks.end == at
                && last.start.0 + last.len() == start.0
            {
                last.blocks.end += n;
                last.reserved += reserved;
                continue;
            }
            pieces.push(Piece {
                blocks: at..at + n,
                start,
                claimed,
                reserved,
            });
        }
        Ok(())
    }

    /// A block that is not valid by the segments' account may be claimed by anybody, and a node is somebody
    /// else's: a map that refers to one is damaged, and nothing is written there.
    fn check_own(&self, inode: &Inode, start: BlockAddr, len: u64) -> Result<()> {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let checked = self.segments().check_owned(start, len, BlockKind::Data);
        checked.map_err(|e| e.in_node(inode.nid()).into())
    }

    /// Blocks that one write of this tag should carry at most.
    pub(super) fn blocks_to_write(&self, tag: IoTag) -> usize {
        (self.queue.max_transfer_for(tag) as usize / BLOCK as usize).max(1)
    }

    /// Starts the writes of every piece, or hands them to a plug.
    pub(super) fn launch(&self, plug: Option<&Plug<'_>>, flight: &mut Flight<'_>, tag: IoTag) {
        let Flight {
            inode,
            taken,
            pieces,
            ios,
            ..
        } = flight;
        let per_bio = self.blocks_to_write(tag);
        let mut rest = &taken[..];
        for piece in pieces.iter() {
            if !piece.claimed {
                self.syncs.wrote_ipu(piece.len());
            }
            let before = |t: &&CollectedBlock| t.block.0 < piece.blocks.start;
            let skip = rest.iter().take_while(before).count();
            let (run, after) = rest[skip..].split_at(piece.len() as usize);
            rest = after;
            let mut handles = Vec::new();
            for (i, chunk) in run.chunks(per_bio).enumerate() {
                let at = piece.start.plus((i * per_bio) as u32);
                let bufs = chunk.iter().map(|t| t.data.clone()).collect();
                let tag = if tag.urgency == Urgency::Waited {
                    tag
                } else {
                    chunk[0].tag.with_urgency(tag.urgency)
                };
                let bio = Bio::write(u64::from(at.0) * BLOCK, bufs);
                let io = match plug {
                    Some(plug) => plug.submit(bio, tag),
                    None => self.queue.submit(bio, tag),
                };
                let blocks = chunk[0].block.0..chunk[chunk.len() - 1].block.0 + 1;
                inode.pages.mark_submitted(blocks, &io);
                handles.push(io);
            }
            ios.push(handles);
        }
    }

    /// Waits for launched blocks, names them and ends their flights. The first error of all.
    pub(super) fn finish_flights(&self, flights: Vec<Flight<'_>>) -> Result<()> {
        let mut result = Ok(());
        for flight in flights {
            let written = flight.wait();
            if let Some(error) = written.iter().find_map(|w| w.as_ref().err()) {
                tracing::warn!(ino = %flight.inode.nid(), %error, "data could not be written");
            }
            let named = self.name(&flight, &written);
            let landed = self.land(&flight, &written, &named);
            result = result.and(flight.placed).and(landed);
        }
        result
    }

    /// Gives the written pieces their names: slots, the segments' account, the size. A piece that failed
    /// is not named.
    fn name(&self, flight: &Flight<'_>, written: &[Result<(), IoError>]) -> Vec<Named> {
        let Flight { inode, pieces, .. } = flight;
        let stored = inode.core.read().size;
        let grows = |p: &Piece| size_after(flight.size, p) > stored;
        // The file does not grow over what has failed: behind its old end there may be anything.
        let gap = flight.first_failed(written);
        let gap = gap.filter(|(block, _)| *block >= stored / BLOCK);
        let result_of = |(piece, written): (&Piece, &Result<(), IoError>)| match (written, &gap) {
            (Err(error), _) => {
                let error = io_error(error.clone());
                self.notes.data_failed(inode.nid(), &error);
                Named::none(error)
            }
            (Ok(()), Some((block, error))) if piece.blocks.start > *block && grows(piece) => {
                Named::none(error.clone())
            }
            (Ok(()), _) => Named::all(piece),
        };
        let mut results: Vec<Named> = pieces.iter().zip(written).map(result_of).collect();
        let todo: Vec<usize> = (0..pieces.len())
            .filter(|&i| results[i].result.is_ok() && (pieces[i].claimed || grows(&pieces[i])))
            .collect();
        if !todo.is_empty() {
            self.name_pieces(flight, &todo, &mut results);
        }
        results
    }

    /// Names pieces one after the other, up to one that cannot be named: the others keep its error.
    fn name_pieces(&self, flight: &Flight<'_>, todo: &[usize], results: &mut [Named]) {
        let Flight { inode, pieces, .. } = flight;
        let mut todo = todo.iter().copied();
        let failed = match self.change() {
            Ok(change) => {
                let mut core = inode.core.write();
                todo.find_map(|i| {
                    let piece = &pieces[i];
                    let mut named = Named::all(piece);
                    named.result = self.name_piece(&change, flight, &mut core, piece, &mut named);
                    results[i] = named;
                    results[i].result.clone().err()
                })
            }
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            todo.for_each(|i| results[i] = Named::none(error.clone()));
        }
    }

    fn name_piece(
        &self,
        change: &Change<'_>,
        flight: &Flight<'_>,
        core: &mut disk::Inode,
        piece: &Piece,
        named: &mut Named,
    ) -> Result<()> {
        let (inode, tag) = (flight.inode, IoTag::default());
        self.mark_dirty(change, inode, tag)?;
        if piece.claimed {
            let owed = piece.reserved;
            (named.blocks, named.used) = (0, 0);
            let run = piece.run();
            self.name_run(change, inode, core, (piece.blocks.start, run), owed, named)?;
        }
        let size = size_after(flight.size, piece);
        named.grew = size > core.size;
        core.size = core.size.max(size);
        Ok(())
    }

    /// Makes claimed and written blocks those of the file from `block` on; as many of them as had no
    /// place before are promised, `owed`. What was done is counted also when the rest fails.
    fn name_run(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        (block, run): (u64, Run),
        owed: u64,
        named: &mut Named,
    ) -> Result<()> {
        let tag = IoTag::default();
        while named.blocks < run.len {
            let at = block + u64::from(named.blocks);
            let mut slot = self.make_slot(change, inode, core, at, tag)?;
            for _ in 0..u32::from(slot.left).min(run.len - named.blocks) {
                let fresh = !core.counts(self.addr_in(core, &slot)?);
                if fresh && named.used == owed {
                    let rule = "no space was promised for it";
                    let error = DiskError::field(Structure::Inode, "file block", at, rule);
                    return Err(error.in_node(inode.nid()).into());
                }
                let addr = run.start.plus(named.blocks);
                self.set_slot(change, inode, core, &slot, addr, tag)?;
                self.segments().set_valid(addr, slot.owner());
                named.used += u64::from(fresh);
                named.blocks += 1;
                slot.slot += 1;
            }
        }
        Ok(())
    }
}

fn occasion(why: WritebackReason) -> Occasion {
    match why {
        WritebackReason::Sync => Occasion::Sync,
        WritebackReason::Background | WritebackReason::Throttle | WritebackReason::Early => {
            Occasion::Background
        }
    }
}

pub(super) fn urgency(occasion: Occasion) -> Urgency {
    match occasion {
        Occasion::Background | Occasion::Moved => Urgency::Background,
        Occasion::SmallSync | Occasion::Sync => Urgency::Waited,
    }
}

/// Takes out pieces written over blocks that another piece is written over, too: the map is damaged,
/// and whichever was written last would be what both read. (What is claimed is nobody's.)
fn drop_shared(inode: &Inode, pieces: &mut Vec<Piece>) -> Result<()> {
    let mut order: Vec<usize> = (0..pieces.len()).filter(|&i| !pieces[i].claimed).collect();
    if order.len() < 2 {
        return Ok(());
    }
    order.sort_unstable_by_key(|&i| pieces[i].start);
    let mut shared = Vec::new();
    let mut end = BlockAddr(0);
    for &i in &order {
        let piece = &pieces[i];
        if piece.start < end {
            shared.push(i);
        }
        end = end.max(piece.start.plus(piece.len()));
    }
    let Some(&first) = shared.first() else {
        return Ok(());
    };
    let addr = pieces[first].start;
    let mut index = 0..;
    pieces.retain(|_| index.next().is_some_and(|i| !shared.contains(&i)));
    let rule = "more than once in a file";
    let error = DiskError::address(Structure::Inode, addr, rule);
    Err(error.in_node(inode.nid()).into())
}
