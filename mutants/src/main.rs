//! Judges the tests of a crate by mutants. `scripts/mutants` calls it.
//!
//! The mutants are those that cargo-mutants lists. One build has all of them, each behind a switch, so that a mutant
//! costs the tests that execute it and no build; so the tests of crates above, such as the crash explorer, can judge, too.

#![forbid(unsafe_code)]

mod build;
mod instrument;
mod judge;
mod list;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use build::Built;
use judge::{End, Test};
use list::Mutant;

/// Results, or their beginnings.
const KILLED: &str = "killed";
const SURVIVED: &str = "survived";
const UNVIABLE: &str = "does not compile";
const UNPLACED: &str = "has no switch";

/// Arguments: `TREE ROOT LIST STATE CARGO_TEST_ARGUMENTS [-- CARGO_TEST_ARGUMENTS]...`.
struct Args {
    /// A copy of the workspace, which is changed.
    tree: PathBuf,
    /// The root of the mutated crate, relative to the tree.
    root: String,
    list: PathBuf,
    /// A folder for results, which a later run continues.
    state: PathBuf,
    packages: Vec<Vec<String>>,
}

fn main() -> io::Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [tree, root, list, state, packages @ ..] = args.as_slice() else {
        return Err(io::Error::other(
            "usage: TREE ROOT LIST STATE ARGUMENTS [-- ARGUMENTS]...",
        ));
    };
    let args = Args {
        tree: tree.into(),
        root: root.clone(),
        list: list.into(),
        state: state.into(),
        packages: packages
            .split(|arg| arg == "--")
            .map(<[_]>::to_vec)
            .collect(),
    };
    let mut mutants = list::read(&args.list)?;
    if let Some(count) = number("MUTANTS_SAMPLE")? {
        let seed = number("MUTANTS_SEED")?.unwrap_or(1);
        mutants = list::sample(mutants, count as usize, seed);
    }
    let mut results = Results::open(&args.state.join("results"))?;
    let unviable = mutants.iter().filter(|mutant| results.is(mutant, UNVIABLE));
    let unviable = unviable.map(|mutant| mutant.id).collect();
    let mut built = build::build(&args.tree, &args.root, &mutants, &args.packages, unviable)?;
    eprintln!(
        "{} mutants, {} do not compile, {} have no switch",
        mutants.len(),
        built.unviable.len(),
        built.unplaced.len()
    );
    let skip = std::env::var("MUTANTS_SKIP").unwrap_or_default();
    let skip: Vec<_> = skip.split_whitespace().collect();
    let (own, others): (Vec<_>, Vec<_>) = built.programs.drain(..).partition(|p| p.own);
    let longest = number("MUTANTS_LONGEST")?.map_or(Duration::MAX, Duration::from_millis);
    record_unbuilt(&mutants, &built, &mut results)?;
    // The crate's own tests judge all mutants, those of other crates only what survives these.
    for (name, programs, longest) in [("own", own, longest), ("others", others, Duration::MAX)] {
        let survivors: Vec<_> = mutants.iter().filter(|m| !results.is_judged(m)).collect();
        if survivors.is_empty() || programs.is_empty() {
            continue;
        }
        let table = args.state.join(format!("tests-{name}"));
        let tests = judge::tests(&programs, &table, &skip, longest)?;
        let (of, count) = (survivors.len(), tests.len());
        eprintln!("{count} tests ({name}) judge {of} mutants");
        judge_all(&survivors, &tests, &mut results)?;
    }
    summary(&mutants, &results);
    Ok(())
}

/// A number in an environment variable.
fn number(name: &str) -> io::Result<Option<u64>> {
    let Ok(text) = std::env::var(name) else {
        return Ok(None);
    };
    let number = text.parse().map(Some);
    number.map_err(|_| io::Error::other(format!("{name}: not a number: {text}")))
}

/// What is known of the mutants, by their names.
struct Results {
    known: BTreeMap<String, String>,
    file: File,
}

impl Results {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).create(true).open(path)?;
        let text = std::fs::read_to_string(path)?;
        let known = text.lines().filter_map(|line| line.split_once('\t'));
        let known = known.map(|(name, result)| (name.to_owned(), result.to_owned()));
        Ok(Self {
            known: known.collect(),
            file,
        })
    }

    fn is(&self, mutant: &Mutant, kind: &str) -> bool {
        let known = self.known.get(&mutant.name);
        known.is_some_and(|result| result.starts_with(kind))
    }

    /// Whether no test has to judge a mutant again.
    fn is_judged(&self, mutant: &Mutant) -> bool {
        [KILLED, UNVIABLE, UNPLACED]
            .iter()
            .any(|kind| self.is(mutant, kind))
    }

    fn record(&mut self, mutant: &Mutant, result: String) -> io::Result<()> {
        writeln!(self.file, "{}\t{result}", mutant.name)?;
        self.known.insert(mutant.name.clone(), result);
        Ok(())
    }
}

/// Records the mutants that no test can judge.
fn record_unbuilt(mutants: &[Mutant], built: &Built, results: &mut Results) -> io::Result<()> {
    for mutant in mutants {
        if built.unviable.contains(&mutant.id) {
            results.record(mutant, UNVIABLE.to_owned())?;
        } else if built.unplaced.contains(&mutant.id) {
            results.record(mutant, UNPLACED.to_owned())?;
        }
    }
    Ok(())
}

/// Judges these mutants, all by the quick tests first, and records the results.
fn judge_all(mutants: &[&Mutant], tests: &[Test], results: &mut Results) -> io::Result<()> {
    let (quick, slow) = tests.split_at(tests.len() * 3 / 4);
    for tests in [quick, slow] {
        for mutant in mutants {
            if !results.is_judged(mutant)
                && let Some(result) = judge_one(mutant, tests)?
            {
                results.record(mutant, result)?;
            }
        }
    }
    for mutant in mutants {
        if !results.is_judged(mutant) {
            let reach = tests
                .iter()
                .filter(|test| test.reaches.contains(&mutant.id));
            results.record(mutant, format!("{SURVIVED} {} tests", reach.count()))?;
        }
    }
    Ok(())
}

/// The test that detects a mutant. Those of its own module judge first.
fn judge_one(mutant: &Mutant, tests: &[Test]) -> io::Result<Option<String>> {
    let module = mutant.module();
    let reach = tests
        .iter()
        .filter(|test| test.reaches.contains(&mutant.id));
    let (own, others): (Vec<_>, Vec<_>) = reach.partition(|test| test.name.contains(module));
    for test in own.into_iter().chain(others) {
        match test.judge(mutant.id)? {
            End::Passed => {}
            End::Failed => return Ok(Some(format!("{KILLED} by {}", test.name))),
            End::Stuck => return Ok(Some(format!("{KILLED} by {} (stuck)", test.name))),
        }
    }
    Ok(None)
}

/// Prints a line for each file, then the survivors.
fn summary(mutants: &[Mutant], results: &Results) {
    let count = |mutants: &[&Mutant], kind: &str| {
        let of = mutants.iter().filter(|mutant| results.is(mutant, kind));
        of.count()
    };
    println!("file: judged, killed, survived; not built, without a switch");
    for (file, of) in list::by_file(mutants) {
        let (killed, survived) = (count(&of, KILLED), count(&of, SURVIVED));
        let (unviable, unplaced) = (count(&of, UNVIABLE), count(&of, UNPLACED));
        let judged = killed + survived;
        println!("{file}: {judged}, {killed}, {survived}; {unviable}, {unplaced}");
    }
    let all: Vec<_> = mutants.iter().collect();
    let (killed, survived) = (count(&all, KILLED), count(&all, SURVIVED));
    let share = 100.0 * killed as f64 / (killed + survived).max(1) as f64;
    println!("killed: {killed} of {} ({share:.1} %)", killed + survived);
    for mutant in mutants {
        if results.is(mutant, SURVIVED) || results.is(mutant, UNPLACED) {
            println!("{}: {}", mutant.name, results.known[&mutant.name]);
        }
    }
}
