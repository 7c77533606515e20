//! A file system in memory that checks the engine's rules at each of its steps.
//!
//! A file's blocks are mapped in a table that counts as "on disk". The device is full of [`GARBAGE`] at first, and all
//! bytes of a written block are equal, so content shows whether a mapped block was ever written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfs_base::{BlockSize, DevBlock, FileBlock, IoTag};
use steadfs_block::{IoError, Policy, Queue, QueueSettings};
use steadfs_rt::{Mutex, Rank, now};
use steadfs_vfs::{FsError, Result};

use super::test_device::{BS, Event, GARBAGE, TestDevice};
use crate::{
    CacheWrite, ClusterMark, CollectedBlock, DirtyEpoch, DirtyFile, Engine, FlushLock,
    FsyncClustering, Intent, MapAction, MapRequest, MappedPiece, Mapping, Piece, Settlement,
    Writeback, WritebackFile, WritebackFs, WritebackLimits, WritebackOptions, WritebackReason,
    WritebackRun,
};

/// A file's metadata on disk.
#[derive(Default)]
pub(super) struct OnDisk {
    /// The device block of each block, and whether it is written (not only allocated, as fallocate does).
    pub(super) map: BTreeMap<u64, (u64, bool)>,
    pub(super) size: u64,
}

pub(super) struct MemFile {
    number: u64,
    pages: Mapping,
    flush: FlushLock,
    size: AtomicU64,
    /// When the engine asked for the size last: when it collected blocks.
    collected: AtomicU64,
    clustered: ClusterMark,
    pub(super) disk: Mutex<OnDisk>,
}

impl MemFile {
    pub(super) fn disk_size(&self) -> u64 {
        self.disk.lock().size
    }
}

impl WritebackFile for MemFile {
    fn number(&self) -> DirtyFile {
        DirtyFile(self.number)
    }

    fn pages(&self) -> &Mapping {
        &self.pages
    }

    fn flush(&self) -> &FlushLock {
        &self.flush
    }

    fn size(&self) -> u64 {
        self.collected.store(now().0, Ordering::Release);
        self.size.load(Ordering::Acquire)
    }

    fn stored_size(&self) -> u64 {
        self.disk_size()
    }

    fn cluster_mark(&self) -> &ClusterMark {
        &self.clustered
    }
}

/// Which step fails for a block of a file, and with which error.
pub(super) type Fails = Box<dyn FnMut(u64, u64) -> Option<FsError> + Send>;

/// What a test sets, and what the file system counts.
pub(super) struct State {
    pub(super) alloc_fails: Fails,
    pub(super) map_fails: Fails,
    /// `NoSpace` is retried; this many times space can be made.
    pub(super) space: Option<u32>,
    pub(super) stopped: bool,
    pub(super) early: bool,
    /// Blocks of a batch, and batches of a turn.
    pub(super) turn: (usize, usize),
    /// Calls of `make_space`, and of `before_turn`.
    pub(super) made_space: u32,
    pub(super) turns: u32,
    next: u64,
    /// Device blocks that are allocated and not mapped.
    allocated: BTreeSet<u64>,
    /// Reservations.
    pub(super) reserved: u64,
    /// All content that each block of each file had.
    versions: BTreeMap<(u64, u64), Vec<u8>>,
    /// When each block of each file was first written into the cache.
    first_written: BTreeMap<(u64, u64), u64>,
    /// When each block of each file was last collected.
    collected: BTreeMap<(u64, u64), u64>,
}

/// The file system, with the files 1 to 8.
pub(super) struct MemFs {
    queue: Queue,
    device: Arc<TestDevice>,
    pub(super) writeback: Arc<Writeback>,
    clustering: FsyncClustering,
    files: Vec<Arc<MemFile>>,
    pub(super) state: Mutex<State>,
}

impl MemFs {
    pub(super) fn new() -> Arc<Self> {
        let device = TestDevice::new();
        let writeback = Arc::new(Writeback::new(WritebackOptions::for_cache(64 << 20)));
        let size = BlockSize::new(BS as u32).expect("a block size");
        let file = |number| {
            Arc::new(MemFile {
                number,
                pages: Mapping::new(size, DirtyFile(number), Arc::clone(&writeback)),
                flush: FlushLock::new(number),
                size: AtomicU64::new(0),
                collected: AtomicU64::new(0),
                clustered: ClusterMark::default(),
                disk: Mutex::with_key(Rank::ExtentTree, number, OnDisk::default()),
            })
        };
        let settings = QueueSettings {
            policy: Policy::Fair,
            ..QueueSettings::default()
        };
        let state = State {
            alloc_fails: Box::new(|_, _| None),
            map_fails: Box::new(|_, _| None),
            space: None,
            stopped: false,
            early: true,
            turn: (4, usize::MAX),
            made_space: 0,
            turns: 0,
            next: 0,
            allocated: BTreeSet::new(),
            reserved: 0,
            versions: BTreeMap::new(),
            first_written: BTreeMap::new(),
            collected: BTreeMap::new(),
        };
        Arc::new(Self {
            queue: Queue::with_settings(device.handle(), settings),
            device,
            files: (1..=8).map(file).collect(),
            writeback,
            clustering: FsyncClustering::default(),
            state: Mutex::new(Rank::Group, state),
        })
    }

    pub(super) fn of(&self, number: u64) -> &Arc<MemFile> {
        &self.files[number as usize - 1]
    }

    /// Each later write takes this time.
    pub(super) fn set_delay(&self, delay: Duration) {
        self.device.set_delay(delay);
    }

    /// Later writes to device blocks that `which` picks fail.
    pub(super) fn fail_writes(&self, which: impl FnMut(Range<u64>) -> bool + Send + 'static) {
        self.device.fail_writes(Box::new(which));
    }

    /// The steps since the last call.
    pub(super) fn take_log(&self) -> Vec<Event> {
        self.device.take_log()
    }

    fn log(&self, event: Event) {
        self.device.log(event);
    }

    /// Writes whole blocks of a file into the cache.
    pub(super) fn write(&self, number: u64, blocks: Range<u64>, byte: u8) {
        assert!(byte != 0 && byte != GARBAGE, "content of a block");
        let file = self.of(number);
        let mapped: BTreeSet<u64> = file.disk.lock().map.keys().copied().collect();
        {
            let mut state = self.state.lock();
            for block in blocks.clone() {
                let versions = state.versions.entry((number, block)).or_default();
                versions.push(byte);
            }
        }
        let data = vec![byte; ((blocks.end - blocks.start) * BS) as usize];
        let write = CacheWrite {
            offset: blocks.start * BS,
            data: &data,
            tag: IoTag::default(),
        };
        let delayed = |block: FileBlock| !mapped.contains(&block.0);
        let whole = |_, _: &mut [u8]| -> Result<()> { unreachable!("whole blocks are written") };
        // The reservations are made before the blocks can be collected.
        let most = blocks.end - blocks.start;
        self.state.lock().reserved += most;
        let grow = |end| {
            file.size.fetch_max(end, Ordering::AcqRel);
        };
        let written = file.pages.write_growing(write, delayed, whole, grow);
        let mut state = self.state.lock();
        state.reserved -= most - written.reserved;
        for block in blocks {
            state
                .first_written
                .entry((number, block))
                .or_insert(now().0);
        }
    }

    /// Allocates blocks of a file without writing them, as fallocate(2) does.
    pub(super) fn preallocate(&self, number: u64, blocks: Range<u64>) {
        let mut disk = self.of(number).disk.lock();
        let mut state = self.state.lock();
        for block in blocks {
            disk.map.insert(block, (state.next, false));
            state.next += 1;
        }
    }

    /// Maps a block of a file to the device block of another one, as damage does.
    pub(super) fn share_block(&self, (from, block): (u64, u64), (to, other): (u64, u64)) {
        let at = self.of(from).disk.lock().map[&block].0;
        self.of(to).disk.lock().map.insert(other, (at, true));
    }

    fn write_back(&self, number: u64, epoch: DirtyEpoch, reason: WritebackReason) -> Result<()> {
        let engine = Engine(self);
        let intent = engine.intent(reason, IoTag::default());
        engine.write_out(self.of(number), epoch, intent)
    }

    /// Writes a file's dirty data and waits, as fsync(2) does.
    pub(super) fn sync(&self, number: u64) -> Result<()> {
        self.write_back(number, self.writeback.end_epoch(), WritebackReason::Sync)
    }

    /// The same without a caller that waits for it.
    pub(super) fn flush_in_background(&self, number: u64) -> Result<()> {
        let epoch = self.writeback.end_epoch();
        self.write_back(number, epoch, WritebackReason::Background)
    }

    /// Writes what was dirty in an epoch.
    pub(super) fn sync_epoch(&self, number: u64, epoch: DirtyEpoch) -> Result<()> {
        self.write_back(number, epoch, WritebackReason::Sync)
    }

    pub(super) fn sync_files(&self, numbers: &[u64], reason: WritebackReason) -> Result<()> {
        let engine = Engine(self);
        engine.write_out_files(numbers, engine.intent(reason, IoTag::default()))
    }

    /// Boosts that the queue has counted.
    pub(super) fn boosts(&self) -> u64 {
        self.queue.stats().boosts.raised
    }

    pub(super) fn set_depth(&self, depth: usize) {
        self.queue.configure(QueueSettings {
            policy: Policy::Fair,
            depth,
            ..QueueSettings::default()
        });
    }

    pub(super) fn engine(&self) -> Engine<'_, Self> {
        Engine(self)
    }

    /// What a reader finds after a crash: each written block within a file's size has content that was written there.
    fn check_disk(&self, number: u64, disk: &OnDisk) {
        let state = self.state.lock();
        for (&block, &(at, written)) in &disk.map {
            if block * BS >= disk.size || !written {
                continue;
            }
            let content = self.device.block(at);
            let versions = state.versions.get(&(number, block));
            let versions = versions.map_or(&[][..], Vec::as_slice);
            let whole = content.iter().all(|byte| *byte == content[0]);
            assert!(
                whole && versions.contains(&content[0]),
                "file {number} has {:#x} in block {block}, written were {versions:x?}",
                content[0]
            );
        }
    }

    /// A file that has no dirty block has on disk what was written last.
    fn check_clean(&self, file: &MemFile, disk: &OnDisk) {
        let number = file.number;
        let state = self.state.lock();
        assert_eq!(disk.size, file.size(), "file {number}");
        for ((_, block), versions) in state.versions.range((number, 0)..(number + 1, 0)) {
            let (at, written) = disk.map[block];
            assert!(written, "file {number}, block {block}");
            let content = self.device.block(at);
            assert_eq!(versions.last(), Some(&content[0]), "file {number}, {block}");
        }
    }

    /// Checks the state between two calls: nothing is in flight, no block is allocated for nothing, each reservation
    /// belongs to a dirty block, and clean files are complete on disk.
    pub(super) fn check(&self) {
        let mut reserved = 0;
        for file in &self.files {
            let disk = file.disk.lock();
            let dirty = file.pages.dirty_bytes();
            assert_eq!(file.pages.unwritten() * BS, dirty, "nothing is in flight");
            reserved += file.pages.reserved_blocks().len() as u64;
            self.check_disk(file.number, &disk);
            if dirty == 0 {
                self.check_clean(file, &disk);
            }
        }
        let state = self.state.lock();
        assert!(state.allocated.is_empty(), "{:?} leak", state.allocated);
        assert_eq!(state.reserved, reserved, "reservations of dirty blocks");
    }

    fn map_piece(&self, request: &MapRequest<'_, MemFile>, piece: &Piece) -> MappedPiece {
        let mut disk = request.file.disk.lock();
        let mut outcome = MappedPiece::all(piece);
        for (block, at) in piece.blocks.clone().zip(piece.start.0..) {
            let mut state = self.state.lock();
            if let Some(error) = (state.map_fails)(request.file.number, block) {
                outcome = MappedPiece::none(error);
                outcome.blocks = block - piece.blocks.start;
                break;
            }
            let is_written = self.device.is_written(at);
            assert!(is_written, "block {block} is mapped before it is written");
            let before = disk.map.insert(block, (at, true));
            let expected = match piece.action {
                MapAction::Insert => {
                    assert!(state.allocated.remove(&at), "{at} was not allocated");
                    None
                }
                MapAction::Convert => Some((at, false)),
                MapAction::None => Some((at, true)),
            };
            assert_eq!(before, expected, "{:?} of block {block}", piece.action);
        }
        if piece.action == MapAction::Insert {
            outcome.used = piece.reserved.min(outcome.blocks);
        }
        let end = (piece.blocks.start + outcome.blocks) * BS;
        let size = match outcome.blocks {
            0 => 0,
            n if n == piece.len() => request.size_after(piece, BS.ilog2()),
            _ => request.size.min(end),
        };
        outcome.grew = size > disk.size;
        if outcome.grew {
            self.check_growth(request.file, &disk, size, piece.blocks.start);
            disk.size = size;
        }
        self.check_disk(request.file.number, &disk);
        outcome
    }

    /// A file does not grow over a block that was written into the cache before the run with block `mapped` was
    /// collected, and is not mapped. (A later write may fill a hole meanwhile.)
    fn check_growth(&self, file: &MemFile, disk: &OnDisk, size: u64, mapped: u64) {
        let state = self.state.lock();
        let collected = state.collected[&(file.number, mapped)];
        for block in disk.size / BS..size.div_ceil(BS) {
            let first = state.first_written.get(&(file.number, block));
            let has_content = first.is_some_and(|first| *first < collected);
            let is_mapped = disk.map.get(&block).is_some_and(|(_, written)| *written);
            assert!(
                is_mapped || !has_content,
                "the file grows over block {block}"
            );
        }
    }
}

impl WritebackFs for MemFs {
    type File = MemFile;
    type Hint = WritebackReason;
    type Placement = ();

    fn queue(&self) -> &Queue {
        &self.queue
    }

    fn writeback(&self) -> &Writeback {
        &self.writeback
    }

    fn clustering(&self) -> &FsyncClustering {
        &self.clustering
    }

    fn limits(&self) -> WritebackLimits {
        WritebackLimits {
            small_file_bytes: 4 * BS,
            small_batch_bytes: 12 * BS,
        }
    }

    fn file(&self, number: u64) -> Option<Arc<MemFile>> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.files.get(index).cloned()
    }

    fn hint(&self, reason: WritebackReason) -> WritebackReason {
        reason
    }

    fn check_writable(&self) -> Result<()> {
        match self.state.lock().stopped {
            true => Err(FsError::Stopped("a test".to_owned())),
            false => Ok(()),
        }
    }

    fn before_turn(&self, _tag: IoTag) -> Result<()> {
        self.state.lock().turns += 1;
        Ok(())
    }

    fn turn(&self, _reason: WritebackReason) -> (usize, usize) {
        self.state.lock().turn
    }

    fn is_retried(&self, error: &FsError) -> bool {
        self.state.lock().space.is_some() && *error == FsError::NoSpace
    }

    fn make_space(&self, _tag: IoTag) -> Result<()> {
        let mut state = self.state.lock();
        state.made_space += 1;
        match &mut state.space {
            None | Some(0) => Err(FsError::NoSpace),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn may_write_early(&self, _file: &MemFile) -> bool {
        self.state.lock().early
    }

    fn placement(&self, _file: &MemFile, _intent: &Intent<WritebackReason>) {}

    fn allocate(
        &self,
        file: &MemFile,
        run: &[CollectedBlock],
        _before: Option<&Piece>,
        (): &(),
        _tag: IoTag,
        pieces: &mut Vec<Piece>,
    ) -> Result<()> {
        for collected in run {
            let block = collected.block.0;
            let mapped = file.disk.lock().map.get(&block).copied();
            let mut state = self.state.lock();
            if let Some(error) = (state.alloc_fails)(file.number, block) {
                return Err(error);
            }
            let when = file.collected.load(Ordering::Acquire);
            state.collected.insert((file.number, block), when);
            let (at, action) = match mapped {
                Some((at, true)) => (at, MapAction::None),
                Some((at, false)) => (at, MapAction::Convert),
                None => {
                    // A gap between runs, so that the queue does not merge their requests.
                    let is_first = block == run[0].block.0;
                    let at = state.next + u64::from(is_first && state.next > 0);
                    state.next = at + 1;
                    assert!(state.allocated.insert(at), "a block is allocated once");
                    (at, MapAction::Insert)
                }
            };
            drop(state);
            let reserved = u64::from(collected.reserved);
            match pieces.last_mut() {
                Some(last)
                    if last.blocks.end == block
                        && last.end() == DevBlock(at)
                        && last.action == action =>
                {
                    last.blocks.end += 1;
                    last.reserved += reserved;
                }
                _ => pieces.push(Piece {
                    blocks: block..block + 1,
                    start: DevBlock(at),
                    action,
                    reserved,
                }),
            }
        }
        let blocks = run[0].block.0..run[run.len() - 1].block.0 + 1;
        self.log(Event::Allocated(file.number, blocks));
        Ok(())
    }

    fn shared_block(&self, _file: &MemFile, block: DevBlock) -> FsError {
        FsError::Io(format!("block {} is shared", block.0))
    }

    fn map(&self, requests: &mut [MapRequest<'_, MemFile>]) {
        for request in requests {
            let mut failed = None;
            for i in request.todo.clone() {
                let piece = &request.pieces[i];
                request.outcomes[i] = match &failed {
                    Some(error) => MappedPiece::none(FsError::clone(error)),
                    None => self.map_piece(request, piece),
                };
                failed = failed.or(request.outcomes[i].result.clone().err());
                let mapped = piece.blocks.start..piece.blocks.start + request.outcomes[i].blocks;
                self.log(Event::Mapped(request.file.number, mapped));
            }
        }
    }

    fn release_unmapped(&self, start: DevBlock, blocks: u64, _why: &FsError) {
        let mut state = self.state.lock();
        for at in start.0..start.0 + blocks {
            assert!(state.allocated.remove(&at), "{at} is released once");
        }
    }

    fn settle(&self, _file: &MemFile, settlement: Settlement) {
        let Settlement { held, used, kept } = settlement;
        assert!(used + kept <= held, "{settlement:?}");
        let mut state = self.state.lock();
        let left = state.reserved.checked_sub(held);
        state.reserved = left.expect("reservations stay above zero") + kept;
    }

    fn data_failed(&self, _file: &MemFile, _error: &IoError) {}

    fn before_complete(&self, run: &WritebackRun<'_, MemFile>, outcomes: &[MappedPiece]) {
        assert_eq!(run.pieces.len(), outcomes.len());
        self.log(Event::Completed(run.file.number));
    }
}
