//! `ls`, `cat` and `stat`: a volume's files without mounting it.

use std::ffi::OsString;
use std::io::{self, Write};

use steadfs::tools::{
    self, ListOptions, Listed, Listing, Listings, device_numbers, harmless, mode_string, owner_cx,
    printable, utc,
};
use steadfs_vfs::{FileKind, FileSystem, Segment};

use crate::args;
use crate::failure::Failure;
use crate::output::print;
use crate::place::{OnVolume, on_volume};
use crate::volume::with_volume;

/// Runs `work` for each place; all are tried, and the worst end counts.
fn for_each_place(
    places: &[OsString],
    open: &args::Open,
    mut work: impl FnMut(&dyn FileSystem, &OnVolume) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut failed = None;
    for argument in places {
        let place = on_volume(argument);
        if let Err(failure) = with_volume(&place.image, open, false, |fs| work(fs, &place)) {
            if failure.is_signal() {
                return Err(failure);
            }
            eprintln!("steadfs: {}", harmless(&failure.message));
            failed = Some(Failure::new(failure.code, ""));
        }
    }
    failed.map_or(Ok(()), Err)
}

pub fn ls(args: &args::Ls) -> Result<(), Failure> {
    let options = ListOptions {
        all: args.all || args.almost_all,
        dots: args.all,
        directory: args.directory,
    };
    let titled = args.places.len() > 1 || args.recursive;
    let mut first = true;
    for_each_place(&args.places, &args.open, |fs, place| {
        let cx = owner_cx();
        let listings = Listings::new(fs, &cx, &place.path, options);
        let wanted = if args.recursive { usize::MAX } else { 1 };
        for listing in listings.take(wanted) {
            let Listing {
                path,
                is_dir,
                files,
            } = listing.map_err(Failure::plain)?;
            print(|out| {
                if titled && is_dir {
                    let blank = if first { "" } else { "\n" };
                    writeln!(
                        out,
                        "{blank}{}:{}:",
                        place.image.display(),
                        printable(&path)
                    )?;
                }
                if args.long && is_dir {
                    let sectors: u64 = files.iter().map(|file| file.attr.blocks).sum();
                    writeln!(out, "total {}", sectors / 2)?;
                }
                show(args, &files, out)
            })?;
            first = false;
        }
        Ok(())
    })
}

fn show(args: &args::Ls, files: &[Listed], out: &mut dyn Write) -> io::Result<()> {
    let widths = Widths::of(files);
    for file in files {
        if args.inode {
            write!(out, "{:>w$} ", file.attr.ino, w = widths.ino)?;
        }
        if args.long {
            widths.long(out, file)?;
        }
        writeln!(out, "{}{}", printable(&file.name), arrow(file, args.long))?;
    }
    Ok(())
}

fn arrow(file: &Listed, long: bool) -> String {
    match &file.target {
        Some(target) if long => format!(" -> {}", printable(target)),
        _ => String::new(),
    }
}

/// Columns of a long listing.
struct Widths {
    ino: usize,
    nlink: usize,
    uid: usize,
    gid: usize,
    size: usize,
}

impl Widths {
    fn of(files: &[Listed]) -> Self {
        let widest = |word: &dyn Fn(&Listed) -> String| {
            files.iter().map(|f| word(f).len()).max().unwrap_or(0)
        };
        Self {
            ino: widest(&|f| f.attr.ino.to_string()),
            nlink: widest(&|f| f.attr.nlink.to_string()),
            uid: widest(&|f| f.attr.uid.to_string()),
            gid: widest(&|f| f.attr.gid.to_string()),
            size: widest(&size_or_device),
        }
    }

    fn long(&self, out: &mut dyn Write, file: &Listed) -> io::Result<()> {
        let attr = &file.attr;
        write!(
            out,
            "{} {:>nlink$} {:>uid$} {:>gid$} {:>size$} {} ",
            mode_string(attr.kind, attr.perm),
            attr.nlink,
            attr.uid,
            attr.gid,
            size_or_device(file),
            utc(attr.mtime, false),
            nlink = self.nlink,
            uid = self.uid,
            gid = self.gid,
            size = self.size,
        )
    }
}

fn size_or_device(file: &Listed) -> String {
    match file.attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            let (major, minor) = device_numbers(file.attr.rdev);
            format!("{major}, {minor}")
        }
        _ => file.attr.size.to_string(),
    }
}

pub fn cat(args: &args::Cat) -> Result<(), Failure> {
    const CHUNK: usize = 1 << 20;
    static ZEROS: [u8; 4096] = [0; 4096];
    for_each_place(&args.places, &args.open, |fs, place| {
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
            print(|out| {
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
    })
}

pub fn stat(args: &args::Stat) -> Result<(), Failure> {
    for_each_place(&args.places, &args.open, |fs, place| {
        let cx = owner_cx();
        let options = ListOptions {
            directory: true,
            ..ListOptions::default()
        };
        let files = tools::list(fs, &cx, &place.path, options).map_err(Failure::plain)?;
        let xattrs = |file: &Listed| fs.listxattr(&cx, file.attr.ino).map_err(Failure::plain);
        for file in &files {
            let names = xattrs(file)?;
            let flags = fs.flags(&cx, file.attr.ino).map_err(Failure::plain)?;
            print(|out| {
                let attr = &file.attr;
                writeln!(
                    out,
                    "  File: {}{}",
                    printable(&file.name),
                    arrow(file, true)
                )?;
                writeln!(
                    out,
                    "  Size: {}  Blocks: {}  IO block: {}  {}",
                    size_or_device(file),
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
                for name in &names {
                    writeln!(out, " Xattr: {}", printable(name))?;
                }
                Ok(())
            })?;
        }
        Ok(())
    })
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
