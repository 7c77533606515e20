//! What a running mount shows of itself and lets be changed: `tune`, `stat`, and every option of the four
//! mechanisms as their sources type it, good and bad, at mount and by remount.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use serde_json::Value;
use steadfs_suite::{Image, Outcome, Scratch, SteadMount, steadfs};

fn volume(scratch: &Scratch, kind: &str) -> Image {
    if kind != "f2fs" {
        return Image::mke2fs(scratch, "e.img", 64 << 20, &["-t", kind]);
    }
    let path = scratch.join("f.img");
    let words = ["format", "-q", "--force", "-t", "f2fs"].map(OsStr::new);
    let words = words.into_iter().chain([path.as_os_str(), "128M".as_ref()]);
    steadfs(words).expect(0);
    Image::at(path)
}

fn ask(command: &str, mount: &SteadMount, words: &[&str]) -> Outcome {
    let first = [command.as_ref(), mount.root().as_os_str()];
    steadfs(first.into_iter().chain(words.iter().map(OsStr::new)))
}

fn options(mount: &SteadMount) -> String {
    let shown = fs::read_to_string(mount.join(".steadfs/options")).unwrap();
    shown.trim().to_owned()
}

#[test]
fn settings_change_all_or_none() {
    let scratch = Scratch::new();
    let mount = SteadMount::new(&scratch, volume(&scratch, "f2fs").path(), "");
    let listed = ask("tune", &mount, &[]).expect(0).out;
    for line in [
        "max_victim_search=4096",
        "ckpt_thread_ioprio=be,3",
        "scheduler=fair",
    ] {
        assert!(listed.lines().any(|l| l == line), "{line}: {listed}");
    }
    // The last is wrong, so nothing is done.
    for (bad, why) in [
        (
            "gc_urgent=9",
            "gc_urgent: is 0 (no), 1 (high), 2 (low) or 3 (mid)",
        ),
        ("max_victim_search=0", "with 0 nothing would ever be found"),
        ("ckpt_thread_ioprio=idle,1", "is not rt,LEVEL or be,LEVEL"),
        ("scheduler=bfq", "is one of"),
        (
            "max_victim_serch=3",
            "no such setting; did you mean max_victim_search?",
        ),
        ("checkpoint_merge=1", "is a mount option: steadfs remount"),
    ] {
        let said = ask("tune", &mount, &["cp_interval=7", "scheduler=cfq", bad]);
        assert_eq!(said.code(), 32, "{bad}");
        assert!(said.err.contains(why), "{bad}: {}", said.err);
        assert_eq!(ask("tune", &mount, &[]).expect(0).out, listed, "{bad}");
    }
    let new = [
        "max_victim_search=20",
        "ckpt_thread_ioprio=rt,0",
        "io/scheduler=cfq",
    ];
    assert_eq!(ask("tune", &mount, &new).expect(0).out, "");
    let asked = ask("tune", &mount, &["max_victim_search", "ckpt_thread_ioprio"]);
    assert_eq!(
        asked.expect(0).out,
        "max_victim_search=20\nckpt_thread_ioprio=rt,0\n"
    );
    let file = |name: &str| fs::read_to_string(mount.join(".steadfs").join(name)).unwrap();
    assert_eq!(file("f2fs/max_victim_search"), "20\n");
    assert_eq!(file("io/scheduler"), "fifo fair [cfq]\n");
    assert_eq!(ask("tune", &mount, &["frobnicate"]).code(), 32);
    // A mount without control files has settings all the same; a read-only one, too.
    mount.unmount();
    let options = "nocontrol,ro";
    let mount = SteadMount::new(&scratch, &scratch.join("f.img"), options);
    ask("tune", &mount, &["scheduler=fifo"]).expect(0);
    assert_eq!(
        ask("tune", &mount, &["scheduler"]).expect(0).out,
        "scheduler=fifo\n"
    );
    let said = ask("stat", &mount, &[]);
    assert!(said.err.contains("nocontrol"), "{}", said.err);
    mount.unmount();
}

/// Some changes that are durable.
fn work(mount: &SteadMount) {
    for n in 0..3 {
        let dir = mount.join(&format!("dir{n}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), vec![7; 40_000]).unwrap();
        fs::File::open(dir.join("file"))
            .unwrap()
            .sync_all()
            .unwrap();
        fs::File::open(&dir).unwrap().sync_all().unwrap();
    }
}

#[test]
fn a_mount_tells_what_it_did() {
    let scratch = Scratch::new();
    for (kind, title) in [("ext4", "journal:"), ("f2fs", "f2fs:"), ("ext2", "groups:")] {
        let mount = SteadMount::new(&scratch, volume(&scratch, kind).path(), "");
        work(&mount);
        let text = ask("stat", &mount, &[]).expect(0).out;
        for part in [
            "queue: fair, depth 32",
            "boost: ",
            "\n  write ",
            "queued p50/p99/max",
            "\n  / weight",
            title,
        ] {
            assert!(text.contains(part), "{kind}: {part} is not in {text}");
        }
        let json: Value =
            serde_json::from_str(&ask("stat", &mount, &["--json"]).expect(0).out).unwrap();
        let number = |path: &str| json.pointer(path).and_then(Value::as_u64);
        assert!(number("/io/ops/write/count") > Some(3), "{json}");
        // Whatever group this test runs in.
        let groups = json["io"]["groups"].as_array().unwrap().iter();
        let written: Option<u64> = groups.map(|group| group["written"].as_u64()).sum();
        assert!(written > Some(100_000), "{json}");
        assert!(
            json.pointer("/io/ops/write/device/classes/0/1").is_some(),
            "{json}"
        );
        assert!(number("/io/boosts/raised").is_some(), "{json}");
        assert_eq!(json["options"], options(&mount));
        match kind {
            "ext4" => assert!(number("/jbd2/transactions") > Some(2), "{json}"),
            "f2fs" => {
                assert!(number("/f2fs/checkpoint/merge/total") > Some(2), "{json}");
                assert!(
                    number("/f2fs/fsync/checkpoint_for/non regular file") > Some(2),
                    "{json}"
                );
            }
            _ => assert!(json.get("jbd2").is_none()),
        }
        mount.unmount();
    }
    let said = steadfs(["stat", "--json", "e.img:/"]);
    assert_eq!(said.code(), 1);
    assert!(
        said.err.contains("--json is for mount points"),
        "{}",
        said.err
    );
}

/// What is typed; and what is shown of it, or the reason why it is refused.
type Row = (&'static str, Result<&'static str, &'static str>);

/// For every volume.
const QUEUE: &[Row] = &[
    ("io_scheduler=fair", Ok("")),
    ("io_scheduler=fifo", Ok("io_scheduler=fifo")),
    ("io_scheduler=cfq", Ok("io_scheduler=cfq")),
    ("io_scheduler=bfq", Err("is one of")),
    ("io_scheduler", Err("needs a value")),
    ("queue_depth=4", Ok("queue_depth=4")),
    ("queue_depth=0", Err("from 1 to 1024")),
    ("slice_idle=0", Ok("slice_idle=0")),
    ("slice_idle=1001", Err("from 0 to 1000")),
    ("strict_guarantees", Ok("strict_guarantees")),
    ("strict_guarantees=1", Err("takes no value")),
    ("nolow_latency", Ok("nolow_latency")),
    ("boost", Ok("")),
    ("noboost", Ok("noboost")),
    ("noboost=0", Err("takes no value")),
    ("cgroup_weight=/a/b:20", Ok("cgroup_weight=/a/b:20")),
    ("cgroup_weight=/a/b:0", Err("from 1 to 1000")),
    ("cgroup_weight=/a/b:1001", Err("from 1 to 1000")),
    ("cgroup_weight=a:20", Err("from the root")),
];

const EXT4: &[Row] = &[
    ("", Ok("async_checkpoint=50")),
    ("async_checkpoint", Ok("async_checkpoint=50")),
    ("async_checkpoint=30", Ok("async_checkpoint=30")),
    ("async_checkpoint=1", Ok("async_checkpoint=1")),
    ("async_checkpoint=99", Ok("async_checkpoint=99")),
    ("noasync_checkpoint", Ok("noasync_checkpoint")),
    ("async_checkpoint=0", Err("from 1 to 99")),
    ("async_checkpoint=100", Err("from 1 to 99")),
    ("async_checkpoint=-1", Err("from 1 to 99")),
    ("async_checkpoint=99999999999", Err("from 1 to 99")),
    ("async_checkpoint=x", Err("from 1 to 99")),
    ("noasync_checkpoint=1", Err("takes no value")),
    ("journal_ioprio=7", Ok("journal_ioprio=7")),
    ("journal_ioprio=8", Err("from 0 to 7")),
    ("checkpoint_merge", Err("option checkpoint_merge: ")),
];

const F2FS: &[Row] = &[
    ("", Ok("checkpoint_merge")),
    ("checkpoint_merge", Ok("checkpoint_merge")),
    ("nocheckpoint_merge", Ok("nocheckpoint_merge")),
    ("checkpoint_merge=1", Err("takes no value")),
    ("nocheckpoint_merge=0", Err("takes no value")),
    ("fsync_mode=strict", Ok("fsync_mode=strict")),
    ("fsync_mode=posix", Ok("checkpoint_merge")),
    ("fsync_mode=lax", Err("is one of")),
    ("gc_merge", Ok("gc_merge")),
    ("background_gc=sync", Ok("background_gc=sync")),
    ("background_gc=maybe", Err("is one of")),
    ("async_checkpoint", Err("option async_checkpoint: ")),
];

/// Whether an option list shows an item.
fn shows(list: &str, item: &str) -> bool {
    item.is_empty() || list.split(',').any(|shown| shown == item)
}

#[test]
fn every_option_of_the_mechanisms_is_what_its_source_says() {
    let scratch = Scratch::new();
    for (kind, own, back) in [
        ("ext4", EXT4, "async_checkpoint,journal_ioprio=3"),
        (
            "f2fs",
            F2FS,
            "checkpoint_merge,fsync_mode=posix,nogc_merge,background_gc=on",
        ),
    ] {
        let image = volume(&scratch, kind);
        let running = scratch.join(&format!("running-{kind}.img"));
        fs::copy(image.path(), &running).unwrap();
        let mount = SteadMount::new(&scratch, &running, "");
        let first = options(&mount);
        for (typed, wanted) in QUEUE.iter().chain(own) {
            by_remount(&mount, typed, wanted);
            let undo = format!(
                "io_scheduler=fair,queue_depth=32,slice_idle=8,nostrict_guarantees,low_latency,boost,\
                 cgroup_weight=/a/b:default,{back}"
            );
            ask("remount", &mount, &["-o", &undo]).expect(0);
            let now = options(&mount).replace(",slice_idle=8", "");
            assert_eq!(now, first, "after {typed}");
        }
        mount.unmount();
        let at_mount = QUEUE.iter().step_by(3).chain(own);
        at_mount.for_each(|(typed, wanted)| by_mount(&scratch, image.path(), typed, wanted));
    }
}

fn by_remount(mount: &SteadMount, typed: &str, wanted: &Result<&str, &str>) {
    if typed.is_empty() {
        return;
    }
    let before = options(mount);
    // Together with something that could be done.
    let list = format!("noatime,{typed}");
    let said = ask("remount", mount, &["-o", &list]);
    match wanted {
        Ok(shown) => {
            said.expect(0);
            let now = options(mount);
            assert!(
                shows(&now, shown) && shows(&now, "noatime"),
                "{typed}: {now}"
            );
            ask("remount", mount, &["-o", "relatime"]).expect(0);
        }
        Err(why) => {
            assert_ne!(said.code(), 0, "{typed}");
            assert!(said.err.contains(why), "{typed}: {}", said.err);
            assert_eq!(options(mount), before, "{typed}");
        }
    }
}

fn by_mount(scratch: &Scratch, image: &Path, typed: &str, wanted: &Result<&str, &str>) {
    match (SteadMount::attempt(scratch, image, typed), wanted) {
        (Ok(mount), Ok(shown)) => {
            let now = options(&mount);
            assert!(shows(&now, shown), "{typed}: {now}");
            mount.unmount();
        }
        (Err((code, said)), Err(why)) => {
            assert!(code == 1 || code == 32, "{typed}: {code}");
            assert!(said.contains(why), "{typed}: {said}");
        }
        (Ok(_), Err(_)) => panic!("{typed} was taken"),
        (Err((_, said)), Ok(_)) => panic!("{typed}: {said}"),
    }
}
