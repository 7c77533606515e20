//! Copies into a volume.
//!
//! **Rule.** Operands are copied in their order, and those of one other volume while it is open once: so the numbers of its inodes
//! stay what they are, and hard links among the operands are kept. It is closed behind the last one.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;

use steadfs::tools::{
    self, Existing, FirstCopies, Follow, HostFile, Report, copy_between_linked, copy_in_linked,
    copy_stream_in, owner_cx, printable,
};
use steadfs_base::InodeNo;
use steadfs_vfs::{FileSystem, InodeFlags};

use super::{Job, NEW_FILE, amount_of, failure, file_of, is_dir, made_already, name_of, umask};
use crate::args::offline::Open;
use crate::failure::Failure;
use crate::place::{OnVolume, Place};
use crate::relation::{Relation, relation};
use crate::volume::{Access, with_volume};

/// Where operands are copied to.
#[derive(Clone, Copy)]
struct Target<'f> {
    fs: &'f dyn FileSystem,
    /// The path that the user named.
    to: &'f OnVolume,
    /// They get their own names in it.
    into: bool,
    /// It ignores case.
    folded: bool,
}

/// The first copies of the operands with several names, by where the originals are. Directories have their own: a later one
/// may write into what an earlier one has copied.
struct Firsts<'f> {
    of_host: FirstCopies<'f, HostFile>,
    of_same_volume: FirstCopies<'f, InodeNo>,
}

/// Another volume that is open for the operands on it, and those that were opened before.
struct OpenImage<'o, 'f> {
    image: &'o Path,
    fs: &'o dyn FileSystem,
    firsts: RefCell<FirstCopies<'f, InodeNo>>,
    before: Option<&'o OpenImage<'o, 'f>>,
}

impl Job<'_> {
    pub(super) fn copy_into_volume(
        &mut self,
        sources: &[Place],
        to: &OnVolume,
    ) -> Result<(), Failure> {
        let open = &self.args.open;
        with_volume(&to.image, open, Access::Write, |fs| {
            self.all_into(sources, (fs, to))?;
            fs.sync_all(&owner_cx()).map_err(Failure::plain)
        })
    }

    /// Copies files and trees to the volume `fs`, which is the image of `to`.
    pub(super) fn all_into(
        &mut self,
        sources: &[Place],
        (fs, to): (&dyn FileSystem, &OnVolume),
    ) -> Result<(), Failure> {
        self.options.image = file_of(&to.image);
        let is_dir = is_dir(fs, to, Follow::Always);
        let into = self.goes_into(is_dir, sources.len(), &printable(&to.path))?;
        self.line.ends_after(|| amount_of(sources));
        let folded = into && has_flag(fs, to, InodeFlags::CASEFOLD);
        let target = Target {
            fs,
            to,
            into,
            folded,
        };
        let mut firsts = Firsts {
            of_host: FirstCopies::to(fs),
            of_same_volume: FirstCopies::to(fs),
        };
        self.operands(sources, target, &mut firsts, None)
    }

    /// Copies operands one after the other. A volume that is not open yet is opened up to the last operand on it,
    /// and on those that are opened meanwhile.
    fn operands<'f>(
        &mut self,
        sources: &[Place],
        target: Target<'f>,
        firsts: &mut Firsts<'f>,
        opened: Option<&OpenImage<'_, 'f>>,
    ) -> Result<(), Failure> {
        let mut at = 0;
        while let Some(source) = sources.get(at) {
            let left = &sources[at..];
            at += 1;
            let Place::Volume(place) = source else {
                let copy = |job: &mut Self| job.copy_of_host(source, target, firsts);
                let done = self.checked(source, target, copy);
                self.count(done)?;
                continue;
            };
            let done = match self.found(&place.image, target, opened) {
                Err(failure) => Err(failure),
                Ok(Found::Target) => self.checked(source, target, |job| {
                    job.copy_of_volume(target.fs, place, target, &mut firsts.of_same_volume)
                }),
                Ok(Found::Open(open)) => self.checked(source, target, |job| {
                    job.copy_of_volume(open.fs, place, target, &mut open.firsts.borrow_mut())
                }),
                Ok(Found::Closed(access)) => {
                    let (image, args) = (&place.image, &self.args.open);
                    let last = self.last_beside(left, target, opened);
                    let mut copied = None;
                    let closed = with_volume(image, args, access, |fs| {
                        let opened = OpenImage {
                            image,
                            fs,
                            firsts: RefCell::new(FirstCopies::to(target.fs)),
                            before: opened,
                        };
                        let those = &left[..=last];
                        copied = Some(self.operands(those, target, firsts, Some(&opened)));
                        Ok(Report::default())
                    });
                    if let Some(copied) = copied {
                        copied?;
                        at += last;
                    }
                    closed
                }
            };
            self.count(done)?;
        }
        Ok(())
    }

    /// The last of the operands that are copied while the volume of the first one is open: of it, and of each other volume that
    /// is opened among them. So volumes whose operands cross are open together.
    fn last_beside<'f>(
        &self,
        sources: &[Place],
        target: Target<'f>,
        opened: Option<&OpenImage<'_, 'f>>,
    ) -> usize {
        let args = &self.args.open;
        let mut seen = BTreeSet::new();
        let mut last = 0;
        for (at, source) in sources.iter().enumerate() {
            if at > last {
                break;
            }
            if let Place::Volume(OnVolume { image, .. }) = source
                && seen.insert(image)
                && matches!(self.found(image, target, opened), Ok(Found::Closed(_)))
            {
                let behind = sources.iter().rposition(|other| is_on(other, image, args));
                last = last.max(behind.unwrap_or_default());
            }
        }
        last
    }

    /// The volume on an image.
    fn found<'o, 'f>(
        &self,
        image: &Path,
        target: Target<'f>,
        mut opened: Option<&'o OpenImage<'o, 'f>>,
    ) -> Result<Found<'o, 'f>, Failure> {
        let args = &self.args.open;
        let access = match relation(image, &target.to.image, args)? {
            Relation::Same => return Ok(Found::Target),
            Relation::Beside => Access::ReadBeside,
            Relation::Other => Access::Read,
        };
        while let Some(open) = opened {
            if is_same(image, open.image, args) {
                return Ok(Found::Open(open));
            }
            opened = open.before;
        }
        Ok(Found::Closed(access))
    }

    /// Copies an operand by `copy`. In a directory that ignores case it must not replace another one of the same command.
    fn checked(
        &mut self,
        source: &Place,
        target: Target<'_>,
        copy: impl FnOnce(&mut Self) -> Result<Report, Failure>,
    ) -> Result<Report, Failure> {
        self.once(source, |job| {
            if !target.folded {
                return copy(job);
            }
            let path = target_of(source, target);
            let before = found(target.fs, &path);
            if before.is_some_and(|ino| job.made_folded.contains(&ino)) {
                return Err(made_already(&path));
            }
            let report = copy(job)?;
            let spared = job.options.existing == Existing::Skip && before.is_some();
            if !spared {
                job.made_folded.extend(found(target.fs, &path));
            }
            Ok(report)
        })
    }

    /// Copies a file or tree of the host, or standard input.
    fn copy_of_host<'f>(
        &mut self,
        source: &Place,
        target: Target<'f>,
        firsts: &mut Firsts<'f>,
    ) -> Result<Report, Failure> {
        let (fs, to) = (target.fs, target_of(source, target));
        let (cx, options) = (owner_cx(), self.options);
        let Place::Host(path) = source else {
            if target.into {
                let why = "standard input has no name: give the target one, as in IMAGE:/DIR/NAME";
                return Err(Failure::plain(why));
            }
            let input = std::io::stdin();
            let to = (&to[..], NEW_FILE & !umask());
            let done = copy_stream_in(fs, &cx, input.as_fd(), to, options, &mut self.line);
            return done.map_err(|error| failure(&error, &self.stop));
        };
        let found = match options.follow {
            Follow::Never => path.symlink_metadata(),
            _ => path.metadata(),
        };
        let is_dir = found.is_ok_and(|found| found.is_dir());
        self.check_name(&to, is_dir)?;
        let mut own = FirstCopies::to(fs);
        let firsts = match is_dir {
            true => &mut own,
            false => &mut firsts.of_host,
        };
        let done = copy_in_linked(fs, &cx, path, &to, (options, firsts), &mut self.line);
        let report = done.map_err(|error| failure(&error, &self.stop))?;
        self.made.insert(to);
        Ok(report)
    }

    /// Copies a file or tree of the open volume `from`, which is the image of `place`.
    fn copy_of_volume<'f>(
        &mut self,
        from: &dyn FileSystem,
        place: &OnVolume,
        target: Target<'f>,
        firsts: &mut FirstCopies<'f, InodeNo>,
    ) -> Result<Report, Failure> {
        let to = target_of(&Place::Volume(place.clone()), target);
        let is_dir = is_dir(from, place, self.options.follow);
        self.check_name(&to, is_dir)?;
        let mut own = FirstCopies::to(target.fs);
        let firsts = match is_dir {
            true => &mut own,
            false => firsts,
        };
        let (cx, with) = (owner_cx(), (self.options, firsts));
        let (from, at) = ((from, &place.path[..]), (target.fs, &to[..]));
        let done = copy_between_linked(from, at, &cx, with, &mut self.line);
        let report = done.map_err(|error| failure(&error, &self.stop))?;
        self.made.insert(to);
        Ok(report)
    }
}

/// Whether an operand is on an image.
fn is_on(source: &Place, image: &Path, open: &Open) -> bool {
    matches!(source, Place::Volume(place) if is_same(&place.image, image, open))
}

fn is_same(a: &Path, b: &Path, open: &Open) -> bool {
    // What cannot be compared is opened, and the error reported.
    a == b || relation(a, b, open).is_ok_and(|relation| relation == Relation::Same)
}

/// A volume that an operand is on.
enum Found<'o, 'f> {
    /// That of the target.
    Target,
    /// One that is open.
    Open(&'o OpenImage<'o, 'f>),
    /// One that is to be opened.
    Closed(Access),
}

/// The path that a source is copied to, on the volume.
fn target_of(source: &Place, target: Target<'_>) -> Vec<u8> {
    let mut path = target.to.path.clone();
    if let Some(name) = name_of(source).filter(|_| target.into) {
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend(name);
    }
    path
}

/// The file at a path of the volume, if there is one.
fn found(fs: &dyn FileSystem, path: &[u8]) -> Option<InodeNo> {
    let held = tools::resolve(fs, &owner_cx(), path, false).ok()?;
    Some(held.ino())
}

fn has_flag(fs: &dyn FileSystem, place: &OnVolume, flag: InodeFlags) -> bool {
    let held = tools::resolve(fs, &owner_cx(), &place.path, true);
    held.is_ok_and(|held| held.attr().flags.contains(flag))
}
