//! Metrics of a mount in the text format of Prometheus (exposition format 0.0.4), for `.steadfs/metrics`.
//!
//! Problem: the counters of a mount belong to several rooms (requests, queue, journal, checkpoints), and a scraper wants
//! one page of all. Rule: each room adds its own values to one [`Metrics`], and only this file knows the format. Names
//! follow Prometheus' conventions: base units (seconds, bytes) at the end, `_total` for counters, one family under one
//! HELP and TYPE, however many rooms and labels it has.

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

/// What the values of a family mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows while the server runs.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of times by upper bounds.
    Histogram,
}

impl MetricKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A number of things or bytes, or a time, which is shown in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricValue {
    /// A number.
    Number(u64),
    /// A time.
    Time(Duration),
}

impl From<u64> for MetricValue {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<Duration> for MetricValue {
    fn from(time: Duration) -> Self {
        Self::Time(time)
    }
}

impl Display for MetricValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Time(time) => {
                let digits = format!("{}.{:09}", time.as_secs(), time.subsec_nanos());
                f.write_str(digits.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// A histogram of times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeHistogram {
    /// Inclusive upper bounds in increasing order, and the number of times up to each that are above the one before.
    pub buckets: Vec<(Duration, u64)>,
    /// Times above the last bound.
    pub above: u64,
    /// Sum of all times.
    pub sum: Duration,
}

impl TimeHistogram {
    /// Number of all times.
    pub fn count(&self) -> u64 {
        let below: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        below + self.above
    }
}

/// A label with its value.
pub type Label<'a> = (&'static str, &'a str);

/// Families of metrics, in the order in which they were first added.
#[derive(Debug, Default)]
pub struct Metrics {
    /// The labels of every sample, as they are written.
    common: String,
    families: Vec<Family>,
}

#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
    /// The labels of every sample, as they are written.
    common: String,
    /// Complete lines.
    samples: String,
}

impl Metrics {
    /// No metrics yet; each will have these labels before its own.
    pub fn with_labels(labels: &[Label<'_>]) -> Self {
        let mut common = String::new();
        write_labels(&mut common, labels.iter().copied());
        Self {
            common,
            families: Vec::new(),
        }
    }

    /// Adds a sample of a counter, whose name ends in `_total`.
    pub fn counter(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[Label<'_>],
        value: impl Into<MetricValue>,
    ) {
        assert!(name.ends_with("_total"), "{name} is the name of a counter");
        self.sample(name, help, MetricKind::Counter, labels, value.into());
    }

    /// Adds a sample of a gauge.
    pub fn gauge(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[Label<'_>],
        value: impl Into<MetricValue>,
    ) {
        assert!(!name.ends_with("_total"), "{name} is the name of a gauge");
        self.sample(name, help, MetricKind::Gauge, labels, value.into());
    }

    /// Adds a histogram: cumulative buckets, `_sum` and `_count`.
    pub fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[Label<'_>],
        times: &TimeHistogram,
    ) {
        assert!(name.ends_with("_seconds"), "{name} is the name of times");
        let family = self.family(name, help, MetricKind::Histogram);
        let mut cumulated = 0;
        for &(bound, count) in &times.buckets {
            cumulated += count;
            let bound = MetricValue::Time(bound).to_string();
            family.line("_bucket", labels, Some(&bound), &cumulated);
        }
        let count = times.count();
        family.line("_bucket", labels, Some("+Inf"), &count);
        family.line("_sum", labels, None, &MetricValue::Time(times.sum));
        family.line("_count", labels, None, &count);
    }

    fn sample(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: MetricKind,
        labels: &[Label<'_>],
        value: MetricValue,
    ) {
        let family = self.family(name, help, kind);
        family.line("", labels, None, &value);
    }

    fn family(&mut self, name: &'static str, help: &'static str, kind: MetricKind) -> &mut Family {
        let found = self.families.iter().position(|family| family.name == name);
        let at = found.unwrap_or_else(|| {
            self.families.push(Family {
                name,
                help,
                kind,
                common: self.common.clone(),
                samples: String::new(),
            });
            self.families.len() - 1
        });
        let family = &mut self.families[at];
        assert!(
            (family.kind, family.help) == (kind, help),
            "{name} is one family"
        );
        family
    }
}

impl Family {
    /// Adds the line of a sample; `le` is the bound of a bucket.
    fn line(&mut self, suffix: &str, labels: &[Label<'_>], le: Option<&str>, value: &dyn Display) {
        let mut all = self.common.clone();
        write_labels(
            &mut all,
            labels.iter().copied().chain(le.map(|bound| ("le", bound))),
        );
        let (open, close) = if all.is_empty() { ("", "") } else { ("{", "}") };
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.samples,
            "{}{suffix}{open}{all}{close} {value}",
            self.name
        );
    }
}

/// Adds labels to a list of them.
fn write_labels<'a>(list: &mut String, labels: impl Iterator<Item = Label<'a>>) {
    for (label, text) in labels {
        if !list.is_empty() {
            list.push(',');
        }
        list.push_str(label);
        list.push_str("=\"");
        for c in text.chars() {
            match c {
                '\\' => list.push_str("\\\\"),
                '"' => list.push_str("\\\""),
                '\n' => list.push_str("\\n"),
                c => list.push(c),
            }
        }
        list.push('"');
    }
}

impl Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for family in &self.families {
            writeln!(f, "# HELP {} {}", family.name, family.help)?;
            writeln!(f, "# TYPE {} {}", family.name, family.kind.name())?;
            f.write_str(&family.samples)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_family_are_together_and_labels_escaped() {
        let mut metrics = Metrics::default();
        metrics.counter("a_total", "Things.", &[("group", "/x\"y\\z\n")], 3);
        metrics.gauge("b_seconds", "Age.", &[], Duration::from_micros(2_500_000));
        metrics.counter("a_total", "Things.", &[("group", "/"), ("kind", "k")], 4);
        let text = "# HELP a_total Things.\n# TYPE a_total counter\n\
            a_total{group=\"/x\\\"y\\\\z\\n\"} 3\na_total{group=\"/\",kind=\"k\"} 4\n\
            # HELP b_seconds Age.\n# TYPE b_seconds gauge\nb_seconds 2.5\n";
        assert_eq!(metrics.to_string(), text);
    }

    #[test]
    fn common_labels_are_before_the_own_ones() {
        let mut metrics = Metrics::with_labels(&[("device", "/a\"b"), ("fstype", "ext4")]);
        metrics.counter("a_total", "Things.", &[("kind", "k")], 1);
        metrics.gauge("b", "Others.", &[], 2);
        let text = "# HELP a_total Things.\n# TYPE a_total counter\n\
            a_total{device=\"/a\\\"b\",fstype=\"ext4\",kind=\"k\"} 1\n\
            # HELP b Others.\n# TYPE b gauge\nb{device=\"/a\\\"b\",fstype=\"ext4\"} 2\n";
        assert_eq!(metrics.to_string(), text);
    }

    #[test]
    fn buckets_of_a_histogram_are_cumulative() {
        let times = TimeHistogram {
            buckets: vec![
                (Duration::from_micros(500), 2),
                (Duration::from_secs(1), 0),
                (Duration::from_secs(10), 1),
            ],
            above: 4,
            sum: Duration::from_millis(61_000),
        };
        let mut metrics = Metrics::default();
        metrics.histogram("t_seconds", "Times.", &[("op", "sync")], &times);
        let text = "# HELP t_seconds Times.\n# TYPE t_seconds histogram\n\
            t_seconds_bucket{op=\"sync\",le=\"0.0005\"} 2\nt_seconds_bucket{op=\"sync\",le=\"1\"} 2\n\
            t_seconds_bucket{op=\"sync\",le=\"10\"} 3\nt_seconds_bucket{op=\"sync\",le=\"+Inf\"} 7\n\
            t_seconds_sum{op=\"sync\"} 61\nt_seconds_count{op=\"sync\"} 7\n";
        assert_eq!(metrics.to_string(), text);
    }

    #[test]
    #[should_panic(expected = "is one family")]
    fn a_family_has_one_meaning() {
        let mut metrics = Metrics::default();
        metrics.gauge("a", "Things.", &[], 1);
        metrics.gauge("a", "Other things.", &[], 1);
    }
}
