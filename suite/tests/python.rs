//! The Python package (`crates/python`): its tests on the extension that is built along with the program, and in an ignored
//! test the wheel of `make wheel` in a fresh virtual environment.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use steadfs_suite::command::finish;
use steadfs_suite::stead::{program, steadfs};
use steadfs_suite::{Outcome, Scratch, run};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/python");
/// Debian's, which has Debian's fsspec.
const PYTHON: &str = "/usr/bin/python3";

/// A folder with the package as it is installed: its files, and the extension.
fn package(scratch: &Scratch) -> PathBuf {
    let site = scratch.folder("site");
    let package = scratch.folder("site/steadfs");
    for entry in fs::read_dir(Path::new(SOURCES).join("python/steadfs")).unwrap() {
        let path = entry.unwrap().path();
        let ends = |end| path.extension().is_some_and(|found| found == end);
        if ends("py") || ends("pyi") || ends("typed") {
            fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    let extension = program().parent().unwrap().join("lib_steadfs.so");
    symlink(extension, package.join("_steadfs.abi3.so")).unwrap();
    site
}

/// Runs Python with the package.
fn python(site: &Path, words: &[&str]) -> Outcome {
    let mut python = Command::new(PYTHON);
    python
        .args(words)
        .env("PYTHONPATH", site)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(Path::new(SOURCES).join("tests"));
    finish(python, Duration::from_secs(120))
}

fn unittest(module: &str) {
    let scratch = Scratch::new();
    let site = package(&scratch);
    python(&site, &["-m", "unittest", "-b", module]).expect(0);
}

#[test]
fn volumes_paths_and_files() {
    unittest("test_volume");
}

#[test]
fn the_file_system_of_fsspec() {
    unittest("test_fsspec");
}

#[test]
fn the_examples_of_the_readme_are_as_written() {
    unittest("test_readme");
}

/// A foreign f2fs image is walked as it is copied out by the program.
#[test]
fn an_f2fs_image_is_walked() {
    let scratch = Scratch::new();
    let (site, image) = (package(&scratch), scratch.join("disk.img"));
    fs::File::create(&image)
        .unwrap()
        .set_len(128 << 20)
        .unwrap();
    let image = image.to_str().unwrap();
    run(
        "mkfs.f2fs",
        ["-q", "-O", "extra_attr,inode_checksum", image],
    )
    .expect(0);
    run(
        "sload.f2fs",
        ["-f", &format!("{SOURCES}/../steadfs/src"), image],
    )
    .expect(0);
    let copy = scratch.join("copy");
    steadfs(["cp", "-a", &format!("{image}:/"), copy.to_str().unwrap()]).expect(0);
    let words = ["compare_tree.py", image, copy.to_str().unwrap()];
    let files: u32 = python(&site, &words).expect(0).out.trim().parse().unwrap();
    assert!(files > 50, "{files} files");
}

const ENCRYPTED: &str = r#"
import sys, steadfs
image, key = sys.argv[1:]
with steadfs.open(image, "r+", key_files=[key]) as volume:
    volume.write_text("/secret/name", "content")
with steadfs.open(image) as volume:
    [name] = volume.listdir("/secret")
    assert name != "name"
    try:
        volume.read_bytes("/secret/" + name)
    except OSError as error:
        assert error.errno == 126, error
    else:
        sys.exit("read without a key")
    volume.add_key(key)
    assert volume.read_text("/secret/name") == "content"
try:
    steadfs.open(image, key_files=["/no/such/key"])
except FileNotFoundError:
    pass
"#;

#[test]
fn encrypted_files_take_their_key() {
    let scratch = Scratch::new();
    let (site, image, key) = (
        package(&scratch),
        scratch.join("disk.img"),
        scratch.join("key"),
    );
    let (image, key) = (image.to_str().unwrap(), key.to_str().unwrap());
    let bytes: Vec<u8> = (0..64).collect();
    fs::write(key, &bytes).unwrap();
    let features = ["-q", "-t", "f2fs", "-O", "encrypt"];
    steadfs(["format"].into_iter().chain(features).chain([image, "64M"])).expect(0);
    let secret = format!("{image}:/secret");
    steadfs(["mkdir", &secret]).expect(0);
    // What a policy calls the key: HKDF-SHA512 of it, as fscryptctl prints it.
    let name = ::steadfs::VolumeKey::read(Path::new(key), None).unwrap();
    let name = name.name().to_string();
    steadfs(["key", "set-policy", "--key-file", key, &secret, &name]).expect(0);
    python(&site, &["-c", ENCRYPTED, image, key]).expect(0);
}

#[test]
#[ignore = "builds the library once more, and takes packages from PyPI: some minutes"]
fn the_wheel_is_installed_and_used_by_others() {
    let mut make = Command::new("make");
    make.args(["-C", &format!("{SOURCES}/../.."), "wheel"]);
    finish(make, Duration::from_secs(1500)).expect(0);
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| Path::new(SOURCES).join("../../target"), PathBuf::from);
    let wheels = fs::read_dir(target.join("packages")).unwrap();
    let wheels: Vec<PathBuf> = wheels
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "whl"))
        .collect();
    let [wheel] = &wheels[..] else {
        panic!("{wheels:?}")
    };
    let scratch = Scratch::new();
    let room = scratch.join("venv");
    run("python3", ["-m", "venv", room.to_str().unwrap()]).expect(0);
    let python = room.join("bin/python");
    let python = python.to_str().unwrap();
    let wheel = format!("{}[fsspec]", wheel.display());
    let packages = ["pytest", "pandas", "pyarrow", "mypy"];
    let words = ["-m", "pip", "install", "--quiet", &wheel];
    run(python, words.into_iter().chain(packages)).expect(0);
    let tests = format!("{SOURCES}/tests");
    let words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", &tests];
    println!("{}", run(python, words).expect(0).out);
    let typed = "import steadfs\nreveal_type(steadfs.open('x').stat('y').st_mtime_ns)\n";
    let found = run(python, ["-m", "mypy", "--strict", "-c", typed]).expect(0);
    assert!(found.out.contains("builtins.int"), "{}", found.out);
}
