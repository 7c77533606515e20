//! What the commands that change files print of their changes, and the questions they ask: in the words of coreutils.

use std::io::{BufRead, stdin};
use std::path::Path;

use steadfs::tools::edit::{Changed, Question};
use steadfs::tools::{Accounts, Progress, ToolError, mode_string, owner_cx, printable};
use steadfs_vfs::{FileKind, FileSystem};

use crate::failure::Failure;
use crate::output::{Unwritten, print};
use crate::report::{complain, on_image};
use crate::stderr;
use crate::stop::Stop;

/// Which changes are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printed {
    None,
    /// Those that changed anything.
    Changes,
    All,
}

impl Printed {
    pub fn all(verbose: bool) -> Self {
        match verbose {
            true => Self::All,
            false => Self::None,
        }
    }

    /// `-v` and `-c`, of which one is given.
    pub fn of(verbose: bool, changes: bool) -> Self {
        match changes && !verbose {
            true => Self::Changes,
            false => Self::all(verbose),
        }
    }
}

/// How a command reports.
#[derive(Clone, Copy, Debug)]
pub struct Words<'w> {
    pub command: &'static str,
    pub printed: Printed,
    /// The owner as chown was given it.
    pub owner: Option<&'w str>,
}

impl Words<'_> {
    pub fn new(command: &'static str, verbose: bool) -> Self {
        let printed = Printed::all(verbose);
        Self {
            command,
            printed,
            owner: None,
        }
    }
}

/// Where changes are made.
#[derive(Clone, Copy, Debug)]
pub enum At<'a> {
    Image(&'a Path),
    /// In a line of a script, with what its errors begin with.
    Line(&'a str),
}

/// Prints changes and what fails, and asks.
pub struct ChangeReporter<'r> {
    at: At<'r>,
    words: Words<'r>,
    stop: &'r Stop,
    accounts: Accounts,
    unwritten: Unwritten,
}

impl<'r> ChangeReporter<'r> {
    pub fn new(fs: &dyn FileSystem, at: At<'r>, words: Words<'r>, stop: &'r Stop) -> Self {
        let accounts = match words.owner.is_some() && words.printed != Printed::None {
            true => Accounts::of(fs, &owner_cx()),
            false => Accounts::default(),
        };
        Self {
            at,
            words,
            stop,
            accounts,
            unwritten: Unwritten::default(),
        }
    }

    /// Why changes could not be printed.
    pub fn take_unwritten(&mut self) -> Option<Failure> {
        self.unwritten.take()
    }

    fn name(&self, path: &[u8]) -> String {
        let path = printable(path);
        match self.at {
            At::Image(image) => format!(
                "'{}:{path}'",
                printable(image.as_os_str().as_encoded_bytes())
            ),
            At::Line(_) => format!("'{path}'"),
        }
    }

    /// The line about a change, if there is one.
    fn line(&self, change: &Changed<'_>) -> Option<String> {
        let command = self.words.command;
        let all = self.words.printed == Printed::All;
        let name = |path| self.name(path);
        Some(match *change {
            Changed::Made(path) => format!("{command}: created directory {}", name(path)),
            Changed::Removing(path) => format!("{command}: removing directory, {}", name(path)),
            Changed::Removed { path, is_dir } => match is_dir {
                true => format!("removed directory {}", name(path)),
                false => format!("removed {}", name(path)),
            },
            Changed::Moved { from, to } => format!("renamed {} -> {}", name(from), name(to)),
            Changed::Linked {
                path,
                operand,
                symbolic,
            } => match symbolic {
                true => format!("{} -> '{}'", name(path), printable(operand)),
                false => format!("{} => {}", name(path), name(operand)),
            },
            Changed::PassedOver(path) => {
                let name = all.then(|| name(path))?;
                format!("neither symbolic link {name} nor referent has been changed")
            }
            Changed::Mode {
                path,
                kind,
                from,
                to,
            } => {
                let shown = |perm| format!("{perm:04o} ({})", &mode_string(kind, perm)[1..]);
                match from == to {
                    false => format!(
                        "mode of {} changed from {} to {}",
                        name(path),
                        shown(from),
                        shown(to)
                    ),
                    true if all => format!("mode of {} retained as {}", name(path), shown(to)),
                    true => return None,
                }
            }
            Changed::Owners {
                path,
                from,
                uid,
                gid,
            } => return self.owners(&name(path), from, (uid, gid)),
        })
    }

    fn owners(
        &self,
        name: &str,
        (old_uid, old_gid): (u32, u32),
        (uid, gid): (Option<u32>, Option<u32>),
    ) -> Option<String> {
        let user = |uid| match self.accounts.user(uid) {
            Some(name) => printable(name),
            None => uid.to_string(),
        };
        let group = |gid| match self.accounts.group(gid) {
            Some(name) => printable(name),
            None => gid.to_string(),
        };
        let what = match (uid, gid) {
            (None, Some(_)) => "group",
            _ => "ownership",
        };
        let joined = |user: Option<String>, group: Option<String>| match (user, group) {
            (Some(user), Some(group)) => format!("{user}:{group}"),
            (user, group) => user.or(group).unwrap_or_default(),
        };
        let old = joined(uid.map(|_| user(old_uid)), gid.map(|_| group(old_gid)));
        let is_same = uid.is_none_or(|uid| uid == old_uid) && gid.is_none_or(|gid| gid == old_gid);
        if is_same {
            let line = match old.is_empty() {
                true => format!("{what} of {name} retained"),
                false => format!("{what} of {name} retained as {old}"),
            };
            return (self.words.printed == Printed::All).then_some(line);
        }
        let given = self.words.owner.unwrap_or_default();
        let (given_user, given_group) = given.split_once(':').unwrap_or((given, ""));
        let shown = |given: &str, known: String| match given.trim_start_matches('+') {
            "" => known,
            given => given.to_owned(),
        };
        let new = joined(
            uid.map(|uid| shown(given_user, user(uid))),
            gid.map(|gid| shown(given_group, group(gid))),
        );
        Some(format!("changed {what} of {name} from {old} to {new}"))
    }

    fn question(&self, question: &Question<'_>) -> String {
        let (what, path) = match *question {
            Question::Remove {
                path,
                kind,
                is_empty,
            } => {
                let kind = match kind {
                    FileKind::Regular if is_empty => "regular empty file",
                    FileKind::Regular => "regular file",
                    FileKind::Directory => "directory",
                    FileKind::Symlink => "symbolic link",
                    FileKind::CharDevice => "character special file",
                    FileKind::BlockDevice => "block special file",
                    FileKind::Fifo => "fifo",
                    FileKind::Socket => "socket",
                };
                (format!("remove {kind}"), path)
            }
            Question::Descend(path) => ("descend into directory".to_owned(), path),
            Question::RemoveDirectory(path) => ("remove directory".to_owned(), path),
            Question::Overwrite(path) => match self.words.command {
                "ln" => ("replace".to_owned(), path),
                _ => ("overwrite".to_owned(), path),
            },
        };
        format!("{}: {what} {}?", self.words.command, self.name(path))
    }
}

impl Progress for ChangeReporter<'_> {
    fn file(&mut self, _: &[u8], _: &[u8]) {}
    fn bytes(&mut self, _: u64) {}
    fn problem(&mut self, error: &ToolError) {
        complain(&match self.at {
            At::Image(image) => on_image(image, error),
            At::Line(at) => format!("{at}{error}"),
        });
    }
    fn stopped(&self) -> bool {
        self.stop.is_asked()
    }
    fn changed(&mut self, change: &Changed<'_>) {
        if self.words.printed == Printed::None {
            return;
        }
        if let Some(line) = self.line(change) {
            self.unwritten.add(print(|out| writeln!(out, "{line}")));
        }
    }
    fn confirm(&mut self, question: &Question<'_>) -> bool {
        is_agreed(&self.question(question))
    }
}

/// Asks on standard error. The answer is yes if a line of standard input begins with `y` or `Y`.
pub fn is_agreed(question: &str) -> bool {
    stderr::write(&format!("{question} "));
    let mut answer = Vec::new();
    let read = stdin().lock().read_until(b'\n', &mut answer);
    read.is_ok() && matches!(answer.first(), Some(b'y' | b'Y'))
}
