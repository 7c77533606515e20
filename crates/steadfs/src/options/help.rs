//! What users read about the options: `steadfs mount --help`, the manual page and README's tables come from here.

use steadfs_f2fs::OWN_OPTIONS;
use steadfs_vfs::options::{HelpLine, Section, Table};

use super::table::TABLE;
use super::{EXT4_TABLE, F2FS_TABLE, Options};
use crate::io_options::IO_TABLE;

/// The options that f2fs does not share with ext4.
const F2FS_OWN: Table<steadfs_f2fs::MountOptions> = Table(&[OWN_OPTIONS]);

impl Options {
    /// The sections of the help with their headings and lines.
    pub fn help() -> Vec<(&'static str, Vec<HelpLine>)> {
        let mut lines = EXT4_TABLE.help_lines();
        lines.extend(TABLE.help_lines());
        lines.extend(IO_TABLE.help_lines());
        lines.extend(F2FS_OWN.help_lines());
        let of = |section| lines.iter().filter(move |line| line.section == section);
        let section = |section: Section| (section.title(), of(section).cloned().collect());
        Section::ALL.into_iter().map(section).collect()
    }

    /// Options that are accepted because they hold in any case, or are for other programs.
    pub fn taken() -> Vec<String> {
        let mut names = Vec::new();
        taken(&TABLE, &mut names);
        taken(&EXT4_TABLE, &mut names);
        taken(&F2FS_TABLE, &mut names);
        names.extend(["x-*".to_owned(), "X-*".to_owned()]);
        names
    }

    /// Options that are accepted and have no effect.
    pub fn ineffective() -> Vec<String> {
        let mut names = Vec::new();
        ineffective(&TABLE, &mut names);
        ineffective(&EXT4_TABLE, &mut names);
        ineffective(&F2FS_TABLE, &mut names);
        names
    }
}

fn taken<T>(table: &Table<T>, names: &mut Vec<String>) {
    for entry in table.entries() {
        let own = entry.is_listed_as_taken().then(|| entry.usage());
        push(names, own.or_else(|| entry.anyway()));
    }
}

fn ineffective<T>(table: &Table<T>, names: &mut Vec<String>) {
    let idle = table.entries().filter(|entry| entry.is_without_effect());
    idle.for_each(|entry| push(names, Some(entry.usage())));
}

fn push(names: &mut Vec<String>, name: Option<String>) {
    names.extend(name.filter(|name| !names.contains(name)));
}
