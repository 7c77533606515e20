//! Copying from the host to a volume.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, Stat};
use steadfs_base::InodeNo;
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, SetAttr, SetTime, SetXattr};

use super::copy_out::is_refusal;
use super::host::{self, Target};
use super::list::printable;
use super::walk::{Held, child, resolve_parent};
use super::{At, AtHost, CHUNK, Progress, Report, Result, join, os};

/// How [`copy_in`] copies.
#[derive(Clone, Copy, Debug)]
pub struct CopyIn {
    /// Keep owners; else everything belongs to the volume's root user.
    pub owners: bool,
    /// Replace files that are there; else they are an error.
    pub overwrite: bool,
}

/// Copies the file or tree at `from` on the host; the copy's path on the volume is `to`. A folder
/// that is there already is filled. Kept are types, permissions, owners (if asked), times of access
/// and change, extended attributes, holes and hard links; what the volume refuses to keep is in the
/// report. Nothing is durable before the volume is synced or closed.
///
/// # Errors
/// The first failure, with its place; what was copied until then stays.
pub fn copy_in(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &Path,
    to: &[u8],
    how: CopyIn,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let mut copier = Copier {
        fs,
        cx,
        how,
        progress,
        report: Report::default(),
        first_names: BTreeMap::new(),
    };
    let stat = host::stat(host::cwd(), from.as_os_str()).on_host(from)?;
    let is_root = to
        .split(|&b| b == b'/')
        .all(|name| name.is_empty() || name == b".");
    let (dir, name) = if is_root {
        (Held::root(fs, cx).on_volume(to)?, Vec::new())
    } else {
        resolve_parent(fs, cx, to).on_volume(to)?
    };
    let place = Place {
        dir: host::cwd(),
        host_name: from.as_os_str().as_encoded_bytes(),
        source: from.to_owned(),
        into: dir.ino(),
        name: &name,
        target: to.to_vec(),
    };
    copier.tree(&stat, &place)?;
    Ok(copier.report)
}

/// Where a file comes from and goes to. An empty `name` is the volume's root itself.
struct Place<'a> {
    dir: BorrowedFd<'a>,
    host_name: &'a [u8],
    source: PathBuf,
    into: InodeNo,
    name: &'a [u8],
    target: Vec<u8>,
}

/// A folder that is being filled.
struct Frame<'a> {
    held: Held<'a>,
    names: std::vec::IntoIter<Vec<u8>>,
    dir: OwnedFd,
    stat: Stat,
    source: PathBuf,
    target: Vec<u8>,
}

struct Copier<'a, 'p> {
    fs: &'a dyn FileSystem,
    cx: &'a Cx,
    how: CopyIn,
    progress: &'p mut dyn Progress,
    report: Report,
    /// What files of several names became, by the host's device and inode number.
    first_names: BTreeMap<(u64, u64), Held<'a>>,
}

impl<'a> Copier<'a, '_> {
    fn tree(&mut self, stat: &Stat, place: &Place<'_>) -> Result<()> {
        if host::kind_of(stat) != Some(FileKind::Directory) {
            return self.file(stat, place);
        }
        let mut stack = vec![self.enter(stat, place)?];
        while let Some(frame) = stack.last_mut() {
            let Some(name) = frame.names.next() else {
                // Last, for filling it changes its times and a default ACL would be inherited.
                let from = Target::Open(frame.dir.as_fd());
                let ino = frame.held.ino();
                self.attributes(ino, &frame.stat, &from, (&frame.source, &frame.target))?;
                stack.pop();
                continue;
            };
            let source = frame.source.join(os(&name));
            let stat = host::stat(frame.dir.as_fd(), os(&name)).on_host(&source)?;
            let place = Place {
                dir: frame.dir.as_fd(),
                host_name: &name,
                source,
                into: frame.held.ino(),
                name: &name,
                target: join(&frame.target, &name),
            };
            if host::kind_of(&stat) == Some(FileKind::Directory) {
                let frame = self.enter(&stat, &place)?;
                stack.push(frame);
            } else {
                self.file(&stat, &place)?;
            }
        }
        Ok(())
    }

    /// Makes a folder, or takes the one that is there.
    fn enter(&mut self, stat: &Stat, place: &Place<'_>) -> Result<Frame<'a>> {
        self.progress.file(&place.target);
        self.report.files += 1;
        let dir = host::open_dir(place.dir, os(place.host_name)).on_host(&place.source)?;
        let names = host::names(dir.as_fd()).on_host(&place.source)?;
        let held = self.make_dir(place).on_volume(&place.target)?;
        Ok(Frame {
            held,
            names: names.into_iter(),
            dir,
            stat: *stat,
            source: place.source.clone(),
            target: place.target.clone(),
        })
    }

    fn make_dir(&self, place: &Place<'_>) -> steadfs_vfs::Result<Held<'a>> {
        let (fs, cx) = (self.fs, self.cx);
        if place.name.is_empty() {
            return Held::root(fs, cx);
        }
        match fs.mkdir(cx, place.into, place.name, 0o700) {
            Ok(attr) => Ok(Held::counted(fs, attr)),
            Err(FsError::Exists) => {
                let there = child(fs, cx, place.into, place.name)?;
                match there.attr().kind {
                    FileKind::Directory => Ok(there),
                    _ => Err(FsError::Exists),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Copies what is no folder.
    fn file(&mut self, stat: &Stat, place: &Place<'_>) -> Result<()> {
        let (fs, cx) = (self.fs, self.cx);
        self.progress.file(&place.target);
        self.report.files += 1;
        if place.name.is_empty() {
            return Err(FsError::IsDir).on_volume(&place.target);
        }
        if self.how.overwrite {
            match fs.unlink(cx, place.into, place.name) {
                Ok(()) | Err(FsError::NotFound) => {}
                Err(error) => return Err(error).on_volume(&place.target),
            }
        }
        let host_id = (stat.st_dev, stat.st_ino);
        if let Some(first) = self.first_names.get(&host_id) {
            let attr = fs
                .link(cx, first.ino(), place.into, place.name)
                .on_volume(&place.target)?;
            drop(Held::counted(fs, attr));
            return Ok(());
        }
        let attr = self.make(stat, place)?;
        let held = Held::counted(fs, attr);
        if held.attr().kind == FileKind::Regular {
            self.content(held.ino(), stat, place)?;
        } else {
            let from = Target::Named(place.dir, os(place.host_name));
            self.attributes(held.ino(), stat, &from, (&place.source, &place.target))?;
        }
        if stat.st_nlink > 1 {
            self.first_names.insert(host_id, held);
        }
        Ok(())
    }

    fn make(&mut self, stat: &Stat, place: &Place<'_>) -> Result<Attr> {
        let (fs, cx) = (self.fs, self.cx);
        if host::kind_of(stat) == Some(FileKind::Symlink) {
            let target = rustix::fs::readlinkat(place.dir, os(place.host_name), Vec::new())
                .on_host(&place.source)?;
            return fs
                .symlink(cx, place.into, place.name, target.to_bytes())
                .on_volume(&place.target);
        }
        let (major, minor) = (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        );
        let device = (minor & 0xff) | (major << 8) | ((minor & 0xf_ff00) << 12);
        let mode = (stat.st_mode & 0o170_000) | 0o600;
        fs.mknod(cx, place.into, place.name, mode, device)
            .on_volume(&place.target)
    }

    fn content(&mut self, ino: InodeNo, stat: &Stat, place: &Place<'_>) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(place.dir, os(place.host_name), flags, Mode::empty())
            .on_host(&place.source)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        'data: while let Some((start, end)) =
            host::next_data(&file, at, size).on_host(&place.source)?
        {
            at = start;
            while at < end {
                let want = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
                let n =
                    rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut buffer[..want], at))
                        .on_host(&place.source)?;
                if n == 0 {
                    break 'data; // It was truncated meanwhile.
                }
                self.fs
                    .write(self.cx, ino, at, &buffer[..n], false)
                    .on_volume(&place.target)?;
                at += n as u64;
                self.report.bytes += n as u64;
                self.progress.bytes(n as u64);
            }
        }
        if at < size {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            self.fs
                .setattr(self.cx, ino, &set)
                .on_volume(&place.target)?;
        }
        let from = Target::Open(file.as_fd());
        self.attributes(ino, stat, &from, (&place.source, &place.target))
    }

    /// Sets owner and permissions, then extended attributes, then times: each would undo a later one.
    fn attributes(
        &mut self,
        ino: InodeNo,
        stat: &Stat,
        from: &Target<'_>,
        (source, target): (&Path, &[u8]),
    ) -> Result<()> {
        let (fs, cx) = (self.fs, self.cx);
        let is_link = host::kind_of(stat) == Some(FileKind::Symlink);
        let set = SetAttr {
            perm: (!is_link).then_some(stat.st_mode & 0o7777),
            uid: Some(if self.how.owners { stat.st_uid } else { 0 }),
            gid: Some(if self.how.owners { stat.st_gid } else { 0 }),
            ..SetAttr::default()
        };
        fs.setattr(cx, ino, &set).on_volume(target)?;
        let xattrs = match from.xattrs() {
            Err(error) if is_refusal(&error) => {
                self.warn(target, &format!("attributes were not kept: {error}"));
                Vec::new()
            }
            xattrs => xattrs.on_host(source)?,
        };
        for (name, value) in xattrs {
            match fs.setxattr(cx, ino, &name, &value, SetXattr::Any) {
                Ok(()) => {}
                Err(error @ (FsError::NotSupported(_) | FsError::NoSpace | FsError::TooBig)) => {
                    let shown = printable(&name);
                    self.warn(target, &format!("attribute {shown} was not kept: {error}"));
                }
                Err(error) => return Err(error).on_volume(target),
            }
        }
        let (atime, mtime) = host::times_of(stat);
        let set = SetAttr {
            atime: Some(SetTime::At(atime)),
            mtime: Some(SetTime::At(mtime)),
            ..SetAttr::default()
        };
        fs.setattr(cx, ino, &set).on_volume(target)?;
        Ok(())
    }

    fn warn(&mut self, target: &[u8], what: &str) {
        self.report
            .warnings
            .push(format!("{}: {what}", printable(target)));
    }
}
