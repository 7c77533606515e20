//! Copies behave as cp(1) does: what they read, what they write to, and how they continue after an error.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::process::Command;

use steadfs_suite::command::{PATIENCE, finish};
use steadfs_suite::stead::program;
use steadfs_suite::{Image, Scratch, run, steadfs};

use super::{MIB, at, cp, image, refused};

/// Runs a line of bash with the program as `$S`.
fn bash(scratch: &Scratch, line: &str) -> (i32, String) {
    let mut shell = Command::new("bash");
    shell
        .args(["-c", line])
        .env("S", program())
        .current_dir(scratch.join("."));
    let output = finish(shell, PATIENCE);
    (output.code(), output.out)
}

fn content(image: &Image, path: &str) -> String {
    steadfs(["cat", &at(image, path)]).expect(0).out
}

#[test]
fn sources_are_read_as_cp_reads_them() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 16 * MIB);
    for line in [
        "echo kernel >vmlinuz-6; ln -s vmlinuz-6 vmlinuz; mkdir d; ln -s ../vmlinuz d/link; ln -s d dir",
        "$S cp vmlinuz a.img:/followed",
        "$S cp -P vmlinuz a.img:/link && $S cp -d vmlinuz a.img:/link2",
        "echo piped | $S cp /dev/stdin a.img:/stdin",
        "echo dash | $S cp - a.img:/dash",
        "$S cp <(echo substituted) a.img:/sub",
        "mkfifo p; echo waited >p & $S cp p a.img:/pipe",
        "$S cp -r p a.img:/node",
        "$S cp -r d dir a.img:/ && $S cp -rL d a.img:/followed-tree && $S cp -rH dir a.img:/named",
        "test \"$($S cp a.img:/followed -)\" = kernel",
        "$S cp /proc/self/status a.img:/proc && $S cat a.img:/proc | grep -q ^Name:",
        // Within the volume, and out of it.
        "$S cp a.img:/link a.img:/vmlinuz-6 2>err; grep -q 'no such file' err",
        "$S cp vmlinuz-6 a.img: && $S cp a.img:/link a.img:/again && $S cp a.img:/link out",
        "test -f out && ! test -L out && ! $S cp a.img:/node out2 2>err && grep -q 'a.*-r copies it' err",
    ] {
        assert_eq!(bash(&scratch, line).0, 0, "{line}");
    }
    for (path, wanted) in [
        ("/followed", "kernel"),
        ("/stdin", "piped"),
        ("/dash", "dash"),
        ("/sub", "substituted"),
        ("/pipe", "waited"),
        ("/followed-tree/link", "kernel"),
        ("/again", "kernel"),
    ] {
        assert_eq!(content(&volume, path).trim_end(), wanted, "{path}");
    }
    let listed = steadfs(["ls", "-l", &at(&volume, "/")]).expect(0).out;
    let kinds = ["link -> vmlinuz-6", "link2 -> vmlinuz-6", "dir -> d"];
    for wanted in kinds {
        assert!(listed.contains(wanted), "{wanted}: {listed}");
    }
    let kind = |path: &str| steadfs(["ls", "-ld", &at(&volume, path)]).expect(0).out;
    assert!(kind("/node").starts_with('p') && kind("/named/link").starts_with('l'));
    let (mode, umask) = (kind("/dash"), bash(&scratch, "umask").1);
    let wanted = match umask.trim() {
        "0022" => "-rw-r--r--",
        _ => "-rw",
    };
    assert!(mode.starts_with(wanted), "{mode}");
    volume.check_clean();
}

#[test]
fn targets_on_the_host_are_written_as_cp_writes_them() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 16 * MIB);
    let text = scratch.join("text");
    fs::write(&text, "new text").unwrap();
    cp(&[text.to_str().unwrap(), &at(&volume, "/f")]);
    let from = at(&volume, "/f");
    let host = |name: &str| scratch.join(name).to_str().unwrap().to_owned();
    run("mknod", [&host("null"), "c", "1", "3"]).expect(0);
    fs::write(host("target"), "a longer old text").unwrap();
    chown(host("target"), Some(12), Some(34)).unwrap();
    fs::set_permissions(host("target"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(host("target"), host("twin")).unwrap();
    symlink("target", host("link")).unwrap();
    symlink("nowhere", host("dangling")).unwrap();
    let before = fs::metadata(host("target")).unwrap();

    for name in ["null", "link", "target"] {
        for word in ["-f", "-r"] {
            cp(&[word, &from, &host(name)]);
        }
    }
    let node = fs::metadata(host("null")).unwrap();
    assert!(node.file_type().is_char_device() && node.rdev() == before_null());
    assert!(fs::symlink_metadata(host("link")).unwrap().is_symlink());
    let after = fs::metadata(host("twin")).unwrap();
    assert_eq!(fs::read_to_string(host("twin")).unwrap(), "new text");
    assert_eq!(
        (after.ino(), after.uid(), after.gid(), after.mode()),
        (before.ino(), 12, 34, before.mode())
    );
    refused(&["cp", &from, &host("dangling")], "leads nowhere");
    refused(&["cp", "-f", &from, &host("dangling")], "leads nowhere");
    assert!(!scratch.join("nowhere").exists());
    cp(&["-n", &from, &host("dangling")]);
    assert!(fs::symlink_metadata(host("dangling")).unwrap().is_symlink());
    cp(&["--remove-destination", &from, &host("dangling")]);
    assert_eq!(fs::read_to_string(host("dangling")).unwrap(), "new text");

    // Below a copied directory, nothing is written through an existing link.
    let tree = scratch.folder("tree");
    fs::write(tree.join("link"), "from the tree").unwrap();
    fs::write(tree.join("other"), "other").unwrap();
    cp(&["-r", tree.to_str().unwrap(), &at(&volume, "/")]);
    let out = scratch.folder("out");
    symlink(host("target"), out.join("link")).unwrap();
    let place = at(&volume, "/tree/.");
    refused(
        &["cp", "-rf", &place, out.to_str().unwrap()],
        "/link: is a link",
    );
    assert_eq!(fs::read_to_string(host("target")).unwrap(), "new text");
    assert_eq!(fs::read_to_string(out.join("other")).unwrap(), "other");

    // A link created for one source is not written through by the next one.
    fs::create_dir(scratch.join("2")).unwrap();
    symlink(host("target"), scratch.join("2/f")).unwrap();
    cp(&["-r", scratch.join("2").to_str().unwrap(), &at(&volume, "/")]);
    let into = scratch.folder("into");
    let output = steadfs([
        "cp",
        "-r",
        &at(&volume, "/2/f"),
        &from,
        into.to_str().unwrap(),
    ]);
    assert_eq!(output.code(), 1);
    assert!(
        output.err.contains("made by this copy already"),
        "{}",
        output.err
    );
    assert_eq!(fs::metadata(host("target")).unwrap().ino(), before.ino());
    assert_eq!(fs::read_to_string(host("target")).unwrap(), "new text");
}

fn before_null() -> u64 {
    rustix::fs::makedev(1, 3)
}

#[test]
fn targets_on_a_volume_are_written_as_cp_writes_them() {
    let scratch = Scratch::new();
    let host = scratch.folder("host");
    fs::write(host.join("owned"), "old").unwrap();
    chown(host.join("owned"), Some(12), Some(34)).unwrap();
    fs::hard_link(host.join("owned"), host.join("twin")).unwrap();
    symlink("owned", host.join("link")).unwrap();
    symlink("nowhere", host.join("dangling")).unwrap();
    let text = scratch.join("text");
    fs::write(&text, "text").unwrap();
    let other = image(&scratch, "other.img", "ext4", 16 * MIB);
    cp(&[text.to_str().unwrap(), &at(&other, "/text")]);
    for kind in ["ext4", "f2fs"] {
        let volume = image(&scratch, &format!("{kind}.img"), kind, 64 * MIB);
        cp(&["-r", &format!("{}/.", host.display()), &at(&volume, "/")]);
        for from in [text.to_str().unwrap(), &at(&other, "/text")] {
            cp(&[from, &at(&volume, "/link")]);
            assert_eq!(content(&volume, "/twin"), "text");
            refused(
                &["cp", "-f", from, &at(&volume, "/dangling")],
                "leads nowhere",
            );
            cp(&["-n", from, &at(&volume, "/dangling")]);
        }
        let listed = steadfs(["ls", "-l", &at(&volume, "/twin")]).expect(0).out;
        assert!(listed.contains(" 2 12 34 "), "{listed}");
        refused(
            &["cp", &at(&volume, "/owned"), &at(&volume, "/twin")],
            "same file",
        );
        // ls(1) shows a link given as argument, unless it leads to a directory.
        for words in [&["ls"][..], &["ls", "-l"]] {
            let place = at(&volume, "/dangling");
            let words = words.iter().copied().chain([&*place]);
            assert!(steadfs(words).expect(0).out.contains("/dangling"));
        }
        // An image is not copied into itself.
        let path = volume.path().to_str().unwrap();
        refused(
            &["cp", path, &at(&volume, "/")],
            "is the image that is copied into",
        );
    }
}

#[test]
fn an_image_as_target_is_its_root_directory() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 16 * MIB);
    let other = image(&scratch, "b.img", "ext4", 16 * MIB);
    for line in [
        "echo one >one; echo two >two; $S cp one a.img: && $S cp two a.img && $S cp a.img:/one b.img:",
        "$S ls a.img: | grep -q two && $S ls a.img | grep -q one && $S extract b.img: o && cmp one o/one",
    ] {
        assert_eq!(bash(&scratch, line).0, 0, "{line}");
    }
    let (path, from) = (other.path().to_str().unwrap(), at(&volume, "/one"));
    refused(&["cp", &from, path], "holds an ext4 volume; write");
    other.check_clean();
    refused(&["cp", "-", &at(&other, "/")], "has no name");
    let one = scratch.join("one");
    let two = scratch.join("two");
    refused(
        &["cp", one.to_str().unwrap(), two.to_str().unwrap()],
        "neither side",
    );
    cp(&["-f", &from, path]);
    assert_eq!(fs::read_to_string(path).unwrap(), "one\n");
}

/// Files, a directory and an entry that cannot be read: all others are copied and listed.
#[test]
fn copies_continue_after_corruption() {
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    for name in ["a/1", "a/2", "a/3", "m", "z/1"] {
        fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
        fs::write(source.join(name), name).unwrap();
    }
    let good = image(&scratch, "good.img", "ext4", 16 * MIB);
    let path = good.path().to_str().unwrap();
    run(
        "mke2fs",
        [
            "-qFt",
            "ext4",
            "-O^metadata_csum",
            "-b4096",
            "-d",
            source.to_str().unwrap(),
            path,
        ],
    )
    .expect(0);
    for (n, (damage, place, whole)) in [
        ("sif /m block[5] 0x7fffffff", "/m", 4),
        ("sif /a/1 block[5] 0x7fffffff", "/a/1", 4),
        ("sif /a/2 mode 0170644", "/a/2", 4),
        ("sif /a block[5] 0x7fffffff", "/a", 2),
        ("clri /a/3", "/a/3", 4),
    ]
    .into_iter()
    .enumerate()
    {
        let bad = good.copy(&scratch, "bad.img");
        run(
            "debugfs",
            ["-w", "-R", damage, bad.path().to_str().unwrap()],
        )
        .expect(0);
        let target = image(&scratch, &format!("{n}.img"), "ext4", 16 * MIB);
        let out = scratch.join(&format!("out{n}"));
        let ways = [
            vec![
                "extract".to_owned(),
                at(&bad, "/"),
                out.to_str().unwrap().to_owned(),
            ],
            vec![
                "cp".to_owned(),
                "-r".to_owned(),
                at(&bad, "/."),
                at(&target, "/"),
            ],
        ];
        for words in ways {
            let output = steadfs(&words);
            assert_eq!(output.code(), 1, "{words:?}: {}", output.err);
            assert!(output.err.contains(place), "{words:?}: {}", output.err);
        }
        let find = format!("find {} -type f -size +0 | wc -l", out.display());
        assert_eq!(
            bash(&scratch, &find).1.trim(),
            whole.to_string(),
            "{damage}"
        );
        let empty = format!("find {} -type f -empty", out.display());
        assert_eq!(bash(&scratch, &empty).1, "", "{damage}");
        let listed = steadfs(["ls", "-lR", &at(&target, "/")]).expect(0).out;
        let files = listed
            .lines()
            .filter(|line| line.starts_with("-rw"))
            .count();
        assert_eq!(files, whole, "{damage}: {listed}");
        target.check_clean();
        // A corrupt inode is listed with ls(1)'s question marks, and the others as usual.
        let output = steadfs(["ls", "-lR", &at(&bad, "/")]);
        let found = output
            .out
            .lines()
            .filter(|line| line.starts_with("-rw"))
            .count();
        assert!(found >= whole, "{damage}: {}", output.out);
        if damage.contains("mode") || damage.contains("clri") {
            assert_eq!(output.code(), 1, "{damage}: {}", output.err);
            assert!(
                output.out.contains("????????? ? ?"),
                "{damage}: {}",
                output.out
            );
        }
    }
    let output = steadfs(["ls", &at(&good, "/none"), &at(&good, "/m")]);
    assert_eq!(
        (output.code(), output.out.lines().count()),
        (2, 1),
        "{}",
        output.err
    );
}

/// An owner that the host refuses is reported, and the file is kept. `format -d` continues after a file that it cannot
/// copy and reports that the volume is incomplete.
#[test]
fn copies_continue_after_a_refusal_of_the_host() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 16 * MIB);
    let source = scratch.folder("source");
    for (name, mode) in [("a", 0o4755), ("b", 0o644)] {
        fs::write(source.join(name), name).unwrap();
        chown(source.join(name), Some(1234), Some(1234)).unwrap();
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    cp(&["-r", &format!("{}/.", source.display()), &at(&volume, "/")]);
    let (code, _) = bash(&scratch, "unshare -r $S extract a.img out 2>err");
    let output = fs::read_to_string(scratch.join("err")).unwrap();
    assert_eq!(code, 1, "{output}");
    assert!(
        output.contains("/a: owner 1234:1234 was not kept"),
        "{output}"
    );
    let mode = fs::metadata(scratch.join("out/a")).unwrap().mode();
    // It has another owner now, so it is not a set-ID program.
    assert_eq!(mode & 0o7777, 0o755);
    assert_eq!(fs::read_to_string(scratch.join("out/b")).unwrap(), "b");

    let (code, _) = bash(
        &scratch,
        "$S format -q -d source source/made.img 16M 2>err || { echo $?; exit 7; }",
    );
    let output = fs::read_to_string(scratch.join("err")).unwrap();
    assert_eq!(code, 7, "{output}");
    for wanted in [
        "made.img: is the image that is copied into",
        "the volume is made, but incomplete: 1 file",
    ] {
        assert!(output.contains(wanted), "{output}");
    }
    let made = Image::at(scratch.join("source/made.img"));
    assert_eq!(content(&made, "/b"), "b");
    made.check_clean();
}

/// Names of commands that do not exist.
#[test]
fn an_unknown_command_suggests_no_harmful_command() {
    for (word, wanted) in [
        ("rm", "mount"),
        ("mkdir", "mount"),
        ("fsck", "check"),
        ("lss", "ls"),
    ] {
        let output = steadfs([word, "x"]);
        assert_eq!(output.code(), 2);
        assert!(
            output.err.contains(&format!("steadfs {wanted}")),
            "{}",
            output.err
        );
        assert!(!output.err.contains("format"), "{}", output.err);
    }
}
