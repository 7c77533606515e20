//! f2fs through a mount: its ioctls, projects and shutdowns, as f2fs_io, chattr and perl call them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use steadfs_suite::f2fs::{check_clean, mkfs};
use steadfs_suite::uml::{TOP, boot};
use steadfs_suite::{Image, Outcome, Scratch, SteadMount, run, steadfs, succeed};

/// An f2fs ioctl: direction bits, size of its argument, number (linux/f2fs.h).
#[derive(Clone, Copy)]
struct Call(u32, u32, u32);

const GARBAGE_COLLECT: Call = Call(1, 4, 6);
const WRITE_CHECKPOINT: Call = Call(0, 0, 7);
const DEFRAGMENT: Call = Call(3, 16, 8);
const GARBAGE_COLLECT_RANGE: Call = Call(1, 24, 11);
const GET_FEATURES: Call = Call(2, 4, 12);
const SET_PIN_FILE: Call = Call(1, 4, 13);
const GET_PIN_FILE: Call = Call(2, 4, 14);
const PRECACHE_EXTENTS: Call = Call(0, 0, 15);

/// Calls an f2fs ioctl; returns its argument afterwards, or the error number.
fn ioctl(file: &Path, call: Call, argument: &[u8]) -> Result<Vec<u8>, i32> {
    let Call(direction, size, number) = call;
    let command = direction << 30 | size << 16 | 0xf5 << 8 | number;
    steadfs_suite::ioctl(file, command, argument)
}

/// The error number of a rustix error.
fn number(error: Errno) -> i32 {
    error.raw_os_error()
}

fn range(start: u64, len: u64) -> Vec<u8> {
    [start.to_ne_bytes(), len.to_ne_bytes()].concat()
}

/// A mounted volume with a file of 1 MiB.
struct Mounted {
    mount: SteadMount,
    file: PathBuf,
    image: Image,
    _scratch: Scratch,
}

impl Mounted {
    fn new() -> Self {
        let scratch = Scratch::new();
        let features = "-O extra_attr,inode_crtime,encrypt";
        let image = mkfs(&scratch, "calls.img", 128 << 20, features);
        let mount = SteadMount::new(&scratch, image.path(), "background_gc=off");
        let file = mount.join("file");
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        Self {
            mount,
            file,
            image,
            _scratch: scratch,
        }
    }

    /// Unmounts and checks the volume.
    fn close(self) {
        self.mount.unmount();
        check_clean(self.image.path(), "after the calls");
    }
}

fn checkpoints(mount: &SteadMount) -> u64 {
    let read =
        |name: &str| fs::read_to_string(mount.join(&format!(".steadfs/f2fs/{name}"))).unwrap();
    let number = |name: &str| read(name).trim().parse::<u64>().unwrap();
    number("cp_foreground_calls") + number("cp_background_calls")
}

#[test]
fn features_are_reported_and_a_checkpoint_is_written() {
    let volume = Mounted::new();
    // encrypt, extra_attr, inode_crtime.
    let features = ioctl(&volume.file, GET_FEATURES, &[0; 4]).unwrap();
    assert_eq!(features, 0x109_u32.to_ne_bytes());
    assert_eq!(ioctl(&volume.file, PRECACHE_EXTENTS, &[]), Ok(vec![]));
    fs::create_dir(volume.mount.join("dir")).unwrap();
    let before = checkpoints(&volume.mount);
    assert_eq!(ioctl(&volume.file, WRITE_CHECKPOINT, &[]), Ok(vec![]));
    assert!(checkpoints(&volume.mount) > before);
    volume.close();
}

/// Scattered blocks become contiguous, and the content stays.
#[test]
fn defragmentation_moves_what_is_scattered() {
    let volume = Mounted::new();
    let scattered = volume.mount.join("scattered");
    let (one, other) = (
        File::create(&scattered).unwrap(),
        File::create(volume.mount.join("other")).unwrap(),
    );
    for n in 0..64 {
        one.write_all_at(&[n as u8; 4096], n * 4096).unwrap();
        one.sync_all().unwrap();
        other.write_all_at(&[0xee; 4096], n * 4096).unwrap();
        other.sync_all().unwrap();
    }
    let moved = ioctl(&scattered, DEFRAGMENT, &range(0, 64 * 4096)).unwrap();
    assert_eq!(moved, range(0, 64 * 4096), "all of it");
    let again = ioctl(&scattered, DEFRAGMENT, &range(0, 64 * 4096)).unwrap();
    assert_eq!(again, range(0, 0), "nothing is left to do");
    let by_tool = ["defrag_file", "0", "262144", scattered.to_str().unwrap()];
    succeed("f2fs_io", by_tool);
    assert_eq!(
        ioctl(&scattered, DEFRAGMENT, &range(5, 4096)),
        Err(number(Errno::INVAL))
    );
    drop((one, other));
    let expected: Vec<u8> = (0..64).flat_map(|n| [n; 4096]).collect();
    assert!(fs::read(&scattered).unwrap() == expected);
    volume.close();
}

/// Half empty sections become free.
#[test]
fn gc_cleans_what_is_asked_for() {
    let volume = Mounted::new();
    for n in 0..12 {
        fs::write(volume.mount.join(&format!("half{n}")), vec![n; 1 << 20]).unwrap();
    }
    steadfs(["sync".as_ref(), volume.mount.root().as_os_str()]).expect(0);
    for n in (0..12).step_by(2) {
        fs::remove_file(volume.mount.join(&format!("half{n}"))).unwrap();
    }
    steadfs(["sync".as_ref(), volume.mount.root().as_os_str()]).expect(0);
    let cleaned = ioctl(volume.mount.root(), GARBAGE_COLLECT, &1_u32.to_ne_bytes());
    assert_eq!(cleaned, Ok(1_u32.to_ne_bytes().to_vec()));
    let wrong = [
        0_u64.to_ne_bytes(),
        0_u64.to_ne_bytes(),
        1_u64.to_ne_bytes(),
    ]
    .concat();
    assert_eq!(
        ioctl(volume.mount.root(), GARBAGE_COLLECT_RANGE, &wrong),
        Err(number(Errno::INVAL))
    );
    volume.close();
}

/// A file with blocks cannot be pinned. A pinned file gets whole sections and is only overwritten in place.
#[test]
fn pinned_files_stay_where_they_are() {
    let volume = Mounted::new();
    let refused = ioctl(&volume.file, SET_PIN_FILE, &1_u32.to_ne_bytes());
    assert_eq!(refused, Err(number(Errno::FBIG)));
    let file = volume.mount.join("pinned");
    fs::write(&file, "").unwrap();
    let path = file.to_str().unwrap();
    succeed("f2fs_io", ["pinfile", "set", path]);
    let flags = succeed("lsattr", [path]).out;
    let shown = flags.split(' ').next().unwrap();
    assert!(shown.contains('C'), "{flags}");
    succeed("fallocate", ["-l", "1M", path]);
    let blocks = fs::metadata(&file).unwrap().blocks();
    assert_eq!(blocks * 512, 2 << 20, "a section");
    assert_eq!(ioctl(&file, GET_PIN_FILE, &[0; 4]), Ok(vec![0; 4]));
    assert_eq!(
        ioctl(&file, DEFRAGMENT, &range(0, 8192)),
        Err(number(Errno::INVAL))
    );
    assert_ne!(
        run("fallocate", ["-p", "-o", "0", "-l", "4096", path]).code(),
        0
    );
    assert_ne!(run("truncate", ["-s", "4096", path]).code(), 0);
    let opened = fs::File::options().write(true).open(&file).unwrap();
    opened.write_all_at(b"in place", 9000).unwrap();
    opened.write_all_at(b"nowhere", 9 << 20).unwrap_err();
    drop(opened);
    assert_eq!(fs::metadata(&file).unwrap().len(), 1 << 20);
    assert_eq!(
        ioctl(&file, SET_PIN_FILE, &0_u32.to_ne_bytes()),
        Ok(vec![0; 4])
    );
    succeed("fallocate", ["-o", "1M", "-l", "2M", path]);
    assert_eq!(fs::metadata(&file).unwrap().len(), 3 << 20);
    assert_eq!(
        ioctl(volume.mount.root(), SET_PIN_FILE, &1_u32.to_ne_bytes()),
        Err(number(Errno::INVAL))
    );
    volume.close();
}

/// Ioctls that are known and not supported, and unknown ones.
#[test]
fn other_ioctls_are_refused() {
    let volume = Mounted::new();
    for refused in [1, 2, 3, 4, 5, 20, 25] {
        let error = ioctl(&volume.file, Call(0, 0, refused), &[]);
        assert_eq!(error, Err(number(Errno::OPNOTSUPP)), "ioctl {refused}");
    }
    for (direction, size, refused) in [(3, 32, 9), (1, 8, 10), (1, 8, 16), (2, 8, 17), (2, 2, 21)] {
        let error = ioctl(
            &volume.file,
            Call(direction, size, refused),
            &[0; 32][..size as usize],
        );
        assert_eq!(error, Err(number(Errno::OPNOTSUPP)), "ioctl {refused}");
    }
    assert_eq!(
        ioctl(&volume.file, Call(0, 0, 99), &[]),
        Err(number(Errno::NOTTY))
    );
    volume.close();
}

/// Flags, by the users' programs.
#[test]
fn flags_are_set_and_obeyed() {
    let volume = Mounted::new();
    let file = &volume.file;
    let path = file.to_str().unwrap();
    succeed("chattr", ["+iA", path]);
    assert!(succeed("lsattr", [path]).out.starts_with("----i--A"));
    assert!(fs::write(file, "no").is_err());
    succeed("chattr", ["-iA", path]);
    succeed("f2fs_io", ["getflags", path]);
    assert_ne!(
        run("chattr", ["+c", path]).code(),
        0,
        "a volume without compression"
    );
    assert_ne!(
        run("f2fs_io", ["fiemap", "0", "1", path]).code(),
        0,
        "FUSE passes no FIEMAP"
    );
    volume.close();
}

/// The project of a file, as lsattr shows it, and whether it is inherited.
#[track_caller]
fn project(path: &Path) -> (u32, bool) {
    let output = succeed("lsattr", ["-pd".as_ref(), path.as_os_str()]).out;
    let mut words = output.split_whitespace();
    let id = words.next().unwrap().parse().unwrap();
    (id, words.next().unwrap().contains('P'))
}

fn set_project(path: &Path, args: &[&str]) -> Outcome {
    let path = path.to_str().unwrap();
    run("chattr", args.iter().copied().chain([path]))
}

#[test]
fn projects_are_inherited_and_limit_renames() {
    let scratch = Scratch::new();
    let image = mkfs(
        &scratch,
        "projects.img",
        128 << 20,
        "-O extra_attr,inode_checksum,project_quota",
    );
    let mount = SteadMount::new(&scratch, image.path(), "");
    let at = |name: &str| mount.join(name);
    fs::create_dir(at("seven")).unwrap();
    set_project(&at("seven"), &["-p", "7", "+P"]).expect(0);
    assert_eq!(project(&at("seven")), (7, true));
    fs::write(at("seven/file"), "of seven").unwrap();
    fs::create_dir(at("seven/below")).unwrap();
    fs::write(at("seven/below/file"), vec![1; 20_000]).unwrap();
    std::os::unix::fs::symlink("file", at("seven/link")).unwrap();
    assert_eq!(project(&at("seven/file")), (7, false));
    assert_eq!(project(&at("seven/below")), (7, true));
    assert_eq!(project(&at("seven/below/file")), (7, false));
    fs::write(at("outside"), "of none").unwrap();
    assert_eq!(project(&at("outside")), (0, false));
    let crosses = |result: std::io::Result<()>| {
        assert_eq!(
            result.unwrap_err().kind(),
            std::io::ErrorKind::CrossesDevices
        );
    };
    crosses(fs::hard_link(at("outside"), at("seven/linked")));
    crosses(fs::rename(at("outside"), at("seven/renamed")));
    // Names can be moved out of a project and within it.
    fs::rename(at("seven/below/file"), at("seven/moved")).unwrap();
    fs::hard_link(at("seven/moved"), at("seven/below/again")).unwrap();
    fs::rename(at("seven/file"), at("taken out")).unwrap();
    assert_eq!(project(&at("taken out")), (7, false));
    // A file with the directory's project may be moved in.
    set_project(&at("outside"), &["-p", "7"]).expect(0);
    fs::rename(at("outside"), at("seven/inside")).unwrap();
    set_project(&at("taken out"), &["-p", "9"]).expect(0);
    mount.unmount();
    check_clean(image.path(), "after the calls");
    compare_projects_with_the_kernel(&scratch, &image);
}

/// The kernel sees the same projects, and we see what it makes there.
fn compare_projects_with_the_kernel(scratch: &Scratch, image: &Image) {
    let list = scratch.join("list");
    let show = format!(
        "lsattr -pR {TOP} >> {0}; lsattr -pd {TOP}/seven >> {0}; sync {0}",
        list.display()
    );
    let script = format!(
        "mount -t f2fs /dev/ubda {TOP}\n{show}\n\
         ! ln '{TOP}/taken out' {TOP}/seven/x\necho new > {TOP}/seven/below/new\numount {TOP}"
    );
    boot(scratch, &[image.path()], &script);
    let kernel = fs::read_to_string(&list).unwrap();
    let mount = SteadMount::new(scratch, image.path(), "");
    let root = mount.root().to_str().unwrap();
    let ours = [
        succeed("lsattr", ["-pR", root]).out,
        succeed("lsattr", ["-pd", &format!("{root}/seven")]).out,
    ];
    let ours = ours.concat().replace(root, TOP);
    let sorted = |text: &str| {
        let others = text.lines().filter(|line| !line.contains("below/new"));
        // The kernel shows inline content, too (N).
        let mut lines: Vec<String> = others.map(|line| line.replace("-N", "--")).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&ours), sorted(&kernel));
    assert!(kernel.lines().count() > 8, "{kernel}");
    assert_eq!(project(&mount.join("seven/below/new")), (7, false));
    mount.unmount();
    check_clean(image.path(), "after the calls");
}

#[test]
fn projects_need_the_feature_and_have_a_quota_file() {
    let scratch = Scratch::new();
    let image = mkfs(&scratch, "none.img", 128 << 20, "-O extra_attr");
    let mount = SteadMount::new(&scratch, image.path(), "");
    fs::create_dir(mount.join("dir")).unwrap();
    assert_ne!(set_project(&mount.join("dir"), &["-p", "7"]).code(), 0);
    mount.unmount();
    check_clean(image.path(), "after the calls");

    let image = mkfs(
        &scratch,
        "quota.img",
        128 << 20,
        "-O extra_attr,project_quota",
    );
    let mount = SteadMount::new(&scratch, image.path(), "rw");
    fs::create_dir(mount.join("four")).unwrap();
    set_project(&mount.join("four"), &["-p", "4"]).expect(0);
    mount.unmount();
    let script = format!(
        "modprobe -d /mnt/root quota_v2\nmount -t f2fs /dev/ubda {TOP}\nmkdir {TOP}/dir\nchattr -p 5 +P {TOP}/dir\n\
         seq 10000 > {TOP}/dir/file\numount {TOP}"
    );
    boot(&scratch, &[image.path()], &script);
    let mount = SteadMount::new(&scratch, image.path(), "ro");
    assert_eq!(project(&mount.join("four")), (4, false));
    assert_eq!(project(&mount.join("dir")), (5, true));
    assert_eq!(project(&mount.join("dir/file")), (5, false));
    let listed = steadfs(["quota".as_ref(), mount.root().as_os_str()]);
    let listed = listed.expect(0).out;
    let five = listed.lines().find(|line| line.trim().starts_with("5 "));
    let words: Vec<_> = five.unwrap().split_whitespace().collect();
    assert_eq!((words[1], words[5]), ("48", "2"), "{listed}");
    mount.unmount();
    check_clean(image.path(), "after the calls");
}

#[test]
fn shutdown_modes_leave_what_they_promise() {
    let scratch = Scratch::new();
    for (level, kept) in [("0", 3), ("1", 2), ("2", 1), ("3", 1)] {
        let image = mkfs(
            &scratch,
            &format!("{level}.img"),
            128 << 20,
            "-O sb_checksum",
        );
        let mount = SteadMount::new(&scratch, image.path(), "");
        fs::write(mount.join("durable"), "this").unwrap();
        steadfs(["sync".as_ref(), mount.root().as_os_str()]).expect(0);
        fs::create_dir(mount.join("named")).unwrap();
        fs::write(mount.join("written"), vec![7; 50_000]).unwrap();
        let root = mount.root().to_str().unwrap();
        succeed("f2fs_io", ["shutdown", level, root]);
        assert!(fs::create_dir(mount.join("later")).is_err());
        let output = fs::read_to_string(mount.join(".steadfs/errors")).unwrap();
        assert!(output.contains("shutdown (1)"), "{output}");
        // It was shut down on purpose: that is not a failure.
        let unmounted = steadfs(["umount", root]).expect(0);
        assert_eq!(unmounted.err, "");
        mount.wait();
        check_clean(image.path(), "after the calls");
        let mount = SteadMount::new(&scratch, image.path(), "");
        assert_eq!(fs::read(mount.join("durable")).unwrap(), b"this");
        assert_eq!(mount.join("named").exists(), kept >= 2, "{level}");
        let written = fs::read(mount.join("written")).unwrap_or_default();
        assert_eq!(written == vec![7; 50_000], kept >= 3, "{level}");
        mount.unmount();
        check_clean(image.path(), "after the calls");
    }
    // A volume that is marked for a check stays mounted.
    let image = mkfs(&scratch, "check.img", 128 << 20, "");
    let mount = SteadMount::new(&scratch, image.path(), "");
    let root = mount.root().to_str().unwrap();
    succeed("f2fs_io", ["shutdown", "4", root]);
    fs::write(mount.join("later"), "goes on").unwrap();
    mount.unmount();
    let inspected = steadfs(["inspect", image.path().to_str().unwrap()]).expect(0);
    assert!(inspected.out.contains("fsck"), "{}", inspected.out);
    check_clean(image.path(), "after the calls");
}

/// FIEMAP and FIBMAP return the same blocks before and after an fsync, because the kernel caches the answer.
#[test]
fn block_numbers_are_the_same_before_and_after_an_fsync() {
    let scratch = Scratch::new();
    let image = mkfs(&scratch, "f2fs", 64 << 20, "-O extra_attr");
    let mount = SteadMount::new(&scratch, image.path(), "");
    let path = mount.join("file");
    let file = File::create(&path).unwrap();
    let blocks = || fs::metadata(&path).unwrap().blocks() / 8;
    // A hole, and blocks in a direct node.
    for (at, len, wanted) in [(0, 3, 3), (5, 2, 5), (2, 2, 6), (1000, 1, 8)] {
        file.write_all_at(&vec![1; len * 4096], at * 4096).unwrap();
        assert_eq!(blocks(), wanted, "delayed");
        file.sync_all().unwrap();
        assert_eq!(blocks(), wanted, "kept");
    }
    drop(file);
    mount.unmount();
    let mount = SteadMount::new(&scratch, image.path(), "");
    assert_eq!(blocks(), 8, "stored");
    mount.unmount();
    check_clean(image.path(), "after the calls");
}
