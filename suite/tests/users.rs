//! Mounts of unprivileged users: through fusermount3, on their own images.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "users/offline.rs"]
mod offline;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use steadfs_suite::command::{PATIENCE, finish, until};
use steadfs_suite::scratch::mounts_below;
use steadfs_suite::stead::program;
use steadfs_suite::{Image, Outcome, Scratch, SteadMount, judge, steadfs, succeed};

/// Debian's unprivileged user and group.
const NOBODY: u32 = 65_534;

/// An unprivileged user, with a folder, a program, an image and a mount point.
struct User {
    id: u32,
    scratch: Scratch,
    home: PathBuf,
    program: PathBuf,
}

impl User {
    fn new() -> Self {
        Self::of(NOBODY)
    }

    fn of(id: u32) -> Self {
        let scratch = Scratch::new();
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(scratch.path(), open).unwrap();
        // The mode that udev sets; without udev the device may be accessible to root only.
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
        // The built program may be in a folder that only root can access. cp(1) copies it: a program that this process
        // has open for writing may be held by another test's child when it is to be executed.
        let own = scratch.join("steadfs");
        succeed("cp", [program(), &own]);
        let home = scratch.folder("home");
        chown(&home, Some(id), Some(id)).unwrap();
        let user = Self {
            id,
            scratch,
            home,
            program: own,
        };
        user.steadfs([
            "format",
            "-q",
            "-E",
            &format!("root_owner={id}:{id}"),
            "a.img",
            "64M",
        ])
        .expect(0);
        user.run("mkdir".as_ref(), ["mnt"]).expect(0);
        user
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.uid(self.id).gid(self.id).current_dir(&self.home);
        command
    }

    #[track_caller]
    fn run<S: AsRef<OsStr>>(&self, program: &Path, args: impl IntoIterator<Item = S>) -> Outcome {
        let mut command = self.command(program);
        command.args(args);
        finish(command, PATIENCE)
    }

    #[track_caller]
    fn steadfs<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Outcome {
        self.run(&self.program, args)
    }

    #[track_caller]
    fn refused(&self, options: &str, mountpoint: &str, code: i32, words: &str) {
        let output = self.steadfs(["mount", "-o", options, "a.img", mountpoint]);
        assert_eq!(output.code(), code, "{}", output.err);
        assert!(
            output.err.contains(words),
            "{:?} has no {words:?}",
            output.err
        );
        assert_eq!(output.err.lines().count(), 1, "{}", output.err);
        assert!(self.mounts().is_empty());
    }

    fn image(&self) -> Image {
        Image::at(self.home.join("a.img"))
    }

    fn mounts(&self) -> Vec<PathBuf> {
        mounts_below(self.scratch.path())
    }

    /// Waits until the image is unlocked: fusermount3 does not wait for the server.
    #[track_caller]
    fn wait_closed(&self) {
        let file = fs::File::open(self.home.join("a.img")).unwrap();
        let end = Instant::now() + PATIENCE;
        while file.try_lock_shared().is_err() {
            assert!(Instant::now() < end, "the server does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn users_mount_their_images() {
    let user = User::new();
    for transport in ["uring", "dev"] {
        let options = format!("fuse_transport={transport}");
        user.steadfs(["mount", "-o", &options, "a.img", "mnt"])
            .expect(0);
        let name = format!("mnt/{transport}");
        let copied = user.run("cp".as_ref(), ["steadfs-is-not-here", &name]);
        assert_ne!(copied.code(), 0);
        user.run("cp".as_ref(), ["/etc/passwd", &name]).expect(0);
        user.steadfs(["sync", "mnt"]).expect(0);
        let table = fs::read_to_string("/proc/mounts").unwrap();
        let line = table
            .lines()
            .find(|line| line.contains("home/mnt "))
            .unwrap();
        for word in ["nosuid", "nodev", "user_id=65534", "fuse.steadfs"] {
            assert!(line.contains(word), "{line}");
        }
        // Other users have no access, not even root: the kernel sends no requests of other users to an unprivileged
        // server.
        assert!(fs::read_dir(user.home.join("mnt")).is_err());
        user.steadfs(["umount", "mnt"]).expect(0);
        assert!(user.mounts().is_empty());
        user.image().check_clean();
        assert!(!user.image().needs_recovery());
        let output = user.steadfs(["cat", &format!("a.img:/{transport}")]);
        assert!(output.expect(0).out.contains("root:"));
    }
    let owner = fs::metadata(user.home.join("a.img")).unwrap().uid();
    assert_eq!(owner, NOBODY);
}

/// What root could do on the volume, and a user's script does with `fakeroot`.
const AS_ROOT: &str = r#"
set -e
test "$(cat mnt/secret/x)" = hidden
echo more >>mnt/secret/x
mkdir mnt/new
cp /bin/true mnt/new/true
mnt/new/true
chown 5:6 mnt/new/true
chmod 4711 mnt/new/true
mv mnt/secret/x mnt/new/x
ln mnt/new/x mnt/hard
mkfifo mnt/fifo
setfattr -n user.a -v 1 mnt/new/x
touch -d @86400 mnt/new/x
rm mnt/sticky/file
rm -r mnt/secret
! mknod mnt/null c 1 3 2>&-
stat -c '%u:%g %a %n' mnt/new mnt/new/* mnt/hard mnt/fifo
"#;

#[test]
fn fakeroot_lets_users_act_as_root_on_their_images() {
    let user = User::new();
    let tree = user.scratch.folder("tree");
    fs::create_dir(tree.join("secret")).unwrap();
    fs::write(tree.join("secret/x"), "hidden\n").unwrap();
    fs::create_dir(tree.join("sticky")).unwrap();
    fs::write(tree.join("sticky/file"), "").unwrap();
    for (name, mode) in [("secret/x", 0o600), ("secret", 0o700), ("sticky", 0o1777)] {
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let others = "option fakeroot: others must not enter";
    user.refused("fakeroot,allow_other", "mnt", 1, others);
    user.refused("fakeroot=me", "mnt", 1, "needs numbers, as in 1000:100");
    for (kind, owner) in [("ext4", "0:0"), ("f2fs", "7:8")] {
        let image = user.home.join("root.img");
        let image = image.to_str().unwrap();
        let tree = tree.to_str().unwrap();
        steadfs_suite::steadfs(["format", "-q", "-f", "-t", kind, "-d", tree, image, "64M"])
            .expect(0);
        chown(image, Some(NOBODY), Some(NOBODY)).unwrap();
        // Without it the volume's permissions hold.
        user.steadfs(["mount", image, "mnt"]).expect(0);
        let plain = user.run("cat".as_ref(), ["mnt/secret/x"]);
        assert!(plain.err.contains("Permission denied"), "{}", plain.err);
        user.steadfs(["umount", "mnt"]).expect(0);
        let option = match owner {
            "0:0" => "fakeroot".to_owned(),
            owner => format!("fakeroot={owner}"),
        };
        user.steadfs(["mount", "-o", &format!("{option},suid,dev"), image, "mnt"])
            .expect(0);
        let options = user
            .run("cat".as_ref(), ["mnt/.steadfs/options"])
            .expect(0)
            .out;
        assert!(options.contains(&option), "{options}");
        let table = fs::read_to_string("/proc/mounts").unwrap();
        let line = table
            .lines()
            .find(|line| line.contains("home/mnt "))
            .unwrap();
        assert!(line.contains("nosuid,nodev"), "{line}");
        assert!(!line.contains("allow_other"), "{line}");
        assert!(fs::read_dir(user.home.join("mnt")).is_err());
        let seen = user.run("sh".as_ref(), ["-c", AS_ROOT]).expect(0).out;
        let expected = format!(
            "{owner} 755 mnt/new\n5:6 4711 mnt/new/true\n0:0 600 mnt/new/x\n0:0 600 mnt/hard\n{owner} 644 mnt/fifo\n"
        );
        assert_eq!(seen, expected, "{kind}");
        let refused = user.steadfs(["remount", "-o", "suid", "mnt"]);
        assert!(refused.err.contains("fakeroot implies"), "{}", refused.err);
        user.steadfs(["umount", "mnt"]).expect(0);
        assert_eq!(user.steadfs(["check", image]).code(), 0);
        let cat = user.steadfs(["cat", &format!("{image}:/new/x")]).expect(0);
        assert_eq!(cat.out, "hidden\nmore\n");
    }
}

/// A mount by root with `fakeroot` is root's alone.
#[test]
fn fakeroot_keeps_other_users_out() {
    let user = User::new();
    let (image, mountpoint) = (user.home.join("a.img"), user.home.join("mnt"));
    let (image, mountpoint) = (image.to_str().unwrap(), mountpoint.to_str().unwrap());
    steadfs_suite::steadfs(["mount", "-o", "fakeroot", image, mountpoint]).expect(0);
    let outside = user.run("ls".as_ref(), ["mnt"]);
    assert!(outside.err.contains("Permission denied"), "{}", outside.err);
    fs::write(user.home.join("mnt/of-root"), "").unwrap();
    steadfs_suite::steadfs(["umount", mountpoint]).expect(0);
}

#[test]
fn fusermount3_unmounts_too() {
    let user = User::new();
    user.steadfs(["mount", "a.img", "mnt"]).expect(0);
    user.run("touch".as_ref(), ["mnt/file"]).expect(0);
    user.run(&judge("fusermount3"), ["-u", "mnt"]).expect(0);
    user.wait_closed();
    user.image().check_clean();
    assert!(!user.image().needs_recovery());
    user.steadfs(["stat", "a.img:/file"]).expect(0);
}

/// Root has no access to such a mount, and its commands report the reason all the same.
#[test]
fn root_unmounts_for_a_user() {
    let user = User::new();
    user.steadfs(["mount", "a.img", "mnt"]).expect(0);
    user.run("touch".as_ref(), ["mnt/file"]).expect(0);
    let umount = |name: &str| {
        let place = user.home.join(name);
        steadfs_suite::steadfs(["umount".as_ref(), place.as_os_str()])
    };
    umount("mnt").expect(0);
    user.image().check_clean();
    assert!(!user.image().needs_recovery());
    user.steadfs(["stat", "a.img:/file"]).expect(0);
    // The host folder is too small for the image.
    let host = user.scratch.folder("host");
    let how = ["-t", "tmpfs", "-o", "size=14M", "none"].map(OsStr::new);
    succeed("mount", how.into_iter().chain([host.as_os_str()]));
    let image = host.join("b.img");
    let image = image.to_str().unwrap();
    let owned = format!("root_owner={NOBODY}:{NOBODY}");
    steadfs_suite::steadfs(["format", "-q", "-E", &owned, image, "64M"]).expect(0);
    chown(image, Some(NOBODY), Some(NOBODY)).unwrap();
    user.steadfs(["mount", "-o", "errors=continue", image, "mnt"])
        .expect(0);
    let write = "head -c 18000000 /dev/urandom >mnt/file";
    user.run("sh".as_ref(), ["-c", write]).expect(0);
    let output = umount("mnt");
    assert_eq!(output.code(), 32, "{}", output.err);
    assert!(output.err.contains("No space left"), "{}", output.err);
}

#[test]
fn users_cannot_exceed_their_permissions() {
    let user = User::new();
    let allowed = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if allowed
        .lines()
        .all(|line| line.trim() != "user_allow_other")
    {
        user.refused(
            "allow_other",
            "mnt",
            1,
            "'user_allow_other' is set in /etc/fuse.conf",
        );
    }
    user.refused("", "/etc", 1, "no write access to mountpoint /etc");
    // An image of another user.
    let image = Image::mke2fs(&user.scratch, "roots.img", 8 << 20, &[]);
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(image.path(), private).unwrap();
    let path = image.path().to_str().unwrap();
    let output = user.steadfs(["mount", path, "mnt"]);
    assert_eq!(output.code(), 1, "{}", output.err);
    assert!(output.err.contains("Permission denied"), "{}", output.err);
    let readable = fs::Permissions::from_mode(0o644);
    fs::set_permissions(image.path(), readable).unwrap();
    let output = user.steadfs(["mount", path, "mnt"]);
    assert_eq!(output.code(), 1, "{}", output.err);
    assert!(output.err.contains("-o ro mounts it"), "{}", output.err);
    user.steadfs(["mount", "-o", "ro", path, "mnt"]).expect(0);
    user.steadfs(["umount", "mnt"]).expect(0);
    // An image, or a mount point, in a folder without access.
    let closed = user.scratch.folder("closed");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let inside = closed.join("any");
    let inside = inside.to_str().unwrap();
    for words in [["mount", inside, "mnt"], ["mount", "a.img", inside]] {
        let output = user.steadfs(words);
        assert_eq!(output.code(), 1, "{}", output.err);
        let why = format!("{inside}: Permission denied");
        assert!(output.err.contains(&why), "{}", output.err);
    }
    // A mount of another user.
    let roots = user.scratch.folder("roots");
    let other = steadfs_suite::steadfs(["mount".as_ref(), image.path(), &roots]);
    other.expect(0);
    let output = user.steadfs(["umount".as_ref(), roots.as_os_str()]);
    assert_eq!(output.code(), 1, "{}", output.err);
    assert!(
        output
            .err
            .ends_with("only the user that mounted it, or root, may do that\n"),
        "{}",
        output.err
    );
    assert_eq!(user.mounts(), [roots.as_path()]);
    steadfs_suite::steadfs(["umount".as_ref(), roots.as_os_str()]).expect(0);
}

/// With any limit of threads, a mount works or is refused with the reason, and leaves nothing behind.
#[test]
fn a_limit_of_threads_is_reported_or_met() {
    // Debian's user lp: the limit counts all processes of a user, and other tests run processes as uid 65534.
    let user = User::of(7);
    let mut outcomes = [0, 0];
    for threads in (2..60).step_by(6).chain([100, 200]) {
        let limit = format!("--nproc={threads}");
        let program = user.program.as_os_str();
        let words = [
            limit.as_ref(),
            program,
            "mount".as_ref(),
            "a.img".as_ref(),
            "mnt".as_ref(),
        ];
        let output = user.run("prlimit".as_ref(), words);
        assert!(
            !output.err.contains("panicked"),
            "{threads}: {}",
            output.err
        );
        if output.code() == 0 {
            user.run("cp".as_ref(), ["/etc/passwd", "mnt"]).expect(0);
            user.steadfs(["umount", "mnt"]).expect(0);
            outcomes[0] += 1;
        } else {
            assert!(
                output.err.contains("Resource temporarily unavailable"),
                "{}",
                output.err
            );
            outcomes[1] += 1;
        }
        assert!(user.mounts().is_empty(), "{threads}");
    }
    assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
    user.image().check_clean();
}

#[test]
fn a_missing_fusermount3_is_reported_with_the_remedy() {
    let user = User::new();
    let mut mount = user.command(&user.program);
    mount
        .env("PATH", "/nowhere")
        .args(["mount", "a.img", "mnt"]);
    let output = finish(mount, PATIENCE);
    assert_eq!(output.code(), 2, "{}", output.err);
    for word in ["fusermount3 is not installed", "package fuse3", "as root"] {
        assert!(output.err.contains(word), "{}", output.err);
    }
    // The volume had been opened, and is closed again.
    user.image().check_clean();
    assert!(!user.image().needs_recovery());
}

/// A copy with another owner than the original does not keep its set-ID bits.
#[test]
fn a_copy_with_another_owner_loses_its_set_id_bits() {
    let user = User::new();
    let source = user.home.join("source");
    fs::create_dir(&source).unwrap();
    let make = |name: &str, owner: u32| {
        let path = source.join(name);
        fs::write(&path, "x").unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    };
    make("others", 1234);
    make("own", user.id);
    fs::set_permissions(&source, fs::Permissions::from_mode(0o2755)).unwrap();
    let perm = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;

    // Out of a volume, by root with owners preserved, and by a user without.
    let image = user.home.join("a.img");
    let inside = format!("{}:/source", image.display());
    steadfs([
        "cp".as_ref(),
        "-r".as_ref(),
        source.as_os_str(),
        inside.as_ref(),
    ])
    .expect(0);
    let by_root = user.scratch.join("by-root");
    steadfs([
        "cp".as_ref(),
        "-r".as_ref(),
        inside.as_ref(),
        by_root.as_os_str(),
    ])
    .expect(0);
    user.steadfs(["cp", "-r", "a.img:/source", "by-user"])
        .expect(0);
    user.steadfs(["extract", "a.img:/source", "extracted"])
        .expect(0);
    let copies = [
        (by_root, 0o6755),
        (user.home.join("by-user"), 0o755),
        (user.home.join("extracted"), 0o755),
    ];
    for (copy, others) in copies {
        assert_eq!(perm(&copy.join("others")), others, "{copy:?}");
        assert_eq!(perm(&copy.join("own")), 0o6755, "{copy:?}");
        assert_eq!(perm(&copy), 0o2755, "{copy:?}");
    }
    // Into a volume owners are preserved for every caller.
    user.steadfs(["cp", "-r", "source", "a.img:/again"])
        .expect(0);
    let shown = user.steadfs(["ls", "-l", "a.img:/again"]).expect(0).out;
    assert_eq!(shown.matches("-rwsr-sr-x").count(), 2, "{shown}");
    assert!(shown.contains(" 1234 "), "{shown}");
}

/// Only root makes device nodes. A user's copy continues without them, for any number of links.
#[test]
fn a_device_node_with_two_links_does_not_end_a_users_copy() {
    let user = User::new();
    let source = user.scratch.folder("devices");
    succeed(
        "mknod",
        [
            source.join("a").as_os_str(),
            "c".as_ref(),
            "1".as_ref(),
            "3".as_ref(),
        ],
    );
    fs::hard_link(source.join("a"), source.join("b")).unwrap();
    fs::write(source.join("c"), "content").unwrap();
    let inside = format!("{}:/", user.home.join("a.img").display());
    steadfs([
        "cp".as_ref(),
        "-r".as_ref(),
        source.as_os_str(),
        inside.as_ref(),
    ])
    .expect(0);
    let output = user.steadfs(["extract", "a.img:/devices", "out"]).expect(1);
    assert_eq!(
        output.err.matches("only root can").count(),
        2,
        "{}",
        output.err
    );
    assert_eq!(fs::read(user.home.join("out/c")).unwrap(), b"content");
}

/// If a volume extends beyond the file-size limit, the first write there would kill the server.
#[test]
fn a_file_size_limit_is_reported_before_it_kills_the_server() {
    let user = User::new();
    let limited = |words: &[&str]| {
        let program = [user.program.to_str().unwrap()];
        user.run(
            &judge("prlimit"),
            ["--fsize=20000000", "--"]
                .iter()
                .chain(&program)
                .chain(words),
        )
    };
    let output = limited(&["mount", "a.img", "mnt"]);
    assert_eq!(output.code(), 32, "{}", output.err);
    assert!(output.err.contains("ulimit -f"), "{}", output.err);
    assert!(user.mounts().is_empty());
    // A command that only reads, and a volume that fits.
    limited(&["ls", "a.img:/"]).expect(0);
    limited(&["format", "-q", "small.img", "16M"]).expect(0);
    let output = limited(&["format", "-q", "large.img", "64M"]).expect(1);
    assert!(output.err.contains("ulimit -f"), "{}", output.err);
    assert!(!user.home.join("large.img").exists());
}

/// A container's root has uid 0, but does not administer the host: it may not do what Linux requires CAP_SYS_ADMIN for.
#[test]
fn root_without_capabilities_does_not_administer_a_mount() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "a.img", 64 << 20, &["-t", "ext4"]);
    let mount = SteadMount::new(&scratch, image.path(), "");
    let root = mount.root().to_str().unwrap();
    let by = |way: &[&str], words: &[&str]| {
        let mut command = Command::new(judge(way[0]));
        command.args(&way[1..]).args(words);
        finish(command, PATIENCE)
    };
    let tuned = format!("{root}/.steadfs/options");
    let write = format!("echo commit=9 > {tuned}");
    let program = program().to_str().unwrap();
    let commands: [&[&str]; 4] = [
        &["fstrim", root],
        &["sh", "-c", &write],
        &[program, "tune", root, "scheduler=cfq"],
        &[program, "remount", "-o", "commit=9", root],
    ];
    let without: [&[&str]; 2] = [
        &["setpriv", "--bounding-set=-all", "--inh-caps=-all"],
        &["unshare", "--user", "--map-root-user"],
    ];
    for way in without {
        for words in commands {
            let output = by(way, words);
            assert_ne!(output.code(), 0, "{way:?} {words:?}");
        }
        // It still has the rights of a file owner.
        let name = mount.join("file");
        by(way, &["touch", name.to_str().unwrap()]).expect(0);
    }
    let options = fs::read_to_string(&tuned).unwrap();
    assert!(!options.contains("commit=9"), "{options}");
    for words in commands {
        by(&["env"], words).expect(0);
    }
    mount.unmount();
    image.check_clean();
}

/// 200 copies of one user keep every slot of their class busy, on a device that would need two minutes for them.
/// Without slots of their own, root's look-ups waited for all of that time.
#[test]
fn copies_of_one_user_delay_neither_root_nor_a_kill() {
    const COPIES: usize = 200;
    /// On a machine of any load.
    const LONGEST: Duration = Duration::from_secs(10);
    for (transport, make) in [("dev", "ext4"), ("uring", "f2fs")] {
        let scratch = Scratch::new();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let image = match make {
            "f2fs" => steadfs_suite::f2fs::mkfs(&scratch, "a.img", 4 << 30, ""),
            _ => Image::mke2fs(&scratch, "a.img", 4 << 30, &["-t", make]),
        };
        let options = format!("fuse_transport={transport},device_model=30M:100:8,cache_size=32M");
        let mount = SteadMount::new(&scratch, image.path(), &options);
        let (dir, source) = (mount.join("dir"), mount.join("source"));
        fs::create_dir(&dir).unwrap();
        chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::write(&source, vec![7; 16 << 20]).unwrap();

        let copy = format!("for n in $(seq {COPIES}); do cp source dir/$n & done; wait");
        let mut copies = Command::new("sh");
        copies.args(["-c", &copy]).current_dir(mount.root());
        let mut copies = copies.uid(NOBODY).process_group(0).spawn().unwrap();
        until("all copies have begun", || {
            fs::read_dir(&dir).unwrap().count() == COPIES
        });
        for n in 0..20 {
            let began = Instant::now();
            let missing = fs::metadata(mount.join(&format!("missing {n}")));
            assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
            assert!(began.elapsed() < LONGEST, "{make}: {:?}", began.elapsed());
        }
        let began = Instant::now();
        let group = Pid::from_child(&copies);
        kill_process_group(group, Signal::KILL).unwrap();
        copies.wait().unwrap();
        until("all copies have ended", || {
            test_kill_process_group(group).is_err()
        });
        assert!(began.elapsed() < LONGEST, "{make}: {:?}", began.elapsed());
        mount.unmount();
    }
}
