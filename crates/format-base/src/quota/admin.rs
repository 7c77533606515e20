//! The text of the control files `quota/user`, `quota/group` and `quota/project`: usage and limits, read and set.
//!
//! A file has the line `grace BLOCK_SECONDS INODE_SECONDS`, and a line for each owner with usage or limits: its id; then of
//! space, in KiB: used (rounded up), soft limit, hard limit; the second until which the soft limit may be exceeded, or 0; then
//! the same four numbers of inodes. Written are such a grace line, or the id with four limits: soft and hard of space, soft and
//! hard of inodes.

use std::fmt::Write;

use steadfs_vfs::{FsError, Result};

use super::account::Account;
use super::{Info, Kind, LIMIT_UNIT, Limit};

/// The control files, by kind.
pub const FILES: [&str; 3] = ["quota/user", "quota/group", "quota/project"];

/// The word of the line with the times.
const GRACE: &str = "grace";

/// A change of a quota file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Seconds for which a soft limit may be exceeded: of space, of inodes.
    Grace(u32, u32),
    /// An owner's limits of space and of inodes, soft and hard.
    Limits(u32, [u64; 4]),
}

impl Change {
    /// From what is written to a control file.
    ///
    /// # Errors
    /// [`FsError::BadOption`]: it has neither form.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_words(text).ok_or_else(|| {
            let forms = "ID SOFT_KIB HARD_KIB SOFT_INODES HARD_INODES, or grace SECONDS SECONDS";
            FsError::BadOption(format!("{text:?}: write {forms}"))
        })
    }

    fn parse_words(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let (&first, rest) = words.split_first()?;
        let numbers: Option<Vec<u64>> = rest.iter().map(|word| word.parse().ok()).collect();
        match (first, numbers?.as_slice()) {
            (GRACE, &[block, inode]) => Some(Self::Grace(
                u32::try_from(block).ok()?,
                u32::try_from(inode).ok()?,
            )),
            (id, &[a, b, c, d]) => Some(Self::Limits(id.parse().ok()?, [a, b, c, d])),
            _ => None,
        }
    }
}

impl Account {
    /// Sets the limits of space and of inodes, soft and hard.
    pub fn set_limits(&mut self, [block_soft, block_hard, inode_soft, inode_hard]: [u64; 4]) {
        let entry = &mut self.entry;
        (entry.block_limit.soft, entry.block_limit.hard) = (block_soft, block_hard);
        (entry.inode_limit.soft, entry.inode_limit.hard) = (inode_soft, inode_hard);
    }
}

/// The control file of a path.
pub fn kind_of(path: &str) -> Option<Kind> {
    let n = FILES.iter().position(|file| *file == path)?;
    Some(Kind::ALL[n])
}

/// The content of a control file.
pub fn show(info: &Info, accounts: impl IntoIterator<Item = Account>) -> String {
    let mut text = format!("{GRACE} {} {}\n", info.block_grace, info.inode_grace);
    for account in accounts {
        let mut entry = account.entry;
        entry.bytes = account.bytes();
        if entry.is_idle() {
            continue;
        }
        let part = |used: u64, limit: &Limit| {
            let Limit { soft, hard, until } = limit;
            format!("{used} {soft} {hard} {until}")
        };
        let space = part(entry.bytes.div_ceil(LIMIT_UNIT), &entry.block_limit);
        let inodes = part(entry.inodes, &entry.inode_limit);
        let _ = writeln!(text, "{} {space} {inodes}", entry.id);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::Entry;
    use super::*;

    #[test]
    fn limits_are_parsed_and_shown() {
        assert_eq!(Change::parse("grace 60 7"), Ok(Change::Grace(60, 7)));
        let change = Change::parse(" 1000 1 2  3 4").unwrap();
        assert_eq!(change, Change::Limits(1000, [1, 2, 3, 4]));
        for wrong in ["", "grace 1", "grace 1 4294967296", "x 1 2 3 4", "1 2 3"] {
            assert!(Change::parse(wrong).is_err(), "{wrong}");
        }
        let mut account = Account::new(Entry {
            id: 1000,
            bytes: 1,
            ..Entry::default()
        });
        account.set_limits([1, 2, 3, 4]);
        account.delayed = 1024;
        let idle = Account::new(Entry::default());
        let shown = show(&Info::default(), [idle, account]);
        assert_eq!(shown, "grace 604800 604800\n1000 2 1 2 0 0 3 4 0\n");
        assert_eq!(kind_of("quota/group"), Some(Kind::Group));
    }
}
