//! Patterns of names: `*`, `?` and `[...]`, as glob(7) has them.
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
            b'[' if class(after).is_some() => return true,
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

/// What was found, `None` if there is no such file; other errors stay.
fn existing<T>(found: steadfs_vfs::Result<T>) -> steadfs_vfs::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        // The last one is a circle of links.
        Err(FsError::NotFound | FsError::NotDir | FsError::Invalid(_)) => Ok(None),
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
            (false, false) => one(pattern, name),
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

/// Matches one character; returns what is left of both.
fn one<'t>(pattern: &'t [u8], name: &'t [u8]) -> Option<(&'t [u8], &'t [u8])> {
    let (wanted, length) = character(name);
    let rest = &name[length..];
    match pattern {
        [b'?', after @ ..] => Some((after, rest)),
        [b'[', after @ ..] if class(after).is_some() => {
            let (set, after) = class(after)?;
            in_class(set, wanted).then_some((after, rest))
        }
        [b'\\', escaped @ ..] | escaped if !escaped.is_empty() => {
            let (found, length) = character(escaped);
            (found == wanted).then_some((&escaped[length..], rest))
        }
        _ => None,
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
    let negated = matches!(after.first(), Some(b'!' | b'^'));
    let first = usize::from(negated);
    let end = after.iter().skip(first + 1).position(|b| *b == b']')? + first + 1;
    let set = &after[..end];
    (!set.contains(&b'/')).then_some((set, &after[end + 1..]))
}

fn in_class(set: &[u8], wanted: u32) -> bool {
    let (negated, mut set) = match set {
        [b'!' | b'^', rest @ ..] => (true, rest),
        set => (false, set),
    };
    let mut found = false;
    while !set.is_empty() {
        let (low, length) = character(set);
        set = &set[length..];
        match set {
            [b'-', rest @ ..] if !rest.is_empty() => {
                let (high, length) = character(rest);
                set = &rest[length..];
                found |= (low..=high).contains(&wanted);
            }
            _ => found |= low == wanted,
        }
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
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("*\\?", "a?", true),
            ("a", "", false),
            ("", "a", false),
        ] {
            let got = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(got, wanted, "{pattern} {name}");
        }
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
