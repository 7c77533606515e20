//! The requests of a mount that wait: who asked, for what, in which step, and since when.
//!
//! A service thread records its request in its [`ServedRequest`](crate::interrupt::ServedRequest) and its steps in
//! [`TaskWaits`](steadfs_rt::waits::TaskWaits); requests without a slot are in the queue of
//! [`Admission`](crate::admission::Admission). Both are read when the control file is, and only then is the caller's name
//! looked up.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{InodeNo, json_text};

use crate::admission::Admission;
use crate::host::{self, Answer, Question};
use crate::interrupt::Interrupts;
use crate::reply::NodeIds;
use crate::wire;

/// Most requests that are listed: those that wait for the longest time.
const LISTED_MAX: usize = 256;

/// A request that waits, as its thread or the admission queue knows it.
pub(crate) struct WaitingRequest {
    pub pid: u32,
    pub opcode: u32,
    pub node: u64,
    pub steps: Vec<&'static str>,
    pub time: Duration,
}

/// Where the waiting requests of a mount are found.
pub(crate) struct WaitSources {
    pub admission: Arc<Admission>,
    pub interrupts: Arc<Interrupts>,
    pub ids: NodeIds,
}

/// A line of the list.
struct Listed {
    pid: u32,
    command: Option<String>,
    cgroup: Option<String>,
    operation: String,
    ino: InodeNo,
    steps: Vec<&'static str>,
    time: Duration,
}

impl WaitSources {
    fn list(&self) -> Vec<Listed> {
        let mut all = self.interrupts.waiting();
        all.extend(self.admission.waiting());
        all.sort_by_key(|one| std::cmp::Reverse(one.time));
        all.truncate(LISTED_MAX);
        all.into_iter().map(|one| self.listed(one)).collect()
    }

    fn listed(&self, one: WaitingRequest) -> Listed {
        let ask = |question: Question| match (one.pid != 0).then(|| host::ask(question)) {
            Some(Answer::Group(text)) => Some(text),
            _ => None,
        };
        Listed {
            pid: one.pid,
            command: ask(Question::CommandOf(one.pid)),
            cgroup: ask(Question::GroupOf(one.pid)),
            operation: wire::op_name(one.opcode).to_ascii_lowercase(),
            ino: self.ids.ino(one.node),
            steps: one.steps,
            time: one.time,
        }
    }

    /// A table: process, command, cgroup, operation, inode, steps from the outermost in, milliseconds since the first.
    pub fn table(&self) -> String {
        let mut text = "PID COMMAND CGROUP OPERATION INODE STEP MILLISECONDS\n".to_owned();
        for one in self.list() {
            let word = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), printable);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{} {} {} {} {} {} {:.1}",
                one.pid,
                word(&one.command),
                word(&one.cgroup),
                one.operation,
                one.ino.0,
                one.steps.join(">").replace(' ', "_"),
                one.time.as_secs_f64() * 1e3,
            );
        }
        text
    }

    /// The same as a JSON array.
    pub fn json(&self) -> String {
        let rows: Vec<_> = self.list().iter().map(Listed::json).collect();
        format!("[{}]\n", rows.join(",\n"))
    }
}

/// A name as one word of a table.
fn printable(name: &str) -> String {
    let shown = |c: char| {
        if c.is_control() || c.is_whitespace() {
            '?'
        } else {
            c
        }
    };
    name.chars().map(shown).collect()
}

impl Listed {
    fn json(&self) -> String {
        let text = |text: &Option<String>| text.as_deref().map_or("null".to_owned(), json_text);
        let steps: Vec<_> = self.steps.iter().map(|step| json_text(step)).collect();
        format!(
            "{{\"pid\":{},\"command\":{},\"cgroup\":{},\"operation\":{},\"inode\":{},\"steps\":[{}],\"milliseconds\":{:.3}}}",
            self.pid,
            text(&self.command),
            text(&self.cgroup),
            json_text(&self.operation),
            self.ino.0,
            steps.join(","),
            self.time.as_secs_f64() * 1e3,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_lists() {
        assert_eq!(printable("a b\n\u{1b}c"), "a?b??c");
        assert_eq!(json_text("a\"\\\n"), "\"a\\\"\\\\\\u000a\"");
    }
}
