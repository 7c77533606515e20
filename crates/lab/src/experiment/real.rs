//! Experiments in real time, compared with their simulation.

use super::mounted::why_no_cgroups;
use super::plan::{Attempt, Check, Clock, Error, Plan, Sample, Unit};
use super::report::{CellReport, RealReport, RealRow};
use super::run::{cell_report, run_all};
use super::statistics::Estimate;

/// Maximum relative difference of the two ratios.
const AGREE: f64 = 0.2;

/// Runs the checks of a plan with seeds 1 to `seeds`: in simulation, on all processors, and then in real time, one run
/// at a time.
///
/// # Errors
/// A run failed, or a mount is not possible.
pub fn check(plan: &Plan, seeds: u64) -> Result<RealReport, Error> {
    let lacking = why_no_cgroups();
    let attempt = |seed, place| Attempt {
        place,
        grouped: lacking.is_none(),
        ..Attempt::simulated(seed)
    };
    let simulated = of_world(plan, seeds, |seed| attempt(seed, Clock::Simulation))?;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().filter(|word| !word.is_empty());
    let load = load.unwrap_or("unknown").to_owned();
    let real = of_world(plan, seeds, |seed| attempt(seed, Clock::Mount))?;
    let rows = plan
        .checks
        .iter()
        .flat_map(|check| rows(check, &simulated, &real));
    Ok(RealReport {
        seeds,
        processors: steadfs_rt::cpu::processors(),
        load,
        groups: match lacking {
            None => "real cgroups (blkio, version 1)".to_owned(),
            Some(why) => {
                format!(
                    "no cgroups ({why}): all processes were in one group, in simulation and in real time"
                )
            }
        },
        rows: rows.collect(),
    })
}

/// The arms that are checked, on one clock.
fn of_world(
    plan: &Plan,
    seeds: u64,
    attempt: impl Fn(u64) -> Attempt,
) -> Result<Vec<CellReport>, Error> {
    let mut cells = Vec::new();
    for cell in &plan.cells {
        let wanted = |arm: &str| {
            let mut checks = plan.checks.iter();
            checks.any(|check| check.cell == cell.name && check.arms.iter().any(|a| a == arm))
        };
        let mut cell = cell.clone();
        cell.arms.retain(|arm| wanted(&arm.name));
        cell.evidence.retain(|evidence| wanted(&evidence.arm));
        // In real time no two runs are identical, and the arm that this one equals may not be among these.
        for arm in &mut cell.arms {
            arm.like = None;
        }
        if cell.arms.is_empty() {
            continue;
        }
        let jobs: Vec<_> = cell
            .arms
            .iter()
            .flat_map(|arm| (1..=seeds).map(|seed| (arm.run.clone(), attempt(seed))))
            .collect();
        let workers = match attempt(1).place {
            Clock::Simulation => steadfs_rt::cpu::processors(),
            // Concurrent runs would disturb the measurement.
            Clock::Mount => 1,
        };
        let mut samples = run_all(jobs, workers).into_iter();
        let samples: &mut dyn Iterator<Item = Result<Sample, String>> = &mut samples;
        cells.push(cell_report(&cell, seeds, samples)?.0);
    }
    Ok(cells)
}

fn seeds_of<'a>(cells: &'a [CellReport], check: &Check, arm: usize) -> (Unit, &'a [f64]) {
    let cell = cells.iter().find(|cell| cell.name == check.cell);
    let arm = cell.and_then(|cell| cell.arms.iter().find(|a| a.name == check.arms[arm]));
    let measure = arm.and_then(|arm| arm.measures.iter().find(|m| m.name == check.value));
    let measure = measure.unwrap_or_else(|| panic!("{check:?} is not measured"));
    (measure.unit, &measure.seeds)
}

/// Both arms' values and their ratio, on both clocks.
fn rows(check: &Check, simulated: &[CellReport], real: &[CellReport]) -> Vec<RealRow> {
    let mut rows = Vec::new();
    for arm in 0..2 {
        let (unit, ours) = seeds_of(simulated, check, arm);
        let (_, theirs) = seeds_of(real, check, arm);
        let what = format!("{}, {}: {}", check.cell, check.arms[arm], check.value);
        rows.push(row(what, unit, Estimate::of(ours), Estimate::of(theirs)));
    }
    let ratio = |cells| {
        let (before, after) = (seeds_of(cells, check, 0).1, seeds_of(cells, check, 1).1);
        Estimate::of_ratios(before, after)
    };
    let what = format!(
        "{}: {}, {} to {}",
        check.cell, check.value, check.arms[1], check.arms[0]
    );
    let mut both = row(what, Unit::Ratio, ratio(simulated), ratio(real));
    let not_compared = |cells: &[CellReport]| {
        let cell = cells.iter().find(|cell| cell.name == check.cell);
        cell.and_then(|cell| cell.not_compared.clone())
    };
    match not_compared(simulated).or_else(|| not_compared(real)) {
        Some(why) => both.why = Some(why),
        None => {
            let agrees = (both.ratio - 1.0).abs() <= AGREE;
            both.agrees = Some(agrees);
            both.why = (!agrees).then(|| check.why.to_owned());
        }
    }
    rows.push(both);
    rows
}

fn row(what: String, unit: Unit, simulated: Estimate, real: Estimate) -> RealRow {
    RealRow {
        what,
        unit,
        ratio: match simulated.mean == real.mean {
            true => 1.0,
            false => real.mean / simulated.mean,
        },
        simulated,
        real,
        agrees: None,
        why: None,
    }
}
