//! The README's commands work: its first block of shell commands runs unchanged.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use steadfs::Options;
use steadfs_suite::scratch::IN_NAMESPACE;
use steadfs_suite::stead::program;
use steadfs_suite::{Image, Scratch, run, steadfs, succeed};
use steadfs_vfs::options::HelpLine;

fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_first_session_of_the_readme_runs() {
    let text = readme();
    let session = text.split("```sh\n").nth(1).unwrap();
    let session = session.split("```").next().unwrap();
    assert!(session.lines().count() > 15, "{session}");
    let scratch = Scratch::new();
    let (work, mnt, bin) = (
        scratch.folder("work"),
        scratch.folder("mnt"),
        scratch.folder("bin"),
    );
    // Copied by a process of its own: a program that this process has open for writing cannot be executed.
    succeed("cp", [program(), &bin.join("steadfs")]);
    // In a mount namespace of its own, where /mnt is free.
    let script = format!(
        "set -euo pipefail\nmount --make-rprivate /\nmount --bind '{mnt}' /mnt\n\
         trap 'umount -li /mnt 2>/dev/null || true' EXIT\n\
         PATH='{bin}':$PATH\ncd '{work}'\nset -x\n{session}",
        mnt = mnt.display(),
        bin = bin.display(),
        work = work.display(),
    );
    let words = IN_NAMESPACE.into_iter().chain(["bash", "-c", &script]);
    let output = run("unshare", words);
    assert_eq!(output.code(), 0, "{}{}", output.out, output.err);
    assert!(output.out.contains("noatime,commit=30"), "{}", output.out);
    for name in ["disk.img", "boot.img"] {
        Image::at(work.join(name)).check_clean();
    }
    assert!(work.join("default/useradd").is_file() && work.join("useradd").is_file());
}

/// What `make run` runs after everything is built and installed, with a smaller tree.
#[test]
fn make_run_succeeds() {
    let story = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/story");
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates");
    let scratch = Scratch::new();
    let place = format!("TMPDIR={}", scratch.path().display());
    let words = [
        place.as_ref(),
        story.as_ref(),
        program().as_os_str(),
        tree.as_ref(),
    ];
    let output = run("env", words).expect(0);
    for words in [
        " files acknowledged",
        "acknowledged files are there, byte for byte",
        "the tree is equal",
        "Pass 5",
        "Nothing was lost.",
    ] {
        assert!(
            output.out.contains(words),
            "{words:?}: {}{}",
            output.out,
            output.err
        );
    }
}

#[test]
fn every_command_is_in_the_readmes_table() {
    let text = readme();
    let help = steadfs(["help"]).expect(0).out;
    let commands = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .filter(|name| *name != "help");
    let mut count = 0;
    for name in commands {
        let is_documented =
            text.contains(&format!("`{name}`")) || text.contains(&format!("`{name} "));
        assert!(is_documented, "README.md does not know `{name}`");
        count += 1;
    }
    assert!(count > 10, "{help}");
}

/// A row of README's option tables is a line of `steadfs mount --help`, or refers to Linux.
#[test]
fn option_tables_are_those_of_the_help() {
    let lines: Vec<_> = Options::help()
        .into_iter()
        .flat_map(|(_, lines)| lines)
        .collect();
    let text = readme().replace("\\|", "\u{1}");
    let mut rows = 0;
    for table in text.split("| option | meaning |\n|---|---|\n").skip(1) {
        for row in table.lines().map_while(|line| line.strip_prefix("| ")) {
            let (names, meaning) = row.split_once(" | ").unwrap();
            let meaning = meaning.trim_end_matches(" |").replace('\u{1}', "|");
            let names: Vec<String> = names
                .split('`')
                .skip(1)
                .step_by(2)
                .map(|name| name.replace('\u{1}', "|"))
                .collect();
            if meaning.starts_with("as in Linux") {
                for name in &names {
                    let name = name.split('=').next().unwrap();
                    assert!(Options::names().any(|known| known == name), "{row}");
                }
            } else {
                let same = |line: &&HelpLine| line.usages == names && line.meaning == meaning;
                assert!(lines.iter().any(|line| same(&line)), "{row}");
            }
            rows += 1;
        }
    }
    assert!(rows > 10, "{rows} rows");
}

/// `make` expands an undefined variable to nothing.
#[test]
fn makefile_recipes_use_no_undefined_variable() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let list = run("make", ["-C", root, "--no-print-directory", "help"])
        .expect(0)
        .out;
    let targets = list
        .lines()
        .filter_map(|line| line.trim().strip_prefix("make ")?.split(' ').next());
    let mut count = 0;
    for target in targets {
        // `-n` prints the commands without running them; a recipe that calls make again runs all the same.
        let dry = ["-C", root, "-n", "--warn-undefined-variables", target];
        let output = run("env", ["-u", "CARGO", "make"].iter().chain(&dry)).expect(0);
        // DESTDIR is set by the caller.
        let vanished =
            |line: &&str| line.contains("undefined variable") && !line.contains("DESTDIR");
        assert_eq!(output.err.lines().find(vanished), None);
        count += 1;
    }
    assert!(count > 10, "{list}");
}
