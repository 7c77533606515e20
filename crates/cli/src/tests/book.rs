//! The book (`docs/book`): the program understands each command line, each link leads to a page, each page is listed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Parser;
use steadfs::Options;

use crate::args::{Args, Command};
use crate::args_f2fs::{FormatF2fs, is_f2fs};
use crate::man_text::PAGES;
use crate::script::words::lines;

/// The name of a key, in place of what a command of a page prints.
const KEY_NAME: &str = "00112233445566778899aabbccddeeff";
/// Pages that `scripts/book` generates, beside those of the commands.
const GENERATED: [&str; 5] = [
    "commands",
    "options",
    "controls",
    "exit-codes",
    "steadfs-format-f2fs",
];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The pages of the book: paths below its folder, and their text.
fn pages() -> Vec<(String, String)> {
    let top = docs().join("book/src");
    let mut pages = Vec::new();
    let mut folders = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the book") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(&top).expect("below the top");
                let text = std::fs::read_to_string(&path).expect("a page is text");
                pages.push((name.to_str().expect("names are UTF-8").to_owned(), text));
            }
        }
    }
    assert!(pages.len() > 20, "{} pages", pages.len());
    pages
}

/// The commands in the console blocks of a page, without what is written to here-documents.
fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        let command = line.strip_prefix("$ ").or(line.strip_prefix("# "));
        if line.starts_with("```") {
            in_block = line.starts_with("```console");
        } else if in_block {
            commands.extend(command.map(str::to_owned));
        }
    }
    commands
}

/// Takes `$(...)` out of a command: what stands there, with a word in its place.
fn substitutions(command: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = command.to_owned();
    while let Some(begin) = rest.rfind("$(") {
        // The last one has no other one inside.
        let end = rest[begin..]
            .find(')')
            .map_or(rest.len(), |at| begin + at + 1);
        let inner = rest[begin..end]
            .trim_start_matches("$(")
            .trim_end_matches(')');
        let value = match inner.starts_with("steadfs key") {
            true => KEY_NAME,
            false => "0",
        };
        found.push(inner.to_owned());
        rest.replace_range(begin..end, value);
    }
    found.push(rest);
    found
}

/// The words of a command line of a shell, its operators among them, as words of a script.
fn as_script(command: &str) -> String {
    let mut quote = None;
    let mut script = String::new();
    for character in command.chars() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            (None, ';') => script.push_str(" \\;"),
            (None, '&' | '|' | '<' | '>' | '(' | ')' | '{') | (None | Some('"'), '$' | '`') => {
                script.push('\\');
            }
            _ => {}
        }
        match (quote, character) {
            (None, ';') => script.push(' '),
            _ => script.push(character),
        }
    }
    script
}

/// The calls of `steadfs` in a command line of a shell.
fn calls(command: &str) -> Vec<Vec<OsString>> {
    let mut calls = Vec::new();
    for part in substitutions(command) {
        let script = as_script(&part);
        let line = lines(script.as_bytes()).unwrap_or_else(|(_, why)| panic!("{command}: {why}"));
        let words = line.into_iter().flat_map(|line| line.words);
        let mut call: Option<Vec<OsString>> = None;
        let mut is_first = true;
        for word in words {
            let text = word.to_string_lossy();
            if ["|", "&&", "&", ";"].contains(&&*text) {
                calls.extend(call.take());
                is_first = true;
            } else if text.starts_with(['<', '>']) || text.starts_with("2>") {
                calls.extend(call.take());
            } else if let Some(call) = &mut call {
                call.push(word);
            } else if is_first && text == "steadfs" {
                call = Some(vec![word]);
            } else {
                // An assignment, or a word of the shell that a command follows.
                let goes_on = ["do", "then", "else"].contains(&&*text) || text.contains('=');
                is_first = is_first && goes_on;
            }
        }
        calls.extend(call);
    }
    calls
}

/// Why the program does not understand these words.
fn refusal(words: &[OsString], key: &Path) -> Option<String> {
    let words: Vec<OsString> = words
        .iter()
        .map(|word| match word.to_str() {
            Some("key.bin") => key.as_os_str().to_owned(),
            // What a line before it has set.
            Some("$name") => KEY_NAME.into(),
            Some("$owner") => "0:0".into(),
            _ => word.clone(),
        })
        .collect();
    if is_f2fs(&words) {
        let parsed = FormatF2fs::try_parse_from(&words[1..]);
        return parsed.err().map(|error| error.to_string());
    }
    let list = match Args::try_parse_from(&words) {
        Err(error) => return Some(error.to_string()),
        Ok(args) => match args.command {
            Command::Mount(mount) => mount.options.lists.join(","),
            Command::Remount(remount) => remount.options.join(","),
            _ => return None,
        },
    };
    let parsed = Options::parse(&list);
    parsed.err().map(|error| error.to_string())
}

#[test]
fn command_lines_are_understood() {
    // A key is read with the arguments.
    let key = tempfile::NamedTempFile::new().expect("there is room");
    std::fs::write(key.path(), [7; 64]).expect("it can be written");
    let (mut count, mut wrong) = (0, Vec::new());
    for (page, text) in pages() {
        for command in commands(&text) {
            for call in calls(&command) {
                count += 1;
                if let Some(why) = refusal(&call, key.path()) {
                    wrong.push(format!("{page}: {call:?}: {why}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "{count} calls");
}

#[test]
fn a_call_is_found_wherever_a_shell_has_one() {
    let found = |command: &str| {
        let words = |call: &Vec<OsString>| {
            let words: Vec<_> = call.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        calls(command).iter().map(words).collect::<Vec<_>>()
    };
    assert_eq!(found("steadfs tar a:/ | tar -tf -"), ["steadfs tar a:/"]);
    assert_eq!(
        found("x=1 steadfs ls a >b && echo steadfs"),
        ["steadfs ls a"]
    );
    assert_eq!(
        found("steadfs key set-policy d \"$(steadfs key add m k)\"; ls"),
        [
            "steadfs key add m k".to_owned(),
            format!("steadfs key set-policy d {KEY_NAME}")
        ]
    );
    assert_eq!(found("steadfs edit i - <<END"), ["steadfs edit i -"]);
}

/// The end of the address of a heading.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let text: String = heading.chars().filter(kept).collect();
    text.trim().to_lowercase().replace(' ', "-")
}

fn has_anchor(text: &str, wanted: &str) -> bool {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#')));
    anchors.any(|found| found == wanted)
}

/// Whether a link in the page `from` leads somewhere.
fn leads_somewhere(from: &str, link: &str, pages: &[(String, String)]) -> bool {
    let (path, wanted) = link.split_once('#').unwrap_or((link, ""));
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            part => parts.push(part),
        }
    }
    let target = match path {
        "" => from.to_owned(),
        _ => parts.join("/"),
    };
    let text = match target.split_once('/') {
        Some(("reference", page)) => {
            let Some(name) = page.strip_suffix(".md") else {
                return false;
            };
            let command = name.strip_prefix("steadfs-");
            let is_command = PAGES.iter().any(|page| Some(page.command) == command);
            return wanted.is_empty() && (is_command || GENERATED.contains(&name));
        }
        Some(("documents", page)) => std::fs::read_to_string(docs().join(page)).ok(),
        Some(("images", _)) => {
            let image = std::fs::read(docs().join("book/src").join(&target));
            return image.is_ok_and(|bytes| bytes.starts_with(b"<svg"));
        }
        _ => {
            let found = pages.iter().find(|(page, _)| *page == target);
            found.map(|(_, text)| text.clone())
        }
    };
    text.is_some_and(|text| wanted.is_empty() || has_anchor(&text, wanted))
}

#[test]
fn links_lead_to_pages_that_the_summary_lists() {
    let pages = pages();
    let mut wrong = Vec::new();
    let mut listed = BTreeSet::new();
    for (page, text) in &pages {
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap_or_default();
            let is_inside = !link.contains("://");
            if is_inside && !leads_somewhere(page, link, &pages) {
                wrong.push(format!("{page}: {link}"));
            }
            if page == "SUMMARY.md" {
                listed.insert(link);
            }
        }
    }
    for (page, _) in &pages {
        if page != "SUMMARY.md" && !listed.contains(page.as_str()) {
            wrong.push(format!("{page} is not in SUMMARY.md"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A change of a generated page's name would break what links to it.
#[test]
fn the_generator_writes_the_pages_that_are_linked() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/manual/book.rs");
    let text = std::fs::read_to_string(path).expect("the generator is text");
    for name in GENERATED {
        assert!(text.contains(&format!("\"{name}")), "{name}");
    }
}
