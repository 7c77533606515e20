//! What a writer has made, and what must be seen of it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{getxattr, ioctl_getflags};

/// Extended attributes that writers set. The last one is that of directories.
pub const ATTRIBUTES: [&str; 3] = [
    "user.test",
    "system.posix_acl_access",
    "system.posix_acl_default",
];
/// Directories of a writer, with the prefix of names in them.
pub const DIRS: [&str; 3] = ["", "a/", "b/"];

/// What programs see of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub ino: u64,
    mode: u32,
    pub links: u64,
    size: u64,
    owner: (u32, u32),
    times: [(i64, i64); 2],
    attributes: Vec<Option<Vec<u8>>>,
    /// Those of lsattr(1), of files and directories.
    flags: Option<u32>,
}

impl Seen {
    pub fn of(path: &Path) -> Self {
        let stat = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let has_more = stat.is_file() || stat.is_dir();
        let attribute = |name: &&str| {
            let mut value = vec![0; 5000];
            let len = getxattr(path, *name, &mut value).ok()?;
            value.truncate(len);
            Some(value)
        };
        let flags = has_more.then(|| {
            let file = File::open(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            // How its names or content are stored.
            const STORED: u32 = 0x1000 | 0x1000_0000;
            ioctl_getflags(&file).unwrap().bits() & !STORED
        });
        Self {
            ino: stat.ino(),
            mode: stat.mode(),
            links: stat.nlink(),
            size: if stat.is_dir() { 0 } else { stat.size() },
            owner: (stat.uid(), stat.gid()),
            times: [
                (stat.mtime(), stat.mtime_nsec()),
                (stat.ctime(), stat.ctime_nsec()),
            ],
            attributes: match has_more {
                true => ATTRIBUTES.iter().map(attribute).collect(),
                false => Vec::new(),
            },
            flags,
        }
    }
}

/// What a name leads to.
#[derive(Clone, Debug)]
pub enum Object {
    /// A file, by its inode number.
    File(u64),
    Link(PathBuf),
    Dir,
    /// What a rename has left.
    Whiteout,
}

/// An open file without a name.
pub struct Unnamed {
    pub file: File,
    pub content: Vec<u8>,
    /// It never had a name, and may get one.
    pub may_be_linked: bool,
}

/// What a writer has made of its directory.
#[derive(Default)]
pub struct Model {
    pub names: BTreeMap<String, Object>,
    pub contents: BTreeMap<u64, Vec<u8>>,
    /// By name; the directories themselves have the names of [`DIRS`] with a dot behind them.
    pub seen: BTreeMap<String, Seen>,
    /// Files without a name that are open.
    pub unnamed: Vec<Unnamed>,
    pub calls: u64,
}

impl Model {
    pub fn check(&self, root: &Path) {
        for dir in DIRS {
            let listed = fs::read_dir(root.join(dir)).unwrap();
            let names = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.map(|name| format!("{dir}{name}")).collect();
            names.retain(|name| !["a", "b"].contains(&name.as_str()));
            names.sort();
            let wanted = self.names.keys().filter(|name| parent(name) == dir);
            assert!(names.iter().eq(wanted), "{names:?} in {root:?}");
        }
        for (name, seen) in &self.seen {
            assert_eq!(Seen::of(&root.join(name)), *seen, "{name} in {root:?}");
        }
        for (name, object) in &self.names {
            let path = root.join(name);
            match object {
                Object::File(ino) => {
                    let bytes = fs::read(&path).unwrap();
                    compare(&bytes, &self.contents[ino], &path);
                }
                Object::Link(target) => assert_eq!(fs::read_link(&path).unwrap(), *target),
                Object::Dir => assert_eq!(fs::read_dir(&path).unwrap().count(), 0),
                Object::Whiteout => {
                    let stat = fs::symlink_metadata(&path).unwrap();
                    assert!(stat.file_type().is_char_device() && stat.rdev() == 0);
                }
            }
        }
        for Unnamed { file, content, .. } in &self.unnamed {
            let mut bytes = vec![0; content.len()];
            file.read_exact_at(&mut bytes, 0).unwrap();
            compare(&bytes, content, Path::new("a file without a name"));
            assert_eq!(file.metadata().unwrap().nlink(), 0);
        }
    }
}

/// The directory of a name.
pub fn parent(name: &str) -> &str {
    &name[..name.find('/').map_or(0, |at| at + 1)]
}

#[track_caller]
fn compare(found: &[u8], wanted: &[u8], path: &Path) {
    if found != wanted {
        let at = found.iter().zip(wanted).position(|(a, b)| a != b);
        panic!(
            "{path:?}: {} bytes, not {}; {at:?} differs",
            found.len(),
            wanted.len()
        );
    }
}
