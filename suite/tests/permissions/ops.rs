//! Random calls of four users on a small tree.

use std::fmt;

use steadfs_suite::generate::Numbers;

/// A user: its number, which is also its group's, and its other groups.
pub struct User {
    pub id: u32,
    pub groups: &'static [u32],
}

/// Root, two users with a group in common, and one without another group.
pub const USERS: [User; 4] = [
    User { id: 0, groups: &[] },
    User {
        id: 1001,
        groups: &[2000],
    },
    User {
        id: 1002,
        groups: &[2000, 1001],
    },
    User {
        id: 1003,
        groups: &[],
    },
];

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Number of the caller in [`USERS`].
    pub user: usize,
    /// The call, as a line of words.
    pub call: String,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:4} {}", USERS[self.user].id, self.call)
    }
}

impl Op {
    /// The name of the call.
    pub fn verb(&self) -> String {
        let words = self.call.split(' ');
        let verb: Vec<_> = words.take(1).collect();
        verb.concat()
    }
}

const FOLDERS: [&str; 5] = ["", "d0/", "d1/", "d0/s/", "l0/"];
const NAMES: [&str; 5] = ["f0", "f0", "f1", "s", "l0"];
const TARGETS: [&str; 9] = [
    "f0", "f1", "../f0", "d0", "s", "nowhere", ".", "../d1/f1", "l0",
];
/// Modes of directories in which users can do something.
const OPEN: [u32; 7] = [0o777, 0o1777, 0o2777, 0o3777, 0o2775, 0o1775, 0o755];
const MODES: [u32; 24] = [
    0o777, 0o755, 0o700, 0o644, 0o664, 0o666, 0o600, 0o640, 0o444, 0o000, 0o1777, 0o2777, 0o2775,
    0o2755, 0o4755, 0o6755, 0o6777, 0o2644, 0o4711, 0o7777, 0o070, 0o007, 0o2070, 0o1755,
];
const MASKS: [u32; 5] = [0o022, 0o002, 0o077, 0o000, 0o027];
const ATTRIBUTES: [&str; 10] = [
    "user.a",
    "user.b",
    "trusted.a",
    "security.a",
    "security.capability",
    "user.",
    "system.a",
    "other.a",
    "trusted.overlay.opaque",
    "user.c",
];
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// The calls of a case.
pub fn case(seed: u64, count: usize) -> Vec<Op> {
    let mut source = Source(Numbers::new(seed));
    let mut ops = source.setup();
    while ops.len() < count {
        ops.push(source.op());
    }
    ops
}

struct Source(Numbers);

impl Source {
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.0.below(limit as u64)).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn path(&mut self) -> String {
        let folder = self.pick(&FOLDERS);
        format!("{folder}{}", self.pick(&NAMES))
    }

    /// A directory, or another path.
    fn folder(&mut self) -> String {
        match self.below(8) {
            0 => self.path(),
            1 => ".".to_owned(),
            _ => self.pick(&["d0", "d1", "d0/s"]).to_owned(),
        }
    }

    fn any(&mut self) -> String {
        match self.below(4) {
            0 => self.folder(),
            _ => self.path(),
        }
    }

    fn mode(&mut self) -> u32 {
        match self.below(8) {
            0 => u32::try_from(self.below(0o10000)).unwrap(),
            _ => self.pick(&MODES),
        }
    }

    fn id(&mut self) -> &'static str {
        self.pick(&["-", "-", "0", "1001", "1002", "1003", "2000"])
    }

    fn link_path(&mut self) -> String {
        format!("{}l0", self.pick(&FOLDERS))
    }

    fn link(&mut self) -> &'static str {
        self.pick(&["follow", "follow", "nofollow"])
    }

    /// Root makes a tree with open doors, so that the users have something to disagree about.
    fn setup(&mut self) -> Vec<Op> {
        let mut calls = vec!["umask 022".to_owned()];
        for name in [".", "d0", "d1", "d0/s"] {
            if name != "." {
                calls.push(format!("mkdir {name} 755"));
            }
            let mode = self.pick(&OPEN);
            let (uid, gid) = (self.id(), self.id());
            calls.push(format!("chown {name} {uid} {gid} follow"));
            calls.push(format!("chmod {name} {mode:o}"));
        }
        let by_root = calls.into_iter().map(|call| Op { user: 0, call });
        let masks = (1..USERS.len()).map(|user| Op {
            user,
            call: "umask 022".to_owned(),
        });
        by_root.chain(masks).collect()
    }

    fn op(&mut self) -> Op {
        let user = self.pick(&[0, 0, 1, 1, 1, 2, 2, 2, 3, 3]);
        let call = match self.below(100) {
            0..=9 => return self.doors(),
            10..=35 => self.making(),
            36..=42 => self.names(),
            43..=57 => self.owners(),
            58..=69 => self.acls(),
            70..=77 => self.attributes(),
            78..=89 => self.content(),
            _ => self.looking(),
        };
        Op { user, call }
    }

    /// Root opens a door again: random modes close them sooner or later. A door that is missing is made.
    fn doors(&mut self) -> Op {
        let name = self.pick(&[".", ".", "d0", "d0", "d1", "d0/s"]);
        let call = match self.below(4) {
            0 => format!("mkdir {name} 777"),
            1 => format!("removex {name} system.posix_acl_access follow"),
            _ => format!("chmod {name} {:o}", self.pick(&OPEN)),
        };
        Op { user: 0, call }
    }

    fn making(&mut self) -> String {
        let (path, mode) = (self.path(), self.mode());
        match self.below(12) {
            0..=4 => {
                let letters = self.pick(&["wc", "wcx", "wct", "rc", "bc", "wcn", "wca"]);
                let len = self.pick(&[0, 3, 5000]);
                format!("open {path} {letters} {mode:o} {len}")
            }
            5 | 6 => format!("mkdir {} {mode:o}", self.any()),
            7 | 8 => {
                let kinds = [
                    "fifo", "fifo", "socket", "null", "whiteout", "block", "file",
                ];
                format!("mknod {path} {} {mode:o}", self.pick(&kinds))
            }
            9 => {
                let dir = self.folder();
                match self.below(2) {
                    0 => format!("tmpfile {dir} {mode:o} -"),
                    _ => format!("tmpfile {dir} {mode:o} {path}"),
                }
            }
            10 => format!("symlink {} {}", self.pick(&TARGETS), self.link_path()),
            _ => format!("umask {:o}", self.pick(&MASKS)),
        }
    }

    fn names(&mut self) -> String {
        let path = self.any();
        match self.below(8) {
            0 | 1 => format!("link {path} {} {}", self.path(), self.link()),
            2..=4 => {
                let how = self.pick(&["replace", "replace", "noreplace", "exchange", "whiteout"]);
                format!("rename {path} {} {how}", self.any())
            }
            5 | 6 => format!("unlink {path}"),
            _ => format!("rmdir {}", self.folder()),
        }
    }

    fn owners(&mut self) -> String {
        let path = match self.below(3) {
            0 => self.any(),
            _ => self.path(),
        };
        let mode = self.mode();
        let (uid, gid) = (self.id(), self.id());
        match self.below(10) {
            0..=3 => format!("chmod {path} {mode:o}"),
            4..=6 => format!("chown {path} {uid} {gid} {}", self.link()),
            7 => {
                let times = ["now", "omit", "1000", "2000"];
                let (atime, mtime) = (self.pick(&times), self.pick(&times));
                format!("utimes {path} {atime} {mtime} {}", self.link())
            }
            8 => format!("held chmod {mode:o}"),
            _ => format!("held chown {uid} {gid}"),
        }
    }

    fn acls(&mut self) -> String {
        let path = self.any();
        let name = self.pick(&[ACCESS, ACCESS, DEFAULT]);
        match self.below(8) {
            0..=4 => format!("setx {path} {name} acl:{} any {}", self.acl(), self.link()),
            5 => format!("removex {path} {name} follow"),
            6 => format!("getx {path} {name}"),
            _ => format!("held setx {name} acl:{}", self.acl()),
        }
    }

    /// Entries of an ACL: most are valid.
    fn acl(&mut self) -> String {
        let mut entries = Vec::new();
        let mut named = false;
        entries.push(format!("u={}", self.below(8)));
        for id in ["1001", "1002", "1003"] {
            if self.below(3) == 0 {
                entries.push(format!("u{id}={}", self.below(8)));
                named = true;
            }
        }
        entries.push(format!("g={}", self.below(8)));
        for id in ["1001", "2000"] {
            if self.below(3) == 0 {
                entries.push(format!("g{id}={}", self.below(8)));
                named = true;
            }
        }
        if named || self.below(4) == 0 {
            entries.push(format!("m={}", self.below(8)));
        }
        entries.push(format!("o={}", self.below(8)));
        match self.below(24) {
            // Without a part that is needed, or with one twice, or with unknown permissions.
            0 => drop(entries.pop()),
            1 => drop(entries.remove(0)),
            2 => entries.insert(1, entries[0].clone()),
            3 => entries.push("x=1".to_owned()),
            4 => entries.push("o=9".to_owned()),
            5 => entries.retain(|entry| !entry.starts_with('m')),
            6 => entries.clear(),
            _ => {}
        }
        entries.join(",")
    }

    fn attributes(&mut self) -> String {
        let (path, name) = (self.any(), self.pick(&ATTRIBUTES));
        let value = match name {
            "security.capability" => self.pick(&["caps", "caps", "caps", "broken"]),
            _ => self.pick(&["value", "", "another-value"]),
        };
        match self.below(8) {
            0..=3 => {
                let how = self.pick(&["any", "any", "create", "replace"]);
                format!("setx {path} {name} {value} {how} {}", self.link())
            }
            4 => format!("removex {path} {name} {}", self.link()),
            5 => format!("getx {path} {name}"),
            6 => format!("listx {path}"),
            _ => format!("held setx {name} {value}"),
        }
    }

    fn content(&mut self) -> String {
        let path = self.path();
        match self.below(10) {
            0..=2 => {
                let letters = self.pick(&["w", "wt", "wa", "b", "bn", "r", "ro", "rd", "rt"]);
                format!("open {path} {letters} 0 {}", self.pick(&[0, 1, 4097]))
            }
            3 | 4 => format!("hold {path} {}", self.pick(&["w", "b", "r", "b"])),
            5 | 6 => format!("held write {} {}", self.below(9000), self.pick(&[1, 4096])),
            7 => format!("held truncate {}", self.below(9000)),
            8 => {
                let how = self.pick(&["grow", "punch", "zero"]);
                format!("allocate {path} {how} {} 4096", self.below(9000))
            }
            _ => format!("copy {path} {}", self.path()),
        }
    }

    fn looking(&mut self) -> String {
        let path = self.any();
        match self.below(7) {
            0 | 1 => format!("stat {path} {}", self.link()),
            2 | 3 => format!("access {path} {}", self.pick(&["r", "w", "x", "rw", "e"])),
            4 => format!("list {}", self.folder()),
            5 => format!("readlink {}", self.link_path()),
            _ => "held stat".to_owned(),
        }
    }
}
