//! A failed assertion (panic) anywhere in the program ends it at once: fail-stop.
//!
//! The hook runs in the thread that panicked, before anything is unwound. So no destructor closes what is half changed,
//! and the commit that would take it still waits for its handle. The message goes where reports go, then the process aborts:
//! callers of a mount get ENOTCONN, and for the volume it is a power cut. Nothing on the way takes a lock or waits for
//! long: another thread may hold the one, and what reads our messages may lie on our own mount.
//!
//! In a simulation (`steadfs lab`) a panic fails the run and is reported by it.

use std::panic::PanicHookInfo;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use steadfs::tools::printable_text;

use crate::log;

/// How long standard error is waited for, if its reader is slow.
const PATIENCE: Duration = Duration::from_millis(200);

/// From now on a panic ends the process. To be called before anything else.
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

/// Writes to standard error, but does not wait for a reader that has stopped.
fn print(text: &str) {
    let out = rustix::stdio::stderr();
    let limit = Timespec::try_from(PATIENCE).ok();
    let mut left = text.as_bytes();
    while !left.is_empty() {
        let ready = poll(&mut [PollFd::new(&out, PollFlags::OUT)], limit.as_ref());
        if !matches!(ready, Ok(1..)) {
            return;
        }
        // A pipe that is ready takes as much as this without a wait.
        let part = &left[..left.len().min(512)];
        match rustix::io::write(out, part) {
            Ok(written) => left = &left[written..],
            Err(_) => return,
        }
    }
}
