//! What the copies into volumes, out of them and between them share: options, errors met on the way, paths.

use steadfs_base::Timestamp;

use super::{HostFile, Result, ToolError, push};

/// Which symbolic links among the sources are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// None: links are copied as links (cp -P).
    Never,
    /// The source that is named, but no link below it (cp -H).
    Named,
    /// All (cp -L).
    Always,
}

/// What is done where the target of a copy exists and neither it nor the source is a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// An error.
    Refuse,
    /// Left as it is, without an error (cp -n).
    Skip,
    /// As cp(1): a regular file is truncated and written, so it keeps its inode with owner, mode and other names. A
    /// named target may also be a device or pipe of the host, or a link to one of these. A link or special file that
    /// is copied as such takes the place of what is there.
    Overwrite,
    /// The same, but a regular file that cannot be opened is removed first (cp -f).
    Force,
    /// Removed first (cp --remove-destination).
    Replace,
}

/// How a copy is made; rules and words are cp(1)'s.
#[derive(Clone, Copy, Debug)]
pub struct CopyOptions {
    /// Copy directories with all that is in them, and special files as such. Otherwise both are refused, except that a
    /// device or pipe of the host is read.
    pub recursive: bool,
    /// Which links among the sources are followed.
    pub follow: Follow,
    /// What is done where the target exists.
    pub existing: Existing,
    /// Give the original's attributes also to files and directories that existed before the copy.
    pub preserve: bool,
    /// Keep owners. Otherwise files belong to who runs the copy or, on a volume, to user 0.
    pub owners: bool,
    /// The file on the host that holds the volume: it is neither copied into itself nor written over.
    pub image: Option<HostFile>,
    /// The copy follows from names, contents and attributes of the tree alone: times of writing are at most this one
    /// and are those of access, too, and blocks of zeros become holes. `None`: times and holes are the originals'.
    pub latest: Option<Timestamp>,
}

impl Default for CopyOptions {
    /// A faithful copy that changes no existing file (cp -a, with an error for each of them).
    fn default() -> Self {
        Self {
            recursive: true,
            follow: Follow::Never,
            existing: Existing::Refuse,
            preserve: true,
            owners: true,
            image: None,
            latest: None,
        }
    }
}

/// What a copy did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a copy goes on behind what fails: only the report says whether it is complete"]
pub struct Report {
    /// Files of all kinds copied, folders included; a further hard link counts as one.
    pub files: u64,
    /// Bytes of file content copied, holes not counted.
    pub bytes: u64,
    /// Files and directories that could not be copied, or not with all that is in them.
    pub failed: u64,
    /// Attributes that the target did not take, or the source did not give.
    pub not_kept: u64,
}

impl Report {
    /// Whether the copy has everything that the original has.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && self.not_kept == 0
    }

    /// Adds another copy's counts.
    pub fn add(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.failed += other.failed;
        self.not_kept += other.not_kept;
    }
}

/// Observes a copy, and may stop it.
pub trait Progress {
    /// Copying of one file begins.
    fn file(&mut self, source: &[u8], target: &[u8]);
    /// This many more bytes are copied.
    fn bytes(&mut self, count: u64);
    /// Something could not be copied or kept; the copy goes on.
    fn problem(&mut self, error: &ToolError);
    /// Whether the copy is to stop: asked between files and between pieces of a file.
    fn stopped(&self) -> bool {
        false
    }
}

/// Observes nothing.
pub struct Quiet;

impl Progress for Quiet {
    fn file(&mut self, _: &[u8], _: &[u8]) {}
    fn bytes(&mut self, _: u64) {}
    fn problem(&mut self, _: &ToolError) {}
}

/// Counts what a copy does and reports its problems as they occur.
pub(super) struct Log<'p> {
    progress: &'p mut dyn Progress,
    pub report: Report,
}

impl<'p> Log<'p> {
    pub fn new(progress: &'p mut dyn Progress) -> Self {
        Self {
            progress,
            report: Report::default(),
        }
    }

    /// Begins with a file.
    pub fn begin(&mut self, source: &[u8], target: &[u8]) -> Result<()> {
        self.progress.file(source, target);
        self.go_on()
    }

    /// Counts bytes copied.
    pub fn bytes(&mut self, count: usize) -> Result<()> {
        self.report.bytes += count as u64;
        self.progress.bytes(count as u64);
        self.go_on()
    }

    /// Fails if the copy is to stop.
    pub fn go_on(&self) -> Result<()> {
        match self.progress.stopped() {
            true => Err(ToolError::Stopped),
            false => Ok(()),
        }
    }

    /// Notes that a file was not copied, or only in part. Returns the error where going on makes no sense.
    pub fn failed(&mut self, error: ToolError) -> Result<()> {
        if error.ends_all() {
            return Err(error);
        }
        self.report.failed += 1;
        self.progress.problem(&error);
        Ok(())
    }

    /// Notes that an attribute of the file at `path` was not kept.
    pub fn not_kept(&mut self, path: &[u8], what: &str, why: &dyn std::fmt::Display) {
        self.report.not_kept += 1;
        self.progress.problem(&ToolError::NotKept {
            path: path.to_vec(),
            what: what.to_owned(),
            why: why.to_string(),
        });
    }
}

/// The paths of what is copied, and of the copy. They are kept once, whatever the depth: one for each folder would take
/// the square of it.
pub(super) struct Paths {
    pub source: Vec<u8>,
    pub target: Vec<u8>,
}

/// How long the paths are in a folder.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    source: usize,
    target: usize,
}

impl Paths {
    pub fn lengths(&self) -> Lengths {
        Lengths {
            source: self.source.len(),
            target: self.target.len(),
        }
    }

    /// Goes back to the folder where the paths had these lengths.
    pub fn back_to(&mut self, folder: Lengths) {
        self.source.truncate(folder.source);
        self.target.truncate(folder.target);
    }

    pub fn push(&mut self, name: &[u8]) {
        push(&mut self.source, name);
        push(&mut self.target, name);
    }
}
