//! The journal's two tasks: the commit task commits transactions that are old or full, the background reclaimer
//! writes blocks to their home locations.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::Tid;
use steadfs_rt::cpu::ThreadIoPrio;
use steadfs_rt::{OnUnwind, PANICKED, fault_point, now, try_spawn};

use crate::Journal;
use crate::worker::ReclaimWorker;

/// Shortest period of the reclaimer, unless it is woken.
const MIN_RECLAIM_PERIOD: Duration = Duration::from_millis(1);

impl Journal {
    /// Starts the commit task and the background reclaimer, which keep the journal alive until
    /// [`Journal::join_tasks`]. Does nothing if they run.
    ///
    /// # Errors
    /// The host refuses a thread: neither of the tasks runs then.
    pub fn start_tasks(self: &Arc<Self>) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            if state.has_commit_task {
                return Ok(());
            }
            state.stopping = false;
            state.has_commit_task = true;
        }
        self.lists.lock().stopping = false;
        let started = self.spawn_tasks();
        if started.is_err() {
            self.join_tasks();
        }
        started
    }

    fn spawn_tasks(self: &Arc<Self>) -> io::Result<()> {
        let journal = Arc::clone(self);
        let commit = try_spawn("jbd2", move || journal.commit_task())?;
        self.tasks.lock().push(commit);
        let journal = Arc::clone(self);
        let reclaim = try_spawn("jbd2-reclaim", move || journal.reclaim_task())?;
        self.tasks.lock().push(reclaim);
        Ok(())
    }

    /// Ends the two tasks and joins them. Handles and commits work without them. Nothing is committed
    /// here.
    pub fn join_tasks(&self) {
        {
            let mut state = self.state.lock();
            state.stopping = true;
            state.has_commit_task = false;
        }
        self.lists.lock().stopping = true;
        self.task_wake.notify_all();
        self.reclaim_wake.notify_all();
        // Handles that wait for the commit task commit by themselves now.
        self.admission.notify_all();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            // A task that panicked has aborted the journal, and the caller meets that.
            let _ = task.join_panicked();
        }
    }

    fn commit_task(&self) {
        let _guard = OnUnwind::new(|| self.task_panicked());
        let mut thread_prio = ThreadIoPrio::default();
        thread_prio.set(self.state.lock().tuning.prio);
        while let Some(tid) = self.next_due() {
            fault_point("jbd2.commit");
            let tag = self.state.lock().tuning.commit_tag();
            thread_prio.set(tag.prio);
            // The error has aborted the journal: every later caller gets it.
            if let Err(error) = self.commit_as(tid, tag, false) {
                tracing::debug!(%error, %tid, "commit failed");
            }
            // Meanwhile the next transaction fills; when it is full, new handles wait.
            if let Err(error) = self.bound_memory() {
                tracing::debug!(%error, "cannot write blocks to their home locations");
            }
        }
    }

    /// One of the tasks has panicked: aborts the journal, so that nothing waits for the task.
    fn task_panicked(&self) {
        self.shutdown(PANICKED);
        self.state.lock().has_commit_task = false;
        self.admission.notify_all();
    }

    /// Waits until a transaction should be committed; `None`: the task should end.
    ///
    /// The task is not woken when a transaction begins. It wakes once per commit interval, so it finds each
    /// transaction before that is one interval old.
    fn next_due(&self) -> Option<Tid> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            let interval = state.tuning.max_transaction_age();
            let mut wait = interval;
            let commit_request = state.commit_request.take();
            let alive = state.aborted.is_none();
            if let Some(running) = state.running.as_ref().filter(|_| alive) {
                if commit_request == Some(running.tid) {
                    return commit_request;
                }
                let age = now().since(running.started);
                if !running.is_empty() || running.open > 0 {
                    if age >= interval {
                        return Some(running.tid);
                    }
                    wait = interval - age;
                }
            }
            self.task_wake.wait_for(&mut state, wait);
        }
    }

    fn reclaim_task(&self) {
        let _guard = OnUnwind::new(|| self.task_panicked());
        while self.next_reclaim() {
            fault_point("jbd2.reclaim");
            let began = now();
            // An error has aborted the journal; the task then only waits for its end.
            while self.reclaim_in_background().unwrap_or(false) && !self.lists.lock().stopping {}
            self.lists.lock().worker.end();
            self.state.lock().stats.background.add(began.elapsed());
        }
    }

    /// Waits until reclaim should check the log; false: the task should end.
    fn next_reclaim(&self) -> bool {
        let mut lists = self.lists.lock();
        if lists.worker == ReclaimWorker::Idle && !lists.stopping {
            let period = lists.policy.period.max(MIN_RECLAIM_PERIOD);
            self.reclaim_wake.wait_for(&mut lists, period);
        }
        if lists.stopping {
            lists.worker = ReclaimWorker::Idle;
            return false;
        }
        lists.worker.begin();
        true
    }
}
