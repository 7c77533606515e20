//! Generates trees of files to copy, write and read back.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, lchown, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};

use crate::tree::set_xattr;

/// Limits of a torture tree; they depend on the volume.
#[derive(Clone, Copy, Debug)]
pub struct Torture {
    /// Block size of the volume in bytes: file sizes around multiples of it are generated.
    pub block: u64,
    /// Largest offset of data in sparse files.
    pub far: u64,
    /// Longest symbolic-link target.
    pub longest_link: usize,
    /// Largest size of all extended attributes of a file, in bytes.
    pub xattr_bytes: usize,
    /// Files in the large directory.
    pub many: u32,
}

/// Pseudo-random numbers, the same in each run.
pub struct Numbers(u64);

impl Numbers {
    /// The series of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend(self.number().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

/// Generates a tree with every difficult kind of file below `top`, which exists.
///
/// # Panics
/// If a file cannot be made.
#[track_caller]
pub fn torture(top: &Path, how: Torture) {
    let mut numbers = Numbers::new(42);
    sizes(&folder(top, "sizes"), how, &mut numbers);
    sparse(&folder(top, "sparse"), how, &mut numbers);
    names(&folder(top, "names"));
    links(&folder(top, "links"), how);
    nodes(&folder(top, "nodes"));
    attributes(&folder(top, "attributes"), how, &mut numbers);
    owners_and_times(&folder(top, "owners"));
    let many = folder(top, "many");
    for n in 0..how.many {
        write(&many.join(format!("entry number {n}")), b"");
    }
    // Leaves free slots in the directory.
    for n in (0..how.many).step_by(7) {
        fs::remove_file(many.join(format!("entry number {n}"))).unwrap();
    }
}

/// Generates a smaller tree of plain files and folders, like a program's sources.
///
/// # Panics
/// If a file cannot be made.
#[track_caller]
pub fn plain(top: &Path, seed: u64, files: u32) {
    let mut numbers = Numbers::new(seed);
    for n in 0..files {
        let dir = top.join(format!("d{}/e{}", numbers.below(10), numbers.below(10)));
        fs::create_dir_all(&dir).unwrap();
        let bits = numbers.below(17);
        let len = numbers.below(1 << bits);
        let bytes = numbers.bytes(usize::try_from(len).unwrap());
        write(&dir.join(format!("f{n}")), &bytes);
    }
}

fn folder(top: &Path, name: &str) -> std::path::PathBuf {
    let path = top.join(name);
    fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn sizes(dir: &Path, how: Torture, numbers: &mut Numbers) {
    let block = how.block;
    let per_block = block / 4; // Pointers in an indirect block.
    let edges = [1, block, 12 * block, (12 + per_block) * block];
    for edge in edges.into_iter().filter(|edge| *edge <= 8 << 20) {
        for size in [edge - 1, edge, edge + 1] {
            let bytes = numbers.bytes(usize::try_from(size).unwrap());
            write(&dir.join(format!("{size}")), &bytes);
        }
    }
    write(&dir.join("inline"), b"fits into the inode");
    let file = File::create(dir.join("scattered")).unwrap();
    // Written backwards in pieces with gaps: many extents.
    for n in (0..200).rev() {
        let bytes = numbers.bytes(usize::try_from(block).unwrap());
        file.write_all_at(&bytes, n * 2 * block).unwrap();
    }
}

fn sparse(dir: &Path, how: Torture, numbers: &mut Numbers) {
    let file = File::create(dir.join("only a hole")).unwrap();
    file.set_len(how.far).unwrap();
    let file = File::create(dir.join("far")).unwrap();
    for at in [0, 1 << 20, how.far / 2, how.far - 5] {
        file.write_all_at(b"here.", at).unwrap();
    }
    let file = File::create(dir.join("punched")).unwrap();
    file.write_all_at(&numbers.bytes(1 << 20), 0).unwrap();
    file.set_len(100_000).unwrap();
    file.set_len(200_000).unwrap();
}

fn names(dir: &Path) {
    write(&dir.join("n".repeat(255)), b"longest");
    write(&dir.join("n".repeat(254)), b"long");
    write(&dir.join("ü日本語 🦀"), b"letters");
    write(&dir.join("new\nline \\ \"quotes\" * ?"), b"odd");
    use std::os::unix::ffi::OsStrExt;
    let not_utf8 = std::ffi::OsStr::from_bytes(b"\xff\xfe\x80 bytes");
    write(&dir.join(not_utf8), b"bytes");
    for name in ["...", " ", "-rf", "~", "a.", ".hidden"] {
        write(&dir.join(name), name.as_bytes());
    }
    let mut deep = folder(dir, "deep");
    for n in 0..60 {
        deep = folder(&deep, &format!("level {n} {}", "x".repeat(40)));
    }
    write(&deep.join("bottom"), b"here");
}

fn links(dir: &Path, how: Torture) {
    // Targets of up to 59 bytes are stored in the inode, longer ones in a block.
    for len in [1, 58, 59, 60, 61, how.longest_link] {
        symlink("t".repeat(len), dir.join(format!("to {len}"))).unwrap();
    }
    write(&dir.join("one"), b"one");
    for n in 0..50 {
        fs::hard_link(dir.join("one"), dir.join(format!("one again {n}"))).unwrap();
    }
    fs::hard_link(dir.join("to 60"), dir.join("link to a link")).unwrap();
}

fn nodes(dir: &Path) {
    let make = |name: &str, kind, device| {
        rustix::fs::mknodat(
            CWD,
            dir.join(name),
            kind,
            Mode::from_raw_mode(0o640),
            device,
        )
        .unwrap();
    };
    make("char", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    make(
        "char big",
        FileType::CharacterDevice,
        rustix::fs::makedev(300, 70_000),
    );
    make("block", FileType::BlockDevice, rustix::fs::makedev(8, 255));
    make("pipe", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
}

fn attributes(dir: &Path, how: Torture, numbers: &mut Numbers) {
    let file = |name: &str| {
        let path = dir.join(name);
        write(&path, name.as_bytes());
        path
    };
    set_xattr(&file("small"), "user.a", b"b");
    set_xattr(&file("empty value"), "user.empty", b"");
    let several = file("several");
    for n in 0..5 {
        set_xattr(&several, &format!("user.name{n}"), &[b'0' + n; 20]);
    }
    set_xattr(&several, "trusted.t", b"for root");
    set_xattr(
        &file("block"),
        "user.big",
        &numbers.bytes(how.xattr_bytes.min(700)),
    );
    if how.xattr_bytes > 700 {
        set_xattr(&file("full"), "user.big", &numbers.bytes(how.xattr_bytes));
        // The same attribute block, which the volume may share between files.
        let value = numbers.bytes(600);
        for n in 0..5 {
            set_xattr(&file(&format!("shared {n}")), "user.same", &value);
        }
    }
    set_xattr(&file("capable"), "security.capability", CAPABILITY);
    let acl = acl(&[
        (1, 6, NO_ID),
        (2, 4, 1000),
        (4, 4, NO_ID),
        (16, 4, NO_ID),
        (32, 0, NO_ID),
    ]);
    set_xattr(&file("acl"), "system.posix_acl_access", &acl);
    let inherited = folder(dir, "default acl");
    set_xattr(&inherited, "system.posix_acl_default", &acl);
    write(&inherited.join("child"), b"inherits");
    folder(&inherited, "child folder");
}

/// cap_net_raw+ep, in revision 2 of the format (linux/capability.h).
const CAPABILITY: &[u8] = &[
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];
const NO_ID: u32 = u32::MAX;

/// A POSIX ACL as in the attributes system.posix_acl_* (linux/posix_acl_xattr.h): version 2, then tag, permissions and
/// id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = Vec::from(2u32.to_le_bytes());
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

fn owners_and_times(dir: &Path) {
    let modes = [0o0, 0o777, 0o4755, 0o2755, 0o1777, 0o7000, 0o640];
    for mode in modes {
        let path = dir.join(format!("mode {mode:o}"));
        write(&path, b"");
        chmod(&path, mode);
        let folder = folder(dir, &format!("folder {mode:o}"));
        chmod(&folder, mode);
    }
    for (n, (uid, gid)) in [(0, 1), (65_535, 65_536), (4_000_000_000, 12)]
        .iter()
        .enumerate()
    {
        let path = dir.join(format!("owner {n}"));
        write(&path, b"");
        lchown(&path, Some(*uid), Some(*gid)).unwrap();
        let link = dir.join(format!("link of {n}"));
        symlink("x", &link).unwrap();
        lchown(&link, Some(*uid), Some(*gid)).unwrap();
    }
    // Before 1970, the last second of 31 bits, beyond it, and with nanoseconds. Volumes with small inodes store what
    // fits.
    for (n, secs) in [-1_000_000, 0, 2_147_483_647, 2_147_483_648, 7_000_000_000]
        .iter()
        .enumerate()
    {
        let path = dir.join(format!("time {n}"));
        write(&path, b"");
        let time = |tv_nsec| Timespec {
            tv_sec: *secs,
            tv_nsec,
        };
        let times = Timestamps {
            last_access: time(1),
            last_modification: time(999_999_999),
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

fn chmod(path: &Path, mode: u32) {
    rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty()).unwrap();
}

/// Appends to the file at `path` and syncs it.
///
/// # Errors
/// The first failure.
pub fn append_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::options().append(true).create(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
