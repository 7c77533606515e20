//! POSIX rules of names, whatever the format: the changes that an inode's state allows, and the order in which the locks
//! of several directories are taken.

use std::fmt::Write as _;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_base::limits::NAME_MAX;
use steadfs_rt::{RwLock, RwLockWriteGuard};

use crate::{FsError, InodeFlags, RenameFlags, Result, check_name};

/// Refuses renames that are invalid for any files.
///
/// # Errors
/// `Invalid` (flags that exclude each other), `Busy` (`.` or `..`), `NameTooLong` and the like.
pub fn check_rename(from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
    if flags.exchange && (flags.no_replace || flags.whiteout) {
        return Err(FsError::Invalid(
            "RENAME_EXCHANGE cannot be combined with other flags",
        ));
    }
    if is_dots(from) || is_dots(to) {
        return Err(FsError::Busy);
    }
    check_length(from)?;
    check_name(to)
}

/// Whether the name is `.` or `..`.
pub fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Refuses a name by its length. Other bytes are not checked, since a corrupt volume can have any name, and unlink must
/// find it.
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

/// Refuses a name that cannot be given to a file.
///
/// # Errors
/// `Exists` (`.` or `..`), `NameTooLong` and the like.
pub fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    match is_dots(name) {
        true => Err(FsError::Exists),
        false => Ok(()),
    }
}

/// Refuses a name that unlink(2) cannot remove, whatever it is the name of.
///
/// # Errors
/// `IsDir` (`.` or `..`), too long, or empty.
pub fn check_unlink(name: &[u8]) -> Result<()> {
    check_length(name)?;
    match is_dots(name) {
        true => Err(FsError::IsDir),
        false => Ok(()),
    }
}

/// Refuses a name that rmdir(2) cannot remove, whatever it is the name of.
///
/// # Errors
/// `Invalid` (`.`), `NotEmpty` (`..`), too long, or empty.
pub fn check_rmdir(name: &[u8]) -> Result<()> {
    check_length(name)?;
    match name {
        b"." => Err(FsError::Invalid("the last part of the path is '.'")),
        b".." => Err(FsError::NotEmpty),
        _ => Ok(()),
    }
}

/// Refuses to add names to a directory that was removed or is immutable.
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

/// Refuses to remove a name from a directory that was removed, is immutable or is append-only. The caller has checked
/// the inode behind the name with [`check_may_lose_name`].
///
/// # Errors
/// `NotFound`, `NotPermitted`.
pub fn check_may_remove(links: u32, flags: InodeFlags) -> Result<()> {
    if links == 0 {
        return Err(FsError::NotFound);
    }
    check_may_lose_name(flags)
}

/// Refuses to change the names of an inode that is immutable or append-only.
///
/// # Errors
/// `NotPermitted`.
pub fn check_may_lose_name(flags: InodeFlags) -> Result<()> {
    if flags.contains(InodeFlags::IMMUTABLE) || flags.contains(InodeFlags::APPEND) {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Refuses a name for an inode of another project in a directory with `flags` that passes its `project` on to new files.
///
/// # Errors
/// `CrossDevice`: programs copy the file then.
pub fn check_project(flags: InodeFlags, project: u32, of_inode: u32) -> Result<()> {
    if flags.contains(InodeFlags::PROJINHERIT) && project != of_inode {
        return Err(FsError::CrossDevice);
    }
    Ok(())
}

/// A name in a directory.
#[derive(Debug)]
pub struct NameIn<'a, D> {
    /// The directory.
    pub dir: &'a D,
    /// The name.
    pub name: &'a [u8],
}

impl<D> Clone for NameIn<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for NameIn<'_, D> {}

impl<'a, D> NameIn<'a, D> {
    /// The name in the directory.
    pub fn new(dir: &'a D, name: &'a [u8]) -> Self {
        Self { dir, name }
    }
}

/// An inode with a lock for its names (of a directory) or its content.
pub trait NameLock {
    /// The inode number: locks are taken in this order.
    fn number(&self) -> InodeNo;
    /// The lock of its names or content.
    fn lock(&self) -> &RwLock<()>;
    /// Whether it is a directory.
    fn is_dir(&self) -> bool;
}

/// Locks two directories (or one, given twice), calls `look`, also locks the inodes that it returns, and calls `act`. If
/// the lock order requires to unlock the first ones in between, `look` is called again.
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

/// Locks a directory and the directory in it that `find` returns, which is to be removed, and calls `act` with both.
///
/// # Errors
/// `NotDir`: what `find` returned is no directory; those of `find` and `act`.
pub fn with_removed_dir_locked<I: NameLock, T>(
    dir: &I,
    mut find: impl FnMut() -> Result<(T, Arc<I>)>,
    act: impl FnOnce(T, &I) -> Result<()>,
) -> Result<Arc<I>> {
    let look = || {
        let (entry, removed) = find()?;
        if !removed.is_dir() {
            return Err(FsError::NotDir);
        }
        Ok(((entry, Arc::clone(&removed)), vec![removed]))
    };
    with_names_locked([dir, dir], look, |(entry, removed)| {
        act(entry, &removed).map(|()| removed)
    })
}

/// Locks inodes in the order of their numbers, each once, and sorts `inodes` so.
fn lock_all<'a, I: NameLock>(inodes: &mut Vec<&'a I>) -> Vec<RwLockWriteGuard<'a, ()>> {
    inodes.sort_unstable_by_key(|inode| inode.number());
    inodes.dedup_by_key(|inode| inode.number());
    inodes.iter().map(|inode| inode.lock().write()).collect()
}

/// One directory of each cycle that hangs on no root: `of` returns a directory's number and the number of the directory
/// that names it, `index` the place of a number in `dirs`.
pub fn dirs_in_cycles<D, N: Copy + PartialEq>(
    dirs: &[D],
    root: N,
    of: impl Fn(&D) -> (N, Option<N>),
    index: impl Fn(N) -> Option<usize>,
) -> Vec<usize> {
    let parent = |dir: &D| {
        let (number, parent) = of(dir);
        parent.filter(|_| number != root).and_then(&index)
    };
    parent_cycles(&dirs.iter().map(parent).collect::<Vec<_>>())
}

/// One member of each cycle among directories. `parents` has for each directory the index of its parent (`None`: the
/// root, or an invalid parent).
fn parent_cycles(parents: &[Option<usize>]) -> Vec<usize> {
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

/// Processes `len` bytes in pieces of at most `most`, by `step(done, piece)`, which returns how much of the piece it
/// processed; 0 ends the loop. An error after the first piece ends it, too: the caller gets the count, and its next call
/// gets the error.
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

/// Escapes a name for output: control characters, invisible characters and bytes that are not UTF-8 become `\ooo`, so
/// that a volume cannot send control sequences to the terminal.
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

/// Escapes a message for output, as [`printable`], but without newlines, tabs and backslashes: its names may have been
/// escaped before.
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

/// Escapes JSON for output: characters that a terminal interprets become `\uXXXX`. They occur only in strings, so the
/// value is the same.
pub fn printable_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && (c.is_control() || is_invisible(c)) {
            // Writing to a string cannot fail. All of these characters are in the basic multilingual plane.
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

/// Invisible characters, and those that change the direction of the following text.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_member_of_each_cycle_is_found() {
        assert!(parent_cycles(&[None, Some(0), Some(1), None]).is_empty());
        // 1 → 2 → 1, with 3 below 1; 4 → 4.
        let parents = [None, Some(2), Some(1), Some(1), Some(4)];
        assert_eq!(parent_cycles(&parents), [1, 4]);
    }

    #[test]
    fn pieces_end_at_zero_or_an_error() {
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
    fn messages_contain_no_control_sequences() {
        let text = "one: \\033\ntwo\t\u{1b}]0;x\u{7}\u{9b}31m\u{202e}ä";
        let shown = "one: \\033\ntwo\t\\033]0;x\\007\\302\\23331m\\342\\200\\256ä";
        assert_eq!(printable_text(text), shown);
        let json = "{\n  \"label\": \"a\\u001b\u{9b}31m\u{7f}\u{202e}ä\"\n}";
        let shown = "{\n  \"label\": \"a\\u001b\\u009b31m\\u007f\\u202eä\"\n}";
        assert_eq!(printable_json(json), shown);
    }

    #[test]
    fn inode_flags_limit_changes_of_names() {
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
    fn names_contain_no_control_sequences() {
        assert_eq!(printable("ä b".as_bytes()), "ä b");
        assert_eq!(printable(b"a\x1b[2Jb\n\xff\\"), "a\\033[2Jb\\012\\377\\\\");
        assert_eq!(printable("\u{202e}x".as_bytes()), "\\342\\200\\256x");
    }
}
