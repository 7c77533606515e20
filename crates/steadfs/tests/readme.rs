//! README's example of the library.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

#[test]
fn the_example_of_the_readme_is_a_program_that_works() {
    let readme = include_str!("../../../README.md");
    let (_, shown) = readme.split_once("```rust\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    let program = include_str!("../examples/quick_start.rs");
    let (_, program) = program.split_once("\n\n").unwrap();
    assert_eq!(shown, program);
    let dir = tempfile::tempdir().unwrap();
    let deps = std::env::current_exe().unwrap();
    let built = deps.parent().unwrap().with_file_name("examples");
    // `cargo test -p steadfs` builds it, and with --test only --examples does.
    let ran = Command::new(built.join("quick_start"))
        .current_dir(dir.path())
        .output();
    let ran = ran.unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let said = String::from_utf8(ran.stdout).unwrap();
    assert!(
        said.contains("6 /log\n") && said.contains("4 /etc/hostname\n"),
        "{said}"
    );
    let volume = steadfs::Volume::open(dir.path().join("disk.img")).unwrap();
    assert_eq!(volume.read_to_string("/log").unwrap(), "hello\n");
}
