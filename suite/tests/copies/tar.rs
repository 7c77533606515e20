//! `steadfs tar`, read by GNU tar.

use std::fs;
use std::path::Path;
use std::process::Command;

use steadfs_suite::command::{PATIENCE, finish};
use steadfs_suite::stead::program;
use steadfs_suite::tree::set_xattr;
use steadfs_suite::{Compare, Image, Scratch, Tree, run, steadfs, succeed};

use super::{MIB, at, cp, image, refused, source};

/// Extracts with everything that GNU tar keeps.
pub fn unpack(archive: &Path, to: &Path) {
    let words = ["--xattrs", "--xattrs-include=*", "--acls", "--warning=none"];
    let places = ["-xpf".as_ref(), archive, "-C".as_ref(), to];
    let words = words.iter().map(AsRef::as_ref).chain(places);
    succeed("tar", words.collect::<Vec<&Path>>());
}

/// GNU tar leaves sockets out.
fn without_sockets(mut tree: Tree) -> Tree {
    tree.nodes.retain(|_, node| node.mode >> 12 != 0o14);
    tree
}

#[test]
fn gnu_tar_restores_what_extract_copies() {
    let scratch = Scratch::new();
    let source = source(&scratch);
    let odd = source.join("attributes/odd");
    fs::write(&odd, "x").unwrap();
    set_xattr(&odd, "user.a=b%25c", b"line\n0=1");
    succeed("setfacl", ["-m", "u:1000:rwx", odd.to_str().unwrap()]);
    let folder = source.join("attributes");
    succeed("setfacl", ["-dm", "g:7:r-x", folder.to_str().unwrap()]);
    let (long, far) = ("n".repeat(120), source.join("far"));
    fs::create_dir_all(source.join(&long).join(&long)).unwrap();
    let nine_gib = fs::File::create(far).unwrap();
    nine_gib.set_len(9 << 30).unwrap();
    let exact = Compare {
        holes: true,
        ..Compare::COPY
    };
    for kind in ["ext4", "f2fs"] {
        let volume = image(&scratch, kind, kind, 256 * MIB);
        cp(&["-a", source.to_str().unwrap(), &at(&volume, "/")]);
        let archives = ["one", "two"].map(|name| {
            let archive = scratch.join(name);
            let from = at(&volume, "/source");
            let words = ["tar", &from, "-f", archive.to_str().unwrap()];
            let output = steadfs(words).expect(0);
            assert_eq!(output.err.lines().count(), 1, "{}", output.err);
            assert!(
                output.err.contains("/socket: is a socket"),
                "{}",
                output.err
            );
            archive
        });
        let [one, two] = archives
            .each_ref()
            .map(|archive| fs::read(archive).unwrap());
        assert!(one == two, "two archives of one volume differ");
        let (theirs, ours) = (scratch.folder("theirs"), scratch.join("ours"));
        unpack(&archives[0], &theirs);
        steadfs(["extract", &at(&volume, "/source"), ours.to_str().unwrap()]).expect(0);
        let ours = without_sockets(Tree::of(&ours));
        ours.assert_same(&without_sockets(Tree::of(&theirs)), exact, kind);
        succeed("rm", ["-r", scratch.join("theirs").to_str().unwrap()]);
        succeed("rm", ["-r", scratch.join("ours").to_str().unwrap()]);
    }
}

#[test]
fn an_archive_of_one_file_has_its_name() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 16 * MIB);
    let file = scratch.join("file");
    fs::write(&file, vec![7; 100_000]).unwrap();
    cp(&[file.to_str().unwrap(), &at(&volume, "/")]);
    let (program, place) = (program().display(), at(&volume, "/file"));
    let list = |command: String| {
        let mut shell = Command::new("bash");
        shell.args(["-c", &command]);
        finish(shell, PATIENCE)
    };
    let listed = list(format!(
        "set -o pipefail; {program} tar {place} | tar -tf -"
    ));
    assert_eq!(listed.expect(0).out, "file\n");
    // A reader that ends early ends the command, without a message.
    let cut = list(format!(
        "{program} tar {place} | head -c 600 >/dev/null; exit ${{PIPESTATUS[0]}}"
    ));
    assert_eq!((cut.code(), &*cut.err), (141, ""));
    let image = volume.path().to_str().unwrap();
    refused(&["tar", image, "-f", image], "is the image that is read");
    refused(&["tar", &at(&volume, "/none")], "/none: no such file");
    volume.check_clean();
}

/// A file that cannot be read keeps its place in the archive, and the exit code is 1.
#[test]
fn unreadable_files_are_filled_and_reported() {
    let scratch = Scratch::new();
    let volume = Image::mke2fs(&scratch, "a.img", 16 * MIB, &["-t", "ext4", "-O", "^64bit"]);
    let (bad, good) = (scratch.join("bad"), scratch.join("good"));
    fs::write(&bad, vec![1; 9000]).unwrap();
    fs::write(&good, "fine").unwrap();
    for file in [&bad, &good] {
        cp(&[file.to_str().unwrap(), &at(&volume, "/")]);
    }
    // Its only extent leads out of the volume.
    volume.debugfs("set_inode_field /bad block[5] 0x00ffff00\n");
    let archive = scratch.join("archive");
    let words = ["tar", &at(&volume, "/"), "-f", archive.to_str().unwrap()];
    let output = steadfs(words);
    assert_eq!(output.code(), 1, "{}", output.err);
    assert!(
        output.err.contains("/bad: volume is corrupt"),
        "{}",
        output.err
    );
    let out = scratch.folder("out");
    run(
        "tar",
        [
            "-xf",
            archive.to_str().unwrap(),
            "-C",
            out.to_str().unwrap(),
        ],
    )
    .expect(0);
    assert_eq!(fs::read_to_string(out.join("good")).unwrap(), "fine");
}
