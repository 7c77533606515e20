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
    /// Whether there is so little room that it is one for [`Trial::Space`](super::Trial::Space), and for
    /// no other trial.
    pub small: bool,
}

/// The names of the judges in reports.
pub(super) const CHECKER: &str = "the checker";
const E2FSCK: &str = "e2fsck";

impl Subject {
    /// Has an unmounted volume judged: by the checker, and by e2fsck if `second` or if the checker
    /// finds anything. Whether e2fsck was asked comes back too.
    ///
    /// # Errors
    /// If e2fsck cannot be run or the directory not be written; inside: what is wrong, or which judge
    /// is alone in saying so.
    pub fn judge(
        &self,
        image: &Image,
        second: bool,
        scratch: &Path,
    ) -> io::Result<(bool, std::result::Result<(), Complaint>)> {
        let ours = self.check.as_ref().map(|check| check(image));
        let found = ours.as_deref().is_some_and(|findings| !findings.is_empty());
        let asked = self.e2fsck && (second || found);
        let theirs = match asked {
            true => Some(e2fsck(image, scratch)?),
            false => None,
        };
        let (content, judge, findings) = match (ours, theirs) {
            (None, None) => return Ok((asked, Ok(()))),
            (Some(ours), None) => (None, CHECKER, ours),
            (None, Some(theirs)) => (None, E2FSCK, theirs),
            (Some(ours), Some(theirs)) => match (ours.is_empty(), theirs.is_empty()) {
                (true, _) => (Some(CHECKER), E2FSCK, theirs),
                (_, true) => (Some(E2FSCK), CHECKER, ours),
                (false, false) => (None, "both judges", format!("{ours}\n{theirs}")),
            },
        };
        let verdict = match (findings.is_empty(), content) {
            (true, _) => Ok(()),
            (false, None) => Err(Complaint::Damaged { judge, findings }),
            (false, Some(content)) => Err(Complaint::Disagreement {
                content,
                judge,
                findings,
            }),
        };
        Ok((asked, verdict))
    }
}

/// What `e2fsck -fn` finds wrong with an image; empty if nothing is.
///
/// # Errors
/// If it cannot be run, or the directory not be written.
pub fn e2fsck(image: &Image, scratch: &Path) -> io::Result<String> {
    let path = scratch.join("judged.img");
    image.save(&path)?;
    let output = Command::new("e2fsck").arg("-fn").arg(&path).output()?;
    std::fs::remove_file(&path)?;
    if output.status.success() {
        return Ok(String::new());
    }
    let mut findings = String::from_utf8_lossy(&output.stdout).into_owned();
    findings.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(findings)
}
