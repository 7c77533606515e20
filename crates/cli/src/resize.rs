//! `steadfs resize`.

use std::path::Path;

use steadfs::tools::Progress as _;
use steadfs::{Options, ResizeDevice, ResizeOptions, ResizeReport};

use crate::args;
use crate::failure::Failure;
use crate::output::print;
use crate::progress::Line;
use crate::{partition, sandbox, size};

/// Bytes that a size without a unit counts: blocks, as in resize2fs.
const BLOCK: u64 = 4096;
/// Bytes of a sector of `-t`.
const SECTOR: u64 = 512;

pub fn run(args: &args::Resize) -> Result<(), Failure> {
    let sectors = args.target_sectors.as_deref();
    let wanted = (args.size.as_deref().map(|text| size::parse(text, BLOCK)))
        .or_else(|| sectors.map(|text| size::parse(text, SECTOR)))
        .transpose()?;
    let resize = ResizeOptions {
        size: wanted,
        keep_tables: args.safe,
    };
    let (volume, list) = partition::resolve(&args.volume, &args.options.join(","), args.sandbox)?;
    let mut options = Options::parse(&list).map_err(Failure::plain)?;
    let contained = sandbox::is_on(args.sandbox)?;
    if contained {
        sandbox::adapt(&mut options)?;
    }
    let device = ResizeDevice::open(&volume, &options, resize).map_err(Failure::plain)?;
    if contained {
        sandbox::report_missing(&sandbox::enter(true)?);
    }
    let mut line = Line::of_reading("resizing");
    let done = device.resize(&mut |bytes| line.bytes(bytes));
    line.done();
    let report = done.map_err(Failure::plain)?;
    print_report(&args.volume, &report)
}

fn print_report(volume: &Path, report: &ResizeReport) -> Result<(), Failure> {
    let volume = volume.display();
    print(|out| {
        if report.finished {
            writeln!(out, "{volume}: an interrupted resize was finished")?;
        }
        if report.is_unchanged() {
            return writeln!(
                out,
                "{volume}: has {} blocks of {BLOCK} bytes already, nothing was changed",
                report.blocks
            );
        }
        let before = match report.old_blocks {
            Some(old) => format!(" ({old} before, {} of them moved)", report.moved),
            None => String::new(),
        };
        writeln!(
            out,
            "{volume}: {} blocks of {BLOCK} bytes{before}, {} for users",
            report.blocks, report.user_blocks
        )
    })
}
