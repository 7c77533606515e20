//! `find`: the files of a tree for which an expression is true.
//!
//! **Rule.** An [`Expression`] has the words and the meaning of find(1), except that `-path` sees paths on the volume,
//! without the image's name. What find(1) has and this has not is refused by name. The tree is visited once, in bounded
//! memory; what cannot be read is reported, and the rest goes on.

mod expression;
mod format;
mod parse;
mod times;

use std::io::{self, Write};
use std::path::Path;

use steadfs_base::Timestamp;
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError};

use super::edit::{Editor, OwnerSpec, RmOptions};
use super::glob::matches_by;
use super::names_of::Accounts;
use super::walk::resolve;
use super::walker::{Visited, Visitor, visit};
use super::{At, AtHost, Progress, Result, ToolError, printable};

use expression::{Action, Expr, Test};
pub use parse::{FileTimes, Outside};

/// What find(1) calls an expression: tests and actions, and how the tree is visited.
#[derive(Debug)]
pub struct Expression {
    root: Expr,
    /// No action is named, so files for which the expression is true are printed.
    prints: bool,
    min_depth: usize,
    max_depth: usize,
    /// A directory comes after its entries.
    depth_first: bool,
    deletes: bool,
    /// There are other actions that write than `-print`.
    formats: bool,
    /// Names of users and groups are shown.
    names: bool,
    /// Users (`true`) and groups that are named.
    accounts: Vec<(bool, String)>,
    now: Timestamp,
}

impl Expression {
    /// Whether files are deleted.
    pub fn deletes(&self) -> bool {
        self.deletes
    }

    /// Whether text is written that is no line of `-print`.
    pub fn formats(&self) -> bool {
        self.formats
    }
}

/// Prints a file in another form than its path, and where it leads if it is a link.
pub type Printer<'o> =
    &'o mut dyn FnMut(&mut dyn Write, Visited<'_>, Option<&[u8]>) -> io::Result<()>;

/// Where results go.
pub struct Output<'o> {
    /// Text.
    pub out: &'o mut dyn Write,
    /// What `-print` does instead of printing paths.
    pub printer: Option<Printer<'o>>,
    /// Comes before each path: the image and a colon.
    pub prefix: &'o [u8],
    /// Names are escaped, for a terminal.
    pub escape: bool,
}

/// Visits the tree at `path`; a link there is followed if `follow`. Returns how many files could not be read or deleted.
///
/// # Errors
/// There is no such file or account; the output fails ([`ToolError::Host`]); a signal.
pub fn find<'f>(
    fs: &'f dyn FileSystem,
    cx: &'f Cx,
    (path, follow): (&'f [u8], bool),
    expression: &'f Expression,
    output: Output<'f>,
    progress: &'f mut dyn Progress,
) -> Result<u64> {
    let mut ids = Vec::new();
    for (is_user, name) in &expression.accounts {
        let owners = match is_user {
            true => OwnerSpec::parse(name).find(fs, cx)?.uid,
            false => OwnerSpec::parse(&format!(":{name}")).find(fs, cx)?.gid,
        };
        ids.push(owners.ok_or_else(|| ToolError::Wrong(format!("{name}: is no account")))?);
    }
    let accounts = match expression.names {
        true => Accounts::of(fs, cx),
        false => Accounts::default(),
    };
    let top = resolve(fs, cx, path, follow).on_volume(path)?;
    let mut finder = Finder {
        fs,
        cx,
        expression,
        output,
        progress,
        accounts,
        ids,
        top: path,
        failures: 0,
        pruned: false,
        quit: false,
    };
    match visit(fs, cx, (top, path), false, &mut finder) {
        Err(ToolError::Stopped) if finder.quit => Ok(finder.failures),
        done => done.map(|()| finder.failures),
    }
}

struct Finder<'f> {
    fs: &'f dyn FileSystem,
    cx: &'f Cx,
    expression: &'f Expression,
    output: Output<'f>,
    progress: &'f mut dyn Progress,
    accounts: Accounts,
    /// The numbers of [`Expression::accounts`].
    ids: Vec<u32>,
    top: &'f [u8],
    failures: u64,
    /// The directory that is visited is not descended into.
    pruned: bool,
    quit: bool,
}

impl Visitor for Finder<'_> {
    fn enter(&mut self, file: Visited<'_>) -> Result<bool> {
        if self.progress.stopped() {
            return Err(ToolError::Stopped);
        }
        self.pruned = false;
        if !self.expression.depth_first || file.attr.kind != FileKind::Directory {
            self.file(file)?;
        }
        Ok(!self.pruned && file.depth < self.expression.max_depth)
    }

    fn leave(&mut self, dir: Visited<'_>) -> Result<()> {
        match self.expression.depth_first {
            true => self.file(dir),
            false => Ok(()),
        }
    }

    fn problem(&mut self, error: ToolError) -> Result<()> {
        self.failures += 1;
        self.progress.problem(&error);
        Ok(())
    }
}

impl Finder<'_> {
    fn file(&mut self, file: Visited<'_>) -> Result<()> {
        let expression = self.expression;
        if file.depth < expression.min_depth {
            return Ok(());
        }
        let found = self.is_true(&expression.root, file)?;
        if found && expression.prints {
            self.print(file)?;
        }
        Ok(())
    }

    fn is_true(&mut self, expr: &Expr, file: Visited<'_>) -> Result<bool> {
        match expr {
            Expr::All(parts) => {
                for part in parts {
                    if !self.is_true(part, file)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Expr::Any(parts) => {
                for part in parts {
                    if self.is_true(part, file)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Expr::List(parts) => {
                let mut last = true;
                for part in parts {
                    last = self.is_true(part, file)?;
                }
                Ok(last)
            }
            Expr::Not(part) => Ok(!self.is_true(part, file)?),
            Expr::Test(test) => match self.holds(test, file) {
                Ok(holds) => Ok(holds),
                Err(source) => {
                    let path = file.path.to_vec();
                    self.problem(ToolError::Volume { path, source })?;
                    Ok(false)
                }
            },
            Expr::Action(action) => self.act(action, file),
        }
    }

    fn holds(&self, test: &Test, file: Visited<'_>) -> Result<bool, FsError> {
        let attr = file.attr;
        Ok(match test {
            Test::Always(value) => *value,
            Test::Name(pattern) => matches_by(&pattern.text, base_name(file.path), pattern.fold),
            Test::Path(pattern) => matches_by(&pattern.text, file.path, pattern.fold),
            Test::Target(pattern) => match attr.kind {
                FileKind::Symlink => {
                    let target = self.fs.readlink(self.cx, attr.ino)?;
                    matches_by(&pattern.text, &target, pattern.fold)
                }
                _ => false,
            },
            Test::Kind(kinds) => kinds.contains(&attr.kind),
            Test::TargetKind(kinds) => match self.target_kind(file) {
                Ok(kind) => kinds.contains(&kind),
                Err(FsError::NotFound | FsError::NotDir) => kinds.contains(&FileKind::Symlink),
                Err(error) => return Err(error),
            },
            Test::Size(number, unit) => number.holds(attr.size.div_ceil(*unit)),
            Test::Links(number) => number.holds(attr.nlink.into()),
            Test::Inode(number) => number.holds(attr.ino.0),
            Test::User(number) => number.holds(attr.uid.into()),
            Test::Group(number) => number.holds(attr.gid.into()),
            Test::Account { is_user, index } => {
                let id = if *is_user { attr.uid } else { attr.gid };
                self.ids.get(*index) == Some(&id)
            }
            Test::NoUser => self.accounts.user(attr.uid).is_none(),
            Test::NoGroup => self.accounts.group(attr.gid).is_none(),
            Test::Perm(perm) => perm.holds(attr.perm, attr.kind == FileKind::Directory),
            Test::Age(age) => age.holds(attr, self.expression.now),
            Test::Newer(which, than) => which.of(attr).is_some_and(|time| time > *than),
            Test::Empty => match attr.kind {
                FileKind::Regular => attr.size == 0,
                FileKind::Directory => self.is_empty(attr)?,
                _ => false,
            },
        })
    }

    fn is_empty(&self, dir: &Attr) -> Result<bool, FsError> {
        let mut empty = true;
        self.fs.readdir(self.cx, dir.ino, 0, &mut |entry| {
            empty &= entry.name == b"." || entry.name == b"..";
            empty
        })?;
        Ok(empty)
    }

    /// The type of the file that a path leads to.
    fn target_kind(&self, file: Visited<'_>) -> Result<FileKind, FsError> {
        match file.attr.kind {
            FileKind::Symlink => {
                let found = resolve(self.fs, self.cx, file.path, true)?;
                Ok(found.attr().kind)
            }
            kind => Ok(kind),
        }
    }

    fn act(&mut self, action: &Action, file: Visited<'_>) -> Result<bool> {
        match action {
            Action::Print => self.print(file)?,
            Action::Print0 => self.line(file, 0)?,
            Action::Printf(format) => {
                let text = self.formatted(format, file)?;
                self.write(&text)?;
            }
            Action::Ls => {
                let text = self.listed(file)?;
                self.write(text.as_bytes())?;
            }
            Action::Prune => self.pruned = true,
            Action::Quit => {
                self.quit = true;
                return Err(ToolError::Stopped);
            }
            Action::Delete => {
                let mut editor = Editor::new(self.fs, self.cx, &mut *self.progress);
                let options = RmOptions {
                    directories: true,
                    ..RmOptions::default()
                };
                editor.rm(file.path, options)?;
                let failures = editor.failures();
                self.failures += failures;
                return Ok(failures == 0);
            }
        }
        Ok(true)
    }

    fn print(&mut self, file: Visited<'_>) -> Result<()> {
        if self.output.printer.is_none() {
            return self.line(file, b'\n');
        }
        let target = self.target(file)?;
        let Output { out, printer, .. } = &mut self.output;
        let printed = printer
            .as_mut()
            .map_or(Ok(()), |print| print(&mut **out, file, target.as_deref()));
        printed.on_host(Path::new("standard output"))
    }

    /// Where a link leads.
    fn target(&mut self, file: Visited<'_>) -> Result<Option<Vec<u8>>> {
        if file.attr.kind != FileKind::Symlink {
            return Ok(None);
        }
        match self.fs.readlink(self.cx, file.attr.ino) {
            Ok(target) => Ok(Some(target)),
            Err(source) => {
                let path = file.path.to_vec();
                self.problem(ToolError::Volume { path, source })?;
                Ok(None)
            }
        }
    }

    fn line(&mut self, file: Visited<'_>, end: u8) -> Result<()> {
        let mut line = match end {
            0 => [self.output.prefix, file.path].concat(),
            _ => self.shown(&[self.output.prefix, file.path].concat()),
        };
        line.push(end);
        self.write(&line)
    }

    /// A name as it is written.
    fn shown(&self, name: &[u8]) -> Vec<u8> {
        match self.output.escape {
            true => printable(name).into_bytes(),
            false => name.to_vec(),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written: io::Result<()> = self.output.out.write_all(bytes);
        written.on_host(Path::new("standard output"))
    }
}

/// The last name of a path; of the root a slash.
fn base_name(path: &[u8]) -> &[u8] {
    match super::edit::base_name(path) {
        b"" => b"/",
        name => name,
    }
}
