//! Owners, modes and labels that the files of a new volume get in place of their own.
//!
//! **Rules, in this order.** `owner` gives all files one owner or group; else `map` replaces numbers. Then the last entry
//! of a list in Android's format fs_config gives owner, mode and capabilities to the file with exactly its path. Last, the
//! last line of a list in SELinux's format file_contexts that matches gives the label; of lines without special characters
//! the last one goes before all others, as in libselinux.
//!
//! A pattern is anchored as there: `^` before it and `$` behind it, without a group. So `/a|/b` matches what begins with
//! `/a` and what ends in `/b`; and if the first of several directories in a pattern has no special characters, the line is
//! only about files below that directory. Patterns match bytes.
//!
//! Both lists name files by their path where the volume will be mounted, for which [`OwnerRules::set_prefix`] is put before
//! the path on the volume. Files that no line has keep what they have, where e2fsdroid fails. fs_config also names the
//! root, and may have comments and empty lines, which libcutils has not.

use std::collections::BTreeMap;

use regex_lite::{Regex, RegexBuilder};
use steadfs_vfs::FileKind;

use crate::tools::printable;

/// The attribute with the SELinux label, and that with file capabilities.
const LABEL: &[u8] = b"security.selinux";
const CAPABILITY: &[u8] = b"security.capability";
/// Version 2 of file capabilities, with the effective flag (`VFS_CAP_REVISION_2`, `VFS_CAP_FLAGS_EFFECTIVE`).
const CAPABILITY_VERSION: u32 = 0x0200_0001;

/// The first bytes of a list that sefcontext_compile(8) made.
const COMPILED: [u8; 4] = 0xf97c_ff8a_u32.to_le_bytes();

/// The rules.
#[derive(Debug, Default)]
pub struct OwnerRules {
    owner: (Option<u32>, Option<u32>),
    map: BTreeMap<u32, u32>,
    prefix: Vec<u8>,
    configs: BTreeMap<Vec<u8>, Config>,
    /// Labels of exact paths, by the type's bits of a mode if it is for one type.
    exact: BTreeMap<(Vec<u8>, Option<u32>), Exact>,
    exact_lines: usize,
    /// Labels of patterns, in the order of their lines.
    patterns: Vec<Pattern>,
}

/// A line of fs_config.
#[derive(Clone, Copy, Debug)]
struct Config {
    uid: u32,
    gid: u32,
    perm: u32,
    capabilities: u64,
}

/// A line of file_contexts without special characters.
#[derive(Debug)]
struct Exact {
    /// Its number among all such lines.
    line: usize,
    label: Option<Vec<u8>>,
}

/// A line of file_contexts with special characters.
#[derive(Debug)]
struct Pattern {
    /// What each path that matches begins with.
    stem: Vec<u8>,
    regex: Regex,
    kind: Option<FileKind>,
    label: Option<Vec<u8>>,
}

/// The attributes that rules change.
#[derive(Debug)]
pub(crate) struct Ruled<'a> {
    pub kind: FileKind,
    pub perm: &'a mut u32,
    pub uid: &'a mut u32,
    pub gid: &'a mut u32,
    pub xattrs: &'a mut Vec<(Vec<u8>, Vec<u8>)>,
}

impl OwnerRules {
    /// Sets the owner of all files: `USER`, `USER:GROUP` or `:GROUP`, as numbers.
    ///
    /// # Errors
    /// What is wrong.
    pub fn set_owner(&mut self, text: &str) -> Result<(), String> {
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        let number = |text: &str| match text {
            "" => Ok(None),
            text => id(text).map(Some),
        };
        self.owner = (number(user)?, number(group)?);
        match self.owner {
            (None, None) => Err("needs USER, USER:GROUP or :GROUP".to_owned()),
            _ => Ok(()),
        }
    }

    /// Adds `FROM:TO,…`: users and groups FROM become TO.
    ///
    /// # Errors
    /// What is wrong.
    pub fn add_map(&mut self, list: &str) -> Result<(), String> {
        for pair in list.split(',') {
            let (from, to) = pair.split_once(':').ok_or("needs FROM:TO")?;
            self.map.insert(id(from)?, id(to)?);
        }
        Ok(())
    }

    /// Sets the directory that the volume will be mounted on.
    pub fn set_prefix(&mut self, prefix: &[u8]) {
        let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
        self.prefix = prefix.to_vec();
        if !prefix.is_empty() && !prefix.starts_with(b"/") {
            self.prefix.insert(0, b'/');
        }
    }

    /// Adds the lines of a list in format fs_config: `PATH UID GID MODE [capabilities=NUMBER]`.
    ///
    /// # Errors
    /// The line that is wrong.
    pub fn add_fs_config(&mut self, text: &[u8]) -> Result<(), String> {
        for (number, line) in lines(text) {
            let fail = || format!("line {number}: needs PATH UID GID MODE [capabilities=NUMBER]");
            let mut words = line
                .split(|b| b.is_ascii_whitespace())
                .filter(|word| !word.is_empty());
            // A line that begins with a space is about the root.
            let path = match line.first() {
                Some(b' ' | b'\t') => &b""[..],
                _ => words.next().ok_or_else(fail)?,
            };
            let mut word = || std::str::from_utf8(words.next()?).ok();
            let (uid, gid) = (
                word().and_then(|w| w.parse().ok()),
                word().and_then(|w| w.parse().ok()),
            );
            let perm = word().and_then(|w| u32::from_str_radix(w, 8).ok());
            let mut config = Config {
                uid: uid.ok_or_else(fail)?,
                gid: gid.ok_or_else(fail)?,
                perm: perm.ok_or_else(fail)? & 0o7777,
                capabilities: 0,
            };
            while let Some(more) = word() {
                if let Some(text) = more.strip_prefix("capabilities=") {
                    config.capabilities = capabilities(text).ok_or_else(fail)?;
                    break;
                }
            }
            let path = path.strip_prefix(b"/").unwrap_or(path);
            let path = path.strip_suffix(b"/").unwrap_or(path);
            self.configs.insert(path.to_vec(), config);
        }
        Ok(())
    }

    /// Adds the lines of a list in format file_contexts: `REGEX [TYPE] LABEL`; what follows is ignored. Lines of a list
    /// that is added later go before those of an earlier one.
    ///
    /// # Errors
    /// The line that is wrong.
    pub fn add_file_contexts(&mut self, text: &[u8]) -> Result<(), String> {
        if text.starts_with(&COMPILED) {
            let why = "is compiled (sefcontext_compile): give the text that it was made of";
            return Err(why.to_owned());
        }
        for (number, line) in lines(text) {
            let fail = |why: &dyn std::fmt::Display| format!("line {number}: {why}");
            let words = line.split(|b| b.is_ascii_whitespace());
            let words: Vec<&[u8]> = words.filter(|word| !word.is_empty()).collect();
            let (path, kind, label) = match words[..] {
                [path, label] => (path, None, label),
                [path, kind, label, ..] => {
                    let kind = kind_of(kind)
                        .ok_or_else(|| fail(&"its type is not one of -- -d -l -b -c -p -s"))?;
                    (path, Some(kind), label)
                }
                _ => return Err(fail(&"needs REGEX [TYPE] LABEL")),
            };
            // The kernel's labels end with a 0, as setfilecon(3) writes them.
            let label = (label != b"<<none>>").then(|| [label, b"\0"].concat());
            match plain(path) {
                (path, true) => {
                    let kind = kind.map(FileKind::mode_bits);
                    self.exact_lines += 1;
                    let exact = Exact {
                        line: self.exact_lines,
                        label,
                    };
                    self.exact.insert((path, kind), exact);
                }
                (stem, false) => {
                    let regex = RegexBuilder::new(&format!("^{}$", characters(path)))
                        .dot_matches_new_line(true)
                        .build()
                        .map_err(|error| fail(&error))?;
                    self.patterns.push(Pattern {
                        stem,
                        regex,
                        kind,
                        label,
                    });
                }
            }
        }
        Ok(())
    }

    /// Changes the attributes of the file at `path` on the volume.
    pub(crate) fn apply(&self, path: &[u8], file: Ruled<'_>) {
        for (id, (all, id_map)) in [
            (&mut *file.uid, (self.owner.0, &self.map)),
            (&mut *file.gid, (self.owner.1, &self.map)),
        ] {
            *id = all.or_else(|| id_map.get(id).copied()).unwrap_or(*id);
        }
        if self.configs.is_empty() && !self.has_labels() {
            return;
        }
        let full = self.mounted(path);
        if let Some(config) = self.configs.get(full.strip_prefix(b"/").unwrap_or(b"")) {
            *file.uid = config.uid;
            *file.gid = config.gid;
            if file.kind != FileKind::Symlink {
                *file.perm = config.perm;
            }
            if config.capabilities != 0 {
                set(
                    file.xattrs,
                    CAPABILITY,
                    capability_value(config.capabilities),
                );
            }
        }
        if let Some(label) = self.label(full, file.kind) {
            set(file.xattrs, LABEL, label.to_vec());
        }
    }

    fn has_labels(&self) -> bool {
        !self.patterns.is_empty() || !self.exact.is_empty()
    }

    /// The attribute that is the label of the file at `path` on the volume, if the list has one.
    pub(crate) fn label_at(&self, path: &[u8], kind: FileKind) -> Option<(&'static [u8], &[u8])> {
        let label = self.label(self.mounted(path), kind)?;
        Some((LABEL, label))
    }

    /// The path of a file where the volume will be mounted; empty for the root of all.
    fn mounted(&self, path: &[u8]) -> Vec<u8> {
        let mut full = self.prefix.clone();
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            full.push(b'/');
            full.extend(name);
        }
        full
    }

    fn label(&self, mut path: Vec<u8>, kind: FileKind) -> Option<&[u8]> {
        if path.is_empty() {
            path.push(b'/');
        }
        let exact =
            [Some(kind.mode_bits()), None].map(|kind| self.exact.get(&(path.clone(), kind)));
        let exact = exact.into_iter().flatten();
        if let Some(exact) = exact.max_by_key(|exact| exact.line) {
            return exact.label.as_deref();
        }
        let text = characters(&path);
        let fits = |pattern: &&Pattern| {
            pattern.kind.is_none_or(|wanted| wanted == kind)
                && path.starts_with(&pattern.stem)
                && pattern.regex.is_match(&text)
        };
        self.patterns.iter().rev().find(fits)?.label.as_deref()
    }
}

fn id(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|&id| id != u32::MAX);
    number.ok_or_else(|| {
        format!(
            "{}: needs the number of a user or group",
            printable(text.as_bytes())
        )
    })
}

fn capabilities(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        // As strtoll(3) has it.
        None if text.starts_with('0') => u64::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

/// The value of `security.capability`: permitted and inheritable sets in two halves, of which the second is empty.
fn capability_value(permitted: u64) -> Vec<u8> {
    let half = |shift: u32| ((permitted >> shift) as u32).to_le_bytes();
    [
        CAPABILITY_VERSION.to_le_bytes(),
        half(0),
        [0; 4],
        half(32),
        [0; 4],
    ]
    .concat()
}

fn set(xattrs: &mut Vec<(Vec<u8>, Vec<u8>)>, name: &[u8], value: Vec<u8>) {
    xattrs.retain(|(other, _)| other != name);
    let at = xattrs.partition_point(|(other, _)| &other[..] < name);
    xattrs.insert(at, (name.to_vec(), value));
}

/// Lines with their numbers, without empty ones and comments.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = text.split(|&b| b == b'\n').zip(1..);
    lines
        .map(|(line, number)| (number, line))
        .filter(|(_, line)| {
            let line = line.trim_ascii_start();
            !line.is_empty() && !line.starts_with(b"#")
        })
}

fn kind_of(word: &[u8]) -> Option<FileKind> {
    Some(match word {
        b"--" => FileKind::Regular,
        b"-d" => FileKind::Directory,
        b"-l" => FileKind::Symlink,
        b"-b" => FileKind::BlockDevice,
        b"-c" => FileKind::CharDevice,
        b"-p" => FileKind::Fifo,
        b"-s" => FileKind::Socket,
        _ => return None,
    })
}

/// One character for each byte: names need not be UTF-8.
fn characters(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// The text that each path begins with that a pattern matches, its escapes resolved, and whether that is all of it.
fn plain(pattern: &[u8]) -> (Vec<u8>, bool) {
    if has_alternatives(pattern) {
        return (first_directory(pattern).to_vec(), false);
    }
    let mut plain = Vec::new();
    let mut bytes = pattern.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => match bytes.next() {
                Some(next) if !next.is_ascii_alphanumeric() => plain.push(next),
                _ => return (plain, false),
            },
            b'.' | b'^' | b'$' | b'[' | b'(' => return (plain, false),
            b'?' | b'*' | b'+' | b'{' => {
                // It is about the byte before it.
                plain.pop();
                return (plain, false);
            }
            byte => plain.push(byte),
        }
    }
    (plain, true)
}

/// The first directory of a pattern with several, if it has no special characters; else nothing.
fn first_directory(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().skip(1).position(|&b| b == b'/');
    let first = end.map_or(&[][..], |end| &pattern[..=end]);
    match first.iter().any(|byte| b".^$?*+|[({\\".contains(byte)) {
        true => &[],
        false => first,
    }
}

/// Whether a pattern has a `|` that is in no group.
fn has_alternatives(pattern: &[u8]) -> bool {
    let (mut depth, mut is_set) = (0i32, false);
    let mut bytes = pattern.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b']' => is_set = false,
            _ if is_set => {}
            b'[' => is_set = true,
            b'(' => depth += 1,
            b')' => depth -= 1,
            b'|' if depth <= 0 => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    type Found = (u32, u32, u32, Vec<(Vec<u8>, Vec<u8>)>);

    fn apply(rules: &OwnerRules, path: &str, kind: FileKind) -> Found {
        let (mut perm, mut uid, mut gid, mut xattrs) = (0o644, 1000, 7, Vec::new());
        let file = Ruled {
            kind,
            perm: &mut perm,
            uid: &mut uid,
            gid: &mut gid,
            xattrs: &mut xattrs,
        };
        rules.apply(path.as_bytes(), file);
        (uid, gid, perm, xattrs)
    }

    #[test]
    fn owners_are_set_or_mapped() {
        let owners = |rules: &OwnerRules| {
            let (uid, gid, ..) = apply(rules, "/x", FileKind::Regular);
            (uid, gid)
        };
        let mut rules = OwnerRules::default();
        assert_eq!(owners(&rules), (1000, 7));
        rules.add_map("1000:0,8:9").unwrap();
        assert_eq!(owners(&rules), (0, 7));
        rules.set_owner(":5").unwrap();
        assert_eq!(owners(&rules), (0, 5));
        rules.set_owner("1:2").unwrap();
        assert_eq!(owners(&rules), (1, 2));
        for wrong in ["", ":", "root", "1:2:3", "4294967295", "-1"] {
            assert!(rules.set_owner(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "1", "1:x", "1:2,"] {
            assert!(rules.add_map(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_name_files_where_they_are_mounted() {
        let mut rules = OwnerRules::default();
        rules.set_prefix(b"system/");
        let list = b"# comment\nsystem 0 2000 0755\nsystem/bin/run 0 2000 04755 selabel=x capabilities=0xC0\n";
        rules.add_fs_config(list).unwrap();
        let (uid, gid, perm, xattrs) = apply(&rules, "/bin//run", FileKind::Regular);
        assert_eq!((uid, gid, perm), (0, 2000, 0o4755));
        let value = [
            1, 0, 0, 2, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(xattrs, [(CAPABILITY.to_vec(), value.to_vec())]);
        assert_eq!(apply(&rules, "/", FileKind::Directory).2, 0o755);
        assert_eq!(apply(&rules, "/bin/other", FileKind::Regular).0, 1000);
        // strtoll(3) reads capabilities; the first ones of a line and the last line of a path count.
        for (text, low) in [("020", 16), ("20", 20), ("0x20", 32)] {
            let line =
                format!("system/x 0 0 644\nsystem/x 1 2 600 capabilities={text} capabilities=1");
            rules.add_fs_config(line.as_bytes()).unwrap();
            let (uid, _, perm, xattrs) = apply(&rules, "/x", FileKind::Regular);
            assert_eq!((uid, perm, xattrs[0].1[4]), (1, 0o600, low), "{text}");
        }
        let mut root = OwnerRules::default();
        root.add_fs_config(b" 3 4 0711\n").unwrap();
        assert_eq!(apply(&root, "/", FileKind::Directory).0, 3);
        for wrong in [
            "x",
            "x 1 2",
            "x 1 2 9",
            "x a 2 644",
            "x 1 2 644 capabilities=z",
        ] {
            let error = root.add_fs_config(wrong.as_bytes()).unwrap_err();
            assert!(error.starts_with("line 1:"), "{error}");
        }
    }

    #[test]
    fn the_last_pattern_counts_and_exact_paths_before_all() {
        let mut rules = OwnerRules::default();
        let list = b"/a/exact\\.txt exact\n/a(/.*)? any\n/a/b.* -d dir\n/a/n <<none>>\n/.*\\.so library\n/a/f? one\n/p(x)|/q two\n/d/a|/e/b -- three # ignored\n\
                     /caf\xc3\xa9(x)? c\n/g/[|] -- set and more\n";
        rules.add_file_contexts(list).unwrap();
        let label = |path: &str, kind| {
            let (.., xattrs) = apply(&rules, path, kind);
            xattrs
                .first()
                .map(|(_, value)| String::from_utf8(value.clone()).unwrap())
        };
        let file = |path| label(path, FileKind::Regular);
        assert_eq!(file("/a/exact.txt").as_deref(), Some("exact\0"));
        assert_eq!(file("/a/exactxtxt").as_deref(), Some("any\0"));
        assert_eq!(file("/a/bb").as_deref(), Some("any\0"));
        assert_eq!(
            label("/a/bb", FileKind::Directory).as_deref(),
            Some("dir\0")
        );
        assert_eq!(file("/a/bb/x.so").as_deref(), Some("library\0"));
        assert_eq!((file("/a/n"), file("/b")), (None, None));
        assert_eq!(file("/a/").as_deref(), Some("any\0"));
        assert_eq!(file("/a/f").as_deref(), Some("one\0"));
        // Alternatives outside a group end at one end only, and a directory in front is for all of them.
        for two in ["/px", "/px/more", "/q", "/z/q"] {
            assert_eq!(file(two).as_deref(), Some("two\0"), "{two}");
        }
        let three = file("/d/a/more").or(file("/d/e/b"));
        assert_eq!((three.as_deref(), file("/e/b")), (Some("three\0"), None));
        assert_eq!(file("/caf\u{e9}x").as_deref(), Some("c\0"));
        assert_eq!(file("/g/|").as_deref(), Some("set\0"));
        // A list that comes later goes before.
        rules
            .add_file_contexts(b"/a(/.*)? later\n/a/exact\\.txt exactly\n")
            .unwrap();
        let label = |path| apply(&rules, path, FileKind::Regular).3.remove(0).1;
        assert_eq!(label("/a/bb"), b"later\0");
        assert_eq!(label("/a/exact.txt"), b"exactly\0");
        let compiled = rules.add_file_contexts(b"\x8a\xff\x7c\xf9\x05\0\0\0");
        assert!(compiled.unwrap_err().contains("compiled"));
        for wrong in ["/x(", "/x -q label", "/x", "/x label #"] {
            assert!(
                rules.add_file_contexts(wrong.as_bytes()).is_err(),
                "{wrong}"
            );
        }
    }
}
