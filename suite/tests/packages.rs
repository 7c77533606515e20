//! The packages of the program: the tar archive that is unpacked below a prefix, and the Debian package. Here they are made
//! of a script that starts the program under test, which is large; the ignored test makes those of `make dist`, whose program
//! needs nothing of the machine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use steadfs_suite::command::finish;
use steadfs_suite::stead::program;
use steadfs_suite::{Outcome, Scratch, run};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The only file in a directory whose name has this end.
fn only(dir: &Path, end: &str) -> PathBuf {
    let found = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let found: Vec<_> = found
        .filter(|path| path.to_str().unwrap().ends_with(end))
        .collect();
    assert_eq!(found.len(), 1, "{end} in {}", dir.display());
    found[0].clone()
}

fn package(scratch: &Scratch, out: &str) -> PathBuf {
    let (out, built) = (scratch.join(out), scratch.folder("built"));
    let start = format!("#!/bin/sh\nexec '{}' \"$@\"\n", program().display());
    fs::write(built.join("steadfs"), start).unwrap();
    let _ = fs::remove_file(built.join("examples"));
    symlink(
        program().parent().unwrap().join("examples"),
        built.join("examples"),
    )
    .unwrap();
    let script = format!("{SOURCES}/scripts/package");
    run(&script, [&built, &out]).expect(0);
    out
}

/// Runs dpkg on a machine of its own, a directory.
fn dpkg(root: &Path, words: &[&str]) -> Outcome {
    let mut dpkg = Command::new("dpkg");
    dpkg.arg(format!("--root={}", root.display()))
        .args(["--force-depends", "--log=/dev/null"])
        .args(words);
    finish(dpkg, Duration::from_secs(60))
}

/// The files and links below a directory.
fn files(root: &Path) -> Vec<String> {
    let found = run(
        "find",
        [root.to_str().unwrap(), "!", "-type", "d", "-printf", "%P\n"],
    );
    let mut found: Vec<_> = found.expect(0).out.lines().map(str::to_owned).collect();
    found.sort();
    found
}

#[test]
fn the_debian_package_is_installed_and_purged() {
    let scratch = Scratch::new();
    let (out, again) = (package(&scratch, "out"), package(&scratch, "again"));
    let deb = only(&out, ".deb");
    assert_eq!(
        fs::read(&deb).unwrap(),
        fs::read(only(&again, ".deb")).unwrap()
    );
    let root = scratch.folder("root");
    scratch.folder("root/var/lib/dpkg/info");
    scratch.folder("root/var/lib/dpkg/updates");
    for file in ["status", "available"] {
        fs::write(root.join("var/lib/dpkg").join(file), b"").unwrap();
    }
    let before = files(&root);
    dpkg(&root, &["-i", deb.to_str().unwrap()]).expect(0);
    assert_eq!(dpkg(&root, &["--verify", "steadfs"]).expect(0).out, "");
    let installed = files(&root);
    for name in [
        "usr/bin/steadfs",
        "usr/sbin/mount.steadfs",
        "usr/sbin/umount.fuseblk.steadfs",
        "usr/sbin/fsck.steadfs",
        "usr/share/man/man8/fsck.steadfs.8.gz",
        "usr/share/man/man1/steadfs-mount.1.gz",
        "usr/share/man/man8/mount.steadfs.8.gz",
        "usr/share/bash-completion/completions/steadfs",
        "usr/lib/systemd/system/steadfs@.service",
        "usr/share/doc/steadfs/copyright",
    ] {
        assert!(
            installed.iter().any(|file| file == name),
            "{name} is not in {installed:#?}"
        );
    }
    let helper = fs::read_link(root.join("usr/sbin/mount.steadfs")).unwrap();
    assert_eq!(helper, Path::new("/usr/bin/steadfs"));
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/steadfs@.service")).unwrap();
    assert!(unit.contains("\nExecStart=/usr/bin/steadfs service\n"));
    dpkg(&root, &["--purge", "steadfs"]).expect(0);
    let mut left = files(&root);
    left.retain(|file| !before.contains(file) && !file.starts_with("var/lib/dpkg/"));
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn the_archive_is_unpacked_anywhere() {
    let scratch = Scratch::new();
    let archive = only(&package(&scratch, "out"), ".tar.xz");
    let prefix = scratch.folder("prefix");
    let words = [
        "-C",
        prefix.to_str().unwrap(),
        "--strip-components=1",
        "-xf",
    ];
    run("tar", words.into_iter().chain([archive.to_str().unwrap()])).expect(0);
    for program in ["bin/steadfs", "sbin/mount.steadfs", "sbin/fsck.steadfs"] {
        let version = run(prefix.join(program).to_str().unwrap(), ["--version"]).expect(0);
        assert!(version.out.starts_with("steadfs ") || program.starts_with("sbin"));
    }
    let names = files(&prefix);
    for name in ["share/man/man1/steadfs.1", "share/doc/steadfs/LICENSE-MIT"] {
        assert!(
            names.iter().any(|file| file == name),
            "{name} is not in {names:#?}"
        );
    }
}

/// In a root that has nothing but the archive and what it needs to mount: an image made, filled, mounted, changed, checked.
const STORY: &str = r#"
set -eu
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
trap 'umount -l "$1/mnt" "$1/dev" "$1/proc" 2>/dev/null || true' EXIT
in_root() { chroot "$1" /bin/steadfs "${@:2}"; }
for type in ext4 f2fs; do
    in_root "$1" format -q -t $type disk.img 64M
    in_root "$1" cp -r /share disk.img:/
    in_root "$1" mount disk.img /mnt
    grep " $1/mnt fuse.steadfs rw" /proc/mounts
    grep sandbox=on "$1/mnt/.steadfs/options"
    cmp "$1/mnt/share/doc/steadfs/README.md" "$1/share/doc/steadfs/README.md"
    head -c 10000000 /dev/urandom >"$1/mnt/random"
    sync "$1/mnt/random"
    cp "$1/mnt/random" "$1/random"
    in_root "$1" upgrade /mnt
    cmp "$1/mnt/random" "$1/random"
    in_root "$1" umount /mnt
    in_root "$1" cat disk.img:/random | cmp - "$1/random"
    in_root "$1" check disk.img
    rm "$1/disk.img"
done
"#;

#[test]
#[ignore = "builds the program once more, with link-time optimisation: some minutes"]
fn the_static_program_needs_nothing_of_the_machine() {
    const MOST: u64 = 12 << 20;
    let mut make = Command::new("make");
    make.args(["-C", SOURCES, "dist"]);
    finish(make, Duration::from_secs(3000)).expect(0);
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| Path::new(SOURCES).join("target"), PathBuf::from);
    let out = target.join("packages");
    let bill = fs::read_to_string(only(&out, ".cdx.json")).unwrap();
    assert!(bill.contains("\"CycloneDX\"") && bill.contains("\"rustix\""));
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let archive = only(&out, ".tar.xz");
    let words = ["-C", root.to_str().unwrap(), "--strip-components=1", "-xf"];
    run("tar", words.into_iter().chain([archive.to_str().unwrap()])).expect(0);
    let size = fs::metadata(&archive).unwrap().len();
    assert!(size <= MOST, "the archive has {size} bytes");
    for folder in ["proc", "dev", "mnt", "tmp", "run"] {
        fs::create_dir(root.join(folder)).unwrap();
    }
    symlink("/proc/self/mounts", root.join("mtab")).unwrap();
    let mut story = Command::new("unshare");
    story.args(["-m", "bash", "-c", STORY, "story"]).arg(&root);
    finish(story, Duration::from_secs(300)).expect(0);
}
