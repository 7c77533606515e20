//! `steadfs remount`, and mount(8)'s `-o remount`: options of a running mount.

use std::path::Path;

use rustix::mount::MountFlags as Raw;
use steadfs::{MountFlags, MountHandle, Options};

use crate::args;
use crate::failure::{Failure, code};
use crate::umount::{Mount, find};

/// Hands the options to the server; only what a running volume can change is taken.
pub fn run(args: &args::Remount) -> Result<(), Failure> {
    let mount = find(&args.mountpoint)?;
    let parts = split(&args.options.join(","))?;
    if let Some(item) = parts.fixed.first() {
        return Err(cannot_change(&mount, item));
    }
    apply(&mount, &parts)
}

/// What mount(8) asks for: it passes all options of the mount, from fstab or from /proc/mounts, with
/// the changes among them. What is fixed at mount time therefore stays, and is told.
pub fn for_mount_8(mountpoint: &Path, list: &str) -> Result<(), Failure> {
    let mount = find(mountpoint)?;
    // `ro` and `rw` are both there when mount point and volume differ.
    let kept = |item: &str| !matches!(item, "ro" | "rw");
    let new = |item: &&str| !(kept(item) && mount.options.iter().any(|had| had == item));
    let parts = split(&list.split(',').filter(new).collect::<Vec<_>>().join(","))?;
    for item in &parts.fixed {
        eprintln!("steadfs: {item} stays as it was when the volume was mounted");
    }
    apply(&mount, &parts)?;
    let mount = find(mountpoint)?;
    // The kernel's own flags: the list is complete, so what is not in it is off.
    let all: Vec<&str> = list.split(',').filter(|item| !is_fuses(item)).collect();
    let wanted = Options::parse(&all.join(",")).map_err(|e| Failure::new(code::USAGE, e))?;
    set_flags(&mount, wanted.flags)
}

/// Options that the kernel shows of every FUSE mount and nobody gives.
fn is_fuses(item: &str) -> bool {
    item.starts_with("user_id=") || item.starts_with("group_id=") || item.starts_with("blksize=")
}

/// A list taken apart.
struct Parts {
    /// For the server.
    volume: String,
    /// Items that count when the volume is mounted only.
    fixed: Vec<String>,
}

fn split(list: &str) -> Result<Parts, Failure> {
    let parts = Options::split_remount(list).map_err(|e| Failure::new(code::USAGE, e))?;
    let (volume, fixed) = parts;
    Ok(Parts { volume, fixed })
}

fn cannot_change(mount: &Mount, what: &str) -> Failure {
    let place = mount.mountpoint.display();
    let why = "cannot change while mounted; unmount and mount again";
    Failure::new(code::MOUNT, format!("{place}: {what}: {why}"))
}

fn apply(mount: &Mount, parts: &Parts) -> Result<(), Failure> {
    if parts.volume.is_empty() {
        return Ok(());
    }
    MountHandle::of(mount.clone())
        .remount(&parts.volume)
        .map_err(|error| Failure::new(code::MOUNT, error))
}

/// Sets what the kernel enforces at the mount point, if it is not so.
fn set_flags(mount: &Mount, wanted: MountFlags) -> Result<(), Failure> {
    let has = |name: &str| mount.options.iter().any(|item| item == name);
    let list = [
        (wanted.nosuid, Raw::NOSUID, "nosuid"),
        (wanted.nodev, Raw::NODEV, "nodev"),
        (wanted.noexec, Raw::NOEXEC, "noexec"),
        (wanted.noatime, Raw::NOATIME, "noatime"),
        (wanted.nodiratime, Raw::NODIRATIME, "nodiratime"),
        // Changed together with the volume's own state only.
        (has("ro"), Raw::RDONLY, "ro"),
    ];
    if list.iter().all(|(on, _, name)| *on == has(name)) {
        return Ok(());
    }
    let mut flags = Raw::RELATIME;
    for (on, flag, _) in list {
        flags.set(flag, on);
    }
    MountHandle::of(mount.clone())
        .set_own_flags(flags)
        .map_err(|error| Failure::new(code::MOUNT, error))
}
