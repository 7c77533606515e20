//! Settings of GC that can be changed while the volume is mounted, with the kernel's names below /sys/fs/f2fs.

use steadfs_vfs::{FsError, Result};

use super::timing::{GcMode, IoAware, SleepTimes};
use crate::victim::age::AgeRules;

/// Settings of GC. They are kept when the task is stopped and started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// `gc_*_sleep_time`.
    pub sleep_times: SleepTimes,
    /// `gc_idle_interval`: the volume is idle this many seconds after the last request.
    pub idle_interval: u32,
    /// `bggc_io_aware`: which I/O in flight keeps the volume from being idle.
    pub io_aware: IoAware,
    /// `migration_granularity`: segments of a section that a background round empties at most; `None`: all.
    pub granularity: Option<u32>,
    /// `gc_idle` and `gc_urgent`.
    pub mode: GcMode,
    /// `atgc` has an effect: the option is set and the volume was mounted for long enough before.
    pub by_age: bool,
    /// `atgc_*`.
    pub age: AgeRules,
    /// `gc_remaining_trials`: rounds until the mode is normal again; 0: no limit.
    pub trials: u32,
    /// `ipu_policy`; `None`: the default for the volume.
    pub ipu: Option<u32>,
    /// `min_ipu_util`: utilisation in percent from which on IPU is used.
    pub ipu_util: u32,
    /// `min_fsync_blocks`: an fsync of at most this many dirty blocks writes in place.
    pub sync_blocks: u32,
    /// `reclaim_segments`: prefree segments from which on a checkpoint is written; `None`: the default for the volume.
    pub reclaim_segments: Option<u32>,
    /// `gc_pin_file_thresh`: a pinned file is unpinned after GC has skipped it in this many segments.
    pub pin_thresh: u32,
    /// `gc_segment_mode`: the mode whose count `gc_reclaimed_segments` shows.
    pub shown_mode: GcMode,
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            sleep_times: SleepTimes::default(),
            idle_interval: 5,
            io_aware: IoAware::All,
            granularity: None,
            mode: GcMode::Normal,
            by_age: false,
            age: AgeRules::default(),
            trials: 0,
            pin_thresh: 2048,
            shown_mode: GcMode::Normal,
            ipu: None,
            ipu_util: 70,
            sync_blocks: 8,
            reclaim_segments: None,
        }
    }
}

/// Parses a number as the kernel does: decimal, octal with 0, hexadecimal with 0x.
pub fn number(text: &str) -> Result<u32> {
    let text = text.trim();
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None if text.len() > 1 && text.starts_with('0') => u32::from_str_radix(&text[1..], 8),
        None => text.parse(),
    };
    let wrong = || FsError::BadOption(format!("'{text}' is not a number from 0 to 4294967295"));
    parsed.map_err(|_| wrong())
}

impl Tunables {
    /// Whether there is a setting of this name.
    pub fn has(name: &str) -> bool {
        NAMES
            .iter()
            .any(|path| path.strip_prefix(FOLDER) == Some(name))
    }

    /// The value of a setting as text.
    pub fn show(&self, name: &str) -> Option<String> {
        Some(match name {
            "gc_min_sleep_time" => self.sleep_times.min.to_string(),
            "gc_max_sleep_time" => self.sleep_times.max.to_string(),
            "gc_no_gc_sleep_time" => self.sleep_times.none.to_string(),
            "gc_urgent_sleep_time" => self.sleep_times.urgent.to_string(),
            "gc_idle_interval" => self.idle_interval.to_string(),
            "bggc_io_aware" => self.io_aware.number().to_string(),
            "gc_idle" | "gc_urgent" => self.mode.number().to_string(),
            "atgc_candidate_ratio" => self.age.ratio.to_string(),
            "atgc_candidate_count" => self.age.count.to_string(),
            "atgc_age_threshold" => self.age.threshold.to_string(),
            "atgc_age_weight" => self.age.weight.to_string(),
            "gc_remaining_trials" => self.trials.to_string(),
            "gc_segment_mode" => self.shown_mode.number().to_string(),
            "gc_pin_file_thresh" => self.pin_thresh.to_string(),
            _ => return None,
        })
    }

    /// Sets a setting from text.
    ///
    /// # Errors
    /// The value is out of range.
    pub fn set(&mut self, name: &str, text: &str) -> Result<()> {
        let value = number(text)?;
        let wrong = |why: &str| Err(FsError::BadOption(format!("{name}: {why}")));
        match name {
            "gc_min_sleep_time" => self.sleep_times.min = value,
            "gc_max_sleep_time" => self.sleep_times.max = value,
            "gc_no_gc_sleep_time" => self.sleep_times.none = value,
            "gc_urgent_sleep_time" => self.sleep_times.urgent = value,
            "gc_idle_interval" => self.idle_interval = value,
            "bggc_io_aware" => {
                let found = IoAware::ALL.into_iter().find(|h| h.number() == value);
                match found {
                    Some(io_aware) => self.io_aware = io_aware,
                    None => return wrong("is 0 (all I/O), 1 (reads) or 2 (none)"),
                }
            }
            "gc_idle" => {
                self.mode = match value {
                    1 => GcMode::IdleBenefit,
                    2 => GcMode::IdleGreedy,
                    3 if self.by_age => GcMode::IdleAge,
                    3 => return wrong("3 needs the option atgc, and a volume mounted for a week"),
                    _ => GcMode::Normal,
                }
            }
            "gc_urgent" => {
                self.mode = match value {
                    0 => GcMode::Normal,
                    1 => GcMode::UrgentHigh,
                    2 => GcMode::UrgentLow,
                    3 => GcMode::UrgentMid,
                    _ => return wrong("is 0 (no), 1 (high), 2 (low) or 3 (mid)"),
                }
            }
            "atgc_candidate_ratio" if value > 100 => return wrong("is at most 100 (percent)"),
            "atgc_candidate_ratio" => self.age.ratio = value,
            "atgc_candidate_count" => self.age.count = value,
            "atgc_age_threshold" => self.age.threshold = value.into(),
            "atgc_age_weight" if value > 100 => return wrong("is at most 100 (percent)"),
            "atgc_age_weight" => self.age.weight = value,
            "gc_remaining_trials" => self.trials = value,
            "gc_pin_file_thresh" => {
                if value > 0xffff {
                    return wrong("is at most 65535 (the counter in an inode)");
                }
                self.pin_thresh = value;
            }
            "gc_segment_mode" => {
                let found = GcMode::ALL.into_iter().find(|m| m.number() == value);
                match found {
                    Some(mode) => self.shown_mode = mode,
                    None => return wrong("is the number of a mode: from 0 to 6"),
                }
            }
            _ => return Err(FsError::NotFound),
        }
        Ok(())
    }

    /// A round has ended; the mode returns to normal after the last one.
    pub fn count_round(&mut self) {
        if self.mode != GcMode::Normal && self.trials > 0 {
            self.trials -= 1;
            if self.trials == 0 {
                self.mode = GcMode::Normal;
            }
        }
    }
}

/// Folder of these files.
pub const FOLDER: &str = "f2fs/";

/// Paths of all settings.
pub const NAMES: &[&str] = &[
    "f2fs/gc_min_sleep_time",
    "f2fs/gc_max_sleep_time",
    "f2fs/gc_no_gc_sleep_time",
    "f2fs/gc_urgent_sleep_time",
    "f2fs/gc_idle_interval",
    "f2fs/bggc_io_aware",
    "f2fs/gc_idle",
    "f2fs/gc_urgent",
    "f2fs/gc_remaining_trials",
    "f2fs/atgc_candidate_ratio",
    "f2fs/atgc_candidate_count",
    "f2fs/atgc_age_threshold",
    "f2fs/atgc_age_weight",
    "f2fs/gc_segment_mode",
    "f2fs/gc_pin_file_thresh",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_show_what_was_set() {
        let mut tunables = Tunables::default();
        for (name, value, shown) in [
            ("gc_min_sleep_time", "0x10\n", "16"),
            ("gc_max_sleep_time", "017", "15"),
            ("gc_urgent", "1", "4"),
            ("bggc_io_aware", "2", "2"),
            ("bggc_io_aware", "0x1", "1"),
            ("gc_idle", "2", "2"),
            ("gc_idle", "77", "0"),
            ("gc_urgent", "3", "6"),
            ("gc_segment_mode", "5", "5"),
            ("gc_segment_mode", "3", "3"),
            ("atgc_candidate_ratio", "100", "100"),
            ("atgc_candidate_count", "0", "0"),
            ("atgc_age_threshold", "4294967295", "4294967295"),
            ("atgc_age_weight", "0x3c", "60"),
        ] {
            tunables.set(name, value).unwrap();
            assert_eq!(tunables.show(name).as_deref(), Some(shown), "{name}");
        }
        for (name, value) in [
            ("gc_urgent", "4"),
            ("bggc_io_aware", "3"),
            ("gc_idle", "3"),
            ("gc_segment_mode", "7"),
            ("atgc_candidate_ratio", "101"),
            ("atgc_age_weight", "101"),
            ("gc_min_sleep_time", "-1"),
            ("gc_min_sleep_time", "4294967296"),
            ("gc_min_sleep_time", ""),
        ] {
            assert!(tunables.set(name, value).is_err(), "{name} {value}");
        }
        for path in NAMES {
            let name = path.strip_prefix(FOLDER).unwrap();
            assert!(
                Tunables::has(name) && tunables.show(name).is_some(),
                "{name}"
            );
        }
        tunables.by_age = true;
        tunables.set("gc_idle", "3").unwrap();
        assert_eq!(tunables.show("gc_idle").as_deref(), Some("3"));
        tunables.set("gc_urgent", "3").unwrap();
        tunables.set("gc_remaining_trials", "2").unwrap();
        tunables.count_round();
        assert_eq!(tunables.mode, GcMode::UrgentMid);
        tunables.count_round();
        assert_eq!(tunables.mode, GcMode::Normal);
    }
}
