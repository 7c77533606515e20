//! The trials of one program: its crashes, its crashes on a failing device, its crashes on a volume that fills up.

use std::path::Path;
use std::time::Duration;

use steadfs_rt::Random;
use steadfs_workload::Program;

use super::explore::{Effort, explore};
use super::free_space::{self, FreeSpace};
use super::record::{Injection, Run, record, record_with};
use super::stats::Stats;
use super::{Failure, Problem, Subject};
use crate::device::{Fault, Log, RequestFilter, Survivors};

/// A trial of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Trial {
    /// Power cuts.
    #[default]
    Crashes,
    /// An error at each request of the device, followed by power cuts. Each request fails once, fails although it was
    /// done, and fails with all later ones; a flush also fails with the loss of everything that it should have made
    /// durable.
    Faults,
    /// A full volume at each allocation, followed by power cuts: the program runs with every number of free blocks,
    /// from none to enough.
    Space,
    /// A device on which some requests take up to 1 s longer; and power cuts.
    Latency,
    /// A device that acknowledges a FLUSH and does not do it; and power cuts. Lost data is the device's fault, and is
    /// counted; the same run without the fault must lose nothing.
    LostFlushes,
}

/// Numbers of free blocks after which a program that still does not fit is given up.
const FREE_SPACE_STEPS: u64 = 160;
/// Number of runs with delays per program.
const SPIKED_RUNS: usize = 4;
/// Numbers of free inodes that are tried: 0 to one less.
const INODES: u64 = 3;

/// Runs a program in every variant of `trial`.
pub fn try_program(
    trial: Trial,
    subject: &Subject,
    program: &Program,
    seed: u64,
    effort: Effort,
    scratch: &Path,
) -> (Stats, Option<Failure>) {
    let mut attempts = Attempts {
        effort,
        seed,
        scratch,
        stats: Stats::default(),
    };
    let result = match trial {
        Trial::Crashes => attempts.crashes(subject, program),
        Trial::Faults => attempts.faults(subject, program),
        Trial::Space => attempts.space(subject, program),
        Trial::Latency => attempts.latency(subject, program),
        Trial::LostFlushes => attempts.lost_flushes(subject, program),
    };
    (attempts.stats, result.err().map(|failure| *failure))
}

/// Runs a program with injected faults and explores its crashes.
///
/// # Errors
/// The problem found.
pub fn try_injection(
    subject: &Subject,
    program: &Program,
    seed: u64,
    injection: &Injection,
    effort: Effort,
    scratch: &Path,
) -> Result<(), Box<Failure>> {
    let mut attempts = Attempts {
        effort,
        seed,
        scratch,
        stats: Stats::default(),
    };
    attempts.one(subject, program, injection).map(drop)
}

struct Attempts<'a> {
    effort: Effort,
    seed: u64,
    scratch: &'a Path,
    stats: Stats,
}

impl Attempts<'_> {
    fn crashes(&mut self, subject: &Subject, program: &Program) -> Result<(), Box<Failure>> {
        self.stats.runs += 1;
        let run = record(subject, program, self.seed)?;
        self.explore(subject, &run)
    }

    fn explore(&mut self, subject: &Subject, run: &Run) -> Result<(), Box<Failure>> {
        self.stats.add_work(subject, run);
        let is_lossy = run.injection.loses_flushes();
        let failures = if is_lossy {
            usize::MAX
        } else {
            self.effort.failures
        };
        let effort = Effort {
            failures,
            ..self.effort
        };
        let (stats, mut failures) = explore(subject, run, effort, self.seed, self.scratch);
        self.stats.add(stats);
        if is_lossy {
            // Whatever the device does, no task may panic, hang or wait forever.
            let all = failures.len();
            failures.retain(|failure| matches!(failure.problem, Problem::Simulation(_)));
            self.stats.lost_by_device += (all - failures.len()) as u64;
        }
        match failures.pop() {
            Some(failure) => Err(Box::new(failure)),
            None => Ok(()),
        }
    }

    fn faults(&mut self, subject: &Subject, program: &Program) -> Result<(), Box<Failure>> {
        let quiet = record(subject, program, self.seed)?;
        let mut all: Vec<(RequestFilter, Fault)> = Vec::new();
        for number in quiet.requests.clone() {
            all.push((RequestFilter::Nth(number), Fault::Fail));
            all.push((RequestFilter::From(number), Fault::Fail));
            all.push((RequestFilter::Nth(number), Fault::Misreport));
        }
        for (number, request) in (0..).zip(quiet.log.flushes()) {
            if quiet.requests.contains(&request) {
                all.push((RequestFilter::NthFlushing(number), Fault::LoseCache));
            }
        }
        let mut random = Random::new(self.seed ^ 0xFA17);
        while all.len() > self.effort.faults {
            all.swap_remove(random.below(all.len()));
        }
        for fault in all {
            self.one(subject, program, &Injection::Faults(vec![fault]))?;
        }
        Ok(())
    }

    fn space(&mut self, subject: &Subject, program: &Program) -> Result<(), Box<Failure>> {
        let start = match self.effort.faults {
            usize::MAX => 0,
            // Some consecutive numbers at a random start.
            _ => Random::new(self.seed ^ 0x5BACE).below(40) as u64,
        };
        let steps = (start..FREE_SPACE_STEPS).map(|blocks| FreeSpace {
            blocks: Some(blocks),
            inodes: None,
        });
        for free_space in steps.take(self.effort.faults) {
            if !self.one(subject, program, &Injection::Space(free_space))? {
                break;
            }
        }
        for inodes in 0..INODES * u64::from(subject.fixed_inodes) {
            let free_space = FreeSpace {
                blocks: None,
                inodes: Some(inodes),
            };
            self.one(subject, program, &Injection::Space(free_space))?;
        }
        Ok(())
    }

    fn latency(&mut self, subject: &Subject, program: &Program) -> Result<(), Box<Failure>> {
        let quiet = record(subject, program, self.seed)?;
        let flushes: Vec<u64> = quiet.log.flushes().collect();
        let mut random = Random::new(self.seed ^ 0x1A7E);
        for _ in 0..SPIKED_RUNS.min(self.effort.faults) {
            let mut spikes = Vec::new();
            for request in quiet.requests.clone() {
                let chance = if flushes.contains(&request) { 512 } else { 128 };
                if random.chance(chance) {
                    let delay = Duration::from_millis(1 << random.below(11));
                    spikes.push((RequestFilter::Nth(request), Fault::Delay(delay)));
                }
            }
            self.stats.with_faults += u64::from(!spikes.is_empty());
            self.one(subject, program, &Injection::Faults(spikes))?;
        }
        Ok(())
    }

    fn lost_flushes(&mut self, subject: &Subject, program: &Program) -> Result<(), Box<Failure>> {
        // The run without faults, for comparison.
        self.crashes(subject, program)?;
        let honest = record(subject, program, self.seed)?;
        let all = (RequestFilter::From(honest.requests.start), Fault::LostFlush);
        self.stats.with_faults += 1;
        self.one(subject, program, &Injection::Faults(vec![all]))
            .map(drop)
    }

    /// One run with faults; returns whether any of them happened.
    fn one(
        &mut self,
        new: &Subject,
        program: &Program,
        injection: &Injection,
    ) -> Result<bool, Box<Failure>> {
        self.stats.runs += 1;
        let with_room;
        let (subject, program) = match injection {
            Injection::None | Injection::Faults(_) => (new, program),
            Injection::Space(free_space) => {
                let filled = free_space::fill(new, program, *free_space);
                let filled = filled.map_err(|problem| failure_of(problem, injection))?;
                let Some(filled) = filled else {
                    return Ok(true);
                };
                with_room = filled;
                (&with_room.0, &with_room.1)
            }
        };
        let Some(run) = record_with(subject, program, self.seed, injection)? else {
            self.stats.undecided += 1;
            return Ok(true);
        };
        self.stats.with_faults += u64::from(run.met);
        self.stats.stopped += u64::from(run.stopped);
        self.explore(subject, &run)?;
        if let Injection::Space(_) = injection {
            free_space::check_freed(new, &last_image(&run.log))
                .map_err(|problem| failure_of(problem, injection))?;
        }
        Ok(run.met)
    }
}

fn failure_of(problem: Problem, injection: &Injection) -> Box<Failure> {
    Box::new(Failure {
        injection: injection.clone(),
        ..Failure::of_run(problem)
    })
}

/// The content at the end of the log, with nothing lost.
fn last_image(log: &Log) -> crate::device::Image {
    log.at(log.len()).image(&Survivors::All)
}
