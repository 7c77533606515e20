//! Whether and how commands on volumes give up their rights before they parse one; docs/security.md has the reasons.

use std::sync::Once;

use steadfs::{IoEngine, Options};
use steadfs_contain::{Containment, Profile};

use crate::args;
use crate::failure::{Failure, code};
use crate::stderr::say;

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

/// What a contained server reads of the host while it serves: whether its CPUs are idle, the states of its threads, loop
/// devices on its image, and what the kernel's FUSE can do.
const READ_WHILE_SERVING: &[&str] = &[
    "/proc/filesystems",
    "/proc/partitions",
    "/proc/self/task",
    "/proc/stat",
    "/sys/block",
    "/sys/devices/system/cpu/possible",
    "/sys/devices/virtual/block",
    "/sys/module/fuse/parameters/enable_uring",
];

/// Contains the server of a mount, which is killed when its broker ends, and reports the parts of the containment that are not
/// in effect.
///
/// # Errors
/// Nothing was given up.
pub fn enter_as_server() -> Result<(), Failure> {
    // Kept open, because the right to read a directory of /proc ends when the kernel forgets the directory.
    let threads = std::fs::File::open("/proc/self/task");
    std::mem::forget(threads);
    // Whose mount it is; asked of /proc.
    let _ = steadfs_rt::kernel_ids();
    let serving = Containment::new(Profile::Serving)
        .as_own_user()
        .ends_with_parent();
    let serving = READ_WHILE_SERVING
        .iter()
        .fold(serving, |serving, path| serving.readable(*path));
    let contained = serving.enter().map_err(|error| {
        Failure::new(
            code::SYSTEM,
            format!(
                "cannot enter the sandbox: {error} (steadfs mount -o sandbox=off does without)"
            ),
        )
    })?;
    report_missing(&contained.missing);
    Ok(())
}

/// Reports parts that are not in effect, once.
pub fn report_missing(missing: &[String]) {
    static REPORTED: Once = Once::new();
    if !missing.is_empty() {
        REPORTED.call_once(|| {
            let missing = steadfs::tools::printable_text(&missing.join("; "));
            say(format_args!(
                "steadfs: the sandbox is incomplete: {missing}"
            ));
        });
    }
}
