//! Failed steps: blocks stay dirty with their reservations, nothing leaks, and no file grows over what failed.

use super::*;

fn no_space(number: u64, block: u64) -> impl FnMut(u64, u64) -> Option<FsError> + Send {
    move |file, at| (file == number && at == block).then_some(FsError::NoSpace)
}

fn never(_: u64, _: u64) -> Option<FsError> {
    None
}

#[test]
fn a_failed_write_leaves_its_blocks_dirty_and_is_reported_once() {
    let fs = MemFs::new();
    fs.write(1, 0..3, 5);
    fs.fail_writes(|_| true);
    assert!(matches!(fs.sync(1), Err(FsError::Io(_))));
    assert_eq!(fs.of(1).pages().dirty_bytes(), 3 * BS);
    assert_eq!(fs.of(1).disk_size(), 0);
    assert_eq!(fs.state.lock().reserved, 3);
    let error = fs.of(1).pages().take_error();
    assert!(matches!(error, Some(WriteError::Device(_))), "{error:?}");
    fs.check();
    assert!(fs.sync(1).is_err());
    assert_eq!(fs.of(1).pages().take_error(), None, "it is no new error");
    fs.fail_writes(|_| false);
    fs.sync(1).unwrap();
    assert_eq!(fs.of(1).disk_size(), 3 * BS);
    fs.check();
}

#[test]
fn a_failed_overwrite_keeps_the_block_dirty_without_a_reservation() {
    let fs = MemFs::new();
    fs.write(1, 0..4, 5);
    fs.sync(1).unwrap();
    fs.write(1, 0..4, 6);
    fs.fail_writes(|_| true);
    fs.sync(1).unwrap_err();
    assert_eq!(fs.of(1).pages().dirty_bytes(), 4 * BS);
    assert_eq!(fs.state.lock().reserved, 0);
    fs.check();
    fs.fail_writes(|_| false);
    fs.sync(1).unwrap();
    fs.check();
}

/// Blocks 0 and 4 make pieces of their own, and the first one fails: the second is not mapped, since the file would cover
/// the first.
#[test]
fn a_file_does_not_grow_over_a_piece_that_failed() {
    let fs = MemFs::new();
    fs.write(1, 0..1, 5);
    fs.write(1, 4..5, 6);
    fs.fail_writes(|blocks| blocks.start == 0);
    fs.sync(1).unwrap_err();
    assert_eq!(fs.of(1).disk_size(), 0);
    assert_eq!(fs.of(1).pages().dirty_bytes(), 2 * BS);
    fs.check();
    fs.fail_writes(|_| false);
    fs.sync(1).unwrap();
    assert_eq!(fs.of(1).disk_size(), 5 * BS);
    fs.check();
}

/// What is written in front of the failed piece is mapped.
#[test]
fn a_file_grows_up_to_a_piece_that_failed() {
    let fs = MemFs::new();
    fs.write(1, 0..1, 5);
    fs.write(1, 4..5, 6);
    fs.fail_writes(|blocks| blocks.start == 2);
    fs.sync(1).unwrap_err();
    assert_eq!(fs.of(1).disk_size(), BS);
    assert_eq!(fs.of(1).pages().dirty_bytes(), BS);
    fs.check();
}

/// A failure within the size on disk does not hide the one behind it.
#[test]
fn a_file_does_not_grow_over_the_second_failure_of_a_run() {
    let fs = MemFs::new();
    fs.write(1, 0..6, 5);
    fs.sync(1).unwrap();
    fs.write(1, 2..3, 6);
    fs.write(1, 7..8, 6);
    fs.write(1, 9..10, 6);
    // Block 2 where it is, and block 7 in the next free block of the device but one.
    fs.fail_writes(|blocks| blocks.start == 2 || blocks.start == 8);
    fs.sync(1).unwrap_err();
    assert_eq!(fs.of(1).disk_size(), 6 * BS);
    assert_eq!(fs.of(1).pages().dirty_bytes(), 3 * BS);
    fs.check();
    fs.fail_writes(|_| false);
    fs.sync(1).unwrap();
    fs.check();
}

/// Within the size on disk a failed piece keeps no other one from being mapped.
#[test]
fn pieces_within_the_size_on_disk_fail_by_themselves() {
    let fs = MemFs::new();
    fs.write(1, 9..10, 5);
    fs.sync(1).unwrap();
    fs.write(1, 0..1, 6);
    fs.write(1, 4..5, 7);
    fs.fail_writes(|blocks| blocks.start == 2);
    fs.sync(1).unwrap_err();
    assert_eq!(fs.of(1).pages().dirty_bytes(), BS, "block 0");
    assert!(fs.of(1).disk.lock().map.contains_key(&4));
    fs.check();
}

/// The batch after a failed one is in flight already: it is not mapped, and its blocks are released.
#[test]
fn a_batch_behind_a_failed_one_is_abandoned() {
    simulated(MILLI, |fs| {
        fs.write(1, 0..12, 5);
        fs.fail_writes(|blocks| blocks.start == 0);
        fs.sync(1).unwrap_err();
        assert_eq!(fs.of(1).disk_size(), 0);
        assert_eq!(fs.of(1).pages().dirty_bytes(), 12 * BS);
        let log = fs.take_log();
        assert!(log.contains(&Event::Started(5..9)), "{log:?}");
        assert!(!log.contains(&Event::Started(10..14)), "{log:?}");
        fs.check();
        fs.fail_writes(|_| false);
        fs.sync(1).unwrap();
        fs.check();
    });
}

#[test]
fn a_block_without_a_place_stays_dirty_and_ends_the_growth() {
    let fs = MemFs::new();
    fs.write(1, 0..4, 5);
    fs.state.lock().alloc_fails = Box::new(no_space(1, 2));
    assert_eq!(fs.sync(1), Err(FsError::NoSpace));
    assert_eq!(fs.of(1).disk_size(), 2 * BS);
    assert_eq!(fs.of(1).pages().dirty_bytes(), 2 * BS);
    assert_eq!(fs.of(1).pages().take_error(), Some(WriteError::NoSpace));
    fs.check();
    fs.state.lock().alloc_fails = Box::new(never);
    fs.sync(1).unwrap();
    fs.check();
}

/// Space is made without the flush lock, and the pass goes on where it found none. That is no error of the file.
#[test]
fn an_allocation_is_tried_again_once_space_is_made() {
    let fs = MemFs::new();
    fs.write(1, 0..6, 5);
    let mut left = 2;
    {
        let mut state = fs.state.lock();
        state.space = Some(10);
        state.alloc_fails = Box::new(move |_, block| {
            let fails = block == 3 && left > 0;
            left -= i32::from(fails);
            fails.then_some(FsError::NoSpace)
        });
    }
    fs.sync(1).unwrap();
    assert_eq!(fs.state.lock().made_space, 2);
    assert_eq!(fs.of(1).pages().take_error(), None);
    assert!(fs.of(1).pages().is_empty());
    fs.check();
}

#[test]
fn a_pass_ends_if_no_space_can_be_made() {
    let fs = MemFs::new();
    fs.write(1, 0..6, 5);
    {
        let mut state = fs.state.lock();
        state.space = Some(1);
        state.alloc_fails = Box::new(no_space(1, 0));
    }
    assert_eq!(fs.sync(1), Err(FsError::NoSpace));
    assert_eq!(fs.state.lock().made_space, 2, "the second time failed");
    assert_eq!(fs.of(1).pages().dirty_bytes(), 6 * BS);
    fs.check();
}

/// However often space can be made.
#[test]
fn a_pass_makes_space_for_one_batch_a_few_times_only() {
    let fs = MemFs::new();
    fs.write(1, 0..6, 5);
    {
        let mut state = fs.state.lock();
        state.space = Some(1000);
        state.alloc_fails = Box::new(no_space(1, 0));
    }
    assert_eq!(fs.sync(1), Err(FsError::NoSpace));
    assert_eq!(fs.state.lock().made_space, super::super::SPACE_TRIES);
    fs.check();
}

/// A piece is mapped up to the block whose mapping failed; the rest of its allocation is released.
#[test]
fn a_partly_mapped_piece_is_clean_up_to_its_failed_block() {
    let fs = MemFs::new();
    fs.write(1, 0..4, 5);
    fs.state.lock().map_fails = Box::new(|_, block| (block == 2).then_some(FsError::NoData));
    assert_eq!(fs.sync(1), Err(FsError::NoData));
    assert_eq!(fs.of(1).disk_size(), 2 * BS);
    assert_eq!(fs.of(1).pages().dirty_bytes(), 2 * BS);
    assert_eq!(fs.state.lock().reserved, 2);
    fs.check();
    fs.state.lock().map_fails = Box::new(never);
    fs.sync(1).unwrap();
    fs.check();
}

#[test]
fn one_file_of_a_batch_fails_and_the_others_are_written() {
    let fs = MemFs::new();
    for number in 1..=3 {
        fs.write(number, 0..2, number as u8);
    }
    fs.state.lock().map_fails = Box::new(|file, _| (file == 2).then_some(FsError::NoData));
    let result = fs.sync_files(&[1, 2, 3], WritebackReason::Sync);
    assert_eq!(result, Err(FsError::NoData));
    assert!(fs.of(1).pages().is_empty() && fs.of(3).pages().is_empty());
    assert_eq!(fs.of(2).pages().dirty_bytes(), 2 * BS);
    assert!(fs.of(2).pages().take_error().is_some());
    assert_eq!(fs.of(1).pages().take_error(), None);
    fs.check();
}

#[test]
fn nothing_reaches_the_device_of_a_stopped_volume() {
    let fs = MemFs::new();
    fs.write(1, 0..2, 5);
    fs.write(2, 0..2, 5);
    fs.state.lock().stopped = true;
    assert!(matches!(fs.sync(1), Err(FsError::Stopped(_))));
    let all = fs.sync_files(&[1, 2], WritebackReason::Background);
    assert!(matches!(all, Err(FsError::Stopped(_))));
    assert_eq!(fs.take_log(), []);
    fs.check();
}

/// A block that a damaged map has twice is written once, and the other one is reported.
#[test]
fn a_block_that_a_file_maps_twice_is_written_once() {
    let fs = MemFs::new();
    fs.write(1, 0..2, 5);
    fs.sync(1).unwrap();
    fs.share_block((1, 0), (1, 1));
    fs.take_log();
    fs.write(1, 0..2, 5);
    let error = fs.sync(1).unwrap_err();
    assert!(error.to_string().contains("shared"), "{error}");
    let starts = fs.take_log().into_iter();
    let starts: Vec<_> = starts.filter(|e| matches!(e, Event::Started(_))).collect();
    assert_eq!(starts, [Event::Started(0..1)]);
    assert_eq!(fs.of(1).pages().dirty_bytes(), BS, "the other block");
}

/// The device would keep what is written last: the second write begins after the first one. [`MemFs`] checks it.
#[test]
fn a_block_of_two_small_files_is_never_in_flight_twice() {
    simulated(MILLI, |fs| {
        for number in 1..=2 {
            fs.write(number, 0..1, 5);
            fs.sync(number).unwrap();
        }
        fs.share_block((1, 0), (2, 0));
        fs.take_log();
        fs.write(1, 0..1, 5);
        fs.write(2, 0..1, 5);
        fs.sync_files(&[1, 2], WritebackReason::Sync).unwrap();
        let one = [Event::Started(0..1), Event::Ended(0..1)];
        let log = fs.take_log().into_iter();
        let log: Vec<_> = log.filter(|event| one.contains(event)).collect();
        assert_eq!(log, [one.clone(), one].concat());
    });
}
