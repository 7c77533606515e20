//! The task that cleans in the background, and for writers where `gc_merge` is set.

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

/// Who works, and who waits for it.
pub struct GcTask {
    state: Mutex<TaskState>,
    /// Something for the task to do.
    work: Condvar,
    /// A round for writers is over, or the task.
    served: Condvar,
}

#[derive(Default)]
struct TaskState {
    running: Option<JoinHandle<()>>,
    stop: bool,
    /// Somebody changed what the sleep depends on.
    kicked: bool,
    /// What writers wait for, if any does.
    foreground_goal: Option<SpaceGoal>,
    /// Writers' rounds begun and ended.
    begun: u64,
    ended: u64,
    /// Who makes it.
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

    /// Lets the task make room and waits until a round that began after this call is over. `false` if
    /// there is no task: the caller cleans.
    pub fn ask(&self, goal: SpaceGoal) -> bool {
        let mut state = self.state.lock();
        if state.running.is_none() || state.stop {
            return false;
        }
        // Users' data needs more than the reserve does.
        state.foreground_goal = Some(match state.foreground_goal {
            Some(SpaceGoal::Users) => SpaceGoal::Users,
            _ => goal,
        });
        let mine = state.begun + 1;
        let server = state.server;
        self.work.notify_one();
        drop(state);
        let _for = inherit::wait_for(&[server]);
        state = self.state.lock();
        while state.ended < mine && !state.stop {
            self.served.wait(&mut state);
        }
        state.ended >= mine
    }

    /// Ends the present sleep, as what it depends on has changed.
    pub fn kick(&self) {
        self.state.lock().kicked = true;
        self.work.notify_one();
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// Sleeps; whether to go on, and what writers wait for.
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
            if std::mem::take(&mut state.kicked) || left.is_zero() {
                return (true, None);
            }
            self.work.wait_for(&mut state, left);
        }
    }

    /// Rounds that were made for writers.
    #[cfg(test)]
    pub fn served(&self) -> u64 {
        self.state.lock().ended
    }

    /// A writers' round is over.
    fn serve_ended(&self) {
        let mut state = self.state.lock();
        state.ended = state.begun;
        self.served.notify_all();
    }
}

impl F2fs {
    /// Whether the task is there.
    pub(crate) fn has_gc_task(&self) -> bool {
        self.gc.task.state.lock().running.is_some()
    }

    /// Starts the task if it is not there.
    ///
    /// # Errors
    /// The host refuses a thread.
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

    /// Stops the task, if there is one, and waits for its end. The caller holds no lock.
    pub(crate) fn stop_gc_task(&self) {
        let running = {
            let mut state = self.gc.task.state.lock();
            state.stop = true;
            self.gc.task.work.notify_all();
            self.gc.task.served.notify_all();
            state.running.take()
        };
        if let Some(task) = running {
            // One that panicked has stopped the volume.
            let _ = task.join_panicked();
        }
    }

    /// A round of the task.
    fn round(&self, sleep: &mut Sleep, foreground_goal: Option<SpaceGoal>) {
        // Not while the volume is about to be frozen or to become read-only: whoever does that ends
        // tasks, or keeps others out.
        let Some(_open) = self.remount_lock.try_read() else {
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
                let _one = self.gc.one.lock();
                // Who waits finds out himself whether there is room.
                let _ = self.collect(foreground_goal.unwrap_or(SpaceGoal::Reserve), tag);
            }
            Round::Clean => self.round_in_background(sleep, sleep_times, tag),
        }
        self.gc.tunables.lock().count_round();
    }

    fn round_in_background(&self, sleep: &mut Sleep, sleep_times: SleepTimes, tag: IoTag) {
        let _one = self.gc.one.lock();
        self.update_demand();
        if !self.segments().has_space(SpaceGoal::Reserve, 0) {
            // Short of space: as for a writer.
            if let Err(error) = self.collect(SpaceGoal::Reserve, tag) {
                tracing::debug!(%error, "cleaning in the background made no room");
            }
            return;
        }
        // As the kernel: a synchronous round is one of the foreground that nobody asked for.
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
            // What was emptied is free when this is durable.
            cleaned = self.checkpoint_for_space(tag).map(|()| true);
        }
        if let Err(error) = cleaned {
            tracing::warn!(%error, "cleaning in the background failed");
        }
    }

    fn round_inputs(&self, foreground: bool, tunables: &Tunables) -> RoundInputs {
        let counts = self.space.counts();
        let free = u64::from(self.segments().counts().free) * 512;
        RoundInputs {
            read_only: self.check_writable().is_err(),
            frozen: self.is_frozen(),
            foreground,
            busy: self.gc.one.try_lock().is_none(),
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
        let (goes_on, foreground_goal) = task.sleep(sleep.time());
        let Some(fs) = fs.upgrade() else { return };
        if !goes_on || task.is_stopped() {
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
