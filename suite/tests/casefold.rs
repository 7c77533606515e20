//! Case-insensitive directories (`casefold`) through a mount: by every spelling, as Linux answers.
//!
//! The tests with Linux as judge need the kernel of `scripts/judge-kernel`. By hand:
//! `scripts/judge-kernel && PATH=$PWD/.cache/judges/bin:$PATH cargo test -p steadfs-suite --test casefold -- --ignored`
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "casefold/probes.rs"]
mod probes;

use std::fs;
use std::path::Path;

use steadfs_suite::image::Image;
use steadfs_suite::uml::{TOP, assert_same, boot_with_all_of_f2fs};
use steadfs_suite::{Scratch, SteadMount, steadfs, succeed};

use probes::{find_all, probe};

const SIZE: u64 = 64 << 20;
/// Variable with the seed of the probes inside, and where their log goes.
const PROBE: &str = "STEADFS_CASEFOLD_PROBE";
const CALLS: u32 = 3000;

/// A kind of volume: file system, name of the image, options of mkfs.
type Kind = (&'static str, &'static str, &'static [&'static str]);

const VOLUMES: [Kind; 4] = [
    ("ext4", "ext4", &["-t", "ext4", "-O", "casefold"]),
    (
        "ext4",
        "ext4-strict",
        &[
            "-t",
            "ext4",
            "-O",
            "casefold",
            "-E",
            "encoding_flags=strict",
        ],
    ),
    ("f2fs", "f2fs", &["-C", "utf8"]),
    ("f2fs", "f2fs-strict", &["-C", "utf8:strict"]),
];

fn make(scratch: &Scratch, name: &str, (fs, kind, options): Kind) -> Image {
    let name = format!("{name}-{kind}.img");
    match fs {
        "ext4" => Image::mke2fs(scratch, &name, SIZE, options),
        _ => steadfs_suite::f2fs::mkfs(scratch, &name, SIZE, &options.join(" ")),
    }
}

fn folded_dirs(top: &Path) {
    for name in ["0", "1", "many"] {
        let dir = top.join(name);
        fs::create_dir(&dir).unwrap();
        succeed("chattr", ["+F".as_ref(), dir.as_os_str()]);
    }
}

fn is_f2fs(kind: &str) -> bool {
    kind.starts_with("f2fs")
}

fn lines(log: &str) -> Vec<String> {
    log.lines().map(str::to_owned).collect()
}

#[test]
fn the_kernel_caches_no_spelling() {
    let scratch = Scratch::new();
    for volume in VOLUMES {
        let image = make(&scratch, "cache", volume);
        let mount = SteadMount::new(&scratch, image.path(), "");
        let dir = mount.join("dir");
        fs::create_dir(&dir).unwrap();
        // These are known to be missing when the directory becomes case-insensitive.
        for name in ["One", "ONE", "two"] {
            assert!(!dir.join(name).exists());
        }
        succeed("chattr", ["+F".as_ref(), dir.as_os_str()]);
        fs::write(dir.join("one"), "1").unwrap();
        for name in ["One", "ONE", "one"] {
            assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), "1", "{name}");
        }
        fs::remove_file(dir.join("ONE")).unwrap();
        for name in ["One", "ONE", "one"] {
            assert!(!dir.join(name).exists(), "{name}");
        }
        fs::write(dir.join("oNE"), "2").unwrap();
        assert_eq!(fs::read_to_string(dir.join("one")).unwrap(), "2");
        // Names of a listing are cached, too.
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::rename(dir.join("One"), dir.join("Two")).unwrap();
        assert!(!dir.join("oNE").exists() && dir.join("TWO").exists());
        fs::create_dir(dir.join("Sub")).unwrap();
        fs::write(dir.join("SUB/File"), "3").unwrap();
        assert_eq!(fs::read_to_string(dir.join("sub/FILE")).unwrap(), "3");
        fs::rename(dir.join("sUB"), dir.join("other")).unwrap();
        assert!(!dir.join("Sub").exists() && !dir.join("SUB/File").exists());
        assert_eq!(fs::read_to_string(dir.join("OTHER/file")).unwrap(), "3");
        mount.unmount();
        check(volume, image.path());
    }
}

/// Copies several files whose names are one into directories of the volume, and expects the first one there.
#[test]
fn a_copy_does_not_destroy_its_own_files() {
    let scratch = Scratch::new();
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("Sub")).unwrap();
    fs::create_dir_all(source.join("sub")).unwrap();
    for name in ["FILE", "File", "Sub/one", "sub/two", "other"] {
        fs::write(source.join(name), name).unwrap();
    }
    for volume in [VOLUMES[0], VOLUMES[2]] {
        let image = make(&scratch, "copy", volume);
        let mount = SteadMount::new(&scratch, image.path(), "");
        folded_dirs(&mount.join(""));
        mount.unmount();
        let at = |dir: &str| format!("{}:{dir}", image.path().display());
        let from = |name: &str| source.join(name).display().to_string();
        let plain = at("/plain");
        let whole = steadfs(["cp", "-r", &from(""), &plain]);
        assert_eq!(whole.code(), 0, "{}", whole.err);
        let inside = steadfs(["cp", "-r", &from("."), &at("/0")]);
        let between = steadfs(["cp", "-r", "-T", &plain, &at("/1")]);
        let (upper, lower, other) = (from("FILE"), from("File"), from("other"));
        let named = steadfs(["cp", &upper, &lower, &other, &at("/many")]);
        for (copied, dir) in [(inside, "/0"), (between, "/1"), (named, "/many")] {
            assert_eq!(copied.code(), 1, "{dir}: {}", copied.err);
            assert!(copied.err.contains("not "), "{}", copied.err);
            let cat = |name: &str| steadfs(["cat", &at(&format!("{dir}/{name}"))]).out;
            let first = cat("file");
            assert!(["FILE", "File"].contains(&&first[..]), "{dir}: {first}");
            let names = steadfs(["ls", &at(dir)]).out;
            assert!(names.lines().any(|name| name == first), "{names}");
            assert_eq!(cat("other"), "other");
            // A directory is not mixed with another.
            let subs = [cat("sub/one"), cat("sub/two")];
            let kept = subs.iter().filter(|content| !content.is_empty());
            assert_eq!(kept.count(), usize::from(dir != "/many"), "{subs:?}");
        }
        check(volume, image.path());
    }
}

#[test]
#[ignore = "needs scripts/judge-kernel"]
fn linux_answers_the_same_on_either_volume() {
    let scratch = Scratch::new();
    let volumes = VOLUMES.map(|volume| {
        let images = ["linux", "ours"].map(|name| make(&scratch, name, volume));
        (volume, images)
    });
    let logs = |kind: &str, what: &str| scratch.join(&format!("{kind}-{what}.log"));

    // The first calls on a new volume, by Linux and here.
    let first: Vec<_> = volumes
        .iter()
        .map(|(volume, [linux, _])| (*volume, linux.path()))
        .collect();
    boot_probes(&scratch, &first, 1, &logs);
    for ((_, kind, _), [_, ours]) in &volumes {
        let mount = SteadMount::new(&scratch, ours.path(), "");
        folded_dirs(mount.root());
        let here = probe(mount.root(), (1, CALLS), is_f2fs(kind));
        unmount(mount, kind);
        let linux = fs::read_to_string(logs(kind, "1")).unwrap();
        assert_same(
            &lines(&here),
            &lines(&linux),
            &format!("{kind}, first calls"),
        );
    }
    // More of them on the volume that the other one made.
    let second: Vec<_> = volumes
        .iter()
        .map(|(volume, [_, ours])| (*volume, ours.path()))
        .collect();
    boot_probes(&scratch, &second, 2, &logs);
    for (volume, [linux, ours]) in &volumes {
        let (_, kind, _) = volume;
        let mount = SteadMount::new(&scratch, linux.path(), "");
        let found = find_all(mount.root(), is_f2fs(kind));
        let here = probe(mount.root(), (2, CALLS), is_f2fs(kind));
        unmount(mount, kind);
        let linux_found = fs::read_to_string(logs(kind, "2-found")).unwrap();
        assert_same(
            &lines(&found),
            &lines(&linux_found),
            &format!("{kind}, found"),
        );
        let linux_log = fs::read_to_string(logs(kind, "2")).unwrap();
        assert_same(
            &lines(&here),
            &lines(&linux_log),
            &format!("{kind}, more calls"),
        );
        for image in [linux, ours] {
            check(*volume, image.path());
        }
    }
}

/// Unmounts a volume that has names that are not UTF-8 where its kind allows them.
fn unmount(mount: SteadMount, kind: &str) {
    match kind {
        "ext4" => mount.unmount_corrupt(),
        _ => mount.unmount(),
    }
}

fn check((fs, kind, _): Kind, image: &Path) {
    match fs {
        // e2fsck 1.47 expects another hash of names that are not UTF-8 than Linux, which finds them by this one.
        "ext4" if kind == "ext4" => {}
        "ext4" => Image::at(image.to_owned()).check_clean(),
        _ => drop(steadfs_suite::f2fs::check_clean(image, kind)),
    }
    steadfs(["check".as_ref(), image.as_os_str()]).expect(0);
}

/// Lets Linux make the calls of a seed on each volume; what it finds before the calls of the second seed goes to a log
/// of its own.
fn boot_probes(
    scratch: &Scratch,
    images: &[(Kind, &Path)],
    seed: u64,
    logs: &dyn Fn(&str, &str) -> std::path::PathBuf,
) {
    let program = std::env::current_exe().unwrap();
    let mut script = String::new();
    for (((fs, kind, _), _), letter) in images.iter().zip('a'..) {
        let log = logs(kind, &seed.to_string());
        script += &format!(
            "mount -t {fs} /dev/ubd{letter} {TOP}\n\
             if [ {seed} = 1 ]; then mkdir {TOP}/0 {TOP}/1 {TOP}/many; chattr +F {TOP}/0 {TOP}/1 {TOP}/many; fi\n\
             {PROBE}='{seed} {}' {} --ignored --exact probes_of_linux --nocapture\numount {TOP}\n",
            log.display(),
            program.display()
        );
    }
    let paths: Vec<_> = images.iter().map(|(_, path)| *path).collect();
    boot_with_all_of_f2fs(scratch, &paths, &script);
}

#[test]
#[ignore = "a script of the judge runs it"]
fn probes_of_linux() {
    let Ok(work) = std::env::var(PROBE) else {
        return;
    };
    let (seed, log) = work.split_once(' ').unwrap();
    let (seed, top) = (seed.parse().unwrap(), Path::new(TOP));
    let is_f2fs = log.contains("/f2fs");
    if seed > 1 {
        fs::write(log.replace(".log", "-found.log"), find_all(top, is_f2fs)).unwrap();
    }
    fs::write(log, probe(top, (seed, CALLS), is_f2fs)).unwrap();
    succeed("sync", [log]);
}
