//! fsync of a file with little dirty data: the data and the log blocks that map it are written at the same time
//! ([`steadfs_jbd2::Journal::commit_beside`]), which saves one access to the device.
//!
//! **Rule.** Only what can be undone in the same handle without space is mapped ahead: new blocks behind the end of the
//! file, and its size. If a write fails, all of that is undone, and the data goes the usual way: what was written is
//! mapped, the rest is reported and stays dirty. Unwritten blocks and holes go the usual way always, and so does what
//! needs no commit: blocks that were written before, in a file whose metadata is durable.
//!
//! **Numbers.** Append and fsync on a device that takes the same time for each access and has no FUA: four accesses
//! instead of five (`tests::a_lone_append_saves_one_access_of_five`).

use steadfs_base::{FileBlock, IoTag};
use steadfs_cache::{Engine, FileInFlight, MapAction, MapRequest, Piece, WritebackReason};
use steadfs_vfs::Result;

use super::writeout::run_of;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::txn::Handle;

/// Dirty bytes up to which the log is written beside data: the other handles of the volume wait for these.
const DATA_BYTES_MAX: u64 = 128 << 10;

impl Ext4 {
    /// Writes the dirty data of a file and commits the transaction that maps it, if the data is little and no other task
    /// uses the journal. Returns whether that is so and all is durable; otherwise some of the data may have been written.
    ///
    /// # Errors
    /// As for write-back; the journal has failed.
    pub(super) fn sync_beside_log(
        &self,
        inode: &Inode,
        datasync: bool,
        tag: IoTag,
    ) -> Result<bool> {
        if !self.txns.is_journaled() || inode.is_reread() || self.check_writable().is_err() {
            return Ok(false);
        }
        let engine = Engine(self);
        let intent = engine.intent(WritebackReason::Sync, tag);
        let Some(file) = engine.submit_file(inode, DATA_BYTES_MAX, intent) else {
            return Ok(false);
        };
        let pins = self.pin_inodes(&[inode.ino()], tag);
        let mut in_flight = Some(file);
        let mut committed = Ok(false);
        if let Some(request) = in_flight.as_ref().and_then(FileInFlight::request)
            && pins.is_ok()
            && self.needs_commit(inode, datasync, &request)
            && self.can_undo(&request)
        {
            let credits = self.credits_beside(&request);
            committed = self.txns.commit_beside(credits, tag, |handle| {
                let file = in_flight.as_ref().expect("its data is in flight");
                let written = self.map_in_flight(handle, inode, file);
                if let Some(file) = in_flight.take_if(|_| written) {
                    engine.complete_file(file);
                }
                written
            });
        }
        match in_flight {
            Some(file) => engine.finish_file(file).map(|()| false),
            None => committed,
        }
    }

    /// Whether something must be committed, beside what the request writes, for an fsync (`datasync`: fdatasync).
    fn needs_commit(&self, inode: &Inode, datasync: bool, request: &MapRequest<'_, Inode>) -> bool {
        let (size, bits) = (inode.core.read().size, self.geo.block_size.bits());
        let changes = |piece: &&Piece| {
            piece.action != MapAction::None || request.size_after(piece, bits) > size
        };
        request.pieces.iter().any(|piece| changes(&piece))
            || (!datasync && inode.is_core_dirty())
            || inode.tid_for_sync(datasync).is_some_and(|tid| {
                let journal = self.txns.journal();
                journal.is_some_and(|journal| !journal.durable_tid().at_least(tid))
            })
    }

    /// Whether mapping this can be undone without space.
    fn can_undo(&self, request: &MapRequest<'_, Inode>) -> bool {
        let end = self
            .geo
            .block_size
            .blocks_for(request.file.core.read().size);
        request.pieces.iter().all(|piece| match piece.action {
            MapAction::None => true,
            MapAction::Insert => piece.blocks.start >= end,
            MapAction::Convert => false,
        })
    }

    /// Credits for mapping a request in one handle and for undoing that.
    fn credits_beside(&self, request: &MapRequest<'_, Inode>) -> u32 {
        let pieces = request.pieces.iter();
        let map: u32 = pieces
            .map(|piece| self.map_piece_credits(request.file, piece))
            .sum();
        map + self.undo_map_credits(&request.file.core.read())
    }

    /// Maps data in flight, writes the log ahead and waits for the data. False: something failed, and nothing is mapped.
    fn map_in_flight(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        file: &FileInFlight<'_, Self>,
    ) -> bool {
        let Some(request) = file.request() else {
            return false;
        };
        handle.track();
        let size = inode.core.read().size;
        let (mapped, result) = self.map_all(handle, inode, &request);
        if let Err(error) = self.store_now(handle, inode) {
            handle.must_not_commit(&error);
            return false;
        }
        inode.record_tid(handle, true);
        handle.consistent();
        if result.is_ok() {
            handle.write_log_ahead();
            if file.is_written() {
                return true;
            }
        }
        let undone = handle.step(|handle| {
            let mut core = inode.core.write();
            core.size = size;
            let inserted = request.pieces[..mapped].iter().rev();
            for piece in inserted.filter(|piece| piece.action == MapAction::Insert) {
                let at = FileBlock(piece.blocks.start);
                self.unmap_allocation(handle, inode.ino(), &mut core, at, run_of(piece))?;
            }
            self.store_inode(handle, inode, &core)
        });
        if let Err(error) = undone {
            tracing::error!(%error, ino = inode.ino().0, "a change of the block map cannot be undone");
            handle.must_not_commit(&error);
        }
        handle.consistent();
        false
    }

    /// Maps the pieces of a request up to the first error; returns how many.
    fn map_all(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        request: &MapRequest<'_, Inode>,
    ) -> (usize, Result<()>) {
        let bits = self.geo.block_size.bits();
        let mut core = inode.core.write();
        for (done, piece) in request.pieces.iter().enumerate() {
            handle.use_reservation(piece.reserved > 0);
            if let Err(error) = self.map_piece(handle, inode, &mut core, piece) {
                return (done, Err(error));
            }
            core.size = core.size.max(request.size_after(piece, bits));
        }
        (request.pieces.len(), Ok(()))
    }
}
