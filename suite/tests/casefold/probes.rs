//! Calls on a case-insensitive directory, the same everywhere for one seed, and what they return.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use steadfs_suite::generate::Numbers;

/// Spellings; those in one list are one name, by the tables of Unicode 12.1 or by none.
///
/// f2fs compares names by their bytes if nothing is left of them, or more than 254 bytes; Linux's cache of names does not:
/// what it answers depends on what it has cached. `only_certain` leaves them out.
fn pool(only_certain: bool) -> Vec<Vec<Vec<u8>>> {
    let texts: [&[&str]; 12] = [
        &["readme", "README", "ReadMe", "read\u{AD}me"],
        &["Straße", "STRASSE", "strasse", "straẞe"],
        &["ÅNGSTRÖM", "a\u{30A}ngstro\u{308}m", "\u{212B}ngstr\u{F6}m"],
        &["한글", "\u{1112}\u{1161}\u{11AB}\u{1100}\u{1173}\u{11AF}"],
        &["İx", "i\u{307}X"],
        &["ΣΑΣ", "σας", "ΣΑς"],
        &["q\u{307}\u{323}", "Q\u{323}\u{307}"],
        // Ignored between two marks, which stay in their order.
        &["q\u{307}\u{200D}\u{323}", "Q\u{307}\u{323}\u{200D}"],
        // Nothing is left of them.
        &["\u{AD}", "\u{200B}\u{FE0F}", "\u{2065}"],
        // Capitals and letters of later versions are no pairs.
        &["\u{A7C7}", "\u{A7C8}", "\u{1FAC2}"],
        &["\u{1F80}", "ἀι", "\u{1F88}"],
        &["ﬃx", "FFIX", "ffix"],
    ];
    let bytes: [&[&[u8]]; 2] = [
        &[b"A\xFF", b"a\xFF"],
        &[b"\xED\xA0\x80", b"\xC0\xAF", b"ab\xC3"],
    ];
    let mut pool: Vec<Vec<Vec<u8>>> = Vec::new();
    for list in texts {
        pool.push(list.iter().map(|text| text.as_bytes().to_vec()).collect());
    }
    for list in bytes {
        pool.push(list.iter().map(|name| name.to_vec()).collect());
    }
    if only_certain {
        pool.retain(|group| group[0] != "\u{AD}".as_bytes());
        return pool;
    }
    // As long as a name can be, and longer when it is folded.
    let long = [
        "İ".repeat(127),
        "i\u{307}".repeat(85),
        "I\u{307}".repeat(85),
    ];
    pool.push(long.map(String::into_bytes).to_vec());
    let long = ["ẞ".repeat(85), "SS".repeat(85), "sS".repeat(85)];
    pool.push(long.map(String::into_bytes).to_vec());
    pool
}

fn shown(result: std::io::Result<String>) -> String {
    match result {
        Ok(text) => text,
        Err(error) => error.kind().to_string(),
    }
}

fn done(result: std::io::Result<()>) -> String {
    shown(result.map(|()| "done".to_owned()))
}

struct Probes<'a> {
    top: &'a Path,
    numbers: Numbers,
    pool: Vec<Vec<Vec<u8>>>,
    log: String,
}

impl Probes<'_> {
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.numbers.below(limit as u64)).expect("it fits")
    }

    fn name(&mut self) -> Vec<u8> {
        let group = self.below(self.pool.len());
        let spelling = self.below(self.pool[group].len());
        self.pool[group][spelling].clone()
    }

    fn path(&mut self) -> (PathBuf, String) {
        let (name, dir) = (self.name(), self.below(2));
        let shown = format!("{dir}/{}", name.escape_ascii());
        (
            self.top
                .join(dir.to_string())
                .join(OsStr::from_bytes(&name)),
            shown,
        )
    }

    /// The content of a file: the number of the call that made it.
    fn content(path: &Path) -> std::io::Result<String> {
        let kind = fs::symlink_metadata(path)?;
        if kind.is_symlink() {
            return fs::read_link(path).map(|target| target.display().to_string());
        }
        match kind.is_dir() {
            true => Ok(format!("directory, {} names", fs::read_dir(path)?.count())),
            false => Ok(format!("{} x{}", fs::read_to_string(path)?, kind.nlink())),
        }
    }

    fn call(&mut self, n: u32) {
        let ((a, shown_a), (b, shown_b)) = (self.path(), self.path());
        let text = format!("file {n}");
        // Kernels differ in which of two errors they return.
        let rename = |flags| match renameat_with(CWD, &a, CWD, &b, flags) {
            Err(_) if fs::symlink_metadata(&a).is_err() => "no source".to_owned(),
            renamed => done(renamed.map_err(Into::into)),
        };
        let (what, result) = match self.below(12) {
            0..2 => ("make", {
                let made = fs::OpenOptions::new().write(true).create_new(true).open(&a);
                done(
                    made.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes())),
                )
            }),
            2 => ("write", done(fs::write(&a, &text))),
            3 => ("mkdir", done(fs::create_dir(&a))),
            4 => ("symlink", done(std::os::unix::fs::symlink(&text, &a))),
            5 => ("link", done(fs::hard_link(&a, &b))),
            6 => ("rename", rename(RenameFlags::empty())),
            7 => ("rename once", rename(RenameFlags::NOREPLACE)),
            8 => ("exchange", rename(RenameFlags::EXCHANGE)),
            9 => ("unlink", done(fs::remove_file(&a))),
            10 => ("rmdir", done(fs::remove_dir(&a))),
            _ => ("mkdir in", done(fs::create_dir(a.join("Inside")))),
        };
        let found = [shown(Self::content(&a)), shown(Self::content(&b))];
        writeln!(
            self.log,
            "{n} {what} {shown_a} {shown_b}: {result}; {found:?}"
        )
        .expect("a string takes all");
        // Makes room for calls that succeed.
        if result == "done" && what == "mkdir in" {
            let inside = done(fs::remove_dir(a.join("INSIDE")));
            writeln!(self.log, "{n} rmdir in: {inside}").expect("a string takes all");
        }
    }

    fn list(&mut self) {
        for dir in ["0", "1"] {
            let mut names: Vec<_> = fs::read_dir(self.top.join(dir))
                .expect("it is a directory")
                .map(|entry| {
                    entry
                        .expect("it can be read")
                        .file_name()
                        .as_bytes()
                        .escape_ascii()
                        .to_string()
                })
                .collect();
            names.sort();
            writeln!(self.log, "{dir}: {names:?}").expect("a string takes all");
        }
    }

    /// A directory with an index: `count` names that are found by another spelling.
    fn many(&mut self, dir: &str, count: u32) {
        let dir = self.top.join(dir);
        let mut missed = 0;
        for n in 0..count {
            let made = fs::write(dir.join(format!("Größe-{n}")), n.to_string());
            missed += u32::from(made.is_err());
        }
        for n in 0..count {
            let found = fs::read_to_string(dir.join(format!("GRO\u{308}SSE-{n}"))).ok();
            missed += u32::from(found != Some(n.to_string()));
            if n % 3 == 0 {
                missed += u32::from(fs::remove_file(dir.join(format!("größE-{n}"))).is_err());
            }
        }
        writeln!(self.log, "many: {missed} missed").expect("a string takes all");
    }
}

/// Makes the calls of a seed below `top`, which has case-insensitive directories `0`, `1` and `many`. Returns a line for
/// each call.
pub fn probe(top: &Path, (seed, calls): (u64, u32), only_certain: bool) -> String {
    let mut probes = Probes {
        top,
        numbers: Numbers::new(seed),
        pool: pool(only_certain),
        log: String::new(),
    };
    for n in 0..calls {
        probes.call(n);
        if n % 50 == 49 {
            probes.list();
        }
    }
    probes.many("many", 1500);
    probes.log
}

/// Files of a directory by all spellings of the pool: what is found, and what content it has.
pub fn find_all(top: &Path, only_certain: bool) -> String {
    let mut log = String::new();
    for (dir, name) in ["0", "1"].iter().flat_map(|dir| {
        pool(only_certain)
            .into_iter()
            .flatten()
            .map(move |name| (dir, name))
    }) {
        let found = Probes::content(&top.join(dir).join(OsStr::from_bytes(&name)));
        writeln!(log, "{dir}/{}: {}", name.escape_ascii(), shown(found))
            .expect("a string takes all");
    }
    log
}
