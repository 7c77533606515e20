use steadfs_block::Op;

use super::*;
use crate::{FlushLock, WritebackOptions};

const BS: usize = 1024;

fn mapping() -> (Arc<Writeback>, Mapping) {
    let writeback = Arc::new(Writeback::new(WritebackOptions::for_cache(1 << 20)));
    let size = BlockSize::new(BS as u32).expect("valid");
    (
        Arc::clone(&writeback),
        Mapping::new(size, DirtyFile(12), writeback),
    )
}

impl Mapping {
    /// Writes without recording the file size.
    fn write<E>(
        &self,
        offset: u64,
        data: &[u8],
        tag: IoTag,
        reserve: impl Fn(FileBlock) -> bool,
        fill: impl FnMut(FileBlock, &mut [u8]) -> Result<(), E>,
    ) -> Written<E> {
        let write = CacheWrite { offset, data, tag };
        self.write_growing(write, reserve, fill, |_| ())
    }
}

fn zero_fill(_: FileBlock, _: &mut [u8]) -> Result<(), ()> {
    Ok(())
}

fn always(_: FileBlock) -> bool {
    true
}

fn failure() -> WriteError {
    WriteError::Device(steadfs_block::IoError {
        op: Op::Write,
        offset: 0,
        len: 0,
        cause: "test".to_owned(),
    })
}

#[test]
fn a_block_written_again_in_flight_stays_dirty() {
    let (writeback, map) = mapping();
    let written = map.write(0, &[1; 2 * BS], IoTag::default(), always, zero_fill);
    assert_eq!((written.bytes, written.reserved), (2 * BS, 2));
    let collected = map.collect(0..9, 9);
    assert_eq!(collected.len(), 2);
    map.write(10, &[2; 5], IoTag::default(), always, zero_fill);
    assert!(map.collect(0..9, 9).is_empty(), "never in flight twice");
    assert_eq!(
        collected[0].data[10], 1,
        "the write keeps the collected content"
    );
    map.complete(0..2, Ok(()), false);
    assert_eq!(writeback.dirty_bytes(), BS as u64);
    assert!(map.get(FileBlock(1)).is_none());
    let again = map.collect(0..9, 9);
    assert_eq!(
        (again.len(), again[0].data[10], again[0].data[15]),
        (1, 2, 1)
    );
    map.complete(0..1, Ok(()), false);
    assert_eq!((map.unwritten(), writeback.dirty_bytes()), (0, 0));
    assert!(writeback.dirty_files().is_empty());
}

#[test]
fn an_edited_block_is_filled_once_and_dirty() {
    let (writeback, map) = mapping();
    let fill = || Ok::<_, ()>(Buf::copy_of(&[7; BS]));
    assert_eq!(
        map.edit(FileBlock(3), IoTag::default(), || Err(1), |_| ()),
        Err(1)
    );
    assert!(map.is_empty());
    assert_eq!(
        map.edit(FileBlock(3), IoTag::default(), fill, |b| b[0] = 1),
        Ok(())
    );
    let before = map.get(FileBlock(3)).unwrap();
    let never = || Err("it is in memory");
    assert_eq!(
        map.edit(FileBlock(3), IoTag::default(), never, |b| b[1] = 2),
        Ok(())
    );
    assert_eq!(
        (before[0], before[1], before[2]),
        (1, 7, 7),
        "a reader's clone is unchanged"
    );
    assert_eq!(map.get(FileBlock(3)).unwrap()[..3], [1, 2, 7]);
    assert_eq!(writeback.dirty_bytes(), BS as u64);
    assert_eq!(map.collect(0..9, 9).len(), 1);
    assert_eq!(map.try_discard(0..9), None, "in flight");
    map.complete(0..9, Err(&failure()), false);
    assert_eq!(map.try_discard(0..9), Some(0));
    assert!(map.is_empty());
}

#[test]
fn only_what_needs_a_reservation_holds_one() {
    let (_, map) = mapping();
    let second = |block| block == FileBlock(1);
    let written = map.write(0, &[1; 2 * BS], IoTag::default(), second, zero_fill);
    assert_eq!(written.reserved, 1);
    let collected = map.collect(0..9, 9);
    assert_eq!(
        (collected[0].reserved, collected[1].reserved),
        (false, true)
    );
    assert_eq!(map.complete(0..1, Err(&failure()), false), 0);
    assert_eq!(map.complete(1..2, Err(&failure()), true), 1);
    assert_eq!(map.discard(0..9), 1);
}

#[test]
fn a_failed_write_is_never_clean() {
    let (writeback, map) = mapping();
    map.write(0, &[1; BS], IoTag::default(), always, zero_fill);
    assert!(map.collect(0..9, 9)[0].reserved);
    assert_eq!(map.complete(0..1, Err(&failure()), true), 1);
    assert_eq!(map.take_error(), Some(failure()));
    assert_eq!(writeback.dirty_bytes(), BS as u64);
    let again = map.collect(0..9, 9);
    assert!(again[0].reserved);
    map.complete(0..1, Ok(()), false);
    assert!(map.is_empty());
}

#[test]
fn a_reported_error_is_reported_again_only_after_all_was_written() {
    let (_, map) = mapping();
    map.write(0, &[1; BS], IoTag::default(), always, zero_fill);
    let fail = || {
        map.collect(0..9, 9);
        map.complete(0..1, Err(&failure()), true);
    };
    fail();
    assert_eq!(map.take_error(), Some(failure()));
    fail();
    map.collect(0..9, 9);
    map.complete(0..1, Ok(()), true);
    assert_eq!(map.take_error(), None, "it was reported before");
    // Everything was written since: this is a new error.
    map.write(0, &[1; BS], IoTag::default(), always, zero_fill);
    fail();
    map.collect(0..9, 9);
    map.complete(0..1, Ok(()), true);
    assert_eq!(map.take_error(), Some(failure()), "it was not reported");
    assert_eq!(map.take_error(), None);
}

/// The block whose error was reported was truncated away, so the next error is a new one.
#[test]
fn an_error_after_a_truncate_is_reported() {
    let (_, map) = mapping();
    let fail = || {
        map.write(0, &[1; BS], IoTag::default(), always, zero_fill);
        map.collect(0..9, 9);
        map.complete(0..1, Err(&failure()), true);
    };
    fail();
    assert_eq!(map.take_error(), Some(failure()));
    assert_eq!(map.discard(0..u64::MAX), 1);
    fail();
    map.collect(0..9, 9);
    map.complete(0..1, Ok(()), true);
    assert_eq!(map.take_error(), Some(failure()));
}

#[test]
fn redirtied_blocks_are_dirty_without_an_error() {
    let (writeback, map) = mapping();
    map.write(0, &[1; BS], IoTag::default(), always, zero_fill);
    map.collect(0..9, 9);
    assert_eq!(map.redirty(0..1, true), 1);
    assert_eq!((map.unwritten(), map.take_error()), (1, None));
    assert_eq!(writeback.dirty_bytes(), BS as u64);
    assert!(map.collect(0..9, 9)[0].reserved);
}

#[test]
fn a_block_written_without_a_reservation_never_gets_one_by_failing() {
    let (_, map) = mapping();
    let never = |_| false;
    let written = map.write(0, &[1; BS], IoTag::default(), never, zero_fill);
    assert_eq!((written.bytes, written.reserved), (BS, 0));
    assert!(!map.collect(0..9, 9)[0].reserved);
    assert_eq!(map.complete(0..1, Err(&failure()), true), 0);
    // Nor does another write without one release the reservation that it holds since.
    map.write(0, &[2; BS], IoTag::default(), always, zero_fill);
    map.write(0, &[3; BS], IoTag::default(), never, zero_fill);
    assert_eq!(map.discard(0..1), 1);
}

#[test]
fn the_size_grows_with_the_content() {
    let (_, map) = mapping();
    let write = CacheWrite {
        offset: 10,
        data: &[1; 2 * BS],
        tag: IoTag::default(),
    };
    let size = std::cell::Cell::new(0);
    map.write_growing(write, always, zero_fill, |end| size.set(end));
    assert_eq!(size.get(), 10 + 2 * BS as u64);
    let (collected, seen) = map.collect_with(9, || (0..9, size.get()));
    assert_eq!((collected.len(), seen), (3, size.get()));
}

#[test]
fn a_run_moves_forward_unless_the_file_has_grown_before_it() {
    let bs = BS as u64;
    let collect = |stored: u64, size: u64| {
        let (_, map) = mapping();
        map.write(0, &[1; 5 * BS], IoTag::default(), always, zero_fill);
        let all = DirtyEpoch::ALL;
        let (collected, seen) = map.collect_forward(2..u64::MAX, 9, all, stored, || size);
        assert_eq!(seen, size);
        collected.iter().map(|t| t.block.0).collect::<Vec<_>>()
    };
    assert_eq!(collect(5 * bs, 5 * bs), [2, 3, 4], "it has not grown");
    assert_eq!(
        collect(2 * bs, 5 * bs),
        [2, 3, 4],
        "it has grown from its position"
    );
    assert_eq!(
        collect(2 * bs - 1, 5 * bs),
        [],
        "it has grown from before its position"
    );
    assert_eq!(collect(bs, bs), [2, 3, 4], "it has shrunk meanwhile");
}

/// Writes `blocks` blocks from block `at` on.
fn dirty(map: &Mapping, at: u64, blocks: usize) {
    let data = vec![1; blocks * BS];
    map.write(at * BS as u64, &data, IoTag::default(), always, zero_fill);
}

fn collect_old(map: &Mapping, epoch: DirtyEpoch, stored: u64) -> Vec<u64> {
    let (stored, size) = (stored * BS as u64, 9 * BS as u64);
    let (collected, _) = map.collect_forward(0..map.dirty_end(epoch), 9, epoch, stored, || size);
    collected
        .iter()
        .map(|collected| collected.block.0)
        .collect()
}

#[test]
fn blocks_dirtied_after_an_epoch_are_left_for_the_next_one() {
    let (writeback, map) = mapping();
    dirty(&map, 1, 1);
    dirty(&map, 3, 2);
    let epoch = writeback.end_epoch();
    // Before, between and after the dirty blocks, and one of them again.
    dirty(&map, 0, 1);
    dirty(&map, 2, 1);
    dirty(&map, 7, 2);
    dirty(&map, 3, 1);
    assert_eq!(map.dirty_end(epoch), 5);
    assert_eq!(collect_old(&map, epoch, 9), [1, 3, 4]);
    assert_eq!(map.dirty_end(epoch), 5, "in flight");
    map.complete(1..5, Ok(()), true);
    assert_eq!(map.dirty_end(epoch), 0);
    let next = writeback.end_epoch();
    assert_eq!(collect_old(&map, next, 9), [0, 2, 7, 8]);
}

#[test]
fn the_size_on_disk_covers_no_block_that_an_epoch_leaves_out() {
    let (writeback, map) = mapping();
    dirty(&map, 1, 1);
    dirty(&map, 6, 1);
    let epoch = writeback.end_epoch();
    dirty(&map, 2, 1);
    dirty(&map, 5, 1);
    dirty(&map, 8, 1);
    assert_eq!(collect_old(&map, epoch, 4), [1, 5, 6]);
}

#[test]
fn a_block_is_as_old_as_its_oldest_content_that_is_not_written() {
    for fails in [false, true] {
        for again in [false, true] {
            let (writeback, map) = mapping();
            dirty(&map, 0, 1);
            let epoch = writeback.end_epoch();
            assert_eq!(map.collect(0..9, 9).len(), 1);
            if again {
                dirty(&map, 0, 1);
            }
            let result = if fails { Err(&failure()) } else { Ok(()) };
            map.complete(0..1, result, true);
            assert_eq!(map.dirty_end(epoch), u64::from(fails), "{fails} {again}");
            let left = map.dirty_end(DirtyEpoch::ALL);
            assert_eq!(left, u64::from(fails || again));
        }
    }
}

#[test]
fn a_panic_under_the_flush_lock_leaves_nothing_in_flight() {
    let (writeback, map) = mapping();
    let flush = FlushLock::new(12);
    dirty(&map, 0, 2);
    let epoch = writeback.end_epoch();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _one = crate::FlushGuard::of(&map, &flush);
        assert_eq!(map.collect(0..9, 9).len(), 2);
        // A panic without its message.
        std::panic::resume_unwind(Box::new("quietly"));
    }));
    assert!(caught.is_err());
    map.wait_for_writes(0..9);
    assert_eq!(map.dirty_end(epoch), 2);
    assert!(flush.try_lock().is_some());
}

#[test]
fn the_first_block_outside_all_runs_is_found() {
    let (_, map) = mapping();
    map.write(0, &[1; 2 * BS], IoTag::default(), always, zero_fill);
    let offset = 4 * BS as u64;
    map.write(offset, &[1; 2 * BS], IoTag::default(), always, zero_fill);
    let collected = map.collect(0..9, 9);
    let first =
        |runs: &[Range<u64>]| CollectedBlock::first_not_in(&collected, runs.iter().cloned());
    assert_eq!(first(&[0..2, 4..6]), None);
    assert_eq!(first(&[0..2, 4..5]), Some(5));
    assert_eq!(first(&[0..1, 1..2]), Some(4));
    assert_eq!(first(&[0..1, 4..6]), Some(1));
    assert_eq!(first(&[4..5, 5..6]), Some(0));
}

#[test]
fn a_failed_fill_ends_the_write_short() {
    let (_, map) = mapping();
    let fill = |_, _: &mut [u8]| Err("unreadable");
    let written = map.write(0, &[1; BS + 3], IoTag::default(), always, fill);
    assert_eq!((written.bytes, written.reserved), (BS, 1));
    assert_eq!(written.error, Some("unreadable"));
}

#[test]
fn discarding_returns_reservations() {
    let (writeback, map) = mapping();
    map.write(0, &[1; 3 * BS], IoTag::default(), always, zero_fill);
    assert_eq!(map.discard(1..9), 2);
    assert_eq!((map.unwritten(), writeback.dirty_bytes()), (1, BS as u64));
    assert_eq!(map.next_cached(FileBlock(0)), Some(FileBlock(0)));
    assert_eq!(map.next_dirty(FileBlock(1)), None);
}
