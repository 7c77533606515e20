//! Copying from a volume to the host.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use steadfs_base::{Corruption, InodeNo};
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, Seek, Segment};

use super::ahead::{Opened, Visit, Xattrs, look_ahead};
use super::copying::{CopyOptions, Follow, Lengths, Log, Paths, Progress, Report};
use super::first_copies::{FirstCopiesOut, FirstOut};
use super::folders::Folders;
use super::host::{self, Target};
use super::list::device_numbers;
use super::select::{Part, Selection};
use super::walk::{Entry, Held, VisitedDirs, check_depth, check_end, child, is_of_dir, resolve};
use super::written::{CopyTarget, Written, another_name};
use super::{At, AtHost, CHUNK, HostFile, LISTS, Result, host_path, os, printable, refused};

/// Copies the file or tree at `from` on the volume; the copy's path is `to`. An existing directory is filled. The copy
/// keeps types, permissions, owners (if requested), times, extended attributes, holes and hard links. What cannot be
/// copied or kept is reported to `progress`, and the copy continues with the next file; a partial file is removed. Of a
/// directory only what is selected is copied, with the directories around it; a pattern without a match is reported at the
/// end.
///
/// # Errors
/// The named file cannot be copied, or the volume failed; patterns for a file that is no directory.
pub fn copy_out(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &[u8],
    to: &Path,
    options: CopyOptions,
    selection: Selection,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let with = (options, &mut FirstCopiesOut::default());
    copy_out_linked(fs, cx, from, to, with, selection, progress)
}

/// As [`copy_out`], where hard links are kept among all copies with the same `firsts`.
///
/// # Errors
/// The same.
pub fn copy_out_linked(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &[u8],
    to: &Path,
    (options, firsts): (CopyOptions, &mut FirstCopiesOut),
    selection: Selection,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let file = resolve(fs, cx, from, options.follow != Follow::Never).on_volume(from)?;
    let mut copier = Copier {
        fs,
        cx,
        options,
        log: Log::new(progress).limited(options.data_max),
        firsts,
        folders: VisitedDirs::new(options.follow),
        selection,
    };
    let (dir, name) = folder_and_name(to);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(dir, flags, Mode::empty()).on_host(dir)?;
    let ends = check_end(file.attr().kind, to.as_os_str().as_bytes(), || {
        host::kind_at(to)
    });
    ends.map_err(|error| io::Error::from_raw_os_error(error.errno()))
        .on_host(to)?;
    let spot = CopyTarget {
        dir: folder.as_fd(),
        name,
        path: to,
        top: true,
    };
    copier.tree(file, from, spot)?;
    for error in copier.selection.missing() {
        copier.log.failed(error)?;
    }
    Ok(copier.log.report)
}

/// The directory of a target, and its name there; the name `.` is the directory itself, which exists.
fn folder_and_name(to: &Path) -> (&Path, &[u8]) {
    let is_there = is_of_dir(to.as_os_str().as_bytes()) && to.is_dir();
    match (to.parent(), to.file_name()) {
        (Some(parent), Some(name)) if !is_there => {
            let parent = match parent.as_os_str().is_empty() {
                true => Path::new("."),
                false => parent,
            };
            (parent, name.as_bytes())
        }
        _ => (to, b"."),
    }
}

/// Opens a file, reads its data and passes it to `sink` in file order with its offsets, without holes. Returns the number
/// of bytes.
///
/// # Errors
/// Those of reading, and those of `sink`.
pub fn write_content(
    fs: &dyn FileSystem,
    cx: &Cx,
    path: &[u8],
    ino: InodeNo,
    sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<u64> {
    fs.open(cx, ino, false).on_volume(path)?;
    let mut at = 0;
    let mut moved = 0;
    loop {
        let start = match fs.seek(cx, ino, at, Seek::Data) {
            Ok(start) => start,
            Err(FsError::NoSuchOffset) => return Ok(moved),
            Err(error) => return Err(error).on_volume(path),
        };
        let end = fs.seek(cx, ino, start, Seek::Hole).on_volume(path)?;
        if start < at || end <= start {
            let overlap = Corruption::new("holes and data overlap").in_inode(ino);
            return Err(FsError::from(overlap)).on_volume(path);
        }
        at = start;
        while at < end {
            let len = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
            let data = fs.read(cx, ino, at, len).on_volume(path)?;
            if data.is_empty() {
                return Ok(moved);
            }
            for segment in data.segments() {
                match segment {
                    Segment::Bytes(owner, range) => {
                        let bytes = &(**owner).as_ref()[range.clone()];
                        sink(at, bytes)?;
                        at += bytes.len() as u64;
                        moved += bytes.len() as u64;
                    }
                    Segment::Zeros(len) => at += *len as u64,
                }
            }
        }
    }
}

/// A directory that is being read.
struct Frame<'a> {
    held: Held<'a>,
    entries: Visit<'a>,
    xattrs: Xattrs,
    paths: Lengths,
    part: Part,
    copy: DirCopy,
}

/// The copy of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DirCopy {
    /// It is not made, since no file below it was selected yet.
    None,
    /// It is open, and the directory was there before; its attributes stay.
    Found,
    /// It is open, and gets the attributes of its original after it is filled.
    Keeps,
}

/// The directories from the top down to the current one.
struct Way<'a, 's> {
    stack: Vec<Frame<'a>>,
    /// Copies of the outer ones, up to the first that is not made.
    folders: Folders,
    paths: Paths,
    top: CopyTarget<'s>,
}

struct Copier<'a, 'p> {
    fs: &'a dyn FileSystem,
    cx: &'a Cx,
    options: CopyOptions,
    log: Log<'p>,
    /// The first copies of files with several names.
    firsts: &'p mut FirstCopiesOut,
    folders: VisitedDirs,
    selection: Selection,
}

impl<'a> Copier<'a, '_> {
    fn tree(&mut self, top: Held<'a>, source: &[u8], spot: CopyTarget<'_>) -> Result<()> {
        let part = self.selection.begin(top.attr().kind, source)?;
        if top.attr().kind != FileKind::Directory {
            return self.file(&top, source, spot);
        }
        let mut way = Way {
            stack: Vec::new(),
            folders: Folders::default(),
            paths: Paths {
                source: source.to_vec(),
                target: spot.path.as_os_str().as_bytes().to_vec(),
            },
            top: spot,
        };
        let top = Opened::read(self.fs, self.cx, top, by_inode);
        self.enter(top, part, &mut way)?;
        let mut end = Ok(());
        while let Some(frame) = way.stack.last_mut() {
            way.paths.back_to(frame.paths);
            if end.is_ok() && self.selection.is_all() {
                let levels = way.stack.iter_mut().rev();
                let levels = levels.map(|frame| (frame.held.ino(), &mut frame.entries));
                look_ahead((self.fs, self.cx), by_inode, levels);
            }
            let Some(frame) = way.stack.last_mut() else {
                break;
            };
            // A stopped copy still finishes the directories that it is in.
            let next = match end {
                Ok(()) => frame.entries.next(self.fs, self.cx, frame.held.ino()),
                Err(_) => None,
            };
            match next {
                Some(entry) => {
                    way.paths.push(&entry.name);
                    let done = self.entry(&entry, &mut way);
                    end = done.or_else(|error| self.log.failed(error));
                }
                None => self.leave(&mut way)?,
            }
        }
        end
    }

    /// Leaves the innermost directory, after the files in it.
    fn leave(&mut self, way: &mut Way<'a, '_>) -> Result<()> {
        let Some(frame) = way.stack.pop() else {
            return Ok(());
        };
        self.folders.leave(frame.held.ino());
        if frame.copy == DirCopy::None {
            return Ok(());
        }
        let left = way.folders.leave().on_host(host_path(&way.paths.target))?;
        if let Some(dir) = left.filter(|_| frame.copy == DirCopy::Keeps) {
            // Last, for filling it changes its times, and a default ACL or set-group-ID would change what is made in it.
            let dir = File::from(dir);
            let target = Target::Open(&dir, None);
            self.attributes(frame.held.attr(), frame.xattrs, &target, &way.paths.source);
        }
        Ok(())
    }

    /// Copies an entry of the innermost directory; a subdirectory becomes the innermost one.
    fn entry(&mut self, entry: &Entry, way: &mut Way<'a, '_>) -> Result<()> {
        let depth = way.stack.len();
        let Some(around) = way.stack.last_mut() else {
            return Ok(());
        };
        let source = &way.paths.source;
        if let Some(opened) = around.entries.take_opened(&entry.name) {
            check_depth(depth, source)?;
            return self.enter(opened, Part::Whole, way);
        }
        let part = self.selection.part(around.part, source);
        let dir = around.held.ino();
        let mut held = child(self.fs, self.cx, dir, &entry.name).on_volume(source)?;
        if held.attr().kind == FileKind::Symlink && self.options.follow == Follow::Always {
            held = resolve(self.fs, self.cx, source, true).on_volume(source)?;
        }
        if held.attr().kind == FileKind::Directory {
            check_depth(depth, source)?;
            let opened = Opened::read(self.fs, self.cx, held, by_inode);
            return self.enter(opened, part, way);
        }
        if part != Part::Whole {
            return Ok(());
        }
        self.make_dirs(way)?;
        let Some(here) = way.folders.here() else {
            return Ok(());
        };
        let spot = CopyTarget {
            dir: here,
            name: &entry.name,
            path: host_path(&way.paths.target),
            top: false,
        };
        self.file(&held, &way.paths.source, spot)
    }

    /// A directory becomes the innermost one; its copy is made if all of it is selected. Unreadable entries are reported.
    fn enter(&mut self, mut opened: Opened<'a>, part: Part, way: &mut Way<'a, '_>) -> Result<()> {
        let source = &way.paths.source;
        if !self.options.recursive {
            return refused(
                source,
                "is a directory; -r copies it with all that is in it",
            );
        }
        self.log.check_stopped()?;
        self.folders.add(opened.held.ino()).on_volume(source)?;
        self.selection.retain(part, source, &mut opened.entries);
        way.stack.push(Frame {
            entries: opened.visit(),
            held: opened.held,
            xattrs: opened.xattrs,
            paths: way.paths.lengths(),
            part,
            copy: DirCopy::None,
        });
        if part == Part::Whole {
            self.make_dirs(way)?;
        }
        match opened
            .error
            .map_or(Ok(()), Err)
            .on_volume(&way.paths.source)
        {
            Ok(()) => Ok(()),
            Err(error) => self.log.failed(error),
        }
    }

    /// Makes and opens the copies of the current directories that are not there yet. If one fails, it is left, with all
    /// directories in it.
    fn make_dirs(&mut self, way: &mut Way<'a, '_>) -> Result<()> {
        let made = |frame: &Frame<'_>| frame.copy != DirCopy::None;
        let first = way.stack.iter().rposition(made).map_or(0, |last| last + 1);
        for at in first..way.stack.len() {
            if let Err(error) = self.make_dir(way, at) {
                for frame in way.stack.drain(at..) {
                    self.folders.leave(frame.held.ino());
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Makes the copy of the directory at this depth, or uses the existing one, and opens it.
    fn make_dir(&mut self, way: &mut Way<'a, '_>, depth: usize) -> Result<()> {
        let frame = &mut way.stack[depth];
        let (source, target) = way.paths.around(frame.paths);
        self.log.begin(source, target)?;
        let spot = match way.folders.here() {
            None => way.top,
            Some(dir) => CopyTarget {
                dir,
                name: target.rsplit(|&b| b == b'/').next().unwrap_or(target),
                path: host_path(target),
                top: false,
            },
        };
        let made = match spot.name {
            b"." => false,
            name => match rustix::fs::mkdirat(spot.dir, os(name), Mode::RWXU) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error).on_host(spot.path),
            },
        };
        let dir = match spot.name {
            b"." => host::open_this_dir(spot.dir),
            name => host::open_dir(spot.dir, os(name)),
        };
        let dir = dir.on_host(spot.path)?;
        if made {
            // Or what is made in it would inherit it, too. It is tried again, and reported, when the directory gets its
            // attributes.
            let file = File::from(dir.try_clone().on_host(spot.path)?);
            let _ = Target::Open(&file, None).remove_list(LISTS[1]);
        }
        way.folders.enter(dir).on_host(host_path(target))?;
        self.log.report.files += 1;
        frame.copy = match made || self.options.preserve {
            true => DirCopy::Keeps,
            false => DirCopy::Found,
        };
        Ok(())
    }

    /// Copies a file that is not a directory.
    fn file(&mut self, held: &Held<'_>, source: &[u8], spot: CopyTarget<'_>) -> Result<()> {
        let attr = held.attr();
        if spot.is_skipped(&self.options, &mut self.log)? {
            return Ok(());
        }
        self.log.begin(source, spot.path.as_os_str().as_bytes())?;
        if attr.nlink > 1
            && let Some(first) = self.firsts.0.get(&attr.ino)
        {
            another_name(&first.path, first.made, &spot, &self.options)?;
            self.log.report.files += 1;
            return Ok(());
        }
        let made = match attr.kind {
            FileKind::Regular => self.regular(attr, source, spot)?,
            FileKind::Symlink => self.special(attr, source, spot)?,
            _ if self.options.recursive => self.special(attr, source, spot)?,
            _ => {
                return refused(
                    source,
                    "is a special file without content; -r copies it as such",
                );
            }
        };
        self.log.report.files += 1;
        if attr.nlink > 1 && spot.is_only_name(made)? {
            let path = spot.path.to_owned();
            self.firsts.0.insert(attr.ino, FirstOut { path, made });
        }
        Ok(())
    }

    fn regular(&mut self, attr: &Attr, source: &[u8], spot: CopyTarget<'_>) -> Result<HostFile> {
        let mut written: Option<Written<'_>> = None;
        let done = self.content(attr, source, spot, &mut written);
        match (done, written) {
            (Ok(()), Some(written)) => {
                if let Some(target) = written.target(&self.options) {
                    self.attributes(attr, self.xattrs(attr), &target, source);
                }
                written.close()
            }
            (Ok(()), None) => refused(source, "was not written"),
            (Err(error), written) => {
                if let Some(written) = written {
                    written.discard();
                }
                Err(error)
            }
        }
    }

    /// Writes a file's content. The target is opened after the first read.
    fn content<'s>(
        &mut self,
        attr: &Attr,
        source: &[u8],
        spot: CopyTarget<'s>,
        written: &mut Option<Written<'s>>,
    ) -> Result<()> {
        let (fs, cx, options) = (self.fs, self.cx, self.options);
        let log = &mut self.log;
        write_content(fs, cx, source, attr.ino, &mut |offset, bytes| {
            opened(written, spot, &options, log)?.write(offset, bytes, log)?;
            log.bytes(bytes.len())
        })?;
        opened(written, spot, &options, log)?.finish(attr.size, log)
    }

    /// Makes a link, node, pipe or socket.
    fn special(&mut self, attr: &Attr, source: &[u8], spot: CopyTarget<'_>) -> Result<HostFile> {
        let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if is_device && !self.options.privileges {
            return refused(source, "is a device node: not made without privileges");
        }
        let made = if attr.kind == FileKind::Symlink {
            let target = self.fs.readlink(self.cx, attr.ino).on_volume(source)?;
            let link = |name: &OsStr| rustix::fs::symlinkat(os(&target), spot.dir, name);
            spot.put(&self.options, link)?
        } else {
            let (major, minor) = device_numbers(attr.rdev);
            let device = match is_device {
                true => rustix::fs::makedev(major, minor),
                false => 0,
            };
            let kind = host::file_type(attr.kind);
            let mode = Mode::RUSR | Mode::WUSR;
            let node = |name: &OsStr| rustix::fs::mknodat(spot.dir, name, kind, mode, device);
            spot.put(&self.options, node)?
        };
        match made {
            Err(Errno::PERM) => refused(source, "was not made: only root can")?,
            made => made.on_host(spot.path)?,
        }
        let target = Target::Named(spot.dir, os(spot.name));
        self.attributes(attr, self.xattrs(attr), &target, source);
        let made = host::stat(spot.dir, os(spot.name)).on_host(spot.path)?;
        Ok(host::id_of(&made))
    }

    fn xattrs(&self, attr: &Attr) -> Xattrs {
        Xattrs::read(self.fs, self.cx, attr.ino)
    }

    /// Removes the access lists that a file has of its directory or of before, with which the permissions would admit
    /// others. Returns whether it has no access list.
    fn remove_lists(&mut self, kind: FileKind, target: &Target<'_>, source: &[u8]) -> bool {
        let lists = match kind {
            FileKind::Symlink => 0,
            FileKind::Directory => 2,
            _ => 1,
        };
        let mut has_none = true;
        for list in &LISTS[..lists] {
            if let Err(error) = target.remove_list(list) {
                let shown = format!("no {}", printable(list));
                self.log.not_kept(source, &shown, &error);
                has_none &= list != &LISTS[0];
            }
        }
        has_none
    }

    /// Sets owner, permissions, extended attributes and times, in this order, since a new owner clears set-ID bits and
    /// capabilities, an ACL sets permissions, and each changes times. A failure is reported, and the copy stays.
    fn attributes(&mut self, attr: &Attr, xattrs: Xattrs, target: &Target<'_>, source: &[u8]) {
        let mut stranger = !self.options.owners && (attr.uid, attr.gid) != host::own_ids();
        if self.options.owners
            && let Err(error) = target.chown(attr.uid, attr.gid)
        {
            let owner = format!("owner {}:{}", attr.uid, attr.gid);
            self.log.not_kept(source, &owner, &io::Error::from(error));
            stranger = true;
        }
        let has_no_list = self.remove_lists(attr.kind, target, source);
        if attr.kind != FileKind::Symlink {
            let perm = super::kept_perm(attr.kind, attr.perm, stranger || !self.options.privileges);
            let mut perm = xattrs.perm_without_list(perm);
            if !has_no_list {
                // The group's bits are the mask of the list.
                perm &= !0o070;
            }
            if let Err(error) = target.chmod(perm) {
                let mode = format!("mode {perm:04o}");
                self.log.not_kept(source, &mode, &io::Error::from(error));
            }
        }
        let is_privilege = |name: &[u8]| {
            let spaces = [&b"security."[..], b"trusted."];
            spaces.iter().any(|space| name.starts_with(space))
        };
        let privileges = self.options.privileges;
        let wanted = |name: &[u8]| privileges || !is_privilege(name);
        for (name, value) in xattrs.kept(source, &mut self.log, wanted) {
            if let Err(error) = target.set_xattr(&name, &value) {
                let shown = format!("attribute {}", printable(&name));
                self.log.not_kept(source, &shown, &error);
            }
        }
        if let Err(error) = target.set_times(attr) {
            self.log.not_kept(source, "time", &io::Error::from(error));
        }
    }
}

/// About the order of their blocks.
fn by_inode(a: &Entry, b: &Entry) -> Ordering {
    a.ino.cmp(&b.ino)
}

fn opened<'w, 's>(
    written: &'w mut Option<Written<'s>>,
    spot: CopyTarget<'s>,
    options: &CopyOptions,
    log: &mut Log<'_>,
) -> Result<&'w mut Written<'s>> {
    match written {
        Some(written) => Ok(written),
        None => Ok(written.insert(Written::open(spot, options, log)?)),
    }
}
