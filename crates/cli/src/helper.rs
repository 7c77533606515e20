//! The mount helpers: mount(8) and umount(8) call this program as `mount.steadfs` and `umount.steadfs`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::slice::Iter;
use std::str::Chars;

use clap::CommandFactory;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::args;
use crate::failure::{Failure, code};
use crate::partition::file_of;
use crate::stderr::say;
use crate::{mount, remount, source, umount};

/// The helper's role, from the name of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Mount,
    Umount,
}

/// The role for the program's own name.
pub fn called_as(words: &[OsString]) -> Option<Role> {
    let name = Path::new(words.first()?).file_name()?.to_str()?;
    match name {
        "mount.steadfs" | "mount.fuse.steadfs" | "mount.fuseblk.steadfs" => Some(Role::Mount),
        "umount.steadfs" | "umount.fuse.steadfs" | "umount.fuseblk.steadfs" => Some(Role::Umount),
        _ => None,
    }
}

/// Whether mount.fuse(8) of libfuse calls the program, as `steadfs IMAGE DIRECTORY -o OPTIONS`: for `mount -t fuse
/// steadfs#IMAGE DIRECTORY`, and for the type fuse.steadfs where the helper of that name is not installed. No command of this
/// program has these words: the directory exists, and the image has not the name of a command.
pub fn called_by_mount_fuse(words: &[OsString]) -> bool {
    let [_, image, dir, option, _] = words else {
        return false;
    };
    let is_command = |name: &str| {
        let program = args::Args::command();
        name.starts_with('-') || program.find_subcommand(name).is_some()
    };
    option == "-o" && !image.to_str().is_some_and(is_command) && Path::new(dir).is_dir()
}

pub fn run(role: Role, words: &[OsString]) -> Result<(), Failure> {
    let call = Call::parse(role, words.get(1..).unwrap_or_default())?;
    match role {
        Role::Umount => umount::run(&args::Umount {
            mountpoint: call.path(0)?,
            lazy: call.lazy,
            force: call.force,
            or_read_only: call.or_read_only,
        }),
        Role::Mount => {
            let (volume, mountpoint) = (call.path(0)?, call.path(1)?);
            let (is_remount, mut options) = split_remount(&call.options);
            if call.sloppy {
                options = what_is_known(&options);
            }
            if call.fake {
                return steadfs::Options::parse(&options)
                    .map(drop)
                    .map_err(|error| Failure::new(code::USAGE, error));
            }
            if is_remount {
                return remount::for_mount_8(&mountpoint, &options);
            }
            let found = source::find(&volume)?;
            // mount(8) handles this option only for file systems that it mounts itself.
            if options.split(',').any(|item| item == "nofail") && is_missing(found.as_deref()) {
                return Ok(());
            }
            mount::run(&args::Mount {
                volume: found.unwrap_or(volume),
                mountpoint: Some(mountpoint),
                options: args::ListedOptions {
                    lists: vec![options],
                    read_write: call.read_write,
                },
                verbose: call.verbose,
                ..args::Mount::default()
            })
        }
    }
}

/// The call of a mounter that a service serves, which passes the same words as mount(8).
pub fn called_by_service(words: &[OsString]) -> Result<args::Mount, Failure> {
    let refused = |what: &str| Err(Failure::new(code::USAGE, what));
    let call = Call::parse(Role::Mount, words)?;
    if call.fake {
        return refused("-f: a service always mounts; leave it out");
    }
    let (is_remount, mut options) = split_remount(&call.options);
    if is_remount {
        return refused(
            "option remount: a service cannot change a mount: unmount, and mount again with the options",
        );
    }
    if call.sloppy {
        options = what_is_known(&options);
    }
    Ok(args::Mount {
        volume: call.path(0)?,
        mountpoint: Some(call.path(1)?),
        options: args::ListedOptions {
            lists: vec![options],
            read_write: call.read_write,
        },
        verbose: call.verbose,
        ..args::Mount::default()
    })
}

/// Whether the image or device is missing or empty; `None`: no device has the tag.
fn is_missing(volume: Option<&Path>) -> bool {
    let Some(volume) = volume.map(file_of) else {
        return true;
    };
    if steadfs::is_uri(volume) {
        return false;
    }
    match rustix::fs::stat(volume) {
        Err(error) => error == Errno::NOENT,
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice => {
            let opened = rustix::fs::open(volume, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            opened.is_err_and(|error| error == Errno::NXIO || error == Errno::NOMEDIUM)
        }
        Ok(_) => false,
    }
}

/// The options that are supported; the others are reported. autofs always requests this (-s).
fn what_is_known(list: &str) -> String {
    let items = list.split(',').filter(|item| {
        // Each alone, independent of the others in the list.
        let checked = steadfs::Options::check_items(item, None);
        if let Err(error) = &checked {
            say(format_args!("steadfs: {error}; left out"));
        }
        checked.is_ok()
    });
    items.collect::<Vec<_>>().join(",")
}

/// The arguments of a call by mount(8) (`SPEC DIR [-sfnv] [-N NS] [-o OPTIONS] [-t TYPE]`), or by a person, who may
/// also write `-r`, `-w` and `-oOPTIONS`; or of a call by umount(8) (`DIR [-flnrv] [-N NS] [-t TYPE]`).
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    paths: Vec<PathBuf>,
    options: Vec<String>,
    fake: bool,
    force: bool,
    lazy: bool,
    /// A mount that is in use becomes read-only.
    or_read_only: bool,
    read_write: bool,
    sloppy: bool,
    verbose: bool,
}

impl Call {
    fn parse(role: Role, words: &[OsString]) -> Result<Self, Failure> {
        let usage = |what: String| Failure::new(code::USAGE, what);
        let mut call = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_str().unwrap_or_default();
            let Some(letters) = text.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
                call.paths.push(PathBuf::from(word));
                continue;
            };
            let mut letters = letters.chars();
            while let Some(letter) = letters.next() {
                match (letter, role) {
                    ('v', _) => call.verbose = true,
                    // There is no mtab to skip.
                    ('n', _) => {}
                    ('f', Role::Mount) => call.fake = true,
                    ('f', Role::Umount) => call.force = true,
                    ('s', Role::Mount) => call.sloppy = true,
                    ('l', Role::Umount) => call.lazy = true,
                    ('r', Role::Mount) => call.options.push("ro".to_owned()),
                    ('r', Role::Umount) => call.or_read_only = true,
                    ('N', _) => {
                        let why =
                            "the helper does not change its namespace; run it there by nsenter(1)";
                        return Err(usage(format!("-N: {why}")));
                    }
                    ('w', Role::Mount) => {
                        call.options.push("rw".to_owned());
                        call.read_write = true;
                    }
                    ('t', _) => {
                        value(&mut letters, &mut words);
                    }
                    ('o', Role::Mount) => {
                        let list = value(&mut letters, &mut words);
                        let list = list.ok_or_else(|| usage("-o needs a list".to_owned()))?;
                        call.options.push(list.to_owned());
                    }
                    _ => return Err(usage(format!("-{letter} is not supported"))),
                }
            }
        }
        Ok(call)
    }

    fn path(&self, n: usize) -> Result<PathBuf, Failure> {
        let missing = || Failure::new(code::USAGE, "called without a path");
        self.paths.get(n).cloned().ok_or_else(missing)
    }
}

/// The value of an option: the rest of its word, or the next word.
fn value<'a>(letters: &mut Chars<'a>, words: &mut Iter<'a, OsString>) -> Option<&'a str> {
    let rest = letters.as_str();
    *letters = "".chars();
    match rest.is_empty() {
        true => words.next()?.to_str(),
        false => Some(rest),
    }
}

/// Removes mount(8)'s `remount` from the lists.
fn split_remount(lists: &[String]) -> (bool, String) {
    let all = lists.join(",");
    let rest: Vec<&str> = all.split(',').filter(|item| *item != "remount").collect();
    (rest.len() < all.split(',').count(), rest.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn names_have_roles() {
        assert_eq!(
            called_as(&words("/sbin/mount.steadfs a b")),
            Some(Role::Mount)
        );
        assert_eq!(
            called_as(&words("umount.fuse.steadfs a")),
            Some(Role::Umount)
        );
        assert_eq!(called_as(&words("steadfs mount a b")), None);
        assert_eq!(called_as(&[]), None);
    }

    #[test]
    fn mount_fuse_8_calls_without_a_command() {
        assert!(called_by_mount_fuse(&words(
            "steadfs /a.img /tmp -o rw,dev"
        )));
        for other in [
            "steadfs mount /tmp -o rw",
            "steadfs cp /tmp -o rw",
            "steadfs -x /tmp -o rw",
            "steadfs chekc a.img -o rw",
            "steadfs /a.img /tmp",
            "steadfs /a.img /tmp -r rw",
        ] {
            assert!(!called_by_mount_fuse(&words(other)), "{other}");
        }
    }

    #[test]
    fn calls_of_mount_8() {
        let call = Call::parse(
            Role::Mount,
            &words("/a.img /mnt -n -svf -t steadfs -o rw,noatime"),
        );
        let wanted = Call {
            paths: vec!["/a.img".into(), "/mnt".into()],
            options: vec!["rw,noatime".to_owned()],
            fake: true,
            force: false,
            lazy: false,
            or_read_only: false,
            read_write: false,
            sloppy: true,
            verbose: true,
        };
        assert_eq!(call.unwrap(), wanted);
        let call = Call::parse(
            Role::Mount,
            &words("-vonoatime,sync -oro a b -tsteadfs -rw"),
        );
        let wanted = Call {
            paths: vec!["a".into(), "b".into()],
            options: ["noatime,sync", "ro", "ro", "rw"]
                .map(String::from)
                .to_vec(),
            read_write: true,
            verbose: true,
            ..Call::default()
        };
        assert_eq!(call.unwrap(), wanted);
        let call = Call::parse(Role::Umount, &words("/mnt -l")).unwrap();
        assert!(call.lazy && !call.force);
        let call = Call::parse(Role::Umount, &words("/mnt -fv")).unwrap();
        assert!(call.force && !call.fake);
        assert!(call.path(1).is_err());
        let call = Call::parse(Role::Umount, &words("/mnt -fr")).unwrap();
        assert!(call.force && call.or_read_only);
        for role in [Role::Mount, Role::Umount] {
            let refused = Call::parse(role, &words("a b -N 1")).unwrap_err();
            assert!(refused.message.contains("nsenter"), "{}", refused.message);
        }
        assert!(Call::parse(Role::Mount, &words("a b -x")).is_err());
        assert!(Call::parse(Role::Mount, &words("a b -o")).is_err());
    }

    #[test]
    fn sloppy_lists_lose_what_is_unknown() {
        assert_eq!(what_is_known("ro,bogus,noload,data=journal"), "ro,noload");
    }

    #[test]
    fn remount_is_taken_out() {
        let lists = ["rw,remount".to_owned(), "noatime".to_owned()];
        assert_eq!(split_remount(&lists), (true, "rw,noatime".to_owned()));
        assert_eq!(split_remount(&lists[1..]), (false, "noatime".to_owned()));
    }
}
