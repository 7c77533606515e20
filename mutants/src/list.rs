//! The list of mutants, as `cargo mutants --list --json` prints it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::Path;

use serde_json::Value;

/// What a mutant changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Genre {
    /// A function returns a value and does nothing.
    FnValue,
    Binary,
    Unary,
    /// An arm of a match never applies.
    MatchArm,
    /// The guard of an arm is always true, or always false.
    Guard,
    Other,
}

/// A change of one place of a source.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// From 1, in the order of the list.
    pub id: u32,
    /// Its name, with file, line and column.
    pub name: String,
    /// Relative to the root of the workspace.
    pub file: String,
    /// Line, from 1, and column in characters, from 1, where the changed text begins.
    pub start: (usize, usize),
    pub replacement: String,
    pub genre: Genre,
}

impl Mutant {
    /// The module of the crate, below its root, that has the mutant.
    pub fn module(&self) -> &str {
        let inside = self.file.split_once("/src/");
        let path = inside.map_or(self.file.as_str(), |(_, path)| path);
        let first = path.split('/').next().unwrap_or(path);
        first.strip_suffix(".rs").unwrap_or(first)
    }
}

/// Reads a list.
///
/// # Errors
/// The file cannot be read, or is not such a list.
pub fn read(path: &Path) -> io::Result<Vec<Mutant>> {
    let list: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let list = list.as_array().ok_or_else(|| invalid("not an array"))?;
    (1..)
        .zip(list)
        .map(|(id, entry)| parse(id, entry))
        .collect()
}

/// Of each folder at most `count` mutants, chosen at random: those with the least hashes of their name and `seed`.
pub fn sample(mutants: Vec<Mutant>, count: usize, seed: u64) -> Vec<Mutant> {
    let hash = |mutant: &Mutant| {
        let mut hasher = DefaultHasher::new();
        (seed, &mutant.name).hash(&mut hasher);
        hasher.finish()
    };
    let mut folders = BTreeMap::<_, Vec<_>>::new();
    for mutant in mutants {
        let folder = Path::new(&mutant.file).parent().map(Path::to_owned);
        folders.entry(folder).or_default().push(mutant);
    }
    let chosen = folders.into_values().flat_map(|mut of| {
        of.sort_by_key(hash);
        of.truncate(count);
        of
    });
    let mut chosen: Vec<_> = chosen.collect();
    chosen.sort_by_key(|mutant| mutant.id);
    chosen
}

/// Mutants by their file.
pub fn by_file(mutants: &[Mutant]) -> BTreeMap<&str, Vec<&Mutant>> {
    let mut files = BTreeMap::<_, Vec<_>>::new();
    for mutant in mutants {
        files.entry(mutant.file.as_str()).or_default().push(mutant);
    }
    files
}

fn parse(id: u32, entry: &Value) -> io::Result<Mutant> {
    let text = |name: &str| {
        let text = entry[name].as_str().map(str::to_owned);
        text.ok_or_else(|| invalid(name))
    };
    let number = |name: &str| {
        let number = entry["span"]["start"][name].as_u64();
        number.map_or_else(|| Err(invalid(name)), |number| Ok(number as usize))
    };
    Ok(Mutant {
        id,
        name: text("name")?,
        file: text("file")?,
        start: (number("line")?, number("column")?),
        replacement: text("replacement")?,
        genre: match text("genre")?.as_str() {
            "FnValue" => Genre::FnValue,
            "BinaryOperator" => Genre::Binary,
            "UnaryOperator" => Genre::Unary,
            "MatchArm" => Genre::MatchArm,
            "MatchArmGuard" => Genre::Guard,
            _ => Genre::Other,
        },
    })
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("list of mutants: {what}"),
    )
}
