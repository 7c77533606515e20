//! What `find`, `du` and `tree` share: the volumes that they are run on.

use std::ffi::OsString;

use steadfs::tools::ToolError;
use steadfs_vfs::FileSystem;

use crate::args::offline::Open;
use crate::failure::Failure;
use crate::place::{Group, expand, grouped, on_volume};
use crate::report::{complain, on_image};
use crate::stop::Stop;
use crate::volume::{Access, with_volume};

/// The files of each image that arguments name.
pub fn groups(places: &[OsString], open: &Open) -> Result<Vec<Group>, Failure> {
    let mut named = Vec::new();
    for place in places {
        named.extend(expand(on_volume(place), open)?);
    }
    Ok(grouped(named))
}

/// Runs `work` on each volume, even after failures. It returns how many files failed, which were reported.
pub fn for_each_volume(
    groups: &[Group],
    open: &Open,
    access: Access,
    mut work: impl FnMut(&dyn FileSystem, &Group) -> Result<u64, Failure>,
) -> Result<(), Failure> {
    let mut failures = 0;
    for group in groups {
        match with_volume(&group.image, open, access, |fs| work(fs, group)) {
            Ok(more) => failures += more,
            Err(failure) if failure.is_signal() => return Err(failure),
            Err(failure) => {
                complain(&failure.message);
                failures += 1;
            }
        }
    }
    match failures {
        0 => Ok(()),
        _ => Err(Failure::plain("")),
    }
}

/// Runs `work` for each path of a volume. One that fails as a whole is reported, and the next one follows.
pub fn for_each_path(
    group: &Group,
    mut work: impl FnMut(&[u8]) -> Result<u64, ToolError>,
) -> Result<u64, ToolError> {
    let mut failures = 0;
    for path in &group.paths {
        match work(path) {
            Ok(more) => failures += more,
            Err(error @ ToolError::Volume { .. }) => {
                complain(&on_image(&group.image, &error));
                failures += 1;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(failures)
}

/// The failure of work on a volume that ended early.
pub fn failure(group: &Group, stop: &Stop, error: &ToolError) -> Failure {
    match error {
        ToolError::Stopped => stop.failure(""),
        error => Failure::plain(on_image(&group.image, error)),
    }
}

/// What comes before paths: the image and a colon.
pub fn prefix(group: &Group) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    [group.image.as_os_str().as_bytes(), b":"].concat()
}
