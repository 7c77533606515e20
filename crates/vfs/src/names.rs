//! What POSIX says of names, whatever the format: which changes an inode's state allows, and the order
//! in which the locks of several directories are taken.

use std::fmt::Write as _;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_base::limits::NAME_MAX;
use steadfs_rt::{RwLock, RwLockWriteGuard};

use crate::{FsError, InodeFlags, RenameFlags, Result, check_name};

/// Refuses what no rename can do, whatever the names stand for.
///
/// # Errors
/// `Invalid` (flags that exclude each other), `Busy` (`.` or `..`), `NameTooLong` and the like.
pub fn check_rename(from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
    if flags.exchange && (flags.no_replace || flags.whiteout) {
        return Err(FsError::Invalid("exchange goes with no other flag"));
    }
    if is_dots(from) || is_dots(to) {
        return Err(FsError::Busy);
    }
    check_length(from)?;
    check_name(to)
}

/// Whether this name is one of the two that every directory has.
pub fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Refuses a name that no entry can have; names are looked for with any bytes, since a volume can
/// have any.
///
/// # Errors
/// Too long, or empty.
pub fn check_length(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() {
        Err(FsError::NotFound)
    } else {
        Ok(())
    }
}

/// Refuses to add names to a directory that is gone or must not change.
///
/// # Errors
/// `NotFound`, `NotPermitted`.
pub fn check_may_add(links: u32, flags: InodeFlags) -> Result<()> {
    if links == 0 {
        return Err(FsError::NotFound);
    }
    if flags.contains(InodeFlags::IMMUTABLE) {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Refuses to remove a name of a victim (which [`check_may_lose_name`] has allowed) from a directory.
///
/// # Errors
/// `NotFound`, `NotPermitted`.
pub fn check_may_remove(links: u32, flags: InodeFlags) -> Result<()> {
    if links == 0 {
        return Err(FsError::NotFound);
    }
    check_may_lose_name(flags)
}

/// Refuses to change the names of an inode that must not change.
///
/// # Errors
/// `NotPermitted`.
pub fn check_may_lose_name(flags: InodeFlags) -> Result<()> {
    if flags.contains(InodeFlags::IMMUTABLE) || flags.contains(InodeFlags::APPEND) {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// An inode with a lock for the names in it (of a directory) or its content.
pub trait NameLock {
    /// Its number: locks are taken in the order of these.
    fn number(&self) -> InodeNo;
    /// The lock.
    fn lock(&self) -> &RwLock<()>;
}

/// Locks two directories (or one, named twice) and looks at their names; then locks the directories
/// that those stand for, too, as `look` returns them, and acts. Where the order of locks makes it let
/// go of the first ones in between, it looks again.
///
/// # Errors
/// Those of `look` and `act`.
pub fn with_names_locked<I: NameLock, T, R, E: From<FsError>>(
    dirs: [&I; 2],
    mut look: impl FnMut() -> Result<(T, Vec<Arc<I>>)>,
    act: impl FnOnce(T) -> Result<R, E>,
) -> Result<R, E> {
    let mut known: Vec<Arc<I>> = Vec::new();
    loop {
        let mut held = dirs.to_vec();
        held.extend(known.iter().map(|inode| &**inode));
        let locks = lock_all(&mut held);
        let (seen, named) = look()?;
        let last = held.last().expect("there are at least the two").number();
        let mut more: Vec<&I> = named
            .iter()
            .map(|inode| &**inode)
            .filter(|inode| held.iter().all(|other| other.number() != inode.number()))
            .collect();
        if more.iter().all(|inode| inode.number() > last) {
            let _more = lock_all(&mut more);
            return act(seen);
        }
        drop(locks);
        known = named;
    }
}

/// Locks inodes in the order of their numbers, each once; `inodes` is put in that order.
fn lock_all<'a, I: NameLock>(inodes: &mut Vec<&'a I>) -> Vec<RwLockWriteGuard<'a, ()>> {
    inodes.sort_unstable_by_key(|inode| inode.number());
    inodes.dedup_by_key(|inode| inode.number());
    inodes.iter().map(|inode| inode.lock().write()).collect()
}

/// One member of each circle among directories that are given as their parents' places in the list
/// (`None`: the root, or a parent that is none).
pub fn parent_cycles(parents: &[Option<usize>]) -> Vec<usize> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        OnPath,
        Done,
    }
    let mut seen = vec![Seen::No; parents.len()];
    let mut path = Vec::new();
    let mut found = Vec::new();
    for start in 0..parents.len() {
        let mut at = Some(start);
        while let Some(i) = at.filter(|&i| seen[i] == Seen::No) {
            seen[i] = Seen::OnPath;
            path.push(i);
            at = parents[i];
        }
        found.extend(at.filter(|&i| seen[i] == Seen::OnPath));
        for i in path.drain(..) {
            seen[i] = Seen::Done;
        }
    }
    found
}

/// Does `len` in pieces of at most `most` each, by `step(done, piece)`, which says how much of the piece
/// it did; 0 ends it. An error after the first piece ends it, too: the caller learns how far it came,
/// and the next call meets the error again.
///
/// # Errors
/// That of the first step.
pub fn in_pieces(
    len: u64,
    most: u64,
    mut step: impl FnMut(u64, u64) -> Result<u64>,
) -> Result<u64> {
    let mut done = 0;
    while done < len {
        match step(done, (len - done).min(most)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A name as it can be shown: what is no letter for a terminal stands as `\ooo` or `\xHH…`, so that
/// a volume cannot speak to the terminal.
pub fn printable(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' {
                out.push_str("\\\\");
            } else if c.is_control() || is_invisible(c) {
                let mut buffer = [0; 4];
                for byte in c.encode_utf8(&mut buffer).bytes() {
                    octal(&mut out, byte);
                }
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            octal(&mut out, *byte);
        }
    }
    out
}

/// A message as it can be shown: as [`printable`], but lines, tabs and backslashes stay what they are, for its names may
/// have been made printable before.
pub fn printable_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' | '\\' => out.push(c),
            c => out.push_str(&printable(c.encode_utf8(&mut [0; 4]).as_bytes())),
        }
    }
    out
}

/// JSON as it can be shown: it is the same, with what speaks to a terminal in `\uXXXX`. Only its strings have that.
pub fn printable_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && (c.is_control() || is_invisible(c)) {
            // Writing to a string cannot fail. None of these is beyond the first plane.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

fn octal(out: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    let _ = write!(out, "\\{byte:03o}");
}

/// Characters that change the direction or the place of what follows.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_circle() {
        assert!(parent_cycles(&[None, Some(0), Some(1), None]).is_empty());
        // 1 → 2 → 1, 3 hangs on it; 4 → 4.
        let parents = [None, Some(2), Some(1), Some(1), Some(4)];
        assert_eq!(parent_cycles(&parents), [1, 4]);
    }

    #[test]
    fn pieces() {
        let mut asked = Vec::new();
        let done = in_pieces(10, 4, |done, n| {
            asked.push((done, n));
            Ok(n.min(3))
        });
        assert_eq!(done, Ok(10));
        assert_eq!(asked, [(0, 4), (3, 4), (6, 4), (9, 1)]);
        assert_eq!(in_pieces(10, 4, |done, _| Ok(5 - done)), Ok(5));
        let fails = |at| {
            move |done, n| {
                if done == at {
                    Err(FsError::NoSpace)
                } else {
                    Ok(n)
                }
            }
        };
        assert_eq!(in_pieces(10, 4, fails(4)), Ok(4));
        assert_eq!(in_pieces(10, 4, fails(0)), Err(FsError::NoSpace));
    }

    #[test]
    fn messages_say_nothing_to_a_terminal() {
        let text = "one: \\033\ntwo\t\u{1b}]0;x\u{7}\u{9b}31m\u{202e}ä";
        let shown = "one: \\033\ntwo\t\\033]0;x\\007\\302\\23331m\\342\\200\\256ä";
        assert_eq!(printable_text(text), shown);
        let json = "{\n  \"label\": \"a\\u001b\u{9b}31m\u{7f}\u{202e}ä\"\n}";
        let shown = "{\n  \"label\": \"a\\u001b\\u009b31m\\u007f\\u202eä\"\n}";
        assert_eq!(printable_json(json), shown);
    }

    #[test]
    fn what_an_inode_allows() {
        let none = InodeFlags(0);
        assert_eq!(check_may_add(0, none), Err(FsError::NotFound));
        assert_eq!(check_may_add(2, InodeFlags::APPEND), Ok(()));
        assert_eq!(
            check_may_remove(2, InodeFlags::APPEND),
            Err(FsError::NotPermitted)
        );
        assert_eq!(check_may_remove(0, none), Err(FsError::NotFound));
        assert_eq!(check_length(&[b'a'; 256]), Err(FsError::NameTooLong));
        assert!(is_dots(b"..") && !is_dots(b"..."));
    }

    #[test]
    fn names_cannot_speak_to_the_terminal() {
        assert_eq!(printable("ä b".as_bytes()), "ä b");
        assert_eq!(printable(b"a\x1b[2Jb\n\xff\\"), "a\\033[2Jb\\012\\377\\\\");
        assert_eq!(printable("\u{202e}x".as_bytes()), "\\342\\200\\256x");
    }
}
