//! What users can do who have nothing but an image: no root, no fusermount3, no /dev/fuse, no io_uring, 64 open files.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use steadfs_suite::{Compare, Tree, f2fs, run};

use super::*;

/// The call of io_uring_setup(2), on all architectures.
const IO_URING_SETUP: i64 = 425;
const REFUSED: u32 = 1; // EPERM

/// In a mount namespace of its own; `$1` is the user's script.
const WITHOUT: &str = "
for gone in /dev/fuse $(command -v fusermount3) $(command -v fusermount); do mount --bind /dev/null $gone; done
ulimit -n 64
exec setpriv --reuid=65534 --regid=65534 --clear-groups bash -euc \"$1\"
";

const SCRIPT: &str = r#"
mkdir -p tree/a/b
for n in $(seq 100); do echo "file $n" >tree/a/b/$n; done
ln -s b/1 tree/a/link; ln tree/a/b/2 tree/a/hard; chmod 640 tree/a/b/3
head -c 3000000 /dev/zero | tr '\0' x >tree/a/large
for kind in ext4 f2fs; do
    i=$kind.img
    $S format -q -t $kind -d tree $i 64M
    $S ls -lR $i:/; $S find $i:/ -name '9*'; $S du $i:/; $S tree $i:/; $S stat $i:/a/large; $S inspect $i
    test "$($S cat $i:/a/b/7)" = 'file 7'
    $S cp -r tree $i:/again
    $S mkdir -p $i:/m/n; $S mv $i:/again/a/large $i:/m/n; $S ln -s x $i:/m/s; $S rm -r $i:/again
    $S chmod 700 $i:/m; $S chown 3:4 $i:/m; $S touch -d 2020-01-01 $i:/m/n/large; $S truncate -s 5 $i:/m/n/large
    printf 'mkdir /e\nput tree/a/large /e/x\nrm -r /e\n' | $S edit $i
    $S cp -o overlay=$kind.changes tree/a/large $i:/new
    $S check $i
    $S extract $i:/a out.$kind
    mkdir tar.$kind; $S tar $i:/a | tar -xC tar.$kind
done
$S cp -r ext4.img:/a f2fs.img:/from-ext4
$S extract f2fs.img:/from-ext4 out
for mounted in '' '-o takeover=on'; do
    if said=$($S mount $mounted ext4.img out 2>&1); then exit 9; fi
    test "$(wc -l <<<"$said")" = 1
done
"#;

/// Runs `script` as a user without anything.
fn without_anything(user: &User, script: &str) -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command.args(["bash", "-ec", WITHOUT, "run", script]);
    command
        .current_dir(&user.home)
        .env("S", &user.program)
        .env_remove("STEADFS_SANDBOX");
    let refuse = || {
        let filter = SeccompFilter::new(
            [(IO_URING_SETUP, Vec::new())].into(),
            SeccompAction::Allow,
            SeccompAction::Errno(REFUSED),
            TargetArch::try_from(std::env::consts::ARCH)?,
        )?;
        BpfProgram::try_from(filter)
    };
    // A filter belongs to a thread and is inherited by its children.
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| {
            seccompiler::apply_filter(&refuse().unwrap()).unwrap();
            finish(command, PATIENCE)
        });
        ended.join().unwrap()
    })
}

#[test]
fn users_without_anything_do_everything_with_images() {
    let user = User::new();
    without_anything(&user, SCRIPT).expect(0);
    let tree = Tree::of(&user.home.join("tree/a"));
    for out in ["out", "out.ext4", "out.f2fs", "tar.ext4", "tar.f2fs"] {
        let found = Tree::of(&user.home.join(out));
        tree.assert_same(&found, Compare::COPY, out);
    }
    let image = |name: &str| user.home.join(name);
    run("e2fsck", ["-fn", image("ext4.img").to_str().unwrap()]).expect(0);
    f2fs::check_clean(&image("f2fs.img"), "a user's");
}
