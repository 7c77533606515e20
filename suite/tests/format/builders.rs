//! Volumes filled by image builders: under fakeroot, and with files that do not fit.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use steadfs_suite::command::finish;
use steadfs_suite::stead::program;
use steadfs_suite::tree::set_xattr;
use steadfs_suite::{KernelMount, Outcome, Scratch, judge, steadfs};

/// Debian's unprivileged user and group.
const NOBODY: u32 = 65_534;

/// Runs a script as an ordinary user under fakeroot, in `dir`, which that user then owns. `$S` is steadfs.
fn under_fakeroot(dir: &Path, script: &str) -> Outcome {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
    let user = NOBODY.to_string();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
        .args(["env", "HOME=/tmp"])
        .arg(format!("S={}", program().display()))
        .arg(judge("fakeroot"))
        .args(["sh", "-e", "-c", script])
        .current_dir(dir);
    finish(command, Duration::from_secs(120))
}

const BUILD: &str = r#"
mkdir -p t/dev
echo box >t/host; ln -s host t/link; ln t/host t/hard; echo x >t/tool
chown 0:42 t/host; chmod 4750 t/host; chown -h 7:8 t/link; chown 5:6 t/dev; chmod 2711 t/dev
mknod t/dev/console c 5 1; mknod t/dev/disk b 8 3
setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 t/tool
setfattr -n trusted.label -v boxed t/dev
"$S" format -q -t "$KIND" -d t a.img 64M
"$S" format -q -t "$KIND" b.img 64M
"$S" cp -a t b.img:/
mkdir out
"$S" cp -a b.img:/t out/
"$S" extract a.img ex
for top in out/t ex; do (
    cd $top
    stat -c '%n %u:%g %a %t,%T' host hard link dev dev/console dev/disk
    getfattr -h --absolute-names -n security.capability -e hex tool
    getfattr --absolute-names -n trusted.label dev
); done
"#;

const BUILT: &str = "\
host 0:42 4750 0,0
hard 0:42 4750 0,0
link 7:8 777 0,0
dev 5:6 2711 0,0
dev/console 0:0 644 5,1
dev/disk 0:0 644 8,3
# file: tool
security.capability=0x0100000200200000000000000000000000000000

# file: dev
trusted.label=\"boxed\"

";

#[test]
fn owners_devices_and_attributes_of_fakeroot_are_copied_both_ways() {
    for kind in ["ext4", "f2fs"] {
        let scratch = Scratch::new();
        let output = under_fakeroot(scratch.path(), &format!("KIND={kind}\n{BUILD}")).expect(0);
        assert_eq!(output.out, BUILT.repeat(2), "{kind}: {}", output.err);
        if kind == "f2fs" {
            continue;
        }
        let mount = KernelMount::new(&scratch, &scratch.join("a.img"), "ro");
        let shown = |name: &str| {
            let file = fs::symlink_metadata(mount.join(name)).unwrap();
            (file.uid(), file.gid(), file.mode(), file.rdev())
        };
        assert_eq!(shown("host"), (0, 42, 0o104_750, 0));
        assert_eq!(shown("link"), (7, 8, 0o120_777, 0));
        let console = rustix::fs::makedev(5, 1);
        assert_eq!(shown("dev/console"), (0, 0, 0o020_644, console));
        mount.unmount();
    }
}

/// fakeroot changes the result of geteuid(2), but no privileges.
#[test]
fn a_mount_under_fakeroot_uses_fusermount3() {
    let scratch = Scratch::new();
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
    let script = r#"
        "$S" format -q -E root_owner=65534:65534 a.img 16M; mkdir mnt
        "$S" mount a.img mnt; echo content >mnt/file; "$S" sync mnt; "$S" umount mnt
        "$S" cat a.img:/file"#;
    let output = under_fakeroot(scratch.path(), script).expect(0);
    assert_eq!(output.out, "content\n");
}

#[test]
fn format_d_fails_if_an_attribute_is_lost() {
    let scratch = Scratch::new();
    let from = scratch.folder("from");
    fs::write(from.join("file"), "content").unwrap();
    set_xattr(&from.join("file"), "user.large", &[b'x'; 2500]);
    let image = scratch.join("a.img");
    let image = image.to_str().unwrap();
    let words = ["format", "-q", "-d", from.to_str().unwrap(), image, "16M"];
    let output = steadfs(words).expect(1);
    for part in ["/file: attribute user.large was not kept", "incomplete: 1"] {
        assert!(output.err.contains(part), "{part}: {}", output.err);
    }
    super::clean(image);
    let output = steadfs(["cat", &format!("{image}:/file")]).expect(0);
    assert_eq!(output.out, "content");
}
