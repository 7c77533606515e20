//! What an ext volume shows below `.steadfs`.

use steadfs_vfs::{Control, ControlEntry, Cx, FileSystem, FsError, Result};

use crate::fs::Ext4;

impl Control for Ext4 {
    fn entries(&self) -> Vec<ControlEntry> {
        let file = |path, writable| ControlEntry { path, writable };
        let mut entries = vec![
            file("options", true),
            file("io/scheduler", false),
            file("io/stats.json", false),
        ];
        if self.txns.is_journaled() {
            entries.push(file("jbd2/info", false));
        }
        entries
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let mut text = match path {
            "options" => self.effective_options().show(),
            "io/scheduler" => "[fifo]".to_owned(),
            "io/stats.json" => self.queue.stats().to_json(),
            "jbd2/info" => match self.txns.journal() {
                Some(journal) => journal.info(),
                None if self.txns.is_journaled() => "the volume is read-only\n".to_owned(),
                None => return Err(FsError::NotFound),
            },
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
