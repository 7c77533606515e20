//! `steadfs check`.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Value, json};
use steadfs::tools::{Progress as _, printable_json, printable_text};
use steadfs::{Checked, Options, VolumeDevice};

use crate::args;
use crate::failure::Failure;
use crate::json::text;
use crate::output::print;
use crate::partition;
use crate::progress::Line;
use crate::sandbox;

/// Exit code of e2fsck(8): errors that were left uncorrected.
pub const UNCORRECTED: u8 = 4;
/// Exit code of e2fsck(8): the check could not be done.
pub const OPERATIONAL: u8 = 8;
/// Exit code of e2fsck(8): wrong usage.
pub const USAGE: u8 = 16;

/// A report of progress for another program: lines of pass, bytes read, size of the volume and its name, as e2fsck -C has them.
pub struct Progress {
    out: File,
    done: u64,
    shown: u64,
    failed: bool,
}

impl Progress {
    /// Lines at most.
    const LINES: u64 = 100;

    /// Reports on a descriptor that this process has inherited.
    ///
    /// # Errors
    /// There is none.
    pub fn open(descriptor: u32) -> Result<Self, Failure> {
        let path = format!("/proc/self/fd/{descriptor}");
        let out = File::options().append(true).open(path);
        let out = out.map_err(|error| Failure::plain(format!("-C {descriptor}: {error}")))?;
        Ok(Self {
            out,
            done: 0,
            shown: 0,
            failed: false,
        })
    }

    /// Counts `bytes` read of a volume of `size`.
    fn bytes(&mut self, bytes: u64, size: u64, volume: &Path) {
        self.done = size.min(self.done.saturating_add(bytes));
        let part = u128::from(self.done) * u128::from(Self::LINES) / u128::from(size.max(1));
        let part = u64::try_from(part).unwrap_or(Self::LINES);
        if part > self.shown && !self.failed {
            self.shown = part;
            let line = format!("1 {} {size} {}\n", self.done, volume.display());
            // A reader that is gone does not end the check.
            self.failed = self.out.write_all(line.as_bytes()).is_err();
        }
    }
}

pub fn run(args: &args::Check) -> Result<(), Failure> {
    run_with(args, None)
}

/// Checks, and reports progress for another program.
pub fn run_with(args: &args::Check, mut progress: Option<Progress>) -> Result<(), Failure> {
    if !args.open.keys.is_empty() {
        let why = "a check needs no key: leave out --key-file";
        return Err(Failure::new(USAGE, why));
    }
    let (volume, list) = partition::resolve(
        &args.volume,
        &args.open.options.join(","),
        args.open.sandbox,
    )
    .map_err(|failure| Failure::new(USAGE, failure.message))?;
    let mut options = Options::parse_to_read(&list).map_err(|error| Failure::new(USAGE, error))?;
    let operational = |failure: Failure| Failure::new(OPERATIONAL, failure.message);
    let contained = sandbox::is_on(args.open.sandbox)
        .map_err(|failure| Failure::new(USAGE, failure.message))?;
    if contained {
        sandbox::adapt(&mut options).map_err(|failure| Failure::new(USAGE, failure.message))?;
    }
    let device = VolumeDevice::open_salvage(&volume, &options);
    let device = device.map_err(|error| Failure::new(OPERATIONAL, error))?;
    if contained {
        sandbox::report_missing(&sandbox::enter(false).map_err(operational)?);
    }
    let mut line = Line::of_reading("checking");
    let size = device
        .size()
        .map_err(|error| Failure::new(OPERATIONAL, error))?;
    let checked = device.check(&mut |bytes| {
        line.bytes(bytes);
        if let Some(progress) = &mut progress {
            progress.bytes(bytes, size, &args.volume);
        }
    });
    line.done();
    if let Some(progress) = &mut progress {
        progress.bytes(size, size, &args.volume);
    }
    let checked = checked.map_err(|error| Failure::new(OPERATIONAL, error))?;
    print(|out| match args.json {
        true => print_json(&args.volume, &checked, out),
        false => print_report(&args.volume, &checked, out),
    })
    .map_err(|failure| match failure.is_signal() {
        true => failure,
        false => operational(failure),
    })?;
    if checked.is_clean() {
        Ok(())
    } else {
        Err(Failure::new(UNCORRECTED, ""))
    }
}

/// The report as a JSON object; docs/json.md describes its fields.
fn print_json(volume: &Path, checked: &Checked, out: &mut dyn Write) -> io::Result<()> {
    let (name, hex) = text(volume.as_os_str().as_bytes());
    let mut report = json!({
        "volume": name,
        "clean": checked.is_clean(),
        "issues": checked.issues(),
        "more_issues": checked.more(),
        "not_checked": checked.skipped(),
    });
    if let Some(hex) = hex {
        report["volume_hex"] = hex.into();
    }
    let rest = match checked {
        Checked::Ext4 { report, replayed } => json!({
            "format": "ext",
            "warnings": replayed.warnings,
            "replayed_transactions": replayed.replayed_transactions,
            "replayed_fast_commits": replayed.replayed_fast_commits,
            "inodes": report.stats.inodes,
            "inodes_used": report.stats.inodes_used,
            "blocks": report.stats.blocks,
            "blocks_used": report.stats.blocks_used,
            "files": report.stats.files,
            "directories": report.stats.dirs,
        }),
        Checked::F2fs { report } => json!({
            "format": "f2fs",
            "fsynced_nodes": report.stats.fsynced_nodes,
            "fsynced_files": report.stats.fsynced_files,
            "inodes_used": report.stats.inodes_used,
            "nodes": report.stats.nodes,
            "nodes_used": report.stats.nodes_used,
            "blocks": report.stats.blocks,
            "blocks_used": report.stats.blocks_used,
            "files": report.stats.files,
            "directories": report.stats.dirs,
        }),
    };
    if let (Value::Object(all), Value::Object(rest)) = (&mut report, rest) {
        all.extend(rest);
    }
    let shown = serde_json::to_string_pretty(&report).map_err(io::Error::other)?;
    writeln!(out, "{}", printable_json(&shown))
}

/// What of the volume's state comes from its log or checkpoint.
fn print_recovery(volume: &Path, checked: &Checked, out: &mut dyn Write) -> io::Result<()> {
    let name = volume.display();
    match checked {
        Checked::Ext4 { replayed, .. } if replayed.has_replayed() => {
            let transactions = replayed.replayed_transactions;
            let fast = match replayed.replayed_fast_commits {
                0 => String::new(),
                n => format!(", {n} fast commits"),
            };
            writeln!(
                out,
                "{name}: journal replayed in memory ({transactions} transactions{fast})"
            )?;
        }
        Checked::F2fs { report } if report.stats.fsynced_nodes > 0 => {
            let (nodes, files) = (report.stats.fsynced_nodes, report.stats.fsynced_files);
            writeln!(
                out,
                "{name}: checked as of the checkpoint; fsync wrote {nodes} nodes of {files} files after it"
            )?;
        }
        Checked::Ext4 { .. } | Checked::F2fs { .. } => {}
    }
    if let Checked::Ext4 { replayed, .. } = checked {
        for warning in &replayed.warnings {
            writeln!(out, "{name}: {}", printable_text(warning))?;
        }
    }
    Ok(())
}

fn print_report(volume: &Path, checked: &Checked, out: &mut dyn Write) -> io::Result<()> {
    print_recovery(volume, checked, out)?;
    for issue in checked.issues() {
        writeln!(out, "{}", printable_text(&issue.to_string()))?;
    }
    if checked.more() > 0 {
        writeln!(out, "and {} more", checked.more())?;
    }
    for what in checked.skipped() {
        writeln!(out, "not checked: {what}")?;
    }
    let name = volume.display();
    let verdict = if checked.is_clean() {
        "clean"
    } else {
        "corrupt"
    };
    match checked {
        Checked::Ext4 { report, .. } => {
            let stats = &report.stats;
            writeln!(
                out,
                "{name}: {}/{} inodes, {}/{} blocks, {} files, {} directories: {verdict}",
                stats.inodes_used,
                stats.inodes,
                stats.blocks_used,
                stats.blocks,
                stats.files,
                stats.dirs,
            )
        }
        Checked::F2fs { report } => {
            let stats = &report.stats;
            writeln!(
                out,
                "{name}: {} inodes, {}/{} nodes, {}/{} blocks, {} files, {} directories: {verdict}",
                stats.inodes_used,
                stats.nodes_used,
                stats.nodes,
                stats.blocks_used,
                stats.blocks,
                stats.files,
                stats.dirs,
            )
        }
    }
}
