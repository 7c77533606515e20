//! The laboratory's command line, and how `steadfs lab` starts it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::{finish, judge, until, wait};
use steadfs_suite::scratch::mounts_below;
use steadfs_suite::stead::program;
use steadfs_suite::{Outcome, Scratch, run, steadfs};

/// A steadfs without a laboratory beside it. cp(1) writes it, because a program that this process has open for writing
/// cannot be executed while another test forks.
fn lone_program(scratch: &Scratch) -> PathBuf {
    let copy = scratch.join("steadfs");
    run("cp", [program().as_os_str(), copy.as_os_str()]).expect(0);
    copy
}

fn lab_with_path(program: PathBuf, path: &Scratch, args: &[&str]) -> Outcome {
    let mut command = Command::new(program);
    command.arg("lab").args(args).env("PATH", path.path());
    finish(command, Duration::from_secs(60))
}

#[test]
fn a_missing_laboratory_is_named() {
    let scratch = Scratch::new();
    let outcome = lab_with_path(lone_program(&scratch), &scratch, &["--help"]);
    assert_eq!(outcome.code(), 2, "{}", outcome.err);
    assert_eq!(outcome.out, "");
    for words in ["steadfs-lab", "beside", "PATH", "make install"] {
        assert!(outcome.err.contains(words), "{words}: {}", outcome.err);
    }
}

#[test]
fn a_laboratory_in_path_gets_arguments_and_returns_its_exit_status() {
    let (own, path) = (Scratch::new(), Scratch::new());
    let script: [OsString; 4] = [
        "-c".into(),
        r#"printf '#!/bin/sh\nprintf "<%%s>" "$@"\nexit 7\n' >"$1"; chmod +x "$1""#.into(),
        "sh".into(),
        path.join("steadfs-lab").into(),
    ];
    run("sh", script).expect(0);
    let args = ["crash", "--help", "a b", "--", "-x"];
    let outcome = lab_with_path(lone_program(&own), &path, &args);
    assert_eq!(outcome.code(), 7, "{}", outcome.err);
    assert_eq!(outcome.out, "<crash><--help><a b><--><-x>");
}

#[test]
fn a_report_is_json() {
    let args = [
        "lab",
        "checkpoint-merge",
        "--quick",
        "--seeds",
        "1",
        "--json",
    ];
    let text = steadfs(args).expect(0).out;
    let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(parsed["experiment"], "checkpoint-merge");
    assert_eq!(parsed["source"], "simulated");
    let figures = parsed["figures"].as_array().expect("figures");
    assert!(figures.iter().any(|figure| figure["predicted"] == true));
    let arms = parsed["cells"][0]["arms"].as_array().expect("arms");
    for arm in arms {
        let measures = arm["measures"].as_array().expect("measures");
        let mean = measures.iter().find(|m| m["name"] == "A's iteration mean");
        let mean = mean.expect("A is measured")["mean"].as_f64();
        assert!(mean.is_some_and(|nanos| nanos > 1e6), "{arm}");
    }
}

#[test]
fn a_wrong_device_file_is_refused_naming_the_key() {
    let scratch = Scratch::new();
    let path = scratch.path().join("device.toml");
    std::fs::write(&path, "name = \"x\"\n[interface]\nqueue_depth = 0\n").expect("a file");
    let path = path.to_str().expect("a name in UTF-8");
    let output = steadfs(["lab", "checkpoint-merge", "--device", path])
        .expect(1)
        .err;
    assert!(output.contains("interface.queue_depth"), "{output}");
    let output = steadfs(["lab", "checkpoint-merge", "--device", "floppy"])
        .expect(1)
        .err;
    assert!(output.contains("ufs-2021"), "{output}");
}

#[test]
fn a_signal_unmounts_the_volume_of_an_experiment() {
    let scratch = Scratch::new();
    let mut command = Command::new(program());
    command
        .args([
            "lab",
            "checkpoint-merge",
            "--real",
            "--quick",
            "--seeds",
            "1",
        ])
        .env("TMPDIR", scratch.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut lab = command.spawn().expect("the lab runs");
    let place = || mounts_below(scratch.path()).pop();
    until("a mount of the lab's", || {
        assert_eq!(lab.try_wait().expect("a child"), None, "it has ended");
        place().is_some_and(|place| std::fs::read_dir(place).is_ok_and(|dir| dir.count() > 1))
    });
    let pid = Pid::from_child(&lab);
    kill_process(pid, Signal::TERM).expect("it runs");
    let ended = wait(&mut lab, Duration::from_secs(60)).expect("it ends");
    assert_eq!(ended.signal(), Some(Signal::TERM.as_raw()), "{ended}");
    assert_eq!(place(), None);
    let left: Vec<_> = std::fs::read_dir(scratch.path())
        .expect("a folder")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_judge_that_is_missing_is_named() {
    let scratch = Scratch::new();
    let mut command = Command::new(program());
    command
        .args(["lab", "crash", "--budget", "1", "--fs", "f2fs", "--out"])
        .arg(scratch.path().join("cases"))
        .env("PATH", scratch.path());
    let outcome = finish(command, Duration::from_secs(300));
    assert_eq!(outcome.code(), 2, "{}{}", outcome.out, outcome.err);
    assert!(
        outcome.out.contains("fsck.f2fs is needed"),
        "{}",
        outcome.out
    );
    assert!(!outcome.err.contains("panicked"), "{}", outcome.err);
}

#[test]
fn a_missing_program_is_a_system_error_and_help_needs_none() {
    let scratch = Scratch::new();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["crash", "--help"], 0, "--budget N"),
        (&["crash", "--budget", "x"], 2, "--budget needs a number"),
        (&["crash", "--fs", "ext4"], 2, "mke2fs is needed"),
        (&["faults", "--kinds", "reads"], 2, "mke2fs is needed"),
    ];
    for (args, code, words) in cases {
        let outcome = lab_with_path(program().to_owned(), &scratch, args);
        let said = format!("{}{}", outcome.out, outcome.err);
        assert_eq!(outcome.code(), code, "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

/// The explorer compares its recovery with e2fsck's. An e2fsck that repairs nothing must not pass for one that agrees.
#[test]
fn a_judge_that_repairs_nothing_is_a_finding() {
    let scratch = Scratch::new();
    let script: [OsString; 5] = [
        "-c".into(),
        r#"printf '#!/bin/sh\n[ "$1" = -fy ] && exit 8\nexec %s "$@"\n' "$2" >"$1"; chmod +x "$1""#
            .into(),
        "sh".into(),
        scratch.join("e2fsck").into(),
        judge("e2fsck").into(),
    ];
    run("sh", script).expect(0);
    let ops = scratch.join("ops");
    let text = "create /f 644\nwrite /f 0+9000 1\nfsync /f\nlink /f /g\nfsync /g\n";
    std::fs::write(&ops, text).expect("a file");
    let path = std::env::var("PATH").expect("a path");
    let mut command = Command::new(program());
    command
        .args(["lab", "crash", "--subject", "ext4-fast-1k", "--ops"])
        .arg(&ops)
        .arg("--out")
        .arg(scratch.join("cases"))
        .env("PATH", format!("{}:{path}", scratch.path().display()));
    let outcome = finish(command, Duration::from_secs(300));
    assert_eq!(outcome.code(), 1, "{}{}", outcome.out, outcome.err);
    let wanted = "e2fsck: its repair failed: exit status: 8";
    assert!(outcome.out.contains(wanted), "{}", outcome.out);
}
