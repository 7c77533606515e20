//! Files and directories with their content in the inode: made by the kernel and changed by us, and made by us.

use std::collections::BTreeSet;

use steadfs_suite::{Compare, Tree};

use super::*;

const MAKE: &str = r"
for n in 0 1 20 59 60 61 100 150 158 160 200; do
    head -c $n /dev/zero | tr '\0' x >f$n
    for copy in g h k p; do cp f$n $copy$n; done
done
mkdir d1 d2 d3 d4 full
for n in 1 2 3 4 5 6; do
    echo $n >d1/a$n
    echo $n >d2/b$n
    mkdir d3/s$n
    : >d3/s$n/x
done";

const CHANGE: &str = r"
for n in 0 1 20 59 60 61 100 150 158 160 200; do
    printf tail >>f$n
    truncate -s 30 g$n
    truncate -s 9000 h$n
    printf mid | dd of=k$n bs=1 seek=10 conv=notrunc status=none
    fallocate -p -o 5 -l 20 p$n
done
# Not with block maps.
fallocate -l 100000 p20 2>/dev/null || truncate -s 100000 p20
rm d1/a1 d1/a6 d1/a3
mv d1/a2 d1/renamed
mv d2/b1 d1/b1
mv -f d2/b2 d2/b3
ln d2/b4 d4/linked
rm -r d3/s1 d3/s6
mv d3 d2/
mv d2/d3/s2 moved
rm moved/x
chmod 700 moved d4
for n in $(seq 200); do : >full/$n; done
rm d2/d3/s3/x && rmdir d2/d3/s3";

fn make(root: &Path) {
    run("sh", ["-ec", &format!("cd {}\n{MAKE}", root.display())]).expect(0);
    stamp(root);
}

fn stamp(root: &Path) {
    let stamp = "find . -exec touch -h -d @1000000000 {} +";
    run("sh", ["-ec", &format!("cd {}\n{stamp}", root.display())]).expect(0);
}

/// Runs a script in the root of a mount, then sets attributes that fit beside the content, and ones that do not.
fn change(root: &Path) {
    run("sh", ["-ec", &format!("cd {}\n{CHANGE}", root.display())]).expect(0);
    for name in ["f1", "g60", "d1", "d4", "d2/d3"] {
        for (attr, len) in [("user.short", 3), ("user.long", 700)] {
            let value = vec![b'v'; len];
            rustix::fs::setxattr(root.join(name), attr, &value, XattrFlags::empty()).unwrap();
        }
    }
    stamp(root);
}

/// The tree without inline content: the kernel loses content where it lengthens an inline file or punches a hole in one
/// (6.18).
fn on_blocks(scratch: &Scratch) -> Tree {
    let image = Image::mke2fs(scratch, "blocks.img", 64 * MIB, &["-t", "ext4"]);
    let mount = KernelMount::new(scratch, image.path(), "");
    make(mount.root());
    change(mount.root());
    Tree::of(mount.root())
}

/// The files and directories below the root of a kernel's mount whose content is in the inode.
fn inline_names(root: &Path) -> BTreeSet<String> {
    let listed = run(
        "sh",
        ["-ec", &format!("cd {} && lsattr -R .", root.display())],
    );
    let listed = listed.expect(0).out;
    let lines = listed.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter(|(flags, _)| flags.contains('N'))
        .map(|(_, name)| name.trim_start().to_owned())
        .collect()
}

#[test]
fn inline_content_is_changed_and_made_as_by_the_kernel() {
    let scratch = Scratch::new();
    let expected = on_blocks(&scratch);
    for (n, options) in [
        "inline_data -I 256",
        "inline_data -I 1024 -b 4096",
        "inline_data,^metadata_csum,^extent,^64bit -I 512 -b 1024",
    ]
    .iter()
    .enumerate()
    {
        let options: Vec<_> = ["-t", "ext4", "-O"]
            .into_iter()
            .chain(options.split(' '))
            .collect();
        let what = options.join(" ");
        let [image, own] = ["kernel", "own"]
            .map(|maker| Image::mke2fs(&scratch, &format!("{n}.{maker}.img"), 64 * MIB, &options));
        let mount = KernelMount::new(&scratch, image.path(), "");
        make(mount.root());
        let (made, inline) = (Tree::of(mount.root()), inline_names(mount.root()));
        drop(mount);
        let mount = SteadMount::new(&scratch, own.path(), "noatime");
        make(mount.root());
        mount.unmount();
        own.check_clean();
        let mount = KernelMount::new(&scratch, own.path(), "ro");
        made.assert_same(&Tree::of(mount.root()), Compare::COPY, &what);
        assert_eq!(inline_names(mount.root()), inline, "{what}");
        drop(mount);

        let mount = SteadMount::new(&scratch, image.path(), "noatime");
        change(mount.root());
        let ours = Tree::of(mount.root());
        mount.unmount();
        image.check_clean();
        expected.assert_same(&ours, Compare::COPY, &what);
        let mount = KernelMount::new(&scratch, image.path(), "ro");
        // The kernel finds data in preallocated blocks that it has read.
        let but_holes = Compare {
            holes: false,
            ..Compare::ALL
        };
        Tree::of(mount.root()).assert_same(&ours, but_holes, &what);
    }
}
