//! Random programs, each a function of its seed.

use std::collections::BTreeMap;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_rt::Random;
use steadfs_vfs::{FallocMode, FileKind, SetXattr};

use super::number_fills;
use super::shape::Shape;
use crate::op::RenameHow;
use crate::{Format, ModelFs, Op, Program, Runner, Span, State, Target, TreePath};

/// Generates the program of `seed`.
pub fn random(seed: u64, shape: Shape, format: Format) -> Program {
    let mut random = Random::new(seed);
    let mut setup = Vec::new();
    let homes: Vec<Vec<TreePath>> = if shape.tasks == 1 {
        vec![vec![TreePath::root()]]
    } else if shape.shared {
        let shared = ["s0", "s1"].map(|name| TreePath::root().child(name.as_bytes()));
        vec![shared.to_vec(); shape.tasks]
    } else {
        let own = |task: usize| TreePath::root().child(format!("t{task}").as_bytes());
        (0..shape.tasks).map(|task| vec![own(task)]).collect()
    };
    let mut dirs: Vec<_> = homes
        .iter()
        .flatten()
        .filter(|dir| dir.name().is_some())
        .collect();
    dirs.sort();
    dirs.dedup();
    setup.extend(dirs.into_iter().map(|dir| Op::Mkdir {
        path: dir.clone(),
        perm: 0o755,
    }));
    let base = ModelFs::new(State::new(), format);
    let mut runner = Runner::new(&base);
    for op in &setup {
        runner.step(op).expect("an empty volume takes directories");
    }
    let tasks = homes.iter().enumerate().map(|(number, homes)| {
        let fs = ModelFs::new(base.state(), format);
        let author = TaskGenerator {
            random: Random::new(random.next_u64()),
            shape,
            format,
            fs: &fs,
            runner: Runner::new(&fs),
            homes,
            prefix: if shape.tasks == 1 {
                String::new()
            } else {
                format!("{number}_")
            },
            ops: Vec::new(),
        };
        author.write()
    });
    let tasks = tasks.collect();
    let mut program = Program { setup, tasks };
    number_fills(&mut program);
    program
}

/// Generates one task's operations, and executes them in a model.
struct TaskGenerator<'a> {
    random: Random,
    shape: Shape,
    format: Format,
    fs: &'a ModelFs,
    runner: Runner<'a>,
    homes: &'a [TreePath],
    /// Prefix of every name that this task makes in a home directory.
    prefix: String,
    ops: Vec<Op>,
}

/// Existing files that the task can use.
struct Candidates {
    files: Vec<TreePath>,
    dirs: Vec<TreePath>,
    others: Vec<TreePath>,
    bytes: u64,
    state: State,
    inodes: BTreeMap<TreePath, InodeNo>,
}

impl TaskGenerator<'_> {
    fn write(mut self) -> Vec<Op> {
        while self.ops.len() < self.shape.ops {
            if self.percent(self.shape.sleep_percent) {
                let millis = [1, 20, 6_000, 40_000][self.random.below(4)];
                self.ops.push(Op::Sleep { millis });
            }
            let candidates = self.candidates();
            for op in self.group(&candidates) {
                let fails = self.runner.step(&op).is_err();
                // Failing operations are rare; most shall succeed.
                if !fails || self.percent(10) {
                    self.ops.push(op);
                }
                if fails {
                    break;
                }
            }
        }
        self.ops
    }

    fn candidates(&self) -> Candidates {
        let state = self.fs.state();
        let inodes = state.flatten();
        let mut candidates = Candidates {
            files: Vec::new(),
            dirs: self.homes.to_vec(),
            others: Vec::new(),
            bytes: 0,
            state,
            inodes: BTreeMap::new(),
        };
        for (path, ino) in &inodes {
            if !self.is_own(path) {
                continue;
            }
            let node = candidates.state.node(*ino).expect("a named inode exists");
            match node.kind {
                FileKind::Regular => {
                    candidates.files.push(path.clone());
                    candidates.bytes += node.size.min(self.shape.max_file);
                }
                FileKind::Directory => candidates.dirs.push(path.clone()),
                _ => candidates.others.push(path.clone()),
            }
        }
        candidates.inodes = inodes;
        candidates
    }

    fn is_own(&self, path: &TreePath) -> bool {
        let below = |home: &TreePath| {
            let name = path.parts().get(home.parts().len());
            path.is_within(home)
                && name.is_some_and(|name| name.starts_with(self.prefix.as_bytes()))
        };
        self.homes.iter().any(below)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.next_u64() % n.max(1)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        match from.len() {
            0 => None,
            len => Some(from[self.random.below(len)].clone()),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        let letter = char::from(b'a' + self.below(8) as u8);
        let long = match self.below(20) {
            0 => 250,
            1..3 => 100,
            _ => 0,
        };
        let mut name = format!("{}{letter}", self.prefix).into_bytes();
        name.resize(name.len().max(long), b'-');
        name
    }

    /// A name that may be free or used.
    fn new_path(&mut self, candidates: &Candidates) -> TreePath {
        let dir = self.pick(&candidates.dirs).expect("there is a home");
        let name = self.name();
        dir.child(&name)
    }

    fn any_path(&mut self, candidates: &Candidates) -> Option<TreePath> {
        let own: Vec<_> = candidates
            .inodes
            .keys()
            .filter(|path| self.is_own(path))
            .cloned()
            .collect();
        self.pick(&own)
    }

    fn any_file(&mut self, candidates: &Candidates) -> Target {
        if self.percent(10) {
            return Target::Handle(1 + self.below(3) as u32);
        }
        match self.pick(&candidates.files) {
            Some(path) => path.into(),
            None => Target::Handle(1),
        }
    }

    fn size_of(&self, candidates: &Candidates, file: &Target) -> u64 {
        let ino = self.runner.resolve(file).ok();
        let node = ino.and_then(|ino| candidates.state.node(ino).ok());
        node.map_or(0, |node| node.size)
    }

    /// The next operations.
    fn group(&mut self, candidates: &Candidates) -> Vec<Op> {
        if self.percent(self.shape.sync_percent) {
            return vec![self.sync(candidates)];
        }
        if candidates.files.is_empty() && self.percent(60) {
            return self.new_file(candidates);
        }
        let op = match self.below(100) {
            0..12 => return self.new_file(candidates),
            12..18 => Op::Mkdir {
                path: self.new_path(candidates),
                perm: 0o755,
            },
            18..22 => self.special(candidates),
            22..27 => Op::Link {
                from: self.any_file(candidates),
                path: self.new_path(candidates),
            },
            27..36 => self.removal(candidates),
            36..46 => self.rename(candidates),
            46..50 => return self.open(candidates),
            50..68 if candidates.bytes < self.shape.space => self.write_op(candidates),
            50..68 => Op::Truncate {
                file: self.any_file(candidates),
                size: 0,
            },
            68..75 => self.truncate(candidates),
            75..82 => self.fallocate(candidates),
            82..88 => self.xattr(candidates),
            88..92 => self.attribute(candidates),
            92..94 => return self.crowd(candidates),
            _ => self.look(candidates),
        };
        vec![op]
    }

    fn sync(&mut self, candidates: &Candidates) -> Op {
        match self.below(10) {
            0 => Op::Sync,
            1 => Op::Fsync {
                file: self.pick(&candidates.dirs).expect("there is a home").into(),
            },
            2 => Op::Fdatasync {
                file: self.pick(&candidates.dirs).expect("there is a home").into(),
            },
            3 | 4 => Op::Fdatasync {
                file: self.any_file(candidates),
            },
            _ => Op::Fsync {
                file: self.any_file(candidates),
            },
        }
    }

    fn new_file(&mut self, candidates: &Candidates) -> Vec<Op> {
        let path = self.new_path(candidates);
        let span = Span::new(0, 1 + self.below(9_000));
        let write = Op::Write {
            file: path.clone().into(),
            span,
            fill: 1,
        };
        let create = Op::Create { path, perm: 0o644 };
        if self.percent(70) {
            vec![create, write]
        } else {
            vec![create]
        }
    }

    fn special(&mut self, candidates: &Candidates) -> Op {
        let path = self.new_path(candidates);
        match self.below(3) {
            0 => {
                let len = 1 + self.below(200) as usize;
                Op::Symlink {
                    path,
                    target: vec![b'l'; len],
                }
            }
            1 => Op::Mknod {
                path,
                kind: FileKind::CharDevice,
                perm: 0o600,
                rdev: 0x103,
            },
            _ => Op::Mknod {
                path,
                kind: FileKind::Socket,
                perm: 0o755,
                rdev: 0,
            },
        }
    }

    fn removal(&mut self, candidates: &Candidates) -> Op {
        match self.any_path(candidates) {
            Some(path) if candidates.dirs.contains(&path) => Op::Rmdir { path },
            Some(path) => Op::Unlink { path },
            None => Op::Create {
                path: self.new_path(candidates),
                perm: 0o600,
            },
        }
    }

    fn rename(&mut self, candidates: &Candidates) -> Op {
        let Some(from) = self.any_path(candidates) else {
            return Op::Mkdir {
                path: self.new_path(candidates),
                perm: 0o700,
            };
        };
        let existing = self.any_path(candidates).unwrap_or_else(|| from.clone());
        let fresh = self.new_path(candidates);
        let to = if self.percent(40) {
            existing.clone()
        } else {
            fresh
        };
        match self.below(8) {
            0 => Op::Rename {
                from,
                to: existing,
                how: RenameHow::Exchange,
            },
            1 => Op::Rename {
                from,
                to,
                how: RenameHow::NoReplace,
            },
            2 => Op::Rename {
                from,
                to,
                how: RenameHow::Whiteout,
            },
            _ => Op::Rename {
                from,
                to,
                how: RenameHow::Replace,
            },
        }
    }

    fn open(&mut self, candidates: &Candidates) -> Vec<Op> {
        let handle = 1 + self.below(3) as u32;
        let file = Target::Handle(handle);
        match (self.below(4), self.pick(&candidates.files)) {
            (0, _) => vec![Op::Close { handle }],
            (1, Some(path)) => vec![Op::Open { handle, path }],
            (2, Some(path)) => vec![
                Op::Open {
                    handle,
                    path: path.clone(),
                },
                Op::Unlink { path },
            ],
            _ => {
                let dir = self.pick(&candidates.dirs).expect("there is a home");
                let span = Span::new(0, 1 + self.below(9_000));
                let mut ops = vec![
                    Op::Tmpfile {
                        handle,
                        dir,
                        perm: 0o600,
                    },
                    Op::Write {
                        file: file.clone(),
                        span,
                        fill: 1,
                    },
                ];
                if self.percent(60) {
                    ops.push(Op::Link {
                        from: file,
                        path: self.new_path(candidates),
                    });
                }
                ops
            }
        }
    }

    fn span(&mut self, size: u64) -> Span {
        let block = u64::from(self.format.block_size);
        let limit = self.shape.max_file;
        let offset = match self.below(10) {
            0..3 => size,
            3..5 => self.below(size / block + 1) * block,
            5 => self.below(limit),
            _ => self.below(size + 1),
        };
        let len = match self.below(10) {
            0..4 => 1 + self.below(600),
            4..6 => block * (1 + self.below(4)),
            6 => 1 + self.below(40_000),
            _ => 1 + self.below(3 * block),
        };
        let offset = offset.min(limit - 1);
        Span::new(offset, len.min(limit - offset))
    }

    fn write_op(&mut self, candidates: &Candidates) -> Op {
        let file = self.any_file(candidates);
        let size = self.size_of(candidates, &file);
        if self.percent(8) {
            let from = self.any_file(candidates);
            let there = self.size_of(candidates, &from);
            let span = Span::new(self.below(there + 1), 1 + self.below(8_000));
            let offset = self.span(size).offset;
            return Op::Copy {
                from,
                span,
                to: file,
                offset,
            };
        }
        let span = self.span(size);
        Op::Write {
            file,
            span,
            fill: 1,
        }
    }

    fn truncate(&mut self, candidates: &Candidates) -> Op {
        let file = self.any_file(candidates);
        let size = self.size_of(candidates, &file);
        let size = match self.below(4) {
            0 => 0,
            1 => self.span(size).end(),
            _ => self.below(size + 1),
        };
        Op::Truncate { file, size }
    }

    fn fallocate(&mut self, candidates: &Candidates) -> Op {
        let file = self.any_file(candidates);
        let size = self.size_of(candidates, &file);
        let mut span = self.span(size);
        let keep_size = self.percent(50);
        let mode = match self.below(6) {
            0 | 1 if self.format.extents => FallocMode::Allocate { keep_size },
            2 | 3 if self.format.extents => FallocMode::ZeroRange { keep_size },
            4 if self.format.shift_ranges => {
                let block = u64::from(self.format.block_size);
                span = Span::new(span.offset / block * block, block);
                if keep_size {
                    FallocMode::CollapseRange
                } else {
                    FallocMode::InsertRange
                }
            }
            _ => FallocMode::PunchHole,
        };
        Op::Fallocate { file, mode, span }
    }

    /// All attributes of a file fit in one block, unless values may be longer.
    fn xattr(&mut self, candidates: &Candidates) -> Op {
        let file = match self.any_path(candidates) {
            // Only regular files and directories may have user attributes.
            Some(path) if !candidates.others.contains(&path) => Target::Path(path),
            _ => self.any_file(candidates),
        };
        let name = format!("user.{}", self.below(3)).into_bytes();
        if self.percent(25) {
            return Op::RemoveXattr { file, name };
        }
        let largest = u64::from(self.format.block_size / 5).min(700);
        let len = if self.percent(60) {
            self.below(40)
        } else if self.format.long_values {
            [1200, 5000, 9000][self.random.below(3)]
        } else {
            self.below(largest)
        };
        let how = [
            SetXattr::Any,
            SetXattr::Any,
            SetXattr::Create,
            SetXattr::Replace,
        ];
        let how = how[self.random.below(how.len())];
        Op::SetXattr {
            file,
            name,
            len,
            fill: 1,
            how,
        }
    }

    fn attribute(&mut self, candidates: &Candidates) -> Op {
        let file = self
            .any_path(candidates)
            .map_or(Target::Handle(1), Target::Path);
        let secs = self.below(4_000_000_000) as i64;
        let time = Timestamp {
            secs,
            nanos: self.below(1_000_000_000) as u32,
        };
        match self.below(3) {
            0 => Op::Chmod {
                file,
                perm: self.below(0o10000) as u32,
            },
            1 => {
                let uid = self.below(100_000) as u32;
                Op::Chown {
                    file,
                    uid,
                    gid: self.below(10) as u32,
                }
            }
            _ => Op::Utimens {
                file,
                atime: time,
                mtime: time,
            },
        }
    }

    /// Many names in one directory: its blocks split.
    fn crowd(&mut self, candidates: &Candidates) -> Vec<Op> {
        let dir = self.pick(&candidates.dirs).expect("there is a home");
        let number = self.below(1000);
        let count = 4 + self.below(12);
        let names = (0..count).map(|n| {
            let mut name = format!("{}n{number}-{n}", self.prefix).into_bytes();
            name.resize(200, b'=');
            name
        });
        let names: Vec<_> = names.collect();
        let create = |name: &Vec<u8>| Op::Create {
            path: dir.child(name),
            perm: 0o644,
        };
        let unlink = |name: &Vec<u8>| Op::Unlink {
            path: dir.child(name),
        };
        let mut ops: Vec<_> = names.iter().map(create).collect();
        ops.extend(names.iter().step_by(3).map(unlink));
        ops
    }

    fn look(&mut self, candidates: &Candidates) -> Op {
        let file = self.any_file(candidates);
        let size = self.size_of(candidates, &file);
        match (self.below(4), self.any_path(candidates)) {
            (0, Some(path)) => Op::Stat { file: path.into() },
            // The names of other tasks in a shared directory are unknown.
            (1, _) if !self.shape.shared => Op::List {
                dir: self.pick(&candidates.dirs).expect("there is a home").into(),
            },
            _ => Op::Read {
                file,
                span: self.span(size),
            },
        }
    }
}
