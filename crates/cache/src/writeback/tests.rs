use std::panic::resume_unwind;
use std::sync::atomic::AtomicBool;

use steadfs_rt::sleep;
use steadfs_vfs::FsError;

use super::*;

/// Panics in `write_out`.
#[derive(Default)]
struct Panics(AtomicBool);

impl Backing for Panics {
    fn write_out(&self, _: &[u64], _: WritebackReason) {
        // A panic without its message.
        resume_unwind(Box::new("quietly"));
    }

    fn tick(&self) {}

    fn panicked(&self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_flusher_that_panics_aborts_the_volume_and_blocks_no_caller() {
    let writeback = Arc::new(Writeback::new(WritebackOptions::for_cache(1 << 20)));
    let backing = Arc::new(Panics::default());
    let weak: Weak<dyn Backing> = Arc::<Panics>::downgrade(&backing);
    writeback.start(weak).expect("a thread");
    writeback.kick();
    while !backing.0.load(Ordering::Acquire) {
        sleep(Duration::from_millis(1));
    }
    drop(writeback.park());
    writeback.stop();
}

/// Files with the given numbers of dirty bytes, with a hard limit of 1000 bytes.
fn dirty(files: &[u64]) -> Writeback {
    let writeback = Writeback::new(WritebackOptions::for_cache(2000));
    for (number, &bytes) in (0..).zip(files) {
        writeback.dirtied(&DirtyFile(number), bytes);
    }
    writeback
}

/// The files that a writer of `file` must write first; a write cleans all of a file.
fn written_first(writeback: &Writeback, file: u64) -> Vec<u64> {
    let mut written = Vec::new();
    let throttled = writeback.throttle(&Cx::default(), DirtyFile(file), |file| {
        let bytes = writeback.state.lock().files[&file.0].bytes;
        writeback.cleaned(&file, bytes, true);
        written.push(file.0);
        Ok(())
    });
    throttled.unwrap();
    written
}

#[test]
fn a_throttled_writer_writes_its_own_file_and_that_of_a_clean_one_the_heaviest() {
    assert_eq!(written_first(&dirty(&[500, 500]), 0), []);
    assert_eq!(written_first(&dirty(&[600, 100, 500]), 0), [0]);
    assert_eq!(written_first(&dirty(&[600, 100, 500]), 1), []);
    assert_eq!(written_first(&dirty(&[600, 100, 500]), 7), []);
    assert_eq!(written_first(&dirty(&[900, 100, 1500]), 1), [1]);
    assert_eq!(written_first(&dirty(&[900, 100, 1500]), 7), [2]);
}

#[test]
fn a_write_is_refused_while_what_is_dirty_cannot_be_written() {
    for (files, file) in [(&[1001][..], 0), (&[700, 700, 700], 7)] {
        let failed = |_| Err(FsError::Invalid("the device has failed"));
        let throttled = dirty(files).throttle(&Cx::default(), DirtyFile(file), failed);
        assert_eq!(throttled, Err(FsError::Invalid("the device has failed")));
    }
}
