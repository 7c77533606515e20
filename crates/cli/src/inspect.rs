//! `steadfs inspect`.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Serialize;
use steadfs::image::{Partition, Table};
use steadfs::tools::{printable_json, printable_text};
use steadfs::{Options, VolumeDevice};

use crate::args;
use crate::failure::{Failure, code};
use crate::json::text;
use crate::output::print;
use crate::partition;
use crate::sandbox;

/// A partition table in a JSON document.
#[derive(Serialize)]
struct Disk<'d> {
    image: Cow<'d, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_hex: Option<String>,
    scheme: &'d str,
    flaw: Option<&'d str>,
    partitions: Vec<Part<'d>>,
}

#[derive(Serialize)]
struct Part<'d> {
    number: u32,
    start: Option<u64>,
    size: u64,
    #[serde(rename = "type")]
    kind: &'d str,
    name: &'d str,
    content: Option<&'d str>,
    is_volume: bool,
    label: &'d str,
}

impl<'d> Disk<'d> {
    fn new(image: &'d Path, table: &'d Table) -> Self {
        let (image, image_hex) = text(image.as_os_str().as_bytes());
        let part = |part: &'d Partition| Part {
            number: part.number,
            start: table
                .has_places
                .then(|| part.start.saturating_add(table.base)),
            size: part.bytes,
            kind: &part.kind,
            name: &part.name,
            content: part.holds.as_deref(),
            is_volume: part.is_volume,
            label: &part.label,
        };
        Self {
            image,
            image_hex,
            scheme: table.scheme,
            flaw: table.flaw.as_deref(),
            partitions: table.partitions.iter().map(part).collect(),
        }
    }
}

fn show_partitions(image: &Path, table: &Table, json: bool) -> Result<(), Failure> {
    if !json {
        let shown = format!("{} {table}", image.display());
        return print(|out| writeln!(out, "{}", printable_text(&shown)));
    }
    let disk = Disk::new(image, table);
    let json = serde_json::to_string_pretty(&disk).map_err(Failure::plain)?;
    print(|out| writeln!(out, "{}", printable_json(&json)))
}

pub fn run(args: &args::Inspect) -> Result<(), Failure> {
    if !args.open.keys.is_empty() {
        let why = "what inspect shows is not encrypted: leave out --key-file";
        return Err(Failure::new(code::USAGE, why));
    }
    let (volume, list) = partition::resolve(
        &args.volume,
        &args.open.options.join(","),
        args.open.sandbox,
    )?;
    let mut options = Options::parse_to_read(&list).map_err(Failure::plain)?;
    let contained = sandbox::is_on(args.open.sandbox)?;
    if contained {
        sandbox::adapt(&mut options)?;
    }
    let device = VolumeDevice::open_salvage(&volume, &options).map_err(Failure::plain)?;
    if contained {
        sandbox::report_missing(&sandbox::enter(false)?);
    }
    if args.partitions {
        let table = device.partitions().map_err(Failure::plain)?;
        return show_partitions(&volume, &table, args.json);
    }
    let inspection = device.inspect().map_err(Failure::plain)?;
    if args.json {
        let json = serde_json::to_string_pretty(&inspection).map_err(Failure::plain)?;
        print(|out| writeln!(out, "{}", printable_json(&json)))
    } else {
        print(|out| writeln!(out, "{}", printable_text(&inspection.to_string())))
    }
}
