//! `fsck.steadfs`: fsck(8) calls this program by that name for lines of fstab with a pass, and for `fsck -t steadfs`.
//!
//! **Rule.** Letters and exit codes are e2fsck's. What a mount recovers (the journal, orphans, what fsync wrote after f2fs's
//! last checkpoint) is recovered here, too, with -a, -p or -y; nothing else is changed. Errors that a check finds are reported,
//! with the program that repairs them, and the exit code is that of errors left uncorrected. So 1 (errors corrected) is no
//! exit code of this program.
//!
//! As e2fsck does, it believes a volume that is marked as clean (`-f` does not), also after a recovery, if nothing that is read
//! to find the marks is wrong.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use steadfs::tools::printable_text;
use steadfs::{Inspection, Marks};

use crate::args;
use crate::check::{self, OPERATIONAL, Progress, UNCORRECTED, USAGE};
use crate::failure::Failure;
use crate::output::print;
use crate::partition;
use crate::source;
use crate::umount::look_up;
use crate::volume::{Access, with_volume};
use crate::worker;

/// Exit code of fsck(8): a signal ended it.
const CANCELLED: u8 = 32;

/// Whether the program was called by one of its names: those of the types in fstab.
pub fn is_called(words: &[OsString]) -> bool {
    let name = words.first().and_then(|word| Path::new(word).file_name());
    name.is_some_and(|name| name == "fsck.steadfs" || name == "fsck.fuse.steadfs")
}

/// What a call asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    volume: PathBuf,
    /// Recovers what a mount recovers (-a, -p, -y).
    recover: bool,
    /// Changes nothing (-n).
    read_only: bool,
    /// Checks a volume that is marked as clean (-f).
    force: bool,
    /// Reports progress on this descriptor (-C).
    progress: Option<u32>,
}

impl Call {
    /// Parses a call; `None`: the version is wanted.
    fn parse(words: &[OsString]) -> Result<Option<Self>, Failure> {
        let usage = |what: &str| Failure::new(USAGE, what);
        let mut call = Self::default();
        let mut volumes = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_str().unwrap_or_default();
            let Some(letters) = text.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
                volumes.push(PathBuf::from(word));
                continue;
            };
            if letters == "-" {
                volumes.extend(words.by_ref().map(PathBuf::from));
                break;
            }
            for (at, letter) in letters.char_indices() {
                match letter {
                    'a' | 'p' | 'y' => call.recover = true,
                    'n' => call.read_only = true,
                    'f' => call.force = true,
                    // All messages are printed in any case.
                    'v' => {}
                    'V' => return Ok(None),
                    'C' => {
                        let rest = &letters[at + 1..];
                        let value = match rest.is_empty() {
                            true => words.next().and_then(|word| word.to_str()),
                            false => Some(rest),
                        };
                        let number = value.and_then(|value| value.parse().ok());
                        let number = number.ok_or_else(|| usage("-C needs a file descriptor"));
                        call.progress = Some(number?);
                        break;
                    }
                    _ => return Err(usage(&refusal(letter))),
                }
            }
        }
        if call.recover && call.read_only {
            return Err(usage("-n does not go with -a, -p or -y"));
        }
        match <[PathBuf; 1]>::try_from(volumes) {
            Ok([volume]) => Ok(Some(Self { volume, ..call })),
            Err(_) => Err(usage(
                "usage: fsck.steadfs [-a|-p|-y|-n] [-fvV] [-C DESCRIPTOR] DEVICE",
            )),
        }
    }
}

/// Why a letter is not accepted.
fn refusal(letter: char) -> String {
    let why = match letter {
        'A' | 'M' | 'N' | 'P' | 'R' | 'T' => "is an option of fsck(8), as in fsck -A -t steadfs",
        'b' | 'B' => "is not supported; steadfs check -o sb= reads by another superblock",
        'r' => "is not supported: no questions are asked",
        'c' | 'D' | 'E' | 'l' | 'L' | 'z' => {
            "is not supported: that is a repair, which e2fsck or fsck.f2fs does"
        }
        _ => "is not supported",
    };
    format!("-{letter} {why}")
}

pub fn run(words: &[OsString]) -> Result<(), Failure> {
    let Some(call) = Call::parse(words.get(1..).unwrap_or_default())? else {
        return print(|out| writeln!(out, "fsck.steadfs {}", env!("CARGO_PKG_VERSION")));
    };
    examine(&call).map_err(|failure| match failure.is_signal() {
        true => Failure::new(CANCELLED, failure.message),
        false => failure,
    })
}

fn examine(call: &Call) -> Result<(), Failure> {
    let operational = |failure: Failure| match failure.is_signal() {
        true => failure,
        false => Failure::new(OPERATIONAL, failure.message),
    };
    let volume = source::device(&call.volume).map_err(operational)?;
    if let Some(mount) = look_up(&volume).map_err(operational)? {
        let at = mount.mountpoint.display();
        let why = format!("{}: is mounted at {at}; unmount it first", volume.display());
        return Err(Failure::new(OPERATIONAL, why));
    }
    // 0 asks for a bar, as the check of a terminal has it.
    let progress = call.progress.filter(|descriptor| *descriptor != 0);
    let progress = progress.map(Progress::open).transpose();
    let progress = progress.map_err(operational)?;
    let name = volume.display();
    let open = args::offline::Open::default();
    let (file, list) = partition::resolve(&volume, "", None).map_err(operational)?;
    let state_of = || worker::state::of(&file, &list).map_err(operational);
    let mut state = state_of()?;
    let recovers = call.recover && state.marks == Marks::ToRecover;
    if recovers {
        // Opening and closing it recovers it. That can show errors, which are marked then.
        let opened = with_volume(&volume, &open, Access::Write, |_| Ok(()));
        opened.map_err(operational)?;
        state = state_of()?;
    }
    if !call.force && state.marks == Marks::Clean {
        let how = if recovers {
            "recovered as by a mount, clean"
        } else {
            "clean"
        };
        let line = format!("{name}: {how}, {}", state.summary);
        return print(|out| writeln!(out, "{}", printable_text(&line))).map_err(operational);
    }
    let args = args::Check {
        volume: volume.clone(),
        json: false,
        open,
    };
    match check::run_with(&args, progress) {
        Err(failure) if failure.code == UNCORRECTED => {
            let why =
                "the errors are not repaired: fsck.steadfs only recovers what a mount recovers";
            let way = "repair with e2fsck -f or fsck.f2fs -f";
            Err(Failure::new(UNCORRECTED, format!("{name}: {why}; {way}")))
        }
        checked => checked,
    }
}

/// How full a volume is, as e2fsck prints it.
pub fn summary(inspection: &Inspection) -> String {
    match inspection {
        Inspection::Ext4(volume) => {
            let numbers = &volume.geometry;
            let (inodes, blocks) = (numbers.inodes, numbers.blocks);
            let used = inodes.saturating_sub(numbers.free_inodes);
            let filled = blocks.saturating_sub(numbers.free_blocks);
            format!("{used}/{inodes} files, {filled}/{blocks} blocks")
        }
        Inspection::F2fs(volume) => match volume.checkpoint.numbers() {
            Some(numbers) => format!(
                "{} files, {}/{} blocks",
                numbers.valid_inode_count, numbers.valid_block_count, numbers.user_block_count
            ),
            None => "no valid checkpoint".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Call>, Failure> {
        let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        Call::parse(&words)
    }

    #[test]
    fn calls_of_fsck_8_and_by_hand() {
        let call = parse("-a -C5 /dev/sdb1").unwrap().unwrap();
        let wanted = Call {
            volume: "/dev/sdb1".into(),
            recover: true,
            progress: Some(5),
            ..Call::default()
        };
        assert_eq!(call, wanted);
        let call = parse("-fnv -C 0 -- -strange").unwrap().unwrap();
        let wanted = Call {
            volume: "-strange".into(),
            read_only: true,
            force: true,
            progress: Some(0),
            ..Call::default()
        };
        assert_eq!(call, wanted);
        assert_eq!(parse("-V").unwrap(), None);
        assert!(is_called(&["/sbin/fsck.steadfs".into()]));
        assert!(!is_called(&["steadfs".into()]));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (text, why) in [
            ("-a", "usage: fsck.steadfs"),
            ("a b", "usage: fsck.steadfs"),
            ("-A a", "-A is an option of fsck(8)"),
            ("-b 32768 a", "steadfs check -o sb="),
            ("-np a", "-n does not go with"),
            ("-C x a", "-C needs a file descriptor"),
            ("-x a", "-x is not supported"),
        ] {
            let failure = parse(text).unwrap_err();
            assert_eq!(failure.code, USAGE, "{text}");
            assert!(failure.message.contains(why), "{text}: {}", failure.message);
        }
    }
}
