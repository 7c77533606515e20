//! Parses an expression.

use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};

use steadfs_base::{Timestamp, size};
use steadfs_vfs::FileKind;

use super::super::edit::owner::number_of;
use super::super::edit::{ModeChange, parse_date};
use super::super::printable;
use super::Expression;
use super::expression::{Action, Age, Expr, Number, Pattern, Perm, PermMatch, Stamp, Test};
use super::format::Format;

/// Parentheses that lie in one another.
const NESTED_MAX: usize = 100;

/// The times of a file that an expression compares with.
#[derive(Clone, Copy, Debug)]
pub struct FileTimes {
    /// Last access.
    pub access: Timestamp,
    /// Last change of content.
    pub modification: Timestamp,
    /// Last change of the inode.
    pub change: Timestamp,
    /// Birth, if it is known.
    pub birth: Option<Timestamp>,
}

/// What an expression needs that is not in it.
pub trait Outside {
    /// The time that ages are counted to.
    fn now(&self) -> Timestamp;
    /// The times of a file that is named.
    ///
    /// # Errors
    /// A message.
    fn times(&mut self, place: &OsStr) -> Result<FileTimes, String>;
}

impl Expression {
    /// Parses the words of an expression; none print everything.
    ///
    /// # Errors
    /// A message that names the word.
    pub fn parse(words: &[OsString], outside: &mut dyn Outside) -> Result<Self, String> {
        let mut parser = Parser {
            words,
            outside,
            nested: 0,
            acts: false,
            prunes: false,
            depth_named: false,
            expression: Self {
                root: Expr::All(Vec::new()),
                prints: true,
                min_depth: 0,
                max_depth: usize::MAX,
                depth_first: false,
                deletes: false,
                formats: false,
                names: false,
                accounts: Vec::new(),
                now: Timestamp::default(),
            },
        };
        parser.expression.now = parser.outside.now();
        if !words.is_empty() {
            parser.expression.root = parser.list()?;
        }
        if let Some(word) = parser.peek() {
            return Err(format!("{}: there is no ( for it", shown(word)));
        }
        if parser.expression.deletes && parser.prunes && !parser.depth_named {
            let why = "-delete visits what is in a directory first, so that -prune has no effect: \
                       write -depth if that is meant";
            return Err(why.to_owned());
        }
        parser.expression.prints = !parser.acts;
        Ok(parser.expression)
    }
}

struct Parser<'w> {
    words: &'w [OsString],
    outside: &'w mut dyn Outside,
    nested: usize,
    /// An action is named that replaces printing.
    acts: bool,
    prunes: bool,
    depth_named: bool,
    expression: Expression,
}

fn shown(word: &OsStr) -> String {
    printable(word.as_encoded_bytes())
}

impl<'w> Parser<'w> {
    fn peek(&self) -> Option<&'w OsStr> {
        self.words.first().map(|word| &**word)
    }

    fn is_next(&self, words: &[&str]) -> bool {
        self.peek()
            .is_some_and(|next| words.iter().any(|w| next == *w))
    }

    fn skip(&mut self, words: &[&str]) -> bool {
        let found = self.is_next(words);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    /// `A, B`
    fn list(&mut self) -> Result<Expr, String> {
        let mut parts = vec![self.any()?];
        while self.skip(&[","]) {
            parts.push(self.any()?);
        }
        Ok(one_or(parts, Expr::List))
    }

    /// `A -o B`
    fn any(&mut self) -> Result<Expr, String> {
        let mut parts = vec![self.all()?];
        while self.skip(&["-o", "-or"]) {
            parts.push(self.all()?);
        }
        Ok(one_or(parts, Expr::Any))
    }

    /// `A -a B`, or `A B`
    fn all(&mut self) -> Result<Expr, String> {
        let mut parts = vec![self.not()?];
        while self.peek().is_some() && !self.is_next(&[",", "-o", "-or", ")"]) {
            self.skip(&["-a", "-and"]);
            parts.push(self.not()?);
        }
        Ok(one_or(parts, Expr::All))
    }

    fn not(&mut self) -> Result<Expr, String> {
        let mut negated = false;
        while self.skip(&["!", "-not"]) {
            negated = !negated;
        }
        let part = self.primary()?;
        Ok(match negated {
            true => Expr::Not(Box::new(part)),
            false => part,
        })
    }

    fn primary(&mut self) -> Result<Expr, String> {
        if self.skip(&["("]) {
            self.nested += 1;
            if self.nested > NESTED_MAX {
                return Err(format!(
                    "more than {NESTED_MAX} parentheses lie in one another"
                ));
            }
            let inner = self.list()?;
            if !self.skip(&[")"]) {
                return Err("(: there is no ) for it".to_owned());
            }
            self.nested -= 1;
            return Ok(inner);
        }
        let Some(word) = self.peek() else {
            return Err("the expression ends where a test or an action is missing".to_owned());
        };
        if self.is_next(&[")", ",", "-a", "-and", "-o", "-or"]) {
            return Err(format!(
                "{}: a test or an action is missing before it",
                shown(word)
            ));
        }
        self.words = &self.words[1..];
        let name = word.to_str().unwrap_or_default();
        if let Some(expr) = self.option(name)? {
            return Ok(expr);
        }
        if let Some(action) = self.action(name)? {
            return Ok(Expr::Action(action));
        }
        let test = match self.attribute_test(name)? {
            Some(test) => Some(test),
            None => self.name_test(name)?,
        };
        test.map(Expr::Test).ok_or_else(|| unknown(name, word))
    }

    fn value(&mut self, name: &str) -> Result<&'w OsStr, String> {
        let value = self
            .peek()
            .ok_or_else(|| format!("{name}: needs a value"))?;
        self.words = &self.words[1..];
        Ok(value)
    }

    fn text(&mut self, name: &str) -> Result<&'w str, String> {
        let value = self.value(name)?;
        value
            .to_str()
            .ok_or_else(|| format!("{name} {}: is no text", shown(value)))
    }

    /// Options are true for all files, and hold for the whole expression.
    fn option(&mut self, name: &str) -> Result<Option<Expr>, String> {
        match name {
            "-maxdepth" | "-mindepth" => {
                let text = self.text(name)?;
                let depth = text
                    .parse()
                    .map_err(|_| format!("{name} {text}: needs a number"))?;
                match name {
                    "-maxdepth" => self.expression.max_depth = depth,
                    _ => self.expression.min_depth = depth,
                }
            }
            "-depth" | "-d" => {
                self.expression.depth_first = true;
                self.depth_named = true;
            }
            // A volume is one file system; the others have no effect in find(1) either.
            "-xdev" | "-mount" | "-noleaf" => {}
            _ => return Ok(None),
        }
        Ok(Some(Expr::Test(Test::Always(true))))
    }

    fn action(&mut self, name: &str) -> Result<Option<Action>, String> {
        let action = match name {
            "-print" => Action::Print,
            "-print0" => Action::Print0,
            "-printf" => {
                let format = Format::parse(self.value(name)?.as_encoded_bytes())?;
                self.expression.names |= format.names;
                Action::Printf(format)
            }
            "-ls" => {
                self.expression.names = true;
                Action::Ls
            }
            "-delete" => {
                self.expression.depth_first = true;
                self.expression.deletes = true;
                Action::Delete
            }
            "-prune" => {
                self.prunes = true;
                return Ok(Some(Action::Prune));
            }
            "-quit" => return Ok(Some(Action::Quit)),
            _ => return Ok(None),
        };
        self.expression.formats |= !matches!(action, Action::Print | Action::Delete);
        self.acts = true;
        Ok(Some(action))
    }

    fn name_test(&mut self, name: &str) -> Result<Option<Test>, String> {
        let fold = name.starts_with("-i");
        Ok(Some(match name {
            "-name" | "-iname" => Test::Name(self.pattern(name, fold)?),
            "-path" | "-ipath" | "-wholename" | "-iwholename" => {
                Test::Path(self.pattern(name, fold)?)
            }
            "-lname" | "-ilname" => Test::Target(self.pattern(name, fold)?),
            "-newer" => self.newer(name, Stamp::Modification, Stamp::Modification)?,
            "-anewer" => self.newer(name, Stamp::Access, Stamp::Modification)?,
            "-cnewer" => self.newer(name, Stamp::Change, Stamp::Modification)?,
            _ => {
                let Some([which, reference]) = name
                    .strip_prefix("-newer")
                    .and_then(|letters| <[u8; 2]>::try_from(letters.as_bytes()).ok())
                else {
                    return Ok(None);
                };
                let Some(which) = stamp(which) else {
                    return Ok(None);
                };
                match (stamp(reference), reference) {
                    (Some(reference), _) => self.newer(name, which, reference)?,
                    (None, b't') => {
                        let text = self.text(name)?;
                        let forms = "YYYY-MM-DD [HH:MM[:SS]] [ZONE] or @SECONDS";
                        let time = parse_date(text);
                        Test::Newer(which, time.ok_or(format!("{name} {text}: needs {forms}"))?)
                    }
                    _ => return Ok(None),
                }
            }
        }))
    }

    fn newer(&mut self, name: &str, which: Stamp, reference: Stamp) -> Result<Test, String> {
        let place = self.value(name)?;
        let times = self.outside.times(place)?;
        let time = match reference {
            Stamp::Access => Some(times.access),
            Stamp::Modification => Some(times.modification),
            Stamp::Change => Some(times.change),
            Stamp::Birth => times.birth,
        };
        let time = time.ok_or_else(|| format!("{name} {}: its birth is unknown", shown(place)))?;
        Ok(Test::Newer(which, time))
    }

    fn pattern(&mut self, name: &str, fold: bool) -> Result<Pattern, String> {
        let text = self.value(name)?.as_encoded_bytes().to_vec();
        Ok(Pattern { text, fold })
    }

    fn attribute_test(&mut self, name: &str) -> Result<Option<Test>, String> {
        Ok(Some(match name {
            "-true" => Test::Always(true),
            "-false" => Test::Always(false),
            "-empty" => Test::Empty,
            "-type" => Test::Kind(kinds(name, self.text(name)?)?),
            "-xtype" => Test::TargetKind(kinds(name, self.text(name)?)?),
            "-size" => {
                let text = self.text(name)?;
                let forms =
                    "needs a whole number with c, w, b or a unit such as k, MiB or GB behind it";
                let (number, unit) = size(text).ok_or(format!("{name} {text}: {forms}"))?;
                Test::Size(number, unit)
            }
            "-links" => Test::Links(self.number(name)?),
            "-inum" => Test::Inode(self.number(name)?),
            "-uid" => Test::User(self.number(name)?),
            "-gid" => Test::Group(self.number(name)?),
            "-user" | "-group" => self.account(name)?,
            "-nouser" | "-nogroup" => {
                self.expression.names = true;
                match name {
                    "-nouser" => Test::NoUser,
                    _ => Test::NoGroup,
                }
            }
            "-perm" => {
                let text = self.text(name)?;
                let forms = "needs a mode, such as 644, -u+w or /222";
                Test::Perm(perm(text).ok_or(format!("{name} {text}: {forms}"))?)
            }
            "-atime" | "-ctime" | "-mtime" | "-amin" | "-cmin" | "-mmin" => Test::Age(Age {
                which: match name.as_bytes()[1] {
                    b'a' => Stamp::Access,
                    b'c' => Stamp::Change,
                    _ => Stamp::Modification,
                },
                in_days: name.ends_with("time"),
                number: self.number(name)?,
            }),
            _ => return Ok(None),
        }))
    }

    fn number(&mut self, name: &str) -> Result<Number, String> {
        let text = self.text(name)?;
        number(text).ok_or_else(|| format!("{name} {text}: needs a whole number, or +N or -N"))
    }

    fn account(&mut self, name: &str) -> Result<Test, String> {
        let text = self.text(name)?;
        let is_user = name == "-user";
        if let Some(than) = number_of(text) {
            let number = Number {
                order: Ordering::Equal,
                than: than.into(),
            };
            return Ok(match is_user {
                true => Test::User(number),
                false => Test::Group(number),
            });
        }
        if text.is_empty() || text.contains(':') {
            return Err(format!("{name} {text}: needs a name or a number"));
        }
        let index = self.expression.accounts.len();
        self.expression.accounts.push((is_user, text.to_owned()));
        Ok(Test::Account { is_user, index })
    }
}

fn one_or(mut parts: Vec<Expr>, many: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    match (parts.pop(), parts.is_empty()) {
        (Some(only), true) => only,
        (last, _) => {
            parts.extend(last);
            many(parts)
        }
    }
}

/// The error for a word that is no part of an expression here.
fn unknown(name: &str, word: &OsStr) -> String {
    let why = match name {
        "-exec" | "-execdir" | "-ok" | "-okdir" => {
            "no program is run; -print0 with xargs -0 passes the files on"
        }
        "-fprint" | "-fprint0" | "-fprintf" | "-fls" => "redirect standard output instead",
        "-regex" | "-iregex" | "-regextype" => "write a pattern of -path or -name",
        "-L" | "-follow" => "links below the starting points are not followed",
        "-readable" | "-writable" | "-executable" => "root may all; -perm finds permissions",
        "-samefile" => "-inum finds all names of a file",
        "-daystart" => "-newermt compares with a date",
        "-fstype" | "-context" | "-used" | "-files0-from" | "-ignore_readdir_race" => {
            "has no counterpart on an image"
        }
        _ if name.starts_with("--") || name == "-sandbox" => {
            return format!("{name}: options stand before the first IMAGE");
        }
        _ if name.starts_with('-') => {
            return format!("{}: is no part of an expression", shown(word));
        }
        _ => {
            let why = "starting points stand before the expression (a pattern needs quotes)";
            return format!("{}: {why}", shown(word));
        }
    };
    format!("{name} is not supported: {why}")
}

fn number(text: &str) -> Option<Number> {
    let (order, digits) = match text.as_bytes().first()? {
        b'+' => (Ordering::Greater, &text[1..]),
        b'-' => (Ordering::Less, &text[1..]),
        _ => (Ordering::Equal, text),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let than = digits.parse().ok().filter(|_| is_number)?;
    Some(Number { order, than })
}

/// A number and the bytes of its unit: those of find(1), and those of all sizes ([`steadfs_base::size`]).
fn size(text: &str) -> Option<(Number, u64)> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'c' => (&text[..text.len() - 1], 1),
        b'w' => (&text[..text.len() - 1], 2),
        b'b' => (&text[..text.len() - 1], 512),
        b'0'..=b'9' => (text, 512),
        _ => {
            let end = text.trim_end_matches(|c: char| !c.is_ascii_digit()).len();
            (&text[..end], size::unit_bytes(&text[end..])?)
        }
    };
    Some((number(digits)?, unit))
}

fn kinds(name: &str, text: &str) -> Result<Vec<FileKind>, String> {
    let kind = |letter: &str| match letter {
        "b" => Ok(FileKind::BlockDevice),
        "c" => Ok(FileKind::CharDevice),
        "d" => Ok(FileKind::Directory),
        "p" => Ok(FileKind::Fifo),
        "f" => Ok(FileKind::Regular),
        "l" => Ok(FileKind::Symlink),
        "s" => Ok(FileKind::Socket),
        _ => Err(format!(
            "{name} {text}: needs letters of bcdpfls, separated by commas"
        )),
    };
    text.split(',').map(kind).collect()
}

fn perm(text: &str) -> Option<Perm> {
    let (how, mode) = match text.as_bytes() {
        [b'-', ..] => (PermMatch::All, &text[1..]),
        [b'/', ..] => (PermMatch::Any, &text[1..]),
        // What +222 meant to find(1) once is /222 today.
        [b'+', b'0'..=b'9', ..] => return None,
        _ => (PermMatch::Exact, text),
    };
    let mode = ModeChange::parse(mode)?;
    Some(Perm {
        how,
        of_file: mode.apply(0, false, 0),
        of_dir: mode.apply(0, true, 0),
    })
}

fn stamp(letter: u8) -> Option<Stamp> {
    match letter {
        b'a' => Some(Stamp::Access),
        b'B' => Some(Stamp::Birth),
        b'c' => Some(Stamp::Change),
        b'm' => Some(Stamp::Modification),
        _ => None,
    }
}
