//! `steadfs list`: the mounts of steadfs in this mount namespace.

use std::borrow::Cow;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::fs::{StatVfs, statvfs};
use rustix::io::Errno;
use serde::Serialize;
use steadfs::is_server_gone;
use steadfs::tools::printable;
use steadfs_rt::now;

use crate::args;
use crate::control_file;
use crate::failure::Failure;
use crate::json::text;
use crate::output::print;
use crate::tree::human;
use crate::umount::{Mount, mounts};

/// How long a server may take to answer. A healthy one that is busy takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// The only line of the control file without errors.
const NO_ERRORS: &str = "none";

/// What a server says of its volume.
enum Answer {
    Usage {
        usage: StatVfs,
        volume: Option<Volume>,
    },
    /// It has exited; the mount stays until it is unmounted.
    Gone,
    /// It has not answered in time.
    Silent,
    /// Only the user who mounted may call it.
    Closed,
    Failed(Errno),
}

/// What the control files show; a mount with `nocontrol` has none.
struct Volume {
    format: &'static str,
    options: String,
    /// Why it has stopped, what is not written, what is corrupt.
    errors: Vec<String>,
}

pub fn run(args: &args::List) -> Result<(), Failure> {
    let mounts = mounts()?;
    // All servers are asked at once, so that several silent ones take no longer than one.
    let asked: Vec<_> = mounts.iter().map(ask).collect();
    let answers = answers(asked, PATIENCE);
    let listed: Vec<_> = mounts.iter().zip(&answers).collect();
    if args.json {
        let rows: Vec<_> = listed.into_iter().map(Row::of).collect();
        let text = serde_json::to_string_pretty(&rows).map_err(Failure::plain)?;
        return print(|out| writeln!(out, "{text}"));
    }
    print(|out| show(out, &listed))
}

/// Asks a server from a thread of its own: a call to one that hangs does not return.
fn ask(mount: &Mount) -> Receiver<Answer> {
    let (answer, answered) = channel();
    let mountpoint = mount.mountpoint.clone();
    let thread = steadfs_rt::try_spawn("list", move || {
        // The other end may have given up.
        let _ = answer.send(inquire(&mountpoint));
    });
    drop(thread);
    answered
}

/// The answers that come in this time, to all together.
fn answers(asked: Vec<Receiver<Answer>>, patience: Duration) -> Vec<Answer> {
    let deadline = now() + patience;
    let answer = |answered: Receiver<Answer>| {
        let answer = answered.recv_timeout(deadline.since(now()));
        answer.unwrap_or(Answer::Silent)
    };
    asked.into_iter().map(answer).collect()
}

fn inquire(mountpoint: &Path) -> Answer {
    match statvfs(mountpoint) {
        // The kernel does not ask the server for a caller whom it may not serve, and says nothing of it.
        Ok(usage) if usage.f_blocks == 0 => Answer::Closed,
        Ok(usage) => Answer::Usage {
            usage,
            volume: volume(&mountpoint.join(".steadfs")),
        },
        Err(Errno::ACCESS | Errno::PERM) => Answer::Closed,
        Err(errno) if is_server_gone(&errno.into()) => Answer::Gone,
        Err(errno) => Answer::Failed(errno),
    }
}

fn volume(control: &Path) -> Option<Volume> {
    let options = control_file::read(&control.join("options")).ok()?;
    let errors = control_file::read(&control.join("errors")).unwrap_or_default();
    Some(Volume {
        format: match control.join("f2fs").exists() {
            true => "f2fs",
            false => "ext4",
        },
        options: options.trim().to_owned(),
        errors: errors
            .lines()
            .filter(|line| *line != NO_ERRORS)
            .map(str::to_owned)
            .collect(),
    })
}

impl Answer {
    /// One word, for programs, and the same for people with what is to be done.
    fn state(&self) -> (&'static str, String) {
        match self {
            Self::Usage { volume, .. } => match volume.as_ref().map(|volume| &*volume.errors) {
                None | Some([]) => ("ok", "ok".to_owned()),
                Some([first, ..]) => ("errors", printable(first.as_bytes())),
            },
            Self::Gone => ("gone", "its server has ended: unmount it".to_owned()),
            Self::Silent => ("silent", "its server does not answer".to_owned()),
            Self::Closed => ("closed", "only its user may ask".to_owned()),
            Self::Failed(errno) => ("failed", errno.to_string()),
        }
    }

    const fn volume(&self) -> Option<&Volume> {
        match self {
            Self::Usage { volume, .. } => volume.as_ref(),
            _ => None,
        }
    }

    /// Bytes: of the volume, in use.
    const fn bytes(&self) -> Option<(u64, u64)> {
        match self {
            Self::Usage { usage, .. } => {
                let used = usage.f_blocks.saturating_sub(usage.f_bfree);
                Some((
                    usage.f_blocks.saturating_mul(usage.f_frsize),
                    used.saturating_mul(usage.f_frsize),
                ))
            }
            _ => None,
        }
    }
}

/// A mount of the JSON document.
#[derive(Serialize)]
struct Row<'m> {
    mountpoint: Cow<'m, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mountpoint_hex: Option<String>,
    source: Cow<'m, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_hex: Option<String>,
    #[serde(rename = "type")]
    format: Option<&'static str>,
    options: Option<&'m str>,
    size: Option<u64>,
    used: Option<u64>,
    state: &'static str,
    errors: Option<&'m [String]>,
}

impl<'m> Row<'m> {
    fn of((mount, answer): (&'m Mount, &'m Answer)) -> Self {
        let (mountpoint, mountpoint_hex) = text(mount.mountpoint.as_os_str().as_bytes());
        let (source, source_hex) = text(mount.source.as_os_str().as_bytes());
        let (bytes, volume) = (answer.bytes(), answer.volume());
        Self {
            mountpoint,
            mountpoint_hex,
            source,
            source_hex,
            format: volume.map(|volume| volume.format),
            options: volume.map(|volume| &*volume.options),
            size: bytes.map(|(size, _)| size),
            used: bytes.map(|(_, used)| used),
            state: answer.state().0,
            errors: volume.map(|volume| &*volume.errors),
        }
    }
}

fn show(out: &mut dyn Write, listed: &[(&Mount, &Answer)]) -> io::Result<()> {
    if listed.is_empty() {
        return Ok(());
    }
    let mut rows =
        vec![["MOUNTPOINT", "SOURCE", "TYPE", "SIZE", "USED", "STATE"].map(str::to_owned)];
    for (mount, answer) in listed {
        let path = |path: &Path| printable(path.as_os_str().as_bytes());
        let size = |bytes: Option<u64>| {
            bytes.map_or_else(
                || "-".to_owned(),
                |bytes| human(bytes).trim_start().to_owned(),
            )
        };
        let read_only = mount.options.iter().any(|option| option == "ro");
        let state = answer.state().1;
        rows.push([
            path(&mount.mountpoint),
            path(&mount.source),
            answer
                .volume()
                .map_or("-", |volume| volume.format)
                .to_owned(),
            size(answer.bytes().map(|(all, _)| all)),
            size(answer.bytes().map(|(_, used)| used)),
            match read_only {
                true => format!("read-only, {state}"),
                false => state,
            },
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..5).map(|column| width(column).unwrap_or(0)).collect();
    for row in &rows {
        for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match n {
                3 | 4 => write!(out, "{cell:>width$}  ")?,
                _ => write!(out, "{cell:width$}  ")?,
            }
        }
        writeln!(out, "{}", row[5])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_silent_servers_take_no_longer_than_one() {
        let patience = Duration::from_millis(100);
        let (senders, asked): (Vec<_>, Vec<_>) = (0..50).map(|_| channel()).unzip();
        assert!(senders[49].send(Answer::Gone).is_ok());
        let began = now();
        let answers = answers(asked, patience);
        assert!(began.elapsed() < 20 * patience, "{:?}", began.elapsed());
        assert!(matches!(answers[0], Answer::Silent));
        assert!(matches!(answers[49], Answer::Gone));
    }
}
