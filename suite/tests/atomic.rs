//! f2fs's atomic writes through a mount, as SQLite's batch commit uses them: compared with the kernel, in a User-Mode Linux.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use steadfs_suite::f2fs::{check_clean, mkfs};
use steadfs_suite::uml::{TOP, boot};
use steadfs_suite::{Scratch, SteadMount, succeed};

/// Prints what it observes in a folder.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/atomic.pl");

fn observe(folder: &Path) -> String {
    succeed("perl", [SCRIPT.as_ref(), folder.as_os_str()]).out
}

/// Differences by line, so that a failure shows what differs.
#[track_caller]
fn same(ours: &str, theirs: &str) {
    let pairs: Vec<_> = ours.lines().zip(theirs.lines()).collect();
    for (ours, theirs) in pairs {
        assert_eq!(ours, theirs, "steadfs and Linux");
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn a_program_observes_what_it_does_on_linux() {
    let scratch = Scratch::new();
    let options = "-O extra_attr,inode_checksum";
    let ours = mkfs(&scratch, "ours.img", 128 << 20, options);
    let theirs = mkfs(&scratch, "theirs.img", 128 << 20, options);
    let mount = SteadMount::new(&scratch, ours.path(), "atomic_write");
    let folder = mount.join("folder");
    fs::create_dir(&folder).unwrap();
    let seen = observe(&folder);
    let last = fs::read(folder.join("db")).unwrap();
    mount.unmount();
    check_clean(ours.path(), "after atomic writes");
    // The kernel observes the same, and reads what was committed here.
    let script = format!(
        "mount -t f2fs /dev/ubda {TOP}\nmkdir {TOP}/folder\nperl {SCRIPT} {TOP}/folder\numount {TOP}\n\
         mount -t f2fs /dev/ubdb {TOP}\nmd5sum < {TOP}/folder/db\numount {TOP}"
    );
    let said = boot(&scratch, &[theirs.path(), ours.path()], &script);
    let (linux, read) = said.trim_end().rsplit_once('\n').unwrap();
    same(&seen, linux);
    let copy = scratch.join("db");
    fs::write(&copy, last).unwrap();
    assert_eq!(
        succeed("md5sum", [&copy]).out.split(' ').next(),
        read.split(' ').next()
    );
}

const BANK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/atomic_bank.py");
/// The library that `scripts/judge-sqlite` builds.
const SQLITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../.cache/judges/sqlite");
const SOUND: &str = "200000 ok\n";
const KILLS: u64 = 40;

/// The program of the bank, with an SQLite that commits by atomic writes.
fn bank(database: &Path, work: &str) -> Command {
    let mut command = Command::new("python3");
    command.env("LD_LIBRARY_PATH", SQLITE).arg(BANK);
    command.arg(database).arg(work);
    command.stdout(Stdio::piped());
    command
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs scripts/judge-sqlite"]
fn sqlite_loses_nothing_when_it_is_killed() {
    assert!(
        Path::new(SQLITE).join("libsqlite3.so.0").exists(),
        "run scripts/judge-sqlite"
    );
    let scratch = Scratch::new();
    let image = mkfs(&scratch, "bank.img", 128 << 20, "-O extra_attr");
    let mount = SteadMount::new(&scratch, image.path(), "atomic_write");
    let database = mount.join("bank.db");
    // Only the first transaction, of an empty file, has a journal, which another task would see.
    let trace = scratch.join("trace");
    let calls = ["-f", "-e", "trace=ioctl,openat", "-o"];
    let first = bank(&database, "20");
    let mut traced = Command::new("strace");
    traced
        .args(calls)
        .arg(&trace)
        .arg(first.get_program())
        .args(first.get_args());
    traced.env("LD_LIBRARY_PATH", SQLITE);
    assert_eq!(said(&mut traced), SOUND);
    let trace = fs::read_to_string(&trace).unwrap();
    assert!(trace.matches("F2FS_IOC_COMMIT_ATOMIC_WRITE").count() >= 20);
    let journals = trace.matches("bank.db-journal\", O_RDWR").count();
    assert!(journals <= 1, "{trace}");

    let mut reader = bank(&database, "read")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    for n in 0..KILLS {
        let mut writer = bank(&database, "1000000").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(150 + 17 * n % 200));
        writer.kill().unwrap();
        writer.wait().unwrap();
        assert_eq!(said(&mut bank(&database, "0")), SOUND);
    }
    drop(reader.stdin.take());
    let read = reader.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8(read.stdout).unwrap(),
        "read enough wrong 0\n"
    );
    mount.unmount();
    check_clean(image.path(), "after SQLite");
    let script = format!(
        "mount -t f2fs /dev/ubda {TOP}\nsqlite3 {TOP}/bank.db 'pragma integrity_check'\numount {TOP}"
    );
    assert_eq!(boot(&scratch, &[image.path()], &script), "ok\n");
}
