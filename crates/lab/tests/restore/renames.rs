//! Renames of all kinds are restored in steps that each leave an old or a new name.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_conformance::{Kind, kind};
use steadfs_lab::device::{Image, Log, SimDevice, Survivors};
use steadfs_vfs::{Cx, FileKind, FileSystem, RenameFlags, test_support};

use super::actor::Actor;
use super::model::Model;
use super::{CACHE, device, restored, simulated};

use Step::{Exchange, Make, Rename, Rmdir};

/// Paths and the inodes that they lead to.
type Paths = BTreeMap<String, InodeNo>;

/// What is there before the renames; directories end with `/`.
const MADE: &[&str] = &[
    "file",
    "dir/",
    "one/",
    "two/",
    "one/moved/",
    "one/moved/in",
    "one/out",
    "old",
    "new",
    "old dir/",
    "new dir/",
    "new dir/in",
    "x",
    "y",
    "x dir/",
    "x dir/in",
    "one/y",
    "log",
    "log.1",
    "log.2",
    "up/",
    "up/down/",
    "up/down/in",
    "a/",
    "b/",
    "a/in",
    "b/in",
    "r1",
    "r2",
    "r3",
    "gone/",
    "gone/in",
];

#[derive(Clone, Copy)]
enum Step {
    Rename(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Make(&'static str),
    Rmdir(&'static str),
}

const RENAMES: &[Step] = &[
    // To free names.
    Rename("file", "file2"),
    Rename("dir", "dir2"),
    // To another parent.
    Rename("one/moved", "two/moved"),
    Rename("one/out", "two/moved/out"),
    // To a new parent, out of one that is removed.
    Make("fresh/"),
    Rename("gone/in", "fresh/in"),
    Rmdir("gone"),
    // Over another name.
    Rename("new", "old"),
    Rename("new dir", "old dir"),
    // Files, a directory and a file with different parents, directories.
    Exchange("x", "y"),
    Exchange("x dir", "one/y"),
    Exchange("a", "b"),
    // One after the other.
    Rename("log.1", "log.2"),
    Rename("log", "log.1"),
    // A parent below its child.
    Rename("up/down", "down"),
    Rename("up", "down/up"),
    // In a circle.
    Rename("r3", "r"),
    Rename("r2", "r3"),
    Rename("r1", "r2"),
    Rename("r", "r1"),
];

/// Circles in which no two names can be exchanged.
const CIRCLES: &[Step] = &[
    // A directory and the one in it change places.
    Rename("up/down", "t"),
    Rename("up", "t/down"),
    Rename("t", "up"),
    // A new directory has the name of a file that is moved there.
    Rename("file", "t"),
    Make("file/"),
    Rename("t", "file/in"),
];

/// The renames on a volume, and the record of them.
struct Renames {
    fs: Arc<dyn FileSystem>,
    cx: Cx,
    model: Model,
}

impl Renames {
    fn new(kind: &'static Kind, device: &SimDevice) -> Self {
        let fs = kind.mount(Arc::new(device.clone()), "", CACHE).unwrap();
        let mut all = Self {
            model: Actor::new(Arc::clone(&fs), kind, 1).model,
            cx: Cx::default(),
            fs,
        };
        MADE.iter().for_each(|path| all.make(path));
        all.fs.sync_all(&all.cx).unwrap();
        all.model.durable();
        all
    }

    /// Directory and name of a path.
    fn at<'a>(&self, path: &'a str) -> (InodeNo, &'a [u8]) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parts = dir.split('/').filter(|part| !part.is_empty());
        let dir = parts.fold(self.fs.root(), |dir, part| self.child(dir, part.as_bytes()));
        (dir, name.as_bytes())
    }

    fn child(&self, dir: InodeNo, name: &[u8]) -> InodeNo {
        let attr = test_support::lookup(&*self.fs, &self.cx, dir, name);
        attr.unwrap().ino
    }

    fn make(&mut self, path: &str) {
        let (dir, name) = self.at(path.trim_end_matches('/'));
        let (fs, cx) = (&self.fs, &self.cx);
        let made = match path.ends_with('/') {
            true => fs.mkdir(cx, dir, name, 0o755),
            false => fs.mknod(cx, dir, name, 0o100_644, 0),
        };
        let ino = made.unwrap().ino;
        self.model.name(dir, name, Some(ino));
        self.model.touch(&**fs, ino);
        self.model.touch(&**fs, dir);
    }

    fn step(&mut self, step: Step) {
        match step {
            Rename(from, to) => self.rename(from, to, false),
            Exchange(from, to) => self.rename(from, to, true),
            Make(path) => self.make(path),
            Rmdir(path) => {
                let (dir, name) = self.at(path);
                let ino = self.child(dir, name);
                self.fs.rmdir(&self.cx, dir, name).unwrap();
                self.model.name(dir, name, None);
                self.model.touch(&*self.fs, ino);
                self.model.forget(&*self.fs, ino);
                self.model.touch(&*self.fs, dir);
            }
        }
    }

    fn rename(&mut self, from: &str, to: &str, exchange: bool) {
        let (from, to) = (self.at(from), self.at(to));
        let old = self.child(from.0, from.1);
        let new = self.fs.lookup(&self.cx, to.0, to.1).ok();
        let new = new.map(|attr| attr.ino);
        let mut all = vec![from.0, to.0, old];
        all.extend(new);
        for ino in &all {
            self.model.touch(&*self.fs, *ino);
        }
        let flags = RenameFlags {
            exchange,
            ..RenameFlags::default()
        };
        self.fs.rename(&self.cx, from, to, flags).unwrap();
        self.model.name(from.0, from.1, new.filter(|_| exchange));
        self.model.name(to.0, to.1, Some(old));
        for ino in &all {
            self.model.touch(&*self.fs, *ino);
        }
        if let Some(new) = new {
            self.fs.forget(new, 1);
            let attr = self.fs.getattr(&self.cx, new).unwrap();
            // A replaced directory stays in use.
            if attr.nlink == 0 && attr.kind != FileKind::Directory {
                self.model.forget(&*self.fs, new);
            }
        }
    }
}

fn paths(fs: &dyn FileSystem) -> Paths {
    let tree = test_support::tree(fs, &Cx::default());
    let path = |path: Vec<u8>| String::from_utf8(path).unwrap();
    tree.into_iter()
        .map(|(name, seen)| (path(name), seen.attr.ino))
        .collect()
}

/// A volume before the renames, their record, and all paths before and after each of them.
fn renamed(kind: &'static Kind, steps: &'static [Step]) -> (Image, Model, Vec<Paths>) {
    let bytes = kind.make(kind.usual_mib(), &[]).to_bytes();
    let image = Image::from_bytes(&bytes);
    simulated(1, move || {
        let device = device(&image);
        let mut all = Renames::new(kind, &device);
        let mut seen = vec![paths(&*all.fs)];
        for step in steps {
            all.step(*step);
            seen.push(paths(&*all.fs));
        }
        let log = device.log();
        let image = log.image(log.len(), &Survivors::None);
        (image, all.model, seen)
    })
}

/// Each path leads to an inode that it led to once, no inode has lost its names, and no name is missing that was always
/// there.
fn check(found: &Paths, seen: &[Paths], what: &str) {
    let ever = |path: &String, ino: &InodeNo| seen.iter().any(|paths| paths.get(path) == Some(ino));
    for (path, ino) in found {
        // Of a circle of three, one is at the name of another meanwhile.
        let known = ever(path, ino) || path.starts_with("/r");
        assert!(known, "{what}: {path} of {ino}: {found:?}");
    }
    let always = |is_in: &dyn Fn(&Paths) -> bool| seen.iter().all(is_in);
    for (path, ino) in &seen[0] {
        let has = |paths: &Paths| paths.values().any(|other| other == ino);
        let lost = always(&has) && !has(found);
        assert!(!lost, "{what}: {path} has no name: {found:?}");
        let has = |paths: &Paths| paths.contains_key(path);
        let lost = always(&has) && !has(found);
        assert!(!lost, "{what}: no {path}: {found:?}");
    }
}

/// The paths that a mount without the record finds.
fn after_cut(kind: &'static Kind, log: &Log, cut: usize) -> Paths {
    let bytes = log.image(cut, &Survivors::All);
    simulated(1, move || {
        let fs = kind.mount(Arc::new(device(&bytes)), "", CACHE).unwrap();
        let found = paths(&*fs);
        fs.unmount().unwrap();
        found
    })
}

fn renames_leave_no_other_name(kind: &'static Kind) {
    let (image, model, known) = renamed(kind, RENAMES);
    let log = restored(kind, 1, image, &model, "renames".to_owned());
    let mut cuts = Vec::new();
    for cut in 0..=log.len() {
        let found = after_cut(kind, &log, cut);
        check(&found, &known, &format!("{kind}, cut {cut}"));
        cuts.push(found);
    }
    cuts.dedup();
    // The cuts fall between the steps.
    assert!(cuts.len() > RENAMES.len() / 2, "{kind}: {}", cuts.len());
    assert_eq!(cuts.first(), known.first());
    assert_eq!(cuts.last(), known.last());
}

#[test]
fn a_power_cut_in_a_restored_rename_leaves_no_other_name() {
    for name in ["ext4_4k", "f2fs"] {
        renames_leave_no_other_name(kind(name));
    }
}

#[test]
fn circles_without_an_exchange_are_restored() {
    for name in ["ext4_4k", "f2fs"] {
        let (image, model, _) = renamed(kind(name), CIRCLES);
        restored(kind(name), 1, image, &model, format!("{name}, circles"));
    }
}

/// A rename over a file that is durable and was not acknowledged, and the record of what was there before it.
fn unacknowledged(kind: &'static Kind) -> (Image, Model, [InodeNo; 2]) {
    let bytes = kind.make(kind.usual_mib(), &[]).to_bytes();
    let image = Image::from_bytes(&bytes);
    simulated(1, move || {
        let device = device(&image);
        let mut all = Renames::new(kind, &device);
        let root = all.fs.root();
        let inodes = [all.child(root, b"new"), all.child(root, b"old")];
        for ino in [root, inodes[0], inodes[1]] {
            all.model.touch(&*all.fs, ino);
        }
        let (from, to) = ((root, &b"new"[..]), (root, &b"old"[..]));
        all.model.touch_name(from.0, from.1);
        all.model.touch_name(to.0, to.1);
        let flags = RenameFlags::default();
        all.fs.rename(&all.cx, from, to, flags).unwrap();
        all.fs.sync_all(&all.cx).unwrap();
        let log = device.log();
        let image = log.image(log.len(), &Survivors::None);
        (image, all.model, inodes)
    })
}

#[test]
fn a_power_cut_while_a_replacement_is_undone_loses_no_file() {
    for kind in ["ext4_4k", "f2fs"].map(kind) {
        let (image, model, [new, old]) = unacknowledged(kind);
        let log = restored(kind, 1, image, &model, format!("{kind}, undone"));
        let mut undone = 0;
        for cut in 0..=log.len() {
            let found = after_cut(kind, &log, cut);
            let has = |ino| found.values().any(|other| *other == ino);
            let done = found.get("/old") == Some(&new);
            assert!(
                has(new) && (has(old) || done),
                "{kind}, cut {cut}: {found:?}"
            );
            undone += usize::from(has(old));
        }
        assert!(undone > 0, "{kind}");
    }
}
