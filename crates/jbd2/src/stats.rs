//! Counters of the journal, `jbd2/stats.json` and `jbd2/info`.

use std::fmt::Write;
use std::time::Duration;

use steadfs_base::Tid;
use steadfs_rt::Instant;

use crate::Journal;
use crate::fast_write::FastCommitStats;
use crate::transaction::Admission;

/// Number and length of waits for one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitStats {
    /// Number of waits.
    pub count: u64,
    /// Their sum.
    pub total: Duration,
    /// The longest.
    pub max: Duration,
}

impl WaitStats {
    pub(crate) fn add(&mut self, wait: Duration) {
        self.count += 1;
        self.total += wait;
        self.max = self.max.max(wait);
        assert!(self.max <= self.total, "the longest wait is one of them");
    }
}

/// A commit's data for the statistics.
#[derive(Clone, Copy)]
pub(crate) struct CommitTimes {
    pub started: Instant,
    pub requested: Option<Instant>,
    pub lock_began: Instant,
    pub locked: Instant,
    pub handles: u64,
    pub longest_wait: Duration,
}

/// A commit that takes longer is logged, as checkpoints of f2fs are.
const SLOW_COMMIT: Duration = Duration::from_secs(5);

impl CommitTimes {
    /// Logs the times of the steps of a commit that took long. Called when its waiters are awake: the reader of the log may be
    /// one.
    pub(crate) fn warn_if_slow(&self, ended: Instant, tid: Tid) {
        if let Some(warning) = self.warning(ended, tid) {
            tracing::warn!("{warning}");
        }
    }

    fn warning(&self, ended: Instant, tid: Tid) -> Option<String> {
        let began = self
            .requested
            .map_or(self.lock_began, |at| at.min(self.lock_began));
        let total = ended.since(began);
        let ms = |time: Duration| time.as_millis();
        (total >= SLOW_COMMIT).then(|| {
            format!(
                "commit {tid} took {} ms: wait for other commits and callers {} ms, open handles {} ms, log and commit \
                 record {} ms",
                ms(total),
                ms(self.lock_began.since(began)),
                ms(self.locked.since(self.lock_began)),
                ms(ended.since(self.locked)),
            )
        })
    }
}

/// Counters since the journal was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Commits finished.
    pub transactions: u64,
    /// … of them for a waiting caller, not because of age or size.
    pub requested: u64,
    /// … of them whose log blocks were written at the same time as file data.
    pub beside_data: u64,
    /// Longest wait of a handle, summed over transactions.
    pub wait: Duration,
    /// From the request to the lock, summed over requested commits.
    pub request_delay: Duration,
    /// From the first handle to the lock, summed over commits.
    pub running: Duration,
    /// Waiting for open handles, summed over commits.
    pub locked: Duration,
    /// Writing the log, commit record included, summed over commits.
    pub logging: Duration,
    /// Moving average of a commit's time, each new one with a weight of a quarter.
    pub average_commit: Duration,
    /// Handles begun in finished transactions.
    pub handles: u64,
    /// Blocks changed by them.
    pub blocks: u64,
    /// Log blocks written for them.
    pub logged: u64,
    /// Handles that waited while a transaction was locked for its commit.
    pub waited_locked: WaitStats,
    /// Handles that waited for log space.
    pub waited_space: WaitStats,
    /// Handles that waited for credits of other handles, or for the commit of a full transaction.
    pub waited_credits: WaitStats,
    /// Commits that waited for more callers before they began (group commit).
    pub waited_batch: WaitStats,
    /// Runs of the background reclaimer and their length.
    pub background: WaitStats,
    /// Log blocks freed by the background reclaimer.
    pub freed_in_background: u64,
    /// Log blocks freed by handles that waited for log space.
    pub freed_by_waiters: u64,
    /// Blocks written to their home locations.
    pub written_home: u64,
    /// Home writes that were not needed any more, because the block was committed again or freed.
    pub dropped: u64,
    /// Moves of the tail.
    pub tail_moves: u64,
}

impl JournalStats {
    /// A commit has ended that changed `changed` blocks and wrote `len` log blocks.
    pub(crate) fn record_commit(
        &mut self,
        times: &CommitTimes,
        ended: Instant,
        changed: u64,
        len: u32,
    ) {
        self.transactions += 1;
        if let Some(requested) = times.requested {
            self.requested += 1;
            self.request_delay += times.lock_began.since(requested);
        }
        self.wait += times.longest_wait;
        self.running += times.lock_began.since(times.started);
        self.locked += times.locked.since(times.lock_began);
        self.logging += ended.since(times.locked);
        self.handles += times.handles;
        self.blocks += changed;
        self.logged += u64::from(len);
    }

    /// The counter for handles that wait for `admission`.
    pub(crate) const fn wait_stats_for(&mut self, admission: Admission) -> &mut WaitStats {
        match admission {
            Admission::Locked | Admission::Join => &mut self.waited_locked,
            Admission::Credits | Admission::Full(_) => &mut self.waited_credits,
            Admission::NoSpace(_) => &mut self.waited_space,
        }
    }

    /// The text of `jbd2/stats.json`: one JSON object, times in microseconds, sums not divided.
    pub(crate) fn json(
        &self,
        fast: &FastCommitStats,
        durable: Tid,
        free: u32,
        capacity: u32,
    ) -> String {
        let refused = fast.refused.iter();
        let refused: Vec<_> = refused
            .map(|(why, count)| format!("\"{why}\":{count}"))
            .collect();
        let fast = format!(
            "{{\"commits\":{},\"blocks\":{},\"refused\":{{{}}}}}",
            fast.commits,
            fast.blocks,
            refused.join(",")
        );
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let waits = |waits: WaitStats| {
            let (total, max) = (us(waits.total), us(waits.max));
            format!(
                "{{\"count\":{},\"total_us\":{total},\"max_us\":{max}}}",
                waits.count
            )
        };
        format!(
            "{{\"transactions\":{},\"requested\":{},\"beside_data\":{},\"durable\":{durable},\"log_blocks\":{capacity},\
             \"log_free\":{free},\"handles\":{},\"blocks\":{},\"logged\":{},\"average_commit_us\":{},\
             \"running_us\":{},\"locked_us\":{},\"logging_us\":{},\"request_delay_us\":{},\
             \"fast_commits\":{fast},\"waits\":{{\"locked_transaction\":{},\"log_space\":{},\"reserved_credits\":{},\
             \"group_commit\":{}}},\
             \"reclaim\":{{\"written_home\":{},\"dropped\":{},\"tail_moves\":{},\"background\":{},\
             \"freed_in_background\":{},\"freed_by_waiters\":{}}}}}",
            self.transactions,
            self.requested,
            self.beside_data,
            self.handles,
            self.blocks,
            self.logged,
            us(self.average_commit),
            us(self.running),
            us(self.locked),
            us(self.logging),
            us(self.request_delay),
            waits(self.waited_locked),
            waits(self.waited_space),
            waits(self.waited_credits),
            waits(self.waited_batch),
            self.written_home,
            self.dropped,
            self.tail_moves,
            waits(self.background),
            self.freed_in_background,
            self.freed_by_waiters,
        )
    }

    /// The text of `jbd2/info`: the lines of `/proc/fs/jbd2/DEV-INODE/info` (Linux 6.18), then our own ones
    /// about waits of handles and about reclaim.
    pub(crate) fn page(
        &self,
        fast: &FastCommitStats,
        max_transaction: u32,
        durable: Tid,
        worker: &str,
    ) -> String {
        let mut page = String::new();
        self.kernel_lines(&mut page, max_transaction)
            .and_then(|()| self.own_lines(&mut page, durable, worker))
            .and_then(|()| fast.lines(&mut page))
            .expect("writing to a string does not fail");
        page
    }

    fn kernel_lines(&self, page: &mut String, max_transaction: u32) -> std::fmt::Result {
        let n = self.transactions;
        writeln!(
            page,
            "{n} transactions ({} requested), each up to {max_transaction} blocks",
            self.requested
        )?;
        if n == 0 {
            return Ok(());
        }
        let ms = |total: Duration, n: u64| total.as_millis().checked_div(n.into()).unwrap_or(0);
        writeln!(page, "average: ")?;
        writeln!(page, "  {}ms waiting for transaction", ms(self.wait, n))?;
        writeln!(
            page,
            "  {}ms request delay",
            ms(self.request_delay, self.requested)
        )?;
        writeln!(page, "  {}ms running transaction", ms(self.running, n))?;
        writeln!(
            page,
            "  {}ms transaction was being locked",
            ms(self.locked, n)
        )?;
        // Data is written before a commit or at the same time as its log blocks: a commit waits for none.
        writeln!(page, "  0ms flushing data (in ordered mode)")?;
        writeln!(page, "  {}ms logging transaction", ms(self.logging, n))?;
        let micros = self.average_commit.as_micros();
        writeln!(page, "  {micros}us average transaction commit time")?;
        writeln!(page, "  {} handles per transaction", self.handles / n)?;
        writeln!(page, "  {} blocks per transaction", self.blocks / n)?;
        writeln!(page, "  {} logged blocks per transaction", self.logged / n)
    }

    fn own_lines(&self, page: &mut String, durable: Tid, worker: &str) -> std::fmt::Result {
        let waits = [
            ("locked transaction", self.waited_locked),
            ("log space", self.waited_space),
            ("reserved credits", self.waited_credits),
            ("group commit", self.waited_batch),
        ];
        writeln!(page, "waits: ")?;
        for (what, waits) in waits {
            writeln!(
                page,
                "  {} for {what}, {}us in total, {}us the longest",
                waits.count,
                waits.total.as_micros(),
                waits.max.as_micros()
            )?;
        }
        let beside = self.beside_data;
        writeln!(
            page,
            "{beside} commits with the log written beside file data"
        )?;
        writeln!(page, "reclaim: ")?;
        writeln!(
            page,
            "  {} blocks written to their home locations",
            self.written_home
        )?;
        writeln!(page, "  {} blocks dropped", self.dropped)?;
        writeln!(page, "  {} tail moves", self.tail_moves)?;
        writeln!(page, "  {worker}")?;
        writeln!(
            page,
            "  {} background runs, {}us in total, {}us the longest",
            self.background.count,
            self.background.total.as_micros(),
            self.background.max.as_micros()
        )?;
        writeln!(
            page,
            "  {} log blocks freed in the background, {} by waiting handles",
            self.freed_in_background, self.freed_by_waiters
        )?;
        writeln!(page, "last durable transaction: {durable}")
    }
}

impl FastCommitStats {
    fn lines(&self, page: &mut String) -> std::fmt::Result {
        writeln!(
            page,
            "{} fast commits, {} blocks",
            self.commits, self.blocks
        )?;
        for (why, count) in &self.refused {
            writeln!(page, "  {count} commits for waiting callers instead: {why}")?;
        }
        Ok(())
    }
}

impl Journal {
    /// The share of the log, in percent, that the largest transaction takes. If no more than this is free,
    /// a handle may have to wait for reclaim; a threshold of the reclaim policy that is not above it
    /// starts the background reclaimer too late to prevent such waits.
    pub fn forced_reclaim_percent(&self) -> u8 {
        let capacity = u64::from(self.state.lock().log.capacity());
        let share = (u64::from(self.costs.max_transaction) * 100).div_ceil(capacity);
        u8::try_from(share.min(100)).expect("a percentage")
    }

    /// Counters since the journal was opened.
    pub fn stats(&self) -> JournalStats {
        self.state.lock().stats
    }

    /// The text of `.steadfs/jbd2/stats.json`.
    pub fn stats_json(&self) -> String {
        let state = self.state.lock();
        let log = &state.log;
        let fast = state.fast.stats();
        state
            .stats
            .json(fast, state.durable, log.free(), log.capacity())
    }

    /// The text of `.steadfs/jbd2/info`.
    pub fn info(&self) -> String {
        let (stats, fast, durable) = {
            let state = self.state.lock();
            (state.stats, state.fast.stats().clone(), state.durable)
        };
        let worker = {
            let lists = self.lists.lock();
            let state = lists.worker.name();
            match lists
                .policy
                .low_free_percent
                .filter(|_| lists.policy.enabled)
            {
                Some(percent) => format!("async_checkpoint below {percent}% free, {state}"),
                None => format!("noasync_checkpoint, {state}"),
            }
        };
        stats.page(&fast, self.costs.max_transaction, durable, &worker)
    }

    /// Free log blocks and the log's capacity in blocks.
    pub fn log_space(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.log.free(), state.log.capacity())
    }

    /// Age of the running transaction, if it has changed anything.
    pub fn running_age(&self) -> Option<Duration> {
        let state = self.state.lock();
        let running = state.running.as_ref().filter(|r| !r.is_empty())?;
        Some(running.started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_commits_are_logged_with_their_steps() {
        let at = |ms: u64| Instant(ms * 1_000_000);
        let times = CommitTimes {
            started: at(0),
            requested: Some(at(1000)),
            lock_began: at(1100),
            locked: at(3300),
            handles: 1,
            longest_wait: Duration::ZERO,
        };
        assert_eq!(times.warning(at(5999), Tid(7)), None);
        let warning = times.warning(at(6000), Tid(7)).unwrap();
        assert_eq!(
            warning,
            "commit 7 took 5000 ms: wait for other commits and callers 100 ms, open handles 2200 ms, log and commit \
             record 2700 ms"
        );
    }
}
