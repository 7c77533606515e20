//! `steadfs remount`, and mount(8)'s `-o remount`: change options of a mounted volume.

use std::path::Path;

use rustix::mount::MountFlags as Raw;
use steadfs::{Kind, MountFlags, MountHandle, Options};

use crate::args;
use crate::failure::{Failure, code, mount_failure};
use crate::server::report_no_effect;
use crate::stderr::say;
use crate::umount::{Mount, find};

/// Sends the options to the server, which accepts changes that are possible while mounted, and unchanged options.
pub fn run(args: &args::Remount) -> Result<(), Failure> {
    let mount = find(&args.mountpoint)?;
    let list = args.options.join(",");
    check(&mount, &list)?;
    apply(&mount, &list)?;
    let has = |name: &str| mount.options.iter().any(|item| item == name);
    let now = MountFlags {
        nosuid: has("nosuid"),
        nodev: has("nodev"),
        noexec: has("noexec"),
        ..MountFlags::default()
    };
    let wanted = Options::flags_over(now, &list);
    if wanted != now {
        let mount = find(&args.mountpoint)?;
        let has = |name: &str| mount.options.iter().any(|item| item == name);
        let wanted = MountFlags {
            noatime: has("noatime"),
            nodiratime: has("nodiratime"),
            ..wanted
        };
        set_flags(&mount, wanted)?;
    }
    Ok(())
}

/// Replaces the server.
pub fn upgrade(args: &args::Upgrade) -> Result<(), Failure> {
    let mount = find(&args.mountpoint)?;
    MountHandle::of(mount)
        .upgrade()
        .map_err(|error| mount_failure(&error.into()))
}

/// Handles a call by mount(8): it passes all options of the mount, from fstab or /proc/mounts, including the changes.
/// Options that are fixed at mount time keep their value, with a warning.
pub fn for_mount_8(mountpoint: &Path, list: &str) -> Result<(), Failure> {
    let mount = find(mountpoint)?;
    // `ro` and `rw` are both present if mount point and volume differ.
    let kept = |item: &str| !matches!(item, "ro" | "rw");
    let new = |item: &&str| {
        let shown = kept(item) && mount.options.iter().any(|had| had == item);
        !shown && !is_fuses(item)
    };
    let new = list.split(',').filter(new).collect::<Vec<_>>().join(",");
    check(&mount, &new)?;
    let (rest, fixed) = Options::split_fixed(&new);
    for item in &fixed {
        say(format_args!(
            "steadfs: {item} stays as it was when the volume was mounted"
        ));
    }
    apply(&mount, &rest)?;
    let mount = find(mountpoint)?;
    // The kernel's own flags: the list is complete, so absent flags are off.
    let given = |item: &&str| !is_fuses(item) && *item != KEPT_FLAG;
    let all: Vec<&str> = list.split(',').filter(given).collect();
    let wanted = Options::parse(&all.join(",")).map_err(|e| Failure::new(code::USAGE, e))?;
    set_flags(&mount, wanted.flags)
}

/// A flag that no option of ours sets, and a remount keeps.
const KEPT_FLAG: &str = "nosymfollow";

/// Options that the kernel shows for every FUSE mount and no user gives.
fn is_fuses(item: &str) -> bool {
    let names = ["user_id=", "group_id=", "blksize=", "max_read="];
    names.iter().any(|name| item.starts_with(name))
}

fn check(mount: &Mount, list: &str) -> Result<(), Failure> {
    let checked = Options::check_items(list, kind_of(mount));
    checked.map_err(|error| Failure::new(code::USAGE, error))
}

/// The kind of a mounted volume, by its control files; `None` without them.
fn kind_of(mount: &Mount) -> Option<Kind> {
    let has = |name: &str| mount.mountpoint.join(".steadfs").join(name).exists();
    match (has("f2fs"), has("ext4")) {
        (true, _) => Some(Kind::F2fs),
        (_, true) => Some(Kind::Ext4),
        _ => None,
    }
}

fn apply(mount: &Mount, list: &str) -> Result<(), Failure> {
    if list.is_empty() {
        return Ok(());
    }
    MountHandle::of(mount.clone())
        .remount(list)
        .map_err(|error| Failure::new(code::MOUNT, error))?;
    report_no_effect(list, kind_of(mount));
    Ok(())
}

/// Sets the flags that the kernel enforces at the mount point, if they differ.
fn set_flags(mount: &Mount, wanted: MountFlags) -> Result<(), Failure> {
    let has = |name: &str| mount.options.iter().any(|item| item == name);
    let list = [
        (wanted.nosuid, Raw::NOSUID, "nosuid"),
        (wanted.nodev, Raw::NODEV, "nodev"),
        (wanted.noexec, Raw::NOEXEC, "noexec"),
        (wanted.noatime, Raw::NOATIME, "noatime"),
        (wanted.nodiratime, Raw::NODIRATIME, "nodiratime"),
        // Changed only together with the volume's own state.
        (has("ro"), Raw::RDONLY, "ro"),
        (has(KEPT_FLAG), Raw::NOSYMFOLLOW, KEPT_FLAG),
    ];
    if list.iter().all(|(on, _, name)| *on == has(name)) {
        return Ok(());
    }
    let strict = !has("relatime") && !has("noatime");
    let mut flags = match strict {
        true => Raw::STRICTATIME,
        false => Raw::RELATIME,
    };
    for (on, flag, _) in list {
        flags.set(flag, on);
    }
    if wanted.noatime {
        flags.remove(Raw::STRICTATIME | Raw::RELATIME);
    }
    MountHandle::of(mount.clone())
        .set_own_flags(flags)
        .map_err(|error| Failure::new(code::MOUNT, error))
}
