//! Image files, and what the judges say about them.

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

    /// An image file that is there.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A copy under another name, holes kept.
    #[track_caller]
    pub fn copy(&self, scratch: &Scratch, name: &str) -> Self {
        let path = scratch.join(name);
        let args = ["--sparse=always", "--reflink=auto"].map(Path::new);
        succeed("cp", args.into_iter().chain([self.path(), &path]));
        Self { path }
    }

    /// Fails the test unless `e2fsck -fn` finds nothing to say.
    #[track_caller]
    pub fn check_clean(&self) {
        let said = run("e2fsck", ["-fn".as_ref(), self.path.as_os_str()]);
        assert_eq!(said.code(), 0, "e2fsck -fn:\n{}{}", said.out, said.err);
    }

    /// Lets `e2fsck -fy` replay the journal; fails the test if it had to repair anything besides.
    #[track_caller]
    pub fn replay_by_e2fsck(&self) {
        let said = run("e2fsck", ["-fy".as_ref(), self.path.as_os_str()]);
        assert!(
            matches!(said.code(), 0 | 1),
            "e2fsck -fy:\n{}{}",
            said.out,
            said.err
        );
        self.check_clean();
        // The superblock's free counts are not journaled, and counted anew at each mount.
        let lines: Vec<&str> = said.out.lines().filter(|line| !line.is_empty()).collect();
        let answered = |line: &str| line.ends_with("? yes");
        let repairs = lines.windows(2).find(|pair| {
            let counts = [
                "Free blocks count wrong (",
                "Free inodes count wrong (",
                // A flag that says "look", and nothing was there.
                "Feature orphan_present is set but orphan file is clean",
                // Of every orphan file that was in use, the kernel's too, after it has freed what was named there.
                "Orphan file (inode ",
            ];
            answered(pair[1]) && !counts.iter().any(|c| pair[0].starts_with(c))
        });
        assert_eq!(repairs, None, "e2fsck repaired:\n{}", said.out);
    }

    /// Runs commands of debugfs, with the right to write.
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

    /// Whether the journal waits to be replayed.
    #[track_caller]
    pub fn needs_recovery(&self) -> bool {
        let said = succeed("dumpe2fs", ["-h".as_ref(), self.path.as_os_str()]);
        said.out.contains("needs_recovery")
    }
}
