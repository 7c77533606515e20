//! Random calls, recorded as a server records them: what a call involves before it, what it has left after it.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_conformance::Kind;
use steadfs_rt::{Random, sleep};
use steadfs_vfs::{
    Attr, Cx, FallocMode, FileKind, FileSystem, InodeFlags, RenameFlags, SetAttr, SetTime,
    SetXattr, test_support,
};

use crate::model::{HINTS, Model, SETTABLE_HINTS};

const CAPABILITY: &[u8] = b"security.capability";
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

pub struct Actor {
    fs: Arc<dyn FileSystem>,
    kind: &'static Kind,
    cx: Cx,
    pub random: Random,
    pub model: Model,
    root: InodeNo,
}

impl Actor {
    pub fn new(fs: Arc<dyn FileSystem>, kind: &'static Kind, seed: u64) -> Self {
        let mut model = Model::default();
        let (root, cx) = (fs.root(), Cx::default());
        let names = test_support::names(&*fs, &cx, root);
        model.touch(&*fs, root);
        for name in names {
            let ino = test_support::lookup(&*fs, &cx, root, &name).unwrap().ino;
            model.touch(&*fs, ino);
            model.name(root, &name, Some(ino));
        }
        for file in model.files.values_mut() {
            file.lookups = 0;
        }
        let cx = Cx {
            fsetid: true,
            ..Cx::default()
        };
        Self {
            fs,
            kind,
            cx,
            random: Random::new(seed),
            model,
            root,
        }
    }

    fn pick(&mut self, which: impl Fn(&Attr) -> bool) -> Option<InodeNo> {
        let files = self.model.files.iter();
        let all: Vec<_> = files.filter(|(_, file)| which(&file.attr)).collect();
        let n = self.random.below(all.len().max(1));
        all.get(n).map(|(ino, _)| **ino)
    }

    fn dir(&mut self) -> InodeNo {
        let lost_found = self.model.names.get(&(self.root, b"lost+found".to_vec()));
        let lost_found = lost_found.copied();
        self.pick(|attr| {
            attr.kind == FileKind::Directory && attr.nlink > 0 && Some(attr.ino) != lost_found
        })
        .unwrap()
    }

    fn new_name(&mut self) -> Vec<u8> {
        let n = self.random.below(24);
        match self.random.below(5) {
            0 => format!("{n}{}", "x".repeat(100 + 4 * n)).into_bytes(),
            _ => format!("n{n}").into_bytes(),
        }
    }

    /// An existing name that is not `lost+found`.
    fn name(&mut self) -> Option<(InodeNo, Vec<u8>)> {
        let names = self.model.names.keys();
        let all: Vec<_> = names.filter(|(_, name)| name != b"lost+found").collect();
        let n = self.random.below(all.len().max(1));
        all.get(n).map(|name| (*name).clone())
    }

    fn regular(&mut self) -> Option<InodeNo> {
        self.pick(|attr| attr.kind == FileKind::Regular)
    }

    /// Root, or a user without privileges.
    fn caller(&mut self) -> Cx {
        match self.random.below(3) {
            0 => Cx {
                uid: 1000,
                gid: 1000,
                umask: 0o027,
                ..Cx::default()
            },
            _ => self.cx.clone(),
        }
    }

    /// What other calls than those for extended attributes change of them.
    fn read_xattrs(&mut self, ino: InodeNo) {
        for name in [CAPABILITY, ACCESS_ACL] {
            self.model.read_xattr(&*self.fs, ino, name);
        }
    }

    /// The caller refers to every inode, as the kernel does for those that a call involves.
    pub fn attach_all(&mut self) {
        for (ino, file) in &mut self.model.files {
            if file.lookups == 0 && self.fs.attach(&self.cx, *ino).is_ok() {
                file.lookups = 1;
            }
        }
    }

    /// A random call that changes names.
    pub fn unfinished(&mut self) {
        match self.random.below(6) {
            0 => self.create(),
            1 => self.make_dir(),
            2 | 3 => self.rename(),
            4 => self.remove(),
            _ => self.link(),
        }
    }

    /// One random call.
    pub fn step(&mut self) {
        match self.random.below(46) {
            0..=7 => self.create(),
            8..=9 => self.many(),
            10..=12 => self.make_dir(),
            13..=16 => self.rename(),
            17..=19 => self.remove(),
            20 => self.link(),
            21 => self.tmpfile(),
            22..=26 => self.write(),
            27..=28 => self.resize(),
            29..=30 => self.range(),
            31..=32 => self.xattr(),
            33 => self.attributes(),
            34 => self.flags(),
            35..=36 => self.forget(),
            37 => self.fsync(),
            38..=40 => self.copy(),
            41..=42 => self.acl(),
            43 => match self.kind.is_ext() || self.random.chance(512) {
                true => self.capability(),
                false => self.hints(),
            },
            44 => sleep(Duration::from_secs(self.random.below(40) as u64)),
            _ => {
                if self.random.chance(300) {
                    self.fs.sync_all(&self.cx).unwrap();
                }
            }
        }
    }

    fn made(&mut self, attr: &Attr, target: Option<Vec<u8>>) {
        self.model.touch(&*self.fs, attr.ino);
        self.model.files.get_mut(&attr.ino).unwrap().target = target;
        // What it has inherited.
        for name in self.fs.listxattr(&self.cx, attr.ino).unwrap() {
            self.model.read_xattr(&*self.fs, attr.ino, &name);
        }
    }

    fn create(&mut self) {
        let (dir, name) = (self.dir(), self.new_name());
        self.create_at(dir, &name);
    }

    fn create_at(&mut self, dir: InodeNo, name: &[u8]) {
        self.model.touch_name(dir, name);
        self.model.touch(&*self.fs, dir);
        let (mut target, cx) = (None, self.caller());
        let made = match self.random.below(8) {
            0 => {
                let n = 1 + self.random.below(200);
                target = Some(vec![b't'; n]);
                self.fs.symlink(&cx, dir, name, target.as_ref().unwrap())
            }
            1 => {
                let mode = [0o010_640, 0o020_600, 0o140_700][self.random.below(3)];
                let rdev = match mode & 0o170_000 {
                    0o020_000 => self.random.below(100_000) as u32,
                    _ => 0,
                };
                self.fs.mknod(&cx, dir, name, mode, rdev)
            }
            _ => self.fs.mknod(&cx, dir, name, 0o100_644, 0),
        };
        if let Ok(attr) = made {
            self.model.name(dir, name, Some(attr.ino));
            self.made(&attr, target);
            self.model.touch(&*self.fs, dir);
        }
    }

    fn many(&mut self) {
        let dir = self.dir();
        let (first, count) = (self.random.below(1000), self.random.below(60));
        for n in first..first + count {
            self.create_at(dir, format!("many-{n}").as_bytes());
        }
    }

    fn make_dir(&mut self) {
        let (dir, name) = (self.dir(), self.new_name());
        self.model.touch_name(dir, &name);
        self.model.touch(&*self.fs, dir);
        let cx = self.caller();
        if let Ok(attr) = self.fs.mkdir(&cx, dir, &name, 0o2755) {
            self.model.name(dir, &name, Some(attr.ino));
            self.made(&attr, None);
            self.model.touch(&*self.fs, dir);
        }
    }

    fn rename(&mut self) {
        let Some((from_dir, from)) = self.name() else {
            return;
        };
        let (to_dir, to) = match self.random.below(3) {
            0 => self.name().unwrap(),
            _ => (self.dir(), self.new_name()),
        };
        let exchange = self.random.chance(200);
        let flags = RenameFlags {
            exchange,
            whiteout: !exchange && self.random.chance(200),
            ..RenameFlags::default()
        };
        let old = self.model.names[&(from_dir, from.clone())];
        let replaced = self.model.names.get(&(to_dir, to.clone())).copied();
        self.model.touch_name(from_dir, &from);
        self.model.touch_name(to_dir, &to);
        let all = [Some(from_dir), Some(to_dir), Some(old), replaced];
        let all: Vec<InodeNo> = all.into_iter().flatten().collect();
        for ino in &all {
            self.model.touch(&*self.fs, *ino);
        }
        let ends = ((from_dir, &from[..]), (to_dir, &to[..]));
        let renamed = self.fs.rename(&self.cx, ends.0, ends.1, flags);
        if renamed.is_ok() && Some(old) != replaced {
            let rest = match flags.whiteout {
                true => Some(self.whiteout(from_dir, &from)),
                false => replaced.filter(|_| flags.exchange),
            };
            self.model.name(from_dir, &from, rest);
            self.model.name(to_dir, &to, Some(old));
        }
        for ino in &all {
            self.model.touch(&*self.fs, *ino);
        }
    }

    /// The inode that a rename has left at the old name.
    fn whiteout(&mut self, dir: InodeNo, name: &[u8]) -> InodeNo {
        let attr = self.fs.lookup(&self.cx, dir, name).unwrap();
        self.fs.forget(attr.ino, 1);
        self.made(&attr, None);
        self.model.files.get_mut(&attr.ino).unwrap().lookups = 0;
        attr.ino
    }

    fn remove(&mut self) {
        let Some((dir, name)) = self.name() else {
            return;
        };
        let ino = self.model.names[&(dir, name.clone())];
        self.model.touch_name(dir, &name);
        self.model.touch(&*self.fs, dir);
        self.model.touch(&*self.fs, ino);
        let removed = match self.model.files[&ino].attr.kind {
            FileKind::Directory => self.fs.rmdir(&self.cx, dir, &name),
            _ => self.fs.unlink(&self.cx, dir, &name),
        };
        if removed.is_ok() {
            self.model.name(dir, &name, None);
        }
        self.model.touch(&*self.fs, dir);
        self.model.touch(&*self.fs, ino);
    }

    fn link(&mut self) {
        let Some(ino) = self.pick(|attr| attr.kind != FileKind::Directory) else {
            return;
        };
        let (dir, name) = (self.dir(), self.new_name());
        self.model.touch_name(dir, &name);
        self.model.touch(&*self.fs, dir);
        self.model.touch(&*self.fs, ino);
        if self.fs.link(&self.cx, ino, dir, &name).is_ok() {
            self.fs.forget(ino, 1);
            self.model.name(dir, &name, Some(ino));
        }
        self.model.touch(&*self.fs, dir);
        self.model.touch(&*self.fs, ino);
    }

    fn tmpfile(&mut self) {
        let dir = self.dir();
        let cx = self.caller();
        if let Ok(attr) = self.fs.tmpfile(&cx, dir, 0o600) {
            self.made(&attr, None);
            self.model.files.get_mut(&attr.ino).unwrap().linkable = true;
        }
    }

    fn offset(&mut self, ino: InodeNo) -> u64 {
        let size = self.model.files[&ino].content.len();
        let near = size + 3 * self.kind.block as usize;
        match self.random.below(12) {
            0 => self.random.below(6_000_000) as u64,
            1..=3 => size as u64,
            _ => self.random.below(near) as u64,
        }
    }

    fn length(&mut self) -> usize {
        match self.random.below(10) {
            0 => 1 + self.random.below(200_000),
            _ => 1 + self.random.below(9000),
        }
    }

    fn write(&mut self) {
        let Some(ino) = self.regular() else { return };
        let (offset, len) = (self.offset(ino), self.length());
        let byte = 1 + self.random.below(255) as u8;
        let data: Vec<u8> = (0..len).map(|n| byte ^ (n / 512) as u8).collect();
        self.model.touch(&*self.fs, ino);
        let cx = self.caller();
        if let Ok(written) = self.fs.write(&cx, ino, offset, &data, !cx.fsetid) {
            self.model.write(ino, offset, &data[..written]);
        }
        self.read_xattrs(ino);
        self.model.touch(&*self.fs, ino);
    }

    fn resize(&mut self) {
        let Some(ino) = self.regular() else { return };
        let size = match self.random.below(4) {
            0 => 0,
            _ => self.offset(ino),
        };
        let cx = self.caller();
        let set = SetAttr {
            size: Some(size),
            kill_priv: !cx.fsetid,
            ..SetAttr::default()
        };
        self.model.touch(&*self.fs, ino);
        if self.fs.setattr(&cx, ino, &set).is_ok() {
            self.model.resize(ino, size);
        }
        self.read_xattrs(ino);
        self.model.touch(&*self.fs, ino);
    }

    fn range(&mut self) {
        let Some(ino) = self.regular() else { return };
        let keep_size = self.random.chance(512);
        let mode = match self.random.below(3) {
            0 => FallocMode::Allocate { keep_size },
            1 => FallocMode::ZeroRange { keep_size },
            _ => FallocMode::PunchHole,
        };
        let (offset, len) = (self.offset(ino), self.length() as u64);
        self.model.touch(&*self.fs, ino);
        let cx = self.caller();
        if self.fs.fallocate(&cx, ino, mode, offset, len).is_ok() {
            self.model.range(ino, mode, offset, len);
        }
        self.read_xattrs(ino);
        self.model.touch(&*self.fs, ino);
    }

    /// Copies over whatever is there. The record has the bytes that were copied.
    fn copy(&mut self) {
        let has_data = |attr: &Attr| attr.kind == FileKind::Regular && attr.size > 0;
        let (Some(from), Some(to)) = (self.pick(has_data), self.pick(has_data)) else {
            return;
        };
        let size = self.model.files[&from].content.len();
        let (start, at) = (self.random.below(size) as u64, self.offset(to));
        let len = self.length();
        if from == to && start.abs_diff(at) < len as u64 {
            return;
        }
        self.model.touch(&*self.fs, to);
        let cx = self.caller();
        let copied = (self.fs).copy_range(&cx, (from, start), (to, at), len as u64);
        if let Ok(copied @ 1..) = copied {
            let source = &self.model.files[&from].content[start as usize..];
            let bytes = source[..copied as usize].to_vec();
            self.model.write(to, at, &bytes);
        }
        self.read_xattrs(to);
        self.model.touch(&*self.fs, to);
        self.model.touch(&*self.fs, from);
    }

    fn acl(&mut self) {
        let files = |attr: &Attr| matches!(attr.kind, FileKind::Regular | FileKind::Directory);
        let Some(ino) = self.pick(files) else { return };
        let is_dir = self.model.files[&ino].attr.kind == FileKind::Directory;
        let name = match is_dir && self.random.chance(600) {
            true => DEFAULT_ACL,
            false => ACCESS_ACL,
        };
        // Owner, perhaps a user, group, perhaps a mask, others.
        let named = self.random.chance(800);
        let mut list = 2_u32.to_le_bytes().to_vec();
        for tag in [1_u16, 2, 4, 16, 32] {
            if !named && [2, 16].contains(&tag) {
                continue;
            }
            let id = if tag == 2 { 1000 } else { u32::MAX };
            list.extend_from_slice(&tag.to_le_bytes());
            list.extend_from_slice(&(self.random.below(8) as u16).to_le_bytes());
            list.extend_from_slice(&id.to_le_bytes());
        }
        self.model.touch(&*self.fs, ino);
        let cx = self.caller();
        let _ = match self.random.chance(250) {
            true => self.fs.removexattr(&cx, ino, name),
            false => self.fs.setxattr(&cx, ino, name, &list, SetXattr::Any),
        };
        self.model.read_xattr(&*self.fs, ino, name);
        self.model.touch(&*self.fs, ino);
    }

    fn capability(&mut self) {
        let Some(ino) = self.regular() else { return };
        let mut value = 0x0200_0001_u32.to_le_bytes().to_vec();
        value.resize(20, 1);
        self.model.touch(&*self.fs, ino);
        let _ = (self.fs).setxattr(&self.cx, ino, CAPABILITY, &value, SetXattr::Any);
        self.model.read_xattr(&*self.fs, ino, CAPABILITY);
        self.model.touch(&*self.fs, ino);
    }

    fn hints(&mut self) {
        let is_open = |attr: &Attr| {
            let sealed = [InodeFlags::IMMUTABLE, InodeFlags::APPEND];
            sealed.iter().all(|flag| !attr.flags.contains(*flag))
        };
        let Some(ino) = self.pick(is_open) else {
            return;
        };
        let hints = [self.random.below(256) as u8 & SETTABLE_HINTS];
        self.model.touch(&*self.fs, ino);
        let set = (self.fs).setxattr(&self.cx, ino, HINTS, &hints, SetXattr::Any);
        set.unwrap_or_else(|error| panic!("{error}"));
        self.model.read_xattr(&*self.fs, ino, HINTS);
        self.model.touch(&*self.fs, ino);
    }

    fn xattr(&mut self) {
        let files = |attr: &Attr| matches!(attr.kind, FileKind::Regular | FileKind::Directory);
        let Some(ino) = self.pick(files) else { return };
        let prefix = ["user", "trusted", "security"][self.random.below(3)];
        let name = format!("{prefix}.a{}", self.random.below(4)).into_bytes();
        self.model.touch(&*self.fs, ino);
        let done = if self.random.chance(300) {
            let removed = self.fs.removexattr(&self.cx, ino, &name);
            removed.map(|()| None)
        } else {
            let value = vec![self.random.below(256) as u8; self.random.below(150)];
            let set = (self.fs).setxattr(&self.cx, ino, &name, &value, SetXattr::Any);
            set.map(|()| Some(value))
        };
        if let Ok(value) = done {
            self.model.xattr(ino, &name, value.as_deref());
        }
        self.model.touch(&*self.fs, ino);
    }

    fn attributes(&mut self) {
        let Some(ino) = self.pick(|_| true) else {
            return;
        };
        let mut number = |n| Some(self.random.below(n) as u32);
        let set = SetAttr {
            perm: number(0o10000),
            uid: number(3),
            gid: number(3),
            mtime: number(1 << 30).map(|secs| {
                SetTime::At(Timestamp {
                    secs: secs.into(),
                    nanos: 5,
                })
            }),
            ..SetAttr::default()
        };
        self.model.touch(&*self.fs, ino);
        let cx = self.caller();
        let _ = self.fs.setattr(&cx, ino, &set);
        self.read_xattrs(ino);
        self.model.touch(&*self.fs, ino);
    }

    fn flags(&mut self) {
        let files = |attr: &Attr| matches!(attr.kind, FileKind::Regular | FileKind::Directory);
        let Some(ino) = self.pick(files) else { return };
        let flags = [
            InodeFlags::IMMUTABLE,
            InodeFlags::APPEND,
            InodeFlags::NODUMP,
            InodeFlags::NOATIME,
            InodeFlags::SYNC,
            InodeFlags::DIRSYNC,
            InodeFlags::PROJINHERIT,
        ];
        let is_dir = self.model.files[&ino].attr.kind == FileKind::Directory;
        let flag = flags[self.random.below(if is_dir { 7 } else { 5 })];
        let old = self.model.files[&ino].flags.flags;
        self.model.touch(&*self.fs, ino);
        let set = (self.fs).set_flags(&self.cx, ino, InodeFlags(old.0 ^ flag.0));
        set.unwrap_or_else(|error| panic!("{error}"));
        self.model.touch(&*self.fs, ino);
    }

    fn forget(&mut self) {
        if let Some(ino) = self.pick(|_| true)
            && self.model.files[&ino].lookups > 0
        {
            self.model.forget(&*self.fs, ino);
        }
    }

    fn fsync(&mut self) {
        if let Some(ino) = self.pick(|_| true) {
            let datasync = self.random.chance(512);
            self.fs.fsync(&self.cx, ino, datasync).unwrap();
        }
    }
}
