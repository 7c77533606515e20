//! `steadfs format`.

use std::io::IsTerminal;
use std::path::Path;

use rustix::process::{getgid, getuid};
use steadfs::image::Window;
use steadfs::{Fill, FitKind, FormatError, FormatOptions, FormatReport, Origin};

use crate::args;
use crate::consent;
use crate::failure::Failure;
use crate::fit::{self, Beside};
use crate::output::print;
use crate::partition;
use crate::progress::Line;
use crate::size;
use crate::stderr::say;

pub fn run(args: &args::Format) -> Result<(), Failure> {
    refuse(args)?;
    let options = options(args)?;
    let (volume, place) = partition::window(&args.volume, args.sandbox)?;
    let part = place.to_format()?;
    check_place(part, &options)?;
    // In mke2fs's unit: blocks if their size was given.
    let unit = u64::from(options.block_size.unwrap_or(1024));
    let (text, from) = (args.size.as_deref(), args.from_dir.as_deref());
    let beside = Beside {
        size: text,
        from,
        is_part: part.is_some() || options.offset > 0,
        dry_run: args.dry_run,
    };
    let free = fit::free(args.fit.as_deref(), &volume, &beside, unit)?;
    let size = match free {
        Some(_) => None,
        None => size_of(&volume, text, unit)?,
    };
    let rules = crate::owners::rules(&args.owners, from.is_some())?;
    let from = from.map(|from| crate::fill::prepare(from, &volume, options.time.is_some()));
    let from = from.transpose()?;
    if args.dry_run {
        let size = size.or(part.map(|part| part.bytes));
        let report = steadfs::dry_run(&volume, size, &options).map_err(Failure::plain)?;
        return print_report(&args.volume, &report, true);
    }
    let start = part.map_or(options.offset, |part| part.start);
    if !args.force {
        consent::ask(&volume, start, args.sandbox)?;
    }
    consent::check_nodes(&volume, start, args.sandbox)?;
    if steadfs::makes_journal(&options) {
        return make_journal(args, &volume, part, size, &options);
    }
    let make = |volume: &Path, size, options: &FormatOptions| {
        let report = make(volume, part, (text, size), options)?;
        let how = Fill {
            offset: start,
            root_owner: options.root_owner,
            root_perm: options.root_perms.map(u32::from),
            rules: rules.clone(),
            origin: options.time.map(|time| Origin {
                time,
                uuid: report.uuid,
            }),
            measure: false,
        };
        Ok((report, how))
    };
    let report = if let (Some(from), Some(free)) = (&from, free) {
        let kind = FitKind::Ext(Box::new(options.clone()));
        let job = fit::Job::new(&volume, from, (kind, free), args.sandbox);
        fit::run(job, |image, plan| {
            make(image, Some(plan.size), &plan.ext(&options))
        })?
    } else {
        let (report, how) = make(&volume, size, &options)?;
        if let Some(from) = &from {
            crate::fill::fill(&volume, from, &how, args.sandbox)?;
        }
        report
    };
    show(args, &options, size, &report)
}

/// Prints what was made, unless nothing is wanted.
fn show(
    args: &args::Format,
    options: &FormatOptions,
    size: Option<u64>,
    report: &FormatReport,
) -> Result<(), Failure> {
    if !args.quiet {
        if options.offset > 0 && size.is_none() {
            say(format_args!(
                "steadfs: no size was given: the volume extends to the device's end"
            ));
        }
        print_report(&args.volume, report, args.verbose)?;
    }
    Ok(())
}

fn make(
    volume: &Path,
    part: Option<Window>,
    (text, size): (Option<&str>, Option<u64>),
    options: &FormatOptions,
) -> Result<FormatReport, Failure> {
    let line = Line::of_silence("formatting");
    let report = steadfs::format_within(volume, part, size, options);
    line.done();
    report.map_err(|error| failure(&error, text, size))
}

/// `-O journal_dev`: the device of a journal instead of a volume.
fn make_journal(
    args: &args::Format,
    volume: &Path,
    part: Option<Window>,
    size: Option<u64>,
    options: &FormatOptions,
) -> Result<(), Failure> {
    let made = steadfs::format_journal(volume, part, size, options).map_err(Failure::plain)?;
    if args.quiet {
        return Ok(());
    }
    let uuid = steadfs_base::uuid_text(&made.uuid);
    print(|out| {
        writeln!(
            out,
            "{}: an external journal of {} blocks of {} bytes, UUID {uuid}",
            args.volume.display(),
            made.blocks,
            made.block_size,
        )
    })
}

fn check_place(part: Option<Window>, options: &FormatOptions) -> Result<(), Failure> {
    match part.is_some() && options.offset > 0 {
        true => Err(Failure::plain(
            "-E offset=: a partition has its place already",
        )),
        false => Ok(()),
    }
}

/// The given size, which a file that does not exist needs.
pub fn size_of(volume: &Path, text: Option<&str>, unit: u64) -> Result<Option<u64>, Failure> {
    let size = text.map(|text| size::parse(text, unit)).transpose()?;
    if size.is_none() && !steadfs::is_uri(volume) && !volume.exists() {
        let why = "no such file; give a size to make one, as in `steadfs format disk.img 1G`";
        return Err(Failure::plain(format!("{}: {why}", volume.display())));
    }
    Ok(size)
}

/// A formatting error. A bare number that was meant as bytes is too large.
pub fn failure(error: &steadfs::Error, text: Option<&str>, size: Option<u64>) -> Failure {
    const MUCH: u64 = 1 << 40;
    match (text, size) {
        (Some(text), Some(size)) if size >= MUCH && steadfs_base::size::is_bare(text) => {
            Failure::plain(format!(
                "{error}; the size {text} counts blocks and makes {size} bytes: write {text}B for bytes"
            ))
        }
        _ => Failure::plain(error),
    }
}

/// Options that make no ext volume are refused.
fn refuse(args: &args::Format) -> Result<(), Failure> {
    let (only, refused) = (&args.f2fs, &args.refused);
    let fail = |what: &str, why: &str| Err(Failure::plain(format!("{what}: {why}")));
    for (name, given) in [
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
    ] {
        if given {
            return fail(name, "is an option of f2fs volumes only (-t f2fs)");
        }
    }
    if refused.bad_blocks {
        return fail(
            "-c",
            "a device is not searched for bad blocks here; badblocks(8) does it",
        );
    }
    if refused.bad_block_list.is_some() {
        let why = "a list of bad blocks is not taken here: mke2fs -l makes such a volume, and it can be mounted; \
                   a label is -L";
        return fail("-l", why);
    }
    if refused.superblocks_only {
        return fail(
            "-S",
            "superblocks alone are not written; e2fsck -b repairs from a copy",
        );
    }
    if refused.sparse.is_some() {
        return fail("-s", "write -O sparse_super or -O ^sparse_super");
    }
    if refused.undo_file.is_some() {
        return fail("-z", "an undo file is not written");
    }
    match &args.creator_os {
        Some(os) if !os.eq_ignore_ascii_case("linux") && os != "0" => {
            fail(&format!("-o {os}"), "only volumes of Linux are made")
        }
        _ => Ok(()),
    }
}

fn options(args: &args::Format) -> Result<FormatOptions, Failure> {
    let mut options = FormatOptions {
        time: crate::fill::epoch()?,
        ..FormatOptions::default()
    };
    set(args, &mut options).map_err(Failure::plain)?;
    Ok(options)
}

fn set(args: &args::Format, options: &mut FormatOptions) -> Result<(), FormatError> {
    let mut kinds = args.kind.iter();
    if let Some(kind) = kinds.next() {
        options.set_kind(kind)?;
        if let Some(other) = kinds.find(|other| *other != kind) {
            let why = format!("is {kind} and {other}");
            return Err(FormatError::Option {
                option: "-t".to_owned(),
                why,
            });
        }
    }
    if let Some(list) = &args.usage {
        options.set_usage(list)?;
    }
    check_journal(args)?;
    if let Some(text) = &args.block_size {
        options.set_block_size(text)?;
    }
    if let Some(text) = &args.cluster_size {
        options.set_cluster_size(text)?;
    }
    options.inodes = args.inodes;
    options.inode_ratio = args.inode_ratio;
    options.inode_size = args.inode_size;
    options.blocks_per_group = args.blocks_per_group;
    options.flex_group_size = args.flex_group_size;
    options.last_mounted = args.last_mounted.clone().unwrap_or_default();
    if let Some(other) = args.revision.filter(|revision| *revision != 1) {
        return Err(FormatError::Unsupported(format!("-r {other}")));
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
    // The C library's getuid: under fakeroot(1) root formats the volume.
    options.caller = (getuid().as_raw(), getgid().as_raw());
    for list in args.raid.iter().chain(&args.extended) {
        options.set_extended(list)?;
    }
    options.discard &= !args.keep;
    if let Some(text) = &args.errors {
        options.set_errors(text)?;
    }
    Ok(())
}

/// What is not done for external journals.
fn check_journal(args: &args::Format) -> Result<(), FormatError> {
    let has = |lists: &[String], word: &str| lists.iter().any(|list| list.contains(word));
    let refuse = |option: &str, why: &str| {
        Err(FormatError::Option {
            option: option.to_owned(),
            why: why.to_owned(),
        })
    };
    let fills = args.from_dir.is_some() || args.fit.is_some();
    match (
        has(&args.features, "journal_dev"),
        has(&args.journal, "device="),
    ) {
        (true, _) if fills => refuse("-d", "an external journal has no files"),
        (true, _) if args.dry_run => refuse("-n", "is not done for an external journal"),
        (_, true) if fills => refuse(
            "-d",
            "a volume whose journal is elsewhere is filled afterwards, by steadfs cp -o journal_path=",
        ),
        (_, true) if args.dry_run => refuse("-n", "is not done with -J device="),
        _ => Ok(()),
    }
}

fn print_report(path: &Path, report: &FormatReport, verbose: bool) -> Result<(), Failure> {
    for note in &report.notes {
        say(format_args!("steadfs: {note}"));
    }
    let is_elsewhere = report.features.iter().any(|name| name == "has_journal");
    let journal = match report.journal_blocks {
        Some(n) => format!("a journal of {n} blocks"),
        None if is_elsewhere => "a journal on another device".to_owned(),
        None => "no journal".to_owned(),
    };
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
        if verbose || std::io::stdout().is_terminal() {
            writeln!(out, "features: {}", report.features.join(" "))?;
        }
        if verbose {
            let copies: Vec<String> = report
                .superblock_copies
                .iter()
                .map(u64::to_string)
                .collect();
            writeln!(out, "UUID: {}", steadfs_base::uuid_text(&report.uuid))?;
            writeln!(out, "superblock copies at blocks: {}", copies.join(", "))?;
        }
        Ok(())
    })
}
