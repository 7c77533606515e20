//! Requests for foreground GC, and the sleep of the task that serves them.
//!
//! **Rule.** A request is served by a round that began after it. A stopped task serves none, and none is served while a freeze
//! or remount keeps changes out; the waiters clean by themselves then.

use std::io;
use std::time::Duration;

use steadfs_rt::inherit::{self, TaskNo};
use steadfs_rt::waits::{self, WaitStep};
use steadfs_rt::{Condvar, JoinHandle, Mutex, Rank, now};

use crate::segment::SpaceGoal;

/// The task and the writers that wait for it.
pub struct GcTask {
    state: Mutex<TaskState>,
    /// Notified when there is work.
    work: Condvar,
    /// Notified when a foreground round, or the task, has ended.
    served: Condvar,
}

#[derive(Default)]
struct TaskState {
    running: Option<JoinHandle<()>>,
    stop: bool,
    /// A setting changed on which the sleep depends.
    settings_changed: bool,
    /// The largest goal of the writers that wait.
    foreground_goal: Option<SpaceGoal>,
    /// Foreground rounds begun and ended.
    begun: u64,
    ended: u64,
    /// The last one that has ended has served nothing.
    refused: bool,
    /// The thread that serves them.
    server: TaskNo,
}

impl GcTask {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, TaskState::default()),
            work: Condvar::new(),
            served: Condvar::new(),
        }
    }

    /// Requests a foreground round and waits for one that began after this call. Returns `false` if there is no task, or if
    /// it did not serve; the caller cleans then.
    pub fn request(&self, goal: SpaceGoal) -> bool {
        let mut state = self.state.lock();
        if state.running.is_none() || state.stop {
            return false;
        }
        // Users' data needs more free sections than the reserve.
        state.foreground_goal = Some(match state.foreground_goal {
            Some(SpaceGoal::Users) => SpaceGoal::Users,
            _ => goal,
        });
        let mine = state.begun + 1;
        let server = state.server;
        self.work.notify_one();
        drop(state);
        let _edge = inherit::wait_for(&[server]);
        let _step = waits::during(WaitStep::Cleaning);
        state = self.state.lock();
        while state.ended < mine && !state.stop {
            self.served.wait(&mut state);
        }
        state.ended >= mine && !state.refused
    }

    /// Whether the task runs.
    pub fn is_running(&self) -> bool {
        self.state.lock().running.is_some()
    }

    /// Starts the task unless it runs.
    ///
    /// # Errors
    /// No thread can be created.
    pub fn start(&self, spawn: impl FnOnce() -> io::Result<JoinHandle<()>>) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.running.is_none() {
            state.running = Some(spawn()?);
            state.stop = false;
        }
        Ok(())
    }

    /// Stops the task and waits for its end. The caller holds no lock.
    pub fn stop(&self) {
        let running = {
            let mut state = self.state.lock();
            state.stop = true;
            self.work.notify_all();
            self.served.notify_all();
            state.running.take()
        };
        if let Some(task) = running {
            // A panic of the task has aborted the volume already.
            let _ = task.join_panicked();
        }
    }

    /// This thread serves the requests from now on.
    pub fn serve_here(&self) {
        self.state.lock().server = inherit::current_task();
    }

    /// The task panicked: no request is served any more.
    pub fn abandon(&self) {
        self.state.lock().stop = true;
        self.served.notify_all();
    }

    /// Ends the current sleep because a setting changed.
    pub fn wake(&self) {
        self.state.lock().settings_changed = true;
        self.work.notify_one();
    }

    pub fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// Sleeps; returns whether to continue, and the goal of waiting writers.
    pub fn sleep(&self, time: Duration) -> (bool, Option<SpaceGoal>) {
        let until = now() + time;
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return (false, None);
            }
            if state.foreground_goal.is_some() {
                state.begun += 1;
                return (true, state.foreground_goal.take());
            }
            let left = until.since(now());
            if std::mem::take(&mut state.settings_changed) || left.is_zero() {
                return (true, None);
            }
            self.work.wait_for(&mut state, left);
        }
    }

    /// Foreground rounds since the mount.
    #[cfg(test)]
    pub fn served(&self) -> u64 {
        self.state.lock().ended
    }

    /// A foreground round has ended.
    pub fn serve_ended(&self, was_served: bool) {
        let mut state = self.state.lock();
        assert!(state.ended < state.begun, "a foreground round was begun");
        state.ended = state.begun;
        state.refused = !was_served;
        self.served.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfs_rt::{sim, try_spawn};

    use super::*;

    #[test]
    fn a_round_that_could_not_run_is_left_to_its_waiters() {
        sim::run(sim::Config::new(1), || {
            let task = Arc::new(GcTask::new());
            for was_served in [false, true] {
                let server = Arc::clone(&task);
                let serve = move || {
                    server.serve_here();
                    let (_, goal) = server.sleep(Duration::from_secs(9));
                    assert_eq!(goal, Some(SpaceGoal::Users));
                    server.serve_ended(was_served);
                };
                task.start(|| try_spawn("gc", serve)).unwrap();
                assert_eq!(task.request(SpaceGoal::Users), was_served);
                task.stop();
            }
        });
    }
}
