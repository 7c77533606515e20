//! Experiments in real time: the volume on a device model that follows the host's clock, mounted through FUSE, with
//! processes as real threads in real cgroups.
//!
//! Real: the kernel's part of every call, threads and their wake-ups, all CPU time, cgroups and how the server learns
//! them. Modelled as in simulations: the device, and the CPU time that the experiment charges, which is slept.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW};
use steadfs::{MountEntry, MountError, MountHandle, Options, Unmount, Volume};
use steadfs_base::{GroupId, InodeNo};
use steadfs_rt::{Mutex, Rank, now, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError};

use super::files::Files;
use super::testbed::{Cgroup, Mount, Outcome, Testbed, World};
use crate::flash::{FlashDevice, Store};

/// Number of files that are kept open; others are opened for each call.
const OPEN: usize = 200;
/// Maximum time that an unmount may fail with EBUSY.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs `f` on a mount of a prepared volume, and checks the volume afterwards.
///
/// # Errors
/// The error of `f`, or the findings in the volume.
pub(super) fn on_mount<T>(
    world: &World,
    volume: &Store,
    f: impl FnOnce(&Testbed) -> Result<T, FsError>,
) -> Result<Outcome<T>, String> {
    let device = FlashDevice::new(&world.device, volume.clone(), world.attempt.seed);
    let options = options(world);
    let shared = Arc::new(device.clone());
    let volume = Volume::on(shared, Path::new("flash"), world.memory, &options);
    let volume = volume.map_err(|error| error.to_string())?;
    let scratch =
        Scratch::new().map_err(|error| format!("cannot create a mount point: {error}"))?;
    let under_way = RegisteredMount::begin(&scratch.0);
    let mounted = match steadfs::mount(&volume, &scratch.0, &options) {
        Ok(mounted) => mounted,
        Err(error) => {
            let closed = volume.close();
            return Err(format!("mounting: {error} (closing: {closed:?})"));
        }
    };
    let begin = now();
    let groups = match ENDED.load(Ordering::Acquire) {
        true => Err("a signal ends the program".to_owned()),
        false => groups_of(world),
    };
    let done = groups.map_err(FsError::Io).and_then(|groups| {
        let calls = Calls::new(&scratch.0, volume.fs(), groups);
        let calls = Arc::new(calls.map_err(FsError::Io)?);
        let testbed = Testbed {
            fs: Arc::new(OnMount(Arc::clone(&calls))),
            queue: Arc::clone(volume.io().queue()),
            device: device.clone(),
            sampler: None,
        };
        let value = f(&testbed);
        let (stats, counters) = (testbed.queue.stats(), device.counters());
        calls.end().map_err(FsError::Io)?;
        Ok((value?, stats, counters))
    });
    drop(under_way);
    unmount(&mounted)?;
    let elapsed = begin.elapsed();
    mounted
        .wait()
        .map_err(|error| format!("cannot close the volume: {error}"))?;
    let (value, queue, counters) = done.map_err(|error| error.to_string())?;
    drop(volume);
    let took = (elapsed, 0);
    Outcome::judged(
        &world.mount,
        device.content(),
        value,
        took,
        (queue, counters),
    )
}

/// The experiments' mounts.
static MOUNTS: LazyLock<Mutex<Vec<PathBuf>>> = LazyLock::new(|| Mutex::new(Rank::Leaf, Vec::new()));
/// Set when no further mount may be used.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Keeps a mount in [`MOUNTS`] until it is dropped.
struct RegisteredMount<'a>(&'a Path);

impl<'a> RegisteredMount<'a> {
    fn begin(place: &'a Path) -> Self {
        MOUNTS.lock().push(place.to_owned());
        Self(place)
    }
}

impl Drop for RegisteredMount<'_> {
    fn drop(&mut self) {
        MOUNTS.lock().retain(|place| place != self.0);
    }
}

/// Unmounts the volume of the running experiment, whose calls then fail; returns whether there was one.
///
/// Needed before this program can be terminated: its threads use its own mount. A killed thread that waits for an
/// answer would keep the process alive, and the kernel waits for the process before it gives up the mount.
/// for an answer would keep the program from ending, for which the kernel waits before it gives up the mount.
pub fn unmount_on_signal() -> bool {
    ENDED.store(true, Ordering::Release);
    let places = MOUNTS.lock().clone();
    let mounts = MountEntry::all().unwrap_or_default();
    for mount in mounts
        .into_iter()
        .filter(|mount| places.contains(&mount.mountpoint))
    {
        if let Err(error) = MountHandle::of(mount).unmount(Unmount::Abort) {
            tracing::debug!(%error, "the mount was already removed");
        }
    }
    !places.is_empty()
}

fn options(world: &World) -> Options {
    let mut options = Options::default();
    options.io.queue = world.queue;
    match &world.mount {
        Mount::Ext4(ext4) => options.ext4 = ext4.clone(),
        Mount::F2fs(f2fs) => options.f2fs = f2fs.clone(),
    }
    options
}

fn unmount(mounted: &steadfs::Mounted) -> Result<(), String> {
    let begin = now();
    while let Err(error) = mounted.unmount(Unmount::IfIdle) {
        let busy = matches!(error, MountError::Busy(_));
        if !busy || begin.elapsed() > PATIENCE {
            let detached = mounted.unmount(Unmount::Detach);
            return Err(format!("cannot unmount: {error} (detached: {detached:?})"));
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// An empty directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        let name = format!("steadfs-lab-{:016x}", steadfs_rt::random_u64());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            tracing::debug!(%error, "cannot remove the mount point");
        }
    }
}

/// The host's cgroups for the experiment's processes.
struct Cgroups {
    /// The cgroup of this program.
    own: PathBuf,
    made: BTreeMap<GroupId, PathBuf>,
}

/// Why threads cannot be put into cgroups here; `None` if they can.
pub fn why_no_cgroups() -> Option<String> {
    let group = Cgroup {
        id: GroupId(1),
        weight: 100,
    };
    Cgroups::make(&[group]).err()
}

fn groups_of(world: &World) -> Result<Option<Cgroups>, String> {
    match world.attempt.grouped && !world.groups.is_empty() {
        true => Cgroups::make(&world.groups).map(Some),
        false => Ok(None),
    }
}

/// Only cgroups of version 1 can hold single threads for block I/O.
const BLKIO: &str = "/sys/fs/cgroup/blkio";

impl Cgroups {
    fn make(wanted: &[Cgroup]) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let text = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let here = text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers
                .split(',')
                .any(|name| name == "blkio")
                .then_some(path)
        });
        let Some(here) = here.filter(|_| Path::new(BLKIO).is_dir()) else {
            return Err("no blkio hierarchy of cgroup version 1".to_owned());
        };
        let own = Path::new(BLKIO).join(here.trim_start_matches('/'));
        let (pid, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut groups = Self {
            own,
            made: BTreeMap::new(),
        };
        for group in wanted {
            let path = groups
                .own
                .join(format!("steadfs-lab-{pid}-{number}-{}", group.id.0));
            let failed = |error: io::Error| format!("{}: {error}", path.display());
            fs::create_dir(&path).map_err(failed)?;
            groups.made.insert(group.id, path.clone());
            let weight = group.weight.to_string();
            fs::write(path.join("blkio.bfq.weight"), &weight)
                .or_else(|_| fs::write(path.join("blkio.weight"), &weight))
                .map_err(failed)?;
        }
        Ok(groups)
    }

    /// Moves the calling thread into a cgroup.
    fn join(&self, group: GroupId) -> Result<(), FsError> {
        let path = self.made.get(&group).unwrap_or(&self.own).join("tasks");
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        fs::write(&path, thread)
            .map_err(|error| FsError::Io(format!("{}: {error}", path.display())))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let begin = now();
        for path in self.made.values() {
            // A thread that has ended may still be in its cgroup for a short time.
            while let Err(error) = fs::remove_dir(path) {
                if begin.elapsed() > PATIENCE {
                    tracing::warn!(%error, path = %path.display(), "cannot remove the cgroup");
                    return;
                }
                sleep(Duration::from_millis(10));
            }
        }
    }
}

/// The mount's files by inode number.
struct Calls {
    root: InodeNo,
    /// The volume itself: for calls that the kernel does not pass to a plain FUSE server (sync(2)), and for control
    /// files.
    volume: Arc<dyn FileSystem>,
    groups: Option<Cgroups>,
    known: Mutex<OpenInode>,
}

#[derive(Default)]
struct OpenInode {
    paths: BTreeMap<u64, PathBuf>,
    open: BTreeMap<u64, Arc<File>>,
}

thread_local! {
    /// The process number of this thread; 0: none yet.
    static OWNER: Cell<u32> = const { Cell::new(0) };
}

fn fs_error(error: &io::Error) -> FsError {
    match error.kind() {
        io::ErrorKind::NotFound => FsError::NotFound,
        io::ErrorKind::StorageFull => FsError::NoSpace,
        _ => FsError::Io(error.to_string()),
    }
}

impl Calls {
    fn new(
        place: &Path,
        volume: Arc<dyn FileSystem>,
        groups: Option<Cgroups>,
    ) -> Result<Self, String> {
        let root = fs::metadata(place)
            .map_err(|error| error.to_string())?
            .ino();
        let mut known = OpenInode::default();
        known.paths.insert(root, place.to_owned());
        Ok(Self {
            root: InodeNo(root),
            volume,
            groups,
            known: Mutex::new(Rank::Leaf, known),
        })
    }

    /// Closes all files, and ends this thread's process.
    fn end(&self) -> Result<(), String> {
        let open = std::mem::take(&mut self.known.lock().open);
        drop(open);
        OWNER.set(0);
        let groups = self.groups.as_ref();
        groups.map_or(Ok(()), |groups| {
            groups.join(GroupId(0)).map_err(|error| error.to_string())
        })
    }

    fn path(&self, ino: InodeNo) -> Result<PathBuf, FsError> {
        let known = self.known.lock();
        known.paths.get(&ino.0).cloned().ok_or(FsError::Stale)
    }

    /// Looks up a path and records its inode.
    fn learn(&self, path: PathBuf) -> Result<InodeNo, FsError> {
        let ino = fs::metadata(&path).map_err(|error| fs_error(&error))?.ino();
        self.known.lock().paths.insert(ino, path);
        Ok(InodeNo(ino))
    }

    fn file(&self, ino: InodeNo) -> Result<Arc<File>, FsError> {
        if let Some(file) = self.known.lock().open.get(&ino.0) {
            return Ok(Arc::clone(file));
        }
        let path = self.path(ino)?;
        // A directory can be opened for reading only.
        let file = File::options().read(true).write(true).open(&path);
        let file = file
            .or_else(|_| File::open(&path))
            .map_err(|error| fs_error(&error))?;
        let file = Arc::new(file);
        let mut known = self.known.lock();
        if known.open.len() < OPEN {
            known.open.insert(ino.0, Arc::clone(&file));
        }
        Ok(file)
    }

    fn within(&self, dir: InodeNo, name: &[u8]) -> Result<PathBuf, FsError> {
        Ok(self.path(dir)?.join(OsStr::from_bytes(name)))
    }
}

/// Calls on the mount.
struct OnMount(Arc<Calls>);

impl OnMount {
    /// Runs `f` as the process of `cx`: a thread takes the number of the first process that it calls for; for another
    /// one a new thread is started, as a shell would fork.
    fn act<T: Send + 'static>(
        &self,
        cx: &Cx,
        act: impl FnOnce(&Calls) -> Result<T, FsError> + Send + 'static,
    ) -> Result<T, FsError> {
        let (owner, group) = (cx.tag.owner.0, cx.tag.group);
        let join = move |calls: &Calls| {
            let groups = calls.groups.as_ref();
            groups.map_or(Ok(()), |groups| groups.join(group))
        };
        match OWNER.get() {
            me if owner == 0 || me == owner => act(&self.0),
            0 => {
                join(&self.0)?;
                OWNER.set(owner);
                act(&self.0)
            }
            _ => {
                let calls = Arc::clone(&self.0);
                let process = spawn("process", move || {
                    join(&calls)?;
                    act(&calls)
                });
                process.join()
            }
        }
    }
}

impl Files for OnMount {
    fn root(&self) -> InodeNo {
        self.0.root
    }

    fn lookup(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<InodeNo, FsError> {
        let path = self.0.within(dir, name)?;
        self.act(cx, move |calls| calls.learn(path))
    }

    fn make(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<InodeNo, FsError> {
        let path = self.0.within(dir, name)?;
        self.act(cx, move |calls| {
            let file = File::create_new(&path).map_err(|error| fs_error(&error))?;
            let ino = file.metadata().map_err(|error| fs_error(&error))?.ino();
            let mut known = calls.known.lock();
            known.paths.insert(ino, path);
            if known.open.len() < OPEN {
                known.open.insert(ino, Arc::new(file));
            }
            Ok(InodeNo(ino))
        })
    }

    fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<InodeNo, FsError> {
        let path = self.0.within(dir, name)?;
        self.act(cx, move |calls| {
            fs::create_dir(&path).map_err(|error| fs_error(&error))?;
            calls.learn(path)
        })
    }

    fn unlink(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<(), FsError> {
        let path = self.0.within(dir, name)?;
        self.act(cx, move |_| {
            fs::remove_file(path).map_err(|error| fs_error(&error))
        })
    }

    fn touch(&self, cx: &Cx, file: InodeNo) -> Result<(), FsError> {
        let path = self.0.path(file)?;
        self.act(cx, move |_| {
            let time = Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_NOW,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            let done = rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty());
            done.map_err(|errno| fs_error(&errno.into()))
        })
    }

    fn write(&self, cx: &Cx, file: InodeNo, at: u64, data: &[u8]) -> Result<usize, FsError> {
        let write = move |calls: &Calls, data: &[u8]| {
            let file = calls.file(file)?;
            file.write_at(data, at).map_err(|error| fs_error(&error))
        };
        let owner = cx.tag.owner.0;
        if owner == 0 || OWNER.get() == owner {
            return write(&self.0, data);
        }
        let data = data.to_vec();
        self.act(cx, move |calls| write(calls, &data))
    }

    fn fsync(&self, cx: &Cx, ino: InodeNo) -> Result<(), FsError> {
        self.act(cx, move |calls| {
            calls
                .file(ino)?
                .sync_all()
                .map_err(|error| fs_error(&error))
        })
    }

    fn sync_all(&self, cx: &Cx) -> Result<(), FsError> {
        self.0.volume.sync_all(cx)
    }

    fn forget(&self, ino: InodeNo) {
        let gone = self.0.known.lock().open.remove(&ino.0);
        drop(gone);
    }

    fn blocks_free(&self) -> Result<u64, FsError> {
        Ok(self.0.volume.statfs(&Cx::default())?.blocks_free)
    }

    fn control(&self, path: &str) -> Result<Vec<u8>, FsError> {
        let control = self.0.volume.control().ok_or(FsError::NotFound)?;
        control.read(path)
    }

    fn set_control(&self, path: &str, value: &[u8]) -> Result<(), FsError> {
        let control = self.0.volume.control().ok_or(FsError::NotFound)?;
        control.write(path, value)
    }
}
