//! A failed assertion (panic) anywhere in the program ends the process at once: fail-stop.
//!
//! The hook runs in the thread that panicked, before unwinding. So no destructor closes what is half changed, and the
//! commit that would include it still waits for its handle. The message goes to the log, then the process aborts:
//! callers of the mount get ENOTCONN, and for the volume it is a power cut. The hook takes no lock and waits for at
//! most [`stderr::PATIENCE`]: another thread may hold the lock, and the reader of our messages may depend on our own
//! mount.
//!
//! In a simulation a panic fails the run, which reports it.

use std::panic::PanicHookInfo;
use std::time::Duration;

use steadfs::tools::printable_text;

use crate::{log, stderr};

/// Longest time for a trace of calls, which reads the program's symbols.
const TRACE_TIME: Duration = Duration::from_secs(20);

/// Makes a panic end the process. Call it before anything else.
pub fn end_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if steadfs_rt::sim::active() {
            usual(info);
        } else {
            end(info);
        }
    }));
}

fn end(info: &PanicHookInfo<'_>) -> ! {
    let text = printable_text(&report(info, log::served()));
    if log::is_to_system() {
        log::last_words(&text);
    } else {
        print(&format!("steadfs: {text}\n"));
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            // Without memory the standard library waits for a lock that this thread holds.
            steadfs_rt::end_process_after(TRACE_TIME);
            print(&format!("{trace}\n"));
        }
    }
    std::process::abort()
}

fn report(info: &PanicHookInfo<'_>, subject: Option<&str>) -> String {
    let thread = steadfs_rt::task_name();
    let place = info.location().map(ToString::to_string);
    let place = place.unwrap_or_else(|| "an unknown place".to_owned());
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let what = text.unwrap_or("no message");
    let error = format!("internal error: thread '{thread}' panicked at {place}: {what}");
    match subject {
        Some(subject) => format!(
            "{subject}: {error}; the server aborts. For the volume this is a power cut: writes that were not synced may be \
             lost, the next mount recovers the rest. Please report this message."
        ),
        None => format!(
            "{error}; the process aborts. A volume that it was writing is as after a power cut. Please report this message."
        ),
    }
}

/// Takes no lock, and does not wait for a reader that has stopped.
fn print(text: &str) {
    // What cannot be written has no other place.
    let _ = stderr::write_to(rustix::stdio::stderr(), text, Some(stderr::PATIENCE));
}
