//! Calls by path succeed and fail as those of `std::fs` do on the host, however a path is spelled.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType as HostType, Mode};
use steadfs::{F2fsFormatOptions, FileKind, FormatOptions, Volume, VolumeIoError};

const FILES: [&str; 3] = ["f", "d/in", "d/sub/deep"];
const LINKS: [(&str, &str); 10] = [
    ("lf", "f"),
    ("ld", "d"),
    ("lin", "ld/in"),
    ("lslash", "f/"),
    ("ldslash", "d/"),
    ("ldot", "d/."),
    ("dang", "new"),
    ("dangslash", "new/"),
    ("d/dang", "../ld/new"),
    ("loop", "loop"),
];
const NAMES: [&str; 16] = [
    "f",
    "d",
    "d/sub",
    "new",
    "lf",
    "ld",
    "lin",
    "lslash",
    "ldslash",
    "ldot",
    "dang",
    "dangslash",
    "ld/dang",
    "loop",
    "f/new",
    "new/new",
];
const ENDS: [&str; 7] = ["", "/", "//", "/.", "/./", "/..", "/../f"];

fn spellings() -> Vec<String> {
    let long = "n".repeat(256);
    let mut all = vec![
        long.clone(),
        format!("{long}/"),
        format!("{long}/x"),
        "./f".into(),
        "d//in".into(),
    ];
    for name in NAMES {
        all.extend(ENDS.map(|end| format!("{name}{end}")));
    }
    all
}

/// What a call returned, or its error.
type Outcome = Result<String, i32>;

fn on_host<T>(done: io::Result<T>, shown: impl FnOnce(T) -> String) -> Outcome {
    done.map(shown)
        .map_err(|error| error.raw_os_error().unwrap())
}

fn on_volume<T>(done: io::Result<T>, shown: impl FnOnce(T) -> String) -> Outcome {
    let errno = |error: io::Error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let inner: &VolumeIoError = inner.unwrap_or_else(|| panic!("{error}"));
        inner.source.errno()
    };
    done.map(shown).map_err(errno)
}

fn nothing<T>(_: T) -> String {
    String::new()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn host_kind(found: fs::Metadata) -> String {
    format!("{:?}", FileKind::from_mode(found.mode()).unwrap())
}

fn kind(found: steadfs::Metadata) -> String {
    format!("{:?}", found.file_type())
}

fn sorted(names: impl Iterator<Item = std::ffi::OsString>) -> String {
    let mut names: Vec<_> = names.collect();
    names.sort();
    format!("{names:?}")
}

/// Both sides of a call of one path.
type Call = (
    &'static str,
    fn(&Path) -> Outcome,
    fn(&Volume, &Path) -> Outcome,
);

const CALLS: [Call; 16] = [
    (
        "metadata",
        |at| on_host(fs::metadata(at), host_kind),
        |v, at| on_volume(v.metadata(at), kind),
    ),
    (
        "symlink_metadata",
        |at| on_host(fs::symlink_metadata(at), host_kind),
        |v, at| on_volume(v.symlink_metadata(at), kind),
    ),
    (
        "try_exists",
        |at| on_host(at.try_exists(), |is| is.to_string()),
        |v, at| on_volume(v.try_exists(at), |is| is.to_string()),
    ),
    (
        "read",
        |at| on_host(fs::read(at), text),
        |v, at| on_volume(v.read(at), text),
    ),
    (
        "read_dir",
        |at| {
            on_host(fs::read_dir(at), |all| {
                sorted(all.map(|entry| entry.unwrap().file_name()))
            })
        },
        |v, at| {
            let names =
                |all: steadfs::ReadDir| all.map(|entry| entry.unwrap().file_name().to_owned());
            on_volume(v.read_dir(at), |all| sorted(names(all)))
        },
    ),
    (
        "read_link",
        |at| on_host(fs::read_link(at), |to| to.display().to_string()),
        |v, at| on_volume(v.read_link(at), |to| to.display().to_string()),
    ),
    (
        "set_permissions",
        |at| {
            on_host(
                fs::set_permissions(at, Permissions::from_mode(0o700)),
                nothing,
            )
        },
        |v, at| on_volume(v.set_permissions(at, 0o700), nothing),
    ),
    (
        "open to write",
        |at| on_host(OpenOptions::new().write(true).open(at), nothing),
        |v, at| on_volume(v.open_file().write(true).open(at), nothing),
    ),
    (
        "write",
        |at| on_host(fs::write(at, "w"), nothing),
        |v, at| on_volume(v.write(at, "w"), nothing),
    ),
    (
        "create_new",
        |at| {
            on_host(
                OpenOptions::new().write(true).create_new(true).open(at),
                nothing,
            )
        },
        |v, at| on_volume(v.open_file().write(true).create_new(true).open(at), nothing),
    ),
    (
        "create_dir",
        |at| on_host(fs::create_dir(at), nothing),
        |v, at| on_volume(v.create_dir(at), nothing),
    ),
    (
        "create_dir_all",
        |at| on_host(fs::create_dir_all(at), nothing),
        |v, at| on_volume(v.create_dir_all(at), nothing),
    ),
    (
        "symlink",
        |at| on_host(symlink("f", at), nothing),
        |v, at| on_volume(v.symlink("f", at), nothing),
    ),
    (
        "create_node",
        |at| {
            let made = rustix::fs::mknodat(CWD, at, HostType::Fifo, Mode::from_raw_mode(0o644), 0);
            on_host(made.map_err(io::Error::from), nothing)
        },
        |v, at| on_volume(v.create_node(at, 0o10644, 0), nothing),
    ),
    (
        "remove_file",
        |at| on_host(fs::remove_file(at), nothing),
        |v, at| on_volume(v.remove_file(at), nothing),
    ),
    (
        "remove_dir",
        |at| on_host(fs::remove_dir(at), nothing),
        |v, at| on_volume(v.remove_dir(at), nothing),
    ),
];

/// Both sides of a call of two paths.
type PairCall = (
    &'static str,
    fn(&Path, &Path) -> Outcome,
    fn(&Volume, &Path, &Path) -> Outcome,
);

const PAIR_CALLS: [PairCall; 2] = [
    (
        "rename",
        |a, b| on_host(fs::rename(a, b), nothing),
        |v, a, b| on_volume(v.rename(a, b), nothing),
    ),
    (
        "hard_link",
        |a, b| on_host(fs::hard_link(a, b), nothing),
        |v, a, b| on_volume(v.hard_link(a, b), nothing),
    ),
];

/// The same tree on the host and on a volume.
struct Both {
    volume: Volume,
    top: PathBuf,
}

impl Both {
    fn make(&self) {
        let (v, at) = (&self.volume, |name: &str| self.host(name));
        fs::create_dir_all(at("d/sub")).unwrap();
        fs::create_dir(at("empty")).unwrap();
        v.create_dir_all("/t/d/sub").unwrap();
        v.create_dir("/t/empty").unwrap();
        for file in FILES {
            fs::write(at(file), file).unwrap();
            v.write(on(file), file).unwrap();
        }
        for (link, to) in LINKS {
            symlink(to, at(link)).unwrap();
            v.symlink(to, on(link)).unwrap();
        }
    }

    fn remove(&self) {
        fs::remove_dir_all(&self.top).unwrap();
        self.volume.remove_dir_all("/t").unwrap();
    }

    fn host(&self, name: &str) -> PathBuf {
        format!("{}/{name}", self.top.display()).into()
    }

    /// All names, with what is compared of their files.
    fn on_host(&self) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        let mut dirs = vec![self.top.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let found = path.symlink_metadata().unwrap();
                let shown = match FileKind::from_mode(found.mode()).unwrap() {
                    FileKind::Directory => {
                        dirs.push(path.clone());
                        String::new()
                    }
                    FileKind::Regular => text(fs::read(&path).unwrap()),
                    FileKind::Symlink => fs::read_link(&path).unwrap().display().to_string(),
                    _ => String::new(),
                };
                let mode = found.mode();
                all.insert(
                    path.strip_prefix(&self.top).unwrap().to_owned(),
                    format!("{mode:o} {shown}"),
                );
            }
        }
        all
    }

    fn on_volume(&self) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        for entry in self.volume.walk("/t").unwrap() {
            let entry = entry.unwrap();
            let (path, found) = (entry.path(), entry.metadata().unwrap());
            let shown = match found.file_type() {
                FileKind::Regular => text(self.volume.read(&path).unwrap()),
                FileKind::Symlink => self.volume.read_link(&path).unwrap().display().to_string(),
                _ => String::new(),
            };
            let mode = found.mode();
            all.insert(
                path.strip_prefix("/t").unwrap().to_owned(),
                format!("{mode:o} {shown}"),
            );
        }
        all
    }

    /// Both sides of a call must do the same to the tree `before`, which is made again if they have changed it.
    fn compare(
        &self,
        before: &BTreeMap<PathBuf, String>,
        call: &str,
        (host, volume): (Outcome, Outcome),
        wrong: &mut Vec<String>,
    ) {
        let failed = host.is_err() && volume.is_err();
        if host != volume {
            wrong.push(format!("{call}: host {host:?}, volume {volume:?}"));
        }
        if failed {
            // What it changed all the same, the next comparison finds.
            return;
        }
        let (on_host, on_volume) = (self.on_host(), self.on_volume());
        if on_host != on_volume {
            let all = |tree: &BTreeMap<PathBuf, String>| {
                tree.clone().into_iter().collect::<BTreeSet<_>>()
            };
            let (host, volume) = (all(&on_host), all(&on_volume));
            let differ: Vec<_> = host.symmetric_difference(&volume).collect();
            wrong.push(format!("{call}: one side only {differ:?}"));
        }
        if on_host != *before || on_volume != *before {
            self.remove();
            self.make();
        }
    }
}

fn on(name: &str) -> PathBuf {
    format!("/t/{name}").into()
}

fn each(work: impl Fn(&Both)) {
    let dir = tempfile::tempdir().unwrap();
    let [ext4, f2fs] = ["ext4.img", "f2fs.img"].map(|name| dir.path().join(name));
    steadfs::format(&ext4, Some(32 << 20), &FormatOptions::default()).unwrap();
    steadfs::format_f2fs(&f2fs, Some(64 << 20), &F2fsFormatOptions::default()).unwrap();
    for image in [ext4, f2fs] {
        let volume = Volume::open(&image).unwrap();
        let top = dir.path().join("t");
        let both = Both { volume, top };
        work(&both);
        both.volume.close().unwrap();
    }
}

/// Calls `work` with the tree, its content, and what was found wrong.
fn each_tree(work: impl Fn(&Both, &BTreeMap<PathBuf, String>, &mut Vec<String>)) {
    // New files and directories have the same permissions on both sides.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    each(|both| {
        both.make();
        let mut wrong = Vec::new();
        let before = both.on_host();
        work(both, &before, &mut wrong);
        assert_eq!(both.on_host(), before);
        assert_eq!(both.on_volume(), before);
        both.remove();
        assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    });
}

#[test]
fn paths_are_taken_as_by_the_kernel() {
    each_tree(|both, before, wrong| {
        for spelling in spellings() {
            for (name, host, volume) in CALLS {
                let outcomes = (
                    host(&both.host(&spelling)),
                    volume(&both.volume, &on(&spelling)),
                );
                both.compare(before, &format!("{name} {spelling}"), outcomes, wrong);
            }
        }
    });
}

#[test]
fn pairs_of_paths_are_taken_as_by_the_kernel() {
    let names = ["f", "d", "empty", "new", "lf", "ld", "d/sub", "f/new"];
    let ends = ["", "/", "/.", "/.."];
    let all: Vec<String> = names
        .iter()
        .flat_map(|name| ends.map(|end| format!("{name}{end}")))
        .collect();
    each_tree(|both, before, wrong| {
        for (from, to) in all
            .iter()
            .flat_map(|from| all.iter().map(move |to| (from, to)))
        {
            for (name, host, volume) in PAIR_CALLS {
                let outcomes = (
                    host(&both.host(from), &both.host(to)),
                    volume(&both.volume, &on(from), &on(to)),
                );
                both.compare(before, &format!("{name} {from} {to}"), outcomes, wrong);
            }
        }
    });
}

/// What is not tried on the host's own root, and calls that end at the first error or do less than the host's.
#[test]
fn the_root_and_the_empty_path_have_the_kernels_errors() {
    each(|both| {
        let v = &both.volume;
        v.write("/f", "f").unwrap();
        v.create_dir("/d").unwrap();
        v.symlink("d", "/ld").unwrap();
        let (exist, busy, invalid) = (libc::EEXIST, libc::EBUSY, libc::EINVAL);
        let (absent, is_dir) = (libc::ENOENT, libc::EISDIR);
        for root in ["/", "//", "/."] {
            let refused = [
                (on_volume(v.create_dir(root), nothing), exist),
                (on_volume(v.symlink("f", root), nothing), exist),
                (on_volume(v.hard_link("/f", root), nothing), exist),
                (on_volume(v.create_node(root, 0o10644, 0), nothing), exist),
                (
                    on_volume(
                        v.open_file().write(true).create_new(true).open(root),
                        nothing,
                    ),
                    exist,
                ),
                (on_volume(v.write(root, "w"), nothing), is_dir),
                (on_volume(v.remove_file(root), nothing), is_dir),
                (
                    on_volume(v.remove_dir(root), nothing),
                    if root == "/." { invalid } else { busy },
                ),
                (on_volume(v.rename(root, "/new"), nothing), busy),
                (on_volume(v.rename("/f", root), nothing), busy),
            ];
            for (at, (outcome, errno)) in refused.into_iter().enumerate() {
                assert_eq!(outcome, Err(errno), "call {at} of {root}");
            }
            v.create_dir_all(root).unwrap();
        }
        for (path, kind) in [
            ("/", ErrorKind::InvalidInput),
            ("/d/.", ErrorKind::InvalidInput),
            ("/ld/", ErrorKind::NotADirectory),
            ("/f", ErrorKind::NotADirectory),
            ("", ErrorKind::NotFound),
        ] {
            assert_eq!(v.remove_dir_all(path).unwrap_err().kind(), kind, "{path}");
        }
        let refused = [
            (on_volume(v.read(""), text), absent),
            (on_volume(v.write("", "w"), nothing), absent),
            (on_volume(v.metadata(""), kind), absent),
            (on_volume(v.read_dir(""), nothing), absent),
            (on_volume(v.create_dir(""), nothing), absent),
            (on_volume(v.remove_file(""), nothing), absent),
            (on_volume(v.rename("", "/new"), nothing), absent),
            (on_volume(v.rename("/f", ""), nothing), absent),
        ];
        for (at, (outcome, errno)) in refused.into_iter().enumerate() {
            assert_eq!(outcome, Err(errno), "call {at}");
        }
        v.create_dir_all("").unwrap();
        assert_eq!(v.read("/f").unwrap(), b"f");
    });
}
