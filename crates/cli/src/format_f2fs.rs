//! `steadfs format -t f2fs`.

use std::path::Path;

use steadfs::{F2fsFormatError, F2fsFormatOptions, F2fsFormatReport, Options};

use crate::args;
use crate::failure::Failure;
use crate::output::print;
use crate::progress::Line;

pub fn run(args: &args::Format, size: Option<u64>) -> Result<(), Failure> {
    let options = options(args).map_err(Failure::plain)?;
    if !args.force
        && args.volume.exists()
        && let Ok(kind) = steadfs::probe(&args.volume, &Options::default())
    {
        return Err(Failure::plain(format!(
            "{}: there is a volume already ({}); --force makes a new one in its place",
            args.volume.display(),
            kind.name()
        )));
    }
    let line = Line::of_silence("formatting");
    let report = steadfs::format_f2fs(&args.volume, size, &options);
    line.done();
    let report = report.map_err(Failure::plain)?;
    if let Some(dir) = &args.from_dir {
        crate::fill::fill(&args.volume, 0, dir)?;
    }
    if !args.quiet {
        tell(&args.volume, &report)?;
    }
    Ok(())
}

fn options(args: &args::Format) -> Result<F2fsFormatOptions, F2fsFormatError> {
    let mut options = F2fsFormatOptions {
        label: args
            .label
            .clone()
            .or_else(|| args.f2fs_label.clone())
            .unwrap_or_default(),
        overprovision: args.f2fs.overprovision,
        large_nat_bitmap: args.f2fs.extended_node_bitmap,
        sector_size: args.f2fs.sector_size,
        discard: !args.f2fs.nodiscard,
        ..F2fsFormatOptions::default()
    };
    if let Some(count) = args.f2fs.segments_per_section {
        options.segments_per_section = count;
    }
    if let Some(count) = args.f2fs.sections_per_zone {
        options.sections_per_zone = count;
    }
    if let Some(owner) = &args.f2fs.root_owner {
        options.set_root_owner(owner)?;
    }
    if let Some(text) = &args.uuid {
        options.set_uuid(text)?;
    }
    for list in &args.features {
        options.set_features(list)?;
    }
    if let Some(list) = &args.errors {
        options.add_cold(list);
    }
    for list in &args.extended {
        options.add_hot(list);
    }
    Ok(options)
}

fn tell(path: &Path, report: &F2fsFormatReport) -> Result<(), Failure> {
    for note in &report.notes {
        eprintln!("steadfs: {note}");
    }
    print(|out| {
        writeln!(
            out,
            "{}: {} blocks of 4096 bytes, {} segments in {} sections, of which {} are kept for \
             cleaning ({:.2} %)",
            path.display(),
            report.blocks,
            report.main_segments,
            report.sections,
            report.overprovision_segments,
            report.overprovision,
        )
    })
}
