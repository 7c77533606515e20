//! System calls on a mount: each is answered as the kernel's ext4 answers it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Debug;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags,
};
use steadfs_suite::{
    Image, KernelMount, LoopDevice, Scratch, SteadMount, ioctl, run, steadfs, steadfs_when_idle,
};

#[path = "calls/attributes.rs"]
mod attributes_read;
#[path = "calls/inline.rs"]
mod inline;
#[path = "calls/values.rs"]
mod values;
#[path = "calls/without_key.rs"]
mod without_key;

const MIB: u64 = 1 << 20;

// linux/fs.h; where there are two, the 64-bit ones.
const GETVERSION: u32 = 0x8008_7601;
const GETFLAGS_32: u32 = 0x8004_6601;
const SETFLAGS_32: u32 = 0x4004_6602;
const SETVERSION: u32 = 0x4008_7602;
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;
const FITRIM: u32 = 0xc018_5879;
const GOINGDOWN: u32 = 0x8004_587d;

/// The answers, in the order of the calls.
struct Answers<'a> {
    root: &'a Path,
    output: Vec<String>,
}

impl Answers<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn new_file(&self, name: &str, content: &[u8]) -> File {
        fs::write(self.path(name), content).unwrap();
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .open(self.path(name))
            .unwrap()
    }

    fn say(&mut self, what: &str, answer: impl Debug) {
        self.output.push(format!("{what}: {answer:?}"));
    }

    /// Runs a shell command in the root of the mount.
    fn shell(&mut self, script: &str) {
        let place = format!("cd '{}' && {script}", self.root.display());
        let output = run("sh", ["-c", &place]);
        self.say(script, (output.code(), output.out, output.err));
    }

    /// The same as an unprivileged user.
    fn unprivileged_shell(&mut self, script: &str) {
        let user = "setpriv --reuid 65534 --regid 65534 --clear-groups sh -c";
        self.shell(&format!("{user} '{script}'"));
    }

    fn mode(&mut self, name: &str) {
        let found = fs::metadata(self.path(name)).unwrap();
        let (mode, uid, gid) = (found.mode(), found.uid(), found.gid());
        self.say(name, format!("{mode:o} {uid} {gid}"));
    }
}

/// The flag of a file that is mapped by extents.
const EXTENTS: IFlags = IFlags::from_bits_retain(0x8_0000);

fn flags(all: &mut Answers<'_>) {
    let file = all.new_file("flags", b"content");
    let path = all.path("flags");
    all.say("flags", rustix::fs::ioctl_getflags(&file));
    for more in [IFlags::NODUMP, IFlags::IMMUTABLE, IFlags::APPEND] {
        let set = rustix::fs::ioctl_setflags(&file, EXTENTS | more);
        all.say("set", (set, rustix::fs::ioctl_getflags(&file)));
        // FUSE checks this at write(2), not at open(2).
        let opened = File::options().write(true).open(&path);
        let written = opened.and_then(|file| file.write_at(b"x", 0));
        all.say("write in place", written.is_ok());
        let appended = File::options()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write(b"x"));
        all.say("append", appended.is_ok());
        let opened = File::options().write(true).open(&path);
        let truncated = opened.and_then(|file| file.set_len(3));
        all.say("truncate", truncated.is_ok());
        all.say(
            "chmod",
            rustix::fs::chmod(&path, Mode::from_raw_mode(0o640)),
        );
        all.say(
            "link",
            fs::hard_link(&path, all.path("flags-2")).map_err(|e| e.kind()),
        );
        all.say(
            "unlink",
            fs::remove_file(all.path("flags-2")).map_err(|e| e.kind()),
        );
        all.say(
            "xattr",
            rustix::fs::setxattr(&path, "user.a", b"1", XattrFlags::empty()),
        );
    }
    rustix::fs::ioctl_setflags(&file, EXTENTS).unwrap();
    let unknown = IFlags::from_bits_retain(0x8008_0000);
    all.say("unknown flag", rustix::fs::ioctl_setflags(&file, unknown));
    all.say("flags", rustix::fs::ioctl_getflags(&file));
    all.shell("mkdir many && (cd many && touch $(seq -f %0200g 500)) && chattr +AdSD many && lsattr -d many");
    all.shell("mkdir many/below && lsattr -d many/below && touch many/file && lsattr many/file");
    ioctls(all, &file);
}

fn ioctls(all: &mut Answers<'_>, file: &File) {
    let path = all.path("flags");
    let words = |numbers: [u32; 7]| numbers.map(u32::to_ne_bytes).concat();
    all.say("fsxattr", ioctl(&path, FSGETXATTR, &[0; 28]));
    for (flags, project) in [(0xc0, 0), (0x8, 0), (0, 5)] {
        let set = ioctl(&path, FSSETXATTR, &words([flags, 0, 0, project, 0, 0, 0]));
        all.say(
            "set fsxattr",
            (set.map(drop), ioctl(&path, FSGETXATTR, &[0; 28])),
        );
        rustix::fs::ioctl_setflags(file, EXTENTS).unwrap();
    }
    let version = ioctl(&path, GETVERSION, &[0; 8]).unwrap();
    all.say("a version", version[..4] != [0; 4]);
    let trim = ioctl(
        all.root,
        FITRIM,
        &words([0, 0, u32::MAX, u32::MAX, 0, 0, 0])[..24],
    );
    all.say("trim", trim.map(|range| range[8..16] != [0; 8]));
    all.say(
        "trim nothing",
        ioctl(all.root, FITRIM, &words([0; 7])[..24]),
    );
    all.say("unknown", ioctl(&path, 0x8004_1234, &[0; 4]));
    // For a 32-bit program the kernel translates the number; a number that is not translated was not checked, so it is
    // refused.
    for number in [GETFLAGS_32, SETFLAGS_32] {
        let set = ioctl(&path, number, &IFlags::IMMUTABLE.bits().to_ne_bytes());
        all.say("flags as 32 bits", set);
    }
    // The kernel refuses this on volumes with checksums, for all users.
    all.say(
        "set version",
        ioctl(&path, SETVERSION, &7_u64.to_ne_bytes()).map(drop),
    );
}

fn space(all: &mut Answers<'_>) {
    let file = all.new_file("space", &[1; 20_000]);
    file.write_all_at(&[2; 5000], 300_000).unwrap();
    let seek = |all: &mut Answers<'_>, file: &File| {
        for at in [0, 19_999, 20_480, 299_008, 304_999, 305_000, MIB] {
            let data = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at));
            let hole = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(at));
            all.say("seek", (at, data, hole));
        }
        let found = file.metadata().unwrap();
        all.say("size", (found.size(), found.blocks()));
    };
    let (default, keep) = (FallocateFlags::empty(), FallocateFlags::KEEP_SIZE);
    let (punch, zero) = (FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
    for (how, at, length) in [
        (keep, 100_000, 8192),
        (default, 305_000, 4096),
        (punch | keep, 3000, 9000),
        (zero, 10_000, 5000),
        (zero | keep, 308_000, 9000),
        (default, 400_000, 1),
        (punch, 0, 4096),
        (default, 0, 0),
        (default, 0, 1 << 62),
        (punch | keep, 1 << 40, 4096),
    ] {
        all.say(
            "fallocate",
            (
                how,
                at,
                length,
                rustix::fs::fallocate(&file, how, at, length),
            ),
        );
        file.sync_all().unwrap();
        seek(all, &file);
    }
    // Not before: of unwritten blocks the kernel reports those in its page cache as data.
    let sum = |sum: u64, &byte: &u8| sum.wrapping_mul(31).wrapping_add(byte.into());
    let content = fs::read(all.path("space")).unwrap();
    all.say("content", content.iter().fold(0, sum));
    let other = all.new_file("other", b"");
    let copy = |from: &File, mut at, to: &File, mut into, length| {
        rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut into), length)
    };
    all.say("copy", copy(&file, 298_000, &other, 10, 9000));
    all.say("copy of nothing", copy(&file, MIB, &other, 0, 9000));
    all.say("copy over itself", copy(&file, 0, &file, 100, 9000));
    all.say("copy within", copy(&file, 0, &file, 500_000, 9000));
    all.say("written too far", other.write_at(b"x", 1 << 44).is_err());
    all.say("extended too far", other.set_len(1 << 45).is_err());
    let copied = fs::read(all.path("other")).unwrap();
    all.say(
        "copied",
        (
            copied.len(),
            copied.iter().map(|&b| u64::from(b)).sum::<u64>(),
        ),
    );
}

fn names(all: &mut Answers<'_>) {
    let open = |flags: OFlags, mode| {
        rustix::fs::open(
            all.root,
            flags | OFlags::TMPFILE | OFlags::RDWR,
            Mode::from_raw_mode(mode),
        )
    };
    let (file, alone) = (
        open(OFlags::empty(), 0o640).unwrap(),
        open(OFlags::EXCL, 0o600).unwrap(),
    );
    let link = |file: &dyn AsRawFd, name: &str| {
        let this = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, this, CWD, all.path(name), AtFlags::SYMLINK_FOLLOW)
    };
    let linked = (
        link(&file, "named"),
        link(&file, "twice"),
        link(&alone, "never"),
    );
    all.say("nameless files", linked);
    all.mode("named");
    let births = StatxFlags::BTIME | StatxFlags::MTIME;
    let stat = rustix::fs::statx(CWD, all.path("named"), AtFlags::empty(), births).unwrap();
    let has = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    all.say(
        "birth",
        (
            has,
            stat.stx_btime.tv_sec > 0,
            stat.stx_btime.tv_sec <= stat.stx_mtime.tv_sec,
        ),
    );
    renames(all);
    for length in [255, 256] {
        all.say(
            "name",
            File::create(all.path(&"n".repeat(length)))
                .map(drop)
                .map_err(|e| e.kind()),
        );
    }
    for length in [59, 60, 1023, 4095] {
        let name = format!("link{length}");
        let made = symlink("s".repeat(length), all.path(&name)).map_err(|e| e.raw_os_error());
        let read = fs::read_link(all.path(&name)).map(|found| found.as_os_str().len());
        all.say("symlink", (length, made, read.map_err(|e| e.kind())));
    }
    fs::create_dir_all(all.path("dir/sub")).unwrap();
    all.shell("mv dir dir/sub/x; rmdir dir; unlink dir; ln dir hard; mkdir dir; mkdir trail/; ls -d trail");
    all.shell("touch -d @-2147483648.25 named; stat -c %.9Y named; touch -d @15032385535 named; stat -c %Y named");
    all.shell("touch -d @99999999999 named; stat -c %Y named; touch -d @-9999999999 named; stat -c %Y named");
}

fn renames(all: &mut Answers<'_>) {
    for name in ["one", "two"] {
        fs::write(all.path(name), name).unwrap();
    }
    let (no, swap, white) = (
        RenameFlags::NOREPLACE,
        RenameFlags::EXCHANGE,
        RenameFlags::WHITEOUT,
    );
    for (from, to, how) in [
        ("one", "two", no),
        ("one", "two", swap),
        ("one", "new", swap),
        ("one", "three", no),
        ("three", "four", white),
        ("two", "five", no | swap),
    ] {
        let done = rustix::fs::renameat_with(CWD, all.path(from), CWD, all.path(to), how);
        all.say("rename", (from, to, how, done));
    }
    all.shell("cat two four; stat -c \"%n %F %t %T\" one three four five");
}

fn attributes(all: &mut Answers<'_>) {
    drop(all.new_file("file", b"x"));
    let path = all.path("file");
    let set =
        |name: &str, length: usize, how| rustix::fs::setxattr(&path, name, &vec![7; length], how);
    let (any, new, old) = (XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE);
    for (name, length, how) in [
        ("user.small", 10, any),
        ("user.small", 10, new),
        ("user.none", 10, old),
        ("user.large", 3000, any),
        ("user.larger", 3000, any),
        ("user.huge", 70_000, any),
        ("trusted.x", 1, any),
        ("security.x", 1, any),
        ("nonsense.x", 1, any),
        ("user.", 1, any),
        (&format!("user.{}", "n".repeat(250)), 1, any),
        (&format!("user.{}", "n".repeat(251)), 1, any),
    ] {
        all.say("setxattr", (name, length, how, set(name, length, how)));
    }
    all.shell("getfattr -d -m - -e hex file | cut -c1-60; setfattr -x user.small file; setfattr -x user.none file");
    all.shell("ln -s file to; setfattr -h -n user.a -v 1 to; setfattr -h -n trusted.a -v 1 to; getfattr -hd -m - to");

    // Access control lists: permissions, the mask of chmod, and what new files inherit.
    all.shell(
        "chmod 640 file && setfacl -m u:65534:rw file && getfacl -cn file && stat -c %A file",
    );
    all.unprivileged_shell("cat file && echo y >> file");
    all.shell("chmod 600 file && getfacl -cn file");
    all.unprivileged_shell("cat file");
    all.shell("mkdir acl && setfacl -d -m u:65534:rwx,g::r,o::- acl && umask 077 && touch acl/f && mkdir acl/d");
    all.shell("cd acl && mkfifo -m 604 p && ln -s f l && getfacl -cn f d p && setfacl -b d && getfacl -cn d");
    all.shell("setfacl -m u:1:rwx,m::r file && setfacl -x u:1 file && getfacl -cn file && setfacl -b file && getfattr -m - file");
    all.unprivileged_shell("setfacl -m u:1:r file");
}

fn rights(all: &mut Answers<'_>) {
    let programs = ["write", "cut", "longer", "owner", "fallocate"];
    for name in programs {
        fs::write(all.path(name), [b'x'; 9000]).unwrap();
        fs::set_permissions(all.path(name), Permissions::from_mode(0o6777)).unwrap();
        let capability =
            "setfattr -n security.capability -v 0x0000000200200000000000000000000000000000";
        all.shell(&format!("{capability} {name}"));
    }
    all.unprivileged_shell(
        "echo y >> write; : > cut; truncate -s 20000 longer; fallocate -o 0 -l 30000 fallocate",
    );
    chown(all.path("owner"), Some(0), Some(0)).unwrap();
    for name in programs {
        all.mode(name);
    }
    all.shell("getfattr -m security write cut longer owner fallocate");
    // Set-group-ID directories, and the sticky bit.
    all.shell("mkdir sgid && chown 0:1234 sgid && chmod 2777 sgid && touch sgid/f && mkdir sgid/d");
    for name in ["sgid/f", "sgid/d"] {
        all.mode(name);
    }
    all.unprivileged_shell("touch sgid/own && chmod 2755 sgid/own && stat -c %a:%u:%g sgid/own");
    all.shell("mkdir sticky && chmod 1777 sticky && touch sticky/roots");
    all.unprivileged_shell("rm -f sticky/roots; mv sticky/roots sticky/own; chmod 777 sticky/roots; touch -d @1 sticky/roots");
    all.unprivileged_shell(
        "mkdir sub; mknod node c 1 3; ln write hard; chown 65534 write; touch new",
    );
}

/// The last calls of a mount: they shut the volume down.
fn end(all: &mut Answers<'_>) {
    let mut kept = all.new_file("kept", b"kept");
    kept.sync_all().unwrap();
    all.say(
        "unknown shutdown",
        ioctl(all.root, GOINGDOWN, &9_u32.to_ne_bytes()),
    );
    all.say(
        "shutdown",
        ioctl(all.root, GOINGDOWN, &0_u32.to_ne_bytes()).map(drop),
    );
    let number = |error: std::io::Error| error.raw_os_error();
    all.say(
        "write",
        kept.write(b"more")
            .and_then(|_| kept.sync_all())
            .map_err(number),
    );
    all.say(
        "create",
        File::create(all.path("late")).map(drop).map_err(number),
    );
    all.say("sync", kept.sync_all().map_err(number));
}

/// All calls of one mount.
fn answers(root: &Path) -> Vec<String> {
    fs::set_permissions(root, Permissions::from_mode(0o777)).unwrap();
    let mut all = Answers {
        root,
        output: Vec::new(),
    };
    for part in [flags, space, names, attributes, rights, end] {
        part(&mut all);
    }
    all.output
}

#[track_caller]
fn compare(kernel: &[String], ours: &[String], what: &str) {
    let others: Vec<_> = kernel
        .iter()
        .zip(ours)
        .filter(|(kernel, ours)| kernel != ours)
        .collect();
    assert!(
        others.is_empty(),
        "{what}: the kernel's and ours: {others:#?}"
    );
    assert_eq!(kernel.len(), ours.len(), "{what}");
}

/// Unmounts a volume that was shut down; the unmount succeeds.
#[track_caller]
fn leave(mount: SteadMount) {
    steadfs_when_idle(&["umount".as_ref(), mount.root().as_os_str()]).expect(0);
    let (_, output) = mount.wait_with_log();
    assert!(!output.contains("panicked"), "{output}");
}

/// What was synced before the shutdown is there, and the volume is clean.
#[track_caller]
fn check_kept(scratch: &Scratch, image: &Image) {
    let mount = SteadMount::new(scratch, image.path(), "");
    assert_eq!(fs::read(mount.join("kept")).unwrap(), b"kept");
    mount.unmount();
    image.check_clean();
}

#[test]
fn calls_return_what_the_kernels_ext4_returns() {
    let scratch = Scratch::new();
    let open = Permissions::from_mode(0o755);
    fs::set_permissions(scratch.path(), open).unwrap();
    let image = |name| Image::mke2fs(&scratch, name, 64 * MIB, &["-t", "ext4", "-b", "4096"]);

    let kernels = image("kernel.img");
    let mount = KernelMount::new(&scratch, kernels.path(), "");
    let kernel = answers(mount.root());
    mount.unmount();
    assert!(kernel.len() > 180, "{kernel:#?}");

    for options in ["fuse_transport=uring", "fuse_transport=dev"] {
        let ours = image("ours.img");
        let mount = SteadMount::new(&scratch, ours.path(), options);
        compare(&kernel, &answers(mount.root()), options);
        leave(mount);
        check_kept(&scratch, &ours);
    }
    let ours = image("device.img");
    let device = LoopDevice::attach(ours.path(), true);
    let mount = SteadMount::new(&scratch, device.path(), "");
    compare(&kernel, &answers(mount.root()), "a block device");
    leave(mount);
    drop(device);
    check_kept(&scratch, &ours);
}
