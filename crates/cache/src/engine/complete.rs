//! The end of write-back runs: wait, map, complete.

use steadfs_block::IoError;
use steadfs_vfs::{FsError, Result};

use super::run::size_after;
use super::{
    Engine, MapAction, MapRequest, MappedPiece, Settlement, WritebackFile, WritebackFs,
    WritebackRun,
};
use crate::{CollectedBlock, WriteError};

impl<S: WritebackFs> Engine<'_, S> {
    /// Waits for submitted runs, maps them and completes their blocks. The first error of all.
    pub(super) fn finish_runs(&self, runs: Vec<WritebackRun<'_, S::File>>) -> Result<()> {
        let written: Vec<Vec<_>> = runs.iter().map(WritebackRun::wait).collect();
        let both = runs.iter().zip(&written);
        let mut requests: Vec<_> = both
            .map(|(run, written)| map_request(run, written))
            .collect();
        self.0.map(&mut requests);
        let outcomes: Vec<_> = requests
            .into_iter()
            .map(|request| request.outcomes)
            .collect();
        let mut result = Ok(());
        for ((run, written), outcomes) in runs.iter().zip(written).zip(outcomes) {
            if let Some(error) = written.iter().find_map(|w| w.as_ref().err()) {
                self.0.data_failed(run.file, error);
            }
            let completed = self.complete_run(run, &written, &outcomes);
            result = result.and(run.alloc_result.clone()).and(completed);
        }
        result
    }

    /// Completes a run's blocks: what is written and mapped is clean, the rest dirty again. The first error of a piece.
    pub(super) fn complete_run(
        &self,
        run: &WritebackRun<'_, S::File>,
        written: &[Result<(), IoError>],
        outcomes: &[MappedPiece],
    ) -> Result<()> {
        self.0.before_complete(run, outcomes);
        let unplaced = run.alloc_result.clone().err().map(WriteError::from);
        let mut first_error = Ok(());
        let mut rest = &run.collected[..];
        for ((piece, written), mapped) in run.pieces.iter().zip(written).zip(outcomes) {
            let before = |b: &&CollectedBlock| b.block.0 < piece.blocks.start;
            let (skipped, after) = rest.split_at(rest.iter().take_while(before).count());
            self.redirty(run.file, skipped, unplaced.as_ref());
            let (done, after) = after.split_at(mapped.blocks as usize);
            self.clean(run.file, done, mapped.used);
            let (failed, after) = after.split_at((piece.len() - mapped.blocks) as usize);
            let device = written.clone().err().map(WriteError::from);
            let error = device.or(mapped.result.clone().err().map(WriteError::from));
            self.redirty(run.file, failed, error.as_ref());
            if let (MapAction::Insert, Err(why), false) =
                (piece.action, &mapped.result, failed.is_empty())
            {
                let start = piece.start.plus(mapped.blocks);
                self.0.release_unmapped(start, failed.len() as u64, why);
            }
            rest = after;
            first_error = first_error.and(mapped.result.clone());
        }
        self.redirty(run.file, rest, unplaced.as_ref());
        first_error
    }

    /// Blocks are written and mapped.
    fn clean(&self, file: &S::File, blocks: &[CollectedBlock], used: u64) {
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
            return;
        };
        let range = first.block.0..last.block.0 + 1;
        let kept = file.pages().complete(range, Ok(()), true);
        let held = reservations(blocks);
        self.0.settle(file, Settlement { held, used, kept });
    }

    /// Blocks that got no place, could not be written or could not be mapped are dirty again and keep their reservations.
    /// An allocation that is tried again is no error of the file.
    fn redirty(&self, file: &S::File, blocks: &[CollectedBlock], error: Option<&WriteError>) {
        let mut rest = blocks;
        while let Some(first) = rest.first() {
            let error = error.expect("a block that is not written has a cause");
            let consecutive = rest.iter().zip(first.block.0..);
            let n = consecutive.take_while(|(b, n)| b.block.0 == *n).count();
            let (run, after) = rest.split_at(n);
            rest = after;
            let range = first.block.0..first.block.0 + n as u64;
            let kept = match self.0.is_retried(&FsError::from(error.clone())) {
                true => file.pages().redirty(range, true),
                false => file.pages().complete(range, Err(error), true),
            };
            let held = reservations(run);
            assert!(kept <= held, "a completion makes no reservations");
            let used = 0;
            self.0.settle(file, Settlement { held, used, kept });
        }
    }
}

fn reservations(blocks: &[CollectedBlock]) -> u64 {
    blocks.iter().filter(|b| b.reserved).count() as u64
}

/// What is to be mapped of a written run: pieces that failed are not, nor what the file would grow by behind a block that
/// failed.
pub(super) fn map_request<'r, F: WritebackFile>(
    run: &'r WritebackRun<'_, F>,
    written: &[Result<(), IoError>],
) -> MapRequest<'r, F> {
    let bits = run.file.pages().block_size().bits();
    let stored = run.file.stored_size();
    let grows = |piece| size_after(run.size, piece, bits) > stored;
    let gap = run.first_failed(written, stored >> bits);
    let both = run.pieces.iter().zip(written);
    let outcomes: Vec<MappedPiece> = both
        .map(|(piece, written)| match (written, &gap) {
            (Err(error), _) => MappedPiece::none(FsError::Io(error.to_string())),
            (Ok(()), Some((block, error))) if piece.blocks.start > *block && grows(piece) => {
                MappedPiece::none(error.clone())
            }
            (Ok(()), _) => MappedPiece::all(piece),
        })
        .collect();
    let changes = |i: usize| run.pieces[i].action != MapAction::None || grows(&run.pieces[i]);
    let todo = (0..run.pieces.len()).filter(|&i| outcomes[i].result.is_ok() && changes(i));
    MapRequest {
        file: run.file,
        size: run.size,
        pieces: &run.pieces,
        todo: todo.collect(),
        outcomes,
    }
}
