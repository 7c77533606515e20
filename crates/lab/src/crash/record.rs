//! Runs one program and judges the run itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfs_block::Device;
use steadfs_rt::{Random, sim};
use steadfs_vfs::FileSystem;
use steadfs_workload::{
    History, Marker, Op, Program, Recording, State, Step, Value, observe, run_program,
};

use super::subject::Subject;
use super::{Complaint, Failure};
use crate::device::{Fault, Log, Model, SimDevice, Which};

/// A program that was run.
pub struct Run {
    /// What the device did.
    pub log: Log,
    /// What the program did.
    pub history: History,
    /// The first cut at which the start is durable.
    pub first_cut: usize,
    /// The last marker before each cut: one for each position of the log.
    pub marks: Vec<u64>,
}

/// The device that a seed means: how fast, with which atomic unit, and with which delays.
pub fn device_model(seed: u64) -> Model {
    let mut random = Random::new(seed ^ 0xD0_57);
    let base = match random.below(4) {
        0 => Model::default(),
        1 => Model::rotating(),
        _ => Model::solid_state(),
    };
    Model {
        // Tearing at 512 bytes includes what a coarser device may leave.
        atomic_unit: 512,
        fua: random.chance(700),
        discard_granularity: random.chance(512).then_some(4096),
        seed,
        ..base
    }
}

/// Puts now and then a long delay into a device's way.
fn add_spikes(device: &SimDevice, seed: u64) {
    let mut random = Random::new(seed ^ 0x5B1CE);
    if random.chance(256) {
        let mut at = 0;
        for _ in 0..20 {
            at += 1 + random.below(30) as u64;
            let delay = Duration::from_millis(1 << random.below(10));
            device.inject(Which::Nth(at), Fault::Delay(delay));
        }
    }
}

/// A marker that puts its numbers into the device's log.
pub(super) fn marker(device: &SimDevice) -> Marker {
    let device = device.clone();
    let next = AtomicU64::new(1);
    Arc::new(move || {
        let mark = next.fetch_add(1, Ordering::Relaxed);
        device.mark(mark);
        mark
    })
}

/// What comes out of the simulation.
struct Raw {
    log: Log,
    base: State,
    recording: Recording,
    live: steadfs_workload::Observed,
    looked_at: u64,
}

/// Runs `program` on a fresh volume in a simulation of `seed`, unmounts it, and judges results, the
/// tree at the end and the unmounted volume.
///
/// # Errors
/// What is wrong already without a crash.
pub fn record(subject: &Subject, program: &Program, seed: u64) -> Result<Run, Box<Failure>> {
    record_with(subject, program, seed, Vec::new())
}

/// The same with a device that goes wrong as `faults` say.
///
/// # Errors
/// What is wrong already without a crash.
pub fn record_with(
    subject: &Subject,
    program: &Program,
    seed: u64,
    faults: Vec<(Which, Fault)>,
) -> Result<Run, Box<Failure>> {
    let fail = |complaint| Box::new(Failure::of_run(complaint));
    let raw = {
        let (subject, program) = (subject.clone(), program.clone());
        sim::try_run(sim::Config::new(seed), move || {
            simulate(&subject, &program, seed, faults)
        })
    };
    let raw = raw
        .map_err(|failure| fail(Complaint::Simulation(failure)))?
        .value
        .map_err(fail)?;
    let mut history = History::of(&raw.base, &raw.recording, subject.format)
        .map_err(|divergence| fail(Complaint::Result(divergence)))?;
    history
        .check_live(&raw.live)
        .map_err(|violation| fail(Complaint::Live(violation)))?;
    history.looked_at(raw.looked_at);
    let marks = marks_of(&raw.log);
    let first_cut = marks.partition_point(|mark| *mark < raw.recording.ready);
    if let Some(check) = &subject.check {
        let after = raw
            .log
            .at(raw.log.len())
            .image(&crate::device::Survivors::All);
        let findings = check(&after);
        if !findings.is_empty() {
            return Err(fail(Complaint::Damaged {
                judge: super::subject::CHECKER,
                findings,
            }));
        }
    }
    Ok(Run {
        log: raw.log,
        history,
        first_cut,
        marks,
    })
}

/// The part that runs inside the simulation.
fn simulate(
    subject: &Subject,
    program: &Program,
    seed: u64,
    faults: Vec<(Which, Fault)>,
) -> Result<Raw, Complaint> {
    let device = SimDevice::new(&subject.image, device_model(seed));
    for (which, fault) in faults {
        device.inject(which, fault);
    }
    add_spikes(&device, seed);
    let marker = marker(&device);
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    let fs = (subject.open)(shared).map_err(Complaint::Open)?;
    let base = State::of(&observe(fs.as_ref()).map_err(Complaint::Unreadable)?);
    let mut recording = run_program(&fs, program, &marker).map_err(Complaint::Sync)?;
    let looked_at = marker();
    let live = observe(fs.as_ref()).map_err(Complaint::Unreadable)?;
    recording.tasks.push(vec![unmount(&fs, &marker)?]);
    Ok(Raw {
        log: device.log(),
        base,
        recording,
        live,
        looked_at,
    })
}

/// A clean unmount acknowledges everything, as a sync by one more task does.
fn unmount(fs: &Arc<dyn FileSystem>, marker: &Marker) -> Result<Step, Complaint> {
    let started = marker();
    fs.unmount().map_err(Complaint::Sync)?;
    Ok(Step {
        op: Op::Sync,
        result: Ok(Value::None),
        started,
        ended: marker(),
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
