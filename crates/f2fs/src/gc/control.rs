//! Files below `.steadfs/f2fs` about segments and GC, with the kernel's names.

use steadfs_vfs::{FsError, Result, Setter};

use super::GcMode;
use super::tunables::{FOLDER, NAMES, Tunables, number};
use crate::data::placement::IpuPolicy;
use crate::fs::F2fs;
use crate::options::Mode;
use crate::segment::{AllocMode, Policy};
use crate::victim::age::AGE_THRESHOLD;

/// Files that are not in [`Tunables`]: (path, writable).
const OTHERS: &[(&str, bool)] = &[
    ("f2fs/gc_mode", false),
    ("f2fs/gc_reclaimed_segments", true),
    ("f2fs/gc_foreground_calls", false),
    ("f2fs/gc_background_calls", false),
    ("f2fs/moved_blocks_foreground", false),
    ("f2fs/moved_blocks_background", false),
    ("f2fs/avg_vblocks", false),
    ("f2fs/dirty_segments", false),
    ("f2fs/free_segments", false),
    ("f2fs/ovp_segments", false),
    ("f2fs/reserved_segments", false),
    ("f2fs/max_victim_search", true),
    ("f2fs/migration_granularity", true),
    ("f2fs/min_ssr_sections", true),
    ("f2fs/ipu_policy", true),
    ("f2fs/min_ipu_util", true),
    ("f2fs/min_fsync_blocks", true),
    ("f2fs/reclaim_segments", true),
];

/// Volumes of up to this many segments (16 GiB) reuse freed space first (`alloc_mode=reuse`).
const SMALL_VOLUME: u32 = 8192;

/// All files: (path, writable).
pub fn files() -> impl Iterator<Item = (&'static str, bool)> {
    let settings = NAMES.iter().map(|name| (*name, true));
    settings.chain(OTHERS.iter().copied())
}

impl F2fs {
    /// The content of a file; `name` without its folder.
    ///
    /// # Errors
    /// `NotFound`: there is no such file. `ReadOnly`: it exists only on a volume that is writable.
    pub(crate) fn show_gc(&self, name: &str) -> Result<String> {
        if Tunables::has(name) {
            let shown = self.gc.tunables.lock().show(name);
            return shown.ok_or(FsError::NotFound);
        }
        if name == "gc_mode" {
            return Ok(self.gc.tunables.lock().mode.name().to_owned());
        }
        let stats = self.gc.stats.lock().clone();
        let moved = [stats.data_blocks, stats.node_blocks];
        let (all, back) = (moved[0][0] + moved[1][0], moved[0][1] + moved[1][1]);
        let number = match name {
            "gc_reclaimed_segments" => {
                let mode = self.gc.tunables.lock().shown_mode;
                *stats.clone().reclaimed_in(mode)
            }
            "gc_foreground_calls" => stats.calls[0],
            "gc_background_calls" => stats.calls[1],
            "moved_blocks_foreground" => all - back,
            "moved_blocks_background" => back,
            "ipu_policy" => self.ipu_policy().0.into(),
            "min_ipu_util" => self.gc.tunables.lock().ipu_util.into(),
            "min_fsync_blocks" => self.gc.tunables.lock().sync_blocks.into(),
            "reclaim_segments" => self.prefree_limit().into(),
            "migration_granularity" => self.migration_granularity().into(),
            "ovp_segments" => self.checkpoints.last().overprovision_segments.into(),
            "reserved_segments" => self.checkpoints.last().reserved_segments.into(),
            "avg_vblocks" | "dirty_segments" | "free_segments" | "max_victim_search"
            | "min_ssr_sections" => {
                let segments = self.segments.get().ok_or(FsError::ReadOnly)?;
                let counts = segments.counts();
                match name {
                    "avg_vblocks" => segments.distribution().1,
                    "dirty_segments" => counts.dirty.into(),
                    "free_segments" => counts.free.into(),
                    "max_victim_search" => segments.policy().max_search.into(),
                    _ => segments.policy().min_ssr_sections.into(),
                }
            }
            _ => return Err(FsError::NotFound),
        };
        Ok(number.to_string())
    }

    #[cfg(test)]
    pub(crate) fn set_gc(&self, name: &str, text: &str) -> Result<()> {
        self.prepare_gc(name, text)?();
        Ok(())
    }

    /// Validates a new value for a file and returns the function that sets it; `NotFound` if there is no such file.
    pub(crate) fn prepare_gc(&self, name: &str, text: &str) -> Result<Setter<'_>> {
        if Tunables::has(name) {
            // Tried on a copy; the same value is valid for the original.
            let mut trial = *self.gc.tunables.lock();
            trial.set(name, text)?;
            let (name, text) = (name.to_owned(), text.to_owned());
            return Ok(Box::new(move || {
                let set = self.gc.tunables.lock().set(&name, &text);
                debug_assert_eq!(set, Ok(()), "a validated value can be set");
                self.apply_log_options();
                self.gc.task.wake();
            }));
        }
        let is_it = |path: &str| path.strip_prefix(FOLDER) == Some(name);
        let Some((_, true)) = OTHERS.iter().find(|(path, _)| is_it(path)) else {
            return Err(FsError::NotFound);
        };
        self.prepare_number(name, number(text)?)
    }

    fn prepare_number(&self, name: &str, value: u32) -> Result<Setter<'_>> {
        match name {
            "gc_reclaimed_segments" => {
                if value != 0 {
                    let why = "gc_reclaimed_segments: only 0 can be written, which clears it";
                    return Err(FsError::BadOption(why.to_owned()));
                }
                Ok(Box::new(|| {
                    let mode = self.gc.tunables.lock().shown_mode;
                    *self.gc.stats.lock().reclaimed_in(mode) = 0;
                }))
            }
            "max_victim_search" => {
                if value == 0 {
                    let why = "max_victim_search: with 0 nothing would ever be found";
                    return Err(FsError::BadOption(why.to_owned()));
                }
                self.policy_setter(move |policy| policy.max_search = value)
            }
            "migration_granularity" => {
                let all = self.layout.segments_per_section;
                if !(1..=all).contains(&value) {
                    let why = format!("{name}: is from 1 to {all} (segments of a section)");
                    return Err(FsError::BadOption(why));
                }
                Ok(Box::new(move || {
                    self.gc.tunables.lock().granularity = Some(value);
                }))
            }
            "ipu_policy" => {
                let known = IpuPolicy::KNOWN.0;
                if value & !known != 0 {
                    let why = format!("ipu_policy: only bits of {known:#x} are supported");
                    return Err(FsError::BadOption(why));
                }
                Ok(Box::new(move || {
                    self.gc.tunables.lock().ipu = Some(value);
                }))
            }
            "min_ipu_util" => Ok(Box::new(move || {
                self.gc.tunables.lock().ipu_util = value;
            })),
            "min_fsync_blocks" => Ok(Box::new(move || {
                self.gc.tunables.lock().sync_blocks = value;
            })),
            "reclaim_segments" => Ok(Box::new(move || {
                self.gc.tunables.lock().reclaim_segments = Some(value);
            })),
            _ => self.policy_setter(move |policy| policy.min_ssr_sections = value),
        }
    }

    /// Passes options and GC mode to the segment manager: after the volume became writable, and after a change.
    pub(crate) fn apply_log_options(&self) {
        let Some(segments) = self.segments.get() else {
            return;
        };
        let (mode, alloc, rules, by_age) = {
            let o = self.options.read();
            (o.mode, o.alloc_mode, o.gc_policy, o.atgc)
        };
        let small = self.layout.main_segments <= SMALL_VOLUME;
        let alloc = alloc.unwrap_or(match small {
            true => AllocMode::Reuse,
            false => AllocMode::Default,
        });
        let (urgent, age) = {
            let mut tunables = self.gc.tunables.lock();
            // As in the kernel, decided once for the mount by the time mounted before it.
            tunables.by_age = by_age && segments.elapsed_before() >= AGE_THRESHOLD;
            (tunables.mode == GcMode::UrgentHigh, tunables.age)
        };
        segments.set_age_rules(age);
        segments.set_policy(|policy| {
            policy.rules = rules;
            policy.mode = mode;
            policy.alloc = alloc;
            policy.force_ssr = urgent;
        });
    }

    /// Segments of a section that a background round empties at most.
    pub(super) fn migration_granularity(&self) -> u32 {
        let set = self.gc.tunables.lock().granularity;
        set.unwrap_or(self.layout.segments_per_section)
    }

    /// When data is written in place (IPU).
    pub(crate) fn ipu_policy(&self) -> IpuPolicy {
        let set = self.gc.tunables.lock().ipu;
        let (lfs, rules) = {
            let options = self.options.read();
            (options.mode == Mode::Lfs, options.gc_policy)
        };
        let own = || rules.ipu_policy(self.layout.main_segments, lfs);
        set.map_or_else(own, IpuPolicy)
    }

    /// Utilisation in percent from which on the rules about a full volume apply.
    pub(crate) fn ipu_util(&self) -> u32 {
        self.gc.tunables.lock().ipu_util
    }

    fn policy_setter<'a>(&'a self, change: impl FnOnce(&mut Policy) + 'a) -> Result<Setter<'a>> {
        let segments = self.segments.get().ok_or(FsError::ReadOnly)?;
        Ok(Box::new(move || segments.set_policy(change)))
    }
}
