//! How long each step of a checkpoint took, by name.

use std::fmt;
use std::time::Duration;

use steadfs_rt::{Instant, Mutex, Rank, now};

/// A checkpoint that takes longer is told of.
pub const SLOW: Duration = Duration::from_secs(5);

/// The steps of one checkpoint so far.
#[derive(Clone, Debug)]
pub struct Steps {
    began: Instant,
    last: Instant,
    steps: Vec<(&'static str, Duration)>,
}

impl Steps {
    /// Begins to measure.
    pub fn begin() -> Self {
        let began = now();
        Self {
            began,
            last: began,
            steps: Vec::new(),
        }
    }

    /// The step that ends now.
    pub fn ended(&mut self, name: &'static str) {
        let now = now();
        self.steps.push((name, now.since(self.last)));
        self.last = now;
    }

    /// From the beginning to the end of the last step.
    pub fn total(&self) -> Duration {
        self.last.since(self.began)
    }

    /// The step that took longest.
    pub fn longest(&self) -> Option<(&'static str, Duration)> {
        self.steps.iter().copied().max_by_key(|(_, took)| *took)
    }

    /// What there is to be said of a slow checkpoint: where the time went.
    pub fn warning(&self) -> Option<String> {
        let step = self.longest().map_or("none", |(name, _)| name);
        let total = self.total().as_millis();
        (self.total() >= SLOW)
            .then(|| format!("a checkpoint took {total} ms, most of it in \"{step}\": {self}"))
    }
}

/// What was warned of so far.
pub struct Warnings(Mutex<(u64, String)>);

impl Warnings {
    /// Nothing.
    pub fn new() -> Self {
        Self(Mutex::new(Rank::Leaf, (0, String::new())))
    }

    /// Warns, and keeps it for those who look later.
    pub fn warn(&self, warning: String) {
        tracing::warn!("{warning}");
        let mut state = self.0.lock();
        *state = (state.0 + 1, warning);
    }

    /// How often, and the last one.
    pub fn last(&self) -> Option<(u64, String)> {
        let state = self.0.lock();
        (state.0 > 0).then(|| state.clone())
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
    fn names_and_times() {
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
}
