//! Programs that users trust with their data: a database under kills, a version control system, and an I/O tester that
//! checks what it reads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use steadfs_suite::{Image, Scratch, SteadMount, judge, run, succeed};

const MIB: u64 = 1 << 20;

/// A new volume of `kind`.
fn volume(scratch: &Scratch, kind: &str, size: u64) -> Image {
    let image = Image::empty(scratch, &format!("{kind}.img"), size);
    let file = image.path().to_str().unwrap();
    match kind {
        "f2fs" => succeed("mkfs.f2fs", ["-q", "-f", file]),
        _ => succeed("mke2fs", ["-q", "-t", kind, file]),
    };
    image
}

/// Runs the independent checker for `kind` on an unmounted volume.
fn check(kind: &str, image: &Image) {
    match kind {
        "f2fs" => {
            run(
                "fsck.f2fs",
                ["--dry-run".as_ref(), image.path().as_os_str()],
            )
            .expect(0);
        }
        _ => image.check_clean(),
    }
}

/// A shell of SQLite that commits one row after the other, and prints each.
struct Database {
    shell: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Database {
    /// Opens `file`; the rows go through `journal`.
    fn open(file: &Path, journal: &str) -> Self {
        let mut shell = Command::new(judge("sqlite3"))
            .args(["-batch", "-bail"])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // After a kill every statement fails, as expected.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let say = shell.stdin.take().unwrap();
        let hear = BufReader::new(shell.stdout.take().unwrap());
        let mut database = Self { shell, say, hear };
        // `full` would not wait for the removal of the journal, which commits in mode `delete`.
        let set = format!(
            "pragma synchronous=extra; pragma mmap_size=67108864; pragma journal_mode={journal};"
        );
        // The size of the map, then the mode.
        assert_eq!(database.query(&set).as_deref(), Some("67108864"));
        assert_eq!(database.line().as_deref(), Some(journal));
        database
    }

    /// The first line of the result of `statements`; `None` if there is no server any more.
    fn query(&mut self, statements: &str) -> Option<String> {
        writeln!(self.say, "{statements}").ok()?;
        self.line()
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.hear.read_line(&mut line).ok()?;
        (count > 0).then(|| line.trim_end().to_owned())
    }

    /// Commits row `number`; returns whether that was acknowledged.
    fn insert(&mut self, number: u64) -> bool {
        let row = format!(
            "insert into t values({number}, randomblob({})); select {number};",
            number * 397 % 9000
        );
        self.query(&row) == Some(number.to_string())
    }

    fn close(mut self) {
        drop(self.say);
        self.shell.wait().unwrap();
    }
}

/// Commits rows until `limit` are acknowledged or, with a kill, until the server is gone.
fn commit_until_killed(
    mount: SteadMount,
    file: &Path,
    journal: &str,
    from: u64,
    limit: u64,
) -> u64 {
    let mut database = Database::open(file, journal);
    let mut number = from;
    while number < limit {
        assert!(database.insert(number + 1), "row {number} before the kill");
        number += 1;
    }
    // The kill occurs at any time of the following.
    let killer = std::thread::spawn(move || mount.kill());
    while database.insert(number + 1) {
        number += 1;
    }
    killer.join().unwrap();
    database.close();
    number
}

fn a_database_survives_kills(kind: &str) {
    let scratch = Scratch::new();
    let image = volume(&scratch, kind, 128 * MIB);
    for journal in ["wal", "delete", "truncate", "persist"] {
        let mut acknowledged = 0;
        for round in 0..4 {
            let mount = SteadMount::new(&scratch, image.path(), "");
            let file = mount.join(&format!("{journal}.db"));
            if round == 0 {
                let make = "create table t(id integer primary key, data blob);";
                succeed("sqlite3", [file.as_os_str(), make.as_ref()]);
            }
            let limit = acknowledged + 20;
            acknowledged = commit_until_killed(mount, &file, journal, acknowledged, limit);
            let mount = SteadMount::new(&scratch, image.path(), "");
            let query =
                "pragma integrity_check; select count(*) >= max(id) from t; select max(id) from t;";
            let output = succeed("sqlite3", [file.as_os_str(), query.as_ref()]).out;
            let lines: Vec<&str> = output.lines().collect();
            let &["ok", "1", last] = lines.as_slice() else {
                panic!("{kind}, {journal}, round {round}: {output}");
            };
            let last: u64 = last.parse().unwrap();
            // The row in flight at the kill may have been committed.
            assert!(
                last == acknowledged || last == acknowledged + 1,
                "{kind}, {journal}, round {round}: {acknowledged} acknowledged, {last} there"
            );
            acknowledged = last;
            mount.unmount();
            check(kind, &image);
        }
    }
}

#[test]
fn a_database_on_ext4_survives_kills() {
    a_database_survives_kills("ext4");
}

#[test]
fn a_database_on_f2fs_survives_kills() {
    a_database_survives_kills("f2fs");
}

#[test]
fn fio_verifies_what_it_wrote() {
    for kind in ["ext4", "f2fs"] {
        let scratch = Scratch::new();
        let image = volume(&scratch, kind, 256 * MIB);
        let mount = SteadMount::new(&scratch, image.path(), "");
        for (engine, direct, sizes) in [
            ("psync", "0", "1k-128k"),
            ("libaio", "1", "4k-64k"),
            ("mmap", "0", "4k-32k"),
        ] {
            let mut fio = Command::new(judge("fio"));
            fio.current_dir(scratch.folder("fio"))
                .args(["--name=verify", "--size=12m", "--numjobs=2", "--rw=randrw"])
                .args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1"])
                // Written in rounds of 32 blocks, each read back at once; with an occasional fsync.
                .args([
                    "--verify_backlog=32",
                    "--fsync=20",
                    "--randseed=7",
                    "--iodepth=8",
                ])
                .args([format!("--ioengine={engine}"), format!("--direct={direct}")])
                .args([
                    format!("--bsrange={sizes}"),
                    format!("--filename_format={engine}.$jobnum"),
                ])
                .arg("--directory")
                .arg(mount.root());
            steadfs_suite::command::finish(fio, std::time::Duration::from_secs(600)).expect(0);
        }
        mount.unmount();
        check(kind, &image);
    }
}

#[test]
fn a_repository_passes_git_fsck() {
    for kind in ["ext4", "f2fs"] {
        let scratch = Scratch::new();
        let image = volume(&scratch, kind, 128 * MIB);
        let mount = SteadMount::new(&scratch, image.path(), "");
        let tree = mount.join("tree");
        let git = |words: &[&str]| {
            let mut command = Command::new(judge("git"));
            command
                .args(["-c", "user.name=a", "-c", "user.email=a@b", "-C"])
                .arg(&tree)
                .args(words)
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .env("GIT_CONFIG_NOSYSTEM", "1");
            steadfs_suite::command::finish(command, std::time::Duration::from_secs(600)).expect(0)
        };
        fs::create_dir(&tree).unwrap();
        git(&["init", "--quiet"]);
        for commit in 0..5 {
            for file in 0..60 {
                let dir = tree.join(format!("d{}", file % 7));
                fs::create_dir_all(&dir).unwrap();
                let line = format!("{} {}\n", file * 31, commit * file);
                fs::write(dir.join(file.to_string()), line.repeat(file * 9 + 1)).unwrap();
            }
            git(&["add", "--all"]);
            git(&["commit", "--quiet", "--message", "c"]);
        }
        git(&["branch", "old", "HEAD~3"]);
        git(&["gc", "--quiet", "--prune=now"]);
        git(&["checkout", "--quiet", "old"]);
        git(&["checkout", "--quiet", "-"]);
        assert_eq!(git(&["status", "--porcelain"]).out, "", "{kind}");
        mount.unmount();
        check(kind, &image);
        let mount = SteadMount::new(&scratch, image.path(), "");
        git(&["fsck", "--full", "--strict"]);
        assert_eq!(
            git(&["status", "--porcelain"]).out,
            "",
            "{kind}, mounted again"
        );
        assert_eq!(git(&["rev-list", "--count", "HEAD"]).out.trim(), "5");
        mount.unmount();
    }
}
