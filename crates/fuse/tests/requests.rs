//! The number of requests of each call: the minimum of the protocol, so that a regression is noticed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

use common::TestMount;
use steadfs_fuse::Transport;

/// Requests that `call` makes, as `NAME` or `NAMExN` in the order of the operation numbers. Without FORGET, which the
/// kernel sends at a time of its choice.
fn cost(mount: &TestMount, call: impl FnOnce()) -> String {
    let stats = || mount.mounted.as_ref().unwrap().stats().requests();
    let before = stats();
    call();
    let mut words = Vec::new();
    for (name, after) in stats() {
        let old = before.iter().find(|(n, _)| *n == name).map_or(0, |b| b.1);
        match after - old {
            _ if name.contains("FORGET") => {}
            // The end of a directory is sometimes read twice.
            2 if name == "READDIR" => words.push(name.to_owned()),
            0 => {}
            1 => words.push(name.to_owned()),
            n => words.push(format!("{name}x{n}")),
        }
    }
    words.join(" ")
}

/// One call with its requests.
struct Row<'a> {
    name: &'static str,
    cost: &'static str,
    call: Box<dyn FnOnce() + 'a>,
}

fn row<'a>(name: &'static str, cost: &'static str, call: impl FnOnce() + 'a) -> Row<'a> {
    let call = Box::new(call);
    Row { name, cost, call }
}

/// Files and names. What is not obvious:
///
/// * A change in a directory invalidates the directory's attributes in the kernel; the next path walk through it
///   fetches them again (GETATTR), to check permissions.
/// * GETXATTR requests `security.capability`, once after each refresh of a file's attributes, before the kernel lets a
///   write or truncation through.
/// * std requests the birth time with every stat, so STATX appears where stat(2) would cause GETATTR or nothing.
fn rows(mount: &TestMount) -> Vec<Row<'_>> {
    const BLOCK: [u8; 4096] = [7; 4096];
    let at = |name: &str| mount.path(name);
    let stat = move |name: &str| rustix::fs::stat(at(name)).map_or((), |_| ());
    let writer = move |name: &str| File::options().write(true).open(at(name)).unwrap();
    vec![
        row(
            "create, write 4 KiB, close",
            "LOOKUP GETATTR MKNOD WRITE GETXATTR",
            move || File::create(at("a")).unwrap().write_all(&BLOCK).unwrap(),
        ),
        row("open, write 4 KiB, close", "GETATTR WRITE", move || {
            writer("a").write_all_at(&BLOCK, 4096).unwrap();
        }),
        row("stat after writing", "GETATTR", move || stat("a")),
        row("stat again", "", move || stat("a")),
        row("first statx with birth time", "STATX", move || {
            assert!(fs::metadata(at("a")).unwrap().created().is_ok());
        }),
        row("open, read what was written, close", "", move || {
            assert_eq!(fs::read(at("a")).unwrap(), [7; 8192]);
        }),
        row("append 4 KiB", "WRITE GETXATTR", move || {
            let mut f = OpenOptions::new().append(true).open(at("a")).unwrap();
            f.write_all(&BLOCK).unwrap();
        }),
        row("write 1 MiB", "WRITE", move || {
            writer("a").write_all_at(&vec![1; 1 << 20], 0).unwrap();
        }),
        row("fsync", "FSYNC", move || {
            File::open(at("a")).unwrap().sync_all().unwrap();
        }),
        row("stat of a missing name", "LOOKUP", move || stat("no")),
        row("stat of a missing name again", "", move || stat("no")),
        row("mkdir", "LOOKUP MKDIR", move || {
            fs::create_dir(at("d")).unwrap();
        }),
        row("rename", "LOOKUP GETATTR RENAME", move || {
            fs::rename(at("a"), at("b")).unwrap();
        }),
        row("stat after renaming", "GETATTRx2", move || stat("b")),
        row("hard link", "LOOKUP LINK", move || {
            fs::hard_link(at("b"), at("a")).unwrap();
        }),
        row("truncate", "GETATTR SETATTR GETXATTR", move || {
            writer("a").set_len(5).unwrap();
        }),
        row("unlink", "UNLINK", move || {
            fs::remove_file(at("b")).unwrap();
        }),
    ]
}

/// A directory with 100 files. `ls -l` requests the access ACL of each, both ACLs of the directory, and the label of
/// the directory only.
fn directory_rows(mount: &TestMount) -> Vec<Row<'_>> {
    let dir = mount.path("d");
    for i in 0..100 {
        File::create(dir.join(format!("{i:03}"))).unwrap();
    }
    let list = || assert_eq!(fs::read_dir(mount.path("d")).unwrap().count(), 100);
    vec![
        row("list 100 names", "GETATTR READDIR READDIRPLUS", list),
        row("stat 100 files by name", "", move || {
            for i in 0..100 {
                rustix::fs::stat(dir.join(format!("{i:03}"))).unwrap();
            }
        }),
        row("list 100 names again", "GETATTR", list),
        row("list 100 names once more", "", list),
        row("ls -l of 100 files", "GETXATTRx103", || {
            let dir = mount.path("d");
            let done = std::process::Command::new("ls").arg("-l").arg(dir).output();
            assert!(done.unwrap().status.success());
        }),
    ]
}

/// Makes the calls on a fresh mount; returns those with other requests than expected.
fn deviations(transport: Transport) -> Vec<String> {
    let mount = TestMount::new(transport);
    // After this the kernel sends no requests for opens and closes.
    fs::write(mount.path("a"), "x").unwrap();
    drop(File::open(mount.path("a")).unwrap());
    assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 1);
    fs::remove_file(mount.path("a")).unwrap();
    let mut wrong = Vec::new();
    for rows in [rows, directory_rows] {
        for Row { name, cost, call } in rows(&mount) {
            let found = self::cost(&mount, call);
            println!("{name:36} {found}");
            if found != cost {
                wrong.push(format!("{name}: {found} instead of {cost}"));
            }
        }
    }
    for once in ["OPEN", "OPENDIR", "FLUSH"] {
        assert_eq!(mount.count(once), 1, "{once} comes once");
    }
    // On a kernel other than that of the table, only the principle is checked.
    if mount.mounted.as_ref().unwrap().protocol_minor() != 45 {
        wrong.clear();
    }
    mount.end();
    wrong
}

#[test]
fn each_call_makes_the_minimum_of_requests() {
    for transport in common::transports() {
        // The kernel repeats requests for what it had to evict: if memory is short, or if another program drops its
        // caches. What a call causes itself occurs every time.
        let begin = steadfs_rt::now();
        let mut wrong = deviations(transport);
        while !wrong.is_empty() {
            assert!(begin.elapsed().as_secs() < 30, "{wrong:#?}");
            steadfs_rt::sleep(std::time::Duration::from_millis(50));
            wrong = deviations(transport);
        }
    }
}
