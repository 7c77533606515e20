//! The task `f2fs_gc`: background GC, and with `gc_merge` foreground GC for all writers.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use steadfs_base::{IoTag, Urgency};
use steadfs_rt::inherit::{self, TaskNo};
use steadfs_rt::{Condvar, JoinHandle, Mutex, OnUnwind, Rank, fault_point, now, try_spawn};

use super::timing::{Round, RoundInputs, Sleep, SleepTimes, many_invalid};
use super::tunables::Tunables;
use crate::fs::F2fs;
use crate::options::BackgroundGc;
use crate::segment::{SpaceGoal, VictimSearch};

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

    /// Requests a foreground round and waits for one that began after this call. Returns `false` if there is no task;
    /// the caller cleans then.
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
        state = self.state.lock();
        while state.ended < mine && !state.stop {
            self.served.wait(&mut state);
        }
        state.ended >= mine
    }

    /// Ends the current sleep because a setting changed.
    pub fn wake(&self) {
        self.state.lock().settings_changed = true;
        self.work.notify_one();
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// Sleeps; returns whether to continue, and the goal of waiting writers.
    fn sleep(&self, time: Duration) -> (bool, Option<SpaceGoal>) {
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
    fn serve_ended(&self) {
        let mut state = self.state.lock();
        state.ended = state.begun;
        self.served.notify_all();
    }
}

impl F2fs {
    pub(crate) fn has_gc_task(&self) -> bool {
        self.gc.task.state.lock().running.is_some()
    }

    /// Starts the task unless it runs.
    ///
    /// # Errors
    /// No thread can be created.
    pub(crate) fn start_gc_task(&self) -> io::Result<()> {
        let mut state = self.gc.task.state.lock();
        if state.running.is_some() {
            return Ok(());
        }
        let fs = Weak::clone(self.weak());
        let task = Arc::clone(&self.gc.task);
        let running = try_spawn("f2fs_gc", move || run(&fs, &task))?;
        state.stop = false;
        state.running = Some(running);
        Ok(())
    }

    /// Stops the task and waits for its end. The caller holds no lock.
    pub(crate) fn stop_gc_task(&self) {
        let running = {
            let mut state = self.gc.task.state.lock();
            state.stop = true;
            self.gc.task.work.notify_all();
            self.gc.task.served.notify_all();
            state.running.take()
        };
        if let Some(task) = running {
            // A panic of the task has aborted the volume already.
            let _ = task.join_panicked();
        }
    }

    fn round(&self, sleep: &mut Sleep, foreground_goal: Option<SpaceGoal>) {
        // A freeze or remount in progress joins the task or keeps changes out: it must not wait for this round.
        let Some(_open) = self.remount.try_hold_open() else {
            return;
        };
        let tunables = *self.gc.tunables.lock();
        let (sleep_times, mode) = (tunables.sleep_times, tunables.mode);
        let inputs = self.round_inputs(foreground_goal.is_some(), &tunables);
        let tag = IoTag {
            urgency: match foreground_goal {
                Some(_) => Urgency::Waited,
                None => Urgency::Background,
            },
            ..IoTag::default()
        };
        match sleep.begin(sleep_times, mode, inputs) {
            Round::Rest => {}
            Round::Busy => self.gc.stats.lock().skipped_busy += 1,
            Round::InUse => self.gc.stats.lock().skipped_in_use += 1,
            Round::Serve => {
                let _one = self.gc.gc_lock.lock();
                // The waiting writers check the result by themselves.
                let _ = self.collect(foreground_goal.unwrap_or(SpaceGoal::Reserve), tag);
            }
            Round::Clean => self.round_in_background(sleep, sleep_times, tag),
        }
        self.gc.tunables.lock().count_round();
    }

    fn round_in_background(&self, sleep: &mut Sleep, sleep_times: SleepTimes, tag: IoTag) {
        let _one = self.gc.gc_lock.lock();
        self.update_demand();
        if !self.segments().has_space(SpaceGoal::Reserve, 0) {
            // Space is short: the same work as for a writer.
            if let Err(error) = self.collect(SpaceGoal::Reserve, tag) {
                tracing::debug!(%error, "background GC freed no space");
            }
            return;
        }
        // As in the kernel, `background_gc=sync` does foreground GC in the background task.
        let sync = self.options.read().background_gc == BackgroundGc::Sync;
        let (mode, by_age) = self.gc.mode();
        let search = VictimSearch {
            cost: mode.cost(sync, by_age),
            foreground: sync,
            limit: Some(self.segments().policy().max_search),
            skip: &Default::default(),
        };
        self.gc.stats.lock().calls[usize::from(!sync)] += 1;
        let Some(victim) = self.segments().begin_cleaning(search) else {
            sleep.end(sleep_times, false);
            return;
        };
        sleep.end(sleep_times, true);
        let mut cleaned = self.clean(victim, mode, !sync, tag);
        if sync && cleaned == Ok(true) {
            // An emptied section is free when this checkpoint is durable.
            cleaned = self.checkpoint_for_space(tag).map(|()| true);
        }
        if let Err(error) = cleaned {
            tracing::warn!(%error, "background GC failed");
        }
    }

    fn round_inputs(&self, foreground: bool, tunables: &Tunables) -> RoundInputs {
        let counts = self.space.counts();
        let free = u64::from(self.segments().counts().free) * 512;
        RoundInputs {
            read_only: self.check_writable().is_err(),
            frozen: self.is_frozen(),
            foreground,
            busy: self.gc.gc_lock.try_lock().is_none(),
            in_use: tunables.io_aware.is_in_use(self.queue.depths()),
            quiet: self.gc.quiet_for() >= tunables.idle_interval.into(),
            many_invalid: many_invalid(counts.user_blocks, counts.valid_blocks, free),
        }
    }
}

fn run(fs: &Weak<F2fs>, task: &GcTask) {
    let _guard = OnUnwind::new(|| {
        if let Some(fs) = fs.upgrade() {
            fs.abort_for_panic();
        }
        task.state.lock().stop = true;
        task.served.notify_all();
    });
    let Some(mut sleep_times) = fs.upgrade().map(|fs| fs.gc.tunables.lock().sleep_times) else {
        return;
    };
    task.state.lock().server = inherit::current_task();
    let mut sleep = Sleep::new(sleep_times);
    loop {
        let (continues, foreground_goal) = task.sleep(sleep.time());
        let Some(fs) = fs.upgrade() else { return };
        if !continues || task.is_stopped() {
            return;
        }
        let now = fs.gc.tunables.lock().sleep_times;
        if now != sleep_times {
            (sleep_times, sleep) = (now, Sleep::new(now));
        }
        fault_point("f2fs.gc");
        fs.round(&mut sleep, foreground_goal);
        if foreground_goal.is_some() {
            task.serve_ended();
        }
    }
}
