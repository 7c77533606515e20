//! Formats a trace as text.

use std::fmt::Write as _;

use steadfs_rt::Rank;
use steadfs_rt::sim::TaskStep;

use super::{CALLER, Kind, TraceEvent, TraceLine};

/// The crate that a lock belongs to.
const fn crate_name(kind: Kind, rank: Rank) -> &'static str {
    match rank {
        Rank::JournalReclaim | Rank::JournalSuper | Rank::JournalLists | Rank::JournalState => {
            "jbd2"
        }
        // ext4: a transaction's handles; f2fs: `cp_lock`.
        Rank::TxnHandle => match kind {
            Kind::Ext4 => "jbd2",
            Kind::F2fs => "f2fs",
        },
        Rank::MetaBuf | Rank::MappingTree | Rank::Dirty | Rank::Table => "cache",
        Rank::QueueState => "block",
        Rank::DeviceInner => "device",
        Rank::Leaf | Rank::Host => "rt",
        _ => kind.name(),
    }
}

fn task_of(name: &str) -> &str {
    match name {
        CALLER => "caller",
        "callbacks" => "device",
        other => other,
    }
}

/// A row of the text.
struct TraceRow {
    crate_name: &'static str,
    step: String,
}

/// Locks that a task takes consecutively in one crate.
struct Locks<'a> {
    at: u64,
    task: &'a str,
    crate_name: &'static str,
    ranks: Vec<(Rank, u64)>,
}

impl Locks<'_> {
    fn text(&self) -> String {
        let labels = self.ranks.iter().map(|(rank, count)| match count {
            1 => format!("{rank:?}"),
            count => format!("{rank:?} x{count}"),
        });
        format!("locks {}", labels.collect::<Vec<_>>().join(", "))
    }
}

struct Text<'a> {
    out: String,
    begin: u64,
    last: u64,
    locks: Option<Locks<'a>>,
}

fn millis(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1_000_000, nanos / 1000 % 1000)
}

impl<'a> Text<'a> {
    fn row(&mut self, at: u64, task: &str, shown: &TraceRow) {
        let step = match at - self.last {
            0 => String::new(),
            more => format!("+{}", millis(more)),
        };
        self.last = at;
        // Writing to a string does not fail.
        let _ = writeln!(
            self.out,
            "{:>10} {step:>9}  {:<12} {:<7} {}",
            millis(at - self.begin),
            task_of(task),
            shown.crate_name,
            shown.step
        );
    }

    fn end_locks(&mut self) {
        if let Some(locks) = self.locks.take() {
            let shown = TraceRow {
                crate_name: locks.crate_name,
                step: locks.text(),
            };
            self.row(locks.at, locks.task, &shown);
        }
    }

    fn lock(&mut self, at: u64, task: &'a str, crate_name: &'static str, rank: Rank) {
        if let Some(locks) = &mut self.locks
            && (locks.at, locks.task, locks.crate_name) == (at, task, crate_name)
        {
            match locks.ranks.iter_mut().find(|(known, _)| *known == rank) {
                Some((_, count)) => *count += 1,
                None => locks.ranks.push((rank, 1)),
            }
            return;
        }
        self.end_locks();
        self.locks = Some(Locks {
            at,
            task,
            crate_name,
            ranks: vec![(rank, 1)],
        });
    }
}

/// The whole trace below `head`, and its sums.
pub(super) fn text(head: &str, kind: Kind, lines: &[TraceLine]) -> String {
    let begin = lines.first().map_or(0, |line| line.at.0);
    let mut text = Text {
        out: format!(
            "{head}\n{:>10} {:>9}  {:<12} {:<7} step\n",
            "ms", "+ms", "task", "crate"
        ),
        begin,
        last: begin,
        locks: None,
    };
    let mut started = Vec::new();
    for line in lines {
        let (at, task) = (line.at.0, line.task.as_str());
        // Short locks of rt and of the device are omitted.
        if let TraceEvent::Task(TaskStep::Locked(rank)) = line.step {
            if !matches!(rank, Rank::Leaf | Rank::DeviceInner) {
                text.lock(at, task, crate_name(kind, rank), rank);
            }
            continue;
        }
        let shown = match &line.step {
            TraceEvent::Task(step) => of_task_step(kind, *step),
            TraceEvent::Call(call) => TraceRow {
                crate_name: "vfs",
                step: call.clone(),
            },
            TraceEvent::Starts(number, what) => {
                started.push((*number, at));
                TraceRow {
                    crate_name: "device",
                    step: format!("#{number} {what}"),
                }
            }
            TraceEvent::Ends(number) => {
                let since = started.iter().find(|(known, _)| known == number);
                let took = since.map_or(0, |(_, since)| at - since);
                TraceRow {
                    crate_name: "device",
                    step: format!("#{number} done, took {} ms", millis(took)),
                }
            }
        };
        text.end_locks();
        text.row(at, task, &shown);
    }
    text.end_locks();
    let sums = sums(lines);
    text.out + &sums
}

fn of_task_step(kind: Kind, step: TaskStep) -> TraceRow {
    match step {
        TaskStep::Locked(_) => unreachable!("locks are collected before"),
        TaskStep::WaitsForLock(rank) => TraceRow {
            crate_name: crate_name(kind, rank),
            step: format!("WAITS for the lock {rank:?}"),
        },
        TaskStep::WaitsForCondition(rank) => TraceRow {
            crate_name: crate_name(kind, rank),
            step: "waits".to_owned(),
        },
        TaskStep::Resumes => TraceRow {
            crate_name: "rt",
            step: "continues".to_owned(),
        },
        TaskStep::Sleeps => TraceRow {
            crate_name: "rt",
            step: "sleeps".to_owned(),
        },
    }
}

/// The sums of the caller's time.
fn sums(lines: &[TraceLine]) -> String {
    let (mut locks, mut waits, mut waited, mut since) = (0, 0, 0, None);
    for line in lines.iter().filter(|line| line.task == CALLER) {
        match line.step {
            TraceEvent::Task(TaskStep::Locked(_)) => locks += 1,
            TraceEvent::Task(
                TaskStep::WaitsForCondition(_) | TaskStep::WaitsForLock(_) | TaskStep::Sleeps,
            ) => {
                waits += 1;
                since = Some(line.at.0);
            }
            TraceEvent::Task(TaskStep::Resumes) => {
                waited += since.take().map_or(0, |since| line.at.0 - since);
            }
            _ => {}
        }
    }
    let requests = lines
        .iter()
        .filter(|line| matches!(line.step, TraceEvent::Starts(..)));
    let requests = requests.count();
    let whole = match (lines.first(), lines.last()) {
        (Some(first), Some(last)) => last.at.0 - first.at.0,
        _ => 0,
    };
    format!(
        "\n{} ms in total; the caller waited for {} ms in {waits} waits, and took {locks} locks; {requests} requests\n",
        millis(whole),
        millis(waited)
    )
}
