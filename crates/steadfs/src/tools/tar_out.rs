//! Writing a tar archive of a volume.
//!
//! **Rules.** Members come in the order of a walk with sorted names, and have no times of access: one tree makes one
//! archive. Holes are kept as GNU's sparse format 1.0. A member's size stands before its data, so a file that cannot be
//! read to its end is filled with zeros and reported, as GNU tar does. A directory that is not selected itself is written
//! before the first selected file below it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use steadfs_base::{Corruption, InodeNo};
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, Seek, Segment};

use super::ahead::{Opened, Visit, Xattrs, look_ahead};
use super::copying::{Follow, Lengths, Log, Paths, Progress, Report};
use super::list::device_numbers;
use super::select::{Part, Selection};
use super::walk::{Entry, Held, VisitedDirs, check_depth, child, resolve};
use super::{At, AtHost, CHUNK, Result, ToolError, is_root_path};
use crate::tar::header::{Header, ID_MAX, NAME_LEN, NUMBER_MAX};
use crate::tar::{ACLS, BLOCK, RECORD, acl_to_text, kind, padding, pax};

/// Most pieces of data of a sparse file; what follows is written with its holes. Their list stands in memory, 16 bytes
/// each.
const PIECES_MAX: usize = 1 << 20;

/// Writes a tar archive of the file or tree at `from` on the volume to `out`, which messages call `to`. The members of a
/// directory are its content, with the directory itself as `./`. What cannot be read is reported to `progress`, and the
/// archive continues with the next file. `data_max` limits the bytes of data. Of a directory only what is selected is
/// written, with the directories around it; a pattern without a match is reported at the end.
///
/// # Errors
/// The named file cannot be read, or the archive not written; patterns for a file that is no directory.
pub fn tar_out(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &[u8],
    data_max: Option<u64>,
    selection: Selection,
    (out, to): (&mut dyn Write, &Path),
    progress: &mut dyn Progress,
) -> Result<Report> {
    let top = resolve(fs, cx, from, false).on_volume(from)?;
    let mut writer = Writer {
        fs,
        cx,
        log: Log::new(progress).limited(data_max),
        out: Output { out, to, at: 0 },
        first_names: BTreeMap::new(),
        folders: VisitedDirs::new(Follow::Never),
        selection,
    };
    writer.tree(top, from)?;
    for error in writer.selection.missing() {
        writer.log.failed(error)?;
    }
    writer.out.end()?;
    Ok(writer.log.report)
}

/// The archive.
struct Output<'o> {
    out: &'o mut dyn Write,
    to: &'o Path,
    at: u64,
}

impl Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes).on_host(self.to)
    }

    fn zeros(&mut self, mut count: u64) -> Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        while count > 0 {
            let piece = count.min(ZEROS.len() as u64);
            self.write(&ZEROS[..piece as usize])?;
            count -= piece;
        }
        Ok(())
    }

    fn pad(&mut self) -> Result<()> {
        self.zeros(padding(self.at) as u64)
    }

    /// Two blocks of zeros, up to the end of the record.
    fn end(&mut self) -> Result<()> {
        self.zeros(2 * BLOCK as u64)?;
        let over = self.at % RECORD as u64;
        self.zeros((RECORD as u64 - over) % RECORD as u64)?;
        self.out.flush().on_host(self.to)
    }
}

/// A directory that is being written.
struct Frame<'a> {
    held: Held<'a>,
    entries: Visit<'a>,
    paths: Lengths,
    part: Part,
    /// Taken when its member is written. Until then no file below it was selected.
    xattrs: Option<Xattrs>,
}

/// What a member has besides its attributes.
#[derive(Default)]
struct Content<'a> {
    kind: u8,
    link: &'a [u8],
    size: u64,
    /// For a sparse file: its size with holes.
    real_size: Option<u64>,
}

struct Writer<'a, 'p, 'o> {
    fs: &'a dyn FileSystem,
    cx: &'a Cx,
    log: Log<'p>,
    out: Output<'o>,
    /// Members of files with several names.
    first_names: BTreeMap<InodeNo, Vec<u8>>,
    folders: VisitedDirs,
    selection: Selection,
}

impl<'a> Writer<'a, '_, '_> {
    fn tree(&mut self, top: Held<'a>, from: &[u8]) -> Result<()> {
        let source = match is_root_path(from) {
            true => b"/".to_vec(),
            false => from.to_vec(),
        };
        let part = self.selection.begin(top.attr().kind, &source)?;
        if top.attr().kind != FileKind::Directory {
            let name = from.rsplit(|&b| b == b'/').find(|name| !name.is_empty());
            return self.file(&top, from, name.unwrap_or(b"."));
        }
        let mut paths = Paths {
            source,
            target: b".".to_vec(),
        };
        let mut stack = Vec::new();
        let top = Opened::read(self.fs, self.cx, top, by_name);
        self.enter(top, part, &paths, &mut stack)?;
        while let Some(frame) = stack.last_mut() {
            paths.back_to(frame.paths);
            let dir = frame.held.ino();
            if self.selection.is_all() {
                let levels = stack.iter_mut().rev();
                let levels = levels.map(|frame| (frame.held.ino(), &mut frame.entries));
                look_ahead((self.fs, self.cx), by_name, levels);
            }
            let Some(frame) = stack.last_mut() else {
                break;
            };
            let Some(entry) = frame.entries.next(self.fs, self.cx, dir) else {
                stack.pop();
                continue;
            };
            paths.push(&entry.name);
            match self.entry(&entry, &paths, &mut stack) {
                Ok(()) => {}
                // Without the archive there is no use in going on.
                Err(error @ ToolError::Host { .. }) => return Err(error),
                Err(error) => self.log.failed(error)?,
            }
        }
        Ok(())
    }

    /// Writes an entry of the innermost directory; a subdirectory becomes the innermost one.
    fn entry(&mut self, entry: &Entry, paths: &Paths, stack: &mut Vec<Frame<'a>>) -> Result<()> {
        let depth = stack.len();
        let Some(around) = stack.last_mut() else {
            return Ok(());
        };
        let source = &paths.source;
        if let Some(opened) = around.entries.take_opened(&entry.name) {
            check_depth(depth, source)?;
            return self.enter(opened, Part::Whole, paths, stack);
        }
        let part = self.selection.part(around.part, source);
        let held = child(self.fs, self.cx, around.held.ino(), &entry.name).on_volume(source)?;
        if held.attr().kind == FileKind::Directory {
            check_depth(depth, source)?;
            let opened = Opened::read(self.fs, self.cx, held, by_name);
            return self.enter(opened, part, paths, stack);
        }
        if part == Part::Whole {
            self.directories(stack, paths)?;
            self.file(&held, source, &paths.target)?;
        }
        Ok(())
    }

    /// A directory becomes the innermost one.
    fn enter(
        &mut self,
        mut opened: Opened<'a>,
        part: Part,
        paths: &Paths,
        stack: &mut Vec<Frame<'a>>,
    ) -> Result<()> {
        let source = &paths.source;
        self.log.check_stopped()?;
        self.folders.add(opened.held.ino()).on_volume(source)?;
        self.selection.retain(part, source, &mut opened.entries);
        stack.push(Frame {
            entries: opened.visit(),
            held: opened.held,
            xattrs: Some(opened.xattrs),
            paths: paths.lengths(),
            part,
        });
        if part == Part::Whole {
            self.directories(stack, paths)?;
        }
        match opened.error.map_or(Ok(()), Err).on_volume(source) {
            Ok(()) => Ok(()),
            Err(error) => self.log.failed(error),
        }
    }

    /// Writes the members of the directories around the current file that are not in the archive yet.
    fn directories(&mut self, stack: &mut [Frame<'_>], paths: &Paths) -> Result<()> {
        for frame in stack {
            let Some(xattrs) = frame.xattrs.take() else {
                continue;
            };
            let (source, target) = paths.around(frame.paths);
            let name = [target, b"/"].concat();
            self.log.begin(source, &name)?;
            let content = Content {
                kind: kind::DIRECTORY,
                ..Content::default()
            };
            self.member(frame.held.attr(), Some(xattrs), source, &name, &content)?;
        }
        Ok(())
    }

    /// Writes a file that is not a directory.
    fn file(&mut self, held: &Held<'_>, source: &[u8], name: &[u8]) -> Result<()> {
        let attr = held.attr();
        self.log.begin(source, name)?;
        if attr.nlink > 1
            && let Some(first) = self.first_names.get(&attr.ino).cloned()
        {
            let content = Content {
                kind: kind::HARD_LINK,
                link: &first,
                ..Content::default()
            };
            return self.member(attr, None, source, name, &content);
        }
        let mut content = Content::default();
        let target;
        content.kind = match attr.kind {
            FileKind::Regular => return self.regular(attr, source, name),
            FileKind::Symlink => {
                target = self.fs.readlink(self.cx, attr.ino).on_volume(source)?;
                content.link = &target;
                kind::SYMLINK
            }
            FileKind::CharDevice => kind::CHAR_DEVICE,
            FileKind::BlockDevice => kind::BLOCK_DEVICE,
            FileKind::Fifo => kind::FIFO,
            FileKind::Directory => kind::DIRECTORY,
            FileKind::Socket => {
                self.log.left_out(source, "is a socket: left out");
                return Ok(());
            }
        };
        let xattrs = Xattrs::read(self.fs, self.cx, attr.ino);
        self.member(attr, Some(xattrs), source, name, &content)?;
        self.written(attr, name);
        Ok(())
    }

    fn written(&mut self, attr: &Attr, name: &[u8]) {
        if attr.nlink > 1 {
            self.first_names.insert(attr.ino, name.to_vec());
        }
    }

    fn regular(&mut self, attr: &Attr, source: &[u8], name: &[u8]) -> Result<()> {
        let pieces = self.pieces(attr).on_volume(source)?;
        let data: u64 = pieces.iter().map(|(start, end)| end - start).sum();
        let is_sparse = data < attr.size;
        let map = match is_sparse {
            true => sparse_map(&pieces, attr.size),
            false => Vec::new(),
        };
        let content = Content {
            kind: kind::REGULAR,
            size: map.len() as u64 + data,
            real_size: is_sparse.then_some(attr.size),
            ..Content::default()
        };
        let xattrs = Xattrs::read(self.fs, self.cx, attr.ino);
        self.member(attr, Some(xattrs), source, name, &content)?;
        self.out.write(&map)?;
        let end = self.out.at + data;
        for (start, stop) in pieces {
            match self.data(attr.ino, source, start, stop) {
                Ok(()) => {}
                Err(error @ ToolError::Host { .. }) => return Err(error),
                Err(error) => {
                    self.log.failed(error)?;
                    break;
                }
            }
        }
        // What could not be read: the header has promised it.
        while self.out.at < end {
            let piece = usize::try_from(end - self.out.at).map_or(CHUNK, |left| left.min(CHUNK));
            self.log.bytes(piece)?;
            self.out.zeros(piece as u64)?;
        }
        self.out.pad()?;
        self.written(attr, name);
        Ok(())
    }

    /// The ranges of a file that have data.
    fn pieces(&self, attr: &Attr) -> steadfs_vfs::Result<Vec<(u64, u64)>> {
        let (fs, cx, ino) = (self.fs, self.cx, attr.ino);
        fs.open(cx, ino, false)?;
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        let mut at = 0;
        while at < attr.size {
            let start = match fs.seek(cx, ino, at, Seek::Data) {
                Ok(start) => start,
                Err(FsError::NoSuchOffset) => break,
                Err(error) => return Err(error),
            };
            let end = fs.seek(cx, ino, start, Seek::Hole)?;
            if start < at || end <= start {
                return Err(Corruption::new("holes and data overlap")
                    .in_inode(ino)
                    .into());
            }
            if start >= attr.size {
                break;
            }
            if pieces.len() == PIECES_MAX {
                pieces.push((start, attr.size));
                break;
            }
            at = end.min(attr.size);
            match pieces.last_mut().filter(|last| last.1 == start) {
                Some(last) => last.1 = at,
                None => pieces.push((start, at)),
            }
        }
        Ok(pieces)
    }

    fn data(&mut self, ino: InodeNo, source: &[u8], start: u64, stop: u64) -> Result<()> {
        let mut at = start;
        while at < stop {
            let len = usize::try_from(stop - at).map_or(CHUNK, |left| left.min(CHUNK));
            let data = self.fs.read(self.cx, ino, at, len).on_volume(source)?;
            if data.is_empty() {
                let short = Corruption::new("a file ends before its size").in_inode(ino);
                return Err(FsError::from(short)).on_volume(source);
            }
            for segment in data.segments() {
                match segment {
                    Segment::Bytes(owner, range) => {
                        self.out.write(&(**owner).as_ref()[range.clone()])?;
                    }
                    Segment::Zeros(len) => self.out.zeros(*len as u64)?,
                }
            }
            at += data.len() as u64;
            self.log.bytes(data.len())?;
        }
        Ok(())
    }

    /// Writes a member's pax records and header.
    fn member(
        &mut self,
        attr: &Attr,
        xattrs: Option<Xattrs>,
        source: &[u8],
        name: &[u8],
        content: &Content<'_>,
    ) -> Result<()> {
        let mut records = records(attr, name, content);
        if let Some(xattrs) = xattrs {
            push_xattrs(xattrs.kept(source, &mut self.log, |_| true), &mut records);
        }
        let mode = match attr.kind {
            FileKind::Symlink => 0o777,
            _ => attr.perm,
        };
        let sparse_name = beside(name, b"GNUSparseFile.0");
        let header = Header {
            name: content.real_size.map_or(name, |_| &sparse_name),
            mode,
            uid: attr.uid,
            gid: attr.gid,
            size: content.size,
            mtime: attr.mtime.secs,
            kind: content.kind,
            link: content.link,
            device: device_numbers(attr.rdev),
        };
        if !records.is_empty() {
            let before = Header {
                name: &beside(name, b"PaxHeaders"),
                mode: 0o644,
                size: records.len() as u64,
                mtime: attr.mtime.secs,
                kind: kind::PAX,
                ..Header::default()
            };
            self.out.write(&before.block())?;
            self.out.write(&records)?;
            self.out.pad()?;
        }
        self.log.report.files += 1;
        self.out.write(&header.block())
    }
}

fn by_name(a: &Entry, b: &Entry) -> Ordering {
    a.name.cmp(&b.name)
}

/// Adds the pax records of extended attributes.
fn push_xattrs(mut xattrs: Vec<(Vec<u8>, Vec<u8>)>, records: &mut Vec<u8>) {
    xattrs.sort_unstable();
    for (name, value) in xattrs {
        // GNU tar --acls takes the text, and would remove a list that has none.
        let acl = ACLS.iter().find(|(_, acl)| *acl == &name[..]);
        if let Some((key, _)) = acl
            && let Some(text) = acl_to_text(&value)
        {
            pax::push(records, key.as_bytes(), text.as_bytes());
        }
        pax::push(records, &pax::xattr_key(&name), &value);
    }
}

/// The pax records of what does not fit in a header.
fn records(attr: &Attr, name: &[u8], content: &Content<'_>) -> Vec<u8> {
    let mut records = Vec::new();
    let mut number = |key: &str, value: u64, max: u64| {
        if value > max {
            pax::push(&mut records, key.as_bytes(), value.to_string().as_bytes());
        }
    };
    number("uid", attr.uid.into(), ID_MAX);
    number("gid", attr.gid.into(), ID_MAX);
    number("size", content.size, NUMBER_MAX);
    let fits = u64::try_from(attr.mtime.secs).is_ok_and(|secs| secs <= NUMBER_MAX);
    if attr.mtime.nanos != 0 || !fits {
        pax::push(
            &mut records,
            b"mtime",
            pax::time_text(attr.mtime).as_bytes(),
        );
    }
    if content.link.len() > NAME_LEN {
        pax::push(&mut records, b"linkpath", content.link);
    }
    if let Some(size) = content.real_size {
        pax::push(&mut records, b"GNU.sparse.major", b"1");
        pax::push(&mut records, b"GNU.sparse.minor", b"0");
        pax::push(&mut records, b"GNU.sparse.name", name);
        let size = size.to_string();
        pax::push(&mut records, b"GNU.sparse.realsize", size.as_bytes());
    } else if name.len() > NAME_LEN {
        pax::push(&mut records, b"path", name);
    }
    records
}

/// The list of a sparse file's pieces, which stands before its data; with an empty piece at the end of a file that ends
/// in a hole.
fn sparse_map(pieces: &[(u64, u64)], size: u64) -> Vec<u8> {
    let ends_in_hole = pieces.last().is_none_or(|(_, end)| *end < size);
    let count = pieces.len() + usize::from(ends_in_hole);
    let mut text = format!("{count}\n");
    for (start, end) in pieces {
        text += &format!("{start}\n{}\n", end - start);
    }
    if ends_in_hole {
        text += &format!("{size}\n0\n");
    }
    let mut map = text.into_bytes();
    map.resize(map.len() + padding(map.len() as u64), 0);
    map
}

/// The name that programs without pax records see: `DIR/FOLDER/NAME`.
fn beside(name: &[u8], folder: &[u8]) -> Vec<u8> {
    let name = name.strip_suffix(b"/").unwrap_or(name);
    let at = name.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    [&name[..at], folder, b"/", &name[at..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_sparse_files_end_at_the_size() {
        let text = |pieces: &[(u64, u64)], size| {
            let map = sparse_map(pieces, size);
            assert_eq!(map.len() % BLOCK, 0);
            String::from_utf8(map).unwrap().replace('\0', "")
        };
        assert_eq!(text(&[], 7), "1\n7\n0\n");
        assert_eq!(text(&[(4096, 8192)], 8192), "1\n4096\n4096\n");
        assert_eq!(text(&[(0, 1), (4, 6)], 9), "3\n0\n1\n4\n2\n9\n0\n");
    }

    #[test]
    fn helpers_of_a_member_stand_beside_it() {
        assert_eq!(beside(b"./a/b", b"X"), b"./a/X/b");
        assert_eq!(beside(b"./", b"X"), b"X/.");
        assert_eq!(beside(b"b", b"X"), b"X/b");
    }
}
