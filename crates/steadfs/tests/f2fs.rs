//! f2fs volumes through the library's face: probed, opened, copied out of, described.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use steadfs::{Inspection, Kind, Options, Volume, probe};
use steadfs_vfs::Cx;

#[track_caller]
fn run(program: &str, args: &[&Path]) {
    let output = Command::new(program)
        .args(args)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap_or_else(|e| panic!("{program} is needed by this test: {e}"));
    assert!(output.status.success(), "{program}: {output:?}");
}

fn image(dir: &Path, tree: &Path) -> PathBuf {
    let image = dir.join("image");
    fs::File::create(&image)
        .unwrap()
        .set_len(128 << 20)
        .unwrap();
    run("mkfs.f2fs", &["-q".as_ref(), "-f".as_ref(), &image]);
    run("sload.f2fs", &["-f".as_ref(), tree, &image]);
    image
}

#[test]
fn a_volume_is_known_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/file"), b"content").unwrap();
    let image = image(dir.path(), &tree);
    let read_only = Options::parse("ro").unwrap();
    assert_eq!(probe(&image, &read_only).unwrap(), Kind::F2fs);
    let volume = Volume::open_with(&image, &read_only).unwrap();
    assert_eq!((volume.kind().name(), volume.block_size()), ("f2fs", 4096));
    let (fs, cx) = (volume.fs(), Cx::default());
    let mut at = fs.root();
    for name in [&b"a"[..], b"b", b"file"] {
        at = fs.lookup(&cx, at, name).unwrap().ino;
    }
    assert_eq!(fs.read(&cx, at, 0, 100).unwrap().to_vec(), b"content");
    volume.close().unwrap();
    let seen = steadfs::inspect(&image, &read_only).unwrap();
    assert!(matches!(&seen, Inspection::F2fs(_)));
    let json = serde_json::to_string(&seen).unwrap();
    assert!(json.contains("checkpoint_ver"), "{json}");
}

#[test]
fn what_cannot_be_done_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let image = image(dir.path(), &tree);
    for (list, why) in [
        ("ro,data=ordered", "option data: f2fs has none"),
        ("ro,inline_xattr_size=20", "flexible_inline_xattr"),
    ] {
        let options = Options::parse(list).unwrap();
        let said = Volume::open_with(&image, &options)
            .err()
            .unwrap()
            .to_string();
        assert!(said.contains(why), "{list}: {said}");
    }
}

#[test]
fn a_volume_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), vec![7; 1 << 20]).unwrap();
    let image = image(dir.path(), &tree);
    let mut read = 0;
    let look = |read: &mut u64| steadfs::check(&image, &Options::default(), &mut |n| *read += n);
    let checked = look(&mut read).unwrap();
    assert!(checked.is_clean(), "{:?}", checked.issues());
    assert!((1 << 20..128 << 20).contains(&read), "{read}");
    // The first block of both checkpoint packs.
    let mut bytes = fs::read(&image).unwrap();
    for pack in [512, 1024] {
        bytes[pack * 4096 + 20] ^= 1;
    }
    fs::write(&image, &bytes).unwrap();
    let checked = look(&mut read).unwrap();
    assert!(checked.issues()[0].contains("no checkpoint is valid"));
}
