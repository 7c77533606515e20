//! Commands and options of the laboratory.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Experiments and crash tests with the real file-system code on simulated devices.
#[derive(Debug, Parser)]
#[command(
    name = "steadfs-lab",
    bin_name = "steadfs lab",
    version,
    max_term_width = 100
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Crash(Crash),
    Faults(Faults),
    /// Follow one operation through the crates.
    #[command(subcommand)]
    Trace(Trace),
    /// f2fs checkpoint_merge: fsync of a directory while a cgroup of low weight does the same.
    CheckpointMerge(Experiment),
    /// f2fs max_victim_search: a full volume is overwritten; how many segments GC examines to choose a victim.
    GcVictims(Experiment),
    /// ext4 async_checkpoint: fs_mark's seven ways to make files durable, with log space reclaimed in advance.
    AsyncCheckpoint(Experiment),
    /// Boost: fsync of data that the flusher has queued, beside background writes (ext4 with CFQ's rules and others).
    UrgentWriteback(Experiment),
    /// All experiments, each on its own device.
    All(AllExperiments),
}

/// Options of `all`.
#[derive(Debug, clap::Args)]
pub struct AllExperiments {
    #[command(flatten)]
    pub how: Experiment,
    /// Write one self-contained HTML page with tables and charts.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Options of every experiment.
#[derive(Debug, clap::Args)]
pub struct Experiment {
    /// Device model: sdhc-2013, sdhc-2013-by-command, ufs-2016, ufs-2021, nvme-2019, or a parameter file; each experiment has its default.
    #[arg(long, value_name = "FILE")]
    pub device: Option<PathBuf>,
    /// Run with this many seeds (10, with --quick 3).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: Option<u64>,
    /// Fewer seeds and less work: a smoke test.
    #[arg(long)]
    pub quick: bool,
    /// A smaller run, in simulation and in real time: a FUSE mount of the simulated device, threads, cgroups.
    #[arg(long)]
    pub real: bool,
    /// Print the report as JSON, times in nanoseconds.
    #[arg(long)]
    pub json: bool,
    /// Write charts (SVG) to this directory, which is created.
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
}

/// Operations that can be traced.
#[derive(Debug, Subcommand)]
pub enum Trace {
    Fsync(TraceFsync),
}

/// One fsync: its locks, waits and I/O in virtual time, each with its crate; every run prints the same.
#[derive(Debug, clap::Args)]
pub struct TraceFsync {
    /// The file system: ext4 or f2fs.
    #[arg(long, value_name = "KIND", default_value = "ext4", value_parser = ["ext4", "f2fs"])]
    pub fs: String,
    /// What is synced: a file that grew (append), a file that was overwritten (overwrite), or a directory.
    #[arg(long, value_name = "WHAT", default_value = "append", value_parser = ["append", "overwrite", "directory"])]
    pub of: String,
    /// Device model: sdhc-2013, sdhc-2013-by-command, ufs-2016, ufs-2021, nvme-2019, or a parameter file.
    #[arg(long, value_name = "FILE", default_value = "ufs-2021")]
    pub device: PathBuf,
    /// Seed of the random number generator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Inject faults: EIO, ENOSPC, latency and lost FLUSHes; and cut the power after them.
///
/// The exit code is 1 if steadfs is at fault. Data that a device lost after it acknowledged a FLUSH is reported as the
/// device's fault.
#[derive(Debug, clap::Args)]
pub struct Faults {
    /// Test only this file system.
    #[arg(long, value_name = "KIND", value_parser = ["ext4", "f2fs"])]
    pub fs: Option<String>,
    /// Inject only these kinds of faults, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["errors", "space", "latency", "lost-flush", "reads"])]
    pub kinds: Vec<String>,
    /// Seed of the random number generator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of random programs per volume, in addition to every short program.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub seeds: u64,
    /// Stop each kind of fault after this number of distinct images; 0 runs every program.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub budget: usize,
    /// Test only volumes whose name contains this text.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub subject: String,
    /// Directory for failing cases.
    #[arg(long, value_name = "DIR", default_value = "fault-cases")]
    pub out: PathBuf,
}

/// Explore crashes: run programs, cut the power at every point, recover, check.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Crash {
    /// Options of the explorer; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<String>,
}
