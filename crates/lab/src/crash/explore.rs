//! The crashes of one run.

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::FixedSet;
use steadfs_rt::{Random, sim};
use steadfs_workload::{Observed, observe};

use super::record::{Injection, Run};
use super::subject::Subject;
use super::{CrashPath, Failure, Problem, run_until_idle};
use crate::device::{Event, Fault, Image, Log, Model, RequestFilter, Survivors};

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Images built of one run, about.
    pub images: usize,
    /// Recoveries out of 1024 that are cut as well.
    pub nested: u16,
    /// Recoveries out of 1024 that are tried on a failing device before.
    pub failing: u16,
    /// Recovered images out of 1024 that the format's own tool is asked about.
    pub by_tool: u16,
    /// Failures after which a run is left.
    pub failures: usize,
    /// Of a run in injection, positions that crashes are tried at.
    pub cuts: usize,
    /// Troubles tried of one program.
    pub troubles: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            images: 200,
            nested: 32,
            failing: 24,
            by_tool: 4,
            failures: 1,
            cuts: 4,
            troubles: usize::MAX,
        }
    }
}

/// How much was tried.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Programs run.
    pub runs: u64,
    /// Of these, runs in which the device failed or the volume was full.
    pub troubled: u64,
    /// Of these, runs whose volume stopped.
    pub stopped: u64,
    /// Runs with so many failures that nothing can be said about them.
    pub undecided: u64,
    /// Positions that crashes were tried at.
    pub cuts: u64,
    /// Images built.
    pub images: u64,
    /// Images that were recovered.
    pub recoveries: u64,
    /// Of these, images left by a crash during a recovery.
    pub nested: u64,
    /// Of these, images left by a recovery on a device that failed.
    pub retried: u64,
    /// Recovered volumes that our checker was asked about.
    pub checked: u64,
    /// Of these, volumes that the format's own tool was asked about as well.
    pub by_tool: u64,
    /// Verdicts of the oracle: one for each distinct marker of each image.
    pub verdicts: u64,
    /// Files that verdicts found as they were made durable after the last checkpoint.
    pub rolled: u64,
    /// Crashes after which something was missing or damaged because the device had lied.
    pub lost_by_device: u64,
    /// What the volumes did of their own accord in all runs, by subject.
    pub work: BTreeMap<(String, &'static str), u64>,
    /// Recovered images by what the crash came before.
    pub before: BTreeMap<&'static str, u64>,
    /// Recovered images by what survived.
    pub survivors: BTreeMap<&'static str, u64>,
    /// Fingerprints of all images that were recovered.
    pub distinct: FixedSet<u64>,
}

impl Stats {
    /// Adds what a volume did in a run.
    pub fn add_work(&mut self, subject: &Subject, run: &Run) {
        for (what, count) in &run.work {
            let entry = self.work.entry((subject.name.clone(), what));
            *entry.or_default() += count;
        }
    }

    /// What all volumes of a subject did.
    pub fn work_of(&self, subject: &str, what: &'static str) -> u64 {
        let count = self.work.get(&(subject.to_owned(), what));
        count.copied().unwrap_or(0)
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: Stats) {
        self.runs += other.runs;
        self.troubled += other.troubled;
        self.stopped += other.stopped;
        self.undecided += other.undecided;
        self.cuts += other.cuts;
        self.images += other.images;
        self.recoveries += other.recoveries;
        self.nested += other.nested;
        self.retried += other.retried;
        self.checked += other.checked;
        self.by_tool += other.by_tool;
        self.verdicts += other.verdicts;
        self.rolled += other.rolled;
        self.lost_by_device += other.lost_by_device;
        for (what, count) in other.work {
            *self.work.entry(what).or_default() += count;
        }
        for (what, count) in other.before {
            *self.before.entry(what).or_default() += count;
        }
        for (what, count) in other.survivors {
            *self.survivors.entry(what).or_default() += count;
        }
        self.distinct.extend(other.distinct);
    }
}

/// An image that some crashes leave.
struct Crashed {
    image: Image,
    path: CrashPath,
    /// The last marker before each crash that leaves it.
    marks: BTreeSet<u64>,
    /// What the first of them came before.
    before: &'static str,
}

/// What a recovery made of an image.
struct Recovered {
    seen: Observed,
    after: Image,
    /// The device's life, and how many events of it there were when the volume was open.
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

/// Recovers the image that `path` leads to and judges it: for seeing a failure again. Where the run
/// has become another one, such that there is no such crash, nothing is judged.
///
/// # Errors
/// What is wrong.
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
        let (log, _) = recovered.log.expect("a log was asked for");
        match image_of(&log, crash) {
            Some(next) => image = next,
            None => return Ok(()),
        }
    }
    let effort = Effort {
        by_tool: 1024,
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

/// The image of a crash, if the log can have it.
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
            // The end always: what was acknowledged is there without a power cut too.
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
        // Subjects of one size could share a fingerprint.
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
        // A volume that is noted as having errors keeps its orphans on record; e2fsck does not go by
        // that record then, and blames it for each of them.
        let second = self.random.chance(self.effort.by_tool) && !self.run.stopped;
        let judged = self.subject.judge(&recovered.after, second, self.scratch);
        let (asked, verdict) = judged.expect("the tool runs and the scratch directory is writable");
        self.stats.checked += u64::from(self.subject.check.is_some());
        self.stats.by_tool += u64::from(asked);
        verdict
    }

    /// A device that fails at some request while an image is recovered: without it, everything is there.
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
                    .push_str("\nbefore, a recovery met a failing device");
                return;
            }
        }
    }

    /// Some images of crashes while an image was recovered.
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
        // What the judges say helps, whoever complained.
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
        Some(Event::Completed { durable: true, .. }) => "a durable answer",
        Some(Event::Completed { durable: false, .. }) => "an answer",
        Some(Event::Failed { .. } | Event::FlushFailed { .. }) => "an error",
        Some(Event::FlushIssued { .. }) => "a flush",
        Some(Event::FlushCompleted { .. }) => "the end of a flush",
        Some(Event::CacheLost) => "a loss",
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

/// Opens an image, looks at everything, unmounts.
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
            // In any case: its tasks end only so, and the first problem is the one that matters.
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

/// Recovers an image on devices that fail at one request, or from then on: what each of them is left with, at
/// the end and after a power cut on the way there.
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

/// What a recovery did to a device that failed or did not.
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
                // Whatever it says: the device fails. (To look at it would change access times.)
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
