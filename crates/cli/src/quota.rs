//! `steadfs quota`: usage and limits of a mounted volume, or of an image.

use std::fs;
use std::path::{Path, PathBuf};

use steadfs_base::size;
use steadfs_vfs::FileSystem;

use crate::args;
use crate::failure::{Failure, code};
use crate::output::print;
use crate::umount::{at, look_up};
use crate::volume::{Access, with_volume};

/// The kinds of owners, by the names of their control files.
const KINDS: [&str; 3] = ["user", "group", "project"];

/// Where control files are read and written.
enum Place<'a> {
    /// Below a mount.
    Mounted(PathBuf),
    /// On a volume that this command has opened.
    Opened(&'a dyn FileSystem, &'a Path),
}

impl Place<'_> {
    /// The content of a kind's file; `None`: the volume does not count this kind.
    fn read(&self, kind: &str) -> Result<Option<String>, Failure> {
        match self {
            Self::Mounted(dir) => {
                let path = dir.join(kind);
                match fs::read_to_string(&path) {
                    Ok(text) => Ok(Some(text)),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(at(&path, &error)),
                }
            }
            Self::Opened(volume, image) => match volume.read_control(&path_of(kind)) {
                Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
                Err(error) if error.errno() == ENOENT => Ok(None),
                Err(error) => Err(Failure::plain(format!("{}: {error}", image.display()))),
            },
        }
    }

    fn write(&self, kind: &str, line: &str) -> Result<(), Failure> {
        match self {
            Self::Mounted(dir) => {
                let path = dir.join(kind);
                fs::write(&path, line).map_err(|error| at(&path, &error))
            }
            Self::Opened(volume, image) => volume
                .write_control(&path_of(kind), line.as_bytes())
                .map_err(|error| Failure::plain(format!("{}: {error}", image.display()))),
        }
    }

    /// The volume has no quota of a kind.
    fn none(&self, kind: &str) -> Failure {
        let shown = match self {
            // Below the mount point's control directory.
            Self::Mounted(dir) => dir.ancestors().nth(2).unwrap_or(dir).display(),
            Self::Opened(_, image) => image.display(),
        };
        let why = format!("the volume does not count what its {kind}s use (feature quota)");
        Failure::plain(format!("{shown}: {why}"))
    }
}

const ENOENT: i32 = 2;
/// Bytes that a limit of space counts.
const LIMIT_UNIT: u64 = 1024;

fn path_of(kind: &str) -> String {
    format!("quota/{kind}")
}

pub fn run(args: &args::Quota) -> Result<(), Failure> {
    let asked = [args.user, args.group, args.project];
    let changes = changes(args)?;
    if let Some(mount) = look_up(&args.volume)? {
        let dir = mount.mountpoint.join(".steadfs").join("quota");
        return work(&Place::Mounted(dir), asked, &changes);
    }
    let access = match changes.is_empty() {
        true => Access::Read,
        false => Access::Write,
    };
    with_volume(&args.volume, &args.open, access, |volume| {
        work(&Place::Opened(volume, &args.volume), asked, &changes)
    })
}

/// The lines that the arguments ask to write.
fn changes(args: &args::Quota) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    if let [id, limits @ ..] = args.limits.as_slice() {
        let bad =
            |text: &str, why: &str| Failure::new(code::WORDS, format!("--limits {text}: {why}"));
        let id: u32 = id.parse().map_err(|_| bad(id, "no number"))?;
        let mut line = id.to_string();
        for (n, text) in limits.iter().enumerate() {
            let is_space = n < 2;
            let value = if is_space {
                kib(text)
            } else {
                text.parse().map_err(|_| "no number".to_owned())
            };
            line += &format!(" {}", value.map_err(|why| bad(text, &why))?);
        }
        lines.push(line);
    }
    if let [space, inodes] = args.grace.as_slice() {
        lines.push(format!("grace {space} {inodes}"));
    }
    Ok(lines)
}

/// A size in whole KiB, of which a number without a unit counts KiB. One of less is refused: 0 is no limit.
fn kib(text: &str) -> Result<u64, String> {
    match size::parse(text, LIMIT_UNIT) {
        Ok(bytes) if (1..LIMIT_UNIT).contains(&bytes) => {
            Err("limits count units of 1024 bytes".to_owned())
        }
        Ok(bytes) => Ok(bytes / LIMIT_UNIT),
        Err(why) => Err(why.to_string()),
    }
}

fn work(place: &Place<'_>, asked: [bool; 3], changes: &[String]) -> Result<(), Failure> {
    if changes.is_empty() {
        return show(place, asked);
    }
    let kinds: Vec<&str> = (0..3).filter(|&n| asked[n]).map(|n| KINDS[n]).collect();
    let kind = match kinds.as_slice() {
        [] => KINDS[0],
        [kind] => kind,
        _ => {
            let why = "limits are set for one of -u, -g and -P";
            return Err(Failure::new(code::WORDS, why));
        }
    };
    if place.read(kind)?.is_none() {
        return Err(place.none(kind));
    }
    changes.iter().try_for_each(|line| place.write(kind, line))
}

fn show(place: &Place<'_>, asked: [bool; 3]) -> Result<(), Failure> {
    let all = asked == [false; 3];
    let mut reports = Vec::new();
    for (n, kind) in KINDS.into_iter().enumerate() {
        if !all && !asked[n] {
            continue;
        }
        match place.read(kind)? {
            Some(text) => reports.push(report(kind, &text)),
            None if all => {}
            None => return Err(place.none(kind)),
        }
    }
    if reports.is_empty() {
        return Err(place.none("user"));
    }
    print(|out| out.write_all(reports.join("\n").as_bytes()))
}

/// The table of a kind's owners.
fn report(kind: &str, text: &str) -> String {
    let now = u64::try_from(steadfs_rt::wall_clock().secs).unwrap_or(0);
    let mut out = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
        match (words.as_slice(), numbers.as_slice()) {
            (["grace", ..], &[space, inodes]) => {
                out += &format!(
                    "{kind} quota: grace {} for space, {} for inodes\n{:>10} {:>12} {:>12} {:>12} {:>8} {:>10} {:>10} {:>10} {:>8}\n",
                    span(space),
                    span(inodes),
                    kind,
                    "KiB",
                    "soft",
                    "hard",
                    "grace",
                    "inodes",
                    "soft",
                    "hard",
                    "grace",
                );
            }
            (
                _,
                &[
                    id,
                    used,
                    soft,
                    hard,
                    until,
                    inodes,
                    inode_soft,
                    inode_hard,
                    inode_until,
                ],
            ) => {
                out += &format!(
                    "{id:>10} {used:>12} {soft:>12} {hard:>12} {:>8} {inodes:>10} {inode_soft:>10} {inode_hard:>10} {:>8}\n",
                    left(until, now),
                    left(inode_until, now),
                );
            }
            _ => {}
        }
    }
    out
}

/// How long a soft limit may still be exceeded.
fn left(until: u64, now: u64) -> String {
    match until {
        0 => "-".to_owned(),
        until if until <= now => "none".to_owned(),
        until => span(until - now),
    }
}

/// A time span as repquota(8) has it: days, or hours and minutes.
fn span(secs: u64) -> String {
    const DAY: u64 = 24 * 60 * 60;
    match secs {
        secs if secs >= 2 * DAY || secs % DAY == 0 && secs > 0 => format!("{}days", secs / DAY),
        secs => format!("{:02}:{:02}", secs / 3600, secs / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_kib() {
        for (text, wanted) in [
            ("0", 0),
            ("20", 20),
            ("20k", 20),
            ("3G", 3 << 20),
            ("64MB", 62_500),
            ("1MB", 976),
            ("0.5GiB", 512 << 10),
        ] {
            assert_eq!(kib(text), Ok(wanted), "{text}");
        }
        for text in ["", "x", "-1", "1B", "0.5K", "99999999999999T"] {
            assert!(kib(text).is_err(), "{text}");
        }
    }

    #[test]
    fn reports_have_a_line_for_each_owner() {
        let text = "grace 604800 3600\n1000 20 0 40 0 2 1 0 5\nrubbish \u{1b}[1m\n";
        let shown = report("user", text);
        assert_eq!(shown.lines().count(), 3, "{shown}");
        assert!(shown.contains("grace 7days for space, 01:00 for inodes"));
        let words: Vec<&str> = shown.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(words, ["1000", "20", "0", "40", "-", "2", "1", "0", "none"]);
    }
}
