//! Owners, modes and labels that `format -d` gives files in place of their own.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;

use steadfs_suite::{Image, Scratch, steadfs, succeed};

use super::clean;

const CONFIG: &str =
    "# a comment\nsystem 0 2000 0751\nsystem/bin/run 0 2000 0750 capabilities=0x1400\n";
const CONTEXTS: &str = "/system(/.*)?   u:object_r:system_file:s0\n/system/bin/run\tu:object_r:run_exec:s0\n\
                        /system/bin(/.*)? -l u:object_r:link:s0\n/system/lost\\+found u:object_r:lost:s0\n";

fn source(scratch: &Scratch) -> String {
    let top = scratch.folder("source");
    fs::create_dir(top.join("bin")).unwrap();
    fs::write(top.join("bin/run"), "#!").unwrap();
    fs::write(top.join("plain"), "x").unwrap();
    symlink("run", top.join("bin/link")).unwrap();
    chown(top.join("plain"), Some(1000), Some(1001)).unwrap();
    let archive = scratch.join("source.tar");
    let words = [
        "-cf",
        archive.to_str().unwrap(),
        "-C",
        top.to_str().unwrap(),
        ".",
    ];
    succeed("tar", words);
    fs::write(scratch.join("config"), CONFIG).unwrap();
    fs::write(scratch.join("contexts"), CONTEXTS).unwrap();
    top.to_str().unwrap().to_owned()
}

fn owner(image: &Path, file: &str) -> String {
    let shown = steadfs(["stat", &format!("{}:{file}", image.display())])
        .expect(0)
        .out;
    let line = shown.lines().find(|line| line.contains("Uid:")).unwrap();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// debugfs shows labels and capabilities.
fn check_labels(image: &Path) {
    let image = Image::at(image.to_owned());
    let label = |file: &str| {
        image
            .debugfs(&format!("ea_get -V {file} security.selinux\n"))
            .out
    };
    assert!(
        label("/bin/run").contains("run_exec"),
        "{}",
        label("/bin/run")
    );
    assert!(label("/bin/link").contains("u:object_r:link:s0"));
    // As e2fsdroid has it, what mke2fs made of its own gets a label only.
    assert!(label("/lost+found").contains("u:object_r:lost:s0"));
    let lost = owner(image.path(), "/lost+found");
    assert!(lost.ends_with("(0700/drwx------) Uid: 0 Gid: 0"), "{lost}");
    assert!(label("/plain").contains("system_file") && label("/").contains("system_file"));
    let caps = image
        .debugfs("ea_get -x /bin/run security.capability\n")
        .out;
    assert!(
        caps.contains("01 00 00 02 00 14 00 00 00 00 00 00"),
        "{caps}"
    );
}

#[test]
fn files_get_the_owners_and_labels_of_the_lists() {
    let scratch = Scratch::new();
    let source = source(&scratch);
    let archive = scratch.join("source.tar");
    let lists = ["config", "contexts"].map(|name| scratch.join(name).to_str().unwrap().to_owned());
    for (kind, from) in [
        ("ext4", &*source),
        ("f2fs", &source),
        ("ext4", archive.to_str().unwrap()),
    ] {
        let image = scratch.join("image");
        let _ = fs::remove_file(&image);
        let shown = image.to_str().unwrap();
        let rules = [
            "--fs-config",
            &lists[0],
            "--file-contexts",
            &lists[1],
            "--mounted-on",
            "/system",
        ];
        let words = [
            "format",
            "-q",
            "-t",
            kind,
            "-d",
            from,
            "--map-owner",
            "1000:5,1001:6",
        ];
        steadfs(words.iter().chain(&rules).chain(&[shown, "64M"])).expect(0);
        assert_eq!(
            owner(&image, "/"),
            "Access: (0751/drwxr-x--x) Uid: 0 Gid: 2000"
        );
        assert_eq!(
            owner(&image, "/bin/run"),
            "Access: (0750/-rwxr-x---) Uid: 0 Gid: 2000"
        );
        assert_eq!(
            owner(&image, "/plain"),
            "Access: (0644/-rw-r--r--) Uid: 5 Gid: 6"
        );
        if kind == "f2fs" {
            succeed("fsck.f2fs", ["--dry-run", shown]);
            continue;
        }
        clean(shown);
        check_labels(&image);
    }
}

#[test]
fn all_files_get_one_owner() {
    let scratch = Scratch::new();
    let source = source(&scratch);
    let image = scratch.join("image");
    let shown = image.to_str().unwrap();
    steadfs([
        "format", "-q", "-d", &source, "--owner", "7:8", shown, "16M",
    ])
    .expect(0);
    for file in ["/", "/plain", "/bin/link"] {
        assert!(owner(&image, file).ends_with("Uid: 7 Gid: 8"), "{file}");
    }
    assert!(owner(&image, "/lost+found").ends_with("Uid: 0 Gid: 0"));
    clean(shown);
    let refused = |words: &[&str], why: &str| {
        let output = steadfs(["format", "-q", shown, "16M"].iter().chain(words));
        assert!(
            output.code() == 1 && output.err.contains(why),
            "{}",
            output.err
        );
    };
    refused(&["--owner", "7"], "--owner: is about the files of -d");
    refused(
        &["-d", &source, "--owner", "root"],
        "--owner root: root: needs the number",
    );
    refused(
        &["-d", &source, "--fs-config", &format!("{source}/plain")],
        "plain: line 1: needs PATH",
    );
    refused(
        &["-d", &source, "--file-contexts", "/none"],
        "/none: No such file",
    );
}
