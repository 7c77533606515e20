//! Copying from one volume to another, or within one.

use steadfs_base::InodeNo;
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError};

use super::ahead::Xattrs;
use super::copy_out::write_content;
use super::copying::{CopyOptions, Follow, Lengths, Log, Paths, Progress, Report};
use super::first_copies::FirstCopies;
use super::maker::{CopyTarget, Dir, Kept, Maker, Node, SourceFile, copying};
use super::output::Output;
use super::walk::{
    Entry, Held, VisitedDirs, check_depth, check_end, child, entries, resolve, resolve_parent, way,
};
use super::{At, Result, SAME_FILE, is_root_path, refused};

/// Copies the file or tree at `from` on the volume `source`; the copy's path on the volume `target` is
/// `to`. They may be the same volume. An existing directory is filled. Attributes, durability and errors are as in
/// [`copy_in`](super::copy_in).
///
/// # Errors
/// The named file cannot be copied, or the target volume failed.
pub fn copy_between(
    (source, from): (&dyn FileSystem, &[u8]),
    (target, to): (&dyn FileSystem, &[u8]),
    cx: &Cx,
    options: CopyOptions,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let with = (options, &mut FirstCopies::to(target));
    copy_between_linked((source, from), (target, to), cx, with, progress)
}

/// As [`copy_between`], where hard links are kept among all copies with the same `firsts`.
///
/// # Errors
/// The same.
pub fn copy_between_linked(
    (source, from): (&dyn FileSystem, &[u8]),
    (target, to): (&dyn FileSystem, &[u8]),
    cx: &Cx,
    (options, firsts): (CopyOptions, &mut FirstCopies<'_, InodeNo>),
    progress: &mut dyn Progress,
) -> Result<Report> {
    let top = resolve(source, cx, from, options.follow != Follow::Never).on_volume(from)?;
    let (into, name) = if is_root_path(to) {
        (Held::root(target, cx).on_volume(to)?, Vec::new())
    } else {
        resolve_parent(target, cx, to).on_volume(to)?
    };
    let there = || resolve(target, cx, to, true).map(|held| held.attr().kind);
    check_end(top.attr().kind, to, there).on_volume(to)?;
    let same_volume = std::ptr::addr_eq(source, target);
    if same_volume && top.attr().kind == FileKind::Directory {
        refuse_itself(target, cx, &top, to).on_volume(from)?;
    }
    let cx = &copying(cx);
    let mut copier = Copier {
        source,
        maker: Maker {
            fs: target,
            cx,
            options,
            rules: None,
        },
        cx,
        options,
        same_volume,
        log: Log::new(progress),
        firsts,
        folders: VisitedDirs::new(options.follow),
    };
    let spot = CopyTarget {
        into: into.ino(),
        name: &name,
        path: to,
        top: true,
        source: None,
        later: false,
    };
    let copied = copier.tree(top, from, spot);
    let settled = copier.log.settle(copier.maker.fs);
    copied.and(settled)?;
    Ok(copier.log.report)
}

/// Refuses to copy a directory into itself, which would never end.
fn refuse_itself(
    fs: &dyn FileSystem,
    cx: &Cx,
    top: &Held<'_>,
    to: &[u8],
) -> steadfs_vfs::Result<()> {
    let mut names: Vec<&[u8]> = to.split(|&b| b == b'/').collect();
    names.retain(|name| !name.is_empty() && *name != b".");
    names.pop();
    let around = way(fs, cx, &names.join(&b'/'), true)?;
    let inside = around.iter().any(|held| held.ino() == top.ino());
    let same = match resolve(fs, cx, to, false) {
        Ok(there) => there.ino() == top.ino(),
        Err(FsError::NotFound) => false,
        Err(error) => return Err(error),
    };
    match (same, inside) {
        (true, _) => Err(FsError::Invalid(SAME_FILE)),
        (_, true) => Err(FsError::Invalid("a folder cannot be copied into itself")),
        _ => Ok(()),
    }
}

/// A directory that is being filled.
struct Frame<'a> {
    from: Held<'a>,
    entries: std::vec::IntoIter<Entry>,
    to: Dir<'a>,
    paths: Lengths,
    /// It gets the attributes of its original after it is filled.
    keeps: bool,
}

struct Copier<'a, 'p, 'f> {
    source: &'a dyn FileSystem,
    maker: Maker<'a>,
    cx: &'a Cx,
    options: CopyOptions,
    same_volume: bool,
    log: Log<'p>,
    /// The copies of files with several names.
    firsts: &'p mut FirstCopies<'f, InodeNo>,
    folders: VisitedDirs,
}

impl<'a> Copier<'a, '_, '_> {
    fn tree(&mut self, top: Held<'a>, from: &[u8], spot: CopyTarget<'_>) -> Result<()> {
        if top.attr().kind != FileKind::Directory {
            return self.file(&top, from, spot);
        }
        let mut paths = Paths {
            source: from.to_vec(),
            target: spot.path.to_vec(),
        };
        let mut stack = vec![self.enter(top, &paths, spot)?];
        let mut end = Ok(());
        while let (depth, Some(frame)) = (stack.len(), stack.last_mut()) {
            paths.back_to(frame.paths);
            // A stopped copy still finishes the directories that it is in.
            let next = end.is_ok().then(|| frame.entries.next()).flatten();
            let Some(entry) = next else {
                if frame.keeps {
                    // Last, because filling changes its times, and a default ACL would be inherited.
                    let (fs, cx, log) = (self.source, self.cx, &mut self.log);
                    let kept = kept(fs, cx, frame.from.attr(), &paths.source, log);
                    let (to, path) = (&frame.to, &paths.target);
                    self.maker.keep_of_dir(to, kept, path, &mut self.log);
                }
                self.folders.leave(frame.from.ino());
                stack.pop();
                continue;
            };
            paths.push(&entry.name);
            let spot = CopyTarget {
                into: frame.to.held.ino(),
                name: &entry.name,
                path: &paths.target,
                top: false,
                source: None,
                later: frame.to.is_free(&entry.name),
            };
            let (maker, from) = (self.maker, frame.from.ino());
            let done = maker
                .apart(&mut frame.to, &spot, || {
                    self.entry(&entry, from, &paths, spot, depth)
                })
                .map(|below| stack.extend(below));
            end = done.or_else(|error| self.log.failed(error));
        }
        end
    }

    /// Copies an entry of a directory; of a subdirectory it returns the frame to fill.
    fn entry(
        &mut self,
        entry: &Entry,
        dir: InodeNo,
        paths: &Paths,
        spot: CopyTarget<'_>,
        depth: usize,
    ) -> Result<Option<Frame<'a>>> {
        let source = &paths.source;
        let mut held = child(self.source, self.cx, dir, &entry.name).on_volume(source)?;
        if held.attr().kind == FileKind::Symlink && self.options.follow == Follow::Always {
            held = resolve(self.source, self.cx, source, true).on_volume(source)?;
        }
        if held.attr().kind == FileKind::Directory {
            check_depth(depth, source)?;
            return self.enter(held, paths, spot).map(Some);
        }
        self.file(&held, source, spot)?;
        Ok(None)
    }

    /// Makes a directory, or uses the existing one. Unreadable entries of its original are reported.
    fn enter(&mut self, from: Held<'a>, paths: &Paths, spot: CopyTarget<'_>) -> Result<Frame<'a>> {
        let source = &paths.source;
        if !self.options.recursive {
            return refused(
                source,
                "is a directory; -r copies it with all that is in it",
            );
        }
        self.log.begin(source, spot.path)?;
        self.folders.check(from.ino()).on_volume(source)?;
        // Read before the copy is made, which within one volume could be an entry of its original.
        let (entries, error) = entries(self.source, self.cx, from.ino());
        let to = self.maker.dir(&spot)?;
        if let Err(error) = error.map_or(Ok(()), Err).on_volume(source) {
            self.log.failed(error)?;
        }
        self.log.report.files += 1;
        self.folders.add(from.ino()).on_volume(source)?;
        Ok(Frame {
            from,
            entries: entries.into_iter(),
            keeps: to.made || self.options.preserve,
            to,
            paths: paths.lengths(),
        })
    }

    /// Copies a file that is not a directory.
    fn file(&mut self, from: &Held<'_>, source: &[u8], spot: CopyTarget<'_>) -> Result<()> {
        let (attr, maker) = (from.attr(), self.maker);
        let spot = CopyTarget {
            source: self.same_volume.then(|| SourceFile {
                ino: from.ino(),
                link: (attr.kind == FileKind::Symlink).then_some(source),
            }),
            later: spot.later && attr.nlink == 1,
            ..spot
        };
        if maker.is_skipped(&spot, &mut self.log)? {
            return Ok(());
        }
        self.log.begin(source, spot.path)?;
        if let Some(first) = self.firsts.of(&attr.ino) {
            maker.link(first, &spot)?;
            self.log.report.files += 1;
            return Ok(());
        }
        let made = match attr.kind {
            FileKind::Regular => self.regular(attr, source, spot)?,
            FileKind::Symlink => self.special(attr, source, spot)?,
            _ if self.options.recursive => self.special(attr, source, spot)?,
            _ => {
                let why = "is a special file without content; -r copies it as such";
                return refused(source, why);
            }
        };
        self.log.report.files += 1;
        if let Some(made) = made.filter(|_| attr.nlink > 1)
            && maker.is_only_name(&spot, &made)?
        {
            self.firsts.add(attr.ino, made);
        }
        Ok(())
    }

    fn special(
        &mut self,
        attr: &Attr,
        source: &[u8],
        spot: CopyTarget<'_>,
    ) -> Result<Option<Held<'a>>> {
        let target = match attr.kind {
            FileKind::Symlink => self.source.readlink(self.cx, attr.ino),
            _ => Ok(Vec::new()),
        };
        let node = Node {
            kind: attr.kind,
            rdev: attr.rdev,
            target: &target.on_volume(source)?,
        };
        let kept = kept(self.source, self.cx, attr, source, &mut self.log);
        self.maker.special(&node, &spot, kept, &mut self.log)
    }

    fn regular(
        &mut self,
        attr: &Attr,
        source: &[u8],
        spot: CopyTarget<'_>,
    ) -> Result<Option<Held<'a>>> {
        let (fs, cx) = (self.source, self.cx);
        let read = |output: &mut Output<'_, '_>, log: &mut Log<'_>| {
            write_content(fs, cx, source, attr.ino, &mut |offset, bytes| {
                output.write(offset, bytes)?;
                log.bytes(bytes.len())
            })?;
            Ok(attr.size)
        };
        let kept = |log: &mut Log<'_>| kept(fs, cx, attr, source, log);
        self.maker.regular(spot, &mut self.log, read, kept)
    }
}

/// The attributes that a copy keeps.
fn kept(fs: &dyn FileSystem, cx: &Cx, attr: &Attr, path: &[u8], log: &mut Log<'_>) -> Kept {
    let xattrs = Xattrs::read(fs, cx, attr.ino);
    Kept {
        kind: attr.kind,
        perm: xattrs.perm_without_list(attr.perm),
        uid: attr.uid,
        gid: attr.gid,
        times: Some((attr.atime, attr.mtime)),
        xattrs: xattrs.kept(path, log, |_| true),
    }
}
