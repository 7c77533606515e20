//! `ls`, `cat`, `cp`, `extract` and `stat`: a volume's files without mounting it.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use steadfs::tools::{
    self, CopyIn, CopyOut, ListOptions, Listed, Report, copy_in, copy_out, device_numbers,
    mode_string, owner_cx, printable, utc,
};
use steadfs::{Options, Volume};
use steadfs_vfs::{FileKind, FileSystem, Segment};

use crate::args;
use crate::failure::Failure;
use crate::place::{OnVolume, Place, on_volume, parse};
use crate::progress::Line;

/// Opens the volume, lets `work` have it, and closes it; both must succeed.
fn with_volume<T>(
    image: &Path,
    open: &args::Open,
    write: bool,
    work: impl FnOnce(&dyn FileSystem) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let list = open.options.join(",");
    let mut options = Options::parse(&list).map_err(Failure::plain)?;
    if !write {
        options.ext4.read_only = true;
    }
    crate::log::start(false);
    let volume = Volume::open(image, &options).map_err(Failure::plain)?;
    let done = writable(&volume, write).and_then(|()| work(&*volume.fs()));
    match (done, volume.close()) {
        (Err(failure), _) => Err(failure),
        (Ok(_), Err(error)) => Err(Failure::plain(error)),
        (Ok(value), Ok(())) => Ok(value),
    }
}

fn writable(volume: &Volume, write: bool) -> Result<(), Failure> {
    match volume.report().read_only_because.first() {
        Some(reason) if write => Err(Failure::plain(format!(
            "{}: can only be read: {reason}",
            volume.path().display()
        ))),
        _ => Ok(()),
    }
}

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
            eprintln!("steadfs: {}", failure.message);
            failed = Some(Failure::new(failure.code, ""));
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Writes to standard output; a reader that has gone away is no failure of ours.
fn print(work: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match work(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::plain(error)),
        _ => Ok(()),
    }
}

pub fn ls(args: &args::Ls) -> Result<(), Failure> {
    let options = ListOptions {
        all: args.all,
        directory: args.directory,
    };
    for_each_place(&args.places, &args.open, |fs, place| {
        let files = tools::list(fs, &owner_cx(), &place.path, options).map_err(Failure::plain)?;
        print(|out| {
            if args.places.len() > 1 {
                writeln!(out, "{}:{}:", place.image.display(), printable(&place.path))?;
            }
            let widths = Widths::of(&files);
            for file in &files {
                if args.inode {
                    write!(out, "{:>w$} ", file.attr.ino, w = widths.ino)?;
                }
                if args.long {
                    widths.long(out, file)?;
                }
                writeln!(out, "{}{}", printable(&file.name), arrow(file, args.long))?;
            }
            Ok(())
        })
    })
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

pub fn cp(args: &args::Cp) -> Result<(), Failure> {
    let Some((last, sources)) = args.places.split_last() else {
        return Err(Failure::plain("nothing to copy"));
    };
    let sources: Vec<Place> = sources.iter().map(|s| parse(s)).collect();
    match parse(last) {
        Place::Volume(to) => cp_in(args, &sources, &to),
        Place::Host(to) => cp_out(args, &sources, &to),
    }
}

fn cp_in(args: &args::Cp, sources: &[Place], to: &OnVolume) -> Result<(), Failure> {
    let how = CopyIn {
        owners: true,
        overwrite: args.force,
    };
    let mut from = Vec::new();
    for source in sources {
        match source {
            Place::Host(path) => from.push(path),
            Place::Volume(place) => {
                return Err(Failure::plain(format!(
                    "{} is on a volume, too: copy it out first, then in",
                    place.image.display()
                )));
            }
        }
    }
    with_volume(&to.image, &args.open, true, |fs| {
        let cx = owner_cx();
        let into = tools::resolve(fs, &cx, &to.path, true)
            .is_ok_and(|file| file.attr().kind == FileKind::Directory);
        if from.len() > 1 && !into {
            let shown = printable(&to.path);
            return Err(Failure::plain(format!(
                "{shown}: is no directory on the volume"
            )));
        }
        copy_all(|line| {
            let mut total = Report::default();
            for path in &from {
                let mut target = to.path.clone();
                if into {
                    target.push(b'/');
                    target.extend(last_name(path)?.as_bytes());
                }
                let done = copy_in(fs, &cx, path, &target, how, line).map_err(Failure::plain)?;
                total.warnings.extend(done.warnings);
            }
            fs.sync_all(&cx).map_err(Failure::plain)?;
            Ok(total)
        })
    })
}

fn cp_out(args: &args::Cp, sources: &[Place], to: &Path) -> Result<(), Failure> {
    let into = to.is_dir();
    if sources.len() > 1 && !into {
        return Err(Failure::plain(format!("{}: is no directory", to.display())));
    }
    for source in sources {
        let Place::Volume(place) = source else {
            return Err(Failure::plain(
                "neither side is on a volume: write IMAGE:/PATH for the side that is",
            ));
        };
        let target = if into {
            let name = place
                .path
                .rsplit(|&b| b == b'/')
                .find(|name| !name.is_empty());
            name.map_or_else(
                || to.to_owned(),
                |name| to.join(std::ffi::OsStr::from_bytes(name)),
            )
        } else {
            to.to_owned()
        };
        out(place, &target, args.force, &args.open)?;
    }
    Ok(())
}

pub fn extract(args: &args::Extract) -> Result<(), Failure> {
    let place = on_volume(&args.place);
    out(&place, &args.directory, args.force, &args.open)
}

fn out(place: &OnVolume, to: &Path, force: bool, open: &args::Open) -> Result<(), Failure> {
    let how = CopyOut {
        owners: rustix::process::geteuid().is_root(),
        overwrite: force,
        follow: false,
    };
    with_volume(&place.image, open, false, |fs| {
        copy_all(|line| {
            copy_out(fs, &owner_cx(), &place.path, to, how, line).map_err(Failure::plain)
        })
    })
}

/// Copies under a progress line, then says what could not be kept; that is a failure, too.
fn copy_all(work: impl FnOnce(&mut Line) -> Result<Report, Failure>) -> Result<(), Failure> {
    let mut line = Line::new();
    let done = work(&mut line);
    line.done();
    let report = done?;
    for warning in &report.warnings {
        eprintln!("steadfs: {warning}");
    }
    match report.warnings.len() {
        0 => Ok(()),
        n => Err(Failure::plain(format!(
            "copied, but {n} things were not kept"
        ))),
    }
}

fn last_name(path: &Path) -> Result<OsString, Failure> {
    let real = |path: &Path| path.canonicalize().ok()?.file_name().map(OsString::from);
    let name = path.file_name().map(OsString::from).or_else(|| real(path));
    name.ok_or_else(|| Failure::plain(format!("{}: has no name to copy under", path.display())))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_into_folders_keep_their_name() {
        assert_eq!(last_name(Path::new("/a/b/")).unwrap(), "b");
        assert_eq!(last_name(Path::new("/usr/..//usr/.")).unwrap(), "usr");
        assert!(last_name(Path::new("/")).is_err());
        let dot = Path::new(".").canonicalize().unwrap();
        assert_eq!(last_name(Path::new(".")).unwrap(), dot.file_name().unwrap());
    }
}
