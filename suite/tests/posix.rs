//! What programs expect of a file system, judged by pjdfstest and fsx beside the kernel's ext4.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use steadfs_suite::{Image, KernelMount, LoopDevice, Scratch, SteadMount, run};

const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Names of the tests that passed and that failed at `path`.
fn pjdfstest(scratch: &Scratch, path: &Path) -> (BTreeSet<String>, BTreeSet<String>) {
    let config = scratch.join("pjdfstest.toml");
    fs::write(&config, PJDFSTEST).unwrap();
    let said = run(
        "pjdfstest",
        [
            "-c".as_ref(),
            config.as_os_str(),
            "-p".as_ref(),
            path.as_os_str(),
        ],
    );
    let with = |word: &str| -> BTreeSet<String> {
        let lines = said.out.lines().map(str::trim);
        lines
            .filter_map(|line| line.strip_suffix(word))
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    };
    let (passed, failed) = (with(" ok"), with(" FAILED"));
    assert!(
        passed.len() > 300,
        "pjdfstest did not run:\n{}{}",
        said.out,
        said.err
    );
    (passed, failed)
}

#[test]
fn pjdfstest_finds_nothing_that_the_kernel_has_not() {
    let scratch = Scratch::new();
    let kernel = Image::mke2fs(&scratch, "kernel.img", 256 << 20, &["-t", "ext4"]);
    let mount = KernelMount::new(&scratch, kernel.path(), "");
    let (kernel_passed, kernel_failed) = pjdfstest(&scratch, mount.root());
    mount.unmount();
    let image = Image::mke2fs(&scratch, "ours.img", 256 << 20, &["-t", "ext4"]);
    let device = LoopDevice::attach(image.path(), true);
    judge_mount(
        &scratch,
        "block device",
        device.path(),
        "",
        &kernel_passed,
        &kernel_failed,
    );
    // One user at a time: the loop device shows the image to the kernel.
    drop(device);
    for (what, options) in [
        ("image over io_uring", "fuse_transport=uring"),
        ("image over /dev/fuse", "fuse_transport=dev"),
    ] {
        judge_mount(
            &scratch,
            what,
            image.path(),
            options,
            &kernel_passed,
            &kernel_failed,
        );
    }
    image.check_clean();
}

fn judge_mount(
    scratch: &Scratch,
    what: &str,
    path: &Path,
    options: &str,
    kernel_passed: &BTreeSet<String>,
    kernel_failed: &BTreeSet<String>,
) {
    let mount = SteadMount::new(scratch, path, options);
    let (passed, failed) = pjdfstest(scratch, mount.root());
    let worse: Vec<_> = failed.difference(kernel_failed).collect();
    assert!(
        worse.is_empty(),
        "{what}: fails where the kernel's ext4 does not: {worse:?}"
    );
    // The C library knows the most links of a file from the file system's type; for FUSE it guesses
    // too low, and the test is skipped.
    let skipped = "link::link_count_max";
    let lost = kernel_passed.difference(&passed);
    let lost: Vec<_> = lost.filter(|name| *name != skipped).collect();
    assert!(
        lost.is_empty(),
        "{what}: did not pass what the kernel's ext4 passes: {lost:?}"
    );
    mount.unmount();
}

const FSX: &str = r#"
flen = 1048576
[opsize]
min = 0
max = 131072
[weights]
close_open = 1.0
invalidate = 1.0
mapread = 5.0
mapwrite = 5.0
read = 10.0
write = 10.0
truncate = 3.0
fsync = 1.0
fdatasync = 1.0
posix_fallocate = 2.0
punch_hole = 5.0
copy_file_range = 2.0
sendfile = 1.0
posix_fadvise = 0.5
"#;

/// Operations in all.
fn operations() -> u64 {
    let wanted = std::env::var("FSX_OPS").ok().and_then(|n| n.parse().ok());
    wanted.unwrap_or(100_000)
}

fn fsx(scratch: &Scratch, file: &Path, seed: u32, operations: u64) {
    let config = scratch.join("fsx.toml");
    fs::write(&config, FSX).unwrap();
    let artifacts = scratch.folder("fsx");
    let (seed, operations) = (seed.to_string(), operations.to_string());
    let args = [
        "-N".as_ref(),
        operations.as_ref(),
        "-S".as_ref(),
        seed.as_ref(),
        "-f".as_ref(),
        config.as_os_str(),
        "-P".as_ref(),
        artifacts.as_os_str(),
        file.as_os_str(),
    ];
    run("fsx", args).expect(0);
}

#[test]
fn fsx_reads_what_it_wrote() {
    let scratch = Scratch::new();
    let kinds: [(&[&str], &str); 4] = [
        (&["-t", "ext4"], "fuse_transport=uring"),
        (&["-t", "ext4", "-b", "1024"], "fuse_transport=dev"),
        (&["-t", "ext2", "-b", "1024"], ""),
        (&["-t", "ext4", "-b", "65536"], "io_engine=threads"),
    ];
    for (seed, (args, options)) in (1..).zip(kinds) {
        let image = Image::mke2fs(&scratch, &format!("fsx{seed}.img"), 128 << 20, args);
        let mount = SteadMount::new(&scratch, image.path(), options);
        fsx(&scratch, &mount.join("file"), seed, operations() / 4);
        mount.unmount();
        image.check_clean();
    }
}
