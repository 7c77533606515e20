//! Runs every arm of a plan with every seed, on all processors, and combines the results, independently of the order in
//! which runs end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use steadfs_rt::{Mutex, Rank, spawn};

use super::acts::{why_figure_not_compared, why_not_compared};
use super::plan::{Attempt, Cell, Error, Figure, Plan, Role, Run, Sample, Source, Unit};
use super::report::{ArmReport, CellReport, FigureReport, Measure, Report};
use super::statistics::{Estimate, percentile};
use super::timeline::{Depths, Timeline};

type Slot = Mutex<Option<Result<Sample, String>>>;

/// The runs to do, and their results.
struct Work {
    jobs: Vec<(Run, Attempt)>,
    next: AtomicUsize,
    results: Vec<Slot>,
}

impl Work {
    fn help(&self) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((run, attempt)) = self.jobs.get(at) else {
                return;
            };
            let result = run(*attempt);
            *self.results[at].lock() = Some(result);
        }
    }
}

/// Runs all jobs on `workers` threads. Returns the results in the order of the jobs.
pub(super) fn run_all(jobs: Vec<(Run, Attempt)>, workers: usize) -> Vec<Result<Sample, String>> {
    let results = jobs.iter().map(|_| Mutex::new(Rank::Leaf, None)).collect();
    let work = Arc::new(Work {
        jobs,
        next: AtomicUsize::new(0),
        results,
    });
    let helpers: Vec<_> = (0..workers)
        .map(|_| {
            let work = Arc::clone(&work);
            spawn("experiment", move || work.help())
        })
        .collect();
    helpers.into_iter().for_each(|helper| helper.join());
    let taken = work.results.iter().map(|slot| {
        let result = slot.lock().take();
        result.expect("every job was done")
    });
    taken.collect()
}

/// Runs a plan with seeds 1 to `seeds`.
///
/// # Errors
/// A run failed, a volume was corrupt, or arms of a cell left different content.
pub fn run(plan: &Plan, seeds: u64) -> Result<Report, Error> {
    let arms = plan.cells.iter().flat_map(|cell| &cell.arms);
    let arms = arms.filter(|arm| arm.is_run());
    let mut jobs: Vec<_> = arms
        .flat_map(|arm| (1..=seeds).map(|seed| (Arc::clone(&arm.run), Attempt::simulated(seed))))
        .collect();
    let (shown, step) = &plan.timeline;
    let step = *step;
    let shown = plan.cells.iter().find(|cell| cell.name == *shown);
    let arms = shown.iter().flat_map(|cell| &cell.arms);
    for arm in arms.filter(|arm| arm.is_run()) {
        let sampled = Attempt {
            sampled: Some(step),
            ..Attempt::simulated(1)
        };
        jobs.push((Arc::clone(&arm.run), sampled));
    }
    let mut samples = run_all(jobs, steadfs_rt::cpu::processors()).into_iter();
    let mut cells = Vec::new();
    let mut simulated = 0;
    for cell in &plan.cells {
        let (report, time) = cell_report(cell, seeds, &mut samples)?;
        cells.push(report);
        simulated += time;
    }
    let timeline = match shown {
        Some(cell) => Some(timeline(cell, step, &mut samples)?),
        None => None,
    };
    let figures = plan
        .figures
        .iter()
        .map(|f| figure_report(f, &cells))
        .collect();
    Ok(Report {
        experiment: plan.name.to_owned(),
        title: plan.title.to_owned(),
        source: "simulated",
        device: plan.device.clone(),
        seeds,
        scale: plan.scale.clone(),
        simulated_ns: simulated,
        cells,
        figures,
        notes: plan.notes.clone(),
        timeline,
        real: None,
    })
}

/// Queue depths of a cell's arms: sampled in runs of their own, so that sampling does not affect the results.
fn timeline(
    cell: &Cell,
    step: Duration,
    samples: &mut dyn Iterator<Item = Result<Sample, String>>,
) -> Result<Timeline, Error> {
    let mut arms: Vec<(String, Vec<Depths>)> = Vec::new();
    for arm in &cell.arms {
        if let Some(like) = &arm.like {
            let same = arms.iter().find(|(name, _)| name == like);
            let (_, depths) = same.expect("an earlier arm").clone();
            arms.push((arm.name.clone(), depths));
            continue;
        }
        let sample = samples.next().expect("one for each arm");
        let sample = sample.map_err(|why| Error::Run {
            cell: cell.name.clone(),
            arm: arm.name.clone(),
            seed: 1,
            why,
        })?;
        arms.push((arm.name.clone(), sample.timeline));
    }
    Ok(Timeline {
        cell: cell.name.clone(),
        step_ns: u64::try_from(step.as_nanos()).unwrap_or(u64::MAX),
        arms,
    })
}

pub(super) fn cell_report(
    cell: &Cell,
    seeds: u64,
    samples: &mut dyn Iterator<Item = Result<Sample, String>>,
) -> Result<(CellReport, u64), Error> {
    let mut arms: Vec<ArmReport> = Vec::new();
    let mut contents: Option<(String, Vec<u64>)> = None;
    let mut simulated = 0;
    for arm in &cell.arms {
        if let Some(like) = &arm.like {
            let same = arms.iter().find(|known| known.name == *like);
            arms.push(ArmReport {
                name: arm.name.clone(),
                like: Some(like.clone()),
                ..same.expect("an earlier arm").clone()
            });
            continue;
        }
        let mut of_arm = Vec::new();
        for seed in 1..=seeds {
            let sample = samples.next().expect("one for each arm and seed");
            of_arm.push(sample.map_err(|why| Error::Run {
                cell: cell.name.clone(),
                arm: arm.name.clone(),
                seed,
                why,
            })?);
        }
        simulated += of_arm.iter().map(|sample| sample.simulated).sum::<u64>();
        let content: Vec<u64> = of_arm.iter().map(|sample| sample.content).collect();
        let (first, expected) = contents.get_or_insert_with(|| (arm.name.clone(), content.clone()));
        let differs = expected.iter().zip(&content).position(|(a, b)| a != b);
        if let Some(at) = differs.filter(|_| cell.same_content) {
            return Err(Error::Content {
                cell: cell.name.clone(),
                first: first.clone(),
                arm: arm.name.clone(),
                seed: at as u64 + 1,
            });
        }
        arms.push(ArmReport {
            name: arm.name.clone(),
            like: None,
            measures: measures(&of_arm),
            traces: of_arm.iter().map(|sample| sample.trace).collect(),
        });
    }
    let report = CellReport {
        name: cell.name.clone(),
        about: cell.about.clone(),
        not_compared: why_not_compared(cell, &arms),
        arms,
    };
    Ok((report, simulated))
}

/// Estimates of each value of the samples, and of p50, p99, max and mean of each latency.
fn measures(samples: &[Sample]) -> Vec<Measure> {
    let mut order: Vec<(String, Unit)> = Vec::new();
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut add = |name: String, unit: Unit, value: f64| {
        let known = values.entry(name.clone()).or_default();
        if known.is_empty() {
            order.push((name, unit));
        }
        known.push(value);
    };
    for sample in samples {
        for (name, unit, value) in &sample.values {
            add((*name).to_owned(), *unit, *value);
        }
        for (name, nanos) in &sample.latencies {
            let mut sorted = nanos.clone();
            sorted.sort_unstable();
            let sum: u128 = sorted.iter().map(|n| u128::from(*n)).sum();
            let mean = sum as f64 / sorted.len().max(1) as f64;
            add(format!("{name} mean"), Unit::Nanos, mean);
            for (word, rank) in [("p50", 500), ("p99", 990), ("max", 1000)] {
                let value = percentile(&sorted, rank) as f64;
                add(format!("{name} {word}"), Unit::Nanos, value);
            }
        }
    }
    let measure = |(name, unit): (String, Unit)| {
        let seeds = values.remove(&name).expect("each name has its values");
        Measure {
            name,
            unit,
            estimate: Estimate::of(&seeds),
            seeds,
        }
    };
    order.into_iter().map(measure).collect()
}

fn figure_report(figure: &Figure, cells: &[CellReport]) -> FigureReport {
    let values = |cell: &str, arm: &str, value: &str| {
        let cell = cells.iter().find(|known| known.name == cell);
        let arm = cell.and_then(|cell| cell.arms.iter().find(|known| known.name == arm));
        let measure = arm.and_then(|arm| arm.measures.iter().find(|m| m.name == value));
        measure.map(|measure| measure.seeds.clone())
    };
    let estimate = match &figure.ours {
        Source::Value { cell, arm, value } => values(cell, arm, value).map(|seeds| {
            let scaled: Vec<f64> = seeds.iter().map(|seed| seed / figure.scale).collect();
            Estimate::of(&scaled)
        }),
        Source::Across {
            before,
            after,
            value,
        } => values(&before[0], &before[1], value)
            .zip(values(&after[0], &after[1], value))
            .map(|(before, after)| Estimate::of_ratios(&before, &after)),
        Source::Ratio {
            cell,
            before,
            after,
            value,
        } => values(cell, before, value)
            .zip(values(cell, after, value))
            .map(|(before, after)| Estimate::of_ratios(&before, &after)),
    };
    let ours = estimate.unwrap_or_else(|| panic!("{:?} is not measured", figure.ours));
    let not_compared = why_figure_not_compared(&figure.ours, cells);
    let ours = Some(ours).filter(|_| not_compared.is_none());
    let deviation = ours.as_ref().map(|ours| ours.mean / figure.published - 1.0);
    let is_off = deviation.is_some_and(|deviation| match figure.role {
        Role::Aim => deviation > 0.0,
        _ => deviation.abs() > 0.25,
    });
    FigureReport {
        what: figure.what.clone(),
        published: figure.published,
        ours,
        deviation,
        predicted: figure.role == Role::Predicted,
        aim: figure.role == Role::Aim,
        why: figure.why.clone().filter(|_| is_off),
        not_compared,
    }
}
