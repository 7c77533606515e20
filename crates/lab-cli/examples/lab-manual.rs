//! Writes the manual pages of `steadfs lab` (`steadfs-lab.1` and one page per command) to a directory. `make install`
//! installs them. usage: lab-manual DIR

#[allow(dead_code, reason = "the program reads the arguments")]
#[path = "../src/args.rs"]
mod args;
#[path = "../src/man_text.rs"]
mod man_text;
#[allow(dead_code, reason = "the pages of steadfs use all of it")]
#[path = "../../cli/examples/manual/pages.rs"]
mod pages;

use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::roff::Roff;

fn main() -> io::Result<()> {
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("usage: lab-manual DIR");
        std::process::exit(1);
    };
    std::fs::create_dir_all(&dir)?;
    let mut program = args::Args::command().disable_help_subcommand(true);
    program.build();
    write(&program, "steadfs-lab", Path::new(&dir))
}

/// Writes the page of a command and those of its commands.
fn write(command: &Command, name: &str, dir: &Path) -> io::Result<()> {
    for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
        write(part, &format!("{name}-{}", part.get_name()), dir)?;
    }
    let example = man_text::EXAMPLES.iter().find(|(of, _)| *of == name);
    let (_, example) = example.ok_or_else(|| io::Error::other(format!("{name} has no example")))?;
    let mut sections = Roff::new();
    pages::ending(
        &mut sections,
        &[*example],
        man_text::CODES,
        "steadfs(1)",
        "",
    );
    // A name lives as long as the program.
    let command = command.clone().name(&*name.to_owned().leak());
    let page = pages::page(command, sections)?;
    std::fs::write(dir.join(format!("{name}.1")), page)
}
