//! The pages of the book's reference (`docs/book`), as Markdown: commands, mount options, control files and exit codes,
//! all from the tables of the program. `reference.txt` has their lines of the book's summary.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};
use steadfs::{F2fsFormatOptions, FormatOptions, Options, Volume};
use steadfs_vfs::{Control, ControlLayer, SYNC_FILE};

use crate::{args, args_f2fs, control_text, man_text, mount_options};

/// Size in bytes of the volumes whose control files are listed.
const VOLUME_BYTES: u64 = 64 << 20;

/// Writing to a string does not fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = writeln!($out, $($arg)*); }};
}

/// Writes all pages to `dir`, which exists.
///
/// # Errors
/// A page cannot be written, or a control file has no description.
pub fn write(dir: &Path) -> io::Result<()> {
    let mut program = args::Args::command();
    program.build();
    let mut summary = String::from("- [Commands](reference/commands.md)\n");
    for page in man_text::PAGES {
        let command = program.find_subcommand(page.command);
        let command = command.ok_or(io::ErrorKind::NotFound)?;
        let name = format!("steadfs-{}", page.command);
        std::fs::write(dir.join(format!("{name}.md")), command_page(command, page))?;
        put!(
            summary,
            "  - [steadfs {}](reference/{name}.md)",
            page.command
        );
        if page.command == "format" {
            let f2fs = args_f2fs::FormatF2fs::command();
            let f2fs = command_page(&f2fs, page);
            std::fs::write(dir.join("steadfs-format-f2fs.md"), f2fs)?;
            summary.push_str("  - [steadfs format -t f2fs](reference/steadfs-format-f2fs.md)\n");
        }
    }
    std::fs::write(dir.join("commands.md"), commands(&program))?;
    std::fs::write(dir.join("options.md"), options())?;
    std::fs::write(dir.join("controls.md"), controls()?)?;
    std::fs::write(dir.join("exit-codes.md"), exit_codes())?;
    for (title, name) in [
        ("Mount options", "options"),
        ("Control files", "controls"),
        ("Exit codes", "exit-codes"),
    ] {
        put!(summary, "- [{title}](reference/{name}.md)");
    }
    std::fs::write(dir.join("reference.txt"), summary)
}

/// Text of the program as Markdown, in or outside a table.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for (number, part) in text.split('`').enumerate() {
        if number > 0 {
            out.push('`');
        }
        for letter in part.chars() {
            match letter {
                // Inside of backquotes only the table's own character is special.
                '|' => out.push_str("\\|"),
                '*' | '_' | '<' | '>' | '[' | ']' | '~' if number % 2 == 0 => {
                    out.push('\\');
                    out.push(letter);
                }
                '\n' => out.push(' '),
                letter => out.push(letter),
            }
        }
    }
    out
}

/// Escaped text with a full stop, which the help leaves out.
fn sentence(text: &str) -> String {
    let text = escaped(text.trim());
    match text.ends_with(['.', ':', ')']) || text.is_empty() {
        true => text,
        false => format!("{text}."),
    }
}

/// Text as code.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

fn commands(program: &Command) -> String {
    let mut out = String::from("# Commands\n\n");
    out.push_str("`steadfs COMMAND --help` and `man steadfs-COMMAND` show the same texts.\n\n");
    put!(out, "Sizes: {}\n", escaped(man_text::SIZES));
    out.push_str("| command | does |\n|---|---|\n");
    for page in man_text::PAGES {
        let command = program.find_subcommand(page.command);
        let about = command.and_then(Command::get_about);
        let about = about.map_or_else(String::new, ToString::to_string);
        put!(
            out,
            "| [{0}](steadfs-{0}.md) | {1} |",
            page.command,
            escaped(&about)
        );
    }
    out
}

fn command_page(command: &Command, page: &man_text::Page) -> String {
    let is_f2fs = command.get_name() != page.command;
    let mut out = match is_f2fs {
        true => format!("# {}\n\n", command.get_name()),
        false => format!("# steadfs {}\n\n", page.command),
    };
    describe(&mut out, command);
    for part in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        if part.get_name() != "help" {
            put!(out, "## steadfs {} {}\n", page.command, part.get_name());
            describe(&mut out, part);
        }
    }
    if page.command == "mount" {
        out.push_str("The options of `-o` have [a page of their own](options.md).\n\n");
    }
    if !page.examples.is_empty() && !is_f2fs {
        out.push_str("## Examples\n\n");
        for (line, meaning) in page.examples {
            put!(out, "{}\n\n```console\n$ {line}\n```\n", escaped(meaning));
        }
    }
    out.push_str("## Exit status\n\n");
    codes(&mut out, page.codes);
    if !page.see_also.is_empty() {
        put!(out, "See also: {}.", page.see_also);
    }
    out
}

/// What a command does, its call, its arguments and its options.
fn describe(out: &mut String, command: &Command) {
    let about = command.get_long_about().or(command.get_about());
    if let Some(about) = about {
        for paragraph in about.to_string().split("\n\n") {
            put!(out, "{}\n", sentence(paragraph));
        }
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines();
    let usage: Vec<_> = usage.map(str::trim).collect();
    put!(out, "```text\n{}\n```\n", usage.join("\n"));
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let arguments: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    for (title, positional) in [("argument", true), ("option", false)] {
        let of = arguments.iter().filter(|a| a.is_positional() == positional);
        let rows: Vec<String> = of.map(|arg| row(arg)).collect();
        if !rows.is_empty() {
            put!(
                out,
                "| {title} | meaning |\n|---|---|\n{}\n",
                rows.join("\n")
            );
        }
    }
}

/// An argument as a row of a table.
fn row(arg: &Arg) -> String {
    let mut value = String::new();
    if arg.is_positional() || arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default();
        value = names
            .iter()
            .map(|name| name.as_str())
            .collect::<Vec<_>>()
            .join(" ");
    }
    let mut forms: Vec<String> = Vec::new();
    forms.extend(arg.get_short().map(|letter| format!("-{letter}")));
    forms.extend(arg.get_long().map(|long| format!("--{long}")));
    if let Some(last) = forms.last_mut().filter(|_| !value.is_empty()) {
        let optional = arg
            .get_num_args()
            .is_some_and(|range| range.min_values() == 0);
        last.push_str(&match (arg.is_require_equals_set(), optional) {
            (true, true) => format!("[={value}]"),
            (true, false) => format!("={value}"),
            (false, _) => format!(" {value}"),
        });
    }
    if forms.is_empty() {
        forms.push(value);
    }
    let forms: Vec<String> = forms.iter().map(|form| code(form)).collect();
    let help = arg.get_long_help().or(arg.get_help());
    let mut meaning = sentence(&help.map_or_else(String::new, ToString::to_string));
    let values = arg.get_possible_values();
    if arg.get_action().takes_values() && !values.is_empty() {
        let names: Vec<_> = values.iter().map(|value| code(value.get_name())).collect();
        let _ = write!(meaning, " One of {}.", names.join(", "));
    }
    let defaults = arg.get_default_values();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let names: Vec<_> = defaults
            .iter()
            .map(|value| code(&value.to_string_lossy()))
            .collect();
        let _ = write!(meaning, " Default: {}.", names.join(", "));
    }
    format!("| {} | {} |", forms.join(", "), meaning.trim())
}

fn options() -> String {
    let mut out = format!("# Mount options\n\n{}\n\n", escaped(mount_options::RULES));
    for (title, lines) in Options::help() {
        put!(
            out,
            "## {}\n\n| option | meaning |\n|---|---|",
            escaped(title)
        );
        for line in lines {
            let usages: Vec<_> = line.usages.iter().map(|usage| code(usage)).collect();
            put!(
                out,
                "| {} | {} |",
                usages.join(", "),
                escaped(&line.meaning)
            );
        }
        out.push('\n');
    }
    for (title, names) in [
        (mount_options::TAKEN, Options::taken()),
        (mount_options::NO_EFFECT, Options::ineffective()),
    ] {
        let names: Vec<_> = names.iter().map(|name| code(name)).collect();
        put!(out, "## {}\n\n{}\n", escaped(title), names.join(", "));
    }
    put!(out, "## In fstab\n\n{}", escaped(mount_options::FSTAB));
    out
}

/// The control files of a new volume of each format, with their content.
fn controls() -> io::Result<String> {
    let place = std::env::temp_dir().join(format!("steadfs-book-{}", std::process::id()));
    std::fs::create_dir(&place)?;
    let listed = control_tables(&place.join("volume"));
    std::fs::remove_dir_all(&place)?;
    listed
}

fn control_tables(image: &Path) -> io::Result<String> {
    let mut out = String::from(control_text::ABOUT);
    steadfs::format(image, Some(VOLUME_BYTES), &FormatOptions::default())?;
    let ext4 = Volume::open(image)?;
    let fs = ext4.fs();
    let own = fs.control().ok_or(io::ErrorKind::NotFound)?;
    let queue = ControlLayer::control(&**ext4.io());
    let is_common = |path: &str| path.starts_with("io/") || !path.contains('/');
    out.push_str("## All volumes\n\n");
    control_table(&mut out, queue, is_common)?;
    let hidden: Vec<_> = queue.entries().iter().map(|entry| entry.path).collect();
    control_rows(&mut out, own, |path| {
        is_common(path) && !hidden.contains(&path)
    })?;
    put!(
        out,
        "| `{SYNC_FILE}` | action |  | {} |",
        control_text::SYNC
    );
    out.push_str("\n## ext2, ext3 and ext4\n\n");
    control_table(&mut out, own, |path| !is_common(path))?;
    ext4.close()?;
    std::fs::remove_file(image)?;
    steadfs::format_f2fs(image, Some(VOLUME_BYTES), &F2fsFormatOptions::default())?;
    let f2fs = Volume::open(image)?;
    let fs = f2fs.fs();
    let own = fs.control().ok_or(io::ErrorKind::NotFound)?;
    out.push_str("\n## f2fs\n\n");
    control_table(&mut out, own, |path| !is_common(path))?;
    f2fs.close()?;
    out.push_str(control_text::QUOTA);
    Ok(out)
}

fn control_table(
    out: &mut String,
    control: &dyn Control,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<()> {
    out.push_str("| file | access | new volume | content or effect |\n|---|---|---|---|\n");
    control_rows(out, control, wanted)
}

fn control_rows(
    out: &mut String,
    control: &dyn Control,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<()> {
    let settings = control.tunables();
    for entry in control.entries() {
        if !wanted(entry.path) {
            continue;
        }
        let text = control_text::FILES
            .iter()
            .find(|(path, _)| *path == entry.path);
        let (_, text) = text.ok_or_else(|| {
            io::Error::other(format!(
                "the control file {} has no description",
                entry.path
            ))
        })?;
        let access = match (settings.contains(&entry.path), entry.writable) {
            (true, _) => "setting",
            (false, true) => "action",
            (false, false) => "read",
        };
        let content = control
            .read(entry.path)
            .map_err(|error| io::Error::other(error.to_string()))?;
        let content = String::from_utf8_lossy(&content);
        let value = match content.trim() {
            value if access == "setting" && !value.contains('\n') => code(value),
            _ => String::new(),
        };
        put!(out, "| `{}` | {access} | {value} | {text} |", entry.path);
    }
    Ok(())
}

fn exit_codes() -> String {
    let mut out = String::from("# Exit codes\n\nThe codes of each group of commands.\n\n");
    let mut groups: Vec<(man_text::Codes, Vec<&str>)> = Vec::new();
    for page in man_text::PAGES {
        match groups.iter_mut().find(|(codes, _)| *codes == page.codes) {
            Some((_, commands)) => commands.push(page.command),
            None => groups.push((page.codes, vec![page.command])),
        }
    }
    for (list, commands) in groups {
        let names: Vec<_> = commands.iter().map(|name| code(name)).collect();
        put!(out, "## {}\n", names.join(", "));
        codes(&mut out, list);
    }
    out
}

fn codes(out: &mut String, codes: man_text::Codes) {
    out.push_str("| code | meaning |\n|---|---|\n");
    for (number, meaning) in codes {
        put!(out, "| {} | {} |", code(number), escaped(meaning));
    }
    out.push('\n');
}
