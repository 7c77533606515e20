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

/// Content of the file `target` before any copy.
const OLD_TEXT: &str = "a longer old text";

/// A volume with a file `f`, and targets on the host for a copy of it: a device, a file with two names, and links.
struct HostTargets {
    scratch: Scratch,
    volume: Image,
    /// The path of `f` as an argument.
    from: String,
    /// The file `target` before any copy.
    before: fs::Metadata,
}

impl HostTargets {
    fn new() -> Self {
        let scratch = Scratch::new();
        let volume = image(&scratch, "a.img", "ext4", 16 * MIB);
        let text = scratch.join("text");
        fs::write(&text, "new text").unwrap();
        cp(&[text.to_str().unwrap(), &at(&volume, "/f")]);
        let from = at(&volume, "/f");
        let null = scratch.join("null");
        run("mknod", [null.to_str().unwrap(), "c", "1", "3"]).expect(0);
        let target = scratch.join("target");
        fs::write(&target, OLD_TEXT).unwrap();
        chown(&target, Some(12), Some(34)).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
        fs::hard_link(&target, scratch.join("twin")).unwrap();
        symlink("target", scratch.join("link")).unwrap();
        symlink("nowhere", scratch.join("dangling")).unwrap();
        let before = fs::metadata(&target).unwrap();
        Self {
            scratch,
            volume,
            from,
            before,
        }
    }

    fn at(&self, name: &str) -> String {
        self.scratch.join(name).to_str().unwrap().to_owned()
    }
}

#[test]
fn targets_on_the_host_are_written_as_cp_writes_them() {
    let host = HostTargets::new();
    for name in ["null", "link", "target"] {
        for word in ["-f", "-r"] {
            cp(&[word, &host.from, &host.at(name)]);
        }
    }
    let node = fs::metadata(host.at("null")).unwrap();
    assert!(node.file_type().is_char_device() && node.rdev() == before_null());
    assert!(fs::symlink_metadata(host.at("link")).unwrap().is_symlink());
    let after = fs::metadata(host.at("twin")).unwrap();
    assert_eq!(fs::read_to_string(host.at("twin")).unwrap(), "new text");
    assert_eq!(
        (after.ino(), after.uid(), after.gid(), after.mode()),
        (host.before.ino(), 12, 34, host.before.mode())
    );
    refused(&["cp", &host.from, &host.at("dangling")], "leads nowhere");
    refused(
        &["cp", "-f", &host.from, &host.at("dangling")],
        "leads nowhere",
    );
    assert!(!host.scratch.join("nowhere").exists());
    cp(&["-n", &host.from, &host.at("dangling")]);
    assert!(
        fs::symlink_metadata(host.at("dangling"))
            .unwrap()
            .is_symlink()
    );
    cp(&["--remove-destination", &host.from, &host.at("dangling")]);
    assert_eq!(fs::read_to_string(host.at("dangling")).unwrap(), "new text");
}

/// Below a copied directory, nothing is written through an existing link.
#[test]
fn copied_directories_are_not_written_through_links_of_the_host() {
    let host = HostTargets::new();
    let tree = host.scratch.folder("tree");
    fs::write(tree.join("link"), "from the tree").unwrap();
    fs::write(tree.join("other"), "other").unwrap();
    cp(&["-r", tree.to_str().unwrap(), &at(&host.volume, "/")]);
    let out = host.scratch.folder("out");
    symlink(host.at("target"), out.join("link")).unwrap();
    let place = at(&host.volume, "/tree/.");
    refused(
        &["cp", "-rf", &place, out.to_str().unwrap()],
        "/link: is a link",
    );
    assert_eq!(fs::read_to_string(host.at("target")).unwrap(), OLD_TEXT);
    assert_eq!(fs::read_to_string(out.join("other")).unwrap(), "other");
}

/// A link created for one source is not written through by the next one.
#[test]
fn links_made_by_a_copy_are_not_written_through() {
    let host = HostTargets::new();
    fs::create_dir(host.scratch.join("2")).unwrap();
    symlink(host.at("target"), host.scratch.join("2/f")).unwrap();
    cp(&[
        "-r",
        host.scratch.join("2").to_str().unwrap(),
        &at(&host.volume, "/"),
    ]);
    let into = host.scratch.folder("into");
    let output = steadfs([
        "cp",
        "-r",
        &at(&host.volume, "/2/f"),
        &host.from,
        into.to_str().unwrap(),
    ]);
    assert_eq!(output.code(), 1);
    assert!(
        output.err.contains("made by this copy already"),
        "{}",
        output.err
    );
    assert_eq!(
        fs::metadata(host.at("target")).unwrap().ino(),
        host.before.ino()
    );
    assert_eq!(fs::read_to_string(host.at("target")).unwrap(), OLD_TEXT);
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

/// A link that is copied or moved itself must not take the place of the only name of the content that it leads to.
#[test]
fn a_link_does_not_replace_the_file_that_it_leads_to() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 16 * MIB);
    let lines = [
        "mkdir d && echo precious >a && ln a twin && ln -s a link && ln -s link second && ln -s ../a d/a && ln -s no gone",
        "for n in a twin link second gone; do $S cp -d $n a.img:/$n; done; $S cp -r d a.img:/",
        "$S rm a.img:/twin && $S ln a.img:/a a.img:/twin",
    ];
    for line in lines {
        assert_eq!(bash(&scratch, line).0, 0, "{line}");
    }
    let (link, file) = (at(&volume, "/link"), at(&volume, "/a"));
    let (second, root) = (at(&volume, "/second"), at(&volume, "/"));
    let options = ["-d", "-P", "-a", "-r", "-rT", "--remove-destination -d"];
    for words in options {
        let words = words.split(' ');
        for operands in [
            [&link, &file],
            [&second, &file],
            [&link, &at(&volume, "/twin")],
        ] {
            let operands = operands.map(String::as_str);
            let line: Vec<&str> = ["cp"]
                .into_iter()
                .chain(words.clone())
                .chain(operands)
                .collect();
            refused(&line, "same file");
        }
    }
    refused(&["cp", "-aT", &at(&volume, "/d"), &root], "same file");
    refused(&["mv", &link, &file], "same file");
    refused(&["mv", &at(&volume, "/d/a"), &root], "same file");
    for text in ["a", "/a", "link", "./d/../a"] {
        refused(&["ln", "-sf", text, &file], "same file");
    }
    for text in ["../a", "d/a"] {
        refused(&["ln", "-sf", text, &root], "same file");
    }
    assert_eq!(content(&volume, "/a"), "precious\n");
    // A link may take another link's place, and that of a file that it does not lead to.
    cp(&["-d", &link, &second]);
    cp(&["-d", &at(&volume, "/gone"), &at(&volume, "/twin")]);
    let listed = steadfs(["ls", "-l", &root]).expect(0).out;
    for wanted in ["second -> a\n", "twin -> no\n"] {
        assert!(listed.contains(wanted), "{wanted}: {listed}");
    }
    // A text that is no path leads nowhere.
    let long = at(&volume, "/long");
    steadfs(["ln", "-s", &"x".repeat(300), &long]).expect(0);
    cp(&["-d", &long, &file]);
    cp(&["-d", &long, &second]);
    volume.check_clean();
}

/// The directory is filled with what the link leads to; a link in its place would lead to files of the host.
#[test]
fn a_link_that_is_extracted_is_followed() {
    let scratch = Scratch::new();
    image(&scratch, "a.img", "ext4", 16 * MIB);
    for line in [
        "mkdir -p usr/bin && echo tool >usr/bin/tool && ln -s tool usr/bin/alias && ln -s usr/bin bin && ln -s /usr/bin abs",
        "$S cp -r usr bin abs a.img:",
        "$S extract a.img:/bin out && test -d out && ! test -L out && grep -q tool out/tool && test -L out/alias",
        "$S extract a.img:/abs out2 && ! test -L out2 && grep -q tool out2/alias",
        "mkdir out3 && $S extract a.img:/bin out3 && grep -q tool out3/tool",
        "$S extract --include tool a.img:/bin out4 && grep -q tool out4/tool && ! test -e out4/alias",
        "$S extract a.img: out5 && test \"$(readlink out5/bin)\" = usr/bin",
    ] {
        assert_eq!(bash(&scratch, line).0, 0, "{line}");
    }
}

#[test]
fn a_source_that_is_named_twice_is_copied_once() {
    let scratch = Scratch::new();
    image(&scratch, "a.img", "ext4", 16 * MIB);
    let warned =
        "grep -q 'warning: source .*a.* is specified more than once' err && test $(wc -l <err) = 1";
    for line in [
        "mkdir d e out && echo a >a && echo b >b && echo other >d/a",
        &format!("$S cp -r a e b a a.img: 2>err && {warned}"),
        &format!("$S cp a.img:/a a.img:/a a.img:/b a.img:/e 2>err && {warned}"),
        &format!("$S cp a.img:/a a.img:/b a.img:/a out 2>err && {warned}"),
        // In other spellings, too.
        &format!("$S cp a d/../a ./b a.img: 2>err && {warned}"),
        &format!("$S cp a.img:/a ./a.img://./a out 2>err && {warned}"),
        "$S cp missing missing a.img: 2>err; test $? = 1 && test $(grep -c 'missing.*o such' err) = 2",
        "$S cp a.img:/no a.img:/no out 2>err; test $? = 1 && test $(grep -c 'no.*o such' err) = 2",
        "test \"$($S ls a.img:/e | xargs)\" = 'a b' && test -f out/a && test -f out/b",
        // Another file of the same name is an error.
        "$S cp -f a d/a a.img: 2>err; test $? = 1 && grep -q 'not overwritten by another' err",
        "test $($S cat a.img:/a) = a",
    ] {
        assert_eq!(bash(&scratch, line).0, 0, "{line}");
    }
}

#[test]
fn messages_name_what_is_wrong_and_what_is_full() {
    let scratch = Scratch::new();
    image(&scratch, "a.img", "ext4", 16 * MIB);
    let full =
        "mkdir -p full && mount -t tmpfs -o size=8m none full && head -c 16M /dev/urandom >big";
    for (line, wanted) in [
        ("$S quota a.img", "a.img: the volume does not count"),
        ("$S quota --grace 1week 1 a.img", "needs a whole number"),
        ("$S resize a.img 10M 10M", "10M: one operand too many"),
        (
            "$S key list",
            "no such command of steadfs key, which has add",
        ),
        (
            "$FULL && tar cf - big | TMPDIR=full $S format -q -d - u.img 64M",
            "full: cannot keep the stream: No space left",
        ),
        (
            "$FULL && $S format -q -t ext2 full/b.img 64M && $S cp big full/b.img:/",
            "what stores it is full: No space left",
        ),
    ] {
        let line = line.replace("$FULL", full);
        // Mounts end with the namespace.
        let line = format!("! unshare -m bash -c '{line}' 2>err && cat err");
        let (code, said) = bash(&scratch, &line);
        assert!(code == 0 && said.contains(wanted), "{line}: {said}");
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

/// Damage of a volume, what an error names, and how many files are whole.
const UNREADABLE: [(&str, &str, usize); 5] = [
    ("sif /m block[5] 0x7fffffff", "/m", 4),
    ("sif /a/1 block[5] 0x7fffffff", "/a/1", 4),
    ("sif /a/2 mode 0170644", "/a/2", 4),
    ("sif /a block[5] 0x7fffffff", "/a", 2),
    ("clri /a/3", "/a/3", 4),
];

/// A volume of five files without checksums.
fn five_files(scratch: &Scratch) -> Image {
    let source = scratch.folder("source");
    for name in ["a/1", "a/2", "a/3", "m", "z/1"] {
        fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
        fs::write(source.join(name), name).unwrap();
    }
    let good = image(scratch, "good.img", "ext4", 16 * MIB);
    let (source, path) = (source.to_str().unwrap(), good.path().to_str().unwrap());
    let options = "-qFt ext4 -O^metadata_csum -b4096 -d";
    run("mke2fs", options.split(' ').chain([source, path])).expect(0);
    good
}

/// Number of files in a listing.
fn files_in(listing: &str) -> usize {
    let files = listing.lines().filter(|line| line.starts_with("-rw"));
    files.count()
}

/// Files, a directory and an entry that cannot be read: all others are copied and listed.
#[test]
fn copies_continue_after_corruption() {
    let scratch = Scratch::new();
    let good = five_files(&scratch);
    for (n, (damage, place, whole)) in UNREADABLE.into_iter().enumerate() {
        let bad = good.copy(&scratch, "bad.img");
        let path = bad.path().to_str().unwrap();
        run("debugfs", ["-w", "-R", damage, path]).expect(0);
        let target = image(&scratch, &format!("{n}.img"), "ext4", 16 * MIB);
        let out = scratch.join(&format!("out{n}"));
        let (from, to) = (at(&bad, "/."), at(&target, "/"));
        for words in [
            &["extract", &at(&bad, "/"), out.to_str().unwrap()][..],
            &["cp", "-r", &from, &to],
        ] {
            let output = steadfs(words);
            assert_eq!(output.code(), 1, "{words:?}: {}", output.err);
            assert!(output.err.contains(place), "{words:?}: {}", output.err);
        }
        let find = format!("find {} -type f -size +0 | wc -l", out.display());
        let found = bash(&scratch, &find).1;
        assert_eq!(found.trim(), whole.to_string(), "{damage}");
        let empty = format!("find {} -type f -empty", out.display());
        assert_eq!(bash(&scratch, &empty).1, "", "{damage}");
        let listed = steadfs(["ls", "-lR", &to]).expect(0).out;
        assert_eq!(files_in(&listed), whole, "{damage}: {listed}");
        target.check_clean();
        // A corrupt inode is listed with ls(1)'s question marks, and the others as usual.
        let output = steadfs(["ls", "-lR", &at(&bad, "/")]);
        let listed = &output.out;
        assert!(files_in(listed) >= whole, "{damage}: {listed}");
        if damage.contains("mode") || damage.contains("clri") {
            assert_eq!(output.code(), 1, "{damage}: {}", output.err);
            assert!(listed.contains("????????? ? ?"), "{damage}: {listed}");
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
        ("rmm", "rm"),
        ("mkdirs", "mkdir"),
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
