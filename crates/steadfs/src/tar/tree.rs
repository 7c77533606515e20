//! The tree that an archive makes, read before a volume is made of it.
//!
//! **Problem.** Members come in any order, twice, or without the directories around them, and a volume shall follow from
//! the tree alone. A broken archive shall be found before a volume is overwritten. **Rule.** The whole archive is read
//! first; names and attributes stay in memory, at most [`METADATA_MAX`] bytes, and data where they are: in the archive, or
//! in an unnamed file for a stream. Names lead to files of this tree only: links on the way are followed within it.
//!
//! Numbers: the process took at most 450 MiB with archives that end at that limit (a million files in one directory, each
//! in its own, or with names of 500 bytes), and 500 bytes of memory for each level of 4 096 directories.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use steadfs_base::Timestamp;
use steadfs_base::limits::SYMLINK_MAX;
use steadfs_vfs::FileKind;

use super::read::{Member, Members, Result, TarError};
use super::tape::{Tape, read_at};
use super::{BLOCK, RECORD, kind};
use crate::tools::{DEPTH_MAX, Progress, Report, ToolError, printable};

/// Most memory for names and attributes, in bytes.
const METADATA_MAX: u64 = 512 << 20;
/// Memory of a directory besides its attributes, in bytes: one with one entry took 600, measured with deep trees.
const NODE_BYTES: u64 = 640;
/// Memory of another file besides its attributes, in bytes: one of a million in a directory took 275.
const FILE_BYTES: u64 = 384;
/// Symbolic links that one name may lead through.
const LINKS_MAX: u32 = 40;
const ROOT: usize = 0;

/// A piece of a file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    start: u64,
    end: u64,
    /// Its place in the file of all data.
    place: u64,
}

/// A file.
#[derive(Debug)]
pub(crate) struct Node {
    pub kind: FileKind,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    /// Access and modification.
    pub times: Option<(Timestamp, Timestamp)>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub device: (u32, u32),
    pub target: Vec<u8>,
    pub size: u64,
    /// Number of names.
    pub names: u32,
    /// Whether the archive has it, or only files in it.
    pub is_member: bool,
    pub entries: BTreeMap<Vec<u8>, usize>,
    extents: Vec<Extent>,
}

impl Node {
    /// A directory that the archive does not have, as tar makes it.
    fn missing() -> Self {
        Self {
            kind: FileKind::Directory,
            perm: 0o755,
            uid: 0,
            gid: 0,
            times: None,
            xattrs: Vec::new(),
            device: (0, 0),
            target: Vec::new(),
            size: 0,
            names: 1,
            is_member: false,
            entries: BTreeMap::new(),
            extents: Vec::new(),
        }
    }

    fn of(member: Member, kind: FileKind, place: u64) -> Self {
        let mut at = place;
        let extents = member.pieces.iter().map(|&(start, len)| {
            let place = at;
            at += len;
            Extent {
                start,
                end: start + len,
                place,
            }
        });
        Self {
            kind,
            perm: member.perm,
            uid: member.uid,
            gid: member.gid,
            times: Some((member.atime.unwrap_or(member.mtime), member.mtime)),
            extents: match kind {
                FileKind::Regular => extents.collect(),
                _ => Vec::new(),
            },
            xattrs: member.xattrs,
            device: member.device,
            target: match kind {
                FileKind::Symlink => member.link,
                _ => Vec::new(),
            },
            size: member.size,
            is_member: true,
            ..Self::missing()
        }
    }

    /// The next range with data at or after `at`.
    pub fn next_data(&self, at: u64) -> Option<(u64, u64)> {
        let next = self.extents.partition_point(|extent| extent.end <= at);
        let extent = self.extents.get(next)?;
        Some((extent.start.max(at), extent.end))
    }
}

/// A tree that was read from an archive.
#[derive(Debug)]
pub struct TarTree {
    nodes: Vec<Node>,
    data: File,
    /// The archive, in messages.
    pub(crate) name: PathBuf,
    used: u64,
}

impl TarTree {
    /// Reads the archive `file`, which messages call `name`, from its position on. What cannot be kept of it is reported
    /// to `progress` and counted. Once `stopped` is true the read ends with an error, also while a stream has nothing.
    ///
    /// # Errors
    /// The archive is compressed, broken or cut short.
    pub fn read(
        file: File,
        name: &Path,
        progress: &mut dyn Progress,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Self, Report), TarError> {
        let mut tape = Tape::new(file, stopped)?;
        check_kind(tape.peek()?, name)?;
        let mut tree = Self {
            nodes: vec![Node::missing()],
            // Until the data are known.
            data: File::open("/dev/null")?,
            name: name.to_owned(),
            used: 0,
        };
        let mut report = Report::default();
        let mut is_empty = true;
        let mut members = Members::new(&mut tape);
        while let Some(member) = members.next()? {
            if stopped() {
                return Err(TarError::Other("stopped".to_owned()));
            }
            tree.member(member, members.tape, progress, &mut report)?;
            is_empty = false;
        }
        if is_empty {
            check_empty(&mut tape)?;
        }
        tree.data = tape.into_data()?;
        Ok((tree, report))
    }

    /// Bytes of data of all files.
    pub(crate) fn amount(&self) -> u64 {
        let extents = self.nodes.iter().flat_map(|node| &node.extents);
        extents.map(|extent| extent.end - extent.start).sum()
    }

    /// The root.
    pub(crate) fn root(&self) -> &Node {
        &self.nodes[ROOT]
    }

    /// The file with a number of [`Node::entries`].
    pub(crate) fn node(&self, number: usize) -> &Node {
        &self.nodes[number]
    }

    /// All names, and the sizes of the regular files that they lead to.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let entries = self.nodes.iter().flat_map(|node| &node.entries);
        entries.map(|(name, &number)| {
            let node = &self.nodes[number];
            let is_file = node.kind == FileKind::Regular;
            (&name[..], if is_file { node.size } else { 0 })
        })
    }

    /// Reads a file's content; holes are zeros. Returns the number of bytes up to its end.
    pub(crate) fn read_content(
        &self,
        node: &Node,
        buffer: &mut [u8],
        at: u64,
    ) -> std::io::Result<usize> {
        let left = usize::try_from(node.size.saturating_sub(at)).unwrap_or(usize::MAX);
        let len = buffer.len().min(left);
        let buffer = &mut buffer[..len];
        let end = at + len as u64;
        buffer.fill(0);
        let first = node.extents.partition_point(|extent| extent.end <= at);
        for extent in node.extents[first..]
            .iter()
            .take_while(|extent| extent.start < end)
        {
            let (start, stop) = (extent.start.max(at), extent.end.min(end));
            let part = &mut buffer[(start - at) as usize..(stop - at) as usize];
            read_at(&self.data, part, extent.place + (start - extent.start))?;
        }
        Ok(len)
    }

    fn member(
        &mut self,
        member: Member,
        tape: &mut Tape<'_>,
        progress: &mut dyn Progress,
        report: &mut Report,
    ) -> Result<()> {
        for (name, why) in &member.lost {
            report.not_kept += 1;
            progress.problem(&ToolError::NotKept {
                path: member.name.clone(),
                what: format!("attribute {}", printable(name.as_bytes())),
                why: (*why).to_owned(),
            });
        }
        let name = member.name.clone();
        let kind = match member.kind {
            kind::VOLUME_LABEL => return tape.skip(member.data),
            kind::CONTINUED => {
                let why = "is continued from another archive: give all volumes of the archive as one stream";
                return Err(TarError::Other(format!("{}: {why}", printable(&name))));
            }
            kind::DIRECTORY | kind::GNU_DIRECTORY => FileKind::Directory,
            kind::SYMLINK => FileKind::Symlink,
            kind::CHAR_DEVICE => FileKind::CharDevice,
            kind::BLOCK_DEVICE => FileKind::BlockDevice,
            kind::FIFO => FileKind::Fifo,
            // What is not known is a regular file, as POSIX has it.
            _ => FileKind::Regular,
        };
        let is_link = member.kind == kind::HARD_LINK;
        let place = match kind {
            FileKind::Regular if !is_link => tape.keep(member.data)?,
            _ => {
                tape.skip(member.data)?;
                0
            }
        };
        self.charge(&member)?;
        let done = match is_link {
            true => self.link(&member),
            false => self.insert(member, kind, place),
        };
        if let Err(why) = done {
            report.failed += 1;
            progress.problem(&ToolError::Refused { path: name, why });
        }
        Ok(())
    }

    /// Counts the memory of a member.
    fn charge(&mut self, member: &Member) -> Result<()> {
        let own = match member.kind {
            kind::DIRECTORY | kind::GNU_DIRECTORY => NODE_BYTES,
            _ => FILE_BYTES,
        };
        let bytes = member.name.len() + member.link.len() + 24 * member.pieces.len();
        self.add_use(own + member.held + bytes as u64)
    }

    fn add_use(&mut self, bytes: u64) -> Result<()> {
        self.used += bytes;
        match self.used > METADATA_MAX {
            true => Err(TarError::Other(format!(
                "the names and attributes of its members need more than {} MiB of memory",
                METADATA_MAX >> 20
            ))),
            false => Ok(()),
        }
    }

    fn insert(&mut self, member: Member, kind: FileKind, place: u64) -> Result<(), &'static str> {
        let mut names = names(&member.name)?;
        let node = Node::of(member, kind, place);
        let Some(name) = names.pop() else {
            return match kind {
                FileKind::Directory => {
                    self.set_directory(ROOT, node);
                    Ok(())
                }
                _ => Err("is the root, and no directory"),
            };
        };
        let folder = self.folder(names)?;
        match self.nodes[folder].entries.get(&name) {
            Some(&there) if self.nodes[there].kind == FileKind::Directory => {
                if kind == FileKind::Directory {
                    self.set_directory(there, node);
                    return Ok(());
                }
                self.check_empty(there)?;
            }
            Some(&there) => self.nodes[there].names -= 1,
            None => {}
        }
        self.nodes.push(node);
        let number = self.nodes.len() - 1;
        self.nodes[folder].entries.insert(name, number);
        Ok(())
    }

    fn check_empty(&self, number: usize) -> Result<(), &'static str> {
        match self.nodes[number].entries.is_empty() {
            true => Ok(()),
            false => Err("is a directory with files in it: not replaced"),
        }
    }

    /// Gives a directory other attributes.
    fn set_directory(&mut self, number: usize, node: Node) {
        let entries = std::mem::take(&mut self.nodes[number].entries);
        self.nodes[number] = Node { entries, ..node };
    }

    /// Adds a name to a file.
    fn link(&mut self, member: &Member) -> Result<(), &'static str> {
        const NONE: &str = "is a hard link to a file that the archive does not have";
        let mut target = names(&member.link)?;
        let mut names = names(&member.name)?;
        let (Some(of), Some(name)) = (target.pop(), names.pop()) else {
            return Err(NONE);
        };
        let from = self.walk(target, false)?.ok_or(NONE)?;
        let first = *self.nodes[from].entries.get(&of).ok_or(NONE)?;
        if self.nodes[first].kind == FileKind::Directory {
            return Err("is a hard link to a directory");
        }
        let folder = self.folder(names)?;
        if let Some(&there) = self.nodes[folder].entries.get(&name) {
            if there == first {
                return Ok(());
            }
            if self.nodes[there].kind == FileKind::Directory {
                self.check_empty(there)?;
            } else {
                self.nodes[there].names -= 1;
            }
        }
        self.nodes[first].names += 1;
        self.nodes[folder].entries.insert(name, first);
        Ok(())
    }

    /// The directory at a path. Links to directories are followed, and missing directories made, as tar does.
    fn folder(&mut self, path: Vec<Vec<u8>>) -> Result<usize, &'static str> {
        let found = self.walk(path, true)?;
        Ok(found.unwrap_or(ROOT))
    }

    /// The directory at a path; `None` if it is missing and not to be made.
    fn walk(&mut self, path: Vec<Vec<u8>>, makes: bool) -> Result<Option<usize>, &'static str> {
        let mut way = vec![ROOT];
        let mut todo = path;
        todo.reverse();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            let here = way.last().copied().unwrap_or(ROOT);
            if name == b".." {
                // Of a link's target: the root is around itself.
                way.truncate(way.len().saturating_sub(1).max(1));
                continue;
            }
            if way.len() > DEPTH_MAX {
                return Err("lies in more than 4096 directories");
            }
            let Some(&there) = self.nodes[here].entries.get(&name) else {
                if !makes {
                    return Ok(None);
                }
                if self.add_use(NODE_BYTES + name.len() as u64).is_err() {
                    return Err("needs too much memory");
                }
                self.nodes.push(Node::missing());
                let made = self.nodes.len() - 1;
                self.nodes[here].entries.insert(name, made);
                way.push(made);
                continue;
            };
            match self.nodes[there].kind {
                FileKind::Directory => way.push(there),
                FileKind::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err("too many symbolic links lead to it");
                    }
                    let target = &self.nodes[there].target;
                    if target.len() > SYMLINK_MAX {
                        return Err(
                            "a symbolic link with a target of more than 4095 bytes leads to it",
                        );
                    }
                    if target.starts_with(b"/") {
                        way.truncate(1);
                    }
                    let parts = target.split(|&b| b == b'/').rev();
                    todo.extend(parts.filter(|part| is_name(part)).map(<[u8]>::to_vec));
                }
                _ => return Err("a file lies where a directory must be"),
            }
        }
        Ok(Some(way.last().copied().unwrap_or(ROOT)))
    }
}

fn is_name(part: &[u8]) -> bool {
    !part.is_empty() && part != b"."
}

/// The names of a member's path; those of an absolute one begin at the root.
fn names(path: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let parts = || path.split(|&b| b == b'/').filter(|part| is_name(part));
    if parts().take(DEPTH_MAX + 1).count() > DEPTH_MAX {
        return Err("lies in more than 4096 directories");
    }
    let names: Vec<Vec<u8>> = parts().map(<[u8]>::to_vec).collect();
    if names.iter().any(|name| name == b"..") {
        return Err("has '..' in its name: left out");
    }
    if names.iter().any(|name| name.contains(&0)) {
        return Err("has a byte 0 in its name: left out");
    }
    Ok(names)
}

fn no_archive() -> TarError {
    TarError::Other("is no tar archive; -d takes a directory or an archive".to_owned())
}

/// Refuses what only begins with zeros, such as an image of a volume. An empty archive has a record of them.
fn check_empty(tape: &mut Tape<'_>) -> Result<()> {
    for _ in 1..RECORD / BLOCK {
        match tape.block()? {
            None => break,
            Some(block) if block == [0; BLOCK] => {}
            Some(_) => return Err(no_archive()),
        }
    }
    Ok(())
}

/// Refuses a compressed archive by its first bytes.
fn check_kind(first: &[u8], name: &Path) -> Result<()> {
    const KINDS: [(&[u8], &str, &str); 8] = [
        (&[0x1f, 0x8b], "gzip", "gzip"),
        (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz", "xz"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstd"),
        (b"BZh", "bzip2", "bzip2"),
        (&[0x04, 0x22, 0x4d, 0x18], "lz4", "lz4"),
        (b"LZIP", "lzip", "lzip"),
        (&[0x1f, 0x9d], "compress", "gzip"),
        (&[0x89, b'L', b'Z', b'O'], "lzop", "lzop"),
    ];
    let shown = name.display();
    if let Some((_, what, program)) = KINDS.iter().find(|(magic, ..)| first.starts_with(magic)) {
        let from = match name == Path::new("-") {
            true => "FILE".to_owned(),
            false => shown.to_string(),
        };
        return Err(TarError::Other(format!(
            "is compressed by {what}: use {program} -dc {from} | steadfs format -d - …"
        )));
    }
    let is_empty = first.iter().all(|&byte| byte == 0);
    let is_old = || {
        let block = first.get(..BLOCK)?.try_into().ok()?;
        let sum = super::header::checksum(&block);
        let text = std::str::from_utf8(&first[148..156]).ok()?;
        let text = text.trim_matches(|c| c == ' ' || c == '\0');
        (u32::from_str_radix(text, 8).ok()? == sum).then_some(())
    };
    let is_tar = first.get(257..262) == Some(b"ustar");
    match !first.is_empty() && (is_empty || is_tar || is_old().is_some()) {
        true => Ok(()),
        false => Err(no_archive()),
    }
}
