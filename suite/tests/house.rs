//! Rules of the workspace that no compiler checks: dependencies between crates, lengths of files and
//! functions, words, unsafe code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "house/functions.rs"]
mod functions;
#[path = "house/packages.rs"]
mod packages;
#[path = "house/unsafe_rooms.rs"]
mod unsafe_rooms;
#[path = "house/words.rs"]
mod words;

/// A crate: its tier, and the crates that its product code may use.
struct CrateRule {
    name: &'static str,
    tier: u8,
    uses: &'static [&'static str],
}

const fn rule(name: &'static str, tier: u8, uses: &'static [&'static str]) -> CrateRule {
    CrateRule { name, tier, uses }
}

/// All crates of the workspace. `f2fs` and `ext4` are siblings: neither uses the other, and only ext4 uses the journal.
/// Format crates are below the engines that use them. The tens are the tiers of README.md's table, the units order
/// crates within a tier.
const CRATES: &[CrateRule] = &[
    rule("base", 0, &[]),
    rule("rt", 10, &["base"]),
    rule("iosched", 20, &["base"]),
    rule("block", 21, &["base", "rt", "iosched"]),
    rule("stack", 22, &["base", "rt", "block"]),
    rule("contain", 22, &["rt"]),
    rule("nbd", 22, &["base", "rt", "block"]),
    rule("vfs", 30, &["base", "rt"]),
    rule("fscrypt", 31, &["base", "rt", "vfs"]),
    rule("remote", 31, &["base", "rt", "vfs"]),
    rule("cache", 31, &["base", "rt", "block", "vfs"]),
    rule("jbd2-format", 31, &["base"]),
    rule("format-base", 33, &["base", "block", "vfs"]),
    rule(
        "ext4-format",
        35,
        &["base", "rt", "block", "vfs", "format-base", "jbd2-format"],
    ),
    rule(
        "f2fs-format",
        35,
        &["base", "rt", "block", "vfs", "format-base"],
    ),
    rule("jbd2", 40, &["base", "rt", "block", "cache", "jbd2-format"]),
    rule(
        "ext4",
        50,
        &[
            "base",
            "rt",
            "block",
            "cache",
            "fscrypt",
            "vfs",
            "jbd2",
            "ext4-format",
        ],
    ),
    rule(
        "f2fs",
        50,
        &[
            "base",
            "rt",
            "block",
            "cache",
            "fscrypt",
            "vfs",
            "f2fs-format",
        ],
    ),
    rule("workload", 50, &["base", "rt", "vfs"]),
    // Tests only.
    rule(
        "conformance",
        59,
        &[
            "base",
            "rt",
            "block",
            "cache",
            "vfs",
            "ext4-format",
            "f2fs-format",
            "ext4",
            "f2fs",
        ],
    ),
    rule("fuse", 60, &["base", "rt", "vfs"]),
    rule(
        "steadfs",
        61,
        &[
            "base", "rt", "iosched", "block", "stack", "nbd", "cache", "fscrypt", "vfs", "jbd2",
            "ext4", "f2fs", "fuse",
        ],
    ),
    rule(
        "lab",
        62,
        &[
            "base", "rt", "iosched", "block", "stack", "cache", "vfs", "jbd2", "ext4", "f2fs",
            "workload", "steadfs",
        ],
    ),
    rule(
        "cli",
        70,
        &["base", "rt", "vfs", "contain", "remote", "steadfs"],
    ),
    rule("lab-cli", 70, &["rt", "steadfs", "lab"]),
    rule("python", 70, &["rt", "steadfs"]),
    rule(
        "suite",
        80,
        &[
            "base", "rt", "iosched", "block", "cache", "vfs", "jbd2", "ext4", "f2fs", "workload",
            "fuse", "steadfs", "lab", "cli", "lab-cli",
        ],
    ),
    rule("bench", 81, &["suite"]),
];

/// Largest number of lines in a file; what follows its `#[cfg(test)]` module does not count.
const FILE_LINES: usize = 600;

/// Longer files, with their limits. The list only shrinks.
const LONGER_FILES: &[(&str, usize)] = &[];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the suite is a folder of the workspace")
        .to_owned()
}

fn metadata() -> serde_json::Value {
    let out = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .expect("cargo starts");
    assert!(
        out.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON")
}

fn short(package: &str) -> &str {
    package.strip_prefix("steadfs-").unwrap_or(package)
}

#[test]
fn the_table_of_crates_has_no_upward_dependency() {
    let tiers: BTreeMap<_, _> = CRATES.iter().map(|r| (r.name, r.tier)).collect();
    assert_eq!(tiers.len(), CRATES.len(), "a crate is listed twice");
    for rule in CRATES {
        for used in rule.uses {
            assert!(
                tiers[used] < rule.tier,
                "{} may not use {used}: not below it",
                rule.name
            );
        }
    }
}

#[test]
fn crates_depend_only_on_what_the_table_allows() {
    let tiers: BTreeMap<_, _> = CRATES.iter().map(|r| (r.name, r.tier)).collect();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let ours: BTreeSet<_> = packages
        .iter()
        .map(|p| p["name"].as_str().expect("a package has a name"))
        .collect();
    let mut wrong = Vec::new();
    for package in packages {
        let name = short(package["name"].as_str().expect("a package has a name"));
        let Some(rule) = CRATES.iter().find(|r| r.name == name) else {
            wrong.push(format!("{name} is not in the table of crates"));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("a list") {
            let target = dependency["name"].as_str().expect("a name");
            if !ours.contains(target) {
                continue;
            }
            let target = short(target);
            // Tests of a crate may use other crates below it.
            let allowed = match dependency["kind"].as_str() {
                None => rule.uses.contains(&target),
                Some(_) => tiers.get(target).is_some_and(|t| *t < rule.tier),
            };
            if !allowed {
                wrong.push(format!("{name} uses {target}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "not allowed by the table of crates: {wrong:#?}"
    );
}

/// Numbers of foreign crates that may be linked into the library that serves a mount, and into the program with its
/// command line. Users trust each of them with their data (two compress files of f2fs, seven hash verity files, ten
/// encrypt connections to NBD servers, fifteen encrypt files, one matches the patterns of `format --file-contexts`, one reads UUIDs; 25 draw `steadfs top` on a terminal, and no
/// other command calls them).
const FOREIGN: &[(&str, usize)] = &[("steadfs", 61), ("steadfs-cli", 107)];

/// The crates that are linked into `package`, which is built with these features.
fn linked(package: &str, features: &[&str]) -> BTreeSet<String> {
    let out = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--prefix=none"])
        .args(["--edges=normal,no-proc-macro", "--package", package])
        .args(features)
        .current_dir(root())
        .output()
        .expect("cargo starts");
    let tree = String::from_utf8_lossy(&out.stdout);
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let names: BTreeSet<_> = names.filter(|name| !name.is_empty()).collect();
    assert!(out.status.success() && names.contains(package), "{out:?}");
    names.into_iter().map(str::to_owned).collect()
}

fn is_foreign(name: &str) -> bool {
    !name.starts_with("steadfs")
}

#[test]
fn few_foreign_crates_are_linked() {
    for (package, most) in FOREIGN {
        let linked = linked(package, &[]);
        let foreign: Vec<_> = linked.iter().filter(|name| is_foreign(name)).collect();
        let count = foreign.len();
        assert!(count <= *most, "{package} links {count}: {foreign:?}");
    }
}

/// Crates that the library needs for a feature only, and that feature.
const FEATURE_CRATES: &[(&str, &str)] = &[
    ("steadfs-fuse", "mount"),
    ("io-uring", "io-uring"),
    ("corosensei", "sim"),
    ("steadfs-nbd", "nbd"),
    ("rustls", "nbd"),
    ("ring", "nbd"),
];

#[test]
fn the_library_without_features_links_only_what_it_needs() {
    // Foreign crates of the library without features.
    const MOST: usize = 51;
    let core = linked("steadfs", &["--no-default-features"]);
    let all = linked("steadfs", &["--all-features"]);
    for (name, feature) in FEATURE_CRATES {
        assert!(all.contains(*name), "{name} belongs to feature {feature}");
        assert!(!core.contains(*name), "{name} without feature {feature}");
    }
    for sandbox in ["steadfs-contain", "landlock", "seccompiler"] {
        assert!(!all.contains(sandbox), "{sandbox} is the program's");
    }
    let foreign: Vec<_> = core.iter().filter(|name| is_foreign(name)).collect();
    assert!(foreign.len() <= MOST, "{}: {foreign:?}", foreign.len());
}

#[test]
fn files_stay_short() {
    let mut wrong = Vec::new();
    for file in sources(&root()) {
        let text = std::fs::read_to_string(&file).expect("a source file is text");
        let product = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
        let lines = text[..product].lines().count();
        let path = file.strip_prefix(root()).expect("below the root");
        let path = path.to_str().expect("names are UTF-8");
        let limit = LONGER_FILES
            .iter()
            .find(|(p, _)| *p == path)
            .map_or(FILE_LINES, |(_, n)| *n);
        if lines > limit {
            wrong.push(format!(
                "{path}: {lines} lines of product code, limit {limit}"
            ));
        }
    }
    assert!(wrong.is_empty(), "split these files: {wrong:#?}");
}

/// Packages come from the archive that the machine is configured for.
#[test]
fn scripts_name_no_package_archive() {
    for folder in ["scripts", ".ci"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("a script is text");
            for name in ["debian.org", "ubuntu.com", "crates.io"] {
                assert!(!text.contains(name), "{}: {name}", path.display());
            }
        }
    }
}

/// A simulated run is a function of its seed in every build. So code that depends on the build must not affect a run;
/// it has been reviewed in these files.
#[test]
fn builds_with_and_without_assertions_run_alike() {
    const REVIEWED: [&str; 3] = [
        // The locks that a task holds are in a list of the task, which needs no lock.
        "crates/rt/src/lock_header.rs",
        // Fault points, which an environment variable arms.
        "crates/rt/src/fault.rs",
        // Ranges that requests write, under the lock that the queue takes anyway.
        "crates/block/src/queue/state.rs",
    ];
    let root = root();
    let mut differ = Vec::new();
    for file in sources(&root) {
        let text = std::fs::read_to_string(&file).expect("a source file is text");
        if text.contains("(debug_assertions)") {
            let path = file.strip_prefix(&root).expect("below the root");
            differ.push(path.to_str().expect("names are UTF-8").to_owned());
        }
    }
    differ.sort();
    let mut reviewed = REVIEWED.map(str::to_owned);
    reviewed.sort();
    assert_eq!(differ, reviewed);
}

/// A thread may not be available; a mount or remount then reports that. Only code for tests and simulations may panic.
#[test]
fn product_code_reports_that_a_task_cannot_start() {
    const TOOLS: [&str; 5] = [
        "crates/rt/",
        "crates/lab/",
        "crates/workload/",
        "crates/conformance/",
        // A device that fails on purpose.
        "crates/block/src/faults.rs",
    ];
    let root = root();
    let mut wrong = Vec::new();
    for file in sources(&root) {
        let path = file.strip_prefix(&root).expect("below the root");
        let path = path.to_str().expect("names are UTF-8");
        let is_example = path.contains("/examples/");
        if is_example || TOOLS.iter().any(|tool| path.starts_with(tool)) {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a source file is text");
        let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let spawns = |line: &&str| line.contains("rt::spawn(") || line.contains(" spawn(");
        let found = product.lines().filter(spawns);
        wrong.extend(found.map(|line| format!("{path}: {}", line.trim())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Product sources: crates/ without test files.
fn sources(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![root.join("crates")];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            if path.is_dir() && name != "tests" {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && name != "tests.rs" {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
