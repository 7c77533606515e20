//! The files of a tree that a copy takes: what patterns include, less what others exclude.
//!
//! **Rule.** A pattern is about paths below the top of the copy, and `*`, `?` and sets match slashes too, as in GNU tar with
//! `--wildcards`. One that includes matches from the first name on; one that excludes may begin at any name, unless it
//! begins with `/` or `./`. A directory that matches is taken, or left out, with everything below it. A directory without
//! a match is read only if the path of a file below it could match, and is copied only if such a file is found.

use steadfs_vfs::FileKind;

use super::glob::{matches, may_begin};
use super::walk::Entry;
use super::{Result, ToolError, printable, push, refused};

/// Patterns that select files. The default selects all.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    include: Vec<Include>,
    exclude: Vec<Exclude>,
    /// Length of the path of the top.
    top: usize,
}

#[derive(Clone, Debug)]
struct Include {
    /// As it was given.
    shown: Vec<u8>,
    pattern: Vec<u8>,
    /// A file was taken that matches.
    found: bool,
}

#[derive(Clone, Debug)]
struct Exclude {
    pattern: Vec<u8>,
    /// Matches from the first name on only.
    anchored: bool,
}

/// The part of a file that is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The file, and what is below it unless it is excluded.
    Whole,
    /// Files below it, and the directory for them.
    Below,
    Nothing,
}

impl Selection {
    /// Selects what one of the patterns `include` matches, or everything if there are none, and none of `exclude` does.
    ///
    /// # Errors
    /// [`ToolError::Wrong`]: a pattern is empty, or excludes the top.
    pub fn new(include: &[Vec<u8>], exclude: &[Vec<u8>]) -> Result<Self> {
        let mut selection = Self::default();
        for shown in include {
            if shown.is_empty() {
                return Err(ToolError::Wrong("a pattern is empty".to_owned()));
            }
            selection.include.push(Include {
                shown: shown.clone(),
                pattern: below_top(shown).to_vec(),
                found: false,
            });
        }
        for given in exclude {
            let pattern = below_top(given);
            if pattern.is_empty() {
                let shown = printable(given);
                let why = format!("cannot exclude {shown:?}, which names no file below the top");
                return Err(ToolError::Wrong(why));
            }
            selection.exclude.push(Exclude {
                pattern: pattern.to_vec(),
                anchored: given.starts_with(b"/") || given.starts_with(b"./"),
            });
        }
        Ok(selection)
    }

    /// Begins at the top, a file of this kind at `path`; the paths of all later calls begin with it.
    ///
    /// # Errors
    /// There are patterns, and it is no directory.
    pub(super) fn begin(&mut self, kind: FileKind, path: &[u8]) -> Result<Part> {
        self.top = path.len();
        if kind != FileKind::Directory && !self.is_all() {
            return refused(path, "is no directory in which patterns could select files");
        }
        let mut part = match self.include.is_empty() {
            true => Part::Whole,
            false => Part::Below,
        };
        // The top itself.
        for include in &mut self.include {
            if include.pattern.is_empty() {
                include.found = true;
                part = Part::Whole;
            }
        }
        Ok(part)
    }

    /// Whether there are no patterns.
    pub(super) fn is_all(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Keeps the entries of the directory at `dir` that are to be visited. `around` is the directory's part.
    pub(super) fn retain(&mut self, around: Part, dir: &[u8], entries: &mut Vec<Entry>) {
        if self.is_all() {
            return;
        }
        let mut path = dir.to_vec();
        entries.retain(|entry| {
            path.truncate(dir.len());
            push(&mut path, &entry.name);
            match self.part(around, &path) {
                Part::Whole => {
                    self.found(&path);
                    true
                }
                Part::Below => entry.kind.is_none_or(|kind| kind == FileKind::Directory),
                Part::Nothing => false,
            }
        });
    }

    /// The part of the file at `path`, in a directory of which the part is `around`.
    pub(super) fn part(&self, around: Part, path: &[u8]) -> Part {
        if self.is_all() {
            return Part::Whole;
        }
        let path = relative(self.top, path);
        if self.exclude.iter().any(|exclude| exclude.matches(path)) {
            return Part::Nothing;
        }
        let mut includes = self.include.iter().map(|include| &include.pattern[..]);
        if around == Part::Whole || includes.any(|pattern| matches(pattern, path)) {
            return Part::Whole;
        }
        let below = [path, b"/"].concat();
        let mut includes = self.include.iter().map(|include| &include.pattern[..]);
        match includes.any(|pattern| may_begin(pattern, &below)) {
            true => Part::Below,
            false => Part::Nothing,
        }
    }

    /// Records which patterns match the file at `path`, which is taken.
    fn found(&mut self, path: &[u8]) {
        let path = relative(self.top, path);
        for include in &mut self.include {
            include.found = include.found || matches(&include.pattern, path);
        }
    }

    /// An error for each pattern by which no file was taken.
    pub(super) fn missing(&self) -> impl Iterator<Item = ToolError> {
        let missing = self.include.iter().filter(|include| !include.found);
        missing.map(|include| ToolError::Refused {
            path: include.shown.clone(),
            why: "no file matches",
        })
    }
}

impl Exclude {
    fn matches(&self, path: &[u8]) -> bool {
        // A star at the beginning matches the names before, too.
        if self.anchored || self.pattern.starts_with(b"*") {
            return matches(&self.pattern, path);
        }
        let slashes = (0..path.len()).filter(|at| path[*at] == b'/');
        let mut names = std::iter::once(0).chain(slashes.map(|at| at + 1));
        names.any(|at| matches(&self.pattern, &path[at..]))
    }
}

/// The path below the top, whose path has the length `top`.
fn relative(top: usize, path: &[u8]) -> &[u8] {
    let path = path.get(top..).unwrap_or_default();
    path.strip_prefix(b"/").unwrap_or(path)
}

/// A pattern without `/` and `./` at its beginning, and `/` at its end.
fn below_top(given: &[u8]) -> &[u8] {
    let mut pattern = given;
    while let Some(rest) = pattern
        .strip_prefix(b"/")
        .or_else(|| pattern.strip_prefix(b"./"))
    {
        pattern = rest;
    }
    while let Some(rest) = pattern.strip_suffix(b"/") {
        pattern = rest;
    }
    if pattern == b"." { b"" } else { pattern }
}

#[cfg(test)]
mod tests {
    use steadfs_base::InodeNo;

    use super::super::join;
    use super::*;

    fn bytes(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    fn selection(include: &[&str], exclude: &[&str]) -> (Selection, Part) {
        let mut selection = Selection::new(&bytes(include), &bytes(exclude)).unwrap();
        let part = selection.begin(FileKind::Directory, b"/top").unwrap();
        (selection, part)
    }

    #[test]
    fn patterns_select_whole_directories_and_the_way_to_them() {
        use Part::{Below, Nothing, Whole};
        type Case<'c> = (&'c [&'c str], &'c [&'c str], &'c str, Part);
        let cases: &[Case<'_>] = &[
            (&[], &[], "a", Whole),
            (&["etc"], &[], "etc", Whole),
            (&["/etc/"], &[], "etc", Whole),
            (&["./etc/x"], &[], "etc", Below),
            (&["etc/x"], &[], "et", Nothing),
            (&["etc/x"], &[], "etcetera", Nothing),
            (&["etc/*"], &[], "etc", Below),
            (&["etc/*"], &[], "usr", Nothing),
            (&["etc/*"], &[], "etc/.hidden", Whole),
            (&["*.c"], &[], "a/b.c", Whole),
            (&["*.c"], &[], "a/b", Below),
            (&["a/?/c"], &[], "a/b", Below),
            (&["a/?/c"], &[], "a/bb", Nothing),
            (&["a/[!x]*/c"], &[], "a/x", Nothing),
            (&["a\\*/c"], &[], "a*", Below),
            (&["a\\*/c"], &[], "ab", Nothing),
            (&["x", "y/z"], &[], "y", Below),
            (&["."], &[], "a", Whole),
            (&["etc"], &["etc"], "etc", Nothing),
            (&[], &["*.o"], "a/b.o", Nothing),
            (&[], &["b.?"], "a/b.o", Nothing),
            (&[], &["b"], "a/bb", Whole),
            (&[], &["a/b"], "x/a/b", Nothing),
            (&[], &["./b"], "a/b", Whole),
            (&[], &["/b"], "b", Nothing),
            (&[], &[".*"], "a/.b", Nothing),
            (&[], &[".*"], "a/b", Whole),
        ];
        for &(include, exclude, path, wanted) in cases {
            let (selection, part) = selection(include, exclude);
            let path = join(b"/top", path.as_bytes());
            let got = selection.part(part, &path);
            assert_eq!(got, wanted, "{include:?} {exclude:?} {}", printable(&path));
        }
    }

    #[test]
    fn directories_without_a_possible_match_are_left_out() {
        let (mut selection, part) = selection(&["a/f", "b", "none"], &["x"]);
        let entry = |name: &str, kind| Entry {
            ino: InodeNo(12),
            kind,
            name: name.as_bytes().to_vec(),
        };
        let directory = Some(FileKind::Directory);
        let mut entries = vec![
            entry("a", directory),
            entry("b", Some(FileKind::Regular)),
            entry("c", directory),
            entry("x", directory),
        ];
        let names = |entries: &[Entry]| -> Vec<Vec<u8>> {
            entries.iter().map(|entry| entry.name.clone()).collect()
        };
        selection.retain(part, b"/top", &mut entries);
        assert_eq!(names(&entries), bytes(&["a", "b"]));
        // A file where a directory would have to be; a type that only the inode has.
        let mut entries = vec![entry("a", Some(FileKind::Regular)), entry("a", None)];
        selection.retain(part, b"/top", &mut entries);
        assert_eq!(entries.len(), 1);
        let missing: Vec<String> = selection.missing().map(|error| error.to_string()).collect();
        assert_eq!(missing, ["a/f: no file matches", "none: no file matches"]);
    }

    #[test]
    fn patterns_that_cannot_select_are_refused() {
        let cases: [[&[&str]; 2]; 3] = [[&[""], &[]], [&[], &[""]], [&[], &["./"]]];
        for [include, exclude] in cases {
            let made = Selection::new(&bytes(include), &bytes(exclude));
            assert!(matches!(made, Err(ToolError::Wrong(_))), "{exclude:?}");
        }
        let mut some = Selection::new(&bytes(&["a"]), &[]).unwrap();
        assert!(some.begin(FileKind::Regular, b"/a").is_err());
        let all = Selection::default().begin(FileKind::Regular, b"/a");
        assert_eq!(all.unwrap(), Part::Whole);
    }
}
