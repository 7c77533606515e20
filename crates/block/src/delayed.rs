//! Completions at times set by a model, for modelled devices that are slower than the device below.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use steadfs_rt::{Condvar, Instant, JoinHandle, Mutex, Rank, now, try_spawn};

use crate::{Bio, Done, IoError};

/// Completes requests at their times, in its own task. When it is dropped it waits until all of its requests
/// have been completed.
pub struct DelayedCompletions {
    shared: Arc<Shared>,
    name: &'static str,
    task: Option<JoinHandle<()>>,
}

struct Shared {
    due: Mutex<DueCompletions>,
    changed: Condvar,
}

#[derive(Default)]
struct DueCompletions {
    /// By time, then by order of arrival.
    ends: BTreeMap<(Instant, u64), EndedBio>,
    count: u64,
    closed: bool,
}

type EndedBio = (Bio, Result<(), IoError>, Done);

impl DelayedCompletions {
    /// Starts the task with the name `name`.
    ///
    /// # Errors
    /// The host refuses a thread.
    pub fn start(name: &'static str) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            due: Mutex::new(Rank::Leaf, DueCompletions::default()),
            changed: Condvar::new(),
        });
        let for_task = Arc::clone(&shared);
        let task = try_spawn(name, move || for_task.run())?;
        Ok(Self {
            shared,
            name,
            task: Some(task),
        })
    }

    /// A completion that calls `done`, but not before `at`.
    pub fn at(&self, at: Instant, done: Done) -> Done {
        let shared = Arc::clone(&self.shared);
        Box::new(move |bio, result| shared.end_at(at, (bio, result, done)))
    }
}

impl Shared {
    fn end_at(&self, at: Instant, ended: EndedBio) {
        let mut due = self.due.lock();
        due.count += 1;
        let key = (at, due.count);
        due.ends.insert(key, ended);
        if due
            .ends
            .first_key_value()
            .is_some_and(|(first, _)| *first == key)
        {
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        let mut due = self.due.lock();
        loop {
            let Some((&(at, _), _)) = due.ends.first_key_value() else {
                if due.closed {
                    return;
                }
                self.changed.wait_idle(&mut due);
                continue;
            };
            let left = at.since(now());
            if !left.is_zero() {
                self.changed.wait_for(&mut due, left);
                continue;
            }
            let (_, (bio, result, done)) = due.ends.pop_first().expect("looked at above");
            drop(due);
            done(bio, result);
            due = self.due.lock();
        }
    }
}

impl Drop for DelayedCompletions {
    fn drop(&mut self) {
        self.shared.due.lock().closed = true;
        self.shared.changed.notify_one();
        // The task itself may drop the last reference, by calling a `Done`.
        if let Some(task) = self.task.take()
            && steadfs_rt::task_name() != self.name
        {
            task.join();
        }
    }
}
