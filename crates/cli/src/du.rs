//! `du`.

use std::io::Write;
use std::path::Path;

use serde::Serialize;
use steadfs::tools::{DuOptions, ToolError, Usage, owner_cx};

use crate::args;
use crate::failure::Failure;
use crate::json::{List, Place};
use crate::output::{escapes, print, shown, stream};
use crate::report::Reporter;
use crate::stop::Stop;
use crate::trees::{failure, for_each_path, for_each_volume, groups, prefix};
use crate::volume::Access;

/// A line's size, path and end.
fn line(args: &args::Du, bytes: u64, path: &[u8]) -> Vec<u8> {
    let end = if args.null { b'\0' } else { b'\n' };
    let path = shown(path, escapes() && !args.null);
    let mut line = args.units.show(bytes).into_bytes();
    line.push(b'\t');
    line.extend_from_slice(&path);
    line.push(end);
    line
}

#[derive(Serialize)]
struct Used<'u> {
    #[serde(flatten)]
    place: Place<'u>,
    size: u64,
}

pub fn run(args: &args::Du) -> Result<(), Failure> {
    let options = DuOptions {
        all: args.all,
        apparent: args.apparent_size || args.units.bytes,
        separate: args.separate_dirs,
        max_depth: match args.summarize {
            true => 0,
            false => args.max_depth.unwrap_or(usize::MAX),
        },
        count_links: args.count_links,
    };
    let groups = groups(&args.places, &args.open)?;
    let several = groups.iter().map(|group| group.paths.len()).sum::<usize>() > 1;
    let stop = Stop::on_signals()?;
    let mut total: u64 = 0;
    let mut list = List::default();
    let done = for_each_volume(&groups, &args.open, Access::Read, |fs, group| {
        let cx = owner_cx();
        let prefix = prefix(group);
        let mut usage = Usage::new(fs, &cx, options, several);
        let work = |out: &mut dyn Write| {
            let failed = for_each_path(group, |path| {
                let mut reporter = Reporter {
                    image: &group.image,
                    stop: &stop,
                };
                usage.count(path, &mut reporter, &mut |path, bytes| {
                    let written = match args.json {
                        true => {
                            let place = Place::new(&group.image, path);
                            list.add(out, &Used { place, size: bytes })
                        }
                        false => out.write_all(&line(args, bytes, &[&prefix, path].concat())),
                    };
                    written.map_err(|source| ToolError::Host {
                        path: Path::new("standard output").to_owned(),
                        source,
                    })
                })?;
                Ok(0)
            })?;
            Ok(failed + usage.failures)
        };
        let done = stream(work, |error| failure(group, &stop, &error));
        total = total.saturating_add(usage.total);
        done
    });
    if done.as_ref().is_err_and(Failure::is_signal) {
        return done;
    }
    if args.json {
        print(|out| list.end(out))?;
    } else if args.total {
        print(|out| out.write_all(&line(args, total, b"total")))?;
    }
    done
}
