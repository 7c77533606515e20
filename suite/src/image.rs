//! Image files, and the judges' verdicts about them.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::command::{Outcome, run, succeed};
use crate::scratch::Scratch;

/// An image file with a volume.
#[derive(Clone, Debug)]
pub struct Image {
    path: PathBuf,
}

impl Image {
    /// An image of `size` bytes, formatted by mke2fs with `args`.
    #[track_caller]
    pub fn mke2fs(scratch: &Scratch, name: &str, size: u64, args: &[&str]) -> Self {
        let image = Self::empty(scratch, name, size);
        let path = image.path.to_str().expect("scratch paths are UTF-8");
        let args = ["-q", "-F"].iter().chain(args).chain([&path]);
        succeed("mke2fs", args);
        image
    }

    /// An image of `size` zero bytes.
    #[track_caller]
    pub fn empty(scratch: &Scratch, name: &str, size: u64) -> Self {
        let path = scratch.join(name);
        let file = File::create(&path).expect("an image file can be made");
        file.set_len(size).expect("an image file can have its size");
        Self { path }
    }

    /// An existing image file.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A copy under another name, holes preserved.
    #[track_caller]
    pub fn copy(&self, scratch: &Scratch, name: &str) -> Self {
        let path = scratch.join(name);
        let args = ["--sparse=always", "--reflink=auto"].map(Path::new);
        succeed("cp", args.into_iter().chain([self.path(), &path]));
        Self { path }
    }

    /// Checks that `e2fsck -fn` finds nothing.
    #[track_caller]
    pub fn check_clean(&self) {
        let output = run("e2fsck", ["-fn".as_ref(), self.path.as_os_str()]);
        assert_eq!(
            output.code(),
            0,
            "e2fsck -fn:\n{}{}",
            output.out,
            output.err
        );
    }

    /// Lets `e2fsck -fy` replay the journal; fails the test if it repairs anything else.
    #[track_caller]
    pub fn replay_by_e2fsck(&self) {
        let output = run("e2fsck", ["-fy".as_ref(), self.path.as_os_str()]);
        assert!(
            matches!(output.code(), 0 | 1),
            "e2fsck -fy:\n{}{}",
            output.out,
            output.err
        );
        self.check_clean();
        // The superblock's free counts are not journaled; each mount recomputes them.
        let lines: Vec<&str> = output.out.lines().filter(|line| !line.is_empty()).collect();
        let answered = |line: &str| line.ends_with("? yes");
        let repairs = lines.windows(2).find(|pair| {
            let counts = [
                "Free blocks count wrong (",
                "Free inodes count wrong (",
                // The flag requests a look at the orphan file, which was empty.
                "Feature orphan_present is set but orphan file is clean",
                // Printed for every orphan file that was in use, also the kernel's, after its entries are freed.
                "Orphan file (inode ",
            ];
            answered(pair[1]) && !counts.iter().any(|c| pair[0].starts_with(c))
        });
        assert_eq!(repairs, None, "e2fsck repaired:\n{}", output.out);
    }

    /// Runs commands of debugfs in write mode.
    #[track_caller]
    pub fn debugfs(&self, commands: &str) -> Outcome {
        let script = self.path.with_extension("debugfs");
        std::fs::write(&script, commands).expect("a script can be written");
        let args = [
            "-w".as_ref(),
            "-f".as_ref(),
            script.as_os_str(),
            self.path.as_os_str(),
        ];
        succeed("debugfs", args)
    }

    /// Whether the journal needs a replay.
    #[track_caller]
    pub fn needs_recovery(&self) -> bool {
        let output = succeed("dumpe2fs", ["-h".as_ref(), self.path.as_os_str()]);
        output.out.contains("needs_recovery")
    }
}
