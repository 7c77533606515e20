//! Images made by e2fsprogs, for tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use steadfs_block::MemDevice;
use tempfile::TempDir;

use super::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use super::{Geometry, Superblock};

/// An image file that lives as long as the value.
pub struct Image {
    dir: TempDir,
}

/// A judge to be started. A whole path, because a name is looked for after a fork, which copies the page
/// tables of a process full of images.
pub fn judge(program: &str) -> Command {
    let path = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .map(|dir| Path::new(dir).join(program))
        .into_iter()
        .find(|path| path.is_file());
    Command::new(path.unwrap_or_else(|| panic!("{program} is needed by this test")))
}

/// Runs a judge; its standard output. Panics when it is missing or fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = judge(program).args(args).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Image {
    /// `mke2fs` with these options on a new sparse file of `size` (as `mke2fs` takes sizes).
    pub fn make(options: &[&str], size: &str) -> Self {
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
    pub fn of(bytes: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = Self { dir };
        image.fill(bytes);
        image
    }

    /// Gives the image these bytes instead of its own.
    pub fn fill(&self, bytes: &[u8]) {
        MemDevice::from_bytes(bytes).save(&self.path()).unwrap();
    }

    /// The image file.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// A device with the image's content.
    pub fn device(&self) -> Arc<MemDevice> {
        Arc::new(MemDevice::load(&self.path()).unwrap())
    }

    /// A path next to the image.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The content of the image file.
    pub fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    /// `debugfs -w` with one command.
    pub fn debugfs(&self, command: &str) -> String {
        let path = self.path();
        run("debugfs", &["-w", "-R", command, path.to_str().unwrap()])
    }

    /// `dumpe2fs`, whole.
    pub fn dumpe2fs(&self) -> String {
        run("dumpe2fs", &[self.path().to_str().unwrap()])
    }

    /// The superblock, which must be valid.
    pub fn superblock(&self) -> Superblock {
        superblock_in(&self.path())
    }
}

fn superblock_in(path: &Path) -> Superblock {
    let bytes = fs::read(path).unwrap();
    let start = usize::try_from(SUPERBLOCK_OFFSET).unwrap();
    Superblock::parse(&bytes[start..start + SUPERBLOCK_SIZE]).unwrap()
}

/// The geometry of a small ext4 volume made with these extra options.
pub fn geometry(options: &[&str]) -> Geometry {
    let mut all = vec!["-t", "ext4"];
    all.extend_from_slice(options);
    Image::make(&all, "4M").superblock().geometry().clone()
}
