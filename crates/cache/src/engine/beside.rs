//! A file's data in flight in one run whose caller decides when it is mapped: before the device has written it, where the
//! file system can undo that (rule 1 of the [engine](super) holds for what is committed).

use steadfs_block::IoError;
use steadfs_vfs::Result;

use super::complete::map_request;
use super::{Engine, Intent, MapRequest, MappedPiece, WritebackFile, WritebackFs, WritebackRun};
use crate::FlushGuard;

/// All dirty data of a file, on its way to the device.
pub struct FileInFlight<'f, S: WritebackFs> {
    run: WritebackRun<'f, S::File>,
    /// Whether nothing was dirty beside.
    whole: bool,
    _lock: FlushGuard<'f>,
}

impl<S: WritebackFs> Engine<'_, S> {
    /// Submits the dirty data of a file in one run of at most `limit` bytes. `None`: there is none, or more, or another
    /// task is writing the file; nothing was submitted.
    pub fn submit_file<'f>(
        &self,
        file: &'f S::File,
        limit: u64,
        intent: Intent<S::Hint>,
    ) -> Option<FileInFlight<'f, S>> {
        let intent = intent.with_urgency();
        let (pages, bits) = (file.pages(), file.pages().block_size().bits());
        if !(1..=limit).contains(&pages.dirty_bytes()) || self.0.encoded_end(file, 0).is_some() {
            return None;
        }
        let lock = FlushGuard::try_lock(file)?;
        let blocks = usize::try_from(limit >> bits).unwrap_or(usize::MAX);
        let collected = pages.collect_with(blocks + 1, || (0..u64::MAX, file.size()));
        if collected.0.is_empty() {
            return None;
        }
        let whole = collected.0.len() <= blocks;
        let mut run = self.allocate_run(file, collected, None, &intent);
        self.submit_run(None, &mut run, intent.tag);
        Some(FileInFlight {
            run,
            whole,
            _lock: lock,
        })
    }

    /// Waits for the device, maps what it has written, and completes the blocks.
    ///
    /// # Errors
    /// The first of all.
    pub fn finish_file(&self, file: FileInFlight<'_, S>) -> Result<()> {
        self.finish_runs(vec![file.run])
    }

    /// Completes the blocks of a file whose data is written and mapped.
    ///
    /// # Panics
    /// Some request is still in flight or has failed.
    pub fn complete_file(&self, file: FileInFlight<'_, S>) {
        let written = file.run.wait();
        assert!(written.iter().all(Result::is_ok), "the data is written");
        let pieces = file.run.pieces.iter();
        let outcomes: Vec<_> = pieces.map(MappedPiece::all).collect();
        let completed = self.complete_run(&file.run, &written, &outcomes);
        completed.expect("written and mapped pieces have no error");
    }
}

impl<S: WritebackFs> FileInFlight<'_, S> {
    /// What is to be mapped once the device has written all. `None`: more is dirty, or some block has no place.
    pub fn request(&self) -> Option<MapRequest<'_, S::File>> {
        let written = vec![Ok(()); self.run.pieces.len()];
        (self.whole && self.run.alloc_result.is_ok()).then(|| map_request(&self.run, &written))
    }

    /// Waits for the device; whether it has written all.
    pub fn is_written(&self) -> bool {
        self.run.wait().iter().all(Result::<(), IoError>::is_ok)
    }
}
