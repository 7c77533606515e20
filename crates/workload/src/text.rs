//! The text form of programs, one operation per line, in which failing cases are kept and replayed.
//!
//! ```text
//! # a comment
//! setup
//!   mkdir /d 755
//! task
//!   create /d/f 644
//!   write /d/f 0+4096 7        (bytes 0 to 4095 with fill 7)
//!   fsync /d/f
//! task
//!   tmpfile 1 /d 600
//!   write @1 100+50 8          (@1: what is open under number 1)
//!   link @1 /d/g
//! ```
//! Operations before any `setup` or `task` belong to a first task.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use steadfs_base::Timestamp;
use steadfs_vfs::{FallocMode, FileKind, SetXattr};
use thiserror::Error;

use crate::op::RenameHow;
use crate::path::{escape, unescape};
use crate::{Op, Program, Span, Target, TreePath};

/// A line that is not an operation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {cause}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong with the line.
    pub cause: String,
}

struct Word<'a>(&'a [u8]);

impl Display for Word<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        escape(self.0, f)
    }
}

struct Time(Timestamp);

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.secs, self.0.nanos)
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.fmt(f),
            Self::Handle(number) => write!(f, "@{number}"),
        }
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.offset, self.len)
    }
}

const KINDS: [(FileKind, &str); 5] = [
    (FileKind::Regular, "file"),
    (FileKind::CharDevice, "char"),
    (FileKind::BlockDevice, "block"),
    (FileKind::Fifo, "fifo"),
    (FileKind::Socket, "socket"),
];

const RENAMES: [(RenameHow, &str); 4] = [
    (RenameHow::Replace, "replace"),
    (RenameHow::NoReplace, "noreplace"),
    (RenameHow::Exchange, "exchange"),
    (RenameHow::Whiteout, "whiteout"),
];

const XATTR_SETS: [(SetXattr, &str); 3] = [
    (SetXattr::Any, "any"),
    (SetXattr::Create, "create"),
    (SetXattr::Replace, "replace"),
];

const FALLOCS: [(FallocMode, &str); 7] = [
    (FallocMode::Allocate { keep_size: false }, "allocate"),
    (FallocMode::Allocate { keep_size: true }, "allocate-keep"),
    (FallocMode::PunchHole, "punch"),
    (FallocMode::ZeroRange { keep_size: false }, "zero"),
    (FallocMode::ZeroRange { keep_size: true }, "zero-keep"),
    (FallocMode::CollapseRange, "collapse"),
    (FallocMode::InsertRange, "insert"),
];

fn word_for<T: PartialEq>(table: &[(T, &'static str)], value: &T) -> &'static str {
    table
        .iter()
        .find(|(v, _)| v == value)
        .map_or("?", |(_, word)| word)
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { path, perm } => write!(f, "create {path} {perm:o}"),
            Self::Mknod {
                path,
                kind,
                perm,
                rdev,
            } => {
                write!(f, "mknod {path} {} {perm:o} {rdev}", word_for(&KINDS, kind))
            }
            Self::Mkdir { path, perm } => write!(f, "mkdir {path} {perm:o}"),
            Self::Symlink { path, target } => write!(f, "symlink {path} {}", Word(target)),
            Self::Link { from, path } => write!(f, "link {from} {path}"),
            Self::Unlink { path } => write!(f, "unlink {path}"),
            Self::Rmdir { path } => write!(f, "rmdir {path}"),
            Self::Rename { from, to, how } => {
                write!(f, "rename {from} {to} {}", word_for(&RENAMES, how))
            }
            Self::Open { handle, path } => write!(f, "open {handle} {path}"),
            Self::Tmpfile { handle, dir, perm } => write!(f, "tmpfile {handle} {dir} {perm:o}"),
            Self::Close { handle } => write!(f, "close {handle}"),
            Self::Write { file, span, fill } => write!(f, "write {file} {span} {fill}"),
            Self::Copy {
                from,
                span,
                to,
                offset,
            } => write!(f, "copy {from} {span} {to} {offset}"),
            Self::Truncate { file, size } => write!(f, "truncate {file} {size}"),
            Self::Fallocate { file, mode, span } => {
                write!(f, "{} {file} {span}", word_for(&FALLOCS, mode))
            }
            Self::SetXattr {
                file,
                name,
                len,
                fill,
                how,
            } => {
                let how = word_for(&XATTR_SETS, how);
                write!(f, "setxattr {file} {} {len} {fill} {how}", Word(name))
            }
            Self::RemoveXattr { file, name } => write!(f, "removexattr {file} {}", Word(name)),
            Self::Chmod { file, perm } => write!(f, "chmod {file} {perm:o}"),
            Self::Chown { file, uid, gid } => write!(f, "chown {file} {uid} {gid}"),
            Self::Utimens { file, atime, mtime } => {
                write!(f, "utimens {file} {} {}", Time(*atime), Time(*mtime))
            }
            Self::Fsync { file } => write!(f, "fsync {file}"),
            Self::Fdatasync { file } => write!(f, "fdatasync {file}"),
            Self::Sync => f.write_str("sync"),
            Self::Sleep { millis } => write!(f, "sleep {millis}"),
            Self::Read { file, span } => write!(f, "read {file} {span}"),
            Self::Stat { file } => write!(f, "stat {file}"),
            Self::List { dir } => write!(f, "list {dir}"),
            Self::GetXattr { file, name } => write!(f, "getxattr {file} {}", Word(name)),
            Self::Readlink { path } => write!(f, "readlink {path}"),
        }
    }
}

/// The words of a line after its first.
struct Words<'a>(std::str::SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("{what} is missing"))
    }

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.word(what)?;
        word.parse()
            .map_err(|_| format!("{what} is not a number in its range: '{word}'"))
    }

    fn octal(&mut self) -> Result<u32, String> {
        let word = self.word("the permission bits")?;
        match u32::from_str_radix(word, 8) {
            Ok(perm) if perm <= 0o7777 => Ok(perm),
            _ => Err(format!("permission bits are octal, up to 7777: '{word}'")),
        }
    }

    fn path(&mut self) -> Result<TreePath, String> {
        self.word("a path")?.parse()
    }

    fn target(&mut self) -> Result<Target, String> {
        let word = self.word("a path or @number")?;
        match word.strip_prefix('@') {
            None => Ok(Target::Path(word.parse()?)),
            Some(number) => number
                .parse()
                .map(Target::Handle)
                .map_err(|_| format!("'{word}' is not @number")),
        }
    }

    fn span(&mut self) -> Result<Span, String> {
        let word = self.word("a range")?;
        word.split_once('+')
            .and_then(|(offset, len)| Some(Span::new(offset.parse().ok()?, len.parse().ok()?)))
            .ok_or_else(|| format!("a range is offset+length: '{word}'"))
    }

    fn bytes(&mut self, what: &str) -> Result<Vec<u8>, String> {
        unescape(self.word(what)?)
    }

    fn time(&mut self) -> Result<Timestamp, String> {
        let word = self.word("a time")?;
        word.split_once('.')
            .filter(|(_, nanos)| nanos.len() == 9)
            .and_then(|(secs, nanos)| {
                Some(Timestamp {
                    secs: secs.parse().ok()?,
                    nanos: nanos.parse().ok()?,
                })
            })
            .ok_or_else(|| format!("a time is seconds.nanoseconds with nine digits: '{word}'"))
    }

    fn one_of<T: Clone>(&mut self, table: &[(T, &'static str)]) -> Result<T, String> {
        let word = self.word("a choice")?;
        table
            .iter()
            .find(|(_, name)| *name == word)
            .map(|(value, _)| value.clone())
            .ok_or_else(|| {
                let names: Vec<_> = table.iter().map(|(_, name)| *name).collect();
                format!("'{word}' is none of {}", names.join(", "))
            })
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = Words(line.split_ascii_whitespace());
        let verb = words.word("an operation")?;
        let op = parse_verb(verb, &mut words)?;
        match words.0.next() {
            None => Ok(op),
            Some(extra) => Err(format!("'{extra}': too many words")),
        }
    }
}

fn parse_verb(verb: &str, words: &mut Words<'_>) -> Result<Op, String> {
    if let Some((mode, _)) = FALLOCS.iter().find(|(_, name)| *name == verb) {
        let file = words.target()?;
        return Ok(Op::Fallocate {
            file,
            mode: *mode,
            span: words.span()?,
        });
    }
    Ok(match verb {
        "create" => Op::Create {
            path: words.path()?,
            perm: words.octal()?,
        },
        "mknod" => Op::Mknod {
            path: words.path()?,
            kind: words.one_of(&KINDS)?,
            perm: words.octal()?,
            rdev: words.number("the device number")?,
        },
        "mkdir" => Op::Mkdir {
            path: words.path()?,
            perm: words.octal()?,
        },
        "symlink" => Op::Symlink {
            path: words.path()?,
            target: words.bytes("the link's target")?,
        },
        "link" => Op::Link {
            from: words.target()?,
            path: words.path()?,
        },
        "unlink" => Op::Unlink {
            path: words.path()?,
        },
        "rmdir" => Op::Rmdir {
            path: words.path()?,
        },
        "rename" => Op::Rename {
            from: words.path()?,
            to: words.path()?,
            how: words.one_of(&RENAMES)?,
        },
        "open" => Op::Open {
            handle: words.number("the handle")?,
            path: words.path()?,
        },
        "tmpfile" => Op::Tmpfile {
            handle: words.number("the handle")?,
            dir: words.path()?,
            perm: words.octal()?,
        },
        "close" => Op::Close {
            handle: words.number("the handle")?,
        },
        "sync" => Op::Sync,
        "sleep" => Op::Sleep {
            millis: words.number("the time in milliseconds")?,
        },
        "list" => Op::List {
            dir: words.target()?,
        },
        "readlink" => Op::Readlink {
            path: words.path()?,
        },
        _ => return parse_file_verb(verb, words),
    })
}

/// Verbs of the operations whose first operand is the file.
const FILE_VERBS: [&str; 13] = [
    "write",
    "copy",
    "truncate",
    "setxattr",
    "removexattr",
    "getxattr",
    "chmod",
    "chown",
    "utimens",
    "fsync",
    "fdatasync",
    "read",
    "stat",
];

/// Operations whose first operand is the file.
fn parse_file_verb(verb: &str, words: &mut Words<'_>) -> Result<Op, String> {
    if !FILE_VERBS.contains(&verb) {
        return Err(format!("'{verb}' is not an operation"));
    }
    let file = words.target()?;
    Ok(match verb {
        "write" => Op::Write {
            file,
            span: words.span()?,
            fill: words.number("the fill")?,
        },
        "copy" => Op::Copy {
            from: file,
            span: words.span()?,
            to: words.target()?,
            offset: words.number("the offset")?,
        },
        "truncate" => Op::Truncate {
            file,
            size: words.number("the size")?,
        },
        "setxattr" => Op::SetXattr {
            file,
            name: words.bytes("the attribute's name")?,
            len: words.number("the length")?,
            fill: words.number("the fill")?,
            how: words.one_of(&XATTR_SETS)?,
        },
        "removexattr" => Op::RemoveXattr {
            file,
            name: words.bytes("the attribute's name")?,
        },
        "getxattr" => Op::GetXattr {
            file,
            name: words.bytes("the attribute's name")?,
        },
        "chmod" => Op::Chmod {
            file,
            perm: words.octal()?,
        },
        "chown" => Op::Chown {
            file,
            uid: words.number("the user")?,
            gid: words.number("the group")?,
        },
        "utimens" => Op::Utimens {
            file,
            atime: words.time()?,
            mtime: words.time()?,
        },
        "fsync" => Op::Fsync { file },
        "fdatasync" => Op::Fdatasync { file },
        "read" => Op::Read {
            file,
            span: words.span()?,
        },
        _ => Op::Stat { file },
    })
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.setup.is_empty() {
            writeln!(f, "setup")?;
            for op in &self.setup {
                writeln!(f, "  {op}")?;
            }
        }
        for task in &self.tasks {
            writeln!(f, "task")?;
            for op in task {
                writeln!(f, "  {op}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Program {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut program = Self::default();
        let mut in_setup = false;
        for (index, raw) in text.lines().enumerate() {
            let line = raw.trim();
            match line {
                "setup" => in_setup = true,
                "task" => {
                    in_setup = false;
                    program.tasks.push(Vec::new());
                }
                _ if line.is_empty() || line.starts_with('#') => {}
                _ => {
                    let op = line.parse().map_err(|cause| ParseError {
                        line: index + 1,
                        cause,
                    })?;
                    if in_setup {
                        program.setup.push(op);
                    } else if let Some(task) = program.tasks.last_mut() {
                        task.push(op);
                    } else {
                        program.tasks.push(vec![op]);
                    }
                }
            }
        }
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "\
setup
  mkdir /d 755
task
  create /d/a\\x20b 644
  mknod /d/p fifo 600 0
  mknod /d/c char 600 259
  symlink /d/l a/b\\x5cc
  link /d/p /d/q
  unlink /d/q
  rmdir /e
  rename /d/p /p replace
  rename /d/p /p noreplace
  rename /d/p /p exchange
  rename /d/p /p whiteout
  open 1 /d
  tmpfile 2 /d 600
  close 1
  write @2 0+4096 7
  copy @2 0+10 /d/x 99
  truncate /d/x 3
  allocate /d/x 0+9
  allocate-keep /d/x 0+9
  punch /d/x 0+9
  zero /d/x 0+9
  zero-keep /d/x 0+9
  collapse /d/x 0+9
  insert /d/x 0+9
  setxattr / user.a 10 3 any
  setxattr @2 user.a 10 3 create
  removexattr @2 user.a
task
  chmod /d 4711
  chown /d 1 2
  utimens /d -5.000000001 77.999999999
  fsync /d
  fdatasync @2
  sync
  sleep 5000
  read /d/x 0+5
  stat @2
  list /d
  getxattr /d user.b
  readlink /d/l
";

    #[test]
    fn every_operation_survives_the_round_trip() {
        let program: Program = ALL.parse().unwrap();
        assert_eq!(program.setup.len(), 1);
        assert_eq!(
            program.tasks.iter().map(Vec::len).collect::<Vec<_>>(),
            [27, 12]
        );
        assert_eq!(program.to_string(), ALL);
    }

    #[test]
    fn parse_errors_have_line_numbers() {
        let wrong = |text: &str| text.parse::<Program>().unwrap_err();
        assert_eq!(wrong("sync\n\nfrob /a").line, 3);
        assert!(
            wrong("frob /a")
                .cause
                .contains("'frob' is not an operation")
        );
        assert!(wrong("chmod /a 9").cause.contains("octal"));
        assert!(wrong("chmod /a 10000").cause.contains("octal"));
        assert!(wrong("write /a 5 5").cause.contains("offset+length"));
        assert!(wrong("sync now").cause.contains("too many"));
        assert!(wrong("mkdir d 755").cause.contains("not a path"));
        assert!(wrong("rename /a /b swap").cause.contains("none of"));
        assert!(wrong("utimens /a 1.5 1.5").cause.contains("nine digits"));
        assert!(wrong("create /a").cause.contains("missing"));
    }

    #[test]
    fn lines_before_a_task_make_one() {
        let program: Program = "sync\nsync\n".parse().unwrap();
        assert_eq!(program, Program::single(vec![Op::Sync, Op::Sync]));
    }
}
