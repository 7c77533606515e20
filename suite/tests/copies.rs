//! Volumes without a mount: copies in, out and between volumes, listings as ls has them, and the commands in pipes, on
//! terminals and when interrupted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::{PATIENCE, finish, until, wait};
use steadfs_suite::generate::{Torture, torture};
use steadfs_suite::stead::program;
use steadfs_suite::{Compare, Image, KernelMount, Scratch, Tree, run, steadfs};

#[path = "copies/as_cp.rs"]
mod as_cp;

#[path = "copies/find.rs"]
mod find;

#[path = "copies/interrupted.rs"]
mod interrupted;

#[path = "copies/json.rs"]
mod json;

#[path = "copies/layers.rs"]
mod layers;

#[path = "copies/links.rs"]
mod links;

#[path = "copies/overlays.rs"]
mod overlays;

#[path = "copies/partitions.rs"]
mod partitions;

#[path = "copies/select.rs"]
mod select;

#[path = "copies/tar.rs"]
mod tar;

#[path = "copies/tree.rs"]
mod tree;

const MIB: u64 = 1 << 20;
const SIGPIPE: i32 = 13;

fn image(scratch: &Scratch, name: &str, kind: &str, size: u64) -> Image {
    let path = scratch.join(name);
    let size = format!("{size}B");
    let words = ["format", "-q", "-t", kind, path.to_str().unwrap(), &size];
    steadfs(words).expect(0);
    Image::at(path)
}

fn at(image: &Image, path: &str) -> String {
    format!("{}:{path}", image.path().display())
}

#[track_caller]
fn cp(args: &[&str]) {
    steadfs(["cp"].iter().chain(args)).expect(0);
}

#[track_caller]
fn refused(args: &[&str], words: &str) {
    let output = steadfs(args);
    assert_eq!(output.code(), 1, "{args:?}: {}", output.err);
    assert!(output.err.contains(words), "{args:?}: {}", output.err);
    assert_eq!(output.err.lines().count(), 1, "{args:?}: {}", output.err);
}

fn tree_by_kernel(scratch: &Scratch, image: &Image, path: &str) -> Tree {
    let mount = KernelMount::new(scratch, image.path(), "ro");
    let tree = Tree::of(&mount.join(path));
    mount.unmount();
    tree
}

/// A tree of everything that each of these volumes supports.
fn source(scratch: &Scratch) -> PathBuf {
    let source = scratch.folder("source");
    torture(
        &source,
        Torture {
            block: 1024,
            far: 1 << 31,
            longest_link: 1023,
            xattr_bytes: 900,
            many: 300,
        },
    );
    source
}

/// A directory that `script` fills, once, and a volume of this kind with the same content.
fn filled_by(scratch: &Scratch, kind: &str, script: &str) -> (PathBuf, PathBuf) {
    let source = scratch.join("source");
    if !source.exists() {
        fs::create_dir(&source).unwrap();
        let made = run(
            "bash",
            ["-ec", &format!("cd {}; {script}", source.display())],
        );
        assert_eq!(made.code(), 0, "{}", made.err);
    }
    let volume = scratch.join(&format!("{kind}.img"));
    let (from, to) = (source.to_str().unwrap(), volume.to_str().unwrap());
    steadfs(["format", "-q", "-t", kind, "-d", from, to, "64M"]).expect(0);
    (source, volume)
}

#[test]
fn trees_copied_in_between_and_out_stay_equal() {
    let scratch = Scratch::new();
    let source = source(&scratch);
    let original = Tree::of(&source);
    let first = image(&scratch, "first.img", "ext4", 256 * MIB);
    let second = image(&scratch, "second.img", "ext4", 256 * MIB);
    let source = source.to_str().unwrap();
    cp(&["-a", source, &at(&first, "/")]);
    cp(&["-r", &at(&first, "/source"), &at(&second, "/")]);
    // Within one volume, and to its root under the same name.
    cp(&["-r", &at(&second, "/source"), &at(&second, "/again")]);
    cp(&["-r", &at(&second, "/again/."), &at(&second, "/merged")]);
    first.check_clean();
    second.check_clean();
    let on_first = tree_by_kernel(&scratch, &first, "source");
    original.assert_same(&on_first, Compare::COPY, "host and first volume");
    let holes = Compare {
        holes: true,
        ..Compare::COPY
    };
    for path in ["source", "again", "merged"] {
        let copy = tree_by_kernel(&scratch, &second, path);
        on_first.assert_same(&copy, holes, path);
    }
    let back = scratch.join("back");
    let (from, to) = (at(&second, "/merged"), back.to_str().unwrap());
    steadfs(["extract", &from, to]).expect(0);
    original.assert_same(&Tree::of(&back), Compare::COPY, "host and extracted");
}

#[test]
fn trees_copied_through_f2fs_stay_equal() {
    let scratch = Scratch::new();
    let source = source(&scratch);
    let original = Tree::of(&source);
    let first = image(&scratch, "first.img", "f2fs", 256 * MIB);
    let other = image(&scratch, "other.img", "ext4", 256 * MIB);
    let second = image(&scratch, "second.img", "f2fs", 256 * MIB);
    let source = source.to_str().unwrap();
    cp(&["-a", source, &at(&first, "/")]);
    cp(&["-a", &at(&first, "/source"), &at(&other, "/")]);
    cp(&["-a", &at(&other, "/source"), &at(&second, "/between")]);
    cp(&["-a", &at(&second, "/between"), &at(&second, "/within")]);
    for volume in [&first, &second] {
        let path = volume.path().as_os_str();
        run("fsck.f2fs", ["--dry-run".as_ref(), path]).expect(0);
    }
    let on_ext4 = tree_by_kernel(&scratch, &other, "source");
    original.assert_same(&on_ext4, Compare::COPY, "host and ext4");
    for name in ["between", "within"] {
        let back = scratch.join(name);
        let (from, to) = (at(&second, &format!("/{name}")), back.to_str().unwrap());
        steadfs(["extract", &from, to]).expect(0);
        original.assert_same(&Tree::of(&back), Compare::COPY, name);
    }
    let file = scratch.join("file");
    fs::write(&file, "one line\n").unwrap();
    cp(&[file.to_str().unwrap(), &at(&second, "/within")]);
    let shown = steadfs(["cat", &at(&second, "/within/file")]).expect(0);
    assert_eq!(shown.out, "one line\n");
}

/// With -r, links and special files are copied as such, both as arguments and within a folder.
#[test]
fn files_of_every_type_are_copied_in_and_out() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 16 * MIB);
    let source = scratch.folder("source");
    let make = "echo x > file; ln -s nowhere link; mkfifo -m 640 fifo; mknod -m 604 node c 1 3; ln -s . here; \
                setfattr -h -n trusted.mine -v value link node; touch -hd @1000000000 link fifo node";
    let mut shell = Command::new("sh");
    shell.args(["-ec", make]).current_dir(&source);
    finish(shell, PATIENCE).expect(0);
    let back = scratch.folder("back");
    for name in ["file", "link", "fifo", "node", "here"] {
        cp(&["-r", source.join(name).to_str().unwrap(), &at(&volume, "/")]);
        cp(&[
            "-r",
            &at(&volume, &format!("/{name}")),
            back.to_str().unwrap(),
        ]);
    }
    // A path relative to the current directory.
    let mut near = Command::new(program());
    near.args(["cp", "node", &at(&volume, "/near")])
        .current_dir(&source);
    finish(near, PATIENCE).expect(0);
    volume.check_clean();
    run(
        "touch",
        ["-r".as_ref(), source.as_os_str(), back.as_os_str()],
    )
    .expect(0);
    Tree::of(&source).assert_same(&Tree::of(&back), Compare::COPY, "there and back");

    // `-d` follows a link to a folder, as mke2fs does.
    let filled = scratch.join("filled.img");
    let (filled, from) = (filled.to_str().unwrap(), source.join("here"));
    steadfs(["format", "-q", "-d", from.to_str().unwrap(), filled, "16M"]).expect(0);
    let names = steadfs(["ls", filled]).expect(0).out;
    assert_eq!(names, "fifo\nfile\nhere\nlink\nlost+found\nnode\n");
}

#[test]
fn names_are_escaped_on_a_terminal() {
    let scratch = Scratch::new();
    let volume = scratch.join("a.img");
    let volume = volume.to_str().unwrap();
    for kind in ["ext4", "f2fs"] {
        steadfs([
            "format",
            "-qft",
            kind,
            "-L",
            "a\x1b[31m\nState",
            volume,
            "64M",
        ])
        .expect(0);
        let output = steadfs(["inspect", volume]).expect(0).out;
        assert!(output.contains("a\\033[31m\\012State"), "{output}");
    }
    let bad = scratch.folder("folder").join("b\x1b[31m");
    fs::write(&bad, "").unwrap();
    let source = bad.parent().unwrap().to_str().unwrap();
    cp(&["-r", source, &format!("{volume}:/")]);
    let twice = scratch.folder("out");
    fs::write(twice.join("b\x1b[31m"), "").unwrap();
    let output = steadfs([
        "extract",
        &format!("{volume}:/folder"),
        twice.to_str().unwrap(),
    ]);
    assert_eq!(output.code(), 1);
    assert!(output.err.contains("b\\033[31m"), "{}", output.err);
}

#[test]
fn impossible_copies_are_refused() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 16 * MIB);
    let other = image(&scratch, "b.img", "ext2", 16 * MIB);
    let dir = scratch.folder("dir");
    fs::write(dir.join("file"), b"content").unwrap();
    let dir = dir.to_str().unwrap();
    refused(&["cp", dir, &at(&volume, "/")], "-r copies it");
    cp(&["-r", dir, &at(&volume, "/")]);
    refused(&["cp", &at(&volume, "/dir"), "/tmp"], "-r copies it");
    refused(
        &["cp", &at(&volume, "/dir"), &at(&other, "/")],
        "-r copies it",
    );
    cp(&["-rf", dir, &at(&volume, "/")]);
    refused(
        &["extract", &at(&volume, "/dir"), dir],
        "/file: File exists (os error 17); -f replaces",
    );
    refused(
        &["cp", "-r", &at(&volume, "/dir"), &at(&volume, "/dir/below")],
        "into itself",
    );
    refused(
        &["cp", "-r", &at(&volume, "/"), &at(&volume, "/dir/all")],
        "into itself",
    );
    let same = at(&volume, "/dir/file");
    refused(&["cp", "-f", &same, &same], "same file");
    // A folder that does not exist, and a file with the name of the image.
    let path = volume.path().to_str().unwrap();
    refused(&["cp", "-f", &same, path], "the image that is copied from");
    cp(&[&same, &at(&volume, "/a.img")]);
    let beside = volume.path().parent().unwrap().to_str().unwrap();
    refused(
        &["extract", "-f", path, beside],
        "the image that is copied from",
    );
    refused(
        &["cp", &at(&volume, "/none"), &at(&other, "/")],
        "no such file",
    );
    refused(&["cp", dir, dir], "neither side");
    refused(
        &["cp", &same, &at(&volume, "/dir/file"), &at(&other, "/none")],
        "no directory",
    );
    // None of these destroyed the file.
    assert_eq!(steadfs(["cat", &same]).expect(0).out, "content");
    volume.check_clean();
    other.check_clean();
}

/// A path with a trailing slash names a directory or fails, as with cp(1).
#[test]
fn a_trailing_slash_names_directories_only() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 16 * MIB);
    let other = image(&scratch, "b.img", "f2fs", 64 * MIB);
    let host = scratch.folder("host");
    for name in ["dir", "tree"] {
        fs::create_dir(host.join(name)).unwrap();
    }
    fs::write(host.join("file"), b"content").unwrap();
    fs::write(host.join("tree/leaf"), b"leaf").unwrap();
    std::os::unix::fs::symlink("file", host.join("link")).unwrap();
    let host = |name: &str| format!("{}/{name}", host.display());
    for name in ["file", "dir", "tree", "link"] {
        for volume in [&volume, &other] {
            cp(&["-r", &host(name), &at(volume, "/")]);
        }
    }
    let on_volume = |name: &str| at(&volume, &format!("/{name}"));
    let on_other = |name: &str| at(&other, &format!("/{name}"));
    type Place<'a> = &'a dyn Fn(&str) -> String;
    let ways: [(Place<'_>, Place<'_>); 4] = [
        (&host, &on_volume),
        (&on_volume, &host),
        (&on_volume, &on_other),
        (&on_volume, &on_volume),
    ];
    for (n, (from, to)) in ways.into_iter().enumerate() {
        let new = format!("new{n}");
        let not = "ot a directory";
        refused(&["cp", &from("file"), &to(&format!("{new}/"))], not);
        let gone = "o such file or directory";
        for end in ["/.", "/below"] {
            let made = to(&format!("{new}{end}"));
            refused(&["cp", &from("file"), &made], gone);
            refused(&["cp", "-r", &from("tree"), &made], gone);
        }
        for file in ["file/", "link/", "file/."] {
            refused(&["cp", "-f", &from("tree/leaf"), &to(file)], not);
            refused(&["cp", "-rf", &from("tree"), &to(file)], not);
            refused(&["cp", &from(file), &to("x")], not);
        }
        // None of these created anything.
        let words = steadfs(["stat", &to(&new)]);
        if !to(&new).starts_with(&host("")) {
            assert_eq!(words.code(), 1, "{}", words.out);
        }
        assert!(!fs::exists(host(&new)).unwrap());
        // A missing directory is created; the source is copied into an existing one.
        cp(&["-r", &from("tree/"), &to(&format!("{new}/"))]);
        cp(&[&from("file"), &to(&format!("{new}/"))]);
        cp(&["-f", &from("file"), &to(&format!("{new}/."))]);
        let copied = match n {
            1 => fs::read_to_string(host(&format!("{new}/file"))).unwrap(),
            _ => steadfs(["cat", &to(&format!("{new}/file"))]).expect(0).out,
        };
        assert_eq!(copied, "content", "{n}");
    }
    volume.check_clean();
}

#[test]
fn listings_equal_those_of_ls() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 32 * MIB);
    let source = scratch.folder("source");
    for name in ["b/c/d", "b/.e", "a"] {
        fs::create_dir_all(source.join(name)).unwrap();
    }
    for name in ["b/c/file", "b/.hidden", "b/c/d/x", "Z", "0", "ä"] {
        fs::write(source.join(name), name).unwrap();
    }
    std::os::unix::fs::symlink("b/c", source.join("link")).unwrap();
    cp(&["-r", source.to_str().unwrap(), &at(&volume, "/")]);
    let mount = KernelMount::new(&scratch, volume.path(), "ro");
    let root = mount.join("source");
    let inside = |command: &str| {
        let mut shell = Command::new("bash");
        shell
            .args(["-c", command])
            .current_dir(&root)
            .env("LC_ALL", "C");
        finish(shell, PATIENCE).expect(0).out
    };
    let by_ls: Vec<(&str, String)> = ["-1", "-1a", "-1A", "-1i", "-1R", "-1aR"]
        .into_iter()
        .map(|options| (options, inside(&format!("ls {options} -N"))))
        .collect();
    let long = inside("stat -c '%A %h %u %g %s' .hidden b/c/file link b 2>/dev/null || true");
    mount.unmount();
    for (options, wanted) in by_ls {
        let place = at(&volume, "/source");
        let ours = steadfs(["ls", options, &place])
            .expect(0)
            .out
            .replace(&place, ".");
        assert_eq!(ours, wanted, "ls {options}");
    }
    let ours = steadfs(["ls", "-l", &at(&volume, "/source")]).expect(0).out;
    assert!(ours.starts_with("total "), "{ours}");
    for same in ["-n", "-ln", "-l1"] {
        let listed = steadfs(["ls", same, &at(&volume, "/source")]).expect(0).out;
        assert_eq!(listed, ours, "{same}");
    }
    for line in long.lines().filter(|line| !line.starts_with("-")) {
        let words: Vec<&str> = line.split(' ').collect();
        let found = ours.lines().any(|ours| {
            let ours: Vec<&str> = ours.split_whitespace().collect();
            ours.starts_with(&words)
        });
        assert!(found, "{line} is not in\n{ours}");
    }
    let big = scratch.join("big");
    fs::write(&big, vec![1; 1_500_000]).unwrap();
    cp(&[big.to_str().unwrap(), &at(&volume, "/")]);
    for (options, size) in [("-lh", "1.5M"), ("-l", "1500000")] {
        let listed = steadfs(["ls", options, &at(&volume, "/big")]).expect(0).out;
        assert_eq!(listed.split_whitespace().nth(4), Some(size), "{listed}");
    }
    assert!(
        steadfs(["ls", "--help"])
            .expect(0)
            .out
            .contains("human-readable")
    );
    let output = steadfs(["ls", &at(&volume, "/none")]);
    assert_eq!(output.code(), 2);
    assert!(output.err.contains("/none: no such file"), "{}", output.err);
}

#[test]
fn a_closed_pipe_ends_the_command() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 64 * MIB);
    let file = scratch.join("file");
    fs::write(&file, vec![b'x'; 32 << 20]).unwrap();
    cp(&[file.to_str().unwrap(), &at(&volume, "/")]);
    let path = volume.path().to_str().unwrap();
    for words in [
        &["cat", &at(&volume, "/file")][..],
        &["ls", "-lR", path],
        &["inspect", path],
        &["check", path],
        &["stat", &at(&volume, "/file")],
        &["completions", "zsh"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = Command::new(program())
            .args(words)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let status = wait(&mut child, PATIENCE).unwrap();
        let mut output = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut output)
            .unwrap();
        assert_eq!(
            status.signal(),
            Some(SIGPIPE),
            "{words:?}: {status} {output}"
        );
        assert_eq!(output, "", "{words:?}");
    }
}

/// A write that fills the volume returns a short count and no error: a truncated file must not pass for a complete
/// copy.
#[test]
fn a_copy_that_does_not_fit_is_reported() {
    let scratch = Scratch::new();
    let empty = image(&scratch, "empty.img", "ext4", 8 * MIB);
    let other = image(&scratch, "other.img", "ext2", 64 * MIB);
    let file = scratch.join("file");
    let content: Vec<u8> = (0..8 * MIB).map(|i| (i / 4096 + i) as u8).collect();
    let mut reported = 0;
    for kib in (5 * 1024..8 * 1024).step_by(256) {
        let content = &content[..kib * 1024];
        fs::write(&file, content).unwrap();
        cp(&["-f", file.to_str().unwrap(), &at(&other, "/file")]);
        for source in [file.to_str().unwrap(), &at(&other, "/file")] {
            let target = empty.copy(&scratch, "target.img");
            let output = steadfs(["cp", source, &at(&target, "/copy")]);
            if output.code() == 0 {
                let out = scratch.join("out");
                cp(&["-f", &at(&target, "/copy"), out.to_str().unwrap()]);
                assert!(
                    fs::read(&out).unwrap() == content,
                    "{kib} KiB from {source}"
                );
            } else {
                assert!(
                    output.err.contains("no space left on volume"),
                    "{}",
                    output.err
                );
                reported += 1;
            }
        }
    }
    assert!(reported > 0, "all attributes fit: nothing was tested");
}

/// Attributes that the host cannot store are reported, and everything else is copied.
#[test]
fn attributes_too_large_for_the_host_are_reported() {
    let scratch = Scratch::new();
    let features = ["-t", "ext4", "-O", "ea_inode"];
    let from = Image::mke2fs(&scratch, "large.img", 16 * MIB, &features);
    let mount = KernelMount::new(&scratch, from.path(), "");
    fs::create_dir(mount.join("tree")).unwrap();
    let made = mount.join("tree/a");
    fs::write(&made, "x").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&made, "user.large", &[7; 20_000], flags).unwrap();
    rustix::fs::setxattr(&made, "user.small", b"s", flags).unwrap();
    fs::write(mount.join("tree/b"), "y").unwrap();
    mount.unmount();
    // An ext4 volume without that feature, independent of the host's.
    let host = Image::mke2fs(&scratch, "host.img", 16 * MIB, &["-t", "ext4"]);
    let host = KernelMount::new(&scratch, host.path(), "");
    let out = host.join("out");
    let output = steadfs(["extract", &at(&from, "/tree"), out.to_str().unwrap()]);
    assert_eq!(output.code(), 1, "{}", output.err);
    assert!(
        output.err.contains("attribute user.large was not kept"),
        "{}",
        output.err
    );
    let mut value = [0; 8];
    assert_eq!(
        rustix::fs::getxattr(out.join("a"), "user.small", &mut value),
        Ok(1)
    );
    assert_eq!(fs::read(out.join("b")).unwrap(), b"y");
    host.unmount();
}

/// A tree may be deeper than the limit of open files.
#[test]
fn deep_trees_need_few_open_files() {
    let scratch = Scratch::new();
    let deep = scratch.folder("deep");
    let innermost = deep.join("d/".repeat(600));
    fs::create_dir_all(&innermost).unwrap();
    fs::write(innermost.join("leaf"), "x").unwrap();
    let from = image(&scratch, "from.img", "ext4", 64 * MIB);
    let to = image(&scratch, "to.img", "f2fs", 128 * MIB);
    let out = scratch.join("out");
    let (deep, shown) = (deep.to_str().unwrap(), out.to_str().unwrap());
    for (source, target) in [
        (deep, &*at(&from, "/deep")),
        (&*at(&from, "/deep"), &*at(&to, "/deep")),
        (&*at(&to, "/deep"), shown),
    ] {
        let program = program().display();
        let command = format!("ulimit -n 64; exec {program} cp -r {source} {target}");
        run("bash", ["-c", &command]).expect(0);
    }
    Tree::of(deep.as_ref()).assert_same(&Tree::of(&out), Compare::COPY, "there and back");
    from.check_clean();
}

/// A crafted volume with a folder that contains itself.
#[test]
fn a_folder_within_itself_is_reported_as_corruption() {
    let scratch = Scratch::new();
    let image = image(&scratch, "a.img", "ext4", 16 * MIB);
    let other = self::image(&scratch, "b.img", "ext4", 16 * MIB);
    for request in ["mkdir /d", "mkdir /d/in", "ln /d /d/in/again"] {
        run(
            "debugfs",
            ["-w", "-R", request, image.path().to_str().unwrap()],
        )
        .expect(0);
    }
    let out = scratch.join("out");
    let says = "/d/in/again: volume is corrupt: inode";
    refused(&["extract", &at(&image, "/"), out.to_str().unwrap()], says);
    refused(&["cp", "-r", &at(&image, "/d"), &at(&other, "/")], says);
    refused(&["ls", "-R", &at(&image, "/d")], says);
}
