//! The server of a writable mount is killed while programs write, and another one continues the mount with everything that
//! was acknowledged, synced or not.
//!
//! Several writers change files at random and keep a model of what their calls have returned. Calls may take long, but none
//! fails. After each kill the writers pause, the kernel forgets what it has cached, and everything is compared with the
//! models; at the end also after an unmount and a check.
//!
//! `STEADFS_TAKEOVER_KILLS` is the number of kills of each kind of volume.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags, XattrFlags, fallocate, getxattr, removexattr, setxattr};
use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::until;
use steadfs_suite::generate::Numbers;
use steadfs_suite::{Image, LoopDevice, Scratch, SteadMount, f2fs};

const MIB: u64 = 1 << 20;
const WRITERS: u64 = 4;
/// A fifth server that ends within a minute has no successor.
const KILLS_PER_MOUNT: u32 = 4;
const NAMES: u64 = 12;
const FILE_BYTES_MAX: u64 = 256 << 10;
const OPTIONS: &str = "takeover=on,fuse_transport=dev";
const ATTRIBUTE: &str = "user.test";

fn kills() -> u32 {
    let kills = std::env::var("STEADFS_TAKEOVER_KILLS").ok();
    kills.and_then(|kills| kills.parse().ok()).unwrap_or(3)
}

/// What programs see of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    ino: u64,
    mode: u32,
    links: u64,
    size: u64,
    times: [(i64, i64); 2],
    attribute: Option<Vec<u8>>,
}

impl Seen {
    fn of(path: &Path) -> Self {
        let stat = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let mut value = vec![0; 5000];
        let attribute = match stat.is_symlink() {
            true => None,
            false => getxattr(path, ATTRIBUTE, &mut value).ok(),
        };
        Self {
            ino: stat.ino(),
            mode: stat.mode(),
            links: stat.nlink(),
            size: if stat.is_dir() { 0 } else { stat.size() },
            times: [
                (stat.mtime(), stat.mtime_nsec()),
                (stat.ctime(), stat.ctime_nsec()),
            ],
            attribute: attribute.map(|len| value[..len].to_vec()),
        }
    }
}

/// What a name leads to.
#[derive(Clone, Debug)]
enum Object {
    /// A file, by its inode number.
    File(u64),
    Link(PathBuf),
    Dir,
}

/// What a writer has made of its directory.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, Object>,
    contents: BTreeMap<u64, Vec<u8>>,
    /// By name; the directory itself has the name `.`.
    seen: BTreeMap<String, Seen>,
    /// Files without a name that are open.
    unnamed: Vec<(File, Vec<u8>)>,
    calls: u64,
}

impl Model {
    fn check(&self, dir: &Path) {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert!(names.iter().eq(self.names.keys()), "{names:?} in {dir:?}");
        for (name, seen) in &self.seen {
            assert_eq!(Seen::of(&dir.join(name)), *seen, "{name} in {dir:?}");
        }
        for (name, object) in &self.names {
            let path = dir.join(name);
            match object {
                Object::File(ino) => {
                    let bytes = fs::read(&path).unwrap();
                    compare(&bytes, &self.contents[ino], &path);
                }
                Object::Link(target) => assert_eq!(fs::read_link(&path).unwrap(), *target),
                Object::Dir => assert_eq!(fs::read_dir(&path).unwrap().count(), 0),
            }
        }
        for (file, content) in &self.unnamed {
            let mut bytes = vec![0; content.len()];
            file.read_exact_at(&mut bytes, 0).unwrap();
            compare(&bytes, content, Path::new("a file without a name"));
            assert_eq!(file.metadata().unwrap().nlink(), 0);
        }
    }
}

#[track_caller]
fn compare(found: &[u8], wanted: &[u8], path: &Path) {
    if found != wanted {
        let at = found.iter().zip(wanted).position(|(a, b)| a != b);
        panic!(
            "{path:?}: {} bytes, not {}; {at:?} differs",
            found.len(),
            wanted.len()
        );
    }
}

/// One writer.
struct Writer {
    dir: PathBuf,
    random: Numbers,
}

impl Writer {
    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.random.below(10) {
            0 => self.random.below(100 << 10),
            _ => self.random.below(6000),
        };
        self.random.bytes(len as usize + 1)
    }

    /// Records what is seen of these names now, and of the directory.
    fn see(&self, model: &mut Model, names: &[&str]) {
        model.calls += 1;
        // What these names led to before, and lead to now.
        let inos_of = |model: &Model| -> Vec<u64> {
            let seen = names.iter().filter_map(|name| model.seen.get(*name));
            seen.map(|seen| seen.ino).collect()
        };
        let mut inos = inos_of(model);
        for name in names.iter().chain(&["."]) {
            let is_there = *name == "." || model.names.contains_key(*name);
            match is_there {
                true => model
                    .seen
                    .insert((*name).to_owned(), Seen::of(&self.dir.join(name))),
                false => model.seen.remove(*name),
            };
        }
        // Hard links show each other's changes.
        inos.extend(inos_of(model));
        let same: Vec<_> = model
            .seen
            .iter()
            .filter(|(_, seen)| inos.contains(&seen.ino) && seen.links > 0)
            .map(|(name, _)| name.clone())
            .collect();
        for name in same {
            let seen = Seen::of(&self.dir.join(&name));
            model.seen.insert(name, seen);
        }
    }

    /// One change.
    fn step(&mut self, model: &mut Model) {
        let name = format!("n{}", self.random.below(NAMES));
        let path = self.dir.join(&name);
        let other = format!("n{}", self.random.below(NAMES));
        match model.names.get(&name).cloned() {
            None => self.make(model, &name, &path, &other),
            Some(Object::File(ino)) => match self.random.below(8) {
                0 => self.remove(model, &name, &path, ino),
                1 => self.rename(model, &name, &other),
                2 => self.change_attributes(&path),
                _ => self.change_contents(model, &path, ino),
            },
            Some(Object::Link(_)) => {
                fs::remove_file(&path).unwrap();
                model.names.remove(&name);
            }
            Some(Object::Dir) => match self.random.below(2) {
                0 => {
                    fs::remove_dir(&path).unwrap();
                    model.names.remove(&name);
                }
                _ => self.rename(model, &name, &other),
            },
        }
        self.forget_contents(model);
        self.see(model, &[&name, &other]);
    }

    fn make(&mut self, model: &mut Model, name: &str, path: &Path, other: &str) {
        let object = match self.random.below(12) {
            0 => {
                fs::create_dir(path).unwrap();
                Object::Dir
            }
            1 => {
                let target = "x".repeat(self.random.below(150) as usize + 1);
                symlink(&target, path).unwrap();
                Object::Link(target.into())
            }
            kind @ 2..5 => {
                let Some(&Object::File(ino)) = model.names.get(other) else {
                    return;
                };
                let from = self.dir.join(other);
                if kind == 2 {
                    fs::hard_link(from, path).unwrap();
                    Object::File(ino)
                } else {
                    fs::copy(from, path).unwrap();
                    let content = model.contents[&ino].clone();
                    self.made(model, path, content)
                }
            }
            5 => {
                self.open_unnamed(model);
                return;
            }
            _ => {
                let content = self.bytes();
                fs::write(path, &content).unwrap();
                self.made(model, path, content)
            }
        };
        model.names.insert(name.to_owned(), object);
    }

    fn made(&self, model: &mut Model, path: &Path, content: Vec<u8>) -> Object {
        let ino = fs::metadata(path).unwrap().ino();
        model.contents.insert(ino, content);
        Object::File(ino)
    }

    fn open_unnamed(&mut self, model: &mut Model) {
        let content = self.bytes();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::TMPFILE.bits() as i32)
            .open(&self.dir)
            .unwrap();
        file.write_all_at(&content, 0).unwrap();
        self.keep_unnamed(model, file, content);
    }

    fn keep_unnamed(&mut self, model: &mut Model, file: File, content: Vec<u8>) {
        if model.unnamed.len() > 3 {
            let at = self.random.below(3) as usize;
            model.unnamed.swap_remove(at);
        }
        model.unnamed.push((file, content));
    }

    fn remove(&mut self, model: &mut Model, name: &str, path: &Path, ino: u64) {
        let keeps = self.random.below(2) == 0 && fs::metadata(path).unwrap().nlink() == 1;
        let file = keeps.then(|| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap()
        });
        fs::remove_file(path).unwrap();
        model.names.remove(name);
        if let Some(file) = file {
            let mut content = model.contents[&ino].clone();
            let more = self.bytes();
            file.write_all_at(&more, content.len() as u64).unwrap();
            content.extend(more);
            self.keep_unnamed(model, file, content);
        }
    }

    fn rename(&mut self, model: &mut Model, name: &str, other: &str) {
        let fits = match (model.names.get(name), model.names.get(other)) {
            (_, None) => true,
            (Some(Object::Dir), Some(Object::Dir)) => true,
            (Some(Object::Dir), _) | (_, Some(Object::Dir)) => false,
            // A rename between two links of one file does nothing.
            (Some(Object::File(a)), Some(Object::File(b))) => a != b,
            _ => true,
        };
        if name == other || !fits {
            return;
        }
        fs::rename(self.dir.join(name), self.dir.join(other)).unwrap();
        let object = model.names.remove(name).unwrap();
        model.names.insert(other.to_owned(), object);
    }

    fn change_attributes(&mut self, path: &Path) {
        match self.random.below(4) {
            0 => {
                let mode = 0o600 | self.random.below(0o100) as u32;
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
            1 => {
                // It may have none.
                let _ = removexattr(path, ATTRIBUTE);
            }
            2 => {
                let len = self.random.below(200) as usize;
                let value = self.random.bytes(len);
                setxattr(path, ATTRIBUTE, &value, XattrFlags::empty()).unwrap();
            }
            _ => {
                let time = std::time::UNIX_EPOCH + Duration::new(self.random.below(1 << 30), 123);
                let file = File::options().write(true).open(path).unwrap();
                file.set_modified(time).unwrap();
            }
        }
    }

    fn change_contents(&mut self, model: &mut Model, path: &Path, ino: u64) {
        let content = model.contents.get_mut(&ino).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let len = content.len() as u64;
        match self.random.below(8) {
            0 => {
                let size = self.random.below(len + 5000);
                file.set_len(size).unwrap();
                content.resize(size as usize, 0);
            }
            kind @ 1..4 if len > 0 => {
                let at = self.random.below(len);
                let count = self.random.below(len - at) + 1;
                let mode = [
                    FallocateFlags::KEEP_SIZE,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                ][kind as usize - 1];
                // Not on every volume.
                if fallocate(&file, mode, at, count).is_ok() && kind > 1 {
                    content[at as usize..][..count as usize].fill(0);
                }
            }
            _ => {
                let bytes = self.bytes();
                let at = match self.random.below(2) {
                    0 if len < FILE_BYTES_MAX => len,
                    _ => self.random.below(len + 1),
                };
                file.write_all_at(&bytes, at).unwrap();
                let end = at as usize + bytes.len();
                content.resize(content.len().max(end), 0);
                content[at as usize..end].copy_from_slice(&bytes);
            }
        }
        if self.random.below(100) == 0 {
            file.sync_all().unwrap();
        }
    }

    fn forget_contents(&self, model: &mut Model) {
        let in_use: Vec<_> = model
            .names
            .values()
            .filter_map(|object| match object {
                Object::File(ino) => Some(*ino),
                _ => None,
            })
            .collect();
        model.contents.retain(|ino, _| in_use.contains(ino));
    }
}

/// All writers of a mount.
struct Writers {
    /// Taken for reading by each change.
    gate: Arc<RwLock<()>>,
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    models: Vec<(PathBuf, Arc<Mutex<Model>>)>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(root: &Path, seed: u64) -> Self {
        let mut this = Self {
            gate: Arc::default(),
            stop: Arc::default(),
            calls: Arc::default(),
            models: Vec::new(),
            threads: Vec::new(),
        };
        for n in 0..WRITERS {
            let dir = root.join(format!("w{seed}.{n}"));
            fs::create_dir(&dir).unwrap();
            let model = Arc::new(Mutex::new(Model::default()));
            this.models.push((dir.clone(), Arc::clone(&model)));
            let random = Numbers::new(seed * WRITERS + n);
            let mut writer = Writer { dir, random };
            let (gate, stop, calls) = (this.gate.clone(), this.stop.clone(), this.calls.clone());
            this.threads.push(std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let _open = gate.read().unwrap();
                    writer.step(&mut model.lock().unwrap());
                    calls.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        this
    }

    /// Waits until this number of changes was made.
    #[track_caller]
    fn go_on(&self, count: u64) {
        let enough = self.calls.load(Ordering::SeqCst) + count;
        until("programs go on", || {
            let fails = self.threads.iter().any(JoinHandle::is_finished);
            assert!(!fails, "a call has failed");
            self.calls.load(Ordering::SeqCst) >= enough
        });
    }

    fn check(&self) {
        let _closed = self.gate.write().unwrap();
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        for (dir, model) in &self.models {
            model.lock().unwrap().check(dir);
        }
    }

    fn end(self) -> Vec<(PathBuf, Arc<Mutex<Model>>)> {
        self.stop.store(true, Ordering::SeqCst);
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        self.models
    }
}

/// Kills the server at a random moment, and waits until another one serves.
fn replace(mount: &SteadMount, random: &mut Numbers) -> Duration {
    let before = mount.pid();
    let signal = match random.below(2) {
        0 => Signal::KILL,
        _ => Signal::ABORT,
    };
    std::thread::sleep(Duration::from_micros(random.below(50_000)));
    let began = Instant::now();
    let pid = Pid::from_raw(i32::try_from(before).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    until("another server", || {
        ![before, mount.broker(), 0].contains(&mount.pid())
    });
    began.elapsed()
}

fn image(scratch: &Scratch, kind: &str) -> Image {
    match kind {
        "f2fs" => f2fs::mkfs(scratch, "a.img", 512 * MIB, "-q"),
        kind => Image::mke2fs(scratch, "a.img", 512 * MIB, &["-t", kind]),
    }
}

fn check(kind: &str, image: &Image) {
    match kind {
        "f2fs" => drop(f2fs::check_clean(image.path(), "after a takeover")),
        _ => image.check_clean(),
    }
}

fn outlives_kills(kind: &str, on_device: bool) {
    let scratch = Scratch::new();
    let image = image(&scratch, kind);
    let mut random = Numbers::new(kills().into());
    let mut left = kills();
    let mut seed = 0;
    while left > 0 {
        seed += 1;
        let device = on_device.then(|| LoopDevice::attach(image.path(), true));
        let path = device.as_ref().map_or(image.path(), LoopDevice::path);
        let mount = SteadMount::new(&scratch, path, OPTIONS);
        let writers = Writers::start(mount.root(), seed);
        for _ in 0..left.min(KILLS_PER_MOUNT) {
            writers.go_on(random.below(1000));
            let took = replace(&mount, &mut random);
            writers.go_on(WRITERS * 2);
            writers.check();
            left -= 1;
            eprintln!("{kind}: {left} kills are left, another server after {took:?}");
        }
        let models = writers.end();
        for (_, model) in &models {
            model.lock().unwrap().unnamed.clear();
        }
        mount.unmount();
        drop(device);
        check(kind, &image);
        let mount = SteadMount::new(&scratch, image.path(), "ro");
        for (dir, model) in &models {
            let dir = mount.join(dir.file_name().unwrap().to_str().unwrap());
            model.lock().unwrap().check(&dir);
        }
        mount.unmount();
        let mount = SteadMount::new(&scratch, image.path(), "");
        for (dir, _) in &models {
            fs::remove_dir_all(mount.join(dir.file_name().unwrap().to_str().unwrap())).unwrap();
        }
        mount.unmount();
    }
}

#[test]
fn a_writable_ext4_mount_outlives_its_servers() {
    outlives_kills("ext4", false);
}

#[test]
fn a_writable_ext4_block_device_outlives_its_servers() {
    outlives_kills("ext4", true);
}

#[test]
fn a_writable_f2fs_mount_outlives_its_servers() {
    outlives_kills("f2fs", false);
}

#[test]
fn a_writable_f2fs_block_device_outlives_its_servers() {
    outlives_kills("f2fs", true);
}
