//! The text on mount options, for `steadfs mount --help` and the manual page: the options' own table
//! ([`steadfs::Options::help`]) with what all of them have in common.

use steadfs::Options;

/// What all of them have in common.
pub const RULES: &str = "Options of mount(8), ext4(5) and f2fs keep their names and meanings. An option that cannot \
    be supported is refused by name, with the reason; a misspelt one with the nearest name. All errors of a list are \
    reported at once. Defaults are in brackets; where the superblock has its own, that one applies.";

/// Heading of the options that hold in any case, or are for other programs.
pub const TAKEN: &str = "Accepted; they hold in any case, or are for other programs";

/// Heading of the options that are accepted without effect.
pub const NO_EFFECT: &str =
    "Accepted without effect; the command reports each with the reason on standard error";

/// Volumes in fstab.
pub const FSTAB: &str = "mount(8) finds the helper mount.steadfs, which `make install` installs in /sbin: the type \
    steadfs (or fuse.steadfs) works in /etc/fstab, with noauto, nofail, _netdev, comment= and x-systemd.* as with any \
    other. With the option user, an unprivileged user can mount the line's image through fusermount3 if that user can \
    write to the image and to the mount point. umount(8) returns after the volume is closed. If the last field is not 0, \
    fsck(8) calls fsck.steadfs(8). Example: /srv/disk.img \
    /mnt/disk steadfs noauto,user,noatime 0 0";

const COLUMN: usize = 32;
const WIDTH: usize = 98;

/// The text for a terminal.
pub fn help() -> String {
    let mut text = String::from("Mount options:\n");
    paragraph(&mut text, 2, 2, RULES);
    for (title, lines) in Options::help() {
        text.push_str(&format!("\n{title}:\n"));
        for line in lines {
            let usage = line.usages.join(", ");
            text.push_str(&format!("  {usage:<w$}", w = COLUMN - 2));
            let mut at = COLUMN;
            if usage.len() + 3 > COLUMN {
                text.push('\n');
                at = 0;
            }
            paragraph(&mut text, COLUMN - at, COLUMN, &line.meaning);
        }
    }
    for (title, names) in [
        (TAKEN, Options::taken()),
        (NO_EFFECT, Options::ineffective()),
    ] {
        text.push_str(&format!("\n{title}:\n"));
        paragraph(&mut text, 2, 2, &names.join(", "));
    }
    text.push_str("\nIn fstab:\n");
    paragraph(&mut text, 2, 2, FSTAB);
    text
}

/// Wraps words at [`WIDTH`] columns: the first line is indented by `first` blanks, the others by `rest`.
fn paragraph(out: &mut String, first: usize, rest: usize, words: &str) {
    out.push_str(&" ".repeat(first));
    let mut at = rest;
    for (n, word) in words.split_whitespace().enumerate() {
        if n > 0 && at + 1 + word.len() > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(rest));
            at = rest;
        } else if n > 0 {
            out.push(' ');
            at += 1;
        }
        out.push_str(word);
        at += word.len();
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The name in `a=x|y`, `b[=0|1]` or `c`.
    fn name(usage: &str) -> String {
        let name = usage.split(['=', '[']).next().unwrap_or_default();
        name.to_owned()
    }

    #[test]
    fn the_help_has_each_option_that_is_not_refused() {
        let lines = Options::help().into_iter().flat_map(|(_, lines)| lines);
        let described: BTreeSet<String> = lines
            .flat_map(|line| line.usages)
            .chain(Options::taken())
            .chain(Options::ineffective())
            .map(|usage| name(&usage))
            .filter(|name| name != "x-*" && name != "X-*")
            .collect();
        let names: BTreeSet<String> = Options::names().map(str::to_owned).collect();
        assert_eq!(described, names);
    }

    #[test]
    fn help_fits_a_terminal() {
        for line in help().lines() {
            assert!(line.len() <= WIDTH && line.trim_end() == line, "{line:?}");
        }
    }
}
