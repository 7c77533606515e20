//! Fault injection: a device in memory that fails, delays or misreports the requests a test picks.

use std::sync::Arc;
use std::time::Duration;

use steadfs_rt::{Mutex, Rank, sleep, spawn};

use crate::{Bio, Device, Done, Geometry, IoError, MemDevice, Op};

/// The fault that is injected into a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No fault: the request succeeds.
    None,
    /// The request is executed after this time.
    Delay(Duration),
    /// The request fails without effect.
    Fail,
    /// The request is executed, but fails.
    Misreport,
}

/// A device in memory. Every request succeeds at once, unless the test's rule picks a fault.
pub struct FaultDevice {
    /// The content.
    pub memory: Arc<MemDevice>,
    state: Mutex<FaultState>,
}

struct FaultState {
    rule: Box<dyn FnMut(&Bio) -> Fault + Send>,
    changes: u64,
    failures: u64,
}

impl FaultDevice {
    /// A device with the content of `memory`.
    pub fn new(memory: Arc<MemDevice>) -> Arc<Self> {
        let state = FaultState {
            rule: Box::new(|_| Fault::None),
            changes: 0,
            failures: 0,
        };
        Arc::new(Self {
            memory,
            state: Mutex::new(Rank::Leaf, state),
        })
    }

    /// Sets the rule: `rule` picks the fault of each later request.
    pub fn set(&self, rule: impl FnMut(&Bio) -> Fault + Send + 'static) {
        self.state.lock().rule = Box::new(rule);
    }

    /// Later requests that `which` picks fail.
    pub fn fail(&self, mut which: impl FnMut(&Bio) -> bool + Send + 'static) {
        self.set(move |bio| match which(bio) {
            true => Fault::Fail,
            false => Fault::None,
        });
    }

    /// Later writes fail, if `on`.
    pub fn fail_writes(&self, on: bool) {
        self.fail(move |bio| on && bio.op == Op::Write);
    }

    /// The next `count` requests that `which` picks get `fault`, and all others succeed.
    pub fn next(
        &self,
        mut count: u32,
        which: impl Fn(&Bio) -> bool + Send + 'static,
        fault: Fault,
    ) {
        self.set(move |bio| {
            if count == 0 || !which(bio) {
                return Fault::None;
            }
            count -= 1;
            fault
        });
    }

    /// The next `count` requests succeed, and all later ones fail: for calls that must end.
    pub fn fail_after(&self, count: u64) {
        let mut left = count;
        self.fail(move |_| {
            let fails = left == 0;
            left = left.saturating_sub(1);
            fails
        });
    }

    /// Number of writes, discards and zeroings so far.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// Number of requests so far that were reported as failed.
    pub fn failures(&self) -> u64 {
        self.state.lock().failures
    }
}

impl FaultState {
    fn fault(&mut self, bio: &Bio) -> Fault {
        let fault = (self.rule)(bio);
        self.changes += u64::from(!matches!(bio.op, Op::Read | Op::Flush));
        self.failures += u64::from(matches!(fault, Fault::Fail | Fault::Misreport));
        fault
    }
}

impl Device for FaultDevice {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        let fault = self.state.lock().fault(&bio);
        let error = IoError::of(&bio, "injected fault");
        match fault {
            Fault::None => self.memory.start(bio, done),
            Fault::Delay(time) => {
                let memory = Arc::clone(&self.memory);
                let _on_its_own = spawn("late request", move || {
                    sleep(time);
                    memory.start(bio, done);
                });
            }
            Fault::Fail => done(bio, Err(error)),
            Fault::Misreport => {
                let done: Done = Box::new(move |bio, _| done(bio, Err(error)));
                self.memory.start(bio, done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfs_base::IoTag;
    use steadfs_rt::{now, sim};

    use super::*;
    use crate::{Buf, Queue, QueueOptions};

    #[test]
    fn requests_get_the_fault_of_the_rule() {
        sim::run(sim::Config::new(1), || {
            let device = FaultDevice::new(Arc::new(MemDevice::new(1 << 20)));
            let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
            let tag = IoTag::default();
            let write = |at: u64, fill: u8| {
                let bio = Bio::write(at, vec![Buf::copy_of(&[fill; 512])]);
                queue.submit(bio, tag).wait()
            };
            let has = |at: u64| {
                let mut out = [0; 512];
                device.memory.read(at, &mut out);
                out[0]
            };
            write(0, 1).unwrap();
            assert_eq!((has(0), device.changes(), device.failures()), (1, 1, 0));

            device.next(1, |bio| bio.offset == 512, Fault::Fail);
            write(0, 2).unwrap();
            write(512, 2).unwrap_err();
            assert_eq!((has(0), has(512)), (2, 0));
            write(512, 2).unwrap();
            device.next(2, |_| true, Fault::Misreport);
            write(0, 3).unwrap_err();
            write(0, 4).unwrap_err();
            assert_eq!((has(0), device.changes(), device.failures()), (4, 6, 3));

            device.fail_writes(true);
            write(0, 5).unwrap_err();
            assert_eq!(queue.read(0, 512, tag).unwrap()[0], 4);
            device.fail_writes(false);
            write(0, 6).unwrap();

            let begin = now();
            device.set(|_| Fault::Delay(Duration::from_secs(3)));
            assert_eq!(queue.read(0, 512, tag).unwrap()[0], 6);
            assert!(begin.elapsed() >= Duration::from_secs(3));
        });
    }
}
