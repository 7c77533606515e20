//! `steadfs edit`: scripts do what coreutils do, and all of it or nothing.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::wait;

use super::*;

/// A script in which `@` is the root and `HOST` a directory of the host. A shell runs it on a mount; `put` is `cp -a` there.
const SCRIPT: &str = r#"
# Names with blanks, quotes and special characters.
mkdir -p @/etc/app '@/with blanks' @/"it's" @/a\*b @/axb   # a comment
put HOST @/etc/app
put -T HOST/one "@/with blanks/one"
touch -d 2001-02-03 '@/with blanks/a"b' @/etc/app/t1 @/etc/app/t2
touch -d 1970-01-02 @/axb/'lit*' @/axb/lit1 @/axb/lit2
rm @/axb/'lit*'
rmdir '@/a*b'
rm -f @/axb/no* @/no?/*.bak
mv @/axb/lit? \
   @/etc
cp -a @/etc '@/copy of etc'
rm -r @/etc/app/HO*/sub
ln -s "../with blanks/one" @/etc/link
ln @/etc/lit1 @/hard
chmod -R u=rwX,go=rX @/etc
chown -R 33:44 '@/copy of etc'
truncate -s 100K @/sparse
mkdir -m 2750 @/shared
touch -r @/etc/lit1 @/shared
"#;

/// Writes a script below `scratch`; returns its path.
pub fn script(scratch: &Scratch, text: &str) -> String {
    let path = scratch.join("script");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A directory of the host named HOST.
fn host(scratch: &Scratch) -> String {
    let host = scratch.folder("HOST");
    fs::create_dir(host.join("sub")).unwrap();
    fs::write(host.join("sub/two"), vec![2; 70_000]).unwrap();
    fs::write(host.join("one"), "one\n").unwrap();
    host.to_str().unwrap().to_owned()
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 8 * MIB);
    let path = volume.path().display();
    let why = "standard output: No space left on device";
    for (command, place) in [
        (format!("mkdir -v {path}:/made"), ""),
        (format!("chmod -v 700 {path}:/made"), ""),
        (
            format!("edit {path} <<<'mkdir -v /never'"),
            "standard input:1: ",
        ),
        (format!("cp -v /etc/hostname {path}:/made/"), ""),
        (
            format!("edit {path} <<<'cp -v /made/hostname /never'"),
            "standard input:1: ",
        ),
        ("--help".to_owned(), ""),
        ("ls --help".to_owned(), ""),
        ("--version".to_owned(), ""),
    ] {
        let (done, err) = perform(&format!("$S {command} >/dev/full"), "", false);
        assert!(
            !done && err.contains(&format!("{place}{why}")),
            "{command}: {err}"
        );
        let (done, err) = perform(&format!("$S {command} >/dev/null"), "", false);
        // The directory was made, that of the script was not.
        assert_eq!(done, !command.starts_with("mkdir"), "{command}: {err}");
    }
    // There is no place for the message.
    let (done, err) = perform("$S --help >/dev/full 2>&1; test $? = 1", "", false);
    assert!(done, "{err}");
    let listed = steadfs(["ls", path.to_string().as_str()]).expect(0).out;
    assert!(listed.contains("made\n"), "{listed}");
}

#[test]
fn scripts_do_what_coreutils_do() {
    let scratch = Scratch::new();
    let host = host(&scratch);
    let text = SCRIPT
        .replace("put HOST", "put -r HOST")
        .replace("HO*", "HO?T");
    let text = text.replace(" HOST", &format!(" {host}"));
    let judged = image(&scratch, "judged.img", "ext4", 16 * MIB);
    let mount = KernelMount::new(&scratch, judged.path(), "rw,noatime");
    let root = mount.root().to_str().unwrap().to_owned();
    let prelude = "set -e\nshopt -s expand_aliases\nalias put='cp -a'\n";
    let (done, err) = perform(&format!("{prelude}{text}"), &root, false);
    assert!(done, "{err}");
    let tree = described(&Tree::of(mount.root()));
    let name = script(&scratch, &text.replace('@', ""));
    for (kind, options) in [
        ("ext2", &["--copy"][..]),
        ("ext3", &[]),
        ("ext4", &[]),
        ("f2fs", &[]),
    ] {
        let size = if kind == "f2fs" { 64 * MIB } else { 16 * MIB };
        let ours = image(&scratch, &format!("{kind}.img"), kind, size);
        let path = ours.path().to_str().unwrap();
        let shell = format!("umask 027; $S edit {} {path} < {name}", options.join(" "));
        let (done, err) = perform(&shell, "", false);
        assert!(done && err.is_empty(), "{kind}: {err}");
        check(&ours, kind);
        let out = scratch.join(&format!("{kind}.out"));
        steadfs(["extract", path, out.to_str().unwrap()]).expect(0);
        assert_eq!(described(&Tree::of(&out)), tree, "{kind}");
        if kind == "ext4" {
            let again = KernelMount::new(&scratch, ours.path(), "ro");
            assert_eq!(described(&Tree::of(again.root())), tree);
            again.unmount();
        }
    }
    mount.unmount();
}

#[test]
fn a_line_that_fails_leaves_the_image_as_it_is() {
    let scratch = Scratch::new();
    host(&scratch);
    let large = scratch.join("large");
    fs::File::create(&large)
        .unwrap()
        .write_all(&vec![7; 60 << 20])
        .unwrap();
    let large = format!("put {} /large", large.display());
    for kind in ["ext4", "f2fs", "ext2"] {
        let size = if kind == "f2fs" { 64 * MIB } else { 24 * MIB };
        let volume = image(&scratch, &format!("{kind}.img"), kind, size);
        let path = volume.path().to_str().unwrap();
        let before = fs::read(path).unwrap();
        for (line, why) in [
            ("rm /missing", ":4: /missing: cannot remove: no such file"),
            ("rm /no*", ":4: /no*: no file matches"),
            ("rm 'x", ":4: a single quote is not closed"),
            ("frobnicate /x", ":4: frobnicate: no command of scripts"),
            ("rm --fast /x", ":4: --fast: rm has no such option"),
            ("chmod 99 /a", ":4: chmod: "),
            (
                "rm -o ro /a",
                ":4: -o, --sandbox and --key-file belong to edit itself",
            ),
            ("mv /a", ":4: mv needs an operand and a target"),
            ("put /nonexistent /x", ":4: /nonexistent: No such file"),
            (&format!("rm {path}:/a"), ":4: "),
            (&large, "no space left"),
        ]
        .into_iter()
        .filter(|(line, _)| kind == "ext4" || line.starts_with("rm /miss") || *line == large)
        {
            let name = script(
                &scratch,
                &format!("mkdir -p /a/b\n# two\ntouch /a/f\n{line}\nmkdir /c"),
            );
            let output = match kind {
                "ext2" => steadfs(["edit", "--copy", path, &name]),
                _ => steadfs(["edit", path, &name]),
            };
            assert_eq!(output.code(), 1, "{kind}: {line}: {}", output.err);
            assert!(output.err.contains(why), "{kind}: {line}: {}", output.err);
            assert!(fs::read(path).unwrap() == before, "{kind}: {line}: changed");
        }
        let name = script(&scratch, "mkdir /a");
        steadfs(["edit", "-n", path, &name]).code();
        assert!(
            fs::read(path).unwrap() == before,
            "{kind}: a dry run changes something"
        );
    }
    let ext2 = scratch.join("ext2.img");
    let name = script(&scratch, "mkdir /a");
    let words = ["edit", ext2.to_str().unwrap(), &name];
    refused(
        &words,
        "the volume has no journal; steadfs edit --copy changes a copy",
    );
    let left: Vec<_> = fs::read_dir(scratch.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_str().unwrap().starts_with(".ext2")),
        "{left:?}"
    );
}

fn start(path: &str, name: &str, options: &[&str]) -> Child {
    let mut command = Command::new(program());
    command.arg("edit").args(options).args([path, name]);
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// Whether the script was carried out: all of it, or nothing.
fn is_done(path: &str, files: usize) -> bool {
    let listed = steadfs(["find", &format!("{path}:/new")]);
    match listed.out.lines().count() {
        0 => false,
        count => {
            assert_eq!(count, files + 2, "{}", listed.err);
            let old = steadfs(["ls", &format!("{path}:/old")]);
            assert_eq!(old.code(), 2, "{}", old.out);
            true
        }
    }
}

#[test]
fn a_killed_script_is_carried_out_or_not() {
    const FILES: usize = 300;
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    for n in 0..FILES {
        fs::write(source.join(n.to_string()), vec![n as u8; 20_000]).unwrap();
    }
    let name = script(
        &scratch,
        &format!("mkdir /new\nput -r {} /new\nrm /old", source.display()),
    );
    for (kind, options) in [("ext4", &[][..]), ("f2fs", &[]), ("ext2", &["--copy"])] {
        let (mut done, mut millis) = (false, 8);
        while !done {
            let volume = image(&scratch, &format!("{kind}{millis}.img"), kind, 64 * MIB);
            let path = volume.path().to_str().unwrap();
            steadfs(["touch", &format!("{path}:/old")]).expect(0);
            let before = fs::read(path).unwrap();
            let mut child = start(path, &name, options);
            std::thread::sleep(Duration::from_millis(millis));
            let signal = [Signal::KILL, Signal::INT][usize::from(millis % 4 == 3)];
            kill_process(Pid::from_child(&child), signal).unwrap();
            let status = wait(&mut child, PATIENCE).unwrap();
            // The process that has the volume ends with it.
            steadfs_suite::command::until("the image is free", || {
                !steadfs(["ls", path]).err.contains("in use")
            });
            done = is_done(path, FILES);
            if signal == Signal::INT && !status.success() {
                assert!(
                    fs::read(path).unwrap() == before,
                    "{kind}: changed by a stopped script"
                );
            }
            assert!(done || !status.success(), "{kind}: {status}");
            match kind {
                "f2fs" => drop(check_clean(volume.path(), "after a kill")),
                _ => {
                    volume.replay_by_e2fsck();
                    volume.check_clean();
                }
            }
            assert_eq!(done, is_done(path, FILES));
            fs::remove_file(path).unwrap();
            millis = millis * 2 + 1;
        }
    }
}

#[test]
fn a_dry_run_leaves_a_volume_alone_that_was_not_unmounted() {
    let scratch = Scratch::new();
    for (kind, size) in [("ext4", 16 * MIB), ("f2fs", 64 * MIB)] {
        let volume = image(&scratch, &format!("{kind}.img"), kind, size);
        let mount = SteadMount::new(&scratch, volume.path(), "");
        let file = fs::File::create(mount.join("file")).unwrap();
        file.sync_all().unwrap();
        mount.kill();
        drop(file);
        let before = fs::read(volume.path()).unwrap();
        let path = volume.path().to_str().unwrap();
        let good = script(&scratch, "mv /file /new\nmkdir /dir");
        steadfs(["edit", "-n", path, &good]).expect(0);
        assert!(fs::read(volume.path()).unwrap() == before, "{kind}");
        let bad = script(&scratch, "rm /file\nrm /missing");
        let failed = steadfs(["edit", "-n", path, &bad]).expect(1);
        assert!(failed.err.contains("/missing"), "{kind}: {}", failed.err);
        assert!(fs::read(volume.path()).unwrap() == before, "{kind}");
    }
}

/// A program that makes a new file for the image's name is stopped while the new file is there, `meanwhile` is called, and
/// then it goes on. Returns its exit code and messages.
fn paused(mut command: Command, image: &Path, meanwhile: impl FnOnce()) -> (i32, String) {
    use std::io::Read;
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let name = image.file_name().unwrap().to_str().unwrap();
    let new = image.with_file_name(format!(".{name}.{}-0", child.id()));
    steadfs_suite::command::until("the new file is there", || new.exists());
    let process = Pid::from_child(&child);
    kill_process(process, Signal::STOP).unwrap();
    meanwhile();
    assert!(new.exists(), "it was not stopped in time");
    kill_process(process, Signal::CONT).unwrap();
    let status = wait(&mut child, PATIENCE).unwrap();
    let mut messages = String::new();
    child.stderr.unwrap().read_to_string(&mut messages).unwrap();
    (status.code().unwrap(), messages)
}

/// What a mount writes to an image that is about to be replaced would be lost.
#[test]
fn an_image_that_is_being_replaced_is_in_use() {
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    for n in 0..200 {
        fs::write(source.join(n.to_string()), vec![n as u8; 50_000]).unwrap();
    }
    let source = source.to_str().unwrap();
    let name = script(&scratch, &format!("put -r {source} /new"));
    let volume = image(&scratch, "replaced.img", "ext2", 64 * MIB);
    let path = volume.path();
    let command = |words: &[&str]| {
        let mut command = Command::new(program());
        command.args(words);
        command
    };
    let shown = path.to_str().unwrap();
    let edit = ["edit", "--copy", shown, &name];
    let fit = ["format", "-q", "--fit", "-d", source, shown];
    for words in [&edit[..], &fit] {
        let (code, messages) = paused(command(words), path, || {
            let busy = steadfs(["touch", &format!("{shown}:/lost")]);
            assert!(busy.err.contains("in use"), "{words:?}: {}", busy.err);
            // What it has beside its content must not get lost.
            std::os::unix::fs::chown(path, Some(12), Some(34)).unwrap();
            let (name, flags) = ("user.note", rustix::fs::XattrFlags::empty());
            rustix::fs::setxattr(path, name, b"kept", flags).unwrap();
            let point = scratch.folder("point");
            let busy = steadfs(["mount", shown, point.to_str().unwrap()]);
            assert!(busy.err.contains("in use"), "{words:?}: {}", busy.err);
        });
        assert_eq!(code, 0, "{messages}");
        let found = fs::metadata(path).unwrap();
        assert_eq!((found.uid(), found.gid()), (12, 34), "{words:?}");
        let mut value = [0; 4];
        rustix::fs::getxattr(path, "user.note", &mut value[..]).unwrap();
        assert_eq!(&value, b"kept", "{words:?}");
        // A file that has got the name meanwhile stays.
        let (code, messages) = paused(command(words), path, || {
            let other = scratch.join("other");
            fs::write(&other, "other").unwrap();
            fs::rename(&other, path).unwrap();
        });
        assert_eq!(code, 1, "{messages}");
        assert!(messages.contains("has replaced it meanwhile"), "{messages}");
        assert_eq!(fs::read(path).unwrap(), b"other");
        fs::remove_file(path).unwrap();
        image(&scratch, "replaced.img", "ext2", 64 * MIB);
    }
}
