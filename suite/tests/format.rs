//! `steadfs format` against mke2fs, for the options that both have.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use steadfs_rt::FAULT_VARIABLE;
use steadfs_suite::command::finish;
use steadfs_suite::stead::program;
use steadfs_suite::{Image, KernelMount, Scratch, SteadMount, run, steadfs, succeed};

#[path = "format/archives.rs"]
mod archives;
#[path = "format/builders.rs"]
mod builders;
#[path = "format/fit.rs"]
mod fit;
#[path = "format/options.rs"]
mod options;
#[path = "format/owners.rs"]
mod owners;
#[path = "format/reproducible.rs"]
mod reproducible;

const MIB: u64 = 1 << 20;
const UUID: &str = "6b4c9a52-0f5e-4f0c-9f2b-0d8c5f6a7b8c";

/// Options of both programs that are not compared: they make the result deterministic.
fn make(program: impl Fn(&[&str]), image: &str, extended: &str, options: &[&str]) {
    let seed = format!("hash_seed={UUID}{extended}");
    let mut words = vec!["-q", "-t", "ext4", "-U", UUID, "-E", &seed];
    words.extend(options);
    words.extend([image, "64M"]);
    program(&words);
}

fn mke2fs(words: &[&str]) {
    let all: Vec<&str> = ["-F"].iter().chain(words).copied().collect();
    succeed("mke2fs", &all);
}

fn ours(words: &[&str]) {
    let all: Vec<&str> = ["format"].iter().chain(words).copied().collect();
    steadfs(&all).expect(0);
}

/// The output of dumpe2fs without the time of creation and the write count.
fn dump(image: &str) -> Vec<String> {
    let of_time = [
        "Filesystem created",
        "Last write time",
        "Last checked",
        "Lifetime writes",
        "Checksum:",
    ];
    let output = succeed("dumpe2fs", [image]).out;
    let lines = output
        .lines()
        .filter(|line| !of_time.iter().any(|start| line.starts_with(start)));
    lines.map(str::to_owned).collect()
}

/// Two files with the same content: one for mke2fs, which would assume zeros in a file that it creates itself, and one
/// for us.
fn pair(scratch: &Scratch, name: &str, content: &[u8]) -> [String; 2] {
    ["theirs", "ours"].map(|whose| {
        let path = scratch.join(&format!("{name}-{whose}"));
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

fn clean(image: &str) {
    let output = run("e2fsck", ["-fn", image]);
    assert_eq!(output.code(), 0, "{}{}", output.out, output.err);
}

#[test]
fn groups_and_names_are_as_mke2fs_makes_them() {
    let scratch = Scratch::new();
    let cases: &[(&[&str], &str)] = &[
        (
            &["-b", "1024", "-g", "4096"],
            "Blocks per group:         4096",
        ),
        (&["-b", "1024", "-G", "4"], "Flex block group size:    4"),
        (&["-b", "1024", "-G", "1"], "Blocks per group:         8192"),
        (
            &["-M", "/some/where"],
            "Last mounted on:          /some/where",
        ),
        (&["-D", "-r", "1"], "Filesystem revision #:    1 (dynamic)"),
    ];
    for (n, (options, shows)) in cases.iter().enumerate() {
        let [theirs, our] = pair(&scratch, &n.to_string(), &vec![0; 64 * MIB as usize]);
        make(mke2fs, &theirs, "", options);
        make(ours, &our, "", options);
        let dumped = dump(&our);
        assert_eq!(dumped, dump(&theirs), "{options:?}");
        assert!(
            dumped.iter().any(|line| line == shows),
            "{options:?}: {dumped:?}"
        );
        clean(&our);
    }
    let image = scratch.join("none");
    let image = image.to_str().unwrap();
    for (options, why) in [
        (&["-g", "4095"][..], "multiple of 8"),
        (&["-G", "3"], "power of two"),
        (&["-r", "0"], "-r 0"),
        (&["-C", "16384"], "-O bigalloc"),
        (
            &["-t", "f2fs", "-G", "4"],
            "-G: mkfs.f2fs has no such option",
        ),
        (&["-t", "f2fs", "-D"], "-D: mkfs.f2fs has no such option"),
        (&["-l", "badblocks"], "mke2fs -l"),
        (&["-l", "badblocks", "-L", "label"], "mke2fs -l"),
        (&["-E", "offset=7"], "multiple of 512"),
        (&["-E", "offset=x"], "offset"),
    ] {
        let output = steadfs(["format", image, "64M"].iter().chain(options));
        assert_ne!(output.code(), 0, "{options:?}");
        assert!(output.err.contains(why), "{options:?}: {}", output.err);
        assert!(!Path::new(image).exists());
    }
}

/// An impossible volume is refused with a message in the user's terms, and leaves no file; on a larger device mke2fs
/// makes one, too.
#[test]
fn tiny_volumes_are_made_or_refused() {
    let scratch = Scratch::new();
    let [our, theirs] = ["ours", "theirs"].map(|name| scratch.join(name));
    let [ours, theirs_too] = [&our, &theirs].map(|path| path.to_str().unwrap());
    let sizes = [
        1, 511, 512, 1024, 2048, 4096, 16_384, 32_768, 61_440, 65_536, 102_400, 204_800, 524_288,
    ];
    for options in [
        &["-t", "ext4"][..],
        &["-t", "ext2"],
        &["-b", "4096"],
        &["-b", "65536"],
    ] {
        for size in sizes {
            let text = format!("{size}B");
            let words = ["format", "-q", ours, &text];
            let output = steadfs(words.iter().chain(options));
            fs::File::create(&theirs).unwrap().set_len(size).unwrap();
            let words = ["-q", "-F", theirs_too];
            let made = run("mke2fs", words.iter().chain(options)).code() == 0;
            assert_eq!(
                output.code() == 0,
                made,
                "{options:?} {size}: {}",
                output.err
            );
            assert_eq!(our.exists(), made, "{options:?} {size}: {}", output.err);
            if made {
                clean(ours);
                fs::remove_file(&our).unwrap();
            } else {
                let clear = ["too small", "too few", "has only"];
                let is_clear = clear.iter().any(|words| output.err.contains(words));
                assert!(is_clear, "{options:?} {size}: {}", output.err);
                assert_eq!(output.err.lines().count(), 1, "{}", output.err);
            }
        }
    }
}

#[test]
fn uuid_arguments_mean_what_they_mean_to_mke2fs() {
    let scratch = Scratch::new();
    let image = scratch.join("image");
    let image = image.to_str().unwrap();
    let uuid = |kind: &str, word: &str| {
        steadfs(["format", "-qF", "-t", kind, "-U", word, image, "64M"]).expect(0);
        let output = steadfs(["inspect", image]).expect(0).out;
        let line = output.lines().find(|line| line.contains("UUID")).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    for kind in ["ext4", "f2fs"] {
        for word in ["clear", "null", "CLEAR"] {
            assert_eq!(uuid(kind, word), "00000000-0000-0000-0000-000000000000");
        }
        let version = |uuid: &str| uuid.as_bytes()[14];
        let [one, other] = ["time", "Time"].map(|word| uuid(kind, word));
        assert_eq!(
            (version(&one), version(&other)),
            (b'1', b'1'),
            "{one} {other}"
        );
        assert_ne!(one, other);
        assert_eq!(version(&uuid(kind, "random")), b'4');
        assert_eq!(uuid(kind, UUID), UUID);
        let words = ["format", "-qF", "-t", kind, "-U", "now", image, "64M"];
        let output = steadfs(words);
        assert_ne!(output.code(), 0);
        assert!(output.err.contains("'now' is not a UUID"), "{}", output.err);
    }
}

#[test]
fn features_are_made_or_refused_with_an_alternative() {
    let scratch = Scratch::new();
    let path = scratch.join("volume");
    let image = path.to_str().unwrap();
    for words in [
        &["-O", "^extent,^64bit"][..],
        &["-O", "^extents,^64bit,^metadata_csum", "-b", "1024"],
        &["-O", "^has_journal"],
        &["-O", "^flex_bg,^resize_inode,^dir_index"],
        &["-O", "^huge_file,^large_file,^extra_isize,^dir_nlink"],
        &["-O", "fast_commit,orphan_file,metadata_csum_seed"],
        &["-O", "mmp", "-E", "mmp_update_interval=1"],
        &["-O", "encrypt,large_dir"],
        // The largest one that Linux mounts.
        &["-O", "orphan_file", "-E", "orphan_file_size=512"],
        &["-b", "-4096"],
        &["-O", "none"],
        &["-t", "ext2"],
        &["-t", "ext2", "-j"],
        &["-t", "ext3"],
    ] {
        let all = ["format", "-q", "-F", image, "64M"];
        steadfs(all.iter().chain(words)).expect(0);
        clean(image);
        let kernel = KernelMount::new(&scratch, &path, "");
        fs::write(kernel.join("file"), [7; 10_000]).unwrap();
        kernel.unmount();
        let mount = SteadMount::new(&scratch, &path, "");
        assert_eq!(fs::read(mount.join("file")).unwrap(), [7; 10_000]);
        mount.unmount();
        let has_journal = succeed("dumpe2fs", ["-h", image])
            .out
            .contains("has_journal");
        let wanted = !matches!(words, [_, "^has_journal" | "none" | "ext2"]);
        assert_eq!(has_journal, wanted, "{words:?}");
        fs::remove_file(&path).unwrap();
    }
    for (words, says) in [
        (&["-O", "^extent"][..], "^64bit"),
        (&["-O", "^has_journal,orphan_file"], "^orphan_file"),
        (&["-E", "quotatype=all"], "usrquota, grpquota or prjquota"),
        (&["-O", "bigalloc,^64bit,^extent"], "^bigalloc"),
        (
            &["-O", "bigalloc", "-b", "4096", "-C", "2048"],
            "block size",
        ),
        (&["-O", "meta_bg"], "-O ^resize_inode"),
        (&["-O", "metadata_sum"], "did you mean metadata_csum?"),
        (&["-O", "shared_blocks"], "shared_blocks"),
        (&["-C", "65536"], "bigalloc"),
        (&["-t", "ext5"], "ext5"),
        (&["-t", "f2fs", "-j"], "-j: mkfs.f2fs has no such option"),
    ] {
        let output = steadfs(["format", image, "64M"].iter().chain(words));
        assert_ne!(output.code(), 0, "{words:?}");
        assert!(output.err.contains(says), "{words:?}: {}", output.err);
        assert!(!output.err.contains("tip"), "{}", output.err);
        assert!(!path.exists());
    }
}

#[test]
fn impossible_numbers_are_refused_with_the_possible_ones() {
    let scratch = Scratch::new();
    let path = scratch.join("volume");
    let image = path.to_str().unwrap();
    let orphans = |size: &'static str| ["-O", "orphan_file", "-E", size];
    for (words, says) in [
        (
            &["-b", "-4000"][..],
            "block size: -4000 is not a power of two from 1024",
        ),
        (
            &["-b", "128K"],
            "block size: 128K is not a power of two from 1024",
        ),
        (
            &["-N", "-1"],
            "-1: steadfs format does not accept a negative number",
        ),
        (&["-N", "many"], "--inodes many: needs a whole number"),
        (&["-I", "99999"], "--inode-size 99999: is too large"),
        (&["-m", "x"], "--reserved x: needs a percentage"),
        (
            &["-J", "size=1500K"],
            "-J size: 1500K: needs a multiple of 1048576 bytes",
        ),
        (
            &["-E", "offset=G"],
            "-E offset: needs a number before the unit",
        ),
        (&["-C", "4b"], "cluster size: 4b: b alone is no unit"),
        (&["-J", "size"], "-J size: needs a size"),
        (
            &["-E", "stride=1M"],
            "-E stride: '1M' is not a whole number",
        ),
        (
            &["-E", "orphan_file_size=1M"],
            "-E orphan_file_size: needs the feature orphan_file",
        ),
        (
            &orphans("orphan_file_size=1X"),
            "orphan_file_size: 1X: X is no unit: those are B (bytes), s (512 bytes), K,",
        ),
        (
            &orphans("orphan_file_size=1M"),
            "1024 blocks: Linux mounts no volume whose orphan file has more",
        ),
    ] {
        let output = steadfs(["format", image, "64M"].iter().chain(words));
        assert_ne!(output.code(), 0, "{words:?}");
        assert!(output.err.contains(says), "{words:?}: {}", output.err);
        assert_eq!(output.err.lines().count(), 1, "{}", output.err);
        assert!(!path.exists());
    }
}

/// Nothing is known about a device if the process that examines it dies: not that no other machine uses it, and not
/// that it holds no volume.
#[test]
fn a_device_that_could_not_be_examined_is_left_alone() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "a.img", 128 << 20, &[]);
    let before = fs::read(image.path()).unwrap();
    for kind in ["ext4", "f2fs"] {
        let mut format = Command::new(program());
        format.args(["format", "-q", "-t", kind]).arg(image.path());
        format.env(FAULT_VARIABLE, "worker@/");
        let refused = finish(format, Duration::from_secs(60)).expect(1);
        for why in ["cannot be examined", "wipefs -a"] {
            assert!(refused.err.contains(why), "{kind}: {}", refused.err);
        }
        assert!(fs::read(image.path()).unwrap() == before, "{kind}");
    }
}

#[test]
fn a_volume_begins_at_the_given_offset() {
    const OFFSET: u64 = 3 * MIB + 512;
    let scratch = Scratch::new();
    let at = format!("offset={OFFSET}");
    let [theirs, our] = &pair(&scratch, "disk", &vec![0xEE; 80 * MIB as usize]);
    let extended = format!(",{at}");
    make(mke2fs, theirs, &extended, &[]);
    make(ours, our, &extended, &[]);
    let [in_theirs, in_ours] = [theirs, our].map(|image| format!("{image}?{at}"));
    assert_eq!(dump(&in_ours), dump(&in_theirs));
    let bytes = fs::read(our).unwrap();
    let end = (OFFSET + 64 * MIB) as usize;
    assert_eq!(bytes.len() as u64, 80 * MIB);
    let others = bytes[..OFFSET as usize].iter().chain(&bytes[end..]);
    assert!(
        others.copied().all(|byte| byte == 0xEE),
        "what lies around it was touched"
    );
    drop(bytes);
    let mount = SteadMount::new(&scratch, Path::new(our), &at);
    fs::write(mount.join("file"), [7; 10_000]).unwrap();
    mount.unmount();
    clean(&in_ours);

    // A new image is as long as the volume requires; without a size the volume extends to the end, which is reported.
    let from = scratch.join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), [7; 10_000]).unwrap();
    let new = scratch.join("new");
    let new = new.to_str().unwrap();
    let from = from.to_str().unwrap();
    steadfs(["format", "-q", "-E", &at, "-d", from, new, "16M"]).expect(0);
    assert_eq!(fs::metadata(new).unwrap().len(), OFFSET + 16 * MIB);
    clean(&format!("{new}?{at}"));
    let mount = SteadMount::new(&scratch, Path::new(new), &at);
    assert_eq!(fs::read(mount.join("file")).unwrap(), [7; 10_000]);
    mount.unmount();
    let output = steadfs(["format", "-E", "offset=8M", new]).expect(0);
    assert!(output.err.contains("end"), "{}", output.err);
    clean(&format!("{new}?offset=8388608"));
    assert_eq!(fs::metadata(new).unwrap().len(), OFFSET + 16 * MIB);
    let output = steadfs(["format", "-E", "offset=1073741824", new]);
    assert!(
        output.code() != 0 && output.err.contains("offset"),
        "{}",
        output.err
    );
}
