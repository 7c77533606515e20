//! A line of a script.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};
use steadfs::tools::edit::Editor;
use steadfs::tools::{ToolError, glob, owner_cx, printable};
use steadfs_vfs::FileSystem;

use super::words::Line;
use crate::args::offline::Cp;
use crate::args::script::{self, Change};
use crate::changes::{At, ChangeReporter, Words};
use crate::copy;
use crate::edit::{self, Owner};
use crate::failure::Failure;
use crate::place::{OnVolume, Place};
use crate::reference::{Reference, found_on};
use crate::stop::Stop;

/// A command with its line.
pub struct Step<'s> {
    line: &'s Line,
    /// Name of the script and number of the line, as errors begin.
    at: String,
    image: &'s Path,
    change: Change,
}

/// What operands name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Files that exist: a pattern must match.
    Existing,
    /// Files that are made if they do not exist.
    Any,
}

impl<'s> Step<'s> {
    /// The command on a line of the script `name`, for the volume in `image`.
    pub fn parse(line: &'s Line, name: &str, image: &'s Path) -> Result<Self, Failure> {
        let at = format!("{name}:{}: ", line.number);
        let wrong = |why: String| Failure::plain(format!("{at}{why}"));
        let parsed = script::Step::try_parse_from(&line.words);
        let change = parsed
            .map_err(|error| wrong(in_words(&error, line)))?
            .change;
        let open = change.open();
        if !open.options.is_empty() || open.sandbox.is_some() || !open.keys.is_empty() {
            return Err(wrong(
                "-o, --sandbox and --key-file belong to edit itself".to_owned(),
            ));
        }
        if change.asks() {
            return Err(wrong(
                "-i and -I: a script has no answers to questions".to_owned(),
            ));
        }
        if let Change::Chmod(args) = &change
            && args.reference.is_none()
        {
            args.change()
                .map_err(|why| wrong(format!("chmod: {why}")))?;
        }
        let mut prefix = image.as_os_str().as_bytes().to_vec();
        prefix.push(b':');
        if let Some(named) = change
            .places()
            .iter()
            .find(|word| word.as_bytes().starts_with(&prefix))
        {
            let shown = named.display();
            return Err(wrong(format!(
                "{shown}: paths in a script are those on the volume, without its image"
            )));
        }
        Ok(Self {
            line,
            at,
            image,
            change,
        })
    }

    fn fail(&self, why: impl std::fmt::Display) -> Failure {
        Failure::plain(format!("{}{why}", self.at))
    }

    /// Makes the change.
    ///
    /// # Errors
    /// Any part of it failed; what is not in the message was reported before.
    pub fn perform(&self, fs: &dyn FileSystem, stop: &Stop) -> Result<(), Failure> {
        match &self.change {
            Change::Cp(args) => return self.copy(fs, args, false, stop),
            Change::Put(args) => return self.copy(fs, args, true, stop),
            _ => {}
        }
        let cx = edit::editor_cx();
        let words = words(&self.change);
        let mut reporter = ChangeReporter::new(fs, At::Line(&self.at), words, stop);
        let mut editor = Editor::new(fs, &cx, &mut reporter);
        let done = self.edit(fs, &mut editor)?;
        let failures = editor.failures();
        match done {
            Err(error @ ToolError::Stopped) => Err(stop.failure(error)),
            Err(error) => Err(self.fail(error)),
            Ok(()) if failures > 0 => Err(Failure::plain(UNCHANGED)),
            Ok(()) => match reporter.take_unwritten() {
                Some(failure) => Err(self.fail(failure.message)),
                None => Ok(()),
            },
        }
    }

    /// Makes a change that is no copy.
    fn edit(
        &self,
        fs: &dyn FileSystem,
        editor: &mut Editor<'_>,
    ) -> Result<Result<(), ToolError>, Failure> {
        let existing = |places: &[OsString]| self.paths(fs, places, Names::Existing);
        Ok(match &self.change {
            Change::Mkdir(args) => {
                let options = edit::mkdir_options(args);
                let mut paths = args.places.iter().map(|place| place.as_bytes());
                paths.try_for_each(|path| editor.mkdir(path, &options))
            }
            Change::Rmdir(args) => {
                let ignore = args.ignore_fail_on_non_empty;
                let mut paths = existing(&args.places)?.into_iter();
                paths.try_for_each(|path| editor.rmdir(&path, args.parents, ignore))
            }
            Change::Rm(args) => {
                let options = edit::rm_options(args);
                let names = match args.force {
                    true => Names::Any,
                    false => Names::Existing,
                };
                let mut paths = self.paths(fs, &args.places, names)?.into_iter();
                paths.try_for_each(|path| editor.rm(&path, options))
            }
            Change::Mv(args) => {
                let (sources, to) = self.operands(&args.places, &args.target, "mv")?;
                let sources = existing(sources)?;
                let sources: Vec<&[u8]> = sources.iter().map(|path| &path[..]).collect();
                let target = edit::target(to, &args.target, false);
                editor.mv(&sources, target, edit::move_options(args))
            }
            Change::Ln(args) => {
                let (sources, to) = self.operands(&args.places, &args.target, "ln")?;
                let sources = match args.symbolic && !args.relative {
                    true => sources
                        .iter()
                        .map(|text| text.as_bytes().to_vec())
                        .collect(),
                    false => existing(sources)?,
                };
                let sources: Vec<&[u8]> = sources.iter().map(|path| &path[..]).collect();
                let target = edit::target(to, &args.target, args.no_dereference);
                editor.ln(&sources, target, edit::link_options(args))
            }
            _ => return self.set_attributes(fs, editor),
        })
    }

    /// Makes a change of attributes or sizes.
    fn set_attributes(
        &self,
        fs: &dyn FileSystem,
        editor: &mut Editor<'_>,
    ) -> Result<Result<(), ToolError>, Failure> {
        let existing = |places: &[OsString]| self.paths(fs, places, Names::Existing);
        let any = |places: &[OsString]| self.paths(fs, places, Names::Any);
        let of = |reference: &OsStr, follow| -> Result<Reference, Failure> {
            found_on(fs, reference.as_bytes(), follow).map_err(Failure::plain)
        };
        let followed = |reference: &OsStr| of(reference, true);
        let at = |failure: Failure| self.fail(failure.message);
        Ok(match &self.change {
            Change::Chmod(args) => {
                let mode = edit::mode_change(args, followed).map_err(at)?;
                let mut paths = existing(&args.operands())?.into_iter();
                paths.try_for_each(|path| editor.chmod(&path, &mode, args.recursive))
            }
            Change::Chown(args) => {
                let owner = Owner::of(args, followed).map_err(at)?;
                let mut paths = existing(&args.operands())?.into_iter();
                paths.try_for_each(|path| {
                    let owners = owner.on(editor)?;
                    editor.chown(&path, owners, args.no_dereference, args.recursive)
                })
            }
            Change::Truncate(args) => {
                let change = edit::size_change(args, followed).map_err(at)?;
                let mut paths = any(&args.places)?.into_iter();
                paths.try_for_each(|path| editor.truncate(&path, change, args.no_create))
            }
            Change::Touch(args) => {
                let options = edit::touch_options(args, of).map_err(at)?;
                let mut paths = any(&args.places)?.into_iter();
                paths.try_for_each(|path| editor.touch(&path, options))
            }
            _ => Ok(()),
        })
    }

    fn operands<'p>(
        &self,
        places: &'p [OsString],
        target: &'p crate::args::edit::Target,
        command: &str,
    ) -> Result<(&'p [OsString], &'p [u8]), Failure> {
        let found = edit::operands(places, target, command);
        let (sources, to) = found.map_err(|failure| self.fail(failure.message))?;
        Ok((sources, to.as_bytes()))
    }

    /// The paths that operands name.
    fn paths(
        &self,
        fs: &dyn FileSystem,
        places: &[OsString],
        names: Names,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let mut paths = Vec::new();
        for place in places {
            let path = place.as_bytes();
            let found = match self.line.literal.contains(place) {
                true => vec![path.to_vec()],
                false => glob(fs, &owner_cx(), path).map_err(|error| self.fail(error))?,
            };
            match (found.is_empty(), names) {
                (false, _) => paths.extend(found),
                (true, Names::Any) => paths.push(path.to_vec()),
                (true, Names::Existing) => {
                    return Err(self.fail(format!("{}: no file matches", printable(path))));
                }
            }
        }
        Ok(paths)
    }

    /// Copies on the volume, or from the host.
    fn copy(
        &self,
        fs: &dyn FileSystem,
        args: &Cp,
        from_host: bool,
        stop: &Stop,
    ) -> Result<(), Failure> {
        let (to, sources) = match (&args.target_directory, args.places.split_last()) {
            (Some(directory), _) => (directory, &args.places[..]),
            (None, Some((last, sources))) if !sources.is_empty() => (last, sources),
            _ => return Err(self.fail("needs a source and a target")),
        };
        if args.to_host.no_privileges || args.to_host.unlimited {
            return Err(self.fail("--no-privileges and --unlimited are for copies to the host"));
        }
        let on_volume = |path: Vec<u8>| OnVolume {
            image: self.image.to_owned(),
            path,
        };
        let sources: Vec<Place> = match from_host {
            false => {
                let paths = self.paths(fs, sources, Names::Existing)?.into_iter();
                paths.map(|path| Place::Volume(on_volume(path))).collect()
            }
            true if sources.iter().any(|source| source == "-") => {
                return Err(self.fail("put copies files, not standard input"));
            }
            true => sources
                .iter()
                .map(|path| Place::Host(PathBuf::from(path)))
                .collect(),
        };
        let to = on_volume(to.as_bytes().to_vec());
        let done = copy::into_open(args, &sources, (fs, &to), stop, &self.at);
        done.map_err(|failure| match failure {
            failure if failure.is_signal() => failure,
            failure if failure.message.is_empty() => Failure::plain(UNCHANGED),
            failure => self.fail(failure.message),
        })
    }
}

/// The words of a command's report.
fn words(change: &Change) -> Words<'_> {
    match change {
        Change::Mkdir(args) => Words::new("mkdir", args.verbose),
        Change::Rmdir(args) => Words::new("rmdir", args.verbose),
        Change::Rm(args) => Words::new("rm", args.verbose),
        Change::Mv(args) => Words::new("mv", args.verbose),
        Change::Ln(args) => Words::new("ln", args.verbose),
        Change::Chmod(args) => edit::chmod_words(args),
        Change::Chown(args) => edit::chown_words(args),
        Change::Touch(_) => Words::new("touch", false),
        Change::Truncate(_) => Words::new("truncate", false),
        Change::Cp(args) | Change::Put(args) => Words::new("cp", args.verbose),
    }
}

const UNCHANGED: &str = "nothing was changed";

/// What is wrong with the words of a line.
fn in_words(error: &clap::Error, line: &Line) -> String {
    let command = line.words.first().map(|word| word.display().to_string());
    let command = command.unwrap_or_default();
    let named = |kind| error.get(kind).map(ToString::to_string);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            format!("{command}: no command of scripts (see steadfs edit --help)")
        }
        ErrorKind::UnknownArgument => {
            let option = named(ContextKind::InvalidArg).unwrap_or_default();
            format!("{option}: {command} has no such option")
        }
        ErrorKind::DisplayHelp => format!("see steadfs {command} --help"),
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            format!("{command}: {}", first.trim_start_matches("error: "))
        }
    }
}
