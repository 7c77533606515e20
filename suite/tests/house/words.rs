//! The language of comments, pages and names: a ratchet that keeps private words out.
//!
//! Rule: comments and pages use the words of the field and plain technical English (`docs/glossary.md`). A word list
//! cannot judge a sentence, but it finds the constructions that a technical writer avoids: pronouns and relative
//! clauses without a noun, verbs of speech for functions, amounts without a unit. Each area of the tree has an
//! allowance of lines with such a construction, which only shrinks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Lines with a listed construction that an area may have; areas that are not listed may have none.
const ALLOWANCES: &[(&str, usize)] = &[];

/// Words that are not used.
const WORDS: &[&str] = &[
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "he",
    "his",
    "him",
    "himself",
    "tell",
    "tells",
    "told",
    "heed",
    "heeds",
    "heeded",
];

/// Words that are not used one after the other.
const PHRASES: &[&str] = &[
    "so many",
    "so much",
    "in vain",
    "let go",
    "lets go",
    "lets it",
    "lets him",
    "lets other",
    "lets others",
    "let it",
    "let him",
    "let other",
    "let others",
    "come to",
    "comes to",
    "for ever",
];

/// A clause that begins with "who" and one of these needs a noun of [`PERSONS`] before it.
const WHO: &[&str] = &[
    "waits",
    "writes",
    "has",
    "comes",
    "calls",
    "reads",
    "holds",
    "is",
    "wants",
    "asks",
    "needs",
    "finds",
    "syncs",
    "does",
    "mounts",
    "only",
    "overwrites",
    "becomes",
];
const PERSONS: &[&str] = &["user", "users", "process", "task"];

/// Words that no name in product code contains: each had a standard term that replaced it.
const PRIVATE_WORDS: &[&str] = &[
    "anew",
    "anybody",
    "awake",
    "bed",
    "company",
    "complaint",
    "complaints",
    "courtesy",
    "debt",
    "ear",
    "everybody",
    "excuse",
    "fate",
    "fates",
    "gather",
    "gathered",
    "gathering",
    "hears",
    "heed",
    "heeds",
    "launch",
    "lend",
    "lends",
    "lent",
    "liar",
    "liars",
    "lie",
    "loan",
    "loans",
    "meddling",
    "nobody",
    "onwards",
    "promise",
    "promised",
    "promises",
    "sheet",
    "somebody",
    "spill",
    "spilled",
    "spills",
    "tells",
    "trouble",
    "whoever",
];

/// The listed construction in a line of prose, if there is one.
fn construction(line: &str) -> Option<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let lower = line.to_lowercase();
    let words: Vec<&str> = lower
        .split(|c| !is_word(c))
        .filter(|word| !word.is_empty())
        .collect();
    let single = words.iter().find(|word| WORDS.contains(word));
    let pairs = || words.windows(2).map(|pair| pair.join(" "));
    let without_noun = (1..words.len()).find(|&n| {
        let has_noun = n > 1 && PERSONS.contains(&words[n - 2]);
        words[n - 1] == "who" && WHO.contains(&words[n]) && !has_noun
    });
    single
        .map(|word| (*word).to_owned())
        .or_else(|| pairs().find(|pair| PHRASES.contains(&pair.as_str())))
        .or_else(|| without_noun.map(|n| format!("who {}", words[n])))
}

/// The area of a file: a crate, `suite` or `bench`; a page is its own.
fn area(path: &str) -> String {
    match path.split_once('/') {
        Some(("crates", rest)) => {
            let name = rest.split('/').next().unwrap_or_default();
            format!("crates/{name}")
        }
        Some((folder @ ("suite" | "bench"), _)) => folder.to_owned(),
        _ => path.to_owned(),
    }
}

/// All files below `folder` with this extension, as paths from `root`.
fn files(root: &Path, folder: &str, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(dir) = folders.pop() {
        for entry in std::fs::read_dir(&dir).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                let path = path.strip_prefix(root).expect("below the root");
                found.push(path.to_str().expect("names are UTF-8").to_owned());
            }
        }
    }
    found.sort();
    found
}

fn read(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join(path)).expect("a file of the tree is text")
}

/// Comments of all Rust files and lines of all pages, with their files and line numbers.
fn prose(root: &Path) -> Vec<(String, usize, String)> {
    let rust = ["crates", "suite", "bench"].map(|folder| files(root, folder, "rs"));
    let pages = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
    ];
    let pages = pages.map(str::to_owned).into_iter();
    let pages = pages.chain(files(root, "docs", "md"));
    let paths: Vec<_> = rust.into_iter().flatten().chain(pages).collect();
    let mut lines = Vec::new();
    for path in paths {
        for (number, line) in (1..).zip(read(root, &path).lines()) {
            let text = match path.ends_with(".rs") {
                true => line.find("//").map(|at| &line[at..]),
                false => Some(line),
            };
            if let Some(text) = text {
                lines.push((path.clone(), number, text.to_owned()));
            }
        }
    }
    lines
}

#[test]
fn prose_uses_the_words_of_the_field() {
    let root = super::root();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, number, line) in prose(&root) {
        if let Some(words) = construction(&line) {
            let what = format!("{path}:{number}: \"{words}\": {}", line.trim());
            found.entry(area(&path)).or_default().push(what);
        }
    }
    let allowances: BTreeMap<_, _> = ALLOWANCES.iter().copied().collect();
    assert_eq!(
        allowances.len(),
        ALLOWANCES.len(),
        "an area is listed twice"
    );
    let areas: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    let mut wrong = Vec::new();
    for area in areas.into_iter().chain(allowances.keys().copied()) {
        let lines = found.get(area).map_or(&[][..], Vec::as_slice);
        let allowed = allowances.get(area).copied().unwrap_or(0);
        if lines.len() > allowed {
            wrong.push(format!(
                "{area}: {} lines, allowance {allowed}",
                lines.len()
            ));
            wrong.extend_from_slice(lines);
        } else if lines.len() < allowed {
            let hint = format!(
                "{area}: lower the allowance from {allowed} to {}",
                lines.len()
            );
            wrong.push(hint);
        }
    }
    assert!(
        wrong.is_empty(),
        "see docs/glossary.md:\n{}",
        wrong.join("\n")
    );
}

/// The code of a line, without comments and string literals.
fn code(line: &str) -> String {
    let mut code = String::new();
    let (mut quoted, mut escaped) = (false, false);
    let line = line.replace("'\"'", "");
    for (at, c) in line.char_indices() {
        if !quoted && line[at..].starts_with("//") {
            break;
        }
        match c {
            '"' if !escaped => quoted = !quoted,
            _ if !quoted => code.push(c),
            _ => {}
        }
        escaped = quoted && c == '\\' && !escaped;
    }
    code
}

/// The words of a name: `NodeChain`, `node_chain` and `NODE_CHAIN` have two.
fn words_of(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in name.split('_') {
        let is_constant = part.chars().all(|c| !c.is_lowercase());
        let mut word = String::new();
        for c in part.chars() {
            if c.is_uppercase() && !is_constant && !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            word.extend(c.to_lowercase());
        }
        words.push(word);
    }
    words
}

#[test]
fn names_use_the_words_of_the_field() {
    let root = super::root();
    let mut wrong = Vec::new();
    for path in super::sources(&root) {
        let path: PathBuf = path.strip_prefix(&root).expect("below the root").into();
        let path = path.to_str().expect("names are UTF-8");
        for (number, line) in (1..).zip(read(&root, path).lines()) {
            let code = code(line);
            let names = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            for name in names {
                let words = words_of(name);
                if words
                    .iter()
                    .any(|word| PRIVATE_WORDS.contains(&word.as_str()))
                {
                    wrong.push(format!("{path}:{number}: {name}"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "see docs/glossary.md:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn constructions_are_found() {
    for line in [
        "The lock that he holds.",
        "Told of it.",
        "Nobody waits.",
        "at most so many bytes",
        "a thread who waits for it",
        "it comes to an end",
    ] {
        assert!(construction(line).is_some(), "{line}");
    }
    for line in [
        "The lock that the task holds.",
        "A user who is not root.",
        "The cache, the shell and the history.",
        "so that many become one",
    ] {
        assert_eq!(construction(line), None, "{line}");
    }
    assert_eq!(words_of("NodeChain"), ["node", "chain"]);
    assert_eq!(words_of("READ_AHEAD_MAX"), ["read", "ahead", "max"]);
    let comment = "/".repeat(2);
    let line = format!(r#"let a = "he {comment} \" told" + b; {comment} his"#);
    assert_eq!(code(&line), "let a =  + b; ");
}
