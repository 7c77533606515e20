//! `steadfs key`: the keys of a mount's encrypted files, and policies of directories.

use std::path::Path;

use steadfs::tools::{owner_cx, resolve};
use steadfs::{KEYS_FILE, MountHandle, POLICY_COMMAND, VolumeKey};

use crate::args::Key;
use crate::args::key::{KeyAction, SetPolicy};
use crate::failure::{Failure, code};
use crate::output::print;
use crate::place::{Place, parse};
use crate::umount::{at, find, sync};
use crate::volume::{Access, with_volume};

pub fn run(args: &Key) -> Result<(), Failure> {
    match &args.action {
        KeyAction::Add {
            mountpoint,
            file,
            v1,
        } => {
            steadfs_rt::forbid_core_dumps();
            let key = VolumeKey::read(file, *v1).map_err(|error| at(file, &error))?;
            change(mountpoint, &key.command())?;
            print(|out| writeln!(out, "{}", key.name()))
        }
        KeyAction::Remove { mountpoint, name } => {
            // Changed pages of mappings are in the kernel, and cannot be written without the key.
            sync(mountpoint)?;
            change(mountpoint, &format!("remove {name}")).map(drop)
        }
        KeyAction::SetPolicy(args) => set_policy(args),
        KeyAction::Status { mountpoint } => {
            let keys = change(mountpoint, "")?;
            print(|out| out.write_all(keys.trim_start().as_bytes()))
        }
    }
}

fn set_policy(args: &SetPolicy) -> Result<(), Failure> {
    let usage = |error| Failure::new(code::USAGE, format!("{error}"));
    let command = args.policy().map_err(usage)?.command();
    let Place::Volume(place) = parse(&args.place) else {
        let set = MountHandle::change_dir_keys(Path::new(&args.place), &command);
        return set.map_err(|error| Failure::new(code::MOUNT, error.to_string()));
    };
    with_volume(&place.image, &args.open, Access::Write, |fs| {
        let shown = |error| Failure::plain(format!("{}: {error}", args.place.display()));
        let dir = resolve(fs, &owner_cx(), &place.path, true).map_err(shown)?;
        let numbered = format!("{POLICY_COMMAND} {}", dir.ino().0);
        let command = command.replacen(POLICY_COMMAND, &numbered, 1);
        fs.write_control(KEYS_FILE, command.as_bytes())
            .map_err(shown)
    })
}

/// Sends a command to the server, past all caches of the kernel. Returns the list of keys.
fn change(mountpoint: &Path, command: &str) -> Result<String, Failure> {
    let mount = MountHandle::of(find(mountpoint)?);
    let changed = mount.change_keys(command);
    changed.map_err(|error| Failure::new(code::MOUNT, error.to_string()))
}
