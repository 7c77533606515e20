//! Finding files on a volume by path.

use std::collections::BTreeSet;

use steadfs_base::limits::SYMLINK_MAX;
use steadfs_base::{Corruption, InodeNo};
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, Result, check_name};

use super::copying::Follow;
use super::{Result as ToolResult, ToolError};

/// Deepest tree of copies and listings: twice the depth of a path on Linux (`PATH_MAX`).
pub(crate) const DEPTH_MAX: usize = 4096;

/// Symbolic links one path may lead through, as Linux has it (`MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;

/// A reference to an inode: one lookup count.
pub struct Held<'a> {
    fs: &'a dyn FileSystem,
    attr: Attr,
    counted: bool,
}

impl<'a> Held<'a> {
    /// The volume's root.
    ///
    /// # Errors
    /// Those of `getattr`.
    pub fn root(fs: &'a dyn FileSystem, cx: &Cx) -> Result<Self> {
        let attr = fs.getattr(cx, fs.root())?;
        Ok(Self {
            fs,
            attr,
            counted: false,
        })
    }

    /// Takes over the lookup count that came with `attr`.
    pub fn counted(fs: &'a dyn FileSystem, attr: Attr) -> Self {
        Self {
            fs,
            attr,
            counted: true,
        }
    }

    /// The attributes; the caller takes over the lookup count, which the root does not have.
    pub(crate) fn into_counted(self) -> Attr {
        let mut this = self;
        this.counted = false;
        this.attr.clone()
    }

    /// Attributes at the time it was found.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// Inode number.
    pub fn ino(&self) -> InodeNo {
        self.attr.ino
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.fs.forget(self.attr.ino, 1);
        }
    }
}

/// The directories visited so far. One visited twice is corruption, and could be part of a cycle.
pub(super) struct VisitedDirs {
    /// The visited directories; if links are followed, only those being copied.
    folders: BTreeSet<InodeNo>,
    linked: bool,
}

impl VisitedDirs {
    /// For a walk that follows links by this rule.
    pub fn new(follow: Follow) -> Self {
        Self {
            folders: BTreeSet::new(),
            linked: follow == Follow::Always,
        }
    }

    /// Visits the directory `ino`.
    pub fn add(&mut self, ino: InodeNo) -> Result<()> {
        self.check(ino)?;
        self.folders.insert(ino);
        Ok(())
    }

    /// Fails for a directory that must not be visited again.
    pub fn check(&self, ino: InodeNo) -> Result<()> {
        match (self.folders.contains(&ino), self.linked) {
            (false, _) => Ok(()),
            (true, true) => Err(FsError::Invalid(
                "a symbolic link leads to a folder around it",
            )),
            (true, false) => Err(Corruption::new("a directory has two names")
                .in_inode(ino)
                .into()),
        }
    }

    /// Leaves the directory `ino`.
    pub fn leave(&mut self, ino: InodeNo) {
        if self.linked {
            self.folders.remove(&ino);
        }
    }
}

/// Refuses `path` if more than [`DEPTH_MAX`] directories are around it.
pub(super) fn check_depth(around: usize, path: &[u8]) -> ToolResult<()> {
    match around > DEPTH_MAX {
        true => Err(ToolError::TooDeep {
            path: path.to_vec(),
        }),
        false => Ok(()),
    }
}

/// An entry of a directory, `.` and `..` left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Inode number.
    pub ino: InodeNo,
    /// Type, if the directory has it.
    pub kind: Option<FileKind>,
    /// The name; checked, so never empty, never with a slash.
    pub name: Vec<u8>,
}

/// All entries of a directory, `.` and `..` left out, in the directory's order.
///
/// # Errors
/// Those of `readdir`; [`FsError::Corrupt`] for names that cannot be.
pub fn read_dir(fs: &dyn FileSystem, cx: &Cx, dir: InodeNo) -> Result<Vec<Entry>> {
    match entries(fs, cx, dir) {
        (entries, None) => Ok(entries),
        (_, Some(error)) => Err(error),
    }
}

/// As [`read_dir`]: the readable entries, and the error of the others.
pub(super) fn entries(fs: &dyn FileSystem, cx: &Cx, dir: InodeNo) -> (Vec<Entry>, Option<FsError>) {
    let mut entries = Vec::new();
    let mut bad = None;
    let read = fs.readdir(cx, dir, 0, &mut |entry| {
        if entry.name == b"." || entry.name == b".." {
            return true;
        }
        if check_name(entry.name).is_err() {
            bad = Some(
                Corruption::new("a directory entry has an impossible name")
                    .in_inode(dir)
                    .into(),
            );
            return true;
        }
        entries.push(Entry {
            ino: entry.ino,
            kind: entry.kind,
            name: entry.name.to_vec(),
        });
        true
    });
    (entries, read.err().or(bad))
}

/// The file `name` in `dir`.
///
/// # Errors
/// Those of `lookup`.
pub fn child<'a>(fs: &'a dyn FileSystem, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Held<'a>> {
    Ok(Held::counted(fs, fs.lookup(cx, dir, name)?))
}

/// The file at `path`, from the volume's root whether or not it begins with a slash. Symbolic links
/// on the way are followed inside the volume; one at the end only if `follow`.
///
/// # Errors
/// As stat(2); [`FsError::Loop`] for a circle of links.
pub fn resolve<'a>(fs: &'a dyn FileSystem, cx: &Cx, path: &[u8], follow: bool) -> Result<Held<'a>> {
    way(fs, cx, path, follow)?.pop().ok_or(FsError::NotFound)
}

/// Whether the symbolic link at `link` leads to the file with the attributes `file`, which is no link itself. As by cp(1), a
/// link that cannot be followed leads elsewhere.
pub(super) fn leads_to(fs: &dyn FileSystem, cx: &Cx, link: &[u8], file: &Attr) -> bool {
    let is_it = |end: Held<'_>| end.ino() == file.ino;
    file.kind != FileKind::Symlink && resolve(fs, cx, link, true).is_ok_and(is_it)
}

/// As [`resolve`], with all directories from the root to the file, which comes last.
pub(super) fn way<'a>(
    fs: &'a dyn FileSystem,
    cx: &Cx,
    path: &[u8],
    follow: bool,
) -> Result<Vec<Held<'a>>> {
    let mut walk = PathWalk::begin(fs, cx)?;
    walk.go(path, follow)?;
    Ok(walk.way)
}

/// A walk along paths. It begins at the volume's root.
pub(super) struct PathWalk<'a, 'c> {
    pub fs: &'a dyn FileSystem,
    pub cx: &'c Cx,
    /// The directories from the root to the current file, which comes last.
    way: Vec<Held<'a>>,
    /// Links that it has led through.
    links: u32,
}

impl<'a, 'c> PathWalk<'a, 'c> {
    pub fn begin(fs: &'a dyn FileSystem, cx: &'c Cx) -> Result<Self> {
        Ok(Self {
            fs,
            cx,
            way: vec![Held::root(fs, cx)?],
            links: 0,
        })
    }

    /// The current file.
    pub fn here(&self) -> Result<&Held<'a>> {
        self.way.last().ok_or(FsError::NotFound)
    }

    /// Goes back to the root if a path begins there.
    pub fn start(&mut self, path: &[u8]) {
        if path.starts_with(b"/") {
            self.way.truncate(1);
        }
    }

    /// Goes on to the file at `path`. Links are followed, one at the end only if `follow` or if the path can only name a
    /// directory.
    pub fn go(&mut self, path: &[u8], follow: bool) -> Result<()> {
        self.start(path);
        // Remaining components, the next one last.
        let mut todo: Vec<Vec<u8>> = components(path);
        let mut must_be_dir = is_of_dir(path);
        while let Some(name) = todo.pop() {
            let here = self.here()?;
            if here.attr.kind != FileKind::Directory {
                return Err(FsError::NotDir);
            }
            if name == b".." {
                if self.way.len() > 1 {
                    self.way.pop();
                }
                continue;
            }
            let next = child(self.fs, self.cx, here.ino(), &name)?;
            let follows = follow || must_be_dir || !todo.is_empty();
            if next.attr.kind != FileKind::Symlink || !follows {
                self.way.push(next);
                continue;
            }
            let target = self.behind(&next)?;
            must_be_dir |= todo.is_empty() && is_of_dir(&target);
            self.start(&target);
            todo.extend(components(&target));
        }
        match must_be_dir && self.here()?.attr.kind != FileKind::Directory {
            true => Err(FsError::NotDir),
            false => Ok(()),
        }
    }

    /// Where a link of the current directory leads, which is one more.
    pub fn behind(&mut self, link: &Held<'_>) -> Result<Vec<u8>> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(FsError::Loop);
        }
        let target = self.fs.readlink(self.cx, link.ino())?;
        match target.len() {
            0 => Err(FsError::NotFound),
            len if len > SYMLINK_MAX => Err(FsError::NameTooLong),
            _ => Ok(target),
        }
    }
}

/// The directory that has, or would have, the last name of `path`, and that name.
///
/// # Errors
/// As [`resolve`]; [`FsError::Invalid`] for a path without a name at its end.
pub fn resolve_parent<'a>(
    fs: &'a dyn FileSystem,
    cx: &Cx,
    path: &[u8],
) -> Result<(Held<'a>, Vec<u8>)> {
    let mut names = components(path);
    names.reverse();
    let last = names.pop().ok_or(FsError::Exists)?;
    if last == b".." {
        return Err(FsError::Invalid("the path ends in '..'"));
    }
    check_name(&last)?;
    let dir = resolve(fs, cx, &names.join(&b'/'), true)?;
    if dir.attr.kind != FileKind::Directory {
        return Err(FsError::NotDir);
    }
    Ok((dir, last))
}

/// Whether a path can only name a directory.
pub(super) fn is_of_dir(path: &[u8]) -> bool {
    path.ends_with(b"/") || is_dot(path)
}

fn is_dot(path: &[u8]) -> bool {
    path.rsplit(|&b| b == b'/').next() == Some(b".")
}

/// Refuses a copy's path `to` that can only name a directory but does not, as the kernel does; `found` returns the type
/// there. A directory can be made at a path that ends in a slash.
pub(super) fn check_end(
    kind: FileKind,
    to: &[u8],
    found: impl FnOnce() -> Result<FileKind>,
) -> Result<()> {
    if !is_of_dir(to) {
        return Ok(());
    }
    match found() {
        Ok(FileKind::Directory) => Ok(()),
        Ok(_) => Err(FsError::NotDir),
        Err(FsError::NotFound) if is_dot(to) => Err(FsError::NotFound),
        Err(FsError::NotFound) if kind == FileKind::Directory => Ok(()),
        Err(FsError::NotFound) => Err(FsError::NotDir),
        Err(error) => Err(error),
    }
}

/// Names of a path, the first one last; empty ones and `.` left out.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&b| b == b'/')
        .rev()
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
        .collect()
}
