//! Devices identified by their content, as in fstab(5).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, code};

/// mount(8)'s tags.
const TAGS: [&str; 4] = ["LABEL=", "UUID=", "PARTLABEL=", "PARTUUID="];
/// The directories of system programs, which users' PATH may lack.
const SYSTEM: &str = "/usr/sbin:/sbin";

/// The path of a device: found by its tag, or unchanged.
///
/// # Errors
/// No device has the tag.
pub fn device(source: &Path) -> Result<PathBuf, Failure> {
    let tag = source
        .to_str()
        .filter(|text| TAGS.iter().any(|tag| text.starts_with(tag)));
    tag.map_or_else(|| Ok(source.to_owned()), find)
}

/// Calls util-linux, which uses udev's links and reads the devices if there are none.
fn find(tag: &str) -> Result<PathBuf, Failure> {
    // Quotes are allowed around the value, as in fstab.
    let tag = tag.replacen("=\"", "=", 1);
    let tag = tag.trim_end_matches('"');
    let path = std::env::var("PATH").unwrap_or_default();
    let found = Command::new("findfs")
        .arg(tag)
        .env("PATH", format!("{path}:{SYSTEM}"))
        .output()
        .map_err(|error| {
            let way = "give the device's path";
            Failure::new(
                code::SYSTEM,
                format!("{tag}: findfs(8) cannot be run: {error}; {way}"),
            )
        })?;
    let device = String::from_utf8_lossy(&found.stdout);
    let device = device.trim_end();
    if !found.status.success() || device.is_empty() {
        let why = "no device has that; an image file is given by its path";
        return Err(Failure::new(code::USAGE, format!("{tag}: {why}")));
    }
    Ok(PathBuf::from(device))
}
