//! `steadfs format -t f2fs`.

use std::path::{Path, PathBuf};

use rustix::process::{getgid, getuid};
use steadfs::{F2fsFormatError, F2fsFormatOptions, F2fsFormatReport, Fill, FitKind, Origin};
use steadfs_base::size;

use crate::args::Sandbox;
use crate::args_f2fs::FormatF2fs;
use crate::failure::Failure;
use crate::fill;
use crate::fit::{self, Beside};
use crate::format::{self, size_of};
use crate::output::print;
use crate::owners;
use crate::partition;
use crate::progress::Line;
use crate::stderr::say;
use crate::worker::{self, Content};

/// Bytes in a block.
const BLOCK_SIZE: u64 = 4096;
/// Bytes in a sector of an image file.
const SECTOR: u32 = 512;

/// Version of the first checkpoint with `-r`: the first number of the C library's generator with seed 0, made odd.
const FIXED_VERSION: u32 = 1_804_289_383;

pub fn run(args: &FormatF2fs) -> Result<(), Failure> {
    refuse(args)?;
    let options = options(args)?;
    let unit = u64::from(args.sector_size.unwrap_or(SECTOR));
    let (volume, place) = partition::window(&args.volume, args.sandbox)?;
    let part = place.to_format()?;
    let beside = Beside {
        size: args.size.as_deref(),
        from: args.from_dir.as_deref(),
        is_part: part.is_some(),
        dry_run: false,
    };
    let free = fit::free(args.fit.as_deref(), &volume, &beside, unit)?;
    let size = match free {
        Some(_) => None,
        None => size_of(&volume, args.size.as_deref(), unit)?,
    };
    let rules = owners::rules(&args.owners, args.from_dir.is_some())?;
    let from = args.from_dir.as_deref();
    let even = options.time.is_some();
    let from = from.map(|from| prepare(from, &volume, even)).transpose()?;
    let start = part.map_or(0, |part| part.start);
    let others = args.devices.iter().map(|device| (device.as_path(), 0));
    for (device, start) in [(&*volume, start)].into_iter().chain(others) {
        if !args.force {
            refuse_used(device, start, args.sandbox)?;
        }
    }
    crate::consent::check_nodes(&volume, start, args.sandbox)?;
    let make = |volume: &Path, size| {
        let line = Line::of_silence("formatting");
        let report = steadfs::format_f2fs_within(volume, part, size, &options);
        line.done();
        let report = report.map_err(|error| format::failure(&error, args.size.as_deref(), size))?;
        let how = Fill {
            offset: start,
            root_owner: args.root_owner.as_ref().map(|_| options.root_owner),
            rules: rules.clone(),
            origin: options.time.map(|secs| Origin {
                time: fill::at(secs),
                uuid: report.uuid,
            }),
            ..Fill::default()
        };
        Ok((report, how))
    };
    let report = if let (Some(from), Some(free)) = (&from, free) {
        let kind = FitKind::F2fs(Box::new(options.clone()));
        let job = fit::Job::new(&volume, from, (kind, free), args.sandbox);
        fit::run(job, |image, plan| make(image, Some(plan.size)))?
    } else {
        let (report, how) = make(&volume, size)?;
        if let Some(from) = &from {
            fill::fill(&volume, from, &how, args.sandbox)?;
        }
        report
    };
    if !args.quiet {
        print_report(&args.volume, &report)?;
    }
    Ok(())
}

/// Refuses to overwrite a volume.
fn refuse_used(device: &Path, start: u64, sandbox: Option<Sandbox>) -> Result<(), Failure> {
    if !steadfs::is_uri(device) && !device.exists() {
        return Ok(());
    }
    match worker::content(device, &format!("offset={start}"), sandbox)? {
        Content::Volume(kind) => Err(Failure::plain(format!(
            "{}: already holds a volume ({kind}); --force overwrites it",
            device.display(),
        ))),
        Content::Failed(why) => Err(Failure::plain(why)),
        Content::Known(_) | Content::Unknown => Ok(()),
    }
}

/// A number after -d is mkfs.f2fs's debug level, unless a file has that name.
fn prepare(from: &Path, volume: &Path, even: bool) -> Result<fill::Filling, Failure> {
    let text = from.to_string_lossy();
    if text.bytes().all(|byte| byte.is_ascii_digit()) && !from.exists() {
        let why = "-d takes the directory or archive that fills the volume; debug levels are not supported";
        return Err(Failure::plain(format!("-d {text}: {why}")));
    }
    fill::prepare(from, volume, even)
}

/// Options of mkfs.f2fs that steadfs does not implement are refused.
fn refuse(args: &FormatF2fs) -> Result<(), Failure> {
    let refused = &args.refused;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let has_alias = |path: &&PathBuf| path.display().to_string().contains('@') && !path.exists();
    let alias = args.devices.iter().find(has_alias);
    let all = [
        (
            "-c",
            !args.devices.is_empty() && (args.from_dir.is_some() || args.fit.is_some()),
            String::new(),
            "a volume on several devices is filled afterwards, by steadfs cp -o device=",
        ),
        (
            "-c",
            alias.is_some(),
            text(&alias.map(|path| path.display().to_string())),
            "device aliases are not supported",
        ),
        (
            "-m",
            refused.zoned,
            String::new(),
            "zoned devices are not supported",
        ),
        (
            "-S",
            refused.sparse,
            String::new(),
            "Android's sparse images are not written",
        ),
        (
            "-H",
            refused.hint.is_some(),
            text(&refused.hint),
            "write hints are not supported",
        ),
        (
            "-g",
            refused.defaults.is_some(),
            text(&refused.defaults),
            "give features with -O in place of such defaults, and -w and -R",
        ),
        (
            "-a",
            args.heap.as_deref().is_some_and(|value| value != "0"),
            text(&args.heap),
            "heap-based allocation is not supported; 0 is the default",
        ),
        (
            "-b",
            args.block_size
                .as_deref()
                .is_some_and(|text| size::parse(text, 1) != Ok(BLOCK_SIZE)),
            text(&args.block_size),
            "f2fs volumes have blocks of 4096 bytes",
        ),
    ];
    match all.into_iter().find(|(_, given, ..)| *given) {
        None => Ok(()),
        Some((letter, _, value, why)) => {
            let given = format!("{letter} {value}");
            Err(Failure::plain(format!("{}: {why}", given.trim_end())))
        }
    }
}

fn options(args: &FormatF2fs) -> Result<F2fsFormatOptions, Failure> {
    let time = match args.timestamp {
        Some(-1) => None,
        Some(secs) if secs < 0 => {
            let why = "needs seconds since 1970, or -1 for the present";
            return Err(Failure::plain(format!("-T {secs}: {why}")));
        }
        Some(secs) => Some(secs),
        None => fill::epoch()?.map(|time| time.secs),
    };
    let mut options = F2fsFormatOptions {
        label: args.label.clone().unwrap_or_default(),
        overprovision: args.overprovision.filter(|percent| *percent != 0.0),
        large_nat_bitmap: args.extended_node_bitmap,
        sector_size: args.sector_size,
        discard: !args.nodiscard,
        // mkfs.f2fs's default, by the C library: under fakeroot(1) it is root.
        root_owner: (getuid().as_raw(), getgid().as_raw()),
        checkpoint_version: args.fixed_version.then_some(FIXED_VERSION),
        time,
        other_devices: args.devices.clone(),
        ..F2fsFormatOptions::default()
    };
    set(args, &mut options).map_err(Failure::plain)?;
    Ok(options)
}

fn set(args: &FormatF2fs, options: &mut F2fsFormatOptions) -> Result<(), F2fsFormatError> {
    for kind in &args.kind {
        match kind.trim_start_matches('=') {
            "f2fs" => {}
            "0" => options.discard = false,
            "1" => options.discard = true,
            other => {
                let why = format!("{other} is not f2fs, 1 or 0");
                return Err(F2fsFormatError::Option {
                    option: "-t".to_owned(),
                    why,
                });
            }
        }
    }
    if let Some(count) = args.segments_per_section {
        options.segments_per_section = count;
    }
    if let Some(count) = args.sections_per_zone {
        options.sections_per_zone = count;
    }
    if let Some(owner) = &args.root_owner {
        options.set_root_owner(owner)?;
    }
    if let Some(text) = &args.uuid {
        options.set_uuid(text)?;
    }
    for list in &args.features {
        options.set_features(list)?;
    }
    if let Some(text) = &args.casefold {
        options.set_encoding(text)?;
    }
    for list in &args.cold_extensions {
        options.add_cold(list);
    }
    for list in &args.hot_extensions {
        options.add_hot(list);
    }
    Ok(())
}

fn print_report(path: &Path, report: &F2fsFormatReport) -> Result<(), Failure> {
    for note in &report.notes {
        say(format_args!("steadfs: {note}"));
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
