//! Fault points: named statements at which a test makes the program fail an assertion.
//!
//! In a build with debug assertions, `STEADFS_FAULT=NAME@FILE` in the environment makes the first thread that reaches
//! the point NAME after FILE was created panic. A test mounts, prepares, creates FILE and checks how the server ends.
//! Release builds have no fault points.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The environment variable that arms a fault point.
pub const FAULT_VARIABLE: &str = "STEADFS_FAULT";

/// The name of the armed fault point, and the file that must exist.
static ARMED: OnceLock<Option<(String, PathBuf)>> = OnceLock::new();

/// The fault point `name`.
///
/// # Panics
/// If a test has armed this fault point.
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
