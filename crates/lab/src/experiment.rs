//! The published experiments on device models: real file-system code, queue and cache, in virtual time.
//!
//! An experiment is a function that returns a [`Plan`]: [`Cell`]s (conditions) with the [`Arm`]s that are compared in
//! each, and the published [`Figure`]s. [`run`] runs every arm with every seed and returns a [`Report`], which is a
//! function of the program, the device and the seeds. Every arm's volume is unmounted, checked and read again; arms
//! that do the same work must leave the same content.
//!
//! Rules against overfitting: all arms of a cell have the same device and load. A device's parameters are calibrated
//! only by figures without contention or without the mechanism, and its file states which. Figures that calibrated
//! nothing are marked as predicted. Nothing is tuned to a result.

mod actors;
mod acts;
mod async_checkpoint;
mod chart;
mod checkpoint_merge;
mod files;
mod gc_victims;
mod html;
mod mounted;
mod plan;
mod queue_chart;
mod real;
mod report;
mod run;
mod statistics;
mod testbed;
mod text;
mod timeline;
mod urgent_writeback;

pub use actors::{Background, PIECE, WRITE_CPU, content, make_file, writer};
pub use acts::Evidence;
pub use files::Files;
pub use html::page;
pub use mounted::{unmount_on_signal, why_no_cgroups};
pub use plan::{
    Arm, Attempt, Cell, Check, Clock, Error, Figure, Plan, Role, Run, Sample, Settings, Source,
    Unit,
};
pub use real::check;
pub use report::{ArmReport, CellReport, FigureReport, Measure, RealReport, RealRow, Report};
pub use run::run;
pub use statistics::{Estimate, percentile};
pub use testbed::{CacheSizes, Cgroup, Mount, Outcome, Testbed, World, prepare, process, run_on};
pub use timeline::{Depths, Timeline};

/// An experiment: its name and the function that returns its plan.
pub type Experiment = (&'static str, fn(&Settings) -> Result<Plan, Error>);

/// Every experiment, in the order of reports.
pub const ALL: &[Experiment] = &[
    ("checkpoint-merge", checkpoint_merge::plan),
    ("gc-victims", gc_victims::plan),
    ("async-checkpoint", async_checkpoint::plan),
    ("urgent-writeback", urgent_writeback::plan),
];

#[cfg(test)]
mod tests;
