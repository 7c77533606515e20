//! What an f2fs volume shows below `.steadfs`.

use steadfs_vfs::{Control, ControlEntry, Cx, FileSystem, FsError, Result};

use crate::fs::F2fs;
use crate::gc;

impl Control for F2fs {
    fn entries(&self) -> Vec<ControlEntry> {
        let file = |path, writable| ControlEntry { path, writable };
        let mut entries = vec![
            file("options", true),
            file("f2fs/freeze", true),
            file("io/scheduler", false),
            file("io/stats.json", false),
            file("f2fs/status", false),
        ];
        entries.extend(gc::files().map(|(path, writable)| file(path, writable)));
        entries
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let mut text = match path {
            "options" => self.effective_options().show(),
            "f2fs/freeze" => u8::from(self.is_frozen()).to_string(),
            "io/scheduler" => self.queue.describe_policies(),
            "io/stats.json" => self.queue.stats().to_json(),
            "f2fs/status" => self.status(),
            _ => match path.strip_prefix("f2fs/") {
                Some(name) => self.show_cleaning(name)?,
                None => return Err(FsError::NotFound),
            },
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text.into_bytes())
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<()> {
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
            _ => match path.strip_prefix("f2fs/") {
                Some(name) => self.set_cleaning(name, text),
                None => Err(FsError::NotPermitted),
            },
        }
    }
}
