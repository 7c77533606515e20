//! Runs one program and judges the run itself.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use steadfs_rt::{Mutex, Random, Rank, sim};
use steadfs_vfs::{FileSystem, FsError};
use steadfs_workload::observe::Unreadable;
use steadfs_workload::{
    Histories, Marker, Observed, Op, Program, Recording, State, Step, Tolerance, Value, observe,
    run_program,
};

use super::free_space::{self, FreeCounts, FreeSpace};
use super::subject::{CHECKER, Subject};
use super::{Failure, Problem, run_until_idle};
use crate::device::{Fault, Log, Model, RequestFilter, SimDevice, Survivors};

/// An executed program.
pub struct Run {
    /// The device's log.
    pub log: Log,
    /// The histories that explain the results.
    pub history: Histories,
    /// What was called when, with the unmount as one more task.
    pub recording: Recording,
    /// The first cut to explore: the setup is durable, and the first injected fault has happened, if there is one.
    pub first_cut: usize,
    /// The last marker before each cut, one per position of the log.
    pub marks: Vec<u64>,
    /// The device's requests that were started after the setup was durable.
    pub requests: Range<u64>,
    /// The injected faults.
    pub injection: Injection,
    /// Whether any of them happened.
    pub met: bool,
    /// Whether the volume stopped.
    pub stopped: bool,
    /// Counts of the volume's background work.
    pub work: Vec<(&'static str, u64)>,
}

/// The device of a seed: speed, atomic unit, and delays.
pub fn device_model(seed: u64) -> Model {
    let mut random = Random::new(seed ^ 0xD0_57);
    let base = match random.below(4) {
        0 => Model::default(),
        1 => Model::rotating(),
        _ => Model::solid_state(),
    };
    Model {
        // Tearing at 512 bytes includes the states that a coarser device may leave.
        atomic_unit: 512,
        fua: random.chance(700),
        discard_granularity: random.chance(512).then_some(4096),
        seed,
        ..base
    }
}

/// Adds long delays to a few requests, for a quarter of the seeds.
fn add_spikes(device: &SimDevice, seed: u64) {
    let mut random = Random::new(seed ^ 0x5B1CE);
    if random.chance(256) {
        let mut at = 0;
        for _ in 0..20 {
            at += 1 + random.below(30) as u64;
            let delay = Duration::from_millis(1 << random.below(10));
            device.inject(RequestFilter::Nth(at), Fault::Delay(delay));
        }
    }
}

/// The state at a marker.
struct MarkedMoment {
    /// Number of device requests until then.
    requests: u64,
    /// Free space, if it is recorded.
    left: FreeCounts,
}

/// A marker that writes its number to the device's log and the state to `moments`.
fn marker(
    device: &SimDevice,
    moments: Arc<Mutex<Vec<MarkedMoment>>>,
    observed_from: Option<Arc<dyn FileSystem>>,
) -> Marker {
    let device = device.clone();
    Arc::new(move || {
        let left = observed_from
            .as_deref()
            .map(FreeCounts::of)
            .unwrap_or_default();
        let requests = device.counts().total();
        let mut counted = moments.lock();
        counted.push(MarkedMoment { requests, left });
        let mark = counted.len() as u64;
        drop(counted);
        device.mark(mark);
        mark
    })
}

/// The faults injected into a run, apart from power cuts.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Injection {
    /// None.
    #[default]
    None,
    /// Device requests that fail.
    Faults(Vec<(RequestFilter, Fault)>),
    /// The volume is filled except for this space.
    Space(FreeSpace),
}

impl Injection {
    /// The failures of operations that these faults explain. A lost FLUSH explains none: no caller can notice it.
    fn tolerance(&self) -> Tolerance {
        let is_reported = |(_, fault): &(RequestFilter, Fault)| fault.is_reported();
        match self {
            Self::Faults(faults) if faults.iter().any(is_reported) => Tolerance::DeviceErrors,
            Self::None | Self::Faults(_) => Tolerance::Nothing,
            Self::Space(_) => Tolerance::NoSpace,
        }
    }

    /// Whether the device acknowledges a FLUSH and does not do it.
    pub(super) fn loses_flushes(&self) -> bool {
        let mut faults = self.faults().iter();
        faults.any(|(_, fault)| *fault == Fault::LostFlush)
    }

    fn faults(&self) -> &[(RequestFilter, Fault)] {
        match self {
            Self::Faults(faults) => faults,
            Self::None | Self::Space(_) => &[],
        }
    }
}

/// The result of the simulation.
struct Raw {
    base: State,
    recording: Recording,
    live: Result<Observed, Unreadable>,
    observed_from: u64,
    /// The device's requests that were started after the setup was durable.
    requests: Range<u64>,
    first_failure: Option<usize>,
    work: Vec<(&'static str, u64)>,
}

/// Runs `program` on a fresh volume in a simulation of `seed`, unmounts it, and judges the results, the final tree and
/// the unmounted volume.
///
/// # Errors
/// A problem that occurs without a crash.
pub fn record(subject: &Subject, program: &Program, seed: u64) -> Result<Run, Box<Failure>> {
    let run = record_with(subject, program, seed, &Injection::None)?;
    Ok(run.expect("without failures one history explains everything"))
}

/// The same with injected faults. `None`: too much failed for a verdict.
///
/// # Errors
/// A problem that occurs without a crash.
pub fn record_with(
    subject: &Subject,
    program: &Program,
    seed: u64,
    injection: &Injection,
) -> Result<Option<Run>, Box<Failure>> {
    let mut detail = String::new();
    let fail = |problem, detail: &str| {
        Box::new(Failure {
            injection: injection.clone(),
            detail: detail.to_owned(),
            ..Failure::of_run(problem)
        })
    };
    let (raw, log) = match run_in_simulation(subject, program, seed, injection) {
        // A background task of the volume met the fault before the setup was durable.
        Err(Problem::Sync(error))
            if injection.tolerance() == Tolerance::DeviceErrors && is_device(&error) =>
        {
            return Ok(None);
        }
        ran => ran.map_err(|problem| fail(problem, ""))?,
    };
    for step in raw.recording.tasks.iter().flatten() {
        if let Err(error) = &step.result {
            detail.push_str(&format!("{} failed: {error}\n", step.op));
        }
    }
    let tolerance = match (injection.tolerance(), raw.first_failure) {
        (Tolerance::DeviceErrors, None) => Tolerance::Nothing,
        (tolerance, _) => tolerance,
    };
    let history = Histories::of(&raw.base, &raw.recording, subject.format, tolerance)
        .map_err(|divergence| fail(Problem::Result(divergence), &detail))?;
    let Some(mut history) = history else {
        return Ok(None);
    };
    let stopped = has_stopped(&raw.recording);
    match &raw.live {
        // The state that a volume shows which stopped in the middle of an operation is not specified.
        Ok(_) | Err(Unreadable::Contradiction { .. }) if stopped => {}
        Ok(live) => history
            .check_live(live)
            .map_err(|violation| fail(Problem::Live(violation), &detail))?,
        Err(Unreadable::Failed { error, .. })
            if tolerance == Tolerance::DeviceErrors && is_device(error) => {}
        Err(unreadable) => return Err(fail(Problem::Unreadable(unreadable.clone()), &detail)),
    }
    history.observed_from(raw.observed_from);
    let marks = marks_of(&log);
    let ready = marks.partition_point(|mark| *mark < raw.recording.ready);
    let unmounted = raw.recording.tasks.last().and_then(|task| task.last());
    if unmounted.is_some_and(|step| step.result.is_ok()) {
        check_unmounted(subject, &log).map_err(|problem| fail(problem, &detail))?;
    }
    Ok(Some(Run {
        log,
        history,
        first_cut: ready.max(raw.first_failure.unwrap_or(0)),
        marks,
        requests: raw.requests,
        injection: injection.clone(),
        stopped,
        met: raw.first_failure.is_some() || has_failed(&raw.recording, tolerance),
        work: raw.work,
        recording: raw.recording,
    }))
}

/// Checks the volume after a successful unmount.
fn check_unmounted(subject: &Subject, log: &Log) -> Result<(), Problem> {
    let Some(check) = &subject.check else {
        return Ok(());
    };
    let findings = check(&log.at(log.len()).image(&Survivors::All));
    match findings.is_empty() {
        true => Ok(()),
        false => Err(Problem::Damaged {
            judge: CHECKER,
            findings,
        }),
    }
}

const fn is_device(error: &FsError) -> bool {
    matches!(error, FsError::Io(_)) || is_stop(error)
}

const fn is_stop(error: &FsError) -> bool {
    matches!(error, FsError::ReadOnly) || error.is_stop()
}

fn results(recording: &Recording) -> impl Iterator<Item = &steadfs_vfs::Result<Value>> {
    recording.tasks.iter().flatten().map(|step| &step.result)
}

/// Whether the volume went read-only because of a failure.
fn has_stopped(recording: &Recording) -> bool {
    results(recording).any(|result| result.as_ref().is_err_and(is_stop))
}

/// Whether an operation failed because of the injected faults.
fn has_failed(recording: &Recording, tolerance: Tolerance) -> bool {
    results(recording).any(|result| match tolerance {
        Tolerance::Nothing => false,
        Tolerance::DeviceErrors => result.as_ref().is_err_and(is_device),
        Tolerance::NoSpace => *result == Err(FsError::NoSpace),
    })
}

/// Runs the program in a simulation, which may fail itself (a deadlock, a panic).
fn run_in_simulation(
    subject: &Subject,
    program: &Program,
    seed: u64,
    injection: &Injection,
) -> Result<(Raw, Log), Problem> {
    let (subject, program) = (subject.clone(), program.clone());
    let injection = injection.clone();
    sim::try_run(sim::Config::new(seed), move || {
        run_until_idle(|| simulate(&subject, &program, seed, &injection))
    })
    .map_err(Problem::Simulation)?
    .value
}

/// The part that runs inside the simulation.
fn simulate(
    subject: &Subject,
    program: &Program,
    seed: u64,
    injection: &Injection,
) -> Result<(Raw, Log), Problem> {
    let model = Model {
        atomic_unit: subject.atomic_unit,
        ..device_model(seed)
    };
    let device = SimDevice::with_faults(&subject.image, model, injection.faults().to_vec());
    add_spikes(&device, seed);
    let fs = subject.open_all(&device).map_err(Problem::Open)?;
    let moments = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
    // With several tasks, one may have freed space after another met ENOSPC.
    let alone = program.tasks.len() == 1 && matches!(injection, Injection::Space(_));
    let observed_from = alone.then(|| Arc::clone(&fs));
    let marker = marker(&device, Arc::clone(&moments), observed_from);
    let ran = run_mounted(&fs, program, &marker);
    let work = subject.work.map(|ask| ask(fs.as_ref()));
    // Unmount in any case: it ends the volume's tasks.
    let started = marker();
    let unmounted = fs.unmount();
    let ended = marker();
    let mut raw = ran?;
    if let Err(error) = &unmounted
        && !(injection.tolerance() == Tolerance::DeviceErrors && is_device(error))
    {
        return Err(Problem::Sync(error.clone()));
    }
    // A clean unmount acknowledges everything, like a sync by one more task.
    raw.recording.tasks.push(vec![Step {
        op: Op::Sync,
        result: unmounted.map(|()| Value::None),
        started,
        ended,
    }]);
    let ready = usize::try_from(raw.recording.ready).expect("marks are few");
    let moment = |mark: u64| usize::try_from(mark - 1).expect("marks are few");
    let requests = device.counts().total();
    let moments = std::mem::take(&mut *moments.lock());
    raw.requests = moments[ready - 1].requests..requests;
    if alone {
        let after = |step: &Step| moments[moment(step.ended)].left;
        free_space::check_shortages(&raw.recording.tasks[0], after, subject.format)?;
    }
    raw.first_failure = device.first_failure();
    raw.work = work.unwrap_or_default();
    Ok((raw, device.log()))
}

/// Everything between mount and unmount.
fn run_mounted(
    fs: &Arc<dyn FileSystem>,
    program: &Program,
    marker: &Marker,
) -> Result<Raw, Problem> {
    let base = State::of(&observe(fs.as_ref()).map_err(Problem::Unreadable)?);
    let recording = run_program(fs, program, marker).map_err(Problem::Sync)?;
    let observed_from = marker();
    Ok(Raw {
        base,
        recording,
        live: observe(fs.as_ref()),
        observed_from,
        requests: 0..0,
        first_failure: None,
        work: Vec::new(),
    })
}

/// The last marker before each position of the log; 0 before the first.
pub(super) fn marks_of(log: &Log) -> Vec<u64> {
    let mut marks = Vec::with_capacity(log.len() + 1);
    let mut last = 0;
    marks.push(last);
    for event in log.events() {
        if let crate::device::Event::Mark(mark) = event {
            last = last.max(*mark);
        }
        marks.push(last);
    }
    marks
}
