use std::panic::resume_unwind;
use std::sync::atomic::AtomicBool;

use steadfs_rt::sleep;

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
