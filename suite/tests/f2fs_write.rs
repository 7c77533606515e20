//! f2fs volumes that we write: fsck.f2fs, our checker and the kernel's f2fs find what was written.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use steadfs::{Options, Volume};
use steadfs_suite::f2fs::{TORTURE, check_clean, mkfs};
use steadfs_suite::generate::torture;
use steadfs_suite::uml::{self, TOP, assert_same, boot, lines, without_folder_times, write_tree};
use steadfs_suite::{Scratch, SteadMount, Tree, steadfs};

/// The part that runs inside the judge; see [`uml`].
#[test]
#[ignore = "run by scripts inside User-Mode Linux"]
fn inside_the_judge() {
    uml::inside(TORTURE);
}

fn read_list(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The tree of a volume in the kernel's f2fs, mounted read-only.
fn read_by_kernel(scratch: &Scratch, image: &Path) -> Vec<String> {
    let list = scratch.join("kernel");
    let script = format!(
        "mount -t f2fs -o ro /dev/ubda {TOP}\n{}\numount {TOP}",
        write_tree(&list)
    );
    boot(scratch, &[image], &script);
    read_list(&list)
}

/// Options of mkfs.f2fs, and our mount options.
const MATRIX: &[(&str, &str)] = &[
    ("", ""),
    ("-i", "noinline_data,noinline_dentry,noinline_xattr"),
    (
        "-O extra_attr,inode_checksum,sb_checksum",
        "mode=lfs,nodiscard",
    ),
    (
        "-O extra_attr,flexible_inline_xattr",
        "inline_xattr_size=100,alloc_mode=reuse",
    ),
    (
        "-i -O extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,lost_found,\
         verity,encrypt,compression",
        "nocheckpoint_merge,fsync_mode=strict",
    ),
    ("-s 2 -z 2 -O lost_found", "active_logs=2"),
    ("-a 1 -o 15 -O extra_attr,inode_crtime", "fastboot"),
];

#[test]
fn the_kernel_reads_what_we_wrote() {
    let scratch = Scratch::new();
    let mut written = Vec::new();
    for (number, (args, options)) in MATRIX.iter().enumerate() {
        let image = mkfs(&scratch, &format!("{number}.img"), 1 << 30, args);
        let options = format!("noatime,{options}");
        let mount = SteadMount::new(&scratch, image.path(), &options);
        torture(mount.root(), TORTURE);
        let ours = lines(&Tree::of(mount.root()));
        mount.unmount();
        check_clean(image.path(), args);
        // The next mount finds the same.
        let mount = SteadMount::new(&scratch, image.path(), &options);
        assert_same(&lines(&Tree::of(mount.root())), &ours, "mounted again");
        mount.unmount();
        check_clean(image.path(), args);
        written.push((image, ours));
    }
    let list = |n: usize| scratch.join(&format!("list{n}"));
    let mut script = String::new();
    for (n, disk) in (0..written.len()).zip('a'..) {
        script += &format!(
            "mount -t f2fs -o ro /dev/ubd{disk} {TOP}\n{}\numount {TOP}\n",
            write_tree(&list(n))
        );
    }
    let paths: Vec<&Path> = written.iter().map(|(image, _)| image.path()).collect();
    boot(&scratch, &paths, &script);
    for (n, ((_, ours), (args, options))) in written.iter().zip(MATRIX).enumerate() {
        let what = format!("{args} {options}: mount and kernel");
        assert_same(ours, &read_list(&list(n)), &what);
    }
}

/// Volumes that the kernel wrote and that were cut off: see `f2fs.rs`.
const FSYNCS: &str = "
mkdir d
seq 300000 > old
seq 5000 > grows
echo inline > tiny
seq 100 > small
sync
dd if=/dev/urandom of=old bs=4096 seek=20 count=70 conv=notrunc,fsync status=none
seq 9000 >> grows; sync grows
chmod 600 small; setfattr -n user.one -v two small; chown 5:6 small; sync small
echo more than before > tiny; sync tiny
echo new in the inode > d/tiny; sync d/tiny
seq 1000 > d/new; sync d/new
seq 2000000 > d/huge; sync d/huge
setfattr -n user.big -v $(seq -s. 1000) d/new; sync d/new
seq 10 > d/again; sync d/again; seq 2000 > d/again; sync d/again
seq 50000 > d/lost
seq 60000 > old
echo unseen >> grows
";

#[test]
fn a_mount_recovers_what_the_kernel_fsynced() {
    for args in [
        "",
        "-i -O extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr",
    ] {
        let scratch = Scratch::new();
        let image = mkfs(&scratch, "cut.img", 1 << 30, args);
        let script = format!("mount -t f2fs -o noatime /dev/ubda {TOP}\ncd {TOP}\n{FSYNCS}");
        boot(&scratch, &[image.path()], &script);
        let copy = scratch.join("copy.img");
        fs::copy(image.path(), &copy).unwrap();
        let list = scratch.join("kernel");
        let script = format!(
            "mount -t f2fs -o noatime /dev/ubda {TOP}\numount {TOP}\n\
             mount -t f2fs -o ro /dev/ubda {TOP}\n{}\numount {TOP}",
            write_tree(&list)
        );
        boot(&scratch, &[&copy], &script);
        let kernel = without_folder_times(&read_list(&list));
        let options = Options::parse("noatime").unwrap();
        let volume = Volume::open_with(image.path(), &options).unwrap();
        let ours = without_folder_times(&lines(&Tree::of_volume(&*volume.fs())));
        volume.close().unwrap();
        drop(volume);
        assert_same(
            &ours,
            &kernel,
            &format!("{args}: recovered by us and by the kernel"),
        );
        check_clean(image.path(), args);
        let again = without_folder_times(&read_by_kernel(&scratch, image.path()));
        assert_same(
            &again,
            &kernel,
            &format!("{args}: recovered by us, read by the kernel"),
        );
    }
}

/// F2FS_IOC_START_ATOMIC_WRITE, 40 blocks, a checkpoint, F2FS_IOC_COMMIT_ATOMIC_WRITE.
const ATOMIC: &str = r#"open my $f, "+<", "late" or die; ioctl $f, 0xf501, 0 or die $!;
sysseek $f, 12288, 0; syswrite($f, "x" x 163840) == 163840 or die $!; system("sync") == 0 or die;
ioctl $f, 0xf502, 0 or die $!;"#;

/// An atomic write keeps its blocks in a separate inode until the commit. Here a checkpoint has written them there
/// before the commit moves them to the file. We read the result, and recovery applies it to the volume.
#[test]
fn blocks_that_the_kernel_moved_between_files_are_recovered() {
    let scratch = Scratch::new();
    let image = mkfs(&scratch, "atomic.img", 256 << 20, "");
    let script = format!(
        "mount -t f2fs -o noatime /dev/ubda {TOP}\ncd {TOP}\nseq 60000 > late\nsync\n\
         perl -e '{ATOMIC}'\nseq 9 > other; sync other"
    );
    boot(&scratch, &[image.path()], &script);
    let copy = image.copy(&scratch, "copy.img");
    let read = |options: &str| {
        let options = Options::parse(options).unwrap();
        let volume = Volume::open_with(image.path(), &options).unwrap();
        let tree = Tree::of_volume(&*volume.fs());
        volume.close().unwrap();
        without_folder_times(&lines(&tree))
    };
    let only_read = read("ro");
    let recovered = read("noatime");
    check_clean(image.path(), "recovered");
    assert_same(&recovered, &read("ro"), "recovered, and read again");
    let list = scratch.join("kernel");
    let script = format!(
        "mount -t f2fs -o noatime /dev/ubda {TOP}\numount {TOP}\n\
         mount -t f2fs -o ro /dev/ubda {TOP}\n{}\numount {TOP}",
        write_tree(&list)
    );
    boot(&scratch, &[copy.path()], &script);
    let kernel = without_folder_times(&read_list(&list));
    assert_same(
        &only_read,
        &kernel,
        "read only, and recovered by the kernel",
    );
    assert_same(&recovered, &kernel, "recovered by us, and by the kernel");
}

/// What a copy preserves: not the size and link count of folders, not access and change times of files, not the end of
/// holes.
fn as_copied(lines: &[String]) -> Vec<String> {
    let without = |line: &str, from: &str, to: &str| {
        let (before, rest) = line.split_once(from).unwrap();
        let (_, after) = rest.split_once(to).unwrap();
        format!("{before}{to}{after}")
    };
    let copied = |line: &String| {
        let mut line = without(line, "atime: ", "xattrs: ");
        line = without(&line, "data: ", "target: ");
        if line.contains("content: None") {
            line = without(&line, "nlink: ", "rdev: ");
        }
        line
    };
    lines.iter().map(copied).collect()
}

#[test]
fn the_kernel_reads_a_volume_filled_from_a_directory() {
    let scratch = Scratch::new();
    let from = scratch.folder("from");
    torture(&from, TORTURE);
    let image = scratch.join("filled.img");
    for features in [
        "",
        "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr",
    ] {
        let args = [
            "format".as_ref(),
            "-q".as_ref(),
            "-t".as_ref(),
            "f2fs".as_ref(),
            "-O".as_ref(),
            features.as_ref(),
            "-d".as_ref(),
            from.as_os_str(),
            image.as_os_str(),
            "1G".as_ref(),
        ];
        let _ = fs::remove_file(&image);
        steadfs(args).expect(0);
        check_clean(&image, features);
        let host = as_copied(&lines(&Tree::of(&from)));
        let kernel = as_copied(&read_by_kernel(&scratch, &image));
        assert_same(&kernel, &host, "the directory, and what the kernel reads");
    }
}

/// The output of `steadfs remount`.
#[track_caller]
fn remount(mount: &SteadMount, option: &str) -> steadfs_suite::Outcome {
    steadfs([
        "remount".as_ref(),
        mount.root().as_os_str(),
        "-o".as_ref(),
        option.as_ref(),
    ])
}

#[test]
fn the_kernel_reads_what_was_there_when_checkpoints_were_switched_off() {
    let scratch = Scratch::new();
    let image = mkfs(
        &scratch,
        "paused.img",
        256 << 20,
        "-O extra_attr,inode_crtime",
    );
    let mount = SteadMount::new(&scratch, image.path(), "noatime");
    fs::create_dir(mount.join("dir")).unwrap();
    for n in 0..200 {
        fs::write(mount.join(&format!("dir/{n}")), vec![n as u8; 50_000]).unwrap();
    }
    remount(&mount, "checkpoint=disable:20%").expect(0);
    let before = lines(&Tree::of(mount.root()));
    let options = fs::read_to_string(mount.join(".steadfs/options")).unwrap();
    assert!(options.contains(",checkpoint=disable:"), "{options}");
    for n in 0..200 {
        let path = mount.join(&format!("dir/{n}"));
        match n % 3 {
            0 => fs::remove_file(path).unwrap(),
            1 => fs::write(path, vec![1; 70_000]).unwrap(),
            _ => fs::rename(path, mount.join(&format!("moved {n}"))).unwrap(),
        }
    }
    fs::File::open(mount.join("dir/1"))
        .unwrap()
        .sync_all()
        .unwrap();
    assert_ne!(remount(&mount, "ro").code(), 0, "not while they are off");
    mount.unmount();
    // (Linux 6.12 refuses to mount such a volume read-only.)
    let list = scratch.join("kernel");
    let script = format!(
        "mount -t f2fs -o noatime /dev/ubda {TOP}\n{}\numount {TOP}",
        write_tree(&list)
    );
    boot(&scratch, &[image.path()], &script);
    assert_same(
        &read_list(&list),
        &before,
        "switched off, and what the kernel reads",
    );
    // The kernel switches checkpoints on when it writes; it switches them off, and we read the result.
    let list = scratch.join("off");
    let script = format!(
        "mount -t f2fs -o noatime,checkpoint=disable:20% /dev/ubda {TOP}\n{}\ncd {TOP}\n\
         rm -r dir\nseq 100000 > new\nsync new\ncd /\numount {TOP}",
        write_tree(&list)
    );
    boot(&scratch, &[image.path()], &script);
    let options = Options::parse("noatime").unwrap();
    let volume = Volume::open_with(image.path(), &options).unwrap();
    let ours = lines(&Tree::of_volume(&*volume.fs()));
    volume.close().unwrap();
    drop(volume);
    assert_same(&ours, &read_list(&list), "the kernel's, and ours");
    check_clean(image.path(), "written again");
    let mount = SteadMount::new(&scratch, image.path(), "noatime,checkpoint=disable:100%");
    fs::write(mount.join("kept"), "this").unwrap();
    remount(&mount, "checkpoint=enable").expect(0);
    fs::write(mount.join("more"), "too").unwrap();
    let after = lines(&Tree::of(mount.root()));
    mount.unmount();
    check_clean(image.path(), "switched on again");
    assert_same(&read_by_kernel(&scratch, image.path()), &after, "on again");
}
