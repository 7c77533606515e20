//! Patterns of names: `*`, `?`, `[...]` and classes as `[[:digit:]]`, as glob(7) has them.
//!
//! **Rule.** A path that exists as it is written is that file. Otherwise each name of the path that has a special
//! character is matched against the entries of its directory: `*` and `?` do not match a dot at the beginning, and a
//! character is one of UTF-8 or else a byte. A backslash makes a special character an ordinary one.

use steadfs_vfs::{Cx, FileKind, FileSystem, FsError};

use super::walk::{entries, resolve};
use super::{At, Result, join};

/// Whether a path has a name with a special character.
pub fn is_pattern(path: &[u8]) -> bool {
    let mut rest = path;
    while let [first, after @ ..] = rest {
        rest = match first {
            b'\\' => after.get(1..).unwrap_or_default(),
            b'*' | b'?' => return true,
            // A slash ends a name, and so what looks like a set.
            b'[' if class(after).is_some_and(|(set, _)| !set.contains(&b'/')) => return true,
            _ => after,
        };
    }
    false
}

/// The files that `path` names, sorted; none if a pattern has no match.
///
/// # Errors
/// A directory on the way cannot be read.
pub fn glob(fs: &dyn FileSystem, cx: &Cx, path: &[u8]) -> Result<Vec<Vec<u8>>> {
    if !is_pattern(path) || resolve(fs, cx, path, false).is_ok() {
        return Ok(vec![path.to_vec()]);
    }
    let mut found = vec![b"/".to_vec()];
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        let mut next = Vec::new();
        for dir in &found {
            if is_pattern(name) {
                // An entry that cannot be read is one that matches.
                next.extend(matching(fs, cx, dir, name)?);
                continue;
            }
            let path = join(dir, &literal(name));
            if existing(resolve(fs, cx, &path, false))
                .on_volume(&path)?
                .is_some()
            {
                next.push(path);
            }
        }
        found = next;
    }
    if path.ends_with(b"/") {
        let is_dir = |path: &Vec<u8>| {
            let found = resolve(fs, cx, path, true);
            found.is_ok_and(|found| found.attr().kind == FileKind::Directory)
        };
        found.retain(is_dir);
        found.iter_mut().for_each(|path| path.push(b'/'));
    }
    Ok(found)
}

/// What was found, `None` if there is no such file or a circle of links leads to it; other errors stay.
fn existing<T>(found: steadfs_vfs::Result<T>) -> steadfs_vfs::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(FsError::NotFound | FsError::NotDir | FsError::Loop | FsError::NameTooLong) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The paths of a directory's entries that match, sorted. What is no directory has none.
fn matching(fs: &dyn FileSystem, cx: &Cx, dir: &[u8], pattern: &[u8]) -> Result<Vec<Vec<u8>>> {
    let found = existing(resolve(fs, cx, dir, true)).on_volume(dir)?;
    let Some(found) = found.filter(|found| found.attr().kind == FileKind::Directory) else {
        return Ok(Vec::new());
    };
    let (entries, error) = entries(fs, cx, found.ino());
    error.map_or(Ok(()), Err).on_volume(dir)?;
    let hidden = pattern.starts_with(b".") || pattern.starts_with(b"\\.");
    let names = entries.into_iter().map(|entry| entry.name);
    let mut names: Vec<_> = names
        .filter(|name| (hidden || !name.starts_with(b".")) && matches(pattern, name))
        .collect();
    names.sort_unstable();
    Ok(names.iter().map(|name| join(dir, name)).collect())
}

/// A name without the backslashes before its special characters.
fn literal(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, after @ ..] = rest {
        let (byte, next) = match (first, after) {
            (b'\\', [escaped, next @ ..]) => (escaped, next),
            _ => (first, after),
        };
        plain.push(*byte);
        rest = next;
    }
    plain
}

/// Whether a name matches a pattern. Takes at most the product of both lengths in steps.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    matches_by(pattern, name, false)
}

/// As [`matches`], where upper and lower case are the same if `fold`.
pub(super) fn matches_by(pattern: &[u8], name: &[u8], fold: bool) -> bool {
    let (mut pattern, mut name) = (pattern, name);
    // Where to continue if the rest does not match: behind the last star, with one more character under it.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', after @ ..] = pattern {
            retry = Some((after, name));
            pattern = after;
            continue;
        }
        let step = match (pattern.is_empty(), name.is_empty()) {
            (true, true) => return true,
            (false, false) => one(pattern, name, fold),
            _ => None,
        };
        match (step, retry) {
            (Some(rests), _) => (pattern, name) = rests,
            (None, Some((after, under))) if !under.is_empty() => {
                let under = &under[character(under).1..];
                retry = Some((after, under));
                (pattern, name) = (after, under);
            }
            _ => return false,
        }
    }
}

/// Whether a pattern can match a text that begins with `start`.
pub(super) fn may_begin(pattern: &[u8], start: &[u8]) -> bool {
    let (mut pattern, mut start) = (pattern, start);
    while !start.is_empty() && pattern.first() != Some(&b'*') {
        match one(pattern, start, false) {
            Some(rests) => (pattern, start) = rests,
            None => return false,
        }
    }
    true
}

/// Matches one character; returns what is left of both.
fn one<'t>(pattern: &'t [u8], name: &'t [u8], fold: bool) -> Option<(&'t [u8], &'t [u8])> {
    let (wanted, length) = character(name);
    let rest = &name[length..];
    match pattern {
        [b'?', after @ ..] => Some((after, rest)),
        [b'[', after @ ..] if class(after).is_some() => {
            let (set, after) = class(after)?;
            in_class(set, wanted, fold).then_some((after, rest))
        }
        [b'\\', escaped @ ..] | escaped if !escaped.is_empty() => {
            let (found, length) = character(escaped);
            (folded(found, fold) == folded(wanted, fold)).then_some((&escaped[length..], rest))
        }
        _ => None,
    }
}

/// The character that stands for both cases of one, if `fold`.
fn folded(character: u32, fold: bool) -> u32 {
    let mut lower = match char::from_u32(character) {
        Some(letter) if fold => letter.to_lowercase(),
        _ => return character,
    };
    match (lower.next(), lower.next()) {
        (Some(one), None) => one.into(),
        _ => character,
    }
}

/// The first character and its length; a byte that is not UTF-8 is none of the characters.
fn character(text: &[u8]) -> (u32, usize) {
    for length in 1..=text.len().min(4) {
        if let Ok(Some(character)) = std::str::from_utf8(&text[..length]).map(|t| t.chars().next())
        {
            return (character.into(), length);
        }
    }
    const NO_CHARACTER: u32 = 0x11_0000;
    (
        NO_CHARACTER + text.first().map_or(0, |byte| u32::from(*byte)),
        1,
    )
}

/// What is between the brackets, and what follows them. A `]` that comes first is a member.
fn class(after: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = usize::from(matches!(after.first(), Some(b'!' | b'^')));
    let mut at = first;
    loop {
        let rest = after.get(at..)?;
        if at > first && rest.first() == Some(&b']') {
            return Some((&after[..at], &after[at + 1..]));
        }
        at += member(rest)?.1;
    }
}

/// A part of a set.
enum Member<'p> {
    Character(u32),
    /// `[:alpha:]`
    Named(&'p [u8]),
}

/// The first part of a set, and its length.
fn member(set: &[u8]) -> Option<(Member<'_>, usize)> {
    if let Some(named) = set.strip_prefix(b"[:")
        && let Some(end) = named.windows(2).position(|word| word == b":]")
        && named[..end].iter().all(u8::is_ascii_lowercase)
    {
        return Some((Member::Named(&named[..end]), b"[::]".len() + end));
    }
    match set {
        [] => None,
        [b'\\', escaped @ ..] if !escaped.is_empty() => {
            let (found, length) = character(escaped);
            Some((Member::Character(found), length + 1))
        }
        _ => {
            let (found, length) = character(set);
            Some((Member::Character(found), length))
        }
    }
}

/// Whether a character is of a class of isalpha(3).
fn is_of(name: &[u8], character: u32) -> bool {
    let Some(c) = char::from_u32(character) else {
        return false;
    };
    match name {
        b"alnum" => c.is_alphanumeric(),
        b"alpha" => c.is_alphabetic(),
        b"blank" => matches!(c, ' ' | '\t'),
        b"cntrl" => c.is_control(),
        b"digit" => c.is_ascii_digit(),
        b"graph" => !c.is_control() && !c.is_whitespace(),
        b"lower" => c.is_lowercase(),
        b"print" => !c.is_control(),
        b"punct" => !c.is_control() && !c.is_whitespace() && !c.is_alphanumeric(),
        b"space" => c.is_whitespace(),
        b"upper" => c.is_uppercase(),
        b"xdigit" => c.is_ascii_hexdigit(),
        _ => false,
    }
}

fn in_class(set: &[u8], wanted: u32, fold: bool) -> bool {
    let (negated, mut set) = match set {
        [b'!' | b'^', rest @ ..] => (true, rest),
        set => (false, set),
    };
    let mut found = false;
    while let Some((first, length)) = member(set) {
        set = &set[length..];
        let low = match first {
            Member::Named(name) => {
                found |= is_of(name, wanted);
                continue;
            }
            Member::Character(low) => low,
        };
        let mut high = low;
        if let [b'-', rest @ ..] = set
            && let Some((Member::Character(last), length)) = member(rest)
        {
            high = last;
            set = &rest[length..];
        }
        let range = folded(low, fold)..=folded(high, fold);
        found |= range.contains(&folded(wanted, fold));
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_glob_7_says() {
        for (pattern, name, wanted) in [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.confd", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*", "", true),
            ("?", "ä", true),
            ("??", "ä", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]x]", "]", true),
            ("[!]]", "]", false),
            ("[a-]", "-", true),
            ("[ä-ö]", "é", true),
            ("[a", "[a", true),
            ("[[:digit:]x]*", "7a", true),
            ("[![:upper:]]", "A", false),
            ("[[:alpha:]", "[:", true),
            ("[\\]a]", "]", true),
            ("[a\\-z]", "b", false),
            ("x[/]y", "x/y", true),
            ("*/y", "x/a/y", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("*\\?", "a?", true),
            ("a", "", false),
            ("", "a", false),
        ] {
            let got = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(got, wanted, "{pattern} {name}");
        }
        assert!(matches_by("[A-F]Ä*".as_bytes(), "bäX".as_bytes(), true));
        assert!(!matches_by(b"[!a]", b"A", true));
        assert!(matches(b"?\xff*", b"\xfe\xff\xfd") && !matches(b"\xfe", b"\xff"));
        let slow = [&b"*a"[..]; 40].concat();
        assert!(!matches(&slow, &[b'b'; 255]));
    }

    #[test]
    fn only_special_characters_make_a_pattern() {
        for (path, wanted) in [
            ("/a*", true),
            ("/a?/b", true),
            ("/[ab]", true),
            ("/[", false),
            ("/[a/b]", false),
            ("/a\\*", false),
            ("/a\\", false),
            ("/a", false),
        ] {
            assert_eq!(is_pattern(path.as_bytes()), wanted, "{path}");
        }
    }
}
