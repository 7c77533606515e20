//! The parts of an expression, and the tests that need only a file's attributes.

use std::cmp::Ordering;

use steadfs_base::Timestamp;
use steadfs_vfs::{Attr, FileKind};

use super::format::Format;

#[derive(Debug)]
pub enum Expr {
    /// All are true; the first that is not ends it.
    All(Vec<Expr>),
    /// One is true; the first that is ends it.
    Any(Vec<Expr>),
    /// The value of the last one.
    List(Vec<Expr>),
    Not(Box<Expr>),
    Test(Test),
    Action(Action),
}

#[derive(Debug)]
pub enum Test {
    Always(bool),
    Name(Pattern),
    Path(Pattern),
    Target(Pattern),
    Kind(Vec<FileKind>),
    TargetKind(Vec<FileKind>),
    /// Size in units of this many bytes, rounded up.
    Size(Number, u64),
    Links(Number),
    Inode(Number),
    User(Number),
    Group(Number),
    Account {
        is_user: bool,
        index: usize,
    },
    NoUser,
    NoGroup,
    Perm(Perm),
    Age(Age),
    Newer(Stamp, Timestamp),
    Empty,
}

#[derive(Debug)]
pub enum Action {
    Print,
    Print0,
    Printf(Format),
    Ls,
    Prune,
    Quit,
    Delete,
}

#[derive(Debug)]
pub struct Pattern {
    pub text: Vec<u8>,
    pub fold: bool,
}

/// `N`, `+N` (more) or `-N` (less).
#[derive(Clone, Copy, Debug)]
pub struct Number {
    pub order: Ordering,
    pub than: u64,
}

impl Number {
    pub fn holds(self, value: u64) -> bool {
        value.cmp(&self.than) == self.order
    }
}

/// Permission bits of files and of directories.
#[derive(Debug)]
pub struct Perm {
    pub how: PermMatch,
    pub of_file: u32,
    pub of_dir: u32,
}

#[derive(Clone, Copy, Debug)]
pub enum PermMatch {
    Exact,
    /// All of the bits.
    All,
    /// Any of the bits, if there are any.
    Any,
}

impl Perm {
    pub fn holds(&self, perm: u32, is_dir: bool) -> bool {
        let wanted = if is_dir { self.of_dir } else { self.of_file };
        match self.how {
            PermMatch::Exact => perm == wanted,
            PermMatch::All => perm & wanted == wanted,
            PermMatch::Any => wanted == 0 || perm & wanted != 0,
        }
    }
}

/// One of a file's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    Access,
    Change,
    Modification,
    Birth,
}

impl Stamp {
    pub fn of(self, attr: &Attr) -> Option<Timestamp> {
        match self {
            Self::Access => Some(attr.atime),
            Self::Change => Some(attr.ctime),
            Self::Modification => Some(attr.mtime),
            Self::Birth => attr.btime,
        }
    }
}

const MINUTE: i128 = 60_000_000_000;
const DAY: i128 = 24 * 60 * MINUTE;

/// How old a file is.
#[derive(Debug)]
pub struct Age {
    pub which: Stamp,
    pub in_days: bool,
    pub number: Number,
}

impl Age {
    /// As in find(1) days are whole ones, while minutes are exact: `-mmin -5` is less than five minutes, `+5` more, and `5`
    /// from four to five.
    pub fn holds(&self, attr: &Attr, now: Timestamp) -> bool {
        let Some(time) = self.which.of(attr) else {
            return false;
        };
        let age = nanos(now) - nanos(time);
        let than = i128::from(self.number.than);
        if self.in_days {
            return age.div_euclid(DAY).cmp(&than) == self.number.order;
        }
        let border = than * MINUTE;
        match self.number.order {
            Ordering::Less => age < border,
            Ordering::Greater => age > border,
            Ordering::Equal => (border - MINUTE..border).contains(&age),
        }
    }
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfs_base::InodeNo;
    use steadfs_vfs::InodeFlags;

    fn aged(nanos: i64) -> Attr {
        let time = Timestamp {
            secs: nanos.div_euclid(1_000_000_000),
            nanos: u32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap(),
        };
        Attr {
            ino: InodeNo(12),
            generation: 0,
            kind: FileKind::Regular,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            block_size: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            flags: InodeFlags(0),
        }
    }

    #[test]
    fn days_are_whole_and_minutes_exact() {
        const HOUR: i64 = 3600;
        let now = Timestamp {
            secs: 100 * 24 * HOUR,
            nanos: 0,
        };
        let holds = |age: i64, in_days, order, than| {
            let number = Number { order, than };
            let which = Stamp::Modification;
            let test = Age {
                which,
                in_days,
                number,
            };
            test.holds(&aged((now.secs - age) * 1_000_000_000), now)
        };
        let (less, equal, more) = (Ordering::Less, Ordering::Equal, Ordering::Greater);
        assert!(holds(47 * HOUR, true, equal, 1) && !holds(47 * HOUR, true, more, 1));
        assert!(holds(49 * HOUR, true, more, 1) && holds(23 * HOUR, true, less, 1));
        assert!(holds(-HOUR, true, less, 0), "the future");
        assert!(holds(250, false, equal, 5) && !holds(310, false, equal, 5));
        assert!(holds(310, false, more, 5) && holds(299, false, less, 5));
        let birth = Age {
            which: Stamp::Birth,
            in_days: true,
            number: Number {
                order: less,
                than: 9,
            },
        };
        assert!(!birth.holds(&aged(0), now), "a format without it");
    }

    #[test]
    fn no_bits_are_any_bits() {
        let perm = |how, bits| Perm {
            how,
            of_file: bits,
            of_dir: 0,
        };
        assert!(perm(PermMatch::Any, 0).holds(0o644, false));
        assert!(perm(PermMatch::Any, 0o111).holds(0o755, true));
        assert!(!perm(PermMatch::Any, 0o111).holds(0o644, false));
        assert!(perm(PermMatch::All, 0o600).holds(0o644, false));
        assert!(!perm(PermMatch::Exact, 0o600).holds(0o644, false));
    }
}
