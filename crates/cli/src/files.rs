//! `ls`, `cat` and `stat`: a volume's files without mounting it.

use std::ffi::OsString;
use std::io::{self, Write};

use steadfs::tools::{
    self, ListOptions, Listed, Listing, Listings, ToolError, Unit, device_numbers, join,
    mode_string, owner_cx, printable, utc,
};
use steadfs_vfs::{Attr, FileKind, FileSystem, FsxAttr, Segment};

use crate::args;
use crate::failure::{Failure, code};
use crate::json::{File, List, Place};
use crate::output::{print, print_until};
use crate::place::{OnVolume, expand, on_volume};
use crate::report::{complain, on_image};
use crate::stop::Stop;
use crate::volume::{Access, with_volume};

/// Runs `work` for each place, even after failures; the worst exit code counts. `work` gets whether there are several.
fn for_each_place(
    places: &[OsString],
    open: &args::offline::Open,
    mut work: impl FnMut(&dyn FileSystem, &OnVolume, bool) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut worst: Option<u8> = None;
    let mut named = Vec::new();
    for argument in places {
        named.extend(expand(on_volume(argument), open)?);
    }
    let several = named.len() > 1;
    for place in named {
        if let Err(failure) = with_volume(&place.image, open, Access::Read, |fs| {
            work(fs, &place, several)
        }) {
            if failure.is_signal() {
                return Err(failure);
            }
            complain(&failure.message);
            worst = worst.max(Some(failure.code));
        }
    }
    worst.map_or(Ok(()), |code| Err(Failure::new(code, "")))
}

/// ls(1)'s exit code if a file on the command line does not exist.
const SERIOUS: u8 = 2;

pub fn ls(args: &args::Ls) -> Result<(), Failure> {
    let options = ListOptions {
        all: args.all || args.almost_all,
        dots: args.all,
        directory: args.directory,
        no_follow: is_long(args),
        names: !is_long(args) && !args.json,
    };
    let (mut first, mut failed) = (true, false);
    let mut list = List::default();
    let named = for_each_place(&args.places, &args.open, |fs, place, several| {
        let cx = owner_cx();
        let titled = several || args.recursive;
        let mut listings = Listings::new(fs, &cx, &place.path, options);
        let wanted = if args.recursive { usize::MAX } else { 1 };
        let mut next = listings.next();
        if let Some(Err(error)) = next {
            let code = match error {
                ToolError::Volume { ref source, .. } if !source.is_corruption() => SERIOUS,
                _ => code::FAILED,
            };
            return Err(Failure::new(code, on_image(&place.image, &error)));
        }
        for _ in 0..wanted {
            let Some(listing) = next else {
                break;
            };
            match listing {
                Ok(listing) => {
                    failed |= !listing.errors.is_empty();
                    print(|out| match args.json {
                        true => add_all(&mut list, place, &listing, out),
                        false => show(args, place, &listing, (titled, first), out),
                    })?;
                    for error in &listing.errors {
                        complain(&on_image(&place.image, error));
                    }
                    first = false;
                }
                Err(error) => {
                    failed = true;
                    complain(&on_image(&place.image, &error));
                }
            }
            next = listings.next();
        }
        Ok(())
    });
    end(&list, args.json, &named)?;
    match named {
        Err(failure) => Err(failure),
        Ok(()) if failed => Err(Failure::plain("")),
        Ok(()) => Ok(()),
    }
}

/// Ends a JSON document, unless a signal has ended the command.
fn end(list: &List, json: bool, done: &Result<(), Failure>) -> Result<(), Failure> {
    match done {
        Err(failure) if failure.is_signal() => Ok(()),
        _ if json => print(|out| list.end(out)),
        _ => Ok(()),
    }
}

/// Prints the files of a listing as JSON.
fn add_all(
    list: &mut List,
    place: &OnVolume,
    listing: &Listing,
    out: &mut dyn Write,
) -> io::Result<()> {
    for file in &listing.files {
        let path = match listing.is_dir {
            true => join(&listing.path, &file.name),
            false => listing.path.clone(),
        };
        let at = Place::new(&place.image, &path);
        let shown = match &file.attr {
            Some(Ok(attr)) => File::new(at, attr, file.target.as_deref()),
            Some(Err(error)) => {
                File::unreadable(at, (file.kind, Some(file.ino)), error.to_string())
            }
            None => continue,
        };
        list.add(out, &shown)?;
    }
    Ok(())
}

fn is_long(args: &args::Ls) -> bool {
    args.long || args.numeric
}

fn show(
    args: &args::Ls,
    place: &OnVolume,
    listing: &Listing,
    (titled, first): (bool, bool),
    out: &mut dyn Write,
) -> io::Result<()> {
    let files = &listing.files;
    if titled && listing.is_dir {
        let blank = if first { "" } else { "\n" };
        let (image, path) = (place.image.display(), printable(&listing.path));
        writeln!(out, "{blank}{image}:{path}:")?;
    }
    let long = is_long(args);
    let unit = |shown| match args.human {
        true => Unit::Human(1024),
        false => Unit::Bytes(shown),
    };
    if long && listing.is_dir {
        let attrs = files.iter().filter_map(Listed::known);
        let sectors: u64 = attrs.map(|attr| attr.blocks).sum();
        writeln!(
            out,
            "total {}",
            unit(1024).show(sectors.saturating_mul(512))
        )?;
    }
    let widths = Widths::of(files, unit(1));
    for file in files {
        if args.inode {
            write!(out, "{:>w$} ", file.ino, w = widths.ino)?;
        }
        if long {
            widths.long(out, file)?;
        }
        writeln!(out, "{}{}", printable(&file.name), arrow(file, long))?;
    }
    Ok(())
}

fn arrow(file: &Listed, long: bool) -> String {
    match &file.target {
        Some(target) if long => format!(" -> {}", printable(target)),
        _ => String::new(),
    }
}

/// Column widths of a long listing.
struct Widths {
    ino: usize,
    nlink: usize,
    uid: usize,
    gid: usize,
    size: usize,
    unit: Unit,
}

impl Widths {
    fn of(files: &[Listed], unit: Unit) -> Self {
        let widest = |word: &dyn Fn(&Listed) -> String| {
            files.iter().map(|f| word(f).len()).max().unwrap_or(0)
        };
        Self {
            ino: widest(&|f| f.ino.to_string()),
            nlink: widest(&|f| shown(f, |attr| attr.nlink)),
            uid: widest(&|f| shown(f, |attr| attr.uid)),
            gid: widest(&|f| shown(f, |attr| attr.gid)),
            size: widest(&|f| shown(f, |attr| size_or_device(attr, unit))),
            unit,
        }
    }

    fn long(&self, out: &mut dyn Write, file: &Listed) -> io::Result<()> {
        write!(
            out,
            "{} {:>nlink$} {:>uid$} {:>gid$} {:>size$} {:>time$} ",
            mode(file),
            shown(file, |attr| attr.nlink),
            shown(file, |attr| attr.uid),
            shown(file, |attr| attr.gid),
            shown(file, |attr| size_or_device(attr, self.unit)),
            shown(file, |attr| utc(attr.mtime, false)),
            nlink = self.nlink,
            uid = self.uid,
            gid = self.gid,
            size = self.size,
            time = "2026-11-21 03:42:07".len(),
        )
    }
}

/// An attribute, or ls(1)'s placeholder for one that cannot be read.
fn shown<T: ToString>(file: &Listed, word: impl FnOnce(&Attr) -> T) -> String {
    file.known()
        .map_or_else(|| "?".to_owned(), |attr| word(attr).to_string())
}

fn mode(file: &Listed) -> String {
    match (file.known(), file.kind) {
        (Some(attr), _) => mode_string(attr.kind, attr.perm),
        (None, Some(kind)) => format!("{}?????????", &mode_string(kind, 0)[..1]),
        (None, None) => "??????????".to_owned(),
    }
}

fn size_or_device(attr: &Attr, unit: Unit) -> String {
    match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            let (major, minor) = device_numbers(attr.rdev);
            format!("{major}, {minor}")
        }
        _ => unit.show(attr.size),
    }
}

pub fn cat(args: &args::Cat) -> Result<(), Failure> {
    for_each_place(&args.places, &args.open, |fs, place, _| {
        to_output(fs, place, None)
    })
}

/// Writes a file's content to standard output, until `stop` says that a signal has come.
pub fn to_output(
    fs: &dyn FileSystem,
    place: &OnVolume,
    stop: Option<&Stop>,
) -> Result<(), Failure> {
    const CHUNK: usize = 1 << 20;
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let cx = owner_cx();
    let shown = || format!("{}:{}", place.image.display(), printable(&place.path));
    let fail = |error: &dyn std::fmt::Display| Failure::plain(format!("{}: {error}", shown()));
    let file = tools::resolve(fs, &cx, &place.path, true).map_err(|e| fail(&e))?;
    if file.attr().kind != FileKind::Regular {
        return Err(fail(&"is not a regular file"));
    }
    fs.open(&cx, file.ino(), false).map_err(|e| fail(&e))?;
    let mut offset = 0;
    loop {
        let data = fs
            .read(&cx, file.ino(), offset, CHUNK)
            .map_err(|e| fail(&e))?;
        if data.is_empty() {
            return Ok(());
        }
        offset += data.len() as u64;
        print_until(stop, |out| {
            for segment in data.segments() {
                match segment {
                    Segment::Bytes(owner, range) => {
                        out.write_all(&(**owner).as_ref()[range.clone()])?;
                    }
                    Segment::Zeros(len) => {
                        let mut left = *len;
                        while left > 0 {
                            let piece = left.min(ZEROS.len());
                            out.write_all(&ZEROS[..piece])?;
                            left -= piece;
                        }
                    }
                }
            }
            Ok(())
        })?;
    }
}

pub fn stat(args: &args::Stat) -> Result<(), Failure> {
    let mut list = List::default();
    let done = for_each_place(&args.places, &args.open, |fs, place, _| {
        let cx = owner_cx();
        let options = ListOptions {
            directory: true,
            ..ListOptions::default()
        };
        let listing = tools::list(fs, &cx, &place.path, options);
        let listing = listing.map_err(|error| Failure::plain(on_image(&place.image, &error)))?;
        if let Some(error) = listing.errors.first() {
            return Err(Failure::plain(on_image(&place.image, error)));
        }
        for file in &listing.files {
            let fail = |source| {
                let path = place.path.clone();
                Failure::plain(on_image(&place.image, &ToolError::Volume { path, source }))
            };
            let attr = match &file.attr {
                Some(Ok(attr)) => attr,
                Some(Err(error)) => return Err(fail(error.clone())),
                None => continue,
            };
            let names = fs.listxattr(&cx, attr.ino).map_err(fail)?;
            let flags = fs.flags(&cx, attr.ino).map_err(fail)?;
            print(|out| match args.json {
                true => {
                    let at = Place::new(&place.image, &place.path);
                    let shown = File::new(at, attr, file.target.as_deref());
                    list.add(out, &shown.detailed(attr, &flags, &names))
                }
                false => show_all(file, attr, (&flags, &names), out),
            })?;
        }
        Ok(())
    });
    end(&list, args.json, &done)?;
    done
}

/// Prints all attributes of a file.
fn show_all(
    file: &Listed,
    attr: &Attr,
    (flags, xattrs): (&FsxAttr, &[Vec<u8>]),
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(
        out,
        "  File: {}{}",
        printable(&file.name),
        arrow(file, true)
    )?;
    writeln!(
        out,
        "  Size: {}  Blocks: {}  IO block: {}  {}",
        size_or_device(attr, Unit::Bytes(1)),
        attr.blocks,
        attr.block_size,
        kind_name(attr.kind)
    )?;
    writeln!(
        out,
        " Inode: {}  Generation: {}  Links: {}  Flags: {:#x}  Project: {}",
        attr.ino, attr.generation, attr.nlink, flags.flags.0, flags.project
    )?;
    let mode = mode_string(attr.kind, attr.perm);
    let (perm, uid, gid) = (attr.perm, attr.uid, attr.gid);
    writeln!(out, "Access: ({perm:04o}/{mode})  Uid: {uid}  Gid: {gid}")?;
    writeln!(out, "Access: {} UTC", utc(attr.atime, true))?;
    writeln!(out, "Modify: {} UTC", utc(attr.mtime, true))?;
    writeln!(out, "Change: {} UTC", utc(attr.ctime, true))?;
    match attr.btime {
        Some(time) => writeln!(out, " Birth: {} UTC", utc(time, true))?,
        None => writeln!(out, " Birth: -")?,
    }
    for name in xattrs {
        writeln!(out, " Xattr: {}", printable(name))?;
    }
    Ok(())
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}
