//! The control files of an ext volume (below `.steadfs`).

use steadfs_cache::parse_cluster_files;
use steadfs_fscrypt::KEYS_FILE;
use steadfs_vfs::{Control, ControlEntry, Cx, FileSystem, FsError, Metrics, Result, Setter};

use crate::fs::Ext4;

/// The setting of fsync clustering.
const CLUSTER_FILES: &str = "ext4/fsync_cluster_files";

impl Control for Ext4 {
    fn entries(&self) -> Vec<ControlEntry> {
        let file = |path, writable| ControlEntry { path, writable };
        let mut entries = vec![
            file("options", true),
            file("errors", false),
            file("io/scheduler", false),
            file("io/stats.json", false),
            file("cache/stats.json", false),
            file("ext4/freeze", true),
            file(CLUSTER_FILES, true),
        ];
        if self.txns.is_journaled() {
            entries.push(file("jbd2/info", false));
            entries.push(file("jbd2/stats.json", false));
        }
        if self.has_encryption() {
            entries.push(file(KEYS_FILE, false));
        }
        let quota = self.quota_controls().into_iter();
        entries.extend(quota.map(|path| file(path, true)));
        entries
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let mut text = match path {
            "options" => self.effective_options().show(),
            "errors" => self.error_lines(),
            "io/scheduler" => self.queue.describe_policies(),
            "io/stats.json" => self.queue.stats().to_json(),
            "cache/stats.json" => self.writeback.stats_json(),
            "ext4/freeze" => u8::from(self.remount_state.is_frozen()).to_string(),
            CLUSTER_FILES => self.fsync_clustering.max_files().to_string(),
            "jbd2/info" => match self.txns.journal() {
                Some(journal) => journal.info(),
                None if self.txns.is_journaled() => "the volume is read-only\n".to_owned(),
                None => return Err(FsError::NotFound),
            },
            "jbd2/stats.json" => match self.txns.journal() {
                Some(journal) => journal.stats_json(),
                None if self.txns.is_journaled() => "null".to_owned(),
                None => return Err(FsError::NotFound),
            },
            KEYS_FILE if self.has_encryption() => self.keyring.show(),
            path => self.quota_control(path)?.ok_or(FsError::NotFound)?,
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
            .map_err(|_| FsError::BadOption("the value is not UTF-8 text".to_owned()))?
            .trim();
        match (path, text) {
            ("options", list) => self.remount(&Cx::default(), list),
            ("ext4/freeze", "1") => self.freeze(),
            ("ext4/freeze", "0") => self.thaw(),
            ("ext4/freeze", other) => Err(FsError::BadOption(format!(
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
        vec![CLUSTER_FILES]
    }

    fn prepare(&self, path: &str, value: &str) -> Result<Setter<'_>> {
        match path {
            CLUSTER_FILES => {
                let files = parse_cluster_files(value)?;
                Ok(Box::new(move || self.fsync_clustering.set_max_files(files)))
            }
            _ => Err(FsError::NotPermitted),
        }
    }
}

impl Ext4 {
    /// The content of `errors`, a line for each problem: why the volume stopped, data that could not be written yet,
    /// errors recorded in the superblock, corruption found since the mount, and directories whose index is full.
    fn error_lines(&self) -> String {
        let mut text = String::new();
        if let Some(cause) = self.stop_state.cause() {
            text += &format!("stopped: {cause}\n");
        }
        text += &self.errors.data_line(self.writeback.dirty_bytes());
        let recorded = self.sb.lock().error_count();
        if recorded > 0 {
            text += &format!("errors recorded in the superblock: {recorded}\n");
        }
        text += &self.errors.finding_lines();
        let writes = !self.stop_state.is_read_only();
        if let Some(why) = self.why_check().filter(|_| writes && recorded == 0) {
            text += &format!("the volume {why}: e2fsck should look at it\n");
        }
        if text.is_empty() {
            text.push_str("none\n");
        }
        text
    }
}
