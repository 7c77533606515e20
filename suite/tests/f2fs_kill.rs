//! Servers killed under changes of names on f2fs; the kernel's roll-forward of the same image judges ours.
//!
//! A roll-forward file system does not return to a single point in time: names as of the last checkpoint appear beside
//! files that later fsyncs made durable one by one. Linux decides which names those are, so the kernel recovers a copy
//! of every image, and must find the same tree.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use steadfs::{Options, Volume};
use steadfs_suite::f2fs::{TORTURE, check_clean, mkfs};
use steadfs_suite::generate::Numbers;
use steadfs_suite::tree::content_hash;
use steadfs_suite::uml::{self, TOP, assert_same, boot, lines, without_folder_times, write_tree};
use steadfs_suite::{Scratch, SteadMount, Tree};

/// The options of each volume.
const OPTIONS: &[&str] = &[
    "fsync_mode=posix",
    "fsync_mode=strict",
    "fsync_mode=posix,nocheckpoint_merge",
    "fsync_mode=strict,active_logs=2",
];
/// Kills with each set of options.
const KILLS: u64 = 2;
const TASKS: u64 = 3;
const NAMES: u64 = 10;

/// The part that runs inside the judge; see [`uml`].
#[test]
#[ignore = "run by scripts inside User-Mode Linux"]
fn inside_the_judge() {
    uml::inside(TORTURE);
}

type Names = BTreeSet<String>;

/// Changes names in a directory of its own, until the first error.
struct Task {
    dir: String,
    numbers: Numbers,
    /// The directory's names after each change, in order; the last change may not have returned.
    history: Vec<Names>,
    /// Content that an acknowledged fsync covers and no later call has changed.
    durable: BTreeMap<String, Vec<u8>>,
}

impl Task {
    fn new(seed: u64) -> Self {
        Self {
            dir: format!("t{}", seed % TASKS),
            numbers: Numbers::new(seed),
            history: vec![Names::new()],
            durable: BTreeMap::new(),
        }
    }

    fn run(&mut self, top: &Path) -> io::Error {
        let dir = top.join(&self.dir);
        loop {
            if let Err(error) = self.step(&dir) {
                return error;
            }
        }
    }

    /// Makes the change; records it before the call, because it may take effect without returning.
    fn change(
        &mut self,
        touched: &[&String],
        names: impl FnOnce(&mut Names) -> bool,
        call: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        touched
            .iter()
            .for_each(|name| drop(self.durable.remove(*name)));
        let mut after = self.history.last().unwrap().clone();
        names(&mut after);
        self.history.push(after);
        call()
    }

    fn step(&mut self, dir: &Path) -> io::Result<()> {
        let name = format!("n{}", self.numbers.below(NAMES));
        let other = format!("n{}", self.numbers.below(NAMES));
        let (path, to) = (dir.join(&name), dir.join(&other));
        let is_there = self.history.last().unwrap().contains(&name);
        match self.numbers.below(28) {
            0..9 if is_there => {
                let gone = name.clone();
                self.change(
                    &[&name],
                    |names| names.remove(&gone),
                    || fs::remove_file(path),
                )
            }
            9 if is_there && name != other => {
                let moved = |names: &mut Names| {
                    names.remove(&name);
                    names.insert(other.clone())
                };
                self.change(&[&name, &other], moved, || fs::rename(path, to))
            }
            10 if is_there && !self.history.last().unwrap().contains(&other) => {
                let added = other.clone();
                // The other name belongs to the same file, whose content the fsync of either covers.
                self.change(
                    &[&name, &other],
                    |names| names.insert(added),
                    || fs::hard_link(path, to),
                )
            }
            11 => {
                File::open(dir)?.sync_all()?;
                self.durable.clear();
                Ok(())
            }
            _ => self.write_durably(&path, name),
        }
    }

    /// Writes a file; every second time calls fsync for this file only.
    fn write_durably(&mut self, path: &Path, name: String) -> io::Result<()> {
        let len = usize::try_from(self.numbers.below(20_000)).unwrap();
        let bytes = self.numbers.bytes(len);
        let made = name.clone();
        let durably = self.numbers.below(2) == 0;
        // The other names of a link get the content, too.
        self.durable.clear();
        self.change(
            &[],
            |names| names.insert(made),
            || {
                fs::write(path, &bytes)?;
                match durably {
                    true => File::open(path)?.sync_all(),
                    false => Ok(()),
                }
            },
        )?;
        if durably {
            self.durable.insert(name, bytes);
        }
        Ok(())
    }
}

/// Lets tasks change names for a while, kills the server, and returns the tasks' records.
fn kill(scratch: &Scratch, image: &Path, options: &str, seed: u64) -> Vec<Task> {
    let mount = SteadMount::new(scratch, image, options);
    let mut tasks: Vec<Task> = (0..TASKS).map(|n| Task::new(seed * TASKS + n)).collect();
    for task in &tasks {
        fs::create_dir(mount.join(&task.dir)).unwrap();
    }
    File::open(mount.root()).unwrap().sync_all().unwrap();
    std::thread::scope(|scope| {
        for task in &mut tasks {
            scope.spawn(|| task.run(mount.root()));
        }
        std::thread::sleep(Duration::from_millis(200 + 37 * (seed % 10)));
        mount.signal(Signal::KILL);
    });
    mount.kill();
    tasks
}

/// The tree that our mount recovers.
fn recovered_by_us(image: &Path, tasks: &[Task]) -> Vec<String> {
    let volume = Volume::open_with(image, &Options::parse("noatime").unwrap()).unwrap();
    let tree = Tree::of_volume(&*volume.fs());
    for task in tasks {
        for (name, bytes) in &task.durable {
            let path = format!("{}/{name}", task.dir).into_bytes();
            let node = tree.nodes.get(&path);
            let found = node.and_then(|node| Some((node.size, node.content?)));
            let wanted = (bytes.len() as u64, content_hash(bytes));
            assert_eq!(found, Some(wanted), "{path:?}");
        }
    }
    volume.close().unwrap();
    without_folder_times(&lines(&tree))
}

/// Whether a directory shows names of different points in time together.
fn is_mixed(ours: &[String], task: &Task) -> bool {
    let prefix = format!("{}/", task.dir);
    let names = ours.iter().filter_map(|line| line.strip_prefix(&prefix));
    let names: Names = names.map(|name| name[..2].to_owned()).collect();
    !task.history.contains(&names)
}

#[test]
fn the_kernel_rolls_a_killed_volume_forward_to_the_same_tree() {
    let scratch = Scratch::new();
    let mut volumes = Vec::new();
    for seed in 0..KILLS * OPTIONS.len() as u64 {
        let options = OPTIONS[usize::try_from(seed).unwrap() % OPTIONS.len()];
        let image = mkfs(
            &scratch,
            &format!("{seed}.img"),
            128 << 20,
            "-O extra_attr,inode_crtime",
        );
        let tasks = kill(&scratch, image.path(), options, seed);
        let copy = image.copy(&scratch, &format!("{seed}-kernel.img"));
        let ours = recovered_by_us(image.path(), &tasks);
        let mixed = tasks.iter().filter(|task| is_mixed(&ours, task)).count();
        let steps: usize = tasks.iter().map(|task| task.history.len()).sum();
        println!("{options}: {steps} changes, {mixed} directories with names of different moments");
        check_clean(image.path(), options);
        volumes.push((options, copy, ours));
    }
    let list = |n: usize| scratch.join(&format!("list{n}"));
    // A few disks at a time.
    for (part, some) in volumes.chunks(8).enumerate() {
        let mut script = String::new();
        for (n, disk) in (0..some.len()).zip('a'..) {
            script += &format!(
                "echo disk {disk}\nmount -t f2fs -o noatime /dev/ubd{disk} {TOP} || {{ dmesg | grep -i f2fs; exit 1; }}\numount {TOP}\n\
                 mount -t f2fs -o ro /dev/ubd{disk} {TOP}\n{}\numount {TOP}\n",
                write_tree(&list(8 * part + n))
            );
        }
        let paths: Vec<&Path> = some.iter().map(|(_, copy, _)| copy.path()).collect();
        boot(&scratch, &paths, &script);
    }
    for (n, (options, _, ours)) in volumes.iter().enumerate() {
        let kernel = fs::read_to_string(list(n)).unwrap();
        let kernel: Vec<String> = kernel.lines().map(str::to_owned).collect();
        let what = format!("kill {n}, {options}: rolled forward by us and by the kernel");
        assert_same(ours, &without_folder_times(&kernel), &what);
    }
}
