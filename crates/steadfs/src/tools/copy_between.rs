//! Copying from one volume to another, or within one.

use std::collections::BTreeMap;

use steadfs_base::InodeNo;
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError};

use super::copy_out::write_content;
use super::maker::{CopyIn, Kept, Maker, Node};
use super::walk::{
    Entry, Held, Met, check_depth, check_end, child, read_dir, resolve, resolve_parent, way,
};
use super::{At, Lengths, Paths, Progress, Report, Result, is_root_path};

/// Copies the file or tree at `from` on the volume `source`; the copy's path on the volume `target` is
/// `to`. They may be the same volume. A folder that is there already is filled. What is kept, and what
/// is durable, is as with [`copy_in`](super::copy_in); a symbolic link at the end of `from` is copied
/// itself.
///
/// # Errors
/// The first failure, with its place; what was copied until then stays.
pub fn copy_between(
    (source, from): (&dyn FileSystem, &[u8]),
    (target, to): (&dyn FileSystem, &[u8]),
    cx: &Cx,
    how: CopyIn,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let top = resolve(source, cx, from, false).on_volume(from)?;
    let (into, name) = if is_root_path(to) {
        (Held::root(target, cx).on_volume(to)?, Vec::new())
    } else {
        resolve_parent(target, cx, to).on_volume(to)?
    };
    let there = || resolve(target, cx, to, true).map(|held| held.attr().kind);
    check_end(top.attr().kind, to, there).on_volume(to)?;
    if same_volume(source, target) {
        refuse_itself(target, cx, &top, to).on_volume(from)?;
    }
    let mut copier = Copier {
        source,
        maker: Maker {
            fs: target,
            cx,
            how,
        },
        cx,
        progress,
        report: Report::default(),
        first_names: BTreeMap::new(),
        folders: Met::default(),
    };
    let place = Place {
        source: from,
        target: to,
        into: into.ino(),
        name: &name,
    };
    copier.tree(top, &place)?;
    Ok(copier.report)
}

fn same_volume(a: &dyn FileSystem, b: &dyn FileSystem) -> bool {
    std::ptr::addr_eq(a, b)
}

/// A file would be lost under its own copy, and a folder grow into itself for ever.
fn refuse_itself(
    fs: &dyn FileSystem,
    cx: &Cx,
    top: &Held<'_>,
    to: &[u8],
) -> steadfs_vfs::Result<()> {
    let mut names: Vec<&[u8]> = to.split(|&b| b == b'/').collect();
    names.retain(|name| !name.is_empty() && *name != b".");
    names.pop();
    let inside = top.attr().kind == FileKind::Directory
        && way(fs, cx, &names.join(&b'/'), true)?
            .iter()
            .any(|held| held.ino() == top.ino());
    let same = match resolve(fs, cx, to, false) {
        Ok(there) => there.ino() == top.ino(),
        Err(FsError::NotFound) => false,
        Err(error) => return Err(error),
    };
    match (same, inside) {
        (true, _) => Err(FsError::Invalid("source and target are the same file")),
        (_, true) => Err(FsError::Invalid("a folder cannot be copied into itself")),
        _ => Ok(()),
    }
}

/// Where a file comes from and goes to. An empty `name` is the target volume's root itself.
struct Place<'a> {
    source: &'a [u8],
    target: &'a [u8],
    into: InodeNo,
    name: &'a [u8],
}

/// A folder that is being filled.
struct Frame<'a> {
    from: Held<'a>,
    entries: std::vec::IntoIter<Entry>,
    to: Held<'a>,
    paths: Lengths,
}

struct Copier<'a, 'p> {
    source: &'a dyn FileSystem,
    maker: Maker<'a>,
    cx: &'a Cx,
    progress: &'p mut dyn Progress,
    report: Report,
    /// What files of several names became.
    first_names: BTreeMap<InodeNo, Held<'a>>,
    folders: Met,
}

impl<'a> Copier<'a, '_> {
    fn tree(&mut self, top: Held<'a>, place: &Place<'_>) -> Result<()> {
        if top.attr().kind != FileKind::Directory {
            return self.file(&top, place);
        }
        let mut paths = Paths {
            source: place.source.to_vec(),
            target: place.target.to_vec(),
        };
        let mut stack = vec![self.enter(top, place, &paths)?];
        while let (depth, Some(frame)) = (stack.len(), stack.last_mut()) {
            paths.back_to(frame.paths);
            let Some(entry) = frame.entries.next() else {
                // Last, for filling it changes its times and a default ACL would be inherited.
                let kept = self.kept(frame.from.attr(), &paths.source)?;
                let (maker, ino) = (self.maker, frame.to.ino());
                maker.keep(ino, kept, &paths.target, &mut self.report)?;
                stack.pop();
                continue;
            };
            paths.push(&entry.name);
            let source = &paths.source;
            let held =
                child(self.source, self.cx, frame.from.ino(), &entry.name).on_volume(source)?;
            let place = Place {
                source,
                target: &paths.target,
                into: frame.to.ino(),
                name: &entry.name,
            };
            if held.attr().kind == FileKind::Directory {
                check_depth(depth, source)?;
                let frame = self.enter(held, &place, &paths)?;
                stack.push(frame);
            } else {
                self.file(&held, &place)?;
            }
        }
        Ok(())
    }

    /// Makes a folder, or takes the one that is there.
    fn enter(&mut self, from: Held<'a>, place: &Place<'_>, paths: &Paths) -> Result<Frame<'a>> {
        self.begin(place)?;
        self.folders.add(from.ino()).on_volume(place.source)?;
        let entries = read_dir(self.source, self.cx, from.ino()).on_volume(place.source)?;
        let to = self.maker.dir(place.into, place.name);
        Ok(Frame {
            from,
            entries: entries.into_iter(),
            to: to.on_volume(place.target)?,
            paths: paths.lengths(),
        })
    }

    fn begin(&mut self, place: &Place<'_>) -> Result<()> {
        self.progress.file(place.target);
        super::go_on(self.progress)?;
        self.report.files += 1;
        Ok(())
    }

    /// Copies what is no folder.
    fn file(&mut self, from: &Held<'_>, place: &Place<'_>) -> Result<()> {
        self.begin(place)?;
        let (attr, maker) = (from.attr(), self.maker);
        if attr.kind == FileKind::Regular {
            let open = self.source.open(self.cx, attr.ino, false);
            open.on_volume(place.source)?;
        }
        maker
            .make_room(place.into, place.name)
            .on_volume(place.target)?;
        if let Some(first) = self.first_names.get(&attr.ino) {
            return maker
                .link(first.ino(), place.into, place.name)
                .on_volume(place.target);
        }
        let target = match attr.kind {
            FileKind::Symlink => self.source.readlink(self.cx, attr.ino),
            _ => Ok(Vec::new()),
        };
        let node = Node {
            kind: attr.kind,
            rdev: attr.rdev,
            target: &target.on_volume(place.source)?,
        };
        let made = maker.file(&node, place.into, place.name);
        let made = made.on_volume(place.target)?;
        if attr.kind == FileKind::Regular {
            self.content(attr, &made, place)?;
        }
        let kept = self.kept(attr, place.source)?;
        maker.keep(made.ino(), kept, place.target, &mut self.report)?;
        if attr.nlink > 1 {
            self.first_names.insert(attr.ino, made);
        }
        Ok(())
    }

    fn content(&mut self, attr: &Attr, made: &Held<'_>, place: &Place<'_>) -> Result<()> {
        let (maker, progress) = (self.maker, &mut *self.progress);
        let mut end = 0;
        let mut write = |offset: u64, bytes: &[u8]| {
            let written = maker.write(made.ino(), offset, bytes);
            written.on_volume(place.target)?;
            end = offset + bytes.len() as u64;
            progress.bytes(bytes.len() as u64);
            super::go_on(progress)
        };
        let moved = write_content(self.source, self.cx, place.source, attr.ino, &mut write)?;
        self.report.bytes += moved;
        if end < attr.size {
            maker
                .end_at(made.ino(), attr.size)
                .on_volume(place.target)?;
        }
        Ok(())
    }

    fn kept(&self, attr: &Attr, path: &[u8]) -> Result<Kept> {
        let names = self.source.listxattr(self.cx, attr.ino).on_volume(path)?;
        let mut xattrs = Vec::with_capacity(names.len());
        for name in names {
            let value = self.source.getxattr(self.cx, attr.ino, &name);
            xattrs.push((name, value.on_volume(path)?));
        }
        Ok(Kept {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime,
            mtime: attr.mtime,
            xattrs,
        })
    }
}
