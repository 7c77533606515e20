//! `tree`.

use std::io::{self, Write};
use std::path::Path;

use steadfs::tools::{
    Accounts, Branch, Branches, ToolError, TreeCount, TreeOptions, mode_string, owner_cx,
    printable, tree,
};
use steadfs_vfs::FileKind;

use crate::args;
use crate::args::trees::Charset;
use crate::failure::Failure;
use crate::json::{File, List, Place, to_text};
use crate::output::{print, stream};
use crate::report::Reporter;
use crate::stop::Stop;
use crate::trees::{failure, for_each_path, for_each_volume, groups, prefix};
use crate::volume::Access;

/// Lines in front of a name: of a level around it with and without more entries, and of its own directory's entries and
/// last entry.
struct Lines {
    more: &'static str,
    none: &'static str,
    entry: &'static str,
    last: &'static str,
}

const UTF_8: Lines = Lines {
    more: "│\u{a0}\u{a0} ",
    none: "    ",
    entry: "├── ",
    last: "└── ",
};
const ASCII: Lines = Lines {
    more: "|   ",
    none: "    ",
    entry: "|-- ",
    last: "`-- ",
};

/// Prints a tree as text.
struct Text<'t> {
    args: &'t args::Tree,
    out: &'t mut dyn Write,
    prefix: &'t [u8],
    accounts: &'t Accounts,
}

impl Text<'_> {
    fn line(&mut self, branch: &Branch<'_>) -> io::Result<()> {
        let lines = match self.args.charset {
            Charset::Utf8 => UTF_8,
            Charset::Ascii => ASCII,
        };
        if let (false, Some((last, around))) = (self.args.no_indent, branch.lasts.split_last()) {
            for last in around {
                write!(self.out, "{}", if *last { lines.none } else { lines.more })?;
            }
            write!(self.out, "{}", if *last { lines.last } else { lines.entry })?;
        }
        let attributes = self.attributes(branch);
        if !attributes.is_empty() {
            write!(self.out, "[{attributes}]  ")?;
        }
        let name = match (branch.lasts.is_empty(), self.args.full_path) {
            (false, false) => branch.name.to_vec(),
            (_, full) => {
                let mut path = branch.path;
                while let (true, [_, ..], Some(rest)) = (full, path, path.strip_suffix(b"/")) {
                    if rest.is_empty() {
                        break;
                    }
                    path = rest;
                }
                [self.prefix, path].concat()
            }
        };
        write!(self.out, "{}", printable(&name))?;
        if let Some(target) = branch.target {
            write!(self.out, " -> {}", printable(target))?;
        }
        writeln!(self.out)
    }

    /// What is between the brackets.
    fn attributes(&self, branch: &Branch<'_>) -> String {
        let args = self.args;
        let Ok(attr) = branch.attr else {
            let unknown = [
                args.permissions,
                args.user,
                args.group,
                args.size || args.human,
            ];
            let unknown = unknown.into_iter().filter(|shown| *shown).map(|_| "?");
            return unknown.collect::<Vec<_>>().join(" ");
        };
        let account = |name: Option<&[u8]>, id: u32| {
            let name = name.map_or_else(|| id.to_string(), printable);
            format!("{name:<8}")
        };
        let mut words = Vec::new();
        if args.permissions {
            words.push(mode_string(attr.kind, attr.perm));
        }
        if args.user {
            words.push(account(self.accounts.user(attr.uid), attr.uid));
        }
        if args.group {
            words.push(account(self.accounts.group(attr.gid), attr.gid));
        }
        if args.human {
            words.push(human(attr.size));
        } else if args.size {
            words.push(format!("{:>11}", attr.size));
        }
        words.join(" ")
    }
}

impl Branches for Text<'_> {
    fn begin(&mut self, branch: &Branch<'_>) -> Result<(), ToolError> {
        self.line(branch).map_err(output_failed)
    }

    fn end(&mut self) -> Result<(), ToolError> {
        Ok(())
    }
}

/// Prints a tree as JSON.
struct Json<'t> {
    out: &'t mut dyn Write,
    image: &'t Path,
    list: &'t mut List,
    max_depth: usize,
    /// For each open file whether it is a directory that is entered, and whether an entry of it was printed.
    open: Vec<(bool, bool)>,
}

impl Json<'_> {
    fn object(&mut self, branch: &Branch<'_>) -> io::Result<()> {
        match self.open.last_mut() {
            None => self.list.next(self.out)?,
            Some((_, any)) => {
                let before = if std::mem::replace(any, true) {
                    ",\n"
                } else {
                    "\n"
                };
                write!(self.out, "{before}")?;
            }
        }
        let place = Place::new(self.image, branch.path);
        let file = match &branch.attr {
            Ok(attr) => File::new(place, attr, branch.target),
            Err(error) => File::unreadable(place, (None, None), error.clone()),
        };
        let is_dir = matches!(branch.attr, Ok(attr) if attr.kind == FileKind::Directory);
        let enters = is_dir && branch.lasts.len() < self.max_depth;
        let text = to_text(&file)?;
        write!(self.out, "{}", text.strip_suffix('}').unwrap_or(&text))?;
        if enters {
            write!(self.out, ",\"entries\":[")?;
        }
        self.open.push((enters, false));
        Ok(())
    }
}

impl Branches for Json<'_> {
    fn begin(&mut self, branch: &Branch<'_>) -> Result<(), ToolError> {
        self.object(branch).map_err(output_failed)
    }

    fn end(&mut self) -> Result<(), ToolError> {
        let end = match self.open.pop() {
            Some((true, _)) => "]}",
            _ => "}",
        };
        write!(self.out, "{end}").map_err(output_failed)
    }
}

fn output_failed(source: io::Error) -> ToolError {
    ToolError::Host {
        path: Path::new("standard output").to_owned(),
        source,
    }
}

/// A size as tree(1) rounds it: to the nearest, with a fraction below ten; powers of 1024.
pub fn human(bytes: u64) -> String {
    let mut kib = bytes;
    for letter in ['K', 'M', 'G', 'T', 'P', 'E'] {
        if bytes < 1024 {
            break;
        }
        if kib < 1 << 20 {
            let size = kib as f64 / 1024.0;
            return match kib >> 10 < 10 {
                true => format!("{size:3.1}{letter}"),
                false => format!("{size:3.0}{letter}"),
            };
        }
        kib >>= 10;
    }
    format!("{bytes:>4}")
}

pub fn run(args: &args::Tree) -> Result<(), Failure> {
    let options = TreeOptions {
        all: args.all,
        directories: args.directories,
        max_depth: args.level.unwrap_or(usize::MAX),
    };
    let groups = groups(&args.places, &args.open)?;
    let stop = Stop::on_signals()?;
    let mut total = TreeCount::default();
    let mut list = List::default();
    let done = for_each_volume(&groups, &args.open, Access::Read, |fs, group| {
        let cx = owner_cx();
        let prefix = prefix(group);
        let accounts = match args.user || args.group {
            true => Accounts::of(fs, &cx),
            false => Accounts::default(),
        };
        let work = |out: &mut dyn Write| {
            for_each_path(group, |path| {
                let mut reporter = Reporter {
                    image: &group.image,
                    stop: &stop,
                };
                let mut text = Text {
                    args,
                    out: &mut *out,
                    prefix: &prefix,
                    accounts: &accounts,
                };
                let mut json;
                let branches: &mut dyn Branches = match args.json {
                    false => &mut text,
                    true => {
                        json = Json {
                            out: text.out,
                            image: &group.image,
                            list: &mut list,
                            max_depth: options.max_depth,
                            open: Vec::new(),
                        };
                        &mut json
                    }
                };
                let count = tree(fs, &cx, path, options, branches, &mut reporter)?;
                total.directories += count.directories;
                total.files += count.files;
                Ok(count.failures)
            })
        };
        stream(work, |error| failure(group, &stop, &error))
    });
    if args.json && !done.as_ref().is_err_and(Failure::is_signal) {
        print(|out| list.end(out))?;
    } else if !args.no_report && !done.as_ref().is_err_and(Failure::is_signal) {
        print(|out| report(args, &total, out))?;
    }
    done
}

/// The line with the numbers of files.
fn report(args: &args::Tree, count: &TreeCount, out: &mut dyn Write) -> io::Result<()> {
    let directories = match count.directories {
        1 => "1 directory".to_owned(),
        n => format!("{n} directories"),
    };
    let files = match count.files {
        _ if args.directories => String::new(),
        1 => ", 1 file".to_owned(),
        n => format!(", {n} files"),
    };
    writeln!(out, "\n{directories}{files}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results are those of tree(1) 2.1.0.
    #[test]
    fn sizes_are_rounded_as_by_tree() {
        for (bytes, wanted) in [
            (0, "   0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (5000, "4.9K"),
            (10_239, "10.0K"),
            (10_240, " 10K"),
            (10_752, " 10K"),
            (11_264, " 11K"),
            (1_048_575, "1024K"),
            (1_200_000, "1.1M"),
            (12 << 30, " 12G"),
            (u64::MAX, " 16E"),
        ] {
            assert_eq!(human(bytes), wanted, "{bytes}");
        }
    }
}
