//! What a mount shows to programs that watch it: metrics, their counters as JSON, and `steadfs top`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use steadfs_suite::command::{until, wait};
use steadfs_suite::stead::program;
use steadfs_suite::{Image, Scratch, SteadMount, steadfs};

/// Volumes with the first letters of the metrics of their format.
const KINDS: [(&str, &str); 2] = [("ext4", "steadfs_jbd2_"), ("f2fs", "steadfs_f2fs_")];

fn volume(scratch: &Scratch, kind: &str) -> Image {
    let path = scratch.join(&format!("{kind}.img"));
    let arguments = ["format", "-q", "-t", kind].map(OsStr::new);
    let arguments = arguments
        .into_iter()
        .chain([path.as_os_str(), "128M".as_ref()]);
    steadfs(arguments).expect(0);
    Image::at(path)
}

/// The samples of a mount's metrics as Prometheus' client library reads them, by name and labels but for those that
/// name the mount.
fn metrics(mount: &SteadMount, image: &Path, kind: &str) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/metrics.py");
    // The library belongs to Debian's Python.
    let mut judge = Command::new("/usr/bin/python3")
        .arg(script)
        .args([image, Path::new(kind), mount.root()])
        .stdin(Stdio::from(
            File::open(mount.join(".steadfs/metrics")).unwrap(),
        ))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let samples = serde_json::from_reader(judge.stdout.take().unwrap());
    assert!(judge.wait().unwrap().success(), "{samples:?}");
    samples.unwrap()
}

fn write_and_sync(mount: &SteadMount, name: &str, bytes: usize) {
    let mut file = File::create(mount.join(name)).unwrap();
    file.write_all(&vec![7; bytes]).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn metrics_are_those_of_prometheus_and_count() {
    let scratch = Scratch::new();
    for (kind, own) in KINDS {
        let image = volume(&scratch, kind);
        let mount = SteadMount::new(&scratch, image.path(), "");
        let metrics = || metrics(&mount, image.path(), kind);
        let before = metrics();
        write_and_sync(&mount, "one", 1 << 20);
        write_and_sync(&mount, "two", 4096);
        let after = metrics();
        let grew = |key: &str| {
            let value = |samples: &Value| samples[key].as_f64().unwrap_or(0.0);
            value(&after) - value(&before)
        };
        assert_eq!(grew("steadfs_fsync_seconds_count{}"), 2.0, "{after}");
        assert!(grew("steadfs_fsync_seconds_sum{}") > 0.0);
        assert_eq!(grew("steadfs_fsync_seconds_bucket{\"le\": \"+Inf\"}"), 2.0);
        assert_eq!(
            grew("steadfs_written_bytes_total{}"),
            f64::from((1 << 20) + 4096)
        );
        let device = "steadfs_io_bytes_total{\"operation\": \"write\"}";
        assert!(grew(device) >= f64::from(1 << 20), "{after}");
        let keys = after.as_object().unwrap().keys();
        let of_format = keys.filter(|key| key.starts_with(own)).count();
        assert!(of_format >= 10, "{kind}: {after}");
        let dirty = "steadfs_dirty_bytes{}";
        fs::write(mount.join("dirty"), vec![1; 300_000]).unwrap();
        let dirty = metrics()[dirty].as_f64().unwrap();
        assert!(dirty >= 300_000.0, "{dirty}");

        let stat = steadfs(["stat".as_ref(), "--json".as_ref(), mount.root().as_os_str()]);
        let stat: Value = serde_json::from_str(&stat.expect(0).out).unwrap();
        assert_eq!(stat["fuse"]["fsync"]["count"], 2, "{stat}");
        assert_eq!(stat["fuse"]["written_bytes"], (1 << 20) + 4096 + 300_000);
        assert!(stat["cache"]["dirty_bytes"].as_u64().unwrap() >= 300_000);
        mount.unmount();
    }
}

/// The lines that `steadfs top --json` prints about a mount.
fn top(mount: &SteadMount, arguments: &[&str]) -> Vec<Value> {
    let words = ["top", "--json"].iter().chain(arguments).map(OsStr::new);
    let out = steadfs(words.chain([mount.root().as_os_str()]))
        .expect(0)
        .out;
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn top_shows_a_mount_under_load_and_one_that_hangs() {
    let scratch = Scratch::new();
    let mount = SteadMount::new(&scratch, volume(&scratch, "ext4").path(), "");
    let ends = AtomicBool::new(false);
    let rows = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                write_and_sync(&mount, "file", 8192);
            }
        });
        let rows = top(&mount, &["--interval", "0.5", "--count", "2"]);
        ends.store(true, Ordering::Relaxed);
        rows
    });
    assert_eq!(rows.len(), 2, "{rows:?}");
    for row in &rows {
        let activity = &row["activity"];
        let fsync = &activity["fsync"];
        assert_eq!(
            (&row["state"], &row["type"]),
            (&"ok".into(), &"ext4".into()),
            "{row}"
        );
        assert_eq!(row["mountpoint"], mount.root().to_str().unwrap());
        let count = fsync["count"].as_u64().unwrap();
        let classes = fsync["classes"].as_array().unwrap().iter();
        let sum: u64 = classes.map(|class| class[1].as_u64().unwrap()).sum();
        assert!(count > 0 && sum == count, "{row}");
        let figure = |name: &str| activity[name].as_f64().unwrap();
        // A file of two blocks for each fsync.
        let written = figure("written_bytes") * figure("seconds");
        assert!((written / 8192.0 - count as f64).abs() <= 2.0, "{row}");
        assert!(
            figure("device_written_bytes") > 0.0 && figure("commits") > 0.0,
            "{row}"
        );
        assert!((0.0..=100.0).contains(&figure("log_free_percent")), "{row}");
    }

    mount.stop();
    let silent = top(&mount, &["--interval", "0.1", "--count", "1"]);
    mount.proceed();
    assert_eq!(
        (&silent[0]["state"], &silent[0]["activity"]),
        (&"silent".into(), &Value::Null)
    );
    mount.unmount();
}

/// A full disk, a terminal that was hung up: messages are lost, the mount and the command's result are not.
#[test]
fn a_standard_error_that_cannot_be_written_ends_no_process() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let root = scratch.folder("mnt");
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut server = Command::new(program())
        .args(["mount", "--foreground", "-o", "init_itable=10"])
        .args([image.path(), &root])
        .stderr(full())
        .spawn()
        .unwrap();
    until("a mount whose warning is lost", || {
        let ended = server.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}");
        fs::symlink_metadata(root.join("lost+found")).is_ok()
    });
    fs::write(root.join("file"), "text").unwrap();
    steadfs(["umount".as_ref(), root.as_os_str()]).expect(0);
    assert!(
        wait(&mut server, Duration::from_secs(60))
            .unwrap()
            .success()
    );

    let missing = format!("{}:/missing", image.path().display());
    let mut command = Command::new(program());
    command.args(["cat", &missing]).stderr(full());
    assert_eq!(command.status().unwrap().code(), Some(1));
}

#[test]
fn top_needs_a_terminal_and_ends_with_its_mount() {
    let scratch = Scratch::new();
    let mount = SteadMount::new(&scratch, volume(&scratch, "f2fs").path(), "");
    let refused = steadfs([OsStr::new("top"), mount.root().as_os_str()]).expect(1);
    assert!(
        refused.err.contains("not a terminal (--json"),
        "{}",
        refused.err
    );
    let none = steadfs([
        OsStr::new("top"),
        "--json".as_ref(),
        scratch.path().as_os_str(),
    ]);
    assert!(
        none.expect(32)
            .err
            .contains("no steadfs volume is mounted there")
    );
    for wrong in ["0", "-1", "nan", "1e9"] {
        let interval = format!("--interval={wrong}");
        let words = ["top", "--json", &interval].map(OsStr::new);
        assert!(
            steadfs(words).expect(2).err.contains("from 0.1 to 3600"),
            "{wrong}"
        );
    }
    let out = File::create(scratch.join("lines")).unwrap();
    let mut top = Command::new(program())
        .args(["top", "--json", "-i", "0.1"])
        .arg(mount.root())
        .stdout(out)
        .spawn()
        .unwrap();
    let lines = || fs::read_to_string(scratch.join("lines")).unwrap();
    until("a line of top", || lines().contains("\"type\":\"f2fs\""));
    mount.unmount();
    assert!(wait(&mut top, Duration::from_secs(60)).unwrap().success());
    let last: Value = serde_json::from_str(lines().lines().last().unwrap()).unwrap();
    assert_eq!(last["state"], "unmounted");
}

#[test]
fn waiting_requests_are_listed_with_their_steps() {
    let scratch = Scratch::new();
    for (kind, _) in KINDS {
        let mount = SteadMount::new(&scratch, volume(&scratch, kind).path(), "");
        let load = "while dd if=/dev/zero of=$0 bs=64k count=4 conv=fsync status=none; do :; done";
        let mut writers: Vec<_> = ["a", "b", "c"]
            .map(|name| {
                File::create(mount.join(name)).unwrap();
                let mut writer = Command::new("sh");
                writer.args(["-c", load]).arg(mount.join(name));
                writer.spawn().unwrap()
            })
            .into();
        let mut found = Value::Null;
        until("a waiting fsync", || {
            let list = fs::read_to_string(mount.join(".steadfs/waiting.json")).unwrap();
            let list: Vec<Value> = serde_json::from_str(&list).unwrap();
            // A process may have ended between two questions about it.
            let is_fsync = |one: &Value| {
                one["operation"] == "fsync" && one["command"] == "dd" && one["cgroup"].is_string()
            };
            found = list.into_iter().find(is_fsync).unwrap_or_default();
            !found.is_null()
        });
        for writer in &mut writers {
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        assert!(found["pid"].as_u64().unwrap() > 0, "{found}");
        let inodes = ["a", "b", "c"].map(|name| fs::metadata(mount.join(name)).unwrap().ino());
        assert!(
            inodes.contains(&found["inode"].as_u64().unwrap()),
            "{found}"
        );
        assert!(
            (0.0..60e3).contains(&found["milliseconds"].as_f64().unwrap()),
            "{found}"
        );
        let known = [
            "commit",
            "queue",
            "device",
            "I/O",
            "flush of the file",
            "lock",
            "checkpoint",
            "another request",
        ];
        let steps = found["steps"].as_array().unwrap();
        assert!(!steps.is_empty(), "{found}");
        assert!(
            steps
                .iter()
                .all(|step| known.contains(&step.as_str().unwrap())),
            "{found}"
        );
        let table = fs::read_to_string(mount.join(".steadfs/waiting")).unwrap();
        assert!(table.starts_with("PID COMMAND CGROUP OPERATION INODE STEP MILLISECONDS\n"));
        steadfs_suite::scratch::unmount_when_idle(mount.root());
        mount.wait();
    }
}
