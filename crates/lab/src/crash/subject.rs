//! What is explored: formatted volumes and how they are opened and judged.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use steadfs_block::Device;
use steadfs_vfs::{FileSystem, Result};
use steadfs_workload::Format;

use super::Complaint;
use crate::device::Image;

/// Opens the file system on a device, recovering it if need be.
pub type Open = Arc<dyn Fn(Arc<dyn Device>) -> Result<Arc<dyn FileSystem>> + Send + Sync>;
/// Checks an unmounted volume: what is wrong with it, line by line; empty if nothing is.
pub type Check = Arc<dyn Fn(&Image) -> String + Send + Sync>;

/// A kind of volume under test.
#[derive(Clone)]
pub struct Subject {
    /// Its name, for reports.
    pub name: String,
    /// The freshly formatted volume.
    pub image: Image,
    /// What it can do.
    pub format: Format,
    /// How it is opened.
    pub open: Open,
    /// Our checker, asked about every recovered image.
    pub check: Option<Check>,
    /// Whether e2fsck is asked about a sample and every failure.
    pub e2fsck: bool,
}

/// Asks `e2fsck -fn` about an image.
///
/// # Errors
/// If it cannot be run, or finds anything ([`Complaint::Damaged`] inside the second).
pub fn e2fsck(image: &Image, scratch: &Path) -> io::Result<std::result::Result<(), Complaint>> {
    let path = scratch.join("judged.img");
    image.save(&path)?;
    let output = Command::new("e2fsck").arg("-fn").arg(&path).output()?;
    std::fs::remove_file(&path)?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let mut findings = String::from_utf8_lossy(&output.stdout).into_owned();
    findings.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(Err(Complaint::Damaged {
        judge: "e2fsck",
        findings,
    }))
}
