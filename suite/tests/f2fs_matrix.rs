//! Many kinds of f2fs volumes, between the kernel's f2fs and ours, in both directions: one reads what the other wrote,
//! and recovers what the other made durable by fsync before it was cut off.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use steadfs::{Options, Volume};
use steadfs_suite::f2fs::check_clean;
use steadfs_suite::generate::{Torture, plain, torture};
use steadfs_suite::uml::{
    self, TOP, assert_same, boot, durable_lines, lines, make_durable, make_torture,
    without_folder_times, write_tree,
};
use steadfs_suite::{Compare, Image, Scratch, SteadMount, Tree, fsyncs, succeed};

/// Small, because it is made dozens of times.
const TORTURE: Torture = Torture {
    block: 1024,
    far: 900 << 30,
    longest_link: 4095,
    xattr_bytes: 3500,
    many: 200,
};

/// The part that runs inside the judge; see [`uml`].
#[test]
#[ignore = "run by scripts inside User-Mode Linux"]
fn inside_the_judge() {
    uml::inside(TORTURE);
}

/// A kind of volume, and its mount options.
struct Kind {
    /// Size in MiB.
    size: u64,
    /// Options of mkfs.f2fs.
    mkfs: &'static str,
    /// Mount options of the kernel.
    kernel: &'static str,
    /// Our mount options.
    ours: &'static str,
}

const fn kind(size: u64, mkfs: &'static str, kernel: &'static str, ours: &'static str) -> Kind {
    Kind {
        size,
        mkfs,
        kernel,
        ours,
    }
}

const EVERYTHING: &str = "-O extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,\
                          lost_found,verity,encrypt,compression";

#[rustfmt::skip]
const MATRIX: &[Kind] = &[
    kind(256, "", "", ""),
    kind(256, "-i", "", ""),
    kind(256, "-O extra_attr", "inline_xattr", "discard_unit=segment"),
    kind(256, "-O extra_attr,inode_checksum", "noinline_xattr", "noinline_xattr"),
    kind(256, "-O sb_checksum", "noinline_data", "noinline_data"),
    kind(256, "-O extra_attr,inode_crtime", "noinline_dentry", "noinline_dentry"),
    kind(256, "-O extra_attr,flexible_inline_xattr", "inline_xattr,inline_xattr_size=20", "inline_xattr_size=20"),
    kind(256, "-O extra_attr,flexible_inline_xattr", "inline_xattr,inline_xattr_size=200", "inline_xattr_size=200"),
    kind(256, EVERYTHING, "", ""),
    kind(256, EVERYTHING, "noinline_data,noinline_dentry,noinline_xattr", "noinline_data,noinline_dentry,noinline_xattr"),
    kind(256, "-O lost_found", "mode=lfs", "mode=lfs"),
    kind(256, "-O verity", "nobarrier", "nobarrier"),
    kind(256, "-O encrypt", "fsync_mode=strict", "fsync_mode=strict"),
    kind(256, "-O extra_attr,compression", "fsync_mode=nobarrier", "fsync_mode=nobarrier"),
    kind(512, "-s 2", "active_logs=4", "active_logs=4"),
    kind(512, "-s 4 -z 2", "active_logs=2", "active_logs=2"),
    kind(512, "-z 4 -O sb_checksum", "alloc_mode=reuse", "alloc_mode=reuse"),
    kind(256, "-o 30", "fastboot", "fastboot"),
    kind(256, "-o 10 -a 1", "background_gc=off", "background_gc=off"),
    kind(256, "-e mp3,gif -E db,dat", "disable_ext_identify", "disable_ext_identify"),
    kind(256, "-w 4096 -O extra_attr,inode_checksum,inode_crtime", "nodiscard", "nodiscard"),
    kind(64, "", "", ""),
    kind(52, "-O extra_attr,inode_checksum", "", ""),
    kind(4 << 10, "-s 8 -O extra_attr,sb_checksum", "data_flush", "data_flush"),
    kind(64 << 10, "-i -O extra_attr,inode_checksum,sb_checksum", "checkpoint_merge", "nocheckpoint_merge"),
    kind(1 << 20, EVERYTHING, "", ""),
];

/// Images in one User-Mode Linux: it has sixteen disks.
const DISKS: usize = 13;

impl Kind {
    #[track_caller]
    fn make(&self, scratch: &Scratch, name: &str) -> Image {
        let image = Image::empty(scratch, name, self.size << 20);
        let path = image.path().to_str().unwrap();
        let all = ["-q", "-f"].into_iter().chain(self.mkfs.split_whitespace());
        succeed("mkfs.f2fs", all.chain([path]));
        image
    }

    fn kernel_options(&self) -> String {
        let list = ["noatime", self.kernel]
            .into_iter()
            .filter(|o| !o.is_empty());
        list.collect::<Vec<_>>().join(",")
    }

    fn our_options(&self) -> String {
        let list = ["noatime", self.ours].into_iter().filter(|o| !o.is_empty());
        list.collect::<Vec<_>>().join(",")
    }

    fn what(&self, n: usize) -> String {
        let Self {
            size, mkfs, kernel, ..
        } = self;
        format!("kind {n} ({size} MiB {mkfs}, {kernel})")
    }
}

fn read_list(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[track_caller]
fn read_by_library(image: &Path, options: &str, what: &str) -> Vec<String> {
    let options = Options::parse(options).unwrap();
    let volume =
        Volume::open_with(image, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
    let tree = Tree::of_volume(&*volume.fs());
    volume.close().unwrap();
    lines(&tree)
}

/// Calls `work` for the kinds, as many at a time as fit one User-Mode Linux. `STEADFS_KINDS=3,17` selects some.
fn in_batches(mut work: impl FnMut(&Scratch, &[(usize, &Kind)])) {
    let only = std::env::var("STEADFS_KINDS").unwrap_or_default();
    let asked = |n: usize| only.is_empty() || only.split(',').any(|k| k == n.to_string());
    let kinds: Vec<(usize, &Kind)> = MATRIX
        .iter()
        .enumerate()
        .filter(|(n, _)| asked(*n))
        .collect();
    for batch in kinds.chunks(DISKS) {
        work(&Scratch::new(), batch);
    }
}

/// A boot that runs `part` for each image.
fn boot_with(scratch: &Scratch, images: &[Image], part: impl Fn(usize, &str) -> String) {
    let paths: Vec<&Path> = images.iter().map(Image::path).collect();
    let parts = ('a'..).enumerate().take(images.len());
    let script: String = parts
        .map(|(n, disk)| part(n, &format!("/dev/ubd{disk}")))
        .collect();
    boot(scratch, &paths, &script);
}

#[test]
fn we_read_and_extend_what_the_kernel_wrote() {
    in_batches(|scratch, batch| {
        let images: Vec<Image> = batch
            .iter()
            .map(|(n, kind)| kind.make(scratch, &format!("{n}.img")))
            .collect();
        let list = |n: usize| scratch.join(&format!("list{n}"));
        boot_with(scratch, &images, |n, disk| {
            format!(
                "mount -t f2fs -o {} {disk} {TOP}\n{}\n{}\numount {TOP}\n",
                batch[n].1.kernel_options(),
                make_torture(),
                write_tree(&list(n))
            )
        });
        let mut after = Vec::new();
        for (n, ((number, kind), image)) in batch.iter().zip(&images).enumerate() {
            let what = kind.what(*number);
            check_clean(image.path(), &what);
            let kernel = read_list(&list(n));
            assert!(kernel.len() > 300, "{what}: {}", kernel.len());
            assert_same(&read_by_library(image.path(), "ro", &what), &kernel, &what);
            let mount = SteadMount::new(scratch, image.path(), &kind.our_options());
            assert_same(&lines(&Tree::of(mount.root())), &kernel, &what);
            fs::remove_dir_all(mount.join("many")).unwrap();
            fs::rename(mount.join("names"), mount.join("sizes/names")).unwrap();
            fs::write(mount.join("sizes/inline"), vec![7; 50_000]).unwrap();
            fs::remove_file(mount.join("sparse/far")).unwrap();
            after.push(lines(&Tree::of(mount.root())));
            mount.unmount();
            check_clean(image.path(), &what);
        }
        boot_with(scratch, &images, |n, disk| {
            let to = write_tree(&list(n));
            format!("mount -t f2fs -o ro {disk} {TOP}\n{to}\numount {TOP}\n")
        });
        for (n, (number, kind)) in batch.iter().enumerate() {
            let what = format!("{}: changed by us", kind.what(*number));
            assert_same(&after[n], &read_list(&list(n)), &what);
        }
    });
}

#[test]
fn the_kernel_reads_and_extends_what_we_wrote() {
    in_batches(|scratch, batch| {
        let mut images = Vec::new();
        let mut written = Vec::new();
        for (number, kind) in batch {
            let image = kind.make(scratch, &format!("{number}.img"));
            let mount = SteadMount::new(scratch, image.path(), &kind.our_options());
            torture(mount.root(), TORTURE);
            written.push(lines(&Tree::of(mount.root())));
            mount.unmount();
            check_clean(image.path(), &kind.what(*number));
            images.push(image);
        }
        let list = |n: usize| scratch.join(&format!("list{n}"));
        let changed = |n: usize| scratch.join(&format!("changed{n}"));
        boot_with(scratch, &images, |n, disk| {
            format!(
                "mount -t f2fs -o ro {disk} {TOP}\n{}\numount {TOP}\n\
                 mount -t f2fs -o {} {disk} {TOP}\nrm -r {TOP}/many {TOP}/sparse/far\n\
                 mv {TOP}/names {TOP}/sizes/names\nseq 9000 > {TOP}/sizes/inline\n{}\numount {TOP}\n",
                write_tree(&list(n)),
                batch[n].1.kernel_options(),
                write_tree(&changed(n))
            )
        });
        for (n, ((number, kind), image)) in batch.iter().zip(&images).enumerate() {
            let what = kind.what(*number);
            assert_same(&written[n], &read_list(&list(n)), &what);
            check_clean(image.path(), &what);
            let ours = read_by_library(image.path(), "ro", &what);
            assert_same(
                &ours,
                &read_list(&changed(n)),
                &format!("{what}: changed by the kernel"),
            );
        }
    });
}

/// Whether every fsync is a checkpoint with these options.
fn rolls_forward(options: &str) -> bool {
    !["active_logs=2", "fastboot"].contains(&options)
}

/// Checks that the files that fsync made durable were recovered.
#[track_caller]
fn assert_kept(durable: &[String], recovered: &[String], what: &str) {
    let lost: Vec<&String> = durable
        .iter()
        .filter(|line| !recovered.contains(line))
        .collect();
    assert!(
        lost.is_empty() && durable.len() > 40,
        "{what}: lost {lost:#?}"
    );
}

#[test]
fn we_recover_what_the_kernel_fsynced() {
    in_batches(|scratch, batch| {
        let images: Vec<Image> = batch
            .iter()
            .map(|(n, kind)| kind.make(scratch, &format!("{n}.img")))
            .collect();
        let list = |n: usize| scratch.join(&format!("list{n}"));
        let kept = |n: usize| scratch.join(&format!("kept{n}"));
        boot_with(scratch, &images, |n, disk| {
            let options = batch[n].1.kernel_options();
            let work = make_durable(&kept(n));
            let name = disk.trim_start_matches("/dev/");
            // No periodic checkpoints, on a machine of any speed.
            format!(
                "mkdir /mnt/{n}\nmount -t f2fs -o {options} {disk} {TOP}\n\
                 echo 100000 > /sys/fs/f2fs/{name}/cp_interval\n{work}\n\
                 mount --move {TOP} /mnt/{n}\n"
            )
        });
        let copies: Vec<Image> = images
            .iter()
            .enumerate()
            .map(|(n, image)| image.copy(scratch, &format!("{n}.copy")))
            .collect();
        boot_with(scratch, &copies, |n, disk| recover_and_list(disk, &list(n)));
        for (n, ((number, kind), image)) in batch.iter().zip(&images).enumerate() {
            let what = kind.what(*number);
            let fsynced = check_clean(image.path(), &what).stats.fsynced_files;
            assert_eq!(fsynced > 0, rolls_forward(kind.kernel), "{what}: {fsynced}");
            let kernel = without_folder_times(&read_list(&list(n)));
            let durable = read_list(&kept(n));
            let read = without_folder_times(&read_by_library(image.path(), "ro", &what));
            assert_kept(&durable, &read, &format!("{what}: read only"));
            assert_same(
                &read,
                &kernel,
                &format!("{what}: read only, and the kernel"),
            );
            let ours = read_by_library(image.path(), &kind.our_options(), &what);
            assert_kept(&durable, &ours, &what);
            assert_same(&without_folder_times(&ours), &kernel, &what);
            check_clean(image.path(), &what);
            assert_same(&read_by_library(image.path(), "ro", &what), &ours, &what);
        }
    });
}

/// A tree for sload.f2fs, which miscounts files with holes and copies no attributes.
fn source(scratch: &Scratch) -> std::path::PathBuf {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let top = scratch.folder("source");
    plain(&top, 5, 300);
    // A file with an indirect node, and a directory of several levels.
    fs::write(top.join("large"), vec![3; 13_000_000]).unwrap();
    fs::create_dir(top.join("many")).unwrap();
    for n in 0..1500 {
        fs::write(top.join(format!("many/a file of number {n}")), "").unwrap();
    }
    symlink("large", top.join("short")).unwrap();
    symlink("t".repeat(4000), top.join("long")).unwrap();
    for (path, mode, owner) in [("many", 0o2751, 7), ("large", 0o4711, 700)] {
        let path = top.join(path);
        chown(&path, Some(owner), Some(owner + 1)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    top
}

/// What sload.f2fs copies of a tree: not the attributes of the top, and whole seconds.
fn as_loaded(mut tree: Tree) -> Tree {
    tree.nodes.remove(&b""[..]);
    tree.nodes.values_mut().for_each(|node| node.mtime.1 = 0);
    tree
}

/// Volumes that sload.f2fs filled: equal to the source, written by us, and then read by the kernel. (With
/// flexible_inline_xattr it makes inodes that its own checker refuses. Debian's has no compression.)
#[test]
fn we_read_and_extend_what_sload_wrote() {
    let scratch = Scratch::new();
    let top = source(&scratch);
    let wanted = as_loaded(Tree::of(&top));
    assert!(wanted.len() > 1800, "{}", wanted.len());
    let fits = |kind: &&Kind| (256..=512).contains(&kind.size) && !kind.mkfs.contains("flexible");
    let kinds: Vec<&Kind> = MATRIX.iter().filter(fits).step_by(2).collect();
    assert!((6..=DISKS).contains(&kinds.len()), "{}", kinds.len());
    let list = |n: usize| scratch.join(&format!("list{n}"));
    let mut images = Vec::new();
    let mut after = Vec::new();
    for (n, kind) in kinds.iter().enumerate() {
        let what = format!("{}: by sload.f2fs", kind.what(n));
        let image = kind.make(&scratch, &format!("{n}.img"));
        let (from, path) = (top.to_str().unwrap(), image.path().to_str().unwrap());
        succeed("sload.f2fs", ["-P", "-f", from, path]);
        check_clean(image.path(), &what);
        {
            let volume = Volume::open_with(image.path(), &Options::parse("ro").unwrap()).unwrap();
            let read = as_loaded(Tree::of_volume(&*volume.fs()));
            volume.close().unwrap();
            wanted.assert_same(&read, Compare::COPY, &what);
        }
        let mount = SteadMount::new(&scratch, image.path(), &kind.our_options());
        fs::remove_dir_all(mount.join("d1")).unwrap();
        fs::write(mount.join("many/new"), vec![9; 70_000]).unwrap();
        fs::rename(mount.join("large"), mount.join("many/large")).unwrap();
        after.push(lines(&Tree::of(mount.root())));
        mount.unmount();
        check_clean(image.path(), &what);
        images.push(image);
    }
    boot_with(&scratch, &images, |n, disk| {
        let to = write_tree(&list(n));
        format!("mount -t f2fs -o ro {disk} {TOP}\n{to}\numount {TOP}\n")
    });
    for (n, kind) in kinds.iter().enumerate() {
        let what = format!("{}: by sload.f2fs and us", kind.what(n));
        assert_same(&after[n], &read_list(&list(n)), &what);
    }
}

/// Lets the kernel recover a volume and list its files.
fn recover_and_list(disk: &str, list: &Path) -> String {
    let to = write_tree(list);
    format!(
        "mount -t f2fs -o noatime {disk} {TOP}\numount {TOP}\n\
         mount -t f2fs -o ro {disk} {TOP}\n{to}\numount {TOP}\n"
    )
}

#[test]
fn the_kernel_recovers_what_we_fsynced() {
    in_batches(|scratch, batch| {
        let mut images = Vec::new();
        let mut copies = Vec::new();
        let mut kept = Vec::new();
        for (number, kind) in batch {
            let image = kind.make(scratch, &format!("{number}.img"));
            let mount = SteadMount::new(scratch, image.path(), &kind.our_options());
            fs::write(mount.join(".steadfs/f2fs/cp_interval"), "100000").unwrap();
            fsyncs::prepare(mount.root());
            let files = fsyncs::change(mount.root());
            kept.push(durable_lines(&Tree::of(mount.root()), &files));
            mount.kill();
            let what = kind.what(*number);
            let fsynced = check_clean(image.path(), &what).stats.fsynced_files;
            assert_eq!(fsynced > 0, rolls_forward(kind.ours), "{what}: {fsynced}");
            copies.push(image.copy(scratch, &format!("{number}.copy")));
            images.push(image);
        }
        let list = |n: usize| scratch.join(&format!("list{n}"));
        boot_with(scratch, &images, |n, disk| recover_and_list(disk, &list(n)));
        for (n, (number, kind)) in batch.iter().enumerate() {
            let what = kind.what(*number);
            check_clean(images[n].path(), &what);
            let kernel = read_list(&list(n));
            assert_kept(&kept[n], &kernel, &what);
            let ours = read_by_library(copies[n].path(), &kind.our_options(), &what);
            assert_same(
                &without_folder_times(&ours),
                &without_folder_times(&kernel),
                &what,
            );
            check_clean(copies[n].path(), &what);
        }
    });
}
