//! Copying from the host to a volume.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::Stat;
use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileKind, FileSystem};

use super::copy_out::is_refusal;
use super::folders::Folders;
use super::host::{self, Source};
use super::maker::{CopyIn, Kept, Maker, Node};
use super::walk::{Held, check_depth, check_end, resolve, resolve_parent};
use super::{
    At, AtHost, CHUNK, Lengths, Paths, Progress, Report, Result, host_path, is_root_path, os,
};

/// Bytes of zeros, aligned, that become a hole where holes must not follow from how the host stores a file.
const HOLE: u64 = 4096;

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
        maker: Maker { fs, cx, how },
        progress,
        report: Report::default(),
        first_names: BTreeMap::new(),
    };
    let source = host::open_source(host::cwd(), from.as_os_str()).on_host(from)?;
    let (dir, name) = if is_root_path(to) {
        (Held::root(fs, cx).on_volume(to)?, Vec::new())
    } else {
        resolve_parent(fs, cx, to).on_volume(to)?
    };
    let there = || resolve(fs, cx, to, true).map(|held| held.attr().kind);
    check_end(kind_of(&source.stat), to, there).on_volume(to)?;
    let place = Place {
        source: from,
        into: dir.ino(),
        name: &name,
        target: to,
    };
    copier.tree(source, &place)?;
    Ok(copier.report)
}

/// Where a file comes from and goes to. An empty `name` is the volume's root itself.
struct Place<'a> {
    source: &'a Path,
    into: InodeNo,
    name: &'a [u8],
    target: &'a [u8],
}

/// A folder that is being filled.
struct Frame<'a> {
    held: Held<'a>,
    names: std::vec::IntoIter<Vec<u8>>,
    stat: Stat,
    paths: Lengths,
}

struct Copier<'a, 'p> {
    maker: Maker<'a>,
    progress: &'p mut dyn Progress,
    report: Report,
    /// What files of several names became, by the host's device and inode number.
    first_names: BTreeMap<(u64, u64), Held<'a>>,
}

impl<'a> Copier<'a, '_> {
    fn tree(&mut self, from: Source, place: &Place<'_>) -> Result<()> {
        if kind_of(&from.stat) != FileKind::Directory {
            return self.file(&from, place);
        }
        let mut paths = Paths {
            source: place.source.as_os_str().as_bytes().to_vec(),
            target: place.target.to_vec(),
        };
        let (frame, dir) = self.enter(from, place, &paths)?;
        let mut folders = Folders::default();
        folders.enter(dir).on_host(place.source)?;
        let mut stack = vec![frame];
        while let (depth, Some(frame), Some(here)) = (stack.len(), stack.last_mut(), folders.here())
        {
            paths.back_to(frame.paths);
            let Some(name) = frame.names.next() else {
                // Last, for filling it changes its times and a default ACL would be inherited.
                let path = host_path(&paths.source);
                if let Some(fd) = folders.leave().on_host(path)? {
                    let (stat, ino) = (frame.stat, frame.held.ino());
                    self.attributes(ino, &Source { fd, stat }, (path, &paths.target))?;
                }
                stack.pop();
                continue;
            };
            paths.push(&name);
            let source = host_path(&paths.source);
            let from = host::open_source(here, os(&name)).on_host(source)?;
            let place = Place {
                source,
                into: frame.held.ino(),
                name: &name,
                target: &paths.target,
            };
            if kind_of(&from.stat) == FileKind::Directory {
                check_depth(depth, &paths.target)?;
                let (frame, dir) = self.enter(from, &place, &paths)?;
                folders.enter(dir).on_host(source)?;
                stack.push(frame);
            } else {
                self.file(&from, &place)?;
            }
        }
        Ok(())
    }

    /// Makes a folder, or takes the one that is there.
    fn enter(
        &mut self,
        from: Source,
        place: &Place<'_>,
        paths: &Paths,
    ) -> Result<(Frame<'a>, OwnedFd)> {
        self.begin(place)?;
        let names = host::names(from.fd.as_fd()).on_host(place.source)?;
        let held = self.maker.dir(place.into, place.name);
        let held = held.on_volume(place.target)?;
        let frame = Frame {
            held,
            names: names.into_iter(),
            stat: from.stat,
            paths: paths.lengths(),
        };
        Ok((frame, from.fd))
    }

    fn begin(&mut self, place: &Place<'_>) -> Result<()> {
        self.progress.file(place.target);
        super::go_on(self.progress)?;
        self.report.files += 1;
        Ok(())
    }

    /// Copies what is no folder.
    fn file(&mut self, from: &Source, place: &Place<'_>) -> Result<()> {
        self.begin(place)?;
        let (maker, into, name) = (self.maker, place.into, place.name);
        maker.make_room(into, name).on_volume(place.target)?;
        let host_id = host::id_of(&from.stat);
        if let Some(first) = self.first_names.get(&host_id) {
            return maker.link(first.ino(), into, name).on_volume(place.target);
        }
        let held = self.make(from, place)?;
        if held.attr().kind == FileKind::Regular {
            self.content(held.ino(), from, place)?;
        }
        self.attributes(held.ino(), from, (place.source, place.target))?;
        if from.stat.st_nlink > 1 {
            self.first_names.insert(host_id, held);
        }
        Ok(())
    }

    fn make(&self, from: &Source, place: &Place<'_>) -> Result<Held<'a>> {
        let kind = kind_of(&from.stat);
        let target = match kind {
            FileKind::Symlink => from.link_target().on_host(place.source)?,
            _ => Vec::new(),
        };
        let device = from.stat.st_rdev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let node = Node {
            kind,
            rdev: (minor & 0xff) | (major << 8) | ((minor & 0xf_ff00) << 12),
            target: &target,
        };
        self.maker
            .file(&node, place.into, place.name)
            .on_volume(place.target)
    }

    fn content(&mut self, ino: InodeNo, from: &Source, place: &Place<'_>) -> Result<()> {
        let file = &from.fd;
        let size = u64::try_from(from.stat.st_size).unwrap_or(0);
        let mut buffer = vec![0; CHUNK];
        let even = self.maker.how.latest.is_some();
        let (mut at, mut reached) = (0, 0);
        'data: while let Some((start, end)) =
            host::next_data(file, at, size).on_host(place.source)?
        {
            at = if even { start - start % HOLE } else { start };
            while at < end {
                let want = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
                let n =
                    rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut buffer[..want], at))
                        .on_host(place.source)?;
                if n == 0 {
                    break 'data; // It was truncated meanwhile.
                }
                let all = iter::once(0..n);
                for run in if even {
                    runs(&buffer[..n])
                } else {
                    all.collect()
                } {
                    let start = at + run.start as u64;
                    let written = self.maker.write(ino, start, &buffer[run.clone()]);
                    written.on_volume(place.target)?;
                    reached = at + run.end as u64;
                }
                at += n as u64;
                self.report.bytes += n as u64;
                self.progress.bytes(n as u64);
                super::go_on(self.progress)?;
            }
        }
        if reached < size {
            self.maker.end_at(ino, size).on_volume(place.target)?;
        }
        Ok(())
    }

    fn attributes(
        &mut self,
        ino: InodeNo,
        from: &Source,
        (source, target): (&Path, &[u8]),
    ) -> Result<()> {
        let mut xattrs = match from.xattrs() {
            Err(error) if is_refusal(&error) => {
                let what = format!("attributes were not kept: {error}");
                self.report.warn(target, &what);
                Vec::new()
            }
            xattrs => xattrs.on_host(source)?,
        };
        // The host keeps them in an order of its own.
        xattrs.sort_unstable();
        let stat = &from.stat;
        let (mut atime, mut mtime) = host::times_of(stat);
        if let Some(latest) = self.maker.how.latest {
            // Reading the tree, as the last copy did, changes the times of access.
            mtime = mtime.min(latest);
            atime = mtime;
        }
        let kept = Kept {
            kind: kind_of(stat),
            perm: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            atime,
            mtime,
            xattrs,
        };
        self.maker.keep(ino, kept, target, &mut self.report)
    }
}

/// Where `bytes`, which begin at a multiple of [`HOLE`], are more than zeros.
fn runs(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let step = HOLE as usize;
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

/// The type of a file of the host; Linux has no others.
fn kind_of(stat: &Stat) -> FileKind {
    host::kind_of(stat).unwrap_or(FileKind::Regular)
}
