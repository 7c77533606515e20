//! Volumes filled from tar archives.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

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

/// A header and its data, padded.
fn member(kind: u8, name: &str, data: &[u8]) -> Vec<u8> {
    let mut member = vec![0; 512];
    member[..name.len()].copy_from_slice(name.as_bytes());
    let size = format!("{:011o}", data.len());
    member[124..135].copy_from_slice(size.as_bytes());
    member[148..156].fill(b' ');
    member[156] = kind;
    let sum: u32 = member.iter().map(|&byte| u32::from(byte)).sum();
    member[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    member.extend(data);
    member.resize(member.len().next_multiple_of(512), 0);
    member
}

/// The errors of a file's attributes are more than a socket takes, and the next file is, too.
#[test]
fn a_file_whose_attributes_are_all_refused_holds_nothing_up() {
    let scratch = Scratch::new();
    let record = |key: &str, value: &str| {
        let rest = format!(" SCHILY.xattr.{key}={value}\n");
        let digits = (rest.len() + 4).to_string().len();
        format!("{}{rest}", rest.len() + digits)
    };
    let refused: String = (0..4000).map(|n| record(&format!("a.{n}"), "v")).collect();
    let long = record("user.x", &"v".repeat(500_000));
    let archive = [
        member(b'x', "p", refused.as_bytes()),
        member(b'0', "f1", b"1"),
        member(b'x', "p", long.as_bytes()),
        member(b'0', "f2", b"22"),
        vec![0; 1024],
    ];
    fs::write(scratch.join("a.tar"), archive.concat()).unwrap();
    let made = shell(
        "$S format -q -d a.tar volume 16M 2>errors || echo $?; grep -c f1 errors; $S cat volume:/f2",
        scratch.path(),
    );
    assert_eq!(
        (made.code(), &*made.out),
        (0, "1\n4000\n22"),
        "{}",
        made.err
    );
}

/// However an archive asks for memory, 1 GiB of address space is enough to refuse it.
#[test]
fn the_memory_for_an_archive_is_bounded() {
    let scratch = Scratch::new();
    let value = "v".repeat(9 << 20);
    let record = format!("{} SCHILY.xattr.user.a={value}\n", value.len() + 29);
    let for_all = member(b'g', "g", record.as_bytes());
    let long = |n: usize| {
        member(
            b'L',
            "l",
            format!("{n}/{}\0", "n".repeat((1 << 20) - 99)).as_bytes(),
        )
    };
    let named = |n| [long(n), member(b'0', "x", b"")].concat();
    let hostile = |piece: &dyn Fn(usize) -> Vec<u8>, pieces: usize, words: &str| {
        let mut shell = Command::new("bash");
        let script = "ulimit -v 1048576; exec \"$0\" format -q --sandbox=off -d - new 64M";
        shell
            .current_dir(scratch.path())
            .args(["-c", script])
            .arg(program());
        shell.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut stream = child.stdin.take().unwrap();
        for n in 0..pieces {
            // It ends before the stream does.
            if stream.write_all(&piece(n)).is_err() {
                break;
            }
        }
        drop(stream);
        let output = child.wait_with_output().unwrap();
        let shown = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && shown.contains(words),
            "{output:?}"
        );
        assert!(!scratch.join("new").exists());
    };
    let most = "attributes of one member need more than 16 MiB";
    hostile(&|_| for_all.clone(), 120, most);
    hostile(&named, 600, "members need more than 512 MiB");
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
