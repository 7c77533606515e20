//! `steadfs key`: the keys of a mount's encrypted files.

use std::path::Path;

use steadfs::{MountHandle, VolumeKey};

use crate::args::Key;
use crate::args::key::KeyAction;
use crate::failure::{Failure, code};
use crate::output::print;
use crate::umount::{at, find};

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
            change(mountpoint, &format!("remove {name}")).map(drop)
        }
        KeyAction::Status { mountpoint } => {
            let keys = change(mountpoint, "")?;
            print(|out| out.write_all(keys.trim_start().as_bytes()))
        }
    }
}

/// Sends a command to the server, past all caches of the kernel. Returns the list of keys.
fn change(mountpoint: &Path, command: &str) -> Result<String, Failure> {
    let mount = MountHandle::of(find(mountpoint)?);
    let changed = mount.change_keys(command);
    changed.map_err(|error| Failure::new(code::MOUNT, error.to_string()))
}
