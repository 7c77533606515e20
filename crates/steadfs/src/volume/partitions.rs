//! The partitions of a disk.

use std::path::Path;

use crate::image::{Table, Window};
use crate::layers::way_to;
use crate::probe::{failed, table_on};

use super::{Error, Options, VolumeDevice};

impl VolumeDevice {
    /// Opens a disk to find a partition of it, which another process may use: nothing is claimed or locked.
    pub fn open_disk(path: &Path) -> Result<Self, Error> {
        let options = Options::parse("ro,buffered").map_err(|error| failed(path, error))?;
        Self::open_as(path, &options, (false, true))
    }

    /// The partition table of the disk.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn partitions(&self) -> Result<Table, Error> {
        let table = table_on(&self.queue()?, self.options.offset);
        let mut table =
            table.ok_or_else(|| self.no_partition("has no partition table".to_owned()))?;
        table.has_places &= !self.layers.is_layered();
        Ok(table)
    }

    /// Where the partition with this number, or else with this name in the table, or else with a volume of this label is in
    /// the file; of `A@B`, partition B of partition A. `None` if that is no window of it, so that `partition=` finds it in
    /// the layers.
    ///
    /// # Errors
    /// There is no such partition, or not only one.
    pub fn partition_window(&self, which: &str) -> Result<Option<Window>, Error> {
        // The layers are known from here on.
        let disk = self.device()?;
        let first = (!self.layers.is_layered()).then_some(0);
        let way = way_to(&disk, which, first).map_err(|why| self.no_partition(why))?;
        let mut window = Window {
            start: 0,
            bytes: u64::MAX,
        };
        for part in &way {
            window = Window {
                start: window.start.saturating_add(part.start),
                bytes: part.bytes.min(window.bytes.saturating_sub(part.start)),
            };
        }
        let is_window = first.is_some() && way.iter().all(|part| part.map.is_none());
        Ok(is_window.then_some(window))
    }

    pub(super) fn no_partition(&self, why: String) -> Error {
        Error::NoPartition {
            path: self.path.clone(),
            why,
        }
    }
}
