//! What a checker reports.

use std::borrow::Cow;
use std::fmt;

use steadfs_base::limits::NAME_MAX;
use thiserror::Error;

/// Why a volume was not checked. It may be consistent or not.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// It has features that are not supported.
    #[error("not supported: {names}")]
    Unsupported {
        /// Names of the features.
        names: String,
    },
    /// The check needs more memory than allowed.
    #[error("the check needs at least {needed} bytes of memory")]
    TooLarge {
        /// Bytes needed.
        needed: u64,
    },
}

/// The result of a check: issues of type `I`, counts of type `C`.
#[derive(Clone, Debug)]
pub struct Report<I, C> {
    /// Why it was not checked, or not completely.
    pub refused: Option<Refusal>,
    /// All findings, in the order of the steps.
    pub issues: Vec<I>,
    /// Number of issues beyond the most that are kept.
    pub more: u64,
    /// Counts.
    pub stats: C,
    /// Names of the parts that were not checked.
    pub skipped: Vec<Cow<'static, str>>,
}

impl<I, C: Default> Default for Report<I, C> {
    fn default() -> Self {
        Self {
            refused: None,
            issues: Vec::new(),
            more: 0,
            stats: C::default(),
            skipped: Vec::new(),
        }
    }
}

impl<I, C> Report<I, C> {
    /// Whether the volume was checked and nothing was found.
    pub fn is_clean(&self) -> bool {
        self.refused.is_none() && self.issues.is_empty() && self.more == 0
    }

    /// Records an issue, of which `most` are kept.
    pub fn add(&mut self, issue: I, most: usize) {
        if self.issues.len() < most {
            self.issues.push(issue);
        } else {
            self.more += 1;
        }
    }

    /// Records that the volume has features that are not supported.
    pub fn refuse_features(&mut self, names: &[Cow<'static, str>]) {
        let names = names.join(", ");
        self.refused = Some(Refusal::Unsupported { names });
    }

    /// Whether a check that needs this memory may run; if not, the refusal is recorded.
    pub fn has_memory(&mut self, needed: u64, limit: u64) -> bool {
        if needed > limit {
            self.refused = Some(Refusal::TooLarge { needed });
        }
        needed <= limit
    }
}

/// A name that is displayed with escapes.
#[derive(Clone, PartialEq, Eq)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// A name, cut to the longest valid length.
    pub fn of(bytes: &[u8]) -> Self {
        Self(bytes[..bytes.len().min(NAME_MAX)].to_vec())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issues_beyond_the_most_are_counted() {
        let mut report = Report::<u8, ()>::default();
        assert!(report.is_clean());
        for issue in 0..5 {
            report.add(issue, 3);
        }
        assert_eq!((report.issues.as_slice(), report.more), (&[0, 1, 2][..], 2));
        assert!(!report.is_clean());
    }

    #[test]
    fn a_refused_volume_is_not_clean() {
        let mut report = Report::<u8, ()>::default();
        assert!(report.has_memory(7, 7));
        assert!(report.is_clean());
        assert!(!report.has_memory(8, 7));
        assert_eq!(report.refused, Some(Refusal::TooLarge { needed: 8 }));
        report.refuse_features(&["one".into(), "two".into()]);
        assert!(!report.is_clean());
        let why = report.refused.map(|refused| refused.to_string());
        assert_eq!(why.as_deref(), Some("not supported: one, two"));
    }

    #[test]
    fn names_are_shown_with_escapes() {
        assert_eq!(Name(b"a\nb\xff".to_vec()).to_string(), "\"a\\nb\\xff\"");
    }
}
