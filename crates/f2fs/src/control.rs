//! What an f2fs volume shows below `.steadfs`.

use steadfs_vfs::{Control, ControlEntry, Cx, FileSystem, FsError, Result};

use crate::fs::F2fs;

impl Control for F2fs {
    fn entries(&self) -> Vec<ControlEntry> {
        let file = |path, writable| ControlEntry { path, writable };
        vec![
            file("options", true),
            file("io/scheduler", false),
            file("io/stats.json", false),
        ]
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let mut text = match path {
            "options" => self.options.read().show(),
            "io/scheduler" => self.queue.describe_policies(),
            "io/stats.json" => self.queue.stats().to_json(),
            _ => return Err(FsError::NotFound),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text.into_bytes())
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<()> {
        if path != "options" {
            return Err(FsError::NotPermitted);
        }
        let list = std::str::from_utf8(value)
            .map_err(|_| FsError::BadOption("options are text".to_owned()))?;
        self.remount(&Cx::default(), list.trim())
    }
}
