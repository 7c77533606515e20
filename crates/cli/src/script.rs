//! `steadfs edit`: a script of changes, of which all are made or none.
//!
//! **Rule.** The script is read and parsed before the volume is opened. Its lines are carried out on a volume that keeps all
//! changes in memory (`steadfs::StagedVolume`), and the first failure drops them. With `--copy` they are made on a copy of the
//! image file, which gets the image's name when all are done and durable.

mod copy;
mod step;
pub mod words;

use std::io::Read;
use std::path::Path;

use steadfs_vfs::FileSystem;

use crate::args::script::Edit;
use crate::beside::wrong;
use crate::failure::Failure;
use crate::report::complain;
use crate::stop::Stop;
use crate::volume::{Access, with_volume};
use copy::ImageCopy;
use step::Step;

/// Longest script in bytes.
const SCRIPT_MAX: u64 = 64 << 20;

pub fn run(args: &Edit) -> Result<(), Failure> {
    let script = args
        .script
        .as_deref()
        .filter(|script| *script != Path::new("-"));
    let (name, text) = match script {
        Some(path) => (path.display().to_string(), read(path)?),
        None => (
            "standard input".to_owned(),
            limited(std::io::stdin().lock(), Path::new("-"))?,
        ),
    };
    let lines = words::lines(&text)
        .map_err(|(number, why)| Failure::plain(format!("{name}:{number}: {why}")))?;
    let steps = lines
        .iter()
        .map(|line| Step::parse(line, &name, &args.image));
    let steps: Vec<Step<'_>> = steps.collect::<Result<_, _>>()?;
    let stop = Stop::on_signals()?;
    if steps.is_empty() {
        return Ok(());
    }
    let (open, steps) = (&args.open, &steps[..]);
    let done = match (args.copy, args.dry_run) {
        (_, true) => with_volume(&args.image, open, Access::Trial, |fs| {
            perform(fs, steps, &stop)
        }),
        (false, false) => with_volume(&args.image, open, Access::Staged, |fs| {
            perform(fs, steps, &stop)
        }),
        (true, false) => ImageCopy::of(&args.image, open, &stop).and_then(|copy| {
            with_volume(copy.image(), open, Access::Write, |fs| {
                perform(fs, steps, &stop)
            })?;
            copy.replace()
        }),
    };
    done.map_err(|failure| match failure.is_signal() {
        true => Failure {
            message: "stopped; nothing was changed".to_owned(),
            ..failure
        },
        false => failure,
    })
}

/// Carries out all lines.
fn perform(fs: &dyn FileSystem, steps: &[Step<'_>], stop: &Stop) -> Result<(), Failure> {
    steps.iter().try_for_each(|step| step.perform(fs, stop))?;
    match stop.is_asked() {
        true => Err(stop.failure("")),
        false => Ok(()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let file = std::fs::File::open(path).map_err(|error| wrong(path, &error))?;
    limited(file, path)
}

fn limited(from: impl Read, path: &Path) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let read = from.take(SCRIPT_MAX + 1).read_to_end(&mut text);
    read.map_err(|error| wrong(path, &error))?;
    match text.len() as u64 > SCRIPT_MAX {
        false => Ok(text),
        true => {
            complain(&format!("{}: is longer than 64 MiB", path.display()));
            Err(Failure::plain(""))
        }
    }
}
