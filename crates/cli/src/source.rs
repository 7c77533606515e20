//! Devices identified by their content, as in fstab(5).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, code};

/// mount(8)'s tags.
const TAGS: [&str; 4] = ["LABEL=", "UUID=", "PARTLABEL=", "PARTUUID="];
/// The directories of system programs, which users' PATH may lack.
const SYSTEM: &str = "/usr/sbin:/sbin";
/// findfs(8)'s exit code if no device has the tag.
const NOT_FOUND: i32 = 1;

/// The path of a device: found by its tag, or unchanged.
///
/// # Errors
/// No device has the tag, or it cannot be looked for.
pub fn device(source: &Path) -> Result<PathBuf, Failure> {
    find(source)?.ok_or_else(|| {
        let why = "no device has that; an image file is given by its path";
        Failure::new(code::USAGE, format!("{}: {why}", source.display()))
    })
}

/// The same; `None`: no device has the tag.
///
/// # Errors
/// It cannot be looked for.
pub fn find(source: &Path) -> Result<Option<PathBuf>, Failure> {
    let tag = source
        .to_str()
        .filter(|text| TAGS.iter().any(|tag| text.starts_with(tag)));
    match tag {
        Some(tag) => find_by(Path::new("findfs"), tag),
        None => Ok(Some(source.to_owned())),
    }
}

/// Calls util-linux, which uses udev's links and reads the devices if there are none.
fn find_by(findfs: &Path, tag: &str) -> Result<Option<PathBuf>, Failure> {
    // Quotes are allowed around the value, as in fstab.
    let tag = tag.replacen("=\"", "=", 1);
    let tag = tag.trim_end_matches('"');
    let failed = |why: &dyn std::fmt::Display| {
        let way = "give the device's path";
        Failure::new(
            code::SYSTEM,
            format!("{tag}: findfs(8) cannot be run: {why}; {way}"),
        )
    };
    let path = std::env::var("PATH").unwrap_or_default();
    let found = Command::new(findfs)
        .arg(tag)
        .env("PATH", format!("{path}:{SYSTEM}"))
        .output()
        .map_err(|error| failed(&error))?;
    let device = String::from_utf8_lossy(&found.stdout);
    match (found.status.code(), device.trim_end()) {
        (Some(0), device) if !device.is_empty() => Ok(Some(PathBuf::from(device))),
        (Some(NOT_FOUND), _) => Ok(None),
        _ => Err(failed(&found.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_fails_does_not_mean_that_no_device_has_the_tag() {
        let find = |program: &str| find_by(Path::new(program), "LABEL=none");
        assert!(matches!(find("false"), Ok(None)), "exit code 1");
        assert!(find("/no/such/program").is_err());
        // Nothing is printed.
        assert!(find("true").is_err());
    }
}
