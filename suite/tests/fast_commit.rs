//! Fast commits of the running kernel, replayed by us: after a power cut at an fsync the volume has the kernel's tree, and
//! e2fsck finds nothing.
//!
//! The kernel makes the images and reads none of them: the replay of Linux 6.18 stops the whole machine on some.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, fallocate, linkat, mknodat,
};
use steadfs::{Options, Volume};
use steadfs_suite::generate::Numbers;
use steadfs_suite::tree::set_xattr;
use steadfs_suite::{Compare, Image, KernelMount, Scratch, Tree, succeed};

/// Seeds for each kind of volume; `STEADFS_FAST_COMMIT_SEEDS` runs more.
const SEEDS: u64 = 2;
/// Power cuts of one run.
const CUTS: u32 = 3;

const KINDS: &[&[&str]] = &[
    &["-t", "ext4", "-b", "4096", "-O", "fast_commit"],
    &["-t", "ext4", "-b", "1024", "-O", "fast_commit,orphan_file"],
    &[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "fast_commit,^metadata_csum,^64bit",
        "-I",
        "128",
    ],
    &[
        "-t",
        "ext4",
        "-b",
        "2048",
        "-O",
        "fast_commit,^dir_index",
        "-N",
        "8192",
    ],
];

/// What is kept over a power cut. Fast commits do not record the times of directories; the kernel reports cached pages of
/// unwritten extents as data.
const KEPT: Compare = Compare {
    atime: false,
    ctime: false,
    btime: true,
    holes: false,
    dir_mtime: false,
    dir_nlink: true,
};

/// Changes of a mounted volume.
struct Work {
    top: PathBuf,
    numbers: Numbers,
    /// Files without a name.
    open: Vec<File>,
}

impl Work {
    fn path(&mut self) -> PathBuf {
        let dir = ["", "d0", "d1", "d2", "d0/s", "big"][self.numbers.below(6) as usize];
        let n = self.numbers.below(12);
        match dir {
            // Names of different lengths, so that leaves of the index split.
            "big" => {
                let len = 1 + self.numbers.below(200) as usize;
                self.top.join("big").join(format!("{n}{}", "x".repeat(len)))
            }
            _ => self.top.join(dir).join(format!("f{n}")),
        }
    }

    fn write(&mut self, path: &Path) {
        let Ok(file) = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
        else {
            return;
        };
        if !file.metadata().unwrap().is_file() {
            return;
        }
        let len = 1 + self.numbers.below(40_000) as usize;
        let bytes = self.numbers.bytes(len);
        file.write_all_at(&bytes, self.numbers.below(300_000))
            .unwrap();
        file.sync_all().unwrap();
    }

    /// One change; most fail sometimes, because names exist or do not.
    fn step(&mut self) {
        let (path, other) = (self.path(), self.path());
        let is_file = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
        match self.numbers.below(22) {
            0..=4 => self.write(&path),
            5 => drop(File::create_new(&path)),
            6..=7 => drop(fs::remove_file(&path)),
            8 => drop(fs::rename(&path, &other).or_else(|_| fs::remove_dir(&path))),
            9 => drop(fs::hard_link(&path, &other)),
            10 => {
                let dir = path.with_file_name("new");
                let _ = fs::create_dir(&dir);
                drop(File::create(dir.join("inside")));
            }
            11 => {
                let dir = path.with_file_name("new");
                let _ = fs::remove_file(dir.join("inside"));
                let _ = fs::remove_dir(dir);
            }
            12 => drop(symlink(
                "x".repeat(1 + self.numbers.below(58) as usize),
                &path,
            )),
            13 => {
                let kind =
                    [FileType::Fifo, FileType::CharacterDevice][self.numbers.below(2) as usize];
                let _ = mknodat(CWD, &path, kind, Mode::from_raw_mode(0o640), 0x0123_0045);
            }
            14 if is_file => {
                let mode = 0o600 + self.numbers.below(0o100) as u32;
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
                lchown(&path, Some(self.numbers.below(70_000) as u32), None).unwrap();
            }
            15 if is_file => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(self.numbers.below(300_000)).unwrap();
                file.sync_all().unwrap();
            }
            16 if is_file => self.allocate(&path),
            17 => self.unnamed(&other),
            18 if is_file => {
                self.open.push(File::open(&path).unwrap());
                fs::remove_file(&path).unwrap();
            }
            19 => self.open.truncate(self.open.len() / 2),
            20 if is_file && self.numbers.below(4) == 0 => {
                set_xattr(&path, "user.test", &self.numbers.bytes(20));
            }
            _ => drop(File::create(
                self.top
                    .join("big")
                    .join(format!("n{}", self.numbers.number())),
            )),
        }
    }

    /// Allocates or frees a range.
    fn allocate(&mut self, path: &Path) {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let (at, len) = (self.numbers.below(300_000), 1 + self.numbers.below(100_000));
        let how = [
            FallocateFlags::empty(),
            FallocateFlags::KEEP_SIZE,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        ];
        fallocate(&file, how[self.numbers.below(3) as usize], at, len).unwrap();
        file.sync_all().unwrap();
    }

    /// A file that is made without a name and gets one.
    fn unnamed(&mut self, name: &Path) {
        let flags = OFlags::TMPFILE | OFlags::WRONLY;
        let file = rustix::fs::open(&self.top, flags, Mode::from_raw_mode(0o600)).unwrap();
        let mut file = File::from(file);
        file.write_all(&self.numbers.bytes(9000)).unwrap();
        file.sync_all().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let _ = linkat(CWD, path, CWD, name, AtFlags::SYMLINK_FOLLOW);
    }

    /// The last fsync before a power cut.
    fn fsync(&mut self) {
        let mut last = File::create(self.top.join("last")).unwrap();
        last.write_all(&self.numbers.bytes(100)).unwrap();
        last.sync_all().unwrap();
    }
}

/// Power cuts: the image, and the kernel's tree at that time.
fn cuts(scratch: &Scratch, args: &[&str], seed: u64) -> Vec<(Image, Tree)> {
    let image = Image::mke2fs(scratch, &format!("k{seed}.img"), 96 << 20, args);
    let mount = KernelMount::new(scratch, image.path(), "noatime,commit=300");
    for dir in ["d0", "d1", "d2", "d0/s", "big"] {
        fs::create_dir(mount.join(dir)).unwrap();
    }
    for n in 0..60 {
        fs::write(mount.join(&format!("big/{n}{}", "y".repeat(150))), b"").unwrap();
    }
    let mut work = Work {
        top: mount.root().to_path_buf(),
        numbers: Numbers::new(seed),
        open: Vec::new(),
    };
    let mut found = Vec::new();
    for n in 0..CUTS {
        for _ in 0..work.numbers.below(60) {
            work.step();
        }
        // A whole commit, which fast commits follow.
        succeed("sync", ["-f".as_ref(), mount.root().as_os_str()]);
        for _ in 0..1 + work.numbers.below(80) {
            work.step();
        }
        work.fsync();
        let copy = image.copy(scratch, &format!("cut{seed}-{n}.img"));
        found.push((copy, Tree::of(mount.root())));
    }
    drop(work);
    mount.unmount();
    found
}

fn read_by_library(image: &Path, options: &str) -> (Tree, u64) {
    let volume = Volume::open_with(image, &Options::parse(options).unwrap()).unwrap();
    let tree = Tree::of_volume(&*volume.fs());
    let fast_commits = volume.report().replayed_fast_commits;
    volume.close().unwrap();
    (tree, fast_commits)
}

fn judge(image: &Image, kernel: &Tree, what: &str) -> u64 {
    assert!(image.needs_recovery(), "{what}");
    let before = fs::read(image.path()).unwrap();
    let (in_memory, _) = read_by_library(image.path(), "ro");
    kernel.assert_same(
        &in_memory,
        KEPT,
        &format!("{what}: kernel, and we in memory"),
    );
    let checked = steadfs::check(image.path(), &Options::default(), &mut |_| ()).unwrap();
    assert!(checked.is_clean(), "{what}: {:?}", checked.issues());
    assert!(
        fs::read(image.path()).unwrap() == before,
        "a volume that was only read was written"
    );

    let (ours, fast_commits) = read_by_library(image.path(), "rw,noatime");
    kernel.assert_same(&ours, KEPT, &format!("{what}: kernel and we"));
    image.check_clean();
    let (again, _) = read_by_library(image.path(), "ro");
    ours.assert_same(&again, Compare::ALL, &format!("{what}: mounted again"));
    fast_commits
}

#[test]
fn fast_commits_of_the_kernel_are_replayed() {
    let seeds = std::env::var("STEADFS_FAST_COMMIT_SEEDS");
    let seeds = seeds.map_or(SEEDS, |n| n.parse().unwrap());
    let mut fast_commits = 0;
    for args in KINDS {
        for seed in 0..seeds {
            let scratch = Scratch::new();
            for (n, (image, kernel)) in cuts(&scratch, args, seed).iter().enumerate() {
                let what = format!("{args:?}, seed {seed}, power cut {n}");
                fast_commits += judge(image, kernel, &what);
            }
        }
    }
    println!("{fast_commits} fast commits replayed");
    assert!(
        fast_commits > 10 * seeds,
        "the kernel made hardly any fast commit"
    );
}
