//! Lengths of functions: a reader sees a whole function at once, so a long one is split into named steps.
//!
//! Rule: no function of the workspace, tests included, has more than [`FUNCTION_LINES`] lines from its `fn` to its
//! closing brace. A function inside another one counts for both. There are no exceptions: long tables are constants.

use std::path::{Path, PathBuf};

/// Largest number of lines of a function.
const FUNCTION_LINES: usize = 70;

/// A word or one character of punctuation, and its line.
#[derive(Debug)]
struct Token<'a> {
    line: usize,
    text: &'a str,
}

/// Reads the tokens of a source; comments, strings and character literals are passed over.
struct Lexer<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Lexer<'a> {
    /// Takes `length` bytes.
    fn take(&mut self, length: usize) -> Token<'a> {
        let (text, rest) = self.rest.split_at(length);
        let line = self.line;
        self.rest = rest;
        self.line += text.matches('\n').count();
        Token { line, text }
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let rest = self.rest;
            let first = rest.chars().next()?;
            let passed_over = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                block_comment(rest)
            } else if first == '"' {
                quoted(rest, '"')
            } else if first == '\'' {
                literal_or_lifetime(rest)
            } else if let Some(length) = raw_string(rest) {
                length
            } else if first.is_whitespace() {
                first.len_utf8()
            } else {
                let word = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
                return Some(self.take(word.max(first.len_utf8())));
            };
            self.take(passed_over);
        }
    }
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Length of the comment at the start of `text`; comments nest.
fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of what stands between two quotes at the start of `text`, with the quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if !escaped && c == quote {
            return at + 1;
        }
        escaped = !escaped && c == '\\';
    }
    text.len()
}

/// Length of the character literal at the start of `text`, or of the quote of a lifetime.
fn literal_or_lifetime(text: &str) -> usize {
    let mut chars = text.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => quoted(text, '\''),
        _ => 1,
    }
}

/// Length of the raw string at the start of `text`, if there is one.
fn raw_string(text: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        let rest = text.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(['#', '"']))
    })?;
    let rest = &text[prefix.len()..];
    let hashes = rest.find(|c| c != '#').unwrap_or(rest.len());
    let content = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &rest[..hashes]);
    let length = content.find(&end).unwrap_or(content.len());
    Some(prefix.len() + hashes + 1 + length + end.len())
}

/// A function with a body.
#[derive(Debug, PartialEq)]
struct Function {
    name: String,
    /// The line of its `fn`, from 1.
    line: usize,
    lines: usize,
}

fn functions(text: &str) -> Vec<Function> {
    let tokens: Vec<_> = Lexer {
        rest: text,
        line: 1,
    }
    .collect();
    let starts = tokens.windows(2).enumerate().filter(|(_, pair)| {
        // `fn(` is a type.
        pair[0].text == "fn" && pair[1].text != "("
    });
    let found = starts.filter_map(|(at, pair)| {
        let last = last_line(&tokens[at..])?;
        Some(Function {
            name: pair[1].text.to_owned(),
            line: pair[0].line,
            lines: last - pair[0].line + 1,
        })
    });
    found.collect()
}

/// The line of the closing brace of the function at the start of `tokens`, or none for a declaration without a body.
fn last_line(tokens: &[Token<'_>]) -> Option<usize> {
    let mut brackets = 0;
    let body = tokens.iter().position(|token| {
        match token.text {
            "(" | "[" => brackets += 1,
            ")" | "]" => brackets -= 1,
            _ => {}
        }
        brackets == 0 && matches!(token.text, "{" | ";")
    })?;
    let mut braces = 0;
    for token in &tokens[body..] {
        match token.text {
            "{" => braces += 1,
            "}" => braces -= 1,
            ";" if braces == 0 => return None,
            _ => {}
        }
        if braces == 0 {
            return Some(token.line);
        }
    }
    None
}

/// All Rust files of the workspace, tests included.
fn all_sources(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = ["crates", "suite", "bench"]
        .map(|dir| root.join(dir))
        .to_vec();
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn functions_stay_short() {
    let root = super::root();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for file in all_sources(&root) {
        let text = std::fs::read_to_string(&file).expect("a source file is text");
        let path = file.strip_prefix(&root).expect("below the root");
        let path = path.to_str().expect("names are UTF-8");
        let found = functions(&text);
        count += found.len();
        let long = found.iter().filter(|f| f.lines > FUNCTION_LINES);
        wrong.extend(long.map(|f| format!("{path}:{}: {} has {} lines", f.line, f.name, f.lines)));
    }
    assert!(count > 5000, "only {count} functions were found");
    assert!(wrong.is_empty(), "split these functions: {wrong:#?}");
}

#[test]
fn functions_are_measured_whatever_they_contain() {
    let text = r####"
trait Shape { fn declared(&self, sides: [u8; 3]) -> fn(u8) -> u8; }

/// Not code: fn commented() {
fn literals<'a>(text: &'a str) -> [char; 4] {
    let _ = "} fn \" text() {"; /* } /* fn nested() { */ } */
    let _ = (r#"} " fn raw() {"#, br"}", b'}', '\u{7d}', '\'', "\\");
    ['{', '}', '\\', '"']
}

fn outer() {
    let r#type = 1;
    fn inner(call: impl Fn(u8)) {
        call(1);
    }
    macro_rules! made {
        ($name:ident) => { fn $name() {} };
    }
}
"####;
    let found = functions(text).into_iter();
    let found: Vec<_> = found.map(|f| (f.name, f.line, f.lines)).collect();
    let wanted = [
        ("literals", 5, 5),
        ("outer", 11, 9),
        ("inner", 13, 3),
        ("$", 17, 1),
    ];
    assert_eq!(
        found,
        wanted.map(|(name, line, n)| (name.to_owned(), line, n))
    );
    for lines in [FUNCTION_LINES, FUNCTION_LINES + 1] {
        let text = format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2));
        assert_eq!(functions(&text)[0].lines, lines);
    }
}
