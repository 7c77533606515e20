//! Directories as other programs make them: inline, encrypted; read only.

use std::path::Path;

use steadfs_base::InodeNo;
use steadfs_vfs::{FileKind, FsError};

use crate::disk::test_images::Image;
use crate::options::MountOptions;
use crate::test_world::{ROOT, World};

fn open(image: Image) -> World {
    World::open_with(image, MountOptions::parse("ro").unwrap())
}

/// Compares a directory of the volume with one of the host.
fn compare(world: &World, dir: InodeNo, host: &Path) {
    let mut wanted = Vec::new();
    for entry in std::fs::read_dir(host).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_encoded_bytes();
        let found = world.lookup(dir, &name).unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            assert_eq!(found.kind, FileKind::Directory);
            assert_eq!(world.lookup(found.ino, b"..").unwrap().ino, dir);
            compare(world, found.ino, &entry.path());
        } else if kind.is_symlink() {
            let target = std::fs::read_link(entry.path()).unwrap();
            let target = target.into_os_string().into_encoded_bytes();
            assert_eq!(world.fs.readlink(&world.cx, found.ino).unwrap(), target);
        }
        wanted.push(name);
    }
    wanted.sort();
    let mut names = world.names(dir);
    names.retain(|name| dir != ROOT || name != b"lost+found");
    assert_eq!(names, wanted);
    for batch in [1, 3] {
        assert_eq!(world.list(dir, batch).len(), world.list(dir, 1000).len());
    }
    assert_eq!(world.lookup(dir, b"not there"), Err(FsError::NotFound));
}

#[test]
fn inline_directories() {
    let dir = tempfile::tempdir().unwrap();
    let make = |count: usize, name: &str| {
        let sub = dir.path().join(name);
        std::fs::create_dir(&sub).unwrap();
        for n in 0..count {
            std::fs::write(sub.join(format!("file-{n}")), b"").unwrap();
        }
        std::fs::create_dir(sub.join("sub")).unwrap();
        std::os::unix::fs::symlink("t".repeat(40 + 7 * count), sub.join("link")).unwrap();
    };
    for (count, name) in [(0, "empty"), (2, "small"), (9, "more"), (300, "blocks")] {
        make(count, name);
    }
    let source = dir.path().to_str().unwrap();
    let options = [
        "-t",
        "ext4",
        "-b",
        "4096",
        "-I",
        "512",
        "-O",
        "inline_data",
        "-d",
        source,
    ];
    let image = Image::make(&options, "16M");
    assert!(image.debugfs("stat /small").contains("Size of inline data"));
    compare(&open(image), ROOT, dir.path());
}
