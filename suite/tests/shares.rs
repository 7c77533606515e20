//! What the I/O scheduler promises, on real mounts, between real processes in real cgroups, on a device
//! of known speed (`device_model=`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use steadfs_rt::{now, sleep};
use steadfs_suite::{Image, Scratch, SteadMount, steadfs};

const MIB: u64 = 1 << 20;
/// The machine may be busy with something else: a promise is kept if one of these tries shows it.
const TRIES: usize = 3;

/// A cgroup of this test's own.
struct Group {
    folder: PathBuf,
    /// As the server sees it.
    path: String,
    /// What to tell the server where the group has no weight file.
    option: String,
}

impl Group {
    /// In the blkio hierarchy of version 1 where that is mounted, else in version 2's.
    fn new(name: &str, weight: u32) -> Self {
        let name = format!("steadfs-{name}-{}", std::process::id());
        let roots = [
            "/sys/fs/cgroup/blkio",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup",
        ];
        let is_group = |root: &&&str| Path::new(root).join("cgroup.procs").exists();
        let root = roots.iter().find(is_group).expect("cgroups are mounted");
        let folder = Path::new(root).join(&name);
        fs::create_dir(&folder).expect("root can make cgroups");
        let files = ["blkio.bfq.weight", "io.bfq.weight", "blkio.weight"];
        let told = files.iter().any(|file| {
            folder.join(file).exists() && fs::write(folder.join(file), weight.to_string()).is_ok()
        });
        let option = match told {
            true => String::new(),
            false => {
                eprintln!("{name} has no weight file: the server is told by cgroup_weight=");
                format!(",cgroup_weight=/{name}:{weight}")
            }
        };
        Self {
            folder,
            path: format!("/{name}"),
            option,
        }
    }

    fn set_weight(&self, weight: u32, mount: &SteadMount) {
        let files = ["blkio.bfq.weight", "io.bfq.weight", "blkio.weight"];
        let file = files.iter().find(|file| self.folder.join(file).exists());
        match file {
            Some(file) => fs::write(self.folder.join(file), weight.to_string()).unwrap(),
            None => {
                let list = format!("cgroup_weight={}:{weight}", self.path);
                remount(mount, &list);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may still be on its way out.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            sleep(Duration::from_millis(20));
        }
    }
}

/// A process that is ended with the test.
struct Helper(Child);

impl Helper {
    fn shell(script: &str) -> Self {
        let child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.0.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

fn remount(mount: &SteadMount, list: &str) {
    let said = steadfs([
        "remount".as_ref(),
        mount.root().as_os_str(),
        "-o".as_ref(),
        list.as_ref(),
    ]);
    said.expect(0);
}

fn volume(scratch: &Scratch) -> Image {
    Image::mke2fs(scratch, "a.img", 512 * MIB, &["-t", "ext4"])
}

/// Bytes that a group was served so far.
fn served(mount: &SteadMount, group: &Group) -> u64 {
    let text = fs::read_to_string(mount.join(".steadfs/io/queue")).unwrap();
    let number = text.lines().find_map(|line| {
        let (number, rest) = line.strip_prefix("group ")?.split_once(" is ")?;
        rest.starts_with(&format!("{},", group.path))
            .then_some(number)
    });
    let number = number.unwrap_or_else(|| panic!("{} is not in {text}", group.path));
    let line = text.lines().find(|line| {
        line.starts_with(&format!("group {number} weight")) && line.ends_with("bytes served")
    });
    let words: Vec<&str> = line.unwrap().split(' ').collect();
    words[words.len() - 3].parse().unwrap()
}

/// How many times as much the first group gets as the second.
fn ratio(mount: &SteadMount, groups: &[Group; 2], time: Duration) -> f64 {
    let before = [0, 1].map(|n| served(mount, &groups[n]));
    sleep(time);
    let after = [0, 1].map(|n| served(mount, &groups[n]));
    (after[0] - before[0]) as f64 / (after[1] - before[1]).max(1) as f64
}

#[test]
fn groups_share_the_device_by_their_weights() {
    let scratch = Scratch::new();
    let image = volume(&scratch);
    let groups = [Group::new("heavy", 100), Group::new("light", 20)];
    let options = format!(
        "io_scheduler=fair,device_model=20M{}{}",
        groups[0].option, groups[1].option
    );
    let mount = SteadMount::new(&scratch, image.path(), &options);
    let streams = [0, 1].map(|n| {
        let procs = groups[n].folder.join("cgroup.procs");
        let file = mount.join(&format!("stream{n}"));
        Helper::shell(&format!(
            "echo $$ > {} && exec dd if=/dev/zero of={} bs=2M count=100000 oflag=dsync",
            procs.display(),
            file.display()
        ))
    });
    sleep(Duration::from_secs(2));
    let mut seen = Vec::new();
    let kept = (0..TRIES).any(|_| {
        let ratio = ratio(&mount, &groups, Duration::from_secs(4));
        seen.push(ratio);
        (4.5..=5.5).contains(&ratio)
    });
    assert!(kept, "5 to 1 within a tenth: {seen:?}");
    // A changed weight is followed within a second.
    groups[1].set_weight(100, &mount);
    sleep(Duration::from_secs(1));
    let mut seen = Vec::new();
    let kept = (0..TRIES).any(|_| {
        let ratio = ratio(&mount, &groups, Duration::from_secs(2));
        seen.push(ratio);
        (0.75..=1.33).contains(&ratio)
    });
    assert!(kept, "one to one: {seen:?}");
    drop(streams);
    mount.unmount();
}

/// How long each of `rounds` appends of 4 KiB takes to become durable, sorted. Between append and fsync
/// there is time for background write-back to take the block.
fn fsyncs(file: &mut File, rounds: usize) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            file.write_all(&[7; 4096]).unwrap();
            sleep(Duration::from_millis(250));
            let start = now();
            file.sync_all().unwrap();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times
}

#[test]
fn a_boosted_fsync_does_not_wait_for_a_stream() {
    let scratch = Scratch::new();
    let image = volume(&scratch);
    let options = "io_scheduler=fair,device_model=10M,cache_size=32M";
    let mount = SteadMount::new(&scratch, image.path(), options);
    let stream = mount.join("stream");
    let writer = Helper::shell(&format!(
        "while :; do for n in 0 1 2 3 4 5 6 7; do dd if=/dev/zero of={}$n bs=256k count=64 \
         conv=notrunc; done; done",
        stream.display()
    ));
    sleep(Duration::from_millis(1500));
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(mount.join("log"))
        .unwrap();
    let mut seen = Vec::new();
    let kept = (0..TRIES).any(|_| {
        let longest = ["noboost", "boost"].map(|option| {
            remount(&mount, option);
            let times = fsyncs(&mut file, 14);
            // Of so few, the longest is the 99th percentile.
            times[times.len() - 1]
        });
        seen.push(longest);
        longest[1] * 5 <= longest[0]
    });
    let stats = fs::read_to_string(mount.join(".steadfs/io/stats.json")).unwrap();
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert!(stats["boosts"]["raised"].as_u64().unwrap() > 0, "{stats}");
    assert!(kept, "without and with boost: {seen:?}");
    drop(writer);
    drop(file);
    mount.unmount();
}
