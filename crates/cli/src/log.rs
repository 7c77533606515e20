//! The log: standard error in the foreground; in the background the journal of systemd, with the volume and the mount point
//! as fields, or syslog.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use steadfs::tools::printable_text;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::stderr::say;

/// Longest line that is shown of what another process prints, in bytes.
const LINE_BYTES_MAX: u64 = 16 << 10;

static TO_SYSTEM: AtomicBool = AtomicBool::new(false);
/// Lines on standard error begin with their level as in sd-daemon(3), `<3>` for an error: a broker or a service manager reads
/// them.
static TO_BROKER: AtomicBool = AtomicBool::new(false);
/// The served volume and its mount point: syslog receives the messages of all servers.
static SERVED: OnceLock<Served> = OnceLock::new();

struct Served {
    text: String,
    image: Vec<u8>,
    mountpoint: Vec<u8>,
}

/// Starts logging of warnings and errors, with `verbose` also of information.
pub fn start(verbose: bool) {
    let most = if verbose { Level::INFO } else { Level::WARN };
    let log = Log {
        most,
        spans: AtomicU64::new(1),
    };
    // Only the first call counts; a second one would set the same.
    let _ = tracing::subscriber::set_global_default(log);
}

/// Names the served volume in every message from now on.
pub fn serves(volume: &Path, mountpoint: &Path) {
    let served = format!("{} on {}", volume.display(), mountpoint.display());
    // One process serves one volume.
    let _ = SERVED.set(Served {
        text: served,
        image: volume.as_os_str().as_bytes().to_vec(),
        mountpoint: mountpoint.as_os_str().as_bytes().to_vec(),
    });
}

/// The volume and mount point set by [`serves`].
pub fn served() -> Option<&'static str> {
    SERVED.get().map(|served| &*served.text)
}

/// Sends messages to syslog from now on.
pub fn to_system() {
    TO_SYSTEM.store(true, Ordering::Relaxed);
}

/// Sends messages to a broker, which passes them to [`show`], or to a service manager from now on.
pub fn to_broker() {
    TO_BROKER.store(true, Ordering::Relaxed);
}

/// Shows what a process prints that reads a volume, without control characters, until it has ended.
pub fn show(pipe: impl Read) {
    let mut pipe = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        match (&mut pipe)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
        {
            Ok(1..) => show_line(String::from_utf8_lossy(&line).trim_end_matches('\n')),
            _ => return,
        }
    }
}

/// A line with the level of [`to_broker`], or without.
fn show_line(line: &str) {
    let level = [Level::ERROR, Level::WARN, Level::INFO]
        .into_iter()
        .find_map(|level| {
            let rest = line.strip_prefix(&format!("<{}>", severity(level)))?;
            Some((level, rest))
        });
    let (level, text) = level.unwrap_or((Level::WARN, line));
    let text = printable_text(text);
    if is_to_system() {
        let text = text.strip_prefix("steadfs: ").unwrap_or(&text);
        send(level, text);
    } else if TO_BROKER.load(Ordering::Relaxed) {
        // Always with a level: the line may begin with one that the service manager shows on all terminals.
        say(format_args!("<{}>{text}", severity(level)));
    } else {
        say(text);
    }
}

/// Whether messages go to syslog.
pub fn is_to_system() -> bool {
    TO_SYSTEM.load(Ordering::Relaxed)
}

/// Sends an error message to syslog, if that does not block.
pub fn last_words(text: &str) {
    send_from(
        UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        }),
        Level::ERROR,
        text,
    );
}

struct Log {
    most: Level,
    spans: AtomicU64,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        // Errors may contain names from a volume.
        let served = served()
            .map(|served| format!("{served}: "))
            .unwrap_or_default();
        let text = printable_text(&[served, line.message, line.fields].concat());
        let level = *event.metadata().level();
        if TO_SYSTEM.load(Ordering::Relaxed) {
            send(level, &text);
        } else if TO_BROKER.load(Ordering::Relaxed) {
            say(format_args!("<{}>steadfs: {text}", severity(level)));
        } else {
            say(format_args!("steadfs: {text}"));
        }
    }
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Sends one datagram to syslog, in syslog(3)'s format (RFC 3164): facility daemon, then severity.
fn send(level: Level, text: &str) {
    send_from(UnixDatagram::unbound(), level, text);
}

/// The severity of syslog(3).
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Longest time for a message; then it is lost.
const SEND_MAX: Duration = Duration::from_secs(1);
/// The socket of systemd's journal, and that of syslog.
const JOURNAL: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";

fn send_from(socket: std::io::Result<UnixDatagram>, level: Level, text: &str) {
    let Ok(socket) = socket else {
        return;
    };
    // What reads the messages may keep them on this mount, and wait for it.
    let _ = socket.set_write_timeout(Some(SEND_MAX));
    if socket.send_to(&fields(level, text), JOURNAL).is_ok() {
        return;
    }
    let pid = std::process::id();
    let line = format!("<{}>steadfs[{pid}]: {text}", DAEMON | severity(level));
    // A machine without syslog loses the message.
    let _ = socket.send_to(line.as_bytes(), SYSLOG);
}

/// Facility of syslog(3).
const DAEMON: u8 = 3 << 3;

/// A message in the journal's native protocol: each value with its length, since a path may contain any byte.
fn fields(level: Level, text: &str) -> Vec<u8> {
    let priority = severity(level).to_string();
    let mut fields: Vec<(&str, &[u8])> = vec![
        ("MESSAGE", text.as_bytes()),
        ("PRIORITY", priority.as_bytes()),
        ("SYSLOG_FACILITY", b"3"),
        ("SYSLOG_IDENTIFIER", b"steadfs"),
    ];
    if let Some(served) = SERVED.get() {
        fields.push(("STEADFS_IMAGE", &served.image));
        fields.push(("STEADFS_MOUNT", &served.mountpoint));
    }
    let mut message = Vec::new();
    for (name, value) in fields {
        message.extend_from_slice(name.as_bytes());
        message.push(b'\n');
        message.extend_from_slice(&(value.len() as u64).to_le_bytes());
        message.extend_from_slice(value);
        message.push(b'\n');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_to_the_journal_have_fields() {
        serves(Path::new("/a\nb.img"), Path::new("/mnt"));
        let message = fields(Level::WARN, "text");
        let expected = [
            ("MESSAGE", "text"),
            ("PRIORITY", "4"),
            ("SYSLOG_FACILITY", "3"),
            ("SYSLOG_IDENTIFIER", "steadfs"),
            ("STEADFS_IMAGE", "/a\nb.img"),
            ("STEADFS_MOUNT", "/mnt"),
        ];
        let mut rest = &message[..];
        for (name, value) in expected {
            let head = [name.as_bytes(), b"\n", &(value.len() as u64).to_le_bytes()].concat();
            rest = rest.strip_prefix(&head[..]).expect(name);
            rest = rest.strip_prefix(value.as_bytes()).expect(name);
            rest = rest.strip_prefix(b"\n").expect(name);
        }
        assert!(rest.is_empty(), "{rest:?}");
    }
}
