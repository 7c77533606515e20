//! Fault points: named places at which a test makes the program fail an assertion.
//!
//! In a build with debug assertions `STEADFS_FAULT=NAME@FILE` in the environment makes the thread that reaches the
//! point NAME panic, once FILE exists: a test mounts, prepares, makes FILE and sees what becomes of the server. Release
//! builds have no fault points.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The variable that arms a fault point.
pub const FAULT_VARIABLE: &str = "STEADFS_FAULT";

/// The armed point, and the file that must exist.
static ARMED: OnceLock<Option<(String, PathBuf)>> = OnceLock::new();

/// Panics here if a test has armed the fault point of this name.
///
/// # Panics
/// On purpose.
#[inline]
pub fn fault_point(name: &str) {
    if cfg!(debug_assertions) {
        let armed = ARMED.get_or_init(|| {
            let armed = std::env::var(FAULT_VARIABLE).ok()?;
            let (name, file) = armed.split_once('@')?;
            Some((name.to_owned(), file.into()))
        });
        if let Some((armed, file)) = armed {
            assert!(armed != name || !file.exists(), "fault point {name}");
        }
    }
}
