//! A process with the credentials of one user, which makes calls on two volumes and reports both answers.
//!
//! A call is a line of words. The process is this test program itself: credentials and the umask belong to a process,
//! and a driver with all rights compares what each one leaves behind.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec,
    Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags, makedev,
};
use rustix::io::{Errno, Result};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::acl;
use super::ops::USERS;

/// Number of the user in [`USERS`].
const USER: &str = "STEADFS_TEST_USER";
/// The two volumes, separated by a colon.
const VOLUMES: &str = "STEADFS_TEST_VOLUMES";
/// Precedes the answers, since the test harness prints lines of its own.
const MARK: char = '@';

/// The driver's end of a process.
pub struct Actor {
    process: Child,
    calls: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts the process of a user, which will run `test`.
    pub fn start(test: &str, user: usize, volumes: [&Path; 2]) -> Self {
        let [one, other] = volumes.map(|path| path.to_str().unwrap());
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--quiet"])
            .env(USER, user.to_string())
            .env(VOLUMES, format!("{one}:{other}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let calls = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self {
            process,
            calls,
            answers,
        }
    }

    /// Makes a call in the folder `case` of both volumes; returns the answers.
    pub fn call(&mut self, case: &str, call: &str) -> [String; 2] {
        let mut calls = self.calls.as_ref().unwrap();
        writeln!(calls, "{case} {call}").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            let count = self.answers.read_line(&mut line).unwrap();
            assert!(count > 0, "the process ended at: {call}");
            if let Some(answers) = line.trim_end_matches('\n').strip_prefix(MARK) {
                let (one, other) = answers.split_once('\t').unwrap();
                return [one, other].map(str::to_owned);
            }
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // The process ends with its input.
        drop(self.calls.take());
        let _ = self.process.wait();
    }
}

/// The work of the process, if this is one.
pub fn serve() {
    let Ok(user) = std::env::var(USER) else {
        return;
    };
    let user = &USERS[user.parse::<usize>().unwrap()];
    let volumes = std::env::var(VOLUMES).unwrap();
    let (one, other) = volumes.split_once(':').unwrap();
    let groups: Vec<_> = user.groups.iter().map(|id| Gid::from_raw(*id)).collect();
    let (uid, gid) = (Uid::from_raw(user.id), Gid::from_raw(user.id));
    set_thread_groups(&groups).unwrap();
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
    let mut held = [None, None];
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let mut answer = |volume: &str, slot: usize| {
            let place = Path::new(volume).join(words[0]);
            let held = &mut held[slot];
            match (Caller { place, held }).call(&words[1..]) {
                Ok(text) => format!("ok {text}"),
                Err(error) => std::io::Error::from(error).to_string(),
            }
        };
        let answers = [answer(one, 0), answer(other, 1)];
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{MARK}{}\t{}", answers[0], answers[1]).unwrap();
        out.flush().unwrap();
    }
}

/// Where calls are made.
struct Caller<'a> {
    place: PathBuf,
    /// The file that `hold` opened.
    held: &'a mut Option<OwnedFd>,
}

fn number(word: &str) -> u32 {
    word.parse().unwrap()
}

fn mode(word: &str) -> Mode {
    Mode::from_raw_mode(u32::from_str_radix(word, 8).unwrap())
}

/// A user or group; `-` leaves it as it is.
fn owner(word: &str) -> Option<u32> {
    (word != "-").then(|| number(word))
}

fn nofollow(word: &str) -> AtFlags {
    match word {
        "follow" => AtFlags::empty(),
        _ => AtFlags::SYMLINK_NOFOLLOW,
    }
}

/// Flags of open(2) by letters. A pipe without a partner does not block.
fn flags(word: &str) -> OFlags {
    let always = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    word.chars().fold(always, |all, letter| {
        all | match letter {
            'r' => OFlags::RDONLY,
            'w' => OFlags::WRONLY,
            'b' => OFlags::RDWR,
            'a' => OFlags::APPEND,
            'c' => OFlags::CREATE,
            'x' => OFlags::EXCL,
            't' => OFlags::TRUNC,
            'n' => OFlags::NOFOLLOW,
            'd' => OFlags::DIRECTORY,
            'o' => OFlags::NOATIME,
            _ => panic!("flag {letter}"),
        }
    })
}

fn bytes(word: &str) -> Vec<u8> {
    vec![b'x'; word.parse().unwrap()]
}

impl Caller<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    fn call(&mut self, words: &[&str]) -> Result<String> {
        let done = |result: Result<()>| result.map(|()| String::new());
        match *words {
            ["umask", mask] => {
                rustix::process::umask(mode(mask));
                Ok(String::new())
            }
            ["open", name, letters, perm, len] => {
                let file = rustix::fs::open(self.at(name), flags(letters), mode(perm))?;
                use_file(&file, letters, len)
            }
            ["mkdir", name, perm] => done(rustix::fs::mkdir(self.at(name), mode(perm))),
            ["mknod", name, kind, perm] => {
                let (kind, device) = node(kind);
                done(rustix::fs::mknodat(
                    CWD,
                    self.at(name),
                    kind,
                    mode(perm),
                    device,
                ))
            }
            ["tmpfile", dir, perm, name] => self.tmpfile(dir, perm, name),
            ["symlink", target, name] => done(rustix::fs::symlink(target, self.at(name))),
            ["unlink", name] => done(rustix::fs::unlink(self.at(name))),
            ["rmdir", name] => done(rustix::fs::rmdir(self.at(name))),
            ["link", from, to, how] => {
                let how = match how {
                    "follow" => AtFlags::SYMLINK_FOLLOW,
                    _ => AtFlags::empty(),
                };
                done(rustix::fs::linkat(
                    CWD,
                    self.at(from),
                    CWD,
                    self.at(to),
                    how,
                ))
            }
            ["rename", from, to, how] => {
                let how = match how {
                    "replace" => RenameFlags::empty(),
                    "noreplace" => RenameFlags::NOREPLACE,
                    "exchange" => RenameFlags::EXCHANGE,
                    _ => RenameFlags::WHITEOUT,
                };
                done(rustix::fs::renameat_with(
                    CWD,
                    self.at(from),
                    CWD,
                    self.at(to),
                    how,
                ))
            }
            _ => self.attributes(words),
        }
    }

    fn attributes(&mut self, words: &[&str]) -> Result<String> {
        let done = |result: Result<()>| result.map(|()| String::new());
        match *words {
            ["chmod", name, perm] => done(rustix::fs::chmod(self.at(name), mode(perm))),
            ["chown", name, uid, gid, how] => {
                let (uid, gid) = (owner(uid).map(Uid::from_raw), owner(gid).map(Gid::from_raw));
                let place = self.at(name);
                done(rustix::fs::chownat(CWD, place, uid, gid, nofollow(how)))
            }
            ["utimes", name, atime, mtime, how] => {
                let times = Timestamps {
                    last_access: time(atime),
                    last_modification: time(mtime),
                };
                done(rustix::fs::utimensat(
                    CWD,
                    self.at(name),
                    &times,
                    nofollow(how),
                ))
            }
            ["access", name, letters] => {
                let wanted = letters.chars().fold(Access::EXISTS, |all, letter| {
                    all | match letter {
                        'r' => Access::READ_OK,
                        'w' => Access::WRITE_OK,
                        'x' => Access::EXEC_OK,
                        _ => Access::EXISTS,
                    }
                });
                done(rustix::fs::access(self.at(name), wanted))
            }
            ["stat", name, how] => stat(&self.at(name), nofollow(how)),
            ["readlink", name] => {
                let target = rustix::fs::readlink(self.at(name), Vec::new())?;
                Ok(target.to_str().unwrap().to_owned())
            }
            ["list", name] => {
                let entries = fs::read_dir(self.at(name)).map_err(|e| errno(&e))?;
                let mut names: Vec<_> = entries
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect();
                names.sort();
                Ok(names.join(","))
            }
            _ => self.content(words),
        }
    }

    fn content(&mut self, words: &[&str]) -> Result<String> {
        match *words {
            ["allocate", name, how, offset, len] => {
                let file = rustix::fs::open(self.at(name), flags("b"), Mode::empty())?;
                let how = match how {
                    "punch" => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    "zero" => FallocateFlags::ZERO_RANGE,
                    _ => FallocateFlags::empty(),
                };
                let (offset, len) = (number(offset).into(), number(len).into());
                rustix::fs::fallocate(file, how, offset, len)?;
                Ok(String::new())
            }
            ["copy", from, to] => {
                let from = rustix::fs::open(self.at(from), flags("r"), Mode::empty())?;
                let to = rustix::fs::open(self.at(to), flags("w"), Mode::empty())?;
                let count = rustix::fs::copy_file_range(from, None, to, None, 4096)?;
                Ok(count.to_string())
            }
            ["hold", name, letters] => {
                *self.held = None;
                let file = rustix::fs::open(self.at(name), flags(letters), Mode::empty())?;
                *self.held = Some(file);
                Ok(String::new())
            }
            ["held", ref call @ ..] => match self.held {
                Some(file) => on_held(file, call),
                None => Ok("nothing is held".to_owned()),
            },
            _ => self.xattrs(words),
        }
    }

    fn xattrs(&self, words: &[&str]) -> Result<String> {
        let mut buffer = vec![0; 4096];
        let how = |word| match word {
            "create" => XattrFlags::CREATE,
            "replace" => XattrFlags::REPLACE,
            _ => XattrFlags::empty(),
        };
        match *words {
            ["setx", place, name, value, flag, link] => {
                let (place, value) = (self.at(place), value_of(value));
                match link {
                    "follow" => rustix::fs::setxattr(place, name, &value, how(flag)),
                    _ => rustix::fs::lsetxattr(place, name, &value, how(flag)),
                }
                .map(|()| String::new())
            }
            ["removex", place, name, link] => match link {
                "follow" => rustix::fs::removexattr(self.at(place), name),
                _ => rustix::fs::lremovexattr(self.at(place), name),
            }
            .map(|()| String::new()),
            ["getx", place, name] => {
                let len = rustix::fs::getxattr(self.at(place), name, &mut buffer[..])?;
                Ok(format!("{:?}", buffer[..len].escape_ascii().to_string()))
            }
            ["listx", place] => {
                let len = rustix::fs::listxattr(self.at(place), &mut buffer[..])?;
                let mut names: Vec<_> = buffer[..len]
                    .split(|&byte| byte == 0)
                    .map(|name| name.escape_ascii().to_string())
                    .collect();
                names.sort();
                Ok(names.join(" "))
            }
            _ => panic!("{words:?}"),
        }
    }

    /// Makes a file without a name, and a name for it unless that is `-`.
    fn tmpfile(&self, dir: &str, perm: &str, name: &str) -> Result<String> {
        let how = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.at(dir), how, mode(perm))?;
        if name != "-" {
            rustix::fs::linkat(file, "", CWD, self.at(name), AtFlags::EMPTY_PATH)?;
        }
        Ok(String::new())
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap()
}

/// Reads or writes a file as it was opened.
fn use_file(file: &OwnedFd, letters: &str, len: &str) -> Result<String> {
    if len == "0" || letters.contains('d') {
        return Ok(String::new());
    }
    let count = match letters.contains(['w', 'b']) {
        true => rustix::io::write(file, &bytes(len))?,
        false => rustix::io::read(file, &mut vec![0_u8; 8192][..])?,
    };
    Ok(count.to_string())
}

fn on_held(file: &OwnedFd, words: &[&str]) -> Result<String> {
    let done = |result: Result<()>| result.map(|()| String::new());
    match *words {
        ["write", offset, len] => {
            let count = rustix::io::pwrite(file, &bytes(len), number(offset).into())?;
            Ok(count.to_string())
        }
        ["truncate", size] => done(rustix::fs::ftruncate(file, number(size).into())),
        ["chmod", perm] => done(rustix::fs::fchmod(file, mode(perm))),
        ["chown", uid, gid] => {
            let (uid, gid) = (owner(uid).map(Uid::from_raw), owner(gid).map(Gid::from_raw));
            done(rustix::fs::fchown(file, uid, gid))
        }
        ["setx", name, value] => {
            let how = XattrFlags::empty();
            done(rustix::fs::fsetxattr(file, name, &value_of(value), how))
        }
        ["stat"] => {
            let found = rustix::fs::fstat(file)?;
            Ok(stat_text(&found))
        }
        _ => panic!("{words:?}"),
    }
}

fn stat(place: &Path, how: AtFlags) -> Result<String> {
    let found = rustix::fs::statat(CWD, place, how)?;
    Ok(stat_text(&found))
}

fn stat_text(found: &rustix::fs::Stat) -> String {
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    let size = if is_file { found.st_size } else { 0 };
    format!(
        "{:o} {}:{} links {} size {size}",
        found.st_mode, found.st_uid, found.st_gid, found.st_nlink
    )
}

/// Type and device number of a node.
fn node(kind: &str) -> (FileType, u64) {
    match kind {
        "fifo" => (FileType::Fifo, 0),
        "socket" => (FileType::Socket, 0),
        "null" => (FileType::CharacterDevice, makedev(1, 3)),
        "whiteout" => (FileType::CharacterDevice, 0),
        "block" => (FileType::BlockDevice, makedev(250, 9)),
        _ => (FileType::RegularFile, 0),
    }
}

fn time(word: &str) -> Timespec {
    let (tv_sec, tv_nsec) = match word {
        "now" => (0, UTIME_NOW),
        "omit" => (0, UTIME_OMIT),
        _ => (number(word).into(), 0),
    };
    Timespec { tv_sec, tv_nsec }
}

/// The value of an extended attribute: an ACL, a file's capabilities, or the word itself.
fn value_of(word: &str) -> Vec<u8> {
    // linux/capability.h: revision 2, effective; permitted is CAP_NET_BIND_SERVICE.
    const CAPABILITIES: [u32; 5] = [0x0200_0001, 1 << 10, 0, 0, 0];
    match word.strip_prefix("acl:") {
        Some(entries) => acl::encode(entries),
        None if word == "caps" => CAPABILITIES.map(u32::to_le_bytes).concat(),
        None => std::ffi::OsStr::new(word).as_bytes().to_vec(),
    }
}
