//! The options and control files that a mount adds to those of its volume.

use std::path::PathBuf;
use std::sync::Arc;

use steadfs_fuse::Stats;
use steadfs_vfs::{
    Control, ControlEntry, ControlLayer, FsError, Metrics, PreparedOptions, Result, Setter,
};

use crate::probe::Kind;
use crate::{Io, Options};

/// Counters of requests.
const REQUESTS: &str = "fuse/stats.json";
/// The requests that wait.
const WAITING: &str = "waiting";
const WAITING_JSON: &str = "waiting.json";

const OWN: [&str; 3] = [REQUESTS, WAITING, WAITING_JSON];

/// The options and files of a mount's queue, its requests, and the options that are fixed while it is mounted.
pub(super) struct MountLayer {
    pub io: Arc<Io>,
    pub options: Options,
    pub kind: Kind,
    /// Where the volume is.
    pub path: PathBuf,
    pub stats: Arc<Stats>,
}

impl ControlLayer for MountLayer {
    fn prepare(&self, list: &str) -> Result<PreparedOptions> {
        ControlLayer::prepare(&*self.io, &self.options.for_volume(list, self.kind)?)
    }

    fn options(&self) -> String {
        let lists = [self.options.show_fixed(), ControlLayer::options(&*self.io)];
        lists
            .into_iter()
            .filter(|list| !list.is_empty())
            .collect::<Vec<_>>()
            .join(",")
    }

    fn control(&self) -> &dyn Control {
        self
    }

    /// Those of Prometheus' node exporter for file systems.
    fn labels(&self) -> Vec<(&'static str, String)> {
        let device = self.path.display().to_string();
        let mut labels = vec![("device", device), ("fstype", self.kind.name().to_owned())];
        let mountpoint = self.options.ext4.mounted_on.as_deref();
        labels.extend(mountpoint.map(|path| ("mountpoint", String::from_utf8_lossy(path).into())));
        labels
    }
}

impl Control for MountLayer {
    fn entries(&self) -> Vec<ControlEntry> {
        let mut entries = self.io.entries();
        entries.extend(OWN.map(|path| ControlEntry {
            path,
            writable: false,
        }));
        entries
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        match path {
            REQUESTS => Ok((self.stats.to_json() + "\n").into_bytes()),
            WAITING => Ok(self.stats.waiting(false).into_bytes()),
            WAITING_JSON => Ok(self.stats.waiting(true).into_bytes()),
            _ => self.io.read(path),
        }
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<()> {
        match OWN.contains(&path) {
            true => Err(FsError::NotPermitted),
            false => self.io.write(path, value),
        }
    }

    fn metrics(&self, metrics: &mut Metrics) {
        self.stats.add_to(metrics);
        self.io.metrics(metrics);
    }

    fn tunables(&self) -> Vec<&'static str> {
        self.io.tunables()
    }

    fn prepare(&self, path: &str, value: &str) -> Result<Setter<'_>> {
        Control::prepare(&*self.io, path, value)
    }
}
