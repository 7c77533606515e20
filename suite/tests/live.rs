//! What a running mount reports and lets users change: `tune`, `stat`, and every option of the four mechanisms as its
//! documentation spells it, valid and invalid, at mount and by remount.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

use serde_json::Value;
use steadfs_suite::command::until;
use steadfs_suite::{Image, Outcome, Scratch, SteadMount, run, steadfs};

fn volume(scratch: &Scratch, kind: &str) -> Image {
    if kind != "f2fs" {
        return Image::mke2fs(scratch, "e.img", 64 << 20, &["-t", kind]);
    }
    let path = scratch.join("f.img");
    let arguments = ["format", "-q", "--force", "-t", "f2fs"].map(OsStr::new);
    let arguments = arguments
        .into_iter()
        .chain([path.as_os_str(), "128M".as_ref()]);
    steadfs(arguments).expect(0);
    Image::at(path)
}

fn run_on(command: &str, mount: &SteadMount, arguments: &[&str]) -> Outcome {
    let first = [command.as_ref(), mount.root().as_os_str()];
    steadfs(first.into_iter().chain(arguments.iter().map(OsStr::new)))
}

fn options(mount: &SteadMount) -> String {
    let shown = fs::read_to_string(mount.join(".steadfs/options")).unwrap();
    shown.trim().to_owned()
}

/// Wrong settings of f2fs, and what is reported.
const WRONG_SETTINGS: [(&str, &str); 9] = [
    (
        "gc_urgent=9",
        "gc_urgent: is 0 (no), 1 (high), 2 (low) or 3 (mid)",
    ),
    ("max_victim_search=0", "with 0 nothing would ever be found"),
    (
        "bggc_io_aware=3",
        "bggc_io_aware: is 0 (all I/O), 1 (reads) or 2 (none)",
    ),
    (
        "migration_granularity=2",
        "migration_granularity: is from 1 to 1 (segments of a section)",
    ),
    ("migration_granularity=0", "is from 1 to 1"),
    ("ckpt_thread_ioprio=idle,1", "is not rt,LEVEL or be,LEVEL"),
    ("scheduler=bfq", "is one of"),
    (
        "max_victim_serch=3",
        "no such setting; did you mean max_victim_search?",
    ),
    ("checkpoint_merge=1", "is a mount option: steadfs remount"),
];

#[test]
fn settings_are_changed_all_or_none() {
    let scratch = Scratch::new();
    let mount = SteadMount::new(&scratch, volume(&scratch, "f2fs").path(), "");
    let listed = run_on("tune", &mount, &[]).expect(0).out;
    for line in [
        "max_victim_search=4096",
        "ckpt_thread_ioprio=be,3",
        "scheduler=fair",
    ] {
        assert!(listed.lines().any(|l| l == line), "{line}: {listed}");
    }
    // The last item is wrong, so none is applied.
    for (bad, why) in WRONG_SETTINGS {
        let output = run_on("tune", &mount, &["cp_interval=7", "scheduler=cfq", bad]);
        assert_eq!(output.code(), 32, "{bad}");
        assert!(output.err.contains(why), "{bad}: {}", output.err);
        assert_eq!(run_on("tune", &mount, &[]).expect(0).out, listed, "{bad}");
    }
    let new = [
        "max_victim_search=20",
        "bggc_io_aware=1",
        "migration_granularity=1",
        "ckpt_thread_ioprio=rt,0",
        "io/scheduler=cfq",
    ];
    assert_eq!(run_on("tune", &mount, &new).expect(0).out, "");
    let current = run_on("tune", &mount, &["max_victim_search", "ckpt_thread_ioprio"]);
    assert_eq!(
        current.expect(0).out,
        "max_victim_search=20\nckpt_thread_ioprio=rt,0\n"
    );
    let file = |name: &str| fs::read_to_string(mount.join(".steadfs").join(name)).unwrap();
    assert_eq!(file("f2fs/max_victim_search"), "20\n");
    assert_eq!(file("f2fs/bggc_io_aware"), "1\n");
    assert_eq!(file("f2fs/migration_granularity"), "1\n");
    assert_eq!(file("io/scheduler"), "fifo fair [cfq]\n");
    assert_eq!(run_on("tune", &mount, &["frobnicate"]).code(), 32);
    // A mount without control files has settings, too, and so does a read-only one.
    mount.unmount();
    let options = "nocontrol,ro";
    let mount = SteadMount::new(&scratch, &scratch.join("f.img"), options);
    run_on("tune", &mount, &["scheduler=fifo"]).expect(0);
    assert_eq!(
        run_on("tune", &mount, &["scheduler"]).expect(0).out,
        "scheduler=fifo\n"
    );
    let output = run_on("stat", &mount, &[]);
    assert!(output.err.contains("nocontrol"), "{}", output.err);
    mount.unmount();
}

/// Some durable changes.
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
fn a_mount_reports_its_counters() {
    let scratch = Scratch::new();
    for (kind, title) in [("ext4", "journal:"), ("f2fs", "f2fs:"), ("ext2", "groups:")] {
        let mount = SteadMount::new(&scratch, volume(&scratch, kind).path(), "");
        work(&mount);
        let text = run_on("stat", &mount, &[]).expect(0).out;
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
            serde_json::from_str(&run_on("stat", &mount, &["--json"]).expect(0).out).unwrap();
        let number = |path: &str| json.pointer(path).and_then(Value::as_u64);
        assert!(number("/io/ops/write/count") > Some(3), "{json}");
        // In any group that this test may run in.
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
}

/// An option as typed; what is shown of it, or the reason for its refusal.
type Row = (&'static str, Result<&'static str, &'static str>);

/// For every kind of volume.
const QUEUE: &[Row] = &[
    ("io_scheduler=fair", Ok("")),
    ("io_scheduler=fifo", Ok("io_scheduler=fifo")),
    ("io_scheduler=cfq", Ok("io_scheduler=cfq")),
    ("io_scheduler=bfq", Err("is one of")),
    ("io_scheduler", Err("needs a value")),
    ("io_scheduler=", Err("is one of")),
    ("io_scheduler=fifo,io_scheduler=cfq", Ok("io_scheduler=cfq")),
    ("queue_depth=4", Ok("queue_depth=4")),
    ("queue_depth=1", Ok("queue_depth=1")),
    ("queue_depth=1024", Ok("queue_depth=1024")),
    ("queue_depth=32", Ok("")),
    ("queue_depth=0", Err("from 1 to 1024")),
    ("queue_depth=1025", Err("from 1 to 1024")),
    ("queue_depth", Err("needs a value")),
    ("queue_depth=-4", Err("from 1 to 1024")),
    ("fsync_latency_target=auto", Ok("")),
    ("fsync_latency_target=off", Ok("fsync_latency_target=off")),
    ("fsync_latency_target=15", Ok("fsync_latency_target=15")),
    ("fsync_latency_target=0", Err("from 1 to 10000")),
    ("fsync_latency_target=2ms", Err("is auto, off, or")),
    ("fsync_latency_target", Err("needs a value")),
    ("slice_idle=0", Ok("slice_idle=0")),
    ("slice_idle=1000", Ok("slice_idle=1000")),
    ("slice_idle=1001", Err("from 0 to 1000")),
    ("slice_idle=8ms", Err("from 0 to 1000")),
    ("slice_idle", Err("needs a value")),
    ("strict_guarantees", Ok("strict_guarantees")),
    ("strict_guarantees=1", Err("takes no value")),
    ("strict_guarantees,nostrict_guarantees", Ok("")),
    ("nostrict_guarantees=0", Err("takes no value")),
    ("low_latency", Ok("")),
    ("low_latency=0", Err("takes no value")),
    ("nolow_latency", Ok("nolow_latency")),
    ("nolow_latency=1", Err("takes no value")),
    ("boost", Ok("")),
    ("boost=1", Err("takes no value")),
    ("noboost", Ok("noboost")),
    ("noboost=0", Err("takes no value")),
    ("noboost,boost", Ok("")),
    ("boost_wb", Err("option boost_wb: ")),
    ("cgroup_weight=/a/b:20", Ok("cgroup_weight=/a/b:20")),
    ("cgroup_weight=/a/b:1", Ok("cgroup_weight=/a/b:1")),
    ("cgroup_weight=/a/b/:1000", Ok("cgroup_weight=/a/b:1000")),
    (
        "cgroup_weight=/a/b:20,cgroup_weight=/a/c:30",
        Ok("cgroup_weight=/a/b:20,cgroup_weight=/a/c:30"),
    ),
    (
        "cgroup_weight=/a/b:20,cgroup_weight=/a/b:30",
        Ok("cgroup_weight=/a/b:30"),
    ),
    // A colon may be part of a path.
    ("cgroup_weight=/a:1/b:20", Ok("cgroup_weight=/a:1/b:20")),
    ("cgroup_weight=/a/b:0", Err("from 1 to 1000")),
    ("cgroup_weight=/a/b:1001", Err("from 1 to 1000")),
    ("cgroup_weight=/a/b:", Err("from 1 to 1000")),
    ("cgroup_weight=/a/b:x", Err("from 1 to 1000")),
    ("cgroup_weight=/a/b", Err("needs PATH:WEIGHT")),
    ("cgroup_weight", Err("needs a value")),
    ("cgroup_weight=a:20", Err("from the root")),
    // The root has no siblings.
    ("cgroup_weight=/:20", Err("from the root")),
    ("cgroup_weight=//:20", Err("from the root")),
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
    // 50 in the lower 32 bits.
    ("async_checkpoint=4294967346", Err("from 1 to 99")),
    ("async_checkpoint=x", Err("from 1 to 99")),
    ("async_checkpoint=", Err("from 1 to 99")),
    ("async_checkpoint=50%", Err("from 1 to 99")),
    ("async_checkpoint=3.5", Err("from 1 to 99")),
    ("noasync_checkpoint=1", Err("takes no value")),
    (
        "noasync_checkpoint,async_checkpoint=70",
        Ok("async_checkpoint=70"),
    ),
    (
        "async_checkpoint=70,noasync_checkpoint",
        Ok("noasync_checkpoint"),
    ),
    ("journal_ioprio=7", Ok("journal_ioprio=7")),
    ("journal_ioprio=0", Ok("journal_ioprio=0")),
    ("journal_ioprio=8", Err("from 0 to 7")),
    ("journal_ioprio=-1", Err("from 0 to 7")),
    ("journal_ioprio=be,3", Err("from 0 to 7")),
    ("journal_ioprio", Err("needs a value")),
    ("commit=7", Ok("commit=7")),
    ("commit=0", Ok("")),
    ("commit=2147483648", Err("from 0 to ")),
    ("commit", Err("needs a value")),
    ("max_batch_time=0", Ok("max_batch_time=0")),
    ("max_batch_time=-1", Err("from 0 to ")),
    ("min_batch_time=100", Ok("min_batch_time=100")),
    ("checkpoint_merge", Err("option checkpoint_merge: ")),
    ("nocheckpoint_merge", Err("option nocheckpoint_merge: ")),
    ("gc_policy=2013", Err("option gc_policy")),
];

const F2FS: &[Row] = &[
    ("", Ok("checkpoint_merge")),
    ("checkpoint_merge", Ok("checkpoint_merge")),
    ("nocheckpoint_merge", Ok("nocheckpoint_merge")),
    ("checkpoint_merge=1", Err("takes no value")),
    ("nocheckpoint_merge=0", Err("takes no value")),
    (
        "nocheckpoint_merge,checkpoint_merge",
        Ok("checkpoint_merge"),
    ),
    ("checkpoint=disable", Ok("checkpoint=disable:0")),
    ("checkpoint=disable:4096", Ok("checkpoint=disable:4096")),
    ("checkpoint=disable:0%", Ok("checkpoint=disable:0")),
    ("checkpoint=disable:101%", Err("0 to 100")),
    ("checkpoint=disable:-1", Err("option checkpoint")),
    ("checkpoint=disable:", Err("option checkpoint")),
    ("checkpoint=disable,ro", Err("option checkpoint")),
    // The name of the option in its first posting.
    ("checkpoint=merge", Err("is one of enable, disable")),
    ("checkpoint", Err("needs a value")),
    (
        "checkpoint=disable,checkpoint=enable",
        Ok("checkpoint_merge"),
    ),
    ("fsync_mode=strict", Ok("fsync_mode=strict")),
    ("fsync_mode=nobarrier", Ok("fsync_mode=nobarrier")),
    ("fsync_mode=posix", Ok("fsync_mode=posix")),
    ("fsync_mode=lax", Err("is one of")),
    ("flush_merge", Ok("")),
    // Concurrent flushes are merged all the same, and a warning reports that.
    ("noflush_merge", Ok("flush_merge")),
    ("gc_merge", Ok("gc_merge")),
    ("nogc_merge", Ok("nogc_merge")),
    ("gc_merge=1", Err("takes no value")),
    ("background_gc=sync", Ok("background_gc=sync")),
    ("background_gc=off", Ok("background_gc=off")),
    ("background_gc=maybe", Err("is one of")),
    ("background_gc", Err("needs a value")),
    ("mode=fragment:segment", Err("option mode")),
    ("atgc=1", Err("takes no value")),
    ("gc_policy=2014", Err("is one of default, 2013")),
    // A setting (f2fs/max_victim_search), not an option.
    ("max_victim_search=20", Err("option max_victim_search: ")),
    ("async_checkpoint", Err("option async_checkpoint: ")),
    ("noasync_checkpoint", Err("option noasync_checkpoint: ")),
];

/// Options that a remount cannot change: the mount shows them, and a remount names the reason.
const F2FS_FIXED: &[(&str, &str)] = &[
    ("atgc", "atgc"),
    ("mode=lfs", "mode=lfs"),
    ("active_logs=4", "active_logs=4"),
];

/// Whether an option list contains these items.
fn shows(list: &str, items: &str) -> bool {
    let shown: Vec<&str> = list.split(',').collect();
    items.is_empty() || items.split(',').all(|item| shown.contains(&item))
}

#[test]
fn every_option_of_the_mechanisms_works_as_documented() {
    let scratch = Scratch::new();
    for (kind, own, back) in [
        (
            "ext4",
            EXT4,
            "async_checkpoint,journal_ioprio=3,commit=5,min_batch_time=0,max_batch_time=15000",
        ),
        (
            "f2fs",
            F2FS,
            "checkpoint_merge,checkpoint=enable,fsync_mode=posix,nogc_merge,background_gc=on",
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
                 fsync_latency_target=auto,\
                 cgroup_weight=/a/b:default,cgroup_weight=/a/c:default,cgroup_weight=/a:1/b:default,{back}"
            );
            run_on("remount", &mount, &["-o", &undo]).expect(0);
            let now = options(&mount).replace(",slice_idle=8", "");
            assert_eq!(now, first, "after {typed}");
        }
        for (typed, _) in F2FS_FIXED.iter().filter(|_| kind == "f2fs") {
            by_remount(&mount, typed, &Err("cannot change while mounted"));
        }
        mount.unmount();
        for (typed, shown) in F2FS_FIXED.iter().filter(|_| kind == "f2fs") {
            by_mount(&scratch, image.path(), typed, &Ok(shown));
        }
        let at_mount = QUEUE.iter().step_by(3).chain(own);
        at_mount.for_each(|(typed, wanted)| by_mount(&scratch, image.path(), typed, wanted));
    }
}

/// The thread id of the server's thread with this name, once it exists.
fn thread_of(mount: &SteadMount, name: &str) -> OsString {
    let tasks = format!("/proc/{}/task", mount.pid());
    let find = || {
        let mut tasks = fs::read_dir(&tasks).unwrap().filter_map(Result::ok);
        // Threads may exit meanwhile.
        tasks.find(|task| {
            let comm = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            comm.trim() == name
        })
    };
    let mut found = None;
    until(name, || {
        found = find();
        found.is_some()
    });
    found.unwrap().file_name()
}

/// A thread's I/O priority, as ionice prints it.
fn host_prio(mount: &SteadMount, name: &str) -> String {
    let number = thread_of(mount, name);
    let output = run("ionice", ["-p".as_ref(), number.as_os_str()])
        .expect(0)
        .out;
    output.trim().to_owned()
}

/// Threads with a priority of their own set it with ioprio_set(2), also when it changes; threads that work for
/// requesters keep the server's.
#[test]
fn threads_set_their_priority_with_ioprio_set() {
    let scratch = Scratch::new();
    let mount = SteadMount::new(&scratch, volume(&scratch, "f2fs").path(), "");
    until("be,3", || {
        host_prio(&mount, "f2fs_ckpt") == "best-effort: prio 3"
    });
    let others = ["steadfs", "flusher", "f2fs_gc"].map(|name| host_prio(&mount, name));
    for other in &others {
        assert_eq!(*other, others[0]);
    }
    for (prio, expected) in [
        ("rt,0", "realtime: prio 0"),
        ("be,7", "best-effort: prio 7"),
        ("rt,7", "realtime: prio 7"),
    ] {
        let setting = format!("ckpt_thread_ioprio={prio}");
        run_on("tune", &mount, &[&setting]).expect(0);
        until(expected, || host_prio(&mount, "f2fs_ckpt") == expected);
    }
    // The priority is kept while there is no thread, and the next one gets it.
    run_on("remount", &mount, &["-o", "nocheckpoint_merge"]).expect(0);
    run_on("tune", &mount, &["ckpt_thread_ioprio=be,1"]).expect(0);
    run_on("remount", &mount, &["-o", "checkpoint_merge"]).expect(0);
    until("be,1", || {
        host_prio(&mount, "f2fs_ckpt") == "best-effort: prio 1"
    });
    let now = ["steadfs", "flusher", "f2fs_gc"].map(|name| host_prio(&mount, name));
    assert_eq!(now, others);
    mount.unmount();

    let mount = SteadMount::new(&scratch, volume(&scratch, "ext4").path(), "commit=1");
    until("be,3", || {
        host_prio(&mount, "jbd2") == "best-effort: prio 3"
    });
    let others = ["steadfs", "flusher", "jbd2-reclaim"].map(|name| host_prio(&mount, name));
    for other in &others {
        assert_eq!(*other, others[0]);
    }
    run_on("remount", &mount, &["-o", "journal_ioprio=6"]).expect(0);
    // From its next commit on.
    fs::write(mount.join("file"), "content").unwrap();
    until("be,6", || {
        host_prio(&mount, "jbd2") == "best-effort: prio 6"
    });
    mount.unmount();
}

/// A threshold above the one at which operations wait for log space is accepted, with a warning.
#[test]
fn a_useless_threshold_is_reported() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let mount = SteadMount::new(&scratch, image.path(), "async_checkpoint=1");
    let begin = "async_checkpoint=1 does little here: operations wait for log space from ";
    mount.wait_for_log(begin);
    let output = mount.log();
    let (_, rest) = output.split_once(begin).unwrap();
    let (forced, _) = rest.split_once('%').unwrap();
    let forced: u8 = forced.parse().unwrap();
    assert!((1..99).contains(&forced), "{output}");
    let expected = |percent: u8| format!("async_checkpoint={percent} does little here");
    // A useful one is accepted silently; the same list with a useless one after it causes the warning.
    for percent in [forced + 1, forced] {
        let option = format!("async_checkpoint={percent}");
        run_on("remount", &mount, &["-o", &option]).expect(0);
        assert!(shows(&options(&mount), &option));
    }
    mount.wait_for_log(&expected(forced));
    let output = mount.log();
    assert!(!output.contains(&expected(forced + 1)), "{output}");
    mount.unmount();
}

fn by_remount(mount: &SteadMount, typed: &str, wanted: &Result<&str, &str>) {
    if typed.is_empty() {
        return;
    }
    let before = options(mount);
    // Together with a valid item.
    let list = format!("noatime,{typed}");
    let output = run_on("remount", mount, &["-o", &list]);
    match wanted {
        Ok(shown) => {
            output.expect(0);
            let now = options(mount);
            assert!(
                shows(&now, shown) && shows(&now, "noatime"),
                "{typed}: {now}"
            );
            run_on("remount", mount, &["-o", "relatime"]).expect(0);
        }
        Err(why) => {
            assert_ne!(output.code(), 0, "{typed}");
            assert!(output.err.contains(why), "{typed}: {}", output.err);
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
        (Err((code, output)), Err(why)) => {
            assert!(code == 1 || code == 32, "{typed}: {code}");
            assert!(output.contains(why), "{typed}: {output}");
        }
        (Ok(_), Err(_)) => panic!("{typed} was accepted"),
        (Err((_, output)), Ok(_)) => panic!("{typed}: {output}"),
    }
}
