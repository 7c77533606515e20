//! The checker against e2fsprogs: both must find the same volumes clean, and the same damaged.

mod clean;
mod damage;
mod flips;
mod provoked;

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::disk::test_images::{Image, run};

/// Writes a tree with every kind of file that an unprivileged test can make.
fn write_tree(root: &Path) {
    let deep = root.join("a/b/c/d/e/f/g");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("bottom"), "x").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("large"), vec![0x5A; 400_000]).unwrap();
    fs::write(root.join("n".repeat(255)), "long name").unwrap();
    fs::write(root.join("grüße-ÿ"), "not ascii").unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(200 << 20).unwrap();
    std::os::unix::fs::FileExt::write_at(&sparse, b"end", (150 << 20) + 7).unwrap();
    symlink("short", root.join("fast")).unwrap();
    symlink("l".repeat(59), root.join("fast59")).unwrap();
    symlink("l".repeat(60), root.join("slow60")).unwrap();
    symlink("l".repeat(900), root.join("slow900")).unwrap();
    let many = root.join("many");
    fs::create_dir_all(&many).unwrap();
    for i in 0..300 {
        fs::write(many.join(format!("a name of some length, number {i}")), "").unwrap();
    }
    fs::hard_link(root.join("large"), root.join("a/second name")).unwrap();
}

/// An image with the tree, device nodes and attributes.
fn populated(options: &[&str], size: &str) -> Image {
    let tree = tempfile::tempdir().unwrap();
    write_tree(tree.path());
    let mut all = vec!["-d", tree.path().to_str().unwrap()];
    all.extend_from_slice(options);
    let image = Image::make(&all, size);
    let value = image.beside("value");
    fs::write(&value, vec![b'v'; 500]).unwrap();
    let commands = [
        "mknod device c 5 300".to_string(),
        "mknod small b 8 1".to_string(),
        "mknod pipe p".to_string(),
        "ea_set large user.small tiny".to_string(),
        "ea_set a user.grüße ä".to_string(),
        format!("ea_set -f {} large user.big", value.display()),
        format!("ea_set -f {} a trusted.big", value.display()),
    ];
    let script = image.beside("commands");
    fs::write(&script, commands.join("\n")).unwrap();
    run(
        "debugfs",
        &[
            "-w",
            "-f",
            script.to_str().unwrap(),
            image.path().to_str().unwrap(),
        ],
    );
    image
}

/// Exit code and output of a judge.
fn judge(program: &str, args: &[&str]) -> (i32, String) {
    let output = crate::disk::test_images::judge(program)
        .args(args)
        .output()
        .unwrap();
    let code = output.status.code().expect("the judge was not killed");
    (code, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `e2fsck -fn` on an image file; its exit code (0 is clean) and output.
fn e2fsck(path: &Path) -> (i32, String) {
    judge("e2fsck", &["-fn", path.to_str().unwrap()])
}

fn check_image(image: &Image) -> Report {
    check(&*image.device(), &Options::default())
}

#[track_caller]
fn assert_clean(image: &Image, what: &dyn std::fmt::Debug) -> Report {
    let report = check_image(image);
    let lines: Vec<_> = report.issues.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{what:?}: {lines:#?}");
    let (code, words) = e2fsck(&image.path());
    assert_eq!(code, 0, "{what:?}: {words}");
    report
}
