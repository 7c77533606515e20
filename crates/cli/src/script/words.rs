//! The words of a script: one command a line, divided and quoted as by a shell.
//!
//! **Rule.** Blanks divide words. Single quotes keep all that is in them, double quotes all but a backslash before `"`, `\`,
//! `$` or a backquote, and a backslash keeps the next character. A `#` at the beginning of a word begins a comment. A
//! backslash at the end of a line joins the next one. Nothing is expanded, so `~` is an ordinary character. The special characters
//! of patterns that are quoted are ordinary ones, too. Operators of a shell that are not quoted, `$` and backquotes that a
//! shell would replace, and braces that it would expand are errors: as names they would hardly be meant.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The words of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Number of the (first) line, from 1.
    pub number: usize,
    pub words: Vec<OsString>,
    /// Words that look like patterns, and are none.
    pub literal: BTreeSet<OsString>,
}

/// A word that is being read.
#[derive(Default)]
struct Word {
    bytes: Vec<u8>,
    /// Those without quotes, with null bytes for the others.
    unquoted: Vec<u8>,
    /// As a pattern: with a backslash before special characters that were quoted.
    pattern: Vec<u8>,
    /// Whether there are special characters without and with quotes.
    plain: bool,
    quoted: bool,
}

const fn is_special(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\')
}

impl Word {
    fn add(&mut self, byte: u8, is_quoted: bool) {
        self.bytes.push(byte);
        self.unquoted.push(if is_quoted { 0 } else { byte });
        match (is_special(byte), is_quoted) {
            (true, true) => {
                self.quoted = true;
                self.pattern.push(b'\\');
            }
            (true, false) => self.plain = true,
            (false, _) => {}
        }
        self.pattern.push(byte);
    }

    fn end(self, line: &mut Line) -> Result<(), &'static str> {
        if is_expanded(&self.unquoted) {
            return Err(
                "'{' and '}' are not expanded: name each file, or quote them if they are part of a name",
            );
        }
        let word = match self.plain && self.quoted {
            true => self.pattern,
            false => self.bytes,
        };
        let word = OsString::from_vec(word);
        if self.quoted && !self.plain {
            line.literal.insert(word.clone());
        }
        line.words.push(word);
        Ok(())
    }
}

/// Whether a shell would make several words of one: braces stand around a comma or two dots.
fn is_expanded(word: &[u8]) -> bool {
    // Of the braces that are open, whether a separator stands in them.
    let mut open: Vec<bool> = Vec::new();
    let mut before = 0;
    for byte in word.iter().copied() {
        match (byte, open.last_mut()) {
            (b'{', _) => open.push(false),
            (b'}', Some(true)) => return true,
            (b'}', _) => {
                open.pop();
            }
            (b',', Some(separated)) => *separated = true,
            (b'.', Some(separated)) if before == b'.' => *separated = true,
            _ => {}
        }
        before = byte;
    }
    false
}

/// The commands of a script.
///
/// # Errors
/// The number of a line that cannot be divided, and why.
pub fn lines(script: &[u8]) -> Result<Vec<Line>, (usize, &'static str)> {
    let mut lines = Vec::new();
    let mut joined: Option<(usize, Vec<u8>)> = None;
    for (number, text) in (1..).zip(script.split(|byte| *byte == b'\n')) {
        let (first, mut whole) = joined.take().unwrap_or((number, Vec::new()));
        whole.extend_from_slice(text);
        let backslashes = text.iter().rev().take_while(|byte| **byte == b'\\').count();
        if backslashes % 2 == 1 && !is_comment(&whole) {
            whole.pop();
            joined = Some((first, whole));
            continue;
        }
        let line = words(&whole, first).map_err(|why| (first, why))?;
        if !line.words.is_empty() {
            lines.push(line);
        }
    }
    match joined {
        Some((first, _)) => Err((first, "the last line ends with a backslash")),
        None => Ok(lines),
    }
}

fn is_comment(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"#")
}

/// Refuses what a shell would act on.
fn operator(byte: u8) -> Result<(), &'static str> {
    Err(match byte {
        b';' | b'&' | b'|' => {
            "';', '&' and '|' do not join commands: write one on each line, or quote them if they are part of a name"
        }
        b'<' | b'>' => "'<' and '>' do not redirect: quote them if they are part of a name",
        b'(' | b')' => "'(' and ')' do not group commands: quote them if they are part of a name",
        b'$' | b'`' => {
            "'$' and '`' are not replaced by values: put them in single quotes, or a backslash in front, if they are part of a name"
        }
        _ => return Ok(()),
    })
}

fn words(text: &[u8], number: usize) -> Result<Line, &'static str> {
    let mut line = Line {
        number,
        ..Line::default()
    };
    let mut word: Option<Word> = None;
    let mut rest = text.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte == 0 {
            return Err("has a null byte");
        }
        match byte {
            b' ' | b'\t' | b'\r' => {
                if let Some(word) = word.take() {
                    word.end(&mut line)?;
                }
            }
            b'#' if word.is_none() => break,
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        Some(b'\'') => break,
                        Some(byte) => word.add(byte, true),
                        None => return Err("a single quote is not closed"),
                    }
                }
            }
            b'"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        Some(b'"') => break,
                        Some(b'\\') if matches!(rest.peek(), Some(b'"' | b'\\' | b'$' | b'`')) => {
                            word.add(rest.next().unwrap_or(b'\\'), true);
                        }
                        Some(byte @ (b'$' | b'`')) => operator(byte)?,
                        Some(byte) => word.add(byte, true),
                        None => return Err("a double quote is not closed"),
                    }
                }
            }
            b'\\' => match rest.next() {
                Some(byte) => word.get_or_insert_default().add(byte, true),
                None => return Err("ends with a backslash"),
            },
            byte => {
                operator(byte)?;
                word.get_or_insert_default().add(byte, false);
            }
        }
    }
    if let Some(word) = word {
        word.end(&mut line)?;
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(text: &str) -> Vec<Vec<String>> {
        let lines = lines(text.as_bytes()).unwrap();
        let text = |word: &OsString| word.to_str().unwrap().to_owned();
        lines
            .iter()
            .map(|line| line.words.iter().map(text).collect())
            .collect()
    }

    #[test]
    fn words_are_divided_as_by_a_shell() {
        for (text, wanted) in [
            ("", &[][..]),
            ("  # comment\n\n\t\n", &[]),
            ("mkdir  /a\t/b # c", &[&["mkdir", "/a", "/b"][..]]),
            ("a#b #c\r", &[&["a#b"]]),
            (r#"x 'a b' "c d"e\ f"#, &[&["x", "a b", "c de f"]]),
            (r#"x "a\"b\\c\$d\e" '\n'"#, &[&["x", r#"a"b\c$d\e"#, r"\n"]]),
            ("x '' \"\"", &[&["x", "", ""]]),
            ("x \\\n y\nz", &[&["x", "y"], &["z"]]),
            ("# c \\\nz", &[&["z"]]),
            (r"x '$HOME' \$X ~", &[&["x", "$HOME", "$X", "~"]]),
            (
                r#"x 'a;b' "c&d|e" f\>g "<()" '`'"#,
                &[&["x", "a;b", "c&d|e", "f>g", "<()", "`"]],
            ),
            (
                r"x {} {a},{b} '{a,b}' {a\,b} a,} {..",
                &[&["x", "{}", "{a},{b}", "{a,b}", "{a,b}", "a,}", "{.."]],
            ),
            ("rm /a*'*'", &[&["rm", r"/a*\*"]]),
        ] {
            assert_eq!(divided(text), wanted, "{text}");
        }
    }

    #[test]
    fn quoted_patterns_are_none() {
        let line = &lines(b"\nrm '/a*' /b* /c\\? \"/d[\"x").unwrap()[0];
        let literal: Vec<_> = line
            .literal
            .iter()
            .map(|word| word.to_str().unwrap())
            .collect();
        assert_eq!(literal, ["/a*", "/c?", "/d[x"]);
        assert_eq!(line.number, 2);
    }

    #[test]
    fn what_is_not_closed_is_an_error_of_its_line() {
        for (text, number, why) in [
            ("a\n'b\nc'", 2, "single quote"),
            ("\"b", 1, "double quote"),
            ("a\n\nb\\", 3, "backslash"),
            ("a\0", 1, "null byte"),
            ("mkdir /a; rmdir /b", 1, "one on each line"),
            ("a\ntouch /a && touch /b", 2, "one on each line"),
            ("a|b", 1, "one on each line"),
            ("a >/b", 1, "redirect"),
            ("a</b", 1, "redirect"),
            ("a (b)", 1, "group"),
            ("a $X", 1, "replaced"),
            ("a \"$X\"", 1, "replaced"),
            ("a `b`", 1, "replaced"),
            ("mkdir /etc/{a,b}", 1, "expanded"),
            ("touch a\ntouch f{1..9}", 2, "expanded"),
            ("a {{b},c}", 1, "expanded"),
            ("a {b{c,d}", 1, "expanded"),
        ] {
            let (line, said) = lines(text.as_bytes()).unwrap_err();
            assert_eq!(line, number, "{text:?}");
            assert!(said.contains(why), "{text:?}: {said}");
        }
    }
}
