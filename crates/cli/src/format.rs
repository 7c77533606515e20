//! `steadfs format`.

use std::io::IsTerminal;
use std::path::Path;

use steadfs::{FormatOptions, FormatReport};

use crate::args;
use crate::consent;
use crate::failure::Failure;
use crate::output::print;
use crate::progress::Line;

pub fn run(args: &args::Format) -> Result<(), Failure> {
    let f2fs = args.kind == "f2fs";
    refuse_of_other_kind(args, f2fs)?;
    let size = args.size.as_deref().map(size).transpose()?;
    if size.is_none() && !args.volume.exists() {
        let why = "no such file; give a size to make one, as in `steadfs format disk.img 1G`";
        return Err(Failure::plain(format!("{}: {why}", args.volume.display())));
    }
    if let Some(dir) = &args.from_dir {
        crate::fill::check_source(dir)?;
    }
    if f2fs {
        return crate::format_f2fs::run(args, size);
    }
    let options = options(args).map_err(Failure::plain)?;
    if !args.force {
        consent::ask(&args.volume, options.offset)?;
    }
    let line = Line::of_silence("formatting");
    let report = steadfs::format(&args.volume, size, &options);
    line.done();
    let report = report.map_err(Failure::plain)?;
    if let Some(dir) = &args.from_dir {
        crate::fill::fill(&args.volume, options.offset, dir)?;
    }
    if !args.quiet {
        if options.offset > 0 && size.is_none() {
            eprintln!("steadfs: no size was given: the volume goes to the device's end");
        }
        tell(&args.volume, &report)?;
    }
    Ok(())
}

/// Options that the other kind of volume has are not passed over.
fn refuse_of_other_kind(args: &args::Format, f2fs: bool) -> Result<(), Failure> {
    let only = &args.f2fs;
    let of_ext = [
        ("--usage", args.usage.is_some()),
        (
            "--block-size",
            args.block_size.as_deref().is_some_and(|n| n != "4096"),
        ),
        ("--inodes", args.inodes.is_some()),
        ("--inode-ratio", args.inode_ratio.is_some()),
        ("--inode-size", args.inode_size.is_some()),
        ("--blocks-per-group", args.blocks_per_group.is_some()),
        ("--flex-group-size", args.flex_group_size.is_some()),
        ("--last-mounted", args.last_mounted.is_some()),
        ("--revision", args.revision.is_some()),
        ("--direct", args.direct),
        ("--reserved", args.reserved.is_some()),
        ("--with-journal", args.with_journal),
        ("--journal", !args.journal.is_empty()),
    ];
    let of_f2fs = [
        (
            "--segments-per-section",
            only.segments_per_section.is_some(),
        ),
        ("--sections-per-zone", only.sections_per_zone.is_some()),
        ("--overprovision", only.overprovision.is_some()),
        ("--extended-node-bitmap", only.extended_node_bitmap),
        ("--root-owner", only.root_owner.is_some()),
        ("--sector-size", only.sector_size.is_some()),
        ("--nodiscard", only.nodiscard),
    ];
    if !f2fs && args.f2fs_label.is_some() {
        let why = "a list of bad blocks is not taken here: mke2fs -l makes such a volume, and it can be mounted; \
                   a label is -L";
        return Err(Failure::plain(format!("-l: {why}")));
    }
    let others = if f2fs { &of_ext[..] } else { &of_f2fs[..] };
    match others.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::plain(format!(
            "{name} is not supported for {} volumes",
            args.kind
        ))),
    }
}

fn options(args: &args::Format) -> Result<FormatOptions, steadfs::FormatError> {
    let mut options = FormatOptions::default();
    options.set_kind(&args.kind)?;
    if let Some(list) = &args.usage {
        options.set_usage(list)?;
    }
    if let Some(text) = &args.block_size {
        options.set_block_size(text)?;
    }
    options.inodes = args.inodes;
    options.inode_ratio = args.inode_ratio;
    options.inode_size = args.inode_size;
    options.blocks_per_group = args.blocks_per_group;
    options.flex_group_size = args.flex_group_size;
    options.last_mounted = args.last_mounted.clone().unwrap_or_default();
    if let Some(other) = args.revision.filter(|revision| *revision != 1) {
        return Err(steadfs::FormatError::Unsupported(format!("-r {other}")));
    }
    options.reserved_percent = args.reserved.unwrap_or(options.reserved_percent);
    options.label = args.label.clone().unwrap_or_default();
    options.features = args.features.join(",");
    if let Some(text) = &args.uuid {
        options.set_uuid(text)?;
    }
    options.journal = args.with_journal;
    for list in &args.journal {
        options.set_journal(list)?;
    }
    for list in &args.extended {
        options.set_extended(list)?;
    }
    if let Some(text) = &args.errors {
        options.set_errors(text)?;
    }
    Ok(options)
}

/// A size as mke2fs and truncate(1) take it: bytes, or with K, M, G or T (powers of 1024).
fn size(text: &str) -> Result<u64, Failure> {
    let bad = || {
        Failure::plain(format!(
            "size {text}: a number of bytes, or with K, M, G or T"
        ))
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number
        .checked_shl(shift)
        .filter(|n| n >> shift == number && *n > 0)
        .ok_or_else(bad)
}

fn tell(path: &Path, report: &FormatReport) -> Result<(), Failure> {
    for note in &report.notes {
        eprintln!("steadfs: {note}");
    }
    let journal = report.journal_blocks.map_or_else(
        || "no journal".to_owned(),
        |n| format!("a journal of {n} blocks"),
    );
    print(|out| {
        writeln!(
            out,
            "{}: {} blocks of {} bytes in {} groups, {} inodes, {journal}",
            path.display(),
            report.blocks,
            report.block_size,
            report.groups,
            report.inodes,
        )?;
        if std::io::stdout().is_terminal() {
            writeln!(out, "features: {}", report.features.join(" "))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes() {
        assert_eq!(size("512").unwrap(), 512);
        assert_eq!(size("4M").unwrap(), 4 << 20);
        for bad in ["", "0", "M", "12X", "-1", "99999999999T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
