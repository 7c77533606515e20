//! What `make install` installs: the program, its manual pages and completions, and the helpers through which mount(8),
//! umount(8) and fstab know the type.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use steadfs_suite::command::{finish, judge};
use steadfs_suite::scratch::IN_NAMESPACE;
use steadfs_suite::stead::program;
use steadfs_suite::{Image, Outcome, Scratch, run, steadfs};

/// Runs `make` for the program under test.
#[track_caller]
fn make(target: &str, variables: &[&str]) {
    let built = program().parent().unwrap();
    let mut command = Command::new("make");
    command
        .args(["--no-print-directory", target])
        .arg(format!("BUILT={}", built.display()))
        .args(variables)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    finish(command, Duration::from_secs(600)).expect(0);
}

/// All files below `root` except directories.
fn files(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path());
            } else {
                found.insert(entry.path().strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    found
}

/// The helpers of mount(8) lead to the program.
fn check_helpers(dest: &Path) {
    for role in [
        "mount.steadfs",
        "mount.fuse.steadfs",
        "mount.fuseblk.steadfs",
        "umount.fuse.steadfs",
        "umount.fuseblk.steadfs",
        "fsck.steadfs",
        "fsck.fuse.steadfs",
    ] {
        let target = fs::read_link(dest.join("sbin").join(role)).unwrap();
        assert_eq!(target, Path::new("/opt/stead/bin/steadfs"), "{role}");
    }
}

/// Every command has a page of the manual; all pages have the usual sections, and mandoc(1) finds nothing wrong.
fn check_pages(dest: &Path, found: &BTreeSet<PathBuf>) {
    let subcommands: Vec<String> = steadfs(["help"])
        .expect(0)
        .out
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .map_while(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|name| name != "help")
        .collect();
    assert!(subcommands.len() > 10, "{subcommands:?}");
    for name in &subcommands {
        let page = format!("opt/stead/share/man/man1/steadfs-{name}.1");
        assert!(
            found.contains(Path::new(&page)),
            "{page} is not in {found:#?}"
        );
    }
    let is_page = |name: &&PathBuf| name.starts_with("opt/stead/share/man");
    let mut pages: Vec<PathBuf> = found
        .iter()
        .filter(is_page)
        .map(|name| dest.join(name))
        .collect();
    assert!(pages.len() > subcommands.len() + 10, "{pages:?}");
    pages.retain(|page| !fs::read_to_string(page).unwrap().starts_with(".so "));
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for section in [
            "NAME",
            "SYNOPSIS",
            "EXAMPLES",
            "\"EXIT STATUS\"",
            "\"SEE ALSO\"",
        ] {
            let heading = format!("\n.SH {section}\n");
            let count = text.matches(&*heading).count();
            assert_eq!(count, 1, "{section} in {}", page.display());
        }
    }
    let words = ["-T", "lint", "-W", "warning"].map(std::ffi::OsStr::new);
    let checked = words
        .into_iter()
        .chain(pages.iter().map(|page| page.as_os_str()));
    let output = run(judge("mandoc").to_str().unwrap(), checked);
    assert_eq!((output.code(), &*output.out), (0, ""), "{}", output.err);
}

#[test]
fn everything_is_installed_and_uninstalled() {
    let scratch = Scratch::new();
    let dest = scratch.folder("dest");
    let variables = [&*format!("DESTDIR={}", dest.display()), "PREFIX=/opt/stead"];
    make("install", &variables);
    let found = files(&dest);
    let has = |name: &str| found.contains(Path::new(name));
    check_pages(&dest, &found);
    for name in [
        "opt/stead/bin/steadfs",
        "opt/stead/bin/steadfs-lab",
        "opt/stead/share/man/man1/steadfs-lab-crash.1",
        "opt/stead/share/man/man1/steadfs.1",
        "opt/stead/share/man/man8/mount.steadfs.8",
        "opt/stead/share/man/man8/fsck.steadfs.8",
        "opt/stead/share/bash-completion/completions/steadfs",
        "opt/stead/share/zsh/site-functions/_steadfs",
        "opt/stead/share/fish/vendor_completions.d/steadfs.fish",
        "opt/stead/lib/systemd/system/steadfs.socket",
        "opt/stead/share/steadfs/apparmor/steadfs-service",
        "opt/stead/share/steadfs/udisks2/mount_options.conf",
        "opt/stead/share/steadfs/systemd/mnt-disk.automount",
        "opt/stead/share/steadfs/systemd/mnt-disk.mount",
    ] {
        assert!(has(name), "{name} is not in {found:#?}");
    }
    check_helpers(&dest);
    let unit = dest.join("opt/stead/lib/systemd/system/steadfs@.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert!(unit.contains("\nExecStart=/opt/stead/bin/steadfs service\n"));
    let page = fs::read_to_string(dest.join("opt/stead/share/man/man1/steadfs-mount.1")).unwrap();
    for word in [
        ".TH STEADFS-MOUNT 1 ",
        "MOUNT OPTIONS",
        "cache_size",
        "FSTAB",
        "mount(8)",
    ] {
        assert!(page.contains(word), "{word} is not in the page");
    }
    let output = run(
        dest.join("opt/stead/bin/steadfs").to_str().unwrap(),
        ["--version"],
    );
    assert!(output.expect(0).out.starts_with("steadfs "));
    let lab = run(
        dest.join("opt/stead/bin/steadfs").to_str().unwrap(),
        ["lab", "--version"],
    );
    assert!(lab.expect(0).out.starts_with("steadfs-lab "));

    // The helpers of another prefix stay.
    make("uninstall", &[variables[0], "PREFIX=/opt/other"]);
    check_helpers(&dest);
    // A file from elsewhere stays.
    fs::write(dest.join("opt/stead/bin/other"), b"").unwrap();
    make("uninstall", &variables);
    let left = files(&dest);
    assert_eq!(left, BTreeSet::from([PathBuf::from("opt/stead/bin/other")]));
}

/// Runs the installer for a prefix and a folder for helpers.
fn install(prefix: &Path, helpers: &Path) -> Outcome {
    let built = program().parent().unwrap().to_str().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/install-program");
    let words = ["install", built, ""].map(std::ffi::OsStr::new);
    let folders = [prefix.as_os_str(), helpers.as_os_str()];
    run(script, words.into_iter().chain(folders))
}

#[test]
fn a_program_that_cannot_be_installed_whole_is_not_installed() {
    let scratch = Scratch::new();
    let prefix = scratch.folder("prefix");
    let file = prefix.join("share");
    fs::write(&file, b"").unwrap();
    let output = install(&prefix, &scratch.join("sbin"));
    assert_eq!(output.code(), 1);
    let why = format!(
        "nothing is installed:\n  {} is not a directory",
        file.display()
    );
    assert!(output.err.starts_with(&why), "{}", output.err);
    assert_eq!(files(&prefix), BTreeSet::from([PathBuf::from("share")]));
}

#[test]
fn a_user_installs_without_the_helpers_of_mount_8() {
    let scratch = Scratch::new();
    let (prefix, file) = (scratch.join("prefix"), scratch.join("file"));
    fs::write(&file, b"").unwrap();
    let output = install(&prefix, &file.join("sbin")).expect(0);
    let why = format!(
        "not installed: the helpers of mount(8) and fsck(8), as {} is not a directory",
        file.display()
    );
    assert!(output.out.contains(&why), "{}", output.out);
    let program = prefix.join("bin/steadfs");
    run(program.to_str().unwrap(), ["--version"]).expect(0);
}

/// apt locks with fcntl(2).
#[test]
fn packages_wait_for_another_apt() {
    let scratch = Scratch::new();
    let lists = scratch.folder("lists");
    scratch.folder("lists/partial");
    let lock = fs::File::create(lists.join("lock")).unwrap();
    rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut apt = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/apt"));
    apt.arg("-o")
        .arg(format!("Dir::State::Lists={}", lists.display()))
        .args(["-o", "Dir::Etc::SourceList=/dev/null"])
        .args(["-o", "Dir::Etc::SourceParts=/dev/null", "update", "-qq"]);
    let mut hurried = Command::new(apt.get_program());
    hurried.args(apt.get_args()).env("APT_WAIT", "0");
    let output = finish(hurried, Duration::from_secs(60));
    assert_ne!(output.code(), 0);
    assert!(output.err.contains("Could not get lock"), "{}", output.err);
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        drop(lock);
    });
    let output = finish(apt, Duration::from_secs(120)).expect(0);
    release.join().unwrap();
    assert!(
        output.err.contains("waiting for another apt"),
        "{}",
        output.err
    );
}

#[test]
fn shells_complete_commands_and_options() {
    let complete = |script: &str, words: &str| {
        let count = words.split(' ').count() - 1;
        let line = format!(
            "source '{script}'; COMP_WORDS=({words}); COMP_CWORD={count}; \
             _steadfs steadfs \"${{COMP_WORDS[$COMP_CWORD]}}\" \"${{COMP_WORDS[$COMP_CWORD-1]}}\"; \
             echo \"${{COMPREPLY[@]}}\""
        );
        run("bash", ["-c", &line]).expect(0).out
    };
    let scratch = Scratch::new();
    let bash = scratch.join("steadfs.bash");
    let output = steadfs(["completions", "bash"]).expect(0);
    fs::write(&bash, output.out).unwrap();
    let bash = bash.to_str().unwrap();
    assert_eq!(complete(bash, "steadfs mo"), "mount\n");
    assert_eq!(complete(bash, "steadfs inspect --j"), "--json\n");
    for (shell, word) in [("zsh", "#compdef steadfs"), ("fish", "complete -c steadfs")] {
        let output = steadfs(["completions", shell]).expect(0);
        assert!(output.out.contains(word), "{shell}: {}", output.out);
    }
    assert_eq!(steadfs(["completions", "abacus"]).code(), 2);
}

/// Types `lines` at a shell's terminal, and returns what it shows.
fn typed(scratch: &Scratch, shell: &str, lines: &[String]) -> String {
    let input = scratch.join("typed");
    fs::write(&input, lines.join("\n") + "\nexit\n").unwrap();
    let script = r#"cd "$1" && PATH="$1/bin:$PATH" exec script -qc "$2" /dev/null <typed"#;
    let dir = scratch.path().to_str().unwrap();
    let output = run("bash", ["-c", script, "bash", dir, shell]);
    assert_eq!(output.code(), 0, "{}{}", output.out, output.err);
    output.out
}

/// The keys are typed at a terminal, and the completed lines are carried out.
#[test]
fn shells_complete_values_and_paths_in_images() {
    let scratch = Scratch::new();
    symlink(program(), scratch.folder("bin").join("steadfs")).unwrap();
    scratch.folder("tree/etc/two words");
    fs::write(scratch.join("tree/etc/hostname"), "inside\n").unwrap();
    let image = scratch.join("disk.img");
    let words = ["format", "-q", "-d"].map(std::ffi::OsStr::new).into_iter();
    let tree = scratch.join("tree");
    steadfs(words.chain([tree.as_os_str(), image.as_os_str(), "16M".as_ref()])).expect(0);
    for shell in ["bash", "zsh", "fish"] {
        let script = steadfs(["completions", shell]).expect(0).out;
        fs::write(scratch.join(&format!("script.{shell}")), script).unwrap();
    }
    judge("script");
    for (shell, call, first) in [
        ("bash", "bash --norc --noprofile -i", "source script.bash"),
        (
            "zsh",
            "zsh -f -i",
            "autoload -U compinit; compinit -u -D; source ./script.zsh",
        ),
    ] {
        judge(shell);
        let made = format!("{shell}.img");
        let lines = [
            first.to_owned(),
            "steadfs cat disk.img:/et\thostn\t".to_owned(),
            "steadfs ls -d disk.img:/etc/two\t".to_owned(),
            format!("steadfs format -q -O casef\t {made} 16M"),
            "steadfs mount -o bogus,io_scheduler=fif\t disk.img bin".to_owned(),
        ];
        let shown = typed(&scratch, call, &lines);
        for wanted in ["inside\r\n", "/etc/two words", "option bogus: unknown"] {
            assert!(shown.contains(wanted), "{shell}: {wanted}: {shown}");
        }
        assert!(shown.contains("io_scheduler=fifo"), "{shell}: {shown}");
        let made = scratch.join(&made);
        let features = steadfs(["inspect".as_ref(), made.as_os_str()])
            .expect(0)
            .out;
        assert!(features.contains(" casefold "), "{shell}: {shown}");
    }
    let ask = |line: &str| {
        let script = r#"cd "$1" && PATH="$1/bin:$PATH" exec fish --no-config -c "source script.fish; complete -C '$2'""#;
        let dir = scratch.path().to_str().unwrap();
        run("bash", ["-c", script, "bash", dir, line]).expect(0).out
    };
    judge("fish");
    assert_eq!(ask("steadfs ls disk.img:/et"), "disk.img:/etc/\n");
    assert!(ask("steadfs mount -o ro,io_scheduler=fi").contains("ro,io_scheduler=fifo"));
    assert!(ask("steadfs lis").starts_with("list\t"));
}

/// In a mount namespace of its own, with the helpers in /sbin and lines in /etc/fstab. $1: folder with the helpers,
/// fstab, a.img, b.img (owned by uid 65534), c.img (f2fs), mnt, other, third, fourth, and own (a folder of uid 65534).
const WITH_HELPERS: &str = r#"
set -euo pipefail
cd "$1"
mount --make-rprivate /
trap 'umount -li "$1/mnt" "$1/own" "$1/other" "$1/third" "$1/fourth" 2>/dev/null || true; losetup -d "$dev" 2>/dev/null || true' EXIT
dev=
copy() { # a directory that can be changed without changing the machine
    mkdir -p "$1.was"; mount --bind "$2" "$1.was"
    mount -t tmpfs -o mode=755 none "$2"; cp -rs "$1.was/." "$2/"
}
sbin=$(readlink -f /sbin)
copy "$1/sbin" "$sbin"
cp -P "$1"/helpers/* "$sbin/"
copy "$1/etc" /etc
rm -f /etc/fstab
cp "$1/fstab" /etc/fstab
ln -sf /proc/self/mounts /etc/mtab # a relative link leads elsewhere from the copy
step() { echo "-- $*" >&2; }
clean() { e2fsck -fn "$1" >&2; ! dumpe2fs -h "$1" 2>/dev/null | grep -q needs_recovery; }
as_user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }

for type in steadfs fuse.steadfs; do
    step "by type $type"
    mount -t "$type" -o nofail,_netdev,comment=mine,x-systemd.automount,noexec a.img mnt
    grep " $1/mnt fuse.steadfs rw,.*noexec" /proc/mounts >&2
    touch "mnt/$type"
    umount mnt
    clean a.img
done

step "nofail"
if mount -t steadfs nothing.img mnt 2>output; then exit 1; else test $? = 32; fi
mount -t steadfs -o nofail nothing.img mnt
! mountpoint -q mnt

step "options are refused by name"
if mount -t steadfs -o noatme a.img mnt 2>output; then exit 1; else test $? = 1; fi
grep "did you mean noatime" output >&2

step "root by fstab, remounted, everything in it unmounted"
mount "$1/mnt"
grep " $1/mnt fuse.steadfs rw,noexec" /proc/mounts >&2
mount -o remount,commit=9,cache_size=9M mnt 2>output
grep "cache_size=9M stays as it was" output >&2
grep noatime,.*commit=9 mnt/.steadfs/options >&2
grep " $1/mnt fuse.steadfs rw,noexec,noatime" /proc/mounts >&2
mount -o remount,exec,nosuid,relatime,commit=7 mnt
grep relatime,.*commit=7 mnt/.steadfs/options >&2
grep " $1/mnt fuse.steadfs rw,nosuid,relatime" /proc/mounts >&2
umount mnt
step "remounted without a line in fstab"
mount -t steadfs -o noexec a.img other
mount -o remount,commit=9 other
grep commit=9 other/.steadfs/options >&2
grep " $1/other fuse.steadfs rw,noexec" /proc/mounts >&2
mount -o remount,exec other
grep " $1/other fuse.steadfs rw,relatime" /proc/mounts >&2
mount -o remount,ro other
grep " $1/other fuse.steadfs ro,relatime" /proc/mounts >&2
if touch other/new 2>/dev/null; then exit 1; fi
mount -o remount,rw other
grep " $1/other fuse.steadfs rw,relatime" /proc/mounts >&2
touch other/new
umount other
! mountpoint -q mnt
clean a.img

step "all of fstab, shown and unmounted by util-linux"
mount -a
mount -a
if mountpoint -q mnt; then exit 1; fi
test "$(findmnt -no SOURCE,FSTYPE fourth | xargs)" = "$1/c.img fuse.steadfs"
findmnt -no OPTIONS fourth | grep ^ro, >&2
test "$(findmnt -no TARGET --source "$1/c.img")" = "$1/fourth"
test "$(findmnt -nt fuse.steadfs | wc -l)" = 1
umount -a -t fuse.steadfs
! mountpoint -q fourth
dev=$(losetup -f --show a.img)
mount -t steadfs "$dev" mnt
test "$(lsblk -nro MOUNTPOINTS "$dev")" = "$1/mnt"
test "$(findmnt -no FSTYPE "$dev")" = fuseblk.steadfs
umount "$dev"
losetup -d "$dev"
mount -t steadfs -o loop a.img mnt
umount mnt
test "$(losetup -j a.img)" = ""

step "mount.fuse(8) without a helper of ours"
ln -s "$1/usr/bin/steadfs" "$sbin/steadfs"
mount -t fuse "steadfs#$1/a.img" -o noatime mnt
grep "$1/a.img $1/mnt fuse.steadfs rw,noatime" /proc/mounts >&2
umount mnt
rm "$sbin/mount.fuse.steadfs"
mount -t fuse.steadfs -o ro a.img mnt
grep "$1/a.img $1/mnt fuse.steadfs ro," /proc/mounts >&2
umount mnt
cp -P "$1/helpers/mount.fuse.steadfs" "$sbin/"
rm "$sbin/steadfs"

step "fsck by fstab"
fsck -A -a -t steadfs >output 2>&1
grep "a.img: clean, [0-9]*/[0-9]* files" output >&2
fsck -a "$1/own" 2>&1 | grep "b.img: clean" >&2
debugfs -w -R "ssv state 2" a.img 2>/dev/null
debugfs -w -R "sif / links_count 9" a.img 2>/dev/null
if fsck -A -a -t steadfs >output 2>&1; then exit 1; else test $? = 4; fi
grep "a.img: the errors are not repaired.*e2fsck -f" output >&2
e2fsck -fy a.img >&2 || test $? = 1

step "the mechanisms' options, on a block device, an image and a line of fstab"
dev=$(losetup -f --show a.img)
mount -t steadfs -o async_checkpoint=30 "$dev" mnt
grep async_checkpoint=30 mnt/.steadfs/options >&2
mount -o remount,noasync_checkpoint mnt
grep noasync_checkpoint mnt/.steadfs/options >&2
if mount -o remount,async_checkpoint=100 mnt 2>output; then exit 1; fi
grep "from 1 to 99" output >&2
grep noasync_checkpoint mnt/.steadfs/options >&2
umount mnt
losetup -d "$dev"
clean a.img
mount "$1/third"
grep async_checkpoint=40 third/.steadfs/options >&2
grep io_scheduler=cfq third/.steadfs/options >&2
mount -o remount,noasync_checkpoint,io_scheduler=fair "$1/third"
grep noasync_checkpoint third/.steadfs/options >&2
if grep io_scheduler third/.steadfs/options >&2; then exit 1; fi
umount third
mount -t steadfs -o nocheckpoint_merge c.img other
grep ,nocheckpoint_merge other/.steadfs/options >&2
mount -o remount,checkpoint_merge other
grep ,checkpoint_merge other/.steadfs/options >&2
umount other

step "a user by fstab"
if as_user mount "$1/mnt" 2>/dev/null; then exit 1; fi
as_user mount "$1/own"
grep " $1/own fuse.steadfs rw,nosuid,nodev,noexec.*user_id=65534" /proc/mounts >&2
as_user touch own/file
as_user umount "$1/own"
! mountpoint -q own
clean b.img
"#;

#[test]
fn mount_8_and_fstab_mount_the_type() {
    let scratch = Scratch::new();
    let dir = scratch.path().to_owned();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
    let prefix = format!("PREFIX={}/usr", dir.display());
    let helpers = format!("HELPERDIR={}/helpers", dir.display());
    make("install", &[&prefix, &helpers]);
    Image::mke2fs(&scratch, "a.img", 16 << 20, &["-t", "ext4"]);
    let own = Image::mke2fs(
        &scratch,
        "b.img",
        16 << 20,
        &["-t", "ext4", "-E", "root_owner=65534:65534"],
    );
    chown(own.path(), Some(65_534), Some(65_534)).unwrap();
    scratch.folder("mnt");
    scratch.folder("other");
    scratch.folder("third");
    scratch.folder("fourth");
    let c = scratch.join("c.img");
    let words = ["format", "-q", "-t", "f2fs"].map(std::ffi::OsStr::new);
    steadfs(words.into_iter().chain([c.as_os_str(), "128M".as_ref()])).expect(0);
    chown(scratch.folder("own"), Some(65_534), Some(65_534)).unwrap();
    let dir = dir.to_str().unwrap();
    let lines = format!(
        "{dir}/a.img {dir}/mnt steadfs noexec,noatime,noauto,nofail,x-systemd.idle-timeout=60 0 0\n\
         {dir}/b.img {dir}/own fuse.steadfs noauto,user,noatime 0 2\n\
         {dir}/a.img {dir}/third steadfs noauto,async_checkpoint=40,io_scheduler=cfq 0 2\n\
         {dir}/c.img {dir}/fourth fuse.steadfs ro 0 0\n"
    );
    fs::write(scratch.join("fstab"), lines).unwrap();
    let words = ["bash", "-c", WITH_HELPERS, "bash", dir];
    let output: Outcome = run("unshare", IN_NAMESPACE.into_iter().chain(words));
    assert_eq!(output.code(), 0, "{}{}", output.out, output.err);
}
