//! Whether and how commands on volumes give up their rights before they parse one; docs/security.md has the reasons.

use std::sync::Once;

use steadfs::{IoEngine, Options};
use steadfs_contain::{Containment, Profile};

use crate::args;
use crate::failure::Failure;

/// The environment variable for `--sandbox`.
const VARIABLE: &str = "STEADFS_SANDBOX";

/// Whether the command is to be contained: by the option, else by the environment variable, else yes.
pub fn is_on(wanted: Option<args::Sandbox>) -> Result<bool, Failure> {
    if let Some(wanted) = wanted {
        return Ok(wanted == args::Sandbox::On);
    }
    let value = std::env::var_os(VARIABLE).unwrap_or_default();
    match value.to_str() {
        Some("" | "on") => Ok(true),
        Some("off") => Ok(false),
        _ => {
            let value = value.display();
            Err(Failure::plain(format!(
                "{VARIABLE}={value}: needs on or off"
            )))
        }
    }
}

/// Adapts the options of a volume that is opened in a contained process.
pub fn adapt(options: &mut Options) -> Result<(), Failure> {
    match options.io_engine {
        // Its operations would bypass the filter of system calls.
        IoEngine::Uring => Err(Failure::plain(
            "option io_engine=uring: io_uring is not available in the sandbox (--sandbox=off)",
        )),
        IoEngine::Auto | IoEngine::Threads => {
            options.io_engine = IoEngine::Threads;
            Ok(())
        }
    }
}

/// Contains this process. Volumes that are read need open descriptors only; of a volume that is written, the host's loop
/// devices are watched. Returns the parts of the containment that are not in effect.
pub fn enter(write: bool) -> Result<Vec<String>, Failure> {
    let containment = match write {
        false => Containment::new(Profile::Descriptors),
        true => Containment::new(Profile::DescriptorsAndReading)
            .readable("/proc/partitions")
            .readable("/sys/block")
            .readable("/sys/devices/virtual/block"),
    };
    let contained = containment.enter();
    let contained = contained.map_err(|error| {
        Failure::plain(format!(
            "cannot enter the sandbox: {error} (--sandbox=off does without)"
        ))
    });
    Ok(contained?.missing)
}

/// Reports parts that are not in effect, once.
pub fn report_missing(missing: &[String]) {
    static REPORTED: Once = Once::new();
    if !missing.is_empty() {
        REPORTED.call_once(|| {
            let missing = steadfs::tools::printable_text(&missing.join("; "));
            eprintln!("steadfs: the sandbox is incomplete: {missing}");
        });
    }
}
