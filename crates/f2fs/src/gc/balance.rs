//! Foreground GC: frees space before an operation that changes the volume (`f2fs_balance_fs`).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use steadfs_base::IoTag;
use steadfs_rt::now;
use steadfs_rt::waits::{self, WaitStep};
use steadfs_vfs::{FsError, Result};

use super::NOT_IN_VAIN;
use super::moving::MoveMode;
use super::stats::Outcome;
use super::timing::GcMode;
use crate::checkpoint::Reason;
use crate::disk::{BLOCK_SIZE, SEGMENT_BLOCKS};
use crate::fs::F2fs;
use crate::segment::{Demand, SpaceGoal, Victim, VictimSearch};

/// Dirty blocks and inodes in memory are counted once in this number of operations.
const OPERATIONS_PER_COUNT: u64 = 32;
/// Blocks that have to become invalid before a run is repeated that freed nothing.
const INVALIDATED_BEFORE_RETRY: u64 = SEGMENT_BLOCKS as u64;
/// After this many sections that cannot be read a run ends: each of them may have kept its caller waiting for seconds.
const FAILED_SECTIONS_MAX: u32 = 16;
/// With at most this many free sections a checkpoint follows each emptied one.
const FREE_SECTIONS_LOW: u32 = 4;

impl F2fs {
    /// Frees space if free sections do not cover the dirty blocks and the reserve. Called at the start of each
    /// operation that changes the volume, with no lock held. If no space can be freed, the operation fails later by
    /// itself.
    ///
    /// # Errors
    /// A checkpoint failed, or the volume has aborted.
    pub(crate) fn balance(&self, tag: IoTag) -> Result<()> {
        self.gc.note_request();
        let Some(segments) = self.segments.get().filter(|_| self.gc.is_allowed()) else {
            return Ok(());
        };
        // Counting takes longer than most operations, and one operation needs a few blocks only.
        let number = self.gc.operations.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(OPERATIONS_PER_COUNT) {
            self.store_unused_inodes()?;
            self.update_demand();
        }
        if self.is_cp_disabled() {
            return self.balance_cp_disabled(tag);
        }
        if !segments.has_space(SpaceGoal::Reserve, 0) && self.is_worth_trying() {
            let _step = waits::during(WaitStep::Cleaning);
            match self.make_space_for(SpaceGoal::Reserve, tag) {
                Ok(()) | Err(FsError::NoSpace) => {}
                Err(error) => return Err(error),
            }
        }
        if self.excess_dirty_nodes() || self.excess_node_capacity() {
            // Too many dirty nodes for memory, or for the space left.
            self.request_checkpoint(tag)?;
            self.update_demand();
        }
        Ok(())
    }

    /// The same while checkpoints are disabled, when GC frees nothing.
    ///
    /// # Errors
    /// `NoSpace`: further changes could not be written. A device error.
    fn balance_cp_disabled(&self, tag: IoTag) -> Result<()> {
        if self.must_flush_nodes() {
            self.checkpoint(Reason::Sync, tag)?;
            self.update_demand();
        }
        match self.excess_node_capacity() {
            true => Err(FsError::NoSpace),
            false => Ok(()),
        }
    }

    /// Whether a checkpoint may soon be unable to allocate a block for each dirty node.
    fn excess_node_capacity(&self) -> bool {
        self.nodes_to_place() as u64 > self.gc.node_capacity.load(Ordering::Relaxed)
    }

    /// Whether dirty nodes have to be written although checkpoints are disabled.
    pub(crate) fn must_flush_nodes(&self) -> bool {
        self.nodes.dirty_count() > self.node_limit() || self.excess_node_capacity()
    }

    /// Frees space for a caller whose allocation failed. The caller holds no lock and repeats the allocation.
    ///
    /// # Errors
    /// `NoSpace`: neither GC nor a checkpoint can free any. A device error.
    pub(crate) fn make_free_space(&self, tag: IoTag) -> Result<()> {
        if !self.gc.is_allowed() {
            return Err(FsError::NoSpace);
        }
        if self.is_cp_disabled() {
            return match self.segments().has_space(SpaceGoal::Users, 0) {
                true => Ok(()),
                false => Err(FsError::NoSpace),
            };
        }
        if self.space.counts().freed_nodes > 0 {
            // Their ids become available with a checkpoint, too.
            self.checkpoint(Reason::Sync, tag)?;
        }
        self.make_space_for(SpaceGoal::Users, tag)
    }

    /// Whether enough blocks have become invalid since a run that freed nothing.
    fn is_worth_trying(&self) -> bool {
        let in_vain_at = self.gc.in_vain_at.load(Ordering::Relaxed);
        let invalidated = self.segments().invalidated();
        in_vain_at == NOT_IN_VAIN
            || invalidated >= in_vain_at.saturating_add(INVALIDATED_BEFORE_RETRY)
    }

    /// Counts the dirty blocks in memory, for the segment manager.
    pub(crate) fn update_demand(&self) {
        let others = self.inodes.dirty_others();
        let dentries: u64 = others.iter().map(|inode| inode.pages.unwritten()).sum();
        let data = self.writeback.dirty_bytes() / BLOCK_SIZE as u64;
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        self.segments().set_demand(Demand {
            nodes: count(self.nodes.dirty_count() as u64),
            dentries: count(dentries),
            inodes: count(self.inodes.dirty_count() as u64),
            data: count(data),
        });
        let places = self.segments().capacity().nodes_with(dentries);
        self.gc.node_capacity.store(places, Ordering::Relaxed);
    }

    fn make_space_for(&self, goal: SpaceGoal, tag: IoTag) -> Result<()> {
        let begun = now();
        let merged = self.options.read().gc_merge && self.gc.task.request(goal);
        let result = match merged {
            true => Ok(()),
            false => {
                let _one = self.gc.gc_lock.lock();
                self.collect(goal, tag)
            }
        };
        self.gc.stats.lock().count_wait(begun.elapsed());
        result
    }

    /// Cleans until the goal is reached; the caller holds `gc_lock`.
    ///
    /// # Errors
    /// `NoSpace`: the goal cannot be reached. A checkpoint failed.
    pub(super) fn collect(&self, goal: SpaceGoal, tag: IoTag) -> Result<()> {
        let segments = self.segments();
        let mut skip = BTreeSet::new();
        let size = self.layout.segments_per_section * SEGMENT_BLOCKS;
        let (mut emptied, mut cleaned, mut failed) = (0, 0, 0);
        let (mut pins_forgotten, mut others_are_fuller) = (false, false);
        self.gc.stats.lock().calls[0] += 1;
        for round in 0..u64::from(segments.counts().sections) * 2 + 16 {
            self.check_writable()?;
            self.update_demand();
            if self.is_cp_disabled() {
                // Blocks of the last checkpoint cannot become free.
                break;
            }
            let rules = segments.policy().rules;
            if segments.has_space(goal, 0) && !rules.cleans_beyond_need(cleaned, round) {
                self.gc.in_vain_at.store(NOT_IN_VAIN, Ordering::Relaxed);
                return Ok(());
            }
            let waiting = emptied > 0 || segments.freed_by_checkpoint() > 0;
            let low = segments.free_sections() <= FREE_SECTIONS_LOW;
            if waiting && (round == 0 || low || segments.has_space(goal, emptied)) {
                self.checkpoint_for_space(tag)?;
                emptied = 0;
                continue;
            }
            let most = rules.sections_per_operation();
            let enough = goal == SpaceGoal::Reserve
                && (others_are_fuller || most.is_some_and(|most| cleaned >= most));
            let mode = self.gc.mode().0;
            let victim = match enough || failed >= FAILED_SECTIONS_MAX {
                true => None,
                false => self.next_victim(&skip),
            };
            let Some(victim) = victim else {
                if waiting {
                    self.checkpoint_for_space(tag)?;
                    emptied = 0;
                    continue;
                }
                if !pins_forgotten && segments.forget_pins() {
                    pins_forgotten = true;
                    continue;
                }
                break;
            };
            if goal == SpaceGoal::Reserve && !rules.is_worth_cleaning(victim.valid, size) {
                segments.end_cleaning(victim.section);
                skip.insert(victim.section);
                others_are_fuller = true;
                continue;
            }
            cleaned += 1;
            let done = self.clean(victim, mode, false, tag)?;
            failed += u32::from(done.failed);
            if done.is_emptied() {
                emptied += 1;
            } else {
                skip.insert(victim.section);
            }
        }
        self.gc
            .in_vain_at
            .store(segments.invalidated(), Ordering::Relaxed);
        Err(FsError::NoSpace)
    }

    /// Begins to clean another section for a task that waits for space.
    fn next_victim(&self, skip: &BTreeSet<u32>) -> Option<Victim> {
        let policy = self.segments().policy();
        let (mode, by_age) = self.gc.mode();
        let search = VictimSearch {
            cost: mode.cost(true, by_age),
            foreground: true,
            limit: policy.rules.foreground_limit(policy.max_search),
            skip,
        };
        self.segments().begin_cleaning(search)
    }

    /// Cleans the section with the fewest valid blocks and adds it to `skip`, because nodes that were marked dirty are
    /// in it until a checkpoint. `None`: there is no victim.
    pub(crate) fn clean_one(
        &self,
        skip: &mut BTreeSet<u32>,
        tag: IoTag,
    ) -> Result<Option<Outcome>> {
        let _one = self.gc.gc_lock.lock();
        self.gc.stats.lock().calls[0] += 1;
        let segments = self.segments();
        let search = VictimSearch {
            cost: GcMode::UrgentHigh.cost(true, false),
            foreground: true,
            limit: None,
            skip,
        };
        let Some(victim) = segments.begin_cleaning(search) else {
            return Ok(None);
        };
        let done = self.clean(victim, GcMode::UrgentHigh, false, tag)?;
        skip.insert(victim.section);
        if segments.free_sections() <= FREE_SECTIONS_LOW {
            self.checkpoint_for_space(tag)?;
        }
        Ok(Some(done))
    }

    /// Cleans a given section, if it has valid blocks.
    ///
    /// # Errors
    /// `Busy`: a curseg is in it, or it is being cleaned. `NoSpace`. The volume has stopped.
    pub(crate) fn clean_section(&self, section: u32, tag: IoTag) -> Result<Outcome> {
        let _one = self.gc.gc_lock.lock();
        let done = match self.segments().begin_cleaning_of(section)? {
            Some(victim) => self.clean(victim, GcMode::UrgentHigh, false, tag)?,
            None => Outcome::default(),
        };
        if self.segments().free_sections() <= FREE_SECTIONS_LOW {
            self.checkpoint_for_space(tag)?;
        }
        Ok(done)
    }

    pub(crate) fn is_gc_running(&self) -> bool {
        self.gc.gc_lock.try_lock().is_none()
    }

    /// Cleans a victim.
    pub(super) fn clean(
        &self,
        victim: Victim,
        mode: GcMode,
        background: bool,
        tag: IoTag,
    ) -> Result<Outcome> {
        let (_, by_age) = self.gc.mode();
        let how = MoveMode {
            by_age: by_age && background && mode != GcMode::UrgentHigh,
            background,
        };
        let done = self.empty_section(victim, how, tag);
        self.segments().end_cleaning(victim.section);
        let done = done?;
        let size = self.layout.segments_per_section * SEGMENT_BLOCKS;
        let mut stats = self.gc.stats.lock();
        stats.count(victim, size, done, mode, background);
        Ok(done)
    }

    pub(super) fn checkpoint_for_space(&self, tag: IoTag) -> Result<()> {
        self.gc.stats.lock().checkpoints += 1;
        self.checkpoint(Reason::Sync, tag)
    }
}
