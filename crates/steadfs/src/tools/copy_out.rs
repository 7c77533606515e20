//! Copying from a volume to the host.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use steadfs_base::InodeNo;
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, Seek, Segment};

use super::folders::Folders;
use super::host::{self, Target};
use super::list::device_numbers;
use super::printable;
use super::walk::{Entry, Held, Met, check_depth, check_end, child, read_dir, resolve};
use super::{At, AtHost, CHUNK, Lengths, Paths, Progress, Report, Result, host_path, os};

/// How [`copy_out`] copies.
#[derive(Clone, Copy, Debug)]
pub struct CopyOut {
    /// Keep owners (only root can).
    pub owners: bool,
    /// Replace files that are there; else they are an error.
    pub overwrite: bool,
    /// Follow a symbolic link at the end of the source path.
    pub follow: bool,
    /// The file that the volume lies on, by device and inode number: it is never replaced.
    pub image: Option<HostFile>,
}

/// Copies the file or tree at `from` on the volume; the copy's path is `to`. A folder that is there
/// already is filled. Kept are types, permissions, owners (if asked), times, extended attributes,
/// holes and hard links; what the host refuses to keep is in the report.
///
/// # Errors
/// The first failure, with its place; what was copied until then stays.
pub fn copy_out(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &[u8],
    to: &Path,
    how: CopyOut,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let file = resolve(fs, cx, from, how.follow).on_volume(from)?;
    let mut copier = Copier {
        fs,
        cx,
        how,
        progress,
        report: Report::default(),
        first_names: BTreeMap::new(),
        folders: Met::default(),
    };
    let (dir, name) = match (to.parent(), to.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), name),
        (Some(parent), Some(name)) => (parent, name),
        // `.`, `..` or `/`: a folder that is there.
        _ => (to, ".".as_ref()),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(dir, flags, Mode::empty()).on_host(dir)?;
    let ends = check_end(file.attr().kind, to.as_os_str().as_bytes(), || {
        host::kind_at(to)
    });
    ends.map_err(|error| io::Error::from_raw_os_error(error.errno()))
        .on_host(to)?;
    let place = Place {
        source: from,
        target: to,
        dir: folder.as_fd(),
        name: name.as_encoded_bytes(),
    };
    copier.tree(file, &place)?;
    Ok(copier.report)
}

/// Reads the data of a file's content and hands it on in file order with its offsets; holes are left
/// out. Returns the bytes handed on.
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
            let contradiction = FsError::Corrupt(format!("inode {ino}: holes and data overlap"));
            return Err(contradiction).on_volume(path);
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

/// Where a file comes from and goes to.
struct Place<'a> {
    source: &'a [u8],
    target: &'a Path,
    dir: BorrowedFd<'a>,
    name: &'a [u8],
}

/// A folder that is being filled.
struct Frame<'a> {
    held: Held<'a>,
    entries: std::vec::IntoIter<Entry>,
    paths: Lengths,
}

/// The copy of a file of several names.
struct First {
    path: PathBuf,
    /// What was made there. Its folder may belong to somebody else by now, who can put another file there.
    made: HostFile,
}

/// A file of the host, by device and inode number.
type HostFile = (u64, u64);

struct Copier<'a, 'p> {
    fs: &'a dyn FileSystem,
    cx: &'a Cx,
    how: CopyOut,
    progress: &'p mut dyn Progress,
    report: Report,
    /// Where files of several names were first copied to.
    first_names: BTreeMap<InodeNo, First>,
    folders: Met,
}

impl<'a> Copier<'a, '_> {
    fn tree(&mut self, top: Held<'a>, place: &Place<'_>) -> Result<()> {
        if top.attr().kind != FileKind::Directory {
            return self.file(&top, place);
        }
        let mut paths = Paths {
            source: place.source.to_vec(),
            target: place.target.as_os_str().as_bytes().to_vec(),
        };
        let (frame, dir) = self.enter(top, place, &paths)?;
        let mut folders = Folders::default();
        folders.enter(dir).on_host(place.target)?;
        let mut stack = vec![frame];
        while let (depth, Some(frame), Some(here)) = (stack.len(), stack.last_mut(), folders.here())
        {
            paths.back_to(frame.paths);
            let Some(entry) = frame.entries.next() else {
                // Its own attributes come last: filling it changes its times, and a default ACL or
                // set-group-ID would change what is made in it.
                let path = host_path(&paths.target);
                if let Some(dir) = folders.leave().on_host(path)? {
                    let target = Target::Open(dir.as_fd());
                    self.attributes(frame.held.attr(), &target, &paths.source, path)?;
                }
                stack.pop();
                continue;
            };
            paths.push(&entry.name);
            let source = &paths.source;
            let held = child(self.fs, self.cx, frame.held.ino(), &entry.name).on_volume(source)?;
            let place = Place {
                source,
                target: host_path(&paths.target),
                dir: here,
                name: &entry.name,
            };
            if held.attr().kind == FileKind::Directory {
                check_depth(depth, source)?;
                let (frame, dir) = self.enter(held, &place, &paths)?;
                folders.enter(dir).on_host(host_path(&paths.target))?;
                stack.push(frame);
            } else {
                self.file(&held, &place)?;
            }
        }
        Ok(())
    }

    /// Makes a folder, or takes the one that is there, and opens it.
    fn enter(
        &mut self,
        held: Held<'a>,
        place: &Place<'_>,
        paths: &Paths,
    ) -> Result<(Frame<'a>, OwnedFd)> {
        self.begin(place.source)?;
        self.folders.add(held.ino()).on_volume(place.source)?;
        if place.name != b"." {
            match rustix::fs::mkdirat(place.dir, os(place.name), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error).on_host(place.target),
            }
        }
        let dir = host::open_dir(place.dir, os(place.name)).on_host(place.target)?;
        let entries = read_dir(self.fs, self.cx, held.ino()).on_volume(place.source)?;
        let frame = Frame {
            held,
            entries: entries.into_iter(),
            paths: paths.lengths(),
        };
        Ok((frame, dir))
    }

    fn begin(&mut self, source: &[u8]) -> Result<()> {
        self.progress.file(source);
        super::go_on(self.progress)?;
        self.report.files += 1;
        Ok(())
    }

    /// Refuses to replace what is being read by one of its own files.
    fn spare_image(&self, place: &Place<'_>) -> Result<()> {
        let there = host::stat(place.dir, os(place.name));
        match self.how.image {
            Some(image) if there.is_ok_and(|file| host::id_of(&file) == image) => {
                let why = "is the image that is copied from";
                Err(io::Error::new(io::ErrorKind::InvalidInput, why)).on_host(place.target)
            }
            _ => Ok(()),
        }
    }

    /// Copies what is no folder.
    fn file(&mut self, held: &Held<'_>, place: &Place<'_>) -> Result<()> {
        let attr = held.attr();
        self.begin(place.source)?;
        if attr.kind == FileKind::Regular {
            self.fs
                .open(self.cx, attr.ino, false)
                .on_volume(place.source)?;
        }
        if self.how.overwrite {
            self.spare_image(place)?;
            match rustix::fs::unlinkat(place.dir, os(place.name), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error).on_host(place.target),
            }
        }
        if attr.nlink > 1
            && let Some(first) = self.first_names.get(&attr.ino)
        {
            return another_name(first, place);
        }
        let made = if attr.kind == FileKind::Regular {
            self.regular(attr, place)?
        } else if self.special(attr, place)? {
            let target = Target::Named(place.dir, os(place.name));
            self.attributes(attr, &target, place.source, place.target)?;
            let made = host::stat(place.dir, os(place.name)).on_host(place.target)?;
            host::id_of(&made)
        } else {
            return Ok(()); // It has no further names either.
        };
        if attr.nlink > 1 {
            let path = place.target.to_owned();
            self.first_names.insert(attr.ino, First { path, made });
        }
        Ok(())
    }

    fn regular(&mut self, attr: &Attr, place: &Place<'_>) -> Result<HostFile> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file =
            rustix::fs::openat(place.dir, os(place.name), flags, mode).on_host(place.target)?;
        let progress = &mut *self.progress;
        let mut write = |offset: u64, bytes: &[u8]| {
            write_all_at(&file, bytes, offset).on_host(place.target)?;
            progress.bytes(bytes.len() as u64);
            super::go_on(progress)
        };
        self.report.bytes += write_content(self.fs, self.cx, place.source, attr.ino, &mut write)?;
        rustix::fs::ftruncate(&file, attr.size).on_host(place.target)?;
        let target = Target::Open(file.as_fd());
        self.attributes(attr, &target, place.source, place.target)?;
        let made = rustix::fs::fstat(&file).on_host(place.target)?;
        Ok(host::id_of(&made))
    }

    /// Makes a link, node, pipe or socket. Returns false if the host refuses it to this user.
    fn special(&mut self, attr: &Attr, place: &Place<'_>) -> Result<bool> {
        let made = if attr.kind == FileKind::Symlink {
            let target = self
                .fs
                .readlink(self.cx, attr.ino)
                .on_volume(place.source)?;
            rustix::fs::symlinkat(os(&target), place.dir, os(place.name))
        } else {
            let (major, minor) = device_numbers(attr.rdev);
            let device = match attr.kind {
                FileKind::CharDevice | FileKind::BlockDevice => rustix::fs::makedev(major, minor),
                _ => 0,
            };
            let kind = host::file_type(attr.kind);
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(place.dir, os(place.name), kind, mode, device)
        };
        match made {
            Ok(()) => Ok(true),
            Err(Errno::PERM) => {
                self.report
                    .warn(place.source, "was not made: only root can");
                Ok(false)
            }
            Err(error) => Err(error).on_host(place.target),
        }
    }

    /// Sets owner, permissions, extended attributes and times, in the order in which none undoes
    /// another: a new owner clears set-ID bits and capabilities, an ACL sets permissions, and all
    /// change times.
    fn attributes(
        &mut self,
        attr: &Attr,
        target: &Target<'_>,
        source: &[u8],
        path: &Path,
    ) -> Result<()> {
        if self.how.owners {
            target.chown(attr.uid, attr.gid).on_host(path)?;
        }
        if attr.kind != FileKind::Symlink {
            let stranger = !self.how.owners && (attr.uid, attr.gid) != host::own_ids();
            let perm = super::kept_perm(attr.kind, attr.perm, stranger);
            target.chmod(perm).on_host(path)?;
        }
        for name in self.fs.listxattr(self.cx, attr.ino).on_volume(source)? {
            let value = self
                .fs
                .getxattr(self.cx, attr.ino, &name)
                .on_volume(source)?;
            match target.set_xattr(&name, &value) {
                Ok(()) => {}
                Err(error) if is_refusal(&error) || does_not_fit(&error) => {
                    let shown = printable(&name);
                    self.report
                        .warn(source, &format!("attribute {shown} was not kept: {error}"));
                }
                Err(error) => return Err(error).on_host(path),
            }
        }
        target.set_times(attr).on_host(path)
    }
}

/// Gives the copy of a file of several names one more.
fn another_name(first: &First, place: &Place<'_>) -> Result<()> {
    let file = host::open_path(&first.path).on_host(&first.path)?;
    let found = rustix::fs::fstat(&file).on_host(&first.path)?;
    if host::id_of(&found) != first.made {
        let why = "was replaced while its other names were copied";
        return Err(io::Error::other(why)).on_host(&first.path);
    }
    host::link(&file, place.dir, os(place.name)).on_host(place.target)
}

/// Whether the host does not let this user (or this file system) keep an attribute.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP)
    )
}

/// Whether the host has no place for this attribute's value, or takes no such value.
fn does_not_fit(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::INVAL)
    )
}

fn write_all_at(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let n = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, offset))?;
        if n == 0 {
            return Err(Errno::IO);
        }
        bytes = &bytes[n..];
        offset += n as u64;
    }
    Ok(())
}
