//! The unit files, by systemd's own programs: in namespaces, and in a container that boots.

use super::*;

/// The unit with the path of a program.
fn unit(program: &str) -> String {
    let unit = fs::read_to_string(format!("{PACKAGING}/systemd/steadfs@.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/bin/steadfs service\n"));
    unit.replace("/usr/local/bin/steadfs", program)
}

#[test]
fn the_units_and_profiles_are_accepted() {
    let scratch = Scratch::new();
    let (service, socket) = (
        scratch.join("steadfs@.service"),
        scratch.join("steadfs.socket"),
    );
    fs::write(&service, unit(program().to_str().unwrap())).unwrap();
    fs::copy(format!("{PACKAGING}/systemd/steadfs.socket"), &socket).unwrap();
    let output = run(
        "systemd-analyze",
        [
            "verify".as_ref(),
            "--man=no".as_ref(),
            socket.as_os_str(),
            service.as_os_str(),
            format!("{PACKAGING}/systemd/mnt-disk.mount").as_ref(),
            format!("{PACKAGING}/systemd/mnt-disk.automount").as_ref(),
        ],
    );
    assert_eq!((output.code(), &*output.err), (0, ""));
    // Of 100, which is a service with all rights.
    let exposed = ["security", "--offline=true", "--threshold=4", "--no-pager"].map(AsRef::as_ref);
    run(
        "systemd-analyze",
        exposed.into_iter().chain([service.as_os_str()]),
    )
    .expect(0);
    let profile = format!("{PACKAGING}/apparmor/steadfs-service");
    run(
        "apparmor_parser",
        [
            "--skip-kernel-load",
            "--skip-cache",
            "--skip-read-cache",
            &profile,
        ],
    )
    .expect(0);
}

/// In a mount namespace of its own: boots systemd in a container on a copy of this machine's root. $1: folder with disk.img,
/// $2: the program, $3: packaging/systemd.
const CONTAINER: &str = r#"
set -euo pipefail
cd "$1"
mount --make-rprivate /
mount -t cgroup2 none /sys/fs/cgroup
mkdir over; mount -t tmpfs none over; mkdir over/up over/work over/root
mount -t overlay none -o "lowerdir=/,upperdir=$1/over/up,workdir=$1/over/work" over/root
root=$1/over/root
rm -f "$root/etc/fstab"
mkdir -p "$root/srv" "$root/mnt/disk"
cp disk.img "$root/srv/"
cp "$3"/mnt-disk.* "$root/etc/systemd/system/"
for role in mount.steadfs umount.fuse.steadfs; do ln -sf /usr/bin/steadfs "$root/usr/sbin/$role"; done
cat >"$root/etc/systemd/system/judge.service" <<END
[Service]
Type=oneshot
ExecStart=/bin/bash /judge
StandardOutput=file:/judge.log
StandardError=file:/judge.log
END
cat >"$root/judge" <<END
trap 'systemctl --no-block --force --force poweroff' EXIT
set -ex
systemctl start mnt-disk.automount
grep "/mnt/disk autofs" /proc/mounts
test "\$(timeout 20 cat /mnt/disk/file)" = inside
grep "/srv/disk.img /mnt/disk fuse.steadfs rw,noatime" /proc/mounts
systemctl is-active mnt-disk.mount
systemctl stop mnt-disk.automount mnt-disk.mount
if grep /mnt/disk /proc/mounts; then exit 1; fi
e2fsck -fn /srv/disk.img
echo done: all
END
touch "$root/usr/bin/steadfs"
timeout 60 systemd-nspawn --register=no --keep-unit -q -D "$root" --bind=/dev/fuse --bind=/dev/autofs \
    --bind-ro="$2:/usr/bin/steadfs" --boot --console=pipe systemd.unit=judge.service </dev/null >&2 || true
cat "$root/judge.log"
grep -qx "done: all" "$root/judge.log"
"#;

/// Until mount(8) has ended, autofs blocks all processes outside of systemd's group that look up the mount point.
#[test]
#[ignore = "needs systemd-container, and a host where it can boot: with cgroup2, overlay and autofs"]
fn a_volume_is_mounted_on_use_by_systemd() {
    let scratch = Scratch::new();
    let tree = scratch.folder("tree");
    fs::write(tree.join("file"), "inside\n").unwrap();
    let image = scratch.join("disk.img");
    let words = ["format", "-q", "-d"].map(OsStr::new).into_iter();
    steadfs(words.chain([tree.as_os_str(), image.as_os_str(), "16M".as_ref()])).expect(0);
    judge("systemd-nspawn");
    let dir = scratch.path().to_str().unwrap();
    let units = format!("{PACKAGING}/systemd");
    let words = [
        "bash",
        "-c",
        CONTAINER,
        "bash",
        dir,
        program().to_str().unwrap(),
        &units,
    ];
    let output = run("unshare", IN_NAMESPACE.into_iter().chain(words));
    assert_eq!(output.code(), 0, "{}{}", output.out, output.err);
}

/// In namespaces of its own. $1: the program, $2: a folder with the units.
const SYSTEMD: &str = r#"
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/systemd/system/steadfs.socket.d /run/systemd/system/steadfs@.service.d /run/filesystems /run/lock
mount -t cgroup2 none /sys/fs/cgroup
mount -o remount,bind,ro /sys
install -m 755 "$1" /run/steadfs
units=/run/systemd/system
cp "$2"/steadfs.socket "$2"/steadfs@.service $units/
# Nothing of this machine is started.
printf '[Unit]\nDefaultDependencies=no\n' | tee $units/steadfs.socket.d/test.conf >$units/steadfs@.service.d/test.conf
# There is no journal.
printf '[Service]\nStandardOutput=append:/run/log\nStandardError=append:/run/log\n' >>$units/steadfs@.service.d/test.conf
# Nor is anything of it changed, and no folder for temporary files is left.
for dir in /tmp /var/tmp; do mount -t tmpfs -o mode=1777 none $dir; done
mount -o remount,bind,ro /
systemd=$(command -v /usr/lib/systemd/systemd /lib/systemd/systemd | head -1)
exec env -i container=test PATH="$PATH" "$systemd" --system --unit=steadfs.socket --log-target=console --show-status=0
"#;

/// The unit as it is installed, started by systemd itself.
#[test]
fn systemd_starts_the_unit() {
    let scratch = Scratch::new();
    let images = volumes(&scratch);
    let units = scratch.folder("units");
    fs::write(units.join("steadfs@.service"), unit("/run/steadfs")).unwrap();
    fs::copy(
        format!("{PACKAGING}/systemd/steadfs.socket"),
        units.join("steadfs.socket"),
    )
    .unwrap();
    let log = scratch.join("systemd.log");
    let manager = Manager::start(&scratch, &units, &log);
    let systemd = manager.child();
    let root = PathBuf::from(format!("/proc/{systemd}/root/run"));
    let socket = root.join("filesystems/steadfs");
    until("the socket exists", || {
        assert!(root.exists(), "{}", fs::read_to_string(&log).unwrap());
        // Its own /run, not the one of this machine.
        root.join("steadfs").exists() && socket.exists()
    });
    let messages = || fs::read_to_string(root.join("log")).unwrap_or_default();
    let dir = scratch.folder("mnt");
    for image in &images {
        let device = LoopDevice::attach(image.path(), true);
        let words = [device.path(), &dir].map(|path| path.to_str().unwrap());
        let mounted = mounter::mount(&socket, ROOT, &words);
        assert_eq!(
            mounted.code,
            Some(0),
            "{}{}",
            messages(),
            fs::read_to_string(&log).unwrap()
        );
        works(&dir);
        unmount_when_idle(&dir);
        drop(device);
        check(image);
        let words = [image.path(), &dir].map(|path| path.to_str().unwrap());
        assert_eq!(
            mounter::mount(&socket, ROOT, &words).code,
            Some(0),
            "{}",
            messages()
        );
        works(&dir);
        unmount_when_idle(&dir);
        until("the server has closed the volume", || {
            File::open(image.path()).unwrap().try_lock().is_ok()
        });
        check(image);
    }
    // The sandbox is complete, and no call was refused that is needed.
    assert_eq!(messages(), "");
}

/// systemd in a control group and namespaces of its own, which end with it.
struct Manager {
    unshare: Child,
    group: PathBuf,
}

impl Manager {
    fn start(scratch: &Scratch, units: &Path, log: &Path) -> Self {
        let groups = scratch.folder("cgroup");
        let mount = ["-t", "cgroup2", "none"].map(AsRef::as_ref);
        succeed("mount", mount.into_iter().chain([groups.as_os_str()]));
        let group = groups.join(format!("steadfs-suite-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        let words = "--pid --fork --kill-child --mount --mount-proc --uts --ipc --cgroup bash -c";
        let mut command = Command::new("bash");
        command.args(["-c", "echo $$ >\"$0\"/cgroup.procs; exec unshare \"$@\""]);
        command.arg(&group).args(words.split(' '));
        command.args([SYSTEMD, "bash"]).arg(program()).arg(units);
        let output = File::create(log).unwrap();
        let errors = output.try_clone().unwrap();
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let unshare = command.spawn().unwrap();
        Self { unshare, group }
    }

    /// systemd, the only child of unshare(1).
    fn child(&self) -> u32 {
        let main = self.unshare.id();
        let children = || fs::read_to_string(format!("/proc/{main}/task/{main}/children"));
        let child = || children().ok()?.split_whitespace().next()?.parse().ok();
        until("unshare has forked", || child().is_some());
        child().unwrap()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        let rmdir = "find \"$0\" -depth -type d -exec rmdir {} + 2>&1";
        until("the control group is empty", || {
            run(
                "bash",
                ["-c".as_ref(), rmdir.as_ref(), self.group.as_os_str()],
            )
            .code()
                == 0
        });
    }
}
