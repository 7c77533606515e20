//! Findings since the mount that the volume's owner should see: each one once, with its count.

use steadfs_rt::{Mutex, Rank};

/// Findings that are kept, at most; further ones are counted.
const FINDINGS_MAX: usize = 32;

/// A list of findings.
pub struct Findings {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    list: Vec<(String, u64)>,
    /// Occurrences of findings that were not kept.
    others: u64,
}

impl Findings {
    /// An empty list.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, State::default()),
        }
    }

    /// Records a finding. Returns whether it is new, as far as that is known.
    pub fn record(&self, what: &str) -> bool {
        let mut state = self.state.lock();
        if let Some((_, times)) = state.list.iter_mut().find(|(known, _)| known == what) {
            *times += 1;
            return false;
        }
        if state.list.len() == FINDINGS_MAX {
            state.others += 1;
            return false;
        }
        state.list.push((what.to_owned(), 1));
        true
    }

    /// One line per finding, in order of the first occurrence; each begins with `word`.
    pub fn show(&self, word: &str) -> String {
        let state = self.state.lock();
        let mut text = String::new();
        for (what, times) in &state.list {
            text += &match times {
                1 => format!("{word}: {what}\n"),
                times => format!("{word} ({times} times): {what}\n"),
            };
        }
        if state.others > 0 {
            text += &format!("{word}: {} times more, elsewhere\n", state.others);
        }
        text
    }
}

impl Default for Findings {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_shown_once_and_the_list_is_bounded() {
        let findings = Findings::new();
        assert_eq!(findings.show("found"), "");
        assert!(findings.record("inode 12: magic"));
        assert!(!findings.record("inode 12: magic"));
        assert!(findings.record("inode 13: magic"));
        let shown = "found (2 times): inode 12: magic\nfound: inode 13: magic\n";
        assert_eq!(findings.show("found"), shown);
        for n in 0..100 {
            findings.record(&format!("block {n}"));
        }
        let text = findings.show("found");
        assert_eq!(text.lines().count(), FINDINGS_MAX + 1);
        assert!(
            text.ends_with("found: 70 times more, elsewhere\n"),
            "{text}"
        );
    }
}
