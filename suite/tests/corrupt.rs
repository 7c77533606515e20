//! Files without a volume, and corrupt volumes, through the whole program: commands without a mount, and a mount in the
//! kernel's tree. Clear messages, the right exit codes, run_with_memory_limit time and memory.
//!
//! `CORRUPT_CASES=n` tries n corrupt volumes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use steadfs_suite::command::finish;
use steadfs_suite::hostile::f2fs::F2fsBase;
use steadfs_suite::hostile::values::{Effect, ValueWriter, table};
use steadfs_suite::hostile::{Base, Family, save};
use steadfs_suite::scratch::mounts_below;
use steadfs_suite::stead::program;
use steadfs_suite::{Image, Outcome, Scratch, SteadMount, steadfs_when_idle, succeed};

/// Longest time of a command with a corrupt volume of a few megabytes.
const LIMIT: Duration = Duration::from_secs(300);
/// Largest private memory of a command, and of a server with a cache of 8 MiB, in bytes.
const MEMORY: u64 = 256 << 20;
const SERVER_MEMORY_KIB: u64 = (8 + 64) << 10;
/// Number of corrupt volumes in each test.
const CASES: usize = 40;

/// Exit codes of failed commands: those that read, `check`, `mount`.
const FAILED: i32 = 1;
const CHECK_FAILED: i32 = 8;
const MOUNT_FAILED: i32 = 32;
/// `check` found corruption.
const FOUND_CORRUPTION: i32 = 4;

fn cases() -> usize {
    std::env::var("CORRUPT_CASES").map_or(CASES, |n| n.parse().unwrap())
}

/// Runs our program under a memory limit; it must neither panic nor be killed.
fn run_with_memory_limit(words: &[&str]) -> Outcome {
    let mut command = Command::new("prlimit");
    command.arg(format!("--data={MEMORY}")).arg(program());
    let outcome = finish(command_with(command, words), LIMIT);
    assert!(outcome.code() < 100, "{}: {}", outcome.line, outcome.err);
    assert!(!outcome.err.contains("panicked"), "{}", outcome.err);
    if outcome.code() == 0 {
        return outcome;
    }
    let output = format!("{}{}", outcome.err, outcome.out);
    assert!(!output.trim().is_empty(), "{}: no word", outcome.line);
    outcome
}

fn command_with(mut command: Command, words: &[&str]) -> Command {
    command.args(words);
    command
}

/// Runs every command that takes a volume on this one: each fails with its own exit code and this message.
fn all_refuse(scratch: &Scratch, image: &str, words: &[&str]) {
    let mnt = scratch.folder("mnt");
    let out = scratch.join("out");
    let (mnt, out) = (mnt.to_str().unwrap(), out.to_str().unwrap());
    let root = format!("{image}:/");
    for (command, code) in [
        (&["mount", image, mnt][..], MOUNT_FAILED),
        (
            &["mount", "--foreground", "-o", "ro", image, mnt],
            MOUNT_FAILED,
        ),
        (&["check", image], CHECK_FAILED),
        (&["inspect", image], FAILED),
        (&["inspect", "--json", image], FAILED),
        (&["ls", image], FAILED),
        (&["ls", &root], FAILED),
        (&["stat", image], FAILED),
        (&["cat", image], FAILED),
        (&["extract", image, out], FAILED),
    ] {
        let outcome = run_with_memory_limit(command);
        assert_eq!(outcome.code(), code, "{}: {}", outcome.line, outcome.err);
        for word in words {
            let there = outcome.err.contains(word);
            assert!(
                there,
                "{}: {word:?} is not in {:?}",
                outcome.line, outcome.err
            );
        }
        assert!(outcome.err.lines().count() <= 2, "{}", outcome.err);
        assert!(!Path::new(out).exists(), "{}", outcome.line);
    }
    assert!(mounts_below(scratch.path()).is_empty());
}

#[test]
fn a_file_without_a_volume_is_refused_by_every_command() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.join(name).to_str().unwrap().to_owned();
    let file = |name: &str, bytes: &[u8]| {
        fs::write(scratch.join(name), bytes).unwrap();
        path(name)
    };
    scratch.folder("folder");
    succeed("mkfifo", [path("pipe")]);
    let _listener = UnixListener::bind(scratch.join("socket")).unwrap();
    symlink("nowhere", scratch.join("dangling")).unwrap();
    symlink("circle", scratch.join("circle")).unwrap();
    let journal = Image::mke2fs(&scratch, "journal.img", 16 << 20, &["-O", "journal_dev"]);
    let journal = journal.path().to_str().unwrap().to_owned();
    for (image, words) in [
        (path("missing"), &["missing", "No such file"][..]),
        (path("folder"), &["folder", "a directory"]),
        (path("pipe"), &["pipe", "a pipe"]),
        (path("socket"), &["socket", "a socket"]),
        ("/dev/null".into(), &["/dev/null", "a character device"]),
        ("/dev/zero".into(), &["/dev/zero", "a character device"]),
        (path("dangling"), &["dangling", "No such file"]),
        (path("circle"), &["circle", "symbolic links"]),
        (file("empty", b""), &["empty", "is empty"]),
        (file("byte", b"x"), &["byte", "1 byte"]),
        (file("short", &[0xFF; 1500]), &["short", "bytes"]),
        (file("zeros", &[0; 70_000]), &["zeros", "only zeros"]),
        (journal, &["journal.img", "journal_dev"]),
        (
            file("ones", &[0xFF; 1 << 20]),
            &["ones", "nothing else that is known"],
        ),
        (
            file(
                "text/x".replace('/', "-").as_str(),
                &b"words\n".repeat(9999),
            ),
            &["text-x", "is a text file"],
        ),
        (path(&"n".repeat(300)), &["nnn", "too long"]),
        (file("file", b"") + "/below", &["below", "Not a directory"]),
    ] {
        all_refuse(&scratch, &image, words);
    }
}

#[test]
fn an_unreadable_image_is_refused_by_name() {
    const NOBODY: u32 = 65_534;
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let own = scratch.join("steadfs");
    succeed("cp", [program(), &own]);
    let image = scratch.join("image");
    let path = image.to_str().unwrap();
    succeed("mke2fs", ["-q", "-t", "ext4", path, "8M"]);
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
    let mnt = scratch.folder("mnt");
    std::os::unix::fs::chown(&mnt, Some(NOBODY), None).unwrap();
    for (words, code) in [
        (&["mount", path, mnt.to_str().unwrap()][..], 1),
        (&["check", path], CHECK_FAILED),
        (&["inspect", path], FAILED),
        (&["ls", path], FAILED),
        (&["cat", &format!("{path}:/x")], FAILED),
    ] {
        let mut command = Command::new(&own);
        command.uid(NOBODY).gid(NOBODY);
        let outcome = finish(command_with(command, words), LIMIT);
        assert_eq!(outcome.code(), code, "{}: {}", outcome.line, outcome.err);
        let there = outcome.err.contains("image") && outcome.err.contains("Permission denied");
        assert!(there, "{}", outcome.err);
    }
}

/// Corrupt volumes as files: hostile values and flipped bits, evenly distributed.
struct CorruptVolume {
    name: String,
    path: PathBuf,
    /// Whether it can be mounted at all, if known.
    effect: Option<Effect>,
}

fn corrupt_volumes(scratch: &Scratch, seed: u64) -> Vec<CorruptVolume> {
    let bases = Base::all(&scratch.folder("bases"));
    let table = table();
    let wanted = cases();
    let path = |n: usize| scratch.join(&format!("corrupt-{n}"));
    let mut all = Vec::new();
    for n in 0..wanted {
        let (name, image, effect) = if n % 2 == 0 {
            // Over several runs every case is used.
            let case = &table[(n / 2 * table.len() * 2 / wanted + seed as usize) % table.len()];
            let base = bases.iter().find(|base| base.name == case.base).unwrap();
            let mut image = base.image.clone();
            ValueWriter::new(base).write(&mut image, case.values);
            (case.name.to_owned(), image, Some(case.effect))
        } else {
            let base = &bases[n % bases.len()];
            let family = if n % 6 == 1 {
                Family::Random
            } else {
                Family::Flipped
            };
            let seed = seed + n as u64;
            let name = format!("{}:{}:{seed}", family.name(), base.name);
            (name, family.apply(base, seed), None)
        };
        save(&image, &path(n));
        all.push(CorruptVolume {
            name,
            path: path(n),
            effect,
        });
    }
    all
}

#[test]
fn commands_handle_corrupt_volumes() {
    let scratch = Scratch::new();
    let out = scratch.folder("extracted");
    for (n, case) in corrupt_volumes(&scratch, 0).iter().enumerate() {
        let image = case.path.to_str().unwrap();
        let name = &case.name;
        let at = |path: &str| format!("{image}:{path}");
        let code = |words: &[&str], allowed: &[i32]| {
            let outcome = run_with_memory_limit(words);
            let code = outcome.code();
            assert!(allowed.contains(&code), "{name}: {code}: {}", outcome.err);
            code
        };
        let before = fs::read(&case.path).unwrap();
        let checked = code(&["check", image], &[0, FOUND_CORRUPTION, CHECK_FAILED]);
        let listed = code(&["ls", "-lR", image], &[0, FAILED]);
        match case.effect {
            // A volume that cannot be mounted may still be readable.
            Some(Effect::Refused) => assert_ne!(checked, 0, "{name}"),
            Some(Effect::Harmless) => assert_eq!((checked, listed), (0, 0), "{name}"),
            Some(Effect::Reported | Effect::Found) => {
                assert_eq!(checked, FOUND_CORRUPTION, "{name}")
            }
            None => {}
        }
        code(&["inspect", image], &[0, FAILED]);
        code(&["inspect", "--json", image], &[0, FAILED]);
        code(
            &["stat", &at("/"), &at("/large"), &at("/link 5")],
            &[0, FAILED],
        );
        code(&["cat", &at("/small"), &at("/link 60")], &[0, FAILED]);
        // A file may claim to be endless; `head` limits it.
        let script = "\"$0\" cat \"$1\" | head -c 3000000 | wc -c";
        let read = succeed(
            "sh",
            ["-c", script, program().to_str().unwrap(), &at("/large")],
        );
        assert!(!read.err.contains("panicked"), "{name}: {}", read.err);
        let target = out.join(format!("{n}"));
        code(
            &["extract", &at("/"), target.to_str().unwrap()],
            &[0, FAILED],
        );
        let there: Vec<_> = fs::read_dir(&out).unwrap().collect();
        assert!(there.len() <= 1, "{name}: something beside its target");
        if target.exists() {
            succeed("rm", ["-rf", target.to_str().unwrap()]);
        }
        assert_eq!(
            fs::read(&case.path).unwrap(),
            before,
            "{name}: reading changed it"
        );
        code(&["cp", "-rf", "/etc/hostname", &at("/a/")], &[0, FAILED]);
        code(&["check", image], &[0, FOUND_CORRUPTION, CHECK_FAILED]);
        fs::remove_file(&case.path).unwrap();
    }
}

/// What a user at a shell may do on the mount, in a process that can be killed.
const USE: &str = "cd \"$1\" || exit 0
find . -xdev -ls >/dev/null
find . -xdev -type f -size -9 -exec cat {} + >/dev/null
head -c 3000000 large >/dev/null
getfattr -d -m - -R . >/dev/null
for n in 1 2 3; do mkdir new-$n; for m in 1 2 3 4 5; do echo $m >new-$n/$m; done; done
cp small new-1/copy; mv large new-2; ln scattered new-3/link; rm -rf many
truncate -s 1000 new-2/large; sync -f .; df . >/dev/null; true";

/// The read-only part of it.
const READ_ONLY_USE: &str = "cd \"$1\" || exit 0
find . -xdev -ls >/dev/null
find . -xdev -type f -size -9 -exec cat {} + >/dev/null
head -c 3000000 large >/dev/null
getfattr -d -m - -R . >/dev/null; true";

/// Peak memory of a process in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or(0, |line| {
        line.trim().trim_end_matches(" kB").parse().unwrap()
    })
}

#[test]
fn mounts_handle_corrupt_volumes() {
    let scratch = Scratch::new();
    let mut mounted = 0;
    for case in corrupt_volumes(&scratch, 1000) {
        let name = &case.name;
        let options = "cache_size=8M";
        let mount = match SteadMount::attempt(&scratch, &case.path, options) {
            Ok(mount) => mount,
            Err((code, output)) => {
                assert_eq!(code, MOUNT_FAILED, "{name}: {output}");
                assert!(output.starts_with("steadfs: "), "{name}: {output}");
                assert!(!output.contains("panicked"), "{name}: {output}");
                continue;
            }
        };
        mounted += 1;
        assert_ne!(case.effect, Some(Effect::Refused), "{name}");
        let mut command = Command::new("sh");
        command.args(["-c", USE, "sh"]).arg(mount.root());
        let used = finish(command, LIMIT);
        assert_eq!(used.code(), 0, "{name}: {}", used.err);
        let peak = peak_kib(mount.pid());
        assert!(peak < SERVER_MEMORY_KIB, "{name}: {peak} KiB");
        let root = mount.root().to_owned();
        let output = finish(
            command_with(Command::new(program()), &["umount", root.to_str().unwrap()]),
            LIMIT,
        );
        let (code, log) = mount.wait_with_log();
        assert!(!log.contains("panicked"), "{name}: {log}");
        // A volume that had to stop reports it at its end, and so does the program that unmounts it.
        assert!(matches!(code, 0 | MOUNT_FAILED), "{name}: {code}: {log}");
        assert_eq!(output.code(), code, "{name}: {}{log}", output.err);
        fs::remove_file(&case.path).unwrap();
    }
    assert!(mounted * 3 > cases(), "only {mounted} could be mounted");
}

/// Commands that read f2fs volumes, and a read-only mount.
#[test]
fn corrupt_f2fs_volumes_are_handled() {
    let scratch = Scratch::new();
    let bases = F2fsBase::all(scratch.path());
    let (image, out) = (scratch.join("image"), scratch.join("out"));
    let path = image.to_str().unwrap();
    let mut mounted = 0;
    let wanted = cases() / 4;
    for n in 0..wanted {
        let base = &bases[n % bases.len()];
        save(&base.corrupt_copy(Family::Flipped, n as u64 + 5000), &image);
        let name = format!("{}:{}", base.name, n + 5000);
        let code = |words: &[&str], allowed: &[i32]| {
            let outcome = run_with_memory_limit(words);
            let code = outcome.code();
            assert!(allowed.contains(&code), "{name}: {code}: {}", outcome.err);
        };
        let at = |file: &str| format!("{path}:{file}");
        code(&["check", path], &[0, FOUND_CORRUPTION, CHECK_FAILED]);
        code(&["inspect", path], &[0, FAILED]);
        code(&["ls", "-lR", path], &[0, FAILED]);
        code(&["stat", &at("/"), &at("/large")], &[0, FAILED]);
        code(&["cat", &at("/small"), &at("/a/second")], &[0, FAILED]);
        code(&["extract", &at("/a"), out.to_str().unwrap()], &[0, FAILED]);
        succeed("rm", ["-rf", out.to_str().unwrap()]);
        let mount = match SteadMount::attempt(&scratch, &image, "ro,cache_size=8M") {
            Ok(mount) => mount,
            Err((code, output)) => {
                assert_eq!(code, MOUNT_FAILED, "{name}: {output}");
                assert!(
                    output.starts_with("steadfs: ") && !output.contains("panicked"),
                    "{output}"
                );
                continue;
            }
        };
        mounted += 1;
        let mut command = Command::new("sh");
        command.args(["-c", READ_ONLY_USE, "sh"]).arg(mount.root());
        finish(command, LIMIT).expect(0);
        let peak = peak_kib(mount.pid());
        assert!(peak < SERVER_MEMORY_KIB, "{name}: {peak} KiB");
        mount.unmount();
    }
    assert!(mounted * 3 > wanted, "only {mounted} could be mounted");
}

/// An image that is truncated while mounted: reading the missing part fails, and the end of the mount reports the loss.
#[test]
fn an_image_may_shrink_under_a_mount() {
    let scratch = Scratch::new();
    let image = scratch.join("image");
    let tree = scratch.folder("tree");
    fs::write(tree.join("file"), vec![7; 20 << 20]).unwrap();
    let (path, tree) = (image.to_str().unwrap(), tree.to_str().unwrap());
    succeed("mke2fs", ["-q", "-t", "ext4", "-d", tree, path, "64M"]);
    let mount = SteadMount::new(&scratch, &image, "");
    let file = File::open(mount.join("file")).unwrap();
    let mut first = [0; 4096];
    file.read_exact_at(&mut first, 0).unwrap();
    File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let last = file.read_exact_at(&mut first, 19 << 20);
    assert!(last.is_err(), "a missing file cannot be read");
    drop(file);
    // With or without data to write, it must end.
    steadfs_when_idle(&["umount".as_ref(), mount.root().as_os_str()]);
    let (code, output) = mount.wait_with_log();
    assert!(matches!(code, 0 | MOUNT_FAILED), "{code}: {output}");
    assert!(!output.contains("panicked"), "{output}");
}

/// A volume's label and default options come from its maker; on a terminal their control characters have no effect.
#[test]
fn control_characters_of_a_volume_do_not_reach_the_terminal() {
    const LABEL: &str = "\u{1b}]0;x\u{7}\u{9b}2J";
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "image", 16 << 20, &["-t", "ext4", "-L", LABEL]);
    let path = image.path().to_str().unwrap();
    let options = format!("mount_opts={LABEL}");
    succeed("tune2fs", ["-E", options.as_str(), path]);
    let mut all = Vec::new();
    for words in [&["inspect"][..], &["inspect", "--json"], &["check"]] {
        let output = steadfs_when_idle(&[words, &[path]].concat()).expect(0);
        all.push(output.out + &output.err);
    }
    assert!(all[0].contains("\\033]0;x\\007"), "{}", all[0]);
    assert!(all[1].contains("\\u001b]0;x\\u0007"), "{}", all[1]);
    let mount = SteadMount::new(&scratch, image.path(), "");
    mount.wait_for_log("\\033]0;x\\007");
    all.push(mount.log());
    // This warning is expected.
    mount.unmount_corrupt();
    for output in all {
        let mut harmful = output.chars().filter(|&c| c.is_control() && c != '\n');
        assert_eq!(harmful.next(), None, "{output:?}");
    }
}

/// Every command that takes a volume lists the partitions of a disk, and which of them contains a volume.
#[test]
fn partitions_are_listed_with_their_offsets() {
    let scratch = Scratch::new();
    let volume = Image::mke2fs(&scratch, "volume", 8 << 20, &["-t", "ext4", "-L", "root"]);
    let mut disk = vec![0; 1 << 20];
    // Type 0x83, from sector 2048.
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 16].copy_from_slice(&[0, 8, 0, 0, 0, 0x40, 0, 0]);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend(fs::read(volume.path()).unwrap());
    let path = scratch.join("disk.img");
    fs::write(&path, disk).unwrap();
    let (image, mnt) = (path.to_str().unwrap(), scratch.folder("mnt"));
    let mnt = mnt.to_str().unwrap();
    for (words, code) in [
        (&["mount", image, mnt][..], MOUNT_FAILED),
        (&["mount", "-o", "ro", image, mnt], MOUNT_FAILED),
        (&["check", image], CHECK_FAILED),
        (&["inspect", image], FAILED),
        (&["ls", image], FAILED),
        (&["cat", &format!("{image}:/x")], FAILED),
        (&["cp", "/etc/hostname", &format!("{image}:/")], FAILED),
    ] {
        let output = run_with_memory_limit(words);
        assert_eq!(output.code(), code, "{}: {}", output.line, output.err);
        let listed = output
            .err
            .contains("-o offset=1048576, 8 MiB, Linux: ext4 \"root\"");
        assert!(listed, "{}: {}", output.line, output.err);
    }
    let listed = run_with_memory_limit(&["ls", "-o", "offset=1048576", image]);
    assert!(listed.out.contains("lost+found"), "{}", listed.err);
}

/// Read-only commands continue, with a warning, where a mount does not; a mount goes as far as the kernel's.
#[test]
fn readable_parts_of_a_corrupt_volume_are_read() {
    let scratch = Scratch::new();
    let tree = scratch.folder("tree");
    fs::write(tree.join("file"), "content").unwrap();
    let args = ["-t", "ext4", "-b", "1024", "-d", tree.to_str().unwrap()];
    let ext = Image::mke2fs(&scratch, "ext", 16 << 20, &args);
    let mut bytes = fs::read(ext.path()).unwrap();
    bytes[1024..2048].fill(0);
    fs::write(ext.path(), bytes).unwrap();
    let path = ext.path().to_str().unwrap();
    let (code, output) = SteadMount::attempt(&scratch, ext.path(), "ro")
        .err()
        .unwrap();
    assert_eq!(code, MOUNT_FAILED);
    assert!(
        output.contains("sb=8193") && output.contains("e2fsck -b 8193"),
        "{output}"
    );
    let mount = SteadMount::new(&scratch, ext.path(), "ro,sb=8193");
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"content");
    assert!(mount.log().contains("block 8193"), "{}", mount.log());
    mount.unmount_corrupt();
    let read = run_with_memory_limit(&["cat", &format!("{path}:/file")]).expect(0);
    assert_eq!(read.out, "content");
    assert!(read.err.contains("sb=8193"), "{}", read.err);
    let checked = run_with_memory_limit(&["check", path]).expect(FOUND_CORRUPTION);
    assert!(
        checked.out.contains("superblock has magic"),
        "{}",
        checked.out
    );

    let f2fs = scratch.join("f2fs");
    let path = f2fs.to_str().unwrap();
    let tree = tree.to_str().unwrap();
    run_with_memory_limit(&["format", "-q", "-t", "f2fs", "-d", tree, path, "64M"]).expect(0);
    File::options()
        .write(true)
        .open(&f2fs)
        .unwrap()
        .set_len(60 << 20)
        .unwrap();
    let read = run_with_memory_limit(&["cat", &format!("{path}:/file")]).expect(0);
    assert_eq!(read.out, "content");
    assert!(read.err.contains("the device only"), "{}", read.err);
    assert!(SteadMount::attempt(&scratch, &f2fs, "").is_err());
    let mount = SteadMount::new(&scratch, &f2fs, "ro");
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"content");
    mount.unmount_corrupt();
}

/// An unsupported feature is not corruption.
#[test]
fn unsupported_features_are_not_reported_as_corruption() {
    let scratch = Scratch::new();
    let f2fs = scratch.join("f2fs");
    let path = f2fs.to_str().unwrap();
    run_with_memory_limit(&["format", "-q", "-t", "f2fs", path, "64M"]).expect(0);
    let good = fs::read(&f2fs).unwrap();
    let ext = Image::mke2fs(
        &scratch,
        "ext",
        16 << 20,
        &["-t", "ext4", "-O", "^metadata_csum"],
    );
    ext.debugfs("feature FEATURE_I28");
    for (at, value, name) in [
        (2182, 1, "packed_ssa"),
        (2180, 2, "blkzoned"),
        (16, 14, "blocks of 16 KiB"),
    ] {
        let mut bytes = good.clone();
        for copy in [1024, 5120] {
            bytes[copy + at] = value;
        }
        fs::write(&f2fs, bytes).unwrap();
        let output = run_with_memory_limit(&["check", path]).expect(CHECK_FAILED);
        let both = output.err.clone() + &output.out;
        assert!(
            both.contains("not supported") && both.contains(name),
            "{both}"
        );
        for word in ["damaged", "corrupt"] {
            assert!(!both.contains(word), "{both}");
        }
    }
    let output =
        run_with_memory_limit(&["check", ext.path().to_str().unwrap()]).expect(CHECK_FAILED);
    assert!(output.err.contains("FEATURE_I28"), "{}", output.err);
}
