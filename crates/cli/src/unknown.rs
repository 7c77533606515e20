//! The message for an unknown command. Similarity alone would suggest `format` for `rm`.

use clap::CommandFactory;
use steadfs::tools::printable_text;

use crate::args::Args;

/// Maximum number of typing errors for a suggestion.
const TYPOS: usize = 1;
/// The same for a name of at least `LONG` letters.
const TYPOS_IN_LONG: usize = 2;
const LONG: usize = 6;

/// The message for the unknown command `word`, or for one of `command`, where it stands behind that.
pub fn message(word: &str, command: &str) -> String {
    let of = Args::command();
    let of = of.find_subcommand(command).filter(|_| word != command);
    let word = printable_text(word);
    if let Some(of) = of {
        let names: Vec<_> = of.get_subcommands().map(clap::Command::get_name).collect();
        let names = names.join(", ");
        return format!("{word}: no such command of steadfs {command}, which has {names}");
    }
    let hint = match elsewhere(&word) {
        Some(hint) => hint.to_owned(),
        None => near(&word).map_or_else(
            || "steadfs --help lists the commands".to_owned(),
            |name| format!("did you mean steadfs {name}?"),
        ),
    };
    format!("{word}: no such command; {hint}")
}

/// The equivalent of another program's command.
fn elsewhere(word: &str) -> Option<&'static str> {
    Some(match word {
        "mkfs" | "mke2fs" | "mkfs.f2fs" | "create" => "a volume is made by steadfs format",
        "fsck" | "e2fsck" | "repair" => {
            "steadfs check reports what is wrong; e2fsck or fsck.f2fs repairs it"
        }
        "info" | "dumpe2fs" | "show" | "probe" => "steadfs inspect shows what a volume is",
        "read" | "dump" => "steadfs cat prints a file, steadfs extract copies a tree",
        "write" | "put" | "get" | "copy" => "steadfs cp copies files into volumes and out of them",
        "unmount" => "did you mean steadfs umount?",
        _ => return None,
    })
}

/// The command with the most similar name, if it is similar enough.
fn near(word: &str) -> Option<String> {
    let typos = if word.len() < LONG {
        TYPOS
    } else {
        TYPOS_IN_LONG
    };
    let command = Args::command();
    let names = command.get_subcommands().map(|known| known.get_name());
    names
        .map(|name| (distance(word.as_bytes(), name.as_bytes()), name))
        .filter(|(distance, _)| *distance <= typos)
        .min()
        .map(|(_, name)| name.to_owned())
}

/// Number of letters to insert, delete or replace until the words are equal (Levenshtein distance).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let exchanged = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        let pairs = [
            ("lss", Some("ls")),
            ("formt", Some("format")),
            ("extrct", Some("extract")),
            ("umout", Some("umount")),
            ("frob", None),
            ("from", None),
            ("x", None),
        ];
        for (word, wanted) in pairs {
            assert_eq!(near(word).as_deref(), wanted, "{word}");
        }
        assert!(message("fsck", "fsck").contains("e2fsck"));
        assert!(message("rmm", "rmm").contains("steadfs rm?"));
    }
}
