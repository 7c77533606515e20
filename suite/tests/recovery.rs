//! Journals left behind: those of the kernel and of debugfs replayed by us, ours by e2fsck and the kernel; and servers
//! killed under load.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use steadfs::{Options, Volume};
use steadfs_suite::command::PATIENCE;
use steadfs_suite::generate::{Numbers, plain};
use steadfs_suite::stead::steadfs;
use steadfs_suite::{Compare, Image, KernelMount, LoopDevice, Scratch, SteadMount, Tree, succeed};

#[path = "recovery/external.rs"]
mod external;

const MIB: u64 = 1 << 20;

/// Volumes whose journals differ in the format of tags and checksums.
const KINDS: &[&[&str]] = &[
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"],
    &["-t", "ext4", "-b", "4096", "-O", "^64bit,^metadata_csum"],
    &["-t", "ext3", "-b", "2048"],
    &[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "orphan_file",
        "-J",
        "size=4",
    ],
];

fn read_by_library(image: &Path) -> Tree {
    let volume = Volume::open_with(image, &Options::parse("ro").unwrap()).unwrap();
    let tree = Tree::of_volume(&*volume.fs());
    volume.close().unwrap();
    tree
}

fn read_by_kernel(scratch: &Scratch, image: &Image) -> Tree {
    let mount = KernelMount::new(scratch, image.path(), "ro");
    let tree = Tree::of(mount.root());
    mount.unmount();
    tree
}

/// Keeps a journal busy: files grow, shrink, are renamed and removed, with an occasional fsync.
fn work(top: &Path, seed: u64, rounds: u64) {
    let mut numbers = Numbers::new(seed);
    fs::create_dir_all(top.join("a/b")).unwrap();
    for n in 0..rounds {
        let path = top.join(format!("a/b/f{}", numbers.below(40)));
        match numbers.below(6) {
            0 => drop(fs::remove_file(&path)),
            1 => drop(fs::rename(&path, top.join(format!("a/moved{}", n % 7)))),
            2 => {
                let file = File::options()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(&path);
                file.unwrap().set_len(numbers.below(100_000)).unwrap();
            }
            3 => drop(fs::create_dir(top.join(format!("d{n}")))),
            _ => {
                let mut file = File::options()
                    .append(true)
                    .create(true)
                    .open(&path)
                    .unwrap();
                let len = usize::try_from(numbers.below(30_000)).unwrap();
                file.write_all(&numbers.bytes(len)).unwrap();
                if numbers.below(4) == 0 {
                    file.sync_all().unwrap();
                }
            }
        }
    }
}

/// Copies an image while it is mounted: the result of a power cut with nothing in flight.
fn cut(scratch: &Scratch, image: &Image, top: &Path, name: &str) -> Image {
    succeed("sync", ["-f".as_ref(), top.as_os_str()]);
    work(top, 7, 60);
    let last = File::create(top.join("last")).unwrap();
    last.sync_all().unwrap();
    image.copy(scratch, name)
}

#[test]
fn we_replay_the_kernels_journal() {
    for args in KINDS {
        let scratch = Scratch::new();
        let image = Image::mke2fs(&scratch, "k.img", 64 << 20, args);
        let mount = KernelMount::new(&scratch, image.path(), "noatime,commit=300");
        work(mount.root(), 1, 300);
        let dirty = cut(&scratch, &image, mount.root(), "dirty.img");
        mount.unmount();
        assert!(dirty.needs_recovery(), "{args:?}");

        let by_kernel = dirty.copy(&scratch, "by-kernel.img");
        KernelMount::new(&scratch, by_kernel.path(), "").unmount();
        let by_e2fsck = dirty.copy(&scratch, "by-e2fsck.img");
        by_e2fsck.replay_by_e2fsck();
        // Replayed in memory first, as for a read-only volume.
        let before = fs::read(dirty.path()).unwrap();
        let in_memory = read_by_library(dirty.path());
        assert!(
            fs::read(dirty.path()).unwrap() == before,
            "a read-only volume was written"
        );
        SteadMount::new(&scratch, dirty.path(), "").unmount();
        dirty.check_clean();

        let ours = read_by_library(dirty.path());
        let kernel = read_by_kernel(&scratch, &by_kernel);
        let e2fsck = read_by_kernel(&scratch, &by_e2fsck);
        assert!(ours.len() > 20);
        kernel.assert_same(&ours, Compare::ALL, &format!("{args:?}: kernel and we"));
        e2fsck.assert_same(&ours, Compare::ALL, &format!("{args:?}: e2fsck and we"));
        in_memory.assert_same(&ours, Compare::ALL, &format!("{args:?}: in memory"));
    }
}

/// How debugfs opens a journal before it writes to it, and for which volumes: without checksums, or with those of each
/// version (debugfs uses the second and third for volumes with metadata checksums only, the first for the others).
const OPENED: &[(&str, &[&[&str]])] = &[
    ("journal_open", KINDS),
    (
        "journal_open -c",
        &[&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]],
    ),
    (
        "journal_open -c -v 2",
        &[&["-t", "ext4", "-b", "4096", "-O", "^64bit"]],
    ),
    ("journal_open -c -v 3", &[&["-t", "ext4", "-b", "1024"]]),
];

#[test]
fn we_replay_debugfs_journals() {
    let opened = OPENED.iter();
    for (open, args) in opened.flat_map(|(open, all)| all.iter().map(move |args| (open, args))) {
        let scratch = Scratch::new();
        let image = Image::mke2fs(&scratch, "d.img", 64 << 20, args);
        let mount = KernelMount::new(&scratch, image.path(), "");
        plain(mount.root(), 3, 50);
        mount.unmount();
        // Free blocks are written through the journal. One is revoked, and one begins with the journal's magic number,
        // which is escaped in the log.
        let content = scratch.join("block");
        fs::write(&content, vec![0x5a; 16_384]).unwrap();
        let place = content.to_str().unwrap();
        let alike = scratch.join("alike");
        let escaped = [&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 5][..], &[0xa5; 65_528]].concat();
        fs::write(&alike, &escaped).unwrap();
        let like_log = alike.to_str().unwrap();
        // debugfs includes revoked blocks in its checksum of the first version; no replay does, its own included.
        let (revoke, first_of_9001) = match *open {
            "journal_open -c" => (String::new(), 0x5a),
            _ => (format!("journal_write -r 9001 {place}\n"), 0),
        };
        let output = image.debugfs(&format!(
            "{open}\njournal_write -b 9000,9001 {place}\njournal_write -b 9002 {place}\n\
             journal_write -b 9003 {like_log}\n{revoke}journal_close\n"
        ));
        let failed = output.out.contains("will not add") || output.err.contains("invalid option");
        assert!(!failed, "{open}: {} {}", output.out, output.err);
        assert!(image.needs_recovery(), "{open}: {args:?}");
        let by_e2fsck = image.copy(&scratch, "by-e2fsck.img");
        by_e2fsck.replay_by_e2fsck();
        SteadMount::new(&scratch, image.path(), "").unmount();
        image.check_clean();
        read_by_library(by_e2fsck.path()).assert_same(
            &read_by_library(image.path()),
            Compare::ALL,
            &format!("{open}: {args:?}"),
        );
        let block = match args {
            args if args.contains(&"1024") => 1024,
            args if args.contains(&"2048") => 2048,
            _ => 4096,
        };
        let read = |image: &Image, n: usize| {
            let bytes = fs::read(image.path()).unwrap();
            bytes[n * block..(n + 1) * block].to_vec()
        };
        for n in 9000..=9003 {
            assert!(
                read(&image, n) == read(&by_e2fsck, n),
                "{open}: {args:?}: block {n}"
            );
        }
        let replayed = (read(&image, 9002)[0], read(&image, 9001)[0]);
        assert_eq!(replayed, (0x5a, first_of_9001), "{open}: {args:?}");
        assert!(read(&image, 9003) == escaped[..block], "{open}: {args:?}");
    }
}

/// Log blocks of the transactions in the log, first to last.
fn transactions(image: &Image) -> Vec<u64> {
    let output = image.debugfs("logdump").out;
    let at = |line: &str| {
        line.split_once(" at block ")?
            .1
            .split(' ')
            .next()?
            .parse()
            .ok()
    };
    let found = output
        .lines()
        .filter(|line| line.contains("Found expected sequence"));
    found.filter_map(at).collect()
}

/// The kernel's log wraps around, and a file whose content begins with the journal's magic number is written through
/// it.
#[test]
fn we_replay_a_log_that_wraps_around() {
    const MAGIC: [u8; 4] = [0xC0, 0x3B, 0x39, 0x98];
    for (args, options) in [
        (
            &["-t", "ext4", "-b", "1024", "-J", "size=1"][..],
            "data=journal",
        ),
        (
            &[
                "-t",
                "ext4",
                "-b",
                "1024",
                "-J",
                "size=1",
                "-O",
                "^metadata_csum",
            ],
            "journal_checksum,data=journal",
        ),
    ] {
        let scratch = Scratch::new();
        let image = Image::mke2fs(&scratch, "k.img", 32 * MIB, args);
        let mount = KernelMount::new(&scratch, image.path(), &format!("commit=300,{options}"));
        let goes_round = (0..200).find_map(|round| {
            work(mount.root(), round, 100);
            let mut last = File::create(mount.join("last")).unwrap();
            last.write_all(&[&MAGIC[..], &[7; 3000]].concat()).unwrap();
            last.sync_all().unwrap();
            let dirty = image.copy(&scratch, "dirty.img");
            let places = transactions(&dirty);
            (!places.is_sorted()).then_some(dirty)
        });
        mount.unmount();
        let dirty = goes_round.unwrap_or_else(|| panic!("{args:?}: no log wraps around"));
        let by_kernel = dirty.copy(&scratch, "by-kernel.img");
        KernelMount::new(&scratch, by_kernel.path(), "").unmount();
        let by_e2fsck = dirty.copy(&scratch, "by-e2fsck.img");
        by_e2fsck.replay_by_e2fsck();
        let in_memory = read_by_library(dirty.path());
        SteadMount::new(&scratch, dirty.path(), "").unmount();
        dirty.check_clean();
        let ours = read_by_library(dirty.path());
        for (who, other) in [
            ("kernel", read_by_kernel(&scratch, &by_kernel)),
            ("e2fsck", read_by_kernel(&scratch, &by_e2fsck)),
            ("in memory", in_memory),
        ] {
            other.assert_same(&ours, Compare::ALL, &format!("{args:?} {options}: {who}"));
        }
    }
}

/// Volumes whose journal is on another device: one that the kernel unmounted, and a copy taken before.
struct OutsideJournal {
    /// The journal's device, attached while the volumes are used.
    _log: LoopDevice,
    scratch: Scratch,
    clean: Image,
    dirty: Image,
    /// Contents of both.
    before: [Vec<u8>; 2],
}

impl OutsideJournal {
    fn new() -> Self {
        let scratch = Scratch::new();
        let options = ["-O", "journal_dev", "-b", "4096"];
        let log = Image::mke2fs(&scratch, "log.img", 16 * MIB, &options);
        let log = LoopDevice::attach(log.path(), false);
        let device = format!("device={}", log.path().display());
        let args = ["-t", "ext4", "-b", "4096", "-J", &device];
        let clean = Image::mke2fs(&scratch, "k.img", 64 * MIB, &args);
        KernelMount::new(&scratch, clean.path(), "").unmount();
        let mount = KernelMount::new(&scratch, clean.path(), "");
        fs::write(mount.join("file"), b"content").unwrap();
        succeed("sync", ["-f", mount.join("file").to_str().unwrap()]);
        let dirty = clean.copy(&scratch, "dirty.img");
        mount.unmount();
        let before = [&clean, &dirty].map(|image| fs::read(image.path()).unwrap());
        Self {
            _log: log,
            scratch,
            clean,
            dirty,
            before,
        }
    }

    fn check_unwritten(&self) {
        for (image, before) in [&self.clean, &self.dirty].iter().zip(&self.before) {
            assert!(fs::read(image.path()).unwrap() == *before, "it was written");
        }
    }
}

/// An external journal is not supported: a volume that needs no replay can be read.
#[test]
fn a_volume_whose_journal_is_on_another_device_is_read() {
    let volumes = OutsideJournal::new();
    let (scratch, image) = (&volumes.scratch, &volumes.clean);
    let name = image.path().to_str().unwrap();
    for options in ["ro", "ro,noload"] {
        let mount = SteadMount::new(scratch, image.path(), options);
        assert_eq!(fs::read(mount.join("file")).unwrap(), b"content");
        let output = steadfs(["remount", "-o", "rw", mount.root().to_str().unwrap()]);
        assert!(output.code() != 0, "{}", output.err);
        mount.unmount();
    }
    let root = scratch.folder("root");
    let at = root.to_str().unwrap();
    let output = steadfs(["mount", name, at]).expect(0).err;
    assert!(
        output.contains("read-only: its journal is on another device, which journal_path= names"),
        "{output}"
    );
    assert_eq!(fs::read(root.join("file")).unwrap(), b"content");
    steadfs(["umount", at]).expect(0);
    let file = format!("{name}:/file");
    for list in ["rw", "noload", "norecovery"] {
        let shown = steadfs(["cat", "-o", list, &file]).expect(0).out;
        assert_eq!(shown, "content");
    }
    steadfs(["check", name]).expect(0);
    steadfs(["inspect", name]).expect(0);
    let output = steadfs(["cp", "/etc/hostname", &format!("{name}:/")]);
    let output = output.expect(1).err;
    assert!(output.contains("journal is on another device"), "{output}");
    volumes.check_unwritten();
}

/// A volume that needs a replay from another device is read as far as it is consistent without, if that is requested.
#[test]
fn a_volume_that_needs_a_journal_on_another_device_is_refused() {
    let volumes = OutsideJournal::new();
    let (scratch, image) = (&volumes.scratch, &volumes.dirty);
    let name = image.path().to_str().unwrap();
    for options in ["", "ro"] {
        let Err((code, output)) = SteadMount::attempt(scratch, image.path(), options) else {
            panic!("it was mounted");
        };
        assert_eq!(code, 32);
        assert!(
            output.contains("on another device") && output.contains("ro,noload"),
            "{output}"
        );
    }
    let output = steadfs(["cat", &format!("{name}:/file")]).expect(1).err;
    assert!(output.contains("-o ro,noload"), "{output}");
    SteadMount::new(scratch, image.path(), "ro,noload").unmount();
    for command in ["ls", "check", "inspect"] {
        let output = steadfs([command, "-o", "noload", name]);
        assert!(
            output.code() == 0 || command == "check",
            "{command}: {}",
            output.err
        );
    }
    volumes.check_unwritten();
}

/// The kernel does not read the copy: on some such volumes its own replay stops the machine.
#[test]
fn fast_commits_on_a_volume_that_is_only_read_are_refused_with_the_remedy() {
    let scratch = Scratch::new();
    let features = "fast_commit,bigalloc";
    let image = Image::mke2fs(
        &scratch,
        "fast",
        64 * MIB,
        &["-t", "ext4", "-O", features, "-C", "65536"],
    );
    let kernel = KernelMount::new(&scratch, image.path(), "");
    for name in ["one", "two", "three"] {
        fs::write(kernel.join(name), name).unwrap();
        File::open(kernel.join(name)).unwrap().sync_all().unwrap();
    }
    let left = image.copy(&scratch, "left");
    kernel.unmount();
    for options in ["", "ro"] {
        let (code, output) = match SteadMount::attempt(&scratch, left.path(), options) {
            Ok(_) => panic!("{options}: mounted"),
            Err(refused) => refused,
        };
        assert_eq!(code, 32);
        for words in [
            "fast commit",
            "bigalloc",
            "not supported",
            "e2fsck",
            "ro,noload",
        ] {
            assert!(output.contains(words), "{words}: {output}");
        }
        assert!(!output.contains("stopped"), "{output}");
    }
    SteadMount::new(&scratch, left.path(), "ro,noload").unmount();
}

#[test]
fn e2fsck_and_the_kernel_replay_our_journal() {
    for args in KINDS {
        let scratch = Scratch::new();
        let image = Image::mke2fs(&scratch, "s.img", 64 << 20, args);
        let mount = SteadMount::new(&scratch, image.path(), "commit=300");
        work(mount.root(), 1, 300);
        fs::write(mount.join("durable"), b"yes").unwrap();
        File::open(mount.join("durable"))
            .unwrap()
            .sync_all()
            .unwrap();
        work(mount.root(), 2, 60);
        let last = File::create(mount.join("last")).unwrap();
        last.sync_all().unwrap();
        mount.kill();
        assert!(image.needs_recovery(), "{args:?}");
        let by_kernel = image.copy(&scratch, "by-kernel.img");
        KernelMount::new(&scratch, by_kernel.path(), "").unmount();
        by_kernel.check_clean();
        let by_e2fsck = image.copy(&scratch, "by-e2fsck.img");
        by_e2fsck.replay_by_e2fsck();
        SteadMount::new(&scratch, image.path(), "").unmount();
        image.check_clean();
        let ours = read_by_library(image.path());
        assert!(ours.nodes.contains_key(&b"durable"[..]) && ours.nodes.contains_key(&b"last"[..]));
        let kernel = read_by_kernel(&scratch, &by_kernel);
        kernel.assert_same(&ours, Compare::ALL, &format!("{args:?}: kernel and we"));
        let e2fsck = read_by_kernel(&scratch, &by_e2fsck);
        e2fsck.assert_same(&ours, Compare::ALL, &format!("{args:?}: e2fsck and we"));
    }
}

/// A file's acknowledged size: after an fsync the file has at least this many bytes of its series.
type Acknowledged = Mutex<BTreeMap<String, u64>>;

/// Content of a file at any length, derived from its name only.
fn series(name: &str, len: u64) -> Vec<u8> {
    let seed = name.bytes().fold(1, |a, b| a * 31 + u64::from(b));
    Numbers::new(seed).bytes(usize::try_from(len).unwrap())
}

/// Creates and extends files until the server is gone; records what was acknowledged.
fn write_until_killed(top: &Path, writer: u64, acknowledged: &Acknowledged, gone: &AtomicBool) {
    let mut numbers = Numbers::new(writer);
    let mut number = 0;
    while !gone.load(Ordering::Relaxed) {
        let name = format!("w{writer}-{number}");
        number += 1;
        let path = top.join(&name);
        let Ok(mut file) = File::create(&path) else {
            return;
        };
        let mut len = 0;
        for _ in 0..=numbers.below(3) {
            let more = 1 + numbers.below(50_000);
            let bytes = series(&name, len + more);
            let Ok(()) = file.write_all(&bytes[usize::try_from(len).unwrap()..]) else {
                return;
            };
            len += more;
            let synced = if numbers.below(2) == 0 {
                file.sync_data()
            } else {
                file.sync_all()
            };
            let Ok(()) = synced else { return };
            acknowledged.lock().unwrap().insert(name.clone(), len);
        }
        if numbers.below(5) == 0 {
            // A new name, made durable by an fsync of its directory.
            let moved = format!("m{writer}-{number}");
            // Until the fsync returns, either name is right, even if the rename did not return: another writer's fsync
            // may have made it durable. Afterwards only the new name is.
            let note = |old: &str, new: String| {
                let mut acknowledged = acknowledged.lock().unwrap();
                let len = acknowledged.remove(old).expect("it was recorded");
                acknowledged.insert(new, len);
            };
            let either = format!("{moved}|{name}");
            note(&name, either.clone());
            let Ok(()) = fs::rename(&path, top.join(&moved)) else {
                return;
            };
            let Ok(dir) = File::open(top) else { return };
            if dir.sync_all().is_err() {
                return;
            }
            note(&either, format!("{moved}={name}"));
        }
    }
}

fn kill_under_load(scratch: &Scratch, image: &Image, device: &Path, options: &str, round: u64) {
    let mount = SteadMount::new(scratch, device, options);
    let top = mount.join(&format!("round{round}"));
    fs::create_dir(&top).unwrap();
    File::open(mount.root()).unwrap().sync_all().unwrap();
    let acknowledged = Acknowledged::default();
    let gone = AtomicBool::new(false);
    let mut mount = Some(mount);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (top, acknowledged, gone) = (&top, &acknowledged, &gone);
            scope.spawn(move || write_until_killed(top, writer, acknowledged, gone));
        }
        let mut numbers = Numbers::new(round);
        let enough = 1 + usize::try_from(numbers.below(100)).unwrap();
        let begin = Instant::now();
        while acknowledged.lock().unwrap().len() < enough && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(numbers.below(5000)));
        mount.take().unwrap().kill();
        gone.store(true, Ordering::Relaxed);
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(!acknowledged.is_empty(), "nothing in {PATIENCE:?}");
    if round.is_multiple_of(5) {
        let copy = image.copy(scratch, "judged.img");
        copy.replay_by_e2fsck();
    }
    let mount = SteadMount::new(scratch, device, options);
    let top = mount.join(&format!("round{round}"));
    for (key, len) in &acknowledged {
        let (path, name) = match key.split_once('|') {
            Some((moved, name)) => {
                let there = [moved, name].map(|path| top.join(path).exists());
                assert!(there[0] != there[1], "round {round}: {key}: {there:?}");
                (if there[0] { moved } else { name }, name)
            }
            None => key.split_once('=').unwrap_or((key, key)),
        };
        let have = fs::read(top.join(path))
            .unwrap_or_else(|e| panic!("round {round}: {path} was acknowledged: {e}"));
        let len_now = have.len() as u64;
        assert!(
            len_now >= *len,
            "round {round}: {path} has {len_now} of {len} bytes"
        );
        let want = series(name, len_now);
        let differs = have.iter().zip(&want).position(|(a, b)| a != b);
        // Beyond the acknowledged size, the size may be durable before its data, as zeros.
        let first = differs.map_or(len_now, |at| at as u64);
        assert!(
            first >= *len,
            "round {round}: {path} differs at byte {first} of {len}"
        );
    }
    fs::remove_dir_all(&top).unwrap();
    mount.unmount();
    image.check_clean();
}

/// Kills of each kind; `KILLS` changes it.
fn rounds() -> u64 {
    let wanted = std::env::var("KILLS").ok().and_then(|n| n.parse().ok());
    wanted.unwrap_or(20)
}

#[test]
fn a_killed_server_loses_nothing_acknowledged_with_any_options() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "kill.img", 256 << 20, &["-t", "ext4"]);
    for round in 0..rounds() {
        let options = [
            "",
            "fuse_transport=dev",
            "io_engine=threads",
            "data=writeback",
        ];
        let options = options[usize::try_from(round % 4).unwrap()];
        kill_under_load(&scratch, &image, image.path(), options, round);
    }
}

#[test]
fn a_killed_server_of_a_block_device_loses_nothing_acknowledged() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(
        &scratch,
        "kill.img",
        128 << 20,
        &["-t", "ext4", "-b", "1024"],
    );
    let device = LoopDevice::attach(image.path(), true);
    for round in 0..rounds().div_ceil(2) {
        kill_under_load(&scratch, &image, device.path(), "", round);
    }
}
