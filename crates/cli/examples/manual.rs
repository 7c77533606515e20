//! Writes the manual's pages (`steadfs.1`, one for each command, and `fsck.steadfs.8`) and the shells' completions to a
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
#[path = "../src/completion_script.rs"]
mod completion_script;
#[path = "manual/control_text.rs"]
mod control_text;
#[path = "../src/man_text.rs"]
mod man_text;
#[allow(dead_code, reason = "the program shows the text")]
#[path = "../src/mount_options.rs"]
mod mount_options;
#[path = "manual/pages.rs"]
mod pages;

use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::{Generator, Shell};
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
    commands(&man)?;
    std::fs::write(man.join("fsck.steadfs.8"), fsck_page())?;
    let shells = dir.join("completions");
    std::fs::create_dir_all(&shells)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let script = completion_script::script(shell, args::Args::command());
        std::fs::write(shells.join(shell.file_name("steadfs")), script)?;
    }
    Ok(())
}

/// Writes the page of the program and one for each command.
fn commands(man: &Path) -> io::Result<()> {
    let program = args::Args::command().disable_help_subcommand(true);
    let mut program = program.mut_subcommand("mount", |c| c.after_long_help(None));
    program.build();
    let write = |name: &str, command: &Command, sections: Roff| {
        // A name lives as long as the program.
        let command = command.clone().name(&*name.to_owned().leak());
        let page = pages::page(command, sections)?;
        std::fs::write(man.join(format!("{name}.1")), page)
    };
    let texts = &man_text::PROGRAM;
    let mut sections = Roff::new();
    pages::paragraphs(&mut sections, "SIZES", &[man_text::SIZES]);
    pages::ending(
        &mut sections,
        texts.examples,
        texts.codes,
        "fsck.steadfs(8)",
        texts.see_also,
    );
    write("steadfs", &program, sections)?;
    for texts in man_text::PAGES {
        let command = program.find_subcommand(texts.command);
        let command = command.ok_or(io::ErrorKind::NotFound)?;
        let name = format!("steadfs-{}", texts.command);
        write(&name, command, sections_of(texts, "steadfs(1)"))?;
        for texts in man_text::PARTS
            .iter()
            .filter(|part| part.of == texts.command)
        {
            let part = command.find_subcommand(texts.page.command);
            let part = part.ok_or(io::ErrorKind::NotFound)?;
            let first = format!("{name}(1), steadfs(1)");
            write(
                &format!("{name}-{}", texts.page.command),
                part,
                sections_of(&texts.page, &first),
            )?;
        }
    }
    let texts = &man_text::F2FS;
    let f2fs = args_f2fs::FormatF2fs::command();
    write(
        "steadfs-format-f2fs",
        &f2fs,
        sections_of(texts, "steadfs-format(1), steadfs(1)"),
    )
}

/// The sections that follow what the help says.
fn sections_of(texts: &man_text::Page, first: &str) -> Roff {
    let mut roff = Roff::new();
    if texts.command == "mount" {
        mount_sections(&mut roff);
    }
    pages::ending(
        &mut roff,
        texts.examples,
        texts.codes,
        first,
        texts.see_also,
    );
    roff
}

/// The mount options and the use in fstab.
fn mount_sections(roff: &mut Roff) {
    pages::paragraphs(roff, "MOUNT OPTIONS", &[mount_options::RULES]);
    for (title, lines) in Options::help() {
        roff.control("SS", [title]);
        for line in lines {
            pages::entry(roff, bold(line.usages.join(", ")), &line.meaning);
        }
    }
    for (title, names) in [
        (mount_options::TAKEN, Options::taken()),
        (mount_options::NO_EFFECT, Options::ineffective()),
    ] {
        roff.control("SS", [title]);
        roff.text([roman(names.join(", "))]);
    }
    pages::paragraphs(roff, "FSTAB", &[mount_options::FSTAB]);
}

fn fsck_page() -> String {
    let texts = &man_text::FSCK;
    let mut roff = Roff::new();
    pages::paragraphs(&mut roff, "NAME", &[texts.name]);
    pages::paragraphs(&mut roff, "SYNOPSIS", &[texts.synopsis]);
    pages::paragraphs(&mut roff, "DESCRIPTION", texts.description);
    pages::list(&mut roff, "OPTIONS", texts.options);
    let end = &texts.page;
    pages::ending(
        &mut roff,
        end.examples,
        end.codes,
        "steadfs-check(1)",
        end.see_also,
    );
    pages::other("fsck.steadfs", roff)
}
