//! `steadfs check`.

use std::io::{self, Write};
use std::path::Path;

use steadfs::tools::Progress;
use steadfs::{Checked, Options};

use crate::args;
use crate::failure::Failure;
use crate::output::print;
use crate::progress::Line;

/// Exit code of e2fsck(8): issues that were left as they are.
const UNCORRECTED: u8 = 4;
/// Exit code of e2fsck(8): the check could not be made.
const OPERATIONAL: u8 = 8;

pub fn run(args: &args::Check) -> Result<(), Failure> {
    let list = args.open.options.join(",");
    let options = Options::parse(&list).map_err(Failure::plain)?;
    let mut line = Line::of_reading("checking");
    let checked = steadfs::check(&args.volume, &options, &mut |bytes| line.bytes(bytes));
    line.done();
    let checked = checked.map_err(|error| Failure::new(OPERATIONAL, error))?;
    print(|out| tell(&args.volume, &checked, out))?;
    if checked.report.is_clean() {
        Ok(())
    } else {
        Err(Failure::new(UNCORRECTED, ""))
    }
}

fn tell(volume: &Path, checked: &Checked, out: &mut dyn Write) -> io::Result<()> {
    let name = volume.display();
    let transactions = checked.replayed.replayed_transactions;
    if transactions > 0 {
        writeln!(
            out,
            "{name}: journal replayed in memory ({transactions} transactions)"
        )?;
    }
    let report = &checked.report;
    for issue in &report.issues {
        writeln!(out, "{issue}")?;
    }
    if report.more > 0 {
        writeln!(out, "and {} more", report.more)?;
    }
    for what in &report.skipped {
        writeln!(out, "not checked: {what}")?;
    }
    let stats = &report.stats;
    writeln!(
        out,
        "{name}: {}/{} inodes, {}/{} blocks, {} files, {} directories: {}",
        stats.inodes_used,
        stats.inodes,
        stats.blocks_used,
        stats.blocks,
        stats.files,
        stats.dirs,
        if report.is_clean() {
            "clean"
        } else {
            "damaged"
        },
    )
}
