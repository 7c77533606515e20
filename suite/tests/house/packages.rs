//! Packages: what the crates of the registry contain, and which foreign crates they may bring along.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Crates that stay in this repository: tests, experiments and measurements.
const UNPUBLISHED: [&str; 7] = [
    "workload",
    "conformance",
    "lab",
    "lab-cli",
    "suite",
    "bench",
    "python",
];

fn cargo(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO"))
        .args(args)
        .args(["--locked", "--offline"])
        .current_dir(super::root())
        .output()
        .expect("cargo starts");
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "cargo {args:?}: {error}");
    String::from_utf8(out.stdout).expect("cargo prints UTF-8")
}

#[test]
fn packages_are_complete() {
    let metadata = super::metadata();
    let packages = metadata["packages"].as_array().expect("a list");
    let name = |package: &serde_json::Value| package["name"].as_str().unwrap_or("").to_owned();
    let is_local = |name: &str| UNPUBLISHED.contains(&super::short(name));
    let mut wrong = Vec::new();
    for package in packages {
        let (own, version) = (name(package), &package["version"]);
        // `publish = false` is an empty list of registries.
        assert_eq!(package["publish"].is_array(), is_local(&own), "{own}");
        if is_local(&own) {
            continue;
        }
        for field in [
            "description",
            "license",
            "readme",
            "documentation",
            "rust_version",
        ] {
            if !package[field].is_string() {
                wrong.push(format!("{own} has no {field}"));
            }
        }
        for field in ["keywords", "categories"] {
            if package[field].as_array().is_none_or(Vec::is_empty) {
                wrong.push(format!("{own} has no {field}"));
            }
        }
        for dependency in package["dependencies"].as_array().expect("a list") {
            let required = dependency["req"].as_str().unwrap_or("");
            let used = name(dependency);
            let is_own = used.starts_with("steadfs");
            if is_local(&used)
                || is_own && Some(required.trim_start_matches('=')) != version.as_str()
            {
                wrong.push(format!("{own} needs {used} {required}"));
            }
        }
        let files = cargo(&["package", "--list", "--allow-dirty", "--package", &own]);
        let files: BTreeSet<&str> = files.lines().collect();
        let source = if own == "steadfs-cli" {
            "src/main.rs"
        } else {
            "src/lib.rs"
        };
        for file in [
            "Cargo.toml",
            "README.md",
            "LICENSE-MIT",
            "LICENSE-APACHE",
            source,
        ] {
            if !files.contains(file) {
                wrong.push(format!("the package of {own} has no {file}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The words in quotes of an entry of deny.toml, from its name to the end of its list.
fn denied(entry: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(super::root().join("deny.toml")).expect("it can be read");
    let (_, rest) = text.split_once(entry).expect("deny.toml has the entry");
    let (list, _) = rest
        .split_once("\n]")
        .or(rest.split_once("]\n"))
        .expect("a list ends");
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Whether a licence is allowed: of each part that AND joins, one of those that OR joins.
fn is_allowed(licence: &str, allowed: &BTreeSet<String>) -> bool {
    let one = |part: &str| {
        let part = part.replace(['(', ')'], "").replace('/', " OR ");
        part.split(" OR ").any(|name| allowed.contains(name.trim()))
    };
    licence.split(" AND ").all(one)
}

#[test]
fn expressions_of_licences_are_evaluated() {
    let allowed = ["MIT", "Zlib"].map(str::to_owned).into();
    for good in [
        "MIT",
        "GPL-2.0 OR MIT",
        "Apache-2.0/MIT",
        "(GPL-2.0 OR MIT) AND Zlib",
    ] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["GPL-2.0", "MIT AND GPL-2.0", "GPL-2.0 OR ISC", ""] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

/// The part of `make deny` that needs no other program.
#[test]
fn foreign_crates_have_allowed_licences_and_one_version() {
    let target = "--filter-platform=x86_64-unknown-linux-gnu";
    let metadata = cargo(&["metadata", "--format-version=1", target]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).expect("JSON");
    let nodes = metadata["resolve"]["nodes"].as_array().expect("a list");
    let used: BTreeSet<_> = nodes
        .iter()
        .filter_map(|node| node["id"].as_str())
        .collect();
    let allowed = denied("\nallow = [");
    let skipped = denied("\nskip = [");
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("a list") {
        let text = |field: &str| package[field].as_str().unwrap_or("");
        let (name, version) = (text("name"), text("version"));
        if !used.contains(text("id")) {
            continue;
        }
        let licence = text("license");
        assert!(is_allowed(licence, &allowed), "{name}: {licence:?}");
        // `NAME@2` stands for all versions that begin so.
        let is_skipped = |skip: &String| {
            let known = skip.split_once('@');
            known.is_some_and(|(skip, of)| skip == name && version.starts_with(&format!("{of}.")))
        };
        if !skipped.iter().any(is_skipped) {
            versions.entry(name).or_default().push(version);
        }
    }
    versions.retain(|_, versions| versions.len() > 1);
    assert!(versions.is_empty(), "several versions: {versions:?}");
}
