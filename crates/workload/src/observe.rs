//! Reads everything that a file system shows, and checks that it is consistent.

use std::collections::BTreeMap;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, Segment};
use thiserror::Error;

use crate::TreePath;
use crate::model::Content;
use crate::run::top;
use crate::spelling::{Speller, plain};

/// One inode as a file system shows it.
#[derive(Clone, Debug)]
pub struct InodeSnapshot {
    /// Type.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u32,
    /// Number of links.
    pub nlink: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Device number.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content of a regular file, up to [`CONTENT_LIMIT`].
    pub content: Content,
}

/// Number of bytes of a file that are read.
pub const CONTENT_LIMIT: u64 = 256 << 20;

/// Everything a file system shows.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Every name, the root included, with its inode.
    pub names: BTreeMap<TreePath, InodeNo>,
    /// Every named inode.
    pub inodes: BTreeMap<InodeNo, InodeSnapshot>,
}

/// A file system that cannot be read, or whose answers contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// A call failed.
    #[error("{call} of {path}: {error}")]
    Failed {
        /// The call.
        call: &'static str,
        /// The file.
        path: TreePath,
        /// Its error.
        error: FsError,
    },
    /// Two answers contradict each other.
    #[error("{path}: {what}")]
    Contradiction {
        /// The file.
        path: TreePath,
        /// The contradiction.
        what: String,
    },
}

struct Walk<'a> {
    fs: &'a dyn FileSystem,
    cx: Cx,
    seen: Observed,
    /// Directories that are not listed yet, with their parents.
    todo: Vec<(TreePath, Attr, InodeNo)>,
    speller: Speller,
    /// Number of subdirectories per directory.
    subdirs: BTreeMap<InodeNo, u32>,
}

/// Reads everything that `fs` shows.
///
/// # Errors
/// If a call fails or answers contradict each other: a listing and a lookup, a type in an entry and in an inode, a link
/// count and the names, `..` and the parent, or a read and the size.
pub fn observe(fs: &dyn FileSystem) -> Result<Observed, Unreadable> {
    let mut walk = Walk {
        fs,
        cx: Cx::default(),
        seen: Observed::default(),
        todo: Vec::new(),
        speller: Speller::default(),
        subdirs: BTreeMap::new(),
    };
    let root = TreePath::root();
    let attr = walk.call("getattr", &root, top(fs, &walk.cx))?;
    walk.record(root, attr, fs.root())?;
    while let Some((path, dir, parent)) = walk.todo.pop() {
        walk.list(&path, &dir, parent)?;
    }
    walk.check_links()?;
    Ok(walk.seen)
}

impl Walk<'_> {
    fn call<T>(
        &self,
        call: &'static str,
        path: &TreePath,
        result: Result<T, FsError>,
    ) -> Result<T, Unreadable> {
        result.map_err(|error| Unreadable::Failed {
            call,
            path: path.clone(),
            error,
        })
    }

    fn contradiction<T>(&self, path: &TreePath, what: impl Into<String>) -> Result<T, Unreadable> {
        Err(Unreadable::Contradiction {
            path: path.clone(),
            what: what.into(),
        })
    }

    /// Records a name and, on its first occurrence, the inode.
    fn record(&mut self, path: TreePath, attr: Attr, parent: InodeNo) -> Result<(), Unreadable> {
        let ino = attr.ino;
        if attr.kind == FileKind::Directory {
            if self.seen.inodes.contains_key(&ino) {
                return self.contradiction(&path, "a directory with two names");
            }
            self.todo.push((path.clone(), attr.clone(), parent));
        }
        if !self.seen.inodes.contains_key(&ino) {
            let seen = self.look(&path, &attr)?;
            self.seen.inodes.insert(ino, seen);
        }
        self.seen.names.insert(path, ino);
        Ok(())
    }

    fn look(&self, path: &TreePath, attr: &Attr) -> Result<InodeSnapshot, Unreadable> {
        let (fs, cx, ino) = (self.fs, &self.cx, attr.ino);
        let mut xattrs = BTreeMap::new();
        for name in self.call("listxattr", path, fs.listxattr(cx, ino))? {
            let value = self.call("getxattr", path, fs.getxattr(cx, ino, &name))?;
            xattrs.insert(name, value);
        }
        let target = match attr.kind {
            FileKind::Symlink => self.call("readlink", path, fs.readlink(cx, ino))?,
            _ => Vec::new(),
        };
        if attr.kind == FileKind::Symlink && attr.size != target.len() as u64 {
            return self.contradiction(path, "the link's size is not its target's length");
        }
        let content = match attr.kind {
            FileKind::Regular => self.content(path, ino, attr.size)?,
            _ => Content::default(),
        };
        Ok(InodeSnapshot {
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            owner: (attr.uid, attr.gid),
            rdev: attr.rdev,
            size: attr.size,
            atime: attr.atime,
            mtime: attr.mtime,
            target,
            xattrs,
            content,
        })
    }

    fn content(&self, path: &TreePath, ino: InodeNo, size: u64) -> Result<Content, Unreadable> {
        const PIECE: usize = 1 << 20;
        let mut content = Content::default();
        let upto = size.min(CONTENT_LIMIT);
        let mut at = 0;
        while at < upto {
            let data = self.call("read", path, self.fs.read(&self.cx, ino, at, PIECE))?;
            let due = (size - at).min(PIECE as u64);
            if data.len() as u64 != due {
                let what = format!("{} bytes read at byte {at}, not {due}", data.len());
                return self.contradiction(path, what);
            }
            for segment in data.segments() {
                match segment {
                    Segment::Bytes(owner, range) => {
                        content.write(at, &(**owner).as_ref()[range.clone()]);
                        at += range.len() as u64;
                    }
                    Segment::Zeros(len) => at += *len as u64,
                }
            }
        }
        Ok(content)
    }

    fn list(&mut self, path: &TreePath, dir: &Attr, parent: InodeNo) -> Result<(), Unreadable> {
        let mut entries = Vec::new();
        let listed = self.fs.readdir(&self.cx, dir.ino, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.ino, entry.kind));
            true
        });
        self.call("readdir", path, listed)?;
        let mut dots = 0;
        for (name, ino, kind) in entries {
            let child = path.child(&plain(dir, &name));
            match name.as_slice() {
                b"." | b".." => {
                    dots += 1;
                    let due = if name == b"." { dir.ino } else { parent };
                    if ino != due {
                        return self.contradiction(&child, format!("is inode {ino}, not {due}"));
                    }
                }
                _ => self.entry(child, dir, ino, kind)?,
            }
        }
        if dots != 2 {
            return self.contradiction(path, ". or .. is missing");
        }
        Ok(())
    }

    fn entry(
        &mut self,
        path: TreePath,
        dir: &Attr,
        ino: InodeNo,
        kind: Option<FileKind>,
    ) -> Result<(), Unreadable> {
        if self.seen.names.contains_key(&path) {
            return self.contradiction(&path, "is listed twice");
        }
        let name = path.name().unwrap_or_default();
        let spelled = self.speller.spell(dir, name);
        let found = self.fs.lookup(&self.cx, dir.ino, &spelled);
        let attr = self.call("lookup", &path, found)?;
        let recorded = if attr.ino != ino {
            self.contradiction(
                &path,
                format!("listed as inode {ino}, found as {}", attr.ino),
            )
        } else if kind.is_some_and(|kind| kind != attr.kind) {
            self.contradiction(
                &path,
                format!("listed as {kind:?}, found as {:?}", attr.kind),
            )
        } else {
            if attr.kind == FileKind::Directory {
                *self.subdirs.entry(dir.ino).or_default() += 1;
            }
            self.record(path, attr, dir.ino)
        };
        self.fs.forget(ino, 1);
        recorded
    }

    fn check_links(&self) -> Result<(), Unreadable> {
        let mut names: BTreeMap<InodeNo, u32> = BTreeMap::new();
        for ino in self.seen.names.values() {
            *names.entry(*ino).or_default() += 1;
        }
        for (path, ino) in &self.seen.names {
            let seen = &self.seen.inodes[ino];
            let due = match seen.kind {
                FileKind::Directory => 2 + self.subdirs.get(ino).copied().unwrap_or(0),
                _ => names[ino],
            };
            // Beyond the format's limit the links of a directory are not counted; it shows 1.
            let uncounted = seen.kind == FileKind::Directory && seen.nlink == 1;
            if seen.nlink != due && !uncounted {
                return self.contradiction(path, format!("{} links, not {due}", seen.nlink));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, ModelFs, Program, State};

    #[test]
    fn observation_matches_the_operations() {
        let format = Format::PLAIN;
        let fs = ModelFs::new(State::new(), format);
        let program: Program =
            "mkdir /d 755\ncreate /d/f 640\nwrite /d/f 5000+5000 3\nlink /d/f /g\n\
             symlink /l to\\x20there\nsetxattr /d user.a 9 4 any\nmknod /c char 600 259\n\
             utimens /g 1.000000002 3.000000004\ntruncate /g 12000\nchown /d 5 6\n"
                .parse()
                .unwrap();
        let steps = crate::run(
            &fs,
            &program.tasks[0],
            &(std::sync::Arc::new(|| 0u64) as crate::Marker),
        );
        assert!(steps.iter().all(|step| step.result.is_ok()), "{steps:?}");
        let seen = observe(&fs).unwrap();
        assert_eq!(seen.names.len(), 6);
        let again = State::of(&seen);
        let mut there = observe(&ModelFs::new(again, format)).unwrap();
        for (path, ino) in &seen.names {
            let (a, b) = (
                &seen.inodes[ino],
                there.inodes.get_mut(&there.names[path]).unwrap(),
            );
            (b.atime, b.mtime) = (a.atime, a.mtime);
            assert_eq!(format!("{a:?}"), format!("{b:?}"), "{path}");
        }
    }
}
