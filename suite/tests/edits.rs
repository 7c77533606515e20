//! The commands that change files on a volume do what coreutils do on a mount of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;

use steadfs_suite::command::{PATIENCE, finish};
use steadfs_suite::f2fs::check_clean;
use steadfs_suite::stead::program;
use steadfs_suite::{Image, KernelMount, Scratch, SteadMount, Tree, steadfs};

#[path = "edits/flags.rs"]
mod flags;
#[path = "edits/script.rs"]
mod script;

const MIB: u64 = 1 << 20;

fn image(scratch: &Scratch, name: &str, kind: &str, size: u64) -> Image {
    let path = scratch.join(name);
    let size = format!("{size}B");
    let words = ["format", "-q", "-t", kind, path.to_str().unwrap(), &size];
    steadfs(words).expect(0);
    Image::at(path)
}

fn check(image: &Image, kind: &str) {
    match kind {
        "f2fs" => drop(check_clean(image.path(), "after the commands")),
        _ => image.check_clean(),
    }
}

/// Commands in which `@` is the root of a volume. Together they use all options, and each way to fail.
const COMMANDS: &[&str] = &[
    "mkdir @/d @/e @/missing/x @/d",
    "mkdir -p @/p/q/r @/d @/p/q/s/",
    "mkdir -m 2750 @/shared",
    "mkdir -m u=rwx,g=s @/shared/below",
    "mkdir -p -m 700 @/p/only/last",
    "mkdir -p @/d/f/../g",
    "touch @/f @/d/one @/d/two @/missing/three",
    "touch -c @/absent",
    "mkdir -p @/f @/f/below",
    "touch -d 2001-02-03T04:05:06Z @/f @/d/one",
    "touch -a -d @981173106.5 @/d/two",
    "touch -m -d @-5 @/d/two",
    "touch -t 202511210342.07 @/t",
    "truncate -s 10K @/f @/size @/d",
    "truncate -s +5 @/f",
    "truncate -s %512 @/f",
    "truncate -s -1KB @/f",
    "truncate -s '<100' @/f",
    "truncate -s '>2MiB' @/size",
    "truncate -s /1000 @/size",
    "truncate -s +3kB @/size",
    "truncate -s +64k @/size",
    "truncate -s %1m @/size",
    "truncate -s +1MB @/size",
    "truncate -c -s 5 @/absent",
    "ln @/f @/hard",
    "ln @/d @/hard-dir",
    "ln @/f @/d/one",
    "ln -f @/f @/d/one",
    "ln -f @/f @/hard",
    "ln -s ../f ../nowhere @/d",
    "ln -s d @/to-d",
    "ln -s nowhere @/dangling",
    "ln -s f @/to-d",
    "ln -sfn e @/to-d",
    "ln -sT e @/d",
    "ln -t @/p @/f @/size",
    "ln @/dangling @/hard-link",
    "touch -h -d @7 @/dangling",
    "touch @/dangling/",
    "truncate -s 1 @/dangling/",
    "ln -s ../d/new @/p/lead",
    "ln -s p/lead @/lead",
    "touch @/lead",
    "ln -s ../p/size-behind @/d/lead",
    "truncate -s 7 @/d/lead",
    "ln -s none/x @/no-dir",
    "touch @/no-dir",
    "truncate -s 1 @/no-dir",
    "ln -s gone/ @/of-dir",
    "touch @/of-dir",
    "ln -s new-dir/ @/middle",
    "ln -s none @/new-dir",
    "touch @/middle",
    "truncate -s 1 @/middle",
    "touch @/content",
    "ln -s content @/leads",
    "mv @/leads @/content",
    "ln @/content @/twin",
    "mv @/leads @/content",
    "mv @/leads @/twin",
    "ln -s $(printf %0300d 0) @/long",
    "touch @/plain",
    "mv @/long @/plain",
    "ln -s $(printf %0300d 1) @/longer",
    "touch @/other",
    "ln -sf $(printf %0300d 2) @/other",
    "touch @/only",
    "ln @/only @/second",
    "ln -srf @/only @/second",
    "chmod 4755 @/f",
    "chown 12 @/f",
    "chmod u+s,g+s,o-rwx @/size @/missing",
    "chown 1:2 @/size",
    "chmod +t @/d",
    "chmod -w @/d/two",
    "chmod 640 @/to-d @/dangling",
    "chmod -R g=u,o+X @/p @/d",
    "chown -R 5:6 @/d",
    "chown -h :9 @/dangling",
    "chown +3 @/dangling",
    "chmod 755 @/shared",
    "mv @/f @/g",
    "mv @/g @/missing/",
    "mv @/g @/p/q @/d",
    "mv @/d/q @/d/q/r/s",
    "mv -T @/e @/d",
    "mv -n @/size @/d/two",
    "mv @/d/two @/shared",
    "mv @/size @/shared/below",
    "mv -T @/size @/shared/below",
    "mv -t @/shared @/t @/absent",
    "mv @/shared/t @/shared/t",
    "mv @/p/size @/shared/below/size",
    "mv @/hard @/d/one",
    "mv @/d/g/ @/x",
    "rmdir @/d @/missing @/shared/t",
    "rmdir -p @/d/q/r",
    "rmdir --ignore-fail-on-non-empty @/d @/shared",
    "rm @/d",
    "rm @/missing @/t",
    "rm -f @/missing @/missing/x @/dangling",
    "rm -d @/e @/d",
    "rm @/to-d/",
    "rm -r @/d/.",
    "rm -r @/shared @/to-d @/absent",
];

/// Random commands over few names, from a seed.
fn random_commands(mut seed: u64, count: usize) -> Vec<String> {
    let mut pick = |most: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    let mut commands = Vec::new();
    for _ in 0..count {
        let mut path = || {
            let names = ["a", "b", "c", "d"];
            let depth = 1 + pick(3);
            let name = |_| format!("/{}", names[pick(4) as usize]);
            format!("@{}", (0..depth).map(name).collect::<String>())
        };
        let (one, two, three) = (path(), path(), path());
        commands.push(match pick(14) {
            0 | 1 => format!("mkdir -p {one} {two}"),
            2 => format!("mkdir {one} {two} {three}"),
            3 | 4 => format!("touch {one} {two} {three}"),
            5 => format!("mv {one} {two}"),
            6 => format!("mv -T {one} {two}"),
            7 => format!("mv {one} {two} {three}"),
            8 => format!("ln {one} {two}"),
            9 => format!("ln -s ../b {one}"),
            10 => format!("chmod -R g+w,o=u {one} {two}"),
            11 => format!("rm {one} {two} {three}"),
            12 => format!("rm -r {one}"),
            _ => format!("rmdir {one} {two}"),
        });
    }
    commands
}

/// Runs a command of coreutils below `root`, or one of ours if `root` is an image.
fn perform(line: &str, root: &str, ours: bool) -> (bool, String) {
    let line = line.replace('@', root);
    let line = if ours { format!("$S {line}") } else { line };
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("umask 027; {line}")]);
    shell
        .env("S", program())
        .env("TZ", "UTC")
        .env("LC_ALL", "C");
    let output = finish(shell, PATIENCE);
    (output.code() == 0, output.err)
}

/// What both must agree on: all but the times that the commands did not choose.
fn described(tree: &Tree) -> Vec<String> {
    let chosen = |secs: i64| secs < 1_764_000_000;
    tree.nodes
        .iter()
        .map(|(path, node)| {
            let size = if node.is_dir() { 0 } else { node.size };
            // The root has a link more where there is lost+found.
            let links = if path.is_empty() { 0 } else { node.nlink };
            let times = [node.atime, node.mtime].map(|time| chosen(time.0).then_some(time));
            let target = node.target.as_deref().map(String::from_utf8_lossy);
            format!(
                "{} {:o} {}:{} links {} size {size} {times:?} {target:?} {:?}",
                String::from_utf8_lossy(path),
                node.mode,
                node.uid,
                node.gid,
                links,
                node.same_as.as_deref().map(String::from_utf8_lossy)
            )
        })
        .collect()
}

/// Runs the commands on a mount by coreutils and on images by ours, and compares exit codes and trees.
fn compare(commands: &[String], kinds: &[&str]) {
    let scratch = Scratch::new();
    let judged = image(&scratch, "judged.img", "ext4", 16 * MIB);
    let mount = KernelMount::new(&scratch, judged.path(), "rw,noatime");
    let root = mount.root().to_str().unwrap().to_owned();
    let wanted: Vec<bool> = commands
        .iter()
        .map(|line| perform(line, &root, false).0)
        .collect();
    let tree = described(&Tree::of(mount.root()));
    for kind in kinds.iter().copied() {
        let size = if kind == "f2fs" { 64 * MIB } else { 16 * MIB };
        let ours = image(&scratch, &format!("{kind}.img"), kind, size);
        let root = format!("{}:", ours.path().display());
        for (line, wanted) in commands.iter().zip(&wanted) {
            let (done, err) = perform(line, &root, true);
            assert_eq!(done, *wanted, "{kind}: {line}: {err}");
            assert!(done == err.is_empty() || !done, "{kind}: {line}: {err}");
        }
        check(&ours, kind);
        let out = scratch.join(&format!("{kind}.out"));
        let words = ["extract", &root, out.to_str().unwrap()];
        steadfs(words).expect(0);
        assert_eq!(described(&Tree::of(&out)), tree, "{kind}");
    }
    mount.unmount();
}

#[test]
fn commands_do_what_coreutils_do() {
    let commands: Vec<String> = COMMANDS.iter().map(|line| (*line).to_owned()).collect();
    compare(&commands, &["ext4", "f2fs"]);
}

#[test]
fn random_commands_do_what_coreutils_do() {
    compare(&random_commands(31, 40), &["ext2"]);
}

#[track_caller]
fn refused(args: &[&str], words: &str) {
    let output = steadfs(args);
    assert_eq!(output.code(), 1, "{args:?}: {}", output.err);
    assert!(output.err.contains(words), "{args:?}: {}", output.err);
}

#[test]
fn operands_on_several_volumes_are_changed_or_refused() {
    let scratch = Scratch::new();
    let (a, b) = (
        image(&scratch, "a.img", "ext4", 8 * MIB),
        image(&scratch, "b.img", "ext2", 8 * MIB),
    );
    let at = |image: &Image, path: &str| format!("{}:{path}", image.path().display());
    let (in_a, in_b) = (at(&a, "/x"), at(&b, "/x"));
    steadfs(["mkdir", &in_a, &in_b]).expect(0);
    refused(
        &["mv", &in_a, &in_b],
        "is another volume; mv works inside one volume: otherwise cp -a",
    );
    refused(&["mv", &in_a, "/tmp"], "/tmp: names no file on a volume");
    refused(&["ln", &in_a, &in_b], "another volume");
    refused(
        &["ln", "-s", &in_a, &at(&a, "/y")],
        "without the image's name",
    );
    refused(
        &["rm", "-r", a.path().to_str().unwrap()],
        "names no file on a volume",
    );
    refused(&["rm", "-r", &at(&a, "/")], "the root directory");
    refused(&["chown", "nobody", &in_a], "no /etc/passwd");
    // One that fails does not keep the others.
    refused(
        &["rmdir", &at(&a, "/none"), &in_a, &in_b],
        "none: cannot remove directory: no such",
    );
    for image in [&a, &b] {
        assert_eq!(
            steadfs(["ls", &at(image, "/")]).expect(0).out,
            "lost+found\n"
        );
        image.check_clean();
    }
}

/// A slash behind the link says that it leads to a directory, which touch and truncate do not make.
#[test]
fn no_file_is_made_where_a_directory_is_named() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 8 * MIB);
    let at = |path: &str| format!("{}:{path}", volume.path().display());
    for (text, link) in [("/new", "/lead"), ("mid/", "/far"), ("/new", "/mid")] {
        steadfs(["ln", "-s", text, &at(link)]).expect(0);
    }
    for path in ["/lead/", "/lead/.", "/far", "/mid//"] {
        refused(&["touch", &at(path)], "no such file");
        refused(&["truncate", "-s", "1", &at(path)], "no such file");
    }
    let listed = steadfs(["ls", &at("/")]).expect(0).out;
    assert_eq!(listed, "far\nlead\nlost+found\nmid\n");
    steadfs(["touch", &at("/mid")]).expect(0);
    let listed = steadfs(["ls", &at("/")]).expect(0).out;
    assert_eq!(listed, "far\nlead\nlost+found\nmid\nnew\n");
}

#[test]
fn names_of_owners_are_those_of_the_volume() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 8 * MIB);
    let at = |path: &str| format!("{}:{path}", volume.path().display());
    let etc = scratch.folder("etc");
    fs::write(
        etc.join("passwd"),
        "root:x:0:0::/:/bin/sh\nalice:x:1234:55::/:\nbad:x:y:z\n",
    )
    .unwrap();
    fs::write(etc.join("group"), "staff:x:77:\n").unwrap();
    steadfs(["cp", "-r", etc.to_str().unwrap(), &at("/")]).expect(0);
    steadfs(["touch", &at("/f"), &at("/g")]).expect(0);
    steadfs(["chown", "alice:staff", &at("/f")]).expect(0);
    steadfs(["chown", "alice:", &at("/g")]).expect(0);
    let listed = steadfs(["ls", "-l", &at("/")]).expect(0).out;
    assert!(
        listed.contains(" 1234 77 ") || listed.contains("1234   77"),
        "{listed}"
    );
    assert!(
        listed.contains("1234   55") || listed.contains("1234 55"),
        "{listed}"
    );
    refused(
        &["chown", "bob", &at("/f")],
        "bob: is not in /etc/passwd of the volume",
    );
    refused(&["chown", "bad", &at("/f")], "has no number");
    refused(&["chown", "5:", &at("/f")], "no login group");
}

/// A copy of a tree of this many empty files is removed in seconds, in bounded memory.
const MANY: usize = 8_000;

#[test]
fn large_trees_are_removed_quickly() {
    let scratch = Scratch::new();
    let tree = scratch.folder("tree");
    for dir in 0..4 {
        let dir = tree.join(dir.to_string());
        fs::create_dir(&dir).unwrap();
        for file in 0..MANY / 4 {
            fs::write(dir.join(format!("a file of the tree {file}")), b"").unwrap();
        }
    }
    let volume = scratch.join("a.img");
    let words = [
        "format",
        "-q",
        "-N",
        "30000",
        "-d",
        tree.to_str().unwrap(),
        volume.to_str().unwrap(),
        "64M",
    ];
    steadfs(words).expect(0);
    let begun = steadfs_rt::now();
    steadfs(["rm", "-r", &all_of(&volume)]).expect(0);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    Image::at(volume).check_clean();
}

fn all_of(volume: &Path) -> String {
    format!("{}:/0", volume.display())
}

#[test]
fn patterns_match_names_on_the_volume() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 8 * MIB);
    let at = |path: &str| format!("{}:{path}", volume.path().display());
    let listed = |path: &str| steadfs(["ls", "-d", &at(path)]).expect(0).out;
    steadfs(["mkdir", "-p", &at("/etc/a"), &at("/etc/b"), &at("/lit*ral")]).expect(0);
    steadfs([
        "touch",
        &at("/etc/a/x.conf"),
        &at("/etc/b/y.conf"),
        &at("/etc/b/z.txt"),
    ])
    .expect(0);
    steadfs(["touch", &at("/etc/.hidden"), &at("/etc/ä")]).expect(0);
    assert_eq!(listed("/etc/*/*.conf"), "/etc/a/x.conf\n/etc/b/y.conf\n");
    assert_eq!(listed("/etc/?"), "/etc/a\n/etc/b\n/etc/ä\n");
    assert_eq!(listed("/etc/[a-b]/"), "/etc/a/\n/etc/b/\n");
    assert_eq!(listed("/etc/.h*"), "/etc/.hidden\n");
    // A name that exists as it is written goes first.
    steadfs(["touch", &at("/literal"), &at("/lit*ral/in")]).expect(0);
    assert_eq!(listed("/lit*ral"), "/lit*ral\n");
    assert_eq!(listed("/lit\\*ral/*"), "/lit*ral/in\n");
    refused(
        &["rm", &at("/etc/a/x.conf"), &at("/none*")],
        "/none*: no file matches",
    );
    steadfs(["rm", "-f", &at("/none*"), &at("/none*/*.bak")]).expect(0);
    let out = scratch.folder("out");
    steadfs(["cp", &at("/etc/*/*.conf"), out.to_str().unwrap()]).expect(0);
    assert!(out.join("x.conf").exists() && out.join("y.conf").exists());
    steadfs(["chmod", "600", &at("/etc/a/*")]).expect(0);
    assert!(
        steadfs(["ls", "-l", &at("/etc/a")])
            .expect(0)
            .out
            .contains("-rw------- 1 0 0 0")
    );
    steadfs(["rm", "-r", &at("/*t*")]).expect(0);
    assert_eq!(steadfs(["ls", &at("/")]).expect(0).out, "");
    volume.check_clean();
}

/// A file that a pattern matches and that cannot be read is an error, not a file less.
#[test]
fn patterns_match_files_that_cannot_be_read() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 8 * MIB);
    let at = |path: &str| format!("{}:{path}", volume.path().display());
    steadfs(["touch", &at("/bad"), &at("/badly"), &at("/good")]).expect(0);
    volume.debugfs("clri /bad");
    let removed = steadfs(["rm", &at("/bad*")]);
    assert_eq!(removed.code(), 1, "{}", removed.err);
    assert!(removed.err.contains("/bad:"), "{}", removed.err);
    assert_eq!(steadfs(["ls", &at("/good")]).code(), 0);
    assert_eq!(steadfs(["ls", &at("/badly")]).code(), 2);
}
