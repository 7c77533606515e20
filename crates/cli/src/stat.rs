//! `steadfs stat` of a mount: its statistics; of files on volumes see `files`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::args;
use crate::control_file;
use crate::failure::{Failure, code};
use crate::files;
use crate::output::print;
use crate::umount::{Mount, at, look_up};

/// Parts of a mount with counters beside those of the queue; ext4 and f2fs have one of the last two.
const PARTS: [&str; 4] = ["fuse", "cache", "jbd2", "f2fs"];

pub fn run(args: &args::Stat) -> Result<(), Failure> {
    let mounts: Result<Vec<Option<Mount>>, Failure> = args.places.iter().map(mounted).collect();
    let mounts = mounts?;
    if mounts.iter().all(Option::is_none) {
        return files::stat(args);
    }
    for (mount, place) in mounts.iter().zip(&args.places) {
        let mount = mount.as_ref().ok_or_else(|| {
            let place = place.display();
            Failure::new(
                code::USAGE,
                format!("{place}: is no mount point as the others are"),
            )
        })?;
        show(mount, args.json)?;
    }
    Ok(())
}

/// The mount at this mount point.
fn mounted(place: &OsString) -> Result<Option<Mount>, Failure> {
    let real = Path::new(place).canonicalize().ok();
    let Some(path) = real.filter(|path| path.is_dir()) else {
        return Ok(None);
    };
    Ok(look_up(&path)?.filter(|mount| mount.mountpoint == path))
}

/// A control file's content, if the volume has it.
fn read(mount: &Mount, name: &str) -> Result<Option<String>, Failure> {
    let folder = mount.mountpoint.join(".steadfs");
    match control_file::read(&folder.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if folder.exists() {
                return Ok(None);
            }
            let hint = "no control files: mounted with nocontrol?";
            Err(at(&mount.mountpoint, &io::Error::new(error.kind(), hint)))
        }
        Err(error) => Err(at(&mount.mountpoint, &error)),
    }
}

fn parsed(mount: &Mount, name: &str) -> Result<Option<Value>, Failure> {
    let Some(text) = read(mount, name)? else {
        return Ok(None);
    };
    let value = serde_json::from_str(&text);
    value
        .map(Some)
        .map_err(|error| Failure::plain(format!("{name}: {error}")))
}

fn show(mount: &Mount, as_json: bool) -> Result<(), Failure> {
    let options = read(mount, "options")?.unwrap_or_default();
    let queue = parsed(mount, "io/stats.json")?.unwrap_or_default();
    if as_json {
        let mut all = json!({
            "mountpoint": mount.mountpoint.to_string_lossy(),
            "source": mount.source.to_string_lossy(),
            "options": options.trim(),
            "io": queue,
        });
        for part in PARTS {
            if let Some(value) = parsed(mount, &format!("{part}/stats.json"))? {
                all[part] = value;
            }
        }
        let text = serde_json::to_string_pretty(&all).map_err(Failure::plain)?;
        return print(|out| writeln!(out, "{text}"));
    }
    let mut pages = Vec::new();
    for (title, file) in [("journal", "jbd2/info"), ("f2fs", "f2fs/status")] {
        if let Some(page) = read(mount, file)? {
            pages.push((title, page));
        }
    }
    print(|out| {
        let (point, source) = (mount.mountpoint.display(), mount.source.display());
        writeln!(out, "{point}: {source}")?;
        writeln!(out, "options: {}\n", options.trim())?;
        show_queue(out, &queue)?;
        show_groups(out, &queue)?;
        for (title, page) in &pages {
            writeln!(out, "\n{title}:\n{}", page.trim_end())?;
        }
        Ok(())
    })
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A time with three significant digits, and its unit.
fn time(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{:.1}us", nanos as f64 / 1e3),
        10_000..1_000_000 => format!("{}us", nanos / 1000),
        1_000_000..100_000_000 => format!("{:.1}ms", nanos as f64 / 1e6),
        100_000_000..10_000_000_000 => format!("{}ms", nanos / 1_000_000),
        _ => format!("{}s", nanos / 1_000_000_000),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes}"),
        10_240..10_485_760 => format!("{}K", bytes >> 10),
        10_485_760..10_737_418_240 => format!("{}M", bytes >> 20),
        _ => format!("{}G", bytes >> 30),
    }
}

fn show_queue(out: &mut dyn Write, queue: &Value) -> io::Result<()> {
    writeln!(
        out,
        "queue: {}, depth {}; {} queued, {} held for their submitters, {} in the device",
        queue["scheduler"].as_str().unwrap_or("?"),
        queue["depth"],
        queue["queued"],
        queue["held"],
        queue["in_flight"]
    )?;
    writeln!(
        out,
        "  {} merged into others, {} flushes shared with others",
        queue["merged"], queue["flushes_joined"]
    )?;
    let ahead = &queue["read_ahead"];
    writeln!(
        out,
        "  {} read ahead: {} used, {} dropped, {} kept ({} bytes)",
        ahead["started"], ahead["used"], ahead["dropped"], ahead["kept"], ahead["bytes"]
    )?;
    let boosts = &queue["boosts"];
    writeln!(
        out,
        "  boost: {} raised by {} places ({} bytes, {} of them along with others), {} already in the \
         device, {} already as urgent",
        boosts["raised"],
        boosts["positions_gained"],
        boosts["bytes"],
        boosts["collateral_bytes"],
        boosts["already_dispatched"],
        boosts["already_urgent"]
    )?;
    writeln!(
        out,
        "  {:13} {:>9} {:>7} {:>7} {:>9}  {:>24}  {:>24}",
        "operation",
        "count",
        "bytes",
        "errors",
        "requests",
        "queued p50/p99/max",
        "device p50/p99/max"
    )?;
    for (name, op) in queue["ops"].as_object().into_iter().flatten() {
        if number(&op["count"]) == 0 {
            continue;
        }
        let times = |of: &Value| {
            let of = ["p50", "p99", "max"].map(|what| time(number(&of[what])));
            of.join("/")
        };
        writeln!(
            out,
            "  {name:13} {:>9} {:>7} {:>7} {:>9}  {:>24}  {:>24}",
            number(&op["count"]),
            size(number(&op["bytes"])),
            number(&op["errors"]),
            number(&op["requests"]),
            times(&op["queue_wait"]),
            times(&op["device"])
        )?;
    }
    Ok(())
}

fn show_groups(out: &mut dyn Write, queue: &Value) -> io::Result<()> {
    writeln!(out, "groups:")?;
    for group in queue["groups"].as_array().into_iter().flatten() {
        let path = match group["path"].as_str() {
            Some(path) => path.to_owned(),
            None => format!("group {}", group["group"]),
        };
        writeln!(
            out,
            "  {path} weight {}: {} requests, {} read, {} written, {} of it boosted",
            group["weight"],
            group["requests"],
            size(number(&group["read"])),
            size(number(&group["written"])),
            size(number(&group["boosted"]))
        )?;
        let classes = group["latency"].as_array().into_iter().flatten();
        let classes = classes.map(|class| {
            let end = number(&class[0]).saturating_mul(1000);
            format!("<{} {}", time(end), class[1])
        });
        writeln!(out, "    {}", classes.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_short() {
        let times = [0, 1500, 64_000, 1_500_000, 150_000_000, 12_000_000_000];
        let shown = times.map(time);
        assert_eq!(shown, ["0.0us", "1.5us", "64us", "1.5ms", "150ms", "12s"]);
        assert_eq!(
            [100, 20_480, 20 << 20, 20 << 30].map(size),
            ["100", "20K", "20M", "20G"]
        );
    }

    #[test]
    fn groups_have_lines() {
        let queue = json!({"groups": [
            {"group": 3, "path": "/a", "weight": 20, "requests": 2, "read": 0, "written": 8192,
             "boosted": 4096, "latency": [[64, 1], [128, 1]]},
            {"group": 0, "path": null, "weight": null, "requests": 0, "read": 0, "written": 0,
             "boosted": 0, "latency": []}]});
        let mut out = Vec::new();
        show_groups(&mut out, &queue).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "groups:\n  /a weight 20: 2 requests, 0 read, 8192 written, 4096 of it boosted\n    \
             <64us 1, <128us 1\n  group 0 weight null: 0 requests, 0 read, 0 written, 0 of it boosted\n    \n"
        );
    }
}
