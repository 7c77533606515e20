//! `mount -t`: the requested kinds of volumes.

use std::path::Path;

use steadfs::{Kind, Options};

use crate::failure::{Failure, code, mount_failure};

const KINDS: [Kind; 4] = [Kind::Ext2, Kind::Ext3, Kind::Ext4, Kind::F2fs];

/// Checks that a volume of this kind may be mounted as one of these types.
///
/// # Errors
/// steadfs does not support a type, or the volume is of another one.
pub fn check(types: &[String], volume: &Path, options: &Options) -> Result<(), Failure> {
    if wanted(types)?.is_empty() {
        return Ok(());
    }
    let found = steadfs::probe(volume, options).map_err(|error| mount_failure(&error))?;
    check_found(types, volume, found)
}

/// The kinds that the types ask for; empty for any.
///
/// # Errors
/// steadfs does not support a type.
pub fn wanted(types: &[String]) -> Result<Vec<Kind>, Failure> {
    let any = |name: &str| {
        matches!(
            name,
            "auto" | "steadfs" | "fuse.steadfs" | "fuseblk.steadfs"
        )
    };
    let mut wanted = Vec::new();
    for name in types.iter().filter(|name| !any(name)) {
        let kind = KINDS.into_iter().find(|kind| kind.name() == name);
        wanted.push(kind.ok_or_else(|| {
            let why = "not served here; types are ext2, ext3, ext4, f2fs and auto";
            Failure::new(code::USAGE, format!("-t {name}: {why}"))
        })?);
    }
    if wanted.len() < types.len() {
        wanted.clear();
    }
    Ok(wanted)
}

/// The same for a volume whose kind is known.
///
/// # Errors
/// As [`check`].
pub fn check_found(types: &[String], volume: &Path, found: Kind) -> Result<(), Failure> {
    let wanted = wanted(types)?;
    if wanted.is_empty() || wanted.iter().any(|&wanted| serves(wanted, found)) {
        return Ok(());
    }
    let (path, found) = (volume.display(), found.name());
    let types = types.join(",");
    Err(Failure::new(
        code::MOUNT,
        format!(
            "{path}: is an {found} volume, and -t {types} asks for another; leave it out, or say -t {found}"
        ),
    ))
}

/// The kernel's ext4 mounts ext2 and ext3, too.
fn serves(wanted: Kind, found: Kind) -> bool {
    wanted == found || wanted == Kind::Ext4 && matches!(found, Kind::Ext2 | Kind::Ext3)
}
