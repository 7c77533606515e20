//! `steadfs top`: what the mounts do, and which tasks wait for what; on a terminal, or as JSON for programs.
//!
//! Problem: a server may hang, and a call to it does not return. Rule: each mount is read by a thread of its own
//! ([`sampler`]), and this thread waits at most [`PATIENCE`] for all of them; a mount that has not answered is shown as
//! silent, and its thread is asked again when it has returned. Counters are those of the control files, which count
//! since the server started: what is shown is the difference of two readings ([`rates`]).

mod rates;
mod sampler;
mod screen;
mod terminal;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use steadfs_rt::{Instant, now, wall_clock};

use crate::args;
use crate::failure::{Failure, code};
use crate::output::print;
use crate::umount::{Mount, find, mounts};
use rates::{Recent, Row};
use sampler::{Answer, Sampler};

/// How long the servers may take to answer. A healthy one that is busy takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn run(args: &args::Top) -> Result<(), Failure> {
    let on_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !args.json && !on_terminal {
        let why =
            "top: standard input or output is not a terminal (--json prints a line for each mount)";
        return Err(Failure::new(code::USAGE, why));
    }
    let mut watched = Watched::begin(&args.mountpoints)?;
    match args.json {
        true => print_lines(&mut watched, args),
        false => terminal::run(&mut watched, args),
    }
}

/// Prints one JSON object for each mount and interval.
fn print_lines(watched: &mut Watched, args: &args::Top) -> Result<(), Failure> {
    let mut left = args.count;
    watched.read()?;
    while left != Some(0) {
        watched.sleep(args.interval);
        let rows = watched.read()?;
        print(|out| {
            for row in &rows {
                serde_json::to_writer(&mut *out, row)?;
                writeln!(out)?;
            }
            Ok(())
        })?;
        if watched.is_over() {
            break;
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// The mounts that are shown.
struct Watched {
    /// Those named on the command line; all if it is empty.
    named: Vec<PathBuf>,
    /// By the kernel's number of the mount, which is that of another one only after this one is gone.
    mounts: BTreeMap<u64, Watch>,
    began: Instant,
}

struct Watch {
    mount: Mount,
    sampler: Sampler,
    last: Option<Answer>,
    recent: Recent,
}

impl Watched {
    fn begin(named: &[PathBuf]) -> Result<Self, Failure> {
        let named: Result<Vec<_>, Failure> = named
            .iter()
            .map(|path| Ok(find(path)?.mountpoint))
            .collect();
        Ok(Self {
            named: named?,
            mounts: BTreeMap::new(),
            began: now(),
        })
    }

    /// Sleeps until `interval` after the last reading began.
    fn sleep(&self, interval: Duration) {
        steadfs_rt::sleep(interval.saturating_sub(self.began.elapsed()));
    }

    /// Whether all named mounts are unmounted.
    fn is_over(&self) -> bool {
        !self.named.is_empty() && self.mounts.is_empty()
    }

    /// Reads all mounts; returns what they did since the last reading. A mount that is gone has a last row.
    fn read(&mut self) -> Result<Vec<Row>, Failure> {
        self.began = now();
        let present = mounts()?;
        let wanted =
            |mount: &Mount| self.named.is_empty() || self.named.contains(&mount.mountpoint);
        let present: Vec<_> = present.into_iter().filter(wanted).collect();
        let mut rows = Vec::new();
        let is_present = |watch: &Watch| {
            let same =
                |mount: &Mount| mount.id == watch.mount.id && mount.source == watch.mount.source;
            present.iter().any(same)
        };
        let all = std::mem::take(&mut self.mounts).into_iter();
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.partition(|(_, watch)| is_present(watch));
        self.mounts = kept;
        rows.extend(gone.into_values().map(|watch| Row::unmounted(&watch.mount)));
        for mount in present {
            self.mounts.entry(mount.id).or_insert_with(|| Watch {
                sampler: Sampler::start(&mount.mountpoint),
                mount,
                last: None,
                recent: Recent::default(),
            });
        }
        for watch in self.mounts.values_mut() {
            watch.sampler.ask();
        }
        let deadline = now() + PATIENCE;
        for watch in self.mounts.values_mut() {
            let answer = watch.sampler.answer(deadline);
            rows.push(Row::of(
                &watch.mount,
                watch.last.as_ref(),
                &answer,
                &mut watch.recent,
            ));
            watch.last = Some(answer);
        }
        Ok(rows)
    }
}

/// The time of day in UTC.
fn time() -> String {
    steadfs::tools::utc(wall_clock(), false)
}
