//! POSIX rules, as pjdfstest checks them: where the kernel's ext4 passes, we pass.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use steadfs_suite::command::finish;
use steadfs_suite::{Image, KernelMount, LoopDevice, Scratch, SteadMount, judge, run, succeed};

/// All optional features of Linux, and two users of every Debian.
const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = REMOUNT
[dummy_auth]
entries = [["daemon", "daemon"], ["bin", "bin"]]
"#;

/// The result of each case ("ok", "FAILED", "skipped") with its message.
type Results = BTreeMap<String, (String, String)>;

/// Runs every case in `root`.
fn results(scratch: &Scratch, root: &Path) -> Results {
    // The judge remounts by mount(8), which would call fuse3's helper: hence -i. A file closed shortly before may keep
    // the volume busy for a while.
    let script = format!(
        "#!/bin/sh\nfor i in $(seq 300); do\n'{}' -i \"$@\" && exit 0\nsleep 0.02\ndone\nexit 1\n",
        judge("mount").display()
    );
    let bin = scratch.folder("bin");
    fs::write(bin.join("mount"), script).unwrap();
    fs::set_permissions(bin.join("mount"), fs::Permissions::from_mode(0o755)).unwrap();
    // Other users access paths below.
    for dir in [scratch.path(), root] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // Some cases leave files open for writing, and all run in one process: after them no volume can be remounted
    // read-only. So the cases that remount (they skip themselves at first) run again in processes of their own.
    let mut results = run_cases(scratch, root, false, &[]);
    let remounting = run_cases(scratch, root, true, &["erofs"]);
    for (case, found) in remounting {
        let skipped = results.insert(case, found);
        assert_eq!(skipped.unwrap().0, "skipped");
    }
    results
}

/// Runs the cases with one of these words in their names, or all.
fn run_cases(scratch: &Scratch, root: &Path, remount: bool, words: &[&str]) -> Results {
    let config = scratch.join("pjdfstest.toml");
    let config_text = CONFIG.replace("REMOUNT", &remount.to_string());
    fs::write(&config, config_text).unwrap();
    let mut command = Command::new(judge("pjdfstest"));
    let path = std::env::var("PATH").unwrap_or_default();
    let bin = scratch.join("bin");
    command
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("RUST_BACKTRACE", "0")
        .env("NO_COLOR", "1")
        .current_dir(root)
        .arg("-c")
        .arg(config)
        .arg("-p")
        .arg(root)
        .arg("-s")
        .arg(scratch.folder("other"))
        .args(words);
    let output = finish(command, Duration::from_secs(1800));
    let mut results = Results::new();
    let mut last = String::new();
    for line in output.out.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [case, verdict @ ("ok" | "FAILED" | "skipped")] if !line.starts_with('\t') => {
                case.clone_into(&mut last);
                results.insert(last.clone(), (verdict.to_owned(), String::new()));
            }
            _ => {
                if let Some((_, text)) = results.get_mut(&last) {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    let total = format!("{} total", results.len());
    assert!(
        output.out.contains(&total),
        "{}\n{}",
        output.out,
        output.err
    );
    results
}

#[test]
fn pjdfstest_passes_where_the_kernels_ext4_passes() {
    let scratch = Scratch::new();
    let kernel_image = Image::mke2fs(&scratch, "kernel.img", 128 << 20, &["-t", "ext4"]);
    let our_image = Image::mke2fs(&scratch, "ours.img", 128 << 20, &["-t", "ext4"]);

    let mount = KernelMount::new(&scratch, kernel_image.path(), "");
    let kernel = results(&scratch, mount.root());
    mount.unmount();

    let device = LoopDevice::attach(our_image.path(), true);
    judge_mount(&scratch, device.path(), "", &kernel);
    // A volume is used by one program at a time: the loop device gives the image to the kernel.
    drop(device);
    for options in ["fuse_transport=uring", "fuse_transport=dev"] {
        judge_mount(&scratch, our_image.path(), options, &kernel);
    }
    our_image.check_clean();

    let f2fs = Image::empty(&scratch, "f2fs.img", 256 << 20);
    let features = "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr";
    let args = ["-q", "-f", "-O", features, f2fs.path().to_str().unwrap()];
    succeed("mkfs.f2fs", args);
    judge_mount(&scratch, f2fs.path(), "", &kernel);
    check_f2fs(f2fs.path());
}

/// fsck.f2fs and our own checker find nothing.
#[track_caller]
fn check_f2fs(image: &Path) {
    let checked = steadfs::check(image, &steadfs::Options::default(), &mut |_| ()).unwrap();
    assert!(checked.is_clean(), "{:#?}", checked.issues());
    run("fsck.f2fs", ["--dry-run".as_ref(), image.as_os_str()]).expect(0);
}

fn judge_mount(scratch: &Scratch, volume: &Path, options: &str, kernel: &Results) {
    let mount = SteadMount::new(scratch, volume, options);
    let ours = results(scratch, mount.root());
    mount.unmount();

    let passed = |results: &Results| results.values().filter(|(v, _)| v == "ok").count();
    assert!(passed(kernel) >= 395, "{kernel:#?}");
    assert!(kernel.keys().eq(ours.keys()), "the same cases ran");
    let worse: Vec<_> = ours
        .iter()
        .filter(|(case, (verdict, _))| verdict != "ok" && kernel[*case].0 == "ok")
        // The C library has no link limit for FUSE and does not ask the kernel; the judge skips the case.
        .filter(|(case, (verdict, _))| {
            (case.as_str(), verdict.as_str()) != ("link::link_count_max", "skipped")
        })
        .collect();
    assert!(
        worse.is_empty(),
        "{options}: the kernel passes, we do not: {worse:#?}"
    );
}
