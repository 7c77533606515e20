//! f2fs volumes that the kernel's f2fs wrote, unmounted or cut off, as we read them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use steadfs::{Options, Volume};
use steadfs_suite::f2fs::{TORTURE, check_clean, mkfs};
use steadfs_suite::uml::{
    self, TOP, assert_same, boot, lines, make_torture, without_folder_times, write_tree,
};
use steadfs_suite::{Image, Scratch, SteadMount, Tree, run, steadfs, succeed};

/// The part that runs inside the judge; see [`uml`].
#[test]
#[ignore = "run by scripts inside User-Mode Linux"]
fn inside_the_judge() {
    uml::inside(TORTURE);
}

fn read_by_library(image: &Path, options: &str) -> Tree {
    let options = Options::parse(options).unwrap();
    let volume = Volume::open_with(image, &options).unwrap();
    let tree = Tree::of_volume(&*volume.fs());
    volume.close().unwrap();
    tree
}

fn read_by_mount(scratch: &Scratch, image: &Path) -> Tree {
    let mount = SteadMount::new(scratch, image, "ro");
    let tree = Tree::of(mount.root());
    mount.unmount();
    tree
}

fn read_list(path: &Path) -> Vec<String> {
    fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Options of mkfs.f2fs, and mount options of the kernel.
const MATRIX: &[(&str, &str)] = &[
    ("", ""),
    ("-i", "noinline_data,noinline_dentry,noinline_xattr"),
    ("-O extra_attr", "inline_xattr"),
    ("-O extra_attr,inode_checksum,sb_checksum", "mode=lfs"),
    (
        "-O extra_attr,flexible_inline_xattr",
        "inline_xattr,inline_xattr_size=100",
    ),
    (
        "-i -O extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,lost_found,\
         verity,encrypt,compression",
        "checkpoint_merge",
    ),
    ("-s 2 -z 2 -O project_quota,extra_attr", "active_logs=2"),
    ("-a 1 -o 15 -O extra_attr,inode_crtime", "fastboot"),
];

#[test]
fn we_read_what_the_kernel_wrote() {
    for (number, (args, mount)) in MATRIX.iter().enumerate() {
        let scratch = Scratch::new();
        let image = mkfs(&scratch, &format!("{number}.img"), 400 << 20, args);
        let list = scratch.join("kernel");
        let script = format!(
            "mount -t f2fs -o noatime,{mount} /dev/ubda {TOP}\n{}\numount {TOP}\n\
             mount -t f2fs -o ro /dev/ubda {TOP}\n{}\numount {TOP}",
            make_torture(),
            write_tree(&list)
        );
        boot(
            &scratch,
            &[image.path()],
            &script.replace("noatime, ", "noatime "),
        );
        check_clean(image.path(), args);
        let kernel = read_list(&list);
        assert!(kernel.len() > 2500, "{}", kernel.len());
        let ours = lines(&read_by_library(image.path(), "ro"));
        assert_same(
            &ours,
            &kernel,
            &format!("{args} {mount}: library and kernel"),
        );
        let mounted = lines(&read_by_mount(&scratch, image.path()));
        assert_same(
            &mounted,
            &kernel,
            &format!("{args} {mount}: mount and kernel"),
        );
    }
}

/// No periodic checkpoints, on a machine of any speed.
const NO_CHECKPOINTS: &str = "echo 86400 > /sys/fs/f2fs/ubda/cp_interval";

/// Before and after a checkpoint, with and without fsync. A change of a directory since the checkpoint would make fsync
/// write a checkpoint, so new files go to a directory of the first checkpoint.
const FSYNCS: &str = "
mkdir d
seq 300000 > old
seq 5000 > grows
seq 5000 > shrinks
seq 100 > small
echo inline > tiny
echo first > replaced
seq 3000000 > long
dd if=/dev/zero of=holes bs=4096 seek=60000 count=1 status=none
sync
dd if=/dev/urandom of=old bs=4096 seek=20 count=70 conv=notrunc,fsync status=none
seq 9000 >> grows; sync grows
truncate -s 1000 shrinks; sync shrinks
chmod 600 small; setfattr -n user.one -v two small; chown 5:6 small; sync small
echo more than before > tiny; sync tiny
echo new in the inode > d/tiny; sync d/tiny
seq 1000 > d/new; sync d/new
seq 4000000 > d/huge; sync d/huge
dd if=/dev/urandom of=long bs=4096 seek=4000 count=900 conv=notrunc,fsync status=none
dd if=/dev/urandom of=holes bs=4096 seek=3500 count=3 conv=notrunc,fsync status=none
setfattr -n user.big -v $(seq -s. 1000) d/new; sync d/new
echo second > replacing; sync replacing
seq 10 > d/again; sync d/again; seq 2000 > d/again; sync d/again
# From here on nothing is durable by itself.
seq 50000 > d/lost
seq 60000 > old
echo unseen >> grows
";

#[test]
fn what_fsync_wrote_is_read_without_recovery() {
    for (number, (args, mount)) in MATRIX.iter().enumerate() {
        let scratch = Scratch::new();
        let image = mkfs(&scratch, &format!("{number}.img"), 400 << 20, args);
        let script = format!(
            "mount -t f2fs -o noatime,{mount} /dev/ubda {TOP}\n{NO_CHECKPOINTS}\ncd {TOP}\n{FSYNCS}"
        );
        boot(&scratch, &[image.path()], &script);
        let fsynced = check_clean(image.path(), args).stats.fsynced_files;
        let before = fs::read(image.path()).unwrap();
        let ours = lines(&read_by_library(image.path(), "ro"));
        let old = lines(&read_by_library(image.path(), "ro,norecovery"));
        // With these options every fsync is a checkpoint: there is nothing to recover.
        let nothing = ["active_logs=2", "fastboot"].contains(mount);
        let (ours_len, old_len) = (ours.len(), old.len());
        assert!(
            (old_len < ours_len) != nothing && (fsynced == 0) == nothing,
            "{args}: {old_len}, {ours_len}, {fsynced}"
        );
        assert!(
            fs::read(image.path()).unwrap() == before,
            "reading writes nothing"
        );
        drop(before);
        let list = scratch.join("kernel");
        let script = format!(
            "mount -t f2fs -o noatime /dev/ubda {TOP}\numount {TOP}\n\
             mount -t f2fs -o ro /dev/ubda {TOP}\n{}\numount {TOP}",
            write_tree(&list)
        );
        boot(&scratch, &[image.path()], &script);
        let kernel = without_folder_times(&read_list(&list));
        let what = format!("{args} {mount}: library and recovered by the kernel");
        assert_same(&without_folder_times(&ours), &kernel, &what);
    }
}

/// Sizes in MiB with options of mkfs.f2fs: from the smallest that version 1.15 accepts to 1 TiB.
const KINDS: &[(u64, &str)] = &[
    (52, ""),
    (52, "-O extra_attr,inode_checksum"),
    (64, "-i"),
    (64, "-O lost_found,encrypt"),
    (100, "-o 30 -O extra_attr,inode_crtime"),
    (128, "-O extra_attr,project_quota,quota"),
    (256, "-s 4"),
    (
        300,
        "-i -s 2 -O extra_attr,flexible_inline_xattr,sb_checksum",
    ),
    (512, "-z 4 -O verity,sb_checksum"),
    (1000, "-w 4096 -O extra_attr,inode_checksum,inode_crtime"),
    (4 << 10, "-a 1 -i -O lost_found"),
    (16 << 10, "-O extra_attr,compression"),
    (64 << 10, "-s 8 -O extra_attr,project_quota"),
    (300 << 10, "-i -O extra_attr,inode_checksum,sb_checksum"),
    (1 << 20, ""),
    (
        1 << 20,
        "-i -O extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr",
    ),
];

#[test]
fn volumes_of_all_sizes_and_kinds_are_made_and_checked() {
    for (round, kinds) in KINDS.chunks(8).enumerate() {
        let scratch = Scratch::new();
        let images: Vec<Image> = kinds
            .iter()
            .enumerate()
            .map(|(n, (size, args))| mkfs(&scratch, &format!("{n}.img"), size << 20, args))
            .collect();
        let lists: Vec<_> = (0..images.len())
            .map(|n| scratch.join(&format!("list{n}")))
            .collect();
        let mut script = String::new();
        for (disk, list) in ('a'..).zip(&lists) {
            script += &format!(
                "mount -t f2fs -o noatime /dev/ubd{disk} {TOP}\ncd {TOP}\n\
                 mkdir -p a/b many; cp -a /usr/share/doc/bash a/b; seq 200000 > seq; sync\n\
                 for i in $(seq 400); do echo $i > many/$i; done; rm many/1*; ln seq a/seq\n\
                 setfattr -n user.x -v y seq; dd if=seq of=hole bs=4096 seek=9000 status=none\n\
                 truncate -s 20000 seq; mkfifo a/fifo; mknod a/dev b 7 300; chown 70000:5 a\n\
                 fallocate -l 300000 promised; echo x >> promised; fallocate -n -l 99999 many/300\n\
                 fallocate -l 100000 part; dd if=seq of=part seek=40 conv=notrunc status=none\n\
                 cd /; umount {TOP}\nmount -t f2fs -o ro /dev/ubd{disk} {TOP}\n{}\numount {TOP}\n",
                write_tree(list)
            );
        }
        let paths: Vec<&Path> = images.iter().map(Image::path).collect();
        boot(&scratch, &paths, &script);
        for ((image, list), (size, args)) in images.iter().zip(&lists).zip(kinds) {
            check_clean(image.path(), &format!("{size} MiB {args}"));
            let began = std::time::Instant::now();
            let ours = lines(&read_by_library(image.path(), "ro"));
            let took = began.elapsed();
            assert_same(
                &ours,
                &read_list(list),
                &format!("{round}: {size} MiB {args}"),
            );
            // For a volume of any size.
            assert!(took.as_secs() < 120, "{size} MiB {args}: {took:?}");
        }
    }
}

/// `steadfs format -t f2fs`: fsck.f2fs finds nothing, we read the volume, and an existing one is kept without
/// `--force`.
#[test]
fn format_makes_f2fs_volumes() {
    let scratch = Scratch::new();
    let image = scratch.join("made.img");
    let path = image.to_str().unwrap();
    let make = |more: &[&str]| {
        let args = [
            "format",
            "-t",
            "f2fs",
            "-l",
            "made",
            "-O",
            "lost_found,extra_attr",
        ];
        steadfs(args.iter().chain(more).copied().chain([path, "100M"]))
    };
    make(&[]).expect(0);
    succeed("fsck.f2fs", ["--dry-run", path]);
    let checked = steadfs(["check", path]).expect(0);
    assert!(
        checked.out.contains("2 directories: clean"),
        "{}",
        checked.out
    );
    let list = steadfs(["ls", &format!("{path}:/")]).expect(0);
    assert!(list.out.contains("lost+found"), "{}", list.out);
    assert_ne!(make(&[]).code(), 0, "a volume is not replaced unasked");
    make(&["--force"]).expect(0);
    assert_ne!(
        make(&["--force", "-N", "100"]).code(),
        0,
        "an option of ext4's"
    );
}

/// The numbers that `dump.f2fs -d 1` prints, by name.
fn dumped(text: &str) -> BTreeMap<String, u64> {
    let number = |line: &str| {
        let (name, rest) = line.split_once("[0x")?;
        let (_, value) = rest.strip_suffix(']')?.split_once(" : ")?;
        Some((name.trim().to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(number).collect()
}

/// Compares `inspect --json` and dump.f2fs on one volume; returns the number of values compared.
#[track_caller]
fn compare_inspection(path: &str) -> usize {
    let dump = run("dump.f2fs", ["-d", "1", path]).expect(0).out;
    let theirs = dumped(&dump);
    let json = steadfs(["inspect", "--json", path]).expect(0).out;
    let ours: serde_json::Value = serde_json::from_str(&json).unwrap();
    let state = &ours["checkpoint"]["valid"];
    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    for object in [&ours["layout"], state] {
        let fields = object.as_object().unwrap().iter();
        numbers.extend(fields.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))));
    }
    numbers.remove("pack");
    for (n, log) in state["cursegs"].as_array().unwrap().iter().enumerate() {
        let (kind, slot) = (if n < 3 { "data" } else { "node" }, n % 3);
        let temperature = ["HOT", "WARM", "COLD"][slot];
        let alloc = format!("alloc_type[CURSEG_{temperature}_{}]", kind.to_uppercase());
        numbers.insert(
            format!("cur_{kind}_segno[{slot}]"),
            log["segment"].as_u64().unwrap(),
        );
        numbers.insert(
            format!("cur_{kind}_blkoff[{slot}]"),
            log["offset"].as_u64().unwrap(),
        );
        numbers.insert(alloc, u64::from(log["ssr"].as_bool().unwrap()));
    }
    for journal in ["nat_journal", "sit_journal"] {
        assert!(numbers.remove(journal).is_some(), "{path}: {journal}");
    }
    for (name, value) in &numbers {
        assert_eq!(theirs.get(name), Some(value), "{path}: {name}: {dump}");
    }
    let words = |of: &serde_json::Value| {
        let list = of.as_array().unwrap().iter();
        list.map(|word| word.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    for (label, ours) in [
        ("superblock features = ", words(&ours["features"])),
        ("checkpoint state = ", words(&state["flags"])),
    ] {
        let line = dump
            .lines()
            .find_map(|line| line.split_once(label))
            .unwrap()
            .1;
        let theirs: Vec<_> = line.split_once(':').unwrap().1.split_whitespace().collect();
        assert_eq!(ours, theirs, "{path}: {label}");
    }
    numbers.len()
}

/// Empty volumes of mkfs.f2fs, filled ones, and one that the kernel was writing.
#[test]
fn inspect_and_dump_f2fs_agree() {
    let scratch = Scratch::new();
    let tree = scratch.folder("tree");
    fs::write(tree.join("file"), vec![7; 3 << 20]).unwrap();
    for (number, (size, args)) in KINDS.iter().enumerate().filter(|(n, _)| n % 3 == 0) {
        let image = mkfs(&scratch, &format!("{number}.img"), size << 20, args);
        let path = image.path().to_str().unwrap();
        assert!(compare_inspection(path) > 40);
        if (100..1000).contains(size) {
            run("sload.f2fs", ["-f", tree.to_str().unwrap(), path]).expect(0);
            compare_inspection(path);
        }
    }
    let image = mkfs(
        &scratch,
        "kernel.img",
        200 << 20,
        "-O extra_attr,inode_checksum",
    );
    let script = format!(
        "mount -t f2fs /dev/ubda {TOP}\n{NO_CHECKPOINTS}\ncd {TOP}\nseq 100000 > one\nsync\nexec 8> gone\nrm gone\n\
         seq 9 > two\nsync\nseq 5000 > one\nsync one"
    );
    boot(&scratch, &[image.path()], &script);
    let path = image.path().to_str().unwrap();
    compare_inspection(path);
    let found = check_clean(image.path(), "cut off").stats;
    let (fsynced, orphans) = (found.fsynced_files, found.orphans);
    assert_eq!((fsynced, orphans), (1, 1));
}

/// A nearly full volume under the kernel, with the features that leave traces of their own: files of all sizes removed
/// and rewritten, orphans, attributes, punched holes. Cut off in the middle each time. (Debian's User-Mode Linux has
/// neither compression nor casefolding.)
const STRESS: &str = "
mkdir -p c fold a/b many
for i in 1 2 3 4 5 6; do seq $((i * 20000)) > c/$i; done; sync
dd if=/dev/urandom of=c/3 bs=4096 seek=7 count=5 conv=notrunc,fsync status=none
truncate -s 50000 c/4; head -c 9000 c/5 > c/7; fallocate -p -o 8192 -l 20480 c/6; sync
echo x > fold/One; echo y > fold/Two; mkdir fold/Sub; echo z > fold/Sub/Three; ln fold/One fold/Four
for i in $(seq 900); do echo $i > many/a-name-of-some-length-$i; done
rm many/*1 many/*4 many/*7; sync
for i in $(seq 9); do setfattr -n user.name$i -v value$i a; done
setfattr -n user.big -v $(seq -s. 700) a/b; ln -s $(seq -s- 900) a/link; ln -s short a/short
dd if=/dev/urandom of=one bs=1M count=25 status=none; sync
fallocate -c -o 4096 -l 409600 one; fallocate -i -o 40960 -l 81920 one; fallocate -p -o 1M -l 3M one
fallocate -z -o 9M -l 1M one; fallocate -n -o 24M -l 4M one; sync one
for i in 1 2; do
dd if=/dev/zero of=fill bs=1M status=none || true; sync
dd if=/dev/urandom of=one bs=4096 seek=$((i * 900)) count=700 conv=notrunc status=none || true; sync
rm fill; for n in 5 17 33; do dd if=/dev/urandom of=one bs=4096 seek=$((n * i * 7)) count=9 conv=notrunc,fsync status=none; done
done
mkdir gone; (cd gone; sleep 900 > ../open) & until [ -e open ]; do sleep 0.1; done; seq 30000 >> open; rm open; rmdir gone; sync
mv a/short a/b/moved; mv a/b fold; echo again >> fold/Two; sync fold/Two
";

const STRESSED: &[(&str, &str)] = &[
    (
        "-i -O extra_attr,inode_checksum,sb_checksum,inode_crtime",
        "mode=adaptive",
    ),
    ("-O extra_attr,project_quota,quota", "alloc_mode=reuse"),
    ("", "mode=fragment:block,noinline_dentry,noinline_data"),
    ("-O extra_attr,flexible_inline_xattr", "active_logs=2"),
];

#[test]
fn full_and_fragmented_volumes_of_the_kernel_are_clean() {
    let scratch = Scratch::new();
    let images: Vec<Image> = STRESSED
        .iter()
        .enumerate()
        .map(|(n, (args, _))| mkfs(&scratch, &format!("{n}.img"), 120 << 20, args))
        .collect();
    let mut script = String::new();
    for (disk, (_, mount)) in ('a'..).zip(STRESSED) {
        script += &format!(
            "mkdir -p /mnt/{disk}; mount -t f2fs -o noatime,{mount} /dev/ubd{disk} /mnt/{disk}\n\
             cd /mnt/{disk}\n{STRESS}\n"
        );
    }
    let paths: Vec<&Path> = images.iter().map(Image::path).collect();
    boot(&scratch, &paths, &script);
    for (image, (args, mount)) in images.iter().zip(STRESSED) {
        let what = format!("{args} {mount}");
        let orphans = check_clean(image.path(), &what).stats.orphans;
        assert!(orphans >= 2, "{what}: {orphans} orphans");
    }
}
