//! The options of `steadfs mount` beside those of mount(8), and which descriptors of its caller it keeps.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use steadfs_suite::command::{PATIENCE, finish};
use steadfs_suite::scratch::{mounts_below, unmount_when_idle};
use steadfs_suite::stead::program;
use steadfs_suite::{
    Image, KernelMount, LoopDevice, Outcome, Scratch, SteadMount, run, steadfs, steadfs_when_idle,
    succeed,
};

#[path = "mount_options/server.rs"]
mod server;

const MIB: u64 = 1 << 20;

fn mount(words: &[&str]) -> Outcome {
    steadfs(["mount"].iter().chain(words))
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Waits until the server has closed the image; umount(8) alone does not.
#[track_caller]
fn unmount(root: &Path) {
    steadfs_when_idle(&["umount".as_ref(), root.as_os_str()]).expect(0);
}

#[test]
fn a_device_is_found_by_label_and_uuid() {
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let at = path(&root);
    let uuid = "8d2f0a52-7b1e-4f0c-9f2b-0d8c5f6a7b8c";
    let label = format!("st {:x}", std::process::id());
    let options = ["-t", "ext4", "-U", uuid, "-L", &label];
    let image = Image::mke2fs(&scratch, "d.img", 64 * MIB, &options);
    let device = LoopDevice::attach(image.path(), false);
    let (by_label, by_uuid) = (format!("LABEL={label}"), format!("UUID={uuid}"));
    let quoted = format!("LABEL=\"{label}\"");
    for words in [
        &[&*by_label, at][..],
        &[&quoted, at],
        &[&by_uuid, at],
        &["-L", &label, at],
        &["--uuid", uuid, at],
        &["-w", "-n", "-v", "-t", "ext4", &by_uuid, at],
    ] {
        mount(words).expect(0);
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().find(|line| line.contains(at)).unwrap();
        assert!(line.starts_with(path(device.path())), "{line}");
        unmount_when_idle(&root);
    }
    for tag in ["LABEL", "UUID", "PARTLABEL", "PARTUUID"] {
        let none = format!("{tag}=none-has-this");
        let output = mount(&[&none, at]).expect(1).err;
        assert!(
            output.contains(&none) && output.contains("no device"),
            "{output}"
        );
        // mount(8) has the same exit code.
        run("mount", ["-t", "ext4", &none, at]).expect(1);
    }
    assert_eq!(mounts_below(&root), [""; 0].map(PathBuf::from));
}

#[test]
fn the_type_option_must_match_the_volume() {
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let at = path(&root);
    let f2fs = scratch.join("f2fs");
    steadfs(["format", "-q", "-t", "f2fs", path(&f2fs), "64M"]).expect(0);
    let images =
        ["ext2", "ext3", "ext4"].map(|kind| Image::mke2fs(&scratch, kind, 64 * MIB, &["-t", kind]));
    let images = images.each_ref().map(|image| path(image.path()));
    let all = images.into_iter().chain([path(&f2fs)]);
    for image in all {
        let kind = image.rsplit('/').next().unwrap();
        for asked in [
            "auto",
            "steadfs",
            kind,
            "ext4",
            "ext3",
            "ext2",
            "f2fs",
            "ext2,f2fs",
        ] {
            let output = mount(&["-t", asked, image, at]);
            let fits = asked.split(',').any(|asked| {
                ["auto", "steadfs", kind].contains(&asked) || asked == "ext4" && kind != "f2fs"
            });
            let wanted = if fits { 0 } else { 32 };
            assert_eq!(output.code(), wanted, "-t {asked} {kind}: {}", output.err);
            if fits {
                unmount(&root);
            } else {
                assert!(output.err.contains(&format!("-t {kind}")), "{}", output.err);
            }
        }
    }
    let output = mount(&["-t", "xfs", images[0], at]).expect(1).err;
    assert!(
        output.contains("xfs") && output.contains("ext2"),
        "{output}"
    );
}

/// As mount(8) and users write them, to the command and to the helper of mount(8).
#[test]
fn an_option_list_may_follow_its_flag_without_a_space() {
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let at = path(&root);
    let image = Image::mke2fs(&scratch, "d.img", 64 * MIB, &["-t", "ext4"]);
    let image = path(image.path());
    let helper = scratch.join("mount.steadfs");
    symlink(program(), &helper).unwrap();
    let helper = path(&helper);
    for words in [
        &[image, at, "-oro,noatime"][..],
        &["-oro", "-o", "noatime", image, at],
        &["-vonoatime", "-oro", image, at],
        &["-ronoatime", image, at],
        &["-r", image, at, "-onoatime"],
    ] {
        for by_helper in [true, false] {
            let mounted = if by_helper {
                run(helper, words)
            } else {
                mount(words)
            };
            mounted.expect(0);
            let table = fs::read_to_string("/proc/self/mounts").unwrap();
            let line = table.lines().find(|line| line.contains(at)).unwrap();
            assert!(line.contains(" ro,noatime,"), "{words:?}: {line}");
            unmount(&root);
        }
    }
    let output = run(helper, [image, at, "-o"]).expect(1).err;
    assert!(output.contains("-o needs a list"), "{output}");
}

#[test]
fn unknown_options_are_named() {
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let at = path(&root);
    let image = Image::mke2fs(&scratch, "d.img", 64 * MIB, &["-t", "ext4"]);
    let image = path(image.path());
    for (option, says) in [
        ("noatim", "did you mean noatime?"),
        ("NOATIME", "did you mean noatime?"),
        ("nobarier", "did you mean nobarrier?"),
        ("loop=/dev/loop9", "leave it out"),
    ] {
        let output = mount(&["-o", option, image, at]).expect(1).err;
        assert!(output.contains(option) && output.contains(says), "{output}");
    }
    for option in ["frob", "mballoc", "xino", "utf8"] {
        let output = mount(&["-o", option, image, at]).expect(1).err;
        assert!(
            output.contains(option) && !output.contains("mean"),
            "{output}"
        );
    }
    for words in ["-a", "--bind", "--make-private", "-N", "--sorce"] {
        let output = mount(&[words, image, at]).expect(1).err;
        assert!(
            output.contains(words) && output.contains("-t steadfs"),
            "{output}"
        );
        assert!(!output.contains("tip"), "{output}");
    }
    for words in [&[][..], &[image], &["-L", "x", image, at]] {
        mount(words).expect(1);
    }
}

/// Lists from fstab, wikis and /proc/mounts of the kernel's ext4, and words of the message about what has no effect.
const EXT4_LISTS: [(&str, &[&str]); 3] = [
    (
        "defaults,noatime,data=writeback,barrier=0,nobh,errors=remount-ro,lazytime",
        &["nobh: Linux removed it", "lazytime: times are written"],
    ),
    (
        "rw,seclabel,relatime,usrjquota=aquota.user,grpjquota=aquota.group,jqfmt=vfsv1,data=ordered",
        &[
            "usrjquota=aquota.user, grpjquota=aquota.group, jqfmt=vfsv1: quota files with names",
            "seclabel",
        ],
    ),
    (
        "loop,user_xattr,acl,init_itable=10,nomblk_io_submit,i_version,oldalloc,check=none,mand",
        &[
            "init_itable=10",
            "nomblk_io_submit, oldalloc, check=none",
            "mand",
            "loop",
        ],
    ),
];

/// The same of the kernel's f2fs.
const F2FS_LISTS: [(&str, &[&str]); 2] = [
    (
        "rw,lazytime,relatime,background_gc=on,nodiscard,no_heap,user_xattr,inline_xattr,acl,inline_data,\
         inline_dentry,flush_merge,barrier,extent_cache,mode=adaptive,active_logs=6,alloc_mode=reuse,\
         checkpoint_merge,fsync_mode=posix,memory=normal,lookup_mode=perf,discard_unit=block,errors=continue",
        &["lazytime: times are written", "no_heap: Linux removed it"],
    ),
    (
        "compress_algorithm=zstd:6,compress_chksum,atgc,gc_merge,lazytime,inlinecrypt",
        &["lazytime: times are written"],
    ),
];

/// The same for a volume with compression.
const COMPRESSED_LISTS: [(&str, &[&str]); 1] = [(
    "compress_algorithm=lz4,compress_log_size=2,compress_extension=*,compress_mode=fs,compress_cache,nodiscard",
    &["compress_cache: read blocks"],
)];

/// An option without effect here is accepted if it requests no guarantee, and named.
#[test]
fn option_lists_of_the_kernel_are_accepted() {
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let ext4 = Image::mke2fs(&scratch, "ext4", 64 * MIB, &["-t", "ext4"]);
    let (plain, compressed) = (scratch.join("plain"), scratch.join("compressed"));
    succeed("truncate", ["-s", "64M", path(&plain), path(&compressed)]);
    succeed("mkfs.f2fs", ["-q", path(&plain)]);
    let features = "extra_attr,inode_checksum,sb_checksum,compression";
    succeed("mkfs.f2fs", ["-q", "-O", features, path(&compressed)]);
    let (plain, compressed) = (path(&plain), path(&compressed));
    for (image, lists) in [
        (path(ext4.path()), &EXT4_LISTS[..]),
        (plain, &F2FS_LISTS),
        (compressed, &COMPRESSED_LISTS),
    ] {
        for (list, named) in lists {
            mount_with_ineffective_options(image, &root, list, named);
        }
    }
    ext4.check_clean();
    for image in [plain, compressed] {
        succeed("fsck.f2fs", ["--dry-run", image]);
    }
}

/// Mounts with the list, and checks that the options without effect are named, and no others.
fn mount_with_ineffective_options(image: &str, root: &Path, list: &str, named: &[&str]) {
    let at = path(root);
    let output = mount(&["-o", list, image, at]).expect(0).err;
    let idle = |line: &&str| line.starts_with("steadfs: without effect: ");
    let lines: Vec<&str> = output.lines().filter(idle).collect();
    let is_named = |words: &str| lines.iter().any(|line| line.contains(words));
    for words in named {
        assert!(is_named(words), "{words}: {output}");
    }
    for effective in [
        "relatime",
        "memory",
        "lookup_mode",
        "barrier",
        "atgc",
        "acl",
    ] {
        assert!(!is_named(effective), "{output}");
    }
    fs::write(root.join("file"), vec![7; 100_000]).unwrap();
    let again = ["remount", "-o", "lazytime,noatime", at];
    let output = steadfs(again).expect(0).err;
    assert!(output.contains("lazytime: times are written"), "{output}");
    unmount(root);
}

/// One message names all mistakes in a list, from the command, mount(8)'s helper and a running mount.
#[test]
fn all_refusals_of_a_call_are_named_at_once() {
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let at = path(&root);
    let image = Image::mke2fs(&scratch, "d.img", 64 * MIB, &["-t", "ext4"]);
    let image = path(image.path());
    let helper = scratch.join("mount.steadfs");
    symlink(program(), &helper).unwrap();
    let list = "noatme,dax,data=journal,lazytime,gc_merge,offset=7";
    let names = ["noatme", "dax", "data=journal", "offset=7"];
    let check = |output: &str, names: &[&str]| {
        for name in names {
            let words = format!("option {name}: ");
            assert!(output.contains(&words), "{name}: {output}");
        }
        assert!(!output.contains("lazytime"), "{output}");
    };
    let all = [&names[..], &["gc_merge"]].concat();
    // The process that has rights does not read the volume, and so does not know its kind.
    let uncontained = format!("{list},sandbox=off");
    for (list, names) in [(list, &names[..]), (&uncontained, &all)] {
        check(&mount(&["-o", list, image, at]).expect(1).err, names);
        let output = run(path(&helper), [image, at, "-o", list]).expect(1).err;
        check(&output, names);
    }
    // All options of the other kind of volume are named, too, and all that contradict each other.
    let output = mount(&["-o", "gc_merge,atgc", image, at]).expect(32).err;
    check(&output, &["gc_merge", "atgc"]);
    let output = mount(&["-o", "noload,min_batch_time=20000", image, at]);
    check(&output.expect(1).err, &["noload", "min_batch_time"]);
    mount(&[image, at]).expect(0);
    let output = steadfs(["remount", "-o", list, at]).expect(1).err;
    check(&output, &all);
    let fixed = "noload,ro,offset=1M,cache_size=64M,gc_merge";
    let output = steadfs(["remount", "-o", fixed, at]).expect(32).err;
    check(&output, &["offset=1M", "cache_size=64M", "gc_merge"]);
    let output = steadfs(["remount", "-o", "ro,noload,data=writeback", at]);
    check(&output.expect(32).err, &["noload", "data"]);
    unmount(&root);
}

/// A remount accepts fixed options with their current values, and changes those that the kernel enforces.
#[test]
fn a_remount_accepts_the_current_values_of_fixed_options() {
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let at = path(&root);
    let image = Image::mke2fs(&scratch, "d.img", 64 * MIB, &["-t", "ext4"]);
    let list = "offset=0,cache_size=64M,buffered,noexec,allow_other";
    mount(&["-o", list, path(image.path()), at]).expect(0);
    let again = format!("{list},commit=9,x-mine=1,nofail");
    steadfs(["remount", "-o", &again, at]).expect(0);
    steadfs(["remount", "-o", "exec,nosuid", at]).expect(0);
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(at)).unwrap();
    assert!(
        line.contains(" rw,nosuid,") && !line.contains("noexec"),
        "{line}"
    );
    for other in [
        "direct",
        "cache_size=65M",
        "noallow_other",
        "nocontrol",
        "foreground",
    ] {
        let output = steadfs(["remount", "-o", other, at]).expect(32).err;
        assert!(
            output.contains(&format!("option {other}: cannot change")),
            "{output}"
        );
    }
    unmount(&root);
}

/// As in mount(8): `-w` and `-o ro`, in any order.
#[test]
fn the_last_of_ro_and_rw_counts() {
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let at = path(&root);
    let image = Image::mke2fs(&scratch, "d.img", 64 * MIB, &["-t", "ext4"]);
    let image = path(image.path());
    for (words, wanted) in [
        (&["-r", "-w"][..], " rw,"),
        (&["-w", "-o", "ro"], " ro,"),
        (&["-o", "ro", "-w"], " rw,"),
        (&["-o", "rw", "-r", "-o", "noatime"], " ro,"),
        (&["-w", "-r", "--rw"], " rw,"),
    ] {
        mount(&[words, &[image, at]].concat()).expect(0);
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().find(|line| line.contains(at)).unwrap();
        assert!(line.contains(wanted), "{words:?}: {line}");
        unmount(&root);
    }
}

/// As mount(8) does with a write-protected source: read-only with a warning; `-w` makes it an error.
#[test]
fn a_write_protected_image_is_mounted_read_only() {
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let at = path(&root);
    let sealed = Image::mke2fs(&scratch, "sealed", 64 * MIB, &["-t", "ext4"]);
    succeed("tune2fs", ["-O", "read-only", path(sealed.path())]);
    let future = Image::mke2fs(&scratch, "future", 64 * MIB, &["-t", "ext4"]);
    let feature = "feature FEATURE_R30";
    succeed("debugfs", ["-w", "-R", feature, path(future.path())]);
    let firmware = scratch.join("firmware");
    succeed("truncate", ["-s", "64M", path(&firmware)]);
    succeed("mkfs.f2fs", ["-q", "-O", "ro", path(&firmware)]);
    let protected = Image::mke2fs(&scratch, "protected", 64 * MIB, &["-t", "ext4"]);
    let protected = LoopDevice::attach_read_only(protected.path());
    for (image, why) in [
        (path(sealed.path()), "made to be read only (read-only)"),
        (
            path(future.path()),
            "not supported for writing: FEATURE_R30",
        ),
        (path(&firmware), "made to be read only (ro)"),
        (path(protected.path()), "takes no writes"),
    ] {
        for words in [&[][..], &["-o", "rw,noatime"]] {
            let output = mount(&[words, &[image, at]].concat()).expect(0).err;
            let line = format!("{image}: mounted read-only: ");
            assert!(output.contains(&line) && output.contains(why), "{output}");
            assert!(!output.contains("yet"), "{output}");
            let refused = fs::write(root.join("file"), "x").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
            let table = fs::read_to_string("/proc/self/mounts").unwrap();
            let line = table.lines().find(|line| line.contains(at)).unwrap();
            assert!(line.contains(" ro,"), "{line}");
            let output = steadfs(["remount", "-o", "rw", at]).expect(32).err;
            let is_device = image.starts_with("/dev/");
            assert!(output.contains(why) || is_device, "{output}");
            unmount(&root);
        }
        let output = mount(&["-w", image, at]).expect(32).err;
        assert!(output.contains(why) && output.contains("-w"), "{output}");
        let output = mount(&["-o", "ro", image, at]).expect(0).err;
        assert!(!output.contains("mounted read-only"), "{output}");
        unmount(&root);
        let into = format!("{image}:/");
        let output = steadfs(["cp", "/etc/hostname", &into]).expect(1).err;
        assert!(
            output.contains(why) || output.contains("is write-protected"),
            "{output}"
        );
    }
}

#[test]
fn the_superblock_records_mount_point_and_mount_count() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "d.img", 64 * MIB, &["-t", "ext4"]);
    let fields = || {
        let output = succeed("dumpe2fs", ["-h", path(image.path())]).out;
        let field = |name: &str| {
            let line = output.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        (field("Last mounted on:"), field("Mount count:"))
    };
    let is = |at: &str, count: &str| assert_eq!(fields(), (at.to_owned(), count.to_owned()));
    is("<not available>", "0");
    let kernel = KernelMount::new(&scratch, image.path(), "");
    fs::write(kernel.join("file"), "").unwrap();
    let at = path(kernel.root()).to_owned();
    kernel.unmount();
    is(&at, "1");
    // Read-only mounts, and commands that write without mounting, leave the field.
    SteadMount::new(&scratch, image.path(), "ro").unmount();
    is(&at, "1");
    let into = format!("{}:/", path(image.path()));
    steadfs(["cp", "/etc/passwd", &into]).expect(0);
    is(&at, "2");
    let mount = SteadMount::new(&scratch, image.path(), "");
    let at = path(mount.root()).to_owned();
    mount.unmount();
    is(&at, "3");
    let long = scratch.folder(&"long".repeat(20));
    steadfs(["mount", path(image.path()), path(&long)]).expect(0);
    steadfs(["umount", path(&long)]).expect(0);
    is(&path(&long)[..59], "4");
    image.check_clean();
}

#[test]
fn a_file_too_small_for_a_volume_is_not_reported_as_corrupt() {
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let image = Image::mke2fs(&scratch, "d.img", 64 * MIB, &["-t", "ext4"]);
    let whole = fs::read(image.path()).unwrap();
    for (size, says) in [
        (0, "is empty"),
        (3, "only 3 bytes"),
        (512, "too few"),
        (2000, "too few"),
    ] {
        let name = scratch.join(&format!("{size}"));
        fs::write(&name, &whole[..size]).unwrap();
        for (words, code) in [
            (&["mount", path(&name), path(&root)][..], 32),
            (&["mount", "-o", "ro", path(&name), path(&root)], 32),
            (&["check", path(&name)], 8),
            (&["ls", path(&name)], 1),
        ] {
            let output = steadfs(words).expect(code).err;
            assert!(output.contains(says), "{output}");
            for word in ["damaged", "corrupt"] {
                assert!(!output.contains(word), "{output}");
            }
        }
    }
    // The superblock is there: reading continues as far as possible.
    let short = scratch.join("short");
    fs::write(&short, &whole[..8192]).unwrap();
    let short = path(&short);
    for (words, code, says) in [
        (&["mount", short, path(&root)][..], 32, "the device only"),
        (
            &["mount", "-o", "ro", short, path(&root)],
            32,
            "the device only",
        ),
        (&["check", short], 4, "65536 blocks, its device 8"),
        (&["ls", short], 1, "past the end of the device"),
    ] {
        let output = steadfs(words).expect(code);
        let output = output.out + &output.err;
        assert!(output.contains(says), "{output}");
    }
}

/// Without `sizelimit=` a volume may extend to the end of its device; what surrounds it belongs to others.
#[test]
fn a_volume_at_an_offset_stays_within_its_bounds() {
    const AROUND: u8 = 0xEE;
    let scratch = Scratch::new();
    let root = scratch.folder("root");
    let other = scratch.folder("other");
    let disk = scratch.join("disk");
    fs::write(&disk, vec![AROUND; 160 * MIB as usize]).unwrap();
    let disk = path(&disk);
    for (begin, end) in [(1, 65), (80, 144)] {
        let at = format!("offset={begin}M");
        let size = format!("{}M", end - begin);
        steadfs(["format", "-q", "-F", "-E", &at, disk, &size]).expect(0);
    }
    mount(&["-o", "offset=1M,discard", disk, path(&root)]).expect(0);
    fs::write(root.join("file"), vec![1; 8 * MIB as usize]).unwrap();
    succeed("sync", [path(&root)]);
    fs::remove_file(root.join("file")).unwrap();
    fs::write(root.join("kept"), "kept").unwrap();
    succeed("fstrim", [path(&root)]);
    // The image is one device: the lock covers everything in it.
    let output = mount(&["-o", "offset=80M", disk, path(&other)]).expect(32);
    assert!(output.err.contains("in use by"), "{}", output.err);
    unmount(&root);
    let bytes = fs::read(disk).unwrap();
    let is_around = |from: u64, to: u64| {
        let bytes = &bytes[(from * MIB) as usize..(to * MIB) as usize];
        bytes.iter().all(|byte| *byte == AROUND)
    };
    assert!(is_around(0, 1) && is_around(65, 80) && is_around(144, 160));
    let device = LoopDevice::attach(Path::new(disk), false);
    mount(&["-o", "offset=1M", path(device.path()), path(&root)]).expect(0);
    assert_eq!(fs::read(root.join("kept")).unwrap(), b"kept");
    unmount(&root);
    drop(device);
    for begin in ["1M", "80M"] {
        let open = format!("offset={begin}");
        steadfs(["check", "-o", &open, disk]).expect(0);
        steadfs(["inspect", "-o", &open, disk]).expect(0);
        steadfs(["ls", "-o", &open, disk]).expect(0);
        let short = format!("{open},sizelimit=10M");
        let output = mount(&["-o", &short, disk, path(&root)]).expect(32).err;
        let words = "option sizelimit=10485760: the volume has 67108864 bytes";
        assert!(output.contains(words), "{output}");
        let output = steadfs(["check", "-o", &short, disk]).expect(8).err;
        assert!(output.contains(words), "{output}");
    }
    let output = mount(&["-o", "offset=160M", disk, path(&root)])
        .expect(32)
        .err;
    assert!(output.contains("none after offset"), "{output}");
}
