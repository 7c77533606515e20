//! The task that cleans in the background, and for writers where `gc_merge` is set.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use steadfs_base::{IoTag, Urgency};
use steadfs_rt::inherit::{self, TaskNo};
use steadfs_rt::{Condvar, JoinHandle, Mutex, OnUnwind, Rank, fault_point, now, try_spawn};

use super::pace::{Facts, Pace, Round, Sleep, many_invalid};
use super::tunables::Tunables;
use crate::fs::F2fs;
use crate::options::BackgroundGc;
use crate::segment::{Room, Search};

/// Who works, and who waits for it.
pub struct Task {
    state: Mutex<State>,
    /// Something for the task to do.
    work: Condvar,
    /// A round for writers is over, or the task.
    served: Condvar,
}

#[derive(Default)]
struct State {
    running: Option<JoinHandle<()>>,
    stop: bool,
    /// Somebody changed what the sleep depends on.
    kicked: bool,
    /// What writers wait for, if any does.
    wanted: Option<Room>,
    /// Writers' rounds begun and ended.
    begun: u64,
    ended: u64,
    /// Who makes it.
    server: TaskNo,
}

impl Task {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, State::default()),
            work: Condvar::new(),
            served: Condvar::new(),
        }
    }

    /// Lets the task make room and waits until a round that began after this call is over. `false` if
    /// there is no task: the caller cleans.
    pub fn ask(&self, goal: Room) -> bool {
        let mut state = self.state.lock();
        if state.running.is_none() || state.stop {
            return false;
        }
        // Users' data needs more than the reserve does.
        state.wanted = Some(match state.wanted {
            Some(Room::Users) => Room::Users,
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
    fn sleep(&self, time: Duration) -> (bool, Option<Room>) {
        let until = now() + time;
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return (false, None);
            }
            if state.wanted.is_some() {
                state.begun += 1;
                return (true, state.wanted.take());
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
    pub(crate) fn has_cleaner(&self) -> bool {
        self.gc.task.state.lock().running.is_some()
    }

    /// Starts the task if it is not there.
    ///
    /// # Errors
    /// The host refuses a thread.
    pub(crate) fn start_cleaning(&self) -> io::Result<()> {
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
    pub(crate) fn stop_cleaning(&self) {
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
    fn round(&self, sleep: &mut Sleep, wanted: Option<Room>) {
        // Not while the volume is about to be frozen or to become read-only: whoever does that ends
        // tasks, or keeps others out.
        let Some(_open) = self.service.try_read() else {
            return;
        };
        let tunables = *self.gc.tunables.lock();
        let (pace, mode) = (tunables.pace, tunables.mode);
        let facts = self.gc_facts(wanted.is_some(), &tunables);
        let tag = IoTag {
            urgency: match wanted {
                Some(_) => Urgency::Waited,
                None => Urgency::Background,
            },
            ..IoTag::default()
        };
        match sleep.begin(pace, mode, facts) {
            Round::Rest => {}
            Round::Busy => self.gc.stats.lock().skipped_busy += 1,
            Round::InUse => self.gc.stats.lock().skipped_in_use += 1,
            Round::Serve => {
                let _one = self.gc.one.lock();
                // Who waits finds out himself whether there is room.
                let _ = self.collect(wanted.unwrap_or(Room::Reserve), tag);
            }
            Round::Clean => self.round_in_background(sleep, pace, tag),
        }
        self.gc.tunables.lock().count_round();
    }

    fn round_in_background(&self, sleep: &mut Sleep, pace: Pace, tag: IoTag) {
        let _one = self.gc.one.lock();
        self.tell_demand();
        if !self.segments().has(Room::Reserve, 0) {
            // Short of space: as for a writer.
            if let Err(error) = self.collect(Room::Reserve, tag) {
                tracing::debug!(%error, "cleaning in the background made no room");
            }
            return;
        }
        // As the kernel: a synchronous round is one of the foreground that nobody asked for.
        let sync = self.options.read().background_gc == BackgroundGc::Sync;
        let (mode, by_age) = self.gc.mode();
        let search = Search {
            cost: mode.cost(sync, by_age),
            foreground: sync,
            limit: Some(self.segments().policy().max_search),
            skip: &Default::default(),
        };
        self.gc.stats.lock().calls[usize::from(!sync)] += 1;
        let Some(victim) = self.segments().begin_cleaning(search) else {
            sleep.end(pace, false);
            return;
        };
        sleep.end(pace, true);
        let mut cleaned = self.clean(victim, mode, !sync, tag);
        if sync && cleaned == Ok(true) {
            // What was emptied is free when this is durable.
            cleaned = self.checkpoint_for_space(tag).map(|()| true);
        }
        if let Err(error) = cleaned {
            tracing::warn!(%error, "cleaning in the background failed");
        }
    }

    fn gc_facts(&self, wanted: bool, tunables: &Tunables) -> Facts {
        let counts = self.space.counts();
        let free = u64::from(self.segments().counts().free) * 512;
        Facts {
            read_only: self.check_writable().is_err(),
            frozen: self.is_frozen(),
            wanted,
            busy: self.gc.one.try_lock().is_none(),
            in_use: tunables.heeded.is_in_use(self.queue.depths()),
            quiet: self.gc.quiet_for() >= tunables.idle_interval.into(),
            many_invalid: many_invalid(counts.user_blocks, counts.valid_blocks, free),
        }
    }
}

fn run(fs: &Weak<F2fs>, task: &Task) {
    let _guard = OnUnwind::new(|| {
        if let Some(fs) = fs.upgrade() {
            fs.stop_for_panic();
        }
        task.state.lock().stop = true;
        task.served.notify_all();
    });
    let Some(mut pace) = fs.upgrade().map(|fs| fs.gc.tunables.lock().pace) else {
        return;
    };
    task.state.lock().server = inherit::current_task();
    let mut sleep = Sleep::new(pace);
    loop {
        let (goes_on, wanted) = task.sleep(sleep.time());
        let Some(fs) = fs.upgrade() else { return };
        if !goes_on || task.is_stopped() {
            return;
        }
        let now = fs.gc.tunables.lock().pace;
        if now != pace {
            (pace, sleep) = (now, Sleep::new(now));
        }
        fault_point("f2fs.gc");
        fs.round(&mut sleep, wanted);
        if wanted.is_some() {
            task.serve_ended();
        }
    }
}
