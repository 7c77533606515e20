//! What a volume's marks say, found out by a process without rights.

use std::path::Path;

use steadfs::tools::printable_text;
use steadfs::{Marks, Options, VolumeDevice};

use super::{Task, answer_to, line};
use crate::failure::Failure;
use crate::sandbox;

/// What a volume's marks say, and how full it is.
pub struct State {
    pub marks: Marks,
    pub summary: String,
}

/// The words of marks, with which a worker's answer begins.
const MARKS: [(&str, Marks); 3] = [
    ("clean", Marks::Clean),
    ("recover", Marks::ToRecover),
    ("check", Marks::ToCheck),
];

/// Finds out what the marks of a volume say, in the sandbox by a worker.
///
/// # Errors
/// There is no volume, or it cannot be read.
pub fn of(image: &Path, list: &str) -> Result<State, Failure> {
    if !sandbox::is_on(None)? {
        return inspect(image, list, || Ok(()));
    }
    let answer = answer_to(Task::State, list, image)?;
    let (word, rest) = answer.trim_end().split_once(' ').unwrap_or_default();
    match MARKS.iter().find(|(name, _)| *name == word) {
        Some((_, marks)) => Ok(State {
            marks: *marks,
            summary: rest.to_owned(),
        }),
        None if word == "none" => Err(Failure::plain(printable_text(rest))),
        None => Err(Failure::plain(format!(
            "{}: cannot be read",
            image.display()
        ))),
    }
}

fn inspect(
    image: &Path,
    list: &str,
    enter: impl FnOnce() -> Result<(), Failure>,
) -> Result<State, Failure> {
    let mut options = Options::parse_to_read(list).map_err(Failure::plain)?;
    sandbox::adapt(&mut options)?;
    let device = VolumeDevice::open_salvage(image, &options).map_err(Failure::plain)?;
    enter()?;
    let inspection = device.inspect().map_err(Failure::plain)?;
    Ok(State {
        marks: inspection.marks(),
        summary: crate::fsck::summary(&inspection),
    })
}

/// In the worker: prints what the marks of the volume say.
pub fn print(image: &Path, list: &str) -> Result<(), Failure> {
    let line = match inspect(image, list, || sandbox::enter(false).map(drop)) {
        Ok(State { marks, summary }) => {
            let word = MARKS.iter().find(|(_, of)| *of == marks);
            let word = word.map_or("check", |(word, _)| word);
            format!("{word} {summary}\n")
        }
        Err(failure) => line("none", &failure.message),
    };
    crate::output::print(|out| out.write_all(line.as_bytes()))
}
