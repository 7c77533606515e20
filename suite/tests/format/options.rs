//! The options of mke2fs and mkfs.f2fs, each for its own kind of volume.

use std::fs;
use std::process::Command;
use std::time::Duration;

use steadfs_suite::command::finish;
use steadfs_suite::stead::program;
use steadfs_suite::{Scratch, steadfs, succeed};

use super::{MIB, UUID, clean, pair};

/// Bytes of the volume that dumpe2fs finds.
fn ext_size(image: &str) -> u64 {
    let output = succeed("dumpe2fs", ["-h", image]).out;
    let number = |label: &str| -> u64 {
        let line = output.lines().find_map(|line| line.strip_prefix(label));
        line.unwrap().trim().parse().unwrap()
    };
    number("Block count:") * number("Block size:")
}

#[test]
fn sizes_have_the_units_of_mke2fs() {
    let scratch = Scratch::new();
    let image = scratch.join("image");
    let image = image.to_str().unwrap();
    for words in [
        &["16384"][..],
        &["-b", "4096", "4096"],
        &["-b", "1024", "16384"],
        &["-b", "-4096", "16384"],
        &["32768s"],
        &["0x4000k"],
        &["16m"],
    ] {
        let made = |done: &dyn Fn()| {
            let _ = fs::remove_file(image);
            done();
            ext_size(image)
        };
        let (size, options) = words.split_last().unwrap();
        let all = |first: &[&'static str]| {
            let all = first.iter().chain(options).copied();
            all.chain([image, *size])
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let theirs = made(&|| drop(succeed("mke2fs", all(&["-q", "-F"]))));
        let ours = made(&|| drop(steadfs(all(&["format", "-q", "-F"])).expect(0)));
        assert_eq!((ours, theirs), (16 * MIB, 16 * MIB), "{words:?}");
    }
    for (size, bytes) in [
        ("16MiB", 16 * MIB),
        ("0.015625G", 16 * MIB),
        ("16777216B", 16 * MIB),
        ("16MB", 16_000_000),
    ] {
        let _ = fs::remove_file(image);
        steadfs(["format", "-q", image, size]).expect(0);
        assert_eq!(fs::metadata(image).unwrap().len(), bytes, "{size}");
    }
    for (size, why) in [
        ("G", "size G: needs a number before the unit"),
        ("64XB", "XB is no unit"),
        ("0.0001K", "is less than a byte"),
        ("16E", "is too large"),
    ] {
        let output = steadfs(["format", "-q", image, size]).expect(1);
        assert!(output.err.contains(why), "{}", output.err);
    }
    // The size is in bytes.
    let _ = fs::remove_file(image);
    let output = steadfs(["format", "-q", image, "4503599627370496"]).expect(1);
    assert!(output.err.contains("4503599627370496B"), "{}", output.err);
    assert!(fs::metadata(image).is_err());
    for (words, sectors) in [(&[] as &[&str], "131072"), (&["-w", "4096"], "16384")] {
        let _ = fs::remove_file(image);
        let all = ["format", "-q", "-t", "f2fs"].iter().chain(words);
        steadfs(all.chain(&[image, sectors])).expect(0);
        assert_eq!(fs::metadata(image).unwrap().len(), 64 * MIB);
    }
}

#[test]
fn options_of_mke2fs_are_accepted_or_refused_by_name() {
    let scratch = Scratch::new();
    let path = scratch.join("image");
    let image = path.to_str().unwrap();
    for words in [
        &["-F", "-F", "-q", "-q"][..],
        &["-v"],
        &["-K", "-o", "Linux", "-j", "-j"],
        &["-R", "stride=16", "-b", "1024", "-b", "4096", "-i", "16k"],
        &["-t", "ext4", "-t", "ext4"],
    ] {
        let _ = fs::remove_file(&path);
        steadfs(["format"].iter().chain(words).chain(&[image, "16M"])).expect(0);
        clean(image);
    }
    fs::remove_file(&path).unwrap();
    for (words, why) in [
        (&["-c"][..], "-c: "),
        (&["-l", "list"], "-l: "),
        (&["-C", "16384"], "cluster size: "),
        (&["-S"], "-S: "),
        (&["-s", "1"], "-s: "),
        (&["-z", "undo"], "-z: "),
        (&["-o", "hurd"], "-o hurd: "),
        (&["-t", "ext4", "-t", "ext2"], "-t: "),
        (&["-E", "root_owner=1"], "-E root_owner: "),
        (&["-E", "root_perms=9"], "-E root_perms: "),
        (&["--overprovision", "5"], "--overprovision: "),
    ] {
        let output = steadfs(["format", image, "16M"].iter().chain(words));
        assert_eq!(output.code(), 1, "{words:?}: {}", output.err);
        assert!(output.err.contains(why), "{words:?}: {}", output.err);
        assert!(!path.exists(), "{words:?}");
    }
    let output = steadfs(["format", "-V"]).expect(0);
    assert!(
        output.out.contains(env!("CARGO_PKG_VERSION")),
        "{}",
        output.out
    );
}

#[test]
fn a_dry_run_prints_superblock_copies_and_writes_nothing() {
    let scratch = Scratch::new();
    let path = scratch.join("image");
    let image = path.to_str().unwrap();
    let words = ["-b", "1024", image, "64M"];
    let dry = ["format", "-n", "-v"];
    let output = steadfs(dry.iter().chain(&words)).expect(0).out;
    assert!(!path.exists());
    steadfs(["format", "-q"].iter().chain(&words)).expect(0);
    let before = fs::read(&path).unwrap();
    let dumped = succeed("dumpe2fs", [image]).out;
    let copies: Vec<&str> = dumped
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Backup superblock at "))
        .filter_map(|line| line.split(',').next())
        .collect();
    assert!(copies.len() > 2);
    let line = format!("superblock copies at blocks: {}", copies.join(", "));
    assert!(output.contains(&line), "{line}: {output}");
    steadfs(["format", "-n", "-F", "-t", "ext2", image]).expect(0);
    assert!(before == fs::read(&path).unwrap(), "a dry run wrote");
}

/// Owner, group and permissions of a volume's root.
fn root_of(image: &str) -> String {
    let output = steadfs(["ls", "-lad", &format!("{image}:/")]).expect(0).out;
    let words: Vec<&str> = output.split_whitespace().collect();
    format!("{} {}:{}", words[0], words[2], words[3])
}

#[test]
fn the_root_directory_gets_the_requested_owner() {
    let scratch = Scratch::new();
    let from = scratch.folder("from");
    fs::write(from.join("file"), "content").unwrap();
    std::os::unix::fs::chown(&from, Some(7), Some(8)).unwrap();
    let from = from.to_str().unwrap();
    let [theirs, our] = &pair(&scratch, "image", &vec![0; 64 * MIB as usize]);
    for kind in ["ext2", "ext3", "ext4"] {
        let words = ["-q", "-F", "-t", kind, "-E", "root_owner=5:6", "-d", from];
        succeed("mke2fs", words.iter().chain(&[theirs.as_str()]));
        steadfs(["format"].iter().chain(&words).chain(&[our.as_str()])).expect(0);
        let stat = |image: &str| {
            let output = succeed("debugfs", ["-R", "stat /", image]).out;
            let line = output.lines().find(|line| line.contains("User:")).unwrap();
            line.split("Size:").next().unwrap().trim().to_owned()
        };
        assert_eq!(stat(our), stat(theirs), "{kind}");
        assert!(root_of(our).ends_with(" 5:6"), "{}", root_of(our));
        clean(our);
    }
    for (words, shows) in [
        (&["-E", "root_owner=5:6"][..], "drwxr-xr-x 5:6"),
        (&["-E", "root_owner"], "drwxr-xr-x 0:0"),
        (&["-E", "root_owner=5:6,root_perms=1777"], "drwxrwxrwt 5:6"),
        (&["-d", from], "drwxr-xr-x 7:8"),
        (
            &["-d", from, "-E", "root_owner,root_perms=700"],
            "drwx------ 0:0",
        ),
        (&["-t", "f2fs", "-R", "5:6"], "drwxr-xr-x 5:6"),
        (&["-t", "f2fs", "-R", "5:6", "-d", from], "drwxr-xr-x 5:6"),
        (
            &["-t", "f2fs", "--root-owner", "5:6", "-d", from],
            "drwxr-xr-x 5:6",
        ),
        (&["-t", "f2fs", "-d", from], "drwxr-xr-x 7:8"),
    ] {
        steadfs(
            ["format", "-q", "-F"]
                .iter()
                .chain(words)
                .chain(&[our.as_str()]),
        )
        .expect(0);
        assert_eq!(root_of(our), shows, "{words:?}");
    }
    // Without a value, and by default in mkfs.f2fs, the owner is the user that makes the volume.
    let image = scratch.join("of-user");
    let image = image.to_str().unwrap();
    for words in [&["-E", "root_owner"][..], &["-t", "f2fs"]] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "5", "--regid", "6", "--clear-groups"]);
        command
            .arg(program())
            .args(["format", "-q", "-F"])
            .args(words)
            .arg(image);
        fs::write(image, vec![0; 64 * MIB as usize]).unwrap();
        std::os::unix::fs::chown(image, Some(5), Some(6)).unwrap();
        fs::set_permissions(
            scratch.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        finish(command, Duration::from_secs(60)).expect(0);
        assert_eq!(root_of(image), "drwxr-xr-x 5:6", "{words:?}");
    }
}

#[test]
fn option_letters_for_f2fs_are_those_of_mkfs_f2fs() {
    let scratch = Scratch::new();
    let [theirs, our] = &pair(&scratch, "image", &vec![0; 128 * MIB as usize]);
    for words in [
        &["-i"][..],
        &["-o", "0"],
        &["-s", "2", "-z", "2"],
        &["-a", "0", "-t", "0"],
        &["-t", "1", "-q", "-q"],
        &[
            "-R",
            "5:6",
            "-O",
            "extra_attr,inode_crtime",
            "-O",
            "lost_found",
        ],
        &["-e", "mp3,foo", "-E", "sqlite", "-w", "4096"],
        &["-C", "utf8"],
        &["-C", "utf8:strict"],
    ] {
        let given = ["-f", "-r", "-T", "1600000000", "-U", UUID, "-l", "name"];
        let all = || given.iter().chain(words).copied();
        for image in [theirs, our] {
            fs::File::create(image).unwrap().set_len(128 * MIB).unwrap();
        }
        succeed("mkfs.f2fs", all().chain([theirs.as_str()]));
        steadfs(
            ["format", "-t", "f2fs"]
                .into_iter()
                .chain(all())
                .chain([our.as_str()]),
        )
        .expect(0);
        let [theirs, ours] = [theirs, our].map(|image| {
            let mut bytes = fs::read(image).unwrap();
            // The superblocks record the program's name.
            for start in [1024, 4096 + 1024] {
                bytes[start..start + 3072].fill(0);
            }
            bytes
        });
        assert!(theirs == ours, "{words:?}");
    }
    let image = scratch.join("none");
    let path = image.to_str().unwrap();
    for (words, why) in [
        (&["-c", "other@alias"][..], "-c other@alias: "),
        (&["-m"], "-m: "),
        (&["-S"], "-S: "),
        (&["-C", "utf7"], "utf7"),
        (&["-g", "android"], "-g android: "),
        (&["-H", "x"], "-H x: "),
        (&["-a", "1"], "-a 1: "),
        (&["-b", "16384"], "-b 16384: "),
        (&["-t", "2"], "-t: 2"),
        (&["-t", "ext4"], "-t: ext4"),
        (&["-d", "1"], "-d 1: "),
        (&["-T", "-5"], "-T -5: "),
        (&["-R", "5"], "root's owner"),
    ] {
        let all = ["format", "-t", "f2fs"].iter().chain(words);
        let output = steadfs(all.chain(&[path, "64M"]));
        assert_eq!(output.code(), 1, "{words:?}: {}", output.err);
        assert!(output.err.contains(why), "{words:?}: {}", output.err);
        assert!(!image.exists(), "{words:?}");
    }
    let output = steadfs(["format", "-t", "f2fs", "--help"]).expect(0).out;
    assert!(output.contains("sectors"), "{output}");
}
