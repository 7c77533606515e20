//! The control files of an f2fs volume, below `.steadfs`.

use std::time::Duration;

use steadfs_cache::parse_cluster_files;
use steadfs_fscrypt::KEYS_FILE;
use steadfs_vfs::{Control, ControlEntry, Cx, FileSystem, FsError, Metrics, Result, Setter};

use crate::checkpoint::daemon::{parse_prio, show_prio};
use crate::disk::quota::admin;
use crate::fs::F2fs;
use crate::gc::{self, number};

/// Largest `max_batch_time`, in microseconds, as for ext4.
const BATCH_US_MAX: u32 = 60_000_000;
/// Writable files that are actions, not settings.
const ACTIONS: [&str; 4] = [
    "options",
    "f2fs/freeze",
    "f2fs/gc_reclaimed_segments",
    KEYS_FILE,
];

impl Control for F2fs {
    fn entries(&self) -> Vec<ControlEntry> {
        let file = |path, writable| ControlEntry { path, writable };
        let mut entries = vec![
            file("options", true),
            file("errors", false),
            file("f2fs/freeze", true),
            file("io/scheduler", false),
            file("io/stats.json", false),
            file("cache/stats.json", false),
            file("f2fs/status", false),
            file("f2fs/stats.json", false),
            file("f2fs/ckpt_thread_ioprio", true),
            file("f2fs/max_batch_time", true),
            file("f2fs/fsync_cluster_files", true),
            file("f2fs/cp_interval", true),
            file("f2fs/idle_interval", true),
            file("f2fs/unusable", false),
            file("f2fs/cp_foreground_calls", false),
            file("f2fs/cp_background_calls", false),
            file("f2fs/stat/sb_status", false),
            file("f2fs/stat/cp_status", false),
        ];
        entries.extend(
            self.quota_controls()
                .into_iter()
                .map(|path| file(path, true)),
        );
        if self.has_encryption() {
            entries.push(file(KEYS_FILE, false));
        }
        entries.extend(gc::files().map(|(path, writable)| file(path, writable)));
        entries
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let mut text = match path {
            "options" => self.effective_options().show(),
            "errors" => self.show_errors(),
            "f2fs/freeze" => u8::from(self.is_frozen()).to_string(),
            "io/scheduler" => self.queue.describe_policies(),
            "io/stats.json" => self.queue.stats().to_json(),
            "cache/stats.json" => self.writeback.stats_json(),
            "f2fs/status" => self.status(),
            "f2fs/stats.json" => self.stats_json(),
            "f2fs/ckpt_thread_ioprio" => show_prio(self.daemon.prio()),
            "f2fs/max_batch_time" => self.daemon.max_batch().as_micros().to_string(),
            "f2fs/fsync_cluster_files" => self.syncs.clustering().max_files().to_string(),
            "f2fs/cp_interval" => self.checkpoints.interval().as_secs().to_string(),
            "f2fs/idle_interval" => self.checkpoints.idle().as_secs().to_string(),
            "f2fs/unusable" => self.unusable().to_string(),
            "f2fs/cp_foreground_calls" => {
                let (all, background) = self.checkpoints.calls();
                all.saturating_sub(background).to_string()
            }
            "f2fs/cp_background_calls" => self.checkpoints.calls().1.to_string(),
            // As in the kernel: hexadecimal digits without a prefix.
            "f2fs/stat/sb_status" => format!("{:x}", self.sb_status()),
            "f2fs/stat/cp_status" => format!("{:x}", self.cp_status()),
            KEYS_FILE if self.has_encryption() => self.keyring.show(),
            _ => match path.strip_prefix("f2fs/") {
                Some(name) => self.show_gc(name)?,
                None => self.quota_control(path)?.ok_or(FsError::NotFound)?,
            },
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text.into_bytes())
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<()> {
        if path == KEYS_FILE && self.has_encryption() {
            return self.change_keys(value);
        }
        let text = std::str::from_utf8(value)
            .map_err(|_| FsError::BadOption("values are text".to_owned()))?
            .trim();
        match (path, text) {
            ("options", list) => self.remount(&Cx::default(), list),
            ("f2fs/freeze", "1") => self.freeze(&Cx::default()),
            ("f2fs/freeze", "0") => {
                self.thaw();
                Ok(())
            }
            ("f2fs/freeze", other) => Err(FsError::BadOption(format!(
                "{other:?} is neither 1 (freeze) nor 0 (thaw)"
            ))),
            _ if self.set_quota_control(path, text)? => Ok(()),
            _ => {
                Control::prepare(self, path, text)?();
                Ok(())
            }
        }
    }

    fn metrics(&self, metrics: &mut Metrics) {
        self.add_metrics(metrics);
    }

    fn tunables(&self) -> Vec<&'static str> {
        let is_action = |path: &str| ACTIONS.contains(&path);
        let entries = self.entries().into_iter();
        let settings = entries.filter(|entry| {
            let is_quota = admin::kind_of(entry.path).is_some();
            entry.writable && !is_action(entry.path) && !is_quota
        });
        settings.map(|entry| entry.path).collect()
    }

    fn prepare(&self, path: &str, value: &str) -> Result<Setter<'_>> {
        match path {
            "f2fs/ckpt_thread_ioprio" => {
                let prio = parse_prio(value)?;
                Ok(Box::new(move || self.daemon.set_prio(prio)))
            }
            "f2fs/max_batch_time" => {
                let micros = number(value)?;
                if micros > BATCH_US_MAX {
                    let why = format!("max_batch_time: at most {BATCH_US_MAX} (microseconds)");
                    return Err(FsError::BadOption(why));
                }
                let limit = Duration::from_micros(micros.into());
                Ok(Box::new(move || self.daemon.set_max_batch(limit)))
            }
            "f2fs/fsync_cluster_files" => {
                let files = parse_cluster_files(value)?;
                let clustering = self.syncs.clustering();
                Ok(Box::new(move || clustering.set_max_files(files)))
            }
            "f2fs/cp_interval" => {
                let seconds = number(value)?;
                if seconds == 0 {
                    let why = "cp_interval: at least 1 (seconds)";
                    return Err(FsError::BadOption(why.to_owned()));
                }
                let interval = Duration::from_secs(seconds.into());
                Ok(Box::new(move || self.checkpoints.set_interval(interval)))
            }
            "f2fs/idle_interval" => {
                let idle = Duration::from_secs(number(value)?.into());
                Ok(Box::new(move || self.checkpoints.set_idle(idle)))
            }
            _ => match path.strip_prefix("f2fs/") {
                Some(name) => self.prepare_gc(name, value),
                None => Err(FsError::NotPermitted),
            },
        }
    }
}

#[cfg(test)]
mod tests;
