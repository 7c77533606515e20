//! The server is killed under load, again and again: what was acknowledged stays.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use steadfs_rt::FAULT_VARIABLE;
use steadfs_suite::command::{PATIENCE, until};
use steadfs_suite::stead::program;
use steadfs_suite::{Image, Scratch, SteadMount, f2fs, steadfs, succeed};

const ROUNDS: u64 = 100;
const WRITERS: u64 = 3;
const NAMES: u64 = 12;
/// Average number of acknowledged steps in a round.
const STEPS: u64 = 30;

/// Names and contents in a writer's folder.
type Files = BTreeMap<String, Vec<u8>>;

/// Random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn name(&mut self) -> String {
        format!("f{}", self.below(NAMES))
    }

    /// Up to 40 000 bytes, none of them zero.
    fn bytes(&mut self) -> Vec<u8> {
        let seed = self.below(u64::MAX);
        let len = usize::try_from(self.below(40_000)).unwrap();
        let words = (0..).flat_map(|i: u64| (seed ^ i.wrapping_mul(0x9e37_79b9)).to_le_bytes());
        words.map(|byte| byte | 1).take(len).collect()
    }
}

/// A change that was requested and is not acknowledged yet.
struct Pending {
    after: Files,
    /// The file that grows, part of which may be there.
    grows: Option<String>,
}

/// Changes files in a folder of its own, one durable step after the other.
struct Writer {
    name: String,
    random: Random,
    /// The acknowledged files.
    files: Files,
    pending: Option<Pending>,
}

impl Writer {
    fn new(number: u64) -> Self {
        Self {
            name: format!("w{number}"),
            random: Random(number),
            files: Files::new(),
            pending: None,
        }
    }

    /// Works until the first error; counts acknowledged steps.
    fn work(&mut self, root: &Path, done: &AtomicU64) -> io::Error {
        let dir = root.join(&self.name);
        loop {
            if let Err(error) = self.step(&dir) {
                return error;
            }
            let pending = self.pending.take().unwrap();
            self.files = pending.after;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn step(&mut self, dir: &Path) -> io::Result<()> {
        let name = self.random.name();
        match self.random.below(4) {
            0 => self.replace(dir, name),
            1 => self.append(dir, name),
            2 => self.rename(dir, name),
            _ => self.remove(dir, name),
        }
    }

    fn intend(&mut self, after: Files, grows: Option<String>) {
        self.pending = Some(Pending { after, grows });
    }

    fn replace(&mut self, dir: &Path, name: String) -> io::Result<()> {
        let bytes = self.random.bytes();
        let mut after = self.files.clone();
        after.insert(name.clone(), bytes.clone());
        self.intend(after, None);
        let mut file = File::create(dir.join("tmp"))?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(dir.join("tmp"), dir.join(name))?;
        File::open(dir)?.sync_all()
    }

    fn append(&mut self, dir: &Path, name: String) -> io::Result<()> {
        let bytes = self.random.bytes();
        let data_only = self.files.contains_key(&name) && self.random.below(2) == 0;
        let mut after = self.files.clone();
        after.entry(name.clone()).or_default().extend(&bytes);
        // Files stay small: start over.
        if after[&name].len() > 200_000 {
            return self.remove(dir, name);
        }
        self.intend(after, Some(name.clone()));
        let mut file = File::options()
            .append(true)
            .create(true)
            .open(dir.join(name))?;
        file.write_all(&bytes)?;
        if data_only {
            return file.sync_data();
        }
        file.sync_all()?;
        File::open(dir)?.sync_all()
    }

    fn rename(&mut self, dir: &Path, name: String) -> io::Result<()> {
        let to = self.random.name();
        let mut after = self.files.clone();
        let Some(bytes) = after.remove(&name) else {
            return self.replace(dir, name);
        };
        after.insert(to.clone(), bytes);
        self.intend(after, None);
        fs::rename(dir.join(name), dir.join(to))?;
        File::open(dir)?.sync_all()
    }

    fn remove(&mut self, dir: &Path, name: String) -> io::Result<()> {
        let mut after = self.files.clone();
        if after.remove(&name).is_none() {
            return self.replace(dir, name);
        }
        self.intend(after, None);
        fs::remove_file(dir.join(name))?;
        File::open(dir)?.sync_all()
    }

    /// Compares the folder with what was acknowledged, and takes it as the new state.
    fn compare(&mut self, root: &Path, round: u64) {
        let mut found = Files::new();
        for entry in fs::read_dir(root.join(&self.name)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if name != "tmp" {
                found.insert(name, fs::read(entry.path()).unwrap());
            }
        }
        let pending = self.pending.take();
        let allowed = found == self.files
            || pending
                .as_ref()
                .is_some_and(|pending| pending.allows(&self.files, &found));
        let lengths = |files: &Files| -> Vec<(String, usize)> {
            files.iter().map(|(n, b)| (n.clone(), b.len())).collect()
        };
        assert!(
            allowed,
            "round {round}, {}: acknowledged {:?}\nthen asked for {:?}\nfound {:?}",
            self.name,
            lengths(&self.files),
            pending.map(|p| (lengths(&p.after), p.grows)),
            lengths(&found),
        );
        self.files = found;
    }
}

impl Pending {
    /// Whether a crash may leave `found` after `before` was acknowledged.
    fn allows(&self, before: &Files, found: &Files) -> bool {
        if *found == self.after {
            return true;
        }
        let Some(name) = &self.grows else {
            return false;
        };
        let (Some(part), whole) = (found.get(name), &self.after[name]) else {
            return false;
        };
        let old = before.get(name).map_or(0, Vec::len);
        let mut others = before.clone();
        others.insert(name.clone(), part.clone());
        others == *found
            && (old..=whole.len()).contains(&part.len())
            && part[..old] == whole[..old]
            // Any page that was added may be missing; it then reads as zeros.
            && part[old..].iter().zip(&whole[old..]).all(|(is, new)| is == new || *is == 0)
    }
}

/// Creates, truncates and removes files and folders without fsync, until the first error.
fn churn(root: &Path, random: &mut Random) -> io::Error {
    let dir = root.join("churn");
    let mut step = || -> io::Result<()> {
        let path = dir.join(random.name());
        match random.below(5) {
            0 if path.is_dir() => fs::remove_dir_all(path),
            0 | 1 if path.is_file() => fs::remove_file(path),
            2 if path.is_file() => File::options()
                .write(true)
                .open(path)?
                .set_len(random.below(300_000)),
            3 if !path.exists() => {
                fs::create_dir(&path)?;
                (0..20).try_for_each(|i| File::create(path.join(format!("{i}"))).map(drop))
            }
            _ if path.is_dir() => Ok(()),
            _ => fs::write(path, random.bytes()),
        }
    };
    loop {
        if let Err(error) = step() {
            return error;
        }
    }
}

/// Lets all writers work until some steps are acknowledged and for a short time more, kills the server, and detaches
/// the dead mount.
fn round(mount: SteadMount, writers: &mut [Writer], random: &mut Random, done: &AtomicU64) {
    let root: PathBuf = mount.root().to_owned();
    let killed = AtomicBool::new(false);
    let enough = done.load(Ordering::Relaxed) + 1 + random.below(2 * STEPS);
    let pause = Duration::from_micros(random.below(5000));
    let noise_seed = random.below(u64::MAX);
    let end = |error: io::Error, who: &str| {
        assert!(
            killed.load(Ordering::SeqCst),
            "{who} before the kill: {error}"
        );
    };
    std::thread::scope(|scope| {
        for writer in writers {
            let (root, end) = (&root, &end);
            scope.spawn(move || {
                let error = writer.work(root, done);
                end(error, &writer.name);
            });
        }
        scope.spawn(|| end(churn(&root, &mut Random(noise_seed)), "churn"));
        let begin = Instant::now();
        while done.load(Ordering::Relaxed) < enough && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(pause);
        killed.store(true, Ordering::SeqCst);
        mount.signal(Signal::KILL);
    });
    // All writers have stopped, so none writes to the folder below the mount.
    mount.kill();
    let done = done.load(Ordering::Relaxed);
    assert!(done >= enough, "{done} of {enough} steps in {PATIENCE:?}");
}

/// A volume under test and its judge.
trait Judged {
    fn image(&self) -> &Image;
    /// After an unmount.
    fn check_clean(&self);
    /// After a kill: the judge's own recovery finds a sound volume, too.
    fn check_killed(&self, scratch: &Scratch);
}

struct OfExt4(Image);

impl Judged for OfExt4 {
    fn image(&self) -> &Image {
        &self.0
    }

    fn check_clean(&self) {
        self.0.check_clean();
    }

    fn check_killed(&self, scratch: &Scratch) {
        self.0.copy(scratch, "copy.img").replay_by_e2fsck();
    }
}

/// With multiple-mount protection, whose block shows a node that will not come back.
struct OfProtected(Image);

impl Judged for OfProtected {
    fn image(&self) -> &Image {
        &self.0
    }

    fn check_clean(&self) {
        self.0.check_clean();
    }

    fn check_killed(&self, _: &Scratch) {
        let path = self.0.path();
        let args = ["-f", "-E", "clear_mmp", path.to_str().unwrap()];
        succeed("tune2fs", args);
    }
}

struct OfF2fs(Image);

impl Judged for OfF2fs {
    fn image(&self) -> &Image {
        &self.0
    }

    fn check_clean(&self) {
        f2fs::check_clean(self.0.path(), "after the kill");
    }

    fn check_killed(&self, _: &Scratch) {
        // fsck.f2fs does not roll forward: the last checkpoint must be consistent.
        self.check_clean();
    }
}

/// A fault point, the thread that reaches it, the mount's options, and the work that makes it do so.
type Fault = (&'static str, &'static str, &'static str, fn(&Path));

/// Ignores errors, which are expected once the server has exited.
fn ignore_error<T>(_: io::Result<T>) {}

fn rename(root: &Path) {
    ignore_error(fs::rename(root.join("a/moves"), root.join("b/moved")));
}

fn change(root: &Path) {
    ignore_error(fs::write(root.join("a/more"), [1; 100_000]));
    std::thread::sleep(Duration::from_millis(50));
}

fn sync_folders(root: &Path) {
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let folder = root.join(name);
            scope.spawn(move || {
                for number in 0..10 {
                    ignore_error(File::create(folder.join(format!("{number}"))));
                    ignore_error(File::open(&folder).and_then(|folder| folder.sync_all()));
                }
            });
        }
    });
}

fn write_at_once(root: &Path) {
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let path = root.join(name).join("large");
            scope.spawn(move || {
                ignore_error(fs::write(&path, vec![1; 4 << 20]));
                ignore_error(File::open(&path).and_then(|file| file.sync_all()));
            });
        }
    });
}

fn clean_urgently(root: &Path) {
    ignore_error(fs::write(root.join(".steadfs/f2fs/gc_urgent"), "1"));
    change(root);
}

fn free_blocks(root: &Path) {
    write_at_once(root);
    ignore_error(fs::remove_file(root.join("a/large")));
    sync_folders(root);
}

/// The server panics at a fault point: it exits at once and logs the cause, callers and `steadfs umount` do not wait,
/// and the volume is as after a power cut.
fn end_at(scratch: &Scratch, volume: &dyn Judged, (point, thread, options, provoke): Fault) {
    const ENOTCONN: i32 = 107;
    let image = volume.image();
    let (mount, trigger) = SteadMount::with_fault(scratch, image.path(), options, point);
    let root = mount.root().to_owned();
    for name in ["a", "b", "c", "d"] {
        ignore_error(fs::create_dir(root.join(name)));
    }
    fs::write(root.join("a/moves"), point).unwrap();
    ignore_error(fs::remove_file(root.join("b/moved")));
    assert!(steadfs(["sync".as_ref(), root.as_os_str()]).code() == 0);
    File::create(&trigger).unwrap();
    let mut probe = 0;
    until(point, || {
        provoke(&root);
        // A new name each time, because the kernel caches negative entries.
        probe += 1;
        let gone = fs::metadata(root.join(format!("probe{probe}")));
        let gone = gone.map_err(|error| error.raw_os_error());
        matches!(gone, Err(Some(ENOTCONN)))
    });
    let (code, output) = mount.wait_with_log();
    assert_eq!(code, 2, "{point}: {output}");
    let expected = [
        "the server was ended by a signal".to_owned(),
        format!("{} on {}", image.path().display(), root.display()),
        format!("internal error: thread '{thread}"),
        format!("fault point {point}"),
    ];
    for words in &expected {
        assert!(output.contains(words), "{point}: no {words:?} in {output}");
    }
    let unmounted = steadfs(["umount".as_ref(), root.as_os_str()]);
    assert_eq!(unmounted.code(), 0, "{point}: {}", unmounted.err);
    assert!(
        unmounted.err.contains("server had ended"),
        "{}",
        unmounted.err
    );
    volume.check_killed(scratch);
    let mount = SteadMount::new(scratch, image.path(), "");
    let names = [mount.join("a/moves"), mount.join("b/moved")].map(|path| path.exists());
    assert_eq!(
        names,
        [true, false],
        "{point}: nothing of the rename is there"
    );
    mount.unmount();
    volume.check_clean();
}

#[test]
fn a_panic_in_any_thread_ends_a_server_of_ext4() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(
        &scratch,
        "panic.img",
        64 << 20,
        &["-t", "ext4", "-J", "size=4"],
    );
    let volume = OfExt4(image);
    let faults: [Fault; 5] = [
        ("rename", "", "", rename),
        ("jbd2.commit", "jbd2", "commit=1", change),
        ("jbd2.reclaim", "jbd2-reclaim", "", change),
        ("flusher", "flusher", "", change),
        ("io", "steadfs-io", "", write_at_once),
    ];
    for fault in faults {
        end_at(&scratch, &volume, fault);
    }
}

/// A node that panics is one that has crashed: its lock is cleared here, as waiting for it takes 22 s.
#[test]
fn a_panic_of_mount_protection_ends_a_server_of_ext4() {
    let scratch = Scratch::new();
    let args = ["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"];
    let image = Image::mke2fs(&scratch, "panic.img", 64 << 20, &args);
    let fault = ("mmp", "mmp", "", change as fn(&Path));
    end_at(&scratch, &OfProtected(image), fault);
}

#[test]
fn a_panic_in_any_thread_ends_a_server_of_f2fs() {
    let scratch = Scratch::new();
    let volume = OfF2fs(f2fs::mkfs(&scratch, "panic.img", 100 << 20, ""));
    let faults: [Fault; 5] = [
        ("rename", "", "", rename),
        ("flusher", "flusher", "", change),
        ("f2fs.ckpt", "f2fs_ckpt", "checkpoint_merge", sync_folders),
        ("f2fs.gc", "f2fs_gc", "background_gc=on", clean_urgently),
        ("f2fs.discard", "f2fs_discard", "discard", free_blocks),
    ];
    for fault in faults {
        end_at(&scratch, &volume, fault);
    }
}

/// Commands that write an image have no mount: they abort as well, and the volume is as after a power cut.
#[test]
fn a_panic_ends_a_command_that_writes_an_image() {
    let scratch = Scratch::new();
    let ext4 = OfExt4(Image::mke2fs(
        &scratch,
        "ext4.img",
        64 << 20,
        &["-t", "ext4"],
    ));
    let f2fs = OfF2fs(f2fs::mkfs(&scratch, "f2fs.img", 100 << 20, ""));
    let file = scratch.join("file");
    fs::write(&file, [1; 100_000]).unwrap();
    let volumes: [&dyn Judged; 2] = [&ext4, &f2fs];
    for volume in volumes {
        let image = volume.image().path();
        // The panic is in the process that reads the volume, which is the command itself without the sandbox.
        for (sandbox, ended) in [("on", (Some(1), None)), ("off", (None, Some(6)))] {
            let mut command = std::process::Command::new(program());
            command.arg("cp").arg(&file);
            command.arg(format!("{}:/", image.display()));
            command.env(FAULT_VARIABLE, format!("close@{}", file.display()));
            command.env("STEADFS_SANDBOX", sandbox);
            let output = command.output().unwrap();
            let (status, words) = (output.status, String::from_utf8_lossy(&output.stderr));
            assert_eq!((status.code(), status.signal()), ended, "{words}");
            let mut reports = vec!["internal error: thread 'main' panicked"];
            if sandbox == "on" {
                reports.push("was ended by signal 6");
            }
            for report in reports {
                assert!(words.contains(report), "{words}");
            }
            volume.check_killed(&scratch);
            SteadMount::new(&scratch, image, "").unmount();
            volume.check_clean();
            fs::remove_file(SteadMount::new(&scratch, image, "").join("file")).unwrap();
        }
    }
}

#[test]
fn what_was_acknowledged_survives_a_hundred_kills() {
    let scratch = Scratch::new();
    let args = ["-t", "ext4", "-J", "size=4"];
    let image = Image::mke2fs(&scratch, "kill.img", 64 << 20, &args);
    survive(&scratch, &OfExt4(image));
}

#[test]
fn f2fs_survives_a_hundred_kills() {
    let scratch = Scratch::new();
    let image = Image::empty(&scratch, "kill.img", 100 << 20);
    let features = "extra_attr,inode_checksum,inode_crtime";
    let args = ["-q", "-f", "-O", features, image.path().to_str().unwrap()];
    succeed("mkfs.f2fs", args);
    survive(&scratch, &OfF2fs(image));
}

fn survive(scratch: &Scratch, volume: &dyn Judged) {
    let image = volume.image();
    let mut writers: Vec<Writer> = (0..WRITERS).map(Writer::new).collect();
    let mut random = Random(2);
    let done = AtomicU64::new(0);
    for number in 0..ROUNDS {
        let options = ["fuse_transport=uring", "fuse_transport=dev"][usize::from(number % 2 == 1)];
        let mut mount = SteadMount::new(scratch, image.path(), options);
        if number == 0 {
            fs::create_dir(mount.join("churn")).unwrap();
            for writer in &writers {
                fs::create_dir(mount.join(&writer.name)).unwrap();
            }
            File::open(mount.root()).unwrap().sync_all().unwrap();
        }
        for writer in &mut writers {
            writer.compare(mount.root(), number);
        }
        if number % 10 == 9 {
            mount.unmount();
            volume.check_clean();
            mount = SteadMount::new(scratch, image.path(), options);
        }
        round(mount, &mut writers, &mut random, &done);
        if number % 10 == 4 {
            volume.check_killed(scratch);
        }
    }
    let mount = SteadMount::new(scratch, image.path(), "");
    for writer in &mut writers {
        writer.compare(mount.root(), ROUNDS);
    }
    mount.unmount();
    volume.check_clean();
    println!("{} steps were acknowledged", done.into_inner());
}
