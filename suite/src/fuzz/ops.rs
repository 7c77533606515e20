//! Operations on a volume, eight bytes of the input each: the kind, a file, a name, an argument and a number.

use std::fmt;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_vfs::{
    Cx, FallocMode, FileKind, FileSystem, FsError, InodeFlags, RenameFlags, Seek, SetAttr, SetTime,
    SetXattr,
};

use super::input::Input;
use crate::hostile::exercise::Trial;

/// Most operations of an input.
const OPS_MAX: usize = 64;
/// Most files that are referred to.
const FILES_MAX: usize = 64;
/// Largest length of a write or an allocation in bytes.
const LEN_MAX: u32 = 200_000;
/// Longest pause in milliseconds, in which tasks of the volume run.
const SLEEP_MAX_MS: u64 = 100_000;

/// Names that the bases have, and new ones.
const NAMES: [&[u8]; 28] = [
    b"small",
    b"large",
    b"empty",
    b"scattered",
    b"many",
    b"indexed",
    b"a",
    b"b",
    b"second",
    b"deep",
    b"link 5",
    b"link 60",
    b"link 900",
    b"new 1",
    b"new 2",
    b"a name of some length, number 7",
    b"another name of some length, 7",
    b"f0",
    b"f1",
    b"f2",
    b"f3",
    b"d0",
    b"d1",
    b"..",
    b".",
    b"",
    &[b'n'; 255],
    &[b'z'; 256],
];

const XATTRS: [&[u8]; 9] = [
    b"user.tiny",
    b"user.large",
    b"user.a",
    b"trusted.b",
    b"security.capability",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
    b"user.",
    b"none.c",
];

/// Start of the names of files that no other operation changes.
const SYNCED: &str = "synced ";

/// The operations of an input on a mounted volume.
pub struct Session<'a> {
    fs: &'a dyn FileSystem,
    trial: &'a mut Trial,
    cx: Cx,
    /// Files whose lookup count was taken, once each time they are in the list.
    files: Vec<InodeNo>,
    /// Those of them that are directories.
    dirs: Vec<InodeNo>,
    /// Number of files made by [`Session::write_synced`].
    synced: usize,
}

/// The numbers of one operation.
struct Op {
    kind: u8,
    file: InodeNo,
    other: InodeNo,
    dir: InodeNo,
    new_dir: InodeNo,
    name: Vec<u8>,
    new_name: &'static [u8],
    arg: u8,
    number: u32,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, arg, number) = (self.kind % 40, self.arg, self.number);
        let text = String::from_utf8_lossy;
        let (name, new_name) = (text(&self.name), text(self.new_name));
        let (file, other) = (self.file.0, self.other.0);
        let (dir, new_dir) = (self.dir.0, self.new_dir.0);
        let inodes = format!("file {file}, {other}, dir {dir}, {new_dir}");
        write!(
            f,
            "{kind}: {inodes}, {name:?}, {new_name:?}, {arg}, {number}"
        )
    }
}

impl<'a> Session<'a> {
    /// With the first files of `fs`.
    pub fn new(fs: &'a dyn FileSystem, trial: &'a mut Trial) -> Self {
        let mut session = Self {
            fs,
            trial,
            cx: Cx::default(),
            files: Vec::new(),
            dirs: Vec::new(),
            synced: 0,
        };
        for name in NAMES {
            session.look_up(fs.root(), name);
        }
        session
    }

    /// Runs the operations of `input`, then drops all files.
    pub fn run(mut self, input: &mut Input<'_>) {
        for _ in 0..OPS_MAX {
            if input.is_empty() {
                break;
            }
            let op = self.next_op(input);
            if self.trial.trace {
                eprintln!("{op}");
            }
            self.apply(&op);
        }
        self.dirs.clear();
        for ino in std::mem::take(&mut self.files) {
            self.fs.forget(ino, 1);
        }
        self.trial.charge("forget");
    }

    fn next_op(&mut self, input: &mut Input<'_>) -> Op {
        let kind = input.byte();
        let index = input.byte();
        let [name, new_name] = [input.byte(), input.byte()];
        let arg = input.byte();
        let [low, middle, high] = [input.byte(), input.byte(), input.byte()];
        let dir = self.dir(index);
        // Half of all names are those of entries that exist.
        let name = match name {
            128.. => self.entry(dir, usize::from(name - 128)),
            _ => NAMES[usize::from(name) % NAMES.len()].to_vec(),
        };
        Op {
            kind,
            file: self.file(index),
            other: self.file(arg),
            dir,
            new_dir: self.dir(arg),
            name,
            new_name: NAMES[usize::from(new_name) % NAMES.len()],
            arg,
            number: u32::from_le_bytes([low, middle, high, 0]),
        }
    }

    /// The file with this index in the list.
    fn file(&self, index: u8) -> InodeNo {
        match self.files.len() {
            0 => self.fs.root(),
            len => self.files[usize::from(index) % len],
        }
    }

    /// The directory with this index in the list, in one of four cases the root.
    fn dir(&self, index: u8) -> InodeNo {
        match self.dirs.len() {
            0 => self.fs.root(),
            _ if index >= 192 => self.fs.root(),
            len => self.dirs[usize::from(index) % len],
        }
    }

    /// The name of an entry of `dir`; a name that it does not have if there are too few.
    fn entry(&mut self, dir: InodeNo, nth: usize) -> Vec<u8> {
        let mut found = b"nothing".to_vec();
        let mut seen = 0;
        let mut emit = |entry: steadfs_vfs::DirEntry<'_>| {
            let ours = entry.name.starts_with(SYNCED.as_bytes());
            if !ours && entry.name != b"." && entry.name != b".." {
                found = entry.name.to_vec();
                seen += 1;
            }
            seen <= nth
        };
        let listed = self.fs.readdir(&self.cx, dir, 0, &mut emit);
        self.trial.check_error("readdir", listed);
        found
    }

    fn keep(&mut self, attr: &steadfs_vfs::Attr) {
        if self.files.len() == FILES_MAX {
            return self.fs.forget(attr.ino, 1);
        }
        self.files.push(attr.ino);
        if attr.kind == FileKind::Directory {
            self.dirs.push(attr.ino);
        }
    }

    fn look_up(&mut self, dir: InodeNo, name: &[u8]) {
        let found = self.fs.lookup(&self.cx, dir, name);
        if let Some(attr) = self.trial.check_error("lookup", found) {
            self.keep(&attr);
        }
    }

    fn made(&mut self, call: &str, made: Result<steadfs_vfs::Attr, FsError>) {
        if let Some(attr) = self.trial.check_error(call, made) {
            self.keep(&attr);
        }
    }

    fn apply(&mut self, op: &Op) {
        match op.kind % 40 {
            0 => self.look_up(op.dir, &op.name),
            1..=5 => self.make(op),
            6..=9 => self.remove_or_move(op),
            10..=15 => self.change_content(op),
            16..=19 => self.read(op),
            20..=25 => self.change_attributes(op),
            26..=30 => self.whole_volume(op),
            31 => self.trial.walk(self.fs),
            32 | 33 => self.write_synced(op),
            34 => self.fill(op),
            35 => self.list_into_files(op),
            36 => self.drop_file(op),
            _ => steadfs_rt::sleep(Duration::from_millis(u64::from(op.number) % SLEEP_MAX_MS)),
        }
    }

    fn make(&mut self, op: &Op) {
        let (fs, cx, dir, name) = (self.fs, self.cx.clone(), op.dir, &*op.name);
        let mode = u32::from(op.arg) << 2 | 0o600;
        match op.kind % 40 {
            1 => {
                let kind = [0o100_000, 0o100_000, 0o010_000, 0o060_000][op.number as usize & 3];
                self.made("mknod", fs.mknod(&cx, dir, name, kind | mode, op.number));
            }
            2 => self.made("mkdir", fs.mkdir(&cx, dir, name, mode)),
            3 => {
                let target = vec![b'l'; op.number as usize % 5000];
                self.made("symlink", fs.symlink(&cx, dir, name, &target));
            }
            4 => self.made("link", fs.link(&cx, op.other, dir, name)),
            _ => self.made("tmpfile", fs.tmpfile(&cx, dir, mode)),
        }
    }

    fn remove_or_move(&mut self, op: &Op) {
        let (fs, cx) = (self.fs, &self.cx);
        match op.kind % 40 {
            6 => {
                let done = fs.unlink(cx, op.dir, &op.name);
                self.trial.check_error("unlink", done);
            }
            7 => {
                let done = fs.rmdir(cx, op.dir, &op.name);
                self.trial.check_error("rmdir", done);
            }
            _ => {
                let flags = RenameFlags {
                    no_replace: op.number & 3 == 1,
                    exchange: op.number & 3 == 2,
                    whiteout: op.number & 3 == 3,
                };
                let (from, to) = ((op.dir, &*op.name), (op.new_dir, op.new_name));
                let done = fs.rename(cx, from, to, flags);
                self.trial.check_error("rename", done);
            }
        }
    }

    /// An offset: small ones, and ones near powers of two.
    fn offset(op: &Op) -> u64 {
        let number = u64::from(op.number);
        match op.arg >> 5 {
            0 => number,
            1 => number << 8,
            2 => number << 16,
            3 => number << 24,
            4 => number << 40,
            5 => number % 5000,
            6 => (1 << (number % 63)) - 1,
            _ => u64::MAX - number,
        }
    }

    fn change_content(&mut self, op: &Op) {
        let (fs, cx, ino, offset) = (self.fs, self.cx.clone(), op.file, Self::offset(op));
        let len = u64::from((op.number >> 4) % LEN_MAX);
        let trial = &mut *self.trial;
        match op.kind % 40 {
            10 | 11 => {
                let data = vec![op.arg; len as usize];
                trial.check_error(
                    "write",
                    fs.write(&cx, ino, offset, &data, op.number & 1 == 1),
                );
            }
            12 => {
                let set = SetAttr {
                    size: Some(offset),
                    ..SetAttr::default()
                };
                trial.check_error("truncate", fs.setattr(&cx, ino, &set));
            }
            13 => {
                let mode = [
                    FallocMode::Allocate { keep_size: false },
                    FallocMode::Allocate { keep_size: true },
                    FallocMode::PunchHole,
                    FallocMode::ZeroRange { keep_size: false },
                    FallocMode::ZeroRange { keep_size: true },
                    FallocMode::CollapseRange,
                    FallocMode::InsertRange,
                ][usize::from(op.arg & 31) % 7];
                trial.check_error("fallocate", fs.fallocate(&cx, ino, mode, offset, len));
            }
            14 => {
                let done = fs.copy_range(&cx, (ino, offset), (op.other, len), len);
                trial.check_error("copy_range", done);
            }
            _ => {
                trial.check_error("fsync", fs.fsync(&cx, ino, op.arg & 1 == 1));
            }
        }
    }

    fn read(&mut self, op: &Op) {
        let (fs, cx, ino, offset) = (self.fs, self.cx.clone(), op.file, Self::offset(op));
        let trial = &mut *self.trial;
        match op.kind % 40 {
            16 => {
                let len = (op.number >> 4) % LEN_MAX;
                let data = fs.read(&cx, ino, offset, len as usize);
                trial.check_error("read", data.map(|data| data.to_vec()));
            }
            17 => {
                let what = [Seek::Data, Seek::Hole][usize::from(op.arg & 1)];
                trial.check_error("seek", fs.seek(&cx, ino, offset, what));
            }
            18 => {
                trial.check_error("readlink", fs.readlink(&cx, ino));
            }
            _ => {
                let mut entries = 0;
                let mut emit = |_: steadfs_vfs::DirEntry<'_>| {
                    entries += 1;
                    entries < 300
                };
                trial.check_error("readdir", fs.readdir(&cx, ino, offset, &mut emit));
            }
        }
    }

    fn change_attributes(&mut self, op: &Op) {
        let (fs, cx, ino) = (self.fs, self.cx.clone(), op.file);
        let name = XATTRS[op.number as usize % XATTRS.len()];
        let trial = &mut *self.trial;
        match op.kind % 40 {
            20 | 21 => {
                let len = [4, 40, 400, 3000, 70_000][usize::from(op.arg) % 5];
                let how = [SetXattr::Any, SetXattr::Create, SetXattr::Replace];
                let how = how[(op.number >> 8) as usize % 3];
                let value = vec![b'v'; len];
                trial.check_error("setxattr", fs.setxattr(&cx, ino, name, &value, how));
            }
            22 => {
                trial.check_error("removexattr", fs.removexattr(&cx, ino, name));
            }
            23 => {
                trial.check_error("getxattr", fs.getxattr(&cx, ino, name));
                trial.check_error("listxattr", fs.listxattr(&cx, ino));
            }
            24 => {
                let number = |bit: u8| (op.arg & bit != 0).then_some(op.number);
                let set = SetAttr {
                    perm: number(1).map(|perm| perm & 0o7777),
                    uid: number(2),
                    gid: number(4),
                    atime: number(8).map(|_| SetTime::Now),
                    kill_priv: op.arg & 16 != 0,
                    ..SetAttr::default()
                };
                trial.check_error("setattr", fs.setattr(&cx, ino, &set));
            }
            _ => {
                trial.check_error("flags", fs.flags(&cx, ino));
                let flags = InodeFlags(op.number);
                trial.check_error("set_flags", fs.set_flags(&cx, ino, flags));
                trial.check_error("set_project", fs.set_project(&cx, ino, op.arg.into()));
            }
        }
    }

    fn whole_volume(&mut self, op: &Op) {
        let (fs, cx, trial) = (self.fs, &self.cx, &mut *self.trial);
        match op.kind % 40 {
            26 => {
                trial.check_error("sync", fs.sync_all(cx));
            }
            27 => {
                trial.check_error("trim", fs.trim(cx, 0, u64::MAX, op.number.into()));
            }
            28 => {
                trial.check_error("statfs", fs.statfs(cx));
                let files: Vec<_> = fs.control().map(|c| c.entries()).unwrap_or_default();
                for file in files {
                    let content = fs.control().map(|c| c.read(file.path));
                    trial.check_error("control file", content.transpose());
                }
            }
            29 => {
                let options = ["ro", "rw", "ro,errors=continue", "rw,discard"];
                let list = options[usize::from(op.arg) % options.len()];
                trial.check_error("remount", fs.remount(cx, list));
            }
            _ => {
                trial.check_error("getattr", fs.getattr(cx, op.file));
                trial.check_error("generation", fs.generation(cx, op.file));
            }
        }
    }

    /// Makes a file, and syncs it. Its content is compared after the unmount.
    fn write_synced(&mut self, op: &Op) {
        let (fs, cx) = (self.fs, self.cx.clone());
        let name = format!("{SYNCED}{}", self.synced).into_bytes();
        self.synced += 1;
        let made = fs.mknod(&cx, fs.root(), &name, 0o100_600, 0);
        let Some(attr) = self.trial.check_error("mknod", made) else {
            return;
        };
        let len = (op.number % 100_000) as usize;
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8 ^ op.arg).collect();
        let written = fs.write(&cx, attr.ino, 0, &bytes, false);
        if self.trial.check_error("write", written) == Some(len)
            && let Some(()) = self
                .trial
                .check_error("fsync", fs.fsync(&cx, attr.ino, false))
        {
            self.trial.add_synced(name, bytes);
        }
        fs.forget(attr.ino, 1);
    }

    /// Makes many small files in a directory, so that it, tables and segments grow.
    fn fill(&mut self, op: &Op) {
        for n in 0..op.number % 200 {
            let name = format!("{n} of {}", "x".repeat(usize::from(op.arg % 100)));
            let made = self
                .fs
                .mknod(&self.cx, op.dir, name.as_bytes(), 0o100_600, 0);
            let Some(attr) = self.trial.check_error("mknod", made) else {
                return;
            };
            self.fs.forget(attr.ino, 1);
        }
    }

    /// Takes four entries of a directory into the list of files.
    fn list_into_files(&mut self, op: &Op) {
        for n in 0..4 {
            let name = self.entry(op.dir, op.number as usize % 32 + n);
            self.look_up(op.dir, &name);
        }
    }

    fn drop_file(&mut self, op: &Op) {
        if self.files.is_empty() {
            return;
        }
        let index = usize::from(op.arg) % self.files.len();
        let ino = self.files.swap_remove(index);
        if !self.files.contains(&ino) {
            self.dirs.retain(|dir| *dir != ino);
        }
        self.fs.forget(ino, 1);
        self.trial.charge("forget");
    }
}
