//! The environment of an experiment: a volume on a device model, in a simulation, with queue, cache and file system as
//! in a mount.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{FixedHasher, GroupId, InodeNo, IoPrio, IoTag, OwnerId};
use steadfs_block::{Device, Queue, QueueOptions, QueueSettings, QueueStats};
use steadfs_ext4::Ext4;
use steadfs_f2fs::F2fs;
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileKind, FileSystem, FsError, Segment};

use super::files::{Direct, Files};
use super::mounted;
use super::plan::{Attempt, Clock};
use super::timeline::{Depths, Sampler};
use crate::flash::{Counters, FlashDevice, Parameters, Store};

pub use steadfs_ext4::CacheSizes;

/// A file system and its mount options.
#[derive(Clone, Debug)]
pub enum Mount {
    /// ext4.
    Ext4(steadfs_ext4::MountOptions),
    /// f2fs.
    F2fs(steadfs_f2fs::MountOptions),
}

impl Mount {
    /// ext4 with a list of mount options.
    ///
    /// # Errors
    /// An invalid option.
    pub fn ext4(options: &str) -> Result<Self, String> {
        let parsed = steadfs_ext4::MountOptions::parse(options);
        parsed.map(Self::Ext4).map_err(|error| error.to_string())
    }

    /// f2fs with a list of mount options.
    ///
    /// # Errors
    /// An invalid option.
    pub fn f2fs(options: &str) -> Result<Self, String> {
        let parsed = steadfs_f2fs::MountOptions::parse(options);
        parsed.map(Self::F2fs).map_err(|error| error.to_string())
    }

    fn open(
        &self,
        device: Arc<dyn Device>,
        memory: CacheSizes,
    ) -> Result<(Arc<dyn FileSystem>, Arc<Queue>), FsError> {
        Ok(match self {
            Self::Ext4(options) => {
                let (fs, _) = Ext4::open(device, options.clone(), memory)?;
                let queue = Arc::clone(fs.queue());
                (fs, queue)
            }
            Self::F2fs(options) => {
                let (fs, _) = F2fs::open(device, options.clone(), memory)?;
                let queue = Arc::clone(fs.queue());
                (fs, queue)
            }
        })
    }

    /// Fails with the findings of the file system's own checker in an unmounted volume.
    fn check(&self, store: &Store) -> Result<(), String> {
        fn no_issues<I: ToString>(issues: &[I], more: u64) -> Result<(), String> {
            match issues.first() {
                None => Ok(()),
                Some(first) => Err(format!(
                    "the checker found {} issues, the first: {}",
                    issues.len() as u64 + more,
                    first.to_string()
                )),
            }
        }
        match self {
            Self::Ext4(_) => {
                let report = steadfs_ext4::check::check(store, &Default::default());
                if let Some(why) = report.refused {
                    return Err(why.to_string());
                }
                no_issues(&report.issues, report.more)
            }
            Self::F2fs(_) => {
                let report = steadfs_f2fs::check::check(store, &Default::default());
                if let Some(why) = report.refused {
                    return Err(why.to_string());
                }
                no_issues(&report.issues, report.more)
            }
        }
    }
}

/// A cgroup with its weight, below the root.
#[derive(Clone, Copy, Debug)]
pub struct Cgroup {
    /// Its number.
    pub id: GroupId,
    /// Its weight, 1 to 1000.
    pub weight: u32,
}

/// The conditions of a run.
#[derive(Clone, Debug)]
pub struct World {
    /// The seed and the clock.
    pub attempt: Attempt,
    /// The device.
    pub device: Parameters,
    /// The file system.
    pub mount: Mount,
    /// Queue settings.
    pub queue: QueueSettings,
    /// The cgroups.
    pub groups: Vec<Cgroup>,
    /// Sizes of the volume's caches.
    pub memory: CacheSizes,
}

/// A mounted volume on a device model.
pub struct Testbed {
    /// Its calls.
    pub fs: Arc<dyn Files>,
    /// Its queue.
    pub queue: Arc<Queue>,
    /// Its device.
    pub device: FlashDevice,
    /// Samples the queue, if requested.
    pub(super) sampler: Option<Sampler>,
}

impl Testbed {
    /// Ends the measurement, and with it the queue's timeline.
    pub fn measured(&self) {
        if let Some(sampler) = &self.sampler {
            sampler.stop();
        }
    }
}

/// The results of a run besides the experiment's own values.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The experiment's result.
    pub value: T,
    /// Hash of the final content: names, kinds, sizes and bytes, without times and block numbers.
    pub content: u64,
    /// Time from mount to unmount.
    pub simulated: Duration,
    /// Hash of every scheduling decision and every device command.
    pub trace: u64,
    /// Queue statistics up to the experiment's end.
    pub queue: QueueStats,
    /// Device counts up to then.
    pub device: Counters,
    /// Queue depths, if they were sampled.
    pub timeline: Vec<Depths>,
}

impl<T> Outcome<T> {
    /// After a run: checks the unmounted volume.
    pub(super) fn judged(
        mount: &Mount,
        store: Store,
        value: T,
        (simulated, trace): (Duration, u64),
        (queue, device): (QueueStats, Counters),
    ) -> Result<Self, String> {
        mount.check(&store)?;
        Ok(Self {
            value,
            content: digest(mount, store)?,
            simulated,
            trace,
            queue,
            device,
            timeline: Vec::new(),
        })
    }
}

/// The call context of a process.
pub fn process(group: GroupId, prio: IoPrio, owner: u32) -> Cx {
    Cx {
        fsetid: true,
        admin: true,
        tag: IoTag {
            prio,
            group,
            owner: OwnerId(owner),
            ..IoTag::default()
        },
        caller: u64::from(owner),
        ..Cx::default()
    }
}

const MEMORY: u64 = 64 << 20;

/// Runs `f` on a new volume that `format` makes, on a device that takes no time. Returns the unmounted volume, for any
/// number of runs.
///
/// # Errors
/// The step that failed.
pub fn prepare(
    size: u64,
    mount: &Mount,
    format: impl FnOnce(&Queue) -> Result<(), String> + 'static,
    f: impl FnOnce(&Testbed) -> Result<(), FsError> + 'static,
) -> Result<Store, String> {
    let mount = mount.clone();
    let report = sim::try_run(config(0, Duration::ZERO), move || {
        let device = FlashDevice::instant(Store::zeroed(size));
        format(&Queue::new(
            Arc::new(device.clone()),
            QueueOptions::default(),
        ))?;
        let prepare_error = |error: FsError| format!("cannot prepare the volume: {error}");
        let shared = Arc::new(device.clone());
        let (fs, queue) = mount
            .open(shared, CacheSizes::of(MEMORY))
            .map_err(prepare_error)?;
        let testbed = Testbed {
            fs: Arc::new(Direct(Arc::clone(&fs))),
            queue,
            device,
            sampler: None,
        };
        f(&testbed).map_err(prepare_error)?;
        fs.unmount().map_err(prepare_error)?;
        mount.check(&testbed.device.content())?;
        Ok(testbed.device.content())
    });
    report.map_err(|failure| failure.to_string())?.value
}

/// Runs `f` on a prepared volume, in a simulation or on a mount, unmounts it and checks it.
///
/// # Errors
/// The error of `f`, or the findings in the volume.
pub fn run_on<T: 'static>(
    world: World,
    volume: &Store,
    f: impl FnOnce(&Testbed) -> Result<T, FsError> + 'static,
) -> Result<Outcome<T>, String> {
    match world.attempt.place {
        Clock::Simulation => simulate(world, volume, f),
        Clock::Mount => mounted::on_mount(&world, volume, f),
    }
}

fn simulate<T: 'static>(
    world: World,
    volume: &Store,
    f: impl FnOnce(&Testbed) -> Result<T, FsError> + 'static,
) -> Result<Outcome<T>, String> {
    let mount = world.mount.clone();
    let store = volume.clone();
    let seed = world.attempt.seed;
    let report = sim::try_run(config(seed, world.device.host.wake), move || {
        let device = FlashDevice::new(&world.device, store, seed);
        let shared = Arc::new(device.clone());
        let (fs, queue) = world.mount.open(shared, world.memory)?;
        queue.configure(world.queue);
        for group in &world.groups {
            queue.set_group(group.id, GroupId(0), group.weight);
        }
        let sampler = world
            .attempt
            .sampled
            .map(|step| Sampler::start(&queue, step));
        let testbed = Testbed {
            fs: Arc::new(Direct(Arc::clone(&fs))),
            queue,
            device,
            sampler,
        };
        let value = f(&testbed)?;
        let (stats, counters) = (testbed.queue.stats(), testbed.device.counters());
        let timeline = testbed
            .sampler
            .as_ref()
            .map(Sampler::end)
            .unwrap_or_default();
        fs.unmount()?;
        Ok::<_, FsError>((value, (stats, counters), testbed.device.content(), timeline))
    });
    let report = report.map_err(|failure| failure.to_string())?;
    let (value, counts, store, timeline) = report.value.map_err(|error| error.to_string())?;
    let took = Duration::from_nanos(report.end.0);
    let outcome = Outcome::judged(&mount, store, value, (took, report.trace_hash), counts)?;
    Ok(Outcome {
        timeline,
        ..outcome
    })
}

fn config(seed: u64, wake: Duration) -> sim::Config {
    sim::Config {
        seed,
        preempt: 0,
        wake,
        max_time: Duration::from_secs(30 * 86_400),
        stall_bound: Duration::from_secs(3600),
        ..sim::Config::default()
    }
}

/// A hash of a volume's tree: names, kinds, permissions, sizes and bytes.
fn digest(mount: &Mount, store: Store) -> Result<u64, String> {
    let mount = mount.clone();
    let report = sim::try_run(config(0, Duration::ZERO), move || {
        let device = Arc::new(FlashDevice::instant(store));
        let (fs, _) = mount.open(device, CacheSizes::of(MEMORY))?;
        let mut hasher = FixedHasher::default();
        let read = digest_dir(&*fs, fs.root(), &mut hasher);
        fs.unmount()?;
        read.map(|()| hasher.finish())
    });
    let report = report.map_err(|failure| failure.to_string())?;
    report
        .value
        .map_err(|error| format!("cannot read the volume again: {error}"))
}

fn digest_dir(fs: &dyn FileSystem, dir: InodeNo, hasher: &mut FixedHasher) -> Result<(), FsError> {
    let cx = Cx::default();
    let mut names = Vec::new();
    fs.readdir(&cx, dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name.to_vec(), entry.ino));
        }
        true
    })?;
    names.sort_unstable();
    for (name, ino) in names {
        let attr = fs.attach(&cx, ino)?;
        hasher.write(&name);
        hasher.write_u32(attr.kind.mode_bits() | attr.perm);
        match attr.kind {
            FileKind::Directory => digest_dir(fs, attr.ino, hasher)?,
            FileKind::Regular => {
                hasher.write_u64(attr.size);
                digest_file(fs, attr.ino, attr.size, hasher)?;
            }
            _ => {}
        }
        fs.forget(ino, 1);
    }
    // The end of a directory, so that trees with the same names differ.
    hasher.write_u64(u64::MAX);
    Ok(())
}

fn digest_file(
    fs: &dyn FileSystem,
    ino: InodeNo,
    size: u64,
    hasher: &mut FixedHasher,
) -> Result<(), FsError> {
    const PART: usize = 1 << 20;
    let cx = Cx::default();
    let mut lanes = Lanes::default();
    let mut at = 0;
    while at < size {
        let data = fs.read(&cx, ino, at, PART)?;
        if data.is_empty() {
            break;
        }
        for segment in data.segments() {
            match segment {
                Segment::Bytes(owner, range) => lanes.add(&(**owner).as_ref()[range.clone()]),
                Segment::Zeros(len) => lanes.add_zeros(*len),
            }
        }
        at += data.len() as u64;
    }
    lanes.0.into_iter().for_each(|lane| hasher.write_u64(lane));
    Ok(())
}

/// A hash of four interleaved sums, fast enough for gigabytes.
#[derive(Default)]
struct Lanes([u64; 4]);

impl Lanes {
    fn add(&mut self, bytes: &[u8]) {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        let (words, rest) = bytes.as_chunks::<32>();
        for word in words {
            for (lane, part) in self.0.iter_mut().zip(word.as_chunks::<8>().0) {
                *lane = (lane.rotate_left(26) ^ u64::from_le_bytes(*part)).wrapping_mul(ODD);
            }
        }
        for byte in rest {
            self.0[0] = (self.0[0].rotate_left(26) ^ u64::from(*byte)).wrapping_mul(ODD);
        }
    }

    fn add_zeros(&mut self, len: usize) {
        const BLOCK: &[u8] = &[0; 4096];
        let mut left = len;
        while left > 0 {
            let part = left.min(BLOCK.len());
            self.add(&BLOCK[..part]);
            left -= part;
        }
    }
}
