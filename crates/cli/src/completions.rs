//! `steadfs completions`: the script of a shell, and for it (`--values`) the values that may stand where the cursor is.
//!
//! **Rule.** Without an answer the shell completes as clap's script does, so nothing here is an error. A volume is read in the
//! sandbox, as by `ls`; at most [`NAMES_MAX`] names of a directory are offered.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory};
use steadfs::tools::{owner_cx, resolve};
use steadfs::{F2fsFormatOptions, FormatOptions, Options};
use steadfs_vfs::{FileKind, FileSystem};

use crate::args;
use crate::completion_script::script;
use crate::failure::Failure;
use crate::output::print;
use crate::place::{Place, parse};
use crate::umount::mounts;
use crate::volume::{Access, with_volume};

/// Names of a directory that are offered.
const NAMES_MAX: usize = 5000;
const KINDS: [&str; 4] = ["ext2", "ext3", "ext4", "f2fs"];

pub fn run(args: &args::Completions) -> Result<(), Failure> {
    if !args.values {
        let script = script(args.shell, args::Args::command());
        return print(|out| out.write_all(script.as_bytes()));
    }
    let values = values(&args.words);
    print(|out| {
        for value in values {
            out.write_all(&value)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    })
}

/// The words that may replace the last one.
fn values(words: &[OsString]) -> Vec<Vec<u8>> {
    let mut program = args::Args::command();
    program.build();
    let Some(Cursor {
        command,
        argument,
        before,
        value,
    }) = Cursor::of(&program, words)
    else {
        return Vec::new();
    };
    let whole = |found: Vec<u8>| [before, &*found].concat();
    let found = of_argument(command, argument, value);
    // What breaks a line, or a terminal, cannot be typed.
    let typed = found
        .into_iter()
        .filter(|found| !found.iter().any(u8::is_ascii_control));
    typed.map(whole).collect()
}

/// The argument that the last word is, or is the end of.
struct Cursor<'a> {
    command: &'a Command,
    argument: &'a Arg,
    /// What of the word is before the value: `--option=` or `-o`.
    before: &'a [u8],
    value: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn of(program: &'a Command, words: &'a [OsString]) -> Option<Self> {
        let (last, words) = words.split_last()?;
        let mut command = program;
        let mut pending: Option<&Arg> = None;
        let mut position = 0;
        let mut only_positions = false;
        for word in words.get(1..)? {
            let bytes = word.as_bytes();
            if pending.take().is_some() {
                continue;
            }
            match command.find_subcommand(word) {
                Some(part) if position == 0 && !only_positions => command = part,
                _ if only_positions || !bytes.starts_with(b"-") || bytes == b"-" => position += 1,
                _ if bytes == b"--" => only_positions = true,
                _ => match option(command, bytes) {
                    Some((argument, before))
                        if before.len() == bytes.len() && !bytes.ends_with(b"=") =>
                    {
                        pending = Some(argument);
                    }
                    _ => {}
                },
            }
        }
        let bytes = last.as_bytes();
        let of_option = match pending {
            None if !only_positions && bytes.starts_with(b"-") => option(command, bytes),
            _ => None,
        };
        let (argument, before) = match (pending, of_option) {
            (Some(argument), _) => (argument, &bytes[..0]),
            // The cursor is behind the name of an option, which is no value yet.
            (None, Some((_, before))) if before.len() == bytes.len() && !bytes.ends_with(b"=") => {
                return None;
            }
            (None, Some(found)) => found,
            (None, None) => {
                let positionals: Vec<&Arg> = command.get_positionals().collect();
                let at = positionals.len().checked_sub(1)?.min(position);
                (positionals[at], &bytes[..0])
            }
        };
        Some(Self {
            command,
            argument,
            before,
            value: &bytes[before.len()..],
        })
    }
}

/// The option of a word that takes a value, and what of the word is before the value.
fn option<'a>(command: &'a Command, word: &'a [u8]) -> Option<(&'a Arg, &'a [u8])> {
    let takes = |arg: &&Arg| arg.get_action().takes_values();
    if let Some(name) = word.strip_prefix(b"--") {
        let end = name.iter().position(|b| *b == b'=');
        let name = std::str::from_utf8(&name[..end.unwrap_or(name.len())]).ok()?;
        let mut all = command.get_arguments();
        let found = all.find(|arg| {
            let names = arg.get_long_and_visible_aliases().unwrap_or_default();
            names.contains(&name)
        });
        let before = end.map_or(word.len(), |end| end + b"--=".len());
        return found.filter(takes).map(|arg| (arg, &word[..before]));
    }
    for (at, letter) in std::str::from_utf8(word).ok()?.char_indices().skip(1) {
        let mut all = command.get_arguments();
        let found = all.find(|arg| arg.get_short() == Some(letter))?;
        if takes(&found) {
            return Some((found, &word[..at + letter.len_utf8()]));
        }
    }
    None
}

/// The values of an argument that begin with `value`.
fn of_argument(command: &Command, argument: &Arg, value: &[u8]) -> Vec<Vec<u8>> {
    let forms = argument.get_value_names().unwrap_or_default();
    let form = forms.first().map(|form| form.as_str()).unwrap_or_default();
    let beginning = |all: &mut dyn Iterator<Item = &str>| {
        let all = all.filter(|word| word.as_bytes().starts_with(value));
        all.map(|word| word.as_bytes().to_vec()).collect()
    };
    match (command.get_name(), argument.get_id().as_str()) {
        (_, "options") => list_items(value, mount_options),
        ("format", "features") => list_items(value, features),
        ("format", "kind") => beginning(&mut KINDS.into_iter()),
        ("mount", "types") => list_items(value, |_| KINDS.map(str::to_owned).to_vec()),
        ("mount", "mountpoint") => Vec::new(),
        (_, "mountpoint" | "mountpoints") => mountpoints(value),
        _ if form.contains(":/") => {
            let mut found = places(value);
            if form.contains("MOUNTPOINT") {
                found.extend(mountpoints(value));
            }
            found
        }
        // Such as on|off.
        _ if form.contains('|') => beginning(&mut form.split('|').filter(|word| {
            word.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        })),
        _ => Vec::new(),
    }
}

/// The lists that begin with `list`, with a last item that `items` makes of what is there of it.
fn list_items(list: &[u8], items: impl Fn(&str) -> Vec<String>) -> Vec<Vec<u8>> {
    let Ok(text) = std::str::from_utf8(list) else {
        return Vec::new();
    };
    let (before, last) = text.split_at(text.rfind(',').map_or(0, |comma| comma + 1));
    let items = items(last)
        .into_iter()
        .filter(|item| item.starts_with(last));
    let mut all: Vec<_> = items
        .map(|item| format!("{before}{item}").into_bytes())
        .collect();
    all.sort();
    all.dedup();
    all
}

/// Mount options: names, with an equals sign where a value follows; or the values of the one that is there.
fn mount_options(item: &str) -> Vec<String> {
    let lines = Options::help().into_iter().flat_map(|(_, lines)| lines);
    let usages = lines.flat_map(|line| line.usages);
    let mut all = Vec::new();
    for usage in usages {
        let (name, value) = usage.split_at(usage.find(['=', '[']).unwrap_or(usage.len()));
        match item.split_once('=') {
            None if value.starts_with('=') => all.push(format!("{name}=")),
            None => all.push(name.to_owned()),
            Some((wanted, _)) if wanted == name => {
                let values = value.trim_matches(['[', ']', '=']).split('|');
                // Words in capitals stand for others.
                let words = values.filter(|word| word.contains(|c: char| c.is_ascii_lowercase()));
                all.extend(words.map(|word| format!("{name}={word}")));
            }
            Some(_) => {}
        }
    }
    all
}

/// Features of format -O, with the ^ that removes one.
fn features(item: &str) -> Vec<String> {
    let ext = FormatOptions::feature_names();
    let names = ext.into_iter().chain(F2fsFormatOptions::feature_names());
    let sign = if item.starts_with('^') { "^" } else { "" };
    names.map(|name| format!("{sign}{name}")).collect()
}

fn mountpoints(value: &[u8]) -> Vec<Vec<u8>> {
    let mounts = mounts().unwrap_or_default().into_iter();
    let paths = mounts.map(|mount| mount.mountpoint.into_os_string().into_vec());
    paths.filter(|path| path.starts_with(value)).collect()
}

/// Paths on the volume that `value` names; of an image alone its root directory.
fn places(value: &[u8]) -> Vec<Vec<u8>> {
    let place = OsStr::from_bytes(value);
    if steadfs::is_uri(Path::new(place)) {
        // A server is not asked at each key.
        return Vec::new();
    }
    let home = place.to_str().and_then(|text| text.strip_prefix("~/"));
    let expanded = home.and_then(|rest| Some(PathBuf::from(std::env::var_os("HOME")?).join(rest)));
    let place = expanded.map_or_else(|| place.to_owned(), PathBuf::into_os_string);
    let is_image = |kind: std::fs::FileType| kind.is_file() || kind.is_block_device();
    if let Ok(found) = std::fs::metadata(&place) {
        return match is_image(found.file_type()) {
            true => vec![[value, b":/"].concat()],
            false => Vec::new(),
        };
    }
    let Place::Volume(on) = parse(&place) else {
        return Vec::new();
    };
    let Some(slash) = on.path.iter().rposition(|b| *b == b'/') else {
        return Vec::new();
    };
    let (dir, begun) = on.path.split_at(slash + 1);
    if !value.ends_with(begun) || value.ends_with(b":") {
        return Vec::new();
    }
    let open = args::offline::Open {
        // Whatever the environment says: no command on this image has been entered yet.
        sandbox: Some(args::Sandbox::On),
        ..args::offline::Open::default()
    };
    let listed = with_volume(&on.image, &open, Access::Read, |fs| {
        names(fs, dir, begun).map_err(Failure::plain)
    });
    let before = &value[..value.len() - begun.len()];
    let path = |name: Vec<u8>| [before, &*name].concat();
    listed.unwrap_or_default().into_iter().map(path).collect()
}

/// The names in a directory that begin so, those of directories with a slash.
fn names(fs: &dyn FileSystem, dir: &[u8], begun: &[u8]) -> steadfs_vfs::Result<Vec<Vec<u8>>> {
    let cx = owner_cx();
    let dir = resolve(fs, &cx, dir, true)?;
    let mut found = Vec::new();
    fs.readdir(&cx, dir.ino(), 0, &mut |entry| {
        let is_hidden = entry.name.starts_with(b".") && !begun.starts_with(b".");
        let is_dots = matches!(entry.name, b"." | b"..");
        if entry.name.starts_with(begun) && !is_hidden && !is_dots {
            let end: &[u8] = match entry.kind {
                Some(FileKind::Directory) => b"/",
                _ => b"",
            };
            found.push([entry.name, end].concat());
        }
        found.len() < NAMES_MAX
    })?;
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(line: &str) -> Vec<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let values = values(&words).into_iter();
        values
            .map(|value| String::from_utf8(value).unwrap())
            .collect()
    }

    #[test]
    fn values_of_options_are_offered_where_they_stand() {
        for (line, wanted) in [
            ("steadfs mount -o io_sch", &["io_scheduler="][..]),
            (
                "steadfs mount -o ro,io_scheduler=",
                &[
                    "ro,io_scheduler=cfq",
                    "ro,io_scheduler=fair",
                    "ro,io_scheduler=fifo",
                ],
            ),
            ("steadfs mount -vooverlay=m", &["-vooverlay=memory"]),
            ("steadfs mount --options=ro,noat", &["--options=ro,noatime"]),
            ("steadfs format -t f2", &["f2fs"]),
            (
                "steadfs format -O casefold,^large_d",
                &["casefold,^large_dir"],
            ),
            ("steadfs format -t f2fs -O inode_cr", &["inode_crtime"]),
            ("steadfs cp --sandbox o", &["on", "off"]),
            ("steadfs cp --sandbox=of", &["--sandbox=off"]),
            ("steadfs mount -t ext4,f2", &["ext4,f2fs"]),
        ] {
            assert_eq!(complete(line), wanted, "{line}");
        }
    }

    #[test]
    fn the_shell_completes_the_rest() {
        for line in [
            "steadfs",
            "steadfs mou",
            "steadfs format -O",
            "steadfs format --verb",
            "steadfs format -L la",
            "steadfs ls -",
            "steadfs mount -- -o",
            "nothing at all",
        ] {
            assert_eq!(complete(line), Vec::<String>::new(), "{line}");
        }
    }
}
