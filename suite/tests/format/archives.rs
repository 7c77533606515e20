//! Volumes filled from tar archives.

use std::fs;
use std::path::Path;
use std::process::Command;

use steadfs_suite::command::{PATIENCE, finish};
use steadfs_suite::generate::{Torture, torture};
use steadfs_suite::stead::program;
use steadfs_suite::{Compare, Scratch, Tree, run, steadfs, succeed};

use super::clean;

fn shell(script: &str, dir: &Path) -> steadfs_suite::Outcome {
    let mut shell = Command::new("bash");
    shell.env("S", program()).current_dir(dir);
    shell.args(["-o", "pipefail", "-ec", script]);
    finish(shell, PATIENCE)
}

/// GNU tar's formats, each read by GNU tar and by `format -d`.
#[test]
fn archives_of_all_formats_make_the_tree_that_gnu_tar_makes() {
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    torture(
        &source,
        Torture {
            block: 1024,
            far: 1 << 31,
            longest_link: 1023,
            xattr_bytes: 900,
            many: 50,
        },
    );
    let xattrs = "--xattrs --xattrs-include=* --acls --warning=none";
    let pax = format!("--format=pax {xattrs} -S --sparse-version");
    for (kind, how) in [
        ("ext4", &*format!("{pax}=0.0")),
        ("ext2", &format!("{pax}=0.1")),
        ("ext4", &format!("{pax}=1.0")),
        ("f2fs", &format!("{pax}=1.0")),
        ("ext4", "--format=gnu -S --warning=none"),
    ] {
        let made = shell(
            &format!(
                "rm -rf theirs ours volume; mkdir theirs; set -f
                 tar {how} -cf a.tar -C source . 2>/dev/null || true
                 tar {xattrs} -xpf a.tar -C theirs
                 $S format -q -t {kind} -d - volume 256M <a.tar
                 rm volume; cat a.tar | $S format -q -t {kind} -d - volume 256M
                 $S extract volume ours"
            ),
            scratch.path(),
        );
        assert_eq!((made.code(), &*made.err), (0, ""), "{how}");
        let (theirs, ours) = (
            Tree::of(&scratch.join("theirs")),
            Tree::of(&scratch.join("ours")),
        );
        theirs.assert_same(
            &ours,
            Compare {
                holes: true,
                ..Compare::COPY
            },
            how,
        );
        let volume = scratch.join("volume");
        match kind {
            "f2fs" => drop(succeed(
                "fsck.f2fs",
                ["--dry-run".as_ref(), volume.as_os_str()],
            )),
            _ => clean(volume.to_str().unwrap()),
        }
    }
}

/// A broken archive costs no volume, whatever the target holds.
#[test]
fn unusable_archives_change_nothing() {
    let scratch = Scratch::new();
    let made = shell(
        "mkdir d; head -c 100000 /dev/zero >d/file; tar -cf a.tar d; head -c 5000 a.tar >cut.tar
         gzip -k a.tar; $S format -q volume 16M; cp volume before",
        scratch.path(),
    );
    made.expect(0);
    for (from, words) in [
        (
            "cut.tar",
            "cut.tar: byte 1024: the archive ends within a member",
        ),
        (
            "a.tar.gz",
            "a.tar.gz: is compressed by gzip: use gzip -dc a.tar.gz | steadfs format -d -",
        ),
        ("before", "before: is no tar archive"),
        ("volume", "volume: is the file that the volume is made in"),
        ("none", "none: No such file"),
    ] {
        for kind in ["ext4", "f2fs"] {
            let command = format!("$S format -f -t {kind} -d {from} volume 64M");
            let output = shell(&command, scratch.path());
            assert_eq!(
                (output.code(), output.err.lines().count()),
                (1, 1),
                "{from}: {}",
                output.err
            );
            assert!(output.err.contains(words), "{}", output.err);
        }
        run("cmp", [scratch.join("volume"), scratch.join("before")]).expect(0);
    }
    let other = shell(
        "$S format -d cut.tar new 16M; test ! -e new",
        scratch.path(),
    );
    assert!(other.err.contains("cut.tar: byte"), "{}", other.err);
    // What is refused by name only is reported, and the rest is there.
    let output = shell(
        "echo >d/good; tar -P -cf up.tar d/../d/file d/good; $S format -q -d up.tar up.img 16M",
        scratch.path(),
    );
    assert_eq!(output.code(), 1, "{}", output.err);
    assert!(
        output.err.contains("'..'") && output.err.contains("incomplete"),
        "{}",
        output.err
    );
    let listed = steadfs(["ls", "-R", scratch.join("up.img").to_str().unwrap()]).expect(0);
    assert!(
        listed.out.contains("good") && !listed.out.contains("file"),
        "{}",
        listed.out
    );
    assert!(fs::metadata(scratch.join("up.img")).is_ok());
}
