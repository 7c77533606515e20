//! `mkdir`, `rm`, `mv` and the other commands that change files on a volume.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use steadfs::tools::edit::{
    Editor, LinkOptions, MkdirOptions, ModeChange, MoveOptions, OwnerSpec, Owners, RmOptions,
    SizeChange, Target, TouchOptions, parse_date, parse_stamp, year_of,
};
use steadfs::tools::{ToolError, owner_cx};
use steadfs_base::Timestamp;
use steadfs_vfs::{Cx, FileSystem, SetTime};

use crate::args::edit as args;
use crate::args::edit::Asks;
use crate::args::offline::Open;
use crate::changes::{At, ChangeReporter, Printed, Words, is_agreed};
use crate::copy::umask;
use crate::failure::{Failure, code};
use crate::place::{Group, OnVolume, Place, expand, grouped, matching, parse};
use crate::reference::{Reference, found};
use crate::relation::{Relation, relation};
use crate::report::{complain, on_image};
use crate::stop::Stop;
use crate::volume::{Access, with_volume};

/// The caller of all changes: root, with the umask of this process.
pub fn editor_cx() -> Cx {
    Cx {
        umask: umask(),
        ..owner_cx()
    }
}

/// An operand that must be on a volume.
fn on_volume(argument: &OsStr) -> Result<OnVolume, Failure> {
    match parse(argument) {
        Place::Volume(place) => Ok(place),
        Place::Host(_) | Place::Stream => {
            let shown = argument.display();
            let why = "names no file on a volume; write IMAGE:/PATH";
            Err(Failure::plain(format!("{shown}: {why}")))
        }
    }
}

/// What operands name.
#[derive(Clone, Copy)]
enum Names {
    /// Files that exist: a pattern must match.
    Existing,
    /// Files that are made if they do not exist: a pattern that does not match is a name.
    Any,
    /// New files.
    New,
}

/// The operands of each image, which is opened once.
fn groups(places: &[OsString], open: &Open, names: Names) -> Result<Vec<Group>, Failure> {
    let mut named = Vec::new();
    for place in places {
        let place = on_volume(place)?;
        match names {
            Names::Existing => named.extend(expand(place, open)?),
            Names::Any => {
                let mut found = matching(&place, open)?;
                if found.is_empty() {
                    found.push(place);
                }
                named.extend(found);
            }
            Names::New => named.push(place),
        }
    }
    Ok(grouped(named))
}

/// Runs `work` with an editor of the volume on `image`. Errors are reported as they occur; returns whether there were none.
fn edit(
    image: &Path,
    (open, words): (&Open, Words<'_>),
    stop: &Stop,
    work: impl FnOnce(&mut Editor<'_>) -> Result<(), ToolError>,
) -> Result<bool, Failure> {
    let cx = editor_cx();
    let mut unwritten = None;
    let done = with_volume(image, open, Access::Write, |fs: &dyn FileSystem| {
        let mut reporter = ChangeReporter::new(fs, At::Image(image), words, stop);
        let mut editor = Editor::new(fs, &cx, &mut reporter);
        let done = work(&mut editor);
        let failures = editor.failures();
        unwritten = reporter.take_unwritten();
        match done {
            Ok(()) => Ok(failures == 0),
            Err(error @ ToolError::Stopped) => Err(stop.failure(error)),
            Err(error) => Err(Failure::plain(on_image(image, &error))),
        }
    });
    let complete = match done {
        Err(failure) if !failure.is_signal() => {
            complain(&failure.message);
            false
        }
        done => done?,
    };
    match unwritten {
        Some(failure) => {
            complain(&failure.message);
            Ok(false)
        }
        None => Ok(complete),
    }
}

/// Runs `work` for all operands of each image.
fn for_each_path(
    places: &[OsString],
    (open, words): (&Open, Words<'_>),
    work: impl FnMut(&mut Editor<'_>, &[u8]) -> Result<(), ToolError>,
) -> Result<(), Failure> {
    in_groups(groups(places, open, Names::Existing)?, (open, words), work)
}

fn in_groups(
    groups: Vec<Group>,
    how: (&Open, Words<'_>),
    mut work: impl FnMut(&mut Editor<'_>, &[u8]) -> Result<(), ToolError>,
) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let mut complete = true;
    for group in groups {
        complete &= edit(&group.image, how, &stop, |editor| {
            group.paths.iter().try_for_each(|path| work(editor, path))
        })?;
    }
    end(complete)
}

/// Failures were reported as they occurred.
fn end(complete: bool) -> Result<(), Failure> {
    match complete {
        true => Ok(()),
        false => Err(Failure::plain("")),
    }
}

pub fn mkdir_options(args: &args::Mkdir) -> MkdirOptions {
    MkdirOptions {
        parents: args.parents,
        mode: args.mode.clone(),
    }
}

pub fn mkdir(args: &args::Mkdir) -> Result<(), Failure> {
    let options = mkdir_options(args);
    // A new directory may have any name.
    let groups = groups(&args.places, &args.open, Names::New)?;
    let words = Words::new("mkdir", args.verbose);
    in_groups(groups, (&args.open, words), |editor, path| {
        editor.mkdir(path, &options)
    })
}

pub fn rmdir(args: &args::Rmdir) -> Result<(), Failure> {
    let words = Words::new("rmdir", args.verbose);
    for_each_path(&args.places, (&args.open, words), |editor, path| {
        editor.rmdir(path, args.parents, args.ignore_fail_on_non_empty)
    })
}

pub fn rm_options(args: &args::Rm) -> RmOptions {
    RmOptions {
        recursive: args.recursive,
        force: args.force,
        directories: args.dir,
        ask: args.asks() == Asks::Always,
    }
}

/// What its operands name: with -f a pattern without a match is a name that does not exist, as in a shell.
fn rm_names(args: &args::Rm) -> Names {
    match args.force {
        true => Names::Any,
        false => Names::Existing,
    }
}

pub fn rm(args: &args::Rm) -> Result<(), Failure> {
    let options = rm_options(args);
    let groups = groups(&args.places, &args.open, rm_names(args))?;
    let count = groups.iter().map(|group| group.paths.len()).sum();
    if args.asks() == Asks::Once && !is_agreed_once(count, args.recursive) {
        return Ok(());
    }
    let words = Words::new("rm", args.verbose);
    in_groups(groups, (&args.open, words), |editor, path| {
        editor.rm(path, options)
    })
}

/// Operands of `rm -I` about which nothing is asked.
const FEW_OPERANDS: usize = 3;

fn is_agreed_once(count: usize, recursive: bool) -> bool {
    if count <= FEW_OPERANDS && !recursive {
        return true;
    }
    let plural = if count == 1 { "" } else { "s" };
    let how = if recursive { " recursively" } else { "" };
    is_agreed(&format!("rm: remove {count} argument{plural}{how}?"))
}

/// The new mode. `of` finds the attributes of the reference file.
pub fn mode_change(
    args: &args::Chmod,
    of: impl FnOnce(&OsStr) -> Result<Reference, Failure>,
) -> Result<ModeChange, Failure> {
    let Some(reference) = &args.reference else {
        return args.change().map_err(|why| Failure::new(code::WORDS, why));
    };
    // With all digits, a directory gets exactly these bits.
    let mode = format!("{:05o}", of(reference)?.perm);
    ModeChange::parse(&mode).ok_or_else(|| Failure::plain(format!("{mode}: is no mode")))
}

pub fn chmod(args: &args::Chmod) -> Result<(), Failure> {
    let mode = mode_change(args, |reference| found(reference, &args.open, true))?;
    let words = chmod_words(args);
    for_each_path(&args.operands(), (&args.open, words), |editor, path| {
        editor.chmod(path, &mode, args.recursive)
    })
}

pub fn chmod_words(args: &args::Chmod) -> Words<'_> {
    Words {
        printed: Printed::of(args.verbose, args.changes),
        ..Words::new("chmod", false)
    }
}

/// A new owner.
pub enum Owner {
    /// To be looked up on each volume.
    Named(OwnerSpec),
    Known(Owners),
}

impl Owner {
    /// `of` finds the attributes of the reference file.
    pub fn of(
        args: &args::Chown,
        of: impl FnOnce(&OsStr) -> Result<Reference, Failure>,
    ) -> Result<Self, Failure> {
        Ok(match &args.reference {
            None => Self::Named(OwnerSpec::parse(&args.owner.to_string_lossy())),
            Some(reference) => Self::Known(of(reference)?.owners),
        })
    }

    pub fn on(&self, editor: &Editor<'_>) -> Result<Owners, ToolError> {
        match self {
            Self::Named(spec) => editor.owners(spec),
            Self::Known(owners) => Ok(*owners),
        }
    }
}

pub fn chown(args: &args::Chown) -> Result<(), Failure> {
    let owner = Owner::of(args, |reference| found(reference, &args.open, true))?;
    let words = chown_words(args);
    for_each_path(&args.operands(), (&args.open, words), |editor, path| {
        let owners = owner.on(editor)?;
        editor.chown(path, owners, args.no_dereference, args.recursive)
    })
}

pub fn chown_words(args: &args::Chown) -> Words<'_> {
    let given = args.owner.to_str().filter(|_| args.reference.is_none());
    Words {
        printed: Printed::of(args.verbose, args.changes),
        owner: Some(given.unwrap_or_default()),
        ..Words::new("chown", false)
    }
}

/// The new size. `of` finds the attributes of the reference file.
pub fn size_change(
    args: &args::Truncate,
    of: impl FnOnce(&OsStr) -> Result<Reference, Failure>,
) -> Result<SizeChange, Failure> {
    let wrong = |why: &str| Failure::new(code::WORDS, why);
    let Some(reference) = &args.reference else {
        return args.size.ok_or_else(|| wrong("truncate needs -s or -r"));
    };
    if matches!(args.size, Some(SizeChange::To(_))) {
        return Err(wrong("-s with -r needs a change of the size, such as +1K"));
    }
    let fail = |why: &str| Failure::plain(format!("{}: {why}", reference.display()));
    let size = of(reference)?.size;
    let size = size.ok_or_else(|| fail("is no regular file, whose size could be copied"))?;
    let size = args.size.map_or(Some(size), |change| change.of(size));
    size.map(SizeChange::To)
        .ok_or_else(|| fail("the changed size is too large"))
}

pub fn truncate(args: &args::Truncate) -> Result<(), Failure> {
    let change = size_change(args, |reference| found(reference, &args.open, true))?;
    let groups = groups(&args.places, &args.open, Names::Any)?;
    let words = Words::new("truncate", false);
    in_groups(groups, (&args.open, words), |editor, path| {
        editor.truncate(path, change, args.no_create)
    })
}

/// The times that `touch` sets, access first. `of` finds those of a file; its second argument: follow a link.
fn times(
    args: &args::Touch,
    of: impl FnOnce(&OsStr, bool) -> Result<Reference, Failure>,
) -> Result<(SetTime, SetTime), Failure> {
    let wrong = |text: &str, forms: &str| Failure::plain(format!("{text}: needs {forms}"));
    let both = |time: Timestamp| (SetTime::At(time), SetTime::At(time));
    if let Some(text) = &args.date {
        let forms = "YYYY-MM-DD [HH:MM[:SS]] [ZONE], @SECONDS or now";
        return match (text.trim(), parse_date(text)) {
            ("now", _) => Ok((SetTime::Now, SetTime::Now)),
            (_, Some(time)) => Ok(both(time)),
            (_, None) => Err(wrong(text, forms)),
        };
    }
    if let Some(text) = &args.stamp {
        let time = parse_stamp(text, year_of(steadfs_rt::wall_clock()));
        return time
            .map(both)
            .ok_or_else(|| wrong(text, "[[CC]YY]MMDDhhmm[.ss]"));
    }
    let Some(reference) = &args.reference else {
        return Ok((SetTime::Now, SetTime::Now));
    };
    let found = of(reference, !args.no_dereference)?.times;
    Ok((SetTime::At(found.access), SetTime::At(found.modification)))
}

/// See [`times`].
pub fn touch_options(
    args: &args::Touch,
    of: impl FnOnce(&OsStr, bool) -> Result<Reference, Failure>,
) -> Result<TouchOptions, Failure> {
    let (atime, mtime) = times(args, of)?;
    Ok(TouchOptions {
        atime: (args.access || !args.modification).then_some(atime),
        mtime: (args.modification || !args.access).then_some(mtime),
        no_create: args.no_create,
        no_follow: args.no_dereference,
    })
}

pub fn touch(args: &args::Touch) -> Result<(), Failure> {
    let of = |reference: &OsStr, follow| found(reference, &args.open, follow);
    let options = touch_options(args, of)?;
    let groups = groups(&args.places, &args.open, Names::Any)?;
    let words = Words::new("touch", false);
    in_groups(groups, (&args.open, words), |editor, path| {
        editor.touch(path, options)
    })
}

/// The operands and the target of `mv` and `ln`.
pub fn operands<'p>(
    places: &'p [OsString],
    target: &'p args::Target,
    command: &str,
) -> Result<(&'p [OsString], &'p OsStr), Failure> {
    let (to, operands) = match (&target.target_directory, places.split_last()) {
        (Some(directory), _) => (directory, places),
        (None, Some((last, operands))) if !operands.is_empty() => (last, operands),
        _ => {
            return Err(Failure::plain(format!(
                "{command} needs an operand and a target"
            )));
        }
    };
    if target.no_target_directory && operands.len() > 1 {
        let why = "-T takes one operand and a target";
        return Err(Failure::plain(why));
    }
    Ok((operands, to))
}

/// An operand of `mv` or `ln`, which work inside one volume.
fn on_volume_for(command: &str, argument: &OsStr) -> Result<OnVolume, Failure> {
    on_volume(argument).map_err(|failure| match command {
        "mv" => Failure::plain(format!("{} ({BETWEEN})", failure.message)),
        _ => failure,
    })
}

const BETWEEN: &str = "mv works inside one volume: otherwise cp -a, then rm";

/// The paths of operands that must be on the volume of `to`.
fn paths_on(
    to: &OnVolume,
    operands: &[OsString],
    open: &Open,
    command: &str,
) -> Result<Vec<Vec<u8>>, Failure> {
    let mut named = Vec::new();
    for operand in operands {
        named.extend(expand(on_volume_for(command, operand)?, open)?);
    }
    let path = |place: OnVolume| {
        let is_same =
            place.image == to.image || relation(&place.image, &to.image, open)? == Relation::Same;
        match (is_same, command) {
            (true, _) => Ok(place.path),
            (false, "mv") => {
                let shown = place.image.display();
                Err(Failure::plain(format!(
                    "{shown}: is another volume; {BETWEEN}"
                )))
            }
            (false, _) => {
                let shown = place.image.display();
                let why = "is another volume, where a link cannot lead";
                Err(Failure::plain(format!("{shown}: {why}")))
            }
        }
    };
    named.into_iter().map(path).collect()
}

pub fn target<'t>(path: &'t [u8], target: &args::Target, no_follow: bool) -> Target<'t> {
    Target {
        path,
        is_dir: target.target_directory.is_some(),
        is_name: target.no_target_directory,
        no_follow,
    }
}

pub fn move_options(args: &args::Mv) -> MoveOptions {
    MoveOptions {
        no_clobber: args.no_clobber,
        ask: args.interactive,
    }
}

pub fn link_options(args: &args::Ln) -> LinkOptions {
    LinkOptions {
        symbolic: args.symbolic,
        force: args.force,
        ask: args.interactive,
        relative: args.relative,
    }
}

pub fn mv(args: &args::Mv) -> Result<(), Failure> {
    let (sources, to) = operands(&args.places, &args.target, "mv")?;
    let to = on_volume_for("mv", to)?;
    let sources = paths_on(&to, sources, &args.open, "mv")?;
    let sources: Vec<&[u8]> = sources.iter().map(|path| &path[..]).collect();
    let options = move_options(args);
    let stop = Stop::on_signals()?;
    let words = Words::new("mv", args.verbose);
    end(edit(&to.image, (&args.open, words), &stop, |editor| {
        editor.mv(&sources, target(&to.path, &args.target, false), options)
    })?)
}

pub fn ln(args: &args::Ln) -> Result<(), Failure> {
    let (sources, to) = operands(&args.places, &args.target, "ln")?;
    let to = on_volume_for("ln", to)?;
    let sources: Vec<Vec<u8>> = match args.symbolic && !args.relative {
        true => texts(sources, &to)?,
        false => paths_on(&to, sources, &args.open, "ln")?,
    };
    let sources: Vec<&[u8]> = sources.iter().map(|path| &path[..]).collect();
    let options = link_options(args);
    let stop = Stop::on_signals()?;
    let words = Words::new("ln", args.verbose);
    end(edit(&to.image, (&args.open, words), &stop, |editor| {
        let target = target(&to.path, &args.target, args.no_dereference);
        editor.ln(&sources, target, options)
    })?)
}

/// The texts of symbolic links. One that names the image was meant as a path on it.
fn texts(operands: &[OsString], to: &OnVolume) -> Result<Vec<Vec<u8>>, Failure> {
    let text = |operand: &OsString| match parse(operand) {
        Place::Volume(place) if place.image == to.image => {
            let shown = operand.display();
            let why = "a symbolic link holds a path inside the volume, without the image's name";
            Err(Failure::plain(format!("{shown}: {why}")))
        }
        _ => Ok(operand.as_bytes().to_vec()),
    };
    operands.iter().map(text).collect()
}
