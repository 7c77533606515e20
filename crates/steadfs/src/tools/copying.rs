//! Shared by all copies (into, out of and between volumes): options, error reports, paths.

use std::collections::VecDeque;

use steadfs_base::Timestamp;
use steadfs_vfs::{FileSystem, Given, GivenPart, NotGiven};

use super::edit::{Changed, Question};
use super::{At, HostFile, Result, ToolError, printable, push};

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

/// What happens if the target of a copy exists and neither it nor the source is a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// An error.
    Refuse,
    /// It is not changed, without an error (cp -n).
    Skip,
    /// As cp(1): a regular file is truncated and written, so it keeps its inode with owner, mode and other names. A
    /// named target may also be a device or pipe of the host, or a link to one of these. A link or special file that
    /// is copied as such takes the place of what is there.
    Overwrite,
    /// The same, but a regular file that cannot be opened is removed first (cp -f).
    Force,
    /// It is removed first (cp --remove-destination).
    Replace,
}

/// The options of a copy, by the rules of cp(1).
#[derive(Clone, Copy, Debug)]
pub struct CopyOptions {
    /// Copy directories with all that is in them, and special files as such. Otherwise both are refused, except that a
    /// device or pipe of the host is read.
    pub recursive: bool,
    /// Which links among the sources are followed.
    pub follow: Follow,
    /// What happens if the target exists.
    pub existing: Existing,
    /// The user is asked before an existing file is replaced or written.
    pub ask: bool,
    /// Give the original's attributes also to files and directories that existed before the copy.
    pub preserve: bool,
    /// Keep owners. Otherwise files belong to the user that runs the copy or, on a volume, to user 0.
    pub owners: bool,
    /// Keep what gives a file rights of its own on the host: set-ID bits, device nodes, and extended attributes below
    /// `security.` and `trusted.`. Of copies to the host only.
    pub privileges: bool,
    /// The copy ends if the files have more bytes of data than this, holes not counted: on a hostile volume many files can
    /// share blocks, or be compressed, and would fill the host. Of copies to the host only.
    pub data_max: Option<u64>,
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
            ask: false,
            preserve: true,
            owners: true,
            privileges: true,
            data_max: None,
            image: None,
            latest: None,
        }
    }
}

/// The counts of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a copy continues after a failed file: only the report shows whether it is complete"]
pub struct Report {
    /// Files of all kinds copied, folders included; a further hard link counts as one.
    pub files: u64,
    /// Bytes of file content copied, holes not counted.
    pub bytes: u64,
    /// Files and directories that could not be copied, or not with all that is in them.
    pub failed: u64,
    /// Attributes that could not be read or set.
    pub not_kept: u64,
}

impl Report {
    /// Whether everything was copied and kept.
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

/// Observes a copy, and can stop it.
pub trait Progress {
    /// Copying of one file begins.
    fn file(&mut self, source: &[u8], target: &[u8]);
    /// This many more bytes are copied.
    fn bytes(&mut self, count: u64);
    /// A file could not be copied or an attribute kept; the copy continues.
    fn problem(&mut self, error: &ToolError);
    /// Whether the copy must stop; called between files and between pieces of a file.
    fn stopped(&self) -> bool {
        false
    }
    /// A change that was made by an [`Editor`](super::edit::Editor).
    fn changed(&mut self, _: &Changed<'_>) {}
    /// Whether a change is to be made; called where the options of a command ask for that.
    fn confirm(&mut self, _: &Question<'_>) -> bool {
        true
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
    data_max: u64,
    /// Calls whose results are not known yet.
    later: VecDeque<Later>,
    /// The first result of these calls after which every later file would fail, too.
    end: Option<ToolError>,
}

/// A call whose result is not known yet.
struct Later {
    path: Vec<u8>,
    /// Names of the extended attributes that it sets.
    xattrs: Vec<Vec<u8>>,
    /// Whether it makes the file.
    makes: bool,
}

impl Later {
    fn new(path: &[u8], given: &Given, makes: bool) -> Self {
        Self {
            path: path.to_vec(),
            xattrs: given.xattrs.iter().map(|(name, _)| name.clone()).collect(),
            makes,
        }
    }
}

impl<'p> Log<'p> {
    pub fn new(progress: &'p mut dyn Progress) -> Self {
        Self {
            progress,
            report: Report::default(),
            data_max: u64::MAX,
            later: VecDeque::new(),
            end: None,
        }
    }

    /// Limits the bytes that are copied.
    pub fn limited(self, data_max: Option<u64>) -> Self {
        Self {
            data_max: data_max.unwrap_or(u64::MAX),
            ..self
        }
    }

    /// Reports the next file.
    pub fn begin(&mut self, source: &[u8], target: &[u8]) -> Result<()> {
        self.progress.file(source, target);
        self.check_stopped()
    }

    /// Whether the user wants an existing file to be overwritten.
    pub fn confirm(&mut self, target: &[u8]) -> bool {
        self.progress.confirm(&Question::Overwrite(target))
    }

    /// Counts bytes copied. Fails above the limit.
    pub fn bytes(&mut self, count: usize) -> Result<()> {
        self.report.bytes += count as u64;
        if self.report.bytes > self.data_max {
            return Err(ToolError::TooMuch(self.data_max));
        }
        self.progress.bytes(count as u64);
        self.check_stopped()
    }

    /// Fails if the copy must stop.
    pub fn check_stopped(&mut self) -> Result<()> {
        if let Some(error) = self.end.take() {
            return Err(error);
        }
        match self.progress.stopped() {
            true => Err(ToolError::Stopped),
            false => Ok(()),
        }
    }

    /// Reports that a file was not copied completely. Fails if every later file would fail, too.
    pub fn failed(&mut self, error: ToolError) -> Result<()> {
        if error.ends_all() {
            return Err(error);
        }
        self.report.failed += 1;
        self.progress.problem(&error);
        Ok(())
    }

    /// Takes the result of [`FileSystem::make`], which can come later.
    pub fn made(
        &mut self,
        fs: &dyn FileSystem,
        path: &[u8],
        given: &Given,
        made: Option<steadfs_vfs::Result<Vec<NotGiven>>>,
    ) -> Result<()> {
        let call = Later::new(path, given, true);
        match made {
            Some(made) => {
                let missing = made.on_volume(path)?;
                self.not_given(&call, missing);
            }
            None => self.wait_for(call, fs),
        }
        Ok(())
    }

    /// Takes the result of [`FileSystem::give`], which can come later.
    pub fn given(
        &mut self,
        fs: &dyn FileSystem,
        path: &[u8],
        given: &Given,
        done: Option<steadfs_vfs::Result<Vec<NotGiven>>>,
    ) {
        let call = Later::new(path, given, false);
        match done {
            Some(done) => self.came(&call, done),
            None => self.wait_for(call, fs),
        }
    }

    fn wait_for(&mut self, call: Later, fs: &dyn FileSystem) {
        self.later.push_back(call);
        self.collect(fs, false);
    }

    /// Waits for all results.
    ///
    /// # Errors
    /// One of them ends the copy.
    pub fn settle(&mut self, fs: &dyn FileSystem) -> Result<()> {
        self.collect(fs, true);
        self.end.take().map_or(Ok(()), Err)
    }

    fn collect(&mut self, fs: &dyn FileSystem, all: bool) {
        for result in fs.made(all) {
            if let Some(call) = self.later.pop_front() {
                self.came(&call, result);
            }
        }
    }

    fn came(&mut self, call: &Later, result: steadfs_vfs::Result<Vec<NotGiven>>) {
        match result.on_volume(&call.path) {
            Ok(missing) => self.not_given(call, missing),
            Err(error) => {
                // It was counted when the call began.
                self.report.files -= u64::from(call.makes);
                if let Err(error) = self.failed(error) {
                    self.end.get_or_insert(error);
                }
            }
        }
    }

    fn not_given(&mut self, call: &Later, missing: Vec<NotGiven>) {
        for (part, why) in missing {
            let what = match part {
                GivenPart::Owner => "owner and mode".to_owned(),
                GivenPart::Times => "time".to_owned(),
                GivenPart::Xattr(place) => {
                    let name = usize::try_from(place).ok();
                    let name = name.and_then(|place| call.xattrs.get(place));
                    format!(
                        "attribute {}",
                        name.map(|name| printable(name)).unwrap_or_default()
                    )
                }
            };
            self.not_kept(&call.path, &what, &why);
        }
    }

    /// Reports a file that is left out by rule, which is no failure.
    pub fn left_out(&mut self, path: &[u8], why: &'static str) {
        let path = path.to_vec();
        self.progress.problem(&ToolError::Refused { path, why });
    }

    /// Reports that an attribute of the file at `path` was not kept.
    pub fn not_kept(&mut self, path: &[u8], what: &str, why: &dyn std::fmt::Display) {
        self.report.not_kept += 1;
        self.progress.problem(&ToolError::NotKept {
            path: path.to_vec(),
            what: what.to_owned(),
            why: why.to_string(),
        });
    }
}

/// The current source and target path. One buffer for all levels: a path for each directory would need memory quadratic
/// in the depth.
pub(super) struct Paths {
    pub source: Vec<u8>,
    pub target: Vec<u8>,
}

/// The lengths of the paths of a directory.
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

    /// Truncates the paths to those of a directory.
    pub fn back_to(&mut self, folder: Lengths) {
        self.source.truncate(folder.source);
        self.target.truncate(folder.target);
    }

    /// The paths of a directory around the file at these: source and target.
    pub fn around(&self, folder: Lengths) -> (&[u8], &[u8]) {
        let Lengths { source, target } = folder;
        (&self.source[..source], &self.target[..target])
    }

    pub fn push(&mut self, name: &[u8]) {
        push(&mut self.source, name);
        push(&mut self.target, name);
    }
}
