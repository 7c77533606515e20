//! Times of the steps of a checkpoint, and warnings about slow ones.

use std::fmt;
use std::time::Duration;

use steadfs_rt::{Instant, Mutex, Rank, now};

/// A checkpoint, or a wait for one, that takes longer is logged.
pub const SLOW: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Steps {
    began: Instant,
    last: Instant,
    steps: Vec<(&'static str, Duration)>,
}

impl Steps {
    pub fn begin() -> Self {
        let began = now();
        Self {
            began,
            last: began,
            steps: Vec::new(),
        }
    }

    /// A step ends now.
    pub fn ended(&mut self, name: &'static str) {
        let now = now();
        assert!(now >= self.last, "a step ends after the one before");
        self.steps.push((name, now.since(self.last)));
        self.last = now;
    }

    /// Time from the beginning to the end of the last step.
    pub fn total(&self) -> Duration {
        assert!(self.last >= self.began, "a step ends after the beginning");
        self.last.since(self.began)
    }

    pub fn longest(&self) -> Option<(&'static str, Duration)> {
        self.steps.iter().copied().max_by_key(|(_, took)| *took)
    }

    /// The warning about a slow checkpoint, with the time of each step.
    pub fn warning(&self) -> Option<String> {
        let step = self.longest().map_or("none", |(name, _)| name);
        let total = self.total().as_millis();
        (self.total() >= SLOW)
            .then(|| format!("a checkpoint took {total} ms, most of it in \"{step}\": {self}"))
    }
}

/// Interval in which at most one warning is logged.
const QUIET: Duration = Duration::from_secs(1);

/// Warnings of one kind since the mount.
pub struct Warnings(Mutex<Warned>);

#[derive(Default)]
struct Warned {
    count: u64,
    last: String,
    logged: Option<Instant>,
}

impl Warnings {
    pub fn new() -> Self {
        Self(Mutex::new(Rank::Leaf, Warned::default()))
    }

    /// Keeps a warning for `status`, and logs it unless another one was logged within `QUIET`: many tasks may have
    /// waited for the same checkpoint. Returns whether it was logged.
    pub fn warn(&self, warning: String) -> bool {
        let now = now();
        let mut state = self.0.lock();
        let log = state.logged.is_none_or(|at| now.since(at) >= QUIET);
        if log {
            state.logged = Some(now);
        }
        state.count += 1;
        state.last.clone_from(&warning);
        drop(state);
        if log {
            tracing::warn!("{warning}");
        }
        log
    }

    /// The number of warnings, and the last one.
    pub fn last(&self) -> Option<(u64, String)> {
        let state = self.0.lock();
        assert!(
            (state.count > 0) == state.logged.is_some(),
            "the first warning is logged"
        );
        (state.count > 0).then(|| (state.count, state.last.clone()))
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (name, took)) in self.steps.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            let ms = took.as_micros() / 1000;
            let rest = took.as_micros() % 1000 / 100;
            write!(f, "{comma}{name} {ms}.{rest} ms")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_warnings_are_counted_and_few_logged() {
        steadfs_rt::sim::run(steadfs_rt::sim::Config::new(7), || {
            let warnings = Warnings::new();
            let warn = |n: u64| warnings.warn(n.to_string());
            assert_eq!([1, 2, 3].map(warn), [true, false, false]);
            assert_eq!(warnings.last(), Some((3, "3".to_owned())));
            steadfs_rt::sleep(QUIET);
            assert_eq!([4, 5].map(warn), [true, false]);
        });
    }

    #[test]
    fn steps_show_names_and_times() {
        steadfs_rt::sim::run(steadfs_rt::sim::Config::new(7), || {
            let mut steps = Steps::begin();
            steadfs_rt::sleep(Duration::from_micros(1250));
            steps.ended("one");
            steadfs_rt::sleep(Duration::from_millis(20));
            steps.ended("two");
            assert_eq!(steps.longest().unwrap().0, "two");
            assert!(steps.to_string().starts_with("one 1.2 ms, two 20."));
            assert!(steps.total() >= Duration::from_millis(21));
        });
    }

    #[test]
    fn slow_checkpoints_are_warned_of_by_their_longest_step() {
        steadfs_rt::sim::run(steadfs_rt::sim::Config::new(7), || {
            let mut steps = Steps::begin();
            assert_eq!((steps.total(), steps.longest()), (Duration::ZERO, None));
            steadfs_rt::sleep(Duration::from_millis(2000));
            steps.ended("lock");
            steadfs_rt::sleep(Duration::from_millis(2900));
            steps.ended("nodes");
            assert_eq!(steps.warning(), None);
            steadfs_rt::sleep(Duration::from_millis(150));
            steps.ended("pack");
            let warning = steps.warning().unwrap();
            assert!(warning.starts_with("a checkpoint took 505"), "{warning}");
            assert!(
                warning.contains("most of it in \"nodes\": lock 2000."),
                "{warning}"
            );
        });
    }
}
