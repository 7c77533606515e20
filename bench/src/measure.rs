//! Time, CPU time and memory, as measured from outside; statistics of samples.

use std::fs;
use std::time::{Duration, Instant};

use crate::Result;

/// Runs `work`; returns its duration in seconds, too.
pub fn seconds<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let done = work()?;
    Ok((done, start.elapsed().as_secs_f64()))
}

/// The resources that a server has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU time, user and system.
    pub cpu: Duration,
    /// Largest resident memory, in bytes.
    pub peak: u64,
}

impl Usage {
    /// Of the process `pid` and its children: a steadfs server is a child of the process that mounts.
    pub fn of(pid: u32) -> Result<Self> {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        let mut all = Self::of_one(pid)?;
        for child in children.split_ascii_whitespace() {
            let child = Self::of_one(child.parse()?)?;
            all.cpu += child.cpu;
            all.peak += child.peak;
        }
        Ok(all)
    }

    fn of_one(pid: u32) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // Fields 14 and 15. The second field, the name, is in parentheses and may contain any character.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u64 = fields
            .split_ascii_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|rest| rest.trim().strip_suffix(" kB"))
            .and_then(|number| number.parse::<u64>().ok());
        Ok(Self {
            cpu: from_ticks(ticks),
            peak: peak.ok_or("no VmHWM in /proc/PID/status")? << 10,
        })
    }

    /// Of two servers, one after the other.
    pub fn then(self, next: Self) -> Self {
        Self {
            cpu: self.cpu + next.cpu,
            peak: self.peak.max(next.peak),
        }
    }
}

/// CPU time of the whole machine: callers, servers, the kernel.
pub fn machine_cpu() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    let first = stat.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq
    let ticks = first
        .split_ascii_whitespace()
        .skip(1)
        .take(7)
        .enumerate()
        .filter(|(n, _)| !matches!(n, 3 | 4))
        .filter_map(|(_, field)| field.parse::<u64>().ok())
        .sum();
    Ok(from_ticks(ticks))
}

fn from_ticks(ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_millis(ticks.saturating_mul(1000) / per_second)
}

/// Drops clean pages, dentries and inodes from the kernel's caches.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    Ok(())
}

/// The value that the given part (0 to 1) of the sorted values does not exceed.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (part * last as f64).round() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(f64::NAN)
}

/// The median of `values`.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_few_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let sorted: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(percentile(&sorted, 0.5), 50.0);
        assert_eq!(percentile(&sorted, 0.99), 99.0);
        assert_eq!(percentile(&sorted, 1.0), 100.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn this_process_uses_memory() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.peak > 1 << 20);
        assert!(machine_cpu().unwrap() > Duration::ZERO);
    }
}
