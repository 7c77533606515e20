//! The order of a mounted volume's I/O, as its owner sees it: options and control files.

use std::sync::Arc;

use steadfs_block::Queue;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::options::items;
use steadfs_vfs::{Control, ControlEntry, FsError, Layer, Prepared, Result};

use crate::IoOptions;

/// A volume's queue with its options.
pub struct Io {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Arc<Queue>,
    options: Mutex<IoOptions>,
}

impl Shared {
    /// Applies items of a list that has been checked.
    fn set(&self, list: &[(String, Option<String>)]) {
        let mut options = self.options.lock();
        for (name, value) in list {
            let known = options.set(name, value.as_deref());
            debug_assert_eq!(known, Ok(true), "the list was checked");
        }
        self.apply(&options);
    }

    fn apply(&self, options: &IoOptions) {
        if self.queue.settings() != options.queue {
            self.queue.configure(options.queue);
        }
    }
}

impl Io {
    pub(crate) fn new(queue: Arc<Queue>, options: IoOptions) -> Self {
        let shared = Shared {
            queue,
            options: Mutex::new(Rank::Table, options),
        };
        shared.apply(&shared.options.lock());
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The options as they are.
    pub fn options(&self) -> IoOptions {
        self.shared.options.lock().clone()
    }

    /// The queue.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.shared.queue
    }
}

impl Layer for Io {
    fn prepare(&self, list: &str) -> Result<Prepared> {
        let mut rest = Vec::new();
        let mut own = Vec::new();
        let mut trial = self.options();
        for (name, value) in items(list) {
            if trial.set(name, value)? {
                own.push((name.to_owned(), value.map(str::to_owned)));
            } else {
                rest.push(value.map_or_else(|| name.to_owned(), |v| format!("{name}={v}")));
            }
        }
        let shared = Arc::clone(&self.shared);
        Ok(Prepared {
            rest: rest.join(","),
            apply: Box::new(move || shared.set(&own)),
        })
    }

    fn options(&self) -> String {
        self.shared.options.lock().show()
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Control for Io {
    fn entries(&self) -> Vec<ControlEntry> {
        let file = |path, writable| ControlEntry { path, writable };
        vec![
            file("io/scheduler", true),
            file("io/queue", false),
            file("io/stats.json", false),
        ]
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let queue = &self.shared.queue;
        let mut text = match path {
            "io/scheduler" => queue.describe_policies(),
            "io/queue" => queue.describe(),
            "io/stats.json" => queue.stats().to_json(),
            _ => return Err(FsError::NotFound),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text.into_bytes())
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<()> {
        if path != "io/scheduler" {
            return Err(FsError::NotPermitted);
        }
        let name = std::str::from_utf8(value).unwrap_or_default().trim();
        let prepared = self.prepare(&format!("io_scheduler={name}"))?;
        (prepared.apply)();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use steadfs_block::{MemDevice, Policy, QueueOptions};

    use super::*;

    #[test]
    fn a_list_is_taken_whole_or_not_at_all() {
        let device = Arc::new(MemDevice::new(1 << 20));
        let queue = Arc::new(Queue::new(device, QueueOptions::default()));
        let io = Io::new(Arc::clone(&queue), IoOptions::default());
        let prepared = io.prepare("io_scheduler=fair,commit=9,noboost,ro").unwrap();
        assert_eq!(prepared.rest, "commit=9,ro");
        assert_eq!(queue.settings().policy, Policy::Fifo, "not yet");
        (prepared.apply)();
        assert_eq!(queue.settings().policy, Policy::Fair);
        assert_eq!(Layer::options(&io), "io_scheduler=fair,noboost");
        assert!(io.prepare("boost,queue_depth=0").is_err());
        assert_eq!(Layer::options(&io), "io_scheduler=fair,noboost");
        io.write("io/scheduler", b"cfq\n").unwrap();
        assert_eq!(io.read("io/scheduler").unwrap(), b"fifo fair [cfq]\n");
        assert!(io.write("io/scheduler", b"bfq").is_err());
        assert!(io.write("io/queue", b"").is_err());
    }
}
