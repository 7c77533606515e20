//! What a mount shows to programs that watch it: metrics, their counters as JSON, and `steadfs top`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
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

/// The samples of a mount's metrics as Prometheus' client library reads them, by name and labels.
fn metrics(mount: &SteadMount) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/metrics.py");
    // The library belongs to Debian's Python.
    let mut judge = Command::new("/usr/bin/python3")
        .arg(script)
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
        let mount = SteadMount::new(&scratch, volume(&scratch, kind).path(), "");
        let before = metrics(&mount);
        write_and_sync(&mount, "one", 1 << 20);
        write_and_sync(&mount, "two", 4096);
        let after = metrics(&mount);
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
        let dirty = metrics(&mount)[dirty].as_f64().unwrap();
        assert!(dirty >= 300_000.0, "{dirty}");

        let stat = steadfs(["stat".as_ref(), "--json".as_ref(), mount.root().as_os_str()]);
        let stat: Value = serde_json::from_str(&stat.expect(0).out).unwrap();
        assert_eq!(stat["fuse"]["fsync"]["count"], 2, "{stat}");
        assert_eq!(stat["fuse"]["written_bytes"], (1 << 20) + 4096 + 300_000);
        assert!(stat["cache"]["dirty_bytes"].as_u64().unwrap() >= 300_000);
        mount.unmount();
    }
}
