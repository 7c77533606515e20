//! The crashes of one run.

use std::collections::{BTreeMap, BTreeSet};

use steadfs_rt::{Random, sim};
use steadfs_workload::{Observed, observe};

use super::by_tool::{Replay, replayed_by_tool};
use super::record::{Injection, Run};
use super::stats::Stats;
use super::subject::Subject;
use super::{CrashPath, Failure, Problem, run_until_idle};
use crate::device::{Event, Fault, Image, Log, Model, RequestFilter, Survivors};

/// Limits of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Approximate number of images per run.
    pub images: usize,
    /// Share of recoveries that are cut, too, of 1024.
    pub nested: u16,
    /// Share of recoveries that also run on a failing device, of 1024.
    pub failing: u16,
    /// Share of recovered images that the format's own tool judges, of 1024.
    pub by_tool: u16,
    /// Share of crash images whose log the tool replays as well, of 1024; four times as many with fast commits.
    pub replays: u16,
    /// Number of failures after which a run is given up.
    pub failures: usize,
    /// Number of crash positions of a run with faults.
    pub cuts: usize,
    /// Number of faults per program.
    pub faults: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            images: 200,
            nested: 32,
            failing: 24,
            by_tool: 4,
            replays: 16,
            failures: 1,
            cuts: 4,
            faults: usize::MAX,
        }
    }
}

/// An image left by one or several crashes.
struct Crashed {
    image: Image,
    path: CrashPath,
    /// The last marker before each crash that leaves it.
    marks: BTreeSet<u64>,
    /// The event that the first of them preceded.
    before: &'static str,
}

/// The result of a recovery.
struct Recovered {
    seen: Observed,
    after: Image,
    /// The device's log, and the number of its events when the volume was mounted.
    log: Option<(Log, usize)>,
}

/// Explores the crashes of a run.
pub fn explore(
    subject: &Subject,
    run: &Run,
    effort: Effort,
    seed: u64,
    scratch: &std::path::Path,
) -> (Stats, Vec<Failure>) {
    let mut explorer = Explorer {
        subject,
        run,
        effort,
        random: Random::new(seed),
        scratch,
        stats: Stats::default(),
        failures: Vec::new(),
    };
    let images = explorer.first_crashes();
    explorer.judge_all(images, 2);
    (explorer.stats, explorer.failures)
}

/// Recovers the image that `path` leads to and judges it, to replay a failure. If the run differs now, so that this
/// crash does not exist, nothing is judged.
///
/// # Errors
/// The problem found.
pub fn judge_one(
    subject: &Subject,
    run: &Run,
    path: &CrashPath,
    scratch: &std::path::Path,
) -> Result<(), Box<Failure>> {
    let Some((first, rest)) = path.crashes.split_first() else {
        return Ok(());
    };
    let Some(mut image) = image_of(&run.log, first) else {
        return Ok(());
    };
    for crash in rest {
        let recovered = recover(subject, &image, true).map_err(|problem| {
            Box::new(Failure {
                path: path.clone(),
                problem,
                detail: String::new(),
                crashed: Some(image.clone()),
                injection: run.injection.clone(),
            })
        })?;
        let (log, _) = recovered.log.expect("the recovery kept a log");
        match image_of(&log, crash) {
            Some(next) => image = next,
            None => return Ok(()),
        }
    }
    let effort = Effort {
        by_tool: 1024,
        replays: 1024,
        nested: 0,
        failing: 0,
        ..Effort::default()
    };
    let mut explorer = Explorer {
        subject,
        run,
        effort,
        random: Random::new(0),
        scratch,
        stats: Stats::default(),
        failures: Vec::new(),
    };
    let crashed = Crashed {
        image,
        path: path.clone(),
        marks: BTreeSet::from([run.marks[first.0]]),
        before: "",
    };
    explorer.judge_all(vec![crashed], 0);
    match explorer.failures.pop() {
        Some(failure) => Err(Box::new(failure)),
        None => Ok(()),
    }
}

/// The image of a crash, if the log has this position.
fn image_of(log: &Log, (at, survivors): &(usize, Survivors)) -> Option<Image> {
    if *at > log.len() {
        return None;
    }
    let cut = log.at(*at);
    let fits = match survivors {
        Survivors::None | Survivors::All | Survivors::Seeded(_) => true,
        Survivors::Changes(flags) => flags.len() == cut.changes(),
        Survivors::Units(flags) => flags.len() == cut.units(),
    };
    fits.then(|| cut.image(survivors))
}

struct Explorer<'a> {
    subject: &'a Subject,
    run: &'a Run,
    effort: Effort,
    random: Random,
    scratch: &'a std::path::Path,
    stats: Stats,
    failures: Vec<Failure>,
}

impl Explorer<'_> {
    /// The distinct images of crashes of the run itself.
    fn first_crashes(&mut self) -> Vec<Crashed> {
        let log = &self.run.log;
        let base = log.base();
        let first = self.run.first_cut;
        let mut cuts: Vec<usize> = log.last_cuts();
        cuts.retain(|cut| *cut >= first);
        let (mut each, mut more) = (4, 0);
        if self.run.injection == Injection::None {
            each = (self.effort.images * 3 / 4 / cuts.len().max(1)).clamp(4, 256);
            more = self.effort.images / 4 / 4;
        } else {
            // Always the end: acknowledged data is there without a power cut, too.
            while cuts.len() > self.effort.cuts.max(1) {
                cuts.remove(self.random.below(cuts.len() - 1));
            }
        }
        let between = log.len() - first + 1;
        let mut all = BTreeMap::new();
        let some: Vec<usize> = (0..more)
            .map(|_| first + self.random.below(between))
            .collect();
        let cuts = cuts.into_iter().map(|cut| (cut, each));
        for (cut, limit) in cuts.chain(some.into_iter().map(|cut| (cut, 4))) {
            let seed = self.random.next_u64();
            let mark = self.run.marks[cut];
            self.build(
                log,
                cut,
                (limit, seed),
                &CrashPath::default(),
                &base,
                &mut |print, crashed| {
                    let known: &mut Crashed = all.entry(print).or_insert(crashed);
                    known.marks.insert(mark);
                },
            );
        }
        all.into_values().collect()
    }

    /// Builds the images of one cut.
    fn build(
        &mut self,
        log: &Log,
        at: usize,
        (limit, seed): (usize, u64),
        path: &CrashPath,
        base: &Image,
        found: &mut dyn FnMut(u64, Crashed),
    ) {
        self.stats.cuts += 1;
        let cut = log.at(at);
        for survivors in cut.choices(limit.max(2), seed) {
            self.stats.images += 1;
            let image = cut.image(&survivors);
            let mut path = path.clone();
            path.crashes.push((at, survivors));
            let crashed = Crashed {
                path,
                marks: BTreeSet::new(),
                before: event_name(log.events().get(at)),
                image,
            };
            found(crashed.image.fingerprint(base), crashed);
        }
    }

    fn judge_all(&mut self, images: Vec<Crashed>, depth: usize) {
        for crashed in images {
            if self.failures.len() >= self.effort.failures {
                return;
            }
            self.note(&crashed);
            if depth > 0 && self.random.chance(self.effort.failing) {
                self.recover_on_failing_devices(&crashed);
            }
            let nest = depth > 0 && self.random.chance(self.effort.nested);
            match recover(self.subject, &crashed.image, nest) {
                Err(problem) => self.fail(&crashed, problem),
                Ok(recovered) => {
                    if let Err(problem) = self.judge(&crashed, &recovered) {
                        self.fail(&crashed, problem);
                    } else if let Some((log, opened)) = recovered.log {
                        let again = self.crashes_of_recovery(&crashed, &log, opened);
                        self.judge_all(again, depth - 1);
                    }
                }
            }
        }
    }

    fn note(&mut self, crashed: &Crashed) {
        self.stats.recoveries += 1;
        if crashed.path.crashes.len() > 1 {
            self.stats.nested += 1;
        }
        let print = crashed.image.fingerprint(&self.subject.image);
        // Subjects of the same size could share a fingerprint.
        let salt = self
            .subject
            .name
            .bytes()
            .fold(0u64, |sum, byte| sum.rotate_left(7) ^ u64::from(byte));
        self.stats.distinct.insert(print ^ salt);
        *self.stats.before.entry(crashed.before).or_default() += 1;
        let last = crashed.path.crashes.last();
        let survivors = last.map_or("none", |(_, survivors)| survivors_name(survivors));
        *self.stats.survivors.entry(survivors).or_default() += 1;
    }

    fn judge(&mut self, crashed: &Crashed, recovered: &Recovered) -> Result<(), Problem> {
        for mark in &crashed.marks {
            self.stats.verdicts += 1;
            let verdict = self.run.history.check(&recovered.seen, *mark);
            self.stats.rolled += verdict.map_err(Problem::Oracle)?.rolled as u64;
        }
        // A recovery on a failing device may have stopped the volume, too.
        let after = &recovered.after;
        let by_tool = !self.run.stopped && self.subject.tool.is_some_and(|tool| tool.judges(after));
        let second = self.random.chance(self.effort.by_tool) && by_tool;
        let judged = self.subject.judge(after, second, self.scratch);
        let (asked, verdict) = judged.expect("the tool runs and the scratch directory is writable");
        self.stats.checked += u64::from(self.subject.check.is_some());
        self.stats.by_tool += u64::from(asked);
        verdict?;
        let share = self.subject.tool_replays.share(self.effort.replays);
        if !by_tool || !self.random.chance(share) {
            return Ok(());
        }
        let observe = |image: &Image| recover(self.subject, image, false).map(|left| left.seen);
        let (image, seen) = (&crashed.image, &recovered.seen);
        let replayed = replayed_by_tool(self.subject, image, seen, self.scratch, observe)
            .expect("the tool runs and the scratch directory is writable");
        match replayed {
            Replay::Unasked => {}
            Replay::Refused => self.stats.not_replayed += 1,
            Replay::Done(verdict) => {
                self.stats.replayed += 1;
                verdict?;
            }
        }
        Ok(())
    }

    /// Recovers an image on devices that fail at some request: a recovery without the fault must find everything.
    fn recover_on_failing_devices(&mut self, crashed: &Crashed) {
        for left in failing_recoveries(self.subject, &crashed.image, &mut self.random) {
            self.stats.recoveries += 1;
            self.stats.retried += 1;
            let recovered = left.and_then(|left| recover(self.subject, &left, false));
            let verdict = recovered.and_then(|recovered| self.judge(crashed, &recovered));
            if let Err(problem) = verdict {
                self.fail(crashed, problem);
                let failure = self.failures.last_mut().expect("just kept");
                failure
                    .detail
                    .push_str("\nbefore, a recovery ran on a failing device");
                return;
            }
        }
    }

    /// A sample of crashes during a recovery.
    fn crashes_of_recovery(&mut self, crashed: &Crashed, log: &Log, opened: usize) -> Vec<Crashed> {
        let base = log.base();
        let mut cuts: Vec<_> = log
            .last_cuts()
            .into_iter()
            .filter(|cut| *cut <= opened)
            .collect();
        while cuts.len() > 6 {
            cuts.swap_remove(self.random.below(cuts.len()));
        }
        cuts.push(self.random.below(opened + 1));
        let mut all = BTreeMap::new();
        for cut in cuts {
            let seed = self.random.next_u64();
            self.build(
                log,
                cut,
                (6, seed),
                &crashed.path,
                &base,
                &mut |print, mut again| {
                    again.marks = crashed.marks.clone();
                    all.entry(print).or_insert(again);
                },
            );
        }
        all.into_values().collect()
    }

    fn fail(&mut self, crashed: &Crashed, problem: Problem) {
        let first = crashed.path.crashes.first().expect("a crash");
        let mut detail = self.run.log.at(first.0).describe(&first.1);
        // The judges' findings help, whichever check failed.
        if let Ok(recovered) = recover(self.subject, &crashed.image, false)
            && let Ok((_, Err(judged))) = self.subject.judge(&recovered.after, true, self.scratch)
        {
            detail.push_str(&format!("\nafter recovery, {judged}"));
        }
        self.failures.push(Failure {
            path: crashed.path.clone(),
            problem,
            detail,
            crashed: Some(crashed.image.clone()),
            injection: self.run.injection.clone(),
        });
    }
}

fn event_name(event: Option<&Event>) -> &'static str {
    match event {
        None => "the end",
        Some(Event::Issued(_)) => "a request",
        Some(Event::Preflushed { .. }) => "the end of a preflush",
        Some(Event::Completed { durable: true, .. }) => "a durable completion",
        Some(Event::Completed { durable: false, .. }) => "a completion",
        Some(Event::Failed { .. } | Event::FlushFailed { .. }) => "an error",
        Some(Event::FlushIssued { .. }) => "a flush",
        Some(Event::FlushCompleted { .. }) => "the end of a flush",
        Some(Event::CacheLost) => "a loss of the cache",
        Some(Event::Mark(_)) => "an operation's start or end",
    }
}

fn survivors_name(survivors: &Survivors) -> &'static str {
    match survivors {
        Survivors::None => "nothing",
        Survivors::All => "everything",
        Survivors::Seeded(_) => "a random part, torn",
        Survivors::Changes(_) => "a choice of whole changes",
        Survivors::Units(_) => "a choice of units",
    }
}

/// Mounts an image, reads everything, unmounts.
fn recover(subject: &Subject, image: &Image, log: bool) -> Result<Recovered, Problem> {
    let (subject, image) = (subject.clone(), image.clone());
    let outcome = sim::try_run(sim::Config::new(1), move || {
        run_until_idle(|| {
            let model = Model {
                log,
                ..Model::default()
            };
            let (device, fs) = subject.open_on(&image, model, None);
            let fs = fs.map_err(Problem::Open)?;
            let opened = if log { device.log().len() } else { 0 };
            let seen = observe(fs.as_ref()).map_err(Problem::Unreadable);
            // Unmount in any case: it ends the tasks. The first problem is reported.
            let unmounted = fs.unmount().map_err(Problem::Sync);
            let seen = seen?;
            unmounted?;
            Ok(Recovered {
                seen,
                after: device.content(),
                log: log.then(|| (device.log(), opened)),
            })
        })
    });
    outcome.map_err(Problem::Simulation)?.value
}

/// Recovers an image on devices that fail at one request, or from one request on; returns the image that each leaves at
/// its end, and after a power cut before it.
fn failing_recoveries(
    subject: &Subject,
    image: &Image,
    random: &mut Random,
) -> Vec<Result<Image, Problem>> {
    let (requests, flushes) = match recover_with(subject, image, None) {
        Ok(quiet) => (quiet.requests.max(1), quiet.flushes.max(1)),
        Err(problem) => return vec![Err(problem)],
    };
    let any = random.next_u64() % requests;
    let flush = random.next_u64() % flushes;
    let faults = [
        (
            RequestFilter::Nth(random.next_u64() % requests),
            Fault::Fail,
        ),
        (
            RequestFilter::From(random.next_u64() % requests),
            Fault::Fail,
        ),
        (RequestFilter::Nth(any), Fault::Misreport),
        (RequestFilter::NthFlushing(flush), Fault::LoseCache),
    ];
    let mut all = Vec::new();
    for fault in faults {
        match recover_with(subject, image, Some(fault)) {
            Ok(left) => {
                let cut = left.log.at(random.below(left.log.len() + 1));
                all.push(Ok(cut.image(&Survivors::Seeded(random.next_u64()))));
                all.push(Ok(left.content));
            }
            Err(problem) => all.push(Err(problem)),
        }
    }
    all
}

/// A recovery on a device that may have failed.
struct RecoveryRun {
    content: Image,
    log: Log,
    requests: u64,
    flushes: u64,
}

fn recover_with(
    subject: &Subject,
    image: &Image,
    fault: Option<(RequestFilter, Fault)>,
) -> Result<RecoveryRun, Problem> {
    let (subject, image) = (subject.clone(), image.clone());
    let outcome = sim::try_run(sim::Config::new(1), move || {
        run_until_idle(|| {
            let (device, opened) = subject.open_on(&image, Model::default(), fault);
            let requests = device.counts().total();
            if let Ok(fs) = &opened {
                // The result does not matter: the device fails. (Reading would change access times.)
                let _unmounted = fs.unmount();
            }
            let (content, log) = (device.content(), device.log());
            let flushes = log.flushes().count() as u64;
            RecoveryRun {
                content,
                log,
                requests,
                flushes,
            }
        })
    });
    outcome
        .map(|outcome| outcome.value)
        .map_err(Problem::Simulation)
}
