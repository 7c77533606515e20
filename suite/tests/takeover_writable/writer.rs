//! A writer: random calls, and what they have made.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, OFlags, RenameFlags, XattrFlags, copy_file_range,
    fallocate, ioctl_getflags, ioctl_setflags, linkat, removexattr, renameat_with, setxattr,
};
use steadfs_suite::command::succeed;
use steadfs_suite::generate::Numbers;

use crate::model::{ATTRIBUTES, DIRS, Model, Object, Seen, Unnamed, parent};

const NAMES: u64 = 12;
const FILE_BYTES_MAX: u64 = 256 << 10;

/// One writer.
pub struct Writer {
    pub dir: PathBuf,
    pub random: Numbers,
}

impl Writer {
    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.random.below(10) {
            0 => self.random.below(100 << 10),
            _ => self.random.below(6000),
        };
        self.random.bytes(len as usize + 1)
    }

    /// Records what is seen of these names now, and of the directory.
    fn see(&self, model: &mut Model, names: &[&str]) {
        model.calls += 1;
        // What these names led to before, and lead to now.
        let inos_of = |model: &Model| -> Vec<u64> {
            let seen = names.iter().filter_map(|name| model.seen.get(*name));
            seen.map(|seen| seen.ino).collect()
        };
        let mut inos = inos_of(model);
        let dirs: Vec<_> = names
            .iter()
            .map(|name| format!("{}.", parent(name)))
            .collect();
        for name in names.iter().copied().chain(dirs.iter().map(String::as_str)) {
            match name.ends_with('.') || model.names.contains_key(name) {
                true => model
                    .seen
                    .insert(name.to_owned(), Seen::of(&self.dir.join(name))),
                false => model.seen.remove(name),
            };
        }
        // Hard links show each other's changes.
        inos.extend(inos_of(model));
        let same: Vec<_> = model
            .seen
            .iter()
            .filter(|(_, seen)| inos.contains(&seen.ino) && seen.links > 0)
            .map(|(name, _)| name.clone())
            .collect();
        for name in same {
            let seen = Seen::of(&self.dir.join(&name));
            model.seen.insert(name, seen);
        }
    }

    fn name(&mut self) -> String {
        let dir = DIRS[self.random.below(6).saturating_sub(3) as usize];
        format!("{dir}n{}", self.random.below(NAMES))
    }

    /// One change.
    pub fn step(&mut self, model: &mut Model) {
        let (name, other) = (self.name(), self.name());
        let path = self.dir.join(&name);
        match model.names.get(&name).cloned() {
            None => self.make(model, &name, &path, &other),
            Some(Object::File(ino)) => match self.random.below(9) {
                0 => self.remove(model, &name, &path, ino),
                1 => self.rename(model, &name, &other),
                2 => self.change_attributes(&path, false),
                3 => self.copy_into(model, &path, ino, &other),
                _ => self.change_contents(model, &path, ino),
            },
            Some(Object::Link(_) | Object::Whiteout) => match self.random.below(3) {
                0 => self.rename(model, &name, &other),
                _ => {
                    fs::remove_file(&path).unwrap();
                    model.names.remove(&name);
                }
            },
            Some(Object::Dir) => match self.random.below(3) {
                0 => {
                    fs::remove_dir(&path).unwrap();
                    model.names.remove(&name);
                }
                1 => self.change_attributes(&path, true),
                _ => self.rename(model, &name, &other),
            },
        }
        self.forget_contents(model);
        self.see(model, &[&name, &other]);
    }

    fn make(&mut self, model: &mut Model, name: &str, path: &Path, other: &str) {
        let object = match self.random.below(12) {
            0 => {
                fs::create_dir(path).unwrap();
                Object::Dir
            }
            1 => {
                let target = "x".repeat(self.random.below(150) as usize + 1);
                symlink(&target, path).unwrap();
                Object::Link(target.into())
            }
            kind @ 2..5 => {
                let Some(&Object::File(ino)) = model.names.get(other) else {
                    return;
                };
                let from = self.dir.join(other);
                if kind == 2 {
                    fs::hard_link(from, path).unwrap();
                    Object::File(ino)
                } else {
                    fs::copy(from, path).unwrap();
                    let content = model.contents[&ino].clone();
                    self.made(model, path, content)
                }
            }
            5 => {
                self.open_unnamed(model);
                return;
            }
            6 => match self.link_unnamed(model, path) {
                Some(object) => object,
                None => return,
            },
            _ => {
                let content = self.bytes();
                fs::write(path, &content).unwrap();
                self.made(model, path, content)
            }
        };
        model.names.insert(name.to_owned(), object);
    }

    fn made(&self, model: &mut Model, path: &Path, content: Vec<u8>) -> Object {
        let ino = fs::metadata(path).unwrap().ino();
        model.contents.insert(ino, content);
        Object::File(ino)
    }

    fn open_unnamed(&mut self, model: &mut Model) {
        let content = self.bytes();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::TMPFILE.bits() as i32)
            .open(&self.dir)
            .unwrap();
        file.write_all_at(&content, 0).unwrap();
        self.keep_unnamed(model, file, content, true);
    }

    /// Gives a name to a file that had none, perhaps from a server before.
    fn link_unnamed(&self, model: &mut Model, path: &Path) -> Option<Object> {
        let at = model.unnamed.iter().position(|one| one.may_be_linked)?;
        let Unnamed { file, content, .. } = model.unnamed.swap_remove(at);
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW).unwrap();
        Some(self.made(model, path, content))
    }

    fn keep_unnamed(&mut self, model: &mut Model, file: File, content: Vec<u8>, linkable: bool) {
        if model.unnamed.len() > 3 {
            let at = self.random.below(3) as usize;
            model.unnamed.swap_remove(at);
        }
        model.unnamed.push(Unnamed {
            file,
            content,
            may_be_linked: linkable,
        });
    }

    fn remove(&mut self, model: &mut Model, name: &str, path: &Path, ino: u64) {
        let keeps = self.random.below(2) == 0 && fs::metadata(path).unwrap().nlink() == 1;
        let file = keeps.then(|| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap()
        });
        fs::remove_file(path).unwrap();
        model.names.remove(name);
        if let Some(file) = file {
            let mut content = model.contents[&ino].clone();
            let more = self.bytes();
            file.write_all_at(&more, content.len() as u64).unwrap();
            content.extend(more);
            self.keep_unnamed(model, file, content, false);
        }
    }

    fn rename(&mut self, model: &mut Model, name: &str, other: &str) {
        let fits = match (model.names.get(name), model.names.get(other)) {
            (_, None) => true,
            (Some(Object::Dir), Some(Object::Dir)) => true,
            (Some(Object::Dir), _) | (_, Some(Object::Dir)) => false,
            // A rename between two links of one file does nothing.
            (Some(Object::File(a)), Some(Object::File(b))) => a != b,
            _ => true,
        };
        if name == other || !fits {
            return;
        }
        let is_there = model.names.contains_key(other);
        let flags = match self.random.below(4) {
            0 if is_there => RenameFlags::EXCHANGE,
            1 => RenameFlags::WHITEOUT,
            _ => RenameFlags::empty(),
        };
        let (from, to) = (self.dir.join(name), self.dir.join(other));
        renameat_with(CWD, from, CWD, to, flags).unwrap();
        let object = model.names.remove(name).unwrap();
        let replaced = model.names.insert(other.to_owned(), object);
        let rest = match flags {
            RenameFlags::WHITEOUT => Some(Object::Whiteout),
            RenameFlags::EXCHANGE => replaced,
            _ => None,
        };
        if let Some(rest) = rest {
            model.names.insert(name.to_owned(), rest);
        }
    }

    /// An access control list: owner, a user, group, mask and others.
    fn acl(&mut self) -> Vec<u8> {
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, id) in [
            (1_u16, u32::MAX),
            (2, 1234),
            (4, u32::MAX),
            (16, u32::MAX),
            (32, u32::MAX),
        ] {
            let perm = if tag == 1 {
                7
            } else {
                self.random.below(8) as u16
            };
            list.extend_from_slice(&tag.to_le_bytes());
            list.extend_from_slice(&perm.to_le_bytes());
            list.extend_from_slice(&id.to_le_bytes());
        }
        list
    }

    fn change_attributes(&mut self, path: &Path, is_dir: bool) {
        let count = if is_dir { 3 } else { 2 };
        let attribute = ATTRIBUTES[self.random.below(count) as usize];
        match self.random.below(5) {
            0 => {
                let mode = 0o700 | self.random.below(0o100) as u32;
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
            1 => {
                // It may have none.
                let _ = removexattr(path, attribute);
            }
            2 => {
                let len = self.random.below(200) as usize;
                let value = match attribute {
                    "user.test" => self.random.bytes(len),
                    _ => self.acl(),
                };
                setxattr(path, attribute, &value, XattrFlags::empty()).unwrap();
            }
            3 => {
                let file = File::open(path).unwrap();
                let flag = [IFlags::NODUMP, IFlags::NOATIME, IFlags::SYNC];
                let flag = flag[self.random.below(3) as usize];
                ioctl_setflags(&file, ioctl_getflags(&file).unwrap() ^ flag).unwrap();
            }
            _ => {
                let time = std::time::UNIX_EPOCH + Duration::new(self.random.below(1 << 30), 123);
                // Of a directory, too.
                File::open(path).unwrap().set_modified(time).unwrap();
            }
        }
    }

    /// Copies over a part of a file.
    fn copy_into(&mut self, model: &mut Model, path: &Path, ino: u64, other: &str) {
        let Some(&Object::File(from)) = model.names.get(other) else {
            return;
        };
        let source = model.contents[&from].clone();
        let content = model.contents.get_mut(&ino).unwrap();
        if from == ino || source.is_empty() {
            return;
        }
        let start = self.random.below(source.len() as u64);
        let at = self.random.below(content.len() as u64 + 1);
        let len = self.random.below(source.len() as u64 - start) as usize + 1;
        let source_file = File::open(self.dir.join(other)).unwrap();
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let (mut from_at, mut to_at) = (start, at);
        let copied = copy_file_range(
            &source_file,
            Some(&mut from_at),
            &file,
            Some(&mut to_at),
            len,
        );
        let copied = copied.unwrap();
        let (start, at) = (start as usize, at as usize);
        content.resize(content.len().max(at + copied), 0);
        content[at..at + copied].copy_from_slice(&source[start..start + copied]);
    }

    /// Writes a file through a shared mapping, with msync(2) or without.
    fn write_mapped(&mut self, content: &mut [u8], path: &Path) {
        let pages = content.len() & !0xfff;
        let synced = self.random.below(2);
        succeed(
            "fio",
            [
                "--name=map",
                "--ioengine=mmap",
                "--thread",
                "--rw=write",
                "--bs=4k",
                "--fallocate=none",
                "--buffer_pattern=0xa5",
                &format!("--fsync={synced}"),
                &format!("--size={pages}"),
                &format!("--filename={}", path.display()),
            ],
        );
        content[..pages].fill(0xa5);
    }

    fn change_contents(&mut self, model: &mut Model, path: &Path, ino: u64) {
        let content = model.contents.get_mut(&ino).unwrap();
        if content.len() >= 4096 && self.random.below(200) == 0 {
            return self.write_mapped(content, path);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let len = content.len() as u64;
        match self.random.below(8) {
            0 => {
                let size = self.random.below(len + 5000);
                file.set_len(size).unwrap();
                content.resize(size as usize, 0);
            }
            kind @ 1..4 if len > 0 => {
                let at = self.random.below(len);
                let count = self.random.below(len - at) + 1;
                let mode = [
                    FallocateFlags::KEEP_SIZE,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                ][kind as usize - 1];
                // Not on every volume.
                if fallocate(&file, mode, at, count).is_ok() && kind > 1 {
                    content[at as usize..][..count as usize].fill(0);
                }
            }
            _ => {
                let bytes = self.bytes();
                let at = match self.random.below(2) {
                    0 if len < FILE_BYTES_MAX => len,
                    _ => self.random.below(len + 1),
                };
                file.write_all_at(&bytes, at).unwrap();
                let end = at as usize + bytes.len();
                content.resize(content.len().max(end), 0);
                content[at as usize..end].copy_from_slice(&bytes);
            }
        }
        if self.random.below(100) == 0 {
            file.sync_all().unwrap();
        }
    }

    fn forget_contents(&self, model: &mut Model) {
        let in_use: Vec<_> = model
            .names
            .values()
            .filter_map(|object| match object {
                Object::File(ino) => Some(*ino),
                _ => None,
            })
            .collect();
        model.contents.retain(|ino, _| in_use.contains(ino));
    }
}
