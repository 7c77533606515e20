//! A device with a modelled speed, for tests of I/O scheduling.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use steadfs_rt::{Instant, Mutex, Rank, now};

use crate::{Bio, DelayedCompletions, Device, Done, Geometry, Op};

/// Speed of a [`ModelDevice`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceModel {
    /// Bytes per second, of all requests together.
    pub bytes_per_second: u64,
    /// Added to the time of each request, also of a FLUSH.
    pub latency: Duration,
    /// Time of a FLUSH, during which nothing is transferred. A preflush and a FUA take it, too.
    pub flush: Duration,
    /// How many requests it serves at a time; their latencies overlap.
    pub depth: usize,
}

/// Longest time for the data of one request: it limits the transfer size.
const MAX_TRANSFER_TIME: Duration = Duration::from_millis(5);
const MIN_TRANSFER_BYTES: u64 = 64 << 10;

/// A device with the content of another one and a fixed speed. Requests begin in the order of their
/// submission. If the inner device is slower than the model, the request takes longer.
pub struct ModelDevice {
    inner: Arc<dyn Device>,
    geometry: Geometry,
    /// Its geometry since it has become writable.
    writable: OnceLock<Geometry>,
    model: DeviceModel,
    state: Mutex<ModelState>,
    ends: DelayedCompletions,
}

struct ModelState {
    /// End of the transfers that have begun.
    transfers_end: Instant,
    /// End of the last request in each slot.
    slots: Vec<Instant>,
}

impl ModelState {
    /// The end of a request that is submitted now.
    fn schedule(&mut self, model: DeviceModel, bio: &Bio, now: Instant) -> Instant {
        let bytes = match bio.op {
            Op::Read | Op::Write => bio.len,
            Op::Flush | Op::Discard | Op::WriteZeroes => 0,
        };
        let flushes = u32::from(bio.op == Op::Flush) + u32::from(bio.preflush) + u32::from(bio.fua);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(model.bytes_per_second.max(1));
        let transfer = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let transfer = transfer + model.flush * flushes;
        let slot = self.slots.iter_mut().min().expect("there is a slot");
        let begin = now.max(*slot);
        let end = begin.max(self.transfers_end) + transfer;
        if !transfer.is_zero() {
            self.transfers_end = end;
        }
        *slot = end + model.latency;
        *slot
    }
}

impl ModelDevice {
    /// Slows `inner` down, in tests and simulations.
    ///
    /// # Panics
    /// The host refuses a thread.
    pub fn new(inner: Arc<dyn Device>, model: DeviceModel) -> Self {
        Self::start(inner, model).expect("cannot create the thread of the modelled device")
    }

    /// Slows `inner` down.
    ///
    /// # Errors
    /// The host refuses a thread.
    pub fn start(inner: Arc<dyn Device>, model: DeviceModel) -> io::Result<Self> {
        assert!(model.bytes_per_second > 0, "a transfer ends");
        assert!(model.depth > 0, "a device serves at least one request");
        let mut geometry = inner.geometry().clone();
        let bytes = u128::from(model.bytes_per_second) * MAX_TRANSFER_TIME.as_nanos();
        let bytes = u64::try_from(bytes / 1_000_000_000).unwrap_or(u64::MAX);
        let most = bytes.clamp(MIN_TRANSFER_BYTES, 1 << 30);
        let most = u32::try_from(most).expect("bounded above");
        geometry.max_transfer = geometry.max_transfer.min(1 << most.ilog2());
        let state = ModelState {
            transfers_end: Instant(0),
            slots: vec![Instant(0); model.depth],
        };
        Ok(Self {
            inner,
            geometry,
            writable: OnceLock::new(),
            model,
            state: Mutex::new(Rank::Leaf, state),
            ends: DelayedCompletions::start("device-model")?,
        })
    }
}

impl Device for ModelDevice {
    fn geometry(&self) -> &Geometry {
        self.writable.get().unwrap_or(&self.geometry)
    }

    fn start(&self, bio: Bio, done: Done) {
        let at = {
            let mut state = self.state.lock();
            state.schedule(self.model, &bio, now())
        };
        self.inner.start(bio, self.ends.at(at, done));
    }

    fn background_depth(&self) -> usize {
        self.model.depth.min(self.inner.background_depth())
    }

    fn depth(&self) -> usize {
        self.model.depth
    }

    fn make_writable(&self) -> Result<(), String> {
        self.inner.make_writable()?;
        self.writable.get_or_init(|| Geometry {
            read_only: false,
            ..self.geometry.clone()
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use steadfs_base::IoTag;
    use steadfs_rt::sim;

    use super::*;
    use crate::{Buf, MemDevice, Queue, QueueOptions, wait_all};

    fn timed(model: DeviceModel, f: impl FnOnce(&Queue) + 'static) -> Duration {
        let report = sim::run(sim::Config::new(1), move || {
            let memory = Arc::new(MemDevice::new(64 << 20));
            let device = Arc::new(ModelDevice::new(memory, model));
            let queue = Queue::new(device, QueueOptions::default());
            let start = now();
            f(&queue);
            start.elapsed()
        });
        report.value
    }

    const MIB: u64 = 1 << 20;

    fn write(queue: &Queue, mib: u64) {
        let piece = u64::from(queue.geometry().max_transfer);
        let bufs = |_| vec![Buf::zeroed(piece as usize)];
        let ios: Vec<_> = (0..mib * MIB / piece)
            .map(|n| queue.submit(Bio::write(n * piece, bufs(n)), IoTag::default()))
            .collect();
        wait_all(&ios).unwrap();
    }

    /// Its owner was read only while it was opened.
    #[test]
    fn it_becomes_writable_with_its_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MIB).unwrap();
        let options = crate::OpenOptions {
            read_only: true,
            ..crate::OpenOptions::default()
        };
        let inner = Arc::new(crate::FileDevice::open(file.path(), options).unwrap());
        let model = DeviceModel {
            bytes_per_second: 1 << 30,
            latency: Duration::ZERO,
            flush: Duration::ZERO,
            depth: 4,
        };
        let device = Arc::new(ModelDevice::new(inner, model));
        let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
        let piece = || Bio::write(0, vec![Buf::zeroed(4096)]);
        assert!(queue.submit(piece(), IoTag::default()).wait().is_err());
        device.make_writable().unwrap();
        queue.submit(piece(), IoTag::default()).wait().unwrap();
    }

    #[test]
    fn bandwidth_latency_and_depth_are_as_configured() {
        let model = DeviceModel {
            bytes_per_second: 16 * MIB,
            latency: Duration::ZERO,
            flush: Duration::ZERO,
            depth: 1,
        };
        let near = |got: Duration, millis: u64| {
            let got = got.as_millis() as u64;
            assert!(
                got.abs_diff(millis) <= millis / 50 + 1,
                "{got} for {millis}"
            );
        };
        near(timed(model, |queue| write(queue, 32)), 2000);
        let late = DeviceModel {
            latency: Duration::from_millis(3),
            ..model
        };
        // 64 KiB take 4 ms, and 3 more.
        near(timed(late, |queue| write(queue, 1)), 16 * 7);
        let deep = DeviceModel { depth: 4, ..late };
        near(timed(deep, |queue| write(queue, 1)), 16 * 4 + 3);
        near(
            timed(late, |queue| queue.flush(IoTag::default()).wait().unwrap()),
            3,
        );
    }

    #[test]
    fn requests_are_short() {
        let model = DeviceModel {
            bytes_per_second: 100 * MIB,
            latency: Duration::ZERO,
            flush: Duration::ZERO,
            depth: 1,
        };
        sim::run(sim::Config::new(1), move || {
            let memory = Arc::new(MemDevice::new(MIB));
            let device = ModelDevice::new(memory, model);
            assert_eq!(device.geometry().max_transfer, 512 << 10);
        });
    }
}
