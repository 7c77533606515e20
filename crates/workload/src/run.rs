//! Runs operations against a file system.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{Corruption, InodeNo};
use steadfs_rt as rt;
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, Result, SetAttr, SetTime, check_name};

use crate::spelling::{Speller, plain};
use crate::{Op, Program, Span, Target, TreePath, pattern};

/// What an operation returned, as far as the model predicts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    None,
    /// Bytes read, an attribute's value or a link's target.
    Bytes(Vec<u8>),
    /// Number of bytes processed.
    Count(u64),
    /// Names in a directory without `.` and `..`, each with the type in its entry.
    Names(BTreeMap<Vec<u8>, Option<FileKind>>),
    /// Attributes that the model predicts: type, permission bits, links, owner, device, size (not of directories).
    Attr {
        /// Type.
        kind: FileKind,
        /// Permission bits.
        perm: u32,
        /// Number of links.
        nlink: u32,
        /// User and group.
        owner: (u32, u32),
        /// Device number.
        rdev: u32,
        /// Size in bytes; 0 for directories, whose size depends on the format.
        size: u64,
    },
}

impl From<Attr> for Value {
    fn from(attr: Attr) -> Self {
        Self::Attr {
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            owner: (attr.uid, attr.gid),
            rdev: attr.rdev,
            size: if attr.kind == FileKind::Directory {
                0
            } else {
                attr.size
            },
        }
    }
}

/// An inode with one lookup count, which drop releases.
struct InodeRef<'a> {
    fs: &'a dyn FileSystem,
    attr: Attr,
    counted: bool,
}

impl Drop for InodeRef<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.fs.forget(self.attr.ino, 1);
        }
    }
}

/// The directory below the root that paths begin at, if an encrypted volume has it: a root cannot be encrypted.
pub const TOP: &[u8] = b"top";

/// The directory that paths begin at.
pub(crate) fn top(fs: &dyn FileSystem, cx: &Cx) -> Result<Attr> {
    let root = fs.root();
    if fs.has_encryption() {
        match fs.lookup(cx, root, TOP) {
            Ok(top) => {
                fs.forget(top.ino, 1);
                return Ok(top);
            }
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    fs.getattr(cx, root)
}

/// One task's open files and credentials.
pub struct Runner<'a> {
    fs: &'a dyn FileSystem,
    cx: Cx,
    open: BTreeMap<u32, InodeRef<'a>>,
    speller: Speller,
}

impl<'a> Runner<'a> {
    /// A task of the superuser with no open files.
    pub fn new(fs: &'a dyn FileSystem) -> Self {
        let cx = Cx {
            fsetid: true,
            admin: true,
            ..Cx::default()
        };
        Self {
            fs,
            cx,
            open: BTreeMap::new(),
            speller: Speller::default(),
        }
    }

    fn inode_ref(&self, attr: Attr) -> InodeRef<'a> {
        InodeRef {
            fs: self.fs,
            attr,
            counted: true,
        }
    }

    /// Resolves `path` by lookups.
    fn walk(&self, path: &TreePath) -> Result<InodeRef<'a>> {
        let mut at = InodeRef {
            fs: self.fs,
            attr: top(self.fs, &self.cx)?,
            counted: false,
        };
        for part in path.parts() {
            if at.attr.kind != FileKind::Directory {
                return Err(FsError::NotDir);
            }
            check_name(part)?;
            let spelled = self.speller.spell(&at.attr, part);
            at = self.inode_ref(self.fs.lookup(&self.cx, at.attr.ino, &spelled)?);
        }
        Ok(at)
    }

    /// Resolves the directory that `path` is in, and spells the name there.
    fn walk_dir<'p>(&self, path: &'p TreePath) -> Result<(InodeRef<'a>, Cow<'p, [u8]>)> {
        let (Some(parent), Some(name)) = (path.parent(), path.name()) else {
            return Err(FsError::Busy);
        };
        let dir = self.walk(&parent)?;
        if dir.attr.kind != FileKind::Directory {
            return Err(FsError::NotDir);
        }
        let spelled = self.speller.spell(&dir.attr, name);
        Ok((dir, spelled))
    }

    /// The inode that `target` refers to now.
    pub fn resolve(&self, target: &Target) -> Result<InodeNo> {
        match target {
            Target::Path(path) => Ok(self.walk(path)?.attr.ino),
            Target::Handle(number) => match self.open.get(number) {
                Some(inode_ref) => Ok(inode_ref.attr.ino),
                None => Err(FsError::Invalid("no file is open under this number")),
            },
        }
    }

    /// Calls `f` while a lookup count keeps the inode.
    fn with<T>(&self, target: &Target, f: impl FnOnce(InodeNo) -> Result<T>) -> Result<T> {
        match target {
            Target::Path(path) => {
                let inode_ref = self.walk(path)?;
                f(inode_ref.attr.ino)
            }
            Target::Handle(_) => f(self.resolve(target)?),
        }
    }

    fn set(&self, target: &Target, set: &SetAttr) -> Result<Value> {
        self.with(target, |ino| self.fs.setattr(&self.cx, ino, set))?;
        Ok(Value::None)
    }

    /// Runs one operation.
    pub fn step(&mut self, op: &Op) -> Result<Value> {
        match op {
            Op::Create { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. } => self.names(op),
            Op::Open { .. } | Op::Tmpfile { .. } | Op::Close { .. } => self.handles(op),
            Op::Write { .. } | Op::Copy { .. } | Op::Truncate { .. } | Op::Fallocate { .. } => {
                self.content(op)
            }
            Op::SetXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::Chmod { .. }
            | Op::Chown { .. }
            | Op::Utimens { .. } => self.attributes(op),
            Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Sync => self.durable(op),
            Op::Sleep { millis } => {
                rt::sleep(Duration::from_millis(*millis));
                Ok(Value::None)
            }
            Op::Read { .. }
            | Op::Stat { .. }
            | Op::List { .. }
            | Op::GetXattr { .. }
            | Op::Readlink { .. } => self.look(op),
        }
    }

    fn names(&self, op: &Op) -> Result<Value> {
        let (fs, cx) = (self.fs, &self.cx);
        match op {
            Op::Create { path, perm } => {
                let (dir, name) = self.walk_dir(path)?;
                let mode = FileKind::Regular.mode_bits() | perm;
                drop(self.inode_ref(fs.mknod(cx, dir.attr.ino, &name, mode, 0)?));
            }
            Op::Mknod {
                path,
                kind,
                perm,
                rdev,
            } => {
                let (dir, name) = self.walk_dir(path)?;
                let mode = kind.mode_bits() | perm;
                drop(self.inode_ref(fs.mknod(cx, dir.attr.ino, &name, mode, *rdev)?));
            }
            Op::Mkdir { path, perm } => {
                let (dir, name) = self.walk_dir(path)?;
                drop(self.inode_ref(fs.mkdir(cx, dir.attr.ino, &name, *perm)?));
            }
            Op::Symlink { path, target } => {
                let (dir, name) = self.walk_dir(path)?;
                drop(self.inode_ref(fs.symlink(cx, dir.attr.ino, &name, target)?));
            }
            Op::Link { from, path } => {
                let (dir, name) = self.walk_dir(path)?;
                let attr = self.with(from, |ino| fs.link(cx, ino, dir.attr.ino, &name))?;
                drop(self.inode_ref(attr));
            }
            Op::Unlink { path } => {
                let (dir, name) = self.walk_dir(path)?;
                fs.unlink(cx, dir.attr.ino, &name)?;
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.walk_dir(path)?;
                fs.rmdir(cx, dir.attr.ino, &name)?;
            }
            Op::Rename { from, to, how } => {
                let (old, old_name) = self.walk_dir(from)?;
                let (new, new_name) = self.walk_dir(to)?;
                let ends = ((old.attr.ino, &*old_name), (new.attr.ino, &*new_name));
                fs.rename(cx, ends.0, ends.1, how.flags())?;
            }
            other => unreachable!("{other} does not change names"),
        }
        Ok(Value::None)
    }

    fn handles(&mut self, op: &Op) -> Result<Value> {
        match op {
            Op::Open { handle, path } => {
                let inode_ref = self.walk(path)?;
                self.open.insert(*handle, inode_ref);
            }
            Op::Tmpfile { handle, dir, perm } => {
                let dir = self.walk(dir)?;
                let attr = self.fs.tmpfile(&self.cx, dir.attr.ino, *perm)?;
                self.open.insert(*handle, self.inode_ref(attr));
            }
            Op::Close { handle } => {
                self.open.remove(handle);
            }
            other => unreachable!("{other} uses no handle"),
        }
        Ok(Value::None)
    }

    fn content(&self, op: &Op) -> Result<Value> {
        let (fs, cx) = (self.fs, &self.cx);
        match op {
            Op::Write { file, span, fill } => {
                let bytes = fill_of(*fill, *span)?;
                let n = self.with(file, |ino| fs.write(cx, ino, span.offset, &bytes, false))?;
                Ok(Value::Count(n as u64))
            }
            Op::Copy {
                from,
                span,
                to,
                offset,
            } => self
                .with(from, |from| {
                    self.with(to, |to| {
                        fs.copy_range(cx, (from, span.offset), (to, *offset), span.len)
                    })
                })
                .map(Value::Count),
            Op::Truncate { file, size } => {
                let set = SetAttr {
                    size: Some(*size),
                    ..SetAttr::default()
                };
                self.set(file, &set)
            }
            Op::Fallocate { file, mode, span } => self
                .with(file, |ino| {
                    fs.fallocate(cx, ino, *mode, span.offset, span.len)
                })
                .map(|()| Value::None),
            other => unreachable!("{other} does not change content"),
        }
    }

    fn attributes(&self, op: &Op) -> Result<Value> {
        let (fs, cx) = (self.fs, &self.cx);
        match op {
            Op::SetXattr {
                file,
                name,
                len,
                fill,
                how,
            } => {
                let value = fill_of(*fill, Span::new(0, *len))?;
                self.with(file, |ino| fs.setxattr(cx, ino, name, &value, *how))?;
                Ok(Value::None)
            }
            Op::RemoveXattr { file, name } => {
                self.with(file, |ino| fs.removexattr(cx, ino, name))?;
                Ok(Value::None)
            }
            Op::Chmod { file, perm } => self.set(
                file,
                &SetAttr {
                    perm: Some(*perm),
                    ..SetAttr::default()
                },
            ),
            Op::Chown { file, uid, gid } => self.set(
                file,
                &SetAttr {
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..SetAttr::default()
                },
            ),
            Op::Utimens { file, atime, mtime } => self.set(
                file,
                &SetAttr {
                    atime: Some(SetTime::At(*atime)),
                    mtime: Some(SetTime::At(*mtime)),
                    ..SetAttr::default()
                },
            ),
            other => unreachable!("{other} does not change attributes"),
        }
    }

    fn durable(&self, op: &Op) -> Result<Value> {
        let (fs, cx) = (self.fs, &self.cx);
        match op {
            Op::Fsync { file } => self.with(file, |ino| fs.fsync(cx, ino, false))?,
            Op::Fdatasync { file } => self.with(file, |ino| fs.fsync(cx, ino, true))?,
            Op::Sync => fs.sync_all(cx)?,
            other => unreachable!("{other} makes nothing durable"),
        }
        Ok(Value::None)
    }

    fn look(&self, op: &Op) -> Result<Value> {
        let (fs, cx) = (self.fs, &self.cx);
        match op {
            Op::Read { file, span } => {
                let len = usize::try_from(span.len).map_err(|_| FsError::NoMemory)?;
                let data = self.with(file, |ino| fs.read(cx, ino, span.offset, len))?;
                Ok(Value::Bytes(data.to_vec()))
            }
            Op::Stat { file } => Ok(self.with(file, |ino| fs.getattr(cx, ino))?.into()),
            Op::List { dir } => self.with(dir, |ino| list(fs, cx, ino)).map(Value::Names),
            Op::GetXattr { file, name } => self
                .with(file, |ino| fs.getxattr(cx, ino, name))
                .map(Value::Bytes),
            Op::Readlink { path } => {
                let inode_ref = self.walk(path)?;
                fs.readlink(cx, inode_ref.attr.ino).map(Value::Bytes)
            }
            other => unreachable!("{other} is not a read"),
        }
    }
}

/// The names in a directory, without `.` and `..`.
fn list(fs: &dyn FileSystem, cx: &Cx, dir: InodeNo) -> Result<BTreeMap<Vec<u8>, Option<FileKind>>> {
    let attr = fs.getattr(cx, dir)?;
    let mut names = BTreeMap::new();
    let mut dots = BTreeSet::new();
    let mut twice = None;
    fs.readdir(cx, dir, 0, &mut |entry| {
        let name = plain(&attr, entry.name);
        if matches!(entry.name, b"." | b"..") {
            dots.insert(name);
        } else if names.insert(name.clone(), entry.kind).is_some() {
            twice = Some(name);
        }
        true
    })?;
    if let Some(name) = twice {
        let name = String::from_utf8_lossy(&name).into_owned();
        return Err(Corruption::new(format!("'{name}' is listed twice")).into());
    }
    if dots.len() != 2 {
        return Err(Corruption::new(". or .. is missing").into());
    }
    Ok(names)
}

/// The bytes of a fill. Refuses lengths that only an erroneous program has.
fn fill_of(fill: u32, span: Span) -> Result<Vec<u8>> {
    const LIMIT: u64 = 64 << 20;
    match usize::try_from(span.len) {
        Ok(len) if span.len <= LIMIT => Ok(pattern::bytes(fill, span.offset, len)),
        _ => Err(FsError::NoMemory),
    }
}

/// One executed operation.
#[derive(Clone, Debug)]
pub struct Step {
    /// The operation.
    pub op: Op,
    /// Its result.
    pub result: Result<Value>,
    /// The marker's value before it began.
    pub started: u64,
    /// The marker's value after it ended.
    pub ended: u64,
}

/// An executed program.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The setup, one task.
    pub setup: Vec<Step>,
    /// The marker's value when the setup was durable.
    pub ready: u64,
    /// The concurrent tasks.
    pub tasks: Vec<Vec<Step>>,
}

/// Returns a number that never decreases, such as the length of the device's log: the time of an event.
pub type Marker = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Runs `ops` as one task.
pub fn run(fs: &dyn FileSystem, ops: &[Op], marker: &Marker) -> Vec<Step> {
    let mut runner = Runner::new(fs);
    let mut steps = Vec::with_capacity(ops.len());
    for op in ops {
        let started = marker();
        let result = runner.step(op);
        let ended = marker();
        steps.push(Step {
            op: op.clone(),
            result,
            started,
            ended,
        });
    }
    steps
}

/// Runs a program: its setup, a sync, then its tasks concurrently. Fails if the sync fails.
pub fn run_program(
    fs: &Arc<dyn FileSystem>,
    program: &Program,
    marker: &Marker,
) -> Result<Recording> {
    let setup = run(fs.as_ref(), &program.setup, marker);
    fs.sync_all(&Cx::default())?;
    let ready = marker();
    let tasks = if let [only] = program.tasks.as_slice() {
        vec![run(fs.as_ref(), only, marker)]
    } else {
        let started: Vec<_> = program
            .tasks
            .iter()
            .map(|ops| {
                let (fs, ops, marker) = (Arc::clone(fs), ops.clone(), Arc::clone(marker));
                rt::spawn("workload", move || run(fs.as_ref(), &ops, &marker))
            })
            .collect();
        started.into_iter().map(rt::JoinHandle::join).collect()
    };
    Ok(Recording {
        setup,
        ready,
        tasks,
    })
}
