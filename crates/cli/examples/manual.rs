//! Writes the manual's pages (`steadfs.1` and one for each command) and the shells' completions to a
//! directory: what `make install` installs besides the program; or with `--book` the pages of the book's reference.
//! usage: manual [--book] DIR

// What the pages are made of; here only its words matter.
#[allow(dead_code, reason = "the program reads the arguments")]
#[path = "../src/args/mod.rs"]
mod args;
#[allow(dead_code, reason = "the program reads the arguments")]
#[path = "../src/args_f2fs.rs"]
mod args_f2fs;
#[path = "manual/book.rs"]
mod book;
#[path = "manual/control_text.rs"]
mod control_text;
#[path = "../src/man_text.rs"]
mod man_text;
#[allow(dead_code, reason = "the program shows the text")]
#[path = "../src/mount_options.rs"]
mod mount_options;

use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use steadfs::Options;

fn main() -> io::Result<()> {
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    let is_book = words.first().is_some_and(|word| word == "--book");
    if is_book {
        words.remove(0);
    }
    let [dir] = words.as_slice() else {
        eprintln!("usage: manual [--book] DIR");
        std::process::exit(1);
    };
    let dir = Path::new(dir);
    if dir.exists() {
        // Pages of commands that are gone shall not be installed.
        std::fs::remove_dir_all(dir)?;
    }
    if is_book {
        std::fs::create_dir_all(dir)?;
        return book::write(dir);
    }
    let man = dir.join("man");
    std::fs::create_dir_all(&man)?;
    let program = args::Args::command().mut_subcommand("mount", |c| c.after_long_help(None));
    clap_mangen::generate_to(program.clone(), &man)?;
    program_page(&man.join("steadfs.1"))?;
    mount_page(program, &man.join("steadfs-mount.1"))?;
    for page in man_text::PAGES {
        let path = man.join(format!("steadfs-{}.1", page.command));
        let mut text = std::fs::read(&path)?;
        text.extend(additions(page).to_roff().bytes());
        std::fs::write(path, text)?;
    }
    let f2fs = args_f2fs::FormatF2fs::command().name("steadfs-format-f2fs");
    let mut page = Vec::new();
    Man::new(f2fs).render(&mut page)?;
    std::fs::write(man.join("steadfs-format-f2fs.1"), page)?;
    let shells = dir.join("completions");
    std::fs::create_dir_all(&shells)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut args::Args::command(), "steadfs", &shells)?;
    }
    Ok(())
}

/// Adds what all commands have in common to the page of the program.
fn program_page(path: &Path) -> io::Result<()> {
    let mut page = std::fs::read(path)?;
    let mut roff = Roff::new();
    roff.control("SH", ["SIZES"]);
    roff.text([roman(man_text::SIZES)]);
    page.extend(roff.to_roff().bytes());
    std::fs::write(path, page)
}

/// Adds the mount options and the use in fstab to the page of `steadfs mount`.
fn mount_page(mut program: Command, path: &Path) -> io::Result<()> {
    program.build();
    let mut page = Vec::new();
    let mount = program.find_subcommand("mount").cloned();
    let mount = mount.ok_or(io::ErrorKind::NotFound)?.name("steadfs-mount");
    Man::new(mount).render(&mut page)?;
    let mut roff = Roff::new();
    roff.control("SH", ["MOUNT OPTIONS"]);
    roff.text([roman(mount_options::RULES)]);
    for (title, lines) in Options::help() {
        roff.control("SS", [title]);
        for line in lines {
            roff.control("TP", []);
            roff.text([bold(line.usages.join(", "))]);
            roff.text([roman(line.meaning)]);
        }
    }
    for (title, names) in [
        (mount_options::TAKEN, Options::taken()),
        (mount_options::NO_EFFECT, Options::ineffective()),
    ] {
        roff.control("SS", [title]);
        roff.text([roman(names.join(", "))]);
    }
    roff.control("SH", ["FSTAB"]);
    roff.text([roman(mount_options::FSTAB)]);
    page.extend(roff.to_roff().bytes());
    std::fs::write(path, page)
}

/// The sections that follow what the help says.
fn additions(page: &man_text::Page) -> Roff {
    let mut roff = Roff::new();
    if !page.examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for (line, meaning) in page.examples {
        roff.control("TP", []);
        roff.text([bold(*line)]);
        roff.text([roman(*meaning)]);
    }
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in page.codes {
        roff.control("TP", []);
        roff.text([bold(*code)]);
        roff.text([roman(*meaning)]);
    }
    roff.control("SH", ["SEE ALSO"]);
    let others = match page.see_also {
        "" => String::new(),
        others => format!(", {others}"),
    };
    roff.text([roman(format!("steadfs(1){others}"))]);
    roff
}
