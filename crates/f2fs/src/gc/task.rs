//! The task `f2fs_gc`: background GC, and with `gc_merge` foreground GC for all writers.

use std::io;
use std::sync::{Arc, Weak};

use steadfs_base::{IoTag, Urgency};
use steadfs_rt::{OnUnwind, fault_point, try_spawn};

use super::requests::GcTask;
use super::timing::{Round, RoundInputs, Sleep, SleepTimes, many_invalid};
use super::tunables::Tunables;
use crate::fs::F2fs;
use crate::options::BackgroundGc;
use crate::segment::{SpaceGoal, VictimSearch};

impl F2fs {
    /// Starts the task unless it runs.
    ///
    /// # Errors
    /// No thread can be created.
    pub(crate) fn start_gc_task(&self) -> io::Result<()> {
        self.gc.task.start(|| {
            let fs = Weak::clone(self.weak());
            let task = Arc::clone(&self.gc.task);
            try_spawn("f2fs_gc", move || run(&fs, &task))
        })
    }

    /// Returns whether the round was a foreground one.
    fn round(&self, sleep: &mut Sleep, foreground_goal: Option<SpaceGoal>) -> bool {
        // A freeze or remount in progress joins the task or keeps changes out: it must not wait for this round.
        let Some(_open) = self.remount.try_hold_open() else {
            return false;
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
        let round = sleep.begin(sleep_times, mode, inputs);
        match round {
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
        matches!(round, Round::Serve)
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
        if sync
            && let Ok(done) = cleaned
            && done.is_emptied()
        {
            // An emptied section is free when this checkpoint is durable.
            cleaned = self.checkpoint_for_space(tag).map(|()| done);
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
        task.abandon();
    });
    let Some(mut sleep_times) = fs.upgrade().map(|fs| fs.gc.tunables.lock().sleep_times) else {
        return;
    };
    task.serve_here();
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
        let was_served = fs.round(&mut sleep, foreground_goal);
        if foreground_goal.is_some() {
            task.serve_ended(was_served);
        }
    }
}
