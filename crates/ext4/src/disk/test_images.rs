//! Images made by e2fsprogs, for the tests of this crate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use super::{Geometry, Superblock};

/// An image file that lives as long as the value.
pub(crate) struct Image {
    dir: TempDir,
}

/// Runs a judge; its standard output. Panics when it is missing or fails.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap_or_else(|e| panic!("{program} is needed by this test: {e}"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Image {
    /// `mke2fs` with these options on a new sparse file of `size` (as `mke2fs` takes sizes).
    pub(crate) fn make(options: &[&str], size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = Self { dir };
        let path = image.path();
        let mut args = vec!["-q", "-F"];
        args.extend_from_slice(options);
        args.push(path.to_str().unwrap());
        args.push(size);
        run("mke2fs", &args);
        image
    }

    /// An image file with these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = Self { dir };
        fs::write(image.path(), bytes).unwrap();
        image
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// A path next to the image.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    /// `debugfs -w` with one command.
    pub(crate) fn debugfs(&self, command: &str) -> String {
        let path = self.path();
        run("debugfs", &["-w", "-R", command, path.to_str().unwrap()])
    }

    /// `dumpe2fs`, whole.
    pub(crate) fn dumpe2fs(&self) -> String {
        run("dumpe2fs", &[self.path().to_str().unwrap()])
    }

    pub(crate) fn superblock(&self) -> Superblock {
        superblock_in(&self.path())
    }
}

fn superblock_in(path: &Path) -> Superblock {
    let bytes = fs::read(path).unwrap();
    let start = usize::try_from(SUPERBLOCK_OFFSET).unwrap();
    Superblock::parse(&bytes[start..start + SUPERBLOCK_SIZE]).unwrap()
}

/// The geometry of a small ext4 volume made with these extra options.
pub(crate) fn geometry(options: &[&str]) -> Geometry {
    let mut all = vec!["-t", "ext4"];
    all.extend_from_slice(options);
    Image::make(&all, "4M").superblock().geometry().clone()
}
