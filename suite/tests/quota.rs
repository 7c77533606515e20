//! Quota of ext4 and f2fs through a mount and on an image: what users, groups and projects use, and their limits.
//!
//! The test with Linux as judge needs the kernel of `scripts/judge-kernel`. By hand:
//! `scripts/judge-kernel && PATH=$PWD/.cache/judges/bin:$PATH cargo test -p steadfs-suite --test quota -- --ignored`
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::fs;

use steadfs_suite::f2fs::{check_clean, mkfs};
use steadfs_suite::uml::{TOP, boot_with_all_of_f2fs};
use steadfs_suite::{Image, Outcome, Scratch, SteadMount, run, steadfs, succeed};

fn on_mount(mount: &SteadMount, arguments: &[&str]) -> Outcome {
    let first = ["quota".as_ref(), mount.root().as_os_str()];
    steadfs(first.into_iter().chain(arguments.iter().map(OsStr::new)))
}

/// A shell's script that runs another one as this user.
fn user_script(user: u32, script: &str) -> String {
    format!("setpriv --reuid={user} --regid={user} --clear-groups sh -c '{script}'")
}

fn as_user(user: u32, script: &str) -> Outcome {
    run("sh", ["-c", &user_script(user, script)])
}

/// Limits set on an image hold on a mount, where they are listed and changed; the kernel reports EDQUOT.
#[test]
fn limits_of_users_hold_and_are_listed() {
    let scratch = Scratch::new();
    let words = ["-t", "ext4", "-b", "4096", "-O", "quota"];
    let image = Image::mke2fs(&scratch, "q.img", 64 << 20, &words);
    limits_hold_and_are_listed(&scratch, &image);
    image.check_clean();
    let image = mkfs(&scratch, "f.img", 64 << 20, "-O quota");
    limits_hold_and_are_listed(&scratch, &image);
    check_clean(image.path(), "after the limits");
}

fn limits_hold_and_are_listed(scratch: &Scratch, image: &Image) {
    let path = image.path().to_str().unwrap();
    let limits = ["quota", path, "--limits", "1000", "0", "1M", "0", "2"];
    steadfs(limits).expect(0);
    steadfs(["quota", path, "-g", "--grace", "3600", "86400"]).expect(0);
    check(image);
    let listed = steadfs(["quota", path]).expect(0).out;
    let row = |listed: &str, id: &str| -> Vec<String> {
        let mut rows = listed.lines().map(|line| line.split_whitespace());
        let row = rows.find(|row| row.clone().next() == Some(id)).unwrap();
        row.map(str::to_owned).collect()
    };
    assert_eq!(row(&listed, "1000")[1..4], ["0", "0", "1024"], "{listed}");
    assert!(
        listed.contains("group quota: grace 01:00 for space, 1days"),
        "{listed}"
    );
    let refused = steadfs(["quota", path, "--project"]);
    assert!(refused.code() != 0 && refused.err.contains("feature quota"));

    let mount = SteadMount::new(scratch, image.path(), "usrquota");
    fs::set_permissions(
        mount.root(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let root = mount.root().to_str().unwrap();
    let user = |script: &str| as_user(1000, script);
    let filled = user(&format!("head -c 3M /dev/zero > {root}/file"));
    assert!(
        filled.code() != 0 && filled.err.contains("quota exceeded"),
        "{}",
        filled.err
    );
    assert_eq!(fs::metadata(mount.join("file")).unwrap().len(), 1 << 20);
    user(&format!("touch {root}/second")).expect(0);
    assert_ne!(user(&format!("touch {root}/third")).code(), 0);
    let listed = on_mount(&mount, &["-u"]).expect(0).out;
    assert_eq!(row(&listed, "1000")[1], "1024", "{listed}");
    assert_eq!(row(&listed, "1000")[5], "2", "{listed}");
    on_mount(&mount, &["-u", "--limits", "1000", "0", "0", "0", "3"]).expect(0);
    user(&format!(
        "touch {root}/third && head -c 3M /dev/zero >> {root}/file"
    ))
    .expect(0);
    let options = fs::read_to_string(mount.join(".steadfs/options")).unwrap();
    assert!(options.contains("usrquota"), "{options}");
    mount.unmount();
}

/// Changes that touch each kind of usage: new files, other owners, another project, files that grow, shrink and go.
fn changes(top: &str, round: u32) -> String {
    format!(
        "cd {top}; mkdir -p home$round; chmod 777 home$round
         for n in 0 1 2 3 4 5 6 7 8 9; do
            head -c $((n * 7001 + 1)) /dev/urandom > home$round/f$n
            chown $((1000 + n % 3)):$((2000 + n % 2)) home$round/f$n
            ln -s long-long-long-long-long-long-long-long-long-long-long-long-long-target home$round/l$n
         done
         mkdir -p project$round/sub; chattr -p $((70 + round)) project$round; chattr +P project$round
         head -c 300000 /dev/urandom > project$round/big; mkdir project$round/new; echo x > project$round/new/file
         chattr -p 99 home$round/f9
         truncate -s 10 home$round/f8; truncate -s 1G home$round/f7; rm home$round/f5 home$round/l2
         chown 1001 home$round/f1; chgrp 2001 home$round/f2; setfattr -n user.x -v $(head -c 500 /dev/zero | tr '\\0' x) home$round/f3
         cd /"
    )
    .replace("$round", &round.to_string())
    .replace("((70 + round))", &format!("((70 + {round}))"))
}

/// What is listed of an image: usage and limits of users, groups and projects.
fn listed(image: &Image) -> Vec<String> {
    ["-u", "-g", "-P"]
        .map(|kind| {
            let image = image.path().as_os_str();
            steadfs(["quota".as_ref(), image, kind.as_ref()])
                .expect(0)
                .out
        })
        .to_vec()
}

fn check(image: &Image) {
    match steadfs(["inspect".as_ref(), image.path().as_os_str()]) {
        inspected if inspected.out.contains("f2fs") => {
            check_clean(image.path(), "with quota");
        }
        _ => image.check_clean(),
    }
    steadfs(["check".as_ref(), image.path().as_os_str()]).expect(0);
}

/// Limits for [`over`].
fn set_limits(image: &Image) {
    let path = image.path().to_str().unwrap();
    steadfs(["quota", path, "-u", "--limits", "1005", "0", "1M", "0", "3"]).expect(0);
    steadfs(["quota", path, "-P", "--limits", "72", "0", "1M", "0", "0"]).expect(0);
    check(image);
}

/// Writes over the limits of user 1005 and of project 72, as a script.
fn over(top: &str) -> String {
    let user = |script: String| format!("if {}; then exit 7; fi\n", user_script(1005, &script));
    [
        format!("chmod 777 {top}/project2\n"),
        user(format!("head -c 2M /dev/zero > {top}/home2/over")),
        format!("test $(stat -c %b {top}/home2/over) -le 2048\n"),
        user(format!("touch {top}/home2/a {top}/home2/b {top}/home2/c")),
        format!("rm {top}/home2/over\n"),
        user(format!("head -c 900k /dev/zero > {top}/project2/over")),
    ]
    .concat()
}

/// What Linux counts on a volume that was counted here is right, and the other way round; both hold the limits that are
/// set by the other.
#[test]
#[ignore = "needs scripts/judge-kernel"]
fn linux_counts_and_limits_in_the_same_way() {
    let scratch = Scratch::new();
    for words in [
        &[
            "-t",
            "ext4",
            "-b",
            "4096",
            "-O",
            "quota,project",
            "-I",
            "256",
        ][..],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "quota,project,bigalloc",
            "-C",
            "8192",
            "-I",
            "256",
        ],
    ] {
        let [ours, linux] =
            ["ours.img", "linux.img"].map(|name| Image::mke2fs(&scratch, name, 64 << 20, words));
        let is_same = !words.contains(&"quota,project,bigalloc");
        // Clusters may be shared in another way.
        both_count_and_limit(&scratch, "ext4", &[ours, linux], is_same);
    }
    for features in [
        "-O extra_attr,project_quota,quota",
        "-i -O extra_attr,inode_checksum,sb_checksum,flexible_inline_xattr,inode_crtime,lost_found,\
         project_quota,quota,casefold,verity,encrypt -C utf8",
    ] {
        let images =
            ["ours.f2fs", "linux.f2fs"].map(|name| mkfs(&scratch, name, 64 << 20, features));
        both_count_and_limit(&scratch, "f2fs", &images, true);
    }
}

/// `is_same`: both count the same.
fn both_count_and_limit(scratch: &Scratch, kind: &str, [ours, linux]: &[Image; 2], is_same: bool) {
    let options = "usrquota,grpquota,prjquota";
    // The first round, here and there.
    let mount = SteadMount::new(scratch, ours.path(), options);
    succeed("sh", ["-ec", &changes(mount.root().to_str().unwrap(), 1)]);
    mount.unmount();
    let there = format!(
        "mount -t {kind} -o {options} /dev/ubda {TOP}\n{}\numount {TOP}",
        changes(TOP, 1)
    );
    boot_with_all_of_f2fs(scratch, &[linux.path()], &there);
    [ours, linux].into_iter().for_each(check);
    if is_same {
        assert_eq!(listed(ours), listed(linux));
    }
    // Limits that are set here, and the second round on the other's volume.
    [ours, linux].into_iter().for_each(set_limits);
    let there = format!(
        "mount -t {kind} -o {options} /dev/ubda {TOP}\n{}\n{}umount {TOP}",
        changes(TOP, 2),
        over(TOP)
    );
    boot_with_all_of_f2fs(scratch, &[ours.path()], &there);
    let mount = SteadMount::new(scratch, linux.path(), options);
    let top = mount.root().to_str().unwrap();
    succeed("sh", ["-ec", &changes(top, 2)]);
    succeed("sh", ["-ec", &over(top)]);
    mount.unmount();
    [ours, linux].into_iter().for_each(check);
}
