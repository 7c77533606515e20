//! Copying from the host to a volume.

use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::Stat;
use steadfs_vfs::{Cx, FileKind, FileSystem};

use super::copying::{CopyOptions, Follow, Lengths, Log, Paths, Progress, Report};
use super::first_copies::FirstCopies;
use super::folders::Folders;
use super::host::{self, Opening, Source};
use super::maker::{CopyTarget, Dir, Kept, Maker, Node, copying};
use super::output::Output;
use super::walk::{Held, check_depth, check_end, resolve, resolve_parent};
use super::{At, AtHost, CHUNK, HostFile, LISTS, Result, host_path, is_root_path, refused};
use crate::owners::OwnerRules;

/// In a reproducible copy, aligned runs of zeros of this size become holes, however the host stores the file.
pub(super) const HOLE_BYTES: u64 = 4096;

/// Copies the file or tree at `from` on the host; the copy's path on the volume is `to`. An existing directory is filled.
/// The copy keeps types, permissions, owners (if requested), access and modification times, extended attributes, holes
/// and hard links. What cannot be copied or kept is reported to `progress`, and the copy continues with the next file; a
/// partial file is removed. Nothing is durable before the volume is synced or closed.
///
/// # Errors
/// The named file cannot be copied, or the target volume failed.
pub fn copy_in(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &Path,
    to: &[u8],
    options: CopyOptions,
    progress: &mut dyn Progress,
) -> Result<Report> {
    copy_in_by(fs, cx, from, to, (options, None), progress)
}

/// As [`copy_in`], where hard links are kept among all copies with the same `firsts`.
///
/// # Errors
/// The same.
pub fn copy_in_linked(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &Path,
    to: &[u8],
    (options, firsts): (CopyOptions, &mut FirstCopies<'_, HostFile>),
    progress: &mut dyn Progress,
) -> Result<Report> {
    let cx = &copying(cx);
    Copier::new(fs, cx, options, (firsts, progress)).named(from, to)
}

/// As [`copy_in`], with other owners.
pub(crate) fn copy_in_by(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &Path,
    to: &[u8],
    (options, rules): (CopyOptions, Option<&OwnerRules>),
    progress: &mut dyn Progress,
) -> Result<Report> {
    let (cx, mut firsts) = (&copying(cx), FirstCopies::to(fs));
    let mut copier = Copier::new(fs, cx, options, (&mut firsts, progress));
    copier.maker.rules = rules;
    copier.named(from, to)
}

/// Copies what can be read from `file`, up to its end, to a regular file at `to`. A new one gets the permissions
/// `perm` and the caller's owner.
///
/// # Errors
/// Those of reading and of making the file.
pub fn copy_stream_in(
    fs: &dyn FileSystem,
    cx: &Cx,
    file: BorrowedFd<'_>,
    (to, perm): (&[u8], u32),
    options: CopyOptions,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let mut firsts = FirstCopies::to(fs);
    let mut copier = Copier::new(fs, cx, options, (&mut firsts, progress));
    let (dir, name) = target(fs, cx, to, FileKind::Regular)?;
    let spot = spot(&dir, &name, to);
    let (uid, gid) = host::own_ids();
    let kept = Kept {
        kind: FileKind::Regular,
        perm,
        uid,
        gid,
        times: None,
        xattrs: Vec::new(),
    };
    if !copier.maker.is_skipped(&spot, &mut copier.log)? {
        copier.log.begin(b"-", to)?;
        let read = |output: &mut Output<'_, '_>, log: &mut Log<'_>| {
            stream(file, Path::new("-"), output, log)
        };
        let maker = copier.maker;
        drop(maker.regular(spot, &mut copier.log, read, |_| kept)?);
        copier.log.report.files += 1;
    }
    copier.log.settle(fs)?;
    Ok(copier.log.report)
}

/// The directory and name of the target, which must be able to be what is copied.
fn target<'a>(
    fs: &'a dyn FileSystem,
    cx: &Cx,
    to: &[u8],
    kind: FileKind,
) -> Result<(Held<'a>, Vec<u8>)> {
    let (dir, name) = match is_root_path(to) {
        true => (Held::root(fs, cx).on_volume(to)?, Vec::new()),
        false => resolve_parent(fs, cx, to).on_volume(to)?,
    };
    let there = || resolve(fs, cx, to, true).map(|held| held.attr().kind);
    check_end(kind, to, there).on_volume(to)?;
    Ok((dir, name))
}

fn spot<'a>(dir: &Held<'_>, name: &'a [u8], path: &'a [u8]) -> CopyTarget<'a> {
    CopyTarget {
        into: dir.ino(),
        name,
        path,
        top: true,
        source: None,
        later: false,
    }
}

/// A directory that is being filled.
struct Frame<'a> {
    dir: Dir<'a>,
    entries: std::vec::IntoIter<host::Entry>,
    stat: Stat,
    paths: Lengths,
    /// It gets the attributes of its original after it is filled.
    keeps: bool,
}

struct Copier<'a, 'p, 'f> {
    maker: Maker<'a>,
    options: CopyOptions,
    log: Log<'p>,
    /// The copies of files with several names, by the host's device and inode number.
    firsts: &'p mut FirstCopies<'f, HostFile>,
    /// For content on its way.
    buffer: Vec<u8>,
    /// If all links are followed: the directories being copied, to which a link may lead back.
    around: BTreeSet<HostFile>,
}

impl<'a, 'p, 'f> Copier<'a, 'p, 'f> {
    fn new(
        fs: &'a dyn FileSystem,
        cx: &'a Cx,
        options: CopyOptions,
        (firsts, progress): (&'p mut FirstCopies<'f, HostFile>, &'p mut dyn Progress),
    ) -> Self {
        Self {
            maker: Maker {
                fs,
                cx,
                options,
                rules: None,
            },
            options,
            log: Log::new(progress),
            firsts,
            buffer: Vec::new(),
            around: BTreeSet::new(),
        }
    }

    /// Copies the file or tree at a path.
    fn named(mut self, from: &Path, to: &[u8]) -> Result<Report> {
        let Maker {
            fs, cx, options, ..
        } = self.maker;
        let how = Opening {
            follow: options.follow != Follow::Never,
            read_special: !options.recursive,
        };
        let source = host::open_source(host::cwd(), from.as_os_str(), how).on_host(from)?;
        let kind = match kind_of(&source.stat) {
            FileKind::Directory => FileKind::Directory,
            _ => FileKind::Regular,
        };
        let (dir, name) = target(fs, cx, to, kind)?;
        let spot = spot(&dir, &name, to);
        let copied = self.tree(source, from, spot);
        let settled = self.log.settle(fs);
        copied.and(settled)?;
        Ok(self.log.report)
    }

    fn tree(&mut self, top: Source, from: &Path, spot: CopyTarget<'_>) -> Result<()> {
        if kind_of(&top.stat) != FileKind::Directory {
            return self.file(&top, from, spot);
        }
        let mut paths = Paths {
            source: from.as_os_str().as_bytes().to_vec(),
            target: spot.path.to_vec(),
        };
        let mut folders = match self.options.follow {
            Follow::Always => Folders::through_links(),
            _ => Folders::default(),
        };
        let (frame, dir) = self.enter(top, &paths, spot)?;
        folders.enter(dir).on_host(from)?;
        let mut stack = vec![frame];
        let mut end = Ok(());
        while let (depth, Some(frame), Some(here)) = (stack.len(), stack.last_mut(), folders.here())
        {
            paths.back_to(frame.paths);
            // A stopped copy still finishes the directories that it is in.
            let next = end.is_ok().then(|| frame.entries.next()).flatten();
            let Some(entry) = next else {
                let path = host_path(&paths.source);
                let left = folders.leave().on_host(path)?;
                self.around.remove(&host::id_of(&frame.stat));
                if let Some(fd) = left.filter(|_| frame.keeps) {
                    // Last, because filling changes its times, and a default ACL would be inherited.
                    let source = Source {
                        fd,
                        stat: frame.stat,
                    };
                    self.attributes(&frame.dir, &source, &paths.target);
                }
                stack.pop();
                continue;
            };
            paths.push(&entry.name);
            let into = &mut frame.dir;
            let done =
                self.entry(here, &entry, into, &paths, depth)
                    .and_then(|below| match below {
                        Some((frame, dir)) => {
                            folders.enter(dir).on_host(host_path(&paths.source))?;
                            stack.push(frame);
                            Ok(())
                        }
                        None => Ok(()),
                    });
            end = done.or_else(|error| self.log.failed(error));
        }
        end
    }

    /// Copies an entry of a directory; of a subdirectory it returns the frame to fill.
    fn entry(
        &mut self,
        here: BorrowedFd<'_>,
        entry: &host::Entry,
        into: &mut Dir<'_>,
        paths: &Paths,
        depth: usize,
    ) -> Result<Option<(Frame<'a>, OwnedFd)>> {
        let path = host_path(&paths.source);
        let how = Opening {
            follow: self.options.follow == Follow::Always,
            read_special: false,
        };
        let from = host::open_entry(here, entry, how).on_host(path)?;
        let name = &entry.name;
        let spot = CopyTarget {
            into: into.held.ino(),
            name,
            path: &paths.target,
            top: false,
            source: None,
            later: from.stat.st_nlink == 1 && into.is_free(name),
        };
        let maker = self.maker;
        maker.apart(into, &spot, || {
            if kind_of(&from.stat) == FileKind::Directory {
                check_depth(depth, &paths.target)?;
                return self.enter(from, paths, spot).map(Some);
            }
            self.file(&from, path, spot)?;
            Ok(None)
        })
    }

    /// Makes a directory, or uses the existing one.
    fn enter(
        &mut self,
        from: Source,
        paths: &Paths,
        spot: CopyTarget<'_>,
    ) -> Result<(Frame<'a>, OwnedFd)> {
        let source = &paths.source;
        if !self.options.recursive {
            return refused(
                source,
                "is a directory; -r copies it with all that is in it",
            );
        }
        self.log.begin(source, spot.path)?;
        let id = host::id_of(&from.stat);
        if self.around.contains(&id) {
            return refused(source, "a symbolic link leads to a folder around it");
        }
        let (entries, error) = host::entries(from.fd.as_fd());
        if let Err(error) = error.map_or(Ok(()), Err).on_host(host_path(source)) {
            self.log.failed(error)?;
        }
        let dir = self.maker.dir(&spot)?;
        self.log.report.files += 1;
        if self.options.follow == Follow::Always {
            self.around.insert(id);
        }
        let frame = Frame {
            keeps: dir.made || self.options.preserve,
            dir,
            entries: entries.into_iter(),
            stat: from.stat,
            paths: paths.lengths(),
        };
        Ok((frame, from.fd))
    }

    /// Copies a file that is not a directory.
    fn file(&mut self, from: &Source, path: &Path, spot: CopyTarget<'_>) -> Result<()> {
        let id = host::id_of(&from.stat);
        if self.options.image == Some(id) {
            let why = "is the image that is copied into";
            return refused(path.as_os_str().as_bytes(), why);
        }
        if self.maker.is_skipped(&spot, &mut self.log)? {
            return Ok(());
        }
        self.log.begin(path.as_os_str().as_bytes(), spot.path)?;
        if let Some(first) = self.firsts.of(&id) {
            self.maker.link(first, &spot)?;
            self.log.report.files += 1;
            return Ok(());
        }
        let held = match kind_of(&from.stat) {
            FileKind::Regular => self.content(from, path, spot)?,
            FileKind::Symlink => self.special(from, path, spot)?,
            _ if self.options.recursive => self.special(from, path, spot)?,
            FileKind::Socket => {
                return refused(
                    path.as_os_str().as_bytes(),
                    "is a socket, without content; -r copies it as such",
                );
            }
            _ => self.content(from, path, spot)?,
        };
        self.log.report.files += 1;
        if let Some(held) = held.filter(|_| from.stat.st_nlink > 1)
            && self.maker.is_only_name(&spot, &held)?
        {
            self.firsts.add(id, held);
        }
        Ok(())
    }

    fn special(
        &mut self,
        from: &Source,
        path: &Path,
        spot: CopyTarget<'_>,
    ) -> Result<Option<Held<'a>>> {
        let kind = kind_of(&from.stat);
        let target = match kind {
            FileKind::Symlink => from.link_target().on_host(path)?,
            _ => Vec::new(),
        };
        let device = from.stat.st_rdev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let node = Node {
            kind,
            rdev: (minor & 0xff) | (major << 8) | ((minor & 0xf_ff00) << 12),
            target: &target,
        };
        let kept = kept(from, spot.path, &mut self.log);
        self.maker.special(&node, &spot, kept, &mut self.log)
    }

    /// Copies a regular file, or what can be read from a device or pipe.
    fn content(
        &mut self,
        from: &Source,
        path: &Path,
        spot: CopyTarget<'_>,
    ) -> Result<Option<Held<'a>>> {
        let (maker, log, buffer) = (self.maker, &mut self.log, &mut self.buffer);
        if kind_of(&from.stat) == FileKind::Regular {
            let even = self.options.latest.is_some();
            let read = |output: &mut Output<'_, '_>, log: &mut Log<'_>| {
                sparse((from, path), even, buffer, output, log)
            };
            return maker.regular(spot, log, read, |log| kept(from, spot.path, log));
        }
        let read = |output: &mut Output<'_, '_>, log: &mut Log<'_>| {
            stream(from.fd.as_fd(), path, output, log)
        };
        maker.regular(spot, log, read, |_| kept_of_content(&from.stat))
    }

    fn attributes(&mut self, dir: &Dir<'_>, from: &Source, target: &[u8]) {
        let kept = kept(from, target, &mut self.log);
        self.maker.keep_of_dir(dir, kept, target, &mut self.log);
    }
}

/// The attributes that a copy keeps.
fn kept(from: &Source, target: &[u8], log: &mut Log<'_>) -> Kept {
    let stat = &from.stat;
    let mut perm = stat.st_mode & 0o7777;
    let mut xattrs = from.xattrs().unwrap_or_else(|error| {
        log.not_kept(target, "extended attributes", &error);
        if from.may_have(LISTS[0]) {
            perm = super::perm_without_list(perm, None);
        }
        Vec::new()
    });
    // Their order depends on the host.
    xattrs.sort_unstable();
    Kept {
        kind: kind_of(stat),
        perm,
        times: Some(host::times_of(stat)),
        xattrs,
        ..kept_of_content(stat)
    }
}

/// The attributes that a regular file keeps of the device or pipe its content was read from.
fn kept_of_content(stat: &Stat) -> Kept {
    Kept {
        kind: FileKind::Regular,
        perm: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        times: None,
        xattrs: Vec::new(),
    }
}

/// Most bytes of a file that is read without a search for holes, which has two calls for each piece of data.
const SMALL_MAX: u64 = 64 << 10;

/// Copies the content of a regular file without its holes, or if `even` without its blocks of zeros. Returns its size.
fn sparse(
    (from, path): (&Source, &Path),
    even: bool,
    buffer: &mut Vec<u8>,
    output: &mut Output<'_, '_>,
    log: &mut Log<'_>,
) -> Result<u64> {
    let (file, mut at) = (&from.fd, 0);
    let mut copy = |at: u64, end: u64| {
        let want = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
        let into = room(buffer, want);
        let n = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *into, at));
        let n = n.on_host(path)?;
        let written = match even {
            true => runs(&into[..n]),
            false => iter::once(0..n).filter(|all| !all.is_empty()).collect(),
        };
        for run in written {
            output.write(at + run.start as u64, &into[run])?;
        }
        log.bytes(n)?;
        Ok(n as u64)
    };
    if let Some(size) = small_size(&from.stat, even) {
        // A byte more, to find the end.
        let n = copy(0, size + 1)?;
        if n <= size {
            return Ok(n);
        }
        at = n; // It has grown.
    }
    while let Some((start, end)) = host::next_data(file, at).on_host(path)? {
        at = if even {
            start - start % HOLE_BYTES
        } else {
            start
        };
        while at < end {
            let n = copy(at, end)?;
            if n == 0 {
                return Ok(at); // The current end of the file.
            }
            at += n;
        }
    }
    let size = rustix::fs::fstat(file).on_host(path)?.st_size;
    Ok(u64::try_from(size).unwrap_or(0).max(at))
}

/// The size of a small file that has no holes, or whose holes do not matter.
fn small_size(stat: &Stat, even: bool) -> Option<u64> {
    let size = u64::try_from(stat.st_size).ok()?;
    let allocated = u64::try_from(stat.st_blocks).ok()?.saturating_mul(512);
    (size <= SMALL_MAX && (even || allocated >= size)).then_some(size)
}

/// The first `len` bytes of a buffer, which grows as needed: most files are smaller than the largest piece.
pub(super) fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// The runs of `bytes`, which begin at a multiple of [`HOLE_BYTES`], that are not zeros.
pub(super) fn runs(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let step = HOLE_BYTES as usize;
    for (piece, start) in bytes.chunks(step).zip((0..).step_by(step)) {
        if piece.iter().all(|&byte| byte == 0) {
            continue;
        }
        let end = start + piece.len();
        match runs.last_mut().filter(|run| run.end == start) {
            Some(run) => run.end = end,
            None => runs.push(start..end),
        }
    }
    runs
}

/// Copies a stream up to its end. Returns the number of bytes.
fn stream(
    file: BorrowedFd<'_>,
    path: &Path,
    output: &mut Output<'_, '_>,
    log: &mut Log<'_>,
) -> Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    loop {
        log.check_stopped()?;
        if !host::is_readable(file).on_host(path)? {
            continue;
        }
        let n = match rustix::io::read(file, &mut buffer[..]) {
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
            read => read.on_host(path)?,
        };
        if n == 0 {
            return Ok(at);
        }
        output.write(at, &buffer[..n])?;
        at += n as u64;
        log.bytes(n)?;
    }
}

/// The type of a file of the host; Linux has no others.
fn kind_of(stat: &Stat) -> FileKind {
    host::kind_of(stat).unwrap_or(FileKind::Regular)
}
