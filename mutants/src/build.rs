//! Builds the instrumented tests, without the mutants that do not compile.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::instrument::{instrument, mutant_at};
use crate::list::{Mutant, by_file};

/// A test program, and the folder in which cargo runs it.
#[derive(Debug)]
pub struct Program {
    pub path: PathBuf,
    pub folder: PathBuf,
    /// It is one of the mutated crate's own tests, not of those that judge what survives them.
    pub own: bool,
}

/// The instrumented tree.
#[derive(Debug, Default)]
pub struct Built {
    pub programs: Vec<Program>,
    /// Mutants that the compiler refuses.
    pub unviable: BTreeSet<u32>,
    /// Mutants that have no place for a switch.
    pub unplaced: BTreeSet<u32>,
}

/// The switch: `MUTANT` is the number of the mutant that is on; `MUTANT_REACHED` is a file to which the numbers of the
/// mutants that are executed are appended.
const SWITCH: &str = r##"
pub(crate) mod mutant_switch {
    #![allow(warnings, clippy::all)]
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
    const UNREAD: u32 = u32::MAX;
    const TRACE: u32 = u32::MAX - 1;
    static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);
    static REACHED: [AtomicBool; 65536] = [const { AtomicBool::new(false) }; 65536];
    #[inline]
    pub fn on(id: u32) -> bool {
        let active = ACTIVE.load(Relaxed);
        if active < TRACE { active == id } else { slow(active, id) }
    }
    #[cold]
    fn slow(mut active: u32, id: u32) -> bool {
        if active == UNREAD {
            active = match std::env::var_os("MUTANT_REACHED") {
                Some(_) => TRACE,
                None => std::env::var("MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0),
            };
            ACTIVE.store(active, Relaxed);
        }
        if active == TRACE && !REACHED[id as usize].swap(true, Relaxed) {
            use std::io::Write as _;
            let path = std::env::var_os("MUTANT_REACHED").unwrap();
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            let _ = file.and_then(|mut file| file.write_all(format!("{id}\n").as_bytes()));
        }
        active == id
    }
}
"##;

/// Builds in `tree`, a copy of the workspace, the tests that `packages` names (arguments of `cargo test`), the mutated
/// crate's own first. `root` is the root of the mutated crate, and `unviable` are mutants that the compiler has refused
/// before.
///
/// # Errors
/// A source cannot be read or written, or does not compile for a reason other than a mutant.
pub fn build(
    tree: &Path,
    root: &str,
    mutants: &[Mutant],
    packages: &[Vec<String>],
    unviable: BTreeSet<u32>,
) -> io::Result<Built> {
    let mut built = Built {
        unviable,
        ..Built::default()
    };
    let sources = by_file(mutants)
        .into_iter()
        .map(|(file, mutants)| Ok((file, std::fs::read_to_string(tree.join(file))?, mutants)))
        .collect::<io::Result<Vec<_>>>()?;
    let root_text = std::fs::read_to_string(tree.join(root))?;
    if !root_text.contains("mod mutant_switch") {
        std::fs::write(tree.join(root), root_text + SWITCH)?;
    }
    loop {
        built.unplaced.clear();
        for (file, source, mutants) in &sources {
            let viable = mutants.iter().filter(|m| !built.unviable.contains(&m.id));
            let viable: Vec<_> = viable.copied().collect();
            let instrumented = instrument(source, &viable)
                .map_err(|error| io::Error::other(format!("{file}: {error}")))?;
            let missing = viable.iter().map(|m| m.id);
            built
                .unplaced
                .extend(missing.filter(|id| !instrumented.placed.contains(id)));
            let text = if *file == root {
                instrumented.text + SWITCH
            } else {
                instrumented.text
            };
            let path = tree.join(file);
            if std::fs::read_to_string(&path)? != text {
                std::fs::write(path, text)?;
            }
        }
        let refused = compile(tree, packages, &mut built.programs)?;
        if refused.is_empty() {
            return Ok(built);
        }
        eprintln!("{} mutants do not compile", refused.len());
        built.unviable.extend(refused);
    }
}

/// Compiles; returns the mutants that errors are about.
fn compile(
    tree: &Path,
    packages: &[Vec<String>],
    programs: &mut Vec<Program>,
) -> io::Result<BTreeSet<u32>> {
    programs.clear();
    let mut refused = BTreeSet::new();
    for (n, package) in packages.iter().enumerate() {
        let out = Command::new("cargo")
            .args(["test", "--no-run", "--locked", "--message-format=json"])
            .args(package)
            .current_dir(tree)
            .env("RUSTFLAGS", "--cap-lints=allow")
            .stderr(std::process::Stdio::inherit())
            .output()?;
        let mut other = String::new();
        for line in out.stdout.split(|byte| *byte == b'\n') {
            let Ok(message) = serde_json::from_slice::<Value>(line) else {
                continue;
            };
            match message["reason"].as_str() {
                Some("compiler-message") if message["message"]["level"] == "error" => {
                    match about(tree, &message["message"]) {
                        Some(id) => drop(refused.insert(id)),
                        None => other += message["message"]["rendered"].as_str().unwrap_or(""),
                    }
                }
                Some("compiler-artifact") => programs.extend(program(&message, n == 0)),
                _ => {}
            }
        }
        if !refused.is_empty() {
            return Ok(refused);
        }
        if !out.status.success() {
            return Err(io::Error::other(format!(
                "the tests do not compile: {other}"
            )));
        }
    }
    Ok(refused)
}

/// The mutant that an error is about: the one whose text it is in, or else one in the same lines.
fn about(tree: &Path, error: &Value) -> Option<u32> {
    let spans = error["spans"].as_array()?;
    let primary = spans.iter().filter(|span| span["is_primary"] == true);
    let spans: Vec<_> = primary.chain(spans).collect();
    let text = |span: &Value| std::fs::read_to_string(tree.join(span["file_name"].as_str()?)).ok();
    let at = |span: &Value, name: &str| span[name].as_u64().map(|at| at as usize);
    let inside = |span: &&Value| mutant_at(&text(span)?, at(span, "byte_start")?);
    let beside = |span: &&Value| {
        let text = text(span)?;
        let (start, end) = (at(span, "line_start")?, at(span, "line_end")?);
        let lines = text.lines().skip(start - 1).take(end + 1 - start);
        lines.into_iter().find_map(|line| {
            let (_, id) = line.split_once("mutant_switch::on(")?;
            id.split_once(')')?.0.parse().ok()
        })
    };
    spans
        .iter()
        .find_map(inside)
        .or_else(|| spans.iter().find_map(beside))
}

fn program(artifact: &Value, own: bool) -> Option<Program> {
    let path = artifact["executable"].as_str()?;
    let manifest = Path::new(artifact["manifest_path"].as_str()?);
    (artifact["profile"]["test"] == true).then(|| Program {
        path: path.into(),
        folder: manifest.parent().unwrap_or(manifest).into(),
        own,
    })
}
