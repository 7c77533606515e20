//! `steadfs resize`: files, tables and the image's length before and after, judged by fsck.f2fs, resize.f2fs and Linux.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use steadfs_suite::f2fs::{check_clean, mkfs};
use steadfs_suite::generate::{Numbers, plain};
use steadfs_suite::uml::{TOP, boot_with_all_of_f2fs};
use steadfs_suite::{Compare, Image, Scratch, SteadMount, Tree, run, steadfs, succeed};

const MIB: u64 = 1 << 20;

/// Directories, small and large files, one with holes.
fn source(scratch: &Scratch) -> PathBuf {
    let top = scratch.folder("source");
    plain(&top, 5, 60);
    let many = top.join("many");
    fs::create_dir(&many).unwrap();
    for n in 0..800 {
        fs::write(many.join(format!("small {n}")), vec![n as u8; n * 9]).unwrap();
    }
    let mut numbers = Numbers::new(2);
    fs::write(top.join("large"), numbers.bytes(14 << 20)).unwrap();
    let holes = fs::File::create(top.join("holes")).unwrap();
    for n in 0..20 {
        holes.write_all_at(b"between holes", n << 23).unwrap();
    }
    top
}

/// A volume of `mib` MiB with the files of `from`.
fn filled(scratch: &Scratch, name: &str, mib: u64, options: &str, from: &Path) -> Image {
    let image = mkfs(scratch, name, mib * MIB, options);
    let path = image.path().to_str().unwrap();
    steadfs(["cp", "-a", from.to_str().unwrap(), &format!("{path}:/top")]).expect(0);
    image
}

fn resize(image: &Path, words: &[&str]) -> String {
    let image = image.to_str().unwrap();
    steadfs(["resize", image].iter().chain(words)).expect(0).out
}

fn files_of(image: &Path) -> Tree {
    let options = steadfs::Options::parse_to_read("").unwrap();
    let volume = steadfs::Volume::open_with(image, &options).unwrap();
    Tree::of_volume(&*volume.fs())
}

/// The geometry in superblock and checkpoint, as dump.f2fs prints it.
fn dumped(image: &Path) -> Vec<String> {
    let out = run("dump.f2fs", ["-d1".as_ref(), image.as_os_str()]).out;
    let fields = [
        "_count",
        "_blkaddr",
        "cp_payload",
        "segs_per",
        "block_count",
    ];
    // How many segments are free depends on where blocks moved to.
    let is_geometry = |line: &&str| {
        fields.iter().any(|field| line.contains(field)) && !line.contains("free_segment_count")
    };
    let of_superblock = out.lines().skip_while(|line| !line.contains("Super block"));
    of_superblock
        .filter(is_geometry)
        .map(str::to_owned)
        .collect()
}

#[test]
fn volumes_of_other_sizes_have_the_same_files() {
    let scratch = Scratch::new();
    let from = source(&scratch);
    let all = "-O extra_attr,inode_checksum,sb_checksum,quota,project_quota,compression";
    for (name, options) in [("plain.img", ""), ("all.img", all)] {
        let image = filled(&scratch, name, 120, options, &from);
        let image = image.path();
        let before = files_of(image);
        // Grown by the size of its file.
        let theirs = scratch.join("theirs.img");
        fs::File::options()
            .write(true)
            .open(image)
            .unwrap()
            .set_len(1500 * MIB)
            .unwrap();
        fs::copy(image, &theirs).unwrap();
        succeed("resize.f2fs", [&theirs]);
        assert!(resize(image, &[]).contains("384000 blocks"));
        assert_eq!(dumped(image), dumped(&theirs));
        let same = |what: &str| {
            check_clean(image, what);
            before.assert_same(&files_of(image), Compare::ALL, what);
        };
        same("grown");
        // Smaller and larger by a size, of which the file follows.
        resize(image, &["100M"]);
        assert_eq!(fs::metadata(image).unwrap().len(), 100 * MIB);
        same("smaller");
        resize(image, &["-s", "-t", "409600"]);
        assert_eq!(fs::metadata(image).unwrap().len(), 200 * MIB);
        same("larger with its tables");
        assert!(resize(image, &["51200"]).contains("nothing was changed"));
        // It is used as any other.
        let mount = SteadMount::new(&scratch, image, "");
        succeed(
            "cp",
            [
                "-r",
                from.to_str().unwrap(),
                mount.root().join("again").to_str().unwrap(),
            ],
        );
        let busy = steadfs(["resize".as_ref(), image.as_os_str()]);
        assert!(busy.expect(1).err.contains("in use"));
        mount.unmount();
        check_clean(image, "written");
    }
}

#[test]
fn what_is_refused_keeps_its_length() {
    let scratch = Scratch::new();
    let ext = Image::empty(&scratch, "ext.img", 20 * MIB);
    succeed("mke2fs", ["-q", "-t", "ext4", ext.path().to_str().unwrap()]);
    let full = filled(&scratch, "full.img", 120, "", &source(&scratch));
    let ro = mkfs(&scratch, "ro.img", 64 * MIB, "-O extra_attr,ro");
    let none = Image::empty(&scratch, "none.img", 20 * MIB);
    let damaged = mkfs(&scratch, "damaged.img", 64 * MIB, "");
    let file = fs::OpenOptions::new().write(true).open(damaged.path());
    let file = file.unwrap();
    for copy in [0, 4096] {
        // Behind the magic number and the version.
        file.write_all_at(&[0xFF; 100], copy + 1024 + 8).unwrap();
    }
    for (image, size, why) in [
        (&ext, "30M", "resize2fs changes its size"),
        (&full, "56M", "blocks in use"),
        (&ro, "1G", "volumes with ro are not resized"),
        (&none, "1G", "no ext2, ext3, ext4 or f2fs volume"),
        (&damaged, "1G", "corrupt"),
    ] {
        let image = image.path();
        let before = fs::metadata(image).unwrap().len();
        let refused = steadfs(["resize".as_ref(), image.as_os_str(), size.as_ref()]).expect(1);
        assert!(refused.err.contains(why), "{}", refused.err);
        assert_eq!(fs::metadata(image).unwrap().len(), before);
    }
    check_clean(full.path(), "refused");
}

/// `scripts/judge-kernel && PATH=$PWD/.cache/judges/bin:$PATH cargo test -p steadfs-suite --test f2fs_resize -- --ignored`
#[test]
#[ignore = "needs scripts/judge-kernel"]
fn linux_reads_and_writes_volumes_of_other_sizes() {
    let scratch = Scratch::new();
    let top = source(&scratch);
    let from = top.display();
    for (name, options) in [
        ("plain.img", ""),
        (
            "all.img",
            "-O extra_attr,inode_checksum,sb_checksum,compression",
        ),
        ("sections.img", "-s 2 -z 2"),
        ("bitmaps.img", "-i"),
    ] {
        let image = filled(&scratch, name, 260, options, &top);
        for (n, size) in ["1500M", "300M", "12G", "400M"].into_iter().enumerate() {
            resize(image.path(), &[size]);
            let script = format!(
                "mount -t f2fs /dev/ubda {TOP}\ndiff -r {from} {TOP}/top\n\
                 cp -a {from} {TOP}/again\nsync\ndiff -r {from} {TOP}/again\n\
                 dd if=/dev/zero of={TOP}/zeros bs=1M count={} status=none\nsync\nrm -r {TOP}/again {TOP}/zeros\n\
                 umount {TOP}",
                50 + 10 * n
            );
            boot_with_all_of_f2fs(&scratch, &[image.path()], &script);
            check_clean(image.path(), &format!("{name} {size}"));
        }
    }
}
